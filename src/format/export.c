/* `tidemill export`: a model into another form, an adapter into its base, an adapter into another form. */
#include "format/export_internal.h"
#include "format/peft_internal.h"

#include <string.h>

const tm_written *tm_export_own_type(const tm_source *src) {
    static const struct {
        const char *name;
        tm_fmt fmt;
    } rows[] = {{"float32", TM_FMT_F32}, {"bfloat16", TM_FMT_BF16}, {"float16", TM_FMT_F16}};
    size_t len;
    tm_json_doc *doc;
    const tm_written *own = NULL;
    const char *text = tm_source_config(src, &len);
    if (tm_json_parse(&doc, text, len, "config.json", 0, 0) != TM_OK) {
        tm_error_clear(); /* whoever needs it will say so */
        return NULL;
    }
    const tm_json *root = tm_json_root(doc), *part = tm_json_get(root, "text_config");
    const tm_json *const said[] = {tm_json_get(root, "dtype"), tm_json_get(root, "torch_dtype"),
                                   tm_json_get(part, "dtype"), tm_json_get(part, "torch_dtype")};
    for (size_t i = 0; i < TM_COUNT(said) && !own; i++)
        for (size_t k = 0; k < TM_COUNT(rows); k++)
            if (said[i] && tm_json_is(said[i], rows[k].name)) own = tm_written_by_fmt(rows[k].fmt);
    tm_json_free(doc);
    return own;
}

static tm_status write_model(const tm_export_request *r, const tm_source *src, const char *out, tm_export_opts x) {
    if (r->dtype_of_config && !x.to && !tm_ends_with(out, ".gguf")) x.to = tm_export_own_type(src);
    return tm_export_source(src, out, &x);
}

static tm_status export_model(const tm_export_request *r, const char *out, const tm_export_opts *x) {
    tm_source *src;
    if (r->merge || r->base)
        return tm_fail(TM_EINPUT,
                       "%s: has no adapter_config.json, so there is nothing to merge; name an adapter's folder", r->in);
    TM_TRY(tm_source_open(&src, r->in));
    tm_status rc = write_model(r, src, out, *x);
    tm_source_close(src);
    return rc;
}

typedef struct adapter_job {
    const tm_adapter_folder *f;
    const tm_source *base;
    const tm_export_opts *opts;
} adapter_job;

static tm_status write_adapter(const void *ctx, const char *dir) {
    const adapter_job *j = ctx;
    return peft_export_folder(j->f, j->base, dir, j->opts);
}

static tm_status merge(const tm_export_request *r, const adapter_job *j, const char *out) {
    tm_source *merged;
    TM_TRY(tm_source_merge(&merged, j->base, j->f));
    tm_status rc = write_model(r, merged, out, *j->opts);
    tm_source_close(merged);
    return rc;
}

/* A folder of plain LoRA is copied without asking for its base. */
static tm_status open_base(const tm_export_request *r, const tm_adapter_folder *f, tm_source **base) {
    tm_buf path = {0};
    bool plain = f->config->init != TM_ADAPTER_INIT_PISSA;
    if (!r->merge && plain && !r->base && !tm_ends_with(r->out, ".gguf")) return TM_OK;
    tm_status rc = tm_adapter_folder_base(f, r->base, &path);
    if (rc == TM_OK) rc = tm_source_open(base, path.data);
    if (rc == TM_OK) rc = tm_adapter_folder_check(f, *base);
    tm_buf_free(&path);
    return rc;
}

static tm_status export_adapter(const tm_export_request *r, const char *out, const tm_export_opts *x) {
    tm_adapter_folder *f;
    tm_source *base = NULL;
    if (r->convert.calibrated && !r->merge)
        return tm_fail(TM_EINPUT, "%s: is an adapter by itself, which is not calibrated; add --merge-adapter", r->in);
    TM_TRY(tm_adapter_folder_open(&f, r->in));
    tm_status rc = open_base(r, f, &base);
    const adapter_job job = {f, base, x};
    if (rc == TM_OK)
        rc = r->merge                     ? merge(r, &job, out)
             : tm_ends_with(out, ".gguf") ? peft_export_gguf(f, base, out, x)
                                          : tm_export_beside(out, write_adapter, &job);
    tm_source_close(base);
    tm_adapter_folder_close(f);
    return rc;
}

tm_status tm_export(const tm_export_request *r) {
    tm_export_opts x = tm_export_opts_of(&r->convert);
    char *place = NULL;
    tm_status rc;
    TM_GO(tm_written_named(r->convert.dtype, &x.to));
    TM_GO(tm_export_place(r->out, &place));
    if (r->source)
        rc = write_model(r, r->source, place, x);
    else
        rc = tm_is_adapter_folder(r->in) ? export_adapter(r, place, &x) : export_model(r, place, &x);
done:
    tm_free(place);
    return rc;
}
