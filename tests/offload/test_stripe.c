/* Which path an object gets: in proportion to rates, where there is room, and spread over time. */
#include "offload/stripe_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { OBJECTS = 10000 };
static const uint64_t mib = 1 << 20;

static void near(double x, double expected, double within) {
    if (!(x > expected - within && x < expected + within)) fail_msg("%g instead of %g", x, expected);
}

static stripe three(double a, double b, double c, uint64_t room) {
    return (stripe){.n = 3, .weight = {a, b, c}, .room = {room, room, room}};
}

/* Any stretch of the order is shared out in proportion, not only the whole. */
static void in_proportion(void **state) {
    (void)state;
    stripe s = three(1e9, 2e9, 5e9, UINT64_MAX);
    uint64_t last[3] = {0, 0, 0};
    for (unsigned i = 1; i <= OBJECTS; i++) {
        (void)stripe_take(&s, i % 3 ? 2 * mib : 4 * mib);
        if (i % 100) continue;
        double took[3], all = 0;
        for (int p = 0; p < 3; p++) all += took[p] = (double)(s.given[p] - last[p]), last[p] = s.given[p];
        near(took[0] / all, 1.0 / 8, 0.05);
        near(took[1] / all, 2.0 / 8, 0.05);
        near(took[2] / all, 5.0 / 8, 0.05);
    }
    near((double)s.given[2] / (double)s.given[0], 5, 0.01);
}

/* A path with too little room gets what fits and not a byte more; the rest goes on in proportion. */
static void as_far_as_there_is_room(void **state) {
    (void)state;
    stripe s = three(1, 1, 1, UINT64_MAX);
    s.room[1] = 10 * mib + 5;
    for (unsigned i = 0; i < 300; i++) (void)stripe_take(&s, 2 * mib);
    assert_int_equal(s.given[1], 10 * mib);
    assert_int_equal(s.room[1], 5);
    assert_true(s.given[0] + s.given[2] == 590 * mib);
    assert_true(s.given[0] >= 294 * mib && s.given[2] >= 294 * mib);
    assert_int_equal(stripe_take(&s, 5), 1); /* small things still fit */
}

/* Nowhere: the one with the most room, whose file will say what is missing. */
static void nowhere(void **state) {
    (void)state;
    stripe s = three(1, 1, 1, 10);
    s.room[2] = 20;
    assert_int_equal(stripe_take(&s, 100), 2);
    assert_int_equal(s.room[2], 0);
}

static void temporaries(void **state) {
    (void)state;
    uint8_t round[STRIPE_ROUND];
    unsigned count[3] = {0, 0, 0};
    stripe s = three(1, 3, 4, 100 * mib);
    stripe_round(&s, 30 * mib, round);
    for (unsigned i = 0; i < STRIPE_ROUND; i++) count[round[i]]++;
    assert_int_equal(count[0], 8);
    assert_int_equal(count[1], 24);
    assert_int_equal(count[2], 32);
    for (unsigned i = 0; i < 3; i++) assert_int_equal(s.room[i], 70 * mib); /* all of it on each */
    s = three(1, 1, 1, 100 * mib);
    s.room[0] = 29 * mib; /* does not take part */
    stripe_round(&s, 30 * mib, round);
    for (unsigned i = 0; i < STRIPE_ROUND; i++) assert_int_not_equal(round[i], 0);
    assert_int_equal(s.room[0], 29 * mib);
    s = three(1, 1, 1, mib);
    stripe_round(&s, 30 * mib, round); /* no room anywhere: one path, whose file will say so */
    for (unsigned i = 0; i < STRIPE_ROUND; i++) assert_int_equal(round[i], round[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_proportion),
        cmocka_unit_test(as_far_as_there_is_room),
        cmocka_unit_test(nowhere),
        cmocka_unit_test(temporaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
