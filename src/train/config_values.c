/* Layers of values: trees are walked against the schema, types and ranges checked, problems collected. */
#include "train/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_MAX_BYTES = 160, SHOWN = 48, DEPTH = 8 };

/* ---- problems -------------------------------------------------------------------------------------------------------
 */

static void collect(cfg_state *s, tm_status rc) {
    if (s->broken == TM_OK) s->broken = rc;
}

static void add_problem(cfg_state *s, tm_status status, const char *format, va_list ap) {
    char text[1024];
    vsnprintf(text, sizeof text, format, ap);
    if (s->problem_status != TM_EINPUT) s->problem_status = status;
    s->n_problems++;
    collect(s, tm_buf_printf(&s->problems, "%s%s", s->problems.len ? "; " : "", text));
}

void cfg_problem(cfg_state *s, tm_status status, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    add_problem(s, status, format, ap);
    va_end(ap);
}

void cfg_contradiction(cfg_state *s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    s->n_mismatches++;
    add_problem(s, TM_EINPUT, format, ap);
    va_end(ap);
}

const char *cfg_where(const cfg_value *v, char *buf, size_t cap) {
    if (v->source == SOURCE_SET)
        snprintf(buf, cap, "%s", v->file);
    else
        snprintf(buf, cap, "%s:%u:%u", v->file, v->node->line, v->node->column);
    return buf;
}

static const char *show_node(const tm_json *n, char *buf, size_t cap) {
    switch (n->type) {
    case TM_JSON_STRING:
        snprintf(buf, cap, "\"%.*s%s\"", SHOWN, n->text, n->len > SHOWN ? "..." : "");
        break;
    case TM_JSON_NUMBER:
        snprintf(buf, cap, "%.*s", SHOWN, n->text);
        break;
    case TM_JSON_BOOL:
        snprintf(buf, cap, "%s", n->boolean ? "true" : "false");
        break;
    case TM_JSON_ARRAY: {
        size_t at = (size_t)snprintf(buf, cap, "[");
        for (const tm_json *c = n->child; c && at + SHOWN + 8 < cap; c = c->next) {
            bool plain = c->type == TM_JSON_STRING || c->type == TM_JSON_NUMBER;
            at += (size_t)snprintf(buf + at, cap - at, "%.*s%s", SHOWN, plain ? c->text : "...", c->next ? ", " : "");
        }
        if (at + 1 < cap) snprintf(buf + at, cap - at, "]");
        break;
    }
    default:
        snprintf(buf, cap, "%s", n->type == TM_JSON_OBJECT ? "an object" : "null");
    }
    return buf;
}

const char *cfg_show(const cfg_value *v, char *buf, size_t cap) {
    return show_node(v->node, buf, cap);
}

void cfg_mismatch(cfg_state *s, const char *a, const cfg_value *va, const char *b, const cfg_value *vb) {
    char wa[256], wb[256], xa[256], xb[256];
    cfg_contradiction(s, "%s %s (%s) does not match %s %s (%s)", a, cfg_show(va, xa, sizeof xa),
                      cfg_where(va, wa, sizeof wa), b, cfg_show(vb, xb, sizeof xb), cfg_where(vb, wb, sizeof wb));
}

tm_status cfg_report(cfg_state *s) {
    if (s->broken != TM_OK) return s->broken;
    if (!s->n_problems) return TM_OK;
    if (s->n_problems == 1) return tm_fail(s->problem_status, "%s", s->problems.data);
    return tm_fail(s->problem_status, "%u problems: %s", s->n_problems, s->problems.data);
}

/* ---- types and ranges -----------------------------------------------------------------------------------------------
 */

static bool is_word(const tm_json *n) {
    return tm_json_is(n, "true") || tm_json_is(n, "false") || tm_json_is(n, "True") || tm_json_is(n, "False");
}

static bool all_are(const tm_json *array, tm_json_type type) {
    for (const tm_json *c = array->child; c; c = c->next)
        if (c->type != type) return false;
    return true;
}

static bool is_size_text(const char *text, uint64_t *bytes) {
    bool ok = tm_parse_size(text, bytes) == TM_OK;
    if (!ok) tm_error_clear();
    return ok;
}

