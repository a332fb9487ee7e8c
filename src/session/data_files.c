/* The files of a dataset: folders become what is in them, sizes are summed, one file is open at a time. */
#include "session/data_files.h"

#include "io/file/file.h"

#include <stdio.h>
#include <string.h>

struct data_files {
    char **path;
    tm_reader_opts *how;
    tm_data_group *group;
    size_t n, path_cap, how_cap;
    tm_file *open; /* that records are read from */
    tm_data_files files;
    const tm_data_item *item; /* whose folder is listed */
};

static tm_status add_path(data_files *f, const tm_data_item *item, char *path) {
    if (!path) return tm_nomem(4096);
    tm_status rc = tm_grow(&f->path, &f->path_cap, f->n + 1, sizeof *f->path);
    if (rc == TM_OK) rc = tm_grow(&f->how, &f->how_cap, f->n + 1, sizeof *f->how);
    if (rc != TM_OK) {
        tm_free(path);
        return rc;
    }
    f->how[f->n] = (tm_reader_opts){.sample_by = item->sample_by, .columns = item->columns.n ? &item->columns : NULL};
    f->path[f->n++] = path;
    return TM_OK;
}

/* What is no data, or says something about the data. Whatever else cannot be read is named when it is opened. */
static bool is_beside(const char *name) {
    static const char *const names[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
                                        "LICENSE"};
    static const char *const ends[] = {".md", ".py", ".yaml", ".yml", ".lock", ".sha256"};
    bool so = *name == '.';
    for (size_t i = 0; i < TM_COUNT(names); i++) so |= !strcmp(name, names[i]);
    for (size_t i = 0; i < TM_COUNT(ends); i++) so |= tm_ends_with(name, ends[i]);
    return so;
}

static tm_status add_named(void *ctx, const char *name, bool is_dir) {
    data_files *f = ctx;
    char path[4096];
    if (is_dir || is_beside(name)) return TM_OK;
    int n = snprintf(path, sizeof path, "%s/%s", f->item->path, name);
    if (n < 0 || (size_t)n >= sizeof path) return tm_fail(TM_EINPUT, "%s: a path that is too long", f->item->path);
    return add_path(f, f->item, tm_strdup(path));
}

static tm_status add_item(data_files *f, const tm_data_item *item) {
    size_t before = f->n;
    f->item = item;
    if (!tm_path_is_dir(item->path)) return add_path(f, item, tm_strdup(item->path));
    TM_TRY(tm_list_dir(item->path, add_named, f));
    if (f->n == before)
        return tm_fail(TM_EINPUT,
                       "%s: the folder has no data file in it (those in folders below it are not looked for)",
                       item->path);
    return TM_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static tm_status read_data(void *ctx, uint64_t offset, void *buf, size_t len) {
    TM_TRY(tm_file_read_at(ctx, offset, buf, len));
    tm_file_forget(ctx, offset, len);
    return TM_OK;
}

static tm_status open_source(void *ctx, uint32_t i, tm_data_source *out) {
    data_files *f = ctx;
    TM_TRY(tm_file_open(&f->open, f->path[i]));
    *out = (tm_data_source){.ctx = f->open, .read_at = read_data, .size = tm_file_size(f->open), .name = f->path[i]};
    return TM_OK;
}

static void close_source(void *ctx, uint32_t i) {
    data_files *f = ctx;
    (void)i;
    tm_file_close(f->open);
    f->open = NULL;
}

static tm_status look_at(data_files *f, uint32_t i) {
    tm_data_source source;
    bool packed, rows = tm_ends_with(f->path[i], ".safetensors");
    if (rows)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s: token rows are one file, taken in order; it cannot be one of several, nor have a number of "
                       "samples, a weight or a held-out part",
                       f->path[i]);
    TM_TRY(open_source(f, i, &source));
    tm_status rc = tm_data_packed(&source, &packed);
    close_source(f, i);
    if (rc != TM_OK) return rc;
    f->files.bytes += source.size;
    f->files.packed |= packed;
    return TM_OK;
}

static tm_status take_items(data_files *f, const tm_data_items *items) {
    f->group = tm_calloc(items->n, sizeof *f->group);
    if (!f->group) return tm_nomem(items->n * sizeof *f->group);
    for (uint32_t g = 0; g < items->n; g++) {
        const tm_data_item *item = &items->item[g];
        size_t before = f->n;
        TM_TRY(add_item(f, item));
        f->group[g] = (tm_data_group){(uint32_t)(f->n - before), item->samples, item->weight};
    }
    return TM_OK;
}

tm_status data_files_open(data_files **out, const tm_data_items *items, uint64_t window_bytes, const char *name) {
    tm_status rc;
    data_files *f = tm_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return tm_nomem(sizeof *f);
    TM_GO(take_items(f, items));
    for (uint32_t i = 0; i < f->n; i++) {
        f->how[i].window_bytes = window_bytes;
        TM_GO(look_at(f, i));
    }
    f->files = (tm_data_files){.ctx = f,
                               .open = open_source,
                               .close = close_source,
                               .how = f->how,
                               .n = (uint32_t)f->n,
                               .bytes = f->files.bytes,
                               .packed = f->files.packed,
                               .group = f->group,
                               .n_groups = items->n,
                               .name = name};
    *out = f;
done:
    if (rc != TM_OK) data_files_close(f);
    return rc;
}

const tm_data_files *data_files_get(const data_files *f) {
    return &f->files;
}

const char *data_files_path(const data_files *f, uint32_t i) {
    return f->path[i];
}

void data_files_close(data_files *f) {
    if (!f) return;
    tm_file_close(f->open);
    for (size_t i = 0; i < f->n; i++) tm_free(f->path[i]);
    TM_FREE_ALL(f->path, f->how, f->group);
    tm_free(f);
}
