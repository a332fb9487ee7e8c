/* Values of a GGUF file's keys and elements of its tensors, read when asked for. */
#include "format/gguf_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The key's entry, or NULL with *found false; without `found`, an absent key is an error. */
static tm_status look_up(const tm_gguf *g, const char *key, bool *found, const tm_gguf_kv **kv) {
    *kv = tm_gguf_kv_find(g, key);
    if (found) *found = *kv != NULL;
    if (!*kv && !found) return tm_fail(TM_EINPUT, "%s: the key '%s' is missing", tm_gguf_path(g), key);
    return TM_OK;
}

static tm_status wrong_type(const tm_gguf *g, const tm_gguf_kv *kv, const char *wanted) {
    return tm_fail(TM_EINPUT, "%s: '%s' is not %s", tm_gguf_path(g), kv->key, wanted);
}

/* A scalar as a double and, if it is an integer or a bool, as an int64 (false where that cannot be). */
static bool scalar_value(tm_gguf_type type, const uint8_t bytes[8], double *real, int64_t *integer) {
    uint64_t u = 0;
    float f;
    memcpy(&u, bytes, tm_gguf_scalar_bytes(type));
    memcpy(&f, bytes, sizeof f);
    switch (type) {
    case TM_GGUF_I8:
        *integer = (int8_t)u;
        break;
    case TM_GGUF_I16:
        *integer = (int16_t)u;
        break;
    case TM_GGUF_I32:
        *integer = (int32_t)u;
        break;
    case TM_GGUF_F32:
        *real = (double)f;
        return false;
    case TM_GGUF_F64:
        memcpy(real, bytes, sizeof *real);
        return false;
    default:
        *integer = (int64_t)u;
        break;
    }
    *real = type == TM_GGUF_U64 ? (double)u : (double)*integer;
    return type != TM_GGUF_U64 || u <= INT64_MAX;
}

static tm_status read_scalar(const tm_gguf *g, const tm_gguf_kv *kv, double *real, int64_t *integer, bool *is_integer) {
    uint8_t bytes[8] = {0};
    uint32_t n = tm_gguf_scalar_bytes(kv->type);
    if (n == 0) return wrong_type(g, kv, "a number");
    TM_TRY(tm_file_read_at(g->file, kv->offset, bytes, n));
    *is_integer = scalar_value(kv->type, bytes, real, integer);
    return TM_OK;
}

tm_status tm_gguf_uint(const tm_gguf *g, const char *key, uint64_t *out, bool *found) {
    const tm_gguf_kv *kv;
    double real = 0;
    int64_t v = 0;
    bool is_integer = false;
    TM_TRY(look_up(g, key, found, &kv));
    if (!kv) return TM_OK;
    TM_TRY(read_scalar(g, kv, &real, &v, &is_integer));
    if (!is_integer || v < 0 || kv->type == TM_GGUF_BOOL) return wrong_type(g, kv, "an integer that is not negative");
    *out = (uint64_t)v;
    return TM_OK;
}

tm_status tm_gguf_float(const tm_gguf *g, const char *key, double *out, bool *found) {
    const tm_gguf_kv *kv;
    int64_t v = 0;
    bool is_integer = false;
    TM_TRY(look_up(g, key, found, &kv));
    if (!kv) return TM_OK;
    TM_TRY(read_scalar(g, kv, out, &v, &is_integer));
    return isfinite(*out) && kv->type != TM_GGUF_BOOL ? TM_OK : wrong_type(g, kv, "a finite number");
}

tm_status tm_gguf_bool(const tm_gguf *g, const char *key, bool *out, bool *found) {
    const tm_gguf_kv *kv;
    double real = 0;
    int64_t v = 0;
    bool is_integer = false;
    TM_TRY(look_up(g, key, found, &kv));
    if (!kv) return TM_OK;
    if (kv->type != TM_GGUF_BOOL) return wrong_type(g, kv, "true or false");
    TM_TRY(read_scalar(g, kv, &real, &v, &is_integer));
    *out = v != 0;
    return TM_OK;
}

tm_status tm_gguf_string(const tm_gguf *g, const char *key, size_t max, tm_buf *out, bool *found) {
    const tm_gguf_kv *kv;
    TM_TRY(look_up(g, key, found, &kv));
    if (!kv) return TM_OK;
    if (kv->type != TM_GGUF_STRING) return wrong_type(g, kv, "a string");
    if (kv->count > max)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " bytes, more than %zu", tm_gguf_path(g), key, kv->count,
                       max);
    TM_TRY(tm_buf_reserve(out, kv->count + 1));
    if (kv->count) TM_TRY(tm_file_read_at(g->file, kv->offset, out->data + out->len, kv->count));
    if (!tm_utf8_valid(out->data + out->len, kv->count))
        return tm_fail(TM_EINPUT, "%s: '%s' is not UTF-8 text", tm_gguf_path(g), key);
    out->len += kv->count;
    out->data[out->len] = 0;
    return TM_OK;
}

