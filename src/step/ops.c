/* What a pass over the model does, on resident pointers: batches, stages, the objective, gradients that are complete. */
#include "step/ops_internal.h"

#include <math.h>
#include <string.h>

/* What is drawn by chance differs with the step, the rank, the micro-batch and its batch, and with nothing else. */
static uint64_t draw_of(const op_call *c, uint32_t batch) {
    return ((uint64_t)c->step->number * c->job->ranks.ranks + c->job->ranks.rank) << 20 | batch;
}

static job_columns columns_of(const op_call *c, uint32_t batch, void *frame) {
    const job_batch *b = &c->step->batch[batch];
    return job_columns_at(c->job, frame, b->capacity, b->row_capacity);
}

/* The lane's batch, whose columns lie in `frame`. */
static tm_micro_batch micro_batch(const op_call *c, uint32_t lane, void *frame) {
    uint32_t batch = job_batch_index(c->job, lane);
    const job_batch *b = &c->step->batch[batch];
    job_columns v = columns_of(c, batch, frame);
    return (tm_micro_batch){.rows = b->rows,
                            .seq = b->seq,
                            .tokens = b->tokens,
                            .ids = v.ids,
                            .labels = v.labels,
                            .label_row = v.label_row,
                            .label_rows = b->label_rows,
                            .key_mask = v.mask,
                            .begin = v.begin,
                            .exact = c->job->opts.as_stored && tm_gemm_rows_alone(),
                            .bare = (c->op->flags & OP_BARE) != 0,
                            .training = (c->op->flags & OP_TRAINS) != 0,
                            .draw = draw_of(c, batch),
                            .position = c->kv ? v.position : NULL,
                            .cache_row = v.cache_row,
                            .cache_from = v.cache_from,
                            .decode = b->decode};
}

/* The head works on labelled tokens alone. Listed here: where it runs nobody may look into a batch. */
static void list_labels(const job_columns *v, job_batch *b) {
    b->label_rows = 0;
    for (uint32_t r = 0; r < b->rows * b->seq; r++)
        if (v->labels[r] >= 0) v->label_row[b->label_rows++] = r;
}

static tm_status run_batch(const op_call *c) {
    uint32_t mb = c->args.batch.micro_batch, batch = c->args.batch.batch;
    job_batch *b = &c->step->batch[mb * c->job->n_batches + batch];
    job_columns v = job_columns_at(c->job, op_operand(c, OPERAND_BATCH), c->args.batch.capacity, c->args.batch.rows);
    uint64_t began = tm_now_ns();
    TM_TRY(c->job->sinks.fill(c->job->sinks.fill_ctx, mb, batch, &v, b));
    c->step->data_ns += tm_now_ns() - began;
    b->capacity = v.capacity;
    b->row_capacity = v.rows;
    list_labels(&v, b);
    return TM_OK;
}

/* ---- stages -------------------------------------------------------------------------------------------------- */

static bool is_backward(const op_call *c) {
    return c->op->code == OP_BACKWARD;
}
static const tm_unit *unit_of(const op_call *c) {
    return tm_model_unit(c->job->model, c->args.stage.unit);
}
static const tm_stage *stage_of(const op_call *c) {
    return &unit_of(c)->stage[c->args.stage.stage];
}

/* Slots and weights that an operation of the stage uses. */
static const tm_slot_use *slots_of(const op_call *c, uint32_t *n) {
    const tm_stage *s = stage_of(c);
    *n = is_backward(c) ? s->n_backward : s->n_forward;
    return is_backward(c) ? s->backward : s->forward;
}
static bool reads_part(const op_call *c, uint32_t i) {
    return is_backward(c) ? stage_of(c)->part_in_backward[i] : stage_of(c)->part_in_forward[i];
}
static bool has_gradient(const op_call *c, uint32_t i) {
    return stage_of(c)->part_gradient[i];
}

