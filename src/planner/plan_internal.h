/* tidemill plan: what its files share. */
#ifndef TIDEMILL_PLAN_INTERNAL_H
#define TIDEMILL_PLAN_INTERNAL_H

#include "offload/sim/sim.h"
#include "planner/planner.h"
#include "planner/run.h"
#include "planner/start.h"

/* One run of `tidemill plan`. */
typedef struct planning {
    const tm_plan_args *args;
    session *s;
    tm_job *job; /* of the latest plan_once; plan_close ends it */
    run_plans plans;
    tm_machine machine; /* a node; `hardware`: imagined */
    tm_machine rank;    /* what of it a rank has */
    bool hardware;
    bool only_fits;   /* a refusal names no smaller change */
    uint64_t from_ns; /* when planning began */
    tm_plan_report *out;
} planning;

/* From the arguments to the configuration, model and data; `g` is zero but for args, t and out. */
tm_status plan_open(planning *g);
/* The step with strategy and placements of the configuration as it now is, into g->out; may be called again. */
tm_status plan_once(planning *g);
void plan_close(planning *g); /* all but the ranks */

/* Simulates the plan, fills in everything that follows from it, and draws it where that was asked for. */
tm_status plan_time(const planning *g, const tm_plan *plan, const tm_sim_opts *sim, tm_op_name_fn name, void *ctx);
/* What is told of rows and tokens; before plan_time. */
void plan_lengths(const planning *g, const job_shape *shape, const run_load *load);
/* TM_EBUDGET with its one line, and `out` says the same. `what` ends without a full stop. */
tm_status plan_refuse(const planning *g, const char *limit, tm_plan_change change, const char *what);

/* plan_change.c: a smaller batch, then shorter rows. `fits` answers for rows x seq; false where it cannot be known. */
tm_plan_change plan_smaller_batch(const job_shape *shape, bool (*fits)(void *ctx, uint32_t rows, uint32_t seq),
                                  void *ctx);

/* Options of a job that is planned alone, on this machine or that of the hardware file. */
job_opts plan_limits(const planning *g, job_opts o);

/* plan_reference.c: a reference that is asked before step 1; nothing where there is none. */
bool plan_reference_fits(const planning *g, const job_shape *shape);
/* Beside the step, whose choice came to `rc`: what is needed at the least becomes the larger of the two, and a refusal that of
 * whichever takes more. */
tm_status plan_reference_room(const planning *g, tm_status rc, planner_choice *c);
tm_status plan_reference_seconds(planning *g, double *seconds);

/* plan_disk.c: what the step's files take, path by path, and whether there is room. */
tm_status plan_disk(const planning *g, const job_opts *o);
/* Before anything is planned: TM_EBUDGET where no plan has room enough. */
tm_status plan_disk_least(const planning *g, const job_opts *o);

/* plan_gpus.c: GPUs of a hardware file; nothing where there are none. */
/* Whether a GPU can run the update; else the CPU does, over state on the host. */
bool plan_device_updates(const tm_config *c);
/* Into session and configuration, as a device with an arena; before the data are opened. */
tm_status plan_take_gpus(planning *g);
/* Of a GPU's memory, beside the arena; reports count it. */
uint64_t plan_driver_bytes(const planning *g);
/* Where the state is, into the report. */
void plan_describe_gpus(const planning *g);
/* An arena needs `least` bytes. `smaller`: the change where no GPU of the machine has so much. */
tm_status plan_refuse_gpu(const planning *g, uint64_t least, tm_plan_change smaller);

#endif
