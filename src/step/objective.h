/* objective: what a step minimises, a row each (objective.c). It sees the log-likelihoods of all micro-batches of the
 * step, after forward and before backward, and says how much the loss changes with each of them.
 *
 * A new one: two functions and a row. */
#ifndef TIDEMILL_OBJECTIVE_H
#define TIDEMILL_OBJECTIVE_H

#include "model/model.h"

/* Of a whole step, on all ranks. */
typedef struct objective_step {
    uint64_t labels; /* tokens that are predicted */
    double scale;    /* coefficients are this times as large: fp16's loss scale, else 1 */
} objective_step;

typedef struct tm_objective {
    const char *name; /* of the key objective.type */
    /* What this micro-batch adds to step_frame.loss_sum. `nll` [T]: the token's negative log-likelihood, 0 without a
     * label. Called for each micro-batch that has rows, in order, before any of `coefficients`. */
    double (*loss)(const objective_step *s, const tm_micro_batch *b, const float *nll);
    /* Overwrites nll[t] by d loss / d nll[t], times the scale; 0 without a label. */
    void (*coefficients)(const objective_step *s, const tm_micro_batch *b, float *nll);
} tm_objective;
const tm_objective *tm_objective_find(const char *name); /* NULL: there is none */

#endif
