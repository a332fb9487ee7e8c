/* The description tables: units, stages, parts, tensors and the segments that join them. Built once, in unit order.
 *
 * The tables grow while they are built. The first failure is kept in builder.rc; every function after it does nothing,
 * so that only model_build_tables looks at it. A pointer into a table is good until the next entry is added. */
#include "model/model_internal.h"

#include <stdio.h>

enum { NAME_BYTES = 64, NAMES_PER_BLOCK = 256 };
/* Names never move. */
struct model_names {
    struct model_names *next;
    uint32_t n;
    char name[NAMES_PER_BLOCK][NAME_BYTES];
};

typedef struct builder {
    tm_model *m;
    const tm_model_config *c;
    tm_status rc;
    size_t units_cap, stages_cap, parts_cap, tensors_cap, segments_cap;
    tm_stage spare; /* what add_stage returns after a failure */
    uint32_t unit;
    uint32_t embed_first_part;
} builder;

static bool no_room(builder *b, const char *of, uint32_t most) {
    if (b->rc == TM_OK) b->rc = tm_fail(TM_EBUG, "the model's tables: more than %u %s", most, of);
    return true;
}

static bool grow_failed(builder *b, void *array, size_t *cap, uint32_t n, size_t bytes) {
    if (b->rc == TM_OK) b->rc = tm_grow(array, cap, (size_t)n + 1, bytes);
    return b->rc != TM_OK;
}

static const char *name_of(builder *b, const char *prefix, const char *what) {
    struct model_names *names = b->m->names;
    if (b->rc == TM_OK && (!names || names->n == NAMES_PER_BLOCK)) {
        names = tm_calloc(1, sizeof *names);
        if (!names) b->rc = tm_nomem(sizeof *names);
        if (b->rc == TM_OK) names->next = b->m->names, b->m->names = names;
    }
    if (b->rc != TM_OK) return "";
    char *at = names->name[names->n++];
    if ((size_t)snprintf(at, NAME_BYTES, "%s%s", prefix, what) >= NAME_BYTES)
        no_room(b, "bytes in a name", NAME_BYTES - 1);
    return at;
}

/* ---- tensors, parts, segments ---- */

static uint32_t add_tensor(builder *b, const char *prefix, const char *what, uint64_t rows, uint64_t columns) {
    tm_model *m = b->m;
    bool vector = columns == 0;
    const char *name = name_of(b, prefix, what);
    if (grow_failed(b, &m->tensor, &b->tensors_cap, m->n_tensors, sizeof *m->tensor)) return 0;
    m->tensor[m->n_tensors] = (tm_tensor){.name = name,
                                          .ndim = vector ? 1 : 2,
                                          .shape = {rows, columns},
                                          .elements = vector ? rows : rows * columns,
                                          .init = TM_INIT_NORMAL,
                                          .is_norm_or_bias = vector};
    m->parameters += m->tensor[m->n_tensors].elements;
    return m->n_tensors++;
}

static uint32_t add_norm(builder *b, const char *prefix, const char *what) {
    uint32_t t = add_tensor(b, prefix, what, b->c->hidden_size, 0);
    if (b->rc == TM_OK) b->m->tensor[t].init = TM_INIT_ONE;
    return t;
}

static uint32_t add_bias(builder *b, const char *prefix, const char *what, uint64_t n) {
    uint32_t t = add_tensor(b, prefix, what, n, 0);
    if (b->rc == TM_OK) b->m->tensor[t].init = TM_INIT_ZERO;
    return t;
}

static uint32_t begin_part(builder *b, const char *prefix, const char *what) {
    tm_model *m = b->m;
    const char *name = name_of(b, prefix, what);
    if (grow_failed(b, &m->part, &b->parts_cap, m->n_parts, sizeof *m->part)) return 0;
    m->part[m->n_parts] = (tm_part){.unit = b->unit, .name = name, .first_segment = m->n_segments};
    m->unit[b->unit].n_parts++;
    return m->n_parts++;
}

