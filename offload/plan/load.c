/* Bytes in use by program position: a segment tree with additions over ranges, walked from the leaves up.
 *
 * Position i is leaf `leaves + i + 1`: the first and the last leaf stay empty, so that an open interval of leaves
 * covers any range of positions. */
#include "offload/plan/load_internal.h"

#include <string.h>

static const int64_t NOTHING = INT64_MIN / 2;

tm_status load_open(load_tree *l, uint32_t positions) {
    *l = (load_tree){.leaves = 1};
    while (l->leaves < positions + 2) l->leaves *= 2;
    l->top = tm_calloc((size_t)l->leaves * 2, sizeof *l->top);
    l->add = tm_calloc((size_t)l->leaves * 2, sizeof *l->add);
    return l->top && l->add ? TM_OK : tm_nomem(sizeof *l->top * l->leaves * 4);
}

void load_close(load_tree *l) {
    tm_free(l->top);
    tm_free(l->add);
    *l = (load_tree){0};
}

void load_clear(load_tree *l) {
    memset(l->top, 0, sizeof *l->top * l->leaves * 2);
    memset(l->add, 0, sizeof *l->add * l->leaves * 2);
}

static int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void raise_node(load_tree *l, uint32_t node, int64_t bytes) {
    l->top[node] += bytes;
    l->add[node] += bytes;
}

static void settle_node(load_tree *l, uint32_t node) {
    l->top[node] = max_i64(l->top[2 * node], l->top[2 * node + 1]) + l->add[node];
}

/* Until load_begin a leaf has what it differs by from the one before. */
void load_first(load_tree *l, uint32_t from, uint32_t to, int64_t bytes) {
    TM_ASSERT(from <= to && to + 2 < l->leaves);
    l->top[l->leaves + from + 1] += bytes;
    l->top[l->leaves + to + 2] -= bytes;
}

void load_begin(load_tree *l) {
    int64_t now = 0;
    for (uint32_t i = l->leaves; i < 2 * l->leaves; i++) l->top[i] = now += l->top[i];
    for (uint32_t node = l->leaves; node-- > 1;) settle_node(l, node);
}

void load_add(load_tree *l, uint32_t from, uint32_t to, int64_t bytes) {
    TM_ASSERT(from <= to && to + 2 < l->leaves);
    uint32_t a = l->leaves + from, b = l->leaves + to + 2; /* the leaves beside the range */
    for (; (a ^ b) != 1; a /= 2, b /= 2) {
        if (!(a & 1)) raise_node(l, a + 1, bytes);
        if (b & 1) raise_node(l, b - 1, bytes);
        settle_node(l, a / 2);
        settle_node(l, b / 2);
    }
    for (a /= 2; a > 0; a /= 2) settle_node(l, a);
}

int64_t load_most(const load_tree *l, uint32_t from, uint32_t to) {
    TM_ASSERT(from <= to && to + 2 < l->leaves);
    uint32_t a = l->leaves + from, b = l->leaves + to + 2;
    int64_t left = NOTHING, right = NOTHING;
    for (; (a ^ b) != 1; a /= 2, b /= 2) {
        if (!(a & 1)) left = max_i64(left, l->top[a + 1]);
        if (b & 1) right = max_i64(right, l->top[b - 1]);
        left += l->add[a / 2];
        right += l->add[b / 2];
    }
    int64_t most = max_i64(left, right);
    for (a /= 2; a > 0; a /= 2) most += l->add[a];
    return most;
}

/* The first leaf from `from` on, of those below `node` ([lo, hi]), with more than `limit`; leaves where there is none.
 */
static uint32_t first_above(const load_tree *l, uint32_t node, uint32_t lo, uint32_t hi, uint32_t from, int64_t limit) {
    if (hi < from || l->top[node] <= limit) return l->leaves;
    if (lo == hi) return lo;
    uint32_t mid = (lo + hi) / 2;
    uint32_t at = first_above(l, 2 * node, lo, mid, from, limit - l->add[node]);
    return at < l->leaves ? at : first_above(l, 2 * node + 1, mid + 1, hi, from, limit - l->add[node]);
}

uint32_t load_first_above(const load_tree *l, uint32_t from, int64_t limit) {
    return first_above(l, 1, 0, l->leaves - 1, from + 1, limit) - 1;
}
