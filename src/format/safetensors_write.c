#include "format/format_internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct entry {
    char *name;
    tm_fmt fmt;
    uint32_t ndim;
    uint64_t shape[TM_FMT_MAX_DIMS];
    uint64_t offset, bytes, written; /* offset: from the first byte of data */
} entry;

enum { FLUSH_BYTES = 64 * 1024 * 1024 };

struct tm_st_writer {
    tm_out *out;
    char *path;
    tm_st_meta *meta;
    uint32_t n_meta;
    entry *tensor;
    uint32_t n;
    size_t cap;
    bool started;         /* the header is written, tensors have their places */
    uint64_t data_offset; /* 8 + header */
    uint64_t unflushed;
};

tm_status tm_st_writer_create(tm_st_writer **out, const char *path) {
    tm_st_writer *w = tm_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return tm_nomem(sizeof *w);
    tm_status rc;
    w->path = tm_strdup(path);
    if (!w->path) {
        rc = tm_nomem(strlen(path));
        goto done;
    }
    TM_GO(tm_out_create_small(&w->out, path, 0)); /* everything is written at its place: nothing is buffered */
    *out = w;
    return TM_OK;
done:
    tm_st_writer_abandon(w);
    return rc;
}

void tm_st_writer_abandon(tm_st_writer *w) {
    if (!w) return;
    for (uint32_t i = 0; i < w->n; i++) tm_free(w->tensor[i].name);
    for (uint32_t i = 0; i < w->n_meta; i++) {
        tm_free(w->meta[i].key);
        tm_free(w->meta[i].value);
    }
    tm_free(w->tensor);
    tm_free(w->meta);
    tm_free(w->path);
    tm_out_abandon(w->out);
    tm_free(w);
}

tm_status tm_st_writer_metadata(tm_st_writer *w, const char *key, const char *value) {
    TM_ASSERT(!w->started);
    tm_st_meta *m = tm_realloc(w->meta, (w->n_meta + 1) * sizeof *m);
    if (!m) return tm_nomem((w->n_meta + 1) * sizeof *m);
    w->meta = m;
    m[w->n_meta] = (tm_st_meta){tm_strdup(key), tm_strdup(value)};
    w->n_meta++;
    return m[w->n_meta - 1].key && m[w->n_meta - 1].value ? TM_OK : tm_nomem(strlen(key) + strlen(value));
}

tm_status tm_st_writer_add(tm_st_writer *w, const char *name, tm_fmt fmt, uint32_t ndim, const uint64_t *shape,
                           uint32_t *index) {
    entry t = {.fmt = fmt, .ndim = ndim};
    uint64_t elements = 0;
    TM_ASSERT(!w->started && ndim <= TM_FMT_MAX_DIMS);
    if (!tm_fmt_get(fmt)->safetensors)
        return tm_fail(TM_EUNSUPPORTED, "%s: safetensors has no type %s", w->path, tm_fmt_get(fmt)->name);
    if (ndim) memcpy(t.shape, shape, ndim * sizeof *shape);
    if (!tm_shape_elements(shape, ndim, &elements) || !tm_fmt_bytes(fmt, elements, &t.bytes))
        return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", w->path, name);
    TM_TRY(tm_grow(&w->tensor, &w->cap, (size_t)w->n + 1, sizeof *w->tensor));
    t.name = tm_strdup(name);
    if (!t.name) return tm_nomem(strlen(name));
    w->tensor[w->n] = t;
    *index = w->n++;
    return TM_OK;
}

static const char *entry_name(const void *ctx, uint32_t i) {
    return ((const entry *)ctx)[i].name;
}

/* Wide types first, so that each tensor is aligned to its elements; otherwise in the order in which they were added. */
static bool place_less(const void *ctx, uint32_t a, uint32_t b) {
    const entry *t = ctx;
    uint32_t x = tm_fmt_get(t[a].fmt)->block_bytes, y = tm_fmt_get(t[b].fmt)->block_bytes;
    return x != y ? x > y : a < b;
}

static tm_status place(tm_st_writer *w, uint32_t *order) {
    uint32_t dup;
    if (!tm_sort_names(order, w->n, entry_name, w->tensor, &dup))
        return tm_fail(TM_EINPUT, "%s: two tensors are called '%s'", w->path, w->tensor[order[dup]].name);
    for (uint32_t i = 0; i < w->n; i++) order[i] = i;
    tm_sort_indices(order, w->n, place_less, w->tensor);
    uint64_t at = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        entry *t = &w->tensor[order[i]];
        t->offset = at;
        if (!tm_add_u64(at, t->bytes, &at)) return tm_fail(TM_EINPUT, "%s: its size overflows", w->path);
    }
    return TM_OK;
}

