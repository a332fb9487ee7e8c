/* Random legal orders (tests): one thread draws what starts or completes next among all that may. */
#include "offload/exec/exec_internal.h"

static uint32_t draw_below(tm_exec *e, uint32_t n) {
    TM_ASSERT(n > 0);
    uint32_t r[4];
    tm_philox(e->fixed.seed, 0, e->caller.draws++, r);
    return r[0] % n;
}

static uint32_t take_any(tm_exec *e, exec_run *r, tm_heap32 *h) {
    uint32_t i = draw_below(e, h->n), op = h->item[i];
    h->item[i] = h->item[--h->n]; /* order inside does not matter here: every take is random */
    exec_took(r, op);
    return op;
}

static tm_status move_now(tm_exec *e, exec_run *r, uint32_t op) {
    TM_ASSERT(plan_is_disk(r->plan->op[op].engine));
    tm_io_req *got[EXEC_DEPTH];
    unsigned n = 0;
    bool finished;
    TM_TRY(exec_disk_start(e, &(transfer){.run = r, .op = op}, &finished));
    if (finished) return TM_OK;
    while (n == 0) TM_TRY(tm_io_wait(store_io(e->fixed.store), got, 1, &n, true));
    TM_TRY(exec_disk_finish(e, got[0]->user));
    exec_count(e, r, op, got[0]->done);
    return TM_OK;
}

/* `which`: of the ready ones, lane by lane. */
static tm_status start_transfer(tm_exec *e, exec_run *r, uint32_t which) {
    pending *q = &e->disk.pending[e->disk.n_pending];
    TM_ASSERT(e->disk.n_pending < EXEC_DEPTH);
    tm_heap32 *lane = r->disk;
    for (; which >= lane->n; lane++) which -= lane->n;
    *q = (pending){.run = r, .op = take_any(e, r, lane), .moved = draw_below(e, 2) == 0};
    e->disk.n_pending++;
    return q->moved ? move_now(e, q->run, q->op) : TM_OK;
}

static tm_status complete_transfer(tm_exec *e, uint32_t i) {
    pending q = e->disk.pending[i];
    TM_ASSERT(i < e->disk.n_pending);
    e->disk.pending[i] = e->disk.pending[--e->disk.n_pending];
    if (!q.moved) TM_TRY(move_now(e, q.run, q.op));
    (void)exec_complete(e, q.run, q.op);
    return TM_OK;
}

tm_status exec_random_step(tm_exec *e, tm_op_fn fn, void *ctx) {
    exec_run *disks[] = {e->runs.older, e->runs.now, e->runs.dropping ? NULL : e->runs.ahead};
    uint32_t cpu = fn ? e->runs.now->cpu.n : 0, n = cpu, room = e->disk.n_pending < EXEC_DEPTH,
             comm = exec_comm_is_ready(e);
    uint32_t copies = fn ? e->runs.now->copy[0].n + e->runs.now->copy[1].n : 0;
    for (size_t i = 0; i < TM_COUNT(disks); i++) n += disks[i] && room ? exec_disk_ready(e, disks[i]) : 0;
    TM_ASSERT(n + e->disk.n_pending + comm + copies > 0);
    uint32_t which = draw_below(e, n + e->disk.n_pending + comm + copies);
    if (which >= n + e->disk.n_pending + comm) {
        int way = which - (n + e->disk.n_pending + comm) >= e->runs.now->copy[0].n;
        return exec_copy_now(e, e->runs.now, take_any(e, e->runs.now, &e->runs.now->copy[way]));
    }
    if (which == n + e->disk.n_pending) return exec_random_comm(e);
    if (which >= n) return complete_transfer(e, which - n);
    if (which < cpu) {
        uint32_t op = take_any(e, e->runs.now, &e->runs.now->cpu);
        TM_TRY(exec_cpu(e, e->runs.now, op, fn, ctx));
        (void)exec_complete(e, e->runs.now, op);
        return TM_OK;
    }
    which -= cpu;
    for (size_t i = 0; i < TM_COUNT(disks); i++) {
        uint32_t have = disks[i] ? exec_disk_ready(e, disks[i]) : 0;
        if (which < have) return start_transfer(e, disks[i], which);
        which -= have;
    }
    return TM_OK;
}
