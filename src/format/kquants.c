/* Q4_K, Q5_K and Q6_K written: ggml's reference quantisers (quantize_row_q4_K_ref, _q5_K_ref, _q6_K_ref of ggml-quants.c),
 * byte for byte. A super-block is 256 elements: Q4_K and Q5_K fit scale and minimum to each 32 of them, Q6_K a scale to
 * each 16, by trying some scales and keeping the one of least weighted error; then the scales themselves are stored as
 * small integers times one f16, and the codes are taken once more for what the scales have become.
 *
 * The sub-blocks of a super-block are fitted side by side, a lane each: sums keep their order in each, which is what the
 * bits depend on, and the compiler has something to do in parallel. */
#include "format/format_internal.h"

#include <math.h>
#include <string.h>

enum { SUPER = 256, LANES = 8, LENGTH = 32, LANES_Q6 = 16, LENGTH_Q6 = 16, LARGEST_SCALE = 63 };

/* v to the nearest integer, ties to even, within [lo, hi], which lie within 2^22. NaN is lo. */
static inline float nearest(float v, float lo, float hi) {
    float inside = v > lo ? v : lo;
    inside = inside < hi ? inside : hi;
    return (inside + 0x1.8p23f) - 0x1.8p23f;
}

/* What an f16 makes of it. */
static float put_f16(uint8_t *p, float f) {
    uint16_t h = tm_f32_to_f16(f);
    memcpy(p, &h, 2);
    return tm_f16_to_f32(h);
}

/* ---- Q4_K, Q5_K ---- */

typedef struct ranges {
    float most;        /* the largest code */
    float first, step; /* scales tried: range / (most + first + step k), k = 0 .. steps */
    int steps;
} ranges;

/* x is about scale * code + low; a lane is a sub-block. */
typedef struct fit {
    const ranges *r;
    float x[LENGTH][LANES], weight[LENGTH][LANES];
    float top[LANES], weights[LANES], sum[LANES]; /* the largest value; sums of weights, of weighted values */
    float scale[LANES], low[LANES], error[LANES]; /* the best so far */
    float by[LANES], from[LANES];                 /* its codes are nearest(by * (x - from)) */
} fit;

static void load_weighed(fit *f, const float *importance) {
    float square = 0;
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) square += f->x[i][j] * f->x[i][j];
    square *= 2.0F / SUPER;
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++)
            f->weight[i][j] = importance[j * LENGTH + i] * sqrtf(square + f->x[i][j] * f->x[i][j]);
}

/* Weights: the root of the mean square, and the magnitude. */
static void load(fit *f, const float *x, const float *importance) {
    float square[LANES] = {0};
    for (int j = 0; j < LANES; j++)
        for (int i = 0; i < LENGTH; i++) f->x[i][j] = x[j * LENGTH + i];
    if (importance) {
        load_weighed(f, importance);
        return;
    }
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) square[j] += f->x[i][j] * f->x[i][j];
    for (int j = 0; j < LANES; j++) square[j] = sqrtf(square[j] / LENGTH);
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) f->weight[i][j] = square[j] + fabsf(f->x[i][j]);
}

static inline float code_of(const fit *f, int i, int j) {
    return nearest(f->by[j] * (f->x[i][j] - f->from[j]), 0, f->r->most);
}

/* The first fit: from the least value, or 0, to the largest. A sub-block in which all values are that one has scale 0. */
static void begin(fit *f) {
    for (int j = 0; j < LANES; j++) {
        f->low[j] = f->top[j] = f->x[0][j];
        f->weights[j] = f->sum[j] = f->error[j] = 0;
    }
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) {
            float x = f->x[i][j], w = f->weight[i][j];
            f->low[j] = x < f->low[j] ? x : f->low[j];
            f->top[j] = x > f->top[j] ? x : f->top[j];
            f->weights[j] += w;
            f->sum[j] += w * x;
        }
    for (int j = 0; j < LANES; j++) {
        f->low[j] = f->low[j] > 0 ? 0 : f->low[j];
        f->from[j] = f->low[j];
        f->by[j] = f->r->most / (f->top[j] - f->low[j]);
        f->scale[j] = 1 / f->by[j];
    }
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) {
            float difference = f->scale[j] * code_of(f, i, j) + f->low[j] - f->x[i][j];
            f->error[j] += f->weight[i][j] * (difference * difference);
        }
}

