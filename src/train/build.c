/* The front end: a step as a program (DESIGN section 4), with no word of I/O in it.
 *
 *   for unit in forward order:  for micro-batch: forward stages
 *   objective: per-token log-likelihoods -> per-token coefficients
 *   for unit in backward order: for micro-batch: (recompute,) backward stages; finish the gradients that are complete
 *   norm; for tile in forward order: AdamW
 *
 * AdamW's place is the variant: so (U), in the next forward pass (F), or where a gradient is finished (B).
 *
 * A visit is opened where a pass over a unit begins to need an object, so that what lies between two passes may leave
 * memory; which does is the planner's choice. */
#include "train/train_internal.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* A tile whose update may wait or be drawn forward. */
typedef struct waiting {
    uint32_t part, tile;
    uint32_t gradient, hi; /* visits: update B; NONE: opened when its turn comes */
} waiting;

typedef struct pass {
    const tm_job *job;
    const tm_model *m;
    const pass_opts *o;
    tm_program *p;
    uint32_t K, T, units, parts, kept_blocks;
    uint32_t *batch, *coef; /* visits, per micro-batch */
    uint32_t step;          /* visit: orders objective, norm and update */
    bool step_written;
    uint32_t *value_object, *value_visit, *grad_object, *grad_visit; /* per (unit, micro-batch, slot) */
    uint8_t *value_written, *grad_written;
    uint32_t *part_visit;                       /* of the unit under way */
    uint32_t *sum_object, *sum_visit, *partial; /* per part */
    uint8_t *sum_written, *contributors, *updated;
    waiting *line; /* all tiles at most once: [line_head, line_end) wait */
    uint32_t line_head, line_end;
    uint32_t **grad_tile; /* per part, per tile: rounded gradients */
} pass;

uint64_t batch_bytes(uint32_t tokens, uint32_t rows) {
    return (uint64_t)tokens * 8 + tm_round_up(tokens, 64) + (uint64_t)rows * 4;
}

batch_view batch_at(void *frame, uint32_t tokens) {
    char *at = frame;
    return (batch_view){.ids = (int32_t *)at,
                        .labels = (int32_t *)(at + (size_t)tokens * 4),
                        .mask = (uint8_t *)(at + (size_t)tokens * 8),
                        .position = (uint32_t *)(at + (size_t)tokens * 8 + tm_round_up(tokens, 64))};
}

static uint32_t scratch(pass *x, uint32_t unit, uint64_t bytes) {
    return tm_program_temp(x->p, &(tm_object){.kind = TM_KIND_SCRATCH, .unit = unit, .bytes = bytes ? bytes : 1});
}

/* ---- slots and gradients ------------------------------------------------------------------------------------- */

/* A unit's input is the output of the unit before. */
static size_t slot_key(const pass *x, uint32_t unit, uint32_t mb, uint32_t slot) {
    if (slot == 0) {
        unit--;
        slot = 1;
    }
    return ((size_t)unit * x->K + mb) * TM_MAX_SLOTS + slot;
}

static uint32_t slot_visit(pass *x, uint32_t unit, uint32_t mb, const tm_slot_use *use) {
    const tm_slot *slot = &tm_model_unit(x->m, unit)->slot[use->slot];
    size_t key = slot_key(x, unit, mb, use->slot);
    uint32_t *object = use->grad ? &x->grad_object[key] : &x->value_object[key];
    uint32_t *visit = use->grad ? &x->grad_visit[key] : &x->value_visit[key];
    uint64_t bytes = (uint64_t)(use->grad ? slot->grad_bytes : slot->bytes) * x->T;
    if (*object == NONE)
        *object = tm_program_temp(x->p, &(tm_object){.kind = TM_KIND_ACTIVATION,
                                                     .unit = unit,
                                                     .bytes = bytes ? bytes : 1,
                                                     .pageable = !x->o->no_spill});
    if (*visit == NONE) *visit = tm_program_visit(x->p, *object, 1);
    return *visit;
}

static void use_slots(pass *x, uint32_t unit, uint32_t mb, const tm_slot_use *uses, uint32_t n, uint32_t *fresh) {
    for (uint32_t i = 0; i < n; i++) {
        size_t key = slot_key(x, unit, mb, uses[i].slot);
        uint8_t *written = uses[i].grad ? &x->grad_written[key] : &x->value_written[key];
        uint32_t visit = slot_visit(x, unit, mb, &uses[i]);
        tm_use_access access = (tm_use_access)uses[i].access;
        if (access == TM_USE_UPDATE && !*written) {
            access = TM_USE_WRITE;
            *fresh |= 1u << (uses[i].slot + (uses[i].grad ? 16 : 0));
        }
        if (access & TM_USE_WRITE) *written = 1;
        tm_program_use(x->p, visit, access);
    }
}

