/* bitsandbytes' 4-bit checkpoints, as transformers writes them: a tensor X is bytes of codes, and beside it lie
 *
 *     X.absmax                                   F32 [blocks], or, doubly quantised, U8
 *     X.quant_map                                F32 [16]
 *     X.nested_absmax, X.nested_quant_map        F32 [blocks / nested_blocksize], [256]; doubly quantised only
 *     X.quant_state.bitsandbytes__nf4 (or __fp4) U8: {"quant_type", "blocksize", "shape", "dtype", "nested_blocksize",
 *                                                "nested_offset", "nested_dtype"} as JSON
 *
 * (QuantState.as_dict of bitsandbytes/functional.py). Here they become one tensor with X's shape; maps are held, codes
 * and scales stay in the file. Its values are the products in fp32, whatever "dtype" says they were rounded to. */
#include "format/source_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_STATE = 4096, MAX_BLOCK = 1 << 16, READ_ELEMENTS = 1 << 16 };

static const char *const states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};

/* ---- config.json ---- */

static bool is_true(const tm_json *object, const char *key) {
    const tm_json *v = tm_json_get(object, key);
    return v && v->type == TM_JSON_BOOL && v->boolean;
}

tm_status tm_bnb_check_config(const tm_source *src, const tm_json *q) {
    const tm_json *method = tm_json_get(q, "quant_method"), *type = tm_json_get(q, "bnb_4bit_quant_type");
    const char *eight = "bitsandbytes in 8 bits (load_in_8bit)";
    bool named = method && method->type == TM_JSON_STRING;
    const char *other = !named && !is_true(q, "load_in_4bit") ? "that is not named (quant_method)" : NULL;
    if (named && strcmp(method->text, "bitsandbytes") != 0) other = method->text;
    if (!other && (is_true(q, "load_in_8bit") || is_true(q, "_load_in_8bit"))) other = eight;
    if (!other && type && !tm_json_is(type, "nf4") && !tm_json_is(type, "fp4")) other = "another bnb_4bit_quant_type";
    if (!other) return TM_OK;
    return tm_fail(
        TM_EUNSUPPORTED,
        "%s/config.json:%u:%u: the weights are quantised by a method that is not read: %.60s; read are bitsandbytes "
        "in 4 bits (nf4, fp4), compressed-tensors (pack-quantized), gptq, awq, GGUF, and weights in bf16, f16 or f32",
        src->path, q->line, q->column, other);
}

/* ---- one tensor's state ---- */

typedef struct state {
    const tm_source *src;
    const source_entry *codes, *json; /* X, and its quant_state */
    bnb_tensor *t;
    tm_source_tensor info; /* what X becomes */
    uint64_t blocks;
} state;

static tm_status wrong(const state *s, const char *what) {
    return tm_fail(TM_EINPUT, "%s: '%s': %s; the 4-bit checkpoint is damaged or of another make", s->json->info.file,
                   s->json->info.name, what);
}

/* X.NAME, with its type and number of elements. */
static tm_status companion(const state *s, const char *name, tm_fmt fmt, uint64_t elements, const source_entry **out) {
    tm_buf full = {0};
    TM_TRY(tm_buf_printf(&full, "%s.%s", s->codes->info.name, name));
    int64_t t = tm_source_find(s->src, full.data);
    tm_buf_free(&full);
    *out = t < 0 ? NULL : &s->src->entry[t];
    if (*out && (*out)->info.fmt == fmt && (*out)->info.elements == elements) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: '%s.%s' %s%" PRIu64 " elements of %s that its quant_state asks for",
                   s->codes->info.file, s->codes->info.name, name,
                   *out ? "does not have the " : "is missing; it should have the ", elements, tm_fmt_get(fmt)->name);
}

