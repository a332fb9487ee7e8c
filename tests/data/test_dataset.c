/* dataset: formats and their masks against expectations written by hand; the index rule; hostile files. */
#include "by_hand.h"

#include <stdlib.h>

/* ---- formats ------------------------------------------------------------------------------------------------------ *
 * Expectations are written as text: the ids of `whole`, of which those of the part between the marks are learned. The
 * marks: <bos> <eos> etc. are one token each, "ab" is one. */

/* `parts` alternate: not learned, learned, not learned, ... NULL ends. */
static void check_labels(const char *line, tm_data_format format, tm_chat_labels how, const char *const *parts) {
    int32_t want[512], want_labels[512], ids[512], labels[512];
    uint8_t mask[512];
    size_t n = 0;
    tm_batch_shape shape;
    tm_dataset_opts opts = defaults();
    opts.format = format;
    opts.strict = true;
    opts.labels = how;
    for (size_t p = 0; parts[p]; p++) {
        size_t m = ids_of(parts[p], want + n);
        for (size_t i = 0; i < m; i++) want_labels[n + i] = p % 2 ? want[n + i] : X;
        n += m;
    }
    tm_dataset *ds = open_text(line, &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    assert_int_equal(
        tm_dataset_batch(ds, 0, 0, 0,
                         &(tm_batch_arrays){.capacity = 512, .ids = ids, .labels = labels, .key_mask = mask}, &shape),
        TM_OK);
    assert_int_equal(shape.rows, 1);
    assert_int_equal(shape.seq, n);
    assert_int_equal(shape.tokens, (n + 63) / 64 * 64);
    assert_memory_equal(ids, want, n * sizeof *ids);
    for (size_t t = 0; t < shape.tokens; t++) {
        assert_int_equal(labels[t], t + 1 < n ? want_labels[t + 1] : X); /* shifted */
        assert_int_equal(mask[t], t < n);
        if (t >= n) assert_int_equal(ids[t], 0);
    }
    tm_dataset_close(ds);
}
#define CHECK(line, format, ...)                                                                                       \
    check_labels(line, format, (tm_chat_labels){0}, (const char *const[]){__VA_ARGS__, NULL})
#define CHECK_LABELS(line, how, ...)                                                                                   \
    check_labels(line, TM_DATA_AUTO, (tm_chat_labels){how}, (const char *const[]){__VA_ARGS__, NULL})
#define CHATML(role, text) "<|im_start|>" role "\n" text

static void test_text(void **state) {
    (void)state;
    CHECK("{\"text\": \"cab\"}", TM_DATA_AUTO, "<bos>", "cab<eos>");
    CHECK("{\"text\": \"cab<eos>\"}\n", TM_DATA_TEXT, "<bos>", "cab<eos>"); /* not twice */
    CHECK("\xEF\xBB\xBF{\"text\": \"a\\u00e9\\n\"}\r\n", TM_DATA_AUTO, "<bos>", "a\xC3\xA9\n<eos>");
    CHECK("{\"text\": \"x\", \"meta\": {\"source\": [1, 2]}}", TM_DATA_AUTO, "<bos>", "x<eos>");
}

static void test_prompt_completion(void **state) {
    (void)state;
    CHECK("{\"prompt\": \"2+2=\", \"completion\": \" 4\"}", TM_DATA_AUTO, "<bos>2+2=", " 4<eos>");
    /* the token "ab" straddles the border: it holds a byte of the completion, so it is learned */
    CHECK("{\"prompt\": \"xa\", \"completion\": \"by\"}", TM_DATA_PROMPT_COMPLETION, "<bos>x", "aby<eos>");
    CHECK("{\"prompt\": \"xa\", \"completion\": \"\"}", TM_DATA_AUTO, "<bos>xa", "<eos>");
    CHECK("{\"prompt\": \"\", \"completion\": \"q\"}", TM_DATA_AUTO, "<bos>", "q<eos>");
}

static void test_messages(void **state) {
    (void)state;
    CHECK(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"cab\"}]}",
        TM_DATA_AUTO, CHATML("user", "hi<|im_end|>\n") CHATML("assistant", ""), "cab<|im_end|>", "\n");
    CHECK("{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"1\"},"
          "{\"role\": \"assistant\", \"content\": \"2\"}, {\"role\": \"user\", \"content\": \"3\"},"
          "{\"role\": \"assistant\", \"content\": \"4\"}]}",
          TM_DATA_MESSAGES, CHATML("system", "s<|im_end|>\n") CHATML("user", "1<|im_end|>\n") CHATML("assistant", ""),
          "2<|im_end|>", "\n" CHATML("user", "3<|im_end|>\n") CHATML("assistant", ""), "4<|im_end|>", "\n");
}

/* Authors by other names, turns in ShareGPT's words, and a content that is null. */
static void test_foreign_messages(void **state) {
    (void)state;
    CHECK("{\"messages\": [{\"role\": \"system\", \"content\": null}, {\"role\": \"human\", \"content\": \"hi\"},"
          "{\"role\": \"gpt\", \"content\": \"yo\"}]}",
          TM_DATA_AUTO, CHATML("system", "<|im_end|>\n") CHATML("user", "hi<|im_end|>\n") CHATML("assistant", ""),
          "yo<|im_end|>", "\n");
    CHECK("{\"messages\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"role\": \"bot\", \"content\": \"1\", \"loss\": "
          "false}, {\"role\": \"user\", \"content\": \"2\"}, {\"from\": \"bot\", \"value\": \"3\"}]}",
          TM_DATA_AUTO,
          CHATML("user", "hi<|im_end|>\n") CHATML("assistant", "1<|im_end|>\n") CHATML("user", "2<|im_end|>\n")
              CHATML("assistant", ""),
          "3<|im_end|>", "\n");
    CHECK("{\"conversations\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"chatgpt\", \"content\": "
          "\"yo\"}]}",
          TM_DATA_AUTO, CHATML("user", "hi<|im_end|>\n") CHATML("assistant", ""), "yo<|im_end|>", "\n");
}

static void test_message_loss(void **state) {
    (void)state;
    CHECK("{\"messages\": [{\"role\": \"user\", \"content\": \"1\"},"
          "{\"role\": \"assistant\", \"content\": \"2\", \"loss\": false}, {\"role\": \"user\", \"content\": \"3\"},"
          "{\"role\": \"assistant\", \"content\": \"4\", \"loss\": true}]}",
          TM_DATA_AUTO,
          CHATML("user", "1<|im_end|>\n") CHATML("assistant", "2<|im_end|>\n") CHATML("user", "3<|im_end|>\n")
              CHATML("assistant", ""),
          "4<|im_end|>", "\n");
}

/* The whole row, or the last answer alone. */
static void test_what_is_learned(void **state) {
    static const char line[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", \"content\": \"2\"},"
        "{\"role\": \"user\", \"content\": \"3\"}, {\"role\": \"assistant\", \"content\": \"4\"}]}";
    (void)state;
    CHECK_LABELS(line, .mask_history = true,
                 CHATML("user", "1<|im_end|>\n") CHATML("assistant", "2<|im_end|>\n") CHATML("user", "3<|im_end|>\n")
                     CHATML("assistant", ""),
                 "4<|im_end|>", "\n");
    CHECK_LABELS(line, .train_on_inputs = true, "",
                 CHATML("user", "1<|im_end|>\n") CHATML("assistant", "2<|im_end|>\n") CHATML("user", "3<|im_end|>\n")
                     CHATML("assistant", "4<|im_end|>\n"));
    CHECK_LABELS("{\"prompt\": \"ab\", \"completion\": \"c\"}", .train_on_inputs = true, "<bos>", "abc<eos>");
}

static void test_alpaca(void **state) {
    (void)state;
    CHECK("{\"instruction\": \"add\", \"input\": \"1 2\", \"output\": \"3\"}", TM_DATA_AUTO,
          CHATML("user", "add\n1 2<|im_end|>\n") CHATML("assistant", ""), "3<|im_end|>", "\n");
    CHECK("{\"instruction\": \"go\", \"input\": \"\", \"output\": \"ok\", \"system\": \"be\","
          "\"history\": [[\"q\", \"r\"]]}",
          TM_DATA_ALPACA, CHATML("system", "be<|im_end|>\n") CHATML("user", "q<|im_end|>\n") CHATML("assistant", ""),
          "r<|im_end|>", "\n" CHATML("user", "go<|im_end|>\n") CHATML("assistant", ""), "ok<|im_end|>", "\n");
}

static void test_sharegpt(void **state) {
    (void)state;
    CHECK("{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"from\": \"gpt\", \"value\": \"yo\"}]}",
          TM_DATA_AUTO, CHATML("user", "hi<|im_end|>\n") CHATML("assistant", ""), "yo<|im_end|>", "\n");
    CHECK("{\"system\": \"s\", \"conversation\": [{\"human\": \"hi\", \"assistant\": \"yo\"}]}", TM_DATA_SHAREGPT,
          CHATML("system", "s<|im_end|>\n") CHATML("user", "hi<|im_end|>\n") CHATML("assistant", ""), "yo<|im_end|>",
          "\n");
}

/* Tools and calls, of messages and of ShareGPT's rows, where both may be JSON in a string. */
static void test_tools(void **state) {
    static const char template[] =
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}:{% for c in "
        "m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ m.content }}<|im_end|>{% endfor %}{% if "
        "add_generation_prompt %}<|im_start|>assistant:{% endif %}";
    static const char *const lines[] = {
        "{\"tools\": [{\"t\": 1}], \"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
        "\"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}, "
        "{\"role\": "
        "\"tool\", \"content\": \"r\"}]}",
        "{\"tools\": \"[{\\\"t\\\": 1}]\", \"conversations\": [{\"from\": \"human\", \"value\": \"u\"}, {\"from\": "
        "\"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": 1}}\"}, {\"from\": "
        "\"observation\", \"value\": \"r\"}]}"};
    tm_chat *of_the_others = chat;
    (void)state;
    assert_int_equal(tm_chat_open(&chat, tokenizer, template, sizeof template - 1, "tools", NULL), TM_OK);
    for (size_t i = 0; i < TM_COUNT(lines); i++)
        CHECK(lines[i], TM_DATA_AUTO, "[{\"t\": 1}]<|im_start|>user:u<|im_end|><|im_start|>assistant:",
              "{\"name\": \"f\", \"arguments\": {\"x\": 1}}<|im_end|>", "<|im_start|>tool:r<|im_end|>");
    tm_chat_close(chat);
    chat = of_the_others;
}