static void take_slots(const op_call *c, tm_stage_args *a) {
    uint32_t n;
    const tm_slot_use *use = slots_of(c, &n);
    void *const *slot = op_operands(c, OPERAND_SLOT);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = c->args.stage.fresh >> i & 1;
        *(use[i].grad ? &a->grad[use[i].slot] : &a->slot[use[i].slot]) = slot[i];
        *(use[i].grad ? &a->grad_fresh : &a->slot_fresh) |= first << use[i].slot;
    }
}

const void *op_weight(const tm_job *job, uint32_t part, const void *frame) {
    bool gathered = part_is_gathered(job, &job->part[part]);
    return (const char *)frame + (gathered ? 0 : weight_shift(job, part));
}

static const void *scales_at(const op_call *c, const frozen_piece *f, uint32_t range) {
    return range < f->n_ranges ? (const char *)op_operand_at(c, OPERAND_SCALES, range - 1) + f->shift[range] : NULL;
}

const tm_packed *op_packed(const op_call *c, const void *weight, tm_packed *room) {
    const part_state *s = &c->job->part[stage_of(c)->part[0]];
    *room = s->packed;
    if (room->packing == TM_PACKED_NOT || !weight) return NULL;
    room->data = weight;
    if (room->packing != TM_PACKED_BITS4) return room;
    const frozen_piece *f = &c->job->frozen[s->first_piece];
    room->nf4.codes = weight;
    room->nf4.absmax = scales_at(c, f, 1);
    room->nf4.nested_absmax = scales_at(c, f, 2);
    return room;
}

/* What both directions take alike. */
static tm_stage_args stage_args(const op_call *c, const tm_micro_batch *batch) {
    tm_stage_args a = {.model = c->job->model,
                       .kernels = c->kernels,
                       .unit = c->args.stage.unit,
                       .stage = c->args.stage.stage,
                       .batch = batch,
                       .kept_logits = op_operand(c, OPERAND_LOGITS),
                       .workspace = op_operand(c, OPERAND_WORKSPACE)};
    void *const *weight = op_operands(c, OPERAND_WEIGHT);
    for (uint32_t i = 0; i < stage_of(c)->n_parts; i++)
        if (reads_part(c, i)) a.weight[i] = op_weight(c->job, stage_of(c)->part[i], *weight++);
    take_slots(c, &a);
    return a;
}

static tm_status run_forward(const op_call *c) {
    tm_micro_batch b = micro_batch(c, c->args.stage.lane, op_operand(c, OPERAND_BATCH));
    if (b.rows == 0) return TM_OK;
    tm_stage_args a = stage_args(c, &b);
    tm_packed packed;
    a.packed = op_packed(c, a.weight[0], &packed);
    a.kv_cache = op_operand(c, OPERAND_KV_CACHE);
    a.kv_capacity = a.kv_cache ? job_kv_positions(c->job, a.unit) : 0;
    return tm_stage_forward(&a);
}

static void zero_floats(const op_call *c, float *at, uint64_t n) {
    (c->kernels ? c->kernels : tm_kernels_host())->zero(at, n * sizeof *at);
}

/* Of a part of which some learns: what does not has no gradient, and never moves. */
static void clear_frozen(const op_call *c, uint32_t part, float *sum) {
    const tm_model *m = c->job->model;
    const tm_segment *seg = tm_model_part_segments(m, part);
    for (uint32_t i = 0; c->job->part[part].mixed && i < tm_model_part(m, part)->n_segments; i++)
        if (!tm_model_tensor(m, seg[i].tensor)->learns) zero_floats(c, sum + seg[i].part_offset, seg[i].elements);
}

