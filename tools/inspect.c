/* tidemill inspect PATH: what a model folder, a GGUF or a safetensors file holds. */
#include "format/format.h"
#include "io/file/file.h"
#include "model/model.h"
#include "tools/tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct row {
    const char *name;
    tm_fmt fmt;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t elements, bytes;
} row;

/* What is looked at; exactly one of the three objects is not NULL. A GGUF file whose architecture tm_source does not
 * read is shown as it is. */
typedef struct subject {
    const char *path, *kind;
    tm_source *src;
    tm_gguf *gguf;
    tm_st *st;
    tm_json_doc *config; /* of a source */
    tm_buf missing;      /* for training; empty: nothing */
    uint32_t n;
} subject;

static row row_of(const subject *s, uint32_t i) {
    if (s->src) {
        const tm_source_tensor *t = tm_source_tensor_get(s->src, i);
        return (row){t->name, t->fmt, t->ndim, t->shape, t->elements, t->bytes};
    }
    if (s->gguf) {
        const tm_gguf_tensor *t = tm_gguf_tensor_get(s->gguf, i);
        return (row){t->name, t->fmt, t->ndim, t->shape, t->elements, t->bytes};
    }
    const tm_st_info *t = tm_st_get(s->st, i);
    return (row){t->name, t->fmt, t->ndim, t->shape, t->elements, t->bytes};
}

static tm_status open_source(subject *s) {
    size_t len;
    TM_TRY(tm_source_open(&s->src, s->path));
    s->kind = tm_source_is_gguf(s->src) ? "GGUF" : "Hugging Face folder";
    s->n = tm_source_tensors(s->src);
    const char *json = tm_source_config(s->src, &len);
    TM_TRY(tm_json_parse(&s->config, json, len, "config.json", 0, 0));
    return tm_model_missing(json, len, &s->missing);
}

/* A key of the text part, where there are others, or of the whole. */
static const tm_json *shown(const subject *s, const char *key) {
    const tm_json *root = tm_json_root(s->config), *text = tm_json_get(root, "text_config");
    const tm_json *own = text && strcmp(key, "model_type") != 0 ? tm_json_get(text, key) : NULL;
    return own ? own : tm_json_get(root, key);
}

static tm_status open_subject(subject *s) {
    if (!tm_path_is_dir(s->path) && tm_ends_with(s->path, ".safetensors")) {
        TM_TRY(tm_st_open(&s->st, s->path));
        s->kind = "safetensors";
        s->n = tm_st_count(s->st);
        return TM_OK;
    }
    tm_status rc = open_source(s);
    if (rc != TM_EUNSUPPORTED || tm_path_is_dir(s->path)) return rc;
    const tm_error why = *tm_error_get();
    tm_error_clear();
    if (tm_gguf_open(&s->gguf, s->path) != TM_OK) return tm_error_get()->code;
    tm_source_close(s->src);
    s->src = NULL;
    s->kind = "GGUF";
    s->n = tm_gguf_tensors(s->gguf);
    tm_log(TM_LOG_WARN, "it cannot be trained here: %s", why.text);
    return TM_OK;
}

static void close_subject(subject *s) {
    tm_json_free(s->config);
    tm_buf_free(&s->missing);
    tm_source_close(s->src);
    tm_gguf_close(s->gguf);
    tm_st_close(s->st);
}

typedef struct sum {
    uint64_t tensors, elements, bytes;
} sum;

static sum sums(const subject *s, sum by_fmt[TM_FMT_COUNT]) {
    sum all = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        row r = row_of(s, i);
        sum *const into[] = {&all, &by_fmt[r.fmt]};
        for (size_t k = 0; k < 2; k++) {
            into[k]->tensors++;
            into[k]->elements += r.elements;
            into[k]->bytes += r.bytes;
        }
    }
    return all;
}

static const char *const shown_keys[] = {"model_type",          "vocab_size",        "hidden_size",
                                         "intermediate_size",   "num_hidden_layers", "num_attention_heads",
                                         "num_key_value_heads", "head_dim",          "max_position_embeddings",
                                         "sliding_window",      "rms_norm_eps",      "tie_word_embeddings"};

static const tm_json *architecture(const subject *s) {
    const tm_json *list = s->config ? tm_json_get(tm_json_root(s->config), "architectures") : NULL;
    return list && list->type == TM_JSON_ARRAY && list->child && list->child->type == TM_JSON_STRING ? list->child
                                                                                                     : NULL;
}

static void json_sum(tm_json_writer *j, const sum *s) {
    tm_jw_field_uint(j, "tensors", s->tensors);
    tm_jw_field_uint(j, "parameters", s->elements);
    tm_jw_field_uint(j, "bytes", s->bytes);
}

static void json_row(tm_json_writer *j, const row *r) {
    tm_jw_object(j);
    tm_jw_field_str(j, "name", r->name);
    tm_jw_field_str(j, "dtype", tm_fmt_get(r->fmt)->name);
    tm_jw_field_array(j, "shape");
    for (uint32_t d = 0; d < r->ndim; d++) tm_jw_uint(j, r->shape[d]);
    tm_jw_array_end(j);
    tm_jw_field_uint(j, "bytes", r->bytes);
    tm_jw_object_end(j);
}

