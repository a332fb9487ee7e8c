/* A .gguf file's header: every length is checked against what is left of the file before it is used. */
#include "format/gguf_internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct parser {
    tm_gguf *g;
    const char *path;
    uint64_t pos, size; /* of the next unread byte; of the file */
    uint64_t alignment;
    size_t have, at; /* in buffer */
    uint8_t buffer[TM_FORMAT_CHUNK];
} parser;

static tm_status cut_off(const parser *p, const char *what) {
    return tm_fail(TM_EINPUT,
                   "%s: %s at byte %" PRIu64 " reaches past the end of the file (%" PRIu64
                   " bytes); it is cut off or damaged, fetch it again",
                   p->path, what, p->pos, p->size);
}

static tm_status take(parser *p, void *out, size_t n, const char *what) {
    if (n > p->size - p->pos) return cut_off(p, what);
    uint8_t *to = out;
    while (n > 0) {
        if (p->at == p->have) {
            p->have = (size_t)tm_min_u64(sizeof p->buffer, p->size - p->pos);
            p->at = 0;
            TM_TRY(tm_file_read_at(p->g->file, p->pos, p->buffer, p->have));
        }
        size_t now = tm_min_u64(n, p->have - p->at);
        memcpy(to, p->buffer + p->at, now);
        p->at += now;
        p->pos += now;
        to += now;
        n -= now;
    }
    return TM_OK;
}

static tm_status skip(parser *p, uint64_t n, const char *what) {
    if (n > p->size - p->pos) return cut_off(p, what);
    p->pos += n;
    if (n <= p->have - p->at)
        p->at += n;
    else
        p->at = p->have = 0;
    return TM_OK;
}

static tm_status take_u32(parser *p, uint32_t *v, const char *what) {
    return take(p, v, 4, what);
}
static tm_status take_u64(parser *p, uint64_t *v, const char *what) {
    return take(p, v, 8, what);
}

/* A name, as a new string. */
static tm_status take_name(parser *p, uint32_t max, const char *what, char **out) {
    uint64_t n;
    char name[TM_GGUF_MAX_KEY + 1];
    TM_TRY(take_u64(p, &n, what));
    if (n == 0 || n > max)
        return tm_fail(TM_EINPUT,
                       "%s: %s before byte %" PRIu64 " has a name of %" PRIu64 " bytes (1 to %u are allowed)", p->path,
                       what, p->pos, n, max);
    TM_TRY(take(p, name, n, what));
    if (!tm_utf8_valid(name, n))
        return tm_fail(TM_EINPUT, "%s: the name of %s before byte %" PRIu64 " is not UTF-8 text", p->path, what,
                       p->pos);
    *out = tm_strndup(name, n);
    return *out ? TM_OK : tm_nomem(n + 1);
}

uint32_t tm_gguf_scalar_bytes(tm_gguf_type type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type <= TM_GGUF_F64 ? bytes[type] : 0;
}

/* ---- keys and values ---- */

static tm_status skip_strings(parser *p, const tm_gguf_kv *kv) {
    if (kv->count > (p->size - p->pos) / 8) return cut_off(p, kv->key);
    for (uint64_t i = 0; i < kv->count; i++) {
        uint64_t n;
        TM_TRY(take_u64(p, &n, kv->key));
        TM_TRY(skip(p, n, kv->key));
    }
    return TM_OK;
}

static tm_status parse_array(parser *p, tm_gguf_kv *kv) {
    uint32_t element;
    uint64_t bytes;
    TM_TRY(take_u32(p, &element, kv->key));
    TM_TRY(take_u64(p, &kv->count, kv->key));
    kv->offset = p->pos;
    kv->element = (tm_gguf_type)element;
    if (element > TM_GGUF_F64)
        return tm_fail(TM_EINPUT, "%s: '%s' is an array of unknown type %u", p->path, kv->key, element);
    if (element == TM_GGUF_ARRAY)
        return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is an array of arrays, which is not read", p->path, kv->key);
    if (element == TM_GGUF_STRING) return skip_strings(p, kv);
    if (!tm_mul_u64(kv->count, tm_gguf_scalar_bytes(kv->element), &bytes)) return cut_off(p, kv->key);
    return skip(p, bytes, kv->key);
}

