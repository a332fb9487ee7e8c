/* The executor over several paths, one of them slow; the simulator's picture of it; an I/O engine that is lost. */
#include "io/file/file.h"
#include "offload/exec/exec_internal.h"
#include "offload/sim/sim.h"
#include "offload/store/store_internal.h"
#include "tests/support/skip.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>

enum { MOST = 400, BYTES = 65536, OP_FILL = 1, OP_STEP, OP_CHECK };
static const char *const paths[] = {"test_exec.a", "test_exec.b", "test_exec.c"};

/* Objects whose bytes are their number and a count of steps. */
typedef struct world {
    tm_layout *layout;
    tm_store *store;
    tm_exec *exec;
    uint32_t objects, steps, wrong;
    double last[EXEC_LANES]; /* of a run: when the last transfer of each lane ended */
} world;

static void stamp(const world *w, uint32_t object, uint32_t step, uint32_t *frame) {
    (void)w;
    for (uint32_t i = 0; i < BYTES / 4; i++) frame[i] = object * 7919 + step * 31 + i;
}

static tm_status handler(void *ctx, const tm_op *op, void *const *operand) {
    static uint32_t want[BYTES / 4];
    world *w = ctx;
    stamp(w, op->arg[0], w->steps, want);
    if (op->code != OP_FILL && memcmp(want, operand[0], BYTES) != 0) w->wrong++;
    if (op->code != OP_CHECK) stamp(w, op->arg[0], w->steps + (op->code == OP_STEP), operand[0]);
    return TM_OK;
}

static void ended(void *ctx, const tm_run_stats *run) {
    world *w = ctx;
    uint32_t n;
    const tm_plan_op *op = tm_plan_ops(run->plan, &n);
    memset(w->last, 0, sizeof w->last);
    for (uint32_t i = 0; run->span && i < n; i++) {
        if (!plan_is_disk(op[i].engine)) continue;
        double *last = &w->last[store_lane(w->store, run->plan, op[i].object)];
        if (run->span[i].end > *last) *last = run->span[i].end;
    }
}

/* Each object is visited once, in order. `slab` 0: the least. */
static tm_plan *walk(world *w, uint16_t code, uint64_t *slab, bool choose) {
    tm_program *p;
    tm_plan *plan;
    OK(tm_program_create(&p, w->layout, "walk"));
    for (uint32_t i = 0; i < w->objects; i++) {
        uint32_t v = tm_program_interval(p, i, 1);
        tm_program_op(p, &(tm_op){.code = code, .arg = {i}});
        tm_program_use(p, v, code == OP_FILL ? TM_USE_WRITE : code == OP_STEP ? TM_USE_UPDATE : TM_USE_READ);
    }
    tm_plan_opts o = {.slab_bytes = *slab, .choose_residency = choose};
    if (!*slab) OK(tm_plan_minimum(w->layout, p, &o, slab));
    o.slab_bytes = *slab;
    OK(tm_plan_compile(&plan, w->layout, p, &o, NULL));
    tm_program_free(p);
    return plan;
}

static void open_world(world *w, uint32_t objects, uint64_t *slab, unsigned n_paths, const char *engine) {
    *w = (world){.objects = objects};
    OK(tm_layout_create(&w->layout));
    for (uint32_t i = 0; i < objects; i++)
        assert_int_equal(
            tm_layout_object(w->layout,
                             &(tm_object){.kind = TM_KIND_EXP_AVG, .bundle = i, .bytes = BYTES, .pageable = true}),
            i);
    tm_plan *fill = walk(w, OP_FILL, slab, true);
    OK(tm_store_open(&w->store, w->layout,
                     &(tm_store_opts){.paths = paths,
                                      .n_paths = n_paths,
                                      .slots = 1,
                                      .allow_tmpfs = true,
                                      .io = {.engine = engine, .queue_depth = EXEC_DEPTH}}));
    OK(tm_exec_open(&w->exec, &(tm_exec_opts){.slab_bytes = *slab, .store = w->store}));
    tm_exec_on_done(w->exec, ended, w);
    OK(tm_exec_run(w->exec, fill, handler, w));
    tm_plan_free(fill);
}

static void close_world(world *w) {
    assert_int_equal(w->wrong, 0);
    tm_exec_close(w->exec);
    OK(tm_store_remove(w->store));
    tm_layout_free(w->layout);
}

/* ---- one slow path --------------------------------------------------------------------------------------------- */

/* All reads may start at once. The slow path's go 32 at a time every 150 ms; the other's are through long before,
 * however many slow ones came first in the plan. With one depth for both the last of them starts when two thirds of the
 * slow ones are over. */
static void run_paths(double last[2]) {
    world w;
    uint64_t slab = 2 * MOST * BYTES;
    open_world(&w, MOST, &slab, 2, "delay:lane=1,latency=0.15+threads");
    tm_plan *plan = walk(&w, OP_CHECK, &slab, false);
    tm_exec_trace(w.exec, true);
    OK(tm_exec_run(w.exec, plan, handler, &w));
    for (int i = 0; i < 2; i++) last[i] = w.last[i];
    tm_plan_free(plan);
    close_world(&w);
}

