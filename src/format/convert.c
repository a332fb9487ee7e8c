/* One model, from one form into another. */
#include "format/export_internal.h"
#include "format/source_internal.h"

#include <string.h>

enum { BUFFER_ELEMENTS = 262144 }; /* 1 MiB of float32 */

tm_status tm_export_stopped(const tm_export_opts *opts) {
    return opts->stop && *opts->stop ? tm_fail(TM_ESIGNAL, "stopped by a signal; nothing was written") : TM_OK;
}

void tm_export_wrote(const tm_export_opts *opts, const tm_wrote_tensor *t) {
    if (opts->wrote) opts->wrote(opts->ctx, t);
}

/* ---- to a folder ---- */

typedef struct folder {
    const tm_source *src;
    const tm_export_opts *opts;
    tm_hf_tensor *tensor;
    uint32_t *from; /* index in the source */
    uint32_t n;
    uint64_t total_bytes, done_bytes;
    tm_fmt dtype;
    float *values;
    void *narrow; /* values once more as they are written, to see what they lose */
} folder;

/* Weights are what has floating values; position ids and the like go along as they are, as do a composite model's other
 * parts. */
static bool is_weight(tm_fmt fmt) {
    return fmt < TM_FMT_I64 || tm_fmt_is_coded(fmt) || (fmt > TM_FMT_C64 && tm_fmt_get(fmt)->readable);
}

static tm_status list_weights(folder *f) {
    uint32_t n = tm_source_tensors(f->src);
    f->tensor = tm_calloc(n + 1, sizeof *f->tensor);
    f->from = tm_calloc(n + 1, sizeof *f->from);
    f->values = tm_malloc(BUFFER_ELEMENTS * sizeof(float));
    f->narrow = tm_malloc(BUFFER_ELEMENTS * sizeof(float));
    bool composite = tm_source_is_composite(f->src);
    if (!f->tensor || !f->from || !f->values || !f->narrow) return tm_nomem(n * sizeof *f->tensor);
    for (uint32_t i = 0; i < n; i++) {
        const tm_source_tensor *t = tm_source_tensor_get(f->src, i);
        bool foreign = composite && !tm_composite_is_text(t->name) && t->fmt < TM_FMT_I64 && !f->src->entry[i].merge;
        bool as_stored = !is_weight(t->fmt) || foreign;
        if (as_stored && tm_source_is_gguf(f->src)) {
            tm_log(TM_LOG_WARN, "%s: '%s' (%s) is no weight and is left out", t->file, t->name,
                   tm_fmt_get(t->fmt)->name);
            continue;
        }
        f->from[f->n] = i;
        f->tensor[f->n] = (tm_hf_tensor){.name = t->name, .ndim = t->ndim, .as_stored = as_stored, .fmt = t->fmt};
        memcpy(f->tensor[f->n++].shape, t->shape, sizeof t->shape);
        f->total_bytes += t->bytes;
    }
    return TM_OK;
}

/* Some bytes, or some values. */
static tm_status copy_some(folder *f, tm_hf_writer *w, uint32_t k, uint64_t at, uint64_t n, tm_lost *lost) {
    if (f->tensor[k].as_stored) {
        TM_TRY(tm_source_read_raw(f->src, f->from[k], at, n, f->values));
        return tm_hf_writer_put_raw(w, k, at, f->values, n);
    }
    TM_TRY(tm_source_read_f32(f->src, f->from[k], at, n, f->values));
    if (f->opts->wrote) TM_TRY(tm_encode_runs(f->dtype, f->values, n, f->narrow, lost));
    return tm_hf_writer_put_f32(w, k, at, n, f->values);
}

static tm_status copy_tensor(folder *f, tm_hf_writer *w, uint32_t k) {
    const tm_source_tensor *t = tm_source_tensor_get(f->src, f->from[k]);
    tm_fmt fmt = f->tensor[k].as_stored ? t->fmt : f->dtype;
    tm_wrote_tensor wrote = {.name = t->name, .type = tm_fmt_get(fmt)->name, .elements = t->elements};
    tm_lost lost = {0};
    uint64_t all = f->tensor[k].as_stored ? t->bytes : t->elements;
    for (uint64_t at = 0, take; at < all; at += take) {
        take = tm_min_u64(all - at, BUFFER_ELEMENTS);
        TM_TRY(tm_export_stopped(f->opts));
        TM_TRY(copy_some(f, w, k, at, take, &lost));
    }
    tm_source_forget(f->src, f->from[k]);
    f->done_bytes += t->bytes;
    if (f->opts->progress) f->opts->progress(f->opts->ctx, f->done_bytes, f->total_bytes);
    (void)tm_fmt_bytes(fmt, t->elements, &wrote.bytes);
    wrote.power = lost.values;
    wrote.error = tm_lost_error(&lost);
    tm_export_wrote(f->opts, &wrote);
    return TM_OK;
}

