/* The avx2 column: rows of the table that carry the time, with AVX2, FMA and F16C by function attribute, so that the
 * rest of the program runs on CPUs without them. Sums keep a fixed number of lanes and a fixed order of adding them up.
 */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE AVX2 __attribute__((always_inline)) static inline

/* ---- helpers ---- */

/* The first n (< 8) lanes set. */
INLINE __m256i lane_mask(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE float add_lanes(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

INLINE float max_lanes(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static void (*ref_activate)(tm_activation act, const float *x, float *y, float *slope, size_t n);

/* e^x: x = n ln 2 + r with |r| <= ln(2)/2, Taylor to r^7 (relative error 5e-9 before rounding), times 2^n. Below -87.3,
 * where the result would be subnormal, 0; NaN stays NaN. */
INLINE __m256 exp8(__m256 x) {
    const __m256 low = _mm256_set1_ps(-87.3F), high = _mm256_set1_ps(88.3F);
    __m256 keep = _mm256_cmp_ps(x, low, _CMP_NLT_UQ);
    __m256 v = _mm256_min_ps(high, x); /* second operand wins for NaN */
    __m256 n =
        _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(1.44269504F)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375F), v); /* ln 2, its first 10 bits */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4F), r);     /* and the rest */
    __m256 p = _mm256_set1_ps(1.0F / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5F));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
    __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_and_ps(p, keep);
}

INLINE __m256 sigmoid8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0F);
    return _mm256_div_ps(one, _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

/* ---- conversions ---- */

INLINE __m256 widen8(const uint16_t *x) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

AVX2 static void widen(const uint16_t *x, float *y, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, widen8(x + i));
    for (; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(&y[i], &bits, 4);
    }
}

/* Upper halves, rounded to nearest even, as 32-bit lanes. */
INLINE __m256i round8(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
}

AVX2 static void narrow(const float *x, uint16_t *y, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i both = _mm256_packus_epi32(round8(_mm256_loadu_ps(x + i)), round8(_mm256_loadu_ps(x + i + 8)));
        _mm256_storeu_si256((__m256i *)(void *)(y + i), _mm256_permute4x64_epi64(both, 0xd8));
    }
    for (; i < n; i += 8) {
        uint32_t lanes[8];
        size_t m = n - i < 8 ? n - i : 8;
        __m256 v = m == 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, lane_mask(m));
        _mm256_storeu_si256((__m256i *)(void *)lanes, round8(v));
        for (size_t j = 0; j < m; j++) y[i + j] = (uint16_t)lanes[j];
    }
}

AVX2 static void widen_f16(const uint16_t *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        size_t m = n - i < 8 ? n - i : 8;
        if (m == 8) {
            _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
            continue;
        }
        uint16_t rest[8] = {0};
        memcpy(rest, x + i, m * sizeof *rest);
        __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)rest));
        _mm256_maskstore_ps(y + i, lane_mask(m), wide);
    }
}

/* MXCSR does not make the instruction flush: subnormal halves are made and kept. */
AVX2 static void narrow_f16(const float *x, uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        size_t m = n - i < 8 ? n - i : 8;
        __m256 v = m == 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, lane_mask(m));
        uint16_t half[8];
        _mm_storeu_si128((__m128i *)(void *)half, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        memcpy(y + i, half, m * sizeof *half);
    }
}

/* ---- sums ---- */

AVX2 static float dot(const float *x, const float *y, size_t n) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), s0);
        s1 = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8), s1);
        s2 = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 16), _mm256_loadu_ps(y + i + 16), s2);
        s3 = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 24), _mm256_loadu_ps(y + i + 24), s3);
    }
    for (; i < n; i += 8) {
        __m256i mask = lane_mask(n - i < 8 ? n - i : 8);
        s0 = _mm256_fmadd_ps(_mm256_maskload_ps(x + i, mask), _mm256_maskload_ps(y + i, mask), s0);
    }
    return add_lanes(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

AVX2 static float dot3(const float *x, const float *y, const float *z, size_t n) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i));
        __m256 b = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8));
        s0 = _mm256_fmadd_ps(a, _mm256_loadu_ps(z + i), s0);
        s1 = _mm256_fmadd_ps(b, _mm256_loadu_ps(z + i + 8), s1);
    }
    for (; i < n; i += 8) {
        __m256i mask = lane_mask(n - i < 8 ? n - i : 8);
        __m256 a = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), _mm256_maskload_ps(y + i, mask));
        s0 = _mm256_fmadd_ps(a, _mm256_maskload_ps(z + i, mask), s0);
    }
    return add_lanes(_mm256_add_ps(s0, s1));
}

