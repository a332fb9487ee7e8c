/* Which way a step is run. All ways give the same bits; of those predicted to take about the least time, the one that
 * writes least is taken.
 *
 * What a way needs at the least is found for the ends of the scale only (nothing kept, all kept): what lies between
 * needs no less. A closed formula then ranks the ways, and the plans of the few best are compiled and predicted, each
 * with a layout of its own; the winner is compiled again only where it had given way to one that lost later. */
#include "offload/sim/sim.h"
#include "planner/choice_internal.h"
#include "step/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- how long ------------------------------------------------------------------------------------------------ */

/* Without costs: two cores. They only rank plans. */
static const double FLOP_RATE = 150e9;

static double cost(const tm_job *job, uint16_t code, op_args args, uint16_t flags) {
    tm_op op = op_make(job, code, args);
    op.flags = flags;
    return job->costs.cost(job->costs.ctx, &op);
}

/* Forward, and where the unit is recomputed most of it again, and backward, of all micro-batches. */
static double unit_seconds(const tm_job *job, uint32_t unit, const pass_opts *o, bool again) {
    const tm_unit *u = tm_model_unit(job->model, unit);
    double t = 0;
    for (uint32_t s = 0; s < u->n_stages; s++) {
        const op_args stage = {.stage = {.unit = unit, .stage = s}};
        t += cost(job, OP_FORWARD, stage, 0) * (job->n_lanes + (again ? 1 : 0));
        bool logits = u->kind == TM_UNIT_HEAD && s > 0 && o->keep_quarters == PASS_KEEP_LOGITS;
        if (o->backward) t += cost(job, OP_BACKWARD, stage, logits ? OP_KEPT_LOGITS : 0);
    }
    return t * o->shape.micro_batches;
}

/* Of a tile, in what passes it takes before its update. */
static double sums_seconds(const tm_job *job, uint32_t part) {
    double t = 0;
    for (uint32_t k = 0; k + 1 < job->update->passes; k++)
        t += cost(job, OP_SUMS, (op_args){.sums = {.part = part, .pass = k}}, 0);
    return t;
}

/* Of one visit to everything that is decoded. */
static double decode_seconds(const tm_job *job) {
    double t = 0;
    for (uint32_t i = 0; i < job->n_frozen; i++) {
        uint32_t part = job->frozen[i].part;
        if (!job->part[part].in_place) t += cost(job, OP_DECODE, (op_args){.decode = {.part = part, .piece = i}}, 0);
    }
    return t;
}

static double compute_seconds(const tm_job *job, const pass_opts *o) {
    uint32_t units = tm_model_units(job->model), kept = pass_kept_blocks(job, o);
    TM_ASSERT(kept < units);
    double tokens = (double)o->shape.micro_batches * shape_tokens(&o->shape), t = 0;
    if (!job->costs.cost) {
        double part = (double)kept / (double)(units - 2);
        return (double)tm_model_parameters(job->model) * tokens *
               ((o->backward ? 8 - 2 * part : 2) + 2 * (job->n_lanes - 1)) / FLOP_RATE;
    }
    for (uint32_t u = 0; u < units; u++) {
        bool block = tm_model_unit(job->model, u)->kind == TM_UNIT_BLOCK;
        t += unit_seconds(job, u, o, o->backward && block && units - 1 - u > kept);
    }
    t += decode_seconds(job) * (o->backward ? 2 : 1);
    for (uint32_t p = 0; o->backward && job->optimizer && p < tm_model_parts(job->model); p++) {
        if (job->part[p].tiles) t += job->part[p].tiles * cost(job, OP_UPDATE, (op_args){.update = {.part = p}}, 0);
        if (job->part[p].tiles) t += job->part[p].tiles * sums_seconds(job, p);
        if (job->part[p].sum_tiles)
            t += job->part[p].sum_tiles * cost(job, OP_FINISH, (op_args){.finish = {.part = p}}, 0);
    }
    return t;
}

