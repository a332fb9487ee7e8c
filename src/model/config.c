/* config.json of Hugging Face, as versions 4 and 5 of transformers write it. */
#include "model/arch_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_HIDDEN = 1 << 20,
    MAX_INTERMEDIATE = 1 << 22,
    MAX_VOCAB = 1 << 26,
    MAX_LAYERS = TM_MAX_LAYERS,
    MAX_HEADS = 1 << 12
};
enum { MAX_POSITIONS = MODEL_MAX_POSITIONS };

bool model_present(const tm_json *n) {
    return n && n->type != TM_JSON_NULL;
}

tm_status model_key_bad(const model_parser *p, const tm_json *at, const char *key, const char *expected) {
    return tm_fail(TM_EINPUT, "%s:%u:%u: %s must be %s", p->name, at->line, at->column, key, expected);
}

tm_status model_key_u32(const model_parser *p, const char *key, int64_t low, int64_t high, int64_t otherwise,
                        uint32_t *out) {
    const tm_json *n = tm_json_get(p->root, key);
    if (!model_present(n)) {
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

tm_status model_key_real(const model_parser *p, const tm_json *object, const char *key, double otherwise, double *out) {
    const tm_json *n = tm_json_get(object, key);
    if (!model_present(n)) {
        if (otherwise < 0)
            return tm_fail(TM_EINPUT, "%s:%u:%u: %s is missing here", p->name, object->line, object->column, key);
        *out = otherwise;
        return TM_OK;
    }
    bool ok = n->type == TM_JSON_NUMBER && isfinite(n->number) && n->number > 0;
    if (!ok) return model_key_bad(p, n, key, "a positive number");
    *out = n->number;
    return TM_OK;
}

const tm_json *model_shared_key(const model_parser *p, const char *key) {
    const tm_json *n = tm_json_get(p->root, key);
    return model_present(n) || !p->outer ? n : tm_json_get(p->outer, key);
}

tm_status model_key_bool(const model_parser *p, const char *key, bool otherwise, bool *out) {
    const tm_json *n = model_shared_key(p, key);
    *out = otherwise;
    if (!model_present(n)) return TM_OK;
    if (n->type != TM_JSON_BOOL) return model_key_bad(p, n, key, "true or false");
    *out = n->boolean;
    return TM_OK;
}

static tm_status token_id(const model_parser *p, const tm_json *n, const char *key, int32_t *out) {
    bool ok = n->type == TM_JSON_NUMBER && n->is_integer && n->integer >= -1 && n->integer < MAX_VOCAB;
    if (!ok) return model_key_bad(p, n, key, "a token id");
    *out = (int32_t)n->integer;
    return TM_OK;
}

static tm_status special_tokens(const model_parser *p, tm_model_config *c) {
    const tm_json *bos = model_shared_key(p, "bos_token_id"), *eos = model_shared_key(p, "eos_token_id");
    c->bos_token_id = -1;
    if (model_present(bos)) TM_TRY(token_id(p, bos, "bos_token_id", &c->bos_token_id));
    if (!model_present(eos)) return TM_OK;
    const tm_json *first = eos->type == TM_JSON_ARRAY ? eos->child : eos;
    size_t n = eos->type == TM_JSON_ARRAY ? eos->count : 1;
    if (n > TM_COUNT(c->eos_token_id)) return model_key_bad(p, eos, "eos_token_id", "at most 8 token ids");
    for (size_t i = 0; i < n; i++, first = first->next) {
        int32_t id = -1;
        TM_TRY(token_id(p, first, "eos_token_id", &id));
        if (id >= 0) c->eos_token_id[c->n_eos++] = id;
    }
    return TM_OK;
}

static bool json_true(const tm_json *object, const char *key) {
    const tm_json *v = tm_json_get(object, key);
    return v && v->type == TM_JSON_BOOL && v->boolean;
}

/* Whoever reads the weights (format) decodes 4-bit blocks and integer codes; other methods are refused. */
static tm_status quantisation(const model_parser *p) {
    static const char *const integers[] = {"compressed-tensors", "gptq", "awq"};
    const tm_json *q = model_shared_key(p, "quantization_config"), *method = tm_json_get(q, "quant_method");
    if (!model_present(q)) return TM_OK;
    bool bnb = model_present(method) ? tm_json_is(method, "bitsandbytes") : json_true(q, "load_in_4bit");
    if (bnb && !json_true(q, "load_in_8bit")) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(integers); i++)
        if (tm_json_is(method, integers[i])) return TM_OK;
    return tm_fail(
        TM_EUNSUPPORTED,
        "%s:%u:%u: checkpoints quantised by this method (quantization_config: %.40s) are not supported; "
        "bitsandbytes in 4 bits, compressed-tensors, gptq, awq and GGUF are; or take the model in bf16, f16 or "
        "f32",
        p->name, q->line, q->column,
        bnb                                        ? "load_in_8bit"
        : method && method->type == TM_JSON_STRING ? method->text
                                                   : "no quant_method");
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
    return quantisation(p);
}

static const char *key_of(const char *own, const char *usual) {
    return own ? own : usual;
}

static const struct {
    const char *name;
    tm_activation act;
} activations[] = {{"silu", TM_ACT_SILU},
                   {"swish", TM_ACT_SILU},
                   {"gelu", TM_ACT_GELU},
                   {"gelu_new", TM_ACT_GELU_TANH},
                   {"gelu_pytorch_tanh", TM_ACT_GELU_TANH}};

bool model_activation_is_known(const tm_json *name) {
    for (size_t i = 0; i < TM_COUNT(activations); i++)
        if (tm_json_is(name, activations[i].name)) return true;
    return false;
}

static tm_status activation(const model_parser *p, const model_arch *arch, tm_model_config *c) {
    const char *key = key_of(arch->keys.activation, "hidden_act");
    const tm_json *act = tm_json_get(p->root, key);
    c->activation = arch->activation;
    if (!model_present(act)) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(activations); i++)
        if (tm_json_is(act, activations[i].name)) {
            c->activation = activations[i].act;
            return TM_OK;
        }
    return tm_fail(TM_EUNSUPPORTED,
                   "%s:%u:%u: %s is not supported here; silu, gelu, gelu_new and gelu_pytorch_tanh are", p->name,
                   act->line, act->column, key);
}

