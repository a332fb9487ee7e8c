/* Stored types: their table, and the plain ones to float32 and back. */
#include "format/format_internal.h"

#include <string.h>
#include <strings.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the formats are little-endian, and so must be the machine"
#endif

static const tm_fmt_info table[TM_FMT_COUNT] = {
    /* name, block, bytes, ggml, safetensors, readable */
    [TM_FMT_F32] = {"F32", 1, 4, 0, true, true},
    [TM_FMT_BF16] = {"BF16", 1, 2, 30, true, true},
    [TM_FMT_F16] = {"F16", 1, 2, 1, true, true},
    [TM_FMT_F64] = {"F64", 1, 8, 28, true, true},
    [TM_FMT_F8_E4M3] = {"F8_E4M3", 1, 1, -1, true, true},
    [TM_FMT_F8_E5M2] = {"F8_E5M2", 1, 1, -1, true, true},
    [TM_FMT_F8_E8M0] = {"F8_E8M0", 1, 1, -1, true, true},
    [TM_FMT_I64] = {"I64", 1, 8, 27, true, true},
    [TM_FMT_I32] = {"I32", 1, 4, 26, true, true},
    [TM_FMT_I16] = {"I16", 1, 2, 25, true, true},
    [TM_FMT_I8] = {"I8", 1, 1, 24, true, true},
    [TM_FMT_U64] = {"U64", 1, 8, -1, true, true},
    [TM_FMT_U32] = {"U32", 1, 4, -1, true, true},
    [TM_FMT_U16] = {"U16", 1, 2, -1, true, true},
    [TM_FMT_U8] = {"U8", 1, 1, -1, true, true},
    [TM_FMT_BOOL] = {"BOOL", 1, 1, -1, true, true},
    [TM_FMT_C64] = {"C64", 1, 8, -1, true, false},
    [TM_FMT_Q8_0] = {"Q8_0", 32, 34, 8, false, true},
    [TM_FMT_Q4_0] = {"Q4_0", 32, 18, 2, false, true},
    [TM_FMT_Q4_1] = {"Q4_1", 32, 20, 3, false, true},
    [TM_FMT_Q4_K] = {"Q4_K", 256, 144, 12, false, true},
    [TM_FMT_Q6_K] = {"Q6_K", 256, 210, 14, false, true},
    [TM_FMT_Q5_0] = {"Q5_0", 32, 22, 6, false, true},
    [TM_FMT_Q5_1] = {"Q5_1", 32, 24, 7, false, true},
    [TM_FMT_Q8_1] = {"Q8_1", 32, 36, 9, false, false},
    [TM_FMT_Q2_K] = {"Q2_K", 256, 84, 10, false, true},
    [TM_FMT_Q3_K] = {"Q3_K", 256, 110, 11, false, true},
    [TM_FMT_Q5_K] = {"Q5_K", 256, 176, 13, false, true},
    [TM_FMT_Q8_K] = {"Q8_K", 256, 292, 15, false, false},
    [TM_FMT_IQ2_XXS] = {"IQ2_XXS", 256, 66, 16, false, false},
    [TM_FMT_IQ2_XS] = {"IQ2_XS", 256, 74, 17, false, false},
    [TM_FMT_IQ3_XXS] = {"IQ3_XXS", 256, 98, 18, false, false},
    [TM_FMT_IQ1_S] = {"IQ1_S", 256, 50, 19, false, false},
    [TM_FMT_IQ4_NL] = {"IQ4_NL", 32, 18, 20, false, true},
    [TM_FMT_IQ3_S] = {"IQ3_S", 256, 110, 21, false, false},
    [TM_FMT_IQ2_S] = {"IQ2_S", 256, 82, 22, false, false},
    [TM_FMT_IQ4_XS] = {"IQ4_XS", 256, 136, 23, false, false},
    [TM_FMT_IQ1_M] = {"IQ1_M", 256, 56, 29, false, false},
    [TM_FMT_TQ1_0] = {"TQ1_0", 256, 54, 34, false, false},
    [TM_FMT_TQ2_0] = {"TQ2_0", 256, 66, 35, false, false},
    [TM_FMT_NF4] = {"NF4", 2, 1, -1, false, false},
    [TM_FMT_FP4] = {"FP4", 2, 1, -1, false, false},
    [TM_FMT_INT4] = {"INT4", 8, 4, -1, false, false},
    [TM_FMT_INT8] = {"INT8", 4, 4, -1, false, false},
    [TM_FMT_AWQ4] = {"AWQ4", 8, 4, -1, false, false},
    [TM_FMT_GPTQ4] = {"GPTQ4", 8, 4, -1, false, false},
    [TM_FMT_GPTQ8] = {"GPTQ8", 4, 4, -1, false, false},
    [TM_FMT_MXFP4] = {"MXFP4", 32, 17, 39, false, false},
};

const tm_fmt_info *tm_fmt_get(tm_fmt fmt) {
    TM_ASSERT(fmt < TM_FMT_COUNT);
    return &table[fmt];
}

bool tm_fmt_is_coded(tm_fmt fmt) {
    return fmt >= TM_FMT_NF4 && fmt < TM_FMT_COUNT;
}

bool tm_fmt_parse(const char *name, tm_fmt *out) {
    for (int i = 0; i < TM_FMT_COUNT; i++)
        if (strcasecmp(name, table[i].name) == 0) {
            *out = (tm_fmt)i;
            return true;
        }
    return false;
}

