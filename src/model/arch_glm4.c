/* GLM-4: norms before and after attention and MLP, biases of q, k and v, neighbours turn in the first half of a head. */
#include "model/arch_internal.h"

static tm_status parse_glm4(const model_parser *p, tm_model_config *c) {
    return model_key_bool(p, "attention_bias", false, &c->attention_bias);
}

static const model_decoder glm4 = {MODEL_USUAL_NAMES, .interleaved = true,
                                   .module = {[NORM_ATTN] = "input_layernorm",
                                              MODEL_USUAL_QKVO,
                                              [POST_ATTN] = "post_self_attn_layernorm",
                                              [NORM_MLP] = "post_attention_layernorm",
                                              [MODULE_GATE_UP] = "mlp.gate_up_proj",
                                              [MODULE_DOWN] = "mlp.down_proj",
                                              [POST_MLP] = "post_mlp_layernorm"}};

const model_arch model_arch_glm4 = {"glm4",
                                    .kv_heads = 2,
                                    .head_dim = 128,
                                    .positions = 131072,
                                    .epsilon = 1.5625e-7,
                                    .parse = parse_glm4,
                                    .decoder = &glm4,
                                    .describe = model_describe_decoder};
