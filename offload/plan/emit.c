/* From a placement to a plan: disk operations are inserted, and every ordering that the result depends on becomes an
 * edge:
 *   - inside a frame: reads after the write that they read, writes after the reads before them;
 *   - between occupants of the same bytes: the first touch of the next after the last touches of the one before;
 *   - on disk: a read of an extent after the latest write to it, a write after the reads before it. */
#include "offload/plan/spans_internal.h"

#include <stddef.h>
#include <string.h>

/* Who touched something last: one writer, and the readers since. */
typedef struct tracker {
    uint32_t writer;
    uint32_t reader; /* head of a list in `links` */
} tracker;

typedef struct link {
    uint32_t op, next;
} link;

typedef struct edge {
    uint32_t from, to;
} edge;

/* Who touched bytes last, of those who had them before. */
typedef struct final {
    uint64_t begin, end;
    uint32_t op;
} final;

typedef struct finals {
    final *item;
    uint32_t n;
    size_t cap;
    uint32_t stretches; /* of the live range in the map */
} finals;

typedef struct emitter {
    const tm_layout *l;
    const tm_program *p;
    const placement *pl;
    const uint8_t *resident;
    const uint64_t *address;
    tm_plan *plan;
    size_t cap_op, cap_operand;
    uint32_t n_operand;
    tracker *frame;           /* per (live range, object), then per resident state object */
    uint32_t *frame_of;       /* live range -> its first tracker */
    uint32_t resident_frames; /* tracker of resident state object i */
    tracker *disk;            /* per object: state, then temporaries */
    link *link;
    uint32_t n_link;
    size_t cap_link;
    edge *edge;
    uint32_t n_edge;
    size_t cap_edge;
    uint32_t *seen; /* per op: the last op that got an edge from it */
    size_t cap_seen;
    spans map;    /* of the slab, to the live range that had it last */
    finals *prev; /* per live range: whom the first touch of its bytes has to follow */
    uint32_t n_touch;
    size_t cap_touch;
    tm_status status;
} emitter;

/* Keeps the first failure, which is in the error record. */
static bool went_well(emitter *e, tm_status rc) {
    if (e->status == TM_OK) e->status = rc;
    return rc == TM_OK;
}

static uint32_t object_slot(const emitter *e, uint32_t id) {
    return id & TM_TEMP_BIT ? e->l->n + (id & ~TM_TEMP_BIT) : id;
}

static void add_edge(emitter *e, uint32_t from, uint32_t to) {
    if (from == TM_NONE || from == to || e->seen[from] == to) return;
    TM_ASSERT(from < to && to < e->plan->n_op);
    if (!went_well(e, tm_grow(&e->edge, &e->cap_edge, e->n_edge + 1, sizeof *e->edge))) return;
    e->seen[from] = to;
    e->edge[e->n_edge++] = (edge){from, to};
}

static uint32_t new_op(emitter *e, const tm_plan_op *op) {
    tm_plan *plan = e->plan;
    TM_ASSERT(op->engine < TM_ENGINES);
    if (!went_well(e, tm_grow(&plan->op, &e->cap_op, plan->n_op + 1, sizeof *plan->op)) ||
        !went_well(e, tm_grow(&e->seen, &e->cap_seen, plan->n_op + 1, sizeof *e->seen)))
        return TM_NONE;
    plan->op[plan->n_op] = *op;
    e->seen[plan->n_op] = TM_NONE;
    return plan->n_op++;
}

/* `prev`, [begin, end): who had the bytes of an object before; NULL: nobody. An object follows those of its own bytes
 * alone: of an interval of many tiles, each would follow all of another's otherwise. */
static void touch_bytes(emitter *e, tracker *t, uint32_t op, unsigned access, const finals *prev, uint64_t begin,
                        uint64_t end) {
    if (t->writer == TM_NONE && t->reader == TM_NONE && prev)
        for (uint32_t i = 0; i < prev->n; i++)
            if (prev->item[i].begin < end && prev->item[i].end > begin) add_edge(e, prev->item[i].op, op);
    if (access & TM_USE_WRITE) {
        if (t->reader == TM_NONE) add_edge(e, t->writer, op);
        for (uint32_t i = t->reader; i != TM_NONE; i = e->link[i].next) add_edge(e, e->link[i].op, op);
        t->writer = op;
        t->reader = TM_NONE;
        return;
    }
    add_edge(e, t->writer, op);
    if (!went_well(e, tm_grow(&e->link, &e->cap_link, e->n_link + 1, sizeof *e->link))) return;
    e->link[e->n_link] = (link){op, t->reader};
    t->reader = e->n_link++;
}

