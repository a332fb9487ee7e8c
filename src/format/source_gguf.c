/* A .gguf file as a tm_source: HF's names, shapes, row order and files. */
#include "format/gguf_internal.h"
#include "format/source_internal.h"

#include <inttypes.h>
#include <string.h>

static tm_status set_op(source_entry *e, tm_op op, const tm_gguf_keys *k) {
    uint64_t wanted = (uint64_t)(op == TM_OP_Q ? k->heads : k->kv_heads) * k->head_dim;
    bool rows = op == TM_OP_Q || op == TM_OP_K;
    if (rows && e->info.shape[0] != wanted)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " rows, but the heads need %" PRIu64, e->info.file,
                       e->info.name, e->info.shape[0], wanted);
    if (op == TM_OP_TRANSPOSE && e->info.ndim != 2)
        return tm_fail(TM_EINPUT, "%s: '%s' is no matrix", e->info.file, e->info.name);
    e->head_rows = rows && (k->arch->flags & TM_ARCH_PERMUTES) ? k->head_dim : 0;
    e->added_one = op == TM_OP_ADD_ONE;
    e->transposed = op == TM_OP_TRANSPOSE;
    if (!e->transposed) return TM_OK;
    uint64_t out = e->info.shape[0];
    e->info.shape[0] = e->info.shape[1];
    e->info.shape[1] = out;
    return TM_OK;
}

static tm_status add_tensor(tm_source *src, const tm_gguf_tensor *t, const tm_gguf_keys *k) {
    char hf[160];
    tm_op op;
    const char *path = tm_gguf_path(src->gguf);
    if (tm_gguf_is_rope_tensor(t->name)) return TM_OK; /* is in the configuration */
    if (!tm_gguf_name_to_hf(k->arch, t->name, hf, sizeof hf, &op))
        return tm_fail(TM_EUNSUPPORTED, "%s: the tensor '%s' does not belong to a %s", path, t->name, k->arch->type);
    if (!tm_fmt_get(t->fmt)->readable)
        return tm_fail(
            TM_EUNSUPPORTED,
            "%s: '%s' has the type %s; read are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and Q2_K to Q6_K",
            path, t->name, tm_fmt_get(t->fmt)->name);
    source_entry e = {.info = {.fmt = t->fmt,
                               .ndim = t->ndim,
                               .elements = t->elements,
                               .file = path,
                               .offset = t->offset,
                               .bytes = t->bytes},
                      .handle = src->gguf->file};
    memcpy(e.info.shape, t->shape, sizeof t->shape);
    e.info.name = hf;
    TM_TRY(set_op(&e, op, k));
    e.info.name = (const char *)(uintptr_t)src->names.len; /* an offset until all names are there */
    TM_TRY(tm_buf_append(&src->names, hf, strlen(hf) + 1));
    return tm_source_add(src, &e);
}

tm_status tm_source_open_gguf(tm_source *src, bool weights) {
    tm_gguf_keys k;
    TM_TRY(tm_gguf_open(&src->gguf, src->path));
    TM_TRY(tm_gguf_read_keys(src->gguf, &k));
    TM_TRY(tm_gguf_config_json(src->gguf, &k, &src->config));
    if (!weights) return TM_OK;
    for (uint32_t i = 0; i < tm_gguf_tensors(src->gguf); i++)
        TM_TRY(add_tensor(src, tm_gguf_tensor_get(src->gguf, i), &k));
    for (uint32_t i = 0; i < src->n; i++)
        src->entry[i].info.name = src->names.data + (uintptr_t)src->entry[i].info.name;
    return TM_OK;
}

static tm_status chat_template(const tm_gguf *g, tm_buf *out, bool *found) {
    return tm_gguf_string(g, "tokenizer.chat_template", TM_FORMAT_MAX_TEXT, out, found);
}

static tm_status generation(const tm_gguf *g, tm_buf *out, bool *found) {
    *found = true;
    return tm_gguf_generation_json(g, out);
}

tm_status tm_source_gguf_file(const tm_source *src, const char *name, tm_buf *out, bool *found) {
    static const struct {
        const char *name;
        tm_status (*make)(const tm_gguf *g, tm_buf *out, bool *found);
    } files[] = {{"tokenizer.json", tm_gguf_tokenizer_json},
                 {"tokenizer_config.json", tm_gguf_tokenizer_config_json},
                 {"chat_template.jinja", chat_template},
                 {"generation_config.json", generation}};
    *found = strcmp(name, "config.json") == 0;
    if (*found) return tm_buf_append(out, src->config.data, src->config.len);
    for (size_t i = 0; i < TM_COUNT(files); i++)
        if (strcmp(name, files[i].name) == 0) return files[i].make(src->gguf, out, found);
    return TM_OK;
}
