/* The update on resident pointers: a tile by its optimizer, and what an optimizer in passes adds up before. */
#include "step/ops_internal.h"
#include "job/job.h"

/* Its operands, from the tile's first element on. */
typedef struct update_tile {
    uint32_t part, pass;
    bool on_device;
    span at;
    void *hi, *lo, *m, *v;
    const char *g;
    double *totals; /* of its group; NULL: the optimizer has one pass */
} update_tile;

/* Where an arena has kernels of its own, the host does not read it: then what was published before the frame was copied
 * there. */
static const step_frame *step_of(const op_call *c) {
    bool there = c->op->tier == TM_TIER_DEVICE && c->kernels;
    return there ? &c->step->result : op_operand(c, OPERAND_STEP);
}

static tm_optim_span span_of(const tm_job *job, const update_tile *t, uint64_t first, uint64_t n) {
    static const tm_grad_type grad_type[] = {[TM_F32] = TM_GRAD_F32, [TM_BF16] = TM_GRAD_BF16, [TM_F16] = TM_GRAD_F16};
    uint64_t width = tm_dtype_bytes(job->dtype);
    tm_optim_span x = {.grad = t->g + first * width, .grad_type = grad_type[job->dtype], .n = n};
    if (job->dtype == TM_F32 && t->hi) x.weight = (float *)t->hi + first;
    if (job->dtype == TM_F16 && t->lo) x.weight = (float *)t->lo + first;
    if (job->dtype != TM_F32 && t->hi) x.weight_hi = (uint16_t *)t->hi + first;
    if (job->dtype == TM_BF16 && t->lo) x.weight_lo = (uint16_t *)t->lo + first;
    state_span(job, t->part, t->m, t->v, first, t->at.n, &x);
    return x;
}

/* One run of elements with the same decay and rate. On the device beside the host's operations, hence two counts. */
static void update_run(const op_call *c, const update_tile *t, uint64_t first, uint64_t n, uint32_t tensor) {
    uint64_t *nonfinite = t->on_device ? &c->step->device_nonfinite : &c->step->nonfinite;
    tm_optim_span x = span_of(c->job, t, first, n);
    const tm_optim_step step = state_step(c->job, step_of(c), c->job->part[t->part].small, tensor);
    if (t->on_device && c->kernels)
        tm_optim_launch(c->kernels, &step, &x, nonfinite);
    else
        *nonfinite += tm_optim_run(&step, &x);
}

/* One run of elements of a tensor. */
static void pass_run(const op_call *c, const update_tile *t, const tm_segment *seg, uint64_t from, uint64_t n) {
    part_group g = passes_group(c->job->model, t->part);
    group_tensor tensor;
    uint32_t i = 0;
    while (passes_tensor(c->job, g, i, NULL, t->totals, &tensor) && tensor.tensor != seg->tensor) i++;
    tm_optim_span x = span_of(c->job, t, from - t->at.begin, n);
    x.first = seg->tensor_offset + (from - seg->part_offset);
    const tm_optim_step step = state_step(c->job, step_of(c), false, seg->tensor);
    c->step->nonfinite += tm_optim_pass(&step, &tensor.x, t->pass, &x);
}

/* Segment by segment, so that each has its own decay and, in passes, its own tensor. */
static void run_segments(const op_call *c, const update_tile *t) {
    const tm_segment *seg = tm_model_part_segments(c->job->model, t->part);
    for (uint32_t i = 0; i < tm_model_part(c->job->model, t->part)->n_segments; i++) {
        uint64_t from = tm_max_u64(seg[i].part_offset, t->at.begin),
                 to = tm_min_u64(seg[i].part_offset + seg[i].elements, t->at.begin + t->at.n);
        if (from >= to) continue;
        if (t->totals)
            pass_run(c, t, &seg[i], from, to - from);
        else
            update_run(c, t, from - t->at.begin, to - from, seg[i].tensor);
    }
}

/* Elements of the gradient's operand that lie before the tile; `whole`: it is the part's. */
static uint64_t gradient_before(const tm_job *job, uint32_t part, uint32_t tile, bool whole) {
    return whole ? own_tile(job, part, tile).begin - own_run(job, part).begin : 0;
}

