/* The planner: what of a job's budget is not for frames, the way in which its step is run, every other plan beside it.
 *
 *     planner_choose   with the tensors that should stay resident, then without
 *       choose_within    the minima of all ways; with ranks one way for all; slabs that are smaller by a little
 *         compile_once     the step (choose.c); beside it import, walk, what the arena holds, what else the job runs
 *
 * An attempt is a value: nothing of a failed one is left but time that proofs took, and what is known of the plans of
 * the way that it tried (way_plans_took). */
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "planner/choice_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- the budget: what is not a frame ------------------------------------------------------------------------- */

/* The program with its libraries (6.0 MiB of their pages are in use, by smaps) and what it holds without a job, what the
 * heap keeps between its blocks once planning has been there (1.1 to 1.8 MiB: Gemma 3's widths, 2 and 4 blocks), a stack
 * and an arena of malloc's for each thread, the matrix library's buffers; and what grows with the state: an object's
 * own (here, in the layout, in the store; of what does not learn where it is read from as well), a tensor's, the plan of
 * a walk over all state, which is compiled beside the step's at an export and at the end of a run (343 to 560 bytes an
 * operation: 10 M to 1.26 B parameters, 16 to 400 blocks), and a checksum a page. What the plans of a
 * step take is each way's own (choose.c). Stated, not measured at run time, so that `plan` and `train` agree; tests
 * hold VmHWM against the budget. */
enum {
    PROGRAM_KIB = 7808,
    PER_THREAD_KIB = 256,
    OBJECT_BYTES = 128,
    FROZEN_BYTES = 1024,
    TENSOR_BYTES = 832,
    WALK_BYTES_PER_OP = 608
};
enum { WINDOW_GRAIN = 2048, ARENA_FRAMES_GIB = 4 };
/* Open MPI 4.1 takes 11 MiB a rank (ob1 over shared memory or TCP, UCX loaded or not) and up to 0.14 MiB for every rank
 * that it talks to; a fabric with buffers of its own may take more. */
enum { MPI_MIB = 16, MPI_KIB_PER_RANK = 160 };

/* On nodes of equal size a rank talks to those of its node, and to one on each of the others. */
static uint64_t mpi_bytes(const struct tm_comm *c) {
    uint32_t peers = tm_comm_uniform(c) ? tm_comm_node_size(c) + tm_comm_nodes(c) : tm_comm_size(c);
    return MPI_MIB * TM_MIB + (uint64_t)peers * MPI_KIB_PER_RANK * 1024;
}

/* On the host for the sake of an arena whose device is the CPU: it computes with a team of its own, and counts windows
 * on each page of what there is: at most what was given, and of an arena without a limit what can be made use of. */
static uint64_t arena_fixed_bytes(const tm_job *job) {
    uint64_t objects = tm_layout_objects(job->layout), bytes = 0, arena = job->opts.device_bytes;
    if (arena == 0 || job->tiers.traits.own_processors) return 0;
    for (uint32_t i = 0; i < objects; i++) bytes += tm_layout_get(job->layout, i)->frame_bytes;
    arena = tm_min_u64(arena, bytes + ((uint64_t)ARENA_FRAMES_GIB << 30));
    return arena / WINDOW_GRAIN + (uint64_t)PER_THREAD_KIB * 1024 * (tm_kernels_threads() + 3);
}

uint64_t planner_program_bytes(void) {
    return (uint64_t)PROGRAM_KIB * 1024;
}

static uint64_t object_bytes(const tm_object *o) {
    return (o->kind == TM_KIND_FROZEN ? FROZEN_BYTES : OBJECT_BYTES) + o->bytes / TM_PAGE_BYTES * sizeof(uint64_t);
}

uint64_t planner_fixed_bytes(const tm_job *job, uint32_t tokens) {
    tm_products products = tm_model_products(job->model, tokens);
    products.packed = job->opts.as_stored;
    uint64_t bytes = planner_program_bytes() + (uint64_t)PER_THREAD_KIB * tm_kernels_threads() * 1024;
    bytes += tm_kernels_resident_bytes(&products);
    if (job->ranks.ranks > 1) bytes += mpi_bytes(job->ranks.comm) + TM_COMM_WORKSPACE_BYTES;
    for (uint32_t i = 0; i < tm_layout_objects(job->layout); i++) bytes += object_bytes(tm_layout_get(job->layout, i));
    bytes += (uint64_t)TENSOR_BYTES * tm_model_tensors(job->model);
    if (job->optimizer) bytes += WALK_BYTES_PER_OP * build_walk_ops(job);
    return bytes + job->opts.other_bytes + job->tiers.traits.host_bytes + arena_fixed_bytes(job) + job_pissa_bytes(job);
}

