/* Packing: addresses for live ranges, so that those which overlap in time do not overlap in memory.
 *
 * The positions are walked; each frame takes the tightest gap that is there, and gives it back joined to its neighbours.
 * Memory is a list of *blocks* in the order of addresses, frames and gaps; gaps are also in *bins* by size, so that no
 * step takes longer the more there are. A bin has one size where sizes are small, else sizes that differ by less than a
 * 64th; in a bin the first few are looked at. Where some live ranges come down from the top, gaps are in *cells* by
 * address as well, under a tree of the largest gap of each, so that the highest gap is found. */
#include "offload/offload_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { BIN_BITS = 6, BINS = 1 << BIN_BITS, LEVELS = 64 - BIN_BITS, LOOKED_AT = 16, CELLS = 1024 };

typedef struct block {
    uint64_t begin, end;
    uint32_t before, after; /* in memory */
    uint32_t prev, next;    /* in its bin */
    uint32_t lower, upper;  /* in its cell, in no order */
    bool gap;
} block;

/* Memory below `top`, in cells of `bytes`; a gap is in the one where it ends. */
typedef struct heights {
    uint64_t base, top, bytes;
    uint64_t most[2 * CELLS]; /* heap-shaped: no gap below a node is larger */
    uint32_t gap[CELLS];      /* a list */
} heights;

/* Block 0 is nobody. */
typedef struct memory {
    block *block;
    uint32_t n, unused; /* unused: a list, by `next` */
    size_t cap;
    uint64_t levels, bins[LEVELS]; /* which have a gap, as bits */
    uint32_t bin[LEVELS][BINS];
    heights *heights; /* NULL: nobody asks */
} memory;

static uint64_t size_of(const block *b) {
    return b->end - b->begin;
}

/* ---- gaps by height -------------------------------------------------------------------------------------------- */

static uint32_t cell_of(const heights *h, const block *b) {
    return (uint32_t)((b->end - 1 - h->base) / h->bytes);
}

static bool has_height(const memory *m, const block *b) {
    return m->heights && b->end <= m->heights->top;
}

static void put_height(memory *m, uint32_t i) {
    heights *h = m->heights;
    block *b = &m->block[i];
    if (!has_height(m, b)) return;
    uint32_t *first = &h->gap[cell_of(h, b)];
    b->lower = 0;
    b->upper = *first;
    if (*first) m->block[*first].lower = i;
    *first = i;
    for (uint32_t node = CELLS + cell_of(h, b); node && h->most[node] < size_of(b); node /= 2)
        h->most[node] = size_of(b);
}

/* The tree is brought down where it is asked. */
static void take_height(memory *m, uint32_t i) {
    const block *b = &m->block[i];
    if (!has_height(m, b)) return;
    if (b->upper) m->block[b->upper].lower = b->lower;
    if (b->lower)
        m->block[b->lower].upper = b->upper;
    else
        m->heights->gap[cell_of(m->heights, b)] = b->upper;
}

/* Of a cell the highest of at least so many bytes; 0: none, and what the tree says of it is true from then on. */
static uint32_t highest_in(memory *m, uint32_t cell, uint64_t bytes) {
    heights *h = m->heights;
    uint32_t found = 0;
    uint64_t most = 0;
    for (uint32_t i = h->gap[cell]; i; i = m->block[i].upper) {
        const block *b = &m->block[i];
        most = tm_max_u64(most, size_of(b));
        if (size_of(b) >= bytes && (!found || b->begin > m->block[found].begin)) found = i;
    }
    if (found) return found;
    h->most[CELLS + cell] = most;
    for (uint32_t node = (CELLS + cell) / 2; node; node /= 2)
        h->most[node] = tm_max_u64(h->most[2 * node], h->most[2 * node + 1]);
    return 0;
}

/* 0: none below the top. */
static uint32_t highest_gap(memory *m, uint64_t bytes) {
    const uint64_t *most = m->heights->most;
    while (most[1] >= bytes) {
        uint32_t node = 1;
        while (node < CELLS) node = 2 * node + (most[2 * node + 1] >= bytes);
        uint32_t found = highest_in(m, node - CELLS, bytes);
        if (found) return found;
    }
    return 0;
}

/* ---- gaps by size ---------------------------------------------------------------------------------------------- */

typedef struct place {
    uint32_t level, bin;
} place;

