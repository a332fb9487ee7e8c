/* An interrupted run of one rank whose commit, run.json, log or folder says something else than was written: refused
 * for the right reason, or gone on with to the same bits. */
#include "found.h"
#include "tests/support/walk.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

/* A whole run's hash, then one that dies right after it has published its second commit. */
static int set_up(void **state) {
    (void)state;
    found_open();
    if (found_run(&(found_start){0}) != 0 || found.report->status != TM_OK)
        fail_msg("%s\n%s", found.report->text, found_said());
    snprintf(found.hash, sizeof found.hash, "%s", train_log_read(found.output).hash);
    walk_gone(found.output);
    assert_int_equal(found_run(&(found_start){.fault = "kill_published:2:kill:once"}), SIGKILL);
    found_save();
    return 0;
}

/* ---- a commit that says something else --------------------------------------------------------------------------- */

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

static void test_commits_of_another_job(void **state) {
    static const found_row rows[] = {
        {.says = "going on from step 2"},
        {.commit = "model", .value = "\"0000000000000000\"", .status = TM_EINPUT, .says = "config.json is not that of"},
        {.commit = "model", .value = NULL, .status = TM_EINPUT, .says = "config.json is not that of"},
        {.commit = "data", .value = "\"0000000000000000\"", .status = TM_EINPUT, .says = "holds other samples"},
        {.commit = "config", .value = NULL, .status = TM_ECORRUPT, .says = "holds no configuration"},
        {.commit = "config.learning_rate", .value = "0.5", .status = TM_EINPUT, .says = "learning_rate"},
        {.commit = "config.surprise", .value = "true", .status = TM_EINPUT, .says = "surprise was true, is nothing"},
        {.commit = "config.seed", .value = NULL, .status = TM_EINPUT, .says = "seed was nothing, is"},
        {.commit = "config.memory", .value = "{}", .says = "going on from step 2"},
        {.commit = "numerics", .value = "\"abacus\"", .status = TM_EINPUT, .says = "computed with \"abacus\""},
        {.commit = "numerics", .value = "7", .status = TM_EINPUT, .says = "computed with \"unknown\""},
        {.commit = "numerics", .value = NULL, .with = {.numerics = true}, .says = "with \"unknown\" so far"},
        {.commit = "step", .value = "3", .status = TM_ECORRUPT, .says = "do not belong together"},
        {.commit = "step", .value = "\"2\"", .status = TM_ECORRUPT, .says = "do not belong together"},
        {.commit = "applied", .value = "-1", .status = TM_ECORRUPT, .says = "do not belong together"},
        {.commit = "total_steps", .value = "9", .says = "was to take 9 steps, now 4"},
        {.with = {.set = {"max_steps=1"}}, .status = TM_EINPUT, .says = "has done 2 steps, max_steps is 1"},
        {.commit = "shards", .value = "{}", .status = TM_ECORRUPT, .says = "which part of the state"},
        {.commit = "shards",
         .value = "{\"ranks\": 2, \"keep_elements\": 0, \"weights\": [0, 1], \"own\": [1, 2]}",
         .status = TM_ECORRUPT,
         .says = "which part of the state"},
        {.commit = "shards",
         .value = "{\"ranks\": 2, \"keep_elements\": 0, \"weights\": [0, 1], \"own\": [1, 1]}",
         .status = TM_EUNSUPPORTED,
         .says = "holds one of 2 ranks' share"},
        {.commit = "output_dir", .value = "5", .says = "going on from step 2"},
        {.commit = "unfinished", .value = "true", .says = "going on from step 2"},
        {.commit = "best", .value = "{\"step\": \"x\"}", .says = "going on from step 2"},
        {.commit = "checkpoints", .value = "[1, \"x\"]", .with = {.set = {"save_total_limit=2"}}},
    };
    (void)state;
    FOUND_CHECK(rows);
}

/* ---- run.json ---------------------------------------------------------------------------------------------------- */

