/* A job: one model, its state in the tiers, and the executor that runs programs over it. */
#include "train/ops_internal.h"

#include "kernels/kernels.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* ---- the model and its tensors ------------------------------------------------------------------------------- */

static tm_status match_shape(const tm_job *job, const tm_tensor *t, const tm_source_tensor *have) {
    bool same = t->ndim == have->ndim;
    for (uint32_t i = 0; same && i < t->ndim; i++) same = t->shape[i] == have->shape[i];
    if (same) return TM_OK;
    char want[96] = "", got[96] = "";
    for (uint32_t i = 0; i < t->ndim; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%llu", i ? ", " : "",
                 (unsigned long long)t->shape[i]);
    for (uint32_t i = 0; i < have->ndim && i < 4; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%llu", i ? ", " : "",
                 (unsigned long long)have->shape[i]);
    return tm_fail(TM_EINPUT,
                   "%s: %s has shape [%s], config.json asks for [%s]; weights and config do not belong together",
                   have->file ? have->file : tm_source_path(job->source), t->name, got, want);
}

static tm_status find_tensors(tm_job *job) {
    uint32_t n = tm_model_tensors(job->model);
    if (!job->source) return TM_OK;
    job->source_tensor = tm_malloc(sizeof *job->source_tensor * (n + 1));
    if (!job->source_tensor) return tm_nomem(sizeof *job->source_tensor * n);
    for (uint32_t t = 0; t < n; t++) {
        const tm_tensor *tensor = tm_model_tensor(job->model, t);
        int64_t at = tm_source_find(job->source, tensor->name);
        if (at < 0)
            return tm_fail(TM_EINPUT, "%s: the tensor %s is missing; fetch the model again",
                           tm_source_path(job->source), tensor->name);
        TM_TRY(match_shape(job, tensor, tm_source_tensor_get(job->source, (uint32_t)at)));
        job->source_tensor[t] = (uint32_t)at;
    }
    return TM_OK;
}

/* ---- state --------------------------------------------------------------------------------------------------- */

static uint32_t add_object(tm_job *job, tm_kind kind, uint32_t unit, uint32_t bundle, uint64_t bytes, bool pinned) {
    return tm_layout_object(job->layout, &(tm_object){.kind = kind,
                                                      .unit = unit,
                                                      .bundle = bundle,
                                                      .bytes = bytes,
                                                      .pageable = kind != TM_KIND_SCRATCH,
                                                      .pinned = pinned});
}

/* Small enough in all its tensors to stay, where DeepSpeed's threshold asks for that. */
static bool persists(const tm_job *job, const job_opts *opts, uint32_t part) {
    const tm_segment *seg = tm_model_part_segments(job->model, part);
    for (uint32_t i = 0; i < tm_model_part(job->model, part)->n_segments; i++)
        if (tm_model_tensor(job->model, seg[i].tensor)->elements > opts->persist_elements) return false;
    return opts->persist_elements > 0;
}

static part_state describe_part(const tm_job *job, uint32_t part) {
    const job_ranks *r = &job->ranks;
    part_state s = {.lo = TM_NO_OBJECT,
                    .exp_avg = TM_NO_OBJECT,
                    .exp_avg_sq = TM_NO_OBJECT,
                    .grad = TM_NO_OBJECT,
                    .elements = tm_model_part(job->model, part)->elements,
                    .weights =
                        part_kept_whole(job->model, part, r->keep_elements) ? (holding){0, r->ranks} : r->weights};
    s.small = job->optimizer && state_is_small(job, part);
    s.hi_tiles = held_tiles(s.elements, r->ranks, s.weights);
    s.tiles = held_tiles(s.elements, r->ranks, r->own);
    s.sum_tiles = held_tiles(s.elements, r->ranks, r->sums);
    return s;
}

