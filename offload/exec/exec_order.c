/* What is ready, and what becomes ready: the executor's order, and the only file that changes an operation's state. An
 * operation that is ready is in the heap of whoever takes it: the calling thread, the disk thread (one heap a lane, so
 * that a slow path holds up only what lies on it), the device's streams, the line of communication operations. */
#include "offload/exec/exec_internal.h"

/* By state: the states that may follow, a bit each. */
static const uint8_t may_follow[] = {
    [EXEC_OP_WAITS] = 1 << EXEC_OP_READY | 1 << EXEC_OP_SEALING,
    [EXEC_OP_READY] = 1 << EXEC_OP_RUNS | 1 << EXEC_OP_ISSUED,
    [EXEC_OP_SEALING] = 1 << EXEC_OP_SEALED,
    [EXEC_OP_SEALED] = 1 << EXEC_OP_RUNS,
    [EXEC_OP_RUNS] = 1 << EXEC_OP_DONE,
    [EXEC_OP_ISSUED] = 1 << EXEC_OP_DONE,
    [EXEC_OP_DONE] = 0,
};

static void set_state(exec_run *r, uint32_t op, exec_op_state to) {
    TM_ASSERT(op < r->plan->n_op);
    TM_ASSERT(may_follow[r->state[op]] & 1 << to);
    r->state[op] = (uint8_t)to;
}

void exec_fail(tm_exec *e, tm_status status) {
    TM_ASSERT(status != TM_OK);
    if (e->result.status == TM_OK) {
        e->result.status = status;
        e->result.error = *tm_error_get();
    }
    tm_error_clear();
}

static tm_heap32 *queue_of(const tm_exec *e, exec_run *r, uint32_t op) {
    uint8_t engine = r->plan->op[op].engine;
    TM_ASSERT(engine < TM_ENGINES);
    if (plan_is_disk(engine)) return &r->disk[exec_lane(e, r, op)];
    if (exec_is_issued(e, r->plan, op)) return &r->device;
    if (engine == TM_ENGINE_COPY_IN || engine == TM_ENGINE_COPY_OUT) return &r->copy[engine == TM_ENGINE_COPY_OUT];
    return engine == TM_ENGINE_COMM ? &r->comm : &r->cpu;
}

/* Nothing is left that it waits for. True: the disk thread may take it. */
static bool make_ready(tm_exec *e, exec_run *r, uint32_t op) {
    uint8_t engine = r->plan->op[op].engine;
    TM_ASSERT(r->pred[op] == 0);
    bool sealed = e->runs.sealing && engine == TM_ENGINE_DISK_WRITE && exec_moves(e, r, op);
    if (sealed && e->runs.n_seal < EXEC_SEALS) {
        set_state(r, op, EXEC_OP_SEALING);
        e->runs.seal[e->runs.n_seal++] = (transfer){.run = r, .op = op};
        return false;
    }
    set_state(r, op, EXEC_OP_READY);
    tm_heap32_push(queue_of(e, r, op), op);
    return plan_is_disk(engine);
}

/* One of its predecessors is done. */
static bool count_down(tm_exec *e, exec_run *r, uint32_t op) {
    TM_ASSERT(r->pred[op] > 0);
    return --r->pred[op] == 0 && make_ready(e, r, op);
}

void exec_start_run(tm_exec *e, exec_run *r) {
    TM_ASSERT(!r->open);
    for (uint32_t i = 0; i < r->plan->n_op; i++)
        if (r->pred[i] == 0) (void)make_ready(e, r, i);
}

void exec_took(exec_run *r, uint32_t op) {
    set_state(r, op, EXEC_OP_RUNS);
}

uint32_t exec_take(exec_run *r, tm_heap32 *from) {
    uint32_t op = tm_heap32_pop(from);
    exec_took(r, op);
    return op;
}

void exec_sealed(tm_exec *e, exec_run *r, uint32_t op) {
    TM_ASSERT(r->plan->op[op].engine == TM_ENGINE_DISK_WRITE);
    set_state(r, op, EXEC_OP_SEALED);
    tm_heap32_push(&r->disk[exec_lane(e, r, op)], op);
}

void exec_issued(tm_exec *e, exec_run *r, uint32_t op) {
    const tm_plan_op *o = &r->plan->op[op];
    set_state(r, op, EXEC_OP_ISSUED);
    for (uint32_t i = 0; i < o->n_succ; i++) {
        uint32_t s = r->plan->succ[o->first_succ + i];
        if (exec_is_issued(e, r->plan, s)) (void)count_down(e, r, s);
    }
}

/* Those of its own run; what is on the same stream was told when it was issued. */
static bool tell_successors(tm_exec *e, exec_run *r, uint32_t op, bool was_issued) {
    const tm_plan_op *o = &r->plan->op[op];
    bool disk = false;
    for (uint32_t i = 0; i < o->n_succ; i++) {
        uint32_t s = r->plan->succ[o->first_succ + i];
        if (was_issued && exec_is_issued(e, r->plan, s)) continue;
        disk |= count_down(e, r, s);
    }
    return disk;
}

/* Those of the run after it, where that one is open. */
static bool tell_run_after(tm_exec *e, const exec_run *r, uint32_t op) {
    exec_run *after = r == e->runs.now ? e->runs.ahead : r == e->runs.older ? e->runs.now : NULL;
    uint32_t n;
    bool disk = false;
    if (!after || !e->runs.link) return false;
    TM_ASSERT(after->open);
    const uint32_t *to = tm_link_successors(e->runs.link, op, &n);
    for (uint32_t i = 0; i < n; i++) disk |= count_down(e, after, to[i]);
    return disk;
}

bool exec_complete(tm_exec *e, exec_run *r, uint32_t op) {
    uint32_t *left = plan_is_disk(r->plan->op[op].engine) ? &r->disk_left : &r->cpu_left;
    bool was_issued = r->state[op] == EXEC_OP_ISSUED;
    set_state(r, op, EXEC_OP_DONE);
    TM_ASSERT(r->left > 0 && *left > 0);
    r->left--;
    --*left;
    bool disk = tell_successors(e, r, op, was_issued);
    exec_pump_copies(e);
    exec_pump_device(e);
    return tell_run_after(e, r, op) || disk;
}

void exec_finish(tm_exec *e, exec_run *r, uint32_t op, tm_status status, exec_span at) {
    bool on_disk_thread = exec_on_disk_thread(e), disk = false;
    exec_note_span(r, op, at);
    if (status != TM_OK)
        exec_fail(e, status);
    else
        disk = exec_complete(e, r, op);
    if (on_disk_thread) exec_pump_comm(e); /* what was read may be sent while the CPU is at something else */
    pthread_cond_broadcast(&e->cpu_wake);
    /* still under the lock: without it the last operation may be over, and all of it closed */
    if (disk && !on_disk_thread && e->fixed.store) tm_io_wake(store_io(e->fixed.store));
}
