/* op: the operations that programs are made of. Each is one row: its word, where it runs, its operands in the order in
 * which the handler gets them, its handler, what it costs, what its label names. Builder, handler, costs and traces
 * read the row; none of them repeats an order.
 *
 * A row stands in the ops*.c file of its kind, below the handler. A new operation is its code and its arguments here,
 * handler and row there, and the place in build*.c that writes it:
 *
 *     op_begin(w, OP_UPDATE, (op_args){.update = {.part = part, .tile = tile, .whole = whole}});
 *     op_use(w, OPERAND_STEP, step, TM_USE_READ); // in any order
 *     op_use(w, OPERAND_HI, hi, TM_USE_UPDATE);
 *     op_end(w);                                  // ordered by the row, and checked against it
 *
 *     tm_status ops_update(const op_call *c) {
 *         uint32_t part = c->args.update.part;
 *         void *hi = op_operand(c, OPERAND_HI), *lo = op_operand(c, OPERAND_LO); // NULL: this part has none
 *
 * Invariants: the number of operands of each name is a function of job and operation alone (op_operand_row.count), the
 * same when the operation is written, run and timed. Each operand has at least the bytes that its row says. */
#ifndef TIDEMILL_OP_H
#define TIDEMILL_OP_H

#include "step/step.h"

/* Plans and ranks compare codes: a number stays what it is. */
enum {
    OP_BATCH = 1, /* a micro-batch is filled */
    OP_FORWARD,
    OP_BACKWARD,
    OP_OBJECTIVE, /* log-likelihoods of all micro-batches, and each token's coefficient */
    OP_FINISH,    /* a tile of a gradient's sums is rounded and normed */
    OP_NORM,
    OP_UPDATE,
    OP_SUMS,      /* of a tile, in a pass before its update */
    OP_TURN,      /* between passes of a group */
    OP_PACK_SUMS, /* this rank's pieces of a group's sums */
    OP_IMPORT,
    OP_MEANS, /* of a group, as before step 1 */
    OP_LOGITS,
    OP_TAKE_GRAD,
    OP_HASH,
    OP_EXPORT,
    OP_PENDING, /* the update that is pending may be applied */
    OP_REPORT,  /* what this rank tells the others of the step */
    OP_LOSS,    /* of all ranks */
    /* between ranks: */
    OP_GATHER,
    OP_SHARE,  /* new weights: all slices, of which this rank's are new */
    OP_REDUCE, /* this rank's slices become sums over all ranks */
    OP_SHARE_GRAD,
    OP_EXCHANGE,    /* reports */
    OP_STASH,       /* hpZ: this rank's share of its node's copy (on the CPU) */
    OP_GATHER_NODE, /* from those */
    OP_FETCH,       /* a tile from the rank that holds it */
    OP_SHARE_SUMS,
    OP_DECODE, /* a piece of a part that does not learn, to what computes */
    OP_CODES
};
/* Flag of OP_FORWARD and OP_BACKWARD of a vocabulary part: the part's logits are kept. Of OP_BACKWARD, bit i: the
 * gradient of the stage's part i is written for the first time. */
enum {
    OP_KEPT_LOGITS = 1 << 8,
    OP_TRAINS = 1 << 9, /* adapters drop some of their input */
    OP_BARE = 1 << 10   /* adapters add nothing */
};
/* Of OP_OBJECTIVE: all of it; or its halves, between which ranks sum what it needs of the whole step. */
enum { OBJECTIVE_WHOLE, OBJECTIVE_SHARE, OBJECTIVE_REST };
enum { WHAT_MASTER, WHAT_EXP_AVG, WHAT_EXP_AVG_SQ, WHAT_COMPUTE, WHAT_MEANS };

enum {
    LOGITS_ROWS = 16
}; /* of products whose rows are wanted one by one: always so many, so that bits are a row's own */

/* ---- arguments ----------------------------------------------------------------------------------------------- */

