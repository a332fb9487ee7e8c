/* The architectures that GGUF is read and written for, a row each: what they are called there and in config.json.
 * Names and keys: gguf-py's constants.py and tensor_mapping.py, llama.cpp's conversion scripts and loaders. */
#include "format/gguf_internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- tensors ---- */

static const tm_gguf_name decoder_global[] = {{"token_embd", "model.embed_tokens", TM_OP_PLAIN},
                                              {"output_norm", "model.norm", TM_OP_PLAIN},
                                              {"output", "lm_head", TM_OP_PLAIN},
                                              {0}};
static const tm_gguf_name gemma_global[] = {{"token_embd", "model.embed_tokens", TM_OP_PLAIN},
                                            {"output_norm", "model.norm", TM_OP_ADD_ONE},
                                            {"output", "lm_head", TM_OP_PLAIN},
                                            {0}};
static const tm_gguf_name gpt2_global[] = {{"token_embd", "transformer.wte", TM_OP_PLAIN},
                                           {"position_embd", "transformer.wpe", TM_OP_PLAIN},
                                           {"output_norm", "transformer.ln_f", TM_OP_PLAIN},
                                           {"output", "lm_head", TM_OP_PLAIN},
                                           {0}};

static const tm_gguf_name attention[] = {{"attn_q", "self_attn.q_proj", TM_OP_Q},
                                         {"attn_k", "self_attn.k_proj", TM_OP_K},
                                         {"attn_v", "self_attn.v_proj", TM_OP_PLAIN},
                                         {"attn_output", "self_attn.o_proj", TM_OP_PLAIN},
                                         {0}};
static const tm_gguf_name head_norms[] = {
    {"attn_q_norm", "self_attn.q_norm", TM_OP_PLAIN}, {"attn_k_norm", "self_attn.k_norm", TM_OP_PLAIN}, {0}};
static const tm_gguf_name swiglu[] = {{"ffn_gate", "mlp.gate_proj", TM_OP_PLAIN},
                                      {"ffn_up", "mlp.up_proj", TM_OP_PLAIN},
                                      {"ffn_down", "mlp.down_proj", TM_OP_PLAIN},
                                      {0}};
static const tm_gguf_name fused_swiglu[] = {
    {"ffn_up", "mlp.gate_up_proj", TM_OP_PLAIN}, {"ffn_down", "mlp.down_proj", TM_OP_PLAIN}, {0}};
static const tm_gguf_name norms_before[] = {
    {"attn_norm", "input_layernorm", TM_OP_PLAIN}, {"ffn_norm", "post_attention_layernorm", TM_OP_PLAIN}, {0}};
static const tm_gguf_name norms_after[] = {{"post_attention_norm", "post_attention_layernorm", TM_OP_PLAIN},
                                           {"post_ffw_norm", "post_feedforward_layernorm", TM_OP_PLAIN},
                                           {0}};
static const tm_gguf_name phi3_attention[] = {
    {"attn_qkv", "self_attn.qkv_proj", TM_OP_PLAIN}, {"attn_output", "self_attn.o_proj", TM_OP_PLAIN}, {0}};
static const tm_gguf_name glm4_norms[] = {{"attn_norm", "input_layernorm", TM_OP_PLAIN},
                                          {"post_attention_norm", "post_self_attn_layernorm", TM_OP_PLAIN},
                                          {"ffn_norm", "post_attention_layernorm", TM_OP_PLAIN},
                                          {"post_ffw_norm", "post_mlp_layernorm", TM_OP_PLAIN},
                                          {0}};
static const tm_gguf_name gemma_norms[] = {{"attn_norm", "input_layernorm", TM_OP_ADD_ONE},
                                           {"post_attention_norm", "post_attention_layernorm", TM_OP_ADD_ONE},
                                           {"ffn_norm", "pre_feedforward_layernorm", TM_OP_ADD_ONE},
                                           {"post_ffw_norm", "post_feedforward_layernorm", TM_OP_ADD_ONE},
                                           {0}};
