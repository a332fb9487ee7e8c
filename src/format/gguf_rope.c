/* RoPE's base and scaling: out of GGUF and config.json, into both. */
#include "format/gguf_internal.h"

#include <math.h>
#include <string.h>

static const char *const kinds[] = {
    [TM_GGUF_ROPE_DEFAULT] = "default",   [TM_GGUF_ROPE_LINEAR] = "linear",
    [TM_GGUF_ROPE_LLAMA3] = "llama3",     [TM_GGUF_ROPE_YARN] = "yarn",
    [TM_GGUF_ROPE_LONGROPE] = "longrope", [TM_GGUF_ROPE_PROPORTIONAL] = "proportional",
};

static bool kind_fits(const tm_gguf_arch *arch, tm_gguf_rope_kind kind) {
    if ((arch->flags & TM_ARCH_PROPORTIONAL) || kind == TM_GGUF_ROPE_PROPORTIONAL)
        return (arch->flags & TM_ARCH_PROPORTIONAL) && kind == TM_GGUF_ROPE_PROPORTIONAL;
    if (arch->flags & TM_ARCH_LOCAL_ROPE) return kind <= TM_GGUF_ROPE_LINEAR;
    if (arch->flags & TM_ARCH_TEMPERATURE) return kind == TM_GGUF_ROPE_YARN;
    if (kind == TM_GGUF_ROPE_LLAMA3) return !(arch->flags & TM_ARCH_PARTIAL);
    return kind != TM_GGUF_ROPE_LONGROPE || (arch->flags & TM_ARCH_LONGROPE);
}

/* ---- out of GGUF ---- */

static tm_status file_kind(const tm_gguf *g, tm_gguf_keys *k) {
    tm_buf type = {0};
    bool found;
    tm_status rc;
    char key[TM_GGUF_ARCH_KEY];
    TM_GO(tm_gguf_string(g, tm_gguf_arch_key(k->arch, "rope.scaling.type", key), 64, &type, &found));
    if (tm_gguf_tensor_find(g, "rope_factors_long.weight") >= 0)
        k->rope.kind = TM_GGUF_ROPE_LONGROPE;
    else if (found && strcmp(type.data, "linear") == 0)
        k->rope.kind = TM_GGUF_ROPE_LINEAR;
    else if (found && strcmp(type.data, "yarn") == 0)
        k->rope.kind = TM_GGUF_ROPE_YARN;
    else if (k->arch->flags & TM_ARCH_PROPORTIONAL)
        k->rope.kind = TM_GGUF_ROPE_PROPORTIONAL;
    else if (found && strcmp(type.data, "none") != 0)
        rc = tm_fail(TM_EUNSUPPORTED, "%s: RoPE scaling '%s' is not supported", tm_gguf_path(g), type.data);
    if (rc == TM_OK && !kind_fits(k->arch, k->rope.kind))
        rc = tm_fail(TM_EUNSUPPORTED, "%s: a %s with RoPE scaling '%s' is not supported", tm_gguf_path(g),
                     k->arch->type, kinds[k->rope.kind]);
done:
    tm_buf_free(&type);
    return rc;
}

static tm_status file_real(const tm_gguf *g, const tm_gguf_keys *k, const char *what, bool must, double *out) {
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_float(g, tm_gguf_arch_key(k->arch, what, key), out, must ? NULL : &(bool){false}));
    return *out > 0 ? TM_OK : tm_fail(TM_EINPUT, "%s: '%s' is %g", tm_gguf_path(g), key, *out);
}

static tm_status file_not_negative(const tm_gguf *g, const tm_gguf_keys *k, const char *what, double *out) {
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_float(g, tm_gguf_arch_key(k->arch, what, key), out, &(bool){false}));
    return *out >= 0 ? TM_OK : tm_fail(TM_EINPUT, "%s: '%s' is %g", tm_gguf_path(g), key, *out);
}

