/* The proof of a plan, independent of how it was made: it looks at addresses, objects and edges only.
 *
 * Walking the operations in index order, a map of the slab says for every byte whose content it holds, who wrote it
 * last and who has read it since. Checked are
 *   - content: what an operation reads is the latest version of the object it means; a read from disk brings the
 *     latest;
 *   - order: whatever two operations must not overlap or swap (write-read, read-write, write-write of the same bytes or
 *     of the same extent) has an edge, so that it holds under any completion order;
 *   - waiting: an operation waits for operations before it alone, and for exactly those that tell it when they are
 * done. So nothing waits for ever; and communication operations, which the executor starts in plan order, can start in
 *     that order: ranks with the same sequence of them (train compares it) never wait for each other in a circle;
 *   - the end: the latest version of all state is on disk, or resident and untouched.
 * An edge is asked for between neighbours in these chains, so the work is near-linear in operations. */
#include "offload/plan/ranges_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct reader {
    uint32_t op, next;
} reader;

typedef struct version {
    uint32_t latest, on_disk;
    uint32_t disk_writer, disk_readers;
} version;

typedef struct prover {
    const tm_plan *plan;   /* under proof */
    const tm_plan *before; /* a link: the plan whose run may still be under way; NULL otherwise */
    const tm_link *link;
    uint32_t base;       /* operations count on: those of `plan` come after those of `before` */
    uint32_t first_temp; /* slot of temporary 0 */
    range_map map;
    reader *reader;
    uint32_t n_reader;
    size_t cap_reader;
    version *version;
    uint32_t n_objects;
    uint32_t *first_pred, *pred; /* of each operation of `plan`: whom it waits for, counted on from those of `before` */
    uint32_t *waited;            /* per operation: the one that last waited for it, as the walk goes on */
    bool nomem;
    bool two_tiers; /* lowered (lower.c): an arena that is real, not one of an imagined machine */
} prover;

static uint32_t slot_of(const prover *p, uint32_t id) {
    return id & TM_TEMP_BIT ? p->first_temp + (id & ~TM_TEMP_BIT) : id;
}

/* Between runs there is also the executor's rule: compute of the later one begins when all compute of the earlier one
 * is done, and a write-back follows the compute that made what it writes. */
static bool has_edge(const prover *p, uint32_t from, uint32_t to) {
    if (p->waited[from] == to) return true;
    return from < p->base && !plan_is_disk(p->before->op[from].engine) &&
           !plan_starts_early(p->plan->op[to - p->base].engine);
}

static tm_status need_edge(const prover *p, uint32_t from, uint32_t to, const char *why) {
    if (from == TM_NONE || from == to || has_edge(p, from, to)) return TM_OK;
    return tm_fail(TM_EBUG, "plan %s: operation %u must wait for %u (%s), and nothing says so", p->plan->name, to, from,
                   why);
}

static tm_status need_edges(const prover *p, uint32_t list, uint32_t writer, uint32_t to, const char *why) {
    if (list == TM_NONE) return need_edge(p, writer, to, why);
    for (uint32_t i = list; i != TM_NONE; i = p->reader[i].next) TM_TRY(need_edge(p, p->reader[i].op, to, why));
    return TM_OK;
}

static uint32_t push_reader(prover *p, uint32_t op, uint32_t next) {
    if (tm_grow(&p->reader, &p->cap_reader, p->n_reader + 1, sizeof *p->reader) != TM_OK) {
        p->nomem = true;
        return next;
    }
    p->reader[p->n_reader] = (reader){op, next};
    return p->n_reader++;
}

/* ---- one touch ----------------------------------------------------------------------------------------------- */

static tm_status read_range(prover *p, uint32_t op, const struct plan_touch *t, range *s, uint64_t at) {
    if (!s || s->begin != at || s->object != slot_of(p, t->object) || s->base != t->address ||
        s->version != p->version[slot_of(p, t->object)].latest)
        return tm_fail(TM_EBUG, "plan %s: operation %u reads object %x at %llu, which is not there", p->plan->name, op,
                       t->object, (unsigned long long)at);
    /* an update that comes after readers waits for them, and they waited for the writer */
    bool behind_readers = (t->access & TM_USE_WRITE) && s->readers != TM_NONE;
    if (!behind_readers) TM_TRY(need_edge(p, s->writer, op, "it reads what that writes"));
    if (!(t->access & TM_USE_WRITE)) s->readers = push_reader(p, op, s->readers);
    return TM_OK;
}

