/* PyTorch's FSDP as HF Trainer and Accelerate spell it: `fsdp` words and an `fsdp_config` block, turned into a
 * strategy, places, precision and the grain of look-ahead. What another key says differently is a mismatch. */
#include "config/config_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define FSDP "fsdp_config."
#define SHARDING FSDP "sharding_strategy"

/* ---- fsdp: "full_shard auto_wrap offload" -------------------------------------------------------------------- */

typedef struct fsdp_words {
    const cfg_value *from;
    int sharding;     /* as fsdp_config.sharding_strategy; -1: none */
    const char *word; /* of that, not terminated */
    int word_len;
    bool offload, wrap;
} fsdp_words;

/* The words are the choices of fsdp_config.sharding_strategy in small letters. */
static int sharding_word(const char *text, size_t n) {
    return n > 0 && islower((unsigned char)*text) ? schema_choice(schema_find(SHARDING), text, n) : -1;
}

static bool is_word(const char *text, size_t n, const char *word) {
    return n == strlen(word) && !strncmp(text, word, n);
}

static void one_word(cfg_state *s, fsdp_words *w, const char *text, size_t n) {
    char at[256];
    int sharding = sharding_word(text, n);
    if (sharding >= 0 && w->sharding >= 0 && sharding != w->sharding)
        cfg_contradiction(s, "%s: \"fsdp\" says %.*s and %.*s", cfg_where(w->from, at, sizeof at), w->word_len, w->word,
                          (int)n, text);
    if (sharding >= 0)
        w->sharding = sharding, w->word = text, w->word_len = (int)n;
    else if (is_word(text, n, "offload"))
        w->offload = true;
    else if (is_word(text, n, "auto_wrap"))
        w->wrap = true;
    else
        cfg_wrong(s, w->from,
                  "\"fsdp\" has the word \"%.*s\"; it takes full_shard, shard_grad_op, no_shard, hybrid_shard, "
                  "offload and auto_wrap",
                  (int)tm_min_u64(n, 40), text);
}

static void split(cfg_state *s, fsdp_words *w, const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        size_t n = strcspn(text + i, " ,");
        if (n > len - i) n = len - i;
        if (n) one_word(s, w, text + i, n);
        i += n + 1;
    }
}

static fsdp_words read_words(cfg_state *s) {
    fsdp_words w = {.from = cfg_given(s, "fsdp"), .sharding = -1};
    if (!w.from) return w;
    const tm_json *n = w.from->node;
    if (n->type == TM_JSON_BOOL) {
        if (n->boolean) w.sharding = 0;
    } else if (n->type == TM_JSON_STRING) {
        split(s, &w, n->text, n->len);
    } else {
        for (const tm_json *c = n->child; c; c = c->next) split(s, &w, c->text, c->len);
    }
    if (w.sharding < 0 && (w.offload || w.wrap) && !cfg_given(s, SHARDING))
        cfg_wrong(s, w.from, "\"fsdp\" needs a strategy beside offload and auto_wrap: full_shard, for example");
    return w;
}

/* FSDP 2 says whether weights are dropped between forward and backward. */
static int from_reshard(cfg_state *s, const cfg_value **from) {
    const cfg_value *v = cfg_given(s, FSDP "reshard_after_forward");
    if (!v) return -1;
    *from = v;
    return v->node->boolean ? 0 : 1;
}

static int sharding_of(cfg_state *s, const fsdp_words *w, const cfg_value **from) {
    const cfg_value *named = cfg_given(s, SHARDING);
    int block = named ? cfg_choice(s, SHARDING) : -1, reshard = from_reshard(s, from);
    if (named && w->sharding >= 0 && block != w->sharding) cfg_mismatch(s, "fsdp", w->from, named->spelled, named);
    int said = w->sharding >= 0 ? w->sharding : block;
    if (said >= 0 && reshard >= 0 && (said > 1 || said != reshard))
        cfg_mismatch(s, FSDP "reshard_after_forward", *from, w->sharding >= 0 ? "fsdp" : named->spelled,
                     w->sharding >= 0 ? w->from : named);
    if (said >= 0) *from = w->sharding >= 0 ? w->from : named;
    if (said < 0) said = reshard;
    if (said < 0 && !w->from && cfg_raw(s, "fsdp_config") && !cfg_given(s, "strategy")) {
        *from = cfg_raw(s, "fsdp_config"); /* Accelerate's default */
        said = 0;
    }
    return said;
}

