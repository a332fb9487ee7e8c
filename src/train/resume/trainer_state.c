/* Full checkpoints of older states (save_state): commits copied out of the offload path, and back. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A commit of this step is what is copied. */
tm_status trainer_save_state(trainer *t, const char *checkpoint) {
    char from[4400], to[4400];
    if (t->committed != t->step) TM_TRY(trainer_commit(t));
    if (t->s.comm) return elastic_save(t, checkpoint);
    TM_TRY(tm_commit_copy(
        tm_store_path(t->job->tiers.store, 0),
        &(tm_commit_copy_opts){
            .paths = &checkpoint, .n_paths = 1, .id = "state", .key = t->out.key, .of = t->out.here, .slots = 1}));
    snprintf(from, sizeof from, "%s/run-state", checkpoint);
    snprintf(to, sizeof to, "%s/state", checkpoint);
    return tm_rename_path(from, to);
}

/* The checkpoint stays as it is; its copy, where this configuration puts its files, becomes the run directory. */
tm_status trainer_open_full(trainer *t, const char *state) {
    char id[64], directory[4400];
    uint64_t now = tm_now_ns();
    const char *home = t->out.home;
    job_opts o = {0};
    session_set_paths(t->s.cfg, &o);
    tm_commit_copy_opts copy = {
        .paths = &home, .n_paths = 1, .id = id, .key = t->out.key, .of = t->out.here, .home = home, .slots = 2};
    if (o.n_paths) copy.paths = o.paths, copy.n_paths = o.n_paths, copy.path_kinds = o.path_kinds;
    snprintf(id, sizeof id, "%s-%016" PRIx64, t->out.run_name, tm_hash64(&now, sizeof now, 0));
    snprintf(directory, sizeof directory, "%s/run-%s", copy.paths[0], id);
    TM_TRY(tm_commit_copy(state, &copy));
    t->from.rewound = true;
    snprintf(t->from.copy, sizeof t->from.copy, "%s", directory);
    return tm_commit_open(&t->from.commit, directory, &t->out.claim);
}

typedef struct newest {
    const trainer *t;
    int64_t below, step;
} newest;

static tm_status consider(void *ctx, const char *name, bool is_dir) {
    newest *x = ctx;
    char path[4400], *end;
    if (!is_dir || strncmp(name, "checkpoint-", 11) != 0) return TM_OK;
    long long step = strtoll(name + 11, &end, 10);
    snprintf(path, sizeof path, "%s/%s/state/manifest", x->t->s.cfg->output_dir, name);
    bool whole = tm_path_exists(path);
    snprintf(path, sizeof path, "%s/%s", x->t->s.cfg->output_dir, name);
    if (*end == 0 && step > x->step && step < x->below && (whole || elastic_is_checkpoint(path))) x->step = step;
    return TM_OK;
}

bool trainer_next_full(const trainer *t, int64_t *below, char *path, size_t cap) {
    newest x = {t, *below, -1};
    if (!tm_path_is_dir(t->s.cfg->output_dir)) return false;
    tm_error said = *tm_error_get();
    bool listed = tm_list_dir(t->s.cfg->output_dir, consider, &x) == TM_OK;
    tm_error_clear();
    tm_error_set(&said);
    snprintf(path, cap, "%s/checkpoint-%" PRId64, t->s.cfg->output_dir, x.step);
    *below = x.step;
    return listed && x.step >= 0;
}

bool trainer_newest_full(const trainer *t, char *path, size_t cap) {
    int64_t below = INT64_MAX;
    return trainer_next_full(t, &below, path, cap);
}

bool trainer_older_may_do(tm_status rc) {
    return rc == TM_ECORRUPT || rc == TM_EINPUT || rc == TM_EIO;
}

tm_status trainer_open_commit(trainer *t, const char *directory, bool prove) {
    char full[4096], state[4200];
    int64_t below = INT64_MAX;
    tm_status rc = tm_commit_open(&t->from.commit, directory, &t->out.claim);
    if (rc == TM_OK) rc = tm_commit_present(directory);
    if (rc == TM_OK && prove) rc = tm_commit_prove(directory);
    if (rc != TM_ECORRUPT) return rc;
    tm_commit_close(t->from.commit);
    t->from.commit = NULL;
    while (trainer_older_may_do(rc) && trainer_next_full(t, &below, full, sizeof full)) {
        tm_log(TM_LOG_ERROR, "%s", tm_error_get()->text);
        tm_log(TM_LOG_WARN, "going back to the newest full checkpoint that is left, %s; %s is left as it is", full,
               directory);
        tm_error_clear();
        snprintf(state, sizeof state, "%s/state", full);
        rc = elastic_is_checkpoint(full) ? elastic_go_back(t, full) : trainer_open_full(t, state);
    }
    return rc;
}
