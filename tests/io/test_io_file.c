/* Plain files: reading what may be hostile, writing whole or not at all. */
#include "tests/io/world.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char dir[64];

static const char *at(const char *name) {
    static char paths[4][512];
    static unsigned next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const void *bytes, size_t n) {
    tm_out *o;
    OK(tm_out_create(&o, at(name)));
    OK(tm_out_append(o, bytes, n));
    OK(tm_out_commit(o));
}

static char *get(const char *name) {
    static tm_buf text;
    tm_buf_clear(&text);
    if (tm_file_slurp(at(name), 1 << 20, &text) != TM_OK) return tm_error_clear(), (char *)NULL;
    static char copy[4096];
    snprintf(copy, sizeof copy, "%s", text.data);
    tm_buf_free(&text);
    return copy;
}

static tm_status collect(void *ctx, const char *name, bool is_dir) {
    return tm_buf_printf(ctx, "%s%s ", name, is_dir ? "/" : "");
}

static void assert_listing(const char *name, const char *expected) {
    tm_buf b = {0};
    OK(tm_list_dir(at(name), collect, &b));
    assert_string_equal(b.data ? b.data : "", expected);
    tm_buf_free(&b);
}

static void test_open_refuses(void **state) {
    (void)state;
    tm_file *f;
    FAILS(tm_file_open(&f, at("nope")), TM_EINPUT, "no such file; check the path");
    FAILS(tm_file_open(&f, dir), TM_EINPUT, "is a directory");
    FAILS(tm_file_open(&f, "/dev/zero"), TM_EINPUT, "not a regular file");
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    alarm(60); /* an open that waits for a writer ends the test */
    FAILS(tm_file_open(&f, at("fifo")), TM_EINPUT, "not a regular file");
    alarm(0);
    assert_int_equal(symlink("loop", at("loop")), 0);
    FAILS(tm_file_open(&f, at("loop")), TM_EINPUT, "loop");
    tm_append *a;
    FAILS(tm_append_open(&a, "/dev/null", false), TM_EINPUT, "not a regular file");
}

static void test_open_in(void **state) {
    (void)state;
    OK(tm_make_dirs(at("model/sub/deep")));
    OK(tm_make_dirs(at("blobs")));
    put("model/a", "a", 1);
    put("model/sub/deep/b", "b", 1);
    put("blobs/c", "c", 1);
    put("secret", "s", 1);
    assert_int_equal(symlink("../blobs/c", at("model/c")), 0); /* as in the Hub's cache */
    assert_int_equal(symlink("..", at("model/up")), 0);
    assert_int_equal(symlink("sub", at("model/side")), 0);
    static const char *const good[] = {"a", "sub/deep/b", "c"};
    tm_file *f;
    for (unsigned i = 0; i < TM_COUNT(good); i++) {
        char byte;
        OK(tm_file_open_in(&f, at("model"), good[i]));
        assert_int_equal(tm_file_size(f), 1);
        OK(tm_file_read_at(f, 0, &byte, 1));
        assert_int_equal(byte, good[i][strlen(good[i]) - 1]);
        assert_non_null(strstr(tm_file_path(f), good[i]));
        tm_file_close(f);
    }
    static const char *const bad[] = {"",          "/etc/passwd", "..",  "../secret",   "sub/../../secret",
                                      "up/secret", "side/deep/b", "a/b", "sub//deep/b", "sub/",
                                      "sub/..",    "./../secret"};
    for (unsigned i = 0; i < TM_COUNT(bad); i++) {
        assert_int_equal(tm_file_open_in(&f, at("model"), bad[i]), TM_EINPUT);
        assert_null(f);
        tm_error_clear();
    }
    FAILS(tm_file_open_in(&f, at("model"), "model.safetensors"), TM_EINPUT, "model.safetensors: no such file (in ");
    FAILS(tm_file_open_in(&f, at("nope"), "a"), TM_EINPUT, "no such folder");
    FAILS(tm_file_open_in(&f, at("model"), "sub"), TM_EINPUT, "is a directory");
}

