/* What may be kept, for the greedy choice (density.c): candidates with their intervals, the stretches of the step, and
 * the load that is there in any case. */
#include "offload/plan/density_internal.h"

#include <string.h>

static uint32_t bundle_count(const tm_layout *l, uint32_t first) {
    uint32_t n = 1;
    while (first + n < l->n && l->object[first + n].kind == l->object[first].kind &&
           l->object[first + n].bundle == l->object[first].bundle)
        n++;
    return n;
}

static void add_candidate(density *d, uint32_t first, uint32_t count) {
    candidate *c = &d->c[d->n];
    const tm_object *o = program_object(d->p, first);
    *c = (candidate){.first = first, .count = count, .unit = o->unit, .kind = (uint8_t)o->kind, .from = TM_NONE};
    for (uint32_t i = 0; i < count; i++) {
        c->bytes += program_object(d->p, first + i)->frame_bytes;
        d->of[is_temp(first) ? d->p->layout->n + (first & ~TM_TEMP_BIT) : first + i] = d->n;
    }
    d->n++;
}

static void collect_candidates(density *d, const uint8_t *resident, const uint8_t *temp_paged, bool state) {
    const tm_layout *l = d->p->layout;
    for (uint32_t i = 0; i < l->n + d->p->n_temp; i++) d->of[i] = TM_NONE;
    for (uint32_t i = 0; state && i < l->n;) {
        uint32_t count = bundle_count(l, i);
        if (!resident[i]) add_candidate(d, i, count);
        i += count;
    }
    for (uint32_t t = 0; t < d->p->n_temp; t++)
        if (temp_paged[t]) add_candidate(d, TM_TEMP_BIT | t, 1);
}

static uint32_t candidate_of(const density *d, uint32_t object) {
    return d->of[is_temp(object) ? d->p->layout->n + (object & ~TM_TEMP_BIT) : object];
}

/* Room for one more of the candidate's intervals, in order of their beginnings. */
static cand_interval *next_interval(density *d, candidate *c, uint32_t from) {
    cand_interval *first = &d->interval[c->first_interval];
    uint32_t i = c->n_interval++;
    for (; i > 0 && first[i - 1].from > from; i--) first[i] = first[i - 1];
    return &first[i];
}

/* The intervals of each candidate, in program order (counting sort by candidate). */
static tm_status intervals_of_candidates(density *d) {
    const tm_program *p = d->p;
    for (uint32_t v = 0; v < p->n_interval; v++) {
        bool here = p->interval[v].first_op != TM_NONE && p->interval[v].tier == TM_TIER_HOST;
        uint32_t c = here ? candidate_of(d, p->interval[v].first) : TM_NONE;
        if (c != TM_NONE) d->c[c].n_interval++;
    }
    uint32_t at = 0;
    for (uint32_t c = 0; c < d->n; c++) {
        d->c[c].first_interval = at;
        at += d->c[c].n_interval;
        d->c[c].n_interval = 0;
    }
    d->interval = tm_malloc(sizeof *d->interval * (at + 1));
    if (!d->interval) return tm_nomem(sizeof *d->interval * at);
    for (uint32_t v = 0; v < p->n_interval; v++) {
        const prog_interval *pv = &p->interval[v];
        uint32_t i = pv->first_op == TM_NONE || pv->tier != TM_TIER_HOST ? TM_NONE : candidate_of(d, pv->first);
        if (i == TM_NONE) continue;
        candidate *c = &d->c[i];
        cand_interval *cv = next_interval(d, c, pv->first_op);
        *cv = (cand_interval){.from = pv->first_op, .to = pv->last_op};
        for (uint32_t k = 0; k < pv->count; k++) {
            const interval_object *vo = &p->record[pv->record + k];
            uint64_t bytes = program_object(p, pv->first + k)->frame_bytes;
            cv->bytes += bytes;
            if (vo->first_access & TM_USE_READ) cv->read += bytes;
            if (vo->dirty) cv->write += bytes;
        }
        if (c->from == TM_NONE || pv->first_op < c->from) c->from = pv->first_op;
        if (pv->last_op > c->to) c->to = pv->last_op;
    }
    return TM_OK;
}

/* A temporary's last interval writes nothing back; state takes its bytes over the whole program. */
static void settle_candidates(density *d) {
    for (uint32_t i = 0; i < d->n; i++) {
        candidate *c = &d->c[i];
        if (!is_temp(c->first)) {
            c->from = 0;
            c->to = d->p->n_op ? d->p->n_op - 1 : 0;
            continue;
        }
        cand_interval *last = NULL;
        for (uint32_t v = 0; v < c->n_interval; v++) {
            cand_interval *cv = &d->interval[c->first_interval + v];
            if (!last || cv->to > last->to) last = cv;
        }
        if (last) last->write = 0;
    }
}

/* spread = (how many candidates of this kind and unit came before + 1/2) / (how many there are): between equals, the
 * same fraction of every unit is kept, so that the disk works evenly through the step. */
static tm_status spread_by_unit(density *d) {
    uint32_t units = 0;
    for (uint32_t i = 0; i < d->n; i++) units = d->c[i].unit + 1 > units ? d->c[i].unit + 1 : units;
    uint32_t *count = tm_calloc((size_t)units * TM_KINDS * 2 + 1, sizeof *count);
    if (!count) return tm_nomem((size_t)units * TM_KINDS * 2 * sizeof *count);
    uint32_t *seen = count + (size_t)units * TM_KINDS;
    for (uint32_t i = 0; i < d->n; i++) count[d->c[i].unit * TM_KINDS + d->c[i].kind]++;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = d->c[i].unit * TM_KINDS + d->c[i].kind;
        d->c[i].spread = ((double)seen[at]++ + 0.5) / (double)count[at];
    }
    tm_free(count);
    return TM_OK;
}

