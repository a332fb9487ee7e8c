/* Bytes in memory as a data file. */
#ifndef TIDEMILL_TESTS_MEM_FILE_H
#define TIDEMILL_TESTS_MEM_FILE_H

#include "data/reader.h"

#include <string.h>

typedef struct mem_file {
    const void *data;
    size_t n;
} mem_file;

static inline tm_status mem_file_read(void *ctx, uint64_t offset, void *buf, size_t len) {
    const mem_file *f = ctx;
    TM_ASSERT(offset <= f->n && len <= f->n - offset);
    memcpy(buf, (const char *)f->data + offset, len);
    return TM_OK;
}

/* `f` is used until the source is no more. */
static inline tm_data_source mem_file_source(mem_file *f, const char *name) {
    return (tm_data_source){.ctx = f, .read_at = mem_file_read, .size = f->n, .name = name};
}

#endif
