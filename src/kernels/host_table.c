/* The host's kernels as a table. */
#include "kernels/kernel_table.h"

#include <math.h>
#include <string.h>

static void copy(void *to, const void *from, uint64_t bytes) {
    memcpy(to, from, bytes);
}

static void head_begin(uint64_t rows, tm_head_state *state) {
    for (uint64_t r = 0; r < rows; r++) state[r] = (tm_head_state){.max = -INFINITY};
}

const tm_kernel_table *tm_kernels_host(void) {
    static const tm_kernel_table table = {.gemm = tm_gemm,
                                          .norm_forward = tm_norm_forward,
                                          .norm_backward = tm_norm_backward,
                                          .rope_apply = tm_rope_apply,
                                          .glu_forward = tm_glu_forward,
                                          .glu_backward = tm_glu_backward,
                                          .softcap = tm_softcap,
                                          .scale = tm_scale,
                                          .add_bias = tm_add_bias,
                                          .column_sum = tm_column_sum,
                                          .embed_forward = tm_embed_forward,
                                          .embed_backward = tm_embed_backward,
                                          .attention_forward = tm_attention_forward,
                                          .attention_backward = tm_attention_backward,
                                          .head_update = tm_head_update,
                                          .head_gradient = tm_head_gradient,
                                          .gather_rows = tm_gather_rows,
                                          .scatter_add_rows = tm_scatter_add_rows,
                                          .zero = tm_zero,
                                          .dropout = tm_dropout_apply,
                                          .squares = tm_squares_sum,
                                          .magnitude_forward = tm_magnitude_forward,
                                          .magnitude_backward = tm_magnitude_backward,
                                          .gather_columns = tm_gather_columns,
                                          .scatter_add_columns = tm_scatter_add_columns,
                                          .copy = copy,
                                          .head_begin = head_begin};
    return &table;
}
