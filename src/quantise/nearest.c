/* Symmetric codes of 4 bits: a value is code * scale, codes are -8 .. 7, and a group's largest magnitude is 7.5 scales, as
 * compressed-tensors has it. */
#include "quantise/quantise_internal.h"

#include <math.h>

float nearest_largest(const float *x, uint64_t n) {
    float largest = 0;
    for (uint64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

float nearest_scale(tm_fmt fmt, float largest, double clip) {
    float scale = (float)(clip * (double)largest) / ((float)NEAREST_MOST - 0.5F);
    uint8_t stored[sizeof(float)];
    if (tm_fmt_encode(fmt, &scale, 1, stored) != TM_OK) return scale;
    tm_fmt_decode(fmt, stored, 1, &scale);
    return scale;
}

/* To nearest, ties to even. */
static inline float code_of(float x, float by) {
    const float magic = 0x1.8p23F;
    float v = x * by;
    v = v > -(float)NEAREST_MOST ? v : -(float)NEAREST_MOST;
    v = v < (float)(NEAREST_MOST - 1) ? v : (float)(NEAREST_MOST - 1);
    return (v + magic) - magic;
}

int nearest_code(float x, float scale) {
    return scale > 0 ? (int)code_of(x, 1 / scale) : 0;
}

float nearest_search(tm_fmt fmt, const float *x, uint64_t n, const float *weight) {
    enum { STEPS = 10 };
    float largest = nearest_largest(x, n), best = nearest_scale(fmt, largest, 1), least = INFINITY;
    for (int k = 0; k <= STEPS && largest > 0; k++) {
        float scale = nearest_scale(fmt, largest, 1 - 0.05 * k), by = 1 / scale, sum = 0;
        float part[8] = {0};
        if (!(scale > 0)) break;
        for (uint64_t i = 0; i + 8 <= n; i += 8)
            for (uint64_t j = 0; j < 8; j++) {
                float d = x[i + j] - scale * code_of(x[i + j], by);
                part[j] += weight[i + j] * (d * d);
            }
        for (int j = 0; j < 8; j++) sum += part[j];
        if (sum < least) least = sum, best = scale;
    }
    return best;
}
