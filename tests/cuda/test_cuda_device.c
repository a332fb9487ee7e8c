/* The device's own code on a driver that is a fake: order, completions, counters, the cap, every call failing in turn;
 * and the library of products on a fake of it. */
#include "tests/support/forced.h"
#include "device/cuda/cuda_device.h"
#include "fake_driver.h"
#include "fake_lt.h"
#include "fake_nccl.h"
#include "optim/optim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 4096 };

/* ---- a device without device.c's table: that one is in the program's own hands ---- */

static struct tm_device device;
static bool with_library;

static tm_status open_device(const char *name, uint64_t bytes) {
    device = (struct tm_device){.caps = {.name = "cuda", .traits = {.own_processors = true, .alignment = PAGE}}};
    tm_status rc = cuda_open(&device, &(tm_device_opts){.name = name, .arena_bytes = bytes}, fake_driver(),
                             with_library ? fake_lt() : NULL, NULL);
    if (rc != TM_OK) cuda_close(&device);
    return rc;
}
static void must_open(uint64_t bytes) {
    if (open_device("cuda:0", bytes) != TM_OK) fail_msg("%s", tm_error_get()->text);
}
static void close_device(void) {
    cuda_close(&device);
    assert_int_equal(fake_live(), 0);
}
static tm_status copy(tm_device_way way, void *host, uint64_t offset, uint64_t bytes, tm_event *e) {
    e->complete = false;
    return cuda_submit_copy(&device, &(tm_device_transfer){way, host, offset, bytes}, e);
}
static tm_status submit(tm_device_fn fn, void *ctx, tm_event *e) {
    e->complete = false;
    return cuda_submit_op(&device, &(tm_device_op){.fn = fn, .ctx = ctx}, e);
}
static tm_status wait_for(tm_event *e) {
    cuda_wait(&device, e);
    return e->status;
}
static void *arena_at(uint64_t offset) {
    return device.arena + offset;
}

/* ---- copies ---- */

static void test_copies(void **state) {
    (void)state;
    enum { N = 40 };
    static char from[N][PAGE], to[N][PAGE];
    tm_event in[N] = {{0}}, out[N] = {{0}};
    tm_device_stats s = {0};
    fake_reset(&(fake_options){.slow_us = 200});
    must_open(N * PAGE + 100);
    assert_int_equal(device.caps.arena_bytes, N * PAGE);
    for (int i = 0; i < N; i++) memset(from[i], i + 1, PAGE);
    for (int i = 0; i < N; i++) assert_int_equal(copy(TM_DEVICE_IN, from[i], (uint64_t)i * PAGE, PAGE, &in[i]), TM_OK);
    assert_int_equal(wait_for(&in[N - 1]), TM_OK);
    for (int i = 0; i < N; i++) assert_true(cuda_query(&device, &in[i])); /* in order: the last was last */
    for (int i = 0; i < N; i++) assert_int_equal(copy(TM_DEVICE_OUT, to[i], (uint64_t)i * PAGE, PAGE, &out[i]), TM_OK);
    for (int i = 0; i < N; i++) assert_int_equal(wait_for(&out[i]), TM_OK);
    assert_memory_equal(from, to, sizeof from);
    for (int i = 1; i < N; i++) assert_true(out[i].start_ns >= out[i - 1].end_ns && out[i].end_ns >= out[i].start_ns);
    cuda_stats(&device, &s);
    assert_int_equal(s.copies[TM_DEVICE_IN], N);
    assert_int_equal(s.copied_bytes[TM_DEVICE_OUT], sizeof to);
    close_device();
}

typedef struct chain { /* each completion starts the next copy */
    tm_event e;
    int left;
    char host[PAGE];
    _Atomic int over;
} chain;
static void next(tm_event *e) {
    chain *c = e->ctx;
    if (e->status != TM_OK || --c->left == 0)
        c->over = 1;
    else if (copy(TM_DEVICE_IN, c->host, 0, PAGE, e) != TM_OK)
        c->over = 2;
}

static void test_callbacks(void **state) {
    (void)state;
    static chain c;
    fake_reset(NULL);
    must_open(PAGE);
    c = (chain){.e = {.done = next, .ctx = &c}, .left = 100};
    assert_int_equal(copy(TM_DEVICE_IN, c.host, 0, PAGE, &c.e), TM_OK);
    while (!c.over) usleep(100);
    assert_int_equal(c.over, 1);
    assert_int_equal(c.left, 0);
    close_device();
}

/* ---- operations: rows of the table, in order, behind each other ---- */