static tm_status file_yarn(const tm_gguf *g, tm_gguf_keys *k) {
    uint64_t original = 0;
    double attention = 1;
    char key[TM_GGUF_ARCH_KEY];
    bool found;
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "rope.scaling.original_context_length", key), &original, NULL));
    if (original < 1 || original > INT32_MAX)
        return tm_fail(TM_EINPUT, "%s: '%s' is 0 or absurd", tm_gguf_path(g), key);
    k->rope.original = (uint32_t)original;
    TM_TRY(file_real(g, k, "rope.scaling.yarn_beta_fast", false, &k->rope.beta_fast));
    TM_TRY(file_real(g, k, "rope.scaling.yarn_beta_slow", false, &k->rope.beta_slow));
    tm_gguf_arch_key(k->arch, "rope.scaling.yarn_attn_factor", key);
    found = tm_gguf_kv_find(g, key) != NULL;
    TM_TRY(file_real(g, k, "rope.scaling.yarn_attn_factor", false, &attention));
    if (found) k->rope.attention_factor = attention;
    if (!(k->arch->flags & TM_ARCH_TEMPERATURE)) return TM_OK;
    TM_TRY(file_not_negative(g, k, "rope.scaling.yarn_log_multiplier", &k->rope.mscale_all_dim));
    return file_not_negative(g, k, "attention.temperature_scale", &k->rope.temperature);
}

static tm_status file_longrope(const tm_gguf *g, tm_gguf_keys *k) {
    double usual = tm_longrope_attention_factor(k), stored = usual;
    TM_TRY(file_real(g, k, "rope.scaling.attn_factor", false, &stored));
    if (fabs(stored - usual) > 1e-5 * usual) k->rope.attention_factor = stored;
    return TM_OK;
}

tm_status tm_gguf_read_rope(const tm_gguf *g, tm_gguf_keys *k) {
    k->rope.theta = k->rope.local_theta = 10000;
    k->rope.factor = 1;
    k->rope.beta_fast = 32;
    k->rope.beta_slow = 1;
    TM_TRY(file_real(g, k, "rope.freq_base", false, &k->rope.theta));
    if (k->arch->flags & TM_ARCH_LOCAL_ROPE) TM_TRY(file_real(g, k, "rope.freq_base_swa", false, &k->rope.local_theta));
    TM_TRY(file_kind(g, k));
    if (k->rope.kind == TM_GGUF_ROPE_LINEAR || k->rope.kind == TM_GGUF_ROPE_YARN)
        TM_TRY(file_real(g, k, "rope.scaling.factor", true, &k->rope.factor));
    if (k->rope.kind == TM_GGUF_ROPE_YARN) TM_TRY(file_yarn(g, k));
    TM_TRY(tm_gguf_read_rope_factors(g, k));
    return k->rope.kind == TM_GGUF_ROPE_LONGROPE ? file_longrope(g, k) : TM_OK;
}

/* ---- out of config.json ---- */

static tm_status config_factors(const tm_json *p, tm_gguf_keys *k) {
    static const char *const keys[2] = {"short_factor", "long_factor"};
    uint32_t half = k->rope.rotary / 2;
    for (int f = 0; f < 2; f++) {
        const tm_json *list = tm_json_get(p, keys[f]);
        bool right = list && list->type == TM_JSON_ARRAY && list->count == half && half <= TM_KEYS_MAX_FACTORS;
        uint32_t i = 0;
        for (const tm_json *e = right ? list->child : NULL; e && right; e = e->next, i++) {
            right = e->type == TM_JSON_NUMBER && e->number > 0 && e->number < 3e38;
            k->rope.factors[f][i] = (float)e->number;
        }
        if (!right) return tm_fail(TM_EINPUT, "config.json: '%s' is not %u positive numbers", keys[f], half);
    }
    return TM_OK;
}

/* Variants that have no key in GGUF; mscale 1 (the first) and mscale_all_dim are Ministral's. */
static tm_status refuse_variants(const tm_json *p, const tm_gguf_arch *arch) {
    static const char *const keys[] = {"mscale", "mscale_all_dim", "short_mscale", "long_mscale"};
    bool own = arch->flags & TM_ARCH_TEMPERATURE;
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const tm_json *v = tm_json_get(p, keys[i]);
        bool taken = own && (i == 1 || (i == 0 && v && v->type == TM_JSON_NUMBER && v->number == 1));
        if (v && v->type != TM_JSON_NULL && !taken)
            return tm_fail(TM_EUNSUPPORTED, "config.json:%u: '%s' cannot be written to GGUF", v->line, keys[i]);
    }
    const tm_json *truncate = tm_json_get(p, "truncate");
    if (truncate && truncate->type == TM_JSON_BOOL && !truncate->boolean)
        return tm_fail(TM_EUNSUPPORTED, "config.json:%u: 'truncate' false cannot be written to GGUF", truncate->line);
    return TM_OK;
}

