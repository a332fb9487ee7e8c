/* The job that asks a reference model about the rows of a run before step 1: how many micro-batches go through it together, and
 * what it needs. */
#include "base/change.h"
#include "planner/run.h"

#include <math.h>

static tm_status check_vocabulary(const session *s, const tm_job *job) {
    tm_model_config own;
    char path[4096];
    size_t len;
    const char *json = tm_source_config(s->source, &len);
    uint32_t has = tm_model_get_config(job->model)->vocab_size;
    TM_TRY(tm_model_config_parse(&own, json, len, job_config_name(s->cfg->model, path, sizeof path)));
    if (has == own.vocab_size) return TM_OK;
    return tm_fail(
        TM_EINPUT,
        "objective.reference: %s has a vocabulary of %u, the model that learns has %u; they must read the same ids",
        job->opts.model, has, own.vocab_size);
}

/* It is not the run's own step that has no room. */
static tm_status name_it(tm_status rc) {
    if (rc != TM_EBUDGET) return rc;
    return tm_change_reword("the reference model, before step 1: %s", tm_error_get()->text);
}

static tm_status start(session *s, const job_opts *o, const job_shape *shape, run_reference *out) {
    pass_opts way = {.shape = *shape, .loss = true};
    way.shape.micro_batches = out->batches;
    tm_status rc = session_agree(s, job_open(&out->job, o));
    if (rc == TM_OK) rc = session_agree(s, check_vocabulary(s, out->job));
    if (rc == TM_OK)
        rc = job_start(&(planner_ask){.job = out->job, .name = "reference", .way = &way, .n = 1}, &out->choice);
    if (rc != TM_OK) run_reference_end(out);
    return rc;
}

tm_status run_reference_start(session *s, const job_opts *o, const job_shape *shape, uint32_t most,
                              run_reference *out) {
    enum { TOGETHER = 8 };
    tm_status rc = TM_EBUDGET;
    *out = (run_reference){.batches = most < TOGETHER ? most : TOGETHER};
    for (;; out->batches /= 2) {
        rc = start(s, o, shape, out);
        if (rc != TM_EBUDGET || out->batches == 1) return name_it(rc);
        if (s->comm && !s->agreed) return rc; /* not of all ranks */
        s->agreed = false;                    /* all have refused; now they ask for less */
        tm_error_clear();
    }
}

void run_reference_end(run_reference *r) {
    planner_drop(&r->choice);
    job_close(r->job);
    r->job = NULL;
}

double run_reference_programs(const session *s, uint32_t batches) {
    double programs = 0;
    for (int eval = !s->train; eval <= (s->eval != NULL); eval++)
        for (uint32_t batch = 0; batch < session_batches(s); batch++) {
            double part = data_part(eval ? s->eval : s->train);
            double steps = (double)session_reference_steps(s, eval, batch);
            /* in part: an epoch is longer, the run is not */
            if (part < 1) steps = fmin(steps / part, eval ? INFINITY : (double)s->cfg->total_steps);
            programs += ceil(steps * s->cfg->accumulation_steps / batches);
        }
    return programs;
}
