/* Seed-OSS: Llama with biases of q, k, v and of o, each by a key of its own. */
#include "model/arch_internal.h"

static tm_status parse_seed_oss(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_key_bool(p, "attention_bias", true, &c->attention_bias));
    TM_TRY(model_key_bool(p, "attention_out_bias", false, &c->attention_out_bias));
    return model_key_bool(p, "mlp_bias", false, &c->mlp_bias);
}

const model_arch model_arch_seed_oss = {"seed_oss",
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .positions = 524288,
                                        .parse = parse_seed_oss,
                                        .decoder = &model_decoder_llama,
                                        .describe = model_describe_decoder};
