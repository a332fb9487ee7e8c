/* What two runs that overlap have to keep in order: edges from operations of the plan before to operations of the plan
 * after. The executor lets operations of the later run start only when all of the earlier run's but its disk operations
 * are done; reads and copies to the device (plan_starts_early) may start before that. So what is left are transfers:
 * fills of frames that are still in use, reads of extents that are still being written, copies of what is still
 * computed, operations on frames that are still being written back.
 *
 * Walking the plan before leaves, for every stretch of the slab and every extent, the operations that had it last;
 * walking the plan after, the first who touch it are tied to them. */
#include "offload/plan/ranges_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct edge {
    uint32_t from, to;
} edge;

struct tm_link {
    const tm_plan *before, *after;
    edge *edge; /* sorted by from */
    uint32_t *first;
    uint32_t *to;
    uint32_t n_edge;
    size_t cap_edge;
    bool proved;
    double proof_seconds;
};

/* Who had an extent last: a writer, or the readers since. */
typedef struct last {
    uint32_t writer, readers;
} last;

typedef struct reader {
    uint32_t op, next;
} reader;

typedef struct linker {
    tm_link *link;
    range_map map;
    reader *reader;
    uint32_t n_reader;
    size_t cap_reader;
    last *extent;
    bool nomem;
} linker;

static void note_reader(linker *k, uint32_t *readers, uint32_t op) {
    if (tm_grow(&k->reader, &k->cap_reader, k->n_reader + 1, sizeof *k->reader) != TM_OK) {
        k->nomem = true;
        return;
    }
    k->reader[k->n_reader] = (reader){op, *readers};
    *readers = k->n_reader++;
}

static uint32_t extent_of(const tm_plan *plan, uint32_t op) {
    uint32_t id = plan->op[op].object;
    return plan_is_disk(plan->op[op].engine) && !(id & TM_TEMP_BIT) ? id : TM_NONE;
}

/* A transfer of a temporary touches its place in the spill file, which both runs share. */
static bool spill_of(const tm_plan *plan, uint32_t op, struct plan_touch *t) {
    const tm_plan_op *o = &plan->op[op];
    if (!plan_is_disk(o->engine) || !(o->object & TM_TEMP_BIT)) return false;
    uint32_t i = o->object & ~TM_TEMP_BIT;
    *t = (struct plan_touch){TM_SPILL_BASE + plan->extent[i].offset, plan->temp[i].frame_bytes,
                             o->engine == TM_ENGINE_DISK_WRITE ? TM_USE_WRITE : TM_USE_READ, o->object};
    return true;
}

static void leave_bytes(linker *k, const struct plan_touch *t, uint32_t op) {
    uint64_t end = t->address + t->bytes;
    range_at i = ranges_find(&k->map, t->address);
    range *same = ranges_get(&k->map, i);
    if (!ranges_is(same, t->address, end)) same = NULL;
    if (t->access & TM_USE_WRITE) {
        range now = {.begin = t->address, .end = end, .writer = op, .readers = TM_NONE};
        if (same)
            *same = now;
        else
            ranges_put(&k->map, &now);
        return;
    }
    if (!same) {
        ranges_cut(&k->map, t->address);
        ranges_cut(&k->map, end);
        i = ranges_find(&k->map, t->address);
    }
    for (range *r = ranges_get(&k->map, i); r && r->begin < end; r = ranges_get(&k->map, i)) {
        note_reader(k, &r->readers, op);
        i = ranges_next(&k->map, i);
    }
}

static void leave_plan(linker *k, const tm_plan *plan) {
    for (uint32_t op = 0; op < plan->n_op && !k->nomem; op++) {
        struct plan_touch spill;
        for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
            leave_bytes(k, &plan->touch[i], op);
        if (spill_of(plan, op, &spill)) leave_bytes(k, &spill, op);
        uint32_t x = extent_of(plan, op);
        if (x == TM_NONE) continue;
        if (plan->op[op].engine == TM_ENGINE_DISK_WRITE)
            k->extent[x] = (last){op, TM_NONE};
        else
            note_reader(k, &k->extent[x].readers, op);
    }
}

static void tie(linker *k, uint32_t from, uint32_t to) {
    tm_link *l = k->link;
    bool late = !plan_is_disk(l->before->op[from].engine) && !plan_starts_early(l->after->op[to].engine);
    TM_ASSERT(from < l->before->n_op && to < l->after->n_op);
    if (late) return; /* by then all compute of the run before is done */
    if (tm_grow(&l->edge, &l->cap_edge, l->n_edge + 1, sizeof *l->edge) != TM_OK) {
        k->nomem = true;
        return;
    }
    l->edge[l->n_edge++] = (edge){from, to};
}

