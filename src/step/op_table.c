/* Rows by code, operands by name, labels. */
#include "step/ops_internal.h"

#include <stdio.h>

const op_row *op_row_of(uint16_t code) {
    static const op_row *const rows[] = {ops_model_rows, ops_update_rows, ops_state_rows, ops_rank_rows, ops_comm_rows};
    for (size_t i = 0; i < TM_COUNT(rows) && code < OP_CODES; i++)
        if (rows[i][code].word) return &rows[i][code];
    return NULL;
}

op_call op_call_of(const tm_job *job, const tm_op *op) {
    return (op_call){.job = job, .op = op, .args = op_args_of(op), .row = op_row_of(op->code), .kv = job->kv};
}

static uint8_t tier_of(const tm_job *job, const op_row *row) {
    switch ((op_place)row->place) {
    case OP_ON_DEVICE:
        return TM_TIER_DEVICE;
    case OP_WHERE_UPDATED:
        return job->tiers.update_tier;
    case OP_WHERE_EXCHANGED: /* in the arenas, if they have a way to each other */
        return job->ranks.peers ? TM_TIER_DEVICE : TM_TIER_HOST;
    default:
        return TM_TIER_HOST;
    }
}

tm_op op_make(const tm_job *job, uint16_t code, op_args args) {
    const op_row *row = op_row_of(code);
    TM_ASSERT(row);
    tm_op op = {.code = code, .engine = row->engine, .tier = tier_of(job, row)};
    for (int i = 0; i < 4; i++) op.arg[i] = args.word[i];
    return op;
}

uint32_t op_count(const op_call *c, const op_operand_row *o) {
    op_call asked = *c;
    asked.of = o;
    return o->count ? o->count(&asked) : 1;
}

uint64_t op_bytes(const op_call *c, const op_operand_row *o, uint32_t i) {
    op_call asked = *c;
    asked.of = o;
    asked.i = i;
    return o->bytes ? o->bytes(&asked) : 0;
}

/* Where the first of that name is, and how far the next one is from it; NULL: there is none. */
static void *const *find_operand(const op_call *c, operand_name name, uint32_t *count, uint32_t *stride) {
    void *const *at = c->operand;
    for (const op_operand_row *o = c->row->operand; o->name != OPERAND_END; o += *stride) {
        *stride = o->turns ? o->turns : 1;
        *count = op_count(c, o);
        for (uint32_t j = 0; j < *stride; j++)
            if (o[j].name == name) return *count ? at + j : NULL;
        at += (size_t)*count * *stride;
    }
    tm_assert_failed("the row has an operand of that name", c->row->word, (int)name);
}

void *op_operand_at(const op_call *c, operand_name name, uint32_t i) {
    uint32_t count, stride;
    void *const *at = find_operand(c, name, &count, &stride);
    TM_ASSERT(!at || i < count);
    return at ? at[(size_t)i * stride] : NULL;
}

void *op_operand(const op_call *c, operand_name name) {
    return op_operand_at(c, name, 0);
}

void *const *op_operands(const op_call *c, operand_name name) {
    uint32_t count, stride;
    void *const *at = find_operand(c, name, &count, &stride);
    TM_ASSERT(!at || stride == 1);
    return at;
}

double op_amount(const tm_job *job, const tm_op *op) {
    op_call c = op_call_of(job, op);
    return c.row->amount(&c);
}

tm_status job_run_op(void *ctx, const tm_op *op, void *const *operand) {
    tm_job *job = ctx;
    op_call c = op_call_of(job, op);
    bool observed =
        job->costs.hear && op->engine != TM_ENGINE_DEVICE; /* which is launched here: tm_exec_on_device_op */
    uint64_t t0 = observed ? tm_now_ns() : 0;
    if (!c.row || !c.row->run) return tm_fail(TM_EBUG, "operation %u is not known", op->code);
    c.step = &job->step;
    c.kernels = job->tiers.kernels;
    c.operand = operand;
    tm_status rc = c.row->run(&c);
    if (observed && rc == TM_OK) job->costs.hear(job->costs.hear_ctx, op, (double)(tm_now_ns() - t0) * 1e-9);
    return rc;
}

const char *job_op_word(uint16_t code) {
    const op_row *row = op_row_of(code);
    return row ? row->word : "operation";
}

uint32_t op_micro_batch(const tm_job *job, const tm_op *op) {
    const op_row *row = op_row_of(op->code);
    op_args a = op_args_of(op);
    if (row && row->label == OP_OF_STAGE) return a.stage.lane / job->n_lanes;
    return row && row->label == OP_OF_BATCH ? a.batch.micro_batch : UINT32_MAX;
}

void job_op_name(void *ctx, const tm_op *op, char *buf, size_t cap) {
    const tm_model *m = ((const tm_job *)ctx)->model;
    const op_row *row = op_row_of(op->code);
    const char *word = job_op_word(op->code);
    op_args a = op_args_of(op);
    switch (row ? (op_label)row->label : OP_OF_ALL) {
    case OP_OF_STAGE: {
        const tm_unit *u = tm_model_unit(m, a.stage.unit);
        snprintf(buf, cap, "%s %s.%s mb %u", word, u->name, u->stage[a.stage.stage].name, op_micro_batch(ctx, op));
        return;
    }
    case OP_OF_TILE:
        snprintf(buf, cap, "%s %s tile %u", word, tm_model_part(m, a.update.part)->name, a.update.tile);
        return;
    case OP_OF_PART:
        snprintf(buf, cap, "%s %s", word, tm_model_part(m, a.part.part)->name);
        return;
    case OP_OF_TENSOR:
        snprintf(buf, cap, "%s %s", word, tm_model_tensor(m, a.walk.tensor)->name);
        return;
    case OP_OF_BATCH:
        snprintf(buf, cap, "%s mb %u", word, a.batch.micro_batch);
        return;
    default:
        snprintf(buf, cap, "%s", word);
    }
}
