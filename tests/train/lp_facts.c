#include "lp_facts.h"
#include "step/op.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const double MIB = 1 << 20;

/* One object in one interval. */
typedef struct stay {
    uint32_t object, item; /* item: TM_NONE where nothing is to be chosen */
    uint32_t first, last, last_write;
    bool reads, last_interval;
    double mib;
} stay;

typedef struct reader {
    lp_facts *f;
    const tm_job *job;
    const tm_program *p;
    bool spill;
    stay *stay;
    uint32_t n_stays, cap_stays;
    uint32_t *item_of_state, *item_of_temp;
    uint32_t *by_first, *by_last; /* stays in these orders */
    uint32_t *segment_of;         /* per operation */
    /* at the operation that the sweep has reached, and the same of the moment before, per item */
    double *open, *between, *last_between[2];
    double fixed;
    bool *tiles; /* per segment: its operations go by tiles */
} reader;

static void *grown(void *array, uint32_t n, uint32_t *cap, size_t bytes) {
    if (n < *cap) return array;
    *cap = *cap ? *cap * 2 : 64;
    array = realloc(array, *cap * bytes);
    assert_non_null(array);
    return array;
}

static void *zeros(size_t n, size_t bytes) {
    void *p = calloc(n + 1, bytes);
    assert_non_null(p);
    return p;
}

static void list_add(lp_list *l, uint32_t item, double amount) {
    l->term = grown(l->term, l->n, &l->cap, sizeof *l->term);
    l->term[l->n++] = (lp_term){item, amount};
}

/* Adds to the amount where the list has the item. Lists are short. */
static void list_sum(lp_list *l, uint32_t item, double amount) {
    for (uint32_t i = l->n; i-- > 0;)
        if (l->term[i].item == item) {
            l->term[i].amount += amount;
            return;
        }
    list_add(l, item, amount);
}

/* ---- items --------------------------------------------------------------------------------------------------- */

static uint32_t add_item(lp_facts *f, tm_kind kind, bool state) {
    f->item = grown(f->item, f->n_items, &f->cap_items, sizeof *f->item);
    f->item[f->n_items] = (lp_item){.kind = kind, .state = state};
    return f->n_items++;
}

static void add_tile(reader *r, uint32_t object, uint32_t *item) {
    const tm_object *o = &r->job->layout->object[object];
    if (!o->pageable) {
        r->f->always += (double)o->frame_bytes / MIB;
        return;
    }
    if (*item == TM_NONE) *item = add_item(r->f, o->kind, true);
    r->item_of_state[object] = *item;
    r->f->item[*item].mib += (double)o->frame_bytes / MIB;
}

static void find_state_items(reader *r) {
    const tm_layout *l = r->job->layout;
    r->item_of_state = zeros(l->n, sizeof(uint32_t));
    for (uint32_t i = 0; i < l->n; i++) r->item_of_state[i] = TM_NONE;
    for (uint32_t part = 0; part < tm_model_parts(r->job->model); part++) {
        const part_state *ps = &r->job->part[part];
        uint32_t first[] = {ps->hi, ps->lo, ps->exp_avg, ps->exp_avg_sq, ps->grad};
        for (size_t k = 0; k < TM_COUNT(first); k++)
            for (uint32_t tile = 0, item = TM_NONE; first[k] != TM_NO_OBJECT && tile < ps->tiles; tile++)
                add_tile(r, first[k] + tile * (k == 0 ? 1 : ps->stride), &item);
    }
}

/* ---- stays --------------------------------------------------------------------------------------------------- */

