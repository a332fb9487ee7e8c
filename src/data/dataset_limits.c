/* The largest micro-batch of many steps. To visit them all takes half a microsecond a sample and more. So the longest
 * samples are asked where they come, one after another, until those that are left are too short to make a larger one:
 *
 *     lengths, longest first   110 109 109 108 ...
 *     where they come          a step that is not asked for; the last of an epoch, which is smaller; any other: done
 */
#include "data/dataset_internal.h"

#include "base/ordered.h"

enum {
    WALKED = 1 << 14, /* samples that are visited one after another, which takes some milliseconds */
    RANKED = 2048
};

typedef void shape_fn(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank, tm_batch_shape *out);

typedef struct search {
    const tm_dataset *ds;
    shape_fn *shape_of;
    uint64_t first, n; /* steps */
    tm_batch_limits *out;
} search;

static void widen(tm_batch_limits *limits, const tm_batch_shape *shape) {
    if (shape->rows > limits->rows) limits->rows = shape->rows;
    if (shape->seq > limits->seq) limits->seq = shape->seq;
    if (shape->tokens > limits->tokens) limits->tokens = shape->tokens;
}

static void visit_step(const search *s, uint64_t step) {
    if (step < s->first || step - s->first >= s->n) return;
    for (uint32_t k = 0; k < s->ds->n_micro_batches; k++)
        for (uint32_t r = 0; r < s->ds->n_ranks; r++) {
            tm_batch_shape shape;
            s->shape_of(s->ds, step, k, r, &shape);
            widen(s->out, &shape);
        }
}

/* Can rows of up to `length` tokens make no larger one? There is none with more rows than those of the first two steps,
 * one of which is the first of its epoch or not the last; an epoch may have fewer packs than another. */
static bool enough(const search *s, uint64_t length) {
    if (s->ds->packs && s->out->rows < s->ds->batch) return false;
    return s->out->seq >= length && s->out->tokens >= tm_round_up(s->out->rows * length, 64);
}

static void visit_first(const search *s) {
    visit_step(s, s->first);
    visit_step(s, s->first + 1);
}

/* ---- all of them --------------------------------------------------------------------------------------------------- */

/* Who is to stop has no use for the rest, and fails before anything is run with it. */
static void walk(const search *s, uint64_t longest) {
    for (uint64_t i = 2; i < s->n && !enough(s, longest) && tm_stop_signal() == 0; i++) visit_step(s, s->first + i);
}

/* ---- the longest --------------------------------------------------------------------------------------------------- */

typedef struct ranked {
    uint64_t sample;
    uint32_t length;
} ranked;
static bool is_shorter(const void *order, ranked a, ranked b) {
    (void)order;
    return a.length < b.length;
}
TM_HEAP(shortest, ranked, is_shorter)

typedef uint32_t length_fn(const tm_dataset *ds, uint64_t sample);

static uint32_t longest_row(const tm_dataset *ds, uint64_t sample) {
    uint32_t n = 0;
    for (uint32_t role = 0; role < data_roles(ds); role++) {
        uint32_t row = data_store_size(&ds->store, sample * ds->rows_each + role).n_tokens;
        n = row > n ? row : n;
    }
    return n;
}
static uint32_t mismatched_row(const tm_dataset *ds, uint64_t sample) {
    return data_store_size(&ds->store, sample * ds->rows_each + 1).n_tokens;
}
static uint32_t prompt(const tm_dataset *ds, uint64_t sample) {
    return data_store_get(&ds->store, sample * ds->rows_each)->prompt;
}
static uint32_t completion(const tm_dataset *ds, uint64_t sample) {
    const data_row *row = data_store_get(&ds->store, sample * ds->rows_each);
    return row->n_tokens - row->prompt;
}

/* The RANKED longest, or all, longest first. */
static size_t rank(const tm_dataset *ds, length_fn *length_of, ranked *to) {
    size_t n = 0;
    for (uint64_t sample = 0; sample < ds->n_samples; sample++) {
        ranked r = {sample, length_of(ds, sample)};
        if (n < RANKED) {
            shortest_push(to, &n, r, NULL);
        } else if (r.length > to[0].length) {
            to[0] = r;
            shortest_sift(to, n, 0, NULL);
        }
    }
    for (size_t left = n; left > 0;) {
        ranked r = shortest_pop(to, &left, NULL);
        to[left] = r;
    }
    return n;
}

/* The steps that a sample may be in, until rows of `length` make no larger micro-batch. */
static void visit_sample(const search *s, uint64_t sample, uint64_t length) {
    const tm_dataset *ds = s->ds;
    uint64_t steps = tm_dataset_steps_per_epoch(ds);
    for (uint64_t epoch = s->first / steps; epoch * steps < s->first + s->n && !enough(s, length); epoch++) {
        uint64_t end, place = data_places_of(ds, epoch, sample, &end);
        for (uint64_t step = place / ds->per_step; step * ds->per_step < end; step++)
            visit_step(s, epoch * steps + step);
    }
}

/* Each row is as long as a sample is by `of`, or as two are together. False: those that were ranked are not enough. */
static bool search_longest(const search *s, length_fn *const of[2]) {
    ranked list[2][RANKED];
    size_t lists = of[1] ? 2 : 1, n = 0;
    for (size_t l = 0; l < lists; l++) n = rank(s->ds, of[l], list[l]);
    for (size_t i = 0; i < n; i++) {
        uint64_t length = list[0][i].length + (lists == 2 ? (uint64_t)list[1][i].length : 0);
        if (s->ds->seq_len) length = tm_min_u64(length, s->ds->seq_len);
        if (enough(s, length)) return true;
        for (size_t l = 0; l < lists; l++) visit_sample(s, list[l][i].sample, length);
    }
    return n == s->ds->n_samples;
}

static void find(search *s, length_fn *const of[2], uint64_t longest) {
    const tm_dataset *ds = s->ds;
    *s->out = (tm_batch_limits){0};
    if (!ds->shuffle) s->n = tm_min_u64(s->n, tm_dataset_steps_per_epoch(ds)); /* every epoch is the same */
    visit_first(s);
    if (ds->packs || s->n <= WALKED / ds->per_step || !search_longest(s, of)) walk(s, longest);
}

void tm_dataset_limits(const tm_dataset *ds, uint64_t first, uint64_t n, tm_batch_limits *out) {
    length_fn *const of[2] = {longest_row};
    search s = {ds, tm_dataset_shape, first, n, out};
    find(&s, of, ds->packs ? ds->seq_len : ds->counts.longest);
}

void tm_dataset_limits_mismatched(const tm_dataset *ds, uint64_t first, uint64_t n, tm_batch_limits *out) {
    length_fn *const of[2] = {ds->is_rows ? mismatched_row : prompt, ds->is_rows ? NULL : completion};
    search s = {ds, tm_dataset_shape_mismatched, first, n, out};
    find(&s, of, ds->seq_len ? ds->seq_len : UINT32_MAX);
}
