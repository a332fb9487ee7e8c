#include "gguf_bytes.h"

#include <string.h>

static void put(tm_buf *b, const void *p, size_t n) {
    OK(tm_buf_append(b, p, n));
}
void g_u32(tm_buf *b, uint32_t v) {
    put(b, &v, 4);
}
void g_u64(tm_buf *b, uint64_t v) {
    put(b, &v, 8);
}
void g_f32(tm_buf *b, float v) {
    put(b, &v, 4);
}
void g_text(tm_buf *b, const char *s) {
    g_u64(b, strlen(s));
    put(b, s, strlen(s));
}

void g_key(gguf_bytes *g, const char *key, uint32_t type) {
    g_text(&g->kv, key);
    g_u32(&g->kv, type);
    g->n_kv++;
}
void g_kv_u32(gguf_bytes *g, const char *key, uint32_t v) {
    g_key(g, key, G_U32);
    g_u32(&g->kv, v);
}
void g_kv_f32(gguf_bytes *g, const char *key, float v) {
    g_key(g, key, G_F32);
    g_f32(&g->kv, v);
}
void g_kv_text(gguf_bytes *g, const char *key, const char *s) {
    g_key(g, key, G_STRING);
    g_text(&g->kv, s);
}
void g_kv_texts(gguf_bytes *g, const char *key, const char *const *s, uint64_t n) {
    g_key(g, key, G_ARRAY);
    g_u32(&g->kv, G_STRING);
    g_u64(&g->kv, n);
    for (uint64_t i = 0; i < n; i++) g_text(&g->kv, s[i]);
}

void g_tensor(gguf_bytes *g, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, const void *data,
              size_t bytes) {
    static const char zero[32];
    g_text(&g->table, name);
    g_u32(&g->table, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) g_u64(&g->table, dims[i]);
    g_u32(&g->table, type);
    g_u64(&g->table, g->data.len);
    put(&g->data, data, bytes);
    put(&g->data, zero, (32 - bytes % 32) % 32);
    g->n_tensors++;
}

void g_f32s(gguf_bytes *g, const char *name, uint64_t width, uint64_t rows, float first) {
    tm_buf b = {0};
    for (uint64_t i = 0; i < width * (rows ? rows : 1); i++) g_f32(&b, first + (float)i);
    g_tensor(g, name, rows ? 2 : 1, (uint64_t[]){width, rows}, G_TYPE_F32, b.data, b.len);
    tm_buf_free(&b);
}

void g_llama(gguf_bytes *g, uint64_t vocab) {
    g_kv_text(g, "general.architecture", "llama");
    g_kv_u32(g, "llama.block_count", 1);
    g_kv_u32(g, "llama.context_length", 64);
    g_kv_u32(g, "llama.embedding_length", 8);
    g_kv_u32(g, "llama.feed_forward_length", 16);
    g_kv_u32(g, "llama.attention.head_count", 2);
    g_kv_u32(g, "llama.attention.head_count_kv", 1);
    g_kv_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    g_f32s(g, "token_embd.weight", 8, vocab, 0);
    g_f32s(g, "blk.0.attn_norm.weight", 8, 0, 1000);
    g_f32s(g, "blk.0.attn_q.weight", 8, 8, 2000);
    g_f32s(g, "blk.0.attn_k.weight", 8, 4, 3000);
    g_f32s(g, "blk.0.attn_v.weight", 8, 4, 4000);
    g_f32s(g, "blk.0.attn_output.weight", 8, 8, 5000);
    g_f32s(g, "blk.0.ffn_norm.weight", 8, 0, 6000);
    g_f32s(g, "blk.0.ffn_gate.weight", 8, 16, 7000);
    g_f32s(g, "blk.0.ffn_up.weight", 8, 16, 8000);
    g_f32s(g, "blk.0.ffn_down.weight", 16, 8, 9000);
    g_f32s(g, "output_norm.weight", 8, 0, 10000);
}

void g_finish(gguf_bytes *g, tm_buf *file) {
    tm_buf_clear(file);
    put(file, "GGUF", 4);
    g_u32(file, 3);
    g_u64(file, g->n_tensors);
    g_u64(file, g->n_kv);
    if (g->kv.len) put(file, g->kv.data, g->kv.len);
    if (g->table.len) put(file, g->table.data, g->table.len);
    while (file->len % (g->alignment ? g->alignment : 32)) put(file, "", 1);
    if (g->data.len) put(file, g->data.data, g->data.len);
    tm_buf_free(&g->kv);
    tm_buf_free(&g->table);
    tm_buf_free(&g->data);
    *g = (gguf_bytes){0};
}

void g_write(gguf_bytes *g, const char *path) {
    tm_buf file = {0};
    g_finish(g, &file);
    write_file(path, file.data, file.len);
    tm_buf_free(&file);
}
