/* null: attempts complete at once and move nothing. What is left is what this folder costs. */
#include "io/io_internal.h"

typedef struct null_ctx {
    io_queue settled;
} null_ctx;

static tm_status null_open(io_layer *l) {
    l->ctx = tm_calloc(1, sizeof(null_ctx));
    return l->ctx ? TM_OK : tm_nomem(sizeof(null_ctx));
}

static void null_close(io_layer *l) {
    tm_free(l->ctx);
}

static void null_start(io_layer *l, io_piece *p) {
    null_ctx *c = l->ctx;
    p->res = (int)p->n;
    io_queue_push(&c->settled, p);
}

static void null_flush(io_layer *l) {
    (void)l;
}

static tm_status null_reap(io_layer *l, bool block, io_queue *settled) {
    null_ctx *c = l->ctx;
    if (block && !c->settled.head) io_sleep(l->io);
    io_queue_move(settled, &c->settled);
    return TM_OK;
}

const io_engine io_engine_null = {.name = "null",
                                  .open = null_open,
                                  .close = null_close,
                                  .start = null_start,
                                  .flush = null_flush,
                                  .reap = null_reap};