static void find_stays(reader *r) {
    const tm_program *p = r->p;
    uint32_t *at = zeros(p->n_record, sizeof *at); /* record -> stay + 1 */
    for (uint32_t op = 0; op < p->n_op; op++)
        for (uint32_t u = 0; u < p->op[op].n_uses; u++) {
            const prog_use *use = &p->use[p->op[op].first_use + u];
            const prog_interval *v = &p->interval[use->interval];
            for (uint32_t k = 0; k < use->count; k++) {
                uint32_t record = v->record + (use->object - v->first) + k;
                if (!at[record]) {
                    r->stay = grown(r->stay, r->n_stays, &r->cap_stays, sizeof *r->stay);
                    r->stay[r->n_stays++] =
                        (stay){.object = use->object + k,
                               .item = TM_NONE,
                               .first = op,
                               .last_write = TM_NONE,
                               .reads = use->access & TM_USE_READ,
                               .mib = (double)program_object(p, use->object + k)->frame_bytes / MIB};
                    at[record] = r->n_stays;
                }
                stay *s = &r->stay[at[record] - 1];
                s->last = op;
                if (use->access & TM_USE_WRITE) s->last_write = op;
            }
        }
    free(at);
}

/* A temporary with several intervals pages where that is allowed; any other lies in memory from its first use to its
 * last, which makes it one stay. */
static void find_temp_items(reader *r) {
    const tm_program *p = r->p;
    uint32_t *intervals = zeros(p->n_temp, sizeof *intervals), *latest = zeros(p->n_temp, sizeof *latest), n = 0;
    r->item_of_temp = zeros(p->n_temp, sizeof(uint32_t));
    for (uint32_t i = 0; i < r->n_stays; i++)
        if (r->stay[i].object & TM_TEMP_BIT) intervals[r->stay[i].object & ~TM_TEMP_BIT]++;
    for (uint32_t t = 0; t < p->n_temp; t++) {
        bool pages = r->spill && p->temp[t].pageable && intervals[t] > 1;
        r->item_of_temp[t] = pages ? add_item(r->f, p->temp[t].kind, false) : TM_NONE;
        if (pages) r->f->item[r->item_of_temp[t]].mib = (double)p->temp[t].frame_bytes / MIB;
        latest[t] = TM_NONE;
    }
    for (uint32_t i = 0; i < r->n_stays; i++) {
        stay s = r->stay[i];
        uint32_t t = s.object & ~TM_TEMP_BIT;
        if (!(s.object & TM_TEMP_BIT)) {
            s.item = r->item_of_state[s.object];
        } else if (r->item_of_temp[t] == TM_NONE && latest[t] != TM_NONE) {
            stay *one = &r->stay[latest[t]];
            if (s.last > one->last) one->last = s.last;
            continue;
        } else {
            s.item = r->item_of_temp[t];
            if (latest[t] != TM_NONE && s.item != TM_NONE) r->stay[latest[t]].last_interval = false;
            s.last_interval = true;
            latest[t] = n;
        }
        r->stay[n++] = s;
    }
    r->n_stays = n;
    free(intervals);
    free(latest);
}

static const stay *sorting;

static int by_first(const void *a, const void *b) {
    const stay *x = &sorting[*(const uint32_t *)a], *y = &sorting[*(const uint32_t *)b];
    return x->first < y->first ? -1 : x->first > y->first;
}
static int by_last(const void *a, const void *b) {
    const stay *x = &sorting[*(const uint32_t *)a], *y = &sorting[*(const uint32_t *)b];
    return x->last < y->last ? -1 : x->last > y->last;
}

static void sort_stays(reader *r) {
    r->by_first = zeros(r->n_stays, sizeof(uint32_t));
    r->by_last = zeros(r->n_stays, sizeof(uint32_t));
    for (uint32_t i = 0; i < r->n_stays; i++) r->by_first[i] = r->by_last[i] = i;
    sorting = r->stay;
    qsort(r->by_first, r->n_stays, sizeof(uint32_t), by_first);
    qsort(r->by_last, r->n_stays, sizeof(uint32_t), by_last);
}

/* ---- segments ------------------------------------------------------------------------------------------------ */

static bool by_tiles(const tm_op *op) {
    return op->code == OP_UPDATE || op->code == OP_FINISH;
}