static tm_status sizes(const model_parser *p, const model_arch *arch, tm_model_config *c) {
    const model_size_keys *k = &arch->keys;
    int64_t vocab = arch->vocab ? (int64_t)arch->vocab : -1, heads = arch->heads ? (int64_t)arch->heads : -1;
    TM_TRY(model_key_u32(p, "vocab_size", 1, MAX_VOCAB, vocab, &c->vocab_size));
    TM_TRY(model_key_u32(p, key_of(k->hidden, "hidden_size"), 1, MAX_HIDDEN, -1, &c->hidden_size));
    int64_t four = arch->four_wide ? 4 * (int64_t)c->hidden_size : -1;
    TM_TRY(model_key_u32(p, key_of(k->intermediate, "intermediate_size"), 1, MAX_INTERMEDIATE, four,
                         &c->intermediate_size));
    TM_TRY(model_key_u32(p, key_of(k->layers, "num_hidden_layers"), 1, MAX_LAYERS, -1, &c->num_hidden_layers));
    TM_TRY(model_key_u32(p, key_of(k->heads, "num_attention_heads"), 1, MAX_HEADS, heads, &c->num_attention_heads));
    TM_TRY(model_key_u32(p, "num_key_value_heads", 1, MAX_HEADS,
                         arch->kv_heads ? arch->kv_heads : c->num_attention_heads, &c->num_key_value_heads));
    TM_TRY(model_key_u32(p, "head_dim", 2, TM_MAX_HEAD_DIM, arch->head_dim, &c->head_dim));
    TM_TRY(model_key_real(p, p->root, key_of(k->epsilon, "rms_norm_eps"), arch->epsilon > 0 ? arch->epsilon : 1e-6,
                          &c->rms_norm_eps));
    return model_key_u32(p, key_of(k->positions, "max_position_embeddings"), 1, MAX_POSITIONS,
                         arch->positions ? arch->positions : 2048, &c->max_position_embeddings);
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
    if (c->head_dim % 2 || c->head_dim > TM_MAX_HEAD_DIM)
        return tm_fail(TM_EINPUT, "%s: head_dim %u must be even and at most %d", p->name, c->head_dim, TM_MAX_HEAD_DIM);
    if (heads % c->num_key_value_heads)
        return tm_fail(TM_EINPUT, "%s: num_attention_heads %u is not a multiple of num_key_value_heads %u", p->name,
                       heads, c->num_key_value_heads);
    return TM_OK;
}

/* A composite model's head is tied by its own key, where it has one, whatever its parts say. */
static tm_status tied(const model_parser *p, const model_arch *arch, tm_model_config *c) {
    const model_parser whole = {p->name, p->outer ? p->outer : p->root, NULL};
    TM_TRY(model_key_bool(p, "tie_word_embeddings", arch->tied, &c->tie_word_embeddings));
    return model_key_bool(&whole, "tie_word_embeddings", c->tie_word_embeddings, &c->tie_word_embeddings);
}

static bool has_dropout(const model_parser *p) {
    static const char *const keys[] = {"attention_dropout", "residual_dropout", "hidden_dropout", "embedding_dropout",
                                       "attn_pdrop",        "resid_pdrop",      "embd_pdrop"};
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const tm_json *n = tm_json_get(p->root, keys[i]);
        if (n && n->type == TM_JSON_NUMBER && n->number > 0) return true;
    }
    return false;
}

static tm_status fill(const model_parser *p, tm_model_config *c) {
    if (p->root->type != TM_JSON_OBJECT) return model_key_bad(p, p->root, "a configuration", "an object");
    const model_arch *arch = NULL;
    TM_TRY(architecture(p, c, &arch));
    TM_TRY(sizes(p, arch, c));
    TM_TRY(check_heads(p, c));
    TM_TRY(special_tokens(p, c));
    TM_TRY(activation(p, arch, c));
    TM_TRY(model_key_real(p, p->root, "initializer_range", 0.02, &c->initializer_range));
    TM_TRY(tied(p, arch, c));
    c->dropout = has_dropout(p);
    c->learned_positions = arch->decoder->positions != NULL;
    c->embedding_scale = c->residual_scale = c->logits_scale = 1;
    if (arch->parse) TM_TRY(arch->parse(p, c));
    return arch->decoder->no_rotary ? TM_OK : model_parse_ropes(p, c);
}

