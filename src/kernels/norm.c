/* Root mean square norm (Zhang and Sennrich 2019), forward and backward, a row at a time in spans. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

static size_t span_at(uint64_t i, uint64_t n) {
    return n - i < KERNELS_SPAN ? (size_t)(n - i) : KERNELS_SPAN;
}

static float inverse_rms(tm_elem t, uint64_t n, const void *x, uint64_t at, float eps) {
    float buf[KERNELS_SPAN];
    double sum = 0;
    for (uint64_t i = 0; i < n; i += KERNELS_SPAN) {
        size_t m = span_at(i, n);
        const float *v = kernels_load(t, x, at + i, buf, m);
        sum += (double)kernels.dot(v, v, m);
    }
    return 1.0F / sqrtf((float)(sum / (double)n) + eps);
}

void tm_rmsnorm_forward(tm_elem t, uint64_t rows, uint64_t n, const void *x, const void *w, float eps, void *y) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows > 1)
    for (uint64_t r = 0; r < rows; r++) {
        float inv = inverse_rms(t, n, x, r * n, eps);
        float bx[KERNELS_SPAN], bw[KERNELS_SPAN], out[KERNELS_SPAN];
        for (uint64_t i = 0; i < n; i += KERNELS_SPAN) {
            size_t m = span_at(i, n);
            float *dest = kernels_dest(t, y, r * n + i, out);
            kernels.norm_apply(kernels_load(t, x, r * n + i, bx, m), kernels_load(t, w, i, bw, m), inv, dest, m);
            kernels_store(t, dest, y, r * n + i, m);
        }
    }
}

/* sum of w * dy * x over a row */
static double weighted_dot(tm_elem t, uint64_t n, const void *x, uint64_t at, const void *w, const float *dy) {
    float bx[KERNELS_SPAN], bw[KERNELS_SPAN];
    double sum = 0;
    for (uint64_t i = 0; i < n; i += KERNELS_SPAN) {
        size_t m = span_at(i, n);
        sum += (double)kernels.dot3(kernels_load(t, x, at + i, bx, m), kernels_load(t, w, i, bw, m), dy + i, m);
    }
    return sum;
}

static void backward_row(tm_elem t, uint64_t n, const void *x, uint64_t at, const void *w, float eps, const float *dy,
                         void *dx, bool dx_add, float *dw) {
    float inv = inverse_rms(t, n, x, at, eps);
    double dot = weighted_dot(t, n, x, at, w, dy);
    float c = (float)((double)inv * (double)inv * (double)inv * dot / (double)n);
    float bx[KERNELS_SPAN], bw[KERNELS_SPAN], grad[KERNELS_SPAN], old[KERNELS_SPAN];
    for (uint64_t i = 0; i < n; i += KERNELS_SPAN) {
        size_t m = span_at(i, n);
        kernels.norm_grad(kernels_load(t, x, at + i, bx, m), kernels_load(t, w, i, bw, m), dy + i, inv, c, grad, dw + i,
                          m);
        if (dx_add) kernels.axpy(1.0F, kernels_load(t, dx, at + i, old, m), grad, m);
        if (t == TM_ELEM_F32)
            memcpy((float *)dx + at + i, grad, m * sizeof *grad);
        else
            kernels_narrow(t, grad, (uint16_t *)dx + at + i, m);
    }
}

uint64_t tm_rmsnorm_workspace(uint64_t rows, uint64_t n) {
    return tm_round_up((rows + TM_ROW_BLOCK - 1) / TM_ROW_BLOCK * n * sizeof(float), 64);
}

/* Blocks of rows in any order, each into its own partial dw; then the partial sums in block order. */
void tm_rmsnorm_backward(tm_elem t, uint64_t rows, uint64_t n, const void *x, const void *w, float eps, const float *dy,
                         void *dx, bool dx_add, float *dw, bool dw_add, void *workspace) {
    uint64_t blocks = (rows + TM_ROW_BLOCK - 1) / TM_ROW_BLOCK;
    float *partial = workspace;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (blocks > 1)
    for (uint64_t b = 0; b < blocks; b++) {
        memset(partial + b * n, 0, n * sizeof *partial);
        uint64_t end = tm_min_u64(rows, (b + 1) * TM_ROW_BLOCK);
        for (uint64_t r = b * TM_ROW_BLOCK; r < end; r++)
            backward_row(t, n, x, r * n, w, eps, dy + r * n, dx, dx_add, partial + b * n);
    }
    if (!dw) return;
    if (!dw_add) memset(dw, 0, n * sizeof *dw);
    for (uint64_t b = 0; b < blocks; b++) kernels.axpy(1.0F, partial + b * n, dw, n);
}