static void cut_segments(reader *r, uint32_t coarse, tm_cost_fn cost, void *ctx) {
    const tm_program *p = r->p;
    lp_facts *f = r->f;
    uint32_t rest = 0, length = 0;
    for (uint32_t op = 0; op < p->n_op; op++) rest += !by_tiles(&p->op[op].op);
    uint32_t longest = rest / coarse + 1;
    r->segment_of = zeros(p->n_op, sizeof(uint32_t));
    r->tiles = zeros(p->n_op, sizeof(bool));
    for (uint32_t op = 0; op < p->n_op; op++, length++) {
        const tm_op *o = &p->op[op].op, *before = op ? &p->op[op - 1].op : o;
        bool tiles = by_tiles(o),
             cut = op == 0 || tiles != by_tiles(before) || (tiles ? o->arg[0] != before->arg[0] : length == longest);
        if (cut) {
            f->segment = grown(f->segment, f->n_segments, &f->cap_segments, sizeof *f->segment);
            f->segment[f->n_segments++] = (lp_segment){0};
            r->tiles[f->n_segments - 1] = tiles;
            length = 0;
        }
        r->segment_of[op] = f->n_segments - 1;
        f->segment[f->n_segments - 1].seconds += cost(ctx, o);
    }
}

/* What each interval asks of the disk, and where. */
static void place_transfers(reader *r) {
    for (uint32_t i = 0; i < r->n_stays; i++) {
        const stay *s = &r->stay[i];
        if (s->item == TM_NONE) continue;
        lp_item *item = &r->f->item[s->item];
        if (s->reads) {
            item->read += s->mib;
            list_sum(&r->f->segment[r->segment_of[s->first]].need, s->item, s->mib);
        }
        if (s->last_write == TM_NONE || (!item->state && s->last_interval)) continue;
        item->write += s->mib;
        list_sum(&r->f->segment[r->segment_of[s->last_write]].changed, s->item, s->mib);
        list_sum(&r->f->segment[r->segment_of[s->last]].closed, s->item, s->mib);
    }
}

/* ---- moments: one sweep over the operations ------------------------------------------------------------------ */

static void come(reader *r, const stay *s, double sign) {
    if (s->item == TM_NONE || !r->f->item[s->item].state)
        r->fixed += sign * s->mib;
    else
        r->open[s->item] += sign * s->mib;
}

static void enter(reader *r, uint32_t op, uint32_t *at) {
    for (; *at < r->n_stays && r->stay[r->by_first[*at]].first == op; ++*at) {
        const stay *s = &r->stay[r->by_first[*at]];
        come(r, s, 1);
        if (s->item != TM_NONE && !r->f->item[s->item].state) r->between[s->item] = 0;
    }
}

static void leave(reader *r, uint32_t op, uint32_t *at) {
    for (; *at < r->n_stays && r->stay[r->by_last[*at]].last == op; ++*at) {
        const stay *s = &r->stay[r->by_last[*at]];
        come(r, s, -1);
        if (s->item != TM_NONE && !r->f->item[s->item].state && !s->last_interval) r->between[s->item] = s->mib;
    }
}

/* A moment as the mean of `n` that were summed up. `sort`: 0 rows, 1 ends of segments. */
static void make_moment(reader *r, lp_moment *m, int sort, double fixed, const double *open, const double *between,
                        double n) {
    *m = (lp_moment){.fixed = fixed / n};
    for (uint32_t i = 0; i < r->f->n_items; i++) {
        if (open[i] > 1e-9) list_add(&m->open, i, open[i] / n);
        double change = between[i] / n - r->last_between[sort][i];
        if (change > 1e-9 || change < -1e-9) list_add(&m->change, i, change);
        r->last_between[sort][i] = between[i] / n;
    }
}

typedef struct sum {
    uint16_t code;
    double fixed, n, *open, *between;
} sum;

enum { MAX_SUMS = 4 };

static double total(const double *a, uint32_t n) {
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += a[i];
    return s;
}

static sum *sum_for(sum *sums, const tm_op *op, bool tiles) {
    uint32_t i = 0;
    while (tiles && i < MAX_SUMS && sums[i].n > 0 && sums[i].code != op->code) i++;
    assert_true(i < MAX_SUMS);
    sums[i].code = op->code;
    return &sums[i];
}

