/* What is worth its memory: the greedy choice behind residency.c.
 *
 * A candidate is a bundle of state or a paged temporary. Keeping it saves the transfers of its intervals and holds
 * memory between them. The step is cut into stretches of about equal length; in each the disk's time hides behind the
 * CPU's as far as that goes (DESIGN section 1: least predicted time, not least bytes), so a transfer is worth what it
 * takes off the disk's time beyond the CPU's, and half of its own where it takes nothing off. Candidates are taken by
 * worth over memory, best first; an exact account of every position's load (a segment tree) says what still fits.
 * Worths only fall as others are taken, so a stale one is looked at again when it comes up (lazy greedy).
 *
 * Memory is priced by position. Prices settle first, in rounds that look at what is worth most and not at what fits:
 * where memory is slack they fall, where more is asked for than there is they rise, so that what lives only where it is
 * cheap (activations early in the step, gradients late in it) comes before state that occupies the whole period. */
#include "offload/plan/density_internal.h"
#include "base/ordered.h"

#include <math.h>
#include <string.h>

/* What a saved transfer is worth where the CPU hides it: it slows the CPU that hides it (memory, checksums), and it is
 * wear. At a half, bytes stay within a few percent of the least that can be moved, and seconds within a few of theirs.
 */
static const double HIDDEN = 0.5;
enum { PRICE_ROUNDS = 10, PRICE_RATE = 8, SLACK_RATE = 12 };

static double disk_seconds(const density *d, double read, double write) {
    double more = read > write ? read : write, less = read > write ? write : read;
    return more + (1 - d->machine.disk.duplex) * less;
}

/* Takes the transfers of `c` off (sign -1) or on (+1); returns the change of the step's worth in seconds. */
static double shift_time(density *d, const candidate *c, double sign, bool for_good) {
    double change = 0;
    for (uint32_t v = 0; v < c->n_interval; v++) {
        const cand_interval *cv = &d->interval[c->first_interval + v];
        uint32_t a = d->stretch[cv->from], b = d->stretch[cv->to];
        for (int side = 0; side < 2; side++) {
            uint32_t s = side ? b : a;
            double dr = side ? 0 : sign * (double)cv->read / d->machine.disk.read_bps;
            double dw = side ? sign * (double)cv->write / d->machine.disk.write_bps : 0;
            if (dr == 0 && dw == 0) continue;
            double was = disk_seconds(d, d->read[s], d->write[s]);
            double is = disk_seconds(d, d->read[s] + dr, d->write[s] + dw);
            double beyond = fmax(was, d->cpu[s]) - fmax(is, d->cpu[s]);
            change += beyond + HIDDEN * (-dr - dw);
            if (!for_good) continue;
            d->read[s] += dr;
            d->write[s] += dw;
        }
    }
    return change;
}

/* Bytes times price over the program, intervals left out: there they lie in memory anyway. */
static double priced_bytes(const density *d, const candidate *c) {
    double all = d->price[c->to + 1] - d->price[c->from];
    double bytes = (double)c->bytes * all;
    for (uint32_t v = 0; v < c->n_interval; v++) {
        const cand_interval *cv = &d->interval[c->first_interval + v];
        bytes -= (double)cv->bytes * (d->price[cv->to + 1] - d->price[cv->from]);
    }
    return bytes > 1 ? bytes : 1;
}

static double worth(density *d, const candidate *c) {
    return shift_time(d, c, -1, false) / priced_bytes(d, c);
}

static bool candidate_fits(const density *d, const candidate *c, int64_t budget) {
    uint32_t from = c->from;
    for (uint32_t v = 0; v <= c->n_interval; v++) {
        const cand_interval *cv = v < c->n_interval ? &d->interval[c->first_interval + v] : NULL;
        uint32_t to = cv ? cv->from : c->to + 1;
        if (to > from && load_most(&d->load, from, to - 1) + (int64_t)c->bytes > budget) return false;
        if (cv && cv->bytes < c->bytes &&
            load_most(&d->load, cv->from, cv->to) + (int64_t)(c->bytes - cv->bytes) > budget)
            return false;
        if (cv && cv->to + 1 > from) from = cv->to + 1;
    }
    return true;
}