/* The next `elements` of the part that was begun last are `tensor` from `offset` on. */
static void add_segment(builder *b, uint32_t tensor, uint64_t offset, uint64_t elements) {
    tm_model *m = b->m;
    if (grow_failed(b, &m->by_part, &b->segments_cap, m->n_segments, sizeof *m->by_part)) return;
    tm_part *p = &m->part[m->n_parts - 1];
    m->by_part[m->n_segments++] = (tm_segment){.tensor = tensor,
                                               .part = m->n_parts - 1,
                                               .tensor_offset = offset,
                                               .part_offset = p->elements,
                                               .elements = elements};
    p->elements += elements;
    p->n_segments++;
    m->tensor[tensor].n_segments++;
}

static void add_whole(builder *b, uint32_t tensor) {
    if (b->rc == TM_OK) add_segment(b, tensor, 0, b->m->tensor[tensor].elements);
}

/* ---- stages ---- */

#define USE(s, g, a)                                                                                                   \
    (tm_slot_use) {                                                                                                    \
        .slot = (s), .grad = (g), .access = (a)                                                                        \
    }

static tm_stage *add_stage(builder *b, const char *name, stage_code code, uint32_t index) {
    tm_model *m = b->m;
    if (grow_failed(b, &m->stage, &b->stages_cap, m->n_stages, sizeof *m->stage)) return &b->spare;
    tm_stage *s = &m->stage[m->n_stages++];
    *s = (tm_stage){.name = name, .code = (uint16_t)code, .index = (uint16_t)index};
    m->unit[b->unit].n_stages++;
    return s;
}

static void add_use(builder *b, tm_slot_use *uses, uint8_t *n, tm_slot_use use) {
    bool full = use.slot >= TM_MAX_SLOTS  ? no_room(b, "slots in a unit", TM_MAX_SLOTS)
                : *n >= TM_MAX_STAGE_USES ? no_room(b, "slots used by a stage", TM_MAX_STAGE_USES)
                                          : false;
    if (!full) uses[(*n)++] = use;
}
static void forward_use(builder *b, tm_stage *s, unsigned slot, tm_access a) {
    add_use(b, s->forward, &s->n_forward, USE((uint8_t)slot, false, (uint8_t)a));
}
static void backward_use(builder *b, tm_stage *s, unsigned slot, bool grad, tm_access a) {
    add_use(b, s->backward, &s->n_backward, USE((uint8_t)slot, grad, (uint8_t)a));
}
static void stage_part(builder *b, tm_stage *s, uint32_t part, bool forward, bool backward) {
    if (s->n_parts >= TM_MAX_STAGE_PARTS && no_room(b, "parts in a stage", TM_MAX_STAGE_PARTS)) return;
    unsigned i = s->n_parts++;
    s->part[i] = part;
    s->part_in_forward[i] = forward;
    s->part_in_backward[i] = backward;
    s->part_gradient[i] = true;
}

/* A norm by itself: adds to the input's gradient, which the residual path wrote before (in a block), or writes it. */
static void add_norm_stage(builder *b, unsigned in, unsigned out, uint32_t small, tm_access grad) {
    tm_stage *s = add_stage(b, "norm", STAGE_NORM, in);
    stage_part(b, s, small, true, true);
    forward_use(b, s, in, TM_READ);
    forward_use(b, s, out, TM_WRITE);
    backward_use(b, s, out, true, TM_READ);
    backward_use(b, s, in, false, TM_READ);
    backward_use(b, s, in, true, grad);
}

/* A matrix product with its norm (index 0), or one of several behind a norm stage (1, 2, ..), of which the first writes
 * the output slot and the others add their columns. */
