/* From a program whose operations lie in two tiers to one with copies between them.
 *
 *   visit of the program  --->  a *stay* in the device's arena, over the device operations of the visit
 *                               host visits, of what the host does with the objects and of the copies
 *
 * A stay is a second frame of the same objects. Which copies are needed follows from walking the operations: an
 * object's latest version is on the host, on the device, or on both; a reader that has not got it asks for a copy. A
 * copy out stands right behind the operation that wrote; a copy in as early as its source is there and there is room.
 *
 * The least arena is every stay on its own. With more, stays of one object are joined, so that it need not leave and
 * come again: by transfers saved over positions held, best first. */
#include "offload/lower_internal.h"

#include <stdlib.h>
#include <string.h>

enum { LOWER_TRIES = 6, AHEAD_POSITIONS = 4096, BEHIND_POSITIONS = 64 };

typedef struct stay {
    uint32_t first, count; /* objects */
    uint32_t begin, end;   /* first and last of its operations, and of those joined to it */
    uint32_t last;         /* of its own */
    uint32_t start, hold;  /* has its frame over [start, hold] */
    uint32_t earliest;     /* where what it opens with is there on the host */
    uint32_t into;         /* the stay that it was joined to; itself */
    uint32_t visit;        /* of the lowered program, TM_NONE: not yet */
    bool reads, writes;    /* of what was there before; anything */
    bool opens, leaves;    /* begins with a copy in; something is copied out */
    residence frame;
} stay;

typedef struct copy {
    uint32_t object, stay, visit; /* visit: of the program, whose host side it is */
    uint32_t at, by;              /* in: before operation `at`, for operation `by`; out: behind `at` */
    bool out;
} copy;

/* Where the latest version of an object is. */
typedef struct whereabouts {
    bool on_host;
    uint32_t stay;        /* that has it too, or alone; TM_NONE: none */
    uint32_t host_from;   /* position from which it may be copied in, */
    uint32_t host_visit;  /* by this visit, TM_NONE: any; by others when the visit is over and may have left memory */
    uint32_t written;     /* operation that wrote it last on the device, */
    uint32_t write_visit; /* in this visit */
    bool owed; /* its host frame will be written back with that of the others of its visit: it has to have the latest */
} whereabouts;

typedef struct join {
    uint32_t a, b;
    double worth;
} join;

typedef struct lowering {
    const tm_program *p;
    uint64_t arena;
    stay *stay;
    uint32_t n_stay;
    uint32_t *of_visit; /* stay of each visit, TM_NONE: the device does nothing with it */
    join *join;
    uint32_t n_join, cap_join;
    copy *copy;
    uint32_t n_copy, cap_copy;
    whereabouts *place; /* per object: state, then temporaries */
    load_tree load, ahead;
    uint64_t window, peak;
    tm_program *out;
    uint32_t *host_visit; /* of the lowered program, per record of the program's visits */
    uint8_t *whole;       /* per visit: the host uses several of its objects at once */
} lowering;

static uint32_t slot_of(const lowering *w, uint32_t id) {
    return id & TM_TEMP_BIT ? w->p->layout->n + (id & ~TM_TEMP_BIT) : id;
}

static bool on_device(const prog_op *o) {
    return o->op.tier == TM_TIER_DEVICE;
}

/* ---- stays --------------------------------------------------------------------------------------------------- */

static void stays_of_visits(lowering *w) {
    const tm_program *p = w->p;
    for (uint32_t v = 0; v < p->n_visit; v++) w->of_visit[v] = TM_NONE;
    for (uint32_t i = 0; i < p->n_op; i++) {
        const prog_op *o = &p->op[i];
        for (uint32_t k = 0; on_device(o) && k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            const prog_visit *v = &p->visit[u->visit];
            if (w->of_visit[u->visit] == TM_NONE) {
                stay s = {.first = v->first, .count = v->count, .begin = i, .into = w->n_stay, .visit = TM_NONE};
                for (uint32_t n = 0; n < v->count; n++) s.frame.bytes += program_object(p, v->first + n)->frame_bytes;
                s.reads = u->access & TM_USE_READ;
                w->of_visit[u->visit] = w->n_stay;
                w->stay[w->n_stay++] = s;
            }
            stay *s = &w->stay[w->of_visit[u->visit]];
            s->last = i;
            if (u->access & TM_USE_WRITE) s->writes = true;
        }
    }
}

