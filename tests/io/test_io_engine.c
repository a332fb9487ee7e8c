/* Every engine does the same: bytes, completions, sleeping and waking. */
#include "tests/io/world.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#if defined __has_feature
#if __has_feature(thread_sanitizer)
#define THREADS_SANITIZED true
#endif
#endif
#ifndef THREADS_SANITIZED
#define THREADS_SANITIZED false
#endif

/* ---- bytes ---- */

/* Writes `n` requests of odd sizes one after another, reads them back through the engine and through plain pread. */
static void round_trip(const engine_case *e, bool buffered, unsigned depth, uint32_t block, bool registered) {
    tm_io *io = test_engine(e, depth, block);
    if (!io) return;
    tm_io_run *run = test_run();
    uint32_t align = buffered ? 1 : tm_io_run_alignment(run);
    static const uint32_t sizes[] = {4096, 1, 511, 4097, 65536, 300007, 12288, 1048576 + 8192, 77};
    enum { N = TM_COUNT(sizes) };
    tm_io_req w[N], r[N], *batch[N];
    uint64_t offset = 0, total = 0;
    for (unsigned i = 0; i < N; i++) total += tm_round_up(sizes[i], align);
    tm_io_file f;
    OK(tm_io_file_create(run, "data", total, buffered, &f));
    char *out = test_memory(total), *in = test_memory(total);
    fill(out, 0, total, depth);
    memset(in, 0, total);
    if (registered) {
        OK(tm_io_register(io, out, total));
        OK(tm_io_register(io, in, total));
        OK(tm_io_register_files(io, &f, 1));
    }
    for (unsigned i = 0; i < N; i++) {
        uint32_t len = (uint32_t)tm_round_up(sizes[i], align);
        w[i] =
            (tm_io_req){.op = TM_IO_WRITE, .file = f, .offset = offset, .buf = out + offset, .len = len, .user = &w[i]};
        r[i] =
            (tm_io_req){.op = TM_IO_READ, .file = f, .offset = offset, .buf = in + offset, .len = len, .user = &r[i]};
        batch[i] = &w[i];
        offset += len;
    }
    OK(tm_io_submit(io, batch, N));
    assert_int_equal(drain(io), 0);
    tm_io_req sync = {.op = TM_IO_SYNC, .file = f};
    submit_one(io, &sync);
    assert_int_equal(drain(io), 0);
    for (unsigned i = 0; i < N; i++) submit_one(io, &r[i]);
    assert_int_equal(drain(io), 0);
    assert_memory_equal(in, out, total);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(r[i].done, r[i].len);
        assert_true(r[i].complete_ns >= r[i].submit_ns && r[i].submit_ns > 0);
    }
    tm_file *plain;
    OK(tm_file_open(&plain, f.name));
    memset(in, 0, total);
    OK(tm_file_read_at(plain, 0, in, total));
    assert_memory_equal(in, out, total);
    tm_file_close(plain);
    tm_io_stats s;
    tm_io_get_stats(io, &s);
    assert_int_equal(s.read_bytes, total);
    assert_int_equal(s.write_bytes, total);
    assert_true(s.reads == N && s.writes == N && s.syncs == 1);
    tm_io_close(io);
    OK(tm_io_run_remove(run));
    free(out);
    free(in);
}

static void test_round_trip(void **state) {
    (void)state;
    static const unsigned depths[] = {1, 2, 7, 16};
    static const uint32_t blocks[] = {4096, 65536, 0};
    for (unsigned e = 0; e < N_ENGINES; e++) {
        for (unsigned d = 0; d < TM_COUNT(depths); d++) {
            for (unsigned b = 0; b < TM_COUNT(blocks); b++) {
                round_trip(&engine_cases[e], false, depths[d], blocks[b], d % 2);
                round_trip(&engine_cases[e], true, depths[d], blocks[b], d % 2);
            }
        }
    }
}

/* What the kernel pins for this process; 0 where it does not say. */
static unsigned long pinned_kib(void) {
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) (void)sscanf(line, "VmPin: %lu", &kib);
    if (f) fclose(f);
    return kib;
}

