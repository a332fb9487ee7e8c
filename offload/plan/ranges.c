/* A sorted map of address ranges, in blocks. */
#include "offload/plan/ranges_internal.h"
#include "base/ordered.h"

#include <string.h>

enum { BLOCK = 256 };

void ranges_close(range_map *m) {
    for (uint32_t b = 0; b < m->n; b++) tm_free(m->block[b].r);
    tm_free(m->block);
    tm_free(m->seen);
    *m = (range_map){0};
}

range *ranges_get(const range_map *m, range_at at) {
    return at.block < m->n ? &m->block[at.block].r[at.i] : NULL;
}

typedef struct wanted {
    const range_block *block;
    const range *range;
    uint64_t address;
} wanted;

static inline bool block_ends_before(const void *ctx, size_t i) {
    const wanted *w = ctx;
    return w->block[i].r[w->block[i].n - 1].end <= w->address;
}

static inline bool range_ends_before(const void *ctx, size_t i) {
    const wanted *w = ctx;
    return w->range[i].end <= w->address;
}

static range_at find_anew(const range_map *m, uint64_t address) {
    wanted blocks = {.block = m->block, .address = address};
    uint32_t at = (uint32_t)tm_lower_bound(m->n, block_ends_before, &blocks);
    if (at == m->n) return (range_at){m->n, 0};
    wanted ranges = {.range = m->block[at].r, .address = address};
    return (range_at){at, (uint32_t)tm_lower_bound(m->block[at].n, range_ends_before, &ranges)};
}

/* About as many as there are ranges; without memory for more it is slower. */
static void grow_seen(range_map *m) {
    uint32_t n = m->n_seen ? 2 * m->n_seen : BLOCK;
    range_at *seen = tm_calloc(n, sizeof *seen);
    if (!seen) {
        tm_error_clear();
        return;
    }
    tm_free(m->seen);
    m->seen = seen;
    m->n_seen = n;
}

static inline uint32_t place_of(const range_map *m, uint64_t address) {
    return (uint32_t)(address / TM_FRAME_ALIGN * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (m->n_seen - 1);
}

range_at ranges_find(range_map *m, uint64_t address) {
    if (m->n_seen < m->ranges && m->ranges > BLOCK) grow_seen(m);
    if (m->n_seen == 0) return find_anew(m, address);
    range_at *seen = &m->seen[place_of(m, address)];
    if (seen->block < m->n && seen->i < m->block[seen->block].n) {
        const range *r = &m->block[seen->block].r[seen->i];
        if (r->begin <= address && address < r->end) return *seen;
    }
    *seen = find_anew(m, address);
    return *seen;
}

static bool insert_block(range_map *m, uint32_t at) {
    TM_ASSERT(at <= m->n);
    range *r = tm_malloc(sizeof *r * BLOCK);
    if (!r || tm_grow(&m->block, &m->cap, m->n + 1, sizeof *m->block) != TM_OK) {
        tm_free(r);
        m->nomem = true;
        return false;
    }
    memmove(&m->block[at + 1], &m->block[at], (m->n - at) * sizeof *m->block);
    m->block[at] = (range_block){r, 0};
    m->n++;
    return true;
}

static void insert_range(range_map *m, range_at at, const range *r) {
    TM_ASSERT(r->begin < r->end);
    if (at.block == m->n) { /* behind the last */
        if (m->n == 0 || m->block[m->n - 1].n == BLOCK) {
            if (!insert_block(m, m->n)) return;
        }
        at = (range_at){m->n - 1, m->block[m->n - 1].n};
    }
    range_block *b = &m->block[at.block];
    if (b->n == BLOCK) {
        if (!insert_block(m, at.block + 1)) return;
        b = &m->block[at.block];
        range_block *next = b + 1;
        next->n = BLOCK / 2;
        b->n = BLOCK - BLOCK / 2;
        memcpy(next->r, b->r + b->n, next->n * sizeof *next->r);
        if (at.i > b->n) {
            at.i -= b->n;
            b = next;
        }
    }
    memmove(&b->r[at.i + 1], &b->r[at.i], (b->n - at.i) * sizeof *b->r);
    b->r[at.i] = *r;
    b->n++;
    m->ranges++;
}

static void take_out(range_map *m, range_at at) {
    range_block *b = &m->block[at.block];
    TM_ASSERT(at.block < m->n && at.i < b->n);
    b->n--;
    m->ranges--;
    memmove(&b->r[at.i], &b->r[at.i + 1], (b->n - at.i) * sizeof *b->r);
    if (b->n > 0) return;
    tm_free(b->r);
    m->n--;
    memmove(b, b + 1, (m->n - at.block) * sizeof *b);
}

void ranges_cut(range_map *m, uint64_t address) {
    range_at at = ranges_find(m, address);
    range *r = ranges_get(m, at);
    if (!r || r->begin >= address) return;
    range head = *r;
    head.end = address;
    r->begin = address;
    insert_range(m, at, &head);
}

void ranges_put(range_map *m, const range *r) {
    TM_ASSERT(r->begin < r->end);
    ranges_cut(m, r->begin);
    ranges_cut(m, r->end);
    range_at at = ranges_find(m, r->begin);
    range *first = ranges_get(m, at);
    if (!first || first->begin >= r->end) {
        insert_range(m, at, r);
        return;
    }
    *first = *r;
    for (;;) { /* what else was inside */
        at = ranges_next(m, at);
        const range *more = ranges_get(m, at);
        if (!more || more->begin >= r->end) return;
        take_out(m, at);
        at = ranges_find(m, r->begin);
    }
}
