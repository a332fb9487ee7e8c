/* Reduce-scatter, all-gather, all-reduce: slices in pieces, two pieces under way, in one stage or in two.
 *
 * flat      every member exchanges with every other one.
 * staged    on a grid of nodes x places: member (k, p) sends to (my node, q) what is for (any node, q), one sum a node
 *           later to (k, p) what is for it. Each byte then crosses between nodes once a node, not once a rank. A gather
 *           goes the other way: across first, then to the others of the node.
 *
 *     piece i      first stage | sum, second stage |             sum, done
 *     piece i + 1              |    first stage    |  ...
 */
#include "comm/remote_internal.h"

#include <string.h>

enum { PIECE_ELEMENTS = 64 << 10 }; /* longest piece of a reduction: 256 KiB, so that sums find it in a cache */

/* An operation in pieces. Positions' slices lie at begin[]; slot i of a lane is for what belongs to position i. */
typedef struct work work;
typedef tm_status work_fn(const work *w, comm_lane *lane, uint64_t at);
struct work {
    tm_comm *c;
    const tm_comm_op *op;
    const comm_group *g;
    uint32_t nodes; /* grid's nodes if staged, else 1 */
    bool staged;
    uint64_t piece;  /* elements */
    uint64_t stride; /* bytes of a slot */
    const float *send;
    float *out; /* my slice of the sum */
    char *recv;
    work_fn *first, *second, *finish; /* posts; posts after the first has arrived (staged); when all is there */
};

/* ---- pieces ---- */

static uint64_t slice(const work *w, uint32_t position) {
    const uint64_t *begin = w->c->remote->begin;
    return begin[position + 1] - begin[position];
}

/* Elements of a position's slice in the piece at `at`. */
static uint64_t part(const work *w, uint32_t position, uint64_t at) {
    uint64_t n = slice(w, position);
    return at >= n ? 0 : tm_min_u64(w->piece, n - at);
}

static uint64_t part_bytes(const work *w, uint32_t position, uint64_t at) {
    return comm_wire_bytes(w->op, part(w, position, at));
}

static char *slot(const work *w, const comm_lane *lane, uint64_t i) {
    return lane->memory + i * w->stride;
}

static uint64_t longest_slice(const work *w) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < w->g->size; i++) most = tm_max_u64(most, slice(w, i));
    return most;
}

static comm_route route(const work *w, comm_lane *lane, int stage) {
    return (comm_route){.c = w->c, .g = w->g, .lane = lane, .group = w->op->group, .stage = stage};
}

void comm_begin(tm_comm *c, const tm_comm_op *op) {
    const comm_group *g = &c->groups[op->group];
    uint64_t *begin = c->remote->begin;
    begin[0] = 0;
    for (uint32_t i = 0; i < g->size; i++) begin[i + 1] = begin[i] + comm_slice(g, op, i);
}

/* Piece after piece, the next one posted before the last one is summed. Every member makes as many. */
static tm_status run(const work *w) {
    uint64_t longest = longest_slice(w), pieces = (longest + w->piece - 1) / w->piece;
    comm_lane *lanes = w->c->remote->lane;
    if (pieces) TM_TRY(w->first(w, &lanes[0], 0));
    for (uint64_t i = 0; i < pieces; i++) {
        comm_lane *lane = &lanes[i % 2], *other = &lanes[(i + 1) % 2];
        if (w->second && i) {
            TM_TRY(comm_wait_lane(w->c, other));
            TM_TRY(w->finish(w, other, (i - 1) * w->piece));
        }
        if (i + 1 < pieces) TM_TRY(w->first(w, other, (i + 1) * w->piece));
        TM_TRY(comm_wait_lane(w->c, lane));
        TM_TRY((w->second ? w->second : w->finish)(w, lane, i * w->piece));
    }
    if (!w->second || !pieces) return TM_OK;
    comm_lane *lane = &lanes[(pieces - 1) % 2];
    TM_TRY(comm_wait_lane(w->c, lane));
    return w->finish(w, lane, (pieces - 1) * w->piece);
}

/* ---- sums ---- */

