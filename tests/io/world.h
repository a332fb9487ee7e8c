/* Shared by the tests of io: a directory of one's own, requests, patterns. */
#ifndef TIDEMILL_IO_TEST_H
#define TIDEMILL_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/io.h"
#include "io/run/run.h"
#include "io/file/file.h"
#include "tests/support/skip.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The status, and a word that the message must have; the record is cleared. */
#define FAILS(expr, status_, word)                                                                                     \
    do {                                                                                                               \
        tm_status fails_ = (expr);                                                                                     \
        if (fails_ != (status_)) fail_msg("%s: %s (%s)", #expr, tm_status_name(fails_), tm_error_get()->text);         \
        if (!strstr(tm_error_get()->text, word))                                                                       \
            fail_msg("%s: \"%s\" lacks \"%s\"", #expr, tm_error_get()->text, word);                                    \
        tm_error_clear();                                                                                              \
    } while (0)

/* A fresh directory below the current one (the build directory: a disk, normally). */
static inline const char *test_dir(void) {
    static char path[64];
    if (!*path) {
        strcpy(path, "io_test_XXXXXX");
        if (!mkdtemp(path)) abort();
    }
    return path;
}

static inline void test_dir_remove(void) {
    if (tm_remove_tree(test_dir()) != TM_OK) fprintf(stderr, "left: %s\n", test_dir());
}

/* Of a group of tests. */
static inline int test_tear_down(void **state) {
    (void)state;
    test_dir_remove();
    return 0;
}

static inline tm_io_run *test_run(void) {
    tm_io_run *run;
    OK(tm_io_run_create(&run, test_dir(), &(tm_io_run_opts){.allow_tmpfs = true}));
    return run;
}

static inline unsigned char pattern(uint64_t at, unsigned seed) {
    return (unsigned char)((at * 2654435761u >> 7) ^ (at >> 12) ^ (seed * 97u));
}

static inline void fill(void *buf, uint64_t offset, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) ((unsigned char *)buf)[i] = pattern(offset + i, seed);
}

static inline bool matches(const void *buf, uint64_t offset, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        if (((const unsigned char *)buf)[i] != pattern(offset + i, seed)) return false;
    }
    return true;
}

/* Page-aligned, so that O_DIRECT takes it; exact length, so that ASan sees a byte too far. */
static inline void *test_memory(size_t n) {
    void *p;
    if (posix_memalign(&p, 4096, n)) abort();
    return p;
}

/* The engines, with the options that make each of them different. */
typedef struct engine_case {
    const char *name;
    uint64_t order_seed;
} engine_case;
static const engine_case engine_cases[] = {
    {"sync", 0},
    {"sync", 7},
    {"threads", 0},
    {"uring", 0},
    {"sim:seed=3,reorder=0.6,shorten=0.1,eintr=0.05,eagain=0.02,trash=1+sync", 0}};
enum { N_ENGINES = 5 };

/* NULL where the machine forbids io_uring: the caller passes over it (once, loudly). */
static inline tm_io *test_engine(const engine_case *e, unsigned depth, uint32_t block) {
    tm_io *io;
    tm_io_opts o = {
        .engine = e->name, .queue_depth = depth, .block_bytes = block, .order_seed = e->order_seed, .threads = 3};
    tm_status rc = tm_io_open(&io, &o);
    if (rc == TM_EUNSUPPORTED) {
        TEST_SKIP_PART("%s", tm_error_get()->text);
        tm_error_clear();
        return NULL;
    }
    OK(rc);
    return io;
}

/* Waits until nothing is in flight; every request must come once. Returns how many failed. */
static inline unsigned drain(tm_io *io) {
    unsigned failed = 0;
    while (tm_io_in_flight(io)) {
        tm_io_req *done[5];
        unsigned n;
        OK(tm_io_wait(io, done, 5, &n, true));
        for (unsigned i = 0; i < n; i++) {
            assert_ptr_equal(done[i]->user, done[i]); /* set at submission, taken off here */
            done[i]->user = NULL;
            failed += done[i]->status != TM_OK;
        }
    }
    return failed;
}

static inline void submit_one(tm_io *io, tm_io_req *r) {
    r->user = r;
    OK(tm_io_submit(io, &r, 1));
}

#endif
