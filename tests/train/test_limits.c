/* Limits of the system that a shell, a container or a batch system sets: what they do not allow is said in one line, by
 * a program that ends, and leaves nothing. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef paged_scene scene;

static scene scene_open(void) {
    return paged_scene_open("\"max_steps\": 2", "\"cache\": \"none\"");
}

/* True: it trained. Otherwise it refused with `status` and one line that says `what_to_do`, and left no
 * state. */
static bool trained_or_said(const scene *s, const run_opts *o, const char *set, int status, const char *what_to_do) {
    const char *line;
    run_result r = run_argv(o, (const char *const[]){"train", s->config, "--quiet", "--set", set, NULL});
    bool trained = r.status == 0;
    if (!trained) {
        if (r.status != status) fail_msg("%s: exit status %d instead of %d: %s", set, r.status, status, r.err);
        if (run_error_lines(r.err, &line) != 1) fail_msg("%s: not one line: %s", set, r.err);
        if (!strstr(line, what_to_do)) fail_msg("%s: '%s' is not said: %s", set, what_to_do, line);
    }
    assert_int_equal(run_entries(s->offload), 0);
    run_remove(s->output);
    run_free(&r);
    return trained;
}

/* From the thread that main has alone up to as many as it takes: whichever of them it is that cannot be started. */
static void threads_that_cannot_start_are_said(void **state) {
    (void)state;
    static const struct {
        const char *threads, *set;
        unsigned least; /* that it trains with */
    } rows[] = {{"1", "memory.io_engine=auto", 2},
                {"3", "memory.io_engine=threads", 5},
                {"3", "memory={\"device\":\"cpu-arena\",\"device_budget\":\"64MiB\"}", 8}};
    enum { MOST = 24 };
    const scene s = scene_open();
    for (unsigned i = 0; i < TM_COUNT(rows); i++) {
        const char *const env[] = {run_format("OMP_NUM_THREADS=%s", rows[i].threads), NULL};
        unsigned n = 1;
        for (bool trained = false; !trained && n <= MOST; n += !trained) {
            run_opts o = {.env = env, .timeout_s = 10, .cgroup = run_cgroup_threads(n)};
            if (!o.cgroup) TEST_SKIP("no cgroup that limits threads may be made here");
            trained = trained_or_said(&s, &o, rows[i].set, 1, "pids.max of the cgroup");
            run_cgroup_remove();
        }
        print_message("%s, %s threads compute: %u threads are needed\n", rows[i].set, rows[i].threads, n);
        assert_in_range(n, rows[i].least, MOST);
    }
}

/* OpenBLAS spins where address space is short: it is not loaded then. Whatever is short, it is said;
 * with enough it trains. */
static void a_short_address_space_is_said(void **state) {
    (void)state;
    static const unsigned mib[] = {48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 1024};
    static const char *const library[] = {"", "builtin", "amx", "avx512bf16", "openblas"};
    const char *const env[] = {"OMP_NUM_THREADS=2", NULL};
    const scene s = scene_open();
    for (unsigned l = 0; l < TM_COUNT(library); l++) {
        bool trained = false;
        const char *const with[] = {env[0], run_format("TIDEMILL_GEMM=%s", library[l]), NULL};
        const char *budget = "memory.host_budget=\"160MiB\"";
        run_opts free_opts = {.env = with};
        run_result r = run_argv(&free_opts, (const char *const[]){"train", s.config, "--quiet", "--set", budget, NULL});
        bool there = r.status == 0;
        run_free(&r);
        run_remove(s.output);
        if (!there) {
            TEST_SKIP_PART("%s is not installed", library[l]);
            continue;
        }
        for (unsigned i = 0; i < TM_COUNT(mib); i++) {
            run_opts o = {.env = with, .timeout_s = 10, .address_bytes = mib[i] * TM_MIB};
            trained = trained_or_said(&s, &o, budget, 2, "`ulimit -v");
        }
        assert_true(trained); /* within the last of them */
    }
}

static void a_small_stack_is_said(void **state) {
    (void)state;
    static const unsigned kib[] = {64, 128, 256, 511, 512, 8192};
    const scene s = scene_open();
    for (unsigned i = 0; i < TM_COUNT(kib); i++) {
        run_opts o = {.timeout_s = 10, .stack_bytes = kib[i] * TM_KIB};
        assert_int_equal(trained_or_said(&s, &o, "memory.cache=none", 2, "`ulimit -s"), kib[i] >= 512);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(threads_that_cannot_start_are_said, run_clean),
        cmocka_unit_test_teardown(a_short_address_space_is_said, run_clean),
        cmocka_unit_test_teardown(a_small_stack_is_said, run_clean),
    };
    return cmocka_run_group_tests_name("train_limits", tests, NULL, NULL);
}
