/* How little memory a job can do with: the least slab of every way of running its step, and what the plans take beside
 * it. All of it follows from programs, whatever the budget is. */
#include "planner/choice_internal.h"

/* Of the host, with an arena that is large enough. `least` NULL: not asked for. Frees the program. */
static tm_status least_of(const way_list *w, tm_program *p, uint64_t share, uint64_t *least, uint64_t *device) {
    const tm_job *job = w->ask->job;
    const job_account account = {.needs.share = share}; /* the least depends on no other limit */
    tm_plan_opts po;
    uint64_t bytes = 0, arena = 0;
    if (!least) {
        tm_program_free(p);
        return TM_OK;
    }
    job_plan_opts(job, w->opts, &account, &po);
    tm_status rc = po.device_bytes ? tm_plan_device_minimum(p, &arena) : TM_OK;
    *device = tm_max_u64(*device, arena);
    if (po.device_bytes) po.device_bytes = tm_max_u64(po.device_bytes, arena);
    if (rc == TM_OK) rc = tm_plan_minimum(job->layout, p, &po, &bytes);
    tm_program_free(p);
    *least = tm_max_u64(*least, bytes);
    return rc;
}

enum { WITH_COPIES = 2 }; /* beside an arena: about as many as there are transfers */

static uint64_t plan_bytes(const tm_program *p) {
    return tm_program_plan_bytes(p) + JOB_RUN_BYTES_PER_OP * tm_program_plan_ops(p);
}

/* The least slab of everything that a way of running the step brings with it: the step itself, the import, and with
 * parked gradients the first step and the pending update; and what their plans take beside it. `least` NULL: only what
 * the plans take. */
static tm_status minimum_of_programs(const way_list *w, const pass_opts *o, uint64_t *least, uint64_t *device,
                                     uint64_t *plans) {
    tm_job *job = w->ask->job;
    tm_program *p;
    pass_opts first = *o, forward = {.shape = o->shape, .loss = true};
    first.update = UPDATE_NONE;
    if (!job->layout || o->park != job->parks) TM_TRY(job_add_state(job, w->opts, o->park));
    if (least) *least = *device = 0;
    *plans = 0;
    if (w->opts->other_tokens) {
        TM_TRY(build_pass(&p, job, "evaluation", &forward));
        *plans += plan_bytes(p);
        tm_program_free(p);
    }
    for (uint32_t i = 0; i < w->ask->n_beside; i++) {
        TM_TRY(build_pass(&p, job, "beside", &w->ask->beside[i]));
        *plans += plan_bytes(p);
        TM_TRY(least_of(w, p, 0, least, device));
    }
    TM_TRY(build_pass(&p, job, "step", o));
    *plans += plan_bytes(p);
    uint64_t share = tm_program_share_bytes(p, job->ranks.shared_by); /* is there while the others run */
    TM_TRY(least_of(w, p, 0, least, device));
    TM_TRY(build_import(&p, job));
    if (w->ask->imports_again) *plans += plan_bytes(p);
    TM_TRY(least_of(w, p, share, least, device));
    if (!o->park) return TM_OK;
    TM_TRY(build_pass(&p, job, "first step", &first));
    *plans += plan_bytes(p);
    TM_TRY(least_of(w, p, share, least, device));
    TM_TRY(build_drain(&p, job));
    *plans += plan_bytes(p);
    return least_of(w, p, share, least, device);
}

/* While a way is planned there are its programs, who follows whom and what is simulated beside the plans: nine tenths
 * of them where operations are many and small (64 blocks of 64, 256 micro-batches). It is gone before there is a slab.
 */
uint64_t way_planning_bytes(uint64_t plans) {
    return 2 * plans;
}

static bool at_an_end(const pass_opts *o) {
    return o->keep_quarters == 0 || o->keep_quarters == PASS_KEEP_ALL;
}

static tm_status minimum_of(const way_list *w, const pass_opts *o, uint64_t *least, uint64_t *device, uint64_t *plans) {
    TM_TRY(minimum_of_programs(w, o, least, device, plans));
    if (w->opts->device_bytes) *plans *= WITH_COPIES;
    *least = tm_max_u64(*least + *plans, way_planning_bytes(*plans));
    return TM_OK;
}