static tm_status run_backward(const op_call *c) {
    const tm_stage *stage = stage_of(c);
    tm_micro_batch b = micro_batch(c, c->args.stage.lane, op_operand(c, OPERAND_BATCH));
    tm_stage_args a = stage_args(c, &b);
    tm_packed packed;
    a.packed = op_packed(c, a.weight[0], &packed);
    void *const *sum = op_operands(c, OPERAND_SUM);
    a.coefficient = op_operand(c, OPERAND_COEFFICIENT);
    for (uint32_t i = 0; i < stage->n_parts; i++) {
        if (!has_gradient(c, i)) continue;
        a.weight_grad[i] = *sum++;
        a.weight_grad_fresh[i] = c->op->flags >> i & 1;
        /* a micro-batch that has no rows contributes nothing, but someone has to write first */
        if (b.rows == 0 && a.weight_grad_fresh[i])
            zero_floats(c, a.weight_grad[i], tm_model_part(c->job->model, stage->part[i])->elements);
    }
    if (b.rows) TM_TRY(tm_stage_backward(&a));
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (has_gradient(c, i)) clear_frozen(c, stage->part[i], a.weight_grad[i]);
    return TM_OK;
}

/* ---- objective, gradients, norm ------------------------------------------------------------------------------ */

tm_status ops_diverged(const op_call *c, const char *what) {
    return tm_fail(TM_EIO,
                   "step %lld: %s is not finite, which an update inside backward cannot skip: the run stopped at the "
                   "last commit; lower learning_rate, or choose memory.update U or F",
                   (long long)c->step->number, what);
}

/* What the loss is multiplied by, so that fp16 has its gradients; 1 in other precisions. */
static double loss_scale(const op_call *c) {
    return c->step->loss_scale > 0 ? c->step->loss_scale : 1;
}

/* With ranks the data say what all of them have. */
static void count_tokens(const op_call *c) {
    job_step *step = c->step;
    if (c->job->ranks.ranks > 1) return;
    step->labels = step->tokens = step->samples = 0;
    for (uint32_t mb = 0; mb < c->args.objective.micro_batches; mb++) {
        const job_batch *b = &step->batch[mb * c->job->n_batches];
        step->labels += b->label_tokens;
        step->tokens += b->mask_tokens;
        step->samples += b->samples;
    }
}

/* What the update is made of, from this step on. */
static void set_update(const op_call *c, step_frame *f, bool finite, double clip) {
    f->number = c->step->number;
    f->learning_rate = c->step->learning_rate;
    f->beta1 = c->job->update_opts.beta1;
    f->beta2 = c->job->update_opts.beta2;
    f->finite = finite;
    f->clip = clip;
}

/* The lanes of a micro-batch, with whose batches `batch` has room; false: nothing was left for it. */
static bool objective_lanes(const op_call *c, uint32_t mb, tm_micro_batch batch[TM_LANES], objective_batch *out) {
    const tm_job *job = c->job;
    *out = (objective_batch){0};
    for (uint32_t i = 0; i < job->n_lanes; i++) {
        uint32_t lane = mb * job->n_lanes + i;
        void *frame = op_operand_at(c, OPERAND_BATCH, lane);
        job_columns v = columns_of(c, job_batch_index(job, lane), frame);
        batch[i] = micro_batch(c, lane, frame);
        out->lane[job->lane[i]] = (objective_lane){
            .batch = &batch[i],
            .nll = op_operand_at(c, OPERAND_COEFFICIENT, lane),
            .completion = v.completion,
            .desirable = v.desirable,
            .reference = v.reference,
            .state = c->args.objective.phase == OBJECTIVE_REST ? NULL : op_operand_at(c, OPERAND_SLOT, lane)};
    }
    return batch[0].rows > 0;
}

/* Frames of coefficients hold the log-likelihoods first. */
static tm_status take_likelihoods(const op_call *c) {
    const job_sinks *sinks = &c->job->sinks;
    for (uint32_t lane = 0; lane < c->args.objective.micro_batches * c->job->n_lanes; lane++) {
        tm_micro_batch b = micro_batch(c, lane, op_operand_at(c, OPERAND_BATCH, lane));
        float *nll = op_operand_at(c, OPERAND_COEFFICIENT, lane);
        if (b.rows == 0) continue;
        tm_head_nll(&b, op_operand_at(c, OPERAND_SLOT, lane), nll);
        if (sinks->take_nll) TM_TRY(sinks->take_nll(sinks->take_ctx, lane, &b, nll));
    }
    return TM_OK;
}

