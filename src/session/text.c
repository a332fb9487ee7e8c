/* Opens what turns files into batches; src/data itself opens no files. */
#include "session/text.h"

#include "io/file/file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- tokenizer, template, end tokens ------------------------------------------------------------------------- */

static tm_status side_file(const tm_source *source, const char *name, tm_buf *out, bool *found) {
    *found = false;
    return tm_source_file(source, name, out, found);
}

static void add_eos(text_tools *t, const tm_json *node) {
    if (!node) return;
    for (const tm_json *e = node->type == TM_JSON_ARRAY ? node->child : node; e;
         e = node->type == TM_JSON_ARRAY ? e->next : NULL) {
        bool known = !(e->type == TM_JSON_NUMBER && e->is_integer && e->integer >= 0 && e->integer <= INT32_MAX);
        for (uint32_t i = 0; i < t->n_eos && !known; i++) known = t->eos[i] == e->integer;
        if (!known && t->n_eos < TM_COUNT(t->eos)) t->eos[t->n_eos++] = (int32_t)e->integer;
    }
}

static tm_status read_eos(text_tools *t, const char *json, size_t len, const char *name) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, json, len, name, 0, 0));
    add_eos(t, tm_json_get(tm_json_root(doc), "eos_token_id"));
    tm_json_free(doc);
    return TM_OK;
}

static tm_status open_tokenizer(text_tools *t, const tm_source *source) {
    tm_buf json = {0};
    bool found;
    tm_status rc;
    TM_GO(side_file(source, "tokenizer.json", &json, &found));
    if (found) {
        tm_mem_source mem = {.data = json.data, .len = json.len};
        TM_GO(tm_tokenizer_open(&t->tokenizer, tm_mem_source_read, &mem, "tokenizer.json"));
    }
done:
    tm_buf_free(&json);
    return rc;
}

static tm_status open_chat(text_tools *t, const tm_source *source, uint64_t host_bytes) {
    tm_buf text = {0}, config = {0};
    bool found, have_config;
    tm_status rc;
    TM_GO(side_file(source, "chat_template.jinja", &text, &found));
    if (!found || !t->tokenizer) goto done;
    TM_GO(side_file(source, "tokenizer_config.json", &config, &have_config));
    tm_chat_opts opts = {.tokenizer_config = have_config ? config.data : NULL,
                         .tokenizer_config_len = config.len,
                         .memory_bytes = host_bytes / 4};
    TM_GO(tm_chat_open(&t->chat, t->tokenizer, text.data, text.len, "chat_template.jinja", &opts));
done:
    tm_buf_free(&text);
    tm_buf_free(&config);
    return rc;
}

tm_status text_open(text_tools *out, const tm_source *source, uint64_t host_bytes) {
    tm_buf generation = {0};
    bool found;
    size_t len;
    const char *config = tm_source_config(source, &len);
    tm_status rc;
    *out = (text_tools){0};
    TM_GO(side_file(source, "generation_config.json", &generation, &found));
    if (found) TM_GO(read_eos(out, generation.data, generation.len, "generation_config.json"));
    TM_GO(read_eos(out, config, len, "config.json"));
    TM_GO(open_tokenizer(out, source));
    TM_GO(open_chat(out, source, host_bytes));
done:
    tm_buf_free(&generation);
    if (rc != TM_OK) text_close(out);
    return rc;
}

void text_close(text_tools *t) {
    tm_chat_close(t->chat);
    tm_tokenizer_close(t->tokenizer);
    *t = (text_tools){0};
}

struct data_file {
    tm_dataset *set;
    tm_file *file; /* that records are read from */
    /* rows of ids */
    tm_st *rows;
    uint32_t ids, labels, mask; /* tensor indices; UINT32_MAX: none */
    uint64_t seq;
    int64_t *row;
    char name[4096];
    /* spilled tokens */
    char spill_path[512];
    tm_out *spill_out;
    tm_file *spill_in;
    tm_data_spill spill;
    double part; /* of the file that was read */
};

static tm_status spill_write(void *ctx, uint64_t offset, const void *buf, size_t len) {
    data_file *f = ctx;
    if (!f->spill_out) TM_TRY(tm_out_create(&f->spill_out, f->spill_path));
    return tm_out_write_at(f->spill_out, offset, buf, len);
}

