/* Gemma 4, whose layers differ: layers without a window ("global") have heads of another size and number, the last layers
 * share earlier ones' keys and values and may have MLPs twice as wide. GGUF has numbers for each layer, config.json has
 * global_head_dim, num_global_key_value_heads, num_kv_shared_layers, use_double_wide_mlp, or (5) per_layer_config. */
#include "format/gguf_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- out of GGUF ---- */

static tm_status read_array(const tm_gguf *g, const tm_gguf_kv *kv, uint32_t layers, uint32_t *out) {
    tm_gguf_array *a = tm_calloc(1, sizeof *a);
    tm_status rc = TM_OK;
    if (!a) return tm_nomem(sizeof *a);
    tm_gguf_array_open(a, g, kv);
    for (uint32_t i = 0; i < layers && rc == TM_OK; i++) {
        double v = 0;
        rc = tm_gguf_array_number(a, &v);
        if (rc == TM_OK && !(v >= 1 && v <= INT32_MAX && v == (double)(uint32_t)v))
            rc = tm_fail(TM_EINPUT, "%s: '%s'[%u] is %g", tm_gguf_path(g), kv->key, i, v);
        if (rc == TM_OK) out[i] = (uint32_t)v;
    }
    tm_gguf_array_close(a);
    tm_free(a);
    return rc;
}

/* One number for all layers, or one for each. */
static tm_status layer_sizes(const tm_gguf *g, const tm_gguf_keys *k, const char *what, uint32_t *out) {
    char key[TM_GGUF_ARCH_KEY];
    uint64_t v = 0;
    const tm_gguf_kv *kv = tm_gguf_kv_find(g, tm_gguf_arch_key(k->arch, what, key));
    if (kv && kv->type == TM_GGUF_ARRAY) {
        if (kv->count == k->layers) return read_array(g, kv, k->layers, out);
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " numbers for %u layers", tm_gguf_path(g), key, kv->count,
                       k->layers);
    }
    TM_TRY(tm_gguf_uint(g, key, &v, NULL));
    if (v < 1 || v > INT32_MAX) return tm_fail(TM_EINPUT, "%s: '%s' is %" PRIu64, tm_gguf_path(g), key, v);
    for (uint32_t i = 0; i < k->layers; i++) out[i] = (uint32_t)v;
    return TM_OK;
}

static tm_status file_width(const tm_gguf *g, tm_gguf_keys *k) {
    uint32_t n[TM_KEYS_MAX_LAYERS], own = k->layers - k->by_layer.shared;
    TM_TRY(layer_sizes(g, k, "feed_forward_length", n));
    k->intermediate_size = n[0];
    k->by_layer.wide = k->by_layer.shared > 0 && n[k->layers - 1] / 2 == n[0];
    for (uint32_t i = 0; i < k->layers; i++)
        if (n[i] != (i >= own && k->by_layer.wide ? 2 * n[0] : n[0]))
            return tm_fail(TM_EUNSUPPORTED, "%s: the width %u of layer %u's MLP is not supported", tm_gguf_path(g),
                           n[i], i);
    return TM_OK;
}

static tm_status file_kv_heads(const tm_gguf *g, tm_gguf_keys *k) {
    uint32_t n[TM_KEYS_MAX_LAYERS], of[2] = {0}; /* global, with a window */
    TM_TRY(layer_sizes(g, k, "attention.head_count_kv", n));
    for (uint32_t i = 0; i < k->layers; i++) {
        uint32_t *kind = &of[k->pattern[i]];
        if (*kind == 0) *kind = n[i];
        if (*kind != n[i])
            return tm_fail(TM_EUNSUPPORTED, "%s: layers of one kind with %u and %u key heads are not supported",
                           tm_gguf_path(g), *kind, n[i]);
    }
    k->kv_heads = of[1] ? of[1] : of[0];
    k->by_layer.global_kv_heads = of[0] != k->kv_heads ? of[0] : 0;
    return TM_OK;
}

