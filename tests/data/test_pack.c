/* Rows of several samples, and micro-batches of samples of like length. */
#include "by_hand.h"

#include <stdlib.h>

/* Samples are "NNNNNN", so many "x", then <eos>: their number can be read again, and their length is 8 + the x. */
enum { ROOM = 1 << 16, DIGITS = 6, LEAST = DIGITS + 2 };

typedef struct batch {
    int32_t ids[ROOM], labels[ROOM];
    uint8_t mask[ROOM];
    uint32_t begin[ROOM];
    tm_batch_shape shape;
} batch;

/* Lengths of chats: most are short, some are long. */
static uint32_t length_of(unsigned i, uint32_t longest) {
    uint32_t r[4];
    tm_philox(11, 0, i, r);
    uint32_t length = LEAST + r[0] % 40 + (r[1] % 8 == 0 ? r[2] % longest : 0);
    return length < longest ? length : longest;
}

static tm_dataset *open_samples(unsigned n, tm_dataset_opts opts) {
    tm_buf file = {0};
    char *text = malloc(ROOM);
    memset(text, 'x', ROOM);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(
            tm_buf_printf(&file, "{\"text\": \"%06u%.*s\"}\n", i, (int)(length_of(i, opts.seq_len) - LEAST), text),
            TM_OK);
    tm_dataset *ds = open_text(file.data, &opts);
    tm_buf_free(&file);
    free(text);
    return ds;
}

static tm_dataset_opts packed(uint32_t seq_len) {
    tm_dataset_opts opts = defaults();
    opts.seq_len = seq_len;
    opts.packing = opts.shuffle = true;
    opts.seed = 3;
    return opts;
}

static unsigned number_at(const int32_t *ids) {
    unsigned number = 0;
    assert_int_equal(ids[0], BOS);
    for (int i = 1; i <= DIGITS; i++) number = number * 10 + (unsigned)(ids[i] - '0');
    return number;
}

static void draw(tm_dataset *ds, uint64_t step, uint32_t k, uint32_t r, batch *b) {
    const tm_batch_arrays to = {
        .capacity = ROOM, .ids = b->ids, .labels = b->labels, .key_mask = b->mask, .begin = b->begin};
    tm_batch_shape asked;
    if (tm_dataset_batch(ds, step, k, r, &to, &b->shape) != TM_OK) fail_msg("%s", tm_error_get()->text);
    tm_dataset_shape(ds, step, k, r, &asked);
    assert_memory_equal(&asked, &b->shape, sizeof asked);
}

/* A document of row `row` at `at`: whole, each of its labels the next token of it. Returns where it ends. */
static uint32_t check_document(const batch *b, uint32_t row, uint32_t at, uint32_t seq_len, unsigned *number) {
    const size_t from = (size_t)row * b->shape.seq + at;
    *number = number_at(b->ids + from);
    uint32_t n = length_of(*number, seq_len);
    assert_true(at + n <= seq_len && at + n <= b->shape.seq);
    for (uint32_t t = 0; t < n; t++) {
        assert_int_equal(b->begin[from + t], at);
        assert_int_equal(b->mask[from + t], 1);
        assert_int_equal(b->labels[from + t], t + 1 < n ? b->ids[from + t + 1] : X);
    }
    assert_int_equal(b->ids[from + n - 1], EOS);
    return at + n;
}

typedef struct ledger {
    unsigned n, *used, documents, rows;
    uint64_t tokens, hash; /* of numbers in the order in which they came */
    uint32_t seq_len;
} ledger;

/* All rows of a micro-batch. */
static void check_batch(const batch *b, ledger *l) {
    unsigned documents = 0;
    for (uint32_t row = 0; row < b->shape.rows; row++) {
        uint32_t at = 0;
        while (at < b->shape.seq && b->mask[row * b->shape.seq + at]) {
            unsigned number;
            uint32_t end = check_document(b, row, at, l->seq_len, &number);
            assert_true(number < l->n);
            l->used[number]++;
            l->hash = tm_hash64(&number, sizeof number, l->hash);
            l->tokens += end - at;
            at = end;
            documents++;
        }
        assert_true(at > 0);
        for (uint32_t t = at; t < b->shape.seq; t++) { /* padding */
            size_t i = (size_t)row * b->shape.seq + t;
            assert_true(!b->mask[i] && b->labels[i] == X && b->begin[i] == at);
        }
    }
    assert_int_equal(documents, b->shape.samples);
    l->documents += documents;
    l->rows += b->shape.rows;
}

