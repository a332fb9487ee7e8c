/* cuBLASLt as far as lt.c uses it: products of column-major matrices in plain loops, as work of a fake driver's stream.
 */
#ifndef TIDEMILL_FAKE_LT_H
#define TIDEMILL_FAKE_LT_H

#include "device/cuda/lt.h"

const cuda_lt *fake_lt(void);
/* The algorithm that heuristics give from now on (its first word); 0: none for any shape; from 100 on they round
 * otherwise. As a library: FAKE_CUDA_ALGORITHM. */
void fake_lt_algorithm(uint64_t number);
/* Heuristics end with that from now on, and find nothing (as with algorithm 0: CUBLAS_STATUS_NOT_SUPPORTED). */
void fake_lt_refuse(cublasStatus_t with);
/* The n-th descriptor or layout from now on is not made; 0: all are. */
void fake_lt_fail(unsigned n);
/* Of the product carried out last. */
uint64_t fake_lt_last(void);
unsigned fake_lt_live(void); /* handles, descriptors, layouts, preferences */

#endif