AVX2 static float max(const float *x, size_t n) {
    __m256 m0 = _mm256_set1_ps(-INFINITY), m1 = m0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        m0 = _mm256_max_ps(m0, _mm256_loadu_ps(x + i));
        m1 = _mm256_max_ps(m1, _mm256_loadu_ps(x + i + 8));
    }
    float m = max_lanes(_mm256_max_ps(m0, m1));
    for (; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

AVX2 static float exp_sum(const float *x, float shift, size_t n) {
    const __m256 s = _mm256_set1_ps(shift);
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        s0 = _mm256_add_ps(s0, exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), s)));
        s1 = _mm256_add_ps(s1, exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), s)));
    }
    for (; i < n; i += 8) {
        __m256i mask = lane_mask(n - i < 8 ? n - i : 8);
        __m256 e = exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), s));
        s0 = _mm256_add_ps(s0, _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
    }
    return add_lanes(_mm256_add_ps(s0, s1));
}

/* ---- element by element ---- */

#define LOAD(p) _mm256_loadu_ps(p)

/* The statements after n run for 8 elements at a time from i on, and once more for the rest, masked. */
#define EACH(n, ...)                                                                                                   \
    do {                                                                                                               \
        size_t i = 0;                                                                                                  \
        for (; i + 8 <= (n); i += 8) {                                                                                 \
            const bool whole = true;                                                                                   \
            const __m256i mask = _mm256_setzero_si256();                                                               \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
        if (i < (n)) {                                                                                                 \
            const bool whole = false;                                                                                  \
            const __m256i mask = lane_mask((n)-i);                                                                     \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    } while (0)
#define GET(p) get8((p) + i, whole, mask)
#define PUT(p, v) put8((p) + i, v, whole, mask)

INLINE __m256 get8(const float *p, bool whole, __m256i mask) {
    return whole ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, mask);
}
INLINE void put8(float *p, __m256 v, bool whole, __m256i mask) {
    if (whole)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, mask, v);
}

AVX2 static void axpy(float a, const float *x, float *y, size_t n) {
    const __m256 f = _mm256_set1_ps(a);
    EACH(n, PUT(y, _mm256_fmadd_ps(f, GET(x), GET(y))););
}

AVX2 static void scale(float a, float *x, size_t n) {
    const __m256 f = _mm256_set1_ps(a);
    EACH(n, PUT(x, _mm256_mul_ps(f, GET(x))););
}

AVX2 static void norm_apply(const float *x, const float *w, float inv, float *y, size_t n) {
    const __m256 f = _mm256_set1_ps(inv);
    EACH(n, PUT(y, _mm256_mul_ps(_mm256_mul_ps(f, GET(x)), GET(w))););
}

AVX2 static void norm_grad(const float *x, const float *w, const float *dy, float inv, float c, float *dx, float *dw,
                           size_t n) {
    const __m256 f = _mm256_set1_ps(inv), k = _mm256_set1_ps(c);
    EACH(n, {
        __m256 v = GET(x), g = _mm256_mul_ps(f, GET(dy));
        PUT(dw, _mm256_fmadd_ps(g, v, GET(dw)));
        PUT(dx, _mm256_fmsub_ps(g, GET(w), _mm256_mul_ps(k, v)));
    });
}

/* gelu_tanh is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). gelu is ref's: it takes an erf. */
AVX2 static void activate(tm_activation act, const float *x, float *y, float *slope, size_t n) {
    if (act == TM_ACT_GELU) {
        ref_activate(act, x, y, slope, n);
        return;
    }
    const __m256 k = _mm256_set1_ps(1.59576912F), cubic = _mm256_set1_ps(0.044715F), one = _mm256_set1_ps(1.0F);
    EACH(n, {
        __m256 v = GET(x), square = _mm256_mul_ps(v, v), u = v, du = one;
        if (act == TM_ACT_GELU_TANH) {
            u = _mm256_mul_ps(_mm256_mul_ps(k, v), _mm256_fmadd_ps(cubic, square, one));
            du = _mm256_mul_ps(k, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(3), cubic), square, one));
        }
        __m256 s = sigmoid8(u), ds = _mm256_mul_ps(_mm256_mul_ps(s, _mm256_sub_ps(one, s)), du);
        PUT(y, _mm256_mul_ps(v, s));
        if (slope) PUT(slope, _mm256_fmadd_ps(v, ds, s));
    });
}

