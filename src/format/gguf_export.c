/* A tm_source written as GGUF. */
#include "format/gguf_internal.h"
#include "format/export_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BUFFER_ELEMENTS = 16384 };

/* ---- config.json ---- */

static tm_status get_size(const tm_json *c, const char *key, uint32_t fallback, uint32_t *out) {
    const tm_json *v = tm_json_get(c, key);
    *out = fallback;
    if (!v || v->type == TM_JSON_NULL)
        return fallback ? TM_OK : tm_fail(TM_EINPUT, "config.json: '%s' is missing", key);
    if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < 1 || v->integer > INT32_MAX)
        return tm_fail(TM_EINPUT, "config.json:%u: '%s' must be a positive integer", v->line, key);
    *out = (uint32_t)v->integer;
    return TM_OK;
}

static tm_status get_real(const tm_json *c, const char *key, double fallback, double *out) {
    const tm_json *v = tm_json_get(c, key);
    *out = fallback;
    if (!v || v->type == TM_JSON_NULL) return TM_OK;
    if (v->type != TM_JSON_NUMBER || !(v->number > 0))
        return tm_fail(TM_EINPUT, "config.json:%u: '%s' must be a positive number", v->line, key);
    *out = v->number;
    return TM_OK;
}

/* v5: everything in rope_parameters; v4: rope_theta, and rope_scaling or null. */
static tm_status get_rope(const tm_json *c, tm_gguf_keys *k) {
    const tm_json *p = tm_json_get(c, "rope_parameters");
    if (!p || p->type != TM_JSON_OBJECT) p = tm_json_get(c, "rope_scaling");
    const tm_json *type = tm_json_get(p, "rope_type");
    if (!type) type = tm_json_get(p, "type");
    TM_TRY(get_real(c, "rope_theta", 10000, &k->rope_theta));
    TM_TRY(get_real(p, "rope_theta", k->rope_theta, &k->rope_theta));
    if (!type || type->type == TM_JSON_NULL || tm_json_is(type, "default")) return TM_OK;
    TM_TRY(get_real(p, "factor", 1, &k->rope_factor));
    if (tm_json_is(type, "linear")) {
        k->rope = TM_KEYS_ROPE_LINEAR;
        return TM_OK;
    }
    if (!tm_json_is(type, "llama3"))
        return tm_fail(TM_EUNSUPPORTED, "config.json:%u: this RoPE scaling cannot be written to GGUF", type->line);
    k->rope = TM_KEYS_ROPE_LLAMA3;
    TM_TRY(get_real(p, "low_freq_factor", 1, &k->rope_low));
    TM_TRY(get_real(p, "high_freq_factor", 4, &k->rope_high));
    if (!(k->rope_high > k->rope_low))
        return tm_fail(TM_EINPUT, "config.json:%u: high_freq_factor must exceed low_freq_factor", p->line);
    return get_size(p, "original_max_position_embeddings", 8192, &k->rope_original);
}

static bool is_true(const tm_json *c, const char *key) {
    const tm_json *v = tm_json_get(c, key);
    return v && v->type == TM_JSON_BOOL && v->boolean;
}

static tm_status get_keys(const tm_json *c, tm_gguf_keys *k) {
    const tm_json *type = tm_json_get(c, "model_type");
    bool windowed = false;
    *k = (tm_gguf_keys){.tied = is_true(c, "tie_word_embeddings")};
    TM_TRY(tm_gguf_arch_for(type && type->type == TM_JSON_STRING ? type->text : "", &k->arch, &windowed));
    TM_TRY(get_size(c, "vocab_size", 0, &k->vocab_size));
    TM_TRY(get_size(c, "hidden_size", 0, &k->hidden_size));
    TM_TRY(get_size(c, "intermediate_size", 0, &k->intermediate_size));
    TM_TRY(get_size(c, "num_hidden_layers", 0, &k->layers));
    TM_TRY(get_size(c, "num_attention_heads", 0, &k->heads));
    TM_TRY(get_size(c, "num_key_value_heads", k->heads, &k->kv_heads));
    if (k->hidden_size / k->heads == 0)
        return tm_fail(TM_EINPUT, "config.json: %u heads in %u dimensions", k->heads, k->hidden_size);
    TM_TRY(get_size(c, "head_dim", k->hidden_size / k->heads, &k->head_dim));
    if (k->head_dim % 2) return tm_fail(TM_EINPUT, "config.json: head_dim must be even");
    TM_TRY(get_size(c, "max_position_embeddings", 2048, &k->context));
    TM_TRY(get_real(c, "rms_norm_eps", 1e-6, &k->rms_norm_eps));
    const tm_json *window = tm_json_get(c, "sliding_window");
    if (windowed && window && window->type != TM_JSON_NULL)
        TM_TRY(get_size(c, "sliding_window", 0, &k->sliding_window));
    return get_rope(c, k);
}