tm_status tm_model_config_parse(tm_model_config *out, const char *json, size_t len, const char *name) {
    tm_json_doc *doc;
    *out = (tm_model_config){0};
    TM_TRY(tm_json_parse(&doc, json, len, name, 0, 0));
    const tm_json *root = tm_json_root(doc), *text = tm_json_get(root, "text_config");
    bool composite = model_present(text) && text->type == TM_JSON_OBJECT;
    out->composite = composite || model_present(tm_json_get(root, "vision_config"));
    tm_status rc = fill(&(model_parser){name, composite ? text : root, composite ? root : NULL}, out);
    tm_json_free(doc);
    return rc;
}

tm_status tm_model_check_positions(const tm_model_config *c, uint64_t positions, const char *what) {
    if (!c->learned_positions || positions <= c->max_position_embeddings) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: %llu positions, but this %s has learned %u; shorten the rows", what,
                   (unsigned long long)positions, c->model_type, c->max_position_embeddings);
}

/* ---- names ---- */

bool tm_model_find_names(tm_model_config *c, bool (*has)(void *ctx, const char *name), void *ctx) {
    /* of transformers 5, of 4, of a text model, of one without its head */
    static const struct {
        const char *body, *head;
    } known[] = {{NULL, ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}, {"", ""}};
    const model_arch *arch = model_arch_find(c->model_type);
    const char *stem = arch ? strchr(arch->decoder->embed, '.') : NULL;
    for (size_t i = 0; stem && i < TM_COUNT(known); i++) {
        char name[128];
        int own = (int)(stem + 1 - arch->decoder->embed);
        if (known[i].body)
            snprintf(c->body_names, sizeof c->body_names, "%s", known[i].body);
        else
            snprintf(c->body_names, sizeof c->body_names, "%.*s", own, arch->decoder->embed);
        snprintf(c->head_names, sizeof c->head_names, "%s", known[i].head);
        snprintf(name, sizeof name, "%s%s.weight", c->body_names, stem + 1);
        if (has(ctx, name)) return c->named = true;
    }
    return false;
}

/* ---- keys that some architectures have ---- */

tm_status model_key_refuse(const model_parser *p, const tm_model_config *c, const char *key, bool usual) {
    bool value;
    TM_TRY(model_key_bool(p, key, usual, &value));
    if (value == usual) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "%s: %s of %s is not supported", p->name, key, c->model_type);
}

tm_status model_parse_biases(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_key_bool(p, "attention_bias", false, &c->attention_bias));
    c->attention_out_bias = c->attention_bias;
    return model_key_bool(p, "mlp_bias", false, &c->mlp_bias);
}

tm_status model_key_layers(const model_parser *p, const tm_model_config *c, const char *key, const tm_json **first) {
    const tm_json *n = tm_json_get(p->root, key);
    *first = NULL;
    if (!model_present(n)) return TM_OK;
    if (n->type != TM_JSON_ARRAY || n->count != c->num_hidden_layers)
        return model_key_bad(p, n, key, "an array with an entry for each layer");
    *first = n->child;
    return TM_OK;
}

void model_layer_add(tm_layer_set *s, uint32_t layer) {
    s->bits[layer / 64] |= UINT64_C(1) << layer % 64;
}

void model_layer_remove(tm_layer_set *s, uint32_t layer) {
    s->bits[layer / 64] &= ~(UINT64_C(1) << layer % 64);
}

tm_status model_parse_window(const model_parser *p, tm_model_config *c, int64_t otherwise, uint32_t every) {
    const tm_json *window = tm_json_get(p->root, "sliding_window"), *type;
    bool none = otherwise == 0 ? !model_present(window) : window && window->type == TM_JSON_NULL;
    TM_TRY(model_key_layers(p, c, "layer_types", &type));
    for (const tm_json *t = type; t; t = t->next)
        if (!tm_json_is(t, "full_attention") && !tm_json_is(t, "sliding_attention"))
            return tm_fail(TM_EUNSUPPORTED,
                           "%s:%u:%u: layer type \"%.40s\" is not supported; full_attention and sliding_attention are",
                           p->name, t->line, t->column, t->type == TM_JSON_STRING ? t->text : "?");
    if (none) return TM_OK;
    TM_TRY(model_key_u32(p, "sliding_window", 1, INT32_MAX, otherwise, &c->sliding_window));
    for (uint32_t l = 0; l < c->num_hidden_layers; l++, type = type ? type->next : NULL)
        if (type ? tm_json_is(type, "sliding_attention") : every == 0 || (l + 1) % every != 0)
            model_layer_add(&c->windowed, l);
    return TM_OK;
}