static tm_status copy_weights(folder *f, const char *dir, tm_fmt dtype) {
    tm_hf_writer *w = NULL;
    tm_status rc;
    TM_GO(list_weights(f));
    TM_GO(tm_hf_writer_create(&w, dir, f->tensor, f->n, dtype, f->opts->max_shard_bytes));
    for (uint32_t k = 0; k < f->n; k++) TM_GO(copy_tensor(f, w, k));
    rc = tm_hf_writer_commit(w);
    w = NULL;
done:
    tm_hf_writer_abandon(w);
    TM_FREE_ALL(f->tensor, f->from, f->values, f->narrow);
    return rc;
}

tm_status tm_export_folder(const tm_source *src, const char *dir, const tm_export_opts *opts) {
    char names[128];
    tm_fmt dtype = opts->to ? opts->to->fmt : TM_FMT_F32;
    folder f = {.src = src, .opts = opts, .dtype = dtype};
    if (opts->to && !opts->to->in_folder)
        return tm_fail(TM_EINPUT, "a Hugging Face folder holds %s, not %s; name OUT with .gguf for that",
                       tm_dtype_names(false, names, sizeof names), opts->to->name);
    TM_TRY(tm_export_check_calibration(opts, false));
    if (opts->to && opts->to->form != TM_FORM_PLAIN) {
        const tm_written *own = tm_export_own_type(src);
        return tm_export_quantised(src, dir, own ? own->fmt : TM_FMT_F32, opts);
    }
    TM_TRY(tm_source_write_side_files(src, dir, dtype));
    return copy_weights(&f, dir, dtype);
}

/* ---- places ---- */

static tm_status found_entry(void *ctx, const char *name, bool is_dir) {
    (void)name, (void)is_dir;
    *(bool *)ctx = true;
    return TM_OK;
}

static tm_status check_free(const char *out) {
    bool occupied = tm_path_exists(out);
    if (tm_path_is_dir(out) && !tm_ends_with(out, ".gguf")) {
        occupied = false;
        TM_TRY(tm_list_dir(out, found_entry, &occupied));
    }
    return occupied ? tm_fail(TM_EINPUT, "%s: is there already; name another place or remove it", out) : TM_OK;
}

tm_status tm_export_place(const char *out, char **place) {
    *place = tm_strdup(out);
    if (!*place) return tm_nomem(strlen(out));
    for (size_t n = strlen(*place); n > 1 && (*place)[n - 1] == '/'; n--) (*place)[n - 1] = 0;
    return check_free(*place);
}

tm_status tm_export_beside(const char *out, tm_status (*write)(const void *ctx, const char *dir), const void *ctx) {
    tm_buf temp = {0};
    tm_status rc, removed;
    uint64_t seed = tm_now_ns();
    TM_GO(tm_buf_printf(&temp, "%s.tmp-%08x", out, (unsigned)tm_hash64(&seed, sizeof seed, 0)));
    TM_GO(tm_make_dirs(temp.data));
    rc = write(ctx, temp.data);
    if (rc == TM_OK) rc = tm_rename_path(temp.data, out);
    if (rc != TM_OK) {
        removed = tm_remove_tree(temp.data);
        rc = tm_first(rc, removed);
    }
done:
    tm_buf_free(&temp);
    return rc;
}

typedef struct whole {
    const tm_source *src;
    const tm_export_opts *opts;
} whole;

static tm_status write_folder(const void *ctx, const char *dir) {
    const whole *w = ctx;
    return tm_export_folder(w->src, dir, w->opts);
}

tm_status tm_export_source(const tm_source *src, const char *out, const tm_export_opts *opts) {
    return tm_ends_with(out, ".gguf") ? tm_export_gguf(src, out, opts)
                                      : tm_export_beside(out, write_folder, &(whole){src, opts});
}

tm_export_opts tm_export_opts_of(const tm_convert_opts *o) {
    return (tm_export_opts){.max_shard_bytes = o->max_shard_bytes,
                            .progress = o->progress,
                            .wrote = o->wrote,
                            .ctx = o->ctx,
                            .calibrated = o->calibrated,
                            .stop = o->stop};
}

tm_status tm_convert(const char *in, const char *out, const tm_convert_opts *opts) {
    tm_export_opts x = tm_export_opts_of(opts);
    tm_source *src = NULL;
    tm_status rc;
    char *place = NULL;
    TM_GO(tm_written_named(opts->dtype, &x.to));
    TM_GO(tm_export_place(out, &place));
    TM_GO(tm_source_open(&src, in));
    rc = tm_export_source(src, place, &x);
done:
    tm_source_close(src);
    tm_free(place);
    return rc;
}
