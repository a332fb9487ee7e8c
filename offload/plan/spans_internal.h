/* Spans of addresses that do not overlap, for placing frames and for following who had them: found by address, and where
 * that is asked for by size. Every call takes time in the logarithm of how many there are (treaps whose priorities follow
 * from the index, so that the same calls give the same tree).
 *
 *   take the tightest span that holds `bytes`:   uint32_t i = spans_tightest(&s, bytes);
 *                                                if (i) .. s.item[i].begin ..; spans_drop(&s, i);
 */
#ifndef TIDEMILL_SPANS_INTERNAL_H
#define TIDEMILL_SPANS_INTERNAL_H

#include "offload/offload_internal.h"

typedef enum span_order { SPAN_BY_ADDRESS, SPAN_BY_SIZE, SPAN_ORDERS } span_order;

typedef struct span {
    uint64_t begin, end;
    uint64_t most; /* the size of the largest, of those below it in the order of addresses */
    uint32_t owner;
    uint32_t child[SPAN_ORDERS][2];
} span;

typedef struct spans {
    span *item; /* 1..: index 0 is nobody */
    uint32_t n;
    size_t cap;
    uint32_t free; /* list of unused items, by child[0][0] */
    uint32_t root[SPAN_ORDERS];
    bool sized, ranked; /* set before the first span comes in: spans_tightest, spans_highest will be asked */
} spans;

void spans_close(spans *s);
/* False: out of memory, and nothing was put in. It has to be free. */
bool spans_put(spans *s, uint64_t begin, uint64_t end, uint32_t owner);
void spans_drop(spans *s, uint32_t i);
/* Where it stays between its neighbours. */
void spans_resize(spans *s, uint32_t i, uint64_t begin, uint64_t end);
/* The first that ends after `address`; 0: none. */
uint32_t spans_after(const spans *s, uint64_t address);
/* The one that ends at `address`, the one that begins there; 0: none. */
uint32_t spans_ending(const spans *s, uint64_t address);
uint32_t spans_beginning(const spans *s, uint64_t address);
/* The smallest of at least `bytes`, of equals the lowest; 0: none. */
uint32_t spans_tightest(const spans *s, uint64_t bytes);
/* The highest of at least `bytes` that begins below `top`; 0: none. */
uint32_t spans_highest(const spans *s, uint64_t bytes, uint64_t top);

#endif
