/* An architecture: a row of the table in arch.c, which names a parser of config.json's keys and a description. Both are
 * in a file of its own (arch_*.c); what several share is in decoder.c.
 *
 *     static tm_status parse_mine(const model_parser *p, tm_model_config *c) {
 *         return model_key_bool(p, "my_bias", false, &c->attention_bias);
 *     }
 *     const model_arch model_arch_mine = {
 *         "mine", .parse = parse_mine, .decoder = &model_decoder_llama, .describe = model_describe_decoder};
 */
#ifndef TIDEMILL_MODEL_ARCH_INTERNAL_H
#define TIDEMILL_MODEL_ARCH_INTERNAL_H

#include "model/model_internal.h"

/* ---- config.json (config.c) ---- */

typedef struct model_parser {
    const char *name; /* of the file, for messages */
    const tm_json *root;
    const tm_json *outer; /* of a composite model, whose text_config is root; NULL: there is none */
} model_parser;
/* A key that a composite model may say for its parts. */
const tm_json *model_shared_key(const model_parser *p, const char *key);
/* Absent or null: `otherwise`. Elsewhere than in [low, high]: an error that says where; absent with `otherwise` < 0 too.
 */
TM_MUST_USE tm_status model_key_u32(const model_parser *p, const char *key, int64_t low, int64_t high,
                                    int64_t otherwise, uint32_t *out);
TM_MUST_USE tm_status model_key_bool(const model_parser *p, const char *key, bool otherwise, bool *out);
/* A positive number of `object`; absent with `otherwise` < 0: an error. */
TM_MUST_USE tm_status model_key_real(const model_parser *p, const tm_json *object, const char *key, double otherwise,
                                     double *out);
bool model_present(const tm_json *n); /* and not null */
TM_MUST_USE tm_status model_key_bad(const model_parser *p, const tm_json *at, const char *key, const char *expected);
/* The first entry of an array that has one for each layer; NULL: there is no such key. */
TM_MUST_USE tm_status model_key_layers(const model_parser *p, const tm_model_config *c, const char *key,
                                       const tm_json **first);
void model_layer_add(tm_layer_set *s, uint32_t layer);
void model_layer_remove(tm_layer_set *s, uint32_t layer);
/* TM_EUNSUPPORTED where the key has another value than `usual`: what that would compute is not built. */
TM_MUST_USE tm_status model_key_refuse(const model_parser *p, const tm_model_config *c, const char *key, bool usual);
/* attention_bias (of q, k, v and o), mlp_bias */
TM_MUST_USE tm_status model_parse_biases(const model_parser *p, tm_model_config *c);
/* sliding_window (absent: `otherwise`, 0: none) of the layers that layer_types says, or of all but each `every`-th; 0:
 * of all. */
TM_MUST_USE tm_status model_parse_window(const model_parser *p, tm_model_config *c, int64_t otherwise, uint32_t every);
/* config_rope.c; c->rope.theta and c->rope_windowed.theta: what an architecture begins with, 0: 10000, as the others */
TM_MUST_USE tm_status model_parse_ropes(const model_parser *p, tm_model_config *c);
bool model_rope_is_known(const tm_json *type);
bool model_activation_is_known(const tm_json *name);
enum { MODEL_MAX_POSITIONS = 1 << 30 };

/* ---- the table (arch.c) ---- */

typedef struct model_builder model_builder;

/* What a block's tensors are called and, by what is there, what a block is. Stems, without ".weight" and ".bias"; NULL:
 * there is none. */
