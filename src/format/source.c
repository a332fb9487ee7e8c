#include "format/gguf_internal.h"
#include "format/source_internal.h"
#include "base/ordered.h"

#include <inttypes.h>
#include <string.h>

void tm_source_close(tm_source *src) {
    if (!src) return;
    if (src->merge) return tm_source_close_merged(src);
    for (uint32_t i = 0; src->shard && i < src->n_shards; i++) tm_st_close(src->shard[i]);
    tm_free(src->shard);
    tm_gguf_close(src->gguf);
    tm_bnb_close(src);
    tm_ints_close(src);
    tm_free(src->entry);
    tm_buf_free(&src->names);
    tm_buf_free(&src->config);
    tm_free(src->path);
    tm_free(src->tokenizer);
    tm_free(src);
}

tm_status tm_source_add(tm_source *src, const source_entry *entry) {
    TM_TRY(tm_grow(&src->entry, &src->cap, (size_t)src->n + 1, sizeof *src->entry));
    src->entry[src->n++] = *entry;
    return TM_OK;
}

static const char *entry_name(const void *ctx, uint32_t i) {
    return ((const source_entry *)ctx)[i].info.name;
}

tm_status tm_source_sort(tm_source *src) {
    uint32_t dup;
    tm_status rc = TM_OK;
    uint32_t *order = tm_malloc((src->n + 1) * sizeof *order);
    source_entry *sorted = tm_malloc((src->n + 1) * sizeof *sorted);
    if (!order || !sorted)
        rc = tm_nomem((src->n + 1) * sizeof *sorted);
    else if (!tm_sort_names(order, src->n, entry_name, src->entry, &dup)) {
        const tm_source_tensor *a = &src->entry[order[dup]].info, *b = &src->entry[order[dup + 1]].info;
        rc = tm_fail(TM_EINPUT, "%s: '%s' is there twice: in %s and in %s", src->path, a->name, a->file, b->file);
    } else {
        for (uint32_t i = 0; i < src->n; i++) sorted[i] = src->entry[order[i]];
        tm_free(src->entry);
        src->entry = sorted;
        src->cap = src->n + 1;
        sorted = NULL;
    }
    tm_free(order);
    tm_free(sorted);
    return rc;
}

static tm_status open_kind(tm_source *src, bool weights) {
    const char *path = src->path;
    if (tm_path_is_dir(path)) return tm_source_open_folder(src, weights);
    bool absent = tm_path_absent(path);
    if (absent && tm_hub_is_name(path))
        return tm_fail(
            TM_EINPUT,
            "%s: there is no such model folder or .gguf file, nor is it in the caches of Hugging Face and ModelScope, "
            "and nothing is downloaded; fetch it: hf download %s   (or: modelscope download --model %s)",
            path, path, path);
    if (absent) return tm_fail(TM_EINPUT, "%s: there is no such model folder or .gguf file", path);
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".ckpt"};
    for (size_t i = 0; i < TM_COUNT(pickles); i++)
        if (tm_ends_with(path, pickles[i]))
            return tm_fail(TM_EUNSUPPORTED,
                           "%s: pickled weights can run code and are not read; convert them to safetensors", path);
    if (tm_ends_with(path, ".safetensors"))
        return tm_fail(TM_EINPUT, "%s: name the folder that holds it and config.json", path);
    return tm_ends_with(path, ".json") ? tm_source_open_config(src, weights) : tm_source_open_gguf(src, weights);
}

static tm_status open_source(tm_source **out, const char *path, bool weights) {
    tm_source *src = tm_calloc(1, sizeof *src);
    tm_status rc;
    *out = NULL;
    if (!src) return tm_nomem(sizeof *src);
    src->path = tm_strdup(path);
    if (!src->path) {
        rc = tm_nomem(strlen(path));
        goto done;
    }
    TM_GO(open_kind(src, weights));
    TM_GO(tm_source_sort(src));
    if (!src->gguf) TM_GO(tm_bnb_fold(src));
    TM_GO(tm_ints_fold(src));
    *out = src;
    return TM_OK;
done:
    tm_source_close(src);
    return rc;
}

