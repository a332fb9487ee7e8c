/* A job: one model, its state in the tiers, and the executor that runs programs over it. */
#include "io/file/file.h"
#include "step/ops_internal.h"

#include <stdatomic.h>
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

static tm_status find_saved(const tm_job *job) {
    const tm_adapter_folder *saved = job->opts.saved;
    for (uint32_t t = 0; saved && t < tm_model_tensors(job->model); t++) {
        const tm_tensor *tensor = tm_model_tensor(job->model, t);
        int64_t at = job_saved_tensor(job, t);
        bool first = tensor->role == TM_TENSOR_FIRST_A || tensor->role == TM_TENSOR_FIRST_B;
        if (at < 0 && (tensor->role == TM_TENSOR_BASE || first)) continue;
        if (at < 0)
            return tm_fail(TM_EINPUT, "%s: has no %s; the folder is not whole, or of another model",
                           tm_adapter_folder_path(saved), tensor->name);
        const tm_adapter_tensor *have = tm_adapter_folder_get(saved, (uint32_t)at);
        const tm_source_tensor like = {.ndim = have->ndim,
                                       .shape = {have->shape[0], have->shape[1], have->shape[2], have->shape[3]},
                                       .file = tm_adapter_folder_path(saved)};
        TM_TRY(match_shape(job, tensor, &like));
    }
    return TM_OK;
}

static tm_status find_tensors(tm_job *job) {
    uint32_t n = tm_model_tensors(job->model);
    TM_TRY(find_saved(job));
    if (!job->source) return TM_OK;
    job->source_tensor = tm_malloc(sizeof *job->source_tensor * (n + 1));
    if (!job->source_tensor) return tm_nomem(sizeof *job->source_tensor * n);
    for (uint32_t t = 0; t < n; t++) {
        const tm_tensor *tensor = tm_model_tensor(job->model, t);
        job->source_tensor[t] = UINT32_MAX;
        if (tensor->role != TM_TENSOR_BASE) continue;
        const char *name = tm_model_tensor(job->model, tensor->of)->name; /* a head that was tied: the embedding's */
        int64_t at = tm_source_find(job->source, name);
        if (at < 0)
            return tm_fail(TM_EINPUT, "%s: the tensor %s is missing; fetch the model again",
                           tm_source_path(job->source), name);
        TM_TRY(match_shape(job, tensor, tm_source_tensor_get(job->source, (uint32_t)at)));
        job->source_tensor[t] = (uint32_t)at;
    }
    return TM_OK;
}

static tm_status open_pissa(tm_job *job) {
    const tm_adapter_config *a = job->opts.adapter;
    if (!a || a->init != TM_ADAPTER_INIT_PISSA || job->opts.config_only) return TM_OK;
    if (!job->source)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s: init_lora_weights \"%s\" is made of a model's weights, and this one has none",
                       job->opts.model, a->init_word);
    return tm_pissa_open(&job->pissa, a, job->source, job->opts.saved, job->seed);
}

/* A plan counts what goes along, and what is read where it lies, where it is there. */
static void look_at_weights(tm_job *job, const char *model) {
    tm_source *whole;
    if (tm_source_open(&whole, model) != TM_OK) {
        tm_error_clear();
        return;
    }
    tm_source_close(job->source);
    job->source = whole;
}

static bool source_has(void *source, const char *name) {
    return tm_source_find(source, name) >= 0;
}

const char *job_config_name(const char *model, char *buf, size_t cap) {
    snprintf(buf, cap, tm_path_is_dir(model) ? "%s/config.json" : "%s", model);
    return buf;
}

