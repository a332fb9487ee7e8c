/* The simulator against plans whose times can be worked out by hand, and against a plain simulation, written here, that
 * looks at every operation at every event. */
#include "offload/offload_internal.h"
#include "offload/sim/sim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MANY = 4096 };

/* ---- plans by hand ------------------------------------------------------------------------------------------- */

/* Operations with their edges; disk operations move object i, of `bytes` bytes. */
typedef struct made {
    tm_plan plan;
    tm_plan_op op[MANY];
    uint32_t succ[16 * MANY];
    tm_object object[MANY];
    tm_layout layout;
    uint32_t n;
} made;

static void reset(made *m) {
    memset(m, 0, sizeof *m);
    m->layout.object = m->object;
    m->plan.layout = &m->layout;
    m->plan.op = m->op;
    m->plan.succ = m->succ;
}

/* `amount`: bytes of a disk operation, thousandths of a second of another. */
static uint32_t put(made *m, tm_op_engine engine, uint32_t amount) {
    uint32_t i = m->n++;
    m->op[i] = (tm_plan_op){.engine = (uint8_t)engine, .object = i, .op = {.engine = (uint8_t)engine, .arg = {amount}}};
    m->object[i] = (tm_object){.bytes = amount, .frame_bytes = amount};
    m->layout.n = m->plan.n_op = m->plan.info.ops = m->n;
    return i;
}

/* Edges have to be given in the order of `from`. */
static void edge(made *m, uint32_t from, uint32_t to) {
    uint32_t end = m->plan.info.edges++;
    tm_plan_op *o = &m->op[from];
    if (o->n_succ == 0) o->first_succ = end;
    assert_int_equal(o->first_succ + o->n_succ, end);
    m->succ[end] = to;
    o->n_succ++;
    m->op[to].n_pred++;
}

static double milliseconds(void *ctx, const tm_op *op) {
    (void)ctx;
    return op->arg[0] * 1e-3;
}

static tm_machine machine(double read_bps, double write_bps, double duplex) {
    return (tm_machine){
        .name = "test", .cores = 2, .disk = {.read_bps = read_bps, .write_bps = write_bps, .duplex = duplex}};
}

static tm_sim_result simulate(const tm_plan *plan, tm_sim_opts o) {
    tm_sim_result r;
    o.cost = o.cost ? o.cost : milliseconds;
    if (tm_simulate(&r, plan, &o) != TM_OK) fail_msg("%s", tm_error_get()->text);
    return r;
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * (1 + fabs(want)))) fail_msg("%.17g, expected %.17g", got, want);
}

static made m; /* too large for the stack */

static void a_read_then_compute(void **state) {
    (void)state;
    tm_machine hw = machine(1e6, 1e6, 1);
    reset(&m);
    uint32_t r = put(&m, TM_ENGINE_DISK_READ, 500000), c = put(&m, TM_ENGINE_CPU, 250);
    edge(&m, r, c);
    tm_sim_result got = simulate(&m.plan, (tm_sim_opts){.machine = &hw, .timeline = true});
    near(got.seconds, 0.75);
    near(got.busy[TM_ENGINE_DISK_READ], 0.5);
    near(got.busy[TM_ENGINE_CPU], 0.25);
    near(got.wait[TM_ENGINE_DISK_READ], 0.5);
    near(got.wait[TM_ENGINE_DISK_WRITE], 0);
    assert_int_equal(got.bottleneck, TM_ENGINE_DISK_READ);
    assert_int_equal(got.ops, 2);
    near(got.span[0].start, 0);
    near(got.span[0].end, 0.5);
    near(got.span[1].start, 0.5);
    near(got.span[1].end, 0.75);
    tm_sim_free(&got);
    near(simulate(&m.plan, (tm_sim_opts){.machine = &hw, .runs = 5}).seconds, 0.75);
    near(simulate(&m.plan, (tm_sim_opts){.machine = &hw, .no_disk = true}).seconds, 0.25);
    hw.disk.latency = 0.125;
    near(simulate(&m.plan, (tm_sim_opts){.machine = &hw}).seconds, 0.875);
}

