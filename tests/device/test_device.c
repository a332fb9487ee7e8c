/* Devices: an arena that host code cannot touch, its cap, copies in order and at their rate, operations that return
 * before they end, windows that overlap and windows that do not open, modules. */
#include "device/device_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 4096 };
#define MIB ((uint64_t)1 << 20)

static tm_device *arena(uint64_t bytes, uint64_t rate) {
    tm_device *d = NULL;
    assert_int_equal(
        tm_device_open(&d, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = bytes, .bytes_per_second = rate}),
        TM_OK);
    return d;
}

static void copy(tm_device *d, tm_device_way way, void *host, uint64_t offset, uint64_t bytes) {
    tm_event e = {0};
    assert_int_equal(tm_device_copy(d, &(tm_device_transfer){way, host, offset, bytes}, &e), TM_OK);
    assert_int_equal(tm_event_wait(d, &e), TM_OK);
    assert_true(tm_event_query(d, &e));
}

/* ---- who may touch it ---------------------------------------------------------------------------------------- */

typedef struct job {
    tm_device *d;
    uint64_t read, write, bytes;
} job;

static tm_status add_one(void *ctx) {
    const job *j = ctx;
    const unsigned char *from = tm_device_at(j->d, j->read);
    unsigned char *to = tm_device_at(j->d, j->write);
    for (uint64_t i = 0; i < j->bytes; i++) to[i] = (unsigned char)(from[i] + 1);
    return TM_OK;
}

/* The signal that ended a child which did this; 0: it lived. */
static int child(void (*touch)(tm_device *d), tm_device *d) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit instead */
        touch(d);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static volatile char sink;
static void read_it(tm_device *d) {
    sink = *(volatile char *)tm_device_at(d, 5 * PAGE);
}
static void write_it(tm_device *d) {
    *(volatile char *)tm_device_at(d, 0) = 1;
}
static void stay(tm_device *d) {
    job j = {d, 0, 2 * PAGE, 2 * PAGE};
    tm_device_frame f[] = {{0, 2 * PAGE}, {2 * PAGE, 2 * PAGE}};
    if (tm_device_run(d, f, 2, add_one, &j) != TM_OK) _exit(3);
}
/* Those that run operations have a device of their own: a device's threads are not there in a forked child. */
static void stay_there(tm_device *d) {
    (void)d;
    stay(arena(MIB, 0));
}
/* An operation that strays out of the frames that it declared. */
static void stray(tm_device *d) {
    d = arena(MIB, 0);
    job j = {d, 0, PAGE, 2 * PAGE};
    tm_device_frame f[] = {{0, 2 * PAGE}};
    if (tm_device_run(d, f, 1, add_one, &j) != TM_OK) _exit(3);
}

static void a_touch_from_host_code_traps(void **state) {
    (void)state;
    tm_device *d = arena(MIB, 0);
    static unsigned char buf[8 * PAGE];
    assert_int_equal(child(read_it, d), SIGSEGV);
    assert_int_equal(child(write_it, d), SIGSEGV);
    assert_int_equal(child(stray, d), SIGSEGV);
    assert_int_equal(child(stay_there, d), 0);
    copy(d, TM_DEVICE_IN, buf, 0, sizeof buf); /* and after copies and operations as well */
    stay(d);
    assert_int_equal(child(read_it, d), SIGSEGV);
    assert_int_equal(child(write_it, d), SIGSEGV);
    tm_device_close(d);
}

static void what_goes_in_comes_out(void **state) {
    (void)state;
    tm_device *d = arena(MIB, 0);
    static unsigned char in[8 * PAGE], out[8 * PAGE];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (unsigned char)(i * 31 + i / 255);
    copy(d, TM_DEVICE_IN, in, 16 * PAGE, sizeof in);
    job j = {d, 16 * PAGE, 32 * PAGE, sizeof in};
    tm_device_frame f[] = {{16 * PAGE, sizeof in}, {32 * PAGE, sizeof in}};
    assert_int_equal(tm_device_run(d, f, 2, add_one, &j), TM_OK);
    copy(d, TM_DEVICE_OUT, out, 32 * PAGE, sizeof out);
    for (size_t i = 0; i < sizeof in; i++) assert_int_equal(out[i], (unsigned char)(in[i] + 1));
    tm_device_close(d);
}

/* ---- windows that overlap ------------------------------------------------------------------------------------ */

typedef struct overlap {
    tm_device *d;
    tm_event *e;
    unsigned char sum;
} overlap;

