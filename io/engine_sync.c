/* The sync engine: attempts are carried out when they are set going, by the caller. The oracle for the other engines.
 */
#include "io/io_internal.h"

typedef struct sync_ctx {
    io_queue started, settled;
} sync_ctx;

static tm_status sync_open(tm_io *io) {
    io->ctx = tm_calloc(1, sizeof(sync_ctx));
    return io->ctx ? TM_OK : tm_nomem(sizeof(sync_ctx));
}

static void sync_close(tm_io *io) {
    tm_free(io->ctx);
}

static void sync_start(tm_io *io, io_piece *p) {
    sync_ctx *c = io->ctx;
    io_queue_push(&c->started, p);
}

static void sync_flush(tm_io *io) {
    sync_ctx *c = io->ctx;
    for (io_piece *p; (p = io_queue_pop(&c->started));) {
        io_execute(p);
        io_queue_push(&c->settled, p);
    }
}

static tm_status sync_reap(tm_io *io, bool block, io_queue *settled) {
    sync_ctx *c = io->ctx;
    if (block && !c->settled.head) io_sleep(io);
    io_queue_move(settled, &c->settled);
    return TM_OK;
}

const io_engine io_engine_sync = {.name = "sync",
                                  .open = sync_open,
                                  .close = sync_close,
                                  .start = sync_start,
                                  .flush = sync_flush,
                                  .reap = sync_reap};