static void add_in_stage(builder *b, stage_code code, uint32_t index, uint32_t part, uint32_t small) {
    bool attn = code == STAGE_ATTN_IN, bias = attn ? b->c->attention_bias : b->c->mlp_bias;
    unsigned in = attn ? SLOT_X : SLOT_MID, out = attn ? SLOT_QKV : SLOT_GATE_UP;
    if (index) in = attn ? SLOT_ATTN_NORMED : SLOT_MLP_NORMED;
    tm_stage *s = add_stage(b, attn ? "attn_in" : "mlp_in", code, index);
    stage_part(b, s, part, true, true);
    if (index == 0 || bias) stage_part(b, s, small, true, index == 0);
    forward_use(b, s, in, TM_READ);
    forward_use(b, s, out, index <= 1 ? TM_WRITE : TM_UPDATE);
    backward_use(b, s, out, true, TM_READ);
    backward_use(b, s, in, false, TM_READ);
    backward_use(b, s, in, true, TM_UPDATE);
}

static void add_attention(builder *b) {
    tm_stage *s = add_stage(b, "attn", STAGE_ATTN, 0);
    s->uses_kv_cache = true;
    forward_use(b, s, SLOT_QKV, TM_READ);
    forward_use(b, s, SLOT_O, TM_WRITE);
    forward_use(b, s, SLOT_LSE, TM_WRITE);
    backward_use(b, s, SLOT_O, true, TM_READ);
    backward_use(b, s, SLOT_O, false, TM_READ);
    backward_use(b, s, SLOT_QKV, false, TM_READ);
    backward_use(b, s, SLOT_LSE, false, TM_READ);
    backward_use(b, s, SLOT_QKV, true, TM_WRITE);
}

static void add_out_stage(builder *b, const char *name, stage_code code, uint32_t part, uint32_t small, bool bias) {
    bool attn = code == STAGE_ATTN_OUT;
    unsigned in = attn ? SLOT_O : SLOT_GATE_UP, residual = attn ? SLOT_X : SLOT_MID, out = attn ? SLOT_MID : SLOT_OUT;
    tm_stage *s = add_stage(b, name, code, 0);
    stage_part(b, s, part, true, true);
    if (bias) stage_part(b, s, small, true, false);
    forward_use(b, s, in, TM_READ);
    forward_use(b, s, residual, TM_READ);
    forward_use(b, s, out, TM_WRITE);
    backward_use(b, s, out, true, TM_READ);
    backward_use(b, s, in, false, TM_READ);
    backward_use(b, s, in, true, TM_WRITE);
    backward_use(b, s, residual, true, TM_WRITE);
}

/* ---- units ---- */

static void begin_unit(builder *b, tm_unit_kind kind, const char *name) {
    tm_model *m = b->m;
    if (grow_failed(b, &m->unit, &b->units_cap, m->n_units, sizeof *m->unit)) return;
    b->unit = m->n_units++;
    m->unit[b->unit] = (tm_unit){.kind = kind, .name = name, .first_part = m->n_parts};
}

static void set_slot(builder *b, unsigned slot, const char *name, uint64_t bytes, uint64_t grad_bytes) {
    if (slot >= TM_MAX_SLOTS) no_room(b, "slots in a unit", TM_MAX_SLOTS);
    if (b->rc == TM_OK) b->m->unit[b->unit].slot[slot] = (tm_slot){name, (uint32_t)bytes, (uint32_t)grad_bytes};
}

/* Vocabulary parts of one [vocab, hidden] tensor. */
static uint32_t add_vocabulary(builder *b, const char *prefix, uint32_t tensor) {
    uint32_t first = b->m->n_parts;
    for (uint32_t p = 0; p < model_vocab_parts(b->c); p++) {
        char number[16];
        snprintf(number, sizeof number, "%u", p);
        begin_part(b, prefix, number);
        add_segment(b, tensor, (uint64_t)p * MODEL_VOCAB_PART * b->c->hidden_size,
                    (uint64_t)model_part_rows(b->c, p) * b->c->hidden_size);
    }
    return first;
}

