/* One value against its row of the schema: kind, type, choice, range. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_word(const tm_json *n) {
    return tm_json_is(n, "true") || tm_json_is(n, "false") || tm_json_is(n, "True") || tm_json_is(n, "False");
}

/* A path or an object of one. */
static bool is_file(const tm_json *n) {
    return n->type == TM_JSON_STRING || n->type == TM_JSON_OBJECT;
}

static bool are_files(const tm_json *array) {
    bool so = array->count > 0;
    for (const tm_json *c = array->child; c; c = c->next) so &= is_file(c);
    return so;
}

static bool all_are(const tm_json *array, tm_json_type type) {
    for (const tm_json *c = array->child; c; c = c->next)
        if (c->type != type) return false;
    return true;
}

bool cfg_is_size_text(const char *text, uint64_t *bytes) {
    bool ok = tm_parse_size(text, bytes) == TM_OK;
    if (!ok) tm_error_clear();
    return ok;
}

bool cfg_type_fits(const schema_row *row, const tm_json *n) {
    unsigned t = row->types;
    uint64_t bytes;
    if (t & T_ANY || (t & T_FILES && is_file(n))) return true;
    switch (n->type) {
    case TM_JSON_NULL:
        return t & T_NULL;
    case TM_JSON_BOOL:
        return t & T_BOOL;
    case TM_JSON_NUMBER:
        return (t & T_NUM) || (t & (T_INT | T_SIZE) && n->is_integer);
    case TM_JSON_STRING:
        if (t & T_AUTO && tm_json_is(n, "auto")) return true;
        if (t & T_SIZE) return (t & T_STR && tm_json_is(n, "unlimited")) || cfg_is_size_text(n->text, &bytes);
        return (t & (T_STR | T_LIST | T_ENUM)) || (t & T_WORD && is_word(n));
    case TM_JSON_ARRAY:
        if (t & T_FILES) return are_files(n);
        if (t & T_PAIR) return n->count == 2 && all_are(n, TM_JSON_NUMBER);
        /* no words at all switch off what false would, and are none where they are needed */
        return (t & T_LIST) && (n->count > 0 || t & (T_BOOL | T_EMPTY)) && all_are(n, TM_JSON_STRING);
    default:
        return n->type == TM_JSON_OBJECT && (t & (T_OBJ | T_TABLE | T_NAMES));
    }
}

static void check_number(cfg_state *s, const schema_row *row, const cfg_value *v, double x) {
    char shown[256];
    /* rates below 1 only: betas and momenta of exactly 1 never forget */
    bool open_end = row->max == 1 && (row->types & T_PAIR || strstr(row->path, "beta") || strstr(row->path, "_mom"));
    bool low = x<row->min, high = row->max> 0 && (open_end ? x >= row->max : x > row->max);
    if (!isfinite(x) || low || high)
        cfg_wrong(s, v, "\"%s\" must be %s %.15g, not %s", v->spelled,
                  low        ? "at least"
                  : open_end ? "below"
                             : "at most",
                  low ? row->min : row->max, cfg_show(v, shown, sizeof shown));
}

static void check_range(cfg_state *s, const schema_row *row, const cfg_value *v) {
    const tm_json *n = v->node;
    uint64_t bytes = 0;
    if (n->type == TM_JSON_NUMBER)
        check_number(s, row, v, n->number);
    else if (n->type == TM_JSON_STRING && row->types & T_SIZE && cfg_is_size_text(n->text, &bytes))
        check_number(s, row, v, (double)bytes);
    else if (n->type == TM_JSON_ARRAY && row->types & T_PAIR)
        for (const tm_json *c = n->child; c; c = c->next) check_number(s, row, v, c->number);
}

static void wrong_choice(cfg_state *s, const schema_row *row, const cfg_value *v) {
    char shown[256], expects[512];
    tm_buf hint = {0};
    cfg_keep(s, config_suggest_value(&hint, row, v->node->text));
    cfg_wrong(s, v, "\"%s\" must be %s, not %s%s", v->spelled, schema_expects(row, expects, sizeof expects),
              cfg_show(v, shown, sizeof shown), hint.data ? hint.data : "");
    tm_buf_free(&hint);
}

/* Switched off, so that a feature that is not there makes no difference. */
bool cfg_is_off(const tm_json *n) {
    const tm_json *enabled = tm_json_get(n, "enabled");
    if (n->type == TM_JSON_NULL) return true;
    if (n->type == TM_JSON_BOOL) return !n->boolean;
    if (n->type == TM_JSON_NUMBER) return n->number == 0;
    if (n->type == TM_JSON_STRING) return tm_json_is(n, "none") || tm_json_is(n, "auto") || tm_json_is(n, "False");
    if (n->type == TM_JSON_ARRAY) return !n->count;
    return !n->count || (enabled && (enabled->type == TM_JSON_BOOL ? !enabled->boolean : tm_json_is(enabled, "auto")));
}

/* What is switched off makes no difference, nor does what is done anyway. */
static void check_ignored(const cfg_state *s, const schema_row *row, const cfg_value *v) {
    char w[256];
    const tm_json *n = v->node;
    bool denied = (n->type == TM_JSON_BOOL && !n->boolean) || tm_json_is(n, "false") || tm_json_is(n, "False");
    const char *reason = row->types & T_RANKS && s->opts->world_size < 2 ? "there is one rank" : row->help;
    if (row->types & T_ALWAYS ? !denied : cfg_is_off(n)) return;
    tm_warn_once(v->spelled, "%s: \"%s\" has no effect here: %s", cfg_where(v, w, sizeof w), v->spelled, reason);
}

void cfg_check_value(cfg_state *s, const schema_row *row, const cfg_value *v) {
    char w[256], shown[256], expects[512];
    const tm_json *n = v->node;
    cfg_where(v, w, sizeof w);
    if (row->kind == K_IGNORED) {
        check_ignored(s, row, v);
    } else if (row->kind == K_LATER) {
        if (!cfg_is_off(n))
            cfg_unsupported(s, v, "\"%s\": %s: not supported yet by this version; leave it out", v->spelled, row->help);
    } else if (row->kind == K_REFUSED) {
        if (!cfg_is_off(n)) cfg_unsupported(s, v, "\"%s\" is refused: %s", v->spelled, row->help);
    } else if (!cfg_type_fits(row, n)) {
        cfg_wrong(s, v, "\"%s\" must be %s, not %s", v->spelled, schema_expects(row, expects, sizeof expects),
                  cfg_show_node(n, shown, sizeof shown));
    } else if (row->types & T_ENUM && n->type == TM_JSON_STRING && !(row->types & T_AUTO && tm_json_is(n, "auto"))) {
        if (schema_choice(row, n->text, n->len) < 0) wrong_choice(s, row, v);
    } else {
        check_range(s, row, v);
    }
}