static void reads_share_the_disk(void **state) {
    (void)state;
    tm_machine hw = machine(1e6, 1e6, 1);
    reset(&m);
    put(&m, TM_ENGINE_DISK_READ, 250000);
    put(&m, TM_ENGINE_DISK_READ, 1000000);
    tm_sim_result got = simulate(&m.plan, (tm_sim_opts){.machine = &hw, .timeline = true});
    near(got.span[0].end, 0.5); /* half of the rate while both move */
    near(got.span[1].end, 1.25);
    tm_sim_free(&got);
    got = simulate(&m.plan, (tm_sim_opts){.machine = &hw, .timeline = true, .queue = 1});
    near(got.span[0].end, 0.25);   /* one after the other */
    near(got.span[1].start, 0.25); /* in flight before that, but waiting */
    near(got.span[1].end, 1.25);
    tm_sim_free(&got);
    got = simulate(&m.plan, (tm_sim_opts){.machine = &hw, .timeline = true, .depth = 1});
    near(got.span[1].start, 0.25);
    near(got.span[1].end, 1.25);
    tm_sim_free(&got);
}

/* Two requests of 1 s alone: 1 s together if independent, 2 s if they share, 1 / 0.75 s half way. */
static void reads_and_writes_slow_each_other(void **state) {
    (void)state;
    static const double seconds[][2] = {{1, 1}, {0, 2}, {0.5, 1 / 0.75}};
    for (size_t i = 0; i < TM_COUNT(seconds); i++) {
        tm_machine hw = machine(1e6, 2e6, seconds[i][0]);
        reset(&m);
        put(&m, TM_ENGINE_DISK_READ, 1000000);
        put(&m, TM_ENGINE_DISK_WRITE, 2000000);
        tm_sim_result got = simulate(&m.plan, (tm_sim_opts){.machine = &hw});
        near(got.seconds, seconds[i][1]);
        near(got.busy[TM_ENGINE_DISK_WRITE], seconds[i][1]);
    }
    /* d = 0, unequal: the write gets half until it is done (2 s), then the read runs alone: 1 + 3 s in all. */
    tm_machine hw = machine(1e6, 1e6, 0);
    reset(&m);
    put(&m, TM_ENGINE_DISK_READ, 3000000);
    put(&m, TM_ENGINE_DISK_WRITE, 1000000);
    tm_sim_result got = simulate(&m.plan, (tm_sim_opts){.machine = &hw, .timeline = true});
    near(got.span[1].end, 2);
    near(got.span[0].end, 4);
    tm_sim_free(&got);
}

static void moving_bytes_takes_cpu_time(void **state) {
    (void)state;
    tm_machine hw = machine(1e6, 1e6, 1);
    hw.disk.cpu_per_byte = 1e-6; /* 1 core of 2 while it reads: compute at half speed */
    reset(&m);
    put(&m, TM_ENGINE_DISK_READ, 1000000);
    put(&m, TM_ENGINE_CPU, 1000);
    tm_sim_result got = simulate(&m.plan, (tm_sim_opts){.machine = &hw});
    near(got.seconds, 1.5); /* half done when the read is */
    assert_int_equal(got.bottleneck, TM_ENGINE_CPU);
    near(simulate(&m.plan, (tm_sim_opts){.machine = &hw, .no_disk = true}).seconds, 1);
}

/* The lowest index first on each engine, engines beside each other; a wait is charged to the oldest that is not done.
 */
