/* A memory of its own between the model and the host: one hash with "cpu" at every size of the arena, wherever the rest
 * is, however copies fall. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define OPTIMIZER "zero_optimization.offload_optimizer.device="

typedef struct scene {
    const char *dir, *config, *refused;
    unsigned runs;
    char hash[40];
} scene;

static scene scene_open(const char *precision, double max_grad_norm) {
    scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model"), *rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.refused = run_path(s.dir, "refused");
    run_random_model(model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 12, 32, true);
    tm_st_close(golden);
    run_write(s.config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\"},\n"
                                   " \"precision\": \"%s\", \"max_steps\": 2, \"per_device_train_batch_size\": 2,\n"
                                   " \"gradient_accumulation_steps\": 3, \"learning_rate\": 1e-3,\n"
                                   " \"max_grad_norm\": %g}\n",
                                   model, rows, precision, max_grad_norm));
    train_log log = run_train(s.config, run_path(s.dir, "cpu"), 0, NULL, SETS("memory.host_budget=unlimited"));
    assert_int_equal(log.step[0].device_peak, 0);
    memcpy(s.hash, log.hash, sizeof s.hash);
    run_remove(run_path(s.dir, "cpu"));
    return s;
}

static const char *arena(uint64_t bytes) {
    return run_format("memory.device_budget=%llu", (unsigned long long)bytes);
}

/* Trains through an arena of `device` bytes and a host budget (0: as the sets say). */
static train_log same(scene *s, uint64_t device, uint64_t host, const run_opts *opts, const char *a, const char *b,
                      const char *c) {
    const char *output = run_format("%s/out-%u", s->dir, s->runs++),
               *sets[8] = {"memory.device=cpu-arena", arena(device)};
    const char *more[] = {host ? run_format("memory.host_budget=%llu", (unsigned long long)host) : NULL, a, b, c};
    unsigned n = 2;
    for (unsigned i = 0; i < TM_COUNT(more); i++)
        if (more[i]) sets[n++] = more[i];
    train_log log = run_train(s->config, output, host ? host + device : 0, opts, sets);
    for (unsigned i = 0; i < log.steps; i++) {
        assert_true(log.step[i].device_peak > 0 && log.step[i].device_peak <= device);
        assert_true(log.step[i].copied[0] > 0 && log.step[i].copied[1] > 0);
    }
#ifndef TIDEMILL_SANITIZED
    if (host) assert_true(log.host_peak <= host);
#endif
    if (strcmp(s->hash, log.hash) != 0) {
        for (unsigned i = 0; i < n; i++) print_error("  --set %s\n", sets[i]);
        fail_msg("hash %s, but %s before", log.hash, s->hash);
    }
    run_remove(output);
    return log;
}

static void check_arenas(const char *precision, const char *update, double max_grad_norm) {
    scene s = scene_open(precision, max_grad_norm);
    update = run_format("memory.update=%s", update);
    uint64_t least = run_train_device_minimum(s.config, s.refused, SETS(update));
    run_result r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s", s.refused), "--set",
                       "memory.device=cpu-arena", "--set", arena(least - 1), "--set", update, NULL);
    assert_int_equal(r.status, 2);
    assert_int_equal(train_minimum(r.err), least);
    run_free(&r);
    uint64_t sizes[] = {least, least + least / 3, 2 * least, 256 * MIB}, copied[TM_COUNT(sizes)];
    unsigned step = strstr(update, "=U") ? 1 : 3; /* the others at both ends only */
    for (unsigned i = 0; i < TM_COUNT(sizes); i += step) {
        /* files and the least host memory; then everything in memory */
        uint64_t host =
            run_train_minimum(s.config, s.refused, SETS("memory.device=cpu-arena", arena(sizes[i]), update));
        train_log log = same(&s, sizes[i], host, NULL, update, NULL, NULL);
        assert_true(i == 3 || log.step[1].read_bytes > 0); /* with room for all of it the state is in the arena */
        if (i % 2 == 0) log = same(&s, sizes[i], 0, NULL, update, "memory.host_budget=unlimited", OPTIMIZER "cpu");
        copied[i] = log.step[1].copied[0] + log.step[1].copied[1];
    }
    assert_true(copied[3] < 256 << 10); /* what has room stays: batches, losses and norms alone are copied */
    print_message("  %s %s: least arena %llu bytes, %llu bytes copied a step, %llu in 256 MiB; %u runs, one hash\n",
                  precision, update, (unsigned long long)least, (unsigned long long)copied[0],
                  (unsigned long long)copied[3], s.runs);
}

