/* Operations done twice from the same bytes: what they write the second time has to be what they wrote the first. It
 * finds a processor or a memory that errs now and then, where no checksum of ours looks; one that errs in the same way
 * each time it does not find. */
#include "offload/exec/exec_internal.h"

#include <string.h>
#include <xxhash.h>

/* Scratch is compared too, but for what comes last: a stage's workspace holds what threads left in it in any order. */
static bool is_compared(const tm_plan *plan, const struct plan_touch *t, bool last) {
    return (t->access & TM_USE_WRITE) && !(last && tm_plan_object(plan, t->object)->kind == TM_KIND_SCRATCH);
}

static uint64_t updated_bytes(const tm_plan *plan, uint32_t op) {
    uint64_t bytes = 0;
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
        if (plan->touch[i].access == TM_USE_UPDATE) bytes += plan->touch[i].bytes;
    return bytes;
}

static bool has_processors(const tm_exec *e) {
    return e->fixed.device && tm_device_get_caps(e->fixed.device)->traits.own_processors;
}

tm_status tm_exec_twice_room(tm_exec *e, const tm_plan *plan) {
    uint64_t most = 1, piece = has_processors(e) ? TM_EXEC_TWICE_PIECE : 0;
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (!plan_is_disk(plan->op[i].engine)) most = tm_max_u64(most, updated_bytes(plan, i));
    if (most <= e->caller.twice.room) return TM_OK;
    tm_free(e->caller.twice.before);
    e->caller.twice.room = 0;
    e->caller.twice.before = tm_malloc(most + piece);
    if (!e->caller.twice.before) return tm_nomem(most + piece);
    e->caller.twice.room = most;
    return TM_OK;
}

void tm_exec_twice(tm_exec *e, bool on, void (*name)(void *ctx, const tm_op *op, char *buf, size_t cap), void *ctx) {
    e->caller.twice.on = on && e->caller.twice.before != NULL;
    e->caller.twice.name = name;
    e->caller.twice.ctx = ctx;
}

/* To the side, or back. */
static void move_updated(tm_exec *e, const tm_plan *plan, uint32_t op, bool back) {
    TM_ASSERT(e->caller.twice.before && e->caller.twice.on);
    char *at = e->caller.twice.before;
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++) {
        const struct plan_touch *t = &plan->touch[i];
        if (t->access != TM_USE_UPDATE) continue;
        char *frame = exec_at(e, t->address);
        memcpy(back ? frame : at, back ? at : frame, t->bytes);
        at += t->bytes;
    }
}

static uint64_t hash_of_written(const tm_exec *e, const tm_plan *plan, uint32_t op) {
    uint64_t hash = 0;
    uint32_t end = plan->first_touch[op + 1];
    for (uint32_t i = plan->first_touch[op]; i < end; i++) {
        const struct plan_touch *t = &plan->touch[i];
        if (is_compared(plan, t, i + 1 == end)) hash = XXH3_64bits_withSeed(exec_at(e, t->address), t->bytes, hash);
    }
    return hash;
}

static tm_status results_differ(tm_exec *e, const tm_op *op) {
    char name[96] = "an operation";
    if (e->caller.twice.name) e->caller.twice.name(e->caller.twice.ctx, op, name, sizeof name);
    return tm_fail(
        TM_ECORRUPT,
        "%s was computed twice from the same bytes and gave two results: the processor or the memory of this "
        "machine errs; go on from the last commit on another one",
        name);
}

/* A bit of the last tensor that it wrote, for tests: of two-byte values the lowest of the exponent. */
void exec_flip(tm_exec *e, const tm_plan *plan, uint32_t op) {
    for (uint32_t end = plan->first_touch[op + 1], i = end; i-- > plan->first_touch[op];) {
        if (!is_compared(plan, &plan->touch[i], i + 1 == end)) continue;
        if (tm_fault_hit("flip_result", NULL)) ((char *)exec_at(e, plan->touch[i].address))[1] ^= 1;
        return;
    }
}

/* ---- on a device with processors of its own, whose arena the host does not see: by copies ------------------------ */

static tm_status carry_frame(tm_exec *e, tm_device_way way, char *host, uint64_t address, uint64_t bytes) {
    TM_ASSERT(address >= TM_DEVICE_BASE && bytes > 0);
    tm_event event = {0};
    const tm_device_transfer t = {.way = way, .host = host, .offset = address - TM_DEVICE_BASE, .bytes = bytes};
    TM_TRY(tm_device_copy(e->fixed.device, &t, &event));
    return tm_event_wait(e->fixed.device, &event);
}

