/* What a run gives away: checkpoint-N folders, which of them is the best and which go, the model at the end. */
#include "comm/comm.h"
#include "io/file/file.h"
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- a model as a folder --------------------------------------------------------------------------------------- */

tm_status trainer_write_model(trainer *t, const char *dir, tm_fmt dtype) {
    if (t->s.cfg->adapter) return job_export_adapter(t->job, dir, dtype);
    TM_TRY(job_export(t->job, dir, dtype, t->s.cfg->max_shard_size));
    if (!session_is_rank0(&t->s)) return TM_OK;
    trainer_kill_point("kill_in_export");
    return tm_source_write_side_files(t->s.source, dir, dtype);
}

static tm_status save_to(trainer *t, const char *dir) {
    TM_TRY(trainer_settle(t));
    trainer_kill_point("kill_before_export");
    return trainer_write_model(t, dir, session_save_format(t->s.cfg));
}

static const char *checkpoint_path(const trainer *t, int64_t step, char *buf, size_t cap) {
    snprintf(buf, cap, "%s/checkpoint-%" PRId64, t->s.cfg->output_dir, step);
    return buf;
}

/* Strictly: of two that are alike the first is the best. What is not a number is never better. */
static bool is_better(const trainer *t, double loss) {
    const trainer_saves *s = &t->saves;
    if (!isfinite(loss)) return false;
    if (s->best == 0) return true;
    return t->s.cfg->greater_is_better ? loss > s->best_loss : loss < s->best_loss;
}

void trainer_note_best(trainer *t) {
    if (!t->s.cfg->track_best || !is_better(t, t->saves.loss)) return;
    t->saves.best_loss = t->saves.loss;
    t->saves.best = t->step;
}

static void forget_best(trainer *t, const char *why) {
    if (session_is_rank0(&t->s))
        tm_log(TM_LOG_WARN, "the best model so far, of step %" PRId64 ", does not count any more: %s", t->saves.best,
               why);
    t->saves.best = t->saves.kept = 0;
}

/* A folder that somebody took a file out of, or cut one off, is no model to give away: the run's last one is. */
static bool is_whole(const char *folder, bool adapter) {
    tm_source *s = NULL;
    tm_adapter_folder *f = NULL;
    if (!tm_path_is_dir(folder)) return false;
    tm_status rc = adapter ? tm_adapter_folder_open(&f, folder) : tm_source_open(&s, folder);
    if (rc != TM_OK) tm_log(TM_LOG_WARN, "%s", tm_error_get()->text);
    tm_source_close(s);
    tm_adapter_folder_close(f);
    tm_error_clear();
    return rc == TM_OK;
}

/* Asked of all ranks. A run that was made longer: what was the best may have been the last model of that run, which has
 * no folder. */
tm_status trainer_find_best(trainer *t) {
    char path[4096];
    uint64_t there =
        t->saves.best == 0 || is_whole(checkpoint_path(t, t->saves.best, path, sizeof path), t->s.cfg->adapter);
    bool last = t->step == t->s.cfg->total_steps || trainer_is_out_of_patience(t);
    if (t->saves.best == t->step && last) there = 1; /* its folder is OUTPUT_DIR */
    if (t->s.comm) TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, &there, sizeof there));
    if (!there) forget_best(t, "its folder is gone or not whole");
    return TM_OK;
}

static const char *eval_hash(const trainer *t, char text[20]) {
    uint64_t data = t->s.eval ? tm_dataset_fingerprint(data_set(t->s.eval)) : 0;
    snprintf(text, 20, "%016" PRIx64, data ^ t->s.scores.hash);
    return text;
}

static const char *eval_name(const trainer *t) {
    if (t->s.trial) return t->s.eval ? "data.eval, or a file of eval_tasks" : "a file of eval_tasks";
    return t->s.cfg->data.eval ? t->s.cfg->data.eval : "data.eval";
}