static void test_update_after(void **state) {
    (void)state;
    check_arenas("bf16", "U", 1);
}
static void test_update_folded(void **state) {
    (void)state;
    check_arenas("bf16", "F", 1);
}
/* All of the state in memory and all of the step in the arena: what saves the model needs host memory all the same. */
static void test_it_is_saved(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 16, true);
    tm_st_close(golden);
    run_write(config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"max_steps\": 1}\n",
                                 TM_TEST_FIXTURES "/../../examples/tiny", rows));
    train_log cpu = run_train(config, run_path(dir, "cpu"), 0, NULL, SETS("memory.update=F"));
    train_log log = run_train(config, run_path(dir, "arena"), 0, NULL,
                              SETS("memory.update=F", "memory.device=cpu-arena", "memory.device_budget=64MiB"));
    assert_string_equal(log.hash, cpu.hash);
}
static void test_update_within(void **state) {
    (void)state;
    check_arenas("fp32", "B", 0);
}

/* DeepSpeed's Twin-Flow: a share of the parameters is the host's. */
static void test_ratio(void **state) {
    (void)state;
    scene s = scene_open("bf16", 1);
    uint64_t copied[3];
    static const char *const ratio[] = {"0", "0.5", "1"};
    for (unsigned i = 0; i < 3; i++) {
        train_log log = same(&s, 256 * MIB, 0, NULL, "memory.update=U", "memory.host_budget=unlimited",
                             run_format("zero_optimization.offload_optimizer.ratio=%s", ratio[i]));
        copied[i] = log.step[1].copied[0] + log.step[1].copied[1];
    }
    print_message("  copied a step: all on the device %llu bytes, half %llu, none %llu\n",
                  (unsigned long long)copied[0], (unsigned long long)copied[1], (unsigned long long)copied[2]);
    assert_true(copied[0] < copied[2] / 20);
    assert_true(copied[1] > copied[2] / 3 && copied[1] < copied[2] / 3 * 2);
}

static void train_on(const scene *s, const char *output, const char *steps, const char *device, const char *budget) {
    run_result r = run((run_opts){0}, "train", s->config, "--set", run_format("output_dir=%s", output), "--set",
                       "lr_scheduler_type=constant", "--set", "keep_state=true", "--set",
                       "memory.host_budget=unlimited", "--set", run_format("max_steps=%s", steps), "--set",
                       run_format("memory.device=%s", device), budget ? "--set" : NULL, budget, NULL);
    RUN_OK(&r);
    run_free(&r);
}

/* State that an arena holds is in every commit; another arena, or none, goes on from there. */
static void test_commits(void **state) {
    (void)state;
    scene s = scene_open("bf16", 1);
    const char *cpu = run_path(s.dir, "cpu3"), *there = run_path(s.dir, "there");
    train_on(&s, cpu, "3", "cpu", NULL);
    train_on(&s, there, "1", "cpu-arena", arena(256 * MIB));
    train_on(&s, there, "2", "cpu-arena", arena(64 * MIB));
    train_on(&s, there, "3", "cpu", NULL);
    assert_string_equal(train_log_read(there).hash, train_log_read(cpu).hash);
    const char *back = run_path(s.dir, "back");
    train_on(&s, back, "1", "cpu", NULL);
    train_on(&s, back, "3", "cpu-arena", arena(256 * MIB));
    train_log log = train_log_read(back);
    assert_string_equal(log.hash, train_log_read(cpu).hash);
    assert_true(log.step[2].copied[0] + log.step[2].copied[1] < 256 << 10);
}

