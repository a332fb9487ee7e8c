/* Matrices of integer codes (ints_internal.h): what belongs together becomes one tensor X.weight of its own shape, of
 * which codes, scales, zeros and the index of groups stay in the file. */
#include "format/ints_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct folding {
    tm_source *src;
    bool *gone; /* entries that were found to belong to another */
    source_entry *codes;
    const char *stem; /* "model.layers.0.mlp.up_proj.weight", or ".." without "weight": what companions begin with */
    size_t stem_len;
    int_tensor *t;
    tm_source_tensor info; /* what the codes become */
} folding;

/* A companion of the codes; *out NULL where there is none. It leaves the table. */
static tm_status companion(folding *f, const char *name, const source_entry **out) {
    tm_buf full = {0};
    tm_status rc = tm_buf_printf(&full, "%.*s%s", (int)f->stem_len, f->stem, name);
    int64_t at = rc == TM_OK ? tm_source_find(f->src, full.data) : -1;
    tm_buf_free(&full);
    *out = at < 0 ? NULL : &f->src->entry[at];
    if (at >= 0) f->gone[at] = true;
    return rc;
}

static tm_status missing(const folding *f, const char *name) {
    return tm_fail(TM_EINPUT, "%s: '%s' is there, but no '%.*s%s' (%s); the folder is damaged, or not whole",
                   f->codes->info.file, f->codes->info.name, (int)f->stem_len, f->stem, name,
                   f->src->ints_form->method);
}

static tm_status misfit(const folding *f, const source_entry *e, const char *why) {
    if (e == f->codes)
        return tm_fail(TM_EINPUT, "%s: '%s': %s (quantization_config: %s)", e->info.file, e->info.name, why,
                       f->src->ints_form->method);
    return tm_fail(TM_EINPUT, "%s: '%s' does not fit '%s': %s (quantization_config: %s)", e->info.file, e->info.name,
                   f->codes->info.name, why, f->src->ints_form->method);
}

static bool has_shape(const source_entry *e, uint64_t rows, uint64_t columns) {
    return e->info.ndim == 2 && e->info.shape[0] == rows && e->info.shape[1] == columns;
}

static bool is_scale(tm_fmt fmt) {
    return fmt == TM_FMT_F16 || fmt == TM_FMT_BF16 || fmt == TM_FMT_F32;
}

static source_place place_of(const source_entry *e) {
    return (source_place){e->handle, e->info.file, e->info.offset};
}

/* ---- the index of groups: of each column */

static int32_t stored_int(const uint8_t *bytes, uint64_t i) {
    int32_t v;
    memcpy(&v, bytes + 4 * i, sizeof v);
    return v;
}

/* Column c is of group c / group: that needs no index. */
static bool is_plain_order(const int_tensor *t, const uint8_t *bytes) {
    for (uint64_t c = 0; c < t->width; c++)
        if ((uint64_t)(uint32_t)stored_int(bytes, c) != c / t->group) return false;
    return true;
}

static tm_status check_order(folding *f, const source_entry *e, const uint8_t *bytes) {
    int_tensor *t = f->t;
    char why[96];
    for (uint64_t c = 0; c < t->width; c++) {
        int32_t g = stored_int(bytes, c);
        if (g == -1 && t->layout == INT_BY_ROWS) return TM_OK; /* compressed-tensors: there is none */
        if (g >= 0 && (uint64_t)(uint32_t)g < t->groups) continue;
        snprintf(why, sizeof why, "column %" PRIu64 " is of group %d, of %" PRIu64, c, (int)g, t->groups);
        return misfit(f, e, why);
    }
    if (is_plain_order(t, bytes)) return TM_OK;
    if (t->groups > INT_ORDERED_GROUPS) return misfit(f, e, "an index of more than 2048 groups is not read");
    t->ordered = true;
    t->order = place_of(e);
    return TM_OK;
}

