/* What an operation is, before anybody carries it out: names, sizes, sense, and the copy that it is for one member. */
#include "comm/comm_internal.h"

#include <string.h>

const char *tm_comm_code_name(tm_comm_code code) {
    static const char *const names[TM_COMM_CODES] = {"reduce_scatter", "all_gather", "all_reduce", "broadcast",
                                                     "barrier",        "send",       "recv",       "exchange"};
    return (unsigned)code < TM_COMM_CODES ? names[code] : "unknown";
}

uint32_t tm_comm_type_bytes(tm_comm_type type) {
    static const uint8_t bytes[] = {4, 2, 8, 8, 1};
    return (unsigned)type < sizeof bytes ? bytes[type] : 0;
}

uint64_t comm_slice(const comm_group *g, const tm_comm_op *op, uint32_t position) {
    if (op->code != TM_COMM_ALL_REDUCE && op->code != TM_COMM_BROADCAST)
        return op->counts ? op->counts[position] : op->count;
    uint64_t slice = (op->count + g->size - 1) / g->size, begin = slice * position;
    return begin >= op->count ? 0 : tm_min_u64(slice, op->count - begin);
}

bool comm_in_stages(const comm_group *g, const tm_comm_op *op) {
    if (!g->grid || op->flat || op->wire == TM_COMM_WIRE_MPI) return false;
    return op->code <= TM_COMM_BROADCAST && (op->code != TM_COMM_ALL_REDUCE || op->type == TM_COMM_F32);
}

uint64_t comm_wire_bytes(const tm_comm_op *op, uint64_t n) {
    if (op->wire == TM_COMM_WIRE_BF16) return 2 * n;
    if (op->wire == TM_COMM_WIRE_Q8 || op->wire == TM_COMM_WIRE_Q4) return tm_comm_quant_bytes(op->wire, n);
    return tm_comm_type_bytes(op->type) * n;
}

/* ---- does it make sense? ---- */

static bool wire_fits(const tm_comm_op *op) {
    bool f32 = op->type == TM_COMM_F32, quant = op->wire == TM_COMM_WIRE_Q8 || op->wire == TM_COMM_WIRE_Q4;
    switch (op->code) {
    case TM_COMM_REDUCE_SCATTER:
        return op->wire != TM_COMM_WIRE_MPI;
    case TM_COMM_ALL_REDUCE:
        return op->wire == TM_COMM_EXACT || f32;
    case TM_COMM_ALL_GATHER:
        return op->wire == TM_COMM_EXACT || (quant && op->type == TM_COMM_BF16);
    default:
        return op->wire == TM_COMM_EXACT;
    }
}

static bool type_fits(const tm_comm_op *op) {
    if (op->code == TM_COMM_REDUCE_SCATTER) return op->type == TM_COMM_F32;
    if (op->code != TM_COMM_ALL_REDUCE) return tm_comm_type_bytes(op->type) > 0;
    if (op->type == TM_COMM_F32) return op->reduce == TM_COMM_SUM;
    return op->type == TM_COMM_F64 || op->type == TM_COMM_U64;
}

static bool peers_fit(const tm_comm *c, const tm_comm_op *op) {
    uint32_t n = c->groups[op->group].size;
    bool alone = (op->code == TM_COMM_SEND || op->code == TM_COMM_RECV) && op->peer == c->groups[op->group].me;
    return op->peer < n && op->from < n && !alone;
}

/* Those of my node have to be in the group, all of them. */
static bool sharing_fits(const tm_comm_op *op) {
    return !op->shared || (op->code == TM_COMM_ALL_GATHER && op->group <= TM_COMM_NODE);
}

tm_status comm_check(const tm_comm *c, const tm_comm_op *op) {
    const char *wrong = (unsigned)op->code >= TM_COMM_CODES     ? "code"
                        : op->group >= c->n_groups              ? "group"
                        : !type_fits(op)                        ? "type"
                        : (unsigned)op->wire > TM_COMM_WIRE_MPI ? "wire"
                        : !wire_fits(op)                        ? "wire"
                        : (unsigned)op->reduce > TM_COMM_MAX    ? "reduction"
                        : !peers_fit(c, op)                     ? "peer"
                        : !sharing_fits(op)                     ? "sharing"
                        : op->under_way                         ? "state (it is under way)"
                                                                : NULL;
    if (!wrong) return TM_OK;
    return tm_fail(TM_EBUG, "%s on group %u: no such %s", tm_comm_code_name(op->code), op->group, wrong);
}

static void copy(void *to, const void *from, uint64_t bytes) {
    if (from && to && to != from && bytes) memmove(to, from, bytes);
}

void comm_local(const tm_comm_op *op) {
    uint64_t bytes = tm_comm_type_bytes(op->type);
    switch (op->code) {
    case TM_COMM_REDUCE_SCATTER:
    case TM_COMM_ALL_GATHER:
        copy(op->recv, op->send, (op->counts ? op->counts[0] : op->count) * bytes);
        break;
    case TM_COMM_ALL_REDUCE:
    case TM_COMM_EXCHANGE:
        copy(op->recv, op->send, op->count * bytes);
        break;
    default:
        break;
    }
}
