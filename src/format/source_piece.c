/* Pieces of tensors: which bytes of which file they lie in, and those bytes, read by whoever wants them, to values. */
#include "base/ordered.h"
#include "format/gguf_internal.h"
#include "format/source_internal.h"
#include "kernels/kernels.h"

#include <string.h>

enum { VALUES = 2048 }; /* float32 on the way to 16 bits, in L1; a whole number of any block */

/* ---- where ---- */

/* Elements that can only be decoded together, counted from the tensor's first: a block; a head of rows, or all of them
 * where heads break blocks; all of a transposed matrix. */
static uint64_t unit_of(const source_entry *s) {
    const tm_source_tensor *t = &s->info;
    uint64_t block = tm_fmt_get(t->fmt)->block;
    if (s->transposed) return t->elements;
    if (!s->head_rows) return block;
    uint64_t head = s->head_rows * (t->elements / t->shape[0]);
    return head % block == 0 ? head : t->elements;
}

tm_status tm_source_piece_of(const tm_source *src, uint32_t t, uint64_t first, uint64_t n, tm_source_piece *out) {
    TM_ASSERT(t < src->n && !src->entry[t].merge);
    const source_entry *s = &src->entry[t];
    const tm_source_tensor *info = &s->info;
    const tm_fmt_info *f = tm_fmt_get(info->fmt);
    TM_TRY(tm_range_check(info->file, info->name, first, n, info->elements));
    if (s->made) return tm_fail(TM_EUNSUPPORTED, "%s: '%s' lies in no file", info->file, info->name);
    if (s->bnb) {
        tm_bnb_piece(s, first, n, out);
        return TM_OK;
    }
    if (s->ints) {
        tm_ints_piece(s, first, n, out);
        return TM_OK;
    }
    if (!f->readable)
        return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is %s, which cannot be read", info->file, info->name, f->name);
    uint64_t unit = n ? unit_of(s) : 1, begin = first / unit * unit, end = (first + n + unit - 1) / unit * unit;
    uint64_t at = begin / f->block * f->block_bytes, bytes = (end - begin) / f->block * f->block_bytes;
    *out = (tm_source_piece){.first = begin,
                             .elements = end - begin,
                             .n = 1,
                             .range = {{info->file, info->offset + at, bytes}},
                             .in_order = !s->head_rows && !s->transposed && !s->added_one};
    return TM_OK;
}

bool tm_source_packing(const tm_source *src, uint32_t t, tm_packed *out) {
    static const tm_packed_type of[TM_FMT_COUNT] = {
        [TM_FMT_F32] = TM_PACKED_F32,   [TM_FMT_BF16] = TM_PACKED_BF16, [TM_FMT_F16] = TM_PACKED_F16,
        [TM_FMT_Q8_0] = TM_PACKED_Q8_0, [TM_FMT_Q4_0] = TM_PACKED_Q4_0, [TM_FMT_Q4_1] = TM_PACKED_Q4_1,
        [TM_FMT_Q5_0] = TM_PACKED_Q5_0, [TM_FMT_Q5_1] = TM_PACKED_Q5_1, [TM_FMT_Q4_K] = TM_PACKED_Q4_K,
        [TM_FMT_Q5_K] = TM_PACKED_Q5_K, [TM_FMT_Q6_K] = TM_PACKED_Q6_K};
    const source_entry *s = &src->entry[t];
    const tm_source_tensor *info = &s->info;
    if (s->bnb && info->ndim == 2) {
        *out = (tm_packed){.packing = TM_PACKED_BITS4, .k = info->shape[1], .nf4 = s->bnb->blocks};
        return out->k % 2 == 0;
    }
    *out = (tm_packed){.packing = of[info->fmt], .k = info->ndim == 2 ? info->shape[1] : 0, .head_rows = s->head_rows};
    bool plain = !s->bnb && !s->made && !s->merge && !s->transposed && !s->added_one;
    return plain && out->packing != TM_PACKED_NOT && out->k > 0 && out->k % tm_packing_of(out->packing)->block == 0;
}

/* ---- values ---- */

