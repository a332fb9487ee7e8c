/* tidemill plan --advise: one step planned by every strategy and with the state in every place, side by side, and which
 * of them to take. Each row is what `plan` says of it; nothing here is estimated. */
#include "comm/comm.h"
#include "planner/plan_internal.h"
#include "planner/planner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    tm_place param, optimizer;
} places[] = {{TM_PLACE_NONE, TM_PLACE_NONE}, {TM_PLACE_NONE, TM_PLACE_CPU}, {TM_PLACE_NONE, TM_PLACE_NVME},
              {TM_PLACE_CPU, TM_PLACE_CPU},   {TM_PLACE_CPU, TM_PLACE_NVME}, {TM_PLACE_NVME, TM_PLACE_NVME}};

static const char *place_name(tm_place p) {
    return p == TM_PLACE_NONE ? "none" : p == TM_PLACE_CPU ? "cpu" : "nvme";
}

/* ---- what is worth a row ------------------------------------------------------------------------------------- */

static bool has_disk(const planning *g) {
    return !g->hardware || g->machine.disk.read_bps > 0;
}

/* Without a device none and cpu are one place. Stages 1 and 2 keep whole weights where they compute. Where the
 * device cannot run the update its state is on the host. */
static bool place_is_open(const planning *g, size_t place, tm_strategy s) {
    bool device = g->machine.gpus > 0, files = places[place].optimizer == TM_PLACE_NVME;
    if (files && !has_disk(g)) return false;
    if (!device)
        return places[place].param == TM_PLACE_NONE ? places[place].optimizer != TM_PLACE_CPU
                                                    : places[place].param == TM_PLACE_NVME;
    if (places[place].optimizer == TM_PLACE_NONE && !plan_device_updates(g->s->cfg)) return false;
    return places[place].param == TM_PLACE_NONE || tm_strategy_rows[s].divides != TM_DIVIDES_STATE;
}

/* In one node hsdp is zero3, and hpz is zero3 with a second copy; with one rank a node hsdp is ddp. */
static bool strategy_is_open(const struct tm_comm *comm, tm_strategy s) {
    if (!comm) return s == TM_STRATEGY_DDP;
    bool grid = tm_comm_nodes(comm) > 1 && tm_comm_node_size(comm) > 1;
    return grid || !tm_strategy_rows[s].by_node;
}

static void count_node(tm_advice_row *row) {
    const tm_plan_report *p = &row->plan;
    uint64_t each = p->ranks / p->nodes;
    row->nic_bytes = p->network_bytes_per_step * each;
    row->disk_bytes = (p->read_bytes_per_step + p->write_bytes_per_step) * each;
}

static tm_status plan_row(planning *g, tm_strategy strategy, size_t place, tm_advice_row *row) {
    tm_config *c = g->s->cfg;
    c->strategy = strategy;
    c->zero_stage = tm_strategy_rows[strategy].stage;
    c->strategy_given = true;
    c->param_place = places[place].param;
    c->optimizer_place = places[place].optimizer;
    *row = (tm_advice_row){.strategy = g->s->comm ? tm_strategy_rows[strategy].name : "",
                           .param = place_name(places[place].param),
                           .optimizer = place_name(places[place].optimizer)};
    g->out = &row->plan;
    tm_status rc = plan_once(g);
    if (rc == TM_EBUDGET) tm_error_clear();
    if (rc != TM_OK && rc != TM_EBUDGET) return rc;
    count_node(row);
    return TM_OK;
}

/* What is named "cpu" is updated by the host alone; apart from that places differ in what must not go into files. */
static bool on_host(size_t place) {
    return places[place].param == TM_PLACE_CPU || places[place].optimizer == TM_PLACE_CPU;
}

/* The one of those like it in which most may go into files. */
static size_t freest(const planning *g, size_t place, tm_strategy s) {
    size_t last = place;
    for (size_t p = place; p < TM_COUNT(places); p++)
        if (place_is_open(g, p, s) && on_host(p) == on_host(place)) last = p;
    return last;
}