static void engines_overlap(void **state) {
    (void)state;
    tm_machine hw = machine(1e6, 1e6, 1);
    reset(&m);
    uint32_t a = put(&m, TM_ENGINE_COPY_IN, 300), b = put(&m, TM_ENGINE_COMM, 400), c = put(&m, TM_ENGINE_DEVICE, 100);
    uint32_t d = put(&m, TM_ENGINE_DEVICE, 200), e = put(&m, TM_ENGINE_CPU, 1000);
    edge(&m, a, c);
    edge(&m, b, d);
    edge(&m, c, e);
    tm_sim_result got = simulate(&m.plan, (tm_sim_opts){.machine = &hw, .timeline = true});
    near(got.span[c].start, 0.3);
    near(got.span[d].start, 0.4);
    near(got.span[e].start, 0.4);
    near(got.seconds, 1.4);
    near(got.wait[TM_ENGINE_COPY_IN], 0.3);
    near(got.wait[TM_ENGINE_COMM], 0);
    tm_sim_free(&got);
}

static void what_cannot_run_is_said(void **state) {
    (void)state;
    tm_sim_result got;
    tm_machine hw = machine(0, 0, 1);
    reset(&m);
    put(&m, TM_ENGINE_DISK_READ, 1);
    put(&m, TM_ENGINE_CPU, 1);
    assert_int_equal(tm_simulate(&got, &m.plan, &(tm_sim_opts){.machine = &hw, .cost = milliseconds}), TM_EINPUT);
    tm_error_clear();
    m.op[1].n_pred = 1; /* for ever */
    hw = machine(1, 1, 1);
    assert_int_equal(tm_simulate(&got, &m.plan, &(tm_sim_opts){.machine = &hw, .cost = milliseconds, .timeline = true}),
                     TM_EBUG);
    assert_null(got.span);
    tm_error_clear();
    reset(&m);
    near(simulate(&m.plan, (tm_sim_opts){.machine = &hw, .runs = 3}).seconds, 0);
}

/* ---- random plans against a plain simulation ----------------------------------------------------------------- */

static uint64_t draws;

static uint32_t draw(uint32_t n) {
    uint32_t r[4];
    tm_philox(11, 0, draws++, r);
    return r[0] % n;
}

/* A program over paged state, compiled: reads, computes, write-backs as the compiler makes them. */
static tm_plan *random_plan(uint64_t seed, tm_layout **layout) {
    tm_program *p;
    tm_plan *plan = NULL;
    uint32_t n = 20 + (uint32_t)(seed % 20);
    uint64_t least = 0;
    draws = seed << 32;
    assert_int_equal(tm_layout_create(layout), TM_OK);
    for (uint32_t i = 0; i < n; i++)
        (void)tm_layout_object(*layout, &(tm_object){.kind = TM_KIND_EXP_AVG,
                                                     .unit = i / 4,
                                                     .bundle = i,
                                                     .bytes = 4096 * (1 + draw(3000)),
                                                     .pageable = true});
    assert_int_equal(tm_program_create(&p, *layout, "random"), TM_OK);
    for (uint32_t i = 0; i < 6 * n; i++) {
        uint32_t v = tm_program_interval(p, draw(n), 1);
        tm_program_op(p, &(tm_op){.code = 1, .arg = {draw(20)}});
        tm_program_use(p, v, draw(3) ? TM_USE_READ : TM_USE_UPDATE);
    }
    tm_plan_opts o = {.choose_residency = true, .cache = true, .spill = true};
    assert_int_equal(tm_plan_minimum(*layout, p, &o, &least), TM_OK);
    o.slab_bytes = least * (2 + draw(4));
    if (tm_plan_compile(&plan, *layout, p, &o, NULL) != TM_OK) fail_msg("%s", tm_error_get()->text);
    tm_program_free(p);
    return plan;
}

static bool is_disk(const tm_plan_op *o) {
    return o->engine == TM_ENGINE_DISK_READ || o->engine == TM_ENGINE_DISK_WRITE;
}

typedef struct plain {
    int state; /* 0: not ready, 1: ready, 2: in flight, 3: done */
    uint32_t pred;
    double wait, left; /* latency, then bytes or seconds */
    uint64_t issued;
} plain;

