/* sft: token-weighted cross-entropy. Every label of the step weighs the same, whatever micro-batch it is in. `pretrain` differs in
 * its rows alone: all text is learned. */
#include "objective/objective_internal.h"

#include <math.h>

static const char *const metric[] = {"token_accuracy"};

/* How many labels have the largest logit. */
static double right(const objective_lane *lane) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < lane->batch->tokens && lane->state; t++)
        n += lane->batch->labels[t] >= 0 && tm_head_is_largest(lane->state, t);
    return (double)n;
}

static void metrics(const objective_step *s, const double *sum, double *value) {
    value[0] = s->labels ? sum[0] / (double)s->labels : NAN;
}

static double run(const objective_step *s, const objective_batch *b, double *sums) {
    const objective_lane *lane = &b->lane[TM_LANE_POLICY];
    float each = s->labels ? (float)(s->scale / (double)s->labels) : 0;
    double sum = 0;
    sums[0] += right(lane);
    for (uint32_t t = 0; t < lane->batch->tokens; t++) sum += (double)lane->nll[t];
    for (uint32_t t = 0; t < lane->batch->tokens; t++) lane->nll[t] = lane->batch->labels[t] >= 0 ? each : 0;
    return sum;
}

const tm_objective objective_sft = {
    .name = "sft", .rows = 1, .n_metrics = 1, .metric = metric, .run = run, .metrics = metrics};
const tm_objective objective_pretrain = {
    .name = "pretrain", .rows = 1, .n_metrics = 1, .metric = metric, .run = run, .metrics = metrics};
