/* tm_source and its two kinds. */
#ifndef TIDEMILL_SOURCE_INTERNAL_H
#define TIDEMILL_SOURCE_INTERNAL_H

#include "format/format_internal.h"

typedef struct source_entry {
    tm_source_tensor info;
    tm_file *handle;
    /* GGUF's q and k rows: row 2i + j of a head is HF's row j * head_rows / 2 + i. 0: rows are as HF has them. */
    uint32_t head_rows;
    bool transposed; /* the file has [shape[1], shape[0]] */
    bool added_one;  /* the file has 1 more than HF */
} source_entry;

/* Where HF's row lies among GGUF's rows. */
static inline uint64_t tm_permuted_row(uint64_t row, uint32_t head_rows) {
    uint64_t head = row / head_rows, in_head = row % head_rows, half = head_rows / 2;
    return head * head_rows + in_head % half * 2 + in_head / half;
}

struct tm_source {
    char *path;
    tm_buf config;
    uint32_t n;
    size_t cap;
    source_entry *entry; /* in byte order of the names */
    /* folder: */
    uint32_t n_shards;
    tm_st **shard;
    /* GGUF: */
    tm_gguf *gguf;
    tm_buf names; /* HF names, each NUL-terminated */
};

tm_status tm_source_open_folder(tm_source *src, bool weights);
tm_status tm_source_folder_file(const tm_source *src, const char *name, tm_buf *out, bool *found);
tm_status tm_source_folder_copy(const tm_source *src, const char *name, const char *dir, bool *found);
tm_status tm_source_open_gguf(tm_source *src, bool weights);
tm_status tm_source_gguf_file(const tm_source *src, const char *name, tm_buf *out, bool *found);
tm_status tm_source_add(tm_source *src, const source_entry *entry);

#endif