static double block_bytes = 4194304;

static uint32_t pieces_of(double bytes, uint32_t queue) {
    double p = ceil(bytes / block_bytes);
    return p < 1 ? 1 : p > queue ? queue : (uint32_t)p;
}

/* What moves now: the requests issued first that fit the queue. Returns how many pieces of `engine` have passed their
 * latency. */
static uint32_t moving(const plain *p, const tm_plan_op *op, uint32_t n, double *size, uint32_t queue, bool *in,
                       tm_op_engine engine) {
    uint32_t used = 0, count = 0;
    memset(in, 0, n);
    while (used < queue) {
        uint32_t first = n;
        for (uint32_t i = 0; i < n; i++)
            if (p[i].state == 2 && !in[i] && is_disk(&op[i]))
                if (first == n || p[i].issued < p[first].issued) first = i;
        if (first == n) break;
        in[first] = true;
        used += pieces_of(size[first], queue);
        if (op[first].engine == engine && p[first].wait <= 1e-12) count += pieces_of(size[first], queue);
    }
    return count;
}

/* Everything is looked at anew at every event. */
static double plain_simulation(const tm_plan *plan, const tm_machine *hw, uint32_t depth, uint32_t queue, double *end) {
    uint32_t n, done = 0;
    const tm_plan_op *op = tm_plan_ops(plan, &n);
    const uint32_t *succ = tm_plan_successors(plan);
    plain *p = calloc(n, sizeof *p);
    double *size = calloc(n, sizeof *size), now = 0;
    bool *in = calloc(n, 1);
    uint64_t issued = 0;
    for (uint32_t i = 0; i < n; i++) {
        p[i].pred = op[i].n_pred;
        p[i].state = p[i].pred == 0;
        size[i] = is_disk(&op[i]) ? (double)tm_plan_object(plan, op[i].object)->frame_bytes : 0;
    }
    while (done < n) {
        uint32_t flying = 0;
        bool busy[TM_ENGINES] = {false};
        for (uint32_t i = 0; i < n; i++) {
            if (p[i].state != 2) continue;
            flying += is_disk(&op[i]);
            busy[op[i].engine] = true;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (p[i].state != 1 || (is_disk(&op[i]) ? flying == depth : busy[op[i].engine])) continue;
            p[i].state = 2;
            p[i].issued = issued++;
            p[i].wait = is_disk(&op[i]) ? hw->disk.latency : 0;
            p[i].left = is_disk(&op[i]) ? size[i] : op[i].op.arg[0] * 1e-3;
            busy[op[i].engine] = true;
            flying += is_disk(&op[i]);
        }
        uint32_t reads = moving(p, op, n, size, queue, in, TM_ENGINE_DISK_READ);
        uint32_t writes = moving(p, op, n, size, queue, in, TM_ENGINE_DISK_WRITE);
        double d = hw->disk.duplex, read_bps = hw->disk.read_bps, write_bps = hw->disk.write_bps;
        if (reads && writes) {
            read_bps *= d + (1 - d) * reads / (reads + writes);
            write_bps *= d + (1 - d) * writes / (reads + writes);
        }
        double bytes = (reads ? read_bps : 0) + (writes ? write_bps : 0), next = INFINITY, rate[MANY];
        assert_true(n <= MANY);
        for (uint32_t i = 0; i < n; i++) {
            rate[i] = 0;
            if (p[i].state != 2) continue;
            if (!is_disk(&op[i]) && op[i].engine != TM_ENGINE_CPU)
                rate[i] = 1;
            else if (!is_disk(&op[i]))
                rate[i] = fmax(0.05, 1 - bytes * hw->disk.cpu_per_byte / hw->cores);
            else if (in[i] && p[i].wait > 1e-12)
                next = fmin(next, p[i].wait);
            else if (in[i])
                rate[i] = (op[i].engine == TM_ENGINE_DISK_READ ? read_bps / reads : write_bps / writes) *
                          pieces_of(size[i], queue);
            if (rate[i] > 0) next = fmin(next, p[i].left / rate[i]);
        }
        assert_true(isfinite(next));
        now += next;
        for (uint32_t i = 0; i < n; i++) {
            if (p[i].state != 2) continue;
            if (in[i] && p[i].wait > 1e-12) p[i].wait -= next;
            p[i].left -= rate[i] * next;
            bool disk = is_disk(&op[i]);
            if (p[i].wait > 1e-12 || p[i].left > (disk ? 1e-3 : 1e-12) || (disk && !in[i])) continue;
            p[i].state = 3;
            if (end) end[i] = now;
            done++;
            for (uint32_t k = 0; k < op[i].n_succ; k++) {
                plain *to = &p[succ[op[i].first_succ + k]];
                if (--to->pred == 0) to->state = 1;
            }
        }
    }
    free(p);
    free(size);
    free(in);
    return now;
}

