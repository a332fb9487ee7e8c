/* Many micro-batches: what they need is counted before anything of theirs is built.
 *
 * From a few on, each micro-batch brings the same operations and the same frames as any other. So what plans take grows
 * by so many bytes each; and what lies in the slab while a certain operation of a certain micro-batch runs, too: a line.
 * The lines are drawn through the programs of few micro-batches and of one more. The highest is what no slab is
 * smaller than, of any number of them, exactly. How much is left between frames is seen in two programs that are packed.
 *
 *     bytes
 *       |            . /          frames of the micro-batches, which wait for the next unit
 *       |          . /
 *       |.......  /               (..: packed)
 *       |--------/                the largest weights and their gradient
 *       +---------------- micro-batches
 *
 * So more than the frames and the plans have room for is refused at once. Whether what lies between the two lines fits,
 * packing says. */
#include "planner/choice_internal.h"
#include "step/op.h"

#include <stdlib.h>

/* FEW: the first of them and the last have neighbours that are neither. Operations: of a program that is packed as a
 * sample; of all that are packed to find out how many fit, and what all of them need. */
enum { FEW = 5, MIDDLE = 2, LEAST_SAMPLE = 16, SAMPLE_OPS = 60000, SEARCH_OPS = 400000, PACKED_OPS = 400000 };

/* So many bytes, or operations, with `from` micro-batches, and so many more for each one more. */
typedef struct growth {
    uint64_t from, first, each;
} growth;

static uint64_t grown(const growth *g, uint64_t n) {
    uint64_t more = n > g->from ? n - g->from : 0;
    return more < (UINT64_MAX - g->first) / (g->each + 1) ? g->first + g->each * more : UINT64_MAX;
}

static growth through(uint64_t at, uint64_t one, uint64_t further, uint64_t other) {
    TM_ASSERT(further > at);
    return (growth){.from = at, .first = one, .each = other > one ? (other - one) / (further - at) : 0};
}

/* ---- lines ----------------------------------------------------------------------------------------------------- */

/* What is in use at each operation of a way's programs that grow, and what plans and operations they come to. */
typedef struct sample {
    const way_list *w;
    uint32_t left_out; /* operations of this micro-batch are, if there is one */
    uint64_t *load;
    uint32_t n;
    size_t cap;
    uint64_t plans, ops, rest; /* rest: the least slab of the other programs */
} sample;

static bool grows(way_program which) {
    return which == WAY_STEP || which == WAY_FIRST_STEP;
}

static tm_status see_loads(sample *s, const tm_program *p, uint64_t share) {
    const tm_job *job = s->w->ask->job;
    uint32_t n = tm_program_ops(p);
    uint64_t device;
    tm_plan_opts po;
    TM_TRY(way_program_opts(s->w, p, share, &po, &device));
    TM_TRY(tm_grow(&s->load, &s->cap, s->n + n, sizeof *s->load));
    uint64_t *load = s->load + s->n;
    TM_TRY(tm_plan_loads(job->layout, p, &po, load));
    for (uint32_t i = 0; i < n; i++)
        if (op_micro_batch(job, tm_program_get(p, i)) != s->left_out) s->load[s->n++] = load[i];
    return TM_OK;
}

static tm_status see(void *ctx, way_program which, const tm_program *p, uint64_t share) {
    sample *s = ctx;
    way_needs n = {0};
    s->plans += way_plan_bytes(s->w, which, p);
    if (which == WAY_EVALUATION) return TM_OK;
    if (grows(which)) {
        s->ops += tm_program_ops(p);
        return see_loads(s, p, share);
    }
    TM_TRY(way_program_least(s->w, p, share, &n));
    s->rest = tm_max_u64(s->rest, n.least);
    return TM_OK;
}

static tm_status take_sample(sample *s, const way_list *w, const pass_opts *way, uint32_t n, uint32_t left_out) {
    pass_opts o = *way;
    o.shape.micro_batches = n;
    *s = (sample){.w = w, .left_out = left_out};
    return way_programs(w, &o, see, s);
}

