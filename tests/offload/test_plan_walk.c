/* Every allocation of a plan's life fails in turn (tests/walk.h): programs written, plans compiled for one tier and for
 * two, with state chosen, spilled, held and linked from run to run, proved, printed, simulated. */
#define WORLD_DIR "test_plan_walk.offload"
#include "plan_world.h"
#include "offload/sim/sim.h"
#include "tests/support/walk.h"

/* ---- a program is written ---------------------------------------------------------------------------------------- */

static tm_status write_ops(tm_layout *l, tm_program *p) {
    enum { OPS = 70 }; /* more than arrays begin with */
    uint32_t temp = tm_program_temp(p, &(tm_object){.kind = TM_KIND_ACTIVATION, .bytes = 5000, .pageable = true});
    for (uint32_t i = 0; i < OPS; i++) {
        uint32_t state = tm_program_interval(p, i, 1), through = tm_program_interval(p, temp, 1);
        tm_program_op(p, &(tm_op){.code = 1});
        tm_program_use(p, state, TM_USE_UPDATE);
        tm_program_use(p, through, i ? TM_USE_READ : TM_USE_WRITE);
    }
    uint64_t least;
    tm_plan_opts o = {.choose_residency = true, .spill = true};
    TM_TRY(tm_plan_minimum(l, p, &o, &least));
    return least > 0 ? TM_OK : TM_EBUG;
}

static tm_status write_program(void *ctx) {
    tm_layout *l;
    tm_program *p = NULL;
    tm_status rc = TM_OK;
    (void)ctx;
    TM_TRY(tm_layout_create(&l));
    for (uint32_t i = 0; i < 70 && rc == TM_OK; i++)
        if (tm_layout_object(l, &(tm_object){.kind = TM_KIND_EXP_AVG, .bundle = i, .bytes = 9000, .pageable = true}) !=
            i)
            rc = tm_nomem(sizeof(tm_object));
    if (rc == TM_OK) rc = tm_program_create(&p, l, "walk");
    if (rc == TM_OK) rc = write_ops(l, p);
    tm_program_free(p);
    tm_layout_free(l);
    return rc;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

typedef struct plans {
    world w;
    uint64_t slab, arena; /* arena 0: one tier */
    uint32_t hold;
} plans;

static double even(void *ctx, const tm_op *op) {
    (void)ctx, (void)op;
    return 1e-3;
}

static tm_status simulate(const tm_plan *plan, const tm_link *link) {
    tm_machine m;
    tm_sim_result r;
    tm_machine_nominal(&m);
    TM_TRY(
        tm_simulate(&r, plan, &(tm_sim_opts){.machine = &m, .cost = even, .runs = 2, .link = link, .timeline = true}));
    tm_sim_free(&r);
    return TM_OK;
}

static tm_status print(const tm_plan *plan) {
    tm_buf text = {0};
    tm_status rc = tm_plan_print(plan, &text);
    tm_buf_free(&text);
    return rc;
}

/* Without memory for a look-ahead there is none: that is a plan as well, and it is proved like any other. */
static tm_status compile(void *ctx) {
    plans *x = ctx;
    tm_plan *plan = NULL;
    tm_link *link = NULL;
    tm_program *held = NULL;
    uint64_t least;
    tm_plan_opts o = {.slab_bytes = x->slab,
                      .choose_residency = true,
                      .cache = true,
                      .spill = true,
                      .cost = even,
                      .device_bytes = x->arena,
                      .resident_quarters = x->hold};
    tm_status rc;
    TM_GO(tm_plan_minimum(x->w.layout, x->w.program, &o, &least));
    if (x->arena) TM_GO(tm_plan_device_minimum(x->w.program, &least));
    TM_GO(tm_plan_compile(&plan, x->w.layout, x->w.program, &o, &least));
    TM_GO(tm_plan_verify(plan));
    TM_GO(tm_link_create(&link, plan, plan));
    TM_GO(tm_link_verify(link));
    TM_GO(print(plan));
    if (x->hold) TM_GO(tm_program_device_resident(&held, x->w.layout, true));
    rc = simulate(plan, link);
done:
    tm_program_free(held);
    tm_link_free(link);
    tm_plan_free(plan);
    return rc;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static uint64_t walk_memory(walk_fn once, void *ctx) {
    return walk_all((walk){.call = "alloc", .kind = "fail", .want = TM_ENOMEM, .may_pass = true}, once, ctx);
}

static void test_programs(void **state) {
    (void)state;
    assert_true(walk_memory(write_program, NULL) > 20);
}

static void test_plans(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        plans x = {0};
        uint64_t least = 0;
        if (i == 3)
            world_make_held(&x.w, 303, 60, 1);
        else
            world_make(&x.w, 300 + i, 60);
        assert_int_equal(tm_plan_device_minimum(x.w.program, &least), TM_OK);
        x.arena = i == 0 ? 0 : i == 1 ? least : 3 * least;
        x.hold = x.w.hold;
        x.slab = minimum_with(&x.w, x.arena) * (i % 2 ? 1 : 2);
        uint64_t failed = walk_memory(compile, &x);
        if (failed < 40) fail_msg("way %u: %llu runs failed", i, (unsigned long long)failed);
        (void)run_way(&x.w, &(way){.slab = x.slab, .arena = x.arena, .engine = "sync", .slots = 2, .cache = true});
        world_free(&x.w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs), cmocka_unit_test(test_plans)};
    int failures = cmocka_run_group_tests_name("plan_walk", tests, NULL, NULL);
    (void)rmdir(scratch_dir);
    return failures;
}