static void json_config(tm_json_writer *j, const subject *s) {
    tm_jw_field_str(j, "architecture", architecture(s) ? architecture(s)->text : NULL);
    tm_jw_field_object(j, "config");
    for (size_t i = 0; s->config && i < TM_COUNT(shown_keys); i++) {
        const tm_json *v = shown(s, shown_keys[i]);
        if (!v) continue;
        tm_jw_key(j, shown_keys[i]);
        tm_jw_node(j, v);
    }
    tm_jw_object_end(j);
}

static void json_missing(tm_json_writer *j, const subject *s) {
    char line[256];
    tm_jw_field_array(j, "missing");
    for (const char *at = s->missing.data, *end; at && (end = strchr(at, '\n')); at = end + 1) {
        snprintf(line, sizeof line, "%.*s", (int)(end - at), at);
        tm_jw_str(j, line);
    }
    tm_jw_array_end(j);
}

static tm_status print_subject_json(const subject *s, bool tensors) {
    tm_json_writer j;
    sum by_fmt[TM_FMT_COUNT] = {0}, all = sums(s, by_fmt);
    tm_cli_json(&j, 1);
    tm_jw_field_str(&j, "path", s->path);
    tm_jw_field_str(&j, "kind", s->kind);
    json_config(&j, s);
    json_missing(&j, s);
    json_sum(&j, &all);
    tm_jw_field_object(&j, "dtypes");
    for (int f = 0; f < TM_FMT_COUNT; f++) {
        if (!by_fmt[f].tensors) continue;
        tm_jw_field_object(&j, tm_fmt_get((tm_fmt)f)->name);
        json_sum(&j, &by_fmt[f]);
        tm_jw_object_end(&j);
    }
    tm_jw_object_end(&j);
    if (tensors) {
        tm_jw_field_array(&j, "tensor_list");
        for (uint32_t i = 0; i < s->n; i++) {
            row r = row_of(s, i);
            json_row(&j, &r);
        }
        tm_jw_array_end(&j);
    }
    return tm_cli_print_json(&j);
}

static void print_value(const char *key, const tm_json *v) {
    static const char *const words[] = {"null", "false", "true"};
    const char *text = v->type == TM_JSON_BOOL ? words[1 + v->boolean] : v->type == TM_JSON_NULL ? words[0] : v->text;
    if (text && v->type != TM_JSON_ARRAY && v->type != TM_JSON_OBJECT) printf("  %-24s %s\n", key, text);
}

static void print_sum(const char *name, const sum *s) {
    char size[32];
    printf("  %-8s %6" PRIu64 " tensors %15" PRIu64 " elements %12s\n", name, s->tensors, s->elements,
           tm_format_size(s->bytes, size, sizeof size));
}

static void print_row(const row *r) {
    char shape[200] = "";
    size_t n = 0;
    for (uint32_t d = 0; d < r->ndim; d++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRIu64, d ? ", " : "", r->shape[d]);
    printf("  %-7s [%s]  %s\n", tm_fmt_get(r->fmt)->name, shape, r->name);
}

static tm_status print_gguf_architecture(const tm_gguf *g) {
    tm_buf text = {0};
    bool found;
    tm_status rc = tm_gguf_string(g, "general.architecture", 256, &text, &found);
    if (rc == TM_OK && found) printf("  %-24s %s\n", "general.architecture", text.data);
    tm_buf_free(&text);
    return rc;
}

static tm_status print_text(const subject *s, bool tensors) {
    sum by_fmt[TM_FMT_COUNT] = {0}, all = sums(s, by_fmt);
    printf("%s: %s%s%s\n", s->path, s->kind, architecture(s) ? ", " : "", architecture(s) ? architecture(s)->text : "");
    for (size_t i = 0; s->config && i < TM_COUNT(shown_keys); i++) {
        const tm_json *v = shown(s, shown_keys[i]);
        if (v) print_value(shown_keys[i], v);
    }
    if (s->missing.len) printf("not supported here, so that it cannot be trained:\n");
    for (const char *at = s->missing.data, *end; at && (end = strchr(at, '\n')); at = end + 1)
        printf("  %.*s\n", (int)(end - at), at);
    if (s->gguf) TM_TRY(print_gguf_architecture(s->gguf));
    printf("stored as\n");
    for (int f = 0; f < TM_FMT_COUNT; f++)
        if (by_fmt[f].tensors) print_sum(tm_fmt_get((tm_fmt)f)->name, &by_fmt[f]);
    print_sum("all", &all);
    if (tensors) printf("tensors\n");
    for (uint32_t i = 0; tensors && i < s->n; i++) {
        row r = row_of(s, i);
        print_row(&r);
    }
    return TM_OK;
}

int tm_cmd_inspect(int argc, char **argv) {
    const char *path = NULL;
    bool tensors = false, json = false;
    const tm_opt opts[] = {TM_FLAG("tensors", &tensors, "list every tensor"),
                           TM_FLAG("json", &json, "print one JSON object")};
    const tm_cli cli = {.usage = "inspect PATH [--tensors] [--json]",
                        .about = "Shows what a Hugging Face folder, a .gguf or a .safetensors file holds.",
                        .example = "tidemill inspect smollm2 --tensors",
                        TM_CLI_OPTIONS(opts),
                        TM_CLI_WORDS(&path, 1, 1)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    subject s = {.path = tm_cmd_model(path)};
    tm_status status = open_subject(&s);
    if (status == TM_OK) status = json ? print_subject_json(&s, tensors) : print_text(&s, tensors);
    close_subject(&s);
    return status == TM_OK ? 0 : tm_cmd_fail();
}
