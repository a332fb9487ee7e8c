/* convert --init random: a bare config.json becomes the model that training with "init": "random" begins with, in shards,
 * in other types and as GGUF, in bounded memory. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static const char *train_config(const char *dir, const char *name, const char *model, const char *rest) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, run_format("%s.json", name));
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 4, 32, true);
    tm_st_close(golden);
    run_write(
        config,
        run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"fp32\", \"max_steps\": 1,\n"
                   " \"per_device_train_batch_size\": 2, \"learning_rate\": 1e-3%s}\n",
                   model, rows, rest));
    return config;
}

static const char *hash_of(const char *dir, const char *name, const char *model, const char *rest) {
    const char *output = run_path(dir, run_format("out-%s", name));
    train_log log =
        run_train(train_config(dir, name, model, rest), output, 0, NULL, SETS("memory.host_budget=unlimited"));
    return run_format("%s", log.hash);
}

/* The states after a step have one hash. */
static void training_begins_with_it(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = run_path(dir, "model"), *made = run_path(dir, "made");
    run_random_model(model);
    run_result r = run((run_opts){0}, "convert", model, made, "--init", "random", "--max-shard-size", "4MB", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_true(run_entries(made) > 4); /* config.json, the index, shards */
    const char *want = hash_of(dir, "bare", model, ", \"init\": \"random\"");
    assert_string_equal(hash_of(dir, "made", made, ""), want);
    const char *seven = run_path(dir, "seven");
    r = run((run_opts){0}, "convert", model, seven, "--init=random", "--seed=7", NULL);
    RUN_OK(&r);
    run_free(&r);
    want = hash_of(dir, "bare-7", model, ", \"init\": \"random\", \"seed\": 7");
    assert_string_equal(hash_of(dir, "made-7", seven, ", \"seed\": 7"), want);
    assert_true(strcmp(want, hash_of(dir, "made-42", made, ", \"seed\": 7")) != 0);
}

static void same_values(const tm_source *a, const tm_source *b, tm_fmt as) {
    static float x[4096], y[4096];
    static uint16_t narrow[4096];
    assert_int_equal(tm_source_tensors(a), tm_source_tensors(b));
    for (uint32_t i = 0; i < tm_source_tensors(a); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(a, i);
        assert_string_equal(t->name, tm_source_tensor_get(b, i)->name);
        for (uint64_t at = 0, n; at < t->elements; at += n) {
            n = tm_min_u64(TM_COUNT(x), t->elements - at);
            assert_int_equal(tm_source_read_f32(a, i, at, n, x), TM_OK);
            assert_int_equal(tm_source_read_f32(b, i, at, n, y), TM_OK);
            if (as != TM_FMT_F32) {
                assert_int_equal(tm_fmt_encode(as, x, n, narrow), TM_OK);
                tm_fmt_decode(as, narrow, n, x);
            }
            assert_memory_equal(x, y, n * sizeof *x);
        }
    }
}

/* The types are roundings of the same values; GGUF has them under its own names and order. */
static void other_types_and_gguf(void **state) {
    (void)state;
    static const struct {
        const char *dtype, *name;
        tm_fmt fmt;
    } rows[] = {{"bf16", "bf16", TM_FMT_BF16}, {"f16", "f16", TM_FMT_F16}, {"f32", "m.gguf", TM_FMT_F32}};
    const char *dir = run_dir(), *model = run_path(dir, "model"), *whole = run_path(dir, "f32");
    tm_source *a, *b;
    run_random_model(model);
    run_result r = run((run_opts){0}, "convert", model, whole, "--init", "random", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_int_equal(tm_source_open(&a, whole), TM_OK);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const char *out = run_path(dir, rows[i].name);
        r = run((run_opts){0}, "convert", model, out, "--init", "random", "--dtype", rows[i].dtype, NULL);
        RUN_OK(&r);
        run_free(&r);
        assert_int_equal(tm_source_open(&b, out), TM_OK);
        same_values(a, b, rows[i].fmt);
        tm_source_close(b);
    }
    tm_source_close(a);
}

/* 67 MB in bf16, of which nothing is held. */
static void memory_is_bounded(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = run_path(dir, "model"), *made = run_path(dir, "made");
    run_imagined_model(model, 8);
    run_result r = run((run_opts){0}, "convert", model, made, "--init", "random", "--dtype", "bf16", NULL);
    RUN_OK(&r);
    if (r.peak_bytes > 48 * MIB) fail_msg("%llu bytes at most", (unsigned long long)r.peak_bytes);
    run_free(&r);
    tm_st *st = tensors_open(run_path(made, "model.safetensors"));
    assert_true(tensor_exists(st, "model.layers.7.mlp.down_proj.weight"));
    tm_st_close(st);
}

static void wrong_calls(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = run_path(dir, "model"), *empty = run_path(dir, "empty");
    run_random_model(model);
    run_copy_model(model, empty);
    run_write(run_path(empty, "config.json"), "{\"hidden_size\": 8}");
    const char *seeing = run_path(dir, "seeing");
    size_t n;
    char *config = run_read(run_path(model, "config.json"), &n);
    run_copy_model(model, seeing);
    run_write(run_path(seeing, "config.json"),
              run_format("{\"model_type\": \"llava\", \"text_config\": %s, \"vision_config\": {}}", config));
    free(config);
    const struct {
        const char *in, *out, *init, *seed, *text;
    } rows[] = {{model, run_path(dir, "a"), "zero", "1", "not random"},
                {model, model, "random", "1", "is there already"},
                {empty, run_path(dir, "b"), "random", "1", "model_type is missing"},
                {seeing, run_path(dir, "g"), "random", "1", "other parts than text"},
                {run_path(dir, "absent"), run_path(dir, "c"), "random", "1", "no such model folder"},
                {model, run_path(dir, "d"), "random", "x", "seed"},
                {model, run_path(dir, "e"), "random", "-2", "seed"}};
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        run_result r = run((run_opts){0}, "convert", rows[i].in, rows[i].out, "--init", rows[i].init, "--seed",
                           rows[i].seed, NULL);
        if (r.status != 2 || !strstr(r.err, rows[i].text)) fail_msg("%d, not '%s': %s", r.status, rows[i].text, r.err);
        run_free(&r);
    }
    run_result r = run((run_opts){0}, "convert", model, run_path(dir, "f"), "--seed", "3", NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "--init"));
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(training_begins_with_it, run_clean),
        cmocka_unit_test_teardown(other_types_and_gguf, run_clean),
        cmocka_unit_test_teardown(memory_is_bounded, run_clean),
        cmocka_unit_test_teardown(wrong_calls, run_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
