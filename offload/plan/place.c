/* Live ranges and their addresses: live ranges over program positions, packed into the slab. */
#include "offload/plan/load_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void place_free(placement *pl) {
    tm_free(pl->item);
    tm_free(pl->of_interval);
    tm_free(pl->temp_paged);
    *pl = (placement){0};
}

static live_range *push_live_range(placement *pl) {
    if (tm_grow(&pl->item, &pl->cap, pl->n + 1, sizeof *pl->item) != TM_OK) return NULL;
    live_range *r = &pl->item[pl->n++];
    *r = (live_range){.interval = TM_NONE};
    return r;
}

/* In memory for one interval, and no longer. */
static live_range *push_interval(placement *pl, const tm_program *p, uint32_t v) {
    const prog_interval *interval = &p->interval[v];
    live_range *r = push_live_range(pl);
    TM_ASSERT(interval->first_op <= interval->last_op && interval->last_op < p->n_op);
    if (!r) return NULL;
    r->first_object = interval->first;
    r->count = interval->count;
    r->start = r->first_use = interval->first_op;
    r->end = r->retire_at = interval->last_op;
    r->tier = interval->tier;
    for (uint32_t i = 0; i < interval->count; i++) r->bytes += program_object(p, interval->first + i)->frame_bytes;
    pl->of_interval[v] = pl->n - 1;
    return r;
}

/* An interval of paged objects: filled where it is read first; written back where it is dirty and someone may read it
 * again (state always; a temporary only before its last interval). */
static tm_status add_paged(placement *pl, const tm_program *p, uint32_t v, bool last_interval_of_temp) {
    const prog_interval *interval = &p->interval[v];
    live_range *r = push_interval(pl, p, v);
    if (!r) return tm_nomem(sizeof *r);
    r->interval = v;
    for (uint32_t i = 0; i < interval->count; i++) {
        const interval_object *vo = &p->record[interval->record + i];
        if (vo->first_access & TM_USE_READ) r->fill = true;
        if (vo->dirty && !last_interval_of_temp) r->dirty = true;
    }
    return TM_OK;
}

static tm_status add_kept_temp(placement *pl, const tm_program *p, uint32_t v, uint32_t *of_temp) {
    const prog_interval *interval = &p->interval[v];
    uint32_t t = interval->first & ~TM_TEMP_BIT;
    if (of_temp[t] == TM_NONE) {
        live_range *r = push_live_range(pl);
        if (!r) return tm_nomem(sizeof *r);
        *r = (live_range){.first_object = interval->first,
                          .count = 1,
                          .start = interval->first_op,
                          .first_use = interval->first_op,
                          .bytes = p->temp[t].frame_bytes,
                          .tier = interval->tier,
                          .interval = TM_NONE};
        of_temp[t] = pl->n - 1;
    }
    live_range *r = &pl->item[of_temp[t]];
    if (interval->first_op < r->start) r->start = r->first_use = interval->first_op;
    if (interval->last_op > r->end) r->end = r->retire_at = interval->last_op;
    pl->of_interval[v] = of_temp[t];
    return TM_OK;
}

/* It has its address: a device interval, which copies fill and empty, or a frame that ranks share, which has to lie
 * where shared.c puts it on all of them. */
static tm_status add_placed(placement *pl, const tm_program *p, uint32_t v) {
    TM_ASSERT(p->interval[v].address || p->interval[v].tier == TM_TIER_SHARED);
    live_range *r = push_interval(pl, p, v);
    if (!r) return tm_nomem(sizeof *r);
    r->address = p->interval[v].address;
    if (r->tier != TM_TIER_SHARED || r->address - TM_SHARED_BASE + r->bytes <= p->shared_bytes) return TM_OK;
    return tm_fail(TM_EBUG, "program %s: visit %u lies outside of what ranks share", p->name, v);
}

/* A host frame of what is device-resident. */
static tm_status add_apart(placement *pl, const tm_program *p, uint32_t v) {
    return push_interval(pl, p, v) ? TM_OK : tm_nomem(sizeof(live_range));
}

