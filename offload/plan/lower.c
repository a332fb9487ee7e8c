/* From a program whose operations lie in two tiers to one with copies between them.
 *
 *   interval of the program  --->  a *device interval*: a frame in the arena, over its device operations
 *                                  host intervals, of what the host does with the objects and of the copies
 *
 * A device interval is a second frame of the same objects. State may also be device-resident (device_resident.c): then
 * it has no device intervals, and host frames only where the host looks at it.
 *
 * The least arena is every device interval on its own, and nothing device-resident. */
#include "offload/plan/lower_internal.h"

#include <string.h>

enum { LOWER_TRIES = 6, RESIDENT_LEVELS = 4, DISK_WEIGHT = 16 };

static tm_status pack_device_intervals(lowering *w, uint64_t top) {
    live_range **item = tm_malloc(sizeof *item * ((size_t)w->n_device_interval + 1));
    uint32_t n = 0;
    if (!item) return tm_nomem(sizeof *item * w->n_device_interval);
    for (uint32_t i = 0; i < w->n_device_interval; i++) {
        device_interval *s = &w->device_interval[i];
        if (s->into != i) continue;
        s->frame.start = s->start;
        s->frame.first_use = s->begin;
        s->frame.end = s->end;
        s->frame.retire_at = s->retire_at;
        item[n++] = &s->frame;
    }
    pack_found found;
    const pack_ask ask = {.n = n,
                          .positions = w->p->n_op,
                          .base = TM_DEVICE_BASE + w->resident_bytes,
                          .top = top ? TM_DEVICE_BASE + top : 0};
    tm_status rc = place_pack(item, &ask, &found);
    w->peak = found.peak - TM_DEVICE_BASE;
    tm_free(item);
    return rc;
}

/* `room`: of the load; 0: the least. */
static tm_status arrange_arena(lowering *w, uint64_t room) {
    lower_reset(w);
    w->window = tm_min_u64(room / 6, 256 * TM_MIB);
    if (room) lower_join(w, room - w->window);
    TM_TRY(lower_copies(w));
    if (room) lower_ahead(w, room);
    return pack_device_intervals(w, room ? w->arena : 0);
}

static void find_whole(lowering *w) {
    const tm_program *p = w->p;
    memset(w->whole, 0, p->n_interval);
    for (uint32_t i = 0; i < p->n_op; i++)
        for (uint32_t k = 0; !lower_on_device(w, i) && k < p->op[i].n_uses; k++) {
            const prog_use *u = &p->use[p->op[i].first_use + k];
            if (u->count > 1) w->whole[u->interval] = 1;
        }
}

/* Once it is known what is device-resident. */
static tm_status prepare_lowering(lowering *w) {
    find_whole(w);
    return lower_intervals(w);
}

static tm_status begin_lowering(lowering *w, const tm_program *p, bool afresh) {
    size_t objects = (size_t)p->layout->n + p->n_temp + 1;
    w->p = p;
    w->device_interval = tm_malloc(sizeof *w->device_interval * ((size_t)p->n_interval + 1));
    w->of_interval = tm_malloc(sizeof *w->of_interval * ((size_t)p->n_interval + 1));
    w->whole = tm_calloc((size_t)p->n_interval + 1, 1);
    w->place = tm_malloc(sizeof *w->place * objects);
    w->host_interval = tm_malloc(sizeof *w->host_interval * ((size_t)p->n_record + 1));
    w->device_address = tm_calloc((size_t)p->layout->n + 1, sizeof *w->device_address);
    w->tier = tm_malloc((size_t)p->n_op + 1);
    if (!w->device_interval || !w->of_interval || !w->whole || !w->place || !w->host_interval || !w->device_address ||
        !w->tier)
        return tm_nomem(sizeof *w->device_interval * objects);
    TM_TRY(load_open(&w->load, p->n_op + 1));
    TM_TRY(load_open(&w->ahead, p->n_op + 1));
    resident_settled(w, afresh);
    return prepare_lowering(w);
}

