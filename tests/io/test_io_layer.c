/* The layers that delay, fail and corrupt do what io.h says they do; so do lanes and DeepSpeed's switches. */
#include "tests/io/world.h"

#include <errno.h>

enum { BLOCK = 4096, BLOCKS = 64 };

typedef struct fixture {
    tm_io *io;
    tm_io_run *run;
    tm_io_file file;
    unsigned char *memory; /* BLOCKS blocks to write, BLOCKS to read into */
    tm_io_req req[BLOCKS], *batch[BLOCKS];
    unsigned order[BLOCKS], n_order; /* requests as they were returned */
} fixture;

static void open_fixture(fixture *f, tm_io_opts o) {
    if (!o.block_bytes) o.block_bytes = BLOCK;
    memset(f, 0, sizeof *f);
    f->run = test_run();
    OK(tm_io_file_create(f->run, "data", BLOCKS * BLOCK, false, &f->file));
    OK(tm_io_open(&f->io, &o));
    f->memory = test_memory(2 * BLOCKS * BLOCK);
    fill(f->memory, 0, BLOCKS * BLOCK, 1);
    memset(f->memory + BLOCKS * BLOCK, 0xee, BLOCKS * BLOCK);
}

static void close_fixture(fixture *f) {
    tm_io_close(f->io);
    OK(tm_io_run_remove(f->run));
    free(f->memory);
}

/* Block i of the file, as request i. */
static void submit(fixture *f, tm_io_op op, unsigned first, unsigned n) {
    for (unsigned i = first; i < first + n; i++) {
        unsigned char *buf = f->memory + (op == TM_IO_READ ? BLOCKS * BLOCK : 0) + i * BLOCK;
        f->req[i] = (tm_io_req){.op = op, .file = f->file, .offset = i * (uint64_t)BLOCK, .buf = buf, .len = BLOCK};
        f->batch[i] = &f->req[i];
    }
    OK(tm_io_submit(f->io, f->batch + first, n));
}

static unsigned wait_all(fixture *f) {
    unsigned failed = 0;
    f->n_order = 0;
    while (tm_io_in_flight(f->io)) {
        tm_io_req *done[8];
        unsigned n;
        OK(tm_io_wait(f->io, done, 8, &n, true));
        for (unsigned i = 0; i < n; i++) {
            f->order[f->n_order++] = (unsigned)(done[i] - f->req);
            failed += done[i]->status != TM_OK;
        }
    }
    return failed;
}

static unsigned move(fixture *f, tm_io_op op, unsigned first, unsigned n) {
    submit(f, op, first, n);
    return wait_all(f);
}

static unsigned char *read_back(const fixture *f, unsigned block) {
    return f->memory + (BLOCKS + block) * BLOCK;
}

/* ---- names ---- */

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *spec, *word;
    } bad[] = {{"sim:colour=1", "no option"},
               {"sim:seed", "no option"},
               {"error:rate=2", "rate=2"},
               {"error:errno=ebogus", "ebogus"},
               {"delay:latency=-1", "latency"},
               {"sync:seed=1", "takes no options"},
               {"sync+sim", "nothing goes below"},
               {"sim+nothing", "expected auto"},
               {"sim+sim+sim+sim+sync", "more than"},
               {"", "expected auto"},
               {"sim:seed=1e99", "seed"}};
    tm_io *io;
    for (size_t i = 0; i < TM_COUNT(bad); i++)
        FAILS(tm_io_open(&io, &(tm_io_opts){.engine = bad[i].spec}), TM_EINPUT, bad[i].word);
    static const char *const good[] = {"null", "mem", "sim", "delay:bps=1e+9+sync",
                                       "error:at=3,errno=enospc+sim+threads"};
    for (size_t i = 0; i < TM_COUNT(good); i++) {
        OK(tm_io_open(&io, &(tm_io_opts){.engine = good[i]}));
        assert_string_equal(tm_io_engine_name(io), good[i]);
        tm_io_close(io);
    }
    FAILS(tm_io_open(&io, &(tm_io_opts){.lanes = 17}), TM_EINPUT, "lanes");
    FAILS(tm_io_open(&io, &(tm_io_opts){.lanes = 16, .queue_depth = 1000}), TM_EINPUT, "queue depth");
}

