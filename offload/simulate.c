/* A plan under a simulated clock. One loop: start what may start, find when the next thing ends, move the clock there,
 * complete it.
 *
 * An operation of run r has the key r * n + index: ready operations are taken by key. At most two runs are under way,
 * and their counters lie in slot r % 2. Completion is the executor's: the predecessors count down to zero. */
#include "offload/simulate_internal.h"

#include <math.h>
#include <string.h>

enum { DEPTH = 32, QUEUE = 8 };
static const double DONE_SECONDS = 1e-12; /* less is rounding */
static const double LEAST_SPEED = 0.05;   /* of compute, however busy the disk */

typedef struct key_heap {
    uint32_t *key;
    uint32_t n;
} key_heap;

typedef struct stream {
    bool busy;
    uint32_t key;
    double left;
} stream;

typedef struct sim_run {
    uint32_t left, compute_left;
    uint32_t oldest; /* no operation before it waits for anything but compute */
    double end;
    uint32_t active[TM_ENGINES];
    double busy[TM_ENGINES], wait[TM_ENGINES];
} sim_run;

typedef struct sim {
    const tm_plan_op *op;
    const uint32_t *succ;
    const tm_plan *plan;
    const tm_sim_opts *opts;
    uint32_t n, runs;
    uint32_t first, opened; /* runs [first, opened) are under way */
    uint32_t *pred;         /* [2 n] by slot */
    uint8_t *done;
    key_heap ready[TM_ENGINES]; /* disk writes wait with the reads */
    stream stream[TM_ENGINES];
    sim_run run[2];
    sim_disk disk;
    double now;
    tm_span *span; /* of the last run */
} sim;

static bool is_disk(uint8_t engine) {
    return engine == TM_ENGINE_DISK_READ || engine == TM_ENGINE_DISK_WRITE;
}

static bool is_compute(uint8_t engine) {
    return engine == TM_ENGINE_CPU || engine == TM_ENGINE_DEVICE;
}

static uint8_t queue_of(uint8_t engine) {
    return engine == TM_ENGINE_DISK_WRITE ? (uint8_t)TM_ENGINE_DISK_READ : engine;
}

/* ---- heaps of keys ------------------------------------------------------------------------------------------- */

static void heap_push(key_heap *h, uint32_t v) {
    uint32_t i = h->n++;
    for (; i > 0 && h->key[(i - 1) / 2] > v; i = (i - 1) / 2) h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = v;
}

static uint32_t heap_pop(key_heap *h) {
    uint32_t top = h->key[0], v = h->key[--h->n], i = 0;
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= h->n) break;
        if (c + 1 < h->n && h->key[c + 1] < h->key[c]) c++;
        if (h->key[c] >= v) break;
        h->key[i] = h->key[c];
        i = c;
    }
    h->key[i] = v;
    return top;
}

/* ---- runs ---------------------------------------------------------------------------------------------------- */

static void open_run(sim *s) {
    uint32_t r = s->opened++, base = r % 2 * s->n;
    sim_run *run = &s->run[r % 2];
    memset(run, 0, sizeof *run);
    run->left = s->n;
    memset(s->done + base, 0, s->n);
    for (uint32_t i = 0; i < s->n; i++) {
        if (!is_disk(s->op[i].engine)) run->compute_left++;
        s->pred[base + i] = s->op[i].n_pred;
        if (s->op[i].n_pred == 0) heap_push(&s->ready[queue_of(s->op[i].engine)], r * s->n + i);
    }
}

static void start_span(sim *s, uint32_t key) {
    if (s->span && key / s->n == s->runs - 1) s->span[key % s->n].start = s->now;
}

static void complete(sim *s, uint32_t key) {
    uint32_t r = key / s->n, i = key % s->n, base = r % 2 * s->n;
    const tm_plan_op *o = &s->op[i];
    sim_run *run = &s->run[r % 2];
    if (s->span && r == s->runs - 1) s->span[i].end = s->now;
    s->done[base + i] = 1;
    run->active[o->engine]--;
    run->left--;
    if (!is_disk(o->engine)) run->compute_left--;
    if (run->left == 0) run->end = s->now;
    for (uint32_t k = 0; k < o->n_succ; k++) {
        uint32_t to = s->succ[o->first_succ + k];
        if (--s->pred[base + to] == 0) heap_push(&s->ready[queue_of(s->op[to].engine)], r * s->n + to);
    }
}

