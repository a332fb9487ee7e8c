/* The block types of GGUF (layouts: reference/ecosystem-and-formats.md section 3, ggml's ggml-common.h) to float32. The
 * order of operations is ggml's, so that the values are too. encode.c and kquants.c are the way back. */
#include "format/format_internal.h"

#include <string.h>

static inline float load_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return tm_f16_to_f32(h);
}

/* f16 d; 32 signed bytes */
static void decode_q8_0(const uint8_t *b, float *y) {
    float d = load_f16(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* f16 d; 16 bytes: element i in the low nibble of byte i, element i + 16 in its high nibble */
static void decode_q4_0(const uint8_t *b, float *y) {
    float d = load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[2 + i] & 15) - 8) * d;
        y[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

/* f16 d, m; nibbles as above */
static void decode_q4_1(const uint8_t *b, float *y) {
    float d = load_f16(b), m = load_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(b[4 + i] & 15) * d + m;
        y[i + 16] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* Sub-block j's 6-bit scale and minimum, out of 12 bytes: the first four lie in the low 6 bits of bytes 0..3 and 4..7;
 * of the others the low 4 bits lie in bytes 8..11 and the high 2 in the upper bits of bytes 0..7. */
static void q4_k_scale(const uint8_t *s, int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* f16 d, dmin; 12 bytes of scales; 128 bytes: of each 32, the low nibbles are sub-block 2k, the high ones 2k + 1 */
static void decode_q4_k(const uint8_t *b, float *y) {
    float d = load_f16(b), dmin = load_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        q4_k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        const uint8_t *q = b + 16 + j / 2 * 32;
        for (int i = 0; i < 32; i++) y[32 * j + i] = ds * (float)(j & 1 ? q[i] >> 4 : q[i] & 15) - m;
    }
}

/* 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 d. In each half of 128 elements, quarter k of
 * 32 takes nibble k / 2 of bytes (k % 2) * 32 + i, and bits 2k of byte i of the pairs; a scale serves 16 elements. */
static void decode_q6_k(const uint8_t *b, float *y) {
    float d = load_f16(b + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
        const int8_t *scale = (const int8_t *)b + 192 + half * 8;
        for (int k = 0; k < 8; k++) { /* halves of quarters: what one scale serves */
            const uint8_t *l = low + k / 2 % 2 * 32 + k % 2 * 16, *h = high + k % 2 * 16;
            float ds = d * (float)scale[k];
            for (int i = 0; i < 16; i++)
                y[half * 128 + k * 16 + i] =
                    ds * (float)(((l[i] >> (k / 4 * 4) & 15) | (h[i] >> (k / 2 * 2) & 3) << 4) - 32);
        }
    }
}

/* 32 bits: the fifth bit of each element; 16 bytes as those of Q4_0 */
static void decode_q5(const uint8_t *b, int bits, float d, float zero, float *y) {
    uint32_t fifth;
    memcpy(&fifth, b + bits, 4);
    const uint8_t *q = b + bits + 4;
    for (int i = 0; i < 16; i++) {
        y[i] = ((float)((q[i] & 15) | (int)(fifth >> i & 1) << 4) - zero) * d;
        y[i + 16] = ((float)((q[i] >> 4) | (int)(fifth >> (i + 16) & 1) << 4) - zero) * d;
    }
}
/* f16 d; bits and bytes */
static void decode_q5_0(const uint8_t *b, float *y) {
    decode_q5(b, 2, load_f16(b), 16, y);
}
/* f16 d, m; bits and bytes */
static void decode_q5_1(const uint8_t *b, float *y) {
    float m = load_f16(b + 2);
    decode_q5(b, 4, load_f16(b), 0, y);
    for (int i = 0; i < 32; i++) y[i] += m;
}

/* f16 d; nibbles as those of Q4_0, which number these values (ggml's kvalues_iq4nl) */
static void decode_iq4_nl(const uint8_t *b, float *y) {
    static const float value[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    float d = load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * value[b[2 + i] & 15];
        y[i + 16] = d * value[b[2 + i] >> 4];
    }
}

/* 16 bytes: of each 16 elements scale and minimum, 4 bits each; 64 bytes of pairs of bits; f16 d, dmin. In each half of
 * 128 elements, quarter k of 32 takes bits 2k of 32 bytes. */
static void decode_q2_k(const uint8_t *b, float *y) {
    float d = load_f16(b + 80), dmin = load_f16(b + 82);
    for (int j = 0; j < 16; j++) {
        float ds = d * (float)(b[j] & 15), m = dmin * (float)(b[j] >> 4);
        const uint8_t *q = b + 16 + j / 8 * 32 + j % 2 * 16;
        for (int i = 0; i < 16; i++) y[16 * j + i] = ds * (float)(q[i] >> (j % 8 / 2 * 2) & 3) - m;
    }
}

/* 32 bytes of third bits, 64 of pairs of bits as those of Q2_K, 12 of scales, f16 d. Bit j / 2 of third byte i belongs
 * to element i of the 32 that sub-blocks j and j + 1 are; where it is 0 the element is 4 less. Of scale j the low 4 bits
 * lie in nibbles of bytes 0..7, the high 2 in pairs of bytes 8..11; it is 32 too large. */
static void decode_q3_k(const uint8_t *b, float *y) {
    float d = load_f16(b + 108);
    for (int j = 0; j < 16; j++) {
        int low = b[96 + j % 8] >> (j / 8 * 4) & 15, high = b[104 + j % 4] >> (j / 4 * 2) & 3;
        float ds = d * (float)((low | high << 4) - 32);
        const uint8_t *third = b + j % 2 * 16, *q = b + 32 + j / 8 * 32 + j % 2 * 16;
        for (int i = 0; i < 16; i++) {
            int pair = q[i] >> (j % 8 / 2 * 2) & 3, four = (third[i] >> (j / 2) & 1) * 4;
            y[16 * j + i] = ds * (float)(pair + four - 4);
        }
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte i is element i's of sub-block j. */
static void decode_q5_k(const uint8_t *b, float *y) {
    float d = load_f16(b), dmin = load_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        q4_k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        const uint8_t *fifth = b + 16, *q = b + 48 + j / 2 * 32;
        for (int i = 0; i < 32; i++)
            y[32 * j + i] = ds * (float)((j & 1 ? q[i] >> 4 : q[i] & 15) | (fifth[i] >> j & 1) << 4) - m;
    }
}

static void (*const decoders[TM_FMT_COUNT])(const uint8_t *b, float *y) = {
    [TM_FMT_Q8_0] = decode_q8_0, [TM_FMT_Q4_0] = decode_q4_0, [TM_FMT_Q4_1] = decode_q4_1,
    [TM_FMT_Q5_0] = decode_q5_0, [TM_FMT_Q5_1] = decode_q5_1, [TM_FMT_IQ4_NL] = decode_iq4_nl,
    [TM_FMT_Q2_K] = decode_q2_k, [TM_FMT_Q3_K] = decode_q3_k, [TM_FMT_Q4_K] = decode_q4_k,
    [TM_FMT_Q5_K] = decode_q5_k, [TM_FMT_Q6_K] = decode_q6_k};

void tm_block_decode(tm_fmt fmt, const uint8_t *stored, size_t n, float *out) {
    const tm_fmt_info *t = tm_fmt_get(fmt);
    TM_ASSERT(t->readable && n % t->block == 0);
    for (size_t i = 0; i < n / t->block; i++) decoders[fmt](stored + i * t->block_bytes, out + i * t->block);
}