static tm_status config_not_negative(const tm_json *p, const char *key, double *out) {
    const tm_json *v = tm_json_get(p, key);
    *out = 0;
    return v && v->type == TM_JSON_NUMBER && v->number == 0 ? TM_OK : tm_config_real(p, key, 0, out);
}

static tm_status config_llama3(const tm_json *p, tm_gguf_keys *k) {
    if (k->rope.rotary / 2 > TM_KEYS_MAX_FACTORS) return tm_fail(TM_EINPUT, "config.json: head_dim is too large");
    TM_TRY(tm_config_real(p, "low_freq_factor", 1, &k->rope.low));
    TM_TRY(tm_config_real(p, "high_freq_factor", 4, &k->rope.high));
    if (!(k->rope.high > k->rope.low))
        return tm_fail(TM_EINPUT, "config.json:%u: high_freq_factor must exceed low_freq_factor", p->line);
    return tm_config_size(p, "original_max_position_embeddings", 8192, &k->rope.original);
}

static tm_status config_proportional(const tm_json *p, tm_gguf_keys *k) {
    double part = 1;
    TM_TRY(tm_config_real(p, "partial_rotary_factor", 1, &part));
    if (part > 1) return tm_fail(TM_EINPUT, "config.json: partial_rotary_factor is %g, more than 1", part);
    k->rope.rotary = (uint32_t)(k->by_layer.global_head_dim * part / 2) * 2;
    return TM_OK;
}

static tm_status config_scaling(const tm_json *c, const tm_json *p, tm_gguf_keys *k) {
    TM_TRY(refuse_variants(p, k->arch));
    TM_TRY(tm_config_real(p, "factor", 1, &k->rope.factor));
    TM_TRY(tm_config_real(p, "attention_factor", 0, &k->rope.attention_factor));
    switch (k->rope.kind) {
    case TM_GGUF_ROPE_LLAMA3:
        return config_llama3(p, k);
    case TM_GGUF_ROPE_YARN:
        TM_TRY(tm_config_real(p, "beta_fast", 32, &k->rope.beta_fast));
        TM_TRY(tm_config_real(p, "beta_slow", 1, &k->rope.beta_slow));
        if (k->arch->flags & TM_ARCH_TEMPERATURE) {
            TM_TRY(config_not_negative(p, "mscale_all_dim", &k->rope.mscale_all_dim));
            TM_TRY(config_not_negative(p, "llama_4_scaling_beta", &k->rope.temperature));
        }
        return tm_config_size(p, "original_max_position_embeddings", k->context, &k->rope.original);
    case TM_GGUF_ROPE_PROPORTIONAL:
        return config_proportional(p, k);
    case TM_GGUF_ROPE_LONGROPE:
        if (!tm_json_get(c, "original_max_position_embeddings"))
            TM_TRY(tm_config_size(p, "original_max_position_embeddings", k->context, &k->rope.original));
        return config_factors(p, k);
    default:
        return TM_OK;
    }
}

static tm_status config_kind(const tm_json *type, tm_gguf_keys *k) {
    bool known = false;
    if ((!type || type->type == TM_JSON_NULL) && !kind_fits(k->arch, TM_GGUF_ROPE_DEFAULT))
        return tm_fail(TM_EUNSUPPORTED, "config.json: a %s without RoPE scaling cannot be written to GGUF",
                       k->arch->type);
    if (!type || type->type == TM_JSON_NULL) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(kinds); i++)
        if (tm_json_is(type, kinds[i]) || (i == TM_GGUF_ROPE_LONGROPE && tm_json_is(type, "su"))) {
            known = kind_fits(k->arch, (tm_gguf_rope_kind)i);
            k->rope.kind = (tm_gguf_rope_kind)i;
        }
    return known ? TM_OK
                 : tm_fail(TM_EUNSUPPORTED, "config.json:%u: this RoPE scaling cannot be written to GGUF", type->line);
}