/* ---- null, mem ---- */

static void test_null_and_mem(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, (tm_io_opts){.engine = "null"});
    assert_int_equal(move(&f, TM_IO_WRITE, 0, BLOCKS), 0);
    assert_int_equal(move(&f, TM_IO_READ, 0, BLOCKS), 0);
    for (unsigned i = 0; i < BLOCK; i++) assert_int_equal(read_back(&f, 5)[i], 0xee); /* nothing was moved */
    close_fixture(&f);
    open_fixture(&f, (tm_io_opts){.engine = "mem"});
    assert_int_equal(move(&f, TM_IO_WRITE, 0, 10), 0);
    assert_int_equal(move(&f, TM_IO_READ, 0, 20), 0);
    assert_true(matches(read_back(&f, 0), 0, 10 * BLOCK, 1));
    for (unsigned i = 0; i < 10 * BLOCK; i++) assert_int_equal(read_back(&f, 10)[i], 0);
    close_fixture(&f);
}

/* ---- delay ---- */

static double seconds_of(fixture *f, tm_io_op op, unsigned n) {
    uint64_t start = tm_now_ns();
    assert_int_equal(move(f, op, 0, n), 0);
    return 1e-9 * (double)(tm_now_ns() - start);
}

/* And the request goes on. False: this thread was held up for so long that the request was over before. */
static bool a_wake_ends_the_sleep(fixture *f) {
    tm_io_req *done[1];
    unsigned n = 0;
    submit(f, TM_IO_READ, 0, 1);
    tm_io_wake(f->io);
    OK(tm_io_wait(f->io, done, 1, &n, true));
    if (n == 0) assert_int_equal(wait_all(f), 0);
    return n == 0;
}

static void test_delay(void **state) {
    (void)state;
    static const char *const lower[] = {"sync", "threads", "mem"};
    for (size_t i = 0; i < TM_COUNT(lower); i++) {
        char spec[64];
        fixture f;
        snprintf(spec, sizeof spec, "delay:latency=0.02+%s", lower[i]);
        open_fixture(&f, (tm_io_opts){.engine = spec, .queue_depth = 16});
        assert_true(seconds_of(&f, TM_IO_WRITE, 16) >= 0.02); /* all at once: the delays overlap */
        assert_true(seconds_of(&f, TM_IO_READ, 32) >= 0.04);
        assert_true(matches(read_back(&f, 0), 0, 16 * BLOCK, 1));
        unsigned slept = 0;
        for (unsigned tries = 0; slept == 0 && tries < 50; tries++) slept += a_wake_ends_the_sleep(&f);
        assert_int_equal(slept, 1);
        close_fixture(&f);
        snprintf(spec, sizeof spec, "delay:bps=%d+%s", 16 * BLOCK * 20, lower[i]);
        open_fixture(&f, (tm_io_opts){.engine = spec, .queue_depth = 16});
        assert_true(seconds_of(&f, TM_IO_WRITE, 16) >= 0.049); /* one rate for all: 16 of 320 blocks a second */
        close_fixture(&f);
    }
}

/* ---- error ---- */