/* Two that go on beside each other. The longer one hides the other where it is much longer. Where both are about as long,
 * now one waits and now the other, since there is little memory to read ahead into: simulated plans of a paged base take
 * 1.0 to 1.2 times the longer one, and so does this. */
static double beside(double a, double b) {
    double longer = fmax(a, b), part = longer > 0 ? fmin(a, b) / longer : 0;
    return longer * pow(1 + part * part * part * part, 0.25);
}

/* Seconds of a step if reads and writes overlap with compute, but for an update that comes after backward: then little
 * is computed while its tiles pass by. */
double job_estimate(const tm_job *job, const tm_plan_info *info, const pass_opts *o) {
    uint64_t read[2] = {0}, written[2] = {0}; /* with the pass, after it */
    double cpu = compute_seconds(job, o);
    tm_machine m;
    if (job->costs.machine)
        m = *job->costs.machine;
    else
        tm_machine_nominal(&m);
    for (int k = 0; k < TM_KINDS; k++) {
        bool moment = k == TM_KIND_WEIGHT_LO || k == TM_KIND_EXP_AVG || k == TM_KIND_EXP_AVG_SQ;
        bool after = moment && o->update == UPDATE_AFTER;
        read[after] += info->read_bytes[k];
        written[after] += info->write_bytes[k];
    }
    double pass = tm_disk_seconds(&m.disk, read[0], written[0]), update = tm_disk_seconds(&m.disk, read[1], written[1]);
    double seconds = beside(pass, cpu) + update;
    TM_ASSERT(!isnan(seconds));
    return seconds;
}

tm_status job_predict(const tm_job *job, const tm_plan *plan, const pass_opts *way, double *seconds) {
    tm_link *link = NULL;
    tm_sim_result r;
    *seconds = job_estimate(job, tm_plan_get_info(plan), way);
    if (!job->costs.cost) return TM_OK;
    TM_TRY(tm_link_sketch(&link, plan, plan));
    tm_status rc = tm_simulate(
        &r, plan,
        &(tm_sim_opts){
            .machine = job->costs.machine, .cost = job->costs.cost, .ctx = job->costs.ctx, .runs = 2, .link = link});
    tm_link_free(link);
    if (rc != TM_OK) return rc;
    *seconds = r.seconds;
    tm_sim_free(&r);
    return TM_OK;
}

/* With few blocks the next quarter may be none. */
static bool said_before(const planner_ask *ask, uint32_t i) {
    const tm_job *job = ask->job;
    const pass_opts *b = &ask->way[i];
    for (uint32_t k = 0; k < i; k++) {
        const pass_opts *a = &ask->way[k];
        bool logits = a->keep_quarters == PASS_KEEP_LOGITS, as_well = b->keep_quarters == PASS_KEEP_LOGITS;
        if (a->update == b->update && a->stage_wise == b->stage_wise && a->overlap == b->overlap && logits == as_well &&
            pass_kept_blocks(job, a) == pass_kept_blocks(job, b))
            return true;
    }
    return false;
}

/* ---- a guess ------------------------------------------------------------------------------------------------- */

/* What of a block's forward lies in wait for its backward, in bytes of all blocks that keep it. */
static double kept_bytes(const tm_job *job, const pass_opts *o) {
    double rows = (double)shape_tokens(&o->shape) * o->shape.micro_batches, bytes = 0;
    uint32_t units = tm_model_units(job->model), kept = pass_kept_blocks(job, o);
    for (uint32_t u = 0; u < units; u++) {
        const tm_unit *unit = tm_model_unit(job->model, u);
        uint32_t read = 0;
        if (unit->kind != TM_UNIT_BLOCK) continue;
        bytes += rows * unit->slot[1].bytes;
        if (units - 1 - u > kept) continue;
        for (uint32_t s = 0; s < unit->n_stages; s++)
            for (uint32_t i = 0; i < unit->stage[s].n_backward; i++)
                if (!unit->stage[s].backward[i].grad) read |= 1u << unit->stage[s].backward[i].slot;
        for (uint32_t s = 2; s < TM_MAX_SLOTS; s++)
            if ((read >> s & 1) && !unit->slot[s].bridged) bytes += rows * unit->slot[s].bytes;
    }
    if (o->keep_quarters == PASS_KEEP_LOGITS) bytes += rows * tm_model_get_config(job->model)->vocab_size * 4;
    return bytes;
}

