/* StarCoder2: LayerNorms, biases, and an MLP without a gate; rotary embedding, grouped queries, a window. */
#include "model/arch_internal.h"

static tm_status parse_starcoder2(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_key_bool(p, "use_bias", true, &c->attention_bias));
    c->attention_out_bias = c->mlp_bias = c->attention_bias;
    return model_parse_window(p, c, 0, 0);
}

static const model_decoder starcoder2 = {
    MODEL_USUAL_NAMES, .norm_kind = TM_NORM_LAYER,
    .module = {MODEL_USUAL_NORMS, MODEL_USUAL_QKVO, [MODULE_UP] = "mlp.c_fc", [MODULE_DOWN] = "mlp.c_proj"}};

const model_arch model_arch_starcoder2 = {"starcoder2",
                                          .kv_heads = 2,
                                          .positions = 4096,
                                          .epsilon = 1e-5,
                                          .tied = true,
                                          .activation = TM_ACT_GELU_TANH,
                                          .keys = {.epsilon = "norm_epsilon"},
                                          .parse = parse_starcoder2,
                                          .decoder = &starcoder2,
                                          .describe = model_describe_decoder};
