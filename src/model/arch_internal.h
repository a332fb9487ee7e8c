/* An architecture: a row of the table in arch.c, which names a parser of config.json's keys and a description. Both are
 * in a file of its own (arch_*.c); what several share is in decoder.c.
 *
 *     static tm_status parse_mine(const model_parser *p, tm_model_config *c) {
 *         return model_key_bool(p, "my_bias", false, &c->attention_bias);
 *     }
 *     const model_arch model_arch_mine = {"mine", .parse = parse_mine, .describe = model_describe_decoder};
 */
#ifndef TIDEMILL_MODEL_ARCH_INTERNAL_H
#define TIDEMILL_MODEL_ARCH_INTERNAL_H

#include "model/model_internal.h"

/* ---- config.json (config.c) ---- */

typedef struct model_parser {
    const char *name; /* of the file, for messages */
    const tm_json *root;
} model_parser;
/* Absent or null: `otherwise`. Elsewhere than in [low, high]: an error that says where; absent with `otherwise` < 0 too.
 */
TM_MUST_USE tm_status model_key_u32(const model_parser *p, const char *key, int64_t low, int64_t high,
                                    int64_t otherwise, uint32_t *out);
TM_MUST_USE tm_status model_key_bool(const model_parser *p, const char *key, bool otherwise, bool *out);

/* ---- the table (arch.c) ---- */

typedef struct model_builder model_builder;
typedef struct model_arch {
    const char *model_type;       /* of config.json */
    uint32_t kv_heads, positions; /* where config.json does not say: 0: as many as heads, 2048 */
    tm_status (*parse)(const model_parser *p, tm_model_config *c); /* its own keys; the common ones are there */
    void (*describe)(model_builder *b);                            /* all units, in order */
} model_arch;
const model_arch *model_arch_find(const char *model_type);                      /* NULL: there is none */
void model_arch_names(char *buf, size_t cap);                                   /* "llama, mistral and x" */
extern const model_arch model_arch_llama, model_arch_mistral, model_arch_qwen2; /* arch_*.c */

/* ---- description (table.c) ----
 *
 * The tables grow while they are built. The first failure is kept in builder.rc; every function after it does nothing,
 * so that only model_build_tables looks at it. A pointer into a table is good until the next entry is added. */

struct model_builder {
    tm_model *m;
    const tm_model_config *c;
    tm_status rc;
    size_t units_cap, stages_cap, specs_cap, parts_cap, tensors_cap, segments_cap;
    tm_stage spare; /* what is written to after a failure */
    uint32_t unit;  /* that is being described */
    uint32_t embed_first_part;
};

/* Fills the empty tables of m, whose configuration is there; model_free_tables frees what is there, after a failure
 * too. */
TM_MUST_USE tm_status model_build_tables(tm_model *m, void (*describe)(model_builder *b));
void model_free_tables(tm_model *m);

/* Tensors: `columns` 0: a vector. Names are prefix and what together. Norms begin as ones, biases as zeros. */
uint32_t model_add_tensor(model_builder *b, const char *prefix, const char *what, uint64_t rows, uint64_t columns);
uint32_t model_add_norm(model_builder *b, const char *prefix, const char *what, uint64_t n);
uint32_t model_add_bias(model_builder *b, const char *prefix, const char *what, uint64_t n);
/* A part, and what it consists of, in order. model_add_whole returns where the tensor begins in the part. */
uint32_t model_begin_part(model_builder *b, const char *prefix, const char *what);
uint64_t model_add_whole(model_builder *b, uint32_t tensor);
uint32_t model_one_part(model_builder *b, const char *prefix, const char *what, uint32_t tensor);

void model_begin_unit(model_builder *b, tm_unit_kind kind, const char *name);
void model_set_slot(model_builder *b, unsigned slot, const char *name, uint64_t bytes, uint64_t grad_bytes);
void model_set_kv_bytes(model_builder *b, uint64_t bytes);

/* Stages. `spec` says what they compute but for its kind; slots that they use follow from it.
 *   norm       adds to the input's gradient, which the residual path wrote before, or writes it (`grad`)
 *   in         norm (or the rows of spec.normed), product, bias, RoPE. Of several that share a normed slot the first
 *              (column 0) writes the output and the others add their columns
 *   attention  of rows of q, k and v; SLOT_LSE is its state
 *   out        residual + product + bias; glu: of silu(gate) * up */
void model_norm_stage(model_builder *b, stage_spec spec, uint32_t small, tm_access grad);
void model_in_stage(model_builder *b, const char *name, stage_spec spec, uint32_t matrix, uint32_t small);
void model_attention_stage(model_builder *b, stage_spec spec);
void model_out_stage(model_builder *b, const char *name, bool glu, stage_spec spec, uint32_t matrix, uint32_t small);

/* Whole units: "model.embed_tokens.weight"; the norm "model.norm.weight" and "lm_head.weight" (or the embedding). */
void model_describe_embed(model_builder *b);
void model_describe_head(model_builder *b);
/* decoder.c: embedding, pre-norm blocks with grouped-query attention and a gated MLP (Llama and its kin), head. */
void model_describe_decoder(model_builder *b);

#endif
