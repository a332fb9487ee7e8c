/* Packing: live ranges that overlap in time never overlap in memory, whatever the way; the peak is where the highest
 * ends, and no lower than what is there at some position. */
#include "offload/offload_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 400, POSITIONS = 300, ROUNDS = 300 };
static const uint64_t BASE = 5 * (uint64_t)TM_FRAME_ALIGN;

static uint64_t draw(uint64_t *x, uint64_t below) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x % below;
}

/* Small sizes and large ones, many of them alike, as a step has; short and long. */
static uint32_t random_ranges(live_range *r, live_range **item, uint64_t *x) {
    static const uint64_t pages[] = {1, 2, 2, 3, 63, 64, 65, 127, 128, 1000, 4099, 70000};
    uint32_t n = (uint32_t)draw(x, MOST) + 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t start = (uint32_t)draw(x, POSITIONS), most = draw(x, 4) ? 8 : POSITIONS;
        uint32_t end = start + (uint32_t)draw(x, most);
        uint64_t size = draw(x, 3) ? pages[draw(x, TM_COUNT(pages))] : draw(x, 300) + 1;
        if (end >= POSITIONS) end = POSITIONS - 1;
        r[i] = (live_range){.start = start, .end = end, .retire_at = end, .bytes = size * TM_FRAME_ALIGN};
        item[i] = &r[i];
    }
    return n;
}

static uint64_t highest_load(const live_range *r, uint32_t n) {
    uint64_t most = 0;
    for (uint32_t at = 0; at < POSITIONS; at++) {
        uint64_t now = 0;
        for (uint32_t i = 0; i < n; i++) now += r[i].start <= at && at <= r[i].retire_at ? r[i].bytes : 0;
        most = tm_max_u64(most, now);
    }
    return BASE + most;
}

static void check(const live_range *r, uint32_t n, uint64_t peak) {
    uint64_t end = BASE;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(r[i].address >= BASE && r[i].address % TM_FRAME_ALIGN == 0);
        end = tm_max_u64(end, r[i].address + r[i].bytes);
        for (uint32_t k = 0; k < i; k++) {
            bool time = r[i].start <= r[k].retire_at && r[k].start <= r[i].retire_at;
            bool memory = r[i].address < r[k].address + r[k].bytes && r[k].address < r[i].address + r[i].bytes;
            if (time && memory) fail_msg("live ranges %u and %u of %u overlap", k, i, n);
        }
    }
    assert_int_equal(end, peak);
}

/* In all ways, below tops that are hard to come by. */
static void nothing_overlaps(void **state) {
    live_range r[MOST], *item[MOST];
    uint64_t x = 88172645463325252ULL;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t n = random_ranges(r, item, &x);
        uint64_t bound = highest_load(r, n);
        for (uint64_t slack = 0; slack < 3; slack++) {
            pack_ask ask = {.n = n, .positions = POSITIONS, .base = BASE};
            pack_found f;
            ask.top = slack ? bound + (slack - 1) * (bound / 64 / TM_FRAME_ALIGN * TM_FRAME_ALIGN) : 0;
            ask.begin = (uint32_t)draw(&x, PACK_WAYS);
            assert_int_equal(place_pack(item, &ask, &f), TM_OK);
            assert_true(f.peak >= bound && f.way < PACK_WAYS);
            check(r, n, f.peak);
        }
    }
}

/* Before `r` its place is looked for: those that begin earlier, of those that begin with it the larger ones. */
static bool is_placed_before(const live_range *a, const live_range *r) {
    if (a->start != r->start) return a->start < r->start;
    return a->bytes != r->bytes ? a->bytes > r->bytes : a < r;
}

/* The end of the highest gap of at least so many bytes below `top`, when `r` is placed; 0: there is none. */
static uint64_t highest_gap_for(const live_range *r, const live_range *all, uint32_t n, uint64_t top) {
    for (uint64_t end = top, lower; end >= BASE + r->bytes; end = lower) {
        lower = 0; /* what ends the highest below, or crosses, `end` */
        uint64_t begin = BASE;
        for (uint32_t i = 0; i < n; i++) {
            const live_range *a = &all[i];
            if (!is_placed_before(a, r) || a->retire_at < r->start || a->address >= end) continue;
            begin = tm_max_u64(begin, a->address + a->bytes);
            if (a->address + a->bytes == begin) lower = a->address;
        }
        if (begin + r->bytes <= end) return end;
        if (!lower) return 0;
    }
    return 0;
}

