/* The training job: configuration, data and tiers are brought together, then one plan is run once a step. */
#include "job/job.h"
#include "train/train.h"
#include "train/trainer_internal.h"

#include "comm/comm.h"
#include "io/file/file.h"
#include "kernels/kernels.h"
#include "session/batch.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *trainer_path(trainer *t, const char *name) {
    snprintf(t->path, sizeof t->path, "%s/%s", t->s.cfg->output_dir, name);
    return t->path;
}

tm_status trainer_write_run_json(trainer *t, const char *status) {
    tm_buf out = {0}, config = {0};
    tm_json_writer w;
    tm_status rc;
    TM_GO(tm_config_dump_json(t->s.cfg, &config, 0));
    tm_jw_init(&w, &out, 1);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "status", status);
    tm_jw_field_str(&w, "key", t->out.key);
    trainer_describe_input(t, &w);
    tm_jw_field_int(&w, "step", t->step);
    if (trainer_is_out_of_patience(t)) tm_jw_field_bool(&w, "stopped_early", true);
    tm_jw_field_str(&w, "version", TIDEMILL_VERSION);
    tm_jw_field_str(&w, "numerics", tm_kernels_describe());
    tm_jw_field_array(&w, "run_directories");
    for (uint32_t r = 0; r < t->out.n_directories; r++) tm_jw_str(&w, t->out.directory[r]);
    tm_jw_array_end(&w);
    tm_jw_key(&w, "directories_by_rank"); /* how many of them */
    tm_jw_array(&w);
    for (uint32_t r = 0; t->s.comm && r < t->s.ranks.ranks; r++) tm_jw_uint(&w, t->out.directories_of[r]);
    tm_jw_array_end(&w);
    trainer_describe_run(t, &w);
    tm_jw_key(&w, "config");
    tm_jw_raw(&w, config.data, config.len);
    tm_jw_object_end(&w);
    TM_GO(tm_jw_end(&w));
    TM_GO(tm_buf_append(&out, "\n", 1));
    rc = trainer_put_run_json(t, &out);
done:
    tm_buf_free(&out);
    tm_buf_free(&config);
    return rc;
}

tm_status trainer_fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    trainer *t = ctx;
    tm_dataset *ds = data_set(t->eval.under_way ? t->s.eval : t->s.train);
    uint64_t step = t->eval.under_way ? t->eval.step : (uint64_t)t->step;
    if (t->s.comm && mb == 0) {
        tm_step_info info;
        tm_dataset_step_info(ds, step, &info);
        t->job->step.labels = info.label_tokens;
        t->job->step.tokens = info.tokens;
        t->job->step.samples = info.samples;
    }
    TM_TRY(session_fill(ds, step, mb, t->s.ranks.rank, batch, to, out));
    const reference_rows of = {.eval = t->eval.under_way, .step = step, .micro_batch = mb, .batch = batch};
    if (to->reference) reference_fill(&t->reference, &t->s, &of, out->rows, to->reference);
    return TM_OK;
}

void trainer_close(trainer *t) {
    trainer_watch *watch = t->watch;
    t->watch = NULL; /* nobody listens any more */
    tm_append_close(t->log.file);
    bool no_state = t->job && !t->job->tiers.keep_state;
    job_close(t->job); /* its executor may still be at a plan's last transfers, and hold a link */
    trainer_report_questions(t);
    if (no_state) (void)tm_remove_empty(t->out.home); /* which an earlier life may have made */
    t->watch = watch;
    trainer_watch_close(t);
    reference_free(&t->reference);
    run_plans_free(&t->plans);
    tm_buf_free(&t->out.directories);
    TM_FREE_ALL(t->saves.step, t->eval.task, t->out.directory, t->out.directories_of, t->out.claim_paths);
    tm_commit_close(t->from.commit);
    trainer_forget_old(t);
    session_close(&t->s);
}

/* On the way out of a failure: the first error is the one that counts. */
static void discard(const char *path) {
    if (tm_remove_tree(path) != TM_OK) tm_log(TM_LOG_WARN, "%s could not be removed", path);
}

static tm_status check_supported(const trainer *t) {
    if (t->s.cfg->save_state && !session_commits(&t->s))
        return tm_fail(TM_EINPUT, "save_state copies commits, and this job makes none; set commit_steps and "
                                  "memory.slots 2");
    if (t->s.cfg->memory.slots == 1)
        tm_warn_once("train.slots", "memory.slots is 1: no commits, a run that is interrupted cannot be continued");
    return TM_OK;
}