static void random_plans_take_as_long_as_in_the_plain_simulation(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        tm_layout *layout;
        tm_plan *plan = random_plan(seed, &layout);
        tm_machine hw = machine(1e9 * (1 + draw(3)), 1e9 * (1 + draw(3)), draw(5) / 4.0);
        hw.disk.latency = draw(2) * 1e-4;
        hw.disk.cpu_per_byte = draw(2) * 0.3e-9;
        uint32_t depth = 1 + draw(32), queue = 1 + draw(8);
        block_bytes = 4194304 >> draw(4);
        tm_sim_result got = simulate(
            plan, (tm_sim_opts){.machine = &hw, .depth = depth, .queue = queue, .block_bytes = (uint64_t)block_bytes});
        double want = plain_simulation(plan, &hw, depth, queue, NULL);
        assert_true(tm_plan_get_info(plan)->ops > 120);
        if (fabs(got.seconds - want) > 1e-6 * want)
            fail_msg("seed %d: %.9g s, plainly %.9g s", (int)seed, got.seconds, want);
        tm_plan_free(plan);
        tm_layout_free(layout);
    }
}

/* Runs one after another as one plan: what the link says becomes edges, "all compute of the run before" and "all of the
 * run before that" become operations of no length on an engine of their own. */
static void unroll(made *to, const tm_plan *plan, const tm_link *link, uint32_t runs) {
    uint32_t n, k, compute = runs * plan->n_op, all = compute + runs;
    const tm_plan_op *op = tm_plan_ops(plan, &n);
    reset(to);
    assert_true((n + 2) * runs <= MANY);
    for (uint32_t i = 0; i < n * runs; i++) {
        put(to, op[i % n].engine, 0);
        to->op[i].op = op[i % n].op;
        if (is_disk(&op[i % n])) to->object[i] = *tm_plan_object(plan, op[i % n].object);
    }
    for (uint32_t i = 0; i < 2 * runs; i++) put(to, i < runs ? TM_ENGINE_COMM : TM_ENGINE_DEVICE, 0);
    for (uint32_t i = 0; i < n * runs; i++) {
        uint32_t r = i / n;
        for (k = 0; k < op[i % n].n_succ; k++) edge(to, i, r * n + plan->succ[op[i % n].first_succ + k]);
        uint32_t ties;
        const uint32_t *next = tm_link_successors(link, i % n, &ties);
        for (k = 0; k < ties && r + 1 < runs; k++) edge(to, i, (r + 1) * n + next[k]);
        if (!is_disk(&op[i % n])) edge(to, i, compute + r);
        edge(to, i, all + r);
    }
    for (uint32_t i = 0; i < 2 * runs; i++) {
        uint32_t r = i % runs + (i < runs ? 1 : 2);
        for (k = 0; k < n && r < runs; k++)
            if (i >= runs || !is_disk(&op[k])) edge(to, compute + i, r * n + k);
    }
}