static void test_error(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, (tm_io_opts){.engine = "error:at=3,errno=enospc+sync", .queue_depth = 1});
    assert_int_equal(move(&f, TM_IO_WRITE, 0, 6), 1);
    assert_true(f.req[2].status == TM_ENOSPC && f.req[2].sys_errno == ENOSPC && f.req[2].done == 0);
    FAILS(tm_io_req_fail(&f.req[2]), TM_ENOSPC, "cannot write 4096 bytes at byte 8192 (0 done): No space left");
    close_fixture(&f);
    open_fixture(&f, (tm_io_opts){.engine = "error:at=3,sticky=1,writes=0+sync", .queue_depth = 1});
    assert_int_equal(move(&f, TM_IO_WRITE, 0, 6), 0);
    assert_int_equal(move(&f, TM_IO_READ, 0, 6), 4);
    assert_true(f.req[1].status == TM_OK && f.req[2].status == TM_EIO && f.req[5].sys_errno == EIO);
    close_fixture(&f);
    open_fixture(&f, (tm_io_opts){.engine = "error:rate=0.5,seed=4,errno=eagain+sync"}); /* tried again, and again */
    assert_int_equal(move(&f, TM_IO_WRITE, 0, BLOCKS), 0);
    tm_io_stats s;
    tm_io_get_stats(f.io, &s);
    assert_true(s.resubmitted > 10);
    close_fixture(&f);
    open_fixture(&f, (tm_io_opts){.engine = "error:rate=1,errno=eintr+sync"}); /* not for ever */
    assert_int_equal(move(&f, TM_IO_READ, 0, 3), 3);
    assert_int_equal(f.req[0].sys_errno, EINTR);
    close_fixture(&f);
}

/* ---- sim ---- */

static void test_sim_silent(void **state) {
    (void)state;
    static const char *const lower[] = {"sync", "mem"};
    for (size_t i = 0; i < TM_COUNT(lower); i++) {
        char spec[64];
        fixture f;
        snprintf(spec, sizeof spec, "sim:lost=1+%s", lower[i]);
        open_fixture(&f, (tm_io_opts){.engine = spec});
        assert_int_equal(move(&f, TM_IO_WRITE, 0, 4), 0);
        assert_int_equal(move(&f, TM_IO_READ, 0, 4), 0);
        for (unsigned k = 0; k < 4 * BLOCK; k++) assert_int_equal(read_back(&f, 0)[k], 0); /* as it was reserved */
        close_fixture(&f);
        snprintf(spec, sizeof spec, "sim:flip=1,seed=3+%s", lower[i]);
        open_fixture(&f, (tm_io_opts){.engine = spec});
        assert_int_equal(move(&f, TM_IO_WRITE, 0, 4), 0);
        assert_true(matches(f.memory, 0, 4 * BLOCK, 1)); /* what the caller holds is as before */
        assert_int_equal(move(&f, TM_IO_READ, 0, 4), 0);
        for (unsigned b = 0; b < 4; b++) { /* one bit on the way there, one on the way back: of even parity */
            unsigned bits = 0;
            for (unsigned k = 0; k < BLOCK; k++)
                bits += (unsigned)__builtin_popcount((unsigned)(read_back(&f, b)[k] ^ f.memory[b * BLOCK + k]));
            assert_true(bits == 2 || bits == 0);
        }
        assert_false(matches(read_back(&f, 0), 0, 4 * BLOCK, 1));
        close_fixture(&f);
        snprintf(spec, sizeof spec, "sim:misdirect=1+%s", lower[i]);
        open_fixture(&f, (tm_io_opts){.engine = spec, .queue_depth = 1});
        assert_int_equal(move(&f, TM_IO_WRITE, 1, 1), 0); /* block 1 goes to 0; reading 1 reads 0 */
        assert_int_equal(move(&f, TM_IO_READ, 1, 2), 0);
        assert_true(matches(read_back(&f, 1), BLOCK, BLOCK, 1));
        assert_false(matches(read_back(&f, 2), BLOCK, BLOCK, 1));
        close_fixture(&f);
    }
}

/* Short transfers of unaligned lengths, with O_DIRECT where there is one: the rest is asked for from a boundary. */
static void test_sim_short(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 8; seed++) {
        char spec[64];
        fixture f;
        snprintf(spec, sizeof spec, "sim:seed=%u,shorten=0.9,zero=0.1,trash=1+sync", seed);
        open_fixture(&f, (tm_io_opts){.engine = spec, .block_bytes = 16 * BLOCK});
        tm_io_req w = {.op = TM_IO_WRITE, .file = f.file, .buf = f.memory, .len = BLOCKS * BLOCK, .user = &w}, r = w;
        submit_one(f.io, &w);
        assert_int_equal(drain(f.io), 0);
        r.op = TM_IO_READ;
        r.buf = f.memory + BLOCKS * BLOCK;
        submit_one(f.io, &r);
        assert_int_equal(drain(f.io), 0);
        assert_true(matches(r.buf, 0, BLOCKS * BLOCK, 1));
        close_fixture(&f);
    }
}

