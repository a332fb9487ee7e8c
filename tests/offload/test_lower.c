/* Two tiers: random programs, two thirds of whose operations compute in an arena, must end with the bytes of a plain
 * interpreter at every size of the arena and of the slab; and the proof has to notice what is wrong with a copy. */
#define WORLD_DIR "test_lower.offload"
#include "plan_world.h"

static uint64_t least_arena(const world *w) {
    uint64_t bytes = 0;
    assert_int_equal(tm_plan_device_minimum(w->program, &bytes), TM_OK);
    assert_true(bytes > 0 && bytes % TM_FRAME_ALIGN == 0);
    return bytes;
}

static void every_arena_gives_the_same_bytes(void **state) {
    (void)state;
    const char *engines[] = {"sync", "uring", "threads"};
    uint64_t all_least = 0, all_most = 0;
    for (uint64_t seed = 100; seed < 105; seed++) {
        world w;
        world_make(&w, seed, 120);
        uint64_t least = least_arena(&w),
                 arenas[] = {least, least + least / 5, least * 2, least * 20, (uint64_t)1 << 26};
        for (uint32_t i = 0; i < TM_COUNT(arenas); i++) {
            uint64_t slab = minimum_with(&w, arenas[i]);
            uint64_t copied = run_way(&w, &(way){.slab = slab + slab * (i % 2),
                                                 .arena = arenas[i],
                                                 .engine = engines[(seed + i) % 3],
                                                 .depth = 1 + i,
                                                 .slots = 1 + i % 2,
                                                 .cache = true});
            *(i == 0 ? &all_least : &all_most) += i == 0 || i + 1 == TM_COUNT(arenas) ? copied : 0;
        }
        world_free(&w);
    }
    print_message("copied: %llu bytes at the least arena, %llu without a limit\n", (unsigned long long)all_least,
                  (unsigned long long)all_most);
    assert_true(all_most < all_least);
}

static void an_arena_below_the_least_is_refused(void **state) {
    (void)state;
    for (uint64_t seed = 120; seed < 124; seed++) {
        world w;
        tm_plan *plan = NULL;
        world_make(&w, seed, 80);
        uint64_t least = least_arena(&w);
        tm_plan_opts o = {
            .slab_bytes = (uint64_t)1 << 30, .choose_residency = true, .spill = true, .device_bytes = least - 1};
        assert_int_equal(tm_plan_compile(&plan, w.layout, w.program, &o, NULL), TM_EBUDGET);
        tm_error_clear();
        assert_null(plan);
        o.device_bytes = least;
        assert_int_equal(tm_plan_compile(&plan, w.layout, w.program, &o, NULL), TM_OK);
        assert_true(tm_plan_get_info(plan)->device_bytes <= least);
        tm_plan_free(plan);
        world_free(&w);
    }
}

static void random_orders_give_the_same_bytes(void **state) {
    (void)state;
    for (uint64_t seed = 130; seed < 132; seed++) {
        world w;
        world_make(&w, seed, 100);
        uint64_t least = least_arena(&w);
        for (uint64_t order = 1; order <= 12; order++) {
            uint64_t arena = least + least * (order % 4) / 2, slab = minimum_with(&w, arena);
            (void)run_way(&w, &(way){.slab = slab + order % 3 * slab / 4,
                                     .arena = arena,
                                     .engine = "sync",
                                     .order_seed = order,
                                     .slots = 2,
                                     .cache = order % 2});
        }
        world_free(&w);
    }
}

static void linked_runs_give_the_same_bytes(void **state) {
    (void)state;
    const char *engines[] = {"sync", "uring", "threads"};
    early_copies = 0;
    for (uint64_t seed = 140; seed < 143; seed++) {
        world w;
        world_make_runs(&w, seed, 80, 4);
        for (uint32_t i = 0; i < 3; i++) {
            uint64_t arena = least_arena(&w) * (1 + i);
            (void)run_way(&w, &(way){.slab = minimum_with(&w, arena) * (1 + i),
                                     .arena = arena,
                                     .engine = engines[i],
                                     .depth = 4,
                                     .slots = 1 + i % 2,
                                     .cache = true,
                                     .order_seed = seed == 142 ? i + 1 : 0});
        }
        world_free(&w);
    }
    print_message("%u copies began beside the run before theirs\n", early_copies);
    assert_true(early_copies > 0);
}

