/* Gradients against slopes of the loss, which know nothing of backward. */
#ifndef TEST_SLOPES_H
#define TEST_SLOPES_H

#include "driver.h"

/* After a whole step with lively weights of that seed: of every tensor that learns. Returns the largest difference, in
 * units of what is allowed; fails the test above 1. */
double check_slopes(run *r, uint64_t seed, const char *name);
/* How many times more the loss is bent, and errors grow, than usual: scores of normed queries and keys without a scale
 * do that. Slopes are then taken of nearer points. */
double steepness(const tm_model *m);
double check_tensor_slopes(run *r, uint64_t seed, uint32_t tensor); /* of one, without failing */

#endif
