/* Bases that others have quantised (fixtures/quantised_bases: compressed-tensors, AutoGPTQ, AutoAWQ): logits of their values as
 * transformers has them; adapters learn on them to the bits that they learn to on the same values in fp32, whatever the
 * budget and however often they are killed; they merge, and become masters. */
#include "adapted.h"
#include "tests/support/skip.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct scene {
    adapted a;
    const char *base;  /* a copy of the quantised folder */
    const char *plain; /* its values */
    char *bytes;       /* of its weights when it began */
    size_t n;
} scene;

static scene scene_open(const char *form) {
    scene s = {.a = adapted_open("peft_lora")};
    s.base = run_path(s.a.dir, form);
    s.plain = run_path(s.a.dir, "plain");
    run_copy_model(run_format("%s/quantised_bases/%s", TM_TEST_FIXTURES, form), s.base);
    s.bytes = run_read(run_path(s.base, "model.safetensors"), &s.n);
    run_result r = run((run_opts){0}, "convert", s.base, s.plain, "--dtype", "f32", NULL);
    RUN_OK(&r);
    run_free(&r);
    return s;
}

/* It was only read. */
static void scene_close(scene *s) {
    size_t n;
    char *bytes = run_read(run_path(s->base, "model.safetensors"), &n);
    assert_int_equal(n, s->n);
    assert_memory_equal(bytes, s->bytes, n);
    assert_int_equal(run_entries(s->base), 2);
    free(bytes);
    free(s->bytes);
    adapted_close(&s->a);
}

/* ---- probe ---- */

static const char *probe(const scene *s, const char *name, const char *budget) {
    const char *in = run_path(s->a.dir, "in.safetensors"), *out = run_path(s->a.dir, name);
    run_result r = run((run_opts){0}, "probe", "--model", s->base, "--input", in, "--output", out, "--offload-path",
                       s->a.dir, budget ? "--host-budget" : NULL, budget, NULL);
    if (budget && strcmp(budget, "1") == 0)
        out = run_format("%llu", (unsigned long long)train_minimum(r.err));
    else
        RUN_OK(&r);
    run_free(&r);
    return out;
}

static void logits_are_those_of_the_values(void **state) {
    const char *form = *state;
    scene s = scene_open(form);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/quantised_bases/golden.safetensors");
    run_copy(TM_TEST_FIXTURES "/quantised_bases/inputs.safetensors", run_path(s.a.dir, "in.safetensors"));
    const char *memory = probe(&s, "memory.safetensors", NULL);
    tm_st *out = tensors_open(memory);
    tensor got = tensor_read(out, "logits"), want = tensor_read(golden, run_format("logits.%s", form));
    assert_int_equal(got.n, want.n);
    float largest = 0;
    for (size_t i = 0; i < want.n; i++) largest = fmaxf(largest, fabsf(want.v[i]));
    adapted_near(form, adapted_max_abs(got.v, want.v, want.n), 0, 1e-5 * (double)largest);
    adapted_same_files(memory, probe(&s, "paged.safetensors", probe(&s, "refused", "1")));
    free(got.v), free(want.v);
    tm_st_close(out);
    tm_st_close(golden);
    scene_close(&s);
}

/* ---- training ---- */

static void adapters_learn_the_same(void **state) {
    scene s = scene_open(*state);
    const char *out = run_path(s.a.dir, "out"), *none = "memory.cache=none";
    uint64_t bytes;
    train_log plain = run_train(adapted_config(&s.a, s.plain), out, 0, NULL, SETS("seed=42"));
    const char *config = adapted_config(&s.a, s.base);
    train_log memory = run_train(config, out, 0, NULL, SETS("seed=42"));
    assert_string_equal(memory.hash, plain.hash);
    const char *least = adapted_least(config, s.a.dir, SETS(none), &bytes);
    train_log paged = run_train(config, out, bytes, NULL, SETS(none, least));
    assert_string_equal(paged.hash, plain.hash);
    uint64_t read = adapted_bytes(out, 2, "frozen", "read");
    assert_true(read > 0);
    (void)run_train(adapted_config(&s.a, s.plain), out, 0, NULL, SETS(none));
    assert_true(adapted_bytes(out, 2, "frozen", "read") > read * 5 / 4); /* whose embedding is a third of it */
    scene_close(&s);
}

