/* Block quantisation: codes of 8 or 4 bits under one scale a block. */
#include "comm/sum_internal.h"

#include <math.h>
#include <string.h>

static uint64_t blocks_of(uint64_t n) {
    return (n + TM_COMM_QUANT_BLOCK - 1) / TM_COMM_QUANT_BLOCK;
}

uint64_t tm_comm_quant_bytes(tm_comm_wire wire, uint64_t n) {
    return 4 * blocks_of(n) + (wire == TM_COMM_WIRE_Q4 ? (n + 1) / 2 : n);
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

/* One block; `most` is the largest code. Returns the scale. */
static float encode_block(const float *x, uint64_t n, int32_t most, int8_t *code) {
    float scale = magnitude(x, n) / (float)most;
    bool usable = scale > 0; /* neither NaN nor zeros only */
    for (uint64_t i = 0; i < n; i++) {
        int32_t q = usable ? nearest(x[i] / scale) : 0;
        code[i] = (int8_t)(q > most ? most : q < -most ? -most : q);
    }
    return scale;
}

static void pack(const int8_t *code, uint64_t n, uint8_t *out) {
    for (uint64_t i = 0; i < n; i += 2) {
        unsigned low = (unsigned)code[i] & 15U, high = i + 1 < n ? (unsigned)code[i + 1] & 15U : 0;
        out[i / 2] = (uint8_t)(low | high << 4);
    }
}

static void unpack(const uint8_t *in, uint64_t n, int8_t *code) {
    for (uint64_t i = 0; i < n; i++) {
        int byte = in[i / 2], nibble = i % 2 ? byte >> 4 : byte & 15;
        code[i] = (int8_t)((nibble ^ 8) - 8);
    }
}

void comm_quantise_block(tm_comm_wire wire, const float *x, uint64_t n, uint64_t at, uint64_t m, void *out) {
    uint8_t *scales = out, *codes = scales + 4 * blocks_of(n);
    int8_t code[TM_COMM_QUANT_BLOCK];
    float scale = encode_block(x, m, wire == TM_COMM_WIRE_Q4 ? 7 : 127, code);
    memcpy(scales + 4 * (at / TM_COMM_QUANT_BLOCK), &scale, 4);
    if (wire == TM_COMM_WIRE_Q4)
        pack(code, m, codes + at / 2);
    else
        memcpy(codes + at, code, m);
}

void tm_comm_quantise(tm_comm_wire wire, const float *x, uint64_t n, void *out) {
    for (uint64_t at = 0; at < n; at += TM_COMM_QUANT_BLOCK)
        comm_quantise_block(wire, x + at, n, at, tm_min_u64(TM_COMM_QUANT_BLOCK, n - at), out);
}

void comm_dequantise_part(tm_comm_wire wire, const void *in, uint64_t n, uint64_t at, uint64_t m, float *x) {
    const uint8_t *scales = in, *codes = scales + 4 * blocks_of(n);
    for (uint64_t i = 0; i < m; i += TM_COMM_QUANT_BLOCK) {
        uint64_t begin = at + i, part = tm_min_u64(TM_COMM_QUANT_BLOCK, m - i);
        int8_t code[TM_COMM_QUANT_BLOCK];
        float scale;
        memcpy(&scale, scales + 4 * (begin / TM_COMM_QUANT_BLOCK), 4);
        if (wire == TM_COMM_WIRE_Q4)
            unpack(codes + begin / 2, part, code);
        else
            memcpy(code, codes + begin, part);
        for (uint64_t k = 0; k < part; k++) x[i + k] = scale * (float)code[k];
    }
}

void tm_comm_dequantise(tm_comm_wire wire, const void *in, uint64_t n, float *x) {
    comm_dequantise_part(wire, in, n, 0, n, x);
}
