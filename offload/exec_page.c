/* Checksums of pages, on the calling thread and next to the work on the same bytes: a page is checked right before the
 * operation that uses it first, which then finds it in the cache, and computed right after the operation that wrote it.
 * The disk thread then takes almost no time from the compute threads. */
#include "offload/exec_internal.h"

static uint32_t slot_of(const tm_plan *plan, uint32_t object) {
    return object & TM_TEMP_BIT ? plan->layout->n + (object & ~TM_TEMP_BIT) : object;
}

static store_target target_of(const tm_exec *e, const transfer *x) {
    return (store_target){
        .plan = x->run->plan, .object = x->run->plan->op[x->op].object, .temp_checksum = e->temp_checksum};
}

tm_status exec_page_room(tm_exec *e, const tm_plan *plan) {
    uint32_t objects = plan->layout->n + plan->n_temp, most = 1;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        uint32_t touches = plan->first_touch[i + 1] - plan->first_touch[i];
        if (touches > most) most = touches;
    }
    if (objects > e->cap_landed) {
        transfer *bigger = tm_realloc(e->landed, sizeof *bigger * objects);
        if (!bigger) return tm_nomem(sizeof *bigger * objects);
        for (uint32_t i = e->cap_landed; i < objects; i++) bigger[i] = (transfer){0};
        e->landed = bigger;
        e->cap_landed = objects;
    }
    if (most > e->cap_check) {
        transfer *bigger = tm_realloc(e->check, sizeof *bigger * most);
        if (!bigger) return tm_nomem(sizeof *bigger * most);
        e->check = bigger;
        e->cap_check = most;
    }
    return TM_OK;
}

void exec_page_forget(tm_exec *e, const exec_run *r) {
    for (uint32_t i = 0; i < e->cap_landed; i++)
        if (e->landed[i].run == r) e->landed[i] = (transfer){0};
}

void exec_page_landed(tm_exec *e, exec_run *r, uint32_t op) {
    e->landed[slot_of(r->plan, r->plan->op[op].object)] = (transfer){r, op};
}

uint32_t exec_page_unchecked(tm_exec *e, exec_run *r, uint32_t op) {
    const tm_plan *plan = r->plan;
    uint32_t n = 0;
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++) {
        transfer *x = &e->landed[slot_of(plan, plan->touch[i].object)];
        if (x->run != r) continue;
        e->check[n++] = *x;
        *x = (transfer){0};
    }
    return n;
}

tm_status exec_page_check(tm_exec *e, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const transfer *x = &e->check[i];
        store_target t = target_of(e, x);
        TM_TRY(store_check_read(e->store, &t, e->slab + x->run->plan->op[x->op].address, NULL));
    }
    return TM_OK;
}

void exec_page_seal(tm_exec *e, const transfer *list, uint32_t n) {
    for (uint32_t i = 0; i < n && e->store && !e->stub_disk; i++) {
        store_target t = target_of(e, &list[i]);
        store_seal(e->store, &t, e->slab + list[i].run->plan->op[list[i].op].address);
    }
}
