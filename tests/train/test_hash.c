/* One hash: where state lies, by what engine it moves and in which legal order operations run never changes a bit. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define OPTIMIZER "zero_optimization.offload_optimizer."
#define PARAM "zero_optimization.offload_param."

typedef struct scene {
    const char *dir, *model, *rows, *config;
    unsigned runs;
    char hash[40]; /* that all runs must have; "" before the first */
} scene;

static const char *budget_of(uint64_t bytes) {
    return run_format("memory.host_budget=%llu", (unsigned long long)bytes);
}

/* Trains once more; the hash is that of all the runs before. */
static train_log same(scene *s, uint64_t budget, const run_opts *opts, const char *const *sets) {
    const char *output = run_format("%s/out-%u", s->dir, s->runs++);
    train_log log = run_train(s->config, output, budget, opts, sets);
    if (!s->hash[0]) memcpy(s->hash, log.hash, sizeof s->hash);
    if (strcmp(s->hash, log.hash) != 0) {
        for (; *sets; sets++) print_error("  --set %s\n", *sets);
        fail_msg("hash %s, but %s before", log.hash, s->hash);
    }
    run_remove(output);
    return log;
}

/* ---- a small random model, everything that can be varied ------------------------------------------------- */

static scene random_scene(const char *precision, double max_grad_norm) {
    scene s = {.dir = run_dir()};
    s.model = run_path(s.dir, "model");
    s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    run_random_model(s.model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(s.rows, golden, 0, 18, 32, true);
    tm_st_close(golden);
    run_write(s.config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\"},\n"
                                   " \"precision\": \"%s\", \"max_steps\": 3, \"per_device_train_batch_size\": 2,\n"
                                   " \"gradient_accumulation_steps\": 3, \"learning_rate\": 1e-3,\n"
                                   " \"max_grad_norm\": %g}\n",
                                   s.model, s.rows, precision, max_grad_norm));
    return s;
}

/* DeepSpeed's knobs as they bound the planner, requests as aio cuts them; two in a run (one with TIDEMILL_LONG=1).
 */
static void check_knobs(scene *s) {
    static const char *const knobs[] = {
        PARAM "max_in_cpu=0",
        PARAM "max_in_cpu=1000000",
        PARAM "buffer_count=1",
        PARAM "pin_memory=false",
        OPTIMIZER "buffer_count=1",
        OPTIMIZER "pipeline=false",
        OPTIMIZER "pipeline_read=false",
        OPTIMIZER "pipeline_write=false",
        "zero_optimization.stage3_max_live_parameters=1000000",
        "zero_optimization.stage3_prefetch_bucket_size=0",
        "zero_optimization.stage3_param_persistence_threshold=100000",
        "zero_optimization.sub_group_size=1000",
        "aio={\"block_size\": 65536, \"single_submit\": true}",
        "aio={\"block_size\": 262144, \"overlap_events\": false, \"queue_depth\": 3}",
    };
    static const char *const updates[] = {"memory.update=F", "memory.update=auto"};
    uint64_t least[TM_COUNT(updates)];
    for (unsigned u = 0; u < TM_COUNT(updates); u++)
        least[u] = run_train_minimum(s->config, run_path(s->dir, "refused"), SETS(updates[u]));
    const unsigned half = TM_COUNT(knobs) / 2, runs = TEST_LONG("each knob alone") ? TM_COUNT(knobs) : half;
    for (unsigned i = 0; i < runs; i++) {
        unsigned u = i % 3 ? 1 : 0;
        const char *budget = budget_of(least[u] + (i % 2 ? 32 : 6) * MIB);
        train_log log =
            same(s, 0, NULL,
                 SETS(PARAM "device=nvme", OPTIMIZER "device=nvme", run_format(PARAM "nvme_path=%s/disk", s->dir),
                      budget, updates[u], knobs[i], runs == half ? knobs[i + half] : NULL));
        assert_true(log.step[1].read_bytes > 0); /* the budget binds */
    }
}

