/* The room's own: what a config holds beside what everyone may read, and names. */
#ifndef TIDEMILL_ADAPTER_INTERNAL_H
#define TIDEMILL_ADAPTER_INTERNAL_H

#include "adapter/adapter.h"
#include "text/pattern.h"

/* Of a configuration or a file. */
enum { ADAPTER_MOST_NAMES = 16384, ADAPTER_MOST_RANK = 65536, ADAPTER_MOST_PATTERN_BYTES = 16 << 20 };

typedef struct adapter_text {
    struct adapter_text *next;
    _Alignas(16) char bytes[];
} adapter_text;

/* Compiled expressions. */
typedef struct adapter_rules {
    tm_pattern **item;
    uint32_t n;
} adapter_rules;

struct adapter_own {
    adapter_text *texts;
    adapter_rules target, exclude, saved, rank, alpha, layers;
    size_t pattern_bytes;
    bool type_dora, type_rslora;
    const char *file;     /* the adapter_config.json that was read, or NULL */
    uint32_t stored_rank; /* of it */
    bool stored_dora;
};

/* Zeroed memory that the config owns; NULL: out of memory, recorded. */
void *adapter_alloc(tm_adapter_config *a, size_t bytes);
const char *adapter_keep(tm_adapter_config *a, const char *text, size_t n);

/* Compiles before + text + after for each, behind those that are there. */
typedef struct adapter_frame {
    const char *before, *after;
    tm_pattern_how how;
} adapter_frame;
tm_status adapter_compile(tm_adapter_config *a, adapter_rules *rules, const char *text,
                          adapter_frame frame) TM_MUST_USE;
void adapter_rules_free(adapter_rules *rules);

/* ---- names (adapter_names.c) --------------------------------------------------------------------------------- */

const char *adapter_leaf(const char *module); /* behind the last dot */
bool adapter_is_head(const char *module);
bool adapter_is_embedding(const char *module);
bool adapter_is_norm(const char *module);
bool adapter_has_end(const char *name, const char *end);       /* name == end, or ends in "." and it */
bool adapter_has_suffix(const char *name, const char *suffix); /* with or without a dot */
/* Appends the distinct leaves of `name`, the first twenty or so: "q_proj, k_proj". */
tm_status adapter_list_leaves(tm_buf *out, const char *const *name, size_t n) TM_MUST_USE;

/* ---- matching (adapter_match.c) ------------------------------------------------------------------------------ */

/* As tm_adapter_module and tm_adapter_learns, for bare names; a costly expression is a failure. */
tm_status adapter_adapts(const tm_adapter_config *a, const char *module, tm_adapter_spec *out, bool *yes) TM_MUST_USE;
bool adapter_saves_module(const tm_adapter_config *a, const char *module); /* itself or a module around it */

/* ---- freezing (freeze.c, freeze_order.c) --------------------------------------------------------------------- */

/* The first number between dots of a name, and what stands behind it: "model.layers.3.mlp.up_proj.weight". -1: it is in
 * no block. */
int64_t freeze_layer_of(const char *tensor, const char **path);
/* order[i]: which of n tensors, whose blocks lie between what is before and behind them, is the i-th of PyTorch's. */
tm_status freeze_order(const tm_freeze_tensor *tensor, size_t n, uint32_t *order) TM_MUST_USE;

#endif
