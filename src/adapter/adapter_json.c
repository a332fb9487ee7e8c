/* adapter_config.json as PEFT 0.21 writes it: every key of LoraConfig, in the order of the alphabet. */
#include "adapter/adapter_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct writing {
    tm_json_writer *w;
    const tm_adapter_config *a;
    const tm_adapter_json_opts *opts;
    tm_status status;
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

static void write_list(tm_json_writer *w, tm_adapter_names names) {
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

static void write_chosen(writing *g, chosen *is) {
    size_t n = 0;
    bool leaves = leaves_suffice(g, is);
    const char **name = tm_malloc((g->opts->n_modules + 1) * sizeof *name);
    if (!name) {
        g->status = tm_nomem((g->opts->n_modules + 1) * sizeof *name);
        return;
    }
    for (size_t i = 0; i < g->opts->n_modules; i++) {
        const char *module = tm_adapter_bare_name(g->opts->module[i]);
        if (is(g->a, module)) name[n++] = leaves ? adapter_leaf(module) : module;
    }
    qsort(name, n, sizeof *name, by_text);
    tm_jw_array(g->w);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(name[i], name[i - 1]) != 0) tm_jw_str(g->w, name[i]);
    tm_jw_array_end(g->w);
    tm_free(name);
}

static void write_words(tm_json_writer *w, const tm_adapter_choice *c) {
    tm_jw_array(w);
    write_names(w, c->names);
    if (c->all_linear) tm_jw_str(w, "all-linear");
    if (c->all_embedding) tm_jw_str(w, "all-embedding");
    if (c->all_norm) tm_jw_str(w, "all-norm");
    tm_jw_array_end(w);
}

