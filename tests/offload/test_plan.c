/* Random programs, compiled under every budget from the minimum up and run in every way, must end with the bytes that a
 * plain interpreter (one array an object, operations in program order) gives. */
#define WORLD_DIR "test_plan.offload"
#include "offload/sim/sim.h"
#include "plan_world.h"

#include <time.h>

static uint64_t minimum_of(world *w) {
    return minimum_with(w, 0);
}

/* ---- tests --------------------------------------------------------------------------------------------------- */

static void every_budget_gives_the_same_bytes(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        world w;
        world_make(&w, seed, 120);
        uint64_t minimum = minimum_of(&w), last = UINT64_MAX;
        const char *engines[] = {"sync", "uring", "threads"};
        for (uint32_t i = 0; i < 6; i++) {
            uint64_t slab = minimum + minimum * i * i / 6;
            uint64_t moved = run_way(
                &w, &(way){.slab = slab, .engine = engines[i % 3], .depth = 1 + i, .slots = 1 + i % 2, .cache = true});
            if (i == 5) assert_true(moved <= last);
            if (i == 0) last = moved;
        }
        world_free(&w);
    }
}

static void one_byte_below_the_minimum_is_refused(void **state) {
    (void)state;
    for (uint64_t seed = 20; seed < 30; seed++) {
        world w;
        tm_plan *plan;
        uint64_t minimum;
        world_make(&w, seed, 100);
        minimum = minimum_of(&w);
        tm_plan_opts o = {.slab_bytes = minimum - 1, .choose_residency = true, .cache = true, .spill = true};
        uint64_t again;
        assert_int_equal(tm_plan_compile(&plan, w.layout, w.program, &o, &again), TM_EBUDGET);
        assert_int_equal(again, minimum);
        tm_error_clear();
        (void)run_way(&w, &(way){.slab = minimum, .engine = "sync", .cache = true});
        world_free(&w);
    }
}

static void random_orders_give_the_same_bytes(void **state) {
    (void)state;
    for (uint64_t seed = 40; seed < 44; seed++) {
        world w;
        world_make(&w, seed, 120);
        uint64_t minimum = minimum_of(&w);
        for (uint64_t order = 1; order <= 25; order++)
            (void)run_way(&w, &(way){.slab = minimum + (order % 5) * minimum / 4,
                                     .engine = "sync",
                                     .order_seed = order,
                                     .slots = 2,
                                     .cache = order % 2});
        world_free(&w);
    }
}

/* The same program four times, each run's first reads ahead of the end of the one before. */
static void linked_runs_give_the_same_bytes(void **state) {
    (void)state;
    const char *engines[] = {"sync", "uring", "threads"};
    for (uint64_t seed = 60; seed < 66; seed++) {
        world w;
        world_make_runs(&w, seed, 80, 4);
        uint64_t minimum = minimum_of(&w);
        for (uint32_t i = 0; i < 3; i++)
            (void)run_way(&w, &(way){.slab = minimum + minimum * i,
                                     .engine = engines[(seed + i) % 3],
                                     .depth = 4,
                                     .slots = 1 + i % 2,
                                     .cache = true});
        for (uint64_t order = 1; order <= 10; order++)
            (void)run_way(&w, &(way){.slab = minimum + (order % 5) * minimum / 4,
                                     .engine = "sync",
                                     .order_seed = order,
                                     .slots = 2,
                                     .cache = order % 2});
        world_free(&w);
    }
}