/* tanh: an odd polynomial near 0, where 2 sigmoid(2z) - 1 would cancel (both within an ulp or two at 0.625). */
AVX2 static void softcap(float *x, float factor, float cap, size_t n) {
    const __m256 f = _mm256_set1_ps(factor / cap), c = _mm256_set1_ps(cap), one = _mm256_set1_ps(1.0F);
    EACH(n, {
        __m256 z = _mm256_mul_ps(GET(x), f), w = _mm256_mul_ps(z, z), p = _mm256_set1_ps(-5.70498872745e-3F);
        p = _mm256_fmadd_ps(p, w, _mm256_set1_ps(2.06390887954e-2F));
        p = _mm256_fmadd_ps(p, w, _mm256_set1_ps(-5.37397155531e-2F));
        p = _mm256_fmadd_ps(p, w, _mm256_set1_ps(1.33314422036e-1F));
        p = _mm256_fmadd_ps(p, w, _mm256_set1_ps(-3.33332819422e-1F));
        p = _mm256_fmadd_ps(_mm256_mul_ps(p, w), z, z);
        __m256 far = _mm256_fmsub_ps(_mm256_set1_ps(2), sigmoid8(_mm256_add_ps(z, z)), one);
        __m256 near = _mm256_cmp_ps(w, _mm256_set1_ps(0.390625F), _CMP_LT_OQ);
        PUT(x, _mm256_mul_ps(c, _mm256_blendv_ps(far, p, near)));
    });
}

AVX2 static void swiglu(const float *g, const float *u, float *a, size_t n) {
    EACH(n, {
        __m256 v = GET(g);
        PUT(a, _mm256_mul_ps(_mm256_mul_ps(v, sigmoid8(v)), GET(u)));
    });
}

AVX2 static void swiglu_grad(const float *g, const float *u, const float *da, float *a, float *dg, float *du,
                             size_t n) {
    const __m256 one = _mm256_set1_ps(1.0F);
    EACH(n, {
        __m256 v = GET(g), up = GET(u), d = GET(da), s = sigmoid8(v), silu = _mm256_mul_ps(v, s);
        __m256 slope = _mm256_mul_ps(s, _mm256_fmadd_ps(v, _mm256_sub_ps(one, s), one));
        PUT(a, _mm256_mul_ps(silu, up));
        PUT(dg, _mm256_mul_ps(_mm256_mul_ps(d, up), slope));
        PUT(du, _mm256_mul_ps(d, silu));
    });
}