static void write_choice(writing *g, const tm_adapter_choice *c, chosen *is) {
    bool words = c->all_linear || c->all_embedding || c->all_norm;
    if (words && g->opts->module)
        write_chosen(g, is);
    else if (c->regex || (c->all_linear && !c->all_embedding && !c->names.n))
        tm_jw_str(g->w, c->regex ? c->regex : "all-linear");
    else if (words)
        write_words(g->w, c);
    else
        write_list(g->w, c->names);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

typedef void write_value(writing *g);

static void v_null(writing *g) {
    tm_jw_null(g->w);
}
static void v_false(writing *g) {
    tm_jw_bool(g->w, false);
}
static void v_true(writing *g) {
    tm_jw_bool(g->w, true);
}

/* A and B of twice the rank at the same scale. */
static double alpha_factor(const writing *g) {
    return !g->opts->twice_the_rank ? 1 : g->a->use_rslora ? sqrt(2) : 2;
}
static uint32_t rank_factor(const writing *g) {
    return g->opts->twice_the_rank ? 2 : 1;
}

/* In the order in which they are tried. (PEFT sorts them, and then tries them in another order than it trained with.) */
static void write_patterns(tm_json_writer *w, tm_adapter_patterns patterns, double factor) {
    tm_jw_object(w);
    for (uint32_t i = 0; i < patterns.n; i++) {
        tm_jw_key(w, patterns.item[i].key);
        write_number(w, patterns.item[i].value * factor);
    }
    tm_jw_object_end(w);
}
static void v_alpha_pattern(writing *g) {
    write_patterns(g->w, g->a->alpha_pattern, alpha_factor(g));
}
static void v_rank_pattern(writing *g) {
    write_patterns(g->w, g->a->rank_pattern, rank_factor(g));
}
static void v_alpha(writing *g) {
    write_number(g->w, g->a->alpha * alpha_factor(g));
}
static void v_rank(writing *g) {
    tm_jw_uint(g->w, (uint64_t)g->a->r * rank_factor(g));
}
static void v_dropout(writing *g) {
    tm_jw_double(g->w, g->a->dropout);
}
static void v_lr_ratio(writing *g) {
    write_number(g->w, g->a->lr_ratio);
}
static void v_embedding_lr(writing *g) {
    tm_jw_double(g->w, g->a->embedding_lr);
}
static void v_base_model(writing *g) {
    tm_jw_str(g->w, g->opts->base_model ? g->opts->base_model : g->a->base_model);
}
static void v_bias(writing *g) {
    static const char *const words[] = {"none", "all", "lora_only"};
    tm_jw_str(g->w, words[g->a->bias]);
}
static void v_tying(writing *g) {
    tm_jw_bool(g->w, g->a->ensure_weight_tying);
}
static void v_fan_in(writing *g) {
    tm_jw_bool(g->w, g->a->fan_in_fan_out);
}
static void v_dora(writing *g) {
    tm_jw_bool(g->w, g->a->use_dora);
}
static void v_rslora(writing *g) {
    tm_jw_bool(g->w, g->a->use_rslora);
}
static void v_exclude(writing *g) {
    write_choice(g, &g->a->exclude_modules, NULL);
}
static void v_saved(writing *g) {
    write_choice(g, &g->a->modules_to_save, adapter_saves_module);
}
static void v_targets(writing *g) {
    write_choice(g, &g->a->target_modules, is_adapted);
}
static void v_layers_pattern(writing *g) {
    write_list(g->w, g->a->layers_pattern);
}
static void v_layers(writing *g) {
    if (!g->a->n_layers) {
        tm_jw_null(g->w);
        return;
    }
    tm_jw_array(g->w);
    for (uint32_t i = 0; i < g->a->n_layers; i++) tm_jw_uint(g->w, g->a->layers_to_transform[i]);
    tm_jw_array_end(g->w);
}
static void v_init(writing *g) {
    const char *word = g->a->init_word;
    bool is_true = g->opts->plain || g->opts->twice_the_rank || !strcmp(word, "true");
    if (is_true || !strcmp(word, "false"))
        tm_jw_bool(g->w, is_true);
    else
        tm_jw_str(g->w, word);
}
static void v_loftq(writing *g) {
    tm_jw_object(g->w);
    tm_jw_object_end(g->w);
}
static void v_megatron(writing *g) {
    tm_jw_str(g->w, "megatron.core");
}
static void v_peft_type(writing *g) {
    tm_jw_str(g->w, "LORA");
}
static void v_version(writing *g) {
    tm_jw_str(g->w, "0.21.2");
}
static void v_group_size(writing *g) {
    tm_jw_uint(g->w, 16);
}
static void v_task(writing *g) {
    tm_jw_str(g->w, "CAUSAL_LM");
}

static const struct {
    const char *key;
    write_value *write;
} keys[] = {
    {"alora_invocation_tokens", v_null},
    {"alpha_pattern", v_alpha_pattern},
    {"arrow_config", v_null},
    {"auto_mapping", v_null},
    {"base_model_name_or_path", v_base_model},
    {"bias", v_bias},
    {"corda_config", v_null},
    {"ensure_weight_tying", v_tying},
    {"eva_config", v_null},
    {"exclude_modules", v_exclude},
    {"fan_in_fan_out", v_fan_in},
    {"inference_mode", v_true},
    {"init_lora_weights", v_init},
    {"kasa_config", v_null},
    {"layer_replication", v_null},
    {"layers_pattern", v_layers_pattern},
    {"layers_to_transform", v_layers},
    {"loftq_config", v_loftq},
    {"lora_alpha", v_alpha},
    {"lora_bias", v_false},
    {"lora_dropout", v_dropout},
    {"lora_ga_config", v_null},
    {"megatron_config", v_null},
    {"megatron_core", v_megatron},
    {"modules_to_save", v_saved},
    {"monteclora_config", v_null},
    {"peft_type", v_peft_type},
    {"peft_version", v_version},
    {"qalora_group_size", v_group_size},
    {"r", v_rank},
    {"rank_pattern", v_rank_pattern},
    {"revision", v_null},
    {"target_modules", v_targets},
    {"target_parameters", v_null},
    {"task_type", v_task},
    {"trainable_token_indices", v_null},
    {"use_bdlora", v_null},
    {"use_dora", v_dora},
    {"use_qalora", v_false},
    {"use_rslora", v_rslora},
    {"velora_config", v_null},
    /* not PEFT's */
    {"lorap_lr_ratio", v_lr_ratio},
    {"lorap_emb_lr", v_embedding_lr},
};
enum { OURS = 2 };

void tm_adapter_write_value(const tm_adapter_config *a, const char *key, tm_json_writer *w) {
    writing g = {.w = w, .a = a, .opts = &(tm_adapter_json_opts){0}};
    size_t i = 0;
    while (i < TM_COUNT(keys) && strcmp(keys[i].key, key) != 0) i++;
    TM_ASSERT(i < TM_COUNT(keys));
    keys[i].write(&g);
}

tm_status tm_adapter_write_json(const tm_adapter_config *a, const tm_adapter_json_opts *opts, tm_buf *out) {
    tm_json_writer w;
    writing g = {.w = &w, .a = a, .opts = opts};
    tm_jw_init(&w, out, 2);
    w.ascii = true;
    tm_jw_object(&w);
    for (size_t i = 0; i < TM_COUNT(keys) - OURS && g.status == TM_OK; i++) {
        tm_jw_key(&w, keys[i].key);
        keys[i].write(&g);
    }
    tm_jw_object_end(&w);
    return tm_first(g.status, tm_jw_end(&w));
}