/* ---- arrays ---- */

void tm_gguf_array_open(tm_gguf_array *a, const tm_gguf *g, const tm_gguf_kv *kv) {
    a->gguf = g;
    a->kv = kv;
    a->index = 0;
    a->pos = kv->offset;
    a->have = a->at = 0;
    a->text = (tm_buf){0};
}

void tm_gguf_array_close(tm_gguf_array *a) {
    tm_buf_free(&a->text);
}

static tm_status array_bytes(tm_gguf_array *a, void *out, size_t n) {
    uint8_t *to = out;
    while (n > 0) {
        if (a->at == a->have) {
            uint64_t left = tm_file_size(a->gguf->file) - tm_min_u64(a->pos, tm_file_size(a->gguf->file));
            a->have = (size_t)tm_min_u64(sizeof a->buffer, left);
            a->at = 0;
            if (a->have == 0) return wrong_type(a->gguf, a->kv, "complete: the file ends in it");
            TM_TRY(tm_file_read_at(a->gguf->file, a->pos, a->buffer, a->have));
        }
        size_t now = tm_min_u64(n, a->have - a->at);
        memcpy(to, a->buffer + a->at, now);
        a->at += now;
        a->pos += now;
        to += now;
        n -= now;
    }
    return TM_OK;
}

tm_status tm_gguf_array_string(tm_gguf_array *a, const char **text, size_t *len) {
    uint64_t n;
    TM_ASSERT(a->index < a->kv->count);
    if (a->kv->element != TM_GGUF_STRING) return wrong_type(a->gguf, a->kv, "an array of strings");
    TM_TRY(array_bytes(a, &n, 8));
    if (n > TM_GGUF_MAX_ITEM)
        return tm_fail(TM_EINPUT, "%s: '%s'[%" PRIu64 "] has %" PRIu64 " bytes, more than %d", tm_gguf_path(a->gguf),
                       a->kv->key, a->index, n, TM_GGUF_MAX_ITEM);
    tm_buf_clear(&a->text);
    TM_TRY(tm_buf_reserve(&a->text, n + 1));
    TM_TRY(array_bytes(a, a->text.data, n));
    a->text.data[n] = 0;
    a->text.len = n;
    if (!tm_utf8_valid(a->text.data, n))
        return tm_fail(TM_EINPUT, "%s: '%s'[%" PRIu64 "] is not UTF-8 text", tm_gguf_path(a->gguf), a->kv->key,
                       a->index);
    a->index++;
    *text = a->text.data;
    *len = n;
    return TM_OK;
}

tm_status tm_gguf_array_number(tm_gguf_array *a, double *out) {
    uint8_t bytes[8] = {0};
    int64_t v = 0;
    uint32_t n = tm_gguf_scalar_bytes(a->kv->element);
    TM_ASSERT(a->index < a->kv->count);
    if (n == 0) return wrong_type(a->gguf, a->kv, "an array of numbers");
    TM_TRY(array_bytes(a, bytes, n));
    scalar_value(a->kv->element, bytes, out, &v);
    a->index++;
    return TM_OK;
}

/* ---- tensors ---- */

tm_status tm_gguf_read_raw(const tm_gguf *g, uint32_t tensor, uint64_t byte_offset, uint64_t n, void *dst) {
    const tm_gguf_tensor *t = tm_gguf_tensor_get(g, tensor);
    if (byte_offset > t->bytes || n > t->bytes - byte_offset)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " bytes; %" PRIu64 " from %" PRIu64 " on are not there",
                       tm_gguf_path(g), t->name, t->bytes, n, byte_offset);
    return n ? tm_file_read_at(g->file, t->offset + byte_offset, dst, n) : TM_OK;
}

tm_status tm_gguf_read_f32(const tm_gguf *g, uint32_t tensor, uint64_t first, uint64_t n, float *dst) {
    const tm_gguf_tensor *t = tm_gguf_tensor_get(g, tensor);
    const tm_elements e = {g->file, t->name, t->fmt, t->elements, t->offset};
    return tm_elements_f32(&e, first, n, dst);
}
