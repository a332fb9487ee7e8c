/* Every fault at every place: the right bytes or a clear error, every request exactly once, nothing left behind. */
#include "tests/io/world.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

enum { N_REQS = 3, LEN = 20480, BLOCK = 8192, PIECES = 9 }; /* 8192 + 8192 + 4096, three times */

typedef enum outcome {
    PASSES,     /* tried again until it is done */
    FAILS_ONCE, /* one request (sticky: at least one) ends with an error */
    CORRUPTS,   /* nobody is told: what checksums are for */
    EITHER      /* done or failed, but not wrong */
} outcome;

typedef struct kind_case {
    const char *kind;
    outcome once, sticky;
    tm_status status;
    int err;
} kind_case;

static const kind_case transfer_kinds[] = {
    {"eio", FAILS_ONCE, FAILS_ONCE, TM_EIO, EIO},
    {"enospc", FAILS_ONCE, FAILS_ONCE, TM_ENOSPC, ENOSPC},
    {"einval", FAILS_ONCE, FAILS_ONCE, TM_EIO, EINVAL},
    {"efbig", FAILS_ONCE, FAILS_ONCE, TM_ENOSPC, EFBIG},
    {"short", PASSES, EITHER, TM_EIO, EIO},
    {"eintr", PASSES, FAILS_ONCE, TM_EIO, EINTR},
    {"eagain", PASSES, FAILS_ONCE, TM_EIO, EAGAIN},
    {"delay", PASSES, PASSES, TM_OK, 0},
    {"flip", CORRUPTS, CORRUPTS, TM_OK, 0},
    {"lost", CORRUPTS, CORRUPTS, TM_OK, 0},
    {"misdirect", CORRUPTS, CORRUPTS, TM_OK, 0},
};
static const kind_case zero_read = {"zero", FAILS_ONCE, FAILS_ONCE, TM_EIO, 0};
static const kind_case zero_write = {"zero", PASSES, FAILS_ONCE, TM_EIO, EIO};
static const kind_case sync_kinds[] = {
    {"eio", FAILS_ONCE, FAILS_ONCE, TM_EIO, EIO},
    {"enospc", FAILS_ONCE, FAILS_ONCE, TM_ENOSPC, ENOSPC},
    {"eintr", PASSES, FAILS_ONCE, TM_EIO, EINTR},
};

typedef struct result {
    unsigned failed, wrong; /* requests that failed; reads that succeeded and are not what was written */
    tm_status status;
    int err;
} result;

static void note(result *r, const tm_io_req *q) {
    if (q->status == TM_OK) return;
    r->failed++;
    r->status = q->status;
    r->err = q->sys_errno;
    assert_int_equal(tm_io_req_fail(q), q->status);
    assert_true(strlen(tm_error_get()->text) > 20);
    tm_error_clear();
}

/* Writes, syncs, reads back. */
static result scenario(tm_io *io, tm_io_file f, char *buf, unsigned seed) {
    result r = {0};
    tm_io_req w[N_REQS], s = {.op = TM_IO_SYNC, .file = f}, q[N_REQS];
    for (unsigned i = 0; i < N_REQS; i++) {
        char *at = buf + i * LEN;
        fill(at, i * LEN, LEN, seed);
        w[i] = (tm_io_req){.op = TM_IO_WRITE, .file = f, .offset = 8192 + i * LEN, .buf = at, .len = LEN};
        q[i] = w[i];
        q[i].op = TM_IO_READ;
        submit_one(io, &w[i]);
    }
    drain(io);
    submit_one(io, &s);
    drain(io);
    for (unsigned i = 0; i < N_REQS; i++) {
        assert_true(matches(q[i].buf, i * LEN, LEN, seed)); /* a write leaves its memory as it was */
        memset(q[i].buf, 0, LEN);
        submit_one(io, &q[i]);
    }
    drain(io);
    for (unsigned i = 0; i < N_REQS; i++) {
        note(&r, &w[i]);
        note(&r, &q[i]);
        r.wrong += w[i].status == TM_OK && q[i].status == TM_OK && !matches(q[i].buf, i * LEN, LEN, seed);
    }
    note(&r, &s);
    return r;
}

