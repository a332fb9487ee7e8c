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

#endif