/* What this rank has of the sums that the objective needs of the whole step. */
static void share_sums(const op_call *c, objective_step *s) {
    tm_micro_batch batch[TM_LANES];
    objective_batch b;
    if (!tm_objective_shares(c->job->objective, &c->job->objective_spec)) return;
    for (uint32_t mb = 0; mb < c->args.objective.micro_batches; mb++)
        if (objective_lanes(c, mb, batch, &b)) c->job->objective->share(s, &b, s->shared);
}

static void run_objectives(const op_call *c, const objective_step *s, step_frame *f) {
    tm_micro_batch batch[TM_LANES];
    objective_batch b;
    f->loss_sum = 0;
    memset(f->sum, 0, sizeof f->sum);
    for (uint32_t mb = 0; mb < c->args.objective.micro_batches; mb++)
        if (objective_lanes(c, mb, batch, &b)) f->loss_sum += c->job->objective->run(s, &b, f->sum);
}

static tm_status run_objective(const op_call *c) {
    job_step *step = c->step;
    step_frame *f = op_operand(c, OPERAND_STEP);
    uint32_t phase = c->args.objective.phase;
    count_tokens(c);
    objective_step s = {
        .spec = &c->job->objective_spec, .labels = step->labels, .samples = step->samples, .scale = loss_scale(c)};
    if (phase == OBJECTIVE_REST) {
        ops_read_shared(c, s.shared);
    } else {
        TM_TRY(take_likelihoods(c));
        share_sums(c, &s);
        *f = step->result; /* all of the frame is written; update F: it is that already */
    }
    memcpy(f->shared, s.shared, sizeof f->shared);
    if (phase == OBJECTIVE_SHARE) return TM_OK;
    run_objectives(c, &s, f);
    if (c->args.objective.within) set_update(c, f, true, 1);
    step->result = *f;
    return c->args.objective.within && !isfinite(f->loss_sum) ? ops_diverged(c, "the loss") : TM_OK;
}

static tm_status run_finish(const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.finish.part, tile = c->args.finish.tile;
    span at = sum_tile(job, part, tile);
    const float *sum = (const float *)op_operand(c, OPERAND_SUM) + at.begin;
    uint64_t into = c->args.finish.whole ? at.begin - own_run(job, part).begin : 0;
    char *g = (char *)op_operand(c, OPERAND_GRADIENT) + into * tm_dtype_bytes(job->dtype);
    double *partial = (double *)op_operand(c, OPERAND_PARTIAL) + (uint64_t)tile * NORM_BLOCKS;
    if (c->kernels)
        c->kernels->grad_finish((tm_elem)job->dtype, sum, g, at.n, partial);
    else if (job->dtype == TM_F32)
        tm_grad_finish_f32(sum, (float *)(void *)g, at.n, partial);
    else if (job->dtype == TM_BF16)
        tm_grad_finish_bf16(sum, (uint16_t *)(void *)g, at.n, partial);
    else
        tm_grad_finish_f16(sum, (uint16_t *)(void *)g, at.n, partial);
    bool look = c->args.finish.within && !c->kernels; /* elsewhere the update counts what is not finite */
    if (look && !isfinite(tm_sum_blocks(partial, tm_norm_block_count(at.n)))) return ops_diverged(c, "a gradient");
    return TM_OK;
}

static tm_status run_norm(const op_call *c) {
    const tm_job *job = c->job;
    void *const *partial = op_operands(c, OPERAND_PARTIAL);
    step_frame *f = op_operand(c, OPERAND_STEP), *result = &c->step->result;
    double sum = 0;
    if (job->ranks.ranks > 1) ops_read_reports(c, true, &sum);
    for (uint32_t p = 0; partial && p < tm_model_parts(job->model); p++)
        if (job->part[p].learns) sum += tm_sum_blocks(*partial++, tm_norm_block_count(job->part[p].elements));
    f->grad_norm = result->grad_norm = sqrt(sum) / loss_scale(c); /* of the loss as it is */
    if (c->args.norm.within) return TM_OK; /* a device may be updating, by what the objective published */
    set_update(c, f, isfinite(f->grad_norm) && isfinite(f->loss_sum),
               tm_clip_factor(f->grad_norm, c->step->max_grad_norm) / loss_scale(c));
    *result = *f;
    return TM_OK;
}

