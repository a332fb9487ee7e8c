/* The threads engine: a pool that calls pread and pwrite. For machines where io_uring is forbidden.
 *
 *   driver: start -> fresh -- flush --> queue --(lock)--> worker: io_execute -> settled --(lock)--> driver: reap
 *
 * Each lane has its own workers and its own queue, so that a slow disk holds up only those who work for it. */
#include "io/io_internal.h"

struct threads_ctx;
typedef struct worker {
    struct threads_ctx *c;
    unsigned lane;
    pthread_t thread;
} worker;

typedef struct threads_ctx {
    tm_io *io;
    pthread_mutex_t lock;
    pthread_cond_t work;
    io_queue fresh;                    /* the driver's alone */
    io_queue queue[IO_LANES], settled; /* under the lock */
    bool stop;
    unsigned n;
    worker *workers;
} threads_ctx;

static void *worker_main(void *arg) {
    const worker *w = arg;
    threads_ctx *c = w->c;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        io_piece *p = io_queue_pop(&c->queue[w->lane]);
        if (p) {
            TM_ASSERT(p->req->file.lane == w->lane);
            pthread_mutex_unlock(&c->lock);
            io_execute(p);
            pthread_mutex_lock(&c->lock);
            bool first = !c->settled.head;
            io_queue_push(&c->settled, p);
            if (first) io_rouse(c->io);
        } else if (c->stop) {
            break;
        } else {
            pthread_cond_wait(&c->work, &c->lock);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void threads_close(io_layer *l) {
    threads_ctx *c = l->ctx;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->n; i++) pthread_join(c->workers[i].thread, NULL);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    tm_free(c->workers);
    tm_free(c);
}

static tm_status spawn_worker(threads_ctx *c) {
    TM_ASSERT(c->n < c->io->threads * c->io->n_lanes);
    worker *w = &c->workers[c->n];
    *w = (worker){.c = c, .lane = c->n % c->io->n_lanes};
    tm_status rc = tm_thread_start(&w->thread, worker_main, w, "the I/O engine");
    if (rc == TM_OK) c->n++;
    return rc;
}

static tm_status threads_open(io_layer *l) {
    unsigned wanted = l->io->threads * l->io->n_lanes;
    threads_ctx *c = tm_calloc(1, sizeof *c);
    worker *workers = tm_calloc(wanted, sizeof *workers);
    if (!c || !workers) {
        tm_free(c);
        tm_free(workers);
        return tm_nomem(wanted * sizeof *workers);
    }
    c->io = l->io;
    c->workers = workers;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    l->ctx = c;
    tm_status rc = TM_OK;
    while (c->n < wanted && rc == TM_OK) rc = spawn_worker(c);
    if (rc == TM_OK) return TM_OK;
    if (c->n >= l->io->n_lanes) { /* fewer are slower, not wrong, if each lane has one */
        tm_error_clear();
        return TM_OK;
    }
    threads_close(l);
    return rc;
}

static void threads_start(io_layer *l, io_piece *p) {
    threads_ctx *c = l->ctx;
    TM_ASSERT(p->req->file.lane < l->io->n_lanes);
    io_queue_push(&c->fresh, p);
}

static void threads_flush(io_layer *l) {
    threads_ctx *c = l->ctx;
    if (!c->fresh.head) return;
    pthread_mutex_lock(&c->lock);
    for (io_piece *p; (p = io_queue_pop(&c->fresh));)
        io_queue_push(&c->queue[io_lane_of(l->io, p->req) - l->io->lane], p);
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
}

static void take_settled(threads_ctx *c, io_queue *settled) {
    pthread_mutex_lock(&c->lock);
    io_queue_move(settled, &c->settled);
    pthread_mutex_unlock(&c->lock);
}

static tm_status threads_reap(io_layer *l, bool block, io_queue *settled) {
    threads_ctx *c = l->ctx;
    threads_flush(l);
    take_settled(c, settled);
    if (!block || settled->head) return TM_OK;
    io_sleep(l->io); /* a worker's or a caller's write; perhaps one that is already answered */
    take_settled(c, settled);
    return TM_OK;
}

const io_engine io_engine_threads = {.name = "threads",
                                     .open = threads_open,
                                     .close = threads_close,
                                     .start = threads_start,
                                     .flush = threads_flush,
                                     .reap = threads_reap};
