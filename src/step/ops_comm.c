/* What operations between ranks do: each becomes one or two of src/comm's, started here and reported to the executor
 * when they are done. Counts are in elements of each group member's slices. */
#include "step/ops_internal.h"
#include "job/job.h"

#include <stdatomic.h>
#include <string.h>

enum { FLIGHTS = 8 };

typedef struct comm_flight {
    tm_comm_op op[2];
    uint64_t *counts, *across; /* of op[0]; of op[1] or whatever goes over TM_COMM_ACROSS */
    tm_event event;            /* from arena to arena */
    void *token;
    comm_ops *owner;
    atomic_bool busy;
} comm_flight;

struct comm_ops {
    tm_job *job;
    comm_flight flight[FLIGHTS]; /* as many as the executor starts at a time */
};

/* ---- slices -------------------------------------------------------------------------------------------------- */

void job_slice_counts(const tm_job *job, uint32_t part, holding h, uint64_t *counts) {
    uint32_t ranks = job->ranks.ranks, members = ranks / h.count;
    for (uint32_t m = 0; m < members; m++) {
        counts[m] = 0;
        for (uint32_t j = 0; j < h.count; j++)
            counts[m] += slice_span(job->part[part].elements, ranks, m * h.count + j).n;
    }
}

static tm_comm_type type_of(const tm_job *job) {
    return job->dtype == TM_F32 ? TM_COMM_F32 : TM_COMM_BF16; /* fp16: exact, any 16 bits are alike */
}

/* ---- starting ------------------------------------------------------------------------------------------------ */

static void all_gather(comm_flight *f, const tm_job *job, uint32_t part, holding h, uint32_t group, const void *send,
                       void *recv) {
    job_slice_counts(job, part, h, f->counts);
    f->op[0] = (tm_comm_op){.code = TM_COMM_ALL_GATHER,
                            .group = group,
                            .type = type_of(job),
                            .send = send,
                            .recv = recv,
                            .counts = f->counts};
}

/* HSDP: a node's slices of a rank, one for each node that has them. */
static void across_counts(const tm_job *job, uint32_t part, uint64_t *counts) {
    const job_ranks *r = &job->ranks;
    for (uint32_t k = 0; k < r->own.count; k++)
        counts[k] = slice_span(job->part[part].elements, r->ranks, r->own.first + k).n;
}

/* Sums first over the group, then over the groups: the tree is the same as over all ranks at once. */
static void start_reduce(comm_flight *f, const op_call *c) {
    const tm_job *job = c->job;
    const job_ranks *r = &job->ranks;
    uint32_t part = c->args.part.part;
    float *sum = op_operand(c, OPERAND_SUM);
    if (r->mpi_sums) {
        f->op[0] = (tm_comm_op){.code = TM_COMM_ALL_REDUCE,
                                .group = r->group,
                                .type = TM_COMM_F32,
                                .wire = TM_COMM_WIRE_MPI,
                                .send = sum,
                                .recv = sum,
                                .count = job->part[part].elements};
        return;
    }
    holding h = r->across ? r->own : r->sums;
    uint64_t begin = slice_span(job->part[part].elements, r->ranks, h.first).begin;
    job_slice_counts(job, part, h, f->counts);
    f->op[0] = (tm_comm_op){.code = TM_COMM_REDUCE_SCATTER,
                            .group = r->group,
                            .type = TM_COMM_F32,
                            .wire = (tm_comm_wire)r->reduce_wire,
                            .send = sum,
                            .recv = sum + begin,
                            .counts = f->counts};
    if (!r->across) return;
    across_counts(job, part, f->across);
    f->op[1] = (tm_comm_op){.code = TM_COMM_REDUCE_SCATTER,
                            .group = TM_COMM_ACROSS,
                            .type = TM_COMM_F32,
                            .wire = (tm_comm_wire)r->reduce_wire,
                            .send = sum + begin,
                            .recv = sum + slice_span(job->part[part].elements, r->ranks, r->sums.first).begin,
                            .counts = f->across};
}

/* Rounded gradients, among those who update the same. */
static void start_share_gradient(comm_flight *f, const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.part.part;
    void *gradient = op_operand(c, OPERAND_GRADIENT);
    if (!job->ranks.across) {
        all_gather(f, job, part, job->ranks.sums, job->ranks.group, NULL, gradient);
        return;
    }
    across_counts(job, part, f->across);
    f->op[0] = (tm_comm_op){.code = TM_COMM_ALL_GATHER,
                            .group = TM_COMM_ACROSS,
                            .type = type_of(job),
                            .recv = gradient,
                            .counts = f->across};
}