tm_status tm_source_open(tm_source **out, const char *path) {
    return open_source(out, path, true);
}
tm_status tm_source_open_bare(tm_source **out, const char *path) {
    return open_source(out, path, false);
}

tm_status tm_source_set_tokenizer(tm_source *src, const char *dir) {
    if (!tm_path_is_dir(dir))
        return tm_fail(TM_EINPUT, "%s: there is no such folder; a tokenizer is a folder with a tokenizer.json", dir);
    src->tokenizer = tm_strdup(dir);
    return src->tokenizer ? TM_OK : tm_nomem(strlen(dir));
}

const char *tm_source_path(const tm_source *src) {
    return src->path;
}
bool tm_source_is_gguf(const tm_source *src) {
    return src->gguf != NULL;
}

const char *tm_source_config(const tm_source *src, size_t *len) {
    if (len) *len = src->config.len;
    return src->config.data;
}

bool tm_source_is_coded(const tm_source *src) {
    for (uint32_t t = 0; t < src->n; t++)
        if (tm_fmt_is_coded(src->entry[t].info.fmt)) return true;
    return false;
}

uint32_t tm_source_tensors(const tm_source *src) {
    return src->n;
}

const tm_source_tensor *tm_source_tensor_get(const tm_source *src, uint32_t i) {
    TM_ASSERT(i < src->n);
    return &src->entry[i].info;
}

typedef struct entry_wanted {
    const tm_source *src;
    const char *name;
    size_t n;
} entry_wanted;

/* The order of an entry's name and the first n bytes of another. */
static int compare(const char *entry, const char *name, size_t n) {
    int order = strncmp(entry, name, n);
    return order ? order : entry[n] != 0;
}

static bool entry_before(const void *ctx, size_t i) {
    const entry_wanted *w = ctx;
    return compare(w->src->entry[i].info.name, w->name, w->n) < 0;
}

int64_t tm_source_find_part(const tm_source *src, const char *name, size_t n) {
    size_t at = tm_lower_bound(src->n, entry_before, &(entry_wanted){src, name, n});
    return at < src->n && compare(src->entry[at].info.name, name, n) == 0 ? (int64_t)at : -1;
}

int64_t tm_source_find(const tm_source *src, const char *name) {
    return tm_source_find_part(src, name, strlen(name));
}

typedef tm_status (*read_fn)(const tm_elements *e, uint64_t first, uint64_t n, void *dst);

static tm_status read_floats(const tm_elements *e, uint64_t first, uint64_t n, void *dst) {
    return tm_elements_f32(e, first, n, dst);
}

/* ---- a matrix that the file has transposed ---- */

/* Column c of the transpose is a run of the matrix: its elements within [first, first + n) lie side by side there. */
tm_status tm_read_transposed(const tm_transposed *t, uint64_t first, uint64_t n, void *dst) {
    uint8_t some[1024 * sizeof(float)];
    uint64_t end = first + n, w = t->width;
    for (uint64_t c = 0; c < w; c++) {
        uint64_t row = first > c ? (first - c + w - 1) / w : 0, stop = end > c ? (end - c + w - 1) / w : 0;
        while (row < stop) {
            uint64_t take = tm_min_u64(stop - row, sizeof some / sizeof(float));
            TM_TRY(t->read(t->ctx, c * t->rows + row, take, some));
            for (uint64_t i = 0; i < take; i++)
                memcpy((uint8_t *)dst + ((row + i) * w + c - first) * t->size, some + i * t->size, t->size);
            row += take;
        }
    }
    return TM_OK;
}

typedef struct element_run {
    const tm_elements *e;
    read_fn read;
} element_run;

static tm_status read_run(const void *ctx, uint64_t first, uint64_t n, void *dst) {
    const element_run *r = ctx;
    return r->read(r->e, first, n, dst);
}

