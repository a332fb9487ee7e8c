/* Block quantisation: codes of 8 or 4 bits under one scale a block. */
#include "comm/sum_internal.h"

#include <math.h>
#include <string.h>

/* What a 4-bit code stands for, in scales. Gradients of a block reach over two decades and more: evenly spaced levels
 * made two thirds of them zero, levels that grow by about two fifths make it a sixth (README, "ZeRO++"). */
static const float level[8] = {0, 1, 2, 4, 6, 9, 13, 18};

static uint64_t block_of(tm_comm_wire wire) {
    return wire == TM_COMM_WIRE_Q4 ? TM_COMM_QUANT_BLOCK_Q4 : TM_COMM_QUANT_BLOCK;
}

static uint64_t scale_bytes(tm_comm_wire wire) {
    return wire == TM_COMM_WIRE_Q4 ? 2 : 4;
}

static uint64_t scales_bytes(tm_comm_wire wire, uint64_t n) {
    uint64_t block = block_of(wire);
    return scale_bytes(wire) * ((n + block - 1) / block);
}

uint64_t tm_comm_quant_bytes(tm_comm_wire wire, uint64_t n) {
    return scales_bytes(wire, n) + (wire == TM_COMM_WIRE_Q4 ? (n + 1) / 2 : n);
}

/* max|x|; NaN if there is a NaN or an infinity. Bit patterns order as magnitudes do. */
static float magnitude(const float *x, uint64_t n) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits &= 0x7fffffffU;
        most = bits > most ? bits : most;
    }
    float value;
    memcpy(&value, &most, 4);
    return most >= 0x7f800000U ? NAN : value;
}

/* Halves to even by adding and taking away 1.5 x 2^23: exact for |x| < 2^22, the same everywhere. */
static int32_t nearest(float x) {
    return (int32_t)((x + 12582912.0F) - 12582912.0F);
}

static void encode8(const float *x, uint64_t n, void *at, int8_t *code) {
    const float scale = magnitude(x, n) / 127;
    bool usable = scale > 0; /* neither NaN nor zeros only */
    for (uint64_t i = 0; i < n; i++) {
        int32_t q = usable ? nearest(x[i] / scale) : 0;
        code[i] = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
    }
    memcpy(at, &scale, 4);
}

static void decode8(const void *at, const int8_t *code, uint64_t n, float *x) {
    float scale;
    memcpy(&scale, at, 4);
    for (uint64_t i = 0; i < n; i++) x[i] = scale * (float)code[i];
}

/* A scale as two bytes: bf16, up, so that the largest value is within the largest level; NaN stays. */
static uint16_t bf16_up(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits > 0x7f800000U ? 0x7fc0U : (bits + 0xffffU) >> 16);
}

static float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The nearest levels; in the middle of two the smaller one. No branches: compilers make vectors of it. */
static void nearest4(const float *restrict x, uint64_t n, float scale, uint8_t *restrict code) {
    float middle[7];
    for (unsigned l = 0; l < 7; l++) middle[l] = scale * (0.5F * (level[l] + level[l + 1]));
    for (uint64_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        int32_t c = 0;
        for (unsigned l = 0; l < 7; l++) c += a > middle[l];
        code[i] = (uint8_t)(c + 8 * ((x[i] < 0) & (c > 0)));
    }
}

static void encode4(const float *x, uint64_t n, void *at, uint8_t *out) {
    uint8_t code[TM_COMM_QUANT_BLOCK_Q4 + 1];
    const uint16_t half = bf16_up(magnitude(x, n) / level[7]);
    nearest4(x, n, widen(half), code);
    code[n] = 0; /* the half of the last byte that nobody reads */
    for (uint64_t i = 0; i < n; i += 2) out[i / 2] = (uint8_t)(code[i] | code[i + 1] << 4);
    memcpy(at, &half, 2);
}

static void decode4(const void *at, const uint8_t *in, uint64_t n, float *x) {
    uint16_t half;
    memcpy(&half, at, 2);
    float value[16]; /* of each code: NaN throughout where the scale is one */
    for (unsigned l = 0; l < 8; l++) value[l] = widen(half) * level[l], value[l + 8] = -value[l];
    for (uint64_t i = 0; i < n; i++) x[i] = value[i % 2 ? in[i / 2] >> 4 : in[i / 2] & 15];
}

void comm_quantise_part(tm_comm_wire wire, const float *x, uint64_t all, uint64_t at, uint64_t n, void *out) {
    const uint64_t block = block_of(wire);
    uint8_t *scale = (uint8_t *)out + at / block * scale_bytes(wire), *code = (uint8_t *)out + scales_bytes(wire, all);
    for (uint64_t i = 0; i < n; i += block, scale += scale_bytes(wire)) {
        uint64_t m = tm_min_u64(block, n - i);
        if (wire == TM_COMM_WIRE_Q4)
            encode4(x + i, m, scale, code + (at + i) / 2);
        else
            encode8(x + i, m, scale, (int8_t *)code + at + i);
    }
}

void tm_comm_quantise(tm_comm_wire wire, const float *x, uint64_t n, void *out) {
    comm_quantise_part(wire, x, n, 0, n, out);
}

void comm_dequantise_part(tm_comm_wire wire, const void *in, uint64_t all, uint64_t at, uint64_t n, float *x) {
    const uint64_t block = block_of(wire);
    const uint8_t *scale = (const uint8_t *)in + at / block * scale_bytes(wire);
    const uint8_t *code = (const uint8_t *)in + scales_bytes(wire, all);
    for (uint64_t i = 0; i < n; i += block, scale += scale_bytes(wire)) {
        uint64_t m = tm_min_u64(block, n - i);
        if (wire == TM_COMM_WIRE_Q4)
            decode4(scale, code + (at + i) / 2, m, x + i);
        else
            decode8(scale, (const int8_t *)code + at + i, m, x + i);
    }
}

void tm_comm_dequantise(tm_comm_wire wire, const void *in, uint64_t n, float *x) {
    comm_dequantise_part(wire, in, n, 0, n, x);
}