static tm_status run_pending(const op_call *c) {
    step_frame *f = op_operand(c, OPERAND_STEP);
    *f = c->step->result;
    return TM_OK;
}

/* ---- what programs yield ------------------------------------------------------------------------------------- */

static uint64_t vocabulary_rows(const op_call *c) {
    const tm_segment *seg = tm_model_part_segments(c->job->model, stage_of(c)->part[0]);
    return seg->elements / tm_model_get_config(c->job->model)->hidden_size;
}

/* Columns of logits that are there. */
typedef struct logits_block {
    uint64_t first, columns;
    const float *at;
} logits_block;

/* Those that are wanted and lie near each other come from one product: of always as many rows, unless a row's bits are its
 * own. `base`: of column 0. */
static tm_status wanted_logits(const op_call *c, const tm_stage_args *a, float *base, const logits_block *l) {
    const job_sinks *sinks = &c->job->sinks;
    const uint32_t *wanted = c->step->wanted;
    for (uint32_t i = 0, end; i < c->step->n_wanted; i = end) {
        bool exact = a->batch->exact;
        uint32_t row = exact ? wanted[i] : (uint32_t)tm_min_u64(wanted[i], a->batch->tokens - LOGITS_ROWS);
        for (end = i; end < c->step->n_wanted && wanted[end] < row + LOGITS_ROWS;) end++;
        TM_TRY(tm_head_logits(a, row, exact ? wanted[end - 1] - row + 1 : LOGITS_ROWS, base, l->columns));
        for (; i < end; i++)
            TM_TRY(sinks->take_logits(sinks->take_ctx, 0, i, 1, l->first, l->columns,
                                      l->at + (wanted[i] - row) * l->columns, l->columns));
    }
    return TM_OK;
}

static tm_status run_logits(const op_call *c) {
    const tm_job *job = c->job;
    uint32_t mb = c->args.logits.lane / job->n_lanes;
    tm_micro_batch b = micro_batch(c, c->args.logits.lane, op_operand(c, OPERAND_BATCH));
    if (b.rows == 0) return TM_OK;
    tm_stage_args a = {.model = job->model, .unit = c->args.logits.unit, .stage = c->args.logits.stage, .batch = &b};
    const tm_stage *stage = stage_of(c);
    void *const *weight = op_operands(c, OPERAND_WEIGHT), *const *slot = op_operands(c, OPERAND_SLOT);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_forward[i]) a.weight[i] = op_weight(job, stage->part[i], *weight++);
    for (uint32_t i = 0; i < stage->n_forward; i++)
        if (stage->forward[i].access == TM_READ) a.slot[stage->forward[i].slot] = *slot++;
    tm_packed packed;
    a.packed = op_packed(c, a.weight[0], &packed);
    a.workspace = op_operand(c, OPERAND_WORKSPACE);
    float *logits = op_operand(c, OPERAND_LOGITS);
    uint64_t h = tm_model_get_config(job->model)->hidden_size, columns = vocabulary_rows(c);
    uint64_t first = tm_model_part_segments(job->model, stage_of(c)->part[0])->tensor_offset / h;
    float *base = logits - first; /* tm_head_logits writes columns by their global index */
    if (c->args.logits.wanted) return wanted_logits(c, &a, base, &(logits_block){first, columns, logits});
    TM_TRY(tm_head_logits(&a, 0, b.tokens, base, columns));
    return job->sinks.take_logits(job->sinks.take_ctx, mb, 0, b.tokens, first, columns, logits, columns);
}

