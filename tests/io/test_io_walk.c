/* Every call that this folder makes fails in turn (tests/walk.h), in four small lives: of a run directory, of a folder that runs share, of plain
 * files and folders, of each engine. A life that goes on all the same must end with the right bytes. And arguments that
 * cannot be. */
#include "tests/io/world.h"
#include "tests/support/walk.h"

static const char *at(const char *name) {
    static char paths[8][512];
    static unsigned next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", walk_dir(), name);
    return p;
}

/* A life that passed must have done what it says. */
static tm_status wrong(const char *what) {
    fail_msg("%s, and no error", what);
    return TM_EBUG;
}

/* ---- a run directory --------------------------------------------------------------------------------------------- */

enum { FILE_BYTES = 64 * 1024 };

static tm_status write_draft(tm_io_run *run, const char *text) {
    tm_io_atomic *d;
    TM_TRY(tm_io_atomic_create(&d, run, "manifest"));
    tm_status rc = tm_io_atomic_append(d, text, strlen(text));
    if (rc == TM_OK) rc = tm_io_atomic_sync(d);
    if (rc != TM_OK) {
        tm_io_atomic_abandon(d);
        return rc;
    }
    return tm_io_atomic_publish(d);
}

static tm_status first_process(char *where, size_t cap) {
    tm_io_run *run;
    tm_io_file direct, buffered;
    TM_TRY(tm_io_run_create(&run, at("a/b"), &(tm_io_run_opts){.allow_tmpfs = true, .create_parents = true}));
    snprintf(where, cap, "%s", tm_io_run_path(run));
    tm_status rc = tm_io_file_create(run, "state", FILE_BYTES, false, &direct);
    if (rc == TM_OK) rc = tm_io_file_create(run, "other", FILE_BYTES, true, &buffered);
    if (rc == TM_OK) rc = write_draft(run, "one");
    if (rc == TM_OK) rc = write_draft(run, "two");
    if (rc == TM_OK) rc = tm_io_run_sync(run);
    if (rc != TM_OK) {
        tm_error said = *tm_error_get();
        (void)!tm_io_run_remove(run); /* it may fail as well: what is left is for `tidemill clean` */
        tm_error_clear(), tm_error_set(&said);
        return rc;
    }
    tm_io_run_keep(run);
    tm_io_run_close(run);
    return TM_OK;
}

static tm_status use_again(tm_io_run *run) {
    tm_io_file file;
    tm_buf text = {0};
    char path[600];
    TM_TRY(tm_io_file_open(run, "state", FILE_BYTES, false, &file));
    TM_TRY(tm_io_file_open(run, "other", FILE_BYTES, true, &file));
    TM_TRY(tm_io_run_unlink(run, "other"));
    TM_TRY(tm_io_run_unlink(run, "other")); /* absent is fine */
    snprintf(path, sizeof path, "%s/manifest", tm_io_run_path(run));
    tm_status rc = tm_file_slurp(path, 100, &text);
    if (rc == TM_OK && strcmp(text.data, "two") != 0) rc = wrong("the first draft lies there");
    tm_buf_free(&text);
    return rc;
}

static tm_status second_process(const char *where) {
    tm_io_run *run;
    tm_io_owner owner;
    TM_TRY(tm_io_run_owner(where, &owner));
    if (owner.alive && owner.pid != getpid() && owner.pid) return wrong("the run is held");
    TM_TRY(tm_io_run_reopen(&run, where, NULL, true, 0));
    tm_status rc = use_again(run);
    if (rc == TM_OK) return tm_io_run_remove(run);
    tm_io_run_close(run);
    return rc;
}

static tm_status run_life(void *ctx) {
    char where[512];
    (void)ctx;
    walk_clear(walk_dir());
    TM_TRY(first_process(where, sizeof where));
    TM_TRY(second_process(where));
    return access(where, F_OK) != 0 ? TM_OK : wrong("the run directory is still there");
}

static void test_run_directories(void **state) {
    static const char *const kinds[] = {"eio", "eacces", "enospc", "einval", "eagain"};
    (void)state;
    assert_true(walk_every(run_life, NULL, kinds, TM_COUNT(kinds), walk_points(6)) >= 100);
}