/* ---- starting ------------------------------------------------------------------------------------------------ */

/* A run's own operations, but for its reads, wait for the compute of the run before. */
static bool may_start(const sim *s, uint32_t key) {
    uint32_t r = key / s->n;
    return r == s->first || s->op[key % s->n].engine == TM_ENGINE_DISK_READ || s->run[(r - 1) % 2].compute_left == 0;
}

static tm_status start_stream(sim *s, uint8_t engine) {
    stream *t = &s->stream[engine];
    key_heap *h = &s->ready[engine];
    if (t->busy || h->n == 0 || !may_start(s, h->key[0])) return TM_OK;
    *t = (stream){.busy = true, .key = heap_pop(h)};
    uint32_t i = t->key % s->n;
    if (!s->opts->no_compute) t->left = s->opts->cost(s->opts->ctx, &s->op[i].op);
    if (!(t->left >= 0 && t->left < INFINITY))
        return tm_fail(TM_EBUG, "operation %u of the plan (code %u) is predicted to take %g seconds", i,
                       s->op[i].op.code, t->left);
    s->run[t->key / s->n % 2].active[engine]++;
    start_span(s, t->key);
    return TM_OK;
}

static void start_disk(sim *s) {
    key_heap *h = &s->ready[TM_ENGINE_DISK_READ];
    while (h->n > 0 && !sim_disk_full(&s->disk) && may_start(s, h->key[0])) {
        uint32_t key = heap_pop(h);
        const tm_plan_op *o = &s->op[key % s->n];
        sim_disk_issue(&s->disk, key, o->engine == TM_ENGINE_DISK_WRITE,
                       tm_plan_object(s->plan, o->object)->frame_bytes, s->opts->no_disk);
        s->run[key / s->n % 2].active[o->engine]++;
        start_span(s, key);
    }
}

static tm_status start_ready(sim *s) {
    start_disk(s);
    for (uint8_t e = 0; e < TM_ENGINES; e++)
        if (!is_disk(e)) TM_TRY(start_stream(s, e));
    return TM_OK;
}

/* ---- the clock ----------------------------------------------------------------------------------------------- */

/* Moving bytes takes the CPU from its operations. Call after sim_disk_next. */
static double speed_of(const sim *s, uint8_t engine) {
    const tm_machine *m = s->opts->machine;
    if (engine != TM_ENGINE_CPU || m->cores == 0) return 1;
    double speed = 1 - s->disk.bytes_per_second * m->disk.cpu_per_byte / m->cores;
    return speed > LEAST_SPEED ? speed : LEAST_SPEED;
}

static double next_event(sim *s) {
    double next = sim_disk_next(&s->disk);
    for (uint8_t e = 0; e < TM_ENGINES; e++) {
        const stream *t = &s->stream[e];
        double seconds = t->busy ? (t->left > DONE_SECONDS ? t->left / speed_of(s, e) : 0) : INFINITY;
        if (seconds < next) next = seconds;
    }
    return next;
}

/* What compute waits for: the oldest operation of another engine that is not done. */
static uint8_t blocking_engine(sim *s, sim_run *run, uint32_t base) {
    while (run->oldest < s->n && (s->done[base + run->oldest] || is_compute(s->op[run->oldest].engine))) run->oldest++;
    return run->oldest < s->n ? s->op[run->oldest].engine : (uint8_t)TM_ENGINE_DISK_WRITE;
}

static void account(sim *s, double seconds) {
    for (uint32_t r = s->first; r < s->opened; r++)
        for (int e = 0; e < TM_ENGINES; e++)
            if (s->run[r % 2].active[e]) s->run[r % 2].busy[e] += seconds;
    if (s->stream[TM_ENGINE_CPU].busy || s->stream[TM_ENGINE_DEVICE].busy) return;
    sim_run *run = &s->run[s->first % 2];
    run->wait[blocking_engine(s, run, s->first % 2 * s->n)] += seconds;
}