/* Each rank has an arena of its own; what ranks exchange is on the host. */
static void test_two_ranks(void **state) {
    (void)state;
    static const char *const strategies[] = {"strategy=zero3", "strategy=ddp", "strategy=zero1"};
    scene s = scene_open("bf16", 1);
    const run_opts two = {.ranks = 2};
    train_log cpu = run_train(s.config, run_path(s.dir, "two"), 0, &two, SETS("strategy=zero3"));
    memcpy(s.hash, cpu.hash, sizeof s.hash);
    for (unsigned i = 0; i < TM_COUNT(strategies); i++)
        (void)same(&s, (i % 2 ? 256 : 32) * MIB, 0, &two, strategies[i], "memory.host_budget=unlimited", NULL);
}

/* Random legal orders of all operations, copies among them; kept, sent away, recomputed; slow copies; done twice. */
static void test_orders_and_rates(void **state) {
    (void)state;
    static const char *const activations[] = {"keep", "spill", "recompute"};
    scene s = scene_open("bf16", 1);
    uint64_t least = run_train_device_minimum(s.config, s.refused, SETS("memory.activations=keep"));
    for (unsigned i = 0; i < 3; i++) {
        const char *seed[] = {run_format("TIDEMILL_ORDER_SEED=%u", i + 11), NULL};
        const char *activation = run_format("memory.activations=%s", activations[i]);
        const char *size = arena(least + i * 4 * MIB);
        uint64_t host =
            run_train_minimum(s.config, s.refused, SETS("memory.device=cpu-arena", size, activation)) + 24 * MIB;
        (void)same(&s, least + i * 4 * MIB, host, &(run_opts){.env = seed}, activation, NULL, NULL);
    }
    train_log slow =
        same(&s, least, 0, NULL, "memory.host_budget=unlimited", "memory.device_bandwidth=100000000", NULL);
    for (unsigned i = 0; i < 2; i++) { /* each direction has that rate, and a step no less time than it takes */
        double rated = (double)slow.step[1].copied[i] / 1e8;
        assert_true(rated > 0.1 && slow.step[1].seconds > 0.9 * rated);
    }
    assert_true(slow.step[1].wait_copy > 0);
}

