/* What the tests of models that no fixture has share: tokens, weights, a step, comparisons. */
#ifndef TEST_MODEL_WORLD_H
#define TEST_MODEL_WORLD_H

#include "driver.h"

typedef struct tokens {
    int32_t *ids, *labels;
    uint8_t *mask;
    tm_micro_batch batch;
} tokens;

tokens make_tokens(uint32_t rows, uint32_t seq, uint32_t vocab, uint32_t salt);
void free_tokens(tokens *t);

/* Larger values than a fresh model has, biases included, so that everything shows. */
void lively_values(const tm_tensor *x, uint64_t seed, float *v);
void lively_weights(run *r, uint64_t seed);

void mean_coefficients(run *r);
void whole_step(run *r, run_order order);
bool same_gradients(const run *a, const run *b);
void finite_gradients(const run *r);
/* Every tensor's within 1e-5 of its size, or 1e-7 where it is nothing: two orders of summation. */
void assert_near_gradients(const run *a, const run *b);

/* Prompts of different lengths, padded right, then token by token: how far their logits are from those of the whole
 * sequences. */
double cache_difference(tm_model *m);

#endif
