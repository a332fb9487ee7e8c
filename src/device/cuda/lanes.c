/* Streams, what is under way on them, and completions. A lane's thread waits for the driver's events in order: a failed
 * context fails every wait, so that each tm_event completes exactly once whatever happens. (The driver's own callbacks
 * would not be called then.) */
#include "device/cuda/cuda_device.h"

static cuda_device *own(tm_device *d) {
    return d->own;
}

/* ---- completion ------------------------------------------------------------------------------------------------ */

/* For who waits: the error of the first failure, which is pending on this thread. Under the lock. */
static void keep_error(cuda_device *c) {
    if (c->error.code == TM_OK) c->error = *tm_error_get();
}

/* Under the lock, which is dropped for a callback. From `complete` on the event is the caller's. */
static void complete(cuda_device *c, tm_event *e) {
    void (*done)(tm_event *) = e->done;
    if (e->status != TM_OK) keep_error(c);
    e->complete = true;
    pthread_cond_broadcast(&c->done);
    if (done) {
        pthread_mutex_unlock(&c->lock);
        done(e);
        pthread_mutex_lock(&c->lock);
    }
    tm_error_clear();
}

static void finish(lane *l, flight *f, tm_status rc) {
    tm_event *e = f->event;
    uint64_t now = tm_now_ns();
    e->status = rc;
    e->start_ns = tm_max_u64(f->submitted_ns, l->last_end_ns);
    e->end_ns = l->last_end_ns = now;
    l->items++;
    l->bytes += f->bytes;
    l->ns += e->end_ns - e->start_ns;
    if (rc == TM_OK && f->nonfinite) *f->nonfinite += *f->counted;
}

