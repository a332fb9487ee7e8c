/* A decoder: blocks of grouped-query attention and an MLP, with the norms, biases and names of an architecture's row.
 * README.md draws a block.
 *
 * Where q, k, v (gate, up) are too large for one part, each has a stage of its own, and their common norm becomes a
 * stage with a slot: its weight's gradient must be one contribution a micro-batch, or the order of stages and
 * micro-batches would change bits. */
#include "model/arch_internal.h"

#include <math.h>
#include <stdio.h>

const model_decoder model_decoder_llama = {MODEL_USUAL_NAMES,
                                           .module = {MODEL_USUAL_NORMS, MODEL_USUAL_QKVO, MODEL_USUAL_GATED}};

#define NO_TENSOR UINT32_MAX
/* A block while it is described. */
typedef struct block {
    model_builder *b;
    const tm_model_config *c;
    uint32_t layer, small; /* the part of all its vectors */
    uint32_t source;       /* the block whose keys and values it reads: mostly itself */
    uint32_t head_dim, kv_heads;
    uint64_t hidden, q, kv, qkv, mlp;                    /* sizes, in elements of a token row */
    uint64_t gate_up;                                    /* of what the MLP's activation reads */
    char tensors[64], parts[32];                         /* what their names begin with */
    uint32_t weight[BLOCK_MODULES], bias[BLOCK_MODULES]; /* tensors, or NO_TENSOR */
    model_adapter adapter[BLOCK_MODULES];
    uint64_t weight_at[BLOCK_MODULES], bias_at[BLOCK_MODULES]; /* where vectors begin in the small part, or NO_VECTOR */
} block;

static bool windowed(const block *k, uint32_t layer) {
    return tm_layer_in(&k->c->windowed, layer);
}

static bool keys_are_values(const block *k) {
    return k->c->kinds.keys_are_values && !windowed(k, k->layer);
}

static bool has(const block *k, block_module m) {
    bool of_inputs = m == MODULE_INPUT_GATE || m == MODULE_INPUT_OUT || m == POST_INPUT;
    bool of_keys = m == MODULE_K || m == NORM_K || m == MODULE_V;
    if ((of_inputs && !k->c->kinds.input_width) || (of_keys && k->source != k->layer)) return false;
    if (m == MODULE_V && keys_are_values(k)) return false;
    return k->b->d->module[m] != NULL;
}

/* Units: the embedding, then the blocks. */
static uint32_t unit_of(uint32_t layer) {
    return 1 + layer;
}

/* ---- tensors, in the order of the checkpoint's ids ---- */

static void add_matrix(block *k, block_module m, uint64_t rows, uint64_t columns) {
    const model_decoder *d = k->b->d;
    if (!has(k, m)) return;
    k->weight[m] = model_add_tensor(k->b, k->tensors, d->module[m], d->transposed ? columns : rows,
                                    d->transposed ? rows : columns);
}

static void add_bias(block *k, block_module m, uint64_t n) {
    if (has(k, m)) k->bias[m] = model_add_bias(k->b, k->tensors, k->b->d->module[m], n);
}

static void add_norm(block *k, block_module m, uint64_t n) {
    if (!has(k, m)) return;
    k->weight[m] = model_add_norm(k->b, k->tensors, k->b->d->module[m], n);
    if (k->b->d->norm_kind == TM_NORM_LAYER) k->bias[m] = model_add_bias(k->b, k->tensors, k->b->d->module[m], n);
}

static void add_attention_tensors(block *k) {
    bool whole = k->b->d->norm_q_whole;
    add_norm(k, NORM_ATTN, k->hidden);
    add_matrix(k, MODULE_Q, k->q, k->hidden);
    add_matrix(k, MODULE_K, k->kv, k->hidden);
    add_matrix(k, MODULE_V, k->kv, k->hidden);
    add_matrix(k, MODULE_QKV, k->qkv, k->hidden);
    add_matrix(k, MODULE_O, k->hidden, k->q);
    if (k->c->attention_bias) {
        add_bias(k, MODULE_Q, k->q);
        add_bias(k, MODULE_K, k->kv);
        add_bias(k, MODULE_V, k->kv);
        add_bias(k, MODULE_QKV, k->qkv);
    }
    if (k->c->attention_out_bias) add_bias(k, MODULE_O, k->hidden);
    add_norm(k, NORM_Q, whole ? k->q : k->head_dim);
    add_norm(k, NORM_K, whole ? k->kv : k->head_dim);
    add_norm(k, POST_ATTN, k->hidden);
}