/* Memory beyond the working set takes over reads and writes of one kind. */
static void cache(tm_plan_info *info, tm_kind kind, double bytes, double *spare, bool pinned) {
    TM_ASSERT(*spare >= 0);
    double part = bytes <= 0 ? 0 : fmin(1, *spare / bytes);
    if (pinned) part = 1;
    *spare = fmax(0, *spare - part * bytes);
    info->read_bytes[kind] = (uint64_t)((double)info->read_bytes[kind] * (1 - part));
    info->write_bytes[kind] = (uint64_t)((double)info->write_bytes[kind] * (1 - part));
}

/* As files have what does not learn. */
static double frozen_bytes(const tm_job *job) {
    double bytes = 0;
    for (uint32_t i = 0; i < tm_layout_objects(job->layout); i++) {
        const tm_object *o = tm_layout_get(job->layout, i);
        if (o->kind == TM_KIND_FROZEN) bytes += (double)o->frame_bytes;
    }
    return bytes;
}

/* Bytes of a step with `least` bytes of frames at work and the rest of the slab given to what is worth most. */
static double guess(const tm_job *job, const tm_plan_opts *po, const pass_opts *o, uint64_t least) {
    tm_plan_info info = {0};
    double params = (double)tm_model_learning_parameters(job->model), width = (double)tm_dtype_bytes(job->dtype);
    double frozen = job->n_frozen ? frozen_bytes(job) : 0;
    double weights = params * job->ranks.weights.count / job->ranks.ranks,
           own = params * job->ranks.own.count / job->ranks.ranks;
    double hi = weights * width, lo = own * (double)state_bytes(job, 0, TM_KIND_WEIGHT_LO, 1),
           moment = own * state_bytes_per_parameter(job), grad = own * width;
    double kept = o->no_spill ? 0 : kept_bytes(job, o), slab = (double)po->slab_bytes;
    double spare = fmax(0, slab - (double)least - fmin(96 * (double)TM_MIB, slab / 6));
    if (!po->cache) spare = 0;
    bool parks = o->update == UPDATE_AFTER || o->update == UPDATE_BEFORE;
    int uses = (o->update == UPDATE_AFTER ? 3 : 2) - (job->dtype == TM_F16 ? 1 : 0); /* an update of fp16 reads none */
    info.read_bytes[TM_KIND_WEIGHT_HI] = (uint64_t)(hi * uses);
    info.write_bytes[TM_KIND_WEIGHT_HI] = (uint64_t)hi;
    info.read_bytes[TM_KIND_FROZEN] = (uint64_t)(frozen * (o->backward ? 2 : 1));
    info.read_bytes[TM_KIND_GRAD] = info.write_bytes[TM_KIND_GRAD] = parks ? (uint64_t)grad : 0;
    info.read_bytes[TM_KIND_ACTIVATION] = info.write_bytes[TM_KIND_ACTIVATION] = (uint64_t)kept;
    info.read_bytes[TM_KIND_WEIGHT_LO] = info.write_bytes[TM_KIND_WEIGHT_LO] = (uint64_t)lo;
    info.read_bytes[TM_KIND_EXP_AVG] = info.write_bytes[TM_KIND_EXP_AVG] = (uint64_t)moment;
    cache(&info, TM_KIND_WEIGHT_HI, hi, &spare, po->pinned[TM_KIND_WEIGHT_HI]);
    cache(&info, TM_KIND_FROZEN, frozen, &spare, po->pinned[TM_KIND_FROZEN]);
    cache(&info, TM_KIND_GRAD, parks ? grad : 0, &spare, po->pinned[TM_KIND_GRAD]);
    cache(&info, TM_KIND_ACTIVATION, kept, &spare, po->pinned[TM_KIND_ACTIVATION]);
    cache(&info, TM_KIND_WEIGHT_LO, lo, &spare, po->pinned[TM_KIND_WEIGHT_LO]);
    cache(&info, TM_KIND_EXP_AVG, moment, &spare, po->pinned[TM_KIND_EXP_AVG]);
    return job_estimate(job, &info, o);
}

