/* What travels and how it is summed: values in memory, encoded and back. No MPI here. */
#ifndef TIDEMILL_COMM_SUM_INTERNAL_H
#define TIDEMILL_COMM_SUM_INTERNAL_H

#include "comm/comm_internal.h"

/* n values from `at` on, a multiple of TM_COMM_QUANT_BLOCK, of `all` that are encoded in one piece: x holds those n. */
void comm_quantise_part(tm_comm_wire wire, const float *x, uint64_t all, uint64_t at, uint64_t n, void *out);
void comm_dequantise_part(tm_comm_wire wire, const void *in, uint64_t all, uint64_t at, uint64_t n, float *x);

bool comm_quantised(tm_comm_wire wire); /* Q8, Q4 */
/* n fp32 values as the wire wants them; EXACT copies. */
void comm_encode(tm_comm_wire wire, const float *x, uint64_t n, void *out);
/* Values [at, at + m) of n encoded ones; `at` is a multiple of TM_COMM_QUANT_BLOCK. */
void comm_decode(tm_comm_wire wire, const void *in, uint64_t n, uint64_t at, uint64_t m, float *x);
/* The same from and to bf16 (qwZ: Q8 or Q4 only). */
void comm_encode_bf16(tm_comm_wire wire, const uint16_t *x, uint64_t n, void *out);
void comm_decode_bf16(tm_comm_wire wire, const void *in, uint64_t n, uint16_t *x);

/* out[0, n) = the tree's sum of encoded vectors of n values: source[0 .. first[1]) are one node's, and so on; within a
 * node from left to right, then the nodes from left to right. source[plain] was not encoded (UINT32_MAX: all are). out
 * may be the memory of an EXACT source, or of that one. */
void comm_sum_tree(tm_comm_wire wire, const void *const *source, uint32_t plain, const uint32_t *first, uint32_t nodes,
                   uint64_t n, float *out);

/* into = into (+, min, max) x. NaN wins in all of them. */
void comm_reduce_f64(tm_comm_reduce how, double *into, const double *x, uint64_t n);
void comm_reduce_u64(tm_comm_reduce how, uint64_t *into, const uint64_t *x, uint64_t n);

#endif
