/* Writes a .gguf file: keys into memory, tensors into a table, then everything in one pass. */
#include "format/gguf_internal.h"

#include <inttypes.h>
#include <string.h>

enum { FLUSH_BYTES = 64 * 1024 * 1024 };

typedef struct entry {
    uint64_t offset, bytes; /* offset: from the first byte of data */
} entry;

struct tm_gguf_writer {
    tm_out *out;
    char *path;
    tm_buf kv, table;
    uint64_t n_kv;
    entry *tensor;
    uint32_t n;
    size_t cap;
    uint64_t data_bytes; /* of all tensors, padded */
    uint32_t at;         /* the tensor whose bytes come next */
    uint64_t at_bytes;   /* of it already written */
    uint64_t unflushed;
    tm_status status; /* of the keys */
};

tm_status tm_gguf_writer_create(tm_gguf_writer **out, const char *path) {
    tm_status rc;
    tm_gguf_writer *w = tm_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return tm_nomem(sizeof *w);
    w->path = tm_strdup(path);
    if (!w->path) {
        rc = tm_nomem(strlen(path));
        goto done;
    }
    TM_GO(tm_out_create(&w->out, path));
    *out = w;
    return TM_OK;
done:
    tm_gguf_writer_abandon(w);
    return rc;
}

void tm_gguf_writer_abandon(tm_gguf_writer *w) {
    if (!w) return;
    tm_out_abandon(w->out);
    tm_buf_free(&w->kv);
    tm_buf_free(&w->table);
    tm_free(w->tensor);
    tm_free(w->path);
    tm_free(w);
}

/* ---- keys ---- */

static void put(tm_gguf_writer *w, const void *bytes, size_t n) {
    if (w->status == TM_OK) w->status = tm_buf_append(&w->kv, bytes, n);
}

static void put_counted(tm_gguf_writer *w, const char *s, uint64_t n) {
    put(w, &n, 8);
    put(w, s, n);
}

static void put_key(tm_gguf_writer *w, const char *key, tm_gguf_type type) {
    uint32_t t = type;
    put_counted(w, key, strlen(key));
    put(w, &t, 4);
    w->n_kv++;
}

void tm_gguf_put_string(tm_gguf_writer *w, const char *key, const char *s, size_t n) {
    put_key(w, key, TM_GGUF_STRING);
    put_counted(w, s, n);
}

void tm_gguf_put_u32(tm_gguf_writer *w, const char *key, uint32_t v) {
    put_key(w, key, TM_GGUF_U32);
    put(w, &v, 4);
}

void tm_gguf_put_f32(tm_gguf_writer *w, const char *key, float v) {
    put_key(w, key, TM_GGUF_F32);
    put(w, &v, 4);
}

void tm_gguf_put_bool(tm_gguf_writer *w, const char *key, bool v) {
    uint8_t b = v;
    put_key(w, key, TM_GGUF_BOOL);
    put(w, &b, 1);
}

void tm_gguf_put_array(tm_gguf_writer *w, const char *key, tm_gguf_type element, uint64_t count) {
    uint32_t e = element;
    put_key(w, key, TM_GGUF_ARRAY);
    put(w, &e, 4);
    put(w, &count, 8);
}

void tm_gguf_item_string(tm_gguf_writer *w, const char *s, size_t n) {
    put_counted(w, s, n);
}
void tm_gguf_item_bytes(tm_gguf_writer *w, const void *scalar, size_t n) {
    put(w, scalar, n);
}

/* ---- tensors ---- */

tm_status tm_gguf_writer_add(tm_gguf_writer *w, const char *name, tm_fmt fmt, uint32_t ndim, const uint64_t *shape) {
    const tm_fmt_info *f = tm_fmt_get(fmt);
    uint64_t elements, length = strlen(name);
    uint32_t type = (uint32_t)f->ggml;
    entry t = {.offset = w->data_bytes};
    TM_ASSERT(f->ggml >= 0 && ndim >= 1 && ndim <= 4 && length <= TM_GGUF_MAX_NAME);
    if (!tm_shape_elements(shape, ndim, &elements) || !tm_fmt_bytes(fmt, elements, &t.bytes) ||
        !tm_add_u64(w->data_bytes, tm_round_up(t.bytes, TM_GGUF_ALIGNMENT), &w->data_bytes))
        return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", w->path, name);
    TM_TRY(tm_grow(&w->tensor, &w->cap, (size_t)w->n + 1, sizeof *w->tensor));
    w->tensor[w->n++] = t;
    TM_TRY(tm_buf_append(&w->table, &length, 8));
    TM_TRY(tm_buf_append(&w->table, name, length));
    TM_TRY(tm_buf_append(&w->table, &ndim, 4));
    for (uint32_t d = ndim; d-- > 0;) TM_TRY(tm_buf_append(&w->table, &shape[d], 8)); /* fastest first */
    TM_TRY(tm_buf_append(&w->table, &type, 4));
    return tm_buf_append(&w->table, &t.offset, 8);
}

static tm_status pad(tm_gguf_writer *w, uint64_t written) {
    static const char zero[TM_GGUF_ALIGNMENT];
    return tm_out_append(w->out, zero, tm_round_up(written, TM_GGUF_ALIGNMENT) - written);
}

tm_status tm_gguf_writer_start(tm_gguf_writer *w) {
    const uint32_t version = 3;
    const uint64_t n_tensors = w->n;
    TM_TRY(w->status);
    TM_TRY(tm_out_append(w->out, "GGUF", 4));
    TM_TRY(tm_out_append(w->out, &version, 4));
    TM_TRY(tm_out_append(w->out, &n_tensors, 8));
    TM_TRY(tm_out_append(w->out, &w->n_kv, 8));
    TM_TRY(tm_out_append(w->out, w->kv.data, w->kv.len));
    TM_TRY(tm_out_append(w->out, w->table.data, w->table.len));
    return pad(w, 24 + w->kv.len + w->table.len);
}

tm_status tm_gguf_writer_data(tm_gguf_writer *w, const void *bytes, uint64_t n) {
    TM_ASSERT(w->at < w->n && n <= w->tensor[w->at].bytes - w->at_bytes);
    TM_TRY(tm_out_append(w->out, bytes, n));
    w->at_bytes += n;
    w->unflushed += n;
    if (w->at_bytes == w->tensor[w->at].bytes) {
        TM_TRY(pad(w, w->at_bytes));
        w->at++;
        w->at_bytes = 0;
    }
    if (w->unflushed < FLUSH_BYTES) return TM_OK;
    w->unflushed = 0;
    return tm_out_flush(w->out);
}

tm_status tm_gguf_writer_commit(tm_gguf_writer *w) {
    tm_status rc = TM_OK;
    if (w->at != w->n)
        rc = tm_fail(TM_EBUG, "%s: %u of %u tensors were written", w->path, w->at, w->n);
    else {
        rc = tm_out_commit(w->out);
        w->out = NULL;
    }
    tm_gguf_writer_abandon(w);
    return rc;
}