/* A request that crosses the border between two registered GiB is not in one buffer. Both are registered or neither. */
static void test_gib_border(void **state) {
    (void)state;
    tm_io *io = test_engine(&(engine_case){"uring", 0}, 4, 0);
    if (!io || tm_mem_available_bytes() < 4 * TM_GIB) {
        TEST_SKIP_PART("registered memory beyond 1 GiB: needs io_uring and 4 GiB of free memory");
        tm_io_close(io);
        return;
    }
    size_t bytes = TM_GIB + 8 * TM_MIB;
    char *slab = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(slab != MAP_FAILED);
    unsigned long before = pinned_kib();
    OK(tm_fault_set("register_buffers:2:enomem:once"));
    OK(tm_io_register(io, slab, bytes));
    OK(tm_fault_set(NULL));
    assert_true(pinned_kib() <= before);
    OK(tm_io_register(io, slab, bytes));
    tm_io_run *run = test_run();
    tm_io_file f;
    OK(tm_io_file_create(run, "data", 16 * TM_MIB, false, &f));
    static const uint64_t at[] = {0, TM_GIB - 4096, TM_GIB - 2 * TM_MIB, TM_GIB, TM_GIB + 4 * TM_MIB};
    for (unsigned i = 0; i < TM_COUNT(at); i++) {
        tm_io_req w = {.op = TM_IO_WRITE, .file = f, .buf = slab + at[i], .len = 4 << 20}, r = w;
        r.op = TM_IO_READ;
        fill(w.buf, 0, w.len, i);
        submit_one(io, &w);
        assert_int_equal(drain(io), 0);
        memset(r.buf, 0, r.len);
        submit_one(io, &r);
        assert_int_equal(drain(io), 0);
        assert_true(matches(r.buf, 0, r.len, i));
    }
    tm_io_close(io);
    munmap(slab, bytes);
    OK(tm_io_run_remove(run));
}

/* ---- what is refused, what fails ---- */

static void test_refused(void **state) {
    (void)state;
    tm_io_run *run = test_run();
    tm_io_file f;
    OK(tm_io_file_create(run, "data", 65536, false, &f));
    char *buf = test_memory(8192);
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 0);
        if (!io) continue;
        tm_io_req good = {.op = TM_IO_READ, .file = f, .buf = buf, .len = 4096}, bad = good;
        tm_io_req *batch[] = {&good, &bad};
        bad.len = 0;
        FAILS(tm_io_submit(io, batch, 2), TM_EBUG, "length");
        bad = good;
        bad.file.fd = -1;
        FAILS(tm_io_submit(io, batch, 2), TM_EBUG, "not open");
        bad = good;
        bad.offset = UINT64_MAX - 10;
        FAILS(tm_io_submit(io, batch, 2), TM_EBUG, "2^63");
        if (f.alignment > 1) {
            bad = good;
            bad.offset = 100;
            FAILS(tm_io_submit(io, batch, 2), TM_EBUG, "aligned");
        }
        assert_int_equal(tm_io_in_flight(io), 0); /* refused: none will complete */
        unsigned n;
        tm_io_req *done[2];
        OK(tm_io_wait(io, done, 2, &n, false));
        assert_int_equal(n, 0);
        tm_io_close(io);
    }
    free(buf);
    OK(tm_io_run_remove(run));
    tm_io *io;
    FAILS(tm_io_open(&io, &(tm_io_opts){.engine = "libaio"}), TM_EINPUT, "expected auto");
    FAILS(tm_io_open(&io, &(tm_io_opts){.queue_depth = 100000}), TM_EINPUT, "4096");
    FAILS(tm_io_open(&io, &(tm_io_opts){.engine = "uring", .order_seed = 1}), TM_EINPUT, "sync");
}

static void test_end_of_file(void **state) {
    (void)state;
    tm_io_run *run = test_run();
    for (int buffered = 0; buffered < 2; buffered++) {
        tm_io_file f;
        OK(tm_io_file_create(run, buffered ? "b" : "a", 65536, buffered, &f));
        char *buf = test_memory(131072);
        for (unsigned e = 0; e < N_ENGINES; e++) {
            tm_io *io = test_engine(&engine_cases[e], 2, 8192);
            if (!io) continue;
            tm_io_req beyond = {.op = TM_IO_READ, .file = f, .offset = 65536, .buf = buf, .len = 4096};
            tm_io_req across = {.op = TM_IO_READ, .file = f, .offset = 0, .buf = buf, .len = 131072};
            submit_one(io, &beyond);
            assert_int_equal(drain(io), 1);
            assert_true(beyond.status == TM_EIO && beyond.sys_errno == 0 && beyond.done == 0);
            FAILS(tm_io_req_fail(&beyond), TM_EIO, "ends within");
            submit_one(io, &across);
            assert_int_equal(drain(io), 1);
            assert_true(across.status == TM_EIO && across.done <= 65536);
            tm_io_close(io);
        }
        free(buf);
    }
    OK(tm_io_run_remove(run));
}

