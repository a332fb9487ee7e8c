/* The keys of an adapter_config.json, a row each, and how a value is taken. */
#include "adapter/adapter_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct key_row key_row;
typedef tm_status take_value(tm_adapter_config *a, const key_row *row, const tm_json *v);
struct key_row {
    const char *key;
    take_value *take;
    size_t at;       /* in tm_adapter_config */
    double min, max; /* of a number: above min, up to max */
    const char *why; /* what a key that is not there would need */
};

static void *field(tm_adapter_config *a, const key_row *row) {
    return (char *)a + row->at;
}

static const char *show(const tm_json *v, char *buf, size_t cap) {
    if (v->type == TM_JSON_STRING)
        snprintf(buf, cap, "\"%.48s%s\"", v->text, v->len > 48 ? "..." : "");
    else if (v->type == TM_JSON_NUMBER)
        snprintf(buf, cap, "%.48s", v->text);
    else if (v->type == TM_JSON_BOOL)
        snprintf(buf, cap, "%s", v->boolean ? "true" : "false");
    else
        snprintf(buf, cap, "%s",
                 v->type == TM_JSON_ARRAY    ? "a list"
                 : v->type == TM_JSON_OBJECT ? "an object"
                                             : "null");
    return buf;
}

static tm_status must_be(const key_row *row, const tm_json *v, const char *what) {
    char shown[80];
    return tm_fail(TM_EINPUT, "\"%s\" must be %s, not %s", row->key, what, show(v, shown, sizeof shown));
}

static bool is_plain(const tm_json *v) {
    return v->type == TM_JSON_STRING && v->len > 0 && strlen(v->text) == v->len;
}

/* ---- scalars ---------------------------------------------------------------------------------------------------- */

static tm_status take_bool(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    if (v->type != TM_JSON_BOOL) return must_be(row, v, "true or false");
    *(bool *)field(a, row) = v->boolean;
    return TM_OK;
}

static tm_status take_rank(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    bool ok = v->type == TM_JSON_NUMBER && v->is_integer && v->integer >= 1 && v->integer <= ADAPTER_MOST_RANK;
    if (!ok) return must_be(row, v, "an integer from 1 to 65536");
    *(uint32_t *)field(a, row) = (uint32_t)v->integer;
    return TM_OK;
}

static bool is_between(const tm_json *v, double above, double to) {
    return v->type == TM_JSON_NUMBER && isfinite(v->number) && v->number > above && v->number <= to;
}

static tm_status take_number(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    if (!is_between(v, row->min, row->max)) return must_be(row, v, "a number above 0");
    *(double *)field(a, row) = v->number;
    return TM_OK;
}

static tm_status take_dropout(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    if (v->type != TM_JSON_NUMBER || !(v->number >= 0) || v->number >= 1)
        return must_be(row, v, "a number from 0 to below 1");
    a->dropout = v->number;
    return TM_OK;
}

static tm_status take_text(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    if (v->type != TM_JSON_STRING || strlen(v->text) != v->len) return must_be(row, v, "a string");
    *(const char **)field(a, row) = adapter_keep(a, v->text, v->len);
    return *(const char **)field(a, row) ? TM_OK : TM_ENOMEM;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

static int word_of(const tm_json *v, const char *const *words, int n) {
    for (int i = 0; i < n; i++)
        if (tm_json_is(v, words[i])) return i;
    return -1;
}

static tm_status take_bias(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    static const char *const words[] = {"none", "all", "lora_only"};
    int word = word_of(v, words, TM_COUNT(words));
    if (word < 0) return must_be(row, v, "\"none\", \"all\" or \"lora_only\"");
    a->bias = (tm_adapter_bias)word;
    return TM_OK;
}

static tm_status take_type(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    static const char *const words[] = {"lora", "LORA", "qlora", "rslora", "dora"};
    int word = word_of(v, words, TM_COUNT(words));
    char shown[80];
    if (word < 0)
        return tm_fail(TM_EUNSUPPORTED,
                       "\"%s\" %s: there are lora, rslora, dora and qlora (of PEFT's types LORA alone)", row->key,
                       show(v, shown, sizeof shown));
    a->own->type_rslora = word == 3;
    a->own->type_dora = word == 4;
    return TM_OK;
}

static tm_status take_task(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    char shown[80];
    (void)a;
    if (tm_json_is(v, "CAUSAL_LM")) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "\"%s\" %s: this program has language models, \"CAUSAL_LM\"", row->key,
                   show(v, shown, sizeof shown));
}

