/* The disk thread: takes ready disk operations, each lane's by itself, in index order and of the older run first, while
 * fewer than EXEC_DEPTH of the lane are in flight; reaps completions. So a path that stands still holds up what lies on
 * it and what waits for that, and nothing else. */
#include "offload/exec/exec_internal.h"

#include <errno.h>

void exec_count(tm_exec *e, exec_run *r, uint32_t op, uint64_t bytes) {
    const tm_plan_op *o = &r->plan->op[op];
    tm_kind kind = tm_plan_object(r->plan, o->object)->kind;
    TM_ASSERT(plan_is_disk(o->engine) && kind < TM_KINDS);
    bool read = o->engine == TM_ENGINE_DISK_READ;
    bytes = tm_round_up(bytes, TM_FRAME_ALIGN); /* where a file that is not ours ends: as planned, with the padding */
    (read ? e->stats.read_bytes : e->stats.write_bytes)[kind] += bytes;
    (read ? r->stats.read_bytes : r->stats.write_bytes)[kind] += bytes;
}

static store_target target_of(const tm_exec *e, const exec_run *r, uint32_t op) {
    return (store_target){.plan = r->plan, .object = r->plan->op[op].object, .temp_checksum = e->disk.temp_checksum};
}

static flight *free_flight(tm_exec *e, uint32_t lane) {
    flight *f = e->disk.flight + (size_t)lane * EXEC_DEPTH, *end = f + EXEC_DEPTH;
    while (f < end && f->busy) f++;
    TM_ASSERT(f < end);
    return f;
}

bool exec_moves(const tm_exec *e, const exec_run *r, uint32_t op) {
    const tm_plan_op *o = &r->plan->op[op];
    const tm_exec_moves *m = &e->fixed.moves;
    if (!m->fn || o->object & TM_TEMP_BIT || tm_plan_object(r->plan, o->object)->kind != TM_KIND_KV_CACHE) return true;
    return m->fn(m->ctx, o->object, o->engine == TM_ENGINE_DISK_WRITE);
}

tm_status exec_disk_start(tm_exec *e, const transfer *x, bool *finished) {
    const tm_plan_op *o = &x->run->plan->op[x->op];
    TM_ASSERT(plan_is_disk(o->engine) && o->address % TM_FRAME_ALIGN == 0 && o->address < e->fixed.slab_bytes);
    store_target t = target_of(e, x->run, x->op);
    *finished = e->fixed.stub_disk || !exec_moves(e, x->run, x->op);
    if (*finished) return TM_OK;
    flight *f = free_flight(e, exec_lane(e, x->run, x->op));
    f->req = (tm_io_req){.user = f};
    f->op = x->op;
    f->run = x->run;
    if (o->engine == TM_ENGINE_DISK_READ)
        TM_TRY(store_prepare_read(e->fixed.store, &t, e->fixed.slab + o->address, &f->req));
    else if (x->sealed)
        store_aim_write(e->fixed.store, &t, e->fixed.slab + o->address, &f->req);
    else
        store_prepare_write(e->fixed.store, &t, e->fixed.slab + o->address, &f->req);
    tm_io_req *one[] = {&f->req};
    TM_TRY(tm_io_submit(store_io(e->fixed.store), one, 1));
    f->busy = true;
    return TM_OK;
}

tm_status exec_disk_finish(tm_exec *e, flight *f) {
    TM_ASSERT(f->busy);
    const tm_plan_op *o = &f->run->plan->op[f->op];
    store_target t = target_of(e, f->run, f->op);
    f->busy = false;
    if (f->req.status != TM_OK) return tm_io_req_fail(&f->req);
    if (o->engine == TM_ENGINE_DISK_READ)
        TM_TRY(store_check_read(e->fixed.store, &t, e->fixed.slab + o->address, &f->req));
    return TM_OK;
}

static bool run_busy(const tm_exec *e, const exec_run *r) {
    if (!r || !r->open) return false;
    bool wanted = e->result.status == TM_OK && !(e->runs.dropping && r == e->runs.ahead);
    return r->in_flight > 0 || (wanted && r->disk_left > 0);
}

static bool disk_busy(const tm_exec *e) {
    return run_busy(e, e->runs.older) || run_busy(e, e->runs.now) || run_busy(e, e->runs.ahead);
}

void exec_park_disk(tm_exec *e) {
    if (!e->disk.has_thread) return;
    while (disk_busy(e) || !e->disk.parked) {
        if (e->fixed.store) tm_io_wake(store_io(e->fixed.store));
        pthread_cond_wait(&e->cpu_wake, &e->lock);
    }
}