static const tm_gguf_name gemma_head_norms[] = {
    {"attn_q_norm", "self_attn.q_norm", TM_OP_ADD_ONE}, {"attn_k_norm", "self_attn.k_norm", TM_OP_ADD_ONE}, {0}};
static const tm_gguf_name gemma4_global[] = {{"token_embd", "model.embed_tokens", TM_OP_PLAIN},
                                             {"output_norm", "model.norm", TM_OP_PLAIN},
                                             {"output", "lm_head", TM_OP_PLAIN},
                                             {"per_layer_token_embd", "model.embed_tokens_per_layer", TM_OP_PLAIN},
                                             {"per_layer_model_proj", "model.per_layer_model_projection", TM_OP_PLAIN},
                                             {"per_layer_proj_norm", "model.per_layer_projection_norm", TM_OP_PLAIN},
                                             {0}};
static const tm_gguf_name gemma4_attention[] = {{"attn_q", "self_attn.q_proj", TM_OP_PLAIN},
                                                {"attn_k", "self_attn.k_proj", TM_OP_PLAIN},
                                                {"attn_v", "self_attn.v_proj", TM_OP_PLAIN},
                                                {"attn_output", "self_attn.o_proj", TM_OP_PLAIN},
                                                {"attn_q_norm", "self_attn.q_norm", TM_OP_PLAIN},
                                                {"attn_k_norm", "self_attn.k_norm", TM_OP_PLAIN},
                                                {0}};
static const tm_gguf_name gemma4_norms[] = {{"attn_norm", "input_layernorm", TM_OP_PLAIN},
                                            {"post_attention_norm", "post_attention_layernorm", TM_OP_PLAIN},
                                            {"ffn_norm", "pre_feedforward_layernorm", TM_OP_PLAIN},
                                            {"post_ffw_norm", "post_feedforward_layernorm", TM_OP_PLAIN},
                                            {0}};
static const tm_gguf_name gemma4_inputs[] = {{"inp_gate", "per_layer_input_gate", TM_OP_PLAIN},
                                             {"proj", "per_layer_projection", TM_OP_PLAIN},
                                             {"post_norm", "post_per_layer_input_norm", TM_OP_PLAIN},
                                             {"layer_output_scale", "layer_scalar", TM_OP_BARE},
                                             {0}};
static const tm_gguf_name gpt2_block[] = {{"attn_norm", "ln_1", TM_OP_PLAIN},
                                          {"attn_qkv", "attn.c_attn", TM_OP_TRANSPOSE},
                                          {"attn_output", "attn.c_proj", TM_OP_TRANSPOSE},
                                          {"ffn_norm", "ln_2", TM_OP_PLAIN},
                                          {"ffn_up", "mlp.c_fc", TM_OP_TRANSPOSE},
                                          {"ffn_down", "mlp.c_proj", TM_OP_TRANSPOSE},
                                          {0}};

/* ---- keys ---- */

