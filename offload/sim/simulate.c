/* A plan under a simulated clock. One loop: start what may start, find when the next thing ends, move the clock there,
 * complete it. */
#include "offload/sim/simulate_internal.h"
#include "offload/offload_internal.h"

#include <math.h>
#include <string.h>

static const double DONE_SECONDS = 1e-12; /* less is rounding */
static const double NOMINAL_COPY_RATE = 8e9;
static const double LEAST_SPEED = 0.05; /* of compute, however busy the disk */

/* Copies that the compiler inserted; where nobody said how fast they are, by memory. */
static double copy_seconds(const sim *s, const tm_op *op) {
    const tm_machine *m = s->opts->machine;
    double rate = op->engine == TM_ENGINE_COPY_OUT ? m->d2h_bps : m->h2d_bps;
    if (rate <= 0) rate = m->cpu_bps > 0 ? m->cpu_bps / 2 : NOMINAL_COPY_RATE;
    return ((double)op->arg[0] + (double)op->arg[1] * 4294967296.0) / rate;
}

static tm_status start_stream(sim *s, uint8_t engine) {
    sim_stream *t = &s->stream[engine];
    if (t->busy || !sim_take(s, engine, &t->key)) return TM_OK;
    const tm_op *op = &s->op[t->key % s->n].op;
    t->busy = true;
    t->left = op->code == TM_OP_COPY ? copy_seconds(s, op) : s->opts->cost(s->opts->ctx, op);
    if (t->left >= 0 && t->left < INFINITY) return TM_OK;
    return tm_fail(TM_EBUG, "operation %u of the plan (code %u) is predicted to take %g seconds", t->key % s->n,
                   op->code, t->left);
}

static void start_lane(sim *s, uint32_t lane) {
    uint32_t key;
    while (sim_take_disk(s, lane, &key)) {
        const tm_plan_op *o = &s->op[key % s->n];
        sim_disk_issue(&s->disk, lane, key, o->engine == TM_ENGINE_DISK_WRITE,
                       tm_plan_object(s->plan, o->object)->frame_bytes, s->opts->no_disk);
    }
}

static tm_status start_ready(sim *s) {
    for (uint32_t lane = 0; lane < s->disk.lanes; lane++) start_lane(s, lane);
    for (uint8_t e = 0; e < TM_ENGINES; e++)
        if (!sim_is_disk(e)) TM_TRY(start_stream(s, e));
    return TM_OK;
}

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
        const sim_stream *t = &s->stream[e];
        double seconds = t->busy ? (t->left > DONE_SECONDS ? t->left / speed_of(s, e) : 0) : INFINITY;
        if (seconds < next) next = seconds;
    }
    return next;
}

static bool is_compute(uint8_t engine) {
    return engine == TM_ENGINE_CPU || engine == TM_ENGINE_DEVICE;
}

/* What compute waits for: the oldest operation of another engine that is not done, in the oldest run. */
static uint8_t blocking_engine(sim *s) {
    sim_run *run = &s->run[s->first % 2];
    const uint8_t *done = s->done + s->first % 2 * s->n;
    while (run->oldest < s->n && (done[run->oldest] || is_compute(s->op[run->oldest].engine))) run->oldest++;
    return run->oldest < s->n ? s->op[run->oldest].engine : (uint8_t)TM_ENGINE_DISK_WRITE;
}

/* A request's span begins when it gets a slot. */
static void note_start(sim *s, sim_request *r) {
    if (s->span && !r->noted && r->key / s->n == s->runs - 1) s->span[r->key % s->n].start = s->now;
    r->noted = true;
}

