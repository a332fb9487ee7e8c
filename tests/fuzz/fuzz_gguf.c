/* Any bytes as a .gguf file: its keys and tensors, and as a model with a configuration and a tokenizer made of its
 * keys. What must hold: within the limits, or refused with a message; tensors lie in the file and do not overlap;
 * values and arrays can be read to their last; what is made of the keys is JSON. */
#include "fuzz.h"

#include "format/format.h"

#include <string.h>

enum { MOST = 4096 };

static void read_array(const tm_gguf *g, const tm_gguf_kv *kv) {
    static tm_gguf_array a;
    const char *text;
    size_t len;
    double v;
    tm_gguf_array_open(&a, g, kv);
    tm_status rc = TM_OK;
    for (uint64_t i = 0; i < kv->count && rc == TM_OK; i++)
        rc = kv->element == TM_GGUF_STRING ? tm_gguf_array_string(&a, &text, &len) : tm_gguf_array_number(&a, &v);
    CHECK(rc == TM_OK || kv->element == TM_GGUF_STRING); /* not UTF-8, too long */
    tm_gguf_array_close(&a);
    tm_error_clear();
}

static void read_value(const tm_gguf *g, const tm_gguf_kv *kv, uint64_t size) {
    tm_buf text = {0};
    uint64_t u;
    double d;
    bool b;
    CHECK(kv->offset <= size && tm_gguf_kv_find(g, kv->key) == kv);
    if (kv->type == TM_GGUF_ARRAY) read_array(g, kv);
    (void)!tm_gguf_uint(g, kv->key, &u, NULL);
    tm_error_clear();
    (void)!tm_gguf_float(g, kv->key, &d, NULL);
    tm_error_clear();
    (void)!tm_gguf_bool(g, kv->key, &b, NULL);
    tm_error_clear();
    (void)!tm_gguf_string(g, kv->key, MOST, &text, NULL);
    tm_error_clear();
    tm_buf_free(&text);
}

static void read_tensors(const tm_gguf *g, uint64_t size) {
    static float values[MOST];
    uint64_t end = 0;
    for (uint32_t i = 0; i < tm_gguf_tensors(g); i++) {
        const tm_gguf_tensor *t = tm_gguf_tensor_get(g, i);
        CHECK(t->offset >= end && t->bytes <= size && t->offset <= size - t->bytes);
        CHECK(tm_gguf_tensor_find(g, t->name) == (int64_t)i);
        end = t->offset + t->bytes;
        uint64_t n = tm_min_u64(t->elements, MOST);
        if (tm_fmt_get(t->fmt)->readable) CHECK(tm_gguf_read_f32(g, i, t->elements - n, n, values) == TM_OK);
        CHECK(tm_gguf_read_f32(g, i, t->elements - n + 1, n, values) != TM_OK);
        tm_error_clear();
    }
}

static void check_json(const tm_source *src, const char *name) {
    tm_buf text = {0};
    tm_json_doc *doc = NULL;
    bool found;
    if (tm_source_file(src, name, &text, &found) == TM_OK && found) {
        CHECK(tm_json_parse(&doc, text.data, text.len, name, TM_JSON_DUPLICATES_OK, 0) == TM_OK);
        tm_json_free(doc);
    }
    tm_error_clear();
    tm_buf_free(&text);
}

static void as_model(void) {
    tm_source *src;
    tm_buf text = {0};
    bool found;
    if (tm_source_open(&src, "/dev/null") == TM_OK) {
        check_json(src, "config.json");
        check_json(src, "tokenizer.json");
        check_json(src, "tokenizer_config.json");
        check_json(src, "generation_config.json");
        (void)!tm_source_file(src, "chat_template.jinja", &text, &found);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_buf_free(&text);
    tm_source_close(src);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tm_gguf *g;
    fuzz_begin(size);
    fuzz_file("null", data, size);
    if (tm_gguf_open(&g, "null") == TM_OK) {
        for (uint32_t i = 0; i < tm_gguf_kvs(g); i++) read_value(g, tm_gguf_kv_get(g, i), size);
        read_tensors(g, size);
        as_model();
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_gguf_close(g);
    fuzz_end();
    return 0;
}