/* The fast one has a real disk, which may stall: tried again, since one that waits for the slow one does so every time.
 */
static void a_slow_path_holds_up_only_itself(void **state) {
    (void)state;
    double last[2];
    for (unsigned tries = 0;; tries++) {
        run_paths(last);
        if (last[1] < 0.9) fail_msg("the slow path took %.3f s only", last[1]);
        if (last[0] <= 0.5 * last[1]) break;
        if (tries == 9) fail_msg("the fast path was through after %.3f s, the slow one after %.3f s", last[0], last[1]);
    }
}

static double no_time(void *ctx, const tm_op *op) {
    (void)ctx, (void)op;
    return 0;
}

/* The same in the simulator: each path at its own rate, and on one disk together at half of it. */
static void so_does_it_in_the_simulator(void **state) {
    (void)state;
    world w;
    uint64_t slab = 2 * MOST * BYTES;
    open_world(&w, MOST, &slab, 2, "sync");
    tm_plan *plan = walk(&w, OP_CHECK, &slab, false);
    for (uint8_t one_disk = 0; one_disk < 2; one_disk++) {
        const tm_disk fast = {.read_bps = 1e9, .write_bps = 1e9}, slow = {.read_bps = 1e7, .write_bps = 1e7};
        tm_machine m = {.name = "two", .cores = 1, .disk = fast, .n_paths = 2};
        m.path[0].rates = fast;
        m.path[1] = (tm_machine_path){.rates = slow, .disk = one_disk ? 0 : 1};
        tm_sim_result r;
        OK(tm_simulate(&r, plan, &(tm_sim_opts){.machine = &m, .cost = no_time, .timeline = true}));
        double last[2] = {0, 0}, half = MOST / 2 * (double)BYTES;
        for (uint32_t i = 0; i < r.ops; i++) {
            const tm_plan_op *o = &tm_plan_ops(plan, &(uint32_t){0})[i];
            if (!plan_is_disk(o->engine)) continue;
            double *at = &last[store_lane(w.store, plan, o->object)];
            if (r.span[i].end > *at) *at = r.span[i].end;
        }
        double want[2] = {one_disk ? 2 * half / 1e9 : half / 1e9, one_disk ? 2 * half / 1e9 : half / 1e7};
        for (int i = 0; i < 2; i++)
            if (last[i] < 0.999 * want[i] || last[i] > 1.001 * want[i])
                fail_msg("path %d ends at %g s instead of %g", i, last[i], want[i]);
        tm_sim_free(&r);
    }
    tm_plan_free(plan);
    close_world(&w);
}

/* What the simulator takes to lie on each path is what the store puts there. */
static void the_simulator_knows_the_paths(void **state) {
    (void)state;
    world w;
    tm_machine m;
    uint64_t slab = 4 * MOST * BYTES;
    uint8_t *lane;
    uint32_t n, count[3] = {0};
    open_world(&w, MOST, &slab, 3, "sync");
    tm_plan *plan = walk(&w, OP_STEP, &slab, false);
    OK(tm_machine_of(paths, 3, &m));
    assert_int_equal(m.n_paths, 3);
    assert_int_equal(m.path[2].disk, 0); /* folders of one disk */
    assert_true(m.disk.read_bps == m.path[0].rates.read_bps);
    OK(stripe_lanes(&lane, plan, &m));
    const tm_plan_op *op = tm_plan_ops(plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (!plan_is_disk(op[i].engine)) continue;
        assert_int_equal(lane[i], store_lane(w.store, plan, op[i].object));
        count[lane[i]]++;
    }
    for (int i = 0; i < 3; i++) assert_in_range(count[i], 2 * MOST / 3 - 3, 2 * MOST / 3 + 3);
    tm_free(lane);
    tm_plan_free(plan);
    close_world(&w);
}

/* At the least budget, where every frame is wanted at once; run after run, each read ahead into the one before, while
 * completions come late and in any order. */
static void no_path_waits_for_ever(void **state) {
    (void)state;
    world w;
    tm_link *link;
    uint64_t slab = 0;
    open_world(&w, 60, &slab, 3, "delay:lane=1,latency=0.0005+sim:seed=5,reorder=0.6,shorten=0.05,eagain=0.02+threads");
    tm_plan *plan = walk(&w, OP_STEP, &slab, false);
    OK(tm_link_create(&link, plan, plan));
    for (int i = 0; i < 10; i++) {
        tm_exec_announce(w.exec, plan, link);
        OK(tm_exec_run(w.exec, plan, handler, &w));
        w.steps++;
    }
    OK(tm_exec_settle(w.exec));
    for (uint32_t lane = 0; lane < 3; lane++) assert_int_equal(w.exec->disk.in_flight[lane], 0);
    tm_link_free(link);
    tm_plan_free(plan);
    close_world(&w);
}

