/* sft: token-weighted cross-entropy. Every label of the step weighs the same, whatever micro-batch it is in. `pretrain` differs in
 * its rows alone: all text is learned. */
#include "objective/objective_internal.h"

static double run(const objective_step *s, const objective_batch *b, double *sums) {
    const objective_lane *lane = &b->lane[TM_LANE_POLICY];
    float each = s->labels ? (float)(s->scale / (double)s->labels) : 0;
    double sum = 0;
    (void)sums;
    for (uint32_t t = 0; t < lane->batch->tokens; t++) sum += (double)lane->nll[t];
    for (uint32_t t = 0; t < lane->batch->tokens; t++) lane->nll[t] = lane->batch->labels[t] >= 0 ? each : 0;
    return sum;
}

const tm_objective objective_sft = {.name = "sft", .rows = 1, .run = run};
const tm_objective objective_pretrain = {.name = "pretrain", .rows = 1, .run = run};
