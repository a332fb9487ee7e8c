/* What each operation does, on resident pointers. Operands come in the order in which build.c wrote the uses. */
#include "step/elastic.h"
#include "step/ops_internal.h"
#include "step/passes.h"

#include <math.h>
#include <string.h>

static tm_micro_batch micro_batch(const tm_job *job, uint32_t mb, uint32_t capacity, void *frame) {
    batch_view v = batch_at(frame, capacity);
    const job_batch *b = &job->step.batch[mb];
    return (tm_micro_batch){.rows = b->rows,
                            .seq = b->seq,
                            .tokens = b->tokens,
                            .ids = v.ids,
                            .labels = v.labels,
                            .label_row = v.label_row,
                            .label_rows = b->label_rows,
                            .key_mask = v.mask,
                            .position = job->kv ? v.position : NULL};
}

/* The head works on labelled tokens alone. Listed here: where it runs nobody may look into a batch. */
static void list_labels(const batch_view *v, job_batch *b) {
    b->label_rows = 0;
    for (uint32_t r = 0; r < b->rows * b->seq; r++)
        if (v->labels[r] >= 0) v->label_row[b->label_rows++] = r;
}

static tm_status do_batch(tm_job *job, const tm_op *op, operands o) {
    batch_view v = batch_at(next_operand(&o), op->arg[1]);
    job_batch *b = &job->step.batch[op->arg[0]];
    if (job->step.capacity != op->arg[1]) job->step.capacity = op->arg[1]; /* a device's thread may be reading it */
    TM_TRY(job->sinks.fill(job->sinks.fill_ctx, op->arg[0], op->arg[1], v.ids, v.labels, v.mask, v.position, b));
    list_labels(&v, b);
    return TM_OK;
}

static void take_slots(operands *o, const tm_slot_use *use, uint32_t n, tm_stage_args *a) {
    for (uint32_t i = 0; i < n; i++) *(use[i].grad ? &a->grad[use[i].slot] : &a->slot[use[i].slot]) = next_operand(o);
}

static tm_stage_args stage_args(const tm_job *job, const tm_op *op, const tm_micro_batch *batch) {
    return (tm_stage_args){.model = job->model,
                           .kernels = job->tiers.kernels,
                           .unit = op->arg[0],
                           .stage = op->arg[1],
                           .batch = batch,
                           .slot_fresh = op->arg[3] & 0xffff,
                           .grad_fresh = op->arg[3] >> 16};
}

static tm_status do_forward(tm_job *job, const tm_op *op, operands o) {
    const tm_unit *u = tm_model_unit(job->model, op->arg[0]);
    const tm_stage *stage = &u->stage[op->arg[1]];
    tm_micro_batch b = micro_batch(job, op->arg[2], job->step.capacity, next_operand(&o));
    if (b.rows == 0) return TM_OK;
    tm_stage_args a = stage_args(job, op, &b);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_forward[i]) a.weight[i] = next_operand(&o);
    take_slots(&o, stage->forward, stage->n_forward, &a);
    if (stage->uses_kv_cache && job->kv) {
        a.kv_cache = next_operand(&o);
        a.kv_capacity = job->kv_capacity;
    }
    if (op->flags & OP_KEPT_LOGITS) a.kept_logits = next_operand(&o);
    a.workspace = next_operand(&o);
    return tm_stage_forward(&a);
}

static tm_status do_backward(tm_job *job, const tm_op *op, operands o) {
    const tm_unit *u = tm_model_unit(job->model, op->arg[0]);
    const tm_stage *stage = &u->stage[op->arg[1]];
    __typeof__(tm_zero) *zero = (job->tiers.kernels ? job->tiers.kernels : tm_kernels_host())->zero;
    tm_micro_batch b = micro_batch(job, op->arg[2], job->step.capacity, next_operand(&o));
    tm_stage_args a = stage_args(job, op, &b);
    for (uint32_t i = 0; i < stage->n_parts; i++)
        if (stage->part_in_backward[i]) a.weight[i] = next_operand(&o);
    take_slots(&o, stage->backward, stage->n_backward, &a);
    if (u->kind == TM_UNIT_HEAD) a.coefficient = next_operand(&o);
    for (uint32_t i = 0; i < stage->n_parts; i++) {
        if (!stage->part_gradient[i]) continue;
        a.weight_grad[i] = next_operand(&o);
        a.weight_grad_fresh[i] = op->flags >> i & 1;
        /* a micro-batch that has no rows contributes nothing, but someone has to write first */
        if (b.rows == 0 && a.weight_grad_fresh[i])
            zero(a.weight_grad[i], tm_model_part(job->model, stage->part[i])->elements * sizeof(float));
    }
    if (b.rows == 0) return TM_OK;
    if (op->flags & OP_KEPT_LOGITS) a.kept_logits = next_operand(&o);
    a.workspace = next_operand(&o);
    return tm_stage_backward(&a);
}