static void add_mlp_tensors(block *k) {
    add_norm(k, NORM_MLP, k->hidden);
    add_matrix(k, MODULE_GATE, k->mlp, k->hidden);
    add_matrix(k, MODULE_UP, k->mlp, k->hidden);
    add_matrix(k, MODULE_GATE_UP, k->gate_up, k->hidden);
    add_matrix(k, MODULE_DOWN, k->hidden, k->mlp);
    if (k->c->mlp_bias) {
        add_bias(k, MODULE_GATE, k->mlp);
        add_bias(k, MODULE_UP, k->mlp);
        add_bias(k, MODULE_GATE_UP, k->gate_up);
        add_bias(k, MODULE_DOWN, k->hidden);
    }
    add_norm(k, POST_MLP, k->hidden);
}

static void add_input_tensors(block *k) {
    add_matrix(k, MODULE_INPUT_GATE, k->c->kinds.input_width, k->hidden);
    add_matrix(k, MODULE_INPUT_OUT, k->hidden, k->c->kinds.input_width);
    add_norm(k, POST_INPUT, k->hidden);
    if (has(k, BLOCK_SCALAR))
        k->weight[BLOCK_SCALAR] = model_add_scalar(k->b, k->tensors, k->b->d->module[BLOCK_SCALAR]);
}

/* ---- the small part ---- */

/* Vectors lie in this order: biases of matrices whose outputs are side by side have to be. */
static void add_small(block *k) {
    static const block_module norms[] = {NORM_ATTN, NORM_MLP, POST_ATTN,  POST_MLP,
                                         NORM_Q,    NORM_K,   POST_INPUT, BLOCK_SCALAR};
    static const block_module biases[] = {MODULE_Q,    MODULE_K,  MODULE_V,       MODULE_QKV, MODULE_O,
                                          MODULE_GATE, MODULE_UP, MODULE_GATE_UP, MODULE_DOWN};
    k->small = model_begin_part(k->b, k->parts, "small");
    for (size_t i = 0; i < BLOCK_MODULES; i++) k->weight_at[i] = k->bias_at[i] = NO_VECTOR;
    for (size_t i = 0; i < TM_COUNT(norms); i++) {
        block_module m = norms[i];
        if (k->weight[m] != NO_TENSOR) k->weight_at[m] = model_add_whole(k->b, k->weight[m]);
        if (k->bias[m] != NO_TENSOR) k->bias_at[m] = model_add_whole(k->b, k->bias[m]);
    }
    for (size_t i = 0; i < TM_COUNT(biases); i++)
        if (k->bias[biases[i]] != NO_TENSOR) k->bias_at[biases[i]] = model_add_whole(k->b, k->bias[biases[i]]);
}

/* ---- adapters ---- */

static void add_adapter(block *k, block_module m, uint64_t out, uint64_t in) {
    if (k->weight[m] != NO_TENSOR)
        k->adapter[m] = model_add_adapter(k->b, k->tensors, k->b->d->module[m], k->parts, k->weight[m], out, in);
}

static void add_adapters(block *k) {
    add_adapter(k, MODULE_Q, k->q, k->hidden);
    add_adapter(k, MODULE_K, k->kv, k->hidden);
    add_adapter(k, MODULE_V, k->kv, k->hidden);
    add_adapter(k, MODULE_QKV, k->qkv, k->hidden);
    add_adapter(k, MODULE_O, k->hidden, k->q);
    add_adapter(k, MODULE_GATE, k->mlp, k->hidden);
    add_adapter(k, MODULE_UP, k->mlp, k->hidden);
    add_adapter(k, MODULE_GATE_UP, k->gate_up, k->hidden);
    add_adapter(k, MODULE_DOWN, k->hidden, k->mlp);
    add_adapter(k, MODULE_INPUT_GATE, k->c->kinds.input_width, k->hidden);
    add_adapter(k, MODULE_INPUT_OUT, k->hidden, k->c->kinds.input_width);
}

/* ---- slots ---- */

/* Keys and values that are normed both, or that another block has. */
static void add_kv_slot(block *k) {
    uint64_t bytes = 2 * (uint64_t)k->kv_heads * k->head_dim * tm_dtype_bytes(k->b->m->compute);
    if (k->source == k->layer)
        model_set_slot(k->b, SLOT_KV, "kv", bytes, bytes);
    else
        model_bridge_slot(k->b, SLOT_KV, unit_of(k->source), SLOT_KV);
}

