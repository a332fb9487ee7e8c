/* The configuration as a job's options: budget, paths, DeepSpeed's knobs as bounds of the planner, shapes. */
#include "session/session.h"

#include "io/file/file.h"
#include "offload/machine/machine.h"

#include <stdio.h>
#include <string.h>

uint64_t session_host_bytes(const tm_config *c) {
    if (c->memory.host_kind == TM_BUDGET_BYTES) return c->memory.host_bytes;
    if (c->memory.host_kind == TM_BUDGET_UNLIMITED) return UINT64_MAX;
    return tm_mem_available_bytes() / 5 * 4;
}

/* A budget that cannot be had is a mistake, or of another machine. */
tm_status session_check_budget(const tm_config *c) {
    char want[32], have[32];
    uint64_t bytes = c->memory.host_bytes, total = tm_mem_total_bytes(), available = tm_mem_available_bytes();
    if (c->memory.host_kind != TM_BUDGET_BYTES) return TM_OK;
    tm_format_size(bytes, want, sizeof want);
    if (bytes > total)
        return tm_fail(TM_EINPUT,
                       "memory.host_budget %s (%llu bytes) is more than there is: this machine, or the cgroup of this "
                       "process, has %s (%llu bytes); give less, or leave it out for 80%% of what is available",
                       want, (unsigned long long)bytes, tm_format_size(total, have, sizeof have),
                       (unsigned long long)total);
    if (bytes > available)
        tm_warn_once("memory.host_budget", "memory.host_budget %s is more than is available now, %s", want,
                     tm_format_size(available, have, sizeof have));
    return TM_OK;
}

static void pin(const tm_config *c, bool pinned[TM_KINDS]) {
    bool params = c->param_place == TM_PLACE_NONE || c->param_place == TM_PLACE_CPU;
    bool optimizer = c->optimizer_place == TM_PLACE_NONE || c->optimizer_place == TM_PLACE_CPU;
    for (tm_kind kind = 0; kind < TM_KINDS; kind++) pinned[kind] = tm_kind_get(kind)->optimizer && optimizer;
    pinned[TM_KIND_WEIGHT_HI] = params;
    pinned[TM_KIND_ACTIVATION] = params && optimizer;
}

/* ---- DeepSpeed's knobs, as bounds of the planner ------------------------------------------------------------- */

/* Elements as bytes; what is not given bounds nothing. */
static uint64_t bytes_of(uint64_t elements, uint64_t each) {
    return elements >= UINT64_MAX / each ? UINT64_MAX : elements * each;
}

/* The look-ahead is one number for everything that is read. Bounds above its own are none. */
static uint64_t window_bound(const tm_config *c) {
    enum { OPTIMIZER_BYTES = 12, SWAP_BYTES = 4 }; /* a parameter: read by its update; of one fp32 buffer */
    uint64_t width = tm_dtype_bytes(c->precision), sub_groups = UINT64_MAX;
    uint64_t window = bytes_of(c->knobs.prefetch_bucket_size, width);
    window = tm_min_u64(window, bytes_of(c->knobs.param_buffers, width));
    window = tm_min_u64(window, bytes_of(c->knobs.sub_group_size, OPTIMIZER_BYTES));
    window = tm_min_u64(window, bytes_of(c->knobs.max_live_parameters, width) / 2);
    if (c->knobs.optimizer_buffer_count != TM_AUTO_ELEMENTS)
        sub_groups = bytes_of(c->knobs.optimizer_buffer_count, bytes_of(c->zero.sub_group_size, SWAP_BYTES));
    return tm_min_u64(window, sub_groups);
}

static void bound(const tm_config *c, job_opts *o) {
    uint64_t width = tm_dtype_bytes(c->precision), window = window_bound(c);
    uint64_t live = bytes_of(c->knobs.max_live_parameters, width);
    uint64_t kept = bytes_of(c->knobs.max_in_cpu, width);
    if (live != UINT64_MAX) kept = tm_min_u64(kept, live - tm_min_u64(window, live / 2));
    if (kept != UINT64_MAX) o->max_resident_bytes[TM_KIND_WEIGHT_HI] = tm_max_u64(kept, 1);
    if (window < 512 * TM_MIB) o->window_mib = (uint32_t)tm_max_u64((window + TM_MIB - 1) / TM_MIB, 1);
    o->no_read_ahead = c->knobs.no_pipeline_read;
    o->no_write_behind = c->knobs.no_pipeline_write;
    o->no_pin_memory = c->knobs.no_pin_memory;
    bool host_only = c->optimizer_place == TM_PLACE_CPU || c->param_place == TM_PLACE_CPU;
    o->host_share = c->knobs.update_ratio >= 0 ? c->knobs.update_ratio : host_only ? 1 : 0;
    if (c->knobs.param_persistence_threshold != TM_AUTO_ELEMENTS)
        o->persist_elements = c->knobs.param_persistence_threshold;
}

