/* Allocation counters, faults, byte buffers, what the system says of memory. */
#include "world.h"
#include "tests/support/skip.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void counters_follow_allocations(void **state) {
    (void)state;
    uint64_t live = tm_mem_live_bytes(), calls = tm_mem_allocations();
    char *p = tm_malloc(100000);
    assert_non_null(p);
    assert_in_range(tm_mem_live_bytes() - live, 100000, 100100);
    assert_true(tm_mem_peak_bytes() >= live + 100000);
    memset(p, 1, 100000);
    char *grown = tm_realloc(p, 300000);
    assert_non_null(grown);
    assert_int_equal(grown[99999], 1);
    assert_in_range(tm_mem_live_bytes() - live, 300000, 310000);
    uint64_t *zeros = tm_calloc(1000, 8);
    assert_non_null(zeros);
    for (int i = 0; i < 1000; i++) assert_int_equal(zeros[i], 0);
    assert_int_equal(tm_mem_allocations() - calls, 3);
    tm_free(zeros);
    tm_free(grown);
    tm_free(NULL);
    assert_int_equal(tm_mem_live_bytes(), live);
    assert_true(tm_mem_peak_bytes() >= live + 300000);
}

static void impossible_sizes_fail(void **state) {
    (void)state;
    volatile size_t huge = SIZE_MAX / 2, two = 4;
    uint64_t live = tm_mem_live_bytes();
    assert_null(tm_malloc(huge));
    assert_null(tm_calloc(huge, two));
    char *p = tm_malloc(0);
    assert_non_null(p);
    assert_null(tm_realloc(p, huge));
    tm_free(p);
    assert_int_equal(tm_mem_live_bytes(), live);
    assert_fails(tm_nomem(12345), TM_ENOMEM, "12345 bytes");
}

static void copies(void **state) {
    (void)state;
    char *a = tm_strdup("tide"), *b = tm_strndup("tidemill", 4), *c = tm_strndup("ab", 9);
    assert_string_equal(a, "tide");
    assert_string_equal(b, "tide");
    assert_string_equal(c, "ab");
    tm_free(a), tm_free(b), tm_free(c);
}

static void *allocate_a_lot(void *unused) {
    for (size_t i = 1; i < 20000; i++) {
        void *p = tm_malloc(i % 700 + 1);
        void *q = tm_realloc(p, i % 900 + 1);
        tm_free(q);
    }
    return unused;
}

static void counters_are_exact_with_threads(void **state) {
    (void)state;
    uint64_t live = tm_mem_live_bytes(), calls = tm_mem_allocations();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, allocate_a_lot, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(tm_mem_live_bytes(), live);
    assert_int_equal(tm_mem_allocations() - calls, 4 * 2 * 19999);
}

static int failures_of_ten(const char *spec) {
    assert_ok(tm_fault_set(spec));
    int bits = 0;
    for (int i = 0; i < 10; i++) {
        void *p = tm_malloc(8);
        if (!p) bits |= 1 << i;
        tm_free(p);
    }
    assert_ok(tm_fault_set(NULL));
    return bits;
}

