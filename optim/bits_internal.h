/* Bit patterns of fp32 and bf16, and the split master's integer arithmetic. Private to this folder. */
#ifndef TIDEMILL_OPTIM_BITS_H
#define TIDEMILL_OPTIM_BITS_H

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

static inline __attribute__((always_inline)) uint32_t f32_magnitude(float x) {
    return f32_bits(x) & 0x7fffffffu;
}
enum { F32_INF_BITS = 0x7f800000 };

#endif
