/* Rows of several samples, and micro-batches of samples of like length: a window of the epoch's order at a time.
 *
 *     order of the epoch   | window 0: 4,096 places | window 1 | ...
 *     packing              longest first, each into the row that it fills best; then the rows are drawn by lot
 *     group_by_length      longest first, cut into groups; then the groups are drawn by lot
 *
 * A window is a function of (seed, epoch, its number) and of the index. Which samples make row i of an epoch is known
 * from the number of rows in the windows before, and that window: the numbers of some epochs and two windows are kept.
 * (Best fit decreasing: Johnson et al. 1974, "Worst-case performance bounds for simple one-dimensional packing
 * algorithms".) */
#include "data/dataset_internal.h"

#include "base/ordered.h"

#include <math.h>
#include <string.h>

enum { WINDOW = 4096, KEPT = 2 /* a step may lie across the border of two */, COUNTED = 8, BYTE_VALUES = 256 };
#define NEVER UINT64_MAX
#define MOST_STEPS (UINT64_C(1) << 50) /* no run has as many */

typedef struct window {
    uint64_t epoch, number; /* NEVER: nothing is there */
    uint32_t n_rows;
    uint64_t sample[WINDOW]; /* row after row */
    uint32_t end[WINDOW];    /* of each row in it */
} window;

struct data_packer {
    const tm_dataset *ds;
    uint32_t room;               /* tokens of a row; 0: rows have one sample, by length */
    uint64_t lot;                /* key of what is drawn */
    uint64_t epoch[COUNTED];     /* those that were counted, each at its number's rest; NEVER */
    uint64_t *before;            /* [COUNTED][windows + 1] rows before each window, and of all */
    uint64_t walked, first_step; /* the epoch that the latest step was in, and its first step */
    uint64_t bytes;
    window kept[KEPT];
    uint32_t latest; /* of kept */
    /* of the window that is being made, by place in it */
    uint32_t n, length[WINDOW], row_of[WINDOW];
    uint64_t drawn[WINDOW], key[WINDOW], open[WINDOW];
};

static bool before_key(const void *order, uint64_t a, uint64_t b) {
    (void)order;
    return a < b;
}
TM_HEAP(keys, uint64_t, before_key)

static uint64_t windows_of(const data_packer *p) {
    return (p->ds->n_samples - 1) / WINDOW + 1;
}

tm_status data_packer_open(tm_dataset *ds, uint32_t room) {
    data_packer *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    ds->packer = p;
    *p = (data_packer){.ds = ds, .room = room, .lot = tm_hash64("data.packs", 10, ds->seed)};
    memset(p->epoch, 0xff, sizeof p->epoch);
    data_packer_restart(p);
    p->bytes = sizeof *p;
    if (!room) return TM_OK;
    uint64_t bytes = COUNTED * (windows_of(p) + 1) * sizeof *p->before;
    p->before = tm_malloc(bytes);
    if (!p->before) return tm_nomem(bytes);
    p->bytes += bytes;
    return TM_OK;
}

void data_packer_close(data_packer *p) {
    if (p) tm_free(p->before);
    tm_free(p);
}

uint64_t data_packer_bytes(const data_packer *p) {
    return p ? p->bytes : 0;
}

/* ---- a window ---------------------------------------------------------------------------------------------------- */

/* key[0, n) by a byte of the lengths of its places, the largest first; of equal ones as they are. */
static void sort_by_byte(data_packer *p, unsigned shift) {
    uint32_t at[BYTE_VALUES] = {0}, before = 0;
    for (uint32_t i = 0; i < p->n; i++) at[p->length[i] >> shift & 0xff]++;
    for (unsigned b = BYTE_VALUES; b-- > 0;) {
        uint32_t n = at[b];
        at[b] = before;
        before += n;
    }
    for (uint32_t i = 0; i < p->n; i++) p->open[at[p->length[p->key[i]] >> shift & 0xff]++] = p->key[i];
    memcpy(p->key, p->open, p->n * sizeof *p->key);
}

/* Samples [first, first + n) of the epoch's order, and key[i]: their places by length, longest first. */
static void draw(data_packer *p, uint64_t epoch, uint64_t first, uint32_t n) {
    uint32_t longest = 0;
    p->n = n;
    for (uint32_t i = 0; i < n; i++) {
        p->drawn[i] = data_order_drawn(p->ds, epoch, first + i);
        p->length[i] = data_sample_tokens(p->ds, p->drawn[i]);
        longest = p->length[i] > longest ? p->length[i] : longest;
        p->key[i] = i;
    }
    for (unsigned shift = 0; shift < 32 && longest >> shift; shift += 8) sort_by_byte(p, shift);
}

