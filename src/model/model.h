/* model: what is computed. A model is a table of units, parts, slots and stages, and two functions that run a stage on
 * resident pointers. It never sees a file, a tier or an optimizer.
 *
 *   unit    embedding, one transformer block, or the head: what is visited together.
 *   part    what one kernel call needs of a unit's weights: a matrix, some fused matrices, the small vectors of the
 *           unit together, or 8,192 rows of the vocabulary. Contiguous in memory while it is used. Part ids are global.
 *   segment a run of elements that a checkpoint tensor and a part have in common.
 *   slot    a per-token value inside a unit for one micro-batch (input, q/k/v, ...): a row for each of the
 *           micro-batch's T token rows, `slot.bytes` each. Slot 0 is the unit's input, slot 1 its output. A slot may
 *           have a gradient, and be an earlier unit's (a bridge).
 *   stage   one kernel call: reads slots and parts, writes slots. Forward runs a unit's stages 0..n-1 for a
 *           micro-batch, backward n-1..0.
 *
 * Whoever calls decides where parts, slots and gradients lie, in which order units, stages and micro-batches run (each
 * stage may run over all micro-batches before the next, or the other way round: same bits), and what is kept or
 * recomputed between forward and backward. The result is a function of (model, batch shapes, precision, threads, ISA).
 *
 * T = round_up(rows * seq, 64) token rows; row b, position s is token row b*seq + s. Rows past rows*seq are zero.
 *
 * Threads: a tm_model is immutable after creation; stages run OpenMP teams inside; one stage at a time.
 */
#ifndef TIDEMILL_MODEL_H
#define TIDEMILL_MODEL_H

#include "base/adapter_spec.h"
#include "base/base.h"
#include "kernels/kernel_table.h"
#include "kernels/packed.h"

typedef enum tm_dtype { TM_F32, TM_BF16, TM_F16 } tm_dtype;
static inline uint64_t tm_dtype_bytes(tm_dtype t) {
    return t == TM_F32 ? 4 : 2;
}

/* ---- configuration: HF config.json, v4 and v5 forms ------------------------------------------------------------- */

typedef enum tm_rope_type {
    TM_ROPE_DEFAULT,
    TM_ROPE_LINEAR,
    TM_ROPE_LLAMA3,
    TM_ROPE_YARN,
    TM_ROPE_LONGROPE,
    TM_ROPE_PROPORTIONAL
} tm_rope_type;
/* rope_parameters of Hugging Face; what a type does not use is 0. */
typedef struct tm_rope_config {
    tm_rope_type type;
    double theta, factor, low_freq_factor, high_freq_factor;
    double beta_fast, beta_slow;
    double attention_factor; /* of cosines and sines, as it follows from all keys; 1: none */
    bool truncate;           /* yarn: whole correction dimensions */
    uint32_t head_dim;       /* of the blocks that it is for */
    uint32_t rotary;         /* columns of a head that turn */
    uint32_t pairs;          /* proportional: the first so many of all pairs turn */
    uint32_t original_max_position;
    uint32_t n_factors; /* longrope */
    float short_factor[TM_MAX_HEAD_DIM / 2], long_factor[TM_MAX_HEAD_DIM / 2];
} tm_rope_config;
enum { TM_MAX_LAYERS = 4096 };
typedef struct tm_layer_set { /* of block numbers */
    uint64_t bits[TM_MAX_LAYERS / 64];
} tm_layer_set;
static inline bool tm_layer_in(const tm_layer_set *s, uint32_t layer) {
    return s->bits[layer / 64] >> layer % 64 & 1;
}

/* Where blocks differ from each other (Gemma 4). 0: they do not. */
typedef struct tm_block_kinds {
    uint32_t full_head_dim, full_kv_heads; /* of blocks without a window */
    bool keys_are_values; /* blocks without a window project no values: those are keys as projected, normed */
    uint32_t shared;      /* the last so many blocks read keys and values of the last block before them of their kind */
    bool shared_wide;     /* and have an MLP twice as wide */
    uint32_t input_width; /* columns of an input that each block has of its own, beside the residual */
    uint32_t input_vocab; /* ids that these inputs are looked up for */
} tm_block_kinds;

