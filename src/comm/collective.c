/* Reductions: slices are exchanged in pieces and summed in the tree, in one stage or in two.
 *
 * flat      every member exchanges with every other one.
 * staged    on a grid of nodes x places: member (k, p) sends to (my node, q) what is for (any node, q), one sum a node
 *           later to (k, p) what is for it. Each byte then crosses between nodes once a node, not once a rank.
 */
#include "comm/work_internal.h"

/* What does not travel need not be rounded: only this rank makes this sum. BF16 is rounded all the same, so that sums
 * do not depend on who makes them; blocks of codes depend on the slices anyway. */
static bool keeps_own(const work *w) {
    return w->op->wire == TM_COMM_EXACT || comm_quantised(w->op->wire);
}

/* Where `own` among the sources is this rank's. */
static void sum(const work *w, uint32_t own, const uint32_t *first, uint32_t nodes, uint64_t n, float *out) {
    uint64_t start = tm_now_ns();
    comm_sum_tree(w->op->wire, w->c->remote->source, keeps_own(w) ? own : UINT32_MAX, first, nodes, n, out);
    atomic_fetch_add_explicit(&w->c->counters.sum_ns, tm_now_ns() - start, memory_order_relaxed);
}

/* Values as they travel: themselves, or encoded into `room`. */
static const void *encoded(const work *w, const float *x, uint64_t n, void *room) {
    if (w->op->wire == TM_COMM_EXACT) return x;
    uint64_t start = tm_now_ns();
    comm_encode(w->op->wire, x, n, room);
    atomic_fetch_add_explicit(&w->c->counters.sum_ns, tm_now_ns() - start, memory_order_relaxed);
    return room;
}

static const void *own(const work *w, const float *x, uint64_t n, void *room) {
    return keeps_own(w) ? x : encoded(w, x, n, room);
}

static const float *mine_for(const work *w, uint32_t position, uint64_t at) {
    return w->send + w->c->remote->begin[position] + tm_min_u64(at, work_slice(w, position));
}

/* ---- reduce-scatter, flat: slots [0, n) arrive, [n, 2n) leave ---- */

static tm_status flat_first(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = work_route(w, lane, 0);
    for (uint32_t i = 0; i < g->size; i++)
        if (i != g->me) TM_TRY(comm_post_recv(&r, i, work_slot(w, lane, i), work_part_bytes(w, g->me, at)));
    for (uint32_t i = 0; i < g->size; i++) {
        if (i == g->me) continue;
        const void *x = encoded(w, mine_for(w, i, at), work_part(w, i, at), work_slot(w, lane, g->size + i));
        TM_TRY(comm_post_send(&r, i, x, work_part_bytes(w, i, at)));
    }
    return TM_OK;
}

static tm_status flat_finish(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    uint64_t n = work_part(w, g->me, at);
    uint32_t mine = 0;
    for (uint32_t t = 0; t < g->size; t++) {
        uint32_t i = g->tree[t];
        char *there = work_slot(w, lane, i);
        w->c->remote->source[t] = i == g->me ? own(w, mine_for(w, i, at), n, there) : there;
        if (i == g->me) mine = t;
    }
    sum(w, mine, g->first, g->nodes, n, w->out + at);
    return TM_OK;
}

/* ---- reduce-scatter, staged: slots [0, n) arrive from my node, [n, 2n) leave to it; then a sum for each node (fp32),
 * what leaves to the nodes, what arrives from them ---- */

typedef struct staged_slots {
    float *sum;           /* [nodes][piece] */
    char *leave, *arrive; /* [nodes] slots */
} staged_slots;

static staged_slots second_slots(const work *w, const comm_lane *lane) {
    char *sums = work_slot(w, lane, 2 * (uint64_t)w->g->size);
    char *leave = sums + (uint64_t)w->nodes * w->piece * sizeof(float);
    return (staged_slots){(float *)sums, leave, leave + w->nodes * w->stride};
}

static tm_status staged_first(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = work_route(w, lane, 0);
    for (uint32_t p = 0; p < g->per_node; p++)
        for (uint32_t k = 0; k < g->nodes && p != g->my_place; k++)
            TM_TRY(comm_post_recv(&r, comm_at(g, g->my_node, p), work_slot(w, lane, p * g->nodes + k),
                                  work_part_bytes(w, comm_at(g, k, g->my_place), at)));
    for (uint32_t p = 0; p < g->per_node; p++) {
        for (uint32_t k = 0; k < g->nodes && p != g->my_place; k++) {
            uint32_t i = comm_at(g, k, p);
            const void *x = encoded(w, mine_for(w, i, at), work_part(w, i, at), work_slot(w, lane, g->size + i));
            TM_TRY(comm_post_send(&r, comm_at(g, g->my_node, p), x, work_part_bytes(w, i, at)));
        }
    }
    return TM_OK;
}

/* What my node has for (k, my place). */
static void sum_in_node(const work *w, const comm_lane *lane, uint32_t k, uint64_t at, float *out) {
    const comm_group *g = w->g;
    uint32_t i = comm_at(g, k, g->my_place);
    const uint32_t all[2] = {0, g->per_node};
    for (uint32_t p = 0; p < g->per_node; p++) {
        char *there = work_slot(w, lane, p * g->nodes + k);
        w->c->remote->source[p] = p == g->my_place ? own(w, mine_for(w, i, at), work_part(w, i, at), there) : there;
    }
    sum(w, g->my_place, all, 1, work_part(w, i, at), out);
}

static tm_status staged_second(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = work_route(w, lane, 1);
    const staged_slots s = second_slots(w, lane);
    for (uint32_t k = 0; k < g->nodes; k++) {
        uint32_t i = comm_at(g, k, g->my_place);
        float *total = s.sum + k * w->piece;
        sum_in_node(w, lane, k, at, total);
        if (k == g->my_node) continue;
        TM_TRY(comm_post_recv(&r, i, s.arrive + k * w->stride, work_part_bytes(w, g->me, at)));
        const void *x = encoded(w, total, work_part(w, i, at), s.leave + k * w->stride);
        TM_TRY(comm_post_send(&r, i, x, work_part_bytes(w, i, at)));
    }
    return TM_OK;
}

static tm_status staged_finish(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const staged_slots s = second_slots(w, lane);
    const uint32_t all[2] = {0, g->nodes};
    uint64_t n = work_part(w, g->me, at);
    for (uint32_t k = 0; k < g->nodes; k++) {
        char *there = s.arrive + k * w->stride;
        w->c->remote->source[k] = k == g->my_node ? own(w, s.sum + k * w->piece, n, there) : there;
    }
    sum(w, g->my_node, all, 1, n, w->out + at);
    return TM_OK;
}

tm_status comm_reduce_scatter(tm_comm *c, const tm_comm_op *op, float *out) {
    work w = work_make(c, op);
    w.out = out;
    w.first = w.staged ? staged_first : flat_first;
    w.second = w.staged ? staged_second : NULL;
    w.finish = w.staged ? staged_finish : flat_finish;
    work_set_piece(&w, 2 * (uint64_t)w.g->size + (w.staged ? 2 * w.nodes : 0), w.staged ? w.nodes : 0);
    return work_run(&w);
}