typedef enum block_module {
    NORM_ATTN, /* before attention; none: attention reads the residual */
    POST_ATTN, /* norms what attention adds to the residual */
    NORM_MLP,
    POST_MLP,
    MODULE_Q,
    MODULE_K,
    MODULE_V,
    MODULE_QKV, /* instead of the three */
    MODULE_O,
    NORM_Q, /* of heads, before they turn */
    NORM_K,
    MODULE_GATE, /* without it and GATE_UP the MLP has no gate */
    MODULE_UP,
    MODULE_GATE_UP, /* instead of the two */
    MODULE_DOWN,
    MODULE_INPUT_GATE, /* of the block's own input, where config.json gives it one; what it adds to the residual, */
    MODULE_INPUT_OUT,
    POST_INPUT,   /* normed */
    BLOCK_SCALAR, /* one element, which does not learn: multiplies what the block gives */
    BLOCK_MODULES
} block_module;
typedef struct model_decoder {
    const char *embed, *positions, *blocks, *norm, *head; /* "model.embed_tokens", NULL, "model.layers.", .. */
    const char *module[BLOCK_MODULES];
    const char *inputs, *inputs_in, *inputs_norm; /* blocks' own inputs: looked up, and made of the embedding */
    tm_norm_kind norm_kind;
    bool norm_v;       /* values are normed by heads too, without weights */
    bool norm_q_whole; /* NORM_Q, NORM_K are of all heads together */
    bool transposed;   /* weights are [in, out] */
    bool interleaved;  /* neighbours turn */
    bool no_rotary;
} model_decoder;
extern const model_decoder model_decoder_llama; /* decoder.c */
/* Names that most have: for the initialiser of a model_decoder, and of its `module`. */
#define MODEL_USUAL_NAMES                                                                                              \
    .embed = "model.embed_tokens", .blocks = "model.layers.", .norm = "model.norm", .head = "lm_head"
#define MODEL_USUAL_QKVO                                                                                               \
    [MODULE_Q] = "self_attn.q_proj", [MODULE_K] = "self_attn.k_proj", [MODULE_V] = "self_attn.v_proj",                 \
    [MODULE_O] = "self_attn.o_proj"
#define MODEL_USUAL_QK_NORMS [NORM_Q] = "self_attn.q_norm", [NORM_K] = "self_attn.k_norm"
#define MODEL_USUAL_GATED [MODULE_GATE] = "mlp.gate_proj", [MODULE_UP] = "mlp.up_proj", [MODULE_DOWN] = "mlp.down_proj"
#define MODEL_GEMMA_NAMES                                                                                              \
    [NORM_ATTN] = "input_layernorm",                                                                                   \
    MODEL_USUAL_QKVO, [POST_ATTN] = "post_attention_layernorm", [NORM_MLP] = "pre_feedforward_layernorm",              \
    MODEL_USUAL_GATED, [POST_MLP] = "post_feedforward_layernorm"
#define MODEL_USUAL_NORMS [NORM_ATTN] = "input_layernorm", [NORM_MLP] = "post_attention_layernorm"

/* What keys of config.json are called; NULL: as usual. */
typedef struct model_size_keys {
    const char *hidden, *intermediate, *layers, *heads, *positions, *epsilon, *activation;
} model_size_keys;

typedef struct model_arch {
    const char *model_type; /* of config.json */
    /* where config.json does not say; 0: as many as heads, hidden / heads, 2048, none, none, 1e-6, false */
    uint32_t kv_heads, head_dim, positions, vocab, heads;
    double epsilon;
    bool tied;
    bool four_wide; /* the MLP is four times as wide */
    tm_activation activation;
    model_size_keys keys;
    tm_status (*parse)(const model_parser *p, tm_model_config *c); /* its own keys; the common ones are there */
    const model_decoder *decoder;
    void (*describe)(model_builder *b); /* all units, in order */
} model_arch;
/* Of Gemma's rows, from the third on. */
#define MODEL_GEMMA_SIZES                                                                                              \
    .kv_heads = 4, .heads = 8, .head_dim = 256, .positions = 131072, .tied = true, .activation = TM_ACT_GELU_TANH,     \
    .keys = {.activation = "hidden_activation"}, .describe = model_describe_decoder
const model_arch *model_arch_find(const char *model_type); /* NULL: there is none */
void model_arch_names(char *buf, size_t cap);              /* "llama, mistral and x" */

/* ---- description (table.c) ----
 *
 * The tables grow while they are built. The first failure is kept in builder.rc; every function after it does nothing,
 * so that only model_build_tables looks at it. A pointer into a table is good until the next entry is added. */

struct model_builder {
    tm_model *m;
    const tm_model_config *c;
    const model_decoder *d;
    const tm_model_roles *roles; /* NULL: all tensors learn, and matrices side by side may be one part */
    tm_status rc;
    size_t units_cap, stages_cap, specs_cap, parts_cap, tensors_cap, segments_cap;
    tm_stage spare;   /* what is written to after a failure */
    uint32_t unit;    /* that is being described */
    uint32_t adapter; /* its part of adapters; NO_PART: it has none yet */
    uint32_t embed_tensor, embed_first_part;
};