static void add_embed(builder *b) {
    uint64_t row = b->c->hidden_size * tm_dtype_bytes(b->m->compute);
    begin_unit(b, TM_UNIT_EMBED, "embed");
    set_slot(b, SLOT_X, "input", 0, 0);
    set_slot(b, SLOT_OUT, "output", row, row);
    uint32_t t = add_tensor(b, "model.", "embed_tokens.weight", b->c->vocab_size, b->c->hidden_size);
    b->embed_first_part = add_vocabulary(b, "embed.", t);
    for (uint32_t p = 0; p < model_vocab_parts(b->c); p++) {
        tm_stage *s = add_stage(b, "embed", STAGE_EMBED, p);
        stage_part(b, s, b->embed_first_part + p, true, false);
        forward_use(b, s, SLOT_OUT, TM_UPDATE);
        backward_use(b, s, SLOT_OUT, true, TM_READ);
    }
}

static void block_slots(builder *b) {
    const tm_model_config *c = b->c;
    uint64_t e = tm_dtype_bytes(b->m->compute), h = c->hidden_size * e, q = model_q_columns(c) * e;
    uint64_t qkv = model_qkv_columns(c) * e, gate_up = 2 * (uint64_t)c->intermediate_size * e;
    set_slot(b, SLOT_X, "input", h, h);
    set_slot(b, SLOT_OUT, "output", h, h);
    set_slot(b, SLOT_QKV, "qkv", qkv, qkv);
    set_slot(b, SLOT_O, "o", q, q);
    set_slot(b, SLOT_LSE, "lse", c->num_attention_heads * sizeof(float), 0);
    set_slot(b, SLOT_MID, "mid", h, h);
    set_slot(b, SLOT_GATE_UP, "gate_up", gate_up, gate_up);
    if (!b->m->fused_qkv) set_slot(b, SLOT_ATTN_NORMED, "attn_normed", h, c->hidden_size * sizeof(float));
    if (!b->m->fused_gate_up) set_slot(b, SLOT_MLP_NORMED, "mlp_normed", h, c->hidden_size * sizeof(float));
    if (b->rc == TM_OK) b->m->unit[b->unit].kv_bytes = (uint32_t)(2 * model_kv_columns(c) * e);
}

typedef struct block_tensors {
    uint32_t norm1, q, k, v, o, norm2, gate, up, down;
    uint32_t q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
} block_tensors;

static block_tensors add_block_tensors(builder *b, const char *prefix) {
    const tm_model_config *c = b->c;
    uint64_t h = c->hidden_size, q = model_q_columns(c), kv = model_kv_columns(c), f = c->intermediate_size;
    block_tensors t = {.norm1 = add_norm(b, prefix, "input_layernorm.weight")};
    t.q = add_tensor(b, prefix, "self_attn.q_proj.weight", q, h);
    t.k = add_tensor(b, prefix, "self_attn.k_proj.weight", kv, h);
    t.v = add_tensor(b, prefix, "self_attn.v_proj.weight", kv, h);
    t.o = add_tensor(b, prefix, "self_attn.o_proj.weight", h, q);
    if (c->attention_bias) {
        t.q_bias = add_bias(b, prefix, "self_attn.q_proj.bias", q);
        t.k_bias = add_bias(b, prefix, "self_attn.k_proj.bias", kv);
        t.v_bias = add_bias(b, prefix, "self_attn.v_proj.bias", kv);
        t.o_bias = add_bias(b, prefix, "self_attn.o_proj.bias", h);
    }
    t.norm2 = add_norm(b, prefix, "post_attention_layernorm.weight");
    t.gate = add_tensor(b, prefix, "mlp.gate_proj.weight", f, h);
    t.up = add_tensor(b, prefix, "mlp.up_proj.weight", f, h);
    t.down = add_tensor(b, prefix, "mlp.down_proj.weight", h, f);
    if (c->mlp_bias) {
        t.gate_bias = add_bias(b, prefix, "mlp.gate_proj.bias", f);
        t.up_bias = add_bias(b, prefix, "mlp.up_proj.bias", f);
        t.down_bias = add_bias(b, prefix, "mlp.down_proj.bias", h);
    }
    return t;
}

