/* GGUF's blocks of 32 where columns matter more or less: scales (and minima) that lose least by weighted squares. The weight
 * of an element is that of llama.cpp's quantisers with an imatrix, importance times the root of (the block's mean square +
 * x^2), and so are the scales that are tried; the bytes are not theirs. Layouts: blocks.c. */
#include "format/format_internal.h"

#include <math.h>
#include <string.h>

enum { LENGTH = 32 };

typedef struct line {
    float scale, low; /* a value is scale * code + low */
} line;

static float inside(float v, float lo, float hi) {
    return v > lo ? v < hi ? v : hi : lo;
}

static void weigh(const float *x, const float *importance, float weight[LENGTH]) {
    float square = 0;
    for (int i = 0; i < LENGTH; i++) square += x[i] * x[i];
    for (int i = 0; i < LENGTH; i++) weight[i] = importance[i] * sqrtf(square / LENGTH + x[i] * x[i]);
}

/* Codes -most .. most - 1 by several scales, for each the least squares scale: the one that loses least. */
static line fit_symmetric(const float *x, const float *weight, float most) {
    float extreme = 0, best = -1;
    line fit = {0};
    for (int i = 0; i < LENGTH; i++) extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    for (int k = -9; k <= 9 && extreme != 0; k++) {
        float by = -(most + 0.1F * (float)k) / extreme, xl = 0, l2 = 0;
        for (int i = 0; i < LENGTH; i++) {
            float l = inside(nearbyintf(by * x[i]), -most, most - 1);
            xl += weight[i] * x[i] * l;
            l2 += weight[i] * l * l;
        }
        if (!(l2 > 0) || !(xl * xl > best * l2)) continue;
        best = xl * xl / l2;
        fit.scale = xl / l2;
    }
    return fit;
}

static float lost_by(const float *x, const float *weight, const float *code, line fit) {
    float sum = 0;
    for (int i = 0; i < LENGTH; i++) {
        float d = x[i] - (fit.scale * code[i] + fit.low);
        sum += weight[i] * (d * d);
    }
    return sum;
}

/* The weighted least squares line through codes; low is at most 0. */
static line line_through(const float *x, const float *weight, const float *code) {
    float w = 0, sx = 0, l1 = 0, l2 = 0, xl = 0;
    for (int i = 0; i < LENGTH; i++) {
        w += weight[i], sx += weight[i] * x[i], l1 += weight[i] * code[i];
        l2 += weight[i] * code[i] * code[i], xl += weight[i] * x[i] * code[i];
    }
    float d = w * l2 - l1 * l1;
    line fit = {.scale = (w * xl - sx * l1) / d, .low = (l2 * sx - l1 * xl) / d};
    if (!(d > 0)) return (line){NAN, NAN};
    return fit.low > 0 ? (line){xl / l2, 0} : fit;
}

/* Codes 0 .. most. */
static line fit_range(const float *x, const float *weight, float most) {
    float low = x[0] < 0 ? x[0] : 0, top = x[0], code[LENGTH], least = INFINITY;
    for (int i = 1; i < LENGTH; i++) low = x[i] < low ? x[i] : low, top = x[i] > top ? x[i] : top;
    line best = {(top - low) / most, low};
    for (int k = -1; k <= 36 && top > low; k++) {
        float by = (k < 0 ? most : most - 0.9F + 0.05F * (float)k) / (top - low);
        for (int i = 0; i < LENGTH; i++) code[i] = inside(nearbyintf(by * (x[i] - low)), 0, most);
        line fit = k < 0 ? best : line_through(x, weight, code);
        float lost = lost_by(x, weight, code, fit);
        if (lost < least) least = lost, best = fit;
    }
    return best;
}

static float put_f16(uint8_t *p, float f) {
    uint16_t h = tm_f32_to_f16(f);
    memcpy(p, &h, 2);
    return tm_f16_to_f32(h);
}

/* Codes for what the line has become as halves. */
static void codes_of(const float *x, line fit, float most, uint8_t code[LENGTH]) {
    for (int i = 0; i < LENGTH; i++)
        code[i] = fit.scale != 0 ? (uint8_t)inside(nearbyintf((x[i] - fit.low) / fit.scale), 0, most) : 0;
}

static void put_nibbles(const uint8_t code[LENGTH], uint8_t *b) {
    for (int i = 0; i < LENGTH / 2; i++) b[i] = (uint8_t)((code[i] & 15) | (code[i + LENGTH / 2] & 15) << 4);
}

static void put_fifths(const uint8_t code[LENGTH], uint8_t *b) {
    uint32_t bits = 0;
    for (int i = 0; i < LENGTH; i++) bits |= (uint32_t)(code[i] >> 4) << i;
    memcpy(b, &bits, sizeof bits);
}

static void symmetric(const float *x, const float *importance, float most, uint8_t *b, uint8_t code[LENGTH]) {
    float weight[LENGTH];
    weigh(x, importance, weight);
    line fit = fit_symmetric(x, weight, most);
    fit.scale = put_f16(b, fit.scale);
    fit.low = -most * fit.scale;
    codes_of(x, fit, 2 * most - 1, code);
    for (int i = 0; i < LENGTH && fit.scale == 0; i++) code[i] = (uint8_t)most;
}

static void ranged(const float *x, const float *importance, float most, uint8_t *b, uint8_t code[LENGTH]) {
    float weight[LENGTH];
    weigh(x, importance, weight);
    line fit = fit_range(x, weight, most);
    fit.scale = put_f16(b, fit.scale), fit.low = put_f16(b + 2, fit.low);
    codes_of(x, fit, most, code);
}

void tm_weigh_q4_0(const float *x, const float *importance, uint8_t *b) {
    uint8_t code[LENGTH];
    symmetric(x, importance, 8, b, code);
    put_nibbles(code, b + 2);
}

void tm_weigh_q5_0(const float *x, const float *importance, uint8_t *b) {
    uint8_t code[LENGTH];
    symmetric(x, importance, 16, b, code);
    put_fifths(code, b + 2);
    put_nibbles(code, b + 6);
}

void tm_weigh_q4_1(const float *x, const float *importance, uint8_t *b) {
    uint8_t code[LENGTH];
    ranged(x, importance, 15, b, code);
    put_nibbles(code, b + 4);
}

void tm_weigh_q5_1(const float *x, const float *importance, uint8_t *b) {
    uint8_t code[LENGTH];
    ranged(x, importance, 31, b, code);
    put_fifths(code, b + 4);
    put_nibbles(code, b + 8);
}
