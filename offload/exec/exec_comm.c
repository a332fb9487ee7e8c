/* Communication operations: submitted in plan order, which all ranks share, as soon as they are ready; they complete
 * on a thread of the caller's. */
#include "offload/exec/exec_internal.h"

static bool head_is_ready(const tm_exec *e, const exec_run *r) {
    return r && r->open && r->comm.n > 0 && r->comm.item[0] == r->next_comm && e->line.n_comm < EXEC_COMM;
}

/* The next communication operation from `op` on. */
uint32_t exec_next_comm(const tm_plan *plan, uint32_t op) {
    while (op < plan->n_op && plan->op[op].engine != TM_ENGINE_COMM) op++;
    return op;
}

static tm_status submit_comm(tm_exec *e, comm_flight *f) {
    const tm_plan *plan = f->run->plan;
    const tm_plan_op *o = &plan->op[f->op];
    void *operand[EXEC_COMM_OPERANDS];
    TM_ASSERT(o->n_operands <= EXEC_COMM_OPERANDS && e->fixed.comm.submit);
    for (uint32_t i = 0; i < o->n_operands; i++) operand[i] = exec_at(e, plan->operand[o->first_operand + i]);
    return e->fixed.comm.submit(e->fixed.comm.ctx, &o->op, operand, f);
}

static comm_flight *free_flight(tm_exec *e) {
    comm_flight *f = e->line.comm_flight;
    TM_ASSERT(e->line.n_comm < EXEC_COMM);
    while (f->busy) f++;
    return f;
}

/* One thread at a time submits, without the lock; who comes meanwhile leaves it to that one. */
void exec_pump_comm(tm_exec *e) {
    if (e->line.pumping) return;
    e->line.pumping = true;
    while (e->result.status == TM_OK && head_is_ready(e, e->runs.now)) {
        exec_run *r = e->runs.now;
        comm_flight *f = free_flight(e);
        *f = (comm_flight){.run = r, .op = exec_take(r, &r->comm), .busy = true, .from_ns = tm_now_ns()};
        r->next_comm = exec_next_comm(r->plan, f->op + 1);
        e->line.n_comm++;
        pthread_mutex_unlock(&e->lock);
        tm_status rc = submit_comm(e, f);
        pthread_mutex_lock(&e->lock);
        if (rc == TM_OK) continue;
        exec_fail(e, rc);
        f->busy = false;
        e->line.n_comm--;
    }
    e->line.pumping = false;
}

void tm_exec_comm_done(tm_exec *e, void *token, tm_status status) {
    comm_flight *f = token;
    pthread_mutex_lock(&e->lock);
    TM_ASSERT(f->busy && e->line.n_comm > 0);
    uint64_t now = tm_now_ns();
    e->stats.comm_ns += now - f->from_ns;
    f->run->stats.comm_ns += now - f->from_ns;
    f->busy = false;
    e->line.n_comm--;
    exec_finish(e, f->run, f->op, status, (exec_span){f->from_ns, now});
    pthread_mutex_unlock(&e->lock);
}

/* Random orders: the head of the line, start to end. Blocking is safe: no operation before it waits for another rank's
 * operations after it. Without the lock. */
tm_status exec_random_comm(tm_exec *e) {
    TM_ASSERT(e->fixed.seed);
    pthread_mutex_lock(&e->lock);
    exec_pump_comm(e);
    while (e->line.n_comm > 0) pthread_cond_wait(&e->cpu_wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return TM_OK;
}

bool exec_comm_is_ready(const tm_exec *e) {
    return head_is_ready(e, e->runs.now);
}
