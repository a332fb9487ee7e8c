/* A decoder as Llama's: pre-norm blocks of grouped-query attention and a gated MLP. README.md draws a block.
 *
 * Where q, k, v (gate, up) are too large for one part, each has a stage of its own, and their common norm becomes a
 * stage with a slot: its weight's gradient must be one contribution a micro-batch, or the order of stages and
 * micro-batches would change bits. */
#include "model/arch_internal.h"

#include <math.h>
#include <stdio.h>

/* Sizes of a block, in elements of a token row. */
typedef struct block_sizes {
    uint64_t hidden, q, kv, qkv, mlp;
    bool fused_qkv, fused_gate_up;
} block_sizes;

static block_sizes sizes_of(const model_builder *b) {
    const tm_model_config *c = b->c;
    block_sizes z = {.hidden = c->hidden_size, .mlp = c->intermediate_size};
    z.q = (uint64_t)c->num_attention_heads * c->head_dim;
    z.kv = (uint64_t)c->num_key_value_heads * c->head_dim;
    z.qkv = z.q + 2 * z.kv;
    z.fused_qkv = z.qkv * z.hidden <= b->m->fused_elements;
    z.fused_gate_up = 2 * z.mlp * z.hidden <= b->m->fused_elements;
    return z;
}

static void block_slots(model_builder *b, const block_sizes *z) {
    uint64_t e = tm_dtype_bytes(b->m->compute), h = z->hidden * e;
    model_set_slot(b, SLOT_X, "input", h, h);
    model_set_slot(b, SLOT_OUT, "output", h, h);
    model_set_slot(b, SLOT_QKV, "qkv", z->qkv * e, z->qkv * e);
    model_set_slot(b, SLOT_O, "o", z->q * e, z->q * e);
    model_set_slot(b, SLOT_LSE, "lse", b->c->num_attention_heads * sizeof(float), 0);
    model_set_slot(b, SLOT_MID, "mid", h, h);
    model_set_slot(b, SLOT_GATE_UP, "gate_up", 2 * z->mlp * e, 2 * z->mlp * e);
    if (!z->fused_qkv) model_set_slot(b, SLOT_ATTN_NORMED, "attn_normed", h, z->hidden * sizeof(float));
    if (!z->fused_gate_up) model_set_slot(b, SLOT_MLP_NORMED, "mlp_normed", h, z->hidden * sizeof(float));
    model_set_kv_bytes(b, 2 * z->kv * e);
}

typedef struct block_tensors {
    uint32_t norm1, q, k, v, o, norm2, gate, up, down;
    uint32_t q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
} block_tensors;

static block_tensors add_tensors(model_builder *b, const char *prefix, const block_sizes *z) {
    const tm_model_config *c = b->c;
    block_tensors t = {.norm1 = model_add_norm(b, prefix, "input_layernorm.weight", z->hidden)};
    t.q = model_add_tensor(b, prefix, "self_attn.q_proj.weight", z->q, z->hidden);
    t.k = model_add_tensor(b, prefix, "self_attn.k_proj.weight", z->kv, z->hidden);
    t.v = model_add_tensor(b, prefix, "self_attn.v_proj.weight", z->kv, z->hidden);
    t.o = model_add_tensor(b, prefix, "self_attn.o_proj.weight", z->hidden, z->q);
    if (c->attention_bias) {
        t.q_bias = model_add_bias(b, prefix, "self_attn.q_proj.bias", z->q);
        t.k_bias = model_add_bias(b, prefix, "self_attn.k_proj.bias", z->kv);
        t.v_bias = model_add_bias(b, prefix, "self_attn.v_proj.bias", z->kv);
    }
    if (c->attention_out_bias) t.o_bias = model_add_bias(b, prefix, "self_attn.o_proj.bias", z->hidden);
    t.norm2 = model_add_norm(b, prefix, "post_attention_layernorm.weight", z->hidden);
    t.gate = model_add_tensor(b, prefix, "mlp.gate_proj.weight", z->mlp, z->hidden);
    t.up = model_add_tensor(b, prefix, "mlp.up_proj.weight", z->mlp, z->hidden);
    t.down = model_add_tensor(b, prefix, "mlp.down_proj.weight", z->hidden, z->mlp);
    if (c->mlp_bias) {
        t.gate_bias = model_add_bias(b, prefix, "mlp.gate_proj.bias", z->mlp);
        t.up_bias = model_add_bias(b, prefix, "mlp.up_proj.bias", z->mlp);
        t.down_bias = model_add_bias(b, prefix, "mlp.down_proj.bias", z->hidden);
    }
    return t;
}

/* The small part, and where its vectors begin. */
typedef struct block_vectors {
    uint32_t part;
    uint64_t norm1, norm2, qkv_bias, o_bias, gate_up_bias, down_bias;
} block_vectors;

static block_vectors add_vectors(model_builder *b, const char *prefix, const block_tensors *t) {
    block_vectors v = {.part = model_begin_part(b, prefix, "small")};
    v.qkv_bias = v.o_bias = v.gate_up_bias = v.down_bias = NO_VECTOR;
    v.norm1 = model_add_whole(b, t->norm1);
    v.norm2 = model_add_whole(b, t->norm2);
    if (b->c->attention_bias) {
        v.qkv_bias = model_add_whole(b, t->q_bias);
        model_add_whole(b, t->k_bias);
        model_add_whole(b, t->v_bias);
    }
    if (b->c->attention_out_bias) v.o_bias = model_add_whole(b, t->o_bias);
    if (b->c->mlp_bias) {
        v.gate_up_bias = model_add_whole(b, t->gate_bias);
        model_add_whole(b, t->up_bias);
        v.down_bias = model_add_whole(b, t->down_bias);
    }
    return v;
}

