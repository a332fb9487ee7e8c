/* Spans of addresses that do not overlap, for following who had them. Every call takes time in the logarithm of how many
 * there are (a treap whose priorities follow from the index, so that the same calls give the same tree).
 *
 *   for (uint32_t i; (i = spans_after(&s, begin)) && s.item[i].begin < end;) .. s.item[i].owner ..; spans_drop(&s, i);
 *   spans_put(&s, begin, end, owner);
 */
#ifndef TIDEMILL_SPANS_INTERNAL_H
#define TIDEMILL_SPANS_INTERNAL_H

#include "offload/offload_internal.h"

typedef struct span {
    uint64_t begin, end;
    uint32_t owner;
    uint32_t child[2];
} span;

typedef struct spans {
    span *item; /* 1..: index 0 is nobody */
    uint32_t n;
    size_t cap;
    uint32_t free; /* list of unused items, by child[0] */
    uint32_t root;
} spans;

void spans_close(spans *s);
/* False: out of memory, and nothing was put in. It has to be free. */
bool spans_put(spans *s, uint64_t begin, uint64_t end, uint32_t owner);
void spans_drop(spans *s, uint32_t i);
/* The first that ends after `address`; 0: none. */
uint32_t spans_after(const spans *s, uint64_t address);

#endif
