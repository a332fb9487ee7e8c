/* What several ranks go on from: the commits of as many ranks, each its own, or those of another number, which are read
 * as they lie (elastic.c). Every question is asked of all ranks; a failure of one is the failure of all. */
#include "comm/comm.h"
#include "io/file/file.h"
#include "job/job.h"
#include "train/resume/resume.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first directory of every rank of the run in `output_dir`. */
static tm_status old_directories(trainer *t, const earlier *e, const char *output_dir) {
    const tm_json *d = e->directories ? e->directories->child : NULL, *n = e->by_rank ? e->by_rank->child : NULL;
    if (!d) return TM_OK;
    uint32_t ranks = n ? (uint32_t)e->by_rank->count : 1;
    t->from.old.directory = tm_calloc(ranks, sizeof *t->from.old.directory);
    if (!t->from.old.directory) return tm_nomem(ranks * sizeof *t->from.old.directory);
    for (t->from.old.ranks = 0; t->from.old.ranks < ranks && d; t->from.old.ranks++) {
        t->from.old.directory[t->from.old.ranks] = d->type == TM_JSON_STRING ? d->text : "";
        for (int64_t skip = n ? n->integer : 0; d && skip > 0; skip--) d = d->next;
        if (n) n = n->next;
    }
    if (t->from.old.ranks == ranks) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "%s/run.json is damaged: it names the directories of %u of %u ranks; go on from a checkpoint-N with "
                   "state, or start over with --resume never",
                   output_dir, t->from.old.ranks, ranks);
}

/* The step of the commit there, + 1; 0: none. */
static tm_status step_of(const char *dir, uint64_t *step) {
    tm_commit *c;
    *step = 0;
    if (!resume_holds_commit(dir)) return TM_OK;
    TM_TRY(tm_commit_look(&c, dir));
    *step = tm_commit_step(c) + 1;
    tm_commit_close(c);
    return TM_OK;
}

/* A manifest is no commit where what it names is not there. */
static tm_status open_whole(const trainer *t, tm_commit **out, const char *dir) {
    TM_TRY(tm_commit_open(out, dir, &t->out.claim));
    tm_status rc = tm_commit_present(dir);
    if (rc == TM_OK) return rc;
    tm_commit_close(*out);
    *out = NULL;
    return rc;
}

/* As many ranks as before: each its own. The highest step that any rank published: all had prepared it by then. */
static tm_status try_own(trainer *t, bool *any) {
    const char *dir = t->from.old.directory[t->s.ranks.rank];
    uint64_t step = 0, most;
    TM_TRY(session_agree(&t->s, step_of(dir, &step)));
    most = step;
    TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_MAX, &most, 1));
    *any = most > 0;
    if (most == 0) return TM_OK;
    trainer_kill_point("kill_in_resume");
    TM_TRY(session_agree(&t->s, step < most ? tm_commit_roll_forward(dir, most - 1, &t->out.claim) : TM_OK));
    trainer_kill_point("kill_in_resume");
    return session_agree(&t->s, open_whole(t, &t->from.commit, dir));
}

/* Ranks whose launcher was killed live on for a moment, and one may publish after this one has looked. Once all are
 * open, nobody does: then all are of one step, or it is looked again. */
enum { LOOKS = 3 };
static tm_status open_own(trainer *t, bool *any) {
    for (int look = 0; look < LOOKS; look++) {
        TM_TRY(try_own(t, any));
        if (!*any) return TM_OK;
        uint64_t least = tm_commit_step(t->from.commit), most = least;
        TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_MIN, &least, 1));
        TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_MAX, &most, 1));
        if (least == most) return TM_OK;
        tm_commit_close(t->from.commit);
        t->from.commit = NULL;
        TM_TRY(session_agree(&t->s, TM_OK)); /* all have let go */
    }
    return session_agree(&t->s,
                         tm_fail(TM_ECORRUPT, "%s: the ranks' commits are of different steps", t->s.cfg->output_dir));
}