static tm_status run_take_grad(const op_call *c) {
    enum { CHUNK = 4096 };
    const tm_job *job = c->job;
    const float *sum = op_operand(c, OPERAND_SUM);
    const tm_segment *seg = tm_model_part_segments(job->model, c->args.part.part);
    for (uint32_t i = 0; i < tm_model_part(job->model, c->args.part.part)->n_segments; i++) {
        if (!tm_model_tensor(job->model, seg[i].tensor)->learns) continue;
        for (uint64_t at = 0; at < seg[i].elements; at += CHUNK) {
            uint64_t n = tm_min_u64(CHUNK, seg[i].elements - at);
            TM_TRY(job->sinks.take_values(job->sinks.take_ctx, seg[i].tensor, seg[i].tensor_offset + at, n,
                                          sum + seg[i].part_offset + at));
        }
    }
    return TM_OK;
}

/* ---- how many operands, and their bytes ---------------------------------------------------------------------- */

static uint64_t width_of(const op_call *c) {
    return tm_dtype_bytes(c->job->dtype);
}

/* Index in the stage of the i-th of its parts that are read (`gradient`: that get one); n_parts: there are fewer. */
static uint32_t nth_part(const op_call *c, uint32_t n, bool gradient) {
    uint32_t i = 0;
    for (; i < stage_of(c)->n_parts; i++)
        if ((gradient ? has_gradient(c, i) : reads_part(c, i)) && n-- == 0) return i;
    return i;
}
static uint32_t count_parts(const op_call *c, bool gradient) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < stage_of(c)->n_parts; i++) n += gradient ? has_gradient(c, i) : reads_part(c, i);
    return n;
}
static uint32_t count_weights(const op_call *c) {
    return count_parts(c, false);
}
static uint32_t count_gradients(const op_call *c) {
    return count_parts(c, true);
}
static uint32_t count_slots(const op_call *c) {
    uint32_t n;
    (void)slots_of(c, &n);
    return n;
}
static uint32_t count_read_slots(const op_call *c) { /* of the head's forward */
    uint32_t n = 0;
    for (uint32_t i = 0; i < stage_of(c)->n_forward; i++) n += stage_of(c)->forward[i].access == TM_READ;
    return n;
}
static uint32_t has_kv_cache(const op_call *c) {
    return stage_of(c)->uses_kv_cache && c->kv;
}
static uint32_t has_kept_logits(const op_call *c) {
    return (c->op->flags & OP_KEPT_LOGITS) != 0;
}
static uint32_t has_coefficient(const op_call *c) {
    return unit_of(c)->kind == TM_UNIT_HEAD;
}
static uint32_t count_lanes(const op_call *c) {
    return c->args.objective.micro_batches * c->job->n_lanes;
}
static uint32_t has_shared(const op_call *c) {
    return c->args.objective.phase == OBJECTIVE_REST;
}
static uint32_t has_reports(const op_call *c) {
    return c->job->ranks.ranks > 1;
}
static uint32_t count_partials(const op_call *c) {
    uint32_t n = 0;
    for (uint32_t p = 0; c->job->ranks.ranks == 1 && p < tm_model_parts(c->job->model); p++)
        n += c->job->part[p].learns;
    return n;
}

