/* GGUF files laid byte by byte, without the writer under test. */
#ifndef TIDEMILL_GGUF_BYTES_H
#define TIDEMILL_GGUF_BYTES_H

#include "world.h"

enum { G_U8, G_I8, G_U16, G_I16, G_U32, G_I32, G_F32, G_BOOL, G_STRING, G_ARRAY, G_U64, G_I64, G_F64 };
enum {
    G_TYPE_F32 = 0,
    G_TYPE_F16 = 1,
    G_TYPE_Q4_0 = 2,
    G_TYPE_Q4_1 = 3,
    G_TYPE_Q8_0 = 8,
    G_TYPE_Q4_K = 12,
    G_TYPE_Q6_K = 14,
    G_TYPE_BF16 = 30
};

typedef struct gguf_bytes {
    tm_buf kv, table, data;
    uint64_t n_kv, n_tensors, alignment;
} gguf_bytes;

void g_u32(tm_buf *b, uint32_t v);
void g_u64(tm_buf *b, uint64_t v);
void g_f32(tm_buf *b, float v);
void g_text(tm_buf *b, const char *s); /* length, bytes */
void g_key(gguf_bytes *g, const char *key, uint32_t type);
void g_kv_u32(gguf_bytes *g, const char *key, uint32_t v);
void g_kv_f32(gguf_bytes *g, const char *key, float v);
void g_kv_text(gguf_bytes *g, const char *key, const char *s);
void g_kv_texts(gguf_bytes *g, const char *key, const char *const *s, uint64_t n);
/* dims: fastest first, as in the file. The data is appended, padded to 32. */
void g_tensor(gguf_bytes *g, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, const void *data,
              size_t bytes);
void g_f32s(gguf_bytes *g, const char *name, uint64_t width, uint64_t rows, float first); /* first, first + 1, ... */
/* The keys and tensors of a llama with one block: hidden 8, 2 heads of 4, 1 key head, vocabulary `vocab`. */
void g_llama(gguf_bytes *g, uint64_t vocab);
/* The file; frees everything in g. */
void g_finish(gguf_bytes *g, tm_buf *file);
void g_write(gguf_bytes *g, const char *path);

#endif
