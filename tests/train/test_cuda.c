/* The program trains on "cuda:0", the driver being one that pretends and the kernels emulated (tests/cuda): what the
 * CPU computes, to rounding; one hash whatever the arena's size and wherever the rest is; a run that goes on takes up
 * its algorithms. Small: every thread of a kernel is a fiber here. */
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"
enum { STEPS = 2 };

static const char *const one[] = {"LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA, NULL};
static const char *const other[] = {"LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA, "FAKE_CUDA_ALGORITHM=100", NULL};
static const char *const three[] = {"LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA, "FAKE_CUDA_DEVICES=3", NULL};
static const run_opts fake = {.env = one}, fake_other = {.env = other}, fake_three = {.env = three};

static const char *config_of(const char *dir, const char *precision) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, true);
    tm_st_close(golden);
    run_write(config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"%s\",\n"
                                 " \"max_steps\": %d, \"per_device_train_batch_size\": 1,\n"
                                 " \"gradient_accumulation_steps\": 2, \"learning_rate\": 1e-2}\n",
                                 MODEL, rows, precision, STEPS));
    return config;
}

/* ---- as on the CPU ----------------------------------------------------------------------------------------------- */

/* A rounding more or less of the type that is stored, over the depth of this model. */
static void compare(const char *precision, double tolerance) {
    const char *dir = run_dir(), *config = config_of(dir, precision);
    train_log cpu = run_train(config, run_path(dir, "cpu"), 0, NULL, SETS("memory.device=cpu"));
    train_log cuda = run_train(config, run_path(dir, "cuda"), 0, &fake, SETS("memory.device=cuda:0"));
    for (int i = 0; i < STEPS; i++) {
        const train_step *a = &cpu.step[i], *b = &cuda.step[i];
        assert_true(b->copied[0] > 0 && b->device_peak > 0);
        if (fabs(a->loss - b->loss) > tolerance * a->loss ||
            fabs(a->grad_norm - b->grad_norm) > 5 * tolerance * a->grad_norm)
            fail_msg("%s, step %d: loss %.9g and %.9g, norm %.9g and %.9g", precision, i + 1, a->loss, b->loss,
                     a->grad_norm, b->grad_norm);
    }
    assert_true(cuda.step[STEPS - 1].loss < cuda.step[0].loss);
}

static void test_same_as_cpu(void **state) {
    (void)state;
    compare("fp32", 2e-5);
    compare("bf16", 5e-3);
    compare("fp16", 1e-3);
}

/* ---- one hash ---------------------------------------------------------------------------------------------------- */

typedef struct way {
    const char *precision, *budget, *update, *place; /* budget NULL: the least */
} way;

/* What the refusal of an arena of one byte names. */
static const char *least(const char *config, const char *out, const char *update, const char *place) {
    run_result r =
        run(fake, "train", config, "--set", run_format("output_dir=%s", out), "--set", "memory.device=cuda:0", "--set",
            "memory.device_budget=1", "--set", update, "--set", place, NULL);
    assert_int_equal(r.status, 2);
    unsigned long long bytes = train_minimum(strstr(r.err, "memory.device_budget"));
    run_free(&r);
    return run_format("%llu", bytes);
}

static void same_hash(const way *list, unsigned n) {
    char hash[40] = "";
    const char *dir = run_dir(), *config = config_of(dir, list->precision);
    for (unsigned i = 0; i < n; i++) {
        const char *out = run_format("%s/out-%u", dir, i), *update = run_format("memory.update=%s", list[i].update);
        const char *place = run_format("zero_optimization.offload_optimizer.device=%s", list[i].place);
        const char *budget = list[i].budget ? list[i].budget : least(config, out, update, place);
        train_log log =
            run_train(config, out, 0, &fake,
                      SETS("memory.device=cuda:0", run_format("memory.device_budget=%s", budget), update, place));
        if (i == 0) memcpy(hash, log.hash, sizeof hash);
        assert_string_equal(log.hash, hash);
    }
}

static void test_one_hash(void **state) {
    (void)state;
    static const way bf16[] = {
        {"bf16", "unlimited", "U", "none"}, {"bf16", NULL, "U", "nvme"}, {"bf16", NULL, "F", "cpu"}};
    static const way fp32[] = {{"fp32", "64MiB", "U", "cpu"}, {"fp32", NULL, "F", "nvme"}};
    static const way fp16[] = {{"fp16", "64MiB", "F", "none"}, {"fp16", NULL, "U", "nvme"}};
    same_hash(bf16, TM_COUNT(bf16));
    same_hash(fp32, TM_COUNT(fp32));
    same_hash(fp16, TM_COUNT(fp16));
}

/* ---- a run that goes on ------------------------------------------------------------------------------------------ */

static void go_on(const run_opts *opts, const char *config, const char *output, const char *steps) {
    run_result r = run(*opts, "train", config, "--set", run_format("output_dir=%s", output), "--set",
                       "memory.device=cuda:0", "--set", "keep_state=true", "--set", "lr_scheduler_type=constant",
                       "--set", run_format("max_steps=%s", steps), NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "is untested"));
    run_free(&r);
}