static void set_strategy(cfg_state *s, int sharding, const cfg_value *from) {
    tm_config *c = &s->cfg->pub;
    char name[32];
    const cfg_value *stage = cfg_given(s, "zero_optimization.stage"), *strategy = cfg_given(s, "strategy");
    if (sharding < 0) return;
    tm_strategy want = strategy_of_sharding(schema_choice_name(schema_find(SHARDING), sharding, name, sizeof name));
    if (want == TM_STRATEGY_COUNT) {
        cfg_unsupported(s, from,
                        "HYBRID_SHARD_ZERO2 keeps weights gathered from forward to backward; HYBRID_SHARD here");
        return;
    }
    uint32_t means = tm_strategy_rows[want].stage;
    if (strategy && c->strategy != want) cfg_mismatch(s, from->spelled, from, "strategy", strategy);
    if (stage && c->zero_stage != means) cfg_mismatch(s, from->spelled, from, stage->spelled, stage);
    c->strategy = want;
    c->zero_stage = means;
    c->strategy_given = true;
}

static void offload(cfg_state *s, const char *device, const cfg_value *from, tm_place *place) {
    const cfg_value *v = cfg_given(s, device);
    if (v && !cfg_chosen(s, device, "cpu")) cfg_mismatch(s, from->spelled, from, device, v);
    *place = TM_PLACE_CPU;
}

static void set_offload(cfg_state *s, const fsdp_words *w) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, FSDP "offload_params"), *from = w->offload ? w->from : v;
    if (v && w->offload && !v->node->boolean) cfg_mismatch(s, "fsdp", w->from, v->spelled, v);
    if (!w->offload && (!v || !v->node->boolean)) return;
    offload(s, "zero_optimization.offload_param.device", from, &c->param_place);
    offload(s, "zero_optimization.offload_optimizer.device", from, &c->optimizer_place);
}

/* Who else said in what to compute. */
static const cfg_value *precision_of(const cfg_state *s, const char **name) {
    static const char *const said[] = {"precision", "bf16.enabled", "fp16.enabled", "bf16", "fp16"};
    for (size_t i = 0; i < TM_COUNT(said); i++) {
        const cfg_value *v = cfg_given(s, said[i]);
        if (!v || v->node->type == TM_JSON_OBJECT) continue;
        *name = said[i];
        return v;
    }
    return NULL;
}

static void set_precision(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const char *key = FSDP "mixed_precision.param_dtype", *name = NULL;
    const cfg_value *v = cfg_given(s, key), *other = precision_of(s, &name);
    if (!v) return;
    tm_dtype want = cfg_dtype(s, key);
    if (other && c->precision != want)
        cfg_mismatch(s, key, v, name, other);
    else if (!other && want == TM_F16)
        cfg_wrong(s, v, "\"%s\" fp16 needs its loss scale: give \"fp16\" or \"precision\"", key);
    else
        c->precision = want;
}

static void set_reduction(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const char *key = FSDP "mixed_precision.reduce_dtype", *type = "communication_data_type";
    const cfg_value *v = cfg_given(s, key), *other = cfg_given(s, type);
    if (!v) return;
    bool bf16 = cfg_chosen(s, key, "bf16");
    if (cfg_chosen(s, key, "fp16"))
        cfg_unsupported(s, v, "\"%s\" fp16 overflows: bf16 or fp32 here", key);
    else if (other && bf16 != cfg_chosen(s, type, "bf16"))
        cfg_mismatch(s, key, v, type, other);
    c->comm_bf16 = bf16;
}

/* What is wrapped together travels together: as much is gathered ahead. Bits do not depend on it. */
static tm_status set_wrap(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *least = cfg_given(s, FSDP "min_num_params"), *policy = cfg_given(s, FSDP "auto_wrap_policy");
    const cfg_value *classes = cfg_given(s, FSDP "transformer_layer_cls_to_wrap");
    bool by_size = least && least->node->integer > 0;
    TM_TRY(cfg_fill_path(s, FSDP "transformer_layer_cls_to_wrap"));
    if (by_size && classes) cfg_mismatch(s, least->spelled, least, classes->spelled, classes);
    if (policy && cfg_chosen(s, FSDP "auto_wrap_policy", "SIZE_BASED_WRAP") && classes)
        cfg_mismatch(s, policy->spelled, policy, classes->spelled, classes);
    if (policy && by_size && !cfg_chosen(s, FSDP "auto_wrap_policy", "SIZE_BASED_WRAP"))
        cfg_mismatch(s, policy->spelled, policy, least->spelled, least);
    if (by_size) {
        c->wrap = TM_WRAP_SIZE;
        c->wrap_elements = (uint64_t)least->node->integer;
    } else if (policy && cfg_chosen(s, FSDP "auto_wrap_policy", "NO_WRAP")) {
        c->wrap = TM_WRAP_NONE;
    } else if (classes || policy) {
        c->wrap = TM_WRAP_BLOCK;
    }
    return TM_OK;
}

tm_status config_resolve_fsdp(cfg_state *s) {
    const cfg_value *from = NULL;
    fsdp_words w = read_words(s);
    int sharding = sharding_of(s, &w, &from);
    set_strategy(s, sharding, from);
    set_offload(s, &w);
    set_precision(s);
    set_reduction(s);
    return set_wrap(s);
}
