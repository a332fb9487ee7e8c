/* The architectures, a row each. */
#include "model/arch_internal.h"

#include <stdio.h>
#include <string.h>

/* clang-format off: a row a line */
#define ARCHITECTURES(X) \
    X(llama) \
    X(mistral) \
    X(ministral3) \
    X(qwen2) \
    X(qwen3) \
    X(gemma2) \
    X(gemma3) \
    X(phi3) \
    X(smollm3) \
    X(gpt2) \
    X(olmo2) \
    X(granite) \
    X(glm4) \
/* clang-format on */
#define DECLARE(name) extern const model_arch model_arch_##name;
#define ENTRY(name) &model_arch_##name,
ARCHITECTURES(DECLARE)
static const model_arch *const archs[] = {ARCHITECTURES(ENTRY)};

const model_arch *model_arch_find(const char *model_type) {
    for (size_t i = 0; i < TM_COUNT(archs); i++)
        if (strcmp(archs[i]->model_type, model_type) == 0) return archs[i];
    return NULL;
}

void model_arch_names(char *buf, size_t cap) {
    size_t at = 0;
    for (size_t i = 0; i < TM_COUNT(archs) && at < cap; i++) {
        const char *before = i == 0 ? "" : i + 1 < TM_COUNT(archs) ? ", " : " and ";
        at += (size_t)snprintf(buf + at, cap - at, "%s%s", before, archs[i]->model_type);
    }
}