/* Steps [first, first + n) of one epoch: what is in them, and that step_info and limits say so. */
static void check_steps(tm_dataset *ds, uint64_t first, uint64_t n, const uint32_t g[3], ledger *l) {
    static batch b;
    tm_batch_limits limits, seen = {0};
    tm_dataset_limits(ds, first, n, &limits);
    for (uint64_t s = first; s < first + n; s++) {
        tm_step_info info;
        ledger before = *l;
        uint64_t labels = 0;
        tm_dataset_step_info(ds, s, &info);
        for (uint32_t r = 0; r < g[2]; r++) {
            for (uint32_t k = 0; k < g[1]; k++) {
                draw(ds, s, k, r, &b);
                check_batch(&b, l);
                for (uint32_t t = 0; t < b.shape.tokens; t++) labels += b.labels[t] != X;
                seen.rows = b.shape.rows > seen.rows ? b.shape.rows : seen.rows;
                seen.seq = b.shape.seq > seen.seq ? b.shape.seq : seen.seq;
                seen.tokens = b.shape.tokens > seen.tokens ? b.shape.tokens : seen.tokens;
            }
        }
        assert_int_equal(info.samples, l->documents - before.documents);
        assert_int_equal(info.tokens, l->tokens - before.tokens);
        assert_int_equal(info.label_tokens, labels);
    }
    assert_memory_equal(&limits, &seen, sizeof seen);
}

static ledger begin_ledger(unsigned n, uint32_t seq_len) {
    return (ledger){.n = n, .seq_len = seq_len, .used = calloc(n, sizeof(unsigned))};
}
static void each_once(ledger *l) {
    for (unsigned i = 0; i < l->n; i++)
        if (l->used[i] != 1) fail_msg("sample %u came %u times", i, l->used[i]);
    free(l->used);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

static void each_sample_once_an_epoch(void **state) {
    (void)state;
    static const unsigned sizes[] = {1, 5, 700, 9001}; /* the last is of three windows */
    static const uint32_t geometry[][3] = {{1, 1, 1}, {3, 2, 2}, {64, 1, 1}};
    for (size_t i = 0; i < TM_COUNT(sizes) * TM_COUNT(geometry); i++) {
        unsigned n = sizes[i / TM_COUNT(geometry)];
        const uint32_t *g = geometry[i % TM_COUNT(geometry)], seq_len = 128;
        tm_dataset *ds = open_samples(n, packed(seq_len));
        assert_int_equal(tm_dataset_set_batches(ds, g[0], g[1], g[2]), TM_OK);
        uint64_t step = 0;
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            uint64_t steps = tm_dataset_steps(ds, (double)epoch + 1) - step;
            ledger l = begin_ledger(n, seq_len);
            check_steps(ds, step, steps, g, &l);
            each_once(&l);
            assert_int_equal(steps, (l.rows - 1) / (g[0] * g[1] * g[2]) + 1);
            if (epoch == 0) assert_int_equal(steps, tm_dataset_steps_per_epoch(ds));
            for (uint64_t s = step + 1; s <= step + steps; s++)
                assert_int_equal(tm_dataset_ends_epoch(ds, s), s == step + steps);
            step += steps;
        }
        tm_dataset_close(ds);
    }
}

/* Rows are as full as can be: sizes are drawn, so that a perfect fit is hardly possible for the last rows of a window. */
static void rows_are_full(void **state) {
    (void)state;
    static const uint32_t one[3] = {16, 1, 1};
    static const uint32_t lengths[] = {128, 512, 2048};
    for (size_t i = 0; i < TM_COUNT(lengths); i++) {
        tm_dataset *ds = open_samples(9001, packed(lengths[i]));
        ledger l = begin_ledger(9001, lengths[i]);
        assert_int_equal(tm_dataset_set_batches(ds, 16, 1, 1), TM_OK);
        check_steps(ds, 0, tm_dataset_steps_per_epoch(ds), one, &l);
        double full = (double)l.tokens / ((double)l.rows * lengths[i]);
        printf("seq_len %u: %u rows, %.2f%% full\n", lengths[i], l.rows, 100 * full);
        assert_true(full > 0.99);
        each_once(&l);
        tm_dataset_close(ds);
    }
}

