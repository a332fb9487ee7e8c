/* data.train and data.eval: a path, "path#N", an object that says more, or a list of these; data.columns. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- columns ------------------------------------------------------------------------------------------------------ */

/* `node` is an object of strings, or its mistake is collected. */
static tm_status take_columns(cfg_state *s, const cfg_value *v, const tm_json *node, tm_data_columns *out) {
    const char **theirs, **ours;
    size_t n = 0;
    TM_TRY(cfg_alloc(s->cfg, (node->count + 1) * sizeof *theirs, (void **)&theirs));
    TM_TRY(cfg_alloc(s->cfg, (node->count + 1) * sizeof *ours, (void **)&ours));
    for (const tm_json *m = node->child; m; m = m->next) {
        if (m->type != TM_JSON_STRING || !m->len || strlen(m->text) != m->len || strlen(m->key) != m->key_len) {
            cfg_wrong(s, v,
                      "\"columns\" names a key of the data's and what it is here: {\"question\": \"prompt\"}, not "
                      "%.40s with no name",
                      m->key);
            continue;
        }
        theirs[n] = cfg_strndup(s->cfg, m->key, m->key_len);
        ours[n] = cfg_strndup(s->cfg, m->text, m->len);
        if (!theirs[n] || !ours[n]) return TM_ENOMEM;
        n++;
    }
    *out = (tm_data_columns){theirs, ours, n};
    return TM_OK;
}

/* ---- one item ------------------------------------------------------------------------------------------------------ */

static tm_status take_path(cfg_state *s, const cfg_value *v, const tm_json *node, size_t len, tm_data_item *out) {
    if (!len || strlen(node->text) != node->len)
        cfg_wrong(s, v, "\"%s\" has an empty path or one with a NUL byte", v->spelled);
    out->path = cfg_strndup(s->cfg, node->text, len);
    return out->path ? TM_OK : TM_ENOMEM;
}

size_t tm_config_data_path(const char *text, uint64_t *samples) {
    const char *mark = strrchr(text, '#');
    size_t digits = mark ? strspn(mark + 1, "0123456789") : 0;
    bool counted = digits > 0 && digits < 16 && !mark[1 + digits] && mark > text;
    *samples = counted ? strtoull(mark + 1, NULL, 10) : 0;
    return counted ? (size_t)(mark - text) : strlen(text);
}

static tm_status take_string(cfg_state *s, const cfg_value *v, const tm_json *node, tm_data_item *out) {
    size_t len = tm_config_data_path(node->text, &out->samples);
    if (len < strlen(node->text) && !out->samples)
        cfg_wrong(s, v, "\"%s\": %.80s is no sample at all", v->spelled, node->text);
    return take_path(s, v, node, len < strlen(node->text) ? len : node->len, out);
}

static void take_sample_by(cfg_state *s, const cfg_value *v, const tm_json *node, tm_data_item *out) {
    const schema_row *row = &schema_rows[schema_index("data.sample_by")];
    int choice = node->type == TM_JSON_STRING ? schema_choice(row, node->text, node->len) : -1;
    char expects[128];
    if (choice < 0)
        cfg_wrong(s, v, "\"sample_by\" must be %s", schema_expects(row, expects, sizeof expects));
    else
        out->sample_by = (tm_sample_by)choice;
}

/* axolotl's "type": which form a row has is told by its keys. */
static void check_type(cfg_state *s, const cfg_value *v, const tm_json *m) {
    static const char *const forms[] = {"alpaca", "sharegpt", "chat_template", "completion",
                                        "chatml", "llama3",   "pretrain"};
    size_t n = m->type == TM_JSON_STRING ? strcspn(m->text, ".:") : 0;
    for (size_t i = 0; i < TM_COUNT(forms); i++)
        if (strlen(forms[i]) == n && !memcmp(forms[i], m->text, n)) return;
    char shown[256];
    cfg_wrong(s, v,
              "\"%s\": \"type\" %s is not known: a row's form is told by its keys; leave it out, and say what other "
              "keys are in \"columns\"",
              v->spelled, cfg_show_node(m, shown, sizeof shown));
}

