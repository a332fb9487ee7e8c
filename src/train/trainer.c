/* The training job: configuration, data and tiers are brought together, then one plan is run once a step. */
#include "train/config.h"
#include "train/text.h"
#include "train/train_internal.h"

#include "kernels/kernels.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { MAX_WAYS = 8, MAX_SKIPPED = 50 };

typedef struct trainer {
    const tm_train_args *args;
    tm_config *cfg;
    tm_source *source; /* for texts and side files; the job has its own */
    text_tools text;
    data_file *train, *eval;
    tm_job *job;
    tm_plan *plan, *eval_plan;
    tm_plan *first_plan, *drain_plan; /* update F: a step without a pending update; the pending update alone */
    bool folded, pending;
    tm_append *log;
    uint64_t minimum_host_bytes;
    int64_t step, applied; /* optimizer steps done; those whose update was applied */
    int64_t skipped_in_a_row;
    uint64_t start_ns, tokens_done;
    bool evaluating;
    uint64_t eval_step;
    double eval_sum;
    uint64_t eval_labels;
    tm_exec_stats before;
    char path[4096];
} trainer;

static const char *in_output(trainer *t, const char *name) {
    snprintf(t->path, sizeof t->path, "%s/%s", t->cfg->output_dir, name);
    return t->path;
}

/* ---- configuration ------------------------------------------------------------------------------------------- */

static tm_status slurp(void *ctx, const char *path, tm_buf *out) {
    (void)ctx;
    return tm_file_slurp(path, 16 * TM_MIB, out);
}

static tm_status load_config(trainer *t) {
    tm_buf text = {0};
    tm_status rc = tm_file_slurp(t->args->config, 16 * TM_MIB, &text);
    if (rc == TM_OK)
        rc = tm_config_load(
            &t->cfg, text.data, text.len,
            &(tm_config_opts){
                .name = t->args->config, .set = t->args->set, .n_set = t->args->n_set, .read_file = slurp});
    tm_buf_free(&text);
    return rc;
}

/* Until commits exist a run cannot be continued: what an earlier run left is refused, not overwritten by surprise. */
static tm_status check_output_dir(trainer *t) {
    const char *resume = t->args->resume ? t->args->resume : "auto";
    if (strcmp(resume, "never") == 0) return TM_OK;
    if (strcmp(resume, "auto") != 0)
        return tm_fail(TM_EUNSUPPORTED, "--resume %s: this version cannot continue a run; use --resume never", resume);
    if (!tm_path_exists(in_output(t, "run.json"))) return TM_OK;
    tm_buf text = {0};
    tm_json_doc *doc = NULL;
    bool finished = tm_file_slurp(t->path, TM_MIB, &text) == TM_OK &&
                    tm_json_parse(&doc, text.data, text.len, t->path, 0, 0) == TM_OK &&
                    tm_json_is(tm_json_get(tm_json_root(doc), "status"), "finished");
    tm_error_clear();
    tm_json_free(doc);
    tm_buf_free(&text);
    return tm_fail(TM_EINPUT,
                   "%s holds %s run, and this version cannot continue one; give another output_dir, or --resume never "
                   "to start over",
                   t->cfg->output_dir, finished ? "a finished" : "an interrupted");
}

static tm_status write_run_json(trainer *t, const char *status) {
    tm_buf out = {0}, config = {0};
    tm_json_writer w;
    tm_out *file = NULL;
    tm_status rc;
    TM_GO(tm_config_dump_json(t->cfg, &config, 0));
    tm_jw_init(&w, &out, 1);
    tm_jw_object(&w);
    tm_jw_key(&w, "status");
    tm_jw_str(&w, status);
    tm_jw_key(&w, "step");
    tm_jw_int(&w, t->step);
    tm_jw_key(&w, "version");
    tm_jw_str(&w, TIDEMILL_VERSION);
    tm_jw_key(&w, "numerics");
    tm_jw_str(&w, tm_kernels_describe());
    tm_jw_key(&w, "config");
    tm_jw_raw(&w, config.data, config.len);
    tm_jw_object_end(&w);
    TM_GO(tm_jw_end(&w));
    TM_GO(tm_buf_append(&out, "\n", 1));
    TM_GO(tm_out_create(&file, in_output(t, "run.json")));
    rc = tm_out_append(file, out.data, out.len);
    if (rc == TM_OK)
        rc = tm_out_commit(file);
    else
        tm_out_abandon(file);
done:
    tm_buf_free(&out);
    tm_buf_free(&config);
    return rc;
}

