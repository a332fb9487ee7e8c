/* OLMo 2: norms after attention and MLP instead of before; q and k are normed over all their heads. */
#include "model/arch_internal.h"

static tm_status parse_olmo2(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_parse_biases(p, c));
    c->mlp_bias = false;
    return TM_OK;
}

static const model_decoder olmo2 = {MODEL_USUAL_NAMES, .norm_q_whole = true,
                                    .module = {MODEL_USUAL_QKVO,
                                               MODEL_USUAL_QK_NORMS, [POST_ATTN] = "post_attention_layernorm",
                                               MODEL_USUAL_GATED, [POST_MLP] = "post_feedforward_layernorm"}};

const model_arch model_arch_olmo2 = {"olmo2", .epsilon = 1e-5, .parse = parse_olmo2, .decoder = &olmo2,
                                     .describe = model_describe_decoder};
