/* What the methods of a packed folder share. */
#ifndef TIDEMILL_QUANTISE_EXPORT_INTERNAL_H
#define TIDEMILL_QUANTISE_EXPORT_INTERNAL_H

#include "kernels/gemm.h"
#include "quantise/quantise_internal.h"

typedef struct quantise_job {
    const tm_calibrating *c;
    walk w;
    nearest_opts o;
    tm_buf path; /* of activations, where they go elsewhere */
    char *scratch;
    uint64_t scratch_bytes;
} quantise_job;

uint64_t quantise_scratch_bytes(const quantise_job *q, uint64_t width); /* of the method, for a matrix so wide */
uint64_t quantise_rows_at_once(uint64_t rows, uint64_t width);
double gptq_work(const walk *w); /* operations of a block that was described */
double awq_work(const walk *w);
/* gptq_block.c: codes of all matrices, from the block's sums; `replace`: the block computes with them from here on. */
TM_MUST_USE tm_status gptq_block(quantise_job *q, bool replace);
/* awq.c */
TM_MUST_USE tm_status awq_block(quantise_job *q);
uint64_t awq_scratch_bytes(uint64_t width);

#endif