/* All of them, by one rank; whoever goes on with another layout looks into them. *alike: they are of one step. */
static tm_status try_all(trainer *t, bool *any, bool *alike) {
    uint64_t most = 0, step;
    for (uint32_t q = 0; q < t->from.old.ranks; q++) {
        TM_TRY(step_of(t->from.old.directory[q], &step));
        most = tm_max_u64(most, step);
    }
    *any = most > 0;
    *alike = true;
    for (uint32_t q = 0; *any && q < t->from.old.ranks; q++) {
        TM_TRY(step_of(t->from.old.directory[q], &step));
        if (step < most) TM_TRY(tm_commit_roll_forward(t->from.old.directory[q], most - 1, &t->out.claim));
        TM_TRY(open_whole(t, &t->from.old.taken[q], t->from.old.directory[q]));
        *alike &= tm_commit_step(t->from.old.taken[q]) + 1 == most;
    }
    return TM_OK;
}

static tm_status take_all(trainer *t, bool *any) {
    bool alike = false;
    *any = false;
    t->from.old.taken = tm_calloc(t->from.old.ranks, sizeof *t->from.old.taken);
    if (!t->from.old.taken) return tm_nomem(t->from.old.ranks * sizeof *t->from.old.taken);
    for (int look = 0; look < LOOKS; look++) {
        TM_TRY(try_all(t, any, &alike));
        if (!*any) tm_free(t->from.old.taken), t->from.old.taken = NULL;
        if (alike) return TM_OK;
        for (uint32_t q = 0; q < t->from.old.ranks; q++)
            tm_commit_close(t->from.old.taken[q]), t->from.old.taken[q] = NULL;
    }
    return tm_fail(TM_ECORRUPT, "%s: the ranks' commits are of different steps", t->s.cfg->output_dir);
}

static tm_status open_others(trainer *t, bool *any) {
    tm_status rc = session_is_rank0(&t->s) ? take_all(t, any) : TM_OK;
    TM_TRY(session_agree(&t->s, rc));
    uint64_t found = *any;
    if (t->s.comm) TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, &found, sizeof found));
    *any = found;
    if (!found) return TM_OK;
    TM_TRY(session_agree(&t->s, tm_commit_look(&t->from.commit, t->from.old.directory[0])));
    t->from.old.other = true;
    if (!session_commits(&t->s))
        return tm_fail(TM_EINPUT, "going on with other ranks or another strategy needs commits: set commit_steps");
    if (session_is_rank0(&t->s))
        tm_log(TM_LOG_INFO, "the state was laid out for %u ranks; it is read as it lies, and laid out anew",
               t->from.old.ranks);
    return TM_OK;
}

/* The commit was laid out as this run is? Asked of all. */
static tm_status laid_out_alike(trainer *t, bool *alike) {
    job_ranks was;
    TM_TRY(session_agree(&t->s, elastic_shards(tm_commit_info(t->from.commit), &was)));
    uint64_t same = elastic_same(&was, &t->s.ranks);
    TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_MIN, &same, 1));
    *alike = same;
    return TM_OK;
}

static tm_status open_together(trainer *t, const earlier *e, bool *any) {
    bool alike = false;
    TM_TRY(session_agree(&t->s, old_directories(t, e, t->s.cfg->output_dir)));
    if (t->from.old.ranks == 0) return TM_OK;
    if (t->s.comm && t->from.old.ranks == t->s.ranks.ranks) {
        TM_TRY(open_own(t, any));
        if (*any) TM_TRY(laid_out_alike(t, &alike));
        if (!*any || alike) return TM_OK;
        tm_commit_close(t->from.commit);
        t->from.commit = NULL;
        TM_TRY(session_agree(&t->s, TM_OK)); /* all have let go */
    }
    return open_others(t, any);
}

/* Nobody has published a commit. */
static tm_status start_over(trainer *t, const earlier *e) {
    if (!session_is_rank0(&t->s)) return TM_OK;
    TM_TRY(earlier_none_alive(t, e, STILL_DYING_MS));
    TM_TRY(earlier_refuse_if_lost(t, e));
    if (e->finished) return TM_OK;
    if (e->any) TM_TRY(trainer_start_over(t)); /* before what run.json names goes */
    TM_TRY(earlier_drop(t, e));
    return earlier_drop_nameless(t);
}

