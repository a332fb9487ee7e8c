/* The header of a safetensors file, read as a stream and checked before anything is believed. */
#include "format/format_internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct parser {
    tm_st *st;
    tm_json_reader *json;
    const char *path;
    tm_file_cursor cursor;
    uint64_t end; /* of the header */
} parser;

static tm_status read_header_bytes(void *ctx, void *buf, size_t cap, size_t *got) {
    parser *p = ctx;
    cap = (size_t)tm_min_u64(cap, p->end - p->cursor.pos);
    *got = 0;
    return cap ? tm_file_cursor_read(&p->cursor, buf, cap, got) : TM_OK;
}

static tm_status wrong(const parser *p, const tm_json_event *e, const char *what) {
    return tm_fail(TM_EINPUT, "%s: header, line %u column %u: %s", p->path, e->line, e->column, what);
}

static tm_status expect(parser *p, tm_json_event *e, tm_json_type type, const char *what) {
    TM_TRY(tm_json_next(p->json, e));
    return e->type == type ? TM_OK : wrong(p, e, what);
}

/* Copies a name or value that C strings can hold. */
static tm_status keep_text(const parser *p, const tm_json_event *e, char **out) {
    if (memchr(e->text, 0, e->len)) return wrong(p, e, "a name with a NUL character");
    *out = tm_strndup(e->text, e->len);
    return *out ? TM_OK : tm_nomem(e->len + 1);
}

static tm_status parse_metadata(parser *p) {
    tm_json_event e;
    TM_TRY(expect(p, &e, TM_JSON_OBJECT, "__metadata__ must be an object of strings"));
    for (;;) {
        TM_TRY(tm_json_next(p->json, &e));
        if (e.type == TM_JSON_OBJECT_END) return TM_OK;
        tm_st *st = p->st;
        TM_TRY(tm_grow(&st->meta, &st->cap_meta, (size_t)st->n_meta + 1, sizeof *st->meta));
        tm_st_meta *m = &st->meta[st->n_meta++];
        *m = (tm_st_meta){0};
        TM_TRY(keep_text(p, &e, &m->key));
        TM_TRY(expect(p, &e, TM_JSON_STRING, "__metadata__ must be an object of strings"));
        TM_TRY(keep_text(p, &e, &m->value));
    }
}

static tm_status parse_count(parser *p, const tm_json_event *e, uint64_t *out) {
    if (e->type != TM_JSON_NUMBER || !e->is_integer || e->integer < 0)
        return wrong(p, e, "expected an integer that is not negative");
    *out = (uint64_t)e->integer;
    return TM_OK;
}

/* An array of counts after its KEY; TM_EUNSUPPORTED if longer than max. */
static tm_status parse_counts(parser *p, uint64_t *out, uint32_t max, uint32_t *n) {
    tm_json_event e;
    TM_TRY(expect(p, &e, TM_JSON_ARRAY, "expected an array of integers"));
    for (*n = 0;; (*n)++) {
        TM_TRY(tm_json_next(p->json, &e));
        if (e.type == TM_JSON_ARRAY_END) return TM_OK;
        if (*n == max) return wrong(p, &e, "the array is too long");
        TM_TRY(parse_count(p, &e, &out[*n]));
    }
}