typedef struct job {
    float add;
    uint64_t n;
    tm_status fails;
} job;
static tm_status add_op(void *ctx) {
    const job *j = ctx;
    float *x = arena_at(0), *y = arena_at(PAGE);
    if (j->fails != TM_OK) return tm_fail(j->fails, "this one was to fail");
    cuda_table.copy(y, x, j->n * sizeof *x);               /* y = x */
    cuda_table.add_bias(TM_ELEM_F32, 1, j->n, y, x, j->n); /* x = 2 x */
    return TM_OK;
}

static void test_operations(void **state) {
    (void)state;
    enum { N = 20, COUNT = 100 };
    float x[PAGE / 4] = {0};
    job j = {.n = COUNT};
    tm_event e[N] = {{0}}, moved = {0};
    tm_device_stats s = {0};
    for (int i = 0; i < COUNT; i++) x[i] = (float)i;
    fake_reset(&(fake_options){.slow_us = 50});
    must_open(4 * PAGE);
    assert_int_equal(copy(TM_DEVICE_IN, x, 0, PAGE, &moved), TM_OK);
    assert_int_equal(wait_for(&moved), TM_OK);
    for (int i = 0; i < N; i++) assert_int_equal(submit(add_op, &j, &e[i]), TM_OK);
    assert_int_equal(wait_for(&e[N - 1]), TM_OK);
    for (int i = 0; i < N; i++) assert_true(e[i].complete);
    assert_int_equal(copy(TM_DEVICE_OUT, x, 0, PAGE, &moved), TM_OK);
    assert_int_equal(wait_for(&moved), TM_OK);
    for (int i = 0; i < COUNT; i++) assert_true(x[i] == (float)i * (1 << N));
    cuda_stats(&device, &s);
    assert_int_equal(s.operations, N);
    assert_int_equal(fake_launches(), N);
    close_device();
}

/* A handler's failure is its event's, after those before it; those behind it go on. */
static void test_failing_operation(void **state) {
    (void)state;
    job good = {.n = 4}, bad = {.fails = TM_EINPUT};
    tm_event e[3] = {{0}};
    fake_reset(&(fake_options){.slow_us = 300});
    must_open(4 * PAGE);
    assert_int_equal(submit(add_op, &good, &e[0]), TM_OK);
    assert_int_equal(submit(add_op, &bad, &e[1]), TM_OK);
    assert_int_equal(submit(add_op, &good, &e[2]), TM_OK);
    assert_int_equal(wait_for(&e[1]), TM_EINPUT);
    assert_string_equal(tm_error_get()->text, "this one was to fail");
    tm_error_clear();
    assert_true(e[0].complete && e[0].status == TM_OK);
    assert_int_equal(wait_for(&e[2]), TM_OK);
    close_device();
}

/* Of an operation that fails half-way, what it did launch is over when its event says so: its frames are free then. The
 * same of a copy that is refused after it was given to the driver. */