static tm_status config_rotary(const tm_json *c, const tm_json *p, tm_gguf_keys *k) {
    double part = k->arch->flags & TM_ARCH_LONGROPE ? 1 : 0.5; /* Phi-3's and GLM-4's own */
    TM_TRY(tm_config_real(c, "partial_rotary_factor", part, &part));
    TM_TRY(tm_config_real(p, "partial_rotary_factor", part, &part));
    k->rope.rotary = part <= 1 ? (uint32_t)(k->head_dim * part) : 0;
    if (k->rope.rotary % 2 || k->rope.rotary == 0)
        return tm_fail(TM_EINPUT, "config.json: partial_rotary_factor %g of heads of %u is no even number", part,
                       k->head_dim);
    return TM_OK;
}

/* 5: everything in rope_parameters, for Gemma 3 by kind of layer; 4: rope_theta, and rope_scaling or null. */
tm_status tm_gguf_read_rope_config(const tm_json *c, tm_gguf_keys *k) {
    const tm_json *p = tm_json_get(c, "rope_parameters");
    bool local = k->arch->flags & TM_ARCH_LOCAL_ROPE;
    if (!p || p->type != TM_JSON_OBJECT) p = tm_json_get(c, "rope_scaling");
    const tm_json *full = tm_json_get(p, "full_attention"), *sliding = tm_json_get(p, "sliding_attention");
    if (full) p = full;
    const tm_json *type = tm_json_get(p, "rope_type");
    if (!type) type = tm_json_get(p, "type");
    k->rope.factor = 1;
    TM_TRY(tm_config_real(c, "rope_theta", local ? 1e6 : 10000, &k->rope.theta));
    TM_TRY(tm_config_real(p, "rope_theta", k->rope.theta, &k->rope.theta));
    if (local) {
        TM_TRY(tm_config_real(c, "rope_local_base_freq", 10000, &k->rope.local_theta));
        TM_TRY(tm_config_real(sliding, "rope_theta", k->rope.local_theta, &k->rope.local_theta));
    }
    if (k->arch->flags & TM_ARCH_PARTIAL) TM_TRY(config_rotary(c, p, k));
    TM_TRY(config_kind(type, k));
    return k->rope.kind == TM_GGUF_ROPE_DEFAULT ? TM_OK : config_scaling(c, p, k);
}

/* ---- into GGUF ---- */

static void put_real(tm_gguf_writer *w, const tm_gguf_keys *k, const char *what, double v) {
    char key[TM_GGUF_ARCH_KEY];
    tm_gguf_put_f32(w, tm_gguf_arch_key(k->arch, what, key), (float)v);
}

static void put_original(tm_gguf_writer *w, const tm_gguf_keys *k) {
    char key[TM_GGUF_ARCH_KEY];
    if (k->arch->flags & TM_ARCH_LONGROPE) return; /* has a row of its own */
    tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "rope.scaling.original_context_length", key), k->rope.original);
}

void tm_gguf_put_rope(tm_gguf_writer *w, const tm_gguf_keys *k) {
    const tm_gguf_rope *r = &k->rope;
    char key[TM_GGUF_ARCH_KEY];
    if (r->kind == TM_GGUF_ROPE_PROPORTIONAL) {
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "rope.dimension_count", key), k->by_layer.global_head_dim);
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "rope.dimension_count_swa", key), k->head_dim);
    } else
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "rope.dimension_count", key), r->rotary);
    put_real(w, k, "rope.freq_base", r->theta);
    if (k->arch->flags & TM_ARCH_LOCAL_ROPE) put_real(w, k, "rope.freq_base_swa", r->local_theta);
    if (r->kind == TM_GGUF_ROPE_LINEAR || r->kind == TM_GGUF_ROPE_YARN || r->kind == TM_GGUF_ROPE_LONGROPE)
        tm_gguf_put_string(w, tm_gguf_arch_key(k->arch, "rope.scaling.type", key), kinds[r->kind],
                           strlen(kinds[r->kind]));
    if (r->kind == TM_GGUF_ROPE_LINEAR || r->kind == TM_GGUF_ROPE_YARN)
        put_real(w, k, "rope.scaling.factor", r->factor);
    /* llama3 is the tensor rope_freqs.weight; this key only helps to get the parameters back from it. */
    if (r->kind == TM_GGUF_ROPE_LLAMA3 || r->kind == TM_GGUF_ROPE_YARN) put_original(w, k);
    if (r->kind == TM_GGUF_ROPE_YARN) {
        put_real(w, k, "rope.scaling.yarn_beta_fast", r->beta_fast);
        put_real(w, k, "rope.scaling.yarn_beta_slow", r->beta_slow);
        if (r->attention_factor > 0) put_real(w, k, "rope.scaling.yarn_attn_factor", r->attention_factor);
    }
    if (k->arch->flags & TM_ARCH_TEMPERATURE) {
        put_real(w, k, "rope.scaling.yarn_log_multiplier", r->mscale_all_dim);
        put_real(w, k, "attention.temperature_scale", r->temperature);
    }
    if (r->kind == TM_GGUF_ROPE_LONGROPE)
        put_real(w, k, "rope.scaling.attn_factor",
                 r->attention_factor > 0 ? r->attention_factor : tm_longrope_attention_factor(k));
}

