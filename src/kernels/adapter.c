/* What LoRA and DoRA need beside products: dropout, norms of weight vectors, magnitudes, columns of an embedding. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

enum { COLUMNS = 256 }; /* that a thread sums at a time */

static size_t span_at(uint64_t i, uint64_t n) {
    return n - i < KERNELS_SPAN ? (size_t)(n - i) : KERNELS_SPAN;
}

/* ---- dropout ---- */

static void drop_row(const tm_dropout *a, uint64_t r, const kernels_draw *draw) {
    float from[KERNELS_SPAN], to[KERNELS_SPAN], room[KERNELS_SPAN + 2 * KERNELS_DRAWS];
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        uint64_t at = r * a->n + i;
        const float *x = kernels_load(a->type, a->x, at, from, m);
        uint64_t element = (a->row + r) * a->n + i, before = element % KERNELS_DRAWS;
        const float *mask = room + before;
        kernels.drop_mask(draw, element / KERNELS_DRAWS, (before + m + KERNELS_DRAWS - 1) / KERNELS_DRAWS, room);
        const float *old = a->add ? kernels_load(a->out_type, a->out, at, to, m) : NULL;
        float *out = kernels_dest(a->out_type, a->out, at, to);
        if (old)
            for (size_t j = 0; j < m; j++) out[j] = old[j] + mask[j] * x[j];
        else
            for (size_t j = 0; j < m; j++) out[j] = mask[j] * x[j];
        kernels_store(a->out_type, out, a->out, at, m);
    }
}

void tm_dropout_apply(const tm_dropout *a) {
    kernels_draw draw = {.key = a->key, .dropped = a->dropped};
    draw.kept = (float)(65536.0 / (65536.0 - (double)a->dropped));
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (a->rows > 1)
    for (uint64_t r = 0; r < a->rows; r++) drop_row(a, r, &draw);
}

/* ---- norms of weight vectors ---- */

static float squares_of_row(const tm_squares *a, uint64_t r) {
    float buf[KERNELS_SPAN], v[KERNELS_SPAN];
    double sum = 0;
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = span_at(i, a->n);
        const float *w = kernels_load(a->type, a->w, r * a->ld_w + i, buf, m), *d = a->delta + r * a->n + i;
        for (size_t j = 0; j < m; j++) v[j] = w[j] + d[j];
        sum += (double)kernels.dot(v, v, m);
    }
    return (float)sum;
}

/* Columns [first, first + m): a thread's own, so that rows keep their order whatever the team. */
static void squares_of_columns(const tm_squares *a, uint64_t first, size_t m) {
    float buf[COLUMNS], sum[COLUMNS] = {0};
    for (uint64_t r = 0; r < a->rows; r++) {
        const float *w = kernels_load(a->type, a->w, r * a->ld_w + first, buf, m), *d = a->delta + r * a->n + first;
        for (size_t j = 0; j < m; j++) sum[j] += (w[j] + d[j]) * (w[j] + d[j]);
    }
    for (size_t j = 0; j < m; j++) a->squares[first + j] = (a->add ? a->squares[first + j] : 0) + sum[j];
}

void tm_squares_sum(const tm_squares *a) {
    uint64_t blocks = a->columns ? (a->n + COLUMNS - 1) / COLUMNS : a->rows;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (blocks > 1)
    for (uint64_t b = 0; b < blocks; b++) {
        if (a->columns)
            squares_of_columns(a, b * COLUMNS, (size_t)tm_min_u64(COLUMNS, a->n - b * COLUMNS));
        else
            a->squares[b] = (a->add ? a->squares[b] : 0) + squares_of_row(a, b);
    }
}

/* ---- magnitudes ---- */

/* scale / sqrt(squares), and the same times the magnitudes, of m columns from `first` on. */
static void column_factors(const tm_magnitude *a, uint64_t first, size_t m, float *inverse, float *gain) {
    float buf[COLUMNS];
    const float *w = kernels_load(a->type, a->magnitude, first, buf, m);
    for (size_t j = 0; j < m; j++) {
        inverse[j] = a->scale / sqrtf(a->squares[first + j]);
        gain[j] = inverse[j] * w[j];
    }
}

static void scale_columns(const tm_magnitude *a, uint64_t first, size_t m) {
    float inverse[COLUMNS], gain[COLUMNS], buf[COLUMNS];
    column_factors(a, first, m, inverse, gain);
    for (uint64_t r = 0; r < a->rows; r++) {
        const float *p = a->product + r * a->n + first;
        uint64_t at = r * a->ld_y + first;
        const float *old = a->add ? kernels_load(a->type, a->y, at, buf, m) : NULL;
        float *y = kernels_dest(a->type, a->y, at, buf);
        for (size_t j = 0; j < m; j++) y[j] = (old ? old[j] : 0) + gain[j] * p[j];
        kernels_store(a->type, y, a->y, at, m);
    }
}

void tm_magnitude_forward(const tm_magnitude *a) {
    uint64_t blocks = (a->n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (blocks > 1)
    for (uint64_t b = 0; b < blocks; b++)
        scale_columns(a, b * COLUMNS, (size_t)tm_min_u64(COLUMNS, a->n - b * COLUMNS));
}

static void columns_back(const tm_magnitude *a, uint64_t first, size_t m) {
    float inverse[COLUMNS], gain[COLUMNS], buf[COLUMNS], out[COLUMNS], sum[COLUMNS] = {0};
    column_factors(a, first, m, inverse, gain);
    for (uint64_t r = 0; r < a->rows; r++) {
        uint64_t at = r * a->n + first;
        const float *dy = kernels_load(a->type, a->dy, r * a->ld_y + first, buf, m);
        for (size_t j = 0; a->d_magnitude && j < m; j++) sum[j] += dy[j] * a->product[at + j];
        float *dp = kernels_dest(a->type, a->d_product, at, out);
        for (size_t j = 0; j < m; j++) dp[j] = gain[j] * dy[j];
        kernels_store(a->type, dp, a->d_product, at, m);
    }
    for (size_t j = 0; a->d_magnitude && j < m; j++) a->d_magnitude[first + j] += inverse[j] * sum[j];
}

void tm_magnitude_backward(const tm_magnitude *a) {
    uint64_t blocks = (a->n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (blocks > 1)
    for (uint64_t b = 0; b < blocks; b++) columns_back(a, b * COLUMNS, (size_t)tm_min_u64(COLUMNS, a->n - b * COLUMNS));
}

/* ---- columns of an embedding ---- */

void tm_gather_columns(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const int32_t *ids, const void *src,
                       uint64_t ld, void *dst) {
    size_t bytes = tm_elem_bytes(t);
    for (uint64_t i = 0; i < padded; i++)
        for (uint64_t k = 0; k < n; k++) {
            char *to = (char *)dst + (i * n + k) * bytes;
            if (i < rows)
                memcpy(to, (const char *)src + (k * ld + (uint64_t)ids[i]) * bytes, bytes);
            else
                memset(to, 0, bytes);
        }
}

void tm_scatter_add_columns(uint64_t rows, uint64_t n, const int32_t *ids, const float *src, float *dst, uint64_t ld) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * n > COLUMNS)
    for (uint64_t k = 0; k < n; k++)
        for (uint64_t i = 0; i < rows; i++) dst[k * ld + (uint64_t)ids[i]] += src[i * n + k];
}
