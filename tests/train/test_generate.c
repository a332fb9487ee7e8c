/* What `generate` writes with a key-value cache, a token at a time, is what `probe` finds likeliest in the whole row: of
 * each family in odd sizes. */
#include "run.h"
#include "tests/support/families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 521, NEW = 9, MOST = 64 }; /* the tokenizer's; tokens */

/* A folder with the family's random model: larger values than a fresh one has, no end token, a tokenizer. */
static const char *make_model(const struct family *f, const char *dir) {
    const char *start = run_path(dir, "start"), *output = run_path(dir, "model"), *config = run_path(dir, "train.json");
    const char *rows = run_path(dir, "rows.safetensors");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 32, true);
    tm_st_close(golden);
    char *json = strdup(f->json);
    for (char *at; (at = strstr(json, ":211"));) memcpy(at, ":521", 4);
    run_copy_model(TM_TEST_FIXTURES "/tok_spm", start);
    run_write(run_path(start, "config.json"),
              run_format("{\"initializer_range\":0.3,\"eos_token_id\":null,%s", json + 1));
    free(json);
    run_write(config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\", \"seq_len\": "
                                 "32}, \"max_steps\": 1,"
                                 " \"precision\": \"fp32\", \"learning_rate\": 1e-3, \"output_dir\": \"%s\"}",
                                 start, rows, output));
    run_result r = run((run_opts){0}, "train", config, "--quiet", NULL);
    RUN_OK(&r);
    run_free(&r);
    return output;
}

static size_t append(const tm_json *result, const char *key, int64_t *ids, size_t n) {
    for (const tm_json *id = tm_json_get(result, key)->child; id; id = id->next) {
        assert_true(n < MOST);
        ids[n++] = id->integer;
    }
    return n;
}

/* Prompt and continuation; returns their number. */
static size_t generate(const char *model, int64_t *ids, size_t *prompt) {
    run_result r =
        run((run_opts){0}, "generate", "--model", model, "--prompt", "The tide comes in, and goes out again.",
            "--max-new-tokens", run_format("%d", NEW), "--json", NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "generate", 0, 0));
    *prompt = append(tm_json_root(doc), "prompt_ids", ids, 0);
    size_t n = append(tm_json_root(doc), "ids", ids, *prompt);
    tm_json_free(doc);
    run_free(&r);
    return n;
}

static tensor logits_of(const char *model, const char *dir, const int64_t *ids, size_t n) {
    const char *in = run_path(dir, "in.safetensors"), *out = run_path(dir, "out.safetensors");
    tm_st_writer *w;
    uint32_t t;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, in));
    RUN_EXPECT_STATUS(tm_st_writer_add(w, "input_ids", TM_FMT_I64, 2, (uint64_t[]){1, n}, &t));
    RUN_EXPECT_STATUS(tm_st_writer_write(w, t, 0, ids, n * sizeof *ids));
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    run_result r = run((run_opts){0}, "probe", "--model", model, "--input", in, "--output", out, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *st = tensors_open(out);
    tensor logits = tensor_read(st, "logits");
    tm_st_close(st);
    assert_int_equal(logits.n, n * VOCABULARY);
    return logits;
}