static uint64_t batch_frame_bytes(const op_call *c) {
    return job_columns_bytes(c->job, shape_tokens(c->shape), c->shape->rows);
}
static uint64_t weight_bytes(const op_call *c) {
    uint32_t part = stage_of(c)->part[nth_part(c, c->i, false)];
    const part_state *s = &c->job->part[part];
    if (s->packed.packing != TM_PACKED_NOT) return frozen_range_bytes(c->job, &c->job->frozen[s->first_piece], 0);
    return s->elements * width_of(c) + (part_is_gathered(c->job, s) ? 0 : weight_shift(c->job, part));
}
static uint32_t count_scales(const op_call *c) {
    return reads_part(c, 0) ? frozen_scales(c->job, stage_of(c)->part[0]) : 0;
}
static uint64_t scales_bytes(const op_call *c) {
    const part_state *s = &c->job->part[stage_of(c)->part[0]];
    return frozen_range_bytes(c->job, &c->job->frozen[s->first_piece], c->i + 1);
}
static uint64_t slot_bytes(const op_call *c) {
    uint32_t n;
    const tm_slot_use *use = slots_of(c, &n) + c->i;
    const tm_slot *slot = &unit_of(c)->slot[use->slot];
    return (uint64_t)(use->grad ? slot->grad_bytes : slot->bytes) * shape_tokens(c->shape);
}
static uint64_t token_bytes(const op_call *c) { /* a float each */
    return (uint64_t)shape_tokens(c->shape) * sizeof(float);
}
static uint64_t stage_sum_bytes(const op_call *c) {
    return c->job->part[stage_of(c)->part[nth_part(c, c->i, true)]].elements * sizeof(float);
}
static uint64_t kept_logits_bytes(const op_call *c) {
    return tm_head_kept_bytes(c->job->model, c->args.stage.unit, c->args.stage.stage, c->shape->rows, c->shape->seq);
}
static uint64_t workspace_bytes(const op_call *c) {
    return tm_stage_workspace(c->job->model, c->args.stage.unit, c->args.stage.stage, is_backward(c), c->shape->rows,
                              c->shape->seq);
}
static uint64_t logits_bytes(const op_call *c) {
    return (c->args.logits.wanted ? LOGITS_ROWS : (uint64_t)shape_tokens(c->shape)) * vocabulary_rows(c) *
           sizeof(float);
}
static uint64_t finish_sum_bytes(const op_call *c) {
    span at = sum_tile(c->job, c->args.finish.part, c->args.finish.tile);
    return (at.begin + at.n) * sizeof(float);
}
static uint64_t finish_gradient_bytes(const op_call *c) {
    span at = sum_tile(c->job, c->args.finish.part, c->args.finish.tile);
    uint64_t into = c->args.finish.whole ? at.begin - own_run(c->job, c->args.finish.part).begin : 0;
    return (into + at.n) * width_of(c);
}
static uint64_t finish_partial_bytes(const op_call *c) {
    return (uint64_t)(c->args.finish.tile + 1) * NORM_BLOCKS * sizeof(double);
}
uint64_t operand_sum_bytes(const op_call *c) {
    return c->job->part[c->args.part.part].elements * sizeof(float);
}
uint64_t operand_partial_bytes(const op_call *c) {
    uint32_t part = 0, i = c->i;
    while (c->job->part[part].sum_tiles == 0 || i-- > 0) part++;
    return (uint64_t)c->job->part[part].sum_tiles * NORM_BLOCKS * sizeof(double);
}
uint64_t operand_step_bytes(const op_call *c) {
    (void)c;
    return STEP_FRAME_BYTES;
}

static double finish_elements(const op_call *c) {
    return (double)sum_tile(c->job, c->args.finish.part, c->args.finish.tile).n;
}
static double one_micro_batch(const op_call *c) {
    (void)c;
    return 1;
}
static double all_micro_batches(const op_call *c) {
    return c->args.objective.micro_batches;
}

/* ---- rows ---------------------------------------------------------------------------------------------------- */

enum { R = TM_USE_READ, W = TM_USE_WRITE, U = TM_USE_UPDATE, AS_THE_STAGE = 0 };