/* While this operation reads its frame, copies out of the same one begin and end. */
static tm_status read_beside_copies(void *ctx) {
    overlap *o = ctx;
    const unsigned char *p = tm_device_at(o->d, 0);
    for (int i = 0; i < 16; i++) {
        tm_status rc = tm_event_wait(o->d, &o->e[i]);
        if (rc != TM_OK) return rc;
        for (int k = 0; k < 4 * PAGE; k++) o->sum = (unsigned char)(o->sum + p[k]);
    }
    return TM_OK;
}

static void windows_are_counted(void **state) {
    (void)state;
    tm_device *d = arena(MIB, 0);
    static unsigned char in[4 * PAGE], out[16][4 * PAGE];
    memset(in, 1, sizeof in);
    copy(d, TM_DEVICE_IN, in, 0, sizeof in);
    tm_event e[16] = {0};
    tm_device_frame f[] = {{0, 2 * PAGE}, {PAGE, 3 * PAGE}}; /* its own frames may overlap too */
    for (int i = 0; i < 16; i++)
        assert_int_equal(tm_device_copy(d, &(tm_device_transfer){TM_DEVICE_OUT, out[i], 0, sizeof in}, &e[i]), TM_OK);
    overlap o = {d, e, 0};
    assert_int_equal(tm_device_run(d, f, 2, read_beside_copies, &o), TM_OK);
    assert_int_equal(o.sum, (unsigned char)(16 * 4 * PAGE));
    assert_int_equal(child(write_it, d), SIGSEGV);
    for (int i = 0; i < 16; i++) assert_memory_equal(out[i], in, sizeof in);
    tm_device_close(d);
}

/* ---- the cap ------------------------------------------------------------------------------------------------- */

static tm_status never(void *ctx) {
    *(bool *)ctx = true;
    return TM_OK;
}

static void nothing_goes_past_the_cap(void **state) {
    (void)state;
    static unsigned char buf[2 * PAGE];
    tm_device *d = arena(64 * PAGE + 4095, 0), *none = NULL;
    const struct {
        uint64_t offset, bytes;
    } bad[] = {{63 * PAGE, 2 * PAGE},      {64 * PAGE, PAGE}, {UINT64_MAX - PAGE + 1, PAGE},
               {0, UINT64_MAX - PAGE + 1}, {64, PAGE},        {0, 100}};
    bool ran = false;
    tm_event e = {0};
    assert_int_equal(tm_device_get_caps(d)->arena_bytes, 64 * PAGE);
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_device_frame f = {bad[i].offset, bad[i].bytes};
        assert_int_equal(tm_device_copy(d, &(tm_device_transfer){TM_DEVICE_IN, buf, f.offset, f.bytes}, &e), TM_EBUG);
        assert_int_equal(tm_device_run(d, &f, 1, never, &ran), TM_EBUG);
        tm_error_clear();
    }
    assert_false(ran);
    copy(d, TM_DEVICE_IN, buf, 62 * PAGE, 2 * PAGE); /* up to the last byte */
    tm_device_close(d);
    assert_int_equal(tm_device_open(&none, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = 4095}), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(tm_device_open(&none, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = (uint64_t)1 << 60}),
                     TM_ENOMEM);
    assert_null(none);
    tm_error_clear();
}

/* ---- time and order ------------------------------------------------------------------------------------------ */

typedef struct gate { /* whoever completes waits until it is opened */
    tm_event e;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
} gate;