/* Two ways let long ones come down from the top. */
static void long_ones_are_on_top(void **state) {
    live_range r[MOST], *item[MOST];
    uint64_t x = 362436069;
    uint32_t seen = 0, below = 0;
    (void)state;
    for (int round = 0; round < 4 * ROUNDS; round++) {
        uint32_t n = random_ranges(r, item, &x);
        pack_ask ask = {.n = n, .positions = POSITIONS, .base = BASE, .begin = round % 2 ? 2 : 3};
        pack_found f;
        ask.top = highest_load(r, n) * (16 + draw(&x, 4)) / 16 / TM_FRAME_ALIGN * TM_FRAME_ALIGN;
        assert_int_equal(place_pack(item, &ask, &f), TM_OK);
        if (f.way < 2) continue;
        for (uint32_t i = 0; i < n; i++) {
            if (r[i].retire_at - r[i].start < POSITIONS / (f.way == 2 ? 8U : 32U)) continue;
            uint64_t end = highest_gap_for(&r[i], r, n, ask.top);
            if (end) assert_int_equal(r[i].address + r[i].bytes, end);
            if (!end) assert_true(r[i].address > ask.top);
            seen++;
            below += end != 0;
        }
    }
    assert_true(seen > 1000 && below > seen / 2);
}

/* By the way that fitted the same fits again, with the same addresses; of what does not there is nothing. */
static void it_fits_again(void **state) {
    live_range r[MOST], *item[MOST];
    uint64_t x = 2463534242ULL, at[MOST];
    uint32_t fitted = 0, not = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t n = random_ranges(r, item, &x);
        uint64_t bound = highest_load(r, n);
        pack_ask ask = {.n = n, .positions = POSITIONS, .base = BASE, .only_below = true};
        pack_found f, again;
        ask.top = bound + draw(&x, 3) * (bound / 128 / TM_FRAME_ALIGN * TM_FRAME_ALIGN);
        assert_int_equal(place_pack(item, &ask, &f), TM_OK);
        if (f.peak == UINT64_MAX) {
            not ++;
            ask.only_below = false;
            assert_int_equal(place_pack(item, &ask, &f), TM_OK);
            assert_true(f.peak > ask.top);
            continue;
        }
        fitted++;
        assert_true(f.peak <= ask.top);
        check(r, n, f.peak);
        for (uint32_t i = 0; i < n; i++) at[i] = r[i].address;
        ask.begin = f.way;
        assert_int_equal(place_pack(item, &ask, &again), TM_OK);
        assert_true(again.peak == f.peak && again.way == f.way);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(r[i].address, at[i]);
    }
    assert_true(fitted > ROUNDS / 10 && not > ROUNDS / 10);
}

/* Of frames that come and go one by one nothing is wasted; of none the peak is the base. */
static void no_gap_is_left(void **state) {
    live_range r[MOST], *item[MOST];
    pack_found f;
    (void)state;
    pack_ask ask = {.n = MOST, .positions = POSITIONS + MOST, .base = BASE};
    for (uint32_t i = 0; i < MOST; i++) {
        r[i] = (live_range){.start = i, .end = i + 9, .retire_at = i + 9, .bytes = 3 * TM_FRAME_ALIGN};
        item[i] = &r[i];
    }
    assert_int_equal(place_pack(item, &ask, &f), TM_OK);
    assert_int_equal(f.peak, BASE + 10 * 3 * TM_FRAME_ALIGN);
    ask.n = 0;
    assert_int_equal(place_pack(item, &ask, &f), TM_OK);
    assert_int_equal(f.peak, BASE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_overlaps), cmocka_unit_test(long_ones_are_on_top),
                                       cmocka_unit_test(it_fits_again), cmocka_unit_test(no_gap_is_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