/* Level 0: of so many pages. Then twice as many pages a level, in as many bins. */
static place place_of(uint64_t bytes) {
    uint64_t pages = bytes / TM_FRAME_ALIGN;
    if (pages < BINS) return (place){0, (uint32_t)pages};
    uint32_t shift = 63 - (uint32_t)__builtin_clzll(pages) - BIN_BITS;
    return (place){shift + 1, (uint32_t)(pages >> shift) & (BINS - 1)};
}

static void put_gap(memory *m, uint32_t i) {
    block *b = &m->block[i];
    place at = place_of(size_of(b));
    uint32_t *head = &m->bin[at.level][at.bin];
    b->gap = true;
    b->prev = 0;
    b->next = *head;
    if (*head) m->block[*head].prev = i;
    *head = i;
    m->bins[at.level] |= UINT64_C(1) << at.bin;
    m->levels |= UINT64_C(1) << at.level;
    put_height(m, i);
}

static void take_gap(memory *m, uint32_t i) {
    block *b = &m->block[i];
    place at = place_of(size_of(b));
    take_height(m, i);
    if (b->next) m->block[b->next].prev = b->prev;
    if (b->prev)
        m->block[b->prev].next = b->next;
    else
        m->bin[at.level][at.bin] = b->next;
    b->gap = false;
    if (m->bin[at.level][at.bin]) return;
    m->bins[at.level] &= ~(UINT64_C(1) << at.bin);
    if (!m->bins[at.level]) m->levels &= ~(UINT64_C(1) << at.level);
}

/* Of the first few of a bin the smallest of at least so many bytes, of equals the lowest; 0: none. */
static uint32_t tightest_in(const memory *m, uint32_t head, uint64_t bytes) {
    uint32_t found = 0;
    for (uint32_t i = head, seen = 0; i && seen < LOOKED_AT; i = m->block[i].next, seen++) {
        const block *b = &m->block[i], *f = &m->block[found];
        if (size_of(b) < bytes) continue;
        if (!found || size_of(b) < size_of(f) || (size_of(b) == size_of(f) && b->begin < f->begin)) found = i;
    }
    return found;
}

