/* What a step looks like from outside: one JSON line, one progress line. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

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

tm_status trainer_log_step(trainer *t, const tm_plan *ran, uint64_t began_ns) {
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

tm_status trainer_log_event(trainer *t, const char *event, const char *hash, double eval_loss) {
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
           t->step, seconds(tm_now_ns() - t->start_ns), tm_format_size(tm_mem_resident_peak_bytes(), peak, sizeof peak),
           (double)read * 1e-9, (double)written * 1e-9, t->cfg->output_dir);
}