/* An announced run that does not come: its reads are dropped, and nothing of it remains. */
static void an_announcement_may_be_withdrawn(void **state) {
    (void)state;
    for (uint64_t order = 0; order < 8; order++) {
        world w;
        tm_plan *plan;
        tm_link *link;
        tm_store *store;
        tm_exec *e;
        const char *paths[] = {scratch_dir};
        world_make(&w, 70 + order, 80);
        uint64_t slab = minimum_of(&w) * 2;
        tm_plan_opts o = {.slab_bytes = slab, .choose_residency = true, .spill = true, .window_mib = 1};
        assert_int_equal(tm_plan_compile(&plan, w.layout, w.program, &o, NULL), TM_OK);
        assert_int_equal(tm_link_create(&link, plan, plan), TM_OK);
        assert_int_equal(tm_store_open(&store, w.layout,
                                       &(tm_store_opts){.paths = paths,
                                                        .n_paths = 1,
                                                        .io = {.engine = order % 2 ? "sync" : "uring"},
                                                        .spill_bytes = tm_plan_get_info(plan)->spill_file_bytes}),
                         TM_OK);
        tm_exec_opts x = {.slab_bytes = slab + 40960, .store = store, .seed = order % 2 ? order : 0};
        assert_int_equal(tm_exec_open(&e, &x), TM_OK);
        each_state(&w, e, slab, 0, 2, TM_USE_WRITE, TM_OK);
        tm_exec_announce(e, plan, link);
        assert_int_equal(tm_exec_run(e, plan, handler, &w), TM_OK);
        each_state(&w, e, slab, 0, 3, TM_USE_READ, TM_OK); /* another plan */
        tm_exec_close(e);
        assert_int_equal(tm_store_remove(store), TM_OK);
        tm_link_free(link);
        tm_plan_free(plan);
        world_free(&w);
    }
}

/* Takes each edge away in turn. Rejecting a mutant that no order breaks would be allowed; accepting one that some order
 * breaks would not: what is accepted is run in random orders. */
static void the_verifier_rejects_missing_edges(void **state) {
    (void)state;
    world w;
    tm_plan *plan;
    tm_exec *e;
    tm_store *store;
    const char *paths[] = {scratch_dir};
    world_make(&w, 77, 60);
    uint64_t slab = minimum_of(&w);
    assert_int_equal(
        tm_plan_compile(&plan, w.layout, w.program,
                        &(tm_plan_opts){.slab_bytes = slab, .choose_residency = true, .cache = false, .spill = true},
                        NULL),
        TM_OK);
    assert_int_equal(tm_plan_verify(plan), TM_OK);
    assert_int_equal(tm_store_open(&store, w.layout,
                                   &(tm_store_opts){.paths = paths,
                                                    .n_paths = 1,
                                                    .io = {.engine = "sync"},
                                                    .spill_bytes = tm_plan_get_info(plan)->spill_file_bytes}),
                     TM_OK);
    assert_int_equal(tm_exec_open(&e, &(tm_exec_opts){.slab_bytes = slab + 40960, .store = store, .seed = 5}), TM_OK);
    uint32_t rejected, n = without_each_edge(&w, plan, e, slab + 40960, 5, NULL, &rejected);
    assert_true(n > 100);
    print_message("%u of %u edges are asked for\n", rejected, n);
    assert_true(rejected > n * 8 / 10);
    tm_exec_close(e);
    assert_int_equal(tm_store_remove(store), TM_OK);
    tm_plan_free(plan);
    world_free(&w);
}

static void the_verifier_rejects_moved_frames(void **state) {
    (void)state;
    world w;
    tm_plan *plan;
    world_make(&w, 78, 60);
    assert_int_equal(
        tm_plan_compile(
            &plan, w.layout, w.program,
            &(tm_plan_opts){.slab_bytes = minimum_of(&w), .choose_residency = true, .cache = true, .spill = true},
            NULL),
        TM_OK);
    uint32_t n = 0;
    for (uint32_t op = 0; op < plan->n_op; op++) {
        tm_plan_op *o = &plan->op[op];
        if (o->engine == TM_ENGINE_CPU) continue;
        uint64_t keep = o->address;
        o->address = keep >= 4096 ? keep - 4096 : keep + 4096;
        plan->touch[plan->first_touch[op]].address = o->address;
        assert_int_equal(tm_plan_verify(plan), TM_EBUG);
        tm_error_clear();
        o->address = keep;
        plan->touch[plan->first_touch[op]].address = keep;
        n++;
    }
    assert_true(n > 10);
    tm_plan_free(plan);
    world_free(&w);
}

