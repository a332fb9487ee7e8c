/* A step by a device's kernels: optim's structures as the kernel table has them. */
#include "optim/optim.h"

#include "kernels/kernel_table.h"

static tm_elem grad_elem(tm_grad_type t) {
    return t == TM_GRAD_F32 ? TM_ELEM_F32 : t == TM_GRAD_BF16 ? TM_ELEM_BF16 : TM_ELEM_F16;
}

void tm_optim_launch(const tm_kernel_table *kernels, const tm_optim_step *step, const tm_optim_span *span,
                     uint64_t *nonfinite) {
    const tm_adamw_step *s = &step->as.adamw;
    tm_adamw_args a = {.weight = span->weight,
                       .hi = span->weight_hi,
                       .lo = span->weight_lo,
                       .grad = span->grad,
                       .exp_avg = span->state[0],
                       .exp_avg_sq = span->state[1],
                       .n = span->n,
                       .grad_type = grad_elem(span->grad_type),
                       .grad_scale = s->grad_scale,
                       .decay = s->decay,
                       .l2 = s->l2,
                       .one_minus_beta1 = s->one_minus_beta1,
                       .beta1 = s->beta1,
                       .beta2 = s->beta2,
                       .one_minus_beta2 = s->one_minus_beta2,
                       .bc2_sqrt = s->bc2_sqrt,
                       .eps = s->eps,
                       .neg_step_size = s->neg_step_size,
                       .use_l2 = s->use_l2,
                       .lerp_from_end = s->lerp_from_end};
    kernels->adamw(&a, nonfinite);
}
