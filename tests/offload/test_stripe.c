/* Which path an object gets: in proportion to rates, where there is room, and spread over time. */
#include "offload/store/stripe_internal.h"
#include "tests/support/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { OBJECTS = 10000 };
static const uint64_t mib = 1 << 20;

static void near(double x, double expected, double within) {
    if (!(x > expected - within && x < expected + within)) fail_msg("%g instead of %g", x, expected);
}

static stripe three(double a, double b, double c, uint64_t room) {
    return (stripe){.n = 3, .weight = {a, b, c}, .disk = {0, 1, 2}, .room = {room, room, room}};
}

/* Any stretch of the order is shared out in proportion, not only the whole. */
static void in_proportion(void **state) {
    (void)state;
    stripe s = three(1e9, 2e9, 5e9, UINT64_MAX);
    uint64_t last[3] = {0, 0, 0};
    for (unsigned i = 1; i <= OBJECTS; i++) {
        (void)stripe_take(&s, TM_KIND_EXP_AVG, i % 3 ? 2 * mib : 4 * mib);
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
    for (unsigned i = 0; i < 300; i++) (void)stripe_take(&s, TM_KIND_EXP_AVG, 2 * mib);
    assert_int_equal(s.given[1], 10 * mib);
    assert_int_equal(s.room[1], 5);
    assert_true(s.given[0] + s.given[2] == 590 * mib);
    assert_true(s.given[0] >= 294 * mib && s.given[2] >= 294 * mib);
    assert_int_equal(stripe_take(&s, TM_KIND_EXP_AVG, 5), 1); /* small things still fit */
}

/* Nowhere: the one with the most room, whose file will say what is missing. */
static void nowhere(void **state) {
    (void)state;
    stripe s = three(1, 1, 1, 10);
    s.room[2] = 20;
    assert_int_equal(stripe_take(&s, TM_KIND_EXP_AVG, 100), 2);
    assert_int_equal(s.room[2], 0);
}

/* What a path is not for does not get there, however fast it is and whatever room it has. */
static void each_for_its_kinds(void **state) {
    (void)state;
    stripe s = three(1e9, 1e9, 9e9, UINT64_MAX);
    s.kinds[0] = 1 << TM_KIND_WEIGHT_HI | 1 << TM_KIND_ACTIVATION;
    s.kinds[1] = s.kinds[2] = 1 << TM_KIND_EXP_AVG | 1 << TM_KIND_ACTIVATION;
    for (unsigned i = 0; i < 100; i++) assert_int_equal(stripe_take(&s, TM_KIND_WEIGHT_HI, mib), 0);
    for (unsigned i = 0; i < 100; i++) assert_int_not_equal(stripe_take(&s, TM_KIND_EXP_AVG, mib), 0);
    assert_int_equal(s.given[0], 100 * mib);
    near((double)s.given[2] / (double)s.given[1], 9, 0.5);
    s.room[0] = 10; /* full: its file says so, not another's */
    assert_int_equal(stripe_take(&s, TM_KIND_WEIGHT_HI, mib), 0);
    assert_int_equal(s.given[1] + s.given[2], 100 * mib);
    for (unsigned i = 0; i < 100; i++) (void)stripe_take(&s, TM_KIND_ACTIVATION, mib);
    assert_true(s.given[2] > 140 * mib); /* where it is done soonest */
    s.room[0] = UINT64_MAX;
    (void)stripe_take(&s, TM_KIND_GRAD, mib); /* nobody's: anywhere */
}

/* Two folders of one disk: its room is there once. */
static void room_of_one_disk(void **state) {
    (void)state;
    stripe s = three(1, 1, 2, 100 * mib);
    s.disk[1] = 0;
    s.room[0] = s.room[1] = 10 * mib;
    for (unsigned i = 0; i < 40; i++) (void)stripe_take(&s, TM_KIND_EXP_AVG, mib);
    assert_int_equal(s.given[0] + s.given[1], 10 * mib);
    assert_int_equal(s.given[2], 30 * mib);
}

/* Extents that do not overlap by address do not overlap on a path; each path's file is as long as what lies in it. */
static void check_map(const spill_map *m, uint64_t bytes, uint64_t largest) {
    enum { MOST = 4096 };
    static struct placed {
        uint64_t at, end;
        uint8_t path;
    } p[MOST];
    unsigned n = 0;
    for (uint64_t at = 0, i = 0; at < bytes && n < MOST; i++) {
        uint64_t length = tm_min_u64(4096 + i * 2654435761u % largest / 4096 * 4096, bytes - at);
        if (length > largest) length = largest;
        const spill_segment *s = spill_at(m, at);
        p[n] = (struct placed){s->offset + at % m->segment_bytes, 0, s->path};
        p[n].end = p[n].at + length;
        assert_true(p[n].end <= m->size[s->path]);
        for (unsigned k = 0; k < n; k++)
            if (p[k].path == p[n].path) assert_true(p[k].end <= p[n].at || p[n].end <= p[k].at);
        at += length;
        n++;
    }
}

static void temporaries(void **state) {
    (void)state;
    spill_map m;
    stripe s = three(1, 3, 4, 1000 * mib);
    assert_int_equal(spill_map_make(&m, &s, 400 * mib, mib), TM_OK);
    check_map(&m, 400 * mib, mib);
    uint64_t all = m.size[0] + m.size[1] + m.size[2];
    assert_true(all == spill_map_bytes(3, 400 * mib, mib) && all < 505 * mib); /* a quarter more, not three times */
    for (unsigned i = 0; i < 3; i++) {
        near((double)m.size[i] / (double)all, s.weight[i] / 8, 0.02);
        assert_int_equal(s.room[i], 1000 * mib - m.size[i]);
    }
    spill_map_free(&m);
    s = three(1, 1, 1, 1000 * mib);
    s.room[1] = 29 * mib; /* takes part with what fits */
    assert_int_equal(spill_map_make(&m, &s, 400 * mib, mib), TM_OK);
    check_map(&m, 400 * mib, mib);
    assert_in_range(m.size[1], 25 * mib, 29 * mib);
    spill_map_free(&m);
    s = three(1, 1, 1, 1000 * mib);
    assert_int_equal(spill_map_make(&m, &s, 3 * mib, mib), TM_OK); /* not worth cutting */
    assert_int_equal(m.n, 1);
    assert_int_equal(m.size[0], 3 * mib);
    spill_map_free(&m);
    s = (stripe){.n = 1, .weight = {1}, .room = {1000 * mib}};
    assert_int_equal(spill_map_make(&m, &s, 400 * mib, mib), TM_OK);
    assert_int_equal(m.size[0], 400 * mib); /* one path: as the plan has it */
    spill_map_free(&m);
    assert_int_equal(spill_map_make(&m, &s, 0, 0), TM_OK);
    assert_int_equal(m.n, 0);
    spill_map_free(&m);
}

/* ---- what the profile knows of the disks ------------------------------------------------------------------------- */

#define PROFILE "test_stripe.profile"

static void put(const char *path, double bps) {
    assert_int_equal(tm_profile_put_disk(path, &(tm_disk){.read_bps = bps, .write_bps = bps}), TM_OK);
}

static double share_of_first(const char *const *paths) {
    tm_io_run *run[2];
    stripe s;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(
            tm_io_run_create(&run[i], paths[i], &(tm_io_run_opts){.allow_tmpfs = true, .create_parents = true}), TM_OK);
    stripe_of_runs(&s, run, 2);
    for (unsigned i = 0; i < 2; i++) assert_int_equal(tm_io_run_remove(run[i]), TM_OK);
    for (unsigned i = 0; i < 2; i++) (void)rmdir(paths[i]);
    return s.weight[0] / (s.weight[0] + s.weight[1]);
}

/* Shares go by the rates that training reached, where runs have taught them; without the rates of all, alike. */
static void as_runs_have_found(void **state) {
    (void)state;
    struct stat here, shm;
    if (stat(".", &here) != 0 || stat("/dev/shm", &shm) != 0 || access("/dev/shm", W_OK) != 0 ||
        here.st_dev == shm.st_dev) {
        TEST_SKIP("/dev/shm is no other file system than this folder's that can be written");
    }
    char memory[64]; /* of this process alone: other builds are tested here, too */
    snprintf(memory, sizeof memory, "/dev/shm/test_stripe-%ld", (long)getpid());
    const char *const two[] = {"test_stripe.offload", memory}, *const same[] = {two[0], "test_stripe.other"};
    (void)unlink(PROFILE);
    assert_int_equal(setenv("TIDEMILL_PROFILE", PROFILE, 1), 0);
    near(share_of_first(two), 0.5, 1e-9);
    put(".", 3e9);
    near(share_of_first(two), 0.5, 1e-9); /* of one disk only */
    put("/dev/shm", 1e9);
    near(share_of_first(two), 0.75, 1e-9);
    near(share_of_first(same), 0.5, 1e-9);
    assert_int_equal(tm_profile_teach_disk(".", 3000000000, 0, 3), TM_OK); /* a third of its rate */
    near(share_of_first(two), 0.5, 1e-9);
    assert_int_equal(tm_profile_teach_disk("/dev/shm", 1000000000, 0, 2), TM_OK); /* a half */
    near(share_of_first(two), 2. / 3, 1e-9);
    assert_int_equal(unlink(PROFILE), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_proportion),      cmocka_unit_test(as_far_as_there_is_room), cmocka_unit_test(nowhere),
        cmocka_unit_test(each_for_its_kinds), cmocka_unit_test(room_of_one_disk),        cmocka_unit_test(temporaries),
        cmocka_unit_test(as_runs_have_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
