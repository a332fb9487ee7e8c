/* The emulation finds what it is there to find: a missing barrier, threads that part, too much shared memory. */
#include "emulate.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 96 };
static const uint32_t one_block[3] = {1, 1, 1};

typedef struct args {
    uint32_t *out;
    bool with_barrier;
} args;

/* Everyone writes its cell and reads its neighbour's. */
static void neighbours(const void *p) {
    const args *a = p;
    uint32_t me = emulate_here.thread, *cell = emulate_shared(0, THREADS * sizeof *cell);
    cell[me] = me;
    if (a->with_barrier) emulate_barrier();
    a->out[me] = cell[(me + 1) % THREADS];
}

static void test_missing_barrier(void **state) {
    (void)state;
    uint32_t out[EMULATE_ORDERS][THREADS];
    for (int with = 0; with < 2; with++) {
        bool same = true;
        for (int o = 0; o < EMULATE_ORDERS; o++) {
            emulate_order((emulate_order_of)o);
            emulate_launch(neighbours, &(args){out[o], with}, one_block, THREADS, THREADS * sizeof(uint32_t));
            same = same && !memcmp(out[o], out[0], sizeof out[0]);
        }
        assert_int_equal(same, with);
    }
    for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(out[0][i], (i + 1) % THREADS);
}

/* Sum of lanes by exchanges, and several blocks. */
static void warp_sum(const void *p) {
    uint32_t x = emulate_here.thread, lane = x % 32;
    for (uint32_t d = 16; d > 0; d /= 2) x += emulate_shuffle(x, lane ^ d);
    ((const args *)p)->out[emulate_here.block[0] * THREADS + emulate_here.thread] = x + emulate_here.block[0];
}

static void test_exchange(void **state) {
    (void)state;
    uint32_t out[3 * THREADS];
    for (int o = 0; o < EMULATE_ORDERS; o++) {
        emulate_order((emulate_order_of)o);
        emulate_launch(warp_sum, &(args){.out = out}, (const uint32_t[3]){3, 1, 1}, THREADS, 0);
        for (uint32_t i = 0; i < 3 * THREADS; i++)
            assert_int_equal(out[i], 496 + 32 * 32 * (i % THREADS / 32) + i / THREADS);
    }
}

static void parted(const void *p) {
    (void)p;
    if (emulate_here.thread < 40) emulate_barrier();
}
static void greedy(const void *p) {
    (void)p;
    (void)emulate_shared(0, 100);
}

static bool dies(emulate_kernel kernel) {
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGABRT, SIG_DFL);
        (void)close(STDERR_FILENO);
        emulate_launch(kernel, NULL, one_block, 64, 64);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_stopped(void **state) {
    (void)state;
    assert_true(dies(parted));
    assert_true(dies(greedy));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_missing_barrier), cmocka_unit_test(test_exchange),
                                       cmocka_unit_test(test_stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
