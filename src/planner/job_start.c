/* A job's start: what of the budget is not for frames, the way in which the step is run, every other plan beside it,
 * then files, slab and arena, and the import or the commit. */
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "planner/start.h"

#include <stdio.h>
#include <string.h>

/* ---- the budget: what is not a frame ------------------------------------------------------------------------- */

/* The program with its libraries (5.7 MiB of their pages are in use, by smaps) and what it holds without a job, a stack
 * and an arena of malloc's for each thread, the matrix library's buffers; and what grows with the state: an object's
 * own (here, in the layout, in the store), its share of the plan of a walk over all state, which is compiled beside the
 * step's at an export and at the end of a run (two operations an object), and a checksum a page. What the plans of a
 * step take is each way's own (choose.c). Stated, not measured at run time, so that `plan` and `train` agree; tests
 * hold VmHWM against the budget. */
enum { PROGRAM_KIB = 6144, PER_THREAD_KIB = 256, OBJECT_BYTES = 768, WALK_BYTES_PER_OBJECT = 1280 };
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

static uint64_t fixed_bytes(const tm_job *job, uint64_t other, uint32_t tokens) {
    uint64_t bytes = (PROGRAM_KIB + (uint64_t)PER_THREAD_KIB * tm_kernels_threads()) * 1024 + other;
    bytes += tm_kernels_resident_bytes((tm_elem)job->dtype, tokens);
    if (job->ranks.ranks > 1) bytes += mpi_bytes(job->ranks.comm) + TM_COMM_WORKSPACE_BYTES;
    for (uint32_t i = 0; i < tm_layout_objects(job->layout); i++)
        bytes += OBJECT_BYTES + WALK_BYTES_PER_OBJECT +
                 tm_layout_get(job->layout, i)->bytes / TM_PAGE_BYTES * sizeof(uint64_t);
    return bytes + job->tiers.traits.host_bytes + arena_fixed_bytes(job);
}

/* ---- choosing among ways to run the step --------------------------------------------------------------------- */

/* What a choice comes to. */
typedef struct started {
    tm_plan *plan, *import_plan;
    uint32_t chosen;
} started;

/* Nothing of the step was built. What few of its micro-batches take may be too much as well: then it is no matter of
 * their number. */
static tm_status refuse_many(tm_job *job, const job_opts *opts, const way_list *ways) {
    char want[32], have[32], of[96] = "what this machine has available";
    uint64_t least = ways->minimum + job->budget.fixed_bytes;
    if (ways->most_micro_batches == 0) return job_refuse_host(job, least);
    job->budget.most_micro_batches = ways->most_micro_batches;
    if (opts->host_bytes != UINT64_MAX)
        snprintf(of, sizeof of, "memory.host_budget %s (%llu bytes)",
                 tm_format_size(opts->host_bytes, have, sizeof have), (unsigned long long)opts->host_bytes);
    return tm_fail(TM_EBUDGET,
                   "gradient_accumulation_steps %u: the plan of so many micro-batches is larger than %s, they need at "
                   "least %llu bytes (%s); at most %u fit: --set gradient_accumulation_steps=%u",
                   ways->way[0].shape.micro_batches, of, (unsigned long long)least,
                   tm_format_size(least, want, sizeof want), ways->most_micro_batches, ways->most_micro_batches);
}

/* What the arena holds has a home on disk for commits alone. */
static tm_status compile_held(tm_job *job, const job_opts *opts) {
    tm_plan **plan[] = {&job->tiers.held_in, &job->tiers.held_out};
    for (int out = 0; out < 2; out++) {
        tm_program *p = NULL;
        tm_plan_free(*plan[out]);
        *plan[out] = NULL;
        if (!opts->commits) continue;
        TM_TRY(tm_program_held(&p, job->layout, out));
        if (!p) return TM_OK;
        tm_status rc = job_compile(job, p, plan[out]);
        tm_program_free(p);
        if (rc != TM_OK) return rc;
    }
    return TM_OK;
}

