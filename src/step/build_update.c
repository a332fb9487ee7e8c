/* The update's place is the variant: after backward (U), in the next forward pass (F), where a gradient is finished
 * (B). */
#include "step/build_internal.h"

#include <string.h>

uint32_t pass_hi_interval(pass *x, uint32_t part) {
    const part_state *ps = &x->job->part[part];
    uint32_t *interval = part_is_gathered(x->job, ps) ? &x->own_interval[part] : &x->part_interval[part];
    if (*interval != NONE) return *interval;
    if (!ps->learns)
        *interval = pass_frozen_interval(x, part);
    else if (ps->hi_tiles > 0)
        *interval = tm_program_interval(x->p, ps->hi, ps->hi_tiles);
    return *interval;
}

uint32_t pass_gradient_interval(pass *x, uint32_t part, uint32_t tile) {
    const part_state *ps = &x->job->part[part];
    if (!gradients_are_shared(x->job))
        return tm_program_interval(
            x->p, ps->grad != TM_NO_OBJECT ? ps->grad + tile * ps->grad_stride : x->grad_tile[part][tile], 1);
    if (ps->grad != TM_NO_OBJECT) return tm_program_interval(x->p, ps->grad, ps->tiles);
    return tm_program_interval(x->p, x->grad_tile[part][0], 1);
}

uint32_t pass_weight_tile(const pass *x, uint32_t part, uint32_t tile) {
    const part_state *ps = &x->job->part[part];
    return ps->hi + held_find(ps->elements, x->job->ranks.ranks, ps->weights, own_tile(x->job, part, tile).begin);
}

/* open.hi may be an interval of the part's weights as a whole. What is not open is visited for this tile alone. */
void pass_update_tile(pass *x, uint32_t part, uint32_t tile, tile_intervals open, uint32_t totals) {
    const part_state *ps = &x->job->part[part];
    uint32_t weights = pass_weight_tile(x, part, tile);
    if (open.hi == NONE) open.hi = tm_program_interval(x->p, weights, 1);
    op_begin(&x->w, OP_UPDATE,
             (op_args){.update = {.part = part, .tile = tile, .whole = gradients_are_shared(x->job)}});
    /* fp16: what computes is made anew from the master, so that nobody need have it */
    op_use_one(&x->w, OPERAND_HI, open.hi, weights, x->job->dtype == TM_F16 ? TM_USE_WRITE : TM_USE_UPDATE);
    const operand_name name[] = {OPERAND_LO, OPERAND_EXP_AVG, OPERAND_EXP_AVG_SQ};
    const uint32_t states[] = {ps->lo, ps->exp_avg, ps->exp_avg_sq};
    uint32_t intervals[] = {open.lo, NONE, open.squares};
    for (size_t i = 0; i < TM_COUNT(states); i++) {
        if (states[i] == TM_NO_OBJECT) continue;
        if (intervals[i] == NONE) intervals[i] = tm_program_interval(x->p, states[i] + tile * ps->stride, 1);
        op_use(&x->w, name[i], intervals[i], TM_USE_UPDATE);
    }
    op_use(&x->w, OPERAND_GRADIENT, open.gradient, TM_USE_READ);
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_READ);
    if (totals != NONE) op_use(&x->w, OPERAND_TOTALS, totals, TM_USE_READ);
    op_end(&x->w);
}

static void update_tile(pass *x, uint32_t part, uint32_t tile, uint32_t hi, uint32_t gradient) {
    pass_update_tile(x, part, tile, (tile_intervals){.hi = hi, .lo = NONE, .squares = NONE, .gradient = gradient},
                     NONE);
}

void pass_update_part(pass *x, uint32_t part) {
    const part_state *ps = &x->job->part[part];
    if (!ps->learns) return;
    if (job_updates_in_passes(x->job)) {
        pass_update_group(x, part);
        return;
    }
    bool one_gradient = gradients_are_shared(x->job);
    uint32_t hi = part_is_shared(x->job, ps) ? tm_program_interval(x->p, ps->hi, ps->hi_tiles) : NONE;
    uint32_t gradient = NONE;
    for (uint32_t tile = 0; tile < ps->tiles; tile++) {
        if (!one_gradient || tile == 0) gradient = pass_gradient_interval(x, part, tile);
        update_tile(x, part, tile, hi, gradient);
    }
    pass_share(x, part, hi);
}