static tm_status file_dim(const tm_gguf *g, const tm_gguf_keys *k, const char *ending, uint32_t *out) {
    static const char *const what[] = {"attention.key_length", "attention.value_length", "rope.dimension_count"};
    uint64_t v[3];
    for (size_t i = 0; i < 3; i++) {
        char key[TM_GGUF_ARCH_KEY], name[64];
        snprintf(name, sizeof name, "%s%s", what[i], ending);
        v[i] = v[0];
        TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, name, key), &v[i], i ? &(bool){false} : NULL));
        if (v[i] != v[0] || v[i] < 2 || v[i] % 2 || v[i] > 2 * TM_KEYS_MAX_FACTORS)
            return tm_fail(TM_EUNSUPPORTED, "%s: heads with '%s' %" PRIu64 " are not supported", tm_gguf_path(g), key,
                           v[i]);
    }
    *out = (uint32_t)v[0];
    return TM_OK;
}

static tm_status file_inputs(const tm_gguf *g, tm_gguf_keys *k) {
    int64_t at = tm_gguf_tensor_find(g, "per_layer_token_embd.weight");
    const tm_gguf_tensor *t = at < 0 ? NULL : tm_gguf_tensor_get(g, (uint32_t)at);
    k->by_layer.input_vocab = k->vocab_size;
    if (k->by_layer.input == 0 && !t) return TM_OK;
    if (!t || t->ndim != 2 || t->shape[1] != (uint64_t)k->layers * k->by_layer.input || t->shape[0] > INT32_MAX)
        return tm_fail(TM_EINPUT, "%s: per_layer_token_embd.weight is not [vocabulary, %u layers of %u]",
                       tm_gguf_path(g), k->layers, k->by_layer.input);
    k->by_layer.input_vocab = (uint32_t)t->shape[0];
    return TM_OK;
}

/* The first layer without a window tells: keys but no values. */
static bool keys_are_values(const tm_gguf *g, const tm_gguf_keys *k) {
    char key[64], value[64];
    uint32_t i = 0;
    while (i < k->layers && k->pattern[i]) i++;
    snprintf(key, sizeof key, "blk.%u.attn_k.weight", i);
    snprintf(value, sizeof value, "blk.%u.attn_v.weight", i);
    return tm_gguf_tensor_find(g, key) >= 0 && tm_gguf_tensor_find(g, value) < 0;
}

static tm_status read_file(const tm_gguf *g, tm_gguf_keys *k) {
    if (k->by_layer.shared >= k->layers)
        return tm_fail(TM_EINPUT, "%s: %u of %u layers share keys and values", tm_gguf_path(g), k->by_layer.shared,
                       k->layers);
    TM_TRY(file_dim(g, k, "", &k->by_layer.global_head_dim));
    TM_TRY(file_dim(g, k, "_swa", &k->head_dim));
    TM_TRY(file_width(g, k));
    TM_TRY(file_kv_heads(g, k));
    k->by_layer.keys_are_values = keys_are_values(g, k);
    return file_inputs(g, k);
}

/* ---- out of config.json ---- */

static bool is_true(const tm_json *c, const char *key) {
    const tm_json *v = tm_json_get(c, key);
    return v && v->type == TM_JSON_BOOL && v->boolean;
}

