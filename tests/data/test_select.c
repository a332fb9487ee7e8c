/* Several files as one dataset: how often an epoch has their samples, what is held out, keys under other names. */
#include "data/dataset.h"
#include "tests/support/mem_file.h"

#include <omp.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Letters are tokens: a is 1, z is 26; 27 is <eos>. */
enum { EOS = 27, LETTERS = 26, MOST = 8 };

static tm_tokenizer *tokenizer;

static int set_up(void **state) {
    (void)state;
    tm_buf json = {0};
    assert_int_equal(tm_buf_printf(&json, "{\"added_tokens\":[{\"id\":27,\"content\":\"<eos>\",\"special\":true}],"
                                          "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"merges\":[],\"vocab\":{"
                                          "\"?\":0"),
                     TM_OK);
    for (int i = 0; i < LETTERS; i++) assert_int_equal(tm_buf_printf(&json, ",\"%c\":%d", 'a' + i, i + 1), TM_OK);
    assert_int_equal(tm_buf_append(&json, "}}}", 3), TM_OK);
    tm_mem_source source = {json.data, json.len, 0};
    if (tm_tokenizer_open(&tokenizer, tm_mem_source_read, &source, "letters") != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    tm_buf_free(&json);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tm_tokenizer_close(tokenizer);
    return 0;
}

/* ---- files in memory ----------------------------------------------------------------------------------------------- */

typedef struct world {
    const char *name[MOST], *text[MOST];
    tm_reader_opts how[MOST];
    uint32_t n, open;
    mem_file file; /* the open one */
} world;

static tm_status open_file(void *ctx, uint32_t i, tm_data_source *out) {
    world *w = ctx;
    assert_true(i < w->n && w->open++ == 0);
    w->file = (mem_file){w->text[i], strlen(w->text[i])};
    *out = mem_file_source(&w->file, w->name[i]);
    return TM_OK;
}

static void close_file(void *ctx, uint32_t i) {
    (void)i;
    ((world *)ctx)->open--;
}

static tm_status open_all(tm_dataset **ds, world *w, const tm_data_group *group, uint32_t n_groups,
                          const tm_dataset_opts *opts) {
    tm_data_files files = {.ctx = w,
                           .open = open_file,
                           .close = close_file,
                           .how = w->how,
                           .n = w->n,
                           .group = group,
                           .n_groups = n_groups,
                           .name = "data"};
    tm_dataset_opts o = *opts;
    for (uint32_t i = 0; i < w->n; i++) files.bytes += strlen(w->text[i]);
    o.tokenizer = tokenizer;
    o.eos_id = EOS;
    tm_error_clear();
    tm_status rc = tm_dataset_open(ds, &files, &o);
    assert_int_equal(w->open, 0);
    return rc;
}

/* The first letters of an epoch's samples, in file order: "aab". */
static const char *letters_of(tm_dataset *ds) {
    static char out[4][256];
    static unsigned turn;
    char *at = out[turn++ % 4], *end = at;
    const tm_dataset_counts *c = tm_dataset_get_counts(ds);
    uint64_t tokens = 0, labels = 0;
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    assert_true(c->samples < 256);
    for (uint64_t i = 0; i < c->samples; i++) {
        int32_t ids[64], want[64];
        tm_batch_shape shape;
        assert_int_equal(
            tm_dataset_batch(ds, i, 0, 0, &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = want}, &shape),
            TM_OK);
        *end++ = (char)('a' + ids[0] - 1);
        tokens += shape.mask_tokens;
        labels += shape.label_tokens;
    }
    *end = 0;
    assert_int_equal(tokens, c->tokens); /* counts are of what is left */
    assert_int_equal(labels, c->label_tokens);
    return at;
}

/* Of two groups: a to j in two files, k to n in one. */
#define LINE(letter) "{\"text\": \"" letter "\"}\n"
static world two_groups(void) {
    return (world){.name = {"1.jsonl", "2.json", "3.csv"},
                   .text = {LINE("a") LINE("b") LINE("c") LINE("dd") LINE("e") LINE("f"),
                            "[{\"text\": \"g\"}, {\"text\": \"hhh\"}, {\"text\": \"i\"}, {\"text\": \"j\"}]",
                            "text\nk\nl\nm\nnnnn\n"},
                   .n = 3};
}

