/* Operations written into a program: operands by name, in the order of the row. */
#include "step/op.h"

struct op_named_use {
    uint32_t interval, object, count; /* count 0: all of the interval */
    uint8_t name, access;
};

/* More than any operation has: those of all micro-batches, of all parts, of a stage. */
static uint32_t most_uses(const tm_job *job, const job_shape *shape) {
    enum { OF_STAGE = 64 };
    return 3 * shape->micro_batches * job->n_lanes + tm_model_parts(job->model) + OF_STAGE;
}

tm_status op_writer_open(op_writer *w, const tm_job *job, tm_program *p, const job_shape *shape) {
    *w = (op_writer){.job = job, .p = p, .shape = *shape, .most = most_uses(job, shape)};
    w->use = tm_malloc(w->most * sizeof *w->use);
    return w->use ? TM_OK : tm_nomem(w->most * sizeof *w->use);
}

void op_writer_close(op_writer *w) {
    tm_free(w->use);
    w->use = NULL;
}

void op_begin(op_writer *w, uint16_t code, op_args args) {
    TM_ASSERT(w->n == 0); /* the one before has ended */
    w->op = op_make(w->job, code, args);
}

void op_flags(op_writer *w, uint32_t flags) {
    w->op.flags = (uint16_t)flags;
}

static void name_use(op_writer *w, operand_name name, struct op_named_use use) {
    TM_ASSERT(w->n < w->most);
    use.name = (uint8_t)name;
    w->use[w->n++] = use;
}

void op_use(op_writer *w, operand_name name, uint32_t interval, tm_use_access access) {
    name_use(w, name, (struct op_named_use){.interval = interval, .access = (uint8_t)access});
}

void op_use_one(op_writer *w, operand_name name, uint32_t interval, uint32_t object, tm_use_access access) {
    name_use(w, name,
             (struct op_named_use){.interval = interval, .object = object, .count = 1, .access = (uint8_t)access});
}

static const struct op_named_use *next_named(const op_writer *w, uint8_t name, uint32_t *at) {
    while (*at < w->n && w->use[*at].name != name) ++*at;
    TM_ASSERT(*at < w->n); /* the row has more operands of this name than were named */
    return &w->use[(*at)++];
}

static bool access_allowed(const op_operand_row *o, uint8_t access) {
    return o->access == 0 || o->access == access || (o->access == TM_USE_UPDATE && access == TM_USE_WRITE);
}

static void write_use(op_writer *w, const op_call *c, const op_operand_row *o, uint32_t i,
                      const struct op_named_use *use) {
    TM_ASSERT(access_allowed(o, use->access));
    TM_ASSERT(tm_program_use_bytes(w->p, use->interval, use->object, use->count) >= op_bytes(c, o, i));
    if (use->count)
        tm_program_use_range(w->p, use->interval, use->object, use->count, (tm_use_access)use->access);
    else
        tm_program_use(w->p, use->interval, (tm_use_access)use->access);
}

void op_end(op_writer *w) {
    op_call c = op_call_of(w->job, &w->op);
    uint32_t written = 0, turns;
    c.shape = &w->shape;
    tm_program_op(w->p, &w->op);
    for (const op_operand_row *o = c.row->operand; o->name != OPERAND_END; o += turns) {
        uint32_t at[OP_OPERANDS] = {0}, n = op_count(&c, o);
        turns = o->turns ? o->turns : 1;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < turns; j++, written++)
                write_use(w, &c, &o[j], i, next_named(w, o[j].name, &at[j]));
    }
    TM_ASSERT(written == w->n); /* each that was named is one of the row */
    w->n = 0;
}

void op_write(op_writer *w, uint16_t code, op_args args, operand_name name, uint32_t interval, tm_use_access access) {
    op_begin(w, code, args);
    op_use(w, name, interval, access);
    op_end(w);
}
