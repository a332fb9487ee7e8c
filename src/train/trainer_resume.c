/* What a run goes on from: the choice, and whether the commit is of this job. */
#include "comm/comm.h"
#include "train/elastic_internal.h"
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what OUTPUT_DIR says -------------------------------------------------------------------------------------- */

tm_status earlier_read(const char *path, earlier *out) {
    tm_buf text = {0};
    *out = (earlier){0};
    if (!tm_path_exists(path)) return TM_OK;
    tm_status rc = tm_file_slurp(path, 16 * TM_MIB, &text);
    if (rc == TM_OK) rc = tm_json_parse(&out->doc, text.data, text.len, path, 0, 0);
    tm_buf_free(&text);
    if (rc != TM_OK) return rc;
    const tm_json *root = tm_json_root(out->doc), *step = tm_json_get(root, "step");
    out->any = true;
    out->finished = tm_json_is(tm_json_get(root, "status"), "finished");
    out->step = step && step->is_integer ? step->integer : 0;
    const tm_json *kept = tm_json_get(tm_json_get(root, "config"), "keep_state");
    out->kept = kept && kept->boolean;
    out->directories = tm_json_get(root, "run_directories");
    out->by_rank = tm_json_get(root, "directories_by_rank");
    return TM_OK;
}

static const char *first_directory(const earlier *e) {
    const tm_json *d = e->directories ? e->directories->child : NULL;
    return d && d->type == TM_JSON_STRING ? d->text : NULL;
}

/* ---- refusals and leftovers ------------------------------------------------------------------------------------ */

static tm_status refuse_finished(const trainer *t, const earlier *e) {
    return tm_fail(TM_EINPUT,
                   "%s holds a finished run of %" PRId64 " steps whose state was removed (keep_state keeps it); give "
                   "another output_dir, or --resume never to start over",
                   t->cfg->output_dir, e->step);
}

static tm_status refuse_lost(const trainer *t, const char *dir) {
    return tm_fail(TM_EINPUT,
                   "%s holds an interrupted run that cannot continue: %s%s; --resume never starts over, another "
                   "output_dir leaves it alone",
                   t->cfg->output_dir, dir ? dir : "it made no commits", dir ? " is gone" : "");
}

static tm_status refuse_alive(const char *dir, const tm_io_owner *o) {
    return tm_fail(TM_EINPUT, "%s: in use by process %ld on %s, started %s; wait for it or stop it", dir, o->pid,
                   o->host, o->started);
}

static bool is_run_directory(const tm_json *dir, tm_io_owner *o) {
    const char *slash = dir->type == TM_JSON_STRING ? strrchr(dir->text, '/') : NULL;
    if (!slash || strncmp(slash, "/run-", 5) != 0 || !tm_path_is_dir(dir->text)) return false;
    if (tm_io_run_owner(dir->text, o) == TM_OK) return o->is_run;
    tm_error_clear();
    return false;
}

static tm_status none_alive(const earlier *e) {
    tm_io_owner o;
    for (const tm_json *d = e->directories ? e->directories->child : NULL; d; d = d->next)
        if (is_run_directory(d, &o) && o.alive) return refuse_alive(d->text, &o);
    return TM_OK;
}

/* Without a commit nothing in them can be used: killed before the first one, or while they were removed at the end.
 * Taken before removed, so that nobody else has them. */
static tm_status drop_leftovers(const earlier *e) {
    tm_io_owner o;
    for (const tm_json *d = e->directories ? e->directories->child : NULL; d; d = d->next) {
        tm_io_run *run;
        if (!is_run_directory(d, &o)) continue;
        TM_TRY(tm_io_run_reopen(&run, d->text, true, 10000));
        tm_log(TM_LOG_INFO, "%s: removed; it holds no commit", d->text);
        TM_TRY(tm_io_run_remove(run));
    }
    return TM_OK;
}

/* Killed before run.json named its directories: they are known by their names. One that holds a commit is left: that
 * is for `tidemill clean`. */
typedef struct nameless {
    trainer *t;
    const char *path;
} nameless;