/* What a way between the ends needs is taken to be what the ends need, until it is compiled. */
static uint64_t least_about(const way_list *w, uint32_t i) {
    const pass_opts *way = w->ask->way;
    uint64_t least = w->least[i];
    TM_ASSERT(i < w->ask->n);
    for (uint32_t k = 0; least == 0 && k < w->ask->n; k++)
        if (way[k].update == way[i].update && way[k].stage_wise == way[i].stage_wise &&
            way[k].overlap == way[i].overlap)
            least = w->least[k];
    return least;
}

typedef struct ranked {
    double seconds;
    uint32_t way;
} ranked;

static int by_seconds(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return x->way < y->way ? -1 : x->way > y->way;
}

/* ---- the choice ---------------------------------------------------------------------------------------------- */

/* A plan and the state that it was compiled for; `nth` of those that were tried. */
typedef struct compiled {
    tm_plan *plan;
    job_state state;
    uint32_t nth;
} compiled;

typedef struct tried {
    double seconds;
    uint64_t written, read;
    uint32_t way;
    bool spread;
} tried;

/* What was tried so far, and of it the plan that is held. */
typedef struct contest {
    way_list *ways;
    const planner_ask *ask;
    const job_opts *opts;
    const job_limits *limits;
    tried *tried;
    uint32_t n;
    compiled held;
} contest;

/* The state that it is compiled for is the job's then. TM_EBUDGET where the way as a whole cannot be had, whatever stays
 * resident. */
static tm_status compile_way(const contest *c, uint32_t i, bool spread, tm_plan **plan) {
    tm_program *program;
    tm_plan_opts po;
    tm_job *job = c->ask->job;
    pass_opts as = c->ask->way[i];
    job_account account = {.limits = *c->limits};
    as.spread = spread;
    tm_phase_step(&job->progress.planning);
    if (c->ways->least[i] > c->limits->slab_bytes) return TM_EBUDGET;
    account.limits.plans_bytes = c->ways->plans[i];
    TM_TRY(job_add_state(job, c->opts, as.park));
    job_plan_opts(job, c->opts, &account, &po);
    po.choose_residency = po.unproved = true;
    TM_TRY(build_pass(&program, job, c->ask->name, &as));
    tm_status rc = tm_plan_compile(plan, job->layout, program, &po, NULL);
    tm_program_free(program);
    if (rc == TM_EBUDGET) tm_error_clear();
    TM_ASSERT(rc != TM_OK || tm_plan_get_info(*plan)->slab_bytes <= po.slab_bytes);
    return rc;
}

static void drop(compiled *c) {
    tm_plan_free(c->plan);
    job_free_state(&c->state);
    c->plan = NULL;
}

enum { FINALISTS = 3 };
/* Guesses are off by so much between ways of one update, and by so much between updates. */
static const double NEARLY = 1.05, ABOUT = 1.25;
/* Predictions are no better than this: as fast as another is what takes so much longer at most, and between ways that
 * are, the disk's wear decides; not where one writes hardly less. */
static const double AS_FAST = 1.02, AS_LITTLE = 1.01;

static bool is_better(const tried *a, const tried *b, double written) {
    bool little = (double)a->written <= AS_LITTLE * written, also = (double)b->written <= AS_LITTLE * written;
    if (little != also) return little;
    if (a->seconds != b->seconds) return a->seconds < b->seconds;
    return a->read < b->read;
}