/* Which engines are at work for which run. Requests that wait for a slot are not. */
static void find_active(sim *s, bool active[2][TM_ENGINES]) {
    for (uint8_t e = 0; e < TM_ENGINES; e++)
        if (s->stream[e].busy) active[s->stream[e].key / s->n % 2][e] = true;
    for (sim_lane *lane = s->disk.lane; lane < s->disk.lane + s->disk.lanes; lane++) {
        for (uint32_t i = 0; i < lane->n && lane->request[i].moving; i++) {
            uint32_t key = lane->request[i].key;
            note_start(s, &lane->request[i]);
            active[key / s->n % 2][s->op[key % s->n].engine] = true;
        }
    }
}

static void account_time(sim *s, double seconds) {
    bool active[2][TM_ENGINES] = {{false}};
    find_active(s, active);
    for (uint32_t r = s->first; r < s->opened; r++)
        for (int e = 0; e < TM_ENGINES; e++)
            if (active[r % 2][e]) s->run[r % 2].busy[e] += seconds;
    if (s->stream[TM_ENGINE_CPU].busy || s->stream[TM_ENGINE_DEVICE].busy) return;
    uint32_t now = s->run[s->first % 2].compute_left == 0 && s->opened > s->first + 1 ? s->first + 1 : s->first;
    s->run[now % 2].wait[blocking_engine(s)] += seconds;
}

static void advance_clock(sim *s, double seconds) {
    TM_ASSERT(seconds >= 0);
    uint32_t key;
    if (seconds > 0) account_time(s, seconds);
    s->now += seconds;
    for (uint8_t e = 0; e < TM_ENGINES; e++)
        if (s->stream[e].busy) s->stream[e].left -= seconds * speed_of(s, e);
    sim_disk_advance(&s->disk, seconds);
    for (uint8_t e = 0; e < TM_ENGINES; e++) {
        if (!s->stream[e].busy || s->stream[e].left > DONE_SECONDS) continue;
        s->stream[e].busy = false;
        sim_complete(s, s->stream[e].key);
    }
    while (sim_disk_take(&s->disk, &key)) sim_complete(s, key);
}

static void close_sim(sim *s) {
    tm_free(s->pred);
    tm_free(s->done);
    for (int e = 0; e < TM_ENGINES; e++) tm_free(s->ready[e].item);
    for (int i = 0; i < TM_MACHINE_PATHS; i++) tm_free(s->disk_ready[i].item);
    tm_free(s->lane);
    sim_disk_close(&s->disk);
}

static tm_status open_runs(sim *s, const tm_sim_opts *opts) {
    s->link = opts->link;
    s->runs = s->link && opts->runs ? opts->runs : 1; /* without a link every run is like the first */
    if (s->link && (tm_link_before(s->link) != s->plan || tm_link_after(s->link) != s->plan))
        return tm_fail(TM_EBUG, "simulated plan: the link is one of other plans");
    if (((uint64_t)s->runs + 1) * s->n > UINT32_MAX)
        return tm_fail(TM_EBUG, "simulated plan: %u runs of %u operations are too many", s->runs, s->n);
    return TM_OK;
}

/* Room for the ready operations of two runs. */
static tm_status make_heap(tm_heap32 *h, uint32_t count) {
    h->cap = 2 * count + 1;
    h->item = tm_malloc(sizeof *h->item * h->cap);
    return h->item ? TM_OK : tm_nomem(sizeof *h->item * count);
}

static tm_status make_heaps(sim *s) {
    uint32_t count[TM_ENGINES] = {0}, in_lane[TM_MACHINE_PATHS] = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        bool disk = sim_is_disk(s->op[i].engine);
        s->n_compute += !disk;
        if (disk)
            in_lane[s->lane ? s->lane[i] : 0]++;
        else
            count[s->op[i].engine]++;
    }
    for (int e = 0; e < TM_ENGINES; e++) TM_TRY(make_heap(&s->ready[e], count[e]));
    for (uint32_t i = 0; i < s->disk.lanes; i++) TM_TRY(make_heap(&s->disk_ready[i], in_lane[i]));
    return TM_OK;
}