/* ---- data ---------------------------------------------------------------------------------------------------- */

static data_opts dataset_opts(const trainer *t, const tm_model_config *model, bool eval) {
    const tm_config *c = t->cfg;
    return (data_opts){.dataset = {.format = c->data.format,
                                   .overlong = c->data.overlong,
                                   .seq_len = c->data.seq_len,
                                   .vocab_size = model->vocab_size,
                                   .strict = c->data.strict,
                                   .shuffle = c->data.shuffle && !eval,
                                   .seed = c->data.seed},
                       .spill_dir = c->output_dir};
}

static void say_counts(const char *path, const tm_dataset_counts *n) {
    tm_log(TM_LOG_INFO, "%s: %" PRIu64 " samples, %" PRIu64 " tokens, %" PRIu64 " learned, longest %u", path,
           n->samples, n->tokens, n->label_tokens, n->longest);
    if (n->truncated + n->dropped + n->bad + n->no_labels > 0)
        tm_log(TM_LOG_WARN,
               "%s: %" PRIu64 " truncated, %" PRIu64 " dropped, %" PRIu64 " bad lines, %" PRIu64 " without labels",
               path, n->truncated, n->dropped, n->bad, n->no_labels);
}

static tm_status open_data(trainer *t, const tm_model_config *model) {
    tm_config *c = t->cfg;
    data_opts o = dataset_opts(t, model, false);
    TM_TRY(data_open(&t->train, c->data.train, &t->text, c->model, &o));
    TM_TRY(tm_dataset_set_batches(data_set(t->train), c->micro_batch_size, c->accumulation_steps, 1));
    say_counts(c->data.train, tm_dataset_get_counts(data_set(t->train)));
    if (c->data.eval) {
        o = dataset_opts(t, model, true);
        TM_TRY(data_open(&t->eval, c->data.eval, &t->text, c->model, &o));
        TM_TRY(tm_dataset_set_batches(data_set(t->eval), c->eval_batch_size, c->accumulation_steps, 1));
        say_counts(c->data.eval, tm_dataset_get_counts(data_set(t->eval)));
    }
    return tm_config_resolve_steps(c, (int64_t)tm_dataset_steps_per_epoch(data_set(t->train)));
}

static tm_status fill(void *ctx, uint32_t mb, uint32_t capacity, int32_t *ids, int32_t *labels, uint8_t *mask,
                      uint32_t *position, job_batch *out) {
    trainer *t = ctx;
    tm_batch_shape shape;
    (void)position;
    tm_dataset *ds = data_set(t->evaluating ? t->eval : t->train);
    uint64_t step = t->evaluating ? t->eval_step : (uint64_t)t->step;
    TM_TRY(tm_dataset_batch(ds, step, mb, 0, capacity, ids, labels, mask, &shape));
    *out = (job_batch){shape.rows, shape.seq, shape.tokens, shape.mask_tokens, shape.label_tokens};
    return TM_OK;
}

static void preview(trainer *t) {
    tm_buf out = {0};
    if (!t->text.tokenizer || t->args->quiet) return;
    uint64_t sample = tm_dataset_order(data_set(t->train), 0, 0);
    if (tm_dataset_preview(data_set(t->train), sample, t->text.tokenizer, isatty(2), &out) == TM_OK)
        fprintf(stderr, "first sample (what is not learned is %s):\n%s\n", isatty(2) ? "dimmed" : "between ⟦ and ⟧",
                out.data);
    tm_error_clear();
    tm_buf_free(&out);
}

/* ---- plan ---------------------------------------------------------------------------------------------------- */

static uint64_t host_bytes(const tm_config *c) {
    if (c->memory.host_kind == TM_BUDGET_BYTES) return c->memory.host_bytes;
    if (c->memory.host_kind == TM_BUDGET_UNLIMITED) return UINT64_MAX;
    return tm_mem_available_bytes() / 5 * 4;
}