static void add_input_slots(block *k) {
    uint64_t e = tm_dtype_bytes(k->b->m->compute), h = k->hidden * e, p = k->c->kinds.input_width * e;
    model_set_slot(k->b, SLOT_LATE, "late", h, h);
    model_bridge_slot(k->b, SLOT_INPUT, 0, SLOT_INPUTS);
    model_set_slot(k->b, SLOT_INPUT_GATE, "input_gate", p, p);
    model_set_slot(k->b, SLOT_INPUT_ADD, "input_add", h, h);
}

static void add_slots(block *k, bool fused_qkv, bool fused_gate_up) {
    model_builder *b = k->b;
    uint64_t e = tm_dtype_bytes(b->m->compute), h = k->hidden * e, f = k->hidden * sizeof(float);
    model_set_slot(b, SLOT_X, "input", h, h);
    model_set_slot(b, SLOT_OUT, "output", h, h);
    model_set_slot(b, SLOT_QKV, "qkv", k->qkv * e, k->qkv * e);
    model_set_slot(b, SLOT_O, "o", k->q * e, k->q * e);
    model_set_slot(b, SLOT_LSE, "lse", k->c->num_attention_heads * sizeof(float), 0);
    model_set_slot(b, SLOT_MID, "mid", h, h);
    model_set_slot(b, SLOT_GATE_UP, "gate_up", k->gate_up * e, k->gate_up * e);
    if (!fused_qkv && has(k, NORM_ATTN)) model_set_slot(b, SLOT_ATTN_NORMED, "attn_normed", h, f);
    if (!fused_gate_up && has(k, NORM_MLP)) model_set_slot(b, SLOT_MLP_NORMED, "mlp_normed", h, f);
    uint64_t qk = (k->b->d->norm_v ? k->q : k->q + k->kv) * e;
    if (has(k, NORM_Q)) model_set_slot(b, SLOT_QK, "qk", qk, qk);
    if (k->b->d->norm_v) add_kv_slot(k);
    if (has(k, POST_ATTN)) model_set_slot(b, SLOT_ATTN_ADD, "attn_add", h, h);
    if (has(k, POST_MLP)) model_set_slot(b, SLOT_MLP_ADD, "mlp_add", h, h);
    if (has(k, MODULE_INPUT_GATE)) add_input_slots(k);
    if (k->source == k->layer)
        model_set_kv(b, 2 * k->kv * e, windowed(k, k->layer) ? k->c->sliding_window : 0);
    else
        model_share_kv(b, unit_of(k->source));
}

/* ---- stages ---- */

/* What all stages of the block begin with. */
static stage_spec blank(const block *k) {
    return (stage_spec){.norm = NO_VECTOR,
                        .norm_bias = NO_VECTOR,
                        .norm_k = NO_VECTOR,
                        .bias = NO_VECTOR,
                        .scalar = NO_VECTOR,
                        .residual = NO_SLOT,
                        .values = NO_SLOT,
                        .rope = NO_ROPE,
                        .norm_kind = (uint8_t)k->b->d->norm_kind,
                        .transposed = k->b->d->transposed,
                        .epsilon = (float)k->c->rms_norm_eps,
                        .scale = 1};
}

static stage_spec with_norm(const block *k, block_module m) {
    stage_spec s = blank(k);
    s.norm = k->weight_at[m];
    s.norm_bias = k->bias_at[m];
    s.width = k->hidden;
    return s;
}

/* One of the matrices whose outputs lie side by side, or a run of rows of the tensor that has them all. */
typedef struct column_matrix {
    const char *what;
    uint32_t tensor;
    uint64_t columns;
    uint32_t rotated;
    const model_adapter *adapter;
} column_matrix;

/* One part for all of them: `whole` if there is such a tensor. */
static uint32_t fused_part(block *k, const char *what, uint32_t whole, const column_matrix *of, unsigned n) {
    uint32_t part = model_begin_part(k->b, k->parts, what);
    if (whole != NO_TENSOR) model_add_whole(k->b, whole);
    for (unsigned i = 0; whole == NO_TENSOR && i < n; i++) model_add_whole(k->b, of[i].tensor);
    return part;
}

static uint32_t one_part(block *k, const column_matrix *of, uint32_t whole, uint64_t column) {
    if (whole == NO_TENSOR) return model_one_part(k->b, k->parts, of->what, of->tensor);
    uint32_t part = model_begin_part(k->b, k->parts, of->what);
    model_add_segment(k->b, whole, column * k->hidden, of->columns * k->hidden);
    return part;
}