static void half_run_json(void) {
    run_write(run_path(found.output, "run.json"), "{\"status\": \"runn");
}
static void no_manifest(void) {
    assert_int_equal(unlink(run_path(found.run[0], "manifest")), 0);
}
static void no_directory(void) {
    walk_gone(found.run[0]);
}
static void bad_manifest(void) {
    run_write(run_path(found.run[0], "manifest"), "tidemill commit");
}
static void no_lines(void) {
    run_write(run_path(found.output, "log.jsonl"), "");
}
static void no_commit_yet(void) {
    no_manifest(), no_lines();
}
/* As of one that was killed before it made its owner, or while it was removed. */
static void no_owner(void) {
    no_lines();
    walk_gone(found.run[0]);
    assert_int_equal(mkdir(found.run[0], 0700), 0);
    run_write(run_path(found.run[0], "lock"), "");
}
static void another_key(void) {
    found_edit_run_json("key", "\"0123456789abcdef0123456789abcdef\"");
}
static void no_commit_and_another_key(void) {
    no_commit_yet(), another_key();
}
static void no_run_json(void) {
    assert_int_equal(unlink(run_path(found.output, "run.json")), 0);
}
static void no_run_json_and_no_manifest(void) {
    no_run_json(), no_manifest();
}
static void no_run_json_and_a_part(void) {
    no_run_json_and_no_manifest();
    run_write(run_path(found.run[0], "part-of"), "elsewhere\n");
}
static void no_run_json_and_no_commit(void) {
    no_run_json(), no_commit_yet();
}
/* Beside what its first life left, what only looks like this run's. */
static void nameless_and_neighbours(void) {
    const char *hash = strstr(found.run[0], "/run-");
    assert_non_null(hash);
    const char *name = run_format("%.*s", (int)(hash - found.run[0]) + 5 + 12, found.run[0]);
    no_commit_yet();
    found_edit_run_json("run_directories", "[]");
    run_write(run_format("%s-a-file", name), "x");
    if (mkdir(name, 0700) != 0 || mkdir(run_format("%sx", name), 0700) != 0) fail_msg("%s", name);
}
/* Before its first commit, and at work: this process has the lock. */
static void lock_it(void) {
    static int fd = -1;
    if (fd >= 0) close(fd);
    fd = open(run_path(found.run[0], "lock"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
}
static void at_work(void) {
    no_manifest(), lock_it();
}
static void at_work_nameless(void) {
    no_run_json(), at_work();
}
static void kept_and_finished(void) {
    found_edit_run_json("status", "\"finished\""), found_edit_run_json("step", "4"),
        found_edit_run_json("config.keep_state", "true");
}
static void finished_early(void) { /* killed when it was about to remove its state */
    found_edit_run_json("status", "\"finished\""), found_edit_run_json("step", "2");
}
static void finished_and_tidied(void) {
    found_edit_run_json("status", "\"finished\""), found_edit_run_json("step", "4"), no_manifest();
}

static void test_run_json(void **state) {
    static const found_row rows[] = {
        {.damage = half_run_json, .status = TM_EINPUT, .says = "run.json:1:"},
        {.damage = half_run_json, .with = {.resume = "never"}, .left = 1},
        {.run_json = "run_directories", .value = NULL, .status = TM_EINPUT, .says = "directories in run.json is gone"},
        {.run_json = "run_directories", .value = "[5]", .status = TM_EINPUT, .says = "a directory of its list is gone"},
        {.run_json = "run_directories", .value = "[]", .status = TM_EINPUT, .says = "directories in run.json is gone"},
        {.damage = no_directory, .status = TM_EINPUT, .says = "is gone"},
        {.damage = no_manifest, .status = TM_EINPUT, .says = "its log shows commits, and"},
        {.damage = no_commit_yet, .says = "removed; it holds no commit"},
        {.damage = no_owner},
        {.damage = another_key, .status = TM_EINPUT, .says = "belongs to another run"},
        {.damage = no_commit_and_another_key, .says = "it is another run's: left alone", .left = 1},
        {.run_json = "key", .value = NULL, .status = TM_EINPUT, .says = "belongs to another run"},
        {.damage = bad_manifest, .status = TM_ECORRUPT, .says = "manifest"},
        {.damage = finished_early,
         .with = {.set = {"max_steps=2", "learning_rate=0.5"}},
         .status = TM_EINPUT,
         .says = "a finished run of 2 steps of another job: lr was 0.01, is 0.5"},
        {.damage = finished_early,
         .with = {.set = {"max_steps=1"}},
         .status = TM_EINPUT,
         .says = "a finished run of 2 steps of another job: max_steps gives 1 steps"},
        {.damage = finished_and_tidied,
         .with = {.set = {"max_steps=5"}},
         .status = TM_EINPUT,
         .says = "whose state was removed"},
        {.run_json = "step", .value = "\"x\""},
        {.damage = no_run_json_and_no_manifest, .status = TM_EINPUT, .says = "run.json is gone"},
        {.damage = no_run_json_and_no_commit, .left = 1}, /* nothing here knows of it any more: `tidemill clean` does */
        {.damage = nameless_and_neighbours, .left = 3},
        {.damage = at_work, .status = TM_EINPUT, .says = "in use by process"},
        {.damage = at_work, .with = {.resume = "never"}, .status = TM_EINPUT, .says = "in use by process"},
        {.damage = at_work_nameless, .status = TM_EINPUT, .says = "run.json is gone"},
    };
    (void)state;
    FOUND_CHECK(rows);
}

/* Of the same job: all is done, and of the state only what was asked for stays. */
static void test_finished(void **state) {
    static const struct {
        void (*damage)(void);
        const char *set;
        unsigned left;
    } rows[] = {{finished_early, "max_steps=2", 0}, {kept_and_finished, NULL, 1}, {finished_and_tidied, NULL, 0}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        found_put_back();
        rows[i].damage();
        char *before = run_read(run_path(found.output, "run.json"), NULL);
        assert_int_equal(found_run(&(found_start){.set = {rows[i].set}}), 0);
        if (found.report->status != TM_OK || !strstr(found_said(), "holds the finished run of this job"))
            fail_msg("row %zu: %s\n%s", i, found.report->text, found_said());
        assert_int_equal(run_entries(found.offload), rows[i].left);
        char *after = run_read(run_path(found.output, "run.json"), NULL);
        assert_string_equal(before, after);
        free(before), free(after);
    }
}

/* run.json is lost, the state is not: found, told, and gone on from when it is named. */
static void test_lost_run_json(void **state) {
    void (*const damage[])(void) = {no_run_json, no_run_json_and_a_part};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(damage); i++) {
        found_put_back();
        damage[i]();
        assert_int_equal(found_run(&(found_start){0}), 0);
        assert_int_equal(found.report->status, TM_EINPUT);
        assert_true(!strstr(found.report->text, run_format("--resume %s goes on", found.run[0])) == (i > 0));
        assert_int_equal(run_entries(found.offload), 1);
        assert_int_not_equal(access(run_path(found.output, "run.json"), F_OK), 0);
        if (i > 0) continue;
        assert_int_equal(found_run(&(found_start){.resume = found.run[0]}), 0);
        if (found.report->status != TM_OK) fail_msg("%s", found.report->text);
        assert_string_equal(found_hash(), found.hash);
        assert_int_equal(run_entries(found.offload), 0);
    }
}

/* Directories that are no run's, whoever wrote them down, are neither asked nor removed. */
static void test_of_nobody(void **state) {
    (void)state;
    found_put_back();
    const char *as_run = run_path(found.offload, "run-of-nobody"), *plain = run_path(found.offload, "plain");
    assert_true(mkdir(as_run, 0700) == 0 && mkdir(plain, 0700) == 0);
    run_write(run_path(plain, "lock"), "");
    found_edit_run_json("status", "\"finished\"");
    found_edit_run_json("run_directories", run_format("[\"nowhere\", 5, \"%s\", \"%s\"]", plain, as_run));
    assert_int_equal(found_run(&(found_start){0}), 0);
    assert_int_equal(found.report->status, TM_EINPUT);
    assert_non_null(strstr(found.report->text, "whose state was removed"));
    assert_true(access(run_path(plain, "lock"), F_OK) == 0 && access(as_run, F_OK) == 0);
    assert_int_equal(access(run_path(found.run[0], "manifest"), F_OK), 0);
}

/* ---- --resume DIR ------------------------------------------------------------------------------------------------ */

static void state_gone(void) {
    found_edit_run_json("status", "\"finished\""), no_directory();
}

static void test_directories(void **state) {
    char run[4096], absent[4096];
    (void)state;
    snprintf(run, sizeof run, "%s", found.run[0]);
    snprintf(absent, sizeof absent, "%s/absent", found.dir);
    const found_row rows[] = {
        {.with = {.resume = absent}, .status = TM_EINPUT, .says = "no such folder; give auto, never"},
        {.with = {.resume = TM_TEST_FIXTURES}, .status = TM_EINPUT, .says = "no state lies there"},
        {.with = {.resume = found.output}, .says = "going on from step 2"},
        {.with = {.resume = run}, .says = "going on from step 2"},
        {.damage = half_run_json, .with = {.resume = run}, .status = TM_EINPUT, .says = "run.json:1:"},
        {.run_json = "run_directories",
         .value = NULL,
         .with = {.resume = found.output},
         .status = TM_EINPUT,
         .says = "this interrupted run left no state"},
        {.damage = state_gone,
         .with = {.resume = found.output},
         .status = TM_EINPUT,
         .says = "this finished run left no"},
        {.damage = no_directory,
         .with = {.resume = found.output},
         .status = TM_EINPUT,
         .says = "this interrupted run left"},
        {.damage = no_manifest, .with = {.resume = run}, .status = TM_EINPUT, .says = "no state lies there"},
        {.damage = bad_manifest, .with = {.resume = run}, .status = TM_ECORRUPT, .says = "manifest"},
    };
    FOUND_CHECK(rows);
}

/* ---- log and leftovers ------------------------------------------------------------------------------------------- */

static void append_log(const char *text) {
    const char *path = run_path(found.output, "log.jsonl");
    char *was = run_read(path, NULL);
    run_write(path, run_format("%s%s", was, text));
    free(was);
}
static void half_a_line(void) {
    append_log("{\"step\": 3, \"lo");
}
static void other_lines(void) {
    append_log("garbage\n{\"step\": \"x\"}\n{\"nothing\": 1}\n{\"step\": 9}\n[]\n{\"step\": -1}\n");
}
static void ended_lines(void) {
    append_log("{\"event\": \"end\", \"step\": 2}\n{\"event\": \"best\", \"step\": 2}\n");
}
static void no_log(void) {
    assert_int_equal(unlink(run_path(found.output, "log.jsonl")), 0);
}
static void flipped_line(void) {
    run_damage(run_path(found.output, "log.jsonl"), 20);
}
static void no_log_and_no_directory(void) {
    no_log(), no_directory();
}

/* Lines past the commit, and lines that are none, go; those of steps 1 and 2 stay and 3 and 4 follow: train_log_read
 * counts them. */
static void test_logs(void **state) {
    static const found_row rows[] = {
        {.damage = half_a_line},
        {.damage = other_lines},
        {.damage = ended_lines},
        {.damage = no_log_and_no_directory, .status = TM_EINPUT, .says = "its log is gone as well, and"},
        {.damage = no_log, .status = TM_EINPUT, .says = "it was cut (0 of"},
        {.damage = no_lines, .status = TM_EINPUT, .says = "it was cut (0 of"},
        {.damage = flipped_line, .status = TM_EINPUT, .says = "it was changed"},
    };
    (void)state;
    FOUND_CHECK(rows);
    found_put_back();
    no_log();
    assert_int_equal(found_run(&(found_start){.resume = found.output}), 0);
    assert_int_equal(found.report->status, TM_OK); /* the state is whole: it goes on, and the log begins at step 3 */
    char *log = run_read(run_path(found.output, "log.jsonl"), NULL);
    assert_non_null(strstr(log, found.hash));
    assert_null(strstr(log, "\"step\": 2,"));
    free(log);
}

static void test_leftovers(void **state) {
    static const char *const goes[] = {"checkpoint-3.tmp", "checkpoint-2.tmp-old", ".tmp-0123456789abcdef-log.jsonl",
                                       ".tokens-12-3"};
    static const char *const stays[] = {"checkpoint-x.tmp", "checkpoint-.tmp", "checkpoint-3.tmp2",     ".tmp-0123-x",
                                        ".tokens-x",        "3.tmp",           ".tmp-0123456789abcdefx"};
    (void)state;
    found_put_back();
    for (size_t i = 0; i < TM_COUNT(goes); i++) run_write(run_path(found.output, goes[i]), "x");
    for (size_t i = 0; i < TM_COUNT(stays); i++) run_write(run_path(found.output, stays[i]), "x");
    assert_int_equal(found_run(&(found_start){0}), 0);
    if (found.report->status != TM_OK) fail_msg("%s", found.report->text);
    for (size_t i = 0; i < TM_COUNT(goes); i++) assert_int_not_equal(access(run_path(found.output, goes[i]), F_OK), 0);
    for (size_t i = 0; i < TM_COUNT(stays); i++) assert_int_equal(access(run_path(found.output, stays[i]), F_OK), 0);
    assert_string_equal(found_hash(), found.hash);
}

static void test_calls_fail(void **state) {
    (void)state;
    found_walk(&(found_start){0}, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commits_of_another_job),
        cmocka_unit_test(test_run_json),
        cmocka_unit_test(test_finished),
        cmocka_unit_test(test_lost_run_json),
        cmocka_unit_test(test_of_nobody),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_logs),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_calls_fail),
    };
    return cmocka_run_group_tests_name("train_resume", tests, set_up, found_close);
}
