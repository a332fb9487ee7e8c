/* All that keeps a config.json from being trained: parsing stops at the first, `inspect` tells of each. */
#include "model/arch_internal.h"

#include <stdio.h>
#include <string.h>

/* Of one configuration: a line each, in the order in which they are looked at. */
typedef struct list {
    const tm_json *root; /* of a composite model: its text_config */
    tm_buf *out;
} list;

static const char *text_of(const tm_json *n) {
    return n->type == TM_JSON_STRING || n->type == TM_JSON_NUMBER ? n->text : "?";
}

/* Each once. */
static tm_status add(const list *l, const char *what, const char *value) {
    char line[160];
    snprintf(line, sizeof line, "%s%s%.60s%s\n", what, *value ? " \"" : "", value, *value ? "\"" : "");
    return l->out->len && strstr(l->out->data, line) ? TM_OK : tm_buf_append(l->out, line, strlen(line));
}

static tm_status look_at_type(const list *l) {
    const tm_json *type = tm_json_get(l->root, "model_type");
    if (!type || type->type != TM_JSON_STRING) return add(l, "model_type is missing", "");
    return model_arch_find(type->text) ? TM_OK : add(l, "model_type", type->text);
}

static tm_status look_at_layers(const list *l) {
    const tm_json *types = tm_json_get(l->root, "layer_types");
    for (const tm_json *t = types && types->type == TM_JSON_ARRAY ? types->child : NULL; t; t = t->next)
        if (!tm_json_is(t, "full_attention") && !tm_json_is(t, "sliding_attention"))
            TM_TRY(add(l, "layer type", text_of(t)));
    return TM_OK;
}

static tm_status look_at_rope(const list *l, const tm_json *rope) {
    static const char *const keys[] = {"rope_type", "type"};
    if (!rope || rope->type != TM_JSON_OBJECT) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const tm_json *type = tm_json_get(rope, keys[i]);
        if (model_present(type)) return model_rope_is_known(type) ? TM_OK : add(l, "rope_scaling type", text_of(type));
    }
    TM_TRY(look_at_rope(l, tm_json_get(rope, "full_attention")));
    return look_at_rope(l, tm_json_get(rope, "sliding_attention"));
}

/* What is counted and is not there: one, or none of it, is a dense model. */
static tm_status look_at_parts(const list *l) {
    static const struct {
        const char *key, *what;
        int64_t most;
    } rows[] = {{"num_experts", "experts", 1},
                {"num_local_experts", "experts", 1},
                {"n_routed_experts", "experts", 1},
                {"kv_lora_rank", "latent attention", 0},
                {"linear_num_value_heads", "linear attention", 0},
                {"ssm_state_size", "state space layers", 0},
                {"mamba_d_state", "state space layers", 0}};
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const tm_json *n = tm_json_get(l->root, rows[i].key);
        if (n && n->type == TM_JSON_NUMBER && n->number > (double)rows[i].most) TM_TRY(add(l, rows[i].what, ""));
    }
    return TM_OK;
}

static tm_status look_at_activation(const list *l) {
    static const char *const keys[] = {"hidden_act", "hidden_activation", "activation_function"};
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const tm_json *act = tm_json_get(l->root, keys[i]);
        if (model_present(act) && !model_activation_is_known(act)) TM_TRY(add(l, keys[i], text_of(act)));
    }
    return TM_OK;
}

static tm_status look(const list *l) {
    if (l->root->type != TM_JSON_OBJECT) return TM_OK;
    TM_TRY(look_at_type(l));
    TM_TRY(look_at_layers(l));
    TM_TRY(look_at_rope(l, tm_json_get(l->root, "rope_parameters")));
    TM_TRY(look_at_rope(l, tm_json_get(l->root, "rope_scaling")));
    TM_TRY(look_at_parts(l));
    return look_at_activation(l);
}

/* Gathered of a configuration that is refused; where none of it is known from here, what the refusal says. */
tm_status tm_model_missing(const char *json, size_t len, tm_buf *out) {
    tm_model_config c;
    tm_json_doc *doc;
    tm_buf_clear(out);
    if (tm_model_config_parse(&c, json, len, "config.json") == TM_OK) return TM_OK;
    const tm_error why = *tm_error_get();
    tm_error_clear();
    tm_status rc = tm_json_parse(&doc, json, len, "config.json", 0, 0);
    if (rc != TM_OK) return rc;
    const tm_json *root = tm_json_root(doc), *text = tm_json_get(root, "text_config");
    bool composite = model_present(text) && text->type == TM_JSON_OBJECT;
    rc = look(&(list){composite ? text : root, out});
    if (rc == TM_OK && out->len == 0) rc = tm_buf_printf(out, "%s\n", why.text);
    tm_json_free(doc);
    return rc;
}