/* The largest micro-batch. Of a file that was read in part it may be any. */
static job_shape shape_of(const tm_config *c, data_file *f, uint32_t samples, uint64_t steps) {
    tm_batch_limits lim;
    uint32_t rows = samples * tm_objective_of(c->objective.type)->rows;
    if (data_part(f) < 1)
        return (job_shape){.micro_batches = c->accumulation_steps, .rows = rows, .seq = c->data.seq_len};
    tm_dataset_limits(data_set(f), 0, steps, &lim);
    if (tm_objective_of(c->objective.type)->mismatched) {
        tm_batch_limits more;
        tm_dataset_limits_mismatched(data_set(f), 0, steps, &more);
        lim.seq = lim.seq > more.seq ? lim.seq : more.seq;
        lim.tokens = lim.tokens > more.tokens ? lim.tokens : more.tokens;
    }
    return (job_shape){.micro_batches = c->accumulation_steps, .rows = lim.rows, .seq = lim.seq, .tokens = lim.tokens};
}

const char *session_cache_path(const tm_config *c, const char *name, char *path, size_t cap) {
    size_t n = strlen(c->output_dir);
    while (n > 1 && c->output_dir[n - 1] == '/') n--;
    while (n > 0 && c->output_dir[n - 1] != '/') n--;
    snprintf(path, cap, "%.*s" SESSION_CACHE "/%s", (int)n, c->output_dir, name);
    return path;
}

bool session_reference_column(const tm_config *c) {
    bool bare = c->adapter && !c->reference && tm_adapter_keeps_base(c->adapter);
    return tm_objective_of(c->objective.type)->reference && !bare;
}

job_shape session_eval_shape(const session *s) {
    return shape_of(s->cfg, s->eval, s->cfg->eval_batch_size, tm_dataset_steps_per_epoch(data_set(s->eval)));
}

/* Of a file that was read in part, the index of what is beyond as well. */
static uint64_t data_bytes(data_file *f) {
    double beyond = (double)tm_dataset_rows(data_set(f)) * (1 / data_part(f) - 1);
    return tm_dataset_memory_bytes(data_set(f)) + (uint64_t)(beyond * tm_dataset_index_bytes(data_set(f)));
}

/* What is left on the heap of a tokenizer that was read, or takes to be written down again from a GGUF file: about
 * twice tokenizer.json, measured with 49 k words; of a GGUF file's an allowance. */
static uint64_t text_bytes(const tm_config *c) {
    enum { OF_GGUF_MIB = 10 };
    tm_file *f;
    const char *folder = c->tokenizer ? c->tokenizer : c->model;
    uint64_t bytes = tm_path_is_dir(folder) ? 0 : OF_GGUF_MIB * TM_MIB;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (n > 0 && (size_t)n < sizeof path && tm_file_open(&f, path) == TM_OK) {
        bytes = 2 * tm_file_size(f);
        tm_file_close(f);
    }
    tm_error_clear();
    return bytes;
}

static bool in_files(tm_place place) {
    return place == TM_PLACE_NVME || place == TM_PLACE_AUTO;
}

static const tm_strings *paths_of(const tm_config *c) {
    static const tm_strings none;
    bool param = in_files(c->param_place), optimizer = in_files(c->optimizer_place);
    if (param && optimizer) return &c->all_paths;
    return param ? &c->param_paths : optimizer ? &c->optimizer_paths : &none;
}

/* Where both places are files, parameters lie in the paths of one block, what the update needs in those of the other:
 * masters, moments, gradients. Temporaries of activations are neither's: they go wherever there is a disk. */
static uint32_t kinds_of(unsigned is_for) {
    enum { PARAM = 1 << TM_KIND_WEIGHT_HI, TEMPORARY = 1 << TM_KIND_ACTIVATION };
    uint32_t update = 0;
    for (tm_kind kind = 0; kind < TM_KINDS; kind++) update |= (uint32_t)tm_kind_get(kind)->optimizer << kind;
    return TEMPORARY | (is_for & TM_PATH_PARAM ? PARAM : 0) | (is_for & TM_PATH_OPTIMIZER ? update : 0);
}

void session_set_paths(const tm_config *c, job_opts *o) {
    const tm_strings *paths = paths_of(c);
    o->paths = paths->item;
    o->n_paths = paths->n;
    if (paths == &c->all_paths)
        for (uint32_t i = 0; i < paths->n && i < TM_MACHINE_PATHS; i++) o->path_kinds[i] = kinds_of(c->all_for[i]);
}

tm_status session_machine(const job_opts *o, tm_machine *out) {
    if (o->n_paths == 0) { /* what is read where it lies comes from the model's disk */
        TM_TRY(tm_machine_of(&o->model, 1, out));
        out->n_paths = 0;
        return TM_OK;
    }
    TM_TRY(tm_machine_of(o->paths, o->n_paths, out));
    for (uint32_t i = 0; i < out->n_paths; i++) out->path[i].kinds = o->path_kinds[i];
    return TM_OK;
}