static bool uses_files(const tm_advice_row *row) {
    return !row->plan.fits || row->disk_bytes > 0 || row->plan.disk_bytes > 0;
}

/* Where nothing goes into files, though it may, the plan is that of all places that forbid it. */
static tm_status add_row(planning *g, tm_strategy s, size_t place, tm_advice_row free[2], tm_advice *out) {
    tm_advice_row *from = &free[on_host(place)], *row = &out->row[out->n];
    size_t most = freest(g, place, s);
    TM_ASSERT(out->n < TM_ADVICE_ROWS);
    if (!from->strategy) TM_TRY(plan_row(g, s, most, from));
    if (place != most && uses_files(from)) {
        TM_TRY(plan_row(g, s, place, row));
    } else {
        *row = *from;
        row->param = place_name(places[place].param);
        row->optimizer = place_name(places[place].optimizer);
    }
    out->n++;
    return TM_OK;
}

/* ZeRO-1 and 2 are one here: in vertical order no rank ever has a whole gradient. */
static void repeat_row(tm_advice *out, uint32_t from, const char *strategy) {
    TM_ASSERT(out->n < TM_ADVICE_ROWS);
    out->row[out->n] = out->row[from];
    out->row[out->n++].strategy = strategy;
}

static tm_status plan_rows(planning *g, tm_advice *out) {
    uint32_t first = 0, last = 0; /* rows of zero1 */
    for (tm_strategy s = TM_STRATEGY_DDP; s < TM_STRATEGY_COUNT; s++) {
        if (!strategy_is_open(g->s->comm, s)) continue;
        uint32_t begin = out->n;
        tm_advice_row free[2] = {0};
        if (s == TM_STRATEGY_ZERO2)
            for (uint32_t i = first; i < last; i++) repeat_row(out, i, "zero2");
        for (size_t p = 0; p < TM_COUNT(places) && s != TM_STRATEGY_ZERO2; p++)
            if (place_is_open(g, p, s)) TM_TRY(add_row(g, s, p, free, out));
        if (s == TM_STRATEGY_ZERO1) first = begin, last = out->n;
    }
    return TM_OK;
}

/* A simulation is not exact: within this much the simpler row, which comes first, is taken. */
static const double ALIKE = 1.05;

static uint32_t fastest(const tm_advice *a, bool (*counts)(const tm_advice *a, const tm_advice_row *row)) {
    uint32_t best = a->n;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->row[i].plan.fits && (!counts || counts(a, &a->row[i])) &&
            (best == a->n || a->row[i].plan.seconds_per_step < a->row[best].plan.seconds_per_step))
            best = i;
    return best;
}

static uint32_t choose(const tm_advice *a) {
    uint32_t quickest = fastest(a, NULL);
    for (uint32_t i = 0; i < quickest && quickest < a->n; i++)
        if (a->row[i].plan.fits && a->row[i].plan.seconds_per_step <= ALIKE * a->row[quickest].plan.seconds_per_step)
            return i;
    return quickest;
}

static const tm_advice_row *find(const tm_advice *a, const char *strategy, const char *param, const char *optimizer) {
    for (uint32_t i = 0; i < a->n; i++)
        if (strcmp(a->row[i].strategy, strategy) == 0 && strcmp(a->row[i].param, param) == 0 &&
            strcmp(a->row[i].optimizer, optimizer) == 0)
            return &a->row[i];
    return NULL;
}

static bool other_strategy(const tm_advice *a, const tm_advice_row *row) {
    return strcmp(row->strategy, a->row[a->best].strategy) != 0;
}

static void say(tm_advice *a, const char *format, ...) TM_PRINTF(2, 3);
static void say(tm_advice *a, const char *format, ...) {
    size_t at = strlen(a->reason);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(a->reason + at, sizeof a->reason - at, format, args);
    va_end(args);
}