/* ---- keys ---- */

static void put_text(tm_gguf_writer *w, const char *key, const char *s) {
    tm_gguf_put_string(w, key, s, strlen(s));
}

/* ggml's numbers of file types */
static uint32_t file_type(tm_fmt fmt) {
    static const struct {
        tm_fmt fmt;
        uint32_t number;
    } rows[] = {{TM_FMT_F16, 1}, {TM_FMT_Q4_0, 2}, {TM_FMT_Q4_1, 3}, {TM_FMT_Q8_0, 7}, {TM_FMT_BF16, 32}};
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        if (rows[i].fmt == fmt) return rows[i].number;
    return 0;
}

static void put_size(tm_gguf_writer *w, const tm_gguf_keys *k, const char *what, uint32_t v) {
    char key[TM_GGUF_ARCH_KEY];
    tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, what, key), v);
}

static void put_real(tm_gguf_writer *w, const tm_gguf_keys *k, const char *what, double v) {
    char key[TM_GGUF_ARCH_KEY];
    tm_gguf_put_f32(w, tm_gguf_arch_key(k->arch, what, key), (float)v);
}

static void put_rope_keys(tm_gguf_writer *w, const tm_gguf_keys *k) {
    char key[TM_GGUF_ARCH_KEY];
    put_size(w, k, "rope.dimension_count", k->head_dim);
    put_real(w, k, "rope.freq_base", k->rope_theta);
    if (k->rope == TM_KEYS_ROPE_LINEAR) {
        put_text(w, tm_gguf_arch_key(k->arch, "rope.scaling.type", key), "linear");
        put_real(w, k, "rope.scaling.factor", k->rope_factor);
    }
    /* llama3 is the tensor rope_freqs.weight; this key only helps to get the parameters back from it. */
    if (k->rope == TM_KEYS_ROPE_LLAMA3) put_size(w, k, "rope.scaling.original_context_length", k->rope_original);
}

static void put_keys(tm_gguf_writer *w, const tm_gguf_keys *k, const char *name, tm_fmt fmt) {
    put_text(w, "general.architecture", k->arch->type);
    put_text(w, "general.type", "model");
    put_text(w, "general.name", name);
    tm_gguf_put_u32(w, "general.file_type", file_type(fmt));
    tm_gguf_put_u32(w, "general.quantization_version", 2);
    put_size(w, k, "block_count", k->layers);
    put_size(w, k, "context_length", k->context);
    put_size(w, k, "embedding_length", k->hidden_size);
    put_size(w, k, "feed_forward_length", k->intermediate_size);
    put_size(w, k, "attention.head_count", k->heads);
    put_size(w, k, "attention.head_count_kv", k->kv_heads);
    put_size(w, k, "attention.key_length", k->head_dim);
    put_size(w, k, "attention.value_length", k->head_dim);
    put_real(w, k, "attention.layer_norm_rms_epsilon", k->rms_norm_eps);
    if (k->sliding_window) put_size(w, k, "attention.sliding_window", k->sliding_window);
    put_size(w, k, "vocab_size", k->vocab_size);
    put_rope_keys(w, k);
}

/* ---- tensors ---- */

typedef struct export {
    const tm_source *src;
    tm_gguf_writer *w;
    const tm_export_opts *opts;
    tm_gguf_keys keys;
    tm_fmt dtype; /* of matrices, unless it is the source's */
    bool as_source;
    uint64_t total_bytes, done_bytes;
    float values[BUFFER_ELEMENTS];
    uint8_t narrow[BUFFER_ELEMENTS * 4];
}
export;

/* Buffers that some checkpoints carry along, and a tied output, which is the embedding again. */
static bool left_out(const export *x, const tm_source_tensor *t) {
    if (tm_ends_with(t->name, ".rotary_emb.inv_freq") || strcmp(t->name, "model.position_ids") == 0) return true;
    return x->keys.tied && strcmp(t->name, "lm_head.weight") == 0;
}