static void wait_at_gate(tm_event *e) {
    gate *g = (gate *)(void *)e;
    pthread_mutex_lock(&g->lock);
    while (!g->open) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_signal(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

enum { COPIES = 4 };

/* Copies of a direction, the first of which (`first`, where given) has an event of the caller's. */
static void submit_copies(tm_device *d, tm_device_way way, uint64_t bytes, tm_event *first, tm_event *e) {
    static unsigned char buf[2][4 << 20];
    for (int i = 0; i < COPIES; i++)
        assert_int_equal(tm_device_copy(d, &(tm_device_transfer){way, buf[way], (uint64_t)way * 8 * MIB, bytes},
                                        i == 0 && first ? first : &e[i]),
                         TM_OK);
}

/* Never faster than the rate; in each direction one after the other. */
static void expect_rate(const tm_event *e, uint64_t bytes, uint64_t rate) {
    for (int i = 0; i < COPIES; i++) {
        double s = (double)(e[i].end_ns - e[i].start_ns) * 1e-9;
        assert_true(s >= 0.999 * (double)bytes / (double)rate);
        if (i) assert_true(e[i].start_ns >= e[i - 1].end_ns);
    }
}

/* Nobody waits for copies but who asks: all are submitted while the first one's completion is held up. Meanwhile those
 * of the other direction go on to their end: each has its own way. Were it one for both, this would hang. */
static void copies_take_the_time_that_they_are_given(void **state) {
    (void)state;
    const uint64_t rate = 200 * 1000 * 1000, bytes = 4 * MIB;
    tm_device *d = arena(16 * MIB, rate);
    alarm(100);
    for (int held = 0; held < 2; held++) {
        gate g = {.e = {.done = wait_at_gate}, .lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
        tm_event e[2][COPIES] = {0};
        tm_device_way way = (tm_device_way)held, other = (tm_device_way)!held;
        submit_copies(d, way, bytes, &g.e, e[way]);
        submit_copies(d, other, bytes, NULL, e[other]);
        assert_int_equal(tm_event_wait(d, &e[other][COPIES - 1]), TM_OK);
        for (int i = 1; i < COPIES; i++) assert_false(tm_event_query(d, &e[way][i]));
        open_gate(&g);
        assert_int_equal(tm_event_wait(d, &e[way][COPIES - 1]), TM_OK);
        assert_int_equal(tm_event_wait(d, &g.e), TM_OK);
        e[way][0] = g.e;
        expect_rate(e[way], bytes, rate);
        expect_rate(e[other], bytes, rate);
    }
    alarm(0);
    tm_device_stats s;
    tm_device_get_stats(d, &s);
    assert_int_equal(s.copies[TM_DEVICE_IN], 2 * COPIES);
    assert_int_equal(s.copied_bytes[TM_DEVICE_OUT], 2 * COPIES * bytes);
    tm_device_close(d);
}

enum { MANY = TM_DEVICE_DEPTH };
typedef struct order {
    pthread_mutex_t lock;
    int next[TM_DEVICE_WAYS], wrong, n;
} order;
typedef struct numbered {
    tm_event e;
    order *o;
    int way, number;
} numbered;

static void note(tm_event *e) {
    numbered *x = (numbered *)(void *)e;
    pthread_mutex_lock(&x->o->lock);
    x->o->wrong += x->number != x->o->next[x->way]++ || e->status != TM_OK;
    x->o->n++;
    pthread_mutex_unlock(&x->o->lock);
}

static void events_complete_once_and_in_order(void **state) {
    (void)state;
    static numbered list[TM_DEVICE_WAYS][MANY];
    static unsigned char buf[TM_DEVICE_WAYS][PAGE];
    order o = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tm_device *d = arena(MIB, 0);
    for (int i = 0; i < MANY; i++)
        for (int w = 0; w < TM_DEVICE_WAYS; w++) {
            list[w][i] = (numbered){.e = {.done = note}, .o = &o, .way = w, .number = i};
            assert_int_equal(tm_device_copy(d,
                                            &(tm_device_transfer){(tm_device_way)w, buf[w], (uint64_t)w * PAGE, PAGE},
                                            &list[w][i].e),
                             TM_OK);
        }
    tm_device_close(d); /* waits */
    assert_int_equal(o.n, TM_DEVICE_WAYS * MANY);
    assert_int_equal(o.wrong, 0);
}

/* ---- operations ---------------------------------------------------------------------------------------------- */

enum { OPERATIONS = TM_DEVICE_DEPTH };
typedef struct sequence {
    pthread_mutex_t lock;
    pthread_cond_t go_on;
    bool may_go;
    pthread_t thread;
    int next, wrong, ended, failed;
} sequence;
typedef struct step {
    tm_event e;
    sequence *q;
    int number;
} step;

static tm_status take_turn(void *ctx) {
    step *s = ctx;
    sequence *q = s->q;
    pthread_mutex_lock(&q->lock);
    while (!q->may_go) pthread_cond_wait(&q->go_on, &q->lock);
    q->thread = pthread_self();
    q->wrong += s->number != q->next++;
    pthread_mutex_unlock(&q->lock);
    return s->number % 100 == 7 ? tm_fail(TM_EIO, "operation %d gives up", s->number) : TM_OK;
}

static void turn_ended(tm_event *e) {
    step *s = (step *)(void *)e;
    bool failed = s->number % 100 == 7;
    pthread_mutex_lock(&s->q->lock);
    s->q->wrong += s->number != s->q->ended++ || (e->status != TM_OK) != failed ||
                   (strstr(tm_error_get()->text, "gives up") != NULL) != failed || e->end_ns < e->start_ns;
    s->q->failed += failed;
    pthread_mutex_unlock(&s->q->lock);
}

/* None has run when all are submitted, and one more is refused and not called; then each in its turn; what one of them
 * says goes to its own event only. */
static void operations_return_before_they_end(void **state) {
    (void)state;
    static step list[OPERATIONS];
    sequence q = {.lock = PTHREAD_MUTEX_INITIALIZER, .go_on = PTHREAD_COND_INITIALIZER};
    tm_device *d = arena(MIB, 0);
    tm_device_frame f = {0, PAGE};
    for (int i = 0; i < OPERATIONS; i++) {
        list[i] = (step){.e = {.done = i == OPERATIONS - 1 ? NULL : turn_ended}, .q = &q, .number = i};
        assert_int_equal(tm_device_submit(d, &(tm_device_op){&f, 1, take_turn, &list[i]}, &list[i].e), TM_OK);
    }
    step more = {.q = &q, .number = 1000};
    assert_int_equal(tm_device_submit(d, &(tm_device_op){&f, 1, take_turn, &more}, &more.e), TM_EBUG);
    tm_error_clear();
    pthread_mutex_lock(&q.lock);
    assert_int_equal(q.next, 0);
    q.may_go = true;
    pthread_cond_broadcast(&q.go_on);
    pthread_mutex_unlock(&q.lock);
    assert_int_equal(tm_event_wait(d, &list[OPERATIONS - 1].e), TM_OK);
    assert_int_equal(q.next, OPERATIONS);
    assert_int_equal(q.ended, OPERATIONS - 1);
    assert_int_equal(q.failed, 3);
    assert_int_equal(q.wrong, 0);
    assert_false(pthread_equal(q.thread, pthread_self()));
    step bad = {.q = &q, .number = 7};
    q.next = 7;
    assert_int_equal(tm_device_run(d, &f, 1, take_turn, &bad), TM_EIO); /* and to who waits for it */
    assert_string_equal(tm_error_get()->text, "operation 7 gives up");
    tm_error_clear();
    tm_device_stats s;
    tm_device_get_stats(d, &s);
    assert_int_equal(s.operations, OPERATIONS + 1);
    tm_device_close(d);
}

/* A copy begins and ends while an operation runs that reads the same frame. */
static tm_status wait_for_copy(void *ctx) {
    const overlap *o = ctx;
    while (!tm_event_query(o->d, o->e)) (void)usleep(100);
    return TM_OK;
}

static void copies_pass_operations(void **state) {
    (void)state;
    static unsigned char buf[PAGE];
    tm_device *d = arena(MIB, 0);
    tm_event copied = {0}, ran = {0};
    overlap o = {d, &copied, 0};
    tm_device_frame f = {0, PAGE};
    assert_int_equal(tm_device_submit(d, &(tm_device_op){&f, 1, wait_for_copy, &o}, &ran), TM_OK);
    assert_false(tm_event_query(d, &ran));
    assert_int_equal(tm_device_copy(d, &(tm_device_transfer){TM_DEVICE_OUT, buf, 0, PAGE}, &copied), TM_OK);
    assert_int_equal(tm_event_wait(d, &ran), TM_OK);
    tm_device_close(d);
}

/* ---- windows that do not open -------------------------------------------------------------------------------- */

static void a_window_that_does_not_open_leaves_none_behind(void **state) {
    (void)state;
    static unsigned char in[8 * PAGE];
    tm_device *d = arena(MIB, 0);
    bool ran;
    tm_device_frame f[] = {{0, 2 * PAGE}, {4 * PAGE, 2 * PAGE}, {3 * PAGE, 4 * PAGE}}; /* the last in two pieces */
    for (int nth = 1; nth <= 4; nth++) {
        char spec[32];
        (void)snprintf(spec, sizeof spec, "protect:%d:ENOMEM:once", nth);
        ran = false;
        assert_int_equal(tm_fault_set(spec), TM_OK);
        assert_int_equal(tm_device_run(d, f, 3, never, &ran), TM_ENOMEM);
        assert_non_null(strstr(tm_error_get()->text, "open a window"));
        tm_error_clear();
        assert_int_equal(tm_fault_set(NULL), TM_OK);
        assert_false(ran);
        assert_int_equal(child(write_it, d), SIGSEGV);
        copy(d, TM_DEVICE_IN, in, 0, sizeof in); /* counts are as they were */
        assert_int_equal(child(write_it, d), SIGSEGV);
        assert_int_equal(child(read_it, d), SIGSEGV);
    }
    assert_int_equal(tm_device_run(d, f, 3, never, &ran), TM_OK);
    assert_true(ran);
    tm_device_close(d);
}

/* ---- modules ------------------------------------------------------------------------------------------------- */

static void modules_are_checked_before_they_are_called(void **state) {
    (void)state;
    const device_ops *ops = NULL;
    assert_int_equal(device_module_load("missing", &ops), TM_EUNSUPPORTED);
    assert_non_null(strstr(tm_error_get()->text, "libtidemill_missing.so"));
    tm_error_clear();
    const char *bad[][2] = {
        {"test_version", "another version"}, {"test_symbol", "no module"}, {"test_driver", "no driver"}};
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        assert_int_equal(device_module_load(bad[i][0], &ops), TM_EUNSUPPORTED);
        if (!strstr(tm_error_get()->text, bad[i][1])) fail_msg("%s: %s", bad[i][0], tm_error_get()->text);
        tm_error_clear();
        assert_null(ops);
    }
    const device_ops *again = NULL;
    tm_device_info info = {0};
    assert_int_equal(device_module_load("test_good", &ops), TM_OK);
    assert_int_equal(device_module_load("test_good", &again), TM_OK);
    assert_ptr_equal(ops, again);
    assert_int_equal(ops->look(1, &info), TM_OK); /* started once */
    assert_string_equal(info.name, "test_good:1");
    assert_int_equal(info.memory_bytes, 1);
    assert_int_equal(ops->look(2, &info), TM_EINPUT); /* what it says is said here */
    assert_string_equal(tm_error_get()->text, "there is no test_good:2");
    tm_error_clear();
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static void the_cpu_computes_in_place(void **state) {
    (void)state;
    tm_device *d = NULL;
    tm_event e = {0};
    bool ran = false;
    assert_int_equal(tm_device_open(&d, &(tm_device_opts){.name = "cpu"}), TM_OK);
    assert_true(tm_device_get_caps(d)->traits.in_place);
    assert_int_equal(tm_device_get_caps(d)->arena_bytes, 0);
    assert_int_equal(tm_device_copy(d, &(tm_device_transfer){TM_DEVICE_IN, &ran, 0, 0}, &e), TM_EBUG);
    tm_error_clear();
    assert_int_equal(tm_device_run(d, NULL, 0, never, &ran), TM_OK);
    assert_true(ran);
    tm_device_close(d);
}

static void what_stands_behind_a_colon_is_a_number(void **state) {
    static const char *const wrong[] = {"cuda:", "cuda:x", "cuda:0x", "cuda: 0", "cuda:-0", "cuda:+0"};
    (void)state;
    tm_device_info info;
    for (size_t i = 0; i < TM_COUNT(wrong); i++) {
        assert_int_equal(tm_device_look_for(wrong[i], &info), TM_EINPUT);
        assert_non_null(strstr(tm_error_get()->text, "expected a number behind ':'"));
        tm_error_clear();
    }
}

static void unknown_devices_are_named(void **state) {
    (void)state;
    tm_device *d = NULL;
    assert_int_equal(tm_device_open(&d, &(tm_device_opts){.name = "tpu"}), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "tpu"));
    tm_error_clear();
    assert_int_equal(tm_device_open(&d, &(tm_device_opts){.name = "cpu:0"}), TM_EINPUT);
    tm_error_clear();
    assert_null(d);
    assert_string_equal(tm_device_name(0), "cpu");
    assert_string_equal(tm_device_name(1), "cpu-arena");
    assert_string_equal(tm_device_name(2), "cuda");
    assert_null(tm_device_name(3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_touch_from_host_code_traps),
        cmocka_unit_test(what_goes_in_comes_out),
        cmocka_unit_test(windows_are_counted),
        cmocka_unit_test(nothing_goes_past_the_cap),
        cmocka_unit_test(copies_take_the_time_that_they_are_given),
        cmocka_unit_test(events_complete_once_and_in_order),
        cmocka_unit_test(operations_return_before_they_end),
        cmocka_unit_test(copies_pass_operations),
        cmocka_unit_test(a_window_that_does_not_open_leaves_none_behind),
        cmocka_unit_test(modules_are_checked_before_they_are_called),
        cmocka_unit_test(the_cpu_computes_in_place),
        cmocka_unit_test(what_stands_behind_a_colon_is_a_number),
        cmocka_unit_test(unknown_devices_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
