/* Several ranks, each with a device of its own ("cuda" without a number), on the driver that pretends (tests/cuda): the
 * losses of as many ranks on the CPU, to rounding; one hash whatever the strategy and the arenas' sizes; who has which
 * device; more ranks than devices. */
#include "io/file/file.h"
#include "run.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"
enum { STEPS = 2, RANKS = 2 };

typedef struct scene {
    const char *dir, *config, *trace;
    const char *sent;
    const char *env[6]; /* two devices, and lists of what is taken of them, and sent between them */
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
    s.sent = run_path(s.dir, "sent");
    const char *const env[] = {"LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA,
                               "FAKE_CUDA_DEVICES=2",
                               "FAKE_CUDA_OLD=0",
                               run_format("FAKE_CUDA_TRACE=%s", s.trace),
                               run_format("FAKE_NCCL_TRACE=%s", s.sent),
                               NULL};
    memcpy(s.env, env, sizeof env);
    return s;
}

static train_log train(scene *s, const char *const *sets) {
    const run_opts o = {.ranks = RANKS, .env = s->env, .timeout_s = 60};
    (void)remove(s->trace);
    (void)remove(s->sent);
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

/* The last line of a number in the latest run's log. */
static unsigned long long logged(const scene *s, const char *key) {
    unsigned long long v = 0;
    char *text = run_read(run_format("%s/out-%u/log.jsonl", s->dir, s->runs - 1), NULL), *at = NULL, *next = text;
    while ((next = strstr(next, key)) != NULL) at = next++;
    if (!at || sscanf(at + strlen(key), ": %llu", &v) != 1) fail_msg("no %s", key);
    free(text);
    return v;
}

/* Bytes that ranks of the latest run sent from device to device. */
static unsigned long long sent_there(const scene *s) {
    unsigned long long all = 0;
    if (!tm_path_exists(s->sent)) return 0;
    char *text = run_read(s->sent, NULL), *at = text;
    while (*at) {
        all += strtoull(at, &at, 10);
        while (*at == '\n') at++;
    }
    free(text);
    return all;
}

/* Weights gathered and gradients summed from arena to arena: the bits of host memory between, whatever the strategy,
 * the arena, the update; as many bytes sent, and, where slices are gathered, fewer copied. */
static void test_exchange(void **state) {
    (void)state;
    scene s = open_scene();
    static const char *const strategy[] = {"strategy=zero3", "strategy=zero2", "strategy=ddp"};
    static const char *const arena[] = {"memory.device_budget=16MiB", "memory.device_budget=400KiB"};
    char hash[40] = "";
    for (unsigned i = 0; i < TM_COUNT(strategy); i++)
        for (unsigned k = 0; k < TM_COUNT(arena); k++) {
            const char *update = k ? "memory.update=F" : "memory.update=U";
            const char *const *sets = SETS("memory.device=cuda", "memory.exchange=host", strategy[i], arena[k], update);
            train_log host = train(&s, sets);
            unsigned long long copied = logged(&s, "\"h2d_bytes\""), sent = logged(&s, "\"in_node\"");
            assert_true(sent > 0 && sent_there(&s) == 0);
            sets = SETS("memory.device=cuda", k ? "memory.exchange=auto" : "memory.exchange=device", strategy[i],
                        arena[k], update);
            train_log there = train(&s, sets);
            assert_int_equal(logged(&s, "\"in_node\""), sent);
            assert_true(sent_there(&s) > STEPS * sent); /* of both ranks, but for what is not gathered or summed */
            if (i == 0) assert_true(logged(&s, "\"h2d_bytes\"") < copied);
            if (!*hash) memcpy(hash, host.hash, sizeof hash);
            assert_string_equal(host.hash, hash);
            assert_string_equal(there.hash, hash);
        }
    const char *out = run_format("output_dir=%s/none", s.dir);
    run_opts o = {.ranks = RANKS, .env = s.env, .timeout_s = 60};
    run_result r = run(o, "train", s.config, "--set", out, "--set", "memory.device=cuda", "--set",
                       "memory.exchange=device", "--set", "strategy=hpz", NULL);
    expect(&r, 2, "memory.exchange device: hsdp and hpz exchange through host memory; use auto");
    r = run(o, "train", s.config, "--set", out, "--set", "memory.exchange=device", NULL);
    expect(&r, 2, "memory.exchange device: memory.device has to be \"cuda\", without a number");
}

/* A rank that dies while others wait for what its device would have sent: the job ends, and goes on to the same state.
 */
static void test_killed(void **state) {
    (void)state;
    scene s = open_scene();
    const char *output = run_path(s.dir, "killed");
    const char *const *sets =
        SETS("memory.device=cuda", "memory.exchange=device", "memory.device_budget=16MiB", "commit_steps=1");
    train_log whole = train(&s, sets);
    run_opts o = {.ranks = RANKS, .env = s.env, .timeout_s = 60, .fault = "kill_op:150:now:once", .fault_rank = 1};
    for (int again = 0; again < 2; again++, o.fault = NULL) {
        const char *arguments[] = {"train", s.config, "--quiet", "--set", run_format("output_dir=%s", output),
                                   "--set", sets[0],  "--set",   sets[1], "--set",
                                   sets[2], "--set",  sets[3],   NULL};
        run_result r = run_argv(&o, arguments);
        if ((r.status == 0) != again) fail_msg("exit %d: %s", r.status, r.err);
        run_free(&r);
    }
    assert_string_equal(train_log_read(output).hash, whole.hash);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_each), cmocka_unit_test(test_exchange),
                                       cmocka_unit_test(test_killed), cmocka_unit_test(test_refused)};
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    return cmocka_run_group_tests(tests, NULL, run_clean);
}
