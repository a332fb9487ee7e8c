/* One rank goes on from what two left (elastic.c): their commits, a full checkpoint of both, another run's; and what of
 * it may be damaged, missing or of another run. One start under mpirun makes it, all others are of one process. */
#include "found.h"
#include "tests/support/walk.h"
#include "tests/support/skip.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

static int set_up(void **state) {
    (void)state;
    found_open();
    found_two_ranks();
    if (found_run(&(found_start){0}) != 0 || found.report->status != TM_OK)
        fail_msg("%s\n%s", found.report->text, found_said());
    assert_non_null(strstr(found_said(), "laid out for 2 ranks"));
    snprintf(found.hash, sizeof found.hash, "%s", found_hash());
    return 0;
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static void second_gone(void) {
    walk_gone(found.run[1]);
}
static void second_of_other_layout(void) {
    found_edit_commit(found.run[1], "shards.keep_elements", "77");
}
static void second_of_three(void) {
    found_edit_commit(found.run[1], "shards.ranks", "3");
}
static void second_is_one(void) {
    found_edit_commit(found.run[1], "shards", NULL);
}
static void locked(void) {
    static int fd = -1;
    if (fd >= 0) close(fd);
    fd = open(run_path(found.run[1], "lock"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
}
static void locked_for_a_moment(void) { /* by a rank that its launcher has not ended yet */
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int lock = open(run_path(found.run[1], "lock"), O_RDWR | O_CLOEXEC);
        if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0 || write(ready[1], "", 1) != 1) _exit(9);
        (void)usleep(300000);
        _exit(0);
    }
    close(ready[1]); /* so that it says nothing is heard, too */
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
}
static const char *in_checkpoint(const char *name) {
    return run_format("%s/checkpoint-2/state/%s", found.output, name);
}
static void no_second_in_checkpoint(void) {
    walk_gone(in_checkpoint("run-rank-1"));
}
static void checkpoint_of_another_step(void) { /* a folder of another checkpoint beside it */
    no_second_in_checkpoint();
    if (system(run_format("cp -a %s %s", found.run[1], in_checkpoint("run-rank-1"))) != 0) fail_msg("cp");
    found_edit_commit(in_checkpoint("run-rank-1"), "shards", "{\"ranks\": 2}");
}
/* Newer by their names, and not what they look like. */
static void other_checkpoints(void) {
    static const char *const name[] = {"checkpoint-9", "checkpoint-3x", "checkpoint", "checkpoint-1"};
    found_bad_manifests();
    for (size_t i = 0; i < TM_COUNT(name); i++)
        if (mkdir(run_path(found.output, name[i]), 0700) != 0) fail_msg("%s", name[i]);
    run_write(run_path(found.output, "checkpoint-8"), "a file");
    if (system(run_format("cp -a %s/checkpoint-2/state %s/checkpoint-3x", found.output, found.output)) != 0)
        fail_msg("cp");
}
static void no_second_file(void) {
    assert_int_equal(unlink(run_path(found.run[1], "exp_avg")), 0);
}
static void second_file_cut_off(void) {
    assert_int_equal(truncate(run_path(found.run[1], "weight_hi"), 5000), 0);
}
static void both_gone(void) {
    walk_gone(found.run[0]), second_gone();
}
static void both_gone_and_other_lines(void) {
    const char *log = run_path(found.output, "log.jsonl");
    char *was = run_read(log, NULL);
    run_write(log, run_format("garbage\n[]\n%s{\"event\": 5}\n", was));
    free(was);
    both_gone();
}
static void no_lines(void) {
    run_write(run_path(found.output, "log.jsonl"), "");
}
static void both_gone_and_no_log(void) {
    no_lines();
    both_gone();
}
static void bad_manifests_and_no_checkpoint(void) {
    found_bad_manifests();
    walk_gone(run_path(found.output, "checkpoint-2"));
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define DIRECTORIES "run_directories"
#define BY_RANK "directories_by_rank"

static void test_commits_of_two(void **state) {
    static const found_row rows[] = {
        {.says = "laid out for 2 ranks"},
        {.run_json = DIRECTORIES,
         .value = NULL,
         .status = TM_EINPUT,
         .says = "the list of its directories in run.json is gone"},
        {.run_json = DIRECTORIES,
         .value = "[]",
         .status = TM_EINPUT,
         .says = "the list of its directories in run.json is gone"},
        {.run_json = BY_RANK, .value = "[1, 1, 1]", .status = TM_EINPUT, .says = "directories of 2 of 3 ranks"},
        {.run_json = BY_RANK, .value = "[2, 1]", .status = TM_EINPUT, .says = "directories of 1 of 2 ranks"},
        {.run_json = BY_RANK, .value = "[1]", .status = TM_ECORRUPT, .says = "not of the same run"},
        {.run_json = DIRECTORIES, .value = "[5, 6]", .status = TM_EINPUT, .says = "a directory of its list is gone"},
        {.damage = second_gone, .status = TM_EINPUT, .says = "no such directory"},
        {.damage = both_gone_and_other_lines, .status = TM_EINPUT, .says = "is gone"},
        {.damage = found_no_second_manifest, .says = "is of step 3, not 2", .left = 2},
        {.damage = found_no_manifests, .status = TM_EINPUT, .says = "its log shows commits, and"},
        {.commit = "shards", .value = "{}", .status = TM_ECORRUPT, .says = "which part of the state"},
        {.commit = "shards.own", .value = "[0, 3]", .status = TM_ECORRUPT, .says = "which part of the state"},
        {.commit = "shards.own", .value = "[1, 1]", .status = TM_ECORRUPT, .says = "no commit holds slice 0"},
        {.commit = "shards.weights", .value = "[-1, 1]", .status = TM_ECORRUPT, .says = "which part of the state"},
        {.commit = "shards.weights", .value = "[0]", .status = TM_ECORRUPT, .says = "which part of the state"},
        {.damage = second_of_other_layout, .status = TM_ECORRUPT, .says = "not of the same run"},
        {.damage = second_of_three, .status = TM_ECORRUPT, .says = "not of the same run"},
        {.damage = second_is_one, .status = TM_ECORRUPT, .says = "not of the same run"},
        {.commit = "model", .value = "\"00\"", .status = TM_EINPUT, .says = "config.json is not that of"},
        {.commit = "data", .value = "\"00\"", .status = TM_EINPUT, .says = "holds other samples"},
        {.commit = "config.per_device_train_batch_size", .value = "9", .says = "laid out for 2 ranks"},
        {.commit = "config.seed", .value = "9", .status = TM_EINPUT, .says = "seed was 9, is"},
        {.with = {.set = {"commit_steps=0"}}, .status = TM_EINPUT, .says = "needs commits: set commit_steps"},
        {.damage = locked, .with = {.resume = "never"}, .status = TM_EINPUT, .says = "in use by process"},
    };
    (void)state;
    FOUND_CHECK(rows);
}

static void test_full_checkpoints(void **state) {
    const char *checkpoint = run_path(found.output, "checkpoint-2");
    const found_row rows[] = {
        {.with = {.resume = checkpoint}, .says = "the state of 2 ranks", .left = 2},
        {.damage = no_second_in_checkpoint,
         .with = {.resume = checkpoint},
         .status = TM_EINPUT,
         .says = "1 of 2 ranks' state is there"},
        {.damage = checkpoint_of_another_step,
         .with = {.resume = checkpoint},
         .status = TM_ECORRUPT,
         .says = "which part of the state"},
        {.with = {.resume = checkpoint, .set = {"commit_steps=0"}}, .status = TM_EINPUT, .says = "needs commits"},
        {.with = {.resume = found.output}, .says = "laid out for 2 ranks"},
        {.damage = found_bad_manifests, .says = "going back to the newest full checkpoint", .left = 2},
        {.damage = no_second_file, .says = "exp_avg: is missing, the commit needs it", .left = 2},
        {.damage = no_second_file, .says = "going back to the newest full checkpoint", .left = 2},
        {.damage = second_file_cut_off, .says = "going back to the newest full checkpoint", .left = 2},
        {.damage = bad_manifests_and_no_checkpoint, .status = TM_ECORRUPT, .says = "manifest"},
    };
    (void)state;
    FOUND_CHECK(rows);
    found_put_back();
    other_checkpoints();
    assert_int_equal(found_run(&(found_start){0}), 0);
    if (found.report->status != TM_OK || !strstr(found_said(), "checkpoint-2; what") ||
        strstr(found_said(), "checkpoint-3"))
        fail_msg("%s\n%s", found.report->text, found_said());
    assert_string_equal(found_hash(), found.hash);
}

/* The run in another output_dir keeps its state. */
static void test_of_another_run(void **state) {
    const char *to = run_format("output_dir=%s/other", found.dir), *own = found.output;
    static const struct {
        void (*damage)(void);
        tm_status status;
        const char *says;
    } rows[] = {
        {NULL, TM_OK, "the state of 2 ranks"},
        {locked_for_a_moment, TM_OK, "the state of 2 ranks"},
        {found_no_second_manifest, TM_EINPUT, "its ranks' commits are of different steps"},
        {found_no_manifests, TM_EINPUT, "neither a checkpoint with state nor"},
        {locked, TM_EINPUT, "in use by process"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        found_put_back();
        if (rows[i].damage) rows[i].damage();
        assert_int_equal(found_run(&(found_start){.resume = own, .set = {to}}), 0);
        const char *text = rows[i].status == TM_OK ? found_said() : found.report->text;
        if (found.report->status != rows[i].status || !strstr(text, rows[i].says))
            fail_msg("row %zu: %s: %s", i, tm_status_name(found.report->status), text);
        assert_int_equal(run_entries(found.offload), 2);
        found.output = run_path(found.dir, "other");
        assert_string_equal(found_hash(), rows[i].status == TM_OK ? found.hash : "");
        walk_gone(found.output);
        found.output = own;
    }
}

static void no_manifests_and_no_log(void) {
    no_lines();
    found_no_manifests();
}

/* Before the first commit of any rank nothing can be used: it begins anew, on one rank. */
static void test_begins_anew(void **state) {
    (void)state;
    found_put_back();
    walk_gone(found.output);
    assert_int_equal(found_run(&(found_start){.resume = "never"}), 0);
    const char *fresh = found_hash();
    found_put_back();
    no_manifests_and_no_log();
    assert_int_equal(found_run(&(found_start){0}), 0);
    if (found.report->status != TM_OK) fail_msg("%s", found.report->text);
    assert_non_null(strstr(found_said(), "removed; it holds no commit"));
    assert_string_equal(found_hash(), fresh);
    found_put_back();
    both_gone_and_no_log(); /* nothing is left that knows of a commit */
    assert_int_equal(found_run(&(found_start){0}), 0);
    if (found.report->status != TM_OK) fail_msg("%s", found.report->text);
    assert_string_equal(found_hash(), fresh);
}

static void test_calls_fail(void **state) {
    (void)state;
    found_walk(&(found_start){0}, NULL);
    found_walk(&(found_start){0}, found_bad_manifests);
}

int main(void) {
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commits_of_two), cmocka_unit_test(test_full_checkpoints),
        cmocka_unit_test(test_of_another_run), cmocka_unit_test(test_begins_anew),
        cmocka_unit_test(test_calls_fail),
    };
    return cmocka_run_group_tests_name("train_resume_elastic", tests, set_up, found_close);
}