static tm_status build_live_ranges(placement *pl, const tm_program *p, const uint8_t *resident) {
    uint32_t *of_temp = tm_malloc(sizeof *of_temp * (p->n_temp + 1));
    uint32_t *last_interval = tm_malloc(sizeof *last_interval * (p->n_temp + 1));
    tm_status rc = of_temp && last_interval ? TM_OK : tm_nomem(sizeof *of_temp * 2 * (p->n_temp + 1));
    for (uint32_t t = 0; rc == TM_OK && t < p->n_temp; t++) of_temp[t] = last_interval[t] = TM_NONE;
    for (uint32_t v = 0; rc == TM_OK && v < p->n_interval; v++) {
        const prog_interval *interval = &p->interval[v];
        if (interval->first_op == TM_NONE || interval->address || !(interval->first & TM_TEMP_BIT)) continue;
        uint32_t t = interval->first & ~TM_TEMP_BIT;
        if (last_interval[t] == TM_NONE || interval->last_op > p->interval[last_interval[t]].last_op)
            last_interval[t] = v;
    }
    for (uint32_t v = 0; rc == TM_OK && v < p->n_interval; v++) {
        const prog_interval *interval = &p->interval[v];
        pl->of_interval[v] = TM_NONE;
        if (interval->first_op == TM_NONE) continue;
        if (interval->address || interval->tier == TM_TIER_SHARED) {
            rc = add_placed(pl, p, v);
        } else if (interval->home != INTERVAL_USUAL) {
            rc = interval->home == INTERVAL_DISK ? add_paged(pl, p, v, false) : add_apart(pl, p, v);
        } else if (interval->first & TM_TEMP_BIT) {
            uint32_t t = interval->first & ~TM_TEMP_BIT;
            rc = pl->temp_paged[t] ? add_paged(pl, p, v, last_interval[t] == v) : add_kept_temp(pl, p, v, of_temp);
        } else if (!resident[interval->first]) {
            rc = add_paged(pl, p, v, false);
        }
    }
    for (uint32_t r = 0; r < pl->n; r++) pl->item[r].bytes = tm_round_up(pl->item[r].bytes, TM_FRAME_ALIGN);
    tm_free(of_temp);
    tm_free(last_interval);
    return rc;
}

/* Counting: the key is a position. */
tm_status place_sort(live_range **out, live_range *const *in, uint32_t n, uint32_t positions, size_t key) {
    uint32_t *at = tm_calloc((size_t)positions + 2, sizeof *at);
    if (!at) return tm_nomem(sizeof *at * positions);
    for (uint32_t i = 0; i < n; i++) at[*(const uint32_t *)((const char *)in[i] + key) + 1]++;
    for (uint32_t i = 0; i < positions; i++) at[i + 1] += at[i];
    for (uint32_t i = 0; i < n; i++) out[at[*(const uint32_t *)((const char *)in[i] + key)]++] = in[i];
    tm_free(at);
    return TM_OK;
}

/* The position after which each object's last write-back before `r` may be read again: a fill must not start earlier.
 */
static void limit_by_writes(placement *pl, const tm_program *p, live_range **order) {
    uint32_t n_state = p->layout->n;
    /* last_end[object] while walking in order of first use; intervals of one object do not overlap */
    uint32_t *last_end = tm_malloc(sizeof *last_end * (n_state + p->n_temp + 1));
    if (!last_end) return; /* no look-ahead is always legal: start stays first_use */
    memset(last_end, 0xff, sizeof *last_end * (n_state + p->n_temp + 1));
    for (uint32_t i = 0; i < pl->n; i++) {
        live_range *r = order[i];
        if (r->interval == TM_NONE) continue;
        uint32_t earliest = 0;
        for (uint32_t k = 0; k < r->count; k++) {
            uint32_t id = r->first_object + k;
            uint32_t slot = id & TM_TEMP_BIT ? n_state + (id & ~TM_TEMP_BIT) : id;
            if (last_end[slot] != TM_NONE && last_end[slot] + 1 > earliest) earliest = last_end[slot] + 1;
            if (r->dirty) last_end[slot] = r->end;
        }
        r->start = earliest; /* for now: the earliest legal position */
    }
    tm_free(last_end);
}