/* Of those that are as fast as the fastest, and write as little as the least of them, the fastest. */
static uint32_t winner(const contest *c) {
    double seconds = INFINITY, written = INFINITY;
    uint32_t best = UINT32_MAX;
    TM_ASSERT(c->n > 0);
    for (uint32_t i = 0; i < c->n; i++) seconds = fmin(seconds, c->tried[i].seconds);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->tried[i].seconds <= AS_FAST * seconds) written = fmin(written, (double)c->tried[i].written);
    for (uint32_t i = 0; i < c->n; i++) {
        const tried *t = &c->tried[i];
        if (t->seconds > AS_FAST * seconds) continue;
        if (best == UINT32_MAX || is_better(t, &c->tried[best], written)) best = i;
    }
    return best;
}

static bool can_spread(const pass_opts *o) {
    return o->shape.micro_batches > 1 && (o->update == UPDATE_BEFORE || o->update == UPDATE_WITHIN);
}

/* The same but for what runs beside what: of about the same length and bytes. */
static bool are_alike(const pass_opts *a, const pass_opts *b) {
    return a->update == b->update && a->keep_quarters == b->keep_quarters;
}

/* Compiles and predicts one way; its plan is held where it wins over all before. TM_EBUDGET also where it cannot be
 * planned beside the one that is held. */
static tm_status try_way(contest *c, uint32_t way, bool spread, bool compare) {
    compiled new = {.nth = c->n};
    tried *t = &c->tried[c->n];
    TM_ASSERT(way < c->ask->n && c->n <= c->ask->n);
    way_list *ways = c->ways;
    uint64_t beside = c->held.plan ? tm_plan_get_info(c->held.plan)->memory_bytes : 0;
    if (ways->least[way] == 0) TM_TRY(way_minimum(ways, way));
    if (beside + way_planning_bytes(ways->plans[way]) > c->limits->slab_bytes) return TM_EBUDGET;
    TM_TRY(compile_way(c, way, spread, &new.plan));
    *t = (tried){.way = way, .spread = spread};
    const tm_plan_info *info = tm_plan_get_info(new.plan);
    for (int k = 0; k < TM_KINDS; k++) {
        t->written += info->write_bytes[k];
        t->read += info->read_bytes[k];
    }
    tm_status rc = compare ? job_predict(c->ask->job, new.plan, &c->ask->way[way], &t->seconds) : TM_OK;
    new.state = job_move_state(c->ask->job);
    if (rc == TM_OK) c->n++;
    bool wins = rc == TM_OK && winner(c) == new.nth;
    drop(wins ? &c->held : &new);
    if (wins) c->held = new;
    return rc;
}

/* By the guess the best way of each update (`updates`), or the best of those that are not alike. What is like the best
 * of them is tried by more_like(). */
static tm_status try_kinds(contest *c, const ranked *list, uint32_t n, bool forced, bool compare, bool updates) {
    double first = INFINITY, off = updates ? ABOUT : NEARLY;
    for (uint32_t i = 0; i < n && c->n < FINALISTS && list[i].seconds <= off * first; i++) {
        const pass_opts *o = &c->ask->way[list[i].way];
        bool had = false, same = false;
        for (uint32_t k = 0; k < c->n; k++) {
            const pass_opts *other = &c->ask->way[c->tried[k].way];
            had |= updates ? o->update == other->update : are_alike(o, other);
            same |= c->tried[k].way == list[i].way;
        }
        if (same) first = fmin(first, list[i].seconds);
        if (had) continue;
        tm_status rc = try_way(c, list[i].way, forced && can_spread(o), compare);
        if (rc == TM_EBUDGET) continue;
        if (rc != TM_OK) return rc;
        first = fmin(first, list[i].seconds);
    }
    return TM_OK;
}

