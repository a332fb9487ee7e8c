/* The loop: steps, evaluations, checkpoints, and the end. */
#include "train/trainer_internal.h"

#include "io/file/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { MAX_SKIPPED = 50 };

static tm_plan *step_plan(const trainer *t) {
    return t->plans.folded && !t->pending ? t->plans.first : t->plans.step;
}

static tm_status check_finite(const trainer *t) {
    if (job_nonfinite(t->job) == 0) return TM_OK;
    return tm_fail(TM_EIO,
                   "step %" PRId64 ": %" PRIu64 " parameters are not finite after the update; lower learning_rate",
                   t->step, job_nonfinite(t->job));
}

/* So that the state is that of the step that was logged last. */
tm_status trainer_settle(trainer *t) {
    TM_TRY(tm_exec_settle(t->job->tiers.exec));
    if (!t->pending) return TM_OK;
    t->pending = false;
    t->torn = true;
    trainer_replay_step(t, t->step);
    tm_status rc = job_run(t->job, t->plans.drain);
    trainer_replay_step(t, 0);
    if (rc != TM_OK) return rc;
    t->torn = false;
    return check_finite(t);
}

static tm_status one_step(trainer *t) {
    tm_job *job = t->job;
    uint64_t began = tm_now_ns();
    job->step.loss_scale = t->scaler.scale;
    job->step.number = t->applied + 1;
    job->step.learning_rate =
        state_learning_rate(job, tm_lr_at(&t->s.cfg->schedule, trainer_schedule_step(t)), job->step.number);
    if (!job_updates_in_passes(job)) /* whose beta1 says whether there is an exp_avg at all */
        (void)tm_lr_betas(&t->s.cfg->schedule, trainer_schedule_step(t), &job->update_opts.beta1,
                          &job->update_opts.beta2);
    const tm_plan *plan = step_plan(t);
    trainer_watch_announce(t, plan);
    uint64_t between[2]; /* by commits and evaluations: not the step's */
    job->step.report_flags = trainer_flags(t);
    trainer_count_sent(t, between);
    trainer_replay_step(t, t->step + 1);
    job->step.data_ns = 0;
    tm_status rc = job_run(job, plan);
    trainer_replay_step(t, 0);
    if (rc != TM_OK) return rc;
    t->pending = t->plans.folded;
    t->step++;
    if (job->step.result.finite) {
        t->applied++;
        t->skipped_in_a_row = t->skipped_at_scale = 0;
    } else {
        t->skipped_in_a_row++;
        t->skipped_at_scale++;
        if (t->s.cfg->precision != TM_F16)
            tm_log(TM_LOG_WARN, "step %" PRId64 ": loss or gradient is not finite; the update was skipped", t->step);
    }
    bool goes_on = trainer_scale_step(t, job->step.loss_scale);
    if (t->scaler.scale < job->step.loss_scale)
        t->skipped_at_scale = 0; /* it may be right now; it cannot fall for ever */
    step_line line = {.r = job->step.result,
                      .step = t->step,
                      .plan = plan,
                      .loss_scale = job->step.loss_scale,
                      .data = (double)job->step.data_ns * 1e-9,
                      .at = (double)(began - t->life.start_ns) * 1e-9,
                      .took = (double)(tm_now_ns() - began) * 1e-9};
    step_total_add(&line.total, &job->step);
    trainer_count_sent(t, line.sent);
    TM_TRY(trainer_watch_step(t, &line));
    TM_TRY(check_finite(t));
    TM_TRY(trainer_note_loss(t));
    if (!goes_on || t->skipped_at_scale >= MAX_SKIPPED) return trainer_give_up(t, (int)t->skipped_in_a_row);
    return TM_OK;
}

/* Where the loss is one of a token, what it means for one; else how often the better row is told from the worse. */
static void say_loss(const trainer *t, double loss) {
    double value[STEP_METRICS];
    uint32_t n = step_total_metrics(t->job, &t->eval.total, value);
    tm_say(" loss %.4f", loss);
    if (!t->job->objective->by_sample) tm_say(", perplexity %.3f", exp(loss));
    for (uint32_t i = 0; i < n; i++)
        if (isfinite(value[i])) tm_say(", %s %.4g", t->job->objective->metric[i], value[i]);
}

static void say_evaluation(const trainer *t, double loss) {
    tm_say("step %" PRId64 ": evaluation", t->step);
    if (t->s.eval) say_loss(t, loss);
    trainer_say_tasks(t);
    tm_say("\n");
}

static tm_status evaluate_data(trainer *t, double *loss) {
    t->eval.total = (step_total){0};
    if (!t->s.eval) return TM_OK;
    t->eval.under_way = true;
    tm_status rc = TM_OK;
    uint64_t steps = tm_dataset_steps_per_epoch(data_set(t->s.eval));
    job_phase phase;
    job_phase_begin(&phase, t->job, "evaluating", "rows", tm_dataset_get_counts(data_set(t->s.eval))->samples);
    for (t->eval.step = 0; t->eval.step < steps && rc == TM_OK; t->eval.step++) {
        tm_step_info info;
        tm_dataset_step_info(data_set(t->s.eval), t->eval.step, &info);
        phase.span = info.samples;
        rc = job_run(t->job, t->plans.eval);
        phase.base += info.samples;
        step_total_add(&t->eval.total, &t->job->step);
    }
    job_phase_end(&phase);
    t->eval.under_way = false;
    if (rc == TM_OK) *loss = step_total_loss(t->job, &t->eval.total);
    return rc;
}

