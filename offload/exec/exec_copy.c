/* Copies between the tiers: handed to the device in index order, EXEC_COPIES under way a direction; their events
 * complete them, on a thread of the device's. They belong to the run that computes, like CPU operations; copies to the
 * device of the run after it begin beside it, as the link allows. */
#include "offload/exec/exec_internal.h"

static tm_device_transfer transfer_of(const tm_exec *e, const exec_run *r, uint32_t op) {
    const tm_plan_op *o = &r->plan->op[op];
    const uint64_t *at = r->plan->operand + o->first_operand;
    bool out = o->engine == TM_ENGINE_COPY_OUT;
    TM_ASSERT((out || o->engine == TM_ENGINE_COPY_IN) && at[out ? 0 : 1] >= TM_DEVICE_BASE);
    return (tm_device_transfer){.way = out ? TM_DEVICE_OUT : TM_DEVICE_IN,
                                .host = e->fixed.slab + at[out ? 1 : 0],
                                .offset = at[out ? 0 : 1] - TM_DEVICE_BASE,
                                .bytes = (uint64_t)o->op.arg[1] << 32 | o->op.arg[0]};
}

static tm_status copy_failed(const tm_event *event) {
    return tm_fail(event->status, "a copy between host and device failed");
}

/* On the device's thread. */
static void copy_ended(tm_event *event) {
    copy_flight *f = event->ctx;
    tm_exec *e = f->exec;
    pthread_mutex_lock(&e->lock);
    TM_ASSERT(f->busy && e->streams.n_copy[f->way] > 0);
    f->run->stats.copy_ns += event->end_ns - event->start_ns;
    f->busy = false;
    e->streams.n_copy[f->way]--;
    if (event->status == TM_OK) f->run->stats.copied_bytes[f->way] += f->bytes;
    exec_finish(e, f->run, f->op, event->status == TM_OK ? TM_OK : copy_failed(event),
                (exec_span){event->start_ns, event->end_ns});
    pthread_mutex_unlock(&e->lock);
}

static void submit_copy(tm_exec *e, exec_run *r, int way) {
    copy_flight *f = e->streams.copy_flight[way];
    TM_ASSERT(e->streams.n_copy[way] < EXEC_COPIES);
    while (f->busy) f++;
    uint32_t op = exec_take(r, &r->copy[way]);
    tm_device_transfer t = transfer_of(e, r, op);
    *f = (copy_flight){.event = {.done = copy_ended, .ctx = f},
                       .exec = e,
                       .run = r,
                       .op = op,
                       .way = way,
                       .bytes = t.bytes,
                       .busy = true};
    e->streams.n_copy[way]++;
    tm_status rc = tm_device_copy(e->fixed.device, &t, &f->event);
    if (rc == TM_OK) return;
    exec_fail(e, rc);
    f->busy = false;
    e->streams.n_copy[way]--;
}

static void pump_copies_of(tm_exec *e, exec_run *r, int way) {
    TM_ASSERT(way >= 0 && way < TM_DEVICE_WAYS);
    while (e->result.status == TM_OK && r && r->open && r->copy[way].n > 0 && e->streams.n_copy[way] < EXEC_COPIES)
        submit_copy(e, r, way);
}

void exec_pump_copies(tm_exec *e) {
    if (e->fixed.seed) return;
    pump_copies_of(e, e->runs.now, TM_DEVICE_OUT);
    pump_copies_of(e, e->runs.now, TM_DEVICE_IN);
    if (!e->runs.dropping) pump_copies_of(e, e->runs.ahead, TM_DEVICE_IN);
}

/* Random orders: from start to end. */
tm_status exec_copy_now(tm_exec *e, exec_run *r, uint32_t op) {
    TM_ASSERT(e->fixed.seed && e->fixed.device);
    tm_event event = {0};
    tm_device_transfer t = transfer_of(e, r, op);
    TM_TRY(tm_device_copy(e->fixed.device, &t, &event));
    if (tm_event_wait(e->fixed.device, &event) != TM_OK) return copy_failed(&event);
    r->stats.copied_bytes[t.way] += t.bytes;
    (void)exec_complete(e, r, op);
    return TM_OK;
}