/* For each stay the last operation before it in which the host wrote one of its objects; TM_NONE: there is none. */
static tm_status host_writes(const lowering *w, uint32_t **out) {
    const tm_program *p = w->p;
    uint32_t *last = tm_malloc(sizeof *last * ((size_t)p->layout->n + p->n_temp + 1));
    uint32_t *at = tm_malloc(sizeof *at * ((size_t)w->n_stay + 1));
    *out = at;
    if (!last || !at) {
        tm_free(last);
        return tm_nomem(sizeof *last * p->layout->n);
    }
    memset(last, 0xff, sizeof *last * ((size_t)p->layout->n + p->n_temp + 1));
    uint32_t next = 0; /* stays were made in order of their beginnings */
    for (uint32_t i = 0; i < p->n_op; i++) {
        for (; next < w->n_stay && w->stay[next].begin <= i; next++) {
            at[next] = TM_NONE;
            for (uint32_t k = 0; k < w->stay[next].count; k++) {
                uint32_t l = last[slot_of(w, w->stay[next].first + k)];
                if (l != TM_NONE && (at[next] == TM_NONE || l > at[next])) at[next] = l;
            }
        }
        const prog_op *o = &p->op[i];
        for (uint32_t k = 0; !on_device(o) && k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            if (!(u->access & TM_USE_WRITE)) continue;
            for (uint32_t n = 0; n < u->count; n++) last[slot_of(w, u->object + n)] = i;
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

/* Neighbours among the stays of one object that would hand on what they have. */
static tm_status find_joins(lowering *w) {
    uint32_t *wrote = NULL;
    uint32_t *last = tm_malloc(sizeof *last * ((size_t)w->p->layout->n + w->p->n_temp + 1));
    tm_status rc = last ? host_writes(w, &wrote) : tm_nomem(w->p->layout->n);
    if (rc != TM_OK) goto done;
    memset(last, 0xff, sizeof *last * ((size_t)w->p->layout->n + w->p->n_temp + 1));
    for (uint32_t i = 0; i < w->n_stay; i++) {
        const stay *b = &w->stay[i];
        uint32_t slot = slot_of(w, b->first), before = last[slot];
        last[slot] = i;
        if (before == TM_NONE) continue;
        const stay *a = &w->stay[before];
        if (a->count != b->count || !b->reads || a->last >= b->begin) continue;
        if (wrote[i] != TM_NONE && wrote[i] > a->begin) continue;
        if (!offload_grow(&w->join, &w->cap_join, w->n_join, sizeof *w->join)) TM_GO(tm_nomem(sizeof *w->join));
        bool away = a->writes && (a->first & TM_TEMP_BIT); /* state goes to the host in any case */
        w->join[w->n_join++] = (join){before, i, (away ? 2.0 : 1.0) / (double)(b->begin - a->last)};
    }
    if (w->n_join) qsort(w->join, w->n_join, sizeof *w->join, by_worth);
done:
    tm_free(wrote);
    tm_free(last);
    return rc;
}

static uint32_t joined(const lowering *w, uint32_t s) {
    while (w->stay[s].into != s) s = w->stay[s].into;
    return s;
}

static void reset(lowering *w) {
    load_clear(&w->load);
    load_clear(&w->ahead);
    w->n_copy = 0;
    for (uint32_t i = 0; i < w->n_stay; i++) {
        stay *s = &w->stay[i];
        s->into = i;
        s->start = s->begin;
        s->hold = s->end = s->last;
        s->earliest = 0;
        s->opens = s->leaves = false;
        load_add(&w->load, s->begin, s->end, (int64_t)s->frame.bytes);
    }
}

/* The best joins whose gap has room below `room`. */
static void join_stays(lowering *w, uint64_t room) {
    for (uint32_t i = 0; i < w->n_join; i++) {
        uint32_t a = joined(w, w->join[i].a), b = w->join[i].b;
        uint32_t from = w->stay[w->join[i].a].last + 1, to = w->stay[b].begin;
        int64_t bytes = (int64_t)w->stay[b].frame.bytes;
        if (from < to) {
            if (load_most(&w->load, from, to - 1) + bytes > (int64_t)room) continue;
            load_add(&w->load, from, to - 1, bytes);
        }
        w->stay[b].into = a;
    }
    for (uint32_t i = 0; i < w->n_stay; i++) { /* the first of a chain stands for all of it */
        stay *s = &w->stay[joined(w, i)];
        s->end = s->hold = s->end > w->stay[i].last ? s->end : w->stay[i].last;
    }
}

/* ---- copies -------------------------------------------------------------------------------------------------- */

static tm_status add_copy(lowering *w, const copy *c) {
    if (!offload_grow(&w->copy, &w->cap_copy, w->n_copy, sizeof *c)) return tm_nomem(sizeof *c);
    w->copy[w->n_copy++] = *c;
    return TM_OK;
}

static tm_status bring_out(lowering *w, uint32_t id, whereabouts *o) {
    if (o->stay == TM_NONE)
        return tm_fail(TM_EBUG, "program %s: object %x is read before anyone wrote it", w->p->name, id);
    w->stay[o->stay].leaves = true;
    o->on_host = true;
    o->host_from = o->written + 1;
    o->host_visit = o->write_visit;
    return add_copy(w, &(copy){.object = id, .stay = o->stay, .visit = o->write_visit, .at = o->written, .out = true});
}

static tm_status bring_in(lowering *w, uint32_t id, whereabouts *o, uint32_t visit, uint32_t to, uint32_t pos) {
    stay *s = &w->stay[to];
    uint32_t from = o->host_from;
    if (!o->on_host) TM_TRY(bring_out(w, id, o));
    if (o->stay != TM_NONE && o->stay != to) from = w->stay[o->stay].end + 1;
    if (from < o->host_from) from = o->host_from;
    if (o->host_visit != TM_NONE && o->host_visit != visit && from <= w->p->visit[o->host_visit].last_op)
        from = w->p->visit[o->host_visit].last_op + 1;
    if (w->whole[visit] && from < w->p->visit[visit].first_op)
        from = w->p->visit[visit].first_op; /* it brings others */
    if (from > pos) from = pos;
    if (pos == s->begin) {
        s->opens = true;
        if (from > s->earliest) s->earliest = from;
    }
    return add_copy(w, &(copy){.object = id, .stay = to, .visit = visit, .at = pos, .by = pos});
}

static tm_status use_object(lowering *w, uint32_t pos, const prog_use *u, uint32_t id, bool device) {
    whereabouts *o = &w->place[slot_of(w, id)];
    uint32_t to = device ? joined(w, w->of_visit[u->visit]) : TM_NONE;
    if (device && (u->access & TM_USE_READ) && o->stay != to) {
        TM_TRY(bring_in(w, id, o, u->visit, to, pos));
        o->stay = to;
    }
    if (!device && (u->access & TM_USE_READ) && !o->on_host) TM_TRY(bring_out(w, id, o));
    if (!(u->access & TM_USE_WRITE)) return TM_OK;
    if (device && w->whole[u->visit] && o->host_visit == u->visit) o->owed = true;
    o->stay = to;
    o->on_host = !device;
    o->host_from = pos + 1;
    if (!device) o->host_visit = u->visit;
    o->written = pos;
    o->write_visit = u->visit;
    return TM_OK;
}

/* Where a visit ends. */
static tm_status settle(lowering *w, const prog_visit *v) {
    for (uint32_t k = 0; k < v->count; k++) {
        whereabouts *o = &w->place[slot_of(w, v->first + k)];
        if (o->owed && !o->on_host) TM_TRY(bring_out(w, v->first + k, o));
        o->owed = false;
    }
    return TM_OK;
}

static tm_status find_copies(lowering *w) {
    const tm_program *p = w->p;
    for (uint32_t i = 0; i < p->layout->n + p->n_temp; i++)
        w->place[i] = (whereabouts){.on_host = i < p->layout->n, .stay = TM_NONE, .host_visit = TM_NONE};
    for (uint32_t i = 0; i < p->n_op; i++) {
        const prog_op *o = &p->op[i];
        for (uint32_t k = 0; k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            for (uint32_t n = 0; n < u->count; n++) TM_TRY(use_object(w, i, u, u->object + n, on_device(o)));
        }
        for (uint32_t k = 0; k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            if (w->whole[u->visit] && p->visit[u->visit].last_op == i) TM_TRY(settle(w, &p->visit[u->visit]));
        }
    }
    for (uint32_t i = 0; i < p->layout->n; i++)
        if (!w->place[i].on_host) TM_TRY(bring_out(w, i, &w->place[i]));
    return TM_OK;
}

/* ---- ahead of use, behind it --------------------------------------------------------------------------------- */

static bool room_over(const lowering *w, uint32_t from, uint32_t to, int64_t bytes, uint64_t room) {
    return load_most(&w->load, from, to) + bytes <= (int64_t)room &&
           load_most(&w->ahead, from, to) + bytes <= (int64_t)w->window;
}

/* Stays that open with a copy begin as early as there is room for their frames and what they bring is there. */
static void copy_ahead(lowering *w, uint64_t room) {
    for (uint32_t i = 0; i < w->n_stay; i++) {
        stay *s = &w->stay[i];
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
        if (!c->out && c->by == w->stay[c->stay].begin) c->at = w->stay[c->stay].start;
    }
}

/* Frames of what is on its way out are held for a while, so that nobody waits for them. */
static void leave_behind(lowering *w, uint64_t room) {
    load_clear(&w->ahead);
    for (uint32_t i = 0; i < w->n_stay; i++) {
        stay *s = &w->stay[i];
        int64_t bytes = (int64_t)s->frame.bytes;
        if (s->into != i || !s->leaves) continue;
        uint32_t most = s->end + BEHIND_POSITIONS;
        if (most > w->p->n_op - 1) most = w->p->n_op - 1;
        while (s->hold < most && room_over(w, s->hold + 1, s->hold + 1, bytes, room)) s->hold++;
        if (s->hold == s->end) continue;
        load_add(&w->load, s->end + 1, s->hold, bytes);
        load_add(&w->ahead, s->end + 1, s->hold, bytes);
    }
}

/* ---- the arena ----------------------------------------------------------------------------------------------- */

static tm_status pack_stays(lowering *w, uint64_t top) {
    residence **item = tm_malloc(sizeof *item * ((size_t)w->n_stay + 1));
    uint32_t n = 0;
    if (!item) return tm_nomem(sizeof *item * w->n_stay);
    for (uint32_t i = 0; i < w->n_stay; i++) {
        stay *s = &w->stay[i];
        if (s->into != i) continue;
        s->frame.start = s->start;
        s->frame.first_use = s->begin;
        s->frame.end = s->end;
        s->frame.hold = s->hold;
        item[n++] = &s->frame;
    }
    tm_status rc = place_pack(item, n, w->p->n_op, TM_DEVICE_BASE, top ? TM_DEVICE_BASE + top : 0, &w->peak);
    w->peak -= TM_DEVICE_BASE;
    tm_free(item);
    return rc;
}

/* `room`: of the load; 0: the least. */
static tm_status arrange(lowering *w, uint64_t room) {
    reset(w);
    w->window = tm_min_u64(room / 6, 256 * TM_MIB);
    if (room) join_stays(w, room - w->window);
    TM_TRY(find_copies(w));
    if (room) copy_ahead(w, room);
    if (room) leave_behind(w, room);
    return pack_stays(w, room ? w->arena : 0);
}

static tm_status fit(lowering *w) {
    uint64_t load = w->arena;
    TM_TRY(arrange(w, 0)); /* what is least does not depend on what there is */
    if (w->peak > w->arena)
        return tm_fail(TM_EBUDGET, "%s needs %llu bytes of the device's memory, the budget leaves %llu", w->p->name,
                       (unsigned long long)w->peak, (unsigned long long)w->arena);
    for (int i = 0; i < LOWER_TRIES; i++) {
        TM_TRY(arrange(w, load));
        if (w->peak <= w->arena) return TM_OK;
        load -= tm_min_u64(tm_max_u64(w->peak - w->arena, w->arena / 64) + TM_FRAME_ALIGN, load - 1);
    }
    return arrange(w, 0);
}

/* ---- the program with copies --------------------------------------------------------------------------------- */

static uint32_t device_visit(lowering *w, uint32_t s) {
    stay *t = &w->stay[s];
    if (t->visit != TM_NONE) return t->visit;
    t->visit = tm_program_visit(w->out, t->first, t->count);
    if (w->out->status != TM_OK) return 0;
    w->out->visit[t->visit].tier = TM_TIER_DEVICE;
    w->out->visit[t->visit].address = t->frame.address;
    return t->visit;
}

/* Objects of a visit come and go one by one, but where the host wants several side by side. */
static uint32_t host_visit(lowering *w, uint32_t visit, uint32_t object) {
    const prog_visit *v = &w->p->visit[visit];
    uint32_t k = w->whole[visit] ? 0 : object - v->first, *at = &w->host_visit[v->record + k];
    if (*at == TM_NONE)
        *at = w->whole[visit] ? tm_program_visit(w->out, v->first, v->count) : tm_program_visit(w->out, object, 1);
    return *at;
}

static void emit_copy(lowering *w, const copy *c) {
    uint64_t bytes = program_object(w->p, c->object)->frame_bytes;
    uint32_t host = host_visit(w, c->visit, c->object), device = device_visit(w, c->stay);
    tm_program_op(w->out, &(tm_op){.code = TM_OP_COPY,
                                   .engine = c->out ? TM_ENGINE_COPY_OUT : TM_ENGINE_COPY_IN,
                                   .arg = {(uint32_t)bytes, (uint32_t)(bytes >> 32), c->object}});
    tm_program_use_range(w->out, c->out ? device : host, c->object, 1, TM_USE_READ);
    tm_program_use_range(w->out, c->out ? host : device, c->object, 1, TM_USE_WRITE);
}

static void emit_op(lowering *w, const prog_op *o) {
    tm_program_op(w->out, &o->op);
    for (uint32_t k = 0; k < o->n_uses; k++) {
        const prog_use *u = &w->p->use[o->first_use + k];
        uint32_t visit =
            on_device(o) ? device_visit(w, joined(w, w->of_visit[u->visit])) : host_visit(w, u->visit, u->object);
        tm_program_use_range(w->out, visit, u->object, u->count, u->access);
    }
}

static int by_place(const void *a, const void *b) {
    const copy *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->out != y->out) return x->out ? 1 : -1; /* in before the operation, out behind it */
    if (x->by != y->by) return x->by < y->by ? -1 : 1;
    if (x->stay != y->stay) return x->stay < y->stay ? -1 : 1;
    return x->object < y->object ? -1 : x->object > y->object;
}

static tm_status emit_program(lowering *w) {
    const tm_program *p = w->p;
    TM_TRY(tm_program_create(&w->out, p->layout, p->name));
    for (uint32_t t = 0; t < p->n_temp; t++) (void)tm_program_temp(w->out, &p->temp[t]);
    for (uint32_t i = 0; i < p->n_record; i++) w->host_visit[i] = TM_NONE;
    if (w->n_copy) qsort(w->copy, w->n_copy, sizeof *w->copy, by_place);
    const copy *c = w->copy, *end = w->copy + w->n_copy;
    for (uint32_t i = 0; i < p->n_op; i++) {
        for (; c < end && c->at == i && !c->out; c++) emit_copy(w, c);
        emit_op(w, &p->op[i]);
        for (; c < end && c->at == i; c++) emit_copy(w, c);
    }
    w->out->device_bytes = w->peak;
    return w->out->status;
}

/* ---- both ends ----------------------------------------------------------------------------------------------- */

static void find_whole(lowering *w) {
    const tm_program *p = w->p;
    for (uint32_t i = 0; i < p->n_op; i++)
        for (uint32_t k = 0; !on_device(&p->op[i]) && k < p->op[i].n_uses; k++) {
            const prog_use *u = &p->use[p->op[i].first_use + k];
            if (u->count > 1) w->whole[u->visit] = 1;
        }
}

static tm_status begin(lowering *w, const tm_program *p) {
    size_t objects = (size_t)p->layout->n + p->n_temp + 1;
    w->p = p;
    w->stay = tm_malloc(sizeof *w->stay * ((size_t)p->n_visit + 1));
    w->of_visit = tm_malloc(sizeof *w->of_visit * ((size_t)p->n_visit + 1));
    w->whole = tm_calloc((size_t)p->n_visit + 1, 1);
    w->place = tm_malloc(sizeof *w->place * objects);
    w->host_visit = tm_malloc(sizeof *w->host_visit * ((size_t)p->n_record + 1));
    if (!w->stay || !w->of_visit || !w->whole || !w->place || !w->host_visit)
        return tm_nomem(sizeof *w->stay * objects);
    TM_TRY(load_open(&w->load, p->n_op + 1));
    TM_TRY(load_open(&w->ahead, p->n_op + 1));
    stays_of_visits(w);
    find_whole(w);
    return find_joins(w);
}

static void close(lowering *w) {
    void *all[] = {w->stay, w->of_visit, w->whole, w->place, w->host_visit, w->join, w->copy};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
    load_close(&w->load);
    load_close(&w->ahead);
}

tm_status lower_program(tm_program **out, const tm_program *p, uint64_t arena_bytes) {
    lowering w = {.arena = arena_bytes / TM_FRAME_ALIGN * TM_FRAME_ALIGN};
    tm_status rc = p->status;
    if (rc == TM_OK) rc = begin(&w, p);
    if (rc == TM_OK) rc = fit(&w);
    if (rc == TM_OK) rc = emit_program(&w);
    if (rc == TM_OK)
        *out = w.out;
    else
        tm_program_free(w.out);
    close(&w);
    return rc;
}

tm_status tm_plan_device_minimum(const tm_program *p, uint64_t *minimum) {
    lowering w = {0};
    tm_status rc = p->status;
    if (rc == TM_OK) rc = begin(&w, p);
    if (rc == TM_OK) rc = arrange(&w, 0);
    *minimum = w.peak;
    close(&w);
    return rc;
}