typedef struct room_ask {
    const uint64_t *open; /* by room, then by row: room << 32 | row */
    uint32_t length;
} room_ask;
static bool too_little(const void *ctx, size_t i) {
    const room_ask *ask = ctx;
    return ask->open[i] >> 32 < ask->length;
}

/* Row `open[at]` has `left` room now, which is less: it moves down to its place. */
static void settle(uint64_t *open, size_t at, uint32_t left) {
    uint64_t row = (uint64_t)left << 32 | (open[at] & UINT32_MAX);
    for (; at > 0 && open[at - 1] > row; at--) open[at] = open[at - 1];
    open[at] = row;
}

/* A row that is opened has more room than any other: what it begins with is the shortest so far. */
static uint32_t fit_rows(data_packer *p) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t place = (uint32_t)p->key[i], length = p->length[place];
        size_t at = tm_lower_bound(rows, too_little, &(room_ask){p->open, length});
        if (at == rows) p->open[at] = (uint64_t)p->room << 32 | rows, rows++;
        p->row_of[place] = (uint32_t)p->open[at];
        settle(p->open, at, (uint32_t)(p->open[at] >> 32) - length);
    }
    return rows;
}

/* key[i] becomes the row that is the i-th: by lot, or by its first sample in the order where that is not shuffled. The
 * first `drawn` rows are; the others stay behind. */
static void draw_rows(data_packer *p, uint64_t epoch, uint64_t number, uint32_t rows, uint32_t drawn) {
    memset(p->key, 0xff, rows * sizeof *p->key);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t row = p->row_of[i], lot[4] = {i};
        if (p->key[row] != NEVER) continue;
        if (p->ds->shuffle) tm_philox(p->lot, epoch, number * WINDOW + row, lot);
        if (row >= drawn) lot[0] = UINT32_MAX;
        p->key[row] = (uint64_t)lot[0] << 32 | row;
    }
    size_t left = rows;
    memcpy(p->open, p->key, rows * sizeof *p->key);
    keys_make(p->open, left, NULL);
    for (uint32_t i = 0; i < rows; i++) p->key[i] = keys_pop(p->open, &left, NULL) & UINT32_MAX;
}

/* The samples, row after row, those of a row in the epoch's order. `open` counts, then is where a row goes on. */
static void lay_out(data_packer *p, uint32_t rows, window *to) {
    memset(p->open, 0, rows * sizeof *p->open);
    for (uint32_t i = 0; i < p->n; i++) p->open[p->row_of[i]]++;
    uint32_t end = 0;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t row = (uint32_t)p->key[i], begin = end;
        end += (uint32_t)p->open[row];
        to->end[i] = end;
        p->open[row] = begin;
    }
    for (uint32_t i = 0; i < p->n; i++) to->sample[p->open[p->row_of[i]]++] = p->drawn[i];
    to->n_rows = rows;
}

/* ---- packs ------------------------------------------------------------------------------------------------------- */

static uint32_t window_size(const data_packer *p, uint64_t number, uint32_t size) {
    return (uint32_t)tm_min_u64(size, p->ds->n_samples - number * size);
}

/* Rows before each window of the epoch, and of all. */
static const uint64_t *count_epoch(data_packer *p, uint64_t epoch) {
    uint64_t n = windows_of(p), sum = 0, *before = p->before + epoch % COUNTED * (n + 1);
    if (p->epoch[epoch % COUNTED] == epoch) return before;
    for (uint64_t w = 0; w < n; w++) {
        before[w] = sum;
        draw(p, epoch, w * WINDOW, window_size(p, w, WINDOW));
        sum += fit_rows(p);
    }
    before[n] = sum;
    p->epoch[epoch % COUNTED] = epoch;
    return before;
}

static const window *find(data_packer *p, uint64_t epoch, uint64_t number) {
    for (uint32_t i = 0; i < KEPT; i++)
        if (p->kept[i].epoch == epoch && p->kept[i].number == number) return &p->kept[p->latest = i];
    return NULL;
}

