/* error: chosen attempts fail and never reach the layer below. */
#include "io/io_internal.h"

#include <errno.h>

typedef struct error_ctx {
    double at, rate, sticky, err, seed, op[3]; /* op: 0 leaves that operation alone */
    uint64_t count;
    io_queue settled;
} error_ctx;

static tm_status error_open(io_layer *l) {
    error_ctx *c = l->ctx = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    *c = (error_ctx){.err = EIO, .op = {1, 1, 1}};
    const io_option table[] = {
        {"at", &c->at, 1e15, false},
        {"rate", &c->rate, 1, false},
        {"sticky", &c->sticky, 1, false},
        {"errno", &c->err, 0, true},
        {"seed", &c->seed, 9e15, false},
        {"reads", &c->op[TM_IO_READ], 1, false},
        {"writes", &c->op[TM_IO_WRITE], 1, false},
        {"syncs", &c->op[TM_IO_SYNC], 1, false},
    };
    return io_layer_take(l, table, TM_COUNT(table), 0);
}

static bool attempt_fails(error_ctx *c, const io_piece *p) {
    TM_ASSERT(p->req->op <= TM_IO_SYNC);
    if (c->op[p->req->op] == 0) return false;
    double number = (double)++c->count;
    if (c->at > 0 && (c->sticky > 0 ? number >= c->at : number == c->at)) return true;
    uint32_t r[4];
    tm_philox((uint64_t)c->seed, 1, c->count, r);
    return r[0] * 0x1p-32 < c->rate;
}

static void error_start(io_layer *l, io_piece *p) {
    error_ctx *c = l->ctx;
    if (attempt_fails(c, p)) {
        p->res = -(int)c->err;
        io_queue_push(&c->settled, p);
    } else {
        l->lower->engine->start(l->lower, p);
    }
}

static tm_status error_reap(io_layer *l, bool block, io_queue *settled) {
    error_ctx *c = l->ctx;
    bool some = c->settled.head != NULL;
    io_queue_move(settled, &c->settled);
    return l->lower->engine->reap(l->lower, block && !some, settled);
}

const io_engine io_engine_error = {.name = "error",
                                   .stacks = true,
                                   .open = error_open,
                                   .close = io_layer_close,
                                   .start = error_start,
                                   .flush = io_layer_flush,
                                   .reap = error_reap};
