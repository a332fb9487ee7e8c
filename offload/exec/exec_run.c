/* Runs of plans: their memory, how one begins and ends, and how one hands over to the next. */
#include "offload/exec/exec_internal.h"

#include <string.h>

void exec_run_free(exec_run *r) {
    void *all[] = {r->pred,        r->state,        r->cpu.item,     r->disk_op, r->comm.item,
                   r->device.item, r->copy[0].item, r->copy[1].item, r->span};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
    *r = (exec_run){0};
}

tm_status exec_run_room(const tm_exec *e, exec_run *r, const tm_plan *plan) {
    TM_ASSERT(!r->open);
    if (plan->n_op > r->cap_ops) {
        exec_run_free(r);
        r->cap_ops = plan->n_op;
        r->pred = tm_malloc(sizeof *r->pred * r->cap_ops);
        r->state = tm_malloc(r->cap_ops);
        r->cpu.item = tm_malloc(sizeof *r->cpu.item * r->cap_ops);
        r->disk_op = tm_malloc(sizeof *r->disk_op * r->cap_ops);
        r->comm.item = tm_malloc(sizeof *r->comm.item * r->cap_ops);
        uint32_t device = e->fixed.device ? r->cap_ops : 1; /* one, where there is none */
        r->device.item = tm_malloc(sizeof *r->device.item * device);
        for (int w = 0; w < TM_DEVICE_WAYS; w++) r->copy[w].item = tm_malloc(sizeof *r->copy[w].item * device);
        if (!r->device.item || !r->pred || !r->state || !r->cpu.item || !r->disk_op || !r->comm.item ||
            !r->copy[0].item || !r->copy[1].item) {
            r->cap_ops = 0;
            return tm_nomem(sizeof *r->pred * plan->n_op);
        }
    }
    r->cpu.cap = r->comm.cap = r->device.cap = r->copy[0].cap = r->copy[1].cap = r->cap_ops;
    if (e->caller.trace && !r->span) {
        r->span = tm_calloc(r->cap_ops, sizeof *r->span);
        if (!r->span) return tm_nomem(sizeof *r->span * r->cap_ops);
    }
    return TM_OK;
}

/* A heap for each lane, with room for all of that lane's operations. */
static void cut_disk_heaps(const tm_exec *e, exec_run *r) {
    uint32_t count[EXEC_LANES] = {0}, at = 0;
    for (uint32_t i = 0; i < r->plan->n_op; i++)
        if (plan_is_disk(r->plan->op[i].engine)) count[exec_lane(e, r, i)]++;
    for (uint32_t lane = 0; lane < e->fixed.lanes; lane++) {
        r->disk[lane] = (tm_heap32){.item = r->disk_op + at, .cap = count[lane]};
        at += count[lane];
    }
    TM_ASSERT(at <= r->cap_ops);
    r->disk_left = at;
}

uint32_t exec_disk_ready(const tm_exec *e, const exec_run *r) {
    TM_ASSERT(e->fixed.lanes <= EXEC_LANES);
    uint32_t n = 0;
    for (uint32_t lane = 0; lane < e->fixed.lanes; lane++) n += r->disk[lane].n;
    return n;
}

/* Opens a run of `plan`; with `link`, beside `before`, whose operations that are not done yet it waits for. */
void exec_run_begin(tm_exec *e, exec_run *r, const tm_plan *plan, const tm_link *link, const exec_run *before) {
    TM_ASSERT(!r->open && plan->n_op <= r->cap_ops && !link == !before);
    r->plan = plan;
    r->cpu.n = r->comm.n = r->device.n = r->copy[0].n = r->copy[1].n = 0;
    cut_disk_heaps(e, r);
    r->next_comm = exec_next_comm(plan, 0);
    r->left = plan->n_op;
    r->in_flight = r->oldest_disk = 0;
    r->stats = (tm_run_stats){.plan = plan};
    r->began_ns = 0;
    if (plan->n_op) memset(r->state, EXEC_OP_WAITS, plan->n_op); /* an empty plan has no room */
    for (uint32_t i = 0; i < plan->n_op; i++) r->pred[i] = plan->op[i].n_pred;
    r->cpu_left = r->left - r->disk_left;
    for (uint32_t i = 0; link && i < before->plan->n_op; i++) {
        uint32_t n;
        if (before->state[i] == EXEC_OP_DONE) continue;
        const uint32_t *to = tm_link_successors(link, i, &n);
        for (uint32_t k = 0; k < n; k++) r->pred[to[k]]++;
    }
    exec_start_run(e, r);
    r->open = true;
}

/* Everything of `r` is done: those who count are told. On the calling thread, without the lock. */
void exec_run_end(tm_exec *e, exec_run *r) {
    TM_ASSERT(r->open && (r->left == 0 || e->result.status != TM_OK));
    r->open = false;
    if (e->fixed.store) e->stats.checksum_ns = store_checksum_ns(e->fixed.store);
    for (uint32_t i = 0; r->span && i < r->plan->n_op; i++) {
        r->span[i].start -= (double)r->began_ns * 1e-9;
        r->span[i].end -= (double)r->began_ns * 1e-9;
    }
    r->stats.span = r->span;
    if (e->caller.done_fn && e->result.status == TM_OK) e->caller.done_fn(e->caller.done_ctx, &r->stats);
}

static exec_run *other_run(tm_exec *e, const exec_run *r) {
    TM_ASSERT(r == &e->runs.run[0] || r == &e->runs.run[1]);
    return r == &e->runs.run[0] ? &e->runs.run[1] : &e->runs.run[0];
}

/* The older run has come to its end; the announced one may open. Under the lock, which is dropped in between. */
tm_status exec_turn_over(tm_exec *e) {
    if (e->runs.older && e->runs.older->left == 0) {
        exec_run *old = e->runs.older;
        e->runs.older = NULL;
        e->runs.link = NULL;
        pthread_mutex_unlock(&e->lock);
        exec_run_end(e, old);
        pthread_mutex_lock(&e->lock);
    }
    if (e->runs.older || e->runs.ahead || !e->caller.next_plan || e->result.status != TM_OK) return TM_OK;
    exec_run *r = other_run(e, e->runs.now);
    TM_ASSERT(r != e->runs.now && !r->open);
    tm_status rc = exec_run_room(e, r, e->caller.next_plan);
    if (rc != TM_OK) return rc;
    exec_run_begin(e, r, e->caller.next_plan, e->caller.next_link, e->runs.now);
    e->runs.ahead = r;
    e->runs.link = e->caller.next_link;
    e->caller.next_plan = NULL;
    if (exec_disk_ready(e, r) > 0) {
        pthread_cond_signal(&e->disk_wake);
        if (e->fixed.store) tm_io_wake(store_io(e->fixed.store));
    }
    return TM_OK;
}

/* The announced run becomes the one whose CPU operations run. */
void exec_step_over(tm_exec *e) {
    TM_ASSERT(e->runs.now && e->runs.ahead && !e->runs.older);
    pthread_mutex_lock(&e->lock);
    e->runs.older = e->runs.now->left > 0 ? e->runs.now : NULL;
    exec_run *ended = e->runs.older ? NULL : e->runs.now;
    e->runs.now = e->runs.ahead;
    e->runs.ahead = NULL;
    if (!e->runs.older) e->runs.link = NULL;
    pthread_mutex_unlock(&e->lock);
    if (ended && ended->open) exec_run_end(e, ended);
}
