/* AdamW and Adam in torch.optim's order of operations (optim.h: "AdamW"). */
#include "optim/adamw_internal.h"
#include "optim/spans_internal.h"

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

OPTIM_BODY float adamw_element(float w, float *m, float *v, float g, const tm_adamw_step *k, int variant) {
    return optim_adamw_element(w, m, v, g, k, variant);
}
OPTIM_KERNEL(adamw, tm_adamw_step, 2, ADAMW_VARIANTS)

uint64_t tm_adamw_split(uint16_t *hi, uint16_t *lo, float *exp_avg, float *exp_avg_sq, const uint16_t *g_bf16, size_t n,
                        const tm_adamw_step *step) {
    const tm_optim_span x = {.weight_hi = hi,
                             .weight_lo = lo,
                             .grad = g_bf16,
                             .grad_type = TM_GRAD_BF16,
                             .state = {exp_avg, exp_avg_sq},
                             .n = n};
    return adamw_span(&x, step, optim_adamw_variant(step));
}

uint64_t tm_adamw_f32(float *w, float *exp_avg, float *exp_avg_sq, const float *g, size_t n,
                      const tm_adamw_step *step) {
    const tm_optim_span x = {.weight = w, .grad = g, .state = {exp_avg, exp_avg_sq}, .n = n};
    return adamw_span(&x, step, optim_adamw_variant(step));
}

uint64_t optim_adamw_few(const tm_optim_span *x, size_t at, size_t n, float *m, float *v, const tm_adamw_step *k) {
    optim_streams p = optim_streams_at(x, at);
    return adamw_row()(p.w, p.hi, p.lo, p.g, p.g16, p.f16, m, v, n, k, optim_adamw_variant(k));
}

void optim_adamw_prepare(tm_optim_step *step, const tm_optim_opts *o, double lr, int64_t t, double grad_scale) {
    const tm_adamw_opts a = {o->beta1, o->beta2, o->eps, o->weight_decay, o->adam_w_mode, o->bias_correction};
    tm_adamw_step_init(&step->as.adamw, &a, lr, t, grad_scale);
}
uint64_t optim_adamw_run(const tm_optim_step *step, const tm_optim_span *span) {
    return adamw_span(span, &step->as.adamw, optim_adamw_variant(&step->as.adamw));
}