static void follow_last(linker *k, uint32_t *writer, uint32_t *readers, uint32_t op, bool write) {
    if (*writer != TM_NONE && (!write || *readers == TM_NONE)) tie(k, *writer, op);
    if (!write) return;
    for (uint32_t i = *readers; i != TM_NONE; i = k->reader[i].next) tie(k, k->reader[i].op, op);
    *writer = *readers = TM_NONE;
}

static void enter_bytes(linker *k, const struct plan_touch *t, uint32_t op) {
    bool write = t->access & TM_USE_WRITE;
    uint64_t end = t->address + t->bytes;
    range_at i = ranges_find(&k->map, t->address);
    if (write && !ranges_is(ranges_get(&k->map, i), t->address, end)) {
        ranges_cut(&k->map, t->address);
        ranges_cut(&k->map, end);
        i = ranges_find(&k->map, t->address);
    }
    for (range *r = ranges_get(&k->map, i); r && r->begin < end; r = ranges_get(&k->map, i)) {
        follow_last(k, &r->writer, &r->readers, op, write);
        i = ranges_next(&k->map, i);
    }
}

static void enter_plan(linker *k, const tm_plan *plan) {
    for (uint32_t op = 0; op < plan->n_op && !k->nomem; op++) {
        struct plan_touch spill;
        for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
            enter_bytes(k, &plan->touch[i], op);
        if (spill_of(plan, op, &spill)) enter_bytes(k, &spill, op);
        uint32_t x = extent_of(plan, op);
        if (x != TM_NONE)
            follow_last(k, &k->extent[x].writer, &k->extent[x].readers, op,
                        plan->op[op].engine == TM_ENGINE_DISK_WRITE);
    }
}

static int by_edge(const void *a, const void *b) {
    const edge *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static tm_status number_edges(tm_link *l) {
    uint32_t n = 0;
    if (l->n_edge) qsort(l->edge, l->n_edge, sizeof *l->edge, by_edge);
    l->first = tm_calloc((size_t)l->before->n_op + 2, sizeof *l->first);
    l->to = tm_malloc(sizeof *l->to * (l->n_edge + 1));
    if (!l->first || !l->to) return tm_nomem(sizeof *l->first * l->before->n_op);
    for (uint32_t i = 0; i < l->n_edge; i++) {
        if (i > 0 && by_edge(&l->edge[i - 1], &l->edge[i]) == 0) continue;
        l->to[n++] = l->edge[i].to;
        l->first[l->edge[i].from + 1]++;
    }
    for (uint32_t i = 0; i < l->before->n_op; i++) l->first[i + 1] += l->first[i];
    tm_free(l->edge);
    l->edge = NULL;
    l->n_edge = n;
    return TM_OK;
}

tm_status tm_link_sketch(tm_link **out, const tm_plan *before, const tm_plan *after) {
    tm_status rc = TM_OK;
    TM_ASSERT(before->layout == after->layout);
    tm_link *l = tm_calloc(1, sizeof *l);
    linker k = {.link = l, .extent = tm_malloc(sizeof(last) * (before->layout->n + 1))};
    if (!l || !k.extent) TM_GO(tm_nomem(sizeof *l));
    l->before = before;
    l->after = after;
    for (uint32_t i = 0; i < before->layout->n; i++) k.extent[i] = (last){TM_NONE, TM_NONE};
    leave_plan(&k, before);
    enter_plan(&k, after);
    if (k.nomem || k.map.nomem) TM_GO(tm_nomem(sizeof(range)));
    TM_GO(number_edges(l));
    *out = l;
done:
    ranges_close(&k.map);
    tm_free(k.reader);
    tm_free(k.extent);
    if (rc != TM_OK) tm_link_free(l);
    return rc;
}

tm_status tm_link_create(tm_link **out, const tm_plan *before, const tm_plan *after) {
    TM_TRY(tm_link_sketch(out, before, after));
    tm_status rc = link_prove(*out);
    if (rc == TM_OK) return TM_OK;
    tm_link_free(*out);
    *out = NULL;
    return rc;
}

void link_proved(tm_link *link, bool proved, double seconds) {
    link->proved = proved;
    link->proof_seconds = seconds;
}

bool link_is_proved(const tm_link *link) {
    return link->proved;
}

double tm_link_proof_seconds(const tm_link *link) {
    return link->proof_seconds;
}

void tm_link_free(tm_link *link) {
    if (!link) return;
    TM_FREE_ALL(link->edge, link->first, link->to, link);
}

const uint32_t *tm_link_successors(const tm_link *link, uint32_t op, uint32_t *n) {
    *n = link->first[op + 1] - link->first[op];
    return link->to + link->first[op];
}

const tm_plan *tm_link_before(const tm_link *link) {
    return link->before;
}

const tm_plan *tm_link_after(const tm_link *link) {
    return link->after;
}
