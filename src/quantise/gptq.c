/* GPTQ (Frantar et al. 2022) of some rows of a matrix W [rows, n], which is multiplied by inputs whose sum of x x^T is H.
 *
 * With H = R R^T, R upper triangular (factor.c), what codes Q cost is
 *
 *     sum over inputs of |(W - Q) x|^2  =  |E R|^2,  E = W - Q,
 *     column i of E R  =  R_ii (e_i + sum over j < i of e_j R_ji / R_ii)
 *
 * so that column after column the code nearest to w_i + sum of e_j R_ji / R_ii costs least. That is GPTQ: the paper's
 * U = R^-1 (its Cholesky factor of H^-1) moves the error of each column to those that follow, which comes to the same.
 * What the paper calls the updated weights of a group, by which its scale is chosen, is W_G + (E R)_G R_GG^-1 of the
 * columns before. A group is a block: what came before it is one product. */
#include "quantise/quantise_internal.h"

#include "kernels/gemm.h"

#include <string.h>

static char *place(gptq_rows *g, char *at) {
    uint64_t n = g->n, rows = g->rows, scales = rows * (n / g->o.group);
    g->lost = quantise_take(&at, rows * n * sizeof(float));
    g->plain_lost = quantise_take(&at, rows * n * sizeof(float));
    g->carried = quantise_take(&at, rows * g->o.group * sizeof(float));
    g->scale = quantise_take(&at, scales * sizeof(float));
    g->plain_scale = quantise_take(&at, scales * sizeof(float));
    g->loss = quantise_take(&at, rows * sizeof(double));
    g->full = quantise_take(&at, rows * sizeof(double));
    g->plain_loss = quantise_take(&at, rows * sizeof(double));
    g->codes = quantise_take(&at, rows * n);
    g->plain_codes = quantise_take(&at, rows * n);
    return at;
}

uint64_t gptq_bytes(uint64_t n, uint64_t rows, uint64_t group) {
    gptq_rows g = {.o.group = group, .n = n, .rows = rows};
    return (uint64_t)(uintptr_t)place(&g, NULL);
}

void gptq_place(gptq_rows *g, void *memory) {
    (void)place(g, memory);
}

/* carried = E R of the columns before the group at `at`, in the group's columns. */
static void carry(const gptq_rows *g, const float *e, uint64_t at) {
    tm_gemm_args p = {.m = g->rows, .n = g->o.group, .k = at, .alpha = 1};
    p.a = e, p.lda = g->n, p.b = g->factor + at, p.ldb = g->n, p.c = g->carried, p.ldc = g->o.group;
    if (at > 0)
        tm_gemm(&p);
    else
        memset(g->carried, 0, g->rows * g->o.group * sizeof *g->carried);
}

/* The updated weights: w + carried R_GG^-1. */
static void updated(const gptq_rows *g, uint64_t at, const float *w, const float *carried, float *out) {
    float rest[NEAREST_GROUP];
    memcpy(rest, carried, g->o.group * sizeof *rest);
    for (uint64_t i = 0; i < g->o.group; i++) {
        const float *r = g->factor + (at + i) * g->n + at;
        float x = rest[i] / r[i];
        for (uint64_t j = i + 1; j < g->o.group; j++) rest[j] -= x * r[j];
        out[i] = w[i] + x;
    }
}

static float scale_of(const gptq_rows *g, uint64_t at, const float *x) {
    float weight[NEAREST_GROUP];
    for (uint64_t i = 0; i < g->o.group; i++) {
        float r = g->factor[(at + i) * g->n + at + i];
        weight[i] = r * r;
    }
    return nearest_search(g->o.fmt, x, g->o.group, weight);
}

/* A group of one row. */
static void round_group(gptq_rows *g, uint64_t row, uint64_t at) {
    const float *w = g->w + row * g->n + at;
    float *carried = g->carried + row * g->o.group, *e = g->lost + row * g->n + at, now[NEAREST_GROUP];
    int8_t *code = g->codes + row * g->n + at;
    updated(g, at, w, carried, now);
    float scale = scale_of(g, at, now);
    g->scale[row * (g->n / g->o.group) + at / g->o.group] = scale;
    for (uint64_t i = 0; i < g->o.group; i++) {
        const float *r = g->factor + (at + i) * g->n + at;
        code[i] = (int8_t)nearest_code(w[i] + carried[i] / r[i], scale);
        e[i] = w[i] - (float)code[i] * scale;
        for (uint64_t j = i; j < g->o.group; j++) carried[j] += e[i] * r[j];
    }
    for (uint64_t i = 0; i < g->o.group; i++) g->loss[row] += (double)carried[i] * (double)carried[i];
}

static void round_plain(gptq_rows *g, uint64_t row) {
    const float *w = g->w + row * g->n;
    for (uint64_t at = 0; at < g->n; at += g->o.group) {
        float scale = nearest_scale(g->o.fmt, nearest_largest(w + at, g->o.group), 1);
        g->plain_scale[row * (g->n / g->o.group) + at / g->o.group] = scale;
        for (uint64_t i = at; i < at + g->o.group; i++) {
            int code = nearest_code(w[i], scale);
            g->plain_codes[row * g->n + i] = (int8_t)code;
            g->plain_lost[row * g->n + i] = w[i] - (float)code * scale;
        }
    }
}

/* sum[row] = |E R|^2 */
static void measure(const gptq_rows *g, const float *e, double *sum) {
    memset(sum, 0, g->rows * sizeof *sum);
    for (uint64_t at = 0; at < g->n; at += g->o.group) {
        carry(g, e, at);
#pragma omp parallel for schedule(static)
        for (uint64_t row = 0; row < g->rows; row++) {
            float *carried = g->carried + row * g->o.group;
            for (uint64_t i = 0; i < g->o.group; i++) {
                const float *r = g->factor + (at + i) * g->n + at;
                for (uint64_t j = i; j < g->o.group; j++) carried[j] += e[row * g->n + at + i] * r[j];
            }
            for (uint64_t i = 0; i < g->o.group; i++) sum[row] += (double)carried[i] * (double)carried[i];
        }
    }
}

static void take_plain(gptq_rows *g, uint64_t row) {
    uint64_t scales = g->n / g->o.group;
    memcpy(g->codes + row * g->n, g->plain_codes + row * g->n, g->n);
    memcpy(g->lost + row * g->n, g->plain_lost + row * g->n, g->n * sizeof *g->lost);
    memcpy(g->scale + row * scales, g->plain_scale + row * scales, scales * sizeof *g->scale);
    g->loss[row] = g->plain_loss[row];
}

void gptq_round(gptq_rows *g) {
    TM_ASSERT(g->o.group <= NEAREST_GROUP && g->n % g->o.group == 0);
    memset(g->loss, 0, g->rows * sizeof *g->loss);
    for (uint64_t at = 0; at < g->n; at += g->o.group) {
        carry(g, g->lost, at);
#pragma omp parallel for schedule(static)
        for (uint64_t row = 0; row < g->rows; row++) round_group(g, row, at);
    }
#pragma omp parallel for schedule(static)
    for (uint64_t row = 0; row < g->rows; row++) round_plain(g, row);
    measure(g, g->plain_lost, g->plain_loss);
    measure(g, g->w, g->full);
    for (uint64_t row = 0; row < g->rows; row++)
        if (g->plain_loss[row] < g->loss[row]) take_plain(g, row);
}
