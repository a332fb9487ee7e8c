#include "tools/text_model.h"

#include "format/format.h"
#include "io/file/file.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SIDE_FILE = 64 << 20, MAX_LINE = 256 << 20 };

static tm_status folder_file(const char *dir, const char *name, tm_buf *out, bool *found) {
    tm_buf path = {0};
    tm_status rc = tm_buf_printf(&path, "%s/%s", dir, name);
    *found = rc == TM_OK && tm_path_exists(path.data);
    if (*found) rc = tm_file_slurp(path.data, MAX_SIDE_FILE, out);
    tm_buf_free(&path);
    return rc;
}

/* "chat_template" of tokenizer_config.json: the text, or a list of named ones of which "default" is taken. */
static tm_status template_of_config(const tm_buf *config, tm_buf *out, bool *found) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, config->data, config->len, "tokenizer_config.json", TM_JSON_DUPLICATES_OK, 0));
    const tm_json *t = tm_json_get(tm_json_root(doc), "chat_template");
    if (t != NULL && t->type == TM_JSON_ARRAY) {
        const tm_json *named = t->child;
        while (named != NULL && !tm_json_is(tm_json_get(named, "name"), "default")) named = named->next;
        t = named == NULL ? NULL : tm_json_get(named, "template");
    }
    *found = t != NULL && t->type == TM_JSON_STRING;
    tm_status rc = *found ? tm_buf_append(out, t->text, t->len) : TM_OK;
    tm_json_free(doc);
    return rc;
}

typedef struct text_files {
    tm_buf tokenizer, config, jinja;
    bool has_tokenizer, has_config, has_jinja;
} text_files;

static tm_status read_folder(const char *path, text_files *f) {
    TM_TRY(folder_file(path, "tokenizer.json", &f->tokenizer, &f->has_tokenizer));
    TM_TRY(folder_file(path, "tokenizer_config.json", &f->config, &f->has_config));
    TM_TRY(folder_file(path, "chat_template.jinja", &f->jinja, &f->has_jinja));
    return f->has_jinja || !f->has_config ? TM_OK : template_of_config(&f->config, &f->jinja, &f->has_jinja);
}

static tm_status read_gguf(const char *path, text_files *f) {
    tm_source *source;
    tm_status rc;
    TM_TRY(tm_source_open_bare(&source, path));
    TM_GO(tm_source_file(source, "tokenizer.json", &f->tokenizer, &f->has_tokenizer));
    TM_GO(tm_source_file(source, "tokenizer_config.json", &f->config, &f->has_config));
    TM_GO(tm_source_file(source, "chat_template.jinja", &f->jinja, &f->has_jinja));
done:
    tm_source_close(source);
    return rc;
}

static tm_status open_both(text_model *m, const char *path, bool chat, const text_files *f) {
    if (!f->has_tokenizer)
        return tm_fail(TM_EINPUT, "%s: has no tokenizer.json; make one with transformers' save_pretrained", path);
    tm_mem_source mem = {.data = f->tokenizer.data, .len = f->tokenizer.len};
    TM_TRY(tm_tokenizer_open(&m->tokenizer, tm_mem_source_read, &mem, "tokenizer.json"));
    if (!chat) return TM_OK;
    if (!f->has_jinja)
        return tm_fail(TM_EINPUT,
                       "%s: has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)",
                       path);
    tm_chat_opts opts = {.tokenizer_config = f->has_config ? f->config.data : NULL,
                         .tokenizer_config_len = f->config.len};
    const char *jinja = f->jinja.data == NULL ? "" : f->jinja.data;
    return tm_chat_open(&m->chat, m->tokenizer, jinja, f->jinja.len, "chat_template.jinja", &opts);
}

tm_status text_model_open(text_model *m, const char *path, bool chat) {
    text_files f = {0};
    *m = (text_model){0};
    tm_status rc = tm_path_is_dir(path) ? read_folder(path, &f) : read_gguf(path, &f);
    if (rc == TM_OK) rc = open_both(m, path, chat, &f);
    tm_buf_free(&f.tokenizer);
    tm_buf_free(&f.config);
    tm_buf_free(&f.jinja);
    return rc;
}

