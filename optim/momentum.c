/* Optimizers with at most one fp32 state: SGD, Lion, Adagrad (formulas: optimizer.h). */
#include "optim/spans_internal.h"

#include <math.h>

/* ---- SGD: torch.optim.SGD, which is what DeepSpeed's "SGD" is ------------------------------- */

enum { SGD_MOMENTUM = 1, SGD_NESTEROV = 2 };

OPTIM_BODY float sgd_element(float w, float *buffer, float *s1, float g, const tm_sgd_step *k, int variant) {
    (void)s1;
    g = g + k->l2 * w;
    if (variant == 0) return w + k->neg_lr * g;
    float b = *buffer * k->momentum + k->one_minus_dampening * g;
    *buffer = b;
    return w + k->neg_lr * (variant == SGD_NESTEROV ? g + k->nesterov * b : b);
}
OPTIM_BODY float plain_sgd_element(float w, float *s0, float *s1, float g, const tm_sgd_step *k, int variant) {
    (void)s0, (void)variant;
    return sgd_element(w, NULL, s1, g, k, 0);
}
OPTIM_KERNEL(sgd, tm_sgd_step, 1, 3)
OPTIM_KERNEL(plain_sgd, tm_sgd_step, 0, 1)

/* The buffer begins as the first gradient, undampened: the state before it does not enter. */
void optim_sgd_prepare(tm_optim_step *step, const tm_optim_opts *o, double lr, int64_t t, double grad_scale) {
    step->as.sgd = (tm_sgd_step){
        .grad_scale = (float)grad_scale,
        .l2 = (float)o->weight_decay,
        .momentum = (float)(t == 1 ? 0 : o->momentum),
        .one_minus_dampening = (float)(t == 1 ? 1 : 1 - o->dampening),
        .nesterov = (float)o->momentum,
        .neg_lr = (float)-lr,
        .use_momentum = o->momentum != 0,
        .use_nesterov = o->nesterov,
    };
}

uint64_t optim_sgd_run(const tm_optim_step *step, const tm_optim_span *span) {
    const tm_sgd_step *k = &step->as.sgd;
    if (!k->use_momentum) return plain_sgd_span(span, k, 0);
    return sgd_span(span, k, k->use_nesterov ? SGD_NESTEROV : SGD_MOMENTUM);
}

/* The sign of a zero update is zero: what was never touched stays where it is. */
OPTIM_BODY float lion_element(float w, float *m_, float *s1, float g, const tm_lion_step *k, int variant) {
    (void)s1, (void)variant;
    float m = *m_, c = m * k->beta1 + k->one_minus_beta1 * g;
    *m_ = m * k->beta2 + k->one_minus_beta2 * g;
    uint32_t sign = f32_bits(c) & 0x80000000u, moves = f32_magnitude(c) ? f32_bits(k->lr) : 0;
    w = w * k->decay;
    return w - f32_from(moves | sign);
}
OPTIM_KERNEL(lion, tm_lion_step, 1, 1)

void optim_lion_prepare(tm_optim_step *step, const tm_optim_opts *o, double lr, int64_t t, double grad_scale) {
    (void)t;
    step->as.lion = (tm_lion_step){
        .grad_scale = (float)grad_scale,
        .decay = (float)(1 - lr * o->weight_decay),
        .beta1 = (float)o->beta1,
        .one_minus_beta1 = (float)(1 - o->beta1),
        .beta2 = (float)o->beta2,
        .one_minus_beta2 = (float)(1 - o->beta2),
        .lr = (float)lr,
    };
}
uint64_t optim_lion_run(const tm_optim_step *step, const tm_optim_span *span) {
    return lion_span(span, &step->as.lion, 0);
}

/* ---- Adagrad: torch.optim.Adagrad; DeepSpeedCPUAdagrad where lr_decay is 0 ------------------- */

OPTIM_BODY float adagrad_element(float w, float *sum, float *s1, float g, const tm_adagrad_step *k, int variant) {
    (void)s1, (void)variant;
    g = g + k->l2 * w;
    float s = *sum + g * g;
    *sum = s;
    return w + (k->neg_lr * g) / (sqrtf(s) + k->eps);
}
OPTIM_KERNEL(adagrad, tm_adagrad_step, 1, 1)

void optim_adagrad_prepare(tm_optim_step *step, const tm_optim_opts *o, double lr, int64_t t, double grad_scale) {
    step->as.adagrad = (tm_adagrad_step){
        .grad_scale = (float)grad_scale,
        .l2 = (float)o->weight_decay,
        .eps = (float)o->eps,
        .neg_lr = (float)(-lr / (1 + (double)(t - 1) * o->lr_decay)),
    };
}
uint64_t optim_adagrad_run(const tm_optim_step *step, const tm_optim_span *span) {
    return adagrad_span(span, &step->as.adagrad, 0);
}