/* As it is laid out without parked gradients. */
static tm_status divide_budget(const planner_ask *ask, job_budget *out) {
    tm_job *job = ask->job;
    uint64_t host = job->opts.host_bytes;
    uint32_t tokens = job->opts.other_tokens;
    TM_TRY(job_add_state(job, &job->opts, false));
    for (uint32_t i = 0; i < ask->n; i++) tokens = (uint32_t)tm_max_u64(tokens, shape_real_tokens(&ask->way[i].shape));
    uint64_t fixed = planner_fixed_bytes(job, tokens);
    *out = (job_budget){.host_bytes = host,
                        .fixed_bytes = fixed,
                        .slab_bytes = host == UINT64_MAX ? (uint64_t)1 << 46
                                      : host > fixed     ? host - fixed
                                                         : 0};
    return TM_OK;
}

/* ---- an attempt ------------------------------------------------------------------------------------------------ */

enum { HOLD_ALL = 4 }; /* tm_plan_opts.resident_quarters */

/* One after the other; what they have in common. */
typedef struct attempts {
    way_list ways;
    const job_opts *opts; /* the job's, or with less that has to stay */
    planner_choice *out;
    uint32_t agreed_way; /* with ranks; UINT32_MAX: none */
} attempts;

static tm_status refuse(attempts *a, job_refusal r) {
    a->out->refusal = r;
    return job_refuse(a->ways.ask->job, &r);
}

static tm_status refuse_host(attempts *a) {
    return refuse(a, (job_refusal){.limit = JOB_LIMIT_HOST, .bytes = a->ways.minimum + a->ways.budget.fixed_bytes});
}

static tm_status refuse_device(attempts *a, uint64_t bytes) {
    return refuse(a, (job_refusal){.limit = JOB_LIMIT_DEVICE, .bytes = bytes});
}

/* Nothing of the step was built. What few of its micro-batches take may be too much as well: then it is no matter of
 * their number. */
static tm_status refuse_many(attempts *a) {
    const way_list *w = &a->ways;
    if (w->most_micro_batches == 0) return refuse_host(a);
    return refuse(a, (job_refusal){.limit = JOB_LIMIT_MICRO_BATCHES,
                                   .bytes = w->minimum + w->budget.fixed_bytes,
                                   .micro_batches = w->ask->way[0].shape.micro_batches,
                                   .most_micro_batches = w->most_micro_batches});
}

void planner_drop(planner_choice *c) {
    tm_plan_free(c->plan);
    tm_plan_free(c->import_plan);
    tm_plan_free(c->hold_plan);
    for (int way = 0; way < TM_RESIDENT_WAYS; way++) tm_plan_free(c->resident[way]);
    c->plan = c->import_plan = c->hold_plan = NULL;
    memset(c->resident, 0, sizeof c->resident);
}

/* The program goes. */
static tm_status compile(attempts *a, tm_program *p, bool linked, tm_plan **plan) {
    tm_status rc = job_compile_in(a->ways.ask->job, &a->out->account, p, linked, plan);
    tm_program_free(p);
    return rc;
}

/* What the arena holds has a home on disk for commits alone. */
static tm_status compile_resident(attempts *a) {
    const tm_job *job = a->ways.ask->job;
    for (int way = 0; way < TM_RESIDENT_WAYS; way++) {
        tm_program *p = NULL;
        if (way != TM_RESIDENT_FROZEN && !job->opts.commits) continue;
        TM_TRY(tm_program_device_resident(&p, job->layout, (tm_resident_way)way));
        if (p) TM_TRY(compile(a, p, true, &a->out->resident[way]));
    }
    return TM_OK;
}

/* It is gone before there are links. */
static tm_status compile_import(attempts *a) {
    tm_program *p;
    if (a->ways.ask->job->held_share > 0) {
        TM_TRY(build_hold(&p, a->ways.ask->job));
        TM_TRY(compile(a, p, false, &a->out->hold_plan));
    }
    TM_TRY(build_import(&p, a->ways.ask->job));
    return compile(a, p, false, &a->out->import_plan);
}

/* What ends a run reads all state through memory of its own (the model that is saved needs no more than the hash).
 * Beside an arena the step may leave nothing of that kind in the slab: to know it at the start is better than at the
 * end. */