static void *lane_main(void *arg) {
    lane *l = arg;
    cuda_device *c = l->c;
    (void)c->v->context_use(c->context);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (l->n == 0 && !c->quit) pthread_cond_wait(&c->work, &c->lock);
        if (l->n == 0) break;
        flight f = l->ring[l->head];
        pthread_mutex_unlock(&c->lock);
        tm_status rc = cuda_check(c->v, c->v->event_wait(f.after), "waiting for the device");
        pthread_mutex_lock(&c->lock);
        l->head = (l->head + 1) % TM_DEVICE_DEPTH;
        l->n--;
        finish(l, &f, rc);
        complete(c, f.event);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static tm_status too_many(void) {
    return tm_fail(TM_EBUG, "cuda: more than %d under way on a stream", TM_DEVICE_DEPTH);
}

tm_status cuda_take_off(lane *l, const flight *f) {
    cuda_device *c = l->c;
    if (l->n == TM_DEVICE_DEPTH) return too_many();
    uint32_t at = (l->head + l->n) % TM_DEVICE_DEPTH;
    TM_TRY(cuda_check(c->v, c->v->event_record(l->events[at], l->stream), "recording an event"));
    l->ring[at] = *f;
    l->ring[at].after = l->events[at];
    l->ring[at].submitted_ns = tm_now_ns();
    l->n++;
    pthread_cond_broadcast(&c->work);
    return TM_OK;
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

/* Under the lock, so that the order of the stream is that of the completions. */
static tm_status start_copy(cuda_device *c, const tm_device_transfer *t, tm_event *e) {
    lane *l = &c->lane[t->way];
    CUdeviceptr at = c->arena + t->offset;
    if (l->n == TM_DEVICE_DEPTH) return too_many();
    TM_TRY(cuda_check(c->v, c->v->context_use(c->context), "entering the context"));
    CUresult rc = t->way == TM_DEVICE_IN ? c->v->copy_in(at, t->host, t->bytes, l->stream)
                                         : c->v->copy_out(t->host, at, t->bytes, l->stream);
    TM_TRY(cuda_check(c->v, rc, t->way == TM_DEVICE_IN ? "copying to the device" : "copying from the device"));
    tm_status taken = cuda_take_off(l, &(flight){.event = e, .bytes = t->bytes});
    if (taken != TM_OK) (void)c->v->stream_wait(l->stream); /* nobody else would wait for it */
    return taken;
}

tm_status cuda_submit_copy(tm_device *d, const tm_device_transfer *t, tm_event *e) {
    cuda_device *c = own(d);
    pthread_mutex_lock(&c->lock);
    tm_status rc = start_copy(c, t, e);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

tm_status cuda_submit_op(tm_device *d, const tm_device_op *op, tm_event *e) {
    cuda_device *c = own(d);
    tm_status rc = TM_OK;
    pthread_mutex_lock(&c->lock);
    if (c->n_ops + c->launching + c->lane[STREAM_OPS].n >= TM_DEVICE_DEPTH)
        rc = too_many();
    else
        c->ops[(c->op_head + c->n_ops++) % TM_DEVICE_DEPTH] = (pending_op){*op, e};
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static tm_status launch_op(cuda_device *c, const tm_device_op *op, uint32_t slot, flight *f) {
    c->q.status = TM_OK;
    c->nonfinite = NULL;
    TM_TRY(op->fn(op->ctx));
    TM_TRY(c->q.status);
    if (!c->nonfinite) return TM_OK;
    f->nonfinite = c->nonfinite;
    f->counted = &c->counted[slot];
    return cuda_check(c->v,
                      c->v->copy_out(&c->counted[slot], c->counter, sizeof *c->counted, c->lane[STREAM_OPS].stream),
                      "reading a counter");
}

/* One that failed to launch completes here, where its error is known, after those before it and after what it did
 * launch: its frames are its until then. */
static void fail_op(cuda_device *c, tm_event *e, tm_status rc) {
    lane *l = &c->lane[STREAM_OPS];
    while (l->n > 0) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
    (void)c->v->stream_wait(l->stream); /* a failed context fails this too, and nothing runs then */
    pthread_mutex_lock(&c->lock);
    e->status = rc;
    e->start_ns = e->end_ns = tm_now_ns();
    complete(c, e);
}

static void run_op(cuda_device *c, const pending_op *p) {
    flight f = {.event = p->event};
    lane *l = &c->lane[STREAM_OPS];
    uint32_t slot = (l->head + l->n) % TM_DEVICE_DEPTH; /* of what it counts: free, since cuda_submit_op left room */
    c->launching = true;
    pthread_mutex_unlock(&c->lock);
    tm_status rc = launch_op(c, &p->op, slot, &f);
    pthread_mutex_lock(&c->lock);
    if (rc == TM_OK) rc = cuda_take_off(l, &f);
    c->operations++;
    if (rc != TM_OK) fail_op(c, p->event, rc);
    c->launching = false;
    pthread_cond_broadcast(&c->done);
}

static void *launcher_main(void *arg) {
    cuda_device *c = arg;
    (void)c->v->context_use(c->context);
    (void)cuda_use_queue(&c->q);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->n_ops == 0 && !c->quit) pthread_cond_wait(&c->work, &c->lock);
        if (c->n_ops == 0) break;
        pending_op p = c->ops[c->op_head];
        c->op_head = (c->op_head + 1) % TM_DEVICE_DEPTH;
        c->n_ops--;
        run_op(c, &p);
    }
    pthread_mutex_unlock(&c->lock);
    (void)cuda_use_queue(NULL);
    return NULL;
}

/* ---- waiting, numbers ------------------------------------------------------------------------------------------ */

bool cuda_query(tm_device *d, const tm_event *e) {
    cuda_device *c = own(d);
    pthread_mutex_lock(&c->lock);
    bool is = e->complete;
    pthread_mutex_unlock(&c->lock);
    return is;
}

void cuda_wait(tm_device *d, const tm_event *e) {
    cuda_device *c = own(d);
    pthread_mutex_lock(&c->lock);
    while (!e->complete) pthread_cond_wait(&c->done, &c->lock);
    if (e->status != TM_OK) tm_error_set(&c->error);
    pthread_mutex_unlock(&c->lock);
}

void cuda_stats(tm_device *d, tm_device_stats *out) {
    cuda_device *c = own(d);
    pthread_mutex_lock(&c->lock);
    for (int w = 0; w < TM_DEVICE_WAYS; w++) {
        out->copies[w] = c->lane[w].items;
        out->copied_bytes[w] = c->lane[w].bytes;
        out->copy_ns[w] = c->lane[w].ns;
    }
    out->operations = c->operations;
    pthread_mutex_unlock(&c->lock);
}

/* ---- open and close -------------------------------------------------------------------------------------------- */

static tm_status open_lane(cuda_device *c, lane *l) {
    l->c = c;
    TM_TRY(cuda_check(c->v, c->v->stream_create(&l->stream, CU_STREAM_NON_BLOCKING), "making a stream"));
    for (int i = 0; i < TM_DEVICE_DEPTH; i++)
        TM_TRY(cuda_check(c->v, c->v->event_create(&l->events[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
                          "making an event"));
    return TM_OK;
}

static tm_status start(pthread_t *thread, bool *started, void *(*main)(void *), void *ctx) {
    tm_status rc = tm_thread_start(thread, main, ctx, "cuda: a device's thread");
    *started = rc == TM_OK;
    return rc;
}

tm_status cuda_lanes_open(cuda_device *c) {
    for (int i = 0; i < LANES; i++) TM_TRY(open_lane(c, &c->lane[i]));
    return TM_OK;
}

tm_status cuda_lanes_start(cuda_device *c) {
    for (int i = 0; i < LANES; i++) TM_TRY(start(&c->lane[i].thread, &c->lane[i].started, lane_main, &c->lane[i]));
    return start(&c->launcher, &c->launcher_started, launcher_main, c);
}

static void close_lane(cuda_device *c, lane *l) {
    if (l->started) pthread_join(l->thread, NULL);
    for (int i = 0; i < TM_DEVICE_DEPTH; i++)
        if (l->events[i]) (void)c->v->event_destroy(l->events[i]);
    if (l->stream) (void)c->v->stream_destroy(l->stream);
}

void cuda_lanes_idle(cuda_device *c) {
    while (c->n_ops > 0 || c->launching) pthread_cond_wait(&c->done, &c->lock);
}

void cuda_lanes_close(cuda_device *c) {
    pthread_mutex_lock(&c->lock);
    cuda_lanes_idle(c);
    c->quit = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    if (c->launcher_started) pthread_join(c->launcher, NULL);
    for (int i = 0; i < LANES; i++) close_lane(c, &c->lane[i]);
}