/* Ids and assistant masks of transformers, for the conversations of the fixture. */
static char *slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*n + 1);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    bytes[*n] = 0;
    fclose(f);
    return bytes;
}

static bool check_golden(tm_dataset *ds, uint64_t sample, const tm_json *line) {
    const tm_json *id = tm_json_get(line, "ids")->child, *learn = tm_json_get(line, "assistant_mask")->child;
    size_t n = tm_json_get(line, "ids")->count, any = 0;
    int32_t *ids = malloc((n + 64) * sizeof *ids), *labels = malloc((n + 64) * sizeof *labels);
    tm_batch_shape shape;
    for (const tm_json *l = learn->next; l; l = l->next) any += l->integer != 0;
    if (any) {
        assert_int_equal(
            tm_dataset_batch(ds, sample, 0, 0,
                             &(tm_batch_arrays){.capacity = (uint32_t)n + 64, .ids = ids, .labels = labels}, &shape),
            TM_OK);
        assert_int_equal(shape.seq, n);
        for (size_t t = 0; t < n; t++, id = id->next, learn = learn->next) {
            assert_int_equal(ids[t], id->integer);
            if (t) assert_int_equal(labels[t - 1], learn->integer ? id->integer : X);
        }
    }
    free(ids);
    free(labels);
    return any;
}

static void test_golden_chat(void **state) {
    (void)state;
    size_t n, m, k;
    char *json = slurp(TM_TEST_FIXTURES "/chat_chatml/tokenizer.json", &n);
    char *jinja = slurp(TM_TEST_FIXTURES "/chat_chatml/chat_template.jinja", &m);
    char *lines = slurp(TM_TEST_FIXTURES "/chat_chatml/conversations.jsonl", &k);
    tm_mem_source source = {json, n, 0};
    tm_tokenizer *t;
    tm_chat *c;
    tm_dataset *ds;
    uint64_t samples = 0;
    assert_int_equal(tm_tokenizer_open(&t, tm_mem_source_read, &source, "tokenizer.json"), TM_OK);
    assert_int_equal(tm_chat_open(&c, t, jinja, m, "chat_template.jinja", NULL), TM_OK);
    tm_dataset_opts opts = {.tokenizer = t, .chat = c, .eos_id = -1, .strict = true};
    if (open_bytes(&ds, lines, k, &opts) != TM_OK) fail_msg("%s", tm_error_get()->text);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    for (char *line = lines; *line;) {
        size_t len = strcspn(line, "\n");
        tm_json_doc *doc;
        assert_int_equal(tm_json_parse(&doc, line, len, "golden", 0, 0), TM_OK);
        samples += check_golden(ds, samples, tm_json_root(doc));
        tm_json_free(doc);
        line += len + (line[len] == '\n');
    }
    assert_true(samples > 3);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, samples);
    tm_dataset_close(ds);
    tm_chat_close(c);
    tm_tokenizer_close(t);
    free(json);
    free(jinja);
    free(lines);
}

