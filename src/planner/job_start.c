/* A job's start: what the planner chose becomes the job's, then memory that the ranks of a node share, files, slab and
 * arena, and the import or the commit. */
#include "comm/comm.h"
#include "planner/start.h"

#include <math.h>
#include <string.h>

/* ---- memory that the ranks of a node share ------------------------------------------------------------------- */

/* Collective: each rank brings its part; on all nodes or on none. */
static tm_status open_window(tm_job *job, uint64_t bytes) {
    tm_comm *comm = job->ranks.comm;
    uint32_t n = tm_comm_node_size(comm);
    TM_ASSERT(n > 0 && bytes > 0 && !job->tiers.window);
    tm_status rc = tm_comm_window_open(&job->tiers.window, comm, (bytes + n - 1) / n);
    tm_error why = *tm_error_get();
    uint64_t all = rc == TM_OK;
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MIN, &all, 1));
    if (all) return TM_OK;
    tm_comm_window_close(job->tiers.window);
    job->tiers.window = NULL;
    if (rc == TM_OK) return tm_fail(TM_EIO, "memory that the ranks of a node share: not on another node");
    tm_error_set(&why);
    return rc;
}

/* Where MPI has no such memory, or too little, every rank has weights of its own, and everything is planned anew. */
static tm_status share_weights(const planner_ask *ask, planner_choice *c) {
    tm_job *job = ask->job;
    const job_needs *needs = &c->account.needs;
    char a[32], b[32];
    if (needs->shared == 0) return TM_OK;
    tm_status rc = open_window(job, needs->shared);
    if (rc == TM_OK) {
        tm_log(TM_LOG_INFO, "gathered weights: %s, once for the %u ranks of a node (%s of each budget)",
               tm_format_size(needs->shared, a, sizeof a), tm_comm_node_size(job->ranks.comm),
               tm_format_size(needs->share, b, sizeof b));
        return TM_OK;
    }
    if (job->ranks.must_share) return job_agree(job, rc);
    tm_log(TM_LOG_WARN, "%s; each rank keeps gathered weights of its own", tm_error_get()->text);
    tm_error_clear();
    planner_drop(c);
    job->ranks.shared_by = 0;
    return planner_choose(ask, c);
}

/* ---- weights that do not learn, held as they are computed with ------------------------------------------------- */

static tm_status seconds_of(const planner_ask *ask, const planner_choice *c, double *seconds) {
    return job_predict(ask->job, c->plan, &ask->way[c->way], seconds);
}

static tm_status choose_holding(const planner_ask *ask, double share, planner_choice *c) {
    planner_drop(c);
    ask->job->held_share = share;
    return planner_choose(ask, c);
}

/* Of the budget, beside all that the plan keeps: what is in memory as it lies saves more a byte than what is decoded. */
static uint64_t bytes_left(const tm_job *job, const planner_choice *c) {
    const job_needs *n = &c->account.needs;
    uint64_t used = c->budget.fixed_bytes + c->account.limits.plans_bytes + n->slab + n->share;
    return job->opts.host_bytes > used ? job->opts.host_bytes - used : 0;
}

/* False: it does not fit, or takes more time than without. */
static tm_status try_holding(const planner_ask *ask, double share, double apart, planner_choice *c, bool *better) {
    double held = 0;
    tm_status rc = choose_holding(ask, share, c);
    if (rc == TM_OK && ask->job->ranks.ranks == 1) rc = seconds_of(ask, c, &held);
    *better = rc == TM_OK && held <= apart;
    if (rc == TM_EBUDGET) tm_error_clear();
    return rc == TM_EBUDGET ? TM_OK : rc;
}

/* As much of it as what is left may have room for, or less. */
static tm_status try_some(const planner_ask *ask, uint64_t left, double apart, planner_choice *c, bool *better) {
    enum { TRIES = 3 };
    frozen_sizes all = frozen_decoded(ask->job, 1);
    double share = fmin(0.9, (double)left / ((double)all.decoded - (double)all.raw));
    for (unsigned i = 0; i < TRIES && !*better && frozen_decoded(ask->job, share).decoded > 0; i++, share *= 0.7)
        TM_TRY(try_holding(ask, share, apart, c, better));
    return TM_OK;
}

/* Decoded once and held: all of it, where there is memory for that and it takes less time although there is less for all
 * else; ranks hold it all alike. With one, else as much as there is memory for. What a job needs at least is without. */
static tm_status choose(const planner_ask *ask, planner_choice *c) {
    tm_job *job = ask->job;
    bool alone = job->ranks.ranks == 1, better = false;
    double apart;
    TM_TRY(choose_holding(ask, 0, c));
    frozen_sizes all = frozen_decoded(job, 1);
    uint64_t least = c->minimum_host_bytes, most = job->opts.host_bytes;
    uint64_t fits = all.decoded > 0 && most > all.decoded && least <= most - all.decoded;
    uint64_t left = alone && all.decoded > all.raw ? bytes_left(job, c) : 0;
    if (!alone) TM_TRY(tm_comm_all_reduce_u64(job->ranks.comm, TM_COMM_WORLD, TM_COMM_MIN, &fits, 1));
    if (!fits && left == 0) return TM_OK;
    TM_TRY(seconds_of(ask, c, &apart));
    if (fits) TM_TRY(try_holding(ask, 1, apart, c, &better));
    if (!better && left > 0) TM_TRY(try_some(ask, left, apart, c, &better));
    if (!better) TM_TRY(choose_holding(ask, 0, c));
    c->minimum_host_bytes = least;
    return TM_OK;
}

static void adopt(tm_job *job, planner_choice *c) {
    TM_ASSERT(!job->tiers.exec);
    job->budget = c->budget;
    job->account = c->account;
    memcpy(job->tiers.resident, c->resident, sizeof c->resident);
    memset(c->resident, 0, sizeof c->resident);
}

tm_status job_start(const planner_ask *ask, planner_choice *out) {
    tm_job *job = ask->job;
    uint64_t most = 0;
    TM_ASSERT(!job->tiers.exec && !job->step.batch);
    *out = (planner_choice){0};
    for (uint32_t i = 0; i < ask->n; i++) most = tm_max_u64(most, ask->way[i].shape.micro_batches);
    most *= job->n_batches;
    job->step.batch = tm_calloc(most + 1, sizeof *job->step.batch);
    if (!job->step.batch) return tm_nomem(most * sizeof *job->step.batch);
    tm_status rc = choose(ask, out);
    if (rc == TM_OK && !job->opts.plan_only) rc = share_weights(ask, out);
    if (rc != TM_OK) return rc;
    adopt(job, out);
    if (job->opts.plan_only) return TM_OK;
    if (ask->chosen) TM_TRY(job_agree(job, ask->chosen(ask->chosen_ctx, out)));
    TM_TRY(job_agree(job, job_open_tiers(job, &job->opts)));
    TM_TRY(job_agree(job, job_fill_state(job, out->hold_plan, out->import_plan)));
    tm_plan_free(out->hold_plan);
    tm_plan_free(out->import_plan);
    out->hold_plan = out->import_plan = NULL;
    return TM_OK;
}