static void faults_strike_where_they_are_told(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    assert_int_equal(failures_of_ten(NULL), 0);
    assert_int_equal(failures_of_ten("alloc:3:fail:once"), 1 << 2);
    assert_int_equal(failures_of_ten("alloc:3:fail:sticky"), 0x3fc);
    assert_int_equal(failures_of_ten("alloc:0:fail:sticky"), 0);
    assert_int_equal(failures_of_ten("pread:1:eio:sticky"), 0);
    const char *kind = NULL;
    assert_ok(tm_fault_set("pread:2:short:once"));
    assert_false(tm_fault_hit("pread", &kind));
    assert_false(tm_fault_hit("pwrite", &kind));
    assert_true(tm_fault_hit("pread", &kind));
    assert_string_equal(kind, "short");
    assert_false(tm_fault_hit("pread", &kind));
    const char *bad[] = {"",           "alloc",           "alloc:1",       "alloc:1:x",           "alloc:1:x:twice",
                         "a:b:c:once", "alloc:-1:x:once", "alloc:1::once", "alloc:1:x:once:more", ":1:x:once"};
    for (size_t i = 0; i < TM_COUNT(bad); i++) assert_fails(tm_fault_set(bad[i]), TM_EINPUT, "expected CALL:I:KIND");
    /* The environment has no say here, and what has none is refused. */
    assert_false(tm_fault_environment_used());
    assert_null(tm_fault_environment_wrong());
    assert_int_equal(setenv("TIDEMILL_FAULT", "alloc:1:fail:sticky", 1), 0);
    assert_non_null(strstr(tm_fault_environment_wrong(), "unset it"));
    assert_int_equal(unsetenv("TIDEMILL_FAULT"), 0);
    assert_ok(tm_fault_set(NULL));
}

static void calls_are_counted_by_name(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    const char *call;
    uint64_t n;
    assert_ok(tm_fault_set("*:0:none:once"));
    for (int i = 0; i < 5; i++) assert_false(tm_fault_hit(i % 2 ? "pread" : "pwrite", NULL));
    tm_free(tm_malloc(1));
    static const struct {
        const char *call;
        uint64_t n;
    } want[] = {{"pwrite", 3}, {"pread", 2}, {"alloc", 1}};
    for (unsigned i = 0; i < TM_COUNT(want); i++) {
        assert_true(tm_fault_tally(i, &call, &n));
        assert_string_equal(call, want[i].call);
        assert_int_equal(n, want[i].n);
    }
    assert_false(tm_fault_tally(3, &call, &n));
    assert_ok(tm_fault_set("pread:9:eio:once"));
    assert_false(tm_fault_hit("pread", NULL));
    assert_int_equal(tm_fault_calls(), 1);
    assert_ok(tm_fault_set(NULL));
}

