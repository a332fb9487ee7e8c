/* What a run goes on from, and where one rank finds it. */
#include "io/io.h"
#include "train/resume_internal.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the choice ------------------------------------------------------------------------------------------------ */

bool resume_holds_commit(const char *dir) {
    char path[4400];
    snprintf(path, sizeof path, "%s/manifest", dir);
    return tm_path_exists(path);
}

/* The commit is open, so nobody is at it. Is it of a run into another OUTPUT_DIR that is still there (this one may be a
 * copy of it)? That one keeps it, this one goes on with a copy: else two logs would name one state. */
static tm_status copy_if_others(trainer *t, const char *dir) {
    char here[PATH_MAX], theirs[PATH_MAX + 16];
    const tm_json *whose = tm_json_get(tm_commit_info(t->commit), "output_dir");
    if (!realpath(t->cfg->output_dir, here) || !whose || whose->type != TM_JSON_STRING) return TM_OK;
    snprintf(theirs, sizeof theirs, "%s/run.json", whose->text);
    if (strcmp(whose->text, here) == 0 || !tm_path_exists(theirs)) return TM_OK;
    tm_log(TM_LOG_INFO, "%s is the state of the run in %s: going on with a copy of it", dir, whose->text);
    tm_commit_close(t->commit);
    t->commit = NULL;
    return trainer_open_full(t, dir);
}

static tm_status from_commit(trainer *t, const char *dir, bool prove) {
    if (prove)
        tm_log(TM_LOG_INFO, "the run in %s met damaged state: all of its commit is read before it goes on",
               t->cfg->output_dir);
    TM_TRY(trainer_open_commit(t, dir, prove));
    if (t->rewound) return TM_OK;
    TM_TRY(copy_if_others(t, dir));
    t->rewound = false; /* a copy of the latest state */
    return TM_OK;
}

static tm_status from_earlier(trainer *t, const earlier *e) {
    const char *dir = earlier_directory(e);
    if (!e->any) return TM_OK;
    if (dir && resume_holds_commit(dir)) return from_commit(t, dir, e->damaged);
    if (!e->finished && (!dir || !tm_path_is_dir(dir))) return earlier_refuse_lost(t, dir);
    TM_TRY(earlier_none_alive(e, 0)); /* who had OUTPUT_DIR is gone: nobody else was of that run */
    if (!e->finished) TM_TRY(tm_remove_tree(trainer_path(t, "run.json"))); /* before what it names goes */
    TM_TRY(earlier_drop(e));
    TM_TRY(earlier_drop_nameless(t));
    return e->finished ? earlier_refuse_finished(t, e) : TM_OK;
}

/* DIR: a full checkpoint, an output folder, or a run directory. */
static tm_status from_directory(trainer *t, const char *dir) {
    earlier e;
    char path[4096];
    if (!tm_path_is_dir(dir))
        return tm_fail(TM_EINPUT,
                       "--resume %s: no such folder; give auto, never, an output_dir, a checkpoint-N with state, or a "
                       "run directory",
                       dir);
    snprintf(path, sizeof path, "%s/state", dir);
    if (resume_holds_commit(path)) return trainer_open_full(t, path);
    snprintf(path, sizeof path, "%s/run.json", dir);
    TM_TRY(earlier_read(path, &e));
    const char *first = e.any ? earlier_directory(&e) : dir;
    tm_status rc = TM_OK;
    if (!e.any && !resume_holds_commit(dir))
        rc = tm_fail(TM_EINPUT,
                     "--resume %s: no state lies there; give an output_dir, a checkpoint-N made with save_state, or a "
                     "run directory",
                     dir);
    else if (!first || !tm_path_is_dir(first))
        rc = tm_fail(TM_EINPUT, "--resume %s: this %s run left no state to go on from", dir,
                     e.finished ? "finished" : "interrupted");
    else
        rc = tm_commit_open(&t->commit, first);
    if (rc == TM_OK) rc = copy_if_others(t, first);
    tm_json_free(e.doc);
    return rc;
}

/* OUTPUT_DIR need not exist yet: its name counts. */
static void name_run(trainer *t) {
    char here[4096] = "";
    const char *dir = t->cfg->output_dir;
    if (*dir != '/' && !getcwd(here, sizeof here)) *here = 0;
    uint64_t h = tm_hash64(here, strlen(here), 0);
    snprintf(t->run_hash, sizeof t->run_hash, "%012" PRIx64, tm_hash64(dir, strlen(dir), h) >> 16);
    snprintf(t->run_name, sizeof t->run_name, "%s", t->run_hash);
    if (t->comm) snprintf(t->run_name, sizeof t->run_name, "%sr%u", t->run_hash, t->ranks.rank);
}

/* What one rank is to go on from was run on several. */
static bool was_of_ranks(const char *dir) {
    char path[4096];
    earlier e;
    if (elastic_is_checkpoint(dir)) return true;
    snprintf(path, sizeof path, "%s/run.json", dir);
    bool several = earlier_read(path, &e) == TM_OK && e.by_rank && e.by_rank->count > 0;
    tm_error_clear();
    tm_json_free(e.doc);
    return several;
}

tm_status trainer_choose_start(trainer *t) {
    const char *resume = t->args->resume ? t->args->resume : "auto";
    earlier e;
    t->committed = -1;
    name_run(t);
    snprintf(t->home, sizeof t->home, "%s/offload", t->cfg->output_dir);
    bool never = strcmp(resume, "never") == 0;
    if (t->comm) return resume_together(t, resume);
    tm_status rc = earlier_read(trainer_path(t, "run.json"), &e);
    if (rc != TM_OK && !never) return rc;
    tm_error_clear(); /* it is to be forgotten anyway */
    if (never)
        rc = earlier_none_alive(&e, 0);
    else if (strcmp(resume, "auto") == 0 && e.by_rank && e.by_rank->count > 0) {
        tm_json_free(e.doc);
        return resume_together(t, resume); /* it was run on several ranks */
    } else if (strcmp(resume, "auto") != 0 && was_of_ranks(resume)) {
        tm_json_free(e.doc);
        return resume_directory_together(t, resume);
    } else
        rc = strcmp(resume, "auto") == 0 ? from_earlier(t, &e) : from_directory(t, resume);
    tm_json_free(e.doc);
    return rc == TM_OK && !t->commit ? earlier_drop_nameless(t) : rc;
}