/* The way's share in what the list knows; least: UINT64_MAX where the device's memory is too small. */
tm_status way_minimum(way_list *w, uint32_t i) {
    uint64_t device = 0;
    tm_plan_opts po;
    TM_ASSERT(i < w->ask->n);
    tm_phase_step(&w->ask->job->progress.planning);
    TM_TRY(minimum_of(w, &w->ask->way[i], &w->least[i], &device, &w->plans[i]));
    TM_ASSERT(w->least[i] >= w->plans[i]);
    w->minimum_anyway = tm_min_u64(w->minimum_anyway, w->least[i]);
    w->minimum_device = tm_min_u64(w->minimum_device, device);
    job_plan_opts(w->ask->job, w->opts, &(job_account){0}, &po);
    if (device > po.device_bytes) w->least[i] = UINT64_MAX;
    return TM_OK;
}

static bool is_asked(const way_list *w, uint32_t i) {
    bool any_end = false;
    for (uint32_t k = 0; k < w->ask->n; k++) any_end |= at_an_end(&w->ask->way[k]);
    return !any_end || at_an_end(&w->ask->way[i]);
}

/* From three on each micro-batch brings as many operations, uses and intervals as any other: what the plans take of any
 * number of them follows from two programs of few, exactly. With MANY it is looked at before anything is built; up to
 * EXACT the least budget is packed all the same, so that it is the one that `train` enforces to the byte. */
enum { MANY = 64, EXACT = 1024, FEW = 3, SAMPLE = 16 };

/* first + each * micro-batches, in bytes. */
typedef struct growth {
    uint64_t first, each;
} growth;

static uint64_t grown(const growth *g, uint64_t n) {
    return n < (UINT64_MAX - g->first) / (g->each + 1) ? g->first + g->each * n : UINT64_MAX;
}

static growth through(uint64_t at, uint64_t one, uint64_t further, uint64_t other) {
    TM_ASSERT(further > at);
    uint64_t each = other > one ? (other - one) / (further - at) : 0;
    return (growth){.first = one > each * at ? one - each * at : 0, .each = each};
}

static tm_status plans_of(const way_list *w, const pass_opts *way, uint32_t n, uint64_t *plans) {
    pass_opts o = *way;
    o.shape.micro_batches = n;
    TM_TRY(minimum_of_programs(w, &o, NULL, NULL, plans));
    if (w->opts->device_bytes) *plans *= WITH_COPIES;
    return TM_OK;
}

static tm_status plans_grow(const way_list *w, const pass_opts *way, growth *g) {
    uint64_t few, more;
    TM_TRY(plans_of(w, way, FEW, &few));
    TM_TRY(plans_of(w, way, FEW + 1, &more));
    *g = through(FEW, few, FEW + 1, more);
    return TM_OK;
}

/* The frames of few micro-batches pack as those of many do, but for what is left between them. */
static tm_status slab_grows(const way_list *w, const pass_opts *way, growth *g) {
    uint64_t least[2], device = 0, plans;
    for (uint32_t i = 0; i < 2; i++) {
        pass_opts o = *way;
        o.shape.micro_batches = (uint32_t)SAMPLE << i;
        TM_TRY(minimum_of_programs(w, &o, &least[i], &device, &plans));
    }
    *g = through(SAMPLE, least[0], 2 * SAMPLE, least[1]);
    return TM_OK;
}

static uint64_t least_with(const growth *plans, const growth *slab, uint64_t n) {
    uint64_t p = grown(plans, n), s = grown(slab, n);
    if (p > UINT64_MAX / 4 || s > UINT64_MAX / 4) return UINT64_MAX;
    return tm_max_u64(s + p, way_planning_bytes(p));
}

/* The most micro-batches, fewer than `n`, that need no more than `room`; 0: not even FEW do. */
static uint32_t most_with(const growth *plans, const growth *slab, uint64_t room, uint32_t n) {
    uint32_t lo = 0, hi = n;
    TM_ASSERT(n > FEW);
    while (lo + 1 < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (least_with(plans, slab, mid) <= room)
            lo = mid;
        else
            hi = mid;
    }
    return lo < FEW ? 0 : lo;
}

/* An unlimited budget has what the machine has. */
static uint64_t room_for_plans(const way_list *w) {
    return w->budget.host_bytes == UINT64_MAX ? tm_mem_available_bytes() : w->budget.slab_bytes;
}

static tm_status has_room(const way_list *w, const pass_opts *way, uint64_t room, uint32_t n, bool *fits) {
    uint64_t least = UINT64_MAX, device = 0, plans;
    pass_opts o = *way;
    o.shape.micro_batches = n;
    if (n >= FEW) TM_TRY(minimum_of(w, &o, &least, &device, &plans));
    *fits = least <= room;
    return TM_OK;
}

