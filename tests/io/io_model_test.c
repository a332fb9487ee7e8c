/* Random requests against an oracle in memory: whatever the engine, order, sizes and passing faults, a read returns
 * what the last completed write put there. Cells keep requests in flight apart, since no order among those is promised.
 */
#include "tests/io/io_test.h"

enum { CELLS = 48, CELL = 32768, IN_FLIGHT = 24, OPS = 12000 };

typedef struct slot {
    tm_io_req req;
    unsigned cell;
    bool busy;
} slot;

typedef struct world {
    tm_io *io;
    tm_io_file file;
    unsigned char *oracle, *memory; /* the file as it must be; one cell for each slot */
    slot slots[IN_FLIGHT];
    bool cell_busy[CELLS];
    uint64_t key, draws;
    unsigned busy, done;
} world;

static uint32_t draw(world *w, uint32_t below) {
    uint32_t r[4];
    tm_philox(w->key, 1, w->draws++, r);
    return r[0] % below;
}

static void check_done(world *w, tm_io_req *r) {
    slot *s = r->user;
    assert_ptr_equal(r, &s->req);
    assert_true(s->busy);
    if (r->status != TM_OK) fail_msg("%s", (tm_io_req_fail(r), tm_error_get()->text));
    assert_int_equal(r->done, r->op == TM_IO_SYNC ? 0 : r->len);
    if (r->op == TM_IO_READ) assert_memory_equal(r->buf, w->oracle + r->offset, r->len);
    s->busy = false;
    if (r->op != TM_IO_SYNC) w->cell_busy[s->cell] = false;
    w->busy--;
    w->done++;
}

static void wait_some(world *w, bool block) {
    tm_io_req *done[7];
    unsigned n;
    OK(tm_io_wait(w->io, done, 1 + draw(w, 7), &n, block));
    for (unsigned i = 0; i < n; i++) check_done(w, done[i]);
    assert_int_equal(tm_io_in_flight(w->io), w->busy);
}

/* A request on a free cell for a free slot; false if none was drawn. */
static bool make_request(world *w, slot *s) {
    static const tm_io_op ops[] = {TM_IO_READ,  TM_IO_READ,  TM_IO_READ, TM_IO_WRITE,
                                   TM_IO_WRITE, TM_IO_WRITE, TM_IO_READ, TM_IO_WRITE};
    uint32_t align = w->file.alignment;
    s->cell = draw(w, CELLS);
    s->req = (tm_io_req){.op = draw(w, 400) == 0 ? TM_IO_SYNC : ops[draw(w, 8)], .file = w->file, .user = s};
    if (s->req.op == TM_IO_SYNC) return true;
    if (w->cell_busy[s->cell]) return false;
    uint32_t at = draw(w, CELL / align) * align, len = align * (1 + draw(w, (CELL - at) / align));
    if (draw(w, 3)) len = align * (1 + draw(w, len / align > 8 ? 8 : len / align));
    s->req.offset = (uint64_t)s->cell * CELL + at;
    s->req.len = len;
    s->req.buf = w->memory + (size_t)(s - w->slots) * CELL + draw(w, (CELL - len) / align + 1) * align;
    w->cell_busy[s->cell] = true;
    if (s->req.op == TM_IO_WRITE) {
        fill(s->req.buf, 0, len, draw(w, 100000));
        memcpy(w->oracle + s->req.offset, s->req.buf, len);
    }
    return true;
}

static void submit_some(world *w) {
    tm_io_req *batch[IN_FLIGHT];
    unsigned n = 0, most = 1 + draw(w, 6);
    for (unsigned i = 0; i < IN_FLIGHT && n < most; i++) {
        slot *s = &w->slots[i];
        if (s->busy || !make_request(w, s)) continue;
        s->busy = true;
        batch[n++] = &s->req;
    }
    w->busy += n;
    OK(tm_io_submit(w->io, batch, n));
}

/* Only while nothing is in flight: the driver of faults is not made for being set while threads ask it. */
static void passing_fault(world *w) {
    while (w->busy) wait_some(w, true);
    static const char *const kinds[] = {"short", "eintr", "eagain"};
    static const char *const calls[] = {"io_read", "io_write", "pread", "pwrite"};
    char spec[64];
    snprintf(spec, sizeof spec, "%s:%u:%s:once", calls[draw(w, 4)], 1 + draw(w, 5), kinds[draw(w, 3)]);
    OK(tm_fault_set(spec));
}

static void run_model(const engine_case *e, bool buffered, uint64_t seed) {
    world w = {.key = seed};
    w.io = test_engine(e, 1 + draw(&w, 16), 4096u << draw(&w, 4));
    if (!w.io) return;
    tm_io_run *run = test_run();
    OK(tm_io_file_create(run, "data", CELLS * CELL, buffered, &w.file));
    w.oracle = calloc(CELLS, CELL); /* reserved space reads as zeros */
    w.memory = test_memory(IN_FLIGHT * CELL);
    if (draw(&w, 2)) OK(tm_io_register(w.io, w.memory, IN_FLIGHT * CELL));
    if (draw(&w, 2)) OK(tm_io_register_files(w.io, &w.file, 1));
    while (w.done < OPS) {
        if (draw(&w, 50) == 0) passing_fault(&w);
        if (draw(&w, 20) == 0) tm_io_wake(w.io);
        submit_some(&w);
        if (w.busy) wait_some(&w, draw(&w, 4) != 0);
    }
    while (w.busy) wait_some(&w, true);
    OK(tm_fault_set(NULL));
    tm_file *plain;
    unsigned char *now = test_memory(CELLS * CELL);
    OK(tm_file_open(&plain, w.file.name));
    OK(tm_file_read_at(plain, 0, now, CELLS * CELL));
    assert_memory_equal(now, w.oracle, CELLS * CELL);
    tm_file_close(plain);
    tm_io_close(w.io);
    OK(tm_io_run_remove(run));
    free(now);
    free(w.oracle);
    free(w.memory);
}

static void test_model(void **state) {
    const engine_case *e = *state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        run_model(e, false, seed);
        run_model(e, true, seed + 100);
    }
}

static int tear_down(void **state) {
    (void)state;
    test_dir_remove();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"sync", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[0]},
        {"sync, random order", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[1]},
        {"threads", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[2]},
        {"uring", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[3]},
    };
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