AVX2 static void rotate(const float *cosine, const float *sine, bool inverse, float *x1, float *x2, size_t n) {
    const __m256 sign = _mm256_set1_ps(inverse ? -0.0F : 0.0F);
    EACH(n, {
        __m256 c = GET(cosine), s = _mm256_xor_ps(GET(sine), sign), a = GET(x1), b = GET(x2);
        PUT(x1, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        PUT(x2, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    });
}

AVX2 static void softmax_grad(float *x, float lse, float coefficient, size_t n) {
    const __m256 shift = _mm256_set1_ps(lse), c = _mm256_set1_ps(coefficient);
    EACH(n, PUT(x, _mm256_mul_ps(c, exp8(_mm256_sub_ps(GET(x), shift)))););
}

/* ---- attention's rows ---- */

AVX2 static float softmax_row(float *s, float factor, float *running_max, float *running_sum, size_t n) {
    const __m256 f = _mm256_set1_ps(factor);
    __m256 m8 = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    for (size_t i = 0; i < n; i += 8) m8 = _mm256_max_ps(m8, _mm256_mul_ps(f, LOAD(s + i)));
    float old = *running_max, top = max_lanes(m8), m = top > old ? top : old;
    if (m == -INFINITY) { /* nothing visible yet */
        memset(s, 0, n * sizeof *s);
        return 1.0F;
    }
    const __m256 shift = _mm256_set1_ps(m);
    for (size_t i = 0; i < n; i += 8) {
        __m256 p = exp8(_mm256_sub_ps(_mm256_mul_ps(f, LOAD(s + i)), shift));
        _mm256_storeu_ps(s + i, p);
        sum = _mm256_add_ps(sum, p);
    }
    float back = old == m ? 1.0F : _mm256_cvtss_f32(exp8(_mm256_set1_ps(old - m)));
    *running_max = m;
    *running_sum = *running_sum * back + add_lanes(sum);
    return back;
}

AVX2 static void softmax_row_grad(float *s, float *dp, float factor, float lse, float delta, size_t n) {
    const __m256 f = _mm256_set1_ps(factor), shift = _mm256_set1_ps(lse), d = _mm256_set1_ps(delta);
    for (size_t i = 0; i < n; i += 8) {
        __m256 p = exp8(_mm256_fmsub_ps(f, LOAD(s + i), shift));
        _mm256_storeu_ps(s + i, p);
        _mm256_storeu_ps(dp + i, _mm256_mul_ps(_mm256_mul_ps(p, _mm256_sub_ps(LOAD(dp + i), d)), f));
    }
}

/* ---- small products and transposes ---- */

/* A tile of 6 x 16 sums in registers. Named one by one, since compilers keep arrays of vectors in memory. */
#define ROWS6(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define DECLARE_ROW(r) __m256 s##r##0 = _mm256_setzero_ps(), s##r##1 = s##r##0;
#define LOAD_ROW(r)                                                                                                    \
    if (r < rows) s##r##0 = LOAD(c + r * ldc), s##r##1 = LOAD(c + r * ldc + 8);
#define STORE_ROW(r)                                                                                                   \
    if (r < rows) _mm256_storeu_ps(c + r * ldc, s##r##0), _mm256_storeu_ps(c + r * ldc + 8, s##r##1);
#define ADD_ROW(r)                                                                                                     \
    if (r < rows) {                                                                                                    \
        __m256 x = _mm256_broadcast_ss(a + r * ras);                                                                   \
        s##r##0 = _mm256_fmadd_ps(x, b0, s##r##0);                                                                     \
        s##r##1 = _mm256_fmadd_ps(x, b1, s##r##1);                                                                     \
    }

/* `rows` x 16 of C, all of k; rows is a constant at each call. */
INLINE void strip(const size_t rows, size_t k, const float *a, size_t ras, size_t cas, const float *b, size_t ldb,
                  float *c, size_t ldc, bool add) {
    ROWS6(DECLARE_ROW)
    if (add) {
        ROWS6(LOAD_ROW)
    }
    for (size_t p = 0; p < k; p++, a += cas, b += ldb) {
        __m256 b0 = LOAD(b), b1 = LOAD(b + 8);
        ROWS6(ADD_ROW)
    }
    ROWS6(STORE_ROW)
}

AVX2 static void small_gemm(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                            size_t ldb, float *c, size_t ldc, bool add) {
    for (size_t j = 0; j < n; j += 16) {
        size_t i = 0;
        for (; i + 6 <= m; i += 6) strip(6, k, a + i * ras, ras, cas, b + j, ldb, c + i * ldc + j, ldc, add);
        const float *at = a + i * ras;
        float *to = c + i * ldc + j;
        switch (m - i) {
        case 5:
            strip(5, k, at, ras, cas, b + j, ldb, to, ldc, add);
            break;
        case 4:
            strip(4, k, at, ras, cas, b + j, ldb, to, ldc, add);
            break;
        case 3:
            strip(3, k, at, ras, cas, b + j, ldb, to, ldc, add);
            break;
        case 2:
            strip(2, k, at, ras, cas, b + j, ldb, to, ldc, add);
            break;
        case 1:
            strip(1, k, at, ras, cas, b + j, ldb, to, ldc, add);
            break;
        default:
            break;
        }
    }
}

/* 8 x 8: pairs of rows, then pairs of pairs, then halves. Rows from `rows` on count as zero. */
INLINE void transpose8(const float *x, size_t ldx, size_t rows, float *y, size_t ldy) {
    __m256 r[8], t[8];
    for (size_t i = 0; i < 8; i++) r[i] = i < rows ? LOAD(x + i * ldx) : _mm256_setzero_ps();
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(y + i * ldy, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(y + (i + 4) * ldy, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

AVX2 static void transpose(const float *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy) {
    for (size_t i = 0; i < rows; i += 8) {
        size_t m = rows - i < 8 ? rows - i : 8, j = 0;
        for (; j + 8 <= cols && m == 8; j += 8) transpose8(x + i * ldx + j, ldx, 8, y + j * ldy + i, ldy);
        for (; j + 8 <= cols && m == 6; j += 8) transpose8(x + i * ldx + j, ldx, 6, y + j * ldy + i, ldy);
        for (; j + 8 <= cols; j += 8) transpose8(x + i * ldx + j, ldx, m, y + j * ldy + i, ldy);
        for (; j < cols; j++)
            for (size_t r = 0; r < 8; r++) y[j * ldy + i + r] = r < m ? x[(i + r) * ldx + j] : 0.0F;
    }
}

/* ---- 4-bit codes: the 16 values of a block are a table in registers ---- */

/* 16 bytes of codes, of which `bytes` are there: the first code of each, and the second. */
INLINE void codes16(const uint8_t *codes, size_t bytes, __m128i *first, __m128i *second) {
    uint8_t all[16] = {0};
    if (bytes < 16) memcpy(all, codes, bytes);
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(bytes < 16 ? all : codes));
    *first = _mm_and_si128(_mm_srli_epi16(c, 4), _mm_set1_epi8(15));
    *second = _mm_and_si128(c, _mm_set1_epi8(15));
}
INLINE size_t step_bytes(size_t n) {
    return n < 32 ? (n + 1) / 2 : 16;
}
INLINE size_t block_end(const kernels_nf4 *a, size_t from) {
    return a->n - from < a->block ? a->n : from + a->block;
}

/* Two tables of eight, and bit 3 of the code, which becomes the sign, chooses between them. */
INLINE __m256 find8(__m128i codes, __m256 low, __m256 high) {
    __m256i c = _mm256_cvtepu8_epi32(codes);
    __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(c, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, c), _mm256_permutevar8x32_ps(high, c), upper);
}

AVX2 static void nf4_f32(const kernels_nf4 *a, float *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        __m256 absmax = _mm256_set1_ps(a->absmax[from / a->block]);
        __m256 low = _mm256_mul_ps(_mm256_loadu_ps(a->map), absmax);
        __m256 high = _mm256_mul_ps(_mm256_loadu_ps(a->map + 8), absmax);
        size_t end = block_end(a, from);
        for (size_t i = from; i < end; i += 32) {
            __m128i first, second;
            float some[32], *to = end - i < 32 ? some : y + i;
            codes16(a->codes + i / 2, step_bytes(end - i), &first, &second);
            __m128i c0 = _mm_unpacklo_epi8(first, second), c1 = _mm_unpackhi_epi8(first, second);
            _mm256_storeu_ps(to, find8(c0, low, high));
            _mm256_storeu_ps(to + 8, find8(_mm_srli_si128(c0, 8), low, high));
            _mm256_storeu_ps(to + 16, find8(c1, low, high));
            _mm256_storeu_ps(to + 24, find8(_mm_srli_si128(c1, 8), low, high));
            if (end - i < 32) memcpy(y + i, some, (end - i) * sizeof *y);
        }
    }
}

/* Lower and upper bytes of the 16 values are tables of bytes. */
INLINE void find16(__m128i codes, __m128i low, __m128i high, uint16_t *y) {
    __m128i l = _mm_shuffle_epi8(low, codes), h = _mm_shuffle_epi8(high, codes);
    _mm_storeu_si128((__m128i *)(void *)y, _mm_unpacklo_epi8(l, h));
    _mm_storeu_si128((__m128i *)(void *)(y + 8), _mm_unpackhi_epi8(l, h));
}

INLINE void nf4_block(const kernels_nf4 *a, size_t from, __m128i v0, __m128i v1, uint16_t *y) {
    const __m128i byte = _mm_set1_epi16(255);
    __m128i low = _mm_packus_epi16(_mm_and_si128(v0, byte), _mm_and_si128(v1, byte));
    __m128i high = _mm_packus_epi16(_mm_srli_epi16(v0, 8), _mm_srli_epi16(v1, 8));
    size_t end = block_end(a, from);
    for (size_t i = from; i < end; i += 32) {
        __m128i first, second;
        uint16_t some[32], *to = end - i < 32 ? some : y + i;
        codes16(a->codes + i / 2, step_bytes(end - i), &first, &second);
        find16(_mm_unpacklo_epi8(first, second), low, high, to);
        find16(_mm_unpackhi_epi8(first, second), low, high, to + 16);
        if (end - i < 32) memcpy(y + i, some, (end - i) * sizeof *y);
    }
}

AVX2 static void nf4_bf16(const kernels_nf4 *a, uint16_t *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        __m256 absmax = _mm256_set1_ps(a->absmax[from / a->block]);
        __m256i low = round8(_mm256_mul_ps(_mm256_loadu_ps(a->map), absmax));
        __m256i high = round8(_mm256_mul_ps(_mm256_loadu_ps(a->map + 8), absmax));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        nf4_block(a, from, _mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1), y);
    }
}

AVX2 static void nf4_f16(const kernels_nf4 *a, uint16_t *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        __m256 absmax = _mm256_set1_ps(a->absmax[from / a->block]);
        __m256 low = _mm256_mul_ps(_mm256_loadu_ps(a->map), absmax);
        __m256 high = _mm256_mul_ps(_mm256_loadu_ps(a->map + 8), absmax);
        nf4_block(a, from, _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT),
                  _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), y);
    }
}

