/* OLMo 2: norms after attention and MLP instead of before; q and k are normed over all their heads. */
#include "model/arch_internal.h"

static tm_status parse_olmo2(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_parse_biases(p, c));
    c->mlp_bias = false;
    return TM_OK;
}

static const model_decoder olmo2 = {.embed = "model.embed_tokens",
                                    .blocks = "model.layers.",
                                    .norm = "model.norm",
                                    .head = "lm_head",
                                    .norm_q_whole = true,
                                    .module = {[MODULE_Q] = "self_attn.q_proj",
                                               [MODULE_K] = "self_attn.k_proj",
                                               [MODULE_V] = "self_attn.v_proj",
                                               [MODULE_O] = "self_attn.o_proj",
                                               [NORM_Q] = "self_attn.q_norm",
                                               [NORM_K] = "self_attn.k_norm",
                                               [POST_ATTN] = "post_attention_layernorm",
                                               [MODULE_GATE] = "mlp.gate_proj",
                                               [MODULE_UP] = "mlp.up_proj",
                                               [MODULE_DOWN] = "mlp.down_proj",
                                               [POST_MLP] = "post_feedforward_layernorm"}};

const model_arch model_arch_olmo2 = {"olmo2", .epsilon = 1e-5, .parse = parse_olmo2, .decoder = &olmo2,
                                     .describe = model_describe_decoder};