static bool type_fits(const schema_row *row, const tm_json *n) {
    unsigned t = row->types;
    uint64_t bytes;
    if (t & T_ANY) return true;
    switch (n->type) {
    case TM_JSON_NULL:
        return t & T_NULL;
    case TM_JSON_BOOL:
        return t & T_BOOL;
    case TM_JSON_NUMBER:
        return (t & T_NUM) || (t & (T_INT | T_SIZE) && n->is_integer);
    case TM_JSON_STRING:
        if (t & T_AUTO && tm_json_is(n, "auto")) return true;
        if (t & T_SIZE) return (t & T_STR && tm_json_is(n, "unlimited")) || is_size_text(n->text, &bytes);
        return (t & (T_STR | T_LIST | T_ENUM)) || (t & T_WORD && is_word(n));
    case TM_JSON_ARRAY:
        if (t & T_PAIR) return n->count == 2 && all_are(n, TM_JSON_NUMBER);
        return (t & T_LIST) && n->count > 0 && all_are(n, TM_JSON_STRING);
    default:
        return n->type == TM_JSON_OBJECT && (t & T_OBJ);
    }
}

static void check_number(cfg_state *s, const schema_row *row, const cfg_value *v, double x) {
    char w[256], shown[256];
    /* rates below 1 only: betas and momenta of exactly 1 never forget */
    bool open_end = row->max == 1 && (row->types & T_PAIR || strstr(row->path, "beta") || strstr(row->path, "_mom"));
    bool low = x<row->min, high = row->max> 0 && (open_end ? x >= row->max : x > row->max);
    if (!isfinite(x) || low || high)
        cfg_problem(s, TM_EINPUT, "%s: \"%s\" must be %s %.15g, not %s", cfg_where(v, w, sizeof w), v->spelled,
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
    else if (n->type == TM_JSON_STRING && row->types & T_SIZE && is_size_text(n->text, &bytes))
        check_number(s, row, v, (double)bytes);
    else if (n->type == TM_JSON_ARRAY && row->types & T_PAIR)
        for (const tm_json *c = n->child; c; c = c->next) check_number(s, row, v, c->number);
}

static void wrong_choice(cfg_state *s, const schema_row *row, const cfg_value *v) {
    char w[256], shown[256], expects[512];
    tm_buf hint = {0};
    collect(s, config_suggest_value(&hint, row, v->node->text));
    cfg_problem(s, TM_EINPUT, "%s: \"%s\" must be %s, not %s%s", cfg_where(v, w, sizeof w), v->spelled,
                schema_expects(row, expects, sizeof expects), cfg_show(v, shown, sizeof shown),
                hint.data ? hint.data : "");
    tm_buf_free(&hint);
}

/* Switched off, so that a feature that is not there makes no difference. */
static bool is_off(const tm_json *n) {
    const tm_json *enabled = tm_json_get(n, "enabled");
    if (n->type == TM_JSON_NULL) return true;
    if (n->type == TM_JSON_BOOL) return !n->boolean;
    if (n->type == TM_JSON_NUMBER) return n->number == 0;
    if (n->type == TM_JSON_STRING) return tm_json_is(n, "none") || tm_json_is(n, "auto") || tm_json_is(n, "False");
    if (n->type == TM_JSON_ARRAY) return !n->count;
    return !n->count || (enabled && (enabled->type == TM_JSON_BOOL ? !enabled->boolean : tm_json_is(enabled, "auto")));
}

static void check_value(cfg_state *s, const schema_row *row, const cfg_value *v) {
    char w[256], shown[256], expects[512];
    const tm_json *n = v->node;
    cfg_where(v, w, sizeof w);
    if (row->kind == K_IGNORED) {
        if (!is_off(n)) tm_warn_once(v->spelled, "%s: \"%s\" has no effect here: %s", w, v->spelled, row->help);
    } else if (row->kind == K_LATER) {
        if (!is_off(n))
            cfg_problem(s, TM_EUNSUPPORTED, "%s: \"%s\": %s: not supported yet by this version; leave it out", w,
                        v->spelled, row->help);
    } else if (row->kind == K_REFUSED) {
        if (!is_off(n)) cfg_problem(s, TM_EUNSUPPORTED, "%s: \"%s\" is refused: %s", w, v->spelled, row->help);
    } else if (!type_fits(row, n)) {
        cfg_problem(s, TM_EINPUT, "%s: \"%s\" must be %s, not %s", w, v->spelled,
                    schema_expects(row, expects, sizeof expects), show_node(n, shown, sizeof shown));
    } else if (row->types & T_ENUM && n->type == TM_JSON_STRING && !(row->types & T_AUTO && tm_json_is(n, "auto"))) {
        if (schema_choice(row, n->text, n->len) < 0) wrong_choice(s, row, v);
    } else {
        check_range(s, row, v);
    }
}

/* ---- equal values
 * ----------------------------------------------------------------------------------------------------- */

static bool same_scalar(const tm_json *a, const tm_json *b) {
    if (a->type != b->type) return false;
    if (a->type == TM_JSON_NUMBER) return a->number == b->number;
    if (a->type == TM_JSON_BOOL) return a->boolean == b->boolean;
    if (a->type == TM_JSON_STRING) return a->len == b->len && !memcmp(a->text, b->text, a->len);
    return a->type == TM_JSON_NULL;
}

bool cfg_same(const tm_json *a, const tm_json *b) {
    if (a->type == TM_JSON_OBJECT && b->type == TM_JSON_OBJECT) return true; /* their members are compared */
    if (a->type != TM_JSON_ARRAY || b->type != TM_JSON_ARRAY) return same_scalar(a, b);
    const tm_json *x = a->child, *y = b->child;
    for (; x && y; x = x->next, y = y->next)
        if (!same_scalar(x, y)) return false;
    return !x && !y;
}

/* ---- walking a tree
 * --------------------------------------------------------------------------------------------------- */

static void unknown_key(cfg_state *s, const char *section, const char *key, const cfg_value *v) {
    char w[256], place[PATH_MAX_BYTES + 16] = " at top level";
    tm_buf hint = {0};
    if (*section) snprintf(place, sizeof place, " in \"%.*s\"", PATH_MAX_BYTES, section);
    collect(s, config_suggest_key(&hint, section, key));
    cfg_problem(s, TM_EINPUT, "%s: unknown key \"%.*s\"%s%s", cfg_where(v, w, sizeof w), SHOWN, key, place,
                hint.data ? hint.data : "");
    tm_buf_free(&hint);
}

/* A second value for a row: --set wins, null gives way, anything else must agree. */
static void store(cfg_state *s, size_t index, const cfg_value *v) {
    cfg_value *slot = &s->value[index];
    bool replaces = !slot->node || v->source == SOURCE_SET || slot->node->type == TM_JSON_NULL;
    if (replaces)
        *slot = *v;
    else if (v->node->type != TM_JSON_NULL && !cfg_same(slot->node, v->node)) {
        if (tm_json_is(slot->node, "auto"))
            *slot = *v;
        else if (!tm_json_is(v->node, "auto"))
            cfg_mismatch(s, slot->spelled, slot, v->spelled, v);
    }
}

/* One member. Returns the row to descend into, or NULL. */
static const schema_row *member(cfg_state *s, const char *section, const tm_json *n, const char *path, cfg_value v) {
    const schema_row *row = schema_find(path);
    char w[256];
    if (!row) {
        unknown_key(s, section, n->key, &v);
        return NULL;
    }
    v.spelled = row->path;
    if (v.source == SOURCE_DEEPSPEED && row->kind == K_OURS) {
        cfg_problem(s, TM_EINPUT, "%s: \"%s\" is not a key of DeepSpeed's; put it into %s", cfg_where(&v, w, sizeof w),
                    path, s->opts->name);
        return NULL;
    }
    if (row->alias_of) row = schema_find(row->alias_of);
    unsigned before = s->n_problems;
    check_value(s, row, &v);
    if (s->n_problems == before) store(s, (size_t)(row - schema_rows), &v);
    bool inside = n->type == TM_JSON_OBJECT && row->types & T_OBJ && row->kind != K_IGNORED;
    return inside ? row : NULL;
}

tm_status cfg_merge(cfg_state *s, const tm_json *root, const char *prefix, const char *file, cfg_source source) {
    struct {
        const tm_json *next;
        char section[PATH_MAX_BYTES];
    } stack[DEPTH];
    int depth = 0;
    stack[0].next = root->child;
    snprintf(stack[0].section, sizeof stack[0].section, "%s", prefix);
    while (depth >= 0) {
        const tm_json *n = stack[depth].next;
        if (!n) {
            depth--;
            continue;
        }
        stack[depth].next = n->next;
        const char *section = stack[depth].section;
        char path[2 * PATH_MAX_BYTES];
        snprintf(path, sizeof path, "%s%s%.*s", section, *section ? "." : "", PATH_MAX_BYTES - 1, n->key);
        const schema_row *row = member(s, section, n, path, (cfg_value){n, file, NULL, source});
        if (!row || depth + 1 == DEPTH) continue;
        depth++;
        stack[depth].next = n->child;
        snprintf(stack[depth].section, sizeof stack[depth].section, "%s", row->path);
    }
    return s->broken;
}

/* ---- --set
 * -------------------------------------------------------------------------------------------------------------- */

static tm_status as_tree(cfg_state *s, const char *text, const char *name, const tm_json **out) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, text, strlen(text), name, TM_JSON_RELAXED, 0));
    TM_TRY(cfg_keep_doc(s->cfg, doc));
    *out = tm_json_root(doc);
    return TM_OK;
}