static tm_status compile_import(tm_job *job, tm_plan **plan) {
    tm_program *p;
    TM_TRY(build_import(&p, job));
    uint64_t kept = job->needs.plans;
    tm_status rc = job_compile(job, p, plan);
    job->needs.plans = kept; /* it is gone before there are links */
    tm_program_free(p);
    return rc;
}

/* What ends a run reads all state through memory of its own (the model that is saved needs no more than the hash).
 * Beside an arena the step may leave nothing of that kind in the slab: to know it at the start is better than at the
 * end. */
static tm_status compile_walk(tm_job *job) {
    tm_program *p;
    tm_plan *plan = NULL;
    if (!job->optimizer || !job->opts.device_bytes) return TM_OK;
    TM_TRY(build_walk(&p, job, true, 0));
    uint64_t kept = job->needs.plans;
    tm_status rc = job_compile(job, p, &plan);
    job->needs.plans = kept;
    tm_program_free(p);
    tm_plan_free(plan);
    return rc;
}

/* The step, then the import and whatever else the job runs, beside what the step keeps resident. */
static tm_status compile_once(tm_job *job, const job_opts *opts, const char *name, way_list *ways, uint32_t only,
                              started *out) {
    uint64_t budget = job->budget.slab_bytes;
    job->needs.slab = job->needs.spill = job->needs.spill_largest = job->needs.device = 0;
    job->needs.shared = job->needs.share = job->needs.plans = 0;
    job->budget.device_short = false;
    TM_TRY(job_choose(job, opts, name, ways, only, &out->plan, &out->chosen));
    job_count_need(job, out->plan);
    job->limits.slab_bytes = budget;
    tm_status rc = compile_import(job, &out->import_plan);
    if (rc == TM_OK) rc = compile_walk(job);
    if (rc == TM_OK) rc = compile_held(job, opts);
    if (rc == TM_OK && ways->more) rc = ways->more(ways->ctx, job, &ways->way[out->chosen]);
    /* each plan is within the budget beside the step's share; what came before one with a larger share may not be */
    job->limits.plans_bytes =
        tm_max_u64(job->limits.plans_bytes, job->needs.plans); /* the room between them is malloc's holes */
    bool beside =
        job->needs.slab + job->needs.share + job->limits.plans_bytes <= budget && !tm_fault_hit("no_room_beside", NULL);
    if (rc == TM_OK && !beside) rc = tm_fail(TM_EBUDGET, "plans beside each other");
    job_plans_took(ways, out->chosen, job->needs.plans); /* more than their programs bound: known to the next try */
    if (rc != TM_EBUDGET) return rc;
    tm_plan_free(out->plan);
    tm_plan_free(out->import_plan);
    out->plan = out->import_plan = NULL;
    return rc;
}

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
static tm_status agree_on_way(tm_job *job, const job_opts *opts, const char *name, way_list *ways, tm_status rc) {
    struct tm_comm *comm = job->ranks.comm;
    tm_plan *plan = NULL;
    uint64_t slab = job->limits.slab_bytes;
    TM_TRY(opts->persist_elements ? agree_on_fit(job, rc) : job_agree(job, rc));
    uint64_t least[] = {slab, opts->device_bytes};
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, least, TM_COUNT(least)));
    job_opts of_all = *opts;
    /* a rank with less than the first takes: it has said that it can, too */
    of_all.device_bytes = least[1] ? tm_max_u64(least[1], ways->minimum_device) : 0;
    job->limits.slab_bytes = tm_max_u64(least[0], ways->minimum);
    uint32_t way = UINT32_MAX;
    if (job->ranks.rank == 0) {
        rc = job_choose(job, &of_all, name, ways, UINT32_MAX, &plan, &way);
        if (rc == TM_EBUDGET) rc = job_refuse_host(job, ways->minimum + job->budget.fixed_bytes);
    }
    tm_plan_free(plan);
    job->limits.slab_bytes = slab;
    TM_TRY(opts->persist_elements ? agree_on_fit(job, rc) : job_agree(job, rc));
    TM_TRY(tm_comm_broadcast(comm, TM_COMM_WORLD, 0, &way, sizeof way));
    job->budget.agreed_way = way;
    return TM_OK;
}