static uint64_t order_of(tm_dataset *ds, uint64_t first, uint64_t n, uint32_t micro_batches) {
    ledger l = begin_ledger(9001, 128);
    static batch b;
    for (uint64_t s = first; s < first + n; s++)
        for (uint32_t k = 0; k < micro_batches; k++) draw(ds, s, k, 0, &b), check_batch(&b, &l);
    free(l.used);
    return l.hash;
}

/* Packs and their order are a function of seed and epoch: not of batch sizes, of what was asked before, of the process. */
static void packs_are_a_function_of_seed_and_epoch(void **state) {
    (void)state;
    tm_dataset *a = open_samples(9001, packed(128)), *b = open_samples(9001, packed(128));
    assert_int_equal(tm_dataset_set_batches(a, 10, 1, 1), TM_OK);
    assert_int_equal(tm_dataset_set_batches(b, 5, 2, 1), TM_OK);
    uint64_t steps = tm_dataset_steps_per_epoch(a), second = order_of(a, steps, 100, 1);
    assert_true(second != order_of(a, 0, 100, 1));
    assert_true(second == order_of(b, steps, 100, 2)); /* begins there */
    assert_true(order_of(a, 3, 60, 1) == order_of(b, 3, 60, 2));
    tm_dataset_close(b);
    tm_dataset_opts other = packed(128);
    other.seed = 4;
    b = open_samples(9001, other);
    assert_int_equal(tm_dataset_set_batches(b, 10, 1, 1), TM_OK);
    assert_true(second != order_of(b, steps, 100, 1));
    tm_dataset_close(a), tm_dataset_close(b);
}

/* Long and short packs come mixed: a tenth of the epoch has about a tenth of the samples. */
static void steps_are_alike(void **state) {
    (void)state;
    tm_dataset *ds = open_samples(4000, packed(128));
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    uint64_t steps = tm_dataset_steps_per_epoch(ds);
    for (uint64_t tenth = 0; tenth < 10; tenth++) {
        uint64_t samples = 0;
        for (uint64_t s = steps * tenth / 10; s < steps * (tenth + 1) / 10; s++) {
            tm_step_info info;
            tm_dataset_step_info(ds, s, &info);
            for (uint64_t i = 0; i < info.samples; i++) assert_true(tm_dataset_step_sample(ds, s, i) < 4000);
            samples += info.samples;
        }
        assert_in_range(samples, 330, 470);
    }
    tm_dataset_close(ds);
}

static void unshuffled_packs_follow_the_file(void **state) {
    (void)state;
    tm_dataset_opts opts = packed(128);
    opts.shuffle = false;
    tm_dataset *ds = open_samples(500, opts);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    static batch b;
    unsigned last = 0, steps = (unsigned)tm_dataset_steps_per_epoch(ds);
    for (unsigned s = 0; s < 2 * steps; s++) {
        draw(ds, s, 0, 0, &b);
        unsigned first = number_at(b.ids);
        assert_true(s % steps == 0 ? first == 0 : first > last);
        last = first;
    }
    tm_dataset_close(ds);
}

static void epochs_in_parts(void **state) {
    (void)state;
    tm_dataset *ds = open_samples(700, packed(128));
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    uint64_t first = tm_dataset_steps(ds, 1), second = tm_dataset_steps(ds, 2) - first;
    assert_int_equal(tm_dataset_steps(ds, 1.5), first + (second + 1) / 2);
    assert_int_equal(tm_dataset_steps(ds, 0.01), (first + 99) / 100);
    tm_dataset_close(ds);
    tm_dataset_opts opts = packed(128);
    opts.packing = false;
    ds = open_samples(700, opts);
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    assert_int_equal(tm_dataset_steps(ds, 2.5), 875);
    assert_true(tm_dataset_ends_epoch(ds, 700) && !tm_dataset_ends_epoch(ds, 699) && !tm_dataset_ends_epoch(ds, 0));
    tm_dataset_close(ds);
}

static void nothing_is_allocated_after_open(void **state) {
    (void)state;
    static const uint32_t g[3] = {4, 2, 2};
    tm_dataset *ds = open_samples(5000, packed(128));
    uint64_t before = tm_mem_allocations();
    ledger l = begin_ledger(5000, 128);
    assert_int_equal(tm_dataset_set_batches(ds, g[0], g[1], g[2]), TM_OK);
    check_steps(ds, 0, 20, g, &l);
    assert_int_equal(tm_mem_allocations(), before);
    free(l.used);
    tm_dataset_close(ds);
}

