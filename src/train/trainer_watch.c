/* Steps as predicted and as they ran. A step's line is written when its last transfer has landed, which is a little
 * into the step after: until then what the step came to waits here. */
#include "offload/sim/sim.h"
#include "planner/cost.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

enum { RUNS = 3, WAITING = 2 };

struct trainer_watch {
    tm_machine machine;
    job_costs *costs;
    tm_link *step_link, *first_link; /* from a step to the next; from the first of update F to the next */
    tm_sim_result step, first;       /* simulated */
    tm_trace *trace;
    step_line line[WAITING]; /* steps whose transfers are still under way, oldest first */
    tm_run_stats ended[WAITING];
    uint32_t n_line, n_ended;
    tm_span *span;                        /* of the last of `ended` */
    tm_io_stats before[TM_MACHINE_PATHS]; /* of the paths, before the first step */
    tm_status status;
    tm_error error;
};

/* ---- before the plan is chosen ------------------------------------------------------------------------------- */

tm_status trainer_watch_open(trainer *t, const job_opts *o) {
    trainer_watch *w = tm_calloc(1, sizeof *w);
    if (!w) return tm_nomem(sizeof *w);
    t->watch = w;
    TM_TRY(session_machine(o, &w->machine));
    job_shape shape = session_step_shape(&t->s);
    run_load load = run_step_load(&t->s, tm_model_get_config(t->job->model));
    const job_costs_ask ask = {.shape = &shape,
                               .load = &load.load,
                               .mode = JOB_COSTS_MEASURE,
                               .run = true,
                               .steps = (double)t->s.cfg->total_steps};
    TM_TRY(job_costs_open(&w->costs, t->job, &ask, &w->machine));
    job_use_costs(t->job, &w->machine, job_cost, w->costs);
    return TM_OK;
}

void trainer_watch_close(trainer *t) {
    trainer_watch *w = t->watch;
    if (!w) return;
    tm_trace_abandon(w->trace);
    tm_sim_free(&w->step);
    tm_sim_free(&w->first);
    tm_link_free(w->step_link);
    tm_link_free(w->first_link);
    job_costs_close(w->costs);
    tm_free(w->span);
    tm_free(w);
    t->watch = NULL;
}

static tm_status predict(const trainer *t, tm_sim_result *out, const tm_plan *plan, const tm_link *link,
                         uint32_t runs) {
    const trainer_watch *w = t->watch;
    return tm_simulate(out, plan,
                       &(tm_sim_opts){.machine = &w->machine,
                                      .cost = job_cost,
                                      .ctx = w->costs,
                                      .runs = runs,
                                      .link = link,
                                      .timeline = t->s.args->trace != NULL});
}

static void add_trace(trainer *t, const step_line *line, const tm_run_stats *s) {
    trainer_watch *w = t->watch;
    const tm_sim_result *r = line->plan == t->plans.step ? &w->step : &w->first;
    if (!w->trace || w->status != TM_OK) return;
    w->status = tm_trace_add(w->trace, &(tm_trace_step){.plan = line->plan,
                                                        .step = (uint64_t)line->step,
                                                        .at = line->at,
                                                        .simulated = r->span,
                                                        .measured = s->span,
                                                        .name = job_op_name,
                                                        .ctx = t->job});
    if (w->status != TM_OK) w->error = *tm_error_get();
}

static void write_line(trainer *t, const step_line *line, const tm_run_stats *s) {
    trainer_watch *w = t->watch;
    double predicted = line->plan == t->plans.step ? w->step.seconds : w->first.seconds;
    add_trace(t, line, s);
    if (w->status == TM_OK) w->status = trainer_log_step(t, line, s, predicted);
    if (w->status != TM_OK) w->error = *tm_error_get();
}

/* The step's own numbers and the end of its transfers come in either order. */
static void match(trainer *t) {
    trainer_watch *w = t->watch;
    while (w->n_line > 0 && w->n_ended > 0) {
        write_line(t, &w->line[0], &w->ended[0]);
        memmove(w->line, w->line + 1, sizeof *w->line * --w->n_line);
        memmove(w->ended, w->ended + 1, sizeof *w->ended * --w->n_ended);
    }
}