typedef struct tm_model_config {
    char model_type[32]; /* a row of arch.c: "llama", "mistral" */
    uint32_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
    uint32_t num_attention_heads, num_key_value_heads, head_dim;
    uint32_t max_position_embeddings;
    bool learned_positions;  /* a row of weights each: there are no more of them */
    uint32_t sliding_window; /* 0: none; else position i of the blocks `windowed` sees j with i - window < j <= i */
    tm_layer_set windowed;   /* blocks that look through the window */
    tm_layer_set no_rope;    /* blocks without rotary embedding */
    bool tie_word_embeddings, attention_bias /* of q, k, v */, attention_out_bias, mlp_bias;
    tm_activation activation;
    double rms_norm_eps, initializer_range;  /* eps of LayerNorms as well */
    double embedding_scale, residual_scale;  /* 1: none */
    double attention_scale;                  /* of scores; 0: 1 / sqrt(head_dim) */
    double logits_scale;                     /* logits are divided by it; 1: none */
    double attention_softcap, final_softcap; /* 0: none */
    double temperature;                 /* scores of a query times 1 + temperature ln(1 + floor(position / every)); */
    uint32_t temperature_every;         /* every: 0: none */
    tm_rope_config rope, rope_windowed; /* of blocks, and of windowed blocks where `two_ropes` */
    bool two_ropes;
    tm_block_kinds kinds;
    bool dropout;   /* config.json asks for some, which is not computed */
    bool composite; /* the text part of a model that has others */
    /* what the checkpoint's names begin with instead of the architecture's own ("model."), and what the head's do;
     * unless `named`: as the architecture has them */
    bool named;
    char body_names[40], head_names[40];
    int32_t bos_token_id; /* -1: none */
    int32_t eos_token_id[8];
    uint32_t n_eos;
} tm_model_config;
/* What a config.json that is refused asks for and is not here, a line each: "rope_scaling type "X"". Empty: it is not
 * refused. TM_EINPUT: no JSON. */
TM_MUST_USE tm_status tm_model_missing(const char *json, size_t len, tm_buf *out);
/* Unknown architectures are TM_EUNSUPPORTED and name what is supported; sizes are checked against overflow. */
TM_MUST_USE tm_status tm_model_config_parse(tm_model_config *out, const char *json, size_t len, const char *name);
/* Finds what the names of a checkpoint begin with, by asking whether it has the embedding. False: it has none. */
bool tm_model_find_names(tm_model_config *c, bool (*has)(void *ctx, const char *name), void *ctx);
/* TM_EINPUT where rows of so many positions have no learned ones; `what` names the number. */
TM_MUST_USE tm_status tm_model_check_positions(const tm_model_config *c, uint64_t positions, const char *what);

/* ---- description ------------------------------------------------------------------------------------------------- */