/* Most frames are what the map has there, neither more nor less: nothing is cut then. */
static tm_status read_frame(prover *p, uint32_t op, const struct plan_touch *t) {
    uint64_t end = t->address + t->bytes, at = t->address;
    range_at i = ranges_find(&p->map, t->address);
    range *s = ranges_get(&p->map, i);
    if (ranges_is(s, t->address, end)) return read_range(p, op, t, s, at);
    ranges_cut(&p->map, t->address);
    ranges_cut(&p->map, end);
    for (i = ranges_find(&p->map, t->address); at < end; i = ranges_next(&p->map, i)) {
        s = ranges_get(&p->map, i);
        TM_TRY(read_range(p, op, t, s, at));
        at = s->end;
    }
    return TM_OK;
}

static bool is_past_the_end(const tm_plan_info *info, uint64_t end) {
    return end > TM_SPILL_BASE    ? end - TM_SPILL_BASE > info->spill_file_bytes
           : end > TM_DEVICE_BASE ? end - TM_DEVICE_BASE > info->device_bytes
           : end > TM_SHARED_BASE ? end - TM_SHARED_BASE > info->shared_bytes
                                  : end > info->slab_bytes;
}

static tm_status write_frame(prover *p, uint32_t op, const struct plan_touch *t, uint32_t new_version) {
    static const char why[] = "it overwrites what that uses";
    uint64_t end = t->address + t->bytes;
    range now = {.begin = t->address,
                 .end = end,
                 .base = t->address,
                 .object = slot_of(p, t->object),
                 .version = new_version,
                 .writer = op,
                 .readers = TM_NONE};
    if (is_past_the_end(&p->plan->info, end))
        return tm_fail(TM_EBUG, "plan %s: operation %u writes past the end of its tier", p->plan->name, op);
    range_at i = ranges_find(&p->map, t->address);
    range *s = ranges_get(&p->map, i);
    if (ranges_is(s, t->address, end)) {
        TM_TRY(need_edges(p, s->readers, s->writer, op, why));
        *s = now;
        return TM_OK;
    }
    ranges_cut(&p->map, t->address);
    ranges_cut(&p->map, end);
    i = ranges_find(&p->map, t->address);
    for (s = ranges_get(&p->map, i); s && s->begin < end; s = ranges_get(&p->map, i)) {
        TM_TRY(need_edges(p, s->readers, s->writer, op, why));
        i = ranges_next(&p->map, i);
    }
    ranges_put(&p->map, &now);
    return TM_OK;
}

/* What the handler is given is what was proved: operands are the touches' addresses, in order; a use of several objects
 * touches one after the other. */
static tm_status check_operands(const tm_plan *plan, uint32_t op) {
    const tm_plan_op *o = &plan->op[op];
    const uint64_t *operand = plan->operand + o->first_operand;
    uint32_t t = plan->first_touch[op], end = plan->first_touch[op + 1];
    for (uint32_t i = 0; i < o->n_operands; i++) {
        bool right = t < end && plan->touch[t].address == operand[i];
        for (t++; right && t < end && (i + 1 == o->n_operands || plan->touch[t].address != operand[i + 1]); t++)
            right = plan->touch[t].address == plan->touch[t - 1].address + plan->touch[t - 1].bytes;
        if (!right)
            return tm_fail(TM_EBUG, "plan %s: operation %u is given another frame than it says", plan->name, op);
    }
    return t == end ? TM_OK : tm_fail(TM_EBUG, "plan %s: operation %u touches more than it is given", plan->name, op);
}

static bool is_lowered(const tm_plan *plan) {
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (!plan_is_disk(plan->op[i].engine) &&
            (plan->op[i].op.tier == TM_TIER_DEVICE || plan->op[i].op.code == TM_OP_COPY))
            return true;
    return false;
}

/* Where there is an arena, what the CPU runs for the device touches it with all its operands, and so does what ranks
 * exchange from arena to arena. Nothing else does but copies: the other engines know host frames only. Those of an
 * imagined machine may have a device of their own. */
static tm_status check_tier(const prover *p, uint32_t op) {
    const tm_plan *plan = p->plan;
    const tm_plan_op *o = &plan->op[op];
    if (!p->two_tiers && o->engine != TM_ENGINE_CPU) return TM_OK;
    bool there = o->engine == TM_ENGINE_CPU || o->engine == TM_ENGINE_DEVICE || o->engine == TM_ENGINE_COMM;
    bool inside = there && o->op.tier == TM_TIER_DEVICE && plan->info.device_bytes > 0;
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
        if ((plan->touch[i].address >= TM_DEVICE_BASE) != inside)
            return tm_fail(TM_EBUG, "plan %s: operation %u reaches into a tier that is not its own", plan->name, op);
    return TM_OK;
}

