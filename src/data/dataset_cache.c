/* A scanned dataset as a file: the stream of its rows (what was spilled), then the index, then a trailer that says what
 * it is. It is written once, by the scan, and opened in place of the files that it was made of. */
#include "data/dataset_internal.h"

#include <string.h>

enum { FORM = 1 };
static const char magic[8] = "tidemill";

/* Native: the file is for the machine, and the build, that made it. */
typedef struct trailer {
    char magic[8];
    uint32_t form, row_bytes;
    uint64_t key; /* what the caller knows the data by */
    uint64_t stream_bytes, n_rows;
    uint64_t index_hash, fingerprint;
    uint32_t id_bytes, kind;
    tm_dataset_counts counts;
    uint64_t hash; /* of all before it */
} trailer;

static uint64_t hash_of(const trailer *t) {
    return tm_hash64(t, offsetof(trailer, hash), 0);
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

uint64_t tm_dataset_saved_bytes(const tm_dataset *ds) {
    return ds->store.base + ds->store.used + ds->store.n_rows * sizeof(data_row) + sizeof(trailer);
}

enum { PIECE = DATA_BLOCK_ROWS / 16 };

static tm_status write_rows(const data_store *s, data_row *piece, uint64_t *at, uint64_t *hash) {
    for (uint64_t i = 0; i < s->n_rows; i += PIECE) {
        uint64_t n = tm_min_u64(s->n_rows - i, PIECE);
        size_t bytes = (size_t)n * sizeof *piece;
        for (uint64_t k = 0; k < n; k++) piece[k] = *data_store_get(s, i + k);
        TM_TRY(s->spill->write_at(s->spill->ctx, *at, piece, bytes));
        *hash = tm_hash64(piece, bytes, *hash);
        *at += bytes;
    }
    return TM_OK;
}

static tm_status write_index(const data_store *s, uint64_t *at, uint64_t *hash) {
    data_row *piece = tm_calloc(PIECE, sizeof *piece);
    if (!piece) return tm_nomem(PIECE * sizeof *piece);
    tm_status rc = write_rows(s, piece, at, hash);
    tm_free(piece);
    return rc;
}

tm_status tm_dataset_save(const tm_dataset *ds, uint64_t key) {
    const data_store *s = &ds->store;
    uint64_t at = s->base;
    trailer t;
    TM_ASSERT(s->base > 0 && !ds->is_rows);
    memset(&t, 0, sizeof t); /* what lies between members is hashed, too */
    memcpy(t.magic, magic, sizeof magic);
    t.form = FORM;
    t.row_bytes = sizeof(data_row);
    t.key = key;
    t.stream_bytes = s->base;
    t.n_rows = s->n_rows;
    t.fingerprint = ds->fingerprint;
    t.id_bytes = s->id_bytes;
    t.kind = (uint32_t)ds->kind;
    t.counts = ds->counts;
    TM_TRY(write_index(s, &at, &t.index_hash));
    t.hash = hash_of(&t);
    return s->spill->write_at(s->spill->ctx, at, &t, sizeof t);
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static tm_status not_it(const char *why) {
    return tm_fail(TM_ECORRUPT, "the tokenised data that are kept are not those that are wanted: %s", why);
}

static tm_status check(const trailer *t, const tm_dataset *ds, uint64_t size, uint64_t key) {
    uint64_t index, all;
    if (memcmp(t->magic, magic, sizeof magic) != 0 || t->hash != hash_of(t)) return not_it("damaged");
    if (t->form != FORM || t->row_bytes != sizeof(data_row) || t->kind != (uint32_t)ds->kind || t->key != key ||
        t->id_bytes != ds->store.id_bytes)
        return not_it("made otherwise");
    bool fits = tm_mul_u64(t->n_rows, sizeof(data_row), &index) && tm_add_u64(index, t->stream_bytes, &all) &&
                tm_add_u64(all, sizeof *t, &all);
    return fits && all == size && t->n_rows && t->n_rows % ds->rows_each == 0 ? TM_OK : not_it("of another size");
}

static bool is_sound(const data_row *row, const trailer *t) {
    uint64_t bytes = data_row_bytes(t->id_bytes, row->n_tokens);
    return row->n_tokens <= t->counts.longest && row->place <= t->stream_bytes &&
           bytes <= t->stream_bytes - row->place && row->prompt <= row->n_tokens && row->n_labels <= row->n_tokens;
}

static tm_status read_index(data_store *s, const trailer *t) {
    uint64_t at = t->stream_bytes, hash = 0;
    for (uint64_t i = 0; i < t->n_rows; i += DATA_BLOCK_ROWS) {
        uint64_t n = tm_min_u64(t->n_rows - i, DATA_BLOCK_ROWS);
        TM_TRY(data_store_add_block(s, n));
        data_row *block = data_store_at(s, i);
        TM_TRY(s->spill->read_at(s->spill->ctx, at, block, (size_t)n * sizeof *block));
        for (uint64_t k = 0; k < n; k += PIECE)
            hash = tm_hash64(block + k, (size_t)tm_min_u64(n - k, PIECE) * sizeof *block, hash);
        for (uint64_t k = 0; k < n; k++)
            if (!is_sound(&block[k], t)) return not_it("damaged");
        at += n * sizeof *block;
        tm_status rc = tm_stop_check();
        if (rc != TM_OK) return rc;
    }
    return hash == t->index_hash ? TM_OK : not_it("damaged");
}

tm_status data_cache_read(tm_dataset *ds, uint64_t size, uint64_t key) {
    data_store *s = &ds->store;
    trailer t;
    if (size < sizeof t) return not_it("cut off");
    TM_TRY(s->spill->read_at(s->spill->ctx, size - sizeof t, &t, sizeof t));
    TM_TRY(check(&t, ds, size, key));
    TM_TRY(read_index(s, &t));
    s->base = t.stream_bytes;
    ds->fingerprint = t.fingerprint;
    ds->counts = t.counts;
    return TM_OK;
}
