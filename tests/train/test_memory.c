/* The budget is hard: the largest resident size of the process stays at or under it, one byte below the minimum is
 * refused, at the minimum it trains, and a memory cgroup that holds budget + 64 MiB is enough. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

typedef struct scene {
    const char *dir, *model, *rows, *config, *output;
} scene;

/* A random model of a few million parameters: many tiles and parts, a tied vocabulary of two. */
static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    s.model = run_path(s.dir, "model");
    s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    run_random_model(s.model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(s.rows, golden, 0, 16, 32, true);
    tm_st_close(golden);
    run_write(s.config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\"},\n"
                                   " \"max_steps\": 2, \"per_device_train_batch_size\": 2, \"learning_rate\": 1e-3,\n"
                                   " \"gradient_accumulation_steps\": 2, \"output_dir\": \"%s\"}\n",
                                   s.model, s.rows, s.output));
    return s;
}

static const char *budget_of(uint64_t bytes) {
    return run_format("memory.host_budget=%llu", (unsigned long long)bytes);
}

/* One byte below, at, and from there up to everything in memory; the last is the one hash that all must have. */
static void check_minimum(const scene *s, const char *a, const char *b, const char *c) {
    const char *const sets[] = {a, b, c, NULL};
    uint64_t least = run_train_minimum(s->config, s->output, sets);
    run_result r = run((run_opts){0}, "train", s->config, "--set", budget_of(least - 1), "--set", a, "--set", b ? b : a,
                       "--set", c ? c : a, NULL);
    assert_int_equal(r.status, 2);
    assert_int_equal(train_minimum(r.err), least); /* it does not depend on what was given */
    assert_int_not_equal(access(s->output, F_OK), 0);
    run_free(&r);
    const uint64_t budgets[] = {least, least + 1, least + 4 * MIB, least + 32 * MIB, 1024 * MIB};
    char hash[40] = "";
    uint64_t read = UINT64_MAX;
    for (unsigned i = 0; i < TM_COUNT(budgets); i++) {
        train_log log =
            run_train(s->config, s->output, budgets[i], NULL, SETS(budget_of(budgets[i]), a, b ? b : a, c ? c : a));
        print_message("  budget %7.2f MiB: peak %7.2f MiB (sampled %7.2f), read %6.2f MB a step\n",
                      (double)budgets[i] / (double)MIB, (double)log.host_peak / (double)MIB,
                      (double)log.sampled_peak / (double)MIB, (double)log.step[1].read_bytes * 1e-6);
        if (i == 0) assert_true(log.step[1].read_bytes > 0); /* the budget binds */
        if (i == 0) memcpy(hash, log.hash, sizeof hash);
        assert_string_equal(log.hash, hash);
        if (log.step[1].read_bytes > read) fail_msg("more memory reads more: %llu", (unsigned long long)budgets[i]);
        read = log.step[1].read_bytes;
        run_remove(s->output);
    }
    assert_int_equal(read, 0);
}

static void test_minimum_bf16(void **state) {
    (void)state;
    scene s = scene_open();
    check_minimum(&s, "precision=bf16", NULL, NULL);
}
static void test_minimum_fp32(void **state) {
    (void)state;
    scene s = scene_open();
    check_minimum(&s, "precision=fp32", NULL, NULL);
}
static void test_minimum_update_u(void **state) {
    (void)state;
    scene s = scene_open();
    check_minimum(&s, "precision=bf16", "memory.update=U", NULL);
}
static void test_minimum_recompute(void **state) {
    (void)state;
    scene s = scene_open();
    check_minimum(&s, "precision=bf16", "memory.activations=recompute", "gradient_accumulation_steps=4");
}