/* One more than tell it: it waits for ever, and ranks for each other. One less: it does not wait for the last of them.
 */
static void the_verifier_rejects_miscounted_waits(void **state) {
    (void)state;
    world w;
    tm_plan *plan;
    world_make(&w, 79, 60);
    assert_int_equal(
        tm_plan_compile(&plan, w.layout, w.program,
                        &(tm_plan_opts){.slab_bytes = minimum_of(&w), .choose_residency = true, .spill = true}, NULL),
        TM_OK);
    for (uint32_t op = 0; op < plan->n_op; op++) {
        uint32_t waits = plan->op[op].n_pred;
        for (uint32_t n = waits > 0 ? waits - 1 : 1; n <= waits + 1; n += 2) {
            plan->op[op].n_pred = n;
            assert_int_equal(tm_plan_verify(plan), TM_EBUG);
            tm_error_clear();
        }
        plan->op[op].n_pred = waits;
    }
    tm_plan_free(plan);
    world_free(&w);
}

/* `n` frames of three sizes that are all there at once, in pairs that end here and there. Least seconds of three. */
static double seconds_of_frames(uint32_t n) {
    double least = 1e9;
    for (int tries = 0; tries < 3; tries++) {
        tm_layout *l;
        tm_program *p;
        tm_plan *plan;
        assert_int_equal(tm_layout_create(&l), TM_OK);
        assert_int_equal(tm_program_create(&p, l, "frames"), TM_OK);
        uint32_t *interval = malloc(n * sizeof *interval);
        assert_non_null(interval);
        for (uint32_t i = 0; i < n; i++) {
            tm_object o = {.kind = TM_KIND_SCRATCH, .bytes = 4096u << i % 3};
            interval[i] = tm_program_interval(p, tm_program_temp(p, &o), 1);
            tm_program_op(p, &(tm_op){.code = 1});
            tm_program_use(p, interval[i], TM_USE_WRITE);
        }
        for (uint32_t i = 0; i < n; i++) {
            tm_program_op(p, &(tm_op){.code = 2});
            tm_program_use(p, interval[(uint32_t)((uint64_t)i * 7919 % n)], TM_USE_READ);
            tm_object o = {.kind = TM_KIND_SCRATCH, .bytes = 4096u << (i + 1) % 3};
            tm_program_use(p, tm_program_interval(p, tm_program_temp(p, &o), 1), TM_USE_WRITE);
        }
        clock_t t0 = clock();
        tm_plan_opts o = {.slab_bytes = (uint64_t)1 << 40, .choose_residency = true};
        assert_int_equal(tm_plan_compile(&plan, l, p, &o, NULL), TM_OK);
        double took = (double)(clock() - t0) / CLOCKS_PER_SEC;
        least = took < least ? took : least;
        free(interval);
        tm_plan_free(plan);
        tm_program_free(p);
        tm_layout_free(l);
    }
    return least;
}

/* Frames that are there at once cost a logarithm each, not a walk over the others: eight times as many, not sixty times
 * as long. Others on the machine make a measurement longer, never shorter. */
static void many_frames_take_time_in_proportion(void **state) {
    (void)state;
    double few = 1, many = 1e9;
    for (int tries = 0; tries < 5 && many > 16 * few; tries++) {
        few = seconds_of_frames(4000);
        many = seconds_of_frames(32000);
    }
    print_message("4,000 frames: %.3f s, 32,000: %.3f s\n", few, many);
    assert_true(many <= 16 * few);
}

