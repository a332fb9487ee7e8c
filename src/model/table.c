/* The description tables: units, stages, parts, tensors and the segments that join them. Built once, in unit order, by
 * an architecture's description (arch_internal.h). */
#include "model/arch_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96, NAMES_PER_BLOCK = 256 };
/* Names never move. */
struct model_names {
    struct model_names *next;
    uint32_t n;
    char name[NAMES_PER_BLOCK][NAME_BYTES];
};

static bool no_room(model_builder *b, const char *of, uint32_t most) {
    if (b->rc == TM_OK) b->rc = tm_fail(TM_EBUG, "the model's tables: more than %u %s", most, of);
    return true;
}

static bool grow_failed(model_builder *b, void *array, size_t *cap, uint32_t n, size_t bytes) {
    if (b->rc == TM_OK) b->rc = tm_grow(array, cap, (size_t)n + 1, bytes);
    return b->rc != TM_OK;
}

static const char *name_of(model_builder *b, const char *prefix, const char *what, const char *suffix) {
    struct model_names *names = b->m->names;
    if (b->rc == TM_OK && (!names || names->n == NAMES_PER_BLOCK)) {
        names = tm_calloc(1, sizeof *names);
        if (!names) b->rc = tm_nomem(sizeof *names);
        if (b->rc == TM_OK) names->next = b->m->names, b->m->names = names;
    }
    if (b->rc != TM_OK) return "";
    char *at = names->name[names->n++];
    if ((size_t)snprintf(at, NAME_BYTES, "%s%s%s", prefix, what, suffix) >= NAME_BYTES)
        no_room(b, "bytes in a name", NAME_BYTES - 1);
    return at;
}

/* ---- tensors, parts, segments ---- */

/* `suffix` ".weight" or ".bias"; columns 0: a vector. */
static uint32_t add_tensor(model_builder *b, const char *name, uint64_t rows, uint64_t columns, int init) {
    tm_model *m = b->m;
    if (grow_failed(b, &m->tensor, &b->tensors_cap, m->n_tensors, sizeof *m->tensor)) return 0;
    tm_tensor *t = &m->tensor[m->n_tensors];
    *t = (tm_tensor){.name = name,
                     .ndim = columns ? 2 : 1,
                     .shape = {rows, columns},
                     .elements = columns ? rows * columns : rows,
                     .is_norm_or_bias = columns == 0,
                     .init_size = b->c->initializer_range,
                     .of = m->n_tensors};
    if (init == 1) t->init = TM_INIT_ONE;
    if (init == 0) t->init = TM_INIT_ZERO;
    m->parameters += t->elements;
    return m->n_tensors++;
}

/* One of the checkpoint. */
static uint32_t add_base_tensor(model_builder *b, const char *name, uint64_t rows, uint64_t columns, int init) {
    uint32_t t = add_tensor(b, name, rows, columns, init);
    if (b->rc == TM_OK)
        b->m->tensor[t].learns = !b->roles || (b->roles->learns && b->roles->learns(b->roles->ctx, name));
    return t;
}

/* A tensor's name as the checkpoint has it. */
static const char *tensor_name(model_builder *b, const char *prefix, const char *stem, const char *suffix) {
    const tm_model_config *c = b->c;
    char whole[NAME_BYTES];
    size_t own = (size_t)(strchr(b->d->embed, '.') - b->d->embed) + 1; /* "model." */
    if (!c->named) return name_of(b, prefix, stem, suffix);
    if ((size_t)snprintf(whole, sizeof whole, "%s%s", prefix, stem) >= sizeof whole)
        no_room(b, "bytes in a name", NAME_BYTES - 1);
    bool body = strncmp(whole, b->d->embed, own) == 0;
    return name_of(b, body ? c->body_names : c->head_names, body ? whole + own : whole, suffix);
}

uint32_t model_add_tensor(model_builder *b, const char *prefix, const char *stem, uint64_t rows, uint64_t columns) {
    return add_base_tensor(b, tensor_name(b, prefix, stem, ".weight"), rows, columns, -1);
}

uint32_t model_add_norm(model_builder *b, const char *prefix, const char *stem, uint64_t n) {
    bool zeros = b->d->norm_kind == TM_NORM_RMS_PLUS;
    return add_base_tensor(b, tensor_name(b, prefix, stem, ".weight"), n, 0, zeros ? 0 : 1);
}

uint32_t model_add_bias(model_builder *b, const char *prefix, const char *stem, uint64_t n) {
    return add_base_tensor(b, tensor_name(b, prefix, stem, ".bias"), n, 0, 0);
}

