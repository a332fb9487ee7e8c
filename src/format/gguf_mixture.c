/* Which type each tensor of a GGUF file has: llama.cpp's choice (llama_tensor_get_type and tensor_allows_quantization of
 * llama-quant.cpp, as of ggml 0.25), of what there is here: dense models, and the types of written.c. */
#include "format/gguf_mixture_internal.h"

#include <stdio.h>
#include <string.h>

typedef enum role { OTHER, KEPT, EMBEDDING, OUTPUT, VALUES, DOWN } role;

/* The layer in "blk.N."; -1: none. */
static int layer_of(const char *name) {
    int layer = -1;
    return sscanf(name, "blk.%d.", &layer) == 1 && layer >= 0 && layer < TM_KEYS_MAX_LAYERS ? layer : -1;
}

static role role_of(const char *name) {
    static const struct {
        const char *name;
        role role;
    } whole[] = {{"output.weight", OUTPUT},
                 {"token_embd.weight", EMBEDDING},
                 {"per_layer_token_embd.weight", EMBEDDING},
                 {"per_layer_model_proj.weight", KEPT},
                 {"position_embd.weight", KEPT}},
      of_layer[] = {{".attn_v.weight", VALUES}, {".attn_qkv.weight", VALUES}, {".ffn_down.weight", DOWN}};
    for (size_t i = 0; i < TM_COUNT(whole); i++)
        if (strcmp(name, whole[i].name) == 0) return whole[i].role;
    for (size_t i = 0; i < TM_COUNT(of_layer); i++)
        if (tm_ends_with(name, of_layer[i].name)) return of_layer[i].role;
    return OTHER;
}

/* The models that llama.cpp calls 70B: many queries share a value there. */
static bool is_seventy(const tm_gguf_keys *k) {
    if (k->layers != 80) return false;
    return strcmp(k->arch->type, "qwen2") == 0 || (strcmp(k->arch->type, "llama") == 0 && k->heads != k->kv_heads);
}

void tm_gguf_mixture_begin(tm_gguf_mixture *m, const tm_written *to, const tm_gguf_keys *k) {
    *m = (tm_gguf_mixture){.to = to, .tied = k->tied, .seventy = is_seventy(k), .layers = (int)k->layers};
}

void tm_gguf_mixture_note(tm_gguf_mixture *m, const char *name) {
    int layer = layer_of(name);
    if (layer >= 0 && role_of(name) == VALUES) m->has_values[layer] = true;
}

/* Of the first and the last eighth, and of every third between. */
static bool more_bits(int i, int n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* The i-th of n, in order of layers: a layer may have none of its own. */
static bool values_have_more(const tm_gguf_mixture *m, const char *name) {
    int i = 0, n = 0, layer = layer_of(name);
    for (int l = 0; l < TM_KEYS_MAX_LAYERS; l++) {
        i += m->has_values[l] && l < layer;
        n += m->has_values[l];
    }
    return m->to->more_bits && more_bits(i, n);
}

/* With an importance llama.cpp gives the first eighth of layers a type with a least value, against errors that it calls crazy. */
static tm_fmt with_least(tm_fmt fmt) {
    return fmt == TM_FMT_Q4_0 ? TM_FMT_Q4_1 : fmt == TM_FMT_Q5_0 ? TM_FMT_Q5_1 : fmt;
}

static tm_fmt choose(const tm_gguf_mixture *m, const char *name, uint64_t width) {
    tm_fmt fmt = m->to->fmt;
    role r = role_of(name);
    if (r == KEPT) return TM_FMT_F16;
    if (r == OUTPUT || (r == EMBEDDING && m->tied))
        return fmt == TM_FMT_Q8_0 || width % tm_fmt_get(fmt)->block != 0 ? TM_FMT_Q8_0 : TM_FMT_Q6_K;
    if (r == VALUES) {
        if (values_have_more(m, name)) return TM_FMT_Q6_K;
        return m->seventy && fmt == TM_FMT_Q4_K ? TM_FMT_Q5_K : fmt;
    }
    if (r == DOWN && m->to->more_bits && more_bits(layer_of(name), m->layers)) return TM_FMT_Q6_K;
    return r == DOWN && m->weighed && layer_of(name) < m->layers / 8 ? with_least(fmt) : fmt;
}

tm_fmt tm_gguf_mixture_of(const tm_gguf_mixture *m, const char *name, uint32_t ndim, uint64_t width) {
    if (ndim < 2) return TM_FMT_F32;
    if (tm_fmt_get(m->to->fmt)->block == 1) return m->to->fmt;
    return tm_block_for_rows(choose(m, name, width), width);
}