/* ---- counts, truncation ------------------------------------------------------------------------------------------ */

static void test_overlong(void **state) {
    (void)state;
    const char *file = "{\"text\": \"123456\"}\n{\"text\": \"12\"}\n"
                       "{\"prompt\": \"a long prompt\", \"completion\": \"x\"}\n";
    tm_dataset_opts opts = defaults();
    const tm_dataset_counts *c;
    opts.seq_len = 5; /* <bos>1234 | <bos>12<eos> | <bos>a lo: nothing to learn */
    tm_dataset *ds = open_text(file, &opts);
    c = tm_dataset_get_counts(ds);
    assert_int_equal(c->lines, 3);
    assert_int_equal(c->samples, 2);
    assert_int_equal(c->truncated, 2);
    assert_int_equal(c->no_labels, 1);
    assert_int_equal(c->longest, 5);
    assert_int_equal(c->tokens, 5 + 4);
    assert_int_equal(c->label_tokens, 4 + 3);
    tm_dataset_close(ds);
    opts.overlong = TM_OVERLONG_DROP;
    ds = open_text(file, &opts);
    c = tm_dataset_get_counts(ds);
    assert_int_equal(c->dropped, 2);
    assert_int_equal(c->samples, 1);
    tm_dataset_close(ds);
    opts.overlong = TM_OVERLONG_ERROR;
    assert_int_equal(open_bytes(&ds, file, strlen(file), &opts), TM_EINPUT);
    assert_null(ds);
    assert_non_null(strstr(tm_error_get()->text, "train.jsonl:1: 8 tokens"));
    tm_error_clear();
}

/* The last tokens are kept: what is learned of an answer that ends a long row. */
static void test_truncation_left(void **state) {
    tm_dataset_opts opts = defaults();
    int32_t ids[64], labels[64], want[64];
    tm_batch_shape shape;
    (void)state;
    opts.seq_len = 6;
    opts.truncation = TM_TRUNCATE_LEFT;
    tm_dataset *ds = open_text("{\"prompt\": \"123456\", \"completion\": \"xyz\"}\n", &opts);
    assert_int_equal(tm_dataset_get_counts(ds)->truncated, 1);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    const tm_batch_arrays to = {.capacity = 64, .ids = ids, .labels = labels};
    assert_int_equal(tm_dataset_batch(ds, 0, 0, 0, &to, &shape), TM_OK);
    assert_int_equal(shape.seq, ids_of("56xyz<eos>", want));
    assert_memory_equal(ids, want, 6 * sizeof *ids);
    assert_memory_equal(labels, ((int32_t[]){X, 'x', 'y', 'z', EOS, X}), 6 * sizeof *labels);
    tm_dataset_close(ds);
}

/* ---- the index rule
 * -------------------------------------------------------------------------------------------------- */

static tm_dataset *open_numbered(unsigned n, bool shuffle, const tm_data_spill *spill) {
    tm_buf file = {0};
    tm_dataset_opts opts = defaults();
    opts.shuffle = shuffle;
    opts.seed = 7;
    opts.spill = spill;
    opts.memory_bytes = spill ? 100 : 0;
    for (unsigned i = 0; i < n; i++) /* of different lengths; the number can be read back from the ids */
        assert_int_equal(tm_buf_printf(&file, "{\"text\": \"%03u%.*s\"}\n", i, (int)(i % 17), "................."),
                         TM_OK);
    tm_dataset *ds = open_text(file.data, &opts);
    tm_buf_free(&file);
    return ds;
}

static unsigned number_of(const int32_t *row) {
    return (unsigned)((row[1] - '0') * 100 + (row[2] - '0') * 10 + (row[3] - '0'));
}

enum { ROOM = 4096 };

/* Every sample once in each of two epochs, in the same order for every geometry; the sums are those of step_info. */
static void check_epochs(tm_dataset *ds, unsigned n, uint32_t B, uint32_t A, uint32_t R) {
    static int32_t ids[ROOM], labels[ROOM];
    static uint8_t mask[ROOM];
    tm_batch_limits limits;
    assert_int_equal(tm_dataset_set_batches(ds, B, A, R), TM_OK);
    uint64_t steps = tm_dataset_steps_per_epoch(ds);
    assert_int_equal(steps, (n + A * R * B - 1) / (A * R * B));
    tm_dataset_limits(ds, 0, 2 * steps, &limits);
    tm_batch_limits seen = {0};
    for (uint64_t s = 0; s < 2 * steps; s++) {
        tm_step_info info;
        uint64_t tokens = 0, label_tokens = 0, samples = 0;
        tm_dataset_step_info(ds, s, &info);
        assert_int_equal(info.epoch, s / steps);
        for (uint32_t r = 0; r < R; r++) {
            for (uint32_t k = 0; k < A; k++) {
                tm_batch_shape shape;
                assert_int_equal(
                    tm_dataset_batch(
                        ds, s, k, r,
                        &(tm_batch_arrays){.capacity = ROOM, .ids = ids, .labels = labels, .key_mask = mask}, &shape),
                    TM_OK);
                for (uint32_t b = 0; b < shape.rows; b++) {
                    uint64_t place = (((s % steps) * A + k) * R + r) * B + b;
                    assert_true(place < n);
                    assert_int_equal(number_of(ids + (size_t)b * shape.seq), tm_dataset_order(ds, s / steps, place));
                }
                for (uint32_t t = 0; t < shape.tokens; t++) tokens += mask[t], label_tokens += labels[t] != X;
                samples += shape.rows;
                if (shape.tokens > seen.tokens) seen.tokens = shape.tokens;
                if (shape.seq > seen.seq) seen.seq = shape.seq;
                if (shape.rows > seen.rows) seen.rows = shape.rows;
            }
        }
        assert_int_equal(info.tokens, tokens);
        assert_int_equal(info.label_tokens, label_tokens);
        assert_int_equal(info.samples, samples);
        assert_int_equal(samples, s % steps + 1 < steps ? A * R * B : n - (steps - 1) * A * R * B);
    }
    assert_memory_equal(&limits, &seen, sizeof seen);
}