/* Update B has no way back: what was updated before is a step ahead of what is left. */
static tm_status diverged(const tm_job *job, const char *what) {
    return tm_fail(TM_EIO,
                   "step %lld: %s is not finite, which an update inside backward cannot skip: the run stopped at the "
                   "last commit; lower learning_rate, or choose memory.update U or F",
                   (long long)job->step.result.number, what);
}

/* What the loss is multiplied by, so that fp16 has its gradients; 1 in other precisions. */
static double loss_scale(const tm_job *job) {
    return job->step.loss_scale > 0 ? job->step.loss_scale : 1;
}

/* Token-weighted cross-entropy: every label of the step has the coefficient 1 / (labels of the step), scaled. */
static tm_status do_objective(tm_job *job, const tm_op *op, operands o) {
    uint64_t labels = 0, tokens = 0;
    double sum = 0;
    for (uint32_t mb = 0; mb < op->arg[0]; mb++) {
        labels += job->step.batch[mb].label_tokens;
        tokens += job->step.batch[mb].mask_tokens;
    }
    if (job->ranks.ranks > 1) { /* the data say what the others have */
        labels = job->step.labels;
        tokens = job->step.tokens;
    }
    float each = labels ? (float)(loss_scale(job) / (double)labels) : 0;
    for (uint32_t mb = 0; mb < op->arg[0]; mb++) {
        tm_micro_batch b = micro_batch(job, mb, job->step.capacity, next_operand(&o));
        const void *state = next_operand(&o);
        float *coef = next_operand(&o);
        if (b.rows == 0) continue;
        tm_head_nll(&b, state, coef);
        double part = 0;
        for (uint32_t t = 0; t < b.tokens; t++) part += (double)coef[t];
        sum += part;
        if (job->sinks.take_nll) TM_TRY(job->sinks.take_nll(job->sinks.take_ctx, mb, &b, coef));
        for (uint32_t t = 0; t < b.tokens; t++) coef[t] = b.labels[t] >= 0 ? each : 0;
    }
    job->step.result.loss_sum = sum;
    job->step.result.label_tokens = labels;
    job->step.result.tokens = tokens;
    if (!op->arg[1]) return TM_OK;
    if (!isfinite(sum)) return diverged(job, "the loss");
    job->step.result.finite = true;
    job->step.result.clip = 1;
    state_prepare_step(job);
    return TM_OK;
}

static tm_status do_finish(tm_job *job, const tm_op *op, operands o) {
    span at = sum_tile(job, op->arg[0], op->arg[1]);
    const float *sum = (const float *)next_operand(&o) + at.begin;
    uint64_t into = op->arg[3] ? at.begin - own_run(job, op->arg[0]).begin : 0;
    char *g = (char *)next_operand(&o) + into * tm_dtype_bytes(job->dtype);
    double *partial = (double *)next_operand(&o) + (uint64_t)op->arg[1] * (TM_TILE_ELEMENTS / TM_NORM_BLOCK);
    if (job->tiers.kernels)
        job->tiers.kernels->grad_finish((tm_elem)job->dtype, sum, g, at.n, partial);
    else if (job->dtype == TM_F32)
        tm_grad_finish_f32(sum, (float *)(void *)g, at.n, partial);
    else if (job->dtype == TM_BF16)
        tm_grad_finish_bf16(sum, (uint16_t *)(void *)g, at.n, partial);
    else
        tm_grad_finish_f16(sum, (uint16_t *)(void *)g, at.n, partial);
    bool look = op->arg[2] && !job->tiers.kernels; /* elsewhere the update counts what is not finite */
    if (look && !isfinite(tm_sum_blocks(partial, tm_norm_block_count(at.n)))) return diverged(job, "a gradient");
    return TM_OK;
}