uint32_t model_add_scalar(model_builder *b, const char *prefix, const char *stem) {
    uint32_t t = add_base_tensor(b, tensor_name(b, prefix, stem, ""), 1, 0, 1);
    if (b->rc == TM_OK) b->m->tensor[t].learns = false;
    return t;
}

uint32_t model_begin_part(model_builder *b, const char *prefix, const char *what) {
    tm_model *m = b->m;
    const char *name = name_of(b, prefix, what, "");
    if (grow_failed(b, &m->part, &b->parts_cap, m->n_parts, sizeof *m->part)) return 0;
    m->part[m->n_parts] = (tm_part){.unit = b->unit, .name = name, .first_segment = m->n_segments};
    m->unit[b->unit].n_parts++;
    return m->n_parts++;
}

/* The next `elements` of the part that was begun last are `tensor` from `offset` on. */
void model_add_segment(model_builder *b, uint32_t tensor, uint64_t offset, uint64_t elements) {
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
    p->learns |= m->tensor[tensor].learns;
    m->tensor[tensor].n_segments++;
}

uint64_t model_add_whole(model_builder *b, uint32_t tensor) {
    if (b->rc != TM_OK) return 0;
    uint64_t at = b->m->part[b->m->n_parts - 1].elements;
    model_add_segment(b, tensor, 0, b->m->tensor[tensor].elements);
    return at;
}

uint32_t model_one_part(model_builder *b, const char *prefix, const char *what, uint32_t tensor) {
    uint32_t part = model_begin_part(b, prefix, what);
    model_add_whole(b, tensor);
    return part;
}

/* ---- adapters ---- */

static bool adapts(model_builder *b, const char *module, tm_adapter_spec *out) {
    bool has = b->rc == TM_OK && b->roles && b->roles->adapts && b->roles->adapts(b->roles->ctx, module, out);
    if (!has) *out = (tm_adapter_spec){.rank = 0};
    return has;
}

static bool is_first(const tm_tensor *t) {
    return t->role == TM_TENSOR_FIRST_A || t->role == TM_TENSOR_FIRST_B;
}

/* The initial size decides between the two kinds; `name` has the module's before it. */
static uint64_t add_adapter_tensor(model_builder *b, const char *name, tm_tensor t) {
    uint32_t at = add_tensor(b, name, t.shape[0], t.shape[1], -1);
    if (b->rc != TM_OK) return 0;
    tm_tensor *x = &b->m->tensor[at];
    x->role = t.role, x->of = t.of, x->init = t.init, x->init_size = t.init_size;
    x->learns = !is_first(&t);
    x->is_norm_or_bias = false;
    return model_add_whole(b, at);
}

static void begin_adapters(model_builder *b, const char *parts) {
    if (b->adapter == NO_PART) b->adapter = model_begin_part(b, parts, "adapter");
}

model_adapter model_add_adapter(model_builder *b, const char *prefix, const char *stem, const char *parts, uint32_t of,
                                uint64_t out, uint64_t in) {
    model_adapter x = {.a = 0};
    const char *module = tensor_name(b, prefix, stem, "");
    if (!adapts(b, module, &x.is)) return x;
    const uint32_t r = x.is.rank;
    begin_adapters(b, parts);
    const bool normal = x.is.init_std > 0;
    x.a = add_adapter_tensor(b, name_of(b, module, ".lora_A.weight", ""),
                             (tm_tensor){.role = TM_TENSOR_LORA_A,
                                         .of = of,
                                         .shape = {r, in},
                                         .init = normal ? TM_INIT_NORMAL : TM_INIT_UNIFORM,
                                         .init_size = normal ? x.is.init_std : 1 / sqrt((double)in)});
    x.b = add_adapter_tensor(b, name_of(b, module, ".lora_B.weight", ""),
                             (tm_tensor){.role = TM_TENSOR_LORA_B, .of = of, .shape = {out, r}, .init = TM_INIT_ZERO});
    if (x.is.pissa) {
        x.first_a = add_adapter_tensor(b, name_of(b, module, ".lora_A.first", ""),
                                       (tm_tensor){.role = TM_TENSOR_FIRST_A, .of = of, .shape = {r, in}});
        x.first_b = add_adapter_tensor(b, name_of(b, module, ".lora_B.first", ""),
                                       (tm_tensor){.role = TM_TENSOR_FIRST_B, .of = of, .shape = {out, r}});
    }
    if (x.is.dora)
        x.magnitude = add_adapter_tensor(
            b, name_of(b, module, ".lora_magnitude_vector", ""),
            (tm_tensor){.role = TM_TENSOR_MAGNITUDE, .of = of, .shape = {out}, .init = TM_INIT_NORMS});
    return x;
}

