/* The sync engine: attempts are carried out when they are set going, by the caller. The oracle for the other engines.
 */
#include "io/io_internal.h"

typedef struct sync_ctx {
    io_queue started, settled;
} sync_ctx;

static tm_status sync_open(io_layer *l) {
    l->ctx = tm_calloc(1, sizeof(sync_ctx));
    return l->ctx ? TM_OK : tm_nomem(sizeof(sync_ctx));
}

static void sync_close(io_layer *l) {
    tm_free(l->ctx);
}

static void sync_start(io_layer *l, io_piece *p) {
    sync_ctx *c = l->ctx;
    io_queue_push(&c->started, p);
}

static void sync_flush(io_layer *l) {
    sync_ctx *c = l->ctx;
    for (io_piece *p; (p = io_queue_pop(&c->started));) {
        io_execute(p);
        io_queue_push(&c->settled, p);
    }
}

static tm_status sync_reap(io_layer *l, bool block, io_queue *settled) {
    sync_ctx *c = l->ctx;
    sync_flush(l);
    if (block && !c->settled.head) io_sleep(l->io);
    io_queue_move(settled, &c->settled);
    return TM_OK;
}

const io_engine io_engine_sync = {.name = "sync",
                                  .open = sync_open,
                                  .close = sync_close,
                                  .start = sync_start,
                                  .flush = sync_flush,
                                  .reap = sync_reap};