/* How many of the 15 middles are below x, four bits by halving: what is compared with is one of 1, 2, 4, 8. */
typedef struct middles8 {
    __m256 first, second_low, second_high, third, fourth;
} middles8;
INLINE middles8 load_middles(const float *m) {
    return (middles8){_mm256_set1_ps(m[7]), _mm256_set1_ps(m[3]), _mm256_set1_ps(m[11]),
                      _mm256_setr_ps(m[1], m[5], m[9], m[13], 0, 0, 0, 0),
                      _mm256_setr_ps(m[0], m[2], m[4], m[6], m[8], m[10], m[12], m[14])};
}
/* -1 where m < x. */
INLINE __m256i below8(__m256 m, __m256 x) {
    return _mm256_castps_si256(_mm256_cmp_ps(m, x, _CMP_LT_OQ));
}
INLINE __m256i count8(const middles8 *m, __m256 x) {
    __m256i b = below8(m->first, x), at = _mm256_sub_epi32(_mm256_setzero_si256(), b);
    __m256 second = _mm256_blendv_ps(m->second_low, m->second_high, _mm256_castsi256_ps(b));
    at = _mm256_sub_epi32(_mm256_add_epi32(at, at), below8(second, x));
    at = _mm256_sub_epi32(_mm256_add_epi32(at, at), below8(_mm256_permutevar8x32_ps(m->third, at), x));
    return _mm256_sub_epi32(_mm256_add_epi32(at, at), below8(_mm256_permutevar8x32_ps(m->fourth, at), x));
}

