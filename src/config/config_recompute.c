/* Whether activations are recomputed: by FSDP's, HF Trainer's and DeepSpeed's names, beside memory.activations. */
#include "config/config_internal.h"

/* Who asks for it, or against it. */
typedef struct wish {
    const cfg_value *from;
    bool recompute;
} wish;

/* DeepSpeed's block alone recomputes nothing, and its `false` is the default: only `true` is a wish. */
static const struct {
    const char *path;
    bool deny; /* false is a wish, too */
} sources[] = {{"gradient_checkpointing", true},
               {"fsdp_config.activation_checkpointing", false},
               {"activation_checkpointing.cpu_checkpointing", false}};

static bool agrees(cfg_state *s, bool recompute) {
    if (cfg_chosen(s, "memory.activations", "auto")) return true;
    return cfg_chosen(s, "memory.activations", "recompute") == recompute;
}

void config_resolve_recompute(cfg_state *s) {
    const cfg_value *own = cfg_given(s, "memory.activations");
    wish first = {0};
    for (size_t i = 0; i < TM_COUNT(sources); i++) {
        const cfg_value *v = cfg_given(s, sources[i].path);
        if (!v || (!v->node->boolean && !sources[i].deny)) continue;
        wish w = {v, v->node->boolean};
        if (first.from && first.recompute != w.recompute) {
            cfg_mismatch(s, first.from->spelled, first.from, v->spelled, v);
            continue;
        }
        first = w;
        if (own && !agrees(s, w.recompute)) cfg_mismatch(s, v->spelled, v, "memory.activations", own);
    }
    if (first.from && first.recompute) s->cfg->pub.memory.activations = TM_ACT_RECOMPUTE;
}
