/* The check at start of a way of attention that rounds to bf16 between products, beside the one in fp32. */
#include "kernels/attention_internal.h"

#include <math.h>

/* A tile and a piece of one, heads of a square of registers and a piece, two of them for each of keys and values. */
enum { SEQ = 75, HEADS = 2, DIM = 40, QKV = SEQ * (HEADS + 2) * DIM, OUT = SEQ * HEADS * DIM };

typedef struct trial {
    uint16_t qkv[QKV], d_o[OUT], o[OUT], d_qkv[QKV];
    float lse[SEQ * HEADS];
} trial;

/* Made-up values in [-1, 1), the same everywhere. */
static void fill(uint16_t *x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        float v = (float)(seed >> 8) / 8388608.0F - 1.0F;
        kernels_narrow(TM_ELEM_BF16, &v, x + i, 1);
    }
}

static tm_attention shape(void) {
    return (tm_attention){.type = TM_ELEM_BF16,
                          .rows = 1,
                          .seq = SEQ,
                          .padded = SEQ,
                          .heads = HEADS,
                          .kv_heads = 1,
                          .head_dim = DIM,
                          .window = SEQ - 5,
                          .scale = 0.3F};
}

static void attend(const attention_way *way, trial *t, void *workspace) {
    tm_attention a = shape();
    a.o = t->o, a.lse = t->lse, a.d_o = t->d_o, a.workspace = workspace;
    tm_attention_fuse(&a, t->qkv, t->d_qkv);
    fill(t->qkv, QKV, 1), fill(t->d_o, OUT, 2);
    for (uint64_t head = 0; head < HEADS; head++) way->forward(&a, 0, head);
    way->backward(&a, 0, 0);
}

/* Steps of 2^-9 of what the terms of a sum add up to, which is 5 at most here; something wrong moves results by a tenth or more. */
static bool near(const uint16_t *x, const uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float a, b;
        kernels_widen(TM_ELEM_BF16, x + i, &a, 1), kernels_widen(TM_ELEM_BF16, y + i, &b, 1);
        if (!(fabsf(a - b) <= 0x1p-6F + 0x1p-7F * fabsf(b))) return false;
    }
    return true;
}

static uint64_t floats_of(const attention_way *way, const tm_attention *a) {
    return tm_max_u64(way->floats(a, false), way->floats(a, true));
}

tm_status kernels_check_attention(const attention_way *way, const char **wrong) {
    tm_attention a = shape();
    uint64_t floats = tm_max_u64(floats_of(way, &a), floats_of(&attention_in_fp32, &a));
    size_t bytes = 2 * sizeof(trial) + floats * sizeof(float);
    trial *t = tm_malloc(bytes);
    if (!t) return tm_nomem(bytes);
    attend(way, &t[0], t + 2);
    attend(&attention_in_fp32, &t[1], t + 2);
    bool right = near(t[0].o, t[1].o, OUT) && near(t[0].d_qkv, t[1].d_qkv, QKV);
    *wrong = right ? NULL : "attention";
    tm_free(t);
    return TM_OK;
}
