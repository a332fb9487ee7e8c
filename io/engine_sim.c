/* sim: what a hostile machine may do, from a seed.
 *
 *   start: a fault is drawn --> before -- some rounds --> the layer below --> after -- some rounds --> settled
 *              '-- fails, nothing moved -----------------------------------------^
 *
 * A round is a flush or a reap. With `reorder` an attempt stays where it is with that probability, so that attempts
 * overtake each other both in being carried out and in being reported. One moves on at least when somebody waits. */
#include "io/io_internal.h"

#include <errno.h>
#include <string.h>

typedef enum sim_fault { SIM_NONE, SIM_SHORT, SIM_FLIP, SIM_MISDIRECT, SIM_SETTLED } sim_fault;

typedef struct sim_state { /* of a piece */
    sim_fault fault;
    uint32_t most; /* SIM_SHORT: bytes that are admitted */
    uint32_t bit;  /* SIM_FLIP */
} sim_state;

typedef struct sim_ctx {
    double seed, reorder, shorten, zero, eintr, eagain, fail, err, lost, flip, misdirect, trash;
    uint64_t draws;
    io_queue before, after;
    unsigned below;
} sim_ctx;

static tm_status sim_open(io_layer *l) {
    sim_ctx *c = l->ctx = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    c->err = EIO;
    const io_option table[] = {
        {"seed", &c->seed, 9e15, false},        {"reorder", &c->reorder, 0.99, false},
        {"shorten", &c->shorten, 1, false},     {"zero", &c->zero, 1, false},
        {"eintr", &c->eintr, 1, false},         {"eagain", &c->eagain, 1, false},
        {"fail", &c->fail, 1, false},           {"errno", &c->err, 0, true},
        {"lost", &c->lost, 1, false},           {"flip", &c->flip, 1, false},
        {"misdirect", &c->misdirect, 1, false}, {"trash", &c->trash, 1, false},
    };
    return io_layer_take(l, table, TM_COUNT(table), sizeof(sim_state));
}

static uint32_t draw_bits(sim_ctx *c) {
    uint32_t r[4];
    tm_philox((uint64_t)c->seed, 2, c->draws++, r);
    return r[0];
}

/* No draw where it cannot happen: faults that are off do not change the others. */
static bool happens(sim_ctx *c, double probability) {
    return probability > 0 && draw_bits(c) * 0x1p-32 < probability;
}

static sim_state *state_of(const io_layer *l, const io_piece *p) {
    return io_layer_of(l, p);
}

/* True: it was not carried out, p->res says what is told about it. */
static bool settled_at_once(sim_ctx *c, io_piece *p) {
    bool write = p->req->op == TM_IO_WRITE, moves = p->req->op != TM_IO_SYNC;
    if (happens(c, c->fail)) return p->res = -(int)c->err, true;
    if (happens(c, c->eintr)) return p->res = -EINTR, true;
    if (happens(c, c->eagain)) return p->res = -EAGAIN, true;
    if (write && happens(c, c->zero)) return p->res = 0, true; /* of a read it would be the end of the file */
    if ((write || !moves) && happens(c, c->lost)) return p->res = (int)p->n, true;
    return false;
}

/* A shortened attempt moves whole units of the alignment and may admit less, as a kernel does. */
static void shorten(sim_ctx *c, io_piece *p, sim_state *s) {
    TM_ASSERT(p->n > 1);
    uint32_t unit = p->req->file.alignment > 1 ? p->req->file.alignment : 1;
    s->fault = SIM_SHORT;
    s->most = 1 + draw_bits(c) % (p->n - 1);
    p->n = (uint32_t)tm_round_up(s->most, unit);
}

static void flip_bit(const io_piece *p, const sim_state *s) {
    TM_ASSERT(s->fault == SIM_FLIP && s->bit / 8 < p->n);
    p->buf[s->bit / 8] = (char)(p->buf[s->bit / 8] ^ 1 << s->bit % 8);
}

