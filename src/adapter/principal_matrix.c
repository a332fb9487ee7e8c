/* Products of a matrix that is read by rows, and vectors made orthonormal. In double: each sum is made by one thread,
 * in one order. */
#include "adapter/principal_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>

double principal_dot(const double *a, const double *b, uint64_t n) {
    double sum[8] = {0}, rest = 0;
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint64_t k = 0; k < 8; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) rest += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])) + rest;
}

void principal_axpy(double s, const double *x, double *y, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) y[i] += s * x[i];
}

/* Four rows at a time, so that x is read once for them. */
static void dot_4(const float *row, uint64_t n, const double *x, double out[4]) {
    double sum[4][4] = {{0}};
    const float *r[4] = {row, row + n, row + 2 * n, row + 3 * n};
    uint64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint64_t q = 0; q < 4; q++)
            for (uint64_t k = 0; k < 4; k++) sum[q][k] += (double)r[q][i + k] * x[i + k];
    for (; i < n; i++)
        for (uint64_t q = 0; q < 4; q++) sum[q][0] += (double)r[q][i] * x[i];
    for (uint64_t q = 0; q < 4; q++) out[q] = (sum[q][0] + sum[q][1]) + (sum[q][2] + sum[q][3]);
}

static void axpy_4(const double s[4], const float *row, uint64_t n, double *z) {
    const float *r1 = row + n, *r2 = row + 2 * n, *r3 = row + 3 * n;
    for (uint64_t i = 0; i < n; i++)
        z[i] += (s[0] * (double)row[i] + s[1] * (double)r1[i]) + (s[2] * (double)r2[i] + s[3] * (double)r3[i]);
}

tm_status principal_matrix_open(principal_matrix *m, const tm_matrix_rows *w, unsigned threads, uint32_t most_vectors) {
    *m = (principal_matrix){
        .w = w, .threads = threads ? threads : (unsigned)omp_get_max_threads(), .at_once = PRINCIPAL_ROWS};
    m->rows = tm_calloc(PRINCIPAL_ROWS, w->columns * sizeof *m->rows);
    m->some = tm_malloc((size_t)most_vectors * PRINCIPAL_ROWS * sizeof *m->some);
    return m->rows && m->some ? TM_OK : tm_nomem(PRINCIPAL_ROWS * w->columns * sizeof *m->rows);
}

void principal_matrix_close(principal_matrix *m) {
    TM_FREE_ALL(m->rows, m->some);
}

/* What one vector gets of the rows that are there: `rows` of them, a multiple of 4 (the last ones are zero). */
static void vector_rows(const principal_matrix *m, uint64_t rows, const double *x, double *some, double *z) {
    uint64_t n = m->w->columns;
    for (uint64_t i = 0; x && i < rows; i += 4) dot_4(m->rows + i * n, n, x, some + i);
    for (uint64_t i = 0; z && i < rows; i += 4) axpy_4(some + i, m->rows + i * n, n, z);
}

static void one_vector(const principal_matrix *m, uint64_t first, uint64_t rows, const double *x, double *some,
                       double *y, double *z) {
    uint64_t padded = tm_round_up(rows, 4);
    memset(some, 0, padded * sizeof *some);
    if (!x) memcpy(some, y + first, rows * sizeof *some);
    vector_rows(m, padded, x, some, z);
    if (x && y) memcpy(y + first, some, rows * sizeof *some);
}

tm_status principal_products(principal_matrix *m, uint32_t n, const double *x, double *y, double *z) {
    uint64_t rows = m->w->rows, columns = m->w->columns;
    if (z) memset(z, 0, n * columns * sizeof *z);
    for (uint64_t first = 0, take; first < rows; first += take) {
        take = tm_min_u64(m->at_once, rows - first);
        TM_TRY(m->w->read(m->w->ctx, first, take, m->rows));
        memset(m->rows + take * columns, 0, (tm_round_up(take, 4) - take) * columns * sizeof *m->rows);
#pragma omp parallel for schedule(static) num_threads(m->threads) if (m->threads > 1)
        for (uint32_t j = 0; j < n; j++)
            one_vector(m, first, take, x ? x + j * columns : NULL, m->some + (size_t)j * PRINCIPAL_ROWS,
                       y ? y + j * rows : NULL, z ? z + j * columns : NULL);
    }
    return TM_OK;
}

/* Takes the part along each q out of v; coefficients are added to r, with a stride. */
static void project_out(const double *q, uint32_t k, double *v, uint64_t length, double *r, uint32_t stride) {
    for (uint32_t i = 0; i < k; i++) {
        double c = principal_dot(q + i * length, v, length);
        principal_axpy(-c, q + i * length, v, length);
        if (r) r[(size_t)i * stride] += c;
    }
}

uint32_t principal_orthonormal(const double *q, uint32_t k, double *v, uint32_t n, uint64_t length, double least,
                               double *r) {
    uint32_t left = 0;
    if (r) memset(r, 0, (size_t)n * n * sizeof *r);
    for (uint32_t j = 0; j < n; j++) {
        double *from = v + j * length, *to = v + left * length;
        for (int turn = 0; turn < 2; turn++) { /* twice is enough (Kahan; Parlett 1980, 6.9) */
            project_out(q, k, from, length, NULL, 0);
            project_out(v, left, from, length, r ? r + j : NULL, n);
        }
        double size = sqrt(principal_dot(from, from, length));
        if (!(size > least)) continue;
        if (r) r[(size_t)left * n + j] = size;
        for (uint64_t i = 0; i < length; i++) to[i] = from[i] / size;
        left++;
    }
    return left;
}

void principal_draw(uint64_t seed, double *v, uint64_t n) {
    double two[2];
    for (uint64_t i = 0; i < n; i += 2) {
        tm_philox_normal2(seed, i / 2, two);
        v[i] = two[0];
        if (i + 1 < n) v[i + 1] = two[1];
    }
}