static tm_status do_norm(tm_job *job, const tm_op *op, operands o) {
    double sum = 0;
    if (job->ranks.ranks > 1)
        ops_read_reports(job, next_operand(&o), true, &sum);
    else
        for (uint32_t p = 0; p < tm_model_parts(job->model); p++)
            sum += tm_sum_blocks(next_operand(&o), tm_norm_block_count(job->part[p].elements));
    step_result *s = &job->step.result;
    s->grad_norm = sqrt(sum) / loss_scale(job); /* of the loss as it is */
    if (op->arg[0]) return TM_OK;               /* a device may be updating, by what the objective prepared */
    s->finite = isfinite(s->grad_norm) && isfinite(s->loss_sum);
    s->clip = tm_clip_factor(s->grad_norm, job->step.max_grad_norm) / loss_scale(job);
    if (s->finite) state_prepare_step(job); /* else the update is skipped: do_update leaves the state alone */
    return TM_OK;
}

/* ---- import -------------------------------------------------------------------------------------------------- */

static tm_status read_tensor(tm_job *job, uint32_t t, uint64_t first, uint64_t n, float *out) {
    const tm_tensor *tensor = tm_model_tensor(job->model, t);
    if (!job->source) {
        tm_model_init_values(job->model, t, job->seed, first, n, out);
        return TM_OK;
    }
    TM_TRY(tm_source_read_f32(job->source, job->source_tensor[t], first, n, out));
    uint64_t bad = tm_count_nonfinite(out, n);
    if (bad)
        return tm_fail(TM_EINPUT, "%s: %llu values of %s are not finite; the file is damaged or the model has diverged",
                       tm_source_path(job->source), (unsigned long long)bad, tensor->name);
    if (first + n == tensor->elements) tm_source_forget(job->source, job->source_tensor[t]);
    return TM_OK;
}

/* What fp16 has no value for would compute as infinity. */
static tm_status check_range(const tm_job *job, uint32_t t, const float *values, uint64_t n) {
    const float infinite = 65520; /* is rounded to it, and all that is larger */
    uint64_t large = 0;
    if (job->dtype != TM_F16) return TM_OK;
    for (uint64_t i = 0; i < n; i++) large += fabsf(values[i]) >= infinite;
    if (large == 0) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: %llu values of %s are beyond 65504, the largest of fp16; choose precision bf16",
                   job->opts.model, (unsigned long long)large, tm_model_tensor(job->model, t)->name);
}

/* Bit by bit what others wrote. */
static tm_status read_state(tm_job *job, uint32_t part, span at, void *hi, void *lo, void *m, void *v) {
    const tm_kind kind[] = {TM_KIND_WEIGHT_HI, TM_KIND_WEIGHT_LO, TM_KIND_EXP_AVG, TM_KIND_EXP_AVG_SQ};
    void *object[] = {hi, lo, m, v};
    for (size_t i = 0; i < TM_COUNT(kind); i++)
        if (object[i]) TM_TRY(elastic_read(job->opts.elastic, job, part, kind[i], at, object[i]));
    return TM_OK;
}

static tm_status do_import_means(tm_job *job, const tm_op *op, operands o) {
    uint64_t bytes = passes_means_bytes(job, passes_group(job->model, op->arg[0]));
    void *means = next_operand(&o);
    if (job->opts.elastic) return elastic_read_means(job->opts.elastic, op->arg[0], means, bytes);
    memset(means, 0, bytes);
    return TM_OK;
}

static tm_status do_import(tm_job *job, const tm_op *op, operands o) {
    const part_state *ps = &job->part[op->arg[0]];
    span at = hi_tile(job, op->arg[0], op->arg[1]);
    uint64_t begin = at.begin, n = at.n;
    bool own = op->arg[2];
    void *hi = next_operand(&o), *lo = own && ps->lo != TM_NO_OBJECT ? next_operand(&o) : NULL;
    void *m = own && ps->exp_avg != TM_NO_OBJECT ? next_operand(&o) : NULL;
    void *v = own && ps->exp_avg_sq != TM_NO_OBJECT ? next_operand(&o) : NULL;
    if (job->opts.elastic) return read_state(job, op->arg[0], at, hi, lo, m, v);
    bool apart = import_scratch_bytes(job, op->arg[0], n, own) > 0;
    bool plain = job->dtype == TM_F16 && lo; /* lo is the master */
    float *master = job->dtype == TM_F32 ? hi : apart ? next_operand(&o) : plain ? lo : m;
    if (!own && state_is_split(job)) lo = master + n; /* another rank's; rounded like there */
    const tm_segment *seg = tm_model_part_segments(job->model, op->arg[0]);
    for (uint32_t i = 0; i < tm_model_part(job->model, op->arg[0])->n_segments; i++) {
        uint64_t from = tm_max_u64(seg[i].part_offset, begin),
                 to = tm_min_u64(seg[i].part_offset + seg[i].elements, begin + n);
        if (from >= to) continue;
        TM_TRY(read_tensor(job, seg[i].tensor, seg[i].tensor_offset + (from - seg[i].part_offset), to - from,
                           master + (from - begin)));
        TM_TRY(check_range(job, seg[i].tensor, master + (from - begin), to - from));
    }
    if (job->dtype == TM_F16)
        tm_grad_round_f16(master, hi, n);
    else if (lo)
        tm_split_f32(master, hi, lo, n);
    else if (job->dtype == TM_BF16)
        tm_grad_round_bf16(master, hi, n); /* weights only: to nearest even, as everyone loads them */
    state_begin(job, op->arg[0], TM_KIND_EXP_AVG, m, n);
    state_begin(job, op->arg[0], TM_KIND_EXP_AVG_SQ, v, n);
    return TM_OK;
}

