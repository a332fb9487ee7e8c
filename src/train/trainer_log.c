/* What a step looks like from outside: one JSON line, one progress line. */
#include "comm/comm.h"
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static double seconds(uint64_t ns) {
    return (double)ns * 1e-9;
}

static uint64_t sum(const uint64_t *by_kind) {
    uint64_t all = 0;
    for (int k = 0; k < TM_KINDS; k++) all += by_kind[k];
    return all;
}

static void bytes_fields(tm_json_writer *w, const tm_run_stats *run) {
    tm_jw_field_uint(w, "read_bytes", sum(run->read_bytes));
    tm_jw_field_uint(w, "write_bytes", sum(run->write_bytes));
    tm_jw_key(w, "bytes_by_kind");
    tm_jw_object(w);
    for (int k = 0; k < TM_KINDS; k++) {
        if (run->read_bytes[k] + run->write_bytes[k] == 0) continue;
        tm_jw_key(w, tm_kind_name((tm_kind)k));
        tm_jw_object(w);
        tm_jw_field_uint(w, "read", run->read_bytes[k]);
        tm_jw_field_uint(w, "write", run->write_bytes[k]);
        tm_jw_object_end(w);
    }
    tm_jw_object_end(w);
    const tm_plan_info *plan = tm_plan_get_info(run->plan);
    if (plan->device_bytes) {
        tm_jw_field_uint(w, "h2d_bytes", run->copied_bytes[TM_DEVICE_IN]);
        tm_jw_field_uint(w, "d2h_bytes", run->copied_bytes[TM_DEVICE_OUT]);
        tm_jw_field_uint(w, "planned_h2d_bytes", plan->copy_bytes[TM_DEVICE_IN]);
        tm_jw_field_uint(w, "planned_d2h_bytes", plan->copy_bytes[TM_DEVICE_OUT]);
        tm_jw_field_double(w, "copy_seconds", seconds(run->copy_ns));
    }
    tm_jw_field_uint(w, "planned_read_bytes", sum(plan->read_bytes));
    tm_jw_field_uint(w, "planned_write_bytes", sum(plan->write_bytes));
}

/* What this rank sent in the step, and every rank's memory. */
static void rank_fields(tm_json_writer *w, const trainer *t, const step_line *line, const tm_run_stats *run) {
    static const char *const link[TM_COMM_LINKS] = {"in_node", "between_nodes"};
    if (!t->comm) return;
    tm_jw_field_uint(w, "ranks", t->ranks.ranks);
    tm_jw_key(w, "comm_sent_bytes");
    tm_jw_object(w);
    for (int l = 0; l < TM_COMM_LINKS; l++) tm_jw_field_uint(w, link[l], line->sent[l]);
    tm_jw_object_end(w);
    tm_jw_field_double(w, "comm_seconds", seconds(run->comm_ns));
    tm_jw_key(w, "host_peak_bytes_by_rank");
    tm_jw_array(w);
    for (uint32_t r = 0; r < t->ranks.ranks; r++) tm_jw_uint(w, t->job->reported_peak[r]);
    tm_jw_array_end(w);
}

static void wait_fields(tm_json_writer *w, const tm_run_stats *run) {
    tm_jw_key(w, "wait_seconds");
    tm_jw_object(w);
    tm_jw_field_double(w, "disk_read", seconds(run->wait_read_ns));
    tm_jw_field_double(w, "disk_write", seconds(run->wait_write_ns));
    tm_jw_field_double(w, "copy", seconds(run->wait_copy_ns));
    tm_jw_field_double(w, "comm", seconds(run->wait_comm_ns));
    tm_jw_field_double(w, "compute", seconds(run->compute_ns));
    tm_jw_object_end(w);
}

static void progress(trainer *t, const step_line *line, uint64_t moved) {
    const step_result *r = &line->r;
    double step_seconds = line->took;
    if (t->args->quiet) return;
    bool tty = isatty(2), last = line->step == t->cfg->total_steps;
    if (!tty && !last && line->step % (t->cfg->logging_steps > 0 ? t->cfg->logging_steps : 1) != 0) return;
    double mean = seconds(tm_now_ns() - t->start_ns) / (double)line->step;
    double left = mean * (double)(t->cfg->total_steps - line->step);
    fprintf(stderr,
            "%sstep %" PRId64 "/%" PRId64
            "  loss %.4f  norm %.3f  lr %.3g  %.0f tok/s  %.2f s/step  disk %.2f GB/s  left %d:%02d:%02d%s",
            tty ? "\r\033[K" : "", line->step, t->cfg->total_steps,
            r->label_tokens ? r->loss_sum / (double)r->label_tokens : 0, r->grad_norm, r->learning_rate,
            (double)r->tokens / step_seconds, step_seconds, (double)moved / step_seconds * 1e-9, (int)(left / 3600),
            (int)(left / 60) % 60, (int)left % 60, tty && !last ? "" : "\n");
}

