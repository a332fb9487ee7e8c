/* A folder in compressed-tensors' form `pack-quantized` (github.com/vllm-project/compressed-tensors, what vLLM, SGLang and
 * transformers load): in place of X.weight [rows, width] of a Linear lie
 *
 *     X.weight_packed   I32 [rows, width * bits / 32, rounded up]: code + 2^(bits - 1), the first in the lowest bits
 *     X.weight_scale    [rows, width / group], or [rows, 1] where a row has one scale; in the folder's dtype
 *     X.weight_shape    I64 [2]
 *
 * and config.json has a quantization_config. Symmetric, round to nearest: scale = largest magnitude / ((2^bits - 1) / 2),
 * rounded to the folder's dtype, code = x / scale to nearest even within -2^(bits - 1) .. 2^(bits - 1) - 1; a value is
 * code * scale. Codes and scales of 4 bits may come from elsewhere (packed_put.c). Streams: some rows at a time. */
#include "format/packed_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ENTRIES = 3, LEAST_GROUP = 32, LARGEST_GROUP = 128 };

uint64_t tm_codes_words(const tm_codes *p, uint64_t width) {
    return (width * p->bits + 31) / 32;
}

uint64_t tm_codes_groups(const tm_codes *p, uint64_t width) {
    return p->group ? width / p->group : 1;
}

/* ---- the list of what is written ---- */

static void add_entry(tm_codes *p, const char *name, const char *suffix, const tm_hf_tensor *t) {
    size_t stem = strlen(name) - (*suffix ? strlen("weight") : 0);
    tm_hf_tensor *e = &p->list[p->n];
    snprintf(p->name[p->n], PACKED_NAME_BYTES, "%.*s%s", (int)stem, name, suffix);
    *e = *t;
    e->name = p->name[p->n++];
}

static void add_packed(tm_codes *p, const tm_source_tensor *t) {
    uint64_t rows = t->shape[0], width = t->shape[1];
    add_entry(
        p, t->name, "weight_packed",
        &(tm_hf_tensor){.ndim = 2, .shape = {rows, tm_codes_words(p, width)}, .as_stored = true, .fmt = TM_FMT_I32});
    add_entry(p, t->name, "weight_scale", &(tm_hf_tensor){.ndim = 2, .shape = {rows, tm_codes_groups(p, width)}});
    add_entry(p, t->name, "weight_shape",
              &(tm_hf_tensor){.ndim = 1, .shape = {2}, .as_stored = true, .fmt = TM_FMT_I64});
}

static tm_status list_entries(tm_codes *p) {
    uint32_t n = tm_source_tensors(p->f->src);
    p->list = tm_calloc((size_t)n * ENTRIES + 1, sizeof *p->list);
    p->name = tm_calloc((size_t)n * ENTRIES + 1, sizeof *p->name);
    p->first = tm_calloc(n + 1, sizeof *p->first);
    p->put = tm_calloc(n + 1, sizeof *p->put);
    p->values = tm_malloc(PACKED_ROOM * sizeof *p->values);
    p->scale = tm_malloc(PACKED_ROOM * sizeof *p->scale);
    p->packed = tm_malloc(PACKED_ROOM * sizeof *p->packed);
    if (!p->list || !p->name || !p->first || !p->put || !p->values || !p->scale || !p->packed)
        return tm_nomem((size_t)n * ENTRIES * sizeof *p->name);
    for (uint32_t i = 0; i < n; i++) {
        const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
        if (strlen(t->name) + 16 > PACKED_NAME_BYTES)
            return tm_fail(TM_EUNSUPPORTED, "the tensor name %.60s... is too long", t->name);
        p->first[i] = p->n;
        if (p->f->quantised[i]) {
            add_packed(p, t);
            continue;
        }
        tm_hf_tensor plain = {.ndim = t->ndim};
        memcpy(plain.shape, t->shape, sizeof plain.shape);
        add_entry(p, t->name, "", &plain);
    }
    return TM_OK;
}

/* ---- codes ---- */

