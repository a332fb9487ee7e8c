/* principal: the part of a matrix that its largest singular values make, as PiSSA's first A and B.
 *
 *     scale * B A = U_r S_r V_r^T,   A = sqrt(S_r / scale) V_r^T [rank, columns],   B = U_r sqrt(S_r / scale) [rows, rank]
 *
 * (Meng et al. 2024, "PiSSA: Principal Singular Values and Singular Vectors Adaptation of Large Language Models"; the
 * division by the scale is PEFT's.) The matrix is read by rows, as often as need be, and never held: memory is
 * (rank + some blocks) * (rows + columns) doubles. What comes out depends neither on the threads nor on how many rows a
 * read gives; signs of singular vectors are anyone's.
 */
#ifndef TIDEMILL_ADAPTER_PRINCIPAL_H
#define TIDEMILL_ADAPTER_PRINCIPAL_H

#include "base/base.h"

/* A matrix [rows, columns], read as `n` whole rows from row `first` on. Called by one thread at a time. */
typedef struct tm_matrix_rows {
    tm_status (*read)(void *ctx, uint64_t first, uint64_t n, float *dst);
    void *ctx;
    uint64_t rows, columns;
} tm_matrix_rows;

typedef struct tm_principal_opts {
    const char *name; /* of the matrix, for messages */
    uint32_t rank;    /* 1 to the smaller side */
    double scale;     /* positive */
    /* 0: to convergence, block Lanczos with thick restarts in double (`pissa`): the same values as a full singular value
     * decomposition's to about 1e-7 of the largest. Else the randomised decomposition of Halko, Martinsson and Tropp
     * (2011, algorithms 4.4 and 5.1) with iterations - 1 power iterations and no more columns than `rank`
     * (`pissa_niter_N`: N + 1), as torch.svd_lowrank does it, on draws of ours. */
    uint32_t iterations;
    uint64_t seed;    /* of the draws */
    bool turned;      /* the matrix is stored as [in, out] (GPT-2's): a and b are those of its transpose */
    unsigned threads; /* 0: as many as OpenMP has */
} tm_principal_opts;

/* a [rank, columns] and b [rows, rank]; of a turned matrix a [rank, rows] and b [columns, rank]. TM_EINPUT: the rank is
 * more than the matrix has, or values are no numbers. */
TM_MUST_USE tm_status tm_principal(const tm_matrix_rows *w, const tm_principal_opts *opts, float *a, float *b);
/* What it takes while it works, beside a and b. */
uint64_t tm_principal_bytes(uint64_t rows, uint64_t columns, const tm_principal_opts *opts);

#endif