void model_set_adapter(const model_builder *b, stage_spec *s, const model_adapter *adapter) {
    s->rank = adapter->is.rank;
    s->lora_a = adapter->a, s->lora_b = adapter->b, s->magnitude = adapter->magnitude;
    s->first_a = adapter->first_a, s->first_b = adapter->first_b;
    s->lora_scale = (float)adapter->is.scale;
    s->dropped = adapter->is.rank ? b->m->dropped : 0;
}

/* What is not built for a vocabulary's modules. */
static bool refuses(model_builder *b, const char *module, bool refused, const char *what) {
    if (refused && b->rc == TM_OK)
        b->rc = tm_fail(TM_EUNSUPPORTED, "%s of %s is not supported; leave it out of target_modules", what, module);
    return refused;
}

/* ---- stages ---- */

#define USE(s, g, a)                                                                                                   \
    (tm_slot_use) {                                                                                                    \
        .slot = (s), .grad = (g), .access = (a)                                                                        \
    }

static tm_stage *add_stage(model_builder *b, const char *name, stage_code code, stage_spec spec) {
    tm_model *m = b->m;
    spec.kind = model_stage_kind(code);
    if (grow_failed(b, &m->spec, &b->specs_cap, m->n_stages, sizeof *m->spec)) return &b->spare;
    if (grow_failed(b, &m->stage, &b->stages_cap, m->n_stages, sizeof *m->stage)) return &b->spare;
    m->spec[m->n_stages] = spec;
    tm_stage *s = &m->stage[m->n_stages++];
    *s = (tm_stage){.name = name, .has_backward = true};
    m->unit[b->unit].n_stages++;
    return s;
}

static void add_use(model_builder *b, tm_slot_use *uses, uint8_t *n, tm_slot_use use) {
    bool full = use.slot >= TM_MAX_SLOTS  ? no_room(b, "slots in a unit", TM_MAX_SLOTS)
                : *n >= TM_MAX_STAGE_USES ? no_room(b, "slots used by a stage", TM_MAX_STAGE_USES)
                                          : false;
    if (!full) uses[(*n)++] = use;
}
static void forward_use(model_builder *b, tm_stage *s, unsigned slot, tm_access a) {
    add_use(b, s->forward, &s->n_forward, USE((uint8_t)slot, false, (uint8_t)a));
}
static void backward_use(model_builder *b, tm_stage *s, unsigned slot, bool grad, tm_access a) {
    add_use(b, s->backward, &s->n_backward, USE((uint8_t)slot, grad, (uint8_t)a));
}
static void stage_part(model_builder *b, tm_stage *s, uint32_t part, bool forward, bool backward) {
    if (b->rc != TM_OK || (s->n_parts >= TM_MAX_STAGE_PARTS && no_room(b, "parts in a stage", TM_MAX_STAGE_PARTS)))
        return;
    unsigned i = s->n_parts++;
    s->part[i] = part;
    s->part_in_forward[i] = forward;
    s->part_in_backward[i] = backward;
    s->part_gradient[i] = part < b->m->n_parts && b->m->part[part].learns;
}

/* Whether the tensor that begins at `at` of a part learns. */
static bool learns_at(const tm_model *m, uint32_t part, uint64_t at) {
    const tm_segment *s = m->by_part + m->part[part].first_segment;
    if (at == NO_VECTOR) return false;
    while (at >= s->part_offset + s->elements) s++;
    return m->tensor[s->tensor].learns;
}

/* The small part of its unit, of which the stage's own vectors are `own`. */
static void stage_small(model_builder *b, tm_stage *s, uint32_t part, bool backward, const uint64_t own[3]) {
    stage_part(b, s, part, true, backward);
    if (b->rc != TM_OK) return;
    bool *learns = &s->part_gradient[s->n_parts - 1];
    *learns = false;
    for (unsigned i = 0; i < 3; i++) *learns |= learns_at(b->m, part, own[i]);
}
/* The unit's adapters, where the stage has one. */
static void stage_adapter(model_builder *b, tm_stage *s, const stage_spec *spec) {
    if (spec->rank) stage_part(b, s, b->adapter, true, true);
}
#define OWN(...)                                                                                                       \
    (const uint64_t[3]) {                                                                                              \
        __VA_ARGS__                                                                                                    \
    }