/* Both norms, then the biases; model_build_tables gives the same order to m->small. */
static uint32_t add_small(builder *b, const char *prefix, const block_tensors *t) {
    uint32_t part = begin_part(b, prefix, "small");
    add_whole(b, t->norm1);
    add_whole(b, t->norm2);
    if (b->c->attention_bias) {
        add_whole(b, t->q_bias);
        add_whole(b, t->k_bias);
        add_whole(b, t->v_bias);
        add_whole(b, t->o_bias);
    }
    if (b->c->mlp_bias) {
        add_whole(b, t->gate_bias);
        add_whole(b, t->up_bias);
        add_whole(b, t->down_bias);
    }
    return part;
}

static small_layout layout_small(const tm_model_config *c) {
    uint64_t h = c->hidden_size;
    small_layout s = {.norm2 = h, .elements = 2 * h};
    s.qkv_bias = s.o_bias = s.gate_up_bias = s.down_bias = UINT64_MAX;
    if (c->attention_bias) {
        s.qkv_bias = s.elements;
        s.o_bias = s.qkv_bias + model_qkv_columns(c);
        s.elements = s.o_bias + h;
    }
    if (c->mlp_bias) {
        s.gate_up_bias = s.elements;
        s.down_bias = s.gate_up_bias + 2 * (uint64_t)c->intermediate_size;
        s.elements = s.down_bias + h;
    }
    return s;
}

static uint32_t one_part(builder *b, const char *prefix, const char *what, uint32_t tensor) {
    uint32_t part = begin_part(b, prefix, what);
    add_whole(b, tensor);
    return part;
}

static void add_qkv(builder *b, const char *prefix, const block_tensors *t, uint32_t small) {
    if (!b->m->fused_qkv) {
        uint32_t q = one_part(b, prefix, "q", t->q), k = one_part(b, prefix, "k", t->k),
                 v = one_part(b, prefix, "v", t->v);
        add_norm_stage(b, SLOT_X, SLOT_ATTN_NORMED, small, TM_UPDATE);
        add_in_stage(b, STAGE_ATTN_IN, 1, q, small);
        add_in_stage(b, STAGE_ATTN_IN, 2, k, small);
        add_in_stage(b, STAGE_ATTN_IN, 3, v, small);
        return;
    }
    uint32_t part = begin_part(b, prefix, "qkv");
    add_whole(b, t->q);
    add_whole(b, t->k);
    add_whole(b, t->v);
    add_in_stage(b, STAGE_ATTN_IN, 0, part, small);
}

static void add_gate_up(builder *b, const char *prefix, const block_tensors *t, uint32_t small) {
    if (!b->m->fused_gate_up) {
        uint32_t gate = one_part(b, prefix, "gate", t->gate), up = one_part(b, prefix, "up", t->up);
        add_norm_stage(b, SLOT_MID, SLOT_MLP_NORMED, small, TM_UPDATE);
        add_in_stage(b, STAGE_MLP_IN, 1, gate, small);
        add_in_stage(b, STAGE_MLP_IN, 2, up, small);
        return;
    }
    uint32_t part = begin_part(b, prefix, "gate_up");
    add_whole(b, t->gate);
    add_whole(b, t->up);
    add_in_stage(b, STAGE_MLP_IN, 0, part, small);
}

static void add_block(builder *b, uint32_t layer) {
    char name[24], prefix[32], unit_prefix[24];
    snprintf(name, sizeof name, "layers.%u", layer);
    snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
    snprintf(unit_prefix, sizeof unit_prefix, "layers.%u.", layer);
    begin_unit(b, TM_UNIT_BLOCK, name_of(b, name, ""));
    block_slots(b);
    block_tensors t = add_block_tensors(b, prefix);
    uint32_t small = add_small(b, unit_prefix, &t);
    add_qkv(b, unit_prefix, &t, small);
    add_attention(b);
    add_out_stage(b, "attn_out", STAGE_ATTN_OUT, one_part(b, unit_prefix, "o", t.o), small, b->c->attention_bias);
    add_gate_up(b, unit_prefix, &t, small);
    add_out_stage(b, "mlp_out", STAGE_MLP_OUT, one_part(b, unit_prefix, "down", t.down), small, b->c->mlp_bias);
}