/* With the algorithms of its commit, whatever the library would choose by then, and whose bits are others. */
static void test_going_on(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = config_of(dir, "bf16");
    const char *whole = run_path(dir, "whole"), *parts = run_path(dir, "parts");
    go_on(&fake, config, whole, "2");
    go_on(&fake, config, parts, "1");
    go_on(&fake_other, config, parts, "2");
    assert_string_equal(train_log_read(parts).hash, train_log_read(whole).hash);
    go_on(&fake_other, config, run_path(dir, "other"), "2");
    assert_string_not_equal(train_log_read(run_path(dir, "other")).hash, train_log_read(whole).hash);
}

static run_result replayed(const char *config, const char *output, const run_opts *opts, const char *every,
                           const char *budget) {
    return run(*opts, "train", config, "--quiet", "--replay-every", every, "--set", run_format("output_dir=%s", output),
               "--set", "memory.device=cuda:0", "--set", run_format("memory.device_budget=%s", budget), NULL);
}

/* --replay-every: what kernels wrote is copied out and compared; the bits are those of once, and one that is wrong
 * ends the run, in a kernel's result as in the host's. */
static void test_replay(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = config_of(dir, "bf16"), *hash = NULL;
    static const char *const replay[][2] = {{"0", "64MiB"}, {"1", "64MiB"}, {"1", "400KiB"}};
    for (size_t i = 0; i < TM_COUNT(replay); i++) {
        const char *out = run_format("%s/out-%zu", dir, i);
        run_result r = replayed(config, out, &fake, replay[i][0], replay[i][1]);
        RUN_OK(&r);
        run_free(&r);
        train_log log = train_log_read(out);
        if (hash) assert_string_equal(log.hash, hash);
        hash = run_format("%s", log.hash);
    }
    static const char *const flip[][2] = {{"20", "forward layers"}, {"120", "backward head"}};
    for (size_t i = 0; i < TM_COUNT(flip); i++) {
        const char *env[] = {one[0], run_format("TIDEMILL_FAULT=flip_result:%s:bit:once", flip[i][0]), NULL};
        run_result r = replayed(config, run_path(dir, "flipped"), &(run_opts){.env = env}, "1", "64MiB");
        assert_int_equal(r.status, 1);
        if (!strstr(r.err, "was computed twice from the same bytes") || !strstr(r.err, flip[i][1]))
            fail_msg("%s", r.err);
        run_free(&r);
        run_remove(run_path(dir, "flipped"));
    }
}

static void expect(run_result *r, int status, const char *text) {
    if (r->status != status || !strstr(r->err, text)) fail_msg("exit %d, %s", r->status, r->err);
    run_free(r);
}

/* Where updates leave what is not finite the run ends, in good order: of update B on the device, and on the host while
 * the last tiles are still being written. */
static void test_diverging(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = config_of(dir, "fp32"), *out = run_format("output_dir=%s/out", dir);
    run_result r = run(fake, "train", config, "--set", out, "--set", "memory.device=cuda:0", "--set", "memory.update=B",
                       "--set", "max_grad_norm=0", "--set", "learning_rate=1e30", NULL);
    expect(&r, 1, "parameters are not finite after the update");
    r = run(fake, "train", config, "--set", out, "--set", "memory.cache=none", "--set", "memory.update=U", "--set",
            "offload_optimizer_device=nvme", "--set", "learning_rate=3e38", NULL);
    expect(&r, 1, "parameters are not finite after the update");
}

/* ---- what is there, and what is not ------------------------------------------------------------------------------ */

static void test_missing_devices(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = config_of(dir, "bf16"), *out = run_format("output_dir=%s/none", dir);
    const char *none = "device \"cuda:77\": "; /* of a kind, or of that number */
    run_result r = run((run_opts){0}, "train", config, "--set", out, "--set", "memory.device=cuda:77", NULL);
    expect(&r, 2, none);
    r = run((run_opts){0}, "plan", config, "--set", "memory.device=cuda:77", NULL);
    expect(&r, 2, "give memory.device_budget to plan for one that is elsewhere");
    r = run((run_opts){0}, "plan", config, "--set", "memory.device=cuda:77", "--set", "memory.device_budget=64MiB",
            NULL);
    expect(&r, 0, "is planned for, and not here");
    r = run(fake, "train", config, "--set", out, "--set", "memory.device=cuda:1", NULL);
    expect(&r, 2, "this machine has 1 of its kind");
    /* more than it has: before anything is planned, in every command */
    static const char *const much[] = {"--set", "memory.device_budget=5GiB"};
    r = run(fake, "train", config, "--set", out, "--set", "memory.device=cuda:0", much[0], much[1], NULL);
    expect(&r, 2, "device \"cuda:0\": 5.00 GiB are asked for and ");
    r = run(fake, "plan", config, "--set", "memory.device=cuda:0", much[0], much[1], NULL);
    expect(&r, 2, "device \"cuda:0\": 5.00 GiB are asked for and ");
    r = run(fake, "eval", "--model", MODEL, "--data", run_path(dir, "rows.safetensors"), "--device", "cuda:0",
            "--device-budget", "5GiB", NULL);
    expect(&r, 2, "device \"cuda:0\": 5.00 GiB are asked for and ");
    r = run(fake, "train", config, "--set", out, "--set", "memory.device=cuda:0", "--set", "memory.host_budget=400MiB",
            NULL);
    expect(&r, 2, "memory.host_budget"); /* driver and libraries are in it */
}