tm_status job_open(tm_job **out, const job_opts *opts) {
    tm_model_config config;
    char name[4096];
    size_t len;
    tm_status rc;
    tm_job *job = tm_calloc(1, sizeof *job);
    if (!job) return tm_nomem(sizeof *job);
    tm_stop_catch();
    job->dtype = opts->dtype;
    job->optimizer = opts->optimizer;
    job_set_objective(job, opts->objective, opts->reference_column);
    if (opts->packed) job->columns |= TM_COLUMN_BEGIN;
    if (opts->kv_rows) job->columns |= TM_COLUMN_CACHE_ROW;
    job->update = opts->update ? opts->update : tm_optimizer_find("adamw");
    if (opts->update)
        job->update_opts = opts->update_opts;
    else
        tm_optim_defaults(job->update, &job->update_opts);
    job->name_prefix = opts->adapter ? "base_model.model." : "";
    job->seed = opts->seed;
    job->ranks = opts->ranks;
    if (!job->ranks.comm) job->ranks = (job_ranks){.ranks = 1, .weights = {0, 1}, .own = {0, 1}, .sums = {0, 1}};
    job->step.report_at = tm_calloc(job->ranks.ranks, sizeof *job->step.report_at);
    job->step.reported_peak = tm_calloc(job->ranks.ranks, sizeof *job->step.reported_peak);
    if (job->ranks.comm) job->comm.counts = tm_calloc(2 * (size_t)job->ranks.ranks, sizeof *job->comm.counts);
    if (!job->step.report_at || !job->step.reported_peak || (job->ranks.comm && !job->comm.counts))
        TM_GO(tm_nomem(job->ranks.ranks * sizeof *job->step.report_at));
    if (opts->device_bytes && job->ranks.must_share)
        TM_GO(tm_fail(TM_EINPUT,
                      "memory.shared_window is for weights that are computed with where they lie: leave it out with "
                      "memory.device \"%s\"",
                      opts->device));
    if (opts->device_bytes) job->ranks.shared_by = 0; /* they go on to the arena */
    const char *from = opts->weights ? opts->weights : opts->model;
    TM_GO(opts->init_random || opts->config_only ? tm_source_open_bare(&job->source, from)
                                                 : tm_source_open(&job->source, from));
    const char *json = tm_source_config(job->source, &len);
    TM_GO(tm_model_config_parse(&config, json, len, job_config_name(opts->model, name, sizeof name)));
    if (config.composite && opts->init_random)
        TM_GO(tm_fail(TM_EINPUT,
                      "%s: init \"random\" of a model with other parts than text: those have no weights then; name a "
                      "folder with weights, or a config.json of the text model alone",
                      opts->model));
    bool in_place = opts->adapter || opts->freeze || opts->roles;
    bool looks = opts->config_only && !opts->init_random && !opts->unwritten;
    if (looks && (config.composite || in_place)) look_at_weights(job, opts->model);
    (void)tm_model_find_names(&config, source_has, job->source); /* without it the first tensor is missed below */
    TM_GO(job_create_model(&job->model, &config, opts));
    tm_model_set_positions(job->model, opts->positions);
    job->opts = *opts;
    TM_GO(job_set_device(job, opts));
    if (tm_source_tensors(job->source) == 0) {
        tm_source_close(job->source);
        job->source = NULL;
    }
    if (!opts->weights && !(job->source && tm_source_is_coded(job->source))) job->four_bits = opts->four_bits;
    TM_GO(find_tensors(job));
    TM_GO(job_list_carried(job));
    TM_GO(open_pissa(job));
    TM_GO(job_add_state(job, opts, false));
    *out = job;
done:
    if (rc != TM_OK) job_close(job);
    return rc;
}

uint64_t job_planned_peak(const tm_job *job) {
    const job_account *a = &job->account;
    return job->budget.fixed_bytes + a->limits.plans_bytes + a->needs.slab + a->needs.share;
}

uint64_t job_host_peak(const tm_job *job) {
    uint64_t all = tm_mem_resident_peak_bytes();
    const tm_device_caps *caps = job->tiers.device ? tm_device_get_caps(job->tiers.device) : NULL;
    if (job->tiers.window)
        all = all - tm_min_u64(all, tm_comm_window_bytes(job->tiers.window)) + job->account.needs.share;
    if (!caps || !caps->traits.counts_as_host) return all;
    return tm_max_u64(all - tm_min_u64(all, caps->arena_bytes), job->tiers.peak_before);
}

