/* An adapter's folder: adapter_config.json and adapter_model.safetensors. */
#include "format/peft_internal.h"
#include "base/ordered.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG = 16 * 1024 * 1024, MAX_NAME = 4096, LIST_UNKNOWN = 3 };

void tm_adapter_folder_close(tm_adapter_folder *f) {
    if (!f) return;
    for (uint32_t i = 0; f->tensor && i < f->n; i++) {
        tm_free((void *)(uintptr_t)f->tensor[i].name);
        tm_free((void *)(uintptr_t)f->tensor[i].module);
    }
    tm_adapter_folder_close(f->first);
    tm_adapter_free(f->config);
    tm_st_close(f->file);
    TM_FREE_ALL(f->tensor, f->in_file, f->module, f->path);
    tm_free(f);
}

bool tm_is_adapter_folder(const char *path) {
    char *config = tm_path_join(path, PEFT_CONFIG);
    bool is = config && tm_path_exists(config);
    tm_free(config);
    return is;
}

/* ---- names ---- */

static const struct {
    const char *ending;
    tm_adapter_role role;
} endings[] = {{".lora_A.weight", TM_ADAPTER_LORA_A},
               {".lora_B.weight", TM_ADAPTER_LORA_B},
               {".lora_embedding_A", TM_ADAPTER_EMBEDDING_A},
               {".lora_embedding_B", TM_ADAPTER_EMBEDDING_B},
               {".lora_magnitude_vector", TM_ADAPTER_MAGNITUDE},
               {".lora_magnitude_vector.weight", TM_ADAPTER_MAGNITUDE},
               {".weight", TM_ADAPTER_WHOLE},
               {".bias", TM_ADAPTER_WHOLE}};

/* Name, module and role of what the file calls `name`; *ours false: none of an adapter's. */
static tm_status parse_name(const char *name, tm_adapter_tensor *t, bool *ours) {
    static const char frozen[] = ".base_layer";
    size_t prefix = strlen(PEFT_PREFIX);
    *ours = strncmp(name, PEFT_PREFIX, prefix) == 0 && strlen(name) < MAX_NAME;
    if (!*ours) return TM_OK;
    const char *bare = name + prefix, *ending = NULL;
    for (size_t i = 0; i < TM_COUNT(endings) && !ending; i++)
        if (tm_ends_with(bare, endings[i].ending)) ending = endings[i].ending, t->role = endings[i].role;
    size_t stem = ending ? strlen(bare) - strlen(ending) : 0;
    *ours = stem > 0 && (t->role != TM_ADAPTER_WHOLE || !strstr(bare, ".lora_"));
    if (!*ours) return TM_OK;
    size_t cut = sizeof frozen - 1;
    t->frozen = t->role == TM_ADAPTER_WHOLE && stem > cut && memcmp(bare + stem - cut, frozen, cut) == 0;
    if (t->frozen) stem -= cut;
    char *module = tm_strndup(bare, stem), *whole = tm_malloc(stem + strlen(ending) + 1);
    t->module = module, t->name = whole;
    if (!module || !whole) return tm_nomem(stem);
    memcpy(whole, bare, stem);
    memcpy(whole + stem, ending, strlen(ending) + 1);
    return TM_OK;
}

static const char *tensor_name(const void *ctx, uint32_t i) {
    return ((const tm_adapter_tensor *)ctx)[i].name;
}

static tm_status sort_tensors(tm_adapter_folder *f) {
    uint32_t dup, *order = tm_malloc((f->n + 1) * sizeof *order), *in_file = tm_malloc((f->n + 1) * sizeof *in_file);
    tm_adapter_tensor *sorted = tm_malloc((f->n + 1) * sizeof *sorted);
    tm_status rc = TM_OK;
    if (!order || !in_file || !sorted)
        rc = tm_nomem((f->n + 1) * sizeof *sorted);
    else if (!tm_sort_names(order, f->n, tensor_name, f->tensor, &dup))
        rc = tm_fail(TM_EINPUT, "%s: '%s' is there twice", tm_st_path(f->file), f->tensor[order[dup]].name);
    else {
        for (uint32_t i = 0; i < f->n; i++) sorted[i] = f->tensor[order[i]], in_file[i] = order[i];
        memcpy(f->tensor, sorted, f->n * sizeof *sorted);
        memcpy(f->in_file, in_file, f->n * sizeof *in_file);
    }
    TM_FREE_ALL(order, in_file, sorted);
    return rc;
}

