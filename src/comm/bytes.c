/* What an operation sends on each link, worked out without running it: for those who plan, and for tests, which compare
 * it with what was counted where messages are posted. */
#include "comm/comm_internal.h"

typedef struct tally {
    const tm_comm *c;
    const comm_group *g;
    const tm_comm_op *op;
    uint64_t *bytes; /* [TM_COMM_LINKS] */
} tally;

static void sent(const tally *t, uint32_t to, uint64_t bytes) {
    bool near = t->c->node_of[t->g->world[to]] == t->c->node;
    t->bytes[near ? TM_COMM_IN_NODE : TM_COMM_BETWEEN_NODES] += bytes;
}

uint32_t comm_farthest(const tm_comm *c, const comm_group *g) {
    for (uint32_t i = 0; i < g->size; i++)
        if (c->node_of[g->world[i]] != c->node) return g->world[i];
    return c->rank;
}

static uint64_t encoded(const tally *t, uint32_t position) {
    return comm_wire_bytes(t->op, comm_slice(t->g, t->op, position));
}

static uint64_t plain(const tally *t, uint32_t position) {
    return tm_comm_type_bytes(t->op->type) * comm_slice(t->g, t->op, position);
}

static void scatter(const tally *t) {
    const comm_group *g = t->g;
    if (!comm_in_stages(g, t->op)) {
        for (uint32_t i = 0; i < g->size; i++)
            if (i != g->me) sent(t, i, encoded(t, i));
        return;
    }
    for (uint32_t k = 0; k < g->nodes; k++) {
        for (uint32_t p = 0; p < g->per_node; p++)
            if (p != g->my_place) sent(t, comm_at(g, g->my_node, p), encoded(t, comm_at(g, k, p)));
        uint32_t peer = comm_at(g, k, g->my_place);
        if (k != g->my_node) sent(t, peer, encoded(t, peer));
    }
}

static void gather(const tally *t, uint64_t (*bytes)(const tally *t, uint32_t position)) {
    const comm_group *g = t->g;
    if (!comm_in_stages(g, t->op) && !t->op->shared) {
        for (uint32_t i = 0; i < g->size; i++)
            if (i != g->me) sent(t, i, bytes(t, g->me));
        return;
    }
    for (uint32_t k = 0; t->op->shared && k < g->nodes; k++)
        if (k != g->my_node) sent(t, comm_at(g, k, 0), bytes(t, g->me));
    for (uint32_t k = 0; !t->op->shared && k < g->nodes; k++) {
        if (k != g->my_node) sent(t, comm_at(g, k, g->my_place), bytes(t, g->me));
        for (uint32_t p = 0; p < g->per_node; p++)
            if (p != g->my_place) sent(t, comm_at(g, g->my_node, p), bytes(t, comm_at(g, k, g->my_place)));
    }
}

static void all_reduce(const tally *t) {
    uint64_t whole = tm_comm_type_bytes(t->op->type) * t->op->count, n = t->g->size;
    if (t->op->wire == TM_COMM_WIRE_MPI) {
        uint32_t far = comm_farthest(t->c, t->g);
        t->bytes[t->c->node_of[far] == t->c->node ? TM_COMM_IN_NODE : TM_COMM_BETWEEN_NODES] += whole;
    } else if (t->op->type == TM_COMM_F32) {
        scatter(t);
        gather(t, plain);
    } else {
        for (uint32_t i = 0; i < n; i++)
            if (i != t->g->me) sent(t, i, whole);
    }
}

static void broadcast(const tally *t) {
    for (uint32_t i = 0; i < t->g->size && t->g->me == t->op->peer; i++)
        if (i != t->g->me) sent(t, i, plain(t, i));
    gather(t, plain);
}

void tm_comm_op_bytes(const tm_comm *c, const tm_comm_op *op, uint64_t bytes[TM_COMM_LINKS]) {
    const tally t = {c, &c->groups[op->group], op, bytes};
    for (unsigned l = 0; l < TM_COMM_LINKS; l++) bytes[l] = 0;
    if (t.g->size < 2) return;
    switch (op->code) {
    case TM_COMM_REDUCE_SCATTER:
        scatter(&t);
        break;
    case TM_COMM_ALL_GATHER:
        gather(&t, encoded);
        break;
    case TM_COMM_ALL_REDUCE:
        all_reduce(&t);
        break;
    case TM_COMM_BROADCAST:
        broadcast(&t);
        break;
    case TM_COMM_SEND:
    case TM_COMM_EXCHANGE:
        if (op->peer != t.g->me) sent(&t, op->peer, tm_comm_type_bytes(op->type) * op->count);
        break;
    default:
        break;
    }
}
