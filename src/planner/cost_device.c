/* Seconds on a device that has processors of its own, and of the link to it: what its profile knows, and operations
 * timed there, in an arena that is there for as long as that takes.
 *
 * An operation is given to its stream several times in a row behind one that does not count (a library is loaded, an
 * algorithm chosen), since in a step launches run ahead of the device too; its time is the middle of those from one end
 * to the next. */
#include "planner/cost_table_internal.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 7, COPIES = 5, HOST_ALIGN = 4096 };
static const double LONG_SECONDS = 0.4; /* of one call: then one more is enough */
static const uint64_t COPY_BYTES = 16 << 20;

struct cost_bench {
    tm_device *d; /* NULL: could not be opened */
    uint64_t arena_bytes;
};

/* As much as the run may have, but no more than is filled on the host. */
static struct cost_bench *bench_of(job_costs *c) {
    if (c->bench) return c->bench;
    c->bench = tm_calloc(1, sizeof *c->bench);
    if (!c->bench) return NULL;
    const tm_device_opts opts = {.name = c->job->opts.device,
                                 .arena_bytes = tm_min_u64(c->job->opts.device_bytes, c->budget)};
    if (tm_device_open(&c->bench->d, &opts) == TM_OK) {
        c->bench->arena_bytes = tm_device_get_caps(c->bench->d)->arena_bytes;
        return c->bench;
    }
    tm_log(TM_LOG_WARN, "%s; nothing is timed on the device", tm_error_get()->text);
    tm_error_clear();
    return c->bench;
}

void cost_device_leave(job_costs *c) {
    if (c->bench) tm_device_close(c->bench->d);
    tm_free(c->bench);
    c->bench = NULL;
}

static tm_status copy(tm_device *d, tm_device_way way, void *host, uint64_t bytes, tm_event *e) {
    return tm_device_copy(d, &(tm_device_transfer){.way = way, .host = host, .bytes = bytes}, e);
}

static tm_status run_timed(void *ctx) {
    const cost_call *t = ctx;
    return t->call.row->run(&t->call);
}

/* n of them, one behind the other: the middle of their times. */
static tm_status run_some(tm_device *d, const tm_device_op *op, int n, double *seconds) {
    tm_event e[REPEATS] = {{0}};
    double took[REPEATS];
    tm_status rc = TM_OK;
    int given = 0;
    while (given < n && (rc = tm_device_submit(d, op, &e[given])) == TM_OK) given++;
    for (int i = 0; i < given; i++) {
        tm_status ended = tm_event_wait(d, &e[i]); /* all of them, whatever becomes of one */
        if (rc == TM_OK) rc = ended;
        took[i] = (double)(e[i].end_ns - e[i].start_ns) * 1e-9;
    }
    if (rc == TM_OK) *seconds = tm_median(took, (size_t)n);
    return rc;
}

static tm_status time_op(tm_device *d, cost_call *t, const cost_operands *l, void *host, double *seconds) {
    uint64_t offset[COST_OPERANDS];
    tm_device_frame frame = {0, l->bytes};
    const tm_device_op op = {.frame = &frame, .n = 1, .fn = run_timed, .ctx = t};
    tm_event e = {0};
    cost_operands_fill(l, host, offset);
    for (uint32_t i = 0; i < l->n; i++) t->operand[i] = tm_device_at(d, offset[i]);
    TM_TRY(copy(d, TM_DEVICE_IN, host, l->bytes, &e));
    TM_TRY(tm_event_wait(d, &e));
    TM_TRY(run_some(d, &op, 1, seconds));
    return run_some(d, &op, *seconds > LONG_SECONDS ? 1 : REPEATS, seconds);
}

