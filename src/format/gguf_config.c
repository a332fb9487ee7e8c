/* The config.json and generation_config.json that say what a GGUF file's keys say. */
#include "format/gguf_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void tm_gguf_jw_float(tm_json_writer *j, double v) {
    char text[40];
    tm_format_float((float)v, text, 32);
    if (!strpbrk(text, ".e")) strcat(text, ".0");
    tm_jw_raw(j, text, strlen(text));
}

static void put_id(tm_json_writer *j, const tm_gguf *g, const char *key, const char *gguf_key, tm_status *rc) {
    uint64_t id;
    bool found = false;
    if (*rc == TM_OK) *rc = tm_gguf_uint(g, gguf_key, &id, &found);
    tm_jw_key(j, key);
    if (found && *rc == TM_OK)
        tm_jw_uint(j, id);
    else
        tm_jw_null(j);
}

/* ---- fields, which are gathered first: config.json has them in the order of their names ---- */

typedef struct field {
    const char *key;
    const char *raw; /* JSON; NULL: made by `put`, else the number */
    void (*put)(tm_json_writer *j, const tm_gguf_keys *k);
    double number;
    bool real; /* the number has a point */
} field;
enum { MAX_FIELDS = 64 };
typedef struct fields {
    field of[MAX_FIELDS];
    uint32_t n;
} fields;

static void add(fields *f, field one) {
    TM_ASSERT(f->n < MAX_FIELDS);
    f->of[f->n++] = one;
}
static void add_raw(fields *f, const char *key, const char *raw) {
    add(f, (field){.key = key, .raw = raw});
}
static void add_bool(fields *f, const char *key, bool v) {
    add_raw(f, key, v ? "true" : "false");
}
static void add_size(fields *f, const char *key, uint32_t v) {
    add(f, (field){.key = key, .number = v});
}
static void add_real(fields *f, const char *key, double v) {
    add(f, (field){.key = key, .number = v, .real = true});
}

static void put_architectures(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_array(j);
    tm_jw_str(j, k->arch->class);
    tm_jw_array_end(j);
}

static void put_model_type(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_str(j, k->arch->model_type);
}

static void put_layer_types(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_array(j);
    for (uint32_t i = 0; i < k->layers; i++)
        tm_jw_str(j, k->pattern[i] && !k->arch->pattern.rope ? "sliding_attention" : "full_attention");
    tm_jw_array_end(j);
}

static void put_rope_layers(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_array(j);
    for (uint32_t i = 0; i < k->layers; i++) tm_jw_uint(j, k->pattern[i]);
    tm_jw_array_end(j);
}

/* Lists say it for all classes; the period is for versions of transformers that came before them. */
static void add_pattern(fields *f, const tm_gguf_keys *k) {
    uint32_t period;
    if (!k->arch->pattern.gguf) return;
    add(f, (field){.key = "layer_types", .put = put_layer_types});
    if (k->arch->pattern.rope) add(f, (field){.key = "no_rope_layers", .put = put_rope_layers});
    if (tm_gguf_period(k, &period) && period > 0)
        add_size(f, k->arch->pattern.rope ? "no_rope_layer_interval" : "sliding_window_pattern", period);
}

static void add_row(fields *f, const tm_gguf_keys *k, const tm_key *row) {
    const void *at = (const char *)k + row->at;
    double v = row->kind == TM_KEY_SIZE ? (double)*(const uint32_t *)at : 0;
    if (row->kind == TM_KEY_REAL || row->kind == TM_KEY_QUERY) v = *(const double *)at;
    if (row->kind == TM_KEY_BIAS)
        add_bool(f, row->json, *(const bool *)at);
    else if (row->kind == TM_KEY_CONSTANT)
        add_raw(f, row->json, row->constant);
    else if (v == 0 && row->need != TM_NEED_COUNT)
        add_raw(f, row->json, "null"); /* there is none */
    else if (row->kind == TM_KEY_REAL || v != floor(v))
        add_real(f, row->json, v);
    else
        add(f, (field){.key = row->json, .number = v});
}

static void add_rope(fields *f, const tm_gguf_keys *k) {
    if (k->arch->flags & TM_ARCH_NO_ROPE) return;
    add(f, (field){.key = "rope_parameters", .put = tm_gguf_rope_json});
    if (k->rope.kind == TM_GGUF_ROPE_PROPORTIONAL) return; /* came with transformers 5 */
    add(f, (field){.key = "rope_scaling", .put = tm_gguf_rope_json_v4});
    add_real(f, "rope_theta", k->rope.theta);
    if (k->arch->flags & TM_ARCH_LOCAL_ROPE) add_real(f, "rope_local_base_freq", k->rope.local_theta);
    if (k->arch->flags & TM_ARCH_PARTIAL)
        add_real(f, "partial_rotary_factor", (double)k->rope.rotary / (double)k->head_dim);
}

