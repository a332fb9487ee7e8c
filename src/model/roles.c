/* What is left of backward where tensors are frozen. Forward says which slots depend on something that learns; a gradient
 * of another slot is nobody's, and what only such gradients would read is not kept for them. */
#include "model/model_internal.h"

static bool is(const stage_spec *s, stage_code code) {
    return s->kind == model_stage_kind(code);
}

static bool learns(const tm_stage *s) {
    bool any = false;
    for (unsigned i = 0; i < s->n_parts; i++) any |= s->part_gradient[i];
    return any;
}

/* depends[slot]: its value does, on something that learns. */
static void follow(const tm_stage *s, bool *depends) {
    bool any = learns(s);
    for (unsigned i = 0; i < s->n_forward; i++) any |= (s->forward[i].access & TM_READ) && depends[s->forward[i].slot];
    for (unsigned i = 0; i < s->n_forward; i++)
        if (s->forward[i].access & TM_WRITE) depends[s->forward[i].slot] |= any;
}

/* Gradients of queries, keys and values are computed together; so are those of a gate and a factor that lies apart. */
static bool input_depends(const stage_spec *s, unsigned slot, const bool *depends) {
    bool together = is(s, STAGE_ATTENTION) || (is(s, STAGE_GLU_OUT) && s->values != NO_SLOT);
    together = together && (slot == s->in || slot == s->values);
    return together ? depends[s->in] || depends[s->values] : depends[slot];
}

static bool wants(const stage_spec *s, const tm_slot_use *use, const bool *depends) {
    return !(use->access & TM_WRITE) || input_depends(s, use->slot, depends);
}

static bool has_matrix(const stage_spec *s) {
    return is(s, STAGE_IN) || is(s, STAGE_OUT) || is(s, STAGE_GLU_OUT) || is(s, STAGE_HEAD);
}

/* The bits of stage_spec.without. */
static uint8_t without(const tm_stage *s, const stage_spec *p, const bool *depends) {
    unsigned in = is(p, STAGE_HEAD) ? SLOT_NORMED : p->normed ? p->normed : p->in;
    bool matrix = has_matrix(p), small = s->n_parts > matrix + (p->rank > 0);
    uint8_t bits = 0;
    if (matrix && !s->part_gradient[PART_MATRIX]) bits |= WITHOUT_MATRIX;
    if (small && !s->part_gradient[matrix]) bits |= WITHOUT_SMALL;
    if (input_depends(p, in, depends)) return bits;
    return bits | WITHOUT_INPUT | (model_norms_itself(p) && !(bits & WITHOUT_SMALL) ? 0 : WITHOUT_PRODUCT);
}

/* Whether backward reads the slot's value: attention, the head and adapters always do, products that are given their
 * input as it is for the matrix's gradient, the others for any. */
static bool reads(const stage_spec *p, unsigned slot) {
    bool plain = is(p, STAGE_OUT) || (is(p, STAGE_IN) && !model_norms_itself(p));
    uint8_t all = WITHOUT_INPUT | WITHOUT_PRODUCT | (has_matrix(p) ? WITHOUT_MATRIX : WITHOUT_SMALL);
    if (is(p, STAGE_ATTENTION) || is(p, STAGE_HEAD) || p->rank || slot != (p->normed ? p->normed : p->in)) return true;
    return plain ? !(p->without & WITHOUT_MATRIX) : (p->without & all) != all;
}

/* Norms read their weights where they read their input, products their matrix for the input's gradient; the head's
 * logits, and DoRA's products, are computed again. */
static void prune_parts(tm_stage *s, const stage_spec *p) {
    bool matrix = has_matrix(p);
    bool again = is(p, STAGE_HEAD) || p->magnitude;
    if (matrix && !again && (p->without & WITHOUT_PRODUCT)) s->part_in_backward[PART_MATRIX] = false;
    for (unsigned i = matrix; i < s->n_parts; i++) s->part_in_backward[i] &= reads(p, p->in);
    for (unsigned i = 0; !s->has_backward && i < s->n_parts; i++) s->part_in_backward[i] = false;
}

static void prune_stage(tm_stage *s, stage_spec *p, const bool *depends) {
    bool writes = false;
    unsigned n = 0;
    p->without = without(s, p, depends);
    for (unsigned i = 0; i < s->n_backward; i++) {
        tm_slot_use use = s->backward[i];
        if (!(use.grad ? wants(p, &use, depends) : reads(p, use.slot))) continue;
        writes |= use.grad && (use.access & TM_WRITE);
        s->backward[n++] = use;
    }
    s->has_backward = writes || learns(s);
    s->n_backward = s->has_backward ? (uint8_t)n : 0;
    prune_parts(s, p);
}

typedef struct unit_slots {
    bool depends[TM_MAX_SLOTS];
} unit_slots;

static void prune_unit(tm_model *m, uint32_t unit, unit_slots *all) {
    const tm_unit *u = &m->unit[unit];
    bool *depends = all[unit].depends;
    size_t first = (size_t)(u->stage - m->stage);
    depends[SLOT_X] = unit > 0 && all[unit - 1].depends[SLOT_OUT];
    for (unsigned s = 0; s < TM_MAX_SLOTS; s++)
        if (u->slot[s].bridged) depends[s] = all[u->slot[s].of_unit].depends[u->slot[s].of_slot];
    for (uint32_t s = 0; s < u->n_stages; s++) follow(&u->stage[s], depends);
    for (uint32_t s = 0; s < u->n_stages; s++) prune_stage(&m->stage[first + s], &m->spec[first + s], depends);
}

tm_status model_prune(tm_model *m) {
    unit_slots *all = tm_calloc(m->n_units, sizeof *all);
    if (!all) return tm_nomem(m->n_units * sizeof *all);
    for (uint32_t u = 0; u < m->n_units; u++) prune_unit(m, u, all);
    tm_free(all);
    return TM_OK;
}