static void keep_candidate(density *d, const candidate *c) {
    TM_ASSERT(!c->kept);
    load_add(&d->load, c->from, c->to, (int64_t)c->bytes);
    for (uint32_t v = 0; v < c->n_interval; v++) {
        const cand_interval *cv = &d->interval[c->first_interval + v];
        load_add(&d->load, cv->from, cv->to, -(int64_t)cv->bytes);
    }
    (void)shift_time(d, c, -1, true);
}

/* Better first; equals by spread, then by id. Worths that differ by rounding count as equal. */
static inline bool comes_first(const void *order, uint32_t a, uint32_t b) {
    const density *d = order;
    const candidate *x = &d->c[a], *y = &d->c[b];
    if (fabs(x->score - y->score) > 1e-6 * fabs(x->score + y->score)) return x->score > y->score;
    if (x->kind != y->kind && (x->kind == TM_KIND_WEIGHT_HI || y->kind == TM_KIND_WEIGHT_HI))
        return x->kind == TM_KIND_WEIGHT_HI;
    if (x->spread != y->spread) return x->spread < y->spread;
    return x->first < y->first;
}

TM_HEAP(best, uint32_t, comes_first)

static void start_load(density *d) {
    load_clear(&d->load);
    for (uint32_t i = 0; i < d->n_base; i++)
        load_first(&d->load, d->base[i].from, d->base[i].to, (int64_t)d->base[i].bytes);
    load_begin(&d->load);
}

static void start_time(density *d) {
    memset(d->read, 0, sizeof d->read);
    memset(d->write, 0, sizeof d->write);
    for (uint32_t i = 0; i < d->n; i++) (void)shift_time(d, &d->c[i], 1, true);
}

static bool within_limit(density *d, const candidate *c) {
    return !d->limit[c->kind] || d->kept_bytes[c->kind] + c->bytes <= d->limit[c->kind];
}

/* `supply`: priced bytes to be given away, wherever they lie (settle_prices); 0: what fits at every position. */
static void one_round(density *d, int64_t budget, double supply) {
    bool anywhere = supply > 0;
    start_load(d);
    start_time(d);
    memset(d->kept_bytes, 0, sizeof d->kept_bytes);
    size_t n = d->n;
    for (uint32_t i = 0; i < n; i++) {
        d->c[i].kept = false;
        d->c[i].score = worth(d, &d->c[i]);
        d->heap[i] = i;
    }
    best_make(d->heap, n, d);
    while (n > 0) {
        uint32_t top = d->heap[0];
        candidate *c = &d->c[top];
        double now = worth(d, c);
        if (now < c->score * (1 - 1e-6)) { /* stale */
            c->score = now;
            best_sift(d->heap, n, 0, d);
            continue;
        }
        (void)best_pop(d->heap, &n, d);
        if (!within_limit(d, c) || (!anywhere && !candidate_fits(d, c, budget))) continue;
        if (anywhere && (supply -= priced_bytes(d, c)) < 0) break;
        keep_candidate(d, c);
        c->kept = true;
        d->kept_bytes[c->kind] += c->bytes;
    }
}

static double objective(const density *d) {
    double t = 0;
    for (uint32_t s = 0; s < STRETCHES; s++)
        t += fmax(disk_seconds(d, d->read[s], d->write[s]), d->cpu[s]) + HIDDEN * (d->read[s] + d->write[s]);
    return t;
}

/* Prices are prefix sums, so that an interval costs two look-ups. */
static void sum_prices(density *d) {
    double sum = 0;
    uint32_t n = d->p->n_op;
    for (uint32_t i = 0; i < n; i++) sum += d->weight[i];
    d->price[0] = 0;
    for (uint32_t i = 0; i < n; i++) d->price[i + 1] = d->price[i] + (sum > 0 ? d->weight[i] / sum : 0);
}