static void add_all(fields *f, const tm_gguf_keys *k) {
    add(f, (field){.key = "architectures", .put = put_architectures});
    add(f, (field){.key = "model_type", .put = put_model_type});
    add_raw(f, "dtype", "\"float32\"");
    add_raw(f, "torch_dtype", "\"float32\"");
    add_real(f, "initializer_range", 0.02);
    add_bool(f, "tie_word_embeddings", k->tied);
    add_bool(f, "use_cache", true);
    add_size(f, "vocab_size", k->vocab_size);
    if (!(k->arch->flags & TM_ARCH_DERIVES_HEAD_DIM) || k->head_dim != k->hidden_size / k->heads)
        add_size(f, "head_dim", k->head_dim);
    for (size_t list = 0; list < TM_COUNT(k->arch->keys); list++)
        for (const tm_key *row = k->arch->keys[list]; row && (row->gguf || row->json); row++)
            if (row->json) add_row(f, k, row);
    add_rope(f, k);
    add_pattern(f, k);
}

/* Filled in from the file, not from the keys. */
static const char *const token_ids[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token_id", "tokenizer.ggml.padding_token_id"}};

static const char *field_key(const void *ctx, uint32_t i) {
    return ((const field *)ctx)[i].key;
}

static void put_field(tm_json_writer *j, const tm_gguf *g, const tm_gguf_keys *k, const field *f, tm_status *rc) {
    for (size_t i = 0; i < TM_COUNT(token_ids); i++)
        if (strcmp(f->key, token_ids[i][0]) == 0) {
            put_id(j, g, token_ids[i][0], token_ids[i][1], rc);
            return;
        }
    tm_jw_key(j, f->key);
    if (f->raw)
        tm_jw_raw(j, f->raw, strlen(f->raw));
    else if (f->put)
        f->put(j, k);
    else if (f->real)
        tm_gguf_jw_float(j, f->number);
    else
        tm_jw_uint(j, (uint64_t)f->number);
}

tm_status tm_gguf_config_json(const tm_gguf *g, const tm_gguf_keys *k, tm_buf *out) {
    tm_json_writer j;
    tm_status rc = TM_OK;
    fields f = {0};
    uint32_t order[MAX_FIELDS], twice;
    add_all(&f, k);
    for (size_t i = 0; i < TM_COUNT(token_ids); i++) add_raw(&f, token_ids[i][0], NULL);
    for (uint32_t i = 0; i < f.n; i++) order[i] = i;
    TM_ASSERT(tm_sort_names(order, f.n, field_key, f.of, &twice));
    tm_jw_init(&j, out, 2);
    tm_jw_object(&j);
    for (uint32_t i = 0; i < f.n; i++) put_field(&j, g, k, &f.of[order[i]], &rc);
    tm_jw_object_end(&j);
    tm_status wrote = tm_jw_end(&j);
    if (rc == TM_OK) rc = wrote;
    return rc == TM_OK ? tm_buf_append(out, "\n", 1) : rc;
}

/* Every id that ends a turn: generation stops at any of them. */
static tm_status end_ids(const tm_gguf *g, uint64_t ids[3], uint32_t *n) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    *n = 0;
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        bool found, seen = false;
        uint64_t id;
        TM_TRY(tm_gguf_uint(g, keys[i], &id, &found));
        for (uint32_t k = 0; k < *n; k++) seen |= found && ids[k] == id;
        if (found && !seen) ids[(*n)++] = id;
    }
    return TM_OK;
}

tm_status tm_gguf_generation_json(const tm_gguf *g, tm_buf *out) {
    tm_json_writer j;
    tm_status rc = TM_OK;
    uint64_t ids[3];
    uint32_t n;
    TM_TRY(end_ids(g, ids, &n));
    tm_jw_init(&j, out, 2);
    tm_jw_object(&j);
    tm_jw_field_bool(&j, "_from_model_config", true);
    put_id(&j, g, "bos_token_id", "tokenizer.ggml.bos_token_id", &rc);
    tm_jw_key(&j, "eos_token_id");
    if (n != 1) tm_jw_array(&j);
    for (uint32_t i = 0; i < n; i++) tm_jw_uint(&j, ids[i]);
    if (n != 1) tm_jw_array_end(&j);
    put_id(&j, g, "pad_token_id", "tokenizer.ggml.padding_token_id", &rc);
    tm_jw_object_end(&j);
    tm_status wrote = tm_jw_end(&j);
    if (rc == TM_OK) rc = wrote;
    return rc == TM_OK ? tm_buf_append(out, "\n", 1) : rc;
}
