/* float32 to the block types of GGUF: the table of those that are written, and the simple ones. ggml's reference
 * quantisers (quantize_row_q8_0_ref and the like), byte for byte. The layouts are blocks.c's. */
#include "format/format_internal.h"

#include <math.h>
#include <string.h>

static inline void store_f16(uint8_t *p, float f) {
    uint16_t h = tm_f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* A float as an integer in [lo, hi], towards zero; also where a tiny scale made it infinite or NaN. */
static inline int clamp_int(float v, int lo, int hi) {
    return v >= (float)hi ? hi : v > (float)lo ? (int)v : lo;
}

static void encode_q8_0(const float *x, uint8_t *b) {
    float amax = 0;
    for (int i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[i]));
    float d = amax / 127, id = d != 0 ? 1 / d : 0;
    store_f16(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(int8_t)clamp_int(roundf(x[i] * id), -127, 127);
}

/* Of a block: the value of largest magnitude, sign kept; the least and the largest. */
static float extreme_of(const float *x) {
    float extreme = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    return extreme;
}
static float range_of(const float *x, float *min) {
    float max = *min = x[0];
    for (int i = 1; i < 32; i++) {
        *min = x[i] < *min ? x[i] : *min;
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/* The value of largest magnitude becomes code 0, that is -8. */
static void encode_q4_0(const float *x, uint8_t *b) {
    float d = extreme_of(x) / -8, id = d != 0 ? 1 / d : 0;
    store_f16(b, d);
    for (int i = 0; i < 16; i++) {
        int low = clamp_int(x[i] * id + 8.5f, 0, 15), high = clamp_int(x[i + 16] * id + 8.5f, 0, 15);
        b[2 + i] = (uint8_t)(low | high << 4);
    }
}

static void encode_q4_1(const float *x, uint8_t *b) {
    float min, max = range_of(x, &min);
    float d = (max - min) / 15, id = d != 0 ? 1 / d : 0;
    store_f16(b, d);
    store_f16(b + 2, min);
    for (int i = 0; i < 16; i++) {
        int low = clamp_int((x[i] - min) * id + 0.5f, 0, 15), high = clamp_int((x[i + 16] - min) * id + 0.5f, 0, 15);
        b[4 + i] = (uint8_t)(low | high << 4);
    }
}

/* Fifth bits into 32 at `bits`, the rest into nibbles behind them. */
static void put_q5(uint8_t *bits, int i, int low, int high) {
    uint32_t fifth;
    memcpy(&fifth, bits, 4);
    fifth |= (uint32_t)(low >> 4) << i | (uint32_t)(high >> 4) << (i + 16);
    memcpy(bits, &fifth, 4);
    bits[4 + i] = (uint8_t)((low & 15) | (high & 15) << 4);
}

/* As Q4_0, with code 0 for -16. */
static void encode_q5_0(const float *x, uint8_t *b) {
    float d = extreme_of(x) / -16, id = d != 0 ? 1 / d : 0;
    store_f16(b, d);
    memset(b + 2, 0, 4);
    for (int i = 0; i < 16; i++)
        put_q5(b + 2, i, clamp_int(x[i] * id + 16.5f, 0, 31), clamp_int(x[i + 16] * id + 16.5f, 0, 31));
}

static void encode_q5_1(const float *x, uint8_t *b) {
    float min, max = range_of(x, &min);
    float d = (max - min) / 31, id = d != 0 ? 1 / d : 0;
    store_f16(b, d);
    store_f16(b + 2, min);
    memset(b + 4, 0, 4);
    for (int i = 0; i < 16; i++)
        put_q5(b + 4, i, clamp_int((x[i] - min) * id + 0.5f, 0, 31), clamp_int((x[i + 16] - min) * id + 0.5f, 0, 31));
}

static void encode_q4_k(const float *x, uint8_t *b) {
    tm_encode_q4_k(x, NULL, b);
}

static void encode_q5_k(const float *x, uint8_t *b) {
    tm_encode_q5_k(x, NULL, b);
}

static void encode_q6_k(const float *x, uint8_t *b) {
    tm_encode_q6_k(x, NULL, b);
}

/* What is written, a row a type. */
static const struct encoder {
    void (*encode)(const float *x, uint8_t *b); /* one block */
    void (*weigh)(const float *x, const float *importance,
                  uint8_t *b); /* the same by importance; NULL: it has no say */
    uint8_t half[2];           /* where the block has its halves, scale and minimum */
    tm_fmt instead;            /* for rows that are no whole blocks, as llama.cpp does; there is no third: F16 */
} encoders[TM_FMT_COUNT] = {
    [TM_FMT_Q8_0] = {encode_q8_0, NULL, {0, 0}, TM_FMT_F16},
    [TM_FMT_Q4_0] = {encode_q4_0, tm_weigh_q4_0, {0, 0}, TM_FMT_F16},
    [TM_FMT_Q4_1] = {encode_q4_1, tm_weigh_q4_1, {0, 2}, TM_FMT_F16},
    [TM_FMT_Q5_0] = {encode_q5_0, tm_weigh_q5_0, {0, 0}, TM_FMT_F16},
    [TM_FMT_Q5_1] = {encode_q5_1, tm_weigh_q5_1, {0, 2}, TM_FMT_F16},
    [TM_FMT_Q4_K] = {encode_q4_k, tm_encode_q4_k, {0, 2}, TM_FMT_Q5_0},
    [TM_FMT_Q5_K] = {encode_q5_k, tm_encode_q5_k, {0, 2}, TM_FMT_Q5_1},
    [TM_FMT_Q6_K] = {encode_q6_k, tm_encode_q6_k, {208, 208}, TM_FMT_Q8_0},
};

bool tm_block_is_weighed(tm_fmt fmt) {
    return encoders[fmt].weigh != NULL;
}

bool tm_block_is_written(tm_fmt fmt) {
    return encoders[fmt].encode != NULL;
}

tm_fmt tm_block_for_rows(tm_fmt fmt, uint64_t width) {
    while (width % tm_fmt_get(fmt)->block != 0) fmt = encoders[fmt].encode ? encoders[fmt].instead : TM_FMT_F16;
    return fmt;
}

static tm_status too_large(tm_fmt fmt) {
    return tm_fail(TM_EINPUT, "values are too large for %s, whose scales are halves; take bf16 or f32",
                   tm_fmt_get(fmt)->name);
}

/* Quantisers square values; what no type comes near goes before. */
static tm_status check_values(tm_fmt fmt, const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (fabsf(values[i]) < 1e15f) continue;
        return isfinite(values[i])
                   ? too_large(fmt)
                   : tm_fail(TM_EINPUT, "a value that is not finite cannot be stored as %s", tm_fmt_get(fmt)->name);
    }
    return TM_OK;
}

/* No f16 holds a scale so large, and values of the block would not be finite: an exponent is full. */
static bool overflows(const struct encoder *e, const uint8_t *b) {
    uint16_t scale, min;
    memcpy(&scale, b + e->half[0], 2);
    memcpy(&min, b + e->half[1], 2);
    return (scale & 0x7c00) == 0x7c00 || (min & 0x7c00) == 0x7c00;
}

enum { LONGEST_BLOCK = 256 };

/* What columns of a block weigh. A column that no text used weighs little, not nothing, since a scale that only such columns
 * have would become zero and their weights with it. False: none of them was used, and none is before another. */
static bool weights_of(const float *importance, size_t n, float weight[LONGEST_BLOCK]) {
    static const float least = 1e-6F; /* of the largest */
    float largest = 0;
    for (size_t i = 0; i < n; i++) largest = importance[i] > largest ? importance[i] : largest;
    for (size_t i = 0; i < n; i++) weight[i] = importance[i] > least * largest ? importance[i] : least * largest;
    return largest > 0;
}

tm_status tm_block_encode(tm_fmt fmt, const float *values, size_t n, const tm_encode_by *by, uint8_t *out) {
    const tm_fmt_info *t = tm_fmt_get(fmt);
    const struct encoder *e = &encoders[fmt];
    if (!e->encode)
        return tm_fail(TM_EUNSUPPORTED, "writing %s is not supported; take f32, bf16, f16 or a type of --dtype",
                       t->name);
    TM_ASSERT(n % t->block == 0);
    TM_TRY(check_values(fmt, values, n));
    for (size_t i = 0; i < n / t->block; i++) {
        uint8_t *block = out + i * t->block_bytes;
        const float *x = values + i * t->block;
        float weight[LONGEST_BLOCK];
        if (by && by->importance && e->weigh &&
            weights_of(by->importance + (by->first + i * t->block) % by->width, t->block, weight))
            e->weigh(x, weight, block);
        else
            e->encode(x, block);
        if (overflows(e, block)) return too_large(fmt);
    }
    return TM_OK;
}
