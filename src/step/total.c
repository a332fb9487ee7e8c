/* What steps come to: their loss and the objective's metrics. */
#include "step/step.h"

#include <math.h>

void step_total_add(step_total *t, const job_step *step) {
    t->loss_sum += step->result.loss_sum;
    for (int i = 0; i < TM_OBJECTIVE_SUMS; i++) t->sum[i] += step->result.sum[i];
    for (int i = 0; i < TM_OBJECTIVE_SHARED; i++) t->shared[i] += step->result.shared[i];
    t->labels += step->labels;
    t->tokens += step->tokens;
    t->samples += step->samples;
}

double step_total_loss(const tm_job *job, const step_total *t) {
    double divisor = tm_objective_divisor(job->objective, t->labels, t->samples);
    return t->labels && divisor > 0 ? t->loss_sum / divisor : NAN;
}

uint32_t step_total_metrics(const tm_job *job, const step_total *t, double value[STEP_METRICS]) {
    const tm_objective *o = job->objective;
    objective_step s = {.spec = &job->objective_spec, .labels = t->labels, .samples = t->samples, .scale = 1};
    TM_ASSERT(o->n_metrics <= STEP_METRICS);
    for (int i = 0; i < TM_OBJECTIVE_SHARED; i++) s.shared[i] = t->shared[i];
    if (o->n_metrics) o->metrics(&s, t->sum, value);
    return o->n_metrics;
}

void step_total_write(const tm_job *job, const step_total *t, tm_json_writer *w) {
    double value[STEP_METRICS];
    uint32_t n = step_total_metrics(job, t, value);
    for (uint32_t i = 0; i < n; i++)
        if (isfinite(value[i])) tm_jw_field_double(w, job->objective->metric[i], value[i]);
}