/* pissa_niter_N */
static bool iterations_of(const char *text, int32_t *n) {
    static const char stem[] = "pissa_niter_";
    char *end;
    if (strncmp(text, stem, sizeof stem - 1) != 0) return false;
    const char *digits = text + sizeof stem - 1;
    long value = strtol(digits, &end, 10);
    *n = (int32_t)value;
    return *digits >= '0' && *digits <= '9' && !*end && value <= 1000;
}

/* What the base of a stored adapter has been changed by is not in the folder; otherwise how it began makes no difference. */
static tm_status take_other_init(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    static const char *const harmless[] = {"false", "eva", "orthogonal"};
    char shown[80];
    bool stored = (v->type == TM_JSON_BOOL && !v->boolean) || word_of(v, harmless, TM_COUNT(harmless)) >= 0;
    if (!a->own->file || !stored)
        return tm_fail(TM_EUNSUPPORTED, "\"%s\" %s: there are true, \"gaussian\", \"pissa\" and \"pissa_niter_N\"",
                       row->key, show(v, shown, sizeof shown));
    a->init = TM_ADAPTER_INIT_STORED;
    a->init_word = v->type == TM_JSON_BOOL ? "false" : adapter_keep(a, v->text, v->len);
    return a->init_word ? TM_OK : TM_ENOMEM;
}

static tm_status take_init(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    bool is_true = (v->type == TM_JSON_BOOL && v->boolean) || tm_json_is(v, "true");
    int32_t n = -1;
    if (is_true) {
        a->init = TM_ADAPTER_INIT_DEFAULT;
        a->init_word = "true";
    } else if (tm_json_is(v, "gaussian")) {
        a->init = TM_ADAPTER_INIT_GAUSSIAN;
        a->init_word = "gaussian";
    } else if (tm_json_is(v, "pissa") || (is_plain(v) && iterations_of(v->text, &n))) {
        a->init = TM_ADAPTER_INIT_PISSA;
        a->init_word = adapter_keep(a, v->text, v->len);
    } else {
        return take_other_init(a, row, v);
    }
    a->pissa_iterations = n;
    return a->init_word ? TM_OK : TM_ENOMEM;
}

/* ---- lists ------------------------------------------------------------------------------------------------------ */

static bool all_plain(const tm_json *list) {
    for (const tm_json *c = list->child; c; c = c->next)
        if (!is_plain(c)) return false;
    return true;
}

static tm_status names_of(tm_adapter_config *a, const key_row *row, const tm_json *v, tm_adapter_names *out) {
    bool list = v->type == TM_JSON_ARRAY;
    if (list ? !all_plain(v) : !is_plain(v)) return must_be(row, v, "a list of names");
    if (list && v->count > ADAPTER_MOST_NAMES)
        return tm_fail(TM_EINPUT, "\"%s\" has %zu names; %d are the most", row->key, v->count, ADAPTER_MOST_NAMES);
    const tm_json *c = list ? v->child : v;
    uint32_t n = list ? (uint32_t)v->count : 1;
    const char **item = adapter_alloc(a, n * sizeof *item);
    if (!item) return TM_ENOMEM;
    for (uint32_t i = 0; i < n; i++, c = c->next) {
        item[i] = adapter_keep(a, c->text, c->len);
        if (!item[i]) return TM_ENOMEM;
    }
    *out = (tm_adapter_names){item, n};
    return TM_OK;
}