static tm_dataset *must_open(tm_data_group one, tm_data_group two, const tm_dataset_opts *opts) {
    world w = two_groups();
    tm_dataset *ds = NULL;
    one.n_files = 2;
    two.n_files = 1;
    if (open_all(&ds, &w, (const tm_data_group[]){one, two}, 2, opts) != TM_OK) fail_msg("%s", tm_error_get()->text);
    return ds;
}

static uint64_t check_letters(tm_data_group one, tm_data_group two, const tm_dataset_opts *opts, const char *want) {
    tm_dataset *ds = must_open(one, two, opts);
    if (want) assert_string_equal(letters_of(ds), want);
    uint64_t fingerprint = tm_dataset_fingerprint(ds);
    tm_dataset_close(ds);
    return fingerprint;
}

static void count(const char *letters, unsigned n[LETTERS]) {
    memset(n, 0, LETTERS * sizeof *n);
    for (; *letters; letters++) n[*letters - 'a']++;
}

static unsigned sum(const unsigned *n, char from, char to) {
    unsigned all = 0;
    for (char c = from; c <= to; c++) all += n[c - 'a'];
    return all;
}

static const tm_data_group once = {.weight = 1}, twice = {.weight = 2}, half = {.weight = .5}, three = {.samples = 3};

static void test_files(void **state) {
    (void)state;
    tm_dataset_opts opts = {.seed = 1};
    tm_dataset *ds = NULL;
    uint64_t all = check_letters(once, once, &opts, "abcdefghijklmn");
    world lines = {.name = {"x.jsonl"},
                   .text = {LINE("a") LINE("b") LINE("c") LINE("dd") LINE("e") LINE("f") LINE("g") LINE("hhh") LINE("i")
                                LINE("j") LINE("k") LINE("l") LINE("m") LINE("nnnn")},
                   .n = 1};
    assert_int_equal(open_all(&ds, &lines, NULL, 0, &opts), TM_OK);
    assert_int_equal(tm_dataset_fingerprint(ds), all); /* of what they hold, however it lies in files */
    tm_dataset_close(ds);
}

static void test_weights(void **state) {
    (void)state;
    tm_dataset_opts opts = {.seed = 1};
    unsigned n[LETTERS];
    check_letters(once, twice, &opts, "abcdefghijklmnklmn");
    tm_dataset *ds = must_open(half, three, &opts);
    count(letters_of(ds), n);
    assert_int_equal(sum(n, 'a', 'j'), 5); /* five of ten, and three of four; none of them twice */
    assert_int_equal(sum(n, 'k', 'n'), 3);
    for (int i = 0; i < LETTERS; i++) assert_true(n[i] <= 1);
    const char *was = letters_of(ds);
    uint64_t fingerprint = tm_dataset_fingerprint(ds);
    tm_dataset_close(ds);
    opts.shuffle = true; /* the order is another, what is taken is not */
    assert_int_equal(check_letters(half, three, &opts, NULL), fingerprint);
    opts = (tm_dataset_opts){.seed = 2};
    ds = must_open(half, three, &opts);
    assert_string_not_equal(letters_of(ds), was);
    assert_int_not_equal(tm_dataset_fingerprint(ds), fingerprint);
    tm_dataset_close(ds);
}

static void test_more_than_there_are(void **state) {
    (void)state;
    tm_dataset_opts opts = {.seed = 1};
    unsigned n[LETTERS];
    tm_dataset *ds = must_open((tm_data_group){.samples = 23}, (tm_data_group){.weight = 1.5}, &opts);
    count(letters_of(ds), n);
    assert_int_equal(sum(n, 'a', 'j'), 23); /* two rounds, and three of the ten */
    assert_int_equal(sum(n, 'k', 'n'), 6);
    for (int i = 0; i < 10; i++) assert_true(n[i] == 2 || n[i] == 3);
    for (int i = 10; i < 14; i++) assert_true(n[i] == 1 || n[i] == 2);
    tm_dataset_close(ds);
}

