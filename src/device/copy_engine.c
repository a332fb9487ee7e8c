/* A copy engine: one thread a direction carries out what was submitted, in order, at a rate.
 *
 *   submit -> [ ring of COPY_DEPTH ] -> thread: wait for the piece's turn, move it -> event, callback
 *
 * The rate is kept by the clock: piece after piece may not end before its bytes could have passed. A stream that was
 * idle has no credit. */
#include "device/device_internal.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum { COPY_DEPTH = 256 };

typedef struct copy_item {
    tm_device_transfer t;
    tm_event *event;
} copy_item;

typedef struct copy_stream {
    copy_engine *engine;
    pthread_t thread;
    bool started;
    copy_item ring[COPY_DEPTH];
    uint32_t head, n;
    uint64_t copies, bytes, ns;
} copy_stream;

struct copy_engine {
    pthread_mutex_t lock;
    pthread_cond_t work, room; /* something to do; something is done */
    bool quit;
    uint64_t bytes_per_second;
    copy_move_fn move;
    void *ctx;
    copy_stream stream[TM_DEVICE_WAYS];
};

static void sleep_until(uint64_t ns) {
    uint64_t now = tm_now_ns();
    if (now >= ns) return;
    struct timespec t = {.tv_sec = (time_t)((ns - now) / 1000000000u), .tv_nsec = (long)((ns - now) % 1000000000u)};
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

/* The last piece of a copy ends when all its bytes have had their time. */
static void carry_out(copy_engine *c, const copy_item *item) {
    tm_device_transfer piece = item->t;
    tm_event *e = item->event;
    e->start_ns = tm_now_ns();
    for (uint64_t at = 0; e->status == TM_OK && at < item->t.bytes; at += piece.bytes) {
        piece.host = (char *)item->t.host + at;
        piece.offset = item->t.offset + at;
        piece.bytes = tm_min_u64(COPY_PIECE, item->t.bytes - at);
        e->status = c->move(c->ctx, &piece);
        if (c->bytes_per_second)
            sleep_until(e->start_ns + (uint64_t)((double)(at + piece.bytes) / (double)c->bytes_per_second * 1e9));
    }
    e->end_ns = tm_now_ns();
}

static void *stream_main(void *arg) {
    copy_stream *s = arg;
    copy_engine *c = s->engine;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (s->n == 0 && !c->quit) pthread_cond_wait(&c->work, &c->lock);
        if (s->n == 0) break;
        copy_item item = s->ring[s->head];
        pthread_mutex_unlock(&c->lock);
        carry_out(c, &item);
        pthread_mutex_lock(&c->lock);
        s->head = (s->head + 1) % COPY_DEPTH;
        s->n--;
        s->copies++;
        s->bytes += item.t.bytes;
        s->ns += item.event->end_ns - item.event->start_ns;
        void (*done)(tm_event *) = item.event->done;
        item.event->complete = true; /* from here on it is the caller's */
        pthread_cond_broadcast(&c->room);
        if (!done) continue;
        pthread_mutex_unlock(&c->lock);
        done(item.event);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

tm_status copy_engine_open(copy_engine **out, uint64_t bytes_per_second, copy_move_fn move, void *ctx) {
    copy_engine *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->room, NULL);
    c->bytes_per_second = bytes_per_second;
    c->move = move;
    c->ctx = ctx;
    for (int w = 0; w < TM_DEVICE_WAYS; w++) {
        copy_stream *s = &c->stream[w];
        s->engine = c;
        int err = pthread_create(&s->thread, NULL, stream_main, s);
        s->started = err == 0;
        if (!err) continue;
        copy_engine_close(c);
        return tm_fail_sys(TM_EIO, err, "pthread_create", "", -1, "cannot start a copy engine's thread");
    }
    *out = c;
    return TM_OK;
}

void copy_engine_close(copy_engine *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (int w = 0; w < TM_DEVICE_WAYS; w++)
        if (c->stream[w].started) pthread_join(c->stream[w].thread, NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->room);
    tm_free(c);
}

tm_status copy_engine_submit(copy_engine *c, const tm_device_transfer *t, tm_event *e) {
    copy_stream *s = &c->stream[t->way];
    pthread_mutex_lock(&c->lock);
    while (s->n == COPY_DEPTH) pthread_cond_wait(&c->room, &c->lock);
    s->ring[(s->head + s->n++) % COPY_DEPTH] = (copy_item){*t, e};
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    return TM_OK;
}

bool copy_engine_query(copy_engine *c, const tm_event *e) {
    pthread_mutex_lock(&c->lock);
    bool complete = e->complete;
    pthread_mutex_unlock(&c->lock);
    return complete;
}

void copy_engine_wait(copy_engine *c, const tm_event *e) {
    pthread_mutex_lock(&c->lock);
    while (!e->complete) pthread_cond_wait(&c->room, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void copy_engine_stats(copy_engine *c, tm_device_stats *out) {
    pthread_mutex_lock(&c->lock);
    for (int w = 0; w < TM_DEVICE_WAYS; w++) {
        out->copies[w] = c->stream[w].copies;
        out->copied_bytes[w] = c->stream[w].bytes;
        out->copy_ns[w] = c->stream[w].ns;
    }
    pthread_mutex_unlock(&c->lock);
}
