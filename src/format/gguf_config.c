/* Hyper-parameters from GGUF keys, and the config.json and generation_config.json that say the same. */
#include "format/gguf_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A size of the architecture: 1 to 2^31 - 1. `fallback` 0: the key must be there. */
static tm_status get_size(const tm_gguf *g, const tm_gguf_keys *k, const char *what, uint32_t fallback, uint32_t *out) {
    uint64_t v = fallback;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, what, key), &v, fallback ? &(bool){false} : NULL));
    if (v < 1 || v > INT32_MAX) return tm_fail(TM_EINPUT, "%s: '%s' is %" PRIu64, tm_gguf_path(g), key, v);
    *out = (uint32_t)v;
    return TM_OK;
}

static tm_status refuse_experts(const tm_gguf *g, const tm_gguf_arch *arch) {
    uint64_t experts = 0;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(arch, "expert_count", key), &experts, &(bool){false}));
    return experts == 0 ? TM_OK
                        : tm_fail(TM_EUNSUPPORTED, "%s: mixtures of experts are not read from GGUF", tm_gguf_path(g));
}

static tm_status get_head_dim(const tm_gguf *g, tm_gguf_keys *k) {
    uint32_t value_dim, rotary;
    if (k->hidden_size / k->heads == 0)
        return tm_fail(TM_EINPUT, "%s: %u heads in %u dimensions", tm_gguf_path(g), k->heads, k->hidden_size);
    TM_TRY(get_size(g, k, "attention.key_length", k->hidden_size / k->heads, &k->head_dim));
    TM_TRY(get_size(g, k, "attention.value_length", k->head_dim, &value_dim));
    TM_TRY(get_size(g, k, "rope.dimension_count", k->head_dim, &rotary));
    if (value_dim != k->head_dim || rotary != k->head_dim || k->head_dim % 2)
        return tm_fail(TM_EUNSUPPORTED, "%s: heads of %u with values of %u, of which %u are rotated, are not supported",
                       tm_gguf_path(g), k->head_dim, value_dim, rotary);
    return TM_OK;
}

static tm_status get_rope(const tm_gguf *g, tm_gguf_keys *k) {
    tm_buf type = {0};
    bool found;
    tm_status rc;
    char key[TM_GGUF_ARCH_KEY];
    k->rope_theta = 10000;
    k->rope_factor = 1;
    TM_GO(tm_gguf_float(g, tm_gguf_arch_key(k->arch, "rope.freq_base", key), &k->rope_theta, &found));
    TM_GO(tm_gguf_string(g, tm_gguf_arch_key(k->arch, "rope.scaling.type", key), 64, &type, &found));
    if (found && strcmp(type.data, "linear") == 0) {
        TM_GO(tm_gguf_float(g, tm_gguf_arch_key(k->arch, "rope.scaling.factor", key), &k->rope_factor, NULL));
        k->rope = TM_KEYS_ROPE_LINEAR;
    } else if (found && strcmp(type.data, "none") != 0)
        rc = tm_fail(TM_EUNSUPPORTED, "%s: RoPE scaling '%s' is not supported", tm_gguf_path(g), type.data);
    if (rc == TM_OK && !(k->rope_theta > 0 && k->rope_factor > 0))
        rc = tm_fail(TM_EINPUT, "%s: RoPE base %g with factor %g", tm_gguf_path(g), k->rope_theta, k->rope_factor);
    if (rc == TM_OK) rc = tm_gguf_read_rope_factors(g, k);
done:
    tm_buf_free(&type);
    return rc;
}

tm_status tm_gguf_read_keys(const tm_gguf *g, tm_gguf_keys *k) {
    *k = (tm_gguf_keys){0};
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_arch_of(g, &k->arch));
    TM_TRY(refuse_experts(g, k->arch));
    TM_TRY(get_size(g, k, "embedding_length", 0, &k->hidden_size));
    TM_TRY(get_size(g, k, "block_count", 0, &k->layers));
    TM_TRY(get_size(g, k, "feed_forward_length", 0, &k->intermediate_size));
    TM_TRY(get_size(g, k, "context_length", 0, &k->context));
    TM_TRY(get_size(g, k, "attention.head_count", 0, &k->heads));
    TM_TRY(get_size(g, k, "attention.head_count_kv", k->heads, &k->kv_heads));
    TM_TRY(
        tm_gguf_float(g, tm_gguf_arch_key(k->arch, "attention.layer_norm_rms_epsilon", key), &k->rms_norm_eps, NULL));
    uint64_t window = 0;
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "attention.sliding_window", key), &window, &(bool){false}));
    k->sliding_window = window <= INT32_MAX ? (uint32_t)window : 0;
    if (k->sliding_window && !k->arch->windowed.model_type)
        return tm_fail(TM_EUNSUPPORTED, "%s: a %s with a sliding window is not supported", tm_gguf_path(g),
                       k->arch->type);
    TM_TRY(get_head_dim(g, k));
    TM_TRY(get_rope(g, k));
    int64_t embed = tm_gguf_tensor_find(g, "token_embd.weight");
    if (embed < 0) return tm_fail(TM_EINPUT, "%s: has no token_embd.weight", tm_gguf_path(g));
    const tm_gguf_tensor *t = tm_gguf_tensor_get(g, (uint32_t)embed);
    if (t->ndim != 2 || t->shape[1] != k->hidden_size || t->shape[0] > INT32_MAX)
        return tm_fail(TM_EINPUT, "%s: token_embd.weight is not [vocabulary, %u]", tm_gguf_path(g), k->hidden_size);
    k->vocab_size = (uint32_t)t->shape[0];
    k->tied = tm_gguf_tensor_find(g, "output.weight") < 0;
    k->attention_bias = tm_gguf_tensor_find(g, "blk.0.attn_q.bias") >= 0;
    k->mlp_bias = tm_gguf_tensor_find(g, "blk.0.ffn_up.bias") >= 0;
    return TM_OK;
}