/* 16 values to 8 bytes. */
INLINE void encode16(const kernels_nf4_encode *a, const middles8 *m, const float *x, uint8_t *codes) {
    __m256 absmax = _mm256_set1_ps(a->absmax), there = _mm256_cmp_ps(_mm256_setzero_ps(), absmax, _CMP_LT_OQ);
    __m256i low = count8(m, _mm256_and_ps(_mm256_div_ps(_mm256_loadu_ps(x), absmax), there));
    __m256i high = count8(m, _mm256_and_ps(_mm256_div_ps(_mm256_loadu_ps(x + 8), absmax), there));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    bytes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)a->order), bytes);
    __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x0110)); /* the first times 16, and the second */
    _mm_storel_epi64((__m128i *)(void *)codes, _mm_packus_epi16(pairs, pairs));
}

AVX2 static void nf4_encode(const kernels_nf4_encode *a) {
    const middles8 m = load_middles(a->middle);
    size_t i = 0;
    for (; i + 16 <= a->n; i += 16) encode16(a, &m, a->x + i, a->codes + i / 2);
    if (i == a->n) return;
    float rest[16] = {0};
    uint8_t codes[8];
    memcpy(rest, a->x + i, (a->n - i) * sizeof *rest);
    encode16(a, &m, rest, codes);
    memcpy(a->codes + i / 2, codes, (a->n - i + 1) / 2);
}

/* ---- transposes that widen ---- */

