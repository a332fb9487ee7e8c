/* Granite: Llama with multipliers of embeddings, scores, residuals and logits. */
#include "model/arch_internal.h"

static tm_status parse_granite(const model_parser *p, tm_model_config *c) {
    TM_TRY(model_parse_biases(p, c));
    TM_TRY(model_key_real(p, p->root, "embedding_multiplier", 1, &c->embedding_scale));
    TM_TRY(model_key_real(p, p->root, "attention_multiplier", 1, &c->attention_scale));
    TM_TRY(model_key_real(p, p->root, "residual_multiplier", 1, &c->residual_scale));
    if (c->residual_scale != 1 && (c->attention_out_bias || c->mlp_bias))
        return tm_fail(TM_EUNSUPPORTED, "%s: residual_multiplier beside attention_bias or mlp_bias is not supported",
                       p->name);
    return model_key_real(p, p->root, "logits_scaling", 1, &c->logits_scale);
}

const model_arch model_arch_granite = {"granite", .parse = parse_granite, .decoder = &model_decoder_llama,
                                       .describe = model_describe_decoder};