static void pin(const tm_config *c, bool pinned[TM_KINDS]) {
    bool params = c->param_place == TM_PLACE_NONE || c->param_place == TM_PLACE_CPU;
    bool optimizer = c->optimizer_place == TM_PLACE_NONE || c->optimizer_place == TM_PLACE_CPU;
    pinned[TM_KIND_WEIGHT_HI] = params;
    pinned[TM_KIND_WEIGHT_LO] = pinned[TM_KIND_EXP_AVG] = pinned[TM_KIND_EXP_AVG_SQ] = pinned[TM_KIND_GRAD] = optimizer;
    pinned[TM_KIND_ACTIVATION] = params && optimizer;
}

/* Every way of running the step that the configuration leaves open; all give the same bits. */
static uint32_t candidates(const trainer *t, const job_shape *shape, pass_opts out[MAX_WAYS]) {
    uint32_t n = 0;
    tm_activations a = t->cfg->memory.activations;
    for (int fold = 0; fold < 2; fold++) {
        if (t->cfg->memory.update == (fold ? TM_UPDATE_U : TM_UPDATE_F)) continue;
        for (int keep = 0; keep < 2; keep++) {
            if ((a == TM_ACT_RECOMPUTE && keep) || ((a == TM_ACT_KEEP || a == TM_ACT_SPILL) && !keep)) continue;
            for (int stage_wise = 0; stage_wise < (shape->micro_batches > 1 ? 2 : 1); stage_wise++)
                out[n++] = (pass_opts){.shape = *shape,
                                       .backward = true,
                                       .update = fold ? UPDATE_BEFORE : UPDATE_AFTER,
                                       .park = fold,
                                       .keep = keep ? JOB_KEEP : JOB_RECOMPUTE,
                                       .stage_wise = stage_wise};
        }
    }
    return n;
}

static job_shape shape_of(tm_dataset *ds, uint32_t micro_batches, uint64_t steps) {
    tm_batch_limits lim;
    tm_dataset_limits(ds, 0, steps, &lim);
    return (job_shape){.micro_batches = micro_batches, .rows = lim.rows, .seq = lim.seq, .tokens = lim.tokens};
}

static tm_status mark_no_decay(trainer *t) {
    const tm_strings *list = &t->cfg->no_decay;
    uint32_t n = tm_model_tensors(t->job->model);
    if (list->n == 0) return TM_OK;
    t->job->no_decay = tm_calloc(n + 1, sizeof *t->job->no_decay);
    if (!t->job->no_decay) return tm_nomem(n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < list->n; k++)
            if (strstr(tm_model_tensor(t->job->model, i)->name, list->item[k])) t->job->no_decay[i] = true;
    return TM_OK;
}

static tm_status compile(trainer *t, tm_program *p, tm_plan **plan) {
    tm_status rc = job_compile(t->job, p, plan);
    tm_program_free(p);
    return rc;
}

/* Update F needs two more plans: for a step that finds nothing pending, and for whoever looks at the state in between.
 */
static tm_status compile_folded(trainer *t, const pass_opts *way) {
    tm_program *p;
    pass_opts first = *way;
    first.update = UPDATE_NONE;
    TM_TRY(build_pass(&p, t->job, "first step", &first));
    TM_TRY(compile(t, p, &t->first_plan));
    TM_TRY(build_drain(&p, t->job));
    return compile(t, p, &t->drain_plan);
}

