/* A sorted map of address ranges that do not overlap, for proofs and links: who was there last. Blocks of a few hundred
 * ranges, so that inserting one moves little, however many there are. */
#ifndef TIDEMILL_RANGES_INTERNAL_H
#define TIDEMILL_RANGES_INTERNAL_H

#include "offload/offload_internal.h"

typedef struct range {
    uint64_t begin, end;
    uint64_t base;            /* where the object's frame begins */
    uint32_t object, version; /* what is there */
    uint32_t writer, readers; /* who wrote it last; list of who has read it since */
} range;

typedef struct range_block {
    range *r;
    uint32_t n;
} range_block;

typedef struct range_at {
    uint32_t block, i;
} range_at;

typedef struct range_map {
    range_block *block;
    uint32_t n, ranges;
    size_t cap;
    range_at *seen; /* by address: where what is there was last, most often it still is */
    uint32_t n_seen;
    bool nomem; /* something was left out; the map is of no use */
} range_map;

void ranges_close(range_map *m);
/* The first range that ends after `address`. */
range_at ranges_find(range_map *m, uint64_t address);
range *ranges_get(const range_map *m, range_at at); /* NULL past the last */
static inline bool ranges_is(const range *r, uint64_t begin, uint64_t end) {
    return r && r->begin == begin && r->end == end;
}
static inline range_at ranges_next(const range_map *m, range_at at) {
    return at.i + 1 < m->block[at.block].n ? (range_at){at.block, at.i + 1} : (range_at){at.block + 1, 0};
}
/* Divides the range around `address`, so that one begins there. Cursors are void afterwards. */
void ranges_cut(range_map *m, uint64_t address);
/* Makes [r->begin, r->end) one range with this content; what was there is gone. */
void ranges_put(range_map *m, const range *r);

#endif
