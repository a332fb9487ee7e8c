/* Every allocation and every call of an executor's life fails in turn (tests/walk.h): opened over a store, with an
 * arena and without, two linked runs, each operation done once or twice. What passes has the right bytes; what fails
 * says why and holds neither memory nor descriptors, though transfers were under way. */
#define WORLD_DIR "test_exec_walk.offload"
#include "plan_world.h"
#include "tests/support/walk.h"

enum { WALKS = 40960 }; /* of the slab: frames of `load` and `check` */

typedef struct life {
    world w;
    tm_plan *plan, *load, *check;
    tm_link *link;
    uint64_t slab, arena; /* arena 0: one tier */
    const char *engine;
    bool twice;
    /* of the life under way */
    tm_device *device;
    tm_store *store;
    tm_exec *exec;
} life;

static tm_status open_life(life *l) {
    const char *paths[] = {walk_dir()};
    if (l->arena) TM_TRY(tm_device_open(&l->device, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = l->arena}));
    TM_TRY(tm_store_open(&l->store, l->w.layout,
                         &(tm_store_opts){.paths = paths,
                                          .n_paths = 1,
                                          .slots = 1,
                                          .allow_tmpfs = true,
                                          .io = {.engine = l->engine},
                                          .spill_bytes = tm_plan_get_info(l->plan)->spill_file_bytes}));
    return tm_exec_open(&l->exec,
                        &(tm_exec_opts){.slab_bytes = l->slab + WALKS, .store = l->store, .device = l->device});
}

static tm_status run_life(life *l) {
    tm_exec *e = l->exec;
    TM_TRY(tm_exec_run(e, l->load, handler, &l->w));
    tm_store_mark_committed(l->store);
    if (l->twice) TM_TRY(tm_exec_twice_room(e, l->plan));
    tm_exec_twice(e, l->twice, NULL, NULL);
    tm_exec_trace(e, true);
    for (uint32_t r = 0; r < l->w.runs; r++) {
        if (r + 1 < l->w.runs) tm_exec_announce(e, l->plan, l->link);
        TM_TRY(tm_exec_run(e, l->plan, handler, &l->w));
    }
    tm_exec_twice(e, false, NULL, NULL);
    return tm_exec_run(e, l->check, handler, &l->w);
}

static tm_status live(void *ctx) {
    life *l = ctx;
    walk_clear(walk_dir());
    tm_status rc = open_life(l);
    if (rc == TM_OK) rc = run_life(l);
    if (rc == TM_ECORRUPT) fail_msg("%s", tm_error_get()->text); /* only calls fail here: nothing changes a byte */
    tm_error said = *tm_error_get();
    tm_exec_close(l->exec);
    tm_device_close(l->device);
    tm_store_close(l->store);
    l->exec = NULL, l->device = NULL, l->store = NULL;
    if (rc != TM_OK) tm_error_clear(), tm_error_set(&said);
    return rc;
}

static tm_plan *each_object(life *l, uint16_t code, tm_use_access access) {
    tm_program *p;
    tm_plan *plan;
    assert_int_equal(tm_program_create(&p, l->w.layout, "each"), TM_OK);
    for (uint32_t i = 0; i < l->w.n_state; i++) {
        uint32_t v = tm_program_interval(p, i, 1);
        tm_program_op(p, &(tm_op){.code = code, .arg = {i}});
        tm_program_use(p, v, access);
    }
    assert_int_equal(tm_plan_compile(&plan, l->w.layout, p,
                                     &(tm_plan_opts){.slab_bytes = l->slab + WALKS, .device_bytes = l->arena}, NULL),
                     TM_OK);
    tm_program_free(p);
    return plan;
}

static void make_life(life *l, uint64_t seed, bool arena) {
    *l = (life){0};
    world_make_runs(&l->w, seed, 40, 2);
    if (arena) assert_int_equal(tm_plan_device_minimum(l->w.program, &l->arena), TM_OK);
    l->slab = minimum_with(&l->w, l->arena);
    const tm_plan_opts o = {
        .slab_bytes = l->slab, .choose_residency = true, .cache = true, .spill = true, .device_bytes = l->arena};
    assert_int_equal(tm_plan_compile(&l->plan, l->w.layout, l->w.program, &o, NULL), TM_OK);
    assert_int_equal(tm_link_create(&l->link, l->plan, l->plan), TM_OK);
    l->load = each_object(l, 2, TM_USE_WRITE);
    l->check = each_object(l, 3, TM_USE_READ);
}

static void free_life(life *l) {
    tm_link_free(l->link);
    tm_plan_free(l->plan);
    tm_plan_free(l->load);
    tm_plan_free(l->check);
    world_free(&l->w);
}

static void test_lives(void **state) {
    static const char *const engines[] = {"sync", "threads"}, *const kinds[] = {"eio"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        life l;
        make_life(&l, 400 + i, i);
        l.engine = engines[i];
        l.twice = !i;
        const walk memory = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM, .may_pass = true};
        uint64_t failed = walk_all(memory, live, &l),
                 more = walk_every(live, &l, kinds, TM_COUNT(kinds), walk_points(2));
        if (failed < 40 || more < 20) fail_msg("way %u: %u and %u runs failed", i, (unsigned)failed, (unsigned)more);
        free_life(&l);
    }
}

static int gone(void **state) {
    (void)state;
    walk_gone(walk_dir());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lives)};
    tm_log_set_level(TM_LOG_ERROR);
    return cmocka_run_group_tests_name("exec_walk", tests, NULL, gone);
}