static void say_device(tm_job *job) {
    tm_device_stats s;
    if (!job->tiers.device) return;
    tm_device_get_stats(job->tiers.device, &s);
    tm_log(
        TM_LOG_DEBUG,
        "device %s: %llu operations, %.3f s opening and closing their windows; copied %llu bytes in (%.3f s), %llu out "
        "(%.3f s)",
        tm_device_get_caps(job->tiers.device)->name, (unsigned long long)s.operations, (double)s.open_ns * 1e-9,
        (unsigned long long)s.copied_bytes[TM_DEVICE_IN], (double)s.copy_ns[TM_DEVICE_IN] * 1e-9,
        (unsigned long long)s.copied_bytes[TM_DEVICE_OUT], (double)s.copy_ns[TM_DEVICE_OUT] * 1e-9);
}

void job_close(tm_job *job) {
    if (!job) return;
    tm_exec_close(job->tiers.exec);
    for (int way = 0; way < TM_RESIDENT_WAYS; way++) tm_plan_free(job->tiers.resident[way]);
    say_device(job);
    tm_comm_window_close(job->tiers.window);
    tm_device_close(job->tiers.device);
    comm_ops_close(job->comm.ops);
    tm_free(job->step.report_at);
    tm_free(job->step.reported_peak);
    tm_free(job->comm.counts);
    if (job->tiers.keep_state)
        tm_store_close(job->tiers.store);
    else if (tm_store_remove(job->tiers.store) != TM_OK)
        tm_log(TM_LOG_WARN, "%s", tm_error_get()->text);
    tm_layout_free(job->layout);
    tm_pissa_close(job->pissa);
    tm_source_close(job->source);
    tm_model_free(job->model);
    TM_FREE_ALL(job->part, job->frozen, job->kv, job->kv_page, job->step.batch, job->source_tensor,
                job->carried.foreign, job->step.no_decay, job->step.rate, job);
}

static void show(tm_job *job) {
    if (!job->sinks.show) return;
    uint32_t done = atomic_fetch_add_explicit(&job->progress.shown_ops, 1, memory_order_relaxed);
    job->sinks.show(job->sinks.show_ctx, (double)done / (double)tm_max_u64(job->progress.run_ops, 1));
}

static tm_status run_op(void *ctx, const tm_op *op, void *const *operand) {
    TM_TRY(job_check_stop(ctx));
    show(ctx);
    return job_run_op(ctx, op, operand);
}

/* Of a plan: those that are given to run_op. */
static uint32_t handled(const tm_plan *plan) {
    uint32_t n = 0, handled = 0;
    const tm_plan_op *op = tm_plan_ops(plan, &n);
    for (uint32_t i = 0; i < n; i++) handled += op[i].engine == TM_ENGINE_CPU || op[i].engine == TM_ENGINE_DEVICE;
    return handled;
}

tm_status job_run(tm_job *job, const tm_plan *plan) {
    if (job->sinks.show) {
        job->progress.run_ops = handled(plan);
        atomic_store_explicit(&job->progress.shown_ops, 0, memory_order_relaxed);
    }
    return tm_exec_run(job->tiers.exec, plan, run_op, job);
}

static void show_phase(void *ctx, double share) {
    job_phase *p = ctx;
    tm_phase_at(&p->phase, p->base + (uint64_t)(share * (double)p->span));
}

void job_phase_begin(job_phase *p, tm_job *job, const char *what, const char *unit, uint64_t total) {
    *p = (job_phase){.job = job, .span = total, .before = job->sinks.show, .before_ctx = job->sinks.show_ctx};
    tm_phase_begin(&p->phase, what, unit, total);
    job->sinks.show = show_phase;
    job->sinks.show_ctx = p;
}

void job_phase_end(job_phase *p) {
    p->job->sinks.show = p->before;
    p->job->sinks.show_ctx = p->before_ctx;
    p->phase.done = p->base + (p->base < p->phase.total ? p->span : 0);
    tm_phase_end(&p->phase);
}

