/* Opens the data; src/data itself opens no files. Tokens that do not fit memory lie in a file of OUTPUT_DIR. */
#include "session/data_open.h"

#include "io/file/file.h"
#include "session/data_cache.h"
#include "session/data_files.h"
#include "session/token_rows.h"

#include <stdio.h>
#include <string.h>

struct data_file {
    tm_dataset *set;
    char name[4096];
    token_rows *rows; /* NULL: of text */
    /* spilled tokens */
    char spill_path[512];
    tm_out *spill_out;
    tm_file *spill_in;
    tm_data_spill spill;
    bool cached, shared; /* in a file that a later start may open; another process's */
    bool keep;           /* it stays when this is closed */
    double part;         /* of the file that was read */
};

static tm_status spill_write(void *ctx, uint64_t offset, const void *buf, size_t len) {
    data_file *f = ctx;
    if (!f->spill_out) TM_TRY(tm_out_create(&f->spill_out, f->spill_path));
    return tm_out_write_at(f->spill_out, offset, buf, len);
}

static tm_status commit_spill(data_file *f) {
    tm_out *o = f->spill_out;
    f->spill_out = NULL;
    TM_TRY(tm_out_commit(o));
    return tm_file_open(&f->spill_in, f->spill_path);
}

static tm_status spill_read(void *ctx, uint64_t offset, void *buf, size_t len) {
    data_file *f = ctx;
    if (f->spill_out) TM_TRY(commit_spill(f)); /* written front to back, then read: the first read closes it */
    TM_TRY(tm_file_read_at(f->spill_in, offset, buf, len));
    tm_file_forget(f->spill_in, offset, len);
    return TM_OK;
}

static tm_status forget(void *ctx, uint64_t offset, const void *buf, size_t len) {
    (void)ctx, (void)offset, (void)buf, (void)len;
    return TM_OK;
}

static tm_status forgotten(void *ctx, uint64_t offset, void *buf, size_t len) {
    (void)ctx, (void)offset, (void)buf, (void)len;
    return tm_fail(TM_EBUG, "a batch of data of which only lengths are known");
}

static tm_status open_rows(data_file *f, const char *path, uint64_t most_bytes, const tm_dataset_opts *opts) {
    tm_row_source rows;
    TM_TRY(token_rows_open(&f->rows, path, opts->rows, most_bytes, &rows, &f->part));
    return tm_dataset_open_rows(&f->set, &rows, opts);
}

/* Tokens of an earlier life of the run; *found false: there are none that are whole. */
static tm_status open_cached(data_file *f, uint64_t key, const tm_dataset_opts *o, bool *found) {
    *found = false;
    if (!tm_path_exists(f->spill_path)) return TM_OK;
    tm_status rc = tm_file_open(&f->spill_in, f->spill_path);
    if (rc == TM_OK) rc = tm_dataset_open_saved(&f->set, tm_file_size(f->spill_in), key, o);
    *found = rc == TM_OK;
    if (*found) tm_log(TM_LOG_INFO, "%s: tokenised by an earlier start, which is used", f->name);
    if (rc == TM_OK || rc == TM_ENOMEM || rc == TM_ESIGNAL) return rc;
    tm_log(TM_LOG_WARN, "%s: %s; the data are read again", f->spill_path, tm_error_get()->text);
    tm_error_clear();
    tm_file_close(f->spill_in);
    f->spill_in = NULL;
    return TM_OK;
}

/* What was too much for memory lies in a file already: with its index it can be opened again. */
static tm_status keep_tokens(data_file *f, uint64_t key) {
    if (!f->spill_out) return TM_OK;
    TM_TRY(tm_dataset_save(f->set, key));
    return commit_spill(f);
}

static tm_status open_with_cache(data_file *f, const data_files *files, uint64_t text, const data_opts *opts,
                                 const tm_dataset_opts *o) {
    uint64_t key;
    bool found;
    TM_TRY(data_cache_key(files, o, text, &key));
    data_cache_path(opts->spill_dir, opts->cache, key, f->spill_path, sizeof f->spill_path);
    if (opts->owns_cache) data_cache_sweep(opts->spill_dir, opts->cache, f->spill_path);
    TM_TRY(open_cached(f, key, o, &found));
    f->shared = !opts->owns_cache && found;
    f->cached = opts->owns_cache;
    f->keep = found; /* a start that fails leaves what it has not made */
    if (found) return TM_OK;
    if (!opts->owns_cache) data_cache_own_path(opts->spill_dir, f->spill_path, sizeof f->spill_path);
    TM_TRY(tm_dataset_open(&f->set, data_files_get(files), o));
    return opts->owns_cache ? keep_tokens(f, key) : TM_OK;
}

