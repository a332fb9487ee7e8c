/* The choice of how a job's step is run, and the job's start.
 *
 *     planner_choice c;
 *     const planner_ask ask = {.job = job, .name = "step", .way = ways, .n = n};
 *     tm_status rc = job_start(&ask, &c); // or planner_choose(): the choice alone
 *     if (rc == TM_EBUDGET) ...           // c.refusal: which limit, and what would be enough
 *     if (rc == TM_OK) rc = job_run(job, c.plan);
 *     planner_drop(&c);
 */
#ifndef TIDEMILL_PLANNER_START_H
#define TIDEMILL_PLANNER_START_H

#include "step/step.h"

/* Compiles (job_compile_in) what the job will run beside the step, with the way of running it that was tried. Called
 * once for each choice that is tried: what an earlier call compiled is freed. */
typedef tm_status (*job_more_fn)(void *ctx, const tm_job *job, job_account *account, const pass_opts *way);

struct planner_choice;
/* What is made of the plans before there is a slab: it may take a while what the frames will. */
typedef tm_status (*job_chosen_fn)(void *ctx, const struct planner_choice *c);

/* What is to be planned: this job, its options (job->opts) being limits and bounds, in one of these ways. */
typedef struct planner_ask {
    tm_job *job; /* its state is laid out anew, as the choice has it in the end */
    const char *name;
    const pass_opts *way; /* [n], which all give the same bits */
    uint32_t n;
    const pass_opts *beside; /* [n_beside] passes that `more` compiles beside any way: what they take counts */
    uint32_t n_beside;
    bool imports_again; /* `more` compiles the import, too, which stays */
    job_more_fn more;   /* NULL: nothing else is run */
    void *ctx;
    job_chosen_fn chosen; /* of job_start, once; NULL: nothing is made */
    void *chosen_ctx;
} planner_ask;

/* What was chosen; or, with TM_EBUDGET, why nothing was. */
typedef struct planner_choice {
    uint32_t way;
    tm_plan *plan;                       /* of the step; the caller may take it, and leave NULL */
    tm_plan *import_plan;                /* of the state's import */
    tm_plan *hold_plan;                  /* of what is held decoded; NULL: nothing is */
    tm_plan *resident[TM_RESIDENT_WAYS]; /* job_tiers */
    job_budget budget;                   /* how it is divided, */
    job_account account;                 /* and what of it the plans take */
    uint64_t minimum_host_bytes;         /* of any way, whatever the budget and the device's memory; 0: not known */
    uint64_t minimum_device_bytes;
    job_refusal refusal;
} planner_choice;

/* The way that takes least time under the job's limits, and everything that runs beside it. Opens nothing. Collective
 * with ranks: all run one way, or all have the same refusal. */
TM_MUST_USE tm_status planner_choose(const planner_ask *ask, planner_choice *out);
void planner_drop(planner_choice *c);
/* Before anything is measured: TM_EBUDGET where counting says that there is no room for so many micro-batches in any way
 * (out->refusal, and the least budgets: as planner_choose would say). Nothing is chosen. Collective with ranks. */
TM_MUST_USE tm_status planner_count(const planner_ask *ask, planner_choice *out);
/* Of the budget what is not for frames and plans, with micro-batches of up to so many tokens, as far as the job's state
 * is laid out. */
uint64_t planner_fixed_bytes(const tm_job *job, uint32_t tokens);
/* Of that, what a process has once, however many jobs it has. */
uint64_t planner_program_bytes(void);
/* The least host budget of any way; UINT64_MAX: the device's memory is too small for all. */
TM_MUST_USE tm_status planner_minimum(const planner_ask *ask, uint64_t *host_bytes);
/* planner_choose(), then files, slab, arena and the executor are opened with room for all of it, and the weights are
 * imported; all but the choice only where the options do not say plan_only. */
TM_MUST_USE tm_status job_start(const planner_ask *ask, planner_choice *out);

/* Seconds of a step by this plan, simulated: what ways are chosen by. */
TM_MUST_USE tm_status job_predict(const tm_job *job, const tm_plan *plan, const pass_opts *way, double *seconds);
/* By bytes and sums of costs alone. */
double job_estimate(const tm_job *job, const tm_plan_info *info, const pass_opts *o);

#endif
