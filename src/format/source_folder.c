/* A Hugging Face folder as a tm_source. */
#include "format/source_internal.h"
#include "base/ordered.h"

#include <string.h>

enum { MAX_SHARDS = 4096, MAX_CONFIG = 16 * 1024 * 1024, MAX_INDEX = 256 * 1024 * 1024 };

static const char SINGLE[] = "model.safetensors";
static const char INDEX[] = "model.safetensors.index.json";

static const char *folder_of(const tm_source *src, const char *name) {
    return tm_source_from_tokenizer(src, name) ? src->tokenizer : src->path;
}

static tm_status in_folder(const tm_source *src, const char *name, bool *there) {
    char *path = tm_path_join(folder_of(src, name), name);
    if (!path) return tm_nomem(strlen(src->path));
    *there = tm_path_exists(path);
    tm_free(path);
    return TM_OK;
}

static tm_status slurp(const tm_source *src, const char *name, size_t max, tm_buf *out) {
    char *path = tm_path_join(folder_of(src, name), name);
    if (!path) return tm_nomem(strlen(src->path));
    tm_status rc = tm_file_slurp(path, max, out);
    tm_free(path);
    return rc;
}

/* ---- shards ---- */

static tm_status add_shard(tm_source *src, tm_st *st) {
    tm_st **shard = tm_realloc(src->shard, (src->n_shards + 1) * sizeof *shard);
    if (!shard) {
        tm_st_close(st);
        return tm_nomem((src->n_shards + 1) * sizeof *shard);
    }
    src->shard = shard;
    shard[src->n_shards++] = st;
    for (uint32_t i = 0; i < tm_st_count(st); i++) {
        const tm_st_info *t = tm_st_get(st, i);
        source_entry e = {.info = {.name = t->name,
                                   .fmt = t->fmt,
                                   .ndim = t->ndim,
                                   .elements = t->elements,
                                   .file = tm_st_path(st),
                                   .offset = t->offset,
                                   .bytes = t->bytes},
                          .handle = st->file};
        memcpy(e.info.shape, t->shape, sizeof t->shape);
        TM_TRY(tm_source_add(src, &e));
    }
    return TM_OK;
}

static tm_status open_shard(tm_source *src, const char *name) {
    tm_st *st;
    TM_TRY(tm_st_open_in(&st, src->path, name));
    return add_shard(src, st);
}

/* ---- the index: {"metadata": ..., "weight_map": {tensor: shard}} ---- */

typedef tm_status (*weight_fn)(void *ctx, const tm_json_event *at, const char *tensor, const char *shard);