/* ---- into config.json ---- */

static void put_float(tm_json_writer *j, const char *key, double v) {
    tm_jw_key(j, key);
    tm_gguf_jw_float(j, v);
}

static void put_factors(tm_json_writer *j, const tm_gguf_keys *k, int which) {
    tm_jw_field_array(j, which ? "long_factor" : "short_factor");
    for (uint32_t i = 0; i < k->rope.rotary / 2; i++) tm_gguf_jw_float(j, (double)k->rope.factors[which][i]);
    tm_jw_array_end(j);
}

/* All but theta. */
static void put_scaling(tm_json_writer *j, const tm_gguf_keys *k) {
    const tm_gguf_rope *r = &k->rope;
    tm_jw_field_str(j, "rope_type", kinds[r->kind]);
    if (r->kind == TM_GGUF_ROPE_PROPORTIONAL) {
        put_float(j, "partial_rotary_factor", (double)r->rotary / (double)k->by_layer.global_head_dim);
        return;
    }
    if (r->kind == TM_GGUF_ROPE_LONGROPE) {
        put_factors(j, k, 0);
        put_factors(j, k, 1);
    } else
        put_float(j, "factor", r->factor);
    if (r->kind == TM_GGUF_ROPE_LLAMA3) {
        put_float(j, "low_freq_factor", r->low);
        put_float(j, "high_freq_factor", r->high);
    }
    if (r->kind == TM_GGUF_ROPE_YARN) {
        put_float(j, "beta_fast", r->beta_fast);
        put_float(j, "beta_slow", r->beta_slow);
    }
    if (k->arch->flags & TM_ARCH_TEMPERATURE) {
        put_float(j, "mscale", 1);
        put_float(j, "mscale_all_dim", r->mscale_all_dim);
        put_float(j, "llama_4_scaling_beta", r->temperature);
    }
    if (r->attention_factor > 0) put_float(j, "attention_factor", r->attention_factor);
    if (r->kind != TM_GGUF_ROPE_LINEAR) tm_jw_field_uint(j, "original_max_position_embeddings", r->original);
}

static void put_parameters(tm_json_writer *j, const tm_gguf_keys *k, bool local) {
    tm_jw_object(j);
    put_float(j, "rope_theta", local ? k->rope.local_theta : k->rope.theta);
    if (local || k->rope.kind == TM_GGUF_ROPE_DEFAULT)
        tm_jw_field_str(j, "rope_type", "default");
    else
        put_scaling(j, k);
    if (k->arch->flags & TM_ARCH_PARTIAL)
        put_float(j, "partial_rotary_factor", (double)k->rope.rotary / (double)k->head_dim);
    tm_jw_object_end(j);
}

void tm_gguf_rope_json(tm_json_writer *j, const tm_gguf_keys *k) {
    if (!(k->arch->flags & TM_ARCH_LOCAL_ROPE)) {
        put_parameters(j, k, false);
        return;
    }
    tm_jw_object(j);
    tm_jw_key(j, "full_attention");
    put_parameters(j, k, false);
    tm_jw_key(j, "sliding_attention");
    put_parameters(j, k, true);
    tm_jw_object_end(j);
}

/* transformers 4 wants exactly three keys for longrope, one of them `type`. */
void tm_gguf_rope_json_v4(tm_json_writer *j, const tm_gguf_keys *k) {
    if (k->rope.kind == TM_GGUF_ROPE_DEFAULT) {
        tm_jw_null(j);
        return;
    }
    tm_jw_object(j);
    if (k->rope.kind == TM_GGUF_ROPE_LONGROPE) {
        tm_jw_field_str(j, "type", "longrope");
        put_factors(j, k, 0);
        put_factors(j, k, 1);
    } else
        put_scaling(j, k);
    tm_jw_object_end(j);
}
