/* What is ready, and what becomes ready: the executor's order. An operation is in the heap of whoever takes it: the
 * calling thread, the disk thread (one heap a lane, so that a slow path holds up only what lies on it), the line of
 * communication operations. */
#include "offload/exec/exec_internal.h"

/* ---- one operation is done ----------------------------------------------------------------------------------- */

void exec_fail(tm_exec *e, tm_status status) {
    if (e->status == TM_OK) {
        e->status = status;
        e->error = *tm_error_get();
    }
    tm_error_clear();
}

static tm_heap32 *queue_of(const tm_exec *e, exec_run *r, uint32_t op) {
    uint8_t engine = r->plan->op[op].engine;
    if (plan_is_disk(engine)) return &r->disk[exec_lane(e, r, op)];
    if (exec_is_issued(e, r->plan, op)) return &r->device;
    if (engine == TM_ENGINE_COPY_IN || engine == TM_ENGINE_COPY_OUT) return &r->copy[engine == TM_ENGINE_COPY_OUT];
    return engine == TM_ENGINE_COMM ? &r->comm : &r->cpu;
}

bool exec_ready(tm_exec *e, exec_run *r, uint32_t op) {
    bool disk = plan_is_disk(r->plan->op[op].engine);
    if (e->sealing && r->plan->op[op].engine == TM_ENGINE_DISK_WRITE && e->n_seal < EXEC_SEALS) {
        e->seal[e->n_seal++] = (transfer){r, op};
        return false;
    }
    tm_heap32_push(queue_of(e, r, op), op);
    return disk;
}

bool exec_complete(tm_exec *e, exec_run *r, uint32_t op) {
    const tm_plan_op *o = &r->plan->op[op];
    bool disk = false, issued = r->done[op] == OP_ISSUED;
    r->done[op] = OP_DONE;
    r->left--;
    if (plan_is_disk(o->engine))
        r->disk_left--;
    else
        r->cpu_left--;
    for (uint32_t i = 0; i < o->n_succ; i++) {
        uint32_t s = r->plan->succ[o->first_succ + i];
        if (issued && exec_is_issued(e, r->plan, s)) continue; /* told when this one was issued */
        if (--r->pred[s] == 0) disk |= exec_ready(e, r, s);
    }
    exec_pump_copies(e);
    exec_pump_device(e);
    exec_run *after = r == e->now ? e->ahead : r == e->older ? e->now : NULL;
    if (!after || !e->link) return disk;
    uint32_t n;
    const uint32_t *to = tm_link_successors(e->link, op, &n);
    for (uint32_t i = 0; i < n; i++)
        if (--after->pred[to[i]] == 0) disk |= exec_ready(e, after, to[i]);
    return disk;
}
