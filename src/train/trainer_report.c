/* What a run writes for others to look at: report.html, trainer_state.json, README.md, TensorBoard's events. None of it is
 * state: nothing goes on from it, and where it cannot be written a warning says so. */
#include "train/trainer_internal.h"

#include "io/file/file.h"
#include "session/batch.h"

#include <stdio.h>
#include <string.h>

static void describe_planned(const trainer *t, tm_json_writer *w) {
    const tm_plan_info *plan = tm_plan_get_info(t->plans.step);
    tm_jw_field_object(w, "planned");
    tm_jw_field_double(w, "seconds_per_step", trainer_watch_seconds(t));
    tm_jw_field_uint(w, "host_peak_bytes", job_planned_peak(t->job));
    tm_jw_field_uint(w, "device_peak_bytes", t->job->account.needs.device);
    tm_jw_field_uint(w, "read_bytes_per_step", tm_kinds_sum(plan->read_bytes));
    tm_jw_field_uint(w, "write_bytes_per_step", tm_kinds_sum(plan->write_bytes));
    tm_jw_object_end(w);
}

void trainer_describe_run(const trainer *t, tm_json_writer *w) {
    const char *warning;
    if (t->job && t->plans.step) {
        uint64_t budget = session_host_bytes(t->s.cfg);
        tm_jw_field_int(w, "total_steps", t->s.cfg->total_steps);
        tm_jw_field_uint(w, "steps_per_epoch", tm_dataset_steps_per_epoch(data_set(t->s.train)));
        if (budget != UINT64_MAX) tm_jw_field_uint(w, "host_budget_bytes", budget);
        describe_planned(t, w);
    }
    if (t->saves.best > 0) {
        tm_jw_field_object(w, "best");
        trainer_describe_best(t, w);
        tm_jw_object_end(w);
    }
    tm_jw_field_array(w, "warnings");
    for (unsigned i = 0; (warning = tm_log_warning(i)); i++) tm_jw_str(w, warning);
    tm_jw_array_end(w);
}

/* ---- files -------------------------------------------------------------------------------------------------------- */

static void forgive(tm_status rc, const char *what) {
    if (rc == TM_OK) return;
    tm_log(TM_LOG_WARN, "%s: %s; the run goes on without it", what, tm_error_get()->text);
    tm_error_clear();
}

void trainer_report_state(const trainer *t, const char *dir) {
    forgive(tm_trainer_state_write(dir, t->s.cfg->output_dir, t->step), "trainer_state.json");
}

static tm_status write_page(const char *output) {
    char path[4200];
    tm_history *r;
    TM_TRY(tm_history_open(&r, output));
    snprintf(path, sizeof path, "%s/report.html", output);
    tm_status rc = tm_report_write(path, (const tm_history *const[]){r}, 1);
    if (rc == TM_OK) rc = tm_model_card_write(output, r);
    tm_history_close(r);
    return rc;
}

void trainer_report_end(trainer *t) {
    forgive(write_page(t->out.here), "report.html");
}

void trainer_report_free(trainer *t) {
    tm_events_close(t->report.events);
    t->report.events = NULL;
}

/* ---- TensorBoard -------------------------------------------------------------------------------------------------- */

void trainer_report_open(trainer *t) {
    char dir[4200];
    const tm_config *c = t->s.cfg;
    if (!c->tensorboard) return;
    if (c->logging_dir)
        snprintf(dir, sizeof dir, "%s", c->logging_dir);
    else
        snprintf(dir, sizeof dir, "%s/runs", c->output_dir);
    forgive(tm_events_open(&t->report.events, dir), "TensorBoard's events");
}

void trainer_report_line(trainer *t, const char *line, size_t n) {
    if (!t->report.events) return;
    tm_status rc = tm_events_line(t->report.events, line, n);
    if (rc == TM_OK) return;
    tm_events_close(t->report.events);
    t->report.events = NULL;
    forgive(rc, "TensorBoard's events");
}