/* The minimum is that of the same job with nothing cached, and of every engine. */
static void test_minimum_is_the_jobs(void **state) {
    (void)state;
    scene s = scene_open();
    const char *bf16 = "precision=bf16", *none = "memory.cache=none";
    uint64_t least = run_train_minimum(s.config, s.output, SETS(bf16));
    const char *budget = budget_of(least);
    assert_int_equal(run_train_minimum(s.config, s.output, SETS(bf16, none)), least);
    (void)run_train(s.config, s.output, least, NULL, SETS(budget, bf16, none));
    static const char *const engines[] = {"uring", "threads", "sync"};
    for (unsigned i = 0; i < TM_COUNT(engines); i++) {
        const char *engine = run_format("memory.io_engine=%s", engines[i]);
        assert_int_equal(run_train_minimum(s.config, s.output, SETS(bf16, engine)), least);
        (void)run_train(s.config, s.output, least, NULL, SETS(budget, bf16, engine));
    }
}

/* At the least budget and a little above. */
static void check_plans(const scene *s, const char *micro_batches) {
    const char *const sets[] = {"precision=bf16", micro_batches, "max_steps=1", "per_device_train_batch_size=1", NULL};
    uint64_t least = run_train_minimum(s->config, s->output, sets);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t budget = least + i * 16 * MIB;
        train_log log =
            run_train(s->config, s->output, budget, NULL, SETS(budget_of(budget), sets[0], sets[1], sets[2], sets[3]));
        print_message("  budget %7.2f MiB: peak %7.2f MiB\n", (double)budget / (double)MIB,
                      (double)log.host_peak / (double)MIB);
        run_remove(s->output);
    }
}

/* A plan grows with the micro-batches of a step, and the state does not: it is the job's own memory, too; so is what its
 * proofs take. */
static void test_many_micro_batches(void **state) {
    (void)state;
    scene s = scene_open();
    check_plans(&s, "gradient_accumulation_steps=512");
}

/* Where operations are many and small there is little but plans, and what it takes to make them. */
static void test_deep_and_narrow(void **state) {
    (void)state;
    scene s = scene_open();
    run_write(run_path(s.model, "config.json"),
              "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128,"
              " \"num_hidden_layers\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
              " \"vocab_size\": 1024, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05,"
              " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true,"
              " \"initializer_range\": 0.02}\n");
    check_plans(&s, "gradient_accumulation_steps=32");
}

/* Generation runs two plans, and both are in what it says it takes. */
static void test_generation(void **state) {
    (void)state;
    scene s = scene_open();
    (void)run_train(s.config, s.output, 1024 * MIB, NULL, SETS("memory.host_budget=1GiB", "precision=fp32"));
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(s.output, "tokenizer.json"));
    const char *arguments[] = {"generate", "--model",        s.output, "--prompt",      "the tide", "--max-new-tokens",
                               "2",        "--offload-path", s.dir,    "--host-budget", "1MiB",     NULL};
    run_result r = run_argv(&(run_opts){0}, arguments);
    assert_int_equal(r.status, 2);
    arguments[10] = run_format("%llu", (unsigned long long)train_minimum(r.err));
    run_free(&r);
    r = run_argv(&(run_opts){0}, arguments);
    RUN_OK(&r);
    run_free(&r);
}

/* A cache in files: in the least budget that there is with them, less than its own bytes; the same text as in memory. */
static void test_generation_paged(void **state) {
    (void)state;
    scene s = scene_open();
    tm_buf prompt = {0};
    (void)run_train(s.config, s.output, 1024 * MIB, NULL, SETS("memory.host_budget=1GiB", "precision=fp32"));
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(s.output, "tokenizer.json"));
    for (int i = 0; i < 60; i++) RUN_EXPECT_STATUS(tm_buf_printf(&prompt, "tide %d ", i));
    const char *off = run_dir(), *budget[2];
    const char *arguments[] = {"generate",  "--model",
                               s.output,    "--prompt",
                               prompt.data, "--n",
                               "24",        "--max-new-tokens",
                               "24",        "--temperature",
                               "1",         "--host-budget",
                               "1MiB",      "--offload-path",
                               off,         NULL};
    const size_t at = 12, path = 13;
    for (int paged = 0; paged < 2; paged++) {
        arguments[path] = paged ? "--offload-path" : NULL;
        run_result r = run_argv(&(run_opts){0}, arguments);
        assert_int_equal(r.status, 2);
        budget[paged] = run_format("%llu", (unsigned long long)train_minimum(r.err));
        run_free(&r);
    }
    run_result r[2];
    for (int paged = 0; paged < 2; paged++) {
        arguments[path] = paged ? "--offload-path" : NULL;
        arguments[at] = budget[paged];
        r[paged] = run_argv(&(run_opts){0}, arguments);
        RUN_OK(&r[paged]);
    }
    print_message("  in memory %s bytes, in files %s: peak %.2f MiB\n", budget[0], budget[1],
                  (double)r[1].peak_bytes / (double)MIB);
    assert_string_equal(r[0].out, r[1].out);
    assert_int_equal(run_entries(off), 0);
    assert_true(strtoull(budget[0], NULL, 10) > strtoull(budget[1], NULL, 10) + 8 * MIB);