static tm_status open_job(trainer *t) {
    tm_config *c = t->cfg;
    job_opts o = {.model = c->model,
                  .dtype = c->precision,
                  .optimizer = true,
                  .init_random = c->init_random,
                  .seed = c->seed,
                  .host_bytes = host_bytes(c),
                  .slots = c->memory.slots,
                  .allow_tmpfs = c->memory.allow_tmpfs,
                  .cache_none = c->memory.cache_none,
                  .order_seed = t->args->order_seed,
                  .io = {.engine = c->memory.io_engine, .queue_depth = c->aio.queue_depth, .threads = c->aio.threads}};
    bool files = c->param_place == TM_PLACE_NVME || c->optimizer_place == TM_PLACE_NVME ||
                 c->param_place == TM_PLACE_AUTO || c->optimizer_place == TM_PLACE_AUTO;
    const tm_strings *paths = c->param_place == TM_PLACE_NVME ? &c->param_paths : &c->optimizer_paths;
    if (files) {
        o.paths = paths->item;
        o.n_paths = paths->n;
    }
    pin(c, o.pinned);
    o.other_bytes =
        tm_dataset_memory_bytes(data_set(t->train)) + (t->eval ? tm_dataset_memory_bytes(data_set(t->eval)) : 0);
    TM_TRY(job_open(&t->job, &o));
    TM_TRY(tm_config_resolve_model(c, tm_model_get_config(t->job->model)->hidden_size));
    TM_TRY(mark_no_decay(t));
    t->job->fill = fill;
    t->job->fill_ctx = t;
    t->job->adamw = c->adamw;
    t->job->max_grad_norm = c->max_grad_norm;
    pass_opts way[MAX_WAYS];
    job_shape shape = shape_of(data_set(t->train), c->accumulation_steps, (uint64_t)c->total_steps);
    uint32_t n = candidates(t, &shape, way), chosen;
    TM_TRY(job_start(t->job, &o, "training step", way, n, &t->plan, &chosen, &t->minimum_host_bytes));
    const tm_plan_info *info = tm_plan_get_info(t->plan);
    t->folded = way[chosen].update == UPDATE_BEFORE;
    if (t->folded) TM_TRY(compile_folded(t, &way[chosen]));
    char a[32], b[32], d[32];
    tm_log(TM_LOG_INFO,
           "plan: %s resident of %s frames, %s on disk, update %s, activations %s, %u operations, engine %s",
           tm_format_size(info->resident_bytes, a, sizeof a), tm_format_size(info->slab_bytes, b, sizeof b),
           tm_format_size(tm_store_disk_bytes(t->job->store), d, sizeof d), t->folded ? "F" : "U",
           way[chosen].keep == JOB_KEEP ? "kept or spilled" : "recomputed", info->ops, tm_store_engine(t->job->store));
    if (!t->eval) return TM_OK;
    tm_program *p;
    shape = shape_of(data_set(t->eval), c->accumulation_steps, tm_dataset_steps_per_epoch(data_set(t->eval)));
    TM_TRY(build_pass(&p, t->job, "evaluation", &(pass_opts){.shape = shape, .loss = true}));
    tm_status rc = job_compile(t->job, p, &t->eval_plan);
    tm_program_free(p);
    return rc;
}

/* ---- log ----------------------------------------------------------------------------------------------------- */

static void field_double(tm_json_writer *w, const char *key, double v) {
    tm_jw_key(w, key);
    tm_jw_double(w, v);
}

static void field_uint(tm_json_writer *w, const char *key, uint64_t v) {
    tm_jw_key(w, key);
    tm_jw_uint(w, v);
}

static double seconds(uint64_t ns) {
    return (double)ns * 1e-9;
}

static void bytes_fields(tm_json_writer *w, const tm_exec_stats *now, const tm_exec_stats *was, uint64_t *read,
                         uint64_t *written) {
    *read = *written = 0;
    for (int k = 0; k < TM_KINDS; k++) {
        *read += now->read_bytes[k] - was->read_bytes[k];
        *written += now->write_bytes[k] - was->write_bytes[k];
    }
    field_uint(w, "read_bytes", *read);
    field_uint(w, "write_bytes", *written);
    tm_jw_key(w, "bytes_by_kind");
    tm_jw_object(w);
    for (int k = 0; k < TM_KINDS; k++) {
        uint64_t r = now->read_bytes[k] - was->read_bytes[k], x = now->write_bytes[k] - was->write_bytes[k];
        if (r + x == 0) continue;
        tm_jw_key(w, tm_kind_name((tm_kind)k));
        tm_jw_object(w);
        field_uint(w, "read", r);
        field_uint(w, "write", x);
        tm_jw_object_end(w);
    }
    tm_jw_object_end(w);
}

static void wait_fields(tm_json_writer *w, const tm_exec_stats *now, const tm_exec_stats *was) {
    tm_jw_key(w, "wait_seconds");
    tm_jw_object(w);
    field_double(w, "disk_read", seconds(now->wait_read_ns - was->wait_read_ns));
    field_double(w, "disk_write", seconds(now->wait_write_ns - was->wait_write_ns));
    field_double(w, "copy", 0);
    field_double(w, "comm", 0);
    field_double(w, "compute", seconds(now->compute_ns - was->compute_ns));
    tm_jw_object_end(w);
}

