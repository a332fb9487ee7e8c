/* The calling thread: takes the ready CPU operation of the lowest index, runs the handler, seals the writes that this
 * made ready, waits for the others where there is none. */
#include "offload/exec/exec_internal.h"

#include <string.h>

tm_status exec_compute(tm_exec *e, const tm_plan *plan, uint32_t op, void **operand, tm_op_fn fn, void *ctx) {
    tm_status rc = fn(ctx, &plan->op[op].op, operand);
    exec_flip(e, plan, op);
    return rc;
}

tm_status exec_cpu(tm_exec *e, exec_run *r, uint32_t op, tm_op_fn fn, void *ctx) {
    const tm_plan_op *o = &r->plan->op[op];
    TM_ASSERT((o->engine == TM_ENGINE_CPU || o->op.tier == TM_TIER_DEVICE) && o->n_operands <= e->caller.cap_operands);
    if (e->fixed.stub_compute) return TM_OK;
    for (uint32_t i = 0; i < o->n_operands; i++)
        e->caller.operand[i] = exec_at(e, r->plan->operand[o->first_operand + i]);
    if (e->caller.twice.on && exec_is_apart(e, r->plan, op)) return exec_twice_apart(e, r->plan, op, fn, ctx);
    return exec_on_device(e, r->plan, op, e->caller.twice.on ? exec_twice : exec_compute, fn, ctx);
}

/* What the CPU is waiting for: the oldest operation of another engine that is not done. */
static uint8_t blocking_engine(exec_run *r) {
    while (r->oldest_disk < r->plan->n_op &&
           (r->state[r->oldest_disk] == EXEC_OP_DONE || r->plan->op[r->oldest_disk].engine == TM_ENGINE_CPU))
        r->oldest_disk++;
    return r->oldest_disk < r->plan->n_op ? r->plan->op[r->oldest_disk].engine : (uint8_t)TM_ENGINE_DISK_WRITE;
}

static void wait_for_disk(tm_exec *e, exec_run *r) {
    uint64_t t0 = tm_now_ns();
    uint8_t engine = blocking_engine(e->runs.older ? e->runs.older : r);
    bool computes = e->streams.n_issued > 0;
    pthread_cond_wait(&e->cpu_wake, &e->lock);
    uint64_t ns = tm_now_ns() - t0;
    if (computes) {
        e->stats.compute_ns += ns;
        r->stats.compute_ns += ns;
        return;
    }
    bool read = engine == TM_ENGINE_DISK_READ, comm = engine == TM_ENGINE_COMM;
    if (engine == TM_ENGINE_COPY_IN || engine == TM_ENGINE_COPY_OUT) {
        r->stats.wait_copy_ns += ns;
        return;
    }
    *(comm ? &e->stats.wait_comm_ns : read ? &e->stats.wait_read_ns : &e->stats.wait_write_ns) += ns;
    *(comm ? &r->stats.wait_comm_ns : read ? &r->stats.wait_read_ns : &r->stats.wait_write_ns) += ns;
}

/* Writes that the operation has made ready: their checksums come first, while the bytes are in the
 * cache. Being ready, they have nothing to overwrite on disk that someone still reads. */
static bool seal_writes(tm_exec *e) {
    transfer list[EXEC_SEALS];
    uint32_t n = e->runs.n_seal;
    TM_ASSERT(n <= EXEC_SEALS);
    memcpy(list, e->runs.seal, n * sizeof *list);
    e->runs.n_seal = 0;
    if (n == 0) return false;
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < n && !e->fixed.stub_disk; i++) {
        const tm_plan_op *o = &list[i].run->plan->op[list[i].op];
        store_seal(
            e->fixed.store,
            &(store_target){.plan = list[i].run->plan, .object = o->object, .temp_checksum = e->disk.temp_checksum},
            e->fixed.slab + o->address, true);
    }
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < n; i++) exec_sealed(e, list[i].run, list[i].op);
    return true;
}

static void compute_one(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx) {
    TM_ASSERT(!exec_on_disk_thread(e) && !e->runs.sealing && e->runs.n_seal == 0);
    uint32_t op = exec_take(r, &r->cpu);
    bool disk = false;
    pthread_mutex_unlock(&e->lock);
    uint64_t t0 = tm_now_ns();
    tm_status rc = exec_cpu(e, r, op, fn, ctx);
    pthread_mutex_lock(&e->lock);
    e->runs.sealing = true;
    if (rc != TM_OK)
        exec_fail(e, rc);
    else
        disk = exec_complete(e, r, op);
    e->runs.sealing = false;
    disk |= seal_writes(e);
    uint64_t t1 = tm_now_ns();
    e->stats.compute_ns += t1 - t0;
    r->stats.compute_ns += t1 - t0;
    exec_note_span(r, op, (exec_span){t0, t1});
    if (disk && e->fixed.store) tm_io_wake(store_io(e->fixed.store));
}

/* Until the CPU operations are done, or, where nothing was announced, everything is. */
static bool unfinished(const tm_exec *e, const exec_run *r) {
    if (e->result.status != TM_OK) return false;
    return r->cpu_left > 0 || exec_trails(e->runs.older) || (!e->runs.ahead && (e->caller.next_plan || r->left > 0));
}

void exec_threaded(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx) {
    TM_ASSERT(!e->fixed.seed && r == e->runs.now);
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->disk_wake);
    if (e->fixed.store) tm_io_wake(store_io(e->fixed.store));
    while (unfinished(e, r)) {
        tm_status rc = exec_turn_over(e);
        exec_pump_comm(e);
        exec_pump_copies(e);
        exec_pump_device(e);
        if (rc != TM_OK)
            exec_fail(e, rc);
        else if (r->cpu.n > 0)
            compute_one(e, r, fn, ctx);
        else if (unfinished(e, r) && !(r->cpu_left == 0 && !exec_trails(e->runs.older) && e->caller.next_plan))
            wait_for_disk(e, r);
    }
    (void)exec_turn_over(e);
    if (e->result.status != TM_OK) {
        exec_park_device(e);
        exec_park_disk(e);
    }
    pthread_mutex_unlock(&e->lock);
}

void exec_in_random_order(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx) {
    TM_ASSERT(e->fixed.seed && r == e->runs.now);
    while (unfinished(e, r)) {
        pthread_mutex_lock(&e->lock);
        tm_status rc = exec_turn_over(e);
        pthread_mutex_unlock(&e->lock);
        if (rc == TM_OK && unfinished(e, r) &&
            !(r->cpu_left == 0 && !exec_trails(e->runs.older) && e->caller.next_plan))
            rc = exec_random_step(e, fn, ctx);
        if (rc != TM_OK) exec_fail(e, rc);
    }
    pthread_mutex_lock(&e->lock);
    (void)exec_turn_over(e);
    pthread_mutex_unlock(&e->lock);
}