/* Gradients that are handed round lie side by side, the others beside the states that they update. */
static void add_moments(tm_job *job, uint32_t part, uint32_t *bundle) {
    part_state *s = &job->part[part];
    uint32_t unit = tm_model_part(job->model, part)->unit, at = tm_layout_objects(job->layout), first = at;
    bool apart = job->parks && gradients_are_shared(job);
    const tm_kind kind[] = {TM_KIND_WEIGHT_LO, TM_KIND_EXP_AVG, TM_KIND_EXP_AVG_SQ, TM_KIND_GRAD};
    uint32_t *id[] = {&s->lo, &s->exp_avg, &s->exp_avg_sq, &s->grad}, kinds = job->parks && !apart ? 4 : 3;
    if (s->tiles == 0) return;
    for (uint32_t k = 0; k < kinds; k++)
        if (state_bytes(job, part, kind[k], 1) > 0) *id[k] = at++;
    s->stride = s->grad_stride = at - first;
    for (uint32_t i = 0; i < s->tiles; i++)
        for (uint32_t k = 0; k < kinds; k++)
            if (*id[k] != TM_NO_OBJECT)
                (void)add_object(job, kind[k], unit, (*bundle)++,
                                 state_bytes(job, part, kind[k], own_tile(job, part, i).n), false);
    if (!apart) return;
    s->grad = tm_layout_objects(job->layout);
    s->grad_stride = 1;
    for (uint32_t i = 0; i < s->tiles; i++)
        (void)add_object(job, TM_KIND_GRAD, unit, *bundle,
                         state_bytes(job, part, TM_KIND_GRAD, own_tile(job, part, i).n), false);
    ++*bundle;
}

static void add_part(tm_job *job, const job_opts *opts, uint32_t part, uint32_t *bundle) {
    part_state *s = &job->part[part];
    *s = describe_part(job, part);
    s->hi = tm_layout_objects(job->layout);
    for (uint32_t i = 0; i < s->hi_tiles; i++)
        (void)add_object(job, TM_KIND_WEIGHT_HI, tm_model_part(job->model, part)->unit, *bundle,
                         state_bytes(job, part, TM_KIND_WEIGHT_HI, hi_tile(job, part, i).n), persists(job, opts, part));
    ++*bundle;
    if (job->optimizer) add_moments(job, part, bundle);
}

static uint32_t objects_of(const tm_job *job, const part_state *s) {
    bool apart = job->optimizer && job->parks && gradients_are_shared(job);
    return s->hi_tiles + s->tiles * (s->stride + (apart ? 1 : 0));
}

job_state job_take_state(tm_job *job) {
    job_state s = {job->layout, job->part, job->kv, job->parks};
    job->layout = NULL;
    job->part = NULL;
    job->kv = NULL;
    return s;
}

void job_free_state(job_state *s) {
    tm_layout_free(s->layout);
    tm_free(s->part);
    tm_free(s->kv);
    *s = (job_state){0};
}

void job_give_state(tm_job *job, const job_state *s) {
    job_state old = job_take_state(job);
    job_free_state(&old);
    job->layout = s->layout;
    job->part = s->part;
    job->kv = s->kv;
    job->parks = s->parks;
}

tm_status job_add_state(tm_job *job, const job_opts *opts, bool parks) {
    job_give_state(job, &(job_state){.parks = parks});
    uint32_t parts = tm_model_parts(job->model), units = tm_model_units(job->model), bundle = 0, want = 0;
    TM_TRY(tm_layout_create(&job->layout));
    job->part = tm_calloc(parts + 1, sizeof *job->part);
    if (!job->part) return tm_nomem(parts * sizeof *job->part);
    for (uint32_t p = 0; p < parts; p++) {
        add_part(job, opts, p, &bundle);
        want += objects_of(job, &job->part[p]);
    }
    if (opts->kv_capacity) {
        job->kv = tm_malloc(sizeof *job->kv * units);
        if (!job->kv) return tm_nomem(sizeof *job->kv * units);
        job->kv_rows = opts->kv_rows;
        job->kv_capacity = opts->kv_capacity;
        for (uint32_t u = 0; u < units; u++) {
            uint64_t bytes = (uint64_t)tm_model_unit(job->model, u)->kv_bytes * opts->kv_rows * opts->kv_capacity;
            job->kv[u] = bytes ? add_object(job, TM_KIND_SCRATCH, u, bundle++, bytes, false) : TM_NO_OBJECT;
            want += bytes ? 1 : 0;
        }
    }
    return tm_layout_objects(job->layout) == want ? TM_OK : tm_nomem(want * sizeof(tm_object));
}