static tm_status take_names(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    return names_of(a, row, v, field(a, row));
}

/* Takes a word out of the list of names. */
static void lift(tm_adapter_choice *c, const char *word, bool *said) {
    const char **item = (const char **)(uintptr_t)c->names.item;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->names.n; i++) {
        bool is = !strcmp(item[i], word);
        *said |= is;
        if (!is) item[n++] = item[i];
    }
    c->names.n = n;
}

/* A string is one of the words, or a regular expression. */
static tm_status take_choice(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    tm_adapter_choice c = {0};
    bool targets = row->at == offsetof(tm_adapter_config, target_modules);
    if (is_plain(v) && targets && !strcasecmp(v->text, "all-linear")) {
        c.all_linear = true;
    } else if (is_plain(v)) {
        c.regex = adapter_keep(a, v->text, v->len);
        if (!c.regex) return TM_ENOMEM;
    } else {
        if (v->type != TM_JSON_ARRAY || (targets && !v->count))
            return must_be(row, v, "a list of names, a regular expression, or \"all-linear\"");
        TM_TRY(names_of(a, row, v, &c.names));
        if (targets) lift(&c, "all-linear", &c.all_linear);
        if (targets) lift(&c, "all-embedding", &c.all_embedding);
    }
    *(tm_adapter_choice *)field(a, row) = c;
    return TM_OK;
}

static tm_status take_saved(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    tm_adapter_choice c = {0};
    TM_TRY(names_of(a, row, v, &c.names));
    lift(&c, "all-embedding", &c.all_embedding);
    lift(&c, "all-norm", &c.all_norm);
    a->modules_to_save = c;
    return TM_OK;
}

static tm_status take_layers(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    bool list = v->type == TM_JSON_ARRAY;
    const tm_json *c = list ? v->child : v;
    size_t n = list ? v->count : 1;
    if (n > ADAPTER_MOST_NAMES || (!list && v->type != TM_JSON_NUMBER)) return must_be(row, v, "a list of layers");
    uint32_t *layer = adapter_alloc(a, n * sizeof *layer);
    if (!layer) return TM_ENOMEM;
    for (size_t i = 0; i < n; i++, c = c->next) {
        if (c->type != TM_JSON_NUMBER || !c->is_integer || c->integer < 0 || c->integer > UINT32_MAX)
            return must_be(row, c, "layers, numbers from 0 on");
        layer[i] = (uint32_t)c->integer;
    }
    a->layers_to_transform = layer;
    a->n_layers = (uint32_t)n;
    return TM_OK;
}

static tm_status take_patterns(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    bool ranks = row->at == offsetof(tm_adapter_config, rank_pattern);
    if (v->type != TM_JSON_OBJECT || v->count > ADAPTER_MOST_NAMES)
        return must_be(row, v, "an object: names or regular expressions, each with a number");
    tm_adapter_pattern *item = adapter_alloc(a, v->count * sizeof *item);
    if (!item) return TM_ENOMEM;
    uint32_t n = 0;
    for (const tm_json *c = v->child; c; c = c->next, n++) {
        char shown[80];
        bool ok = is_between(c, 0, ranks ? ADAPTER_MOST_RANK : 1e9) && (!ranks || c->is_integer);
        if (!ok || strlen(c->key) != c->key_len)
            return tm_fail(TM_EINPUT, "\"%s\": \"%.48s\" must be %s, not %s", row->key, c->key,
                           ranks ? "an integer from 1 to 65536" : "a number above 0", show(c, shown, sizeof shown));
        item[n] = (tm_adapter_pattern){adapter_keep(a, c->key, c->key_len), c->number};
        if (!item[n].key) return TM_ENOMEM;
    }
    *(tm_adapter_patterns *)field(a, row) = (tm_adapter_patterns){item, n};
    return TM_OK;
}