static tm_status open_records(data_file *f, const tm_data_items *items, const text_tools *text, const char *model,
                              const data_opts *opts, const tm_dataset_opts *base) {
    tm_dataset_opts o = *base;
    data_files *files;
    if (!text->tokenizer)
        return tm_fail(TM_EINPUT,
                       "%s: the model has no tokenizer.json, which JSONL data need; add it, or give token ids as "
                       ".safetensors",
                       model);
    o.tokenizer = text->tokenizer;
    o.chat = text->chat;
    o.eos_id = text->end;
    TM_TRY(data_files_open(&files, items, opts->window_bytes, f->name));
    bool cached = opts->cache && opts->spill_dir && !opts->lengths_only;
    tm_status rc =
        cached ? open_with_cache(f, files, text->hash, opts, &o) : tm_dataset_open(&f->set, data_files_get(files), &o);
    data_files_close(files);
    if (rc == TM_OK) f->part = tm_dataset_part(f->set);
    return rc;
}

bool data_is_rows(const tm_data_items *items) {
    const char *path = items->item[0].path;
    bool whole = items->n == 1 && !items->item[0].samples && items->item[0].weight == 1;
    return whole && tm_ends_with(path, ".safetensors");
}

static void name_it(data_file *f, const tm_data_items *items) {
    if (items->n == 1)
        snprintf(f->name, sizeof f->name, "%s", items->item[0].path);
    else
        snprintf(f->name, sizeof f->name, "%.4000s and %u more", items->item[0].path, items->n - 1);
}

tm_status data_open(data_file **out, const tm_data_items *items, const text_tools *text, const char *model,
                    const data_opts *opts) {
    tm_dataset_opts o = opts->dataset;
    tm_status rc;
    data_file *f = tm_calloc(1, sizeof *f);
    if (!f) return tm_nomem(sizeof *f);
    name_it(f, items);
    if (opts->spill_dir) {
        data_cache_own_path(opts->spill_dir, f->spill_path, sizeof f->spill_path);
        f->spill = (tm_data_spill){.ctx = f, .write_at = spill_write, .read_at = spill_read};
        o.spill = &f->spill;
    }
    if (opts->lengths_only) {
        f->spill = (tm_data_spill){.ctx = f, .write_at = forget, .read_at = forgotten};
        o.spill = &f->spill;
    }
    o.most_bytes = opts->most_bytes;
    TM_GO(data_is_rows(items) && o.held_out == 0 ? open_rows(f, items->item[0].path, opts->most_bytes, &o)
                                                 : open_records(f, items, text, model, opts, &o));
    *out = f;
done:
    if (rc != TM_OK) data_close(f);
    return rc;
}

const char *data_name(const data_file *f) {
    return f->name;
}

tm_dataset *data_set(data_file *f) {
    return f->set;
}

void data_keep(data_file *f, bool keep) {
    f->keep = keep;
}

uint64_t data_disk_bytes(const data_file *f) {
    enum { IN_MEMORY_MIB = 8 }; /* tm_dataset_opts.memory_bytes where it is 0 */
    double bytes = f->rows ? 0 : (double)tm_dataset_saved_bytes(f->set) / f->part;
    return bytes > (double)(IN_MEMORY_MIB * TM_MIB) ? (uint64_t)bytes : 0;
}

double data_part(const data_file *f) {
    return f->part;
}

void data_close(data_file *f) {
    if (!f) return;
    bool spilled = (f->spill_out || f->spill_in) && !f->shared && !(f->cached && f->keep);
    tm_dataset_close(f->set);
    token_rows_close(f->rows);
    tm_out_abandon(f->spill_out);
    tm_file_close(f->spill_in);
    if (spilled && tm_remove_tree(f->spill_path) != TM_OK) tm_error_clear();
    tm_free(f);
}
