/* Gemma 4 (dense, text): as Gemma 3, but norms by plain weights, values normed too, scores as they are; blocks without a
 * window have heads of another size and proportional rotation, the last blocks share keys and values, each block has an
 * input of its own (its embeddings), and what it gives is multiplied by an element. */
#include "model/arch_internal.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_INPUTS = 1 << 22 }; /* columns, of all layers */

/* A number that null, or 0, says is none. */
static tm_status parse_count(const model_parser *p, const char *key, int64_t most, int64_t otherwise, uint32_t *out) {
    const tm_json *n = tm_json_get(p->root, key);
    *out = 0;
    return n && n->type == TM_JSON_NULL ? TM_OK : model_key_u32(p, key, 0, most, otherwise, out);
}

static tm_status parse_cap(const model_parser *p, tm_model_config *c) {
    const tm_json *n = tm_json_get(p->root, "final_logit_softcapping");
    return model_present(n) ? model_key_real(p, p->root, "final_logit_softcapping", -1, &c->final_softcap) : TM_OK;
}

/* {"head_dim": 512, "num_key_value_heads": 2} of a block: what blocks of its kind all have. */
static tm_status parse_override(const model_parser *p, const tm_json *e, tm_model_config *c, uint32_t *listed) {
    const model_parser of = {p->name, e, NULL};
    tm_block_kinds *k = &c->kinds;
    uint32_t dim, kv_heads;
    char *end;
    unsigned long layer = strtoul(e->key, &end, 10);
    if (*end || end == e->key || layer >= c->num_hidden_layers)
        return model_key_bad(p, e, "per_layer_config", "by the numbers of layers");
    TM_TRY(model_key_u32(&of, "head_dim", 2, TM_MAX_HEAD_DIM, c->head_dim, &dim));
    TM_TRY(model_key_u32(&of, "num_key_value_heads", 1, c->num_attention_heads, c->num_key_value_heads, &kv_heads));
    if (tm_layer_in(&c->windowed, (uint32_t)layer)) {
        if (dim == c->head_dim && kv_heads == c->num_key_value_heads) return TM_OK;
    } else if (*listed == 0 || (dim == k->full_head_dim && kv_heads == k->full_kv_heads)) {
        k->full_head_dim = dim;
        k->full_kv_heads = kv_heads;
        ++*listed;
        return TM_OK;
    }
    return tm_fail(TM_EUNSUPPORTED,
                   "%s:%u:%u: per_layer_config of layer %lu: only layers without a window may differ, and all alike",
                   p->name, e->line, e->column, layer);
}

/* transformers 5: an object for each layer that differs. Published: a key for all layers without a window. */
static tm_status parse_full_blocks(const model_parser *p, tm_model_config *c) {
    const tm_json *list = tm_json_get(p->root, "per_layer_config");
    tm_block_kinds *k = &c->kinds;
    uint32_t full = 0, listed = 0;
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) full += !tm_layer_in(&c->windowed, l);
    if (!model_present(list)) {
        TM_TRY(model_key_u32(p, "global_head_dim", 2, TM_MAX_HEAD_DIM, 512, &k->full_head_dim));
        return k->keys_are_values
                   ? model_key_u32(p, "num_global_key_value_heads", 1, c->num_attention_heads, 0, &k->full_kv_heads)
                   : TM_OK;
    }
    if (list->type != TM_JSON_OBJECT) return model_key_bad(p, list, "per_layer_config", "an object");
    for (const tm_json *e = list->child; e; e = e->next) {
        if (e->type != TM_JSON_OBJECT) return model_key_bad(p, e, "per_layer_config", "an object of objects");
        TM_TRY(parse_override(p, e, c, &listed));
    }
    if (listed == 0 || listed == full) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "%s:%u:%u: per_layer_config names %u of %u layers without a window", p->name,
                   list->line, list->column, listed, full);
}

static tm_status check_full_blocks(const model_parser *p, const tm_model_config *c) {
    const tm_block_kinds *k = &c->kinds;
    if (k->full_head_dim % 2)
        return tm_fail(TM_EINPUT, "%s: global_head_dim %u must be even", p->name, k->full_head_dim);
    if (k->full_kv_heads && c->num_attention_heads % k->full_kv_heads)
        return tm_fail(TM_EINPUT, "%s: num_attention_heads %u is not a multiple of num_global_key_value_heads %u",
                       p->name, c->num_attention_heads, k->full_kv_heads);
    return TM_OK;
}