bool cost_device_measure(job_costs *c, const tm_op *op, double *seconds) {
    cost_operands l;
    cost_call t;
    struct cost_bench *b = bench_of(c);
    *seconds = 0;
    if (!b || !b->d || !cost_operands_of(&l, c->job, op, &c->timed) || l.bytes > b->arena_bytes || l.bytes > c->budget)
        return false;
    void *host = tm_malloc(l.bytes);
    if (!host) return false;
    cost_call_init(&t, &l, op);
    t.call.kernels = tm_device_kernels(b->d);
    if (time_op(b->d, &t, &l, host, seconds) != TM_OK) {
        tm_log(TM_LOG_WARN, "%s: not timed on the device: %s", job_op_word(op->code), tm_error_get()->text);
        tm_error_clear();
        *seconds = 0;
    }
    tm_free(host);
    return *seconds > 0;
}

/* Several under way, as in a step: what one takes after the one before. */
static tm_status time_copies(tm_device *d, tm_device_way way, void *host, uint64_t bytes, double *seconds) {
    tm_event e[COPIES] = {{0}};
    tm_status rc = TM_OK;
    int given = 0;
    while (given < COPIES && (rc = copy(d, way, host, bytes, &e[given])) == TM_OK) given++;
    for (int i = 0; i < given; i++) {
        tm_status ended = tm_event_wait(d, &e[i]);
        if (rc == TM_OK) rc = ended;
    }
    if (rc == TM_OK) *seconds = (double)(e[COPIES - 1].end_ns - e[0].end_ns) * 1e-9 / (COPIES - 1);
    return rc;
}

static tm_status time_link(tm_device *d, void *host, uint64_t bytes, double rate[TM_DEVICE_WAYS]) {
    TM_TRY(tm_device_register(d, host, bytes));
    tm_status rc = TM_OK;
    for (int way = 0; way < TM_DEVICE_WAYS && rc == TM_OK; way++) {
        double seconds = 0;
        rc = time_copies(d, (tm_device_way)way, host, bytes, &seconds);
        rate[way] = seconds > 0 ? (double)bytes / seconds : 0;
    }
    tm_device_unregister(d, host);
    return rc;
}

static bool measure_link(job_costs *c, double rate[TM_DEVICE_WAYS]) {
    struct cost_bench *b = bench_of(c);
    if (!b || !b->d) return false;
    uint64_t bytes = tm_min_u64(COPY_BYTES, tm_min_u64(b->arena_bytes, c->budget)) / HOST_ALIGN * HOST_ALIGN;
    void *host = bytes ? aligned_alloc(HOST_ALIGN, bytes) : NULL;
    if (!host) return false;
    for (uint64_t i = 0; i < bytes; i += HOST_ALIGN) ((char *)host)[i] = 1;
    if (time_link(b->d, host, bytes, rate) != TM_OK) {
        tm_log(TM_LOG_WARN, "the link to the device is not timed: %s", tm_error_get()->text);
        tm_error_clear();
        rate[TM_DEVICE_IN] = 0;
    }
    free(host);
    return rate[TM_DEVICE_IN] > 0 && rate[TM_DEVICE_OUT] > 0;
}

tm_status cost_device_open(job_costs *c, tm_machine *machine) {
    double rate[TM_DEVICE_WAYS] = {0, 0};
    cost_source *s = &c->side[COST_DEVICE];
    tm_status rc = tm_profile_open_device(&s->profile, c->job->opts.device);
    if (rc == TM_ENOMEM) return rc;
    if (rc != TM_OK) { /* not here: planned for all the same */
        tm_error_clear();
        return TM_OK;
    }
    if (!tm_profile_get_link(s->profile, &rate[TM_DEVICE_IN], &rate[TM_DEVICE_OUT])) {
        if (c->mode != JOB_COSTS_MEASURE || c->job->ranks.ranks > 1 || !measure_link(c, rate)) return TM_OK;
        TM_TRY(tm_profile_put_link(s->profile, rate[TM_DEVICE_IN], rate[TM_DEVICE_OUT]));
    }
    machine->h2d_bps = rate[TM_DEVICE_IN];
    machine->d2h_bps = rate[TM_DEVICE_OUT];
    return TM_OK;
}
