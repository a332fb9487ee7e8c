/* A block of the walk: its matrices, and its weights, read from the model's source. */
#include "quantise/walk_internal.h"

#include <string.h>

/* ---- matrices ---- */

static tm_status find_source(const walk *w, uint32_t tensor, uint32_t *source) {
    const tm_tensor *t = tm_model_tensor(w->m, tensor);
    int64_t at = tm_source_find(w->o.src, t->name);
    if (at < 0) return tm_fail(TM_EINPUT, "%s: the tensor '%s' is missing", tm_source_path(w->o.src), t->name);
    const tm_source_tensor *s = tm_source_tensor_get(w->o.src, (uint32_t)at);
    if (s->elements != t->elements)
        return tm_fail(TM_EINPUT, "%s: '%s' has %llu elements, but config.json needs %llu", s->file, t->name,
                       (unsigned long long)s->elements, (unsigned long long)t->elements);
    *source = (uint32_t)at;
    return TM_OK;
}

static tm_status find_input(walk *w, walk_matrix *x, uint32_t slot) {
    for (x->input = 0; x->input < w->n_inputs && w->input[x->input].slot != slot;) x->input++;
    if (x->input < w->n_inputs) return TM_OK;
    TM_ASSERT(w->n_inputs < WALK_INPUTS);
    w->input[w->n_inputs++] = (walk_input){.slot = slot, .stage = x->stage, .width = x->width};
    return TM_OK;
}

/* A stage whose first part is a matrix multiplies what it reads first. */
static tm_status describe_stage(walk *w, const tm_unit *u, uint32_t stage) {
    const tm_stage *s = &u->stage[stage];
    if (s->n_parts == 0) return TM_OK;
    const tm_segment *at = tm_model_part_segments(w->m, s->part[0]);
    const tm_tensor *t = tm_model_tensor(w->m, at->tensor);
    if (t->ndim != 2) return TM_OK;
    bool turned = strcmp(tm_model_get_config(w->m)->model_type, "gpt2") == 0; /* [in, out] */
    TM_ASSERT(tm_model_part(w->m, s->part[0])->n_segments == 1 && w->n_matrices < WALK_MATRICES);
    walk_matrix *x = &w->matrix[w->n_matrices++];
    *x = (walk_matrix){
        .tensor = at->tensor, .stage = stage, .part = s->part[0], .rows = t->shape[turned], .width = t->shape[!turned]};
    TM_TRY(find_source(w, x->tensor, &x->source));
    return find_input(w, x, s->forward[0].slot);
}

tm_status walk_describe(walk *w, uint32_t unit) {
    const tm_unit *u = tm_model_unit(w->m, unit);
    w->n_inputs = w->n_matrices = 0;
    for (uint32_t s = 0; s < u->n_stages; s++) TM_TRY(describe_stage(w, u, s));
    return TM_OK;
}

/* ---- weights ---- */

uint64_t walk_unit_bytes(const walk *w, uint32_t unit) {
    const tm_unit *u = tm_model_unit(w->m, unit);
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < u->n_parts; p++) {
        if (w->part_at) w->part_at[p] = bytes;
        bytes += tm_round_up(tm_model_part(w->m, u->first_part + p)->elements * tm_dtype_bytes(w->o.compute), 64);
    }
    return bytes;
}

static tm_status load_segment(walk *w, const tm_segment *s, char *to) {
    tm_fmt fmt = w->o.compute == TM_F32 ? TM_FMT_F32 : TM_FMT_BF16;
    uint64_t e = tm_dtype_bytes(w->o.compute);
    uint32_t source;
    TM_TRY(find_source(w, s->tensor, &source));
    for (uint64_t at = 0, n; at < s->elements; at += n) {
        n = tm_min_u64(WALK_PIECE, s->elements - at);
        TM_TRY(tm_source_read_f32(w->o.src, source, s->tensor_offset + at, n, w->values));
        TM_TRY(tm_fmt_encode(fmt, w->values, n, to + (s->part_offset + at) * e));
    }
    tm_source_forget(w->o.src, source);
    return TM_OK;
}

tm_status walk_load_part(walk *w, uint32_t part, char *to) {
    const tm_segment *s = tm_model_part_segments(w->m, part);
    for (uint32_t i = 0; i < tm_model_part(w->m, part)->n_segments; i++) TM_TRY(load_segment(w, &s[i], to));
    return TM_OK;
}

tm_status walk_enter(walk *w, uint32_t b) {
    const tm_unit *u = tm_model_unit(w->m, w->unit = b + 1);
    TM_TRY(walk_describe(w, w->unit));
    (void)walk_unit_bytes(w, w->unit);
    walk_place_sums(w);
    walk_clear_sums(w);
    for (uint32_t p = 0; p < u->n_parts; p++) TM_TRY(walk_load_part(w, u->first_part + p, w->weights + w->part_at[p]));
    return TM_OK;
}

tm_status walk_replace(walk *w, const walk_matrix *x, uint64_t first, uint64_t n, const float *values) {
    const tm_unit *u = tm_model_unit(w->m, w->unit);
    char *to = w->weights + w->part_at[x->part - u->first_part] + first * tm_dtype_bytes(w->o.compute);
    return tm_fmt_encode(w->o.compute == TM_F32 ? TM_FMT_F32 : TM_FMT_BF16, values, n, to);
}