static void run_ended(void *ctx, const tm_run_stats *s) {
    trainer *t = ctx;
    trainer_watch *w = t->watch;
    if (!w) return;                                                    /* on the way out of a failure */
    if (s->plan != t->plans.step && s->plan != t->plans.first) return; /* evaluations and the like */
    trainer_profile_add(t, s);
    TM_ASSERT(w->n_ended < WAITING);
    tm_run_stats *kept = &w->ended[w->n_ended++];
    *kept = *s;
    match(t);
    if (w->n_ended == 0) return;
    if (s->span && w->trace) { /* the step's own numbers come when this run returns; its times are gone by then */
        tm_free(w->span);
        w->span = tm_malloc(sizeof *w->span * tm_plan_get_info(s->plan)->ops);
        if (w->span) memcpy(w->span, s->span, sizeof *w->span * tm_plan_get_info(s->plan)->ops);
        kept->span = w->span;
    }
}

static tm_status path_stats(const trainer *t, tm_io_stats stats[TM_MACHINE_PATHS]) {
    TM_TRY(tm_exec_settle(t->job->tiers.exec));
    for (unsigned i = 0; i < TM_MACHINE_PATHS; i++) tm_store_stats(t->job->tiers.store, i, &stats[i]);
    return TM_OK;
}

tm_status trainer_watch_link(trainer *t, const tm_plan *step) {
    trainer_watch *w = t->watch;
    TM_TRY(tm_link_create(&w->step_link, step, step));
    return t->plans.first ? tm_link_create(&w->first_link, t->plans.first, step) : TM_OK;
}

tm_status trainer_watch_start(trainer *t) {
    trainer_watch *w = t->watch;
    TM_TRY(predict(t, &w->step, t->plans.step, w->step_link, RUNS));
    if (t->plans.first) TM_TRY(predict(t, &w->first, t->plans.first, NULL, 1));
    if (t->s.args->trace) {
        TM_TRY(tm_trace_open(&w->trace, t->s.args->trace));
        tm_exec_trace(t->job->tiers.exec, true);
    }
    tm_exec_on_done(t->job->tiers.exec, run_ended, t);
    return path_stats(t, w->before);
}

/* Somebody looks at the state, or writes it down, when the step that comes next is done. */
static bool looked_at(const trainer *t) {
    const tm_config *c = t->s.cfg;
    int64_t next = t->step + 1;
    return next >= c->total_steps ||
           (session_evaluates(&t->s) && trainer_due(t, c->eval_steps, TM_BY_EPOCH_EVAL, next)) ||
           trainer_due(t, c->save_steps, TM_BY_EPOCH_SAVE, next) || trainer_commit_due(t);
}

void trainer_watch_announce(trainer *t, const tm_plan *plan) {
    if (looked_at(t)) return;
    tm_exec_announce(t->job->tiers.exec, t->plans.step,
                     plan == t->plans.step ? t->watch->step_link : t->watch->first_link);
}

/* From the second step on. A run that has no memory for it teaches nothing. */
static void listen(trainer *t) {
    bool apart =
        t->job->tiers.traits.own_processors; /* else a device computes on a thread of its own, not to be heard */
    if (t->job->costs.hear || t->job->ranks.ranks > 1 || (t->job->tiers.device && !apart)) return;
    if (job_costs_observe(t->watch->costs) != TM_OK) {
        tm_error_clear();
        return;
    }
    t->job->costs.hear = job_costs_hear;
    t->job->costs.hear_ctx = t->watch->costs;
    if (apart) tm_exec_on_device_op(t->job->tiers.exec, job_costs_hear, t->watch->costs);
}

tm_status trainer_watch_step(trainer *t, const step_line *line) {
    trainer_watch *w = t->watch;
    TM_ASSERT(w->n_line < WAITING);
    listen(t);
    w->line[w->n_line++] = *line;
    match(t);
    if (w->status == TM_OK) return TM_OK;
    tm_error_clear();
    tm_error_set(&w->error);
    return w->status;
}

/* Less says little of a disk. */
static const double DISK_SECONDS = 1;

