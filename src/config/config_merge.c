/* Layers: trees are walked against the schema, later ones over earlier ones, --set last. */
#include "config/config_internal.h"

#include <stdio.h>
#include <string.h>

enum { PATH_MAX_BYTES = 160, SHOWN = 48, DEPTH = 8, HINTS = 8 };

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

static void unknown_key(cfg_state *s, const char *section, const char *key, const cfg_value *v) {
    char place[PATH_MAX_BYTES + 16] = " at top level";
    tm_buf hint = {0};
    if (*section) snprintf(place, sizeof place, " in \"%.*s\"", PATH_MAX_BYTES, section);
    if (s->n_problems < HINTS) cfg_keep(s, config_suggest_key(&hint, section, key));
    cfg_wrong(s, v, "unknown key \"%.*s\"%s%s", SHOWN, key, place, hint.data ? hint.data : "");
    tm_buf_free(&hint);
}

/* HF Trainer's flag beside DeepSpeed's section of the same name (bf16, fp16): what the section says has rows of its own,
 * and is compared with the flag there. */
static bool flag_and_section(const schema_row *row, const tm_json *a, const tm_json *b) {
    bool both = row->types & T_OBJ && row->types & T_BOOL;
    return both && (a->type == TM_JSON_OBJECT) != (b->type == TM_JSON_OBJECT);
}

/* A second value for a row: --set wins, null gives way, anything else must agree. */
static void store(cfg_state *s, size_t index, const cfg_value *v) {
    cfg_value *slot = &s->value[index];
    if (slot->node && v->source != SOURCE_SET && flag_and_section(&schema_rows[index], slot->node, v->node)) {
        if (slot->node->type == TM_JSON_OBJECT) *slot = *v;
        return;
    }
    bool replaces = !slot->node || v->source == SOURCE_SET || slot->node->type == TM_JSON_NULL;
    if (replaces)
        *slot = *v;
    else if (v->node->type != TM_JSON_NULL && !cfg_same(slot->node, v->node)) {
        bool was_auto = tm_json_is(slot->node, "auto"), is_auto = tm_json_is(v->node, "auto");
        if (was_auto) *slot = *v;
        if (!was_auto && !is_auto) cfg_mismatch(s, slot->spelled, slot, v->spelled, v);
        slot->over_auto = was_auto || is_auto;
    }
}

static bool is_lifted(const cfg_state *s, const schema_row *row) {
    for (size_t i = 0; s->lifted && i < s->opts->n_set; i++)
        if (s->lifted[i] == row) return true;
    return false;
}

/* One member. Returns the row to descend into, or NULL. */
static const schema_row *member(cfg_state *s, const char *section, const tm_json *n, const char *path, cfg_value v) {
    const schema_row *row = schema_find(path);
    if (!row) {
        unknown_key(s, section, n->key, &v);
        return NULL;
    }
    v.spelled = row->path;
    if (n->type == TM_JSON_NULL && cfg_is_yaml(v.file)) return NULL; /* "key:" is how YAML says nothing */
    if (v.source == SOURCE_DEEPSPEED && row->kind == K_OURS) {
        cfg_wrong(s, &v, "\"%s\" is not a key of DeepSpeed's; put it into %s", path, s->opts->name);
        return NULL;
    }
    if (row->alias_of) row = schema_find(row->alias_of);
    if (v.source != SOURCE_DEEPSPEED) row = config_row_of_word(row, n);
    if (v.source != SOURCE_SET && is_lifted(s, row)) return NULL;
    unsigned before = s->n_problems;
    cfg_check_value(s, row, &v);
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
        const schema_row *row = member(s, section, n, path, (cfg_value){n, file, NULL, source, false});
        if (!row || depth + 1 == DEPTH) continue;
        depth++;
        stack[depth].next = n->child;
        snprintf(stack[depth].section, sizeof stack[depth].section, "%s", row->path);
    }
    return s->broken;
}

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
    if (row && scalar && row->types & (T_STR | T_LIST | T_ENUM | T_FILES) && !(row->types & T_ANY) &&
        !cfg_type_fits(row, *out))
        return as_string(s, text, name, out);
    return TM_OK;
}