static void test_failing_half_way(void **state) {
    (void)state;
    float x[PAGE / 4] = {0}, y[PAGE / 4] = {0};
    job j = {.n = 4};
    tm_event e = {0};
    x[0] = 1;
    fake_reset(&(fake_options){.slow_us = 30000});
    must_open(4 * PAGE);
    fake_fail("event_record", 1, 1);
    assert_int_equal(copy(TM_DEVICE_IN, x, 0, PAGE, &e), TM_EIO);
    assert_true(*(float *)arena_at(0) == 1); /* it is not under way any more */
    tm_error_clear();
    fake_fail("launch", 1, 1);
    assert_int_equal(submit(add_op, &j, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_EIO);
    assert_true(*(float *)arena_at(PAGE) == 1); /* the row before the one that failed */
    tm_error_clear();
    fake_fail("event_record", 1, 1);
    assert_int_equal(submit(add_op, &j, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_EIO);
    assert_true(*(float *)arena_at(0) == 2);
    tm_error_clear();
    assert_int_equal(copy(TM_DEVICE_OUT, y, 0, PAGE, &e), TM_OK); /* the device is well */
    assert_int_equal(wait_for(&e), TM_OK);
    assert_true(y[0] == 2);
    close_device();
}

/* As many as device.h says are under way, and one more is refused: nobody waits inside a call. */
static tm_status wait_for_word(void *ctx) {
    while (!*(_Atomic bool *)ctx) usleep(100);
    return TM_OK;
}
static void test_depth(void **state) {
    (void)state;
    static char host[PAGE];
    static tm_event op[TM_DEVICE_DEPTH + 1], moved[TM_DEVICE_DEPTH + 1];
    static _Atomic bool word;
    memset(op, 0, sizeof op), memset(moved, 0, sizeof moved);
    fake_reset(NULL);
    must_open(PAGE);
    for (int i = 0; i < TM_DEVICE_DEPTH; i++) assert_int_equal(submit(wait_for_word, (void *)&word, &op[i]), TM_OK);
    assert_int_equal(submit(wait_for_word, (void *)&word, &op[TM_DEVICE_DEPTH]), TM_EBUG);
    tm_error_clear();
    word = true;
    assert_int_equal(wait_for(&op[TM_DEVICE_DEPTH - 1]), TM_OK);
    assert_int_equal(submit(wait_for_word, (void *)&word, &op[TM_DEVICE_DEPTH]), TM_OK);
    assert_int_equal(wait_for(&op[TM_DEVICE_DEPTH]), TM_OK);
    fake_hold(true);
    for (int i = 0; i < TM_DEVICE_DEPTH; i++) assert_int_equal(copy(TM_DEVICE_IN, host, 0, PAGE, &moved[i]), TM_OK);
    assert_int_equal(copy(TM_DEVICE_IN, host, 0, PAGE, &moved[TM_DEVICE_DEPTH]), TM_EBUG);
    tm_error_clear();
    fake_hold(false);
    close_device(); /* waits */
    assert_true(moved[TM_DEVICE_DEPTH - 1].complete);
}

/* What somebody else registered stays registered. */
static void test_registered_by_another(void **state) {
    (void)state;
    static char ours[PAGE], theirs[PAGE];
    const cuda_driver *v = fake_driver();
    fake_reset(NULL);
    must_open(PAGE);
    unsigned before = fake_live();
    assert_int_equal(v->host_register(theirs, PAGE, 0), CUDA_SUCCESS);
    assert_int_equal(cuda_pin(&device, theirs, PAGE), TM_OK);
    assert_int_equal(cuda_pin(&device, ours, PAGE), TM_OK);
    assert_int_equal(fake_live(), before + 2);
    cuda_unpin(&device, theirs);
    cuda_unpin(&device, ours);
    assert_int_equal(fake_live(), before + 1);
    assert_int_equal(v->host_unregister(theirs), CUDA_SUCCESS);
    close_device();
}

/* AdamW through the table's row, and what it counts. */
typedef struct update_job {
    tm_optim_step step;
    uint64_t n, bad;
} update_job;
static tm_status update_op(void *ctx) {
    update_job *j = ctx;
    tm_optim_span x = {
        .weight = arena_at(0), .grad = arena_at(PAGE), .state = {arena_at(2 * PAGE), arena_at(3 * PAGE)}};
    x.n = j->n / 2;
    tm_optim_launch(&cuda_table, &j->step, &x, &j->bad);
    x.weight += x.n, x.grad = (const float *)x.grad + x.n; /* two spans of one operation count together */
    x.state[0] = (float *)x.state[0] + x.n, x.state[1] = (float *)x.state[1] + x.n;
    tm_optim_launch(&cuda_table, &j->step, &x, &j->bad);
    return TM_OK;
}

static void test_update(void **state) {
    (void)state;
    static float host[4][PAGE / 4], want[4][PAGE / 4];
    const tm_optimizer *adamw = tm_optimizer_find("adamw");
    tm_optim_opts o;
    update_job j = {.n = PAGE / 4};
    tm_event e = {0};
    tm_optim_defaults(adamw, &o);
    tm_optim_step_init(&j.step, adamw, &o, 1e-3, 1, 1);
    memset(host, 0, sizeof host);
    for (int i = 0; i < PAGE / 4; i++) host[0][i] = (float)i, host[1][i] = 1.0F / (float)(i - 5); /* infinite at 5 */
    memcpy(want, host, sizeof host);
    fake_reset(NULL);
    must_open(4 * PAGE);
    for (int k = 0; k < 2; k++) { /* twice: the counter begins at zero again */
        assert_int_equal(copy(TM_DEVICE_IN, host, 0, sizeof host, &e), TM_OK);
        assert_int_equal(wait_for(&e), TM_OK);
        assert_int_equal(submit(update_op, &j, &e), TM_OK);
        assert_int_equal(wait_for(&e), TM_OK);
    }
    tm_optim_span x = {.weight = want[0], .grad = want[1], .state = {want[2], want[3]}, .n = PAGE / 4};
    assert_int_equal(j.bad, 2 * tm_optim_run(&j.step, &x));
    assert_true(j.bad > 0);
    assert_int_equal(copy(TM_DEVICE_OUT, host, 0, sizeof host, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_OK);
    for (int i = 0; i < PAGE / 4; i++)
        if (i != 5) assert_memory_equal(&host[0][i], &want[0][i], 4);
    close_device();
}

/* ---- a device that breaks ---- */

static void test_broken_device(void **state) {
    (void)state;
    static char host[PAGE];
    tm_event e[6] = {{0}};
    job j = {.n = 4};
    fake_reset(&(fake_options){.slow_us = 500});
    must_open(4 * PAGE);
    fake_fail("event_wait", 2, 700);
    for (int i = 0; i < 4; i++) assert_int_equal(copy(TM_DEVICE_IN, host, 0, PAGE, &e[i]), TM_OK);
    assert_int_equal(wait_for(&e[0]), TM_OK);
    assert_int_equal(wait_for(&e[1]), TM_EIO);
    assert_non_null(strstr(tm_error_get()->text, "ILLEGAL_ADDRESS"));
    tm_error_clear();
    assert_int_equal(wait_for(&e[2]), TM_EIO);
    assert_int_equal(wait_for(&e[3]), TM_EIO);
    tm_error_clear();
    assert_int_equal(submit(add_op, &j, &e[4]), TM_OK);
    assert_int_equal(wait_for(&e[4]), TM_EIO); /* completes all the same */
    tm_error_clear();
    close_device();
}

/* A copy or launch that the driver refuses. */
static void test_refusals(void **state) {
    (void)state;
    static char host[PAGE];
    tm_event e = {0};
    job j = {.n = 4};
    fake_reset(NULL);
    must_open(4 * PAGE);
    fake_fail("copy_in", 1, 1);
    assert_int_equal(copy(TM_DEVICE_IN, host, 0, PAGE, &e), TM_EIO);
    tm_error_clear();
    fake_fail("launch", 1, 1);
    assert_int_equal(submit(add_op, &j, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_EIO);
    assert_non_null(strstr(tm_error_get()->text, "launching a kernel"));
    tm_error_clear();
    close_device();
}

/* Every call that opening makes fails once: an error that says something, and nothing stays behind. */
static void test_open_failures(void **state) {
    (void)state;
    fake_reset(NULL);
    must_open(PAGE);
    unsigned all = fake_calls();
    close_device();
    unsigned failed = 0;
    for (unsigned i = 1; i <= all; i++) {
        fake_reset(NULL);
        fake_fail_any(i, 1);
        tm_status rc = open_device("cuda:0", PAGE);
        if (rc == TM_OK) {
            cuda_close(&device);
        } else {
            failed++;
            assert_true(strlen(tm_error_get()->text) > 10);
        }
        assert_int_equal(fake_live(), 0);
        tm_error_clear();
    }
    assert_true(failed > all / 2);
    fake_reset(NULL);
    fake_fail("module_load", 1, 222);
    assert_int_equal(open_device("cuda:0", PAGE), TM_EIO);
    assert_non_null(strstr(tm_error_get()->text, "driver is for CUDA up to 13.0, the kernels were built with 0.0"));
    tm_error_clear();
    fake_fail("module_load", 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(open_device("cuda:0", PAGE), TM_ENOMEM);
    assert_null(strstr(tm_error_get()->text, "newer driver"));
    tm_error_clear();
}

/* ---- what is refused at open ---- */

static void expect_error(const char *name, uint64_t bytes, tm_status rc, const char *text) {
    assert_int_equal(open_device(name, bytes), rc);
    if (!strstr(tm_error_get()->text, text)) fail_msg("\"%s\" is not in \"%s\"", text, tm_error_get()->text);
    tm_error_clear();
    assert_int_equal(fake_live(), 0);
}

static void test_cap(void **state) {
    (void)state;
    uint64_t side = CUDA_SIDE_MIB * TM_MIB;
    tm_device_info info;
    fake_reset(&(fake_options){.memory_bytes = TM_GIB, .used_bytes = TM_GIB / 2});
    expect_error("cuda:0", TM_GIB / 2 - side + PAGE, TM_ENOMEM, "0.44 of its 1.00 GiB are free");
    expect_error("cuda:0", 0, TM_EINPUT, "device_budget");
    expect_error("cuda:1", PAGE, TM_EINPUT, "has 1 of its kind");
    expect_error("cuda:x", PAGE, TM_EINPUT, "no device \"cuda:x\"");
    must_open(TM_GIB / 2 - side);
    close_device();
    assert_int_equal(cuda_look(fake_driver(), 0, &info), TM_OK);
    assert_string_equal(info.about, "fake device, compute capability 8.0");
    assert_int_equal(info.free_bytes, TM_GIB / 2);
    char text[128];
    assert_int_equal(cuda_describe(fake_driver(), fake_lt(), "cuda:0", text, sizeof text), TM_OK);
    assert_string_equal(text, "fake device, compute capability 8.0, kernels of CUDA 0.0, cuBLASLt 130000");
    info.name[0] = 0;
    assert_int_equal(cuda_look(fake_driver(), 1, &info), TM_EINPUT);
    assert_string_equal(info.name, "");
    tm_error_clear();
    fake_reset(&(fake_options){.devices = 3, .old_device = 1});
    assert_int_equal(cuda_look(fake_driver(), 1, &info), TM_EUNSUPPORTED);
    assert_string_equal(info.name, "cuda:1"); /* it is there, and the next one is well */
    tm_error_clear();
    assert_int_equal(cuda_look(fake_driver(), 2, &info), TM_OK);
    fake_reset(&(fake_options){.capability = 70});
    expect_error("cuda:0", PAGE, TM_EUNSUPPORTED, "at least 7.5");
    fake_reset(&(fake_options){.capability = 75});
    fake_fail("module_load", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    expect_error("cuda:0", PAGE, TM_EUNSUPPORTED,
                 "built for 80-virtual, 90: build with -DTIDEMILL_CUDA_ARCHITECTURES=75");
}

/* ---- exchanges between devices ---- */

enum { PEERS = 3, SPARE = 64 };

/* Unequal slices, one of them empty, one larger than what is summed at a time; and small ones. */
static const uint64_t slices[][PEERS] = {
    {CUDA_PEERS_WORKSPACE / 4 / (PEERS - 1) + 1000, 0, 77}, {3, 4, 5}, {0, 0, 1}, {0, 0, 0}};

typedef struct peer {
    tm_device_peers to;
    struct tm_device d;
    float *all, *gathered; /* what I add; what I gathered */
    float *sum;            /* mine of it */
    uint64_t n, begin;
    tm_status rc;
    char said[200];
} peer;

static float value_of(uint32_t me, uint64_t i) {
    return (float)((i * 2654435761u * (2 * me + 1) + me * 40503u) % 1000003u) * 1e-3f + (me == 0 ? 1e6f : 0);
}

static tm_status exchange_on(peer *p, tm_device_exchange_code code, const uint64_t *counts, const void *send,
                             void *recv) {
    tm_event e = {0};
    const tm_device_exchange x = {code, sizeof(float), send, recv, counts};
    TM_TRY(cuda_exchange(&p->d, &x, &e));
    cuda_wait(&p->d, &e);
    return e.status;
}

/* In place and not, one after the other: what is gathered are the sums. */
static tm_status exchange_all(peer *p, const uint64_t *counts) {
    uint64_t n = 0;
    for (uint32_t r = 0; r < PEERS; r++) {
        if (r == p->to.me) p->begin = n;
        n += counts[r];
    }
    p->n = counts[p->to.me];
    float *at = (float *)(void *)p->d.arena, *sums = at + n + SPARE;
    memset(at, 0, (2 * n + SPARE) * sizeof *at);
    memcpy(at, p->all, n * sizeof *at); /* the pretended device's memory is the host's */
    TM_TRY(exchange_on(p, TM_DEVICE_REDUCE_SCATTER, counts, at, at + p->begin));
    memcpy(p->sum, at + p->begin, p->n * sizeof *at);
    TM_TRY(exchange_on(p, TM_DEVICE_ALL_GATHER, counts, at + p->begin, sums));
    TM_TRY(exchange_on(p, TM_DEVICE_ALL_GATHER, counts, NULL, sums));
    memcpy(p->gathered, sums, n * sizeof *at);
    return TM_OK;
}

static void *peer_main(void *arg) {
    peer *p = arg;
    char name[16];
    snprintf(name, sizeof name, "cuda:%u", p->to.me);
    p->d = (struct tm_device){.caps = {.name = "cuda", .traits = {.own_processors = true, .alignment = PAGE}}};
    const tm_device_opts opts = {.name = name, .arena_bytes = 64 << 20, .peers = &p->to};
    p->rc = cuda_open(&p->d, &opts, fake_driver(), NULL, fake_nccl());
    for (size_t i = 0; p->rc == TM_OK && i < TM_COUNT(slices); i++) {
        p->rc = exchange_all(p, slices[i]);
        if (p->rc != TM_OK) break;
        uint64_t n = slices[i][0] + slices[i][1] + slices[i][2];
        for (uint64_t k = 0; k < n && p->rc == TM_OK; k++) {
            float want = (value_of(0, k) + value_of(1, k)) + value_of(2, k); /* whose order is not by chance */
            if (p->gathered[k] != want || (k >= p->begin && k < p->begin + p->n && p->sum[k - p->begin] != want))
                p->rc = tm_fail(TM_EBUG, "case %zu, peer %u: element %llu is %a, expected %a", i, p->to.me,
                                (unsigned long long)k, (double)p->gathered[k], (double)want);
        }
    }
    snprintf(p->said, sizeof p->said, "%.190s", tm_error_get()->text);
    tm_error_clear();
    return NULL;
}

static void run_peers(peer p[PEERS]) {
    uint8_t id[TM_DEVICE_ID_BYTES];
    pthread_t thread[PEERS];
    uint64_t most = slices[0][0] + slices[0][1] + slices[0][2];
    fake_reset(&(fake_options){.devices = PEERS});
    assert_int_equal(cuda_peers_id(fake_nccl(), id), TM_OK);
    for (uint32_t i = 0; i < PEERS; i++) {
        p[i] = (peer){.to = {.n = PEERS, .me = i}};
        memcpy(p[i].to.id, id, sizeof id);
        p[i].all = malloc(most * sizeof(float));
        p[i].gathered = malloc(most * sizeof(float));
        p[i].sum = malloc(most * sizeof(float));
        for (uint64_t k = 0; k < most; k++) p[i].all[k] = value_of(i, k);
        assert_int_equal(pthread_create(&thread[i], NULL, peer_main, &p[i]), 0);
    }
    for (uint32_t i = 0; i < PEERS; i++) pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < PEERS; i++) {
        cuda_close(&p[i].d);
        free(p[i].all), free(p[i].gathered), free(p[i].sum);
    }
    assert_int_equal(fake_live(), 0);
}

static void test_exchanges(void **state) {
    (void)state;
    static peer p[PEERS];
    run_peers(p);
    for (uint32_t i = 0; i < PEERS; i++)
        if (p[i].rc != TM_OK) fail_msg("peer %u: %s", i, p[i].said);
    unsigned otherwise = 0; /* the order is not by chance */
    for (uint64_t k = 0; k < 1000; k++)
        otherwise +=
            (value_of(0, k) + value_of(1, k)) + value_of(2, k) != (value_of(2, k) + value_of(1, k)) + value_of(0, k);
    assert_true(otherwise > 100);
}

/* One of them fails at a message: it says so, what was under way ends, and nobody is waited for. */
static void test_exchange_fails(void **state) {
    (void)state;
    static peer p[PEERS];
    bool any = false;
    fake_nccl_fail(4 * PEERS + 5); /* after all are connected */
    run_peers(p);
    fake_nccl_fail(0);
    for (uint32_t i = 0; i < PEERS; i++)
        any |= p[i].rc == TM_EIO && strstr(p[i].said, "NCCL: a message failed: as the");
    assert_true(any);
    must_open(PAGE);
    tm_event e = {0};
    assert_int_equal(cuda_exchange(&device, &(tm_device_exchange){.counts = slices[0]}, &e), TM_EBUG);
    tm_error_clear();
    close_device();
}

/* ---- products by the library ---- */

typedef struct product_job {
    tm_gemm_args g;
    bool own; /* falls to our own kernel */
} product_job;
static tm_status product_op(void *ctx) {
    cuda_table.gemm(&((product_job *)ctx)->g);
    return TM_OK;
}

/* Operands at the arena's first pages; C against the CPU's. */
static void product(tm_elem ab, tm_elem c, bool at, bool bt, float beta, bool own) {
    enum { M = 5, N = 7, K = 9, ROOM = 256 };
    static float host[3][PAGE / 4], want[PAGE / 4];
    tm_event e = {0};
    unsigned before = fake_launches();
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < ROOM; k++) host[i][k] = (float)((i + 3) * (k * 7 % 13) - 20);
    if (ab == TM_ELEM_BF16)
        for (int i = 0; i < 2; i++) tm_narrow(host[i], (uint16_t *)host[i], ROOM);
    if (c == TM_ELEM_BF16) tm_narrow(host[2], (uint16_t *)host[2], ROOM);
    memcpy(want, host[2], sizeof want);
    product_job j = {.g = {.m = M, .n = N, .k = K, .alpha = 0.5F, .beta = beta, .lda = (at ? M : K) + 1}};
    j.g.ldb = (bt ? K : N) + 2, j.g.ldc = N + 3, j.g.a_trans = at, j.g.b_trans = bt;
    j.g.a_type = j.g.b_type = ab, j.g.c_type = c;
    j.g.a = host[0], j.g.b = host[1], j.g.c = want;
    tm_gemm(&j.g);
    j.g.a = arena_at(0), j.g.b = arena_at(PAGE), j.g.c = arena_at(2 * PAGE);
    assert_int_equal(copy(TM_DEVICE_IN, host, 0, sizeof host, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_OK);
    assert_int_equal(submit(product_op, &j, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_OK);
    assert_int_equal(copy(TM_DEVICE_OUT, host, 0, sizeof host, &e), TM_OK);
    assert_int_equal(wait_for(&e), TM_OK);
    assert_memory_equal(host[2], want, sizeof want); /* small whole numbers and halves: exact in any order */
    assert_int_equal(fake_launches() - before, own);
}

static void test_products(void **state) {
    (void)state;
    fake_reset(NULL);
    with_library = true;
    fake_lt_algorithm(4);
    must_open(3 * PAGE);
    for (unsigned i = 0; i < 16; i++)
        product(i & 1 ? TM_ELEM_BF16 : TM_ELEM_F32, (i & 3) == 1 ? TM_ELEM_BF16 : TM_ELEM_F32, i & 4, i & 8,
                i & 2 ? 1.0F : 0.0F, false);
    product(TM_ELEM_F32, TM_ELEM_BF16, false, true, 0, true); /* not a pair that it has */
    close_device();
    fake_lt_algorithm(0);
    must_open(3 * PAGE);
    product(TM_ELEM_F32, TM_ELEM_F32, false, true, 0, true);
    close_device();
    with_library = false;
    assert_int_equal(fake_lt_live(), 0);
}

/* Choices are kept a shape, written down, and taken up by another run whatever heuristics say then. */
static void test_recorded_algorithms(void **state) {
    (void)state;
    static char record[4096], again[4096];
    uint32_t lines = 0;
    fake_reset(NULL);
    with_library = true;
    fake_lt_algorithm(4);
    must_open(3 * PAGE);
    product(TM_ELEM_F32, TM_ELEM_F32, false, true, 0, false);
    fake_lt_algorithm(5);
    product(TM_ELEM_F32, TM_ELEM_F32, true, false, 0, false);
    product(TM_ELEM_F32, TM_ELEM_F32, false, true, 0, false); /* met before */
    assert_int_equal(fake_lt_last(), 4);
    assert_int_equal(cuda_products_record(((cuda_device *)device.own)->products, record, sizeof record), 2);
    close_device();
    fake_lt_algorithm(6);
    must_open(3 * PAGE);
    cuda_products *p = ((cuda_device *)device.own)->products;
    assert_int_equal(cuda_products_take(p, record, &lines), TM_OK);
    assert_int_equal(lines, 2);
    product(TM_ELEM_F32, TM_ELEM_F32, true, false, 0, false);
    assert_int_equal(fake_lt_last(), 5);
    assert_int_equal(cuda_products_record(p, again, sizeof again), 2);
    assert_string_equal(again, record);
    assert_int_equal(cuda_products_take(p, record, &lines), TM_EINPUT); /* named twice */
    tm_error_clear();
    assert_int_equal(cuda_products_take(p, "5 7 9 no\n", &lines), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "line 1"));
    tm_error_clear();
    record[strlen(record) - 2] ^= 1; /* an algorithm that the library does not know */
    close_device();
    must_open(3 * PAGE);
    assert_int_equal(cuda_products_take(((cuda_device *)device.own)->products, record, &lines), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "another version"));
    tm_error_clear();
    close_device();
    with_library = false;
}

/* A product of that many columns, all others alike: a shape of its own. */
static tm_status narrow_product(uint64_t n) {
    product_job j = {.g = {.m = 1, .n = n, .k = 1, .alpha = 1, .lda = 1, .ldb = n, .ldc = n}};
    tm_event e = {0};
    j.g.a = arena_at(0), j.g.b = arena_at(PAGE), j.g.c = arena_at(2 * PAGE);
    assert_int_equal(submit(product_op, &j, &e), TM_OK);
    return wait_for(&e);
}

/* A product that could not be described leaves nothing half-made behind. */
static void test_half_made(void **state) {
    (void)state;
    fake_reset(NULL);
    with_library = true;
    fake_lt_algorithm(4);
    for (unsigned fails = 1; fails <= 4; fails++) {
        must_open(3 * PAGE);
        fake_lt_fail(fails);
        assert_int_equal(narrow_product(5), TM_EIO);
        tm_error_clear();
        fake_lt_fail(0);
        assert_int_equal(narrow_product(5), TM_OK);
        assert_int_equal(fake_launches(), 0); /* by the library */
        close_device();
        assert_int_equal(fake_lt_live(), 0);
    }
    with_library = false;
}

/* That the library has nothing for a shape is a choice; that it failed is none, and no reason for other bits. */
static void test_failing_heuristics(void **state) {
    (void)state;
    enum { NO_MEMORY = 3 };
    static char record[2048];
    fake_reset(NULL);
    with_library = true;
    must_open(3 * PAGE);
    fake_lt_refuse(NO_MEMORY);
    assert_int_equal(narrow_product(5), TM_EIO);
    assert_non_null(strstr(tm_error_get()->text, "choosing an algorithm failed (3)"));
    tm_error_clear();
    assert_int_equal(cuda_choices(&device, record, sizeof record), TM_OK);
    assert_string_equal(record, "");
    fake_lt_algorithm(4);
    assert_int_equal(narrow_product(5), TM_OK);
    assert_int_equal(fake_launches(), 0);
    close_device();
    with_library = false;
    assert_int_equal(fake_lt_live(), 0);
}

/* Who looks around, opens or closes a device is in the same context afterwards as before. */
static void test_context_of_the_caller(void **state) {
    (void)state;
    const cuda_driver *v = fake_driver();
    CUcontext mine, other, now;
    CUdevice device_1;
    tm_device_info info = {.name = ""};
    fake_reset(&(fake_options){.devices = 2});
    must_open(PAGE);
    assert_int_equal(v->context_now(&mine), CUDA_SUCCESS);
    assert_non_null(mine);
    assert_int_equal(cuda_look(v, 1, &info), TM_OK);
    assert_true(info.free_bytes > 0);
    assert_int_equal(v->context_now(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, mine);
    assert_int_equal(v->device_get(&device_1, 1), CUDA_SUCCESS);
    assert_int_equal(v->context_retain(&other, device_1), CUDA_SUCCESS);
    assert_int_equal(v->context_use(other), CUDA_SUCCESS);
    cuda_close(&device);
    assert_int_equal(v->context_now(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, other);
    assert_int_equal(v->context_use(NULL), CUDA_SUCCESS);
    assert_int_equal(v->context_release(device_1), CUDA_SUCCESS);
    assert_int_equal(fake_live(), 0);
    must_open(PAGE);
    close_device(); /* its own context is left, since it is gone */
    assert_int_equal(v->context_now(&now), CUDA_SUCCESS);
    assert_null(now);
}

/* Rows of uneven length make more shapes than are kept: each is the library's all the same, whatever came before. */
static void test_many_shapes(void **state) {
    (void)state;
    static char record[CUDA_LT_PLANS * CUDA_LT_LINE];
    char *line = record;
    uint32_t lines;
    fake_reset(NULL);
    with_library = true;
    fake_lt_algorithm(4);
    must_open(3 * PAGE);
    for (uint64_t n = 1; n <= CUDA_LT_PLANS + 20; n++) assert_int_equal(narrow_product(n), TM_OK);
    assert_int_equal(narrow_product(1), TM_OK); /* given up meanwhile */
    assert_int_equal(fake_launches(), 0);
    assert_int_equal(cuda_choices(&device, record, sizeof record), TM_OK);
    for (lines = 0; *line; lines++) line = strchr(line, '\n') + 1;
    assert_int_equal(lines, CUDA_LT_PLANS);
    close_device();
    fake_lt_algorithm(0); /* nothing for any shape: that is a choice, too */
    must_open(3 * PAGE);
    assert_int_equal(narrow_product(3), TM_OK);
    assert_int_equal(fake_launches(), 1);
    assert_int_equal(cuda_choices(&device, record, sizeof record), TM_OK);
    close_device();
    fake_reset(NULL);
    fake_lt_algorithm(4);
    must_open(3 * PAGE);
    assert_int_equal(cuda_take_choices(&device, record), TM_OK);
    assert_int_equal(narrow_product(3), TM_OK);
    assert_int_equal(fake_launches(), 1);
    close_device();
    with_library = false;
    must_open(PAGE);
    assert_int_equal(cuda_take_choices(&device, ""), TM_OK);
    assert_int_equal(cuda_take_choices(&device, record), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "no cuBLASLt"));
    tm_error_clear();
    close_device();
    assert_int_equal(fake_lt_live(), 0);
}

/* On this machine: a driver, or why there is none. */
static void test_real_driver(void **state) {
    (void)state;
    const cuda_driver *v;
    tm_status rc = cuda_driver_load(&v);
    if (rc == TM_OK) return;
    assert_int_equal(rc, TM_EUNSUPPORTED);
    assert_non_null(strstr(tm_error_get()->text, "cuda: "));
    tm_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_callbacks),
                                       cmocka_unit_test(test_operations),
                                       cmocka_unit_test(test_failing_operation),
                                       cmocka_unit_test(test_failing_half_way),
                                       cmocka_unit_test(test_depth),
                                       cmocka_unit_test(test_registered_by_another),
                                       cmocka_unit_test(test_update),
                                       cmocka_unit_test(test_broken_device),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_open_failures),
                                       cmocka_unit_test(test_cap),
                                       cmocka_unit_test(test_exchanges),
                                       cmocka_unit_test(test_exchange_fails),
                                       cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_recorded_algorithms),
                                       cmocka_unit_test(test_half_made),
                                       cmocka_unit_test(test_failing_heuristics),
                                       cmocka_unit_test(test_context_of_the_caller),
                                       cmocka_unit_test(test_many_shapes),
                                       cmocka_unit_test(test_real_driver)};
    (void)setenv("TIDEMILL_ISA", "ref", 1);
    drop_products_of_one_column();
    if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tm_kernels_close();
    return failed;
}