void model_norm_stage(model_builder *b, stage_spec spec, uint32_t small, tm_access grad) {
    tm_stage *s = add_stage(b, "norm", STAGE_NORM, spec);
    stage_small(b, s, small, true, OWN(spec.norm, spec.norm_bias, NO_VECTOR));
    stage_adapter(b, s, &spec);
    forward_use(b, s, spec.in, TM_READ);
    forward_use(b, s, spec.out, TM_WRITE);
    if (spec.rank) forward_use(b, s, SLOT_ADAPTER, TM_WRITE);
    backward_use(b, s, spec.out, true, TM_READ);
    if (spec.rank) backward_use(b, s, SLOT_ADAPTER, true, TM_READ);
    backward_use(b, s, spec.in, false, TM_READ);
    if (spec.rank) backward_use(b, s, spec.out, false, TM_READ);
    backward_use(b, s, spec.in, true, grad);
}

void model_in_stage(model_builder *b, const char *name, stage_spec spec, uint32_t matrix, uint32_t small) {
    bool norms = !spec.normed && spec.norm != NO_VECTOR;
    unsigned in = spec.normed ? spec.normed : spec.in;
    tm_stage *s = add_stage(b, name, STAGE_IN, spec);
    stage_part(b, s, matrix, true, true);
    if (norms || spec.bias != NO_VECTOR)
        stage_small(b, s, small, norms,
                    OWN(norms ? spec.norm : NO_VECTOR, norms ? spec.norm_bias : NO_VECTOR, spec.bias));
    stage_adapter(b, s, &spec);
    forward_use(b, s, in, TM_READ);
    forward_use(b, s, spec.out, spec.column == 0 ? TM_WRITE : TM_UPDATE);
    backward_use(b, s, spec.out, true, TM_READ);
    backward_use(b, s, in, false, TM_READ);
    backward_use(b, s, in, true, TM_UPDATE);
}

void model_qk_stage(model_builder *b, const char *name, stage_spec spec, uint32_t small) {
    bool keys = spec.kv_apart && spec.values != NO_SLOT;
    spec.bias = spec.norm_bias = NO_VECTOR;
    tm_stage *s = add_stage(b, name, STAGE_QK, spec);
    stage_small(b, s, small, true, OWN(spec.norm, spec.norm_k, NO_VECTOR));
    forward_use(b, s, spec.in, TM_READ);
    forward_use(b, s, spec.out, TM_WRITE);
    if (keys) forward_use(b, s, spec.values, TM_WRITE);
    backward_use(b, s, spec.out, true, TM_READ);
    if (keys) backward_use(b, s, spec.values, true, TM_READ);
    backward_use(b, s, spec.in, false, TM_READ);
    backward_use(b, s, spec.in, true, spec.kv_apart ? TM_WRITE : TM_UPDATE); /* attention wrote v's columns */
}

void model_attention_stage(model_builder *b, stage_spec spec) {
    bool apart = spec.values != spec.in;
    spec.norm = spec.norm_bias = spec.norm_k = spec.bias = NO_VECTOR;
    tm_stage *s = add_stage(b, "attn", STAGE_ATTENTION, spec);
    s->uses_kv_cache = true;
    forward_use(b, s, spec.in, TM_READ);
    if (apart) forward_use(b, s, spec.values, TM_READ);
    forward_use(b, s, spec.out, TM_WRITE);
    forward_use(b, s, SLOT_LSE, TM_WRITE);
    backward_use(b, s, spec.out, true, TM_READ);
    backward_use(b, s, spec.out, false, TM_READ);
    backward_use(b, s, spec.in, false, TM_READ);
    if (apart) backward_use(b, s, spec.values, false, TM_READ);
    backward_use(b, s, SLOT_LSE, false, TM_READ);
    backward_use(b, s, spec.in, true, TM_WRITE);
    /* v's columns, to which STAGE_QK adds those of q and k; or, of several blocks that share them, those of k and v */
    if (apart) backward_use(b, s, spec.values, true, spec.kv_apart ? TM_UPDATE : TM_WRITE);
}

