/* The avx512 column: the leaves between products, 16 elements at a time, ends by mask, and attention's products. The others
 * are a library's on such a CPU; transpose and gemm_tile stay avx2's. AVX-512 BF16 and AMX have no leaf of their own: their
 * conversion instructions flush denormals, so rounding stays integer arithmetic; products are gemm_bf16.c's. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#ifdef KERNELS_AVX512_HEADER
#include KERNELS_AVX512_HEADER /* an emulation of the intrinsics, for tests on CPUs without them */
#define AVX512
#else
#include <immintrin.h>
/* Without optimisation some of them are macros, whose conversions of masks would warn here. */
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#endif
#define INLINE AVX512 __attribute__((always_inline)) static inline

/* ---- helpers ---- */

static void (*ref_activate)(tm_activation act, const float *x, float *y, float *slope, size_t n);

/* Lanes of the step at i: all, or those below n. */
INLINE __mmask16 lanes(size_t i, size_t n) {
    return (__mmask16)(n - i >= 16 ? 0xffffU : (1U << (n - i)) - 1);
}
#define EACH(n) for (size_t i = 0; i < (n); i += 16)
#define LANES lanes(i, n)
#define GET(p) _mm512_maskz_loadu_ps(LANES, (p) + i)
#define PUT(p, v) _mm512_mask_storeu_ps((p) + i, LANES, v)
#define SET(x) _mm512_set1_ps(x)

/* The order of avx2's: halves, quarters, pairs. */
INLINE float add_lanes(__m512 v) {
    float x[16];
    _mm512_storeu_ps(x, v);
    for (size_t half = 8; half; half /= 2)
        for (size_t i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
INLINE float max_lanes(__m512 v) {
    float x[16];
    _mm512_storeu_ps(x, v);
    for (size_t i = 1; i < 16; i++) x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
}

/* e^x as in avx2.c. */
INLINE __m512 exp16(__m512 x) {
    __mmask16 keep = _mm512_cmp_ps_mask(x, SET(-87.3F), _CMP_NLT_UQ);
    __m512 v = _mm512_min_ps(SET(88.3F), x); /* second operand wins for NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(v, SET(1.44269504F)), 0x08);
    __m512 r = _mm512_fnmadd_ps(n, SET(0.693359375F), v);
    r = _mm512_fnmadd_ps(n, SET(-2.12194440e-4F), r);
    __m512 p = SET(1.0F / 5040);
    p = _mm512_fmadd_ps(p, r, SET(1.0F / 720));
    p = _mm512_fmadd_ps(p, r, SET(1.0F / 120));
    p = _mm512_fmadd_ps(p, r, SET(1.0F / 24));
    p = _mm512_fmadd_ps(p, r, SET(1.0F / 6));
    p = _mm512_fmadd_ps(p, r, SET(0.5F));
    p = _mm512_fmadd_ps(p, r, SET(1.0F));
    p = _mm512_fmadd_ps(p, r, SET(1.0F));
    __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_maskz_mov_ps(keep, _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent)));
}
INLINE __m512 sigmoid16(__m512 x) {
    return _mm512_div_ps(SET(1.0F), _mm512_add_ps(SET(1.0F), exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* ---- conversions ---- */

AVX512 static void widen(const uint16_t *x, float *y, size_t n) {
    EACH(n) {
        __m512i v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(LANES, x + i));
        PUT(y, _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)));
    }
}

/* Upper halves, rounded to nearest even, as 32-bit lanes with nothing above. */
INLINE __m512i round16(__m512 v) {
    __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    return _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
}

AVX512 static void narrow(const float *x, uint16_t *y, size_t n) {
    EACH(n) _mm256_mask_storeu_epi16(y + i, LANES, _mm512_cvtepi32_epi16(round16(GET(x))));
}

AVX512 static void widen_f16(const uint16_t *x, float *y, size_t n) {
    EACH(n) PUT(y, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(LANES, x + i)));
}