static void say_strategy(tm_advice *a) {
    const tm_advice_row *b = &a->row[a->best], *zero3 = find(a, "zero3", b->param, b->optimizer);
    const tm_advice_row *ddp = find(a, "ddp", b->param, b->optimizer);
    char x[32], y[32];
    if (strcmp(b->strategy, "ddp") == 0)
        say(a, "every rank has room for the whole model, and then the least is sent");
    else if (strncmp(b->strategy, "zero", 4) == 0 && b->strategy[4] != '3')
        say(a, "the weights fit every rank%s; sharing the optimizer costs no more traffic than ddp",
            ddp && !ddp->plan.fits ? ", the whole state does not" : "");
    else if (strcmp(b->strategy, "zero3") == 0)
        say(a, "%s, and the links carry two gathers a step",
            ddp && !ddp->plan.fits ? "a rank has no room for all weights and states"
                                   : "dividing everything is fastest here");
    else
        say(a, "the network is the slow link: a node sends %s to others a step%s%s",
            tm_format_size(b->nic_bytes, x, sizeof x), zero3 ? ", with zero3 " : "",
            zero3 ? tm_format_size(zero3->nic_bytes, y, sizeof y) : "");
    uint32_t next = fastest(a, other_strategy);
    if (next == a->n) return;
    bool faster = a->row[next].plan.seconds_per_step < b->plan.seconds_per_step;
    say(a, "; the fastest of the others is %s with %.3f s a step%s", a->row[next].strategy,
        a->row[next].plan.seconds_per_step, faster ? ", too near to tell" : "");
}

/* State lies on it; a device with an arena is fed from host memory whatever fits there. */
static bool is_gpu(const tm_advice_row *row) {
    return row->plan.has_device && *row->plan.placement;
}

static void say_place(tm_advice *a) {
    const tm_advice_row *b = &a->row[a->best], *memory = find(a, b->strategy, "none", "none");
    char x[32];
    if (*a->reason) say(a, "; ");
    if (b == memory)
        say(a, is_gpu(b)            ? "all state fits the devices, so that nothing is offloaded"
               : b->plan.has_device ? "all state fits memory, from where the device's is filled and emptied"
                                    : "all state fits memory, so that nothing is offloaded");
    else if (memory && !memory->plan.fits)
        say(a, "%s has no room for all state%s", is_gpu(memory) ? "a device" : "memory",
            strcmp(b->optimizer, "nvme") ? "; host memory has" : "");
    else if (!memory)
        say(a, "a device cannot run this update, so that its state is not kept there");
    else
        say(a, "offloading %s is faster than keeping it", strcmp(b->param, "none") ? "all of it" : "the optimizer");
    if (b->disk_bytes > 0) say(a, ", and the files move %s a step", tm_format_size(b->disk_bytes, x, sizeof x));
    if (*b->plan.bottleneck) say(a, "; busiest: %s", b->plan.bottleneck);
}

static tm_status recommend(tm_advice *a) {
    a->best = choose(a);
    if (a->best == a->n)
        return tm_fail(TM_EBUDGET,
                       "no strategy and no place of the state fits %s; `tidemill plan` names the smallest "
                       "change for the one configured",
                       a->machine);
    if (a->ranks > 1) say_strategy(a);
    say_place(a);
    return TM_OK;
}

/* ---- can it be set? ------------------------------------------------------------------------------------------ */