/* ---- transfers that are not asked for ------------------------------------------------------------------------------- */

/* Every second page is used, and none was on disk before the first run. */
static bool second_moves(void *ctx, uint32_t object, bool write) {
    const world *w = ctx;
    return object % 2 == 0 && (write || w->steps > 0);
}

static tm_status use_second(void *ctx, const tm_op *op, void *const *operand) {
    static uint32_t want[BYTES / 4];
    world *w = ctx;
    if (op->arg[0] % 2) return memset(operand[0], 0xee, BYTES), TM_OK;
    stamp(w, op->arg[0], w->steps, want);
    if (w->steps > 0 && memcmp(want, operand[0], BYTES) != 0) w->wrong++;
    stamp(w, op->arg[0], w->steps + 1, operand[0]);
    return TM_OK;
}

static void check_moves(uint64_t seed) {
    enum { PAGES = 40, RUNS = 3, HALF = PAGES / 2 * BYTES };
    world w = {.objects = PAGES};
    uint64_t slab = 0;
    tm_exec_stats s;
    OK(tm_layout_create(&w.layout));
    for (uint32_t i = 0; i < PAGES; i++) {
        const tm_object o = {.kind = TM_KIND_KV_CACHE, .bundle = i, .bytes = BYTES, .pageable = true};
        assert_int_equal(tm_layout_object(w.layout, &o), i);
    }
    tm_plan *plan = walk(&w, OP_STEP, &slab, true);
    const tm_store_opts store = {.paths = paths, .n_paths = 1, .slots = 1, .allow_tmpfs = true};
    OK(tm_store_open(&w.store, w.layout, &store));
    OK(tm_exec_open(
        &w.exec,
        &(tm_exec_opts){.slab_bytes = slab, .store = w.store, .seed = seed, .moves = {.ctx = &w, .fn = second_moves}}));
    for (; w.steps < RUNS; w.steps++) OK(tm_exec_run(w.exec, plan, use_second, &w));
    tm_exec_get_stats(w.exec, &s);
    assert_int_equal(s.read_bytes[TM_KIND_KV_CACHE], (RUNS - 1) * HALF);
    assert_int_equal(s.write_bytes[TM_KIND_KV_CACHE], RUNS * HALF);
    assert_int_equal(tm_plan_get_info(plan)->write_bytes[TM_KIND_KV_CACHE], 2 * HALF);
    tm_plan_free(plan);
    close_world(&w);
}

static void only_what_is_asked_for_moves(void **state) {
    (void)state;
    check_moves(0);
    check_moves(7);
}

/* ---- a lost engine --------------------------------------------------------------------------------------------- */

/* Frames may still be written to by what it had: the run fails, and so does every other, at once. */
static void a_lost_engine_ends_all_runs(void **state) {
    (void)state;
    world w;
    uint64_t slab = 2 * MOST * BYTES;
    tm_io *io;
    if (tm_io_open(&io, &(tm_io_opts){.engine = "uring"}) != TM_OK) {
        TEST_SKIP("%s", tm_error_get()->text);
    }
    tm_io_close(io);
    open_world(&w, MOST, &slab, 2, "uring");
    tm_plan *plan = walk(&w, OP_CHECK, &slab, false);
    OK(tm_fault_set("uring_enter:3:einval:sticky"));
    assert_int_equal(tm_exec_run(w.exec, plan, handler, &w), TM_EIO);
    assert_non_null(strstr(tm_error_get()->text, "the ring stopped working"));
    OK(tm_fault_set(NULL));
    tm_error_clear();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tm_exec_run(w.exec, plan, handler, &w), TM_EIO);
        tm_error_clear();
    }
    tm_plan_free(plan);
    close_world(&w);
}

static int clean(void **state) {
    (void)state;
    int rc = 0;
    tm_error_clear();
    for (size_t i = 0; i < TM_COUNT(paths); i++) rc |= tm_remove_tree(paths[i]) != TM_OK;
    return rc;
}

static int make_paths(void **state) {
    int rc = clean(state);
    for (size_t i = 0; i < TM_COUNT(paths); i++) rc |= mkdir(paths[i], 0700);
    return rc;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_slow_path_holds_up_only_itself, make_paths, clean),
        cmocka_unit_test_setup_teardown(so_does_it_in_the_simulator, make_paths, clean),
        cmocka_unit_test_setup_teardown(the_simulator_knows_the_paths, make_paths, clean),
        cmocka_unit_test_setup_teardown(no_path_waits_for_ever, make_paths, clean),
        cmocka_unit_test_setup_teardown(only_what_is_asked_for_moves, make_paths, clean),
#ifdef TIDEMILL_FAULTS
        cmocka_unit_test_setup_teardown(a_lost_engine_ends_all_runs, make_paths, clean),
#endif
    };
    (void)a_lost_engine_ends_all_runs;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