void trainer_describe_best(const trainer *t, tm_json_writer *w) {
    tm_jw_field_int(w, "step", t->saves.best);
    tm_jw_field_double(w, "loss", t->saves.best_loss);
    if (strcmp(t->s.cfg->metric_for_best, "loss") != 0) tm_jw_field_str(w, "metric", t->s.cfg->metric_for_best);
}

void trainer_describe_saves(const trainer *t, tm_json_writer *w) {
    const trainer_saves *s = &t->saves;
    char text[20];
    tm_jw_field_array(w, "checkpoints");
    for (uint32_t i = 0; i < s->n; i++) tm_jw_int(w, s->step[i]);
    tm_jw_array_end(w);
    if (s->best == 0) return;
    tm_jw_field_object(w, "best");
    trainer_describe_best(t, w);
    tm_jw_field_bool(w, "greater_is_better", t->s.cfg->greater_is_better);
    tm_jw_field_str(w, "eval", eval_hash(t, text));
    tm_jw_object_end(w);
}

static tm_status remember_checkpoint(trainer *t, int64_t step) {
    trainer_saves *s = &t->saves;
    if (s->n > 0 && s->step[s->n - 1] >= step) return TM_OK; /* the same step again */
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 16;
        int64_t *more = tm_realloc(s->step, cap * sizeof *more);
        if (!more) return tm_nomem(cap * sizeof *more);
        s->step = more;
        s->cap = cap;
    }
    s->step[s->n++] = step;
    return TM_OK;
}

/* Of a commit of this run, or of an earlier version: those say nothing. */
tm_status trainer_read_saves(trainer *t, const tm_json *info) {
    const tm_json *list = tm_json_get(info, "checkpoints"), *best = tm_json_get(info, "best");
    const tm_json *step = tm_json_get(best, "step"), *loss = tm_json_get(best, "loss");
    char text[20];
    for (const tm_json *c = list && t->s.cfg->save_total_limit ? list->child : NULL; c; c = c->next)
        if (c->is_integer) TM_TRY(remember_checkpoint(t, c->integer));
    if (!t->s.cfg->track_best || !step || !step->is_integer || !loss || loss->type != TM_JSON_NUMBER) return TM_OK;
    t->saves.best = t->saves.kept = step->integer;
    t->saves.best_loss = loss->number;
    if (tm_json_is(tm_json_get(best, "eval"), eval_hash(t, text))) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "%s: holds other samples than when the best checkpoint of the run in %s was found with it; put the "
                   "old file back",
                   eval_name(t), t->s.cfg->output_dir);
}

/* The latest and the best; at the end with a limit of 1 only the best, as in HF Trainer. */
static bool stays(const trainer *t, int64_t step, int64_t latest, bool ended) {
    int64_t best = t->saves.best;
    bool best_alone = ended && t->s.cfg->save_total_limit == 1 && best > 0 && best < t->step;
    return step == best || (step == latest && !best_alone);
}

/* The oldest of those that this run made, until save_total_limit are left. What the latest commit names as the best
 * stays beyond that: a run that is killed now goes on with it. */
static tm_status rotate(trainer *t, bool ended) {
    trainer_saves *s = &t->saves;
    char path[4096];
    uint32_t bound = 0, spared = 0, n = 0;
    if (t->s.cfg->save_total_limit == 0 || s->n == 0) return TM_OK;
    int64_t kept = ended ? 0 : s->kept, latest = s->step[s->n - 1];
    for (uint32_t i = 0; i < s->n; i++) {
        bool bind = stays(t, s->step[i], latest, ended);
        bound += bind;
        spared += !bind && s->step[i] == kept;
    }
    uint32_t left = s->n - spared, keep = t->s.cfg->save_total_limit > bound ? t->s.cfg->save_total_limit : bound;
    for (uint32_t i = 0; i < s->n; i++) {
        int64_t step = s->step[i];
        bool goes = left > keep && step != kept && !stays(t, step, latest, ended);
        left -= goes;
        if (!goes)
            s->step[n++] = step;
        else if (session_is_rank0(&t->s))
            TM_TRY(tm_retire_dir(checkpoint_path(t, step, path, sizeof path)));
    }
    s->n = n;
    return TM_OK;
}