void model_out_stage(model_builder *b, const char *name, bool glu, stage_spec spec, uint32_t matrix, uint32_t small) {
    bool adds = spec.residual != NO_SLOT, factor = glu && spec.values != NO_SLOT;
    spec.norm = spec.norm_bias = spec.norm_k = NO_VECTOR;
    tm_stage *s = add_stage(b, name, glu ? STAGE_GLU_OUT : STAGE_OUT, spec);
    stage_part(b, s, matrix, true, true);
    if (spec.bias != NO_VECTOR) stage_small(b, s, small, false, OWN(spec.bias, NO_VECTOR, NO_VECTOR));
    stage_adapter(b, s, &spec);
    forward_use(b, s, spec.in, TM_READ);
    if (factor) forward_use(b, s, spec.values, TM_READ);
    if (adds) forward_use(b, s, spec.residual, TM_READ);
    forward_use(b, s, spec.out, TM_WRITE);
    backward_use(b, s, spec.out, true, TM_READ);
    backward_use(b, s, spec.in, false, TM_READ);
    backward_use(b, s, spec.in, true, TM_WRITE);
    if (factor) backward_use(b, s, spec.values, false, TM_READ);
    if (factor) backward_use(b, s, spec.values, true, TM_UPDATE); /* other blocks have other columns */
    if (adds) backward_use(b, s, spec.residual, true, TM_WRITE);
}

void model_post_stage(model_builder *b, const char *name, stage_spec spec, uint32_t small) {
    spec.norm_k = spec.bias = NO_VECTOR;
    tm_stage *s = add_stage(b, name, STAGE_POST, spec);
    stage_small(b, s, small, true, OWN(spec.norm, spec.norm_bias, NO_VECTOR));
    forward_use(b, s, spec.in, TM_READ);
    forward_use(b, s, spec.residual, TM_READ);
    forward_use(b, s, spec.out, TM_WRITE);
    backward_use(b, s, spec.out, true, TM_READ);
    backward_use(b, s, spec.in, false, TM_READ);
    backward_use(b, s, spec.in, true, TM_WRITE);
    backward_use(b, s, spec.residual, true, TM_WRITE);
}

/* ---- units ---- */

void model_begin_unit(model_builder *b, tm_unit_kind kind, const char *name) {
    tm_model *m = b->m;
    name = name_of(b, name, "", "");
    if (grow_failed(b, &m->unit, &b->units_cap, m->n_units, sizeof *m->unit)) return;
    b->unit = m->n_units++;
    b->adapter = NO_PART;
    m->unit[b->unit] = (tm_unit){.kind = kind, .name = name, .first_part = m->n_parts, .kv_unit = b->unit};
}

void model_set_slot(model_builder *b, unsigned slot, const char *name, uint64_t bytes, uint64_t grad_bytes) {
    if (slot >= TM_MAX_SLOTS) no_room(b, "slots in a unit", TM_MAX_SLOTS);
    if (bytes > UINT32_MAX || grad_bytes > UINT32_MAX) no_room(b, "bytes in a token row of a slot", UINT32_MAX);
    if (b->rc == TM_OK)
        b->m->unit[b->unit].slot[slot] =
            (tm_slot){.name = name, .bytes = (uint32_t)bytes, .grad_bytes = (uint32_t)grad_bytes};
}

void model_bridge_slot(model_builder *b, unsigned slot, uint32_t unit, unsigned of) {
    if (slot >= TM_MAX_SLOTS) no_room(b, "slots in a unit", TM_MAX_SLOTS);
    if (b->rc != TM_OK) return;
    tm_slot *s = &b->m->unit[b->unit].slot[slot];
    *s = b->m->unit[unit].slot[of];
    s->bridged = true;
    s->of_unit = unit, s->of_slot = (uint8_t)of;
}

void model_set_kv(model_builder *b, uint64_t bytes, uint32_t window) {
    if (b->rc != TM_OK) return;
    b->m->unit[b->unit].kv_bytes = (uint32_t)bytes;
    b->m->unit[b->unit].kv_window = window;
}

void model_share_kv(model_builder *b, uint32_t unit) {
    if (b->rc == TM_OK) b->m->unit[b->unit].kv_unit = unit;
}

/* ---- embedding and head ---- */

/* A [rows, width] tensor in parts of `part` rows. */
typedef struct vocabulary {
    uint64_t rows, width, part;
} vocabulary;

static vocabulary vocabulary_of(const tm_model_config *c) {
    return (vocabulary){c->vocab_size, c->hidden_size, MODEL_VOCAB_PART};
}

static uint32_t vocabulary_parts(vocabulary v) {
    return (uint32_t)((v.rows + v.part - 1) / v.part);
}

/* What the stage of its part p computes. */
static stage_spec vocabulary_share(vocabulary v, uint32_t p) {
    uint64_t first = p * v.part;
    return (stage_spec){.width = v.width,
                        .column = first,
                        .columns = tm_min_u64(v.part, v.rows - first),
                        .row_columns = v.rows,
                        .norm = NO_VECTOR,
                        .norm_bias = NO_VECTOR,
                        .norm_k = NO_VECTOR,
                        .bias = NO_VECTOR,
                        .residual = NO_SLOT,
                        .rope = NO_ROPE};
}

