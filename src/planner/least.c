/* How little memory a job can do with: the least slab of every way of running its step, and what the plans take beside
 * it. All of it follows from programs, whatever the budget is. */
#include "planner/start.h"

/* Of the host, with an arena that is large enough. `least` NULL: not asked for. Frees the program. */
static tm_status least_of(tm_job *job, const job_opts *opts, tm_program *p, uint64_t *least, uint64_t *device) {
    tm_plan_opts po;
    uint64_t bytes = 0, arena = 0;
    if (!least) {
        tm_program_free(p);
        return TM_OK;
    }
    job_plan_opts(job, opts, &po);
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
static tm_status minimum_of_programs(tm_job *job, const job_opts *opts, const pass_opts *o, uint64_t *least,
                                     uint64_t *device, uint64_t *plans) {
    tm_program *p;
    pass_opts first = *o, forward = {.shape = o->shape, .loss = true};
    first.update = UPDATE_NONE;
    if (!job->layout || o->park != job->parks) TM_TRY(job_add_state(job, opts, o->park));
    if (least) *least = *device = 0;
    *plans = job->needs.share = 0;
    if (opts->other_tokens) {
        TM_TRY(build_pass(&p, job, "evaluation", &forward));
        *plans += plan_bytes(p);
        tm_program_free(p);
    }
    if (opts->kv_rows) { /* a plan for each token beside the one for the prompt */
        pass_opts one = *o;
        one.shape.seq = 1;
        TM_TRY(build_pass(&p, job, "decoding", &one));
        *plans += plan_bytes(p);
        tm_program_free(p);
    }
    TM_TRY(build_pass(&p, job, "step", o));
    *plans += plan_bytes(p);
    uint64_t share = tm_program_share_bytes(p, job->ranks.shared_by);
    TM_TRY(least_of(job, opts, p, least, device));
    job->needs.share = share; /* is there while the others run */
    TM_TRY(build_import(&p, job));
    TM_TRY(least_of(job, opts, p, least, device));
    if (!o->park) return TM_OK;
    TM_TRY(build_pass(&p, job, "first step", &first));
    *plans += plan_bytes(p);
    TM_TRY(least_of(job, opts, p, least, device));
    TM_TRY(build_drain(&p, job));
    *plans += plan_bytes(p);
    return least_of(job, opts, p, least, device);
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

static tm_status minimum_of(tm_job *job, const job_opts *opts, const pass_opts *o, uint64_t *least, uint64_t *device,
                            uint64_t *plans) {
    uint64_t keep = job->needs.share;
    tm_status rc = minimum_of_programs(job, opts, o, least, device, plans);
    job->needs.share = keep;
    if (opts->device_bytes) *plans *= WITH_COPIES;
    *least = tm_max_u64(*least + *plans, way_planning_bytes(*plans));
    return rc;
}

/* The way's share in what the list knows; least: UINT64_MAX where the device's memory is too small. */
tm_status way_minimum(tm_job *job, const job_opts *opts, way_list *ways, uint32_t i) {
    uint64_t device = 0;
    tm_plan_opts po;
    tm_phase_step(&job->progress.planning);
    TM_TRY(minimum_of(job, opts, &ways->way[i], &ways->least[i], &device, &ways->plans[i]));
    ways->minimum_anyway = tm_min_u64(ways->minimum_anyway, ways->least[i]);
    ways->minimum_device = tm_min_u64(ways->minimum_device, device);
    job_plan_opts(job, opts, &po);
    if (device > po.device_bytes) ways->least[i] = UINT64_MAX;
    return TM_OK;
}

static bool is_asked(const way_list *ways, uint32_t i) {
    bool any_end = false;
    for (uint32_t k = 0; k < ways->n; k++) any_end |= at_an_end(&ways->way[k]);
    return !any_end || at_an_end(&ways->way[i]);
}

/* ---- many micro-batches -------------------------------------------------------------------------------------- */

/* From three on each micro-batch brings as many operations, uses and visits as any other: what the plans take of any
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
    uint64_t each = other > one ? (other - one) / (further - at) : 0;
    return (growth){.first = one > each * at ? one - each * at : 0, .each = each};
}

static tm_status plans_of(tm_job *job, const job_opts *opts, const pass_opts *way, uint32_t n, uint64_t *plans) {
    pass_opts o = *way;
    uint64_t keep = job->needs.share;
    o.shape.micro_batches = n;
    tm_status rc = minimum_of_programs(job, opts, &o, NULL, NULL, plans);
    job->needs.share = keep;
    if (opts->device_bytes) *plans *= WITH_COPIES;
    return rc;
}

static tm_status plans_grow(tm_job *job, const job_opts *opts, const pass_opts *way, growth *g) {
    uint64_t few, more;
    TM_TRY(plans_of(job, opts, way, FEW, &few));
    TM_TRY(plans_of(job, opts, way, FEW + 1, &more));
    *g = through(FEW, few, FEW + 1, more);
    return TM_OK;
}

/* The frames of few micro-batches pack as those of many do, but for what is left between them. */
static tm_status slab_grows(tm_job *job, const job_opts *opts, const pass_opts *way, growth *g) {
    uint64_t least[2], device = 0, plans;
    for (uint32_t i = 0; i < 2; i++) {
        pass_opts o = *way;
        uint64_t keep = job->needs.share;
        o.shape.micro_batches = (uint32_t)SAMPLE << i;
        tm_status rc = minimum_of_programs(job, opts, &o, &least[i], &device, &plans);
        job->needs.share = keep;
        TM_TRY(rc);
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
static uint64_t room_for_plans(const tm_job *job) {
    return job->budget.host_bytes == UINT64_MAX ? tm_mem_available_bytes() : job->budget.slab_bytes;
}

/* Where it is frames that decide and not plans, packing has the last word. */
static tm_status hold_to_packing(tm_job *job, const job_opts *opts, const pass_opts *way, uint64_t room, uint32_t *n) {
    uint64_t least = UINT64_MAX, device = 0, plans;
    while (*n >= FEW && least > room) {
        pass_opts o = *way;
        o.shape.micro_batches = *n;
        TM_TRY(minimum_of(job, opts, &o, &least, &device, &plans));
        if (least > room) *n -= 1 + *n / 64;
    }
    if (*n < FEW) *n = 0;
    return TM_OK;
}

/* How many micro-batches fit `room` in this way, fewer than there are; and by counting what as many as there are need.
 */
static tm_status count_way(tm_job *job, const job_opts *opts, way_list *ways, uint32_t i, const growth *plans) {
    uint64_t room = room_for_plans(job);
    uint32_t n = ways->way[i].shape.micro_batches, most;
    growth slab;
    TM_TRY(slab_grows(job, opts, &ways->way[i], &slab));
    most = most_with(plans, &slab, room, n);
    if (grown(&slab, most) > grown(plans, most) / 10 * 9)
        TM_TRY(hold_to_packing(job, opts, &ways->way[i], room, &most));
    if (most > ways->most_micro_batches) ways->most_micro_batches = most;
    if (ways->least[i]) return TM_OK; /* known already */
    ways->plans[i] = grown(plans, n);
    ways->least[i] = least_with(plans, &slab, n);
    ways->minimum = ways->minimum_anyway = tm_min_u64(ways->minimum, ways->least[i]);
    return TM_OK;
}

static tm_status count_ways(tm_job *job, const job_opts *opts, way_list *ways, const growth *plans) {
    for (uint32_t i = 0; i < ways->n; i++)
        if (is_asked(ways, i)) TM_TRY(count_way(job, opts, ways, i, &plans[i]));
    ways->too_many = true;
    return TM_OK;
}

/* Whether in every way the plans alone are more than there is room for. */
static tm_status plans_have_room(tm_job *job, const job_opts *opts, const way_list *ways, growth *plans, bool *have) {
    uint64_t room = room_for_plans(job);
    *have = false;
    for (uint32_t i = 0; i < ways->n; i++) {
        if (!is_asked(ways, i)) continue;
        TM_TRY(plans_grow(job, opts, &ways->way[i], &plans[i]));
        uint64_t all = grown(&plans[i], ways->way[i].shape.micro_batches);
        *have |= all <= room && way_planning_bytes(all) <= room;
    }
    return TM_OK;
}

static tm_status minimum_of_ways(tm_job *job, const job_opts *opts, way_list *ways) {
    for (uint32_t i = 0; i < ways->n; i++) {
        if (!is_asked(ways, i)) continue;
        TM_TRY(way_minimum(job, opts, ways, i));
        ways->minimum = tm_min_u64(ways->minimum, ways->least[i]);
    }
    return TM_OK;
}

/* Nothing of more than EXACT is built unless their plans have room. */
static tm_status minimum_of_many(tm_job *job, const job_opts *opts, way_list *ways) {
    growth *plans = tm_calloc(ways->n + 1, sizeof *plans);
    bool have = false;
    tm_status rc = plans ? TM_OK : tm_nomem(ways->n * sizeof *plans);
    if (rc == TM_OK) rc = plans_have_room(job, opts, ways, plans, &have);
    have |= ways->way[0].shape.micro_batches <= EXACT;
    if (rc == TM_OK && have) rc = minimum_of_ways(job, opts, ways);
    bool fits = have && (ways->minimum == UINT64_MAX || ways->minimum <= room_for_plans(job));
    if (rc == TM_OK && !fits) rc = count_ways(job, opts, ways, plans);
    tm_free(plans);
    return rc;
}

tm_status job_minimum(tm_job *job, const job_opts *opts, way_list *ways) {
    job_give_state(job, &(job_state){.parks = job->parks}); /* it may be of other options */
    ways->minimum_device = ways->minimum = ways->minimum_anyway = UINT64_MAX;
    ways->too_many = false;
    ways->most_micro_batches = 0;
    for (uint32_t i = 0; i < ways->n; i++) ways->least[i] = 0;
    return ways->way[0].shape.micro_batches > MANY ? minimum_of_many(job, opts, ways)
                                                   : minimum_of_ways(job, opts, ways);
}

void job_plans_took(way_list *ways, uint32_t way, uint64_t bytes) {
    if (ways->least[way] == 0 || bytes <= ways->plans[way]) return;
    ways->least[way] = tm_max_u64(ways->least[way] + bytes - ways->plans[way], way_planning_bytes(bytes));
    ways->plans[way] = bytes;
    ways->minimum = UINT64_MAX;
    for (uint32_t i = 0; i < ways->n; i++)
        if (ways->least[i]) ways->minimum = tm_min_u64(ways->minimum, ways->least[i]);
}