static uint32_t fresh_slots(const pass *x, uint32_t unit, uint32_t mb, const tm_slot_use *uses, uint32_t n) {
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t key = slot_key(x, unit, mb, uses[i].slot);
        bool written = uses[i].grad ? x->grad_written[key] : x->value_written[key];
        if (uses[i].access == TM_UPDATE && !written) fresh |= 1u << (uses[i].slot + (uses[i].grad ? 16 : 0));
    }
    return fresh;
}

static void use_part(pass *x, uint32_t part) {
    const part_state *ps = &x->job->part[part];
    TM_ASSERT(x->o->update != UPDATE_WITHIN || !x->updated[part]); /* backward needs the weights of forward */
    if (x->part_visit[part] == NONE) x->part_visit[part] = tm_program_visit(x->p, ps->hi, ps->tiles);
    tm_program_use(x->p, x->part_visit[part], TM_USE_READ);
}

static void use_workspace(pass *x, uint32_t unit, uint32_t stage, bool backward) {
    uint64_t bytes = tm_stage_workspace(x->m, unit, stage, backward, x->o->shape.rows, x->o->shape.seq);
    tm_program_use(x->p, tm_program_visit(x->p, scratch(x, unit, bytes), 1), TM_USE_WRITE);
}

/* ---- update -------------------------------------------------------------------------------------------------- */

static uint32_t gradient_object(const pass *x, uint32_t part, uint32_t tile) {
    const part_state *ps = &x->job->part[part];
    return ps->grad != TM_NO_OBJECT ? ps->grad + tile * ps->stride : x->grad_tile[part][tile];
}

/* `hi`: a visit of the part's weights as a whole (updates F and B), NONE: the tile is visited on its own. */
static void update_tile(pass *x, uint32_t part, uint32_t tile, uint32_t hi, uint32_t gradient) {
    const part_state *ps = &x->job->part[part];
    if (hi == NONE) hi = tm_program_visit(x->p, ps->hi + tile, 1);
    tm_program_op(x->p, &(tm_op){.code = OP_ADAMW, .arg = {part, tile}});
    tm_program_use_range(x->p, hi, ps->hi + tile, 1, TM_USE_UPDATE);
    if (ps->lo != TM_NO_OBJECT)
        tm_program_use(x->p, tm_program_visit(x->p, ps->lo + tile * ps->stride, 1), TM_USE_UPDATE);
    tm_program_use(x->p, tm_program_visit(x->p, ps->exp_avg + tile * ps->stride, 1), TM_USE_UPDATE);
    tm_program_use(x->p, tm_program_visit(x->p, ps->exp_avg_sq + tile * ps->stride, 1), TM_USE_UPDATE);
    tm_program_use(x->p, gradient, TM_USE_READ);
    tm_program_use(x->p, x->step, TM_USE_READ);
}

static void update_part(pass *x, uint32_t part) {
    for (uint32_t tile = 0; tile < x->job->part[part].tiles; tile++)
        update_tile(x, part, tile, NONE, tm_program_visit(x->p, gradient_object(x, part, tile), 1));
}

/* The next tile in line: of update F in the order of forward, of update B as it came. */
static void update_next(pass *x) {
    waiting *w = &x->line[x->line_head++];
    uint32_t gradient = w->gradient;
    if (gradient == NONE) {
        gradient = tm_program_visit(x->p, gradient_object(x, w->part, w->tile), 1);
        if (x->part_visit[w->part] == NONE)
            x->part_visit[w->part] = tm_program_visit(x->p, x->job->part[w->part].hi, x->job->part[w->part].tiles);
        w->hi = x->part_visit[w->part];
    }
    update_tile(x, w->part, w->tile, w->hi, gradient);
    if (w->tile + 1 == x->job->part[w->part].tiles) x->updated[w->part] = 1;
}

/* Update F: what a stage is about to use for the first time in this pass is brought up to date first. */
static void update_before(pass *x, const tm_stage *stage) {
    for (uint32_t i = 0; x->o->update == UPDATE_BEFORE && i < stage->n_parts; i++)
        while (!x->updated[stage->part[i]]) update_next(x);
}