static tm_status refuse_unknown(const tm_adapter_folder *f, const tm_buf *names, uint32_t n) {
    return tm_fail(TM_EINPUT, "%s: %u tensors are none of a LoRA adapter's: %s%s", tm_st_path(f->file), n, names->data,
                   n > LIST_UNKNOWN ? ", ..." : "");
}

static tm_status list_tensors(tm_adapter_folder *f) {
    tm_buf unknown = {0};
    uint32_t n = tm_st_count(f->file), n_unknown = 0;
    tm_status rc = TM_OK;
    f->tensor = tm_calloc(n + 1, sizeof *f->tensor);
    f->in_file = tm_calloc(n + 1, sizeof *f->in_file);
    if (!f->tensor || !f->in_file) return tm_nomem(n * sizeof *f->tensor);
    for (f->n = 0; f->n < n;) {
        const tm_st_info *s = tm_st_get(f->file, f->n);
        tm_adapter_tensor *t = &f->tensor[f->n++];
        bool ours;
        *t = (tm_adapter_tensor){.fmt = s->fmt, .ndim = s->ndim, .elements = s->elements};
        memcpy(t->shape, s->shape, sizeof t->shape);
        TM_GO(parse_name(s->name, t, &ours));
        if (!ours && n_unknown++ < LIST_UNKNOWN)
            TM_GO(tm_buf_printf(&unknown, "%s'%.200s'", n_unknown > 1 ? ", " : "", s->name));
    }
    rc = n_unknown ? refuse_unknown(f, &unknown, n_unknown) : sort_tensors(f);
done:
    tm_buf_free(&unknown);
    return rc;
}

/* ---- modules ---- */

static int64_t find_part(const tm_adapter_folder *f, const char *module, const char *ending) {
    char name[MAX_NAME + 64];
    snprintf(name, sizeof name, "%s%s", module, ending);
    return tm_adapter_folder_find(f, name);
}

static tm_status lacks(const tm_adapter_folder *f, const char *module, const char *ending, const char *what) {
    return tm_fail(TM_EINPUT, "%s: '%s' has %s but no '%s%s'; the file is not complete", tm_st_path(f->file), module,
                   what, module, ending);
}

static tm_status wrong_shape(const tm_adapter_folder *f, int64_t t, const char *wanted) {
    return tm_fail(TM_EINPUT, "%s: '%s' is not %s", tm_st_path(f->file), f->tensor[t].name, wanted);
}

static bool is_matrix(const tm_adapter_folder *f, int64_t t) {
    return f->tensor[t].ndim == 2 && f->tensor[t].elements > 0;
}

static tm_status check_parts(const tm_adapter_folder *f, const peft_module *m) {
    char wanted[96];
    const char *const b[] = {".lora_B.weight", ".lora_embedding_B"};
    if (m->b < 0) return lacks(f, m->name, b[m->embedding], "an A");
    if (m->spec.dora && m->magnitude < 0)
        return lacks(f, m->name, ".lora_magnitude_vector", "an adapter with use_dora");
    if (!m->spec.dora && m->magnitude >= 0)
        return tm_fail(TM_EINPUT, "%s: '%s' is of DoRA, but %s does not say use_dora", tm_st_path(f->file),
                       f->tensor[m->magnitude].name, PEFT_CONFIG);
    if (!is_matrix(f, m->a)) return wrong_shape(f, m->a, "a matrix");
    if (!is_matrix(f, m->b)) return wrong_shape(f, m->b, "a matrix");
    uint64_t rank = f->tensor[m->a].shape[0];
    if (rank != m->spec.rank)
        return tm_fail(TM_EINPUT, "%s: '%s' has rank %" PRIu64 ", but %s says %u", tm_st_path(f->file),
                       f->tensor[m->a].name, rank, PEFT_CONFIG, m->spec.rank);
    snprintf(wanted, sizeof wanted, "[.., %u] as its A and %s need", m->spec.rank, PEFT_CONFIG);
    if (f->tensor[m->b].shape[1] != rank) return wrong_shape(f, m->b, wanted);
    uint64_t out = f->tensor[m->b].shape[0];
    snprintf(wanted, sizeof wanted, "as long as its B is high, %" PRIu64, out);
    if (m->magnitude >= 0 && f->tensor[m->magnitude].elements != out) return wrong_shape(f, m->magnitude, wanted);
    return TM_OK;
}