/* ---- state that the arena holds ------------------------------------------------------------------------------ */

static void held_state_gives_the_same_bytes(void **state) {
    (void)state;
    const char *engines[] = {"sync", "uring", "threads"};
    uint64_t held[4] = {0}, copied[4] = {0};
    for (uint64_t seed = 160; seed < 166; seed++) {
        world w;
        world_make_held(&w, seed, 100, 3);
        uint64_t least = least_arena(&w), arenas[] = {least, least + least / 3, least * 2, (uint64_t)1 << 26};
        for (uint32_t i = 0; i < TM_COUNT(arenas); i++) {
            uint64_t slab = minimum_with(&w, arenas[i]);
            copied[i] += run_way(&w, &(way){.slab = slab + slab * (i % 2),
                                            .arena = arenas[i],
                                            .engine = engines[(seed + i) % 3],
                                            .depth = 1 + i,
                                            .slots = 2,
                                            .cache = true,
                                            .order_seed = seed % 3 == 0 ? i + 1 : 0,
                                            .again = seed % 2});
            held[i] += w.device_resident_bytes;
        }
        world_free(&w);
    }
    for (uint32_t i = 0; i < 4; i++)
        print_message("held: %llu bytes, copied: %llu\n", (unsigned long long)held[i], (unsigned long long)copied[i]);
    assert_int_equal(held[0], 0); /* the least arena has no room for it */
    assert_true(held[3] > held[2] && held[2] >= held[1] && held[1] > 0);
    assert_true(copied[3] < copied[0]);
}

/* Nothing of the state is copied where there is room for all of it, but for what the host asks for. */
static void what_is_held_is_not_copied(void **state) {
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = 170; seed < 174; seed++) {
        world w;
        tm_plan *plan = NULL;
        world_make_held(&w, seed, 100, 1);
        tm_plan_opts o = {.slab_bytes = (uint64_t)1 << 26,
                          .choose_residency = true,
                          .cache = true,
                          .spill = true,
                          .resident_quarters = 4,
                          .device_bytes = (uint64_t)1 << 26};
        assert_int_equal(tm_plan_compile(&plan, w.layout, w.program, &o, NULL), TM_OK);
        for (uint32_t op = 0; op < plan->n_op; op++) {
            const struct plan_touch *t = &plan->touch[plan->first_touch[op]];
            if (plan->op[op].op.code != TM_OP_COPY || (t->object & TM_TEMP_BIT)) continue;
            assert_false(tm_layout_get(w.layout, t->object)->address >= TM_DEVICE_BASE);
        }
        for (uint32_t i = 0; i < w.n_state; i++) {
            const tm_object *x = tm_layout_get(w.layout, i);
            n += x->resident && x->address >= TM_DEVICE_BASE;
        }
        tm_plan_free(plan);
        world_free(&w);
    }
    print_message("held: %u objects\n", n);
    assert_true(n > 10);
}

/* ---- the proof ----------------------------------------------------------------------------------------------- */

static tm_plan *plan_of(world *w, uint64_t arena) {
    tm_plan *plan = NULL;
    assert_int_equal(tm_plan_compile(&plan, w->layout, w->program,
                                     &(tm_plan_opts){.slab_bytes = minimum_with(w, arena),
                                                     .choose_residency = true,
                                                     .cache = true,
                                                     .spill = true,
                                                     .device_bytes = arena},
                                     NULL),
                     TM_OK);
    if (tm_plan_verify(plan) != TM_OK) fail_msg("%s", tm_error_get()->text);
    return plan;
}

static void refused(const tm_plan *plan, const char *what, uint32_t op) {
    if (tm_plan_verify(plan) != TM_EBUG) fail_msg("operation %u: %s is accepted", op, what);
    tm_error_clear();
}