/* Beside what is device-resident. TM_EBUDGET, with no error set: there is not room enough. */
static tm_status fit_lowering(lowering *w) {
    TM_TRY(arrange_arena(w, 0));
    if (w->peak > w->arena) return TM_EBUDGET;
    uint64_t load = w->arena - w->resident_bytes;
    for (int i = 0; i < LOWER_TRIES && load > 0; i++) {
        TM_TRY(arrange_arena(w, load));
        if (w->peak <= w->arena) return TM_OK;
        load -= tm_min_u64(tm_max_u64(w->peak - w->arena, w->arena / 64) + TM_FRAME_ALIGN, load);
    }
    return arrange_arena(w, 0);
}

/* ---- how much is device-resident ----------------------------------------------------------------------------- */

/* Bytes that move in a run: copies, and, much slower, what of the state has no room on the host and lies on disk. */
static double traffic(const lowering *w) {
    uint64_t state = 0, slab = w->opts->slab_bytes;
    for (uint32_t i = 0; i < w->p->layout->n; i++)
        state += w->device_address[i] ? 0 : w->p->layout->object[i].frame_bytes;
    return (double)w->copied + DISK_WEIGHT * 2.0 * (double)(state - tm_min_u64(state, slab));
}

static tm_status at_level(lowering *w, resident_groups *g, uint64_t bytes) {
    resident_choose(w, g, bytes);
    TM_TRY(prepare_lowering(w));
    return fit_lowering(w);
}

/* More device-resident state leaves less room for joining device intervals: the best of a few levels. `room`: beside
 * the least arena. */
static tm_status fit_resident(lowering *w, uint64_t room) {
    resident_groups g = {0};
    double best = -1;
    uint64_t level = 0, last = UINT64_MAX;
    tm_status rc = resident_find(&g, w->p);
    uint64_t may = (uint64_t)((1 - w->opts->host_share) * (double)g.all_bytes);
    uint64_t most = tm_min_u64(room / 4 * w->opts->resident_quarters, may);
    for (uint64_t i = RESIDENT_LEVELS + 1; rc == TM_OK && i-- > 0;) {
        uint64_t bytes = most / RESIDENT_LEVELS * i;
        if (i == RESIDENT_LEVELS) bytes = most;
        if (bytes == last) continue;
        last = bytes;
        rc = at_level(w, &g, bytes);
        double t = traffic(w);
        if (rc == TM_OK && (best < 0 || t < best)) {
            best = t;
            level = bytes;
        }
        if (rc == TM_EBUDGET) rc = TM_OK;
    }
    if (rc == TM_OK && last != level) rc = at_level(w, &g, level);
    resident_close(&g);
    return rc;
}

static tm_status fit_all(lowering *w) {
    TM_TRY(arrange_arena(w, 0)); /* what is least does not depend on what there is */
    if (w->peak > w->arena)
        return tm_fail(TM_EBUDGET, "%s needs %llu bytes of the device's memory, the budget leaves %llu", w->p->name,
                       (unsigned long long)w->peak, (unsigned long long)w->arena);
    bool choose = w->opts->choose_residency && w->opts->resident_quarters > 0;
    return choose ? fit_resident(w, w->arena - w->peak) : fit_lowering(w);
}

static void close_lowering(lowering *w) {
    void *all[] = {w->device_interval, w->of_interval, w->whole, w->place, w->host_interval,
                   w->device_address,  w->tier,        w->join,  w->copy};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
    load_close(&w->load);
    load_close(&w->ahead);
}

tm_status lower_program(tm_program **out, const tm_program *p, const tm_plan_opts *opts) {
    lowering w = {.opts = opts, .arena = opts->device_bytes / TM_FRAME_ALIGN * TM_FRAME_ALIGN};
    tm_status rc = p->status;
    if (rc == TM_OK) rc = begin_lowering(&w, p, opts->choose_residency);
    if (rc == TM_OK) rc = fit_all(&w);
    if (rc == TM_OK) rc = lower_emit(&w);
    if (rc == TM_OK)
        *out = w.out;
    else
        tm_program_free(w.out);
    close_lowering(&w);
    return rc;
}

tm_status tm_plan_device_minimum(const tm_program *p, uint64_t *minimum) {
    lowering w = {0};
    tm_status rc = p->status;
    if (rc == TM_OK) rc = begin_lowering(&w, p, false);
    if (rc == TM_OK) rc = arrange_arena(&w, 0);
    *minimum = w.peak;
    close_lowering(&w);
    return rc;
}