const char *job_config_name(const char *model, char *buf, size_t cap) {
    snprintf(buf, cap, tm_path_is_dir(model) ? "%s/config.json" : "%s", model);
    return buf;
}

void forward_opts(job_opts *o, const tm_tier_args *tiers) {
    o->host_bytes = tiers->host_budget ? tiers->host_budget : tm_mem_available_bytes() / 5 * 4;
    if (!tiers->offload_path) return;
    o->paths = &tiers->offload_path;
    o->n_paths = 1;
}

tm_status job_open(tm_job **out, const job_opts *opts) {
    tm_model_config config;
    char name[4096];
    size_t len;
    tm_status rc;
    tm_job *job = tm_calloc(1, sizeof *job);
    if (!job) return tm_nomem(sizeof *job);
    job_catch_signals();
    job->dtype = opts->dtype;
    job->optimizer = opts->optimizer;
    job->update = opts->update ? opts->update : tm_optimizer_find("adamw");
    if (opts->update)
        job->update_opts = opts->update_opts;
    else
        tm_optim_defaults(job->update, &job->update_opts);
    job->seed = opts->seed;
    job->ranks = opts->ranks;
    if (!job->ranks.comm) job->ranks = (job_ranks){.ranks = 1, .weights = {0, 1}, .own = {0, 1}, .sums = {0, 1}};
    job->report_at = tm_calloc(job->ranks.ranks, sizeof *job->report_at);
    job->agreed_way = UINT32_MAX;
    job->reported_peak = tm_calloc(job->ranks.ranks, sizeof *job->reported_peak);
    if (job->ranks.comm) job->comm_counts = tm_calloc(2 * (size_t)job->ranks.ranks, sizeof *job->comm_counts);
    if (!job->report_at || !job->reported_peak || (job->ranks.comm && !job->comm_counts))
        TM_GO(tm_nomem(job->ranks.ranks * sizeof *job->report_at));
    job->host_bytes = opts->host_bytes;
    if (opts->device_bytes && job->ranks.ranks > 1)
        TM_GO(tm_fail(TM_EINPUT, "memory.device \"%s\" computes on one rank in this version, not on %u; use \"cpu\"",
                      opts->device, job->ranks.ranks));
    TM_GO(opts->init_random || opts->config_only ? tm_source_open_bare(&job->source, opts->model)
                                                 : tm_source_open(&job->source, opts->model));
    const char *json = tm_source_config(job->source, &len);
    TM_GO(tm_model_config_parse(&config, json, len, job_config_name(opts->model, name, sizeof name)));
    TM_GO(tm_model_create(&job->model, &config, opts->dtype));
    if (opts->init_random || opts->config_only) {
        tm_source_close(job->source);
        job->source = NULL;
    }
    TM_GO(find_tensors(job));
    TM_GO(job_add_state(job, opts, false));
    *out = job;
done:
    if (rc != TM_OK) job_close(job);
    return rc;
}

uint64_t job_host_peak(const tm_job *job) {
    uint64_t all = tm_mem_resident_peak_bytes();
    const tm_device_caps *caps = job->device ? tm_device_get_caps(job->device) : NULL;
    return caps && caps->counts_as_host ? all - tm_min_u64(all, caps->arena_bytes) : all;
}