static void note_touch(emitter *e, uint64_t address, uint64_t bytes, unsigned access, uint32_t object) {
    if (!went_well(e, tm_grow(&e->plan->touch, &e->cap_touch, e->n_touch + 1, sizeof *e->plan->touch))) return;
    e->plan->touch[e->n_touch++] = (struct plan_touch){address, bytes, (uint8_t)access, object};
}

/* ---- who had these bytes before ------------------------------------------------------------------------------ */

/* The tiles of an interval mostly have the same finals: where `at` has the same one of the bytes before, it is
 * extended. */
static bool push_final(finals *list, uint32_t at, const final *f) {
    if (at < list->n && list->item[at].op == f->op && list->item[at].end == f->begin) {
        list->item[at].end = f->end;
        return true;
    }
    if (tm_grow(&list->item, &list->cap, list->n + 1, sizeof *f) != TM_OK) return false;
    list->item[list->n++] = *f;
    return true;
}

/* Where an interval left an object untouched, whoever had those bytes before still counts. */
static bool inherit_finals(const finals *from, uint64_t begin, uint64_t end, finals *list) {
    for (uint32_t i = 0; i < from->n; i++) {
        final f = from->item[i];
        f.begin = tm_max_u64(f.begin, begin);
        f.end = tm_min_u64(f.end, end);
        if (f.begin < f.end && !push_final(list, UINT32_MAX, &f)) return false;
    }
    return true;
}

/* Of what [begin, end) holds of `owner`. */
static bool collect_finals(emitter *e, uint32_t owner, uint64_t begin, uint64_t end, finals *list) {
    const live_range *r = &e->pl->item[owner];
    uint64_t address = r->address;
    uint32_t group = list->n; /* finals of the object before */
    for (uint32_t k = 0; k < r->count; k++) {
        const tracker *t = &e->frame[e->frame_of[owner] + k];
        final f = {tm_max_u64(address, begin), address, TM_NONE};
        address += program_object(e->p, r->first_object + k)->frame_bytes;
        f.end = tm_min_u64(address, end);
        if (f.begin >= f.end) continue;
        uint32_t at = group, before = list->n;
        if (t->reader == TM_NONE && t->writer == TM_NONE && !inherit_finals(&e->prev[owner], f.begin, f.end, list))
            return false;
        f.op = t->writer;
        if (t->reader == TM_NONE && t->writer != TM_NONE && !push_final(list, at++, &f)) return false;
        for (uint32_t i = t->reader; i != TM_NONE; i = e->link[i].next) {
            f.op = e->link[i].op;
            if (!push_final(list, at++, &f)) return false;
        }
        if (list->n > before) group = before;
    }
    return true;
}

/* Nobody asks any more whom a live range followed that has no bytes left. */
static void leave_finals(finals *f) {
    if (--f->stretches > 0) return;
    tm_free(f->item);
    *f = (finals){0};
}

static void put_stretch(emitter *e, uint64_t begin, uint64_t end, uint32_t owner) {
    if (begin >= end) return;
    if (!spans_put(&e->map, begin, end, owner)) (void)went_well(e, TM_ENOMEM);
    e->prev[owner].stretches++;
}

/* Gives [address, address + bytes) to live range `r`: its first touches have to follow the finals of whoever was there.
 */
static void occupy_frame(emitter *e, uint32_t r) {
    uint64_t begin = e->pl->item[r].address, end = begin + e->pl->item[r].bytes;
    for (uint32_t i; (i = spans_after(&e->map, begin)) && e->map.item[i].begin < end && e->status == TM_OK;) {
        span s = e->map.item[i];
        if (!collect_finals(e, s.owner, tm_max_u64(s.begin, begin), tm_min_u64(s.end, end), &e->prev[r]))
            (void)went_well(e, TM_ENOMEM);
        spans_drop(&e->map, i);
        put_stretch(e, s.begin, tm_min_u64(s.end, begin), s.owner);
        put_stretch(e, tm_max_u64(s.begin, end), s.end, s.owner);
        leave_finals(&e->prev[s.owner]);
    }
    put_stretch(e, begin, end, r);
}