static tm_status parse_value(parser *p, tm_gguf_kv *kv) {
    uint32_t type;
    TM_TRY(take_u32(p, &type, kv->key));
    kv->type = (tm_gguf_type)type;
    kv->count = 1;
    if (type > TM_GGUF_F64) return tm_fail(TM_EINPUT, "%s: '%s' has the unknown type %u", p->path, kv->key, type);
    if (type == TM_GGUF_ARRAY) return parse_array(p, kv);
    if (type == TM_GGUF_STRING) TM_TRY(take_u64(p, &kv->count, kv->key));
    kv->offset = p->pos;
    return skip(p, type == TM_GGUF_STRING ? kv->count : tm_gguf_scalar_bytes(kv->type), kv->key);
}

static const char *kv_name(const void *ctx, uint32_t i) {
    return ((const tm_gguf_kv *)ctx)[i].key;
}
static const char *tensor_name(const void *ctx, uint32_t i) {
    return ((const tm_gguf_tensor *)ctx)[i].name;
}

static tm_status sort_by_name(const parser *p, uint32_t **order, uint32_t n, tm_name_fn name, const void *table) {
    uint32_t dup;
    *order = tm_malloc((n + 1) * sizeof **order);
    if (!*order) return tm_nomem((n + 1) * sizeof **order);
    if (tm_sort_names(*order, n, name, table, &dup)) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: '%s' is there twice", p->path, name(table, (*order)[dup]));
}

static tm_status parse_kvs(parser *p, uint64_t n) {
    tm_gguf *g = p->g;
    if (n > TM_GGUF_MAX_KVS || n > (p->size - p->pos) / 13) /* the shortest: u64, one byte, u32 (and a value) */
        return tm_fail(TM_EINPUT, "%s: %" PRIu64 " keys are more than the file can hold or %d", p->path, n,
                       TM_GGUF_MAX_KVS);
    g->kv = tm_calloc(n + 1, sizeof *g->kv);
    if (!g->kv) return tm_nomem(n * sizeof *g->kv);
    for (uint64_t i = 0; i < n; i++) {
        char *key = NULL;
        TM_TRY(take_name(p, TM_GGUF_MAX_KEY, "a key", &key));
        g->kv[g->n_kv].key = key;
        TM_TRY(parse_value(p, &g->kv[g->n_kv++]));
    }
    return sort_by_name(p, &g->kv_by_name, g->n_kv, kv_name, g->kv);
}

/* ---- tensors ---- */

static bool fmt_of(uint32_t ggml, tm_fmt *out) {
    for (int i = 0; i < TM_FMT_COUNT; i++)
        if (tm_fmt_get((tm_fmt)i)->ggml >= 0 && (uint32_t)tm_fmt_get((tm_fmt)i)->ggml == ggml) {
            *out = (tm_fmt)i;
            return true;
        }
    return false;
}

/* Elements and bytes; rows are whole blocks. */
static tm_status measure(const parser *p, tm_gguf_tensor *t) {
    const tm_fmt_info *f = tm_fmt_get(t->fmt);
    for (uint32_t d = 0; d < t->ndim; d++)
        if (t->shape[d] == 0) return tm_fail(TM_EINPUT, "%s: '%s' has a dimension of 0", p->path, t->name);
    if (!tm_shape_elements(t->shape, t->ndim, &t->elements) || t->elements > INT64_MAX)
        return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", p->path, t->name);
    if (t->shape[t->ndim - 1] % f->block != 0)
        return tm_fail(TM_EINPUT, "%s: rows of '%s' have %" PRIu64 " elements, but %s comes in blocks of %u", p->path,
                       t->name, t->shape[t->ndim - 1], f->name, f->block);
    if (!tm_fmt_bytes(t->fmt, t->elements, &t->bytes))
        return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", p->path, t->name);
    return TM_OK;
}

