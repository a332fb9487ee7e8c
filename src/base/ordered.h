/* Order in plain arrays: binary heaps and lower bounds. */
#ifndef TIDEMILL_BASE_ORDERED_H
#define TIDEMILL_BASE_ORDERED_H

#include "base/base.h"

/* TM_HEAP(name, T, before) defines a binary heap of values of T, as functions on an array of the caller's:
 *
 *     static inline bool before(const void *order, T a, T b);   // a comes out ahead of b
 *
 *     name_sift(heap, n, i, order)   heap[i] was put there or now comes later: it sinks to its place
 *     name_make(heap, n, order)      n values in any order become a heap
 *     name_push(heap, &n, v, order)  room for n + 1 values
 *     name_pop(heap, &n, order)      takes out the first; n > 0
 *
 * `order` goes through to `before`. */
#define TM_HEAP(name, T, before)                                                                                       \
    static __attribute__((unused)) void name##_sift(T *heap, size_t n, size_t i, const void *order) {                  \
        T v = heap[i];                                                                                                 \
        for (size_t child; (child = 2 * i + 1) < n; i = child) {                                                       \
            if (child + 1 < n && before(order, heap[child + 1], heap[child])) child++;                                 \
            if (!before(order, heap[child], v)) break;                                                                 \
            heap[i] = heap[child];                                                                                     \
        }                                                                                                              \
        heap[i] = v;                                                                                                   \
    }                                                                                                                  \
    static __attribute__((unused)) void name##_make(T *heap, size_t n, const void *order) {                            \
        for (size_t i = n / 2; i-- > 0;) name##_sift(heap, n, i, order);                                               \
    }                                                                                                                  \
    static __attribute__((unused)) void name##_push(T *heap, size_t *n, T v, const void *order) {                      \
        size_t i = (*n)++;                                                                                             \
        for (; i > 0 && before(order, v, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];             \
        heap[i] = v;                                                                                                   \
    }                                                                                                                  \
    static __attribute__((unused)) T name##_pop(T *heap, size_t *n, const void *order) {                               \
        T top = heap[0];                                                                                               \
        TM_ASSERT(*n > 0);                                                                                             \
        heap[0] = heap[--*n];                                                                                          \
        if (*n > 0) name##_sift(heap, *n, 0, order);                                                                   \
        return top;                                                                                                    \
    }

/* A heap of numbers, lowest first. */
typedef struct tm_heap32 {
    uint32_t *item;
    uint32_t n, cap;
} tm_heap32;
static inline bool tm_less32(const void *order, uint32_t a, uint32_t b) {
    (void)order;
    return a < b;
}
TM_HEAP(tm_heap32_array, uint32_t, tm_less32)
static inline void tm_heap32_push(tm_heap32 *h, uint32_t v) {
    TM_ASSERT(h->n < h->cap);
    size_t n = h->n++;
    tm_heap32_array_push(h->item, &n, v, NULL);
}
static inline uint32_t tm_heap32_pop(tm_heap32 *h) {
    size_t n = h->n--;
    return tm_heap32_array_pop(h->item, &n, NULL);
}

/* The first i of [0, n) of which before(ctx, i) is false, n if there is none. It is true of all in front of that one,
 * and false of all behind it. */
static inline size_t tm_lower_bound(size_t n, bool (*before)(const void *ctx, size_t i), const void *ctx) {
    size_t low = 0;
    while (low < n) {
        size_t middle = low + (n - low) / 2;
        if (before(ctx, middle))
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

#endif
