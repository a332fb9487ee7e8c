/* The golden model fixtures, fixtures/arch_*: a row each, for tests of the graph (model) and of training (train). */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include "base/base.h"

enum {
    GOLDEN_BF16 = 1,   /* has bf16/: the model again with bfloat16 weights */
    GOLDEN_SHORTS = 2, /* has short.logits: rows that take the short factors of longrope */
    GOLDEN_STEEP = 8,  /* its scores have no scale: torch's own gradients in fp16 are up to 3.3% off those in fp32 */
    GOLDEN_SMALL = 4,  /* golden.safetensors is without hidden.* and large final.*: tests/README.md */
};
typedef struct golden_row {
    const char *folder;
    unsigned has;
} golden_row;

static const golden_row golden_rows[] = {
    {"arch_llama", GOLDEN_BF16},
    {"arch_llama_tied_rope3", GOLDEN_BF16},
    {"arch_llama_linear", 0},
    {"arch_llama_yarn", 0},
    {"arch_mistral", 0},
    {"arch_qwen2", 0},
    {"arch_qwen3", GOLDEN_BF16 | GOLDEN_SMALL},
    {"arch_gemma2", GOLDEN_SMALL},
    {"arch_gemma3", GOLDEN_SMALL},
    {"arch_gemma4", GOLDEN_STEEP},
    {"arch_phi3", GOLDEN_SMALL},
    {"arch_phi4mini", GOLDEN_SHORTS},
    {"arch_smollm3", GOLDEN_BF16},
    {"arch_gpt2", GOLDEN_SMALL},
    {"arch_olmo2", GOLDEN_BF16},
    {"arch_granite", 0},
    {"arch_glm4", 0},
};

static inline void golden_zero(const tm_json *range, float *x) {
    for (int64_t i = range->child->integer; i < range->child->next->integer; i++) x[i] = 0;
}

/* Zeroes the entries of checkpoint tensor `name` that `not_comparable` of golden.json (`root`) names: [begin, end), or
 * a list of such ranges. */
static inline void golden_leave_out(const tm_json *root, const char *name, float *x) {
    const tm_json *ranges = tm_json_get(tm_json_get(tm_json_get(root, "not_comparable"), "grad/final"), name);
    if (!ranges) return;
    if (ranges->child->type == TM_JSON_NUMBER)
        golden_zero(ranges, x);
    else
        for (const tm_json *r = ranges->child; r; r = r->next) golden_zero(r, x);
}

#endif