static tm_status as_string(cfg_state *s, const char *text, const char *name, const tm_json **out) {
    tm_buf quoted = {0};
    tm_json_writer w;
    tm_jw_init(&w, &quoted, 0);
    tm_jw_str(&w, text);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK) rc = as_tree(s, quoted.data, name, out);
    tm_buf_free(&quoted);
    return rc;
}

/* JSON, else a string; a string too where the key wants one and "123" or "true" was given. */
static tm_status set_value(cfg_state *s, const schema_row *row, const char *text, const char *name,
                           const tm_json **out) {
    tm_status rc = as_tree(s, text, name, out);
    if (rc == TM_EINPUT) {
        tm_error_clear();
        return as_string(s, text, name, out);
    }
    TM_TRY(rc);
    bool scalar = (*out)->type == TM_JSON_NUMBER || (*out)->type == TM_JSON_BOOL;
    if (row && scalar && row->types & (T_STR | T_LIST | T_ENUM) && !(row->types & T_ANY) && !type_fits(row, *out))
        return as_string(s, text, name, out);
    return TM_OK;
}

/* The path's own value, and everything below it. */
static void forget(cfg_state *s, const char *path) {
    size_t n = strlen(path);
    for (size_t i = 0; i < schema_row_count; i++) {
        const char *p = schema_rows[i].path;
        if (!strncmp(p, path, n) && (p[n] == '.' || !p[n])) s->value[i] = (cfg_value){0};
    }
}

