/* Packed matrices: the blocks' values, a column of functions for each ISA made of the same lines by the compiler, and rows of
 * any packing. Layouts and order of operations are ggml's (ggml-common.h, dequantize_row_* of ggml-quants.c). */
#include "kernels/packed.h"
#include "kernels/kernels_internal.h"

#include <string.h>

enum { LARGEST_BLOCK = 256, SPAN = 512 /* a whole number of any block */ };

static const tm_packing_traits traits[TM_PACKINGS] = {
    [TM_PACKED_F32] = {"F32", 1, 4},       [TM_PACKED_BF16] = {"BF16", 1, 2},     [TM_PACKED_F16] = {"F16", 1, 2},
    [TM_PACKED_Q8_0] = {"Q8_0", 32, 34},   [TM_PACKED_Q4_0] = {"Q4_0", 32, 18},   [TM_PACKED_Q4_1] = {"Q4_1", 32, 20},
    [TM_PACKED_Q5_0] = {"Q5_0", 32, 22},   [TM_PACKED_Q5_1] = {"Q5_1", 32, 24},   [TM_PACKED_Q4_K] = {"Q4_K", 256, 144},
    [TM_PACKED_Q5_K] = {"Q5_K", 256, 176}, [TM_PACKED_Q6_K] = {"Q6_K", 256, 210}, [TM_PACKED_BITS4] = {"NF4", 0, 0}};

const tm_packing_traits *tm_packing_of(tm_packed_type p) {
    TM_ASSERT(p > TM_PACKED_NOT && p < TM_PACKINGS);
    return &traits[p];
}

/* ---- blocks ---- */

#define LINES __attribute__((always_inline)) static inline

/* As kernels.widen_f16, of one: exact, so that every column has the same. */
LINES float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    uint32_t magnitude = h & 0x7fffU, sign = (uint32_t)(h & 0x8000U) << 16, bits;
    float small = (float)magnitude * 0x1p-24F;
    memcpy(&bits, &small, 4);
    if (magnitude >= 0x400) bits = (magnitude + (112U << 10)) << 13;
    if (magnitude >= 0x7c00) bits = 0x7f800000U | magnitude << 13;
    bits |= sign;
    memcpy(&small, &bits, 4);
    return small;
}

/* f16 d; 32 signed bytes */
LINES void q8_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* f16 d; 16 bytes: element i in the low nibble of byte i, element i + 16 in its high nibble */
LINES void q4_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int i = 0; i < 16; i++) y[i] = (float)((b[2 + i] & 15) - 8) * d;
    for (int i = 0; i < 16; i++) y[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
}

/* f16 d, m; nibbles as above */
LINES void q4_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) y[i] = (float)(b[4 + i] & 15) * d + m;
    for (int i = 0; i < 16; i++) y[i + 16] = (float)(b[4 + i] >> 4) * d + m;
}

/* The fifth bits of 32 elements as bytes of 0 or 16. */
LINES void fifth_bits(const uint8_t *b, uint8_t out[32]) {
    uint32_t bits;
    memcpy(&bits, b, 4);
    for (int i = 0; i < 32; i++) out[i] = (uint8_t)((bits >> i & 1) << 4);
}

/* f16 d; fifth bits; nibbles as those of Q4_0 */
LINES void q5_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    uint8_t high[32];
    fifth_bits(b + 2, high);
    for (int i = 0; i < 16; i++) y[i] = (float)(((b[6 + i] & 15) | high[i]) - 16) * d;
    for (int i = 0; i < 16; i++) y[i + 16] = (float)(((b[6 + i] >> 4) | high[i + 16]) - 16) * d;
}

/* f16 d, m; as above */
LINES void q5_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    uint8_t high[32];
    fifth_bits(b + 4, high);
    for (int i = 0; i < 16; i++) y[i] = (float)((b[8 + i] & 15) | high[i]) * d + m;
    for (int i = 0; i < 16; i++) y[i + 16] = (float)((b[8 + i] >> 4) | high[i + 16]) * d + m;
}

/* Sub-block j's 6-bit scale and minimum, out of 12 bytes: the first four lie in the low 6 bits of bytes 0..3 and 4..7;
 * of the others the low 4 bits lie in bytes 8..11 and the high 2 in the upper bits of bytes 0..7. */
LINES void k_scale(const uint8_t *s, int j, uint8_t *scale, uint8_t *min) {
    *scale = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4);
}

/* f16 d, dmin; 12 bytes of scales; 128 bytes: of each 32, the low nibbles are sub-block 2k, the high ones 2k + 1 */
LINES void q4_k(const uint8_t *b, float *y) {
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        const uint8_t *q = b + 16 + j / 2 * 32;
        int shift = j % 2 * 4;
        for (int i = 0; i < 32; i++) y[32 * j + i] = ds * (float)(q[i] >> shift & 15) - m;
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte i is element i's of sub-block j. */
LINES void q5_k(const uint8_t *b, float *y) {
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        const uint8_t *fifth = b + 16, *q = b + 48 + j / 2 * 32;
        int shift = j % 2 * 4;
        for (int i = 0; i < 32; i++) y[32 * j + i] = ds * (float)((q[i] >> shift & 15) | (fifth[i] >> j & 1) << 4) - m;
    }
}

