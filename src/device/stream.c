/* Streams: a thread each that carries out what was submitted to it, in order.
 *
 *   submit -> [ ring of TM_DEVICE_DEPTH ] -> thread: work -> event, callback
 */
#include "device/device_internal.h"

#include <pthread.h>

typedef struct stream {
    stream_set *set;
    int number;
    pthread_t thread;
    bool started;
    stream_item ring[TM_DEVICE_DEPTH];
    uint32_t head, n; /* what is carried out counts until it is complete */
    uint64_t items, bytes, ns;
} stream;

struct stream_set {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* something to do; something is complete */
    bool quit;
    stream_work_fn fn;
    void *ctx;
    tm_error error; /* of the last one that failed and has no callback */
    stream stream[STREAMS];
};

static void carry_out(stream_set *s, const stream_item *item, int number) {
    tm_event *e = item->event;
    e->start_ns = tm_now_ns();
    e->status = s->fn(s->ctx, item, number);
    e->end_ns = tm_now_ns();
}

/* Under the lock, which is dropped for a callback. From `complete` on the event is the caller's. */
static void complete(stream_set *s, tm_event *e) {
    void (*done)(tm_event *) = e->done;
    if (e->status != TM_OK && !done) s->error = *tm_error_get();
    e->complete = true;
    pthread_cond_broadcast(&s->done);
    if (done) {
        pthread_mutex_unlock(&s->lock);
        done(e);
        pthread_mutex_lock(&s->lock);
    }
    tm_error_clear();
}

static void *stream_main(void *arg) {
    stream *t = arg;
    stream_set *s = t->set;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (t->n == 0 && !s->quit) pthread_cond_wait(&s->work, &s->lock);
        if (t->n == 0) break;
        stream_item item = t->ring[t->head];
        pthread_mutex_unlock(&s->lock);
        carry_out(s, &item, t->number);
        pthread_mutex_lock(&s->lock);
        t->head = (t->head + 1) % TM_DEVICE_DEPTH;
        t->n--;
        t->items++;
        t->bytes += item.copy.bytes;
        t->ns += item.event->end_ns - item.event->start_ns;
        complete(s, item.event);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

tm_status streams_open(stream_set **out, stream_work_fn work, void *ctx) {
    stream_set *s = tm_calloc(1, sizeof *s);
    if (!s) return tm_nomem(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, NULL);
    s->fn = work;
    s->ctx = ctx;
    for (int i = 0; i < STREAMS; i++) {
        stream *t = &s->stream[i];
        t->set = s;
        t->number = i;
        tm_status rc = tm_thread_start(&t->thread, stream_main, t, "a device's thread");
        t->started = rc == TM_OK;
        if (t->started) continue;
        streams_close(s);
        return rc;
    }
    *out = s;
    return TM_OK;
}

void streams_close(stream_set *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < STREAMS; i++)
        if (s->stream[i].started) pthread_join(s->stream[i].thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    tm_free(s);
}

tm_status streams_submit(stream_set *s, int number, const stream_item *item) {
    stream *t = &s->stream[number];
    pthread_mutex_lock(&s->lock);
    bool full = t->n == TM_DEVICE_DEPTH;
    if (!full) t->ring[(t->head + t->n++) % TM_DEVICE_DEPTH] = *item;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    return full ? tm_fail(TM_EBUG, "more than %d under way on a device's stream", TM_DEVICE_DEPTH) : TM_OK;
}

bool streams_query(stream_set *s, const tm_event *e) {
    pthread_mutex_lock(&s->lock);
    bool complete = e->complete;
    pthread_mutex_unlock(&s->lock);
    return complete;
}

void streams_wait(stream_set *s, const tm_event *e) {
    pthread_mutex_lock(&s->lock);
    while (!e->complete) pthread_cond_wait(&s->done, &s->lock);
    if (e->status != TM_OK) tm_error_set(&s->error);
    pthread_mutex_unlock(&s->lock);
}

void streams_stats(stream_set *s, tm_device_stats *out) {
    pthread_mutex_lock(&s->lock);
    for (int w = 0; w < TM_DEVICE_WAYS; w++) {
        out->copies[w] = s->stream[w].items;
        out->copied_bytes[w] = s->stream[w].bytes;
        out->copy_ns[w] = s->stream[w].ns;
    }
    out->operations = s->stream[STREAM_OPS].items;
    pthread_mutex_unlock(&s->lock);
}