/* Behind a norm stage, if there is a norm, a part and a stage for each. */
static void add_apart(block *k, const char *name, stage_spec s, unsigned normed, const column_matrix *of, unsigned n,
                      uint32_t whole) {
    uint32_t part[3];
    uint64_t column = 0;
    for (unsigned i = 0; i < n; column += of[i++].columns) part[i] = one_part(k, &of[i], whole, column);
    if (s.norm != NO_VECTOR) {
        stage_spec norm = s;
        norm.bias = NO_VECTOR;
        norm.row_columns = 0;
        norm.head_dim = 0;
        norm.rope = NO_ROPE;
        norm.out = (uint8_t)normed;
        model_norm_stage(k->b, norm, k->small, TM_UPDATE);
        s.normed = (uint8_t)normed;
    }
    uint64_t bias = s.bias;
    for (unsigned i = 0; i < n; s.column += of[i++].columns) {
        s.columns = of[i].columns;
        s.rotated = of[i].rotated;
        model_set_adapter(k->b, &s, of[i].adapter);
        if (bias != NO_VECTOR) s.bias = bias + s.column;
        model_in_stage(k->b, name, s, part[i], k->small);
    }
}

static void add_fused(block *k, const char *name, const char *what, stage_spec s, const column_matrix *of, unsigned n,
                      uint32_t whole) {
    uint32_t part = fused_part(k, what, whole, of, n);
    for (unsigned i = 0; i < n; i++) s.rotated += of[i].rotated;
    s.columns = s.row_columns;
    if (whole == NO_TENSOR) model_set_adapter(k->b, &s, of[0].adapter);
    model_in_stage(k->b, name, s, part, k->small);
}

static uint8_t rope_of(const block *k) {
    if (k->b->d->no_rotary || tm_layer_in(&k->c->no_rope, k->layer)) return NO_ROPE;
    return k->c->two_ropes && windowed(k, k->layer);
}

static uint64_t first_bias(const block *k, block_module whole, block_module first) {
    return k->bias_at[whole] != NO_VECTOR ? k->bias_at[whole] : k->bias_at[first];
}

static void add_qkv(block *k, bool fused) {
    const tm_model_config *c = k->c;
    stage_spec s = with_norm(k, NORM_ATTN);
    s.rope = has(k, NORM_Q) ? NO_ROPE : rope_of(k);
    bool turns = s.rope != NO_ROPE;
    const column_matrix of[] = {
        {"q", k->weight[MODULE_Q], k->q, turns ? c->num_attention_heads : 0, &k->adapter[MODULE_Q]},
        {"k", k->weight[MODULE_K], k->kv, turns ? k->kv_heads : 0, &k->adapter[MODULE_K]},
        {"v", k->weight[MODULE_V], k->kv, 0, &k->adapter[MODULE_V]}};
    unsigned n = k->source != k->layer ? 1 : keys_are_values(k) ? 2 : 3;
    model_set_adapter(k->b, &s, &k->adapter[MODULE_QKV]);
    s.row_columns = k->qkv;
    s.bias = first_bias(k, MODULE_QKV, MODULE_Q);
    s.in = SLOT_X;
    s.out = SLOT_QKV;
    s.head_dim = k->head_dim;
    if (fused)
        add_fused(k, "attn_in", "qkv", s, of, n, k->weight[MODULE_QKV]);
    else
        add_apart(k, "attn_in", s, SLOT_ATTN_NORMED, of, n, k->weight[MODULE_QKV]);
}

/* The norms of q and k before attention. */
static void add_qk(block *k, stage_spec s) {
    s.width = k->q + (s.kv_apart ? 0 : k->kv);
    s.norm = k->weight_at[NORM_Q];
    s.norm_k = k->weight_at[NORM_K];
    s.norm_whole = k->b->d->norm_q_whole;
    s.keys_are_values = keys_are_values(k);
    s.values = s.kv_apart && k->source == k->layer ? SLOT_KV : NO_SLOT;
    model_qk_stage(k->b, "qk", s, k->small);
}

