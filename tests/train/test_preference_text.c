/* Preferences as text and as the token rows that are made of it: training gives the same bits; and the same losses however a
 * step's samples are divided into micro-batches. What text ends with. */
#include "run.h"
#include "session/data_open.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"
#define PAIRS TM_TEST_FIXTURES "/../../examples/skill/pairs.jsonl"

enum { STEPS = 3, EACH = 8, SEQ = 80, SAMPLES = STEPS * EACH, CUT = 64 };

/* ---- token rows of text ------------------------------------------------------------------------------------------ */

typedef struct rows {
    int64_t ids[SAMPLES * SEQ], labels[SAMPLES * SEQ], mask[SAMPLES * SEQ];
} rows;

/* Row r of a batch as sample `to`, its labels as a file has them. */
static void take_row(const tm_batch_arrays *b, const tm_batch_shape *shape, uint32_t r, rows *out, uint32_t to) {
    for (uint32_t t = 0; t < SEQ; t++) {
        size_t at = (size_t)r * shape->seq + t, i = (size_t)to * SEQ + t;
        bool here = t < shape->seq;
        out->ids[i] = here ? b->ids[at] : 0;
        out->mask[i] = here && b->key_mask[at];
        out->labels[i] = here && t > 0 ? b->labels[at - 1] : TM_LABEL_IGNORE;
    }
}

static void write_rows(const char *path, const char *const prefix[2], const rows role[2], const int64_t *desirable) {
    static const char *const names[] = {"input_ids", "labels", "attention_mask"};
    const uint64_t shape[] = {SAMPLES, SEQ}, one[] = {SAMPLES};
    tm_st_writer *w;
    uint32_t t, at = 0;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (unsigned r = 0; r < 2; r++)
        for (unsigned i = 0; i < 3; i++)
            RUN_EXPECT_STATUS(tm_st_writer_add(w, run_format("%s%s", prefix[r], names[i]), TM_FMT_I64, 2, shape, &t));
    if (desirable) RUN_EXPECT_STATUS(tm_st_writer_add(w, "desirable", TM_FMT_I64, 1, one, &t));
    for (unsigned r = 0; r < 2; r++) {
        const int64_t *const of[] = {role[r].ids, role[r].labels, role[r].mask};
        for (unsigned i = 0; i < 3; i++) RUN_EXPECT_STATUS(tm_st_writer_write(w, at++, 0, of[i], sizeof role[r].ids));
    }
    if (desirable) RUN_EXPECT_STATUS(tm_st_writer_write(w, at, 0, desirable, SAMPLES * sizeof *desirable));
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
}

static void take_step(tm_dataset *ds, bool pairs, uint64_t step, rows role[2], int64_t *desirable) {
    static int32_t ids[2 * EACH * SEQ + 64], labels[2 * EACH * SEQ + 64];
    static uint8_t mask[2 * EACH * SEQ + 64], wanted[2 * EACH];
    const tm_batch_arrays to = {
        .capacity = TM_COUNT(ids), .ids = ids, .labels = labels, .key_mask = mask, .desirable = wanted};
    tm_batch_shape shape;
    RUN_EXPECT_STATUS(tm_dataset_batch(ds, step, 0, 0, &to, &shape));
    assert_int_equal(shape.samples, EACH);
    for (uint32_t b = 0; b < EACH; b++) {
        uint32_t sample = (uint32_t)step * EACH + b;
        take_row(&to, &shape, pairs ? 2 * b : b, &role[0], sample);
        if (pairs) take_row(&to, &shape, 2 * b + 1, &role[1], sample);
        desirable[sample] = wanted[b];
    }
    if (pairs) return;
    RUN_EXPECT_STATUS(tm_dataset_batch_mismatched(ds, step, 0, 0, &to, &shape));
    for (uint32_t b = 0; b < EACH; b++) take_row(&to, &shape, b, &role[1], (uint32_t)step * EACH + b);
}