/* Many records, some of them wrong: the same by any number of threads. */
static void test_threads(void **state) {
    (void)state;
    tm_buf text = {0};
    uint64_t fingerprint[2];
    for (int i = 0; i < 3000; i++)
        assert_int_equal(tm_buf_printf(&text, i % 97 ? "{\"text\": \"%0*d%c\"}\n" : "{\"text\" %0*d%c\n", i % 50, 0,
                                       'a' + i % LETTERS),
                         TM_OK);
    for (int t = 0; t < 2; t++) {
        world w = {.name = {"1.jsonl"}, .text = {text.data}, .n = 1};
        tm_dataset *ds = NULL;
        omp_set_num_threads(t ? 5 : 1);
        assert_int_equal(open_all(&ds, &w, NULL, 0, &(tm_dataset_opts){0}), TM_OK);
        const tm_dataset_counts *c = tm_dataset_get_counts(ds);
        assert_int_equal(c->bad, 31);
        assert_int_equal(c->samples, 2969);
        assert_int_equal(c->first_bad_line, 1);
        fingerprint[t] = tm_dataset_fingerprint(ds);
        tm_dataset_close(ds);
        assert_int_equal(open_all(&ds, &w, NULL, 0, &(tm_dataset_opts){.strict = true}), TM_EINPUT);
        assert_non_null(strstr(tm_error_get()->text, "1.jsonl:1: column"));
        tm_error_clear();
    }
    assert_int_equal(fingerprint[0], fingerprint[1]);
    tm_buf_free(&text);
}

/* Sample i is a letter so many times, by i. */
static const char *text_of(int i) {
    static char text[16];
    int n = i % 7 + 1;
    memset(text, 'a' + i % LETTERS, (size_t)n);
    text[n] = 0;
    return text;
}

static void check_sample(tm_dataset *ds, uint64_t at, int i) {
    int32_t ids[64], labels[64];
    tm_batch_shape shape;
    assert_int_equal(
        tm_dataset_batch(ds, at, 0, 0, &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = labels}, &shape),
        TM_OK);
    assert_int_equal(shape.mask_tokens, i % 7 + 2);
    for (int t = 0; t <= i % 7; t++) assert_int_equal(ids[t], i % LETTERS + 1);
}

/* More samples than an index keeps as they are. */
static void test_many(void **state) {
    (void)state;
    enum { N = 200000 };
    tm_buf text = {0};
    for (int i = 0; i < N; i++) assert_int_equal(tm_buf_printf(&text, "{\"text\": \"%s\"}\n", text_of(i)), TM_OK);
    world w = {.name = {"1.jsonl"}, .text = {text.data}, .n = 1};
    tm_dataset *ds = NULL;
    assert_int_equal(open_all(&ds, &w, NULL, 0, &(tm_dataset_opts){.vocab_size = 28}), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, N);
    for (int i = 0; i < N; i += 61) check_sample(ds, (uint64_t)i, i);
    check_sample(ds, N - 1, N - 1);
    uint64_t rows = 24 * (N % 65536) + 3 * 1024 * 264, ids = N * 22; /* at most: 9 ids, their bits, a hash */
    assert_true(tm_dataset_memory_bytes(ds) < rows + ids + 4096);
    tm_dataset_close(ds);
    const tm_data_group few = {.n_files = 1, .samples = 150000};
    assert_int_equal(open_all(&ds, &w, &few, 1, &(tm_dataset_opts){.vocab_size = 28}), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, 150000);
    int i = 0;
    for (uint64_t at = 0; at < 150000; at++, i++) { /* in the order of the file, each once: they can be found */
        while (i < N && tm_dataset_row_tokens(ds, at) != (uint32_t)(i % 7 + 2)) i++;
        assert_true(i < N);
    }
    tm_dataset_close(ds);
    tm_buf_free(&text);
}

/* ---- held out ------------------------------------------------------------------------------------------------------- */

