/* Which objects stay resident.
 *
 * Candidates are tried in a fixed order: the compute weights by whole bundle (each byte kept saves three: read forward,
 * read backward, read and written by the update less what the update has to move anyway), then gradients and
 * activations between their passes, then the same fraction of every unit's remaining state, so that the disk works
 * evenly through the step. The longest prefix that fits the slab together with a modest look-ahead is kept; what is
 * left over widens the look-ahead. */
#include "offload/offload_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    uint32_t first, count; /* object ids */
    uint8_t rank;          /* 0 weights, 1 temporaries, 2 other state */
    double spread;         /* position inside its unit, 0..1: equal fractions of every unit come together */
} candidate;

typedef struct chooser {
    const tm_program *p;
    const tm_layout *l;
    const tm_plan_opts *opts;
    candidate *c;
    uint32_t n;
    uint8_t *resident, *temp_paged;
} chooser;

static int by_order(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->spread != y->spread) return x->spread < y->spread ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static uint32_t bundle_count(const tm_layout *l, uint32_t first) {
    uint32_t n = 1;
    while (first + n < l->n && l->object[first + n].kind == l->object[first].kind &&
           l->object[first + n].bundle == l->object[first].bundle)
        n++;
    return n;
}

/* spread = (how many candidates of this rank and unit came before + 1/2) / (how many there are). */
static tm_status spread_by_unit(chooser *ch) {
    uint32_t units = 0;
    for (uint32_t i = 0; i < ch->n; i++) {
        uint32_t u = program_object(ch->p, ch->c[i].first)->unit;
        if (u + 1 > units) units = u + 1;
    }
    uint32_t *count = tm_calloc((size_t)units * 6 + 1, sizeof *count);
    if (!count) return tm_nomem((size_t)units * 6 * sizeof *count);
    uint32_t *seen = count + (size_t)units * 3;
    for (uint32_t i = 0; i < ch->n; i++) count[program_object(ch->p, ch->c[i].first)->unit * 3 + ch->c[i].rank]++;
    for (uint32_t i = 0; i < ch->n; i++) {
        uint32_t at = program_object(ch->p, ch->c[i].first)->unit * 3 + ch->c[i].rank;
        ch->c[i].spread = ((double)seen[at]++ + 0.5) / (double)count[at];
    }
    tm_free(count);
    return TM_OK;
}

static tm_status collect(chooser *ch) {
    uint32_t cap = ch->l->n + ch->p->n_temp + 1;
    ch->c = tm_malloc(sizeof *ch->c * cap);
    if (!ch->c) return tm_nomem(sizeof *ch->c * cap);
    if (ch->opts->choose_residency && ch->opts->cache) {
        for (uint32_t i = 0; i < ch->l->n;) {
            uint32_t count = bundle_count(ch->l, i);
            tm_kind kind = ch->l->object[i].kind;
            uint8_t rank = kind == TM_KIND_WEIGHT_HI ? 0 : kind == TM_KIND_GRAD ? 1 : 2;
            if (!ch->resident[i]) ch->c[ch->n++] = (candidate){.first = i, .count = count, .rank = rank};
            i += count;
        }
    }
    if (ch->opts->cache)
        for (uint32_t t = 0; t < ch->p->n_temp; t++)
            if (ch->temp_paged[t]) ch->c[ch->n++] = (candidate){.first = TM_TEMP_BIT | t, .count = 1, .rank = 1};
    TM_TRY(spread_by_unit(ch));
    qsort(ch->c, ch->n, sizeof *ch->c, by_order);
    return TM_OK;
}

static void keep_prefix(chooser *ch, uint32_t k) {
    for (uint32_t i = 0; i < ch->n; i++) {
        const candidate *c = &ch->c[i];
        for (uint32_t j = 0; j < c->count; j++) {
            if (c->first & TM_TEMP_BIT)
                ch->temp_paged[c->first & ~TM_TEMP_BIT] = i >= k;
            else
                ch->resident[c->first + j] = i < k;
        }
    }
}

uint64_t residency_base(const tm_layout *l, const uint8_t *resident, uint64_t *address) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!resident[i]) continue;
        if (l->object[i].pageable) at = tm_round_up(at, TM_FRAME_ALIGN);
        if (address) address[i] = at;
        at += l->object[i].frame_bytes;
    }
    return tm_round_up(at, TM_FRAME_ALIGN);
}

static tm_status peak_of(chooser *ch, uint32_t k, uint64_t window, uint64_t *peak) {
    placement pl;
    keep_prefix(ch, k);
    uint64_t base = ch->opts->choose_residency ? residency_base(ch->l, ch->resident, NULL) : ch->l->resident_end;
    TM_TRY(place_build(&pl, ch->p, ch->temp_paged, ch->resident, base, window));
    *peak = pl.peak;
    place_free(&pl);
    return TM_OK;
}

