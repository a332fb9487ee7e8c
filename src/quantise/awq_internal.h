/* AWQ in its parts: scales that are folded (awq_fold.c), their search and the rounding (awq.c). */
#ifndef TIDEMILL_QUANTISE_AWQ_INTERNAL_H
#define TIDEMILL_QUANTISE_AWQ_INTERNAL_H

#include "quantise/export_internal.h"

/* What an input's scale is taken out of again. */
typedef struct awq_fold {
    bool norm, linear;
    tm_input_norm of; /* norm: tensors of the model */
    uint32_t matrix;  /* linear: of the block; the last [width] of its rows are divided by it */
    float *scale;     /* [width]; NULL: nothing is */
} awq_fold;
/* Of an input of the block that the walk is in; scale is NULL. */
awq_fold awq_find_fold(const walk *w, uint32_t input);
/* A vector of the block under its name, less what the folds take out of it: all of a norm's weight and bias, the last
 * elements of the bias of a matrix whose last rows are divided. False: it stays as it is. `fold` is of each input. */
bool awq_divide(const walk *w, const awq_fold *fold, const char *name, float *values, uint64_t n);
/* All such vectors into the folder. */
TM_MUST_USE tm_status awq_put_vectors(const quantise_job *q, const awq_fold *fold, uint64_t room, float *values);
/* Rows [row, row + rows) of a matrix times its input's scale, divided by that of what follows it. */
void awq_scale_rows(const walk *w, const awq_fold *fold, uint32_t matrix, uint64_t row, uint64_t rows, float *x);

#endif
