/* A job's start: what of the budget is not for frames, the way in which the step is run, every other plan beside it,
 * then files, slab and arena, and the import or the commit. */
#include "train/ops_internal.h"

#include "kernels/kernels.h"

#include <malloc.h>
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
    if (arena == 0 || job->traits.own_processors) return 0;
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
    return bytes + job->traits.host_bytes + arena_fixed_bytes(job);
}

/* Once there is an arena, what is compiled for it has no more than that: it was opened as large as was needed. */
static uint64_t arena_bytes(const tm_job *job, const job_opts *opts) {
    return job->device ? tm_device_get_caps(job->device)->arena_bytes : opts->device_bytes;
}

void job_plan_opts(const tm_job *job, const job_opts *opts, tm_plan_opts *po) {
    *po = (tm_plan_opts){.cache = !opts->cache_none,
                         .spill = opts->n_paths > 0,
                         .window_mib = opts->window_mib,
                         .device_bytes = arena_bytes(job, opts),
                         .shared_by = job->ranks.shared_by,
                         .device_apart = job->traits.own_processors,
                         .hold_quarters = opts->no_hold ? 0 : job->hold_quarters,
                         .hold_not = opts->host_share,
                         .share_bytes = job->exec ? 0 : job->need_share, /* once it is there, the slab is beside it */
                         .cost = job->cost,
                         .cost_ctx = job->cost_ctx,
                         .machine = job->machine,
                         .no_read_ahead = opts->no_read_ahead,
                         .no_write_behind = opts->no_write_behind};
    memcpy(po->pinned, opts->pinned, sizeof po->pinned);
    memcpy(po->max_resident_bytes, opts->max_resident_bytes, sizeof po->max_resident_bytes);
    if (opts->n_paths == 0)
        for (int k = 0; k < TM_KINDS; k++) po->pinned[k] = true;
    po->slab_bytes = job->slab_bytes - (job->exec ? 0 : tm_min_u64(job->plans_bytes, job->slab_bytes));
}

tm_status job_agree(tm_job *job, tm_status rc) {
    if (job->ranks.ranks == 1 || (job->ranks.agreed && *job->ranks.agreed)) return rc;
    rc = tm_comm_agree(job->ranks.comm, rc);
    if (rc != TM_OK) *job->ranks.agreed = true;
    return rc;
}

/* ---- choosing among ways to run the step --------------------------------------------------------------------- */

/* What a choice comes to. */
typedef struct started {
    tm_plan *plan, *import_plan;
    uint32_t chosen;
} started;

static tm_status refuse(const tm_job *job, uint64_t minimum_host) {
    char want[32], have[32];
    return tm_fail(TM_EBUDGET,
                   "memory.host_budget %s (%llu bytes) is too small: this job needs at least %llu bytes (%s); "
                   "raise it, or lower seq_len or the micro-batch",
                   tm_format_size(job->host_bytes, have, sizeof have), (unsigned long long)job->host_bytes,
                   (unsigned long long)minimum_host, tm_format_size(minimum_host, want, sizeof want));
}

/* Nothing of the step was built. What few of its micro-batches take may be too much as well: then it is no matter of
 * their number. */
static tm_status refuse_many(tm_job *job, const job_opts *opts, const way_list *ways) {
    char want[32], have[32], of[96] = "what this machine has available";
    uint64_t least = ways->minimum + job->fixed_bytes;
    if (ways->most_micro_batches == 0) return refuse(job, least);
    job->most_micro_batches = ways->most_micro_batches;
    if (opts->host_bytes != UINT64_MAX)
        snprintf(of, sizeof of, "memory.host_budget %s (%llu bytes)",
                 tm_format_size(opts->host_bytes, have, sizeof have), (unsigned long long)opts->host_bytes);
    return tm_fail(TM_EBUDGET,
                   "gradient_accumulation_steps %u: the plan of so many micro-batches is larger than %s, they need at "
                   "least %llu bytes (%s); at most %u fit: --set gradient_accumulation_steps=%u",
                   ways->way[0].shape.micro_batches, of, (unsigned long long)least,
                   tm_format_size(least, want, sizeof want), ways->most_micro_batches, ways->most_micro_batches);
}

/* Which of the budgets a refusal is about travels with it: it may be another rank's. */
static const char DEVICE_BUDGET[] = "device_budget";

bool job_refused_device(void) {
    return strcmp(tm_error_get()->operation, DEVICE_BUDGET) == 0;
}