bool tm_fmt_bytes(tm_fmt fmt, uint64_t elements, uint64_t *bytes) {
    const tm_fmt_info *t = tm_fmt_get(fmt);
    return elements % t->block == 0 && tm_mul_u64(elements / t->block, t->block_bytes, bytes);
}

static inline float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float f16_value(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t normal = (magnitude + ((127 - 15) << 10)) << 13;
    uint32_t special = 0x7f800000u | magnitude << 13;          /* infinity, NaN */
    uint32_t subnormal = bits_of((float)magnitude * 0x1p-24f); /* exact */
    uint32_t bits = magnitude >= 0x7c00 ? special : magnitude < 0x0400 ? subnormal : normal;
    return float_of(sign | bits);
}

static inline uint16_t f16_nearest(float f) {
    uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000, x = bits & 0x7fffffff;
    /* Below 2^-14: adding 0.5, whose unit in the last place is 2^-24, rounds to the grid of the subnormals. */
    uint32_t subnormal = bits_of(float_of(x) + 0.5f) - 0x3f000000u;
    uint32_t normal =
        (x - ((127u - 15) << 23) + 0xfff + (x >> 13 & 1)) >> 13; /* carries into the exponent, up to inf */
    uint32_t h = x > 0x7f800000u ? 0x7e00 : x >= 0x47800000u ? 0x7c00 : x < 0x38800000u ? subnormal : normal;
    return (uint16_t)(sign | h);
}

static inline uint16_t bf16_nearest(float f) {
    uint32_t bits = bits_of(f);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000u ? nan : rounded);
}

float tm_f16_to_f32(uint16_t h) {
    return f16_value(h);
}
uint16_t tm_f32_to_f16(float f) {
    return f16_nearest(f);
}

static inline float bf16_value(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

/* OCP FP8: E4M3 has no infinity (S.1111.111 is NaN); E5M2 is the upper byte of an f16; E8M0 is a power of two. */
static inline float e4m3_value(uint8_t b) {
    unsigned e = b >> 3 & 15, m = b & 7;
    float v = e ? float_of((e + 120) << 23 | m << 20) : (float)m * 0x1p-9f;
    if ((b & 0x7f) == 0x7f) v = float_of(0x7fc00000u);
    return b & 0x80 ? -v : v;
}
static inline float e5m2_value(uint8_t b) {
    return f16_value((uint16_t)(b << 8));
}
static inline float e8m0_value(uint8_t b) {
    return b == 255 ? float_of(0x7fc00000u) : b == 0 ? 0x1p-127f : float_of((uint32_t)b << 23);
}

/* Loads may be unaligned: data in a file begin anywhere. */
#define WIDEN(type, expr)                                                                                              \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        type v;                                                                                                        \
        memcpy(&v, (const uint8_t *)stored + i * sizeof v, sizeof v);                                                  \
        out[i] = (expr);                                                                                               \
    }                                                                                                                  \
    return

void tm_fmt_decode(tm_fmt fmt, const void *stored, size_t n, float *out) {
    switch (fmt) {
    case TM_FMT_F32:
        memcpy(out, stored, n * sizeof *out);
        return;
    case TM_FMT_BF16:
        WIDEN(uint16_t, bf16_value(v));
    case TM_FMT_F16:
        WIDEN(uint16_t, f16_value(v));
    case TM_FMT_F64:
        WIDEN(double, (float)v);
    case TM_FMT_F8_E4M3:
        WIDEN(uint8_t, e4m3_value(v));
    case TM_FMT_F8_E5M2:
        WIDEN(uint8_t, e5m2_value(v));
    case TM_FMT_F8_E8M0:
        WIDEN(uint8_t, e8m0_value(v));
    case TM_FMT_I64:
        WIDEN(int64_t, (float)v);
    case TM_FMT_I32:
        WIDEN(int32_t, (float)v);
    case TM_FMT_I16:
        WIDEN(int16_t, (float)v);
    case TM_FMT_I8:
        WIDEN(int8_t, (float)v);
    case TM_FMT_U64:
        WIDEN(uint64_t, (float)v);
    case TM_FMT_U32:
        WIDEN(uint32_t, (float)v);
    case TM_FMT_U16:
        WIDEN(uint16_t, (float)v);
    case TM_FMT_U8:
        WIDEN(uint8_t, (float)v);
    case TM_FMT_BOOL:
        WIDEN(uint8_t, v ? 1.0f : 0.0f);
    default:
        tm_block_decode(fmt, stored, n, out);
        return;
    }
}

#define NARROW(expr)                                                                                                   \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        uint16_t v = (expr);                                                                                           \
        memcpy((uint8_t *)out + 2 * i, &v, 2);                                                                         \
    }                                                                                                                  \
    return TM_OK

tm_status tm_fmt_encode(tm_fmt fmt, const float *values, size_t n, void *out) {
    switch (fmt) {
    case TM_FMT_F32:
        memcpy(out, values, n * sizeof *values);
        return TM_OK;
    case TM_FMT_BF16:
        NARROW(bf16_nearest(values[i]));
    case TM_FMT_F16:
        NARROW(f16_nearest(values[i]));
    default:
        return tm_block_encode(fmt, values, n, NULL, out);
    }
}
