/* The intrinsics that src/kernels/avx512.c uses, lane by lane in C after Intel's descriptions, so that its arithmetic
 * runs in tests on CPUs without them. That the real ones exist and take these types the ordinary build checks. */
#ifndef TIDEMILL_TESTS_AVX512_EMULATED_H
#define TIDEMILL_TESTS_AVX512_EMULATED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct e512 {
    float f[16];
} e512;
typedef struct e512i {
    uint32_t u[16];
} e512i;
typedef struct e256i {
    uint16_t h[16];
} e256i;
typedef struct e128i {
    uint8_t b[16];
} e128i;
#define __m512 e512
#define __m512i e512i
#define __m256i e256i
#define __m128i e128i
#define __mmask16 uint16_t
enum { _CMP_UNORD_Q = 3, _CMP_NLT_UQ = 5 };

#define LANE for (int l = 0; l < 16; l++)
#define ON(m) (((m) >> l) & 1)
#define EMULATED(type, name, arguments, expression)                                                                    \
    static inline type name arguments {                                                                                \
        type r;                                                                                                        \
        memset(&r, 0, sizeof r);                                                                                       \
        LANE expression;                                                                                               \
        return r;                                                                                                      \
    }

/* The 16-bit lane k. */
static inline uint32_t half_lane(e512i a, uint32_t k) {
    return a.u[k / 2] >> (k % 2 * 16) & 0xffff;
}

EMULATED(e512, _mm512_set1_ps, (float x), r.f[l] = x)
EMULATED(e512, _mm512_loadu_ps, (const float *p), r.f[l] = p[l])
EMULATED(e512, _mm512_maskz_loadu_ps, (uint16_t m, const float *p), if (ON(m)) r.f[l] = p[l])
EMULATED(e512, _mm512_add_ps, (e512 a, e512 b), r.f[l] = a.f[l] + b.f[l])
EMULATED(e512, _mm512_sub_ps, (e512 a, e512 b), r.f[l] = a.f[l] - b.f[l])
EMULATED(e512, _mm512_mul_ps, (e512 a, e512 b), r.f[l] = a.f[l] * b.f[l])
EMULATED(e512, _mm512_div_ps, (e512 a, e512 b), r.f[l] = a.f[l] / b.f[l])
EMULATED(e512, _mm512_min_ps, (e512 a, e512 b), r.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l])
EMULATED(e512, _mm512_fmadd_ps, (e512 a, e512 b, e512 c), r.f[l] = fmaf(a.f[l], b.f[l], c.f[l]))
EMULATED(e512, _mm512_fmsub_ps, (e512 a, e512 b, e512 c), r.f[l] = fmaf(a.f[l], b.f[l], -c.f[l]))
EMULATED(e512, _mm512_fnmadd_ps, (e512 a, e512 b, e512 c), r.f[l] = fmaf(-a.f[l], b.f[l], c.f[l]))
EMULATED(e512, _mm512_mask_max_ps, (e512 s, uint16_t m, e512 a, e512 b),
         r.f[l] = !ON(m)            ? s.f[l]
                  : a.f[l] > b.f[l] ? a.f[l]
                                    : b.f[l])
EMULATED(e512, _mm512_mask_add_ps, (e512 s, uint16_t m, e512 a, e512 b), r.f[l] = ON(m) ? a.f[l] + b.f[l] : s.f[l])
EMULATED(e512, _mm512_maskz_mov_ps, (uint16_t m, e512 a), if (ON(m)) r.f[l] = a.f[l])
EMULATED(e512, nearest, (e512 a), r.f[l] = nearbyintf(a.f[l]))
EMULATED(e512i, _mm512_set1_epi32, (int x), r.u[l] = (uint32_t)x)
EMULATED(e512i, _mm512_add_epi32, (e512i a, e512i b), r.u[l] = a.u[l] + b.u[l])
EMULATED(e512i, _mm512_and_si512, (e512i a, e512i b), r.u[l] = a.u[l] & b.u[l])
EMULATED(e512i, _mm512_or_si512, (e512i a, e512i b), r.u[l] = a.u[l] | b.u[l])
EMULATED(e512i, _mm512_slli_epi32, (e512i a, unsigned n), r.u[l] = a.u[l] << n)
EMULATED(e512i, _mm512_srli_epi32, (e512i a, unsigned n), r.u[l] = a.u[l] >> n)
EMULATED(e512i, _mm512_mask_mov_epi32, (e512i s, uint16_t m, e512i a), r.u[l] = ON(m) ? a.u[l] : s.u[l])
EMULATED(e512i, _mm512_cvtepu16_epi32, (e256i a), r.u[l] = a.h[l])
EMULATED(e512i, _mm512_cvtps_epi32, (e512 a),
         r.u[l] = fabsf(a.f[l]) < 2147483648.0F ? (uint32_t)(int32_t)nearbyintf(a.f[l]) : 0x80000000U)