/* One group's scale as the folder stores it, and its codes; what the codes lose is added to *lost. */
static float encode_group(const tm_codes *p, const float *x, uint64_t n, uint32_t *words, uint64_t at, tm_lost *lost) {
    float most = (float)(1u << (p->bits - 1)), largest = 0, scale;
    uint8_t stored[sizeof(float)];
    for (uint64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    scale = largest / (most - 0.5f);
    if (tm_fmt_encode(p->f->rest, &scale, 1, stored) != TM_OK) return NAN;
    tm_fmt_decode(p->f->rest, stored, 1, &scale);
    for (uint64_t i = 0; i < n; i++) {
        float code = scale > 0 ? fmaxf(fminf(nearbyintf(x[i] / scale), most - 1), -most) : 0;
        double v = (double)x[i], d = v - (double)(code * scale);
        uint64_t bit = (at + i) * p->bits;
        words[bit / 32] |= (uint32_t)(code + most) << bit % 32;
        lost->values += v * v;
        lost->differences += d * d;
    }
    return scale;
}

static bool encode_row(const tm_codes *p, const float *x, uint64_t width, float *scale, uint32_t *words,
                       tm_lost *lost) {
    uint64_t size = p->group ? p->group : width, fine = 0;
    memset(words, 0, tm_codes_words(p, width) * sizeof *words);
    for (uint64_t g = 0; g < tm_codes_groups(p, width); g++) {
        scale[g] = encode_group(p, x + g * size, size, words, g * size, lost);
        fine += isfinite(scale[g]) ? 1 : 0;
    }
    return fine == tm_codes_groups(p, width);
}

/* Rows of a matrix from `row` on, which are in p->values. */
static tm_status put_rows(tm_codes *p, uint32_t i, uint64_t row, uint64_t rows, tm_lost *lost) {
    enum { AT_ONCE = 64 }; /* rows whose losses are summed apart, in order */
    const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
    uint64_t width = t->shape[1], groups = tm_codes_groups(p, width), words = tm_codes_words(p, width), bad = 0;
    for (uint64_t from = 0; from < rows; from += AT_ONCE) {
        tm_lost part[AT_ONCE] = {{0}};
        int64_t n = (int64_t)tm_min_u64(AT_ONCE, rows - from);
#pragma omp parallel for schedule(static) reduction(+ : bad)
        for (int64_t k = 0; k < n; k++) {
            uint64_t r = from + (uint64_t)k;
            bad += encode_row(p, p->values + r * width, width, p->scale + r * groups, p->packed + r * words, &part[k])
                       ? 0
                       : 1;
        }
        for (int64_t k = 0; k < n; k++) lost->values += part[k].values, lost->differences += part[k].differences;
    }
    if (bad || !isfinite(lost->values))
        return tm_fail(TM_EINPUT,
                       "%s: '%s' has values that are not finite or too large for scales in the folder's dtype", t->file,
                       t->name);
    TM_TRY(tm_hf_writer_put_raw(p->w, p->first[i] + PACKED_CODES, row * words * sizeof *p->packed, p->packed,
                                rows * words * sizeof *p->packed));
    return tm_hf_writer_put_f32(p->w, p->first[i] + PACKED_SCALE, row * groups, rows * groups, p->scale);
}

static tm_status put_packed(tm_codes *p, uint32_t i) {
    const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
    uint64_t rows = t->shape[0], width = t->shape[1], at_once = PACKED_ROOM / width;
    tm_lost lost = {0};
    for (uint64_t row = 0, take; row < rows; row += take) {
        take = tm_min_u64(at_once, rows - row);
        TM_TRY(tm_export_stopped(p->f->opts));
        TM_TRY(tm_source_read_f32(p->f->src, i, row * width, take * width, p->values));
        TM_TRY(put_rows(p, i, row, take, &lost));
    }
    return tm_codes_end(p, i, &lost, 0);
}

static tm_status put_plain(tm_codes *p, uint32_t i) {
    const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
    const tm_fmt_info *rest = tm_fmt_get(p->f->rest);
    tm_lost lost = {0};
    for (uint64_t at = 0, take; at < t->elements; at += take) {
        take = tm_min_u64(PACKED_ROOM, t->elements - at);
        TM_TRY(tm_export_stopped(p->f->opts));
        TM_TRY(tm_source_read_f32(p->f->src, i, at, take, p->values));
        TM_TRY(tm_encode_runs(p->f->rest, p->values, take, p->packed, &lost));
        TM_TRY(tm_hf_writer_put_f32(p->w, p->first[i], at, take, p->values));
    }
    tm_export_wrote(p->f->opts, &(tm_wrote_tensor){.name = t->name,
                                                   .type = rest->name,
                                                   .elements = t->elements,
                                                   .bytes = t->elements * rest->block_bytes,
                                                   .power = lost.values,
                                                   .error = tm_lost_error(&lost)});
    return TM_OK;
}

/* ---- the whole ---- */

/* The largest group that divides the rows of all matrices. */
static tm_status choose_group(tm_codes *p) {
    p->group = LARGEST_GROUP;
    for (uint32_t i = 0; i < tm_source_tensors(p->f->src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
        if (!p->f->quantised[i]) continue;
        if (t->shape[1] % LEAST_GROUP != 0)
            return tm_fail(TM_EUNSUPPORTED, "%s: rows of '%s' are no multiple of %d; take int8", t->file, t->name,
                           (int)LEAST_GROUP);
        while (t->shape[1] % p->group != 0) p->group /= 2;
    }
    return TM_OK;
}

static tm_status check_widths(const tm_codes *p) {
    for (uint32_t i = 0; i < tm_source_tensors(p->f->src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
        if (p->f->quantised[i] && t->shape[1] > PACKED_ROOM)
            return tm_fail(TM_EUNSUPPORTED, "%s: rows of '%s' are longer than %d", t->file, t->name, (int)PACKED_ROOM);
    }
    return TM_OK;
}

static tm_status put_json(const tm_codes *p, tm_buf *json) {
    tm_json_writer j;
    tm_jw_init(&j, json, 0);
    tm_jw_object(&j);
    tm_jw_field_str(&j, "quant_method", "compressed-tensors");
    tm_jw_field_str(&j, "format", "pack-quantized");
    tm_jw_field_str(&j, "quantization_status", "compressed");
    tm_jw_field_object(&j, "config_groups");
    tm_jw_field_object(&j, "group_0");
    tm_jw_field_array(&j, "targets");
    tm_jw_str(&j, "Linear");
    tm_jw_array_end(&j);
    tm_jw_field_object(&j, "weights");
    tm_jw_field_uint(&j, "num_bits", p->bits);
    tm_jw_field_str(&j, "type", "int");
    tm_jw_field_bool(&j, "symmetric", true);
    tm_jw_field_bool(&j, "dynamic", false);
    tm_jw_field_str(&j, "strategy", p->group ? "group" : "channel");
    if (p->group) tm_jw_field_uint(&j, "group_size", p->group);
    tm_jw_object_end(&j);
    tm_jw_object_end(&j);
    tm_jw_object_end(&j);
    tm_quantised_folder_skipped(p->f, &j, "ignore");
    tm_jw_object_end(&j);
    return tm_jw_end(&j);
}

static tm_status put_all(tm_codes *p) {
    for (uint32_t i = 0; i < tm_source_tensors(p->f->src); i++) {
        if (p->put[i]) continue;
        TM_TRY(p->f->quantised[i] ? put_packed(p, i) : put_plain(p, i));
        tm_source_forget(p->f->src, i);
        tm_quantised_folder_progress(p->f, i);
    }
    return TM_OK;
}

tm_status tm_write_packed(const tm_quantised_folder *f, unsigned bits, bool groups, tm_buf *json) {
    tm_codes p = {.f = f, .bits = bits};
    tm_status rc;
    TM_GO(check_widths(&p));
    if (groups) TM_GO(choose_group(&p));
    TM_GO(list_entries(&p));
    TM_GO(tm_hf_writer_create(&p.w, f->dir, p.list, p.n, f->rest, f->opts->max_shard_bytes));
    if (f->opts->to->method != TM_PACK_NEAREST) TM_GO(tm_export_calibrate(f->src, f->opts, &p, f->dir));
    TM_GO(put_all(&p));
    rc = tm_hf_writer_commit(p.w);
    p.w = NULL;
    if (rc == TM_OK) rc = put_json(&p, json);
done:
    tm_hf_writer_abandon(p.w);
    TM_FREE_ALL(p.list, p.name, p.first, p.put, p.values, p.scale, p.packed);
    return rc;
}
