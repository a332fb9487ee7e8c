/* How little memory a job can do with: the least slab of every way of running its step, and what the plans take beside
 * it. All of it follows from programs, whatever the budget is. Of many micro-batches it is counted first (least_many.c). */
#include "planner/choice_internal.h"

/* ---- the programs of a way ------------------------------------------------------------------------------------- */

typedef struct walk {
    way_see_fn see;
    void *ctx;
    uint64_t share; /* of the step: is there while the others run */
} walk;

/* `rc`: of building it. */
static tm_status show(const walk *v, way_program which, tm_status rc, tm_program **p) {
    if (rc != TM_OK) return rc;
    rc = v->see(v->ctx, which, *p, which > WAY_STEP ? v->share : 0);
    tm_program_free(*p);
    return rc;
}

tm_status way_programs(const way_list *w, const pass_opts *o, way_see_fn see, void *ctx) {
    tm_job *job = w->ask->job;
    tm_program *p = NULL;
    walk v = {.see = see, .ctx = ctx};
    pass_opts first = *o, forward = {.shape = o->shape, .loss = true};
    first.update = UPDATE_NONE;
    if (!job->layout || o->park != job->parks) TM_TRY(job_add_state(job, w->opts, o->park));
    if (w->opts->other_tokens) TM_TRY(show(&v, WAY_EVALUATION, build_pass(&p, job, "evaluation", &forward), &p));
    for (uint32_t i = 0; i < w->ask->n_beside; i++)
        TM_TRY(show(&v, WAY_BESIDE, build_pass(&p, job, "beside", &w->ask->beside[i]), &p));
    TM_TRY(build_pass(&p, job, "step", o));
    v.share = tm_program_share_bytes(p, job->ranks.shared_by);
    TM_TRY(show(&v, WAY_STEP, TM_OK, &p));
    TM_TRY(show(&v, WAY_IMPORT, build_import(&p, job), &p));
    if (!o->park) return TM_OK;
    TM_TRY(show(&v, WAY_FIRST_STEP, build_pass(&p, job, "first step", &first), &p));
    return show(&v, WAY_DRAIN, build_drain(&p, job), &p);
}

enum { WITH_COPIES = 2 }; /* beside an arena: about as many as there are transfers */

uint64_t way_plan_bytes(const way_list *w, way_program which, const tm_program *p) {
    if (which == WAY_IMPORT && !w->ask->imports_again) return 0; /* it is gone before the others are there */
    uint64_t bytes = tm_program_plan_bytes(p) + JOB_RUN_BYTES_PER_OP * tm_program_plan_ops(p);
    return w->opts->device_bytes ? bytes * WITH_COPIES : bytes;
}

/* ---- what they need -------------------------------------------------------------------------------------------- */

tm_status way_program_opts(const way_list *w, const tm_program *p, uint64_t share, tm_plan_opts *po, uint64_t *device) {
    const job_account account = {.needs.share = share}; /* the least depends on no other limit */
    *device = 0;
    job_plan_opts(w->ask->job, w->opts, &account, po);
    if (!po->device_bytes) return TM_OK;
    TM_TRY(tm_plan_device_minimum(p, device));
    po->device_bytes = tm_max_u64(po->device_bytes, *device);
    return TM_OK;
}

tm_status way_program_least(const way_list *w, const tm_program *p, uint64_t share, way_needs *n) {
    tm_plan_opts po;
    uint64_t bytes = 0, device;
    TM_TRY(way_program_opts(w, p, share, &po, &device));
    TM_TRY(tm_plan_minimum(w->ask->job->layout, p, &po, &bytes));
    n->device = tm_max_u64(n->device, device);
    n->least = tm_max_u64(n->least, bytes);
    return TM_OK;
}

typedef struct needing {
    const way_list *w;
    way_needs needs;
} needing;

static tm_status see_needs(void *ctx, way_program which, const tm_program *p, uint64_t share) {
    needing *x = ctx;
    x->needs.plans += way_plan_bytes(x->w, which, p);
    if (which == WAY_EVALUATION) return TM_OK; /* the forward half of a step */
    return way_program_least(x->w, p, share, &x->needs);
}

/* While a way is planned there are its programs, who follows whom and what is simulated beside the plans: nine tenths
 * of them where operations are many and small (64 blocks of 64, 256 micro-batches). It is gone before there is a slab.
 */