static void test_read(void **state) {
    (void)state;
    char data[10000], in[10000];
    fill(data, 0, sizeof data, 3);
    put("data", data, sizeof data);
    tm_file *f;
    OK(tm_file_open(&f, at("data")));
    OK(tm_file_read_at(f, 0, in, sizeof in));
    assert_memory_equal(in, data, sizeof in);
    OK(tm_file_read_at(f, 9999, in, 1));
    assert_int_equal(in[0], data[9999]);
    OK(tm_file_read_at(f, 10000, in, 0));
    FAILS(tm_file_read_at(f, 9000, in, 1001), TM_EINPUT, "ends at byte 10000, expected 10001");
    FAILS(tm_file_read_at(f, UINT64_MAX - 5, in, 4), TM_EINPUT, "ends at byte 10000");
    tm_file_cursor c = {.file = f, .pos = 100};
    size_t n = 0;
    for (size_t got = 1; got; n += got)
        OK(tm_file_cursor_read(&c, in + n, 4097 < sizeof in - n ? 4097 : sizeof in - n, &got));
    assert_int_equal(n, 9900);
    assert_memory_equal(in, data + 100, n);
    tm_file_forget(f, 0, 10000);
    OK(tm_file_read_at(f, 5000, in, 100));
    assert_memory_equal(in, data + 5000, 100);
    tm_file_close(f);
    tm_file_close(NULL);
    tm_buf b = {0};
    FAILS(tm_file_slurp(at("data"), 9999, &b), TM_EINPUT, "10000 bytes are more than the 9999");
    OK(tm_buf_append(&b, "x", 1));
    OK(tm_file_slurp(at("data"), 10000, &b));
    assert_int_equal(b.len, 10001);
    assert_memory_equal(b.data + 1, data, 10000);
    assert_int_equal(b.data[b.len], 0);
    tm_buf_free(&b);
}

typedef struct reader {
    tm_file *file;
    unsigned seed;
    bool bad;
} reader;

static void *read_around(void *arg) {
    reader *r = arg;
    char buf[777];
    for (unsigned i = 0; i < 500; i++) {
        uint64_t offset = (i * 7919u + r->seed) % (65536 - sizeof buf);
        if (tm_file_read_at(r->file, offset, buf, sizeof buf) != TM_OK || !matches(buf, offset, sizeof buf, 9))
            r->bad = true;
    }
    return NULL;
}