static tm_status run_update(const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.update.part, tile = c->args.update.tile;
    uint64_t before = gradient_before(job, part, tile, c->args.update.whole);
    const update_tile t = {
        .part = part,
        .at = own_tile(job, part, tile),
        .pass = job->update->passes - 1,
        .on_device = c->op->tier == TM_TIER_DEVICE,
        .hi = op_operand(c, OPERAND_HI),
        .lo = op_operand(c, OPERAND_LO),
        .m = op_operand(c, OPERAND_EXP_AVG),
        .v = op_operand(c, OPERAND_EXP_AVG_SQ),
        .g = (const char *)op_operand(c, OPERAND_GRADIENT) + before * tm_dtype_bytes(job->dtype),
        .totals = op_operand(c, OPERAND_TOTALS),
    };
    if (!step_of(c)->finite) { /* skipped: everything stays, or is made of what stays */
        if (job->dtype == TM_F16) tm_grad_round_f16(t.lo, t.hi, t.at.n);
        return TM_OK;
    }
    if (c->step->no_decay || t.totals)
        run_segments(c, &t);
    else
        update_run(c, &t, 0, t.at.n, UINT32_MAX);
    return TM_OK;
}

static tm_status run_sums(const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.sums.part, tile = c->args.sums.tile;
    uint64_t before = gradient_before(job, part, tile, c->args.sums.whole);
    const update_tile t = {
        .part = part,
        .at = own_tile(job, part, tile),
        .pass = c->args.sums.pass,
        .hi = op_operand(c, OPERAND_HI),
        .lo = op_operand(c, OPERAND_LO),
        .v = op_operand(c, OPERAND_EXP_AVG_SQ),
        .g = (const char *)op_operand(c, OPERAND_GRADIENT) + before * tm_dtype_bytes(job->dtype),
        .totals = op_operand(c, OPERAND_TOTALS),
    };
    if (step_of(c)->finite) run_segments(c, &t);
    return TM_OK;
}

/* Before the first pass (0), after pass 0 (1), after pass 1 (2). */
static tm_status run_turn(const op_call *c) {
    const tm_job *job = c->job;
    part_group g = passes_group(job->model, c->args.group.part);
    uint32_t turn = c->args.group.pass;
    double *pieces = op_operand(c, OPERAND_PIECES), *totals = op_operand(c, OPERAND_TOTALS);
    float *means = op_operand(c, OPERAND_MEANS);
    group_tensor t;
    if (!step_of(c)->finite) return TM_OK;
    if (pieces) passes_unpack(job, g, turn - 1, pieces, totals);
    for (uint32_t i = 0; passes_tensor(job, g, i, means, totals, &t); i++) {
        const tm_optim_step step = state_step(job, step_of(c), false, t.tensor);
        if (turn == 0)
            tm_optim_begin(&step, &t.x);
        else
            tm_optim_turn(&step, &t.x, turn - 1);
    }
    return TM_OK;
}

static tm_status run_pack_sums(const op_call *c) {
    if (!step_of(c)->finite) return TM_OK;
    passes_pack(c->job, passes_group(c->job->model, c->args.group.part), c->args.group.pass,
                op_operand(c, OPERAND_TOTALS), op_operand(c, OPERAND_PIECES));
    return TM_OK;
}

/* ---- how many operands, and their bytes ------------------------------------------------------------------------ */

tm_kind operand_kind(const op_call *c) {
    static const tm_kind kind[] = {[OPERAND_HI] = TM_KIND_WEIGHT_HI,
                                   [OPERAND_LO] = TM_KIND_WEIGHT_LO,
                                   [OPERAND_EXP_AVG] = TM_KIND_EXP_AVG,
                                   [OPERAND_EXP_AVG_SQ] = TM_KIND_EXP_AVG_SQ};
    return kind[c->of->name];
}
uint32_t operand_is_kept(const op_call *c) {
    const part_state *ps = &c->job->part[c->args.part.part];
    const uint32_t object[] = {[OPERAND_HI] = ps->hi,
                               [OPERAND_LO] = ps->lo,
                               [OPERAND_EXP_AVG] = ps->exp_avg,
                               [OPERAND_EXP_AVG_SQ] = ps->exp_avg_sq};
    return object[c->of->name] != TM_NO_OBJECT;
}
static uint32_t has_totals(const op_call *c) {
    return job_updates_in_passes(c->job);
}
/* Of weights those halves that the pass reads; fp16: the master alone, which is lo. */
static uint32_t sums_read(const op_call *c) {
    uint32_t pass = c->args.sums.pass;
    if (c->of->name == OPERAND_EXP_AVG_SQ) return pass == 1 && operand_is_kept(c);
    return passes_read_weights(c->job, pass) && operand_is_kept(c) &&
           !(c->of->name == OPERAND_HI && c->job->dtype == TM_F16);
}
static uint32_t has_pieces(const op_call *c) {
    return c->args.group.pass > 0 && c->job->ranks.ranks > 1;
}
static uint32_t has_means(const op_call *c) {
    return c->args.group.pass == 1 && c->job->part[c->args.group.part].means != TM_NO_OBJECT;
}

