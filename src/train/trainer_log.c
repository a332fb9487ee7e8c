/* log.jsonl: a line a step, and one for what happens between them. */
#include "comm/comm.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void bytes_fields(tm_json_writer *w, const tm_run_stats *run) {
    tm_jw_field_uint(w, "read_bytes", tm_kinds_sum(run->read_bytes));
    tm_jw_field_uint(w, "write_bytes", tm_kinds_sum(run->write_bytes));
    tm_jw_field_object(w, "bytes_by_kind");
    for (int k = 0; k < TM_KINDS; k++) {
        if (run->read_bytes[k] + run->write_bytes[k] == 0) continue;
        tm_jw_field_object(w, tm_kind_name((tm_kind)k));
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
        tm_jw_field_double(w, "copy_seconds", tm_seconds(run->copy_ns));
    }
    tm_jw_field_uint(w, "planned_read_bytes", tm_kinds_sum(plan->read_bytes));
    tm_jw_field_uint(w, "planned_write_bytes", tm_kinds_sum(plan->write_bytes));
}

/* What this rank sent in the step, and every rank's memory. */
static void rank_fields(tm_json_writer *w, const trainer *t, const step_line *line, const tm_run_stats *run) {
    static const char *const link[TM_COMM_LINKS] = {"in_node", "between_nodes"};
    if (!t->s.comm) return;
    tm_jw_field_uint(w, "ranks", t->s.ranks.ranks);
    tm_jw_field_object(w, "comm_sent_bytes");
    for (int l = 0; l < TM_COMM_LINKS; l++) tm_jw_field_uint(w, link[l], line->sent[l]);
    tm_jw_object_end(w);
    tm_jw_field_double(w, "comm_seconds", tm_seconds(run->comm_ns));
    tm_jw_field_array(w, "host_peak_bytes_by_rank");
    for (uint32_t r = 0; r < t->s.ranks.ranks; r++) tm_jw_uint(w, t->job->step.reported_peak[r]);
    tm_jw_array_end(w);
}

static void wait_fields(tm_json_writer *w, const tm_run_stats *run) {
    tm_jw_field_object(w, "wait_seconds");
    tm_jw_field_double(w, "disk_read", tm_seconds(run->wait_read_ns));
    tm_jw_field_double(w, "disk_write", tm_seconds(run->wait_write_ns));
    tm_jw_field_double(w, "copy", tm_seconds(run->wait_copy_ns));
    tm_jw_field_double(w, "comm", tm_seconds(run->wait_comm_ns));
    tm_jw_field_double(w, "compute", tm_seconds(run->compute_ns));
    tm_jw_object_end(w);
}

tm_status trainer_line_end(trainer *t, tm_json_writer *w, tm_buf *line) {
    tm_jw_object_end(w);
    tm_status rc = tm_jw_end(w);
    if (rc == TM_OK) rc = tm_append_line(t->log.file, line->data, line->len);
    if (rc == TM_OK) trainer_count_line(t, line->data, line->len);
    if (rc == TM_OK) trainer_report_line(t, line->data, line->len);
    tm_buf_free(line);
    return rc;
}

void trainer_line_begin(const trainer *t, tm_json_writer *w, tm_buf *line, const char *event) {
    tm_jw_init(w, line, 0);
    tm_jw_object(w);
    tm_jw_field_str(w, "event", event);
    tm_jw_field_int(w, "step", t->step);
}

tm_status trainer_log_step(trainer *t, const step_line *line, const tm_run_stats *run, double predicted_seconds) {
    const step_frame *r = &line->r;
    tm_buf out = {0};
    tm_json_writer w;
    if (!session_is_rank0(&t->s)) return TM_OK;
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_field_int(&w, "step", line->step);
    tm_jw_field_double(&w, "loss", line->total.labels ? step_total_loss(t->job, &line->total) : 0);
    tm_jw_field_double(&w, "grad_norm", r->grad_norm);
    tm_jw_field_double(&w, "learning_rate", r->learning_rate);
    tm_jw_field_uint(&w, "tokens", line->total.tokens);
    tm_jw_field_uint(&w, "label_tokens", line->total.labels);
    step_total_write(t->job, &line->total, &w);
    tm_jw_field_double(&w, "step_seconds", line->took);
    tm_jw_field_double(&w, "data_seconds", line->data);
    tm_jw_field_double(&w, "predicted_step_seconds", predicted_seconds);
    tm_jw_field_double(&w, "tokens_per_second", (double)line->total.tokens / line->took);
    bytes_fields(&w, run);
    tm_jw_field_uint(&w, "host_peak_bytes", job_host_peak(t->job));
    tm_jw_field_uint(&w, "device_peak_bytes", t->job->account.needs.device);
    wait_fields(&w, run);
    rank_fields(&w, t, line, run);
    trainer_log_scale(t, &w, line->loss_scale);
    if (!r->finite) {
        tm_jw_field_bool(&w, "skipped", true);
    }
    tm_status rc = trainer_line_end(t, &w, &out);
    trainer_mark_log(t);
    trainer_show_step(t, line, tm_kinds_sum(run->read_bytes) + tm_kinds_sum(run->write_bytes));
    return rc;
}

/* The same once more under HF Trainer's names, which metric_for_best_model takes. */
static void eval_fields(const trainer *t, tm_json_writer *w, double loss) {
    double value[STEP_METRICS], bits = trainer_bits_per_byte(t);
    uint32_t n = step_total_metrics(t->job, &t->eval.total, value);
    char name[64];
    tm_jw_field_double(w, "eval_loss", loss);
    if (!t->job->objective->by_sample) tm_jw_field_double(w, "eval_perplexity", exp(loss));
    if (isfinite(bits)) tm_jw_field_double(w, "eval_bits_per_byte", bits);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "eval_%s", t->job->objective->metric[i]);
        if (isfinite(value[i])) tm_jw_field_double(w, name, value[i]);
    }
}

tm_status trainer_log_event(trainer *t, const char *event, const char *hash, double eval_loss) {
    tm_buf out = {0};
    tm_json_writer w;
    if (!session_is_rank0(&t->s)) return TM_OK;
    trainer_line_begin(t, &w, &out, event);
    if (hash) {
        tm_jw_field_str(&w, "state_hash", hash);
        tm_jw_field_uint(&w, "host_peak_bytes", job_host_peak(t->job));
    }
    if (!isnan(eval_loss)) {
        tm_jw_field_double(&w, "loss", eval_loss);
        if (!t->job->objective->by_sample) tm_jw_field_double(&w, "perplexity", exp(eval_loss));
        tm_jw_field_uint(&w, "label_tokens", t->eval.total.labels);
        step_total_write(t->job, &t->eval.total, &w);
        eval_fields(t, &w, eval_loss);
    }
    if (!strcmp(event, "eval")) trainer_log_tasks(t, &w);
    return trainer_line_end(t, &w, &out);
}