/* From here on a run that is killed goes on from this commit. */
tm_status trainer_committed_saves(trainer *t) {
    if (t->saves.kept == t->saves.best) return TM_OK;
    t->saves.kept = t->saves.best;
    return rotate(t, false);
}

static tm_status write_checkpoint(trainer *t) {
    char dir[4096], beside[4200];
    snprintf(beside, sizeof beside, "%s.tmp", checkpoint_path(t, t->step, dir, sizeof dir));
    if (session_is_rank0(&t->s)) TM_TRY(tm_remove_tree(beside));
    TM_TRY(save_to(t, beside));
    if (t->s.cfg->save_state) TM_TRY(trainer_save_state(t, beside)); /* of all ranks */
    if (!session_is_rank0(&t->s)) return TM_OK;
    trainer_report_state(t, beside);
    return tm_publish_dir(beside, dir);
}

/* Is one due, and how did the evaluation of this step, if any, turn out? */
tm_status trainer_save_checkpoint(trainer *t) {
    const tm_config *c = t->s.cfg;
    bool due = c->save_best ? is_better(t, t->saves.loss) : trainer_due(t, c->save_steps, TM_BY_EPOCH_SAVE, t->step);
    if (!due) return TM_OK;
    TM_TRY(write_checkpoint(t));
    trainer_note_best(t);
    if (c->save_total_limit) TM_TRY(remember_checkpoint(t, t->step));
    TM_TRY(rotate(t, false));
    TM_TRY(trainer_log_event(t, "checkpoint", NULL, NAN));
    if (session_is_rank0(&t->s)) trainer_report_checkpoint(t);
    return TM_OK;
}

typedef struct folders {
    const char *from, *to;
} folders;

static tm_status copy_one(void *ctx, const char *name, bool is_dir) {
    const folders *f = ctx;
    char from[4400], to[4400];
    bool replaced = tm_source_is_side_file(name) || strncmp(name, "model", 5) == 0;
    if (is_dir) return TM_OK; /* state */
    snprintf(from, sizeof from, "%s/%s", f->from, name);
    snprintf(to, sizeof to, "%s/%s", f->to, name);
    return !replaced && tm_path_exists(to) ? TM_OK : tm_copy_file(from, to); /* that may be the user's */
}

static tm_status log_best(trainer *t) {
    tm_buf line = {0};
    tm_json_writer w;
    trainer_line_begin(t, &w, &line, "best");
    tm_jw_field_int(&w, "best_step", t->saves.best);
    tm_jw_field_double(&w, t->s.cfg->metric_for_best, t->saves.best_loss);
    return trainer_line_end(t, &w, &line);
}

/* The weights of checkpoint-BEST, instead of the last ones. */
static tm_status load_best(trainer *t) {
    char path[4096];
    folders f = {checkpoint_path(t, t->saves.best, path, sizeof path), t->s.cfg->output_dir};
    trainer_kill_point("kill_before_export");
    tm_log(TM_LOG_INFO, "the best model is that of step %" PRId64 ", evaluation %s %.6g: it goes to %s", t->saves.best,
           t->s.cfg->metric_for_best, t->saves.best_loss, f.to);
    TM_TRY(tm_list_dir(f.from, copy_one, &f));
    trainer_kill_point("kill_in_export");
    return TM_OK;
}

tm_status trainer_save_last(trainer *t) {
    if (t->s.cfg->load_best_model_at_end) TM_TRY(trainer_find_best(t));
    bool other = t->s.cfg->load_best_model_at_end && t->saves.best > 0 && t->saves.best < t->step;
    if (!other)
        TM_TRY(save_to(t, t->s.cfg->output_dir));
    else if (session_is_rank0(&t->s))
        TM_TRY(load_best(t));
    TM_TRY(rotate(t, true));
    return t->s.cfg->load_best_model_at_end && t->saves.best > 0 && session_is_rank0(&t->s) ? log_best(t) : TM_OK;
}