const op_row ops_model_rows[OP_CODES] = {
    [OP_BATCH] = {"batch", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_TOKENS, OP_OF_BATCH, .run = run_batch,
                  .amount = one_micro_batch, .operand = {{OPERAND_BATCH, W, .bytes = batch_frame_bytes}}},
    [OP_FORWARD] = {"forward", TM_ENGINE_CPU, OP_ON_DEVICE, OP_COST_STAGE, OP_OF_STAGE, .run = run_forward,
                    .operand = {{OPERAND_BATCH, R, .bytes = batch_frame_bytes, .fill = OP_FILL_BATCH},
                                {OPERAND_WEIGHT, R, .bytes = weight_bytes, .count = count_weights},
                                {OPERAND_SCALES, R, .bytes = scales_bytes, .count = count_scales},
                                {OPERAND_SLOT, AS_THE_STAGE, .bytes = slot_bytes, .count = count_slots},
                                {OPERAND_KV_CACHE, U, .count = has_kv_cache},
                                {OPERAND_LOGITS, W, .bytes = kept_logits_bytes, .count = has_kept_logits},
                                {OPERAND_WORKSPACE, W, .bytes = workspace_bytes}}},
    [OP_BACKWARD] = {"backward", TM_ENGINE_CPU, OP_ON_DEVICE, OP_COST_STAGE, OP_OF_STAGE, .run = run_backward,
                     .operand = {{OPERAND_BATCH, R, .bytes = batch_frame_bytes, .fill = OP_FILL_BATCH},
                                 {OPERAND_WEIGHT, R, .bytes = weight_bytes, .count = count_weights},
                                 {OPERAND_SCALES, R, .bytes = scales_bytes, .count = count_scales},
                                 {OPERAND_SLOT, AS_THE_STAGE, .bytes = slot_bytes, .count = count_slots},
                                 {OPERAND_COEFFICIENT, R, .bytes = token_bytes, .count = has_coefficient},
                                 {OPERAND_SUM, U, .bytes = stage_sum_bytes, .count = count_gradients},
                                 {OPERAND_LOGITS, U, .bytes = kept_logits_bytes, .count = has_kept_logits},
                                 {OPERAND_WORKSPACE, W, .bytes = workspace_bytes}}},
    [OP_OBJECTIVE] = {"objective", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_TOKENS, OP_OF_ALL, .run = run_objective,
                      .amount = all_micro_batches,
                      .operand = {{OPERAND_BATCH, R, .bytes = batch_frame_bytes, .count = count_lanes, .turns = 3},
                                  {OPERAND_SLOT, .access = R},
                                  {OPERAND_COEFFICIENT, U, .bytes = token_bytes},
                                  {OPERAND_REPORTS, R, .bytes = operand_reports_bytes, .count = has_shared},
                                  {OPERAND_STEP, U, .bytes = operand_step_bytes}}},
    [OP_FINISH] = {"finish", TM_ENGINE_CPU, OP_ON_DEVICE, OP_COST_FINISH, OP_OF_TILE, .run = run_finish,
                   .amount = finish_elements,
                   .operand = {{OPERAND_SUM, R, .bytes = finish_sum_bytes},
                               {OPERAND_GRADIENT, U, .bytes = finish_gradient_bytes},
                               {OPERAND_PARTIAL, U, .bytes = finish_partial_bytes}}},
    [OP_NORM] = {"norm", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_ALL, .run = run_norm,
                 .operand = {{OPERAND_REPORTS, R, .bytes = operand_reports_bytes, .count = has_reports},
                             {OPERAND_PARTIAL, R, .bytes = operand_partial_bytes, .count = count_partials},
                             {OPERAND_STEP, U, .bytes = operand_step_bytes}}},
    [OP_LOGITS] = {"logits", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_STAGE, OP_OF_STAGE, .run = run_logits,
                   .operand = {{OPERAND_BATCH, R, .bytes = batch_frame_bytes},
                               {OPERAND_WEIGHT, R, .bytes = weight_bytes, .count = count_weights},
                               {OPERAND_SLOT, .access = R, .count = count_read_slots},
                               {OPERAND_LOGITS, W, .bytes = logits_bytes},
                               {OPERAND_WORKSPACE, W, .bytes = workspace_bytes}}},
    [OP_TAKE_GRAD] = {"take grad", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_ALL, .run = run_take_grad,
                      .operand = {{OPERAND_SUM, R, .bytes = operand_sum_bytes}}},
    [OP_PENDING] = {"pending", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_ALL, .run = run_pending,
                    .operand = {{OPERAND_STEP, W, .bytes = operand_step_bytes}}},
};