static tm_status drop_nameless(void *ctx, const char *name, bool is_dir) {
    const nameless *x = ctx;
    char prefix[40], path[4096], manifest[4200];
    tm_io_run *run;
    tm_io_owner o;
    int n = snprintf(prefix, sizeof prefix, "run-%s", x->t->run_hash);
    if (!is_dir || strncmp(name, prefix, (size_t)n) != 0 || !strchr("-r", name[n])) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", x->path, name);
    snprintf(manifest, sizeof manifest, "%s/manifest", path);
    bool committed = tm_path_exists(manifest);
    snprintf(manifest, sizeof manifest, "%s/part-of", path);
    if (committed || tm_path_exists(manifest)) {
        tm_log(TM_LOG_WARN, "%s: the commit of a run that was given up; `tidemill clean %s` removes it", path, x->path);
        return TM_OK;
    }
    TM_TRY(tm_io_run_owner(path, &o));
    if (o.alive) return refuse_alive(path, &o);
    if (!o.is_run) return tm_remove_tree(path); /* killed before it made its lock */
    TM_TRY(tm_io_run_reopen(&run, path, true, 0));
    return tm_io_run_remove(run);
}

static tm_status drop_in(trainer *t, const char *path) {
    nameless x = {t, path};
    return tm_path_is_dir(path) ? tm_list_dir(path, drop_nameless, &x) : TM_OK;
}

static tm_status drop_all_nameless(trainer *t) {
    const tm_strings *lists[] = {&t->cfg->param_paths, &t->cfg->optimizer_paths};
    TM_TRY(drop_in(t, t->home));
    for (size_t l = 0; l < TM_COUNT(lists); l++)
        for (uint32_t i = 0; i < lists[l]->n; i++) TM_TRY(drop_in(t, lists[l]->item[i]));
    return TM_OK;
}

/* ---- the choice ------------------------------------------------------------------------------------------------ */

static bool holds_commit(const char *dir) {
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

static tm_status from_commit(trainer *t, const char *dir) {
    TM_TRY(trainer_open_commit(t, dir));
    if (t->rewound) return TM_OK;
    TM_TRY(copy_if_others(t, dir));
    t->rewound = false; /* a copy of the latest state */
    return TM_OK;
}

static tm_status from_earlier(trainer *t, const earlier *e) {
    const char *dir = first_directory(e);
    if (!e->any) return TM_OK;
    if (dir && holds_commit(dir)) return from_commit(t, dir);
    if (!e->finished && (!dir || !tm_path_is_dir(dir))) return refuse_lost(t, dir);
    TM_TRY(none_alive(e));
    if (!e->finished) TM_TRY(tm_remove_tree(trainer_path(t, "run.json"))); /* before what it names goes */
    TM_TRY(drop_leftovers(e));
    TM_TRY(drop_all_nameless(t));
    return e->finished ? refuse_finished(t, e) : TM_OK;
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
    if (holds_commit(path)) return trainer_open_full(t, path);
    snprintf(path, sizeof path, "%s/run.json", dir);
    TM_TRY(earlier_read(path, &e));
    const char *first = e.any ? first_directory(&e) : dir;
    tm_status rc = TM_OK;
    if (!e.any && !holds_commit(dir))
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

/* ---- ranks ----------------------------------------------------------------------------------------------------- */

/* The first directory of every rank of the run before. */
static tm_status old_directories(trainer *t, const earlier *e) {
    const tm_json *d = e->directories ? e->directories->child : NULL, *n = e->by_rank ? e->by_rank->child : NULL;
    if (!d) return TM_OK;
    uint32_t ranks = n ? (uint32_t)e->by_rank->count : 1;
    t->old.directory = tm_calloc(ranks, sizeof *t->old.directory);
    if (!t->old.directory) return tm_nomem(ranks * sizeof *t->old.directory);
    for (t->old.ranks = 0; t->old.ranks < ranks && d; t->old.ranks++) {
        t->old.directory[t->old.ranks] = d->type == TM_JSON_STRING ? d->text : "";
        for (int64_t skip = n ? n->integer : 0; d && skip > 0; skip--) d = d->next;
        if (n) n = n->next;
    }
    return t->old.ranks == ranks ? TM_OK : tm_fail(TM_EINPUT, "%s/run.json is damaged", t->cfg->output_dir);
}

/* The step of the commit there, + 1; 0: none. */
static tm_status step_of(const char *dir, uint64_t *step) {
    tm_commit *c;
    *step = 0;
    if (!holds_commit(dir)) return TM_OK;
    TM_TRY(tm_commit_look(&c, dir));
    *step = tm_commit_step(c) + 1;
    tm_commit_close(c);
    return TM_OK;
}

/* As many ranks as before: each its own. The highest step that any rank published: all had prepared it by then. */
static tm_status try_own(trainer *t, bool *any) {
    const char *dir = t->old.directory[t->ranks.rank];
    uint64_t step = 0, most;
    TM_TRY(trainer_agree(t, step_of(dir, &step)));
    most = step;
    TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MAX, &most, 1));
    *any = most > 0;
    if (most == 0) return TM_OK;
    trainer_kill_point("kill_in_resume");
    TM_TRY(trainer_agree(t, step < most ? tm_commit_roll_forward(dir, most - 1) : TM_OK));
    trainer_kill_point("kill_in_resume");
    return trainer_agree(t, tm_commit_open(&t->commit, dir));
}

