/* Llama (also SmolLM, TinyLlama); Mistral: the same with a window and other defaults; Ministral 3: the same with scores
 * that grow with the position. */
#include "model/arch_internal.h"

/* Without the key it is the first Mistral's. */
static tm_status parse_mistral(const model_parser *p, tm_model_config *c) {
    return model_parse_window(p, c, 4096, 0);
}

/* llama_4_scaling_beta, beside yarn's keys: scores of a query times 1 + beta ln(1 + floor(position / original)). */
static tm_status parse_ministral3(const model_parser *p, tm_model_config *c) {
    const tm_json *v5 = tm_json_get(p->root, "rope_parameters"), *v4 = tm_json_get(p->root, "rope_scaling");
    const tm_json *rope = model_present(v5) ? v5 : v4;
    double original;
    TM_TRY(model_parse_window(p, c, 0, 0));
    if (!model_present(tm_json_get(rope, "llama_4_scaling_beta"))) return TM_OK;
    TM_TRY(model_key_real(p, rope, "llama_4_scaling_beta", -1, &c->temperature));
    TM_TRY(model_key_real(p, rope, "original_max_position_embeddings", -1, &original));
    if (original < 1 || original > MODEL_MAX_POSITIONS)
        return model_key_bad(p, rope, "original_max_position_embeddings", "a number of positions");
    c->temperature_every = (uint32_t)original;
    return TM_OK;
}

const model_arch model_arch_llama = {"llama", .parse = model_parse_biases, .decoder = &model_decoder_llama,
                                     .describe = model_describe_decoder};
const model_arch model_arch_mistral = {"mistral",
                                       .kv_heads = 8,
                                       .positions = 131072,
                                       .parse = parse_mistral,
                                       .decoder = &model_decoder_llama,
                                       .describe = model_describe_decoder};
const model_arch model_arch_ministral3 = {"ministral3",
                                          .kv_heads = 8,
                                          .head_dim = 128,
                                          .positions = 262144,
                                          .epsilon = 1e-5,
                                          .parse = parse_ministral3,
                                          .decoder = &model_decoder_llama,
                                          .describe = model_describe_decoder};
