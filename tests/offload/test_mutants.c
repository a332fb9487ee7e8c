/* Mutants: a plan with one thing changed - an edge gone, frames swapped or moved, a transfer dropped or of another
 * object - must be rejected by the verifier wherever some order of completion changes the result. An interpreter of
 * contents decides that: memory and extents hold, for every 4 KiB, a symbol of what was computed to be there; an order
 * is a legal order of starts and completions in which a transfer moves its bytes when it starts or when it completes.
 * It shares nothing with compiler, verifier or executor, and follows no data.
 *
 *   small   every edge deleted, every two frames of a size swapped
 *   large   20,000 operations; TIDEMILL_MUTANTS (400; 10,000 for the long run) sampled
 *   huge    500,000 operations are compiled and proved in seconds, in time near-linear */
#include "offload/offload_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum { PAGE = TM_FRAME_ALIGN, FLIGHT = 32, ORDERS = 4 };

static uint64_t rng;
static uint32_t rnd(uint32_t n) {
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng >> 33) * n >> 31);
}

/* ---- random programs: units of weights and moments, visited forward, backward and by an update ----------------- */

typedef struct subject {
    tm_layout *layout;
    tm_program *program;
    tm_plan *plan;
} subject;

static uint32_t state_object(tm_layout *l, tm_kind kind, uint32_t unit, uint32_t bundle, uint32_t pages) {
    return tm_layout_object(
        l,
        &(tm_object){.kind = kind, .unit = unit, .bundle = bundle, .bytes = (uint64_t)pages * PAGE, .pageable = true});
}

static uint32_t scratch(tm_program *p, uint32_t unit, uint32_t pages) {
    return tm_program_interval(
        p, tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .unit = unit, .bytes = (uint64_t)pages * PAGE}), 1);
}

enum { TILES = 3 };

static void op(tm_program *p, uint16_t code, uint32_t a, uint32_t b) {
    tm_program_op(p, &(tm_op){.code = code, .arg = {a, b}});
}

/* Forward reads the weights and writes an activation, backward reads both and writes gradients, the update changes
 * weights and moments tile by tile. */
static void make_program(subject *s, uint32_t units, uint32_t repeat) {
    tm_layout *l = s->layout;
    tm_program *p;
    assert_int_equal(tm_program_create(&p, l, "mutant"), TM_OK);
    s->program = p;
    uint32_t *activation = calloc(units + 1, sizeof *activation), *grad = calloc((size_t)units * TILES, sizeof *grad);
    assert_true(activation && grad);
    for (uint32_t u = 0; u <= units; u++)
        activation[u] = tm_program_temp(
            p, &(tm_object){
                   .kind = TM_KIND_ACTIVATION, .unit = u, .bytes = (uint64_t)(1 + rnd(3)) * PAGE, .pageable = true});
    op(p, 1, 0, 0);
    tm_program_use(p, tm_program_interval(p, activation[0], 1), TM_USE_WRITE);
    for (uint32_t u = 0; u < units; u++) {
        uint32_t w = tm_program_interval(p, u * TILES * 3, TILES), in = tm_program_interval(p, activation[u], 1),
                 out = tm_program_interval(p, activation[u + 1], 1);
        for (uint32_t r = 0; r < repeat; r++) {
            op(p, 2, u, r);
            tm_program_use(p, w, TM_USE_READ);
            tm_program_use(p, in, TM_USE_READ);
            tm_program_use(p, out, r ? TM_USE_UPDATE : TM_USE_WRITE);
            tm_program_use(p, scratch(p, u, 1 + rnd(2)), TM_USE_WRITE);
        }
    }
    for (uint32_t u = units; u-- > 0;) {
        uint32_t w = tm_program_interval(p, u * TILES * 3, TILES), in = tm_program_interval(p, activation[u], 1),
                 out = tm_program_interval(p, activation[u + 1], 1);
        for (uint32_t r = 0; r < repeat; r++) {
            op(p, 3, u, r);
            tm_program_use(p, w, TM_USE_READ);
            tm_program_use(p, out, TM_USE_READ);
            tm_program_use(p, in, TM_USE_UPDATE);
            tm_program_use(p, scratch(p, u, 1 + rnd(2)), TM_USE_WRITE);
        }
        for (uint32_t t = 0; t < TILES; t++) {
            uint32_t g = grad[u * TILES + t] =
                tm_program_temp(p, &(tm_object){.kind = TM_KIND_GRAD, .unit = u, .bytes = PAGE, .pageable = true});
            op(p, 4, u, t);
            tm_program_use(p, tm_program_interval(p, activation[u], 1), TM_USE_READ);
            tm_program_use(p, tm_program_interval(p, g, 1), TM_USE_WRITE);
        }
    }
    for (uint32_t u = 0; u < units; u++)
        for (uint32_t t = 0; t < TILES; t++) {
            uint32_t first = u * TILES * 3;
            op(p, 5, u, t);
            tm_program_use(p, tm_program_interval(p, first + t, 1), TM_USE_UPDATE);
            tm_program_use(p, tm_program_interval(p, first + TILES + t, 1), TM_USE_UPDATE);
            tm_program_use(p, tm_program_interval(p, first + 2 * TILES + t, 1), TM_USE_UPDATE);
            tm_program_use(p, tm_program_interval(p, grad[u * TILES + t], 1), TM_USE_READ);
        }
    free(activation);
    free(grad);
}

