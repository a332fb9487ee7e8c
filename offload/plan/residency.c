/* Which objects stay resident, and how much look-ahead there is.
 *
 * density.c chooses what is worth its memory for a given load; how well frames then pack is known only by packing them.
 * So the load is steered until the packed frames just fit the slab, beside a modest look-ahead; what is left over
 * widens the look-ahead. At the least budget nothing is kept and nothing is read ahead. */
#include "offload/plan/density_internal.h"
#include "offload/plan/lower_internal.h"

#include <math.h>
#include <string.h>

enum { STEERING_TRIES = 6, WINDOW_TRIES = 5, STREAM_TO_WINDOW = 64 };
enum { BUSY_WINDOW_MIB = 24, MODEST_WINDOW_MIB = 64, MOST_WINDOW_MIB = 512, VISIT_SHARE = 6 };

typedef struct chooser {
    const tm_program *p;
    const tm_layout *l;
    const tm_plan_opts *opts;
    residency *r;
} chooser;

uint64_t residency_base(const tm_program *p, const uint8_t *resident, uint64_t *address) {
    const tm_layout *l = p->layout;
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        bool on_device = p->device_address && p->device_address[i];
        if (on_device && address) address[i] = p->device_address[i];
        if (!resident[i] || on_device) continue;
        if (l->object[i].pageable) at = tm_round_up(at, TM_FRAME_ALIGN);
        if (address) address[i] = at;
        at += l->object[i].frame_bytes;
    }
    return tm_round_up(at, TM_FRAME_ALIGN);
}

static uint64_t base_of(const chooser *ch) {
    return ch->opts->choose_residency ? residency_base(ch->p, ch->r->resident, NULL) : ch->l->resident_end;
}

/* The choice in resident[] and temp_paged[], packed. `only_fitting`: what does not fit is of no use. */
static tm_status pack(const chooser *ch, uint64_t window, uint64_t room, bool only_fitting, placement *pl) {
    residency r = *ch->r;
    r.only_fitting = only_fitting;
    r.base = base_of(ch);
    r.window = window;
    r.room = room;
    return place_build(pl, ch->p, ch->opts, &r);
}

/* Bytes of slab that it takes; of what does not fit, with `only_fitting`, UINT64_MAX. The way by which it fits is tried
 * first from then on: by it the same fits again. */
static tm_status peak_of(chooser *ch, uint64_t window, uint64_t room, bool only_fitting, uint64_t *peak) {
    placement pl;
    TM_TRY(pack(ch, window, room, only_fitting, &pl));
    *peak = pl.peak;
    if (pl.peak <= ch->opts->slab_bytes) ch->r->pack_way = pl.pack_way;
    place_free(&pl);
    return TM_OK;
}

static tm_status fits(chooser *ch, uint64_t window, uint64_t room, bool *fit) {
    uint64_t peak;
    TM_TRY(peak_of(ch, window, room, true, &peak));
    *fit = peak <= ch->opts->slab_bytes;
    return TM_OK;
}

/* Starting point: pinned state resident, temporaries with several intervals paged where that is allowed. */
static tm_status start_point(chooser *ch) {
    for (uint32_t i = 0; i < ch->l->n; i++) {
        const tm_object *o = &ch->l->object[i];
        ch->r->resident[i] =
            ch->opts->choose_residency ? !o->pageable || o->pinned || ch->opts->pinned[o->kind] : o->resident;
        if (ch->p->device_address && ch->p->device_address[i]) ch->r->resident[i] = true; /* there */
    }
    uint8_t *intervals = tm_calloc(ch->p->n_temp + 1, 1);
    if (!intervals) return tm_nomem(ch->p->n_temp + 1);
    for (uint32_t v = 0; v < ch->p->n_interval; v++) {
        const prog_interval *interval = &ch->p->interval[v];
        if (interval->first_op == TM_NONE || interval->address || !(interval->first & TM_TEMP_BIT)) continue;
        uint8_t *n = &intervals[interval->first & ~TM_TEMP_BIT];
        if (*n < 2) ++*n;
    }
    for (uint32_t t = 0; t < ch->p->n_temp; t++)
        ch->r->temp_paged[t] =
            ch->opts->spill && ch->p->temp[t].pageable && !ch->opts->pinned[ch->p->temp[t].kind] && intervals[t] > 1;
    tm_free(intervals);
    return TM_OK;
}

/* Frames never pack without a gap: the greatest load for which they fit the slab, look-ahead of `window` included. With
 * `d` what stays resident follows the load; the look-ahead has its share of it. */