static tm_status walk_weights(tm_json_reader *json, const char *path, weight_fn fn, void *ctx) {
    tm_json_event e;
    tm_buf tensor = {0};
    tm_status rc;
    TM_GO(tm_json_next(json, &e));
    if (e.type != TM_JSON_OBJECT) {
        rc = tm_fail(TM_EINPUT, "%s: weight_map must be an object", path);
        goto done;
    }
    for (;;) {
        TM_GO(tm_json_next(json, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        tm_buf_clear(&tensor);
        TM_GO(tm_buf_append(&tensor, e.text, e.len));
        TM_GO(tm_json_next(json, &e));
        if (e.type != TM_JSON_STRING || strlen(e.text) != e.len) {
            rc = tm_fail(TM_EINPUT, "%s:%u:%u: weight_map must name a file", path, e.line, e.column);
            goto done;
        }
        TM_GO(fn(ctx, &e, tensor.data, e.text));
    }
done:
    tm_buf_free(&tensor);
    return rc;
}

static tm_status walk_members(tm_json_reader *json, const char *path, weight_fn fn, void *ctx) {
    tm_json_event e;
    bool seen = false;
    TM_TRY(tm_json_next(json, &e));
    if (e.type != TM_JSON_OBJECT) return tm_fail(TM_EINPUT, "%s: an index must be a JSON object", path);
    for (;;) {
        TM_TRY(tm_json_next(json, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        if (strcmp(e.text, "weight_map") != 0) {
            TM_TRY(tm_json_skip(json, &e));
            continue;
        }
        seen = true;
        TM_TRY(walk_weights(json, path, fn, ctx));
    }
    TM_TRY(tm_json_next(json, &e)); /* the end of the file, or an error */
    return seen ? TM_OK : tm_fail(TM_EINPUT, "%s: has no weight_map", path);
}

/* Streams the index, so that its size does not matter. */
static tm_status walk_index(const tm_source *src, weight_fn fn, void *ctx) {
    tm_file_cursor cursor = {0};
    tm_json_reader *json = NULL;
    tm_status rc;
    TM_GO(tm_file_open_in(&cursor.file, src->path, INDEX));
    const char *path = tm_file_path(cursor.file);
    if (tm_file_size(cursor.file) > MAX_INDEX) {
        rc = tm_fail(TM_EINPUT, "%s: an index of more than 256 MiB", path);
        goto done;
    }
    TM_GO(tm_json_reader_open(&json, tm_file_cursor_read, &cursor, path, 0, 0));
    rc = walk_members(json, path, fn, ctx);
done:
    tm_json_reader_close(json);
    tm_file_close(cursor.file);
    return rc;
}

/* The names of the shards, sorted, each once. */
typedef struct shard_list {
    const tm_source *src;
    char **name;
    uint32_t n;
} shard_list;

typedef struct shard_wanted {
    const shard_list *l;
    const char *name;
} shard_wanted;

static bool shard_before(const void *ctx, size_t i) {
    const shard_wanted *w = ctx;
    return strcmp(w->l->name[i], w->name) < 0;
}

static uint32_t shard_slot(const shard_list *l, const char *name, bool *there) {
    uint32_t slot = (uint32_t)tm_lower_bound(l->n, shard_before, &(shard_wanted){l, name});
    *there = slot < l->n && strcmp(l->name[slot], name) == 0;
    return slot;
}

static tm_status collect_shard(void *ctx, const tm_json_event *at, const char *tensor, const char *shard) {
    shard_list *l = ctx;
    bool there;
    (void)tensor;
    uint32_t slot = shard_slot(l, shard, &there);
    if (there) return TM_OK;
    if (l->n == MAX_SHARDS || !tm_ends_with(shard, ".safetensors"))
        return tm_fail(TM_EINPUT, "%s/%s:%u:%u: %s '%.200s'", l->src->path, INDEX, at->line, at->column,
                       l->n == MAX_SHARDS ? "too many shards:" : "not a .safetensors file:", shard);
    char *copy = tm_strdup(shard);
    if (!copy) return tm_nomem(strlen(shard));
    memmove(l->name + slot + 1, l->name + slot, (l->n - slot) * sizeof *l->name);
    l->name[slot] = copy;
    l->n++;
    return TM_OK;
}

static tm_status check_weight(void *ctx, const tm_json_event *at, const char *tensor, const char *shard) {
    const shard_list *l = ctx;
    bool there;
    uint32_t slot = shard_slot(l, shard, &there);
    if (there && tm_st_find(l->src->shard[slot], tensor) >= 0) return TM_OK;
    return tm_fail(TM_EINPUT, "%s/%s:%u:%u: '%s' is not in %s; the index and its files do not belong together",
                   l->src->path, INDEX, at->line, at->column, tensor, shard);
}

static tm_status open_index(tm_source *src) {
    tm_status rc;
    shard_list l = {.src = src, .name = tm_calloc(MAX_SHARDS, sizeof(char *))};
    if (!l.name) return tm_nomem(MAX_SHARDS * sizeof(char *));
    TM_GO(walk_index(src, collect_shard, &l));
    for (uint32_t i = 0; i < l.n; i++) TM_GO(open_shard(src, l.name[i]));
    TM_GO(walk_index(src, check_weight, &l));
done:
    for (uint32_t i = 0; i < l.n; i++) tm_free(l.name[i]);
    tm_free(l.name);
    return rc;
}

/* ---- the folder ---- */

static tm_status find_pickle(void *ctx, const char *name, bool is_dir) {
    static const char *const endings[] = {".bin", ".pt", ".pth", ".ckpt"};
    char *found = ctx;
    for (size_t i = 0; i < TM_COUNT(endings) && !is_dir && !*found; i++)
        if (tm_ends_with(name, endings[i]) && strlen(name) < 200 && strcmp(name, "training_args.bin") != 0)
            memcpy(found, name, strlen(name) + 1);
    return TM_OK;
}

static tm_status no_weights(const tm_source *src) {
    char pickle[200] = "";
    TM_TRY(tm_list_dir(src->path, find_pickle, pickle));
    if (*pickle)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s/%s: pickled weights can run code and are not read; convert the model to safetensors "
                       "(transformers: save_pretrained)",
                       src->path, pickle);
    return tm_fail(TM_EINPUT, "%s: has neither %s nor %s; name a Hugging Face folder or a .gguf file", src->path,
                   SINGLE, INDEX);
}

tm_status tm_source_open_folder(tm_source *src, bool weights) {
    bool config = false, single = false, index = false;
    TM_TRY(in_folder(src, "config.json", &config));
    TM_TRY(in_folder(src, SINGLE, &single));
    TM_TRY(in_folder(src, INDEX, &index));
    if (!config)
        return tm_fail(TM_EINPUT, "%s: has no config.json; name a Hugging Face folder or a .gguf file", src->path);
    TM_TRY(slurp(src, "config.json", MAX_CONFIG, &src->config));
    if (!weights) return TM_OK;
    TM_TRY(tm_source_quantisation(src));
    if (single) return open_shard(src, SINGLE);
    return index ? open_index(src) : no_weights(src);
}

tm_status tm_source_open_config(tm_source *src, bool weights) {
    if (weights)
        return tm_fail(TM_EINPUT,
                       "%s: a config.json has no weights; name the folder that has them, or set \"init\" to \"random\"",
                       src->path);
    return tm_file_slurp(src->path, MAX_CONFIG, &src->config);
}

/* ---- side files ---- */

/* chat_template is a string, or a list of {"name", "template"} of which "default" is meant. */
static const tm_json *template_of(const tm_json *config) {
    const tm_json *t = tm_json_get(config, "chat_template");
    if (t && t->type == TM_JSON_ARRAY)
        for (const tm_json *e = t->child; e; e = e->next)
            if (tm_json_is(tm_json_get(e, "name"), "default")) t = tm_json_get(e, "template");
    return t && t->type == TM_JSON_STRING ? t : NULL;
}

static tm_status template_from_config(const tm_source *src, tm_buf *out, bool *found) {
    tm_buf text = {0};
    tm_json_doc *doc = NULL;
    bool there = false;
    tm_status rc;
    TM_TRY(in_folder(src, "tokenizer_config.json", &there));
    if (!there) return TM_OK;
    TM_GO(slurp(src, "tokenizer_config.json", TM_FORMAT_MAX_TEXT, &text));
    TM_GO(tm_json_parse(&doc, text.data, text.len, "tokenizer_config.json", 0, 0));
    const tm_json *t = template_of(tm_json_root(doc));
    if (t) {
        *found = true;
        rc = tm_buf_append(out, t->text, t->len);
    }
done:
    tm_json_free(doc);
    tm_buf_free(&text);
    return rc;
}

/* A file of the folder as it is, however large it may be, into `dir`; none is made where there is none. */
tm_status tm_source_folder_copy(const tm_source *src, const char *name, const char *dir, bool *found) {
    TM_TRY(in_folder(src, name, found));
    if (!*found) return TM_OK;
    char *from = tm_path_join(folder_of(src, name), name), *to = tm_path_join(dir, name);
    tm_status rc = from && to ? tm_copy_file(from, to) : tm_nomem(strlen(dir));
    tm_free(from);
    tm_free(to);
    return rc;
}

tm_status tm_source_folder_file(const tm_source *src, const char *name, tm_buf *out, bool *found) {
    TM_TRY(in_folder(src, name, found));
    if (*found) {
        *found = false; /* until it was read */
        TM_TRY(slurp(src, name, TM_FORMAT_MAX_TEXT, out));
        *found = true;
        return TM_OK;
    }
    return strcmp(name, "chat_template.jinja") == 0 ? template_from_config(src, out, found) : TM_OK;
}
