/* Lines of a file in bounded memory. A line that is too long is cut and named; the file goes on after it. */
#include "data/dataset_internal.h"

#include <string.h>

enum { BLOCK_BYTES = 256 * 1024 };

tm_status data_lines_open(data_lines *l, const tm_data_source *source, uint64_t max_line) {
    memset(l, 0, sizeof *l);
    l->source = source;
    l->max_line = max_line;
    size_t n = (size_t)tm_min_u64(source->size, BLOCK_BYTES);
    l->block = tm_malloc(n);
    return l->block ? TM_OK : tm_nomem(n);
}

void data_lines_close(data_lines *l) {
    tm_free(l->block);
    tm_buf_free(&l->line);
}

static tm_status refill(data_lines *l) {
    uint64_t left = l->source->size - l->offset;
    size_t n = (size_t)tm_min_u64(left, BLOCK_BYTES);
    if (n) TM_TRY(l->source->read_at(l->source->ctx, l->offset, l->block, n));
    l->at = 0;
    l->end = n;
    if (!l->offset && n >= 3 && !memcmp(l->block, "\xEF\xBB\xBF", 3)) l->at = 3; /* byte order mark */
    l->offset += n;
    return TM_OK;
}

/* Takes up to the end of the line or of the block. */
static tm_status take(data_lines *l, bool *ended, bool *too_long) {
    const char *from = l->block + l->at, *newline = memchr(from, '\n', l->end - l->at);
    size_t n = newline ? (size_t)(newline - from) : l->end - l->at;
    size_t keep = (size_t)tm_min_u64(n, l->max_line - l->line.len);
    if (keep < n) *too_long = true;
    TM_TRY(tm_buf_append(&l->line, from, keep));
    l->at += n + (newline != NULL);
    *ended = newline != NULL;
    return TM_OK;
}

tm_status data_lines_next(data_lines *l, bool *got, bool *too_long) {
    bool ended = false, any = false;
    tm_buf_clear(&l->line);
    *too_long = false;
    while (!ended) {
        if (l->at == l->end) TM_TRY(refill(l));
        if (l->at == l->end) break;
        any = true;
        TM_TRY(take(l, &ended, too_long));
    }
    if (l->line.len && l->line.data[l->line.len - 1] == '\r') l->line.data[--l->line.len] = 0;
    l->number += any;
    *got = any;
    return TM_OK;
}
