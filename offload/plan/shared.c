/* Frames in memory that the ranks of a node share: their addresses, and what a budget pays for them.
 *
 * A rank that gathers writes into what all of its node read, so every rank has to mean the same bytes. Positions in the
 * program will not do (ranks hold different numbers of tiles), nor will a budget: what counts here is the order of
 * first and last uses, and nothing else. */
#include "offload/offload_internal.h"

#include <stdlib.h>
#include <string.h>

enum { BY_SIZE_MOST = 2048 }; /* frames; the work grows with their square */

typedef struct shelf {
    live_range *frame; /* by their beginnings; `interval` is theirs */
    live_range **list, **placed;
    uint32_t n;
} shelf;

static int by_size(const void *a, const void *b) {
    const live_range *x = *(live_range *const *)a, *y = *(live_range *const *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

static bool together(const live_range *a, const live_range *b) {
    return a->start <= b->retire_at && b->start <= a->retire_at;
}

/* The lowest gap between those that are there at the same time; `placed` is in the order of addresses. */
static uint64_t lowest_gap(live_range *const *placed, uint32_t n, const live_range *r) {
    uint64_t at = TM_SHARED_BASE;
    for (uint32_t i = 0; i < n; i++) {
        if (!together(placed[i], r)) continue;
        if (placed[i]->address >= at + r->bytes) break;
        at = tm_max_u64(at, placed[i]->address + placed[i]->bytes);
    }
    return at;
}

static uint64_t pack_by_size(shelf *s) {
    uint64_t peak = TM_SHARED_BASE;
    qsort(s->list, s->n, sizeof *s->list, by_size);
    for (uint32_t i = 0, at; i < s->n; i++) {
        live_range *r = s->list[i];
        r->address = lowest_gap(s->placed, i, r);
        peak = tm_max_u64(peak, r->address + r->bytes);
        for (at = i; at > 0 && s->placed[at - 1]->address > r->address; at--) s->placed[at] = s->placed[at - 1];
        s->placed[at] = r;
    }
    return peak;
}

static void collect_frames(const tm_program *p, shelf *s) {
    for (uint32_t v = 0; v < p->n_interval; v++) {
        const prog_interval *interval = &p->interval[v];
        if (interval->tier != TM_TIER_SHARED || interval->first_op == TM_NONE) continue;
        TM_ASSERT(interval->count == 1 && (interval->first & TM_TEMP_BIT));
        s->frame[s->n] = (live_range){.interval = v,
                                      .start = interval->first_op,
                                      .end = interval->last_op,
                                      .retire_at = interval->last_op,
                                      .bytes = program_object(p, interval->first)->frame_bytes};
        s->list[s->n] = &s->frame[s->n];
        s->n++;
    }
}

static void take_addresses(tm_program *p, const shelf *s, uint64_t peak) {
    uint64_t aside = tm_fault_hit("shared_place", NULL) ? TM_FRAME_ALIGN : 0; /* not where other ranks have them */
    for (uint32_t i = 0; i < s->n; i++) p->interval[s->frame[i].interval].address = s->frame[i].address + aside;
    p->shared_bytes = peak - TM_SHARED_BASE + aside;
}

/* As they come, and the largest first; what ends lower. */
static void lay_out(tm_program *p, shelf *s) {
    pack_found found;
    collect_frames(p, s);
    /* the first way, always */
    const pack_ask ask = {.n = s->n, .positions = p->n_op, .base = TM_SHARED_BASE, .top = UINT64_MAX - 1};
    p->status = place_pack(s->list, &ask, &found);
    if (p->status != TM_OK) return;
    take_addresses(p, s, found.peak);
    if (s->n > BY_SIZE_MOST) return;
    uint64_t other = pack_by_size(s);
    if (other < found.peak) take_addresses(p, s, other);
}

void tm_program_share(tm_program *p) {
    if (p->status != TM_OK) return;
    shelf s = {.frame = tm_malloc(sizeof *s.frame * (p->n_interval + 1)),
               .list = tm_malloc(sizeof *s.list * 2 * ((size_t)p->n_interval + 1))};
    if (s.frame && s.list) {
        s.placed = s.list + p->n_interval + 1;
        lay_out(p, &s);
    } else {
        p->status = tm_nomem(sizeof *s.frame * p->n_interval);
    }
    tm_free(s.frame);
    tm_free(s.list);
}

uint64_t tm_program_share_bytes(const tm_program *p, uint32_t ranks) {
    uint32_t by = ranks ? ranks : 1;
    return tm_round_up((p->shared_bytes + by - 1) / by, TM_FRAME_ALIGN);
}

uint64_t shared_share(const tm_program *p, const tm_plan_opts *opts) {
    return tm_max_u64(tm_program_share_bytes(p, opts->shared_by), opts->share_bytes);
}

uint64_t tm_plan_shared_hash(const tm_plan *plan) {
    uint64_t hash = plan->info.shared_bytes;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        if (plan->op[i].engine != TM_ENGINE_COMM) continue;
        for (uint32_t t = plan->first_touch[i]; t < plan->first_touch[i + 1]; t++) {
            const tm_op *op = &plan->op[i].op;
            const uint64_t what[] = {op->code, op->arg[0], plan->touch[t].address, plan->touch[t].bytes};
            if (address_is_shared(plan->touch[t].address)) hash = tm_hash64(what, sizeof what, hash);
        }
    }
    return hash;
}