/* ---- a folder that runs share ------------------------------------------------------------------------------------ */

static tm_status use_shared(const char *dir) {
    tm_io_shared *s;
    TM_TRY(tm_io_shared_open(&s, dir));
    if (!s) return wrong("the folder is gone");
    tm_io_shared_close(s);
    return TM_OK;
}

static tm_status shared_life(void *ctx) {
    tm_io_shared *s;
    bool gone;
    (void)ctx;
    walk_clear(walk_dir());
    const char *dir = at("c/base");
    TM_TRY(tm_io_shared_create(&s, dir, NULL, NULL));
    tm_status rc = tm_file_write(at("c/base/config.json"), "{}", 2);
    if (rc == TM_OK) rc = use_shared(dir);
    tm_io_shared_close(s);
    TM_TRY(rc);
    TM_TRY(tm_io_shared_remove(dir, NULL, 0, &gone));
    return gone && access(dir, F_OK) != 0 ? TM_OK : wrong("the folder is still there");
}

static void test_shared_folders(void **state) {
    static const char *const kinds[] = {"eio", "eacces", "enospc"};
    (void)state;
    assert_true(walk_every(shared_life, NULL, kinds, TM_COUNT(kinds), walk_points(6)) >= 20);
}

/* ---- files and folders ------------------------------------------------------------------------------------------- */

enum { FILE_SIZE = (1 << 20) + 5000 }; /* more than a buffer of tm_out */
static unsigned char bytes[FILE_SIZE];

static tm_status write_file(const char *path) {
    tm_out *o;
    TM_TRY(tm_out_create(&o, path));
    tm_status rc = tm_out_append(o, bytes, FILE_SIZE);
    if (rc == TM_OK) rc = tm_out_write_at(o, 10, "in place", 8);
    if (rc == TM_OK) rc = tm_out_flush(o);
    if (rc == TM_OK) return tm_out_commit(o);
    tm_out_abandon(o);
    return rc;
}

static tm_status append_twice(const char *path) {
    tm_append *a;
    TM_TRY(tm_append_open(&a, path, true));
    tm_status rc = tm_append_line(a, "line", 4);
    if (rc == TM_OK) rc = tm_append_line(a, "another\n", 8);
    if (rc == TM_OK) rc = tm_append_sync(a);
    tm_append_close(a);
    return rc;
}

static tm_status read_through(tm_file *f, tm_buf *out) {
    tm_file_cursor c = {.file = f};
    for (size_t got = 1; got;) {
        TM_TRY(tm_buf_reserve(out, 65536));
        TM_TRY(tm_file_cursor_read(&c, out->data + out->len, 65536, &got));
        out->len += got;
    }
    tm_file_forget(f, 0, tm_file_size(f));
    return TM_OK;
}

static tm_status compare(const char *copy) {
    tm_file *f;
    tm_buf all = {0};
    TM_TRY(tm_file_open_in(&f, walk_dir(), copy));
    tm_status rc = read_through(f, &all);
    if (rc == TM_OK && (all.len != FILE_SIZE || memcmp(all.data + 18, bytes + 18, FILE_SIZE - 18) != 0 ||
                        memcmp(all.data, bytes, 10) != 0 || memcmp(all.data + 10, "in place", 8) != 0))
        rc = wrong("the copy differs");
    tm_file_close(f);
    tm_buf_free(&all);
    return rc;
}

static tm_status count_entry(void *ctx, const char *name, bool is_dir) {
    (void)name;
    *(unsigned *)ctx += is_dir ? 100 : 1;
    return TM_OK;
}

