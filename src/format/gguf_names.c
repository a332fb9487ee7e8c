/* Names of tensors in GGUF and in Hugging Face checkpoints. */
#include "format/gguf_internal.h"

#include <stdio.h>
#include <string.h>

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
static const tm_gguf_name *find_name(const tm_gguf_name *table, bool from_hf, const char *name, const char **suffix) {
    for (; table && table->gguf; table++) {
        const char *stem = from_hf ? table->hf : table->gguf;
        *suffix = name + strlen(stem);
        if (from_hf && table->op == TM_OP_BARE) {
            if (strcmp(name, stem) != 0) continue;
            *suffix = ".weight";
            return table;
        }
        if (strncmp(name, stem, strlen(stem)) == 0 &&
            (strcmp(*suffix, ".weight") == 0 || strcmp(*suffix, ".bias") == 0))
            return table;
    }
    return NULL;
}

static bool translate(const tm_gguf_arch *arch, const char *name, bool from_hf, char *out, size_t cap, tm_op *op) {
    const char *const prefix[] = {"blk.", arch->hf_layers};
    unsigned layer = 0;
    const char *suffix, *rest = after_layer(name, prefix[from_hf], &layer);
    const tm_gguf_name *p = rest ? NULL : find_name(arch->global, from_hf, name, &suffix);
    for (size_t i = 0; rest && !p && i < TM_COUNT(arch->block); i++)
        p = find_name(arch->block[i], from_hf, rest, &suffix);
    if (!p) return false;
    const char *stem = from_hf ? p->gguf : p->hf;
    if (p->op == TM_OP_BARE && !from_hf) suffix = "";
    int n = rest ? snprintf(out, cap, "%s%u.%s%s", prefix[!from_hf], layer, stem, suffix)
                 : snprintf(out, cap, "%s%s", stem, suffix);
    bool rows = p->op == TM_OP_Q || p->op == TM_OP_K;
    *op = rows || strcmp(suffix, ".weight") == 0 ? p->op : TM_OP_PLAIN;
    return n > 0 && (size_t)n < cap;
}

bool tm_gguf_name_to_hf(const tm_gguf_arch *arch, const char *gguf, char *hf, size_t cap, tm_op *op) {
    return translate(arch, gguf, false, hf, cap, op);
}

bool tm_gguf_name_from_hf(const tm_gguf_arch *arch, const char *hf, char *gguf, size_t cap, tm_op *op) {
    char whole[256];
    if (translate(arch, hf, true, gguf, cap, op)) return true;
    if (!arch->hf_root) return false;
    int n = snprintf(whole, sizeof whole, "%s%s", arch->hf_root, hf);
    return n > 0 && (size_t)n < sizeof whole && translate(arch, whole, true, gguf, cap, op);
}
