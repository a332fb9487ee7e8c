/* Parameters that are frozen by name, and that what is frozen is all that may be quantised. */
#include "config/config_internal.h"

#include <string.h>

static const char *const keys[] = {"freeze_parameters",    "freeze_parameters_regex",    "freeze_parameters_ratio",
                                   "trainable_parameters", "trainable_parameters_regex", "freeze_trainable_layers"};

static const cfg_value *first_said(const cfg_state *s) {
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const cfg_value *v = cfg_given(s, keys[i]);
        if (v && !cfg_is_off(v->node)) return v;
    }
    return NULL;
}

static tm_adapter_names names_of(tm_strings list) {
    return (tm_adapter_names){list.item, list.n};
}

/* An expression that is none is a problem like any other. */
static tm_status create(cfg_state *s, const cfg_value *at) {
    tm_config *c = &s->cfg->pub;
    tm_freeze *f = NULL;
    tm_status rc =
        tm_freeze_create(&f, &(tm_freeze_opts){.freeze_parameters = names_of(c->freezing.freeze_parameters),
                                               .freeze_parameters_regex = c->freezing.freeze_parameters_regex,
                                               .freeze_parameters_ratio = c->freezing.freeze_parameters_ratio,
                                               .freeze_trainable_layers = c->freezing.freeze_trainable_layers,
                                               .trainable_parameters = names_of(c->freezing.trainable_parameters),
                                               .trainable_parameters_regex = c->freezing.trainable_parameters_regex});
    c->freeze = f;
    if (rc != TM_EINPUT && rc != TM_EUNSUPPORTED) return rc;
    tm_error e = *tm_error_get();
    tm_error_clear();
    cfg_wrong(s, at, "%s", e.text);
    return TM_OK;
}

static void check_quantization(cfg_state *s) {
    const tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_raw(s, "quantization");
    if (!v) v = cfg_given(s, "quantization.type") ? cfg_given(s, "quantization.type") : cfg_given(s, "quant_bits");
    if (c->quantization.type == TM_QUANTIZE_NONE || c->adapter || c->freeze) return;
    cfg_wrong(s, v ? v : &s->whole,
              "a base in 4 bits does not learn: give an \"adapter\" beside \"quantization\", or leave it out");
}

tm_status config_resolve_freezing(cfg_state *s) {
    const cfg_value *said = first_said(s);
    if (said && s->cfg->pub.adapter)
        cfg_wrong(s, said,
                  "\"%s\" beside an adapter, whose base is frozen anyway; leave it out, or name what shall learn whole "
                  "in \"modules_to_save\"",
                  said->spelled);
    else if (said)
        TM_TRY(create(s, said));
    check_quantization(s);
    return TM_OK;
}