static tm_status refuse_device(tm_job *job, uint64_t least) {
    char want[32], have[32];
    job->device_short = true;
    job->need_device = least;
    return tm_fail_sys(TM_EBUDGET, 0, DEVICE_BUDGET, NULL, -1,
                       "memory.device_budget %s (%llu bytes) is too small: this job needs at least %llu bytes (%s); "
                       "raise it, or lower seq_len or the micro-batch",
                       tm_format_size(job->opts.device_bytes, have, sizeof have),
                       (unsigned long long)job->opts.device_bytes, (unsigned long long)least,
                       tm_format_size(least, want, sizeof want));
}

static void count_need(tm_job *job, const tm_plan *plan) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    job->proof_seconds += info->proof_seconds;
    job->need_slab = tm_max_u64(job->need_slab, info->slab_bytes);
    job->need_spill = tm_max_u64(job->need_spill, info->spill_file_bytes);
    job->need_device = tm_max_u64(job->need_device, info->device_bytes);
    job->need_shared = tm_max_u64(job->need_shared, info->shared_bytes);
    job->need_share = tm_max_u64(job->need_share, info->share_bytes);
    job->need_spill_largest = tm_max_u64(job->need_spill_largest, info->spill_largest_bytes);
    job->need_plans += info->memory_bytes + (uint64_t)JOB_RUN_BYTES_PER_OP * info->ops;
}

job_needs job_take_needs(const tm_job *job) {
    return (job_needs){job->need_slab,   job->need_spill, job->need_spill_largest, job->need_device,
                       job->need_shared, job->need_share, job->need_plans};
}

void job_give_needs(tm_job *job, const job_needs *n) {
    job->need_slab = n->slab;
    job->need_spill = n->spill;
    job->need_spill_largest = n->spill_largest;
    job->need_device = n->device;
    job->need_shared = n->shared;
    job->need_share = n->share;
    job->need_plans = n->plans;
}

/* Files for temporaries are as large as the plans took that there were when they were made. */
static tm_status has_room_to_spill(const tm_job *job, const tm_plan *plan) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    char a[32], b[32];
    if (!job->exec ||
        (info->spill_file_bytes <= job->need_spill && info->spill_largest_bytes <= job->need_spill_largest))
        return TM_OK;
    return tm_fail(TM_EBUDGET, "a plan that writes out %s of temporaries comes too late: the run has files for %s",
                   tm_format_size(info->spill_file_bytes, a, sizeof a), tm_format_size(job->need_spill, b, sizeof b));
}

tm_status job_compile(tm_job *job, const tm_program *program, tm_plan **plan) {
    tm_plan_opts po;
    job_plan_opts(job, &job->opts, &po);
    if (po.window_mib == 0 || po.window_mib > 64) po.window_mib = 64;
    uint64_t minimum = 0, arena = 0;
    if (po.device_bytes) TM_TRY(tm_plan_device_minimum(program, &arena));
    if (arena > po.device_bytes) return refuse_device(job, arena);
    tm_status rc = tm_plan_compile(plan, job->layout, program, &po, &minimum);
    if (rc == TM_OK && has_room_to_spill(job, *plan) != TM_OK) {
        tm_plan_free(*plan);
        *plan = NULL;
        return TM_EBUDGET;
    }
    if (rc == TM_OK) count_need(job, *plan);
    if (rc != TM_EBUDGET) return rc;
    tm_error_clear();
    return refuse(job, minimum + job->fixed_bytes);
}

uint64_t job_disk_bytes(const tm_job *job, const tm_plan_info *info, uint32_t slots) {
    uint32_t paths = job->opts.n_paths ? job->opts.n_paths : 1;
    return tm_store_spill_bytes(paths, info->spill_file_bytes, info->spill_largest_bytes) +
           tm_store_state_bytes(job->layout, slots, job->opts.commits);
}

static tm_status import(tm_job *job, const tm_plan *plan) {
    job_phase phase;
    job_phase_begin(&phase, job, job->source ? "importing the model" : "making a random model", NULL,
                    job_weight_bytes(job));
    tm_status rc = job_run(job, plan);
    job_phase_end(&phase);
    TM_TRY(rc);
    if (job->store) tm_store_mark_committed(job->store);
    return TM_OK;
}

