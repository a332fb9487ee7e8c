/* StarCoder2: LayerNorms, biases, and an MLP without a gate; rotary embedding, grouped queries, a window. */
#include "model/arch_internal.h"

static tm_status parse_starcoder2(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_key_bool(p, "use_bias", true, &c->attention_bias));
    c->attention_out_bias = c->mlp_bias = c->attention_bias;
    return model_parse_window(p, c, 0, 0);
}

static const model_decoder starcoder2 = {.embed = "model.embed_tokens",
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
                                                    [MODULE_UP] = "mlp.c_fc",
                                                    [MODULE_DOWN] = "mlp.c_proj"}};

static const model_size_keys keys = {"hidden_size",         "intermediate_size",       "num_hidden_layers",
                                     "num_attention_heads", "max_position_embeddings", "norm_epsilon",
                                     "hidden_act"};

const model_arch model_arch_starcoder2 = {"starcoder2",           .kv_heads = 2,
                                          .positions = 4096,      .epsilon = 1e-5,
                                          .tied = true,           .activation = TM_ACT_GELU_TANH,
                                          .keys = &keys,          .parse = parse_starcoder2,
                                          .decoder = &starcoder2, .describe = model_describe_decoder};