/* A page that is not what was written is caught: one flipped bit, two pages swapped, an old page brought back. */
static void damaged_pages_are_caught(void **state) {
    (void)state;
    const char *paths[] = {scratch_dir};
    for (int damage = 0; damage < 3; damage++) {
        world w;
        tm_exec *e;
        tm_store *store;
        tm_plan *plan;
        world_make(&w, 90, 40);
        uint64_t slab = minimum_of(&w) + 40960;
        assert_int_equal(tm_plan_compile(&plan, w.layout, w.program,
                                         &(tm_plan_opts){.slab_bytes = slab, .choose_residency = true, .spill = true},
                                         NULL),
                         TM_OK);
        assert_int_equal(tm_store_open(&store, w.layout,
                                       &(tm_store_opts){.paths = paths,
                                                        .n_paths = 1,
                                                        .slots = 1,
                                                        .io = {.engine = "sync"},
                                                        .spill_bytes = tm_plan_get_info(plan)->spill_file_bytes}),
                         TM_OK);
        assert_int_equal(tm_exec_open(&e, &(tm_exec_opts){.slab_bytes = slab, .store = store}), TM_OK);
        each_state(&w, e, slab, 0, 2, TM_USE_WRITE, TM_OK);
        store_target a = {.plan = plan, .object = 0}, b = {.plan = plan, .object = 0};
        while (tm_layout_get(w.layout, ++b.object)->frame_bytes != tm_layout_get(w.layout, 0)->frame_bytes ||
               tm_layout_get(w.layout, b.object)->kind != tm_layout_get(w.layout, 0)->kind)
            assert_true(b.object + 1 < w.n_state);
        tm_io_req ra = {0}, rb = {0};
        char *frame = tm_exec_slab(e);
        uint64_t n = tm_layout_get(w.layout, 0)->frame_bytes;
        assert_int_equal(store_prepare_read(store, &a, frame, &ra), TM_OK);
        assert_int_equal(store_prepare_read(store, &b, frame, &rb), TM_OK);
        assert_int_equal(pread(ra.file.fd, frame, n, (off_t)ra.offset), (ssize_t)n);
        if (damage == 0) {
            frame[n / 2] ^= 4;
            assert_int_equal(pwrite(ra.file.fd, frame, n, (off_t)ra.offset), (ssize_t)n);
        } else if (damage == 1) {
            assert_int_equal(pwrite(rb.file.fd, frame, n, (off_t)rb.offset), (ssize_t)n);
        } else {
            char *old = frame + tm_round_up(n, 4096);
            memcpy(old, frame, n);
            each_state(&w, e, slab, 0, 2, TM_USE_WRITE, TM_OK); /* the same bytes again: only the generation differs */
            assert_int_equal(store_prepare_read(store, &a, frame, &ra), TM_OK);
            store_prepare_write(store, &a, old, &ra); /* a write that the disk acknowledges and loses */
        }
        each_state(&w, e, slab, 0, 3, TM_USE_READ, TM_ECORRUPT);
        tm_error_clear();
        tm_exec_close(e);
        assert_int_equal(tm_store_remove(store), TM_OK);
        tm_plan_free(plan);
        world_free(&w);
    }
}

/* Two parts of many tiles take turns in the same bytes: each tile follows those of its own bytes, not all. */
static void many_tiles_stay_in_bounds(void **state) {
    (void)state;
    enum { TILES = 64, TURNS = 6, BYTES = 8192 };
    tm_layout *l;
    tm_program *p;
    tm_plan *plan;
    uint64_t least;
    assert_int_equal(tm_layout_create(&l), TM_OK);
    for (uint32_t i = 0; i < 2 * TILES; i++)
        (void)tm_layout_object(
            l, &(tm_object){.kind = TM_KIND_WEIGHT_HI, .bundle = i / TILES, .bytes = BYTES, .pageable = true});
    assert_int_equal(tm_program_create(&p, l, "turns"), TM_OK);
    for (uint32_t i = 0; i < TURNS; i++) {
        uint32_t v = tm_program_interval(p, i % 2 * TILES, TILES);
        tm_program_op(p, &(tm_op){.code = 1});
        tm_program_use(p, v, TM_USE_UPDATE);
    }
    tm_plan_opts o = {.choose_residency = true};
    assert_int_equal(tm_plan_minimum(l, p, &o, &least), TM_OK);
    o.slab_bytes = least;
    assert_int_equal(tm_plan_compile(&plan, l, p, &o, NULL), TM_OK);
    assert_int_equal(tm_plan_verify(plan), TM_OK);
    assert_in_range(tm_plan_get_info(plan)->memory_bytes, 1, tm_program_plan_bytes(p));
    tm_plan_free(plan);
    tm_program_free(p);
    tm_layout_free(l);
}

