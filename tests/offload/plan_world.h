/* Random programs and how they are run: what a plain interpreter (one array an object, operations in program order)
 * makes of one is what every plan of it has to give. */
#ifndef TIDEMILL_TEST_PLAN_WORLD_H
#define TIDEMILL_TEST_PLAN_WORLD_H

#include "offload/exec/exec.h"
#include "offload/plan/plan.h"
#include "offload/store/store.h"
#include "offload/offload_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_OBJECTS = 400, MAX_USES = 8 };

/* ---- random numbers ------------------------------------------------------------------------------------------ */

static uint64_t rng_state;

static uint32_t rnd(uint32_t n) {
    uint32_t r[4];
    tm_philox(rng_state, 1, rng_state >> 3, r);
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return r[1] % n;
}

/* ---- a world: a layout, a program, and what it should do ----------------------------------------------------- */

typedef struct use {
    uint32_t object, count; /* model ids: state 0.., temporaries after */
    tm_use_access access;
} use;

typedef struct step {
    use u[MAX_USES];
    uint32_t n;
} step;

typedef struct world {
    tm_layout *layout;
    tm_program *program;
    step *steps;
    uint32_t n_steps, n_state, n_temp;
    uint32_t runs;                  /* of the program, one after another */
    uint32_t hold;                  /* resident_quarters of its plans, */
    uint64_t device_resident_bytes; /* and what the last of them held */
    uint64_t bytes[MAX_OBJECTS];
    unsigned char *truth[MAX_OBJECTS];   /* the plain interpreter's */
    unsigned char *initial[MAX_OBJECTS]; /* of state */
} world;

/* What an operation does: every byte written is a function of everything it reads, of its number and its place. */
static void work(uint32_t number, unsigned char **ptr, const uint64_t *bytes, const tm_use_access *access, uint32_t n) {
    uint64_t h = number * 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < n; i++)
        if (access[i] & TM_USE_READ) h = tm_hash64(ptr[i], bytes[i], h);
    for (uint32_t i = 0; i < n; i++) {
        if (!(access[i] & TM_USE_WRITE)) continue;
        for (uint64_t k = 0; k < bytes[i]; k += 8) {
            uint64_t v = (h ^ (k + i)) * 0xff51afd7ed558ccdull;
            memcpy(ptr[i] + k, &v, bytes[i] - k < 8 ? bytes[i] - k : 8);
        }
    }
}

static uint32_t layout_id(const world *w, uint32_t object) {
    return object;
    (void)w;
}

static void expand(const world *w, const step *s, uint32_t *objects, tm_use_access *access, uint32_t *n) {
    *n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->u[i].count; k++) {
            objects[*n] = s->u[i].object + k;
            access[(*n)++] = s->u[i].access;
        }
    (void)w;
}

static void make_state(world *w) {
    uint32_t bundle = 0;
    assert_int_equal(tm_layout_create(&w->layout), TM_OK);
    uint32_t units = 2 + rnd(6);
    for (uint32_t u = 0; u < units; u++) {
        uint32_t parts = 1 + rnd(3);
        for (uint32_t p = 0; p < parts; p++) {
            uint32_t tiles = 1 + rnd(4);
            for (uint32_t t = 0; t < tiles; t++, w->n_state++) {
                w->bytes[w->n_state] = t + 1 < tiles ? 4096 * (1 + rnd(3)) : 1 + rnd(12000);
                tm_object o = {.kind = TM_KIND_WEIGHT_HI,
                               .unit = u,
                               .bundle = bundle,
                               .bytes = w->bytes[w->n_state],
                               .pageable = true};
                assert_int_equal(tm_layout_object(w->layout, &o), w->n_state);
            }
            bundle++;
            for (uint32_t t = 0; t < tiles; t++, w->n_state++) {
                w->bytes[w->n_state] = 1 + rnd(20000);
                tm_object o = {.kind = TM_KIND_EXP_AVG,
                               .unit = u,
                               .bundle = bundle++,
                               .bytes = w->bytes[w->n_state],
                               .pageable = true};
                assert_int_equal(tm_layout_object(w->layout, &o), w->n_state);
            }
        }
    }
}

static uint32_t bundle_first(const world *w, uint32_t id) {
    while (id > 0 && tm_layout_get(w->layout, id - 1)->bundle == tm_layout_get(w->layout, id)->bundle) id--;
    return id;
}

static uint32_t bundle_length(const world *w, uint32_t id) {
    uint32_t n = 1;
    while (id + n < w->n_state && tm_layout_get(w->layout, id + n)->bundle == tm_layout_get(w->layout, id)->bundle) n++;
    return n;
}

