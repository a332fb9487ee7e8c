/* What is minimised: "objective", or the flat names of TRL, ms-swift and LLaMA-Factory, which are the same rows. */
#include "config/config_internal.h"

#include <stdio.h>
#include <string.h>

#define SECTION "objective."
#define ONLY(type) (1u << TM_OBJECTIVE_##type)
#define PAIRS (ONLY(DPO) | ONLY(SIMPO) | ONLY(ORPO) | ONLY(CPO))

/* Which objectives a key is for. */
static const struct {
    const char *key;
    unsigned types;
} keys[] = {{"beta", PAIRS | ONLY(KTO)},
            {"loss_type", ONLY(DPO)},
            {"loss_weights", ONLY(DPO)},
            {"label_smoothing", ONLY(DPO) | ONLY(SIMPO) | ONLY(CPO)},
            {"rpo_alpha", ONLY(DPO)},
            {"simpo_gamma", ONLY(SIMPO)},
            {"cpo_alpha", ONLY(SIMPO) | ONLY(CPO)},
            {"desirable_weight", ONLY(KTO)},
            {"undesirable_weight", ONLY(KTO)},
            {"reference", ONLY(DPO) | ONLY(KTO)}};

bool config_objective_takes(const tm_objective_spec *o, const char *key) {
    bool smooth =
        o->type != TM_OBJECTIVE_DPO || config_has_loss(o, TM_LOSS_SIGMOID) || config_has_loss(o, TM_LOSS_ROBUST);
    for (size_t i = 0; i < TM_COUNT(keys); i++)
        if (!strcmp(keys[i].key, key))
            return (keys[i].types >> o->type & 1) && (smooth || strcmp(key, "label_smoothing") != 0);
    return false;
}

static const char *path_of(const char *key, char path[64]) {
    snprintf(path, 64, SECTION "%s", key);
    return path;
}

static void take(cfg_state *s, const char *key, double *value) {
    char path[64];
    if (cfg_given(s, path_of(key, path))) *value = cfg_number(s, path);
}

/* What is given and is another objective's: an error, since who writes it counts on it. */
static void check_keys(cfg_state *s) {
    const tm_objective_spec *o = &s->cfg->pub.objective;
    char path[64];
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const cfg_value *v = cfg_given(s, path_of(keys[i].key, path));
        bool zero = v && v->node->type == TM_JSON_NUMBER && v->node->number == 0;
        if (!v || zero || config_objective_takes(o, keys[i].key)) continue;
        const schema_row *row = &schema_rows[schema_index("objective.type")];
        char name[32];
        cfg_wrong(s, v, "\"%s\" has no effect on objective %s; leave it out, or choose another \"objective.type\"",
                  v->spelled, schema_choice_name(row, (int)o->type, name, sizeof name));
    }
}

static void check_values(cfg_state *s) {
    const tm_objective_spec *o = &s->cfg->pub.objective;
    const cfg_value *beta = cfg_given(s, SECTION "beta"), *smoothing = cfg_given(s, SECTION "label_smoothing");
    if (beta && o->beta == 0 && config_objective_takes(o, "beta"))
        cfg_wrong(s, beta, "\"%s\" 0: nothing would be learned; TRL's default is 0.1", beta->spelled);
    if (smoothing && config_has_loss(o, TM_LOSS_ROBUST) && o->label_smoothing >= 0.5)
        cfg_wrong(s, smoothing, "\"%s\" 0.5 and loss_type robust: it divides by 1 - 2 label_smoothing",
                  smoothing->spelled);
}

tm_status config_resolve_objective(cfg_state *s) {
    enum { GRPO = TM_OBJECTIVES };
    tm_config *c = &s->cfg->pub;
    int type = cfg_choice(s, SECTION "type");
    const cfg_value *v = cfg_given(s, SECTION "type");
    if (type == GRPO) cfg_unsupported(s, v, "\"%s\" grpo is not in this version", v->spelled);
    c->objective = tm_objective_defaults(type == GRPO ? TM_OBJECTIVE_SFT : (tm_objective_type)type);
    take(s, "beta", &c->objective.beta);
    take(s, "label_smoothing", &c->objective.label_smoothing);
    take(s, "rpo_alpha", &c->objective.rpo_alpha);
    config_resolve_losses(s);
    take(s, "simpo_gamma", &c->objective.simpo_gamma);
    take(s, "cpo_alpha", &c->objective.cpo_alpha);
    take(s, "desirable_weight", &c->objective.desirable_weight);
    take(s, "undesirable_weight", &c->objective.undesirable_weight);
    TM_TRY(cfg_fill_path(s, SECTION "reference"));
    check_keys(s);
    check_values(s);
    return TM_OK;
}