static double a_read_takes(void *ctx, const tm_op *op) {
    (void)op;
    return *(double *)ctx;
}

/* Matrices of 90 MiB, each used twice, by operations that take as long as reading one does: while one is computed with
 * the next comes in, though what is kept could have that room. */
static void the_next_matrix_is_read_ahead(void **state) {
    (void)state;
    enum { MATRICES = 24, PIECES = 30, PIECE = 3 * TM_MIB };
    tm_layout *l;
    tm_program *p;
    tm_plan *plan;
    tm_machine m;
    tm_sim_result r;
    tm_machine_nominal(&m);
    double seconds = tm_disk_seconds(&m.disk, PIECES * PIECE, 0);
    assert_int_equal(tm_layout_create(&l), TM_OK);
    for (uint32_t i = 0; i < MATRICES * PIECES; i++)
        (void)tm_layout_object(l,
                               &(tm_object){.kind = TM_KIND_WEIGHT_HI, .bundle = i, .bytes = PIECE, .pageable = true});
    assert_int_equal(tm_program_create(&p, l, "there and back"), TM_OK);
    for (uint32_t i = 0; i < 2 * MATRICES; i++) {
        uint32_t matrix = i < MATRICES ? i : 2 * MATRICES - 1 - i;
        tm_program_op(p, &(tm_op){.code = 1});
        for (uint32_t k = 0; k < PIECES; k++)
            tm_program_use(p, tm_program_interval(p, matrix * PIECES + k, 1), TM_USE_READ);
    }
    tm_plan_opts o = {.choose_residency = true, .cache = true, .slab_bytes = 560 * TM_MIB};
    o.cost = a_read_takes, o.cost_ctx = &seconds, o.machine = &m;
    assert_int_equal(tm_plan_compile(&plan, l, p, &o, NULL), TM_OK);
    assert_int_equal(tm_simulate(&r, plan, &(tm_sim_opts){.machine = &m, .cost = a_read_takes, .ctx = &seconds}),
                     TM_OK);
    double least = 2 * MATRICES * seconds;
    print_message("%.2f times what it takes at the least\n", r.seconds / least);
    assert_true(r.seconds < 1.2 * least);
    tm_sim_free(&r);
    tm_plan_free(plan);
    tm_program_free(p);
    tm_layout_free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_matrix_is_read_ahead),       cmocka_unit_test(many_tiles_stay_in_bounds),
        cmocka_unit_test(every_budget_gives_the_same_bytes),   cmocka_unit_test(one_byte_below_the_minimum_is_refused),
        cmocka_unit_test(random_orders_give_the_same_bytes),   cmocka_unit_test(linked_runs_give_the_same_bytes),
        cmocka_unit_test(an_announcement_may_be_withdrawn),    cmocka_unit_test(the_verifier_rejects_missing_edges),
        cmocka_unit_test(the_verifier_rejects_moved_frames),   cmocka_unit_test(the_verifier_rejects_miscounted_waits),
        cmocka_unit_test(many_frames_take_time_in_proportion), cmocka_unit_test(damaged_pages_are_caught),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(scratch_dir);
    return failed;
}