/* ---- what programs yield ------------------------------------------------------------------------------------- */

static tm_status do_logits(tm_job *job, const tm_op *op, operands o) {
    const tm_unit *u = tm_model_unit(job->model, op->arg[0]);
    const tm_stage *stage = &u->stage[op->arg[1]];
    tm_micro_batch b = micro_batch(job, op->arg[2], job->step.capacity, next_operand(&o));
    if (b.rows == 0) return TM_OK;
    tm_stage_args a = {.model = job->model, .unit = op->arg[0], .stage = op->arg[1], .batch = &b};
    a.weight[0] = next_operand(&o);
    a.slot[2] = next_operand(&o);
    float *logits = next_operand(&o);
    a.workspace = next_operand(&o);
    uint64_t h = tm_model_get_config(job->model)->hidden_size;
    const tm_segment *seg = tm_model_part_segments(job->model, stage->part[0]);
    uint64_t first = seg->tensor_offset / h, columns = seg->elements / h;
    float *base = logits - first; /* tm_head_logits writes columns by their global index */
    if (!op->arg[3]) {
        TM_TRY(tm_head_logits(&a, 0, b.tokens, base, columns));
        return job->sinks.take_logits(job->sinks.take_ctx, op->arg[2], 0, b.tokens, first, columns, logits, columns);
    }
    for (uint32_t r = 0; r < b.rows; r++) {
        uint32_t token = r * b.seq + job->step.last[r];
        TM_TRY(tm_head_logits(&a, token, 1, base + r * columns, columns));
    }
    return job->sinks.take_logits(job->sinks.take_ctx, op->arg[2], 0, b.rows, first, columns, logits, columns);
}

static tm_status do_take_grad(tm_job *job, const tm_op *op, operands o) {
    enum { CHUNK = 4096 };
    const float *sum = next_operand(&o);
    const tm_segment *seg = tm_model_part_segments(job->model, op->arg[0]);
    for (uint32_t i = 0; i < tm_model_part(job->model, op->arg[0])->n_segments; i++) {
        for (uint64_t at = 0; at < seg[i].elements; at += CHUNK) {
            uint64_t n = tm_min_u64(CHUNK, seg[i].elements - at);
            TM_TRY(job->sinks.take_values(job->sinks.take_ctx, seg[i].tensor, seg[i].tensor_offset + at, n,
                                          sum + seg[i].part_offset + at));
        }
    }
    return TM_OK;
}

/* The values of one tile's share of a segment as fp32. Returns how many, and where in the tensor they begin. */
static uint64_t tile_values(const tm_job *job, const tm_op *op, operands *o, float **values, uint64_t *first) {
    const tm_segment *s = &tm_model_tensor_segments(job->model, op->arg[0])[op->arg[1]];
    uint32_t ranks = job->ranks.ranks;
    span tile = held_tile(job->part[s->part].elements, ranks, (holding){0, ranks}, op->arg[2]);
    uint64_t begin = tile.begin;
    uint64_t from = tm_max_u64(s->part_offset, begin), to = tm_min_u64(s->part_offset + s->elements, begin + tile.n);
    tm_kind kind = walk_kind(job, (int)op->arg[3]);
    bool split = op->arg[3] == WHAT_MASTER && state_is_split(job);
    bool state = op->arg[3] == WHAT_EXP_AVG || op->arg[3] == WHAT_EXP_AVG_SQ;
    void *a = next_operand(o), *lo = split ? next_operand(o) : NULL;
    float *out = next_operand(o);
    uint64_t n = to - from, at = from - begin;
    *first = s->tensor_offset + (from - s->part_offset);
    *values = out;
    if (lo) {
        tm_join_f32((const uint16_t *)a + at, (const uint16_t *)lo + at, out, n);
    } else if (state) {
        *values = state_values(job, s->part, kind, a, tile.n, at, n, out);
    } else if (job->dtype != TM_F32 && kind == TM_KIND_WEIGHT_HI) {
        tm_fmt_decode(job->dtype == TM_BF16 ? TM_FMT_BF16 : TM_FMT_F16, (const uint16_t *)a + at, n, out);
    } else {
        *values = (float *)a + at;
    }
    return n;
}

