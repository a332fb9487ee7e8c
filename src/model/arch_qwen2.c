/* Qwen2, Qwen2.5: Llama with biases on q, k and v, always. */
#include "model/arch_internal.h"

static tm_status parse_qwen2(const model_parser *p, tm_model_config *c) {
    bool window;
    TM_TRY(model_key_bool(p, "use_sliding_window", false, &window)); /* of layers from max_window_layers on */
    if (window) return tm_fail(TM_EUNSUPPORTED, "%s: use_sliding_window of qwen2 is not supported", p->name);
    c->attention_bias = true;
    return TM_OK;
}

const model_arch model_arch_qwen2 = {"qwen2", .kv_heads = 32, .positions = 32768, .parse = parse_qwen2,
                                     .describe = model_describe_decoder};