/* Frames do not pack equally well for every program: where another plan needs a little more beside what is resident
 * than the step left over, the step is compiled again for a slab that is smaller by a little, at last with nothing
 * resident, which is what the minimum was computed for. */
enum { PACKING_TRIES = 4 };

static tm_status compile_all(tm_job *job, const job_opts *opts, const char *name, way_list *ways, started *out) {
    job_opts bare = *opts;
    bare.cache_none = true;
    tm_status rc = job_minimum(job, opts, ways);
    if (rc == TM_OK && ways->minimum == UINT64_MAX)
        rc = job_refuse_device(job, ways->minimum_device);
    else if (rc == TM_OK && ways->too_many)
        rc = refuse_many(job, opts, ways);
    else if (rc == TM_OK && ways->minimum > job->budget.slab_bytes)
        rc = job_refuse_host(job, ways->minimum + job->budget.fixed_bytes);
    if (job->ranks.ranks > 1 && job->budget.agreed_way == UINT32_MAX) rc = agree_on_way(job, opts, name, ways, rc);
    if (rc != TM_OK) return rc;
    out->chosen = job->budget.agreed_way;
    for (uint64_t i = 0; i <= PACKING_TRIES; i++) {
        uint64_t give = tm_max_u64(job->budget.slab_bytes / 64, TM_FRAME_ALIGN) * i;
        job->limits.slab_bytes =
            job->budget.slab_bytes - (i < PACKING_TRIES ? tm_min_u64(give, job->budget.slab_bytes) : 0);
        bool last = i == PACKING_TRIES;
        rc = compile_once(job, last ? &bare : opts, name, ways, last ? job->budget.agreed_way : out->chosen, out);
        if (rc != TM_EBUDGET) return rc;
        tm_error_clear();
        if (job->budget.device_short && job->limits.hold_quarters > 0)
            job->limits.hold_quarters--; /* another plan needs the arena */
    }
    return job->budget.device_short ? job_refuse_device(job, job->needs.device)
                                    : job_refuse_host(job, ways->minimum + job->budget.fixed_bytes);
}

/* Tensors that should stay give way where they would not fit, on any rank: the minimum does not depend on them. */
static tm_status compile_in_budget(tm_job *job, const job_opts *opts, const char *name, way_list *ways, started *out) {
    job_opts o = *opts;
    o.persist_elements = 0;
    job->opts.persist_elements = opts->persist_elements;
    job->budget.slab_bytes = job->limits.slab_bytes;
    tm_status rc = compile_all(job, opts, name, ways, out);
    if (opts->persist_elements == 0) return rc;
    if (rc == TM_OK) {
        job_state keep = job_take_state(job);
        rc = job_minimum(job, &o, ways);
        job_give_state(job, &keep);
    }
    if (job->budget.agreed_way != UINT32_MAX) rc = agree_on_fit(job, rc);
    bool elsewhere = job->ranks.agreed && *job->ranks.agreed; /* some rank's budget was too small for something else */
    if (rc != TM_EBUDGET || elsewhere) return rc;
    tm_error_clear();
    tm_plan_free(out->plan);
    tm_plan_free(out->import_plan);
    *out = (started){0};
    job->opts.persist_elements = 0;
    job->budget.device_short = false;
    job->limits.hold_quarters = 4;
    job->budget.agreed_way = UINT32_MAX;
    job->limits.slab_bytes = job->budget.slab_bytes;
    rc = compile_all(job, &o, name, ways, out);
    if (rc == TM_OK)
        tm_warn_once("persistence",
                     "stage3_param_persistence_threshold has no effect here: what it would keep does not "
                     "fit the budget");
    return rc;
}

/* ---- memory that the ranks of a node share ------------------------------------------------------------------- */

/* Collective: each rank brings its part; on all nodes or on none. */
static tm_status open_window(tm_job *job) {
    tm_comm *comm = job->ranks.comm;
    uint32_t n = tm_comm_node_size(comm);
    tm_status rc = tm_comm_window_open(&job->tiers.window, comm, (job->needs.shared + n - 1) / n);
    tm_error why = *tm_error_get();
    uint64_t all = rc == TM_OK;
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, &all, 1));
    if (all) return TM_OK;
    tm_comm_window_close(job->tiers.window);
    job->tiers.window = NULL;
    if (rc == TM_OK) return tm_fail(TM_EIO, "memory that the ranks of a node share: not on another node");
    tm_error_set(&why);
    return rc;
}