static tm_status open_store(tm_job *job, const job_opts *opts) {
    bool paged = job->need_spill > 0;
    for (uint32_t i = 0; i < tm_layout_objects(job->layout) && !paged; i++)
        paged = !tm_layout_get(job->layout, i)->resident;
    if (!paged && !opts->commits) return TM_OK;
    bool at_home = opts->n_paths == 0; /* only commits are written: any disk will do, even one in memory */
    tm_status rc = tm_store_open(&job->store, job->layout,
                                 &(tm_store_opts){.paths = at_home ? &opts->home : opts->paths,
                                                  .n_paths = at_home ? 1 : opts->n_paths,
                                                  .path_kinds = at_home ? NULL : opts->path_kinds,
                                                  .commits = opts->commits,
                                                  .name = opts->run_name,
                                                  .key = opts->key,
                                                  .of = opts->of,
                                                  .home = opts->home,
                                                  .resume = opts->resume,
                                                  .slots = opts->slots,
                                                  .allow_tmpfs = opts->allow_tmpfs || at_home,
                                                  .io = opts->io,
                                                  .spill_bytes = job->need_spill,
                                                  .spill_largest = job->need_spill_largest});
    if (rc != TM_ENOSPC) return rc;
    tm_error full = *tm_error_get(); /* nothing was started: the user can mend it */
    full.code = TM_EINPUT;
    tm_error_clear();
    tm_error_set(&full);
    return TM_EINPUT;
}

/* A device whose operations the CPU computes does so with a team of its own. */
static tm_status start_team_there(void *ctx) {
    (void)ctx;
    return tm_kernels_start_team();
}

static tm_status open_tiers(tm_job *job, const job_opts *opts) {
    TM_TRY(open_store(job, opts));
    if (job->ranks.ranks > 1) TM_TRY(comm_ops_open(&job->comm_ops, job));
    (void)malloc_trim(0); /* what planning used goes back before the slab is touched */
    job->slab_bytes = job->need_slab;
    tm_exec_comm comm = {job->comm_ops, job->comm_ops ? comm_ops_submit : NULL};
    job->peak_before = tm_mem_resident_peak_bytes();
    if (job->need_device)
        TM_TRY(tm_device_open(&job->device, &(tm_device_opts){.name = opts->device,
                                                              .arena_bytes = job->need_device,
                                                              .bytes_per_second = opts->device_bps,
                                                              .peers = opts->ranks.peers}));
    if (job->device) job->kernels = tm_device_kernels(job->device);
    if (job->device && !job->traits.own_processors) TM_TRY(tm_device_run(job->device, NULL, 0, start_team_there, NULL));
    return tm_exec_open(&job->exec, &(tm_exec_opts){.slab_bytes = job->slab_bytes,
                                                    .store = job->store,
                                                    .seed = opts->order_seed,
                                                    .unregistered = opts->no_pin_memory,
                                                    .comm = comm,
                                                    .shared = job_shared_frames(job),
                                                    .shared_bytes = job->need_shared,
                                                    .device = job->device});
}