static tm_status more_like(contest *c, const ranked *list, uint32_t n, bool forced) {
    uint32_t best = c->tried[winner(c)].way;
    const pass_opts *of = &c->ask->way[best];
    for (uint32_t i = 0; i < n; i++) {
        const pass_opts *o = &c->ask->way[list[i].way];
        if (list[i].way == best || !are_alike(o, of)) continue;
        tm_status rc = try_way(c, list[i].way, forced && can_spread(o), true);
        if (rc != TM_OK && rc != TM_EBUDGET) return rc;
    }
    return TM_OK;
}

/* What was dropped for another wins after all where that other was then outrun. */
static tm_status hold_winner(contest *c) {
    uint32_t nth = winner(c);
    TM_ASSERT(nth < c->n);
    if (c->held.plan && c->held.nth == nth) return TM_OK;
    const tried *t = &c->tried[nth];
    drop(&c->held);
    TM_TRY(compile_way(c, t->way, t->spread, &c->held.plan));
    c->held.state = job_move_state(c->ask->job);
    c->held.nth = nth;
    return TM_OK;
}

static tm_status choose(contest *c, const ranked *list, uint32_t n) {
    /* with ranks updates stand where all ranks have them, however many tiles each has */
    bool alone = c->ask->job->ranks.ranks == 1, forced = alone && c->opts->spread > 0,
         open = alone && c->opts->spread == 0;
    TM_TRY(try_kinds(c, list, n, forced, n > 1 || open, true));
    TM_TRY(try_kinds(c, list, n, forced, n > 1 || open, false));
    if (c->n == 0) return TM_EBUDGET;
    TM_TRY(more_like(c, list, n, forced));
    uint32_t way = c->tried[winner(c)].way;
    if (open && can_spread(&c->ask->way[way])) {
        tm_status rc = try_way(c, way, true, true);
        if (rc != TM_OK && rc != TM_EBUDGET) return rc;
    }
    return hold_winner(c);
}

/* Those that may fit, the one that is guessed to be fastest first. */
static uint32_t rank_ways(const contest *c, uint32_t only, ranked *list) {
    const job_account account = {.limits = *c->limits};
    const planner_ask *ask = c->ask;
    tm_plan_opts po;
    uint32_t n = 0;
    job_plan_opts(ask->job, c->opts, &account, &po);
    for (uint32_t i = 0; i < ask->n; i++) {
        uint64_t least = least_about(c->ways, i);
        if ((only < ask->n && i != only) || least > c->limits->slab_bytes || said_before(ask, i)) continue;
        list[n++] = (ranked){ask->n > 1 ? guess(ask->job, &po, &ask->way[i], least) : 0, i};
    }
    qsort(list, n, sizeof *list, by_seconds);
    return n;
}

tm_status choose_way(way_list *ways, const job_opts *opts, job_limits *limits, uint32_t only, tm_plan **plan,
                     uint32_t *way) {
    const planner_ask *ask = ways->ask;
    contest c = {.ways = ways, .ask = ask, .opts = opts, .limits = limits};
    tm_status rc;
    ranked *list = tm_malloc(sizeof *list * (ask->n + 1));
    c.tried = tm_malloc(sizeof *c.tried * (ask->n + 2)); /* each once, one of them spread as well */
    if (!list || !c.tried) TM_GO(tm_nomem((sizeof *list + sizeof *c.tried) * ask->n));
    limits->plans_bytes = 0; /* what is ranked has them in its least */
    TM_GO(choose(&c, list, rank_ways(&c, only, list)));
    TM_GO(tm_plan_prove(c.held.plan)); /* the others never run */
    job_set_state(ask->job, &c.held.state);
    *way = c.tried[c.held.nth].way;
    limits->plans_bytes = ways->plans[*way];
    *plan = c.held.plan;
done:
    if (rc != TM_OK) drop(&c.held);
    tm_free(list);
    tm_free(c.tried);
    return rc;
}