static void check(const char *spec, const kind_case *k, outcome expected, bool sticky, const result *r) {
    bool good = true;
    switch (expected) {
    case PASSES:
        good = r->failed == 0 && r->wrong == 0;
        break;
    case FAILS_ONCE:
        good =
            (sticky ? r->failed >= 1 : r->failed == 1) && r->wrong == 0 && r->status == k->status && r->err == k->err;
        break;
    case CORRUPTS:
        good = r->failed == 0 && r->wrong >= 1;
        break;
    case EITHER:
        good = r->wrong == 0 && (r->failed == 0 || r->status == k->status);
        break;
    }
    if (!good)
        fail_msg("%s: %u failed (%s, %s), %u wrong", spec, r->failed, tm_status_name(r->status), strerror(r->err),
                 r->wrong);
}

static tm_io_run *run;
static tm_io_file direct_file, buffered_file;

static void one_fault(const engine_case *e, bool buffered, const char *call, const kind_case *k, unsigned at,
                      bool sticky, unsigned total) {
    static unsigned seed; /* what an earlier fault left in the file must not look right */
    tm_io *io = test_engine(e, 2, BLOCK);
    if (!io) return;
    char *buf = test_memory(N_REQS * LEN), spec[80];
    snprintf(spec, sizeof spec, "%s:%u:%s:%s", call, at, k->kind, sticky ? "sticky" : "once");
    OK(tm_fault_set(spec));
    OK(tm_io_register(io, buf, N_REQS * LEN));
    tm_io_file f = buffered ? buffered_file : direct_file;
    OK(tm_io_register_files(io, &f, 1));
    alarm(60); /* a hang ends the test */
    result r = scenario(io, f, buf, ++seed);
    alarm(0);
    OK(tm_fault_set(NULL));
    char name[200];
    snprintf(name, sizeof name, "%s%s%s, %s", e->name, e->order_seed ? " (random order)" : "",
             buffered ? ", buffered" : "", spec);
    check(name, k, at > total ? PASSES : sticky ? k->sticky : k->once, sticky, &r);
    tm_io_close(io);
    free(buf);
}

static void kinds_at(const engine_case *e, const char *call, const kind_case *k, unsigned total) {
    static const unsigned places[] = {1, 2, 5, PIECES, PIECES + 1000};
    for (unsigned i = 0; i < TM_COUNT(places); i++) {
        if (places[i] > total && places[i] <= PIECES) continue;
        one_fault(e, i % 2, call, k, places[i], false, total);
        /* For ever: from the first and from the last on; between them there is nothing new, and it takes its time. */
        if (places[i] == 1 || places[i] == PIECES) one_fault(e, i % 2 == 0, call, k, places[i], true, total);
    }
}

static void test_engine_faults(void **state) {
    const engine_case *e = *state;
    bool calls = strcmp(e->name, "uring") != 0; /* uring makes no pread and pwrite */
    for (unsigned k = 0; k < TM_COUNT(transfer_kinds); k++) {
        kinds_at(e, "io_read", &transfer_kinds[k], PIECES);
        kinds_at(e, "io_write", &transfer_kinds[k], PIECES);
        if (!calls) continue;
        kinds_at(e, "pread", &transfer_kinds[k], PIECES);
        kinds_at(e, "pwrite", &transfer_kinds[k], PIECES);
    }
    kinds_at(e, "io_read", &zero_read, PIECES);
    kinds_at(e, "io_write", &zero_write, PIECES);
    for (unsigned k = 0; k < TM_COUNT(sync_kinds); k++) {
        kinds_at(e, "io_sync", &sync_kinds[k], 1);
        if (calls) kinds_at(e, "fdatasync", &sync_kinds[k], 1);
    }
}

/* ---- the ring itself ---- */

static void test_ring_enter(void **state) {
    (void)state;
    static const kind_case kinds[] = {
        {"eintr", PASSES, PASSES, TM_OK, 0}, {"eagain", PASSES, PASSES, TM_OK, 0}, {"ebusy", PASSES, PASSES, TM_OK, 0}};
    const engine_case uring = {"uring", 0};
    for (unsigned k = 0; k < TM_COUNT(kinds); k++) {
        for (unsigned at = 1; at < 12; at++) one_fault(&uring, at % 2, "uring_enter", &kinds[k], at, false, 1000);
    }
}