/* What the arena holds has a home on disk for commits alone. */
static tm_status compile_held(tm_job *job, const job_opts *opts) {
    tm_plan **plan[] = {&job->held_in, &job->held_out};
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

tm_status job_held_out(tm_job *job) {
    return job->held_out ? job_run(job, job->held_out) : TM_OK;
}

static tm_status restore(tm_job *job) {
    TM_TRY(tm_store_restore(job->store, tm_exec_slab(job->exec)));
    return job->held_in ? job_run(job, job->held_in) : TM_OK;
}

static tm_status compile_import(tm_job *job, tm_plan **plan) {
    tm_program *p;
    TM_TRY(build_import(&p, job));
    uint64_t kept = job->need_plans;
    tm_status rc = job_compile(job, p, plan);
    job->need_plans = kept; /* it is gone before there are links */
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
    uint64_t kept = job->need_plans;
    tm_status rc = job_compile(job, p, &plan);
    job->need_plans = kept;
    tm_program_free(p);
    tm_plan_free(plan);
    return rc;
}

/* The step, then the import and whatever else the job runs, beside what the step keeps resident. */
static tm_status compile_once(tm_job *job, const job_opts *opts, const char *name, way_list *ways, uint32_t only,
                              started *out) {
    uint64_t budget = job->budget_slab;
    job->need_slab = job->need_spill = job->need_spill_largest = job->need_device = 0;
    job->need_shared = job->need_share = job->need_plans = 0;
    job->device_short = false;
    TM_TRY(job_choose(job, opts, name, ways, only, &out->plan, &out->chosen));
    count_need(job, out->plan);
    job->slab_bytes = budget;
    tm_status rc = compile_import(job, &out->import_plan);
    if (rc == TM_OK) rc = compile_walk(job);
    if (rc == TM_OK) rc = compile_held(job, opts);
    if (rc == TM_OK && ways->more) rc = ways->more(ways->ctx, job, &ways->way[out->chosen]);
    /* each plan is within the budget beside the step's share; what came before one with a larger share may not be */
    job->plans_bytes = tm_max_u64(job->plans_bytes, job->need_plans); /* the room between them is malloc's holes */
    bool beside =
        job->need_slab + job->need_share + job->plans_bytes <= budget && !tm_fault_hit("no_room_beside", NULL);
    if (rc == TM_OK && !beside) rc = tm_fail(TM_EBUDGET, "plans beside each other");
    job_plans_took(ways, out->chosen, job->need_plans); /* more than their programs bound: known to the next try */
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
    uint64_t slab = job->slab_bytes;
    TM_TRY(opts->persist_elements ? agree_on_fit(job, rc) : job_agree(job, rc));
    uint64_t least[] = {slab, opts->device_bytes};
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, least, TM_COUNT(least)));
    job_opts of_all = *opts;
    /* a rank with less than the first takes: it has said that it can, too */
    of_all.device_bytes = least[1] ? tm_max_u64(least[1], ways->minimum_device) : 0;
    job->slab_bytes = tm_max_u64(least[0], ways->minimum);
    uint32_t way = UINT32_MAX;
    if (job->ranks.rank == 0) {
        rc = job_choose(job, &of_all, name, ways, UINT32_MAX, &plan, &way);
        if (rc == TM_EBUDGET) rc = refuse(job, ways->minimum + job->fixed_bytes);
    }
    tm_plan_free(plan);
    job->slab_bytes = slab;
    TM_TRY(opts->persist_elements ? agree_on_fit(job, rc) : job_agree(job, rc));
    TM_TRY(tm_comm_broadcast(comm, TM_COMM_WORLD, 0, &way, sizeof way));
    job->agreed_way = way;
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
        rc = refuse_device(job, ways->minimum_device);
    else if (rc == TM_OK && ways->too_many)
        rc = refuse_many(job, opts, ways);
    else if (rc == TM_OK && ways->minimum > job->budget_slab)
        rc = refuse(job, ways->minimum + job->fixed_bytes);
    if (job->ranks.ranks > 1 && job->agreed_way == UINT32_MAX) rc = agree_on_way(job, opts, name, ways, rc);
    if (rc != TM_OK) return rc;
    out->chosen = job->agreed_way;
    for (uint64_t i = 0; i <= PACKING_TRIES; i++) {
        uint64_t give = tm_max_u64(job->budget_slab / 64, TM_FRAME_ALIGN) * i;
        job->slab_bytes = job->budget_slab - (i < PACKING_TRIES ? tm_min_u64(give, job->budget_slab) : 0);
        bool last = i == PACKING_TRIES;
        rc = compile_once(job, last ? &bare : opts, name, ways, last ? job->agreed_way : out->chosen, out);
        if (rc != TM_EBUDGET) return rc;
        tm_error_clear();
        if (job->device_short && job->hold_quarters > 0) job->hold_quarters--; /* another plan needs the arena */
    }
    return job->device_short ? refuse_device(job, job->need_device) : refuse(job, ways->minimum + job->fixed_bytes);
}

/* Tensors that should stay give way where they would not fit, on any rank: the minimum does not depend on them. */
static tm_status compile_in_budget(tm_job *job, const job_opts *opts, const char *name, way_list *ways, started *out) {
    job_opts o = *opts;
    o.persist_elements = 0;
    job->opts.persist_elements = opts->persist_elements;
    job->budget_slab = job->slab_bytes;
    tm_status rc = compile_all(job, opts, name, ways, out);
    if (opts->persist_elements == 0) return rc;
    if (rc == TM_OK) {
        job_state keep = job_take_state(job);
        rc = job_minimum(job, &o, ways);
        job_give_state(job, &keep);
    }
    if (job->agreed_way != UINT32_MAX) rc = agree_on_fit(job, rc);
    bool elsewhere = job->ranks.agreed && *job->ranks.agreed; /* some rank's budget was too small for something else */
    if (rc != TM_EBUDGET || elsewhere) return rc;
    tm_error_clear();
    tm_plan_free(out->plan);
    tm_plan_free(out->import_plan);
    *out = (started){0};
    job->opts.persist_elements = 0;
    job->device_short = false;
    job->hold_quarters = 4;
    job->agreed_way = UINT32_MAX;
    job->slab_bytes = job->budget_slab;
    rc = compile_all(job, &o, name, ways, out);
    if (rc == TM_OK)
        tm_warn_once("persistence",
                     "stage3_param_persistence_threshold has no effect here: what it would keep does not "
                     "fit the budget");
    return rc;
}