/* The state of a run into another OUTPUT_DIR, which keeps it: read as it lies. */
static tm_status look_into(trainer *t, const earlier *e, const char *dir, bool *any) {
    uint64_t first = 0, step;
    TM_TRY(old_directories(t, e, dir));
    TM_TRY(earlier_none_alive(t, e, STILL_DYING_MS));
    for (uint32_t q = 0; q < t->from.old.ranks; q++) {
        TM_TRY(step_of(t->from.old.directory[q], &step));
        if (q == 0) first = step;
        if (step != first)
            return tm_fail(TM_EINPUT,
                           "--resume %s: its ranks' commits are of different steps; go on with it once, "
                           "in its own output_dir, then they are not",
                           dir);
    }
    *any = first > 0;
    return *any ? elastic_begin(t, dir) : TM_OK;
}

static bool is_own(const trainer *t, const char *dir) {
    char here[PATH_MAX], there[PATH_MAX];
    return realpath(t->s.cfg->output_dir, here) && realpath(dir, there) && strcmp(here, there) == 0;
}

/* --resume DIR: a full checkpoint, or an output folder. */
tm_status resume_directory_together(trainer *t, const char *dir) {
    earlier *e = &t->from.old.run;
    char path[4096];
    bool any = false;
    tm_status rc = TM_OK;
    if (!tm_path_is_dir(dir))
        rc = tm_fail(TM_EINPUT,
                     "--resume %s: no such folder; give auto, never, an output_dir or a checkpoint-N with state", dir);
    if (rc == TM_OK) rc = elastic_resume(t, dir, &any);
    TM_TRY(session_agree(&t->s, rc));
    if (any) return TM_OK;
    snprintf(path, sizeof path, "%s/run.json", dir);
    TM_TRY(session_agree(&t->s, earlier_read(path, e)));
    if (e->any && is_own(t, dir))
        TM_TRY(open_together(t, e, &any));
    else if (e->any)
        TM_TRY(session_agree(&t->s, look_into(t, e, dir, &any)));
    if (any) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "--resume %s: neither a checkpoint with state nor an output_dir whose run left its state; with "
                   "several ranks it takes one of them",
                   dir);
}

tm_status resume_together(trainer *t, const char *resume) {
    earlier *e = &t->from.old.run;
    bool never = strcmp(resume, "never") == 0, any = false;
    if (!never && strcmp(resume, "auto") != 0) return resume_directory_together(t, resume);
    tm_status rc = earlier_read(trainer_path(t, "run.json"), e);
    if (rc != TM_OK && never) tm_error_clear(), rc = TM_OK;
    TM_TRY(session_agree(&t->s, rc));
    t->from.finished = e->finished && !never;
    if (!never && t->out.copied) /* the state stays with the OUTPUT_DIR that this one is a copy of */
        TM_TRY(session_agree(&t->s, look_into(t, e, t->s.cfg->output_dir, &any)));
    else if (!never)
        TM_TRY(elastic_fall_back(t, open_together(t, e, &any), &any));
    if (any) return TM_OK;
    if (never && session_is_rank0(&t->s)) {
        TM_TRY(earlier_none_alive(t, e, STILL_DYING_MS));
        return earlier_drop_nameless(t);
    }
    return never ? TM_OK : session_agree(&t->s, start_over(t, e));
}

void trainer_forget_old(trainer *t) {
    for (uint32_t q = 0; t->from.old.taken && q < t->from.old.ranks; q++) tm_commit_close(t->from.old.taken[q]);
    tm_free(t->from.old.taken);
    tm_free(t->from.old.directory);
    tm_buf_free(&t->from.old.texts);
    tm_json_free(t->from.old.run.doc);
    t->from.old = (trainer_old){.other = t->from.old.other};
}

/* Its state lies in directories of this run, which run.json names. */
tm_status trainer_remove_old(trainer *t) {
    for (uint32_t q = 0; t->from.old.taken && q < t->from.old.ranks; q++) {
        tm_commit *c = t->from.old.taken[q];
        t->from.old.taken[q] = NULL;
        TM_TRY(tm_commit_remove(c));
    }
    return TM_OK;
}