/* Norms and biases stay f32. The output matrix (the embedding, if tied) suffers most from 4 bits: q8_0, as llama.cpp.
 * Rows that are no whole blocks: f16. */
static tm_status choose_fmt(const export *x, const tm_source_tensor *t, const char *gguf, tm_fmt *fmt) {
    *fmt = x->as_source ? t->fmt : x->dtype;
    if (t->ndim < 2) *fmt = TM_FMT_F32;
    if (*fmt == TM_FMT_F64) *fmt = TM_FMT_F32;
    if (*fmt == TM_FMT_Q4_K || *fmt == TM_FMT_Q6_K || tm_fmt_get(*fmt)->ggml < 0 || tm_fmt_get(*fmt)->ggml >= 24) {
        if (*fmt != TM_FMT_BF16)
            return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is %s, which is not written to GGUF; choose a type with --dtype",
                           t->file, t->name, tm_fmt_get(*fmt)->name);
    }
    const char *output = x->keys.tied ? "token_embd.weight" : "output.weight";
    if (!x->as_source && (*fmt == TM_FMT_Q4_0 || *fmt == TM_FMT_Q4_1) && strcmp(gguf, output) == 0) *fmt = TM_FMT_Q8_0;
    if (t->shape[t->ndim - 1] % tm_fmt_get(*fmt)->block != 0) *fmt = TM_FMT_F16;
    return TM_OK;
}

static tm_status check_rows(const tm_source_tensor *t, tm_rows rows, const tm_gguf_keys *k) {
    uint64_t wanted = (uint64_t)(rows == TM_ROWS_Q ? k->heads : k->kv_heads) * k->head_dim;
    if (t->ndim < 1 || t->ndim > 2 || t->elements == 0)
        return tm_fail(TM_EINPUT, "%s: '%s' is neither a vector nor a matrix", t->file, t->name);
    if (rows != TM_ROWS_PLAIN && t->shape[0] != wanted)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " rows, but config.json needs %" PRIu64, t->file, t->name,
                       t->shape[0], wanted);
    return TM_OK;
}

static tm_status add_tensor(export *x, const tm_source_tensor *t) {
    char gguf[TM_GGUF_MAX_NAME + 1];
    tm_rows rows;
    tm_fmt fmt;
    if (left_out(x, t)) return TM_OK;
    if (!tm_gguf_name_from_hf(x->keys.arch, t->name, gguf, sizeof gguf, &rows))
        return tm_fail(TM_EUNSUPPORTED, "%s: the tensor '%s' does not belong to a %s", t->file, t->name,
                       x->keys.arch->type);
    TM_TRY(check_rows(t, rows, &x->keys));
    TM_TRY(choose_fmt(x, t, gguf, &fmt));
    x->total_bytes += t->bytes;
    return tm_gguf_writer_add(x->w, gguf, fmt, t->ndim, t->shape);
}

static tm_status add_tensors(export *x) {
    bool embed = tm_source_find(x->src, "model.embed_tokens.weight") >= 0;
    if (!embed || (!x->keys.tied && tm_source_find(x->src, "lm_head.weight") < 0))
        return tm_fail(TM_EINPUT, "%s: '%s' is missing", tm_source_path(x->src),
                       embed ? "lm_head.weight" : "model.embed_tokens.weight");
    const tm_source_tensor *e =
        tm_source_tensor_get(x->src, (uint32_t)tm_source_find(x->src, "model.embed_tokens.weight"));
    if (e->ndim != 2 || e->shape[0] != x->keys.vocab_size || e->shape[1] != x->keys.hidden_size)
        return tm_fail(TM_EINPUT, "%s: '%s' is not [%u, %u] as config.json says", e->file, e->name, x->keys.vocab_size,
                       x->keys.hidden_size);
    if (x->keys.rope == TM_KEYS_ROPE_LLAMA3)
        TM_TRY(tm_gguf_writer_add(x->w, "rope_freqs.weight", TM_FMT_F32, 1, (uint64_t[]){x->keys.head_dim / 2}));
    for (uint32_t i = 0; i < tm_source_tensors(x->src); i++) TM_TRY(add_tensor(x, tm_source_tensor_get(x->src, i)));
    return TM_OK;
}

