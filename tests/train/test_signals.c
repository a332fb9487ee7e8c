/* A request to stop, wherever the program is: reading data, planning, importing, between steps; a terminal that is gone;
 * output that nobody reads. Signals in the midst of steps are train_commit's. */
#include "run.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 40, LINES = 400 };

typedef struct scene {
    const char *dir, *model, *config, *output, *offload;
} scene;

static void write_model(const char *dir) {
    (void)mkdir(dir, 0700);
    run_write(run_path(dir, "config.json"),
              "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 32,\n"
              " \"intermediate_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
              " \"num_key_value_heads\": 1, \"vocab_size\": 512, \"max_position_embeddings\": 64,\n"
              " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
              " \"tie_word_embeddings\": true, \"initializer_range\": 0.02}\n");
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(dir, "tokenizer.json"));
}

static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    const char *data = run_path(s.dir, "data.jsonl");
    tm_buf lines = {0};
    s.model = run_path(s.dir, "model");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    write_model(s.model);
    assert_int_equal(mkdir(s.offload, 0700), 0);
    for (int i = 0; i < LINES; i++)
        RUN_EXPECT_STATUS(tm_buf_printf(&lines, "{\"text\": \"the tide comes in, %d times a day\"}\n", i));
    run_write(data, lines.data);
    tm_buf_free(&lines);
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\", \"seq_len\": 32},"
                         " \"precision\": \"bf16\", \"max_steps\": %d, \"learning_rate\": 0.01, \"commit_steps\": 4,"
                         " \"memory\": {\"cache\": \"none\"}, \"output_dir\": \"%s\", \"zero_optimization\": {"
                         " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
                         " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                         s.model, data, STEPS, s.output, s.offload, s.offload));
    return s;
}

static void expect(run_result *r, int status, const char *said) {
    if (r->status != status || (said && !strstr(r->err, said)))
        fail_msg("exit status %d (expected %d, \"%s\"); stderr:\n%s", r->status, status, said ? said : "", r->err);
    run_free(r);
}

static run_result train(const scene *s, const run_opts *o) {
    return run_argv(o, (const char *const[]){"train", s->config, NULL});
}

static const char *finished(const scene *s) {
    run_result r = train(s, &(run_opts){0});
    RUN_OK(&r);
    run_free(&r);
    train_log log = train_log_read(s->output); /* every step once, in order */
    assert_int_equal(log.steps, STEPS);
    assert_int_equal(run_entries(s->offload), 0);
    return run_format("%s", log.hash);
}

/* SIGTERM where the program asks for the `poll`-th time. False: it does not ask so often. */
static bool stop_at_poll(const scene *s, const char *command, unsigned poll, int status) {
    const run_opts o = {.signal = SIGTERM, .stop_at = run_format("poll:%u", poll)};
    run_result r = run_argv(&o, (const char *const[]){command, s->config, NULL});
    bool ended = r.status == 0;
    if (!ended && (r.status != status || !strstr(r.err, "stopped by signal 15")))
        fail_msg("%s, poll %u: exit status %d: %s", command, poll, r.status, r.err);
    run_free(&r);
    return !ended;
}

/* ---- every phase before the first step ---------------------------------------------------------------------------- */

/* At the 1st, 2nd, 4th ... time that it asks: with 400 lines of data the first of these are in the scan, those from 400
 * on in planning. */
static void every_phase_stops_and_leaves_nothing(void **state) {
    (void)state;
    static const char *const command[] = {"train", "plan"};
    const scene s = scene_open();
    for (unsigned i = 0; i < TM_COUNT(command); i++) {
        unsigned poll = 1;
        for (; stop_at_poll(&s, command[i], poll, 1); poll *= 2) {
            if (access(s.output, F_OK) == 0) fail_msg("%s, poll %u: OUTPUT_DIR is left", command[i], poll);
            assert_int_equal(run_entries(s.offload), 0);
        }
        print_message("%s asks more than %u times\n", command[i], poll / 2);
        assert_true(poll / 2 > 2 * LINES);
        run_remove(s.output);
    }
}

/* The scan ends at the signal: what it found is not told. */
static void the_scan_stops(void **state) {
    (void)state;
    const scene s = scene_open();
    run_result r = train(&s, &(run_opts){.signal = SIGINT, .stop_at = "poll:2"});
    assert_null(strstr(r.err, " samples, "));
    assert_non_null(strstr(r.err, "stopping; again to stop at once\n"));
    expect(&r, 1, "stopped by signal 2; nothing was committed");
}