/* ---- JSON ---- */

/* The value was a float32 in the file: its shortest decimal, and never one that looks like an integer. */
static void put_float(tm_json_writer *j, const char *key, double v) {
    char text[40];
    tm_format_float((float)v, text, 32);
    if (!strpbrk(text, ".e")) strcat(text, ".0");
    tm_jw_key(j, key);
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

static void put_scaling(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_field_str(j, "rope_type", k->rope == TM_KEYS_ROPE_LINEAR ? "linear" : "llama3");
    put_float(j, "factor", k->rope_factor);
    if (k->rope == TM_KEYS_ROPE_LINEAR) return;
    put_float(j, "low_freq_factor", k->rope_low);
    put_float(j, "high_freq_factor", k->rope_high);
    tm_jw_field_uint(j, "original_max_position_embeddings", k->rope_original);
}

/* transformers 5 reads rope_parameters, 4 reads rope_theta and rope_scaling. */
static void put_rope(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_field_object(j, "rope_parameters");
    put_float(j, "rope_theta", k->rope_theta);
    if (k->rope == TM_KEYS_ROPE_DEFAULT)
        tm_jw_field_str(j, "rope_type", "default");
    else
        put_scaling(j, k);
    tm_jw_object_end(j);
    tm_jw_key(j, "rope_scaling");
    if (k->rope == TM_KEYS_ROPE_DEFAULT)
        tm_jw_null(j);
    else {
        tm_jw_object(j);
        put_scaling(j, k);
        tm_jw_object_end(j);
    }
    put_float(j, "rope_theta", k->rope_theta);
}

static const tm_gguf_class *class_of(const tm_gguf_keys *k) {
    return k->sliding_window ? &k->arch->windowed : &k->arch->plain;
}

static bool says_biases(const tm_gguf_keys *k) {
    return k->arch->says_biases && !k->sliding_window;
}

static void put_sizes(tm_json_writer *j, const tm_gguf_keys *k) {
    tm_jw_field_uint(j, "head_dim", k->head_dim);
    tm_jw_field_str(j, "hidden_act", "silu");
    tm_jw_field_uint(j, "hidden_size", k->hidden_size);
    put_float(j, "initializer_range", 0.02);
    tm_jw_field_uint(j, "intermediate_size", k->intermediate_size);
    tm_jw_field_uint(j, "max_position_embeddings", k->context);
    if (says_biases(k)) tm_jw_field_bool(j, "mlp_bias", k->mlp_bias);
    tm_jw_field_str(j, "model_type", class_of(k)->model_type);
    tm_jw_field_uint(j, "num_attention_heads", k->heads);
    tm_jw_field_uint(j, "num_hidden_layers", k->layers);
    tm_jw_field_uint(j, "num_key_value_heads", k->kv_heads);
}

tm_status tm_gguf_config_json(const tm_gguf *g, const tm_gguf_keys *k, tm_buf *out) {
    tm_json_writer j;
    tm_status rc = TM_OK;
    tm_jw_init(&j, out, 2);
    tm_jw_object(&j);
    tm_jw_field_array(&j, "architectures");
    tm_jw_str(&j, class_of(k)->class);
    tm_jw_array_end(&j);
    if (says_biases(k)) tm_jw_field_bool(&j, "attention_bias", k->attention_bias);
    put_float(&j, "attention_dropout", 0);
    put_id(&j, g, "bos_token_id", "tokenizer.ggml.bos_token_id", &rc);
    tm_jw_field_str(&j, "dtype", "float32");
    put_id(&j, g, "eos_token_id", "tokenizer.ggml.eos_token_id", &rc);
    put_sizes(&j, k);
    put_id(&j, g, "pad_token_id", "tokenizer.ggml.padding_token_id", &rc);
    put_float(&j, "rms_norm_eps", k->rms_norm_eps);
    put_rope(&j, k);
    if (k->sliding_window)
        tm_jw_field_uint(&j, "sliding_window", k->sliding_window);
    else if (!k->arch->windowed.model_type) { /* the class may have one, this model has none */
        tm_jw_key(&j, "sliding_window");
        tm_jw_null(&j);
    }
    tm_jw_field_bool(&j, "tie_word_embeddings", k->tied);
    tm_jw_field_str(&j, "torch_dtype", "float32");
    tm_jw_field_bool(&j, "use_cache", true);
    tm_jw_field_uint(&j, "vocab_size", k->vocab_size);
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