AVX512 static void narrow_f16(const float *x, uint16_t *y, size_t n) {
    EACH(n) _mm256_mask_storeu_epi16(y + i, LANES, _mm512_cvtps_ph(GET(x), _MM_FROUND_TO_NEAREST_INT));
}

/* ---- sums ---- */

AVX512 static float dot(const float *x, const float *y, size_t n) {
    __m512 s0 = _mm512_setzero_ps(), s1 = s0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        s0 = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i), s0);
        s1 = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(y + i + 16), s1);
    }
    for (; i < n; i += 16) s0 = _mm512_fmadd_ps(GET(x), GET(y), s0);
    return add_lanes(_mm512_add_ps(s0, s1));
}

AVX512 static float dot3(const float *x, const float *y, const float *z, size_t n) {
    __m512 s = _mm512_setzero_ps();
    EACH(n) s = _mm512_fmadd_ps(_mm512_mul_ps(GET(x), GET(y)), GET(z), s);
    return add_lanes(s);
}

AVX512 static float max(const float *x, size_t n) {
    __m512 m = SET(-INFINITY);
    EACH(n) m = _mm512_mask_max_ps(m, LANES, m, GET(x));
    return max_lanes(m);
}

AVX512 static float exp_sum(const float *x, float shift, size_t n) {
    __m512 s = _mm512_setzero_ps();
    EACH(n) s = _mm512_mask_add_ps(s, LANES, s, exp16(_mm512_sub_ps(GET(x), SET(shift))));
    return add_lanes(s);
}

/* ---- element by element ---- */

AVX512 static void axpy(float a, const float *x, float *y, size_t n) {
    EACH(n) PUT(y, _mm512_fmadd_ps(SET(a), GET(x), GET(y)));
}

AVX512 static void scale(float a, float *x, size_t n) {
    EACH(n) PUT(x, _mm512_mul_ps(SET(a), GET(x)));
}

AVX512 static void norm_apply(const float *x, const float *w, float inv, float *y, size_t n) {
    EACH(n) PUT(y, _mm512_mul_ps(_mm512_mul_ps(SET(inv), GET(x)), GET(w)));
}

AVX512 static void norm_grad(const float *x, const float *w, const float *dy, float inv, float c, float *dx, float *dw,
                             size_t n) {
    EACH(n) {
        __m512 v = GET(x), g = _mm512_mul_ps(SET(inv), GET(dy));
        PUT(dw, _mm512_fmadd_ps(g, v, GET(dw)));
        PUT(dx, _mm512_fmsub_ps(g, GET(w), _mm512_mul_ps(SET(c), v)));
    }
}

AVX512 static void swiglu(const float *g, const float *u, float *a, size_t n) {
    EACH(n) {
        __m512 v = GET(g);
        PUT(a, _mm512_mul_ps(_mm512_mul_ps(v, sigmoid16(v)), GET(u)));
    }
}

AVX512 static void swiglu_grad(const float *g, const float *u, const float *da, float *a, float *dg, float *du,
                               size_t n) {
    EACH(n) {
        __m512 v = GET(g), up = GET(u), d = GET(da), s = sigmoid16(v), silu = _mm512_mul_ps(v, s);
        __m512 slope = _mm512_mul_ps(s, _mm512_fmadd_ps(v, _mm512_sub_ps(SET(1.0F), s), SET(1.0F)));
        PUT(a, _mm512_mul_ps(silu, up));
        PUT(dg, _mm512_mul_ps(_mm512_mul_ps(d, up), slope));
        PUT(du, _mm512_mul_ps(d, silu));
    }
}