static tm_status parse_dtype(parser *p, tm_fmt *out) {
    tm_json_event e;
    TM_TRY(expect(p, &e, TM_JSON_STRING, "dtype must be a string"));
    for (int i = 0; i < TM_FMT_COUNT; i++)
        if (tm_fmt_get((tm_fmt)i)->safetensors && strcmp(tm_fmt_get((tm_fmt)i)->name, e.text) == 0) {
            *out = (tm_fmt)i;
            return TM_OK;
        }
    return tm_fail(TM_EINPUT, "%s: header, line %u column %u: unknown dtype '%.32s'", p->path, e.line, e.column,
                   e.text);
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

/* The members of a tensor's object up to its end. Offsets count from the first byte of data. */
static tm_status parse_members(parser *p, tm_st_info *t, uint64_t offsets[2], unsigned *has) {
    for (;;) {
        tm_json_event e;
        uint32_t n = 0;
        TM_TRY(tm_json_next(p->json, &e));
        if (e.type == TM_JSON_OBJECT_END) return TM_OK;
        if (strcmp(e.text, "dtype") == 0) {
            TM_TRY(parse_dtype(p, &t->fmt));
            *has |= HAS_DTYPE;
        } else if (strcmp(e.text, "shape") == 0) {
            TM_TRY(parse_counts(p, t->shape, TM_FMT_MAX_DIMS, &t->ndim));
            *has |= HAS_SHAPE;
        } else if (strcmp(e.text, "data_offsets") == 0) {
            TM_TRY(parse_counts(p, offsets, 2, &n));
            if (n == 2) *has |= HAS_OFFSETS;
        } else {
            TM_TRY(tm_json_skip(p->json, &e)); /* the reference reader ignores them too */
        }
    }
}

static tm_status check_tensor(const parser *p, tm_st_info *t, const uint64_t offsets[2]) {
    uint64_t data = tm_file_size(p->st->file) - p->st->data_offset;
    if (offsets[0] > offsets[1])
        return tm_fail(TM_EINPUT, "%s: invalid offsets of '%s': %" PRIu64 " comes after %" PRIu64, p->path, t->name,
                       offsets[0], offsets[1]);
    if (offsets[1] > data)
        return tm_fail(TM_EINPUT,
                       "%s: '%s' ends at byte %" PRIu64 " of the data, but the file has only %" PRIu64
                       "; it is cut off, fetch it again",
                       p->path, t->name, offsets[1], data);
    if (!tm_shape_elements(t->shape, t->ndim, &t->elements) || !tm_fmt_bytes(t->fmt, t->elements, &t->bytes))
        return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", p->path, t->name);
    if (t->bytes != offsets[1] - offsets[0])
        return tm_fail(TM_EINPUT,
                       "%s: size of '%s' does not fit: shape and dtype need %" PRIu64
                       " bytes, its offsets span %" PRIu64,
                       p->path, t->name, t->bytes, offsets[1] - offsets[0]);
    t->offset = p->st->data_offset + offsets[0];
    return TM_OK;
}

static tm_status parse_tensor(parser *p, const tm_json_event *key) {
    tm_st *st = p->st;
    TM_TRY(tm_grow(&st->info, &st->cap, (size_t)st->n + 1, sizeof *st->info));
    tm_st_info *t = &st->info[st->n];
    *t = (tm_st_info){0};
    char *name = NULL;
    TM_TRY(keep_text(p, key, &name));
    t->name = name;
    st->n++; /* owns the name from here on */
    uint64_t offsets[2] = {0};
    unsigned has = 0;
    tm_json_event e;
    TM_TRY(expect(p, &e, TM_JSON_OBJECT, "a tensor must be an object"));
    TM_TRY(parse_members(p, t, offsets, &has));
    if (has != HAS_ALL)
        return tm_fail(TM_EINPUT, "%s: '%s' lacks %s", p->path, t->name,
                       !(has & HAS_DTYPE)   ? "a dtype"
                       : !(has & HAS_SHAPE) ? "a shape"
                                            : "its two data_offsets");
    return check_tensor(p, t, offsets);
}

static tm_status parse_top(parser *p) {
    tm_json_event e;
    TM_TRY(expect(p, &e, TM_JSON_OBJECT, "the header must be a JSON object"));
    for (;;) {
        TM_TRY(tm_json_next(p->json, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        if (strcmp(e.text, "__metadata__") == 0)
            TM_TRY(parse_metadata(p));
        else
            TM_TRY(parse_tensor(p, &e));
    }
    return expect(p, &e, TM_JSON_EOF, "something follows the header's object");
}

static bool offset_less(const void *ctx, uint32_t a, uint32_t b) {
    const tm_st_info *x = (const tm_st_info *)ctx + a, *y = (const tm_st_info *)ctx + b;
    return x->offset != y->offset ? x->offset < y->offset : x->bytes != y->bytes ? x->bytes < y->bytes : a < b;
}

/* Puts info[] into the order of `order`; order is used up. Follows the cycles of the permutation. */
static void permute(tm_st_info *info, uint32_t *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        tm_st_info first = info[i];
        uint32_t at = i;
        while (order[at] != i) {
            uint32_t from = order[at];
            info[at] = info[from];
            order[at] = at;
            at = from;
        }
        info[at] = first;
        order[at] = at;
    }
}

/* Tensors follow one another without a hole or an overlap, to the end of the file. */
static tm_status check_layout(tm_st *st, const char *path) {
    uint64_t at = st->data_offset;
    for (uint32_t i = 0; i < st->n; i++) {
        const tm_st_info *t = &st->info[i];
        if (t->offset != at)
            return tm_fail(TM_EINPUT, "%s: invalid offset of '%s': %s before it, at byte %" PRIu64, path, t->name,
                           t->offset < at ? "it overlaps the tensor" : "there is a hole", at);
        at += t->bytes;
    }
    if (at != tm_file_size(st->file))
        return tm_fail(TM_EINPUT, "%s: the tensors end at byte %" PRIu64 ", but the file has %" PRIu64, path, at,
                       tm_file_size(st->file));
    return TM_OK;
}

static const char *info_name(const void *ctx, uint32_t i) {
    return ((const tm_st_info *)ctx)[i].name;
}

static tm_status index_tensors(tm_st *st, const char *path) {
    st->by_name = tm_malloc((st->n + 1) * sizeof *st->by_name);
    if (!st->by_name) return tm_nomem((st->n + 1) * sizeof *st->by_name);
    for (uint32_t i = 0; i < st->n; i++) st->by_name[i] = i;
    tm_sort_indices(st->by_name, st->n, offset_less, st->info);
    permute(st->info, st->by_name, st->n);
    TM_TRY(check_layout(st, path));
    uint32_t dup;
    if (!tm_sort_names(st->by_name, st->n, info_name, st->info, &dup))
        return tm_fail(TM_EINPUT, "%s: '%s' is there twice", path, st->info[st->by_name[dup]].name);
    return TM_OK;
}

/* The length that the first 8 bytes give, and the first character. */
static tm_status check_start(tm_st *st, const char *path, uint64_t *length) {
    uint64_t size = tm_file_size(st->file);
    char first = 0;
    if (size < 8)
        return tm_fail(TM_EINPUT, "%s: %" PRIu64 " bytes are too few for a safetensors file; fetch it again", path,
                       size);
    TM_TRY(tm_file_read_at(st->file, 0, length, 8));
    if (*length > TM_ST_MAX_HEADER)
        return tm_fail(TM_EINPUT, "%s: header too large: %" PRIu64 " bytes; this is not a safetensors file", path,
                       *length);
    if (*length == 0 || *length > size - 8)
        return tm_fail(TM_EINPUT,
                       "%s: invalid header length: %" PRIu64 " bytes in a file of %" PRIu64
                       "; it is cut off, fetch it again",
                       path, *length, size);
    TM_TRY(tm_file_read_at(st->file, 8, &first, 1));
    if (first != '{')
        return tm_fail(TM_EINPUT, "%s: the header is not a JSON object (it does not begin with '{')", path);
    return TM_OK;
}

tm_status tm_st_read_header(tm_st *st) {
    const char *path = tm_file_path(st->file);
    uint64_t length = 0;
    TM_TRY(check_start(st, path, &length));
    st->data_offset = 8 + length;
    parser p = {.st = st, .path = path, .cursor = {st->file, 8}, .end = 8 + length};
    TM_TRY(tm_json_reader_open(&p.json, read_header_bytes, &p, path, 0, 0));
    tm_status rc = parse_top(&p);
    tm_json_reader_close(p.json);
    return rc == TM_OK ? index_tensors(st, path) : rc;
}