static void make_layout(subject *s, uint32_t units) {
    uint32_t bundle = 0;
    assert_int_equal(tm_layout_create(&s->layout), TM_OK);
    for (uint32_t u = 0; u < units; u++, bundle++) {
        for (uint32_t t = 0; t < TILES; t++) (void)state_object(s->layout, TM_KIND_WEIGHT_HI, u, bundle, 1 + rnd(2));
        for (uint32_t t = 0; t < TILES; t++) (void)state_object(s->layout, TM_KIND_EXP_AVG, u, ++bundle, 1 + rnd(2));
        for (uint32_t t = 0; t < TILES; t++) (void)state_object(s->layout, TM_KIND_EXP_AVG_SQ, u, ++bundle, 1 + rnd(2));
    }
}

/* `more`: of the state's size, on top of the least that will do. */
static void subject_make(subject *s, uint64_t seed, uint32_t units, uint32_t repeat, double more) {
    uint64_t least, all = 0;
    *s = (subject){0};
    rng = seed;
    make_layout(s, units);
    make_program(s, units, repeat);
    tm_plan_opts o = {.choose_residency = true, .cache = true, .spill = true, .window_mib = 1};
    assert_int_equal(tm_plan_minimum(s->layout, s->program, &o, &least), TM_OK);
    for (uint32_t i = 0; i < tm_layout_objects(s->layout); i++) all += tm_layout_get(s->layout, i)->frame_bytes;
    o.slab_bytes = least + (uint64_t)(more * (double)all);
    assert_int_equal(tm_plan_compile(&s->plan, s->layout, s->program, &o, NULL), TM_OK);
}

static void subject_free(subject *s) {
    tm_plan_free(s->plan);
    tm_program_free(s->program);
    tm_layout_free(s->layout);
}

/* ---- the interpreter of contents ------------------------------------------------------------------------------- */

typedef struct machine {
    const tm_plan *plan;
    uint32_t pages; /* of memory: the slab, and room for frames that a mutant moves out of it */
    uint64_t *memory, *extent;
    uint32_t *first_page; /* of each object's extent: state, then temporaries */
    uint32_t n_objects, n_state;
    uint32_t *pred, *ready, n_ready;
    struct flight {
        uint32_t op;
        bool moved;
    } flight[FLIGHT];
    uint32_t n_flight;
} machine;

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15ull)) * 0xff51afd7ed558ccdull;
    return (x ^ (x >> 32)) * 0xc4ceb9fe1a85ec53ull + b;
}

