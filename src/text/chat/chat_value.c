/* Values: Python's, as far as templates see them. Strings carry marks of which assistant message they come from; every
 * operation that makes a string of strings keeps them. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- memory, work and errors ------------------------------------------------------------------------------------ */

void *cj_arena_alloc(cj_arena *a, size_t n) {
    enum { CHUNK = 65536 };
    if (tm_fault_hit("template", NULL)) return (void)tm_nomem(n), NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->chunk == NULL || a->chunk->cap - a->chunk->used < n) {
        size_t cap = n > CHUNK ? n : CHUNK;
        cj_chunk *c = tm_malloc(sizeof *c + 16 + cap);
        if (c == NULL) return (void)tm_nomem(cap), NULL;
        *c = (cj_chunk){.next = a->chunk, .cap = cap};
        a->chunk = c;
        a->total += cap;
    }
    char *base = (char *)(((uintptr_t)(a->chunk + 1) + 15) & ~(uintptr_t)15);
    void *p = base + a->chunk->used;
    a->chunk->used += n;
    return memset(p, 0, n);
}

void cj_arena_free(cj_arena *a) {
    for (cj_chunk *c = a->chunk, *next; c != NULL; c = next) {
        next = c->next;
        tm_free(c);
    }
    *a = (cj_arena){0};
}

cj_value cj_error(cj_run *x, tm_status code, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (x->rc == TM_OK)
        x->rc = tm_fail(code, "%s:%u: %stemplate: %s", x->name, x->line, x->strict ? "" : "chat ", text);
    return cj_undefined(NULL);
}

bool cj_step(cj_run *x, uint64_t n) {
    if (x->rc != TM_OK) return false;
    uint64_t most = CJ_BASE_STEPS + x->seen / CJ_BYTES_A_STEP;
    x->steps += n;
    if (x->steps <= most) return true;
    (void)cj_error(x, TM_EUNSUPPORTED, "more than %" PRIu64 " steps; does it end?", most);
    return false;
}

/* A text that grows is there twice for a moment, the second time half as large again. */
static bool has_room(cj_run *x, size_t n, uint64_t text) {
    uint64_t most = CJ_BASE_BYTES + x->seen * CJ_BYTES_A_BYTE;
    if (x->most_bytes) most = tm_min_u64(most, tm_max_u64(x->most_bytes, CJ_BASE_BYTES));
    if (n <= most && x->arena.total + n + (x->held + text) / 2 * 5 <= most) return true;
    (void)cj_error(x, TM_EUNSUPPORTED, "needs more than %" PRIu64 " MiB", most / TM_MIB);
    return false;
}

