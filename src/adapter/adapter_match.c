/* What a name gets: PEFT's check_target_module_exists, get_pattern_key and _set_trainable (tuners/tuners_utils.py and
 * utils/other.py of 0.21.2). */
#include "adapter/adapter_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tm_status first_of(const adapter_rules *rules, const char *module, uint32_t *index) {
    bool found = false;
    for (*index = 0; *index < rules->n; ++*index) {
        TM_TRY(tm_pattern_finds(rules->item[*index], module, &found));
        if (found) break;
    }
    return TM_OK;
}

static tm_status any_of(const adapter_rules *rules, const char *module, bool *yes) {
    uint32_t index;
    TM_TRY(first_of(rules, module, &index));
    *yes = index < rules->n;
    return TM_OK;
}

static bool by_word(const tm_adapter_choice *c, const char *module) {
    bool embedding = adapter_is_embedding(module);
    if (c->all_linear && !embedding && !adapter_is_head(module) && !adapter_is_norm(module)) return true;
    return (c->all_embedding && embedding) || (c->all_norm && adapter_is_norm(module));
}

/* ---- what is trained whole -------------------------------------------------------------------------------------- */

static bool is_saved(const tm_adapter_choice *c, const char *module) {
    for (uint32_t i = 0; i < c->names.n; i++)
        if (adapter_has_suffix(module, c->names.item[i])) return true;
    return by_word(c, module);
}

/* A list of layers is no module that can be saved. */
static bool before_number(const char *dot) {
    size_t digits = strspn(dot + 1, "0123456789");
    return digits && (!dot[1 + digits] || dot[1 + digits] == '.');
}

bool adapter_saves_module(const tm_adapter_config *a, const char *module) {
    char around[512];
    size_t n = strlen(module);
    if (n >= sizeof around) return false;
    memcpy(around, module, n + 1);
    for (char *end = around + n; end; end = strrchr(around, '.')) {
        bool list = (size_t)(end - around) < n && before_number(module + (end - around));
        *end = 0;
        if (!list && is_saved(&a->modules_to_save, around)) return true;
    }
    return false;
}

/* ---- what is adapted -------------------------------------------------------------------------------------------- */

static tm_status is_excluded(const tm_adapter_config *a, const char *module, bool *yes) {
    const tm_adapter_choice *c = &a->exclude_modules;
    *yes = adapter_is_norm(module) || adapter_saves_module(a, module) || by_word(c, module);
    for (uint32_t i = 0; i < c->names.n && !*yes; i++) *yes = adapter_has_end(module, c->names.item[i]);
    if (!*yes) TM_TRY(any_of(&a->own->exclude, module, yes));
    return *yes ? TM_OK : any_of(&a->own->saved, module, yes);
}

/* The number behind the first pattern that is there. */
static tm_status in_layers(const tm_adapter_config *a, const char *module, bool *yes) {
    uint32_t which;
    size_t begin = 0, n = 0;
    *yes = false;
    TM_TRY(first_of(&a->own->layers, module, &which));
    if (which == a->own->layers.n || !tm_pattern_group(a->own->layers.item[which], "idx", &begin, &n)) return TM_OK;
    unsigned long layer = strtoul(module + begin, NULL, 10);
    for (uint32_t i = 0; i < a->n_layers; i++) *yes |= a->layers_to_transform[i] == layer;
    return TM_OK;
}

static tm_status is_target(const tm_adapter_config *a, const char *module, bool *yes) {
    const tm_adapter_choice *c = &a->target_modules;
    *yes = by_word(c, module);
    if (*yes) return TM_OK;
    if (c->regex) return any_of(&a->own->target, module, yes);
    bool by_end = false;
    for (uint32_t i = 0; i < c->names.n; i++) {
        *yes |= !strcmp(module, c->names.item[i]);
        by_end |= adapter_has_end(module, c->names.item[i]);
    }
    if (*yes || !by_end || !a->n_layers) {
        *yes |= by_end;
        return TM_OK;
    }
    return in_layers(a, module, yes);
}

static tm_status value_of(const adapter_rules *rules, tm_adapter_patterns patterns, const char *module, double *value) {
    uint32_t which;
    TM_TRY(first_of(rules, module, &which));
    if (which < patterns.n) *value = patterns.item[which].value;
    return TM_OK;
}

tm_status adapter_adapts(const tm_adapter_config *a, const char *module, tm_adapter_spec *out, bool *yes) {
    bool excluded;
    double rank = a->r, alpha = a->alpha;
    *yes = false;
    TM_TRY(is_excluded(a, module, &excluded));
    if (excluded) return TM_OK;
    TM_TRY(is_target(a, module, yes));
    if (!*yes) return TM_OK;
    TM_TRY(value_of(&a->own->rank, a->rank_pattern, module, &rank));
    TM_TRY(value_of(&a->own->alpha, a->alpha_pattern, module, &alpha));
    *out = (tm_adapter_spec){.rank = (uint32_t)rank,
                             .scale = alpha / (a->use_rslora ? sqrt(rank) : rank),
                             .dora = a->use_dora,
                             .pissa = a->init == TM_ADAPTER_INIT_PISSA && !adapter_is_embedding(module),
                             .init_std = a->init == TM_ADAPTER_INIT_GAUSSIAN ? 1 / rank : 0};
    return TM_OK;
}

bool tm_adapter_module(const tm_adapter_config *a, const char *module, tm_adapter_spec *out) {
    bool yes = false;
    tm_adapter_spec spec;
    tm_status rc = adapter_adapts(a, tm_adapter_bare_name(module), &spec, &yes);
    if (rc != TM_OK) tm_error_clear(); /* tm_adapter_check has reported it */
    if (rc == TM_OK && yes) *out = spec;
    return rc == TM_OK && yes;
}

bool tm_adapter_keeps_base(const tm_adapter_config *a) {
    const tm_adapter_choice *saved = &a->modules_to_save;
    bool any = saved->names.n || saved->regex || saved->all_linear || saved->all_embedding || saved->all_norm;
    return !any && a->bias == TM_ADAPTER_BIAS_NONE;
}

bool tm_adapter_learns(const tm_adapter_config *a, const char *tensor) {
    char module[512];
    tm_adapter_spec spec;
    tensor = tm_adapter_bare_name(tensor);
    const char *dot = strrchr(tensor, '.');
    size_t n = dot ? (size_t)(dot - tensor) : 0;
    if (n >= sizeof module) return false;
    memcpy(module, tensor, n);
    module[n] = 0;
    if (n && adapter_saves_module(a, module)) return true;
    if (a->bias == TM_ADAPTER_BIAS_NONE || strcmp(dot ? dot + 1 : tensor, "bias") != 0) return false;
    return a->bias == TM_ADAPTER_BIAS_ALL || tm_adapter_module(a, module, &spec);
}
