/* Page checksums against a disk that lies: 10,000 random trials, each of which flips a bit, puts a page in another's
 * place, or brings back what lay there before. All are caught, at the page where it was done, and nothing that is whole
 * is taken for damaged. The disk is the engine "mem", so that the damage is real and the trials are quick.
 *
 * TIDEMILL_TRIALS=N TIDEMILL_TRIAL_SEED=S: that many (default 10000, 7). */
#include "io/io.h"
#include "offload/store/store_internal.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OBJECTS = 12, MOST = 5 * TM_PAGE_BYTES };

static const uint64_t sizes[] = {4096, TM_PAGE_BYTES, 100000, 3 * TM_PAGE_BYTES, 5 * TM_PAGE_BYTES - 4096, 70001};

typedef struct disk {
    tm_layout *layout;
    tm_store *store;
    char *now[OBJECTS], *before[OBJECTS]; /* what was written last, and what lay there before that */
    char *frame;
    uint64_t draws, seed;
    char path[64];
} disk;

static uint32_t draw(disk *d, uint32_t below) {
    uint32_t r[4];
    tm_philox(2026, d->seed, d->draws++, r);
    return r[0] % below;
}

static uint64_t bytes_of(const disk *d, uint32_t object) {
    return tm_layout_get(d->layout, object)->frame_bytes;
}

static store_target target(uint32_t object) {
    return (store_target){.object = object};
}

static void transfer(disk *d, tm_io_req *req) {
    tm_io_req *batch[] = {req}, *done[1];
    unsigned n = 0;
    assert_int_equal(tm_io_submit(store_io(d->store), batch, 1), TM_OK);
    while (!n) assert_int_equal(tm_io_wait(store_io(d->store), done, 1, &n, true), TM_OK);
    assert_int_equal(req->status, TM_OK);
}

/* As the executor does it. One time in four the bytes stay as they are: only the generation is new. */
static void write_object(disk *d, uint32_t object) {
    store_target t = target(object);
    uint64_t n = bytes_of(d, object);
    tm_io_req req = {0};
    memcpy(d->before[object], d->now[object], n);
    for (uint64_t i = draw(d, 4) ? 0 : n; i < n; i += 8192) {
        uint32_t r = draw(d, UINT32_MAX);
        memcpy(d->now[object] + i, &r, sizeof r);
    }
    store_prepare_write(d->store, &t, d->now[object], &req);
    transfer(d, &req);
}

static tm_status read_object(disk *d, uint32_t object) {
    store_target t = target(object);
    tm_io_req req = {0};
    assert_int_equal(store_prepare_read(d->store, &t, d->frame, &req), TM_OK);
    transfer(d, &req);
    return store_check_read(d->store, &t, d->frame, &req);
}

/* Behind the store's back. */
static void overwrite(disk *d, uint32_t object, uint64_t at, const char *bytes, uint64_t n) {
    static char memory[TM_PAGE_BYTES] __attribute__((aligned(4096)));
    store_target t = target(object);
    tm_io_req req = {0};
    assert_int_equal(store_prepare_read(d->store, &t, d->frame, &req), TM_OK);
    memcpy(memory, bytes, n);
    req.op = TM_IO_WRITE;
    req.buf = memory;
    req.offset += at;
    req.len = (uint32_t)n;
    transfer(d, &req);
}

typedef struct place {
    uint32_t object, page;
    uint64_t at, n;
} place;

static void restore(disk *d, place p) {
    overwrite(d, p.object, p.at, d->now[p.object] + p.at, p.n);
}

static place any_page(disk *d) {
    place p = {.object = draw(d, OBJECTS)};
    p.page = draw(d, pages_of(bytes_of(d, p.object)));
    p.at = (uint64_t)p.page * TM_PAGE_BYTES;
    p.n = tm_min_u64(TM_PAGE_BYTES, bytes_of(d, p.object) - p.at);
    return p;
}

static void expect_caught(disk *d, place p, const char *how) {
    char where[64];
    store_target t = target(p.object);
    tm_io_req req = {0};
    assert_int_equal(store_prepare_read(d->store, &t, d->frame, &req), TM_OK);
    snprintf(where, sizeof where, "at offset %llu is", (unsigned long long)(req.offset + p.at));
    tm_status rc = read_object(d, p.object);
    if (rc != TM_ECORRUPT) fail_msg("%s: object %u, page %u: status %d", how, p.object, p.page, (int)rc);
    if (!strstr(tm_error_get()->text, where)) fail_msg("%s: \"%s\" lacks \"%s\"", how, tm_error_get()->text, where);
    tm_error_clear();
}