/* Returns the first part. */
static uint32_t add_vocabulary(model_builder *b, const char *prefix, uint32_t tensor, vocabulary v) {
    uint32_t first = b->m->n_parts;
    for (uint32_t p = 0; p < vocabulary_parts(v); p++) {
        char number[16];
        stage_spec share = vocabulary_share(v, p);
        snprintf(number, sizeof number, "%u", p);
        model_begin_part(b, prefix, number);
        model_add_segment(b, tensor, share.column * share.width, share.columns * share.width);
    }
    return first;
}

/* A number as the compute type holds it: the reference multiplies by it in that type. */
static float in_compute_type(const tm_model *m, double x) {
    float y = (float)x;
    uint16_t half;
    if (m->compute == TM_BF16) tm_narrow(&y, &half, 1), tm_widen(&half, &y, 1);
    if (m->compute == TM_F16) tm_narrow_f16(&y, &half, 1), tm_widen_f16(&half, &y, 1);
    return y;
}

/* A row for each position, added to what was looked up. */
static void add_positions(model_builder *b) {
    const tm_model_config *c = b->c;
    tm_adapter_spec adapter;
    if (refuses(b, b->d->positions, adapts(b, b->d->positions, &adapter), "an adapter")) return;
    uint32_t t = model_add_tensor(b, "", b->d->positions, c->max_position_embeddings, c->hidden_size);
    stage_spec spec = vocabulary_share((vocabulary){c->max_position_embeddings, c->hidden_size, UINT32_MAX}, 0);
    spec.out = SLOT_OUT;
    tm_stage *s = add_stage(b, "positions", STAGE_POSITIONS, spec);
    stage_part(b, s, model_one_part(b, "embed.", "positions", t), true, false);
    forward_use(b, s, SLOT_OUT, TM_UPDATE);
    backward_use(b, s, SLOT_OUT, true, TM_READ);
}

/* scale (rows of A^T) B^T, added to what was looked up. */
static void add_embed_adapter(model_builder *b, uint32_t of, float scale) {
    const tm_model_config *c = b->c;
    tm_adapter_spec is;
    const char *module = tensor_name(b, "", b->d->embed, "");
    if (!adapts(b, module, &is) || refuses(b, module, is.dora, "DoRA")) return;
    begin_adapters(b, "embed.");
    stage_spec spec = vocabulary_share(vocabulary_of(c), 0);
    spec.lora_a = add_adapter_tensor(
        b, name_of(b, module, ".lora_embedding_A", ""),
        (tm_tensor){.role = TM_TENSOR_EMBEDDING_A, .of = of, .shape = {is.rank, c->vocab_size}, .init = TM_INIT_ZERO});
    spec.lora_b = add_adapter_tensor(b, name_of(b, module, ".lora_embedding_B", ""),
                                     (tm_tensor){.role = TM_TENSOR_EMBEDDING_B,
                                                 .of = of,
                                                 .shape = {c->hidden_size, is.rank},
                                                 .init = TM_INIT_NORMAL,
                                                 .init_size = 1});
    spec.columns = c->vocab_size;
    spec.out = SLOT_OUT;
    spec.rank = is.rank;
    spec.lora_scale = (float)is.scale, spec.scale = scale;
    tm_stage *s = add_stage(b, "embed_adapter", STAGE_EMBED_ADAPTER, spec);
    stage_adapter(b, s, &spec);
    forward_use(b, s, SLOT_OUT, TM_UPDATE);
    backward_use(b, s, SLOT_OUT, true, TM_READ);
}

/* Parts from `first` on, and stages, that look rows of `slot` up. */
static void add_lookups(model_builder *b, uint32_t first, vocabulary v, stage_spec like) {
    for (uint32_t p = 0; p < vocabulary_parts(v); p++) {
        stage_spec spec = vocabulary_share(v, p);
        spec.out = like.out, spec.adds = like.adds, spec.scale = like.scale;
        tm_stage *s = add_stage(b, "embed", STAGE_EMBED, spec);
        stage_part(b, s, first + p, true, false);
        forward_use(b, s, spec.out, TM_UPDATE);
        backward_use(b, s, spec.out, true, TM_READ);
    }
}

/* Each block's own input, side by side: sqrt(2) times what blocks are to read, which multiply by its inverse.
 *     inputs_in   = x W^T / sqrt(hidden)
 *     inputs      = norm of each block's columns + sqrt(columns) times what is looked up */