/* The path's own value, and everything below it. */
static void forget(cfg_state *s, const char *path) {
    size_t n = strlen(path);
    for (size_t i = 0; i < schema_row_count; i++) {
        const char *p = schema_rows[i].path;
        if (*p == *path && !strncmp(p, path, n) && (p[n] == '.' || !p[n])) s->value[i] = (cfg_value){0};
    }
}

/* The row that `path` lies in and that is said one thing of, such as "adapter" of "adapter.r": it holds for all that is
 * in there. ("deepspeed" takes any value too, but its keys are at top level.) */
static const schema_row *closed_section(const char *path) {
    char above[PATH_MAX_BYTES], *dot;
    snprintf(above, sizeof above, "%s", path);
    while ((dot = strrchr(above, '.'))) {
        *dot = 0;
        const schema_row *row = schema_find(above);
        if (row) return row->types & T_ANY && !(row->types & T_STR) ? row : NULL;
    }
    return NULL;
}

/* "key=value" of "--key=value", and what stands in front of it in messages. */
static const char *without_dashes(const char *assignment, const char **shown) {
    bool option = !strncmp(assignment, "--", 2);
    if (shown) *shown = option ? "" : "--set ";
    return assignment + (option ? 2 : 0);
}

const char *cfg_set_value(const char *assignment, const char *key) {
    const char *path = without_dashes(assignment, NULL);
    size_t n = strlen(key);
    return !strncmp(path, key, n) && path[n] == '=' ? path + n + 1 : NULL;
}

/* What --set says of a key, null included, counts in place of what a file says: that need not be right, then. */
tm_status cfg_lift(cfg_state *s) {
    if (s->opts->n_set == 0) return TM_OK;
    TM_TRY(cfg_alloc(s->cfg, s->opts->n_set * sizeof *s->lifted, (void **)&s->lifted));
    for (size_t i = 0; i < s->opts->n_set; i++) {
        char path[PATH_MAX_BYTES];
        const char *assignment = without_dashes(s->opts->set[i], NULL);
        size_t len = strcspn(assignment, "=");
        if (len >= sizeof path) continue;
        snprintf(path, sizeof path, "%.*s", (int)len, assignment);
        const schema_row *row = schema_find(path);
        s->lifted[i] = row && row->alias_of ? schema_find(row->alias_of) : row;
    }
    return TM_OK;
}

tm_status cfg_apply_set(cfg_state *s, const char *given) {
    const char *shown, *assignment = without_dashes(given, &shown);
    const char *eq = strchr(assignment, '=');
    size_t len = eq ? (size_t)(eq - assignment) : 0;
    if (!len || len >= PATH_MAX_BYTES) return tm_fail(TM_EINPUT, "--set %s: write --set key.path=value", assignment);
    char path[PATH_MAX_BYTES], section[PATH_MAX_BYTES] = "";
    snprintf(path, sizeof path, "%.*s", (int)len, assignment);
    char *name;
    size_t name_len = strlen(given) + 8;
    TM_TRY(cfg_alloc(s->cfg, name_len, (void **)&name));
    snprintf(name, name_len, "%s%s", shown, given);
    const schema_row *row = schema_find(path), *own = row && row->alias_of ? schema_find(row->alias_of) : row;
    const tm_json *value;
    TM_TRY(set_value(s, own, eq + 1, name, &value));
    if (own) own = config_row_of_word(own, value);
    const char *dot = strrchr(path, '.');
    if (dot) snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    tm_json key = *value;
    key.key = dot ? path + (dot - path) + 1 : path;
    cfg_value v = {value, name, NULL, SOURCE_SET, false};
    const schema_row *closed = row ? NULL : closed_section(path);
    if (closed) {
        v.spelled = closed->path;
        cfg_check_value(s, closed, &v);
        return s->broken;
    }
    if (own) forget(s, own->path);
    if (own && value->type == TM_JSON_NULL) return TM_OK; /* back to the default */
    const schema_row *inside = member(s, section, &key, path, v);
    return inside ? cfg_merge(s, value, inside->path, name, SOURCE_SET) : s->broken;
}