static void flip(disk *d) {
    place p = any_page(d);
    char page[TM_PAGE_BYTES];
    memcpy(page, d->now[p.object] + p.at, p.n);
    uint32_t bit = draw(d, (uint32_t)p.n * 8);
    page[bit / 8] = (char)(page[bit / 8] ^ 1 << bit % 8);
    overwrite(d, p.object, p.at, page, p.n);
    expect_caught(d, p, "a flipped bit");
    restore(d, p);
}

/* Of one object, of two of a kind, of two kinds. Of equal bytes (both as they were first made) nothing is changed. */
static bool swap(disk *d) {
    place a = any_page(d), b = any_page(d);
    if (a.n != b.n || (a.object == b.object && a.page == b.page)) return false;
    if (memcmp(d->now[a.object] + a.at, d->now[b.object] + b.at, a.n) == 0) return false;
    char page[TM_PAGE_BYTES];
    memcpy(page, d->now[a.object] + a.at, a.n);
    overwrite(d, a.object, a.at, d->now[b.object] + b.at, b.n);
    overwrite(d, b.object, b.at, page, a.n);
    expect_caught(d, a.object != b.object || a.page < b.page ? a : b, "two pages in each other's place");
    if (a.object != b.object) expect_caught(d, b, "two pages in each other's place");
    restore(d, a);
    restore(d, b);
    return true;
}

/* The generation is not on the disk, so a page whose bytes did not change is the page: nothing was brought back. */
static bool replay(disk *d) {
    place p = any_page(d);
    write_object(d, p.object);
    const char *old = d->before[p.object] + p.at;
    if (memcmp(old, d->now[p.object] + p.at, p.n) == 0) return false;
    overwrite(d, p.object, p.at, old, p.n);
    expect_caught(d, p, "an old page");
    restore(d, p);
    return true;
}

static void open_disk(disk *d) {
    *d = (disk){.path = "test_pages_XXXXXX", .seed = test_option("TIDEMILL_TRIAL_SEED", 7)};
    const char *path = d->path;
    assert_non_null(mkdtemp(d->path));
    assert_int_equal(tm_layout_create(&d->layout), TM_OK);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        const tm_object o = {
            .kind = (tm_kind)(i % 5), .bundle = i, .bytes = sizes[i % TM_COUNT(sizes)], .pageable = true};
        assert_int_equal(tm_layout_object(d->layout, &o), i);
        d->now[i] = aligned_alloc(4096, MOST);
        d->before[i] = calloc(1, MOST);
        assert_true(d->now[i] && d->before[i]);
        memset(d->now[i], 0, MOST);
    }
    d->frame = aligned_alloc(4096, MOST);
    d->layout->chosen = true; /* nothing is resident */
    const tm_store_opts opts = {.paths = &path, .n_paths = 1, .slots = 1, .allow_tmpfs = true, .io = {.engine = "mem"}};
    assert_int_equal(tm_store_open(&d->store, d->layout, &opts), TM_OK);
    for (uint32_t i = 0; i < OBJECTS; i++) write_object(d, i);
}

static void close_disk(disk *d) {
    assert_int_equal(tm_store_remove(d->store), TM_OK);
    tm_layout_free(d->layout);
    for (uint32_t i = 0; i < OBJECTS; i++) free(d->now[i]), free(d->before[i]);
    free(d->frame);
    assert_int_equal(rmdir(d->path), 0);
}

static void every_lie_is_caught(void **state) {
    (void)state;
    disk d;
    unsigned count[3] = {0};
    uint64_t wanted = test_option("TIDEMILL_TRIALS", 10000);
    open_disk(&d);
    for (uint64_t trials = 0; trials < wanted;) {
        unsigned kind = draw(&d, 3);
        bool done = true;
        if (kind == 0) flip(&d);
        if (kind == 1) done = swap(&d);
        if (kind == 2) done = replay(&d);
        trials += done;
        count[kind] += done;
        if (trials % 8 == 0) assert_int_equal(read_object(&d, draw(&d, OBJECTS)), TM_OK);
    }
    printf("%u flipped bits, %u swaps, %u old pages\n", count[0], count[1], count[2]);
    assert_true(count[0] > wanted / 5 && count[1] > wanted / 10 && count[2] > wanted / 10);
    close_disk(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_lie_is_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