static void say_device(tm_job *job) {
    tm_device_stats s;
    if (!job->device) return;
    tm_device_get_stats(job->device, &s);
    tm_log(
        TM_LOG_DEBUG,
        "device %s: %llu operations, %.3f s opening and closing their windows; copied %llu bytes in (%.3f s), %llu out "
        "(%.3f s)",
        tm_device_get_caps(job->device)->name, (unsigned long long)s.operations, (double)s.open_ns * 1e-9,
        (unsigned long long)s.copied_bytes[TM_DEVICE_IN], (double)s.copy_ns[TM_DEVICE_IN] * 1e-9,
        (unsigned long long)s.copied_bytes[TM_DEVICE_OUT], (double)s.copy_ns[TM_DEVICE_OUT] * 1e-9);
}

void job_close(tm_job *job) {
    if (!job) return;
    tm_exec_close(job->exec);
    say_device(job);
    tm_device_close(job->device);
    comm_ops_close(job->comm_ops);
    tm_free(job->report_at);
    tm_free(job->reported_peak);
    tm_free(job->comm_counts);
    if (job->keep_state)
        tm_store_close(job->store);
    else if (tm_store_remove(job->store) != TM_OK)
        tm_log(TM_LOG_WARN, "%s", tm_error_get()->text);
    tm_layout_free(job->layout);
    tm_source_close(job->source);
    tm_model_free(job->model);
    tm_free(job->part);
    tm_free(job->kv);
    tm_free(job->batch);
    tm_free(job->source_tensor);
    tm_free(job->no_decay);
    tm_free(job);
}

/* ---- the budget: what is not a frame ------------------------------------------------------------------------- */

/* The program, its libraries, stacks and the matrix library's buffers, as constants; and what grows with the state:
 * plans (about a dozen operations an object) and a checksum a page. Stated, not measured at run time, so that `plan`
 * and `train` agree; tests hold VmHWM against the budget. */
enum { FIXED_MIB = 24, PER_THREAD_MIB = 4, PLAN_BYTES_PER_OBJECT = 2560, WINDOW_GRAIN = 2048 };
/* Open MPI 4.1 takes 11 MiB a rank (ob1 over shared memory or TCP, UCX loaded or not) and up to 0.14 MiB for every rank
 * that it talks to; a fabric with buffers of its own may take more. */
enum { MPI_MIB = 16, MPI_KIB_PER_RANK = 160 };

/* On nodes of equal size a rank talks to those of its node, and to one on each of the others. */
static uint64_t mpi_bytes(const struct tm_comm *c) {
    uint32_t peers = tm_comm_uniform(c) ? tm_comm_node_size(c) + tm_comm_nodes(c) : tm_comm_size(c);
    return MPI_MIB * TM_MIB + (uint64_t)peers * MPI_KIB_PER_RANK * 1024;
}

static uint64_t fixed_bytes(const tm_job *job, uint64_t other) {
    uint64_t bytes = (FIXED_MIB + (uint64_t)PER_THREAD_MIB * tm_kernels_threads()) * TM_MIB + other;
    if (job->ranks.ranks > 1) bytes += mpi_bytes(job->ranks.comm) + TM_COMM_WORKSPACE_BYTES;
    if (job->opts.device_bytes) /* the count of windows on a page; and copies, about as many as there are transfers */
        bytes += tm_min_u64(job->opts.device_bytes, (uint64_t)1 << 36) / WINDOW_GRAIN +
                 (uint64_t)PLAN_BYTES_PER_OBJECT * tm_layout_objects(job->layout);
    for (uint32_t i = 0; i < tm_layout_objects(job->layout); i++)
        bytes += PLAN_BYTES_PER_OBJECT + tm_layout_get(job->layout, i)->bytes / TM_PAGE_BYTES * sizeof(uint64_t);
    return bytes;
}