static void start_exchange(comm_flight *f, const op_call *c) {
    void *reports = op_operand(c, OPERAND_REPORTS);
    for (uint32_t i = 0; i < c->job->ranks.ranks; i++)
        f->counts[i] = job_report_doubles(c->job, i, c->args.report.norm);
    f->op[0] = (tm_comm_op){
        .code = TM_COMM_ALL_GATHER, .group = TM_COMM_WORLD, .type = TM_COMM_F64, .recv = reports, .counts = f->counts};
}

/* What each rank's slices of a group of tensors add up to. */
static void start_share_sums(comm_flight *f, const op_call *c) {
    part_group g = passes_group(c->job->model, c->args.group.part);
    void *pieces = op_operand(c, OPERAND_PIECES);
    for (uint32_t i = 0; i < c->job->ranks.ranks; i++) f->counts[i] = passes_pieces(c->job, g, i, c->args.group.pass);
    f->op[0] = (tm_comm_op){
        .code = TM_COMM_ALL_GATHER, .group = TM_COMM_WORLD, .type = TM_COMM_F64, .recv = pieces, .counts = f->counts};
}

static void start_fetch(comm_flight *f, const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.fetch.part, ranks = job->ranks.ranks;
    const part_state *ps = &job->part[part];
    span at = held_tile(ps->elements, ranks, (holding){0, ranks}, c->args.fetch.tile);
    holding h = c->args.fetch.kind == TM_KIND_WEIGHT_HI ? ps->weights : job->ranks.own;
    uint64_t bytes = state_bytes(job, part, (tm_kind)c->args.fetch.kind, at.n);
    void *to = op_operand(c, OPERAND_TILE), *own = op_operand(c, OPERAND_OWN);
    if (own) memcpy(to, own, bytes);
    f->op[0] = (tm_comm_op){.code = TM_COMM_BROADCAST,
                            .group = job->ranks.group,
                            .type = TM_COMM_BYTE,
                            .recv = to,
                            .count = bytes,
                            .peer = held_by(h, (uint32_t)(at.begin / slice_elements(ps->elements, ranks)))};
}

static void start_gather(comm_flight *f, const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.part.part;
    const char *own = op_operand(c, OPERAND_HI);
    if (own) own += weight_shift(job, part);
    all_gather(f, job, part, job->part[part].weights, job->ranks.group, own, op_operand(c, OPERAND_TILE));
    f->op[0].wire = (tm_comm_wire)job->ranks.gather_wire;
    f->op[0].shared = job->ranks.shared_by > 0;
}

static void start_gather_node(comm_flight *f, const op_call *c) {
    all_gather(f, c->job, c->args.part.part, c->job->ranks.second, TM_COMM_NODE, op_operand(c, OPERAND_SECOND),
               op_operand(c, OPERAND_TILE));
    f->op[0].shared = c->job->ranks.shared_by > 0;
}

static void start_share(comm_flight *f, const op_call *c) {
    all_gather(f, c->job, c->args.part.part, c->job->ranks.own, c->job->ranks.group, NULL, op_operand(c, OPERAND_HI));
}

/* ---- rows ---------------------------------------------------------------------------------------------------- */

static uint32_t has_own_weights(const op_call *c) {
    const part_state *s = &c->job->part[c->args.part.part];
    return s->hi_tiles > 0 || s->n_pieces > 0;
}
static uint32_t has_second(const op_call *c) {
    return c->args.part.any;
}
static uint32_t has_own_tile(const op_call *c) {
    return c->args.fetch.here;
}
static uint64_t fetched_bytes(const op_call *c) {
    uint32_t ranks = c->job->ranks.ranks;
    span at = held_tile(c->job->part[c->args.fetch.part].elements, ranks, (holding){0, ranks}, c->args.fetch.tile);
    return state_bytes(c->job, c->args.fetch.part, (tm_kind)c->args.fetch.kind, at.n);
}
enum { R = TM_USE_READ, W = TM_USE_WRITE, U = TM_USE_UPDATE };

