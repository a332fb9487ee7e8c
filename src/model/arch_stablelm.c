/* StableLM 2: Llama with LayerNorms, biases of q, k and v by a key, and rotary embedding of a part of each head. */
#include "model/arch_internal.h"

static tm_status parse_stablelm(const model_parser *p, tm_model_config *c) {
    const tm_json *v5 = tm_json_get(p->root, "rope_parameters");
    TM_TRY(model_key_refuse(p, c, "qk_layernorm", false));
    TM_TRY(model_key_refuse(p, c, "use_parallel_residual", false));
    if (!model_present(tm_json_get(p->root, "partial_rotary_factor")) &&
        !model_present(tm_json_get(v5, "partial_rotary_factor")))
        return tm_fail(TM_EINPUT, "%s: partial_rotary_factor is missing, which a stablelm says", p->name);
    return model_key_bool(p, "use_qkv_bias", false, &c->attention_bias);
}

static const model_decoder stablelm = {MODEL_USUAL_NAMES, .norm_kind = TM_NORM_LAYER,
                                       .module = {MODEL_USUAL_NORMS, MODEL_USUAL_QKVO, MODEL_USUAL_GATED}};

const model_arch model_arch_stablelm = {"stablelm",
                                        .positions = 4096,
                                        .epsilon = 1e-5,
                                        .keys = {.epsilon = "layer_norm_eps"},
                                        .parse = parse_stablelm,
                                        .decoder = &stablelm,
                                        .describe = model_describe_decoder};