typedef struct open_interval {
    uint32_t interval, first, count; /* model ids */
    uint32_t until;
    uint8_t written[8];
    bool busy;
} open_interval;

/* Programs like ours: intervals open, are used by a few operations, close; temporaries are written first and visited
 * again. */
static void make_program(world *w, uint32_t steps) {
    uint32_t temp_of[MAX_OBJECTS];
    bool temp_written[MAX_OBJECTS] = {0};
    open_interval open[6] = {0};
    assert_int_equal(tm_program_create(&w->program, w->layout, "random"), TM_OK);
    w->n_temp = 10 + rnd(40);
    for (uint32_t t = 0; t < w->n_temp; t++) {
        w->bytes[w->n_state + t] = 1 + rnd(30000);
        temp_of[t] = tm_program_temp(w->program, &(tm_object){.kind = rnd(2) ? TM_KIND_GRAD : TM_KIND_ACTIVATION,
                                                              .unit = rnd(4),
                                                              .bytes = w->bytes[w->n_state + t],
                                                              .pageable = rnd(5) > 0});
    }
    w->steps = calloc(steps, sizeof *w->steps);
    w->n_steps = steps;
    for (uint32_t i = 0; i < steps; i++) {
        for (size_t k = 0; k < TM_COUNT(open); k++) {
            open_interval *v = &open[k];
            if (v->busy && v->until >= i) continue;
            v->busy = false;
            uint32_t first, count = 1;
            bool temp = rnd(2);
            if (temp) {
                first = w->n_state + rnd(w->n_temp);
            } else {
                first = bundle_first(w, rnd(w->n_state));
                count = bundle_length(w, first);
                if (count > 1 && rnd(2)) {
                    first += rnd(count);
                    count = 1;
                }
            }
            bool clash = false; /* intervals of one object do not overlap */
            for (size_t j = 0; j < TM_COUNT(open); j++)
                if (open[j].busy && first < open[j].first + open[j].count && open[j].first < first + count)
                    clash = true;
            if (clash || count > 8) continue;
            *v = (open_interval){.first = first, .count = count, .until = i + rnd(6), .busy = true};
            v->interval =
                tm_program_interval(w->program, temp ? temp_of[first - w->n_state] : layout_id(w, first), count);
        }
        uint32_t mixed = i * 2654435761u >> 13;
        tm_tier tier = mixed % 3 ? TM_TIER_DEVICE : TM_TIER_HOST; /* where there is an arena */
        if (w->hold) tier = mixed % 7 == 0 ? TM_TIER_HOST : mixed % 5 ? TM_TIER_DEVICE : TM_TIER_EITHER;
        tm_program_op(w->program, &(tm_op){.code = 1, .arg = {i}, .tier = (uint8_t)tier});
        step *s = &w->steps[i];
        for (size_t k = 0; k < TM_COUNT(open) && s->n < MAX_USES - 1; k++) {
            open_interval *v = &open[k];
            if (!v->busy || rnd(3) == 0) continue;
            bool temp = v->first >= w->n_state;
            if (w->hold && tier == TM_TIER_HOST && !temp && v->first % 8) continue; /* looks at little of the state */
            tm_use_access access = (tm_use_access)(1 + rnd(3));
            if (temp && !temp_written[v->first - w->n_state]) access = TM_USE_WRITE;
            if (temp && (access & TM_USE_WRITE)) temp_written[v->first - w->n_state] = true;
            uint32_t from = 0, count = v->count;
            if (count > 1 && rnd(2)) {
                from = rnd(count);
                count = 1;
            }
            uint32_t id = temp ? temp_of[v->first - w->n_state] : v->first + from;
            tm_program_use_range(w->program, v->interval, id, count, access);
            s->u[s->n++] = (use){v->first + from, count, access};
        }
    }
}

static void run_truth(world *w) {
    for (uint32_t i = 0; i < w->n_state + w->n_temp; i++) {
        w->truth[i] = calloc(1, w->bytes[i]);
        if (i >= w->n_state) continue;
        w->initial[i] = malloc(w->bytes[i]);
        for (uint64_t k = 0; k < w->bytes[i]; k++) w->initial[i][k] = (unsigned char)(i * 31 + k * 7);
        memcpy(w->truth[i], w->initial[i], w->bytes[i]);
    }
    for (uint32_t i = 0; i < w->n_steps * w->runs; i++) {
        uint32_t objects[64], n;
        tm_use_access access[64];
        unsigned char *ptr[64];
        uint64_t bytes[64];
        expand(w, &w->steps[i % w->n_steps], objects, access, &n);
        for (uint32_t k = 0; k < n; k++) {
            ptr[k] = w->truth[objects[k]];
            bytes[k] = w->bytes[objects[k]];
        }
        work(i % w->n_steps, ptr, bytes, access, n);
    }
}