static void check_split(double held_out, tm_data_group one, unsigned want, unsigned train_samples) {
    unsigned train[LETTERS], held[LETTERS];
    tm_dataset_opts opts = {.seed = 7, .held_out = held_out};
    tm_dataset *ds = must_open(one, once, &opts);
    count(letters_of(ds), train);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, train_samples);
    tm_dataset_close(ds);
    opts.is_held_out = true;
    ds = must_open(one, once, &opts);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, want);
    count(letters_of(ds), held);
    tm_dataset_close(ds);
    for (int i = 0; i < LETTERS; i++) assert_true(!train[i] || !held[i]);
    for (int i = 0; i < LETTERS; i++) assert_true(held[i] <= 1);
    if (one.weight >= 1) assert_int_equal(sum(train, 'a', 'z') > 0 ? sum(held, 'a', 'z') : 0, want);
}

static void test_held_out(void **state) {
    (void)state;
    check_split(.25, once, 4, 10); /* of 14: 3.5 */
    check_split(.01, once, 1, 13); /* one at least */
    check_split(5, once, 5, 9);
    check_split(.2, half, 2, 7); /* of 5 and 4: 1.8 */
    world w = two_groups();
    tm_dataset *ds;
    assert_int_equal(open_all(&ds, &w, NULL, 0, &(tm_dataset_opts){.held_out = 14}), TM_EINPUT);
    assert_string_equal(tm_error_get()->text, "data: to hold out 14 of its 14 samples leaves none to train on");
    tm_error_clear();
}

/* Held-out samples do not come back with those that come more than once. */
static void test_held_out_of_repeated(void **state) {
    (void)state;
    unsigned train[LETTERS];
    tm_dataset_opts opts = {.seed = 7, .held_out = 4};
    tm_dataset *ds = must_open((tm_data_group){.weight = 3}, once, &opts);
    count(letters_of(ds), train);
    unsigned kinds = 0;
    for (int i = 0; i < LETTERS; i++) kinds += train[i] > 0;
    for (int i = 0; i < 10; i++) assert_true(train[i] == 0 || train[i] == 3);
    assert_int_equal(kinds, 10);
    tm_dataset_close(ds);
}

/* KTO makes two samples of a pair: "a" to "r" are pairs, "s" to "z" have a label. */
static world pairs_and_labels(tm_buf *text) {
    for (int i = 0; i < LETTERS; i++)
        assert_int_equal(tm_buf_printf(text,
                                       i < 18 ? "{\"prompt\": \"%c\", \"chosen\": \"y\", \"rejected\": \"n\"}\n"
                                              : "{\"prompt\": \"%c\", \"completion\": \"y\", \"label\": true}\n",
                                       'a' + i),
                         TM_OK);
    return (world){.name = {"1.jsonl"}, .text = {text->data}, .n = 1};
}

static void check_pairs(double weight, double held_out, unsigned kinds_held) {
    unsigned of[2][LETTERS], kinds = 0;
    tm_buf text = {0};
    world w = pairs_and_labels(&text);
    const tm_data_group group = {.n_files = 1, .weight = weight};
    for (int held = 0; held < 2; held++) {
        tm_dataset *ds;
        tm_dataset_opts opts = {.seed = 7, .held_out = held_out, .is_held_out = held, .rows = TM_ROWS_LABELLED};
        if (open_all(&ds, &w, &group, 1, &opts) != TM_OK) fail_msg("%s", tm_error_get()->text);
        count(letters_of(ds), of[held]);
        tm_dataset_close(ds);
    }
    for (int i = 0; i < LETTERS; i++) {
        assert_true(!of[0][i] || !of[1][i]);
        if (weight == 1) assert_int_equal(of[0][i] + of[1][i], i < 18 ? 2 : 1);
        kinds += of[1][i] > 0;
    }
    if (kinds_held) assert_int_equal(kinds, kinds_held);
    tm_buf_free(&text);
}

static void halves_of_a_pair_are_on_one_side(void **state) {
    (void)state;
    check_pairs(1, .25, 7); /* 11 of 44 samples: 6.5 of 26 records */
    check_pairs(1, 1, 1);
    check_pairs(1, 30, 18);
    check_pairs(.5, .5, 0); /* of some pairs one half is taken */
}

/* ---- columns -------------------------------------------------------------------------------------------------------- */