typedef enum tm_init {
    TM_INIT_NORMAL,
    TM_INIT_UNIFORM, /* in (-bound, bound) */
    TM_INIT_ONE,
    TM_INIT_ZERO,
    TM_INIT_NORMS /* of the adapted matrix's outputs, which the caller finds by tm_model_add_squares */
} tm_init;
typedef enum tm_tensor_role {
    TM_TENSOR_BASE, /* of the checkpoint */
    TM_TENSOR_LORA_A,
    TM_TENSOR_LORA_B,
    TM_TENSOR_EMBEDDING_A,
    TM_TENSOR_EMBEDDING_B,
    TM_TENSOR_MAGNITUDE,
    TM_TENSOR_FIRST_A, /* PiSSA's: what A and B were, which do not learn. As A and B, the caller has their values */
    TM_TENSOR_FIRST_B
} tm_tensor_role;
typedef struct tm_tensor {
    const char *name; /* as in the checkpoint: "model.layers.0.self_attn.q_proj.weight" */
    uint32_t ndim;
    uint64_t shape[4], elements;
    uint8_t init;         /* tm_init */
    double init_size;     /* deviation, or bound */
    bool is_norm_or_bias; /* for no_decay */
    bool learns;          /* the update changes it; else it is frozen */
    uint8_t role;         /* tm_tensor_role */
    uint32_t of; /* of an adapter: the tensor that it adapts; of a head that was tied: the embedding, whose values it
                    begins with; else the tensor itself */
    uint32_t first_segment, n_segments;
} tm_tensor;
typedef struct tm_segment {
    uint32_t tensor, part;
    uint64_t tensor_offset, part_offset, elements; /* in elements */
} tm_segment;
typedef struct tm_part {
    uint32_t unit; /* the owner; a tied head uses the embedding's parts */
    uint64_t elements;
    uint32_t first_segment, n_segments; /* indices into part_segments (sorted by part_offset, no gaps) */
    const char *name;                   /* "layers.0.qkv" */
    bool learns;                        /* one of its tensors does */
} tm_part;

enum { TM_MAX_SLOTS = 20, TM_MAX_STAGE_USES = 10, TM_MAX_STAGE_PARTS = 8 };
typedef enum tm_access {
    TM_READ = 1,
    TM_WRITE = 2,
    TM_UPDATE = 3 /* reads and writes: accumulates into it */
} tm_access;
typedef struct tm_slot {
    const char *name;
    uint32_t bytes;      /* per token row, 0: the slot does not exist */
    uint32_t grad_bytes; /* of its gradient per token row, 0: has none */
    /* A bridge: it is `of_slot` of the earlier unit `of_unit`, and so is its gradient, which every unit that uses it adds
     * to: complete when backward reaches the unit that writes the slot. Its value is not computed again here. */
    bool bridged;
    uint8_t of_slot;
    uint32_t of_unit;
} tm_slot;
typedef struct tm_slot_use {
    uint8_t slot;
    bool grad;      /* the slot's gradient, else its value */
    uint8_t access; /* tm_access; the first TM_UPDATE of a pass is told so (fresh) and writes */
} tm_slot_use;
typedef struct tm_stage {
    const char *name;              /* "attn_in", "attn", "attn_out", "mlp_in", "mlp_out", "embed", "norm", "head" */
    const struct stage_spec *spec; /* what it computes: private to src/model */
    uint8_t n_forward, n_backward, n_parts;
    tm_slot_use forward[TM_MAX_STAGE_USES], backward[TM_MAX_STAGE_USES];
    uint32_t part[TM_MAX_STAGE_PARTS];
    bool part_in_forward[TM_MAX_STAGE_PARTS]; /* the weights are read */
    bool part_in_backward[TM_MAX_STAGE_PARTS];
    bool part_gradient[TM_MAX_STAGE_PARTS]; /* backward accumulates into the part's fp32 gradient */
    bool has_backward;                      /* false: nothing that learns needs it to be run backward */
    bool uses_kv_cache;                     /* may be given a cache of kv_bytes per row and position */
} tm_stage;
typedef enum tm_unit_kind { TM_UNIT_EMBED, TM_UNIT_BLOCK, TM_UNIT_HEAD } tm_unit_kind;
typedef struct tm_unit {
    tm_unit_kind kind;
    const char *name; /* "embed", "layers.3", "head" */
    uint32_t n_stages;
    const tm_stage *stage;        /* head: stage 0 is the norm, then one stage per vocabulary part */
    uint32_t first_part, n_parts; /* parts that this unit owns */
    tm_slot slot[TM_MAX_SLOTS];   /* 0: input, 1: output (embed has no input; head has no output) */
    uint32_t kv_bytes;            /* of a key-value cache per row and position, 0: none of its own */
    uint32_t kv_window;           /* of its attention, whose keys are all that is read of it; 0: all are */
    uint32_t kv_unit;             /* whose cache its stages use: its own, or an earlier unit's */
} tm_unit;

