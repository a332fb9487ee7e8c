/* A folder of quantised weights, in any form: which matrices they are, and what lies beside them. */
#include "format/quantised_folder_internal.h"
#include "format/source_internal.h"

#include <ctype.h>
#include <string.h>

enum { BUFFER_ELEMENTS = 1 << 18, BLOCK = 64 /* elements of an NF4 scale */ };

/* A matrix of a block, ".layers.N." or ".h.N." in its name, that has elements. */
static bool is_of_block(const tm_source_tensor *t) {
    static const char *const lists[] = {"layers.", "h."};
    if (t->ndim != 2 || t->elements == 0 || !tm_ends_with(t->name, ".weight")) return false;
    for (size_t k = 0; k < TM_COUNT(lists); k++) {
        const char *at = strstr(t->name, lists[k]);
        if (at && (at == t->name || at[-1] == '.') && isdigit((unsigned char)at[strlen(lists[k])])) return true;
    }
    return false;
}

void tm_quantised_folder_skipped(const tm_quantised_folder *f, tm_json_writer *j, const char *key) {
    tm_jw_field_array(j, key);
    tm_jw_str(j, "lm_head");
    for (uint32_t i = 0; i < tm_source_tensors(f->src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(f->src, i);
        if (!f->quantised[i] && tm_taken_for_linear(t->name, t->ndim))
            tm_jw_strn(j, t->name, strlen(t->name) - strlen(".weight"));
    }
    tm_jw_array_end(j);
}

void tm_quantised_folder_progress(const tm_quantised_folder *f, uint32_t done) {
    uint64_t before = 0, all = 0;
    if (!f->opts->progress) return;
    for (uint32_t i = 0; i < tm_source_tensors(f->src); i++) {
        uint64_t bytes = tm_source_tensor_get(f->src, i)->bytes;
        all += bytes;
        before += i <= done ? bytes : 0;
    }
    f->opts->progress(f->opts->ctx, before, all);
}

/* ---- bitsandbytes' form (quantise.c) ---- */

static tm_status read_values(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *values) {
    const tm_quantised_folder *f = ctx;
    TM_TRY(tm_export_stopped(f->opts));
    return tm_source_read_f32(f->src, t, first, n, values);
}

static tm_status lost_by(const tm_quantised_folder *f, const tm_source *file, uint32_t i, float *a, float *b) {
    const tm_source_tensor *t = tm_source_tensor_get(f->src, i);
    int64_t at = tm_source_find(file, t->name);
    tm_lost lost = {0};
    TM_ASSERT(at >= 0);
    const tm_source_tensor *is = tm_source_tensor_get(file, (uint32_t)at);
    for (uint64_t done = 0, n; done < t->elements; done += n) {
        n = tm_min_u64(BUFFER_ELEMENTS, t->elements - done);
        TM_TRY(read_values((void *)(uintptr_t)f, i, done, n, a));
        TM_TRY(tm_source_read_f32(file, (uint32_t)at, done, n, b));
        for (uint64_t k = 0; k < n; k++) {
            lost.values += (double)a[k] * (double)a[k];
            lost.differences += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
        }
    }
    uint64_t bytes = f->quantised[i] ? tm_quantised_bytes(t->elements, BLOCK, true) : is->bytes;
    tm_export_wrote(f->opts, &(tm_wrote_tensor){.name = t->name,
                                                .type = tm_fmt_get(is->fmt)->name,
                                                .elements = t->elements,
                                                .bytes = bytes,
                                                .power = lost.values,
                                                .error = tm_lost_error(&lost)});
    return TM_OK;
}

/* What it lost, from what was written. */
static tm_status report(const tm_quantised_folder *f) {
    tm_source *file = NULL;
    tm_status rc;
    float *a = tm_malloc(BUFFER_ELEMENTS * sizeof *a), *b = tm_malloc(BUFFER_ELEMENTS * sizeof *b);
    rc = a && b ? TM_OK : tm_nomem(BUFFER_ELEMENTS * sizeof *a);
    if (rc == TM_OK) rc = tm_source_open(&file, f->dir);
    for (uint32_t i = 0; i < tm_source_tensors(f->src) && rc == TM_OK; i++) rc = lost_by(f, file, i, a, b);
    tm_source_close(file);
    TM_FREE_ALL(a, b);
    return rc;
}

static void show(void *ctx, uint64_t done, uint64_t total) {
    const tm_quantised_folder *f = ctx;
    if (f->opts->progress) f->opts->progress(f->opts->ctx, done, total);
}

static tm_status write_nf4(tm_quantised_folder *f, tm_buf *json) {
    uint32_t n = tm_source_tensors(f->src);
    tm_quantise_tensor *list = tm_calloc(n + 1, sizeof *list);
    if (!list) return tm_nomem(n * sizeof *list);
    for (uint32_t i = 0; i < n; i++) {
        const tm_source_tensor *t = tm_source_tensor_get(f->src, i);
        list[i] = (tm_quantise_tensor){
            .name = t->name, .ndim = t->ndim, .elements = t->elements, .four_bits = f->quantised[i]};
        memcpy(list[i].shape, t->shape, sizeof list[i].shape);
    }
    const tm_quantise_opts o = {.fmt = TM_FMT_NF4,
                                .double_quant = true,
                                .block = BLOCK,
                                .rest = f->rest,
                                .tensor = list,
                                .n = n,
                                .read = read_values,
                                .ctx = f,
                                .progress = show,
                                .progress_ctx = f};
    tm_status rc = tm_quantise(f->src, f->dir, &o);
    if (rc == TM_OK) rc = tm_quantise_json(&o, json);
    tm_free(list);
    return rc == TM_OK && f->opts->wrote ? report(f) : rc;
}

/* ---- the whole ---- */

static tm_status check_source(const tm_quantised_folder *f) {
    const tm_source *src = f->src;
    uint32_t matrices = 0;
    if (tm_source_is_composite(src))
        return tm_fail(TM_EUNSUPPORTED, "%s: has other parts than text, which are not quantised; take f32, bf16 or f16",
                       tm_source_path(src));
    for (uint32_t i = 0; i < tm_source_tensors(src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(src, i);
        if (t->fmt >= TM_FMT_I64 && t->fmt <= TM_FMT_C64)
            return tm_fail(TM_EUNSUPPORTED, "%s: '%s' (%s) is no weight; take f32, bf16 or f16", t->file, t->name,
                           tm_fmt_get(t->fmt)->name);
        matrices += f->quantised[i];
    }
    if (strstr(tm_source_config(src, &(size_t){0}), "\"gpt2\""))
        return tm_fail(TM_EUNSUPPORTED, "%s: GPT-2's matrices are no Linears, which these forms are of; take GGUF",
                       tm_source_path(src));
    return matrices ? TM_OK : tm_fail(TM_EUNSUPPORTED, "%s: has no matrices in blocks", tm_source_path(src));
}

static tm_status write_weights(tm_quantised_folder *f, tm_buf *json) {
    const tm_written *to = f->opts->to;
    return to->form == TM_FORM_NF4 ? write_nf4(f, json) : tm_write_packed(f, to->bits, to->bits == 4, json);
}

tm_status tm_export_quantised(const tm_source *src, const char *dir, tm_fmt rest, const tm_export_opts *opts) {
    tm_buf json = {0};
    tm_status rc;
    uint32_t n = tm_source_tensors(src);
    bool *quantised = tm_calloc(n + 1, sizeof *quantised);
    if (!quantised) return tm_nomem(n);
    tm_quantised_folder f = {.src = src, .opts = opts, .dir = dir, .rest = rest, .quantised = quantised};
    for (uint32_t i = 0; i < n; i++) quantised[i] = is_of_block(tm_source_tensor_get(src, i));
    TM_GO(check_source(&f));
    TM_GO(write_weights(&f, &json));
    rc = tm_source_write_side_files_of(src, dir, rest, json.data);
done:
    tm_buf_free(&json);
    tm_free(quantised);
    return rc;
}