/* Where MPI has no such memory, or too little, every rank has weights of its own, and everything is planned anew. */
static tm_status share_weights(tm_job *job, const job_opts *opts, const char *name, way_list *ways, started *s) {
    char a[32], b[32];
    if (job->needs.shared == 0) return TM_OK;
    tm_status rc = open_window(job);
    if (rc == TM_OK) {
        tm_log(TM_LOG_INFO, "gathered weights: %s, once for the %u ranks of a node (%s of each budget)",
               tm_format_size(job->needs.shared, a, sizeof a), tm_comm_node_size(job->ranks.comm),
               tm_format_size(job->needs.share, b, sizeof b));
        return TM_OK;
    }
    if (job->ranks.must_share) return job_agree(job, rc);
    tm_log(TM_LOG_WARN, "%s; each rank keeps gathered weights of its own", tm_error_get()->text);
    tm_error_clear();
    tm_plan_free(s->plan);
    tm_plan_free(s->import_plan);
    *s = (started){0};
    job->ranks.shared_by = 0;
    job->needs.shared = job->needs.share = 0;
    job->budget.agreed_way = UINT32_MAX;
    job->limits.slab_bytes = job->budget.slab_bytes;
    return job_agree(job, compile_in_budget(job, opts, name, ways, s));
}

tm_status job_start(tm_job *job, const job_opts *opts, const char *name, const pass_opts *candidate, uint32_t n,
                    tm_plan **plan, uint32_t *chosen, uint64_t *minimum_host_bytes, job_more_fn more, void *ctx) {
    uint64_t K = 0;
    uint32_t tokens = opts->other_tokens;
    started s = {0};
    way_list ways = {.way = candidate, .n = n, .more = more, .ctx = ctx};
    tm_status rc;
    job->opts = *opts;
    job->limits.hold_quarters = 4;
    for (uint32_t i = 0; i < n; i++)
        if (shape_tokens(&candidate[i].shape) > tokens) tokens = shape_tokens(&candidate[i].shape);
    job->budget.fixed_bytes = fixed_bytes(job, opts->other_bytes, tokens);
    job->limits.slab_bytes = job->budget.host_bytes == UINT64_MAX ? (uint64_t)1 << 46
                             : job->budget.host_bytes > job->budget.fixed_bytes
                                 ? job->budget.host_bytes - job->budget.fixed_bytes
                                 : 0;
    for (uint32_t i = 0; i < n; i++) K = tm_max_u64(K, candidate[i].shape.micro_batches);
    job->step.batch = tm_calloc(K + 1, sizeof *job->step.batch);
    ways.least = tm_calloc(n + 1, sizeof *ways.least);
    ways.plans = tm_calloc(n + 1, sizeof *ways.plans);
    if (!job->step.batch || !ways.least || !ways.plans) TM_GO(tm_nomem(K * sizeof *job->step.batch));
    tm_phase_begin(&job->progress.planning, "planning", "plans", 0);
    rc = compile_in_budget(job, opts, name, &ways, &s);
    tm_phase_end(&job->progress.planning);
    job->budget.least_device = ways.minimum_device;
    rc = job_agree(job, rc);
    if (rc == TM_OK && !opts->plan_only) rc = share_weights(job, opts, name, &ways, &s);
    if (minimum_host_bytes)
        *minimum_host_bytes = ways.minimum_anyway == UINT64_MAX ? 0 : ways.minimum_anyway + job->budget.fixed_bytes;
    *plan = s.plan;
    *chosen = s.chosen;
    if (rc != TM_OK || opts->plan_only) goto done;
    TM_GO(job_agree(job, job_open_tiers(job, opts)));
    TM_GO(job_agree(job, job_fill_state(job, s.import_plan)));
done:
    tm_plan_free(s.import_plan);
    tm_free(ways.least);
    tm_free(ways.plans);
    return rc;
}