/* What of a composite model is not trained here. */
static void say_foreign(const trainer *t) {
    uint32_t n;
    char size[32];
    uint64_t bytes = job_foreign_bytes(t->job, &n);
    if (n)
        tm_log(TM_LOG_INFO,
               "the model has other parts than text: %u tensors of them, %s, are carried along as they are", n,
               tm_format_size(bytes, size, sizeof size));
    const char *first;
    uint32_t dropped = job_dropped(t->job, &first);
    if (dropped)
        tm_log(TM_LOG_INFO,
               "%u tensors of the folder are not the model's and are left out of what is written: %.200s%s", dropped,
               first, dropped > 1 ? ", .." : "");
}

/* The log ends at the commit, run.json says that the run goes on. */
static tm_status open_outputs(trainer *t) {
    bool resumed = t->committed >= 0;
    TM_TRY(trainer_gather_directories(t));
    if (!session_is_rank0(&t->s)) return TM_OK;
    say_foreign(t);
    if (!resumed) TM_TRY(trainer_start_over(t)); /* before the log of what is given up is cut */
    if (resumed) {
        tm_log(TM_LOG_INFO, "going on from step %" PRId64 ", the commit in %s", t->step,
               tm_store_path(t->job->tiers.store, 0));
        TM_TRY(trainer_cut_log(t));
    }
    TM_TRY(tm_append_open(&t->log.file, trainer_path(t, "log.jsonl"), !resumed));
    trainer_report_open(t);
    if (resumed) TM_TRY(trainer_log_event(t, "resume", NULL, NAN));
    TM_TRY(trainer_write_run_json(t, "running"));
    return trainer_remove_old(t);
}

static tm_status open_job(trainer *t) {
    tm_status rc = trainer_open_job(t);
    if (rc == TM_OK) rc = trainer_take_choices(t);
    if (rc == TM_OK && t->from.old.other) rc = trainer_commit(t); /* from here on it is this run's */
    if (t->job) t->job->tiers.keep_state = t->committed >= 0;     /* whatever happens */
    tm_commit_close(t->from.commit);
    t->from.commit = NULL;
    elastic_close(t->from.elastic);
    t->from.elastic = NULL;
    if (t->job) t->job->opts.elastic = NULL;
    return rc;
}

/* The next start reads all of the commit, and if that is damaged goes back to a full checkpoint by itself. */
static tm_status met_damage(trainer *t, tm_status rc) {
    tm_error said = *tm_error_get();
    if (earlier_mark_damaged(trainer_path(t, "run.json")) != TM_OK)
        tm_log(TM_LOG_WARN, "%s; `--resume auto` would meet the same again", tm_error_get()->text);
    else
        tm_log(TM_LOG_INFO,
               "step %" PRId64 " is committed; the same command reads all of that commit first and, if it is damaged, "
               "goes back to the newest full checkpoint or refuses",
               t->committed);
    tm_error_clear();
    tm_error_set(&said);
    return rc;
}

/* Says what is left, and leaves it. */
static tm_status ended_early(trainer *t, tm_status rc, bool started) {
    if (t->job) t->job->tiers.keep_state = t->committed >= 0;
    if (rc == TM_ESIGNAL && !started) t->committed = t->from.found_step; /* it is as it was */
    if (t->committed < 0) {
        if (started && session_is_rank0(&t->s)) discard(trainer_path(t, "run.json"));
        if (rc != TM_ESIGNAL) return rc;
        tm_error_clear();
        return job_stopped(session_commits(&t->s)       ? "; nothing was committed"
                           : t->s.cfg->memory.slots < 2 ? "; nothing was committed, since memory.slots is 1"
                                                        : "; nothing was committed, since commit_steps and "
                                                          "commit_minutes are 0");
    }
    if (rc == TM_ESIGNAL) {
        if (t->s.args->resumable) *t->s.args->resumable = true;
        return trainer_stopped(t);
    }
    char full[4096];
    if (rc == TM_ECORRUPT && !t->s.comm) return met_damage(t, rc);
    tm_log(TM_LOG_INFO, "step %" PRId64 " is committed, the same command goes on from it", t->committed);
    if (rc == TM_ECORRUPT && trainer_newest_full(t, full, sizeof full))
        tm_log(TM_LOG_WARN, "if what is damaged belongs to that commit, --resume %s goes back to a full checkpoint",
               full);
    return rc;
}

/* A run that did not begin keeps no copy of a state: the next try makes its own, and they would pile up. */
static void drop_copy(const trainer *t) {
    tm_commit *c;
    if (!tm_path_is_dir(t->from.copy)) return;
    if (tm_commit_open(&c, t->from.copy, NULL) != TM_OK || tm_commit_remove(c) != TM_OK)
        tm_log(TM_LOG_WARN, "%s could not be removed: %s", t->from.copy, tm_error_get()->text);
    (void)tm_remove_empty(t->out.home);
}