static void hash_means(tm_job *job, uint32_t tensor, float *means) {
    part_group g = passes_group(job->model, tm_model_tensor_segments(job->model, tensor)->part);
    group_tensor t;
    for (uint32_t i = 0; passes_tensor(job, g, i, NULL, NULL, &t); i++)
        if (t.tensor == tensor) XXH3_128bits_update(job->hash, means + t.means_at, t.means * sizeof *means);
}

/* state_hash (DESIGN section 12): for each tensor its name, a zero byte, ndim, shape as u64, then the values. */
static tm_status do_hash(tm_job *job, const tm_op *op, operands o) {
    float *values;
    if (op->arg[3] == WHAT_MEANS) {
        hash_means(job, op->arg[0], next_operand(&o));
        return TM_OK;
    }
    uint64_t first, n = tile_values(job, op, &o, &values, &first);
    const tm_tensor *t = tm_model_tensor(job->model, op->arg[0]);
    if (op->arg[3] == WHAT_MASTER && first == 0) {
        uint64_t ndim = t->ndim;
        XXH3_128bits_update(job->hash, t->name, strlen(t->name) + 1);
        XXH3_128bits_update(job->hash, &ndim, sizeof ndim);
        XXH3_128bits_update(job->hash, t->shape, ndim * sizeof t->shape[0]);
    }
    XXH3_128bits_update(job->hash, values, n * sizeof *values);
    return TM_OK;
}

static tm_status do_export(tm_job *job, const tm_op *op, operands o) {
    float *values;
    uint64_t first;
    if (!job->sinks.take_values) return TM_OK; /* another rank writes it down */
    uint64_t n = tile_values(job, op, &o, &values, &first);
    return job->sinks.take_values(job->sinks.take_ctx, op->arg[0], first, n, values);
}

static tm_status run_op(tm_job *job, const tm_op *op, void *const *operand) {
    operands o = {operand};
    switch (op->code) {
    case OP_BATCH:
        return do_batch(job, op, o);
    case OP_FORWARD:
        return do_forward(job, op, o);
    case OP_BACKWARD:
        return do_backward(job, op, o);
    case OP_OBJECTIVE:
        return do_objective(job, op, o);
    case OP_FINISH:
        return do_finish(job, op, o);
    case OP_NORM:
        return do_norm(job, op, o);
    case OP_UPDATE:
        return ops_update(job, op, o);
    case OP_SUMS:
        return ops_sums(job, op, o);
    case OP_TURN:
        return ops_turn(job, op, o);
    case OP_PACK_SUMS:
        return ops_pack_sums(job, op, o);
    case OP_IMPORT:
        return do_import(job, op, o);
    case OP_MEANS:
        return do_import_means(job, op, o);
    case OP_LOGITS:
        return do_logits(job, op, o);
    case OP_TAKE_GRAD:
        return do_take_grad(job, op, o);
    case OP_HASH:
        return do_hash(job, op, o);
    case OP_PENDING:
        return TM_OK;
    case OP_REPORT:
        return ops_report(job, op, o);
    case OP_STASH:
        return ops_stash(job, op, o);
    case OP_LOSS:
        ops_read_reports(job, next_operand(&o), false, NULL);
        return TM_OK;
    case OP_EXPORT:
        return do_export(job, op, o);
    default:
        return tm_fail(TM_EBUG, "operation %u is not known", op->code);
    }
}

tm_status job_run_op(void *ctx, const tm_op *op, void *const *operand) {
    tm_job *job = ctx;
    bool heard = job->costs.hear && op->engine != TM_ENGINE_DEVICE; /* which is launched here: tm_exec_on_device_op */
    uint64_t t0 = heard ? tm_now_ns() : 0;
    tm_status rc = run_op(job, op, operand);
    if (heard && rc == TM_OK) job->costs.hear(job->costs.hear_ctx, op, (double)(tm_now_ns() - t0) * 1e-9);
    return rc;
}