static tm_status compile_walk(attempts *a) {
    const tm_job *job = a->ways.ask->job;
    tm_program *p;
    tm_plan *plan = NULL;
    if (!job->optimizer || !job->opts.device_bytes || job->opts.no_walk) return TM_OK;
    TM_TRY(build_walk(&p, job, true, 0));
    tm_status rc = compile(a, p, false, &plan);
    tm_plan_free(plan);
    return rc;
}

static tm_status compile_beside(attempts *a) {
    const planner_ask *ask = a->ways.ask;
    TM_ASSERT(a->out->plan && a->out->way < ask->n);
    TM_TRY(compile_import(a));
    TM_TRY(compile_walk(a));
    TM_TRY(compile_resident(a));
    return ask->more ? ask->more(ask->ctx, ask->job, &a->out->account, &ask->way[a->out->way]) : TM_OK;
}

/* The step within `slab` bytes, then the import and whatever else the job runs, beside what the step keeps resident,
 * within the whole budget. */
static tm_status compile_once(attempts *a, const job_opts *opts, uint64_t slab, uint32_t resident_quarters,
                              uint32_t only) {
    planner_choice *c = a->out;
    way_list *w = &a->ways;
    TM_ASSERT(!c->plan && !c->import_plan && slab <= w->budget.slab_bytes);
    job_limits limits = {.slab_bytes = slab, .resident_quarters = resident_quarters};
    c->account = (job_account){.needs.proof_seconds = c->account.needs.proof_seconds};
    TM_TRY(choose_way(w, opts, &limits, only, &c->plan, &c->way));
    limits.slab_bytes = w->budget.slab_bytes;
    c->account.limits = limits;
    job_count_plan(&c->account, c->plan, true);
    tm_status rc = compile_beside(a);
    /* each plan is within the budget beside the step's share; what came before one with a larger share may not be */
    const job_needs *n = &c->account.needs;
    uint64_t plans = tm_max_u64(limits.plans_bytes, n->plans); /* the room between them is malloc's holes */
    bool beside = n->slab + n->share + plans <= w->budget.slab_bytes && !tm_fault_hit("no_room_beside", NULL);
    if (rc == TM_OK && !beside) rc = tm_fail(TM_EBUDGET, "plans beside each other");
    c->account.limits.plans_bytes = plans;
    way_plans_took(w, c->way, n->plans); /* more than their programs bound: known to the next try */
    if (rc == TM_EBUDGET) planner_drop(c);
    return rc;
}

/* Of the host, at most. */
static uint64_t planner_peak(const planner_choice *c) {
    const job_needs *n = &c->account.needs;
    return c->budget.fixed_bytes + c->account.limits.plans_bytes + n->slab + n->share;
}

/* ---- several ranks --------------------------------------------------------------------------------------------- */

/* For what is tried first: a budget that is too small for it on any rank is TM_EBUDGET on all, who then try something
 * else together. It is no failure of the job yet: a rank that fails elsewhere meanwhile is heard here. */
static tm_status agree_on_fit(tm_job *job, tm_status rc) {
    if (job->ranks.ranks == 1) return rc;
    uint64_t small = rc == TM_EBUDGET;
    if (small) tm_error_clear();
    TM_TRY(job_agree(job, small ? TM_OK : rc));
    TM_TRY(tm_comm_all_reduce_u64(job->ranks.comm, TM_COMM_WORLD, TM_COMM_MAX, &small, 1));
    return small ? tm_fail(TM_EBUDGET, "memory.host_budget is too small for what is tried first") : TM_OK;
}

/* Ranks run one way; what stays resident is each rank's own affair. The first chooses, for the least budgets of all. */
static tm_status agree_on_way(attempts *a, tm_status rc) {
    way_list *w = &a->ways;
    tm_job *job = w->ask->job;
    struct tm_comm *comm = job->ranks.comm;
    tm_plan *plan = NULL;
    TM_ASSERT(comm && a->agreed_way == UINT32_MAX);
    bool first_try = a->opts->persist_elements > 0;
    TM_TRY(first_try ? agree_on_fit(job, rc) : job_agree(job, rc));
    uint64_t least[] = {w->budget.slab_bytes, a->opts->device_bytes};
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, least, TM_COUNT(least)));
    job_opts of_all = *a->opts;
    /* a rank with less than the first takes: it has said that it can, too */
    of_all.device_bytes = least[1] ? tm_max_u64(least[1], w->minimum_device) : 0;
    job_limits limits = {.slab_bytes = tm_max_u64(least[0], w->minimum), .resident_quarters = HOLD_ALL};
    uint32_t way = UINT32_MAX;
    if (job->ranks.rank == 0) {
        rc = choose_way(w, &of_all, &limits, UINT32_MAX, &plan, &way);
        if (rc == TM_EBUDGET) rc = refuse_host(a);
    }
    tm_plan_free(plan);
    TM_TRY(first_try ? agree_on_fit(job, rc) : job_agree(job, rc));
    TM_TRY(tm_comm_broadcast(comm, TM_COMM_WORLD, 0, &way, sizeof way));
    TM_ASSERT(way < w->ask->n);
    a->agreed_way = way;
    return TM_OK;
}

