/* A folder in the place of another, and bytes that two files share. Sharing needs XFS or Btrfs: a loop device in a
 * mount namespace of a child; where that cannot be had the row skips loudly. */
#include "tests/io/world.h"
#include "tests/support/leave.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { SKIPPED = 77, BYTES = 1 << 20 };
static char dir[64];

static const char *at(const char *name) {
    static char paths[6][256];
    static unsigned next;
    char *p = paths[next++ % 6];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

static void put(const char *path, const void *bytes, size_t n) {
    tm_out *o;
    OK(tm_out_create(&o, path));
    OK(tm_out_append(o, bytes, n));
    OK(tm_out_commit(o));
}

static void folder(const char *name, const char *text) {
    char file[300];
    assert_int_equal(mkdir(at(name), 0700), 0);
    snprintf(file, sizeof file, "%s/f", at(name));
    put(file, text, strlen(text));
}

static void expect_text(const char *name, const char *text) {
    char file[300];
    tm_buf b = {0};
    snprintf(file, sizeof file, "%s/f", at(name));
    OK(tm_file_slurp(file, 100, &b));
    assert_string_equal(b.data, text);
    tm_buf_free(&b);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static void test_publish(void **state) {
    (void)state;
    static const char *const ways[] = {NULL, "exchange:1:enosys:once", "exchange:1:einval:once"};
    for (unsigned i = 0; i < TM_COUNT(ways); i++) {
        folder("new", "one");
        OK(tm_publish_dir(at("new"), at("c"))); /* nothing there yet */
        folder("new", "two");
        OK(tm_fault_set(ways[i]));
        OK(tm_publish_dir(at("new"), at("c")));
        OK(tm_fault_set(NULL));
        expect_text("c", "two");
        assert_false(tm_path_exists(at("new")) || tm_path_exists(at("c.tmp-old")));
        OK(tm_retire_dir(at("c")));
        assert_false(tm_path_exists(at("c")) || tm_path_exists(at("c.tmp")));
        OK(tm_retire_dir(at("c"))); /* absent */
    }
}

/* Whatever fails, the name leads to one of the two, whole. */
static void test_publish_fails(void **state) {
    (void)state;
    static const char *const faults[] = {"exchange:1:eio:once", "fsync:1:eio:once", "unlink:1:eio:once"};
    for (unsigned i = 0; i < TM_COUNT(faults); i++) {
        folder("c", "one");
        folder("new", "two");
        OK(tm_fault_set(faults[i]));
        assert_int_not_equal(tm_publish_dir(at("new"), at("c")), TM_OK);
        assert_string_not_equal(tm_error_get()->text, "");
        tm_error_clear();
        OK(tm_fault_set(NULL));
        expect_text("c", i == 0 ? "one" : "two");
        OK(tm_remove_tree(at("c")));
        OK(tm_remove_tree(at("new")));
    }
    folder("c", "one");
    folder("new", "two");
    OK(tm_fault_set("unlink:2:kill:once")); /* tm_retire_dir: the name has gone before anything in it */
    pid_t pid = fork();
    if (pid == 0) _exit(tm_retire_dir(at("c")) == TM_OK);
    OK(tm_fault_set(NULL));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(tm_path_exists(at("c")));
    OK(tm_remove_tree(at("c.tmp")));
    OK(tm_remove_tree(at("new")));
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static int same_bytes(const char *a, const char *b) {
    tm_buf x = {0}, y = {0};
    bool same = tm_file_slurp(a, 2 * BYTES, &x) == TM_OK && tm_file_slurp(b, 2 * BYTES, &y) == TM_OK &&
                x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    tm_buf_free(&x);
    tm_buf_free(&y);
    return same ? 0 : 1;
}

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, tm_error_get()->text);                              \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Copies a file of an odd length and a part of it into an offload file. */
static int copy_both(uint64_t *shared, uint64_t *copied) {
    tm_io_clones before, after;
    tm_io_run *run;
    tm_io_file f;
    tm_file *from;
    bool did;
    char *bytes = test_memory(BYTES);
    fill(bytes, 0, BYTES, 3);
    put(at("from"), bytes, BYTES - 7);
    tm_io_get_clones(&before);
    CHECK(tm_copy_file(at("from"), at("to")) == TM_OK);
    CHECK(same_bytes(at("from"), at("to")) == 0);
    CHECK(tm_io_run_create(&run, dir, &(tm_io_run_opts){.id = "x", .allow_tmpfs = true}) == TM_OK);
    CHECK(tm_io_file_create(run, "part", 256 << 10, true, &f) == TM_OK);
    CHECK(tm_file_open(&from, at("from")) == TM_OK);
    CHECK(tm_io_file_clone(&f, 64 << 10, from, 128 << 10, 128 << 10, &did) == TM_OK);
    tm_io_get_clones(&after);
    *shared = after.shared_bytes - before.shared_bytes;
    *copied = after.copied_bytes - before.copied_bytes;
    if (did) {
        CHECK(pread(f.fd, bytes, 128 << 10, 64 << 10) == 128 << 10);
        CHECK(matches(bytes, 128 << 10, 128 << 10, 3));
    }
    tm_file_close(from);
    CHECK(tm_io_run_remove(run) == TM_OK);
    free(bytes);
    return 0;
}

/* Where it cannot be had, nobody is told; the count says so. */
static void test_fall_back(void **state) {
    (void)state;
    static const char *const ways[] = {"clone:1:enotsup:sticky", "clone:1:einval:sticky"};
    uint64_t shared, copied;
    for (unsigned i = 0; i < TM_COUNT(ways); i++) {
        OK(tm_fault_set(ways[i]));
        assert_int_equal(copy_both(&shared, &copied), 0);
        OK(tm_fault_set(NULL));
        assert_int_equal(shared, 0);
        assert_int_equal(copied, BYTES - 7 + (128 << 10));
    }
    OK(tm_fault_set("clone:1:eio:once")); /* an error is not a no */
    FAILS(tm_copy_file(at("from"), at("to2")), TM_EIO, "cannot share");
    OK(tm_fault_set(NULL));
    assert_false(tm_path_exists(at("to2")));
}

static int share(const char *make) {
    char command[1024], said[256] = "";
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return SKIPPED;
    snprintf(command, sizeof command,
             "exec 2>&1; cd %s && truncate -s 400M img && %s img && mkdir fs && mount -o loop img fs", dir, make);
    FILE *p = popen(command, "r");
    size_t n = p ? fread(said, 1, sizeof said - 1, p) : 0;
    if (!p || pclose(p) != 0) {
        fprintf(stderr, "%s: %.*s\n", make, (int)n, said);
        return SKIPPED;
    }
    snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "/fs");
    uint64_t shared, copied;
    CHECK(copy_both(&shared, &copied) == 0);
    CHECK(shared == BYTES - 7 + (128 << 10) && copied == 0);
    return 0;
}

static void test_share(void **state) {
    (void)state;
    static const char *const makes[] = {"mkfs.xfs -q -f", "mkfs.btrfs -q -f"};
    for (unsigned i = 0; i < TM_COUNT(makes); i++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            dup2(1, 2); /* a skip is to be seen */
            leave(share(makes[i]));
        }
        int status = -1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == SKIPPED)
            TEST_SKIP_PART("sharing blocks on a file system of %s", makes[i]);
        else
            assert_int_equal(WEXITSTATUS(status), 0);
        OK(tm_remove_tree(at("img")));
        OK(tm_remove_tree(at("fs")));
    }
}

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "%s", test_dir());
    return 0;
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_publish_fails),
        cmocka_unit_test(test_fall_back),
        cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests_name("test_io_clone", tests, set_up, test_tear_down);
}