static tm_status parse_tensor(parser *p, tm_gguf_tensor *t) {
    uint32_t type;
    TM_TRY(take_u32(p, &t->ndim, t->name));
    if (t->ndim < 1 || t->ndim > 4)
        return tm_fail(TM_EINPUT, "%s: '%s' has %u dimensions (1 to 4 are allowed)", p->path, t->name, t->ndim);
    for (uint32_t d = t->ndim; d-- > 0;) TM_TRY(take_u64(p, &t->shape[d], t->name));
    TM_TRY(take_u32(p, &type, t->name));
    TM_TRY(take_u64(p, &t->offset, t->name));
    if (!fmt_of(type, &t->fmt))
        return tm_fail(TM_EUNSUPPORTED, "%s: '%s' has the type %u of ggml, which is not known here", p->path, t->name,
                       type);
    return measure(p, t);
}

static tm_status parse_tensors(parser *p, uint64_t n) {
    tm_gguf *g = p->g;
    if (n > TM_GGUF_MAX_TENSORS || n > (p->size - p->pos) / 33) /* the shortest: name 9, dims 4 + 8, type 4, offset 8 */
        return tm_fail(TM_EINPUT, "%s: %" PRIu64 " tensors are more than the file can hold or %d", p->path, n,
                       TM_GGUF_MAX_TENSORS);
    g->tensor = tm_calloc(n + 1, sizeof *g->tensor);
    if (!g->tensor) return tm_nomem(n * sizeof *g->tensor);
    for (uint64_t i = 0; i < n; i++) {
        char *name = NULL;
        TM_TRY(take_name(p, TM_GGUF_MAX_NAME, "a tensor", &name));
        g->tensor[g->n_tensors].name = name;
        TM_TRY(parse_tensor(p, &g->tensor[g->n_tensors++]));
    }
    return TM_OK;
}

static tm_status read_alignment(parser *p) {
    uint64_t v = TM_GGUF_ALIGNMENT;
    TM_TRY(tm_gguf_uint(p->g, "general.alignment", &v, &(bool){false}));
    if (v == 0 || v > 1 << 20 || (v & (v - 1)) != 0)
        return tm_fail(TM_EINPUT, "%s: general.alignment is %" PRIu64 "; it must be a power of two up to 1 MiB",
                       p->path, v);
    p->alignment = v;
    return TM_OK;
}

static bool offset_less(const void *ctx, uint32_t a, uint32_t b) {
    const tm_gguf_tensor *t = ctx;
    return t[a].offset != t[b].offset ? t[a].offset < t[b].offset : a < b;
}

static tm_status sort_by_offset(tm_gguf *g) {
    uint32_t *order = tm_malloc((g->n_tensors + 1) * sizeof *order);
    tm_gguf_tensor *sorted = tm_malloc((g->n_tensors + 1) * sizeof *sorted);
    bool enough = order && sorted;
    if (enough) {
        for (uint32_t i = 0; i < g->n_tensors; i++) order[i] = i;
        tm_sort_indices(order, g->n_tensors, offset_less, g->tensor);
        for (uint32_t i = 0; i < g->n_tensors; i++) sorted[i] = g->tensor[order[i]];
        tm_free(g->tensor);
        g->tensor = sorted;
        sorted = NULL;
    }
    tm_free(order);
    tm_free(sorted);
    return enough ? TM_OK : tm_nomem(g->n_tensors * sizeof *sorted);
}

/* Offsets count from the first aligned byte after the table. Tensors lie inside the file and do not overlap. */
static tm_status place_tensors(parser *p) {
    tm_gguf *g = p->g;
    uint64_t start = tm_round_up(p->pos, p->alignment), end = start;
    TM_TRY(sort_by_offset(g));
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        tm_gguf_tensor *t = &g->tensor[i];
        if (t->offset % p->alignment != 0)
            return tm_fail(TM_EINPUT, "%s: the offset of '%s' is not a multiple of %" PRIu64, p->path, t->name,
                           p->alignment);
        if (start > p->size || t->offset > p->size - start || t->bytes > p->size - start - t->offset)
            return tm_fail(TM_EINPUT,
                           "%s: '%s' (%" PRIu64 " bytes at %" PRIu64 " of the data) reaches past the end of the "
                           "file; it is cut off, fetch it again",
                           p->path, t->name, t->bytes, t->offset);
        t->offset += start;
        if (t->offset < end) return tm_fail(TM_EINPUT, "%s: '%s' overlaps the tensor before it", p->path, t->name);
        end = t->offset + t->bytes;
    }
    return sort_by_name(p, &g->tensor_by_name, g->n_tensors, tensor_name, g->tensor);
}

