/* tm_source and its two kinds. */
#ifndef TIDEMILL_SOURCE_INTERNAL_H
#define TIDEMILL_SOURCE_INTERNAL_H

#include "format/format_internal.h"
#include "kernels/nf4.h"

/* Where something of a tensor lies. */
typedef struct source_place {
    tm_file *file;
    const char *path;
    uint64_t offset;
} source_place;
/* A tensor of bitsandbytes' 4-bit blocks: where its scales lie, and what serves every range of it. */
typedef struct bnb_tensor {
    tm_nf4_blocks blocks; /* all but codes and scales */
    float map[16];
    source_place absmax, nested; /* nested: only with a nested_map */
    struct bnb_tensor *next;
} bnb_tensor;
typedef struct bnb_map {
    float value[256];
    struct bnb_map *next;
} bnb_map;

typedef struct source_entry {
    tm_source_tensor info;
    tm_file *handle;
    /* GGUF's q and k rows: row 2i + j of a head is HF's row j * head_rows / 2 + i. 0: rows are as HF has them. */
    uint32_t head_rows;
    bool transposed;                /* the file has [shape[1], shape[0]] */
    bool added_one;                 /* the file has 1 more than HF */
    const bnb_tensor *bnb;          /* 4-bit blocks; NULL: none */
    const struct int_tensor *ints;  /* integer codes (ints_internal.h); NULL: none */
    const struct merge_part *merge; /* an adapter is added to what is read; NULL: none */
    uint32_t made;                  /* 1 + its number among tm_made_tensors; 0: it lies in a file */
} source_entry;

/* Where HF's row lies among GGUF's rows. */
static inline uint64_t tm_permuted_row(uint64_t row, uint32_t head_rows) {
    uint64_t head = row / head_rows, in_head = row % head_rows, half = head_rows / 2;
    return head * head_rows + in_head % half * 2 + in_head / half;
}

struct tm_source {
    char *path;
    char *tokenizer; /* the folder of its tokenizer's files; NULL: `path` */
    tm_buf config;
    uint32_t n;
    size_t cap;
    source_entry *entry; /* in byte order of the names */
    /* folder: */
    uint32_t n_shards;
    tm_st **shard;
    bnb_tensor *bnb;
    bnb_map *bnb_maps;
    struct int_form *ints_form; /* what config.json says of integer codes; NULL: there are none */
    struct int_tensor *ints;
    struct int_strip *strip;
    /* a caller's: */
    tm_made_tensors made;
    /* GGUF: */
    tm_gguf *gguf;
    tm_buf names; /* HF names, each NUL-terminated */
    /* base and adapter: all of the above but path, config and entries is the base's */
    struct merge *merge;
};

tm_status tm_source_open_folder(tm_source *src, bool weights);
tm_status tm_source_open_config(tm_source *src, bool weights);         /* a config.json alone */
bool tm_source_from_tokenizer(const tm_source *src, const char *name); /* that file is in src->tokenizer */
tm_status tm_source_folder_file(const tm_source *src, const char *name, tm_buf *out, bool *found);
tm_status tm_source_folder_copy(const tm_source *src, const char *name, const char *dir, bool *found);
tm_status tm_source_write_other_files(const tm_source *src, const char *dir);
/* tm_source_write_side_files, with config.json's quantization_config (JSON; NULL: none). */
tm_status tm_source_write_side_files_of(const tm_source *src, const char *dir, tm_fmt dtype, const char *quantisation);
bool tm_source_is_composite(const tm_source *src);
bool tm_composite_is_text(const char *name); /* of a tensor of such a model */
tm_status tm_source_open_gguf(tm_source *src, bool weights);
tm_status tm_source_gguf_file(const tm_source *src, const char *name, tm_buf *out, bool *found);
/* The tensor whose name is the first n bytes of `name`; -1: none. */
int64_t tm_source_find_part(const tm_source *src, const char *name, size_t n);
tm_status tm_source_read_merged(const tm_source *src, const struct merge_part *part, uint64_t first, uint64_t n,
                                float *dst);
void tm_source_close_merged(tm_source *src); /* what it does not share with its base */
tm_status tm_source_add(tm_source *src, const source_entry *entry);
tm_status tm_source_sort(tm_source *src); /* TM_EINPUT: two have one name */
tm_status tm_source_read_made(const tm_source *src, const source_entry *s, uint64_t first, uint64_t n, float *dst);

/* ---- bnb.c ---- */

/* `q`: the quantization_config. TM_EUNSUPPORTED: what is not read. */
tm_status tm_bnb_check_config(const tm_source *src, const tm_json *q);
/* Once entries are sorted: tensors of 4-bit blocks get their shape, and their companions leave the table. */
tm_status tm_bnb_fold(tm_source *src);
void tm_bnb_close(tm_source *src);
/* Of an entry with `bnb`; the range has been checked. */
void tm_bnb_piece(const source_entry *s, uint64_t first, uint64_t n, tm_source_piece *out);
void tm_bnb_decode(const source_entry *s, const tm_source_piece *p, const void *const *raw, uint64_t first, uint64_t n,
                   tm_elem to, void *out);
tm_status tm_bnb_read(const source_entry *s, uint64_t first, uint64_t n, float *dst); /* any range; checks it */
void tm_bnb_forget(const source_entry *s);

/* ---- ints_config.c, ints.c, ints_values.c, ints_read.c: the same of integer codes ---- */

/* How config.json says that the weights are quantised, if it does; what is not read is refused. */
tm_status tm_source_quantisation(tm_source *src);
tm_status tm_ints_fold(tm_source *src);
void tm_ints_close(tm_source *src);
void tm_ints_piece(const source_entry *s, uint64_t first, uint64_t n, tm_source_piece *out);
void tm_ints_decode(const source_entry *s, const tm_source_piece *p, const void *const *raw, uint64_t first, uint64_t n,
                    tm_elem to, void *out);
tm_status tm_ints_read(const source_entry *s, uint64_t first, uint64_t n, float *dst);
void tm_ints_forget(const source_entry *s);

#endif
