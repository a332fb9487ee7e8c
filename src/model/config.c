/* config.json of Hugging Face, as versions 4 and 5 of transformers write it. */
#include "model/arch_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_HIDDEN = 1 << 20,
    MAX_INTERMEDIATE = 1 << 22,
    MAX_VOCAB = 1 << 26,
    MAX_LAYERS = 1 << 12,
    MAX_HEADS = 1 << 12
};
enum { MAX_HEAD_DIM = 512, MAX_POSITIONS = 1 << 30 };

static bool present(const tm_json *n) {
    return n && n->type != TM_JSON_NULL;
}

static tm_status bad(const model_parser *p, const tm_json *at, const char *key, const char *expected) {
    return tm_fail(TM_EINPUT, "%s:%u:%u: %s must be %s", p->name, at->line, at->column, key, expected);
}

tm_status model_key_u32(const model_parser *p, const char *key, int64_t low, int64_t high, int64_t otherwise,
                        uint32_t *out) {
    const tm_json *n = tm_json_get(p->root, key);
    if (!present(n)) {
        if (otherwise < 0) return tm_fail(TM_EINPUT, "%s: %s is missing", p->name, key);
        *out = (uint32_t)otherwise;
        return TM_OK;
    }
    bool ok = n->type == TM_JSON_NUMBER && n->is_integer && n->integer >= low && n->integer <= high;
    if (!ok)
        return tm_fail(TM_EINPUT, "%s:%u:%u: %s must be an integer from %lld to %lld", p->name, n->line, n->column, key,
                       (long long)low, (long long)high);
    *out = (uint32_t)n->integer;
    return TM_OK;
}

static tm_status get_double(const model_parser *p, const tm_json *object, const char *key, bool required,
                            double otherwise, double *out) {
    const tm_json *n = tm_json_get(object, key);
    if (!present(n)) {
        if (required)
            return tm_fail(TM_EINPUT, "%s:%u:%u: %s is missing here", p->name, object->line, object->column, key);
        *out = otherwise;
        return TM_OK;
    }
    bool ok = n->type == TM_JSON_NUMBER && isfinite(n->number) && n->number > 0;
    if (!ok) return bad(p, n, key, "a positive number");
    *out = n->number;
    return TM_OK;
}

tm_status model_key_bool(const model_parser *p, const char *key, bool otherwise, bool *out) {
    const tm_json *n = tm_json_get(p->root, key);
    *out = otherwise;
    if (!present(n)) return TM_OK;
    if (n->type != TM_JSON_BOOL) return bad(p, n, key, "true or false");
    *out = n->boolean;
    return TM_OK;
}

static tm_status token_id(const model_parser *p, const tm_json *n, const char *key, int32_t *out) {
    bool ok = n->type == TM_JSON_NUMBER && n->is_integer && n->integer >= -1 && n->integer < MAX_VOCAB;
    if (!ok) return bad(p, n, key, "a token id");
    *out = (int32_t)n->integer;
    return TM_OK;
}

static tm_status special_tokens(const model_parser *p, tm_model_config *c) {
    const tm_json *bos = tm_json_get(p->root, "bos_token_id"), *eos = tm_json_get(p->root, "eos_token_id");
    c->bos_token_id = -1;
    if (present(bos)) TM_TRY(token_id(p, bos, "bos_token_id", &c->bos_token_id));
    if (!present(eos)) return TM_OK;
    const tm_json *first = eos->type == TM_JSON_ARRAY ? eos->child : eos;
    size_t n = eos->type == TM_JSON_ARRAY ? eos->count : 1;
    if (n > TM_COUNT(c->eos_token_id)) return bad(p, eos, "eos_token_id", "at most 8 token ids");
    for (size_t i = 0; i < n; i++, first = first->next) {
        int32_t id = -1;
        TM_TRY(token_id(p, first, "eos_token_id", &id));
        if (id >= 0) c->eos_token_id[c->n_eos++] = id;
    }
    return TM_OK;
}

static tm_status architecture(const model_parser *p, tm_model_config *c, const model_arch **arch) {
    const tm_json *type = tm_json_get(p->root, "model_type");
    if (!type || type->type != TM_JSON_STRING)
        return tm_fail(TM_EINPUT, "%s: model_type is missing; is this the config.json of a model?", p->name);
    *arch = model_arch_find(type->text);
    if (!*arch) {
        char names[256];
        model_arch_names(names, sizeof names);
        return tm_fail(TM_EUNSUPPORTED, "%s:%u:%u: model_type \"%.40s\" is not supported; %s are", p->name, type->line,
                       type->column, type->text, names);
    }
    snprintf(c->model_type, sizeof c->model_type, "%s", (*arch)->model_type);
    const tm_json *act = tm_json_get(p->root, "hidden_act");
    if (present(act) && !tm_json_is(act, "silu"))
        return tm_fail(TM_EUNSUPPORTED, "%s:%u:%u: hidden_act is not supported here; silu is", p->name, act->line,
                       act->column);
    const tm_json *quantised = tm_json_get(p->root, "quantization_config");
    if (present(quantised))
        return tm_fail(TM_EUNSUPPORTED,
                       "%s:%u:%u: quantised checkpoints (quantization_config) are not supported; take "
                       "the model in bf16, f16 or f32",
                       p->name, quantised->line, quantised->column);
    return TM_OK;
}