static tm_status spill_read(void *ctx, uint64_t offset, void *buf, size_t len) {
    data_file *f = ctx;
    if (f->spill_out) { /* written front to back, then read: the first read closes it */
        tm_out *o = f->spill_out;
        f->spill_out = NULL;
        TM_TRY(tm_out_commit(o));
        TM_TRY(tm_file_open(&f->spill_in, f->spill_path));
    }
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

tm_status rows_known_only(const tm_st *st, const char *path) {
    static const char *const known[] = {"input_ids", "labels", "attention_mask"};
    for (uint32_t i = 0; i < tm_st_count(st); i++) {
        const char *name = tm_st_get(st, i)->name;
        bool found = false;
        for (size_t k = 0; k < TM_COUNT(known); k++) found |= strcmp(name, known[k]) == 0;
        if (!found)
            return tm_fail(TM_EINPUT,
                           "%s: tensor %s: this version reads input_ids, labels and attention_mask, and would leave it "
                           "out; take it out of the file if that is what you want",
                           path, name);
    }
    return TM_OK;
}

static tm_status row_tensor(data_file *f, const char *name, uint64_t n_rows, uint32_t *index) {
    int64_t at = tm_st_find(f->rows, name);
    *index = at < 0 ? UINT32_MAX : (uint32_t)at;
    if (at < 0) return TM_OK;
    const tm_st_info *info = tm_st_get(f->rows, (uint32_t)at);
    if (info->ndim == 2 && info->shape[0] == n_rows && info->shape[1] == f->seq) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: %s must have the shape of input_ids [%llu, %llu]", f->name, name,
                   (unsigned long long)n_rows, (unsigned long long)f->seq);
}

static tm_status narrow(const data_file *f, const char *what, uint64_t row, const int64_t *in, int32_t *out) {
    for (uint64_t i = 0; i < f->seq; i++) {
        if (in[i] < INT32_MIN || in[i] > INT32_MAX)
            return tm_fail(TM_EINPUT, "%s: %s[%llu, %llu] = %lld is out of range", f->name, what,
                           (unsigned long long)row, (unsigned long long)i, (long long)in[i]);
        out[i] = (int32_t)in[i];
    }
    return TM_OK;
}

static tm_status get_row(void *ctx, uint64_t row, int32_t *ids, int32_t *labels, uint8_t *mask) {
    data_file *f = ctx;
    TM_TRY(tm_st_read_i64(f->rows, f->ids, row * f->seq, f->seq, f->row));
    TM_TRY(narrow(f, "input_ids", row, f->row, ids));
    TM_TRY(tm_st_read_i64(f->rows, f->labels, row * f->seq, f->seq, f->row));
    TM_TRY(narrow(f, "labels", row, f->row, labels));
    memset(mask, 1, f->seq);
    if (f->mask == UINT32_MAX) return TM_OK;
    TM_TRY(tm_st_read_i64(f->rows, f->mask, row * f->seq, f->seq, f->row));
    for (uint64_t i = 0; i < f->seq; i++) mask[i] = f->row[i] != 0;
    return TM_OK;
}

static tm_status open_rows(data_file *f, const char *path, uint64_t most_bytes, const tm_dataset_opts *opts) {
    TM_TRY(tm_st_open(&f->rows, path));
    int64_t at = tm_st_find(f->rows, "input_ids");
    const tm_st_info *info = at < 0 ? NULL : tm_st_get(f->rows, (uint32_t)at);
    if (!info || info->ndim != 2 || info->shape[1] == 0 || info->shape[1] > UINT32_MAX)
        return tm_fail(TM_EINPUT, "%s: a tensor input_ids of shape [rows, positions] is needed", path);
    f->ids = (uint32_t)at;
    f->seq = info->shape[1];
    TM_TRY(row_tensor(f, "labels", info->shape[0], &f->labels));
    if (f->labels == UINT32_MAX)
        return tm_fail(TM_EINPUT, "%s: a tensor labels of the shape of input_ids is needed (-100: not learned)", path);
    TM_TRY(row_tensor(f, "attention_mask", info->shape[0], &f->mask));
    TM_TRY(rows_known_only(f->rows, path));
    f->row = tm_malloc(f->seq * sizeof *f->row);
    if (!f->row) return tm_nomem(f->seq * sizeof *f->row);
    uint64_t n = info->shape[0], row_bytes = f->seq * sizeof(int64_t) * (f->mask == UINT32_MAX ? 2 : 3);
    if (most_bytes) n = tm_min_u64(n, tm_max_u64(most_bytes / row_bytes, 1));
    f->part = (double)n / (double)info->shape[0];
    tm_row_source rows = {.ctx = f, .get_row = get_row, .n_rows = n, .seq = (uint32_t)f->seq, .name = f->name};
    return tm_dataset_open_rows(&f->set, &rows, opts);
}

