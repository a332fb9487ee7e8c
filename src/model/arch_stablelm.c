/* StableLM 2: Llama with LayerNorms, biases of q, k and v by a key, and rotary embedding of a part of each head. */
#include "model/arch_internal.h"

static tm_status refuse(const model_parser *p, const char *key) {
    bool value;
    TM_TRY(model_key_bool(p, key, false, &value));
    return value ? tm_fail(TM_EUNSUPPORTED, "%s: %s of stablelm is not supported", p->name, key) : TM_OK;
}

static tm_status parse_stablelm(const model_parser *p, tm_model_config *c) {
    const tm_json *v5 = tm_json_get(p->root, "rope_parameters");
    TM_TRY(refuse(p, "qk_layernorm"));
    TM_TRY(refuse(p, "use_parallel_residual"));
    if (!model_present(tm_json_get(p->root, "partial_rotary_factor")) &&
        !model_present(tm_json_get(v5, "partial_rotary_factor")))
        return tm_fail(TM_EINPUT, "%s: partial_rotary_factor is missing, which a stablelm says", p->name);
    return model_key_bool(p, "use_qkv_bias", false, &c->attention_bias);
}

static const model_decoder stablelm = {.embed = "model.embed_tokens",
                                       .blocks = "model.layers.",
                                       .norm = "model.norm",
                                       .head = "lm_head",
                                       .norm_kind = TM_NORM_LAYER,
                                       .module = {[NORM_ATTN] = "input_layernorm",
                                                  [MODULE_Q] = "self_attn.q_proj",
                                                  [MODULE_K] = "self_attn.k_proj",
                                                  [MODULE_V] = "self_attn.v_proj",
                                                  [MODULE_O] = "self_attn.o_proj",
                                                  [NORM_MLP] = "post_attention_layernorm",
                                                  [MODULE_GATE] = "mlp.gate_proj",
                                                  [MODULE_UP] = "mlp.up_proj",
                                                  [MODULE_DOWN] = "mlp.down_proj"}};

static const model_size_keys keys = {"hidden_size",         "intermediate_size",       "num_hidden_layers",
                                     "num_attention_heads", "max_position_embeddings", "layer_norm_eps",
                                     "hidden_act"};

const model_arch model_arch_stablelm = {"stablelm",
                                        .positions = 4096,
                                        .epsilon = 1e-5,
                                        .keys = &keys,
                                        .parse = parse_stablelm,
                                        .decoder = &stablelm,
                                        .describe = model_describe_decoder};