static void test_what_is_refused(void **state) {
    (void)state;
    scene s = scene_open("bf16", 1);
    const struct {
        const char *set[2], *says;
    } cases[] = {{{"memory.device=cpu-arena", "seed=1"}, "memory.device_budget"},
                 {{"memory.device=cuda:77", "memory.device_budget=1GiB"}, "device \"cuda:77\": "},
                 {{"memory.device=tpu", "seed=1"}, "cpu-arena"}};
    for (unsigned i = 0; i < TM_COUNT(cases); i++) {
        run_result r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s", s.refused), "--set",
                           cases[i].set[0], "--set", cases[i].set[1], NULL);
        const char *line = NULL;
        assert_int_equal(r.status, 2);
        assert_int_equal(run_error_lines(r.err, &line), 1);
        if (!strstr(r.err, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", r.err, cases[i].says);
        run_free(&r);
    }
}

/* ---- commands that only go forward ------------------------------------------------------------------------------- */

/* What `command` (ended by NULL) prints to stdout, on the CPU and in arenas: of the least size that its refusal names,
 * of one that holds everything, and of all that there is. */
static void same_output(const char *const *command) {
    const char *words[24];
    char *out[4] = {NULL};
    unsigned n = 0;
    while (command[n]) words[n] = command[n], n++;
    words[n] = "--device", words[n + 1] = "cpu-arena", words[n + 2] = "--device-budget", words[n + 3] = "1";
    words[n + 4] = NULL;
    run_result r = run_argv(&(run_opts){0}, words);
    assert_int_equal(r.status, 2);
    const char *budget[] = {NULL, run_format("%llu", (unsigned long long)train_minimum(r.err)), "64MiB", "unlimited"};
    run_free(&r);
    for (unsigned i = 0; i < TM_COUNT(budget); i++) {
        words[n] = budget[i] ? "--device" : NULL;
        words[n + 3] = budget[i];
        r = run_argv(&(run_opts){0}, words);
        RUN_OK(&r);
        char *seconds = strstr(r.out, "\"seconds\"");
        if (seconds) *seconds = 0;
        out[i] = r.out;
        assert_true(strlen(out[i]) > 20);
        assert_string_equal(out[i], out[0]);
        r.out = NULL;
        run_free(&r);
    }
    for (unsigned i = 0; i < TM_COUNT(out); i++) free(out[i]);
}

/* Status of a probe through an arena of that size; NULL: on the CPU. */
static int probe(const char *rows, const char *out, const char *budget, uint64_t *least) {
    run_result r = run((run_opts){0}, "probe", "--model", TM_TEST_FIXTURES "/arch_llama", "--input", rows, "--output",
                       out, "--grads", budget ? "--device" : NULL, "cpu-arena", "--device-budget", budget, NULL);
    int status = r.status;
    if (status == 2) *least = train_minimum(r.err);
    if (status != 0 && status != 2) fail_msg("exit status %d: %s", status, r.err);
    run_free(&r);
    return status;
}

/* Logits and gradients on the CPU, and in the least arena that the refusal of a smaller one names. */
static void same_probe(const char *rows, const char *out) {
    char *bytes[2];
    size_t len[2];
    uint64_t least = 0, again = 0;
    assert_int_equal(probe(rows, out, "1", &least), 2);
    assert_int_equal(probe(rows, out, run_format("%llu", (unsigned long long)least - 1), &again), 2);
    assert_true(least > 4096 && again == least);
    const char *budget[] = {NULL, run_format("%llu", (unsigned long long)least)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(probe(rows, out, budget[i], &again), 0);
        bytes[i] = run_read(out, &len[i]);
        run_remove(out);
    }
    assert_int_equal(len[0], len[1]);
    assert_memory_equal(bytes[0], bytes[1], len[0]);
    free(bytes[0]), free(bytes[1]);
}

static void test_forward_commands(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "rows.safetensors"), *prompt = "The";
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 3, 24, true);
    tm_st_close(golden);
    same_output((const char *const[]){"eval", "--model", TM_TEST_FIXTURES "/arch_llama", "--data", rows, "--json",
                                      "--precision", "bf16", NULL});
    same_output((const char *const[]){"generate", "--model", TM_TEST_FIXTURES "/../../examples/tiny", "--prompt",
                                      prompt, "--temperature", "3", "--max-new-tokens", "12", "--json", NULL});
    same_probe(rows, run_path(dir, "probed.safetensors"));
    run_result r = run((run_opts){0}, "eval", "--model", TM_TEST_FIXTURES "/arch_llama", "--data", rows, "--device",
                       "cpu-arena", NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "--device-budget"));
    run_free(&r);
}