uint64_t way_planning_bytes(uint64_t plans) {
    return 2 * plans;
}

/* Everything that a way of running the step brings with it: the step itself, the import, and with parked gradients the
 * first step and the pending update; and what their plans take beside the slab. */
tm_status way_needs_of(const way_list *w, const pass_opts *o, way_needs *n) {
    needing x = {.w = w};
    TM_TRY(way_programs(w, o, see_needs, &x));
    *n = x.needs;
    return TM_OK;
}

/* Slab and plans. */
uint64_t way_least(const way_needs *n) {
    return tm_max_u64(n->least + n->plans, way_planning_bytes(n->plans));
}

static bool at_an_end(const pass_opts *o) {
    return o->keep_quarters == 0 || o->keep_quarters == PASS_KEEP_ALL;
}

bool way_device_has_room(const way_list *w, uint64_t device) {
    tm_plan_opts po;
    job_plan_opts(w->ask->job, w->opts, &(job_account){0}, &po);
    return device <= po.device_bytes;
}

/* The way's share in what the list knows; least: UINT64_MAX where the device's memory is too small. */
tm_status way_minimum(way_list *w, uint32_t i) {
    way_needs n;
    TM_ASSERT(i < w->ask->n);
    tm_phase_step(&w->ask->job->progress.planning);
    TM_TRY(way_needs_of(w, &w->ask->way[i], &n));
    w->plans[i] = n.plans;
    w->least[i] = way_least(&n);
    TM_ASSERT(w->least[i] >= w->plans[i]);
    w->minimum_anyway = tm_min_u64(w->minimum_anyway, w->least[i]);
    w->minimum_device = tm_min_u64(w->minimum_device, n.device);
    if (!way_device_has_room(w, n.device)) w->least[i] = UINT64_MAX;
    return TM_OK;
}

bool way_is_asked(const way_list *w, uint32_t i) {
    bool any_end = false;
    for (uint32_t k = 0; k < w->ask->n; k++) any_end |= at_an_end(&w->ask->way[k]);
    return !any_end || at_an_end(&w->ask->way[i]);
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

tm_status way_list_pack(way_list *w) {
    for (uint32_t i = 0; i < w->ask->n; i++) {
        if (!way_is_asked(w, i)) continue;
        TM_TRY(way_minimum(w, i));
        w->minimum = tm_min_u64(w->minimum, w->least[i]);
    }
    TM_ASSERT(w->minimum == UINT64_MAX || w->minimum >= w->minimum_anyway);
    return TM_OK;
}

tm_status way_list_open(way_list *w, const planner_ask *ask, const job_opts *opts, const job_budget *budget) {
    TM_ASSERT(ask->n > 0);
    *w = (way_list){.ask = ask, .opts = opts, .budget = *budget};
    w->least = tm_calloc(ask->n + 1, sizeof *w->least);
    w->plans = tm_calloc(ask->n + 1, sizeof *w->plans);
    if (w->least && w->plans) return TM_OK;
    way_list_close(w);
    return tm_nomem(2 * ask->n * sizeof *w->least);
}

void way_list_close(way_list *w) {
    tm_free(w->least);
    tm_free(w->plans);
    w->least = w->plans = NULL;
}

enum { MANY = 64 }; /* from here on they are counted first */

tm_status way_list_minimum(way_list *w, bool counted) {
    job_set_state(w->ask->job, &(job_state){.parks = w->ask->job->parks}); /* it may be of other options */
    w->minimum_device = w->minimum = w->minimum_anyway = UINT64_MAX;
    w->too_many = false;
    w->most_micro_batches = 0;
    for (uint32_t i = 0; i < w->ask->n; i++) w->least[i] = 0;
    if (w->ask->way[0].shape.micro_batches > MANY) return way_list_count(w, counted);
    return counted ? TM_OK : way_list_pack(w);
}

void way_plans_took(way_list *w, uint32_t way, uint64_t bytes) {
    TM_ASSERT(way < w->ask->n);
    if (w->least[way] == 0 || bytes <= w->plans[way]) return;
    w->least[way] = tm_max_u64(w->least[way] + bytes - w->plans[way], way_planning_bytes(bytes));
    w->plans[way] = bytes;
    w->minimum = UINT64_MAX;
    for (uint32_t i = 0; i < w->ask->n; i++)
        if (w->least[i]) w->minimum = tm_min_u64(w->minimum, w->least[i]);
}