static const tm_object *object_of(const machine *m, uint32_t id) {
    return id & TM_TEMP_BIT ? &m->plan->temp[id & ~TM_TEMP_BIT] : &m->plan->layout->object[id];
}

static uint32_t extent_page(const machine *m, uint32_t id) {
    return m->first_page[id & TM_TEMP_BIT ? m->n_state + (id & ~TM_TEMP_BIT) : id];
}

static void machine_open(machine *m, const tm_plan *plan) {
    uint32_t at = 0;
    *m = (machine){.plan = plan, .n_state = plan->layout->n, .n_objects = plan->layout->n + plan->n_temp};
    m->first_page = calloc(m->n_objects + 1, sizeof *m->first_page);
    assert_non_null(m->first_page);
    for (uint32_t i = 0; i < m->n_objects; i++) {
        m->first_page[i] = at;
        at += (uint32_t)(object_of(m, i < m->n_state ? i : TM_TEMP_BIT | (i - m->n_state))->frame_bytes / PAGE);
    }
    m->first_page[m->n_objects] = at;
    m->pages = (uint32_t)(plan->info.slab_bytes / PAGE) + 64;
    m->memory = calloc(m->pages, sizeof *m->memory);
    m->extent = calloc(at + 1, sizeof *m->extent);
    m->pred = calloc(plan->n_op + 1, sizeof *m->pred);
    m->ready = calloc(plan->n_op + 1, sizeof *m->ready);
    assert_true(m->memory && m->extent && m->pred && m->ready);
}

static void machine_close(machine *m) {
    free(m->first_page);
    free(m->memory);
    free(m->extent);
    free(m->pred);
    free(m->ready);
}

/* State is on disk, or in memory where it is resident. */
static void machine_reset(machine *m) {
    const tm_layout *l = m->plan->layout;
    for (uint32_t i = 0; i < m->pages; i++) m->memory[i] = mix(i, 1);
    for (uint32_t i = 0; i < m->first_page[m->n_objects]; i++) m->extent[i] = mix(i, 2);
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; l->object[i].resident && k < l->object[i].frame_bytes / PAGE; k++)
            m->memory[l->object[i].address / PAGE + k] = m->extent[m->first_page[i] + k];
    m->n_ready = m->n_flight = 0;
    for (uint32_t i = 0; i < m->plan->n_op; i++)
        if ((m->pred[i] = m->plan->op[i].n_pred) == 0) m->ready[m->n_ready++] = i;
}

static uint64_t machine_result(const machine *m) {
    const tm_layout *l = m->plan->layout;
    uint64_t h = 0;
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < l->object[i].frame_bytes / PAGE; k++)
            h = mix(h, l->object[i].resident ? m->memory[l->object[i].address / PAGE + k]
                                             : m->extent[m->first_page[i] + k]);
    return h;
}

static void compute(machine *m, uint32_t op) {
    const tm_plan *p = m->plan;
    uint64_t h = op;
    for (uint32_t t = p->first_touch[op]; t < p->first_touch[op + 1]; t++)
        for (uint64_t k = 0; (p->touch[t].access & TM_USE_READ) && k < p->touch[t].bytes / PAGE; k++)
            h = mix(h, m->memory[p->touch[t].address / PAGE + k]);
    for (uint32_t t = p->first_touch[op]; t < p->first_touch[op + 1]; t++)
        for (uint64_t k = 0; (p->touch[t].access & TM_USE_WRITE) && k < p->touch[t].bytes / PAGE; k++)
            m->memory[p->touch[t].address / PAGE + k] = mix(h, (t - p->first_touch[op]) * 1024 + k);
}

static void move(machine *m, uint32_t op) {
    const tm_plan_op *o = &m->plan->op[op];
    uint64_t *memory = m->memory + o->address / PAGE, *extent = m->extent + extent_page(m, o->object);
    size_t bytes = object_of(m, o->object)->frame_bytes / PAGE * sizeof *memory;
    if (o->engine == TM_ENGINE_DISK_READ)
        memcpy(memory, extent, bytes);
    else
        memcpy(extent, memory, bytes);
}

