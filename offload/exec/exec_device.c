/* Operations in the device's arena. They are handed to the device's stream in index order, EXEC_ISSUED at most, and
 * complete by their events, on a thread of the device's, where their handlers run too.
 *
 *   ready: all predecessors are done, or on the same stream: which is in order, so that they end before this one begins
 *
 * With a seed, and while operations are done twice, they are the calling thread's, one at a time from start to end. */
#include "offload/exec/exec_internal.h"

bool exec_is_device(const tm_exec *e, const tm_plan *plan, uint32_t op) {
    return e->fixed.device && plan->info.device_bytes > 0 && plan->op[op].op.tier == TM_TIER_DEVICE &&
           (plan->op[op].engine == TM_ENGINE_CPU || plan->op[op].engine == TM_ENGINE_DEVICE);
}

bool exec_is_issued(const tm_exec *e, const tm_plan *plan, uint32_t op) {
    return !e->fixed.seed && !e->caller.twice.on && exec_is_device(e, plan, op);
}

void exec_device_free(tm_exec *e) {
    TM_ASSERT(e->streams.n_issued == 0);
    for (int i = 0; i < EXEC_ISSUED; i++) {
        tm_free(e->streams.issued[i].operand);
        tm_free(e->streams.issued[i].frame);
        e->streams.issued[i].operand = NULL;
        e->streams.issued[i].frame = NULL;
    }
    tm_free(e->caller.frame);
    e->caller.frame = NULL;
    e->caller.cap_frames = e->streams.cap_issued = 0;
}

tm_status exec_device_room(tm_exec *e, const tm_plan *plan) {
    uint32_t operands = 1, frames = 1;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        if (!exec_is_device(e, plan, i)) continue;
        operands = (uint32_t)tm_max_u64(operands, plan->op[i].n_operands);
        frames = (uint32_t)tm_max_u64(frames, plan->first_touch[i + 1] - plan->first_touch[i]);
    }
    if (!e->fixed.device || (operands <= e->streams.cap_issued && frames <= e->caller.cap_frames)) return TM_OK;
    operands = (uint32_t)tm_max_u64(operands, e->streams.cap_issued);
    frames = (uint32_t)tm_max_u64(frames, e->caller.cap_frames);
    exec_device_free(e);
    bool ok = (e->caller.frame = tm_malloc(sizeof *e->caller.frame * frames)) != NULL;
    for (int i = 0; ok && i < EXEC_ISSUED; i++) {
        e->streams.issued[i].operand = tm_malloc(sizeof *e->streams.issued[i].operand * operands);
        e->streams.issued[i].frame = tm_malloc(sizeof *e->caller.frame * frames);
        ok = e->streams.issued[i].operand && e->streams.issued[i].frame;
    }
    if (!ok) return tm_nomem(sizeof *e->caller.frame * frames * EXEC_ISSUED);
    e->streams.cap_issued = operands;
    e->caller.cap_frames = frames;
    return TM_OK;
}

static tm_device_op frames_of(const tm_plan *plan, uint32_t op, tm_device_frame *frame) {
    uint32_t first = plan->first_touch[op], n = plan->first_touch[op + 1] - first;
    TM_ASSERT(op < plan->n_op);
    for (uint32_t i = 0; i < n; i++)
        frame[i] = (tm_device_frame){plan->touch[first + i].address - TM_DEVICE_BASE, plan->touch[first + i].bytes};
    return (tm_device_op){.frame = frame, .n = n};
}

static tm_status run_issued(void *ctx) {
    issue *i = ctx;
    const tm_plan *plan = i->run->plan;
    const tm_plan_op *o = &plan->op[i->op];
    if (i->exec->fixed.stub_compute) return TM_OK;
    TM_ASSERT(o->n_operands <= i->exec->streams.cap_issued);
    for (uint32_t k = 0; k < o->n_operands; k++) i->operand[k] = exec_at(i->exec, plan->operand[o->first_operand + k]);
    return exec_compute(i->exec, plan, i->op, i->operand, i->exec->caller.fn, i->exec->caller.fn_ctx);
}

/* Before those that wait for it can go on. Under the lock. */
static void tell_seconds(const issue *i, const tm_event *event) {
    const tm_exec *e = i->exec;
    const tm_plan_op *o = &i->run->plan->op[i->op];
    if (!e->streams.device_op_fn || o->engine != TM_ENGINE_DEVICE || e->fixed.stub_compute) return;
    e->streams.device_op_fn(e->streams.device_op_ctx, &o->op, (double)(event->end_ns - event->start_ns) * 1e-9);
}

/* On the device's thread. */
static void issue_ended(tm_event *event) {
    issue *i = event->ctx;
    tm_exec *e = i->exec;
    pthread_mutex_lock(&e->lock);
    TM_ASSERT(i->busy && e->streams.n_issued > 0);
    i->busy = false;
    e->streams.n_issued--;
    if (event->status == TM_OK) tell_seconds(i, event);
    exec_finish(e, i->run, i->op, event->status, (exec_span){event->start_ns, event->end_ns});
    pthread_mutex_unlock(&e->lock);
}

static void submit_issue(tm_exec *e, exec_run *r) {
    issue *i = e->streams.issued;
    TM_ASSERT(e->streams.n_issued < EXEC_ISSUED);
    while (i->busy) i++;
    i->event = (tm_event){.done = issue_ended, .ctx = i};
    i->exec = e;
    i->run = r;
    i->op = tm_heap32_pop(&r->device);
    i->busy = true;
    tm_device_op d = frames_of(r->plan, i->op, i->frame);
    d.fn = run_issued;
    d.ctx = i;
    e->streams.n_issued++;
    tm_status rc = tm_device_submit(e->fixed.device, &d, &i->event);
    if (rc == TM_OK) {
        exec_issued(e, r, i->op);
        return;
    }
    exec_fail(e, rc);
    i->busy = false;
    e->streams.n_issued--;
}

void exec_pump_device(tm_exec *e) {
    exec_run *r = e->runs.now;
    while (r && r->open && e->result.status == TM_OK && r->device.n > 0 && e->streams.n_issued < EXEC_ISSUED)
        submit_issue(e, r);
}

void exec_park_device(tm_exec *e) {
    while (e->streams.n_copy[0] + e->streams.n_copy[1] + e->streams.n_issued > 0)
        pthread_cond_wait(&e->cpu_wake, &e->lock);
}

/* ---- from start to end --------------------------------------------------------------------------------------- */

typedef struct inside {
    exec_compute_fn fn;
    tm_exec *e;
    const tm_plan *plan;
    uint32_t op;
    tm_op_fn handler;
    void *ctx;
} inside;

static tm_status run_inside(void *ctx) {
    const inside *i = ctx;
    return i->fn(i->e, i->plan, i->op, i->e->caller.operand, i->handler, i->ctx);
}

tm_status exec_on_device(tm_exec *e, const tm_plan *plan, uint32_t op, exec_compute_fn fn, tm_op_fn handler,
                         void *ctx) {
    if (!exec_is_device(e, plan, op)) return fn(e, plan, op, e->caller.operand, handler, ctx);
    tm_device_op d = frames_of(plan, op, e->caller.frame);
    return tm_device_run(e->fixed.device, d.frame, d.n, run_inside, &(inside){fn, e, plan, op, handler, ctx});
}