/* What the update alone touches: DeepSpeed's pipeline_read and pipeline_write are about it. */
static bool is_update_state(const tm_program *p, const live_range *r) {
    return tm_kind_get(program_object(p, r->first_object)->kind)->optimizer;
}

/* Its frame may stay taken behind its last use, while the write-back is under way. */
static bool may_linger(const tm_program *p, const tm_plan_opts *opts, const live_range *r) {
    return r->interval != TM_NONE && r->dirty && !(opts->no_write_behind && is_update_state(p, r));
}

/* ---- look-ahead ---------------------------------------------------------------------------------------------- */

typedef struct ahead {
    placement *pl;
    const tm_program *p;
    const tm_plan_opts *opts;
    live_range **order;
    load_tree load;
    int64_t room;
    uint64_t window;
} ahead;

static bool reads_ahead(const ahead *a, const live_range *r) {
    return r->interval != TM_NONE && r->fill && !(a->opts->no_read_ahead && is_update_state(a->p, r));
}

/* Before anything is read ahead: every frame from its first to its last use. */
static void lay_load(ahead *a) {
    for (uint32_t i = 0; i < a->pl->n; i++) {
        const live_range *r = &a->pl->item[i];
        if (r->tier != TM_TIER_HOST) continue;
        load_first(&a->load, r->first_use, r->end, (int64_t)r->bytes);
    }
    load_begin(&a->load);
}

static bool fits_from(const ahead *a, const live_range *r, uint32_t from) {
    return from >= r->first_use || load_most(&a->load, from, r->first_use - 1) + (int64_t)r->bytes <= a->room;
}

/* Walking the program, fills of coming live ranges start, in order of their first uses, as long as at most `window`
 * bytes are ahead of their use and there is room up to it. */
static void read_ahead(ahead *a) {
    uint64_t under_way = 0;
    uint32_t issue = 0, used = 0, n = a->pl->n;
    for (uint32_t pos = 0; pos < a->p->n_op && issue < n; pos++) {
        for (; used < issue && a->order[used]->first_use <= pos; used++)
            if (a->order[used]->start < a->order[used]->first_use) under_way -= a->order[used]->bytes;
        for (; issue < n; issue++) {
            live_range *r = a->order[issue];
            bool now = r->first_use <= pos || !reads_ahead(a, r);
            if (!now && (r->start > pos || under_way + r->bytes > a->window || !fits_from(a, r, pos))) break;
            r->start = now ? r->first_use : pos;
            if (now) continue;
            under_way += r->bytes;
            load_add(&a->load, pos, r->first_use - 1, (int64_t)r->bytes);
        }
    }
    for (; issue < n; issue++) a->order[issue]->start = a->order[issue]->first_use;
}

/* Its frame stays taken behind its last use until `until`, or as long as there is room. */
static void linger_until(ahead *a, live_range *r, uint32_t until) {
    TM_ASSERT(r->retire_at == r->end);
    uint32_t last = a->p->n_op - 1;
    if (until > last) until = last;
    if (until <= r->end) return;
    uint32_t stop = load_first_above(&a->load, r->end + 1, a->room - (int64_t)r->bytes);
    if (stop <= until) until = stop - 1;
    if (until <= r->end) return;
    load_add(&a->load, r->end + 1, until, (int64_t)r->bytes);
    r->retire_at = until;
}

/* Write-backs keep their frames until another `window` bytes of them have followed. */
static void write_behind(ahead *a) {
    uint64_t under_way = 0;
    uint32_t oldest = 0, n = a->pl->n;
    for (uint32_t i = 0; i < n; i++) {
        live_range *r = a->order[i];
        if (!may_linger(a->p, a->opts, r)) continue;
        under_way += r->bytes;
        for (; under_way > a->window && oldest <= i; oldest++) {
            live_range *o = a->order[oldest];
            if (!may_linger(a->p, a->opts, o)) continue;
            linger_until(a, o, r->end);
            under_way -= o->bytes;
        }
    }
    for (; oldest < n; oldest++)
        if (may_linger(a->p, a->opts, a->order[oldest])) linger_until(a, a->order[oldest], a->p->n_op);
}

