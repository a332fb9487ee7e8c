/* Task files at an evaluation: the weights of the step are written beside the checkpoints, an engine asks them there
 * (tm_train_args.scorer), and they go again. The run's own state is only read. */
#include "train/trainer_internal.h"

#include "comm/comm.h"
#include "io/file/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

tm_status trainer_open_tasks(trainer *t) {
    uint32_t n = t->s.scores.n;
    t->eval.task = n ? tm_calloc(n, sizeof *t->eval.task) : NULL;
    return n && !t->eval.task ? tm_nomem(n * sizeof *t->eval.task) : TM_OK;
}

/* Where a killed run leaves them, the next start sweeps (src/train/resume). */
static const char *folder_of(const trainer *t, char *path, size_t cap) {
    snprintf(path, cap, "%s/checkpoint-%" PRId64 ".tmp", t->s.cfg->output_dir, t->step);
    return path;
}

static tm_status prepare(const trainer *t, const char *folder) {
    if (!session_is_rank0(&t->s)) return TM_OK;
    TM_TRY(tm_make_dirs(t->out.home)); /* the engine's cache may go there; this run may have no files */
    return tm_remove_tree(folder);
}

static tm_status ask(trainer *t, const char *folder) {
    trainer_kill_point("kill_before_tasks");
    tm_status rc = t->s.args->scorer->score(t->s.trial, folder, run_score_bytes(&t->s, t->job), t->eval.task);
    trainer_kill_point("kill_after_tasks");
    return rc;
}

static tm_status forget(const trainer *t, const char *folder) {
    tm_status rc = tm_remove_tree(folder);
    (void)tm_remove_empty(t->out.home);
    return rc;
}

/* The first rank asks, the others wait. */
tm_status trainer_score_tasks(trainer *t) {
    char path[4200];
    const char *folder = folder_of(t, path, sizeof path);
    bool asks = session_is_rank0(&t->s);
    if (!t->s.trial) return TM_OK;
    TM_TRY(session_agree(&t->s, prepare(t, folder)));
    tm_status rc = session_agree(&t->s, trainer_write_model(t, folder, session_score_format(t->s.cfg)));
    if (asks && rc == TM_OK) rc = ask(t, folder);
    if (asks) rc = tm_first(rc, forget(t, folder));
    TM_TRY(session_agree(&t->s, rc));
    if (!t->s.comm) return TM_OK;
    return tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, t->eval.task, t->s.scores.n * sizeof *t->eval.task);
}

bool trainer_task_metric(const trainer *t, const char *name, double *value) {
    for (uint32_t i = 0; i < t->s.scores.n; i++) {
        if (strcmp(name, t->s.scores.name[i]) != 0) continue;
        *value = t->eval.task ? t->eval.task[i] : NAN;
        return true;
    }
    return false;
}

void trainer_log_tasks(const trainer *t, tm_json_writer *w) {
    char key[80];
    for (uint32_t i = 0; i < t->s.scores.n; i++) {
        snprintf(key, sizeof key, "eval_%s", t->s.scores.name[i]);
        tm_jw_field_double(w, key, t->eval.task[i]);
    }
}

void trainer_say_tasks(const trainer *t) {
    for (uint32_t i = 0; i < t->s.scores.n; i++) tm_say(", %s %.4f", t->s.scores.name[i], t->eval.task[i]);
}