/* A ring that the kernel refuses for good: the wait says so, close does not hang, memory is not written later. */
static void test_ring_broken(void **state) {
    (void)state;
    static const char *const specs[] = {"uring_enter:1:eio:sticky", "uring_enter:2:eio:once",
                                        "uring_enter:4:enomem:sticky", "uring_enter:1:eagain:sticky",
                                        "uring_enter:3:eintr:sticky"};
    for (unsigned i = 0; i < TM_COUNT(specs); i++) {
        tm_io *io = test_engine(&(engine_case){"uring", 0}, 2, BLOCK);
        if (!io) return;
        char *buf = test_memory(LEN);
        tm_io_req r = {.op = TM_IO_READ, .file = direct_file, .buf = buf, .len = LEN};
        OK(tm_fault_set(specs[i]));
        alarm(60);
        submit_one(io, &r);
        tm_status rc = TM_OK;
        while (rc == TM_OK && tm_io_in_flight(io)) {
            tm_io_req *done[1];
            unsigned n;
            rc = tm_io_wait(io, done, 1, &n, true);
        }
        if (rc != TM_OK) FAILS(rc, TM_EIO, "ring stopped");
        OK(tm_fault_set(NULL));
        tm_io_close(io);
        alarm(0);
        free(buf);
    }
}

/* Bytes come one at a time, so that what the broken ring still has is waited for many times over: close returns when
 * the kernel has written the last one. */
typedef struct dripper {
    int fd;
    unsigned n;
} dripper;

static void *drip(void *arg) {
    const dripper *d = arg;
    for (unsigned i = 0; i < d->n; i++) {
        usleep(1500);
        if (write(d->fd, "x", 1) != 1) return NULL;
    }
    return NULL;
}

static void test_close_waits_for_all(void **state) {
    (void)state;
    enum { N = 120 };
    static char got[N], more;
    tm_io_req r[N];
    int ends[2], zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    pthread_t t;
    tm_io *io = test_engine(&(engine_case){"uring", 0}, N + 1, BLOCK);
    if (!io) return;
    assert_true(zero >= 0);
    assert_int_equal(pipe(ends), 0);
    memset(got, 0, sizeof got);
    for (unsigned i = 0; i < N; i++) {
        r[i] = (tm_io_req){
            .op = TM_IO_READ, .file = {.fd = ends[0], .index = -1, .name = "pipe"}, .buf = got + i, .len = 1};
        submit_one(io, &r[i]);
    }
    OK(tm_fault_set("uring_enter:1:einval:sticky"));
    tm_io_req left = {.op = TM_IO_READ, .file = {.fd = zero, .index = -1, .name = "zero"}, .buf = &more, .len = 1};
    submit_one(io, &left); /* has an entry that the kernel does not get */
    tm_io_req *done[1];
    unsigned n;
    FAILS(tm_io_wait(io, done, 1, &n, true), TM_EIO, "ring stopped");
    OK(tm_fault_set(NULL));
    dripper d = {ends[1], N};
    assert_int_equal(pthread_create(&t, NULL, drip, &d), 0);
    tm_io_close(io);
    for (unsigned i = 0; i < N; i++) assert_int_equal(got[i], 'x');
    assert_int_equal(pthread_join(t, NULL), 0);
    close(ends[0]);
    close(ends[1]);
    close(zero);
}

/* The kernel tells once that written pages did not reach the disk, and dropping them from the cache hears it first: the
 * sync has to say it, and every later one. */
static void test_write_back_fails(void **state) {
    (void)state;
    static const char *const specs[] = {"sync_file_range:1:eio:once", "sync_file_range:12:enospc:once"};
    tm_io_file f;
    OK(tm_io_file_create(run, "write_back", 16 * BLOCK, true, &f));
    char *buf = test_memory(16 * BLOCK);
    memset(buf, 1, 16 * BLOCK);
    for (unsigned i = 0; i < 2 * TM_COUNT(specs); i++) {
        tm_io *io = test_engine(&engine_cases[i % 2 ? 2 : 0], 2, BLOCK);
        tm_io_req w = {.op = TM_IO_WRITE, .file = f, .buf = buf, .len = 16 * BLOCK}, s = {.op = TM_IO_SYNC, .file = f};
        OK(tm_fault_set(specs[i / 2]));
        submit_one(io, &w);
        assert_int_equal(drain(io), 0);
        OK(tm_fault_set(NULL));
        for (int again = 0; again < 2; again++) {
            submit_one(io, &s);
            assert_int_equal(drain(io), 1);
            assert_int_equal(s.status, i / 2 ? TM_ENOSPC : TM_EIO);
        }
        tm_io_close(io);
    }
    free(buf);
}

