/* The program of one rank with a device: copies and collectives are operations of engines of their own.
 *
 *   forward     weights of a unit: host tiles -> device shard -> all-gather; the micro-batches
 *   backward    the same again, then its gradient: reduce-scatter -> rounded -> host tiles
 *   update      the optimizer over host tiles, each unit just before its weights are fetched (F) or after the norm (U)
 *
 * What is needed next is asked for one unit ahead in program order, so that its frames are others than those in use. */
#include "planner/imagine_internal.h"

#include <math.h>
#include <stdio.h>

#define NONE UINT32_MAX

typedef struct flow {
    imagine *x;
    tm_program *p;
    uint32_t K;
    uint32_t *hold;       /* visits, per unit: state that stays on the device */
    uint32_t *weights;    /* per unit: gathered; NONE: not now */
    uint32_t *act, *kept; /* per unit and micro-batch: boundary and interior on the device */
    uint32_t *away_obj;   /* the boundary on the host */
    uint32_t *grad, *sum; /* gradient of a unit's output per micro-batch; fp32 gradient of its weights */
    uint32_t *second;     /* per unit, hpZ: this rank's share of the node's copy; NONE: not yet */
    bool in_backward;
    uint32_t *rounded;       /* device: rounded gradients, state all there */
    uint32_t *parked;        /* update U: first of a unit's host tiles of rounded gradients */
    bool *updated, *reduced; /* update F; the unit's gradient has a first contribution */
    uint32_t step, partial;  /* visits */
    bool partial_written;
} flow;

/* ---- operations ---------------------------------------------------------------------------------------------- */

static void op(flow *f, uint16_t code, tm_engine engine, uint32_t unit, uint32_t which, double seconds) {
    imagine *x = f->x;
    if (x->ops == x->ops_cap) {
        uint32_t cap = x->ops_cap ? 2 * x->ops_cap : 4096;
        double *more = tm_realloc(x->seconds, cap * sizeof *more);
        if (!more) {
            x->ops_cap = 0; /* imagine_build reports it */
            return;
        }
        x->seconds = more;
        x->ops_cap = cap;
    }
    x->seconds[x->ops] = seconds;
    tm_program_op(f->p, &(tm_op){.code = code, .engine = (uint8_t)engine, .arg = {x->ops, unit, which}});
    x->ops++;
}

static uint32_t temp(flow *f, tm_kind kind, tm_tier tier, uint32_t unit, uint64_t bytes, bool pageable) {
    return tm_program_temp(
        f->p, &(tm_object){
                  .kind = kind, .unit = unit, .bytes = bytes ? bytes : 1, .pageable = pageable, .tier = (uint8_t)tier});
}

static uint32_t device(flow *f, uint32_t unit, uint64_t bytes) {
    return tm_program_visit(f->p, temp(f, TM_KIND_SCRATCH, TM_TIER_DEVICE, unit, bytes, false), 1);
}

static uint64_t tile_of(const imagine *x, const imagine_unit *u, uint32_t tile) {
    return tm_min_u64(x->grain, u->shard - (uint64_t)tile * x->grain);
}

static double width(const imagine *x) {
    return (double)tm_dtype_bytes(x->dtype);
}

/* ---- collectives --------------------------------------------------------------------------------------------- */

static double steps_of(uint32_t n) {
    return n > 1 ? ceil(log2(n)) : 0;
}

/* All-gather or reduce-scatter of `bytes` in all among `ranks` of them: links within a node and the network between
 * nodes carry their shares at the same time. */
static double exchange(imagine *x, double bytes, uint32_t ranks) {
    uint32_t inside = ranks < x->per_node ? ranks : x->per_node, nodes = (ranks + x->per_node - 1) / x->per_node;
    const tm_machine *m = &x->rank;
    double link = inside > 1 ? bytes * (ranks - 1) / ranks / m->link_bps : 0;
    double network = nodes > 1 ? bytes * (nodes - 1) / nodes / m->network_bps : 0;
    double far = bytes * (nodes - 1) / nodes / inside;
    x->sent[0] += bytes * (ranks - 1) / ranks - far;
    x->sent[1] += far;
    return fmax(link, network) + steps_of(inside) * m->link_latency + steps_of(nodes) * m->network_latency;
}

/* The other copies of a shard (one on each node where shards stay within a node) agree on its sum: fp32 slices are
 * added, then handed round rounded. */
