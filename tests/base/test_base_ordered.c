/* Heaps and lower bounds against sorting and a linear search. */
#include "world.h"
#include "base/ordered.h"

#include <stdlib.h>
#include <string.h>

enum { N = 200 };

static uint32_t drawn(uint64_t i) {
    uint32_t r[4];
    tm_philox(7, 0, i, r);
    return r[0] % 97; /* equals too */
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void heap_gives_the_lowest(void **state) {
    (void)state;
    for (uint32_t n = 0; n < N; n++) {
        uint32_t item[N], sorted[N];
        tm_heap32 h = {.item = item, .cap = N};
        for (uint32_t i = 0; i < n; i++) tm_heap32_push(&h, sorted[i] = drawn(i));
        qsort(sorted, n, sizeof *sorted, by_value);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(tm_heap32_pop(&h), sorted[i]);
        assert_int_equal(h.n, 0);
    }
}

/* The order is the caller's: the longest word first. */
static inline bool longer(const void *order, uint32_t a, uint32_t b) {
    const char *const *word = order;
    return strlen(word[a]) > strlen(word[b]);
}
TM_HEAP(words, uint32_t, longer)

static void heap_of_indices(void **state) {
    (void)state;
    const char *word[] = {"aa", "aaaa", "", "aaa", "a"};
    uint32_t heap[] = {0, 1, 2, 3, 4};
    static const uint32_t want[] = {1, 3, 0, 4, 2};
    size_t n = TM_COUNT(heap);
    words_make(heap, n, word);
    for (size_t i = 0; i < TM_COUNT(want); i++) assert_int_equal(words_pop(heap, &n, word), want[i]);
    heap[n++] = 0, heap[n++] = 1;
    words_make(heap, n, word);
    word[1] = "x"; /* what is on top now comes later */
    words_sift(heap, n, 0, word);
    assert_int_equal(heap[0], 0);
}

typedef struct sequence {
    const uint32_t *v;
    uint32_t wanted;
} sequence;

static bool is_less(const void *ctx, size_t i) {
    const sequence *s = ctx;
    return s->v[i] < s->wanted;
}

static void lower_bound_is_the_first(void **state) {
    (void)state;
    uint32_t v[N];
    for (uint32_t i = 0; i < N; i++) v[i] = drawn(i);
    qsort(v, N, sizeof *v, by_value);
    for (uint32_t n = 0; n < N; n += 13)
        for (uint32_t wanted = 0; wanted < 99; wanted++) {
            size_t i = 0;
            while (i < n && v[i] < wanted) i++;
            assert_int_equal(tm_lower_bound(n, is_less, &(sequence){v, wanted}), i);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(heap_gives_the_lowest), cmocka_unit_test(heap_of_indices),
                                       cmocka_unit_test(lower_bound_is_the_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