/* Stretches of about equal time with nothing kept. */
static void cut_stretches(density *d, const tm_plan_opts *o) {
    double all = 0, at = 0;
    for (uint32_t i = 0; i < d->p->n_op; i++) {
        bool computes = d->p->op[i].op.code != TM_OP_COPY;
        d->seconds[i] = o->cost && computes ? o->cost(o->cost_ctx, &d->p->op[i].op) : 0;
        all += d->seconds[i];
    }
    double read = 0, write = 0;
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t v = 0; v < d->c[i].n_interval; v++) {
            read += (double)d->interval[d->c[i].first_interval + v].read;
            write += (double)d->interval[d->c[i].first_interval + v].write;
        }
    double moving = read / d->machine.disk.read_bps + write / d->machine.disk.write_bps;
    all += moving;
    double each = d->p->n_op ? moving / d->p->n_op : 0;
    for (uint32_t i = 0; i < d->p->n_op; i++) {
        uint32_t s = all > 0 ? (uint32_t)(at / all * STRETCHES) : 0;
        d->stretch[i] = (uint8_t)(s < STRETCHES ? s : STRETCHES - 1);
        d->cpu[d->stretch[i]] += d->seconds[i];
        at += d->seconds[i] + each;
    }
}

/* What lies in memory in any case: frames of intervals, temporaries that are not paged, resident state. */
static tm_status base_load(density *d, const uint8_t *resident, const uint8_t *temp_paged, uint64_t below) {
    const tm_program *p = d->p;
    d->base = tm_malloc(sizeof *d->base * ((size_t)p->n_interval + p->n_temp + 1));
    if (!d->base) return tm_nomem(sizeof *d->base * p->n_interval);
    cand_interval *kept = tm_calloc((size_t)p->n_temp + 1, sizeof *kept);
    if (!kept) return tm_nomem(sizeof *kept * p->n_temp);
    if (p->n_op) d->base[d->n_base++] = (cand_interval){.from = 0, .to = p->n_op - 1, .bytes = below};
    for (uint32_t v = 0; v < p->n_interval; v++) {
        const prog_interval *pv = &p->interval[v];
        if (pv->first_op == TM_NONE || pv->tier != TM_TIER_HOST) continue;
        cand_interval x = {.from = pv->first_op, .to = pv->last_op};
        for (uint32_t k = 0; k < pv->count; k++) x.bytes += program_object(p, pv->first + k)->frame_bytes;
        if (!is_temp(pv->first)) {
            if (!resident[pv->first] || pv->home != INTERVAL_USUAL) d->base[d->n_base++] = x;
            continue;
        }
        uint32_t t = pv->first & ~TM_TEMP_BIT;
        if (temp_paged[t]) {
            d->base[d->n_base++] = x;
            continue;
        }
        if (kept[t].bytes == 0 || x.from < kept[t].from) kept[t].from = x.from;
        if (x.to > kept[t].to) kept[t].to = x.to;
        kept[t].bytes = x.bytes;
    }
    for (uint32_t t = 0; t < p->n_temp; t++)
        if (kept[t].bytes) d->base[d->n_base++] = kept[t];
    tm_free(kept);
    return TM_OK;
}

tm_status density_open(density *d, const tm_program *p, const tm_plan_opts *o, const uint8_t *resident,
                       const uint8_t *temp_paged, uint64_t below) {
    *d = (density){.p = p};
    if (o->machine)
        d->machine = *o->machine;
    else
        tm_machine_nominal(&d->machine);
    memcpy(d->limit, o->max_resident_bytes, sizeof d->limit);
    TM_TRY(load_open(&d->load, p->n_op));
    size_t n = (size_t)p->layout->n + p->n_temp + 1;
    d->c = tm_malloc(sizeof *d->c * n);
    d->of = tm_malloc(sizeof *d->of * n);
    d->heap = tm_malloc(sizeof *d->heap * n);
    d->stretch = tm_calloc(p->n_op + 1, 1);
    d->seconds = tm_malloc(sizeof *d->seconds * (p->n_op + 1));
    d->weight = tm_malloc(sizeof *d->weight * (p->n_op + 1));
    d->price = tm_malloc(sizeof *d->price * (p->n_op + 1));
    d->best_price = tm_malloc(sizeof *d->price * (p->n_op + 1));
    if (!d->c || !d->of || !d->heap || !d->stretch || !d->seconds || !d->weight || !d->price || !d->best_price)
        return tm_nomem(sizeof *d->c * n);
    collect_candidates(d, resident, temp_paged, o->choose_residency);
    TM_TRY(intervals_of_candidates(d));
    settle_candidates(d);
    TM_TRY(spread_by_unit(d));
    cut_stretches(d, o);
    return base_load(d, resident, temp_paged, below);
}

void density_close(density *d) {
    void *all[] = {d->c,      d->of,    d->heap,       d->stretch,  d->seconds,
                   d->weight, d->price, d->best_price, d->interval, d->base};
    load_close(&d->load);
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
    *d = (density){0};
}