static void test_fallback(void **state) {
    (void)state;
    static const char *const kinds[] = {"eperm", "enosys", "enomem"};
    for (unsigned i = 0; i < TM_COUNT(kinds); i++) {
        char spec[64];
        tm_io *io;
        snprintf(spec, sizeof spec, "uring_setup:1:%s:sticky", kinds[i]);
        OK(tm_fault_set(spec));
        OK(tm_io_open(&io, NULL));
        assert_string_equal(tm_io_engine_name(io), "threads");
        assert_int_equal(tm_error_get()->code, TM_OK); /* the reason was handled */
        tm_io_close(io);
        assert_int_not_equal(tm_io_open(&io, &(tm_io_opts){.engine = "uring"}), TM_OK);
        assert_non_null(strstr(tm_error_get()->text, "io_uring is not available"));
        tm_error_clear();
    }
    OK(tm_fault_set(NULL));
    /* SINGLE_ISSUER is unknown to kernels before 6.0: EINVAL, and the plain ring is tried. */
    tm_io *io = test_engine(&(engine_case){"uring", 0}, 2, 0);
    if (!io) return;
    tm_io_close(io);
    const kind_case k = {"einval", PASSES, PASSES, TM_OK, 0};
    OK(tm_fault_set("uring_setup:1:einval:once"));
    io = test_engine(&(engine_case){"uring", 0}, 2, BLOCK);
    char *buf = test_memory(N_REQS * LEN);
    result r = scenario(io, direct_file, buf, 77);
    check("plain ring", &k, PASSES, false, &r);
    tm_io_close(io);
    free(buf);
    OK(tm_fault_set(NULL));
}

static void test_unregistered(void **state) {
    (void)state;
    const kind_case k = {"enomem", PASSES, PASSES, TM_OK, 0};
    for (int sticky = 0; sticky < 2; sticky++)
        one_fault(&(engine_case){"uring", 0}, false, "register_buffers", &k, 1, sticky, 1);
    for (int sticky = 0; sticky < 2; sticky++)
        one_fault(&(engine_case){"uring", 0}, false, "register_files", &k, 1, sticky, 1);
}

/* ---- runs, files, results ---- */

static char base[128];

static tm_status ignore_name(void *ctx, const char *name, bool is_dir) {
    (void)ctx, (void)name, (void)is_dir;
    return TM_OK;
}

static tm_status use_run(void) {
    tm_io_run *fresh;
    tm_io_file f;
    TM_TRY(tm_io_run_create(&fresh, base, &(tm_io_run_opts){.allow_tmpfs = true}));
    tm_status rc = tm_io_file_create(fresh, "weight_hi", 65536, false, &f);
    if (rc == TM_OK) rc = tm_io_file_create(fresh, "weight_lo", 65536, true, &f);
    return tm_first(rc, tm_io_run_remove(fresh));
}

static tm_status use_out(const char *path) {
    tm_out *o;
    TM_TRY(tm_out_create(&o, path));
    tm_status rc = tm_out_append(o, "0123456789", 10);
    if (rc == TM_OK) rc = tm_out_write_at(o, 3, "abc", 3);
    if (rc == TM_OK) rc = tm_out_flush(o);
    if (rc == TM_OK) return tm_out_commit(o);
    tm_out_abandon(o);
    return rc;
}

static tm_status use_scratch(const char *path) {
    tm_out *o;
    tm_file *f;
    TM_TRY(tm_out_create_scratch(&o, path));
    tm_status rc = tm_out_append(o, "0123456789", 10);
    if (rc == TM_OK) {
        rc = tm_out_read_back(o, &f);
        tm_file_close(f);
        return rc;
    }
    tm_out_abandon(o);
    return rc;
}

static tm_status use_files(void) {
    char path[160];
    tm_append *a;
    tm_buf text = {0};
    snprintf(path, sizeof path, "%s/res", base);
    TM_TRY(use_out(path));
    TM_TRY(use_scratch(path));
    tm_status rc = tm_file_slurp(path, 100, &text);
    if (rc == TM_OK) assert_string_equal(text.data, "012abc6789");
    tm_buf_free(&text);
    TM_TRY(rc);
    snprintf(path, sizeof path, "%s/log", base);
    TM_TRY(tm_append_open(&a, path, true));
    rc = tm_append_line(a, "one", 3);
    tm_append_close(a);
    return tm_first(rc, tm_list_dir(base, ignore_name, NULL));
}

