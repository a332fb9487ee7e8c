/* Which copies there have to be: follows from walking the operations. An object's latest version is on the host, on the
 * device, or on both; a reader that has not got it asks for a copy. A copy out stands right behind the operation that
 * wrote; a copy in before the one that reads, until lower_ahead draws it forward. */
#include "offload/plan/lower_internal.h"

static tm_status add_copy(lowering *w, const copy *c) {
    if (tm_grow(&w->copy, &w->cap_copy, w->n_copy + 1, sizeof *c) != TM_OK) return tm_nomem(sizeof *c);
    w->copy[w->n_copy++] = *c;
    w->copied += program_object(w->p, c->object)->frame_bytes;
    return TM_OK;
}

static tm_status bring_out(lowering *w, uint32_t id, whereabouts *o) {
    if (o->device_interval == TM_NONE)
        return tm_fail(TM_EBUG, "program %s: object %x is read before anyone wrote it", w->p->name, id);
    w->device_interval[o->device_interval].leaves = true;
    o->on_host = true;
    o->host_from = o->written + 1;
    o->host_interval = o->write_interval;
    return add_copy(w, &(copy){.object = id,
                               .device_interval = o->device_interval,
                               .interval = o->write_interval,
                               .at = o->written,
                               .out = true,
                               .behind = true});
}

static tm_status bring_in(lowering *w, uint32_t id, whereabouts *o, uint32_t interval, uint32_t to, uint32_t pos) {
    device_interval *s = &w->device_interval[to];
    uint32_t from = o->host_from;
    if (!o->on_host) TM_TRY(bring_out(w, id, o));
    if (o->device_interval != TM_NONE && o->device_interval != to)
        from = w->device_interval[o->device_interval].end + 1;
    if (from < o->host_from) from = o->host_from;
    if (o->host_interval != TM_NONE && o->host_interval != interval && from <= w->p->interval[o->host_interval].last_op)
        from = w->p->interval[o->host_interval].last_op + 1;
    if (w->whole[interval] && from < w->p->interval[interval].first_op)
        from = w->p->interval[interval].first_op; /* it brings others */
    if (from > pos) from = pos;
    if (pos == s->begin) {
        s->opens = true;
        if (from > s->earliest) s->earliest = from;
    }
    return add_copy(w, &(copy){.object = id, .device_interval = to, .interval = interval, .at = pos, .by = pos});
}

static tm_status use_object(lowering *w, uint32_t pos, const prog_use *u, uint32_t id, bool device) {
    whereabouts *o = &w->place[lower_slot(w, id)];
    uint32_t to = device ? lower_joined(w, w->of_interval[u->interval]) : TM_NONE;
    if (device && (u->access & TM_USE_READ) && o->device_interval != to) {
        TM_TRY(bring_in(w, id, o, u->interval, to, pos));
        o->device_interval = to;
    }
    if (!device && (u->access & TM_USE_READ) && !o->on_host) TM_TRY(bring_out(w, id, o));
    if (!(u->access & TM_USE_WRITE)) return TM_OK;
    if (device && w->whole[u->interval] && o->host_interval == u->interval) o->owed = true;
    o->device_interval = to;
    o->on_host = !device;
    o->host_from = pos + 1;
    if (!device) o->host_interval = u->interval;
    o->written = pos;
    o->write_interval = u->interval;
    return TM_OK;
}

/* ---- objects with a place of their own in the arena ------------------------------------------------------------- */

/* Their host frames last for an interval and have no other home. */
static tm_status put_back(lowering *w, uint32_t id, whereabouts *o) {
    o->device_interval = LOWER_IN_PLACE;
    return add_copy(w, &(copy){.object = id,
                               .device_interval = LOWER_IN_PLACE,
                               .interval = o->write_interval,
                               .at = o->written,
                               .by = o->written,
                               .behind = true});
}

static tm_status use_in_place(lowering *w, uint32_t pos, const prog_use *u, uint32_t id, bool device) {
    whereabouts *o = &w->place[id];
    bool here = device ? o->device_interval == LOWER_IN_PLACE : o->on_host && o->host_interval == u->interval;
    if ((u->access & TM_USE_READ) && !here) {
        if (o->device_interval != LOWER_IN_PLACE) TM_TRY(put_back(w, id, o));
        if (!device)
            TM_TRY(add_copy(w, &(copy){.object = id,
                                       .device_interval = LOWER_IN_PLACE,
                                       .interval = u->interval,
                                       .at = pos,
                                       .by = pos,
                                       .out = true}));
    }
    if (!device) {
        o->on_host = true;
        o->host_interval = u->interval;
    }
    if (!(u->access & TM_USE_WRITE)) return TM_OK;
    o->on_host = !device;
    o->device_interval = device ? LOWER_IN_PLACE : TM_NONE;
    o->written = pos;
    o->write_interval = u->interval;
    return TM_OK;
}

/* ---- all of a program ---------------------------------------------------------------------------------------- */

/* Where an interval ends. */
static tm_status settle_interval(lowering *w, const prog_interval *v) {
    for (uint32_t k = 0; k < v->count; k++) {
        whereabouts *o = &w->place[lower_slot(w, v->first + k)];
        if (o->owed && !o->on_host) TM_TRY(bring_out(w, v->first + k, o));
        o->owed = false;
    }
    return TM_OK;
}

tm_status lower_copies(lowering *w) {
    const tm_program *p = w->p;
    for (uint32_t i = 0; i < p->layout->n + p->n_temp; i++)
        w->place[i] =
            i < p->layout->n && w->device_address[i]
                ? (whereabouts){.device_interval = LOWER_IN_PLACE, .host_interval = TM_NONE}
                : (whereabouts){.on_host = i < p->layout->n, .device_interval = TM_NONE, .host_interval = TM_NONE};
    for (uint32_t i = 0; i < p->n_op; i++) {
        const prog_op *o = &p->op[i];
        for (uint32_t k = 0; k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            for (uint32_t n = 0; n < u->count; n++)
                TM_TRY(lower_is_in_place(w, u->object) ? use_in_place(w, i, u, u->object + n, lower_on_device(w, i))
                                                       : use_object(w, i, u, u->object + n, lower_on_device(w, i)));
        }
        for (uint32_t k = 0; k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            if (w->whole[u->interval] && p->interval[u->interval].last_op == i)
                TM_TRY(settle_interval(w, &p->interval[u->interval]));
        }
    }
    for (uint32_t i = 0; i < p->layout->n; i++) {
        whereabouts *o = &w->place[i];
        if (w->device_address[i] && o->device_interval != LOWER_IN_PLACE) TM_TRY(put_back(w, i, o));
        if (!w->device_address[i] && !o->on_host) TM_TRY(bring_out(w, i, o));
    }
    return TM_OK;
}
