/* The front end: a step as a program (DESIGN section 4), with no word of I/O in it.
 *
 *   for unit in forward order:  for micro-batch: forward stages
 *   objective: per-token log-likelihoods -> per-token coefficients
 *   for unit in backward order: for micro-batch: (recompute,) backward stages; finish the gradients that are complete
 *   norm; for tile in forward order: AdamW
 *
 * AdamW's place is the variant: so (U), in the next forward pass (F), or where a gradient is finished (B).
 *
 * An interval is opened where a pass over a unit begins to need an object, so that what lies between two passes may
 * leave memory; which does is the planner's choice. */
#include "step/build_internal.h"

#include <string.h>

uint32_t pass_scratch(pass *x, uint32_t unit, uint64_t bytes) {
    return tm_program_temp(x->p, &(tm_object){.kind = TM_KIND_SCRATCH, .unit = unit, .bytes = bytes ? bytes : 1});
}

/* ---- slots and gradients ------------------------------------------------------------------------------------- */

static const tm_slot *slot_of(const pass *x, uint32_t unit, uint32_t slot) {
    return &tm_model_unit(x->m, unit)->slot[slot];
}

/* A unit's input is the output of the unit before; a bridged slot is an earlier unit's. */
static size_t slot_key(const pass *x, uint32_t unit, uint32_t lane, uint32_t slot) {
    const tm_slot *s = slot_of(x, unit, slot);
    if (s->bridged) {
        unit = s->of_unit;
        slot = s->of_slot;
    } else if (slot == 0) {
        unit--;
        slot = 1;
    }
    return ((size_t)unit * x->L + lane) * TM_MAX_SLOTS + slot;
}

static uint32_t slot_interval(pass *x, uint32_t unit, uint32_t lane, const tm_slot_use *use) {
    const tm_slot *slot = slot_of(x, unit, use->slot);
    size_t key = slot_key(x, unit, lane, use->slot);
    uint32_t *object = use->grad ? &x->grad_object[key] : &x->value_object[key];
    uint32_t *interval = use->grad ? &x->grad_interval[key] : &x->value_interval[key];
    uint64_t bytes = (uint64_t)(use->grad ? slot->grad_bytes : slot->bytes) * x->T;
    if (*object == NONE)
        *object = tm_program_temp(x->p, &(tm_object){.kind = TM_KIND_ACTIVATION,
                                                     .unit = unit,
                                                     .bytes = bytes ? bytes : 1,
                                                     .pageable = !x->o->no_spill});
    if (*interval == NONE) *interval = tm_program_interval(x->p, *object, 1);
    return *interval;
}

static void use_slots(pass *x, uint32_t unit, uint32_t lane, const tm_slot_use *uses, uint32_t n, uint32_t *fresh) {
    for (uint32_t i = 0; i < n; i++) {
        size_t key = slot_key(x, unit, lane, uses[i].slot);
        uint8_t *written = uses[i].grad ? &x->grad_written[key] : &x->value_written[key];
        uint32_t interval = slot_interval(x, unit, lane, &uses[i]);
        tm_use_access access = (tm_use_access)uses[i].access;
        if (access == TM_USE_UPDATE && !*written) {
            access = TM_USE_WRITE;
            *fresh |= 1u << i;
        }
        if (access & TM_USE_WRITE) *written = 1;
        op_use(&x->w, OPERAND_SLOT, interval, access);
    }
}

static uint32_t fresh_slots(const pass *x, uint32_t unit, uint32_t lane, const tm_slot_use *uses, uint32_t n) {
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t key = slot_key(x, unit, lane, uses[i].slot);
        bool written = uses[i].grad ? x->grad_written[key] : x->value_written[key];
        if (uses[i].access == TM_UPDATE && !written) fresh |= 1u << i;
    }
    return fresh;
}

static void use_part(pass *x, uint32_t part) {
    TM_ASSERT(x->o->update != UPDATE_WITHIN || !x->updated[part]); /* backward needs the weights of forward */
    if (x->part_interval[part] == NONE) (void)pass_hi_interval(x, part);
    op_use(&x->w, OPERAND_WEIGHT, x->part_interval[part], TM_USE_READ);
    for (uint32_t k = 0; k < frozen_scales(x->job, part); k++)
        op_use(&x->w, OPERAND_SCALES, x->part_interval[part] + 1 + k, TM_USE_READ);
}