static void all_of_it_learns_from_its_values(void **state) {
    scene s = scene_open(*state);
    const char *path = run_path(s.a.dir, "whole.json"), *bases[] = {s.plain, s.base};
    char hash[2][40];
    for (unsigned i = 0; i < 2; i++) {
        run_write(path,
                  run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": %zu}, \"max_steps\": 2,\n"
                             " \"learning_rate\": 1e-3, \"precision\": \"fp32\"}\n",
                             bases[i], s.a.rows, s.a.seq));
        train_log log = run_train(path, run_path(s.a.dir, "whole"), 0, NULL, SETS("memory.cache=none"));
        memcpy(hash[i], log.hash, sizeof hash[i]);
    }
    assert_string_equal(hash[0], hash[1]);
    scene_close(&s);
}

static run_result start(const scene *s, const char *config, const char *fault) {
    const char *env[] = {fault ? run_format("TIDEMILL_FAULT=%s", fault) : NULL, NULL};
    return run((run_opts){.env = fault ? env : NULL}, "train", config, "--quiet", "--set",
               run_format("output_dir=%s", run_path(s->a.dir, "killed")), "--set", "commit_steps=1", "--set",
               "memory.cache=none", NULL);
}

static void a_killed_run_goes_on(void **state) {
    static const char *const points[] = {"kill_published:2:kill:once", "kill_op:150:kill:once"};
    scene s = scene_open(*state);
    const char *config = adapted_config(&s.a, s.base), *out = run_path(s.a.dir, "killed");
    train_log whole = run_train(config, run_path(s.a.dir, "out"), 0, NULL, SETS("commit_steps=1"));
    for (unsigned i = 0; i < TM_COUNT(points); i++) {
        run_result r = start(&s, config, points[i]);
        if (r.status != 128 + SIGKILL) fail_msg("%s: exit status %d: %s", points[i], r.status, r.err);
        run_free(&r);
        r = start(&s, config, NULL);
        RUN_OK(&r);
        run_free(&r);
        train_log log = train_log_read(out);
        assert_string_equal(log.hash, whole.hash);
        run_remove(out);
    }
    scene_close(&s);
}

/* ---- merging ---- */

static void it_merges_as_its_values_do(void **state) {
    scene s = scene_open(*state);
    const char *bases[] = {s.plain, s.base}, *merged[2];
    for (unsigned i = 0; i < 2; i++) {
        const char *out = run_path(s.a.dir, i ? "merged" : "merged-plain");
        run_result r = run((run_opts){0}, "export", s.a.folder, out, "--merge-adapter", "--base", bases[i], "--dtype",
                           "f32", NULL);
        RUN_OK(&r);
        run_free(&r);
        merged[i] = run_path(out, "model.safetensors");
    }
    adapted_same_files(merged[0], merged[1]);
    scene_close(&s);
}

/* ---- what an export costs ---- */

static double number_in(const char *json, const char *block, const char *key) {
    tm_json_doc *doc;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, json, strlen(json), "json", 0, 0));
    const tm_json *object = block ? tm_json_get(tm_json_root(doc), block) : tm_json_root(doc);
    const tm_json *v = tm_json_get(object, key);
    if (!v) fail_msg("%s is missing: %s", key, json);
    double number = v->number;
    tm_json_free(doc);
    return number;
}

static double perplexity(const scene *s, const char *model, const char *adapter) {
    run_result r = run((run_opts){0}, "eval", "--model", model, "--data", s->a.rows, "--json",
                       adapter ? "--adapter" : NULL, adapter, NULL);
    RUN_OK(&r);
    double found = number_in(r.out, NULL, "perplexity");
    run_free(&r);
    return found;
}