/* Ranks whose launcher was killed live on for a moment, and one may publish after this one has looked. Once all are
 * open, nobody does: then all are of one step, or it is looked again. */
enum { LOOKS = 3 };
static tm_status open_own(trainer *t, bool *any) {
    for (int look = 0; look < LOOKS; look++) {
        TM_TRY(try_own(t, any));
        if (!*any) return TM_OK;
        uint64_t least = tm_commit_step(t->commit), most = least;
        TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MIN, &least, 1));
        TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MAX, &most, 1));
        if (least == most) return TM_OK;
        tm_commit_close(t->commit);
        t->commit = NULL;
        TM_TRY(trainer_agree(t, TM_OK)); /* all have let go */
    }
    return trainer_agree(t, tm_fail(TM_ECORRUPT, "%s: the ranks' commits are of different steps", t->cfg->output_dir));
}

/* All of them, by one rank; whoever goes on with another layout looks into them. *alike: they are of one step. */
static tm_status try_all(trainer *t, bool *any, bool *alike) {
    uint64_t most = 0, step;
    for (uint32_t q = 0; q < t->old.ranks; q++) {
        TM_TRY(step_of(t->old.directory[q], &step));
        most = tm_max_u64(most, step);
    }
    *any = most > 0;
    *alike = true;
    for (uint32_t q = 0; *any && q < t->old.ranks; q++) {
        TM_TRY(step_of(t->old.directory[q], &step));
        if (step < most) TM_TRY(tm_commit_roll_forward(t->old.directory[q], most - 1));
        TM_TRY(tm_commit_open(&t->old.taken[q], t->old.directory[q]));
        *alike &= tm_commit_step(t->old.taken[q]) + 1 == most;
    }
    return TM_OK;
}

static tm_status take_all(trainer *t, bool *any) {
    bool alike = false;
    *any = false;
    t->old.taken = tm_calloc(t->old.ranks, sizeof *t->old.taken);
    if (!t->old.taken) return tm_nomem(t->old.ranks * sizeof *t->old.taken);
    for (int look = 0; look < LOOKS; look++) {
        TM_TRY(try_all(t, any, &alike));
        if (!*any) tm_free(t->old.taken), t->old.taken = NULL;
        if (alike) return TM_OK;
        for (uint32_t q = 0; q < t->old.ranks; q++) tm_commit_close(t->old.taken[q]), t->old.taken[q] = NULL;
    }
    return tm_fail(TM_ECORRUPT, "%s: the ranks' commits are of different steps", t->cfg->output_dir);
}