static tm_status sizes(const model_parser *p, const model_arch *arch, tm_model_config *c) {
    TM_TRY(model_key_u32(p, "vocab_size", 1, MAX_VOCAB, -1, &c->vocab_size));
    TM_TRY(model_key_u32(p, "hidden_size", 1, MAX_HIDDEN, -1, &c->hidden_size));
    TM_TRY(model_key_u32(p, "intermediate_size", 1, MAX_INTERMEDIATE, -1, &c->intermediate_size));
    TM_TRY(model_key_u32(p, "num_hidden_layers", 1, MAX_LAYERS, -1, &c->num_hidden_layers));
    TM_TRY(model_key_u32(p, "num_attention_heads", 1, MAX_HEADS, -1, &c->num_attention_heads));
    TM_TRY(model_key_u32(p, "num_key_value_heads", 1, MAX_HEADS,
                         arch->kv_heads ? arch->kv_heads : c->num_attention_heads, &c->num_key_value_heads));
    TM_TRY(model_key_u32(p, "head_dim", 2, MAX_HEAD_DIM, 0, &c->head_dim));
    return model_key_u32(p, "max_position_embeddings", 1, MAX_POSITIONS, arch->positions ? arch->positions : 2048,
                         &c->max_position_embeddings);
}

static tm_status check_heads(const model_parser *p, tm_model_config *c) {
    uint32_t heads = c->num_attention_heads;
    if (!c->head_dim) {
        if (c->hidden_size % heads)
            return tm_fail(TM_EINPUT,
                           "%s: hidden_size %u is not a multiple of num_attention_heads %u, and head_dim is absent",
                           p->name, c->hidden_size, heads);
        c->head_dim = c->hidden_size / heads;
    }
    if (c->head_dim % 2 || c->head_dim > MAX_HEAD_DIM)
        return tm_fail(TM_EINPUT, "%s: head_dim %u must be even and at most %d", p->name, c->head_dim, MAX_HEAD_DIM);
    if (heads % c->num_key_value_heads)
        return tm_fail(TM_EINPUT, "%s: num_attention_heads %u is not a multiple of num_key_value_heads %u", p->name,
                       heads, c->num_key_value_heads);
    return TM_OK;
}

static tm_status llama3_scaling(const model_parser *p, const tm_json *rope, tm_model_config *c) {
    double original;
    TM_TRY(get_double(p, rope, "low_freq_factor", true, 0, &c->rope_low_freq_factor));
    TM_TRY(get_double(p, rope, "high_freq_factor", true, 0, &c->rope_high_freq_factor));
    TM_TRY(get_double(p, rope, "original_max_position_embeddings", true, 0, &original));
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return bad(p, rope, "high_freq_factor", "greater than low_freq_factor");
    if (original > MAX_POSITIONS || original != floor(original))
        return bad(p, rope, "original_max_position_embeddings", "an integer");
    c->rope_original_max_position = (uint32_t)original;
    return TM_OK;
}

static tm_status scaling(const model_parser *p, const tm_json *rope, tm_model_config *c) {
    const tm_json *type = tm_json_get(rope, "rope_type"), *partial = tm_json_get(rope, "partial_rotary_factor");
    if (!present(type)) type = tm_json_get(rope, "type");
    if (present(partial) && !(partial->type == TM_JSON_NUMBER && partial->number == 1.0))
        return tm_fail(TM_EUNSUPPORTED, "%s:%u:%u: partial_rotary_factor is not supported", p->name, partial->line,
                       partial->column);
    if (!present(type) || tm_json_is(type, "default")) return TM_OK;
    bool linear = tm_json_is(type, "linear"), llama3 = tm_json_is(type, "llama3");
    if (!linear && !llama3)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s:%u:%u: rope_type \"%.40s\" is not supported; default, linear and llama3 are", p->name,
                       type->line, type->column, type->type == TM_JSON_STRING ? type->text : "?");
    c->rope_type = linear ? TM_ROPE_LINEAR : TM_ROPE_LLAMA3;
    TM_TRY(get_double(p, rope, "factor", true, 0, &c->rope_factor));
    return linear ? TM_OK : llama3_scaling(p, rope, c);
}

/* v5: rope_parameters {rope_type, rope_theta, ..}. v4: rope_theta beside rope_scaling {rope_type or type, ..}. */
static tm_status rope(const model_parser *p, tm_model_config *c) {
    const tm_json *v5 = tm_json_get(p->root, "rope_parameters"), *v4 = tm_json_get(p->root, "rope_scaling");
    TM_TRY(get_double(p, p->root, "rope_theta", false, 10000.0, &c->rope_theta));
    const tm_json *block = present(v5) ? v5 : v4;
    if (!present(block)) return TM_OK;
    if (block->type != TM_JSON_OBJECT) return bad(p, block, block->key, "an object");
    TM_TRY(get_double(p, block, "rope_theta", false, c->rope_theta, &c->rope_theta));
    return scaling(p, block, c);
}

static tm_status fill(const model_parser *p, tm_model_config *c) {
    if (p->root->type != TM_JSON_OBJECT) return bad(p, p->root, "a configuration", "an object");
    const model_arch *arch = NULL;
    TM_TRY(architecture(p, c, &arch));
    TM_TRY(sizes(p, arch, c));
    TM_TRY(check_heads(p, c));
    TM_TRY(rope(p, c));
    TM_TRY(special_tokens(p, c));
    TM_TRY(get_double(p, p->root, "rms_norm_eps", false, 1e-6, &c->rms_norm_eps));
    TM_TRY(get_double(p, p->root, "initializer_range", false, 0.02, &c->initializer_range));
    TM_TRY(model_key_bool(p, "tie_word_embeddings", false, &c->tie_word_embeddings));
    return arch->parse(p, c);
}

tm_status tm_model_config_parse(tm_model_config *out, const char *json, size_t len, const char *name) {
    tm_json_doc *doc;
    *out = (tm_model_config){0};
    TM_TRY(tm_json_parse(&doc, json, len, name, 0, 0));
    tm_status rc = fill(&(model_parser){name, tm_json_root(doc)}, out);
    tm_json_free(doc);
    return rc;
}
