/* Room for what a run gives away: known before the first step, as the state's is. */
#include "io/file/file.h"
#include "train/trainer_internal.h"

#include <inttypes.h>

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

static tm_status refuse(const trainer *t, uint64_t want, uint64_t have, uint64_t folders, uint64_t model,
                        uint64_t folder) {
    char x[32], y[32], m[32], f[32];
    return tm_fail(TM_EINPUT,
                   "%s: %s free, this run writes %s there: a model of %s at its end and %" PRIu64
                   " checkpoint folders of %s; make room, set save_total_limit or raise save_steps (0: no folders)",
                   t->s.cfg->output_dir, tm_format_size(have, x, sizeof x), tm_format_size(want, y, sizeof y),
                   tm_format_size(model, m, sizeof m), folders, tm_format_size(folder, f, sizeof f));
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
    uint64_t have = tm_free_bytes(t->s.cfg->output_dir);
    TM_TRY(check_shards(t, model));
    if (have == 0) return TM_OK; /* not known: found out while it is written */
    uint64_t ranks = t->s.ranks.ranks ? t->s.ranks.ranks : 1;
    uint64_t folder = model + (t->s.cfg->save_state ? ranks * tm_store_state_bytes(t->job->layout, 1, true) : 0);
    uint64_t folders = folders_beside(t, folders_left(t)), needed = folders;
    if (t->s.cfg->save_total_limit == 0 && needed > 1) needed = 1;
    if (model + needed * folder > have) return refuse(t, model + needed * folder, have, needed, model, folder);
    if (folders > (have - model) / tm_max_u64(folder, 1)) {
        char f[32], x[32];
        tm_log(TM_LOG_WARN,
               "%s: %s free, room for %" PRIu64 " of the %" PRIu64
               " checkpoint folders of %s that this run writes; save_total_limit removes the oldest",
               t->s.cfg->output_dir, tm_format_size(have, x, sizeof x), (have - model) / folder, folders,
               tm_format_size(folder, f, sizeof f));
    }
    return TM_OK;
}