static tm_status read_data(void *ctx, uint64_t offset, void *buf, size_t len) {
    TM_TRY(tm_file_read_at(ctx, offset, buf, len));
    tm_file_forget(ctx, offset, len);
    return TM_OK;
}

static tm_status open_source(void *ctx, uint32_t i, tm_data_source *out) {
    data_file *f = ctx;
    (void)i;
    TM_TRY(tm_file_open(&f->file, f->name));
    *out = (tm_data_source){.ctx = f->file, .read_at = read_data, .size = tm_file_size(f->file), .name = f->name};
    return TM_OK;
}

static void close_source(void *ctx, uint32_t i) {
    data_file *f = ctx;
    (void)i;
    tm_file_close(f->file);
    f->file = NULL;
}

static tm_status look_at(data_file *f, uint32_t i, tm_data_files *files) {
    tm_data_source source;
    bool packed;
    TM_TRY(open_source(f, i, &source));
    tm_status rc = tm_data_packed(&source, &packed);
    close_source(f, i);
    if (rc != TM_OK) return rc;
    files->bytes += source.size;
    files->packed |= packed;
    return TM_OK;
}

static tm_status open_records(data_file *f, const text_tools *text, const char *model, const tm_dataset_opts *opts) {
    tm_dataset_opts o = *opts;
    const tm_reader_opts how = {0};
    tm_data_files files = {.ctx = f, .open = open_source, .close = close_source, .how = &how, .n = 1, .name = f->name};
    if (!text->tokenizer)
        return tm_fail(TM_EINPUT,
                       "%s: the model has no tokenizer.json, which JSONL data need; add it, or give token ids as "
                       ".safetensors",
                       model);
    o.tokenizer = text->tokenizer;
    o.chat = text->chat;
    o.eos_id = text->n_eos ? text->eos[0] : -1;
    TM_TRY(look_at(f, 0, &files));
    TM_TRY(tm_dataset_open(&f->set, &files, &o));
    f->part = tm_dataset_part(f->set);
    return TM_OK;
}

tm_status data_open(data_file **out, const char *path, const text_tools *text, const char *model,
                    const data_opts *opts) {
    tm_dataset_opts o = opts->dataset;
    tm_status rc;
    data_file *f = tm_calloc(1, sizeof *f);
    if (!f) return tm_nomem(sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", path);
    if (opts->spill_dir) {
        static unsigned serial;
        snprintf(f->spill_path, sizeof f->spill_path, "%s/.tokens-%ld-%u", opts->spill_dir, (long)getpid(), serial++);
        f->spill = (tm_data_spill){.ctx = f, .write_at = spill_write, .read_at = spill_read};
        o.spill = &f->spill;
    }
    if (opts->lengths_only) {
        f->spill = (tm_data_spill){.ctx = f, .write_at = forget, .read_at = forgotten};
        o.spill = &f->spill;
    }
    size_t len = strlen(path);
    bool rows = len > 12 && strcmp(path + len - 12, ".safetensors") == 0;
    o.most_bytes = opts->most_bytes;
    TM_GO(rows ? open_rows(f, path, opts->most_bytes, &o) : open_records(f, text, model, &o));
    *out = f;
done:
    if (rc != TM_OK) data_close(f);
    return rc;
}

tm_dataset *data_set(data_file *f) {
    return f->set;
}

double data_part(const data_file *f) {
    return f->part;
}

void data_close(data_file *f) {
    if (!f) return;
    bool spilled = f->spill_out || f->spill_in;
    tm_dataset_close(f->set);
    tm_st_close(f->rows);
    tm_out_abandon(f->spill_out);
    tm_file_close(f->spill_in);
    if (spilled && tm_remove_tree(f->spill_path) != TM_OK) tm_error_clear();
    tm_free(f->row);
    tm_free(f);
}
