/* Random requests against an oracle in memory: whatever the engine, order, sizes and faults, a read that succeeds
 * returns what the last completed write put there. Cells keep requests in flight apart, since no order among those is
 * promised. A write that failed may have put any part of its bytes there, until the next one succeeds.
 *
 *     test_io_model                                   a few seconds of everything
 *     test_io_model --seconds 600 [--seed N]          the hostile machine, seed after seed; prints what it did
 *     test_io_model --operations 1000000 [--seed N]   the same, until so many operations are over */
#include "tests/io/world.h"

enum { CELLS = 48, CELL = 32768, IN_FLIGHT = 24, OPS = 5000 };

typedef struct model {
    const engine_case *engine; /* with faults that TIDEMILL_FAULT knows, or: */
    const char *hostile;       /* the engine below `sim` */
    bool failures;             /* requests fail for good, too */
} model;

typedef struct slot {
    tm_io_req req;
    unsigned cell;
    bool busy;
} slot;

typedef struct world {
    tm_io *io;
    tm_io_file file;
    unsigned char *oracle, *memory; /* the file as it must be; one cell for each slot */
    unsigned char *unknown;         /* of each byte: a write of it failed */
    bool failures;
    slot slots[IN_FLIGHT];
    bool cell_busy[CELLS];
    uint64_t key, draws;
    unsigned busy, done, failed;
    uint64_t trace; /* hash of everything that was returned, in its order */
} world;

static uint32_t draw(world *w, uint32_t below) {
    uint32_t r[4];
    tm_philox(w->key, 1, w->draws++, r);
    return r[0] % below;
}

static void note(world *w, const tm_io_req *r) {
    uint64_t facts[6] = {w->trace, r->op, r->offset, r->len, (uint64_t)r->status << 32 | (uint64_t)r->sys_errno,
                         r->done};
    w->trace = tm_hash64(facts, sizeof facts, 0);
}

static void check_bytes(const world *w, const void *buf, uint64_t offset, uint32_t len) {
    const unsigned char *got = buf;
    for (uint32_t i = 0; i < len; i++) {
        if (got[i] == w->oracle[offset + i] || w->unknown[offset + i]) continue;
        fail_msg("byte %llu is %02x instead of %02x", (unsigned long long)offset + i, got[i], w->oracle[offset + i]);
    }
}

static void check_failed(world *w, const tm_io_req *r) {
    if (!w->failures) fail_msg("%s", (tm_io_req_fail(r), tm_error_get()->text));
    assert_true(r->status == TM_EIO && r->sys_errno == 5 && (r->op == TM_IO_SYNC || r->done < r->len));
    w->failed++;
    if (r->op == TM_IO_WRITE) memset(w->unknown + r->offset, 1, r->len);
}

