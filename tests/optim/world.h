/* What the tests of optim share: bit patterns, and values that are hard on floating-point code. */
#ifndef OPTIM_TEST_H
#define OPTIM_TEST_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/optim_internal.h"

static inline uint32_t bits_of(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
static inline float float_of(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}
static inline uint64_t bits_of_double(double x) {
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

typedef struct test_rng {
    uint64_t counter;
    uint32_t word[4];
    int left;
} test_rng;
static inline uint32_t rng_u32(test_rng *r) {
    if (!r->left) {
        tm_philox(0x7465737473ULL, 0, r->counter++, r->word);
        r->left = 4;
    }
    return r->word[--r->left];
}
/* Uniform in [-1, 1) times 2^e, with e uniform in [low, high]. */
static inline float rng_scaled(test_rng *r, int low, int high) {
    float u = (float)((int32_t)(rng_u32(r) >> 8) - (1 << 23)) / (float)(1 << 23);
    return ldexpf(u, low + (int)(rng_u32(r) % (uint32_t)(high - low + 1)));
}

/* fp16 by its definition: multiples of 2^(e - 10), and of 2^-24 below 2^-14. */
static inline double half_value(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}
static inline uint16_t half_nearest(float x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int e = -14;
    if (isnan(x)) return (uint16_t)(sign | 0x7e00 | (bits_of(x) >> 13 & 0x1ff));
    double size = fabs((double)x);
    if (size >= 65520) return sign | 0x7c00;
    if (size >= ldexp(1, -14)) e = ilogb(size);
    return (uint16_t)(sign + (e + 14) * 1024 + (int)rint(ldexp(size, 10 - e)));
}

#endif