#ifndef TIDEMILL_SANITIZED /* shadow memory is resident too */
    for (int paged = 0; paged < 2; paged++) assert_true(r[paged].peak_bytes <= strtoull(budget[paged], NULL, 10));
#endif
    run_free(&r[0]), run_free(&r[1]);
    tm_buf_free(&prompt);
}

/* The kernel as judge: it kills what goes over, page cache of buffered files included. */
static void check_cgroup(const char *precision) {
    scene s = scene_open();
    uint64_t budget = run_train_minimum(s.config, s.output, SETS(precision)) + 4 * MIB;
    const char *group = run_cgroup(budget + 64 * MIB);
    if (!group) TEST_SKIP("a memory cgroup cannot be made here (it takes root)");
    (void)run_train(s.config, s.output, budget, &(run_opts){.cgroup = group}, SETS(budget_of(budget), precision));
}

static void test_cgroup_bf16(void **state) {
    (void)state;
    check_cgroup("precision=bf16");
}
static void test_cgroup_fp32(void **state) {
    (void)state;
    check_cgroup("precision=fp32");
}

/* That the limit of the test above is enforced at all. */
static void test_cgroup_binds(void **state) {
    (void)state;
    scene s = scene_open();
    const char *group = run_cgroup(64 * MIB);
    if (!group) TEST_SKIP("a memory cgroup cannot be made here (it takes root)");
    run_result r = run((run_opts){.cgroup = group}, "train", s.config, "--set", "precision=fp32", "--set",
                       "memory.host_budget=1GiB", NULL); /* everything resident: 150 MB and more */
    assert_int_not_equal(r.status, 0);
    run_free(&r);
}

/* Without a budget: a part of what the cgroup leaves, and it trains within that. */
static void test_default_budget(void **state) {
    (void)state;
    scene s = scene_open();
    const char *group = run_cgroup(256 * MIB);
    if (!group) TEST_SKIP("a memory cgroup cannot be made here (it takes root)");
    (void)run_train(s.config, s.output, 256 * MIB, &(run_opts){.cgroup = group}, SETS("precision=bf16"));
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_minimum_bf16, run_clean),
        cmocka_unit_test_teardown(test_minimum_fp32, run_clean),
        cmocka_unit_test_teardown(test_minimum_update_u, run_clean),
        cmocka_unit_test_teardown(test_minimum_recompute, run_clean),
        cmocka_unit_test_teardown(test_minimum_is_the_jobs, run_clean),
        cmocka_unit_test_teardown(test_many_micro_batches, run_clean),
        cmocka_unit_test_teardown(test_deep_and_narrow, run_clean),
        cmocka_unit_test_teardown(test_generation, run_clean),
        cmocka_unit_test_teardown(test_generation_paged, run_clean),
        cmocka_unit_test_teardown(test_cgroup_bf16, run_clean),
        cmocka_unit_test_teardown(test_cgroup_fp32, run_clean),
        cmocka_unit_test_teardown(test_cgroup_binds, run_clean),
        cmocka_unit_test_teardown(test_default_budget, run_clean),
    };
    return cmocka_run_group_tests_name("train_memory", tests, NULL, NULL);
}
