/* Llama (also SmolLM, TinyLlama), and Mistral: the same with a window and other defaults. */
#include "model/arch_internal.h"

/* Without the key it is the first Mistral's. */
static tm_status parse_mistral(const model_parser *p, tm_model_config *c) {
    return model_parse_window(p, c, 4096, 0);
}

const model_arch model_arch_llama = {"llama", .parse = model_parse_biases, .decoder = &model_decoder_llama,
                                     .describe = model_describe_decoder};
const model_arch model_arch_mistral = {"mistral",
                                       .kv_heads = 8,
                                       .positions = 131072,
                                       .parse = parse_mistral,
                                       .decoder = &model_decoder_llama,
                                       .describe = model_describe_decoder};