static tm_status load_with(const planning *g, const char *const *more, uint32_t n) {
    const tm_train_args *given = g->s->args;
    session probe = {.comm = g->s->comm, .ranks = g->s->ranks};
    tm_train_args args = *given;
    const char **set = tm_malloc((given->n_set + n) * sizeof *set);
    if (!set) return tm_nomem((given->n_set + n) * sizeof *set);
    for (size_t i = 0; i < given->n_set; i++) set[i] = given->set[i];
    for (uint32_t i = 0; i < n; i++) set[given->n_set + i] = more[i];
    args.set = set;
    args.n_set = given->n_set + n;
    probe.args = &args;
    tm_status rc = session_load_config(&probe, true);
    tm_config_free(probe.cfg);
    tm_free((void *)set);
    return rc;
}

static uint32_t stage_of(const char *strategy) {
    for (size_t s = 0; s < TM_STRATEGY_COUNT; s++)
        if (strcmp(tm_strategy_rows[s].name, strategy) == 0) return tm_strategy_rows[s].stage;
    return 0;
}

/* The configuration may name a stage, which then has to change with the strategy; or say it in a way that --set of
 * these keys contradicts (an fsdp block, an alias). */
static tm_status check_settings(const planning *g, tm_advice *a) {
    const tm_advice_row *r = &a->row[a->best];
    char text[4][64];
    const char *set[4] = {text[0], text[1], text[2], text[3]};
    snprintf(text[0], sizeof text[0], "offload_param_device=%s", r->param);
    snprintf(text[1], sizeof text[1], "offload_optimizer_device=%s", r->optimizer);
    snprintf(text[2], sizeof text[2], "strategy=%s", r->strategy);
    snprintf(text[3], sizeof text[3], "zero_optimization.stage=%u", stage_of(r->strategy));
    tm_status rc = load_with(g, set, *r->strategy ? 3 : 2);
    if (rc == TM_ENOMEM || rc == TM_OK) return rc;
    tm_error_clear();
    a->stage = *r->strategy ? stage_of(r->strategy) : UINT32_MAX;
    rc = load_with(g, set, *r->strategy ? 4 : 2);
    if (rc == TM_OK) return TM_OK;
    snprintf(a->conflict, sizeof a->conflict, "%s", tm_error_get()->text);
    tm_error_clear();
    return TM_OK;
}

/* From here on this process plans alone, for as many ranks as there are. */
static tm_status go_alone(session *s) {
    if (!s->comm || s->imagined) return TM_OK;
    uint32_t ranks = tm_comm_size(s->comm), per_node = tm_comm_node_size(s->comm);
    if (!tm_comm_uniform(s->comm))
        return tm_fail(TM_EINPUT, "plan --advise needs the same number of ranks on every node");
    return session_imagine_ranks(s, ranks, per_node);
}

static void name_machine(const planning *g, tm_advice *out) {
    snprintf(out->machine, sizeof out->machine, "%s", g->hardware ? g->machine.name : "this machine");
    out->ranks = g->s->comm ? g->s->ranks.ranks : 1;
    out->nodes = g->s->comm ? tm_comm_nodes(g->s->comm) : 1;
}

static tm_status advise(planning *g, tm_advice *out) {
    name_machine(g, out);
    TM_TRY(plan_rows(g, out));
    out->parameters = out->n ? out->row[0].plan.parameters : 0;
    TM_TRY(recommend(out));
    return check_settings(g, out);
}

tm_status tm_plan_advise(const tm_plan_args *args, tm_advice *out) {
    tm_plan_report first;
    session s = {.args = &args->train};
    planning g = {.args = args, .s = &s, .out = &first, .only_fits = true};
    *out = (tm_advice){.stage = UINT32_MAX};
    tm_status rc = plan_open(&g);
    struct tm_comm *launched = s.imagined ? NULL : s.comm;
    out->rank = first.rank;
    if (rc == TM_OK) rc = go_alone(&s);
    if (rc == TM_OK && out->rank == 0) rc = advise(&g, out);
    plan_close(&g);
    if (s.imagined) session_close_ranks(&s);
    if (launched) {
        s.comm = launched;
        s.imagined = false;
        rc = session_agree(&s, rc);
        session_close_ranks(&s);
    }
    return rc;
}