static tm_status evaluate(trainer *t) {
    double loss = NAN;
    if (!session_evaluates(&t->s)) return TM_OK;
    TM_TRY(trainer_settle(t));
    TM_TRY(evaluate_data(t, &loss));
    TM_TRY(trainer_score_tasks(t));
    t->saves.loss = trainer_metric(t, loss);
    trainer_count_patience(t, t->saves.loss);
    if (!t->s.args->quiet) say_evaluation(t, loss);
    return trainer_log_event(t, "eval", NULL, loss);
}

static tm_status timed_step(trainer *t) {
    t->torn = true;
    t->life.step_began_ns = tm_now_ns();
    TM_TRY(one_step(t));
    t->life.step_ns = tm_now_ns() - t->life.step_began_ns;
    t->life.steps_ns += t->life.step_ns;
    t->torn = false;
    return TM_OK;
}

bool trainer_due(const trainer *t, int64_t every, unsigned by_epoch, int64_t step) {
    if (every <= 0) return false;
    if (t->s.cfg->by_epoch & by_epoch) return tm_dataset_ends_epoch(data_set(t->s.train), (uint64_t)step);
    return step % every == 0;
}

/* Evaluation and checkpoint of a step. They only read the state: a signal in the middle leaves it whole. */
static tm_status after_step(trainer *t) {
    const tm_config *c = t->s.cfg;
    bool last = t->step >= c->total_steps;
    t->unfinished = true;
    t->saves.loss = NAN;
    if (last || trainer_due(t, c->eval_steps, TM_BY_EPOCH_EVAL, t->step)) TM_TRY(evaluate(t));
    if (last || trainer_is_out_of_patience(t))
        trainer_note_best(t); /* the model goes to OUTPUT_DIR itself */
    else
        TM_TRY(trainer_save_checkpoint(t));
    t->unfinished = false;
    return TM_OK;
}

tm_status trainer_stopped(const trainer *t) {
    char more[100];
    snprintf(more, sizeof more, "; step %" PRId64 " is committed, the same command goes on from it", t->committed);
    tm_error_clear();
    return job_stopped(more);
}

/* A signal came: what is whole is committed, and the run ends. A rank that was interrupted twice is not where the
 * others are: it ends them all. */
static tm_status stop(trainer *t, bool together) {
    if (!together) return t->committed >= 0 ? trainer_stopped(t) : job_stopped("");
    bool whole = !t->torn && job_nonfinite(t->job) == 0;
    if (session_commits(&t->s) && whole && t->step != t->committed && t->step != 0) {
        tm_error_clear();
        TM_TRY(trainer_commit(t));
    }
    t->s.agreed = t->s.comm != NULL; /* the others stop here as well */
    return job_stopped("");
}

/* With ranks only what all know counts: a signal that one of them had seen when the latest step was reported. */
static bool stops(const trainer *t) {
    return t->s.comm ? (t->job->step.result.flags & FLAG_STOP) != 0 : job_stop_signal() != 0;
}

static tm_status run_steps(trainer *t, bool *between) {
    if (t->unfinished) TM_TRY(after_step(t));
    while (t->step < t->s.cfg->total_steps && !trainer_is_out_of_patience(t)) {
        *between = stops(t);
        if (*between) return TM_ESIGNAL;
        bool commit = trainer_commit_due(t);
        TM_TRY(timed_step(t));
        TM_TRY(after_step(t));
        if (commit && t->committed != t->step) TM_TRY(trainer_commit(t));
    }
    if (trainer_is_out_of_patience(t)) trainer_say_patience(t);
    return TM_OK;
}

tm_status trainer_run_steps(trainer *t) {
    t->life.start_ns = t->life.commit_ns = tm_now_ns();
    tm_stop_polled(false); /* from here on steps and commits decide */
    t->job->sinks.may_go_on = trainer_may_go_on;
    t->job->sinks.may_go_on_ctx = t;
    TM_TRY(trainer_find_best(t));
    TM_TRY(trainer_replay_start(t));
    TM_TRY(trainer_watch_start(t));
    if (session_is_rank0(&t->s)) TM_TRY(trainer_write_run_json(t, "running")); /* with the seconds that are to come */
    TM_TRY(trainer_profile_open(t));
    bool between = false;
    TM_TRY(trainer_show_steps(t));
    tm_status rc = run_steps(t, &between);
    if (rc == TM_OK) rc = trainer_watch_end(t);
    if (rc == TM_ESIGNAL) trainer_watch_stopped(t);
    trainer_show_no_more(t);
    rc = trainer_profile_end(t, rc);
    trainer_profile_close(t);
    return rc == TM_ESIGNAL ? stop(t, between || !t->s.comm) : rc;
}

tm_status trainer_finish(trainer *t) {
    char hash[33];
    TM_TRY(trainer_save_last(t));
    TM_TRY(job_state_hash(t->job, (uint64_t)t->step, hash));
    TM_TRY(trainer_log_event(t, "end", hash, NAN));
    if (!session_is_rank0(&t->s)) return TM_OK;
    TM_TRY(tm_append_sync(t->log.file)); /* before run.json says that it is over */
    trainer_report_state(t, t->s.cfg->output_dir);
    return trainer_write_run_json(t, "finished");
}