/* gelu_tanh is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). gelu is ref's: it takes an erf. */
AVX512 static void activate(tm_activation act, const float *x, float *y, float *slope, size_t n) {
    if (act == TM_ACT_GELU) {
        ref_activate(act, x, y, slope, n);
        return;
    }
    const __m512 k = SET(1.59576912F), cubic = SET(0.044715F), one = SET(1.0F);
    EACH(n) {
        __m512 v = GET(x), square = _mm512_mul_ps(v, v), u = v, du = one;
        if (act == TM_ACT_GELU_TANH) {
            u = _mm512_mul_ps(_mm512_mul_ps(k, v), _mm512_fmadd_ps(cubic, square, one));
            du = _mm512_mul_ps(k, _mm512_fmadd_ps(_mm512_mul_ps(SET(3), cubic), square, one));
        }
        __m512 s = sigmoid16(u), ds = _mm512_mul_ps(_mm512_mul_ps(s, _mm512_sub_ps(one, s)), du);
        PUT(y, _mm512_mul_ps(v, s));
        if (slope) PUT(slope, _mm512_fmadd_ps(v, ds, s));
    }
}

/* tanh: an odd polynomial near 0, where 2 sigmoid(2z) - 1 would cancel (both within an ulp or two at 0.625). */
AVX512 static void softcap(float *x, float factor, float cap, size_t n) {
    const __m512 f = SET(factor / cap), c = SET(cap), one = SET(1.0F);
    EACH(n) {
        __m512 z = _mm512_mul_ps(GET(x), f), w = _mm512_mul_ps(z, z), p = SET(-5.70498872745e-3F);
        p = _mm512_fmadd_ps(p, w, SET(2.06390887954e-2F));
        p = _mm512_fmadd_ps(p, w, SET(-5.37397155531e-2F));
        p = _mm512_fmadd_ps(p, w, SET(1.33314422036e-1F));
        p = _mm512_fmadd_ps(p, w, SET(-3.33332819422e-1F));
        p = _mm512_fmadd_ps(_mm512_mul_ps(p, w), z, z);
        __m512 far = _mm512_fmsub_ps(SET(2), sigmoid16(_mm512_add_ps(z, z)), one);
        __mmask16 out = _mm512_cmp_ps_mask(w, SET(0.390625F), _CMP_NLT_UQ);
        __m512 both = _mm512_add_ps(_mm512_maskz_mov_ps(out, far), _mm512_maskz_mov_ps((__mmask16)~out, p));
        PUT(x, _mm512_mul_ps(c, both));
    }
}