static void use_workspace(pass *x, uint32_t unit, uint32_t stage, bool backward) {
    uint64_t bytes = tm_stage_workspace(x->m, unit, stage, backward, x->o->shape.rows, x->o->shape.seq);
    op_use(&x->w, OPERAND_WORKSPACE, tm_program_interval(x->p, pass_scratch(x, unit, bytes), 1), TM_USE_WRITE);
}

/* The head's logits of a vocabulary part, from forward to backward. Returns the operation's flag. */
static uint16_t keeps_logits(pass *x, uint32_t unit, uint32_t s, uint32_t lane) {
    const pass_opts *o = x->o;
    bool head = tm_model_unit(x->m, unit)->kind == TM_UNIT_HEAD && job_lane(x->job, lane) == TM_LANE_POLICY;
    uint64_t bytes = head ? tm_head_kept_bytes(x->m, unit, s, o->shape.rows, o->shape.seq) : 0;
    if (!o->backward || o->keep_quarters < PASS_KEEP_LOGITS || bytes == 0) return 0;
    uint32_t *interval = &x->kept_logits[lane * tm_model_unit(x->m, unit)->n_stages + s];
    tm_object object = {.kind = TM_KIND_ACTIVATION, .unit = unit, .bytes = bytes};
    if (*interval == NONE) *interval = tm_program_interval(x->p, tm_program_temp(x->p, &object), 1);
    return OP_KEPT_LOGITS;
}

static void use_logits(pass *x, uint32_t unit, uint32_t s, uint32_t lane, tm_use_access access) {
    op_use(&x->w, OPERAND_LOGITS, x->kept_logits[lane * tm_model_unit(x->m, unit)->n_stages + s], access);
}

/* What a lane computes as: the policy drops some of its adapters' input in training, the reference has none. */
static uint16_t lane_flags(const pass *x, uint32_t lane) {
    if (tm_lane_is_bare(job_lane(x->job, lane))) return OP_BARE;
    return x->o->backward && x->job->optimizer ? OP_TRAINS : 0;
}

/* The micro-batch's lane that has a backward. */
static uint32_t learner(const pass *x, uint32_t mb) {
    return mb * x->job->n_lanes; /* the first */
}

/* ---- stages -------------------------------------------------------------------------------------------------- */

static void forward_stage(pass *x, uint32_t unit, uint32_t s, uint32_t lane) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    uint32_t fresh = fresh_slots(x, unit, lane, stage->forward, stage->n_forward), again = 0;
    pass_update_before(x, stage);
    pass_need(x, stage, false);
    uint16_t kept = keeps_logits(x, unit, s, lane);
    op_begin(&x->w, OP_FORWARD, (op_args){.stage = {unit, s, lane, fresh}});
    op_flags(&x->w, kept | lane_flags(x, lane));
    op_use(&x->w, OPERAND_BATCH, x->batch[job_batch_index(x->job, lane)], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_forward[i]) use_part(x, stage->part[i]);
    use_slots(x, unit, lane, stage->forward, stage->n_forward, &again);
    if (stage->uses_kv_cache && x->job->kv)
        op_use(&x->w, OPERAND_KV_CACHE, tm_program_interval(x->p, x->job->kv[unit], job_kv_pages(x->job, unit)),
               TM_USE_UPDATE);
    if (kept) use_logits(x, unit, s, lane, TM_USE_WRITE);
    use_workspace(x, unit, s, false);
    op_end(&x->w);
}

static void use_sum(pass *x, uint32_t part, uint32_t unit) {
    if (x->sum_object[part] == NONE) {
        bool tied = tm_model_part(x->m, part)->unit != unit; /* the head's contribution waits for the embedding's */
        x->sum_object[part] = tm_program_temp(
            x->p, &(tm_object){
                      .kind = TM_KIND_GRAD, .unit = unit, .bytes = x->job->part[part].elements * 4, .pageable = tied});
    }
    if (x->sum_interval[part] == NONE) x->sum_interval[part] = tm_program_interval(x->p, x->sum_object[part], 1);
    op_use(&x->w, OPERAND_SUM, x->sum_interval[part], x->sum_written[part] ? TM_USE_UPDATE : TM_USE_WRITE);
    x->sum_written[part] = 1;
}