/* The ledger: a run that is stopped and started anew at random steps (with the data opened again, on other ranks, going
 * back to its last commit) counts, for the steps that it keeps, each sample once an epoch. */
static void test_restarts_keep_the_ledger(void **state) {
    (void)state;
    enum { N = 101, EPOCHS = 3, B = 2, STEPS = 26 * EPOCHS }; /* 4 samples a step */
    static const uint32_t geometry[][3] = {{B, 2, 1}, {1, 4, 1}, {B, 1, 2}, {1, 1, 4}};
    static int32_t ids[ROOM], labels[ROOM];
    unsigned used[EPOCHS][N] = {{0}}, restarts = 0;
    uint64_t committed = 0;
    while (committed < STEPS) {
        uint32_t draw[4];
        tm_philox(5, 0, restarts, draw);
        const uint32_t *g = geometry[restarts++ % TM_COUNT(geometry)];
        tm_dataset *ds = open_numbered(N, true, NULL);
        assert_int_equal(tm_dataset_set_batches(ds, g[0], g[1], g[2]), TM_OK);
        assert_int_equal(tm_dataset_steps_per_epoch(ds) * EPOCHS, STEPS);
        uint64_t killed = tm_min_u64(committed + draw[0] % 9, STEPS), kept = committed + draw[1] % 9;
        if (kept > killed || killed == STEPS) kept = killed; /* steps after the last commit are lost, and done again */
        for (uint64_t s = committed; s < killed; s++)
            for (uint32_t k = 0; k < g[1]; k++)
                for (uint32_t r = 0; r < g[2]; r++) {
                    tm_batch_shape shape;
                    assert_int_equal(
                        tm_dataset_batch(ds, s, k, r,
                                         &(tm_batch_arrays){.capacity = ROOM, .ids = ids, .labels = labels}, &shape),
                        TM_OK);
                    for (uint32_t b = 0; b < shape.rows && s < kept; b++)
                        used[s / (STEPS / EPOCHS)][number_of(ids + (size_t)b * shape.seq)]++;
                }
        committed = kept;
        tm_dataset_close(ds);
    }
    assert_true(restarts > 10);
    for (unsigned e = 0; e < EPOCHS; e++)
        for (unsigned i = 0; i < N; i++) assert_int_equal(used[e][i], 1);
}

static void test_geometry(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 1}, {4, 2, 1}, {3, 1, 2}, {5, 3, 2}, {100, 1, 1}, {7, 16, 1}};
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        tm_dataset *ds = open_numbered(101, shuffle, NULL);
        for (size_t i = 0; i < TM_COUNT(shapes); i++) check_epochs(ds, 101, shapes[i][0], shapes[i][1], shapes[i][2]);
        tm_dataset_close(ds);
    }
}

static void test_order_is_a_permutation(void **state) {
    (void)state;
    static const unsigned sizes[] = {1, 2, 3, 4, 5, 16, 17, 64, 65, 255, 999};
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
        unsigned n = sizes[i], same = 0, fixed = 0;
        tm_dataset *ds = open_numbered(n, true, NULL);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            bool *met = calloc(n, sizeof *met);
            for (uint64_t p = 0; p < n; p++) {
                uint64_t x = tm_dataset_order(ds, epoch, p);
                assert_true(x < n && !met[x]);
                met[x] = true;
                fixed += x == p;
                same += x == tm_dataset_order(ds, epoch + 1, p);
            }
            free(met);
        }
        /* a random permutation has one fixed point on average: 3 in three epochs */
        if (n > 100) assert_true(fixed < 20 && same < 20);
        tm_dataset_close(ds);
    }
}

static void test_seed_changes_order(void **state) {
    (void)state;
    tm_buf file = {0};
    tm_dataset_opts opts = defaults();
    unsigned same = 0;
    for (unsigned i = 0; i < 200; i++) assert_int_equal(tm_buf_printf(&file, "{\"text\": \"%u\"}\n", i), TM_OK);
    opts.shuffle = true;
    tm_dataset *one = open_text(file.data, &opts);
    opts.seed = 1;
    tm_dataset *two = open_text(file.data, &opts);
    for (uint64_t p = 0; p < 200; p++) same += tm_dataset_order(one, 0, p) == tm_dataset_order(two, 0, p);
    assert_true(same < 15);
    assert_int_equal(tm_dataset_fingerprint(one), tm_dataset_fingerprint(two));
    tm_dataset_close(one);
    tm_dataset_close(two);
    tm_buf_free(&file);
}

/* ---- the spill
 * -------------------------------------------------------------------------------------------------------- */

typedef struct spill_file {
    char bytes[1 << 22];
    uint64_t end;
    tm_status fail_write;
} spill_file;

static tm_status spill_write(void *ctx, uint64_t offset, const void *buf, size_t len) {
    spill_file *f = ctx;
    if (f->fail_write != TM_OK) return tm_fail(f->fail_write, "the spill is full");
    assert_int_equal(offset, f->end); /* front to back, no holes */
    assert_true(offset + len <= sizeof f->bytes);
    memcpy(f->bytes + offset, buf, len);
    f->end += len;
    return TM_OK;
}

static tm_status spill_read(void *ctx, uint64_t offset, void *buf, size_t len) {
    spill_file *f = ctx;
    assert_true(offset + len <= f->end);
    memcpy(buf, f->bytes + offset, len);
    return TM_OK;
}

static void test_spill(void **state) {
    (void)state;
    static spill_file file;
    tm_data_spill spill = {&file, spill_write, spill_read};
    tm_dataset *in_memory = open_numbered(101, true, NULL), *spilled = open_numbered(101, true, &spill);
    assert_int_equal(tm_dataset_spilled_bytes(in_memory), 0);
    assert_int_equal(tm_dataset_spilled_bytes(spilled), file.end);
    assert_true(file.end > 101 * 6 * 4);
    assert_true(tm_dataset_memory_bytes(spilled) < tm_dataset_memory_bytes(in_memory));
    assert_int_equal(tm_dataset_fingerprint(in_memory), tm_dataset_fingerprint(spilled));
    check_epochs(spilled, 101, 4, 2, 1);
    tm_dataset_close(in_memory);
    tm_dataset_close(spilled);
}

