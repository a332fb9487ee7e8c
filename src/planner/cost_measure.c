/* One operation timed alone: its handler on operands of the right sizes, filled with numbers of sane magnitude. */
#include "planner/cost_table_internal.h"
#include "step/passes.h"

#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, LEAST_CALLS = 3 };
static const uint64_t EVICT_BYTES = 64 << 20; /* larger than most caches: operands come from memory, as in a step */
static const double LONG_SECONDS = 0.4;       /* of all calls: then three are enough, */
static const double VERY_LONG_SECONDS = 2;    /* and then what there is */
static const double UNEVEN = 1.5;             /* the longest call beside the shortest */
static const double DISTURBED = 0.05;         /* of that, while others had the processors */

typedef enum filling { FILL_VALUES, FILL_POSITIVE, FILL_BATCH, FILL_ONES /* in double */ } filling;
typedef cost_operands operand_list;

static void add(operand_list *l, uint64_t bytes, filling fill) {
    TM_ASSERT(l->n < COST_OPERANDS);
    l->at[l->n++] = (struct cost_operand){bytes, (uint8_t)fill};
}

/* ---- operands, in the order of build.c ----------------------------------------------------------------------- */

static void add_slots(operand_list *l, const tm_unit *u, const tm_slot_use *use, uint32_t n, uint64_t tokens) {
    for (uint32_t i = 0; i < n; i++) {
        const tm_slot *slot = &u->slot[use[i].slot];
        add(l, (use[i].grad ? slot->grad_bytes : slot->bytes) * tokens, FILL_VALUES);
    }
}

static void stage_operands(operand_list *l, const tm_job *job, const tm_op *op, const job_shape *shape) {
    bool backward = op->code == OP_BACKWARD;
    const tm_unit *u = tm_model_unit(job->model, op->arg[0]);
    const tm_stage *s = &u->stage[op->arg[1]];
    uint64_t tokens = shape_tokens(shape), width = tm_dtype_bytes(job->dtype);
    add(l, batch_bytes((uint32_t)tokens, shape->rows), FILL_BATCH);
    for (uint32_t i = 0; i < s->n_parts; i++)
        if (backward ? s->part_in_backward[i] : s->part_in_forward[i])
            add(l, job->part[s->part[i]].elements * width, FILL_VALUES);
    if (!backward) {
        add_slots(l, u, s->forward, s->n_forward, tokens);
    } else {
        add_slots(l, u, s->backward, s->n_backward, tokens);
        if (u->kind == TM_UNIT_HEAD) add(l, tokens * sizeof(float), FILL_VALUES);
        for (uint32_t i = 0; i < s->n_parts; i++)
            if (s->part_gradient[i]) add(l, job->part[s->part[i]].elements * sizeof(float), FILL_VALUES);
    }
    add(l, tm_stage_workspace(job->model, op->arg[0], op->arg[1], backward, shape->rows, shape->seq), FILL_VALUES);
}

static void tile_operands(operand_list *l, const tm_job *job, const tm_op *op) {
    const part_state *ps = &job->part[op->arg[0]];
    bool finish = op->code == OP_FINISH;
    uint64_t n = (finish ? sum_tile(job, op->arg[0], op->arg[1]) : own_tile(job, op->arg[0], op->arg[1])).n;
    uint64_t width = tm_dtype_bytes(job->dtype);
    if (finish) {
        add(l, n * sizeof(float), FILL_VALUES);
        add(l, n * width, FILL_VALUES);
        add(l, TM_TILE_ELEMENTS / TM_NORM_BLOCK * sizeof(double), FILL_VALUES);
        return;
    }
    bool sums = op->code == OP_SUMS, weights = !sums || passes_read_weights(job, op->arg[2]);
    if (weights && !(sums && job->dtype == TM_F16)) add(l, n * width, FILL_VALUES);
    if (weights && ps->lo != TM_NO_OBJECT) add(l, state_bytes(job, op->arg[0], TM_KIND_WEIGHT_LO, n), FILL_VALUES);
    if (!sums && ps->exp_avg != TM_NO_OBJECT) add(l, state_bytes(job, op->arg[0], TM_KIND_EXP_AVG, n), FILL_POSITIVE);
    if ((!sums || op->arg[2] == 1) && ps->exp_avg_sq != TM_NO_OBJECT) /* has a root taken */
        add(l, state_bytes(job, op->arg[0], TM_KIND_EXP_AVG_SQ, n), FILL_POSITIVE);
    add(l, n * width, FILL_VALUES);
    add(l, 64, FILL_VALUES);
    if (job_updates_in_passes(job)) add(l, passes_totals_bytes(job, passes_group(job->model, op->arg[0])), FILL_ONES);
}

/* ---- filling ------------------------------------------------------------------------------------------------- */

/* Pairs of 16-bit halves about 0.01 in magnitude: sane read as bf16 and as fp32, or as fp16 and (if tiny) as fp32. */
static void fill_values(void *p, uint64_t bytes, bool positive, bool f16) {
    enum { BLOCK = 16384 };
    uint16_t block[BLOCK];
    uint32_t x = 2463534242U;
    for (size_t i = 0; i < BLOCK; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        block[i] = (uint16_t)((f16 ? 0x2000U : 0x3C00U) | (x & 0xFFU) | (positive ? 0 : x & 0x8000U));
    }
    for (uint64_t at = 0; at < bytes; at += sizeof block)
        memcpy((char *)p + at, block, tm_min_u64(sizeof block, bytes - at));
}