static void an_export_says_what_it_cost(void **state) {
    (void)state;
    scene s = scene_open("gptq");
    const char *again = run_path(s.a.dir, "again"), *merged = run_path(s.a.dir, "merged");
    run_result r = run((run_opts){0}, "export", s.base, again, "--dtype", "int8", "--eval", s.a.rows, "--json", NULL);
    RUN_OK(&r);
    assert_true(number_in(r.out, "perplexity", "before") == perplexity(&s, s.base, NULL));
    assert_true(number_in(r.out, "perplexity", "after") == perplexity(&s, again, NULL));
    assert_true(number_in(r.out, "perplexity", "tokens") > 0);
    run_free(&r);
    r = run((run_opts){0}, "export", s.a.folder, merged, "--merge-adapter", "--base", s.base, "--eval", s.a.rows, NULL);
    RUN_OK(&r);
    const char *line =
        run_format("perplexity %.4f, was %.4f, of ", perplexity(&s, merged, NULL), perplexity(&s, s.base, s.a.folder));
    if (!strstr(r.out, line)) fail_msg("looked for \"%s\": %s", line, r.out);
    run_free(&r);
    r = run((run_opts){0}, "export", s.a.folder, run_path(s.a.dir, "none"), "--eval", s.a.rows, NULL);
    if (r.status != 2 || run_error_lines(r.err, NULL) != 1 || !strstr(r.err, "--merge-adapter"))
        fail_msg("exit status %d: %s", r.status, r.err);
    run_free(&r);
    scene_close(&s);
}

/* ---- ranks ---- */

static void slices_are_of_the_same_values(void **state) {
    if (system("mpirun --version > /dev/null 2>&1") != 0) TEST_SKIP("no mpirun");
    scene s = scene_open(*state);
    const char *bases[] = {s.plain, s.base}, *out = run_path(s.a.dir, "ranks");
    char hash[2][40];
    for (unsigned i = 0; i < 2; i++) {
        run_result r = run((run_opts){.ranks = 2, .timeout_s = 60}, "train", adapted_config(&s.a, bases[i]), "--quiet",
                           "--resume", "never", "--set", run_format("output_dir=%s", out), "--set", "strategy=zero3",
                           "--set", "memory.cache=none", "--set", "per_device_train_batch_size=1", NULL);
        RUN_OK(&r);
        run_free(&r);
        memcpy(hash[i], train_log_read(out).hash, sizeof hash[i]);
    }
    assert_string_equal(hash[0], hash[1]);
    scene_close(&s);
}

/* ---- what is refused ---- */

static void one_line_says_what_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *config, *says;
    } rows[] = {{"\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 48", "group_size does not divide"},
                {"\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 32", "number of bits (3)"},
                {"\"quant_method\": \"quip\"", "quip"},
                {"\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\"", "int-quantized"}};
    scene s = scene_open("awq");
    for (unsigned i = 0; i < TM_COUNT(rows); i++) {
        const char *folder = run_path(s.a.dir, "wrong"), *out = run_path(s.a.dir, "wrong-out");
        run_copy_model(s.base, folder);
        run_write(run_path(folder, "config.json"),
                  run_format("{\"model_type\": \"llama\", \"quantization_config\": {%s}}", rows[i].config));
        run_result r = run((run_opts){0}, "convert", folder, out, NULL);
        if (r.status != 2 || run_error_lines(r.err, NULL) != 1 || !strstr(r.err, rows[i].says))
            fail_msg("exit status %d: %s", r.status, r.err);
        run_free(&r);
        r = run((run_opts){0}, "train", adapted_config(&s.a, folder), "--set", run_format("output_dir=%s", out), NULL);
        if (r.status != 2 || run_error_lines(r.err, NULL) != 1) fail_msg("exit status %d: %s", r.status, r.err);
        run_free(&r);
        run_remove(folder);
    }
    scene_close(&s);
}

#define EACH(name, test)                                                                                               \
    {name " packed", test, NULL, run_clean, packed}, {name " gptq", test, NULL, run_clean, gptq}, {                    \
        name " awq", test, NULL, run_clean, awq                                                                        \
    }

int main(int argc, char **argv) {
    static char packed[] = "packed", gptq[] = "gptq", awq[] = "awq";
    const struct CMUnitTest tests[] = {
        EACH("logits", logits_are_those_of_the_values),
        EACH("adapters", adapters_learn_the_same),
        EACH("masters", all_of_it_learns_from_its_values),
        EACH("merged", it_merges_as_its_values_do),
        cmocka_unit_test_teardown(an_export_says_what_it_cost, run_clean),
        {"killed gptq", a_killed_run_goes_on, NULL, run_clean, gptq},
        {"killed packed", a_killed_run_goes_on, NULL, run_clean, packed},
        {"ranks awq", slices_are_of_the_same_values, NULL, run_clean, awq},
        {"ranks packed", slices_are_of_the_same_values, NULL, run_clean, packed},
        cmocka_unit_test_teardown(one_line_says_what_is_wrong, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("train_quantised_bases", tests, NULL, NULL);
}
