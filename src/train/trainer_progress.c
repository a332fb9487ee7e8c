/* What a person sees of a run: what it is going to take, how far it is, what it took. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double since(uint64_t ns) {
    return tm_seconds(tm_now_ns() - ns);
}

/* ---- what it will take --------------------------------------------------------------------------------------- */

/* To the offload paths, by their stores: the import, steps and commits; beside that the models that were saved. */
static uint64_t written_to_paths(const trainer *t) {
    uint64_t all = 0;
    for (unsigned i = 0; tm_store_path(t->job->tiers.store, i); i++) all += tm_store_written(t->job->tiers.store, i);
    return all;
}

/* Before the first step. On one rank, or of the first. */
static tm_status say_plan(trainer *t) {
    char time[24], peak[32];
    TM_TRY(trainer_watch_forecast(t, &t->said.planned));
    t->said.planned_before = written_to_paths(t);
    const run_forecast *f = &t->said.planned;
    tm_log(TM_LOG_INFO,
           "to come: %" PRId64 " steps, about %s (%.3g s a step), %.3f GB to the offload paths and %.3f GB of models "
           "written, peak memory %s",
           f->steps, tm_format_left(f->seconds, time, sizeof time), trainer_watch_seconds(t), f->write_bytes * 1e-9,
           f->model_bytes * 1e-9, tm_format_size(job_planned_peak(t->job), peak, sizeof peak));
    return TM_OK;
}

typedef struct step_text {
    char step[64], loss[24], left[40], rate[32], each[32], learning_rate[24], norm[24], disk[32];
} step_text;

/* By the steps of this process alone: those before a resume took seconds that nobody here has seen. */
static double seconds_left(const trainer *t, double share) {
    double done = (double)(t->step - t->life.start_step) + share,
           left = (double)(t->s.cfg->total_steps - t->step) - share;
    double each = t->step > t->life.start_step ? since(t->life.start_ns) / done : trainer_watch_seconds(t);
    return each * fmax(left, 0);
}

static void describe(const trainer *t, const step_line *line, uint64_t moved, step_text *x) {
    const step_frame *r = &line->r;
    char left[24];
    *x = (step_text){.step = ""};
    snprintf(x->step, sizeof x->step, "step %" PRId64 "/%" PRId64, line->step, t->s.cfg->total_steps);
    snprintf(x->loss, sizeof x->loss, "loss %.4f", line->total.labels ? step_total_loss(t->job, &line->total) : 0);
    snprintf(x->learning_rate, sizeof x->learning_rate, "lr %.3g", r->learning_rate);
    snprintf(x->rate, sizeof x->rate, "%.0f tok/s", (double)line->total.tokens / line->took);
    snprintf(x->each, sizeof x->each, "%.2f s/step", line->took);
    snprintf(x->norm, sizeof x->norm, "norm %.3f", r->grad_norm);
    snprintf(x->disk, sizeof x->disk, "disk %.2f GB/s", (double)moved / line->took * 1e-9);
    if (line->step < t->s.cfg->total_steps)
        snprintf(x->left, sizeof x->left, "left %s", tm_format_left(seconds_left(t, 0), left, sizeof left));
}

enum { STEP_PARTS = 8 };
static void parts(const step_text *x, tm_live_part out[STEP_PARTS]) {
    const tm_live_part all[STEP_PARTS] = {{x->step, 0}, {x->loss, 1}, {x->left, 2}, {x->learning_rate, 4},
                                          {x->rate, 3}, {x->each, 5}, {x->norm, 6}, {x->disk, 7}};
    for (int i = 0; i < STEP_PARTS; i++) out[i] = all[i];
}

/* The losses of the latest steps, behind the loss, where the terminal has the characters. */
enum { CURVE_COLUMNS = 12 };
static void draw_losses(const trainer *t, tm_buf *out) {
    tm_point p[TRAINER_LOSSES];
    uint32_t n = 0;
    uint32_t first = t->n_losses > TRAINER_LOSSES ? t->n_losses - TRAINER_LOSSES : 0;
    if (!tm_live_possible() || !tm_terminal_is_utf8()) return;
    for (uint32_t i = first; i < t->n_losses; i++) {
        double loss = t->losses[i % TRAINER_LOSSES];
        if (isfinite(loss)) p[n++] = (tm_point){i, loss};
    }
    if (tm_curve_line(out, p, n, CURVE_COLUMNS) != TM_OK) tm_error_clear(); /* a line without it says as much */
}

static void show_live(const trainer *t, const step_text *x) {
    char memory[80], a[32], b[32];
    uint64_t budget = session_host_bytes(t->s.cfg), peak = job_host_peak(t->job);
    tm_buf curve = {0};
    draw_losses(t, &curve);
    snprintf(memory, sizeof memory, "%s%s%s", tm_format_size(peak, a, sizeof a), budget == UINT64_MAX ? "" : " of ",
             budget == UINT64_MAX ? "" : tm_format_size(budget, b, sizeof b));
    const tm_live_part part[] = {{x->step, 0}, {x->loss, 1}, {curve.data ? curve.data : "", 3},
                                 {x->left, 2}, {x->rate, 4}, {memory, 5},
                                 {x->disk, 6}, {x->each, 7}, {x->learning_rate, 8},
                                 {x->norm, 9}};
    tm_live(part, TM_COUNT(part));
    tm_buf_free(&curve);
}

/* A line that stays: every logging_steps, or where that is 0 the first step, the last, each tenth of the run, and before
 * it has been silent for too long. */