/* After operation `done` of `all`: a share of the `want` tiles that the time of these operations is to hide. */
static void update_some(pass *x, uint32_t from, uint32_t want, uint64_t done, uint64_t all) {
    uint32_t until = from + (uint32_t)(want * done / all);
    while (x->o->spread && x->line_head < until && x->line_head < x->line_end) update_next(x);
}

static uint32_t stage_tiles(const pass *x, uint32_t unit, uint32_t s) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    uint32_t n = 0;
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (!x->updated[stage->part[i]]) n += x->job->part[stage->part[i]].tiles;
    return n;
}

static uint32_t unit_tiles(const pass *x, uint32_t unit) {
    uint32_t n = 0;
    for (uint32_t s = 0; unit < x->units && s < tm_model_unit(x->m, unit)->n_stages; s++) n += stage_tiles(x, unit, s);
    return n;
}

/* ---- stages -------------------------------------------------------------------------------------------------- */

static void forward_stage(pass *x, uint32_t unit, uint32_t s, uint32_t mb) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    uint32_t fresh = fresh_slots(x, unit, mb, stage->forward, stage->n_forward), again = 0;
    update_before(x, stage);
    tm_program_op(x->p, &(tm_op){.code = OP_FORWARD, .arg = {unit, s, mb, fresh}});
    tm_program_use(x->p, x->batch[mb], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_forward[i]) use_part(x, stage->part[i]);
    use_slots(x, unit, mb, stage->forward, stage->n_forward, &again);
    if (stage->uses_kv_cache && x->job->kv)
        tm_program_use(x->p, tm_program_visit(x->p, x->job->kv[unit], 1), TM_USE_UPDATE);
    use_workspace(x, unit, s, false);
}

static void use_sum(pass *x, uint32_t part, uint32_t unit) {
    if (x->sum_object[part] == NONE) {
        bool tied = tm_model_part(x->m, part)->unit != unit; /* the head's contribution waits for the embedding's */
        x->sum_object[part] = tm_program_temp(
            x->p, &(tm_object){
                      .kind = TM_KIND_GRAD, .unit = unit, .bytes = x->job->part[part].elements * 4, .pageable = tied});
    }
    if (x->sum_visit[part] == NONE) x->sum_visit[part] = tm_program_visit(x->p, x->sum_object[part], 1);
    tm_program_use(x->p, x->sum_visit[part], x->sum_written[part] ? TM_USE_UPDATE : TM_USE_WRITE);
    x->sum_written[part] = 1;
}

static void backward_stage(pass *x, uint32_t unit, uint32_t s, uint32_t mb) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    const tm_stage *stage = &u->stage[s];
    uint32_t fresh = fresh_slots(x, unit, mb, stage->backward, stage->n_backward), again = 0, flags = 0;
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_gradient[i] && !x->sum_written[stage->part[i]]) flags |= 1u << i;
    tm_program_op(x->p, &(tm_op){.code = OP_BACKWARD, .flags = (uint16_t)flags, .arg = {unit, s, mb, fresh}});
    tm_program_use(x->p, x->batch[mb], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_backward[i]) use_part(x, stage->part[i]);
    use_slots(x, unit, mb, stage->backward, stage->n_backward, &again);
    if (u->kind == TM_UNIT_HEAD) tm_program_use(x->p, x->coef[mb], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_gradient[i]) use_sum(x, stage->part[i], unit);
    use_workspace(x, unit, s, true);
}

/* ---- gradients that are complete ----------------------------------------------------------------------------- */

static uint32_t rounded_tile(pass *x, uint32_t part, uint32_t tile, uint32_t unit) {
    const part_state *ps = &x->job->part[part];
    uint64_t width = x->job->dtype == TM_F32 ? 4 : 2;
    if (x->o->park) return ps->grad + tile * ps->stride;
    uint32_t g = tm_program_temp(
        x->p,
        &(tm_object){.kind = TM_KIND_GRAD, .unit = unit, .bytes = tile_elements(ps, tile) * width, .pageable = true});
    if (x->grad_tile[part]) x->grad_tile[part][tile] = g;
    return g;
}

/* Update B: the tile is rounded and used at once, so that its gradient needs no place of its own; or it waits in line.
 */