/* Other ranks read what is written there. That they are done with what was there before is known where a communication
 * operation begins, which waits for all of them and is proved to come after this rank's own readers; and nowhere else.
 */
static tm_status check_shared(const prover *p, uint32_t op) {
    const tm_plan *plan = p->plan;
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++) {
        const struct plan_touch *t = &plan->touch[i];
        bool by_ranks = plan->op[op].engine == TM_ENGINE_COMM && t->access == TM_USE_WRITE;
        if (address_is_shared(t->address) && t->access != TM_USE_READ && !by_ranks)
            return tm_fail(TM_EBUG, "plan %s: operation %u writes what other ranks may be reading", plan->name, op);
    }
    return TM_OK;
}

static tm_status compute_op(prover *p, uint32_t op) {
    const tm_plan *plan = p->plan;
    TM_TRY(check_operands(plan, op));
    TM_TRY(check_tier(p, op));
    TM_TRY(check_shared(p, op));
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
        if (plan->touch[i].access & TM_USE_READ) TM_TRY(read_frame(p, p->base + op, &plan->touch[i]));
    for (uint32_t i = plan->first_touch[op]; i < plan->first_touch[op + 1]; i++)
        if (plan->touch[i].access & TM_USE_WRITE)
            TM_TRY(
                write_frame(p, p->base + op, &plan->touch[i], ++p->version[slot_of(p, plan->touch[i].object)].latest));
    return TM_OK;
}

/* Between the tiers: the same object, in another frame; what is written has the version that was read. */
static bool is_copy(const prover *p, uint32_t op) {
    uint8_t engine = p->plan->op[op].engine;
    return p->two_tiers && (engine == TM_ENGINE_COPY_IN || engine == TM_ENGINE_COPY_OUT);
}

static tm_status copy_op(prover *p, uint32_t op) {
    const tm_plan *plan = p->plan;
    const struct plan_touch *from = &plan->touch[plan->first_touch[op]], *to = from + 1;
    const tm_plan_op *o = &plan->op[op];
    bool out = o->engine == TM_ENGINE_COPY_OUT;
    uint64_t bytes = (uint64_t)o->op.arg[1] << 32 | o->op.arg[0];
    TM_TRY(check_operands(plan, op));
    if (o->op.code != TM_OP_COPY || plan->first_touch[op + 1] - plan->first_touch[op] != 2 ||
        from->object != to->object || from->access != TM_USE_READ || to->access != TM_USE_WRITE ||
        from->bytes != bytes || to->bytes != bytes || o->op.arg[2] != from->object ||
        (from->address >= TM_DEVICE_BASE) != out || (to->address >= TM_DEVICE_BASE) == out)
        return tm_fail(TM_EBUG, "plan %s: operation %u is no copy of one object between two tiers", plan->name, op);
    TM_TRY(read_frame(p, p->base + op, from));
    return write_frame(p, p->base + op, to, p->version[slot_of(p, to->object)].latest);
}

/* A temporary's place in the spill file is followed like memory: the next run has other content there. */
static tm_status spill_op(prover *p, uint32_t op, const struct plan_touch *t) {
    const tm_plan *plan = p->plan;
    uint32_t i = t->object & ~TM_TEMP_BIT, g = p->base + op;
    bool write = plan->op[op].engine == TM_ENGINE_DISK_WRITE;
    struct plan_touch file = {TM_SPILL_BASE + plan->extent[i].offset, t->bytes, write ? TM_USE_WRITE : TM_USE_READ,
                              t->object};
    uint32_t latest = p->version[slot_of(p, t->object)].latest;
    TM_TRY(read_frame(p, g, write ? t : &file));
    return write_frame(p, g, write ? &file : t, latest);
}