/* Elements [first, first + n) of source tensor i, in whole blocks. */
static tm_status copy_run(export *x, uint32_t i, tm_fmt fmt, uint64_t first, uint64_t n) {
    for (uint64_t done = 0; done < n;) {
        uint64_t take = tm_min_u64(n - done, BUFFER_ELEMENTS), bytes;
        TM_ASSERT(tm_fmt_bytes(fmt, take, &bytes));
        TM_TRY(tm_export_stopped(x->opts));
        TM_TRY(tm_source_read_f32(x->src, i, first + done, take, x->values));
        TM_TRY(tm_fmt_encode(fmt, x->values, take, x->narrow));
        TM_TRY(tm_gguf_writer_data(x->w, x->narrow, bytes));
        done += take;
    }
    return TM_OK;
}

static tm_status copy_tensor(export *x, uint32_t i) {
    const tm_source_tensor *t = tm_source_tensor_get(x->src, i);
    char gguf[TM_GGUF_MAX_NAME + 1];
    tm_rows rows = TM_ROWS_PLAIN;
    tm_fmt fmt;
    if (left_out(x, t)) return TM_OK;
    tm_gguf_name_from_hf(x->keys.arch, t->name, gguf, sizeof gguf, &rows);
    TM_TRY(choose_fmt(x, t, gguf, &fmt));
    if (rows == TM_ROWS_PLAIN || !x->keys.arch->permutes)
        TM_TRY(copy_run(x, i, fmt, 0, t->elements));
    else { /* row 2i + j of a head is HF's row j * half + i */
        uint64_t width = t->elements / t->shape[0], d = x->keys.head_dim;
        for (uint64_t r = 0; r < t->shape[0]; r++)
            TM_TRY(copy_run(x, i, fmt, (r / d * d + r % d % 2 * (d / 2) + r % d / 2) * width, width));
    }
    tm_source_forget(x->src, i);
    x->done_bytes += t->bytes;
    if (x->opts->progress) x->opts->progress(x->opts->ctx, x->done_bytes, x->total_bytes);
    return TM_OK;
}

static tm_status copy_tensors(export *x) {
    if (x->keys.rope == TM_KEYS_ROPE_LLAMA3) {
        if (x->keys.head_dim > BUFFER_ELEMENTS) return tm_fail(TM_EINPUT, "config.json: head_dim is too large");
        tm_llama3_factors(&x->keys, x->values);
        TM_TRY(tm_gguf_writer_data(x->w, x->values, x->keys.head_dim / 2 * 4));
    }
    for (uint32_t i = 0; i < tm_source_tensors(x->src); i++) TM_TRY(copy_tensor(x, i));
    return TM_OK;
}

/* ---- the whole ---- */

static tm_status read_keys(export *x) {
    size_t len;
    const char *json = tm_source_config(x->src, &len);
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, json, len, "config.json", 0, 0));
    tm_status rc = get_keys(tm_json_root(doc), &x->keys);
    tm_json_free(doc);
    return rc;
}

static tm_fmt main_fmt(const export *x) {
    int64_t t = tm_source_find(x->src, "model.layers.0.mlp.down_proj.weight");
    return !x->as_source ? x->dtype : t < 0 ? TM_FMT_F32 : tm_source_tensor_get(x->src, (uint32_t)t)->fmt;
}

/* The last part of the path without its ending: "models/smol/" is "smol". */
static void base_name(const char *path, char *name, size_t cap) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/') from--;
    snprintf(name, cap, "%.*s", (int)tm_min_u64(end - from, 200), path + from);
    if (!tm_utf8_valid(name, strlen(name))) snprintf(name, cap, "model");
}

tm_status tm_export_gguf(const tm_source *src, const char *out, const tm_export_opts *opts) {
    char name[256];
    tm_status rc;
    export *x = tm_calloc(1, sizeof *x);
    if (!x) return tm_nomem(sizeof *x);
    x->src = src;
    x->opts = opts;
    x->as_source = !opts->has_dtype;
    x->dtype = opts->dtype;
    TM_GO(read_keys(x));
    TM_GO(tm_gguf_writer_create(&x->w, out));
    base_name(tm_source_path(src), name, sizeof name);
    put_keys(x->w, &x->keys, name, main_fmt(x));
    TM_GO(add_tensors(x)); /* first: it checks vocab_size, which sizes tables, against the file */
    TM_GO(tm_gguf_put_vocabulary(x->w, src, x->keys.vocab_size));
    TM_GO(tm_gguf_writer_start(x->w));
    TM_GO(copy_tensors(x));
    rc = tm_gguf_writer_commit(x->w);
    x->w = NULL;
done:
    tm_gguf_writer_abandon(x->w);
    tm_free(x);
    return rc;
}