static void clocks_jump_and_the_killed_are_gone(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    uint64_t now = tm_now_ns(), year = (uint64_t)31536000 * 1000000000;
    assert_ok(tm_fault_set("clock:2:forward:once"));
    assert_in_range(tm_now_ns() - now, 0, year);
    assert_true(tm_now_ns() - now > 9 * year);
    assert_in_range(tm_now_ns() - now, 0, year);
    assert_ok(tm_fault_set("clock:1:back:sticky"));
    assert_true(tm_now_ns() < now && tm_now_ns() < now);
    assert_ok(tm_fault_set(NULL));
    pid_t pid = fork();
    if (pid == 0) {
        (void)tm_fault_set("mkdir:1:kill:once");
        (void)tm_fault_hit("mkdir", NULL);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void buffers_grow(void **state) {
    (void)state;
    uint64_t live = tm_mem_live_bytes();
    tm_buf b = {0};
    for (int i = 0; i < 1000; i++) assert_ok(tm_buf_printf(&b, "%03d,", i));
    assert_int_equal(b.len, 4000);
    assert_memory_equal(b.data + 3996, "999,", 5);
    assert_ok(tm_buf_append(&b, "a\0b", 3));
    assert_int_equal(b.len, 4003);
    assert_int_equal(b.data[4003], 0);
    size_t cap = b.cap;
    tm_buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_int_equal(b.data[0], 0);
    assert_int_equal(b.cap, cap);
    assert_ok(tm_buf_append(&b, NULL, 0));
    assert_fails(tm_buf_reserve(&b, SIZE_MAX), TM_ENOMEM, "out of memory");
    assert_fails(tm_buf_reserve(&b, SIZE_MAX / 2), TM_ENOMEM, "out of memory");
    assert_int_equal(b.cap, cap);
    tm_buf_free(&b);
    assert_null(b.data);
    assert_int_equal(tm_mem_live_bytes(), live);
}

static void buffer_survives_a_failed_allocation(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    tm_buf b = {0};
    assert_ok(tm_buf_append(&b, "kept", 4));
    assert_ok(tm_fault_set("alloc:1:fail:once"));
    char big[1000] = "";
    assert_fails(tm_buf_append(&b, big, sizeof big), TM_ENOMEM, "out of memory");
    assert_ok(tm_fault_set(NULL));
    assert_string_equal(b.data, "kept");
    tm_buf_free(&b);
}

/* The value of KEY in a /proc file, read in another way than the code under test does. */
static uint64_t from_proc(const char *command) {
    FILE *f = popen(command, "r");
    assert_non_null(f);
    unsigned long long kib = 0;
    assert_int_equal(fscanf(f, "%llu", &kib), 1);
    pclose(f);
    return kib * 1024;
}

static void the_system_is_asked(void **state) {
    (void)state;
    uint64_t total = from_proc("awk '/^MemTotal/ {print $2}' /proc/meminfo");
    assert_in_range(tm_mem_available_bytes(), 1, total);
    uint64_t before = tm_mem_resident_peak_bytes();
    assert_in_range(before, 100 * 1024, total);
    size_t size = 64 << 20;
    char *p = tm_malloc(size);
    assert_non_null(p);
    for (size_t i = 0; i < size; i += 512) ((volatile char *)p)[i] = 1;
    assert_true(tm_mem_resident_peak_bytes() >= before + size / 2);
    tm_free(p);
    uint64_t a = tm_now_ns(), b = tm_now_ns();
    assert_true(b >= a);
}

/* A kernel without these counts has no such file, or one by which nothing was ever run. */
static bool run_delay_is_counted(void) {
    unsigned long long slices = 0;
    FILE *f = fopen("/proc/thread-self/schedstat", "re");
    bool counted = f && fscanf(f, "%*u %*u %llu", &slices) == 1 && slices > 0;
    if (f) fclose(f);
    return counted;
}

/* It ends with the test, however that ends. */
static pid_t spin(void) {
    pid_t test = getpid(), pid = fork();
    if (pid != 0) return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != test) _exit(1);
    for (;;) {
    }
}

static uint64_t ran_ns(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Two others want the one processor this thread may use: it waits twice as long as it runs, on a busy machine longer.
 */
static void waiting_for_a_processor_is_seen(void **state) {
    (void)state;
    cpu_set_t before, one;
    if (!run_delay_is_counted()) {
        TEST_SKIP("this kernel does not count how long threads wait for a processor");
    }
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    pid_t other[] = {spin(), spin()};
    assert_true(other[0] > 0 && other[1] > 0); /* kill(-1) would end everything */
    uint64_t begin = tm_now_ns(), ran = ran_ns(), delay = tm_run_delay_ns();
    while (tm_run_delay_ns() < delay + 100000000 && tm_now_ns() < begin + 20000000000u) {
    }
    delay = tm_run_delay_ns() - delay;
    ran = ran_ns() - ran;
    uint64_t elapsed = tm_now_ns() - begin;
    for (size_t i = 0; i < TM_COUNT(other); i++) {
        kill(other[i], SIGKILL);
        waitpid(other[i], NULL, 0);
    }
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_in_range(delay, 100000000, elapsed);
    assert_true(delay > ran + ran / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_for_a_processor_is_seen),
        cmocka_unit_test(counters_follow_allocations),
        cmocka_unit_test(impossible_sizes_fail),
        cmocka_unit_test(copies),
        cmocka_unit_test(counters_are_exact_with_threads),
        cmocka_unit_test(faults_strike_where_they_are_told),
        cmocka_unit_test(calls_are_counted_by_name),
        cmocka_unit_test(clocks_jump_and_the_killed_are_gone),
        cmocka_unit_test(buffers_grow),
        cmocka_unit_test(buffer_survives_a_failed_allocation),
        cmocka_unit_test(the_system_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
