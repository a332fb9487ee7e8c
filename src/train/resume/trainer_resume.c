/* What a run goes on from, and where one rank finds it. */
#include "io/run/run.h"
#include "io/file/file.h"
#include "train/resume/resume.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool resume_holds_commit(const char *dir) {
    char path[4400];
    snprintf(path, sizeof path, "%s/manifest", dir);
    return tm_path_exists(path);
}

/* Not one that this run may take: another run's, or one that lies elsewhere. It stays, this one goes on with a copy:
 * else two logs would name one state. */
static tm_status from_copy(trainer *t, const char *dir) {
    tm_io_owner o;
    char who[512];
    unsigned waited = 0;
    for (;; waited += 20) {
        TM_TRY(tm_io_run_owner(dir, &o));
        if (!o.alive) break;
        if (waited >= LOOKED_AT_MS)
            return tm_fail(TM_EINPUT, "%s: in use by %s; wait for it or stop it", dir,
                           tm_io_owner_say(&o, who, sizeof who));
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
    tm_log(TM_LOG_INFO, "%s is the state of the run in %s: going on with a copy of it", dir,
           *o.of ? o.of : "another folder");
    TM_TRY(trainer_open_full(t, dir));
    t->from.rewound = false; /* a copy of the latest state */
    return TM_OK;
}

static tm_status from_commit(trainer *t, const char *dir, bool prove) {
    if (t->out.copied) return from_copy(t, dir);
    if (prove)
        tm_log(TM_LOG_INFO, "the run in %s met damaged state: all of its commit is read before it goes on",
               t->s.cfg->output_dir);
    return trainer_open_commit(t, dir, prove);
}

static tm_status from_earlier(trainer *t, const earlier *e) {
    const char *dir = earlier_directory(e);
    if (!e->any) return TM_OK;
    if (dir && resume_holds_commit(dir)) return from_commit(t, dir, e->damaged);
    TM_TRY(earlier_none_alive(t, e, LOOKED_AT_MS)); /* who had OUTPUT_DIR is gone: nobody else was of that run */
    TM_TRY(earlier_refuse_if_lost(t, e));
    if (e->finished) return TM_OK;
    TM_TRY(trainer_start_over(t)); /* before what run.json names goes */
    TM_TRY(earlier_drop(t, e));
    return earlier_drop_nameless(t);
}

/* DIR: a full checkpoint, an output folder, or a run directory. */
static tm_status from_directory(trainer *t, const char *dir) {
    earlier e;
    char path[4096];
    tm_io_owner o;
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
    else if (!first || !resume_holds_commit(first))
        rc = tm_fail(TM_EINPUT, "--resume %s: this %s run left no state to go on from", dir,
                     e.finished ? "finished" : "interrupted");
    else if (!t->out.copied && trainer_whose(t, first, &o) == DIR_OURS)
        rc = tm_commit_open(&t->from.commit, first, &t->out.claim);
    else
        rc = from_copy(t, first);
    tm_json_free(e.doc);
    return rc;
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
    const char *resume = t->s.args->resume ? t->s.args->resume : "auto";
    earlier e;
    t->committed = -1;
    bool never = strcmp(resume, "never") == 0;
    if (t->s.comm) return resume_together(t, resume);
    tm_status rc = earlier_read(trainer_path(t, "run.json"), &e);
    if (rc != TM_OK && !never) return rc;
    tm_error_clear(); /* it is to be forgotten anyway */
    t->from.finished = e.finished && !never;
    if (never)
        rc = earlier_none_alive(t, &e, LOOKED_AT_MS);
    else if (strcmp(resume, "auto") == 0 && e.by_rank && e.by_rank->count > 0) {
        tm_json_free(e.doc);
        return resume_together(t, resume); /* it was run on several ranks */
    } else if (strcmp(resume, "auto") != 0 && was_of_ranks(resume)) {
        tm_json_free(e.doc);
        return resume_directory_together(t, resume);
    } else
        rc = strcmp(resume, "auto") == 0 ? from_earlier(t, &e) : from_directory(t, resume);
    tm_json_free(e.doc);
    return rc == TM_OK && !t->from.commit && !t->from.finished ? earlier_drop_nameless(t) : rc;
}
