/* What an engine's passes will take, before any of them: its plans under the simulated clock. */
#include "infer/engine_internal.h"
#include "offload/sim/sim.h"
#include "planner/cost.h"
#include "session/session.h"

/* One pass among others of its sort. */
static tm_status pass_seconds(tm_engine *e, const tm_plan *plan, const job_shape *shape, double *seconds) {
    tm_machine machine;
    job_costs *costs = NULL;
    tm_link *link = NULL;
    tm_sim_result r = {0};
    tm_status rc;
    TM_TRY(session_machine(&e->job->opts, &machine));
    TM_GO(job_costs_open(&costs, e->job, &(job_costs_ask){.shape = shape, .mode = JOB_COSTS_PROFILE}, &machine));
    TM_GO(tm_link_sketch(&link, plan, plan));
    TM_GO(tm_simulate(&r, plan,
                      &(tm_sim_opts){.machine = &machine, .cost = job_cost, .ctx = costs, .runs = 2, .link = link}));
    *seconds = r.seconds;
done:
    tm_sim_free(&r);
    tm_link_free(link);
    job_costs_close(costs);
    return rc;
}

tm_status tm_engine_seconds(tm_engine *e, uint64_t prompt_tokens, uint64_t answer_tokens, double *seconds) {
    job_shape prompts = {.micro_batches = 1, .rows = e->opts.sequences, .seq = e->chunk, .tokens = e->chunk};
    job_shape answers = {.micro_batches = 1, .rows = e->opts.sequences, .seq = 1};
    double of_prompts, of_answers;
    TM_TRY(pass_seconds(e, e->choice.plan, &prompts, &of_prompts));
    TM_TRY(pass_seconds(e, e->decode, &answers, &of_answers));
    uint64_t passes = (prompt_tokens + e->chunk - 1) / e->chunk;
    *seconds = (double)passes * of_prompts + (double)answer_tokens * of_answers;
    return TM_OK;
}