static double agree(imagine *x, double bytes) {
    uint32_t copies = x->ranks / x->state_ranks;
    if (copies <= 1) return 0;
    if (x->state_ranks >= x->per_node) { /* every rank of a node sends its own */
        double each = (1 + width(x) / 4) * bytes * (copies - 1) / copies;
        x->sent[1] += each;
        return each * x->per_node / x->rank.network_bps + 2 * steps_of(copies) * x->rank.network_latency;
    }
    return exchange(x, bytes, copies) + exchange(x, bytes * width(x) / 4, copies);
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

static void copy_tiles_in(flow *f, uint32_t unit, uint32_t to, bool fresh) {
    imagine *x = f->x;
    const imagine_unit *u = &x->unit[unit];
    for (uint32_t t = 0; t < u->tiles; t++) {
        op(f, IMAGINE_COPY_IN, TM_ENGINE_COPY_IN, unit, t, (double)tile_of(x, u, t) * width(x) / x->rank.h2d_bps);
        tm_program_use(f->p, tm_program_visit(f->p, u->hi + t * u->stride, 1), TM_USE_READ);
        tm_program_use(f->p, to, fresh && t == 0 ? TM_USE_WRITE : TM_USE_UPDATE);
    }
}

static void gather_among(flow *f, uint32_t unit, uint32_t ranks, uint32_t from, uint32_t to, tm_use_access access) {
    imagine *x = f->x;
    double bytes = (double)x->unit[unit].elements * width(x);
    op(f, IMAGINE_GATHER, TM_ENGINE_COMM, unit, 0, exchange(x, bytes, ranks));
    if (from != NONE) tm_program_use(f->p, from, TM_USE_READ);
    tm_program_use(f->p, to, access);
}

static void gather(flow *f, uint32_t unit, uint32_t from, uint32_t to, tm_use_access access) {
    gather_among(f, unit, f->x->state_ranks, from, to, access);
}

/* hpZ: this rank's share of a copy that its node keeps from forward for backward. */
static void stash(flow *f, uint32_t unit) {
    imagine *x = f->x;
    uint64_t share = x->unit[unit].elements / x->second_ranks * tm_dtype_bytes(x->dtype);
    f->second[unit] = device(f, unit, share);
    op(f, IMAGINE_STASH, TM_ENGINE_DEVICE, unit, 0, 2 * (double)share / x->rank.gpu_bps);
    tm_program_use(f->p, f->weights[unit], TM_USE_READ);
    tm_program_use(f->p, f->second[unit], TM_USE_WRITE);
}

/* Bytes that an update moves: all state is read and written, the gradient read. fp16 weights are made anew from their
 * masters. */
static double update_bytes(const imagine *x, uint64_t n) {
    double w = (double)n * width(x), others = (double)imagine_master_bytes(x, n);
    return 2 * others + (x->dtype == TM_F16 ? 1 : 2) * w + w;
}

/* The optimizer over the unit's tiles, and the new weights on their way to where they stay. */
static void update(flow *f, uint32_t unit) {
    imagine *x = f->x;
    const imagine_unit *u = &x->unit[unit];
    bool whole = x->weight_ranks < x->state_ranks; /* every rank needs what the others updated */
    if (u->owner != unit || f->updated[unit]) return;
    f->updated[unit] = true;
    if (x->way.place == IMAGINE_ALL_ON) {
        op(f, IMAGINE_UPDATE, TM_ENGINE_DEVICE, unit, 0, update_bytes(x, u->shard) / x->rank.gpu_bps);
        tm_program_use(f->p, f->hold[unit], TM_USE_UPDATE);
        tm_program_use(f->p, f->rounded[unit], TM_USE_READ);
        tm_program_use(f->p, f->step, TM_USE_READ);
        if (whole) gather(f, unit, NONE, f->hold[unit], TM_USE_UPDATE);
        return;
    }
    for (uint32_t t = 0; t < u->tiles; t++) {
        uint32_t first = u->hi + t * u->stride;
        op(f, IMAGINE_UPDATE, TM_ENGINE_CPU, unit, t, update_bytes(x, tile_of(x, u, t)) / x->rank.cpu_bps);
        for (uint32_t i = 0; i < x->states; i++)
            tm_program_use(f->p, tm_program_visit(f->p, first + i, 1),
                           i == 0 && x->dtype == TM_F16 ? TM_USE_WRITE : TM_USE_UPDATE);
        uint32_t g = x->way.fold ? first + x->states : f->parked[unit] + t;
        tm_program_use(f->p, tm_program_visit(f->p, g, 1), TM_USE_READ);
        tm_program_use(f->p, f->step, TM_USE_READ);
    }
    if (x->way.place != IMAGINE_WEIGHTS_ON) return;
    uint32_t to = whole ? device(f, unit, u->shard * tm_dtype_bytes(x->dtype)) : f->hold[unit];
    copy_tiles_in(f, unit, to, whole);
    if (whole) gather(f, unit, to, f->hold[unit], TM_USE_UPDATE);
}

/* The unit's weights, whole, on the device, for the compute that follows. */
static void fetch(flow *f, uint32_t unit) {
    imagine *x = f->x;
    uint32_t own = x->unit[unit].owner;
    const imagine_unit *u = &x->unit[own];
    if (f->weights[own] != NONE) return;
    if (x->way.fold) update(f, own);
    if (x->way.place != IMAGINE_ON_HOST && x->weight_ranks == 1) {
        f->weights[own] = f->hold[own];
        return;
    }
    uint32_t from = x->way.place == IMAGINE_ON_HOST ? NONE : f->hold[own];
    f->weights[own] = device(f, own, u->elements * tm_dtype_bytes(x->dtype));
    if (f->in_backward && f->second[own] != NONE) {
        gather_among(f, own, x->second_ranks, f->second[own], f->weights[own], TM_USE_WRITE);
        return;
    }
    if (x->weight_ranks == 1) {
        copy_tiles_in(f, own, f->weights[own], true);
        return;
    }
    if (from == NONE) copy_tiles_in(f, own, from = device(f, own, u->shard * tm_dtype_bytes(x->dtype)), true);
    gather(f, own, from, f->weights[own], TM_USE_WRITE);
    if (x->second_ranks && !f->in_backward) stash(f, own);
}

static void drop(flow *f, uint32_t unit) {
    f->weights[f->x->unit[unit].owner] = NONE;
}

/* ---- activations --------------------------------------------------------------------------------------------- */

static size_t at(const flow *f, uint32_t unit, uint32_t mb) {
    return (size_t)unit * f->K + mb;
}

static void send_away(flow *f, uint32_t unit, uint32_t mb) {
    const imagine_unit *u = &f->x->unit[unit];
    size_t k = at(f, unit, mb);
    f->away_obj[k] = temp(f, TM_KIND_ACTIVATION, TM_TIER_HOST, unit, u->boundary, true);
    op(f, IMAGINE_COPY_OUT, TM_ENGINE_COPY_OUT, unit, mb, (double)u->boundary / f->x->rank.d2h_bps);
    tm_program_use(f->p, f->act[k], TM_USE_READ);
    tm_program_use(f->p, tm_program_visit(f->p, f->away_obj[k], 1), TM_USE_WRITE);
    f->act[k] = NONE;
}

static void call_back(flow *f, uint32_t unit, uint32_t mb) {
    const imagine_unit *u = &f->x->unit[unit];
    size_t k = at(f, unit, mb);
    if (f->act[k] != NONE) return;
    f->act[k] = device(f, unit, u->boundary);
    op(f, IMAGINE_COPY_IN, TM_ENGINE_COPY_IN, unit, mb, (double)u->boundary / f->x->rank.h2d_bps);
    tm_program_use(f->p, tm_program_visit(f->p, f->away_obj[k], 1), TM_USE_READ);
    tm_program_use(f->p, f->act[k], TM_USE_WRITE);
}

/* ---- compute ------------------------------------------------------------------------------------------------- */

static void forward(flow *f, uint32_t unit, uint32_t mb) {
    imagine *x = f->x;
    const imagine_unit *u = &x->unit[unit];
    bool keep = x->way.act == IMAGINE_KEEP && u->kept > 0;
    size_t k = at(f, unit, mb);
    f->act[k] = device(f, unit, u->boundary);
    op(f, IMAGINE_FORWARD, TM_ENGINE_DEVICE, unit, mb, u->seconds[0]);
    tm_program_use(f->p, f->weights[u->owner], TM_USE_READ);
    if (unit > 0) tm_program_use(f->p, f->act[at(f, unit - 1, mb)], TM_USE_READ);
    tm_program_use(f->p, f->act[k], TM_USE_WRITE);
    tm_program_use(f->p, f->kept[k] = device(f, unit, keep ? u->kept : u->forward), TM_USE_WRITE);
    if (x->way.act == IMAGINE_OFFLOAD && unit > 0) send_away(f, unit - 1, mb);
}

/* The head computes its loss and both gradients in one visit. */
static void backward(flow *f, uint32_t unit, uint32_t mb) {
    imagine *x = f->x;
    const imagine_unit *u = &x->unit[unit];
    bool head = unit == x->units - 1, kept = x->way.act == IMAGINE_KEEP && u->kept > 0 && !head;
    double again = head || (!kept && u->kept > 0) ? u->seconds[0] : 0;
    if (mb == 0 || f->sum[unit] == NONE) f->sum[unit] = device(f, unit, x->unit[u->owner].elements * sizeof(float));
    op(f, head ? IMAGINE_HEAD : IMAGINE_BACKWARD, TM_ENGINE_DEVICE, unit, mb, u->seconds[1] + again);
    tm_program_use(f->p, f->weights[u->owner], TM_USE_READ);
    if (unit > 0) tm_program_use(f->p, f->act[at(f, unit - 1, mb)], TM_USE_READ);
    if (kept) tm_program_use(f->p, f->kept[at(f, unit, mb)], TM_USE_READ);
    if (!head) tm_program_use(f->p, f->grad[at(f, unit, mb)], TM_USE_READ);
    if (unit > 0) {
        f->grad[at(f, unit - 1, mb)] = device(f, unit, x->unit[unit - 1].boundary);
        tm_program_use(f->p, f->grad[at(f, unit - 1, mb)], TM_USE_WRITE);
    }
    tm_program_use(f->p, f->sum[unit], mb == 0 || x->way.each_batch ? TM_USE_WRITE : TM_USE_UPDATE);
    tm_program_use(f->p, device(f, unit, u->backward), TM_USE_WRITE);
}

/* ---- gradients ----------------------------------------------------------------------------------------------- */

static void use_partial(flow *f) {
    tm_program_use(f->p, f->partial, f->partial_written ? TM_USE_UPDATE : TM_USE_WRITE);
    f->partial_written = true;
}

static void round_to_host(flow *f, uint32_t own, uint32_t shard) {
    imagine *x = f->x;
    const imagine_unit *u = &x->unit[own];
    bool add = f->reduced[own];
    for (uint32_t t = 0; t < u->tiles; t++) {
        double n = (double)tile_of(x, u, t), seconds = n * width(x) / x->rank.d2h_bps;
        uint32_t g = x->way.fold ? u->hi + t * u->stride + x->states : f->parked[own] + t;
        op(f, IMAGINE_COPY_OUT, TM_ENGINE_COPY_OUT, own, t, seconds + (add ? n * 3 * width(x) / x->rank.cpu_bps : 0));
        tm_program_use(f->p, shard, TM_USE_READ);
        tm_program_use(f->p, tm_program_visit(f->p, g, 1), add ? TM_USE_UPDATE : TM_USE_WRITE);
        use_partial(f);
    }
}

static void round_on_device(flow *f, uint32_t own, uint32_t shard) {
    imagine *x = f->x;
    const imagine_unit *u = &x->unit[own];
    bool add = f->reduced[own];
    if (!add) f->rounded[own] = device(f, own, u->shard * tm_dtype_bytes(x->dtype));
    op(f, IMAGINE_COPY_OUT, TM_ENGINE_DEVICE, own, 0, (double)u->shard * (4 + width(x)) / x->rank.gpu_bps);
    tm_program_use(f->p, shard, TM_USE_READ);
    tm_program_use(f->p, f->rounded[own], add ? TM_USE_UPDATE : TM_USE_WRITE);
    use_partial(f);
}

/* fp32 slices are exchanged and summed in a fixed order; the sum is rounded once. */
static void reduce(flow *f, uint32_t unit) {
    imagine *x = f->x;
    uint32_t own = x->unit[unit].owner, shard = f->sum[unit];
    const imagine_unit *u = &x->unit[own];
    if (x->ranks > 1) {
        double all = (double)u->elements * 4, share = (double)u->shard * 4;
        shard = device(f, own, u->shard * sizeof(float));
        op(f, IMAGINE_REDUCE, TM_ENGINE_COMM, unit, 0, exchange(x, all, x->state_ranks) + agree(x, share));
        tm_program_use(f->p, f->sum[unit], TM_USE_READ);
        tm_program_use(f->p, shard, TM_USE_WRITE);
    }
    if (x->way.place == IMAGINE_ALL_ON)
        round_on_device(f, own, shard);
    else
        round_to_host(f, own, shard);
    f->reduced[own] = true;
    f->sum[unit] = NONE;
}

/* ---- the step ------------------------------------------------------------------------------------------------ */

static void sweep_forward(flow *f, uint32_t first, uint32_t last) {
    imagine *x = f->x;
    f->in_backward = false;
    fetch(f, 0);
    for (uint32_t u = 0; u + 1 < x->units; u++) {
        if (x->way.ahead) fetch(f, u + 1);
        fetch(f, u);
        for (uint32_t mb = first; mb < last; mb++) forward(f, u, mb);
        if (!x->way.ahead || u + 2 < x->units) drop(f, u); /* backward begins with the last block */
    }
}

/* Gradients of a unit leave after the next one was computed, so that both have frames of their own. */
static void sweep_backward(flow *f, uint32_t first, uint32_t last) {
    imagine *x = f->x;
    f->in_backward = true;
    for (uint32_t u = x->units; u-- > 0;) {
        fetch(f, u);
        if (x->way.ahead && u > 0) fetch(f, u - 1);
        for (uint32_t mb = first; mb < last; mb++) {
            if (u > 0) call_back(f, u - 1, mb);
            if (x->way.ahead && u > 1) call_back(f, u - 2, mb);
        }
        for (uint32_t mb = first; mb < last; mb++) backward(f, u, mb);
        drop(f, u);
        if (!x->way.ahead)
            reduce(f, u);
        else if (u + 1 < x->units)
            reduce(f, u + 1);
    }
    if (x->way.ahead) reduce(f, 0);
}

static void hold_all(flow *f) {
    imagine *x = f->x;
    uint64_t w = tm_dtype_bytes(x->dtype);
    for (uint32_t u = 0; x->way.place != IMAGINE_ON_HOST && u < x->units; u++) {
        const imagine_unit *unit = &x->unit[u];
        uint64_t weights = (x->weight_ranks == 1 ? unit->elements : unit->shard) * w;
        if (unit->owner != u) continue;
        f->hold[u] =
            device(f, u, weights + (x->way.place == IMAGINE_ALL_ON ? imagine_master_bytes(x, unit->shard) : 0));
        op(f, IMAGINE_HOLD, TM_ENGINE_DEVICE, u, 0, 0);
        tm_program_use(f->p, f->hold[u], TM_USE_WRITE);
    }
}

/* What stays on the device stays until the end. */
static void release_all(flow *f) {
    for (uint32_t u = 0; u < f->x->units; u++) {
        if (f->hold[u] == NONE) continue;
        op(f, IMAGINE_HOLD, TM_ENGINE_DEVICE, u, 0, 0);
        tm_program_use(f->p, f->hold[u], TM_USE_READ);
    }
}

static void emit(flow *f) {
    imagine *x = f->x;
    f->step = tm_program_visit(f->p, temp(f, TM_KIND_SCRATCH, TM_TIER_HOST, 0, 64, false), 1);
    f->partial = tm_program_visit(f->p, temp(f, TM_KIND_SCRATCH, TM_TIER_HOST, 0, 4096, false), 1);
    op(f, IMAGINE_NORM, TM_ENGINE_CPU, 0, 0, 0); /* what is pending may be applied */
    tm_program_use(f->p, f->step, TM_USE_WRITE);
    hold_all(f);
    for (uint32_t mb = 0; mb < f->K; mb += x->way.each_batch ? 1 : f->K) {
        uint32_t end = x->way.each_batch ? mb + 1 : f->K;
        sweep_forward(f, mb, end);
        sweep_backward(f, mb, end);
    }
    op(f, IMAGINE_NORM, TM_ENGINE_COMM, 0, 0, exchange(x, 8, x->ranks) + exchange(x, 8, x->ranks));
    tm_program_use(f->p, f->partial, TM_USE_READ);
    tm_program_use(f->p, f->step, TM_USE_UPDATE);
    for (uint32_t u = 0; !x->way.fold && u < x->units; u++) update(f, u);
    release_all(f);
}

/* ---- building ------------------------------------------------------------------------------------------------ */

static void add_state(imagine *x, imagine_unit *u, uint32_t index) {
    const tm_kind kind[] = {TM_KIND_WEIGHT_HI, TM_KIND_WEIGHT_LO, TM_KIND_EXP_AVG, TM_KIND_EXP_AVG_SQ, TM_KIND_GRAD};
    u->tiles = (uint32_t)((u->shard + x->grain - 1) / x->grain);
    u->hi = tm_layout_objects(x->layout);
    for (uint32_t t = 0; t < u->tiles; t++)
        for (uint32_t i = 0; i < TM_COUNT(kind); i++) {
            uint64_t bytes = imagine_state_bytes(x, kind[i], tile_of(x, u, t));
            if (bytes == 0 || (kind[i] == TM_KIND_GRAD && !x->way.fold)) continue;
            uint32_t id = tm_layout_objects(x->layout);
            (void)tm_layout_object(
                x->layout,
                &(tm_object){.kind = kind[i], .unit = index, .bundle = id, .bytes = bytes, .pageable = true});
        }
    u->stride = u->tiles ? (tm_layout_objects(x->layout) - u->hi) / u->tiles : 0;
    x->states = u->stride - x->way.fold;
}

static tm_status make_layout(imagine *x) {
    tm_layout_free(x->layout);
    x->layout = NULL;
    TM_TRY(tm_layout_create(&x->layout));
    for (uint32_t u = 0; u < x->units && x->way.place != IMAGINE_ALL_ON; u++)
        if (x->unit[u].owner == u) add_state(x, &x->unit[u], u);
    return TM_OK;
}

/* Rounded gradients between backward and update. */
static void make_parked(flow *f) {
    imagine *x = f->x;
    for (uint32_t u = 0; u < x->units; u++)
        for (uint32_t t = 0; t < x->unit[u].tiles && x->unit[u].owner == u; t++) {
            uint64_t bytes = tile_of(x, &x->unit[u], t) * tm_dtype_bytes(x->dtype);
            uint32_t id = temp(f, TM_KIND_GRAD, TM_TIER_HOST, u, bytes, true);
            if (t == 0) f->parked[u] = id;
        }
}

static uint32_t *nones(size_t n) {
    uint32_t *a = tm_malloc((n + 1) * sizeof *a);
    for (size_t i = 0; a && i < n; i++) a[i] = NONE;
    return a;
}

static tm_status flow_init(flow *f) {
    size_t units = f->x->units, all = units * f->K;
    uint32_t **per_unit[] = {&f->hold, &f->weights, &f->sum, &f->rounded, &f->parked, &f->second};
    uint32_t **per_batch[] = {&f->act, &f->kept, &f->away_obj, &f->grad};
    for (size_t i = 0; i < TM_COUNT(per_unit); i++)
        if (!(*per_unit[i] = nones(units))) return tm_nomem(units * 4);
    for (size_t i = 0; i < TM_COUNT(per_batch); i++)
        if (!(*per_batch[i] = nones(all))) return tm_nomem(all * 4);
    f->updated = tm_calloc(units + 1, sizeof *f->updated);
    f->reduced = tm_calloc(units + 1, sizeof *f->reduced);
    return f->updated && f->reduced ? TM_OK : tm_nomem(units);
}

static void flow_free(flow *f) {
    void *all[] = {f->hold, f->weights, f->sum,      f->rounded, f->parked,  f->second,
                   f->act,  f->kept,    f->away_obj, f->grad,    f->updated, f->reduced};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
}

tm_status imagine_build(imagine *x, tm_program **out) {
    flow f = {.x = x, .K = x->shape.micro_batches};
    tm_status rc;
    x->ops = 0;
    x->sent[0] = x->sent[1] = 0;
    TM_TRY(make_layout(x));
    TM_TRY(tm_program_create(&f.p, x->layout, "imagined step"));
    TM_GO(flow_init(&f));
    if (!x->way.fold && x->way.place != IMAGINE_ALL_ON) make_parked(&f);
    emit(&f);
    rc = x->ops_cap ? TM_OK : tm_nomem(x->ops * sizeof *x->seconds);
    *out = f.p;
done:
    flow_free(&f);
    if (rc != TM_OK) tm_program_free(f.p);
    return rc;
}

double imagine_cost(void *ctx, const tm_op *o) {
    return ((const imagine *)ctx)->seconds[o->arg[0]];
}

void imagine_op_name(void *ctx, const tm_op *o, char *buf, size_t cap) {
    static const char *const word[] = {"",        "hold",     "copy in", "copy out", "all-gather", "reduce-scatter",
                                       "forward", "backward", "head",    "update",   "norm",       "stash"};
    const imagine *x = ctx;
    snprintf(buf, cap, "%s %s %u", o->code < TM_COUNT(word) ? word[o->code] : "operation",
             tm_model_unit(x->m, o->arg[1])->name, o->arg[2]);
}