/* What was scanned once is opened without its files, and gives the same batches; another's is not taken, nor a damaged
 * one. */
static void test_saved(void **state) {
    (void)state;
    enum { KEY = 77 };
    static spill_file file;
    tm_data_spill spill = {&file, spill_write, spill_read};
    tm_dataset *scanned = open_numbered(101, true, &spill), *ds = NULL;
    tm_dataset_opts opts = {.vocab_size = VOCAB, .shuffle = true, .seed = 42, .spill = &spill, .memory_bytes = 256};
    assert_int_equal(tm_dataset_save(scanned, KEY), TM_OK);
    assert_int_equal(tm_dataset_saved_bytes(scanned), file.end);
    assert_int_equal(tm_dataset_open_saved(&ds, file.end, KEY, &opts), TM_OK);
    assert_int_equal(tm_dataset_fingerprint(ds), tm_dataset_fingerprint(scanned));
    assert_memory_equal(tm_dataset_get_counts(ds), tm_dataset_get_counts(scanned), sizeof(tm_dataset_counts));
    check_epochs(ds, 101, 4, 2, 1);
    tm_dataset_close(ds);
    assert_int_equal(tm_dataset_open_saved(&ds, file.end, KEY + 1, &opts), TM_ECORRUPT);
    assert_int_equal(tm_dataset_open_saved(&ds, file.end - 1, KEY, &opts), TM_ECORRUPT);
    assert_int_equal(tm_dataset_open_saved(&ds, 0, KEY, &opts), TM_ECORRUPT);
    for (uint64_t at = tm_dataset_spilled_bytes(scanned); at < file.end; at += 7) { /* the index, the trailer */
        tm_error_clear();
        file.bytes[at] ^= 4;
        assert_int_equal(tm_dataset_open_saved(&ds, file.end, KEY, &opts), TM_ECORRUPT);
        assert_null(ds);
        file.bytes[at] ^= 4;
    }
    tm_error_clear();
    assert_int_equal(tm_dataset_open_saved(&ds, file.end, KEY, &opts), TM_OK);
    file.bytes[100] ^= 1; /* a row: found when it is read */
    tm_status worst = TM_OK;
    int32_t ids[64], labels[64];
    tm_batch_shape shape;
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    for (uint64_t i = 0; i < 101 && worst == TM_OK; i++)
        worst = tm_dataset_batch(ds, i, 0, 0, &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = labels}, &shape);
    assert_int_equal(worst, TM_ECORRUPT);
    tm_error_clear();
    tm_dataset_close(ds);
    tm_dataset_close(scanned);
}

static void same_batches(tm_dataset *a, tm_dataset *b, uint64_t step) {
    static int32_t ids[2][ROOM], labels[2][ROOM];
    tm_batch_shape shape[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(tm_dataset_batch(i ? b : a, step, 0, 0,
                                          &(tm_batch_arrays){.capacity = ROOM, .ids = ids[i], .labels = labels[i]},
                                          &shape[i]),
                         TM_OK);
    assert_memory_equal(&shape[0], &shape[1], sizeof shape[0]);
    assert_memory_equal(ids[0], ids[1], shape[0].tokens * sizeof ids[0][0]);
    assert_memory_equal(labels[0], labels[1], shape[0].tokens * sizeof labels[0][0]);
}

/* Of more rows than a block of the index has: most of it is four bytes a row, in the file as well. */
static void test_saved_blocks(void **state) {
    (void)state;
    enum { KEY = 78, N = 70001, B = 100 };
    static spill_file file;
    tm_data_spill spill = {&file, spill_write, spill_read};
    tm_dataset *scanned = open_numbered(N, true, &spill), *ds = NULL;
    tm_dataset_opts opts = {.vocab_size = VOCAB, .shuffle = true, .seed = 7, .spill = &spill, .memory_bytes = 100};
    uint64_t index = tm_dataset_spilled_bytes(scanned);
    assert_int_equal(tm_dataset_save(scanned, KEY), TM_OK);
    assert_int_equal(tm_dataset_saved_bytes(scanned), file.end);
    assert_true(file.end - index < (1 << 16) * 5 + (N - (1 << 16)) * 24);
    assert_int_equal(tm_dataset_open_saved(&ds, file.end, KEY, &opts), TM_OK);
    assert_int_equal(tm_dataset_memory_bytes(ds), tm_dataset_memory_bytes(scanned));
    assert_int_equal(tm_dataset_set_batches(scanned, B, 1, 1), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, B, 1, 1), TM_OK);
    for (uint64_t step = 0; step < tm_dataset_steps_per_epoch(ds); step++) same_batches(scanned, ds, step);
    tm_dataset_close(ds);
    tm_dataset_close(scanned);
    for (uint64_t at = index; at < file.end; at += 1009) {
        tm_error_clear();
        file.bytes[at] ^= 4;
        assert_int_equal(tm_dataset_open_saved(&ds, file.end, KEY, &opts), TM_ECORRUPT);
        file.bytes[at] ^= 4;
    }
    tm_error_clear();
}

static void test_spill_failures(void **state) {
    (void)state;
    static spill_file file = {.fail_write = TM_ENOSPC};
    tm_data_spill spill = {&file, spill_write, spill_read};
    const char *line = "{\"text\": \"0123456789012345678901234567890123456789\"}\n";
    tm_dataset_opts opts = defaults();
    tm_dataset *ds;
    opts.memory_bytes = 90; /* of 42 ids of two bytes, a bit each, and a hash */
    assert_int_equal(open_bytes(&ds, line, strlen(line), &opts), TM_EBUDGET);
    assert_null(ds);
    tm_error_clear();
    opts.spill = &spill;
    assert_int_equal(open_bytes(&ds, line, strlen(line), &opts), TM_ENOSPC);
    assert_null(ds);
    tm_error_clear();
}

static void test_no_allocation_after_open(void **state) {
    (void)state;
    tm_dataset *ds = open_numbered(50, true, NULL);
    uint64_t before = tm_mem_allocations();
    check_epochs(ds, 50, 4, 2, 1);
    assert_int_equal(tm_mem_allocations(), before);
    tm_dataset_close(ds);
}

