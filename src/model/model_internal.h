/* The folder's own: what a tm_model holds, and how a stage finds its matrices.
 *
 * Slots of a block: 0 x, 1 output, 2 qkv (q and k rotated, unless slot 9 has them), 3 o, 4 lse, 5 mid (after attention's
 * residual), 6 gate_up.
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

typedef struct stage_spec stage_spec;

enum {
    MODEL_VOCAB_PART = 8192,  /* vocabulary rows of a part, */
    MODEL_INPUTS_PART = 256,  /* or at least so many, where rows are the inputs of all blocks */
    MODEL_VOCAB_BLOCK = 2048, /* columns of logits that exist at a time */
    MODEL_TOKEN_CHUNK = 512,  /* token rows that a stage works on at a time: also the grid of sums over tokens */
    MODEL_TOKEN_GRAIN = 16,   /* products run over rows*seq rounded up to this */
    MODEL_FUSED_ELEMENTS = 8 * 1024 * 1024 /* q, k, v (gate, up) are one part up to this size */
};

enum {
    SLOT_X,
    SLOT_OUT,
    SLOT_QKV,
    SLOT_O,
    SLOT_LSE,
    SLOT_MID,
    SLOT_GATE_UP,
    SLOT_ATTN_NORMED,
    SLOT_MLP_NORMED,
    SLOT_QK,       /* q and k, normed and rotated, where they have norms of their own; SLOT_QKV then is as projected */
    SLOT_ATTN_ADD, /* what attention and MLP add to the residual, where that is normed first */
    SLOT_MLP_ADD,
    SLOT_KV,    /* keys and values as attention reads them, where SLOT_QK has queries alone; may be another block's */
    SLOT_LATE,  /* after the MLP's residual, where the block goes on */
    SLOT_INPUT, /* inputs of all blocks: the embedding's SLOT_INPUTS */
    SLOT_INPUT_GATE, /* what gates them, and what they add to the residual */
    SLOT_INPUT_ADD,
    NO_SLOT = 255
};
enum { SLOT_ADAPTER = 4 }; /* of the head: what its adapter's A makes of the normed rows */
enum { SLOT_NORMED = 2, SLOT_STATE = TM_HEAD_SLOT_STATE };
enum { SLOT_INPUTS_IN = 2, SLOT_INPUTS }; /* of the embedding: blocks' own inputs, as projected, and whole */
enum { PART_MATRIX = 0, PART_SMALL = 1 };

/* Kinds of stages: rows of the table in stage.c. */
typedef enum stage_code {
    STAGE_EMBED,
    STAGE_NORM,
    STAGE_IN,
    STAGE_QK,
    STAGE_ATTENTION,
    STAGE_OUT,
    STAGE_GLU_OUT,
    STAGE_POST,
    STAGE_POSITIONS,
    STAGE_EMBED_ADAPTER,
    STAGE_HEAD
} stage_code;

enum {
    STAGE_LOOKS_UP = 1,     /* of its part it touches a row a token, and the first of its unit clears the output */
    STAGE_OF_VOCABULARY = 2 /* computes a share of the vocabulary: seconds go with the share */
};
typedef struct stage_kind {
    const char *name;
    void (*forward)(const tm_stage_args *a);
    void (*backward)(const tm_stage_args *a);
    uint64_t (*workspace)(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows,
                          uint32_t seq);                                      /* bytes; NULL: none */
    double (*flops)(const stage_spec *s, bool backward, const tm_load *load); /* NULL: none to speak of */
    unsigned traits;
} stage_kind;

/* Bits of stage_spec.without. */
enum {
    WITHOUT_MATRIX = 1,  /* of the matrix, which is frozen */
    WITHOUT_SMALL = 2,   /* of the stage's vectors */
    WITHOUT_PRODUCT = 4, /* of what is multiplied by the matrix */
    WITHOUT_INPUT = 8    /* of the input slot; a norm's kernel, which has to write one, writes it into the workspace */
};
#define NO_VECTOR UINT64_MAX
enum { NO_ROPE = 255 };
/* What a stage computes. A kind reads what it needs; the rest is 0 (NO_VECTOR). No padding: stages are compared byte by
 * byte. */
