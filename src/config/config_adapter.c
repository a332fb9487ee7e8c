/* The adapter: PEFT's keys under "adapter", or the flat names of ms-swift and others, which are the same rows. src/adapter
 * takes the values. */
#include "config/config_internal.h"

#include <stdio.h>
#include <string.h>

#define ADAPTER "adapter."

static const char *leaf_of(const schema_row *row) {
    return row->path + sizeof ADAPTER - 1;
}

/* A row that src/adapter takes, and its value; NULL: it is none, or was not given. */
static const cfg_value *taken(const cfg_state *s, size_t i) {
    const schema_row *row = &schema_rows[i];
    bool is = !strncmp(row->path, ADAPTER, sizeof ADAPTER - 1) && !row->alias_of && row->kind == K_OURS;
    return is && tm_adapter_is_key(leaf_of(row)) ? cfg_given(s, row->path) : NULL;
}

static const char *folder_of(const cfg_value *v) {
    return v->node->type == TM_JSON_ARRAY ? v->node->child->text : v->node->text;
}

/* ---- is there one ----------------------------------------------------------------------------------------------- */

static const cfg_value *if_on(const cfg_value *v) {
    return v && !cfg_is_off(v->node) ? v : NULL;
}

/* What asks for one without naming a type, or NULL. */
static const cfg_value *asked_for(const cfg_state *s) {
    static const char *const others[] = {"adapter.path", "adapters", "target_regex", "use_peft"};
    if (cfg_raw(s, "adapter")) return cfg_raw(s, "adapter");
    for (size_t i = 0; i < schema_row_count; i++)
        if (if_on(taken(s, i))) return taken(s, i);
    for (size_t i = 0; i < TM_COUNT(others); i++)
        if (if_on(cfg_given(s, others[i]))) return cfg_given(s, others[i]);
    return NULL;
}

/* "adapter" was written, or a key in it: then PEFT's defaults hold, else those of the flat names' program. */
static bool by_peft(const cfg_state *s) {
    bool is = cfg_raw(s, "adapter") || cfg_raw(s, "adapter.path");
    for (size_t i = 0; i < schema_row_count && !is; i++) {
        const cfg_value *v = taken(s, i);
        is = v && !strncmp(v->spelled, ADAPTER, sizeof ADAPTER - 1);
    }
    return is;
}

static bool is_wanted(cfg_state *s) {
    char w[256];
    const cfg_value *tuner = cfg_given(s, "tuner_type"), *asked = asked_for(s);
    bool full = tuner && cfg_chosen(s, "tuner_type", "full");
    if (full && asked)
        cfg_wrong(s, asked,
                  "\"%s\" asks for an adapter, but \"tuner_type\" full (%s) trains all parameters; leave one out",
                  asked->spelled, cfg_where(tuner, w, sizeof w));
    return full ? false : tuner || asked;
}

/* ---- its values ------------------------------------------------------------------------------------------------- */

/* The pending failure becomes a problem of `v`. */
static void collect(cfg_state *s, const cfg_value *v, tm_status rc) {
    tm_error e = *tm_error_get();
    if (rc != TM_EINPUT && rc != TM_EUNSUPPORTED) {
        cfg_keep(s, rc);
        return;
    }
    tm_error_clear();
    if (rc == TM_EINPUT)
        cfg_wrong(s, v, "%s", e.text);
    else
        cfg_unsupported(s, v, "%s", e.text);
}

static void take(cfg_state *s, tm_adapter_config *a, const char *key, const cfg_value *v) {
    tm_status rc = tm_adapter_set(a, key, v->node);
    if (rc != TM_OK) collect(s, v, rc);
}

/* A string that the user did not write as one of that key. */
static void take_word(cfg_state *s, tm_adapter_config *a, const char *key, const cfg_value *v) {
    cfg_value word = *v;
    tm_json node = {.type = TM_JSON_STRING, .text = v->node->text, .len = v->node->len};
    word.node = &node;
    node.line = v->node->line;
    node.column = v->node->column;
    take(s, a, key, &word);
}

static tm_status read_folder(cfg_state *s, tm_adapter_config *a, const cfg_value *v, const char *folder) {
    char w[256], path[4096];
    tm_buf text = {0};
    if (!s->opts->read_file)
        return tm_fail(TM_EINPUT, "%s: \"%s\" names a folder, which cannot be read here", cfg_where(v, w, sizeof w),
                       v->spelled);
    size_t n = strlen(folder);
    if (n + sizeof "/adapter_config.json" > sizeof path)
        return tm_fail(TM_EINPUT, "%s: \"%s\" is a path of %zu bytes", cfg_where(v, w, sizeof w), v->spelled, n);
    snprintf(path, sizeof path, "%s%sadapter_config.json", folder, n && folder[n - 1] == '/' ? "" : "/");
    tm_status rc = s->opts->read_file(s->opts->read_ctx, path, &text);
    if (rc == TM_OK) rc = tm_adapter_read(a, text.data ? text.data : "", text.len, path);
    tm_buf_free(&text);
    return rc;
}