static uint32_t take_lane(tm_exec *e, exec_run *r, uint32_t lane, transfer *batch) {
    TM_ASSERT(lane < e->fixed.lanes && e->disk.in_flight[lane] <= EXEC_DEPTH);
    uint32_t n = 0;
    while (r->disk[lane].n > 0 && e->disk.in_flight[lane] < EXEC_DEPTH) {
        uint32_t op = r->disk[lane].item[0];
        batch[n++] = (transfer){.run = r, .op = op, .sealed = r->state[op] == EXEC_OP_SEALED};
        (void)exec_take(r, &r->disk[lane]);
        e->disk.in_flight[lane]++;
        r->in_flight++;
    }
    return n;
}

/* The disk thread of which executor this thread is. */
static _Thread_local const tm_exec *disk_thread_of;

bool exec_on_disk_thread(const tm_exec *e) {
    return disk_thread_of == e;
}

static uint32_t take_disk(tm_exec *e, transfer *batch) {
    exec_run *from[] = {e->runs.older, e->runs.now, e->runs.dropping ? NULL : e->runs.ahead};
    uint32_t n = 0;
    for (size_t i = 0; i < TM_COUNT(from) && e->result.status == TM_OK; i++)
        for (uint32_t lane = 0; from[i] && lane < e->fixed.lanes; lane++) n += take_lane(e, from[i], lane, batch + n);
    TM_ASSERT(exec_on_disk_thread(e) && n <= EXEC_LANES * EXEC_DEPTH);
    return n;
}

/* The transfer is over: its successors may become ready, or the run has failed. */
static void transfer_landed(tm_exec *e, const transfer *x, uint64_t bytes, tm_status rc, exec_span at) {
    uint32_t lane = exec_lane(e, x->run, x->op);
    pthread_mutex_lock(&e->lock);
    TM_ASSERT(x->run->in_flight > 0 && e->disk.in_flight[lane] > 0);
    x->run->in_flight--;
    e->disk.in_flight[lane]--;
    if (rc == TM_OK) exec_count(e, x->run, x->op, bytes);
    exec_finish(e, x->run, x->op, rc, at);
    pthread_mutex_unlock(&e->lock);
}

/* The engine cannot go on: nothing more will come of what it has. */
static void lose_engine(tm_exec *e, tm_status rc) {
    TM_ASSERT(rc != TM_OK);
    pthread_mutex_lock(&e->lock);
    exec_fail(e, rc);
    e->result.lost = true;
    e->runs.run[0].in_flight = e->runs.run[1].in_flight = 0;
    pthread_cond_signal(&e->cpu_wake);
    pthread_mutex_unlock(&e->lock);
}

/* `block`: sleeps until something has completed or someone calls tm_io_wake. */
static void reap_transfers(tm_exec *e, bool block) {
    TM_ASSERT(exec_on_disk_thread(e));
    tm_io_req *got[EXEC_DEPTH];
    unsigned n = 0;
    tm_status rc = tm_io_wait(store_io(e->fixed.store), got, EXEC_DEPTH, &n, block);
    if (rc != TM_OK) {
        lose_engine(e, rc);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        flight *f = got[i]->user;
        const transfer x = {.run = f->run, .op = f->op};
        const exec_span at = {f->req.submit_ns, f->req.complete_ns};
        rc = exec_disk_finish(e, f);
        transfer_landed(e, &x, f->req.done, rc, at);
    }
}

static void *disk_main(void *arg) {
    tm_exec *e = arg;
    disk_thread_of = e;
    transfer batch[EXEC_LANES * EXEC_DEPTH];
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->disk.quit && !disk_busy(e)) {
            e->disk.parked = true;
            pthread_cond_signal(&e->cpu_wake);
            pthread_cond_wait(&e->disk_wake, &e->lock);
        }
        e->disk.parked = false;
        bool quit = e->disk.quit;
        uint32_t n = quit ? 0 : take_disk(e, batch);
        pthread_mutex_unlock(&e->lock);
        if (quit) break;
        uint32_t at_once = 0;
        for (uint32_t i = 0; i < n; i++) {
            bool finished = false;
            tm_status rc = exec_disk_start(e, &batch[i], &finished);
            at_once += rc != TM_OK || finished;
            if (rc != TM_OK || finished) transfer_landed(e, &batch[i], 0, rc, (exec_span){0});
        }
        reap_transfers(e, at_once == 0);
    }
    if (e->fixed.store) tm_io_unregister(store_io(e->fixed.store)); /* the slab goes, the store may stay */
    return NULL;
}

tm_status exec_disk_thread(tm_exec *e) {
    TM_ASSERT(!e->disk.has_thread && e->fixed.store);
    tm_status rc = tm_thread_start(&e->disk.thread, disk_main, e, "the disk thread");
    e->disk.has_thread = rc == TM_OK;
    return rc;
}