static const double SILENT_ON_TERMINAL = 600, SILENT_ELSEWHERE = 60;

static bool stays(const trainer *t, int64_t step) {
    int64_t every = t->s.cfg->logging_steps, total = t->s.cfg->total_steps;
    if (step == total) return true;
    if (every > 0) return trainer_due(t, every, TM_BY_EPOCH_LOG, step);
    double tenth = (double)total / 10;
    bool silent = since(t->said.ns) >= (tm_live_possible() ? SILENT_ON_TERMINAL : SILENT_ELSEWHERE);
    return step == t->life.start_step + 1 || silent || floor((double)step / tenth) > floor((double)(step - 1) / tenth);
}

/* The same parts on every line: as many as the terminal is wide, all where there is none. */
static void say_step(trainer *t, const tm_live_part *part) {
    enum { UNLIMITED = 1000 };
    char text[320];
    unsigned columns = tm_live_possible() ? tm_live_columns() : UNLIMITED;
    tm_live_fit(part, STEP_PARTS, columns > 1 ? columns - 1 : 1, text, sizeof text);
    tm_say("%s\n", text);
    t->said.ns = tm_now_ns();
}

void trainer_show_step(trainer *t, const step_line *line, uint64_t moved) {
    tm_live_part part[STEP_PARTS];
    step_text x;
    if (t->s.args->quiet) return;
    describe(t, line, moved, &x);
    parts(&x, part);
    t->said.line = *line;
    t->said.moved = moved;
    if (stays(t, line->step)) say_step(t, part);
    if (line->step < t->s.cfg->total_steps) show_live(t, &x);
}

enum { LIVE_NS = 100000000 };

/* Within a step, which may take minutes: how far this one is, and beside that what is known of the latest one. */
static void show_share(void *ctx, double share) {
    trainer *t = ctx;
    char left[24];
    step_text x = {.step = ""};
    if (!tm_live_possible() || t->eval.under_way || t->step >= t->s.cfg->total_steps) return;
    if (tm_now_ns() - t->said.live_ns < LIVE_NS) return;
    t->said.live_ns = tm_now_ns();
    if (t->said.line.step > 0) describe(t, &t->said.line, t->said.moved, &x);
    snprintf(x.step, sizeof x.step, "step %" PRId64 "/%" PRId64 " %.0f%%", t->step + 1, t->s.cfg->total_steps,
             100 * share);
    snprintf(x.left, sizeof x.left, "left %s%s", tm_format_left(seconds_left(t, share), left, sizeof left),
             t->step > t->life.start_step ? "" : " (planned)");
    show_live(t, &x);
}

tm_status trainer_show_steps(trainer *t) {
    t->life.start_step = t->step;
    t->said.ns = tm_now_ns();
    if (t->s.args->quiet || !session_is_rank0(&t->s)) return TM_OK;
    TM_TRY(say_plan(t));
    t->life.start_ns = tm_now_ns();
    t->job->sinks.show = show_share;
    t->job->sinks.show_ctx = t;
    return TM_OK;
}

void trainer_show_no_more(trainer *t) {
    t->job->sinks.show = NULL;
    tm_live_end();
}

/* What each path had to take, and its share of what the steps write. */
static void say_wear(const trainer *t) {
    const tm_store *store = t->job->tiers.store;
    uint64_t all = written_to_paths(t),
             step = t->plans.step ? tm_kinds_sum(tm_plan_get_info(t->plans.step)->write_bytes) : 0;
    const char *path;
    for (unsigned i = 0; all > 0 && (path = tm_store_path(store, i)); i++) {
        double written = (double)tm_store_written(store, i);
        tm_log(TM_LOG_INFO, "wear: %.3f GB written to %s; steps write %.3g TB per 1,000", written * 1e-9, path,
               (double)step * 1000e-12 * written / (double)all);
    }
}

/* What was said at the start beside what came of it. Seconds a step are means of what the steps themselves took. */
static void say_beside(const trainer *t) {
    char said[32], was[32];
    const run_forecast *f = &t->said.planned;
    double steps = (double)(t->step - t->life.start_step);
    if (f->steps <= 0 || steps <= 0) return;
    tm_log(TM_LOG_INFO,
           "planned and found: %.4g and %.4g s, a step %.3g and %.3g s; %.3f and %.3f GB to the offload paths; peak %s "
           "and %s",
           f->seconds, since(t->life.start_ns), trainer_watch_seconds(t), tm_seconds(t->life.steps_ns) / steps,
           ((double)t->said.planned_before + f->write_bytes) * 1e-9, (double)written_to_paths(t) * 1e-9,
           tm_format_size(job_planned_peak(t->job), said, sizeof said),
           tm_format_size(job_host_peak(t->job), was, sizeof was));
}

void trainer_summary(trainer *t) {
    char peak[32];
    tm_exec_stats s;
    tm_exec_get_stats(t->job->tiers.exec, &s);
    tm_log(TM_LOG_INFO,
           "done: %" PRId64
           " steps in %.1f s, peak memory %s, read %.3f GB, wrote %.3f GB (import and commits included) "
           "and %.3f GB of models; model in %s",
           t->step - t->life.start_step, since(t->life.start_ns),
           tm_format_size(job_host_peak(t->job), peak, sizeof peak), (double)tm_kinds_sum(s.read_bytes) * 1e-9,
           (double)written_to_paths(t) * 1e-9, (double)t->job->progress.exported_bytes * 1e-9, t->s.cfg->output_dir);
    say_wear(t);
    say_beside(t);
}
