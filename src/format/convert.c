/* One model, from one form into another. */
#include "format/export_internal.h"
#include "format/source_internal.h"

#include <string.h>

enum { BUFFER_ELEMENTS = 262144 }; /* 1 MiB of float32 */

tm_status tm_export_stopped(const tm_export_opts *opts) {
    return opts->stop && *opts->stop ? tm_fail(TM_ESIGNAL, "stopped by a signal; nothing was written") : TM_OK;
}

/* ---- to a folder ---- */

typedef struct folder {
    const tm_source *src;
    const tm_export_opts *opts;
    tm_hf_tensor *tensor;
    uint32_t *from; /* index in the source */
    uint32_t n;
    uint64_t total_bytes, done_bytes;
    float *values;
} folder;

/* Weights are what has floating values; position ids and the like go along as they are, as do a composite model's other
 * parts. */
static bool is_weight(tm_fmt fmt) {
    return fmt < TM_FMT_I64 || fmt == TM_FMT_NF4 || fmt == TM_FMT_FP4 ||
           (fmt > TM_FMT_C64 && tm_fmt_get(fmt)->readable);
}

static tm_status list_weights(folder *f) {
    uint32_t n = tm_source_tensors(f->src);
    f->tensor = tm_calloc(n + 1, sizeof *f->tensor);
    f->from = tm_calloc(n + 1, sizeof *f->from);
    f->values = tm_malloc(BUFFER_ELEMENTS * sizeof(float));
    bool composite = tm_source_is_composite(f->src);
    if (!f->tensor || !f->from || !f->values) return tm_nomem(n * sizeof *f->tensor);
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

static tm_status copy_tensor(folder *f, tm_hf_writer *w, uint32_t k) {
    const tm_source_tensor *t = tm_source_tensor_get(f->src, f->from[k]);
    bool as_stored = f->tensor[k].as_stored;
    uint64_t all = as_stored ? t->bytes : t->elements;
    for (uint64_t at = 0, take; at < all; at += take) {
        take = tm_min_u64(all - at, BUFFER_ELEMENTS);
        TM_TRY(tm_export_stopped(f->opts));
        if (as_stored) {
            TM_TRY(tm_source_read_raw(f->src, f->from[k], at, take, f->values));
            TM_TRY(tm_hf_writer_put_raw(w, k, at, f->values, take));
            continue;
        }
        TM_TRY(tm_source_read_f32(f->src, f->from[k], at, take, f->values));
        TM_TRY(tm_hf_writer_put_f32(w, k, at, take, f->values));
    }
    tm_source_forget(f->src, f->from[k]);
    f->done_bytes += t->bytes;
    if (f->opts->progress) f->opts->progress(f->opts->ctx, f->done_bytes, f->total_bytes);
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
    tm_free(f->tensor);
    tm_free(f->from);
    tm_free(f->values);
    return rc;
}

tm_status tm_export_folder(const tm_source *src, const char *dir, const tm_export_opts *opts) {
    tm_fmt dtype = opts->has_dtype ? opts->dtype : TM_FMT_F32;
    folder f = {.src = src, .opts = opts};
    if (dtype != TM_FMT_F32 && dtype != TM_FMT_BF16 && dtype != TM_FMT_F16)
        return tm_fail(TM_EINPUT, "a Hugging Face folder holds f32, bf16 or f16, not %s; name OUT with .gguf for that",
                       tm_fmt_get(dtype)->name);
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

tm_status tm_export_dtype(const char *name, tm_export_opts *opts) {
    if (!name) return TM_OK;
    opts->has_dtype = tm_fmt_parse(name, &opts->dtype);
    tm_fmt f = opts->dtype;
    if (opts->has_dtype && (f == TM_FMT_F32 || f == TM_FMT_BF16 || f == TM_FMT_F16 || tm_block_is_written(f)))
        return TM_OK;
    return tm_fail(TM_EINPUT, "dtype '%s' is not one of f32, bf16, f16, q8_0, q5_0, q5_1, q4_0, q4_1", name);
}

tm_export_opts tm_export_opts_of(const tm_convert_opts *o) {
    return (tm_export_opts){
        .max_shard_bytes = o->max_shard_bytes, .progress = o->progress, .ctx = o->ctx, .stop = o->stop};
}

tm_status tm_convert(const char *in, const char *out, const tm_convert_opts *opts) {
    tm_export_opts x = tm_export_opts_of(opts);
    tm_source *src = NULL;
    tm_status rc;
    char *place = NULL;
    TM_GO(tm_export_dtype(opts->dtype, &x));
    TM_GO(tm_export_place(out, &place));
    TM_GO(tm_source_open(&src, in));
    rc = tm_export_source(src, place, &x);
done:
    tm_source_close(src);
    tm_free(place);
    return rc;
}