static void sum(const work *w, const uint32_t *first, uint32_t nodes, uint64_t n, float *out) {
    uint64_t start = tm_now_ns();
    comm_sum_tree(w->op->wire, w->c->remote->source, first, nodes, n, out);
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

static const float *mine_for(const work *w, uint32_t position, uint64_t at) {
    return w->send + w->c->remote->begin[position] + tm_min_u64(at, slice(w, position));
}

/* ---- reduce-scatter, flat: slots [0, n) arrive, [n, 2n) leave ---- */

static tm_status flat_first(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = route(w, lane, 0);
    for (uint32_t i = 0; i < g->size; i++)
        if (i != g->me) TM_TRY(comm_post_recv(&r, i, slot(w, lane, i), part_bytes(w, g->me, at)));
    for (uint32_t i = 0; i < g->size; i++) {
        if (i == g->me) continue;
        const void *x = encoded(w, mine_for(w, i, at), part(w, i, at), slot(w, lane, g->size + i));
        TM_TRY(comm_post_send(&r, i, x, part_bytes(w, i, at)));
    }
    return TM_OK;
}

static tm_status flat_finish(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    uint64_t n = part(w, g->me, at);
    for (uint32_t t = 0; t < g->size; t++) {
        uint32_t i = g->tree[t];
        const void *own = i == g->me ? encoded(w, mine_for(w, i, at), n, slot(w, lane, i)) : NULL;
        w->c->remote->source[t] = own ? own : slot(w, lane, i);
    }
    sum(w, g->first, g->nodes, n, w->out + at);
    return TM_OK;
}

/* ---- reduce-scatter, staged: slots [0, n) arrive from my node, [n, 2n) leave to it; then a sum for each node (fp32),
 * what leaves to the nodes, what arrives from them ---- */

typedef struct staged_slots {
    float *sum;           /* [nodes][piece] */
    char *leave, *arrive; /* [nodes] slots */
} staged_slots;

static staged_slots second_slots(const work *w, const comm_lane *lane) {
    char *sums = slot(w, lane, 2 * (uint64_t)w->g->size);
    char *leave = sums + (uint64_t)w->nodes * w->piece * sizeof(float);
    return (staged_slots){(float *)sums, leave, leave + w->nodes * w->stride};
}

static tm_status staged_first(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = route(w, lane, 0);
    for (uint32_t p = 0; p < g->per_node; p++)
        for (uint32_t k = 0; k < g->nodes && p != g->my_place; k++)
            TM_TRY(comm_post_recv(&r, comm_at(g, g->my_node, p), slot(w, lane, p * g->nodes + k),
                                  part_bytes(w, comm_at(g, k, g->my_place), at)));
    for (uint32_t p = 0; p < g->per_node; p++) {
        for (uint32_t k = 0; k < g->nodes && p != g->my_place; k++) {
            uint32_t i = comm_at(g, k, p);
            const void *x = encoded(w, mine_for(w, i, at), part(w, i, at), slot(w, lane, g->size + i));
            TM_TRY(comm_post_send(&r, comm_at(g, g->my_node, p), x, part_bytes(w, i, at)));
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
        char *there = slot(w, lane, p * g->nodes + k);
        w->c->remote->source[p] = p == g->my_place ? encoded(w, mine_for(w, i, at), part(w, i, at), there) : there;
    }
    sum(w, all, 1, part(w, i, at), out);
}

static tm_status staged_second(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = route(w, lane, 1);
    const staged_slots s = second_slots(w, lane);
    for (uint32_t k = 0; k < g->nodes; k++) {
        uint32_t i = comm_at(g, k, g->my_place);
        float *total = s.sum + k * w->piece;
        sum_in_node(w, lane, k, at, total);
        if (k == g->my_node) continue;
        TM_TRY(comm_post_recv(&r, i, s.arrive + k * w->stride, part_bytes(w, g->me, at)));
        const void *x = encoded(w, total, part(w, i, at), s.leave + k * w->stride);
        TM_TRY(comm_post_send(&r, i, x, part_bytes(w, i, at)));
    }
    return TM_OK;
}

static tm_status staged_finish(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const staged_slots s = second_slots(w, lane);
    const uint32_t all[2] = {0, g->nodes};
    uint64_t n = part(w, g->me, at);
    for (uint32_t k = 0; k < g->nodes; k++) {
        char *there = s.arrive + k * w->stride;
        w->c->remote->source[k] = k == g->my_node ? encoded(w, s.sum + k * w->piece, n, there) : there;
    }
    sum(w, all, 1, n, w->out + at);
    return TM_OK;
}

/* ---- how long a piece may be ---- */

/* Whole quantisation blocks, so that they begin where those of the slice do. `slots` of one block each, and `floats`
 * blocks of fp32 beside them, lie in a lane. */
static void set_piece(work *w, uint64_t slots, uint64_t floats) {
    const uint64_t block = TM_COMM_QUANT_BLOCK, lane = w->c->workspace_bytes / 128 * 64;
    uint64_t one = slots * comm_wire_bytes(w->op, block) + floats * block * sizeof(float);
    uint64_t blocks = (lane - 64 * slots) / one;
    w->piece = tm_min_u64(blocks * block, PIECE_ELEMENTS);
    w->stride = tm_round_up(comm_wire_bytes(w->op, w->piece), 64);
    TM_ASSERT(blocks > 0);
}

static work make_work(tm_comm *c, const tm_comm_op *op) {
    const comm_group *g = &c->groups[op->group];
    bool staged = comm_in_stages(g, op);
    return (work){
        .c = c, .op = op, .g = g, .send = op->send, .recv = op->recv, .staged = staged, .nodes = staged ? g->nodes : 1};
}

tm_status comm_reduce_scatter(tm_comm *c, const tm_comm_op *op, float *out) {
    work w = make_work(c, op);
    w.out = out;
    w.first = w.staged ? staged_first : flat_first;
    w.second = w.staged ? staged_second : NULL;
    w.finish = w.staged ? staged_finish : flat_finish;
    set_piece(&w, 2 * (uint64_t)w.g->size + (w.staged ? 2 * w.nodes : 0), w.staged ? w.nodes : 0);
    return run(&w);
}

/* ---- all-gather: where position i's piece lies on its way ---- */

static void *place_of(const work *w, const comm_lane *lane, uint32_t i, uint64_t at) {
    if (w->op->wire != TM_COMM_EXACT && w->op->code == TM_COMM_ALL_GATHER) return slot(w, lane, i);
    uint64_t begin = w->c->remote->begin[i] + tm_min_u64(at, slice(w, i));
    return w->recv + begin * tm_comm_type_bytes(w->op->type);
}

static tm_status pass(const work *w, const comm_route *r, uint32_t to, uint32_t mine, uint32_t theirs, uint64_t at) {
    TM_TRY(comm_post_recv(r, to, place_of(w, r->lane, theirs, at), part_bytes(w, theirs, at)));
    return comm_post_send(r, to, place_of(w, r->lane, mine, at), part_bytes(w, mine, at));
}

static void encode_mine(const work *w, comm_lane *lane, uint64_t at) {
    uint64_t n = part(w, w->g->me, at), start = tm_now_ns();
    if (!n || w->op->wire == TM_COMM_EXACT) return;
    comm_encode_bf16(w->op->wire, (const uint16_t *)w->op->send + at, n, slot(w, lane, w->g->me));
    atomic_fetch_add_explicit(&w->c->counters.sum_ns, tm_now_ns() - start, memory_order_relaxed);
}

static tm_status gather_flat(const work *w, comm_lane *lane, uint64_t at) {
    const comm_route r = route(w, lane, 0);
    encode_mine(w, lane, at);
    for (uint32_t i = 0; i < w->g->size; i++)
        if (i != w->g->me) TM_TRY(pass(w, &r, i, w->g->me, i, at));
    return TM_OK;
}

static tm_status gather_across(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = route(w, lane, 0);
    encode_mine(w, lane, at);
    for (uint32_t k = 0; k < g->nodes; k++) {
        uint32_t i = comm_at(g, k, g->my_place);
        if (k != g->my_node) TM_TRY(pass(w, &r, i, g->me, i, at));
    }
    return TM_OK;
}

static tm_status gather_in_node(const work *w, comm_lane *lane, uint64_t at) {
    const comm_group *g = w->g;
    const comm_route r = route(w, lane, 1);
    for (uint32_t p = 0; p < g->per_node; p++)
        for (uint32_t k = 0; k < g->nodes && p != g->my_place; k++)
            TM_TRY(pass(w, &r, comm_at(g, g->my_node, p), comm_at(g, k, g->my_place), comm_at(g, k, p), at));
    return TM_OK;
}

static tm_status gather_finish(const work *w, comm_lane *lane, uint64_t at) {
    uint64_t start = tm_now_ns();
    if (w->op->wire == TM_COMM_EXACT) return TM_OK;
    for (uint32_t i = 0; i < w->g->size; i++) {
        uint64_t n = part(w, i, at);
        if (!n) continue;
        uint16_t *to = (uint16_t *)w->op->recv + w->c->remote->begin[i] + at;
        comm_decode_bf16(w->op->wire, slot(w, lane, i), n, to);
    }
    atomic_fetch_add_explicit(&w->c->counters.sum_ns, tm_now_ns() - start, memory_order_relaxed);
    return TM_OK;
}

tm_status comm_all_gather(tm_comm *c, const tm_comm_op *op) {
    work w = make_work(c, op);
    w.first = w.staged ? gather_across : gather_flat;
    w.second = w.staged ? gather_in_node : NULL;
    w.finish = gather_finish;
    if (op->wire != TM_COMM_EXACT) {
        set_piece(&w, w.g->size, 0);
        return run(&w);
    }
    const uint64_t bytes = tm_comm_type_bytes(op->type);
    w.piece = (w.staged ? 1 << 20 : COMM_MESSAGE_BYTES / 8) / bytes;
    char *mine = w.recv + c->remote->begin[w.g->me] * bytes;
    if (op->send && op->send != mine && slice(&w, w.g->me)) memcpy(mine, op->send, slice(&w, w.g->me) * bytes);
    return run(&w);
}