static void finish_part(pass *x, uint32_t part, uint32_t unit) {
    const part_state *ps = &x->job->part[part];
    bool within = x->o->update == UPDATE_WITHIN;
    if (x->o->take_gradients) {
        tm_program_op(x->p, &(tm_op){.code = OP_TAKE_GRAD, .arg = {part}});
        tm_program_use(x->p, x->sum_visit[part], TM_USE_READ);
    }
    uint64_t blocks = (uint64_t)ps->tiles * (TM_TILE_ELEMENTS / TM_NORM_BLOCK);
    x->partial[part] = tm_program_visit(x->p, scratch(x, unit, blocks * sizeof(double)), 1);
    for (uint32_t tile = 0; tile < ps->tiles; tile++) {
        uint32_t g = tm_program_visit(x->p, rounded_tile(x, part, tile, unit), 1);
        tm_program_op(x->p, &(tm_op){.code = OP_FINISH, .arg = {part, tile, within}});
        tm_program_use(x->p, x->sum_visit[part], TM_USE_READ);
        tm_program_use(x->p, g, TM_USE_WRITE);
        tm_program_use(x->p, x->partial[part], tile ? TM_USE_UPDATE : TM_USE_WRITE);
        if (!within) continue;
        x->line[x->line_end++] = (waiting){part, tile, g, x->part_visit[part]};
        if (!x->o->spread) update_next(x);
    }
}

/* One more contributor of each of the stage's parts is through with all micro-batches. */
static void contributed(pass *x, uint32_t unit, uint32_t s) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_gradient[i] && --x->contributors[stage->part[i]] == 0) finish_part(x, stage->part[i], unit);
}

/* ---- units --------------------------------------------------------------------------------------------------- */

/* What was visited belongs to a pass that is over: the next use opens a new visit. The output stays open for the unit
 * that comes next. */
static void close_unit(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++)
        for (uint32_t i = 0; i < u->stage[s].n_parts; i++)
            x->part_visit[u->stage[s].part[i]] = x->sum_visit[u->stage[s].part[i]] = NONE;
    for (uint32_t mb = 0; mb < x->K; mb++)
        for (uint32_t s = 0; s < TM_MAX_SLOTS; s++)
            if (s != 1 && (unit > 0 || s > 0)) x->value_visit[slot_key(x, unit, mb, s)] = NONE;
}

static void emit_logits(pass *x, uint32_t unit, uint32_t s, uint32_t mb) {
    const tm_slot_use normed = {.slot = 2, .access = TM_READ};
    uint32_t part = tm_model_unit(x->m, unit)->stage[s].part[0], fresh = 0;
    uint64_t columns = x->job->part[part].elements / tm_model_get_config(x->m)->hidden_size;
    bool last = x->o->logits == LOGITS_LAST;
    tm_program_op(x->p, &(tm_op){.code = OP_LOGITS, .arg = {unit, s, mb, last}});
    tm_program_use(x->p, x->batch[mb], TM_USE_READ);
    use_part(x, part);
    use_slots(x, unit, mb, &normed, 1, &fresh);
    tm_program_use(x->p, tm_program_visit(x->p, scratch(x, unit, (last ? x->o->shape.rows : x->T) * columns * 4), 1),
                   TM_USE_WRITE);
    use_workspace(x, unit, s, false);
}

/* Stage 0 is the norm; then a stage for each vocabulary part, whose weights are needed for that long only. */
static void forward_head(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++) {
        for (uint32_t mb = 0; mb < x->K; mb++) {
            if (s == 0 || x->o->loss) forward_stage(x, unit, s, mb);
            if (s > 0 && x->o->logits) emit_logits(x, unit, s, mb);
        }
        if (s > 0) x->part_visit[u->stage[s].part[0]] = NONE;
    }
}

/* Tiles of the stage that comes after stage `s` of `unit`. */
static uint32_t tiles_after(const pass *x, uint32_t unit, uint32_t s) {
    if (s + 1 < tm_model_unit(x->m, unit)->n_stages) return stage_tiles(x, unit, s + 1);
    return unit + 1 < x->units ? stage_tiles(x, unit + 1, 0) : 0;
}

static void forward_by_stage(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++) {
        uint32_t from = 0, want = 0;
        for (uint32_t mb = 0; mb < x->K; mb++) {
            forward_stage(x, unit, s, mb);
            if (mb == 0) {
                from = x->line_head;
                want = tiles_after(x, unit, s);
            }
            update_some(x, from, want, mb + 1, x->K);
        }
    }
}