static void add_attention(block *k) {
    const tm_model_config *c = k->c;
    stage_spec s = blank(k);
    s.row_columns = k->qkv;
    s.heads = c->num_attention_heads;
    s.kv_heads = k->kv_heads;
    s.head_dim = k->head_dim;
    s.rope = rope_of(k);
    s.kv_apart = k->b->d->norm_v;
    s.in = SLOT_QKV;
    s.out = SLOT_QK;
    if (has(k, NORM_Q)) {
        add_qk(k, s);
        s.in = SLOT_QK;
    }
    s.width = k->qkv;
    s.columns = s.row_columns = k->q;
    s.norm_kind = 0, s.epsilon = 0, s.transposed = false;
    s.values = s.kv_apart ? SLOT_KV : SLOT_QKV;
    s.out = SLOT_O;
    s.window = windowed(k, k->layer) ? c->sliding_window : 0;
    s.scale = (float)(c->attention_scale > 0 ? c->attention_scale : 1.0 / sqrt((double)k->head_dim));
    s.softcap = (float)c->attention_softcap;
    s.temperature = (float)c->temperature;
    s.temperature_every = c->temperature_every;
    model_attention_stage(k->b, s);
}

/* What is added to the residual: a product, or the norm of one, which then has a slot. */
static void add_out(block *k, bool glu, stage_spec s, block_module matrix, block_module post, unsigned normed) {
    stage_spec norm = with_norm(k, post);
    if (s.out == SLOT_OUT) norm.scalar = k->weight_at[BLOCK_SCALAR];
    uint8_t residual = s.residual, out = s.out;
    s.columns = s.row_columns = k->hidden;
    s.bias = k->bias_at[matrix];
    s.scale = (float)k->c->residual_scale;
    s.norm_kind = 0, s.epsilon = 0;
    if (has(k, post)) s.residual = NO_SLOT, s.out = (uint8_t)normed;
    model_set_adapter(k->b, &s, &k->adapter[matrix]);
    uint32_t part = model_one_part(k->b, k->parts, glu ? "down" : "o", k->weight[matrix]);
    model_out_stage(k->b, glu ? "mlp_out" : "attn_out", glu, s, part, k->small);
    if (!has(k, post)) return;
    norm.in = (uint8_t)normed, norm.out = out, norm.residual = residual;
    model_post_stage(k->b, glu ? "mlp_post" : "attn_post", norm, k->small);
}

static void add_mlp_in(block *k, bool fused) {
    bool gated = k->gate_up != k->mlp;
    const column_matrix of[] = {{"gate", k->weight[MODULE_GATE], k->mlp, 0, &k->adapter[MODULE_GATE]},
                                {"up", k->weight[MODULE_UP], k->mlp, 0, &k->adapter[MODULE_UP]}};
    stage_spec s = with_norm(k, NORM_MLP);
    model_set_adapter(k->b, &s, &k->adapter[MODULE_GATE_UP]);
    s.row_columns = k->gate_up;
    s.bias = first_bias(k, MODULE_GATE_UP, gated ? MODULE_GATE : MODULE_UP);
    s.in = SLOT_MID;
    s.out = SLOT_GATE_UP;
    const column_matrix *first = gated ? of : of + 1;
    if (fused)
        add_fused(k, "mlp_in", "gate_up", s, first, gated ? 2 : 1, k->weight[MODULE_GATE_UP]);
    else
        add_apart(k, "mlp_in", s, SLOT_MLP_NORMED, first, gated ? 2 : 1, k->weight[MODULE_GATE_UP]);
}

/* The block gates the input that is its own, and adds what becomes of it: its slot has sqrt(2) times of it. */
static void add_input(block *k) {
    stage_spec s = blank(k);
    s.norm_kind = 0, s.epsilon = 0;
    s.width = k->hidden;
    s.columns = s.row_columns = k->c->kinds.input_width;
    s.in = SLOT_LATE, s.out = SLOT_INPUT_GATE;
    model_set_adapter(k->b, &s, &k->adapter[MODULE_INPUT_GATE]);
    uint32_t part = model_one_part(k->b, k->parts, "input_gate", k->weight[MODULE_INPUT_GATE]);
    model_in_stage(k->b, "input_gate", s, part, k->small);
    s.width = s.columns;
    s.columns = s.row_columns = k->hidden;
    s.in = SLOT_INPUT_GATE, s.out = SLOT_INPUT_ADD, s.values = SLOT_INPUT;
    s.up_column = k->layer * s.width, s.up_row = k->c->num_hidden_layers * s.width;
    s.activation = (uint8_t)k->c->activation;
    s.scale = (float)sqrt(0.5);
    model_set_adapter(k->b, &s, &k->adapter[MODULE_INPUT_OUT]);
    part = model_one_part(k->b, k->parts, "input_out", k->weight[MODULE_INPUT_OUT]);
    model_out_stage(k->b, "input_out", true, s, part, k->small);
    stage_spec norm = with_norm(k, POST_INPUT);
    norm.in = SLOT_INPUT_ADD, norm.out = SLOT_OUT, norm.residual = SLOT_LATE;
    norm.scalar = k->weight_at[BLOCK_SCALAR];
    model_post_stage(k->b, "input_post", norm, k->small);
}