static void world_make_runs(world *w, uint64_t seed, uint32_t steps, uint32_t runs) {
    memset(w, 0, sizeof *w);
    w->runs = runs;
    rng_state = seed * 1000003 + 17;
    make_state(w);
    make_program(w, steps);
    run_truth(w);
}

/* Few operations are the host's, many may be either's, and the arena may hold state. */
static inline void world_make_held(world *w, uint64_t seed, uint32_t steps, uint32_t runs) {
    memset(w, 0, sizeof *w);
    w->hold = 4;
    w->runs = runs;
    rng_state = seed * 1000003 + 17;
    make_state(w);
    make_program(w, steps);
    run_truth(w);
}

static inline void world_make(world *w, uint64_t seed, uint32_t steps) {
    world_make_runs(w, seed, steps, 1);
}

static void world_free(world *w) {
    for (uint32_t i = 0; i < w->n_state + w->n_temp; i++) {
        free(w->truth[i]);
        free(w->initial[i]);
    }
    free(w->steps);
    tm_program_free(w->program);
    tm_layout_free(w->layout);
}

/* ---- running a plan of it ------------------------------------------------------------------------------------ */

static tm_status handler(void *ctx, const tm_op *op, void *const *operand) {
    world *w = ctx;
    if (op->code == 2 || op->code == 3) { /* load or check one state object */
        uint32_t id = op->arg[0];
        if (op->code == 2)
            memcpy(operand[0], w->initial[id], w->bytes[id]);
        else if (memcmp(operand[0], w->truth[id], w->bytes[id]) != 0)
            return tm_fail(TM_ECORRUPT, "object %u differs", id);
        return TM_OK;
    }
    const step *s = &w->steps[op->arg[0]];
    uint32_t objects[64], n;
    tm_use_access access[64];
    unsigned char *ptr[64];
    uint64_t bytes[64];
    expand(w, s, objects, access, &n);
    for (uint32_t i = 0, k = 0; i < s->n; i++) {
        unsigned char *at = operand[i];
        for (uint32_t c = 0; c < s->u[i].count; c++, k++) {
            ptr[k] = at;
            bytes[k] = w->bytes[s->u[i].object + c];
            at += s->u[i].object + c < w->n_state ? tm_layout_get(w->layout, s->u[i].object + c)->frame_bytes : 0;
        }
    }
    work(op->arg[0], ptr, bytes, access, n);
    return TM_OK;
}

static void each_state(world *w, tm_exec *e, uint64_t slab, uint64_t arena, uint16_t code, tm_use_access access,
                       tm_status want) {
    tm_program *p;
    tm_plan *plan;
    assert_int_equal(tm_program_create(&p, w->layout, "walk"), TM_OK);
    for (uint32_t i = 0; i < w->n_state; i++) {
        uint32_t v = tm_program_interval(p, i, 1);
        tm_program_op(p, &(tm_op){.code = code, .arg = {i}});
        tm_program_use(p, v, access);
    }
    assert_int_equal(
        tm_plan_compile(&plan, w->layout, p, &(tm_plan_opts){.slab_bytes = slab, .device_bytes = arena}, NULL), TM_OK);
    assert_int_equal(tm_plan_verify(plan), TM_OK);
    tm_status got = tm_exec_run(e, plan, handler, w);
    if (got != want) print_error("%s\n", tm_error_get()->text);
    assert_int_equal(got, want);
    tm_plan_free(plan);
    tm_program_free(p);
}

static char scratch_dir[] = WORLD_DIR; /* the including file says which */

/* An offload path has to be there. */
__attribute__((constructor)) static void make_scratch_dir(void) {
    (void)mkdir(scratch_dir, 0700);
}

typedef struct way {
    uint64_t slab, order_seed;
    uint64_t arena; /* of a device; 0: in place */
    const char *engine;
    unsigned depth, slots;
    bool cache;
    bool again; /* what is held in the arena goes to its extents and comes back after the arena was overwritten */
} way;

static uint64_t total(const uint64_t *a) {
    uint64_t s = 0;
    for (int k = 0; k < TM_KINDS; k++) s += a[k];
    return s;
}

