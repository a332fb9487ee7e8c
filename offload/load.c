/* Bytes in use by program position: a segment tree with additions over ranges. */
#include "offload/load_internal.h"

#include <string.h>

tm_status load_open(load_tree *l, uint32_t positions) {
    *l = (load_tree){.leaves = 1};
    while (l->leaves < positions) l->leaves *= 2;
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

/* `node` covers [lo, hi]. The tree is as deep as log2 of the positions. */
static void add(load_tree *l, uint32_t node, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to, int64_t bytes) {
    if (to < lo || hi < from) return;
    if (from <= lo && hi <= to) {
        l->top[node] += bytes;
        l->add[node] += bytes;
        return;
    }
    uint32_t mid = (lo + hi) / 2;
    add(l, 2 * node, lo, mid, from, to, bytes);
    add(l, 2 * node + 1, mid + 1, hi, from, to, bytes);
    int64_t a = l->top[2 * node], b = l->top[2 * node + 1];
    l->top[node] = (a > b ? a : b) + l->add[node];
}

static int64_t most(const load_tree *l, uint32_t node, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to) {
    if (to < lo || hi < from) return INT64_MIN / 2;
    if (from <= lo && hi <= to) return l->top[node];
    uint32_t mid = (lo + hi) / 2;
    int64_t a = most(l, 2 * node, lo, mid, from, to), b = most(l, 2 * node + 1, mid + 1, hi, from, to);
    return (a > b ? a : b) + l->add[node];
}

/* The first position from `from` on with more than `limit`; leaves where there is none. */
static uint32_t first_above(const load_tree *l, uint32_t node, uint32_t lo, uint32_t hi, uint32_t from, int64_t limit) {
    if (hi < from || l->top[node] <= limit) return l->leaves;
    if (lo == hi) return lo;
    uint32_t mid = (lo + hi) / 2;
    uint32_t at = first_above(l, 2 * node, lo, mid, from, limit - l->add[node]);
    return at < l->leaves ? at : first_above(l, 2 * node + 1, mid + 1, hi, from, limit - l->add[node]);
}

void load_add(load_tree *l, uint32_t from, uint32_t to, int64_t bytes) {
    add(l, 1, 0, l->leaves - 1, from, to, bytes);
}

int64_t load_most(const load_tree *l, uint32_t from, uint32_t to) {
    return most(l, 1, 0, l->leaves - 1, from, to);
}

uint32_t load_first_above(const load_tree *l, uint32_t from, int64_t limit) {
    return first_above(l, 1, 0, l->leaves - 1, from, limit);
}