/* There is always one: the endless one. */
static uint32_t tightest_gap(const memory *m, uint64_t bytes) {
    place at = place_of(bytes);
    uint32_t found = tightest_in(m, m->bin[at.level][at.bin], bytes);
    if (found) return found;
    uint64_t larger = at.bin + 1 < BINS ? m->bins[at.level] & (~UINT64_C(0) << (at.bin + 1)) : 0;
    if (!larger) {
        uint64_t levels = m->levels & (~UINT64_C(0) << (at.level + 1));
        TM_ASSERT(levels != 0);
        at.level = (uint32_t)__builtin_ctzll(levels);
        larger = m->bins[at.level];
    }
    at.bin = (uint32_t)__builtin_ctzll(larger);
    return tightest_in(m, m->bin[at.level][at.bin], bytes);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

/* [begin, end), behind block `before`. False: out of memory. */
static bool add_block(memory *m, uint64_t begin, uint64_t end, uint32_t before, uint32_t *out) {
    uint32_t i = m->unused;
    if (m->n == 0) m->n = 1;
    if (i) {
        m->unused = m->block[i].next;
    } else {
        if (tm_grow(&m->block, &m->cap, m->n + 1, sizeof *m->block) != TM_OK) return false;
        i = m->n++;
    }
    uint32_t after = before ? m->block[before].after : 0;
    m->block[i] = (block){.begin = begin, .end = end, .before = before, .after = after};
    if (before) m->block[before].after = i;
    if (after) m->block[after].before = i;
    *out = i;
    return true;
}

static void drop_block(memory *m, uint32_t i) {
    block *b = &m->block[i];
    if (b->before) m->block[b->before].after = b->after;
    if (b->after) m->block[b->after].before = b->before;
    b->next = m->unused;
    m->unused = i;
}

/* Of gap `i` the lower end, or the upper one; the gap is what is left. 0: out of memory. */
static uint32_t cut_gap(memory *m, uint32_t i, uint64_t bytes, bool high) {
    uint64_t begin = m->block[i].begin, end = m->block[i].end;
    uint32_t frame = i;
    take_gap(m, i);
    if (end - begin == bytes) return frame;
    if (high) {
        if (!add_block(m, end - bytes, end, i, &frame)) return 0;
        m->block[i].end = end - bytes;
        put_gap(m, i);
        return frame;
    }
    uint32_t rest;
    if (!add_block(m, begin + bytes, end, i, &rest)) return 0;
    m->block[i].end = begin + bytes;
    put_gap(m, rest);
    return frame;
}

static void give_back(memory *m, uint32_t i) {
    uint32_t before = m->block[i].before, after = m->block[i].after;
    if (before && m->block[before].gap) {
        take_gap(m, before);
        m->block[i].begin = m->block[before].begin;
        drop_block(m, before);
    }
    if (after && m->block[after].gap) {
        take_gap(m, after);
        m->block[i].end = m->block[after].end;
        drop_block(m, after);
    }
    put_gap(m, i);
}

/* Of memory that is all 0: from `base` on, without an end; what crosses `top`, unless that is 0, is nobody's. */
static bool open_memory(memory *m, uint64_t base, uint64_t top) {
    uint32_t below = 0, border = 0, above;
    bool ok = true;
    if (top > base) ok = add_block(m, base, top, 0, &below);
    if (top && ok) ok = add_block(m, top, top + TM_FRAME_ALIGN, below, &border);
    if (ok) ok = add_block(m, top ? top + TM_FRAME_ALIGN : base, UINT64_MAX, border, &above);
    if (ok && below) put_gap(m, below);
    if (ok) put_gap(m, above);
    return ok;
}

/* ---- ways of packing ------------------------------------------------------------------------------------------- */

static int larger(const void *a, const void *b) {
    const live_range *x = *(live_range *const *)a, *y = *(live_range *const *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Among those that begin together, then as they come. */
static void larger_first(live_range **order, uint32_t n) {
    for (uint32_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && order[to]->start == order[from]->start;) to++;
        if (to > from + 1) qsort(order + from, to - from, sizeof *order, larger);
    }
}

typedef struct packing {
    live_range **order, **ends; /* by their beginnings; by their ends */
    uint32_t n;
    uint64_t base;
    uint64_t top; /* not 0: live ranges of at least `span` positions come down from here, the others up from base */
    uint32_t span;
    uint64_t enough; /* it is given up where it does not end below this */
    uint64_t peak;
} packing;

/* Frames are given in order of their beginnings. */
static tm_status pack_in(packing *k, memory *m) {
    uint32_t freed = 0;
    k->peak = k->base;
    for (uint32_t i = 0; i < k->n && k->peak < k->enough; i++) {
        live_range *r = k->order[i];
        for (; k->ends[freed]->retire_at < r->start; freed++) give_back(m, k->ends[freed]->block);
        uint32_t high = k->top && r->retire_at - r->start >= k->span ? highest_gap(m, r->bytes) : 0;
        r->block = cut_gap(m, high ? high : tightest_gap(m, r->bytes), r->bytes, high);
        if (!r->block) return tm_nomem(sizeof(block));
        r->address = m->block[r->block].begin;
        k->peak = tm_max_u64(k->peak, r->address + r->bytes);
    }
    return TM_OK;
}

static bool open_heights(memory *m, uint64_t base, uint64_t top) {
    m->heights = tm_calloc(1, sizeof *m->heights);
    if (!m->heights) return false;
    m->heights->base = base;
    m->heights->top = top;
    m->heights->bytes = (top - base) / CELLS + 1;
    return true;
}

static tm_status pack_frames(packing *k) {
    memory *m = tm_calloc(1, sizeof *m);
    if (!m) return tm_nomem(sizeof *m);
    tm_status rc = tm_stop_check();
    if (rc == TM_OK && k->top && !open_heights(m, k->base, k->top)) rc = tm_nomem(sizeof *m->heights);
    if (rc == TM_OK && !open_memory(m, k->base, k->top)) rc = tm_nomem(sizeof(block));
    if (rc == TM_OK) rc = pack_in(k, m);
    tm_free(m->heights);
    tm_free(m->block);
    tm_free(m);
    return rc;
}

/* Those of k whose length is (`longer`) at least span, in the same orders, into room for as many. */
static packing part_of(const packing *k, bool longer, live_range **room) {
    packing part = {.order = room, .ends = room + k->n, .base = k->base, .enough = k->enough};
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        const live_range *a = k->order[i], *b = k->ends[i];
        if ((a->retire_at - a->start >= k->span) == longer) part.order[part.n++] = k->order[i];
        if ((b->retire_at - b->start >= k->span) == longer) part.ends[n++] = k->ends[i];
    }
    return part;
}

/* Live ranges of at least `span` positions first, at the bottom, so that they do not cut up the space that the streams
 * use. */
static tm_status pack_stacked(packing *k, live_range **room) {
    packing lower = part_of(k, true, room);
    TM_TRY(pack_frames(&lower));
    packing upper = part_of(k, false, room);
    upper.base = k->peak = lower.peak;
    if (lower.peak >= k->enough) return TM_OK;
    tm_status rc = pack_frames(&upper);
    k->peak = upper.peak;
    return rc;
}

/* No packing ends lower: all that is there at some position. */
static tm_status least_peak(const packing *k, uint32_t positions, uint64_t *bound) {
    uint64_t *change = tm_calloc((size_t)positions + 2, sizeof *change), now = k->base; /* modulo 2^64 */
    if (!change) return tm_nomem(sizeof *change * positions);
    for (uint32_t i = 0; i < k->n; i++) {
        change[k->order[i]->start] += k->order[i]->bytes;
        change[k->order[i]->retire_at + 1] -= k->order[i]->bytes;
    }
    *bound = k->base;
    for (uint32_t i = 0; i <= positions; i++) *bound = tm_max_u64(*bound, now += change[i]);
    tm_free(change);
    return TM_OK;
}

static tm_status open_packing(packing *k, live_range **item, const pack_ask *ask, uint64_t *bound) {
    *k = (packing){.order = tm_malloc(sizeof *k->order * ((size_t)ask->n + 1) * 4), .n = ask->n, .base = ask->base};
    if (!k->order) return tm_nomem(sizeof *k->order * ask->n * 4);
    k->ends = k->order + ask->n + 1;
    TM_TRY(place_sort(k->order, item, k->n, ask->positions, offsetof(live_range, start)));
    TM_TRY(place_sort(k->ends, item, k->n, ask->positions, offsetof(live_range, retire_at)));
    larger_first(k->order, k->n);
    return least_peak(k, ask->positions, bound);
}

/* A way that ends no lower than one before is given up where that is seen. */
static tm_status pack_by(packing *k, live_range **item, const pack_ask *ask, uint32_t way, pack_found *f,
                         uint64_t *best) {
    static const struct {
        bool stacked, two_ends;
        uint32_t part;
    } ways[PACK_WAYS] = {{false, false, 1}, {true, false, 8}, {false, true, 8}, {false, true, 32}};
    if (ways[way].two_ends && ask->top <= ask->base) return TM_OK;
    k->top = ways[way].two_ends ? ask->top : 0;
    k->span = ask->positions / ways[way].part;
    k->enough = ask->only_below ? tm_min_u64(f->peak, ask->top + 1) : f->peak;
    TM_TRY(ways[way].stacked ? pack_stacked(k, k->ends + k->n + 1) : pack_frames(k));
    if (k->peak >= k->enough) return TM_OK;
    f->peak = k->peak;
    f->way = way;
    for (uint32_t i = 0; i < k->n; i++) best[i] = item[i]->address;
    return TM_OK;
}

tm_status place_pack(live_range **item, const pack_ask *ask, pack_found *f) {
    packing k = {0};
    uint64_t bound = 0, *best = tm_malloc(sizeof *best * ((size_t)ask->n + 1));
    tm_status rc = best ? TM_OK : tm_nomem(sizeof *best * ask->n);
    *f = (pack_found){.peak = ask->n > 0 ? UINT64_MAX : ask->base, .way = ask->begin};
    TM_ASSERT(ask->begin < PACK_WAYS);
    if (rc == TM_OK && ask->n > 0) rc = open_packing(&k, item, ask, &bound);
    for (uint32_t i = 0; i <= PACK_WAYS && rc == TM_OK && ask->n > 0; i++) { /* `begin`, then as they come */
        if (f->peak <= ask->top || f->peak == bound) break;
        if (i > 0 && i - 1 == ask->begin) continue;
        rc = pack_by(&k, item, ask, i > 0 ? i - 1 : ask->begin, f, best);
    }
    for (uint32_t i = 0; rc == TM_OK && i < ask->n && f->peak < UINT64_MAX; i++) item[i]->address = best[i];
    tm_free(best);
    tm_free(k.order);
    return rc;
}
