/* A refusal where one change helps ends in the line that was typed, with that change; and with it the run comes to its end. Of
 * ranks, of a device, of disks. */
#include "run.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

typedef paged_scene scene;

static scene scene_open(void) {
    scene s =
        paged_scene_open("\"precision\": \"fp32\", \"max_steps\": 6", "\"cache\": \"none\", \"allow_tmpfs\": true");
    assert_int_equal(mkdir(s.output, 0700), 0);
    assert_int_equal(mkdir(s.offload, 0700), 0);
    return s;
}

/* `key=value` of the change that the refusal pastes: one line, and `command` in front of what was typed. */
static const char *change_of(const run_result *r, const char *command, const char *key) {
    const char *line, *at;
    if (r->status != 2) fail_msg("exit status %d instead of 2: %s", r->status, r->err);
    assert_int_equal(run_error_lines(r->err, &line), 1);
    at = strstr(line, run_format("; to paste: %stidemill train ", command));
    if (at) at = strstr(at, run_format(" --%s ", key));
    if (!at) fail_msg("nothing to paste of %s: %s", key, line);
    at += strlen(key) + 4;
    return run_format("%s=%.*s", key, (int)strcspn(at, " \n"), at);
}

/* Refused with `set` on so many ranks, and done with the change. */
static void refused(const scene *s, unsigned ranks, const char *key, const char *const set[2]) {
    run_remove(s->output);
    const char *command = ranks ? run_format("mpirun -n %u ", ranks) : "";
    run_result r =
        run((run_opts){.ranks = ranks}, "train", s->config, "--quiet", "--set", set[0], "--set", set[1], NULL);
    const char *change = change_of(&r, command, key);
    run_free(&r);
    print_message("  %s\n", change);
    r = run((run_opts){.ranks = ranks}, "train", s->config, "--quiet", "--set", set[0], "--set", set[1], "--set",
            change, NULL);
    RUN_OK(&r);
    run_free(&r);
}

static bool no_ranks(void) {
    return system("mpirun --version > /dev/null 2>&1") != 0;
}

static void test_budget_of_ranks(void **state) {
    (void)state;
    if (no_ranks()) TEST_SKIP("no mpirun");
    scene s = scene_open();
    refused(&s, 2, "memory.host_budget", (const char *const[]){"memory.host_budget=1MiB", "seed=1"});
}

static void test_device(void **state) {
    (void)state;
    scene s = scene_open();
    const char *const set[] = {"memory.device=cpu-arena", "memory.device_budget=64KiB"};
    refused(&s, 0, "memory.device_budget", set);
    if (no_ranks())
        TEST_SKIP_PART("a device of several ranks: no mpirun");
    else
        refused(&s, 2, "memory.device_budget", set);
}

static uint64_t disk_bytes(const scene *s, unsigned slots) {
    run_result r = run((run_opts){0}, "plan", s->config, "--json", "--set", run_format("memory.slots=%u", slots), NULL);
    RUN_OK(&r);
    const char *at = strstr(r.out, "\"disk_bytes\": ");
    assert_non_null(at);
    uint64_t bytes = strtoull(at + strlen("\"disk_bytes\": "), NULL, 10);
    run_free(&r);
    return bytes;
}

static bool mounted(const char *at, uint64_t bytes) {
    return mount("none", at, "tmpfs", 0, run_format("size=%lluk", (unsigned long long)(bytes / 1024))) == 0;
}

/* Two slots have no room and one has: with ranks the others may hold theirs still, and then nothing is advised. */
static void test_disk(void **state) {
    (void)state;
    scene s = scene_open();
    uint64_t one = disk_bytes(&s, 1), two = disk_bytes(&s, 2);
    assert_true(one > 256 << 10 && two > one + one / 2);
    if (!mounted(s.offload, (one + two) / 2)) TEST_SKIP("a small tmpfs cannot be mounted: %s", strerror(errno));
    run_result p = run((run_opts){0}, "plan", s.config, NULL);
    run_result r = run((run_opts){0}, "train", s.config, "--quiet", NULL), t = {0}, least = {0};
    unsigned left = run_entries(s.offload);
    run_result done = run((run_opts){0}, "train", s.config, "--quiet", "--set", "memory.slots=1", NULL);
    if (!no_ranks()) t = run((run_opts){.ranks = 2}, "train", s.config, "--quiet", "--resume", "never", NULL);
    assert_int_equal(umount(s.offload), 0);
    if (mounted(s.offload, one / 2)) {
        least = run((run_opts){0}, "train", s.config, "--quiet", "--resume", "never", NULL);
        assert_int_equal(umount(s.offload), 0);
    }
    assert_string_equal(change_of(&r, "", "memory.slots"), "memory.slots=1");
    assert_non_null(strstr(r.err, "without restarts: --set memory.slots=1"));
    assert_int_equal(left, 0);
    if (p.status != 2 || !strstr(p.err, "; to paste: tidemill plan ") || !strstr(p.err, " --memory.slots 1"))
        fail_msg("plan: exit status %d, %s", p.status, p.err);
    RUN_OK(&done);
    const char *line;
    if (least.status != 2 || run_error_lines(least.err, &line) != 1 || strstr(line, "to paste"))
        fail_msg("less than one state: exit status %d, %s", least.status, least.err);
    if (t.err && (t.status != 2 || run_error_lines(t.err, &line) != 1 || !strstr(line, s.offload)))
        fail_msg("2 ranks: exit status %d, %s", t.status, t.err);
    run_free(&p), run_free(&r), run_free(&done), run_free(&t), run_free(&least);
}

/* OUTPUT_DIR has no room for all checkpoints: fewer of them, none, or, where not even the model has room, nothing to paste. */
static void test_room_for_checkpoints(void **state) {
    (void)state;
    static const struct {
        double models;
        const char *change;
    } rows[] = {{3.7, "save_total_limit=1"}, {1.8, "save_strategy=no"}, {0.5, NULL}};
    struct stat model;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        scene s = scene_open();
        assert_int_equal(stat(TM_TEST_FIXTURES "/arch_llama/model.safetensors", &model), 0);
        if (!mounted(s.output, (uint64_t)(rows[i].models * (double)model.st_size)))
            TEST_SKIP("a small tmpfs cannot be mounted: %s", strerror(errno));
        const char *change = rows[i].change;
        run_result r = run((run_opts){0}, "train", s.config, "--quiet", "--set", "save_steps=1", "--set",
                           "save_total_limit=4", NULL),
                   done = {0};
        if (change)
            done = run((run_opts){0}, "train", s.config, "--quiet", "--set", "save_steps=1", "--set",
                       "save_total_limit=4", "--set", change, NULL);
        assert_int_equal(umount(s.output), 0);
        if (change) {
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)strcspn(change, "="), change);
            assert_string_equal(change_of(&r, "", key), change);
            RUN_OK(&done);
        } else if (r.status != 2 || strstr(r.err, "to paste") || !strstr(r.err, "give another output_dir"))
            fail_msg("exit status %d: %s", r.status, r.err);
        run_free(&r), run_free(&done);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_budget_of_ranks, run_clean),
        cmocka_unit_test_teardown(test_device, run_clean),
        cmocka_unit_test_teardown(test_disk, run_clean),
        cmocka_unit_test_teardown(test_room_for_checkpoints, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