/* Fills the empty tables of m, whose configuration is there; model_free_tables frees what is there, after a failure
 * too. */
TM_MUST_USE tm_status model_build_tables(tm_model *m, const model_arch *arch, const tm_model_roles *roles);
void model_free_tables(tm_model *m);

/* Tensors: `columns` 0: a vector. Names are prefix, stem and ".weight" or ".bias" together. Norms begin as ones (those
 * of 1 + w as zeros), biases as zeros. */
uint32_t model_add_tensor(model_builder *b, const char *prefix, const char *stem, uint64_t rows, uint64_t columns);
uint32_t model_add_norm(model_builder *b, const char *prefix, const char *stem, uint64_t n);
uint32_t model_add_bias(model_builder *b, const char *prefix, const char *stem, uint64_t n);
/* One element, without a suffix, which begins as 1 and does not learn. */
uint32_t model_add_scalar(model_builder *b, const char *prefix, const char *stem);
/* A part, and what it consists of, in order. model_add_whole returns where the tensor begins in the part. */
uint32_t model_begin_part(model_builder *b, const char *prefix, const char *what);
uint64_t model_add_whole(model_builder *b, uint32_t tensor);
void model_add_segment(model_builder *b, uint32_t tensor, uint64_t offset, uint64_t elements);
uint32_t model_one_part(model_builder *b, const char *prefix, const char *what, uint32_t tensor);

enum { NO_PART = UINT32_MAX };
/* The adapter of a module [out, in] whose matrix is tensor `of`, if it has one: tensors, at the end of the part of all
 * adapters of the unit, which begins with its first. No part begins between two of them. */
typedef struct model_adapter {
    tm_adapter_spec is; /* rank 0: there is none */
    uint64_t a, b, magnitude, first_a, first_b;
} model_adapter;
model_adapter model_add_adapter(model_builder *b, const char *prefix, const char *stem, const char *parts, uint32_t of,
                                uint64_t out, uint64_t in);
void model_set_adapter(const model_builder *b, stage_spec *s, const model_adapter *adapter);

void model_begin_unit(model_builder *b, tm_unit_kind kind, const char *name);
void model_set_slot(model_builder *b, unsigned slot, const char *name, uint64_t bytes, uint64_t grad_bytes);
/* The slot is `of` of an earlier unit. */
void model_bridge_slot(model_builder *b, unsigned slot, uint32_t unit, unsigned of);
void model_set_kv(model_builder *b, uint64_t bytes, uint32_t window);
void model_share_kv(model_builder *b, uint32_t unit); /* attention stores into, and reads, an earlier unit's cache */

/* Stages. `spec` says what they compute but for its kind; slots that they use follow from it.
 *   norm       adds to the input's gradient, which the residual path wrote before, or writes it (`grad`)
 *   in         norm (or the rows of spec.normed, or the input itself), product, bias, RoPE. Of several with one output
 *              the first (column 0) writes it and the others add their columns
 *   qk         norms of q and k by heads, RoPE
 *   attention  of rows of q, k and v; SLOT_LSE is its state. To the gradients of keys and values that other blocks share
 *              it adds
 *   out        (residual +) product + bias; glu: of the activation
 *   post       (residual + norm) (times an element) */
void model_norm_stage(model_builder *b, stage_spec spec, uint32_t small, tm_access grad);
void model_in_stage(model_builder *b, const char *name, stage_spec spec, uint32_t matrix, uint32_t small);
void model_qk_stage(model_builder *b, const char *name, stage_spec spec, uint32_t small);
void model_attention_stage(model_builder *b, stage_spec spec);
void model_out_stage(model_builder *b, const char *name, bool glu, stage_spec spec, uint32_t matrix, uint32_t small);
void model_post_stage(model_builder *b, const char *name, stage_spec spec, uint32_t small);

/* Whole units, by the names of b->d. */
void model_describe_embed(model_builder *b);
void model_describe_head(model_builder *b);
/* decoder.c: embedding, blocks of grouped-query attention and an MLP (Llama and its kin), head. */
void model_describe_decoder(model_builder *b);

#endif