void *cj_alloc(cj_run *x, size_t n) {
    if (!cj_step(x, 1 + n / 256) || !has_room(x, n, 0)) return NULL;
    void *p = cj_arena_alloc(&x->arena, n);
    if (p == NULL) x->rc = TM_ENOMEM;
    return p;
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

cj_value cj_undefined(const char *name) {
    return (cj_value){.type = CJ_UNDEFINED, .name = name};
}
cj_value cj_bool(bool b) {
    return (cj_value){.type = CJ_BOOL, .boolean = b};
}
cj_value cj_int(int64_t i) {
    return (cj_value){.type = CJ_INT, .integer = i};
}

static cj_value from_str(const cj_str *s) {
    return s == NULL ? cj_undefined(NULL) : (cj_value){.type = CJ_STRING, .str = s};
}

cj_value cj_string(cj_run *x, const char *p, size_t n) {
    cj_str *s = cj_alloc(x, sizeof *s);
    if (s != NULL) *s = (cj_str){.p = p, .n = n};
    return from_str(s);
}

cj_value cj_copy_string(cj_run *x, const char *p, size_t n) {
    char *copy = cj_alloc(x, n + 1);
    if (copy == NULL) return cj_undefined(NULL);
    if (n > 0) memcpy(copy, p, n);
    return cj_string(x, copy, n);
}

/* Marks that merely touch the range stay, as empty ones: trimmed-away content still says where it was. */
cj_value cj_substr(cj_run *x, const cj_str *s, size_t begin, size_t end) {
    cj_str *r = cj_alloc(x, sizeof *r);
    cj_mark *mark = s->marks == 0 ? NULL : cj_alloc(x, s->marks * sizeof *mark);
    if (r == NULL || (s->marks > 0 && mark == NULL)) return cj_undefined(NULL);
    *r = (cj_str){.p = s->p + begin, .n = end - begin, .mark = mark};
    for (size_t i = 0; i < s->marks; i++) {
        cj_mark m = s->mark[i];
        size_t b = m.begin > begin ? m.begin : begin, e = m.end < end ? m.end : end;
        if (b <= e) mark[r->marks++] = (cj_mark){b - begin, e - begin, m.owner};
    }
    return from_str(r);
}

cj_value cj_new_list(cj_run *x, size_t n) {
    cj_list *l = cj_alloc(x, sizeof *l);
    cj_value *v = cj_alloc(x, n * sizeof *v + 1);
    if (l == NULL || v == NULL) return cj_undefined(NULL);
    *l = (cj_list){.v = v, .n = n};
    return (cj_value){.type = CJ_ARRAY, .list = l};
}

cj_value cj_new_dict(cj_run *x, cj_type type) {
    cj_dict *d = cj_alloc(x, sizeof *d);
    return d == NULL ? cj_undefined(NULL) : (cj_value){.type = type, .dict = d};
}

cj_value cj_from_json(cj_run *x, const tm_json *node, uint32_t owner) {
    cj_value v = {.type = CJ_NONE};
    x->seen += sizeof *node + node->len; /* each node once: lists and objects are filled once */
    switch (node->type) {
    case TM_JSON_BOOL:
        return cj_bool(node->boolean);
    case TM_JSON_NUMBER:
        if (node->is_integer) return cj_int(node->integer);
        return (cj_value){.type = CJ_FLOAT, .number = node->number};
    case TM_JSON_STRING: {
        cj_str *s = cj_alloc(x, sizeof *s + sizeof *s->mark);
        if (s == NULL) return cj_undefined(NULL);
        cj_mark *mark = (cj_mark *)(void *)(s + 1);
        *mark = (cj_mark){0, node->len, owner};
        *s = (cj_str){.p = node->text, .n = node->len, .mark = mark, .marks = owner > 0};
        return from_str(s);
    }
    case TM_JSON_ARRAY:
        v = cj_new_list(x, 0);
        if (x->rc == TM_OK) v.list->json = node, v.list->owner = owner, v.list->n = node->count;
        return v;
    case TM_JSON_OBJECT:
        v = cj_new_dict(x, CJ_MAPPING);
        if (x->rc == TM_OK) v.dict->json = node, v.dict->owner = owner;
        return v;
    default:
        return v;
    }
}

/* As transformers does: a message's reasoning, whatever it is called, is found under the names that templates read. */
static void alias_reasoning(cj_run *x, cj_value *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const cj_value *reasoning = NULL;
    if (message->type != CJ_MAPPING || !cj_fill_dict(x, message->dict)) return;
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        const cj_value *v = cj_dict_get(x, message->dict, names[i], strlen(names[i]));
        if (reasoning == NULL && v != NULL && v->type != CJ_NONE) reasoning = v;
    }
    if (reasoning == NULL) return;
    cj_value with = cj_new_dict(x, CJ_MAPPING), value = *reasoning;
    cj_value thinking = cj_string(x, names[1], strlen(names[1])), content = cj_string(x, names[0], strlen(names[0]));
    if (x->rc != TM_OK) return;
    (void)cj_dict_set(x, with.dict, thinking.str, value);
    for (size_t i = 0; i < message->dict->n && x->rc == TM_OK; i++)
        (void)cj_dict_set(x, with.dict, message->dict->e[i].key, message->dict->e[i].v);
    (void)cj_dict_set(x, with.dict, content.str, value);
    *message = with;
}

