/* Values of the layers as the resolvers read them, and the list of problems. */
#include "config/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 48 };

void cfg_keep(cfg_state *s, tm_status rc) {
    if (s->broken == TM_OK) s->broken = rc;
}

/* Whatever names from files bring along: a problem is one line. */
static void one_line(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
}

enum { LAST_LINES = 128 }; /* room for what follows the problems */

/* `v`: the value that the problem is of, said in front; NULL: none. */
static void add_problem(cfg_state *s, tm_status status, const cfg_value *v, const char *format, va_list ap) {
    char text[1024] = "", w[256];
    if (s->problem_status != TM_EINPUT) s->problem_status = status;
    s->n_problems++;
    s->n_input += status == TM_EINPUT;
    if (v) snprintf(text, sizeof text, "%s: ", cfg_where(v, w, sizeof w));
    vsnprintf(text + strlen(text), sizeof text - strlen(text), format, ap);
    one_line(text);
    bool fits = s->problems.len + strlen(text) + LAST_LINES < sizeof tm_error_get()->text;
    if (!fits || s->n_hidden) {
        s->n_hidden++;
        return;
    }
    cfg_keep(s, tm_buf_printf(&s->problems, "%s%s", s->problems.len ? "\n  " : "", text));
}

void cfg_wrong(cfg_state *s, const cfg_value *v, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    add_problem(s, TM_EINPUT, v, format, ap);
    va_end(ap);
}

void cfg_unsupported(cfg_state *s, const cfg_value *v, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    add_problem(s, TM_EUNSUPPORTED, v, format, ap);
    va_end(ap);
}

void cfg_contradiction(cfg_state *s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    s->n_mismatches++;
    add_problem(s, TM_EINPUT, NULL, format, ap);
    va_end(ap);
}

const char *cfg_where(const cfg_value *v, char *buf, size_t cap) {
    TM_ASSERT(v && v->file && (v->node || v->source == SOURCE_SET));
    if (v->source == SOURCE_SET)
        snprintf(buf, cap, "%s", v->file);
    else
        snprintf(buf, cap, "%s:%u:%u", v->file, v->node->line, v->node->column);
    return buf;
}

const char *cfg_show_node(const tm_json *n, char *buf, size_t cap) {
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
    return cfg_show_node(v->node, buf, cap);
}

void cfg_mismatch(cfg_state *s, const char *a, const cfg_value *va, const char *b, const cfg_value *vb) {
    char wa[256], wb[256], xa[256], xb[256];
    cfg_contradiction(s, "%s %s (%s) does not match %s %s (%s)", a, cfg_show(va, xa, sizeof xa),
                      cfg_where(va, wa, sizeof wa), b, cfg_show(vb, xb, sizeof xb), cfg_where(vb, wb, sizeof wb));
}

void cfg_no_effect(const cfg_state *s, const char *path, const char *reason) {
    char w[256];
    const cfg_value *v = cfg_given(s, path);
    if (v) tm_warn_once(path, "%s: \"%s\" has no effect here: %s", cfg_where(v, w, sizeof w), v->spelled, reason);
}

/* One problem is a line; several are a line each below one that counts them. */
tm_status cfg_report(cfg_state *s) {
    static const char advice[] = "give each setting once, or make them equal";
    bool contradicts = s->n_mismatches > 0;
    if (s->broken != TM_OK) return s->broken;
    if (!s->n_problems) return TM_OK;
    if (s->n_problems == 1)
        return tm_fail(s->problem_status, "%s%s%s", s->problems.data, contradicts ? "; " : "",
                       contradicts ? advice : "");
    char more[48] = "";
    if (s->n_hidden) snprintf(more, sizeof more, "\n  and %u more", s->n_hidden);
    (void)tm_fail(s->problem_status, "%u problems", s->n_problems);
    tm_error lines = *tm_error_get();
    snprintf(lines.text, sizeof lines.text, "%u problems:\n  %s%s%s%s", s->n_problems, s->problems.data, more,
             contradicts ? "\n  " : "", contradicts ? advice : "");
    tm_error_set(&lines);
    return s->problem_status;
}

static const cfg_value *value_of(const cfg_state *s, size_t row) {
    const cfg_value *v = &s->value[row];
    return v->node && v->node->type != TM_JSON_NULL ? v : NULL;
}

const cfg_value *cfg_raw(const cfg_state *s, const char *path) {
    return value_of(s, schema_index(path));
}

const cfg_value *cfg_given(const cfg_state *s, const char *path) {
    size_t row = schema_index(path);
    const cfg_value *v = value_of(s, row);
    return v && schema_rows[row].types & T_AUTO && tm_json_is(v->node, "auto") ? NULL : v;
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
    if (v && strlen(text) != v->node->len) cfg_wrong(s, v, "\"%s\" holds a NUL byte", path);
    if (v && !*text) cfg_wrong(s, v, "\"%s\" must not be empty", path);
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
        if (!first->len || strlen(first->text) != first->len)
            cfg_wrong(s, v, "\"%s\" has an empty string or one with a NUL byte", path);
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
    if ((v || def) && !cfg_is_size_text(v ? v->node->text : def, &bytes)) bytes = 0;
    return bytes;
}