static void progress(trainer *t, double step_seconds, uint64_t moved) {
    const step_result *r = &t->job->step;
    if (t->args->quiet) return;
    bool tty = isatty(2), last = t->step == t->cfg->total_steps;
    if (!tty && !last && t->step % (t->cfg->logging_steps > 0 ? t->cfg->logging_steps : 1) != 0) return;
    double mean = seconds(tm_now_ns() - t->start_ns) / (double)t->step;
    double left = mean * (double)(t->cfg->total_steps - t->step);
    fprintf(stderr,
            "%sstep %" PRId64 "/%" PRId64
            "  loss %.4f  norm %.3f  lr %.3g  %.0f tok/s  %.2f s/step  disk %.2f GB/s  left %d:%02d:%02d%s",
            tty ? "\r\033[K" : "", t->step, t->cfg->total_steps,
            r->label_tokens ? r->loss_sum / (double)r->label_tokens : 0, r->grad_norm, r->learning_rate,
            (double)r->tokens / step_seconds, step_seconds, (double)moved / step_seconds * 1e-9, (int)(left / 3600),
            (int)(left / 60) % 60, (int)left % 60, tty && !last ? "" : "\n");
}

static tm_status log_line(trainer *t, tm_buf *out, tm_json_writer *w) {
    tm_jw_object_end(w);
    TM_TRY(tm_jw_end(w));
    return tm_append_line(t->log, out->data, out->len);
}

static tm_status log_step(trainer *t, const tm_plan *ran, uint64_t began_ns) {
    const step_result *r = &t->job->step;
    double took = seconds(tm_now_ns() - began_ns);
    uint64_t read, written;
    tm_exec_stats now;
    tm_buf out = {0};
    tm_json_writer w;
    tm_exec_get_stats(t->job->exec, &now);
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_key(&w, "step");
    tm_jw_int(&w, t->step);
    field_double(&w, "loss", r->label_tokens ? r->loss_sum / (double)r->label_tokens : 0);
    field_double(&w, "grad_norm", r->grad_norm);
    field_double(&w, "learning_rate", r->learning_rate);
    field_uint(&w, "tokens", r->tokens);
    field_uint(&w, "label_tokens", r->label_tokens);
    field_double(&w, "step_seconds", took);
    field_double(&w, "tokens_per_second", (double)r->tokens / took);
    bytes_fields(&w, &now, &t->before, &read, &written);
    const tm_plan_info *plan = tm_plan_get_info(ran);
    uint64_t planned_read = 0, planned_write = 0;
    for (int k = 0; k < TM_KINDS; k++) {
        planned_read += plan->read_bytes[k];
        planned_write += plan->write_bytes[k];
    }
    field_uint(&w, "planned_read_bytes", planned_read);
    field_uint(&w, "planned_write_bytes", planned_write);
    field_uint(&w, "host_peak_bytes", tm_mem_resident_peak_bytes());
    field_uint(&w, "device_peak_bytes", 0);
    wait_fields(&w, &now, &t->before);
    if (!r->finite) {
        tm_jw_key(&w, "skipped");
        tm_jw_bool(&w, true);
    }
    tm_status rc = log_line(t, &out, &w);
    tm_buf_free(&out);
    progress(t, took, read + written);
    return rc;
}

