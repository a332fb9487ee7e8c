/* adapter_config.json as PEFT 0.21 writes it: every key of LoraConfig, in the order of the alphabet. */
#include "adapter/adapter_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct writing {
    tm_json_writer w;
    const tm_adapter_config *a;
    const tm_adapter_json_opts *opts;
} writing;

static void write_number(tm_json_writer *w, double v) {
    if (v == floor(v) && fabs(v) < 1e15)
        tm_jw_int(w, (int64_t)v);
    else
        tm_jw_double(w, v);
}

static void write_names(tm_json_writer *w, tm_adapter_names names) {
    for (uint32_t i = 0; i < names.n; i++) tm_jw_str(w, names.item[i]);
}

static void write_list(tm_json_writer *w, const char *key, tm_adapter_names names) {
    tm_jw_key(w, key);
    if (!names.n) {
        tm_jw_null(w);
        return;
    }
    tm_jw_array(w);
    write_names(w, names);
    tm_jw_array_end(w);
}

/* ---- words that stand for modules of this model ----------------------------------------------------------------- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

typedef bool chosen(const tm_adapter_config *a, const char *module);

static bool is_adapted(const tm_adapter_config *a, const char *module) {
    tm_adapter_spec spec;
    return tm_adapter_module(a, module, &spec);
}

/* Does a module's last name alone say of every module whether it is one? */
static bool leaves_suffice(const writing *g, chosen *is) {
    for (size_t i = 0; i < g->opts->n_modules; i++)
        for (size_t j = 0; j < i; j++) {
            const char *x = g->opts->module[i], *y = g->opts->module[j];
            if (!strcmp(adapter_leaf(x), adapter_leaf(y)) && is(g->a, x) != is(g->a, y)) return false;
        }
    return true;
}

static tm_status write_chosen(writing *g, chosen *is) {
    size_t n = 0;
    bool leaves = leaves_suffice(g, is);
    const char **name = tm_malloc((g->opts->n_modules + 1) * sizeof *name);
    if (!name) return tm_nomem((g->opts->n_modules + 1) * sizeof *name);
    for (size_t i = 0; i < g->opts->n_modules; i++) {
        const char *module = tm_adapter_bare_name(g->opts->module[i]);
        if (is(g->a, module)) name[n++] = leaves ? adapter_leaf(module) : module;
    }
    qsort(name, n, sizeof *name, by_text);
    tm_jw_array(&g->w);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(name[i], name[i - 1]) != 0) tm_jw_str(&g->w, name[i]);
    tm_jw_array_end(&g->w);
    tm_free(name);
    return TM_OK;
}

