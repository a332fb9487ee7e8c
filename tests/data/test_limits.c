/* The largest micro-batch of many steps, against a visit to each of them. */
#include "by_hand.h"

#include "data/dataset_internal.h"

enum {
    N = 20001,
    LONGEST = 300
}; /* more samples than are visited one by one; the last one is alone in its micro-batch */

/* Most are short, a few are long, two are longest. */
static int length_of(unsigned i, uint64_t what) {
    uint32_t r[4];
    tm_philox(17, what, i, r);
    if (i == N - 1 || i == 77) return LONGEST - (i == 77);
    return (int)(1 + r[0] % 20 + (r[1] % 64 == 0 ? r[2] % (LONGEST - 40) : 0));
}

static tm_dataset *open_kind(tm_rows kind, bool shuffle, bool by_length, bool packing) {
    static const char *const form[] = {"{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n",
                                       "{\"prompt\": \"%.*s\", \"chosen\": \"x\", \"rejected\": \"%.*s\"}\n",
                                       "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\", \"label\": true}\n"};
    tm_dataset_opts opts = defaults();
    tm_buf file = {0};
    char text[LONGEST + 1];
    memset(text, 'x', sizeof text);
    opts.rows = kind;
    opts.shuffle = shuffle;
    opts.group_by_length = by_length;
    opts.packing = packing;
    opts.seq_len = packing ? LONGEST : 0;
    opts.seed = 5;
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(tm_buf_printf(&file, form[kind], packing ? 1 : length_of(i, 1), text,
                                       packing ? length_of(i, 2) % 200 + 1 : length_of(i, 2), text),
                         TM_OK);
    tm_dataset *ds = open_text(file.data, &opts);
    tm_buf_free(&file);
    return ds;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

typedef void shape_fn(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank, tm_batch_shape *out);

static void visit(const tm_dataset *ds, shape_fn *shape_of, uint64_t first, uint64_t n, const uint32_t g[3],
                  tm_batch_limits *seen) {
    *seen = (tm_batch_limits){0};
    for (uint64_t s = first; s < first + n; s++)
        for (uint32_t i = 0; i < g[1] * g[2]; i++) {
            tm_batch_shape shape;
            shape_of(ds, s, i / g[2], i % g[2], &shape);
            seen->rows = larger(seen->rows, shape.rows);
            seen->seq = larger(seen->seq, shape.seq);
            seen->tokens = larger(seen->tokens, shape.tokens);
        }
}

static void check(const tm_dataset *ds, uint64_t first, uint64_t n, const uint32_t g[3], bool mismatched) {
    tm_batch_limits limits, seen;
    visit(ds, mismatched ? tm_dataset_shape_mismatched : tm_dataset_shape, first, n, g, &seen);
    if (mismatched)
        tm_dataset_limits_mismatched(ds, first, n, &limits);
    else
        tm_dataset_limits(ds, first, n, &limits);
    if (memcmp(&limits, &seen, sizeof seen) == 0) return;
    fail_msg("%u x %u x %u, %llu steps from %llu: %u rows, %u long, %u tokens where %u, %u, %u were seen", g[0], g[1],
             g[2], (unsigned long long)n, (unsigned long long)first, limits.rows, limits.seq, limits.tokens, seen.rows,
             seen.seq, seen.tokens);
}

static void check_all(tm_dataset *ds, bool mismatched) {
    static const uint32_t geometry[][3] = {{1, 1, 1}, {4, 1, 1}, {2, 3, 2}, {64, 1, 2}};
    for (size_t i = 0; i < TM_COUNT(geometry); i++) {
        const uint32_t *g = geometry[i];
        assert_int_equal(tm_dataset_set_batches(ds, g[0], g[1], g[2]), TM_OK);
        uint64_t steps = tm_dataset_steps_per_epoch(ds);
        const uint64_t range[][2] = {{0, steps},     {0, 2 * steps}, {0, steps - 1},     {steps / 10, steps * 85 / 100},
                                     {steps - 1, 1}, {steps - 1, 2}, {steps - 1, steps}, {steps / 2, steps}};
        for (size_t k = 0; k < TM_COUNT(range); k++) check(ds, range[k][0], range[k][1], g, mismatched);
    }
    tm_dataset_close(ds);
}

/* Where a sample comes is known from the sample. */
static void check_places(tm_dataset *ds, bool by_length) {
    assert_int_equal(tm_dataset_set_batches(ds, 3, 1, 1), TM_OK);
    for (uint64_t epoch = 0; epoch < 3; epoch++)
        for (uint64_t place = 0; place < N; place++) {
            uint64_t end, first = data_places_of(ds, epoch, tm_dataset_order(ds, epoch, place), &end);
            assert_true(first <= place && place < end && end <= N);
            if (!by_length) assert_true(first == place && end == place + 1);
        }
    tm_dataset_close(ds);
}

static void test_places(void **state) {
    (void)state;
    check_places(open_kind(TM_ROWS_PLAIN, true, false, false), false);
    check_places(open_kind(TM_ROWS_PLAIN, false, false, false), false);
    check_places(open_kind(TM_ROWS_PLAIN, true, true, false), true);
}

static void test_shuffled(void **state) {
    (void)state;
    check_all(open_kind(TM_ROWS_PLAIN, true, false, false), false);
}

static void test_in_order(void **state) {
    (void)state;
    check_all(open_kind(TM_ROWS_PLAIN, false, false, false), false);
}

static void test_by_length(void **state) {
    (void)state;
    check_all(open_kind(TM_ROWS_PLAIN, true, true, false), false);
}

static void test_packs(void **state) {
    (void)state;
    check_all(open_kind(TM_ROWS_PLAIN, true, false, true), false);
}

static void test_pairs(void **state) {
    (void)state;
    check_all(open_kind(TM_ROWS_PAIRS, true, false, false), false);
}

static void test_mismatched(void **state) {
    (void)state;
    check_all(open_kind(TM_ROWS_LABELLED, true, false, false), true);
    check_all(open_kind(TM_ROWS_LABELLED, false, false, false), true);
}

/* Of half of the steps, none of which has one of the samples that are ranked: 3,000 long ones lie behind these. */
static void test_longest_are_elsewhere(void **state) {
    (void)state;
    const uint32_t g[] = {2, 1, 1};
    tm_dataset_opts opts = defaults();
    tm_buf file = {0};
    for (unsigned i = 0; i < 40000; i++)
        assert_int_equal(tm_buf_printf(&file, "{\"text\": \"%.*s\"}\n", (int)(i < 37000 ? i % 7 + 1 : 9), "xxxxxxxxx"),
                         TM_OK);
    tm_dataset *ds = open_text(file.data, &opts);
    tm_buf_free(&file);
    assert_int_equal(tm_dataset_set_batches(ds, g[0], g[1], g[2]), TM_OK);
    check(ds, 0, 18000, g, false);
    check(ds, 0, 20000, g, false);
    tm_dataset_close(ds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_places, clean_record),
        cmocka_unit_test_setup(test_shuffled, clean_record),
        cmocka_unit_test_setup(test_in_order, clean_record),
        cmocka_unit_test_setup(test_by_length, clean_record),
        cmocka_unit_test_setup(test_packs, clean_record),
        cmocka_unit_test_setup(test_pairs, clean_record),
        cmocka_unit_test_setup(test_mismatched, clean_record),
        cmocka_unit_test_setup(test_longest_are_elsewhere, clean_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