/* tm_op.arg by the operation's shape. Shapes have four words each, so that those not named are 0. */
typedef union op_args {
    uint32_t word[4];
    struct {
        uint32_t unit, stage, lane, fresh; /* bit i: the stage's i-th use is the first that writes there */
    } stage;                               /* OP_FORWARD, OP_BACKWARD */
    struct {
        uint32_t unit, stage, lane, wanted; /* only of job_step.wanted, LOGITS_ROWS at a time */
    } logits;
    struct {
        uint32_t micro_batch, capacity, rows, batch; /* batch: TM_BATCH_* */
    } batch;
    struct {
        uint32_t micro_batches, within, phase, none; /* within: the update is inside backward; phase: OBJECTIVE_* */
    } objective;
    struct {
        uint32_t part, tile, within, whole; /* tile: of sums; whole: the gradient is that of the part */
    } finish;
    struct {
        uint32_t within, none[3];
    } norm;
    struct {
        uint32_t part, tile, whole, none; /* tile: of what this rank owns */
    } update;
    struct {
        uint32_t part, tile, pass, whole;
    } sums;
    struct {
        uint32_t part, pass, none[2]; /* the group's first part. OP_TURN: passes that are over */
    } group;
    struct {
        uint32_t part, tile, own, none; /* tile: of compute weights; own: the optimizer's state is here too */
    } import;
    struct {
        uint32_t part, tile, kind, here; /* tile: of all slices; here: this rank has it */
    } fetch;
    struct {
        uint32_t tensor, segment, tile, what; /* OP_HASH, OP_EXPORT */
    } walk;
    struct {
        uint32_t norm, none[3];
    } report; /* OP_REPORT, OP_EXCHANGE */
    struct {
        uint32_t part, piece, none[2]; /* piece: of tm_job.frozen */
    } decode;
    struct {
        uint32_t part, any, none[2]; /* any (OP_GATHER_NODE): the node's ranks keep slices */
    } part;
} op_args;

static inline op_args op_args_of(const tm_op *op) {
    op_args a;
    for (int i = 0; i < 4; i++) a.word[i] = op->arg[i];
    return a;
}
tm_op op_make(const tm_job *job, uint16_t code, op_args args); /* with the row's engine and tier */

/* ---- rows ---------------------------------------------------------------------------------------------------- */

typedef enum operand_name {
    OPERAND_END,
    OPERAND_BATCH,
    OPERAND_WEIGHT, /* of the stage's parts */
    OPERAND_SCALES, /* of its matrix, where that is codes: of blocks, and of blocks of those */
    OPERAND_SLOT,
    OPERAND_KV_CACHE,
    OPERAND_COEFFICIENT,
    OPERAND_SUM, /* of a part's gradient, in fp32 */
    OPERAND_LOGITS,
    OPERAND_WORKSPACE,
    OPERAND_STEP,
    OPERAND_PARTIAL, /* of the norm: sums of blocks */
    OPERAND_REPORTS, /* of all ranks */
    OPERAND_HI,
    OPERAND_LO,
    OPERAND_EXP_AVG,
    OPERAND_EXP_AVG_SQ,
    OPERAND_GRADIENT, /* rounded */
    OPERAND_TOTALS,   /* of a group's tensors */
    OPERAND_PIECES,   /* of totals, of all ranks */
    OPERAND_MEANS,
    OPERAND_TILE, /* of any state */
    OPERAND_OWN,  /* what this rank has of it */
    OPERAND_SECOND,
    OPERAND_VALUES,
    OPERAND_RAW,  /* bytes as a file has them */
    OPERAND_CHAIN /* orders a walk */
} operand_name;

/* An operation, as it is written, run or timed. */
struct op_row;
struct op_operand_row;
struct comm_flight;
typedef struct op_call {
    const tm_job *job;
    const tm_op *op;
    op_args args;
    const struct op_row *row;
    const uint32_t *kv;              /* tm_job.kv, or NULL: no key-value cache */
    const job_shape *shape;          /* largest micro-batch; NULL in a handler */
    const struct op_operand_row *of; /* op_count, op_bytes: which operand is asked for, */
    uint32_t i;                      /* the i-th of that name */
    job_step *step;                  /* in a handler only, from here on */
    const tm_kernel_table *kernels;  /* of the device; NULL: the host's */
    void *const *operand;
} op_call;
op_call op_call_of(const tm_job *job, const tm_op *op);

/* What an operand holds when its operation is timed alone. */
typedef enum op_filling {
    OP_FILL_VALUES,
    OP_FILL_POSITIVE,
    OP_FILL_BATCH,
    OP_FILL_STEP,
    OP_FILL_ONES /* in double */
} op_filling;

