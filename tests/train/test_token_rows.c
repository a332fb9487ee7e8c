/* Files of token ids as rows of a dataset: which tensors are read, and what is said of those that are not right. */
#include "run.h"
#include "session/token_rows.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

typedef struct column {
    const char *name;
    uint64_t shape[2]; /* shape[1] 0: one dimension */
    tm_fmt fmt;
    const void *values;
} column;

static const char *write_file(const column *t, unsigned n) {
    const char *path = run_path(run_dir(), "rows.safetensors");
    tm_st_writer *w;
    uint32_t at;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (unsigned i = 0; i < n; i++)
        RUN_EXPECT_STATUS(tm_st_writer_add(w, t[i].name, t[i].fmt, t[i].shape[1] ? 2 : 1, t[i].shape, &at));
    for (unsigned i = 0; i < n; i++) {
        uint64_t elements = t[i].shape[0] * (t[i].shape[1] ? t[i].shape[1] : 1);
        RUN_EXPECT_STATUS(tm_st_writer_write(w, i, 0, t[i].values, elements * tm_fmt_get(t[i].fmt)->block_bytes));
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    return path;
}
#define FILE_OF(...) write_file((const column[]){__VA_ARGS__}, TM_COUNT(((const column[]){__VA_ARGS__})))
#define I64(...)                                                                                                       \
    TM_FMT_I64, (const int64_t[]) {                                                                                    \
        __VA_ARGS__                                                                                                    \
    }
#define I32(...)                                                                                                       \
    TM_FMT_I32, (const int32_t[]) {                                                                                    \
        __VA_ARGS__                                                                                                    \
    }

static void expect_row(const tm_row_source *s, uint64_t row, const int32_t *ids, const int32_t *labels,
                       const uint8_t *mask) {
    int32_t got_ids[16], got_labels[16];
    uint8_t got_mask[16];
    RUN_EXPECT_STATUS(s->get_row(s->ctx, row, got_ids, got_labels, got_mask));
    assert_memory_equal(got_ids, ids, s->seq * sizeof *ids);
    assert_memory_equal(got_labels, labels, s->seq * sizeof *labels);
    assert_memory_equal(got_mask, mask, s->seq);
}
#define ROW(s, row, ...) expect_row(s, row, __VA_ARGS__)
#define N(...)                                                                                                         \
    (const int32_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }
#define M(...)                                                                                                         \
    (const uint8_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }

enum { X = TM_LABEL_IGNORE };

/* The rejected rows are shorter and have no mask: what they lack is padding. */
static const column chosen_ids = {"chosen_input_ids", {2, 3}, I64(1, 2, 3, 4, 5, 6)},
                    chosen_labels = {"chosen_labels", {2, 3}, I64(X, 2, 3, X, 5, X)},
                    chosen_mask = {"chosen_attention_mask", {2, 3}, I32(1, 1, 1, 1, 1, 0)},
                    rejected_ids = {"rejected_input_ids", {2, 2}, I32(1, 7, 4, 8)},
                    rejected_labels = {"rejected_labels", {2, 2}, I64(X, 7, X, 8)};

static void test_pairs(void **state) {
    tm_row_source s;
    token_rows *t;
    double part;
    (void)state;
    const char *path = FILE_OF(chosen_ids, chosen_labels, chosen_mask, rejected_ids, rejected_labels);
    RUN_EXPECT_STATUS(token_rows_open(&t, path, TM_ROWS_PAIRS, 0, &s, &part));
    assert_int_equal(s.n_rows, 4);
    assert_int_equal(s.seq, 3);
    assert_true(part == 1);
    ROW(&s, 0, N(1, 2, 3), N(X, 2, 3), M(1, 1, 1));
    ROW(&s, 1, N(1, 7, 0), N(X, 7, X), M(1, 1, 0));
    ROW(&s, 2, N(4, 5, 6), N(X, 5, X), M(1, 1, 0));
    ROW(&s, 3, N(4, 8, 0), N(X, 8, X), M(1, 1, 0));
    token_rows_close(t);
    RUN_EXPECT_STATUS(token_rows_open(&t, path, TM_ROWS_PAIRS, 1, &s, &part)); /* a sample at least */
    assert_int_equal(s.n_rows, 2);
    assert_true(part == 0.5);
    token_rows_close(t);
}

static const column ids = {"input_ids", {2, 2}, I64(1, 2, 3, 4)}, labels = {"labels", {2, 2}, I64(X, 2, X, 4)},
                    kl_ids = {"kl_input_ids", {2, 2}, I64(1, 4, 3, 2)},
                    kl_labels = {"kl_labels", {2, 2}, I64(X, 4, X, 2)}, desirable = {"desirable", {2}, I64(0, 1)};

static void test_labelled(void **state) {
    tm_row_source s;
    token_rows *t;
    double part;
    bool yes;
    (void)state;
    RUN_EXPECT_STATUS(
        token_rows_open(&t, FILE_OF(ids, labels, kl_ids, kl_labels, desirable), TM_ROWS_LABELLED, 0, &s, &part));
    assert_int_equal(s.n_rows, 4);
    ROW(&s, 0, N(1, 2), N(X, 2), M(1, 1));
    ROW(&s, 1, N(1, 4), N(X, 4), M(1, 1));
    ROW(&s, 3, N(3, 2), N(X, 2), M(1, 1));
    RUN_EXPECT_STATUS(s.get_desirable(s.ctx, 0, &yes));
    assert_false(yes);
    RUN_EXPECT_STATUS(s.get_desirable(s.ctx, 1, &yes));
    assert_true(yes);
    token_rows_close(t);
}

static void refused(const char *path, tm_rows kind, const char *says) {
    tm_row_source s;
    token_rows *t = NULL;
    double part;
    assert_int_equal(token_rows_open(&t, path, kind, 0, &s, &part), TM_EINPUT);
    if (!strstr(tm_error_get()->text, says)) fail_msg("\"%s\" is not in: %s", says, tm_error_get()->text);
    assert_non_null(strstr(tm_error_get()->text, "rows.safetensors: "));
    tm_error_clear();
}

static void test_refused(void **state) {
    const column segments = {"segment_ids", {2, 2}, I64(1, 1, 1, 2)}, one = {"desirable", {1}, I64(1)},
                 few = {"rejected_input_ids", {1, 2}, I64(1, 2)}, narrow = {"chosen_labels", {2, 2}, I64(1, 2, 3, 4)};
    (void)state;
    refused(FILE_OF(ids, labels), TM_ROWS_PAIRS, "a tensor chosen_input_ids of shape");
    refused(FILE_OF(chosen_ids, chosen_labels), TM_ROWS_PAIRS, "a tensor rejected_input_ids of shape");
    refused(FILE_OF(chosen_ids, rejected_ids, rejected_labels), TM_ROWS_PAIRS, "a tensor chosen_labels of the shape");
    refused(FILE_OF(chosen_ids, narrow, rejected_ids, rejected_labels), TM_ROWS_PAIRS,
            "chosen_labels must have the shape of chosen_input_ids [2, 3]");
    refused(FILE_OF(chosen_ids, chosen_labels, few, rejected_labels), TM_ROWS_PAIRS, "has 1 rows and not 2");
    refused(FILE_OF(ids, labels, chosen_ids, chosen_labels, rejected_ids, rejected_labels), TM_ROWS_PAIRS,
            "tensor input_ids: this version reads chosen_ and rejected_");
    refused(FILE_OF(chosen_ids, chosen_labels, rejected_ids, rejected_labels), TM_ROWS_PLAIN, "holds pairs");
    refused(FILE_OF(ids, labels, kl_ids, kl_labels), TM_ROWS_LABELLED, "a tensor desirable of shape [2]");
    refused(FILE_OF(ids, labels, kl_ids, kl_labels, one), TM_ROWS_LABELLED, "a tensor desirable of shape [2]");
    refused(FILE_OF(ids, labels, desirable), TM_ROWS_LABELLED, "a tensor kl_input_ids of shape");
    refused(FILE_OF(ids, labels, kl_ids, kl_labels, desirable, segments), TM_ROWS_LABELLED, "tensor segment_ids");
}

static void test_values(void **state) {
    const column wide = {"labels", {2, 2}, I64(X, 1LL << 40, X, 4)}, often = {"desirable", {2}, I64(0, 2)};
    int32_t a[2], b[2];
    uint8_t m[2];
    tm_row_source s;
    token_rows *t;
    double part;
    bool yes;
    (void)state;
    RUN_EXPECT_STATUS(
        token_rows_open(&t, FILE_OF(ids, wide, kl_ids, kl_labels, often), TM_ROWS_LABELLED, 0, &s, &part));
    assert_int_equal(s.get_row(s.ctx, 0, a, b, m), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "labels[0, 1] = 1099511627776 is out of range"));
    tm_error_clear();
    assert_int_equal(s.get_desirable(s.ctx, 1, &yes), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "desirable[1] = 2 is neither 0 nor 1"));
    tm_error_clear();
    token_rows_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_pairs, run_clean),
        cmocka_unit_test_teardown(test_labelled, run_clean),
        cmocka_unit_test_teardown(test_refused, run_clean),
        cmocka_unit_test_teardown(test_values, run_clean),
    };
    return cmocka_run_group_tests_name("token_rows", tests, NULL, NULL);
}
