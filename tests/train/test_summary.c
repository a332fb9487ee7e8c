/* The last words of a run: how much was written where, held against the log's bytes of every step. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

static const char *job(const char *dir) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 16, false);
    tm_st_close(golden);
    run_write(config, run_format("{\"model\": \"%s/arch_llama\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},"
                                 " \"max_steps\": %d, \"output_dir\": \"%s/out\", \"lr_scheduler_type\": \"constant\","
                                 " \"memory\": {\"cache\": \"none\", \"update\": \"U\", \"allow_tmpfs\": true},"
                                 " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\":"
                                 " [\"%s/a\", \"%s/b\"]}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\":"
                                 " [\"%s/a\", \"%s/b\"]}}}\n",
                                 TM_TEST_FIXTURES, rows, STEPS, dir, dir, dir, dir, dir));
    return config;
}

/* A line for each path: "wear: 0.012 GB written to PATH/run-...; steps write 0.345 TB per 1,000". */
static void wear_is_what_was_written(void **state) {
    (void)state;
    const char *dir = run_dir();
    run_result r = run((run_opts){0}, "train", job(dir), NULL);
    RUN_OK(&r);
    train_log log = train_log_read(run_path(dir, "out"));
    double all = 0, per_1000 = 0;
    for (int i = 0; i < 2; i++) {
        const char *path = run_format("GB written to %s/%c/run-", dir, 'a' + i), *line = strstr(r.err, path);
        if (!line) fail_msg("no line for %s in: %s", path, r.err);
        double gigabytes = 0, terabytes = 0;
        while (line > r.err && line[-1] != '\n') line--;
        const char *steps = strstr(line, "; steps write ");
        assert_non_null(steps);
        assert_int_equal(sscanf(strstr(line, "wear: "), "wear: %lf GB", &gigabytes), 1);
        assert_int_equal(sscanf(steps, "; steps write %lf TB per 1,000\n", &terabytes), 1);
        assert_true(gigabytes > 0 && terabytes > 0);
        all += gigabytes, per_1000 += terabytes;
    }
    uint64_t written = 0;
    for (int i = 0; i < STEPS; i++) written += log.step[i].write_bytes;
    double step = 1000e-12 * (double)log.step[0].planned_write;
    assert_true(all * 1e9 + 1e6 > (double)written); /* and what the import and the commits wrote; a line has MB */
    assert_true(all * 1e9 - 1e6 < 4 * (double)written);
    if (per_1000 < step * 0.99 || per_1000 > step * 1.01) fail_msg("%g TB per 1,000 steps, not %g", per_1000, step);
    run_free(&r);
}

/* All of the state is in memory, and only commits write: the last line counts them, as the wear of the path does. */
static void commits_count_as_written(void **state) {
    (void)state;
    const char *dir = run_dir(), *line;
    double wrote = 0, wear = 0;
    run_random_model(run_path(dir, "model"));
    run_result r =
        run((run_opts){0}, "train", job(dir), "--set", run_format("model=%s/model", dir), "--set", "init=random",
            "--set", "zero_optimization=null", "--set", "memory.cache=auto", "--set", "commit_steps=1", NULL);
    RUN_OK(&r);
    line = strstr(r.err, ", wrote ");
    assert_true(line && sscanf(line, ", wrote %lf GB", &wrote) == 1);
    line = strstr(r.err, "wear: ");
    assert_true(line && sscanf(line, "wear: %lf GB", &wear) == 1);
    if (wrote != wear || wrote < 0.01) fail_msg("wrote %g GB, but wear is %g GB", wrote, wear);
    run_free(&r);
}

/* All in memory: no disk wears, and nothing is said of it. */
static void nothing_wears_in_memory(void **state) {
    (void)state;
    const char *dir = run_dir();
    run_result r = run((run_opts){0}, "train", job(dir), "--set", "zero_optimization=null", "--set", "commit_steps=0",
                       "--set", "memory.cache=auto", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "done: 3 steps"));
    assert_null(strstr(r.err, "wear: "));
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(wear_is_what_was_written, run_clean),
        cmocka_unit_test_teardown(commits_count_as_written, run_clean),
        cmocka_unit_test_teardown(nothing_wears_in_memory, run_clean),
    };
    return cmocka_run_group_tests_name("train_summary", tests, NULL, NULL);
}