static tm_status finite_map(const state *s, const char *name, uint64_t n, float *out) {
    const source_entry *e;
    TM_TRY(companion(s, name, TM_FMT_F32, n, &e));
    TM_TRY(tm_file_read_at(e->handle, e->info.offset, out, n * sizeof *out));
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return tm_fail(TM_EINPUT, "%s: '%s': value %" PRIu64 " is not finite", e->info.file, e->info.name, i);
    return TM_OK;
}

/* A power of two from `least` on. */
static bool block_size(const tm_json *v, uint32_t least, uint32_t *out) {
    if (!v || v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < least || v->integer > MAX_BLOCK) return false;
    *out = (uint32_t)v->integer;
    return (*out & (*out - 1)) == 0;
}

static tm_status read_shape(state *s, const tm_json *shape) {
    if (!shape || shape->type != TM_JSON_ARRAY || shape->count < 1 || shape->count > TM_FMT_MAX_DIMS)
        return wrong(s, "shape is not a list of 1 to 8 sizes");
    for (const tm_json *v = shape->child; v; v = v->next) {
        if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < 1)
            return wrong(s, "shape has an element that is no size");
        s->info.shape[s->info.ndim++] = (uint64_t)v->integer;
    }
    if (!tm_shape_elements(s->info.shape, s->info.ndim, &s->info.elements) || s->info.elements > INT64_MAX)
        return wrong(s, "shape overflows");
    if (s->info.elements / 2 + s->info.elements % 2 != s->codes->info.bytes)
        return wrong(s, "shape does not agree with the bytes of codes");
    return TM_OK;
}

/* The same for all tensors of a checkpoint, so one copy serves those that follow one another. */
static tm_status keep_map(tm_source *src, const float map[256], const float **out) {
    bnb_map *m = src->bnb_maps;
    if (!m || memcmp(m->value, map, sizeof m->value) != 0) {
        m = tm_malloc(sizeof *m);
        if (!m) return tm_nomem(sizeof *m);
        memcpy(m->value, map, sizeof m->value);
        m->next = src->bnb_maps;
        src->bnb_maps = m;
    }
    *out = m->value;
    return TM_OK;
}

static tm_status read_nested(tm_source *src, state *s, const tm_json *root) {
    const tm_json *offset = tm_json_get(root, "nested_offset");
    tm_nf4_blocks *b = &s->t->blocks;
    const source_entry *e;
    float map[256];
    if (!block_size(tm_json_get(root, "nested_blocksize"), 32, &b->nested_block))
        return wrong(s, "nested_blocksize is not a power of two from 32 to 65536");
    if (!offset || offset->type != TM_JSON_NUMBER || !isfinite((float)offset->number))
        return wrong(s, "nested_offset is not a number");
    b->offset = (float)offset->number;
    TM_TRY(finite_map(s, "nested_quant_map", 256, map));
    TM_TRY(keep_map(src, map, &b->nested_map));
    TM_TRY(companion(s, "nested_absmax", TM_FMT_F32, (s->blocks - 1) / b->nested_block + 1, &e));
    s->t->nested = (source_place){e->handle, e->info.file, e->info.offset};
    return TM_OK;
}

static tm_status read_fields(tm_source *src, state *s, const tm_json *root) {
    const source_entry *e;
    bool nested = tm_json_get(root, "nested_blocksize") || tm_json_get(root, "nested_offset");
    if (root->type != TM_JSON_OBJECT) return wrong(s, "is not a JSON object");
    if (!tm_json_is(tm_json_get(root, "quant_type"), s->info.fmt == TM_FMT_NF4 ? "nf4" : "fp4"))
        return wrong(s, "quant_type is not what its name says");
    if (!block_size(tm_json_get(root, "blocksize"), 32, &s->t->blocks.block))
        return wrong(s, "blocksize is not a power of two from 32 to 65536");
    TM_TRY(read_shape(s, tm_json_get(root, "shape")));
    s->blocks = (s->info.elements - 1) / s->t->blocks.block + 1;
    TM_TRY(finite_map(s, "quant_map", 16, s->t->map));
    s->t->blocks.map = s->t->map;
    TM_TRY(companion(s, "absmax", nested ? TM_FMT_U8 : TM_FMT_F32, s->blocks, &e));
    s->t->absmax = (source_place){e->handle, e->info.file, e->info.offset};
    return nested ? read_nested(src, s, root) : TM_OK;
}

