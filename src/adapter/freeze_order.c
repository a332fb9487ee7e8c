/* The order in which PyTorch has a model's parameters, which is that of the modules' registration in transformers 5 (of
 * each architecture's modeling file): by it "the first so much of the parameters" is counted. A model of ours lists its
 * tensors in the order in which they are used. */
#include "adapter/adapter_internal.h"

#include <stdlib.h>
#include <string.h>

/* Inside a block. No architecture has two of these in another order. */
static const char *const registered[] = {
    "ln_1",
    "attn.c_attn",
    "attn.c_proj",
    "ln_2",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.qkv_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.q_layernorm",
    "self_attn.k_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "mlp.c_fc",
    "mlp.c_proj",
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_self_attn_layernorm",
    "post_mlp_layernorm",
};

typedef struct place {
    uint32_t tensor;
    int64_t block;   /* -1: before all blocks, INT64_MAX: behind them */
    size_t in_block; /* twice the row above, and one for a bias */
} place;

static size_t row_of(const char *path) {
    size_t i = 0;
    for (; i < TM_COUNT(registered); i++) {
        size_t n = strlen(registered[i]);
        if (!strncmp(path, registered[i], n) && path[n] == '.') break;
    }
    return 2 * i + adapter_has_end(path, "bias");
}

static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    if (x->in_block != y->in_block) return x->in_block < y->in_block ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

tm_status freeze_order(const tm_freeze_tensor *tensor, size_t n, uint32_t *order) {
    place *p = tm_malloc((n + 1) * sizeof *p);
    bool after = false;
    if (!p) return tm_nomem(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        const char *path;
        int64_t layer = freeze_layer_of(tensor[i].name, &path);
        after |= layer >= 0;
        p[i] = (place){(uint32_t)i, layer >= 0 ? layer : after ? INT64_MAX : -1, layer >= 0 ? row_of(path) : 0};
    }
    qsort(p, n, sizeof *p, by_place);
    for (size_t i = 0; i < n; i++) order[i] = p[i].tensor;
    tm_free(p);
    return TM_OK;
}