typedef struct op_operand_row {
    uint8_t name;
    uint8_t access;                      /* tm_use_access. UPDATE: or WRITE by whoever is first. 0: as the stage says */
    uint64_t (*bytes)(const op_call *c); /* at least, of the c->i-th; NULL: whatever it has */
    uint32_t (*count)(const op_call *c); /* NULL: there is one */
    uint8_t fill;                        /* op_filling */
    uint8_t turns;                       /* so many operands from here on take turns, one of each; 0: none */
} op_operand_row;

/* Seconds go with this (planner/cost.c). */
typedef enum op_cost {
    OP_COST_LITTLE,
    OP_COST_STAGE,  /* work of the model's stage */
    OP_COST_FINISH, /* amount: elements of the tile */
    OP_COST_UPDATE,
    OP_COST_SUMS,
    OP_COST_DECODE,
    OP_COST_TOKENS, /* amount: micro-batches */
    OP_COST_BYTES,  /* amount: bytes that pass by */
    OP_COST_LINKS   /* what it sends */
} op_cost;
typedef enum op_place { OP_ON_HOST, OP_ON_DEVICE, OP_WHERE_UPDATED, OP_WHERE_EXCHANGED } op_place;
typedef enum op_label { OP_OF_ALL, OP_OF_STAGE, OP_OF_TILE, OP_OF_PART, OP_OF_TENSOR, OP_OF_BATCH } op_label;

enum { OP_OPERANDS = 9 };
typedef struct op_row {
    const char *word; /* "forward" */
    uint8_t engine;   /* tm_op_engine */
    uint8_t place;    /* op_place */
    uint8_t cost;     /* op_cost */
    uint8_t label;    /* op_label: what it is of */
    tm_status (*run)(const op_call *c);
    void (*start)(struct comm_flight *f, const op_call *c); /* instead, of TM_ENGINE_COMM */
    double (*amount)(const op_call *c);
    op_operand_row operand[OP_OPERANDS]; /* the last one's name is OPERAND_END */
} op_row;
const op_row *op_row_of(uint16_t code); /* NULL: there is none */

/* The operand of that name; the i-th; the first of several that do not take turns. NULL: the operation has none. */
void *op_operand(const op_call *c, operand_name name);
void *op_operand_at(const op_call *c, operand_name name, uint32_t i);
/* A part's weights in the frame that an operation is given: what was gathered begins where it was put. */
const void *op_weight(const tm_job *job, uint32_t part, const void *frame);
/* A stage's matrix where it is multiplied as a file has it; NULL: it is not, or `weight`, where it begins, is NULL. */
const tm_packed *op_packed(const op_call *c, const void *weight, tm_packed *room);
void *const *op_operands(const op_call *c, operand_name name);
uint32_t op_count(const op_call *c, const op_operand_row *o);
uint64_t op_bytes(const op_call *c, const op_operand_row *o, uint32_t i);
double op_amount(const tm_job *job, const tm_op *op);
uint32_t op_micro_batch(const tm_job *job, const tm_op *op); /* UINT32_MAX: it is of all, or of none */

/* "forward layers.11.attn mb 0" for the operation into buf; `job` is a tm_job. */
const char *job_op_word(uint16_t code); /* "forward" */
void job_op_name(void *job, const tm_op *op, char *buf, size_t cap);

tm_status job_run_op(void *job, const tm_op *op, void *const *operand); /* a tm_op_fn */

/* ---- writing (op_write.c) ------------------------------------------------------------------------------------ */

/* Writes operations into a program, one at a time. */
typedef struct op_writer {
    const tm_job *job;
    tm_program *p;
    job_shape shape;
    tm_op op; /* under way: its uses so far */
    struct op_named_use *use;
    uint32_t n, most;
} op_writer;
TM_MUST_USE tm_status op_writer_open(op_writer *w, const tm_job *job, tm_program *p, const job_shape *shape);
void op_writer_close(op_writer *w); /* the program stays */
void op_begin(op_writer *w, uint16_t code, op_args args);
void op_flags(op_writer *w, uint32_t flags);
void op_use(op_writer *w, operand_name name, uint32_t interval, tm_use_access access);
void op_use_one(op_writer *w, operand_name name, uint32_t interval, uint32_t object,
                tm_use_access access); /* of them */
/* Asserts that the row's operands were named, no more and no fewer, with enough bytes and no other access. */
void op_end(op_writer *w);
/* An operation of one operand. */
void op_write(op_writer *w, uint16_t code, op_args args, operand_name name, uint32_t interval, tm_use_access access);

#endif