/* The state of the life before is as it was, and the exit status says so. */
static void a_commit_stays_whatever_phase_is_stopped(void **state) {
    (void)state;
    static const unsigned polls[] = {1, LINES / 2, LINES + 50, 2 * LINES};
    const scene s = scene_open();
    const char *hash = finished(&s);
    run_remove(s.output);
    run_result r = train(&s, &(run_opts){.signal = SIGTERM, .stop_at = "kill_op:1500"});
    expect(&r, 3, "is committed, the same command goes on from it");
    for (unsigned i = 0; i < TM_COUNT(polls); i++) assert_true(stop_at_poll(&s, "train", polls[i], 3));
    assert_string_equal(finished(&s), hash);
}

/* ---- who asks ---------------------------------------------------------------------------------------------------- */

static void the_first_interrupt_is_acknowledged(void **state) {
    (void)state;
    const scene s = scene_open();
    run_result r = train(&s, &(run_opts){.signal = SIGINT, .stop_at = "kill_op:1500"});
    const char *said = strstr(r.err, "stopping after this step; again to stop at once\n");
    const char *end = strstr(r.err, "stopped by signal 2");
    assert_true(said && end && said < end);
    expect(&r, 3, NULL);
}

static void a_terminal_that_is_gone_is_a_request(void **state) {
    (void)state;
    const scene s = scene_open();
    const char *hash = finished(&s);
    run_remove(s.output);
    run_result r = train(&s, &(run_opts){.signal = SIGHUP, .stop_at = "kill_op:1500"});
    expect(&r, 3, "stopped by signal 1; step ");
    assert_string_equal(finished(&s), hash);
    run_remove(s.output);
    void (*before)(int) = signal(SIGHUP, SIG_IGN); /* as nohup does */
    r = train(&s, &(run_opts){.signal = SIGHUP, .stop_at = "kill_op:1500"});
    (void)signal(SIGHUP, before);
    expect(&r, 0, NULL);
    assert_string_equal(train_log_read(s.output).hash, hash);
}

/* ---- nobody reads ------------------------------------------------------------------------------------------------ */

/* `tidemill ARGUMENTS` with its stdout and stderr (or stdout alone) in a pipe, whose reader goes when `gone` has
 * content. The exit status; 128 + n where signal n ended it. */
static int into_a_pipe(const char *const *arguments, bool both, const char *gone, const char *input) {
    int fd[2], status;
    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *argv[32] = {(char *)(uintptr_t)TM_TEST_BINARY};
        for (unsigned n = 1; arguments[n - 1] && n < 31; n++) argv[n] = (char *)(uintptr_t)arguments[n - 1];
        int in = open(input ? input : "/dev/null", O_RDONLY);
        if (in < 0 || dup2(in, 0) < 0 || dup2(fd[1], 1) < 0 || (both && dup2(fd[1], 2) < 0)) _exit(126);
        close(fd[0]);
        close(fd[1]);
        execv(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    struct stat st;
    for (int ms = 0; gone && ms < 60000 && !(stat(gone, &st) == 0 && st.st_size > 0); ms++) usleep(1000);
    close(fd[0]);
    alarm(300); /* what hangs fails */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    alarm(0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* `train ... 2>&1 | tee log`, and tee is gone. */
static void a_broken_pipe_is_a_request(void **state) {
    (void)state;
    const scene s = scene_open();
    const char *const arguments[] = {"train", s.config, "--set", "max_steps=1000000", NULL};
    assert_int_equal(into_a_pipe(arguments, true, run_path(s.output, "log.jsonl"), NULL), 3);
    run_result r = run_argv(&(run_opts){.signal = SIGTERM, .stop_at = "kill_op:1500"}, arguments);
    expect(&r, 3, "going on from step");
}

/* A filter ends with its reader, as others do; also where whoever started it ignores SIGPIPE. */
static void a_filter_ends_with_its_reader(void **state) {
    (void)state;
    const scene s = scene_open();
    const char *data = run_path(s.dir, "data.jsonl");
    const char *const arguments[] = {"tokenize", "--model", s.model, NULL};
    assert_int_equal(into_a_pipe(arguments, false, NULL, data), 128 + SIGPIPE);
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    int status = into_a_pipe(arguments, false, NULL, data);
    (void)signal(SIGPIPE, before);
    assert_int_equal(status, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_phase_stops_and_leaves_nothing, run_clean),
        cmocka_unit_test_teardown(the_scan_stops, run_clean),
        cmocka_unit_test_teardown(a_commit_stays_whatever_phase_is_stopped, run_clean),
        cmocka_unit_test_teardown(the_first_interrupt_is_acknowledged, run_clean),
        cmocka_unit_test_teardown(a_terminal_that_is_gone_is_a_request, run_clean),
        cmocka_unit_test_teardown(a_broken_pipe_is_a_request, run_clean),
        cmocka_unit_test_teardown(a_filter_ends_with_its_reader, run_clean),
    };
    return cmocka_run_group_tests_name("train_signals", tests, NULL, NULL);
}