static void check_done(world *w, tm_io_req *r) {
    slot *s = r->user;
    assert_ptr_equal(r, &s->req);
    assert_true(s->busy);
    note(w, r);
    if (r->status != TM_OK) {
        check_failed(w, r);
    } else {
        assert_int_equal(r->done, r->op == TM_IO_SYNC ? 0 : r->len);
        if (r->op == TM_IO_READ) check_bytes(w, r->buf, r->offset, (uint32_t)r->len);
        if (r->op == TM_IO_WRITE) memset(w->unknown + r->offset, 0, r->len);
    }
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

static tm_io *open_model(world *w, const model *m, uint64_t seed) {
    char spec[160];
    unsigned depth = 1 + draw(w, 16);
    uint32_t block = 4096u << draw(w, 4);
    if (m->engine) return test_engine(m->engine, depth, block);
    snprintf(spec, sizeof spec, "sim:seed=%llu,reorder=0.5,shorten=0.2,zero=0.02,eintr=0.05,eagain=0.01,trash=1%s+%s",
             (unsigned long long)seed, m->failures ? ",fail=0.01" : "", m->hostile);
    return test_engine(&(engine_case){spec, 0}, depth, block);
}

/* What is on the disk in the end, not only what the engine says. */
static void check_file(const world *w) {
    tm_file *plain;
    unsigned char *now = test_memory(CELLS * CELL);
    OK(tm_file_open(&plain, w->file.name));
    OK(tm_file_read_at(plain, 0, now, CELLS * CELL));
    check_bytes(w, now, 0, CELLS * CELL);
    tm_file_close(plain);
    free(now);
}

static void drive_model(world *w, const model *m, unsigned ops) {
    while (w->done < ops) {
        if (m->engine && draw(w, 50) == 0) passing_fault(w);
        if (draw(w, 20) == 0) tm_io_wake(w->io);
        submit_some(w);
        if (w->busy) wait_some(w, draw(w, 4) != 0);
    }
    while (w->busy) wait_some(w, true);
    OK(tm_fault_set(NULL));
}

/* Hash of the trace; 0 where the engine is not to be had. */
static uint64_t run_model(const model *m, bool buffered, uint64_t seed, unsigned ops) {
    world w = {.key = seed, .failures = m->failures};
    uint64_t live = tm_mem_live_bytes();
    w.io = open_model(&w, m, seed);
    if (!w.io) return 0;
    tm_io_run *run = test_run();
    OK(tm_io_file_create(run, "data", CELLS * CELL, buffered, &w.file));
    w.oracle = calloc(CELLS, CELL); /* reserved space reads as zeros */
    w.unknown = calloc(CELLS, CELL);
    w.memory = test_memory(IN_FLIGHT * CELL);
    if (draw(&w, 2)) OK(tm_io_register(w.io, w.memory, IN_FLIGHT * CELL));
    if (draw(&w, 2)) OK(tm_io_register_files(w.io, &w.file, 1));
    drive_model(&w, m, ops);
    assert_true(!m->failures || w.failed > 0);
    if (!m->hostile || strcmp(m->hostile, "mem") != 0) check_file(&w);
    tm_io_close(w.io);
    OK(tm_io_run_remove(run));
    assert_int_equal(tm_mem_live_bytes(), live);
    free(w.oracle);
    free(w.unknown);
    free(w.memory);
    return w.trace;
}

static void test_model(void **state) {
    const model m = {.engine = *state};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        run_model(&m, false, seed, OPS);
        run_model(&m, true, seed + 100, OPS);
    }
}

static const model hostile[] = {{.hostile = "mem"},     {.hostile = "mem", .failures = true},
                                {.hostile = "sync"},    {.hostile = "sync", .failures = true},
                                {.hostile = "threads"}, {.hostile = "threads", .failures = true},
                                {.hostile = "uring"},   {.hostile = "uring", .failures = true}};

static void test_hostile(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(hostile); i++)
        for (int buffered = 0; buffered < 2; buffered++)
            run_model(&hostile[i], buffered, 10 + i, strcmp(hostile[i].hostile, "mem") == 0 ? 2 * OPS : OPS / 5);
}

/* A seed is a run: over engines without threads or a clock everything comes again as it came. */
static void test_seeds(void **state) {
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        uint64_t first = run_model(&hostile[i], false, 77, OPS / 5);
        assert_true(run_model(&hostile[i], false, 77, OPS / 5) == first);
        assert_true(run_model(&hostile[i], false, 78, OPS / 5) != first);
    }
}

/* ---- by hand ---- */

static double long_seconds;
static uint64_t long_seed, long_operations;

static void test_long(void **state) {
    (void)state;
    uint64_t start = tm_now_ns(), runs = 0;
    for (; long_operations ? runs * 10 * OPS < long_operations : 1e-9 * (double)(tm_now_ns() - start) < long_seconds;
         runs++, long_seed++) {
        printf("seed %llu\n", (unsigned long long)long_seed); /* the last one is the one that fails */
        run_model(&hostile[long_seed % TM_COUNT(hostile)], long_seed / TM_COUNT(hostile) % 2, long_seed, 10 * OPS);
    }
    printf("%llu runs of %d operations, seeds to %llu\n", (unsigned long long)runs, 10 * OPS,
           (unsigned long long)long_seed - 1);
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) long_seconds = strtod(argv[i + 1], NULL);
        if (strcmp(argv[i], "--operations") == 0) long_operations = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) long_seed = strtoull(argv[i + 1], NULL, 10);
    }
    const struct CMUnitTest by_hand[] = {cmocka_unit_test(test_long)};
    if (long_seconds > 0 || long_operations > 0) return cmocka_run_group_tests(by_hand, NULL, test_tear_down);
    const struct CMUnitTest tests[] = {
        {"sync", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[0]},
        {"sync, random order", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[1]},
        {"threads", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[2]},
        {"uring", test_model, NULL, NULL, (void *)(uintptr_t)&engine_cases[3]},
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, test_tear_down);
}