static void test_bad_descriptor(void **state) {
    (void)state;
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC); /* a read of it is EBADF */
    char buf[16];
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 0);
        if (!io) continue;
        tm_io_req r = {.op = TM_IO_READ,
                       .file = {.fd = fd, .index = -1, .name = "/somewhere"},
                       .offset = 5,
                       .buf = buf,
                       .len = 16};
        submit_one(io, &r);
        assert_int_equal(drain(io), 1);
        assert_true(r.status == TM_EIO && r.sys_errno == EBADF);
        FAILS(tm_io_req_fail(&r), TM_EIO, "/somewhere: cannot read 16 bytes at byte 5");
        tm_io_close(io);
    }
    close(fd);
}

/* ---- waiting and waking ---- */

static void *wake_later(void *arg) {
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
    tm_io_wake(arg);
    return NULL;
}

/* Of this thread. A virtual machine that is not run for a while may count that, too. */
static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void test_wake(void **state) {
    (void)state;
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 0);
        if (!io) continue;
        tm_io_req *done[2];
        unsigned n;
        for (int i = 0; i < 3; i++) { /* before the wait, several at once, and a poll in between */
            tm_io_wake(io);
            tm_io_wake(io);
            OK(tm_io_wait(io, done, 2, &n, false));
            OK(tm_io_wait(io, done, 2, &n, true));
            assert_int_equal(n, 0);
        }
        double least = 1;
        /* While it sleeps; a used-up wake must not end the sleep, nor may it spin, which it did every time. */
        for (int i = 0; i < 3 || (least >= 0.02 && i < 50); i++) {
            pthread_t t;
            uint64_t start = tm_now_ns();
            double cpu = cpu_seconds();
            assert_int_equal(pthread_create(&t, NULL, wake_later, io), 0);
            OK(tm_io_wait(io, done, 2, &n, true));
            assert_int_equal(n, 0);
            assert_true(tm_now_ns() - start >= 25 * 1000 * 1000);
            cpu = cpu_seconds() - cpu;
            if (cpu < least) least = cpu;
            pthread_join(t, NULL);
        }
        assert_true(least < 0.02);
        tm_io_close(io);
    }
}

/* A wake that a poll or tm_io_advance comes across, while something is in flight, still ends the next sleep. With
 * io_uring that something is a read of an empty pipe, so that the poll really looks into the ring. */
static void wake_between(tm_io *io, tm_io_file f, void *buf, bool advance) {
    tm_io_req quick = {.op = TM_IO_WRITE, .file = f, .buf = buf, .len = 4096}, slow, *done[2];
    int ends[2];
    unsigned n = 0;
    bool in_ring = strcmp(tm_io_engine_name(io), "uring") == 0;
    assert_int_equal(pipe(ends), 0);
    slow = (tm_io_req){.op = TM_IO_READ, .file = {.fd = ends[0], .index = -1, .name = "pipe"}, .buf = buf, .len = 1};
    if (in_ring) submit_one(io, &slow);
    submit_one(io, &quick);
    while (!n) OK(tm_io_wait(io, done, 1, &n, true));
    assert_ptr_equal(done[0], &quick);
    tm_io_wake(io);
    if (advance)
        tm_io_advance(io);
    else
        OK(tm_io_wait(io, done, 2, &n, false));
    OK(tm_io_wait(io, done, 2, &n, true)); /* would sleep for ever */
    assert_int_equal(n, 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(drain(io), 0);
    close(ends[0]);
    close(ends[1]);
}

/* More bytes than 32 bits count, in one request: all of them are moved, each once. The pages are one page of zeros. */
static void test_beyond_32_bits(void **state) {
    (void)state;
    if (THREADS_SANITIZED) TEST_SKIP("4 GiB at once: what ThreadSanitizer keeps of them is four times that");
    const uint64_t len = 4 * TM_GIB + 3 * TM_MIB;
    char *buf = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int fd = open("/dev/null", O_RDWR);
    assert_true(buf != MAP_FAILED && fd >= 0);
    for (unsigned e = 0; e < 4; e++) {
        tm_io *io = test_engine(&(engine_case){e < 3 ? engine_cases[e + (e > 0)].name : "null", 0}, 4, 0);
        if (!io) continue;
        tm_io_stats stats;
        tm_io_req w = {.op = TM_IO_WRITE, .file = {.fd = fd, .index = -1, .name = "null"}, .buf = buf, .len = len};
        submit_one(io, &w);
        assert_int_equal(drain(io), 0);
        assert_int_equal(w.done, len);
        tm_io_get_stats(io, &stats);
        assert_int_equal(stats.write_bytes, len);
        tm_io_close(io);
    }
    close(fd);
    munmap(buf, len);
}

static void test_wake_between(void **state) {
    (void)state;
    tm_io_run *run = test_run();
    tm_io_file f;
    OK(tm_io_file_create(run, "data", 4096, false, &f));
    char *buf = test_memory(4096);
    alarm(100);
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 0);
        for (int i = 0; i < 4 && io; i++) wake_between(io, f, buf, i % 2);
        tm_io_close(io);
    }
    alarm(0);
    free(buf);
    OK(tm_io_run_remove(run));
}