static void test_batch_geometry_errors(void **state) {
    (void)state;
    int32_t ids[64], labels[64];
    tm_batch_shape shape;
    tm_dataset *ds = open_numbered(20, false, NULL);
    assert_int_equal(tm_dataset_set_batches(ds, 0, 1, 1), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(tm_dataset_set_batches(ds, UINT32_MAX, UINT32_MAX, UINT32_MAX), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(tm_dataset_set_batches(ds, 20, 1, 1), TM_OK);
    assert_int_equal(
        tm_dataset_batch(ds, 0, 0, 0, &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = labels}, &shape),
        TM_EBUG);
    tm_error_clear();
    tm_dataset_close(ds);
}

/* ---- rows of ids
 * -------------------------------------------------------------------------------------------------------- */

typedef struct table {
    int32_t ids[3][4], labels[3][4];
    uint8_t mask[3][4];
} table;

static tm_status table_row(void *ctx, uint64_t row, int32_t *ids, int32_t *labels, uint8_t *mask) {
    const table *t = ctx;
    memcpy(ids, t->ids[row], sizeof t->ids[row]);
    memcpy(labels, t->labels[row], sizeof t->labels[row]);
    memcpy(mask, t->mask[row], sizeof t->mask[row]);
    return TM_OK;
}

/* Row 1 is padded at the end, and its second position is masked but has a label; row 2 has no label. */
static const table rows_table = {{{1, 2, 3, 4}, {5, 6, 7, 0}, {8, 9, 0, 0}},
                                 {{X, X, 3, 4}, {X, 6, 7, X}, {X, X, X, X}},
                                 {{1, 1, 1, 1}, {1, 0, 1, 0}, {1, 1, 0, 0}}};

static tm_status open_rows(tm_dataset **ds, table *t, const tm_dataset_opts *opts) {
    tm_row_source rows = {.ctx = t, .get_row = table_row, .n_rows = 3, .seq = 4, .name = "rows.safetensors"};
    return tm_dataset_open_rows(ds, &rows, opts);
}

static void test_rows(void **state) {
    (void)state;
    table t = rows_table;
    tm_dataset *ds;
    tm_batch_shape shape;
    int32_t ids[64], labels[64];
    uint8_t mask[64];
    tm_dataset_opts opts = {.vocab_size = 10, .shuffle = true, .seed = 3}; /* shuffle has no effect */
    assert_int_equal(open_rows(&ds, &t, &opts), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    assert_int_equal(tm_dataset_steps_per_epoch(ds), 2);
    assert_int_equal(
        tm_dataset_batch(ds, 2, 0, 0,
                         &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = labels, .key_mask = mask}, &shape),
        TM_OK); /* epoch 1 begins again */
    assert_int_equal(shape.rows, 2);
    assert_int_equal(shape.seq, 4);
    assert_int_equal(shape.mask_tokens, 4 + 2);
    assert_int_equal(shape.label_tokens, 2 + 2);
    assert_memory_equal(ids, ((int32_t[]){1, 2, 3, 4, 5, 6, 7, 0, 0}), 9 * sizeof *ids);
    assert_memory_equal(labels, ((int32_t[]){X, 3, 4, X, 6, 7, X, X, X}), 9 * sizeof *labels);
    assert_memory_equal(mask, ((uint8_t[]){1, 1, 1, 1, 1, 0, 1, 0, 0}), 9);
    assert_int_equal(
        tm_dataset_batch(ds, 1, 0, 0,
                         &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = labels, .key_mask = mask}, &shape),
        TM_OK); /* the smaller last step */
    assert_int_equal(shape.rows, 1);
    assert_int_equal(shape.seq, 2); /* padding behind the last key and label is left out */
    assert_int_equal(shape.label_tokens, 0);
    assert_int_equal(tm_dataset_get_counts(ds)->no_labels, 1);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, 3);
    tm_dataset_close(ds);
}

static void check_rows_refused(table t, tm_dataset_opts opts, const char *why) {
    tm_dataset *ds;
    assert_int_equal(open_rows(&ds, &t, &opts), TM_EINPUT);
    assert_null(ds);
    if (!strstr(tm_error_get()->text, why)) fail_msg("\"%s\" not in: %s", why, tm_error_get()->text);
    tm_error_clear();
}

/* Row 1's last key is at its third position. */
static void test_rows_truncated_left(void **state) {
    tm_dataset_opts opts = {.seq_len = 2, .truncation = TM_TRUNCATE_LEFT};
    int32_t ids[64], labels[64];
    uint8_t mask[64];
    tm_batch_shape shape;
    tm_dataset *ds;
    table t = rows_table;
    (void)state;
    assert_int_equal(open_rows(&ds, &t, &opts), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, 3, 1, 1), TM_OK);
    const tm_batch_arrays to = {.capacity = 64, .ids = ids, .labels = labels, .key_mask = mask};
    assert_int_equal(tm_dataset_batch(ds, 0, 0, 0, &to, &shape), TM_OK);
    assert_memory_equal(ids, ((int32_t[]){3, 4, 6, 7, 8, 9}), 6 * sizeof *ids);
    assert_memory_equal(labels, ((int32_t[]){4, X, 7, X, X, X}), 6 * sizeof *labels);
    assert_memory_equal(mask, ((uint8_t[]){1, 1, 0, 1, 1, 1}), 6);
    assert_int_equal(shape.mask_tokens, 5);
    tm_dataset_close(ds);
}

static void test_rows_refused(void **state) {
    (void)state;
    table t = rows_table;
    tm_dataset_opts opts = {.vocab_size = 10};
    t.ids[1][2] = 10;
    check_rows_refused(t, opts, "rows.safetensors: row 1: token id 10 is outside");
    t = rows_table;
    t.ids[0][0] = -1;
    check_rows_refused(t, opts, "row 0: token id -1");
    t = rows_table;
    t.labels[0][3] = -7;
    check_rows_refused(t, opts, "row 0: token id -7");
    memset(t.labels, 0xFF, sizeof t.labels);
    for (int i = 0; i < 12; i++) t.labels[i / 4][i % 4] = X;
    check_rows_refused(t, opts, "no row has a label");
    opts.seq_len = 3;
    opts.overlong = TM_OVERLONG_DROP;
    check_rows_refused(rows_table, opts, "cannot be dropped");
}