AVX512 static void rotate(const float *cosine, const float *sine, bool inverse, float *x1, float *x2, size_t n) {
    EACH(n) {
        __m512 c = GET(cosine), s = GET(sine), a = GET(x1), b = GET(x2);
        if (inverse) s = _mm512_sub_ps(_mm512_setzero_ps(), s);
        PUT(x1, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        PUT(x2, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

AVX512 static void softmax_grad(float *x, float lse, float coefficient, size_t n) {
    EACH(n) PUT(x, _mm512_mul_ps(SET(coefficient), exp16(_mm512_sub_ps(GET(x), SET(lse)))));
}

/* ---- attention's rows ---- */

AVX512 static float softmax_row(float *s, float factor, float *running_max, float *running_sum, size_t n) {
    __m512 top = SET(-INFINITY), sum = _mm512_setzero_ps();
    EACH(n) top = _mm512_mask_max_ps(top, LANES, top, _mm512_mul_ps(SET(factor), GET(s)));
    float old = *running_max, most = max_lanes(top), m = most > old ? most : old;
    if (m == -INFINITY) { /* nothing visible yet */
        memset(s, 0, n * sizeof *s);
        return 1.0F;
    }
    EACH(n) {
        __m512 p = exp16(_mm512_sub_ps(_mm512_mul_ps(SET(factor), GET(s)), SET(m)));
        PUT(s, p);
        sum = _mm512_mask_add_ps(sum, LANES, sum, p);
    }
    float back = 1.0F, change[16] = {0};
    if (old != m) {
        _mm512_storeu_ps(change, exp16(SET(old - m)));
        back = change[0];
    }
    *running_max = m;
    *running_sum = *running_sum * back + add_lanes(sum);
    return back;
}

AVX512 static void softmax_row_grad(float *s, float *dp, float factor, float lse, float delta, size_t n) {
    EACH(n) {
        __m512 p = exp16(_mm512_fmsub_ps(SET(factor), GET(s), SET(lse)));
        PUT(s, p);
        PUT(dp, _mm512_mul_ps(_mm512_mul_ps(p, _mm512_sub_ps(GET(dp), SET(delta))), SET(factor)));
    }
}

/* ---- attention's products: every sum in the order of k, as in avx2.c, so that both give the same bits ---- */

/* A tile of 8 x 32 sums in registers, named one by one, since compilers keep arrays of vectors in memory. */
#define ROWS8(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define DECLARE_ROW(r) __m512 s##r##0 = _mm512_setzero_ps(), s##r##1 = s##r##0;
#define LOAD_ROW(r)                                                                                                    \
    if (r < rows) s##r##0 = _mm512_loadu_ps(c + r * ldc), s##r##1 = two ? _mm512_loadu_ps(c + r * ldc + 16) : s##r##1;
#define ADD_ROW(r)                                                                                                     \
    if (r < rows) {                                                                                                    \
        __m512 x = SET(a[r * ras]);                                                                                    \
        s##r##0 = _mm512_fmadd_ps(x, b0, s##r##0);                                                                     \
        if (two) s##r##1 = _mm512_fmadd_ps(x, b1, s##r##1);                                                            \
    }
#define STORE_ROW(r)                                                                                                   \
    if (r < rows) {                                                                                                    \
        _mm512_storeu_ps(c + r * ldc, s##r##0);                                                                        \
        if (two) _mm512_storeu_ps(c + r * ldc + 16, s##r##1);                                                          \
    }

/* `rows` x 32, or x 16, of C, all of k; rows and two are constants at each call. */
INLINE void strip(const size_t rows, const bool two, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                  size_t ldb, float *c, size_t ldc, bool add) {
    ROWS8(DECLARE_ROW)
    if (add) {
        ROWS8(LOAD_ROW)
    }
    for (size_t p = 0; p < k; p++, a += cas, b += ldb) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = two ? _mm512_loadu_ps(b + 16) : b0;
        ROWS8(ADD_ROW)
    }
    ROWS8(STORE_ROW)
}

INLINE void strips(const bool two, size_t m, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                   size_t ldb, float *c, size_t ldc, bool add) {
    size_t i = 0;
    for (; i + 8 <= m; i += 8) strip(8, two, k, a + i * ras, ras, cas, b, ldb, c + i * ldc, ldc, add);
    if (m & 4) strip(4, two, k, a + i * ras, ras, cas, b, ldb, c + i * ldc, ldc, add), i += 4;
    if (m & 2) strip(2, two, k, a + i * ras, ras, cas, b, ldb, c + i * ldc, ldc, add), i += 2;
    if (m & 1) strip(1, two, k, a + i * ras, ras, cas, b, ldb, c + i * ldc, ldc, add);
}

AVX512 static void small_gemm(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                              size_t ldb, float *c, size_t ldc, bool add) {
    size_t j = 0;
    for (; j + 32 <= n; j += 32) strips(true, m, k, a, ras, cas, b + j, ldb, c + j, ldc, add);
    if (j < n) strips(false, m, k, a, ras, cas, b + j, ldb, c + j, ldc, add);
}

/* ---- 4-bit codes: the 16 values of a block are one register, 32 codes look them up at once ---- */

/* 16 bytes of codes, of which `bytes` are there, a byte in each 32-bit lane. */
INLINE __m512i codes16(const uint8_t *codes, size_t bytes) {
    uint8_t all[16] = {0};
    if (bytes < 16) memcpy(all, codes, bytes);
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(bytes < 16 ? all : codes)));
}

/* Where a block ends: of n elements, 32 and more if it goes on. */
INLINE size_t step_bytes(size_t n) {
    return n < 32 ? (n + 1) / 2 : 16;
}
INLINE size_t block_end(const kernels_nf4 *a, size_t from) {
    return a->n - from < a->block ? a->n : from + a->block;
}
INLINE __m512 block_values(const kernels_nf4 *a, size_t from) {
    return _mm512_mul_ps(_mm512_loadu_ps(a->map), SET(a->absmax[from / a->block]));
}

/* The look-up takes 4 bits of a lane and no more, so that the first code of a byte is c >> 4 and the second c itself. */
AVX512 static void nf4_f32(const kernels_nf4 *a, float *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        __m512 values = block_values(a, from);
        size_t end = block_end(a, from);
        for (size_t i = from; i < end; i += 32) {
            __m512i c = codes16(a->codes + i / 2, step_bytes(end - i));
            __m512i both = _mm512_or_si512(_mm512_srli_epi32(c, 4), _mm512_slli_epi32(c, 16));
            __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
            __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
            _mm512_mask_storeu_ps(y + i, lanes(i, end), _mm512_permutexvar_ps(first, values));
            if (end - i > 16)
                _mm512_mask_storeu_ps(y + i + 16, lanes(i + 16, end), _mm512_permutexvar_ps(second, values));
        }
    }
}

/* Every value lies in two 16-bit lanes side by side; the look-up takes 5 bits, whose lowest decides nothing: that is
 * bit 3 of the byte for its first code, and 0 for its second. */
INLINE void nf4_block(const kernels_nf4 *a, size_t from, __m512i rounded, uint16_t *y) {
    __m512i values = _mm512_or_si512(rounded, _mm512_slli_epi32(rounded, 16));
    size_t end = block_end(a, from);
    for (size_t i = from; i < end; i += 32) {
        __m512i c = codes16(a->codes + i / 2, step_bytes(end - i));
        __m512i both = _mm512_or_si512(_mm512_srli_epi32(c, 3), _mm512_slli_epi32(c, 17));
        __m512i found = _mm512_permutexvar_epi16(both, values);
        uint16_t some[32];
        _mm512_storeu_si512(end - i < 32 ? some : y + i, found);
        if (end - i < 32) memcpy(y + i, some, (end - i) * sizeof *y);
    }
}

AVX512 static void nf4_bf16(const kernels_nf4 *a, uint16_t *y) {
    for (size_t from = 0; from < a->n; from += a->block) nf4_block(a, from, round16(block_values(a, from)), y);
}

AVX512 static void nf4_f16(const kernels_nf4 *a, uint16_t *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        __m256i half = _mm512_cvtps_ph(block_values(a, from), _MM_FROUND_TO_NEAREST_INT);
        nf4_block(a, from, _mm512_cvtepu16_epi32(half), y);
    }
}

void kernels_avx512_override(kernels_table *t) {
    t->isa = "avx512";
    t->level = KERNELS_AVX512;
    t->widen = widen;
    t->narrow = narrow;
    t->widen_f16 = widen_f16;
    t->narrow_f16 = narrow_f16;
    t->dot = dot;
    t->dot3 = dot3;
    t->axpy = axpy;
    t->scale = scale;
    t->norm_apply = norm_apply;
    t->norm_grad = norm_grad;
    t->swiglu = swiglu;
    t->swiglu_grad = swiglu_grad;
    ref_activate = t->activate;
    t->activate = activate;
    t->softcap = softcap;
    t->rotate = rotate;
    t->max = max;
    t->exp_sum = exp_sum;
    t->softmax_grad = softmax_grad;
    t->softmax_row = softmax_row;
    t->softmax_row_grad = softmax_row_grad;
    t->small_gemm = small_gemm;
    t->nf4_f32 = nf4_f32;
    t->nf4_bf16 = nf4_bf16;
    t->nf4_f16 = nf4_f16;
}

#else
void kernels_avx512_override(kernels_table *t) {
    (void)t;
}
#endif
