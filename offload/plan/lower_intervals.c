/* Device intervals: frames in the device's arena, one for each interval that the device computes on. With room, device
 * intervals of one object are joined, so that it need not leave and come again: by transfers saved over positions of
 * the gap, best first. Frames are there before their first use and linger behind their last, so that copies run beside
 * compute. */
#include "offload/plan/lower_internal.h"

#include <stdlib.h>
#include <string.h>

enum { AHEAD_POSITIONS = 4096, BEHIND_POSITIONS = 64 };

static void find_device_intervals(lowering *w) {
    const tm_program *p = w->p;
    for (uint32_t v = 0; v < p->n_interval; v++) w->of_interval[v] = TM_NONE;
    w->n_device_interval = w->n_join = 0;
    for (uint32_t i = 0; i < p->n_op; i++) {
        const prog_op *o = &p->op[i];
        for (uint32_t k = 0; lower_on_device(w, i) && k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            const prog_interval *v = &p->interval[u->interval];
            if (lower_is_in_place(w, v->first)) continue;
            if (w->of_interval[u->interval] == TM_NONE) {
                device_interval s = {.first = v->first,
                                     .count = v->count,
                                     .begin = i,
                                     .into = w->n_device_interval,
                                     .interval = TM_NONE};
                for (uint32_t n = 0; n < v->count; n++) s.frame.bytes += program_object(p, v->first + n)->frame_bytes;
                s.reads = u->access & TM_USE_READ;
                w->of_interval[u->interval] = w->n_device_interval;
                w->device_interval[w->n_device_interval++] = s;
            }
            device_interval *s = &w->device_interval[w->of_interval[u->interval]];
            s->last = i;
            if (u->access & TM_USE_WRITE) s->writes = true;
        }
    }
}

/* For each device interval the last operation before it in which the host wrote one of its objects; TM_NONE: there is
 * none. */
static tm_status host_writes(const lowering *w, uint32_t **out) {
    const tm_program *p = w->p;
    uint32_t *last = tm_malloc(sizeof *last * ((size_t)p->layout->n + p->n_temp + 1));
    uint32_t *at = tm_malloc(sizeof *at * ((size_t)w->n_device_interval + 1));
    *out = at;
    if (!last || !at) {
        tm_free(last);
        return tm_nomem(sizeof *last * p->layout->n);
    }
    memset(last, 0xff, sizeof *last * ((size_t)p->layout->n + p->n_temp + 1));
    uint32_t next = 0; /* they were made in order of their beginnings */
    for (uint32_t i = 0; i < p->n_op; i++) {
        for (; next < w->n_device_interval && w->device_interval[next].begin <= i; next++) {
            at[next] = TM_NONE;
            for (uint32_t k = 0; k < w->device_interval[next].count; k++) {
                uint32_t l = last[lower_slot(w, w->device_interval[next].first + k)];
                if (l != TM_NONE && (at[next] == TM_NONE || l > at[next])) at[next] = l;
            }
        }
        const prog_op *o = &p->op[i];
        for (uint32_t k = 0; !lower_on_device(w, i) && k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            if (!(u->access & TM_USE_WRITE)) continue;
            for (uint32_t n = 0; n < u->count; n++) last[lower_slot(w, u->object + n)] = i;
        }
    }
    tm_free(last);
    return TM_OK;
}

static int by_worth(const void *a, const void *b) {
    const join *x = a, *y = b;
    if (x->worth != y->worth) return x->worth > y->worth ? -1 : 1;
    return x->b < y->b ? -1 : x->b > y->b;
}

/* Neighbours among the device intervals of one object that would hand on what they have. */
static tm_status find_joins(lowering *w) {
    uint32_t *wrote = NULL;
    uint32_t *last = tm_malloc(sizeof *last * ((size_t)w->p->layout->n + w->p->n_temp + 1));
    tm_status rc = last ? host_writes(w, &wrote) : tm_nomem(w->p->layout->n);
    if (rc != TM_OK) goto done;
    memset(last, 0xff, sizeof *last * ((size_t)w->p->layout->n + w->p->n_temp + 1));
    for (uint32_t i = 0; i < w->n_device_interval; i++) {
        const device_interval *b = &w->device_interval[i];
        uint32_t slot = lower_slot(w, b->first), before = last[slot];
        last[slot] = i;
        if (before == TM_NONE) continue;
        const device_interval *a = &w->device_interval[before];
        if (a->count != b->count || !b->reads || a->last >= b->begin) continue;
        if (wrote[i] != TM_NONE && wrote[i] > a->begin) continue;
        if (tm_grow(&w->join, &w->cap_join, w->n_join + 1, sizeof *w->join) != TM_OK) TM_GO(tm_nomem(sizeof *w->join));
        bool away = a->writes && (a->first & TM_TEMP_BIT); /* state goes to the host in any case */
        w->join[w->n_join++] = (join){before, i, (away ? 2.0 : 1.0) / (double)(b->begin - a->last)};
    }
    if (w->n_join) qsort(w->join, w->n_join, sizeof *w->join, by_worth);
done:
    tm_free(wrote);
    tm_free(last);
    return rc;
}