static window *begin_window(data_packer *p, uint64_t epoch, uint64_t number, uint32_t size) {
    window *to = &p->kept[p->latest = (p->latest + 1) % KEPT];
    to->epoch = epoch;
    to->number = number;
    draw(p, epoch, number * size, window_size(p, number, size));
    return to;
}

static const window *packed_window(data_packer *p, uint64_t epoch, uint64_t number) {
    const window *there = find(p, epoch, number);
    if (there) return there;
    window *to = begin_window(p, epoch, number, WINDOW);
    uint32_t rows = fit_rows(p);
    draw_rows(p, epoch, number, rows, rows);
    lay_out(p, rows, to);
    return to;
}

typedef struct row_ask {
    const uint64_t *before;
    uint64_t row;
} row_ask;
static bool ends_before(const void *ctx, size_t i) {
    const row_ask *ask = ctx;
    return ask->before[i + 1] <= ask->row;
}

uint64_t data_packs(data_packer *p, uint64_t epoch) {
    return count_epoch(p, epoch)[windows_of(p)];
}

const uint64_t *data_pack_samples(data_packer *p, uint64_t epoch, uint64_t row, uint32_t *n) {
    const uint64_t *before = count_epoch(p, epoch);
    TM_ASSERT(row < before[windows_of(p)]);
    size_t number = tm_lower_bound((size_t)windows_of(p), ends_before, &(row_ask){before, row});
    const window *w = packed_window(p, epoch, number);
    uint32_t i = (uint32_t)(row - before[number]), begin = i ? w->end[i - 1] : 0;
    *n = w->end[i] - begin;
    return w->sample + begin;
}

/* ---- epochs, which have as many steps as they need ---------------------------------------------------------------- */

static uint64_t steps_of(data_packer *p, uint64_t epoch) {
    return (data_packs(p, epoch) - 1) / p->ds->per_step + 1;
}

void data_packer_restart(data_packer *p) {
    p->walked = p->first_step = 0;
    for (uint32_t i = 0; i < KEPT; i++) p->kept[i].epoch = NEVER;
}

data_epoch data_packed_epoch(data_packer *p, uint64_t step) {
    if (step < p->first_step) p->walked = p->first_step = 0;
    uint64_t steps = steps_of(p, p->walked);
    while (step - p->first_step >= steps) {
        p->first_step += steps;
        steps = steps_of(p, ++p->walked);
    }
    return (data_epoch){p->walked, p->first_step, data_packs(p, p->walked)};
}

uint64_t data_packed_steps(data_packer *p, double epochs) {
    uint64_t sum = 0, epoch = 0;
    for (; (double)(epoch + 1) <= epochs && sum < MOST_STEPS && tm_stop_signal() == 0; epoch++)
        sum += steps_of(p, epoch);
    double part = epochs - (double)epoch;
    return part > 0 ? sum + (uint64_t)ceil(part * (double)steps_of(p, epoch)) : sum;
}

/* ---- by length --------------------------------------------------------------------------------------------------- */

/* Samples of a group: those of a micro-batch on all ranks, which compute side by side. */
static uint32_t group_size(const data_packer *p) {
    return (uint32_t)tm_min_u64((uint64_t)p->ds->batch * p->ds->n_ranks, WINDOW);
}

static const window *grouped_window(data_packer *p, uint64_t epoch, uint64_t number, uint32_t size) {
    const window *there = find(p, epoch, number);
    if (there) return there;
    window *to = begin_window(p, epoch, number, size);
    uint32_t group = group_size(p);
    for (uint32_t i = 0; i < p->n; i++) p->row_of[p->key[i]] = i / group;
    uint32_t rows = (p->n - 1) / group + 1;
    draw_rows(p, epoch, number, rows, p->n / group);
    lay_out(p, rows, to);
    return to;
}

/* Whole groups. */
static uint32_t places_of_window(const data_packer *p) {
    return WINDOW / group_size(p) * group_size(p);
}

uint64_t data_by_length(data_packer *p, uint64_t epoch, uint64_t place) {
    uint32_t size = places_of_window(p);
    return grouped_window(p, epoch, place / size, size)->sample[place % size];
}

uint64_t data_window_of(const data_packer *p, uint64_t place, uint64_t *end) {
    uint64_t size = places_of_window(p), first = place / size * size;
    *end = tm_min_u64(first + size, p->ds->n_samples);
    return first;
}