/* Elements in the file's order, from element `base` on, which begins a block. */
typedef struct stored_run {
    const uint8_t *raw;
    uint64_t base;
    tm_fmt fmt, to;
    bool added_one;
} stored_run;

static void widen(tm_fmt fmt, const uint8_t *stored, size_t n, float *out) {
    bool aligned = (uintptr_t)stored % 2 == 0;
    if (fmt == TM_FMT_BF16 && aligned)
        tm_widen((const uint16_t *)(const void *)stored, out, n);
    else if (fmt == TM_FMT_F16 && aligned)
        tm_widen_f16((const uint16_t *)(const void *)stored, out, n);
    else
        tm_fmt_decode(fmt, stored, n, out);
}

/* Blocks that the run breaks, at its ends, are decoded beside. */
static void floats(const stored_run *r, uint64_t first, uint64_t n, float *out) {
    const tm_fmt_info *f = tm_fmt_get(r->fmt);
    const uint8_t *stored = r->raw + (first - r->base) / f->block * f->block_bytes;
    float one[256];
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t skip = (first + done) % f->block, whole = skip ? 0 : (n - done) / f->block * f->block;
        if (whole) {
            widen(r->fmt, stored, take = whole, out + done);
        } else {
            take = tm_min_u64(n - done, f->block - skip);
            tm_fmt_decode(r->fmt, stored, f->block, one);
            memcpy(out + done, one + skip, take * sizeof *out);
        }
        stored += (skip + take) / f->block * f->block_bytes;
    }
    for (uint64_t i = 0; i < n && r->added_one; i++) out[i] -= 1;
}

static void run_values(const stored_run *r, uint64_t first, uint64_t n, void *out) {
    float some[VALUES];
    if (r->fmt == r->to && !r->added_one) {
        uint64_t size = tm_fmt_get(r->fmt)->block_bytes;
        memcpy(out, r->raw + (first - r->base) * size, n * size);
        return;
    }
    if (r->to == TM_FMT_F32) {
        floats(r, first, n, out);
        return;
    }
    uint64_t skip = first % tm_fmt_get(r->fmt)->block;
    for (uint64_t done = 0, take; done < n; done += take, skip = 0) {
        take = tm_min_u64(n - done, VALUES - skip);
        floats(r, first + done, take, some);
        (r->to == TM_FMT_BF16 ? tm_narrow : tm_narrow_f16)(some, (uint16_t *)out + done, take);
    }
}

static tm_status read_run(const void *ctx, uint64_t first, uint64_t n, void *dst) {
    run_values(ctx, first, n, dst);
    return TM_OK;
}

tm_status tm_source_decode(const tm_source *src, uint32_t t, const tm_source_piece *p, const void *const *raw,
                           uint64_t first, uint64_t n, tm_fmt to, void *out) {
    TM_ASSERT(t < src->n && (to == TM_FMT_F32 || to == TM_FMT_BF16 || to == TM_FMT_F16));
    TM_ASSERT(first >= p->first && n <= p->elements && first - p->first <= p->elements - n);
    const source_entry *s = &src->entry[t];
    if (s->bnb || s->ints) {
        tm_elem elem = to == TM_FMT_F32 ? TM_ELEM_F32 : to == TM_FMT_BF16 ? TM_ELEM_BF16 : TM_ELEM_F16;
        (s->bnb ? tm_bnb_decode : tm_ints_decode)(s, p, raw, first, n, elem, out);
        return TM_OK;
    }
    const stored_run run = {raw[0], p->first, s->info.fmt, to, s->added_one};
    size_t size = tm_fmt_get(to)->block_bytes;
    if (s->transposed)
        return tm_read_transposed(&(tm_transposed){read_run, &run, size, s->info.shape[0], s->info.shape[1]}, first, n,
                                  out);
    if (!s->head_rows) return read_run(&run, first, n, out);
    uint64_t width = s->info.elements / s->info.shape[0];
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t at = first + done, column = at % width;
        take = tm_min_u64(n - done, width - column);
        run_values(&run, tm_permuted_row(at / width, s->head_rows) * width + column, take,
                   (uint8_t *)out + done * size);
    }
    return TM_OK;
}