/* The configuration's, else those that `tune` found for this disk, else the engine's own. Speed only. */
static void set_requests(const tm_config *c, job_opts *o) {
    tm_disk disk;
    if (c->aio.given) {
        o->io.queue_depth = c->aio.queue_depth;
        o->io.block_bytes = (uint32_t)c->aio.block_bytes;
        o->io.single_submit = c->aio.single_submit;
        o->io.no_overlap_events = !c->aio.overlap_events;
    } else if (o->n_paths > 0 && tm_profile_get_disk(o->paths[0], &disk)) {
        o->io.queue_depth = disk.queue_depth;
        o->io.block_bytes = disk.block_bytes;
    }
}

bool session_commits(const session *s) {
    const tm_config *c = s->cfg;
    return c->memory.slots == 2 && (c->commit_steps > 0 || c->commit_minutes > 0 || c->keep_state);
}

bool session_has_checkpoints(const tm_config *c) {
    return c->save_best || c->save_steps > 0 || (c->by_epoch & TM_BY_EPOCH_SAVE);
}

tm_fmt session_save_format(const tm_config *c) {
    switch (c->save_dtype) {
    case TM_SAVE_F32:
        return TM_FMT_F32;
    case TM_SAVE_BF16:
        return TM_FMT_BF16;
    case TM_SAVE_F16:
        return TM_FMT_F16;
    default: /* an adapter is small: as exact as it is */
        return c->precision == TM_F32 || c->adapter ? TM_FMT_F32 : TM_FMT_BF16;
    }
}

tm_fmt session_score_format(const tm_config *c) {
    return c->precision == TM_BF16 && !c->adapter ? TM_FMT_BF16 : TM_FMT_F32;
}

static tm_fmt four_bits_of(const tm_config *c) {
    return c->quantization.type == TM_QUANTIZE_NF4   ? TM_FMT_NF4
           : c->quantization.type == TM_QUANTIZE_FP4 ? TM_FMT_FP4
                                                     : TM_FMT_F32;
}

static bool has_documents(const session *s) {
    bool packing = s->cfg->data.packing && s->cfg->data.packing_strategy != TM_PACKING_WRAPPED;
    return packing || (s->train && tm_dataset_has_documents(data_set(s->train))) ||
           (s->eval && tm_dataset_has_documents(data_set(s->eval)));
}

job_opts session_job_options(const session *s) {
    const tm_config *c = s->cfg;
    job_opts o = {.model = c->model,
                  .dtype = c->precision,
                  .optimizer = true,
                  .update = c->optimizer,
                  .update_opts = c->optim,
                  .init_random = c->init_random && !s->weights,
                  .adapter = c->adapter,
                  .freeze = c->freeze,
                  .saved = s->saved,
                  .objective = &c->objective,
                  .reference_column = session_reference_column(c),
                  .weights = s->weights,
                  .four_bits = four_bits_of(c),
                  .double_quant = c->quantization.double_quant,
                  .quant_block = c->quantization.block,
                  .seed = c->seed,
                  .positions = c->data.seq_len,
                  .packed = has_documents(s),
                  .host_bytes = session_host_bytes(c),
                  .device = session_device(s),
                  .device_bytes = s->device_bytes ? s->device_bytes : c->memory.device_bytes,
                  .device_bps = c->memory.device_bandwidth,
                  .slots = c->memory.slots,
                  .allow_tmpfs = c->memory.allow_tmpfs,
                  .cache_none = c->memory.cache_none,
                  .no_device_resident = c->memory.cache_none,
                  .spread = c->memory.spread,
                  .order_seed = s->args->order_seed ? s->args->order_seed + s->ranks.rank : 0,
                  .commits = session_commits(s),
                  .ranks = s->ranks,
                  .io = {.engine = c->memory.io_engine, .threads = c->aio.threads}};
    session_set_paths(c, &o);
    set_requests(c, &o);
    pin(c, o.pinned);
    bound(c, &o);
    if (!c->init_random) o.other_bytes += text_bytes(c);
    if (session_has_checkpoints(c)) o.other_bytes += SESSION_PAGE_BYTES;
    if (s->train) o.other_bytes += data_bytes(s->train);
    o.other_bytes += s->scores.run_bytes;
    if ((s->train || s->eval) && session_reference_column(c)) o.other_bytes += session_reference_bytes(s);
    if (s->eval) {
        job_shape shape = session_eval_shape(s);
        o.other_bytes += data_bytes(s->eval);
        o.other_tokens = shape_real_tokens(&shape);
    }
    return o;
}

job_shape session_step_shape(const session *s) {
    const tm_config *c = s->cfg;
    if (s->train) return shape_of(c, s->train, c->micro_batch_size, (uint64_t)c->total_steps);
    uint32_t rows = c->micro_batch_size * tm_objective_of(c->objective.type)->rows;
    return (job_shape){.micro_batches = c->accumulation_steps, .rows = rows, .seq = c->data.seq_len};
}
