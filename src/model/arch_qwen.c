/* Qwen2, Qwen2.5: Llama with biases on q, k and v, always. Qwen3: with norms of q and k by heads instead. */
#include "model/arch_internal.h"

/* use_sliding_window: of layers from max_window_layers on, unless layer_types says otherwise. */
static tm_status parse_window(const model_parser *p, tm_model_config *c) {
    bool window;
    uint32_t first;
    TM_TRY(model_key_bool(p, "use_sliding_window", false, &window));
    if (!window) return TM_OK;
    TM_TRY(model_parse_window(p, c, 4096, 0));
    if (model_present(tm_json_get(p->root, "layer_types"))) return TM_OK;
    TM_TRY(model_key_u32(p, "max_window_layers", 0, INT32_MAX, 28, &first));
    c->windowed = (tm_layer_set){{0}};
    for (uint32_t l = first; l < c->num_hidden_layers; l++) model_layer_add(&c->windowed, l);
    return TM_OK;
}

static tm_status parse_qwen2(const model_parser *p, tm_model_config *c) {
    c->attention_bias = true;
    return parse_window(p, c);
}

static tm_status parse_qwen3(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_parse_biases(p, c));
    c->mlp_bias = false;
    return parse_window(p, c);
}

static const model_decoder qwen3 = {
    MODEL_USUAL_NAMES, .module = {MODEL_USUAL_NORMS, MODEL_USUAL_QKVO, MODEL_USUAL_QK_NORMS, MODEL_USUAL_GATED}};

const model_arch model_arch_qwen2 = {"qwen2",
                                     .kv_heads = 32,
                                     .positions = 32768,
                                     .parse = parse_qwen2,
                                     .decoder = &model_decoder_llama,
                                     .describe = model_describe_decoder};
const model_arch model_arch_qwen3 = {"qwen3",
                                     .kv_heads = 32,
                                     .head_dim = 128,
                                     .positions = 32768,
                                     .parse = parse_qwen3,
                                     .decoder = &qwen3,
                                     .describe = model_describe_decoder};
