/* The load tree beside a plain array: random additions, maxima and searches over random ranges of trees of any size. */
#include "offload/plan/load_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST_POSITIONS = 70, ROUNDS = 2000 };

static uint64_t draw(uint64_t *x, uint64_t below) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x % below;
}

static int64_t most_of(const int64_t *plain, uint32_t from, uint32_t to) {
    int64_t most = plain[from];
    for (uint32_t i = from; i <= to; i++) most = plain[i] > most ? plain[i] : most;
    return most;
}

static uint32_t first_of(const int64_t *plain, uint32_t n, uint32_t from, int64_t limit) {
    while (from < n && plain[from] <= limit) from++;
    return from;
}

static void as_an_array(uint32_t n, uint64_t *x) {
    load_tree l;
    int64_t plain[MOST_POSITIONS] = {0};
    assert_int_equal(load_open(&l, n), TM_OK);
    for (int first = 0; first < 20; first++) {
        uint32_t from = (uint32_t)draw(x, n), to = from + (uint32_t)draw(x, n - from);
        int64_t bytes = (int64_t)draw(x, 2001) - 1000;
        load_first(&l, from, to, bytes);
        for (uint32_t i = from; i <= to; i++) plain[i] += bytes;
    }
    load_begin(&l);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t from = (uint32_t)draw(x, n), to = from + (uint32_t)draw(x, n - from);
        int64_t bytes = (int64_t)draw(x, 2001) - 1000, limit = (int64_t)draw(x, 20000);
        load_add(&l, from, to, bytes);
        for (uint32_t i = from; i <= to; i++) plain[i] += bytes;
        from = (uint32_t)draw(x, n), to = from + (uint32_t)draw(x, n - from);
        assert_int_equal(load_most(&l, from, to), most_of(plain, from, to));
        uint32_t first = first_of(plain, n, from, limit), got = load_first_above(&l, from, limit);
        assert_true(first < n ? got == first : got >= n);
    }
    load_clear(&l);
    assert_int_equal(load_most(&l, 0, n - 1), 0);
    load_close(&l);
}

static void any_size(void **state) {
    (void)state;
    uint64_t x = 88172645463325252ULL;
    for (uint32_t n = 1; n <= MOST_POSITIONS; n++) as_an_array(n, &x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