static tm_status disk_op(prover *p, uint32_t op) {
    const struct plan_touch *t = &p->plan->touch[p->plan->first_touch[op]];
    version *v = &p->version[slot_of(p, t->object)];
    uint32_t g = p->base + op;
    TM_TRY(check_tier(p, op));
    TM_TRY(check_shared(p, op));
    if (p->plan->op[op].address != t->address || p->plan->op[op].object != t->object)
        return tm_fail(TM_EBUG, "plan %s: operation %u moves something else than it says", p->plan->name, op);
    if (t->object & TM_TEMP_BIT) return spill_op(p, op, t);
    if (p->plan->op[op].engine == TM_ENGINE_DISK_READ) {
        if (v->on_disk != v->latest)
            return tm_fail(TM_EBUG,
                           "plan %s: operation %u reads object %x from disk, whose latest version is not there",
                           p->plan->name, op, t->object);
        TM_TRY(need_edge(p, v->disk_writer, g, "it reads the extent that that writes"));
        v->disk_readers = push_reader(p, g, v->disk_readers);
        return write_frame(p, g, t, v->on_disk);
    }
    TM_TRY(read_frame(p, g, t));
    TM_TRY(need_edges(p, v->disk_readers, v->disk_writer, g, "it overwrites the extent that that uses"));
    v->on_disk = v->latest;
    v->disk_writer = g;
    v->disk_readers = TM_NONE;
    return TM_OK;
}

/* ---- begin and end ------------------------------------------------------------------------------------------- */

/* Whom each operation of `plan` waits for, by counting: how many there are first, then who. */
static tm_status count_predecessors(prover *p) {
    const tm_plan *plan = p->plan;
    uint32_t *first = p->first_pred;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const tm_plan_op *o = &plan->op[i];
        for (uint32_t s = 0; s < o->n_succ; s++) {
            uint32_t to = plan->succ[o->first_succ + s];
            if (to <= i || to >= plan->n_op)
                return tm_fail(TM_EBUG, "plan %s: operation %u points back to %u", plan->name, i, to);
            first[to + 1]++;
        }
    }
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (first[i + 1] != plan->op[i].n_pred)
            return tm_fail(TM_EBUG, "plan %s: operation %u waits for %u others, and %u tell it", plan->name, i,
                           plan->op[i].n_pred, first[i + 1]);
    return TM_OK;
}

static void count_linked(prover *p) {
    uint32_t n;
    for (uint32_t i = 0; i < p->base; i++) {
        const uint32_t *to = tm_link_successors(p->link, i, &n);
        for (uint32_t s = 0; s < n; s++) p->first_pred[to[s] + 1]++;
    }
}

/* `at`: where the next one of each operation goes. */
static void note_predecessors(prover *p, uint32_t *at) {
    const tm_plan *plan = p->plan;
    uint32_t n;
    for (uint32_t i = 0; i < p->base; i++) {
        const uint32_t *to = tm_link_successors(p->link, i, &n);
        for (uint32_t s = 0; s < n; s++) p->pred[at[to[s]]++] = i;
    }
    for (uint32_t i = 0; i < plan->n_op; i++)
        for (uint32_t s = 0; s < plan->op[i].n_succ; s++)
            p->pred[at[plan->succ[plan->op[i].first_succ + s]]++] = p->base + i;
}

static tm_status find_predecessors(prover *p) {
    uint32_t n = p->plan->n_op, all = p->base + n;
    tm_free(p->first_pred);
    tm_free(p->pred);
    tm_free(p->waited);
    p->pred = NULL;
    p->first_pred = tm_calloc((size_t)n + 2, sizeof *p->first_pred);
    p->waited = tm_malloc(sizeof *p->waited * ((size_t)all + 1));
    if (!p->first_pred || !p->waited) return tm_nomem(sizeof *p->waited * all);
    memset(p->waited, 0xff, sizeof *p->waited * all);
    TM_TRY(count_predecessors(p));
    count_linked(p);
    for (uint32_t i = 0; i < n; i++) p->first_pred[i + 1] += p->first_pred[i];
    p->pred = tm_malloc(sizeof *p->pred * ((size_t)p->first_pred[n] + 1));
    if (!p->pred) return tm_nomem(sizeof *p->pred * p->first_pred[n]);
    note_predecessors(p, p->first_pred); /* leaves in each place where its list ends, and the next begins */
    return TM_OK;
}

/* From here on has_edge() knows whom operation `op` waits for. */
static void wait_for_predecessors(prover *p, uint32_t op) {
    uint32_t from = op > 0 ? p->first_pred[op - 1] : 0;
    for (uint32_t i = from; i < p->first_pred[op]; i++) p->waited[p->pred[i]] = p->base + op;
}

