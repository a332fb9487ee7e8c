/* Weights between ranks: gathered before the first use of an interval, handed round when they are new (DESIGN section
 * 7).
 *
 * What does not learn comes from its files, decoded where it has to be, and is gathered as the others.
 *
 * What comes next is asked for ahead of its use, so that it travels while the stage before computes: the list below is
 * in program order, which all ranks share, and so are the operations that it leads to. */
#include "step/build_internal.h"

static uint64_t part_bytes(const pass *x, uint32_t part) {
    return x->job->part[part].elements * tm_dtype_bytes(x->job->dtype);
}

/* ---- the order of needs -------------------------------------------------------------------------------------- */

static void note_stage(pass *x, const tm_stage *stage, bool backward, uint32_t from) {
    for (uint32_t i = 0; i < stage->n_parts; i++) {
        bool seen = !(backward ? stage->part_in_backward[i] : stage->part_in_forward[i]);
        for (uint32_t k = from; k < x->gather_end && !seen; k++) seen = x->gather[k] == stage->part[i];
        if (!seen) x->gather[x->gather_end++] = stage->part[i];
    }
}

void pass_gather_forward(pass *x) {
    x->gather_head = x->gather_end = 0;
    x->ahead_sum = 0;
    for (uint32_t u = 0; u < x->units; u++) {
        uint32_t from = x->gather_end;
        for (uint32_t s = 0; s < tm_model_unit(x->m, u)->n_stages; s++)
            note_stage(x, &tm_model_unit(x->m, u)->stage[s], false, from);
    }
}

void pass_gather_backward(pass *x) {
    x->in_backward = true;
    x->gather_head = x->gather_end = 0;
    x->ahead_sum = 0;
    for (uint32_t u = x->units; u-- > 0;) {
        const tm_unit *unit = tm_model_unit(x->m, u);
        const bool *again = pass_again(x, u);
        uint32_t from = x->gather_end;
        for (uint32_t s = 0; s < unit->n_stages; s++)
            if (again[s]) note_stage(x, &unit->stage[s], false, from);
        for (uint32_t s = unit->n_stages; s-- > 0;)
            if (unit->stage[s].has_backward) note_stage(x, &unit->stage[s], true, from);
    }
}

/* hpZ: a second copy, divided within the node, so that backward need not ask other nodes. */
static void stash(pass *x, uint32_t part, uint32_t whole) {
    uint32_t unit = tm_model_part(x->m, part)->unit;
    uint64_t bytes = job_second_bytes(x->job, part);
    if (bytes == 0 || !x->o->backward) return;
    x->second[part] =
        tm_program_temp(x->p, &(tm_object){.kind = TM_KIND_ACTIVATION, .unit = unit, .bytes = bytes, .pageable = true});
    op_begin(&x->w, OP_STASH, (op_args){.part = {.part = part}});
    op_use(&x->w, OPERAND_TILE, whole, TM_USE_READ);
    op_use(&x->w, OPERAND_SECOND, tm_program_interval(x->p, x->second[part], 1), TM_USE_WRITE);
    op_end(&x->w);
}

static void gather_in_node(pass *x, uint32_t part, uint32_t whole) {
    bool any = x->second[part] != NONE;
    uint32_t from = any ? tm_program_interval(x->p, x->second[part], 1) : NONE;
    op_begin(&x->w, OP_GATHER_NODE, (op_args){.part = {.part = part, .any = any}});
    if (any) op_use(&x->w, OPERAND_SECOND, from, TM_USE_READ);
    op_use(&x->w, OPERAND_TILE, whole, TM_USE_WRITE);
    op_end(&x->w);
}

/* ---- what does not learn -------------------------------------------------------------------------------------- */

void write_decode(op_writer *w, uint32_t part, uint32_t to) {
    const tm_job *job = w->job;
    const part_state *ps = &job->part[part];
    for (uint32_t i = 0; i < ps->n_pieces; i++) {
        const frozen_piece *f = &job->frozen[ps->first_piece + i];
        op_begin(w, OP_DECODE, (op_args){.decode = {.part = part, .piece = ps->first_piece + i}});
        for (uint32_t k = 0; k < f->n_ranges; k++)
            op_use(w, OPERAND_RAW, tm_program_interval(w->p, f->object[k], f->count[k]), TM_USE_READ);
        op_use(w, OPERAND_TILE, to, i ? TM_USE_UPDATE : TM_USE_WRITE);
        op_end(w);
    }
}

static uint32_t decode(pass *x, uint32_t part) {
    uint64_t bytes = frozen_held(x->job, part).n * tm_dtype_bytes(x->job->dtype);
    uint32_t to = tm_program_interval(x->p, pass_scratch(x, tm_model_part(x->m, part)->unit, bytes), 1);
    write_decode(&x->w, part, to);
    return to;
}