void job_plan_opts(const tm_job *job, const job_opts *opts, tm_plan_opts *po) {
    *po = (tm_plan_opts){.cache = !opts->cache_none,
                         .spill = opts->n_paths > 0,
                         .window_mib = opts->window_mib,
                         .device_bytes = opts->device_bytes,
                         .cost = job->cost,
                         .cost_ctx = job->cost_ctx,
                         .machine = job->machine,
                         .no_read_ahead = opts->no_read_ahead,
                         .no_write_behind = opts->no_write_behind};
    memcpy(po->pinned, opts->pinned, sizeof po->pinned);
    memcpy(po->max_resident_bytes, opts->max_resident_bytes, sizeof po->max_resident_bytes);
    if (opts->n_paths == 0)
        for (int k = 0; k < TM_KINDS; k++) po->pinned[k] = true;
    po->slab_bytes = job->slab_bytes;
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

/* `least`: of the arena; 0: not known, the plan has said it. */
static tm_status refuse_device(tm_job *job, uint64_t least) {
    char want[32], have[32];
    job->device_short = true;
    job->need_device = least;
    return tm_fail(TM_EBUDGET,
                   "memory.device_budget %s (%llu bytes) is too small: this job needs at least %llu bytes (%s); "
                   "raise it, or lower seq_len or the micro-batch",
                   tm_format_size(job->opts.device_bytes, have, sizeof have),
                   (unsigned long long)job->opts.device_bytes, (unsigned long long)least,
                   tm_format_size(least, want, sizeof want));
}

static void count_need(tm_job *job, const tm_plan *plan) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    job->need_slab = tm_max_u64(job->need_slab, info->slab_bytes);
    job->need_spill = tm_max_u64(job->need_spill, info->spill_file_bytes);
    job->need_device = tm_max_u64(job->need_device, info->device_bytes);
    job->need_spill_largest = tm_max_u64(job->need_spill_largest, info->spill_largest_bytes);
}