static tm_status write_choice(writing *g, const char *key, const tm_adapter_choice *c, chosen *is) {
    bool words = c->all_linear || c->all_embedding || c->all_norm;
    if (!words && !c->regex) {
        write_list(&g->w, key, c->names);
        return TM_OK;
    }
    tm_jw_key(&g->w, key);
    if (words && g->opts->module) return write_chosen(g, is);
    if (c->regex || (c->all_linear && !c->all_embedding && !c->names.n)) {
        tm_jw_str(&g->w, c->regex ? c->regex : "all-linear");
        return TM_OK;
    }
    tm_jw_array(&g->w);
    write_names(&g->w, c->names);
    if (c->all_linear) tm_jw_str(&g->w, "all-linear");
    if (c->all_embedding) tm_jw_str(&g->w, "all-embedding");
    if (c->all_norm) tm_jw_str(&g->w, "all-norm");
    tm_jw_array_end(&g->w);
    return TM_OK;
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

/* A and B of twice the rank at the same scale. */
static double alpha_factor(const writing *g) {
    return !g->opts->twice_the_rank ? 1 : g->a->use_rslora ? sqrt(2) : 2;
}

/* In the order in which they are tried. (PEFT sorts them, and then tries them in another order than it trained with.) */
static void write_patterns(tm_json_writer *w, const char *key, tm_adapter_patterns patterns, double factor) {
    tm_jw_field_object(w, key);
    for (uint32_t i = 0; i < patterns.n; i++) {
        tm_jw_key(w, patterns.item[i].key);
        write_number(w, patterns.item[i].value * factor);
    }
    tm_jw_object_end(w);
}

static void write_layers(tm_json_writer *w, const tm_adapter_config *a) {
    tm_jw_key(w, "layers_to_transform");
    if (!a->n_layers) {
        tm_jw_null(w);
        return;
    }
    tm_jw_array(w);
    for (uint32_t i = 0; i < a->n_layers; i++) tm_jw_uint(w, a->layers_to_transform[i]);
    tm_jw_array_end(w);
}

static void write_init(tm_json_writer *w, const tm_adapter_config *a, bool plain) {
    tm_jw_key(w, "init_lora_weights");
    bool is_true = plain || !strcmp(a->init_word, "true");
    if (is_true || !strcmp(a->init_word, "false"))
        tm_jw_bool(w, is_true);
    else
        tm_jw_str(w, a->init_word);
}

static void write_nulls(tm_json_writer *w, const char *const *keys, size_t n) {
    for (size_t i = 0; i < n; i++) tm_jw_field_str(w, keys[i], NULL);
}
#define NULLS(w, ...) write_nulls(w, (const char *const[]){__VA_ARGS__}, TM_COUNT(((const char *const[]){__VA_ARGS__})))

static void write_to_layers(writing *g) {
    static const char *const biases[] = {"none", "all", "lora_only"};
    tm_json_writer *w = &g->w;
    const tm_adapter_config *a = g->a;
    tm_jw_field_str(w, "alora_invocation_tokens", NULL);
    write_patterns(w, "alpha_pattern", a->alpha_pattern, alpha_factor(g));
    NULLS(w, "arrow_config", "auto_mapping");
    tm_jw_field_str(w, "base_model_name_or_path", g->opts->base_model ? g->opts->base_model : a->base_model);
    tm_jw_field_str(w, "bias", biases[a->bias]);
    tm_jw_field_str(w, "corda_config", NULL);
    tm_jw_field_bool(w, "ensure_weight_tying", a->ensure_weight_tying);
    tm_jw_field_str(w, "eva_config", NULL);
}

static void write_to_megatron(writing *g) {
    tm_json_writer *w = &g->w;
    const tm_adapter_config *a = g->a;
    tm_jw_field_bool(w, "fan_in_fan_out", a->fan_in_fan_out);
    tm_jw_field_bool(w, "inference_mode", true);
    write_init(w, a, g->opts->twice_the_rank);
    NULLS(w, "kasa_config", "layer_replication");
    write_list(w, "layers_pattern", a->layers_pattern);
    write_layers(w, a);
    tm_jw_field_object(w, "loftq_config");
    tm_jw_object_end(w);
    tm_jw_key(w, "lora_alpha");
    write_number(w, a->alpha * alpha_factor(g));
    tm_jw_field_bool(w, "lora_bias", false);
    tm_jw_field_double(w, "lora_dropout", a->dropout);
    NULLS(w, "lora_ga_config", "megatron_config");
    tm_jw_field_str(w, "megatron_core", "megatron.core");
}

static void write_to_target(writing *g) {
    tm_json_writer *w = &g->w;
    const tm_adapter_config *a = g->a;
    int factor = g->opts->twice_the_rank ? 2 : 1;
    tm_jw_field_str(w, "monteclora_config", NULL);
    tm_jw_field_str(w, "peft_type", "LORA");
    tm_jw_field_str(w, "peft_version", "0.21.2");
    tm_jw_field_uint(w, "qalora_group_size", 16);
    tm_jw_field_uint(w, "r", (uint64_t)a->r * (uint64_t)factor);
    write_patterns(w, "rank_pattern", a->rank_pattern, factor);
    tm_jw_field_str(w, "revision", NULL);
}

static void write_rest(writing *g) {
    tm_json_writer *w = &g->w;
    tm_jw_field_str(w, "target_parameters", NULL);
    tm_jw_field_str(w, "task_type", "CAUSAL_LM");
    NULLS(w, "trainable_token_indices", "use_bdlora");
    tm_jw_field_bool(w, "use_dora", g->a->use_dora);
    tm_jw_field_bool(w, "use_qalora", false);
    tm_jw_field_bool(w, "use_rslora", g->a->use_rslora);
    tm_jw_field_str(w, "velora_config", NULL);
}

tm_status tm_adapter_write_json(const tm_adapter_config *a, const tm_adapter_json_opts *opts, tm_buf *out) {
    writing g = {.a = a, .opts = opts};
    tm_jw_init(&g.w, out, 2);
    g.w.ascii = true;
    tm_jw_object(&g.w);
    write_to_layers(&g);
    TM_TRY(write_choice(&g, "exclude_modules", &a->exclude_modules, NULL));
    write_to_megatron(&g);
    TM_TRY(write_choice(&g, "modules_to_save", &a->modules_to_save, adapter_saves_module));
    write_to_target(&g);
    TM_TRY(write_choice(&g, "target_modules", &a->target_modules, is_adapted));
    write_rest(&g);
    tm_jw_object_end(&g.w);
    return tm_jw_end(&g.w);
}
