/* Gradients that are complete: summed over ranks, rounded once, normed; then parked, or used at once (update B).
 *
 * With ranks a part's sum is on its way while backward goes on, and rounded a few parts later:
 *
 *   backward p   reduce p | backward p + 1   reduce p + 1   finish p | backward p + 2  ...
 */
#include "step/build_internal.h"

static uint32_t gradient_temp(pass *x, uint32_t unit, uint64_t elements) {
    uint64_t bytes = elements * (x->job->dtype == TM_F32 ? 4 : 2);
    return tm_program_temp(x->p, &(tm_object){.kind = TM_KIND_GRAD, .unit = unit, .bytes = bytes, .pageable = true});
}

/* The object that tile `tile` of the sums is rounded into; `whole`: one of all slices. */
static uint32_t rounded_interval(pass *x, uint32_t part, uint32_t tile, uint32_t unit, bool whole) {
    const part_state *ps = &x->job->part[part];
    if (whole && ps->tiles == 0) /* nothing of it is held here: all the same every rank takes part in the exchange */
        return tm_program_interval(x->p, gradient_temp(x, unit, 1), 1);
    if (x->o->park)
        return whole ? tm_program_interval(x->p, ps->grad, ps->tiles)
                     : tm_program_interval(x->p, ps->grad + tile * ps->grad_stride, 1);
    uint32_t g = gradient_temp(x, unit, whole ? own_run(x->job, part).n : sum_tile(x->job, part, tile).n);
    if (x->grad_tile[part]) x->grad_tile[part][tile] = g;
    return tm_program_interval(x->p, g, 1);
}

static void round_tile(pass *x, uint32_t part, uint32_t tile, uint32_t sum, uint32_t g, tm_use_access access,
                       bool whole) {
    bool within = x->o->update == UPDATE_WITHIN;
    op_begin(&x->w, OP_FINISH, (op_args){.finish = {part, tile, within, whole}});
    op_use(&x->w, OPERAND_SUM, sum, TM_USE_READ);
    op_use(&x->w, OPERAND_GRADIENT, g, access);
    op_use(&x->w, OPERAND_PARTIAL, x->partial[part], tile ? TM_USE_UPDATE : TM_USE_WRITE);
    op_end(&x->w);
}

/* Update B: the tile is used at once, so that its gradient needs no place of its own; or it waits in line. */
static void update_within(pass *x, uint32_t part, uint32_t tile, uint32_t g, uint32_t hi) {
    if (x->o->update != UPDATE_WITHIN) return;
    x->line[x->line_end++] = (waiting){part, tile, g, hi};
    if (!x->o->spread) pass_update_next(x);
}

static void round_own(pass *x, uint32_t part, uint32_t unit, uint32_t sum, uint32_t hi) {
    uint32_t tiles = x->job->part[part].sum_tiles;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        uint32_t g = rounded_interval(x, part, tile, unit, false);
        round_tile(x, part, tile, sum, g, TM_USE_WRITE, false);
        update_within(x, part, tile, g, hi);
    }
    if (tiles == 0) update_within(x, part, NONE, NONE, hi); /* the others' new weights come here as well */
}

/* Several ranks update the same (ddp: everything; hsdp: a node's slices, on each node): each rounds what it summed,
 * then all of them have all of it. */
static void round_and_share(pass *x, uint32_t part, uint32_t unit, uint32_t sum, uint32_t hi) {
    const part_state *ps = &x->job->part[part];
    uint32_t g = rounded_interval(x, part, 0, unit, true);
    for (uint32_t tile = 0; tile < ps->sum_tiles; tile++)
        round_tile(x, part, tile, sum, g, tile ? TM_USE_UPDATE : TM_USE_WRITE, true);
    op_write(&x->w, OP_SHARE_GRAD, (op_args){.part = {.part = part}}, OPERAND_GRADIENT, g,
             ps->sum_tiles ? TM_USE_UPDATE : TM_USE_WRITE);
    for (uint32_t tile = 0; tile < ps->tiles; tile++) update_within(x, part, tile, g, hi);
    if (ps->tiles == 0) update_within(x, part, NONE, NONE, hi);
}

static void finish(pass *x, const summing *s) {
    const part_state *ps = &x->job->part[s->part];
    uint64_t blocks = (uint64_t)ps->sum_tiles * (TM_TILE_ELEMENTS / TM_NORM_BLOCK);
    if (blocks) x->partial[s->part] = tm_program_interval(x->p, pass_scratch(x, s->unit, blocks * sizeof(double)), 1);
    if (gradients_are_shared(x->job))
        round_and_share(x, s->part, s->unit, s->sum, s->hi);
    else
        round_own(x, s->part, s->unit, s->sum, s->hi);
}

