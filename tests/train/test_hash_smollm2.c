/* One hash of the final state of a real model: fp32 and bf16, three steps, every budget and every I/O engine, and in
 * memory; bytes as planned, memory within the budget in each. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define OPTIMIZER "zero_optimization.offload_optimizer."
#define PARAM "zero_optimization.offload_param."

static const char *dir, *config;

/* Once for both precisions: the model as a folder, short rows of the fixture, a configuration. */
static int open_scene(void **state) {
    (void)state;
    dir = run_dir();
    const char *model = run_path(dir, "model"), *rows = run_path(dir, "rows.safetensors");
    config = run_path(dir, "config.json");
    run_result r = run((run_opts){.timeout_s = 300}, "convert", smollm2_gguf(), model, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *golden = tensors_open(smollm2_fixture("golden.safetensors"));
    rows_write(rows, golden, 0, 6, 64, true);
    tm_st_close(golden);
    run_write(config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"max_steps\": 3, \"commit_steps\": 0,\n"
                         " \"gradient_accumulation_steps\": 2, \"learning_rate\": 2e-5}\n",
                         model, rows));
    return 0;
}

static void same(char *hash, uint64_t budget, const char *const *sets) {
    train_log log = run_train(config, run_path(dir, "out"), budget, &(run_opts){.timeout_s = 300}, sets);
    print_message("  %s: %5.1f s, peak %7.1f MiB, %5.2f GB read and %5.2f GB written a step, %s\n", sets[0],
                  log.seconds, (double)log.host_peak / (double)MIB, (double)log.step[1].read_bytes * 1e-9,
                  (double)log.step[1].write_bytes * 1e-9, log.hash);
    if (!hash[0]) memcpy(hash, log.hash, sizeof log.hash);
    assert_string_equal(hash, log.hash);
    assert_true(log.step[0].loss > 0 && log.step[0].grad_norm > 0);
    run_remove(run_path(dir, "out"));
}

/* In memory, and from files with nothing kept; with TIDEMILL_LONG=1 each of three engines with each of three budgets, in
 * bf16 one of them without. */
static void check(const char *precision, const char *engine_in_ci) {
    char hash[40] = "";
    const char *p = run_format("precision=%s", precision);
    same(hash, 0, SETS("memory.host_budget=unlimited", p, PARAM "device=none", OPTIMIZER "device=none"));
    same(hash, 512 * MIB, SETS("memory.host_budget=512MiB", p, "memory.cache=none", "memory.io_engine=threads"));
    if (!TEST_LONG("each engine with each budget")) {
        if (engine_in_ci) same(hash, 512 * MIB, SETS("memory.host_budget=512MiB", p, engine_in_ci));
        return;
    }
    static const char *const engine[] = {"uring", "threads", "sync"};
    static const struct {
        const char *text;
        uint64_t bytes;
    } budget[] = {{"512MiB", 512 * MIB}, {"1GiB", 1024 * MIB}, {"unlimited", 0}};
    for (unsigned i = 0; i < TM_COUNT(engine) * TM_COUNT(budget); i++)
        same(hash, budget[i % 3].bytes,
             SETS(run_format("memory.host_budget=%s", budget[i % 3].text), p,
                  run_format("memory.io_engine=%s", engine[i / 3])));
}

static void test_fp32(void **state) {
    (void)state;
    check("fp32", NULL);
}
static void test_bf16(void **state) {
    (void)state;
    check("bf16", "memory.io_engine=uring");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_bf16)};
    if (!smollm2_gguf()) {
        TEST_SKIP_PROGRAM("SmolLM2-135M-Instruct is not at %s/models", TM_TEST_SHARED);
    }
    return cmocka_run_group_tests_name("train_hash_smollm2", tests, open_scene, run_clean);
}