/* Codes by another scale, and the least squares line through them: kept where it is better. */
static void try_scale(fit *f, int step) {
    float code[LENGTH][LANES], by[LANES], scale[LANES], low[LANES];
    float l1[LANES] = {0}, l2[LANES] = {0}, xl[LANES] = {0}, error[LANES] = {0}, determinant[LANES];
    for (int j = 0; j < LANES; j++)
        by[j] = (f->r->first + f->r->step * (float)step + f->r->most) / (f->top[j] - f->low[j]);
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) {
            float x = f->x[i][j], l = nearest(by[j] * (x - f->low[j]), 0, f->r->most), wl = f->weight[i][j] * l;
            code[i][j] = l;
            l1[j] += wl;
            l2[j] += wl * l;
            xl[j] += wl * x;
        }
    for (int j = 0; j < LANES; j++) {
        float w = f->weights[j], x = f->sum[j], d = w * l2[j] - l1[j] * l1[j];
        float slope = (w * xl[j] - x * l1[j]) / d, start = (l2[j] * x - l1[j] * xl[j]) / d;
        determinant[j] = d;
        scale[j] = start > 0 ? xl[j] / l2[j] : slope;
        low[j] = start > 0 ? 0 : start;
    }
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LANES; j++) {
            float difference = scale[j] * code[i][j] + low[j] - f->x[i][j];
            error[j] += f->weight[i][j] * (difference * difference);
        }
    for (int j = 0; j < LANES; j++) {
        if (!(determinant[j] > 0 && error[j] < f->error[j])) continue;
        f->from[j] = f->low[j];
        f->by[j] = by[j];
        f->scale[j] = scale[j];
        f->low[j] = low[j];
        f->error[j] = error[j];
    }
}