static tm_status check_version(parser *p) {
    char magic[4];
    TM_TRY(take(p, magic, 4, "the header"));
    if (memcmp(magic, "GGUF", 4) != 0)
        return tm_fail(TM_EINPUT, "%s: not a GGUF file (and not a Hugging Face folder)", p->path);
    TM_TRY(take_u32(p, &p->g->version, "the header"));
    if (p->g->version == 2 || p->g->version == 3) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "%s: GGUF version %u%s; versions 2 and 3 are read", p->path, p->g->version,
                   p->g->version && !(p->g->version & 0xffff) ? " (a big-endian file?)" : "");
}

static tm_status parse(parser *p) {
    uint64_t n_tensors, n_kv;
    TM_TRY(check_version(p));
    TM_TRY(take_u64(p, &n_tensors, "the header"));
    TM_TRY(take_u64(p, &n_kv, "the header"));
    TM_TRY(parse_kvs(p, n_kv));
    TM_TRY(read_alignment(p));
    TM_TRY(parse_tensors(p, n_tensors));
    return place_tensors(p);
}

tm_status tm_gguf_open(tm_gguf **out, const char *path) {
    tm_status rc;
    parser *p = NULL;
    tm_gguf *g = tm_calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return tm_nomem(sizeof *g);
    TM_GO(tm_file_open(&g->file, path));
    p = tm_calloc(1, sizeof *p);
    if (!p) {
        rc = tm_nomem(sizeof *p);
        goto done;
    }
    p->g = g;
    p->path = tm_file_path(g->file);
    p->size = tm_file_size(g->file);
    rc = parse(p);
done:
    tm_free(p);
    if (rc == TM_OK)
        *out = g;
    else
        tm_gguf_close(g);
    return rc;
}

void tm_gguf_close(tm_gguf *g) {
    if (!g) return;
    for (uint32_t i = 0; i < g->n_kv; i++) tm_free((void *)(uintptr_t)g->kv[i].key);
    for (uint32_t i = 0; i < g->n_tensors; i++) tm_free((void *)(uintptr_t)g->tensor[i].name);
    tm_free(g->kv);
    tm_free(g->kv_by_name);
    tm_free(g->tensor);
    tm_free(g->tensor_by_name);
    tm_file_close(g->file);
    tm_free(g);
}

const char *tm_gguf_path(const tm_gguf *g) {
    return tm_file_path(g->file);
}
uint32_t tm_gguf_kvs(const tm_gguf *g) {
    return g->n_kv;
}
uint32_t tm_gguf_tensors(const tm_gguf *g) {
    return g->n_tensors;
}

const tm_gguf_kv *tm_gguf_kv_get(const tm_gguf *g, uint32_t i) {
    TM_ASSERT(i < g->n_kv);
    return &g->kv[i];
}

const tm_gguf_tensor *tm_gguf_tensor_get(const tm_gguf *g, uint32_t i) {
    TM_ASSERT(i < g->n_tensors);
    return &g->tensor[i];
}

const tm_gguf_kv *tm_gguf_kv_find(const tm_gguf *g, const char *key) {
    int64_t i = tm_find_name(g->kv_by_name, g->n_kv, kv_name, g->kv, key);
    return i < 0 ? NULL : &g->kv[i];
}

int64_t tm_gguf_tensor_find(const tm_gguf *g, const char *name) {
    return tm_find_name(g->tensor_by_name, g->n_tensors, tensor_name, g->tensor, name);
}
