/* AdamW: the flat names (ms-swift, HF Trainer), or DeepSpeed's optimizer block with DeepSpeed's defaults. */
#include "train/config_internal.h"

#include <stdio.h>
#include <strings.h>

#define PARAM "optimizer.params."

/* A flat key against what the block says or, where the block omits it, DeepSpeed's default. */
static void compare(cfg_state *s, const char *flat, const char *in_block, double block_value) {
    const cfg_value *f = cfg_given(s, flat), *b = cfg_given(s, in_block);
    char w[256], x[64];
    if (!f || f->node->number == block_value || cfg_is_auto(s, in_block)) return;
    if (b) {
        cfg_mismatch(s, flat, f, in_block, b);
        return;
    }
    cfg_contradiction(s, "%s %s (%s) does not match %s %.15g (DeepSpeed's default; say \"auto\" there)", flat,
                      cfg_show(f, x, sizeof x), cfg_where(f, w, sizeof w), in_block, block_value);
}

/* "auto": the flat value, or ours by default; absent: DeepSpeed's default. */
static double number(cfg_state *s, const char *flat, const char *in_block) {
    if (cfg_is_auto(s, in_block)) return cfg_number(s, flat);
    double value = cfg_number(s, in_block);
    compare(s, flat, in_block, value);
    return value;
}

static void resolve_betas(cfg_state *s) {
    tm_adamw_opts *a = &s->cfg->pub.adamw;
    const cfg_value *pair = cfg_given(s, PARAM "betas");
    if (cfg_is_auto(s, PARAM "betas")) return; /* the flat ones */
    a->beta1 = pair ? pair->node->child->number : 0.9;
    a->beta2 = pair ? pair->node->child->next->number : 0.999;
    compare(s, "adam_beta1", PARAM "betas", a->beta1);
    compare(s, "adam_beta2", PARAM "betas", a->beta2);
}

static void check_type(cfg_state *s) {
    static const char *const known[] = {
        "adagrad", "adafactor", "deepspeedcpuadam", "fusedadam",  "fusedlamb", "lamb",
        "lion",    "muon",      "onebitadam",       "onebitlamb", "sgd",       "zerooneadam"};
    const cfg_value *v = cfg_given(s, "optimizer.type");
    char w[256];
    if (!v) {
        cfg_problem(s, TM_EINPUT, "%s: \"optimizer.type\" is missing; give \"AdamW\"",
                    cfg_where(cfg_raw(s, "optimizer"), w, sizeof w));
        return;
    }
    const char *type = v->node->text;
    if (!strcasecmp(type, "adam") || !strcasecmp(type, "adamw")) return;
    for (size_t i = 0; i < TM_COUNT(known); i++) {
        if (strcasecmp(type, known[i])) continue;
        cfg_problem(s, TM_EUNSUPPORTED, "%s: optimizer \"%s\" is not supported; use \"AdamW\"",
                    cfg_where(v, w, sizeof w), type);
        return;
    }
    cfg_problem(s, TM_EINPUT, "%s: unknown optimizer \"%.48s\"; use \"AdamW\" or \"Adam\"", cfg_where(v, w, sizeof w),
                type);
}

static void resolve_block(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    char w[256];
    check_type(s);
    c->learning_rate = number(s, "learning_rate", PARAM "lr");
    c->adamw.eps = number(s, "adam_epsilon", PARAM "eps");
    c->adamw.weight_decay = number(s, "weight_decay", PARAM "weight_decay");
    resolve_betas(s);
    c->adamw.adam_w_mode = cfg_bool(s, PARAM "adam_w_mode");
    c->adamw.bias_correction = cfg_bool(s, PARAM "bias_correction");
    if (!cfg_bool(s, PARAM "fp32_optimizer_states"))
        cfg_problem(s, TM_EUNSUPPORTED,
                    "%s: \"" PARAM "fp32_optimizer_states\" false: not supported yet by this version",
                    cfg_where(cfg_given(s, PARAM "fp32_optimizer_states"), w, sizeof w));
}

static void resolve_clipping(cfg_state *s) {
    const cfg_value *flat = cfg_given(s, "max_grad_norm"), *ds = cfg_given(s, "gradient_clipping");
    if (flat && ds && flat->node->number != ds->node->number)
        cfg_mismatch(s, "max_grad_norm", flat, "gradient_clipping", ds);
    s->cfg->pub.max_grad_norm = ds ? ds->node->number : cfg_number(s, "max_grad_norm");
}

/* Inside backward the norm is not known yet, and nothing can be taken back. */
static void check_update(cfg_state *s) {
    const tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, "memory.update");
    char w[256];
    if (c->memory.update != TM_UPDATE_B) return;
    if (c->max_grad_norm > 0)
        cfg_problem(
            s, TM_EINPUT,
            "%s: \"memory.update\" B updates inside backward, before the norm of the gradient is known: it cannot "
            "clip to max_grad_norm %.15g; set max_grad_norm 0, or choose U or F",
            cfg_where(v, w, sizeof w), c->max_grad_norm);
    if (c->precision == TM_F16)
        cfg_problem(
            s, TM_EINPUT,
            "%s: \"memory.update\" B updates inside backward: it cannot skip a step that overflows fp16; choose U "
            "or F",
            cfg_where(v, w, sizeof w));
}

tm_status config_resolve_optimizer(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    char w[256], x[256];
    c->learning_rate = cfg_number(s, "learning_rate");
    c->adamw = (tm_adamw_opts){.beta1 = cfg_number(s, "adam_beta1"),
                               .beta2 = cfg_number(s, "adam_beta2"),
                               .eps = cfg_number(s, "adam_epsilon"),
                               .weight_decay = cfg_number(s, "weight_decay"),
                               .adam_w_mode = true,
                               .bias_correction = true};
    if (cfg_raw(s, "optimizer")) resolve_block(s);
    if (!cfg_chosen(s, "optim", "adamw_torch")) {
        const cfg_value *v = cfg_given(s, "optim");
        cfg_problem(s, TM_EUNSUPPORTED, "%s: \"optim\" %s: not supported yet by this version; use \"adamw_torch\"",
                    cfg_where(v, w, sizeof w), cfg_show(v, x, sizeof x));
    }
    resolve_clipping(s);
    check_update(s);
    return cfg_strings(s, "no_decay", &c->no_decay);
}
