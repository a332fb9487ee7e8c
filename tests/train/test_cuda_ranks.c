/* Several ranks, each with a device of its own ("cuda" without a number), on the driver that pretends (tests/cuda): the
 * losses of as many ranks on the CPU, to rounding; one hash whatever the strategy and the arenas' sizes; who has which
 * device; more ranks than devices. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"
enum { STEPS = 2, RANKS = 2 };

typedef struct scene {
    const char *dir, *config, *trace;
    const char *env[5]; /* two devices, and a list of what is taken of them */
    unsigned runs;
} scene;

static scene open_scene(void) {
    scene s = {.dir = run_dir()};
    const char *rows = run_path(s.dir, "rows.safetensors");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, true);
    tm_st_close(golden);
    s.config = run_path(s.dir, "config.json");
    run_write(s.config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"bf16\",\n"
                                   " \"max_steps\": %d, \"per_device_train_batch_size\": 1, \"learning_rate\": 1e-2}\n",
                                   MODEL, rows, STEPS));
    s.trace = run_path(s.dir, "taken");
    const char *const env[] = {"LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA, "FAKE_CUDA_DEVICES=2", "FAKE_CUDA_OLD=0",
                               run_format("FAKE_CUDA_TRACE=%s", s.trace), NULL};
    memcpy(s.env, env, sizeof env);
    return s;
}

static train_log train(scene *s, const char *const *sets) {
    const run_opts o = {.ranks = RANKS, .env = s->env, .timeout_s = 60};
    (void)remove(s->trace);
    return run_train(s->config, run_format("%s/out-%u", s->dir, s->runs++), 0, &o, sets);
}

/* Bytes taken of each device by the latest run. */
static void taken(const scene *s, unsigned long long of[2]) {
    char *text = run_read(s->trace, NULL), *at = text;
    of[0] = of[1] = 0;
    while (*at) {
        unsigned long device = strtoul(at, &at, 10);
        assert_true(device < 2);
        of[device] += strtoull(at, &at, 10);
        while (*at == '\n') at++;
    }
    free(text);
}

static void expect(run_result *r, int status, const char *text) {
    if (r->status != status || !strstr(r->err, text)) fail_msg("exit %d, %s", r->status, r->err);
    assert_int_equal(run_error_lines(r->err, &(const char *){NULL}), 1); /* one of the ranks says it */
    run_free(r);
}

static void test_one_each(void **state) {
    (void)state;
    scene s = open_scene();
    unsigned long long of[2], first;
    train_log cpu = train(&s, SETS("memory.device=cpu", "strategy=zero1"));
    train_log one = train(&s, SETS("memory.device=cuda", "strategy=zero3"));
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(cpu.step[i].loss - one.step[i].loss) <= 5e-3 * cpu.step[i].loss))
            fail_msg("step %d: loss %.9g and %.9g", i + 1, cpu.step[i].loss, one.step[i].loss);
    taken(&s, of);
    assert_true(of[0] > 0 && of[1] > 0);
    first = of[0];
    train_log least = train(&s, SETS("memory.device=cuda", "memory.device_budget=400KiB", "strategy=zero1"));
    assert_string_equal(least.hash, one.hash);
    taken(&s, of);
    assert_true(of[0] > 0 && of[0] < first && of[1] > 0 && of[1] < first);
    /* A number is the same device for all of a node, each with its part of it. */
    train_log both = train(&s, SETS("memory.device=cuda:1", "memory.device_budget=4MiB", "strategy=zero2"));
    assert_string_equal(both.hash, one.hash);
    taken(&s, of);
    assert_true(of[0] == 0 && of[1] > 0);
}

/* One of the ranks says it; all have ended. */
static void test_refused(void **state) {
    (void)state;
    scene s = open_scene();
    const char *out = run_format("output_dir=%s/none", s.dir);
    run_opts o = {.ranks = 3, .env = s.env, .timeout_s = 60};
    run_result r = run(o, "train", s.config, "--set", out, "--set", "memory.device=cuda", NULL);
    assert_non_null(strstr(r.err, "which shows them 2 of the kind: start at most 2 there"));
    expect(&r, 2, "memory.device \"cuda\": 3 ranks on ");
    o.ranks = RANKS;
    r = run(o, "train", s.config, "--set", out, "--set", "memory.device=cuda:1", NULL);
    expect(&r, 2, "\"cuda\" without a number gives each a device of its own");
    /* the second device is too old: its rank's affair, and the end of all */
    s.env[2] = "FAKE_CUDA_OLD=1";
    r = run(o, "train", s.config, "--set", out, "--set", "memory.device=cuda", NULL);
    assert_non_null(strstr(r.err, "device \"cuda:1\""));
    expect(&r, 2, "at least 7.5 is needed");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_each), cmocka_unit_test(test_refused)};
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        print_message("SKIP: no mpirun\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, run_clean);
}