static void forward_by_batch(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    uint32_t from = 0, want = 0;
    for (uint32_t mb = 0; mb < x->K; mb++) {
        for (uint32_t s = 0; s < u->n_stages; s++) {
            forward_stage(x, unit, s, mb);
            if (mb > 0)
                update_some(x, from, want, (uint64_t)(mb - 1) * u->n_stages + s + 1,
                            (uint64_t)(x->K - 1) * u->n_stages);
        }
        if (mb == 0) {
            from = x->line_head;
            want = unit_tiles(x, unit + 1);
        }
    }
}

static void forward_unit(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    if (u->kind == TM_UNIT_HEAD)
        forward_head(x, unit);
    else if (x->o->stage_wise || u->kind != TM_UNIT_BLOCK)
        forward_by_stage(x, unit);
    else
        forward_by_batch(x, unit);
}

/* Stages whose results backward reads: the others need not run again. */
static uint32_t stages_to_recompute(const tm_unit *u) {
    uint32_t needed = 0, run = 0;
    for (uint32_t s = 0; s < u->n_stages; s++)
        for (uint32_t i = 0; i < u->stage[s].n_backward; i++)
            if (!u->stage[s].backward[i].grad) needed |= 1u << u->stage[s].backward[i].slot;
    for (uint32_t s = u->n_stages; s-- > 0;) {
        bool wanted = false;
        for (uint32_t i = 0; i < u->stage[s].n_forward; i++)
            if ((u->stage[s].forward[i].access & TM_WRITE) && (needed >> u->stage[s].forward[i].slot & 1))
                wanted = true;
        if (!wanted) continue;
        run |= 1u << s;
        for (uint32_t i = 0; i < u->stage[s].n_forward; i++)
            if (u->stage[s].forward[i].access & TM_READ) needed |= 1u << u->stage[s].forward[i].slot;
    }
    return run;
}

static void forget_slots(pass *x, uint32_t unit) {
    for (uint32_t mb = 0; mb < x->K; mb++)
        for (uint32_t s = 2; s < TM_MAX_SLOTS; s++) {
            size_t key = slot_key(x, unit, mb, s);
            x->value_object[key] = x->value_visit[key] = NONE;
            x->value_written[key] = 0;
        }
}

static void backward_unit(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    bool block = u->kind == TM_UNIT_BLOCK, recompute = block && x->units - 1 - unit > x->kept_blocks;
    uint32_t again = recompute ? stages_to_recompute(u) : 0, from = x->line_head, want = x->line_end - from;
    bool within = x->o->update == UPDATE_WITHIN;
    if (recompute) forget_slots(x, unit);
    if (x->o->stage_wise || !block) {
        for (uint32_t s = 0; s < u->n_stages; s++)
            for (uint32_t mb = 0; again >> s & 1 && mb < x->K; mb++) forward_stage(x, unit, s, mb);
        for (uint32_t s = u->n_stages; s-- > 0;) {
            from = x->line_head;
            want = x->line_end - from;
            for (uint32_t mb = 0; mb < x->K; mb++) {
                backward_stage(x, unit, s, mb);
                if (within) update_some(x, from, want, mb + 1, x->K);
            }
            contributed(x, unit, s);
        }
        return;
    }
    for (uint32_t mb = 0; mb < x->K; mb++) {
        for (uint32_t s = 0; s < u->n_stages; s++)
            if (again >> s & 1) forward_stage(x, unit, s, mb);
        for (uint32_t s = u->n_stages; s-- > 0;) {
            backward_stage(x, unit, s, mb);
            if (within)
                update_some(x, from, want, (uint64_t)mb * u->n_stages + u->n_stages - s, (uint64_t)x->K * u->n_stages);
            if (mb + 1 == x->K) contributed(x, unit, s); /* early: its frames serve the stages that are left */
        }
    }
}

/* ---- objective, norm, update --------------------------------------------------------------------------------- */