static void test_columns(void **state) {
    (void)state;
    static const char *const theirs[] = {"q", "a"}, *const ours[] = {"prompt", "completion"};
    static const char *const body[] = {"body"}, *const text[] = {"text"};
    const tm_data_columns pairs = {theirs, ours, 2}, texts = {body, text, 1};
    world w = {.name = {"1.jsonl", "2.csv", "3.jsonl"},
               .text = {"{\"q\": \"x\", \"a\": \"y\", \"prompt\": \"not this\"}\n", "q,a\nv,w\n",
                        "{\"text\": \"not this\", \"body\": \"b\"}\n" LINE("c")},
               .how = {{.columns = &pairs}, {.columns = &pairs}, {.columns = &texts}},
               .n = 3};
    tm_dataset *ds = NULL;
    if (open_all(&ds, &w, NULL, 0, &(tm_dataset_opts){.strict = true}) != TM_OK) fail_msg("%s", tm_error_get()->text);
    assert_string_equal(letters_of(ds), "xvbc");
    assert_int_equal(tm_dataset_get_counts(ds)->label_tokens, 2 + 2 + 1 + 1); /* completions, and the ends */
    tm_dataset_close(ds);
}

static void test_unknown_columns(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"question\": \"x\", \"answer\": \"y\", \"id\": 3}",
         "1.jsonl:1: keys {question, answer, id} are no known format (messages; conversations; prompt and completion; "
         "instruction and output; text); say what they are, such as \"columns\": {\"question\": \"prompt\", "
         "\"answer\": "
         "\"completion\"}"},
        {"{\"source\": \"x\", \"goal\": \"y\"}", "{\"source\": \"prompt\", \"goal\": \"completion\"}"},
        {"{\"line\": \"x\"}", "\"columns\": {\"line\": \"text\"}"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        world w = {.name = {"1.jsonl"}, .text = {cases[i][0]}, .n = 1};
        tm_dataset *ds;
        assert_int_equal(open_all(&ds, &w, NULL, 0, &(tm_dataset_opts){.strict = true}), TM_EINPUT);
        if (!strstr(tm_error_get()->text, cases[i][1])) fail_msg("%s", tm_error_get()->text);
        tm_error_clear();
    }
}

/* Which rows were cut is said of the samples that an epoch has, each once, not of all of the file. */
static void what_is_cut_is_counted_of_the_chosen(void **state) {
    (void)state;
    enum { LINES = 40, SEQ = 4, TAKEN = 12 };
    static char text[LINES * 32];
    size_t n = 0;
    for (int i = 0; i < LINES; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\":\"%s\"}\n", i % 3 ? "abcdefgh" : "ab");
    static const struct {
        uint64_t samples;
        double weight, held_out;
        bool is_held_out;
        uint64_t want; /* samples */
    } rows[] = {{TAKEN, 1, 0, false, TAKEN}, {0, 0.5, 0, false, LINES / 2}, {0, 1, 10, false, LINES - 10},
                {0, 1, 10, true, 10},        {0, 1, 0, false, LINES},       {2 * LINES, 1, 0, false, 2 * LINES}};
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        world w = {.name = {"a.jsonl"}, .text = {text}, .n = 1};
        tm_dataset *ds;
        tm_dataset_opts o = {
            .seq_len = SEQ, .held_out = rows[i].held_out, .is_held_out = rows[i].is_held_out, .seed = 7};
        const tm_data_group group = {.n_files = 1, .samples = rows[i].samples, .weight = rows[i].weight};
        assert_int_equal(open_all(&ds, &w, &group, 1, &o), TM_OK);
        const tm_dataset_counts *c = tm_dataset_get_counts(ds);
        assert_int_equal(c->samples, rows[i].want);
        uint64_t cut = 0;
        for (uint64_t row = 0; row < tm_min_u64(c->samples, LINES); row++) cut += tm_dataset_row_tokens(ds, row) == SEQ;
        assert_true(cut > 0 && cut < c->samples);
        assert_int_equal(c->truncated, cut);
        assert_int_equal(c->lines, LINES);
        tm_dataset_close(ds);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_more_than_there_are),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_held_out_of_repeated),
        cmocka_unit_test(halves_of_a_pair_are_on_one_side),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_many),
        cmocka_unit_test(what_is_cut_is_counted_of_the_chosen),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_unknown_columns),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