/* Before the blocks that share there has to be one of each kind of theirs. */
static tm_status check_shared(const model_parser *p, const tm_model_config *c) {
    uint32_t own = c->num_hidden_layers - c->kinds.shared;
    bool has[2] = {false, false};
    for (uint32_t l = 0; l < own; l++) has[tm_layer_in(&c->windowed, l)] = true;
    for (uint32_t l = own; l < c->num_hidden_layers; l++)
        if (!has[tm_layer_in(&c->windowed, l)])
            return tm_fail(TM_EINPUT, "%s: layer %u shares keys and values, but no layer of its type before %u has any",
                           p->name, l, own);
    return TM_OK;
}

static tm_status parse_inputs(const model_parser *p, tm_model_config *c) {
    tm_block_kinds *k = &c->kinds;
    TM_TRY(parse_count(p, "hidden_size_per_layer_input", 1 << 16, 256, &k->input_width));
    TM_TRY(model_key_u32(p, "vocab_size_per_layer_input", 1, 1 << 26, 262144, &k->input_vocab));
    if ((uint64_t)k->input_width * c->num_hidden_layers > MAX_INPUTS)
        return tm_fail(TM_EINPUT, "%s: hidden_size_per_layer_input %u for %u layers is more than %d columns", p->name,
                       k->input_width, c->num_hidden_layers, MAX_INPUTS);
    if (k->input_width == 0 || k->input_vocab >= c->vocab_size) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: vocab_size_per_layer_input %u is less than vocab_size %u", p->name, k->input_vocab,
                   c->vocab_size);
}

static tm_status parse_gemma4(const model_parser *p, tm_model_config *c) {
    const tm_json *sees = tm_json_get(p->root, "use_bidirectional_attention");
    tm_block_kinds *k = &c->kinds;
    TM_TRY(model_key_refuse(p, c, "enable_moe_block", false));
    if (model_present(sees) && !tm_json_is(sees, "vision"))
        return tm_fail(TM_EUNSUPPORTED, "%s:%u:%u: use_bidirectional_attention is not supported for text", p->name,
                       sees->line, sees->column);
    if (!model_present(tm_json_get(p->root, "rope_parameters")))
        return tm_fail(TM_EINPUT, "%s: rope_parameters is missing", p->name);
    TM_TRY(model_parse_biases(p, c));
    c->mlp_bias = false;
    c->attention_scale = 1;
    c->embedding_scale = sqrt((double)c->hidden_size);
    TM_TRY(parse_cap(p, c));
    TM_TRY(model_parse_window(p, c, 512, 6));
    model_layer_remove(&c->windowed, c->num_hidden_layers - 1); /* as transformers has it, whatever layer_types says */
    TM_TRY(model_key_bool(p, "attention_k_eq_v", false, &k->keys_are_values));
    TM_TRY(parse_full_blocks(p, c));
    TM_TRY(check_full_blocks(p, c));
    TM_TRY(parse_count(p, "num_kv_shared_layers", c->num_hidden_layers - 1, 0, &k->shared));
    TM_TRY(check_shared(p, c));
    TM_TRY(model_key_bool(p, "use_double_wide_mlp", false, &k->shared_wide));
    return parse_inputs(p, c);
}

static const model_decoder gemma4 = {
    MODEL_USUAL_NAMES,
    .inputs = "model.embed_tokens_per_layer",
    .inputs_in = "model.per_layer_model_projection",
    .inputs_norm = "model.per_layer_projection_norm",
    .norm_v = true,
    .module = {
        MODEL_GEMMA_NAMES,
        MODEL_USUAL_QK_NORMS, [MODULE_INPUT_GATE] = "per_layer_input_gate", [MODULE_INPUT_OUT] = "per_layer_projection",
        [POST_INPUT] = "post_per_layer_input_norm", [BLOCK_SCALAR] = "layer_scalar"}};

const model_arch model_arch_gemma4 = {"gemma4_text", MODEL_GEMMA_SIZES, .vocab = 262144, .parse = parse_gemma4,
                                      .decoder = &gemma4};