/* axolotl's names of keys: {"field_messages": "talk"} is {"columns": {"talk": "messages"}}. */
static const char *field_of(const char *key) {
    static const char *const fields[][2] = {{"field", "text"},
                                            {"field_messages", "messages"},
                                            {"field_chosen", "chosen"},
                                            {"field_rejected", "rejected"},
                                            {"field_instruction", "instruction"},
                                            {"field_input", "input"},
                                            {"field_output", "output"}};
    for (size_t i = 0; i < TM_COUNT(fields); i++)
        if (!strcmp(key, fields[i][0])) return fields[i][1];
    return NULL;
}

/* One more column; what has its name here already needs none. */
static tm_status take_field(cfg_state *s, const char *ours, const tm_json *m, tm_data_item *out) {
    const char **theirs, **all;
    size_t n = out->columns.n;
    if (m->type != TM_JSON_STRING || !m->len || tm_json_is(m, ours) || tm_json_is(m, "conversations")) return TM_OK;
    TM_TRY(cfg_alloc(s->cfg, (n + 1) * sizeof *theirs, (void **)&theirs));
    TM_TRY(cfg_alloc(s->cfg, (n + 1) * sizeof *all, (void **)&all));
    for (size_t i = 0; i < n; i++) theirs[i] = out->columns.theirs[i], all[i] = out->columns.ours[i];
    theirs[n] = cfg_strndup(s->cfg, m->text, m->len);
    all[n] = ours;
    if (!theirs[n]) return TM_ENOMEM;
    out->columns = (tm_data_columns){theirs, all, n + 1};
    return TM_OK;
}

/* Keys of axolotl's items that change nothing here, which is said. */
static bool has_no_effect(const cfg_value *v, const char *key) {
    static const char roles[] = "messages are read by the keys role and content, or from and value";
    static const char *const keys[][2] = {{"ds_type", "the file tells what it is"},
                                          {"chat_template", "conversations go through the model's own template"},
                                          {"message_property_mappings", roles},
                                          {"message_field_role", roles},
                                          {"message_field_content", roles},
                                          {"roles", roles},
                                          {"train_on_eos", "the token that ends an answer is learned with it"}};
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        char once[64], where[256];
        if (strcmp(key, keys[i][0]) != 0) continue;
        snprintf(once, sizeof once, "%s of a file", key);
        tm_warn_once(once, "%s: \"%s\": \"%s\" of a file has no effect here: %s", cfg_where(v, where, sizeof where),
                     v->spelled, key, keys[i][1]);
        return true;
    }
    return false;
}

/* What an item of axolotl's "datasets" has beside its path. False: it is none of these. */
static bool take_theirs(cfg_state *s, const cfg_value *v, const tm_json *m, tm_data_item *out) {
    if (has_no_effect(v, m->key)) return true;
    bool is_type = !strcmp(m->key, "type"), split = !strcmp(m->key, "split"), roles = !strcmp(m->key, "roles_to_train");
    if (is_type) check_type(s, v, m);
    if (split && !tm_json_is(m, "train"))
        cfg_wrong(s, v, "\"%s\": a file has no splits; give that one's file as \"path\", and \"samples\" of it",
                  v->spelled);
    if (roles && m->type == TM_JSON_ARRAY && (m->count != 1 || !tm_json_is(m->child, "assistant")))
        cfg_wrong(s, v,
                  "\"%s\": of a conversation the assistant's messages are learned, or all with "
                  "\"data.train_on_inputs\"; leave \"roles_to_train\" out",
                  v->spelled);
    if (is_type || split || roles) return true;
    if (!strcmp(m->key, "data_files")) {
        cfg_wrong(s, v, "\"%s\": give each of \"data_files\" as a \"path\" of its own", v->spelled);
        return true;
    }
    const char *ours = field_of(m->key);
    if (ours) cfg_keep(s, take_field(s, ours, m, out));
    return ours != NULL;
}

