/* The loop of an element-wise optimizer, written once: over fp32 weights, alone or with their fp16 copy, or split ones;
 * fp32, bf16 or fp16 gradients; up to two fp32 states. A kernel file defines its element,
 *
 *     OPTIM_BODY float sgd_element(float w, float *s0, float *s1, float g, const tm_sgd_step *k, int variant);
 *
 * which gets the gradient unscaled and returns the new weight, and says
 *
 *     OPTIM_KERNEL(sgd, tm_sgd_step, n_states, n_variants)
 *
 * which makes sgd_rows and `sgd_span(span, k, variant)`. `variant` (0, 1, 2) is a constant wherever the element is
 * inlined, so that options cost no branch and each variant vectorises.
 *
 * What is 16 bits wide in memory is widened and narrowed a piece at a time, in loops of their own that stay in
 * first-level cache: one loop over both widths vectorises into shuffles that cost more than the update. */
#ifndef TIDEMILL_OPTIM_SPANS_H
#define TIDEMILL_OPTIM_SPANS_H

#include "optim/bits_internal.h"
#include "optim/optim_internal.h"

enum { OPTIM_PIECE = 256 };

OPTIM_BODY uint32_t optim_is_bad(float w, float s0, float s1) {
    uint32_t a = f32_magnitude(w), b = f32_magnitude(s0), c = f32_magnitude(s1);
    uint32_t ab = a > b ? a : b;
    return (ab > c ? ab : c) >= F32_INF_BITS;
}

OPTIM_BODY void optim_join(const uint16_t *restrict hi, const uint16_t *restrict lo, float *restrict w, size_t n) {
    for (size_t i = 0; i < n; i++) w[i] = f32_from(split_join(hi[i], lo[i]));
}
OPTIM_BODY void optim_widen(const uint16_t *restrict g16, bool f16, float *restrict g, size_t n) {
    if (f16)
        for (size_t i = 0; i < n; i++) g[i] = f16_value(g16[i]);
    else
        for (size_t i = 0; i < n; i++) g[i] = bf16_value(g16[i]);
}
/* The fp16 copy. Returns how many finite weights are too large for it: their copies are infinite. */
OPTIM_BODY uint32_t optim_copy_f16(const float *restrict w, uint16_t *restrict h, size_t n) {
    uint32_t lost = 0;
    for (size_t i = 0; i < n; i++) h[i] = f16_round(w[i]);
    for (size_t i = 0; i < n; i++)
        lost += (uint32_t)!f16_is_finite(h[i]) & (uint32_t)(f32_magnitude(w[i]) < F32_INF_BITS);
    return lost;
}
OPTIM_BODY void optim_split(const float *restrict w, uint16_t *restrict hi, uint16_t *restrict lo, size_t n) {
    for (size_t i = 0; i < n; i++) hi[i] = split_hi(f32_bits(w[i]));
    for (size_t i = 0; i < n; i++) lo[i] = (uint16_t)f32_bits(w[i]);
}

#define OPTIM_STREAMS                                                                                                  \
    float *restrict w, uint16_t *restrict hi, uint16_t *restrict lo, const float *restrict g,                          \
        const uint16_t *restrict g16, bool f16, float *restrict s0, float *restrict s1
#define OPTIM_STREAM_ARGS w, hi, lo, g, g16, f16, s0, s1

