/* Slices in pieces: the next one is posted before the last one is summed, so that it travels meanwhile.
 *
 *     piece i      first stage | sum, second stage |             sum, done
 *     piece i + 1              |    first stage    |  ...
 */
#include "comm/work_internal.h"

/* Longest piece: 1 MiB in fp32. Sums still find it in a cache; and what two of them have under way on a link of 1 Gbit
 * lasts 20 ms, longer than this thread may have to wait for a core beside compute. */
enum { PIECE_ELEMENTS = 256 << 10 };

uint64_t work_slice(const work *w, uint32_t position) {
    const uint64_t *begin = w->c->remote->begin;
    return begin[position + 1] - begin[position];
}

uint64_t work_part(const work *w, uint32_t position, uint64_t at) {
    uint64_t n = work_slice(w, position);
    return at >= n ? 0 : tm_min_u64(w->piece, n - at);
}

uint64_t work_part_bytes(const work *w, uint32_t position, uint64_t at) {
    return comm_wire_bytes(w->op, work_part(w, position, at));
}

char *work_slot(const work *w, const comm_lane *lane, uint64_t i) {
    return lane->memory + i * w->stride;
}

comm_route work_route(const work *w, comm_lane *lane, int stage) {
    return (comm_route){.c = w->c, .g = w->g, .lane = lane, .group = w->op->group, .stage = stage};
}

void comm_begin(tm_comm *c, const tm_comm_op *op) {
    const comm_group *g = &c->groups[op->group];
    uint64_t *begin = c->remote->begin;
    begin[0] = 0;
    for (uint32_t i = 0; i < g->size; i++) begin[i + 1] = begin[i] + comm_slice(g, op, i);
}

work work_make(tm_comm *c, const tm_comm_op *op) {
    const comm_group *g = &c->groups[op->group];
    bool staged = comm_in_stages(g, op);
    return (work){
        .c = c, .op = op, .g = g, .send = op->send, .recv = op->recv, .staged = staged, .nodes = staged ? g->nodes : 1};
}

/* Whole quantisation blocks, so that they begin where those of the slice do. */
void work_set_piece(work *w, uint64_t slots, uint64_t floats) {
    const uint64_t block = TM_COMM_QUANT_BLOCK, lane = w->c->workspace_bytes / 128 * 64;
    uint64_t one = slots * comm_wire_bytes(w->op, block) + floats * block * sizeof(float);
    uint64_t blocks = (lane - 64 * slots) / one;
    w->piece = tm_min_u64(blocks * block, PIECE_ELEMENTS);
    w->stride = tm_round_up(comm_wire_bytes(w->op, w->piece), 64);
    TM_ASSERT(blocks > 0);
}

static uint64_t longest_slice(const work *w) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < w->g->size; i++) most = tm_max_u64(most, work_slice(w, i));
    return most;
}

/* Every member makes as many pieces. */
tm_status work_run(const work *w) {
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