static void advance(sim *s, double seconds) {
    uint32_t key;
    if (seconds > 0) account(s, seconds);
    s->now += seconds;
    for (uint8_t e = 0; e < TM_ENGINES; e++)
        if (s->stream[e].busy) s->stream[e].left -= seconds * speed_of(s, e);
    sim_disk_advance(&s->disk, seconds);
    for (uint8_t e = 0; e < TM_ENGINES; e++) {
        if (!s->stream[e].busy || s->stream[e].left > DONE_SECONDS) continue;
        s->stream[e].busy = false;
        complete(s, s->stream[e].key);
    }
    while (sim_disk_take(&s->disk, &key)) complete(s, key);
}

/* ---- public -------------------------------------------------------------------------------------------------- */

static void close_sim(sim *s) {
    tm_free(s->pred);
    tm_free(s->done);
    for (int e = 0; e < TM_ENGINES; e++) tm_free(s->ready[e].key);
    sim_disk_close(&s->disk);
}

static tm_status open_sim(sim *s, const tm_plan *plan, const tm_sim_opts *opts) {
    uint32_t count[TM_ENGINES] = {0};
    *s = (sim){.plan = plan, .opts = opts, .succ = tm_plan_successors(plan)};
    s->op = tm_plan_ops(plan, &s->n);
    s->runs = 1; /* without a link every run is like the first */
    for (uint32_t i = 0; i < s->n; i++) count[queue_of(s->op[i].engine)]++;
    bool disk = count[TM_ENGINE_DISK_READ] > 0 && !opts->no_disk;
    if (disk && !(opts->machine->disk.read_bps > 0 && opts->machine->disk.write_bps > 0))
        return tm_fail(TM_EINPUT, "machine %s: the plan uses a disk, but read_bps or write_bps is not known",
                       opts->machine->name);
    s->pred = tm_malloc(sizeof *s->pred * (2 * (size_t)s->n + 1));
    s->done = tm_malloc(2 * (size_t)s->n + 1);
    if (!s->pred || !s->done) return tm_nomem(2 * (size_t)s->n);
    for (int e = 0; e < TM_ENGINES; e++) {
        s->ready[e].key = tm_malloc(sizeof(uint32_t) * (2 * (size_t)count[e] + 1));
        if (!s->ready[e].key) return tm_nomem(sizeof(uint32_t) * count[e]);
    }
    return sim_disk_open(&s->disk, &opts->machine->disk, opts->depth ? opts->depth : DEPTH,
                         opts->queue ? opts->queue : QUEUE);
}

static tm_status play(sim *s, double *begin) {
    *begin = 0;
    while (s->first < s->runs) {
        if (s->opened == s->first) open_run(s);
        TM_TRY(start_ready(s));
        if (s->run[s->first % 2].left > 0) {
            double seconds = next_event(s);
            if (seconds == INFINITY)
                return tm_fail(TM_EBUG, "simulated plan stands still: %u operations never become ready",
                               s->run[s->first % 2].left);
            advance(s, seconds);
        }
        if (s->run[s->first % 2].left > 0) continue;
        if (++s->first < s->runs) *begin = s->now;
    }
    return TM_OK;
}

static void report(tm_sim_result *out, const sim *s, double begin) {
    const sim_run *last = &s->run[(s->runs - 1) % 2];
    out->seconds = s->now - begin;
    out->ops = s->n;
    memcpy(out->busy, last->busy, sizeof out->busy);
    memcpy(out->wait, last->wait, sizeof out->wait);
    out->bottleneck = TM_ENGINE_CPU;
    for (int e = 0; e < TM_ENGINES; e++)
        if (last->busy[e] > last->busy[out->bottleneck]) out->bottleneck = (tm_engine)e;
    for (uint32_t i = 0; out->span && i < s->n; i++) {
        out->span[i].start -= begin;
        out->span[i].end -= begin;
    }
}

tm_status tm_simulate(tm_sim_result *out, const tm_plan *plan, const tm_sim_opts *opts) {
    tm_status rc;
    sim s;
    double begin;
    *out = (tm_sim_result){0};
    TM_GO(open_sim(&s, plan, opts));
    if (opts->timeline) {
        s.span = out->span = tm_calloc(s.n + 1, sizeof *out->span);
        if (!s.span) TM_GO(tm_nomem(sizeof *out->span * s.n));
    }
    TM_GO(play(&s, &begin));
    report(out, &s, begin);
done:
    close_sim(&s);
    if (rc != TM_OK) tm_sim_free(out);
    return rc;
}

void tm_sim_free(tm_sim_result *r) {
    tm_free(r->span);
    r->span = NULL;
}
