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

OPTIM_BODY double norm_bf16_body(const uint16_t *g, size_t n) {
    double lane[LANES] = {0};
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += squared(bf16_value(g[i + (size_t)l]));
    for (size_t i = whole; i < n; i++) lane[i - whole] += squared(bf16_value(g[i]));
    return add_lanes(lane);
}
OPTIM_ROWS(double, norm_bf16, (const uint16_t *g, size_t n), (g, n))

OPTIM_BODY int round_body(const float *restrict acc, uint16_t *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) g[i] = bf16_round(acc[i]);
    return 0;
}
OPTIM_ROWS(int, round, (const float *restrict acc, uint16_t *restrict g, size_t n), (acc, g, n))

/* Rounds a piece that stays in the first-level cache, then norms it: two plain loops vectorise better than one. */
OPTIM_BODY double finish_bf16_body(const float *restrict acc, uint16_t *restrict g, size_t n) {
    enum { PIECE = 2048 };
    double lane[LANES] = {0};
    size_t whole = n / LANES * LANES;
    for (size_t at = 0; at < whole; at += PIECE) {
        size_t end = whole - at < PIECE ? whole : at + PIECE;
        for (size_t i = at; i < end; i++) g[i] = bf16_round(acc[i]);
        for (size_t i = at; i < end; i += LANES)
            for (int l = 0; l < LANES; l++) lane[l] += squared(bf16_value(g[i + (size_t)l]));
    }
    for (size_t i = whole; i < n; i++) {
        g[i] = bf16_round(acc[i]);
        lane[i - whole] += squared(bf16_value(g[i]));
    }
    return add_lanes(lane);
}
OPTIM_ROWS(double, finish_bf16, (const float *restrict acc, uint16_t *restrict g, size_t n), (acc, g, n))

static size_t block_elements(size_t block, size_t n) {
    size_t rest = n - block * TM_NORM_BLOCK;
    return rest < TM_NORM_BLOCK ? rest : TM_NORM_BLOCK;
}

void tm_grad_round_bf16(const float *acc, uint16_t *g, size_t n) {
    round_fn row = round_row();
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) row(acc + b * TM_NORM_BLOCK, g + b * TM_NORM_BLOCK, block_elements(b, n));
}

void tm_norm_blocks_bf16(const uint16_t *g, size_t n, double *partial) {
    norm_bf16_fn row = norm_bf16_row();
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) partial[b] = row(g + b * TM_NORM_BLOCK, block_elements(b, n));
}

void tm_norm_blocks_f32(const float *g, size_t n, double *partial) {
    norm_f32_fn row = norm_f32_row();
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++) partial[b] = row(g + b * TM_NORM_BLOCK, block_elements(b, n));
}

void tm_grad_finish_bf16(const float *acc, uint16_t *g, size_t n, double *partial) {
    finish_bf16_fn row = finish_bf16_row();
    size_t blocks = (size_t)tm_norm_block_count(n);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t b = 0; b < blocks; b++)
        partial[b] = row(acc + b * TM_NORM_BLOCK, g + b * TM_NORM_BLOCK, block_elements(b, n));
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