/* What is drawn of text, as a file of ids. */
static void write_tokens(const char *text, tm_rows kind, const char *path) {
    static const char *const prefixes[][2] = {{"chosen_", "rejected_"}, {"", "kl_"}};
    static rows role[2];
    int64_t desirable[SAMPLES];
    const tm_data_item item = {.path = text, .weight = 1};
    const tm_data_items items = {&item, 1};
    const data_opts opts = {.dataset = {.rows = kind, .seq_len = CUT, .strict = true}};
    bool pairs = kind == TM_ROWS_PAIRS;
    tm_source *source;
    text_tools tools;
    data_file *data;
    RUN_EXPECT_STATUS(tm_source_open_bare(&source, TINY));
    RUN_EXPECT_STATUS(text_open(&tools, source, 0));
    RUN_EXPECT_STATUS(data_open(&data, &items, &tools, TINY, &opts));
    RUN_EXPECT_STATUS(tm_dataset_set_batches(data_set(data), EACH, 1, 1));
    assert_true(tm_dataset_get_counts(data_set(data))->truncated > 0);
    for (uint64_t step = 0; step < STEPS; step++) take_step(data_set(data), pairs, step, role, desirable);
    write_rows(path, prefixes[!pairs], role, pairs ? NULL : desirable);
    data_close(data);
    text_close(&tools);
    tm_source_close(source);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static train_log train(const char *dir, const char *data, const char *objective, unsigned samples,
                       unsigned micro_batches) {
    static unsigned serial;
    const char *config = run_path(dir, "config.json");
    run_write(config, run_format("{\"model\": \"" TINY "\", \"precision\": \"fp32\", \"adapter\": {\"r\": 4},\n"
                                 " \"data\": {\"train\": \"%s\", \"seq_len\": %d, \"shuffle\": false},\n"
                                 " \"objective\": {\"type\": \"%s\"}, \"learning_rate\": 1e-2, \"max_steps\": %d,\n"
                                 " \"per_device_train_batch_size\": %u, \"gradient_accumulation_steps\": %u}\n",
                                 data, CUT, objective, STEPS, samples, micro_batches));
    return run_train(config, run_path(dir, run_format("out-%u", serial++)), 0, &(run_opts){0},
                     (const char *const[]){NULL});
}

static void check_objective(const char *objective, tm_rows kind) {
    const char *dir = run_dir(), *text = run_first_lines(PAIRS, dir, "pairs.jsonl", SAMPLES),
               *tokens = run_path(dir, "rows.safetensors");
    train_log of_text = train(dir, text, objective, EACH, 1);
    write_tokens(text, kind, tokens);
    train_log of_tokens = train(dir, tokens, objective, EACH, 1), divided = train(dir, text, objective, EACH / 4, 4);
    assert_string_equal(of_text.hash, of_tokens.hash);
    for (unsigned i = 0; i < STEPS; i++) {
        double loss = of_text.step[i].loss;
        assert_true(loss == of_tokens.step[i].loss);
        if (!(fabs(divided.step[i].loss - loss) <= 1e-5 * fabs(loss)))
            fail_msg("%s, step %u: %.9g as 4 micro-batches, %.9g as one", objective, i + 1, divided.step[i].loss, loss);
    }
    assert_true(of_text.step[STEPS - 1].loss != of_text.step[0].loss); /* it learns something */
}

static void test_pairs(void **state) {
    (void)state;
    check_objective("dpo", TM_ROWS_PAIRS);
    check_objective("orpo", TM_ROWS_PAIRS);
}

static void test_labelled(void **state) {
    (void)state;
    check_objective("kto", TM_ROWS_LABELLED);
}

/* ---- what text ends with ----------------------------------------------------------------------------------------- */

static void check_end(const char *dir, const char *tokenizer_config, int32_t want) {
    tm_source *source;
    text_tools tools;
    if (tokenizer_config) run_write(run_path(dir, "tokenizer_config.json"), tokenizer_config);
    RUN_EXPECT_STATUS(tm_source_open_bare(&source, dir));
    RUN_EXPECT_STATUS(text_open(&tools, source, 0));
    assert_int_equal(tools.n_eos, 2);
    assert_int_equal(tools.eos[0], 1); /* generation stops at either */
    assert_int_equal(tools.end, want);
    text_close(&tools);
    tm_source_close(source);
}

/* As TRL has it, whatever else a model stops at; in the tiny tokenizer 0, 1 and 2 are <|endoftext|>, <|im_start|> and
 * <|im_end|>. Llama 3.1 stops at <|end_of_text|> first, and its tokenizer's is <|eot_id|>. */
static void test_end(void **state) {
    (void)state;
    const char *dir = run_dir(), *const files[] = {"tokenizer.json", "config.json"};
    for (size_t i = 0; i < TM_COUNT(files); i++) {
        size_t len;
        char *text = run_read(run_path(TINY, files[i]), &len);
        run_write(run_path(dir, files[i]), text);
        free(text);
    }
    run_write(run_path(dir, "generation_config.json"), "{\"eos_token_id\": [1, 2]}");
    check_end(dir, NULL, 1);
    check_end(dir, "{\"eos_token\": \"<|im_end|>\"}", 2);
    check_end(dir, "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": false}}", 0);
    check_end(dir, "{\"eos_token\": null}", 1);
    check_end(dir, "{\"eos_token\": \"not a token of it\"}", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_end, run_clean),
        cmocka_unit_test_teardown(test_pairs, run_clean),
        cmocka_unit_test_teardown(test_labelled, run_clean),
    };
    return cmocka_run_group_tests_name("preference_text", tests, NULL, NULL);
}