static void write_entry(tm_json_writer *j, const entry *t) {
    tm_jw_field_object(j, t->name);
    tm_jw_field_str(j, "dtype", tm_fmt_get(t->fmt)->name);
    tm_jw_field_array(j, "shape");
    for (uint32_t d = 0; d < t->ndim; d++) tm_jw_uint(j, t->shape[d]);
    tm_jw_array_end(j);
    tm_jw_field_array(j, "data_offsets");
    tm_jw_uint(j, t->offset);
    tm_jw_uint(j, t->offset + t->bytes);
    tm_jw_array_end(j);
    tm_jw_object_end(j);
}

static tm_status header_json(const tm_st_writer *w, const uint32_t *order, tm_buf *json) {
    tm_json_writer j;
    tm_jw_init(&j, json, 0);
    tm_jw_object(&j);
    tm_jw_field_object(&j, "__metadata__");
    tm_jw_field_str(&j, "format", "pt");
    for (uint32_t i = 0; i < w->n_meta; i++) {
        tm_jw_field_str(&j, w->meta[i].key, w->meta[i].value);
    }
    tm_jw_object_end(&j);
    for (uint32_t i = 0; i < w->n; i++) write_entry(&j, &w->tensor[order[i]]);
    tm_jw_object_end(&j);
    return tm_jw_end(&j);
}

/* Gives the tensors their places and writes the header. */
static tm_status start(tm_st_writer *w) {
    tm_buf json = {0};
    tm_status rc;
    uint32_t *order = tm_malloc((w->n + 1) * sizeof *order);
    if (!order) return tm_nomem((w->n + 1) * sizeof *order);
    TM_GO(place(w, order));
    TM_GO(header_json(w, order, &json));
    while (json.len % 8) TM_GO(tm_buf_append(&json, " ", 1));
    if (json.len > TM_ST_MAX_HEADER) {
        rc = tm_fail(TM_EUNSUPPORTED, "%s: a header of %zu bytes is more than safetensors allows", w->path, json.len);
        goto done;
    }
    uint64_t length = json.len;
    TM_GO(tm_out_write_at(w->out, 0, &length, 8));
    TM_GO(tm_out_write_at(w->out, 8, json.data, json.len));
    w->data_offset = 8 + length;
    w->started = true;
done:
    tm_buf_free(&json);
    tm_free(order);
    return rc;
}

tm_status tm_st_writer_write(tm_st_writer *w, uint32_t i, uint64_t byte_offset, const void *bytes, uint64_t n) {
    if (!w->started) TM_TRY(start(w));
    TM_ASSERT(i < w->n);
    entry *t = &w->tensor[i];
    TM_ASSERT(byte_offset <= t->bytes && n <= t->bytes - byte_offset);
    if (n == 0) return TM_OK;
    TM_TRY(tm_out_write_at(w->out, w->data_offset + t->offset + byte_offset, bytes, n));
    t->written += n;
    w->unflushed += n;
    if (w->unflushed < FLUSH_BYTES) return TM_OK;
    w->unflushed = 0;
    return tm_out_flush(w->out);
}

tm_status tm_st_writer_write_f32(tm_st_writer *w, uint32_t i, uint64_t first, uint64_t n, const float *v) {
    uint8_t narrow[TM_FORMAT_CHUNK];
    TM_ASSERT(i < w->n);
    tm_fmt fmt = w->tensor[i].fmt;
    if (fmt == TM_FMT_F32) return tm_st_writer_write(w, i, first * 4, v, n * 4);
    for (uint64_t done = 0; done < n;) {
        uint64_t take = tm_min_u64(n - done, TM_FORMAT_CHUNK / 2);
        TM_TRY(tm_fmt_encode(fmt, v + done, take, narrow));
        TM_TRY(tm_st_writer_write(w, i, (first + done) * 2, narrow, take * 2));
        done += take;
    }
    return TM_OK;
}

static tm_status check_complete(const tm_st_writer *w) {
    for (uint32_t i = 0; i < w->n; i++)
        if (w->tensor[i].written != w->tensor[i].bytes)
            return tm_fail(TM_EBUG, "%s: %" PRIu64 " of %" PRIu64 " bytes of '%s' were written", w->path,
                           w->tensor[i].written, w->tensor[i].bytes, w->tensor[i].name);
    return TM_OK;
}

tm_status tm_st_writer_commit(tm_st_writer *w) {
    tm_status rc = w->started ? TM_OK : start(w);
    if (rc == TM_OK) rc = check_complete(w);
    if (rc == TM_OK) {
        rc = tm_out_commit(w->out);
        w->out = NULL;
    }
    tm_st_writer_abandon(w);
    return rc;
}
