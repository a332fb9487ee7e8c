/* The run as a person sees it on a terminal: a live line that fits, a history that stays, last words of their own. */
#include "io/file/file.h"
#include "run.h"
#include "tests/support/screen.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Warnings and notes are left out, so that all that is seen is progress: those lines may be longer than a terminal. */
static const char *job(const char *dir, int steps) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 16, false);
    tm_st_close(golden);
    RUN_EXPECT_STATUS(tm_make_dirs(run_path(dir, "offload")));
    run_write(config, run_format("{\"model\": \"%s/arch_llama\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},"
                                 " \"max_steps\": %d, \"output_dir\": \"%s/out\", \"lr_scheduler_type\": \"constant\","
                                 " \"memory\": {\"allow_tmpfs\": true, \"slots\": 2}, \"commit_steps\": 1000000,"
                                 " \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\","
                                 " \"nvme_path\": \"%s/offload\"}}}\n",
                                 TM_TEST_FIXTURES, rows, steps, dir, dir));
    return config;
}

/* `trace`: NULL, or where --trace writes. */
static pid_t start(screen *s, unsigned columns, const char *config, const char *trace) {
    memset(s, 0, sizeof *s);
    s->columns = columns;
    assert_true(screen_open(s));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("TERM", "xterm", 1);
        setenv("TIDEMILL_LOG", "error", 1);
        (void)dup2(s->slave, STDERR_FILENO);
        execl(TM_TEST_BINARY, "tidemill", "train", config, trace ? "--trace" : NULL, trace, (char *)NULL);
        _exit(127);
    }
    close(s->slave);
    s->slave = -1;
    return pid;
}

static int finish(screen *s, pid_t pid) {
    int status = 0;
    while (screen_take(s)) {
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    screen_close(s);
    if (*s->strange) fail_msg("a control character that terminals do not agree on: %s", s->strange);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Rows that are not empty; each is one line of the history. */
static unsigned history(screen *s) {
    unsigned rows = 0;
    int last = 0, step = 0, total = 0;
    double loss;
    for (unsigned r = 0; r <= s->row; r++) {
        const char *line = screen_line(s, r);
        if (!*line) continue;
        if (sscanf(line, "step %d/%d  loss %lf", &step, &total, &loss) != 3)
            fail_msg("row %u is no line of the history: %s", r, line);
        assert_true(step > last && step <= total);
        last = step;
        rows++;
    }
    assert_int_equal(last, total);
    return rows;
}

static void fits_at(unsigned columns) {
    screen *s = malloc(sizeof *s);
    assert_non_null(s);
    const char *dir = run_dir();
    assert_int_equal(finish(s, start(s, columns, job(dir, 40), NULL)), 0);
    assert_int_equal(s->wrapped, 0);
    assert_int_equal(history(s), 11); /* the first step and each tenth */
    free(s);
}

static void nothing_wraps(void **state) {
    (void)state;
    fits_at(80);
    fits_at(40);
}

/* Runs until some steps are seen, is interrupted, and says its last word on a row of its own. */
static int64_t interrupted(const char *config, const char *trace, screen *s) {
    pid_t pid = start(s, 100, config, trace);
    for (int i = 0, at = 0; i < 600 && at < 300; i++) {
        (void)screen_take(s);
        (void)sscanf(screen_line(s, s->row), "step %d", &at);
    }
    (void)kill(pid, SIGINT);
    assert_int_equal(finish(s, pid), 3);
    unsigned r = s->row;
    while (r > 0 && !*screen_line(s, r)) r--;
    int64_t step = -1;
    const char *last = screen_line(s, r), *at = strstr(last, "step ");
    if (strncmp(last, "tidemill: stopped by signal 2", 29) != 0) fail_msg("the last row is: %s", last);
    while (at && sscanf(at, "step %ld is committed", &step) != 1) at = strstr(at + 1, "step ");
    assert_true(step > 0);
    return step;
}

static double step_seconds(const char *path, int step) {
    char *log = run_read(path, NULL);
    const char *line = strstr(log, run_format("{\"step\": %d,", step));
    const char *at = line ? strstr(line, "\"step_seconds\": ") : NULL;
    double seconds = at ? strtod(at + 16, NULL) : 0;
    free(log);
    return seconds;
}

/* After a resume the time left goes by the steps of the process that shows it. */
static void time_left_after_a_resume(void **state) {
    (void)state;
    enum { STEPS = 2000000 };
    screen *s = malloc(sizeof *s);
    assert_non_null(s);
    const char *dir = run_dir(), *config = job(dir, STEPS);
    int64_t step = interrupted(config, NULL, s);
    pid_t pid = start(s, 100, config, NULL);
    int at = 0;
    int64_t days = 0, hours = 0, minutes = 0;
    char left[24] = "";
    for (int i = 0; i < 600 && !at; i++) {
        (void)screen_take(s);
        if (sscanf(screen_line(s, 0), "step %d/%*d  loss %*f  left %23s", &at, left) != 2) at = 0;
    }
    (void)kill(pid, SIGINT);
    (void)finish(s, pid);
    assert_int_equal(at, step + 1);
    if (strchr(left, 'd'))
        assert_int_equal(sscanf(left, "%ldd%ldh", &days, &hours), 2);
    else
        assert_int_equal(sscanf(left, "%ld:%ld", &hours, &minutes), 2);
    double seconds = step_seconds(run_path(dir, "out/log.jsonl"), at),
           said = (double)(((days * 24 + hours) * 60 + minutes) * 60 + 3660);
    assert_true(seconds > 0);
    if (said < seconds * (STEPS - at)) fail_msg("left %s, but step %d took %g s", left, at, seconds);
    free(s);
}

/* The steps until then are all there is to look at: the file is complete JSON of all of them. */
static void trace_outlives_an_interrupt(void **state) {
    (void)state;
    screen *s = malloc(sizeof *s);
    assert_non_null(s);
    const char *dir = run_dir(), *trace = run_path(dir, "trace.json");
    int64_t step = interrupted(job(dir, 2000000), trace, s);
    size_t len;
    char *text = run_read(trace, &len);
    tm_json_doc *doc;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "trace", 0, TM_GIB));
    assert_non_null(strstr(text, run_format("step %ld", step)));
    tm_json_free(doc);
    free(text);
    free(s);
}

/* `train ... 2>&1 | tee`: no control characters, and few lines. */
static void plain_lines_in_a_pipe(void **state) {
    (void)state;
    const char *dir = run_dir(), *quiet[] = {"TIDEMILL_LOG=error", NULL};
    run_result r = run((run_opts){.env = quiet}, "train", job(dir, 200), NULL);
    RUN_OK(&r);
    unsigned lines = 0;
    for (const char *c = r.err; *c; c++) {
        assert_true(*c == '\n' || (unsigned char)*c >= 0x20);
        lines += *c == '\n';
    }
    assert_int_equal(lines, 11);
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_wraps, run_clean),
        cmocka_unit_test_teardown(time_left_after_a_resume, run_clean),
        cmocka_unit_test_teardown(trace_outlives_an_interrupt, run_clean),
        cmocka_unit_test_teardown(plain_lines_in_a_pipe, run_clean),
    };
    return cmocka_run_group_tests_name("train_progress", tests, NULL, NULL);
}
