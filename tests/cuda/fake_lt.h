/* cuBLASLt as far as lt.c uses it: products of column-major matrices in plain loops, as work of a fake driver's stream.
 */
#ifndef TIDEMILL_FAKE_LT_H
#define TIDEMILL_FAKE_LT_H

#include "device/cuda/lt.h"

const cuda_lt *fake_lt(void);
/* The algorithm that heuristics give from now on (its first word); 0: none for any shape. */
void fake_lt_algorithm(uint64_t number);
/* Of the product carried out last. */
uint64_t fake_lt_last(void);
unsigned fake_lt_live(void); /* handles, descriptors, layouts, preferences */

#endif
