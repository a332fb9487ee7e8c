/* The threads engine: a pool that calls pread and pwrite. For machines where io_uring is forbidden.
 *
 *   driver: start -> fresh -- flush --> queue --(lock)--> worker: io_execute -> settled --(lock)--> driver: reap
 */
#include "io/io_internal.h"

#include <signal.h>

typedef struct threads_ctx {
    tm_io *io;
    pthread_mutex_t lock;
    pthread_cond_t work;
    io_queue fresh;          /* the driver's alone */
    io_queue queue, settled; /* under the lock */
    bool stop;
    unsigned n;
    pthread_t *threads;
} threads_ctx;

static void *worker(void *arg) {
    threads_ctx *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        io_piece *p = io_queue_pop(&c->queue);
        if (p) {
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

static void threads_close(tm_io *io) {
    threads_ctx *c = io->ctx;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->n; i++) pthread_join(c->threads[i], NULL);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    tm_free(c->threads);
    tm_free(c);
}

/* Signals are for the program's own threads. */
static int spawn(threads_ctx *c) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = io_fault_errno("thread");
    if (!err) err = pthread_create(&c->threads[c->n], NULL, worker, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!err) c->n++;
    return err;
}

static tm_status threads_open(tm_io *io) {
    threads_ctx *c = tm_calloc(1, sizeof *c);
    pthread_t *threads = tm_calloc(io->threads, sizeof *threads);
    if (!c || !threads) {
        tm_free(c);
        tm_free(threads);
        return tm_nomem(io->threads * sizeof *threads);
    }
    c->io = io;
    c->threads = threads;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    io->ctx = c;
    int err = 0;
    while (c->n < io->threads && !err) err = spawn(c);
    if (c->n > 0) return TM_OK; /* fewer are slower, not wrong */
    threads_close(io);
    return tm_fail_sys(TM_EIO, err, "pthread_create", "", -1, "I/O engine: no thread can be started");
}

static void threads_start(tm_io *io, io_piece *p) {
    threads_ctx *c = io->ctx;
    io_queue_push(&c->fresh, p);
}

static void threads_flush(tm_io *io) {
    threads_ctx *c = io->ctx;
    if (!c->fresh.head) return;
    pthread_mutex_lock(&c->lock);
    io_queue_move(&c->queue, &c->fresh);
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
}

static void take_settled(threads_ctx *c, io_queue *settled) {
    pthread_mutex_lock(&c->lock);
    io_queue_move(settled, &c->settled);
    pthread_mutex_unlock(&c->lock);
}

static tm_status threads_reap(tm_io *io, bool block, io_queue *settled) {
    threads_ctx *c = io->ctx;
    take_settled(c, settled);
    if (!block || settled->head) return TM_OK;
    io_sleep(io); /* a worker's or a caller's write; perhaps one that is already answered */
    take_settled(c, settled);
    return TM_OK;
}

const io_engine io_engine_threads = {.name = "threads",
                                     .open = threads_open,
                                     .close = threads_close,
                                     .start = threads_start,
                                     .flush = threads_flush,
                                     .reap = threads_reap};
