/* From logits to a token: penalties, temperature, limits, the draw.
 *
 * A limit keeps the ids whose keys are smallest, up to a number or a share of what is left. Which those are is found by
 * partitions around a pivot, as Hoare's selection does: nothing is sorted. Ids with equal keys are taken lowest first. */
#include "infer/engine_internal.h"

#include <math.h>
#include <string.h>

uint64_t sample_bytes(uint32_t vocab) {
    return (uint64_t)vocab * (2 * sizeof(double) + sizeof(uint32_t) + 1);
}

tm_status sample_open(sample_room *r, uint32_t vocab) {
    *r = (sample_room){.p = tm_malloc(vocab * sizeof *r->p),
                       .key = tm_malloc(vocab * sizeof *r->key),
                       .order = tm_malloc(vocab * sizeof *r->order),
                       .seen = tm_calloc(vocab, 1),
                       .vocab = vocab};
    return r->p && r->key && r->order && r->seen ? TM_OK : tm_nomem(sample_bytes(vocab));
}

void sample_close(sample_room *r) {
    TM_FREE_ALL(r->p, r->key, r->order, r->seen);
}

/* ---- penalties -------------------------------------------------------------------------------------------------- */

/* Once for each id that there is (Keskar et al. 2019, CTRL). */
static void penalise_again(double penalty, const int32_t *id, size_t n, double *logits, uint8_t *seen) {
    for (size_t i = 0; i < n; i++) {
        double *l = &logits[id[i]];
        if (seen[id[i]]) continue;
        seen[id[i]] = 1;
        *l = (float)(*l < 0 ? *l * penalty : *l / penalty);
    }
}

static void penalise(const tm_sampling *s, const sample_history *h, double *logits, uint8_t *seen) {
    if (s->repetition_penalty != 0 && s->repetition_penalty != 1) {
        penalise_again(s->repetition_penalty, h->prompt, h->n_prompt, logits, seen);
        penalise_again(s->repetition_penalty, h->answer, h->n_answer, logits, seen);
        for (size_t i = 0; i < h->n_prompt; i++) seen[h->prompt[i]] = 0;
        for (size_t i = 0; i < h->n_answer; i++) seen[h->answer[i]] = 0;
    }
    for (size_t i = 0; i < h->n_answer && (s->presence_penalty != 0 || s->frequency_penalty != 0); i++) {
        double first = seen[h->answer[i]] ? 0 : s->presence_penalty;
        seen[h->answer[i]] = 1;
        logits[h->answer[i]] = (float)(logits[h->answer[i]] - s->frequency_penalty - first);
    }
    for (size_t i = 0; i < h->n_answer; i++) seen[h->answer[i]] = 0;
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

static bool before(const sample_room *r, uint32_t a, uint32_t b) {
    return r->key[a] != r->key[b] ? r->key[a] < r->key[b] : a < b;
}

static void exchange(uint32_t *a, uint32_t *b) {
    uint32_t t = *a;
    *a = *b;
    *b = t;
}

/* Of order[lo, hi): those before the pivot, the pivot, the others. Where the pivot is then. */
static uint32_t part(sample_room *r, uint32_t lo, uint32_t hi) {
    uint32_t *o = r->order, middle = lo + (hi - lo) / 2, last = hi - 1, at = lo;
    if (before(r, o[middle], o[lo])) exchange(&o[middle], &o[lo]);
    if (before(r, o[last], o[lo])) exchange(&o[last], &o[lo]);
    if (before(r, o[middle], o[last])) exchange(&o[middle], &o[last]); /* the one between them is last */
    for (uint32_t i = lo; i < last; i++)
        if (before(r, o[i], o[last])) exchange(&o[i], &o[at++]);
    exchange(&o[at], &o[last]);
    return at;
}

/* How many of order[0, n), the smallest keys first, have a mass before them of less than `mass`; they are in front then.
 * `each`: every id counts 1 instead of its probability. */
static uint32_t take(sample_room *r, uint32_t n, double mass, bool each) {
    uint32_t lo = 0, hi = n;
    double taken = 0;
    while (lo < hi) {
        uint32_t pivot = part(r, lo, hi);
        double sum = taken;
        for (uint32_t i = lo; i < pivot; i++) sum += each ? 1 : r->p[r->order[i]];
        if (sum >= mass) {
            hi = pivot;
        } else {
            lo = pivot + 1;
            taken = sum + (each ? 1 : r->p[r->order[pivot]]);
            if (taken >= mass) return lo;
        }
    }
    return lo;
}

static double mass_of(const sample_room *r, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += r->p[r->order[i]];
    return sum;
}

/* The largest go first. */
static void key_by_size(sample_room *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) r->key[r->order[i]] = -r->p[r->order[i]];
}

