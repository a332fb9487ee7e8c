/* The choice of how a job's step is run, and the job's start. */
#ifndef TIDEMILL_PLANNER_START_H
#define TIDEMILL_PLANNER_START_H

#include "step/step.h"

/* Compiles the pass that decides residency: the candidate that takes least time under the budget. `more`, where given,
 * compiles what else the job will run (job_compile) with the way chosen, before store and executor are opened with room
 * for all of it; then the weights are imported. */
typedef tm_status (*job_more_fn)(void *ctx, tm_job *job, const pass_opts *way);
tm_status job_start(tm_job *job, const job_opts *opts, const char *name, const pass_opts *candidate, uint32_t n,
                    tm_plan **plan, uint32_t *chosen, uint64_t *minimum_host_bytes, job_more_fn more, void *ctx);
/* Seconds of a step by this plan, simulated: what ways are chosen by. */
tm_status job_predict(const tm_job *job, const tm_plan *plan, const pass_opts *way, double *seconds);
/* By bytes and sums of costs alone. */
double job_estimate(const tm_job *job, const tm_plan_info *info, const pass_opts *o, bool *disk_bound);
/* choose.c, least.c and job_start.c between themselves */
typedef struct way_list {
    const pass_opts *way;
    uint32_t n;
    uint64_t *least;  /* [n] bytes of slab and plans, 0: not known */
    uint64_t *plans;  /* [n] of that the plans, where `least` is known */
    uint64_t minimum; /* of all; UINT64_MAX: the device's memory is too small for any */
    uint64_t minimum_device;
    uint64_t minimum_anyway; /* of the slab, were the device's memory large enough */
    /* Micro-batches: the least with so many is more than there is room for. Where their plans alone are, nothing was
     * built, and the minima are counted. */
    bool too_many;
    uint32_t most_micro_batches; /* so many fit; 0: not even few */
    job_more_fn more;
    void *ctx;
} way_list;
/* The least slab of every way and of all: independent of the budget. */
tm_status job_minimum(tm_job *job, const job_opts *opts, way_list *ways);
/* Of one of them, into the list. */
tm_status way_minimum(tm_job *job, const job_opts *opts, way_list *ways, uint32_t i);
uint64_t way_planning_bytes(uint64_t plans); /* that planning takes at most, plans of so many bytes included */
/* What the plans of a way that was compiled take, where that is more than their programs said. */
void job_plans_took(way_list *ways, uint32_t way, uint64_t bytes);
/* Compiles the best way (`only`, if less than n) for job->limits.slab_bytes. TM_EBUDGET, with no error set: none fits. */
tm_status job_choose(tm_job *job, const job_opts *opts, const char *name, way_list *ways, uint32_t only, tm_plan **plan,
                     uint32_t *chosen);

#endif