/* Each phase ends on all ranks or on none. */
static tm_status prepare_run(trainer *t) {
    tm_status rc = session_load_config(&t->s, false);
    if (rc == TM_OK) trainer_open_scale(t);
    if (rc == TM_OK) rc = check_supported(t);
    if (rc == TM_OK) rc = session_check_budget(t->s.cfg);
    if (rc == TM_OK) rc = session_find_device(&t->s, false);
    if (rc == TM_OK) rc = session_set_strategy(&t->s);
    TM_TRY(session_agree(&t->s, rc));
    TM_TRY(session_same_start(&t->s));
    TM_TRY(session_agree(&t->s, session_find_peers(&t->s)));
    TM_TRY(trainer_take_output(t));
    rc = trainer_choose_start(t);
    if (t->from.commit) t->from.found_step = (int64_t)tm_commit_step(t->from.commit);
    if (rc == TM_OK && session_is_rank0(&t->s) && !t->from.finished) rc = trainer_sweep(t);
    TM_TRY(session_agree(&t->s, rc));
    TM_TRY(session_agree(&t->s, session_prepare(&t->s, false)));
    TM_TRY(session_agree(&t->s, trainer_check_metric(t)));
    TM_TRY(session_agree(&t->s, trainer_open_tasks(t)));
    TM_TRY(trainer_same_input(t));
    TM_TRY(session_agree(&t->s, trainer_check_commit(t)));
    if (t->from.done) return session_agree(&t->s, trainer_end_finished(t));
    t->s.key = t->out.claim.key, t->s.of = t->out.claim.of;
    TM_TRY(session_make_base(&t->s));
    TM_TRY(trainer_make_reference(t));
    TM_TRY(session_agree(&t->s, open_job(t)));
    TM_TRY(trainer_same_plans(t));
    TM_TRY(session_agree(&t->s, session_is_rank0(&t->s) ? trainer_check_room(t) : TM_OK));
    return session_agree(&t->s, open_outputs(t));
}

static tm_status run_job(trainer *t) {
    TM_TRY(trainer_run_steps(t));
    TM_TRY(trainer_finish(t));
    t->job->tiers.keep_state = t->s.cfg->keep_state;
    if (!t->s.cfg->keep_state) TM_TRY(session_agree(&t->s, session_drop_base(&t->s)));
    if (!t->s.args->quiet) trainer_summary(t);
    return session_agree(&t->s, TM_OK); /* nobody removes what another may still need */
}

tm_status tm_train_run(const tm_train_args *args) {
    trainer t = {.s.args = args, .committed = -1, .from.found_step = -1};
    tm_status rc;
    bool started = false;
    tm_stop_catch();
    tm_stop_polled(true);
    TM_TRY(session_open_ranks(&t.s));
    tm_phase_silence(args->quiet || !session_is_rank0(&t.s));
    rc = prepare_run(&t);
    started = rc == TM_OK;
    if (rc == TM_OK && !t.from.done) rc = run_job(&t);
    session_end_all(&t.s, rc, t.committed >= 0); /* does not return where the other ranks go on */
    bool no_copy = rc != TM_OK && !started && *t.from.copy;
    if (no_copy) t.committed = -1;
    if (rc != TM_OK) rc = ended_early(&t, rc, started);
    if (rc != TM_OK && args->reported) *args->reported = !session_is_rank0(&t.s);
    tm_error said = *tm_error_get(); /* the first failure, whatever closing meets */
    if (rc != TM_OK && !started && session_undo_base(&t.s) != TM_OK) tm_log(TM_LOG_WARN, "%s", tm_error_get()->text);
    if (rc == TM_OK || started) session_keep_data(&t.s, rc != TM_OK);
    bool speaks = session_is_rank0(&t.s);
    t.report.ended = speaks && rc == TM_OK && (!t.from.done || trainer_report_is_missing(&t));
    trainer_close(&t);
    if (no_copy) drop_copy(&t);
    if (t.report.ended) trainer_report_end(&t);
    if (args->ended)
        snprintf(args->ended, TM_ENDED_PATH, "%s",
                 t.report.ended && !t.from.done && t.s.ranks.ranks <= 1 ? t.out.here : "");
    trainer_report_free(&t);
    session_close_ranks(&t.s);
    if (rc != TM_OK && !speaks) tm_comm_let_speak();
    if (rc != TM_OK) tm_error_clear(), tm_error_set(&said);
    if (rc != TM_OK && !started) trainer_undo_output(&t);
    tm_unlock_dir(t.out.lock); /* last: until here nobody else begins there */
    return rc;
}
