/* The update by an optimizer that sums over whole tensors before the first weight moves (Adafactor). Its operations
 * stand after the norm (update U), group by group:
 *
 *   totals = 0
 *   for tile: sums of w^2 and g^2   [pieces to all ranks]   turn: means move, rates and factors
 *   for tile: sums of u^2           [pieces to all ranks]   turn: what the update is divided by
 *   for tile: update
 *
 * A part that is a group of its own stays in memory through all three, lower halves and gradient with it: bytes that
 * backward needed for its weights and their sum. Then the walks read nothing. A vocabulary of several parts would need
 * more than a step does anyhow, so that its tiles pass by three times. */
#include "step/build_internal.h"
#include "job/job.h"

tm_status pass_stays_init(pass *x) {
    uint32_t most = 0;
    if (!job_updates_in_passes(x->job)) return TM_OK;
    for (uint32_t p = 0; p < x->parts; p++)
        if (x->job->part[p].tiles > most) most = x->job->part[p].tiles;
    x->stays = tm_malloc(sizeof *x->stays * (most + 1));
    return x->stays ? TM_OK : tm_nomem(sizeof *x->stays * most);
}

/* A group while its operations are written. */
typedef struct updating {
    part_group group;
    bool stays;         /* intervals are kept from walk to walk */
    uint32_t totals;    /* interval */
    tile_intervals all; /* of the part under way, where one interval serves all tiles: weights that are handed round, a
                        gradient that was */
} updating;

/* ---- a walk over tiles ----------------------------------------------------------------------------------------- */

static void begin_part(pass *x, updating *u, uint32_t part, bool update) {
    const part_state *ps = &x->job->part[part];
    bool whole = part_is_shared(x->job, ps) && (update || u->stays);
    u->all = NO_INTERVALS;
    if (whole) u->all.hi = tm_program_interval(x->p, ps->hi, ps->hi_tiles);
    if (gradients_are_shared(x->job) && ps->tiles) u->all.gradient = pass_gradient_interval(x, part, 0);
}

/* Of a tile: those that stay, else those that serve all tiles. */
static tile_intervals open_tile(pass *x, const updating *u, uint32_t part, uint32_t tile) {
    tile_intervals v = u->stays ? x->stays[tile] : u->all;
    if (v.gradient == NONE) v.gradient = pass_gradient_interval(x, part, tile);
    return v;
}

static void use_weights(pass *x, uint32_t part, uint32_t tile, tile_intervals *v) {
    const part_state *ps = &x->job->part[part];
    uint32_t weights = pass_weight_tile(x, part, tile);
    if (x->job->dtype != TM_F16) { /* fp16: the master is lo */
        if (v->hi == NONE) v->hi = tm_program_interval(x->p, weights, 1);
        op_use_one(&x->w, OPERAND_HI, v->hi, weights, TM_USE_READ);
    }
    if (ps->lo == TM_NO_OBJECT) return;
    if (v->lo == NONE) v->lo = tm_program_interval(x->p, ps->lo + tile * ps->stride, 1);
    op_use(&x->w, OPERAND_LO, v->lo, TM_USE_READ);
}

static void sum_tile_of(pass *x, const updating *u, uint32_t part, uint32_t tile, uint32_t k) {
    const part_state *ps = &x->job->part[part];
    tile_intervals v = open_tile(x, u, part, tile);
    op_begin(&x->w, OP_SUMS, (op_args){.sums = {part, tile, k, gradients_are_shared(x->job)}});
    if (passes_read_weights(x->job, k)) use_weights(x, part, tile, &v);
    if (k == 1 && ps->exp_avg_sq != TM_NO_OBJECT) {
        if (v.squares == NONE) v.squares = tm_program_interval(x->p, ps->exp_avg_sq + tile * ps->stride, 1);
        op_use(&x->w, OPERAND_EXP_AVG_SQ, v.squares, TM_USE_READ);
    }
    op_use(&x->w, OPERAND_GRADIENT, v.gradient, TM_USE_READ);
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_READ);
    op_use(&x->w, OPERAND_TOTALS, u->totals, TM_USE_UPDATE);
    op_end(&x->w);
    if (u->stays) x->stays[tile] = v;
}