static tm_status steer(chooser *ch, density *d, uint64_t window, uint64_t *room) {
    uint64_t slab = ch->opts->slab_bytes, low = 0, high = slab + 1, load = slab, peak;
    TM_ASSERT(ch->r->minimum <= slab);
    uint64_t share = tm_min_u64(window + window / 4, slab / 2);
    for (int i = 0; i < (low ? STEERING_TRIES : 2 * STEERING_TRIES) && high - low > slab / 512 + TM_FRAME_ALIGN; i++) {
        if (d) density_choose(d, load - tm_min_u64(share, load), ch->r->resident, ch->r->temp_paged);
        TM_TRY(tm_stop_check());
        TM_TRY(peak_of(ch, window, load, false, &peak));
        if (peak <= slab) {
            low = load;
            if (load == slab) break;
            load += tm_max_u64((slab - peak) / 8 * 7, (high - low) / 4);
        } else {
            high = load;
            load -= tm_min_u64(peak - slab + TM_FRAME_ALIGN, load);
        }
        if (load <= low || load >= high) load = low + (high - low) / 2;
    }
    *room = low;
    if (d) density_choose(d, low - tm_min_u64(share, low), ch->r->resident, ch->r->temp_paged);
    return TM_OK;
}

static uint64_t widest(const chooser *ch) {
    return (uint64_t)(ch->opts->window_mib ? ch->opts->window_mib : MOST_WINDOW_MIB) * TM_MIB;
}

/* More look-ahead where there is room for it anyway. */
static tm_status widest_window(chooser *ch, uint64_t *window, uint64_t room) {
    uint64_t low = *window, high = tm_min_u64(widest(ch), ch->opts->slab_bytes / 2), next = high;
    for (int i = 0; i < WINDOW_TRIES && high > low; i++) {
        bool fit;
        TM_TRY(fits(ch, next, room, &fit));
        *(fit ? &low : &high) = next;
        if (fit && i == 0) break;
        next = (uint64_t)sqrt((double)low * (double)high);
    }
    *window = low;
    return TM_OK;
}

/* A tile's state is read and the one before written at once, some 24 MiB: with less in flight the disk idles, which
 * costs far more than the transfers that this memory would save if something were kept in it. So it does where the
 * largest matrix has no room ahead of its product: reading and computing then take turns. */
static uint64_t modest_window(const chooser *ch) {
    uint64_t slab = ch->opts->slab_bytes, visit = ch->r->visit <= slab / VISIT_SHARE ? ch->r->visit : 0;
    uint64_t busy = tm_max_u64(tm_min_u64(BUSY_WINDOW_MIB * TM_MIB, slab / 3), visit);
    return tm_min_u64(tm_max_u64(tm_min_u64(MODEST_WINDOW_MIB * TM_MIB, slab / 12), busy), widest(ch));
}

/* Some look-ahead is worth more than residency, residency more than a deep one. */
static tm_status keep_and_look_ahead(chooser *ch, density *d) {
    residency *r = ch->r;
    r->window = modest_window(ch);
    TM_TRY(steer(ch, d, r->window, &r->room));
    uint64_t enough = d ? tm_max_u64(density_moved(d) / STREAM_TO_WINDOW, 4 * TM_MIB) : r->window;
    if (enough < r->window / 2) { /* little is left to stream: memory is better kept than read ahead into */
        r->window = enough;
        TM_TRY(steer(ch, d, r->window, &r->room));
    }
    return widest_window(ch, &r->window, r->room);
}

static tm_status most_read_at_once(const placement *pl, uint32_t n_op, uint64_t *most) {
    uint64_t *bytes = tm_calloc(n_op + 1, sizeof *bytes);
    if (!bytes) return tm_nomem(n_op * sizeof *bytes);
    *most = 0;
    for (uint32_t i = 0; i < pl->n; i++) {
        const live_range *r = &pl->item[i];
        if (r->interval == TM_NONE || !r->fill || r->tier != TM_TIER_HOST) continue;
        bytes[r->first_use] += r->bytes;
        *most = tm_max_u64(*most, bytes[r->first_use]);
    }
    tm_free(bytes);
    return TM_OK;
}

/* What is needed does not depend on what there is. */
static tm_status find_minimum(chooser *ch) {
    const tm_plan_opts *opts = ch->opts;
    tm_plan_opts least = *opts;
    placement pl;
    least.slab_bytes = 0;
    TM_TRY(start_point(ch));
    ch->opts = &least;
    tm_status rc = pack(ch, 0, 0, false, &pl);
    ch->opts = opts;
    if (rc != TM_OK) return rc;
    ch->r->minimum = pl.peak;
    rc = most_read_at_once(&pl, ch->p->n_op, &ch->r->visit);
    place_free(&pl);
    return rc;
}