static void backward_stage(pass *x, uint32_t unit, uint32_t s, uint32_t lane) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    const tm_stage *stage = &u->stage[s];
    uint32_t fresh = fresh_slots(x, unit, lane, stage->backward, stage->n_backward), again = 0, flags = 0;
    if (!stage->has_backward) return;
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_gradient[i] && !x->sum_written[stage->part[i]]) flags |= 1u << i;
    pass_need(x, stage, true);
    flags |= keeps_logits(x, unit, s, lane) | lane_flags(x, lane);
    op_begin(&x->w, OP_BACKWARD, (op_args){.stage = {unit, s, lane, fresh}});
    op_flags(&x->w, flags);
    op_use(&x->w, OPERAND_BATCH, x->batch[job_batch_index(x->job, lane)], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_backward[i]) use_part(x, stage->part[i]);
    use_slots(x, unit, lane, stage->backward, stage->n_backward, &again);
    if (u->kind == TM_UNIT_HEAD) op_use(&x->w, OPERAND_COEFFICIENT, x->coef[lane], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_gradient[i]) use_sum(x, stage->part[i], unit);
    if (flags & OP_KEPT_LOGITS) use_logits(x, unit, s, lane, TM_USE_UPDATE);
    use_workspace(x, unit, s, true);
    op_end(&x->w);
}

/* ---- units --------------------------------------------------------------------------------------------------- */

/* What was visited belongs to a pass that is over: the next use opens a new interval. The output stays open for the
 * unit that comes next. */
static void close_unit(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++)
        for (uint32_t i = 0; i < u->stage[s].n_parts; i++)
            x->part_interval[u->stage[s].part[i]] = x->own_interval[u->stage[s].part[i]] =
                x->sum_interval[u->stage[s].part[i]] = NONE;
    for (uint32_t lane = 0; lane < x->L; lane++)
        for (uint32_t s = 0; s < TM_MAX_SLOTS; s++) {
            if (s == 1 || (unit == 0 && s == 0)) continue;
            x->value_interval[slot_key(x, unit, lane, s)] = NONE;
            if (u->slot[s].bridged) x->grad_interval[slot_key(x, unit, lane, s)] = NONE; /* others add to it later */
        }
}

static void emit_logits(pass *x, uint32_t unit, uint32_t s, uint32_t lane) {
    const tm_stage *stage = &tm_model_unit(x->m, unit)->stage[s];
    uint32_t part = stage->part[0], fresh = 0;
    pass_need(x, stage, false);
    uint64_t columns = x->job->part[part].elements / tm_model_get_config(x->m)->hidden_size;
    bool wanted = x->o->logits == LOGITS_WANTED;
    op_begin(&x->w, OP_LOGITS, (op_args){.logits = {unit, s, lane, wanted}});
    op_use(&x->w, OPERAND_BATCH, x->batch[job_batch_index(x->job, lane)], TM_USE_READ);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_forward[i]) use_part(x, stage->part[i]);
    for (uint32_t i = 0; i < stage->n_forward; i++)
        if (stage->forward[i].access == TM_READ) use_slots(x, unit, lane, &stage->forward[i], 1, &fresh);
    uint32_t logits = pass_scratch(x, unit, (wanted ? LOGITS_ROWS : (uint64_t)x->T) * columns * 4);
    op_use(&x->w, OPERAND_LOGITS, tm_program_interval(x->p, logits, 1), TM_USE_WRITE);
    use_workspace(x, unit, s, false);
    op_end(&x->w);
}

/* Stage 0 is the norm; then a stage for each vocabulary part, whose weights are needed for that long only. */
static void forward_head(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++) {
        for (uint32_t lane = 0; lane < x->L; lane++) {
            if (s == 0 || x->o->loss) forward_stage(x, unit, s, lane);
            if (s > 0 && x->o->logits && job_lane(x->job, lane) == TM_LANE_POLICY) emit_logits(x, unit, s, lane);
        }
        if (s > 0) x->part_interval[u->stage[s].part[0]] = NONE;
    }
}

/* Tiles of the stage that comes after stage `s` of `unit`. */
static uint32_t tiles_after(const pass *x, uint32_t unit, uint32_t s) {
    if (s + 1 < tm_model_unit(x->m, unit)->n_stages) return pass_stage_tiles(x, unit, s + 1);
    return unit + 1 < x->units ? pass_stage_tiles(x, unit + 1, 0) : 0;
}

static void forward_by_stage(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++) {
        uint32_t from = 0, want = 0;
        for (uint32_t lane = 0; lane < x->L; lane++) {
            forward_stage(x, unit, s, lane);
            if (lane == 0) {
                from = x->line_head;
                want = tiles_after(x, unit, s);
            }
            pass_update_some(x, from, want, lane + 1, x->L);
        }
    }
}