static tm_status add_module(tm_adapter_folder *f, uint32_t a) {
    peft_module *m = &f->module[f->n_modules];
    const char *name = f->tensor[a].module;
    bool embedding = f->tensor[a].role == TM_ADAPTER_EMBEDDING_A;
    *m = (peft_module){.name = name, .a = a, .embedding = embedding};
    m->b = find_part(f, name, embedding ? ".lora_embedding_B" : ".lora_B.weight");
    m->magnitude = find_part(f, name, ".lora_magnitude_vector");
    if (m->magnitude < 0) m->magnitude = find_part(f, name, ".lora_magnitude_vector.weight");
    if (!tm_adapter_module(f->config, name, &m->spec))
        return tm_fail(TM_EINPUT, "%s: '%s' has an adapter, but target_modules of %s does not name it",
                       tm_st_path(f->file), name, PEFT_CONFIG);
    f->n_modules++;
    return check_parts(f, m);
}

/* What belongs to an A that is not there. */
static tm_status check_widows(const tm_adapter_folder *f) {
    for (uint32_t i = 0; i < f->n; i++) {
        tm_adapter_role role = f->tensor[i].role;
        if (role == TM_ADAPTER_WHOLE || role == TM_ADAPTER_LORA_A || role == TM_ADAPTER_EMBEDDING_A) continue;
        bool embedding = role == TM_ADAPTER_EMBEDDING_B, either = role == TM_ADAPTER_MAGNITUDE;
        const char *module = f->tensor[i].module;
        bool there = (!embedding && find_part(f, module, ".lora_A.weight") >= 0) ||
                     ((embedding || either) && find_part(f, module, ".lora_embedding_A") >= 0);
        if (!there) return lacks(f, module, embedding ? ".lora_embedding_A" : ".lora_A.weight", "a part of an adapter");
    }
    return TM_OK;
}

static tm_status check_types(const tm_adapter_folder *f) {
    for (uint32_t i = 0; i < f->n; i++) {
        const tm_fmt_info *type = tm_fmt_get(f->tensor[i].fmt);
        if (f->tensor[i].fmt >= TM_FMT_I64 || !type->readable)
            return tm_fail(TM_EINPUT, "%s: '%s' is %s, not a floating type", tm_st_path(f->file), f->tensor[i].name,
                           type->name);
    }
    return TM_OK;
}

static tm_status list_modules(tm_adapter_folder *f) {
    f->module = tm_calloc(f->n + 1, sizeof *f->module);
    if (!f->module) return tm_nomem(f->n * sizeof *f->module);
    TM_TRY(check_types(f));
    TM_TRY(check_widows(f));
    for (uint32_t i = 0; i < f->n; i++)
        if (f->tensor[i].role == TM_ADAPTER_LORA_A || f->tensor[i].role == TM_ADAPTER_EMBEDDING_A)
            TM_TRY(add_module(f, i));
    if (f->n == 0) return tm_fail(TM_EINPUT, "%s: holds no tensor", tm_st_path(f->file));
    return TM_OK;
}

/* ---- the folder ---- */

static tm_status read_config(tm_adapter_folder *f) {
    tm_buf text = {0};
    tm_status rc = TM_OK;
    char *path = tm_path_join(f->path, PEFT_CONFIG);
    if (!path) return tm_nomem(strlen(f->path));
    if (!tm_path_exists(path)) {
        rc = tm_fail(TM_EINPUT, "%s: has no %s; name the folder of an adapter", f->path, PEFT_CONFIG);
        goto done;
    }
    TM_GO(tm_file_slurp(path, MAX_CONFIG, &text));
    TM_GO(tm_adapter_create(&f->config));
    TM_GO(tm_adapter_read(f->config, text.data, text.len, path));
    rc = tm_adapter_complete(f->config);
done:
    tm_buf_free(&text);
    tm_free(path);
    return rc;
}

static tm_status open_weights(tm_adapter_folder *f) {
    static const char *const pickles[] = {"adapter_model.bin", "adapter_model.pt"};
    char *path = tm_path_join(f->path, PEFT_WEIGHTS), *pickle;
    if (!path) return tm_nomem(strlen(f->path));
    bool there = tm_path_exists(path);
    tm_free(path);
    if (there) return tm_st_open_in(&f->file, f->path, PEFT_WEIGHTS);
    for (size_t i = 0; i < TM_COUNT(pickles); i++) {
        pickle = tm_path_join(f->path, pickles[i]);
        bool is = pickle && tm_path_exists(pickle);
        tm_free(pickle);
        if (is)
            return tm_fail(TM_EUNSUPPORTED,
                           "%s/%s: pickled weights can run code and are not read; save the adapter as safetensors",
                           f->path, pickles[i]);
    }
    return tm_fail(TM_EINPUT, "%s: has a %s but no %s; the adapter is not complete", f->path, PEFT_CONFIG,
                   PEFT_WEIGHTS);
}

