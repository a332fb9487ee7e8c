/* The architectures, a row each. */
#include "model/arch_internal.h"

#include <stdio.h>
#include <string.h>

#define ROW(name) extern const model_arch model_arch_##name;
#include "model/archs.def"
#undef ROW
#define ROW(name) &model_arch_##name,
static const model_arch *const archs[] = {
#include "model/archs.def"
};

/* Text parts of composite models that are called after them. */
static const struct {
    const char *called, *is;
} aliases[] = {{"gemma3", "gemma3_text"},  {"gemma4", "gemma4_text"}, {"qwen2_vl", "qwen2"},
               {"qwen2_vl_text", "qwen2"}, {"qwen2_5_vl", "qwen2"},   {"qwen2_5_vl_text", "qwen2"},
               {"qwen3_vl_text", "qwen3"}};

const model_arch *model_arch_find(const char *model_type) {
    for (size_t i = 0; i < TM_COUNT(aliases); i++)
        if (strcmp(aliases[i].called, model_type) == 0) model_type = aliases[i].is;
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