/* ---- by length --------------------------------------------------------------------------------------------------- */

static void lengths_are_alike(void **state) {
    (void)state;
    static const uint32_t geometry[][3] = {{8, 2, 1}, {8, 1, 3}, {1, 8, 1}, {5000, 1, 1}};
    static batch b;
    for (size_t i = 0; i < TM_COUNT(geometry); i++) {
        enum { N = 9001 };
        const uint32_t *g = geometry[i];
        tm_dataset_opts opts = packed(512);
        opts.packing = false, opts.group_by_length = true;
        tm_dataset *ds = open_samples(N, opts);
        assert_int_equal(tm_dataset_set_batches(ds, g[0], g[1], g[2]), TM_OK);
        uint64_t steps = tm_dataset_steps_per_epoch(ds), padded = 0, tokens = 0;
        assert_int_equal(steps, (N - 1) / (g[0] * g[1] * g[2]) + 1);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            unsigned *used = calloc(N, sizeof *used);
            for (uint64_t p = 0; p < N; p++) used[tm_dataset_order(ds, epoch, p)]++;
            for (unsigned s = 0; s < N; s++) assert_int_equal(used[s], 1);
            free(used);
        }
        for (uint64_t s = 0; s < steps && g[0] < 1000; s++)
            for (uint32_t k = 0; k < g[1]; k++)
                for (uint32_t r = 0; r < g[2]; r++) {
                    draw(ds, s, k, r, &b);
                    padded += b.shape.rows * b.shape.seq;
                    tokens += b.shape.mask_tokens;
                }
        if (tokens) printf("%u x %u x %u: %.3f of the tokens\n", g[0], g[1], g[2], (double)padded / (double)tokens);
        assert_true((double)padded <= 1.03 * (double)tokens);
        tm_dataset_close(ds);
    }
}

/* ---- text longer than a row ---------------------------------------------------------------------------------------- */