static tm_status life(void) {
    char path[160];
    TM_TRY(tm_make_dirs(base));
    TM_TRY(use_run());
    TM_TRY(use_files());
    snprintf(path, sizeof path, "%s/a/b/c", base);
    TM_TRY(tm_make_dirs(path));
    snprintf(path, sizeof path, "%s/a", base);
    return tm_remove_tree(path);
}

static tm_status no_leftover(void *ctx, const char *name, bool is_dir) {
    (void)is_dir;
    if (strncmp(name, ".tmp-", 5) == 0 || strncmp(name, "run-", 4) == 0)
        fail_msg("%s: left %s", (const char *)ctx, name);
    return TM_OK;
}

/* The fault waits for call number `at`; did the life get that far? */
static bool met(const char *call, unsigned at) {
    for (unsigned i = 0; i < at; i++) {
        if (tm_fault_hit(call, NULL)) return false;
    }
    return true;
}

static bool one_life(const char *call, const char *kind, unsigned at, bool sticky) {
    char spec[80];
    snprintf(spec, sizeof spec, "%s:%u:%s:%s", call, at, kind, sticky ? "sticky" : "once");
    OK(tm_fault_set(spec));
    alarm(60);
    tm_status rc = life();
    alarm(0);
    bool reached = sticky || met(call, at);
    OK(tm_fault_set(NULL));
    if (!reached && rc != TM_OK) fail_msg("%s, not reached: %s", spec, tm_error_get()->text);
    if (rc != TM_OK) assert_true(strlen(tm_error_get()->text) > 10);
    tm_error_clear();
    /* Where removing itself fails for good nothing can be promised. */
    bool removal_fails = strcmp(call, "unlink") == 0;
    if (!removal_fails && tm_path_is_dir(base)) OK(tm_list_dir(base, no_leftover, spec));
    OK(tm_remove_tree(base));
    return reached;
}

/* Fails the i-th call, for every i until a life passes without meeting one: SQLite's way. */
static void test_life(void **state) {
    (void)state;
    static const char *const calls[] = {"openat",  "pread",  "pwrite", "write", "fsync", "fallocate", "fstat",
                                        "fstatfs", "rename", "unlink", "mkdir", "flock", "alloc"};
    static const char *const kinds[] = {"eio", "enospc", "eintr", "eacces", "short", "zero"};
    for (unsigned c = 0; c < TM_COUNT(calls); c++) {
        bool transfer = c >= 1 && c <= 3;
        for (unsigned k = 0; k < (transfer ? 6u : strcmp(calls[c], "alloc") == 0 ? 1u : 4u); k++) {
            unsigned last = 1;
            while (one_life(calls[c], kinds[k], last, false)) assert_true(++last < 500);
            assert_true(last > 1); /* each of these calls is made */
            for (unsigned at = 1; at < last; at++) one_life(calls[c], kinds[k], at, true);
        }
    }
}

static int set_up(void **state) {
    (void)state;
    snprintf(base, sizeof base, "%s/life", test_dir());
    run = test_run();
    OK(tm_io_file_create(run, "direct", 131072, false, &direct_file));
    OK(tm_io_file_create(run, "buffered", 131072, true, &buffered_file));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    OK(tm_io_run_remove(run));
    test_dir_remove();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"sync", test_engine_faults, NULL, NULL, (void *)(uintptr_t)&engine_cases[0]},
        {"sync, random order", test_engine_faults, NULL, NULL, (void *)(uintptr_t)&engine_cases[1]},
        {"threads", test_engine_faults, NULL, NULL, (void *)(uintptr_t)&engine_cases[2]},
        {"uring", test_engine_faults, NULL, NULL, (void *)(uintptr_t)&engine_cases[3]},
        cmocka_unit_test(test_ring_enter),
        cmocka_unit_test(test_ring_broken),
        cmocka_unit_test(test_close_waits_for_all),
        cmocka_unit_test(test_write_back_fails),
        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_unregistered),
        cmocka_unit_test(test_life),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
