/* This device's table of kernels. */
#include "device/cuda/cuda_device.h"

static void adamw(const tm_adamw_args *s, uint64_t *nonfinite) {
    cuda_adamw_args a = {.weight = s->weight,
                         .hi = s->hi,
                         .lo = s->lo,
                         .grad = s->grad,
                         .exp_avg = s->exp_avg,
                         .exp_avg_sq = s->exp_avg_sq,
                         .n = s->n,
                         .grad_type = s->grad_type == TM_ELEM_F32 ? CUDA_F32 : CUDA_BF16};
    a.step = (cuda_adamw_step){.grad_scale = s->grad_scale,
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
    cuda_adamw(&a, nonfinite);
}

const tm_kernel_table cuda_table = {.gemm = cuda_gemm,
                                    .norm_forward = cuda_norm_forward,
                                    .norm_backward = cuda_norm_backward,
                                    .rope_apply = cuda_rope_apply,
                                    .glu_forward = cuda_glu_forward,
                                    .glu_backward = cuda_glu_backward,
                                    .softcap = cuda_softcap,
                                    .scale = cuda_scale,
                                    .add_bias = cuda_add_bias,
                                    .column_sum = cuda_column_sum,
                                    .embed_forward = cuda_embed_forward,
                                    .embed_backward = cuda_embed_backward,
                                    .attention_forward = cuda_attention_forward,
                                    .attention_backward = cuda_attention_backward,
                                    .head_update = cuda_head_update,
                                    .head_gradient = cuda_head_gradient,
                                    .gather_rows = cuda_gather_rows,
                                    .scatter_add_rows = cuda_scatter_add_rows,
                                    .zero = cuda_zero,
                                    .copy = cuda_copy,
                                    .head_begin = cuda_head_begin,
                                    .grad_finish = cuda_grad_finish,
                                    .adamw = adamw};