static tm_status fold_order(folding *f, const char *name) {
    const source_entry *e;
    TM_TRY(companion(f, name, &e));
    if (!e) return TM_OK;
    if (e->info.fmt != TM_FMT_I32 || e->info.elements != f->t->width) return misfit(f, e, "it is not an I32 a column");
    uint8_t *bytes = tm_malloc(e->info.bytes);
    if (!bytes) return tm_nomem(e->info.bytes);
    tm_status rc = tm_file_read_at(e->handle, e->info.offset, bytes, e->info.bytes);
    if (rc == TM_OK) rc = check_order(f, e, bytes);
    tm_free(bytes);
    return rc;
}

/* ---- compressed-tensors ---- */

static tm_status read_shape(folding *f) {
    const source_entry *e;
    int64_t shape[2] = {0, 0};
    TM_TRY(companion(f, "_shape", &e));
    if (!e) return missing(f, "_shape");
    bool wide = e->info.fmt == TM_FMT_I64;
    if (e->info.elements != 2 || (!wide && e->info.fmt != TM_FMT_I32)) return misfit(f, e, "it is not two sizes");
    int32_t narrow[2] = {0, 0};
    TM_TRY(tm_file_read_at(e->handle, e->info.offset, wide ? (void *)shape : (void *)narrow, e->info.bytes));
    for (int i = 0; i < 2 && !wide; i++) shape[i] = narrow[i];
    if (shape[0] < 1 || shape[1] < 1) return misfit(f, e, "its sizes are none");
    f->t->rows = (uint64_t)shape[0], f->t->width = (uint64_t)shape[1];
    return TM_OK;
}

/* The scheme that the codes and scales are of: config.json tells them apart by names of layers, we by their shapes, of
 * which no two schemes have the same. */
static bool is_of(const folding *f, const int_scheme *s, const source_entry *scale) {
    const int_tensor *t = f->t;
    uint64_t group = s->group ? s->group : t->width,
             words = t->width / (32 / s->bits) + (t->width % (32 / s->bits) != 0);
    if (f->codes->info.shape[1] != words || t->width % group != 0) return false;
    return has_shape(scale, t->rows, t->width / group) ||
           (!s->group && scale->info.ndim == 1 && scale->info.shape[0] == t->rows);
}

static tm_status no_scheme(const folding *f, const source_entry *scale) {
    const int_scheme *s = &f->src->ints_form->scheme[0];
    uint64_t width = f->t->width, groups = scale->info.ndim == 2 ? scale->info.shape[1] : 1;
    char why[160];
    if (s->group && width % s->group != 0)
        snprintf(why, sizeof why, "group_size %" PRIu64 " does not divide %" PRIu64 " columns", s->group, width);
    else
        snprintf(why, sizeof why,
                 "of %" PRIu64 " x %" PRIu64 " weights there are %" PRIu64 " words and %" PRIu64
                 " scales a row, not as config_groups have it (%u bits, group_size %" PRIu64 ")",
                 f->t->rows, width, f->codes->info.shape[1], groups, s->bits, s->group);
    return misfit(f, scale, why);
}

static tm_status packed_zeros(folding *f, const int_scheme *s) {
    int_tensor *t = f->t;
    const source_entry *e;
    TM_TRY(companion(f, "_zero_point", &e));
    if (!e) return s->symmetric ? TM_OK : missing(f, "_zero_point");
    if (e->info.fmt == TM_FMT_I8 && e->info.elements == t->rows * t->groups)
        t->zero_kind = INT_ZERO_BYTES;
    else if (e->info.fmt == TM_FMT_I32 && has_shape(e, int_words(t, t->rows), t->groups))
        t->zero_kind = INT_ZERO_WORDS;
    else
        return misfit(f, e, "it is neither an I8 a scale nor words of them");
    t->zero = place_of(e);
    return TM_OK;
}