/* A refusal that all ranks have agreed on is that of the first rank that has one; it takes what the most demanding rank
 * takes of that limit. */
static tm_status share_refusal(const tm_job *job, job_refusal *r) {
    enum { LIMITS = JOB_LIMIT_MICRO_BATCHES + 1 };
    struct tm_comm *comm = job->ranks.comm;
    TM_ASSERT(comm != NULL);
    bool mine = r->limit != JOB_LIMIT_NONE;
    uint64_t first = mine ? (uint64_t)job->ranks.rank * LIMITS + r->limit : UINT64_MAX;
    tm_error why = *tm_error_get();
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, &first, 1));
    if (first == UINT64_MAX) return tm_error_set(&why), TM_OK; /* of something else */
    job_limit limit = (job_limit)(first % LIMITS);
    bool same = r->limit == limit;
    uint64_t most[] = {same ? r->bytes : 0, same ? r->micro_batches : 0};
    uint64_t fit = same && limit == JOB_LIMIT_MICRO_BATCHES ? r->most_micro_batches : UINT32_MAX;
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MAX, most, TM_COUNT(most)));
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, &fit, 1));
    *r = (job_refusal){.limit = limit, .bytes = most[0], .micro_batches = (uint32_t)most[1]};
    if (limit == JOB_LIMIT_MICRO_BATCHES) r->most_micro_batches = (uint32_t)fit;
    tm_error_set(&why);
    return TM_OK;
}

/* ---- attempts -------------------------------------------------------------------------------------------------- */

/* Frames do not pack equally well for every program: where another plan needs a little more beside what is resident
 * than the step left over, the step is compiled again for a slab that is smaller by a little, at last with nothing
 * resident, which is what the minimum was computed for. */
enum { PACKING_TRIES = 4 };

static tm_status try_slabs(attempts *a) {
    job_opts bare = *a->opts;
    uint32_t only = a->agreed_way, hold = HOLD_ALL;
    const job_refusal *r = &a->out->account.refusal;
    uint64_t budget = a->ways.budget.slab_bytes;
    bare.cache_none = true;
    a->out->way = only;
    for (uint64_t i = 0; i <= PACKING_TRIES; i++) {
        bool last = i == PACKING_TRIES;
        uint64_t give = last ? 0 : tm_min_u64(tm_max_u64(budget / 64, TM_FRAME_ALIGN) * i, budget);
        tm_status rc = compile_once(a, last ? &bare : a->opts, budget - give, hold, last ? a->agreed_way : only);
        if (rc != TM_EBUDGET) return rc;
        tm_error_clear();
        only = a->out->way;
        if (r->limit == JOB_LIMIT_DEVICE && hold > 0) hold--; /* another plan needs the arena */
    }
    return r->limit == JOB_LIMIT_DEVICE ? refuse_device(a, r->bytes) : refuse_host(a);
}

/* What is needed at the least is there. */
static tm_status check_least(attempts *a) {
    const way_list *w = &a->ways;
    if (w->minimum == UINT64_MAX) return refuse_device(a, w->minimum_device);
    if (w->too_many) return refuse_many(a);
    return w->minimum > w->budget.slab_bytes ? refuse_host(a) : TM_OK;
}

/* `rc`: of what was done before. */
static tm_status choose_within(attempts *a, tm_status rc) {
    way_list *w = &a->ways;
    if (rc == TM_OK) rc = way_list_minimum(w, false);
    if (rc == TM_OK) rc = check_least(a);
    if (w->ask->job->ranks.ranks > 1) rc = agree_on_way(a, rc);
    return rc == TM_OK ? try_slabs(a) : rc;
}

