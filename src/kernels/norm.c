/* Norms of rows, forward and backward, a row at a time in spans. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

static size_t span_at(uint64_t i, uint64_t n) {
    return n - i < KERNELS_SPAN ? (size_t)(n - i) : KERNELS_SPAN;
}

static uint64_t groups_of(const tm_norm *a) {
    return a->groups ? a->groups : 1;
}
static uint64_t x_at(const tm_norm *a, uint64_t row, uint64_t group) {
    return row * (a->ld_x ? a->ld_x : groups_of(a) * a->n) + group * a->n;
}
static uint64_t y_at(const tm_norm *a, uint64_t row, uint64_t group) {
    return row * (a->ld_y ? a->ld_y : groups_of(a) * a->n) + group * a->n;
}

/* m elements of x as fp32, less their mean. */
static const float *centred(const tm_norm *a, uint64_t at, float mean, float *buf, size_t m) {
    const float *x = kernels_load(a->type, a->x, at, buf, m);
    if (a->kind != TM_NORM_LAYER) return x;
    for (size_t i = 0; i < m; i++) buf[i] = x[i] - mean;
    return buf;
}

/* What a row is multiplied by, elements [i, i + m). */
static const float *weights(const tm_norm *a, uint64_t i, float *buf, size_t m) {
    if (!a->weight) {
        for (size_t j = 0; j < m; j++) buf[j] = 1;
        return buf;
    }
    const float *w = kernels_load(a->type, a->weight, i, buf, m);
    if (a->kind != TM_NORM_RMS_PLUS) return w;
    for (size_t j = 0; j < m; j++) buf[j] = 1 + w[j];
    return buf;
}

/* All of them, where they fit a span: what the groups of a row, or of many rows, share. NULL: they do not. */
static const float *shared_weights(const tm_norm *a, float *buf) {
    return a->n <= KERNELS_SPAN ? weights(a, 0, buf, a->n) : NULL;
}

static float mean_of(const tm_norm *a, uint64_t at) {
    float buf[KERNELS_SPAN];
    double sum = 0;
    if (a->kind != TM_NORM_LAYER) return 0;
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        const float *x = kernels_load(a->type, a->x, at + i, buf, m);
        for (size_t j = 0; j < m; j++) sum += (double)x[j];
    }
    return (float)(sum / (double)a->n);
}

static float inverse_deviation(const tm_norm *a, uint64_t at, float mean) {
    float buf[KERNELS_SPAN];
    double sum = 0;
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        const float *v = centred(a, at + i, mean, buf, m);
        sum += (double)kernels.dot(v, v, m);
    }
    return 1.0F / sqrtf((float)(sum / (double)a->n) + a->eps);
}

/* `shared`: all weights, or NULL. */
static void forward_group(const tm_norm *a, const float *shared, uint64_t from, uint64_t to) {
    float mean = mean_of(a, from), inv = inverse_deviation(a, from, mean);
    float bx[KERNELS_SPAN], bw[KERNELS_SPAN], out[KERNELS_SPAN];
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        float *dest = kernels_dest(a->type, a->y, to + i, out);
        const float *w = shared ? shared + i : weights(a, i, bw, m);
        kernels.norm_apply(centred(a, from + i, mean, bx, m), w, inv, dest, m);
        if (a->bias) kernels.axpy(1.0F, kernels_load(a->type, a->bias, i, bw, m), dest, m);
        if (a->residual) kernels.axpy(1.0F, kernels_load(a->type, a->residual, to + i, bx, m), dest, m);
        kernels_store(a->type, dest, a->y, to + i, m);
    }
}

void tm_norm_forward(const tm_norm *a) {
    TM_ASSERT(!a->residual || a->residual != a->y);
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (a->rows > 1)
    for (uint64_t r = 0; r < a->rows; r++) {
        float buf[KERNELS_SPAN];
        const float *shared = groups_of(a) > 1 ? shared_weights(a, buf) : NULL;
        for (uint64_t g = 0; g < groups_of(a); g++) forward_group(a, shared, x_at(a, r, g), y_at(a, r, g));
    }
}

