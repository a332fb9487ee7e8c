/* AdamW in torch.optim.AdamW's order of operations (header: "AdamW"). */
#include "optim/bits_internal.h"
#include "optim/optim_internal.h"

#include <math.h>

void tm_adamw_step_init(tm_adamw_step *step, const tm_adamw_opts *o, double lr, int64_t t, double grad_scale) {
    double bc1 = o->bias_correction ? 1 - pow(o->beta1, (double)t) : 1;
    double bc2 = o->bias_correction ? 1 - pow(o->beta2, (double)t) : 1;
    double weight = 1 - o->beta1;
    *step = (tm_adamw_step){
        .grad_scale = (float)grad_scale,
        .decay = (float)(o->adam_w_mode ? 1 - lr * o->weight_decay : 1),
        .l2 = (float)(o->adam_w_mode ? 0 : o->weight_decay),
        .one_minus_beta1 = (float)weight,
        .beta1 = (float)(1 - weight),
        .beta2 = (float)o->beta2,
        .one_minus_beta2 = (float)(1 - o->beta2),
        .bc2_sqrt = (float)sqrt(bc2),
        .eps = (float)o->eps,
        .neg_step_size = (float)(-lr / bc1),
        .use_l2 = !o->adam_w_mode && o->weight_decay != 0,
        .lerp_from_end = weight >= 0.5,
    };
}

/* One element. `l2` and `from_end` are constants where this is inlined. */
OPTIM_BODY float element(float w, float *m_, float *v_, float g, const tm_adamw_step *s, bool l2, bool from_end) {
    g = g * s->grad_scale;
    if (l2) g = g + s->l2 * w;
    w = w * s->decay;
    float away = g - *m_;
    float m = from_end ? g - away * s->beta1 : *m_ + s->one_minus_beta1 * away;
    float v = *v_ * s->beta2 + (s->one_minus_beta2 * g) * g;
    float denom = sqrtf(v) / s->bc2_sqrt + s->eps;
    *m_ = m;
    *v_ = v;
    return w + (s->neg_step_size * m) / denom;
}

OPTIM_BODY uint32_t is_bad(float w, float m, float v) {
    uint32_t a = f32_magnitude(w), b = f32_magnitude(m), c = f32_magnitude(v);
    uint32_t ab = a > b ? a : b;
    return (ab > c ? ab : c) >= F32_INF_BITS;
}

#define SPLIT_SPAN                                                                                                     \
    uint16_t *restrict hi, uint16_t *restrict lo, float *restrict m, float *restrict v, const uint16_t *restrict g,    \
        size_t n, const tm_adamw_step *step
#define F32_SPAN                                                                                                       \
    float *restrict w, float *restrict m, float *restrict v, const float *restrict g, size_t n,                        \
        const tm_adamw_step *step

OPTIM_BODY uint64_t split_loop(SPLIT_SPAN, bool l2, bool from_end) {
    const tm_adamw_step s = *step;
    uint32_t bad = 0; /* n <= OPTIM_GRAIN */
    for (size_t i = 0; i < n; i++) {
        float w = element(f32_from(split_join(hi[i], lo[i])), &m[i], &v[i], bf16_value(g[i]), &s, l2, from_end);
        uint32_t b = f32_bits(w);
        hi[i] = split_hi(b);
        lo[i] = (uint16_t)b;
        bad += is_bad(w, m[i], v[i]);
    }
    return bad;
}
OPTIM_BODY uint64_t adamw_split_body(SPLIT_SPAN) {
    if (step->use_l2) return split_loop(hi, lo, m, v, g, n, step, true, step->lerp_from_end);
    if (step->lerp_from_end) return split_loop(hi, lo, m, v, g, n, step, false, true);
    return split_loop(hi, lo, m, v, g, n, step, false, false);
}
OPTIM_ROWS(uint64_t, adamw_split, (SPLIT_SPAN), (hi, lo, m, v, g, n, step))

OPTIM_BODY uint64_t f32_loop(F32_SPAN, bool l2, bool from_end) {
    const tm_adamw_step s = *step;
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        w[i] = element(w[i], &m[i], &v[i], g[i], &s, l2, from_end);
        bad += is_bad(w[i], m[i], v[i]);
    }
    return bad;
}
OPTIM_BODY uint64_t adamw_f32_body(F32_SPAN) {
    if (step->use_l2) return f32_loop(w, m, v, g, n, step, true, step->lerp_from_end);
    if (step->lerp_from_end) return f32_loop(w, m, v, g, n, step, false, true);
    return f32_loop(w, m, v, g, n, step, false, false);
}
OPTIM_ROWS(uint64_t, adamw_f32, (F32_SPAN), (w, m, v, g, n, step))

static size_t grain(size_t at, size_t n) {
    return n - at < OPTIM_GRAIN ? n - at : OPTIM_GRAIN;
}

uint64_t tm_adamw_split(uint16_t *hi, uint16_t *lo, float *exp_avg, float *exp_avg_sq, const uint16_t *g_bf16, size_t n,
                        const tm_adamw_step *step) {
    adamw_split_fn row = adamw_split_row();
    uint64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (n > OPTIM_GRAIN)
    for (size_t at = 0; at < n; at += OPTIM_GRAIN)
        bad += row(hi + at, lo + at, exp_avg + at, exp_avg_sq + at, g_bf16 + at, grain(at, n), step);
    return bad;
}

uint64_t tm_adamw_f32(float *w, float *exp_avg, float *exp_avg_sq, const float *g, size_t n,
                      const tm_adamw_step *step) {
    adamw_f32_fn row = adamw_f32_row();
    uint64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (n > OPTIM_GRAIN)
    for (size_t at = 0; at < n; at += OPTIM_GRAIN)
        bad += row(w + at, exp_avg + at, exp_avg_sq + at, g + at, grain(at, n), step);
    return bad;
}
