/* The other operations, and which function carries out which. */
#include "comm/remote_internal.h"

#include <string.h>

/* What MPI makes of it nobody here sees: what is counted is what it was handed, as if for the next member of the ring
 * that leads to another node, if there is one. */
static tm_status all_reduce_mpi(tm_comm *c, const tm_comm_op *op) {
    enum { MOST = 1 << 20 }; /* elements a call: MPI takes memory of its own for as many */
    const uint32_t to = comm_farthest(c, &c->groups[op->group]);
    for (uint64_t at = 0; at < op->count; at += MOST) {
        int n = (int)tm_min_u64(MOST, op->count - at);
        comm_mpi_request request;
        TM_TRY(comm_mpi_iallreduce_f32((const float *)op->send + at, (float *)op->recv + at, n,
                                       c->remote->group[op->group], &request));
        comm_count_posted(c, c->remote->executed, to, (uint64_t)n * sizeof(float));
        TM_TRY(comm_wait_request(c, &request));
    }
    return TM_OK;
}

static tm_status all_reduce_f32(tm_comm *c, const tm_comm_op *op) {
    if (op->wire == TM_COMM_WIRE_MPI) return all_reduce_mpi(c, op);
    tm_comm_op gather = *op;
    gather.wire = TM_COMM_EXACT;
    gather.send = NULL;
    comm_begin(c, op);
    float *mine = (float *)op->recv + c->remote->begin[c->groups[op->group].me];
    TM_TRY(comm_reduce_scatter(c, op, mine));
    return comm_all_gather(c, &gather);
}

static void reduce(const tm_comm_op *op, void *into, const void *x, uint64_t n) {
    if (op->type == TM_COMM_F64)
        comm_reduce_f64(op->reduce, into, x, n);
    else
        comm_reduce_u64(op->reduce, into, x, n);
}

/* A piece of everyone's vector to everyone, reduced in the order of positions. */
static tm_status reduce_piece(tm_comm *c, const tm_comm_op *op, uint64_t at, uint64_t n) {
    const comm_group *g = &c->groups[op->group];
    comm_lane *lane = &c->remote->lane[0];
    const comm_route r = {.c = c, .g = g, .lane = lane, .group = op->group};
    const uint64_t bytes = 8 * n;
    char *mine = lane->memory + g->me * bytes, *out = (char *)op->recv + 8 * at;
    memcpy(mine, (const char *)op->send + 8 * at, bytes);
    for (uint32_t i = 0; i < g->size; i++) {
        if (i == g->me) continue;
        TM_TRY(comm_post_recv(&r, i, lane->memory + i * bytes, bytes));
        TM_TRY(comm_post_send(&r, i, mine, bytes));
    }
    TM_TRY(comm_wait_lane(c, lane));
    memcpy(out, lane->memory, bytes);
    for (uint32_t i = 1; i < g->size; i++) reduce(op, out, lane->memory + i * bytes, n);
    return TM_OK;
}

static tm_status all_reduce_small(tm_comm *c, const tm_comm_op *op) {
    uint64_t most = c->workspace_bytes / 16 / c->groups[op->group].size;
    for (uint64_t at = 0; at < op->count; at += most) TM_TRY(reduce_piece(c, op, at, tm_min_u64(most, op->count - at)));
    return TM_OK;
}

/* ---- broadcast: everyone gets a slice from the root, then all gather ---- */

static tm_status deal(tm_comm *c, const tm_comm_op *op) {
    const comm_group *g = &c->groups[op->group];
    const comm_route r = {.c = c, .g = g, .lane = &c->remote->lane[0], .group = op->group, .stage = 2};
    const uint64_t *begin = c->remote->begin, bytes = tm_comm_type_bytes(op->type), longest = begin[1] * bytes;
    for (uint64_t at = 0; at < longest; at += COMM_MESSAGE_BYTES) {
        for (uint32_t i = 0; i < g->size; i++) {
            uint64_t slice = (begin[i + 1] - begin[i]) * bytes;
            char *x = (char *)op->recv + begin[i] * bytes + at;
            uint64_t n = at >= slice ? 0 : tm_min_u64(COMM_MESSAGE_BYTES, slice - at);
            if (g->me == op->peer && i != g->me) TM_TRY(comm_post_send(&r, i, x, n));
            if (g->me != op->peer && i == g->me) TM_TRY(comm_post_recv(&r, op->peer, x, n));
        }
        TM_TRY(comm_wait_lane(c, r.lane));
    }
    return TM_OK;
}

static tm_status broadcast(tm_comm *c, const tm_comm_op *op) {
    tm_comm_op gather = *op;
    gather.send = NULL;
    comm_begin(c, op);
    TM_TRY(deal(c, op));
    return comm_all_gather(c, &gather);
}

/* ---- barrier (dissemination), send, receive ---- */

tm_status comm_barrier(tm_comm *c, uint32_t group) {
    const comm_group *g = &c->groups[group];
    const comm_route r = {.c = c, .g = g, .lane = &c->remote->lane[0], .group = group, .stage = 3, .empty = true};
    for (uint32_t d = 1; d < g->size; d *= 2) {
        TM_TRY(comm_post_recv(&r, (g->me + g->size - d) % g->size, NULL, 0));
        TM_TRY(comm_post_send(&r, (g->me + d) % g->size, NULL, 0));
        TM_TRY(comm_wait_lane(c, r.lane));
    }
    return TM_OK;
}

static tm_status send_and_receive(tm_comm *c, const tm_comm_op *op) {
    const comm_route r = {
        .c = c, .g = &c->groups[op->group], .lane = &c->remote->lane[0], .group = op->group, .stage = 2};
    const uint64_t bytes = op->count * tm_comm_type_bytes(op->type);
    const bool sends = op->code != TM_COMM_RECV, receives = op->code != TM_COMM_SEND;
    for (uint64_t at = 0; at < bytes; at += COMM_MESSAGE_BYTES) {
        uint64_t n = tm_min_u64(COMM_MESSAGE_BYTES, bytes - at);
        uint32_t from = op->code == TM_COMM_RECV ? op->peer : op->from;
        if (receives) TM_TRY(comm_post_recv(&r, from, (char *)op->recv + at, n));
        if (sends) TM_TRY(comm_post_send(&r, op->peer, (const char *)op->send + at, n));
        TM_TRY(comm_wait_lane(c, r.lane));
    }
    return TM_OK;
}

tm_status comm_execute(tm_comm *c, tm_comm_op *op) {
    switch (op->code) {
    case TM_COMM_REDUCE_SCATTER:
        comm_begin(c, op);
        return comm_reduce_scatter(c, op, op->recv);
    case TM_COMM_ALL_GATHER:
        comm_begin(c, op);
        return comm_all_gather(c, op);
    case TM_COMM_ALL_REDUCE:
        return op->type == TM_COMM_F32 ? all_reduce_f32(c, op) : all_reduce_small(c, op);
    case TM_COMM_BROADCAST:
        return broadcast(c, op);
    case TM_COMM_BARRIER:
        return comm_barrier(c, op->group);
    default:
        return send_and_receive(c, op);
    }
}
