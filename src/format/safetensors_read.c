#include "format/format_internal.h"

#include <inttypes.h>
#include <string.h>

/* Takes the file over in any case. */
static tm_status open_on(tm_st **out, tm_file *file) {
    tm_st *st = tm_calloc(1, sizeof *st);
    if (!st) {
        tm_file_close(file);
        return tm_nomem(sizeof *st);
    }
    st->file = file;
    tm_status rc = tm_st_read_header(st);
    if (rc != TM_OK) {
        tm_st_close(st);
        return rc;
    }
    *out = st;
    return TM_OK;
}

tm_status tm_st_open(tm_st **out, const char *path) {
    tm_file *file;
    *out = NULL;
    TM_TRY(tm_file_open(&file, path));
    return open_on(out, file);
}

tm_status tm_st_open_in(tm_st **out, const char *dir, const char *name) {
    tm_file *file;
    *out = NULL;
    TM_TRY(tm_file_open_in(&file, dir, name));
    return open_on(out, file);
}

void tm_st_close(tm_st *st) {
    if (!st) return;
    for (uint32_t i = 0; i < st->n; i++) tm_free((void *)(uintptr_t)st->info[i].name);
    for (uint32_t i = 0; i < st->n_meta; i++) {
        tm_free(st->meta[i].key);
        tm_free(st->meta[i].value);
    }
    tm_free(st->info);
    tm_free(st->by_name);
    tm_free(st->meta);
    tm_file_close(st->file);
    tm_free(st);
}

const char *tm_st_path(const tm_st *st) {
    return tm_file_path(st->file);
}
uint32_t tm_st_count(const tm_st *st) {
    return st->n;
}

const tm_st_info *tm_st_get(const tm_st *st, uint32_t i) {
    TM_ASSERT(i < st->n);
    return &st->info[i];
}

static const char *info_name(const void *ctx, uint32_t i) {
    return ((const tm_st_info *)ctx)[i].name;
}

int64_t tm_st_find(const tm_st *st, const char *name) {
    return tm_find_name(st->by_name, st->n, info_name, st->info, name);
}

const char *tm_st_metadata(const tm_st *st, const char *key) {
    for (uint32_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, key) == 0) return st->meta[i].value;
    return NULL;
}

tm_status tm_range_check(const char *path, const char *name, uint64_t first, uint64_t n, uint64_t elements) {
    if (first <= elements && n <= elements - first) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " elements; %" PRIu64 " from %" PRIu64 " on are not there", path,
                   name, elements, n, first);
}

tm_status tm_st_read_raw(const tm_st *st, uint32_t i, uint64_t byte_offset, uint64_t n, void *dst) {
    const tm_st_info *t = tm_st_get(st, i);
    if (byte_offset > t->bytes || n > t->bytes - byte_offset)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " bytes; %" PRIu64 " from %" PRIu64 " on are not there",
                       tm_st_path(st), t->name, t->bytes, n, byte_offset);
    return n ? tm_file_read_at(st->file, t->offset + byte_offset, dst, n) : TM_OK;
}

/* One piece: stored bytes [offset, offset + whole blocks) of which n values from `skip` on are wanted. */
static tm_status decode_piece(const tm_elements *e, uint64_t block, uint32_t skip, uint64_t n, float *dst) {
    const tm_fmt_info *t = tm_fmt_get(e->fmt);
    uint8_t stored[TM_FORMAT_CHUNK];
    float one[256];
    uint64_t blocks = (skip + n + t->block - 1) / t->block;
    TM_TRY(tm_file_read_at(e->file, e->offset + block * t->block_bytes, stored, blocks * t->block_bytes));
    for (uint64_t b = 0; n > 0; b++) {
        uint64_t whole = skip == 0 ? n / t->block : 0;
        if (whole) { /* as many whole blocks as there are at once */
            tm_fmt_decode(e->fmt, stored + b * t->block_bytes, whole * t->block, dst);
            dst += whole * t->block;
            n -= whole * t->block;
            b += whole - 1;
            continue;
        }
        uint64_t take = tm_min_u64(n, t->block - skip);
        tm_fmt_decode(e->fmt, stored + b * t->block_bytes, t->block, one);
        memcpy(dst, one + skip, take * sizeof *dst);
        dst += take;
        n -= take;
        skip = 0;
    }
    return TM_OK;
}