/* Locally typical sampling (Meister et al. 2022): the nearest to the entropy go first. */
static uint32_t keep_typical(sample_room *r, uint32_t n, double share) {
    double all = mass_of(r, n), entropy = 0;
    for (uint32_t i = 0; i < n; i++) {
        double p = r->p[r->order[i]] / all;
        if (p > 0) entropy -= p * log(p);
    }
    for (uint32_t i = 0; i < n; i++) {
        double p = r->p[r->order[i]] / all;
        r->key[r->order[i]] = p > 0 ? fabs(-log(p) - entropy) : INFINITY;
    }
    return take(r, n, share * all, false);
}

/* As many as `k`, and those that are as likely as the last of them. */
static uint32_t keep_top_k(sample_room *r, uint32_t n, uint32_t k) {
    double last = -INFINITY;
    if (k >= n) return n;
    key_by_size(r, n);
    uint32_t kept = take(r, n, k, true);
    for (uint32_t i = 0; i < kept; i++) last = fmax(last, r->key[r->order[i]]);
    for (uint32_t i = kept; i < n; i++)
        if (r->key[r->order[i]] == last) exchange(&r->order[kept++], &r->order[i]);
    return kept;
}

static uint32_t keep_top_p(sample_room *r, uint32_t n, double share) {
    key_by_size(r, n);
    return take(r, n, share * mass_of(r, n), false);
}

static uint32_t keep_min_p(sample_room *r, uint32_t n, double share) {
    double most = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) most = fmax(most, r->p[r->order[i]]);
    for (uint32_t i = 0; i < n; i++)
        if (r->p[r->order[i]] >= share * most) exchange(&r->order[kept++], &r->order[i]);
    return kept;
}

static bool limits(double share) {
    return share > 0 && share < 1;
}

static void limit(const tm_sampling *s, sample_room *r) {
    uint32_t n = r->vocab;
    bool some = limits(s->typical_p) || (s->top_k > 0 && s->top_k < n) || limits(s->top_p) || s->min_p > 0;
    if (!some) return;
    for (uint32_t i = 0; i < n; i++) r->order[i] = i;
    if (limits(s->typical_p)) n = keep_typical(r, n, s->typical_p);
    if (s->top_k > 0) n = keep_top_k(r, n, s->top_k);
    if (limits(s->top_p)) n = keep_top_p(r, n, s->top_p);
    if (s->min_p > 0) n = keep_min_p(r, n, s->min_p);
    for (uint32_t i = n; i < r->vocab; i++) r->p[r->order[i]] = 0;
}

/* ---- the draw --------------------------------------------------------------------------------------------------- */

/* The logits that count, in r->p: `logits` stay the model's own. */
static void begin(const tm_sampling *s, const sample_history *h, const float *logits, sample_room *r) {
    for (uint32_t i = 0; i < r->vocab; i++) r->p[i] = (double)logits[i];
    penalise(s, h, r->p, r->seen);
}

static uint32_t largest(const sample_room *r) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < r->vocab; i++)
        if (r->p[i] > r->p[best]) best = i;
    return best;
}

/* exp((l - largest) / temperature): divided by their sum these are probabilities. */
static void soften(double temperature, sample_room *r) {
    double top = r->p[largest(r)];
    for (uint32_t i = 0; i < r->vocab; i++) r->p[i] = exp((r->p[i] - top) / temperature);
}

void sample_distribution(const tm_sampling *s, const sample_history *h, const float *logits, sample_room *r) {
    TM_ASSERT(s->temperature > 0);
    begin(s, h, logits, r);
    soften(s->temperature, r);
    limit(s, r);
    double sum = 0;
    for (uint32_t i = 0; i < r->vocab; i++) sum += r->p[i];
    for (uint32_t i = 0; i < r->vocab; i++) r->p[i] /= sum;
}

int32_t sample_token(const tm_sampling *s, const sample_history *h, const float *logits, sample_room *r) {
    uint32_t word[4], last = 0;
    if (s->temperature <= 0) {
        begin(s, h, logits, r);
        return (int32_t)largest(r);
    }
    sample_distribution(s, h, logits, r);
    tm_philox(s->seed, 0, h->n_answer, word);
    double u = ((double)word[0] * 4294967296.0 + (double)word[1]) / 18446744073709551616.0;
    for (uint32_t i = 0; i < r->vocab; i++) {
        if (r->p[i] == 0) continue;
        u -= r->p[i];
        if (u < 0) return (int32_t)i;
        last = i;
    }
    return (int32_t)last; /* what rounding left over */
}