/* 6 bits each of 8 scales and 8 minima, laid as blocks.c's q4_k_scale reads them. */
static void pack_scales(uint8_t s[12], const uint8_t scale[LANES], const uint8_t min[LANES]) {
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(min[j] | (min[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* What 6 bits of each sub-block's value (>= 0) are multiplied by: the largest by 63, or what weighted least squares make
 * of some values near it. */
static float unit_of(const float value[LANES], const float weight[LANES], float largest) {
    float best = largest / LARGEST_SCALE, least = INFINITY;
    for (int k = -4; k <= 4 && largest > 0; k++) {
        float by = (LARGEST_SCALE + 0.1f * (float)k) / largest, vl = 0, l2 = 0, unit, error = 0;
        for (int j = 0; j < LANES; j++) {
            float l = nearest(by * value[j], 0, LARGEST_SCALE);
            vl += weight[j] * value[j] * l;
            l2 += weight[j] * l * l;
        }
        unit = l2 > 0 ? vl / l2 : 1 / by;
        for (int j = 0; j < LANES; j++) {
            float d = value[j] - unit * nearest(by * value[j], 0, LARGEST_SCALE);
            error += weight[j] * d * d;
        }
        if (error < least) least = error, best = unit;
    }
    return best;
}

/* d, dmin and the scales into the first 16 bytes; code[256] for what they have become. */
static void encode_ranges(const ranges *r, const float *x, const float *importance, uint8_t *b, uint8_t *code) {
    fit f = {.r = r};
    float scale = 0, min = 0, below[LANES];
    uint8_t scales[LANES], mins[LANES];
    load(&f, x, importance);
    begin(&f);
    for (int k = 0; k <= r->steps; k++) try_scale(&f, k);
    for (int j = 0; j < LANES; j++) {
        scale = f.scale[j] > scale ? f.scale[j] : scale;
        min = -f.low[j] > min ? -f.low[j] : min;
        below[j] = -f.low[j];
    }
    float by_scale = scale > 0 ? LARGEST_SCALE / scale : 0, by_min = min > 0 ? LARGEST_SCALE / min : 0;
    float scale_unit = scale / LARGEST_SCALE, min_unit = min / LARGEST_SCALE;
    if (importance) {
        scale_unit = unit_of(f.scale, f.weights, scale), min_unit = unit_of(below, f.weights, min);
        by_scale = scale_unit > 0 ? 1 / scale_unit : 0, by_min = min_unit > 0 ? 1 / min_unit : 0;
    }
    float d = put_f16(b, scale_unit), dmin = put_f16(b + 2, min_unit);
    for (int j = 0; j < LANES; j++) {
        scales[j] = (uint8_t)nearest(by_scale * f.scale[j], 0, LARGEST_SCALE);
        mins[j] = (uint8_t)nearest(by_min * -f.low[j], 0, LARGEST_SCALE);
        float ds = d * (float)scales[j], m = dmin * (float)mins[j];
        for (int i = 0; i < LENGTH; i++)
            code[j * LENGTH + i] = (uint8_t)(ds != 0 ? nearest((f.x[i][j] + m) / ds, 0, r->most) : code_of(&f, i, j));
    }
    pack_scales(b + 4, scales, mins);
}

void tm_encode_q4_k(const float *x, const float *importance, uint8_t *b) {
    static const ranges r[] = {{15, -1, 0.1f, 20}, {15, -0.9f, 0.05f, 36}};
    uint8_t code[SUPER], *q = b + 16;
    encode_ranges(&r[importance != NULL], x, importance, b, code);
    for (int at = 0; at < SUPER; at += 64, q += 32)
        for (int i = 0; i < 32; i++) q[i] = (uint8_t)(code[at + i] | code[at + 32 + i] << 4);
}

void tm_encode_q5_k(const float *x, const float *importance, uint8_t *b) {
    static const ranges r[] = {{31, -0.5f, 0.1f, 15}, {31, -0.9f, 0.05f, 36}};
    uint8_t code[SUPER], *fifth = b + 16, *q = b + 48;
    encode_ranges(&r[importance != NULL], x, importance, b, code);
    memset(fifth, 0, 32);
    for (int at = 0; at < SUPER; at += 64, q += 32)
        for (int i = 0; i < 32; i++) {
            unsigned low = code[at + i], high = code[at + 32 + i];
            q[i] = (uint8_t)((low & 15) | (high & 15) << 4);
            fifth[i] |= (uint8_t)((low >> 4 | (high >> 4) << 1) << (at / 32));
        }
}

/* ---- Q6_K ---- */

#define LEAST_MAGNITUDE 1e-15f /* of a sub-block, or a scale, that is not taken for 0 */

/* x is about scale * (code - 32); a lane is a sub-block. */
typedef struct fit_q6 {
    float x[LENGTH_Q6][LANES_Q6], weight[LENGTH_Q6][LANES_Q6];
    float extreme[LANES_Q6]; /* the value of largest magnitude */
    float scale[LANES_Q6], best[LANES_Q6], by[LANES_Q6];
} fit_q6;

static void load_q6(fit_q6 *f, const float *x, const float *importance) {
    for (int j = 0; j < LANES_Q6; j++) {
        f->extreme[j] = f->scale[j] = f->best[j] = f->by[j] = 0;
        for (int i = 0; i < LENGTH_Q6; i++) {
            float v = x[j * LENGTH_Q6 + i];
            f->x[i][j] = v;
            f->weight[i][j] = importance ? importance[j * LENGTH_Q6 + i] : v * v;
        }
    }
    for (int i = 0; i < LENGTH_Q6; i++)
        for (int j = 0; j < LANES_Q6; j++)
            f->extreme[j] = fabsf(f->x[i][j]) > fabsf(f->extreme[j]) ? f->x[i][j] : f->extreme[j];
}

/* Codes by a scale, and weighted least squares (by squares, unless there are importances): kept where it is better, or the first. */
static void try_scale_q6(fit_q6 *f, float most, bool first) {
    float by[LANES_Q6], xl[LANES_Q6] = {0}, l2[LANES_Q6] = {0};
    for (int j = 0; j < LANES_Q6; j++) by[j] = -most / f->extreme[j];
    for (int i = 0; i < LENGTH_Q6; i++)
        for (int j = 0; j < LANES_Q6; j++) {
            float x = f->x[i][j], l = nearest(by[j] * x, -32, 31), w = f->weight[i][j];
            xl[j] += w * x * l;
            l2[j] += w * l * l;
        }
    for (int j = 0; j < LANES_Q6; j++) {
        bool better = l2[j] > 0 && xl[j] * xl[j] > f->best[j] * l2[j];
        if (!first && !better) continue;
        f->scale[j] = l2[j] != 0 ? xl[j] / l2[j] : 0;
        f->best[j] = f->scale[j] * xl[j];
        f->by[j] = by[j];
    }
}

/* Of largest magnitude, with its sign. */
static float largest_scale(fit_q6 *f) {
    float largest = 0;
    for (int j = 0; j < LANES_Q6; j++) {
        if (fabsf(f->extreme[j]) < LEAST_MAGNITUDE) f->scale[j] = 0;
        largest = fabsf(f->scale[j]) > fabsf(largest) ? f->scale[j] : largest;
    }
    return largest;
}

static uint8_t code_q6(const fit_q6 *f, int i, int j, float d) {
    if (d != 0) return (uint8_t)(nearest(f->x[i][j] / d, -32, 31) + 32);
    return fabsf(f->extreme[j]) < LEAST_MAGNITUDE ? 0 : (uint8_t)(nearest(f->by[j] * f->x[i][j], -32, 31) + 32);
}

static void pack_q6(uint8_t *b, const uint8_t code[SUPER]) {
    for (int half = 0; half < 2; half++) {
        const uint8_t *c = code + half * 128;
        uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
        for (int i = 0; i < 32; i++) {
            low[i] = (uint8_t)((c[i] & 15) | (c[i + 64] & 15) << 4);
            low[i + 32] = (uint8_t)((c[i + 32] & 15) | (c[i + 96] & 15) << 4);
            high[i] = (uint8_t)(c[i] >> 4 | (c[i + 32] >> 4) << 2 | (c[i + 64] >> 4) << 4 | (c[i + 96] >> 4) << 6);
        }
    }
}

void tm_encode_q6_k(const float *x, const float *importance, uint8_t *b) {
    fit_q6 f;
    uint8_t code[SUPER];
    load_q6(&f, x, importance);
    try_scale_q6(&f, 32, true);
    for (int k = -9; k <= 9; k++)
        if (k != 0) try_scale_q6(&f, 32 + 0.1f * (float)k, false);
    float largest = largest_scale(&f);
    if (fabsf(largest) < LEAST_MAGNITUDE) {
        memset(b, 0, tm_fmt_get(TM_FMT_Q6_K)->block_bytes);
        return;
    }
    float by = -128 / largest, d = put_f16(b + 208, 1 / by);
    for (int j = 0; j < LANES_Q6; j++) {
        int8_t scale = (int8_t)nearest(by * f.scale[j], -128, 127);
        memcpy(b + 192 + j, &scale, 1);
        for (int i = 0; i < LENGTH_Q6; i++) code[j * LENGTH_Q6 + i] = code_q6(&f, i, j, d * (float)scale);
    }
    pack_q6(b, code);
}
