/* Bit patterns of fp32, bf16 and fp16, and the split master's integer arithmetic. Private to this folder. */
#ifndef TIDEMILL_OPTIM_BITS_H
#define TIDEMILL_OPTIM_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline __attribute__((always_inline)) uint32_t f32_bits(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
static inline __attribute__((always_inline)) float f32_from(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}
static inline __attribute__((always_inline)) float bf16_value(uint16_t b) {
    return f32_from((uint32_t)b << 16);
}

/* hi = top + (lo >> 15): adding half a unit of the upper half and cutting. */
static inline __attribute__((always_inline)) uint16_t split_hi(uint32_t bits) {
    return (uint16_t)((bits + 0x8000u) >> 16);
}
static inline __attribute__((always_inline)) uint32_t split_join(uint16_t hi, uint16_t lo) {
    return (((uint32_t)hi - ((uint32_t)lo >> 15)) << 16) | lo;
}

/* Nearest even. A NaN keeps its upper payload and becomes quiet, so that it cannot round to infinity. */
static inline __attribute__((always_inline)) uint16_t bf16_round(float x) {
    uint32_t b = f32_bits(x);
    uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    uint32_t quiet = (b >> 16) | 0x40u;
    return (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* fp16. Chosen, not branched on, so that loops over these vectorise. Below 2^-14 a half is a multiple of 2^-24, which
 * is the last place of 0.5: adding 0.5 rounds to it, taking 0.5 away gives its value. */
static inline __attribute__((always_inline)) float f16_value(uint16_t h) {
    uint32_t magnitude = h & 0x7fffu, m = h & 0x3ffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t small = f32_bits(f32_from(0x3f000000u | m) - 0.5f);
    uint32_t large = 0x7f800000u | m << 13 | (m ? 0x400000u : 0);
    uint32_t bits = magnitude < 0x400u ? small : magnitude < 0x7c00u ? normal : large;
    return f32_from(bits | (uint32_t)(h & 0x8000u) << 16);
}

/* Nearest even; infinite from 65520 on. A NaN keeps its upper payload and becomes quiet. */
static inline __attribute__((always_inline)) uint16_t f16_round(float x) {
    uint32_t b = f32_bits(x), m = b & 0x7fffffffu;
    uint32_t normal = (m - (112u << 23) + 0xfffu + (m >> 13 & 1u)) >> 13;
    uint32_t small = f32_bits(f32_from(m) + 0.5f) - 0x3f000000u;
    uint32_t quiet = 0x7e00u | (m >> 13 & 0x1ffu);
    uint32_t large = m > 0x7f800000u ? quiet : 0x7c00u;
    uint32_t rounded = m < 0x38800000u ? small : m < 0x47800000u ? normal : large;
    return (uint16_t)(rounded | (b >> 16 & 0x8000u));
}
static inline __attribute__((always_inline)) bool f16_is_finite(uint16_t h) {
    return (h & 0x7c00u) != 0x7c00u;
}

static inline __attribute__((always_inline)) uint32_t f32_magnitude(float x) {
    return f32_bits(x) & 0x7fffffffu;
}
enum { F32_INF_BITS = 0x7f800000 };

#endif