static void finish_oldest(pass *x) {
    summing s = x->summing[0];
    for (uint32_t i = 1; i < x->n_summing; i++) x->summing[i - 1] = x->summing[i];
    x->n_summing--;
    x->summing_elements -= x->job->part[s.part].elements;
    finish(x, &s);
}

void pass_finish_all(pass *x) {
    while (x->n_summing > 0) finish_oldest(x);
}

/* Update B: the weights as backward has them open; NONE: each tile is visited on its own. */
static uint32_t open_weights(pass *x, uint32_t part) {
    const part_state *ps = &x->job->part[part];
    if (x->o->update != UPDATE_WITHIN) return NONE;
    if (part_is_shared(x->job, ps)) return pass_hi_interval(x, part);
    return part_is_gathered(x->job, ps) ? x->own_interval[part] : x->part_interval[part];
}

static void finish_part(pass *x, uint32_t part, uint32_t unit) {
    uint32_t hi = open_weights(x, part);
    if (x->o->take_gradients) {
        op_write(&x->w, OP_TAKE_GRAD, (op_args){.part = {.part = part}}, OPERAND_SUM, x->sum_interval[part],
                 TM_USE_READ);
    }
    x->summing[x->n_summing++] = (summing){part, unit, x->sum_interval[part], hi};
    x->summing_elements += x->job->part[part].elements;
    if (x->job->ranks.ranks > 1) {
        op_write(&x->w, OP_REDUCE, (op_args){.part = {.part = part}}, OPERAND_SUM, x->sum_interval[part],
                 TM_USE_UPDATE);
        if (x->o->overlap) {
            while (x->n_summing == MAX_SUMMING || (x->n_summing > 1 && x->summing_elements > x->most_summing))
                finish_oldest(x);
            return;
        }
    }
    finish_oldest(x);
}

/* Backward of the stage adds to the part's gradient; or it only reads the part, of which other tensors learn, and which
 * therefore is not updated before. */
bool pass_contributes(const pass *x, const tm_stage *stage, uint32_t i) {
    bool reads = stage->has_backward && stage->part_in_backward[i] && x->job->part[stage->part[i]].learns;
    return stage->part_gradient[i] || reads;
}

/* One more contributor of each of the stage's parts is through with all micro-batches. */
void pass_contributed(pass *x, uint32_t unit, uint32_t s) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (pass_contributes(x, stage, i) && --x->contributors[stage->part[i]] == 0)
            finish_part(x, stage->part[i], unit);
}

/* What every rank has to say, side by side; then all add it up in one order. */
uint32_t pass_exchange(pass *x, bool norm) {
    uint32_t all = tm_program_interval(x->p, pass_scratch(x, 0, job_report_bytes(x->job, norm)), 1);
    op_begin(&x->w, OP_REPORT, (op_args){.report = {.norm = norm}});
    for (uint32_t p = 0; norm && p < x->parts; p++)
        if (x->partial[p] != NONE) op_use(&x->w, OPERAND_PARTIAL, x->partial[p], TM_USE_READ);
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_READ);
    op_use(&x->w, OPERAND_REPORTS, all, TM_USE_WRITE);
    op_end(&x->w);
    op_write(&x->w, OP_EXCHANGE, (op_args){.report = {.norm = norm}}, OPERAND_REPORTS, all, TM_USE_UPDATE);
    return all;
}

void pass_norm(pass *x) {
    uint32_t all = x->job->ranks.ranks > 1 ? pass_exchange(x, true) : NONE;
    op_begin(&x->w, OP_NORM, (op_args){.norm = {.within = x->o->update == UPDATE_WITHIN}});
    if (all != NONE) op_use(&x->w, OPERAND_REPORTS, all, TM_USE_READ);
    for (uint32_t p = 0; all == NONE && p < x->parts; p++)
        if (x->job->part[p].learns) op_use(&x->w, OPERAND_PARTIAL, x->partial[p], TM_USE_READ);
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_UPDATE);
    op_end(&x->w);
}

void pass_loss(pass *x) {
    if (x->job->ranks.ranks == 1) return;
    uint32_t all = pass_exchange(x, false);
    op_begin(&x->w, OP_LOSS, (op_args){{0}});
    op_use(&x->w, OPERAND_REPORTS, all, TM_USE_READ);
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_UPDATE);
    op_end(&x->w);
}