/* Of "adapter.path" and ms-swift's list. NULL: a new adapter. */
static const cfg_value *folder(cfg_state *s) {
    const cfg_value *path = cfg_given(s, "adapter.path"), *list = if_on(cfg_given(s, "adapters"));
    if (list && list->node->type == TM_JSON_ARRAY && list->node->count > 1) {
        cfg_unsupported(s, list,
                        "\"adapters\" has %zu; one adapter is trained: merge the others with `tidemill export`",
                        list->node->count);
        return NULL;
    }
    if (path && list && strcmp(folder_of(path), folder_of(list)) != 0)
        cfg_mismatch(s, path->spelled, path, "adapters", list);
    const cfg_value *from = path ? path : list;
    if (from && !*folder_of(from)) cfg_wrong(s, from, "\"%s\" must name an adapter's folder", from->spelled);
    return from;
}

static void take_all(cfg_state *s, tm_adapter_config *a) {
    const cfg_value *tuner = cfg_given(s, "tuner_type"), *type = cfg_given(s, "adapter.type");
    const cfg_value *regex = if_on(cfg_given(s, "target_regex")), *targets = cfg_given(s, "adapter.target_modules");
    for (size_t i = 0; i < schema_row_count; i++)
        if (taken(s, i)) take(s, a, leaf_of(&schema_rows[i]), taken(s, i));
    if (tuner && type && cfg_choice(s, "tuner_type") - 1 != cfg_choice(s, "adapter.type"))
        cfg_mismatch(s, tuner->spelled, tuner, type->spelled, type);
    if (tuner && !type) take(s, a, "type", tuner);
    if (regex && targets) cfg_mismatch(s, "target_regex", regex, targets->spelled, targets);
    if (regex) take_word(s, a, "target_modules", regex);
}

static bool is_four_bit(const cfg_state *s) {
    return cfg_chosen(s, "tuner_type", "qlora") || cfg_chosen(s, "adapter.type", "qlora");
}

/* A 4-bit base, whether the model's folder has it so or not. */
static void resolve_qlora(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *type = cfg_given(s, "quantization.type");
    const cfg_value *q =
        cfg_chosen(s, "tuner_type", "qlora") ? cfg_given(s, "tuner_type") : cfg_given(s, "adapter.type");
    if (!is_four_bit(s)) return;
    if (type && c->quantization.type == TM_QUANTIZE_NONE)
        cfg_mismatch(s, q->spelled, q, "quantization.type", type);
    else if (c->quantization.type == TM_QUANTIZE_NONE)
        c->quantization.type = TM_QUANTIZE_NF4;
}

/* Of the program whose names these are: LLaMA-Factory's, or ms-swift's. */
static void take_defaults(const cfg_state *s, tm_adapter_config *a) {
    bool factory = cfg_given(s, "finetuning_type") || cfg_given(s, "lora_target");
    a->alpha = factory ? 2 * (double)cfg_integer(s, "adapter.r") : 32;
    a->dropout = factory ? 0 : 0.05;
}

static tm_status build(cfg_state *s, tm_adapter_config *a) {
    tm_config *c = &s->cfg->pub;
    unsigned before = s->n_problems;
    const cfg_value *from = folder(s), *asked = asked_for(s);
    if (!by_peft(s)) take_defaults(s, a);
    if (from && s->n_problems == before) {
        c->adapter_path = cfg_strndup(s->cfg, folder_of(from), strlen(folder_of(from)));
        if (!c->adapter_path) return TM_ENOMEM;
        TM_TRY(cfg_find_model(s, &c->adapter_path));
        TM_TRY(read_folder(s, a, from, c->adapter_path));
    }
    take_all(s, a);
    resolve_qlora(s);
    if (s->n_problems > before) return TM_OK; /* it is reported, and not asked */
    tm_status rc = tm_adapter_complete(a);
    if (rc != TM_OK) collect(s, asked ? asked : cfg_given(s, "tuner_type"), rc);
    return TM_OK;
}

tm_status config_resolve_adapter(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    tm_adapter_config *a;
    if (!is_wanted(s)) return TM_OK;
    TM_TRY(tm_adapter_create(&a));
    c->adapter = a;
    if (!cfg_given(s, "learning_rate")) c->learning_rate = 1e-4; /* ms-swift's */
    return build(s, a);
}
