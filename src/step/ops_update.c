/* The update on resident pointers: a tile by its optimizer, and what an optimizer in passes adds up before. */
#include "step/ops_internal.h"
#include "step/passes.h"

/* ---- a tile ---------------------------------------------------------------------------------------------------- */

/* Its operands, from the tile's first element on. */
typedef struct update_tile {
    uint32_t part, pass;
    bool on_device;
    span at;
    void *hi, *lo, *m, *v;
    const char *g;
    double *totals; /* of its group; NULL: the optimizer has one pass */
} update_tile;

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

/* One run of elements with the same decay. On the device beside the host's operations, hence two counts. */
static void update_run(tm_job *job, const update_tile *t, uint64_t first, uint64_t n, bool plain) {
    uint64_t *nonfinite = t->on_device ? &job->step.device_nonfinite : &job->step.nonfinite;
    tm_optim_span x = span_of(job, t, first, n);
    const tm_optim_step *step = &job->step.result.update[job->part[t->part].small][plain];
    if (t->on_device && job->tiers.kernels)
        tm_optim_launch(job->tiers.kernels, step, &x, nonfinite);
    else
        *nonfinite += tm_optim_run(step, &x);
}

static bool is_plain(const tm_job *job, uint32_t tensor) {
    return job->step.no_decay && job->step.no_decay[tensor];
}

/* One run of elements of a tensor. */
static void pass_run(tm_job *job, const update_tile *t, const tm_segment *seg, uint64_t from, uint64_t n) {
    part_group g = passes_group(job->model, t->part);
    group_tensor tensor;
    uint32_t i = 0;
    while (passes_tensor(job, g, i, NULL, t->totals, &tensor) && tensor.tensor != seg->tensor) i++;
    tm_optim_span x = span_of(job, t, from - t->at.begin, n);
    x.first = seg->tensor_offset + (from - seg->part_offset);
    job->step.nonfinite +=
        tm_optim_pass(&job->step.result.update[0][is_plain(job, seg->tensor)], &tensor.x, t->pass, &x);
}

/* Segment by segment, so that each has its own decay and, in passes, its own tensor. */
static void run_segments(tm_job *job, const update_tile *t) {
    const tm_segment *seg = tm_model_part_segments(job->model, t->part);
    for (uint32_t i = 0; i < tm_model_part(job->model, t->part)->n_segments; i++) {
        uint64_t from = tm_max_u64(seg[i].part_offset, t->at.begin),
                 to = tm_min_u64(seg[i].part_offset + seg[i].elements, t->at.begin + t->at.n);
        if (from >= to) continue;
        if (t->totals)
            pass_run(job, t, &seg[i], from, to - from);
        else
            update_run(job, t, from - t->at.begin, to - from, is_plain(job, seg[i].tensor));
    }
}

/* Where the tile's gradient begins: `whole`: in that of the part. */
static const char *gradient_at(const tm_job *job, const update_tile *t, const void *gradient, bool whole) {
    uint64_t into = whole ? t->at.begin - own_run(job, t->part).begin : 0;
    return (const char *)gradient + into * tm_dtype_bytes(job->dtype);
}

tm_status ops_update(tm_job *job, const tm_op *op, operands o) {
    const part_state *ps = &job->part[op->arg[0]];
    update_tile t = {.part = op->arg[0],
                     .at = own_tile(job, op->arg[0], op->arg[1]),
                     .pass = job->update->passes - 1,
                     .on_device = op->tier == TM_TIER_DEVICE,
                     .hi = next_operand(&o)};
    if (ps->lo != TM_NO_OBJECT) t.lo = next_operand(&o);
    if (ps->exp_avg != TM_NO_OBJECT) t.m = next_operand(&o);
    if (ps->exp_avg_sq != TM_NO_OBJECT) t.v = next_operand(&o);
    t.g = gradient_at(job, &t, next_operand(&o), op->arg[2]);
    (void)next_operand(&o); /* the step's */
    if (job_updates_in_passes(job)) t.totals = next_operand(&o);
    if (!job->step.result.finite) { /* skipped: everything stays, or is made of what stays */
        if (job->dtype == TM_F16) tm_grad_round_f16(t.lo, t.hi, t.at.n);
        return TM_OK;
    }
    if (job->step.no_decay || t.totals)
        run_segments(job, &t);
    else
        update_run(job, &t, 0, t.at.n, false);
    return TM_OK;
}

/* ---- in passes ------------------------------------------------------------------------------------------------- */

tm_status ops_sums(tm_job *job, const tm_op *op, operands o) {
    const part_state *ps = &job->part[op->arg[0]];
    update_tile t = {.part = op->arg[0], .at = own_tile(job, op->arg[0], op->arg[1]), .pass = op->arg[2]};
    if (passes_read_weights(job, t.pass)) {
        if (job->dtype != TM_F16) t.hi = next_operand(&o);
        if (ps->lo != TM_NO_OBJECT) t.lo = next_operand(&o);
    }
    if (t.pass == 1 && ps->exp_avg_sq != TM_NO_OBJECT) t.v = next_operand(&o);
    t.g = gradient_at(job, &t, next_operand(&o), op->arg[3]);
    (void)next_operand(&o); /* the step's */
    t.totals = next_operand(&o);
    if (job->step.result.finite) run_segments(job, &t);
    return TM_OK;
}

/* Before the first pass (0), after pass 0 (1), after pass 1 (2). */
tm_status ops_turn(tm_job *job, const tm_op *op, operands o) {
    part_group g = passes_group(job->model, op->arg[0]);
    uint32_t turn = op->arg[1];
    (void)next_operand(&o); /* the step's */
    double *pieces = turn > 0 && job->ranks.ranks > 1 ? next_operand(&o) : NULL;
    float *means = turn == 1 && job->part[g.first].means != TM_NO_OBJECT ? next_operand(&o) : NULL;
    double *totals = next_operand(&o);
    group_tensor t;
    if (!job->step.result.finite) return TM_OK;
    if (pieces) passes_unpack(job, g, turn - 1, pieces, totals);
    for (uint32_t i = 0; passes_tensor(job, g, i, means, totals, &t); i++) {
        const tm_optim_step *step = &job->step.result.update[0][is_plain(job, t.tensor)];
        if (turn == 0)
            tm_optim_begin(step, &t.x);
        else
            tm_optim_turn(step, &t.x, turn - 1);
    }
    return TM_OK;
}

tm_status ops_pack_sums(tm_job *job, const tm_op *op, operands o) {
    (void)next_operand(&o); /* the step's */
    double *totals = next_operand(&o);
    if (job->step.result.finite)
        passes_pack(job, passes_group(job->model, op->arg[0]), op->arg[1], totals, next_operand(&o));
    return TM_OK;
}
