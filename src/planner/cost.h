/* What a job's operations take: seconds for the simulator, names for traces.
 *
 * Seconds come from rates (NOMINAL: floating-point operations and bytes, counted from the model's tables), from the
 * profile of this machine (PROFILE: what was timed before; unknown operations from rates), or what it lacks is timed now
 * and saved (MEASURE: a few seconds, in scratch memory that is given back). Operations that do the same work share one
 * entry: all blocks that are alike, all vocabulary parts, all tiles. Nothing that orders a sum depends on any of this.
 *
 *     const job_costs_ask ask = {.shape = &shape, .mode = JOB_COSTS_PROFILE};
 *     TM_TRY(job_costs_open(&costs, job, &ask, &machine));
 *     tm_simulate(&r, plan, &(tm_sim_opts){.machine = &machine, .cost = job_cost, .ctx = costs, .runs = 3});
 *     job_costs_close(costs);
 */
#ifndef TIDEMILL_COST_INTERNAL_H
#define TIDEMILL_COST_INTERNAL_H

#include "offload/machine/machine.h"
#include "step/op.h"

typedef enum job_costs_mode { JOB_COSTS_NOMINAL, JOB_COSTS_PROFILE, JOB_COSTS_MEASURE } job_costs_mode;
/* How many of the operations that matter have a measured time. */
typedef enum job_costs_basis { JOB_COSTS_NONE, JOB_COSTS_SOME, JOB_COSTS_ALL } job_costs_basis;

typedef tm_load job_load;
job_load job_shape_load(const tm_model_config *c, const job_shape *shape);

typedef struct job_costs_ask {
    const job_shape *shape; /* of a step, with its largest micro-batch */
    const job_load *load;   /* of the micro-batches whose mean seconds are asked for; NULL: all are of `shape` */
    job_costs_mode mode;
    bool run;     /* MEASURE: timed is only what pays in a run */
    double steps; /* of so many steps: a twentieth of their seconds by the rates, and nothing where that is little */
} job_costs_ask;

typedef struct job_costs job_costs;
/* `job` and its model outlive it; `machine` is copied from, and gets the rates of the link to the job's device where
 * they are known. MEASURE: tm_kernels_init was called, no job_run is under way. */
TM_MUST_USE tm_status job_costs_open(job_costs **out, tm_job *job, const job_costs_ask *ask, tm_machine *machine);
/* Which part of the timing just now was of operations that were disturbed (cost_timing); 0: nothing was timed. */
double job_costs_disturbed(const job_costs *c);
void job_costs_close(job_costs *c);                            /* NULL is fine */
job_costs_basis job_costs_measured(const job_costs *c);        /* on the host */
job_costs_basis job_costs_device_measured(const job_costs *c); /* on a device with processors of its own */
/* cost_rates.c: the rates with which a hardware file (offload/machine.h) gives this job the seconds that are known
 * here; a device with processors of its own becomes the machine's GPU. TM_EINPUT: nothing was measured. */
TM_MUST_USE tm_status job_costs_rates(const job_costs *c, tm_machine *machine);
/* A tm_cost_fn; `costs` is a job_costs. */
double job_cost(void *costs, const tm_op *op);

/* cost_learn.c: a run teaches the profile what its operations take beside transfers and neighbours, which is more than
 * they take alone. `costs` is a job_costs of mode PROFILE or MEASURE. Calls of one thread for operations of the host,
 * and of one for those of a device with processors of its own. */
tm_status job_costs_observe(job_costs *c); /* room for what is heard */
void job_costs_hear(void *costs, const tm_op *op, double seconds);
/* Means of whatever was heard often enough, into the profile. Nothing where the run was short. */
tm_status job_costs_learn(job_costs *c);

typedef tm_work job_work;
job_work job_stage_work(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, const job_shape *shape);
job_work job_load_work(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, job_load load);

/* cost_measure.c: operands of an operation that is run alone, and what its handler reads besides. */
enum { COST_OPERANDS = 40 };
typedef struct cost_operands {
    const tm_job *job;
    job_shape shape;
    struct cost_operand {
        uint64_t bytes;
        uint8_t fill;
    } at[COST_OPERANDS];
    uint32_t n;
    uint64_t bytes; /* of all of them, in frames */
} cost_operands;
bool cost_operands_of(cost_operands *out, const tm_job *job, const tm_op *op, const job_shape *shape);
/* Numbers of sane magnitude into `bytes` at `frames`; each operand's distance from there. */
void cost_operands_fill(const cost_operands *o, void *frames, uint64_t offset[COST_OPERANDS]);
/* The operation as its handler sees it, with a step and a micro-batch that are made up, and the host's kernels. */
typedef struct cost_call {
    op_call call;
    job_step step;
    job_batch batch;
    void *operand[COST_OPERANDS];
} cost_call;
void cost_call_init(cost_call *c, const cost_operands *o, const tm_op *op);
typedef struct cost_timing {
    double seconds, spent; /* of a call; of all calls */
    bool disturbed;        /* others had the processors, or the calls differ by half or more */
} cost_timing;
/* A few calls of job_run_op on made-up operands, on the host, after one that warms up: the middle one; the least where
 * they were disturbed. False: its operands take more than
 * `budget` bytes, or there is no way to run it alone. */
bool cost_measure(const tm_job *job, const tm_op *op, const job_shape *shape, uint64_t budget, cost_timing *out);

#endif