/* ---- what makes no difference, and what is not there ------------------------------------------------------------ */

static tm_status leave(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    (void)a, (void)row, (void)v;
    return TM_OK;
}

static bool is_off(const tm_json *v) {
    return v->type == TM_JSON_NULL || (v->type == TM_JSON_BOOL && !v->boolean) ||
           ((v->type == TM_JSON_ARRAY || v->type == TM_JSON_OBJECT) && v->count == 0) ||
           (v->type == TM_JSON_STRING && v->len == 0);
}

static tm_status want_off(tm_adapter_config *a, const key_row *row, const tm_json *v) {
    (void)a;
    if (is_off(v)) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "\"%s\": %s: not in this version; leave it out", row->key, row->why);
}

#define AT(name) offsetof(tm_adapter_config, name)
static const key_row rows[] = {
    {"peft_type", take_type, 0, 0, 0, NULL},
    {"r", take_rank, AT(r), 0, 0, NULL},
    {"lora_alpha", take_number, AT(alpha), 0, 1e9, NULL},
    {"lora_dropout", take_dropout, 0, 0, 0, NULL},
    {"target_modules", take_choice, AT(target_modules), 0, 0, NULL},
    {"exclude_modules", take_choice, AT(exclude_modules), 0, 0, NULL},
    {"modules_to_save", take_saved, 0, 0, 0, NULL},
    {"rank_pattern", take_patterns, AT(rank_pattern), 0, 0, NULL},
    {"alpha_pattern", take_patterns, AT(alpha_pattern), 0, 0, NULL},
    {"use_rslora", take_bool, AT(use_rslora), 0, 0, NULL},
    {"use_dora", take_bool, AT(use_dora), 0, 0, NULL},
    {"bias", take_bias, 0, 0, 0, NULL},
    {"layers_to_transform", take_layers, 0, 0, 0, NULL},
    {"layers_pattern", take_names, AT(layers_pattern), 0, 0, NULL},
    {"init_lora_weights", take_init, 0, 0, 0, NULL},
    {"fan_in_fan_out", take_bool, AT(fan_in_fan_out), 0, 0, NULL},
    {"ensure_weight_tying", take_bool, AT(ensure_weight_tying), 0, 0, NULL},
    {"lorap_lr_ratio", take_number, AT(lr_ratio), 0, 1e6, NULL},
    {"lorap_emb_lr", take_number, AT(embedding_lr), 0, 1e6, NULL},
    {"base_model_name_or_path", take_text, AT(base_model), 0, 0, NULL},
    {"task_type", take_task, 0, 0, 0, NULL},
    {"auto_mapping", leave, 0, 0, 0, NULL},
    {"revision", leave, 0, 0, 0, NULL},
    {"inference_mode", leave, 0, 0, 0, NULL},
    {"peft_version", leave, 0, 0, 0, NULL},
    {"runtime_config", leave, 0, 0, 0, NULL},
    {"megatron_core", leave, 0, 0, 0, NULL},     /* acts with megatron_config */
    {"qalora_group_size", leave, 0, 0, 0, NULL}, /* with use_qalora */
    {"loftq_config", leave, 0, 0, 0, NULL},      /* with init_lora_weights of that name, as the next three */
    {"eva_config", leave, 0, 0, 0, NULL},
    {"corda_config", leave, 0, 0, 0, NULL},
    {"lora_ga_config", leave, 0, 0, 0, NULL},
    {"target_parameters", want_off, 0, 0, 0, "adapters of fused experts"},
    {"trainable_token_indices", want_off, 0, 0, 0, "single rows of an embedding that learn"},
    {"layer_replication", want_off, 0, 0, 0, "layers that are there several times"},
    {"alora_invocation_tokens", want_off, 0, 0, 0, "activated LoRA"},
    {"use_qalora", want_off, 0, 0, 0, "QALoRA"},
    {"lora_bias", want_off, 0, 0, 0, "a bias of B"},
    {"use_bdlora", want_off, 0, 0, 0, "block-diagonal LoRA"},
    {"velora_config", want_off, 0, 0, 0, "VeLoRA"},
    {"monteclora_config", want_off, 0, 0, 0, "MonteCLoRA"},
    {"kasa_config", want_off, 0, 0, 0, "KaSA"},
    {"arrow_config", want_off, 0, 0, 0, "Arrow's routing"},
    {"megatron_config", want_off, 0, 0, 0, "Megatron's layers"},
};

