/* H = R R^T with R upper triangular: Cholesky's factors from the last row up, in blocks. The inverse of H, which GPTQ is
 * written with, is U^T U with U = R^-1: what GPTQ needs of U follows from R without an inverse (gptq.c). */
#include "quantise/quantise_internal.h"

#include "kernels/gemm.h"

#include <math.h>

enum { BLOCK = 128 };

/* Columns [at, at + b) of row i, from the last one to column `last`: R is there for the rows below. */
static bool solve_row(float *h, uint64_t n, uint64_t i, uint64_t at, uint64_t b, uint64_t last) {
    float *row = h + i * n;
    for (uint64_t j = at + b; j-- > last;) {
        const float *other = h + j * n;
        double sum = (double)row[j];
        for (uint64_t k = j + 1; k < at + b; k++) sum -= (double)row[k] * (double)other[k];
        if (i == j && !(sum > 0)) return false;
        row[j] = (float)(i == j ? sqrt(sum) : sum / (double)other[j]);
    }
    return true;
}

/* Columns [from, from + BLOCK) lose what the block at `at` explains: above their diagonal block, and in its upper half. */
static void update(float *h, uint64_t n, uint64_t from, uint64_t at, uint64_t b) {
    uint64_t m = tm_min_u64(BLOCK, at - from);
    tm_gemm_args g = {.m = from, .n = m, .k = b, .alpha = -1, .beta = 1, .b_trans = true};
    g.a = h + at, g.lda = n, g.b = h + from * n + at, g.ldb = n, g.c = h + from, g.ldc = n;
    if (from > 0) tm_gemm(&g);
#pragma omp parallel for schedule(static)
    for (uint64_t i = from; i < from + m; i++)
        for (uint64_t j = i; j < from + m; j++) {
            double sum = (double)h[i * n + j];
            for (uint64_t k = at; k < at + b; k++) sum -= (double)h[i * n + k] * (double)h[j * n + k];
            h[i * n + j] = (float)sum;
        }
}

bool factor_upper(float *h, uint64_t n) {
    for (uint64_t end = n, at; end > 0; end = at) {
        at = (end - 1) / BLOCK * BLOCK;
        uint64_t b = end - at;
        for (uint64_t i = end; i-- > at;)
            if (!solve_row(h, n, i, at, b, i)) return false;
#pragma omp parallel for schedule(static)
        for (uint64_t i = 0; i < at; i++) (void)solve_row(h, n, i, at, b, at);
        for (uint64_t from = 0; from < at; from += BLOCK) update(h, n, from, at, b);
    }
    return true;
}

void factor_damp(float *h, uint64_t n, double share) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += (double)h[i * n + i];
    double add = sum > 0 ? share * sum / (double)n : 1;
    for (uint64_t i = 0; i < n; i++) h[i * n + i] += (float)add;
}
