/* A scanned dataset as a file: the stream of its rows (what was spilled), then the index, then a trailer that says what
 * it is. It is written once, by the scan, and opened in place of the files that it was made of. */
#include "data/dataset_internal.h"

#include <string.h>

enum { FORM = 2 };
enum { ROW_BYTES = sizeof(data_row) | sizeof(data_run) << 16 };
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

/* Before the rows of a block, or its runs: as the index has them in memory. */
typedef struct block_head {
    uint32_t n_rows, is_runs;
} block_head;

static uint64_t content_bytes(block_head head) {
    return head.is_runs ? DATA_BLOCK_RUNS * sizeof(data_run) : head.n_rows * sizeof(data_row);
}

static block_head head_of(const data_store *s, size_t block) {
    uint64_t rest = s->n_rows - block * (uint64_t)DATA_BLOCK_ROWS;
    return (block_head){(uint32_t)tm_min_u64(rest, DATA_BLOCK_ROWS), s->block[block].run != NULL};
}

uint64_t tm_dataset_saved_bytes(const tm_dataset *ds) {
    const data_store *s = &ds->store;
    uint64_t bytes = s->base + s->used + sizeof(trailer);
    for (size_t i = 0; i < s->n_blocks; i++) bytes += sizeof(block_head) + content_bytes(head_of(s, i));
    return bytes;
}

static tm_status write_hashed(const data_store *s, const void *from, uint64_t n, uint64_t *at, uint64_t *hash) {
    TM_TRY(s->spill->write_at(s->spill->ctx, *at, from, (size_t)n));
    *hash = tm_hash64(from, (size_t)n, *hash);
    *at += n;
    return TM_OK;
}

static tm_status write_index(const data_store *s, uint64_t *at, uint64_t *hash) {
    for (size_t i = 0; i < s->n_blocks; i++) {
        block_head head = head_of(s, i);
        const data_block *b = &s->block[i];
        TM_TRY(write_hashed(s, &head, sizeof head, at, hash));
        TM_TRY(write_hashed(s, b->run ? (const void *)b->run : b->row, content_bytes(head), at, hash));
    }
    return TM_OK;
}

tm_status tm_dataset_save(const tm_dataset *ds, uint64_t key) {
    const data_store *s = &ds->store;
    uint64_t at = s->base;
    trailer t;
    TM_ASSERT(s->base > 0 && !ds->is_rows);
    memset(&t, 0, sizeof t); /* what lies between members is hashed, too */
    memcpy(t.magic, magic, sizeof magic);
    t.form = FORM;
    t.row_bytes = ROW_BYTES;
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
    if (memcmp(t->magic, magic, sizeof magic) != 0 || t->hash != hash_of(t)) return not_it("damaged");
    if (t->form != FORM || t->row_bytes != ROW_BYTES || t->kind != (uint32_t)ds->kind || t->key != key ||
        t->id_bytes != ds->store.id_bytes)
        return not_it("made otherwise");
    bool fits =
        t->stream_bytes <= size - sizeof *t && t->n_rows < size; /* a row takes more than a byte, with its tokens */
    return fits && t->n_rows && t->n_rows % ds->rows_each == 0 ? TM_OK : not_it("of another size");
}

static bool is_sound(const data_row *row, const trailer *t) {
    uint64_t bytes = data_row_bytes(t->id_bytes, row->n_tokens);
    return row->n_tokens <= t->counts.longest && row->place <= t->stream_bytes &&
           bytes <= t->stream_bytes - row->place && row->prompt <= row->n_tokens && row->n_labels <= row->n_tokens;
}

static bool is_sound_run(const data_run *run, const trailer *t) {
    uint64_t bytes = 0;
    uint32_t longest = 0, labels = 0; /* rows with more labels than tokens */
    for (size_t i = 0; i < DATA_RUN; i++) {
        bytes += data_row_bytes(t->id_bytes, run->n_tokens[i]);
        longest = run->n_tokens[i] > longest ? run->n_tokens[i] : longest;
        labels += run->n_labels[i] > run->n_tokens[i];
    }
    return longest <= t->counts.longest && !labels && run->place <= t->stream_bytes &&
           bytes <= t->stream_bytes - run->place;
}

static bool is_sound_block(const data_block *b, block_head head, const trailer *t) {
    bool sound = true;
    for (size_t i = 0; b->run && i < DATA_BLOCK_RUNS && sound; i++) sound = is_sound_run(&b->run[i], t);
    for (size_t i = 0; b->row && i < head.n_rows && sound; i++) sound = is_sound(&b->row[i], t);
    return sound;
}

/* The index lies between the stream and the trailer, which begins at `end`. */
static tm_status read_hashed(const data_store *s, void *to, uint64_t n, uint64_t *at, uint64_t end, uint64_t *hash) {
    if (n > end - *at) return not_it("cut off");
    TM_TRY(s->spill->read_at(s->spill->ctx, *at, to, (size_t)n));
    *hash = tm_hash64(to, (size_t)n, *hash);
    *at += n;
    return TM_OK;
}

static tm_status read_block(data_store *s, const trailer *t, uint64_t *at, uint64_t end, uint64_t *hash) {
    uint64_t n = tm_min_u64(t->n_rows - s->n_rows, DATA_BLOCK_ROWS);
    block_head head;
    TM_TRY(read_hashed(s, &head, sizeof head, at, end, hash));
    if (head.n_rows != n || head.is_runs > (n == DATA_BLOCK_ROWS)) return not_it("damaged");
    TM_TRY(data_store_add_block(s, n, head.is_runs));
    const data_block *b = &s->block[s->n_blocks - 1];
    TM_TRY(read_hashed(s, b->run ? (void *)b->run : b->row, content_bytes(head), at, end, hash));
    return is_sound_block(b, head, t) ? TM_OK : not_it("damaged");
}

static tm_status read_index(data_store *s, const trailer *t, uint64_t end) {
    uint64_t at = t->stream_bytes, hash = 0;
    while (s->n_rows < t->n_rows) {
        TM_TRY(read_block(s, t, &at, end, &hash));
        tm_status rc = tm_stop_check();
        if (rc != TM_OK) return rc;
    }
    return at == end && hash == t->index_hash ? TM_OK : not_it("damaged");
}

tm_status data_cache_read(tm_dataset *ds, uint64_t size, uint64_t key) {
    data_store *s = &ds->store;
    trailer t;
    if (size < sizeof t) return not_it("cut off");
    TM_TRY(s->spill->read_at(s->spill->ctx, size - sizeof t, &t, sizeof t));
    TM_TRY(check(&t, ds, size, key));
    TM_TRY(read_index(s, &t, size - sizeof t));
    s->base = t.stream_bytes;
    ds->fingerprint = t.fingerprint;
    ds->counts = t.counts;
    return TM_OK;
}