#define AT(member) offsetof(tm_gguf_keys, member)
#define KEY(is, needed, in_gguf, in_json, member, ...)                                                                 \
    { .gguf = in_gguf, .json = in_json, .kind = TM_KEY_##is, .need = TM_NEED_##needed, .at = AT(member), __VA_ARGS__ }
#define SIZE(gguf, json, member) KEY(SIZE, BOTH, gguf, json, member)
#define BIAS(json, member) KEY(BIAS, NOT, NULL, json, member)
/* What classes of transformers have, and GGUF has no word for. MUST: another value would be another model. */
#define SAYS(json_key, text)                                                                                           \
    { .json = json_key, .kind = TM_KEY_CONSTANT, .constant = text }
#define MUST(json_key, text)                                                                                           \
    { .json = json_key, .kind = TM_KEY_CONSTANT, .constant = text, .must = true }

static const tm_key decoder_keys[] = {
    SIZE("embedding_length", "hidden_size", hidden_size),
    SIZE("block_count", "num_hidden_layers", layers),
    SIZE("feed_forward_length", "intermediate_size", intermediate_size),
    KEY(SIZE, FILE, "context_length", "max_position_embeddings", context, .absent = 2048),
    SIZE("attention.head_count", "num_attention_heads", heads),
    KEY(SIZE, NOT, "attention.head_count_kv", "num_key_value_heads", kv_heads, .absent = 1, .from = AT(heads)),
    KEY(REAL, FILE, "attention.layer_norm_rms_epsilon", "rms_norm_eps", norm_eps, .absent = 1e-6),
    SAYS("attention_dropout", "0.0"),
    {0}};

static const tm_key llama_keys[] = {
    BIAS("attention_bias", attention_bias), BIAS("mlp_bias", mlp_bias), MUST("hidden_act", "\"silu\""), {0}};
static const tm_key mistral_keys[] = {KEY(SIZE, OPTIONAL, "attention.sliding_window", "sliding_window", sliding_window),
                                      MUST("hidden_act", "\"silu\""),
                                      {0}};
static const tm_key ministral3_keys[] = {SAYS("sliding_window", "null"), MUST("hidden_act", "\"silu\""), {0}};
static const tm_key qwen2_keys[] = {
    MUST("hidden_act", "\"silu\""), SAYS("sliding_window", "null"), MUST("use_sliding_window", "false"), {0}};
static const tm_key qwen3_keys[] = {BIAS("attention_bias", attention_bias),
                                    MUST("hidden_act", "\"silu\""),
                                    SAYS("sliding_window", "null"),
                                    MUST("use_sliding_window", "false"),
                                    {0}};
static const tm_key olmo2_keys[] = {BIAS("attention_bias", attention_bias), MUST("hidden_act", "\"silu\""), {0}};
static const tm_key smollm3_keys[] = {BIAS("attention_bias", attention_bias), BIAS("mlp_bias", mlp_bias),
                                      MUST("hidden_act", "\"silu\""),         SAYS("sliding_window", "null"),
                                      MUST("use_sliding_window", "false"),    {0}};
static const tm_key granite_keys[] = {
    BIAS("attention_bias", attention_bias),
    BIAS("mlp_bias", mlp_bias),
    MUST("hidden_act", "\"silu\""),
    KEY(REAL, NOT, "attention.scale", "attention_multiplier", attention_scale, .absent = 1),
    KEY(REAL, NOT, "embedding_scale", "embedding_multiplier", embedding_scale, .absent = 1),
    KEY(REAL, NOT, "residual_scale", "residual_multiplier", residual_scale, .absent = 1),
    KEY(REAL, NOT, "logit_scale", "logits_scaling", logit_scale, .absent = 1),
    {0}};
static const tm_key phi3_keys[] = {KEY(SIZE, ZERO, "attention.sliding_window", "sliding_window", sliding_window),
                                   KEY(SIZE, NOT, "rope.scaling.original_context_length",
                                       "original_max_position_embeddings", rope.original, .absent = 1,
                                       .from = AT(context)),
                                   SAYS("embd_pdrop", "0.0"),
                                   MUST("hidden_act", "\"silu\""),
                                   SAYS("resid_pdrop", "0.0"),
                                   {0}};
static const tm_key gemma2_keys[] = {
    KEY(REAL, ZERO, "attn_logit_softcapping", "attn_logit_softcapping", attention_cap, .absent = 50),
    KEY(REAL, ZERO, "final_logit_softcapping", "final_logit_softcapping", final_cap, .absent = 30),
    KEY(SIZE, NOT, "attention.sliding_window", "sliding_window", sliding_window, .absent = 4096),
    KEY(QUERY, NOT, "attention.scale", "query_pre_attn_scalar", query_scalar, .absent = 46),
    BIAS("attention_bias", attention_bias),
    MUST("hidden_activation", "\"gelu_pytorch_tanh\""),
    MUST("use_bidirectional_attention", "false"),
    {0}};
static const tm_key gemma3_keys[] = {
    KEY(REAL, OPTIONAL, "attn_logit_softcapping", "attn_logit_softcapping", attention_cap),
    KEY(REAL, OPTIONAL, "final_logit_softcapping", "final_logit_softcapping", final_cap),
    KEY(SIZE, NOT, "attention.sliding_window", "sliding_window", sliding_window, .absent = 4096),
    KEY(QUERY, NOT, "attention.scale", "query_pre_attn_scalar", query_scalar, .absent = 62),
    BIAS("attention_bias", attention_bias),
    MUST("hidden_activation", "\"gelu_pytorch_tanh\""),
    MUST("use_bidirectional_attention", "false"),
    {0}};
static const tm_key gemma4_keys[] = {
    SIZE("embedding_length", "hidden_size", hidden_size),
    SIZE("block_count", "num_hidden_layers", layers),
    KEY(SIZE, BOTH, NULL, "intermediate_size", intermediate_size),
    KEY(SIZE, FILE, "context_length", "max_position_embeddings", context, .absent = 131072),
    SIZE("attention.head_count", "num_attention_heads", heads),
    KEY(SIZE, NOT, NULL, "num_key_value_heads", kv_heads, .absent = 1, .from = AT(heads)),
    KEY(REAL, FILE, "attention.layer_norm_rms_epsilon", "rms_norm_eps", norm_eps, .absent = 1e-6),
    KEY(REAL, ZERO, "final_logit_softcapping", "final_logit_softcapping", final_cap), /* absent: llama.cpp takes 30 */
    KEY(SIZE, NOT, "attention.sliding_window", "sliding_window", sliding_window, .absent = 512),
    KEY(SIZE, COUNT, "attention.shared_kv_layers", "num_kv_shared_layers", by_layer.shared),
    KEY(SIZE, COUNT, "embedding_length_per_layer_input", "hidden_size_per_layer_input", by_layer.input),
    KEY(SIZE, NOT, NULL, "vocab_size_per_layer_input", by_layer.input_vocab, .absent = 1, .from = AT(vocab_size)),
    KEY(SIZE, OPTIONAL, NULL, "num_global_key_value_heads", by_layer.global_kv_heads),
    KEY(SIZE, OPTIONAL, NULL, "global_head_dim", by_layer.global_head_dim),
    BIAS("attention_bias", attention_bias),
    BIAS("attention_k_eq_v", by_layer.keys_are_values),
    BIAS("use_double_wide_mlp", by_layer.wide),
    MUST("hidden_activation", "\"gelu_pytorch_tanh\""),
    MUST("enable_moe_block", "false"),
    SAYS("attention_dropout", "0.0"),
    SAYS("moe_intermediate_size", "null"),
    SAYS("num_experts", "null"),
    SAYS("top_k_experts", "null"),
    SAYS("use_bidirectional_attention", "null"),
    {0}};
static const tm_key gpt2_keys[] = {
    SIZE("embedding_length", "n_embd", hidden_size),
    SIZE("block_count", "n_layer", layers),
    KEY(SIZE, FILE, "feed_forward_length", "n_inner", intermediate_size, .absent = 4, .from = AT(hidden_size)),
    KEY(SIZE, FILE, "context_length", "n_positions", context, .absent = 1024),
    SIZE("attention.head_count", "n_head", heads),
    KEY(SIZE, NOT, "attention.head_count_kv", NULL, kv_heads, .absent = 1, .from = AT(heads)),
    KEY(REAL, FILE, "attention.layer_norm_epsilon", "layer_norm_epsilon", norm_eps, .absent = 1e-5),
    MUST("activation_function", "\"gelu_new\""),
    SAYS("attn_pdrop", "0.0"),
    SAYS("embd_pdrop", "0.0"),
    SAYS("reorder_and_upcast_attn", "false"),
    SAYS("resid_pdrop", "0.0"),
    MUST("scale_attn_by_inverse_layer_idx", "false"),
    MUST("scale_attn_weights", "true"),
    {0}};

/* ---- rows ---- */

static const tm_gguf_arch archs[] = {
    {.type = "llama",
     .also = "also Mistral, SmolLM, TinyLlama",
     .model_type = "llama",
     .class = "LlamaForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, llama_keys},
     .flags = TM_ARCH_PERMUTES},
    {.type = "llama",
     .model_type = "mistral",
     .class = "MistralForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, mistral_keys},
     .flags = TM_ARCH_PERMUTES | TM_ARCH_WINDOWED},
    {.type = "qwen2",
     .model_type = "qwen2",
     .class = "Qwen2ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, qwen2_keys}},
    {.type = "qwen3",
     .model_type = "qwen3",
     .class = "Qwen3ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, head_norms, swiglu},
     .keys = {decoder_keys, qwen3_keys},
     .head_dim = 128},
    {.type = "phi3",
     .also = "also Phi-3.5, Phi-4",
     .model_type = "phi3",
     .class = "Phi3ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, phi3_attention, fused_swiglu},
     .keys = {decoder_keys, phi3_keys},
     .flags = TM_ARCH_PARTIAL | TM_ARCH_LONGROPE | TM_ARCH_DERIVES_HEAD_DIM},
    {.type = "smollm3",
     .model_type = "smollm3",
     .class = "SmolLM3ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, smollm3_keys},
     .flags = TM_ARCH_PERMUTES | TM_ARCH_TIED | TM_ARCH_DERIVES_HEAD_DIM,
     .pattern = {.gguf = "rope.layer_pattern", .period = 4, .rope = true}},
    {.type = "olmo2",
     .model_type = "olmo2",
     .class = "Olmo2ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_after, attention, head_norms, swiglu},
     .keys = {decoder_keys, olmo2_keys},
     .flags = TM_ARCH_DERIVES_HEAD_DIM},
    {.type = "granite",
     .model_type = "granite",
     .class = "GraniteForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, granite_keys},
     .flags = TM_ARCH_PERMUTES | TM_ARCH_DERIVES_HEAD_DIM},
    {.type = "glm4",
     .model_type = "glm4",
     .class = "Glm4ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {glm4_norms, attention, fused_swiglu},
     .keys = {decoder_keys, olmo2_keys},
     .flags = TM_ARCH_PARTIAL,
     .head_dim = 128},
    {.type = "gemma2",
     .model_type = "gemma2",
     .class = "Gemma2ForCausalLM",
     .hf_layers = "model.layers.",
     .global = gemma_global,
     .block = {gemma_norms, attention, swiglu},
     .keys = {decoder_keys, gemma2_keys},
     .flags = TM_ARCH_TIED,
     .head_dim = 256,
     .pattern = {.gguf = "attention.sliding_window_pattern", .period = 2, .rope = false}},
    {.type = "gemma3",
     .model_type = "gemma3_text",
     .class = "Gemma3ForCausalLM",
     .hf_layers = "model.layers.",
     .global = gemma_global,
     .block = {gemma_norms, attention, gemma_head_norms, swiglu},
     .keys = {decoder_keys, gemma3_keys},
     .flags = TM_ARCH_TIED | TM_ARCH_LOCAL_ROPE,
     .head_dim = 256,
     .pattern = {.gguf = "attention.sliding_window_pattern", .period = 6, .rope = false}},
    {.type = "gemma4",
     .model_type = "gemma4_text",
     .class = "Gemma4ForCausalLM",
     .hf_layers = "model.layers.",
     .global = gemma4_global,
     .block = {gemma4_norms, gemma4_attention, swiglu, gemma4_inputs},
     .keys = {gemma4_keys},
     .flags = TM_ARCH_TIED | TM_ARCH_LOCAL_ROPE | TM_ARCH_PROPORTIONAL,
     .pattern = {.gguf = "attention.sliding_window_pattern", .period = 6, .always = true},
     .hooks = &tm_gguf_gemma4},
    {.type = "mistral3",
     .also = "Ministral 3, Mistral Small 3",
     .model_type = "ministral3",
     .class = "Ministral3ForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, ministral3_keys},
     .flags = TM_ARCH_PERMUTES | TM_ARCH_TEMPERATURE,
     .head_dim = 128},
    {.type = "mistral3",
     .model_type = "mistral",
     .class = "MistralForCausalLM",
     .hf_layers = "model.layers.",
     .global = decoder_global,
     .block = {norms_before, attention, swiglu},
     .keys = {decoder_keys, mistral_keys},
     .flags = TM_ARCH_PERMUTES | TM_ARCH_UNSCALED,
     .head_dim = 128},
    {.type = "gpt2",
     .model_type = "gpt2",
     .class = "GPT2LMHeadModel",
     .hf_layers = "transformer.h.",
     .hf_root = "transformer.",
     .global = gpt2_global,
     .block = {gpt2_block},
     .keys = {gpt2_keys},
     .flags = TM_ARCH_NO_ROPE | TM_ARCH_TIED | TM_ARCH_DERIVES_HEAD_DIM | TM_ARCH_TRANSPOSES}};

static void append(char *buf, size_t cap, const char *before, const char *text) {
    size_t at = strlen(buf);
    snprintf(buf + at, cap - at, "%s%s", at ? before : "", text);
}

/* Of the rows with one type: whether a later one is what the file asks for. */
static tm_status fits(const tm_gguf *g, const tm_gguf_arch *arch, bool *yes) {
    uint64_t window = 0;
    char key[TM_GGUF_ARCH_KEY];
    *yes = (arch->flags & TM_ARCH_UNSCALED) && !tm_gguf_kv_find(g, tm_gguf_arch_key(arch, "rope.scaling.type", key));
    if (!(arch->flags & TM_ARCH_WINDOWED)) return TM_OK;
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(arch, "attention.sliding_window", key), &window, &(bool){false}));
    *yes = window > 0;
    return TM_OK;
}