/* Nobody waits, and yet all pieces go to the device; what completes meanwhile comes out of the next wait, once. */
static void test_advance(void **state) {
    (void)state;
    enum { PIECES = 16 };
    tm_io_run *run = test_run();
    tm_io_file f;
    OK(tm_io_file_create(run, "data", PIECES * 4096, false, &f));
    char *buf = test_memory(PIECES * 4096);
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 4096);
        if (!io) continue;
        tm_io_req r = {.op = TM_IO_WRITE, .file = f, .buf = buf, .len = PIECES * 4096};
        fill(buf, 0, PIECES * 4096, e);
        submit_one(io, &r);
        for (int i = 0; i < 100000 && !r.complete_ns && !engine_cases[e].order_seed; i++) {
            tm_io_advance(io);
            usleep(1000);
        }
        assert_true(r.complete_ns || engine_cases[e].order_seed); /* that one does nothing before it is waited for */
        assert_int_equal(tm_io_in_flight(io), 1);
        assert_int_equal(drain(io), 0);
        memset(buf, 0, PIECES * 4096);
        r.op = TM_IO_READ;
        submit_one(io, &r);
        assert_int_equal(drain(io), 0);
        assert_true(matches(buf, 0, PIECES * 4096, e));
        tm_io_close(io);
    }
    free(buf);
    OK(tm_io_run_remove(run));
}

typedef struct waker {
    tm_io *io;
    volatile bool stop;
} waker;

static void *wake_often(void *arg) {
    waker *w = arg;
    while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
        tm_io_wake(w->io);
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    }
    return NULL;
}

/* Wakes and completions at once: nothing is lost, nothing comes twice. */
static void test_wake_storm(void **state) {
    (void)state;
    tm_io_run *run = test_run();
    tm_io_file f;
    OK(tm_io_file_create(run, "data", 64 * 4096, false, &f));
    char *buf = test_memory(64 * 4096);
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 4, 0);
        if (!io) continue;
        waker w = {.io = io};
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, wake_often, &w), 0);
        tm_io_req reqs[64];
        for (int round = 0; round < 20; round++) {
            for (unsigned i = 0; i < 64; i++) {
                reqs[i] = (tm_io_req){.op = round % 2 ? TM_IO_READ : TM_IO_WRITE,
                                      .file = f,
                                      .offset = i * 4096u,
                                      .buf = buf + i * 4096u,
                                      .len = 4096};
                submit_one(io, &reqs[i]);
            }
            assert_int_equal(drain(io), 0);
        }
        __atomic_store_n(&w.stop, true, __ATOMIC_RELEASE);
        pthread_join(t, NULL);
        tm_io_close(io);
    }
    free(buf);
    OK(tm_io_run_remove(run));
}

static void test_poll_does_not_sleep(void **state) {
    (void)state;
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 0);
        if (!io) continue;
        tm_io_req *done[1];
        unsigned n = 9;
        OK(tm_io_wait(io, done, 1, &n, false));
        assert_int_equal(n, 0);
        tm_io_close(io);
    }
}

/* ---- threads ---- */

typedef struct drive {
    tm_io *io;
    tm_io_file file;
    char *buf;
    unsigned seed;
} drive;

static void *drive_some(void *arg) {
    drive *d = arg;
    for (unsigned i = 0; i < 8; i++) {
        tm_io_req w = {.op = TM_IO_WRITE, .file = d->file, .offset = i * 8192u, .buf = d->buf, .len = 8192}, r = w;
        r.op = TM_IO_READ;
        fill(d->buf, 0, 8192, d->seed + i);
        submit_one(d->io, &w);
        assert_int_equal(drain(d->io), 0);
        memset(d->buf, 0, 8192);
        submit_one(d->io, &r);
        assert_int_equal(drain(d->io), 0);
        assert_true(matches(d->buf, 0, 8192, d->seed + i));
    }
    return NULL;
}

static drive open_drive(tm_io *io, tm_io_run **run) {
    drive d = {.io = io, .buf = test_memory(8192)};
    *run = test_run();
    OK(tm_io_file_create(*run, "data", 65536, false, &d.file));
    OK(tm_io_register_files(io, &d.file, 1));
    return d;
}

