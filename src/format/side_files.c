/* What lies beside the weights in an HF folder. */
#include "format/format_internal.h"
#include "format/source_internal.h"

#include <string.h>

static const char *torch_name(tm_fmt dtype) {
    return dtype == TM_FMT_BF16 ? "bfloat16" : dtype == TM_FMT_F16 ? "float16" : "float32";
}

static bool is_dtype_key(const tm_json *m) {
    return strcmp(m->key, "dtype") == 0 || strcmp(m->key, "torch_dtype") == 0;
}

/* Members of an object, the dtype replaced; of a composite model in its text_config as well. True: there was one. */
static bool put_members(tm_json_writer *j, const tm_json *object, tm_fmt dtype) {
    bool seen = false;
    for (const tm_json *m = object->child; m; m = m->next) {
        if (strcmp(m->key, "quantization_config") == 0) continue; /* what is written beside it is not quantised */
        bool text = strcmp(m->key, "text_config") == 0 && m->type == TM_JSON_OBJECT;
        tm_jw_key(j, m->key);
        if (is_dtype_key(m))
            tm_jw_str(j, torch_name(dtype));
        else if (text) {
            tm_jw_object(j);
            (void)put_members(j, m, dtype);
            tm_jw_object_end(j);
        } else
            tm_jw_node(j, m);
        seen |= is_dtype_key(m);
    }
    return seen;
}

/* Everything as it was, numbers to the digit, but for the quantisation, which is that of the weights beside it (NULL:
 * none), and for the dtype, which must be theirs: readers load in the dtype that is written there. */
static tm_status patched_config(const tm_source *src, tm_fmt dtype, const char *quantisation, tm_buf *out) {
    size_t len;
    const char *json = tm_source_config(src, &len);
    tm_json_doc *doc;
    tm_json_writer j;
    TM_TRY(tm_json_parse(&doc, json, len, "config.json", 0, 0));
    const tm_json *root = tm_json_root(doc);
    if (root->type != TM_JSON_OBJECT) {
        tm_json_free(doc);
        return tm_fail(TM_EINPUT, "%s: config.json is not a JSON object", tm_source_path(src));
    }
    tm_jw_init(&j, out, 2);
    tm_jw_object(&j);
    if (!put_members(&j, root, dtype)) {
        tm_jw_key(&j, "torch_dtype");
        tm_jw_str(&j, torch_name(dtype));
    }
    if (quantisation) {
        tm_jw_key(&j, "quantization_config");
        tm_jw_raw(&j, quantisation, strlen(quantisation));
    }
    tm_jw_object_end(&j);
    tm_json_free(doc);
    TM_TRY(tm_jw_end(&j));
    return tm_buf_append(out, "\n", 1);
}

static const char *const names[] = {
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json",
    /* of a model's other parts */
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "image_processor_config.json", "LICENSE", "NOTICE"};

enum { TOKENIZER_FILES = 10 }; /* the first of them */

bool tm_source_from_tokenizer(const tm_source *src, const char *name) {
    bool of_it = false;
    for (size_t i = 0; i < TOKENIZER_FILES; i++) of_it |= strcmp(names[i], name) == 0;
    return src->tokenizer && of_it;
}

bool tm_source_is_side_file(const char *name) {
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return strcmp(name, "config.json") == 0;
}

tm_status tm_source_write_side_files(const tm_source *src, const char *dir, tm_fmt dtype) {
    return tm_source_write_side_files_of(src, dir, dtype, NULL);
}

tm_status tm_source_write_side_files_of(const tm_source *src, const char *dir, tm_fmt dtype, const char *quantisation) {
    tm_buf text = {0};
    tm_status rc;
    TM_GO(patched_config(src, dtype, quantisation, &text));
    TM_GO(tm_format_write_file(dir, "config.json", text.data, text.len));
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        bool found = false;
        if (!src->gguf || tm_source_from_tokenizer(src, names[i]))
            TM_GO(tm_source_folder_copy(src, names[i], dir, &found));
        if (found) continue;
        tm_buf_clear(&text);
        TM_GO(tm_source_file(src, names[i], &text, &found));
        if (found) TM_GO(tm_format_write_file(dir, names[i], text.data, text.len));
    }
    rc = tm_source_write_other_files(src, dir);
done:
    tm_buf_free(&text);
    return rc;
}