/* ---- operations ---------------------------------------------------------------------------------------------- */

static void emit_disk(emitter *e, uint32_t r, uint32_t k, bool write) {
    const live_range *res = &e->pl->item[r];
    uint64_t address = res->address;
    TM_ASSERT(k < res->count && res->tier == TM_TIER_HOST);
    for (uint32_t i = 0; i < k; i++) address += program_object(e->p, res->first_object + i)->frame_bytes;
    uint32_t id = res->first_object + k;
    const tm_object *o = program_object(e->p, id);
    uint32_t op = new_op(
        e,
        &(tm_plan_op){.engine = write ? TM_ENGINE_DISK_WRITE : TM_ENGINE_DISK_READ, .object = id, .address = address});
    if (op == TM_NONE) return;
    e->plan->first_touch[op] = e->n_touch;
    note_touch(e, address, o->frame_bytes, write ? TM_USE_READ : TM_USE_WRITE, id);
    touch_bytes(e, &e->frame[e->frame_of[r] + k], op, write ? TM_USE_READ : TM_USE_WRITE, &e->prev[r], address,
                address + o->frame_bytes);
    touch_bytes(e, &e->disk[object_slot(e, id)], op, write ? TM_USE_WRITE : TM_USE_READ, NULL, 0, 0);
    uint64_t *count = write ? e->plan->info.write_bytes : e->plan->info.read_bytes;
    count[o->kind] += o->frame_bytes;
}

static void emit_fills(emitter *e, uint32_t r) {
    const live_range *res = &e->pl->item[r];
    occupy_frame(e, r);
    if (res->interval == TM_NONE || !res->fill || e->status != TM_OK) return;
    const prog_interval *v = &e->p->interval[res->interval];
    for (uint32_t k = 0; k < res->count; k++)
        if (e->p->record[v->record + k].first_access & TM_USE_READ) emit_disk(e, r, k, false);
}

static void emit_writebacks(emitter *e, uint32_t r) {
    const live_range *res = &e->pl->item[r];
    if (res->interval == TM_NONE || !res->dirty) return;
    const prog_interval *v = &e->p->interval[res->interval];
    for (uint32_t k = 0; k < res->count; k++)
        if (e->p->record[v->record + k].dirty) emit_disk(e, r, k, true);
}

static uint64_t use_address(const emitter *e, const prog_use *u) {
    uint32_t r = e->pl->of_interval[u->interval];
    if (r == TM_NONE) return e->address[u->object];
    const live_range *res = &e->pl->item[r];
    uint64_t at = res->address;
    TM_ASSERT(u->object >= res->first_object && u->object < res->first_object + res->count);
    for (uint32_t id = res->first_object; id < u->object; id++) at += program_object(e->p, id)->frame_bytes;
    return at;
}

static void emit_compute(emitter *e, uint32_t pos) {
    const prog_op *po = &e->p->op[pos];
    uint32_t op = new_op(
        e,
        &(tm_plan_op){.op = po->op, .engine = po->op.engine, .first_operand = e->n_operand, .n_operands = po->n_uses});
    if (op == TM_NONE) return;
    if (po->op.code == TM_OP_COPY)
        e->plan->info.copy_bytes[po->op.engine == TM_ENGINE_COPY_OUT] += (uint64_t)po->op.arg[1] << 32 | po->op.arg[0];
    e->plan->first_touch[op] = e->n_touch;
    for (uint32_t i = 0; i < po->n_uses; i++) {
        const prog_use *u = &e->p->use[po->first_use + i];
        if (!went_well(e, tm_grow(&e->plan->operand, &e->cap_operand, e->n_operand + 1, sizeof *e->plan->operand)))
            return;
        uint64_t at = use_address(e, u);
        e->plan->operand[e->n_operand++] = at;
        uint32_t r = e->pl->of_interval[u->interval];
        for (uint32_t k = 0; k < u->count && e->status == TM_OK; k++) {
            uint32_t id = u->object + k;
            uint64_t bytes = program_object(e->p, id)->frame_bytes;
            note_touch(e, at, bytes, u->access, id);
            if (r == TM_NONE)
                touch_bytes(e, &e->frame[e->resident_frames + id], op, u->access, NULL, 0, 0);
            else
                touch_bytes(e, &e->frame[e->frame_of[r] + (id - e->pl->item[r].first_object)], op, u->access,
                            &e->prev[r], at, at + bytes);
            at += bytes;
        }
    }
}