static void add_inputs(model_builder *b) {
    const tm_model_config *c = b->c;
    uint64_t p = c->kinds.input_width, row = c->num_hidden_layers * p, bytes = row * tm_dtype_bytes(b->m->compute);
    tm_adapter_spec of_table;
    const char *module = tensor_name(b, "", b->d->inputs, "");
    if (refuses(b, module, adapts(b, module, &of_table), "an adapter")) return;
    uint64_t part = tm_max_u64(MODEL_INPUTS_PART, b->m->fused_elements / row);
    vocabulary v = {c->kinds.input_vocab, row, tm_min_u64(MODEL_VOCAB_PART, part)};
    uint32_t table = model_add_tensor(b, "", b->d->inputs, v.rows, row);
    uint32_t matrix = model_add_tensor(b, "", b->d->inputs_in, row, c->hidden_size);
    uint32_t norm = model_add_norm(b, "", b->d->inputs_norm, p);
    model_adapter adapter = model_add_adapter(b, "", b->d->inputs_in, "embed.", matrix, row, c->hidden_size);
    model_set_slot(b, SLOT_INPUTS_IN, "inputs_in", bytes, bytes);
    model_set_slot(b, SLOT_INPUTS, "inputs", bytes, bytes);
    stage_spec in = vocabulary_share((vocabulary){row, c->hidden_size, row}, 0);
    in.in = SLOT_OUT, in.out = SLOT_INPUTS_IN;
    in.scale = (float)(1 / sqrt((double)c->hidden_size));
    model_set_adapter(b, &in, &adapter);
    model_in_stage(b, "inputs_in", in, model_one_part(b, "embed.", "inputs_in", matrix), 0);
    uint32_t small = model_begin_part(b, "embed.", "small");
    stage_spec norms = vocabulary_share((vocabulary){row, row, row}, 0);
    norms.norm = model_add_whole(b, norm);
    norms.in = SLOT_INPUTS_IN, norms.out = SLOT_INPUTS, norms.values = NO_SLOT;
    norms.heads = c->num_hidden_layers, norms.head_dim = (uint32_t)p;
    norms.norm_kind = (uint8_t)b->d->norm_kind, norms.epsilon = (float)c->rms_norm_eps;
    norms.kv_apart = true;
    model_qk_stage(b, "inputs_norm", norms, small);
    add_lookups(b, add_vocabulary(b, "embed.inputs.", table, v), v,
                (stage_spec){.out = SLOT_INPUTS, .adds = true, .scale = in_compute_type(b->m, sqrt((double)p))});
}

void model_describe_embed(model_builder *b) {
    uint64_t row = b->c->hidden_size * tm_dtype_bytes(b->m->compute);
    vocabulary v = vocabulary_of(b->c);
    model_begin_unit(b, TM_UNIT_EMBED, "embed");
    model_set_slot(b, SLOT_X, "input", 0, 0);
    model_set_slot(b, SLOT_OUT, "output", row, row);
    uint32_t t = model_add_tensor(b, "", b->d->embed, b->c->vocab_size, b->c->hidden_size);
    b->embed_tensor = t;
    float scale = in_compute_type(b->m, b->c->embedding_scale);
    b->embed_first_part = add_vocabulary(b, "embed.", t, v);
    add_lookups(b, b->embed_first_part, v, (stage_spec){.out = SLOT_OUT, .scale = scale});
    if (b->d->positions) add_positions(b);
    add_embed_adapter(b, t, scale);
    if (b->c->kinds.input_width) add_inputs(b);
}

/* The norm before the head: in a small part of its own. */
static stage_spec add_head_norm(model_builder *b, uint32_t *small) {
    const tm_model_config *c = b->c;
    uint64_t h = c->hidden_size;
    bool layer = b->d->norm_kind == TM_NORM_LAYER;
    uint32_t weight = model_add_norm(b, "", b->d->norm, h), bias = layer ? model_add_bias(b, "", b->d->norm, h) : 0;
    *small = model_begin_part(b, "head.", "small");
    stage_spec spec = {.width = h, .norm_bias = NO_VECTOR, .norm_k = NO_VECTOR, .bias = NO_VECTOR, .in = SLOT_X};
    spec.norm = model_add_whole(b, weight);
    if (layer) spec.norm_bias = model_add_whole(b, bias);
    spec.out = SLOT_NORMED;
    spec.residual = NO_SLOT;
    spec.norm_kind = (uint8_t)b->d->norm_kind;
    spec.epsilon = (float)c->rms_norm_eps;
    return spec;
}