static tm_status fold_packed(folding *f) {
    const int_form *form = f->src->ints_form;
    const int_scheme *s = NULL;
    const source_entry *scale;
    TM_TRY(read_shape(f));
    TM_TRY(companion(f, "_scale", &scale));
    if (!scale) return missing(f, "_scale");
    if (f->codes->info.shape[0] != f->t->rows) return misfit(f, f->codes, "it has other rows than its shape says");
    for (uint32_t i = 0; i < form->n && !s; i++) s = is_of(f, &form->scheme[i], scale) ? &form->scheme[i] : NULL;
    if (!s) return no_scheme(f, scale);
    if (!is_scale(scale->info.fmt)) return misfit(f, scale, "scales are F16, BF16 or F32");
    f->t->bits = s->bits;
    f->t->group = s->group ? s->group : f->t->width;
    f->t->groups = f->t->width / f->t->group;
    f->t->scale = place_of(scale);
    f->t->scale_fmt = scale->info.fmt;
    TM_TRY(packed_zeros(f, s));
    TM_TRY(fold_order(f, "_g_idx"));
    f->info.fmt = s->bits == 4 ? TM_FMT_INT4 : TM_FMT_INT8;
    return TM_OK;
}

/* ---- AutoGPTQ and AutoAWQ ---- */

static tm_status fold_scales(folding *f) {
    int_tensor *t = f->t;
    const source_entry *scale, *zero;
    TM_TRY(companion(f, "scales", &scale));
    TM_TRY(companion(f, "qzeros", &zero));
    if (!scale || !zero) return missing(f, scale ? "qzeros" : "scales");
    if (!is_scale(scale->info.fmt)) return misfit(f, scale, "scales are F16, BF16 or F32");
    if (!has_shape(scale, t->groups, t->rows))
        return misfit(f, scale, "it is not a scale for each group and row; is group_size right?");
    if (zero->info.fmt != TM_FMT_I32 || !has_shape(zero, t->groups, int_words(t, t->rows)))
        return misfit(f, zero, "it is not a zero for each group and row");
    t->scale = place_of(scale), t->scale_fmt = scale->info.fmt;
    t->zero = place_of(zero), t->zero_kind = INT_ZERO_WORDS;
    return TM_OK;
}

static tm_status fold_transposed(folding *f) {
    const int_form *form = f->src->ints_form;
    int_tensor *t = f->t;
    uint64_t per = 32 / form->scheme[0].bits, lines = f->codes->info.shape[0], words = f->codes->info.shape[1];
    bool awq = form->layout == INT_AWQ;
    t->bits = form->scheme[0].bits;
    if (!tm_mul_u64(awq ? words : lines, per, awq ? &t->rows : &t->width))
        return misfit(f, f->codes, "its size overflows");
    if (awq)
        t->width = lines;
    else
        t->rows = words;
    t->group = form->scheme[0].group ? form->scheme[0].group : t->width;
    t->groups = (t->width - 1) / t->group + 1;
    if (t->rows % per != 0) return misfit(f, f->codes, "its rows are no whole words of zeros");
    if (awq && t->width % t->group != 0) return misfit(f, f->codes, "group_size does not divide its columns");
    TM_TRY(fold_scales(f));
    if (!awq) TM_TRY(fold_order(f, "g_idx"));
    f->info.fmt = awq ? TM_FMT_AWQ4 : t->bits == 4 ? TM_FMT_GPTQ4 : TM_FMT_GPTQ8;
    return TM_OK;
}

/* ---- all tensors ---- */

static const char *codes_ending(const tm_source *src) {
    return src->ints_form->layout == INT_BY_ROWS ? ".weight_packed" : ".qweight";
}

static tm_status fold_codes(folding *f) {
    int_tensor *t = f->t;
    if (f->codes->info.fmt != TM_FMT_I32 || f->codes->info.ndim != 2 || f->codes->info.elements == 0)
        return misfit(f, f->codes, "it is not a matrix of I32");
    TM_TRY(t->layout == INT_BY_ROWS ? fold_packed(f) : fold_transposed(f));
    f->info.shape[0] = t->rows, f->info.shape[1] = t->width;
    if (!tm_shape_elements(f->info.shape, 2, &f->info.elements) || f->info.elements > INT64_MAX / 8)
        return misfit(f, f->codes, "its size overflows");
    return TM_OK;
}