/* In bytes of the weights as they are computed with. */
static tm_status run_program(tm_job *job, tm_program *program, const char *what) {
    tm_plan *plan = NULL;
    job_phase phase;
    tm_status rc = job_compile(job, program, &plan);
    tm_program_free(program);
    job_phase_begin(&phase, job, what, NULL, job_weight_bytes(job));
    if (rc == TM_OK) rc = job_run(job, plan);
    job_phase_end(&phase);
    tm_plan_free(plan);
    return rc;
}

uint64_t job_weight_bytes(const tm_job *job) {
    return tm_model_learning_parameters(job->model) * tm_dtype_bytes(job->dtype);
}

tm_status job_state_hash(tm_job *job, uint64_t step, char hex[33]) {
    tm_program *program;
    job->hash = XXH3_createState();
    if (!job->hash) return tm_nomem(576);
    XXH3_128bits_reset(job->hash);
    tm_status rc = build_walk(&program, job, true, 0);
    if (rc == TM_OK) rc = run_program(job, program, "hashing the state");
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

/* ---- what is carried along ---- */

uint64_t job_foreign_bytes(const tm_job *job, uint32_t *count) {
    uint64_t bytes = 0;
    *count = job->carried.n_foreign;
    for (uint32_t i = 0; i < *count; i++) {
        const tm_source_tensor *t = tm_source_tensor_get(job->source, job->carried.foreign[i]);
        bytes += tm_fmt_is_coded(t->fmt) ? t->elements * sizeof(float) : t->bytes;
    }
    return bytes;
}

uint32_t job_dropped(const tm_job *job, const char **first) {
    const job_carried *k = &job->carried;
    *first = k->dropped ? tm_source_tensor_get(job->source, k->first_dropped)->name : NULL;
    return k->dropped;
}

uint64_t job_export_bytes(const tm_job *job, tm_fmt dtype) {
    uint64_t bytes = 0;
    uint32_t n;
    if (job->opts.adapter) {
        (void)tm_fmt_bytes(dtype, tm_model_learning_parameters(job->model), &bytes);
        return bytes;
    }
    (void)tm_fmt_bytes(dtype, tm_model_parameters(job->model), &bytes);
    return bytes + job_foreign_bytes(job, &n);
}

/* The foreign tensors, to list[n] and on; how many there are then. */
static uint32_t list_foreign(const tm_job *job, tm_hf_tensor *list, uint32_t n) {
    for (uint32_t i = 0; i < job->carried.n_foreign; i++) {
        const tm_source_tensor *t = tm_source_tensor_get(job->source, job->carried.foreign[i]);
        list[n] =
            (tm_hf_tensor){.name = t->name, .ndim = t->ndim, .as_stored = !tm_fmt_is_coded(t->fmt), .fmt = t->fmt};
        memcpy(list[n++].shape, t->shape, sizeof t->shape);
    }
    return n;
}

enum { EXPORT_PIECE = 1 << 16 }; /* bytes, beside the budget's plans */

static tm_status copy_bytes(const tm_source *src, uint32_t from, tm_hf_writer *w, uint32_t to, void *piece) {
    uint64_t bytes = tm_source_tensor_get(src, from)->bytes;
    for (uint64_t at = 0, some; at < bytes; at += some) {
        some = tm_min_u64(EXPORT_PIECE, bytes - at);
        TM_TRY(tm_source_read_raw(src, from, at, some, piece));
        TM_TRY(tm_hf_writer_put_raw(w, to, at, piece, some));
    }
    return TM_OK;
}

static tm_status copy_values(const tm_source *src, uint32_t from, tm_hf_writer *w, uint32_t to, void *piece) {
    uint64_t elements = tm_source_tensor_get(src, from)->elements;
    for (uint64_t at = 0, some; at < elements; at += some) {
        some = tm_min_u64(EXPORT_PIECE / sizeof(float), elements - at);
        TM_TRY(tm_source_read_f32(src, from, at, some, piece));
        TM_TRY(tm_hf_writer_put_f32(w, to, at, some, piece));
    }
    return TM_OK;
}

static tm_status copy_foreign(const tm_job *job, tm_hf_writer *w, const tm_hf_tensor *list, uint32_t from) {
    void *piece = tm_malloc(EXPORT_PIECE);
    tm_status rc = piece ? TM_OK : tm_nomem(EXPORT_PIECE);
    for (uint32_t i = 0; i < job->carried.n_foreign && rc == TM_OK; i++) {
        uint32_t t = job->carried.foreign[i];
        rc = (list[from + i].as_stored ? copy_bytes : copy_values)(job->source, t, w, from + i, piece);
        tm_source_forget(job->source, t);
    }
    tm_free(piece);
    return rc;
}

/* What does not learn: from where it lies, as the type that is asked for. */
static tm_status copy_frozen(const tm_job *job, tm_hf_writer *w) {
    void *piece = tm_malloc(EXPORT_PIECE);
    tm_status rc = piece ? TM_OK : tm_nomem(EXPORT_PIECE);
    for (uint32_t t = 0; t < tm_model_tensors(job->model) && rc == TM_OK; t++) {
        if (tensor_has_state(job, t)) continue;
        rc = copy_values(job->source, job->source_tensor[t], w, t, piece);
        tm_source_forget(job->source, job->source_tensor[t]);
    }
    tm_free(piece);
    return rc;
}

/* ---- an adapter by itself ---- */

typedef struct adapter_export {
    const tm_job *job;
    tm_adapter_writer *writer, *first; /* first: PiSSA's beginning, NULL: there is none */
    uint32_t *index;                   /* per tensor: in its writer */
} adapter_export;

static bool is_first(const tm_job *job, uint32_t t) {
    uint8_t role = tm_model_tensor(job->model, t)->role;
    return role == TM_TENSOR_FIRST_A || role == TM_TENSOR_FIRST_B;
}

static tm_status put_adapter_values(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, const float *values) {
    adapter_export *e = ctx;
    tm_adapter_writer *w = is_first(e->job, tensor) ? e->first : e->writer;
    return tm_adapter_writer_put_f32(w, e->index[tensor], first, n, values);
}

/* "X.lora_A.first" is "X.lora_A.weight" in a folder of its own. */
static tm_status add_first(const tm_tensor *t, tm_adapter_writer *w, uint32_t *index) {
    tm_buf name = {0};
    tm_status rc = tm_buf_printf(&name, "%.*s.weight", (int)(strrchr(t->name, '.') - t->name), t->name);
    if (rc == TM_OK) rc = tm_adapter_writer_add(w, name.data, t->ndim, t->shape, index);
    tm_buf_free(&name);
    return rc;
}

static tm_status begin_first(const tm_job *job, const char *dir, tm_adapter_json_opts json, adapter_export *e) {
    tm_buf path = {0};
    tm_status rc = TM_OK;
    json.plain = true;
    if (job->opts.adapter->init != TM_ADAPTER_INIT_PISSA) return TM_OK;
    TM_GO(tm_buf_printf(&path, "%s/" TM_PISSA_FIRST, dir));
    TM_GO(tm_make_dirs(path.data));
    TM_GO(tm_adapter_writer_create(&e->first, path.data, job->opts.adapter, &json, TM_FMT_F32));
    for (uint32_t i = 0; i < tm_model_tensors(job->model); i++)
        if (is_first(job, i)) TM_GO(add_first(tm_model_tensor(job->model, i), e->first, &e->index[i]));
done:
    tm_buf_free(&path);
    return rc;
}

static tm_status begin_adapter(const tm_job *job, const char *dir, tm_fmt dtype, adapter_export *e) {
    tm_adapter_json_opts json = {.base_model = job->opts.model};
    const char **module = NULL;
    tm_buf names = {0};
    tm_status rc;
    TM_GO(tm_make_dirs(dir));
    TM_GO(job_list_modules(job->model, &module, &json.n_modules, &names));
    json.module = module;
    TM_GO(tm_adapter_writer_create(&e->writer, dir, job->opts.adapter, &json, dtype));
    for (uint32_t i = 0; i < tm_model_tensors(job->model); i++) {
        const tm_tensor *t = tm_model_tensor(job->model, i);
        if (t->learns) TM_GO(tm_adapter_writer_add(e->writer, t->name, t->ndim, t->shape, &e->index[i]));
    }
    rc = begin_first(job, dir, json, e);
done:
    tm_free(module);
    tm_buf_free(&names);
    return rc;
}

tm_status job_export_adapter(tm_job *job, const char *dir, tm_fmt dtype) {
    adapter_export e = {.job = job, .index = tm_calloc(tm_model_tensors(job->model) + 1, sizeof *e.index)};
    tm_program *program;
    tm_status rc;
    TM_ASSERT(job->opts.adapter);
    if (job->pissa) dtype = TM_FMT_F32; /* of two large products the small difference counts */
    if (!e.index) return tm_nomem(tm_model_tensors(job->model) * sizeof *e.index);
    if (job->ranks.rank == 0) TM_GO(begin_adapter(job, dir, dtype, &e));
    TM_GO(build_walk(&program, job, false, WHAT_MASTER));
    job->sinks.take_values = e.writer ? put_adapter_values : NULL;
    job->sinks.take_ctx = &e;
    TM_GO(run_program(job, program, "writing the adapter"));
    if (e.first) rc = tm_adapter_writer_commit(e.first);
    e.first = NULL;
    if (rc != TM_OK) goto done;
    if (e.writer) rc = tm_adapter_writer_commit(e.writer);
    if (e.writer && rc == TM_OK) job->progress.exported_bytes += job_export_bytes(job, dtype);
    e.writer = NULL;
done:
    job->sinks.take_values = NULL;
    tm_adapter_writer_abandon(e.first);
    tm_adapter_writer_abandon(e.writer);
    tm_free(e.index);
    return rc;
}

/* ---- a model ---- */

tm_status job_export(tm_job *job, const char *dir, tm_fmt dtype, uint64_t max_shard_bytes) {
    uint32_t n = tm_model_tensors(job->model), foreign = job->carried.n_foreign, all;
    tm_hf_writer *writer = NULL;
    tm_program *program;
    tm_status rc;
    tm_hf_tensor *list = tm_calloc(n + foreign + 1, sizeof *list);
    if (!list) return tm_nomem((n + foreign) * sizeof *list);
    for (uint32_t i = 0; i < n; i++) {
        const tm_tensor *t = tm_model_tensor(job->model, i);
        list[i].name = t->name;
        list[i].ndim = t->ndim;
        memcpy(list[i].shape, t->shape, sizeof t->shape);
    }
    all = list_foreign(job, list, n);
    if (job->ranks.rank == 0) { /* the other ranks send what they have */
        TM_GO(tm_make_dirs(dir));
        TM_GO(tm_hf_writer_create(&writer, dir, list, all, dtype, max_shard_bytes));
    }
    /* bf16 is what computed: the masters' nearest, ties included */
    TM_GO(build_walk(&program, job, false, dtype == TM_FMT_BF16 && job->dtype == TM_BF16 ? WHAT_COMPUTE : WHAT_MASTER));
    job->sinks.take_values = writer ? put_values : NULL;
    job->sinks.take_ctx = writer;
    TM_GO(run_program(job, program, "writing the model"));
    if (writer) TM_GO(copy_frozen(job, writer));
    if (writer && foreign) TM_GO(copy_foreign(job, writer, list, n));
    if (writer) rc = tm_hf_writer_commit(writer);
    if (writer && rc == TM_OK) job->progress.exported_bytes += job_export_bytes(job, dtype);
    writer = NULL;
done:
    job->sinks.take_values = NULL;
    tm_hf_writer_abandon(writer);
    tm_free(list);
    return rc;
}