const op_row ops_comm_rows[OP_CODES] = {
    [OP_GATHER] = {"gather", TM_ENGINE_COMM, OP_WHERE_EXCHANGED, OP_COST_LINKS, OP_OF_PART, .start = start_gather,
                   .operand = {{OPERAND_HI, R, .count = has_own_weights},
                               {OPERAND_TILE, W, .bytes = operand_whole_bytes}}},
    [OP_SHARE] = {"share", TM_ENGINE_COMM, OP_ON_HOST, OP_COST_LINKS, OP_OF_PART, .start = start_share,
                  .operand = {{OPERAND_HI, .access = U}}},
    [OP_REDUCE] = {"reduce", TM_ENGINE_COMM, OP_WHERE_EXCHANGED, OP_COST_LINKS, OP_OF_PART, .start = start_reduce,
                   .operand = {{OPERAND_SUM, U, .bytes = operand_sum_bytes}}},
    [OP_SHARE_GRAD] = {"share grad", TM_ENGINE_COMM, OP_ON_HOST, OP_COST_LINKS, OP_OF_PART,
                       .start = start_share_gradient, .operand = {{OPERAND_GRADIENT, .access = U}}},
    [OP_EXCHANGE] = {"exchange", TM_ENGINE_COMM, OP_ON_HOST, OP_COST_LINKS, OP_OF_ALL, .start = start_exchange,
                     .operand = {{OPERAND_REPORTS, U, .bytes = operand_reports_bytes}}},
    [OP_GATHER_NODE] = {"gather in node", TM_ENGINE_COMM, OP_ON_HOST, OP_COST_LINKS, OP_OF_PART,
                        .start = start_gather_node,
                        .operand = {{OPERAND_SECOND, R, .bytes = operand_second_bytes, .count = has_second},
                                    {OPERAND_TILE, W, .bytes = operand_whole_bytes}}},
    [OP_FETCH] = {"fetch", TM_ENGINE_COMM, OP_ON_HOST, OP_COST_BYTES, OP_OF_PART, .start = start_fetch,
                  .amount = amount_full_tile,
                  .operand = {{OPERAND_OWN, R, .bytes = fetched_bytes, .count = has_own_tile},
                              {OPERAND_TILE, W, .bytes = fetched_bytes}}},
    [OP_SHARE_SUMS] = {"share sums", TM_ENGINE_COMM, OP_ON_HOST, OP_COST_LINKS, OP_OF_PART, .start = start_share_sums,
                       .operand = {{OPERAND_PIECES, U, .bytes = operand_pieces_bytes}}},
};

/* Into f->op[0], f->op[1]. */
static tm_status describe(comm_flight *f, const op_call *c) {
    if (!c->row || !c->row->start) return tm_fail(TM_EBUG, "operation %u is not one between ranks", c->op->code);
    c->row->start(f, c);
    return TM_OK;
}

/* ---- what it sends ------------------------------------------------------------------------------------------- */

/* As it would be started, for those who only count. False: there is nothing to count. */
static bool describe_only(comm_flight *f, const tm_job *job, const tm_op *op) {
    static char nowhere[2]; /* operands are only looked at, to tell whether there are any */
    void *const operand[2] = {nowhere, nowhere};
    *f = (comm_flight){.counts = job->comm.counts};
    if (!job->comm.counts || op->code == OP_FETCH) return false;
    f->across = f->counts + job->ranks.ranks;
    f->op[1].code = TM_COMM_CODES;
    op_call c = op_call_of(job, op);
    c.operand = operand;
    return describe(f, &c) == TM_OK;
}

void job_comm_bytes(const tm_job *job, const tm_op *op, uint64_t bytes[TM_COMM_LINKS]) {
    comm_flight f;
    bytes[TM_COMM_IN_NODE] = bytes[TM_COMM_BETWEEN_NODES] = 0;
    if (!describe_only(&f, job, op)) return;
    for (int i = 0; i < 2 && f.op[i].code != TM_COMM_CODES; i++) {
        uint64_t each[TM_COMM_LINKS];
        tm_comm_op_bytes(job->ranks.comm, &f.op[i], each);
        for (int l = 0; l < TM_COMM_LINKS; l++) bytes[l] += each[l];
    }
}

uint64_t job_comm_copied(const tm_job *job, const tm_op *op) {
    comm_flight f;
    if (!describe_only(&f, job, op) || !f.op[0].shared) return 0;
    uint32_t me = tm_comm_group_rank(job->ranks.comm, f.op[0].group);
    return f.op[0].counts[me] * tm_comm_type_bytes(f.op[0].type);
}