/* Returns its first part, and the tensor. */
static uint32_t add_head_matrix(model_builder *b, uint32_t *t) {
    const tm_model_config *c = b->c;
    bool untied = b->roles && b->roles->untied;
    *t = b->embed_tensor;
    if (c->tie_word_embeddings && !untied) return b->embed_first_part;
    *t = model_add_tensor(b, "", b->d->head, c->vocab_size, c->hidden_size);
    if (c->tie_word_embeddings && b->rc == TM_OK) b->m->tensor[*t].of = b->embed_tensor;
    return add_vocabulary(b, "head.", *t, vocabulary_of(c));
}

/* Stage 0: the norm, and what its rows become in the adapter of the head, if that has one. */
static void add_head_stages(model_builder *b, uint32_t first, stage_spec norm, uint32_t small,
                            const model_adapter *adapter) {
    const tm_model_config *c = b->c;
    vocabulary v = vocabulary_of(c);
    stage_spec at_norm = norm;
    model_set_adapter(b, &at_norm, adapter);
    at_norm.columns = at_norm.rank;
    model_norm_stage(b, at_norm, small, TM_WRITE);
    for (uint32_t p = 0; p < vocabulary_parts(v); p++) {
        stage_spec spec = vocabulary_share(v, p);
        spec.scale = (float)(1 / c->logits_scale);
        spec.softcap = (float)c->final_softcap;
        model_set_adapter(b, &spec, adapter);
        spec.dropped = 0; /* the norm's stage has dropped it */
        tm_stage *s = add_stage(b, "head", STAGE_HEAD, spec);
        stage_part(b, s, first + p, true, true);
        stage_adapter(b, s, &spec);
        forward_use(b, s, SLOT_NORMED, TM_READ);
        if (spec.rank) forward_use(b, s, SLOT_ADAPTER, TM_READ);
        forward_use(b, s, SLOT_STATE, TM_UPDATE);
        backward_use(b, s, SLOT_NORMED, false, TM_READ);
        if (spec.rank) backward_use(b, s, SLOT_ADAPTER, false, TM_READ);
        backward_use(b, s, SLOT_STATE, false, TM_READ);
        backward_use(b, s, SLOT_NORMED, true, TM_UPDATE);
        if (spec.rank) backward_use(b, s, SLOT_ADAPTER, true, TM_UPDATE);
    }
}

void model_describe_head(model_builder *b) {
    const tm_model_config *c = b->c;
    uint64_t h = c->hidden_size, row = h * tm_dtype_bytes(b->m->compute);
    model_begin_unit(b, TM_UNIT_HEAD, "head");
    model_set_slot(b, SLOT_X, "input", row, row);
    model_set_slot(b, SLOT_OUT, "output", 0, 0);
    model_set_slot(b, SLOT_NORMED, "normed", row, h * sizeof(float));
    model_set_slot(b, SLOT_STATE, "state", sizeof(tm_head_state), 0);
    uint32_t small, matrix;
    stage_spec norm = add_head_norm(b, &small);
    uint32_t first = add_head_matrix(b, &matrix);
    model_adapter adapter = model_add_adapter(b, "", b->d->head, "head.", matrix, c->vocab_size, h);
    if (refuses(b, b->d->head, adapter.is.dora, "DoRA") || refuses(b, b->d->head, adapter.is.pissa, "PiSSA")) return;
    if (adapter.is.rank)
        model_set_slot(b, SLOT_ADAPTER, "adapter", adapter.is.rank * tm_dtype_bytes(b->m->compute),
                       adapter.is.rank * sizeof(float));
    add_head_stages(b, first, norm, small, &adapter);
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
static void point_at_stages(tm_model *m) {
    uint32_t first = 0;
    for (uint32_t u = 0; u < m->n_units; u++) {
        m->unit[u].stage = m->stage + first;
        first += m->unit[u].n_stages;
    }
    for (uint32_t s = 0; s < m->n_stages; s++) m->stage[s].spec = &m->spec[s];
    TM_ASSERT(first == m->n_stages);
}

tm_status model_build_tables(tm_model *m, const model_arch *arch, const tm_model_roles *roles) {
    model_builder b = {.m = m, .c = &m->config, .d = arch->decoder, .roles = roles};
    arch->describe(&b);
    TM_TRY(b.rc);
    point_at_stages(m);
    if (roles) TM_TRY(model_prune(m));
    return index_by_tensor(m);
}

void model_free_tables(tm_model *m) {
    void *all[] = {m->unit, m->stage, m->spec, m->part, m->tensor, m->by_tensor, m->by_part};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
    for (struct model_names *n = m->names, *next; n; n = next) {
        next = n->next;
        tm_free(n);
    }
}
