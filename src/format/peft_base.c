/* An adapter and its base: which tensor a module's is, and whether they belong together. */
#include "format/gguf_internal.h"
#include "format/peft_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 4200 };

/* ---- names ---- */

/* What names of a body may begin with: of a text model, of a composite one in transformers 5 and 4, of GPT-2, of a
 * checkpoint without its head; and what the head is called beside them. */
static const struct {
    const char *body, *head;
} roots[] = {{"model.", ""},
             {"model.language_model.", ""},
             {"language_model.model.", "language_model."},
             {"transformer.", ""},
             {"", ""}};

static const char *after(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

static int64_t find_as(const tm_source *base, const char *prefix, const char *rest) {
    char name[MAX_NAME];
    int n = snprintf(name, sizeof name, "%s%s", prefix, rest);
    return n > 0 && (size_t)n < sizeof name ? tm_source_find(base, name) : -1;
}

int64_t peft_find_tensor(const tm_source *base, const char *name) {
    int64_t t = tm_source_find(base, name);
    for (size_t from = 0; from < TM_COUNT(roots); from++)
        for (size_t to = 0; to < TM_COUNT(roots); to++) {
            const char *body = after(name, roots[from].body), *head = after(name, roots[from].head);
            if (t < 0 && body) t = find_as(base, roots[to].body, body);
            if (t < 0 && head && strncmp(head, "lm_head.", 8) == 0) t = find_as(base, roots[to].head, head);
        }
    return t;
}

tm_status peft_ends_of(const tm_source *base, peft_ends *out) {
    static const char *const embeddings[] = {"model.embed_tokens.weight", "transformer.wte.weight"};
    size_t len;
    tm_json_doc *doc;
    const char *config = tm_source_config(base, &len);
    TM_TRY(tm_json_parse(&doc, config, len, "config.json", 0, 0));
    const tm_json *tie = tm_json_get(tm_json_root(doc), "tie_word_embeddings");
    *out = (peft_ends){.embedding = -1, .head = peft_find_tensor(base, "lm_head.weight")};
    for (size_t i = 0; i < TM_COUNT(embeddings) && out->embedding < 0; i++)
        out->embedding = peft_find_tensor(base, embeddings[i]);
    out->tied = out->head < 0 || (tie && tie->type == TM_JSON_BOOL && tie->boolean);
    tm_json_free(doc);
    return TM_OK;
}

char *peft_head_name(const char *embedding) {
    size_t i = 0;
    while (!after(embedding, roots[i].body) || (i == 0 && after(embedding, roots[1].body))) i++;
    size_t n = strlen(roots[i].head) + sizeof "lm_head.weight";
    char *name = tm_malloc(n);
    if (name) snprintf(name, n, "%slm_head.weight", roots[i].head);
    return name;
}

/* ---- layouts ---- */

bool peft_is_turned(const tm_source *base, const char *tensor) {
    size_t len;
    char gguf[TM_GGUF_MAX_NAME + 1];
    tm_op op = TM_OP_PLAIN;
    const tm_gguf_arch *arch;
    tm_json_doc *doc;
    const char *config = tm_source_config(base, &len);
    if (tm_json_parse(&doc, config, len, "config.json", 0, 0) != TM_OK) return tm_error_clear(), false;
    const tm_json *type = tm_json_get(tm_json_root(doc), "model_type");
    bool known = type && type->type == TM_JSON_STRING && tm_gguf_arch_for(type->text, &arch) == TM_OK;
    if (!known) tm_error_clear();
    bool turned = known && tm_gguf_name_from_hf(arch, tensor, gguf, sizeof gguf, &op) && op == TM_OP_TRANSPOSE;
    tm_json_free(doc);
    return turned;
}

static tm_status other_base(const tm_adapter_folder *f, int64_t t, const tm_source_tensor *w) {
    const tm_adapter_tensor *a = &f->tensor[t];
    return tm_fail(TM_EINPUT,
                   "%s: '%s' is [%" PRIu64 ", %" PRIu64 "], which does not fit '%s' [%" PRIu64 ", %" PRIu64
                   "] of %s; the adapter belongs to another base",
                   tm_st_path(f->file), a->name, a->shape[0], a->ndim > 1 ? a->shape[1] : 1, w->name, w->shape[0],
                   w->shape[1], w->file);
}

int64_t peft_weight_of(const tm_source *base, const char *module, bool *head) {
    char name[MAX_NAME];
    peft_ends ends;
    snprintf(name, sizeof name, "%s.weight", module);
    int64_t t = peft_find_tensor(base, name);
    *head = tm_ends_with(module, "lm_head");
    if (!*head || peft_ends_of(base, &ends) != TM_OK) return t;
    return ends.tied ? ends.embedding : t;
}

tm_status peft_place_of(const tm_adapter_folder *f, const peft_module *m, const tm_source *base, peft_place *out) {
    bool head;
    int64_t t = peft_weight_of(base, m->name, &head);
    if (t < 0)
        return tm_fail(TM_EINPUT, "%s: adapts '%s', which %s does not have; the adapter belongs to another base",
                       tm_st_path(f->file), m->name, tm_source_path(base));
    const tm_source_tensor *w = tm_source_tensor_get(base, (uint32_t)t);
    if (w->ndim != 2)
        return tm_fail(TM_EINPUT, "%s: adapts '%s', whose weight in %s is no matrix", tm_st_path(f->file), m->name,
                       w->file);
    out->tensor = (uint32_t)t;
    out->turned = m->embedding || (!head && peft_is_turned(base, w->name));
    out->in = w->shape[out->turned ? 0 : 1];
    out->out = w->shape[out->turned ? 1 : 0];
    if (f->tensor[m->a].shape[1] != out->in) return other_base(f, m->a, w);
    if (f->tensor[m->b].shape[0] != out->out) return other_base(f, m->b, w);
    return TM_OK;
}

/* ---- the whole ---- */

static tm_status check_whole(const tm_adapter_folder *f, uint32_t i, const tm_source *base) {
    const tm_adapter_tensor *t = &f->tensor[i];
    bool head;
    int64_t k = t->role == TM_ADAPTER_WHOLE && tm_ends_with(t->name, ".weight") ? peft_weight_of(base, t->module, &head)
                                                                                : peft_find_tensor(base, t->name);
    if (k < 0)
        return tm_fail(TM_EINPUT, "%s: holds '%s', which %s does not have; the adapter belongs to another base",
                       tm_st_path(f->file), t->name, tm_source_path(base));
    const tm_source_tensor *w = tm_source_tensor_get(base, (uint32_t)k);
    if (w->ndim == t->ndim && memcmp(w->shape, t->shape, t->ndim * sizeof *t->shape) == 0) return TM_OK;
    if (w->ndim == 2 && t->ndim == 2 && w->shape[1] == t->shape[1])
        return tm_fail(TM_EUNSUPPORTED,
                       "%s: '%s' has %" PRIu64 " rows, '%s' of %s %" PRIu64 ": its vocabulary grew, which is not done",
                       tm_st_path(f->file), t->name, t->shape[0], w->name, w->file, w->shape[0]);
    return tm_fail(TM_EINPUT, "%s: '%s' has not the shape that it has in %s; the adapter belongs to another base",
                   tm_st_path(f->file), t->name, w->file);
}

tm_status peft_module_names(const tm_source *base, tm_buf *text, const char ***out, size_t *n) {
    const char **name = tm_calloc(tm_source_tensors(base) + 2, sizeof *name);
    *out = name, *n = 0;
    if (!name) return tm_nomem(tm_source_tensors(base) * sizeof *name);
    for (uint32_t i = 0; i < tm_source_tensors(base); i++) {
        const char *tensor = tm_source_tensor_get(base, i)->name;
        size_t length = strlen(tensor);
        if (!tm_ends_with(tensor, ".weight")) continue;
        name[(*n)++] = (const char *)(uintptr_t)text->len; /* a place, until the text is whole */
        TM_TRY(tm_buf_append(text, tensor, length - strlen(".weight")));
        TM_TRY(tm_buf_append(text, "", 1));
    }
    if (peft_find_tensor(base, "lm_head.weight") < 0) {
        name[(*n)++] = (const char *)(uintptr_t)text->len;
        TM_TRY(tm_buf_append(text, "lm_head", sizeof "lm_head"));
    }
    for (size_t i = 0; i < *n; i++) name[i] = text->data + (uintptr_t)name[i];
    return TM_OK;
}

/* PEFT warns of these, too. */
static void warn_of_missing(const tm_adapter_folder *f, const char *const *module, size_t n) {
    size_t missing = 0;
    const char *first = NULL;
    tm_adapter_spec spec;
    for (size_t i = 0; i < n; i++) {
        char a[MAX_NAME], embedding[MAX_NAME];
        snprintf(a, sizeof a, "%s.lora_A.weight", module[i]);
        snprintf(embedding, sizeof embedding, "%s.lora_embedding_A", module[i]);
        if (!tm_adapter_module(f->config, module[i], &spec) || tm_adapter_folder_find(f, a) >= 0 ||
            tm_adapter_folder_find(f, embedding) >= 0)
            continue;
        if (!missing++) first = module[i];
    }
    if (missing)
        tm_log(TM_LOG_WARN, "%s: has nothing of %zu modules that %s adapts, as '%s'; they stay as they are in the base",
               tm_st_path(f->file), missing, PEFT_CONFIG, first);
}

tm_status tm_adapter_folder_check(const tm_adapter_folder *f, const tm_source *base) {
    tm_buf text = {0};
    const char **module = NULL;
    size_t n = 0;
    tm_status rc;
    TM_GO(peft_module_names(base, &text, &module, &n));
    TM_GO(tm_adapter_check(f->config, module, n));
    for (uint32_t i = 0; i < f->n_modules; i++) {
        peft_place at;
        TM_GO(peft_place_of(f, &f->module[i], base, &at));
    }
    for (uint32_t i = 0; i < f->n; i++)
        if (f->tensor[i].role == TM_ADAPTER_WHOLE) TM_GO(check_whole(f, i, base));
    warn_of_missing(f, module, n);
done:
    tm_free(module);
    tm_buf_free(&text);
    return rc;
}
