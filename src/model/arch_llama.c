/* Llama (also SmolLM, TinyLlama), and Mistral: the same with a window and other defaults. */
#include "model/arch_internal.h"

static tm_status parse_llama(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_key_bool(p, "attention_bias", false, &c->attention_bias));
    c->attention_out_bias = c->attention_bias;
    return model_key_bool(p, "mlp_bias", false, &c->mlp_bias);
}

/* "sliding_window": null is no window; without the key it is the first Mistral's. */
static tm_status parse_mistral(const model_parser *p, tm_model_config *c) {
    const tm_json *window = tm_json_get(p->root, "sliding_window");
    if (window && window->type == TM_JSON_NULL) return TM_OK;
    return model_key_u32(p, "sliding_window", 1, INT32_MAX, 4096, &c->sliding_window);
}

const model_arch model_arch_llama = {"llama", .parse = parse_llama, .describe = model_describe_decoder};
const model_arch model_arch_mistral = {"mistral", .kv_heads = 8, .positions = 131072, .parse = parse_mistral,
                                       .describe = model_describe_decoder};
