/* Room for what a run gives away: known before the first step, as the state's is. */
#include "base/change.h"
#include "io/file/file.h"
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* checkpoint-N folders that are still to come. The best so far may be any evaluation. */
static uint64_t folders_left(const trainer *t) {
    const tm_config *c = t->s.cfg;
    int64_t every = c->save_best ? c->eval_steps : c->save_steps, last = c->total_steps - 1;
    if (every <= 0 || last <= t->step) return 0;
    return (uint64_t)(last / every - t->step / every);
}

/* Of those, how many lie there beside each other, the one that is being written included. */
static uint64_t folders_beside(const trainer *t, uint64_t left) {
    uint64_t most = (uint64_t)t->s.cfg->save_total_limit + 1, there = t->saves.n;
    if (t->s.cfg->save_total_limit == 0) return left;
    return tm_min_u64(left, there < most ? most - there : 1);
}

/* What a run writes into OUTPUT_DIR: a model at its end, and folders before it that lie there beside each other. */
typedef struct output_room {
    uint64_t have, model, folder, folders;
} output_room;

/* The one key with which it fits: fewer folders that stay, or none; the most that does. False: none does. */
static bool fewer(const trainer *t, const output_room *r, char *change, size_t cap) {
    const tm_config *c = t->s.cfg;
    uint64_t fit = r->have > r->model ? (r->have - r->model) / tm_max_u64(r->folder, 1) : 0;
    bool by_words = !c->load_best_model_at_end && !c->saves_per_epoch; /* else they ask for folders, too */
    if (r->model > r->have) return false;
    if (fit > 1 && c->save_total_limit >= fit) /* one more lies there while it is written */
        snprintf(change, cap, "save_total_limit=%" PRIu64, fit - 1);
    else if (by_words)
        snprintf(change, cap, "save_strategy=no");
    else
        return false;
    return true;
}

static tm_status refuse(const trainer *t, const output_room *r) {
    char x[32], y[32], m[32], f[32], change[64], advice[192] = "make room, or give another output_dir";
    bool change_fits = fewer(t, r, change, sizeof change);
    if (change_fits)
        snprintf(advice, sizeof advice, "make room, give another output_dir, or keep fewer folders: --set %s", change);
    tm_status rc =
        tm_fail(TM_EINPUT,
                "%s: %s free, this run writes %s there: a model of %s at its end%s and %" PRIu64
                " checkpoint folders of %s; %s",
                t->s.cfg->output_dir, tm_format_size(r->have, x, sizeof x),
                tm_format_size(r->model + r->folders * r->folder, y, sizeof y), tm_format_size(r->model, m, sizeof m),
                t->s.trial ? " (or for eval_tasks)" : "", r->folders, tm_format_size(r->folder, f, sizeof f), advice);
    if (change_fits) tm_change_advise("%s", change);
    return rc;
}

/* All files of a model are open while it is written. */
static tm_status check_shards(const trainer *t, uint64_t model) {
    enum { MOST = 200 };
    uint64_t size = t->s.cfg->max_shard_size;
    char least[32];
    if (size == 0 || model / size < MOST) return TM_OK;
    return tm_fail(TM_EINPUT, "max_shard_size: the model would be %" PRIu64 " files; give at least %s", model / size,
                   tm_format_size(model / MOST + 1, least, sizeof least));
}

/* Without a limit somebody may mean to take folders away in between: then only the first has to fit. */
tm_status trainer_check_room(const trainer *t) {
    uint64_t model = job_export_bytes(t->job, session_save_format(t->s.cfg));
    uint64_t scored = t->s.trial ? job_export_bytes(t->job, session_score_format(t->s.cfg)) : 0;
    uint64_t last = tm_max_u64(model, scored); /* tasks have theirs beside all folders, and give it back */
    uint64_t have = tm_free_bytes(t->s.cfg->output_dir);
    TM_TRY(check_shards(t, model));
    if (have == 0) return TM_OK; /* not known: found out while it is written */
    uint64_t ranks = t->s.ranks.ranks ? t->s.ranks.ranks : 1;
    uint64_t folder = model + (t->s.cfg->save_state ? ranks * tm_store_state_bytes(t->job->layout, 1, true) : 0);
    uint64_t folders = folders_beside(t, folders_left(t)), needed = folders;
    if (t->s.cfg->save_total_limit == 0 && needed > 1) needed = 1;
    if (last + needed * folder > have)
        return refuse(t, &(output_room){.have = have, .model = last, .folder = folder, .folders = needed});
    if (folders > (have - last) / tm_max_u64(folder, 1)) {
        char f[32], x[32];
        tm_log(TM_LOG_WARN,
               "%s: %s free, room for %" PRIu64 " of the %" PRIu64
               " checkpoint folders of %s that this run writes; save_total_limit removes the oldest",
               t->s.cfg->output_dir, tm_format_size(have, x, sizeof x), (have - last) / folder, folders,
               tm_format_size(folder, f, sizeof f));
    }
    return TM_OK;
}