/* ---- order: fills that start at a position, its operation, write-backs of what ends there -------------------- */

/* Those that start together in the order of their first uses. */
static tm_status order_live_ranges(const emitter *e, live_range **starts, live_range **ends, live_range **room) {
    uint32_t n = e->pl->n, positions = e->p->n_op;
    for (uint32_t i = 0; i < n; i++) room[i] = &e->pl->item[i];
    TM_TRY(place_sort(ends, room, n, positions, offsetof(live_range, first_use)));
    TM_TRY(place_sort(starts, ends, n, positions, offsetof(live_range, start)));
    return place_sort(ends, room, n, positions, offsetof(live_range, end));
}

static void emit_all(emitter *e, live_range **starts, live_range **ends) {
    uint32_t n = e->pl->n, s = 0, w = 0;
    for (uint32_t pos = 0; pos < e->p->n_op && e->status == TM_OK; pos++) {
        e->status = tm_stop_check();
        for (; s < n && starts[s]->start <= pos; s++) emit_fills(e, (uint32_t)(starts[s] - e->pl->item));
        emit_compute(e, pos);
        for (; w < n && ends[w]->end <= pos; w++) emit_writebacks(e, (uint32_t)(ends[w] - e->pl->item));
    }
}

static tm_status number_edges(emitter *e) {
    tm_plan *plan = e->plan;
    if (e->n_edge > 0 && tm_fault_hit("lost_edge", NULL)) e->n_edge--; /* the proof is to find that */
    plan->succ = tm_malloc(sizeof *plan->succ * (e->n_edge + 1));
    if (!plan->succ) return tm_nomem(sizeof *plan->succ * (e->n_edge + 1));
    for (uint32_t i = 0; i < e->n_edge; i++) {
        plan->op[e->edge[i].from].n_succ++;
        plan->op[e->edge[i].to].n_pred++;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        plan->op[i].first_succ = at;
        at += plan->op[i].n_succ;
        plan->op[i].n_succ = 0;
    }
    for (uint32_t i = 0; i < e->n_edge; i++) {
        tm_plan_op *from = &plan->op[e->edge[i].from];
        plan->succ[from->first_succ + from->n_succ++] = e->edge[i].to;
    }
    plan->info.ops = plan->n_op;
    plan->info.edges = e->n_edge;
    return TM_OK;
}

static tm_status place_temps(emitter *e) {
    tm_plan *plan = e->plan;
    const tm_program *p = e->p;
    plan->n_temp = p->n_temp;
    plan->temp = tm_malloc(sizeof *plan->temp * (p->n_temp + 1));
    plan->extent = tm_calloc(p->n_temp + 1, sizeof *plan->extent);
    if (!plan->temp || !plan->extent) return tm_nomem(sizeof *plan->temp * (p->n_temp + 1));
    for (uint32_t t = 0; t < p->n_temp; t++) {
        plan->temp[t] = p->temp[t];
        if (!e->pl->temp_paged[t]) continue;
        plan->extent[t] = (temp_extent){plan->info.spill_file_bytes, plan->n_temp_pages};
        plan->info.spill_file_bytes += p->temp[t].frame_bytes;
        plan->info.spill_largest_bytes = tm_max_u64(plan->info.spill_largest_bytes, p->temp[t].frame_bytes);
        plan->n_temp_pages += (uint32_t)((p->temp[t].frame_bytes + TM_PAGE_BYTES - 1) / TM_PAGE_BYTES);
    }
    return TM_OK;
}