static const key_row *row_of(const char *key) {
    static const char *const other[][2] = {{"type", "peft_type"},
                                           {"alpha", "lora_alpha"},
                                           {"targets", "target_modules"},
                                           {"loraplus_lr_ratio", "lorap_lr_ratio"},
                                           {"loraplus_lr_embedding", "lorap_emb_lr"}};
    for (size_t i = 0; i < TM_COUNT(other); i++)
        if (!strcmp(key, other[i][0])) key = other[i][1];
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        if (!strcmp(key, rows[i].key)) return &rows[i];
    return NULL;
}

bool tm_adapter_is_key(const char *key) {
    return row_of(key) != NULL;
}

tm_status tm_adapter_set(tm_adapter_config *a, const char *key, const tm_json *value) {
    const key_row *row = row_of(key);
    if (!row) return tm_fail(TM_EINPUT, "\"%.48s\" is no key of an adapter", key);
    return value->type == TM_JSON_NULL ? TM_OK : row->take(a, row, value);
}

/* ---- a whole file ----------------------------------------------------------------------------------------------- */

/* The failure of a key with its place before it. */
static tm_status at_place(const char *name, const tm_json *v) {
    tm_error e = *tm_error_get();
    if (e.code != TM_EINPUT && e.code != TM_EUNSUPPORTED) return e.code;
    tm_error_clear();
    return tm_fail(e.code, "%s:%u:%u: %s", name, v->line, v->column, e.text);
}

static tm_status read_member(tm_adapter_config *a, const tm_json *v, const char *name) {
    if (!tm_adapter_is_key(v->key))
        return is_off(v) ? TM_OK
                         : tm_fail(TM_EUNSUPPORTED,
                                   "%s:%u:%u: \"%.48s\" is not a key of adapter_config.json that this version knows",
                                   name, v->line, v->column, v->key);
    return tm_adapter_set(a, v->key, v) == TM_OK ? TM_OK : at_place(name, v);
}

static tm_status read_root(tm_adapter_config *a, const tm_json *root, const char *name) {
    if (root->type != TM_JSON_OBJECT)
        return tm_fail(TM_EINPUT, "%s: an adapter's configuration is a JSON object", name);
    if (!tm_json_get(root, "peft_type"))
        return tm_fail(TM_EINPUT, "%s: there is no \"peft_type\"; PEFT's adapter_config.json has one", name);
    const tm_json *targets = tm_json_get(root, "target_modules"), *parameters = tm_json_get(root, "target_parameters");
    if ((!targets || targets->type == TM_JSON_NULL) && (!parameters || is_off(parameters)))
        return tm_fail(TM_EINPUT, "%s: there are no \"target_modules\"", name);
    a->own->file = adapter_keep(a, name, strlen(name));
    if (!a->own->file) return TM_ENOMEM;
    for (const tm_json *v = root->child; v; v = v->next) TM_TRY(read_member(a, v, name));
    a->own->stored_rank = a->r;
    a->own->stored_dora = a->use_dora || a->own->type_dora;
    return TM_OK;
}

tm_status tm_adapter_read(tm_adapter_config *a, const char *text, size_t len, const char *name) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, text, len, name, 0, 0));
    tm_status rc = read_root(a, tm_json_root(doc), name);
    tm_json_free(doc);
    return rc;
}