static uint64_t tile_bytes(const op_call *c) {
    uint64_t n = own_tile(c->job, c->args.update.part, c->args.update.tile).n;
    return state_bytes(c->job, c->args.update.part, operand_kind(c), n);
}
static uint64_t gradient_bytes(const op_call *c) {
    uint32_t part = c->args.update.part, tile = c->args.update.tile;
    bool whole = c->op->code == OP_SUMS ? c->args.sums.whole : c->args.update.whole;
    return (gradient_before(c->job, part, tile, whole) + own_tile(c->job, part, tile).n) *
           tm_dtype_bytes(c->job->dtype);
}
static uint64_t totals_bytes(const op_call *c) {
    return passes_totals_bytes(c->job, passes_group(c->job->model, c->args.group.part));
}
uint64_t operand_means_bytes(const op_call *c) {
    return passes_means_bytes(c->job, passes_group(c->job->model, c->args.group.part));
}
/* After pass k, of all ranks. */
uint64_t operand_pieces_bytes(const op_call *c) {
    uint32_t k = c->op->code == OP_TURN ? c->args.group.pass - 1 : c->args.group.pass;
    return passes_pieces_bytes(c->job, passes_group(c->job->model, c->args.group.part), k);
}

static double tile_elements(const op_call *c) {
    return (double)own_tile(c->job, c->args.update.part, c->args.update.tile).n;
}
static double group_bytes(const op_call *c) { /* a few operations in double for each sum */
    return (double)totals_bytes(c);
}

enum { R = TM_USE_READ, W = TM_USE_WRITE, U = TM_USE_UPDATE };

const op_row ops_update_rows[OP_CODES] = {
    [OP_UPDATE] = {"update", TM_ENGINE_CPU, OP_WHERE_UPDATED, OP_COST_UPDATE, OP_OF_TILE, .run = run_update,
                   .amount = tile_elements,
                   .operand = {{OPERAND_HI, U, .bytes = tile_bytes}, /* fp16: written, from the master */
                               {OPERAND_LO, U, .bytes = tile_bytes, .count = operand_is_kept},
                               {OPERAND_EXP_AVG, U, .bytes = tile_bytes, .count = operand_is_kept,
                                .fill = OP_FILL_POSITIVE},
                               {OPERAND_EXP_AVG_SQ, U, .bytes = tile_bytes, .count = operand_is_kept,
                                .fill = OP_FILL_POSITIVE}, /* has a root taken */
                               {OPERAND_GRADIENT, R, .bytes = gradient_bytes},
                               {OPERAND_STEP, R, .bytes = operand_step_bytes, .fill = OP_FILL_STEP},
                               {OPERAND_TOTALS, R, .bytes = totals_bytes, .count = has_totals, .fill = OP_FILL_ONES}}},
    [OP_SUMS] = {"sums", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_SUMS, OP_OF_TILE, .run = run_sums, .amount = tile_elements,
                 .operand = {{OPERAND_HI, R, .bytes = tile_bytes, .count = sums_read},
                             {OPERAND_LO, R, .bytes = tile_bytes, .count = sums_read},
                             {OPERAND_EXP_AVG_SQ, R, .bytes = tile_bytes, .count = sums_read, .fill = OP_FILL_POSITIVE},
                             {OPERAND_GRADIENT, R, .bytes = gradient_bytes},
                             {OPERAND_STEP, R, .bytes = operand_step_bytes, .fill = OP_FILL_STEP},
                             {OPERAND_TOTALS, U, .bytes = totals_bytes, .fill = OP_FILL_ONES}}},
    [OP_TURN] = {"turn", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_BYTES, OP_OF_PART, .run = run_turn, .amount = group_bytes,
                 .operand = {{OPERAND_STEP, R, .bytes = operand_step_bytes, .fill = OP_FILL_STEP},
                             {OPERAND_PIECES, R, .bytes = operand_pieces_bytes, .count = has_pieces},
                             {OPERAND_MEANS, U, .bytes = operand_means_bytes, .count = has_means},
                             {OPERAND_TOTALS, U, .bytes = totals_bytes}}},
    [OP_PACK_SUMS] = {"pack sums", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_BYTES, OP_OF_PART, .run = run_pack_sums,
                      .amount = group_bytes,
                      .operand = {{OPERAND_STEP, R, .bytes = operand_step_bytes, .fill = OP_FILL_STEP},
                                  {OPERAND_TOTALS, R, .bytes = totals_bytes},
                                  {OPERAND_PIECES, W, .bytes = operand_pieces_bytes}}},
};