struct stage_spec {
    const stage_kind *kind;
    uint64_t width;                         /* elements of an input row that are summed over, or normed */
    uint64_t column, columns, row_columns;  /* it computes columns [column, column + columns) of output rows that have
                                              row_columns; embed: that many ids of the vocabulary */
    uint64_t norm, norm_bias, norm_k, bias; /* where its vectors begin in the unit's small part; NO_VECTOR: has none.
                                               STAGE_QK: norm is q's, norm_k is k's */
    uint64_t scalar;                        /* STAGE_POST: of one element, which multiplies the sum */
    uint64_t up_column, up_row;    /* STAGE_GLU_OUT: where its factor begins in rows of `values`, and their width */
    uint8_t in, out;               /* slots */
    uint8_t residual;              /* slot that is added to the product or norm; NO_SLOT: none is */
    uint8_t normed;                /* slot that holds the normed input, 0: STAGE_IN norms it itself */
    uint8_t values;                /* slot of attention's values, whose keys lie beside the queries; of STAGE_GLU_OUT's
                                   factor, NO_SLOT: it lies beside the gate */
    uint8_t rope;                  /* index of the model's; NO_ROPE: nothing turns */
    uint8_t norm_kind, activation; /* tm_norm_kind, tm_activation */
    bool transposed;               /* the matrix is [in, out] */
    bool plain;                    /* the MLP has no gate */
    bool norm_whole;               /* STAGE_QK: of all heads together */
    uint8_t without;               /* gradients that backward does not compute: WITHOUT_* */
    bool kv_apart; /* keys lie in `values` before the values. STAGE_QK: norms those too; NO_SLOT: has queries alone */
    bool keys_are_values; /* STAGE_QK: no values are projected */
    bool adds;            /* STAGE_EMBED: to what is there */
    uint8_t unused[5];
    float epsilon;    /* of the norm */
    uint32_t rotated; /* heads that RoPE turns, from `column` on */
    uint32_t heads, kv_heads, head_dim, window;
    float scale;   /* of attention's scores; of the product (out, glu_out, head), of what is looked up (embed) */
    float softcap; /* of attention's scores or of logits; 0: none */
    float temperature;
    uint32_t temperature_every;
    uint32_t rank;             /* of the adapter; 0: has none */
    uint64_t lora_a, lora_b;   /* where they begin in the unit's adapter part, which is the stage's last */
    uint64_t magnitude;        /* the same of DoRA's; 0: has none */
    uint64_t first_a, first_b; /* of PiSSA's first A and B; 0: has none */
    float lora_scale;
    uint32_t dropped; /* 65536ths of what goes into A */
};
_Static_assert(sizeof(stage_spec) == sizeof(void *) + 11 * 8 + 20 + 11 * 4 + 6 * 8, "stage_spec has no padding");

struct tm_model {
    tm_model_config config;
    tm_dtype compute;
    tm_rope rope[4];    /* of blocks, of windowed blocks where they have their own; from 2 on: the same for long rows */
    uint32_t positions; /* of the longest row; 0: of the micro-batch */
    uint32_t long_rows[2];             /* rows of more positions take rope[2 + i]; 0: none do */
    tm_kernel_sizes sizes;             /* of the kernels that compute it; functions are set */
    uint32_t token_chunk, vocab_block; /* MODEL_TOKEN_CHUNK, MODEL_VOCAB_BLOCK, or what those kernels like better */
    uint64_t fused_elements;           /* MODEL_FUSED_ELEMENTS, or less in a test */
    uint64_t parameters;
    uint64_t dropout_seed;
    uint32_t dropped; /* 65536ths of what goes into an adapter */
    bool transposed;  /* the architecture's matrices are [in, out] */
    uint32_t n_units, n_parts, n_tensors, n_segments, n_stages;
    tm_unit *unit;
    tm_stage *stage;
    stage_spec *spec; /* of each stage */
    tm_part *part;
    tm_tensor *tensor;
    tm_segment *by_tensor, *by_part;
    struct model_names *names; /* all strings */
};

/* roles.c: takes out of the tables of backward what nothing that learns needs. */
TM_MUST_USE tm_status model_prune(tm_model *m);

/* tm_model_create with another limit for fused parts. */
tm_status model_create_fused(tm_model **out, const tm_model_config *config, tm_dtype compute, uint64_t fused_elements);

