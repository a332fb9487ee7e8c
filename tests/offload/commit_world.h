/* A small state whose bytes after every step are known: what a commit and a restore are held against. */
#ifndef TIDEMILL_TEST_COMMIT_WORLD_H
#define TIDEMILL_TEST_COMMIT_WORLD_H

#include "io/file/file.h"
#include "offload/exec/exec.h"
#include "offload/plan/plan.h"
#include "offload/store/store.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { W_TILES = 2, W_OP_FILL = 1, W_OP_STEP, W_OP_CHECK };

typedef struct world {
    tm_layout *layout;
    tm_plan *step_plan, *check_plan;
    tm_store *store;
    tm_exec *exec;
    uint64_t step;
    uint32_t wrong; /* objects that were not what they should be */
} world;

static const uint64_t w_bytes[] = {70000, 70000, 140000, 140000, 70000};

/* Any residency (slab 0: the least), any order of kinds, with gradients among them or without: the same state. */
static inline void world_layout(world *w, bool parks) {
    uint32_t bundle = 0;
    OK(tm_layout_create(&w->layout));
    for (uint32_t tile = 0; tile < W_TILES; tile++)
        for (int kind = 0; kind < (parks ? 5 : 4); kind++)
            assert_true(tm_layout_object(w->layout, &(tm_object){.kind = (tm_kind)kind,
                                                                 .unit = tile,
                                                                 .bundle = bundle++,
                                                                 .bytes = w_bytes[kind] + 4096 * tile,
                                                                 .pageable = true}) != UINT32_MAX);
}

static inline void world_fill(char *p, uint64_t n, uint64_t step, uint32_t kind, uint32_t tile) {
    for (uint64_t i = 0; i < n; i += 16) {
        uint32_t r[4];
        tm_philox(step, kind << 8 | tile, i, r);
        memcpy(p + i, r, tm_min_u64(16, n - i));
    }
}

static inline tm_status world_op(void *ctx, const tm_op *op, void *const *operand) {
    static char want[160000];
    world *w = ctx;
    uint32_t kind = op->arg[0], tile = op->arg[1];
    uint64_t n = w_bytes[kind] + 4096 * tile;
    if (op->code != W_OP_FILL) {
        world_fill(want, n, w->step, kind, tile);
        if (memcmp(want, operand[0], n) != 0) w->wrong++;
    }
    if (op->code == W_OP_STEP) world_fill(operand[0], n, w->step + 1, kind, tile);
    if (op->code == W_OP_FILL) world_fill(operand[0], n, w->step, kind, tile);
    return TM_OK;
}

static inline tm_plan *world_plan(world *w, uint16_t code, uint64_t slab, bool choose) {
    tm_program *p;
    tm_plan *plan;
    uint32_t tile[TM_KINDS] = {0};
    OK(tm_program_create(&p, w->layout, "walk"));
    for (uint32_t i = 0; i < tm_layout_objects(w->layout); i++) {
        tm_kind kind = tm_layout_get(w->layout, i)->kind;
        bool grad = kind == TM_KIND_GRAD; /* between steps nobody counts on it */
        if (grad && code == W_OP_CHECK) continue;
        uint32_t v = tm_program_interval(p, i, 1);
        uint16_t does = grad ? W_OP_FILL : code;
        tm_program_op(p, &(tm_op){.code = does, .arg = {kind, tile[kind]++}});
        tm_program_use(p, v, does == W_OP_FILL ? TM_USE_WRITE : does == W_OP_STEP ? TM_USE_UPDATE : TM_USE_READ);
    }
    tm_plan_opts o = {.slab_bytes = slab, .choose_residency = choose, .cache = slab > 400000};
    if (!slab) OK(tm_plan_minimum(w->layout, p, &o, &o.slab_bytes));
    OK(tm_plan_compile(&plan, w->layout, p, &o, NULL));
    tm_program_free(p);
    return plan;
}

typedef struct world_opts {
    const char *path; /* offload path */
    tm_commit *resume;
    const char *engine;
    uint64_t slab; /* 0: the least */
    bool parks, no_commits;
} world_opts;

static inline tm_status world_open(world *w, const world_opts *o) {
    *w = (world){0};
    world_layout(w, o->parks);
    uint64_t slab = o->slab ? o->slab : 200000;
    w->step_plan = world_plan(w, W_OP_STEP, slab, true);
    w->check_plan = world_plan(w, W_OP_CHECK, slab, false);
    if (o->path) TM_TRY(tm_make_dirs(o->path));
    TM_TRY(tm_store_open(&w->store, w->layout,
                         &(tm_store_opts){.commits = !o->no_commits,
                                          .resume = o->resume,
                                          .paths = &o->path,
                                          .n_paths = 1,
                                          .allow_tmpfs = true,
                                          .io = {.engine = o->engine ? o->engine : "sync"}}));
    TM_TRY(tm_exec_open(&w->exec, &(tm_exec_opts){.slab_bytes = slab, .store = w->store}));
    if (o->resume) {
        w->step = tm_commit_step(o->resume);
        return tm_store_restore(w->store, tm_exec_slab(w->exec));
    }
    tm_plan *fill = world_plan(w, W_OP_FILL, slab, false);
    tm_status rc = tm_exec_run(w->exec, fill, world_op, w);
    tm_plan_free(fill);
    tm_store_mark_committed(w->store);
    return rc;
}

static inline void world_step(world *w) {
    OK(tm_exec_run(w->exec, w->step_plan, world_op, w));
    w->step++;
    assert_int_equal(w->wrong, 0);
}

static inline tm_status world_commit(world *w, tm_commit_stats *stats) {
    char info[64];
    tm_commit_stats s;
    int n = snprintf(info, sizeof info, "{\"step\": %llu}", (unsigned long long)w->step);
    return tm_store_commit(w->store, tm_exec_slab(w->exec),
                           &(tm_commit_opts){.step = w->step, .info = info, .info_bytes = (size_t)n},
                           stats ? stats : &s);
}

/* The whole state, read through the store, is that of w->step. */
static inline void world_check(world *w) {
    OK(tm_exec_run(w->exec, w->check_plan, world_op, w));
    assert_int_equal(w->wrong, 0);
}

/* `keep`: the run directory stays, as after a kill. */
static inline void world_close(world *w, bool keep) {
    tm_exec_close(w->exec);
    if (keep)
        tm_store_close(w->store);
    else
        OK(tm_store_remove(w->store));
    tm_plan_free(w->step_plan);
    tm_plan_free(w->check_plan);
    tm_layout_free(w->layout);
    *w = (world){0};
}

#endif