/* The last position of the run of them, one of about 512, that begins at `from`: they are looked at together. */
static uint32_t run_end(const density *d, uint32_t from) {
    uint32_t n = d->p->n_op, to = from + n / 512;
    return to < n ? to : n - 1;
}

/* Bytes that are free all the way from `from` to `to`; less than nothing where too much was taken. */
static double free_bytes(const density *d, int64_t budget, uint32_t from, uint32_t to) {
    return (double)(budget - load_most(&d->load, from, to));
}

/* Positions that stay slack become cheap, those that are asked too much of dear. */
static void reprice(density *d, int64_t budget, double rate) {
    for (uint32_t from = 0, to; from < d->p->n_op; from = to + 1) {
        to = run_end(d, from);
        double slack = budget > 0 ? free_bytes(d, budget, from, to) / (double)budget : 0;
        double factor = exp(-rate * (slack > -1 ? slack : -1));
        for (uint32_t i = from; i <= to; i++) d->weight[i] *= factor;
    }
    sum_prices(d);
}

static void even_prices(density *d) {
    for (uint32_t i = 0; i < d->p->n_op; i++) d->weight[i] = 1;
    sum_prices(d);
}

/* Bytes that are free, by price. */
static double supply_of(density *d, int64_t budget) {
    double all = 0;
    start_load(d);
    for (uint32_t from = 0, to; from < d->p->n_op; from = to + 1) {
        to = run_end(d, from);
        all += free_bytes(d, budget, from, to) * (d->price[to + 1] - d->price[from]);
    }
    return all;
}

/* The dual of the linear program, by multiplicative weights: what is worth most for its price is taken until as many
 * priced bytes are given away as there are, wherever they lie; then prices follow demand. */
static void settle_prices(density *d, int64_t budget) {
    even_prices(d);
    for (int round = 1; round <= PRICE_ROUNDS; round++) {
        double supply = supply_of(d, budget);
        if (supply <= 0) return;
        one_round(d, budget, supply);
        reprice(d, budget, PRICE_RATE / sqrt(round));
    }
}

/* The best of three: at settled prices, at even ones, and where those left slack. The prices of the first choice hold
 * for later ones, which differ by a little load only. */
void density_choose(density *d, uint64_t budget, uint8_t *resident, uint8_t *temp_paged) {
    double best = INFINITY;
    int rounds = d->priced ? 1 : DENSITY_ROUNDS;
    if (!d->priced) settle_prices(d, (int64_t)budget);
    for (int round = 0; round < rounds; round++) {
        if (round == 1) even_prices(d);
        if (round == 2) reprice(d, (int64_t)budget, SLACK_RATE);
        one_round(d, (int64_t)budget, 0);
        double t = objective(d);
        if (t >= best * (1 - 1e-9)) continue;
        best = t;
        for (uint32_t i = 0; i < d->n; i++) d->c[i].best = d->c[i].kept;
        if (!d->priced) memcpy(d->best_price, d->price, sizeof *d->price * (d->p->n_op + 1));
    }
    if (!d->priced) memcpy(d->price, d->best_price, sizeof *d->price * (d->p->n_op + 1));
    d->priced = true;
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t k = 0; k < d->c[i].count; k++) {
            uint32_t id = d->c[i].first + k;
            if (is_temp(id))
                temp_paged[id & ~TM_TEMP_BIT] = !d->c[i].best;
            else
                resident[id] = d->c[i].best;
        }
}

uint64_t density_moved(const density *d) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t v = 0; v < d->c[i].n_interval && !d->c[i].best; v++) {
            const cand_interval *cv = &d->interval[d->c[i].first_interval + v];
            bytes += cv->read + cv->write;
        }
    return bytes;
}