static tm_status read_range(const source_entry *s, uint64_t first, uint64_t n, void *dst, read_fn read, size_t size) {
    const tm_source_tensor *t = &s->info;
    const tm_elements e = {s->handle, t->name, t->fmt, t->elements, t->offset};
    const element_run run = {&e, read};
    if (!s->head_rows && !s->transposed) return read(&e, first, n, dst);
    TM_TRY(tm_range_check(t->file, t->name, first, n, t->elements));
    if (s->transposed)
        return tm_read_transposed(&(tm_transposed){read_run, &run, size, t->shape[0], t->shape[1]}, first, n, dst);
    uint64_t width = t->ndim > 1 ? t->elements / t->shape[0] : 1;
    for (uint64_t done = 0; done < n;) {
        uint64_t at = first + done, column = at % width, take = tm_min_u64(n - done, width - column);
        uint64_t row = tm_permuted_row(at / width, s->head_rows);
        TM_TRY(read(&e, row * width + column, take, (uint8_t *)dst + done * size));
        done += take;
    }
    return TM_OK;
}

tm_status tm_source_read_f32(const tm_source *src, uint32_t i, uint64_t first, uint64_t n, float *dst) {
    TM_ASSERT(i < src->n);
    if (src->entry[i].merge) return tm_source_read_merged(src, src->entry[i].merge, first, n, dst);
    if (src->entry[i].made) return tm_source_read_made(src, &src->entry[i], first, n, dst);
    if (src->entry[i].bnb) return tm_bnb_read(&src->entry[i], first, n, dst);
    if (src->entry[i].ints) return tm_ints_read(&src->entry[i], first, n, dst);
    TM_TRY(read_range(&src->entry[i], first, n, dst, read_floats, sizeof(float)));
    for (uint64_t e = 0; e < n && src->entry[i].added_one; e++) dst[e] -= 1;
    return TM_OK;
}

/* Where the values of a file are not those of the tensor. */
static tm_status read_narrowed(const tm_source *src, uint32_t i, uint64_t first, uint64_t n, void *dst) {
    float values[1024];
    tm_fmt fmt = src->entry[i].info.fmt;
    for (uint64_t done = 0; done < n;) {
        uint64_t take = tm_min_u64(n - done, TM_COUNT(values));
        TM_TRY(tm_source_read_f32(src, i, first + done, take, values));
        TM_TRY(tm_fmt_encode(fmt, values, take, (uint8_t *)dst + done * tm_fmt_get(fmt)->block_bytes));
        done += take;
    }
    return TM_OK;
}

tm_status tm_source_read_native(const tm_source *src, uint32_t i, uint64_t first, uint64_t n, void *dst) {
    TM_ASSERT(i < src->n);
    const source_entry *s = &src->entry[i];
    tm_fmt fmt = s->info.fmt;
    if (fmt != TM_FMT_F32 && fmt != TM_FMT_BF16 && fmt != TM_FMT_F16)
        return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is stored as %s; read its values as float32", s->info.file,
                       s->info.name, tm_fmt_get(fmt)->name);
    if (s->added_one || s->merge || s->made) return read_narrowed(src, i, first, n, dst);
    return read_range(s, first, n, dst, tm_elements_raw, tm_fmt_get(fmt)->block_bytes);
}

tm_status tm_source_read_raw(const tm_source *src, uint32_t i, uint64_t byte_offset, uint64_t n, void *dst) {
    TM_ASSERT(i < src->n && !src->gguf);
    const source_entry *s = &src->entry[i];
    TM_ASSERT(byte_offset <= s->info.bytes && n <= s->info.bytes - byte_offset);
    return tm_file_read_at(s->handle, s->info.offset + byte_offset, dst, n);
}

void tm_source_forget(const tm_source *src, uint32_t i) {
    TM_ASSERT(i < src->n);
    if (src->entry[i].made) return;
    if (src->entry[i].bnb) tm_bnb_forget(&src->entry[i]);
    if (src->entry[i].ints) tm_ints_forget(&src->entry[i]);
    tm_file_forget(src->entry[i].handle, src->entry[i].info.offset, src->entry[i].info.bytes);
}

tm_status tm_source_file(const tm_source *src, const char *name, tm_buf *out, bool *found) {
    *found = false;
    return src->gguf && !tm_source_from_tokenizer(src, name) ? tm_source_gguf_file(src, name, out, found)
                                                             : tm_source_folder_file(src, name, out, found);
}