static void inject_fault(sim_ctx *c, io_piece *p, sim_state *s) {
    TM_ASSERT(p->n > 0 || p->req->op == TM_IO_SYNC);
    *s = (sim_state){SIM_NONE, 0, 0};
    if (c->trash > 0 && p->req->op == TM_IO_READ) memset(p->buf, 0xA5, p->n);
    if (settled_at_once(c, p)) {
        s->fault = SIM_SETTLED;
    } else if (p->req->op == TM_IO_SYNC) {
        return;
    } else if (p->n > 1 && happens(c, c->shorten)) {
        shorten(c, p, s);
    } else if (happens(c, c->flip)) {
        s->fault = SIM_FLIP;
        s->bit = draw_bits(c) % p->n * 8 + draw_bits(c) % 8;
    } else if (happens(c, c->misdirect)) {
        s->fault = SIM_MISDIRECT;
        p->offset = io_fault_beside(p->offset);
    }
}

static void hand_down(io_layer *l, sim_ctx *c, io_piece *p) {
    sim_state *s = state_of(l, p);
    if (s->fault == SIM_SETTLED) {
        io_queue_push(&c->after, p);
        return;
    }
    if (s->fault == SIM_FLIP && p->req->op == TM_IO_WRITE) flip_bit(p, s); /* put right in came_back */
    c->below++;
    l->lower->engine->start(l->lower, p);
}

static void came_back(io_layer *l, sim_ctx *c, io_piece *p) {
    TM_ASSERT(c->below > 0);
    const sim_state *s = state_of(l, p);
    c->below--;
    if (s->fault == SIM_SHORT && p->res > (int)s->most) p->res = (int)s->most;
    if (s->fault == SIM_FLIP && (p->req->op == TM_IO_WRITE || p->res > (int)(s->bit / 8))) flip_bit(p, s);
    io_queue_push(&c->after, p);
}

/* Takes out of `q` those that the draws let go, at least one if `must`. */
static io_queue let_go(sim_ctx *c, io_queue *q, bool must) {
    io_queue go = {NULL, NULL}, stay = {NULL, NULL};
    for (io_piece *p; (p = io_queue_pop(q));) io_queue_push(happens(c, c->reorder) ? &stay : &go, p);
    if (must && !go.head && stay.head) io_queue_push(&go, io_queue_pop(&stay));
    *q = stay;
    return go;
}

static void move_down(io_layer *l, sim_ctx *c, bool must) {
    io_queue go = let_go(c, &c->before, must);
    for (io_piece *p; (p = io_queue_pop(&go));) hand_down(l, c, p);
}

static tm_status fetch_up(io_layer *l, sim_ctx *c, bool block) {
    io_queue got = {NULL, NULL};
    tm_status rc = l->lower->engine->reap(l->lower, block, &got);
    for (io_piece *p; (p = io_queue_pop(&got));) came_back(l, c, p);
    return rc;
}

static void sim_start(io_layer *l, io_piece *p) {
    sim_ctx *c = l->ctx;
    inject_fault(c, p, state_of(l, p));
    io_queue_push(&c->before, p);
}

static void sim_flush(io_layer *l) {
    move_down(l, l->ctx, false);
    l->lower->engine->flush(l->lower);
}

static tm_status sim_reap(io_layer *l, bool block, io_queue *settled) {
    sim_ctx *c = l->ctx;
    move_down(l, c, block && !c->below && !c->after.head);
    tm_status rc = fetch_up(l, c, block && !c->after.head);
    io_queue go = let_go(c, &c->after, block);
    io_queue_move(settled, &go);
    return rc;
}

const io_engine io_engine_sim = {.name = "sim",
                                 .stacks = true,
                                 .open = sim_open,
                                 .close = io_layer_close,
                                 .start = sim_start,
                                 .flush = sim_flush,
                                 .reap = sim_reap};