tm_status residency_choose(const tm_program *p, const tm_layout *l, const tm_plan_opts *opts, residency *r) {
    chooser ch = {.p = p, .l = l, .opts = opts, .r = r};
    density d = {0};
    bool fit;
    tm_status rc;
    TM_GO(find_minimum(&ch));
    if (r->minimum > opts->slab_bytes) {
        rc = TM_EBUDGET;
        tm_fail(TM_EBUDGET, "%s needs frames of %llu bytes, the budget leaves %llu", p->name,
                (unsigned long long)r->minimum, (unsigned long long)opts->slab_bytes);
        goto done;
    }
    if (opts->cache) TM_GO(density_open(&d, p, opts, r->resident, r->temp_paged, base_of(&ch)));
    TM_GO(keep_and_look_ahead(&ch, opts->cache ? &d : NULL));
    TM_GO(fits(&ch, r->window, r->room, &fit));
    if (!fit) { /* at the least budget: nothing kept, nothing ahead */
        TM_GO(start_point(&ch));
        r->window = 0;
    }
    r->base = base_of(&ch);
done:
    density_close(&d);
    return rc;
}

/* ---- the least slab, without a plan ---------------------------------------------------------------------------- */

/* Its program, and what is chosen at the least. */
typedef struct least_plan {
    tm_plan_opts opts;
    residency r;
    tm_program *lowered; /* NULL: the caller's is not */
    chooser ch;
} least_plan;

static tm_status least_open(least_plan *x, const tm_layout *l, const tm_program *p, const tm_plan_opts *opts) {
    *x = (least_plan){.opts = *opts,
                      .r = {.resident = tm_calloc(l->n + 1, 1), .temp_paged = tm_calloc(p->n_temp + 1, 1)}};
    x->ch = (chooser){.p = p, .l = l, .opts = &x->opts, .r = &x->r};
    x->opts.choose_residency = true;
    x->opts.slab_bytes = 0;
    TM_TRY(p->status);
    if (!x->r.resident || !x->r.temp_paged) return tm_nomem(l->n + p->n_temp);
    if (opts->device_bytes) TM_TRY(lower_program(&x->lowered, p, &x->opts));
    if (x->lowered) x->ch.p = x->lowered;
    return TM_OK;
}

static void least_close(least_plan *x) {
    tm_program_free(x->lowered);
    tm_free(x->r.resident);
    tm_free(x->r.temp_paged);
}

tm_status tm_plan_minimum(const tm_layout *layout, const tm_program *p, const tm_plan_opts *opts, uint64_t *minimum) {
    least_plan x;
    tm_status rc = least_open(&x, layout, p, opts);
    if (rc == TM_OK) rc = find_minimum(&x.ch);
    if (rc == TM_OK) *minimum = x.r.minimum + shared_share(p, opts);
    least_close(&x);
    return rc;
}

/* What copies need counts for the operation before them; for the first one where there is none. */
static void loads_of(const placement *pl, const tm_program *p, uint64_t *change, uint64_t *loads) {
    uint64_t now = pl->base;
    uint32_t at = 0;
    bool begun = false;
    for (uint32_t i = 0; i < pl->n; i++) {
        const live_range *r = &pl->item[i];
        if (r->tier != TM_TIER_HOST) continue;
        change[r->start] += r->bytes; /* modulo 2^64 */
        change[r->retire_at + 1] -= r->bytes;
    }
    loads[0] = 0;
    for (uint32_t i = 0; i < p->n_op; i++) {
        if (p->op[i].op.code != TM_OP_COPY) {
            if (begun) loads[++at] = 0;
            begun = true;
        }
        loads[at] = tm_max_u64(loads[at], now += change[i]);
    }
}

tm_status tm_plan_loads(const tm_layout *layout, const tm_program *p, const tm_plan_opts *opts, uint64_t *loads) {
    least_plan x;
    placement pl = {0};
    uint64_t *change = NULL, share = shared_share(p, opts);
    tm_status rc = least_open(&x, layout, p, opts);
    if (rc != TM_OK) goto done;
    change = tm_calloc((size_t)x.ch.p->n_op + 2, sizeof *change);
    if (!change) TM_GO(tm_nomem(x.ch.p->n_op * sizeof *change));
    TM_GO(start_point(&x.ch));
    TM_GO(pack(&x.ch, 0, 0, false, &pl));
    if (p->n_op) loads_of(&pl, x.ch.p, change, loads);
    for (uint32_t i = 0; i < p->n_op; i++) loads[i] += share;
done:
    place_free(&pl);
    tm_free(change);
    least_close(&x);
    return rc;
}