/* Paths on one disk share it: their bytes add up, and the longest wait is the disk's. */
static tm_status teach_disk(const trainer *t, unsigned first, const tm_io_stats *after) {
    const trainer_watch *w = t->watch;
    const char *path = tm_store_path(t->job->tiers.store, first);
    uint64_t read = 0, written = 0, ns = 0;
    for (unsigned i = first; i < w->machine.n_paths; i++) {
        if (w->machine.path[i].disk != first) continue;
        read += after[i].full_read_bytes - w->before[i].full_read_bytes;
        written += after[i].full_write_bytes - w->before[i].full_write_bytes;
        ns = tm_max_u64(ns, after[i].full_ns - w->before[i].full_ns);
    }
    double seconds = 1e-9 * (double)ns;
    return !path || seconds < DISK_SECONDS ? TM_OK : tm_profile_teach_disk(path, read, written, seconds);
}

static tm_status teach_disks(const trainer *t) {
    tm_io_stats after[TM_MACHINE_PATHS];
    TM_TRY(path_stats(t, after));
    for (unsigned i = 0; t->job->ranks.ranks == 1 && i < t->watch->machine.n_paths; i++)
        if (t->watch->machine.path[i].disk == i) TM_TRY(teach_disk(t, i, after));
    return TM_OK;
}

/* A profile that cannot be written costs nothing but foresight. */
static void learn(trainer *t) {
    t->job->costs.hear = NULL;
    tm_exec_on_device_op(t->job->tiers.exec, NULL, NULL);
    if (job_costs_learn(t->watch->costs) == TM_OK && teach_disks(t) == TM_OK) return;
    tm_log(TM_LOG_WARN, "%s; what this run took is not kept for `plan`", tm_error_get()->text);
    tm_error_clear();
}

static tm_status commit_trace(trainer_watch *w) {
    tm_trace *trace = w->trace;
    w->trace = NULL;
    return trace ? tm_trace_commit(trace) : TM_OK;
}

tm_status trainer_watch_end(trainer *t) {
    trainer_watch *w = t->watch;
    if (w->status != TM_OK) {
        tm_error_clear();
        tm_error_set(&w->error);
        return w->status;
    }
    learn(t);
    return commit_trace(w);
}

/* A trace of the steps that there were is worth as much after a signal; the signal stays what ended the run. */
void trainer_watch_stopped(trainer *t) {
    tm_error said = *tm_error_get();
    trainer_watch *w = t->watch;
    tm_error_clear();
    if (w->trace && tm_exec_settle(t->job->tiers.exec) != TM_OK)
        tm_error_clear(); /* the last step's line waits for it */
    if (w->status == TM_OK && commit_trace(w) != TM_OK) tm_log(TM_LOG_WARN, "%s", tm_error_get()->text);
    tm_error_clear();
    tm_error_set(&said);
}

tm_status trainer_watch_forecast(trainer *t, run_forecast *out) {
    trainer_watch *w = t->watch;
    return run_forecast_make(&(run_rates){.s = &t->s,
                                          .job = t->job,
                                          .plans = &t->plans,
                                          .step = t->step,
                                          .machine = &w->machine,
                                          .cost = job_cost,
                                          .ctx = w->costs,
                                          .step_seconds = w->step.seconds},
                             out);
}

tm_status trainer_watch_draw(trainer *t, const tm_plan *step, const pass_opts *way) {
    trainer_watch *w = t->watch;
    tm_sim_result r;
    tm_json_writer out;
    char title[96];
    snprintf(title, sizeof title, "update %s, activations %s", pass_update_name(way),
             pass_activations_name(t->job, way));
    TM_TRY(tm_simulate(&r, step,
                       &(tm_sim_opts){.machine = &w->machine,
                                      .cost = job_cost,
                                      .ctx = w->costs,
                                      .runs = RUNS,
                                      .link = w->step_link,
                                      .timeline = true}));
    tm_buf_free(&t->report.step);
    tm_jw_init(&out, &t->report.step, 0);
    tm_status rc = tm_timeline_json(
        &out,
        &(tm_timeline){
            .plan = step, .result = &r, .machine = &w->machine, .title = title, .name = job_op_name, .ctx = t->job});
    tm_sim_free(&r);
    return tm_first(rc, tm_jw_end(&out));
}

double trainer_watch_seconds(const trainer *t) {
    return t->watch->step.seconds;
}