static inline tm_elem model_elem(const tm_model *m) {
    return (tm_elem)m->compute;
}
/* Token rows that hold tokens, and those that products run over. */
static inline uint64_t model_used(const tm_micro_batch *b) {
    return (uint64_t)b->rows * b->seq;
}
static inline uint64_t model_rows(const tm_micro_batch *b) {
    return b->exact ? model_used(b) : tm_round_up(model_used(b), MODEL_TOKEN_GRAIN);
}
static inline tm_positions model_positions(const tm_micro_batch *b) {
    return (tm_positions){b->position, b->seq, b->begin};
}
static inline const tm_stage *model_stage_of(const tm_stage_args *a) {
    return &a->model->unit[a->unit].stage[a->stage];
}
static inline const stage_spec *model_spec_of(const tm_stage_args *a) {
    return model_stage_of(a)->spec;
}
/* STAGE_IN: whether the norm is a part of it, not a stage before. */
static inline bool model_norms_itself(const stage_spec *s) {
    return !s->normed && s->norm != NO_VECTOR;
}
/* The rotary embedding of a stage's rows; NULL: none. */
static inline const tm_rope *model_rope(const tm_stage_args *a) {
    const tm_model *m = a->model;
    const stage_spec *s = model_spec_of(a);
    if (s->rope == NO_ROPE) return NULL;
    uint32_t last = m->positions ? m->positions : a->batch->seq, most = m->long_rows[s->rope];
    return &m->rope[most && last > most ? s->rope + 2 : s->rope];
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

/* Token rows that a stage works on at a time. `a` are the stage's arguments. */
typedef struct model_chunk {
    uint64_t row, rows;
} model_chunk;
#define MODEL_CHUNKS(c, total)                                                                                         \
    for (model_chunk c = {0, tm_min_u64(a->model->token_chunk, total)}; c.row < (total);                               \
         c.row += a->model->token_chunk, c.rows = tm_min_u64(a->model->token_chunk, (total)-tm_min_u64(total, c.row)))
static inline uint64_t model_chunk_rows(const tm_model *m, uint32_t rows, uint32_t seq) {
    return tm_min_u64(m->token_chunk, tm_round_up((uint64_t)rows * seq, MODEL_TOKEN_GRAIN));
}

/* A stage's product with its matrix and its adapter, for the length of a call (product.c). Its scratch comes first in the
 * stage's workspace. */
typedef struct model_product {
    const tm_stage_args *a;
    const stage_spec *s;
    bool adapted;                  /* it has an adapter, which is on */
    const void *lora_a, *lora_b;   /* NULL: has no adapter */
    const void *first_a, *first_b; /* NULL: is not PiSSA's */
    float *d_a, *d_b, *d_magnitude;
    bool drops;
    uint64_t key;                    /* of what drops */
    void *dropped, *xa;              /* of a chunk: what goes into A, [rows][width], and what comes out, [rows][rank] */
    float *product, *squares;        /* DoRA: [rows][columns]; [columns], the norms of the adapted matrix's outputs */
    float *delta;                    /* some rows of the adapter's matrix */
    void *g, *d_product, *d_dropped; /* gradients of xa, of the product, of `dropped` */
    /* of the chunk under way: the output's gradient, and the product's, which is the same but for DoRA */
    const void *d_y, *dy;
    uint64_t ld_d_y, ld_dy;
} model_product;
model_product model_product_open(const tm_stage_args *a, char **at, bool backward);
uint64_t model_product_workspace(const tm_model *m, const stage_spec *s, bool backward, uint64_t rows);
/* Y[rows, columns] = scale (X W^T + lora_scale drop(X) A^T B^T) + beta Y of a chunk, with DoRA's factors, less PiSSA's
 * first */
void model_product_forward(const model_product *p, model_chunk c, const void *x, float beta, void *y, uint64_t ldy);
/* Backward of a chunk begins with its output's gradient; then dX = .. + beta dX, and the gradients of the matrix (written
 * if fresh) and of the adapter. */
void model_product_begin_back(model_product *p, model_chunk c, const void *dy, uint64_t ldy);
void model_product_input_gradient(const model_product *p, model_chunk c, float beta, void *dx, tm_elem dx_type);
void model_product_weight_gradients(const model_product *p, model_chunk c, const void *x);
bool model_product_learns(const model_product *p);
/* The head's A, in the norm's stage (head.c): normed rows to SLOT_ADAPTER; backward returns the gradient of a chunk's
 * normed rows with the adapter's part, in scratch at *at. */
void model_head_adapter_forward(const tm_stage_args *a);
const float *model_head_adapter_back(const tm_stage_args *a, model_chunk c, float *grad, char **at);
uint64_t model_head_adapter_workspace(const tm_model *m, const stage_spec *s, bool backward, uint64_t rows);
/* Its products beside the matrix's. */
double model_adapter_flops(const stage_spec *s, bool backward, const tm_load *load);
/* What drops is keyed by this, where any does. */
uint64_t model_dropout_key(const tm_stage_args *a);
bool model_drops(const tm_stage_args *a);

/* Rows [model_rows, tokens) of something that is `row_bytes` wide become zero. */
void model_zero_tail(const tm_stage_args *a, void *x, uint64_t row_bytes);
/* The small part's gradient, zeroed if this is the first contribution: others than the caller's vector have to be added
 * to it later. NULL: not wanted. */
float *model_small_gradient(const tm_stage_args *a, unsigned part);

/* Stages, by kind (block.c, head.c). */
const stage_kind *model_stage_kind(stage_code code);
typedef void stage_fn(const tm_stage_args *a);
typedef uint64_t stage_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq);
typedef double stage_flops(const stage_spec *s, bool backward, const tm_load *load);
stage_fn embed_adapter_forward, embed_adapter_backward;
stage_fn norm_forward, norm_backward, in_forward, in_backward, qk_forward, qk_backward, attention_forward,
    attention_backward, out_forward, out_backward, glu_out_forward, glu_out_backward, post_forward, post_backward,
    embed_forward, embed_backward, positions_forward, positions_backward, head_forward, head_backward;
stage_workspace norm_workspace, in_workspace, out_workspace, embed_adapter_workspace, qk_workspace, attention_workspace,
    glu_out_workspace, post_workspace, positions_workspace, head_workspace;
stage_flops attention_flops, head_flops, embed_adapter_flops;
stage_flops model_product_flops; /* one product forward, two backward; the adapter's beside them */

#endif