static tm_status carry_updated(tm_exec *e, const tm_plan *plan, uint32_t op, tm_device_way way) {
    char *at = e->caller.twice.before;
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++) {
        const struct plan_touch *t = &plan->touch[i];
        if (t->access != TM_USE_UPDATE) continue;
        TM_TRY(carry_frame(e, way, at, t->address, t->bytes));
        at += t->bytes;
    }
    return TM_OK;
}

static tm_status hash_frame(tm_exec *e, const struct plan_touch *t, uint64_t *hash) {
    char *piece = e->caller.twice.before + e->caller.twice.room;
    for (uint64_t at = 0, n; at < t->bytes; at += n) {
        n = tm_min_u64(TM_EXEC_TWICE_PIECE, t->bytes - at);
        TM_TRY(carry_frame(e, TM_DEVICE_OUT, piece, t->address + at, n));
        *hash = XXH3_64bits_withSeed(piece, n, *hash);
    }
    return TM_OK;
}

static tm_status hash_written(tm_exec *e, const tm_plan *plan, uint32_t op, uint64_t *hash) {
    uint32_t end = plan->first_touch[op + 1];
    *hash = 0;
    for (uint32_t i = plan->first_touch[op]; i < end; i++)
        if (is_compared(plan, &plan->touch[i], i + 1 == end)) TM_TRY(hash_frame(e, &plan->touch[i], hash));
    return TM_OK;
}

/* As exec_flip. */
static tm_status flip_there(tm_exec *e, const tm_plan *plan, uint32_t op) {
    char *piece = e->caller.twice.before + e->caller.twice.room;
    for (uint32_t end = plan->first_touch[op + 1], i = end; i-- > plan->first_touch[op];) {
        const struct plan_touch *t = &plan->touch[i];
        if (!is_compared(plan, t, i + 1 == end)) continue;
        if (!tm_fault_hit("flip_result", NULL)) return TM_OK;
        uint64_t n = tm_min_u64(TM_EXEC_TWICE_PIECE, t->bytes);
        TM_TRY(carry_frame(e, TM_DEVICE_OUT, piece, t->address, n));
        piece[1] ^= 1;
        return carry_frame(e, TM_DEVICE_IN, piece, t->address, n);
    }
    return TM_OK;
}

static tm_status run_handler(tm_exec *e, const tm_plan *plan, uint32_t op, void **operand, tm_op_fn fn, void *ctx) {
    (void)e;
    return fn(ctx, &plan->op[op].op, operand);
}

bool exec_is_apart(const tm_exec *e, const tm_plan *plan, uint32_t op) {
    return has_processors(e) && exec_is_device(e, plan, op);
}

tm_status exec_twice_apart(tm_exec *e, const tm_plan *plan, uint32_t op, tm_op_fn fn, void *ctx) {
    uint64_t first, again;
    TM_ASSERT(updated_bytes(plan, op) <= e->caller.twice.room);
    TM_TRY(carry_updated(e, plan, op, TM_DEVICE_OUT));
    TM_TRY(exec_on_device(e, plan, op, run_handler, fn, ctx));
    TM_TRY(flip_there(e, plan, op));
    TM_TRY(hash_written(e, plan, op, &first));
    TM_TRY(carry_updated(e, plan, op, TM_DEVICE_IN));
    TM_TRY(exec_on_device(e, plan, op, run_handler, fn, ctx));
    TM_TRY(hash_written(e, plan, op, &again));
    return first == again ? TM_OK : results_differ(e, &plan->op[op].op);
}

/* ---- on memory that the host sees ------------------------------------------------------------------------------- */

tm_status exec_twice(tm_exec *e, const tm_plan *plan, uint32_t op, void **operand, tm_op_fn fn, void *ctx) {
    const tm_op *o = &plan->op[op].op;
    TM_ASSERT(updated_bytes(plan, op) <= e->caller.twice.room);
    move_updated(e, plan, op, false);
    TM_TRY(fn(ctx, o, operand));
    exec_flip(e, plan, op);
    uint64_t first = hash_of_written(e, plan, op);
    move_updated(e, plan, op, true);
    TM_TRY(fn(ctx, o, operand));
    return hash_of_written(e, plan, op) == first ? TM_OK : results_differ(e, o);
}