tm_status tm_gguf_arch_of(const tm_gguf *g, const tm_gguf_arch **out) {
    tm_buf name = {0};
    char supported[512] = "", one[128];
    bool found, later;
    tm_status rc;
    *out = NULL;
    TM_GO(tm_gguf_string(g, "general.architecture", 64, &name, &found));
    for (size_t i = 0; i < TM_COUNT(archs); i++) {
        bool more = i > 0 && strcmp(archs[i].type, archs[i - 1].type) == 0;
        if (found && strcmp(name.data, archs[i].type) == 0) {
            if (more) TM_GO(fits(g, &archs[i], &later));
            if (!more || later) *out = &archs[i];
        }
        if (more) continue;
        snprintf(one, sizeof one, archs[i].also ? "%s (%s)" : "%s", archs[i].type, archs[i].also);
        append(supported, sizeof supported, ", ", one);
    }
    if (!*out)
        rc = tm_fail(TM_EUNSUPPORTED, "%s: architecture '%s' is not read from GGUF; supported: %s", tm_gguf_path(g),
                     found ? name.data : "", supported);
done:
    tm_buf_free(&name);
    return rc;
}

tm_status tm_gguf_arch_for(const char *model_type, const tm_gguf_arch **out) {
    char supported[512] = "";
    *out = NULL;
    for (size_t i = 0; i < TM_COUNT(archs); i++) {
        if (archs[i].flags & TM_ARCH_UNSCALED) continue; /* is written as another row's */
        append(supported, sizeof supported, ", ", archs[i].model_type);
        if (strcmp(archs[i].model_type, model_type) == 0) *out = &archs[i];
    }
    return *out ? TM_OK
                : tm_fail(TM_EUNSUPPORTED, "config.json: model_type '%.40s' cannot be written to GGUF; supported: %s",
                          model_type, supported);
}

const char *tm_gguf_arch_key(const tm_gguf_arch *arch, const char *what, char buf[TM_GGUF_ARCH_KEY]) {
    snprintf(buf, TM_GGUF_ARCH_KEY, "%s.%s", arch->type, what);
    return buf;
}