bool cj_fill_list(cj_run *x, cj_list *l) {
    if (l->json == NULL) return x->rc == TM_OK;
    cj_value *v = cj_alloc(x, l->json->count * sizeof *v + 1);
    if (v == NULL) return false;
    uint32_t i = 0;
    for (const tm_json *e = l->json->child; e != NULL; e = e->next, i++) {
        const tm_json *role = l->messages ? tm_json_get(e, "role") : NULL;
        bool assistant = tm_json_is(role, "assistant") || tm_json_is(role, "model");
        v[i] = cj_from_json(x, e, l->messages ? 2 * (i + 1) + assistant : l->owner);
        if (l->messages && v[i].type == CJ_MAPPING) v[i].dict->message = true;
        if (l->messages) alias_reasoning(x, &v[i]);
    }
    l->v = v;
    l->json = NULL;
    return x->rc == TM_OK;
}

/* A message's head is the template's business; all else was written by its author. */
static bool is_head(const char *key) {
    static const char *const head[] = {"role", "name", "tool_call_id"};
    for (size_t i = 0; i < TM_COUNT(head); i++)
        if (strcmp(key, head[i]) == 0) return true;
    return false;
}

bool cj_fill_dict(cj_run *x, cj_dict *d) {
    if (d->json == NULL) return x->rc == TM_OK;
    const tm_json *node = d->json;
    d->e = cj_alloc(x, node->count * sizeof *d->e + 1);
    if (d->e == NULL) return false;
    for (const tm_json *m = node->child; m != NULL; m = m->next) {
        cj_value key = cj_string(x, m->key, m->key_len);
        d->e[d->n].key = key.str;
        d->e[d->n].v = cj_from_json(x, m, d->message && is_head(m->key) ? 0 : d->owner);
        if (x->rc != TM_OK) return false;
        d->n++;
    }
    d->cap = d->n;
    d->json = NULL;
    return true;
}

const cj_value *cj_dict_get(cj_run *x, cj_dict *d, const char *key, size_t len) {
    if (!cj_fill_dict(x, d) || !cj_step(x, 1 + d->n / 8)) return NULL;
    for (size_t i = 0; i < d->n; i++) {
        if (d->e[i].key->n != len) continue;
        if (!cj_step(x, len / 64)) return NULL;
        if (memcmp(d->e[i].key->p, key, len) == 0) return &d->e[i].v;
    }
    return NULL;
}