static void complete(machine *m, uint32_t op) {
    const tm_plan_op *o = &m->plan->op[op];
    for (uint32_t i = 0; i < o->n_succ; i++)
        if (--m->pred[m->plan->succ[o->first_succ + i]] == 0) m->ready[m->n_ready++] = m->plan->succ[o->first_succ + i];
}

static bool is_disk(const tm_plan_op *o) {
    return o->engine == TM_ENGINE_DISK_READ || o->engine == TM_ENGINE_DISK_WRITE;
}

/* Of what is ready: at random, or the lowest index; `late` only where nothing else is left. */
static uint32_t take_ready(machine *m, bool random, uint32_t late) {
    uint32_t at = 0;
    if (random) {
        at = rnd(m->n_ready);
        if (m->ready[at] == late && m->n_ready > 1) at = (at + 1) % m->n_ready;
    } else {
        for (uint32_t i = 1; i < m->n_ready; i++)
            if (m->ready[i] < m->ready[at]) at = i;
    }
    uint32_t op = m->ready[at];
    m->ready[at] = m->ready[--m->n_ready];
    return op;
}

static void land(machine *m, uint32_t late) {
    uint32_t i = rnd(m->n_flight);
    if (m->flight[i].op == late && m->n_flight > 1) i = (i + 1) % m->n_flight;
    struct flight f = m->flight[i];
    m->flight[i] = m->flight[--m->n_flight];
    if (!f.moved) move(m, f.op);
    complete(m, f.op);
}