/* ---- hostile and broken files
 * ---------------------------------------------------------------------------------------------- */

#define GOOD "{\"text\": \"good\"}\n"

/* The line before is good, `bad` is line 2; reason NULL: `bad` is fine or blank. */
static void check_bad(const char *bad, size_t n, const char *reason) {
    tm_buf file = {0};
    tm_dataset *ds = NULL;
    tm_dataset_opts opts = defaults();
    assert_int_equal(tm_buf_printf(&file, GOOD), TM_OK);
    assert_int_equal(tm_buf_append(&file, bad, n), TM_OK);
    assert_int_equal(tm_buf_printf(&file, "\n" GOOD), TM_OK);
    opts.max_line_bytes = 4096;
    if (open_bytes(&ds, file.data, file.len, &opts) != TM_OK) fail_msg("%s", tm_error_get()->text);
    assert_int_equal(tm_error_get()->code, TM_OK); /* nothing is left pending */
    assert_int_equal(tm_dataset_get_counts(ds)->bad, 1);
    assert_int_equal(tm_dataset_get_counts(ds)->first_bad_line, 2);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, 2);
    tm_dataset_close(ds);
    opts.strict = true;
    assert_int_equal(open_bytes(&ds, file.data, file.len, &opts), TM_EINPUT);
    assert_null(ds);
    if (!strstr(tm_error_get()->text, "train.jsonl:2: ") || !strstr(tm_error_get()->text, reason))
        fail_msg("\"%s\" not in: %s", reason, tm_error_get()->text);
    assert_null(strpbrk(tm_error_get()->text, "\033\n"));
    tm_error_clear();
    tm_buf_free(&file);
}

static void test_bad_lines(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"not json", "column 1"},
        {"{\"text\": \"a\"", "column"},
        {"{\"text\": \"a\"} {\"text\": \"b\"}", "column"},
        {"[1, 2]", "not a JSON object"},
        {"\"text\"", "not a JSON object"},
        {"{\"text\": 3}", "\"text\" is not a string"},
        {"{\"text\": \"\xFF\xFE\"}", "column"},
        {"{\"txt\": \"a\", \"\\u001b[2J\": 1}", "keys {txt,  [2J} are no known format"},
        {"{}", "no known format"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}",
         "are a pair of preferences; \"objective.type\" dpo"},
        {"{\"prompt\": [], \"completion\": \"x\"}", "not both strings"},
        {"{\"messages\": 3}", "\"messages\" is not a list"},
        {"{\"messages\": [3]}", ""},
        {"{\"messages\": [{\"role\": \"user\"}]}", ""},
        {"{\"conversations\": [{\"from\": \"martian\", \"value\": \"x\"}]}", "martian"},
        {"{\"conversations\": [{\"from\": \"gpt\"}]}", "is not a string"},
        {"{\"conversations\": [7]}", "no \"from\""},
        {"{\"conversations\": [{\"from\": \"function_call\", \"value\": \"x\"}]}", "function_call:1:1"},
        {"{\"conversations\": [{\"from\": \"function_call\", \"value\": \"[1]\"}]}", "\"name\", \"arguments\""},
        {"{\"conversations\": [{\"from\": \"function_call\"}]}", "is not a string"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"loss\": 0.5}]}", "have no weights"},
        {"{\"instruction\": 1, \"output\": \"x\"}", "\"instruction\" is not a string"},
        {"{\"instruction\": \"a\", \"output\": null}", "\"output\" is not a string"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[1]]}", "history"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": 3}", "\"history\" is not a list"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"a\"]]}", "other than [user, assistant]"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[1, \"b\"]]}", "user turn of \"history\" is not"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"a\", 1]]}",
         "assistant turn of \"history\" is not"},
        {"{\"instruction\": \"a\", \"input\": 1, \"output\": \"b\"}", "not both strings"},
        {"{\"instruction\": null, \"input\": \"x\", \"output\": 1}", "\"output\" is not a string"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"system\": 5}", "\"system\" is not a string"},
        {"{\"conversations\": 1}", "\"conversations\" is not a list"},
        {"{\"conversations\": [{\"from\": 1, \"value\": \"x\"}]}", "no \"from\""},
        {"{\"conversation\": [{\"human\": \"a\", \"assistant\": 1}]}", "\"assistant\" of a conversation turn is not"},
        {"{\"prompt\": \"a\", \"completion\": 3}", "not both strings"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "column"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) check_bad(cases[i][0], strlen(cases[i][0]), cases[i][1]);
}

static void test_hostile_lines(void **state) {
    (void)state;
    char deep[3000], nul[] = "{\"text\": \"a\0b\"}";
    memset(deep, '[', sizeof deep);
    check_bad(deep, sizeof deep, "column");
    check_bad(nul, sizeof nul - 1, "column"); /* a raw NUL is a control character */
    char *huge = malloc(1 << 20);
    memset(huge, 'x', 1 << 20);
    check_bad(huge, 1 << 20, "longer than 4096 bytes");
    memset(huge, ',', 1 << 20);
    check_bad(huge, 4096, "column"); /* exactly the limit: read, and no JSON */
    free(huge);
}

/* Memory does not grow with the line: 64 MiB without a line end. */
static tm_status endless_read(void *ctx, uint64_t offset, void *buf, size_t len) {
    (void)ctx, (void)offset;
    memset(buf, '[', len);
    return TM_OK;
}

static void test_endless_line(void **state) {
    (void)state;
    tm_data_source source = {NULL, endless_read, 64 * TM_MIB, "endless.jsonl"};
    tm_dataset_opts opts = defaults();
    tm_dataset *ds;
    uint64_t live = tm_mem_live_bytes();
    assert_int_equal(tm_dataset_open_jsonl(&ds, &source, &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "endless.jsonl:1: longer than 16777216 bytes"));
    assert_true(tm_mem_peak_bytes() - live < 40 * TM_MIB);
    assert_int_equal(tm_mem_live_bytes(), live);
    tm_error_clear();
}