static void emit_objective(pass *x, uint32_t unit) {
    const tm_slot_use state = {.slot = TM_HEAD_SLOT_STATE, .access = TM_READ};
    uint32_t fresh = 0;
    for (uint32_t mb = 0; mb < x->K; mb++)
        x->coef[mb] = tm_program_visit(x->p, scratch(x, unit, (uint64_t)x->T * sizeof(float)), 1);
    tm_program_op(x->p, &(tm_op){.code = OP_OBJECTIVE, .arg = {x->K, x->o->update == UPDATE_WITHIN}});
    for (uint32_t mb = 0; mb < x->K; mb++) {
        tm_program_use(x->p, x->batch[mb], TM_USE_READ);
        use_slots(x, unit, mb, &state, 1, &fresh);
        tm_program_use(x->p, x->coef[mb], TM_USE_WRITE);
    }
    tm_program_use(x->p, x->step, x->o->update == UPDATE_BEFORE ? TM_USE_UPDATE : TM_USE_WRITE);
}

static void emit_norm(pass *x) {
    tm_program_op(x->p, &(tm_op){.code = OP_NORM});
    for (uint32_t p = 0; p < x->parts; p++) tm_program_use(x->p, x->partial[p], TM_USE_READ);
    tm_program_use(x->p, x->step, TM_USE_UPDATE);
}

static void emit_pending(pass *x) {
    tm_program_op(x->p, &(tm_op){.code = OP_PENDING});
    tm_program_use(x->p, x->step, TM_USE_WRITE);
}

static void emit_update(pass *x) {
    for (uint32_t part = 0; part < x->parts; part++) update_part(x, part);
}

/* ---- the pass ------------------------------------------------------------------------------------------------ */

static void pass_free(pass *x) {
    if (x->grad_tile)
        for (uint32_t p = 0; p < x->parts; p++) tm_free(x->grad_tile[p]);
    void *all[] = {x->batch,         x->coef,         x->value_object, x->value_visit, x->grad_object, x->grad_visit,
                   x->value_written, x->grad_written, x->part_visit,   x->sum_object,  x->sum_visit,   x->partial,
                   x->sum_written,   x->contributors, x->updated,      x->grad_tile,   x->line};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
}

static uint32_t *nones(size_t n) {
    uint32_t *a = tm_malloc(n * sizeof *a);
    for (size_t i = 0; a && i < n; i++) a[i] = NONE;
    return a;
}

/* Update F: all tiles, in the order in which forward uses their parts. */
static tm_status line_init(pass *x) {
    uint32_t tiles = 0;
    for (uint32_t p = 0; p < x->parts; p++) tiles += x->job->part[p].tiles;
    x->line = tm_malloc(sizeof *x->line * (tiles + 1));
    if (!x->line) return tm_nomem(sizeof *x->line * tiles);
    if (x->o->update != UPDATE_BEFORE) return TM_OK;
    for (uint32_t u = 0; u < x->units; u++)
        for (uint32_t s = 0; s < tm_model_unit(x->m, u)->n_stages; s++) {
            const tm_stage *stage = &tm_model_unit(x->m, u)->stage[s];
            for (uint32_t i = 0; i < stage->n_parts; i++) {
                uint32_t part = stage->part[i];
                if (x->updated[part]) continue;
                x->updated[part] = 1; /* for now: in line */
                for (uint32_t t = 0; t < x->job->part[part].tiles; t++)
                    x->line[x->line_end++] = (waiting){part, t, NONE, NONE};
            }
        }
    memset(x->updated, 0, x->parts);
    return TM_OK;
}

static tm_status pass_init(pass *x) {
    size_t slots = (size_t)x->units * x->K * TM_MAX_SLOTS;
    x->batch = nones(x->K);
    x->coef = nones(x->K);
    x->value_object = nones(slots);
    x->value_visit = nones(slots);
    x->grad_object = nones(slots);
    x->grad_visit = nones(slots);
    x->value_written = tm_calloc(slots, 1);
    x->grad_written = tm_calloc(slots, 1);
    x->part_visit = nones(x->parts);
    x->sum_object = nones(x->parts);
    x->sum_visit = nones(x->parts);
    x->partial = nones(x->parts);
    x->sum_written = tm_calloc(x->parts, 1);
    x->contributors = tm_calloc(x->parts, 1);
    x->updated = tm_calloc(x->parts, 1);
    x->grad_tile = tm_calloc(x->parts, sizeof *x->grad_tile);
    if (!x->batch || !x->coef || !x->value_object || !x->value_visit || !x->grad_object || !x->grad_visit ||
        !x->value_written || !x->grad_written || !x->part_visit || !x->sum_object || !x->sum_visit || !x->partial ||
        !x->sum_written || !x->contributors || !x->updated || !x->grad_tile)
        return tm_nomem(slots * 16);
    for (uint32_t p = 0; p < x->parts && x->o->update == UPDATE_AFTER; p++) {
        x->grad_tile[p] = nones(x->job->part[p].tiles);
        if (!x->grad_tile[p]) return tm_nomem(x->job->part[p].tiles * sizeof(uint32_t));
    }
    for (uint32_t u = 0; u < x->units; u++)
        for (uint32_t s = 0; s < tm_model_unit(x->m, u)->n_stages; s++) {
            const tm_stage *stage = &tm_model_unit(x->m, u)->stage[s];
            for (uint32_t i = 0; i < stage->n_parts; i++) x->contributors[stage->part[i]] += stage->part_gradient[i];
        }
    return line_init(x);
}