void text_model_close(text_model *m) {
    tm_chat_close(m->chat);
    tm_tokenizer_close(m->tokenizer);
    *m = (text_model){0};
}

static tm_status read_line(tm_buf *line, bool *end) {
    char block[4096];
    size_t n = 0;
    int c;
    tm_buf_clear(line);
    while ((c = getc_unlocked(stdin)) != EOF && c != '\n') {
        block[n++] = (char)c;
        if (n < sizeof block) continue;
        TM_TRY(tm_buf_append(line, block, n));
        n = 0;
        if (line->len > MAX_LINE) return tm_fail(TM_EINPUT, "the line is longer than 256 MiB");
    }
    TM_TRY(tm_buf_append(line, block, n));
    if (c == EOF && ferror(stdin)) return tm_fail(TM_EIO, "stdin cannot be read");
    *end = c == EOF && line->len == 0;
    return TM_OK;
}

/* The parser's "JSON:1:COLUMN: what" counts lines of its own. */
static tm_status not_json(tm_status rc) {
    static const char place[] = "JSON:1:";
    tm_error e = *tm_error_get();
    if (rc != TM_EINPUT || strncmp(e.text, place, sizeof place - 1) != 0) return rc;
    tm_error_clear();
    return tm_fail(rc, "column %s; every line has to be one JSON object, --help shows one", e.text + sizeof place - 1);
}

typedef struct line_job {
    text_answer_fn answer; /* or */
    text_show_fn show;
    void *ctx;
} line_job;

static tm_status answer_json(const line_job *j, const tm_json *request, tm_buf *out) {
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    w.ascii = true; /* a line stays a line for readers that also break at U+2028 or U+0085 */
    tm_jw_object(&w);
    tm_status rc = j->answer(j->ctx, request, &w);
    tm_jw_object_end(&w);
    return rc == TM_OK ? tm_jw_end(&w) : rc;
}

static tm_status answer_line(const line_job *j, const tm_buf *line, tm_buf *out) {
    tm_json_doc *doc;
    tm_status rc = tm_json_parse(&doc, line->data, line->len, "JSON", 0, (size_t)4 * MAX_LINE);
    if (rc != TM_OK) return not_json(rc);
    tm_buf_clear(out);
    rc = j->show != NULL ? j->show(j->ctx, tm_json_root(doc), out) : answer_json(j, tm_json_root(doc), out);
    tm_json_free(doc);
    return rc;
}

static tm_status print_line(const tm_buf *out) {
    bool ok = fwrite(out->data, 1, out->len, stdout) == out->len && fputc('\n', stdout) != EOF && fflush(stdout) == 0;
    return ok ? TM_OK : tm_fail(TM_EIO, "stdout cannot be written");
}

/* Puts the line's number in front of the pending failure. */
static tm_status name_line(tm_status rc, size_t number) {
    tm_error e = *tm_error_get();
    if (e.code == TM_OK) return rc;
    tm_error_clear();
    return tm_fail(rc, "stdin line %zu: %s", number, e.text);
}

static tm_status run_lines(const line_job *j) {
    tm_buf line = {0}, out = {0};
    tm_status rc = TM_OK;
    bool end = false;
    for (size_t number = 1; rc == TM_OK; number++) {
        rc = read_line(&line, &end);
        if (rc == TM_OK && end) break;
        bool blank = rc == TM_OK && (line.len == 0 || strspn(line.data, " \t\r") == line.len);
        if (rc == TM_OK && !blank) rc = answer_line(j, &line, &out);
        if (rc == TM_OK && !blank) rc = print_line(&out);
        if (rc != TM_OK) rc = name_line(rc, number);
    }
    tm_buf_free(&line);
    tm_buf_free(&out);
    return rc;
}

tm_status text_lines(text_answer_fn answer, void *ctx) {
    return run_lines(&(line_job){.answer = answer, .ctx = ctx});
}

tm_status text_lines_shown(text_show_fn show, void *ctx) {
    return run_lines(&(line_job){.show = show, .ctx = ctx});
}

void text_put_ids(tm_json_writer *w, const tm_ids *ids) {
    tm_jw_field_array(w, "ids");
    for (size_t i = 0; i < ids->n; i++) tm_jw_int(w, ids->id[i]);
    tm_jw_array_end(w);
}
