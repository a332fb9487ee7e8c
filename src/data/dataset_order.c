/* Which sample comes when, and what that makes of a step. Nothing here reads ids: the index suffices. */
#include "data/dataset_internal.h"

#include <math.h>

enum { ROUNDS = 6 };

void data_order_init(tm_dataset *ds) {
    ds->n_samples = ds->store.n_rows / ds->rows_each;
    ds->order_key = tm_hash64("data.order", 10, ds->seed);
    ds->half_bits = data_half_bits(ds->n_samples);
}

unsigned data_half_bits(uint64_t n) {
    unsigned half_bits = 1;
    while (half_bits < 32 && UINT64_C(1) << (2 * half_bits) < n) half_bits++;
    return half_bits;
}

/* A Feistel network permutes [0, 2^(2 half_bits)); walking its cycle until the value is below n permutes [0, n) (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). Fewer than 4 walks on average. */
static uint64_t lot(uint64_t key, uint64_t epoch, uint64_t round, uint64_t half) {
    uint32_t r[4];
    tm_philox(key, epoch, round << 32 | half, r);
    return r[0];
}
static uint64_t feistel(uint64_t key, unsigned half_bits, uint64_t epoch, uint64_t x) {
    uint64_t mask = (UINT64_C(1) << half_bits) - 1, left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (lot(key, epoch, round, right) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}
static uint64_t feistel_back(uint64_t key, unsigned half_bits, uint64_t epoch, uint64_t x) {
    uint64_t mask = (UINT64_C(1) << half_bits) - 1, left = x >> half_bits, right = x & mask;
    for (uint64_t round = ROUNDS; round-- > 0;) {
        uint64_t before = right ^ (lot(key, epoch, round, left) & mask);
        right = left;
        left = before;
    }
    return left << half_bits | right;
}

uint64_t data_permuted(uint64_t key, unsigned half_bits, uint64_t n, uint64_t epoch, uint64_t x) {
    do x = feistel(key, half_bits, epoch, x);
    while (x >= n);
    return x;
}

uint64_t data_order_drawn(const tm_dataset *ds, uint64_t epoch, uint64_t index) {
    TM_ASSERT(index < ds->n_samples);
    if (!ds->shuffle) return index;
    return data_permuted(ds->order_key, ds->half_bits, ds->n_samples, epoch, index);
}

static uint64_t place_drawn(const tm_dataset *ds, uint64_t epoch, uint64_t sample) {
    if (!ds->shuffle) return sample;
    do sample = feistel_back(ds->order_key, ds->half_bits, epoch, sample);
    while (sample >= ds->n_samples);
    return sample;
}

uint64_t data_places_of(const tm_dataset *ds, uint64_t epoch, uint64_t sample, uint64_t *end) {
    uint64_t place = place_drawn(ds, epoch, sample);
    *end = place + 1;
    return ds->packer ? data_window_of(ds->packer, place, end) : place;
}

uint64_t tm_dataset_order(const tm_dataset *ds, uint64_t epoch, uint64_t index) {
    bool by_length = ds->packer && !ds->packs;
    return by_length ? data_by_length(ds->packer, epoch, index) : data_order_drawn(ds, epoch, index);
}

const uint64_t *data_row_samples(const tm_dataset *ds, uint64_t epoch, uint64_t row, uint64_t *one, uint32_t *n) {
    if (ds->packs) return data_pack_samples(ds->packer, epoch, row, n);
    *one = tm_dataset_order(ds, epoch, row);
    *n = 1;
    return one;
}

uint64_t data_row_at(const tm_dataset *ds, uint64_t epoch, uint64_t place, uint32_t role) {
    return tm_dataset_order(ds, epoch, place) * ds->rows_each + role;
}

tm_status tm_dataset_set_batches(tm_dataset *ds, uint32_t samples, uint32_t micro_batches, uint32_t ranks) {
    uint64_t per_step, tokens;
    uint32_t longest = ds->packs ? ds->seq_len : ds->counts.longest;
    if (!samples || !micro_batches || !ranks)
        return tm_fail(TM_EINPUT, "batch sizes must be at least 1, not %u rows x %u micro-batches x %u ranks", samples,
                       micro_batches, ranks);
    if (!tm_mul_u64(samples, (uint64_t)micro_batches * ranks, &per_step) || per_step > UINT32_MAX)
        return tm_fail(TM_EINPUT, "a step of %u rows x %u micro-batches x %u ranks is too large", samples,
                       micro_batches, ranks);
    /* a mismatched row is of two: its prompt's and its completion's */
    tokens = tm_min_u64(samples, ds->n_samples) * longest * (ds->kind == TM_ROWS_PLAIN ? 1 : 2);
    if (tokens > INT32_MAX - 64)
        return tm_fail(TM_EINPUT,
                       "%u rows of up to %u tokens do not fit a micro-batch; lower the batch size or seq_len", samples,
                       longest);
    ds->batch = samples;
    ds->n_micro_batches = micro_batches;
    ds->n_ranks = ranks;
    ds->per_step = per_step;
    if (ds->packer) data_packer_restart(ds->packer);
    return TM_OK;
}

uint64_t tm_dataset_steps_per_epoch(const tm_dataset *ds) {
    TM_ASSERT(ds->per_step > 0);
    return ((ds->packs ? data_packs(ds->packer, 0) : ds->n_samples) - 1) / ds->per_step + 1;
}

uint64_t tm_dataset_steps(const tm_dataset *ds, double epochs) {
    if (ds->packs) return data_packed_steps(ds->packer, epochs);
    return (uint64_t)ceil(epochs * (double)tm_dataset_steps_per_epoch(ds));
}

static data_epoch epoch_of(const tm_dataset *ds, uint64_t step) {
    if (ds->packs) return data_packed_epoch(ds->packer, step);
    uint64_t steps = tm_dataset_steps_per_epoch(ds), epoch = step / steps;
    return (data_epoch){epoch, epoch * steps, ds->n_samples};
}

bool tm_dataset_ends_epoch(const tm_dataset *ds, uint64_t steps) {
    if (!steps) return false;
    data_epoch epoch = epoch_of(ds, steps - 1);
    return epoch.first_step + (epoch.rows - 1) / ds->per_step + 1 == steps;
}

data_rows_of data_batch_rows(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank) {
    data_epoch epoch = epoch_of(ds, step);
    data_rows_of at = {.epoch = epoch.number};
    TM_ASSERT(micro_batch < ds->n_micro_batches && rank < ds->n_ranks);
    at.first = (step - epoch.first_step) * ds->per_step + ((uint64_t)micro_batch * ds->n_ranks + rank) * ds->batch;
    at.n = at.first < epoch.rows ? (uint32_t)tm_min_u64(epoch.rows - at.first, ds->batch) : 0;
    return at;
}

static void add_row(tm_batch_shape *shape, uint32_t n_tokens, uint64_t mask_tokens, uint32_t n_labels) {
    if (n_tokens > shape->seq) shape->seq = n_tokens;
    shape->mask_tokens += mask_tokens;
    shape->label_tokens += n_labels;
    shape->rows++;
    shape->tokens = (uint32_t)tm_round_up((uint64_t)shape->rows * shape->seq, 64);
}

static void add_stored(const tm_dataset *ds, tm_batch_shape *shape, uint64_t row) {
    data_row r = data_store_size(&ds->store, row);
    add_row(shape, r.n_tokens, ds->is_rows ? r.place : r.n_tokens, r.n_labels);
}

static void add_pack(const tm_dataset *ds, tm_batch_shape *shape, uint64_t epoch, uint64_t row) {
    uint32_t n, tokens = 0, labels = 0;
    const uint64_t *sample = data_pack_samples(ds->packer, epoch, row, &n);
    for (uint32_t i = 0; i < n; i++) {
        data_row r = data_store_size(&ds->store, sample[i]);
        tokens += r.n_tokens;
        labels += r.n_labels;
    }
    add_row(shape, tokens, tokens, labels);
    shape->samples += n;
}

void tm_dataset_shape(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank, tm_batch_shape *out) {
    data_rows_of at = data_batch_rows(ds, step, micro_batch, rank);
    uint32_t roles = data_roles(ds);
    *out = (tm_batch_shape){.samples = ds->packs ? 0 : at.n};
    for (uint32_t b = 0; ds->packs && b < at.n; b++) add_pack(ds, out, at.epoch, at.first + b);
    if (ds->packs) return;
    for (uint32_t b = 0; b < at.n; b++) {
        uint64_t row = data_row_at(ds, at.epoch, at.first + b, 0);
        for (uint32_t role = 0; role < roles; role++) add_stored(ds, out, row + role);
    }
}

/* The place before, in the step; its first one's is the last. */
data_mismatch data_mismatched(const tm_dataset *ds, data_rows_of at, uint32_t b) {
    uint64_t place = at.first + b, step = place - place % ds->per_step;
    uint64_t last = tm_min_u64(step + ds->per_step, ds->n_samples) - 1;
    data_mismatch m = {.prompt_row = data_row_at(ds, at.epoch, place, 0),
                       .completion_row = data_row_at(ds, at.epoch, place > step ? place - 1 : last, 0)};
    m.prompt = data_store_get(&ds->store, m.prompt_row);
    m.completion = data_store_get(&ds->store, m.completion_row);
    m.cut = data_cut_row(m.prompt->prompt, m.completion->n_tokens - m.completion->prompt, ds->seq_len);
    return m;
}

void tm_dataset_shape_mismatched(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                                 tm_batch_shape *out) {
    data_rows_of at = data_batch_rows(ds, step, micro_batch, rank);
    TM_ASSERT(ds->kind == TM_ROWS_LABELLED);
    *out = (tm_batch_shape){.samples = at.n};
    for (uint32_t b = 0; b < at.n; b++) {
        data_mismatch m = data_mismatched(ds, at, b);
        uint32_t n = m.cut.prompt + m.cut.completion;
        if (ds->is_rows)
            add_stored(ds, out, m.prompt_row + 1);
        else
            add_row(out, n, n, m.cut.completion - (m.cut.prompt == 0));
    }
}

void tm_dataset_step_info(const tm_dataset *ds, uint64_t step, tm_step_info *out) {
    *out = (tm_step_info){.epoch = epoch_of(ds, step).number};
    for (uint32_t k = 0; k < ds->n_micro_batches; k++)
        for (uint32_t r = 0; r < ds->n_ranks; r++) {
            tm_batch_shape shape;
            tm_dataset_shape(ds, step, k, r, &shape);
            out->samples += shape.samples;
            out->tokens += shape.mask_tokens;
            out->label_tokens += shape.label_tokens;
        }
}

uint64_t tm_dataset_step_sample(const tm_dataset *ds, uint64_t step, uint64_t i) {
    data_epoch epoch = epoch_of(ds, step);
    uint64_t row = (step - epoch.first_step) * ds->per_step, one;
    uint32_t n;
    const uint64_t *sample = data_row_samples(ds, epoch.number, row, &one, &n);
    for (; i >= n; sample = data_row_samples(ds, epoch.number, ++row, &one, &n)) i -= n;
    return sample[i];
}