static uint32_t early_copies; /* of a run, that began before the run did */

static void count_end(void *ctx, const tm_run_stats *s) {
    uint32_t n;
    const tm_plan_op *op = tm_plan_ops(s->plan, &n);
    for (uint32_t i = 0; s->span && i < n; i++)
        if (op[i].engine == TM_ENGINE_COPY_IN && s->span[i].start < 0) early_copies++;
    const tm_plan_info *info = tm_plan_get_info(s->plan);
    assert_int_equal(total(s->read_bytes), total(info->read_bytes));
    assert_int_equal(total(s->write_bytes), total(info->write_bytes));
    for (int i = 0; i < TM_DEVICE_WAYS; i++) assert_int_equal(s->copied_bytes[i], info->copy_bytes[i]);
    ++*(uint32_t *)ctx;
}

typedef struct region {
    void *at;
    uint64_t bytes;
} region;

static tm_status forget(void *ctx) {
    const region *r = ctx;
    memset(r->at, 0x5a, r->bytes);
    return TM_OK;
}

static void move_held(world *w, tm_exec *e, uint64_t slab, uint64_t arena, bool out) {
    tm_program *p;
    tm_plan *plan;
    assert_int_equal(tm_program_device_resident(&p, w->layout, out ? TM_RESIDENT_SAVE : TM_RESIDENT_RESTORE), TM_OK);
    assert_true((p != NULL) == (w->device_resident_bytes > 0));
    if (!p) return;
    assert_int_equal(
        tm_plan_compile(&plan, w->layout, p, &(tm_plan_opts){.slab_bytes = slab, .device_bytes = arena}, NULL), TM_OK);
    assert_int_equal(tm_plan_verify(plan), TM_OK);
    const tm_plan_info *info = tm_plan_get_info(plan);
    assert_int_equal(info->copy_bytes[out], w->device_resident_bytes); /* each once, there and nowhere else */
    assert_int_equal(info->copy_bytes[!out], 0);
    assert_int_equal(total(out ? info->write_bytes : info->read_bytes), w->device_resident_bytes);
    assert_int_equal(tm_exec_run(e, plan, handler, w), TM_OK);
    tm_plan_free(plan);
    tm_program_free(p);
}

static inline uint64_t run_way(world *w, const way *y) {
    tm_plan *plan;
    tm_exec *e;
    tm_store *store;
    tm_exec_stats before, after;
    const char *paths[] = {scratch_dir};
    uint64_t slab = y->slab + 40960; /* the walks' own frames */
    tm_device *device = NULL;
    if (y->arena)
        assert_int_equal(tm_device_open(&device, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = y->arena}),
                         TM_OK);
    assert_int_equal(tm_plan_compile(&plan, w->layout, w->program,
                                     &(tm_plan_opts){.slab_bytes = y->slab,
                                                     .choose_residency = true,
                                                     .cache = y->cache,
                                                     .spill = true,
                                                     .window_mib = 1,
                                                     .resident_quarters = w->hold,
                                                     .device_bytes = y->arena},
                                     NULL),
                     TM_OK);
    if (tm_plan_verify(plan) != TM_OK) fail_msg("%s", tm_error_get()->text);
    const tm_plan_info *info = tm_plan_get_info(plan);
    w->device_resident_bytes = info->device_resident_bytes;
    assert_true(info->slab_bytes <= y->slab);
    assert_true(info->device_bytes <= y->arena);
    const uint64_t tiers = y->arena ? 2 : 1; /* as many copies as transfers */
    assert_in_range(info->ops, tm_program_ops(w->program), tiers * tm_program_plan_ops(w->program));
    assert_in_range(info->memory_bytes, tm_program_plan_bytes(w->program) / 4,
                    tiers * tm_program_plan_bytes(w->program));
    assert_int_equal(tm_store_open(&store, w->layout,
                                   &(tm_store_opts){.paths = paths,
                                                    .n_paths = 1,
                                                    .commits = y->again,
                                                    .slots = y->slots,
                                                    .io = {.engine = y->engine, .queue_depth = y->depth},
                                                    .spill_bytes = info->spill_file_bytes}),
                     TM_OK);
    assert_int_equal(
        tm_exec_open(&e, &(tm_exec_opts){.slab_bytes = slab, .store = store, .seed = y->order_seed, .device = device}),
        TM_OK);
    each_state(w, e, slab, y->arena, 2, TM_USE_WRITE, TM_OK);
    tm_store_mark_committed(store);
    tm_exec_get_stats(e, &before);
    tm_link *link = NULL;
    assert_int_equal(tm_link_create(&link, plan, plan), TM_OK);
    if (tm_link_verify(link) != TM_OK) fail_msg("%s", tm_error_get()->text);
    uint32_t ended = 0;
    uint64_t allocations = 0;
    tm_exec_on_done(e, count_end, &ended);
    tm_exec_trace(e, y->arena > 0 && w->runs > 2);
    for (uint32_t r = 0; r < w->runs; r++) {
        if (r == 2) allocations = tm_mem_allocations(); /* each of the two runs under way has had its turn */
        if (r + 1 < w->runs) tm_exec_announce(e, plan, link);
        if (tm_exec_run(e, plan, handler, w) != TM_OK) fail_msg("%s", tm_error_get()->text);
        assert_true(ended + 1 >= r && ended <= r + 1);
    }
    assert_int_equal(ended, w->runs);
    if (w->runs > 2) assert_int_equal(tm_mem_allocations(), allocations);
    tm_exec_on_done(e, NULL, NULL);
    tm_link_free(link);
    tm_exec_get_stats(e, &after);
    for (int k = 0; k < TM_KINDS; k++) { /* predicted bytes equal counted bytes */
        assert_int_equal(after.read_bytes[k] - before.read_bytes[k], info->read_bytes[k] * w->runs);
        assert_int_equal(after.write_bytes[k] - before.write_bytes[k], info->write_bytes[k] * w->runs);
    }
    if (y->again) {
        move_held(w, e, slab, y->arena, true);
        tm_device_frame all = {0, y->arena / TM_FRAME_ALIGN * TM_FRAME_ALIGN};
        region r = {tm_device_at(device, 0), all.bytes};
        assert_int_equal(tm_device_run(device, &all, 1, forget, &r), TM_OK);
        move_held(w, e, slab, y->arena, false);
    }
    each_state(w, e, slab, y->arena, 3, TM_USE_READ, TM_OK);
    uint64_t moved =
        y->arena ? info->copy_bytes[0] + info->copy_bytes[1] : total(info->read_bytes) + total(info->write_bytes);
    tm_exec_close(e);
    tm_device_close(device);
    assert_int_equal(tm_store_remove(store), TM_OK);
    tm_plan_free(plan);
    return moved;
}