/* Which tensors learn. Of a frozen tensor backward computes no gradient; of what depends on nothing that learns neither,
 * nor are slots read, or gradients written, for that alone. Matrices are then parts of their own, as the checkpoint has
 * them. */
typedef struct tm_model_roles {
    bool (*learns)(void *ctx, const char *tensor); /* of the checkpoint; NULL: none does */
    /* Has the module (a tensor's name without ".weight") an adapter? NULL: none has. Its tensors learn and are named
     * after it as PEFT names them: "X.lora_A.weight", "X.lora_B.weight", "X.lora_magnitude_vector",
     * "X.lora_embedding_A", "X.lora_embedding_B"; PiSSA's first A and B, which do not learn, "X.lora_A.first". */
    bool (*adapts)(void *ctx, const char *module, tm_adapter_spec *out);
    void *ctx;
    double dropout; /* of what goes into A, in [0, 1) */
    uint64_t seed;  /* of dropout */
    bool untied;    /* the head of a tied model is a tensor of its own, which begins as the embedding */
} tm_model_roles;

typedef struct tm_model tm_model;
TM_MUST_USE tm_status tm_model_create(tm_model **out, const tm_model_config *config, tm_dtype compute);
/* `roles`, of which nothing is kept; NULL: all tensors learn. TM_EUNSUPPORTED: an adapter of learned positions, DoRA of
 * an embedding or a head, PiSSA of a head. */
TM_MUST_USE tm_status tm_model_create_roles(tm_model **out, const tm_model_config *config, tm_dtype compute,
                                            const tm_model_roles *roles);
void tm_model_free(tm_model *m);
/* How long rows may get: what an embedding by length (longrope) is chosen by, so that it does not depend on which rows
 * a micro-batch has. 0, or until it is said: by each micro-batch; with a key-value cache it has to be said. */
void tm_model_set_positions(tm_model *m, uint32_t positions);
/* What computes it is not the host: before anything is asked about workspaces. */
void tm_model_set_sizes(tm_model *m, const tm_kernel_sizes *sizes);
const tm_model_config *tm_model_get_config(const tm_model *m);
tm_dtype tm_model_dtype(const tm_model *m);
uint32_t tm_model_units(const tm_model *m);
const tm_unit *tm_model_unit(const tm_model *m, uint32_t u);
uint32_t tm_model_parts(const tm_model *m);
const tm_part *tm_model_part(const tm_model *m, uint32_t p);
uint32_t tm_model_tensors(const tm_model *m);
const tm_tensor *tm_model_tensor(const tm_model *m, uint32_t t);           /* in unit order */
const tm_segment *tm_model_tensor_segments(const tm_model *m, uint32_t t); /* n_segments, by tensor_offset */
/* All stages that use the part take it as a file has it (tm_stage_args.packed): forward, and those of blocks backward. */
bool tm_model_part_packs(const tm_model *m, uint32_t p);
const tm_segment *tm_model_part_segments(const tm_model *m, uint32_t p); /* n_segments, by part_offset */
/* All tensors, in byte order of their names. The caller frees it. */
TM_MUST_USE tm_status tm_model_sort_names(const tm_model *m, uint32_t **order);
uint64_t tm_model_parameters(const tm_model *m);                   /* tied ones once */
uint64_t tm_model_learning_parameters(const tm_model *m);          /* of tensors that learn */
tm_products tm_model_products(const tm_model *m, uint64_t tokens); /* of micro-batches of up to `tokens` */
/* Initial values of `n` elements of tensor t from `offset` on, as its `init` says (TM_INIT_NORMS: zeros); Philox keyed by
 * (seed, name), counter = element: the same for any split. */
void tm_model_init_values(const tm_model *m, uint32_t t, uint64_t seed, uint64_t offset, uint64_t n, float *out);
/* Magnitudes begin as the norms of what they are of, since B begins at zero: adds the squares of elements
 * [offset, offset + n) of tensor `of` to sums[output], of which there are as many as elements of a magnitude. */