/* {"1": {"head_dim": 12, "num_key_value_heads": 1}, ...}: the same for each layer without a window, for no other. */
static tm_status config_by_layer(const tm_json *list, tm_gguf_keys *k) {
    uint32_t global = 0, listed = 0;
    for (uint32_t i = 0; i < k->layers; i++) global += !k->pattern[i];
    for (const tm_json *e = list->child; e; e = e->next, listed++) {
        uint32_t dim, kv_heads, layer = (uint32_t)tm_min_u64(strtoul(e->key, NULL, 10), k->layers);
        TM_TRY(tm_config_size(e, "head_dim", k->head_dim, &dim));
        TM_TRY(tm_config_size(e, "num_key_value_heads", k->kv_heads, &kv_heads));
        if (listed == 0) {
            k->by_layer.global_head_dim = dim;
            k->by_layer.global_kv_heads = kv_heads;
        }
        if (layer == k->layers || k->pattern[layer] || dim != k->by_layer.global_head_dim ||
            kv_heads != k->by_layer.global_kv_heads)
            return tm_fail(TM_EUNSUPPORTED, "config.json:%u: per_layer_config of layer %.10s cannot be written to GGUF",
                           e->line, e->key);
    }
    if (listed && listed != global)
        return tm_fail(TM_EUNSUPPORTED, "config.json:%u: per_layer_config is for %u of %u layers without a window",
                       list->line, listed, global);
    return TM_OK;
}

static tm_status read_config(const tm_json *c, tm_gguf_keys *k) {
    const tm_json *list = tm_json_get(c, "per_layer_config");
    TM_TRY(tm_config_size(c, "head_dim", 256, &k->head_dim));
    if (list && list->type == TM_JSON_OBJECT && k->by_layer.global_head_dim == 0) TM_TRY(config_by_layer(list, k));
    if (k->by_layer.global_head_dim == 0) k->by_layer.global_head_dim = k->head_dim;
    if (k->by_layer.global_kv_heads == k->kv_heads) k->by_layer.global_kv_heads = 0;
    k->by_layer.wide = is_true(c, "use_double_wide_mlp");
    k->by_layer.keys_are_values = is_true(c, "attention_k_eq_v");
    if (k->head_dim % 2 || k->by_layer.global_head_dim % 2)
        return tm_fail(TM_EINPUT, "config.json: head_dim must be even");
    if (k->by_layer.shared >= k->layers || k->by_layer.global_head_dim > 2 * TM_KEYS_MAX_FACTORS)
        return tm_fail(TM_EINPUT, "config.json: num_kv_shared_layers or global_head_dim is too large");
    return TM_OK;
}

/* ---- into GGUF ---- */

static void put_sizes(tm_gguf_writer *w, const tm_gguf_keys *k, const char *what, const uint32_t *n) {
    char key[TM_GGUF_ARCH_KEY];
    bool same = true;
    tm_gguf_arch_key(k->arch, what, key);
    for (uint32_t i = 0; i < k->layers; i++) same &= n[i] == n[0];
    if (same) {
        tm_gguf_put_u32(w, key, n[0]);
        return;
    }
    tm_gguf_put_array(w, key, TM_GGUF_I32, k->layers);
    for (uint32_t i = 0; i < k->layers; i++) tm_gguf_item_bytes(w, &n[i], sizeof n[i]);
}

static void put(tm_gguf_writer *w, const tm_gguf_keys *k) {
    static const char *const dims[][2] = {{"attention.key_length", "attention.key_length_swa"},
                                          {"attention.value_length", "attention.value_length_swa"}};
    uint32_t width[TM_KEYS_MAX_LAYERS], kv[TM_KEYS_MAX_LAYERS], own = k->layers - k->by_layer.shared;
    for (uint32_t i = 0; i < k->layers; i++) {
        width[i] = k->intermediate_size * (i >= own && k->by_layer.wide ? 2 : 1);
        kv[i] = !k->pattern[i] && k->by_layer.global_kv_heads ? k->by_layer.global_kv_heads : k->kv_heads;
    }
    put_sizes(w, k, "feed_forward_length", width);
    put_sizes(w, k, "attention.head_count_kv", kv);
    for (size_t i = 0; i < TM_COUNT(dims); i++) {
        char key[TM_GGUF_ARCH_KEY];
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, dims[i][0], key), k->by_layer.global_head_dim);
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, dims[i][1], key), k->head_dim);
    }
}

const tm_gguf_hooks tm_gguf_gemma4 = {read_file, read_config, put};
