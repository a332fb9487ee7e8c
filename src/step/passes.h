/* passes: optimizers that sum over whole tensors before the first weight moves (passes.c). */
#ifndef TIDEMILL_PASSES_INTERNAL_H
#define TIDEMILL_PASSES_INTERNAL_H

#include "step/step.h"

/* Adafactor's states in the order of optim's table. */
enum { STATE_EXP_AVG, STATE_ROW, STATE_COLUMN, STATE_FULL };

/* A tensor of a group. */
typedef struct group_tensor {
    uint32_t tensor;
    uint64_t means_at, means; /* in the group's means: rows and columns; 0 of a vector */
    tm_optim_tensor x;
} group_tensor;
/* The i-th one; false: there are no more. Without `means` it has no states. */
bool passes_tensor(const tm_job *job, part_group g, uint32_t i, float *means, double *totals, group_tensor *out);
uint64_t passes_means_bytes(const tm_job *job, part_group g); /* 0: vectors only */
uint64_t passes_totals_bytes(const tm_job *job, part_group g);

bool passes_read_weights(const tm_job *job, uint32_t pass);

/* With ranks: how many doubles `rank` has to say of a pass; this rank's among all; all of them into the totals. */
uint64_t passes_pieces(const tm_job *job, part_group g, uint32_t rank, uint32_t pass);
uint64_t passes_pieces_bytes(const tm_job *job, part_group g, uint32_t pass); /* of all of them */
void passes_pack(const tm_job *job, part_group g, uint32_t pass, double *totals, double *all);
void passes_unpack(const tm_job *job, part_group g, uint32_t pass, double *all, double *totals);

#endif
