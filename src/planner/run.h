/* What a training run needs of the planner beside the choice of its step (start.h): the ways that its configuration
 * leaves open, the plans beside the step's, what its rows ask for, and what the whole of it will take. */
#ifndef TIDEMILL_PLANNER_RUN_H
#define TIDEMILL_PLANNER_RUN_H

#include "planner/cost.h"
#include "planner/start.h"
#include "session/session.h"

/* ---- run_plans.c ------------------------------------------------------------------------------------------------ */

/* The plans of a run; each may be NULL. */
typedef struct run_plans {
    tm_plan *step, *eval;
    tm_plan *first, *drain; /* update F: a step without a pending update; the pending update alone */
    pass_opts way;          /* of running a step: the one that was chosen */
    bool folded;            /* update F */
} run_plans;
void run_plans_free(run_plans *p);

enum { RUN_MAX_WAYS = 72 };
/* Every way of running the step that the configuration leaves open; all give the same bits. How many. */
uint32_t run_ways(const session *s, const job_shape *shape, pass_opts out[RUN_MAX_WAYS]);

/* A job_more_fn: everything beside the step itself, with the way of running it that was chosen. */
typedef struct run_more {
    const session *s;
    run_plans *plans;
} run_more;
tm_status run_compile_more(void *more, const tm_job *job, job_account *account, const pass_opts *way);

/* Means over the micro-batches of the run (of many a sample), of this rank; all alike where there are no data. */
typedef struct run_load {
    job_load load;
    double tokens, padded; /* of a step and all ranks: with mask 1; all that are computed */
} run_load;
run_load run_step_load(const session *s, const tm_model_config *m);

/* ---- run_reference.c: whoever is asked about rows before step 1 (session_reference_column) --------------------------- */

typedef struct run_reference {
    tm_job *job;
    planner_choice choice; /* choice.plan: of one program */
    uint32_t batches;      /* micro-batches of a program, one after the other through all steps that are asked for */
} run_reference;
/* Collective. `o`: session_reference_options, or those with less; `shape`: of a micro-batch. The reference is read once a
 * program, which is of 8 micro-batches at most, of `most`, and of as many as the budget has room for: no value depends on it.
 * TM_EBUDGET: not even of one; choice.refusal. Leaves nothing behind where it fails. */
TM_MUST_USE tm_status run_reference_start(session *s, const job_opts *o, const job_shape *shape, uint32_t most,
                                          run_reference *out);
void run_reference_end(run_reference *r); /* all but the choice's numbers */
/* Programs of so many micro-batches that ask about all rows; of files that were read in part, about those of all of them. */
double run_reference_programs(const session *s, uint32_t batches);

/* ---- run_tasks.c: eval_tasks ----------------------------------------------------------------------------------- */

/* Of the run's budget what tasks may be scored in: what is kept for them, and what no plan of the run takes. */
uint64_t run_score_bytes(const session *s, const tm_job *job);
/* Where the budget was too small, the error says what of it tasks take as well. */
tm_status run_blame_tasks(const session *s, tm_status rc);

/* ---- forecast.c ------------------------------------------------------------------------------------------------- */

/* What is still to come of a run, of this rank. */
typedef struct run_forecast {
    int64_t steps;
    double seconds, read_bytes, write_bytes;         /* of the offload paths */
    double model_bytes;                              /* written to OUTPUT_DIR */
    double evaluations, checkpoints, commits, looks; /* how often; looks: steps after which one of them comes */
} run_forecast;

/* The job is open, its plans are compiled. */
typedef struct run_rates {
    const session *s;
    const tm_job *job;
    const run_plans *plans;
    int64_t step; /* optimizer steps done */
    const tm_machine *machine;
    tm_cost_fn cost;
    void *ctx;
    double step_seconds; /* simulated */
    bool imports;        /* the run begins with the import */
} run_rates;
/* steps 0: their number is not known (no data), and nothing else. */
TM_MUST_USE tm_status run_forecast_make(const run_rates *rates, run_forecast *out);

#endif