/* 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 d. In each half of 128 elements, quarter k of
 * 32 takes nibble k / 2 of bytes (k % 2) * 32 + i, and bits 2k of byte i of the pairs; a scale serves 16 elements. */
LINES void q6_k(const uint8_t *b, float *y) {
    float d = half_at(b + 208);
    for (int j = 0; j < 16; j++) {
        int half = j / 8, k = j % 8, by = k / 4 * 4, pair = k / 2 * 2;
        const uint8_t *l = b + half * 64 + k / 2 % 2 * 32 + k % 2 * 16, *h = b + 128 + half * 32 + k % 2 * 16;
        float ds = d * (float)(int8_t)b[192 + j];
        for (int i = 0; i < 16; i++) y[j * 16 + i] = ds * (float)(((l[i] >> by & 15) | (h[i] >> pair & 3) << 4) - 32);
    }
}

#define EACH_BLOCK(X, column)                                                                                          \
    X(Q8_0, q8_0, column)                                                                                              \
    X(Q4_0, q4_0, column)                                                                                              \
    X(Q4_1, q4_1, column)                                                                                              \
    X(Q5_0, q5_0, column) X(Q5_1, q5_1, column) X(Q4_K, q4_k, column) X(Q5_K, q5_k, column) X(Q6_K, q6_k, column)
#define FUNCTION(NAME, lines, column)                                                                                  \
    ISA_##column static void lines##_##column(const uint8_t *b, size_t blocks, float *y) {                             \
        for (size_t i = 0; i < blocks; i++)                                                                            \
            lines(b + i * traits[TM_PACKED_##NAME].block_bytes, y + i * traits[TM_PACKED_##NAME].block);               \
    }
#define ROW(NAME, lines, column) t->unpack[TM_PACKED_##NAME] = lines##_##column;
#define COLUMN(column)                                                                                                 \
    EACH_BLOCK(FUNCTION, column)                                                                                       \
    void kernels_packed_##column(kernels_table *t) {                                                                   \
        EACH_BLOCK(ROW, column)                                                                                        \
    }

#define ISA_ref
COLUMN(ref)
#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#define ISA_avx2 __attribute__((target("avx2,fma")))
/* clang 14 knows no preferred width; it takes the one that it finds best */
#ifdef __clang__
#define ISA_avx512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#else
#define ISA_avx512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")))
#endif
COLUMN(avx2)
COLUMN(avx512)
#else
void kernels_packed_avx2(kernels_table *t) {
    (void)t;
}
void kernels_packed_avx512(kernels_table *t) {
    (void)t;
}
#endif

/* ---- rows ---- */

static void plain_values(const tm_packed *p, const uint8_t *x, size_t n, float *out) {
    uint16_t some[SPAN];
    if (p->packing == TM_PACKED_F32) {
        memcpy(out, x, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i += SPAN) { /* files know no alignment */
        size_t m = tm_min_u64(SPAN, n - i);
        memcpy(some, x + 2 * i, 2 * m);
        (p->packing == TM_PACKED_F16 ? kernels.widen_f16 : kernels.widen)(some, out + i, m);
    }
}

/* Elements [at, at + n) of a row that begins at x; a block that they do not have whole is decoded beside. */
static void floats(const tm_packed *p, const uint8_t *x, uint64_t at, size_t n, float *out) {
    const tm_packing_traits *t = &traits[p->packing];
    float one[LARGEST_BLOCK];
    x += at / t->block * t->block_bytes;
    if (t->block == 1) {
        plain_values(p, x, n, out);
        return;
    }
    for (size_t done = 0, take; done < n; done += take) {
        size_t skip = (at + done) % t->block, whole = skip ? 0 : (n - done) / t->block;
        if (whole) {
            kernels.unpack[p->packing](x, whole, out + done);
            take = whole * t->block;
        } else {
            take = tm_min_u64(n - done, t->block - skip);
            kernels.unpack[p->packing](x, 1, one);
            memcpy(out + done, one + skip, take * sizeof *out);
        }
        x += (skip + take) / t->block * t->block_bytes;
    }
}

void tm_packed_values(const tm_packed *p, uint64_t row, uint64_t at, size_t n, tm_elem to, void *out) {
    const tm_packing_traits *t = tm_packing_of(p->packing);
    uint64_t stored = tm_packed_row(p, row);
    if (p->packing == TM_PACKED_BITS4) {
        tm_nf4_values(&p->nf4, stored * p->k + at, n, to, out);
        return;
    }
    const uint8_t *x = (const uint8_t *)p->data + stored * (p->k / t->block * t->block_bytes);
    bool same = t->block == 1 && (p->packing == TM_PACKED_F32    ? to == TM_ELEM_F32
                                  : p->packing == TM_PACKED_BF16 ? to == TM_ELEM_BF16
                                                                 : to == TM_ELEM_F16);
    if (same) {
        memcpy(out, x + at * t->block_bytes, n * t->block_bytes);
        return;
    }
    if (to == TM_ELEM_F32) {
        floats(p, x, at, n, out);
        return;
    }
    float some[SPAN];
    for (size_t done = 0, take; done < n; done += take) {
        take = tm_min_u64(n - done, SPAN - (at + done) % SPAN);
        floats(p, x, at + done, take, some);
        kernels_narrow(to, some, (uint16_t *)out + done, take);
    }
}
