/* Which norm's output a stage multiplies: who scales the columns of its matrix can take that out of the norm again. */
#include "model/model_internal.h"

/* The part with the norm's vectors: the stage's own, or that of the stage which has written the slot. */
static const tm_stage *norm_stage(const tm_unit *u, const tm_stage *s) {
    if (model_norms_itself(s->spec)) return s;
    for (uint32_t i = 0; i < u->n_stages; i++)
        if (u->stage[i].spec->kind == model_stage_kind(STAGE_NORM) && u->stage[i].spec->out == s->spec->normed)
            return &u->stage[i];
    return NULL;
}

/* The vector that begins at this element of a part. */
static uint32_t tensor_at(const tm_model *m, uint32_t part, uint64_t element) {
    const tm_segment *at = tm_model_part_segments(m, part);
    for (uint32_t i = 0; i < m->part[part].n_segments && element != NO_VECTOR; i++)
        if (at[i].part_offset == element) return at[i].tensor;
    return UINT32_MAX;
}

bool tm_stage_input_norm(const tm_model *m, uint32_t unit, uint32_t stage, tm_input_norm *out) {
    const tm_unit *u = &m->unit[unit];
    const tm_stage *s = &u->stage[stage], *norm = NULL;
    if (s->spec->kind == model_stage_kind(STAGE_IN) && s->spec->norm != NO_VECTOR) norm = norm_stage(u, s);
    if (!norm) return false;
    uint32_t small = norm->part[norm == s ? PART_SMALL : 0];
    *out = (tm_input_norm){.weight = tensor_at(m, small, norm->spec->norm),
                           .bias = tensor_at(m, small, norm->spec->norm_bias),
                           .plus_one = norm->spec->norm_kind == TM_NORM_RMS_PLUS};
    return out->weight != UINT32_MAX;
}