tm_status job_compile(tm_job *job, const tm_program *program, tm_plan **plan) {
    tm_plan_opts po;
    job_plan_opts(job, &job->opts, &po);
    if (po.window_mib == 0 || po.window_mib > 64) po.window_mib = 64;
    uint64_t minimum = 0, arena = 0;
    if (po.device_bytes) TM_TRY(tm_plan_device_minimum(program, &arena));
    if (arena > po.device_bytes) return refuse_device(job, arena);
    tm_status rc = tm_plan_compile(plan, job->layout, program, &po, &minimum);
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
    TM_TRY(job_run(job, plan));
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
                                                  .commits = opts->commits,
                                                  .name = opts->run_name,
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

static tm_status open_tiers(tm_job *job, const job_opts *opts) {
    TM_TRY(open_store(job, opts));
    if (job->ranks.ranks > 1) TM_TRY(comm_ops_open(&job->comm_ops, job));
    (void)malloc_trim(0); /* what planning used goes back before the slab is touched */
    job->slab_bytes = job->need_slab;
    tm_exec_comm comm = {job->comm_ops, job->comm_ops ? comm_ops_submit : NULL};
    if (job->need_device)
        TM_TRY(tm_device_open(&job->device, &(tm_device_opts){.name = opts->device,
                                                              .arena_bytes = job->need_device,
                                                              .bytes_per_second = opts->device_bps}));
    return tm_exec_open(&job->exec, &(tm_exec_opts){.slab_bytes = job->slab_bytes,
                                                    .store = job->store,
                                                    .seed = opts->order_seed,
                                                    .unregistered = opts->no_pin_memory,
                                                    .comm = comm,
                                                    .device = job->device});
}

static tm_status compile_import(tm_job *job, tm_plan **plan) {
    tm_program *p;
    TM_TRY(build_import(&p, job));
    tm_status rc = job_compile(job, p, plan);
    tm_program_free(p);
    return rc;
}

/* The step, then the import and whatever else the job runs, beside what the step keeps resident. */
static tm_status compile_once(tm_job *job, const job_opts *opts, const char *name, way_list *ways, uint32_t only,
                              started *out) {
    uint64_t budget = job->budget_slab;
    job->need_slab = job->need_spill = job->need_spill_largest = job->need_device = 0;
    TM_TRY(job_choose(job, opts, name, ways, only, &out->plan, &out->chosen));
    if (opts->plan_only) return TM_OK;
    count_need(job, out->plan);
    job->slab_bytes = budget;
    tm_status rc = compile_import(job, &out->import_plan);
    if (rc == TM_OK && ways->more) rc = ways->more(ways->ctx, job, &ways->way[out->chosen]);
    if (rc != TM_EBUDGET) return rc;
    tm_plan_free(out->plan);
    tm_plan_free(out->import_plan);
    out->plan = out->import_plan = NULL;
    return rc;
}

/* Ranks run one way; what stays resident is each rank's own affair. The first chooses, for the least budget of all. */
static tm_status agree_on_way(tm_job *job, const job_opts *opts, const char *name, way_list *ways, tm_status rc) {
    struct tm_comm *comm = job->ranks.comm;
    tm_plan *plan = NULL;
    uint64_t slab = job->slab_bytes;
    TM_TRY(job_agree(job, rc));
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, &job->slab_bytes, 1));
    uint32_t way = UINT32_MAX;
    if (job->ranks.rank == 0) {
        rc = job_choose(job, opts, name, ways, UINT32_MAX, &plan, &way);
        if (rc == TM_EBUDGET) rc = refuse(job, ways->minimum + job->fixed_bytes);
    }
    tm_plan_free(plan);
    job->slab_bytes = slab;
    TM_TRY(job_agree(job, rc));
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
    if (rc == TM_OK && ways->minimum == UINT64_MAX) return refuse_device(job, ways->minimum_device);
    if (rc == TM_OK && ways->minimum > job->budget_slab) rc = refuse(job, ways->minimum + job->fixed_bytes);
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
    }
    return refuse(job, ways->minimum + job->fixed_bytes);
}

/* Tensors that should stay give way where they would not fit: the minimum does not depend on them. */
static tm_status compile_in_budget(tm_job *job, const job_opts *opts, const char *name, way_list *ways, started *out) {
    job_opts o = *opts;
    o.persist_elements = 0;
    job->budget_slab = job->slab_bytes;
    tm_status rc = compile_all(job, opts, name, ways, out);
    if (opts->persist_elements == 0) return rc;
    if (rc == TM_OK) {
        job_state keep = job_take_state(job);
        rc = job_minimum(job, &o, ways);
        job_give_state(job, &keep);
    }
    if (rc != TM_EBUDGET) return rc;
    tm_error_clear();
    job->opts.persist_elements = 0;
    job->slab_bytes = job->budget_slab;
    rc = compile_all(job, &o, name, ways, out);
    if (rc == TM_OK)
        tm_warn_once("persistence",
                     "stage3_param_persistence_threshold has no effect here: what it would keep does not "
                     "fit the budget");
    return rc;
}