EMULATED(e512i, _mm512_cvtepu8_epi32, (e128i a), r.u[l] = a.b[l])
EMULATED(e128i, _mm_loadu_si128, (const void *p), r.b[l] = ((const uint8_t *)p)[l])
EMULATED(e512, _mm512_permutexvar_ps, (e512i i, e512 a), r.f[l] = a.f[i.u[l] & 15])
EMULATED(e512i, _mm512_permutexvar_epi16, (e512i i, e512i a),
         r.u[l] = half_lane(a, i.u[l] & 31) | half_lane(a, i.u[l] >> 16 & 31) << 16)
EMULATED(e256i, _mm512_castsi512_si256, (e512i a), r.h[l] = (uint16_t)half_lane(a, (uint32_t)l))
EMULATED(e256i, _mm512_extracti64x4_epi64, (e512i a, int half),
         r.h[l] = (uint16_t)half_lane(a, (uint32_t)(16 * half + l)))
EMULATED(e256i, _mm512_cvtepi32_epi16, (e512i a), r.h[l] = (uint16_t)a.u[l])
/* Values by the definition of fp16, to nearest even in double, which is exact here. */
static inline float of_half(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    uint32_t nan = (uint32_t)h >> 15 << 31 | 0x7fc00000U | (uint32_t)m << 13;
    float x = e == 31 ? INFINITY : (float)(e ? ldexp(1024 + m, e - 25) : ldexp(m, -24));
    if (e == 31 && m) memcpy(&x, &nan, sizeof x);
    return e == 31 && m ? x : h >> 15 ? -x : x;
}
static inline uint16_t to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000U;
    if (isnan(x)) return (uint16_t)(sign | 0x7e00U | (bits >> 13 & 0x1ffU));
    double size = fabs((double)x);
    int e = size < 0x1p-14 ? -14 : ilogb(size);
    double units = isinf(size) ? INFINITY : nearbyint(ldexp(size, 10 - e)); /* of the last place */
    return (uint16_t)(sign | (e > 15 || ldexp(units, e - 10) > 65504 ? 0x7c00U
                              : units < 1024                         ? (uint32_t)units
                                                                     : (uint32_t)(e + 14) * 1024 + (uint32_t)units));
}
#define _MM_FROUND_TO_NEAREST_INT 0
EMULATED(e512, _mm512_cvtph_ps, (e256i a), r.f[l] = of_half(a.h[l]))
static inline e256i _mm512_cvtps_ph(e512 a, int how) {
    e256i r;
    LANE r.h[l] = how == _MM_FROUND_TO_NEAREST_INT ? to_half(a.f[l]) : 0x7e00; /* only that is known here */
    return r;
}
EMULATED(e256i, _mm256_maskz_loadu_epi16, (uint16_t m, const void *p), if (ON(m)) r.h[l] = ((const uint16_t *)p)[l])

static inline e512 _mm512_roundscale_ps(e512 a, int how) {
    return how == 0x08 ? nearest(a) : _mm512_set1_ps(NAN); /* only "to nearest, no exception" is known here */
}
static inline e512 _mm512_setzero_ps(void) {
    return _mm512_set1_ps(0);
}
static inline void _mm512_storeu_ps(float *p, e512 a) {
    memcpy(p, &a, sizeof a);
}
static inline void _mm512_storeu_si512(void *p, e512i a) {
    memcpy(p, &a, sizeof a);
}
static inline void _mm512_mask_storeu_ps(float *p, uint16_t m, e512 a) {
    LANE if (ON(m)) p[l] = a.f[l];
}
static inline void _mm256_mask_storeu_epi16(uint16_t *p, uint16_t m, e256i a) {
    LANE if (ON(m)) p[l] = a.h[l];
}
static inline uint16_t _mm512_cmp_ps_mask(e512 a, e512 b, int how) {
    uint32_t m = 0;
    LANE m |= (uint32_t)(how == _CMP_UNORD_Q ? isnan(a.f[l]) || isnan(b.f[l]) : !(a.f[l] < b.f[l])) << l;
    return (uint16_t)m;
}
static inline e512 _mm512_castsi512_ps(e512i a) {
    e512 r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline e512i _mm512_castps_si512(e512 a) {
    e512i r;
    memcpy(&r, &a, sizeof r);
    return r;
}

#endif
