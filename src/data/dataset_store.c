/* Rows: an index in memory, and the token ids as one stream of bytes that moves to the spill when it outgrows
 * memory. */
#include "data/dataset_internal.h"

#include <string.h>

enum { WRITE_BYTES = 1 << 20, FIRST_POOL = 64 * 1024 };

void data_store_init(data_store *s, uint64_t most_rows, uint64_t memory_bytes, uint32_t vocab_size,
                     const tm_data_spill *spill) {
    memset(s, 0, sizeof *s);
    s->id_bytes = vocab_size && vocab_size <= UINT16_MAX + 1 ? 2 : 4;
    s->most_rows = most_rows;
    s->memory_bytes = memory_bytes;
    if (!spill) return;
    s->spill_copy = *spill;
    s->spill = &s->spill_copy;
}

void data_store_free(data_store *s) {
    for (size_t i = 0; i < s->n_blocks; i++) TM_FREE_ALL(s->block[i].row, s->block[i].run);
    tm_free(s->block);
    tm_free(s->shown);
    tm_free(s->pool);
    tm_buf_free(&s->packed);
    memset(s, 0, sizeof *s);
}

uint64_t data_store_bytes(const data_store *s) {
    return s->index_bytes + s->cap_blocks * sizeof *s->block + s->room;
}

static tm_status make_shown(data_store *s) {
    if (!s->shown) s->shown = tm_calloc(1, sizeof *s->shown);
    return s->shown ? TM_OK : tm_nomem(sizeof *s->shown);
}

static tm_status add_block(data_store *s, uint64_t rows, bool runs) {
    size_t bytes = runs ? DATA_BLOCK_RUNS * sizeof(data_run) : (size_t)rows * sizeof(data_row);
    if (s->n_blocks == s->cap_blocks) {
        size_t cap = s->cap_blocks ? 2 * s->cap_blocks : 16;
        data_block *grown = tm_realloc(s->block, cap * sizeof *grown);
        if (!grown) return tm_nomem(cap * sizeof *grown);
        s->block = grown;
        s->cap_blocks = cap;
    }
    void *room = tm_malloc(bytes);
    if (!room) return tm_nomem(bytes);
    s->block[s->n_blocks++] = runs ? (data_block){.run = room} : (data_block){.row = room};
    s->index_bytes += bytes;
    return TM_OK;
}

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

static bool are_runs(const data_store *s, const data_row *row) {
    for (size_t i = 0; i < DATA_BLOCK_ROWS; i++) {
        bool small = row[i].n_tokens <= UINT16_MAX && !row[i].prompt && !row[i].desirable && !row[i].second;
        bool last = i + 1 == DATA_BLOCK_ROWS;
        if (!small || (!last && row[i].place + data_row_bytes(s->id_bytes, row[i].n_tokens) != row[i + 1].place))
            return false;
    }
    return true;
}

/* The last block, which is full. */
static tm_status make_runs(data_store *s) {
    data_block *b = &s->block[s->n_blocks - 1];
    if (!are_runs(s, b->row)) return TM_OK;
    TM_TRY(make_shown(s));
    data_run *run = tm_malloc(DATA_BLOCK_RUNS * sizeof *run);
    if (!run) return tm_nomem(DATA_BLOCK_RUNS * sizeof *run);
    for (size_t i = 0; i < DATA_BLOCK_ROWS; i++) {
        data_run *r = &run[i / DATA_RUN];
        if (i % DATA_RUN == 0) r->place = b->row[i].place;
        r->n_tokens[i % DATA_RUN] = (uint16_t)b->row[i].n_tokens;
        r->n_labels[i % DATA_RUN] = (uint16_t)b->row[i].n_labels;
    }
    tm_free(b->row);
    *b = (data_block){.run = run};
    s->index_bytes -= DATA_BLOCK_ROWS * sizeof(data_row) - DATA_BLOCK_RUNS * sizeof *run;
    return TM_OK;
}

static data_row row_of(const data_store *s, uint64_t i) {
    const data_run *r = &s->block[i / DATA_BLOCK_ROWS].run[i % DATA_BLOCK_ROWS / DATA_RUN];
    data_row row = {.place = r->place, .n_tokens = r->n_tokens[i % DATA_RUN], .n_labels = r->n_labels[i % DATA_RUN]};
    for (size_t k = 0; k < i % DATA_RUN; k++) row.place += data_row_bytes(s->id_bytes, r->n_tokens[k]);
    return row;
}

