/* tidemill plan: a reference that is asked before step 1, by a job of its own. */
#include "planner/plan_internal.h"

static tm_status start(const planning *g, const job_shape *shape, uint32_t most, run_reference *r) {
    const job_opts o = plan_limits(g, session_reference_options(g->s));
    return run_reference_start(g->s, &o, shape, most, r);
}

/* All ranks have the same refusal, and go on asking. */
static void forget(const planning *g) {
    tm_error_clear();
    g->s->agreed = false;
}

bool plan_reference_fits(const planning *g, const job_shape *shape) {
    run_reference r;
    if (!session_reference_column(g->s->cfg)) return true;
    tm_status rc = start(g, shape, 1, &r);
    run_reference_end(&r);
    return rc == TM_OK;
}

/* A micro-batch at a time: what it takes at the least. */
tm_status plan_reference_room(const planning *g, tm_status rc, planner_choice *c) {
    tm_error said = *tm_error_get();
    run_reference r;
    if (!session_reference_column(g->s->cfg) || (rc != TM_OK && rc != TM_EBUDGET)) return rc;
    if (rc == TM_EBUDGET) forget(g);
    const job_shape shape = session_reference_shape(g->s);
    tm_status own = start(g, &shape, 1, &r);
    run_reference_end(&r);
    if (own != TM_OK && own != TM_EBUDGET) return own;
    bool says =
        own == TM_EBUDGET &&
        (rc == TM_OK || (r.choice.refusal.limit == c->refusal.limit && r.choice.refusal.bytes > c->refusal.bytes));
    c->minimum_host_bytes = tm_max_u64(c->minimum_host_bytes, r.choice.minimum_host_bytes);
    c->minimum_device_bytes = tm_max_u64(c->minimum_device_bytes, r.choice.minimum_device_bytes);
    if (says) c->refusal = r.choice.refusal;
    if (says || rc == TM_OK) return own;
    forget(g);
    tm_error_set(&said);
    g->s->agreed = g->s->comm != NULL;
    return rc;
}

/* Its programs one after the other, each as it is simulated. */
tm_status plan_reference_seconds(planning *g, double *seconds) {
    session *s = g->s;
    run_reference r = {.batches = 0};
    job_costs *costs = NULL;
    tm_sim_result sim = {.seconds = 0};
    tm_status rc;
    *seconds = 0;
    if (!session_reference_column(s->cfg) || (!s->train && !s->eval)) return TM_OK;
    job_shape shape = session_reference_shape(s);
    TM_TRY(start(g, &shape, UINT32_MAX, &r));
    run_load load = run_step_load(s, tm_model_get_config(r.job->model));
    const job_costs_ask ask = {
        .shape = &shape, .load = &load.load, .mode = g->hardware ? JOB_COSTS_NOMINAL : JOB_COSTS_PROFILE};
    TM_GO(job_costs_open(&costs, r.job, &ask, &g->rank));
    TM_GO(tm_simulate(&sim, r.choice.plan,
                      &(tm_sim_opts){.machine = &g->rank, .cost = job_cost, .ctx = costs, .runs = 1}));
    *seconds = sim.seconds * run_reference_programs(s, r.batches);
done:
    tm_sim_free(&sim);
    job_costs_close(costs);
    run_reference_end(&r);
    return rc;
}