static tm_status log_event(trainer *t, const char *event, const char *hash, double eval_loss) {
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_key(&w, "event");
    tm_jw_str(&w, event);
    tm_jw_key(&w, "step");
    tm_jw_int(&w, t->step);
    if (hash) {
        tm_jw_key(&w, "state_hash");
        tm_jw_str(&w, hash);
        field_uint(&w, "host_peak_bytes", tm_mem_resident_peak_bytes());
    }
    if (!isnan(eval_loss)) {
        field_double(&w, "loss", eval_loss);
        field_double(&w, "perplexity", exp(eval_loss));
        field_uint(&w, "label_tokens", t->eval_labels);
    }
    tm_status rc = log_line(t, &out, &w);
    tm_buf_free(&out);
    return rc;
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

static tm_plan *step_plan(const trainer *t) {
    return t->folded && !t->pending ? t->first_plan : t->plan;
}

static tm_status check_finite(const trainer *t) {
    if (!t->job->nonfinite) return TM_OK;
    return tm_fail(TM_EIO,
                   "step %" PRId64 ": %" PRIu64 " parameters are not finite after the update; lower learning_rate",
                   t->step, t->job->nonfinite);
}

/* Applies what is pending, so that the state is that of the step that was logged last. */
static tm_status settle(trainer *t) {
    if (!t->pending) return TM_OK;
    t->pending = false;
    TM_TRY(job_run(t->job, t->drain_plan));
    return check_finite(t);
}

static tm_status one_step(trainer *t) {
    tm_job *job = t->job;
    uint64_t began = tm_now_ns();
    tm_exec_get_stats(job->exec, &t->before);
    job->step.learning_rate = tm_lr_at(&t->cfg->schedule, t->step);
    job->step.number = t->applied + 1;
    (void)tm_lr_betas(&t->cfg->schedule, t->step, &job->adamw.beta1, &job->adamw.beta2);
    const tm_plan *plan = step_plan(t);
    TM_TRY(job_run(job, plan));
    t->pending = t->folded;
    t->step++;
    if (job->step.finite) {
        t->applied++;
        t->skipped_in_a_row = 0;
    } else {
        t->skipped_in_a_row++;
        tm_log(TM_LOG_WARN, "step %" PRId64 ": loss or gradient is not finite; the update was skipped", t->step);
    }
    TM_TRY(log_step(t, plan, began));
    TM_TRY(check_finite(t));
    if (t->skipped_in_a_row >= MAX_SKIPPED)
        return tm_fail(
            TM_EIO, "step %" PRId64 ": %d steps in a row had no finite gradient; lower learning_rate or check the data",
            t->step, MAX_SKIPPED);
    return TM_OK;
}

static tm_status evaluate(trainer *t) {
    if (!t->eval) return TM_OK;
    TM_TRY(settle(t));
    t->evaluating = true;
    t->eval_sum = 0;
    t->eval_labels = 0;
    tm_status rc = TM_OK;
    uint64_t steps = tm_dataset_steps_per_epoch(data_set(t->eval));
    step_result keep = t->job->step;
    for (t->eval_step = 0; t->eval_step < steps && rc == TM_OK; t->eval_step++) {
        rc = job_run(t->job, t->eval_plan);
        t->eval_sum += t->job->step.loss_sum;
        t->eval_labels += t->job->step.label_tokens;
    }
    t->evaluating = false;
    t->job->step = keep;
    if (rc != TM_OK) return rc;
    double loss = t->eval_labels ? t->eval_sum / (double)t->eval_labels : NAN;
    if (!t->args->quiet)
        fprintf(stderr, "%sstep %" PRId64 ": evaluation loss %.4f, perplexity %.3f\n", isatty(2) ? "\r\033[K" : "",
                t->step, loss, exp(loss));
    return log_event(t, "eval", NULL, loss);
}

static tm_fmt save_format(const tm_config *c) {
    switch (c->save_dtype) {
    case TM_SAVE_F32:
        return TM_FMT_F32;
    case TM_SAVE_BF16:
        return TM_FMT_BF16;
    case TM_SAVE_F16:
        return TM_FMT_F16;
    default:
        return c->precision == TM_F32 ? TM_FMT_F32 : TM_FMT_BF16;
    }
}

static tm_status write_side_files(trainer *t, const char *dir, tm_fmt dtype) {
    return tm_source_write_side_files(t->source, dir, dtype);
}

static tm_status save_to(trainer *t, const char *dir) {
    tm_fmt dtype = save_format(t->cfg);
    TM_TRY(settle(t));
    TM_TRY(job_export(t->job, dir, dtype));
    return write_side_files(t, dir, dtype);
}

static tm_status save_checkpoint(trainer *t) {
    char dir[4096], beside[4200];
    snprintf(dir, sizeof dir, "%s/checkpoint-%" PRId64, t->cfg->output_dir, t->step);
    snprintf(beside, sizeof beside, "%s.tmp", dir);
    TM_TRY(tm_remove_tree(beside));
    TM_TRY(save_to(t, beside));
    TM_TRY(tm_remove_tree(dir));
    TM_TRY(tm_rename_path(beside, dir));
    return log_event(t, "checkpoint", NULL, NAN);
}

static tm_status run_steps(trainer *t) {
    const tm_config *c = t->cfg;
    t->start_ns = tm_now_ns();
    while (t->step < c->total_steps) {
        TM_TRY(one_step(t));
        if (c->eval_steps > 0 && t->step % c->eval_steps == 0 && t->step < c->total_steps) TM_TRY(evaluate(t));
        if (c->save_steps > 0 && t->step % c->save_steps == 0 && t->step < c->total_steps) TM_TRY(save_checkpoint(t));
    }
    return evaluate(t);
}

static tm_status finish(trainer *t) {
    char hash[33];
    TM_TRY(save_to(t, t->cfg->output_dir));
    TM_TRY(job_state_hash(t->job, (uint64_t)t->step, hash));
    TM_TRY(log_event(t, "end", hash, NAN));
    return write_run_json(t, "finished");
}

static void summary(trainer *t) {
    char peak[32];
    uint64_t read = 0, written = 0;
    tm_exec_stats s;
    tm_exec_get_stats(t->job->exec, &s);
    for (int k = 0; k < TM_KINDS; k++) {
        read += s.read_bytes[k];
        written += s.write_bytes[k];
    }
    tm_log(TM_LOG_INFO,
           "done: %" PRId64
           " steps in %.1f s, peak memory %s, read %.2f GB, wrote %.2f GB (%.3f TB per 1,000 steps); model in %s",
           t->step, seconds(tm_now_ns() - t->start_ns), tm_format_size(tm_mem_resident_peak_bytes(), peak, sizeof peak),
           (double)read * 1e-9, (double)written * 1e-9, t->step ? (double)written / (double)t->step * 1e-9 : 0,
           t->cfg->output_dir);
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void catch_signals(void) {
    struct sigaction a = {.sa_handler = job_stop_on_signal};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static void trainer_close(trainer *t) {
    tm_append_close(t->log);
    tm_plan_free(t->plan);
    tm_plan_free(t->eval_plan);
    tm_plan_free(t->first_plan);
    tm_plan_free(t->drain_plan);
    job_close(t->job);
    data_close(t->train);
    data_close(t->eval);
    text_close(&t->text);
    tm_source_close(t->source);
    tm_config_free(t->cfg);
}

static tm_status prepare(trainer *t) {
    tm_model_config model;
    size_t len;
    TM_TRY(tm_kernels_init(0));
    TM_TRY(tm_source_open_bare(&t->source, t->cfg->model));
    const char *json = tm_source_config(t->source, &len);
    TM_TRY(tm_model_config_parse(&model, json, len, t->cfg->model));
    TM_TRY(text_open(&t->text, t->source));
    TM_TRY(open_data(t, &model));
    preview(t);
    text_close(&t->text); /* its memory belongs to the frames from here on */
    (void)malloc_trim(0);
    return TM_OK;
}

/* On the way out of a failure: the first error is the one that counts. */
static void discard(const char *path) {
    if (tm_remove_tree(path) != TM_OK) tm_log(TM_LOG_WARN, "%s could not be removed", path);
}

tm_status tm_train_run(const tm_train_args *args) {
    trainer t = {.args = args};
    tm_status rc;
    bool started = false, made_dir = false;
    catch_signals();
    TM_GO(load_config(&t));
    TM_GO(check_output_dir(&t));
    made_dir = !tm_path_exists(t.cfg->output_dir);
    TM_GO(tm_make_dirs(t.cfg->output_dir));
    TM_GO(prepare(&t));
    TM_GO(open_job(&t));
    TM_GO(tm_append_open(&t.log, in_output(&t, "log.jsonl"), true));
    started = true;
    TM_GO(write_run_json(&t, "running"));
    TM_GO(run_steps(&t));
    TM_GO(finish(&t));
    if (!args->quiet) summary(&t);
done:
    if (rc != TM_OK && started) discard(in_output(&t, "run.json"));
    char dir[4096] = "";
    if (t.cfg) snprintf(dir, sizeof dir, "%s", t.cfg->output_dir);
    trainer_close(&t);
    if (rc != TM_OK && made_dir && !started) discard(dir);
    return rc;
}