#define OPTIM_KERNEL(name, K, n_states, n_variants)                                                                    \
    OPTIM_BODY uint32_t name##_f32(float *restrict w, const float *restrict g, float *restrict s0, float *restrict s1, \
                                   size_t n, const K *k_, int variant) {                                               \
        const K k = *k_;                                                                                               \
        uint32_t bad = 0; /* n <= OPTIM_GRAIN */                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                               \
            float x0 = (n_states) > 0 ? s0[i] : 0, x1 = (n_states) > 1 ? s1[i] : 0;                                    \
            float x = name##_element(w[i], &x0, &x1, g[i] * k.grad_scale, &k, variant);                                \
            if ((n_states) > 0) s0[i] = x0;                                                                            \
            if ((n_states) > 1) s1[i] = x1;                                                                            \
            w[i] = x;                                                                                                  \
            bad += optim_is_bad(x, x0, x1);                                                                            \
        }                                                                                                              \
        return bad;                                                                                                    \
    }                                                                                                                  \
    OPTIM_BODY uint64_t name##_variant(OPTIM_STREAMS, size_t n, const K *k, int variant) {                             \
        uint64_t bad = 0;                                                                                              \
        if (w && g && !hi) return name##_f32(w, g, s0, s1, n, k, variant);                                             \
        for (size_t at = 0; at < n; at += OPTIM_PIECE) {                                                               \
            float wide_w[OPTIM_PIECE], wide_g[OPTIM_PIECE];                                                            \
            size_t m = n - at < OPTIM_PIECE ? n - at : OPTIM_PIECE;                                                    \
            if (!w) optim_join(hi + at, lo + at, wide_w, m);                                                           \
            if (!g) optim_widen(g16 + at, f16, wide_g, m);                                                             \
            bad += name##_f32(w ? w + at : wide_w, g ? g + at : wide_g, (n_states) > 0 ? s0 + at : NULL,               \
                              (n_states) > 1 ? s1 + at : NULL, m, k, variant);                                         \
            if (!w) optim_split(wide_w, hi + at, lo + at, m);                                                          \
            if (w && hi) bad += optim_copy_f16(w + at, hi + at, m);                                                    \
        }                                                                                                              \
        return bad;                                                                                                    \
    }                                                                                                                  \
    OPTIM_BODY uint64_t name##_body(OPTIM_STREAMS, size_t n, const K *k, int variant) {                                \
        if ((n_variants) > 1 && variant == 1) return name##_variant(OPTIM_STREAM_ARGS, n, k, 1);                       \
        if ((n_variants) > 2 && variant == 2) return name##_variant(OPTIM_STREAM_ARGS, n, k, 2);                       \
        return name##_variant(OPTIM_STREAM_ARGS, n, k, 0);                                                             \
    }                                                                                                                  \
    OPTIM_ROWS(uint64_t, name, (OPTIM_STREAMS, size_t n, const K *k, int variant), (OPTIM_STREAM_ARGS, n, k, variant)) \
    static uint64_t name##_piece(const tm_optim_span *x, size_t at, size_t n, const void *k, int variant) {            \
        optim_streams p = optim_streams_at(x, at);                                                                     \
        return name##_row()(p.w, p.hi, p.lo, p.g, p.g16, p.f16, p.s0, p.s1, n, k, variant);                            \
    }                                                                                                                  \
    static uint64_t name##_span(const tm_optim_span *x, const K *k, int variant) {                                     \
        return optim_each_grain(x, name##_piece, k, variant);                                                          \
    }

typedef struct optim_streams {
    float *w, *s0, *s1;
    uint16_t *hi, *lo;
    const float *g;
    const uint16_t *g16;
    bool f16; /* g16 is fp16, else bf16 */
} optim_streams;

/* The pointers of a span's element `at`; NULL where there is no such stream. */
static inline optim_streams optim_streams_at(const tm_optim_span *x, size_t at) {
    float *s0 = x->state[0], *s1 = x->state[1];
    bool wide = x->grad_type == TM_GRAD_F32;
    return (optim_streams){
        .w = x->weight ? x->weight + at : NULL,
        .hi = x->weight_hi ? x->weight_hi + at : NULL,
        .lo = x->weight ? NULL : x->weight_lo + at,
        .g = wide ? (const float *)x->grad + at : NULL,
        .g16 = wide ? NULL : (const uint16_t *)x->grad + at,
        .f16 = x->grad_type == TM_GRAD_F16,
        .s0 = s0 ? s0 + at : NULL,
        .s1 = s1 ? s1 + at : NULL,
    };
}

/* Calls `piece` for every OPTIM_GRAIN elements of a span, on all threads, and adds up what it returns (spans.c). */
typedef uint64_t (*optim_piece_fn)(const tm_optim_span *x, size_t at, size_t n, const void *k, int variant);
uint64_t optim_each_grain(const tm_optim_span *x, optim_piece_fn piece, const void *k, int variant);

#endif
