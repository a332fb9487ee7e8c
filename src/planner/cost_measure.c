/* One operation timed alone: its handler on operands of the right sizes, filled with numbers of sane magnitude. */
#include "planner/cost_table_internal.h"
#include "job/job.h"

#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, LEAST_CALLS = 3 };
static const uint64_t EVICT_BYTES = 64 << 20; /* larger than most caches: operands come from memory, as in a step */
static const double LONG_SECONDS = 0.4;       /* of all calls: then three are enough, */
static const double VERY_LONG_SECONDS = 2;    /* and then what there is */
static const double UNEVEN = 1.5;             /* the longest call beside the shortest */
static const double DISTURBED = 0.05;         /* of that, while others had the processors */

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
    job_columns v = job_columns_at(job, frame, tokens, shape->rows);
    for (uint32_t i = 0; i < tokens; i++) {
        v.ids[i] = (int32_t)((uint64_t)i * 7919 % vocab);
        v.labels[i] = (int32_t)((uint64_t)i * 104729 % vocab);
        v.mask[i] = 1;
        v.label_row[i] = i;
    }
    memset(v.position, 0, shape->rows * sizeof *v.position);
    if (v.begin) memset(v.begin, 0, tokens * sizeof *v.begin);
    if (v.completion) memset(v.completion, 1, tokens);
    if (v.desirable) memset(v.desirable, 1, shape->rows);
    if (v.reference) memset(v.reference, 0, shape->rows * sizeof *v.reference);
}

static step_frame step_made_up(const tm_job *job) {
    return (step_frame){.finite = true,
                        .learning_rate = 1e-5,
                        .beta1 = job->update_opts.beta1,
                        .beta2 = job->update_opts.beta2,
                        .number = 2,
                        .clip = 1};
}

static void fill_one(const cost_operands *l, const struct cost_operand *o, void *frame) {
    if (o->fill == OP_FILL_BATCH)
        fill_batch(l->job, frame, &l->shape);
    else if (o->fill == OP_FILL_STEP)
        *(step_frame *)frame = step_made_up(l->job);
    else if (o->fill == OP_FILL_ONES)
        for (uint64_t k = 0; k < o->bytes / sizeof(double); k++) ((double *)frame)[k] = 1;
    else
        fill_values(frame, o->bytes, o->fill == OP_FILL_POSITIVE, l->job->dtype == TM_F16);
}

void cost_operands_fill(const cost_operands *o, void *frames, uint64_t offset[COST_OPERANDS]) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        offset[i] = at;
        fill_one(o, &o->at[i], (char *)frames + at);
        at += tm_round_up(o->at[i].bytes, TM_FRAME_ALIGN);
    }
}

static void add_operand(cost_operands *l, uint64_t bytes, uint8_t fill) {
    TM_ASSERT(l->n < COST_OPERANDS);
    l->at[l->n++] = (struct cost_operand){bytes, fill};
    l->bytes += tm_round_up(bytes, TM_FRAME_ALIGN);
}

bool cost_operands_of(cost_operands *out, const tm_job *job, const tm_op *op, const job_shape *shape) {
    op_call c = op_call_of(job, op);
    c.shape = shape;
    c.kv = NULL;
    *out = (cost_operands){.job = job, .shape = *shape};
    if (c.row->cost != OP_COST_STAGE && cost_tile_of(op) == COST_TILES) return false;
    for (const op_operand_row *o = c.row->operand; o->name != OPERAND_END; o++)
        for (uint32_t i = 0; i < op_count(&c, o); i++) add_operand(out, op_bytes(&c, o, i), o->fill);
    return true;
}

void cost_call_init(cost_call *c, const cost_operands *o, const tm_op *op) {
    const job_shape *shape = &o->shape;
    uint32_t used = shape->rows * shape->seq;
    c->batch = (job_batch){.rows = shape->rows,
                           .seq = shape->seq,
                           .tokens = shape_tokens(shape),
                           .mask_tokens = used,
                           .label_tokens = used,
                           .label_rows = shape->labels ? shape->labels : used,
                           .capacity = shape_tokens(shape),
                           .row_capacity = shape->rows};
    c->step = (job_step){.batch = &c->batch, .loss_scale = o->job->step.loss_scale, .result = step_made_up(o->job)};
    c->call = op_call_of(o->job, op);
    c->call.kv = NULL;
    c->call.step = &c->step;
    c->call.operand = c->operand;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of a call: the middle of a few, after one that warms up (pages, a library's buffers and compiled code) and
 * counts for nothing unless it takes very long. Where other programs had the processors for a part of the time, or the
 * calls differ by half or more, the least: a team of threads waits for its last one, and what others do now they need
 * not do while this trains. */
static void time_calls(const op_call *c, void *evict, uint64_t evict_bytes, cost_timing *out) {
    double took[REPEATS];
    uint64_t delay = tm_run_delay_ns();
    int n = 0;
    for (int i = 0; i <= REPEATS && n < REPEATS; i++) {
        memset(evict, i, evict_bytes);
        uint64_t t0 = tm_now_ns();
        if (c->row->run(c) != TM_OK) return;
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

/* What is decoded has to be there, of which a plan may only know how long it is. */
static bool is_there(const tm_job *job, const tm_op *op) {
    return op->code != OP_DECODE || frozen_is_there(job, &job->frozen[op_args_of(op).decode.piece]);
}

bool cost_measure(const tm_job *job, const tm_op *op, const job_shape *shape, uint64_t budget, cost_timing *out) {
    cost_operands l;
    cost_call c;
    uint64_t offset[COST_OPERANDS];
    if (!is_there(job, op) || !cost_operands_of(&l, job, op, shape)) return false;
    uint64_t bytes = l.bytes + (uint64_t)TM_FRAME_ALIGN * (l.n + 1);
    if (bytes >= budget) return false;
    uint64_t evict_bytes = tm_min_u64(EVICT_BYTES, budget - bytes);
    char *arena = tm_malloc(bytes), *evict = tm_malloc(evict_bytes);
    *out = (cost_timing){.seconds = 0};
    if (arena && evict) {
        char *frames = arena + TM_FRAME_ALIGN - (uintptr_t)arena % TM_FRAME_ALIGN;
        cost_operands_fill(&l, frames, offset);
        cost_call_init(&c, &l, op);
        for (uint32_t i = 0; i < l.n; i++) c.operand[i] = frames + offset[i];
        time_calls(&c.call, evict, evict_bytes, out);
        tm_error_clear();
    }
    tm_free(arena);
    tm_free(evict);
    return out->seconds > 0;
}