static void emit_pass(pass *x) {
    uint32_t head = x->units - 1;
    x->step = tm_program_visit(x->p, scratch(x, 0, 64), 1);
    for (uint32_t mb = 0; mb < x->K; mb++) {
        x->batch[mb] = tm_program_visit(x->p, scratch(x, 0, batch_bytes(x->T, x->o->shape.rows)), 1);
        tm_program_op(x->p, &(tm_op){.code = OP_BATCH, .arg = {mb, x->T}});
        tm_program_use(x->p, x->batch[mb], TM_USE_WRITE);
    }
    if (x->o->update == UPDATE_BEFORE) emit_pending(x);
    for (uint32_t u = 0; u <= head; u++) {
        forward_unit(x, u);
        if (u != head) close_unit(x, u);
    }
    if (x->o->loss) emit_objective(x, head);
    if (!x->o->backward) return;
    for (uint32_t p = 0; p < x->parts; p++) x->part_visit[p] = NONE;
    for (uint32_t u = head + 1; u-- > 0;) {
        backward_unit(x, u);
        close_unit(x, u);
    }
    while (x->line_head < x->line_end) update_next(x);
    emit_norm(x);
    if (x->o->update == UPDATE_AFTER) emit_update(x);
}

tm_status build_pass(tm_program **out, const tm_job *job, const char *name, const pass_opts *opts) {
    pass_opts o = *opts;
    if (o.backward) o.loss = true;
    pass x = {.job = job,
              .m = job->model,
              .o = &o,
              .K = o.shape.micro_batches,
              .T = shape_tokens(&o.shape),
              .units = tm_model_units(job->model),
              .parts = tm_model_parts(job->model),
              .kept_blocks = pass_kept_blocks(job, opts)};
    tm_status rc;
    TM_TRY(tm_program_create(&x.p, job->layout, name));
    TM_GO(pass_init(&x));
    emit_pass(&x);
    *out = x.p;
done:
    pass_free(&x);
    if (rc != TM_OK) tm_program_free(x.p);
    return rc;
}

const char *pass_update_name(const pass_opts *o) {
    static const char *const name[] = {"none", "U", "F", "B"};
    return name[o->update];
}

uint32_t pass_kept_blocks(const tm_job *job, const pass_opts *o) {
    uint32_t blocks = 0;
    for (uint32_t u = 0; u < tm_model_units(job->model); u++)
        blocks += tm_model_unit(job->model, u)->kind == TM_UNIT_BLOCK;
    return blocks * o->keep_quarters / PASS_KEEP_ALL;
}

const char *pass_activations_name(const tm_job *job, const pass_opts *o) {
    if (o->keep_quarters == PASS_KEEP_ALL) return o->no_spill ? "keep" : "spill";
    return pass_kept_blocks(job, o) ? "mixed" : "recompute";
}

tm_status build_drain(tm_program **out, const tm_job *job) {
    pass_opts o = {0};
    pass x = {.job = job, .m = job->model, .o = &o, .parts = tm_model_parts(job->model)};
    TM_TRY(tm_program_create(&x.p, job->layout, "pending update"));
    x.step = tm_program_visit(x.p, scratch(&x, 0, 64), 1);
    emit_pending(&x);
    emit_update(&x);
    *out = x.p;
    return TM_OK;
}

/* ---- import and walks ---------------------------------------------------------------------------------------- */