const data_row *data_store_unrun(const data_store *s, uint64_t i) {
    data_row *row = &s->shown->row[s->shown->next++ % DATA_SHOWN];
    *row = row_of(s, i);
    return row;
}

tm_status data_store_expand(data_store *s) {
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (s->block[b].row) continue;
        data_row *row = tm_malloc(DATA_BLOCK_ROWS * sizeof *row);
        if (!row) return tm_nomem(DATA_BLOCK_ROWS * sizeof *row);
        for (size_t i = 0; i < DATA_BLOCK_ROWS; i++) row[i] = row_of(s, b * DATA_BLOCK_ROWS + i);
        s->index_bytes += DATA_BLOCK_ROWS * sizeof *row - DATA_BLOCK_RUNS * sizeof(data_run);
        tm_free(s->block[b].run);
        s->block[b] = (data_block){.row = row};
    }
    return TM_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

/* A block becomes runs when the next one begins: the last is as it was, so that a small index is an array. */
static tm_status next_block(data_store *s, uint64_t rows) {
    if (s->n_blocks && s->block[s->n_blocks - 1].row) TM_TRY(make_runs(s));
    return add_block(s, rows, false);
}

tm_status data_store_add(data_store *s, data_row row) {
    TM_ASSERT(s->n_rows < s->most_rows);
    if (s->n_rows == s->n_blocks * (uint64_t)DATA_BLOCK_ROWS)
        TM_TRY(next_block(s, tm_min_u64(DATA_BLOCK_ROWS, s->most_rows - s->n_rows)));
    *data_store_at(s, s->n_rows) = row;
    s->n_rows++;
    return TM_OK;
}

tm_status data_store_add_block(data_store *s, uint64_t n, bool runs) {
    TM_ASSERT(s->n_rows == s->n_blocks * (uint64_t)DATA_BLOCK_ROWS && n <= DATA_BLOCK_ROWS);
    if (runs) TM_TRY(make_shown(s));
    TM_TRY(add_block(s, n, runs));
    s->n_rows += n;
    return TM_OK;
}

static uint64_t block_bytes(const data_block *b) {
    return b->row ? DATA_BLOCK_ROWS * sizeof *b->row : DATA_BLOCK_RUNS * sizeof *b->run;
}

void data_store_truncate(data_store *s, uint64_t n_rows) {
    size_t n = (size_t)((n_rows + DATA_BLOCK_ROWS - 1) / DATA_BLOCK_ROWS);
    s->n_rows = n_rows;
    for (; s->n_blocks > n; s->n_blocks--) {
        data_block *b = &s->block[s->n_blocks - 1];
        TM_FREE_ALL(b->row, b->run);
        *b = (data_block){0};
    }
    s->index_bytes = 0;
    for (size_t i = 0; i < s->n_blocks; i++) s->index_bytes += block_bytes(&s->block[i]);
}

static tm_status resize_pool(data_store *s, uint64_t room) {
    char *grown = tm_realloc(s->pool, room ? room : 1);
    if (!grown) return tm_nomem(room);
    s->pool = grown;
    s->room = room;
    return TM_OK;
}

static tm_status flush(data_store *s) {
    if (!s->spill) {
        char size[32];
        return tm_fail(TM_EBUDGET, "the tokenised data need more than the %s they may have in memory",
                       tm_format_size(s->memory_bytes, size, sizeof size));
    }
    for (uint64_t done = 0; done < s->used;) {
        size_t n = (size_t)tm_min_u64(s->used - done, WRITE_BYTES);
        TM_TRY(s->spill->write_at(s->spill->ctx, s->base + done, s->pool + done, n));
        done += n;
    }
    s->base += s->used;
    s->used = 0;
    return TM_OK;
}

/* Makes room for at least one more byte. Once something was flushed, the pool is a write buffer and no larger than one.
 */
static tm_status make_room(data_store *s) {
    uint64_t room = tm_min_u64(s->room ? 2 * s->room : FIRST_POOL, s->memory_bytes);
    if (s->used < s->room) return TM_OK;
    if (room > s->room && !s->base) return resize_pool(s, room);
    TM_TRY(flush(s));
    return s->room > WRITE_BYTES ? resize_pool(s, WRITE_BYTES) : TM_OK;
}

