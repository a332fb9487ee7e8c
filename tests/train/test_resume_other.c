/* Several ranks go on from another run's OUTPUT_DIR: to the bits of a run that was never divided, by another strategy,
 * and the run whose state it is keeps it. */
#include "io/file/file.h"
#include "run.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HALF = 2, STEPS = 4 };

static const char *job(const char *dir) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 3, 16, true);
    tm_st_close(golden);
    run_write(config,
              run_format("{\"model\": \"%s/arch_llama\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},"
                         " \"learning_rate\": 0.01, \"lr_scheduler_type\": \"constant\", \"train_batch_size\": 4,"
                         " \"per_device_train_batch_size\": 1, \"strategy\": \"zero3\", \"commit_steps\": 1,"
                         " \"memory\": {\"cache\": \"none\"}, \"zero_optimization\": {"
                         " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/offload\"},"
                         " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/offload\"}}}\n",
                         TM_TEST_FIXTURES, rows, dir, dir));
    return config;
}

static run_result start(const char *config, const char *output, int steps, const char *resume, const char *set) {
    const char *arguments[] = {"train",
                               config,
                               "--quiet",
                               "--set",
                               run_format("output_dir=%s", output),
                               "--set",
                               run_format("max_steps=%d", steps),
                               "--set",
                               set,
                               "--resume",
                               resume,
                               NULL};
    return run_argv(&(run_opts){.ranks = 2}, arguments);
}

static const char *end_hash(const char *output) {
    static const char key[] = "\"state_hash\":";
    char *text = run_read(run_path(output, "log.jsonl"), NULL), *at = strstr(text, key);
    if (!at || !(at = strchr(at + sizeof key - 1, '"'))) fail_msg("%s: no state_hash in its log", output);
    const char *hash = run_format("%.32s", at + 1);
    free(text);
    return hash;
}

/* Of every manifest of the run. */
static uint64_t commits_of(const char *output) {
    tm_json_doc *doc;
    size_t len;
    uint64_t hash = 0, n = 0;
    char *text = run_read(run_path(output, "run.json"), &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "run.json", 0, 0));
    const tm_json *list = tm_json_get(tm_json_root(doc), "run_directories");
    for (const tm_json *d = list->child; d; d = d->next, n++) {
        tm_buf manifest = {0};
        RUN_EXPECT_STATUS(tm_file_slurp(run_path(d->text, "manifest"), TM_MIB, &manifest));
        hash = tm_hash64(manifest.data, manifest.len, hash);
        tm_buf_free(&manifest);
    }
    assert_int_equal(n, 2);
    tm_json_free(doc);
    free(text);
    return hash;
}

static void ranks_go_on_from_another_runs_state(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir);
    const char *whole = run_path(dir, "whole"), *half = run_path(dir, "half"), *rest = run_path(dir, "rest");
    run_result r = start(config, whole, STEPS, "never", "keep_state=false");
    RUN_OK(&r);
    run_free(&r);
    r = start(config, half, HALF, "never", "keep_state=true");
    RUN_OK(&r);
    run_free(&r);
    assert_string_not_equal(end_hash(half), end_hash(whole));
    uint64_t before = commits_of(half);
    r = start(config, rest, STEPS, half, "strategy=ddp");
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "step 2")); /* where it goes on */
    run_free(&r);
    assert_string_equal(end_hash(rest), end_hash(whole));
    assert_true(commits_of(half) == before);
    assert_int_equal(run_entries(run_path(dir, "offload")), 2); /* the first run's two */
}

int main(void) {
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(ranks_go_on_from_another_runs_state, run_clean)};
    return cmocka_run_group_tests_name("train_resume_other", tests, NULL, NULL);
}
