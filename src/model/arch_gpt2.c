/* GPT-2: LayerNorms and biases everywhere, learned positions, a plain MLP, weights [in, out]. */
#include "model/arch_internal.h"

static tm_status parse_gpt2(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_key_refuse(p, c, "scale_attn_weights", true));
    TM_TRY(model_key_refuse(p, c, "scale_attn_by_inverse_layer_idx", false));
    TM_TRY(model_key_refuse(p, c, "reorder_and_upcast_attn", false));
    TM_TRY(model_key_refuse(p, c, "add_cross_attention", false));
    c->attention_bias = c->attention_out_bias = c->mlp_bias = true;
    return TM_OK;
}

static const model_decoder gpt2 = {.embed = "transformer.wte",
                                   .positions = "transformer.wpe",
                                   .blocks = "transformer.h.",
                                   .norm = "transformer.ln_f",
                                   .head = "lm_head",
                                   .norm_kind = TM_NORM_LAYER,
                                   .transposed = true,
                                   .no_rotary = true,
                                   .module = {[NORM_ATTN] = "ln_1",
                                              [MODULE_QKV] = "attn.c_attn",
                                              [MODULE_O] = "attn.c_proj",
                                              [NORM_MLP] = "ln_2",
                                              [MODULE_UP] = "mlp.c_fc",
                                              [MODULE_DOWN] = "mlp.c_proj"}};

const model_arch model_arch_gpt2 = {
    "gpt2",
    .positions = 1024,
    .epsilon = 1e-5,
    .tied = true,
    .four_wide = true,
    .activation = TM_ACT_GELU_TANH,
    .keys = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions", "layer_norm_epsilon", "activation_function"},
    .parse = parse_gpt2,
    .decoder = &gpt2,
    .describe = model_describe_decoder};
