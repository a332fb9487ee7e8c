/* All-gathers.
 *
 * flat      every member sends its slice to every other one.
 * staged    on a grid of nodes x places: across first, then what came that way to the others of the node, so that each
 *           byte crosses between nodes once a node.
 * shared    the members of a node gather into the same memory. All of them meet, so that nobody writes what another
 *           one still reads; each puts its own slice there, and those of other nodes' members that are sent to it; all
 *           meet again, so that nobody reads what is not there yet. Nothing is sent within a node.
 *
 *     rank 0   ... reads |      | slice 0, and from across |      | reads ...
 *     rank 1     ... reads | meet | slice 1, and from across | meet | reads ...
 */
#include "comm/work_internal.h"

#include <string.h>

/* Where position i's piece lies on its way. */
static void *place_of(const work *w, const comm_lane *lane, uint32_t i, uint64_t at) {
    if (w->op->wire != TM_COMM_EXACT && w->op->code == TM_COMM_ALL_GATHER) return work_slot(w, lane, i);
    uint64_t begin = w->c->remote->begin[i] + tm_min_u64(at, work_slice(w, i));
    return w->recv + begin * tm_comm_type_bytes(w->op->type);
}

static tm_status pass(const work *w, const comm_route *r, uint32_t to, uint32_t mine, uint32_t theirs, uint64_t at) {
    TM_TRY(comm_post_recv(r, to, place_of(w, r->lane, theirs, at), work_part_bytes(w, theirs, at)));
    return comm_post_send(r, to, place_of(w, r->lane, mine, at), work_part_bytes(w, mine, at));
}

static void encode_mine(const work *w, comm_lane *lane, uint64_t at) {
    uint64_t n = work_part(w, w->g->me, at), start = tm_now_ns();
    if (!n || w->op->wire == TM_COMM_EXACT) return;
    comm_encode_bf16(w->op->wire, (const uint16_t *)w->op->send + at, n, work_slot(w, lane, w->g->me));
    atomic_fetch_add_explicit(&w->c->counters.sum_ns, tm_now_ns() - start, memory_order_relaxed);
}

static tm_status gather_flat(const work *w, comm_lane *lane, uint64_t at) {
    const comm_route r = work_route(w, lane, 0);
    encode_mine(w, lane, at);
    for (uint32_t i = 0; i < w->g->size; i++)
        if (i != w->g->me) TM_TRY(pass(w, &r, i, w->g->me, i, at));
    return TM_OK;
}

static tm_status gather_across(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = work_route(w, lane, 0);
    encode_mine(w, lane, at);
    for (uint32_t k = 0; k < g->nodes; k++) {
        uint32_t i = comm_at(g, k, g->my_place);
        if (k != g->my_node) TM_TRY(pass(w, &r, i, g->me, i, at));
    }
    return TM_OK;
}

static tm_status gather_in_node(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = work_route(w, lane, 1);
    for (uint32_t p = 0; p < g->per_node; p++)
        for (uint32_t k = 0; k < g->nodes && p != g->my_place; k++)
            TM_TRY(pass(w, &r, comm_at(g, g->my_node, p), comm_at(g, k, g->my_place), comm_at(g, k, p), at));
    return TM_OK;
}

static uint32_t members_of(const comm_group *g, uint32_t node) {
    return g->first[node + 1] - g->first[node];
}

/* Who of node `to` is sent what the member at `place` of another node has. */
static uint32_t receiver(const comm_group *g, uint32_t to, uint32_t place) {
    return comm_at(g, to, place % members_of(g, to));
}

/* Nobody needs to know more of a member of another node than which of mine receives from it. */
static bool comes_to_me(const comm_group *g, uint32_t node, uint32_t place) {
    return node != g->my_node && receiver(g, g->my_node, place) == g->me;
}

static tm_status gather_shared(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = work_route(w, lane, 0);
    encode_mine(w, lane, at);
    for (uint32_t k = 0; k < g->nodes; k++) {
        for (uint32_t p = 0; p < members_of(g, k); p++) {
            uint32_t i = comm_at(g, k, p);
            if (comes_to_me(g, k, p))
                TM_TRY(comm_post_recv(&r, i, place_of(w, lane, i, at), work_part_bytes(w, i, at)));
        }
        if (k == g->my_node) continue;
        TM_TRY(comm_post_send(&r, receiver(g, k, g->my_place), place_of(w, lane, g->me, at),
                              work_part_bytes(w, g->me, at)));
    }
    return TM_OK;
}

static void decode(const work *w, const comm_lane *lane, uint32_t i, uint64_t at) {
    uint64_t n = work_part(w, i, at);
    uint16_t *to = (uint16_t *)w->op->recv + w->c->remote->begin[i] + at;
    if (n) comm_decode_bf16(w->op->wire, work_slot(w, lane, i), n, to);
}

static tm_status gather_finish(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    uint64_t start = tm_now_ns();
    if (w->op->wire == TM_COMM_EXACT) return TM_OK;
    for (uint32_t k = 0; k < g->nodes; k++)
        for (uint32_t p = 0; p < members_of(g, k); p++) {
            uint32_t i = comm_at(g, k, p);
            if (!w->op->shared || i == g->me || comes_to_me(g, k, p)) decode(w, lane, i, at);
        }
    atomic_fetch_add_explicit(&w->c->counters.sum_ns, tm_now_ns() - start, memory_order_relaxed);
    return TM_OK;
}

static tm_status gather(work *w) {
    const uint64_t bytes = tm_comm_type_bytes(w->op->type), n = work_slice(w, w->g->me) * bytes;
    w->first = w->op->shared ? gather_shared : w->staged ? gather_across : gather_flat;
    w->second = w->staged && !w->op->shared ? gather_in_node : NULL;
    w->finish = gather_finish;
    if (w->op->wire != TM_COMM_EXACT) {
        work_set_piece(w, w->g->size, 0);
        return work_run(w);
    }
    w->piece = (w->staged ? 1 << 20 : COMM_MESSAGE_BYTES / 8) / bytes;
    char *mine = w->recv + w->c->remote->begin[w->g->me] * bytes;
    if (w->op->send && w->op->send != mine && n) memcpy(mine, w->op->send, n);
    return work_run(w);
}

/* The messages of a meeting order this rank's loads and stores against the others': a fence on either side keeps the
 * compiler and the CPU to it. */
static tm_status meet(tm_comm *c) {
    atomic_thread_fence(memory_order_seq_cst);
    TM_TRY(comm_barrier(c, TM_COMM_NODE));
    atomic_thread_fence(memory_order_seq_cst);
    return TM_OK;
}

tm_status comm_all_gather(tm_comm *c, const tm_comm_op *op) {
    work w = work_make(c, op);
    if (!op->shared) return gather(&w);
    TM_TRY(meet(c));
    TM_TRY(gather(&w));
    return meet(c);
}