static uint64_t minimum_with(world *w, uint64_t arena) {
    tm_plan *plan = NULL;
    uint64_t minimum = 0;
    assert_int_equal(tm_plan_compile(&plan, w->layout, w->program,
                                     &(tm_plan_opts){.slab_bytes = 0,
                                                     .choose_residency = true,
                                                     .cache = true,
                                                     .spill = true,
                                                     .resident_quarters = w->hold,
                                                     .device_bytes = arena},
                                     &minimum),
                     TM_EBUDGET);
    tm_error_clear();
    return minimum;
}

typedef bool (*edge_fn)(const tm_plan *plan, uint32_t from, uint32_t to);

/* Takes each edge that `which` (NULL: all) names away in turn. A plan that is accepted all the same is run in random
 * orders and has to leave the right bytes. Returns how many edges that were. */
static inline uint32_t without_each_edge(world *w, tm_plan *plan, tm_exec *e, uint64_t slab, int orders, edge_fn which,
                                         uint32_t *rejected) {
    uint32_t n = 0;
    *rejected = 0;
    for (uint32_t op = 0; op < plan->n_op; op++) {
        tm_plan_op *o = &plan->op[op];
        for (uint32_t s = 0; s < o->n_succ; s++) {
            uint32_t last = o->first_succ + o->n_succ - 1, at = o->first_succ + s, keep = plan->succ[at];
            if (which && !which(plan, op, keep)) continue;
            n++;
            plan->succ[at] = plan->succ[last];
            plan->succ[last] = keep;
            o->n_succ--;
            plan->op[keep].n_pred--;
            if (tm_plan_verify(plan) == TM_EBUG) {
                ++*rejected;
                tm_error_clear();
            } else {
                for (int order = 0; order < orders; order++) {
                    each_state(w, e, slab, plan->info.device_bytes, 2, TM_USE_WRITE, TM_OK);
                    assert_int_equal(tm_exec_run(e, plan, handler, w), TM_OK);
                    each_state(w, e, slab, plan->info.device_bytes, 3, TM_USE_READ, TM_OK);
                }
            }
            o->n_succ++;
            plan->op[keep].n_pred++;
            plan->succ[last] = plan->succ[at];
            plan->succ[at] = keep;
        }
    }
    return n;
}

#endif