tm_status build_import(tm_program **out, const tm_job *job) {
    tm_program *p;
    TM_TRY(tm_program_create(&p, job->layout, "import"));
    for (uint32_t part = 0; part < tm_model_parts(job->model); part++) {
        const part_state *ps = &job->part[part];
        for (uint32_t tile = 0; tile < ps->tiles; tile++) {
            uint32_t unit = tm_model_part(job->model, part)->unit;
            uint32_t more[] = {ps->lo, ps->exp_avg, ps->exp_avg_sq};
            tm_program_op(p, &(tm_op){.code = OP_IMPORT, .arg = {part, tile}});
            tm_program_use(p, tm_program_visit(p, ps->hi + tile, 1), TM_USE_WRITE);
            for (size_t i = 0; i < TM_COUNT(more); i++)
                if (more[i] != TM_NO_OBJECT)
                    tm_program_use(p, tm_program_visit(p, more[i] + tile * ps->stride, 1), TM_USE_WRITE);
            if (job->dtype != TM_F32 && ps->exp_avg == TM_NO_OBJECT) { /* else a moment's frame serves */
                uint32_t master = tm_program_temp(
                    p, &(tm_object){.kind = TM_KIND_SCRATCH, .unit = unit, .bytes = tile_elements(ps, tile) * 4});
                tm_program_use(p, tm_program_visit(p, master, 1), TM_USE_WRITE);
            }
        }
    }
    *out = p;
    return TM_OK;
}

static const tm_model *sort_model;

static int by_name(const void *a, const void *b) {
    return strcmp(tm_model_tensor(sort_model, *(const uint32_t *)a)->name,
                  tm_model_tensor(sort_model, *(const uint32_t *)b)->name);
}

static void walk_tile(tm_program *p, const tm_job *job, uint16_t code, uint32_t t, uint32_t seg, uint32_t tile,
                      int what, uint32_t chain, bool first) {
    const tm_segment *s = &tm_model_tensor_segments(job->model, t)[seg];
    const part_state *ps = &job->part[s->part];
    uint32_t values = tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = tile_elements(ps, tile) * 4});
    tm_program_op(p, &(tm_op){.code = code, .arg = {t, seg, tile, (uint32_t)what}});
    if (what == WHAT_EXP_AVG)
        tm_program_use(p, tm_program_visit(p, ps->exp_avg + tile * ps->stride, 1), TM_USE_READ);
    else if (what == WHAT_EXP_AVG_SQ)
        tm_program_use(p, tm_program_visit(p, ps->exp_avg_sq + tile * ps->stride, 1), TM_USE_READ);
    else
        tm_program_use(p, tm_program_visit(p, ps->hi + tile, 1), TM_USE_READ);
    if (what == WHAT_MASTER && ps->lo != TM_NO_OBJECT)
        tm_program_use(p, tm_program_visit(p, ps->lo + tile * ps->stride, 1), TM_USE_READ);
    tm_program_use(p, tm_program_visit(p, values, 1), TM_USE_WRITE);
    tm_program_use(p, chain, first ? TM_USE_WRITE : TM_USE_UPDATE);
}

tm_status build_walk(tm_program **out, const tm_job *job, bool hash, int what) {
    tm_program *p;
    uint32_t n = tm_model_tensors(job->model);
    uint32_t *order = tm_malloc(sizeof *order * (n + 1));
    if (!order) return tm_nomem(sizeof *order * n);
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    sort_model = job->model;
    qsort(order, n, sizeof *order, by_name);
    tm_status rc = tm_program_create(&p, job->layout, hash ? "state hash" : "export");
    if (rc != TM_OK) {
        tm_free(order);
        return rc;
    }
    uint32_t chain = tm_program_visit(p, tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = 64}), 1);
    bool first = true;
    int from = hash ? WHAT_MASTER : what, to = hash ? WHAT_EXP_AVG_SQ : what;
    for (uint32_t i = 0; i < n; i++)
        for (int w = from; w <= to; w++)
            for (uint32_t seg = 0; seg < tm_model_tensor(job->model, order[i])->n_segments; seg++) {
                const tm_segment *s = &tm_model_tensor_segments(job->model, order[i])[seg];
                uint32_t last = (uint32_t)((s->part_offset + s->elements - 1) / TM_TILE_ELEMENTS);
                for (uint32_t tile = (uint32_t)(s->part_offset / TM_TILE_ELEMENTS); tile <= last; tile++, first = false)
                    walk_tile(p, job, hash ? OP_HASH : OP_EXPORT, order[i], seg, tile, w, chain, first);
            }
    tm_free(order);
    *out = p;
    return TM_OK;
}