static tm_status folders(void) {
    unsigned seen = 0;
    TM_TRY(tm_make_dirs(at("new/in/it")));
    TM_TRY(append_twice(at("new/log")));
    TM_TRY(tm_publish_dir(at("new"), at("there")));
    TM_TRY(tm_make_dirs(at("new/only")));
    TM_TRY(tm_publish_dir(at("new"), at("there"))); /* in the place of another */
    TM_TRY(tm_list_dir(at("there"), count_entry, &seen));
    if (seen != 100) return wrong("the folder is not the second one");
    TM_TRY(tm_rename_path(at("there"), at("moved")));
    TM_TRY(tm_retire_dir(at("moved")));
    TM_TRY(tm_retire_dir(at("moved")));
    TM_TRY(tm_make_dirs(at("a/b/c")));
    TM_TRY(tm_remove_tree(at("a")));
    return tm_path_exists(at("moved")) || tm_path_exists(at("a")) ? wrong("a removed folder is there") : TM_OK;
}

static tm_status files_life(void *ctx) {
    tm_dir_lock *hold;
    (void)ctx;
    walk_clear(walk_dir());
    TM_TRY(tm_lock_dir(&hold, at("held"), 0));
    tm_unlock_dir(hold);
    TM_TRY(write_file(at("file")));
    TM_TRY(tm_copy_file(at("file"), at("held/copy")));
    TM_TRY(compare("held/copy"));
    return folders();
}

