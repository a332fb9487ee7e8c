/* The architectures that GGUF is read and written for, a row each: what they are called there and in config.json. */
#include "format/gguf_internal.h"

#include <stdio.h>
#include <string.h>

/* A decoder as Llama's. */
static const tm_gguf_name decoder_global[] = {{"token_embd", "model.embed_tokens", TM_ROWS_PLAIN},
                                              {"output_norm", "model.norm", TM_ROWS_PLAIN},
                                              {"output", "lm_head", TM_ROWS_PLAIN},
                                              {0}};
static const tm_gguf_name decoder_block[] = {
    {"attn_norm", "input_layernorm", TM_ROWS_PLAIN},    {"attn_q", "self_attn.q_proj", TM_ROWS_Q},
    {"attn_k", "self_attn.k_proj", TM_ROWS_K},          {"attn_v", "self_attn.v_proj", TM_ROWS_PLAIN},
    {"attn_output", "self_attn.o_proj", TM_ROWS_PLAIN}, {"ffn_norm", "post_attention_layernorm", TM_ROWS_PLAIN},
    {"ffn_gate", "mlp.gate_proj", TM_ROWS_PLAIN},       {"ffn_up", "mlp.up_proj", TM_ROWS_PLAIN},
    {"ffn_down", "mlp.down_proj", TM_ROWS_PLAIN},       {0}};

static const tm_gguf_arch archs[] = {
    {.type = "llama",
     .also = "also Mistral, SmolLM, TinyLlama",
     .plain = {"llama", "LlamaForCausalLM"},
     .windowed = {"mistral", "MistralForCausalLM"},
     .global = decoder_global,
     .block = decoder_block,
     .permutes = true,
     .says_biases = true},
    {.type = "qwen2", .plain = {"qwen2", "Qwen2ForCausalLM"}, .global = decoder_global, .block = decoder_block}};

static void append(char *buf, size_t cap, const char *before, const char *text) {
    size_t at = strlen(buf);
    snprintf(buf + at, cap - at, "%s%s", at ? before : "", text);
}

tm_status tm_gguf_arch_of(const tm_gguf *g, const tm_gguf_arch **out) {
    tm_buf name = {0};
    char supported[256] = "", one[128];
    bool found;
    tm_status rc;
    *out = NULL;
    TM_GO(tm_gguf_string(g, "general.architecture", 64, &name, &found));
    for (size_t i = 0; i < TM_COUNT(archs); i++) {
        if (found && strcmp(name.data, archs[i].type) == 0) *out = &archs[i];
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

tm_status tm_gguf_arch_for(const char *model_type, const tm_gguf_arch **out, bool *windowed) {
    char supported[256] = "";
    *out = NULL;
    for (size_t i = 0; i < TM_COUNT(archs); i++) {
        const tm_gguf_class *of[] = {&archs[i].plain, &archs[i].windowed};
        for (int w = 0; w < 2; w++) {
            if (!of[w]->model_type) continue;
            append(supported, sizeof supported, ", ", of[w]->model_type);
            if (strcmp(of[w]->model_type, model_type) == 0) *out = &archs[i], *windowed = w;
        }
    }
    return *out ? TM_OK
                : tm_fail(TM_EUNSUPPORTED, "config.json: model_type '%.40s' cannot be written to GGUF; supported: %s",
                          model_type, supported);
}

const char *tm_gguf_arch_key(const tm_gguf_arch *arch, const char *what, char buf[TM_GGUF_ARCH_KEY]) {
    snprintf(buf, TM_GGUF_ARCH_KEY, "%s.%s", arch->type, what);
    return buf;
}