void tm_model_add_squares(const tm_model *m, uint32_t of, uint64_t offset, uint64_t n, const float *values,
                          double *sums);

/* ---- work of a stage ---------------------------------------------------------------------------------------------- */

/* What decides the seconds of micro-batches that are not alike: seconds of products go with tokens (padding included),
 * those of attention with query-key pairs, those of the vocabulary with labels, so that the means of each give the mean
 * of seconds. */
typedef struct tm_load {
    double rows, tokens;        /* of a micro-batch, or means of several */
    double labels;              /* token rows that have one */
    double pairs, window_pairs; /* all that causal attention looks at; those within the window */
} tm_load;
/* Of a micro-batch of `rows` rows of `seq` tokens in `tokens` token rows; each of its tokens has a label. */
tm_load tm_model_load(const tm_model_config *c, uint32_t rows, uint32_t seq, uint32_t tokens);
/* Work of one call: a multiply-add is two operations; bytes are operands read and written. */
typedef struct tm_work {
    double flops, bytes;
} tm_work;
tm_work tm_stage_work(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, const tm_load *load);
/* Whether two stages do the same, so that the time of one tells that of the other: by their work, where they are parts
 * of a vocabulary. */
bool tm_stage_alike(const tm_stage *a, const tm_stage *b);
/* The norm whose output a stage multiplies by its matrix, and nothing but it. */
typedef struct tm_input_norm {
    uint32_t weight, bias; /* tensors; bias UINT32_MAX: none */
    bool plus_one;         /* it multiplies by 1 + weight */
} tm_input_norm;
bool tm_stage_input_norm(const tm_model *m, uint32_t unit, uint32_t stage,
                         tm_input_norm *out); /* false: there is none */
/* Every number that the time of a call depends on but the micro-batch, as text. */
void tm_stage_signature(const tm_stage *s, char *buf, size_t cap);

/* Bits of tm_kernel_feature: what its stages ask of the kernels. */
uint32_t tm_model_needs(const tm_model *m);

/* ---- running a stage -------------------------------------------------------------------------------------------- */

typedef struct tm_micro_batch {
    uint32_t rows, seq;       /* B, S of this micro-batch; 0 rows: nothing to do */
    uint32_t tokens;          /* T, multiple of 64, >= rows*seq */
    const int32_t *ids;       /* [T]; in [0, vocab), checked before */
    const int32_t *labels;    /* [T], already shifted: the token that row t should predict, -100: ignored */
    const uint8_t *key_mask;  /* [T], 1: may be attended to; NULL: all */
    const uint32_t *position; /* [rows] position of the row's first token (0 in training); NULL: all 0 */
    /* [T] index in its row of the first token of the token's document, which sees nothing of the others and is at
     * position 0; documents lie side by side, what is between or after them is one too. NULL: a row is one document.
     * Not with a cache. */
    const uint32_t *begin;
    /* Token rows whose label is not -100, in order; NULL: the head looks for them (not where kernels are a device's).
     */
    const uint32_t *label_row;
    uint32_t label_rows;
    bool exact; /* forward: rows past rows*seq are neither computed nor zeroed; whose bits then depend on their number
                      where tm_gemm_rows_alone is false */
    const uint32_t *cache_row;  /* [rows] row of the key-value cache; NULL: the row itself */
    const uint32_t *cache_from; /* [rows] row of it that begins alike, as tm_attention has it; NULL: none does */
    bool decode;   /* each row is one token of an answer: same bits whatever runs beside it, others than a prompt's */
    bool bare;     /* adapters add nothing: it is the base that computes; forward only */
    bool training; /* adapters drop some of their input: which is a function of the model's seed and of `draw` */
    uint64_t draw; /* of step and micro-batch: the same forward and backward, another in each */
} tm_micro_batch;

