/* Optimizers whose states are other than AdamW's, and fp16 with its loss scale, among ranks: one hash whoever holds
 * which slices, and the state of one strategy read by another. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2 };

static const struct {
    const char *optim, *args;
    bool overflows; /* at first: fp16 with too large a loss scale, which all ranks have to lower alike */
} of[] = {{"optim=adamw_8bit", "optim_args=", false},
          {"optim=lion_32bit", "optim_args=", false},
          {"optim=sgd", "optim_args=momentum=0.9", false},
          {"optim=adafactor", "optim_args=scale_parameter=True, beta1=0.9", false},
          {"precision=fp16", "fp16={\"initial_scale_power\": 21, \"hysteresis\": 1}", true}};

/* Some of its matrices begin at blocks of 256 elements and take 8-bit states, others do not. */
static const char *job(const char *dir) {
    const char *model = run_path(dir, "model"), *config = run_path(dir, "config.json");
    assert_int_equal(system(run_format("mkdir -p %s", model)), 0);
    run_write(run_path(model, "config.json"),
              "{\"model_type\": \"llama\", \"hidden_size\": 72, \"intermediate_size\": 200, \"num_hidden_layers\": 2,\n"
              " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 18, \"vocab_size\": 9001,\n"
              " \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
              " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"initializer_range\": 0.02}\n");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(run_path(dir, "rows.safetensors"), golden, 0, 18, 24, true);
    tm_st_close(golden);
    run_write(config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s/rows.safetensors\"},\n"
                         " \"max_steps\": 4, \"learning_rate\": 1e-3, \"lr_scheduler_type\": \"constant\",\n"
                         " \"train_batch_size\": 4, \"per_device_train_batch_size\": 1}\n",
                         model, dir));
    return config;
}

static train_log train(const char *config, const char *output, const char *const *sets) {
    const char *arguments[32] = {"train", config, "--quiet", "--set", run_format("output_dir=%s", output)};
    unsigned n = 5;
    for (; *sets && n < 30; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    run_result r = run_argv(&(run_opts){.ranks = RANKS, .timeout_s = 60}, arguments);
    RUN_OK(&r);
    run_free(&r);
    return train_log_read(output);
}

static void one_hash_and_any_layout(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir);
    for (unsigned i = 0; i < TM_COUNT(of); i++) {
        const char *optim = of[i].optim, *args = of[i].args;
        train_log divided = train(config, run_path(dir, run_format("z%u", i)),
                                  SETS(optim, args, "strategy=zero3", "memory.cache=none"));
        train_log whole = train(config, run_path(dir, run_format("d%u", i)), SETS(optim, args, "strategy=ddp"));
        assert_string_equal(divided.hash, whole.hash);
        assert_true(whole.step[0].skipped == of[i].overflows && !whole.step[3].skipped);
        const char *other = run_path(dir, run_format("o%u", i)); /* two steps so, two otherwise */
        (void)train(config, other, SETS(optim, args, "strategy=zero3", "max_steps=2", "keep_state=true"));
        train_log went_on = train(config, other, SETS(optim, args, "strategy=ddp", "max_steps=4", "keep_state=true"));
        assert_int_equal(went_on.steps, 4);
        assert_string_equal(went_on.hash, whole.hash);
        print_message("  %s: %s\n", optim, whole.hash);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(one_hash_and_any_layout, run_clean)};
    return cmocka_run_group_tests_name("train_optimizers_ranks", tests, NULL, NULL);
}