tm_status trainer_line_end(trainer *t, tm_json_writer *w, tm_buf *line) {
    tm_jw_object_end(w);
    tm_status rc = tm_jw_end(w);
    if (rc == TM_OK) rc = tm_append_line(t->log, line->data, line->len);
    tm_buf_free(line);
    return rc;
}

void trainer_line_begin(const trainer *t, tm_json_writer *w, tm_buf *line, const char *event) {
    tm_jw_init(w, line, 0);
    tm_jw_object(w);
    tm_jw_field_str(w, "event", event);
    tm_jw_key(w, "step");
    tm_jw_int(w, t->step);
}

tm_status trainer_log_step(trainer *t, const step_line *line, const tm_run_stats *run, double predicted_seconds) {
    const step_result *r = &line->r;
    tm_buf out = {0};
    tm_json_writer w;
    if (!trainer_speaks(t)) return TM_OK;
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_key(&w, "step");
    tm_jw_int(&w, line->step);
    tm_jw_field_double(&w, "loss", r->label_tokens ? r->loss_sum / (double)r->label_tokens : 0);
    tm_jw_field_double(&w, "grad_norm", r->grad_norm);
    tm_jw_field_double(&w, "learning_rate", r->learning_rate);
    tm_jw_field_uint(&w, "tokens", r->tokens);
    tm_jw_field_uint(&w, "label_tokens", r->label_tokens);
    tm_jw_field_double(&w, "step_seconds", line->took);
    tm_jw_field_double(&w, "predicted_step_seconds", predicted_seconds);
    tm_jw_field_double(&w, "tokens_per_second", (double)r->tokens / line->took);
    bytes_fields(&w, run);
    tm_jw_field_uint(&w, "host_peak_bytes", job_host_peak(t->job));
    tm_jw_field_uint(&w, "device_peak_bytes", t->job->need_device);
    wait_fields(&w, run);
    rank_fields(&w, t, line, run);
    trainer_log_scale(t, &w, line->loss_scale);
    if (!r->finite) {
        tm_jw_key(&w, "skipped");
        tm_jw_bool(&w, true);
    }
    tm_status rc = trainer_line_end(t, &w, &out);
    progress(t, line, sum(run->read_bytes) + sum(run->write_bytes));
    return rc;
}

tm_status trainer_log_event(trainer *t, const char *event, const char *hash, double eval_loss) {
    tm_buf out = {0};
    tm_json_writer w;
    if (!trainer_speaks(t)) return TM_OK;
    trainer_line_begin(t, &w, &out, event);
    if (hash) {
        tm_jw_key(&w, "state_hash");
        tm_jw_str(&w, hash);
        tm_jw_field_uint(&w, "host_peak_bytes", job_host_peak(t->job));
    }
    if (!isnan(eval_loss)) {
        tm_jw_field_double(&w, "loss", eval_loss);
        tm_jw_field_double(&w, "perplexity", exp(eval_loss));
        tm_jw_field_uint(&w, "label_tokens", t->eval_labels);
    }
    return trainer_line_end(t, &w, &out);
}

/* What each path had to take: import, training and commits; and its share of what the steps write. */
static void say_wear(const trainer *t) {
    const tm_store *store = t->job->store;
    uint64_t all = 0, step = t->plan ? sum(tm_plan_get_info(t->plan)->write_bytes) : 0;
    const char *path;
    for (unsigned i = 0; tm_store_path(store, i); i++) all += tm_store_written(store, i);
    for (unsigned i = 0; all > 0 && (path = tm_store_path(store, i)); i++) {
        double written = (double)tm_store_written(store, i);
        tm_log(TM_LOG_INFO, "wear: %.3f GB written to %s; steps write %.3g TB per 1,000", written * 1e-9, path,
               (double)step * 1000e-12 * written / (double)all);
    }
}

void trainer_summary(trainer *t) {
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
           " steps in %.1f s, peak memory %s, read %.2f GB, wrote %.2f GB (import and export included); model in %s",
           t->step, seconds(tm_now_ns() - t->start_ns), tm_format_size(job_host_peak(t->job), peak, sizeof peak),
           (double)read * 1e-9, (double)written * 1e-9, t->cfg->output_dir);
    say_wear(t);
}