static void order_of(const char *spec, tm_io_opts o, unsigned *order) {
    fixture f;
    o.engine = spec;
    open_fixture(&f, o);
    assert_int_equal(move(&f, TM_IO_WRITE, 0, BLOCKS), 0);
    memcpy(order, f.order, sizeof f.order);
    close_fixture(&f);
}

static void test_sim_order(void **state) {
    (void)state;
    unsigned a[BLOCKS], b[BLOCKS], c[BLOCKS], sorted[BLOCKS];
    const tm_io_opts o = {.queue_depth = 16};
    order_of("sim:seed=1,reorder=0.7,shorten=0.3", o, a);
    order_of("sim:seed=1,reorder=0.7,shorten=0.3", o, b);
    order_of("sim:seed=2,reorder=0.7,shorten=0.3", o, c);
    order_of("sim:seed=1", o, sorted);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    for (unsigned i = 0; i < BLOCKS; i++) assert_int_equal(sorted[i], i);
    assert_memory_not_equal(a, sorted, sizeof a);
}

/* ---- switches ---- */

/* Batches: no request of the next one is over before all of this one are. */
static bool in_batches(const unsigned *order, unsigned depth) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (order[i] / depth != i / depth) return false;
    return true;
}

static void test_overlap_events(void **state) {
    (void)state;
    unsigned order[BLOCKS];
    order_of("sim:seed=5,reorder=0.7", (tm_io_opts){.queue_depth = 4}, order);
    assert_false(in_batches(order, 4));
    order_of("sim:seed=5,reorder=0.7", (tm_io_opts){.queue_depth = 4, .no_overlap_events = true}, order);
    assert_true(in_batches(order, 4));
}

/* With submit_at_wait nothing is carried out before the wait. */
static void test_submission(void **state) {
    (void)state;
    for (unsigned e = 0; e < N_ENGINES; e++) {
        if (engine_cases[e].order_seed) continue;
        tm_io *io = test_engine(&engine_cases[e], 1, 0);
        if (!io) continue;
        tm_io_close(io);
        for (int how = 0; how < 4; how++) {
            fixture f;
            open_fixture(
                &f, (tm_io_opts){.engine = engine_cases[e].name, .single_submit = how % 2, .submit_at_wait = how / 2});
            assert_int_equal(move(&f, TM_IO_WRITE, 0, BLOCKS), 0);
            assert_int_equal(move(&f, TM_IO_READ, 0, BLOCKS), 0);
            assert_true(matches(read_back(&f, 0), 0, BLOCKS * BLOCK, 1));
            close_fixture(&f);
        }
    }
    fixture f;
    open_fixture(&f, (tm_io_opts){.engine = "mem", .submit_at_wait = true});
    submit(&f, TM_IO_WRITE, 0, 1);
    fill(f.memory, 0, BLOCK, 9); /* the caller should not; it shows when the bytes are taken */
    assert_int_equal(wait_all(&f), 0);
    assert_int_equal(move(&f, TM_IO_READ, 0, 1), 0);
    assert_true(matches(read_back(&f, 0), 0, BLOCK, 9));
    close_fixture(&f);
}

/* ---- lanes ---- */