/* Without clipping update B is one more way; all three give one hash, and the same norms in the log. */
static void test_random_unclipped(void **state) {
    (void)state;
    scene s = random_scene("bf16", 0);
    static const char *const updates[] = {"U", "F", "B"};
    static const char *const activations[] = {"keep", "recompute", "spill", "auto"};
    train_log first = same(&s, 0, NULL, SETS("memory.host_budget=unlimited", "memory.update=U"));
    const bool all = TEST_LONG("updates U and F without clipping by every way for activations");
    for (unsigned i = 0; i < 12; i++) {
        if (!all && i < 8 && i % 4 != 3) continue; /* auto alone: with clipping there is each of them */
        const char *update = run_format("memory.update=%s", updates[i / 4]);
        const char *activation = run_format("memory.activations=%s", activations[i % 4]);
        uint64_t at = run_train_minimum(s.config, run_path(s.dir, "refused"), SETS(update, activation));
        train_log log = same(&s, at, NULL, SETS(update, activation, budget_of(at)));
        for (unsigned k = 0; k < log.steps; k++) {
            assert_true(log.step[k].grad_norm > 0);
            assert_true(log.step[k].grad_norm == first.step[k].grad_norm);
        }
        if (i % 4 == 3) same(&s, at + 8 * MIB, NULL, SETS(update, activation, budget_of(at + 8 * MIB)));
    }
    uint64_t least = run_train_minimum(s.config, run_path(s.dir, "refused"), SETS("memory.update=auto"));
    same(&s, least + 8 * MIB, NULL, SETS(budget_of(least + 8 * MIB)));
    check_knobs(&s);
    print_message("  unclipped: %u runs, one hash %s\n", s.runs, s.hash);
}

/* `whole`: every way of the list; else the first of each sort (all of them with TIDEMILL_LONG=1). */
static void check_random(const char *precision, bool whole) {
    scene s = random_scene(precision, 1);
    train_log log =
        same(&s, 0, NULL, SETS("memory.host_budget=unlimited", OPTIMIZER "device=none", PARAM "device=none"));
    assert_int_equal(log.step[0].read_bytes + log.step[0].write_bytes, 0);
    assert_true(log.step[2].loss < log.step[0].loss); /* it does learn */
    same(&s, 0, NULL, SETS("memory.host_budget=unlimited"));
    uint64_t least = run_train_minimum(s.config, run_path(s.dir, "refused"), SETS("seed=42"));
    const char *budget = budget_of(least), *none = "memory.cache=none";
    static const char *const engines[] = {"uring", "threads", "sync"};
    whole = whole || TEST_LONG("fp32 by every way");
    for (unsigned e = 0; e < (whole ? TM_COUNT(engines) : 1); e++) {
        const char *engine = run_format("memory.io_engine=%s", engines[e]);
        log = same(&s, least, NULL, SETS(engine, budget));
        assert_true(log.step[1].read_bytes > 0 && log.step[1].write_bytes > 0);
        same(&s, least + 24 * MIB, NULL, SETS(engine, budget_of(least + 24 * MIB)));
    }
    same(&s, least, NULL, SETS(budget, none, "memory.slots=1"));
    if (whole) same(&s, least, NULL, SETS(budget, none, "aio={\"queue_depth\": 1}"));
    same(&s, least, NULL, SETS(budget, none, "aio={\"queue_depth\": 32, \"intra_op_parallelism\": 4}"));
    static const char *const updates[] = {"U", "F"};
    static const char *const activations[] = {"keep", "recompute", "spill"};
    for (unsigned i = 0; i < 6; i += whole ? 1 : 4) {
        const char *update = run_format("memory.update=%s", updates[i / 3]);
        const char *activation = run_format("memory.activations=%s", activations[i % 3]);
        uint64_t at = run_train_minimum(s.config, run_path(s.dir, "refused"), SETS(update, activation));
        same(&s, at, NULL, SETS(update, activation, budget_of(at)));
        if (i % 2) same(&s, 0, NULL, SETS(update, activation, none, "memory.host_budget=256MiB"));
    }
    /* one kind in host memory, the other in files; state striped over two paths */
    same(&s, 0, NULL, SETS("memory.host_budget=256MiB", none, PARAM "device=cpu", OPTIMIZER "device=nvme"));
    same(&s, 0, NULL, SETS("memory.host_budget=256MiB", none, PARAM "device=nvme", OPTIMIZER "device=cpu"));
    const char *two = run_format("[\"%s/disk-a\", \"%s/disk-b\"]", s.dir, s.dir);
    same(&s, least, NULL,
         SETS(budget, none, PARAM "device=nvme", OPTIMIZER "device=nvme", run_format(PARAM "nvme_path=%s", two),
              run_format(OPTIMIZER "nvme_path=%s", two)));
    assert_int_equal(run_entries(run_path(s.dir, "disk-a")) + run_entries(run_path(s.dir, "disk-b")), 0);
    /* parameters in a path of their own; the optimizer's state in two others */
    same(&s, least, NULL,
         SETS(budget, none, PARAM "device=nvme", OPTIMIZER "device=nvme",
              run_format(PARAM "nvme_path=%s/disk-c", s.dir), run_format(OPTIMIZER "nvme_path=%s", two)));
    assert_int_equal(run_entries(run_path(s.dir, "disk-c")), 0);
    print_message("  %s: %u runs, one hash %s\n", precision, s.runs, s.hash);
}