static tm_status open_folder(tm_adapter_folder **out, const char *dir) {
    tm_status rc;
    tm_adapter_folder *f = tm_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return tm_nomem(sizeof *f);
    f->path = tm_strdup(dir);
    if (!f->path) {
        rc = tm_nomem(strlen(dir));
        goto done;
    }
    TM_GO(read_config(f));
    TM_GO(open_weights(f));
    TM_GO(list_tensors(f));
    TM_GO(list_modules(f));
    *out = f;
    return TM_OK;
done:
    tm_adapter_folder_close(f);
    return rc;
}

/* PiSSA's first A and B, beside those that they became. */
static tm_status open_first(tm_adapter_folder *f) {
    tm_status rc = TM_OK;
    char *path = tm_path_join(f->path, TM_PISSA_FIRST);
    if (!path) return tm_nomem(strlen(f->path));
    if (!tm_is_adapter_folder(path)) goto done;
    TM_GO(open_folder(&f->first, path));
    for (uint32_t i = 0; i < f->n; i++) {
        const tm_adapter_tensor *t = &f->tensor[i];
        if (t->role != TM_ADAPTER_LORA_A && t->role != TM_ADAPTER_LORA_B) continue;
        int64_t k = tm_adapter_folder_find(f->first, t->name);
        if (k >= 0 && memcmp(f->first->tensor[k].shape, t->shape, sizeof t->shape) == 0) continue;
        rc = tm_fail(TM_EINPUT, "%s: '%s' is not there with the shape that it has in %s; they do not belong together",
                     path, t->name, f->path);
        goto done;
    }
done:
    tm_free(path);
    return rc;
}

tm_status tm_adapter_folder_open(tm_adapter_folder **out, const char *dir) {
    TM_TRY(open_folder(out, dir));
    tm_status rc = (*out)->config->init == TM_ADAPTER_INIT_PISSA ? open_first(*out) : TM_OK;
    if (rc == TM_OK) return TM_OK;
    tm_adapter_folder_close(*out);
    *out = NULL;
    return rc;
}

const char *tm_adapter_folder_path(const tm_adapter_folder *f) {
    return f->path;
}
const tm_adapter_config *tm_adapter_folder_config(const tm_adapter_folder *f) {
    return f->config;
}
uint32_t tm_adapter_folder_tensors(const tm_adapter_folder *f) {
    return f->n;
}

const tm_adapter_tensor *tm_adapter_folder_get(const tm_adapter_folder *f, uint32_t i) {
    TM_ASSERT(i < f->n);
    return &f->tensor[i];
}

typedef struct tensor_wanted {
    const tm_adapter_folder *f;
    const char *name;
} tensor_wanted;

static bool tensor_before(const void *ctx, size_t i) {
    const tensor_wanted *w = ctx;
    return strcmp(w->f->tensor[i].name, w->name) < 0;
}

int64_t tm_adapter_folder_find(const tm_adapter_folder *f, const char *name) {
    size_t at = tm_lower_bound(f->n, tensor_before, &(tensor_wanted){f, name});
    return at < f->n && strcmp(f->tensor[at].name, name) == 0 ? (int64_t)at : -1;
}

tm_status tm_adapter_folder_read_f32(const tm_adapter_folder *f, uint32_t i, uint64_t first, uint64_t n, float *dst) {
    TM_ASSERT(i < f->n);
    return tm_st_read_f32(f->file, f->in_file[i], first, n, dst);
}

/* ---- the base ---- */

/* Beside the folder (as a path from there), or from here, or a hub's name in the user's caches. */
static tm_status look_for(const tm_adapter_folder *f, const char *name, tm_buf *out) {
    char *beside = tm_path_join(f->path, name), cached[4096];
    if (!beside) return tm_nomem(strlen(name));
    bool is = name[0] != '/' && tm_path_exists(beside);
    tm_status rc = tm_buf_printf(out, "%s", is ? beside : tm_hub_find(name, cached));
    tm_free(beside);
    return rc;
}

tm_status tm_adapter_folder_base(const tm_adapter_folder *f, const char *named, tm_buf *out) {
    const char *name = named ? named : f->config->base_model;
    size_t from = out->len;
    if (!name || !*name)
        return tm_fail(TM_EINPUT, "%s/%s: does not say base_model_name_or_path; name the base with --base", f->path,
                       PEFT_CONFIG);
    TM_TRY(named ? tm_buf_printf(out, "%s", named) : look_for(f, name, out));
    if (tm_path_exists(out->data + from) || named) return TM_OK;
    return tm_fail(TM_EINPUT, "%s/%s: the base '%.200s' is not here, and nothing is downloaded; name it with --base",
                   f->path, PEFT_CONFIG, name);
}
