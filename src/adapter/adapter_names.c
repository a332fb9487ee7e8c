/* Names of modules: where they end, and what by convention they are. */
#include "adapter/adapter_internal.h"

#include <string.h>

const char *tm_adapter_bare_name(const char *name) {
    static const char prefix[] = "base_model.model.";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

const char *adapter_leaf(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

static bool is_one_of(const char *leaf, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(leaf, words[i])) return true;
    return false;
}

bool adapter_is_head(const char *module) {
    static const char *const heads[] = {"lm_head", "embed_out"};
    return is_one_of(adapter_leaf(module), heads, TM_COUNT(heads));
}

bool adapter_is_embedding(const char *module) {
    static const char *const embeddings[] = {"embed_tokens", "wte", "wpe"};
    return is_one_of(adapter_leaf(module), embeddings, TM_COUNT(embeddings));
}

bool adapter_is_norm(const char *module) {
    const char *leaf = adapter_leaf(module);
    return strstr(leaf, "norm") || !strncmp(leaf, "ln_", 3);
}

bool adapter_has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return m <= n && !memcmp(name + n - m, suffix, m);
}

bool adapter_has_end(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return adapter_has_suffix(name, end) && (n == m || name[n - m - 1] == '.');
}

tm_status adapter_list_leaves(tm_buf *out, const char *const *name, size_t n) {
    enum { MOST = 20 };
    const char *seen[MOST];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        const char *leaf = adapter_leaf(name[i]);
        if (is_one_of(leaf, seen, k)) continue;
        if (k == MOST) return tm_buf_printf(out, ", ...");
        TM_TRY(tm_buf_printf(out, "%s%.64s", k ? ", " : "", leaf));
        seen[k++] = leaf;
    }
    return TM_OK;
}
