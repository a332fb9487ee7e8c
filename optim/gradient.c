/* Rounding a gradient once, and its squared norm by fixed blocks and lanes (header: "gradients"). */
#include "optim/bits_internal.h"
#include "optim/optim_internal.h"

#include <math.h>

enum { LANES = 16 };

/* Lanes in a fixed tree: neighbours at distance 8, 4, 2, 1. */
OPTIM_BODY double add_lanes(double lane[LANES]) {
    for (int d = LANES / 2; d > 0; d /= 2)
        for (int i = 0; i < d; i++) lane[i] += lane[i + d];
    return lane[0];
}
OPTIM_BODY double squared(float x) {
    return (double)x * (double)x;
} /* exact: 48 bits */

OPTIM_BODY double norm_f32_body(const float *g, size_t n) {
    double lane[LANES] = {0};
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += squared(g[i + (size_t)l]);
    for (size_t i = whole; i < n; i++) lane[i - whole] += squared(g[i]);
    return add_lanes(lane);
}
OPTIM_ROWS(double, norm_f32, (const float *g, size_t n), (g, n))

/* The same code over both 16-bit types: `value` widens one, `rounded` narrows to one. */
#define GRADIENT_ROWS(type, value, rounded)                                                                            \
    OPTIM_BODY double norm_##type##_body(const uint16_t *g, size_t n) {                                                \
        double lane[LANES] = {0};                                                                                      \
        size_t whole = n / LANES * LANES;                                                                              \
        for (size_t i = 0; i < whole; i += LANES)                                                                      \
            for (int l = 0; l < LANES; l++) lane[l] += squared(value(g[i + (size_t)l]));                               \
        for (size_t i = whole; i < n; i++) lane[i - whole] += squared(value(g[i]));                                    \
        return add_lanes(lane);                                                                                        \
    }                                                                                                                  \
    OPTIM_ROWS(double, norm_##type, (const uint16_t *g, size_t n), (g, n))                                             \
    OPTIM_BODY int round_##type##_body(const float *restrict acc, uint16_t *restrict g, size_t n) {                    \
        for (size_t i = 0; i < n; i++) g[i] = rounded(acc[i]);                                                         \
        return 0;                                                                                                      \
    }                                                                                                                  \
    OPTIM_ROWS(int, round_##type, (const float *restrict acc, uint16_t *restrict g, size_t n), (acc, g, n))            \
    /* Rounds a piece that stays in the first-level cache, then norms it: two plain loops are faster than one. */      \
    OPTIM_BODY double finish_##type##_body(const float *restrict acc, uint16_t *restrict g, size_t n) {                \
        enum { PIECE = 2048 };                                                                                         \
        double lane[LANES] = {0};                                                                                      \
        size_t whole = n / LANES * LANES;                                                                              \
        for (size_t at = 0; at < whole; at += PIECE) {                                                                 \
            size_t end = whole - at < PIECE ? whole : at + PIECE;                                                      \
            for (size_t i = at; i < end; i++) g[i] = rounded(acc[i]);                                                  \
            for (size_t i = at; i < end; i += LANES)                                                                   \
                for (int l = 0; l < LANES; l++) lane[l] += squared(value(g[i + (size_t)l]));                           \
        }                                                                                                              \
        for (size_t i = whole; i < n; i++) {                                                                           \
            g[i] = rounded(acc[i]);                                                                                    \
            lane[i - whole] += squared(value(g[i]));                                                                   \
        }                                                                                                              \
        return add_lanes(lane);                                                                                        \
    }                                                                                                                  \
    OPTIM_ROWS(double, finish_##type, (const float *restrict acc, uint16_t *restrict g, size_t n), (acc, g, n))
GRADIENT_ROWS(bf16, bf16_value, bf16_round)
GRADIENT_ROWS(f16, f16_value, f16_round)

static size_t block_elements(size_t block, size_t n) {
    size_t rest = n - block * TM_NORM_BLOCK;
    return rest < TM_NORM_BLOCK ? rest : TM_NORM_BLOCK;
}

static void round_blocks(int (*row)(const float *restrict, uint16_t *restrict, size_t), const float *acc, uint16_t *g,
                         size_t n) {
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) row(acc + b * TM_NORM_BLOCK, g + b * TM_NORM_BLOCK, block_elements(b, n));
}
void tm_grad_round_bf16(const float *acc, uint16_t *g, size_t n) {
    round_blocks(round_bf16_row(), acc, g, n);
}
void tm_grad_round_f16(const float *acc, uint16_t *g, size_t n) {
    round_blocks(round_f16_row(), acc, g, n);
}

static void norm_blocks(double (*row)(const uint16_t *, size_t), const uint16_t *g, size_t n, double *partial) {
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) partial[b] = row(g + b * TM_NORM_BLOCK, block_elements(b, n));
}
void tm_norm_blocks_bf16(const uint16_t *g, size_t n, double *partial) {
    norm_blocks(norm_bf16_row(), g, n, partial);
}
void tm_norm_blocks_f16(const uint16_t *g, size_t n, double *partial) {
    norm_blocks(norm_f16_row(), g, n, partial);
}

void tm_norm_blocks_f32(const float *g, size_t n, double *partial) {
    norm_f32_fn row = norm_f32_row();
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) partial[b] = row(g + b * TM_NORM_BLOCK, block_elements(b, n));
}

static void finish_blocks(double (*row)(const float *restrict, uint16_t *restrict, size_t), const float *acc,
                          uint16_t *g, size_t n, double *partial) {
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++)
        partial[b] = row(acc + b * TM_NORM_BLOCK, g + b * TM_NORM_BLOCK, block_elements(b, n));
}
void tm_grad_finish_bf16(const float *acc, uint16_t *g, size_t n, double *partial) {
    finish_blocks(finish_bf16_row(), acc, g, n, partial);
}
void tm_grad_finish_f16(const float *acc, uint16_t *g, size_t n, double *partial) {
    finish_blocks(finish_f16_row(), acc, g, n, partial);
}

void tm_grad_finish_f32(const float *acc, float *g, size_t n, double *partial) {
    norm_f32_fn row = norm_f32_row();
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) {
        size_t at = b * TM_NORM_BLOCK, m = block_elements(b, n);
        partial[b] = row(acc + at, m);
        if (g != acc) memcpy(g + at, acc + at, m * sizeof *g);
    }
}

double tm_sum_blocks(const double *partial, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += partial[i];
    return sum;
}

double tm_clip_factor(double norm, double max_norm) {
    if (!(max_norm > 0)) return 1;
    double factor = max_norm / (norm + 1e-6);
    return factor > 1 ? 1 : factor; /* NaN stays NaN */
}
