/* One element of AdamW, shared by the kernels with fp32 and with 8-bit states. */
#ifndef TIDEMILL_OPTIM_ADAMW_H
#define TIDEMILL_OPTIM_ADAMW_H

#include "optim/optim_internal.h"

#include <math.h>

/* L2 mode; beta1 <= 0.5, where torch's lerp starts from the other end (with L2 or without). */
enum { ADAMW_PLAIN, ADAMW_L2, ADAMW_FROM_END, ADAMW_VARIANTS };
static inline int optim_adamw_variant(const tm_adamw_step *k) {
    return k->lerp_from_end ? ADAMW_FROM_END : k->use_l2 ? ADAMW_L2 : ADAMW_PLAIN;
}

/* g: unscaled already. `variant` is a constant where this is inlined. */
OPTIM_BODY float optim_adamw_element(float w, float *m_, float *v_, float g, const tm_adamw_step *k, int variant) {
    float with_l2 = g + k->l2 * w; /* chosen, not branched on: that vectorises */
    if (variant != ADAMW_PLAIN) g = variant == ADAMW_L2 || k->use_l2 ? with_l2 : g;
    w = w * k->decay;
    float away = g - *m_;
    float m = variant == ADAMW_FROM_END ? g - away * k->beta1 : *m_ + k->one_minus_beta1 * away;
    float v = *v_ * k->beta2 + (k->one_minus_beta2 * g) * g;
    float denom = sqrtf(v) / k->bc2_sqrt + k->eps;
    *m_ = m;
    *v_ = v;
    return w + (k->neg_step_size * m) / denom;
}

/* At most OPTIM_GRAIN elements of a span from `at` on, with moments of their own, on this thread. */
uint64_t optim_adamw_few(const tm_optim_span *x, size_t at, size_t n, float *m, float *v, const tm_adamw_step *k);

#endif