/* ---- memory that the ranks of a node share ------------------------------------------------------------------- */

void *job_shared_frames(const tm_job *job) {
    return job->window ? tm_comm_window_part(job->window, 0, NULL) : NULL;
}

/* Collective: each rank brings its part; on all nodes or on none. */
static tm_status open_window(tm_job *job) {
    tm_comm *comm = job->ranks.comm;
    uint32_t n = tm_comm_node_size(comm);
    tm_status rc = tm_comm_window_open(&job->window, comm, (job->need_shared + n - 1) / n);
    tm_error why = *tm_error_get();
    uint64_t all = rc == TM_OK;
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, &all, 1));
    if (all) return TM_OK;
    tm_comm_window_close(job->window);
    job->window = NULL;
    if (rc == TM_OK) return tm_fail(TM_EIO, "memory that the ranks of a node share: not on another node");
    tm_error_set(&why);
    return rc;
}

/* Where MPI has no such memory, or too little, every rank has weights of its own, and everything is planned anew. */
static tm_status share_weights(tm_job *job, const job_opts *opts, const char *name, way_list *ways, started *s) {
    char a[32], b[32];
    if (job->need_shared == 0) return TM_OK;
    tm_status rc = open_window(job);
    if (rc == TM_OK) {
        tm_log(TM_LOG_INFO, "gathered weights: %s, once for the %u ranks of a node (%s of each budget)",
               tm_format_size(job->need_shared, a, sizeof a), tm_comm_node_size(job->ranks.comm),
               tm_format_size(job->need_share, b, sizeof b));
        return TM_OK;
    }
    if (job->ranks.must_share) return job_agree(job, rc);
    tm_log(TM_LOG_WARN, "%s; each rank keeps gathered weights of its own", tm_error_get()->text);
    tm_error_clear();
    tm_plan_free(s->plan);
    tm_plan_free(s->import_plan);
    *s = (started){0};
    job->ranks.shared_by = 0;
    job->need_shared = job->need_share = 0;
    job->agreed_way = UINT32_MAX;
    job->slab_bytes = job->budget_slab;
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
    job->hold_quarters = 4;
    for (uint32_t i = 0; i < n; i++)
        if (shape_tokens(&candidate[i].shape) > tokens) tokens = shape_tokens(&candidate[i].shape);
    job->fixed_bytes = fixed_bytes(job, opts->other_bytes, tokens);
    job->slab_bytes = job->host_bytes == UINT64_MAX        ? (uint64_t)1 << 46
                      : job->host_bytes > job->fixed_bytes ? job->host_bytes - job->fixed_bytes
                                                           : 0;
    for (uint32_t i = 0; i < n; i++) K = tm_max_u64(K, candidate[i].shape.micro_batches);
    job->batch = tm_calloc(K + 1, sizeof *job->batch);
    ways.least = tm_calloc(n + 1, sizeof *ways.least);
    ways.plans = tm_calloc(n + 1, sizeof *ways.plans);
    if (!job->batch || !ways.least || !ways.plans) TM_GO(tm_nomem(K * sizeof *job->batch));
    tm_phase_begin(&job->planning, "planning", "plans", 0);
    rc = compile_in_budget(job, opts, name, &ways, &s);
    tm_phase_end(&job->planning);
    job->least_device = ways.minimum_device;
    rc = job_agree(job, rc);
    if (rc == TM_OK && !opts->plan_only) rc = share_weights(job, opts, name, &ways, &s);
    if (minimum_host_bytes)
        *minimum_host_bytes = ways.minimum_anyway == UINT64_MAX ? 0 : ways.minimum_anyway + job->fixed_bytes;
    *plan = s.plan;
    *chosen = s.chosen;
    if (rc != TM_OK || opts->plan_only) goto done;
    TM_GO(job_agree(job, open_tiers(job, opts)));
    TM_GO(job_agree(job, opts->resume ? restore(job) : import(job, s.import_plan)));
done:
    tm_plan_free(s.import_plan);
    tm_free(ways.least);
    tm_free(ways.plans);
    return rc;
}