/* Are the fast ones over before the first of the slow ones is? */
static bool fast_before_slow(const char *lower, unsigned tenths) {
    char spec[64];
    fixture f;
    bool before = true;
    snprintf(spec, sizeof spec, "delay:latency=%g,lane=0+%s", tenths * 0.1, lower);
    open_fixture(&f, (tm_io_opts){.engine = spec, .queue_depth = 4, .lanes = 2, .threads = 1});
    submit(&f, TM_IO_WRITE, 0, 8);
    f.file.lane = 1;
    submit(&f, TM_IO_WRITE, 16, 16);
    assert_int_equal(wait_all(&f), 0);
    for (unsigned k = 0; k < 16; k++) before = before && f.order[k] >= 16;
    tm_io_stats s[3], all;
    for (unsigned k = 0; k < 3; k++) tm_io_lane_stats(f.io, k, &s[k]);
    tm_io_get_stats(f.io, &all);
    assert_true(s[0].write_bytes == 8 * BLOCK && s[1].writes == 16 && s[2].writes == 0);
    assert_true(all.write_bytes == 24 * BLOCK && all.writes == 24);
    f.file.lane = 2;
    tm_io_req r = {.op = TM_IO_READ, .file = f.file, .buf = f.memory, .len = BLOCK}, *one[] = {&r};
    FAILS(tm_io_submit(f.io, one, 1), TM_EBUG, "lane");
    close_fixture(&f);
    return before;
}

/* Many requests for a slow disk, then some for a fast one: those are over long before. Where this process is held up
 * for as long as the slow disk takes, it is tried again with a slower one: fast ones that wait for it do so every time.
 */
static void test_slow_lane(void **state) {
    (void)state;
    static const char *const lower[] = {"mem", "null"}; /* a real disk may stall for longer than the slow one here */
    for (size_t i = 0; i < TM_COUNT(lower); i++) {
        unsigned tries = 1;
        while (!fast_before_slow(lower[i], tries) && tries < 20) tries++;
        assert_true(tries < 20);
    }
}

/* What waited for a free piece, how long, and what moved meanwhile: all but the last few, which had room at once. */
static void test_full(void **state) {
    (void)state;
    enum { N = 16, DEPTH = 2 };
    fixture f;
    tm_io_stats s;
    open_fixture(&f, (tm_io_opts){.engine = "delay:latency=0.005+mem", .queue_depth = DEPTH, .threads = 1});
    submit(&f, TM_IO_WRITE, 0, DEPTH);
    assert_int_equal(wait_all(&f), 0);
    tm_io_get_stats(f.io, &s);
    assert_true(s.full_ns == 0 && s.full_write_bytes == 0 && s.write_bytes == DEPTH * BLOCK);
    submit(&f, TM_IO_WRITE, 0, DEPTH + 1); /* a burst of which little would count */
    assert_int_equal(wait_all(&f), 0);
    tm_io_get_stats(f.io, &s);
    assert_true(s.full_ns == 0 && s.full_write_bytes == 0);
    submit(&f, TM_IO_WRITE, 0, N);
    assert_int_equal(wait_all(&f), 0);
    tm_io_get_stats(f.io, &s);
    assert_true(s.full_ns >= (N / DEPTH - 1) * 5000000u); /* a latency for each DEPTH of them but the last */
    assert_true(s.full_write_bytes >= (N - DEPTH) * BLOCK && s.full_write_bytes < N * BLOCK && s.full_read_bytes == 0);
    uint64_t before = s.full_ns;
    submit(&f, TM_IO_WRITE, 0, N); /* a process that is stopped meanwhile says nothing about its disk */
    sleep(3);
    uint64_t woke = tm_now_ns();
    assert_int_equal(wait_all(&f), 0);
    tm_io_get_stats(f.io, &s);
    assert_true(s.full_ns - before <= tm_now_ns() - woke && s.write_bytes == (2 * DEPTH + 1 + 2 * N) * BLOCK);
    close_fixture(&f);
}

static int finish(void **state) {
    (void)state;
    test_dir_remove();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_null_and_mem),   cmocka_unit_test(test_delay),
        cmocka_unit_test(test_error),     cmocka_unit_test(test_sim_silent),     cmocka_unit_test(test_sim_short),
        cmocka_unit_test(test_sim_order), cmocka_unit_test(test_overlap_events), cmocka_unit_test(test_submission),
        cmocka_unit_test(test_slow_lane), cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, finish);
}