static tm_status begin_proof(prover *p, const tm_layout *l, uint32_t temps) {
    p->n_objects = l->n + temps;
    p->first_temp = l->n;
    p->version = tm_calloc(p->n_objects + 1, sizeof *p->version);
    if (!p->version) return tm_nomem(p->n_objects * sizeof *p->version);
    for (uint32_t i = 0; i < p->n_objects; i++) {
        p->version[i].disk_writer = p->version[i].disk_readers = TM_NONE;
        if (i >= l->n) p->version[i].on_disk = TM_NONE; /* nothing of a temporary is there yet */
    }
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        if (!o->resident) continue;
        ranges_put(&p->map, &(range){.begin = o->address,
                                     .end = o->address + o->frame_bytes,
                                     .base = o->address,
                                     .object = i,
                                     .writer = TM_NONE,
                                     .readers = TM_NONE});
    }
    return TM_OK;
}

static tm_status walk_plan(prover *p) {
    p->two_tiers = is_lowered(p->plan);
    TM_TRY(find_predecessors(p));
    for (uint32_t op = 0; op < p->plan->n_op; op++) {
        wait_for_predecessors(p, op);
        TM_TRY(plan_is_disk(p->plan->op[op].engine) ? disk_op(p, op)
               : is_copy(p, op)                     ? copy_op(p, op)
                                                    : compute_op(p, op));
    }
    return TM_OK;
}

static tm_status finish_proof(prover *p) {
    const tm_layout *l = p->plan->layout;
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        if (!o->resident) {
            if (p->version[i].on_disk != p->version[i].latest)
                return tm_fail(TM_EBUG, "plan %s: the latest %s (object %u) is never written back", p->plan->name,
                               tm_kind_name(o->kind), i);
            continue;
        }
        for (uint64_t at = o->address; at < o->address + o->frame_bytes;) {
            const range *s = ranges_get(&p->map, ranges_find(&p->map, at));
            if (!s || s->begin > at || s->object != i || s->version != p->version[i].latest)
                return tm_fail(TM_EBUG, "plan %s: resident object %u is overwritten", p->plan->name, i);
            at = s->end;
        }
    }
    return TM_OK;
}

static tm_status end_proof(prover *p, tm_status rc) {
    if (rc == TM_OK) rc = finish_proof(p);
    if (p->nomem || p->map.nomem) { /* what was found wrong may be what could not be noted down */
        tm_error_clear();
        rc = tm_nomem(sizeof(range));
    }
    ranges_close(&p->map);
    TM_FREE_ALL(p->reader, p->version, p->first_pred, p->pred, p->waited);
    return rc;
}

tm_status tm_plan_verify(const tm_plan *plan) {
    prover p = {.plan = plan};
    tm_status rc = begin_proof(&p, plan->layout, plan->n_temp);
    if (rc == TM_OK) rc = walk_plan(&p);
    return end_proof(&p, rc);
}

tm_status tm_link_verify(const tm_link *link) {
    const tm_plan *before = tm_link_before(link), *after = tm_link_after(link);
    prover p = {.plan = before, .link = link};
    tm_status rc = begin_proof(&p, before->layout, before->n_temp + after->n_temp);
    if (rc == TM_OK) rc = walk_plan(&p);
    p.before = before;
    p.plan = after;
    p.base = before->n_op;
    p.first_temp += before->n_temp;
    if (rc == TM_OK) rc = walk_plan(&p);
    return end_proof(&p, rc);
}

/* ---- before it runs ------------------------------------------------------------------------------------------ */

/* For whoever reads the line: nothing that they did is wrong, and nothing was done. */
static tm_status own_mistake(tm_status rc) {
    char what[sizeof tm_error_get()->text];
    if (rc != TM_EBUG) return rc;
    snprintf(what, sizeof what, "%s", tm_error_get()->text);
    tm_error_clear();
    return tm_fail(TM_EBUG, "a plan that tidemill made is wrong, and it was not run; please report it: %s", what);
}

tm_status tm_plan_prove(tm_plan *plan) {
    uint64_t from = tm_now_ns();
    tm_status rc = tm_plan_verify(plan);
    plan->info.proved = rc == TM_OK;
    plan->info.proof_seconds = (double)(tm_now_ns() - from) * 1e-9;
    return own_mistake(rc);
}

tm_status link_prove(tm_link *link) {
    uint64_t from = tm_now_ns();
    tm_status rc = tm_link_verify(link);
    link_proved(link, rc == TM_OK, (double)(tm_now_ns() - from) * 1e-9);
    return own_mistake(rc);
}