static tm_status open_others(trainer *t, bool *any) {
    tm_status rc = trainer_speaks(t) ? take_all(t, any) : TM_OK;
    TM_TRY(trainer_agree(t, rc));
    uint64_t found = *any;
    if (t->comm) TM_TRY(tm_comm_broadcast(t->comm, TM_COMM_WORLD, 0, &found, sizeof found));
    *any = found;
    if (!found) return TM_OK;
    TM_TRY(trainer_agree(t, tm_commit_look(&t->commit, t->old.directory[0])));
    t->old.other = true;
    if (!trainer_commits(t))
        return tm_fail(TM_EINPUT, "going on with other ranks or another strategy needs commits: set commit_steps");
    if (trainer_speaks(t))
        tm_log(TM_LOG_INFO, "the state was laid out for %u ranks; it is read as it lies, and laid out anew",
               t->old.ranks);
    return TM_OK;
}

/* The commit was laid out as this run is? Asked of all. */
static tm_status laid_out_alike(trainer *t, bool *alike) {
    job_ranks was;
    TM_TRY(trainer_agree(t, elastic_shards(tm_commit_info(t->commit), &was)));
    uint64_t same = elastic_same(&was, &t->ranks);
    TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MIN, &same, 1));
    *alike = same;
    return TM_OK;
}

static tm_status open_together(trainer *t, const earlier *e, bool *any) {
    bool alike = false;
    TM_TRY(trainer_agree(t, old_directories(t, e)));
    if (t->old.ranks == 0) return TM_OK;
    if (t->comm && t->old.ranks == t->ranks.ranks) {
        TM_TRY(open_own(t, any));
        if (*any) TM_TRY(laid_out_alike(t, &alike));
        if (!*any || alike) return TM_OK;
        tm_commit_close(t->commit);
        t->commit = NULL;
        TM_TRY(trainer_agree(t, TM_OK)); /* all have let go */
    }
    return open_others(t, any);
}

/* A run that committed and has lost its state (a disk that is not mounted) is not started over in silence. */
static tm_status refuse_if_lost(trainer *t, const earlier *e) {
    if (!trainer_speaks(t) || !e->any || e->finished) return TM_OK;
    const tm_json *d = e->directories ? e->directories->child : NULL;
    while (d && (d->type != TM_JSON_STRING || tm_path_is_dir(d->text))) d = d->next;
    if (!d) return TM_OK;
    bool committed;
    TM_TRY(trainer_log_has_commit(t, &committed));
    return committed ? refuse_lost(t, d->text) : TM_OK;
}

static tm_status clear_away(trainer *t, const earlier *e) {
    if (!trainer_speaks(t)) return TM_OK;
    TM_TRY(none_alive(e));
    if (e->any && !e->finished) TM_TRY(tm_remove_tree(trainer_path(t, "run.json")));
    TM_TRY(drop_leftovers(e));
    return drop_all_nameless(t);
}

/* The state of a run into another OUTPUT_DIR, which keeps it: read as it lies. */
static tm_status look_into(trainer *t, const earlier *e, const char *dir, bool *any) {
    uint64_t first = 0, step;
    TM_TRY(old_directories(t, e));
    TM_TRY(none_alive(e));
    for (uint32_t q = 0; q < t->old.ranks; q++) {
        TM_TRY(step_of(t->old.directory[q], &step));
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
    return realpath(t->cfg->output_dir, here) && realpath(dir, there) && strcmp(here, there) == 0;
}

/* --resume DIR: a full checkpoint, or an output folder. */
static tm_status from_directory_together(trainer *t, const char *dir) {
    earlier *e = &t->old.run;
    char path[4096];
    bool any = false;
    tm_status rc = TM_OK;
    if (!tm_path_is_dir(dir))
        rc = tm_fail(TM_EINPUT,
                     "--resume %s: no such folder; give auto, never, an output_dir or a checkpoint-N with state", dir);
    if (rc == TM_OK) rc = elastic_resume(t, dir, &any);
    TM_TRY(trainer_agree(t, rc));
    if (any) return TM_OK;
    snprintf(path, sizeof path, "%s/run.json", dir);
    TM_TRY(trainer_agree(t, earlier_read(path, e)));
    if (e->any && is_own(t, dir))
        TM_TRY(open_together(t, e, &any));
    else if (e->any)
        TM_TRY(trainer_agree(t, look_into(t, e, dir, &any)));
    if (any) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "--resume %s: neither a checkpoint with state nor an output_dir whose run left its state; with "
                   "several ranks it takes one of them",
                   dir);
}