INLINE __m256 wide8(__m128i x, const bool f16) {
    return f16 ? _mm256_cvtph_ps(x) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
INLINE void store_columns(float *y, float *y8, __m256i v, const bool f16) {
    _mm256_storeu_ps(y, wide8(_mm256_castsi256_si128(v), f16));
    _mm256_storeu_ps(y8, wide8(_mm256_extracti128_si256(v, 1), f16));
}

/* 8 rows of 16: pairs of rows, pairs of pairs, and both fours. Rows from `rows` on count as zero. */
INLINE void transpose8x16(const uint16_t *x, size_t ldx, const size_t rows, float *y, size_t ldy, const bool f16) {
    __m256i r[8], t[8];
    for (size_t i = 0; i < 8; i++)
        r[i] = i < rows ? _mm256_loadu_si256((const __m256i *)(const void *)(x + i * ldx)) : _mm256_setzero_si256();
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi32(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi32(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi32(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
    for (size_t i = 0; i < 4; i++, y += 2 * ldy) {
        store_columns(y, y + 8 * ldy, _mm256_unpacklo_epi64(r[i], r[i + 4]), f16);
        store_columns(y + ldy, y + 9 * ldy, _mm256_unpackhi_epi64(r[i], r[i + 4]), f16);
    }
}

/* As transpose8x16, of fewer columns. */
INLINE void transpose_rest(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy,
                           const bool f16) {
    for (size_t j = 0; j < cols; j++) {
        uint16_t column[8] = {0};
        for (size_t i = 0; i < rows; i++) column[i] = x[i * ldx + j];
        _mm256_storeu_ps(y + j * ldy, wide8(_mm_loadu_si128((const __m128i *)(const void *)column), f16));
    }
}

INLINE void transpose16(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy, const bool f16) {
    for (size_t i = 0; i < rows; i += 8, x += 8 * ldx, y += 8) {
        size_t m = rows - i < 8 ? rows - i : 8, j = 0;
        for (; j + 16 <= cols && m == 8; j += 16) transpose8x16(x + j, ldx, 8, y + j * ldy, ldy, f16);
        for (; j + 16 <= cols && m == 6; j += 16) transpose8x16(x + j, ldx, 6, y + j * ldy, ldy, f16);
        for (; j + 16 <= cols; j += 16) transpose8x16(x + j, ldx, m, y + j * ldy, ldy, f16);
        transpose_rest(x + j, ldx, m, cols - j, y + j * ldy, ldy, f16);
    }
}
AVX2 static void transpose_bf16(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy) {
    transpose16(x, ldx, rows, cols, y, ldy, false);
}
AVX2 static void transpose_f16(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy) {
    transpose16(x, ldx, rows, cols, y, ldy, true);
}

/* ---- rows dealt out to panels ---- */

INLINE void deal(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y, const size_t width,
                 const bool f16) {
    for (size_t j = 0; j < to.panels; j++, x += to.step, y += to.stride)
        for (size_t p = 0; p < rows; p++)
            for (size_t i = 0; i < width; i += 8)
                _mm256_storeu_ps(y + p * width + i,
                                 wide8(_mm_loadu_si128((const __m128i *)(const void *)(x + p * ldx + i)), f16));
}
AVX2 static void deal_bf16(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y) {
    if (to.width == 8)
        deal(x, ldx, rows, to, y, 8, false);
    else
        deal(x, ldx, rows, to, y, to.width, false);
}
AVX2 static void deal_f16(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y) {
    if (to.width == 8)
        deal(x, ldx, rows, to, y, 8, true);
    else
        deal(x, ldx, rows, to, y, to.width, true);
}

/* ---- register tile of the builtin gemm ---- */

INLINE void finish_row(float *c, __m256 s0, __m256 s1, __m256 alpha, float beta) {
    s0 = _mm256_mul_ps(alpha, s0);
    s1 = _mm256_mul_ps(alpha, s1);
    if (beta != 0.0F) {
        __m256 b = _mm256_set1_ps(beta);
        s0 = _mm256_fmadd_ps(b, LOAD(c), s0);
        s1 = _mm256_fmadd_ps(b, LOAD(c + 8), s1);
    }
    _mm256_storeu_ps(c, s0);
    _mm256_storeu_ps(c + 8, s1);
}

#define FINISH_ROW(r) finish_row(c + r * ldc, s##r##0, s##r##1, al, beta);
#define PREFETCH_ROW(r) __builtin_prefetch(c + r * ldc, 1), __builtin_prefetch(c + r * ldc + 15, 1);

AVX2 static void gemm_tile(size_t k, const float *a, const float *b, float alpha, float beta, float *c, size_t ldc) {
    const size_t rows = GEMM_MR, ras = 1;
    ROWS6(DECLARE_ROW)
    ROWS6(PREFETCH_ROW)
#pragma GCC unroll 4
    for (size_t p = 0; p < k; p++, a += GEMM_A_LD, b += GEMM_NR) {
        __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
        ROWS6(ADD_ROW)
    }
    const __m256 al = _mm256_set1_ps(alpha);
    ROWS6(FINISH_ROW)
}

/* ---- dropout ---- */

/* Low and high halves of the products of eight 32-bit lanes. */
INLINE void wide_products(__m256i x, uint32_t by, __m256i *low, __m256i *high) {
    const __m256i m = _mm256_set1_epi32((int)by);
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

/* tm_philox of eight blocks, none of which carries into the counter's upper half: a lane each, a word each. */
INLINE void philox8(uint64_t key, uint64_t first, __m256i c[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    c[0] = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    c[1] = _mm256_set1_epi32((int)(uint32_t)(first >> 32));
    c[2] = c[3] = _mm256_setzero_si256();
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U) {
        __m256i a_low, a_high, b_low, b_high;
        wide_products(c[0], 0xD2511F53U, &a_low, &a_high);
        wide_products(c[2], 0xCD9E8D57U, &b_low, &b_high);
        c[0] = _mm256_xor_si256(_mm256_xor_si256(b_high, c[1]), _mm256_set1_epi32((int)k0));
        c[2] = _mm256_xor_si256(_mm256_xor_si256(a_high, c[3]), _mm256_set1_epi32((int)k1));
        c[1] = b_low;
        c[3] = a_low;
    }
}

/* Of one block's four words, low halves first. */
INLINE void mask_of(__m128i words, __m256i dropped, __m256 kept, float *mask) {
    __m256i drops = _mm256_cmpgt_epi32(dropped, _mm256_cvtepu16_epi32(words));
    _mm256_storeu_ps(mask, _mm256_andnot_ps(_mm256_castsi256_ps(drops), kept));
}

static void (*ref_drop_mask)(const kernels_draw *d, uint64_t first, size_t blocks, float *mask);

AVX2 static void drop_mask(const kernels_draw *d, uint64_t first, size_t blocks, float *mask) {
    const __m256i dropped = _mm256_set1_epi32((int)d->dropped);
    const __m256 kept = _mm256_set1_ps(d->kept);
    for (; blocks >= 8 && (uint32_t)first <= UINT32_MAX - 7; blocks -= 8, first += 8, mask += 8 * KERNELS_DRAWS) {
        __m256i c[4];
        philox8(d->key, first, c);
        __m256i ab = _mm256_unpacklo_epi32(c[0], c[1]), cd = _mm256_unpacklo_epi32(c[2], c[3]); /* of 0, 1 and 4, 5 */
        __m256i ef = _mm256_unpackhi_epi32(c[0], c[1]), gh = _mm256_unpackhi_epi32(c[2], c[3]); /* of 2, 3 and 6, 7 */
        const __m256i words[4] = {_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd),
                                  _mm256_unpacklo_epi64(ef, gh), _mm256_unpackhi_epi64(ef, gh)};
        for (size_t i = 0; i < 4; i++) {
            mask_of(_mm256_castsi256_si128(words[i]), dropped, kept, mask + i * KERNELS_DRAWS);
            mask_of(_mm256_extracti128_si256(words[i], 1), dropped, kept, mask + (4 + i) * KERNELS_DRAWS);
        }
    }
    ref_drop_mask(d, first, blocks, mask);
}

void kernels_avx2_override(kernels_table *t) {
    t->isa = "avx2";
    t->level = KERNELS_AVX2;
    t->widen = widen;
    t->narrow = narrow;
    t->widen_f16 = widen_f16;
    t->narrow_f16 = narrow_f16;
    t->nf4_f32 = nf4_f32;
    t->nf4_bf16 = nf4_bf16;
    t->nf4_f16 = nf4_f16;
    t->nf4_encode = nf4_encode;
    t->dot = dot;
    t->axpy = axpy;
    t->scale = scale;
    t->norm_apply = norm_apply;
    t->dot3 = dot3;
    t->norm_grad = norm_grad;
    t->swiglu = swiglu;
    t->swiglu_grad = swiglu_grad;
    ref_activate = t->activate;
    t->activate = activate;
    t->softcap = softcap;
    t->rotate = rotate;
    ref_drop_mask = t->drop_mask;
    t->drop_mask = drop_mask;
    t->max = max;
    t->exp_sum = exp_sum;
    t->softmax_grad = softmax_grad;
    t->softmax_row = softmax_row;
    t->softmax_row_grad = softmax_row_grad;
    t->small_gemm = small_gemm;
    t->transpose = transpose;
    t->transpose_bf16 = transpose_bf16;
    t->transpose_f16 = transpose_f16;
    t->deal_bf16 = deal_bf16;
    t->deal_f16 = deal_f16;
    t->gemm_tile = gemm_tile;
}

#else
void kernels_avx2_override(kernels_table *t) {
    (void)t;
}
#endif