bool cj_dict_set(cj_run *x, cj_dict *d, const cj_str *key, cj_value v) {
    const cj_value *have = cj_dict_get(x, d, key->p, key->n);
    if (x->rc != TM_OK) return false;
    if (have != NULL) {
        d->e[(const cj_entry *)(const void *)((const char *)have - offsetof(cj_entry, v)) - d->e].v = v;
        return true;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap * 2 + 4;
        cj_entry *e = cj_alloc(x, cap * sizeof *e);
        if (e == NULL) return false;
        if (d->n > 0) memcpy(e, d->e, d->n * sizeof *e);
        d->e = e;
        d->cap = cap;
    }
    d->e[d->n++] = (cj_entry){key, v};
    return true;
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

bool cj_py_space(uint32_t code) {
    return tk_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

const char *cj_type_name(cj_value v) {
    static const char *const names[] = {"undefined", "None",      "bool", "int",      "float",  "str",  "list",
                                        "dict",      "namespace", "loop", "function", "method", "macro"};
    return names[v.type];
}

bool cj_is_number(cj_value v, double *number, int64_t *integer, bool *is_integer) {
    *integer = v.type == CJ_BOOL ? v.boolean : v.type == CJ_INT ? v.integer : 0;
    *is_integer = v.type == CJ_BOOL || v.type == CJ_INT;
    *number = v.type == CJ_FLOAT ? v.number : (double)*integer;
    return *is_integer || v.type == CJ_FLOAT;
}

size_t cj_length(cj_run *x, cj_value v) {
    if (v.type == CJ_ARRAY) return v.list->n;
    if (v.type == CJ_MAPPING) return cj_fill_dict(x, v.dict) ? v.dict->n : 0;
    if (v.type == CJ_UNDEFINED) return 0;
    if (v.type == CJ_LOOP) return v.loop->list->n;
    if (v.type != CJ_STRING) return (void)cj_error(x, TM_EINPUT, "a %s has no length", cj_type_name(v)), 0;
    size_t n = 0;
    for (size_t i = 0; i < v.str->n; i++) n += ((unsigned char)v.str->p[i] & 0xC0) != 0x80;
    return cj_step(x, v.str->n / 64) ? n : 0;
}

bool cj_truth(cj_run *x, cj_value v) {
    switch (v.type) {
    case CJ_UNDEFINED:
    case CJ_NONE:
        return false;
    case CJ_BOOL:
        return v.boolean;
    case CJ_INT:
        return v.integer != 0;
    case CJ_FLOAT:
        return v.number != 0;
    case CJ_STRING:
        return v.str->n > 0;
    case CJ_ARRAY:
    case CJ_MAPPING:
        return cj_length(x, v) > 0;
    default:
        return true;
    }
}

static bool equal_at(cj_run *x, cj_value a, cj_value b, unsigned depth);

static bool equal_lists(cj_run *x, cj_list *a, cj_list *b, unsigned depth) {
    if (a->n != b->n || !cj_fill_list(x, a) || !cj_fill_list(x, b)) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!equal_at(x, a->v[i], b->v[i], depth + 1)) return false;
    return true;
}

static bool equal_dicts(cj_run *x, cj_dict *a, cj_dict *b, unsigned depth) {
    if (!cj_fill_dict(x, a) || !cj_fill_dict(x, b) || a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const cj_value *other = cj_dict_get(x, b, a->e[i].key->p, a->e[i].key->n);
        if (other == NULL || !equal_at(x, a->e[i].v, *other, depth + 1)) return false;
    }
    return true;
}

static bool equal_at(cj_run *x, cj_value a, cj_value b, unsigned depth) {
    double p, q;
    int64_t i, j;
    bool whole_a, whole_b;
    if (!cj_step(x, 1)) return false;
    if (depth > 64)
        return (void)cj_error(x, TM_EUNSUPPORTED, "a comparison of values that are nested too deeply"), false;
    if (cj_is_number(a, &p, &i, &whole_a) && cj_is_number(b, &q, &j, &whole_b))
        return whole_a && whole_b ? i == j : p == q;
    if (a.type != b.type) return false;
    switch (a.type) {
    case CJ_STRING:
        return cj_step(x, a.str->n / 64) && a.str->n == b.str->n && memcmp(a.str->p, b.str->p, a.str->n) == 0;
    case CJ_ARRAY:
        return equal_lists(x, a.list, b.list, depth);
    case CJ_MAPPING:
        return equal_dicts(x, a.dict, b.dict, depth);
    case CJ_UNDEFINED:
    case CJ_NONE:
        return true;
    default:
        return a.name == b.name; /* the same object */
    }
}

bool cj_equal(cj_run *x, cj_value a, cj_value b) {
    return equal_at(x, a, b, 0);
}

int cj_compare(cj_run *x, cj_value a, cj_value b) {
    double p, q;
    int64_t i, j;
    bool whole_a, whole_b;
    if (cj_is_number(a, &p, &i, &whole_a) && cj_is_number(b, &q, &j, &whole_b))
        return whole_a && whole_b ? (i > j) - (i < j) : (p > q) - (p < q);
    if (a.type != CJ_STRING || b.type != CJ_STRING)
        return (void)cj_error(x, TM_EINPUT, "%s and %s have no order", cj_type_name(a), cj_type_name(b)), 0;
    size_t n = a.str->n < b.str->n ? a.str->n : b.str->n;
    int c = n == 0 || !cj_step(x, n / 64) ? 0 : memcmp(a.str->p, b.str->p, n); /* UTF-8 sorts as code points do */
    if (c != 0) return c < 0 ? -1 : 1;
    return (a.str->n > b.str->n) - (a.str->n < b.str->n);
}

bool cj_contains(cj_run *x, cj_value container, cj_value item) {
    if (container.type == CJ_STRING) {
        if (item.type != CJ_STRING)
            return (void)cj_error(x, TM_EINPUT, "'in' a string needs a string, not %s", cj_type_name(item)), false;
        if (!cj_step(x, container.str->n / 16)) return false;
        return memmem(container.str->p, container.str->n, item.str->p, item.str->n) != NULL;
    }
    if (container.type == CJ_MAPPING)
        return item.type == CJ_STRING && cj_dict_get(x, container.dict, item.str->p, item.str->n) != NULL;
    const cj_list *l = cj_items(x, container);
    for (size_t i = 0; l != NULL && i < l->n; i++)
        if (cj_equal(x, l->v[i], item)) return true;
    return false;
}

const cj_list *cj_items(cj_run *x, cj_value v) {
    if (v.type == CJ_ARRAY) return cj_fill_list(x, v.list) ? v.list : NULL;
    if (v.type == CJ_UNDEFINED && x->rc == TM_OK) return cj_new_list(x, 0).list;
    if (v.type == CJ_MAPPING) {
        if (!cj_fill_dict(x, v.dict)) return NULL;
        cj_value keys = cj_new_list(x, v.dict->n);
        for (size_t i = 0; x->rc == TM_OK && i < v.dict->n; i++) keys.list->v[i] = from_str(v.dict->e[i].key);
        return x->rc == TM_OK ? keys.list : NULL;
    }
    if (v.type == CJ_STRING) {
        cj_value chars = cj_new_list(x, cj_length(x, v));
        for (size_t i = 0, at = 0; x->rc == TM_OK && i < chars.list->n; i++) {
            size_t begin = at;
            (void)tk_next(v.str->p, &at);
            chars.list->v[i] = cj_substr(x, v.str, begin, at);
        }
        return x->rc == TM_OK ? chars.list : NULL;
    }
    (void)cj_error(x, TM_EINPUT, "a %s cannot be iterated over", cj_type_name(v));
    return NULL;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static uint64_t out_bytes(const cj_out *out) {
    return out->text.len + out->marks * sizeof *out->mark;
}

bool cj_out_put(cj_run *x, cj_out *out, const cj_str *s) {
    if (x->rc != TM_OK || s == NULL || !cj_step(x, 1 + s->n / 64)) return false;
    if (!has_room(x, 0, s->n + s->marks * sizeof *out->mark)) return false;
    size_t base = out->text.len;
    x->rc = tm_buf_append(&out->text, s->p, s->n);
    if (x->rc == TM_OK) x->rc = tm_grow(&out->mark, &out->cap, out->marks + s->marks, sizeof *out->mark);
    for (size_t i = 0; x->rc == TM_OK && i < s->marks; i++)
        out->mark[out->marks++] = (cj_mark){base + s->mark[i].begin, base + s->mark[i].end, s->mark[i].owner};
    x->held += s->n + s->marks * sizeof *out->mark;
    return x->rc == TM_OK;
}

void cj_out_free(cj_out *out) {
    tm_buf_free(&out->text);
    tm_free(out->mark);
    *out = (cj_out){0};
}

const cj_str *cj_out_take(cj_run *x, cj_out *out) {
    cj_str *s = NULL;
    char *p = x->rc == TM_OK ? cj_alloc(x, out->text.len + 1) : NULL;
    cj_mark *mark = p == NULL || out->marks == 0 ? NULL : cj_alloc(x, out->marks * sizeof *mark);
    if (x->rc == TM_OK) s = cj_alloc(x, sizeof *s);
    if (s != NULL) {
        if (out->text.len > 0) memcpy(p, out->text.data, out->text.len);
        if (out->marks > 0) memcpy(mark, out->mark, out->marks * sizeof *mark);
        *s = (cj_str){.p = p, .n = out->text.len, .mark = mark, .marks = out->marks};
    }
    x->held -= tm_min_u64(x->held, out_bytes(out));
    cj_out_free(out);
    return s;
}

static bool put_text(cj_run *x, cj_out *out, const char *p, size_t n) {
    return cj_out_put(x, out, &(cj_str){.p = p, .n = n});
}

static bool put_number(cj_run *x, cj_out *out, cj_value v) {
    char text[40];
    if (v.type == CJ_INT) {
        (void)snprintf(text, sizeof text, "%lld", (long long)v.integer);
    } else {
        (void)tm_format_double(v.number, text, sizeof text);
        if (strpbrk(text, ".en") == NULL) (void)strcat(text, ".0"); /* 40 > 32 + 2 */
    }
    return put_text(x, out, text, strlen(text));
}

/* How a value is written: as repr() does, or as json.dumps does. */
typedef struct style {
    bool json, sort;
    int indent;       /* -1: one line */
    cj_str item, key; /* separators; empty: the usual ones */
} style;

static bool put_newline(cj_run *x, cj_out *out, const style *s, unsigned depth) {
    if (s->indent < 0) return true;
    bool ok = put_text(x, out, "\n", 1);
    for (unsigned i = 0; ok && i < depth * (unsigned)s->indent; i++) ok = put_text(x, out, " ", 1);
    return ok;
}

static bool put_quoted(cj_run *x, cj_out *out, const style *s, const cj_str *str) {
    bool has_single = memchr(str->p, '\'', str->n) != NULL, has_double = memchr(str->p, '"', str->n) != NULL;
    char quote = s->json || (has_single && !has_double) ? '"' : '\'';
    bool ok = cj_step(x, str->n / 16) && put_text(x, out, &quote, 1);
    size_t plain = 0;
    for (size_t i = 0; ok && i <= str->n; i++) {
        unsigned char c = i < str->n ? (unsigned char)str->p[i] : 0;
        char escape[8] = "";
        if (i == str->n)
            escape[0] = 0;
        else if (c == '\\' || c == (unsigned char)quote)
            (void)snprintf(escape, sizeof escape, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            (void)snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (s->json && (c == '\b' || c == '\f'))
            (void)snprintf(escape, sizeof escape, "\\%c", c == '\b' ? 'b' : 'f');
        else if (c < 0x20 || (!s->json && c == 0x7F))
            (void)snprintf(escape, sizeof escape, s->json ? "\\u%04x" : "\\x%02x", c);
        else
            continue;
        cj_value part = cj_substr(x, str, plain, i);
        ok = x->rc == TM_OK && cj_out_put(x, out, part.str) && put_text(x, out, escape, strlen(escape));
        plain = i + 1;
    }
    return ok && put_text(x, out, &quote, 1);
}

static bool put_value(cj_run *x, cj_out *out, const style *s, cj_value v, unsigned depth);

static bool put_comma(cj_run *x, cj_out *out, const style *s) {
    if (s->item.n > 0) return cj_out_put(x, out, &s->item);
    return put_text(x, out, ", ", s->indent < 0 ? 2 : 1);
}

static bool put_list(cj_run *x, cj_out *out, const style *s, cj_list *l, unsigned depth) {
    bool ok = cj_fill_list(x, l) && put_text(x, out, "[", 1);
    for (size_t i = 0; ok && i < l->n; i++) {
        if (i > 0) ok = put_comma(x, out, s);
        ok = ok && put_newline(x, out, s, depth + 1) && put_value(x, out, s, l->v[i], depth + 1);
    }
    if (ok && l->n > 0) ok = put_newline(x, out, s, depth);
    return ok && put_text(x, out, "]", 1);
}

/* The entries in the order of their keys: insertion sort, with its work counted. */
static cj_entry *sorted(cj_run *x, const cj_dict *d) {
    cj_entry *e = cj_alloc(x, d->n * sizeof *e + 1);
    for (size_t i = 0; e != NULL && i < d->n && cj_step(x, 1 + i); i++) {
        size_t at = i;
        cj_value key = {.type = CJ_STRING, .str = d->e[i].key};
        for (; at > 0 && cj_compare(x, key, from_str(e[at - 1].key)) < 0; at--) e[at] = e[at - 1];
        e[at] = d->e[i];
    }
    return x->rc == TM_OK ? e : NULL;
}

static bool put_dict(cj_run *x, cj_out *out, const style *s, cj_dict *d, unsigned depth) {
    bool ok = cj_fill_dict(x, d) && put_text(x, out, "{", 1);
    const cj_entry *e = !ok ? NULL : s->sort ? sorted(x, d) : d->e;
    ok = ok && x->rc == TM_OK;
    for (size_t i = 0; ok && i < d->n; i++) {
        if (i > 0) ok = put_comma(x, out, s);
        ok = ok && put_newline(x, out, s, depth + 1) && put_quoted(x, out, s, e[i].key) &&
             (s->key.n > 0 ? cj_out_put(x, out, &s->key) : put_text(x, out, ": ", 2)) &&
             put_value(x, out, s, e[i].v, depth + 1);
    }
    if (ok && d->n > 0) ok = put_newline(x, out, s, depth);
    return ok && put_text(x, out, "}", 1);
}

/* What was printed since `begin` is a container of `owner`, brackets and all. */
static bool put_mark(cj_run *x, cj_out *out, size_t begin, uint32_t owner) {
    if (owner == 0) return true;
    x->rc = tm_grow(&out->mark, &out->cap, out->marks + 1, sizeof *out->mark);
    if (x->rc != TM_OK) return false;
    out->mark[out->marks++] = (cj_mark){begin, out->text.len, owner};
    x->held += sizeof *out->mark;
    return true;
}

static bool put_value(cj_run *x, cj_out *out, const style *s, cj_value v, unsigned depth) {
    const char *word = NULL;
    size_t begin = out->text.len;
    if (depth > 64) return (void)cj_error(x, TM_EUNSUPPORTED, "a value that is nested too deeply"), false;
    switch (v.type) {
    case CJ_NONE:
        word = s->json ? "null" : "None";
        break;
    case CJ_BOOL:
        word = s->json ? (v.boolean ? "true" : "false") : v.boolean ? "True" : "False";
        break;
    case CJ_INT:
    case CJ_FLOAT:
        return put_number(x, out, v);
    case CJ_STRING:
        return put_quoted(x, out, s, v.str);
    case CJ_ARRAY:
        return put_list(x, out, s, v.list, depth) && put_mark(x, out, begin, v.list->owner);
    case CJ_MAPPING:
        return put_dict(x, out, s, v.dict, depth) && put_mark(x, out, begin, v.dict->owner);
    default:
        break;
    }
    if (word == NULL) return (void)cj_error(x, TM_EINPUT, "a %s cannot be written", cj_type_name(v)), false;
    return put_text(x, out, word, strlen(word));
}

const cj_str *cj_to_str(cj_run *x, cj_value v) {
    static const cj_str empty = {.p = ""};
    if (x->rc != TM_OK) return NULL;
    if (v.type == CJ_STRING) return v.str;
    if (v.type == CJ_UNDEFINED) return &empty;
    cj_out out = {0};
    (void)put_value(x, &out, &(style){.indent = -1}, v, 0);
    return cj_out_take(x, &out);
}

cj_value cj_to_json(cj_run *x, cj_value v, int indent, bool sort, const cj_str *item, const cj_str *key) {
    cj_out out = {0};
    style s = {.json = true, .indent = indent, .sort = sort};
    if (item != NULL) s.item = *item;
    if (key != NULL) s.key = *key;
    (void)put_value(x, &out, &s, v, 0);
    return from_str(cj_out_take(x, &out));
}
