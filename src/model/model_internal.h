/* The folder's own: what a tm_model holds, and how a stage finds its matrices.
 *
 * Slots of a block: 0 x, 1 output, 2 qkv (q and k rotated), 3 o, 4 lse, 5 mid (after attention's residual), 6 gate_up.
 * Slots of the head: 0 x, 2 normed, 3 state. A stage's part 0 is its matrix, part 1 the unit's small part (a norm stage
 * has the small part alone).
 *
 * Where q, k, v (gate, up) are too large for one part, each has a stage of its own, and their common norm becomes a
 * stage with a slot (7, 8): its weight's gradient must be one contribution a micro-batch, or the order of stages and
 * micro-batches would change bits.
 */
#ifndef TIDEMILL_MODEL_INTERNAL_H
#define TIDEMILL_MODEL_INTERNAL_H

#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "model/model.h"

enum {
    MODEL_VOCAB_PART = 8192,  /* vocabulary rows of a part */
    MODEL_VOCAB_BLOCK = 2048, /* columns of logits that exist at a time */
    MODEL_TOKEN_CHUNK = 512,  /* token rows that a stage works on at a time: also the grid of sums over tokens */
    MODEL_TOKEN_GRAIN = 16,   /* products run over rows*seq rounded up to this */
    MODEL_FUSED_ELEMENTS = 8 * 1024 * 1024 /* q, k, v (gate, up) are one part up to this size */
};

enum { SLOT_X, SLOT_OUT, SLOT_QKV, SLOT_O, SLOT_LSE, SLOT_MID, SLOT_GATE_UP, SLOT_ATTN_NORMED, SLOT_MLP_NORMED };
enum { SLOT_NORMED = 2, SLOT_STATE = TM_HEAD_SLOT_STATE };
enum { PART_MATRIX = 0, PART_SMALL = 1 };

typedef enum stage_code {
    STAGE_EMBED,
    STAGE_NORM,
    STAGE_ATTN_IN,
    STAGE_ATTN,
    STAGE_ATTN_OUT,
    STAGE_MLP_IN,
    STAGE_MLP_OUT,
    STAGE_HEAD
} stage_code;

/* Where the vectors of a block's small part begin, in elements; biases only where `has`. */
typedef struct small_layout {
    uint64_t norm1, norm2, qkv_bias, o_bias, gate_up_bias, down_bias, elements;
} small_layout;

struct tm_model {
    tm_model_config config;
    tm_dtype compute;
    tm_rope rope;
    small_layout small;
    tm_kernel_sizes sizes;             /* of the kernels that compute it; functions are set */
    uint32_t token_chunk, vocab_block; /* MODEL_TOKEN_CHUNK, MODEL_VOCAB_BLOCK, or what those kernels like better */
    uint64_t fused_elements;           /* MODEL_FUSED_ELEMENTS, or less in a test */
    bool fused_qkv, fused_gate_up;
    uint64_t parameters;
    uint32_t n_units, n_parts, n_tensors, n_segments, n_stages;
    tm_unit *unit;
    tm_stage *stage;
    tm_part *part;
    tm_tensor *tensor;
    tm_segment *by_tensor, *by_part;
    struct model_names *names; /* all strings */
};

tm_status model_build_tables(tm_model *m);
void model_free_tables(tm_model *m);
/* tm_model_create with another limit for fused parts. */
tm_status model_create_fused(tm_model **out, const tm_model_config *config, tm_dtype compute, uint64_t fused_elements);

static inline tm_elem model_elem(const tm_model *m) {
    return (tm_elem)m->compute;
}
static inline uint64_t model_q_columns(const tm_model_config *c) {
    return (uint64_t)c->num_attention_heads * c->head_dim;
}
static inline uint64_t model_kv_columns(const tm_model_config *c) {
    return (uint64_t)c->num_key_value_heads * c->head_dim;
}
static inline uint64_t model_qkv_columns(const tm_model_config *c) {
    return model_q_columns(c) + 2 * model_kv_columns(c);
}
static inline uint32_t model_vocab_parts(const tm_model_config *c) {
    return (c->vocab_size + MODEL_VOCAB_PART - 1) / MODEL_VOCAB_PART;
}
static inline uint32_t model_part_rows(const tm_model_config *c, uint32_t part) {
    return (uint32_t)tm_min_u64(MODEL_VOCAB_PART, c->vocab_size - (uint64_t)part * MODEL_VOCAB_PART);
}
/* Token rows that hold tokens, and those that products run over. */
static inline uint64_t model_used(const tm_micro_batch *b) {
    return (uint64_t)b->rows * b->seq;
}
static inline uint64_t model_rows(const tm_micro_batch *b) {
    return tm_round_up(model_used(b), MODEL_TOKEN_GRAIN);
}
static inline const tm_stage *model_stage_of(const tm_stage_args *a) {
    return &a->model->unit[a->unit].stage[a->stage];
}
static inline void *model_row(tm_elem t, void *x, uint64_t row, uint64_t n) {
    return (char *)x + row * n * tm_elem_bytes(t);
}
static inline const void *model_row_const(tm_elem t, const void *x, uint64_t row, uint64_t n) {
    return (const char *)x + row * n * tm_elem_bytes(t);
}
/* Takes `bytes` from the front of a workspace, in steps of 64. */
static inline void *model_take(char **at, uint64_t bytes) {
    void *p = *at;
    *at += tm_round_up(bytes, 64);
    return p;
}
static inline bool model_fresh(uint32_t bits, unsigned slot) {
    return (bits >> slot) & 1U;
}

/* Rows [model_rows, tokens) of something that is `row_bytes` wide become zero. */
void model_zero_tail(const tm_stage_args *a, void *x, uint64_t row_bytes);
/* The small part's gradient, zeroed if this is the first contribution: others than the caller's vector have to be added
 * to it later. NULL: not wanted. */
float *model_small_gradient(const tm_stage_args *a, unsigned part);

/* Stages, one pair a kind. */
typedef uint64_t stage_workspace(const tm_model *m, const tm_stage *s, bool backward, uint32_t rows, uint32_t seq);
void norm_forward(const tm_stage_args *a);
void norm_backward(const tm_stage_args *a);
stage_workspace norm_workspace;
void in_forward(const tm_stage_args *a);
void in_backward(const tm_stage_args *a);
stage_workspace in_workspace;
void attention_forward(const tm_stage_args *a);
void attention_backward(const tm_stage_args *a);
stage_workspace attention_workspace;
void attention_out_forward(const tm_stage_args *a);
void attention_out_backward(const tm_stage_args *a);
void mlp_out_forward(const tm_stage_args *a);
void mlp_out_backward(const tm_stage_args *a);
stage_workspace mlp_out_workspace;
void embed_forward(const tm_stage_args *a);
void embed_backward(const tm_stage_args *a);
void head_forward(const tm_stage_args *a);
void head_backward(const tm_stage_args *a);
stage_workspace head_workspace;

#endif