/* Of the last blocks, that share: the last one before them that looks through the same window. */
static uint32_t source_of(const block *k) {
    uint32_t own = k->c->num_hidden_layers - k->c->kinds.shared, source = own;
    if (k->layer < own) return k->layer;
    do source--;
    while (source > 0 && windowed(k, source) != windowed(k, k->layer));
    return source;
}

static void set_sizes(block *k) {
    const tm_model_config *c = k->c;
    bool full = !windowed(k, k->layer);
    k->source = source_of(k);
    bool shares = k->source != k->layer;
    k->head_dim = full && c->kinds.full_head_dim ? c->kinds.full_head_dim : c->head_dim;
    k->kv_heads = full && c->kinds.full_kv_heads ? c->kinds.full_kv_heads : c->num_key_value_heads;
    k->hidden = c->hidden_size;
    k->mlp = (uint64_t)c->intermediate_size * (shares && c->kinds.shared_wide ? 2 : 1);
    k->gate_up = has(k, MODULE_GATE) || has(k, MODULE_GATE_UP) ? 2 * k->mlp : k->mlp;
    k->q = (uint64_t)c->num_attention_heads * k->head_dim;
    k->kv = shares ? 0 : (uint64_t)k->kv_heads * k->head_dim;
    k->qkv = k->q + (keys_are_values(k) ? 1 : 2) * k->kv;
}

/* Whether matrices whose outputs lie side by side are one part; `whole` is their tensor, where they have one. Columns of
 * a transposed matrix are no run of its elements. */
static bool is_fused(const block *k, block_module whole, uint64_t columns) {
    if (k->b->d->transposed) return true;
    return k->b->roles ? has(k, whole) : columns * k->hidden <= k->b->m->fused_elements;
}

static void add_block(model_builder *b, uint32_t layer) {
    char name[24];
    block k = {.b = b, .c = b->c, .layer = layer};
    for (size_t i = 0; i < BLOCK_MODULES; i++) k.weight[i] = k.bias[i] = NO_TENSOR;
    set_sizes(&k);
    snprintf(name, sizeof name, "layers.%u", layer);
    snprintf(k.tensors, sizeof k.tensors, "%s%u.", b->d->blocks, layer);
    snprintf(k.parts, sizeof k.parts, "layers.%u.", layer);
    bool fused_qkv = is_fused(&k, MODULE_QKV, k.qkv), fused_gate_up = is_fused(&k, MODULE_GATE_UP, k.gate_up);
    model_begin_unit(b, TM_UNIT_BLOCK, name);
    add_slots(&k, fused_qkv, fused_gate_up);
    add_attention_tensors(&k);
    add_mlp_tensors(&k);
    add_input_tensors(&k);
    add_small(&k);
    add_adapters(&k);
    add_qkv(&k, fused_qkv);
    add_attention(&k);
    stage_spec out = blank(&k);
    out.in = SLOT_O, out.residual = SLOT_X, out.out = SLOT_MID, out.width = k.q;
    add_out(&k, false, out, MODULE_O, POST_ATTN, SLOT_ATTN_ADD);
    add_mlp_in(&k, fused_gate_up);
    out = blank(&k);
    out.in = SLOT_GATE_UP, out.residual = SLOT_MID, out.out = has(&k, MODULE_INPUT_GATE) ? SLOT_LATE : SLOT_OUT,
    out.width = k.mlp;
    out.activation = (uint8_t)b->c->activation;
    out.plain = k.gate_up == k.mlp;
    add_out(&k, true, out, MODULE_DOWN, POST_MLP, SLOT_MLP_ADD);
    if (has(&k, MODULE_INPUT_GATE)) add_input(&k);
}

void model_describe_decoder(model_builder *b) {
    model_describe_embed(b);
    for (uint32_t l = 0; l < b->c->num_hidden_layers; l++) add_block(b, l);
    model_describe_head(b);
}