static void the_verifier_rejects_wrong_copies(void **state) {
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = 150; seed < 153; seed++) {
        world w;
        world_make(&w, seed, 60);
        tm_plan *plan = plan_of(&w, least_arena(&w));
        for (uint32_t op = 0; op < plan->n_op; op++) {
            tm_plan_op *o = &plan->op[op];
            struct plan_touch *t = &plan->touch[plan->first_touch[op]];
            uint64_t *operand = &plan->operand[o->first_operand];
            if (o->op.code != TM_OP_COPY) continue;
            o->op.arg[0] -= 4096; /* less than all */
            refused(plan, "half a copy", op);
            o->op.arg[0] += 4096;
            for (int side = 0; side < 2; side++) { /* from or to another frame */
                uint64_t keep = operand[side];
                operand[side] = t[side].address = (keep & 4096) ? keep - 4096 : keep + 4096;
                refused(plan, "a copy beside its frame", op);
                operand[side] = t[side].address = keep;
            }
            o->engine = o->engine == TM_ENGINE_COPY_IN ? TM_ENGINE_COPY_OUT : TM_ENGINE_COPY_IN;
            refused(plan, "a copy in the wrong lane", op);
            o->engine = o->engine == TM_ENGINE_COPY_IN ? TM_ENGINE_COPY_OUT : TM_ENGINE_COPY_IN;
            uint8_t engine = o->engine;
            for (uint8_t other = 0; other < TM_ENGINES; other++) {
                o->engine = other;
                if (other != engine) refused(plan, "a copy by another engine", op);
            }
            o->engine = engine;
            o->op.code = 1;
            refused(plan, "an operation in a copy's lane", op);
            o->op.code = TM_OP_COPY;
            struct plan_touch was[2] = {t[0], t[1]}; /* it does nothing: writes what it reads */
            uint64_t stays = operand[1];
            t[1] = t[0];
            operand[1] = operand[0];
            refused(plan, "a copy onto itself", op);
            t[0] = was[0];
            t[1] = was[1];
            operand[1] = stays;
            n++;
        }
        assert_int_equal(tm_plan_verify(plan), TM_OK);
        tm_plan_free(plan);
        world_free(&w);
    }
    print_message("%u copies, each wrong in every way\n", n);
    assert_true(n > 100);
}

/* What ranks exchange from arena to arena is theirs among the operations of the device's tier: all of it lies there, it
 * keeps its lane, and one of the host's tier may not reach in. */
static void exchanges_lie_in_the_arena(void **state) {
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = 180; seed < 183; seed++) {
        world w;
        world_make(&w, seed, 60);
        for (uint32_t i = 0; i < w.program->n_op; i += 3)
            if (w.program->op[i].op.tier == TM_TIER_DEVICE) w.program->op[i].op.engine = TM_ENGINE_COMM;
        tm_plan *plan = plan_of(&w, least_arena(&w) * (1 + seed % 2));
        for (uint32_t op = 0; op < plan->n_op; op++) {
            if (plan->op[op].engine != TM_ENGINE_COMM) continue;
            for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
                assert_true(plan->touch[i].address >= TM_DEVICE_BASE);
            plan->op[op].op.tier = TM_TIER_HOST;
            refused(plan, "an exchange of the host's tier in the arena", op);
            plan->op[op].op.tier = TM_TIER_DEVICE;
            n++;
        }
        assert_int_equal(tm_plan_verify(plan), TM_OK);
        tm_plan_free(plan);
        world_free(&w);
    }
    assert_true(n > 20);
}

/* Turns the copy into an operation that touches nothing. */
static void take_touches(tm_plan *plan, uint32_t op) {
    uint32_t at = plan->first_touch[op], all = plan->first_touch[plan->n_op];
    memmove(&plan->touch[at], &plan->touch[at + 2], (all - at - 2) * sizeof *plan->touch);
    for (uint32_t i = op + 1; i <= plan->n_op; i++) plan->first_touch[i] -= 2;
    plan->op[op].op = (tm_op){.code = 1};
    plan->op[op].engine = TM_ENGINE_CPU;
    plan->op[op].n_operands = 0;
}