static void test_files(void **state) {
    static const char *const kinds[] = {"eio", "enospc", "einval", "eagain", "enosys"};
    (void)state;
    fill(bytes, 0, sizeof bytes, 1);
    assert_true(walk_every(files_life, NULL, kinds, TM_COUNT(kinds), walk_points(4)) >= 100);
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

typedef struct engine_life_case {
    const char *engine;
    unsigned char *memory;
} engine_life_case;

static tm_status each_request(tm_io *io, tm_io_req *r, unsigned n) {
    tm_io_req *reqs[8], *done[8];
    tm_status rc = TM_OK;
    for (unsigned i = 0; i < n; i++) reqs[i] = &r[i];
    TM_TRY(tm_io_submit(io, reqs, n));
    while (tm_io_in_flight(io) && rc == TM_OK) {
        unsigned got;
        rc = tm_io_wait(io, done, 8, &got, true);
        for (unsigned i = 0; i < got && rc == TM_OK; i++)
            if (done[i]->status != TM_OK) rc = tm_io_req_fail(done[i]);
    }
    return rc;
}

static tm_status transfer(tm_io *io, const tm_io_file *f, engine_life_case *c) {
    enum { N = 4, EACH = 8192 };
    static tm_io_req r[N], sync[2]; /* the engine's until it is closed, where a life ends early */
    for (unsigned i = 0; i < N; i++)
        r[i] = (tm_io_req){
            .op = TM_IO_WRITE, .file = f[i % 2], .offset = i * EACH, .buf = c->memory + i * EACH, .len = EACH};
    fill(c->memory, 0, N * EACH, 3);
    TM_TRY(each_request(io, r, N));
    for (unsigned i = 0; i < 2; i++) sync[i] = (tm_io_req){.op = TM_IO_SYNC, .file = f[i]};
    TM_TRY(each_request(io, sync, 2));
    memset(c->memory, 0, N * EACH);
    for (unsigned i = 0; i < N; i++) r[i].op = TM_IO_READ;
    TM_TRY(each_request(io, r, N));
    return strcmp(c->engine, "null") == 0 || matches(c->memory, 0, N * EACH, 3) ? TM_OK
                                                                                : wrong("other bytes came back");
}

static tm_status engine_life(void *ctx) {
    engine_life_case *c = ctx;
    tm_io_run *run = NULL;
    tm_io *io = NULL;
    tm_io_file f[2];
    tm_status rc;
    walk_clear(walk_dir());
    TM_GO(tm_io_run_create(&run, walk_dir(), &(tm_io_run_opts){.allow_tmpfs = true}));
    TM_GO(tm_io_file_create(run, "direct", FILE_BYTES, false, &f[0]));
    TM_GO(tm_io_file_create(run, "buffered", FILE_BYTES, true, &f[1]));
    f[0].lane = 0, f[1].lane = 1;
    TM_GO(tm_io_open(&io, &(tm_io_opts){.engine = c->engine, .queue_depth = 2, .lanes = 2, .block_bytes = 4096}));
    TM_GO(tm_io_register(io, c->memory, FILE_BYTES));
    TM_GO(tm_io_register_files(io, f, 2));
    rc = transfer(io, f, c);
done:
    tm_io_close(io);
    if (run) {
        tm_error said = *tm_error_get();
        (void)!tm_io_run_remove(run);
        tm_error_clear(), tm_error_set(&said);
    }
    return rc;
}

/* Where io_uring is forbidden, what stands on it is passed over. */
static bool is_here(const char *engine) {
    tm_io *io = test_engine(&(engine_case){engine, 0}, 2, 4096);
    tm_io_close(io);
    return io != NULL;
}

static void test_engines(void **state) {
    static const char *const engines[] = {"auto",
                                          "sync",
                                          "threads",
                                          "null",
                                          "mem",
                                          "delay:latency=1e-5+threads",
                                          "error:at=1000,errno=eio+uring",
                                          "sim:seed=3,reorder=0.5+sync"};
    static const char *const kinds[] = {"eio", "enomem"};
    (void)state;
    engine_life_case c = {.memory = test_memory(FILE_BYTES)};
    for (size_t i = 0; i < TM_COUNT(engines); i++) {
        if (!is_here(engines[i])) continue;
        c.engine = engines[i];
        assert_true(walk_every(engine_life, &c, kinds, TM_COUNT(kinds), walk_points(16)) >= 10);
    }
    free(c.memory);
}

/* ---- arguments that cannot be ------------------------------------------------------------------------------------ */

static char too_long[5000];

static void test_paths_refused(void **state) {
    tm_out *o;
    tm_file *f;
    tm_io_run *run;
    (void)state;
    walk_clear(walk_dir());
    memset(too_long, 'x', sizeof too_long - 1), too_long[0] = '/', too_long[4500] = '/';
    FAILS(tm_out_create(&o, too_long), TM_EINPUT, "path is too long");
    FAILS(tm_out_create(&o, at("no/such/file")), TM_EINPUT, "its folder does not exist");
    FAILS(tm_retire_dir(too_long), TM_EINPUT, "path is too long");
    FAILS(tm_file_open(&f, at("absent")), TM_EINPUT, "absent");
    FAILS(tm_io_run_create(&run, "", &(tm_io_run_opts){0}), TM_EINPUT, "is empty");
    FAILS(tm_io_run_create(&run, NULL, NULL), TM_EINPUT, "is empty");
    FAILS(tm_io_run_create(&run, walk_dir(), &(tm_io_run_opts){.id = "a b", .allow_tmpfs = true}), TM_EINPUT, "run id");
    FAILS(tm_io_run_create(&run, walk_dir(), &(tm_io_run_opts){.id = "", .allow_tmpfs = true}), TM_EINPUT, "run id");
    FAILS(tm_io_run_reopen(&run, too_long, NULL, true, 0), TM_EINPUT, "path is too long");
    FAILS(tm_io_run_reopen(&run, at("absent"), NULL, true, 0), TM_EINPUT, "absent");
    assert_true(tm_remove_empty(at("absent")));
    OK(tm_make_dirs(at("full/of")));
    assert_false(tm_remove_empty(at("full")));
    assert_true(tm_remove_empty(at("full/of")));
}

static void test_files_refused(void **state) {
    tm_io_run *run;
    tm_io_file f;
    tm_out *o;
    (void)state;
    walk_clear(walk_dir());
    char slashes[200];
    snprintf(slashes, sizeof slashes, "%s///", walk_dir());
    OK(tm_io_run_create(&run, slashes, &(tm_io_run_opts){.allow_tmpfs = true}));
    FAILS(tm_io_file_create(run, ".hidden", 4096, true, &f), TM_EBUG, "offload file name");
    FAILS(tm_io_file_create(run, "a/b", 4096, true, &f), TM_EBUG, "offload file name");
    FAILS(tm_io_file_create(run, "a", 0, true, &f), TM_EBUG, "of 0 bytes");
    FAILS(tm_io_file_create(run, "a", UINT64_MAX, true, &f), TM_EBUG, "bytes");
    FAILS(tm_io_file_open(run, "a", 4096, true, &f), TM_ECORRUPT, "is missing");
    OK(tm_io_file_create(run, "b", 4096, true, &f));
    FAILS(tm_io_file_open(run, "b", 8192, true, &f), TM_ECORRUPT, "was cut off");
    char inside[600];
    snprintf(inside, sizeof inside, "%s/folder", tm_io_run_path(run));
    assert_int_equal(mkdir(inside, 0700), 0);
    FAILS(tm_io_file_open(run, "folder", 0, true, &f), TM_EIO, "Is a directory");
    OK(tm_io_run_remove(run));
    OK(tm_out_create(&o, at("out")));
    FAILS(tm_out_write_at(o, UINT64_MAX, "x", 1), TM_EBUG, "beyond 2^63");
    FAILS(tm_out_write_at(o, INT64_MAX, "xx", 2), TM_EBUG, "beyond 2^63");
    tm_out_abandon(o);
}

static void test_requests_refused(void **state) {
    static char at_byte[8192] __attribute__((aligned(4096)));
    (void)state;
    const tm_io_file file = {.fd = 0, .alignment = 4096}, closed = {.fd = -1}, elsewhere = {.fd = 0, .lane = 3};
    const struct {
        tm_io_req r;
        const char *says;
    } rows[] = {
        {{.op = TM_IO_READ, .file = closed}, "file is not open"},
        {{.op = TM_IO_READ, .file = elsewhere}, "no such lane"},
        {{.op = (tm_io_op)9, .file = file, .buf = at_byte, .len = 4096}, "unknown operation"},
        {{.op = TM_IO_READ, .file = file, .len = 4096}, "length is 0"},
        {{.op = TM_IO_WRITE, .file = file, .buf = at_byte}, "length is 0"},
        {{.op = TM_IO_READ, .file = file, .buf = at_byte, .offset = UINT64_MAX, .len = 4096}, "beyond 2^63"},
        {{.op = TM_IO_READ, .file = file, .buf = at_byte, .offset = INT64_MAX, .len = 4096}, "beyond 2^63"},
        {{.op = TM_IO_READ, .file = file, .buf = at_byte + 1, .len = 4096}, "not aligned"},
    };
    static const tm_io_opts wrong_opts[] = {
        {.lanes = 17},
        {.queue_depth = 5000},
        {.threads = 300},
        {.block_bytes = 1u << 31},
        {.order_seed = 1},
        {.order_seed = 1, .engine = "threads"},
        {.order_seed = 1, .engine = "sync", .lanes = 2},
        {.engine = "a-name-that-is-much-longer-than-any-engine-with-all-of-its-layers-and-their-options-could-ever-be,"
                   "and-goes-on-for-quite-a-while-so-that-no-buffer-of-a-sensible-size-holds-it,and-then-some-more,"
                   "until-it-is-long-enough-for-everybody-to-agree-that-this-is-no-name-of-an-engine-at-all"},
    };
    tm_io *io;
    OK(tm_io_open(&io, &(tm_io_opts){.engine = "sync"}));
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_io_req r = rows[i].r, *one = &r;
        FAILS(tm_io_submit(io, &one, 1), TM_EBUG, rows[i].says);
    }
    FAILS(tm_io_register(io, NULL, 10), TM_EBUG, "no memory");
    FAILS(tm_io_register(io, at_byte, 0), TM_EBUG, "no memory");
    tm_io_close(io);
    for (size_t i = 0; i < TM_COUNT(wrong_opts); i++) FAILS(tm_io_open(&io, &wrong_opts[i]), TM_EINPUT, "ngine");
    tm_io_close(NULL);
}

static int gone(void **state) {
    (void)state;
    walk_gone(walk_dir());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_directories),
        cmocka_unit_test(test_shared_folders),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_engines),
        cmocka_unit_test(test_paths_refused),
        cmocka_unit_test(test_files_refused),
        cmocka_unit_test(test_requests_refused),
    };
    tm_log_set_level(TM_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, gone);
}
