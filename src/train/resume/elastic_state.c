/* Full checkpoints of several ranks (save_state): CHECKPOINT/state holds one commit a rank, run-rank-N, and whoever
 * goes on from it - on as many ranks or others - reads what it holds out of them and leaves them as they are. */
#include "comm/comm.h"
#include "job/job.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* The ranks' copies are whole before the folder gets its name. */
tm_status elastic_save(trainer *t, const char *checkpoint) {
    char state[4300], id[32];
    const char *to = state;
    snprintf(state, sizeof state, "%s/state", checkpoint);
    snprintf(id, sizeof id, "rank-%u", t->s.ranks.rank);
    tm_status rc = session_is_rank0(&t->s) ? tm_make_dirs(state) : TM_OK;
    TM_TRY(session_agree(&t->s, rc));
    return session_agree(
        &t->s,
        tm_commit_copy(tm_store_path(t->job->tiers.store, 0),
                       &(tm_commit_copy_opts){
                           .paths = &to, .n_paths = 1, .id = id, .key = t->out.key, .of = t->out.here, .slots = 1}));
}

static tm_status add_directory(trainer *t, const char *dir) {
    uint32_t n = t->from.old.ranks;
    const char **more = tm_realloc((void *)t->from.old.directory, (n + 1) * sizeof *more);
    if (!more) return tm_nomem((n + 1) * sizeof *more);
    t->from.old.directory = more;
    TM_TRY(tm_buf_append(&t->from.old.texts, dir, strlen(dir) + 1));
    t->from.old.ranks = n + 1;
    return TM_OK;
}

/* Texts moved while they were appended. */
static void point(trainer *t) {
    const char *at = t->from.old.texts.data;
    for (uint32_t q = 0; q < t->from.old.ranks; q++, at += strlen(at) + 1) t->from.old.directory[q] = at;
}

static bool holds(const char *dir) {
    char path[4500];
    snprintf(path, sizeof path, "%s/manifest", dir);
    return tm_path_exists(path);
}

/* DIR/state of one rank, or DIR/state/run-rank-0, ... How many there have to be, the first one says. */
static tm_status find_checkpoint(trainer *t, const char *dir, bool *found) {
    char path[4400];
    snprintf(path, sizeof path, "%s/state", dir);
    *found = holds(path);
    if (*found) return add_directory(t, path);
    for (uint32_t q = 0;; q++) {
        snprintf(path, sizeof path, "%s/state/run-rank-%u", dir, q);
        if (!holds(path)) break;
        TM_TRY(add_directory(t, path));
        *found = true;
    }
    return TM_OK;
}

static tm_status check_number(trainer *t, const char *dir) {
    job_ranks was;
    TM_TRY(elastic_shards(tm_commit_info(t->from.commit), &was));
    if (was.ranks == t->from.old.ranks) return TM_OK;
    return tm_fail(TM_EINPUT, "--resume %s: %u of %u ranks' state is there", dir, t->from.old.ranks, was.ranks);
}

bool elastic_is_checkpoint(const char *dir) {
    char path[4400];
    snprintf(path, sizeof path, "%s/state/run-rank-0", dir);
    return holds(path);
}

tm_status elastic_resume(trainer *t, const char *dir, bool *any) {
    TM_TRY(find_checkpoint(t, dir, any));
    if (!*any) return TM_OK;
    point(t);
    return elastic_begin(t, dir);
}

tm_status elastic_begin(trainer *t, const char *dir) {
    if (!session_commits(&t->s))
        return tm_fail(TM_EINPUT, "--resume %s: going on from it needs commits: set commit_steps", dir);
    TM_TRY(tm_commit_look(&t->from.commit, t->from.old.directory[0]));
    TM_TRY(check_number(t, dir));
    t->from.old.other = t->from.rewound = true;
    if (session_is_rank0(&t->s))
        tm_log(TM_LOG_INFO, "%s: the state of %u rank%s; it is read as it lies, and laid out anew", dir,
               t->from.old.ranks, t->from.old.ranks > 1 ? "s" : "");
    return TM_OK;
}

/* ---- instead of a commit that is damaged --------------------------------------------------------------------- */

/* What some ranks had opened before one found the damage. */
static void let_go(trainer *t) {
    tm_commit_close(t->from.commit);
    t->from.commit = NULL;
    for (uint32_t q = 0; t->from.old.taken && q < t->from.old.ranks; q++) tm_commit_close(t->from.old.taken[q]);
    tm_free(t->from.old.taken);
    tm_free(t->from.old.directory);
    t->from.old.taken = NULL;
    t->from.old.directory = NULL;
    t->from.old.texts.len = 0;
    t->from.old.ranks = 0;
    t->from.old.other = false;
}

/* Each rank reads its share of the commits, from the first byte to the last. */
static tm_status prove(const trainer *t) {
    uint32_t ranks = t->s.comm ? t->s.ranks.ranks : 1;
    uint64_t step = tm_commit_step(t->from.commit);
    for (uint32_t q = t->s.ranks.rank; q < t->from.old.ranks; q += ranks) {
        tm_commit *c;
        const char *dir = t->from.old.directory[q];
        TM_TRY(tm_commit_look(&c, dir));
        bool same = tm_commit_step(c) == step;
        tm_commit_close(c);
        if (!same) return tm_fail(TM_ECORRUPT, "%s: not of the step of %s", dir, t->from.old.directory[0]);
        TM_TRY(tm_commit_prove(dir));
    }
    return TM_OK;
}

tm_status elastic_go_back(trainer *t, const char *checkpoint) {
    bool any;
    let_go(t);
    tm_status rc = elastic_resume(t, checkpoint, &any);
    if (rc == TM_OK && !any) rc = tm_fail(TM_EINPUT, "%s: this rank finds no state there", checkpoint);
    rc = session_agree(&t->s, rc); /* before shares of it are read */
    if (rc == TM_OK) rc = session_agree(&t->s, prove(t));
    if (rc != TM_OK) let_go(t);
    return rc;
}

/* The first rank looks, so that all go back to the same one. */
static tm_status next_of_all(trainer *t, int64_t *below, char *path, size_t cap, bool *found) {
    uint64_t any = session_is_rank0(&t->s) && trainer_next_full(t, below, path, cap);
    if (t->s.comm) TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, &any, sizeof any));
    if (t->s.comm && any) TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, path, cap));
    *found = any;
    return TM_OK;
}

tm_status elastic_fall_back(trainer *t, tm_status rc, bool *any) {
    char full[4096];
    int64_t below = INT64_MAX;
    if (rc != TM_ECORRUPT || !session_commits(&t->s)) return rc;
    while (trainer_older_may_do(rc)) {
        bool found;
        tm_error why = *tm_error_get();
        tm_error_clear();
        TM_TRY(next_of_all(t, &below, full, sizeof full, &found));
        tm_error_set(&why);
        if (!found) return rc;
        if (session_is_rank0(&t->s)) {
            tm_log(TM_LOG_ERROR, "%s", why.text);
            tm_log(TM_LOG_WARN,
                   "going back to the newest full checkpoint that is left, %s; what %s/run.json names is left as it is",
                   full, t->s.cfg->output_dir);
        }
        tm_error_clear();
        t->s.agreed = false;
        rc = elastic_go_back(t, full);
    }
    *any = rc == TM_OK;
    return rc;
}