/* ---- products with a common norm ---- */

/* One of the matrices whose outputs lie side by side in `all`'s. */
typedef struct column_matrix {
    const char *what;
    uint32_t tensor;
    uint64_t columns;
    uint32_t rotated;
} column_matrix;

static void add_in(model_builder *b, const char *name, stage_spec s, uint32_t matrix, uint32_t small) {
    if (s.bias != NO_VECTOR) s.bias += s.column;
    model_in_stage(b, name, s, matrix, small);
}

/* One part and stage for all matrices, or, behind a norm stage, one for each. `s`: of the whole, with its norm and the
 * first bias; `normed`: the slot of that norm stage. */
static void add_columns(model_builder *b, const char *const name[2], const char *prefix, stage_spec s, unsigned normed,
                        const column_matrix *of, unsigned n, uint32_t small) {
    bool fused = normed == 0;
    uint32_t part[3], whole = fused ? model_begin_part(b, prefix, name[1]) : 0;
    for (unsigned i = 0; i < n; i++)
        if (fused)
            model_add_whole(b, of[i].tensor);
        else
            part[i] = model_one_part(b, prefix, of[i].what, of[i].tensor);
    if (fused) {
        for (unsigned i = 0; i < n; i++) s.rotated += of[i].rotated;
        s.columns = s.row_columns;
        add_in(b, name[0], s, whole, small);
        return;
    }
    model_norm_stage(b,
                     (stage_spec){.width = s.width,
                                  .norm = s.norm,
                                  .bias = NO_VECTOR,
                                  .in = s.in,
                                  .out = (uint8_t)normed,
                                  .epsilon = s.epsilon},
                     small, TM_UPDATE);
    s.normed = (uint8_t)normed;
    for (unsigned i = 0; i < n; s.column += of[i++].columns) {
        s.columns = of[i].columns;
        s.rotated = of[i].rotated;
        add_in(b, name[0], s, part[i], small);
    }
}

static void add_qkv(model_builder *b, const char *prefix, const block_sizes *z, const block_tensors *t,
                    const block_vectors *v) {
    const tm_model_config *c = b->c;
    const column_matrix of[] = {
        {"q", t->q, z->q, c->num_attention_heads}, {"k", t->k, z->kv, c->num_key_value_heads}, {"v", t->v, z->kv, 0}};
    const stage_spec s = {.width = z->hidden,
                          .row_columns = z->qkv,
                          .norm = v->norm1,
                          .bias = v->qkv_bias,
                          .in = SLOT_X,
                          .out = SLOT_QKV,
                          .epsilon = (float)c->rms_norm_eps,
                          .head_dim = c->head_dim};
    add_columns(b, (const char *const[]){"attn_in", "qkv"}, prefix, s, z->fused_qkv ? 0 : SLOT_ATTN_NORMED, of, 3,
                v->part);
}

static void add_gate_up(model_builder *b, const char *prefix, const block_sizes *z, const block_tensors *t,
                        const block_vectors *v) {
    const column_matrix of[] = {{"gate", t->gate, z->mlp, 0}, {"up", t->up, z->mlp, 0}};
    const stage_spec s = {.width = z->hidden,
                          .row_columns = 2 * z->mlp,
                          .norm = v->norm2,
                          .bias = v->gate_up_bias,
                          .in = SLOT_MID,
                          .out = SLOT_GATE_UP,
                          .epsilon = (float)b->c->rms_norm_eps};
    add_columns(b, (const char *const[]){"mlp_in", "gate_up"}, prefix, s, z->fused_gate_up ? 0 : SLOT_MLP_NORMED, of, 2,
                v->part);
}

/* ---- a block ---- */

static void add_attention(model_builder *b, const block_sizes *z) {
    const tm_model_config *c = b->c;
    model_attention_stage(b, (stage_spec){.width = z->qkv,
                                          .columns = z->q,
                                          .row_columns = z->q,
                                          .in = SLOT_QKV,
                                          .out = SLOT_O,
                                          .heads = c->num_attention_heads,
                                          .kv_heads = c->num_key_value_heads,
                                          .head_dim = c->head_dim,
                                          .window = c->sliding_window,
                                          .scale = (float)(1.0 / sqrt((double)c->head_dim))});
}

static void add_block(model_builder *b, uint32_t layer) {
    char name[24], prefix[32], unit_prefix[24];
    block_sizes z = sizes_of(b);
    snprintf(name, sizeof name, "layers.%u", layer);
    snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
    snprintf(unit_prefix, sizeof unit_prefix, "layers.%u.", layer);
    model_begin_unit(b, TM_UNIT_BLOCK, name);
    block_slots(b, &z);
    block_tensors t = add_tensors(b, prefix, &z);
    block_vectors v = add_vectors(b, unit_prefix, &t);
    stage_spec s = {.columns = z.hidden, .row_columns = z.hidden};
    add_qkv(b, unit_prefix, &z, &t, &v);
    add_attention(b, &z);
    s.in = SLOT_O, s.residual = SLOT_X, s.out = SLOT_MID, s.width = z.q, s.bias = v.o_bias;
    model_out_stage(b, "attn_out", false, s, model_one_part(b, unit_prefix, "o", t.o), v.part);
    add_gate_up(b, unit_prefix, &z, &t, &v);
    s.in = SLOT_GATE_UP, s.residual = SLOT_MID, s.out = SLOT_OUT, s.width = z.mlp, s.bias = v.down_bias;
    model_out_stage(b, "mlp_out", true, s, model_one_part(b, unit_prefix, "down", t.down), v.part);
}

void model_describe_decoder(model_builder *b) {
    model_describe_embed(b);
    for (uint32_t l = 0; l < b->c->num_hidden_layers; l++) add_block(b, l);
    model_describe_head(b);
}
