/* What a run of an adapter leaves is used beside its base as the model that it was merged into: by eval, generate and
 * probe, from OUTPUT_DIR and from a checkpoint. */
#include "adapted.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NEW = 12 };

typedef struct scene {
    const char *dir, *base, *rows, *output;
} scene;

/* A random model with a tokenizer, larger values than a fresh one has, no end token. */
static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    const char *start = run_path(s.dir, "start");
    s.base = run_path(s.dir, "base");
    s.rows = run_path(s.dir, "rows.safetensors");
    s.output = run_path(s.dir, "out");
    run_copy_model(TM_TEST_FIXTURES "/tok_spm", start);
    run_write(run_path(start, "config.json"),
              "{\"model_type\": \"llama\", \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 3,\n"
              " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 521, \"eos_token_id\": null,\n"
              " \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
              " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"initializer_range\": 0.2}\n");
    run_result r = run((run_opts){0}, "convert", start, s.base, "--init", "random", "--dtype", "f32", NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(s.rows, golden, 0, 4, 24, true);
    tm_st_close(golden);
    return s;
}

static void train(const scene *s, const char *adapter) {
    const char *config = run_path(s->dir, "config.json");
    run_write(config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 24}, \"adapter\": {%s},\n"
                         " \"learning_rate\": 2e-2, \"max_steps\": 4, \"save_steps\": 2, \"precision\": \"fp32\",\n"
                         " \"per_device_train_batch_size\": 2}\n",
                         s->base, s->rows, adapter));
    (void)run_train(config, s->output, 0, NULL, SETS("save_strategy=steps"));
}

static double eval_loss(const scene *s, const char *model, const char *adapter) {
    run_result r = run((run_opts){0}, "eval", "--model", model, "--data", s->rows, "--json",
                       adapter ? "--adapter" : NULL, adapter, NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "eval", 0, 0));
    double loss = tm_json_get(tm_json_root(doc), "loss")->number;
    tm_json_free(doc);
    run_free(&r);
    return loss;
}

static char *generated(const char *model, const char *adapter) {
    run_result r =
        run((run_opts){0}, "generate", "--model", model, "--prompt", "The tide comes in, and goes out again.",
            "--max-new-tokens", run_format("%d", NEW), "--json", adapter ? "--adapter" : NULL, adapter, NULL);
    RUN_OK(&r);
    char *out = strdup(r.out);
    run_free(&r);
    return out;
}

/* Logits of eight ids. */
static tensor probed(const scene *s, const char *model, const char *adapter) {
    const char *in = run_path(s->dir, "in.safetensors"), *out = run_path(s->dir, "out.safetensors");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(in, golden, 0, 1, 8, true);
    tm_st_close(golden);
    run_result r = run((run_opts){0}, "probe", "--model", model, "--input", in, "--output", out,
                       adapter ? "--adapter" : NULL, adapter, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *st = tensors_open(out);
    tensor logits = tensor_read(st, "logits");
    tm_st_close(st);
    return logits;
}

static const char *merged(const scene *s, const char *adapter) {
    const char *to = run_path(s->dir, "merged");
    run_remove(to);
    run_result r =
        run((run_opts){0}, "export", adapter, to, "--merge-adapter", "--base", s->base, "--dtype", "f32", NULL);
    RUN_OK(&r);
    run_free(&r);
    return to;
}

/* The adapter's folder alone is as with the base that it names, and not as the base alone. */
static void check_probe(const scene *s, const char *adapter) {
    tensor alone = probed(s, adapter, NULL), with = probed(s, s->base, adapter), without = probed(s, s->base, NULL);
    assert_true(alone.n == with.n && alone.n == without.n);
    assert_memory_equal(alone.v, with.v, alone.n * sizeof *alone.v);
    assert_int_not_equal(memcmp(alone.v, without.v, alone.n * sizeof *alone.v), 0);
    free(alone.v), free(with.v), free(without.v);
}

/* As the merged model, and not as the base alone; the adapter's folder alone as with the base that it names. */
static void check_use(const scene *s, const char *adapter, bool tokens) {
    const char *whole = merged(s, adapter);
    double loss = eval_loss(s, s->base, adapter), bare = eval_loss(s, s->base, NULL);
    adapted_near(adapter, loss, eval_loss(s, whole, NULL), 1e-5);
    if (!(bare - loss > 0.01)) fail_msg("%s: %g, and %g without it", adapter, loss, bare);
    if (!tokens) return;
    assert_true(eval_loss(s, adapter, NULL) == loss);
    check_probe(s, adapter);
    char *alone = generated(adapter, NULL), *with = generated(s->base, adapter), *one = generated(whole, NULL),
         *without = generated(s->base, NULL);
    assert_string_equal(with, one);
    assert_string_equal(alone, with);
    assert_string_not_equal(with, without);
    free(alone), free(with), free(one), free(without);
}

static const char *const adapters[] = {
    "\"r\": 4, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"",
    "\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\", \"down_proj\"], \"use_dora\": "
    "true",
    "\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"v_proj\"], \"modules_to_save\": [\"lm_head\", \"norm\"]",
    "\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\", \"up_proj\"], \"init_lora_weights\": \"pissa\""};

static void an_adapter_is_used_as_merged(void **state) {
    (void)state;
    scene s = scene_open();
    for (unsigned i = 0; i < TM_COUNT(adapters); i++) {
        train(&s, adapters[i]);
        check_use(&s, s.output, true);
        check_use(&s, run_path(s.output, "checkpoint-2"), false);
        run_remove(s.output);
    }
}

static void say_what_is_missing(const char *model, const char *adapter, const char *what) {
    run_result r = run((run_opts){0}, "generate", "--model", model, "--prompt", "tide", adapter ? "--adapter" : NULL,
                       adapter, NULL);
    if (r.status != 2 || !strstr(r.err, what)) fail_msg("exit %d: %s", r.status, r.err);
    run_free(&r);
}

static void a_base_that_is_not_here(void **state) {
    (void)state;
    scene s = scene_open();
    train(&s, adapters[0]);
    const char *moved = run_path(s.dir, "moved");
    say_what_is_missing(s.output, s.base, "is an adapter, and --adapter ");
    if (rename(s.base, moved) != 0) fail_msg("%s", strerror(errno));
    say_what_is_missing(s.output, NULL, "its base is not here; name both: --model BASE --adapter ");
    char *with = generated(moved, s.output);
    free(with);
}

/* On 4 bits: merged into their values. */
static void on_four_bits(void **state) {
    (void)state;
    adapted a = adapted_open("peft_qlora");
    scene s = {.dir = a.dir, .base = a.base, .rows = a.rows};
    adapted_near("peft_qlora", eval_loss(&s, a.base, a.folder), eval_loss(&s, merged(&s, a.folder), NULL), 1e-5);
    adapted_close(&a);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(an_adapter_is_used_as_merged, run_clean),
        cmocka_unit_test_teardown(a_base_that_is_not_here, run_clean),
        cmocka_unit_test_teardown(on_four_bits, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("train_adapters_use", tests, NULL, NULL);
}
