/* kernel_table: the functions of kernels.h and gemm.h as a table, so that a device with kernels of its own can take
 * their place. Whoever computes on operands in a device's memory calls rows of that device's table and nothing else:
 * not even memset, or a look at an element.
 *
 *     const tm_kernel_table *k = tm_kernels_host();
 *     k->gemm(&args);
 *
 * A row has the type, and promises what is said there, of the function of kernels.h that it is named after; pointers to
 * rows of numbers (x, weight, labels, key_mask, position->first, workspace ...) point to the device's memory, the
 * argument structures themselves (tm_gemm_args, tm_attention, tm_rope with its table) to the host's. A row may return
 * before its work is done: rows called one after the other on one thread take effect in that order.
 *
 * Threads: one caller at a time, for a device's table only the thread on which it runs operations (device.h). */
#ifndef TIDEMILL_KERNEL_TABLE_H
#define TIDEMILL_KERNEL_TABLE_H

#include "kernels/gemm.h"
#include "kernels/kernels.h"

/* AdamW's operands, in a device's memory, and a step's constants: those of optimizer.h, which this folder does not
 * know. Weights are `weight` (fp32) or its halves. */
typedef struct tm_adamw_args {
    float *weight;
    uint16_t *hi, *lo;
    const void *grad;
    float *exp_avg, *exp_avg_sq;
    uint64_t n;
    tm_elem grad_type;
    float grad_scale, decay, l2, one_minus_beta1, beta1, beta2, one_minus_beta2, bc2_sqrt, eps, neg_step_size;
    bool use_l2, lerp_from_end;
} tm_adamw_args;

typedef struct tm_kernel_table {
    __typeof__(tm_gemm) *gemm;
    __typeof__(tm_norm_forward) *norm_forward;
    __typeof__(tm_norm_backward) *norm_backward;
    __typeof__(tm_rope_apply) *rope_apply;
    __typeof__(tm_glu_forward) *glu_forward;
    __typeof__(tm_glu_backward) *glu_backward;
    __typeof__(tm_softcap) *softcap;
    __typeof__(tm_scale) *scale;
    __typeof__(tm_add_bias) *add_bias;
    __typeof__(tm_column_sum) *column_sum;
    __typeof__(tm_embed_forward) *embed_forward;
    __typeof__(tm_embed_backward) *embed_backward;
    __typeof__(tm_attention_forward) *attention_forward;
    __typeof__(tm_attention_backward) *attention_backward;
    __typeof__(tm_head_update) *head_update;
    __typeof__(tm_head_gradient) *head_gradient;
    __typeof__(tm_gather_rows) *gather_rows;
    __typeof__(tm_scatter_add_rows) *scatter_add_rows;
    __typeof__(tm_zero) *zero;
    /* of adapters; NULL in a table that lacks TM_KERNEL_ADAPTERS */
    __typeof__(tm_dropout_apply) *dropout;
    __typeof__(tm_squares_sum) *squares;
    __typeof__(tm_magnitude_forward) *magnitude_forward;
    __typeof__(tm_magnitude_backward) *magnitude_backward;
    __typeof__(tm_gather_columns) *gather_columns;
    __typeof__(tm_scatter_add_columns) *scatter_add_columns;
    /* as memcpy */
    void (*copy)(void *to, const void *from, uint64_t bytes);
    /* state[0, rows): nothing seen yet, {max = -inf, sum = 0, label = 0} */
    void (*head_begin)(uint64_t rows, tm_head_state *state);
    /* As tm_grad_finish_f32 and _bf16 of optim: bits and order of the partial sums too. NULL in the host's table. */
    void (*grad_finish)(tm_elem t, const float *sum, void *grad, uint64_t n, double *partial);
    /* As optim's adamw: the same bits. *nonfinite, in host memory, has been added to when the operation is complete.
     * NULL in the host's table. */
    void (*adamw)(const tm_adamw_args *a, uint64_t *nonfinite);
} tm_kernel_table;

/* What rows are asked for beyond a Llama's. A device may lack some; the host's table has all. */
typedef enum tm_kernel_feature {
    TM_KERNEL_NORMS,       /* norms that are not root mean squares of whole rows, or that add a residual */
    TM_KERNEL_ROTARY,      /* of a part of a head, of neighbours, with a factor */
    TM_KERNEL_ACTIVATIONS, /* other than the silu whose factor lies beside it */
    TM_KERNEL_SOFTCAPS,
    TM_KERNEL_TEMPERATURE, /* of attention's scores */
    TM_KERNEL_APART,       /* attention to values that do not lie beside the keys */
    TM_KERNEL_EMBEDDINGS,  /* that are scaled, or added to */
    TM_KERNEL_WIDE_HEADS,  /* of more than 256 columns */
    TM_KERNEL_SCALES,      /* by an element of the weights */
    TM_KERNEL_ADAPTERS,    /* with dropout or magnitudes, or of an embedding */
    TM_KERNEL_DOCUMENTS,   /* several in a row: attention and positions by document */
    TM_KERNEL_FEATURES
} tm_kernel_feature;
/* The row, and what of it: "softcap". In the header for the devices' modules, which share no code with the program. */
static inline const char *tm_kernel_feature_name(tm_kernel_feature f) {
    static const char *const names[TM_KERNEL_FEATURES] = {
        [TM_KERNEL_NORMS] = "norm (LayerNorm, 1 + w, by heads, or with a residual)",
        [TM_KERNEL_ROTARY] = "rope_apply (of a part of a head, of neighbours, or with a factor)",
        [TM_KERNEL_ACTIVATIONS] = "glu (another activation than the gated silu)",
        [TM_KERNEL_SOFTCAPS] = "softcap",
        [TM_KERNEL_TEMPERATURE] = "attention (scores that grow with the position)",
        [TM_KERNEL_APART] = "attention (values that lie apart)",
        [TM_KERNEL_EMBEDDINGS] = "embed (scaled, or added to)",
        [TM_KERNEL_WIDE_HEADS] = "attention (heads of more than 256 columns)",
        [TM_KERNEL_SCALES] = "scale",
        [TM_KERNEL_ADAPTERS] = "dropout, DoRA's magnitudes, LoRA of an embedding",
        [TM_KERNEL_DOCUMENTS] = "attention and rope_apply (of packed rows)"};
    return names[f];
}

/* What rows need beside their operands, and the grids of their sums: part of the plan and of the result's bits, so that
 * it is known without a device. 0 and NULL: as on the host. */
typedef struct tm_kernel_sizes {
    uint64_t (*norm_workspace)(uint64_t rows, uint64_t n);
    uint64_t (*attention_workspace)(const tm_attention *a, bool backward);
    uint32_t token_chunk; /* token rows that products run over at a time, a multiple of 64 */
    uint32_t vocab_block; /* columns of logits that exist at a time */
} tm_kernel_sizes;

const tm_kernel_table *tm_kernels_host(void);

#endif