static void forward_by_batch(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    uint32_t from = 0, want = 0;
    for (uint32_t lane = 0; lane < x->L; lane++) {
        for (uint32_t s = 0; s < u->n_stages; s++) {
            forward_stage(x, unit, s, lane);
            if (lane > 0)
                pass_update_some(x, from, want, (uint64_t)(lane - 1) * u->n_stages + s + 1,
                                 (uint64_t)(x->L - 1) * u->n_stages);
        }
        if (lane == 0) {
            from = x->line_head;
            want = pass_unit_tiles(x, unit + 1);
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

void stages_to_recompute(const tm_unit *u, bool *again) {
    uint32_t needed = 0; /* slots, as bits */
    _Static_assert(TM_MAX_SLOTS <= 32, "a bit for each slot");
    for (uint32_t s = 0; s < u->n_stages; s++)
        for (uint32_t i = 0; i < u->stage[s].n_backward; i++)
            if (!u->stage[s].backward[i].grad) needed |= 1u << u->stage[s].backward[i].slot;
    for (uint32_t s = u->n_stages; s-- > 0;) {
        again[s] = false;
        for (uint32_t i = 0; i < u->stage[s].n_forward; i++)
            if ((u->stage[s].forward[i].access & TM_WRITE) && (needed >> u->stage[s].forward[i].slot & 1))
                again[s] = true;
        for (uint32_t i = 0; again[s] && i < u->stage[s].n_forward; i++)
            if (u->stage[s].forward[i].access & TM_READ) needed |= 1u << u->stage[s].forward[i].slot;
    }
}

bool pass_recomputes(const pass *x, uint32_t unit) {
    return tm_model_unit(x->m, unit)->kind == TM_UNIT_BLOCK && x->units - 1 - unit > x->kept_blocks;
}

const bool *pass_again(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    if (pass_recomputes(x, unit))
        stages_to_recompute(u, x->again);
    else
        memset(x->again, 0, u->n_stages * sizeof *x->again);
    return x->again;
}

static void forget_slots(pass *x, uint32_t unit) {
    for (uint32_t mb = 0; mb < x->K; mb++)
        for (uint32_t s = 2; s < TM_MAX_SLOTS; s++) {
            if (slot_of(x, unit, s)->bridged) continue; /* nobody here computes it again */
            size_t key = slot_key(x, unit, learner(x, mb), s);
            x->value_object[key] = x->value_interval[key] = NONE;
            x->value_written[key] = 0;
        }
}

static void backward_unit(pass *x, uint32_t unit) {
    const tm_unit *u = tm_model_unit(x->m, unit);
    bool block = u->kind == TM_UNIT_BLOCK, recompute = pass_recomputes(x, unit);
    const bool *again = pass_again(x, unit);
    uint32_t from = x->line_head, want = x->line_end - from;
    bool within = x->o->update == UPDATE_WITHIN;
    if (recompute) forget_slots(x, unit);
    if (x->o->stage_wise || !block) {
        for (uint32_t s = 0; s < u->n_stages; s++)
            for (uint32_t mb = 0; again[s] && mb < x->K; mb++) forward_stage(x, unit, s, learner(x, mb));
        for (uint32_t s = u->n_stages; s-- > 0;) {
            from = x->line_head;
            want = x->line_end - from;
            for (uint32_t mb = 0; mb < x->K; mb++) {
                backward_stage(x, unit, s, learner(x, mb));
                if (within) pass_update_some(x, from, want, mb + 1, x->K);
            }
            pass_contributed(x, unit, s);
        }
        return;
    }
    for (uint32_t mb = 0; mb < x->K; mb++) {
        for (uint32_t s = 0; s < u->n_stages; s++)
            if (again[s]) forward_stage(x, unit, s, learner(x, mb));
        for (uint32_t s = u->n_stages; s-- > 0;) {
            backward_stage(x, unit, s, learner(x, mb));
            if (within)
                pass_update_some(x, from, want, (uint64_t)mb * u->n_stages + u->n_stages - s,
                                 (uint64_t)x->K * u->n_stages);
            if (mb + 1 == x->K) pass_contributed(x, unit, s); /* early: its frames serve the stages that are left */
        }
    }
}

/* ---- objective, norm, update --------------------------------------------------------------------------------- */

/* `all`: what ranks shared, or NONE. */
static void write_objective(pass *x, uint32_t unit, uint32_t phase, uint32_t all) {
    const tm_slot_use state = {.slot = TM_HEAD_SLOT_STATE, .access = TM_READ};
    bool first = phase != OBJECTIVE_REST, fresh_step = first && x->o->update != UPDATE_BEFORE;
    uint32_t fresh = 0;
    op_begin(&x->w, OP_OBJECTIVE,
             (op_args){.objective = {.micro_batches = x->K, .within = x->o->update == UPDATE_WITHIN, .phase = phase}});
    for (uint32_t lane = 0; lane < x->L; lane++) {
        op_use(&x->w, OPERAND_BATCH, x->batch[job_batch_index(x->job, lane)], TM_USE_READ);
        use_slots(x, unit, lane, &state, 1, &fresh);
        op_use(&x->w, OPERAND_COEFFICIENT, x->coef[lane], first ? TM_USE_WRITE : TM_USE_UPDATE);
    }
    if (all != NONE) op_use(&x->w, OPERAND_REPORTS, all, TM_USE_READ);
    op_use(&x->w, OPERAND_STEP, x->step, fresh_step ? TM_USE_WRITE : TM_USE_UPDATE);
    op_end(&x->w);
}

static void emit_objective(pass *x, uint32_t unit) {
    bool halves = x->job->ranks.ranks > 1 && tm_objective_shares(x->job->objective, &x->job->objective_spec);
    for (uint32_t lane = 0; lane < x->L; lane++)
        x->coef[lane] = tm_program_interval(x->p, pass_scratch(x, unit, (uint64_t)x->T * sizeof(float)), 1);
    write_objective(x, unit, halves ? OBJECTIVE_SHARE : OBJECTIVE_WHOLE, NONE);
    if (halves) write_objective(x, unit, OBJECTIVE_REST, pass_exchange(x, false));
}

/* ---- the pass ------------------------------------------------------------------------------------------------ */

static void pass_free(pass *x) {
    if (x->grad_tile)
        for (uint32_t p = 0; p < x->parts; p++) tm_free(x->grad_tile[p]);
    void *all[] = {x->kept_logits,  x->batch,         x->coef,          x->value_object, x->value_interval,
                   x->grad_object,  x->grad_interval, x->value_written, x->grad_written, x->part_interval,
                   x->own_interval, x->sum_object,    x->sum_interval,  x->partial,      x->sum_written,
                   x->contributors, x->updated,       x->grad_tile,     x->line,         x->gather,
                   x->second,       x->ahead,         x->stays,         x->again};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
}

static uint32_t *nones(size_t n) {
    uint32_t *a = tm_malloc(n * sizeof *a);
    for (size_t i = 0; a && i < n; i++) a[i] = NONE;
    return a;
}

static tm_status pass_init(pass *x) {
    size_t slots = (size_t)x->units * x->L * TM_MAX_SLOTS;
    x->batch = nones((size_t)x->K * x->job->n_batches);
    x->coef = nones(x->L);
    x->kept_logits = nones((size_t)x->L * tm_model_unit(x->m, x->units - 1)->n_stages);
    x->value_object = nones(slots);
    x->value_interval = nones(slots);
    x->grad_object = nones(slots);
    x->grad_interval = nones(slots);
    x->value_written = tm_calloc(slots, 1);
    x->grad_written = tm_calloc(slots, 1);
    x->part_interval = nones(x->parts);
    x->own_interval = nones(x->parts);
    x->second = nones(x->parts);
    x->gather = nones((size_t)x->parts * 4);
    x->ahead = tm_calloc(x->parts, sizeof *x->ahead);
    x->sum_object = nones(x->parts);
    x->sum_interval = nones(x->parts);
    x->partial = nones(x->parts);
    x->sum_written = tm_calloc(x->parts, 1);
    x->contributors = tm_calloc(x->parts, 1);
    x->updated = tm_calloc(x->parts, 1);
    uint32_t most_stages = 1;
    for (uint32_t u = 0; u < x->units; u++)
        if (tm_model_unit(x->m, u)->n_stages > most_stages) most_stages = tm_model_unit(x->m, u)->n_stages;
    x->again = tm_calloc(most_stages, sizeof *x->again);
    x->grad_tile = tm_calloc(x->parts, sizeof *x->grad_tile);
    if (!x->batch || !x->coef || !x->value_object || !x->value_interval || !x->grad_object || !x->grad_interval ||
        !x->value_written || !x->grad_written || !x->part_interval || !x->own_interval || !x->second || !x->gather ||
        !x->ahead || !x->sum_object || !x->sum_interval || !x->partial || !x->sum_written || !x->contributors ||
        !x->updated || !x->grad_tile || !x->again)
        return tm_nomem(slots * 16);
    for (uint32_t p = 0; p < x->parts; p++)
        if (x->job->part[p].learns) x->most_summing = tm_max_u64(x->most_summing, x->job->part[p].elements);
    if (x->job->ranks.reduce_elements) x->most_summing = tm_min_u64(x->most_summing, x->job->ranks.reduce_elements);
    for (uint32_t p = 0; p < x->parts && x->o->update == UPDATE_AFTER; p++) {
        x->grad_tile[p] = nones(x->job->part[p].tiles + 1);
        if (!x->grad_tile[p]) return tm_nomem(x->job->part[p].tiles * sizeof(uint32_t));
    }
    for (uint32_t u = 0; u < x->units; u++)
        for (uint32_t s = 0; s < tm_model_unit(x->m, u)->n_stages; s++) {
            const tm_stage *stage = &tm_model_unit(x->m, u)->stage[s];
            for (uint32_t i = 0; i < stage->n_parts; i++)
                x->contributors[stage->part[i]] += pass_contributes(x, stage, i);
        }
    TM_TRY(pass_stays_init(x));
    return pass_line_init(x);
}

static void emit_pass(pass *x) {
    uint32_t head = x->units - 1;
    x->step = tm_program_interval(x->p, pass_scratch(x, 0, sizeof(step_frame)), 1);
    uint64_t bytes = job_columns_bytes(x->job, x->T, x->o->shape.rows);
    for (uint32_t i = 0; i < x->K * x->job->n_batches; i++) {
        x->batch[i] = tm_program_interval(x->p, pass_scratch(x, 0, bytes), 1);
        op_write(&x->w, OP_BATCH,
                 (op_args){.batch = {.micro_batch = i / x->job->n_batches,
                                     .capacity = x->T,
                                     .rows = x->o->shape.rows,
                                     .batch = i % x->job->n_batches}},
                 OPERAND_BATCH, x->batch[i], TM_USE_WRITE);
    }
    if (x->o->update == UPDATE_BEFORE) pass_pending(x);
    pass_gather_forward(x);
    for (uint32_t u = 0; u <= head; u++) {
        forward_unit(x, u);
        if (u != head) close_unit(x, u);
    }
    if (x->o->loss) emit_objective(x, head);
    if (x->o->loss && !x->o->backward) pass_loss(x);
    if (!x->o->backward) return;
    for (uint32_t p = 0; p < x->parts; p++) x->part_interval[p] = x->own_interval[p] = NONE;
    pass_gather_backward(x);
    for (uint32_t u = head + 1; u-- > 0;) {
        backward_unit(x, u);
        close_unit(x, u);
    }
    pass_finish_all(x);
    while (x->line_head < x->line_end) pass_update_next(x);
    pass_norm(x);
    for (uint32_t part = 0; x->o->update == UPDATE_AFTER && part < x->parts; part++) pass_update_part(x, part);
}

tm_status build_pass(tm_program **out, const tm_job *job, const char *name, const pass_opts *opts) {
    pass_opts o = *opts;
    if (o.backward) o.loss = true;
    pass x = {.job = job,
              .m = job->model,
              .o = &o,
              .K = o.shape.micro_batches,
              .L = o.shape.micro_batches * job->n_lanes,
              .T = shape_tokens(&o.shape),
              .units = tm_model_units(job->model),
              .parts = tm_model_parts(job->model),
              .kept_blocks = pass_kept_blocks(job, opts)};
    tm_status rc;
    TM_TRY(tm_model_check_positions(tm_model_get_config(x.m), o.shape.seq, "rows"));
    TM_TRY(tm_program_create(&x.p, job->layout, name));
    TM_GO(op_writer_open(&x.w, job, x.p, &o.shape));
    TM_GO(pass_init(&x));
    emit_pass(&x);
    tm_program_share(x.p);
    *out = x.p;
done:
    op_writer_close(&x.w);
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
    return blocks * (o->keep_quarters < PASS_KEEP_ALL ? o->keep_quarters : PASS_KEEP_ALL) / PASS_KEEP_ALL;
}

const char *pass_activations_name(const tm_job *job, const pass_opts *o) {
    if (o->keep_quarters >= PASS_KEEP_ALL) return o->no_spill ? "keep" : "spill";
    return pass_kept_blocks(job, o) ? "mixed" : "recompute";
}