/* The plan says what the run takes, and how the copies' rate tells. */
static double planned(const scene *s, uint64_t device, const char *rate, uint64_t *peak) {
    run_result r =
        run((run_opts){0}, "plan", s->config, "--json", "--set", run_format("output_dir=%s", s->refused), "--set",
            "memory.device=cpu-arena", "--set", arena(device), "--set", rate, "--set", "memory.update=U", NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    const tm_json *o = tm_json_root(doc);
    *peak = (uint64_t)tm_json_get(o, "device_peak_bytes")->integer;
    double seconds = tm_json_get(o, "seconds_per_step")->number;
    tm_json_free(doc);
    run_free(&r);
    return seconds;
}

static void test_plan(void **state) {
    (void)state;
    scene s = scene_open("bf16", 1);
    uint64_t least = run_train_device_minimum(s.config, s.refused, SETS("memory.update=U")), peak, again;
    double fast = planned(&s, 2 * least, "memory.device_bandwidth=100000000000", &peak);
    double slow = planned(&s, 2 * least, "memory.device_bandwidth=10000000", &again);
    train_log log = same(&s, 2 * least, 0, NULL, "memory.update=U", NULL, NULL);
    assert_true(peak > 0 && peak <= 2 * least);
    assert_true(log.step[0].device_peak > 0);
    assert_true(slow > fast + 0.9 * (double)log.step[1].copied[0] / 1e7 * 0.5);
    (void)again;
    run_result r = run((run_opts){0}, "plan", s.config, "--json", "--no-measure", "--set", "memory.device=cpu-arena",
                       "--set", "memory.device_budget=unlimited", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.out, "\"device_budget_bytes\": \"unlimited\""));
    run_free(&r);
}

/* A smaller model, whose steps can be made to have no finite gradient. */
static const char *small_config(const char *dir, const char *out) {
    const char *model = run_path(dir, "model"), *rows = run_path(dir, "rows.safetensors"),
               *config = run_path(dir, "config.json");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, true);
    tm_st_close(golden);
    run_write(config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},\n"
                                 " \"max_steps\": 60, \"commit_steps\": 0, \"learning_rate\": 1e30,\n"
                                 " \"lr_scheduler_type\": \"constant\", \"output_dir\": \"%s\",\n"
                                 " \"memory\": {\"update\": \"U\", \"activations\": \"keep\"}}\n",
                                 model, rows, out));
    return config;
}

/* What is compiled when the arena has been opened has no more than that, whatever the budget allows: the look at steps
 * that are not finite, here. */
static void test_what_is_compiled_late(void **state) {
    (void)state;
    const char *dir = run_dir(), *out = run_path(dir, "out"), *config = small_config(dir, out);
    uint64_t least = run_train_device_minimum(config, out, SETS("seed=1"));
    for (unsigned i = 2; i < 5; i++) { /* at some of them the step needs less than the look would take */
        run_result r = run((run_opts){0}, "train", config, "--quiet", "--resume", "never", "--set",
                           "memory.device=cpu-arena", "--set", arena(least + i * least / 4), NULL);
        if (r.status != 1 || !strstr(r.err, "is the gradient of"))
            fail_msg("arena of %u/4: exit status %d\n%s", 4 + i, r.status, r.err);
        run_free(&r);
        run_remove(out);
    }
}

/* It opens an executor of its own for the steps without a disk. */
static void test_bench_step(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_config(dir, run_path(dir, "out"));
    run_result r = run((run_opts){0}, "bench", "step", config, "--steps", "1", "--no-measure", "--json",
                       "--offload-path", dir, "--set", "memory.device=cpu-arena", "--set", arena(MIB), NULL);
    RUN_OK(&r);
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_update_after, run_clean),
        cmocka_unit_test_teardown(test_update_folded, run_clean),
        cmocka_unit_test_teardown(test_it_is_saved, run_clean),
        cmocka_unit_test_teardown(test_update_within, run_clean),
        cmocka_unit_test_teardown(test_ratio, run_clean),
        cmocka_unit_test_teardown(test_commits, run_clean),
        cmocka_unit_test_teardown(test_two_ranks, run_clean),
        cmocka_unit_test_teardown(test_orders_and_rates, run_clean),
        cmocka_unit_test_teardown(test_what_is_refused, run_clean),
        cmocka_unit_test_teardown(test_forward_commands, run_clean),
        cmocka_unit_test_teardown(test_plan, run_clean),
        cmocka_unit_test_teardown(test_what_is_compiled_late, run_clean),
        cmocka_unit_test_teardown(test_bench_step, run_clean),
    };
    return cmocka_run_group_tests_name("train_device", tests, NULL, NULL);
}
