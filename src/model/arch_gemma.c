/* Gemma 2 and 3 (text): norms by 1 + w before and after attention and MLP, scaled embeddings, gelu, windows by turns;
 * Gemma 2 caps scores and logits, Gemma 3 norms q and k by heads and has a rotary base of its own for windows. */
#include "model/arch_internal.h"

#include <math.h>

/* Scores are multiplied by query_pre_attn_scalar^-1/2, embeddings by the root of their width. */
static tm_status parse_scales(const model_parser *p, tm_model_config *c) {
    double scalar;
    TM_TRY(model_parse_biases(p, c));
    c->mlp_bias = false;
    TM_TRY(model_key_real(p, p->root, "query_pre_attn_scalar", 256, &scalar));
    c->attention_scale = 1 / sqrt(scalar);
    c->embedding_scale = sqrt((double)c->hidden_size);
    return TM_OK;
}

/* A cap that is null is none; one that is absent is `otherwise`. */
static tm_status parse_cap(const model_parser *p, const char *key, double otherwise, double *out) {
    const tm_json *n = tm_json_get(p->root, key);
    *out = 0;
    return n && n->type == TM_JSON_NULL ? TM_OK : model_key_real(p, p->root, key, otherwise, out);
}

static tm_status parse_gemma2(const model_parser *p, tm_model_config *c) {
    TM_TRY(parse_scales(p, c));
    TM_TRY(parse_cap(p, "attn_logit_softcapping", 50, &c->attention_softcap));
    TM_TRY(parse_cap(p, "final_logit_softcapping", 30, &c->final_softcap));
    return model_parse_window(p, c, 4096, 2);
}

static tm_status parse_gemma3(const model_parser *p, tm_model_config *c) {
    uint32_t every;
    TM_TRY(parse_scales(p, c));
    TM_TRY(parse_cap(p, "final_logit_softcapping", 0, &c->final_softcap)); /* transformers caps no scores here */
    TM_TRY(model_key_u32(p, "_sliding_window_pattern", 1, INT32_MAX, 6, &every));
    TM_TRY(model_key_u32(p, "sliding_window_pattern", 1, INT32_MAX, every, &every));
    c->rope.theta = 1e6;
    c->rope_windowed.theta = 1e4;
    return model_parse_window(p, c, 4096, every);
}

static const model_decoder gemma2 = {MODEL_USUAL_NAMES, .norm_kind = TM_NORM_RMS_PLUS, .module = {MODEL_GEMMA_NAMES}};
static const model_decoder gemma3 = {MODEL_USUAL_NAMES, .norm_kind = TM_NORM_RMS_PLUS,
                                     .module = {MODEL_GEMMA_NAMES, MODEL_USUAL_QK_NORMS}};

const model_arch model_arch_gemma2 = {"gemma2",
                                      .kv_heads = 4,
                                      .head_dim = 256,
                                      .positions = 8192,
                                      .tied = true,
                                      .activation = TM_ACT_GELU_TANH,
                                      .keys = {.activation = "hidden_activation"},
                                      .parse = parse_gemma2,
                                      .decoder = &gemma2,
                                      .describe = model_describe_decoder};
const model_arch model_arch_gemma3 = {"gemma3_text", MODEL_GEMMA_SIZES, .vocab = 262208, .parse = parse_gemma3,
                                      .decoder = &gemma3};