static tm_status choose_together(trainer *t, const char *resume) {
    earlier *e = &t->old.run;
    bool never = strcmp(resume, "never") == 0, any = false;
    if (!never && strcmp(resume, "auto") != 0) return from_directory_together(t, resume);
    tm_status rc = earlier_read(trainer_path(t, "run.json"), e);
    if (rc != TM_OK && never) tm_error_clear(), rc = TM_OK;
    TM_TRY(trainer_agree(t, rc));
    if (!never) TM_TRY(open_together(t, e, &any));
    if (any) return TM_OK;
    if (never && trainer_speaks(t)) {
        TM_TRY(none_alive(e));
        return drop_all_nameless(t);
    }
    if (!never) TM_TRY(trainer_agree(t, refuse_if_lost(t, e)));
    if (!never) TM_TRY(clear_away(t, e));
    return !never && e->finished ? refuse_finished(t, e) : TM_OK;
}

void trainer_forget_old(trainer *t) {
    for (uint32_t q = 0; t->old.taken && q < t->old.ranks; q++) tm_commit_close(t->old.taken[q]);
    tm_free(t->old.taken);
    tm_free(t->old.directory);
    tm_buf_free(&t->old.texts);
    tm_json_free(t->old.run.doc);
    t->old = (trainer_old){.other = t->old.other};
}

/* Its state lies in directories of this run, which run.json names. */
tm_status trainer_remove_old(trainer *t) {
    for (uint32_t q = 0; t->old.taken && q < t->old.ranks; q++) {
        tm_commit *c = t->old.taken[q];
        t->old.taken[q] = NULL;
        TM_TRY(tm_commit_remove(c));
    }
    return TM_OK;
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
    if (t->comm) return choose_together(t, resume);
    tm_status rc = earlier_read(trainer_path(t, "run.json"), &e);
    if (rc != TM_OK && never) {
        tm_error_clear(); /* it is to be forgotten anyway */
        rc = TM_OK;
    }
    TM_TRY(rc);
    if (never)
        rc = none_alive(&e);
    else if (strcmp(resume, "auto") == 0 && e.by_rank && e.by_rank->count > 0) {
        tm_json_free(e.doc);
        return choose_together(t, resume); /* it was run on several ranks */
    } else if (strcmp(resume, "auto") != 0 && was_of_ranks(resume)) {
        tm_json_free(e.doc);
        return from_directory_together(t, resume);
    } else
        rc = strcmp(resume, "auto") == 0 ? from_earlier(t, &e) : from_directory(t, resume);
    tm_json_free(e.doc);
    return rc == TM_OK && !t->commit ? drop_all_nameless(t) : rc;
}

/* ---- what a killed run left in OUTPUT_DIR ------------------------------------------------------------------------ */

/* checkpoint-N.tmp, checkpoint-N.tmp-old, .tmp-<16 hex digits>-NAME (tm_out), .tokens-<pid>-<n> (data). */
static bool is_half_done(const char *name) {
    size_t n, digits;
    if (strncmp(name, ".tmp-", 5) == 0) return strspn(name + 5, "0123456789abcdef") == 16 && name[21] == '-';
    if (strncmp(name, ".tokens-", 8) == 0) return name[8 + strspn(name + 8, "0123456789")] == '-';
    n = strncmp(name, "checkpoint-", 11) == 0 ? 11 : 0;
    digits = strspn(name + n, "0123456789");
    const char *end = name + n + digits;
    return n && digits && (strcmp(end, ".tmp") == 0 || strcmp(end, ".tmp-old") == 0);
}

static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    const trainer *t = ctx;
    char path[4096];
    (void)is_dir;
    if (!is_half_done(name)) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", t->cfg->output_dir, name);
    return tm_remove_tree(path);
}

tm_status trainer_sweep(trainer *t) {
    return tm_list_dir(t->cfg->output_dir, sweep_one, t);
}
