/* Data that do not fit memory, on two ranks: tokenised once, by the first rank, whatever happens to the run; and the run
 * comes to the bits of one that nobody disturbed. */
#include "run.h"
#include "io/file/file.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

typedef struct scene {
    const char *config, *output;
} scene;

/* 12 MB of tokens, where 8 MiB may lie in memory. */
static scene open_scene(void) {
    enum { ROWS = 60000 };
    const char *dir = run_dir(), *config = run_path(dir, "c.json"), *data = run_path(dir, "d.jsonl");
    tm_buf text = {0};
    for (int i = 0; i < ROWS; i++)
        RUN_EXPECT_STATUS(tm_buf_printf(&text,
                                        "{\"text\": \"%d %x %o %d %x %o %d %x %o %d %x %o %d %x %o, and so on until "
                                        "it turned, at %x and %d %x %x %x\"}\n",
                                        i, i, i, i * 7, i * 7, i * 7, i * 11, i * 11, i * 11, i * 101, i * 101, i * 101,
                                        i * 103, i * 103, i * 103, i * 107, i * 109, i * 113, i * 127, i * 131));
    run_write(data, text.data);
    tm_buf_free(&text);
    run_write(config, run_format("{\"model\": \"%s\", \"output_dir\": \"%s/out\", \"data\": {\"train\": \"%s\", "
                                 "\"seq_len\": 128}, \"max_steps\": 6, \"commit_steps\": 1, \"save_steps\": 0, "
                                 "\"train_batch_size\": 4, \"per_device_train_batch_size\": 1, \"strategy\": "
                                 "\"zero3\", \"memory\": {\"allow_tmpfs\": true}}\n",
                                 TINY, dir, data));
    return (scene){config, run_path(dir, "out")};
}

static run_result start(const scene *s, run_opts o) {
    o.ranks = 2;
    return run(o, "train", s->config, NULL);
}

typedef struct tokens {
    unsigned kept, others;
} tokens;

static tm_status count_tokens(void *ctx, const char *name, bool is_dir) {
    tokens *t = ctx;
    (void)is_dir;
    if (strncmp(name, ".tokens-train-", 14) == 0)
        t->kept++;
    else
        t->others += strstr(name, ".tokens-") != NULL;
    return TM_OK;
}

static void expect_tokens(const scene *s, unsigned kept) {
    tokens t = {0};
    RUN_EXPECT_STATUS(tm_list_dir(s->output, count_tokens, &t));
    assert_int_equal(t.kept, kept);
    assert_int_equal(t.others, 0);
}

static void expect_killed(const scene *s, const char *fault, unsigned rank, bool used) {
    run_result r = start(s, (run_opts){.fault = fault, .fault_rank = rank});
    if (r.status == 0 || (strstr(r.err, "which is used") != NULL) != used) fail_msg("%d: %s", r.status, r.err);
    run_free(&r);
    expect_tokens(s, 1);
}

static void tokens_are_made_once(void **state) {
    (void)state;
    scene s = open_scene();
    run_result r = start(&s, (run_opts){0});
    RUN_OK(&r);
    assert_null(strstr(r.err, "which is used"));
    run_free(&r);
    expect_tokens(&s, 0);
    const char *hash = run_format("%s", train_log_read(s.output).hash);
    run_remove(s.output);
    expect_killed(&s, "kill_after_rename:1:kill:once", 0, false);
    expect_killed(&s, "kill_published:1:kill:once", 1, true);
    expect_killed(&s, "kill_before_rename:2:kill:once", 1, true);
    r = start(&s, (run_opts){0});
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "which is used"));
    assert_non_null(strstr(r.err, "going on from step"));
    run_free(&r);
    train_log log = train_log_read(s.output);
    assert_int_equal(log.steps, 6);
    assert_string_equal(log.hash, hash);
    expect_tokens(&s, 0);
}

/* What is wrong with the data is said once, of the first rank. */
static void wrong_data_end_both(void **state) {
    (void)state;
    scene s = open_scene();
    run_result r =
        run((run_opts){.ranks = 2}, "train", s.config, "--set", "data.overlong=error", "--set", "data.seq_len=8", NULL);
    assert_int_equal(r.status, 2);
    const char *first = strstr(r.err, "d.jsonl:1: ");
    assert_non_null(first);
    assert_null(strstr(first + 1, "d.jsonl:1: "));
    run_free(&r);
}

int main(void) {
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(tokens_are_made_once, run_clean),
                                       cmocka_unit_test_teardown(wrong_data_end_both, run_clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