uint32_t pass_frozen_interval(pass *x, uint32_t part) {
    const part_state *ps = &x->job->part[part];
    const frozen_piece *f = &x->job->frozen[ps->first_piece];
    if (ps->n_pieces == 0) return NONE; /* other ranks have it */
    if (ps->n_held) return tm_program_interval(x->p, ps->held, ps->n_held);
    if (!ps->in_place) return decode(x, part);
    uint32_t first = tm_program_interval(x->p, f->object[0], f->count[0]);
    for (uint32_t k = 1; k < f->n_ranges; k++) (void)tm_program_interval(x->p, f->object[k], f->count[k]);
    return first;
}

static void gather_from_all(pass *x, uint32_t part, uint32_t whole) {
    uint32_t own = pass_hi_interval(x, part);
    op_begin(&x->w, OP_GATHER, (op_args){.part = {.part = part}});
    if (own != NONE) op_use(&x->w, OPERAND_HI, own, TM_USE_READ);
    op_use(&x->w, OPERAND_TILE, whole, TM_USE_WRITE);
    op_end(&x->w);
    if (x->o->update != UPDATE_WITHIN) x->own_interval[part] = NONE; /* update B comes back to it */
}

static void gather(pass *x, uint32_t part) {
    uint32_t unit = tm_model_part(x->m, part)->unit;
    uint8_t tier = x->job->ranks.shared_by ? TM_TIER_SHARED : TM_TIER_HOST;
    uint32_t whole = tm_program_temp(
        x->p, &(tm_object){.kind = TM_KIND_SCRATCH, .unit = unit, .bytes = part_bytes(x, part), .tier = tier});
    x->part_interval[part] = tm_program_interval(x->p, whole, 1);
    bool second = x->job->ranks.second.count > 0;
    if (second && x->in_backward)
        gather_in_node(x, part, x->part_interval[part]);
    else
        gather_from_all(x, part, x->part_interval[part]);
    if (second && !x->in_backward) stash(x, part, x->part_interval[part]);
    x->ahead[part] = x->job->part[part].elements;
    x->ahead_sum += x->ahead[part];
}

/* Up to date, then here. */
static void bring(pass *x, uint32_t part) {
    while (x->o->update == UPDATE_BEFORE && x->job->part[part].learns && !x->updated[part]) pass_update_next(x);
    if (part_is_gathered(x->job, &x->job->part[part]) && x->part_interval[part] == NONE) gather(x, part);
}

/* Elements that may be under way with `part` among them: FSDP's unit, or what stage3_prefetch_bucket_size says. */
static uint64_t prefetch_limit(const pass *x, uint32_t part) {
    const job_ranks *r = &x->job->ranks;
    if (!r->prefetch_unit) return r->prefetch_elements;
    const tm_unit *unit = tm_model_unit(x->m, tm_model_part(x->m, part)->unit);
    uint64_t n = 0;
    for (uint32_t p = 0; p < unit->n_parts; p++) n += x->job->part[unit->first_part + p].elements;
    return n;
}

static void look_ahead(pass *x) {
    while (x->o->overlap && x->gather_head < x->gather_end) {
        uint32_t part = x->gather[x->gather_head];
        bool here = !part_is_gathered(x->job, &x->job->part[part]);
        if (!here && x->part_interval[part] != NONE) return; /* still in use by the unit before */
        if (!here && x->ahead_sum > 0 && x->ahead_sum + x->job->part[part].elements > prefetch_limit(x, part)) return;
        x->gather_head++;
        bring(x, part);
    }
}

void pass_need(pass *x, const tm_stage *stage, bool backward) {
    for (uint32_t i = 0; i < stage->n_parts; i++) {
        uint32_t part = stage->part[i];
        if (!(backward ? stage->part_in_backward[i] : stage->part_in_forward[i])) continue;
        if (!part_is_gathered(x->job, &x->job->part[part]) && !x->job->part[part].learns)
            (void)pass_hi_interval(x, part); /* decoded now, before the operation that reads it is begun */
        if (part_is_gathered(x->job, &x->job->part[part]))
            while (x->part_interval[part] == NONE) {
                if (x->gather_head < x->gather_end)
                    bring(x, x->gather[x->gather_head++]);
                else
                    gather(x, part);
            }
        x->ahead_sum -= x->ahead[part];
        x->ahead[part] = 0;
    }
    if (x->job->ranks.ranks > 1) look_ahead(x);
}

void pass_share(pass *x, uint32_t part, uint32_t hi) {
    if (!x->job->part[part].learns || !part_is_shared(x->job, &x->job->part[part])) return;
    op_write(&x->w, OP_SHARE, (op_args){.part = {.part = part}}, OPERAND_HI, hi, TM_USE_UPDATE);
}