/* What a stage multiplies by its matrix: rows of the compute type, of token rows from `row` on; padding left out. */
typedef struct tm_product_input {
    const void *x; /* [rows][width] */
    uint64_t row, rows, width;
} tm_product_input;
typedef struct tm_stage_args {
    const tm_model *model;
    const tm_kernel_table *kernels; /* NULL: the host's; else pointers to rows below are to the device's memory */
    uint32_t unit, stage;
    const tm_micro_batch *batch;
    void *slot[TM_MAX_SLOTS]; /* NULL where the stage does not use it */
    void *grad[TM_MAX_SLOTS];
    const void *weight[TM_MAX_STAGE_PARTS]; /* the part in compute dtype */
    const tm_packed
        *packed; /* forward, in blocks backward too: instead of weight[0], the matrix as a file has it; NULL:
                                weight[0] */
    float *weight_grad[TM_MAX_STAGE_PARTS];     /* fp32 accumulator of the whole part */
    bool weight_grad_fresh[TM_MAX_STAGE_PARTS]; /* first contribution of the step: write, do not add */
    uint32_t slot_fresh, grad_fresh; /* bit s: this TM_UPDATE use is the first of the pass: write, do not add */
    const float *coefficient; /* head backward: [T] d loss / d nll of the token, 0 where ignored; times the loss scale
                                 in fp16, and so are all gradients then */
    float *kept_logits; /* head, vocabulary part: NULL, or tm_head_kept_bytes that forward fills and backward uses up
                           instead of multiplying again: same bits */
    void *kv_cache;     /* NULL, or [rows][kv_capacity] entries of kv_bytes, as tm_attention has them; positions <
                           batch->position, of those that are kept, are filled */
    uint32_t kv_capacity;
    void *workspace; /* tm_stage_workspace bytes, 64-byte aligned */
    /* Forward, on the host: is shown what the stage multiplies, a chunk of rows a call, in order. NULL: nobody looks. */
    void (*take_input)(void *ctx, const tm_product_input *input);
    void *take_ctx;
} tm_stage_args;
/* Of `positions` those that a row of the unit's key-value cache keeps, where calls have at most `chunk` tokens of a row: all,
 * or what its window needs. On the host; a device's kernels keep all. */
uint32_t tm_model_kv_positions(const tm_model *m, uint32_t unit, uint32_t positions, uint32_t chunk);
/* The first position that a call which begins at `position` reads of it. */
uint32_t tm_model_kv_first(const tm_model *m, uint32_t unit, uint32_t position);
/* Bytes of scratch that one call needs; depends on the token rows (and seq) only. */
uint64_t tm_stage_workspace(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, uint32_t rows,
                            uint32_t seq);
TM_MUST_USE tm_status tm_stage_forward(const tm_stage_args *a);
TM_MUST_USE tm_status tm_stage_backward(const tm_stage_args *a);

/* Head, after forward: per-token negative log-likelihood from the head's state slot, 0 where the label is -100. */
enum {
    TM_HEAD_SLOT_STATE = 3
}; /* slot 2: normed input; slot 3: running (max, sum, label logit) as 3 floats, padded to 16 bytes */
void tm_head_nll(const tm_micro_batch *b, const void *state, float *nll /* [T] */);
bool tm_head_is_largest(const void *state, uint64_t row); /* no logit of that row is above its label's */
/* Bytes of a vocabulary part's logits for a micro-batch; 0: the stage is none. */
uint64_t tm_head_kept_bytes(const tm_model *m, uint32_t unit, uint32_t stage, uint32_t rows, uint32_t seq);
/* Logits of token rows [first, first+n) for vocabulary part `stage` of the head, fp32, written to out[i*ld + v] where v
 * is the global vocabulary index. Reads slot 2 (normed), slot 4 if the unit has it (an adapter's), and the stage's
 * parts. */
TM_MUST_USE tm_status tm_head_logits(const tm_stage_args *a, uint32_t first, uint32_t n, float *out, uint64_t ld);

#endif