tm_status job_start(tm_job *job, const job_opts *opts, const char *name, const pass_opts *candidate, uint32_t n,
                    tm_plan **plan, uint32_t *chosen, uint64_t *minimum_host_bytes, job_more_fn more, void *ctx) {
    uint64_t K = 0;
    started s = {0};
    way_list ways = {.way = candidate, .n = n, .more = more, .ctx = ctx};
    tm_status rc;
    job->opts = *opts;
    job->fixed_bytes = fixed_bytes(job, opts->other_bytes);
    job->slab_bytes = job->host_bytes == UINT64_MAX        ? (uint64_t)1 << 46
                      : job->host_bytes > job->fixed_bytes ? job->host_bytes - job->fixed_bytes
                                                           : 0;
    for (uint32_t i = 0; i < n; i++) K = tm_max_u64(K, candidate[i].shape.micro_batches);
    job->batch = tm_calloc(K + 1, sizeof *job->batch);
    ways.least = tm_calloc(n + 1, sizeof *ways.least);
    if (!job->batch || !ways.least) TM_GO(tm_nomem(K * sizeof *job->batch));
    rc = compile_in_budget(job, opts, name, &ways, &s);
    if (minimum_host_bytes) *minimum_host_bytes = ways.minimum == UINT64_MAX ? 0 : ways.minimum + job->fixed_bytes;
    *plan = s.plan;
    *chosen = s.chosen;
    rc = job_agree(job, rc);
    if (rc != TM_OK || opts->plan_only) goto done;
    TM_GO(job_agree(job, open_tiers(job, opts)));
    TM_GO(job_agree(job,
                    opts->resume ? tm_store_restore(job->store, tm_exec_slab(job->exec)) : import(job, s.import_plan)));
done:
    tm_plan_free(s.import_plan);
    tm_free(ways.least);
    return rc;
}

/* ---- running ------------------------------------------------------------------------------------------------- */

static tm_status run_op(void *ctx, const tm_op *op, void *const *operand) {
    TM_TRY(job_check_stop(ctx));
    return job_run_op(ctx, op, operand);
}

tm_status job_run(tm_job *job, const tm_plan *plan) {
    return tm_exec_run(job->exec, plan, run_op, job);
}

static tm_status run_program(tm_job *job, tm_program *program) {
    tm_plan *plan = NULL;
    tm_status rc = job_compile(job, program, &plan);
    tm_program_free(program);
    if (rc == TM_OK) rc = job_run(job, plan);
    tm_plan_free(plan);
    return rc;
}

tm_status job_state_hash(tm_job *job, uint64_t step, char hex[33]) {
    tm_program *program;
    job->hash = XXH3_createState();
    if (!job->hash) return tm_nomem(576);
    XXH3_128bits_reset(job->hash);
    tm_status rc = build_walk(&program, job, true, 0);
    if (rc == TM_OK) rc = run_program(job, program);
    XXH3_128bits_update(job->hash, &step, sizeof step);
    XXH128_hash_t h = XXH3_128bits_digest(job->hash);
    XXH3_freeState(job->hash);
    job->hash = NULL;
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    return rc;
}

static tm_status put_values(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, const float *values) {
    return tm_hf_writer_put_f32(ctx, tensor, first, n, values);
}

tm_status job_export(tm_job *job, const char *dir, tm_fmt dtype) {
    uint32_t n = tm_model_tensors(job->model);
    tm_hf_writer *writer = NULL;
    tm_program *program;
    tm_status rc;
    tm_hf_tensor *list = tm_calloc(n + 1, sizeof *list);
    if (!list) return tm_nomem(n * sizeof *list);
    for (uint32_t i = 0; i < n; i++) {
        const tm_tensor *t = tm_model_tensor(job->model, i);
        list[i].name = t->name;
        list[i].ndim = t->ndim;
        memcpy(list[i].shape, t->shape, sizeof t->shape);
    }
    if (job->ranks.rank == 0) { /* the other ranks send what they have */
        TM_GO(tm_make_dirs(dir));
        TM_GO(tm_hf_writer_create(&writer, dir, list, n, dtype, 0));
    }
    /* bf16 is what computed: the masters' nearest, ties included */
    TM_GO(build_walk(&program, job, false, dtype == TM_FMT_BF16 && job->dtype == TM_BF16 ? WHAT_COMPUTE : WHAT_MASTER));
    job->take_values = writer ? put_values : NULL;
    job->take_ctx = writer;
    TM_GO(run_program(job, program));
    if (writer) rc = tm_hf_writer_commit(writer);
    writer = NULL;
done:
    job->take_values = NULL;
    tm_hf_writer_abandon(writer);
    tm_free(list);
    return rc;
}