void lower_reset(lowering *w) {
    load_clear(&w->load);
    load_clear(&w->ahead);
    w->n_copy = 0;
    w->copied = 0;
    for (uint32_t i = 0; i < w->n_device_interval; i++) {
        device_interval *s = &w->device_interval[i];
        s->into = i;
        s->start = s->begin;
        s->retire_at = s->end = s->last;
        s->earliest = 0;
        s->opens = s->leaves = false;
        load_add(&w->load, s->begin, s->end, (int64_t)s->frame.bytes);
    }
}

/* The best joins whose gap has room below `room`. */
void lower_join(lowering *w, uint64_t room) {
    for (uint32_t i = 0; i < w->n_join; i++) {
        uint32_t a = lower_joined(w, w->join[i].a), b = w->join[i].b;
        uint32_t from = w->device_interval[w->join[i].a].last + 1, to = w->device_interval[b].begin;
        int64_t bytes = (int64_t)w->device_interval[b].frame.bytes;
        if (from < to) {
            if (load_most(&w->load, from, to - 1) + bytes > (int64_t)room) continue;
            load_add(&w->load, from, to - 1, bytes);
        }
        w->device_interval[b].into = a;
    }
    for (uint32_t i = 0; i < w->n_device_interval; i++) { /* the first of a chain stands for all of it */
        device_interval *s = &w->device_interval[lower_joined(w, i)];
        s->end = s->retire_at = s->end > w->device_interval[i].last ? s->end : w->device_interval[i].last;
    }
}

tm_status lower_intervals(lowering *w) {
    find_device_intervals(w);
    return find_joins(w);
}

/* ---- ahead of use, behind it --------------------------------------------------------------------------------- */

static bool room_over(const lowering *w, uint32_t from, uint32_t to, int64_t bytes, uint64_t room) {
    return load_most(&w->load, from, to) + bytes <= (int64_t)room &&
           load_most(&w->ahead, from, to) + bytes <= (int64_t)w->window;
}

/* Device intervals that open with a copy begin as early as there is room for their frames and what they bring is
 * there. */
static void copy_ahead(lowering *w, uint64_t room) {
    for (uint32_t i = 0; i < w->n_device_interval; i++) {
        device_interval *s = &w->device_interval[i];
        int64_t bytes = (int64_t)s->frame.bytes;
        if (s->into != i || !s->opens) continue;
        uint32_t least = s->begin > AHEAD_POSITIONS ? s->begin - AHEAD_POSITIONS : 0;
        if (least < s->earliest) least = s->earliest;
        for (uint32_t low = least; low < s->start;) {
            uint32_t mid = low + (s->start - low) / 2;
            if (room_over(w, mid, s->begin - 1, bytes, room))
                s->start = mid;
            else
                low = mid + 1;
        }
        if (s->start == s->begin) continue;
        load_add(&w->load, s->start, s->begin - 1, bytes);
        load_add(&w->ahead, s->start, s->begin - 1, bytes);
    }
    for (uint32_t i = 0; i < w->n_copy; i++) {
        copy *c = &w->copy[i];
        if (!c->out && c->device_interval != LOWER_IN_PLACE && c->by == w->device_interval[c->device_interval].begin)
            c->at = w->device_interval[c->device_interval].start;
    }
}

/* Frames of what is on its way out are kept for a while, so that nobody waits for them. */
static void leave_behind(lowering *w, uint64_t room) {
    load_clear(&w->ahead);
    for (uint32_t i = 0; i < w->n_device_interval; i++) {
        device_interval *s = &w->device_interval[i];
        int64_t bytes = (int64_t)s->frame.bytes;
        if (s->into != i || !s->leaves) continue;
        uint32_t most = s->end + BEHIND_POSITIONS;
        if (most > w->p->n_op - 1) most = w->p->n_op - 1;
        while (s->retire_at < most && room_over(w, s->retire_at + 1, s->retire_at + 1, bytes, room)) s->retire_at++;
        if (s->retire_at == s->end) continue;
        load_add(&w->load, s->end + 1, s->retire_at, bytes);
        load_add(&w->ahead, s->end + 1, s->retire_at, bytes);
    }
}

void lower_ahead(lowering *w, uint64_t room) {
    copy_ahead(w, room);
    leave_behind(w, room);
}