/* ---- done ---------------------------------------------------------------------------------------------------- */

/* The first of two: the second runs after it, and fails where it failed. */
static void first_done(tm_comm_op *op) {
    (void)op;
}

static void done(tm_comm_op *op) {
    comm_flight *f = op->ctx;
    tm_job *job = f->owner->job;
    void *token = f->token;
    tm_status rc = op->status == TM_OK ? TM_OK : tm_comm_op_fail(job->ranks.comm, op);
    atomic_store(&f->busy, false);
    tm_exec_comm_done(job->tiers.exec, token, rc);
}

/* ---- from arena to arena ---- */

static void done_there(tm_event *e) {
    comm_flight *f = e->ctx;
    tm_job *job = f->owner->job;
    void *token = f->token;
    tm_status rc = e->status;
    atomic_store(&f->busy, false);
    tm_exec_comm_done(job->tiers.exec, token, rc);
}

/* The same operation on the device's streams. */
static tm_status submit_there(comm_flight *f) {
    tm_job *job = f->owner->job;
    const tm_comm_op *op = &f->op[0];
    uint64_t bytes[TM_COMM_LINKS];
    bool gather = op->code == TM_COMM_ALL_GATHER;
    const tm_device_exchange x = {.code = gather ? TM_DEVICE_ALL_GATHER : TM_DEVICE_REDUCE_SCATTER,
                                  .element_bytes = (uint32_t)tm_comm_type_bytes(op->type),
                                  .send = op->send,
                                  .recv = op->recv,
                                  .counts = op->counts};
    tm_comm_op_bytes(job->ranks.comm, op, bytes);
    for (int l = 0; l < TM_COMM_LINKS; l++) atomic_fetch_add(&job->comm.sent_there[l], bytes[l]);
    f->event = (tm_event){.done = done_there, .ctx = f};
    return tm_device_exchange_submit(job->tiers.device, &x, &f->event);
}

/* Gathered once for the node, it goes where all of the node's ranks have it. */
static bool lies_right(const tm_job *job, const tm_comm_op *op) {
    const char *base = job_shared_frames(job), *at = op->recv;
    return !op->shared || (base && at >= base && at < base + job->account.needs.shared);
}

tm_status comm_ops_submit(void *ctx, const tm_op *op, void *const *operand, void *token) {
    comm_ops *c = ctx;
    comm_flight *f = c->flight;
    if (c->job->comm.stub) {
        tm_exec_comm_done(c->job->tiers.exec, token, TM_OK);
        return TM_OK;
    }
    while (f < c->flight + FLIGHTS && atomic_load(&f->busy)) f++;
    TM_ASSERT(f < c->flight + FLIGHTS);
    f->op[1].code = TM_COMM_CODES;
    op_call call = op_call_of(c->job, op);
    call.operand = operand;
    TM_TRY(describe(f, &call));
    TM_ASSERT(lies_right(c->job, &f->op[0]));
    bool two = f->op[1].code != TM_COMM_CODES;
    f->token = token;
    atomic_store(&f->busy, true);
    f->op[0].done = two ? first_done : done;
    f->op[1].done = done;
    f->op[0].ctx = f->op[1].ctx = f;
    bool there = op->tier == TM_TIER_DEVICE && c->job->tiers.device && c->job->ranks.peers;
    tm_status rc = there ? submit_there(f) : tm_comm_submit(c->job->ranks.comm, &f->op[0]);
    if (rc == TM_OK && two) rc = tm_comm_submit(c->job->ranks.comm, &f->op[1]);
    if (rc != TM_OK) atomic_store(&f->busy, false);
    return rc;
}

tm_status comm_ops_open(comm_ops **out, tm_job *job) {
    uint32_t ranks = job->ranks.ranks;
    comm_ops *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    *out = c;
    c->job = job;
    for (int i = 0; i < FLIGHTS; i++) {
        c->flight[i].owner = c;
        c->flight[i].counts = tm_calloc(2 * (size_t)ranks, sizeof(uint64_t));
        if (!c->flight[i].counts) return tm_nomem(ranks * sizeof(uint64_t));
        c->flight[i].across = c->flight[i].counts + ranks;
    }
    return TM_OK;
}

void comm_ops_close(comm_ops *c) {
    if (!c) return;
    for (int i = 0; i < FLIGHTS; i++) tm_free(c->flight[i].counts);
    tm_free(c);
}