/* Tensors that should stay give way where they would not fit, on any rank: the minimum does not depend on them. */
static tm_status choose_keeping(attempts *plain, attempts *keeping) {
    tm_job *job = plain->ways.ask->job;
    tm_status rc = choose_within(keeping, way_list_minimum(&plain->ways, false));
    if (keeping->agreed_way != UINT32_MAX) rc = agree_on_fit(job, rc);
    bool elsewhere = job->ranks.agreed && *job->ranks.agreed; /* some rank's budget was too small for something else */
    if (rc != TM_EBUDGET || elsewhere) return rc;
    tm_error_clear();
    planner_drop(plain->out);
    plain->out->refusal = (job_refusal){0};
    TM_TRY(choose_within(plain, TM_OK));
    tm_warn_once("persistence", "stage3_param_persistence_threshold has no effect here: what it would keep does not "
                                "fit the budget");
    return TM_OK;
}

static tm_status choose_with_lists(attempts *plain, attempts *keeping) {
    const planner_ask *ask = plain->ways.ask;
    planner_choice *out = plain->out;
    TM_TRY(way_list_open(&plain->ways, ask, plain->opts, &out->budget));
    TM_TRY(way_list_open(&keeping->ways, ask, keeping->opts, &out->budget));
    tm_status rc = ask->job->opts.persist_elements > 0 ? choose_keeping(plain, keeping) : choose_within(plain, TM_OK);
    uint64_t host = plain->ways.minimum_anyway;
    out->minimum_host_bytes = host == UINT64_MAX ? 0 : host + out->budget.fixed_bytes;
    out->minimum_device_bytes = plain->ways.minimum_device;
    return rc;
}

tm_status planner_choose(const planner_ask *ask, planner_choice *out) {
    job_opts less = ask->job->opts;
    less.persist_elements = 0;
    attempts plain = {.ways.ask = ask, .opts = &less, .out = out, .agreed_way = UINT32_MAX};
    attempts keeping = {.ways.ask = ask, .opts = &ask->job->opts, .out = out, .agreed_way = UINT32_MAX};
    *out = (planner_choice){0};
    tm_phase_begin(&ask->job->progress.planning, "planning", "plans", 0);
    tm_status rc = divide_budget(ask, &out->budget);
    if (rc == TM_OK) rc = choose_with_lists(&plain, &keeping);
    way_list_close(&plain.ways);
    way_list_close(&keeping.ways);
    tm_phase_end(&ask->job->progress.planning);
    rc = job_agree(ask->job, rc);
    TM_ASSERT(rc != TM_OK || (out->plan && out->import_plan && out->way < ask->n));
    TM_ASSERT(rc != TM_OK || ask->job->opts.host_bytes == UINT64_MAX || planner_peak(out) <= ask->job->opts.host_bytes);
    if (rc != TM_OK) planner_drop(out);
    if (rc == TM_EBUDGET && ask->job->ranks.ranks > 1) TM_TRY(share_refusal(ask->job, &out->refusal));
    return rc;
}

tm_status planner_count(const planner_ask *ask, planner_choice *out) {
    tm_job *job = ask->job;
    job_opts less = job->opts;
    less.persist_elements = 0;
    attempts a = {.ways.ask = ask, .opts = &less, .out = out, .agreed_way = UINT32_MAX};
    *out = (planner_choice){0};
    tm_phase_begin(&job->progress.planning, "planning", "plans", 0);
    tm_status rc = divide_budget(ask, &out->budget);
    if (rc == TM_OK) rc = way_list_open(&a.ways, ask, a.opts, &out->budget);
    if (rc == TM_OK) rc = way_list_minimum(&a.ways, true);
    if (rc == TM_OK && a.ways.too_many) rc = check_least(&a);
    out->minimum_host_bytes = a.ways.too_many ? a.ways.minimum_anyway + out->budget.fixed_bytes : 0;
    out->minimum_device_bytes = a.ways.too_many ? a.ways.minimum_device : 0;
    if (rc == TM_OK) rc = job_add_state(job, &job->opts, false); /* as it was before */
    way_list_close(&a.ways);
    tm_phase_end(&job->progress.planning);
    rc = job_agree(job, rc);
    if (rc == TM_EBUDGET && job->ranks.ranks > 1) TM_TRY(share_refusal(job, &out->refusal));
    return rc;
}

tm_status planner_minimum(const planner_ask *ask, uint64_t *host_bytes) {
    way_list w = {0};
    job_budget budget;
    TM_TRY(divide_budget(ask, &budget));
    TM_TRY(way_list_open(&w, ask, &ask->job->opts, &budget));
    tm_status rc = way_list_minimum(&w, false);
    *host_bytes = w.minimum == UINT64_MAX ? UINT64_MAX : w.minimum + budget.fixed_bytes;
    way_list_close(&w);
    return rc;
}