/* One legal order. `late`: an operation that is kept waiting as long as there is anything else to do. */
static uint64_t run_order(machine *m, bool random, uint32_t late) {
    machine_reset(m);
    for (uint32_t done = 0; done < m->plan->n_op;) {
        bool only_late = m->n_ready == 0 || (m->n_ready == 1 && m->ready[0] == late);
        if (m->n_flight > 0 && (only_late || m->n_flight == FLIGHT || (random && rnd(3) == 0))) {
            land(m, late);
            done++;
            continue;
        }
        assert_true(m->n_ready > 0); /* else the plan stands still */
        uint32_t op = take_ready(m, random, late);
        if (!is_disk(&m->plan->op[op])) {
            compute(m, op);
            complete(m, op);
            done++;
        } else if (random) {
            bool now = op != late && rnd(2);
            m->flight[m->n_flight++] = (struct flight){op, now};
            if (now) move(m, op);
        } else {
            move(m, op);
            complete(m, op);
            done++;
        }
    }
    return machine_result(m);
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

typedef struct tally {
    uint32_t mutants, rejected, harmless;
} tally;

/* `late`: where a mutant is most likely to show. */
static void judge(machine *m, uint64_t truth, uint32_t late, const char *what, uint32_t at, tally *t) {
    t->mutants++;
    if (tm_plan_verify(m->plan) != TM_OK) {
        assert_int_equal(tm_error_get()->code, TM_EBUG);
        tm_error_clear();
        t->rejected++;
        return;
    }
    t->harmless++;
    for (int i = 0; i < ORDERS; i++)
        if (run_order(m, true, i % 2 ? TM_NONE : late) != truth)
            fail_msg("%s at operation %u is accepted, and an order of completion changes the result", what, at);
}

static void original_holds(machine *m, uint64_t truth) {
    if (tm_plan_verify(m->plan) != TM_OK) fail_msg("%s", tm_error_get()->text);
    for (int i = 0; i < 20; i++) assert_int_equal(run_order(m, true, i % 2 ? TM_NONE : rnd(m->plan->n_op)), truth);
}

/* ---- mutations, each undone ------------------------------------------------------------------------------------ */

static void without_edge(machine *m, uint64_t truth, uint32_t op, uint32_t s, tally *t) {
    tm_plan *p = (tm_plan *)m->plan;
    tm_plan_op *o = &p->op[op];
    uint32_t *edge = &p->succ[o->first_succ], to = edge[s];
    memmove(edge + s, edge + s + 1, (o->n_succ - s - 1) * sizeof *edge);
    o->n_succ--;
    p->op[to].n_pred--;
    judge(m, truth, op, "an edge less", op, t);
    memmove(edge + s + 1, edge + s, (o->n_succ - s) * sizeof *edge);
    edge[s] = to;
    o->n_succ++;
    p->op[to].n_pred++;
}

/* The operation's address of what it touches, wherever it is written down. */
static void set_address(tm_plan *p, uint32_t op, uint32_t touch, uint64_t address) {
    tm_plan_op *o = &p->op[op];
    for (uint32_t i = 0; !is_disk(o) && i < o->n_operands; i++)
        if (p->operand[o->first_operand + i] == p->touch[touch].address) p->operand[o->first_operand + i] = address;
    if (is_disk(o)) o->address = address;
    p->touch[touch].address = address;
}

static void with_frames_swapped(machine *m, uint64_t truth, uint32_t op_a, uint32_t a, uint32_t op_b, uint32_t b,
                                tally *t) {
    tm_plan *p = (tm_plan *)m->plan;
    uint64_t x = p->touch[a].address, y = p->touch[b].address;
    if (x == y || p->touch[a].bytes != p->touch[b].bytes) return;
    uint64_t *keep = malloc((p->op[op_a].n_operands + p->op[op_b].n_operands + 1) * sizeof *keep);
    assert_non_null(keep);
    memcpy(keep, p->operand + p->op[op_a].first_operand, p->op[op_a].n_operands * sizeof *keep);
    memcpy(keep + p->op[op_a].n_operands, p->operand + p->op[op_b].first_operand,
           p->op[op_b].n_operands * sizeof *keep);
    set_address(p, op_a, a, y);
    set_address(p, op_b, b, x);
    judge(m, truth, op_a, "frames swapped", op_a, t);
    set_address(p, op_a, a, x);
    set_address(p, op_b, b, y);
    memcpy(p->operand + p->op[op_a].first_operand, keep, p->op[op_a].n_operands * sizeof *keep);
    memcpy(p->operand + p->op[op_b].first_operand, keep + p->op[op_a].n_operands,
           p->op[op_b].n_operands * sizeof *keep);
    free(keep);
}

static void with_frame_moved(machine *m, uint64_t truth, uint32_t op, tally *t) {
    tm_plan *p = (tm_plan *)m->plan;
    uint32_t touch = p->first_touch[op] + rnd(p->first_touch[op + 1] - p->first_touch[op]);
    uint64_t x = p->touch[touch].address, n = p->op[op].n_operands;
    uint64_t *keep = malloc((n + 1) * sizeof *keep);
    assert_non_null(keep);
    memcpy(keep, p->operand + p->op[op].first_operand, n * sizeof *keep);
    set_address(p, op, touch, x >= PAGE && rnd(2) ? x - PAGE : x + PAGE);
    judge(m, truth, op, "a frame moved", op, t);
    set_address(p, op, touch, x);
    memcpy(p->operand + p->op[op].first_operand, keep, n * sizeof *keep);
    free(keep);
}

/* The operation is there and does nothing. */
static void without_transfer(machine *m, uint64_t truth, uint32_t op, tally *t) {
    tm_plan *p = (tm_plan *)m->plan;
    tm_plan_op keep = p->op[op];
    struct plan_touch *touch = &p->touch[p->first_touch[op]], kept = *touch;
    p->op[op].engine = TM_ENGINE_CPU;
    p->op[op].n_operands = 0;
    touch->access = 0;
    judge(m, truth, op, keep.engine == TM_ENGINE_DISK_READ ? "a fill dropped" : "a write-back dropped", op, t);
    p->op[op] = keep;
    *touch = kept;
}

static void of_other_object(machine *m, uint64_t truth, uint32_t op, tally *t) {
    tm_plan *p = (tm_plan *)m->plan;
    struct plan_touch *touch = &p->touch[p->first_touch[op]];
    uint32_t id = touch->object, other = rnd(p->layout->n);
    if (other == id || p->layout->object[other].frame_bytes != touch->bytes) return;
    p->op[op].object = touch->object = other;
    judge(m, truth, op, "another object's transfer", op, t);
    p->op[op].object = touch->object = id;
}

/* Their order in the list means nothing. */
static void with_successors_reordered(machine *m, uint64_t truth, uint32_t op, tally *t) {
    tm_plan *p = (tm_plan *)m->plan;
    tm_plan_op *o = &p->op[op];
    if (o->n_succ < 2) return;
    uint32_t a = o->first_succ, b = a + 1 + rnd(o->n_succ - 1), keep = p->succ[a];
    p->succ[a] = p->succ[b];
    p->succ[b] = keep;
    uint32_t harmless = t->harmless;
    judge(m, truth, op, "successors reordered", op, t);
    assert_int_equal(t->harmless, harmless + 1);
    p->succ[b] = p->succ[a];
    p->succ[a] = keep;
}

/* ---- small ------------------------------------------------------------------------------------------------------ */

static uint32_t op_of_touch(const tm_plan *p, uint32_t touch) {
    uint32_t lo = 0, hi = p->n_op;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (p->first_touch[mid] <= touch)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void small(uint64_t seed, double more) {
    subject s;
    machine m;
    tally edges = {0}, frames = {0};
    subject_make(&s, seed, 3, 2, more);
    machine_open(&m, s.plan);
    uint64_t truth = run_order(&m, false, TM_NONE);
    original_holds(&m, truth);
    for (uint32_t op = 0; op < s.plan->n_op; op++)
        for (uint32_t e = 0; e < s.plan->op[op].n_succ; e++) without_edge(&m, truth, op, e, &edges);
    uint32_t touches = s.plan->first_touch[s.plan->n_op];
    for (uint32_t a = 0; a < touches; a++)
        for (uint32_t b = a + 1; b < touches; b++)
            with_frames_swapped(&m, truth, op_of_touch(s.plan, a), a, op_of_touch(s.plan, b), b, &frames);
    print_message("  %u operations: %u edges deleted, %u rejected; %u frames swapped, %u rejected\n", s.plan->n_op,
                  edges.mutants, edges.rejected, frames.mutants, frames.rejected);
    assert_true(edges.mutants > 50 && edges.rejected > edges.mutants / 2);
    assert_true(frames.mutants > 500 && frames.rejected > frames.mutants * 9 / 10);
    original_holds(&m, truth);
    machine_close(&m);
    subject_free(&s);
}

static void small_plans_every_edge_and_every_swap(void **state) {
    (void)state;
    small(11, 0);
    small(12, 0.2);
    small(13, 0.6);
}

/* ---- large ------------------------------------------------------------------------------------------------------ */

static void sample(machine *m, uint64_t truth, tally t[6]) {
    const tm_plan *p = m->plan;
    uint32_t op = rnd(p->n_op), sort = rnd(6);
    if (sort == 0 && p->op[op].n_succ > 0) without_edge(m, truth, op, rnd(p->op[op].n_succ), &t[0]);
    if (sort == 1) {
        uint32_t n = p->first_touch[p->n_op], a = rnd(n), b = (a + 1 + rnd(60)) % n;
        with_frames_swapped(m, truth, op_of_touch(p, a), a, op_of_touch(p, b), b, &t[1]);
    }
    if (sort == 2 && p->first_touch[op + 1] > p->first_touch[op]) with_frame_moved(m, truth, op, &t[2]);
    if (sort == 3 && is_disk(&p->op[op])) without_transfer(m, truth, op, &t[3]);
    if (sort == 4 && is_disk(&p->op[op])) of_other_object(m, truth, op, &t[4]);
    if (sort == 5) with_successors_reordered(m, truth, op, &t[5]);
}

static void large_plans_sampled(void **state) {
    static const char *const names[] = {"edges deleted",     "frames swapped",  "frames moved",
                                        "transfers dropped", "objects changed", "successors reordered"};
    (void)state;
    const char *text = getenv("TIDEMILL_MUTANTS");
    uint32_t want = text ? (uint32_t)strtoul(text, NULL, 10) : 400, n = 0;
    subject s;
    machine m;
    tally t[6] = {0};
    subject_make(&s, 21, 430, 6, 0.1);
    assert_true(s.plan->n_op >= 20000);
    machine_open(&m, s.plan);
    uint64_t truth = run_order(&m, false, TM_NONE);
    original_holds(&m, truth);
    rng = 99;
    while (n < want) {
        sample(&m, truth, t);
        n = 0;
        for (int i = 0; i < 6; i++) n += t[i].mutants;
    }
    print_message("  %u operations\n", s.plan->n_op);
    for (int i = 0; i < 6; i++)
        print_message("  %5u %s, %u rejected, %u without effect in any order tried\n", t[i].mutants, names[i],
                      t[i].rejected, t[i].harmless);
    for (int i = 0; i < 5; i++) assert_true(t[i].rejected > t[i].mutants / 2);
    original_holds(&m, truth);
    machine_close(&m);
    subject_free(&s);
}

/* ---- huge ------------------------------------------------------------------------------------------------------- */

typedef struct cost {
    uint32_t ops;
    double compile, prove; /* seconds of processor */
} cost;

static double seconds(clock_t since) {
    return (double)(clock() - since) / CLOCKS_PER_SEC;
}

static cost cost_of(uint32_t units) {
    subject s;
    cost c = {.prove = 1e9};
    clock_t t0 = clock();
    subject_make(&s, 31, units, 6, 0.1);
    c.compile = seconds(t0);
    for (int i = 0; i < 3; i++) {
        t0 = clock();
        assert_int_equal(tm_plan_verify(s.plan), TM_OK);
        double took = seconds(t0);
        if (took < c.prove) c.prove = took;
    }
    c.ops = s.plan->n_op;
    subject_free(&s);
    print_message("  %u operations: %.2f s to compile, %.2f s to prove\n", c.ops, c.compile, c.prove);
    return c;
}

static void measure(uint32_t units, cost *least) {
    cost c = cost_of(units);
    least->ops = c.ops;
    least->compile = fmin(least->compile, c.compile);
    least->prove = fmin(least->prove, c.prove);
}

/* Twice the operations, at most three times the time. Neighbours only add to that of a processor, by its caches: where
 * it is too much, the least of more measurements counts, and what is not linear stays so. */
static void half_a_million_operations_in_seconds(void **state) {
    (void)state;
    cost half = {0, 1e9, 1e9}, whole = half;
    bool linear = false;
    for (unsigned tries = 0; tries < 5 && !linear; tries++) {
        measure(5200, &half);
        measure(10400, &whole);
        linear = whole.prove <= half.prove * 3 && whole.compile <= half.compile * 3;
#ifndef TIDEMILL_SANITIZED
        linear = linear && whole.compile + whole.prove < 20;
#endif
    }
    assert_true(whole.ops >= 500000 && half.ops >= 250000);
    if (!linear)
        fail_msg("the proof takes %.2f times as long, %.2f s, compiling %.2f times, %.2f s", whole.prove / half.prove,
                 whole.prove, whole.compile / half.compile, whole.compile);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_plans_every_edge_and_every_swap),
        cmocka_unit_test(large_plans_sampled),
        cmocka_unit_test(half_a_million_operations_in_seconds),
    };
    return cmocka_run_group_tests_name("mutants", tests, NULL, NULL);
}
