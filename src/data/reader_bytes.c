/* The bytes of a data file, block by block, unpacked where they are packed. */
#include "data/reader_internal.h"

#include <string.h>

enum { BLOCK_BYTES = 256 * 1024 };

static tm_status read_some(data_bytes *b, void *to, size_t cap, size_t *got) {
    *got = (size_t)tm_min_u64(b->source->size - b->offset, cap);
    if (*got) TM_TRY(b->source->read_at(b->source->ctx, b->offset, to, *got));
    b->offset += *got;
    return TM_OK;
}

static tm_status packed_more(data_bytes *b) {
    if (b->packed_at < b->packed_end) return TM_OK;
    b->packed_at = 0;
    return read_some(b, b->packed, BLOCK_BYTES, &b->packed_end);
}

/* One step; *got 0 without b->ended: nothing yet. */
static tm_status unpack_some(data_bytes *b, char *to, size_t cap, size_t *got) {
    size_t used, n;
    TM_TRY(packed_more(b));
    n = b->packed_end - b->packed_at;
    TM_TRY(data_unpack_run(b->unpack, b->packed + b->packed_at, n, &used, to, cap, got));
    b->packed_at += used;
    if (used || *got) return TM_OK;
    if (n || data_unpack_inside(b->unpack))
        return tm_fail(TM_EINPUT, "%s: the packed file is cut off after %llu bytes; fetch it again", b->source->name,
                       (unsigned long long)b->offset);
    b->ended = true;
    return TM_OK;
}

/* Fills the block from `end` on. */
static tm_status fill(data_bytes *b) {
    while (b->end < b->room && !b->ended) {
        size_t got, cap = b->room - b->end;
        TM_TRY(b->unpack ? unpack_some(b, b->block + b->end, cap, &got) : read_some(b, b->block + b->end, cap, &got));
        b->ended = b->ended || (!b->unpack && b->offset == b->source->size);
        b->end += got;
    }
    return TM_OK;
}

tm_status data_bytes_more(data_bytes *b) {
    TM_ASSERT(b->at == b->end);
    TM_TRY(tm_stop_check());
    b->at = b->end = 0;
    return fill(b);
}

static tm_status open_packed(data_bytes *b, data_packing packing, uint64_t window_bytes) {
    b->packed = tm_malloc(BLOCK_BYTES);
    if (!b->packed) return tm_nomem(BLOCK_BYTES);
    return data_unpack_open(&b->unpack, packing, b->source->name, window_bytes);
}

static tm_status find_packing(const tm_data_source *source, data_packing *out) {
    uint8_t head[4];
    size_t n = (size_t)tm_min_u64(source->size, sizeof head);
    if (n) TM_TRY(source->read_at(source->ctx, 0, head, n));
    *out = data_packing_of(head, n);
    return TM_OK;
}

tm_status tm_data_packed(const tm_data_source *source, bool *packed) {
    data_packing packing = DATA_PLAIN;
    tm_status rc = find_packing(source, &packing);
    *packed = packing != DATA_PLAIN;
    return rc;
}

tm_status data_bytes_open(data_bytes *b, const tm_data_source *source, uint64_t window_bytes) {
    data_packing packing;
    *b = (data_bytes){.source = source};
    TM_TRY(find_packing(source, &packing));
    b->room = packing == DATA_PLAIN ? (size_t)tm_min_u64(source->size, BLOCK_BYTES) : BLOCK_BYTES;
    b->block = tm_malloc(b->room ? b->room : 1);
    if (!b->block) return tm_nomem(b->room);
    if (packing != DATA_PLAIN) TM_TRY(open_packed(b, packing, window_bytes));
    TM_TRY(fill(b));
    if (b->end >= 3 && !memcmp(b->block, "\xEF\xBB\xBF", 3)) b->at = 3; /* byte order mark */
    return TM_OK;
}

uint64_t data_bytes_read(const data_bytes *b) {
    return b->unpack ? b->offset - (b->packed_end - b->packed_at) : b->offset - (b->end - b->at);
}

void data_bytes_close(data_bytes *b) {
    data_unpack_close(b->unpack);
    TM_FREE_ALL(b->block, b->packed);
}