static void linked_runs_take_as_long_as_one_long_plan(void **state) {
    (void)state;
    double end[MANY], faster = 0;
    block_bytes = 4194304;
    for (uint64_t seed = 30; seed < 42; seed++) {
        tm_layout *layout;
        tm_link *link;
        tm_plan *plan = random_plan(seed, &layout);
        tm_machine hw = machine(1e9 * (1 + draw(3)), 1e9 * (1 + draw(3)), draw(5) / 4.0);
        uint32_t runs = 1 + draw(3), n = plan->n_op;
        assert_int_equal(tm_link_create(&link, plan, plan), TM_OK);
        unroll(&m, plan, link, runs + 1);
        plain_simulation(&m.plan, &hw, 32, 8, end);
        double want = end[(runs + 1) * n + runs - 1] - (runs > 1 ? end[(runs + 1) * n + runs - 2] : 0);
        double got = simulate(plan, (tm_sim_opts){.machine = &hw, .runs = runs, .link = link}).seconds;
        if (fabs(got - want) > 1e-6 * want) fail_msg("seed %d: %.9g s, plainly %.9g s", (int)seed, got, want);
        hw.disk.latency = 0.01; /* the first reads of a run alone take a while: a link hides it behind the run before */
        faster += simulate(plan, (tm_sim_opts){.machine = &hw}).seconds /
                      simulate(plan, (tm_sim_opts){.machine = &hw, .runs = 3, .link = link}).seconds -
                  1;
        tm_link_free(link);
        tm_plan_free(plan);
        tm_layout_free(layout);
    }
    print_message("linked runs are faster by %.3f on average\n", faster / 12);
    assert_true(faster > 0);
}

static double total_cost(const tm_plan *plan) {
    uint32_t n;
    const tm_plan_op *op = tm_plan_ops(plan, &n);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += op[i].engine == TM_ENGINE_CPU ? op[i].op.arg[0] * 1e-3 : 0;
    return sum;
}

/* No step is shorter than its compute or its transfers, nor longer than all of it one after another. */
static void seconds_lie_between_the_bounds(void **state) {
    (void)state;
    for (uint64_t seed = 50; seed < 60; seed++) {
        tm_layout *layout;
        tm_plan *plan = random_plan(seed, &layout);
        tm_machine hw = machine(1.5e9, 1e9, 0);
        const tm_plan_info *info = tm_plan_get_info(plan);
        double compute = total_cost(plan), disk = 0, last = INFINITY;
        for (int k = 0; k < TM_KINDS; k++)
            disk += (double)info->read_bytes[k] / 1.5e9 + (double)info->write_bytes[k] / 1e9;
        double seconds = simulate(plan, (tm_sim_opts){.machine = &hw}).seconds;
        assert_true(compute > 0.1 && disk > 0.1);
        assert_true(seconds >= fmax(compute, disk) * (1 - 1e-9));
        assert_true(seconds <= (compute + disk) * (1 + 1e-9));
        near(simulate(plan, (tm_sim_opts){.machine = &hw, .no_disk = true}).seconds, compute);
        for (double faster = 1; faster <= 16; faster *= 2) { /* list scheduling may lose a little, never much */
            hw = machine(1.5e9 * faster, 1e9 * faster, 0);
            double now = simulate(plan, (tm_sim_opts){.machine = &hw}).seconds;
            assert_true(now <= last * 1.02);
            last = now;
        }
        tm_plan_free(plan);
        tm_layout_free(layout);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_then_compute),
        cmocka_unit_test(reads_share_the_disk),
        cmocka_unit_test(reads_and_writes_slow_each_other),
        cmocka_unit_test(moving_bytes_takes_cpu_time),
        cmocka_unit_test(engines_overlap),
        cmocka_unit_test(what_cannot_run_is_said),
        cmocka_unit_test(random_plans_take_as_long_as_in_the_plain_simulation),
        cmocka_unit_test(linked_runs_take_as_long_as_one_long_plan),
        cmocka_unit_test(seconds_lie_between_the_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