static void fill_batch(const tm_job *job, void *frame, const job_shape *shape) {
    uint32_t tokens = shape_tokens(shape), vocab = tm_model_get_config(job->model)->vocab_size;
    batch_view v = batch_at(frame, tokens);
    for (uint32_t i = 0; i < tokens; i++) {
        v.ids[i] = (int32_t)((uint64_t)i * 7919 % vocab);
        v.labels[i] = (int32_t)((uint64_t)i * 104729 % vocab);
        v.mask[i] = 1;
        v.label_row[i] = i;
    }
    memset(v.position, 0, shape->rows * sizeof *v.position);
}

static void fill_one(const operand_list *l, const struct cost_operand *o, void *frame) {
    if (o->fill == FILL_BATCH)
        fill_batch(l->job, frame, &l->shape);
    else if (o->fill == FILL_ONES)
        for (uint64_t k = 0; k < o->bytes / sizeof(double); k++) ((double *)frame)[k] = 1;
    else
        fill_values(frame, o->bytes, o->fill == FILL_POSITIVE, l->job->dtype == TM_F16);
}

void cost_operands_fill(const cost_operands *o, void *frames, uint64_t offset[COST_OPERANDS]) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        offset[i] = at;
        fill_one(o, &o->at[i], (char *)frames + at);
        at += tm_round_up(o->at[i].bytes, TM_FRAME_ALIGN);
    }
}

bool cost_operands_of(cost_operands *out, const tm_job *job, const tm_op *op, const job_shape *shape) {
    *out = (cost_operands){.job = job, .shape = *shape};
    if (op->code == OP_FORWARD || op->code == OP_BACKWARD)
        stage_operands(out, job, op, shape);
    else if (cost_tile_of(op) < COST_TILES)
        tile_operands(out, job, op);
    else
        return false;
    for (uint32_t i = 0; i < out->n; i++) out->bytes += tm_round_up(out->at[i].bytes, TM_FRAME_ALIGN);
    return true;
}

/* ---- timing -------------------------------------------------------------------------------------------------- */

/* A job that holds what handlers read beside their operands, without touching the real one. */
tm_job cost_stand_in(const cost_operands *o, job_batch *batch) {
    const job_shape *shape = &o->shape;
    tm_job j = *o->job;
    uint32_t used = shape->rows * shape->seq;
    *batch = (job_batch){.rows = shape->rows,
                         .seq = shape->seq,
                         .tokens = shape_tokens(shape),
                         .mask_tokens = used,
                         .label_tokens = used,
                         .label_rows = used};
    j.tiers.kernels = NULL; /* the host's */
    j.step.batch = batch;
    j.step.capacity = shape_tokens(shape);
    j.kv = NULL;
    j.step.no_decay = NULL;
    j.step.result = (step_result){.finite = true, .learning_rate = 1e-5, .number = 2, .clip = 1};
    state_prepare_step(&j);
    return j;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of a call: the middle of a few, after one that warms up (pages, a library's buffers and compiled code) and
 * counts for nothing unless it takes very long. Where other programs had the processors for a part of the time, or the
 * calls differ by half or more, the least: a team of threads waits for its last one, and what others do now they need
 * not do while this trains. */
static void time_calls(tm_job *job, const tm_op *op, void *const *operand, void *evict, uint64_t evict_bytes,
                       cost_timing *out) {
    double took[REPEATS];
    uint64_t delay = tm_run_delay_ns();
    int n = 0;
    for (int i = 0; i <= REPEATS && n < REPEATS; i++) {
        memset(evict, i, evict_bytes);
        uint64_t t0 = tm_now_ns();
        if (job_run_op(job, op, operand) != TM_OK) return;
        double s = (double)(tm_now_ns() - t0) * 1e-9;
        out->spent += s;
        if (i > 0 || s >= VERY_LONG_SECONDS) took[n++] = s;
        if (n > 0 && (out->spent >= VERY_LONG_SECONDS || (n >= LEAST_CALLS && out->spent >= LONG_SECONDS))) break;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    out->disturbed =
        (double)(tm_run_delay_ns() - delay) * 1e-9 > DISTURBED * out->spent || took[n - 1] > UNEVEN * took[0];
    out->seconds = out->disturbed ? took[0] : took[(n - 1) / 2];
}

bool cost_measure(const tm_job *job, const tm_op *op, const job_shape *shape, uint64_t budget, cost_timing *out) {
    operand_list l;
    void *operand[COST_OPERANDS];
    uint64_t offset[COST_OPERANDS];
    job_batch batch;
    if (!cost_operands_of(&l, job, op, shape)) return false;
    uint64_t bytes = l.bytes + (uint64_t)TM_FRAME_ALIGN * (l.n + 1);
    if (bytes >= budget) return false;
    uint64_t evict_bytes = tm_min_u64(EVICT_BYTES, budget - bytes);
    char *arena = tm_malloc(bytes), *evict = tm_malloc(evict_bytes);
    *out = (cost_timing){.seconds = 0};
    if (arena && evict) {
        char *frames = arena + TM_FRAME_ALIGN - (uintptr_t)arena % TM_FRAME_ALIGN;
        cost_operands_fill(&l, frames, offset);
        for (uint32_t i = 0; i < l.n; i++) operand[i] = frames + offset[i];
        tm_job j = cost_stand_in(&l, &batch);
        time_calls(&j, op, operand, evict, evict_bytes, out);
        tm_error_clear();
    }
    tm_free(arena);
    tm_free(evict);
    return out->seconds > 0;
}