/* `room`: bytes that frames may take at any position, base left out. */
static tm_status give_window(placement *pl, const tm_program *p, const tm_plan_opts *opts, uint64_t window,
                             uint64_t room) {
    ahead a = {.pl = pl,
               .p = p,
               .opts = opts,
               .order = tm_malloc(sizeof *a.order * 2 * ((size_t)pl->n + 1)),
               .room = (int64_t)tm_min_u64(room, INT64_MAX),
               .window = window};
    tm_status rc = TM_OK;
    if (window == 0) goto done; /* every frame from its first to its last use */
    if (!a.order) TM_GO(tm_nomem(sizeof *a.order * pl->n));
    live_range **item = a.order + pl->n + 1;
    for (uint32_t i = 0; i < pl->n; i++) item[i] = &pl->item[i];
    TM_GO(place_sort(a.order, item, pl->n, p->n_op, offsetof(live_range, first_use)));
    TM_GO(load_open(&a.load, p->n_op));
    lay_load(&a);
    limit_by_writes(pl, p, a.order);
    read_ahead(&a);
    TM_GO(place_sort(a.order, item, pl->n, p->n_op, offsetof(live_range, end)));
    write_behind(&a);
done:
    load_close(&a.load);
    tm_free(a.order);
    return rc;
}

/* ---- addresses ------------------------------------------------------------------------------------------------ */

/* Host frames lie in the slab; a device's have addresses of their own, from TM_DEVICE_BASE on. Those that are shared
 * have got theirs. */
static tm_status assign_addresses(placement *pl, const tm_program *p, const tm_plan_opts *opts, const residency *r) {
    live_range **item = tm_malloc(sizeof *item * ((size_t)pl->n + 1));
    tm_status rc = item ? TM_OK : tm_nomem(sizeof *item * pl->n);
    for (int tier = 0; tier <= TM_TIER_DEVICE && rc == TM_OK; tier++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < pl->n; i++)
            if (pl->item[i].tier == tier && !pl->item[i].address) item[n++] = &pl->item[i];
        bool host = tier == TM_TIER_HOST;
        const pack_ask ask = {.n = n,
                              .positions = p->n_op,
                              .base = host ? pl->base : TM_DEVICE_BASE,
                              .top = host ? opts->slab_bytes / TM_FRAME_ALIGN * TM_FRAME_ALIGN : 0,
                              .begin = host ? r->pack_way : 0,
                              .only_below = host && r->only_fitting};
        pack_found found;
        rc = place_pack(item, &ask, &found);
        *(host ? &pl->peak : &pl->device_peak) = found.peak;
        if (host) pl->pack_way = found.way;
    }
    pl->device_peak = tm_max_u64(pl->device_peak - TM_DEVICE_BASE, p->device_bytes);
    tm_free(item);
    return rc;
}

tm_status place_build(placement *pl, const tm_program *p, const tm_plan_opts *opts, const residency *r) {
    *pl = (placement){.base = r->base};
    pl->of_interval = tm_malloc(sizeof *pl->of_interval * (p->n_interval + 1));
    pl->temp_paged = tm_malloc(p->n_temp + 1);
    tm_status rc = TM_OK;
    if (!pl->of_interval || !pl->temp_paged) TM_GO(tm_nomem(sizeof *pl->of_interval * (p->n_interval + 1)));
    memcpy(pl->temp_paged, r->temp_paged, p->n_temp);
    TM_GO(build_live_ranges(pl, p, r->resident));
    TM_GO(give_window(pl, p, opts, r->window, r->room > r->base ? r->room - r->base : 0));
    TM_GO(assign_addresses(pl, p, opts, r));
done:
    if (rc != TM_OK) place_free(pl);
    return rc;
}
