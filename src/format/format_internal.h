/* What the files of this folder share. Not for others. */
#ifndef TIDEMILL_FORMAT_INTERNAL_H
#define TIDEMILL_FORMAT_INTERNAL_H

#include "format/format.h"
#include "io/file/file.h"

enum {
    TM_FORMAT_CHUNK = 64 * 1024, /* stack that one read or write passes through; a whole number of any block */
    TM_ST_MAX_HEADER = 100 * 1000 * 1000,
    TM_FORMAT_MAX_TEXT = 64 * 1024 * 1024 /* side files */
};

/* ---- names.c: order without recursion or hidden allocations, look-up by name ---- */

typedef bool (*tm_less_fn)(const void *ctx, uint32_t a, uint32_t b);
/* Sorts indices; heap sort, so that hostile input cannot make it slow. */
void tm_sort_indices(uint32_t *order, uint32_t n, tm_less_fn less, const void *ctx);
typedef const char *(*tm_name_fn)(const void *ctx, uint32_t i);
/* order[] = 0..n-1 in byte order of their names. False, with the two in order[*dup] and order[*dup + 1], if two are
 * equal. */
bool tm_sort_names(uint32_t *order, uint32_t n, tm_name_fn name, const void *ctx, uint32_t *dup);
int64_t tm_find_name(const uint32_t *order, uint32_t n, tm_name_fn name, const void *ctx, const char *wanted);
bool tm_utf8_valid(const char *s, size_t n); /* and without NUL */
/* Product of a shape; false on overflow. */
bool tm_shape_elements(const uint64_t *shape, uint32_t ndim, uint64_t *elements);
/* DIR/NAME as a new string; NULL without memory. */
char *tm_path_join(const char *dir, const char *name);
/* DIR/NAME with these bytes, written beside and renamed. */
tm_status tm_format_write_file(const char *dir, const char *name, const void *bytes, size_t n);

/* ---- blocks.c, encode.c, kquants.c, weighed.c ---- */

/* Where columns matter more or less: values are elements [first, first + n) of rows of `width`, whose columns weigh
 * importance[width]. importance NULL: all the same. */
typedef struct tm_encode_by {
    const float *importance;
    uint64_t width, first;
} tm_encode_by;

void tm_block_decode(tm_fmt fmt, const uint8_t *stored, size_t n, float *out);
/* One block of 256, as the others; importance[256], or NULL: ggml's reference. */
void tm_encode_q4_k(const float *x, const float *importance, uint8_t *b);
void tm_encode_q5_k(const float *x, const float *importance, uint8_t *b);
void tm_encode_q6_k(const float *x, const float *importance, uint8_t *b);
/* One block of 32, importance[32]. */
void tm_weigh_q4_0(const float *x, const float *importance, uint8_t *b);
void tm_weigh_q4_1(const float *x, const float *importance, uint8_t *b);
void tm_weigh_q5_0(const float *x, const float *importance, uint8_t *b);
void tm_weigh_q5_1(const float *x, const float *importance, uint8_t *b);
/* by: NULL, or how much columns matter. */
tm_status tm_block_encode(tm_fmt fmt, const float *values, size_t n, const tm_encode_by *by, uint8_t *out);
bool tm_block_is_written(tm_fmt fmt); /* there is a way back */
bool tm_block_is_weighed(tm_fmt fmt); /* importance has a say in its codes */
/* fmt, or the type in its place that rows of `width` elements are whole blocks of (llama.cpp's choice; F16 in the end). */
tm_fmt tm_block_for_rows(tm_fmt fmt, uint64_t width);
float tm_f16_to_f32(uint16_t h);
uint16_t tm_f32_to_f16(float f);

/* ---- safetensors_header.c ---- */

typedef struct tm_st_meta {
    char *key, *value;
} tm_st_meta;
struct tm_st {
    tm_file *file;
    uint64_t data_offset; /* 8 + header bytes */
    uint32_t n;
    size_t cap;
    tm_st_info *info;
    uint32_t *by_name;
    uint32_t n_meta;
    size_t cap_meta;
    tm_st_meta *meta;
};
tm_status tm_st_read_header(tm_st *st);

/* ---- any reader: a range of elements through a stack buffer ---- */

typedef struct tm_elements {
    tm_file *file;
    const char *name; /* of the tensor, for messages */
    tm_fmt fmt;
    uint64_t elements, offset; /* in the file */
} tm_elements;
tm_status tm_elements_f32(const tm_elements *e, uint64_t first, uint64_t n, float *dst);
tm_status tm_elements_raw(const tm_elements *e, uint64_t first, uint64_t n, void *dst); /* plain types */
tm_status tm_range_check(const char *path, const char *name, uint64_t first, uint64_t n, uint64_t elements);

/* ---- quantise.c ---- */

/* By its name a Linear that readers of a quantised folder take to be quantised, unless config.json names it: lm_head they
 * leave alone by themselves. */
bool tm_taken_for_linear(const char *name, uint32_t ndim);

#endif