/* Starting point: pinned state resident, temporaries with several visits paged where that is allowed. */
static tm_status start_point(chooser *ch) {
    for (uint32_t i = 0; i < ch->l->n; i++) {
        const tm_object *o = &ch->l->object[i];
        ch->resident[i] =
            ch->opts->choose_residency ? !o->pageable || o->pinned || ch->opts->pinned[o->kind] : o->resident;
    }
    uint8_t *visits = tm_calloc(ch->p->n_temp + 1, 1);
    if (!visits) return tm_nomem(ch->p->n_temp + 1);
    for (uint32_t v = 0; v < ch->p->n_visit; v++) {
        const prog_visit *visit = &ch->p->visit[v];
        if (visit->first_op == TM_NONE || !(visit->first & TM_TEMP_BIT)) continue;
        uint8_t *n = &visits[visit->first & ~TM_TEMP_BIT];
        if (*n < 2) ++*n;
    }
    for (uint32_t t = 0; t < ch->p->n_temp; t++)
        ch->temp_paged[t] =
            ch->opts->spill && ch->p->temp[t].pageable && !ch->opts->pinned[ch->p->temp[t].kind] && visits[t] > 1;
    tm_free(visits);
    return TM_OK;
}

static tm_status longest_prefix(chooser *ch, uint64_t window, uint32_t *k) {
    uint32_t lo = 0, hi = ch->n; /* lo fits */
    while (lo < hi) {
        uint32_t mid = hi - (hi - lo) / 2;
        uint64_t peak;
        TM_TRY(peak_of(ch, mid, window, &peak));
        if (peak <= ch->opts->slab_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    *k = lo;
    return TM_OK;
}

static tm_status widest_window(chooser *ch, uint32_t k, uint64_t *window) {
    uint64_t step = TM_MIB, lo = *window / step;
    uint64_t hi = ch->opts->window_mib ? ch->opts->window_mib : 512;
    if (hi < lo) hi = lo;
    while (lo < hi) {
        uint64_t mid = hi - (hi - lo) / 2, peak;
        TM_TRY(peak_of(ch, k, mid * step, &peak));
        if (peak <= ch->opts->slab_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    *window = lo * step;
    return TM_OK;
}

tm_status residency_choose(const tm_program *p, const tm_layout *l, const tm_plan_opts *opts, uint8_t *resident,
                           uint8_t *temp_paged, uint64_t *base, uint64_t *window, uint64_t *minimum) {
    chooser ch = {.p = p, .l = l, .opts = opts, .resident = resident, .temp_paged = temp_paged};
    tm_status rc;
    TM_GO(start_point(&ch));
    TM_GO(collect(&ch));
    TM_GO(peak_of(&ch, 0, 0, minimum));
    if (*minimum > opts->slab_bytes) {
        rc = TM_EBUDGET;
        tm_fail(TM_EBUDGET, "%s needs frames of %llu bytes, the budget leaves %llu", p->name,
                (unsigned long long)*minimum, (unsigned long long)opts->slab_bytes);
        goto done;
    }
    /* a modest look-ahead first: residency is worth more than a deep one */
    uint64_t modest[] = {tm_min_u64(96 * TM_MIB, opts->slab_bytes / 6), tm_min_u64(24 * TM_MIB, opts->slab_bytes / 12),
                         0};
    uint32_t k = 0;
    for (size_t i = 0; i < TM_COUNT(modest); i++) {
        uint64_t peak;
        *window = modest[i];
        TM_GO(peak_of(&ch, 0, *window, &peak));
        if (peak <= opts->slab_bytes) break;
    }
    TM_GO(longest_prefix(&ch, *window, &k));
    TM_GO(widest_window(&ch, k, window));
    keep_prefix(&ch, k);
    *base = opts->choose_residency ? residency_base(l, resident, NULL) : l->resident_end;
done:
    tm_free(ch.c);
    return rc;
}

tm_status tm_plan_minimum(const tm_layout *layout, const tm_program *p, const tm_plan_opts *opts, uint64_t *minimum) {
    tm_plan_opts o = *opts;
    o.choose_residency = true;
    uint8_t *resident = tm_calloc(layout->n + 1, 1), *temp_paged = tm_calloc(p->n_temp + 1, 1);
    chooser ch = {.p = p, .l = layout, .opts = &o, .resident = resident, .temp_paged = temp_paged};
    tm_status rc = p->status;
    if (rc == TM_OK && (!resident || !temp_paged)) rc = tm_nomem(layout->n + p->n_temp);
    if (rc == TM_OK) rc = start_point(&ch);
    if (rc == TM_OK) rc = peak_of(&ch, 0, 0, minimum);
    tm_free(resident);
    tm_free(temp_paged);
    return rc;
}