static void test_concurrent_reads(void **state) {
    (void)state;
    char *data = test_memory(65536);
    fill(data, 0, 65536, 9);
    put("shared", data, 65536);
    free(data);
    tm_file *f;
    OK(tm_file_open(&f, at("shared")));
    reader r[3];
    pthread_t t[3];
    for (unsigned i = 0; i < 3; i++) {
        r[i] = (reader){.file = f, .seed = 100 * i};
        assert_int_equal(pthread_create(&t[i], NULL, read_around, &r[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        assert_false(r[i].bad);
    }
    tm_file_close(f);
}

/* ---- writing ---- */

/* A small buffer is one: a long write goes through it, whole, and takes no more memory. */
static void test_small_buffer(void **state) {
    (void)state;
    enum { BYTES = 300000, BUFFER = 8192 };
    static char bytes[BYTES];
    tm_out *o;
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (char)(i * 7 + i / 251);
    uint64_t before = tm_mem_live_bytes();
    OK(tm_out_create_small(&o, at("small"), BUFFER));
    assert_in_range(tm_mem_live_bytes() - before, BUFFER, 2 * BUFFER);
    for (size_t n = 0; n < BYTES; n += BYTES / 6) OK(tm_out_append(o, bytes + n, BYTES / 6));
    OK(tm_out_commit(o));
    tm_buf got = {0};
    OK(tm_file_slurp(at("small"), TM_MIB, &got));
    assert_int_equal(got.len, BYTES);
    assert_memory_equal(got.data, bytes, BYTES);
    tm_buf_free(&got);
}

static void test_commit_and_abandon(void **state) {
    (void)state;
    OK(tm_make_dirs(at("out")));
    tm_out *o;
    OK(tm_out_create(&o, at("out/x")));
    OK(tm_out_append(o, "old", 3));
    assert_false(tm_path_exists(at("out/x"))); /* not before the commit */
    OK(tm_out_commit(o));
    assert_string_equal(get("out/x"), "old");
    OK(tm_out_create(&o, at("out/x")));
    OK(tm_out_append(o, "newer", 5));
    assert_string_equal(get("out/x"), "old");
    tm_out_abandon(o);
    assert_string_equal(get("out/x"), "old");
    assert_listing("out", "x ");
    OK(tm_out_create(&o, at("out/x")));
    OK(tm_out_append(o, "newest", 6));
    OK(tm_out_commit(o));
    assert_string_equal(get("out/x"), "newest");
    OK(tm_out_create(&o, at("out/empty")));
    OK(tm_out_commit(o));
    assert_string_equal(get("out/empty"), "");
    assert_listing("out", "empty x ");
    tm_out_abandon(NULL);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(at("out/x"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644 & ~mask);
    /* A link in the place of the result is replaced, not followed. */
    put("victim", "untouched", 9);
    assert_int_equal(symlink("../victim", at("out/link")), 0);
    put("out/link", "mine", 4);
    assert_string_equal(get("victim"), "untouched");
    assert_string_equal(get("out/link"), "mine");
}

/* Whoever writes under the same name is in nobody's way, and nobody else can read. */
static void test_scratch(void **state) {
    (void)state;
    tm_out *o[2];
    tm_file *f[2];
    char got[2];
    struct dirent *e;
    struct stat st;
    OK(tm_make_dirs(at("scratch")));
    for (int i = 0; i < 2; i++) {
        OK(tm_out_create_scratch(&o[i], at("scratch/x")));
        OK(tm_out_append(o[i], i ? "one" : "two", 3));
    }
    DIR *d = opendir(at("scratch"));
    while ((e = readdir(d)))
        if (*e->d_name != '.' || strlen(e->d_name) > 2) {
            assert_string_equal(tm_out_target(e->d_name), "x");
            assert_int_equal(fstatat(dirfd(d), e->d_name, &st, 0), 0);
            assert_int_equal(st.st_mode & 0077, 0);
        }
    closedir(d);
    for (int i = 0; i < 2; i++) OK(tm_out_read_back(o[i], &f[i]));
    assert_listing("scratch", "");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tm_file_size(f[i]), 3);
        OK(tm_file_read_at(f[i], 1, got, 2));
        assert_memory_equal(got, i ? "ne" : "wo", 2);
        tm_file_close(f[i]);
    }
}

static void test_out_refuses(void **state) {
    (void)state;
    tm_out *o;
    OK(tm_make_dirs(at("folder")));
    FAILS(tm_out_create(&o, at("no/such/x")), TM_EINPUT, "folder does not exist");
    FAILS(tm_out_create(&o, at("folder")), TM_EINPUT, "is a directory");
    FAILS(tm_out_create(&o, at("folder/")), TM_EINPUT, "is a directory");
    tm_append *a;
    FAILS(tm_append_open(&a, at("no/such/log"), true), TM_EINPUT, "folder does not exist");
    FAILS(tm_append_open(&a, at("folder"), false), TM_EINPUT, "cannot be written");
}

/* Appends across the buffer's end and positional writes, against an oracle. */
static void test_out_mixed(void **state) {
    (void)state;
    enum { TOTAL = 5 * 1024 * 1024 };
    char *oracle = calloc(1, TOTAL), *in = test_memory(TOTAL), *piece = test_memory(400000);
    tm_out *o;
    OK(tm_out_create(&o, at("mixed")));
    uint64_t end = 0, size = 0;
    for (unsigned i = 0; i < 60; i++) {
        uint32_t r[4];
        tm_philox(11, 0, i, r);
        size_t n = r[0] % (i % 3 ? 1000 : 400000);
        fill(piece, 0, n, i);
        if (r[1] % 3 == 0) {
            uint64_t offset = r[2] % (TOTAL - 400000);
            OK(tm_out_write_at(o, offset, piece, n));
            memcpy(oracle + offset, piece, n);
            if (n) size = tm_max_u64(size, offset + n);
        } else if (end + n <= TOTAL) {
            OK(tm_out_append(o, piece, n));
            memcpy(oracle + end, piece, n);
            end += n;
            size = tm_max_u64(size, end);
        }
        assert_int_equal(tm_out_size(o), size);
        if (r[3] % 8 == 0) OK(tm_out_flush(o));
    }
    OK(tm_out_commit(o));
    tm_file *f;
    OK(tm_file_open(&f, at("mixed")));
    assert_int_equal(tm_file_size(f), size);
    OK(tm_file_read_at(f, 0, in, size));
    assert_memory_equal(in, oracle, size);
    tm_file_close(f);
    free(oracle);
    free(in);
    free(piece);
}

/* The first failure is kept: a commit after it does not publish. */
static void test_out_keeps_failure(void **state) {
    (void)state;
    put("kept", "good", 4);
    tm_out *o;
    OK(tm_out_create(&o, at("kept")));
    OK(tm_fault_set("pwrite:1:enospc:once"));
    FAILS(tm_out_write_at(o, 0, "bad", 3), TM_ENOSPC, "cannot write 3 bytes at byte 0");
    assert_int_equal(tm_out_append(o, "more", 4), TM_ENOSPC);
    assert_int_equal(tm_out_commit(o), TM_ENOSPC);
    OK(tm_fault_set(NULL));
    assert_string_equal(get("kept"), "good");
    OK(tm_out_create(&o, at("kept")));
    OK(tm_out_append(o, "bad", 3));
    OK(tm_fault_set("fsync:1:eio:once"));
    FAILS(tm_out_commit(o), TM_EIO, "cannot be brought to the disk");
    OK(tm_fault_set(NULL));
    assert_string_equal(get("kept"), "good");
}

/* What dropping pages from the cache hears of the disk, fsync would not hear again. */
static void test_out_flush_fails(void **state) {
    (void)state;
    tm_out *o;
    put("kept", "good", 4);
    OK(tm_out_create(&o, at("kept")));
    OK(tm_out_append(o, "bad", 3));
    OK(tm_fault_set("sync_file_range:1:eio:once"));
    FAILS(tm_out_flush(o), TM_EIO, "cannot be brought to the disk");
    OK(tm_fault_set(NULL));
    assert_int_equal(tm_out_commit(o), TM_EIO);
    tm_error_clear();
    assert_string_equal(get("kept"), "good");
}

static tm_status count_dirs(void *ctx, const char *name, bool is_dir) {
    (void)name;
    *(unsigned *)ctx += is_dir;
    return TM_OK;
}

/* One descriptor is free, two are needed: an error, and no listing in which a folder is none. */
static void test_list_out_of_descriptors(void **state) {
    (void)state;
    struct rlimit old;
    unsigned dirs = 0;
    OK(tm_make_dirs(at("many/one")));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int free_fd = dup(0);
    assert_true(free_fd >= 0);
    close(free_fd);
    const struct rlimit tight = {(rlim_t)free_fd + 1, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    tm_status rc = tm_list_dir(at("many"), count_dirs, &dirs);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    FAILS(rc, TM_EIO, "cannot be listed");
    OK(tm_list_dir(at("many"), count_dirs, &dirs));
    assert_int_equal(dirs, 1);
}

static void test_append(void **state) {
    (void)state;
    tm_append *a;
    OK(tm_append_open(&a, at("log"), true));
    OK(tm_append_line(a, "one", 3));
    OK(tm_append_line(a, "two\n", 4));
    assert_string_equal(get("log"), "one\ntwo\n");
    tm_append_close(a);
    OK(tm_append_open(&a, at("log"), false));
    OK(tm_fault_set("write:1:short:sticky")); /* halves again and again, to the last byte */
    OK(tm_append_line(a, "three", 5));
    OK(tm_fault_set(NULL));
    tm_append_close(a);
    assert_string_equal(get("log"), "one\ntwo\nthree\n");
    OK(tm_append_open(&a, at("log"), true));
    tm_append_close(a);
    assert_string_equal(get("log"), "");
    tm_append_close(NULL);
}

static void test_cleanup_at_exit(void **state) {
    (void)state;
    OK(tm_make_dirs(at("exit")));
    put("exit/done", "1", 1);
    tm_out *o;
    tm_io_run *run, *kept;
    OK(tm_out_create(&o, at("exit/half")));
    OK(tm_out_append(o, "x", 1));
    tm_io_run_opts opts = {.allow_tmpfs = true, .create_parents = true};
    OK(tm_io_run_create(&run, at("exit/offload/here"), &opts));
    opts.id = "kept";
    OK(tm_io_run_create(&kept, at("exit"), &opts));
    tm_io_file f;
    OK(tm_io_file_create(run, "state", 8192, false, &f));
    tm_io_run_close(kept);
    tm_io_cleanup_at_exit();
    assert_listing("exit", "done offload/ run-kept/ ");
    assert_listing("exit/offload", "");
    tm_out_abandon(o); /* what the owners do later does no harm */
    OK(tm_io_run_remove(run));
    OK(tm_remove_tree(at("exit")));
}

/* ---- directories ---- */

static void test_dirs(void **state) {
    (void)state;
    OK(tm_make_dirs(at("d/b/c")));
    OK(tm_make_dirs(at("d/b/c")));
    OK(tm_make_dirs(at("d/a//x/")));
    put("d/Z", "", 0);
    put("d/\xc3\xa9", "", 0);
    assert_int_equal(symlink("b", at("d/to_b")), 0);
    assert_listing("d", "Z a/ b/ to_b/ \xc3\xa9 "); /* byte order; a link to a directory is one */
    assert_true(tm_path_is_dir(at("d/to_b")) && tm_path_exists(at("d/Z")) && !tm_path_is_dir(at("d/Z")));
    assert_false(tm_path_exists(at("d/none")) || tm_path_is_dir(at("d/none")));
    FAILS(tm_make_dirs(at("d/Z/below")), TM_EINPUT, "cannot make this directory");
    FAILS(tm_make_dirs(""), TM_EINPUT, "cannot make");
    FAILS(tm_list_dir(at("d/none"), collect, NULL), TM_EINPUT, "no such folder");
    FAILS(tm_list_dir(at("d/Z"), collect, NULL), TM_EINPUT, "no such folder");
    /* Links are removed, not followed; a file and nothing at all are fine too. */
    OK(tm_make_dirs(at("outside")));
    put("outside/keep", "k", 1);
    assert_int_equal(symlink("../../outside", at("d/b/link")), 0);
    OK(tm_remove_tree(at("d")));
    assert_false(tm_path_exists(at("d")));
    assert_string_equal(get("outside/keep"), "k");
    OK(tm_remove_tree(at("outside/keep")));
    OK(tm_remove_tree(at("outside/keep")));
    assert_listing("outside", "");
}

static void test_deep_tree(void **state) {
    (void)state;
    OK(tm_make_dirs(at("deep")));
    int fd = open(at("deep"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 100; i++) { /* deeper than any program makes */
        assert_int_equal(mkdirat(fd, "d", 0700), 0);
        int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        close(fd);
        fd = next;
    }
    close(fd);
    FAILS(tm_remove_tree(at("deep")), TM_EINPUT, "levels deep");
    assert_int_equal(system("rm -rf io_test_*/deep"), 0);
    OK(tm_make_dirs(at("deep/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/18/19/20")));
    put("deep/1/2/3/x", "", 0);
    put("deep/1/2/y", "", 0);
    OK(tm_remove_tree(at("deep")));
    assert_false(tm_path_exists(at("deep")));
}

static int set_up(void **state) {
    (void)state;
    strcpy(dir, test_dir());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_open_in),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_concurrent_reads),
        cmocka_unit_test(test_small_buffer),
        cmocka_unit_test(test_commit_and_abandon),
        cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_out_refuses),
        cmocka_unit_test(test_out_mixed),
        cmocka_unit_test(test_out_keeps_failure),
        cmocka_unit_test(test_out_flush_fails),
        cmocka_unit_test(test_list_out_of_descriptors),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_cleanup_at_exit),
        cmocka_unit_test(test_dirs),
        cmocka_unit_test(test_deep_tree),
    };
    return cmocka_run_group_tests(tests, set_up, test_tear_down);
}