static void give_touches(tm_plan *plan, uint32_t op, const tm_plan_op *o, const struct plan_touch *t) {
    uint32_t at = plan->first_touch[op], all = plan->first_touch[plan->n_op];
    memmove(&plan->touch[at + 2], &plan->touch[at], (all - at) * sizeof *plan->touch);
    memcpy(&plan->touch[at], t, 2 * sizeof *t);
    for (uint32_t i = op + 1; i <= plan->n_op; i++) plan->first_touch[i] += 2;
    plan->op[op] = *o;
}

/* Whoever reads after a copy that never came, reads what was there before. */
static void the_verifier_rejects_a_missing_copy(void **state) {
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = 160; seed < 162; seed++) {
        world w;
        world_make(&w, seed, 60);
        tm_plan *plan = plan_of(&w, least_arena(&w) * (1 + seed % 2));
        for (uint32_t op = 0; op < plan->n_op; op++) {
            tm_plan_op o = plan->op[op];
            if (o.op.code != TM_OP_COPY) continue;
            struct plan_touch t[2] = {plan->touch[plan->first_touch[op]], plan->touch[plan->first_touch[op] + 1]};
            take_touches(plan, op);
            refused(plan, "a missing copy", op);
            give_touches(plan, op, &o, t);
            n++;
        }
        assert_int_equal(tm_plan_verify(plan), TM_OK);
        tm_plan_free(plan);
        world_free(&w);
    }
    assert_true(n > 100);
}

static bool at_a_copy(const tm_plan *plan, uint32_t from, uint32_t to) {
    return plan->op[from].op.code == TM_OP_COPY || plan->op[to].op.code == TM_OP_COPY;
}

/* Takes each edge from or to a copy away in turn. What is accepted is run in random orders. */
static void the_verifier_rejects_missing_edges(void **state) {
    (void)state;
    world w;
    tm_exec *e;
    tm_store *store;
    tm_device *d;
    const char *paths[] = {scratch_dir};
    world_make(&w, 161, 50);
    uint64_t arena = least_arena(&w), slab = minimum_with(&w, arena);
    tm_plan *plan = plan_of(&w, arena);
    assert_int_equal(tm_store_open(&store, w.layout,
                                   &(tm_store_opts){.paths = paths,
                                                    .n_paths = 1,
                                                    .io = {.engine = "sync"},
                                                    .spill_bytes = tm_plan_get_info(plan)->spill_file_bytes}),
                     TM_OK);
    assert_int_equal(tm_device_open(&d, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = arena}), TM_OK);
    assert_int_equal(
        tm_exec_open(&e, &(tm_exec_opts){.slab_bytes = slab + 40960, .store = store, .seed = 5, .device = d}), TM_OK);
    uint32_t rejected, n = without_each_edge(&w, plan, e, slab + 40960, 3, at_a_copy, &rejected);
    print_message("%u of %u edges at copies are asked for\n", rejected, n);
    assert_true(n > 100 && rejected > n * 8 / 10);
    tm_exec_close(e);
    tm_device_close(d);
    assert_int_equal(tm_store_remove(store), TM_OK);
    tm_plan_free(plan);
    world_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_arena_gives_the_same_bytes),   cmocka_unit_test(an_arena_below_the_least_is_refused),
        cmocka_unit_test(random_orders_give_the_same_bytes),  cmocka_unit_test(linked_runs_give_the_same_bytes),
        cmocka_unit_test(held_state_gives_the_same_bytes),    cmocka_unit_test(what_is_held_is_not_copied),
        cmocka_unit_test(the_verifier_rejects_wrong_copies),  cmocka_unit_test(the_verifier_rejects_a_missing_copy),
        cmocka_unit_test(the_verifier_rejects_missing_edges), cmocka_unit_test(exchanges_lie_in_the_arena),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(scratch_dir);
    return failures;
}