static tm_status prepare_trackers(emitter *e) {
    uint32_t frames = 0;
    e->frame_of = tm_malloc(sizeof *e->frame_of * (e->pl->n + 1));
    e->prev = tm_calloc(e->pl->n + 1, sizeof *e->prev);
    if (!e->frame_of || !e->prev) return tm_nomem(sizeof *e->prev * (e->pl->n + 1));
    for (uint32_t r = 0; r < e->pl->n; r++) {
        e->frame_of[r] = frames;
        frames += e->pl->item[r].count;
    }
    e->resident_frames = frames;
    uint32_t n_frame = frames + e->l->n, n_disk = e->l->n + e->p->n_temp;
    e->frame = tm_malloc(sizeof *e->frame * (n_frame + 1));
    e->disk = tm_malloc(sizeof *e->disk * (n_disk + 1));
    if (!e->frame || !e->disk) return tm_nomem(sizeof *e->frame * (n_frame + 1));
    for (uint32_t i = 0; i < n_frame; i++) e->frame[i] = (tracker){TM_NONE, TM_NONE};
    for (uint32_t i = 0; i < n_disk; i++) e->disk[i] = (tracker){TM_NONE, TM_NONE};
    uint32_t cap = e->p->n_op;
    for (uint32_t r = 0; r < e->pl->n; r++) cap += 2 * e->pl->item[r].count;
    e->plan->first_touch = tm_malloc(sizeof *e->plan->first_touch * ((size_t)cap + 2));
    return e->plan->first_touch ? TM_OK : tm_nomem(sizeof *e->plan->first_touch * cap);
}

static void emitter_free(emitter *e) {
    for (uint32_t r = 0; e->prev && r < e->pl->n; r++) tm_free(e->prev[r].item);
    TM_FREE_ALL(e->prev, e->frame, e->frame_of, e->disk, e->link, e->edge, e->seen);
    spans_close(&e->map);
}

/* Arrays that have grown: what a plan takes is what it says. */
static void shrink_array(void *p, uint64_t bytes) {
    void **array = p, *less = bytes ? tm_realloc(*array, bytes) : NULL;
    if (less) *array = less;
}

static void shrink_to_fit(emitter *e) {
    tm_plan *plan = e->plan;
    shrink_array(&plan->op, sizeof *plan->op * plan->n_op);
    shrink_array(&plan->first_touch, sizeof *plan->first_touch * ((size_t)plan->n_op + 1));
    shrink_array(&plan->operand, sizeof *plan->operand * e->n_operand);
    shrink_array(&plan->touch, sizeof *plan->touch * e->n_touch);
}

tm_status plan_emit(tm_plan **out, const tm_layout *l, const tm_program *p, const placement *pl,
                    const uint8_t *resident, const uint64_t *address) {
    emitter e = {.l = l, .p = p, .pl = pl, .resident = resident, .address = address};
    live_range **order = NULL;
    tm_status rc = TM_OK;
    e.plan = tm_calloc(1, sizeof *e.plan);
    if (!e.plan) return tm_nomem(sizeof *e.plan);
    memcpy(e.plan->name, p->name, sizeof e.plan->name);
    e.plan->layout = l;
    TM_GO(prepare_trackers(&e));
    TM_GO(place_temps(&e));
    order = tm_malloc(sizeof *order * 3 * (pl->n + 1));
    if (!order) TM_GO(tm_nomem(sizeof *order * 3 * (pl->n + 1)));
    TM_GO(order_live_ranges(&e, order, order + pl->n + 1, order + 2 * ((size_t)pl->n + 1)));
    emit_all(&e, order, order + pl->n + 1);
    TM_GO(e.status);
    e.plan->first_touch[e.plan->n_op] = e.n_touch;
    TM_GO(number_edges(&e));
    shrink_to_fit(&e);
    e.plan->info.slab_bytes = pl->peak;
    e.plan->info.device_bytes = pl->device_peak;
    e.plan->info.shared_bytes = p->shared_bytes;
    e.plan->info.resident_bytes = pl->base;
    e.plan->info.memory_bytes = plan_memory_bytes(&(plan_size){
        .ops = e.plan->n_op, .edges = e.n_edge, .operands = e.n_operand, .touches = e.n_touch, .temps = p->n_temp});
    *out = e.plan;
done:
    tm_free(order);
    emitter_free(&e);
    if (rc != TM_OK) tm_plan_free(e.plan);
    return rc;
}