static int64_t likeliest(const float *logits) {
    int64_t best = 0;
    for (int64_t v = 1; v < VOCABULARY; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

static void test_family(void **state) {
    const char *dir = run_dir(), *model = make_model(*state, dir);
    int64_t ids[MOST];
    size_t prompt, n = generate(model, ids, &prompt);
    assert_int_equal(n, prompt + NEW);
    tensor logits = logits_of(model, dir, ids, n);
    for (size_t i = prompt; i < n; i++) assert_int_equal(ids[i], likeliest(logits.v + (i - 1) * VOCABULARY));
    free(logits.v);
}

/* A file of blocks, whose matrices are multiplied as they lie, answers as the folder that it is decoded into: by our own
 * product to the bit. Llama's rows are permuted in GGUF. */
static void same_as_decoded(const char *dir, const char *model, const char *type) {
    const char *file = run_path(dir, run_format("%s.gguf", type)), *folder = run_path(dir, run_format("%s", type));
    run_result r = run((run_opts){0}, "convert", model, file, "--dtype", type, NULL);
    RUN_OK(&r);
    run_free(&r);
    r = run((run_opts){0}, "convert", file, folder, "--dtype", "f32", NULL);
    RUN_OK(&r);
    run_free(&r);
    int64_t packed[MOST], decoded[MOST];
    size_t prompt, n = generate(file, packed, &prompt);
    assert_int_equal(generate(folder, decoded, &prompt), n);
    assert_memory_equal(packed, decoded, n * sizeof *packed);
}

static void test_packed(void **state) {
    (void)state;
    char *json = strdup(families[0].json), *at = strstr(json, "\"hidden_size\":42,\"intermediate_size\":29");
    assert_non_null(at);
    memcpy(strstr(at, "42"), "96", 2), memcpy(strstr(at, "29"), "64", 2); /* rows of whole blocks */
    const char *dir = run_dir(), *model = make_model(&(struct family){.name = "llama", .json = json}, dir);
    free(json);
    setenv("TIDEMILL_GEMM", "builtin", 1);
    same_as_decoded(dir, model, "f16");
    same_as_decoded(dir, model, "q8_0");
    same_as_decoded(dir, model, "q4_1");
    unsetenv("TIDEMILL_GEMM");
}

/* What is said of a file of such weights, and what it answers; precision NULL: the program's choice. */
static char *answer_of(const char *file, const char *precision, const char *weights, bool *as_bf16) {
    run_result r = run((run_opts){0}, "generate", "--model", file, "--prompt", "The tide", "--max-new-tokens", "4",
                       "--json", precision ? "--precision" : NULL, precision, NULL);
    RUN_OK(&r);
    if (!precision) {
        *as_bf16 = strstr(r.err, run_format("%s are multiplied as bf16", weights)) != NULL;
        assert_int_equal(*as_bf16, !strstr(r.err, run_format("%s are multiplied as fp32", weights)));
    }
    char *out = strdup(r.out);
    run_free(&r);
    return out;
}

/* Halves and blocks are computed with in what the CPU multiplies, which is said. */
static void test_halves(void **state) {
    (void)state;
    static const struct {
        const char *type, *weights;
    } files[] = {{"f16", "weights of f16"}, {"q8_0", "quantised weights"}};
    char *json = strdup(families[0].json);
    memcpy(strstr(json, "\"hidden_size\":42") + 14, "96", 2); /* rows of whole blocks */
    memcpy(strstr(json, "\"intermediate_size\":29") + 20, "64", 2);
    const char *dir = run_dir(), *model = make_model(&(struct family){.name = "llama", .json = json}, dir);
    free(json);
    for (unsigned i = 0; i < 2 * TM_COUNT(files); i++) {
        const bool builtin = i % 2;
        const char *file = run_path(dir, run_format("%s.gguf", files[i / 2].type)), *weights = files[i / 2].weights;
        bool as_bf16;
        if (!builtin) {
            run_result r = run((run_opts){0}, "convert", model, file, "--dtype", files[i / 2].type, NULL);
            RUN_OK(&r);
            run_free(&r);
        }
        if (builtin) setenv("TIDEMILL_GEMM", "builtin", 1);
        char *chosen = answer_of(file, NULL, weights, &as_bf16);
        char *asked = answer_of(file, as_bf16 ? "bf16" : "fp32", NULL, NULL);
        unsetenv("TIDEMILL_GEMM");
        assert_string_equal(chosen, asked);
        assert_false(builtin && as_bf16);
        free(chosen), free(asked);
    }
}

int main(int argc, char **argv) {
    static struct CMUnitTest tests[TM_COUNT(families) + 2];
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < TM_COUNT(families); i++)
        tests[i] = (struct CMUnitTest){.name = families[i].name,
                                       .test_func = test_family,
                                       .teardown_func = run_clean,
                                       .initial_state = (void *)(uintptr_t)&families[i]};
    tests[TM_COUNT(families)] =
        (struct CMUnitTest){.name = "packed", .test_func = test_packed, .teardown_func = run_clean};
    tests[TM_COUNT(families) + 1] =
        (struct CMUnitTest){.name = "halves", .test_func = test_halves, .teardown_func = run_clean};
    return _cmocka_run_group_tests("train_generate", tests, TM_COUNT(tests), NULL, NULL);
}