tm_status cfg_apply_set(cfg_state *s, const char *assignment) {
    const char *eq = strchr(assignment, '=');
    size_t len = eq ? (size_t)(eq - assignment) : 0;
    if (!len || len >= PATH_MAX_BYTES) return tm_fail(TM_EINPUT, "--set %s: write --set key.path=value", assignment);
    char path[PATH_MAX_BYTES], section[PATH_MAX_BYTES] = "";
    snprintf(path, sizeof path, "%.*s", (int)len, assignment);
    char *name;
    size_t name_len = strlen(assignment) + 8;
    TM_TRY(cfg_alloc(s->cfg, name_len, (void **)&name));
    snprintf(name, name_len, "--set %s", assignment);
    const schema_row *row = schema_find(path), *own = row && row->alias_of ? schema_find(row->alias_of) : row;
    const tm_json *value;
    TM_TRY(set_value(s, own, eq + 1, name, &value));
    const char *dot = strrchr(path, '.');
    if (dot) snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    tm_json key = *value;
    key.key = dot ? path + (dot - path) + 1 : path;
    cfg_value v = {value, name, NULL, SOURCE_SET};
    if (own) forget(s, own->path);
    if (own && value->type == TM_JSON_NULL) return TM_OK; /* back to the default */
    const schema_row *inside = member(s, section, &key, path, v);
    return inside ? cfg_merge(s, value, inside->path, name, SOURCE_SET) : s->broken;
}

/* ---- reading values
 * ------------------------------------------------------------------------------------------------------- */

const cfg_value *cfg_raw(const cfg_state *s, const char *path) {
    const cfg_value *v = &s->value[schema_index(path)];
    return v->node && v->node->type != TM_JSON_NULL ? v : NULL;
}