static void test_nul_in_a_string(void **state) {
    (void)state;
    tm_dataset_opts opts = defaults();
    int32_t ids[64], labels[64];
    tm_batch_shape shape;
    tm_dataset *ds = open_text("{\"text\": \"a\\u0000b\"}", &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    assert_int_equal(
        tm_dataset_batch(ds, 0, 0, 0, &(tm_batch_arrays){.capacity = 64, .ids = ids, .labels = labels}, &shape), TM_OK);
    assert_memory_equal(ids, ((int32_t[]){BOS, 'a', 0, 'b', EOS}), 5 * sizeof *ids);
    tm_dataset_close(ds);
}

static void check_unusable(const char *file, const tm_dataset_opts *opts, const char *why) {
    tm_dataset *ds;
    assert_int_equal(open_bytes(&ds, file, strlen(file), opts), TM_EINPUT);
    assert_null(ds);
    if (!strstr(tm_error_get()->text, why)) fail_msg("\"%s\" not in: %s", why, tm_error_get()->text);
    tm_error_clear();
}

static void test_unusable_files(void **state) {
    (void)state;
    tm_dataset_opts opts = defaults();
    check_unusable("", &opts, "train.jsonl: the dataset is empty");
    check_unusable("\n  \r\n\n", &opts, "empty");
    check_unusable("x\n{}\n", &opts, "2 of them bad; train.jsonl:1: column 1");
    check_unusable("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", &opts, "1 without a token to learn");
    opts.vocab_size = 100; /* the model's vocabulary is smaller than the tokenizer's */
    check_unusable(GOOD, &opts, "train.jsonl:1: token id 256 is outside the model's vocabulary of 100");
    opts = defaults();
    opts.chat = NULL;
    check_unusable("{\"messages\": []}", &opts, "no chat template");
    opts.tokenizer = NULL;
    check_unusable(GOOD, &opts, "tokenizer.json");
}

static tm_status broken_read(void *ctx, uint64_t offset, void *buf, size_t len) {
    (void)ctx, (void)offset, (void)buf, (void)len;
    return tm_fail(TM_EIO, "the disk is gone");
}

static void test_read_failure(void **state) {
    (void)state;
    tm_data_source source = {NULL, broken_read, 100, "train.jsonl"};
    tm_dataset_opts opts = defaults();
    tm_dataset *ds;
    assert_int_equal(tm_dataset_open_jsonl(&ds, &source, &opts), TM_EIO);
    assert_string_equal(tm_error_get()->text, "the disk is gone");
    tm_error_clear();
}

static void test_names(void **state) {
    (void)state;
    tm_data_format f;
    tm_overlong o;
    for (int i = TM_DATA_AUTO; i <= TM_DATA_SHAREGPT; i++) {
        assert_int_equal(tm_data_format_parse(tm_data_format_name((tm_data_format)i), &f), TM_OK);
        assert_int_equal(f, i);
    }
    assert_int_equal(tm_data_format_parse("csv", &f), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(tm_overlong_parse("drop", &o), TM_OK);
    assert_int_equal(o, TM_OVERLONG_DROP);
    assert_int_equal(tm_overlong_parse("cut", &o), TM_EINPUT);
    tm_error_clear();
}

/* ---- preview
 * ------------------------------------------------------------------------------------------------------------------ */

static void test_preview(void **state) {
    (void)state;
    tm_buf out = {0};
    tm_dataset_opts opts = defaults();
    tm_dataset *ds = open_text("{\"prompt\": \"say \\u001b[31m\\u009b it:\\n\", \"completion\": \" cab\"}\n", &opts);
    assert_int_equal(tm_dataset_preview(ds, 0, tokenizer, false, &out), TM_OK);
    assert_string_equal(out.data, "sample 1 of 1: 21 tokens, 4 of them learned (text between ⟦ and ⟧ is read only)\n"
                                  "  | ⟦<bos>say \\x1b[31m\\u009b it:\n  | ⟧ cab<eos>\n");
    tm_buf_clear(&out);
    assert_int_equal(tm_dataset_preview(ds, 0, NULL, true, &out), TM_OK);
    assert_non_null(strstr(out.data, "58 10\033[0m32 99 260 257\n"));
    assert_int_equal(tm_dataset_preview(ds, 1, tokenizer, false, &out), TM_EINPUT);
    tm_error_clear();
    tm_dataset_close(ds);
    tm_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_text, clean_record),
        cmocka_unit_test_setup(test_prompt_completion, clean_record),
        cmocka_unit_test_setup(test_messages, clean_record),
        cmocka_unit_test_setup(test_foreign_messages, clean_record),
        cmocka_unit_test_setup(test_message_loss, clean_record),
        cmocka_unit_test_setup(test_what_is_learned, clean_record),
        cmocka_unit_test_setup(test_alpaca, clean_record),
        cmocka_unit_test_setup(test_sharegpt, clean_record),
        cmocka_unit_test_setup(test_tools, clean_record),
        cmocka_unit_test_setup(test_golden_chat, clean_record),
        cmocka_unit_test_setup(test_overlong, clean_record),
        cmocka_unit_test_setup(test_truncation_left, clean_record),
        cmocka_unit_test_setup(test_geometry, clean_record),
        cmocka_unit_test_setup(test_restarts_keep_the_ledger, clean_record),
        cmocka_unit_test_setup(test_order_is_a_permutation, clean_record),
        cmocka_unit_test_setup(test_seed_changes_order, clean_record),
        cmocka_unit_test_setup(test_spill, clean_record),
        cmocka_unit_test_setup(test_saved, clean_record),
        cmocka_unit_test_setup(test_saved_blocks, clean_record),
        cmocka_unit_test_setup(test_spill_failures, clean_record),
        cmocka_unit_test_setup(test_no_allocation_after_open, clean_record),
        cmocka_unit_test_setup(test_batch_geometry_errors, clean_record),
        cmocka_unit_test_setup(test_rows, clean_record),
        cmocka_unit_test_setup(test_rows_truncated_left, clean_record),
        cmocka_unit_test_setup(test_rows_refused, clean_record),
        cmocka_unit_test_setup(test_bad_lines, clean_record),
        cmocka_unit_test_setup(test_hostile_lines, clean_record),
        cmocka_unit_test_setup(test_endless_line, clean_record),
        cmocka_unit_test_setup(test_nul_in_a_string, clean_record),
        cmocka_unit_test_setup(test_unusable_files, clean_record),
        cmocka_unit_test_setup(test_read_failure, clean_record),
        cmocka_unit_test_setup(test_names, clean_record),
        cmocka_unit_test_setup(test_preview, clean_record),
    };
    return cmocka_run_group_tests_name("dataset", tests, set_up, tear_down);
}