static tm_status open_sim(sim *s, const tm_plan *plan, const tm_sim_opts *opts) {
    const tm_disk *disk = &opts->machine->disk;
    s->op = tm_plan_ops(plan, &s->n);
    TM_TRY(open_runs(s, opts));
    TM_TRY(sim_disk_open(&s->disk, opts));
    TM_TRY(stripe_lanes(&s->lane, plan, opts->machine));
    TM_TRY(make_heaps(s));
    if (s->n_compute < s->n && !opts->no_disk && !(disk->read_bps > 0 && disk->write_bps > 0))
        return tm_fail(TM_EINPUT, "machine \"%s\": the plan uses a disk, but none is described; give a \"disk\"",
                       opts->machine->name);
    s->pred = tm_malloc(sizeof *s->pred * (2 * (size_t)s->n + 1));
    s->done = tm_malloc(2 * (size_t)s->n + 1);
    return s->pred && s->done ? TM_OK : tm_nomem(2 * (size_t)s->n);
}

static tm_status step_clock(sim *s) {
    TM_TRY(start_ready(s));
    double seconds = next_event(s);
    if (seconds == INFINITY)
        return tm_fail(TM_EBUG, "simulated plan stands still: %u operations never become ready",
                       s->run[s->first % 2].left);
    advance_clock(s, seconds);
    return TM_OK;
}

/* The run after the last keeps the disk as busy at its end as a run in the middle finds it. */
static tm_status play_runs(sim *s, double *begin) {
    *begin = 0;
    while (s->first < s->runs && s->n > 0) {
        while (s->opened < s->first + (s->link ? 2 : 1)) sim_open_run(s);
        while (s->run[s->first % 2].left > 0) {
            TM_TRY(tm_stop_check());
            TM_TRY(step_clock(s));
        }
        if (++s->first == s->runs - 1) *begin = s->run[(s->first - 1) % 2].compute_end;
    }
    return TM_OK;
}

static void count_written(tm_sim_result *out, const sim *s) {
    for (uint32_t i = 0; s->lane && i < s->n; i++)
        if (s->op[i].engine == TM_ENGINE_DISK_WRITE)
            out->write_bytes[s->lane[i]] += tm_plan_object(s->plan, s->op[i].object)->frame_bytes;
}

static void report_time(tm_sim_result *out, const sim *s, double begin) {
    const sim_run *last = &s->run[(s->runs - 1) % 2];
    out->seconds = (s->link && s->n_compute ? last->compute_end : s->now) - begin;
    out->ops = s->n;
    out->n_paths = s->opts->machine->n_paths;
    count_written(out, s);
    memcpy(out->busy, last->busy, sizeof out->busy);
    memcpy(out->wait, last->wait, sizeof out->wait);
    out->bottleneck = TM_ENGINE_CPU;
    for (int e = 0; e < TM_ENGINES; e++)
        if (last->busy[e] > last->busy[out->bottleneck]) out->bottleneck = (tm_op_engine)e;
    for (uint32_t i = 0; out->span && i < s->n; i++) {
        out->span[i].start -= begin;
        out->span[i].end -= begin;
    }
}

tm_status tm_simulate(tm_sim_result *out, const tm_plan *plan, const tm_sim_opts *opts) {
    tm_status rc;
    sim s = {.plan = plan, .opts = opts, .succ = tm_plan_successors(plan)};
    double begin;
    *out = (tm_sim_result){0};
    TM_GO(open_sim(&s, plan, opts));
    if (opts->timeline) {
        s.span = out->span = tm_calloc(s.n + 1, sizeof *out->span);
        if (!s.span) TM_GO(tm_nomem(sizeof *out->span * s.n));
    }
    TM_GO(play_runs(&s, &begin));
    report_time(out, &s, begin);
done:
    close_sim(&s);
    if (rc != TM_OK) tm_sim_free(out);
    return rc;
}

void tm_sim_free(tm_sim_result *r) {
    tm_free(r->span);
    r->span = NULL;
}