static tm_status take_member(cfg_state *s, const cfg_value *v, const tm_json *m, tm_data_item *out) {
    bool number = m->type == TM_JSON_NUMBER;
    if (!strcmp(m->key, "path") && m->type == TM_JSON_STRING) return take_path(s, v, m, m->len, out);
    if (!strcmp(m->key, "columns") && m->type == TM_JSON_OBJECT) return take_columns(s, v, m, &out->columns);
    if (!strcmp(m->key, "sample_by"))
        take_sample_by(s, v, m, out);
    else if (!strcmp(m->key, "samples") && number && m->is_integer && m->integer > 0)
        out->samples = (uint64_t)m->integer;
    else if (!strcmp(m->key, "weight") && number && m->number > 0 && m->number <= 1e6)
        out->weight = m->number;
    else if (!take_theirs(s, v, m, out))
        cfg_wrong(s, v,
                  "\"%s\": \"%.40s\" is no key of a file, or has no such value; there are path, samples (above 0), "
                  "weight (above 0), columns, sample_by",
                  v->spelled, m->key);
    return s->broken;
}

static tm_status take_item(cfg_state *s, const cfg_value *v, const tm_json *node, tm_data_item *out) {
    if (node->type == TM_JSON_STRING) return take_string(s, v, node, out);
    for (const tm_json *m = node->child; m; m = m->next) TM_TRY(take_member(s, v, m, out));
    if (!out->path) cfg_wrong(s, v, "\"%s\" has an object without a \"path\"", v->spelled);
    if (tm_json_get(node, "weight") && tm_json_get(node, "samples"))
        cfg_wrong(s, v, "\"%s\": of \"weight\" and \"samples\" each says how much of %.80s an epoch has; give one",
                  v->spelled, out->path ? out->path : "a file");
    return TM_OK;
}

/* ---- all of them --------------------------------------------------------------------------------------------------- */

/* As it is written down again: a lone path as it is, else JSON. */
static tm_status take_text(cfg_state *s, const tm_json *node, const char **out) {
    tm_buf text = {0};
    tm_json_writer w;
    bool plain = node->type == TM_JSON_STRING && *node->text != '[' && *node->text != '{';
    tm_jw_init(&w, &text, 0);
    if (node->type == TM_JSON_STRING) tm_jw_array(&w);
    tm_jw_node(&w, node);
    if (node->type == TM_JSON_STRING) tm_jw_array_end(&w);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK) *out = cfg_strndup(s->cfg, plain ? node->text : text.data, plain ? node->len : text.len);
    if (rc == TM_OK && !*out) rc = TM_ENOMEM;
    tm_buf_free(&text);
    return rc;
}

static tm_status take_items(cfg_state *s, const char *path, const tm_data_item *common, const char **text,
                            tm_data_items *out) {
    const cfg_value *v = cfg_given(s, path);
    tm_data_item *item;
    if (!v) return TM_OK;
    bool list = v->node->type == TM_JSON_ARRAY;
    size_t n = list ? v->node->count : 1, i = 0;
    TM_TRY(cfg_alloc(s->cfg, n * sizeof *item, (void **)&item));
    for (const tm_json *m = list ? v->node->child : v->node; m; m = list ? m->next : NULL) {
        item[i] = *common;
        TM_TRY(take_item(s, v, m, &item[i++]));
    }
    *out = (tm_data_items){item, (uint32_t)n};
    return take_text(s, v->node, text);
}

/* Evaluation on what is held out of the training data. */
static void resolve_split(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    if (c->data.split == 0) return;
    if (cfg_chosen(s, "eval_strategy", "no") || c->data.eval) {
        cfg_no_effect(s, "data.split_dataset_ratio",
                      c->data.eval ? "data.eval is evaluated on" : "eval_strategy is no: all is trained on");
        c->data.split = 0;
        return;
    }
    c->data.eval = c->data.train;
    c->data.eval_items = c->data.train_items;
}

tm_status config_resolve_data(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *columns = cfg_given(s, "data.columns");
    tm_data_item common = {.weight = 1, .sample_by = (tm_sample_by)cfg_choice(s, "data.sample_by")};
    if (columns) TM_TRY(take_columns(s, columns, columns->node, &common.columns));
    c->data.columns = common.columns;
    TM_TRY(take_items(s, "data.train", &common, &c->data.train, &c->data.train_items));
    if (!cfg_chosen(s, "eval_strategy", "no"))
        TM_TRY(take_items(s, "data.eval", &common, &c->data.eval, &c->data.eval_items));
    resolve_split(s);
    return TM_OK;
}