static void add_head(builder *b) {
    uint64_t h = b->c->hidden_size, row = h * tm_dtype_bytes(b->m->compute);
    begin_unit(b, TM_UNIT_HEAD, "head");
    set_slot(b, SLOT_X, "input", row, row);
    set_slot(b, SLOT_OUT, "output", 0, 0);
    set_slot(b, SLOT_NORMED, "normed", row, h * sizeof(float));
    set_slot(b, SLOT_STATE, "state", sizeof(tm_head_state), 0);
    uint32_t norm = one_part(b, "head.", "small", add_norm(b, "model.", "norm.weight"));
    uint32_t first = b->embed_first_part;
    if (!b->c->tie_word_embeddings)
        first = add_vocabulary(b, "head.", add_tensor(b, "", "lm_head.weight", b->c->vocab_size, h));
    add_norm_stage(b, SLOT_X, SLOT_NORMED, norm, TM_WRITE);
    for (uint32_t p = 0; p < model_vocab_parts(b->c); p++) {
        tm_stage *s = add_stage(b, "head", STAGE_HEAD, p);
        stage_part(b, s, first + p, true, true);
        forward_use(b, s, SLOT_NORMED, TM_READ);
        forward_use(b, s, SLOT_STATE, TM_UPDATE);
        backward_use(b, s, SLOT_NORMED, false, TM_READ);
        backward_use(b, s, SLOT_STATE, false, TM_READ);
        backward_use(b, s, SLOT_NORMED, true, TM_UPDATE);
    }
}

/* ---- whole ---- */

/* by_part again, in the order of tensors; parts are built in order of offset, so a stable pass sorts. */
static tm_status index_by_tensor(tm_model *m) {
    m->by_tensor = tm_malloc(m->n_segments * sizeof *m->by_tensor);
    if (!m->by_tensor) return tm_nomem(m->n_segments * sizeof *m->by_tensor);
    uint32_t at = 0;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        m->tensor[t].first_segment = at;
        at += m->tensor[t].n_segments;
        m->tensor[t].n_segments = 0;
    }
    for (uint32_t s = 0; s < m->n_segments; s++) {
        tm_tensor *t = &m->tensor[m->by_part[s].tensor];
        m->by_tensor[t->first_segment + t->n_segments++] = m->by_part[s];
    }
    return TM_OK;
}

/* Stages lie in unit order; only now do they lie still. */
static void point_units_at_stages(tm_model *m) {
    uint32_t first = 0;
    for (uint32_t u = 0; u < m->n_units; u++) {
        m->unit[u].stage = m->stage + first;
        first += m->unit[u].n_stages;
    }
    TM_ASSERT(first == m->n_stages);
}

tm_status model_build_tables(tm_model *m) {
    const tm_model_config *c = &m->config;
    builder b = {.m = m, .c = c};
    m->fused_qkv = model_qkv_columns(c) * c->hidden_size <= m->fused_elements;
    m->fused_gate_up = 2 * (uint64_t)c->intermediate_size * c->hidden_size <= m->fused_elements;
    m->small = layout_small(c);
    add_embed(&b);
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) add_block(&b, l);
    add_head(&b);
    TM_TRY(b.rc);
    point_units_at_stages(m);
    return index_by_tensor(m);
}

void model_free_tables(tm_model *m) {
    void *all[] = {m->unit, m->stage, m->part, m->tensor, m->by_tensor, m->by_part};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
    for (struct model_names *n = m->names, *next; n; n = next) {
        next = n->next;
        tm_free(n);
    }
}
