/* delay: a slower disk. When an attempt may be over is fixed when it starts: latency after the place that its bytes
 * have in a queue of one rate.
 *
 *   start -> below (due is noted) -- reap of the layer below --> not due -- due is past --> settled */
#include "io/io_internal.h"

typedef struct delay_ctx {
    double latency, bps; /* seconds; 0: no limit */
    double lane;         /* the slow one, from 0; -1: all */
    uint64_t free_at;    /* when the imagined disk is through with what it was given */
    unsigned below;
    io_queue not_due;
} delay_ctx;

static tm_status delay_open(io_layer *l) {
    delay_ctx *c = l->ctx = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    c->lane = -1;
    const io_option table[] = {
        {"latency", &c->latency, 60, false}, {"bps", &c->bps, 1e15, false}, {"lane", &c->lane, IO_LANES - 1, false}};
    return io_layer_take(l, table, TM_COUNT(table), sizeof(uint64_t));
}

static uint64_t *due_of(const io_layer *l, const io_piece *p) {
    return io_layer_of(l, p);
}

static void delay_start(io_layer *l, io_piece *p) {
    delay_ctx *c = l->ctx;
    uint64_t now = tm_now_ns();
    *due_of(l, p) = now;
    if (c->lane < 0 || c->lane == p->req->file.lane) {
        c->free_at = tm_max_u64(c->free_at, now);
        if (c->bps > 0) c->free_at += (uint64_t)(p->n / c->bps * 1e9);
        *due_of(l, p) = c->free_at + (uint64_t)(c->latency * 1e9);
    }
    c->below++;
    l->lower->engine->start(l->lower, p);
}

/* Moves what is due; returns when the first of the rest will be (UINT64_MAX: there is no rest). */
static uint64_t release_due(const io_layer *l, delay_ctx *c, io_queue *settled) {
    uint64_t now = tm_now_ns(), next = UINT64_MAX;
    io_queue rest = {NULL, NULL};
    for (io_piece *p; (p = io_queue_pop(&c->not_due));) {
        uint64_t due = *due_of(l, p);
        io_queue_push(due <= now ? settled : &rest, p);
        if (due > now) next = tm_min_u64(next, due);
    }
    c->not_due = rest;
    return next;
}

static void keep_until_due(delay_ctx *c, io_queue *got) {
    for (io_piece *p; (p = io_queue_pop(got)); c->below--) {
        TM_ASSERT(c->below > 0);
        io_queue_push(&c->not_due, p);
    }
}

/* While some are not due the layer below is asked now and then, since its completions end no sleep here. */
static tm_status delay_reap(io_layer *l, bool block, io_queue *settled) {
    const uint64_t now_and_then = 1000 * 1000;
    delay_ctx *c = l->ctx;
    io_queue got = {NULL, NULL};
    for (;;) {
        bool below = block && !c->not_due.head;
        tm_status rc = l->lower->engine->reap(l->lower, below, &got);
        bool woken = below && !got.head;
        keep_until_due(c, &got);
        uint64_t next = release_due(l, c, settled);
        if (rc != TM_OK || !block || settled->head || woken) return rc;
        if (c->below) next = tm_min_u64(next, tm_now_ns() + now_and_then);
        if (next != UINT64_MAX && io_sleep_until(l->io, next)) return TM_OK;
    }
}

const io_engine io_engine_delay = {.name = "delay",
                                   .stacks = true,
                                   .open = delay_open,
                                   .close = io_layer_close,
                                   .start = delay_start,
                                   .flush = io_layer_flush,
                                   .reap = delay_reap};