typedef struct row_sums {
    double gx, g; /* over a row: of w * dy * x, and (LAYER) of w * dy */
} row_sums;

static row_sums sums_of(const tm_norm *a, const float *shared, uint64_t from, uint64_t to, float mean) {
    float bx[KERNELS_SPAN], bw[KERNELS_SPAN], bd[KERNELS_SPAN];
    row_sums s = {0, 0};
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        const float *w = shared ? shared + i : weights(a, i, bw, m);
        const float *dy = kernels_load(a->dy_type, a->dy, to + i, bd, m);
        s.gx += (double)kernels.dot3(centred(a, from + i, mean, bx, m), w, dy, m);
        if (a->kind == TM_NORM_LAYER) s.g += (double)kernels.dot(w, dy, m);
    }
    return s;
}

static void backward_group(const tm_norm *a, const float *shared, uint64_t from, uint64_t to, float *dw, float *db) {
    float mean = mean_of(a, from), inv = inverse_deviation(a, from, mean);
    row_sums s = sums_of(a, shared, from, to, mean);
    float c = (float)((double)inv * (double)inv * (double)inv * s.gx / (double)a->n);
    float shift = (float)(-(double)inv * s.g / (double)a->n);
    float bx[KERNELS_SPAN], bw[KERNELS_SPAN], bd[KERNELS_SPAN], grad[KERNELS_SPAN], old[KERNELS_SPAN];
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        const float *dy = kernels_load(a->dy_type, a->dy, to + i, bd, m);
        const float *w = shared ? shared + i : weights(a, i, bw, m);
        kernels.norm_grad(centred(a, from + i, mean, bx, m), w, dy, inv, c, grad, dw + i, m);
        if (db) kernels.axpy(1.0F, dy, db + i, m);
        for (size_t j = 0; a->kind == TM_NORM_LAYER && j < m; j++) grad[j] += shift;
        if (a->dx_add) kernels.axpy(1.0F, kernels_load(a->type, a->dx, from + i, old, m), grad, m);
        if (a->type == TM_ELEM_F32)
            memcpy((float *)a->dx + from + i, grad, m * sizeof *grad);
        else
            kernels_narrow(a->type, grad, (uint16_t *)a->dx + from + i, m);
    }
}

uint64_t tm_norm_workspace(uint64_t rows, uint64_t n) {
    return tm_round_up((rows + TM_ROW_BLOCK - 1) / TM_ROW_BLOCK * n * sizeof(float), 64);
}

/* Blocks of rows in any order, each into its own partial sums; then those in block order. */
void tm_norm_backward(const tm_norm *a) {
    uint64_t blocks = (a->rows + TM_ROW_BLOCK - 1) / TM_ROW_BLOCK, n = a->n;
    bool layer = a->kind == TM_NORM_LAYER;
    float *partial = a->workspace, *biases = layer ? partial + blocks * n : NULL;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (blocks > 1)
    for (uint64_t b = 0; b < blocks; b++) {
        float *db = biases ? biases + b * n : NULL;
        memset(partial + b * n, 0, n * sizeof *partial);
        if (db) memset(db, 0, n * sizeof *db);
        float buf[KERNELS_SPAN];
        const float *shared = shared_weights(a, buf);
        uint64_t end = tm_min_u64(a->rows, (b + 1) * TM_ROW_BLOCK);
        for (uint64_t r = b * TM_ROW_BLOCK; r < end; r++)
            for (uint64_t g = 0; g < groups_of(a); g++)
                backward_group(a, shared, x_at(a, r, g), y_at(a, r, g), partial + b * n, db);
    }
    if (a->dw && !a->dw_add) memset(a->dw, 0, n * sizeof *a->dw);
    if (a->db && !a->dw_add) memset(a->db, 0, n * sizeof *a->db);
    for (uint64_t b = 0; b < blocks; b++) {
        if (a->dw) kernels.axpy(1.0F, partial + b * n, a->dw, n);
        if (a->db && biases) kernels.axpy(1.0F, biases + b * n, a->db, n);
    }
}