/* The next tile in line: of update F in the order of forward, of update B as it came. */
void pass_update_next(pass *x) {
    waiting *w = &x->line[x->line_head++];
    const part_state *ps = &x->job->part[w->part];
    uint32_t hi = w->hi;
    if (w->gradient == NONE) {
        hi = pass_hi_interval(x, w->part);
        bool first = w->tile == 0 || !gradients_are_shared(x->job);
        if (w->tile != NONE)
            w->gradient = first ? pass_gradient_interval(x, w->part, w->tile) : x->line[x->line_head - 2].gradient;
    }
    if (w->tile != NONE) update_tile(x, w->part, w->tile, hi, w->gradient);
    if (w->tile != NONE && w->tile + 1 < ps->tiles) return;
    x->updated[w->part] = 1;
    pass_share(x, w->part, hi);
}

/* Update F: what a stage is about to use for the first time in this pass is brought up to date first. */
void pass_update_before(pass *x, const tm_stage *stage) {
    for (uint32_t i = 0; x->o->update == UPDATE_BEFORE && i < stage->n_parts; i++)
        while (x->job->part[stage->part[i]].learns && !x->updated[stage->part[i]]) pass_update_next(x);
}

/* After operation `done` of `all`: a share of the `want` tiles that the time of these operations is to hide. */
void pass_update_some(pass *x, uint32_t from, uint32_t want, uint64_t done, uint64_t all) {
    uint32_t until = from + (uint32_t)(want * done / all);
    while (x->o->spread && x->line_head < until && x->line_head < x->line_end) pass_update_next(x);
}

uint32_t pass_stage_tiles(const pass *x, uint32_t unit, uint32_t s) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    uint32_t n = 0;
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (!x->updated[stage->part[i]]) n += x->job->part[stage->part[i]].tiles;
    return n;
}

uint32_t pass_unit_tiles(const pass *x, uint32_t unit) {
    uint32_t n = 0;
    for (uint32_t s = 0; unit < x->units && s < tm_model_unit(x->m, unit)->n_stages; s++)
        n += pass_stage_tiles(x, unit, s);
    return n;
}

static void line_up(pass *x, uint32_t part) {
    uint32_t tiles = x->job->part[part].tiles;
    x->updated[part] = 1; /* for now: in line */
    if (!x->job->part[part].learns) return;
    if (tiles == 0) x->line[x->line_end++] = (waiting){part, NONE, NONE, NONE};
    for (uint32_t t = 0; t < tiles; t++) x->line[x->line_end++] = (waiting){part, t, NONE, NONE};
}

/* Update F: all tiles, in the order in which forward uses their parts. */
tm_status pass_line_init(pass *x) {
    uint32_t tiles = 0;
    for (uint32_t p = 0; p < x->parts; p++) tiles += x->job->part[p].tiles + 1;
    x->line = tm_malloc(sizeof *x->line * (tiles + 1));
    if (!x->line) return tm_nomem(sizeof *x->line * tiles);
    if (x->o->update != UPDATE_BEFORE) return TM_OK;
    for (uint32_t u = 0; u < x->units; u++)
        for (uint32_t s = 0; s < tm_model_unit(x->m, u)->n_stages; s++) {
            const tm_stage *stage = &tm_model_unit(x->m, u)->stage[s];
            for (uint32_t i = 0; i < stage->n_parts; i++)
                if (!x->updated[stage->part[i]]) line_up(x, stage->part[i]);
        }
    memset(x->updated, 0, x->parts);
    return TM_OK;
}

void pass_pending(pass *x) {
    op_write(&x->w, OP_PENDING, (op_args){{0}}, OPERAND_STEP, x->step, TM_USE_WRITE);
}

tm_status build_drain(tm_program **out, const tm_job *job) {
    pass_opts o = {0};
    pass x = {.job = job, .m = job->model, .o = &o, .parts = tm_model_parts(job->model)};
    TM_TRY(tm_program_create(&x.p, job->layout, "pending update"));
    tm_status rc = op_writer_open(&x.w, job, x.p, &o.shape);
    if (rc != TM_OK) {
        tm_program_free(x.p);
        return rc;
    }
    x.step = tm_program_interval(x.p, pass_scratch(&x, 0, sizeof(step_frame)), 1);
    pass_pending(&x);
    for (uint32_t part = 0; part < x.parts; part++) pass_update_part(&x, part);
    op_writer_close(&x.w);
    *out = x.p;
    return TM_OK;
}