static void take(const reader *r, sum *s, bool add) {
    uint32_t n = r->f->n_items;
    if (!add) {
        memset(s->open, 0, n * sizeof(double));
        memset(s->between, 0, n * sizeof(double));
        s->fixed = s->n = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->open[i] += r->open[i];
        s->between[i] += r->between[i];
    }
    s->fixed += r->fixed;
    s->n++;
}

static void end_segment(reader *r, uint32_t segment, sum *sums) {
    lp_facts *f = r->f;
    for (uint32_t i = 0; i < MAX_SUMS; i++) {
        if (sums[i].n == 0) continue;
        f->row = grown(f->row, f->n_rows, &f->cap_rows, sizeof *f->row);
        f->row[f->n_rows].segment = segment;
        make_moment(r, &f->row[f->n_rows++].moment, 0, sums[i].fixed, sums[i].open, sums[i].between, sums[i].n);
        sums[i].n = sums[i].fixed = 0;
        memset(sums[i].open, 0, f->n_items * sizeof(double));
        memset(sums[i].between, 0, f->n_items * sizeof(double));
    }
    make_moment(r, &f->segment[segment].at_end, 1, r->fixed, r->open, r->between, 1);
}

static void sweep(reader *r) {
    uint32_t come_at = 0, leave_at = 0, n = r->f->n_items, n_op = r->p->n_op;
    sum sums[MAX_SUMS] = {0};
    for (uint32_t i = 0; i < MAX_SUMS; i++)
        sums[i].open = zeros(n, sizeof(double)), sums[i].between = zeros(n, sizeof(double));
    r->open = zeros(n, sizeof(double));
    r->between = zeros(n, sizeof(double));
    for (int i = 0; i < 2; i++) r->last_between[i] = zeros(n, sizeof(double));
    for (uint32_t op = 0; op < n_op; op++) {
        enter(r, op, &come_at);
        bool tiles = r->tiles[r->segment_of[op]];
        sum *s = sum_for(sums, &r->p->op[op].op, tiles);
        /* elsewhere the operation that needs most speaks for its segment */
        if (tiles || s->n == 0 || r->fixed + total(r->open, n) > s->fixed + total(s->open, n)) take(r, s, tiles);
        leave(r, op, &leave_at);
        if (op + 1 == n_op || r->segment_of[op + 1] != r->segment_of[op]) end_segment(r, r->segment_of[op], sums);
    }
    for (uint32_t i = 0; i < MAX_SUMS; i++) free(sums[i].open), free(sums[i].between);
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

void lp_facts_make(lp_facts *f, const tm_job *job, const tm_program *p, bool spill, uint32_t coarse, tm_cost_fn cost,
                   void *ctx) {
    reader r = {.f = f, .job = job, .p = p, .spill = spill};
    *f = (lp_facts){0};
    find_state_items(&r);
    find_stays(&r);
    find_temp_items(&r);
    sort_stays(&r);
    cut_segments(&r, coarse, cost, ctx);
    place_transfers(&r);
    sweep(&r);
    void *all[] = {r.stay, r.item_of_state, r.item_of_temp,    r.by_first,        r.by_last, r.segment_of,
                   r.open, r.between,       r.last_between[0], r.last_between[1], r.tiles};
    for (size_t i = 0; i < TM_COUNT(all); i++) free(all[i]);
}

static void moment_free(lp_moment *m) {
    free(m->open.term);
    free(m->change.term);
}

void lp_facts_free(lp_facts *f) {
    for (uint32_t i = 0; i < f->n_segments; i++) {
        free(f->segment[i].need.term);
        free(f->segment[i].changed.term);
        free(f->segment[i].closed.term);
        moment_free(&f->segment[i].at_end);
    }
    for (uint32_t i = 0; i < f->n_rows; i++) moment_free(&f->row[i].moment);
    free(f->item);
    free(f->segment);
    free(f->row);
    *f = (lp_facts){0};
}