static void test_random_fp32(void **state) {
    (void)state;
    check_random("fp32", false);
}
static void test_random_bf16(void **state) {
    (void)state;
    check_random("bf16", true);
}

/* What the hash is worth: another seed, one more step, another rate each give another. */
static void test_the_hash_tells_apart(void **state) {
    (void)state;
    scene s = random_scene("bf16", 1);
    static const char *const other[] = {"seed=42",        "seed=43",
                                        "max_steps=4",    "learning_rate=1.0001e-3",
                                        "weight_decay=0", "gradient_accumulation_steps=2",
                                        "precision=fp32"};
    char hash[TM_COUNT(other)][40];
    for (unsigned i = 0; i < TM_COUNT(other); i++) {
        train_log log = run_train(s.config, run_path(s.dir, "out"), 0, NULL, SETS(other[i]));
        memcpy(hash[i], log.hash, sizeof hash[i]);
        for (unsigned k = 0; k < i; k++)
            if (strcmp(hash[i], hash[k]) == 0) fail_msg("%s and %s: one hash", other[i], other[k]);
    }
}

/* ---- legal orders ---------------------------------------------------------------------------------------- */

/* The plan's operations in random topological orders, at the least budget, where every frame is reused. */
static void check_orders(const char *precision, const char *update, unsigned orders) {
    scene s = {.dir = run_dir(), .model = TM_TEST_FIXTURES "/arch_llama"};
    s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(s.rows, golden, 0, 12, 32, false);
    tm_st_close(golden);
    run_write(s.config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"%s\",\n"
                                   " \"max_steps\": 3, \"gradient_accumulation_steps\": 4, \"learning_rate\": 1e-3,\n"
                                   " \"max_grad_norm\": %d, \"memory\": {\"update\": \"%s\"}}\n",
                                   s.model, s.rows, precision, *update != 'B', update));
    same(&s, 0, NULL, SETS("memory.host_budget=unlimited"));
    uint64_t least = run_train_minimum(s.config, run_path(s.dir, "refused"), SETS("seed=42"));
    if (!TEST_LONG("100 random orders, not 25")) orders /= 4;
    for (unsigned i = 1; i <= orders; i++) {
        const char *const seed[] = {run_format("TIDEMILL_ORDER_SEED=%u", i), NULL};
        train_log log = same(&s, least, &(run_opts){.env = seed}, SETS(budget_of(least)));
        assert_true(log.step[1].read_bytes > 0);
    }
    print_message("  %s, update %s: %u random orders at %llu bytes, one hash %s\n", precision, update, orders,
                  (unsigned long long)least, s.hash);
}

static void test_orders_fp32(void **state) {
    (void)state;
    check_orders("fp32", "auto", 28);
}
static void test_orders_bf16(void **state) {
    (void)state;
    check_orders("bf16", "U", 20);
    check_orders("bf16", "F", 32);
    check_orders("bf16", "B", 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random_fp32, run_clean),
        cmocka_unit_test_teardown(test_random_bf16, run_clean),
        cmocka_unit_test_teardown(test_random_unclipped, run_clean),
        cmocka_unit_test_teardown(test_the_hash_tells_apart, run_clean),
        cmocka_unit_test_teardown(test_orders_fp32, run_clean),
        cmocka_unit_test_teardown(test_orders_bf16, run_clean),
    };
    return cmocka_run_group_tests_name("train_hash", tests, NULL, NULL);
}