static tm_status fold_tensor(tm_source *src, bool *gone, source_entry *codes) {
    bool packed = src->ints_form->layout == INT_BY_ROWS;
    const char *name = codes->info.name;
    size_t stem = strlen(name) - strlen(packed ? "_packed" : "qweight"), cap = stem + sizeof "weight";
    int_tensor *t = tm_calloc(1, sizeof *t + cap);
    if (!t) return tm_nomem(sizeof *t + cap);
    t->next = src->ints;
    src->ints = t;
    snprintf(t->name, cap, "%.*s%s", (int)stem, name, packed ? "" : "weight");
    t->layout = src->ints_form->layout;
    t->one_less = src->ints_form->one_less;
    t->strip = src->strip;
    folding f = {.src = src, .gone = gone, .codes = codes, .stem = name, .stem_len = stem, .t = t, .info = codes->info};
    TM_TRY(fold_codes(&f));
    codes->info = f.info; /* and the name, once no more is looked up */
    codes->ints = t;
    return TM_OK;
}

/* What is left of codes that are not there. */
static tm_status check_left(const tm_source *src, const bool *gone) {
    static const char *const packed[] = {".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"},
                             *const transposed[] = {".qzeros", ".scales", ".g_idx"};
    bool rows = src->ints_form->layout == INT_BY_ROWS;
    const char *const *endings = rows ? packed : transposed;
    for (uint32_t i = 0; i < src->n; i++)
        for (size_t k = 0; k < (rows ? TM_COUNT(packed) : TM_COUNT(transposed)); k++)
            if (!gone[i] && tm_ends_with(src->entry[i].info.name, endings[k]))
                return tm_fail(TM_EINPUT,
                               "%s: '%s' is there, but no '%s' beside it; the folder is damaged, or not whole",
                               src->entry[i].info.file, src->entry[i].info.name, codes_ending(src) + 1);
    return TM_OK;
}

static void keep_whole(tm_source *src, const bool *gone) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < src->n; i++) {
        if (gone[i]) continue;
        src->entry[n] = src->entry[i];
        if (src->entry[n].ints) src->entry[n].info.name = src->entry[n].ints->name;
        n++;
    }
    src->n = n;
}

static tm_status fold_all(tm_source *src, bool *gone) {
    uint32_t folded = 0;
    for (uint32_t i = 0; i < src->n; i++) {
        if (!tm_ends_with(src->entry[i].info.name, codes_ending(src))) continue;
        TM_TRY(fold_tensor(src, gone, &src->entry[i]));
        folded++;
    }
    TM_TRY(check_left(src, gone));
    keep_whole(src, gone);
    return folded ? TM_OK
                  : tm_fail(TM_EINPUT, "%s: config.json says that it is quantised (%s), but no tensor is called '*%s'",
                            src->path, src->ints_form->method, codes_ending(src));
}

/* Codes that nothing is said of. AutoGPTQ's folders of 2023 have a file of their own for that. */
static tm_status check_unsaid(const tm_source *src) {
    for (uint32_t i = 0; i < src->n; i++) {
        const tm_source_tensor *t = &src->entry[i].info;
        if (tm_ends_with(t->name, ".qweight") || tm_ends_with(t->name, ".weight_packed"))
            return tm_fail(TM_EINPUT,
                           "%s: '%s' is codes, but config.json has no quantization_config; put into it what "
                           "quantize_config.json says, with \"quant_method\": \"gptq\"",
                           t->file, t->name);
    }
    return TM_OK;
}

tm_status tm_ints_fold(tm_source *src) {
    if (!src->ints_form) return src->gguf ? TM_OK : check_unsaid(src);
    TM_TRY(tm_ints_strip(&src->strip));
    bool *gone = tm_calloc(src->n, sizeof *gone);
    if (!gone) return tm_nomem(src->n);
    tm_status rc = fold_all(src, gone);
    tm_free(gone);
    return rc == TM_OK ? tm_source_sort(src) : rc;
}

void tm_ints_close(tm_source *src) {
    for (int_tensor *t = src->ints, *next; t; t = next) {
        next = t->next;
        tm_free(t);
    }
    tm_ints_strip_free(src->strip);
    tm_free(src->ints_form);
}