tm_status tm_elements_f32(const tm_elements *e, uint64_t first, uint64_t n, float *dst) {
    const tm_fmt_info *t = tm_fmt_get(e->fmt);
    const char *path = tm_file_path(e->file);
    TM_TRY(tm_range_check(path, e->name, first, n, e->elements));
    if (!t->readable) return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is %s, which cannot be read", path, e->name, t->name);
    if (e->fmt == TM_FMT_F32) return n ? tm_file_read_at(e->file, e->offset + first * 4, dst, n * 4) : TM_OK;
    uint64_t at_once = TM_FORMAT_CHUNK / t->block_bytes * t->block;
    while (n > 0) {
        uint32_t skip = (uint32_t)(first % t->block);
        uint64_t take = tm_min_u64(n, at_once - skip);
        TM_TRY(decode_piece(e, first / t->block, skip, take, dst));
        first += take;
        n -= take;
        dst += take;
    }
    return TM_OK;
}

tm_status tm_elements_raw(const tm_elements *e, uint64_t first, uint64_t n, void *dst) {
    TM_TRY(tm_range_check(tm_file_path(e->file), e->name, first, n, e->elements));
    uint32_t size = tm_fmt_get(e->fmt)->block_bytes;
    return n ? tm_file_read_at(e->file, e->offset + first * size, dst, n * size) : TM_OK;
}

static tm_elements elements_of(const tm_st *st, uint32_t i) {
    const tm_st_info *t = tm_st_get(st, i);
    return (tm_elements){st->file, t->name, t->fmt, t->elements, t->offset};
}

tm_status tm_st_read_f32(const tm_st *st, uint32_t i, uint64_t first, uint64_t n, float *dst) {
    tm_elements e = elements_of(st, i);
    return tm_elements_f32(&e, first, n, dst);
}

/* False: not an integer type, or a value that int64 cannot hold. */
static bool widen_int(tm_fmt fmt, const uint8_t *p, int64_t *out) {
    uint64_t v = 0;
    memcpy(&v, p, tm_fmt_get(fmt)->block_bytes);
    switch (fmt) {
    case TM_FMT_I64:
        *out = (int64_t)v;
        return true;
    case TM_FMT_I32:
        *out = (int32_t)v;
        return true;
    case TM_FMT_I16:
        *out = (int16_t)v;
        return true;
    case TM_FMT_I8:
        *out = (int8_t)v;
        return true;
    case TM_FMT_BOOL:
        *out = v != 0;
        return true;
    case TM_FMT_U64:
    case TM_FMT_U32:
    case TM_FMT_U16:
    case TM_FMT_U8:
        *out = (int64_t)v;
        return v <= INT64_MAX;
    default:
        return false;
    }
}

tm_status tm_st_read_i64(const tm_st *st, uint32_t i, uint64_t first, uint64_t n, int64_t *dst) {
    const tm_elements e = elements_of(st, i);
    const tm_fmt_info *t = tm_fmt_get(e.fmt);
    uint8_t stored[TM_FORMAT_CHUNK];
    TM_TRY(tm_range_check(tm_st_path(st), e.name, first, n, e.elements));
    for (uint64_t done = 0; done < n;) {
        uint64_t take = tm_min_u64(n - done, TM_FORMAT_CHUNK / t->block_bytes);
        TM_TRY(tm_elements_raw(&e, first + done, take, stored));
        for (uint64_t k = 0; k < take; k++)
            if (!widen_int(e.fmt, stored + k * t->block_bytes, &dst[done + k]))
                return tm_fail(TM_EINPUT, "%s: '%s' (%s): element %" PRIu64 " is not a 64-bit integer", tm_st_path(st),
                               e.name, t->name, first + done + k);
        done += take;
    }
    return TM_OK;
}