/* What lies between frames makes no line: packing has the last word. *n, fewer than `all`, is near; then it is the most.
 * Steps away from it double until one number fits and another does not, and what is between those is halved. */
static tm_status hold_to_packing(const way_list *w, const pass_opts *way, uint64_t room, uint32_t all, uint32_t *n) {
    uint32_t good = 0, bad = all, step = 1, at = *n;
    while (bad - good > 1 && bad > FEW) {
        bool fits;
        TM_TRY(has_room(w, way, room, at, &fits));
        *(fits ? &good : &bad) = at;
        if (good && bad < all)
            at = good + (bad - good) / 2;
        else if (fits)
            at = (uint32_t)tm_min_u64((uint64_t)at + step, all - 1);
        else
            at = at > step ? at - step : 0;
        step *= 2;
    }
    *n = good;
    return TM_OK;
}

/* How many micro-batches fit `room` in this way, fewer than there are; and by counting what as many as there are need.
 */
static tm_status count_way(way_list *w, uint32_t i, const growth *plans) {
    const pass_opts *way = &w->ask->way[i];
    uint64_t room = room_for_plans(w);
    uint32_t n = way->shape.micro_batches, most;
    growth slab;
    TM_TRY(slab_grows(w, way, &slab));
    most = most_with(plans, &slab, room, n);
    bool frames = grown(&slab, most) > grown(plans, most) / 10 * 9;
    if (most >= FEW && (frames || most < 4 * EXACT)) TM_TRY(hold_to_packing(w, way, room, n, &most));
    TM_ASSERT(most < n);
    if (most > w->most_micro_batches) w->most_micro_batches = most;
    if (w->least[i]) return TM_OK; /* known already */
    w->plans[i] = grown(plans, n);
    w->least[i] = least_with(plans, &slab, n);
    w->minimum = w->minimum_anyway = tm_min_u64(w->minimum, w->least[i]);
    return TM_OK;
}

static tm_status count_ways(way_list *w, const growth *plans) {
    for (uint32_t i = 0; i < w->ask->n; i++)
        if (is_asked(w, i)) TM_TRY(count_way(w, i, &plans[i]));
    w->too_many = true;
    return TM_OK;
}

/* Whether in every way the plans alone are more than there is room for. */
static tm_status plans_have_room(const way_list *w, growth *plans, bool *have) {
    uint64_t room = room_for_plans(w);
    *have = false;
    for (uint32_t i = 0; i < w->ask->n; i++) {
        const pass_opts *way = &w->ask->way[i];
        if (!is_asked(w, i)) continue;
        TM_TRY(plans_grow(w, way, &plans[i]));
        uint64_t all = grown(&plans[i], way->shape.micro_batches);
        *have |= all <= room && way_planning_bytes(all) <= room;
    }
    return TM_OK;
}

static tm_status minimum_of_ways(way_list *w) {
    for (uint32_t i = 0; i < w->ask->n; i++) {
        if (!is_asked(w, i)) continue;
        TM_TRY(way_minimum(w, i));
        w->minimum = tm_min_u64(w->minimum, w->least[i]);
    }
    TM_ASSERT(w->minimum == UINT64_MAX || w->minimum >= w->minimum_anyway);
    return TM_OK;
}

/* Nothing of more than EXACT is built unless their plans have room. */
static tm_status minimum_of_many(way_list *w) {
    growth *plans = tm_calloc(w->ask->n + 1, sizeof *plans);
    bool have = false;
    tm_status rc = plans ? TM_OK : tm_nomem(w->ask->n * sizeof *plans);
    if (rc == TM_OK) rc = plans_have_room(w, plans, &have);
    have |= w->ask->way[0].shape.micro_batches <= EXACT;
    if (rc == TM_OK && have) rc = minimum_of_ways(w);
    bool fits = have && (w->minimum == UINT64_MAX || w->minimum <= room_for_plans(w));
    if (rc == TM_OK && !fits) rc = count_ways(w, plans);
    tm_free(plans);
    return rc;
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

tm_status way_list_minimum(way_list *w) {
    job_set_state(w->ask->job, &(job_state){.parks = w->ask->job->parks}); /* it may be of other options */
    w->minimum_device = w->minimum = w->minimum_anyway = UINT64_MAX;
    w->too_many = false;
    w->most_micro_batches = 0;
    for (uint32_t i = 0; i < w->ask->n; i++) w->least[i] = 0;
    return w->ask->way[0].shape.micro_batches > MANY ? minimum_of_many(w) : minimum_of_ways(w);
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