/* This rank's slice, whoever else updates it: its sums go round. */
static bool sums_tile(const pass *x, uint32_t part, uint32_t tile) {
    const tm_job *job = x->job;
    uint64_t each = slice_elements(job->part[part].elements, job->ranks.ranks);
    return own_tile(job, part, tile).begin / each == job_summed_slice(job, job->ranks.rank);
}

static void walk(pass *x, updating *u, uint32_t k) {
    for (uint32_t part = u->group.first; part < u->group.first + u->group.count; part++) {
        if (!u->stays) begin_part(x, u, part, false);
        for (uint32_t tile = 0; tile < x->job->part[part].tiles; tile++)
            if (sums_tile(x, part, tile)) sum_tile_of(x, u, part, tile, k);
    }
}

static void update(pass *x, updating *u) {
    for (uint32_t part = u->group.first; part < u->group.first + u->group.count; part++) {
        if (!u->stays) begin_part(x, u, part, true);
        for (uint32_t tile = 0; tile < x->job->part[part].tiles; tile++)
            pass_update_tile(x, part, tile, open_tile(x, u, part, tile), u->totals);
        pass_share(x, part, u->all.hi);
    }
}

/* What every rank's slices add up to, side by side. */
static uint32_t share_sums(pass *x, const updating *u, uint32_t k) {
    uint32_t part = u->group.first;
    uint64_t bytes = passes_pieces_bytes(x->job, u->group, k);
    uint32_t pieces = tm_program_interval(x->p, pass_scratch(x, tm_model_part(x->m, part)->unit, bytes), 1);
    op_begin(&x->w, OP_PACK_SUMS, (op_args){.group = {.part = part, .pass = k}});
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_READ);
    op_use(&x->w, OPERAND_TOTALS, u->totals, TM_USE_READ);
    op_use(&x->w, OPERAND_PIECES, pieces, TM_USE_WRITE);
    op_end(&x->w);
    op_write(&x->w, OP_SHARE_SUMS, (op_args){.group = {.part = part, .pass = k}}, OPERAND_PIECES, pieces,
             TM_USE_UPDATE);
    return pieces;
}

static void turn(pass *x, const updating *u, uint32_t k) {
    uint32_t part = u->group.first, means = x->job->part[part].means;
    uint32_t pieces = x->job->ranks.ranks > 1 ? share_sums(x, u, k) : NONE;
    op_begin(&x->w, OP_TURN, (op_args){.group = {.part = part, .pass = k + 1}});
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_READ);
    if (pieces != NONE) op_use(&x->w, OPERAND_PIECES, pieces, TM_USE_READ);
    if (k == 0 && means != TM_NO_OBJECT)
        op_use(&x->w, OPERAND_MEANS, tm_program_interval(x->p, means, 1), TM_USE_UPDATE);
    op_use(&x->w, OPERAND_TOTALS, u->totals, TM_USE_UPDATE);
    op_end(&x->w);
}

/* Of the group that begins with `part`; others were updated with the part that theirs begins with. */
void pass_update_group(pass *x, uint32_t part) {
    updating u = {.group = passes_group(x->m, part)};
    if (u.group.first != part) return;
    u.stays = u.group.count == 1;
    uint64_t bytes = passes_totals_bytes(x->job, u.group);
    u.totals = tm_program_interval(x->p, pass_scratch(x, tm_model_part(x->m, part)->unit, bytes), 1);
    op_begin(&x->w, OP_TURN, (op_args){.group = {.part = part, .pass = 0}});
    op_use(&x->w, OPERAND_STEP, x->step, TM_USE_READ);
    op_use(&x->w, OPERAND_TOTALS, u.totals, TM_USE_WRITE);
    op_end(&x->w);
    if (u.stays) begin_part(x, &u, part, false);
    for (uint32_t tile = 0; u.stays && tile < x->job->part[part].tiles; tile++) x->stays[tile] = u.all;
    for (uint32_t k = 0; k + 1 < x->job->update->passes; k++) {
        walk(x, &u, k);
        turn(x, &u, k);
    }
    update(x, &u);
}