static void close_drive(drive *d, tm_io_run *run) {
    tm_io_close(d->io);
    free(d->buf);
    OK(tm_io_run_remove(run));
}

/* Opened and registered here, driven by one thread after another, and by this one again, closed here. */
static void test_hand_over(void **state) {
    (void)state;
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 4, 4096);
        if (!io) continue;
        tm_io_run *run;
        drive d = open_drive(io, &run);
        OK(tm_io_register(io, d.buf, 8192));
        for (unsigned i = 0; i < 4; i++) {
            pthread_t t;
            d.seed = 10 * i;
            if (i == 2) {
                drive_some(&d);
                continue;
            }
            assert_int_equal(pthread_create(&t, NULL, drive_some, &d), 0);
            pthread_join(t, NULL);
        }
        close_drive(&d, run);
    }
}

static void *unregister_here(void *io) {
    tm_io_unregister(io);
    return NULL;
}

/* Memory comes and goes, by the thread that drives and by another; transfers to and from it go on. */
static void test_unregister(void **state) {
    (void)state;
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 4, 4096);
        if (!io) continue;
        tm_io_run *run;
        drive d = open_drive(io, &run);
        tm_io_unregister(io); /* nothing there yet */
        unsigned long before = pinned_kib();
        for (unsigned i = 0; i < 6; i++) {
            pthread_t t;
            OK(tm_io_register(io, d.buf, 8192));
            d.seed = 100 * i;
            drive_some(&d);
            if (i % 2) {
                assert_int_equal(pthread_create(&t, NULL, unregister_here, io), 0);
                pthread_join(t, NULL);
            } else {
                tm_io_unregister(io);
                if (i == 0) assert_true(pinned_kib() <= before); /* dead rings of before may let go, too */
            }
            d.seed++;
            drive_some(&d);
        }
        close_drive(&d, run);
    }
}

/* The ring that another thread's unregistering takes along cannot be made at once: the next transfer makes it. */
static void test_unregister_no_ring(void **state) {
    (void)state;
    tm_io *io = test_engine(&(engine_case){"uring", 0}, 4, 4096);
    if (!io) return;
    tm_io_run *run;
    drive d = open_drive(io, &run);
    pthread_t t;
    OK(tm_io_register(io, d.buf, 8192));
    drive_some(&d);
    OK(tm_fault_set("uring_setup:1:enomem:once"));
    assert_int_equal(pthread_create(&t, NULL, unregister_here, io), 0);
    pthread_join(t, NULL);
    OK(tm_fault_set(NULL));
    OK(tm_io_register(io, d.buf, 8192));
    drive_some(&d);
    close_drive(&d, run);
}

static void test_close_in_flight(void **state) {
    (void)state;
    tm_io_run *run = test_run();
    tm_io_file f;
    OK(tm_io_file_create(run, "data", 4 * TM_MIB, false, &f));
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 3, 65536);
        if (!io) continue;
        char *buf = test_memory(4 * TM_MIB);
        tm_io_req r[2];
        for (int i = 0; i < 2; i++) {
            r[i] =
                (tm_io_req){.op = TM_IO_READ, .file = f, .buf = buf + i * 2 * (int)TM_MIB, .len = 2 * (uint32_t)TM_MIB};
            submit_one(io, &r[i]);
        }
        tm_io_close(io);
        free(buf); /* ASan would see a thread that still writes here */
    }
    OK(tm_io_run_remove(run));
}

/* After warm-up nothing is allocated. */
static void test_no_allocation(void **state) {
    (void)state;
    tm_io_run *run = test_run();
    drive d = {.buf = test_memory(8192)};
    OK(tm_io_file_create(run, "data", 65536, false, &d.file));
    for (unsigned e = 0; e < N_ENGINES; e++) {
        d.io = test_engine(&engine_cases[e], 4, 4096);
        if (!d.io) continue;
        drive_some(&d);
        uint64_t before = tm_mem_allocations();
        drive_some(&d);
        assert_int_equal(tm_mem_allocations(), before);
        tm_io_close(d.io);
    }
    free(d.buf);
    OK(tm_io_run_remove(run));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_gib_border),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_bad_descriptor),
        cmocka_unit_test(test_wake),
        cmocka_unit_test(test_wake_storm),
        cmocka_unit_test(test_poll_does_not_sleep),
        cmocka_unit_test(test_unregister),
        cmocka_unit_test(test_hand_over),
        cmocka_unit_test(test_close_in_flight),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_unregister_no_ring),
        cmocka_unit_test(test_wake_between),
        cmocka_unit_test(test_advance),
        cmocka_unit_test(test_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, test_tear_down);
}