const cfg_value *cfg_given(const cfg_state *s, const char *path) {
    const schema_row *row = &schema_rows[schema_index(path)];
    const cfg_value *v = cfg_raw(s, path);
    return v && row->types & T_AUTO && tm_json_is(v->node, "auto") ? NULL : v;
}

bool cfg_is_auto(const cfg_state *s, const char *path) {
    const cfg_value *v = cfg_raw(s, path);
    return v && tm_json_is(v->node, "auto");
}

double cfg_number(const cfg_state *s, const char *path) {
    const cfg_value *v = cfg_given(s, path);
    if (v) return v->node->number;
    const char *def = schema_rows[schema_index(path)].def;
    return def ? strtod(def, NULL) : 0;
}

int64_t cfg_integer(const cfg_state *s, const char *path) {
    const cfg_value *v = cfg_given(s, path);
    if (v) return v->node->integer;
    const char *def = schema_rows[schema_index(path)].def;
    return def ? strtoll(def, NULL, 10) : 0;
}

bool cfg_bool(const cfg_state *s, const char *path) {
    const cfg_value *v = cfg_given(s, path);
    const char *def = schema_rows[schema_index(path)].def;
    if (!v) return def && !strcmp(def, "true");
    if (v->node->type == TM_JSON_STRING) return tm_json_is(v->node, "true") || tm_json_is(v->node, "True");
    return v->node->boolean;
}

int cfg_choice(const cfg_state *s, const char *path) {
    const schema_row *row = &schema_rows[schema_index(path)];
    const cfg_value *v = cfg_given(s, path);
    if (v) return schema_choice(row, v->node->text, v->node->len);
    return row->def ? schema_choice(row, row->def, strlen(row->def)) : -1;
}

bool cfg_chosen(const cfg_state *s, const char *path, const char *choice) {
    return cfg_choice(s, path) == schema_choice(&schema_rows[schema_index(path)], choice, strlen(choice));
}

tm_status cfg_string(cfg_state *s, const char *path, const char **out) {
    const cfg_value *v = cfg_given(s, path);
    const char *text = v ? v->node->text : schema_rows[schema_index(path)].def;
    char w[256];
    if (v && strlen(text) != v->node->len)
        cfg_problem(s, TM_EINPUT, "%s: \"%s\" holds a NUL byte", cfg_where(v, w, sizeof w), path);
    if (v && !*text) cfg_problem(s, TM_EINPUT, "%s: \"%s\" must not be empty", cfg_where(v, w, sizeof w), path);
    *out = text ? cfg_strndup(s->cfg, text, strlen(text)) : NULL;
    return text && !*out ? TM_ENOMEM : TM_OK;
}

tm_status cfg_strings(cfg_state *s, const char *path, tm_strings *out) {
    const cfg_value *v = cfg_given(s, path);
    *out = (tm_strings){0};
    if (!v) return TM_OK;
    const tm_json *first = v->node->type == TM_JSON_ARRAY ? v->node->child : v->node;
    size_t n = v->node->type == TM_JSON_ARRAY ? v->node->count : 1;
    const char **item;
    TM_TRY(cfg_alloc(s->cfg, n * sizeof *item, (void **)&item));
    for (size_t i = 0; i < n; i++, first = first->next) {
        char w[256];
        if (!first->len || strlen(first->text) != first->len)
            cfg_problem(s, TM_EINPUT, "%s: \"%s\" has an empty string or one with a NUL byte",
                        cfg_where(v, w, sizeof w), path);
        item[i] = cfg_strndup(s->cfg, first->text, first->len);
        if (!item[i]) return TM_ENOMEM;
    }
    *out = (tm_strings){item, (uint32_t)n};
    return TM_OK;
}

uint64_t cfg_size(const cfg_state *s, const char *path) {
    const cfg_value *v = cfg_given(s, path);
    const char *def = schema_rows[schema_index(path)].def;
    uint64_t bytes = 0;
    if (v && v->node->type == TM_JSON_NUMBER) return (uint64_t)v->node->integer;
    if ((v || def) && !is_size_text(v ? v->node->text : def, &bytes)) bytes = 0;
    return bytes;
}