static tm_status read_state(tm_source *src, state *s) {
    char text[MAX_STATE];
    tm_json_doc *doc;
    uint64_t bytes = s->json->info.bytes;
    if (s->json->info.fmt != TM_FMT_U8 || bytes > sizeof text) return wrong(s, "is not some bytes of JSON");
    TM_TRY(tm_file_read_at(s->json->handle, s->json->info.offset, text, bytes));
    TM_TRY(tm_json_parse(&doc, text, bytes, s->json->info.name, 0, 0));
    tm_status rc = read_fields(src, s, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

/* ---- all tensors ---- */

static tm_status fold_tensor(tm_source *src, const source_entry *json, int kind) {
    int64_t at = tm_source_find_part(src, json->info.name, strlen(json->info.name) - strlen(states[kind]));
    if (at < 0 || src->entry[at].bnb)
        return tm_fail(TM_EINPUT, "%s: '%s' belongs to no tensor of 4-bit codes", json->info.file, json->info.name);
    source_entry *codes = &src->entry[at];
    bnb_tensor *t = tm_calloc(1, sizeof *t);
    if (!t) return tm_nomem(sizeof *t);
    t->next = src->bnb;
    src->bnb = t;
    state s = {.src = src, .codes = codes, .json = json, .t = t, .info = codes->info};
    s.info.fmt = kind == 0 ? TM_FMT_NF4 : TM_FMT_FP4;
    s.info.ndim = 0;
    memset(s.info.shape, 0, sizeof s.info.shape);
    TM_TRY(read_state(src, &s));
    codes->info = s.info;
    codes->bnb = t;
    return TM_OK;
}

static int kind_of(const source_entry *e) {
    for (int k = 0; k < (int)TM_COUNT(states); k++)
        if (tm_ends_with(e->info.name, states[k])) return k;
    return -1;
}

/* The tensor that this one is a companion of; -1: of none. */
static int64_t owner_of(const tm_source *src, const char *name) {
    static const char *const endings[] = {".absmax",
                                          ".quant_map",
                                          ".nested_absmax",
                                          ".nested_quant_map",
                                          ".quant_state.bitsandbytes__nf4",
                                          ".quant_state.bitsandbytes__fp4"};
    for (size_t k = 0; k < TM_COUNT(endings); k++) {
        size_t n = strlen(name) - tm_min_u64(strlen(name), strlen(endings[k]));
        if (!tm_ends_with(name, endings[k])) continue;
        int64_t t = tm_source_find_part(src, name, n);
        if (t >= 0) return t;
    }
    return -1;
}

/* Companions are looked up by name until none is wanted, so they leave in the end, all at once. */
static tm_status hide_companions(tm_source *src) {
    bool *hide = tm_calloc(src->n + 1, sizeof *hide);
    tm_status rc = hide ? TM_OK : tm_nomem(src->n);
    for (uint32_t i = 0; i < src->n && rc == TM_OK; i++) {
        int64_t owner = owner_of(src, src->entry[i].info.name);
        hide[i] = owner >= 0;
        if (owner >= 0 && !src->entry[owner].bnb)
            rc = tm_fail(TM_EINPUT, "%s: '%s' is there, but no '%s%s'", src->entry[i].info.file,
                         src->entry[i].info.name, src->entry[owner].info.name, states[0]);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < src->n && rc == TM_OK; i++)
        if (!hide[i]) src->entry[n++] = src->entry[i];
    if (rc == TM_OK) src->n = n;
    tm_free(hide);
    return rc;
}

tm_status tm_bnb_fold(tm_source *src) {
    for (uint32_t i = 0; i < src->n; i++) {
        int kind = kind_of(&src->entry[i]);
        if (kind >= 0) TM_TRY(fold_tensor(src, &src->entry[i], kind));
    }
    return hide_companions(src);
}

void tm_bnb_close(tm_source *src) {
    for (bnb_tensor *t = src->bnb, *next; t; t = next) {
        next = t->next;
        tm_free(t);
    }
    for (bnb_map *m = src->bnb_maps, *next; m; m = next) {
        next = m->next;
        tm_free(m);
    }
}

/* ---- values ---- */

void tm_bnb_piece(const source_entry *s, uint64_t first, uint64_t n, tm_source_piece *out) {
    const bnb_tensor *t = s->bnb;
    const tm_nf4_blocks *b = &t->blocks;
    uint64_t begin = first / b->block, end = n ? (first + n - 1) / b->block + 1 : begin;
    uint64_t from = n ? begin * b->block : first, stop = n ? tm_min_u64(end * b->block, s->info.elements) : first;
    uint64_t scale = b->nested_map ? 1 : sizeof(float);
    *out = (tm_source_piece){.first = from,
                             .elements = stop - from,
                             .n = b->nested_map ? 3 : 2,
                             .range = {{s->info.file, s->info.offset + from / 2, (stop - from + 1) / 2},
                                       {t->absmax.path, t->absmax.offset + begin * scale, (end - begin) * scale}}};
    if (!b->nested_map) return;
    uint64_t at = begin / b->nested_block, last = end > begin ? (end - 1) / b->nested_block + 1 : at;
    out->range[2] = (tm_raw_range){t->nested.path, t->nested.offset + at * sizeof(float), (last - at) * sizeof(float)};
}

void tm_bnb_decode(const source_entry *s, const tm_source_piece *p, const void *const *raw, uint64_t first, uint64_t n,
                   tm_elem to, void *out) {
    tm_nf4_blocks b = s->bnb->blocks;
    b.codes = raw[0];
    b.absmax = raw[1];
    if (b.nested_map) {
        b.nested_absmax = raw[2];
        b.nested_skip = (uint32_t)(p->first / b.block % b.nested_block);
    }
    tm_nf4_values(&b, first - p->first, n, to, out);
}

static tm_status read_some(const source_entry *s, uint64_t first, uint64_t n, float *dst) {
    uint8_t codes[READ_ELEMENTS / 2];
    float absmax[READ_ELEMENTS / 32], nested[READ_ELEMENTS / 32 / 32 + 1];
    void *const raw[TM_PIECE_RANGES] = {codes, absmax, nested};
    tm_file *const files[TM_PIECE_RANGES] = {s->handle, s->bnb->absmax.file, s->bnb->nested.file};
    tm_source_piece p;
    tm_bnb_piece(s, first, n, &p);
    for (uint32_t i = 0; i < p.n; i++) TM_TRY(tm_file_read_at(files[i], p.range[i].offset, raw[i], p.range[i].bytes));
    tm_bnb_decode(s, &p, (const void *const *)raw, first, n, TM_ELEM_F32, dst);
    return TM_OK;
}

/* Cut at whole blocks, the largest of which is what a read takes. */
tm_status tm_bnb_read(const source_entry *s, uint64_t first, uint64_t n, float *dst) {
    TM_TRY(tm_range_check(s->info.file, s->info.name, first, n, s->info.elements));
    for (uint64_t done = 0, take; done < n; done += take) {
        take = tm_min_u64(n - done, READ_ELEMENTS - (first + done) % READ_ELEMENTS);
        TM_TRY(read_some(s, first + done, take, dst + done));
    }
    return TM_OK;
}

void tm_bnb_forget(const source_entry *s) {
    tm_source_piece p;
    tm_bnb_piece(s, 0, s->info.elements, &p);
    tm_file_forget(s->bnb->absmax.file, p.range[1].offset, p.range[1].bytes);
    if (p.n > 2) tm_file_forget(s->bnb->nested.file, p.range[2].offset, p.range[2].bytes);
}
