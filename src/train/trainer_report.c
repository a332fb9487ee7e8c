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
        if (t->report.step.len > 0) {
            tm_jw_key(w, "step_timeline");
            tm_jw_raw(w, t->report.step.data, t->report.step.len);
        }
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

void trainer_report_step(trainer *t, const tm_plan *step, const pass_opts *way) {
    if (!session_is_rank0(&t->s)) return;
    tm_status rc = trainer_watch_draw(t, step, way);
    if (rc != TM_OK) tm_buf_free(&t->report.step);
    forgive(rc, "the timeline of a step");
}

static tm_status write_page(const char *output, uint32_t points, bool card) {
    char path[4200];
    tm_history *r;
    TM_TRY(tm_history_open(&r, output, points));
    snprintf(path, sizeof path, "%s/report.html", output);
    tm_status rc = tm_report_write(path, (const tm_history *const[]){r}, 1);
    if (rc == TM_OK && card) rc = tm_model_card_write(output, r);
    tm_history_close(r);
    return rc;
}

/* Beside the plan's memory, of which SESSION_PAGE_BYTES are its own: curves of few points. */
void trainer_report_checkpoint(trainer *t) {
    enum { POINTS = 128 };
    forgive(write_page(t->s.cfg->output_dir, POINTS, false), "report.html");
}

/* Whether a finished run was killed before its page and, last of all, its card were there. */
bool trainer_report_is_missing(const trainer *t) {
    char path[4200];
    snprintf(path, sizeof path, "%s/README.md", t->out.here);
    return !tm_path_exists(path);
}

void trainer_report_end(trainer *t) {
    forgive(write_page(t->out.here, 0, true), "report.html");
}

void trainer_report_free(trainer *t) {
    tm_buf_free(&t->report.step);
    tm_events_close(t->report.events);
    t->report.events = NULL;
}

/* ---- held-out prompts --------------------------------------------------------------------------------------------- */

/* Tokens of a row that are looked at, of a prompt, and of what is wanted. */
enum { MOST_OF_ROW = 4096, MOST_OF_PROMPT = 1024, ANSWER = 64 };

typedef struct question_room {
    int32_t ids[MOST_OF_ROW], labels[MOST_OF_ROW];
    uint8_t mask[MOST_OF_ROW];
    uint32_t begin[MOST_OF_ROW];
} question_room;

static void put_ids(tm_json_writer *w, const char *key, const int32_t *id, uint32_t n) {
    tm_jw_field_array(w, key);
    for (uint32_t i = 0; i < n; i++) tm_jw_int(w, id[i]);
    tm_jw_array_end(w);
}

/* Of a row's first document: all up to what is learned first. Where all is learned, its beginning. Labels are shifted. */
static bool put_question(tm_json_writer *w, const question_room *q, uint32_t seq) {
    enum { BEGINNING = 16 };
    uint32_t n = 0, prompt = 0, wanted = 0;
    while (n < seq && q->mask[n] && q->begin[n] == 0) n++;
    while (prompt < n && q->labels[prompt] == TM_LABEL_IGNORE) prompt++;
    prompt = prompt < 2 && q->ids[0] >= 0 ? (n / 2 < BEGINNING ? n / 2 : BEGINNING) : prompt + 1;
    if (prompt == 0 || prompt >= n || prompt > MOST_OF_PROMPT) return false;
    while (prompt + wanted < n && wanted < ANSWER && q->labels[prompt + wanted - 1] != TM_LABEL_IGNORE) wanted++;
    if (wanted == 0) return false;
    tm_jw_object(w);
    put_ids(w, "prompt_ids", q->ids, prompt);
    put_ids(w, "wanted_ids", q->ids + prompt, wanted);
    tm_jw_object_end(w);
    return true;
}

/* The first of the samples that are neither too long nor without a prompt. */
static tm_status put_questions(tm_dataset *ds, question_room *q, tm_json_writer *w) {
    enum { LOOK_AT = 64 };
    tm_batch_arrays to = {
        .capacity = MOST_OF_ROW, .ids = q->ids, .labels = q->labels, .key_mask = q->mask, .begin = q->begin};
    tm_batch_shape shape;
    TM_TRY(tm_dataset_set_batches(ds, 1, 1, 1));
    uint64_t most = tm_min_u64(LOOK_AT, tm_dataset_steps_per_epoch(ds));
    for (uint64_t step = 0, n = 0; step < most && n < TM_REPORT_QUESTIONS; step++) {
        tm_dataset_shape(ds, step, 0, 0, &shape);
        if (shape.rows == 0 || shape.tokens > MOST_OF_ROW) continue;
        TM_TRY(tm_dataset_batch(ds, step, 0, 0, &to, &shape));
        n += put_question(w, q, shape.seq);
    }
    return TM_OK;
}

static tm_status write_questions(const char *path, tm_dataset *ds) {
    tm_buf text = {0};
    tm_json_writer w;
    question_room *q = tm_malloc(sizeof *q);
    tm_status rc = q ? TM_OK : tm_nomem(sizeof *q);
    tm_jw_init(&w, &text, 0);
    tm_jw_object(&w);
    tm_jw_field_int(&w, "tokens", ANSWER);
    tm_jw_field_array(&w, "questions");
    if (rc == TM_OK) rc = put_questions(ds, q, &w);
    tm_jw_array_end(&w);
    tm_jw_object_end(&w);
    rc = tm_first(rc, tm_jw_end(&w));
    if (rc == TM_OK) rc = tm_file_write(path, text.data, text.len);
    tm_buf_free(&text);
    tm_free(q);
    return rc;
}

void trainer_report_questions(trainer *t) {
    char path[4200];
    if (!t->report.ended || t->from.done) return;
    snprintf(path, sizeof path, "%s/" TM_REPORT_ANSWERS, t->out.here);
    forgive(t->s.eval ? write_questions(path, data_set(t->s.eval)) : tm_remove_tree(path), "held-out prompts");
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