/* The rows that lines become, in order: all tokens, of which each but a row's first is learned. */
static void check_text(const char *lines, tm_dataset_opts opts, const char *const *rows) {
    static batch b;
    int32_t ids[64];
    uint64_t n = 0, tokens = 0;
    opts.seq_len = 6;
    tm_dataset *ds = open_text(lines, &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    for (; rows[n]; n++) {
        size_t length = ids_of(rows[n], ids);
        draw(ds, n, 0, 0, &b);
        assert_int_equal(b.shape.seq, length);
        assert_memory_equal(b.ids, ids, length * sizeof *ids);
        for (size_t t = 0; t < length; t++) assert_int_equal(b.labels[t], t + 1 < length ? ids[t + 1] : X);
        tokens += length;
    }
    assert_int_equal(tm_dataset_get_counts(ds)->samples, n);
    assert_int_equal(tm_dataset_get_counts(ds)->tokens, tokens);
    tm_dataset_close(ds);
}
#define TEXT(lines, opts, ...) check_text(lines, opts, (const char *const[]){__VA_ARGS__, NULL})
#define LINE(text) "{\"text\": \"" text "\"}\n"

static void text_goes_on_in_further_rows(void **state) {
    (void)state;
    tm_dataset_opts opts = defaults();
    opts.overlong = TM_OVERLONG_SPLIT;
    TEXT(LINE("1234"), opts, "<bos>1234<eos>");
    TEXT(LINE("12345"), opts, "<bos>1234", "5<eos>"); /* the last row is not one token, which would learn nothing */
    TEXT(LINE("123456") LINE("7"), opts, "<bos>12345", "6<eos>", "<bos>7<eos>");
    TEXT(LINE("0123456789xyz"), opts, "<bos>01234", "56789x", "yz<eos>");
    opts.overlong = TM_OVERLONG_ERROR;
    opts.seq_len = 6;
    tm_dataset *ds;
    assert_int_equal(open_bytes(&ds, LINE("12345"), sizeof LINE("12345") - 1, &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "split"));
    tm_error_clear();
    opts.overlong = TM_OVERLONG_SPLIT, opts.rows = TM_ROWS_PAIRS;
    assert_int_equal(open_bytes(&ds, LINE("12345"), sizeof LINE("12345") - 1, &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "preferences"));
    tm_error_clear();
}

/* Samples that were scanned by another run without packing are not packed either, where they cannot be. */
static void saved_preferences_are_not_packed(void **state) {
    (void)state;
    tm_dataset_opts opts = packed(64);
    tm_dataset *ds;
    opts.rows = TM_ROWS_PAIRS;
    assert_int_equal(tm_dataset_open_saved(&ds, 0, 0, &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "not for preferences"));
    tm_error_clear();
}

static void texts_side_by_side(void **state) {
    (void)state;
    tm_dataset_opts opts = defaults();
    opts.concatenate = true;
    TEXT(LINE("1") LINE("2"), opts, "<bos>1<eos><bos>2<eos>");
    TEXT(LINE("12") LINE("34"), opts, "<bos>12<eos><bos>3", "4<eos>");
    TEXT(LINE("12") LINE("3"), opts, "<bos>12<eos><bos>", "3<eos>"); /* none is one token */
    TEXT(LINE("1") LINE("0123456789xyz") LINE("2"), opts, "<bos>1<eos><bos>01", "234567", "89xyz<eos>", "<bos>2<eos>");
}

/* ---- rows that come packed ---------------------------------------------------------------------------------------- */

static tm_status packed_row(void *ctx, uint64_t row, int32_t *ids, int32_t *labels, uint8_t *mask) {
    (void)ctx;
    for (int t = 0; t < 8; t++) {
        ids[t] = labels[t] = 10 * (int)row + t, mask[t] = t < 6;
        if (t > 3 + 4 * (row == 0)) labels[t] = X, mask[t] = 0;
    }
    return TM_OK;
}
static tm_status packed_begin(void *ctx, uint64_t row, uint32_t *begin) {
    static const uint32_t of[2][8] = {{0, 0, 0, 3, 3, 3, 6, 6}, {0, 1, 1, 1, 1, 1, 6, 6}};
    (void)ctx;
    memcpy(begin, of[row], sizeof of[row]);
    return TM_OK;
}

static void rows_bring_their_documents(void **state) {
    (void)state;
    static batch b;
    const tm_row_source rows = {
        .get_row = packed_row, .get_begin = packed_begin, .n_rows = 2, .seq = 8, .name = "rows.safetensors"};
    tm_dataset_opts opts = defaults();
    tm_dataset *ds;
    assert_int_equal(tm_dataset_open_rows(&ds, &rows, &opts), TM_OK);
    assert_true(tm_dataset_has_documents(ds));
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    /* the first row's padding has labels, so that it counts to the row; the other row is shorter */
    assert_int_equal(b.shape.seq, 8);
    assert_memory_equal(b.begin, ((uint32_t[]){0, 0, 0, 3, 3, 3, 6, 6, 0, 1, 1, 1, 4, 4, 4, 4}), 16 * sizeof *b.begin);
    /* none of them is a document's first token */
    assert_memory_equal(b.labels, ((int32_t[]){1, 2, X, 4, 5, X, 7, X, X, 12, 13, X, X, X, X, X}),
                        16 * sizeof *b.labels);
    assert_int_equal(b.shape.label_tokens, 7);
    tm_dataset_close(ds);
    opts.packing = true;
    assert_int_equal(tm_dataset_open_rows(&ds, &rows, &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "segment_ids"));
    tm_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_sample_once_an_epoch, clean_record),
        cmocka_unit_test_setup(rows_are_full, clean_record),
        cmocka_unit_test_setup(packs_are_a_function_of_seed_and_epoch, clean_record),
        cmocka_unit_test_setup(steps_are_alike, clean_record),
        cmocka_unit_test_setup(unshuffled_packs_follow_the_file, clean_record),
        cmocka_unit_test_setup(epochs_in_parts, clean_record),
        cmocka_unit_test_setup(nothing_is_allocated_after_open, clean_record),
        cmocka_unit_test_setup(lengths_are_alike, clean_record),
        cmocka_unit_test_setup(text_goes_on_in_further_rows, clean_record),
        cmocka_unit_test_setup(texts_side_by_side, clean_record),
        cmocka_unit_test_setup(saved_preferences_are_not_packed, clean_record),
        cmocka_unit_test_setup(rows_bring_their_documents, clean_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