/* ---- commands that only go forward ------------------------------------------------------------------------------- */

static void test_forward_commands(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "rows.safetensors");
    double loss[2];
    (void)config_of(dir, "bf16");
    for (int i = 0; i < 2; i++) {
        run_result r =
            run(fake, "eval", "--model", MODEL, "--data", rows, "--json", i ? "--device" : NULL, "cuda:0", NULL);
        RUN_OK(&r);
        assert_int_equal(strstr(r.err, "is untested") != NULL, i);
        loss[i] = strtod(strstr(r.out, "\"loss\": ") + 8, NULL);
        run_free(&r);
    }
    assert_true(loss[0] > 1 && fabs(loss[0] - loss[1]) < 1e-5 * loss[0]);
}

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

/* 74 tokens, so a second tile; drawn, so that a probability that is wrong shows. */
static run_result drawn(const char *device, const char *budget) {
    return run(
        fake, "generate", "--model", TINY, "--prompt",
        "The tide comes in twice a day, and the mill turns with it; so the miller sleeps in two parts, and knows "
        "the moon better than the sun.",
        "--temperature", "1.5", "--seed", "3", "--max-new-tokens", "6", "--json", "--precision", "fp32", "--device",
        device, budget ? "--device-budget" : NULL, budget, NULL);
}

/* The CPU's text, whether its keys and values stay in the arena or come and go with each token. */
static void test_generation(void **state) {
    (void)state;
    run_result cpu = drawn("cpu", NULL), least = drawn("cuda:0", "1");
    assert_int_equal(least.status, 2);
    unsigned long long bytes = train_minimum(strstr(least.err, "memory.device_budget"));
    const char *const budget[] = {NULL, run_format("%llu", bytes)};
    RUN_OK(&cpu);
    assert_non_null(strstr(cpu.out, "\"finish_reason\""));
    for (size_t i = 0; i < TM_COUNT(budget); i++) {
        run_result cuda = drawn("cuda:0", budget[i]);
        RUN_OK(&cuda);
        assert_string_equal(cuda.out, cpu.out);
        run_free(&cuda);
    }
    run_free(&cpu);
    run_free(&least);
}

/* Several rows side by side, each at its own position. */
static void test_answers(void **state) {
    (void)state;
    const char *dir = run_dir(), *data = run_path(dir, "asked.jsonl"), *said[2];
    static const char *const asked[] = {"When does the tide come in?", "Who?", "Is the mill awake, or is it the sun?"};
    const char *text = "";
    for (size_t i = 0; i < TM_COUNT(asked); i++)
        text = run_format("%s{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", "
                          "\"content\": \"No.\"}]}\n",
                          text, asked[i]);
    run_write(data, text);
    for (int i = 0; i < 2; i++) {
        run_result r = run(fake, "eval", "--model", TINY, "--data", data, "--exact-match", "--show", "3",
                           "--max-new-tokens", "4", "--device", i ? "cuda:0" : "cpu", NULL);
        RUN_OK(&r);
        const char *answers = strstr(r.err, "    wanted");
        assert_non_null(answers);
        said[i] = run_format("%s", answers);
        run_free(&r);
    }
    assert_string_equal(said[1], said[0]);
}

/* A device that fails hides none of those behind it. */
static void test_doctor(void **state) {
    (void)state;
    run_result r = run(fake_three, "doctor", NULL);
    assert_non_null(strstr(r.out, "cuda:0"));
    assert_non_null(strstr(r.out, "compute capability 7.0: at least") ? r.out
                                                                      : strstr(r.out, "at least 7.5 is needed"));
    assert_non_null(strstr(r.out, "cuda:2"));
    assert_null(strstr(r.out, "cuda:3"));
    assert_non_null(strstr(r.out, "never run on such a device"));
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_as_cpu),     cmocka_unit_test(test_one_hash),
                                       cmocka_unit_test(test_going_on),        cmocka_unit_test(test_replay),
                                       cmocka_unit_test(test_missing_devices), cmocka_unit_test(test_forward_commands),
                                       cmocka_unit_test(test_generation),      cmocka_unit_test(test_answers),
                                       cmocka_unit_test(test_diverging),       cmocka_unit_test(test_doctor)};
    return cmocka_run_group_tests(tests, NULL, run_clean);
}
