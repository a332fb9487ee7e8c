/* Panels of bf16 multiplied by AVX-512 BF16, for CPUs that have it and no AMX: 8 rows x 32 columns of sums lie in registers, and
 * a pair of depths is two loads and eight broadcasts for sixteen products. The instruction takes denormals for zero, and makes
 * none. */
#include "kernels/gemm_bf16_internal.h"

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <immintrin.h>
#include <string.h>
#define BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#define INLINE BF16 __attribute__((always_inline)) static inline

enum { QUARTER = BF16_TILE / 2, STEP = 2 * BF16_TILE, PAIRS = BF16_DEPTHS / 2, ROWS = 8 };

/* A pair of depths of a line, as often as there are lanes. */
INLINE __m512bh pair(const uint16_t *x) {
    int32_t both;
    memcpy(&both, x, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

/* Rows of one tile of A, from `a` on, and the even and the odd columns of B. */
INLINE void multiply_rows(const uint16_t *a, const uint16_t *b, size_t depth, bool add, float *sums,
                          bf16_ahead asked[BF16_ASKED]) {
    __m512 even[ROWS], odd[ROWS];
    for (int r = 0; r < ROWS; r++) {
        even[r] = add ? _mm512_loadu_ps(sums + r * 16) : _mm512_setzero_ps();
        odd[r] = add ? _mm512_loadu_ps(sums + QUARTER + r * 16) : _mm512_setzero_ps();
    }
    for (size_t k = 0; k < depth; k += BF16_DEPTHS, a += STEP, b += STEP) {
        bf16_ask(&asked[BF16_NEXT_A]);
        bf16_ask(&asked[BF16_NEXT_B]);
        bf16_ask(&asked[BF16_ROWS_OF_C]);
        bf16_ask_near(&asked[BF16_NEXT_SUMS]);
        for (int p = 0; p < PAIRS; p++) {
            __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + p * 32),
                     b1 = (__m512bh)_mm512_loadu_si512(b + BF16_TILE + p * 32);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                __m512bh x = pair(a + r * BF16_DEPTHS + 2 * p);
                even[r] = _mm512_dpbf16_ps(even[r], x, b0);
                odd[r] = _mm512_dpbf16_ps(odd[r], x, b1);
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        _mm512_storeu_ps(sums + r * 16, even[r]);
        _mm512_storeu_ps(sums + QUARTER + r * 16, odd[r]);
    }
}

BF16 static void multiply(const uint16_t *a, const uint16_t *b, size_t depth, bool add, float *sums,
                          bf16_ahead asked[BF16_ASKED]) {
    for (size_t half = 0; half < 2; half++)
        for (size_t r = 0; r < BF16_TILE_ROWS; r += ROWS)
            multiply_rows(a + half * BF16_TILE + r * BF16_DEPTHS, b, depth, add, sums + half * 2 * QUARTER + r * 16,
                          asked);
}

/* 16 rows of B, each with the sums of its own over the rows of A. */
INLINE void multiply_few_rows(const bf16_few_rows *f, size_t row) {
    __mmask16 side = (__mmask16)(0xffffU >> (16 - f->side));
    float *sums = f->sums + row * f->side;
    const uint16_t *b = f->b + row * f->ld, *a = f->a;
    __m512 c[BF16_TILE_ROWS];
    for (size_t r = 0; r < BF16_TILE_ROWS; r++)
        c[r] = f->add ? _mm512_maskz_loadu_ps(side, sums + r * f->side) : _mm512_setzero_ps();
    for (size_t i = 0; i < f->steps; i++, b += BF16_DEPTHS)
        for (int p = 0; p < PAIRS; p++, a += 2 * f->side) {
            __m512bh x = (__m512bh)_mm512_maskz_loadu_epi32(side, a);
#pragma GCC unroll 16
            for (size_t r = 0; r < BF16_TILE_ROWS; r++) c[r] = _mm512_dpbf16_ps(c[r], x, pair(b + r * f->ld + 2 * p));
        }
    for (size_t r = 0; r < BF16_TILE_ROWS; r++) _mm512_mask_storeu_ps(sums + r * f->side, side, c[r]);
}

BF16 static void multiply_few(const bf16_few_rows *f) {
    for (size_t row = 0; row < 4 * BF16_TILE_ROWS; row += BF16_TILE_ROWS) multiply_few_rows(f, row);
}

static void begin(size_t side) {
    (void)side;
}
static void end(void) {}
static bool there(void) {
    return kernels.level == KERNELS_AVX512 && kernels_has_bf16();
}

static const bf16_way way = {.name = "avx512bf16",
                             .passes = 2 * BF16_TILE_ROWS / ROWS,
                             .there = there,
                             .begin = begin,
                             .end = end,
                             .multiply = multiply,
                             .multiply_few = multiply_few};

static gemm_opened open_avx512bf16(unsigned threads, tm_elem products) {
    return bf16_open(&way, threads, products);
}

/* Intel's cores start the instruction every other cycle, and FMA in fp32 twice a cycle: there a library of fp32 is faster
 * although it is handed widened operands, and only what has no library is better off here. */
static int preference(tm_elem products) {
    enum { BELOW_OPENBLAS = 8 };
    if (products != TM_ELEM_BF16 || !there()) return 0;
    return __builtin_cpu_is("intel") ? BELOW_OPENBLAS : 30;
}

const gemm_backend gemm_avx512bf16 = {.name = "avx512bf16",
                                      .preference = preference,
                                      .open = open_avx512bf16,
                                      .run = bf16_run,
                                      .describe = bf16_describe,
                                      .resident_bytes = bf16_resident_bytes,
                                      .close = bf16_close};
#endif