static tm_status append(data_store *s, const char *from, size_t n) {
    while (n) {
        TM_TRY(make_room(s));
        size_t take = (size_t)tm_min_u64(n, s->room - s->used);
        memcpy(s->pool + s->used, from, take);
        s->used += take;
        from += take;
        n -= take;
    }
    return TM_OK;
}

tm_status data_store_append(data_store *s, const int32_t *ids, uint32_t n, const tm_buf *bits, uint64_t *place) {
    size_t all = (size_t)data_row_bytes(s->id_bytes, n), id_bytes = all - bits->len - sizeof(uint32_t);
    tm_buf_clear(&s->packed);
    TM_TRY(tm_buf_reserve(&s->packed, all));
    char *to = s->packed.data;
    memset(to + (id_bytes > 4 ? id_bytes - 4 : 0), 0, id_bytes > 4 ? 4 : id_bytes); /* up to the multiple of 4 */
    if (s->id_bytes == sizeof *ids)
        memcpy(to, ids, n * sizeof *ids);
    else
        for (uint32_t i = 0; i < n; i++) memcpy(to + 2 * (size_t)i, &(uint16_t){(uint16_t)ids[i]}, 2);
    memcpy(to + id_bytes, bits->data, bits->len);
    uint32_t hash = (uint32_t)tm_hash64(to, id_bytes + bits->len, 0);
    memcpy(to + id_bytes + bits->len, &hash, sizeof hash);
    *place = s->base + s->used;
    return append(s, to, all);
}

/* The index's last block has room for what might have come. */
static tm_status trim_index(data_store *s) {
    if (!s->n_blocks || !s->block[s->n_blocks - 1].row) return TM_OK;
    size_t bytes = (size_t)(s->n_rows - (s->n_blocks - 1) * (uint64_t)DATA_BLOCK_ROWS) * sizeof(data_row);
    data_row *row = tm_realloc(s->block[s->n_blocks - 1].row, bytes);
    if (!row) return tm_nomem(bytes);
    s->block[s->n_blocks - 1].row = row;
    s->index_bytes = bytes;
    for (size_t i = 0; i + 1 < s->n_blocks; i++) s->index_bytes += block_bytes(&s->block[i]);
    return TM_OK;
}

tm_status data_store_seal(data_store *s) {
    TM_TRY(trim_index(s));
    tm_buf_free(&s->packed);
    if (!s->base) return s->used < s->room ? resize_pool(s, s->used) : TM_OK;
    TM_TRY(flush(s));
    tm_free(s->pool);
    s->pool = NULL;
    s->room = 0;
    return TM_OK;
}

static tm_status read_bytes(const data_store *s, uint64_t place, void *buf, size_t n) {
    if (s->base) return s->spill->read_at(s->spill->ctx, place, buf, n);
    TM_ASSERT(place <= s->used && n <= s->used - place);
    memcpy(buf, s->pool + place, n);
    return TM_OK;
}

tm_status data_store_read(const data_store *s, uint64_t place, uint32_t n, char *buf, const uint8_t **bits) {
    size_t all = (size_t)data_row_bytes(s->id_bytes, n), hashed = all - sizeof(uint32_t);
    char *stored = buf + (size_t)n * sizeof(int32_t);
    uint32_t hash;
    TM_TRY(read_bytes(s, place, stored, all));
    memcpy(&hash, stored + hashed, sizeof hash);
    if (hash != (uint32_t)tm_hash64(stored, hashed, 0))
        return tm_fail(TM_ECORRUPT, "the tokenised data on disk are not what was written there; start again, and look "
                                    "after the disk");
    int32_t *ids = (int32_t *)(void *)buf;
    if (s->id_bytes == sizeof *ids)
        memcpy(ids, stored, (size_t)n * sizeof *ids);
    else
        for (uint32_t i = 0; i < n; i++) {
            uint16_t id;
            memcpy(&id, stored + 2 * (size_t)i, 2);
            ids[i] = id;
        }
    *bits = (const uint8_t *)stored + hashed - data_mask_bytes(n);
    return TM_OK;
}