/* How a way's needs grow. */
typedef struct forecast {
    bool known;
    growth plans, ops;
    growth *line; /* of those that rise alike the highest, the steepest last */
    uint32_t n;
    uint64_t rest;
    bool sampled; /* with it, or 0 so far: */
    growth waste; /* between frames */
    uint64_t device;
} forecast;

static int by_slope(const void *a, const void *b) {
    const growth *x = a, *y = b;
    if (x->each != y->each) return x->each < y->each ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void keep_highest(forecast *f) {
    uint32_t n = 0;
    qsort(f->line, f->n, sizeof *f->line, by_slope);
    for (uint32_t i = 0; i < f->n; i++)
        if (i + 1 == f->n || f->line[i + 1].each != f->line[i].each) f->line[n++] = f->line[i];
    f->n = n;
}

/* Programs that differ by more than a micro-batch tell nothing: then it is not known. */
static tm_status draw_lines(forecast *f, const sample *few, const sample *more) {
    if (few->n != more->n || few->n == 0) return TM_OK;
    f->line = tm_malloc(sizeof *f->line * few->n);
    if (!f->line) return tm_nomem(sizeof *f->line * few->n);
    for (f->n = 0; f->n < few->n; f->n++) f->line[f->n] = through(FEW, few->load[f->n], FEW + 1, more->load[f->n]);
    keep_highest(f);
    f->plans = through(FEW, few->plans, FEW + 1, more->plans);
    f->ops = through(FEW, few->ops, FEW + 1, more->ops);
    f->rest = few->rest;
    f->known = true;
    return TM_OK;
}

/* No slab is smaller. */
static uint64_t frames_of(const forecast *f, uint64_t n) {
    uint64_t most = f->rest;
    for (uint32_t i = 0; i < f->n; i++) most = tm_max_u64(most, grown(&f->line[i], n));
    return most;
}

static tm_status forecast_way(const way_list *w, const pass_opts *way, forecast *f) {
    sample few = {0}, more = {0};
    *f = (forecast){0};
    tm_phase_step(&w->ask->job->progress.planning);
    tm_status rc = take_sample(&few, w, way, FEW, FEW);
    if (rc == TM_OK) rc = take_sample(&more, w, way, FEW + 1, MIDDLE);
    if (rc == TM_OK) rc = draw_lines(f, &few, &more);
    tm_free(few.load);
    tm_free(more.load);
    return rc;
}

/* So many that the steepest line is the highest, as it is for all that are more; as far as operations allow. */
static uint32_t sample_size(const forecast *f) {
    uint64_t most = SAMPLE_OPS / (2 * tm_max_u64(f->ops.each, 1)), n = LEAST_SAMPLE;
    while (n < most && frames_of(f, n) > grown(&f->line[f->n - 1], n)) n *= 2;
    return (uint32_t)tm_max_u64(tm_min_u64(n, most), LEAST_SAMPLE);
}

static tm_status waste_of(const way_list *w, const pass_opts *way, forecast *f, uint32_t n, uint64_t *waste) {
    pass_opts o = *way;
    way_needs needs;
    o.shape.micro_batches = n;
    TM_TRY(way_needs_of(w, &o, &needs));
    *waste = needs.least - tm_min_u64(needs.least, frames_of(f, n));
    f->device = tm_max_u64(f->device, needs.device);
    return TM_OK;
}

/* Of so many micro-batches and of twice as many: what has grown goes on growing. */
static tm_status sample_waste(const way_list *w, const pass_opts *way, forecast *f) {
    uint32_t n = sample_size(f);
    uint64_t one, other;
    f->sampled = true;
    TM_TRY(waste_of(w, way, f, n, &one));
    TM_TRY(waste_of(w, way, f, 2 * n, &other));
    f->waste = other > one ? through(n, one, 2 * n, other) : (growth){.first = other};
    return TM_OK;
}

/* ---- what fits ------------------------------------------------------------------------------------------------- */

/* About what it takes, once there is a sample; no more than that before. */
static uint64_t slab_about(const forecast *f, uint64_t n) {
    uint64_t frames = frames_of(f, n), between = grown(&f->waste, n);
    return frames < UINT64_MAX - between ? frames + between : UINT64_MAX;
}

static uint64_t with_plans(const forecast *f, uint64_t slab, uint64_t n) {
    way_needs needs = {.least = slab, .plans = grown(&f->plans, n)};
    if (needs.plans > UINT64_MAX / 4 || slab > UINT64_MAX / 4) return UINT64_MAX;
    return way_least(&needs);
}

static uint64_t least_with(const forecast *f, uint64_t n) {
    return with_plans(f, slab_about(f, n), n);
}

/* The most micro-batches, fewer than `n`, that seem to fit; 0: not even FEW do. Without a sample: no more do. */
static uint32_t most_about(const way_list *w, const forecast *f, uint32_t n) {
    uint32_t lo = 0, hi = n;
    TM_ASSERT(n > FEW);
    if (!f->known || !way_device_has_room(w, f->device)) return 0;
    while (lo + 1 < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (least_with(f, mid) <= w->room)
            lo = mid;
        else
            hi = mid;
    }
    return lo < FEW ? 0 : lo;
}

static tm_status has_room(const way_list *w, const pass_opts *way, uint32_t n, bool *fits) {
    way_needs needs;
    pass_opts o = *way;
    o.shape.micro_batches = n;
    *fits = false;
    if (n < FEW) return TM_OK;
    TM_TRY(way_needs_of(w, &o, &needs));
    *fits = way_least(&needs) <= w->room;
    return TM_OK;
}

/* Packing has the last word, as long as there are operations to spend on it. *n, fewer than `all`, is near; then it is
 * the most. Steps away from it double until one number fits and another does not, and what is between those is halved. */
static tm_status hold_to_packing(const way_list *w, const pass_opts *way, const forecast *f, uint32_t all, uint32_t *n,
                                 uint64_t *spent) {
    uint32_t good = 0, bad = all, step = 1, at = *n;
    while (bad - good > 1 && bad > FEW) {
        bool fits;
        *spent += grown(&f->ops, at);
        if (*spent > SEARCH_OPS) break;
        TM_TRY(has_room(w, way, at, &fits));
        *(fits ? &good : &bad) = at;
        if (good && bad < all)
            at = good + (bad - good) / 2;
        else if (fits)
            at = (uint32_t)tm_min_u64((uint64_t)at + step, all - 1);
        else
            at = at > step ? at - step : 0;
        step *= 2;
    }
    if (good)
        *n = good;
    else if (*n >= bad)
        *n = bad > FEW ? bad - 1 : 0;
    return TM_OK;
}

/* Of the way by which most seem to fit so far more is found out, until nothing is left to find out about it. */
static tm_status count_most(way_list *w, forecast *f) {
    enum { COUNTED, SAMPLED, PACKED };
    uint32_t all = w->ask->way[0].shape.micro_batches, n = w->ask->n, best = 0;
    uint64_t spent = 0;
    uint32_t *most = tm_calloc(n + 1, sizeof *most);
    uint8_t *known = tm_calloc(n + 1, sizeof *known);
    tm_status rc = most && known ? TM_OK : tm_nomem(n * sizeof *most);
    for (uint32_t i = 0; i < n && rc == TM_OK; i++) most[i] = most_about(w, &f[i], all);
    while (rc == TM_OK) {
        for (uint32_t i = 0; i < n; i++)
            if (most[i] > most[best]) best = i;
        if (most[best] == 0 || known[best] == PACKED) break;
        const pass_opts *way = &w->ask->way[best];
        if (known[best]++ == COUNTED) {
            if (!f[best].sampled) rc = sample_waste(w, way, &f[best]);
            most[best] = most_about(w, &f[best], all);
        } else {
            rc = hold_to_packing(w, way, &f[best], all, &most[best], &spent);
        }
    }
    if (rc == TM_OK) w->most_micro_batches = most[best];
    tm_free(most);
    tm_free(known);
    return rc;
}

/* Operations that are packed to know the least budget to the byte. */
static bool is_packed_quickly(const forecast *f, uint64_t n, uint64_t *spent) {
    uint64_t ops = grown(&f->ops, n);
    bool quickly = ops < PACKED_OPS && *spent + ops <= PACKED_OPS;
    *spent += quickly ? ops : 0;
    return quickly;
}

/* Of way `i`, for all there are: packed, or where that takes long with what a sample leaves between frames. */
static tm_status find_least(way_list *w, uint32_t i, forecast *f, uint64_t *spent) {
    const pass_opts *way = &w->ask->way[i];
    uint64_t n = way->shape.micro_batches;
    if (is_packed_quickly(f, n, spent)) return way_minimum(w, i);
    if (!f->sampled) TM_TRY(sample_waste(w, way, f));
    w->plans[i] = grown(&f->plans, n);
    w->least[i] = least_with(f, n);
    w->minimum_anyway = tm_min_u64(w->minimum_anyway, w->least[i]);
    w->minimum_device = tm_min_u64(w->minimum_device, f->device);
    if (!way_device_has_room(w, f->device)) w->least[i] = UINT64_MAX;
    return TM_OK;
}

/* What all of them need at least: of the way that may need least so far more is found out. */
static tm_status count_least(way_list *w, forecast *f) {
    uint64_t n = w->ask->way[0].shape.micro_batches, spent = 0;
    for (;;) {
        uint32_t best = UINT32_MAX;
        uint64_t least = UINT64_MAX;
        for (uint32_t i = 0; i < w->ask->n; i++) {
            if (!f[i].known) continue;
            uint64_t of = w->least[i] ? w->least[i] : least_with(&f[i], n);
            if (best != UINT32_MAX && of >= least) continue;
            best = i;
            least = of;
        }
        TM_ASSERT(best < w->ask->n); /* may_fit() is true where nothing is known */
        w->minimum = w->least[best];
        if (w->minimum) return TM_OK;
        TM_TRY(find_least(w, best, &f[best], &spent));
    }
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

/* An unlimited budget has what the machine has. */
static uint64_t room_of(const way_list *w) {
    return w->budget.host_bytes == UINT64_MAX ? tm_mem_available_bytes() : w->budget.slab_bytes;
}

/* Whether some way's plans and frames have room, as far as one knows. */
static bool may_fit(const way_list *w, const forecast *f) {
    uint64_t n = w->ask->way[0].shape.micro_batches;
    for (uint32_t i = 0; i < w->ask->n; i++)
        if (way_is_asked(w, i) && (!f[i].known || with_plans(&f[i], frames_of(&f[i], n), n) <= w->room)) return true;
    return false;
}

static tm_status count(way_list *w, forecast *f, bool without_packing) {
    for (uint32_t i = 0; i < w->ask->n; i++)
        if (way_is_asked(w, i)) TM_TRY(forecast_way(w, &w->ask->way[i], &f[i]));
    bool build = may_fit(w, f);
    if (build && without_packing) return TM_OK;
    if (build) TM_TRY(way_list_pack(w));
    if (build && (w->minimum == UINT64_MAX || w->minimum <= w->room)) return TM_OK;
    w->too_many = true;
    if (!build) TM_TRY(count_least(w, f));
    return count_most(w, f);
}

tm_status way_frames(const way_list *w, const pass_opts *way, uint32_t n, uint64_t *bytes) {
    forecast f;
    TM_TRY(forecast_way(w, way, &f));
    *bytes = f.known ? frames_of(&f, n) : 0;
    tm_free(f.line);
    return TM_OK;
}

tm_status way_list_count(way_list *w, bool without_packing) {
    forecast *f = tm_calloc(w->ask->n + 1, sizeof *f);
    tm_status rc = f ? TM_OK : tm_nomem(w->ask->n * sizeof *f);
    w->room = room_of(w);
    if (rc == TM_OK) rc = count(w, f, without_packing);
    for (uint32_t i = 0; f && i < w->ask->n; i++) tm_free(f[i].line);
    tm_free(f);
    return rc;
}
