/* Names of a llama's tensors in GGUF and in Hugging Face checkpoints. */
#include "format/gguf_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct pair {
    const char *gguf, *hf;
    tm_rows rows;
} pair;

static const pair global[] = {{"token_embd", "model.embed_tokens", TM_ROWS_PLAIN},
                              {"output_norm", "model.norm", TM_ROWS_PLAIN},
                              {"output", "lm_head", TM_ROWS_PLAIN}};
static const pair block[] = {
    {"attn_norm", "input_layernorm", TM_ROWS_PLAIN},    {"attn_q", "self_attn.q_proj", TM_ROWS_Q},
    {"attn_k", "self_attn.k_proj", TM_ROWS_K},          {"attn_v", "self_attn.v_proj", TM_ROWS_PLAIN},
    {"attn_output", "self_attn.o_proj", TM_ROWS_PLAIN}, {"ffn_norm", "post_attention_layernorm", TM_ROWS_PLAIN},
    {"ffn_gate", "mlp.gate_proj", TM_ROWS_PLAIN},       {"ffn_up", "mlp.up_proj", TM_ROWS_PLAIN},
    {"ffn_down", "mlp.down_proj", TM_ROWS_PLAIN}};

/* "PREFIX<number>." at the start of name: the rest, or NULL. */
static const char *after_layer(const char *name, const char *prefix, unsigned *layer) {
    size_t n = strlen(prefix);
    int digits = 0;
    if (strncmp(name, prefix, n) != 0) return NULL;
    for (*layer = 0; name[n] >= '0' && name[n] <= '9' && digits < 5; n++, digits++)
        *layer = *layer * 10 + (unsigned)(name[n] - '0');
    bool plain = digits == 1 || (digits > 1 && name[n - (size_t)digits] != '0');
    return plain && name[n] == '.' ? name + n + 1 : NULL;
}

/* The entry whose name is `stem` followed by ".weight" or ".bias", which *suffix then is. */
static const pair *find_pair(const pair *table, size_t n, bool from_hf, const char *name, const char **suffix) {
    for (size_t i = 0; i < n; i++) {
        const char *stem = from_hf ? table[i].hf : table[i].gguf;
        *suffix = name + strlen(stem);
        if (strncmp(name, stem, strlen(stem)) == 0 &&
            (strcmp(*suffix, ".weight") == 0 || strcmp(*suffix, ".bias") == 0))
            return &table[i];
    }
    return NULL;
}

static bool translate(const char *name, bool from_hf, char *out, size_t cap, tm_rows *rows) {
    const char *const prefix[] = {"blk.", "model.layers."};
    unsigned layer = 0;
    const char *suffix, *rest = after_layer(name, prefix[from_hf], &layer);
    const pair *p = rest ? find_pair(block, TM_COUNT(block), from_hf, rest, &suffix)
                         : find_pair(global, TM_COUNT(global), from_hf, name, &suffix);
    if (!p) return false;
    const char *stem = from_hf ? p->gguf : p->hf;
    int n = rest ? snprintf(out, cap, "%s%u.%s%s", prefix[!from_hf], layer, stem, suffix)
                 : snprintf(out, cap, "%s%s", stem, suffix);
    *rows = p->rows;
    return n > 0 && (size_t)n < cap;
}

bool tm_gguf_name_to_hf(const char *gguf, char *hf, size_t cap, tm_rows *rows) {
    return translate(gguf, false, hf, cap, rows);
}

bool tm_gguf_name_from_hf(const char *hf, char *gguf, size_t cap, tm_rows *rows) {
    return translate(hf, true, gguf, cap, rows);
}
