/* The JSON writer: commas, indentation and escapes. The first failure stays in `status`. */
#include "base/base_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void tm_jw_init(tm_json_writer *w, tm_buf *out, int indent) {
    *w = (tm_json_writer){.out = out, .indent = indent};
    w->first[0] = true;
}

static void put(tm_json_writer *w, const char *bytes, size_t n) {
    if (w->status == TM_OK) w->status = tm_buf_append(w->out, bytes, n);
}

static void put_text(tm_json_writer *w, const char *text) {
    put(w, text, strlen(text));
}

static void put_line_break(tm_json_writer *w) {
    if (w->indent <= 0) return;
    put(w, "\n", 1);
    for (int i = 0; i < w->depth * w->indent; i++) put(w, " ", 1);
}

/* What stands in front of a value or key: nothing after a key, else a comma unless it is the first here. */
static void begin_item(tm_json_writer *w) {
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (!w->first[w->depth]) put(w, w->indent > 0 ? "," : ", ", w->indent > 0 ? 1 : 2);
    if (w->depth > 0) put_line_break(w);
    w->first[w->depth] = false;
}

static void open_container(tm_json_writer *w, const char *bracket) {
    begin_item(w);
    if (w->depth + 1 >= (int)TM_COUNT(w->first)) {
        if (w->status == TM_OK) w->status = tm_fail(TM_EBUG, "JSON output is nested too deeply");
        return;
    }
    put_text(w, bracket);
    w->first[++w->depth] = true;
}

static void close_container(tm_json_writer *w, const char *bracket) {
    if (w->status != TM_OK) return;
    TM_ASSERT(w->depth > 0 && !w->after_key);
    bool empty = w->first[w->depth--];
    if (!empty) put_line_break(w);
    put_text(w, bracket);
}

void tm_jw_object(tm_json_writer *w) {
    open_container(w, "{");
}
void tm_jw_object_end(tm_json_writer *w) {
    close_container(w, "}");
}
void tm_jw_array(tm_json_writer *w) {
    open_container(w, "[");
}
void tm_jw_array_end(tm_json_writer *w) {
    close_container(w, "]");
}

static bool stands_for_itself(unsigned char c, bool ascii) {
    return c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x80) && c < 0x80;
}

static void put_utf16_escape(tm_json_writer *w, uint32_t c) {
    char escape[16];
    if (c < 0x10000) {
        snprintf(escape, sizeof escape, "\\u%04x", c);
    } else {
        c -= 0x10000;
        snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
    }
    put_text(w, escape);
}

static void put_ascii_escape(tm_json_writer *w, char c) {
    static const char values[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *found = c ? strchr(values, c) : NULL;
    if (!found) {
        put_utf16_escape(w, (unsigned char)c);
        return;
    }
    put(w, "\\", 1);
    put(w, &names[found - values], 1);
}

/* One code point above U+007F; a byte that is no UTF-8 becomes U+FFFD, since the text must stay JSON. Returns its
 * bytes. */
static size_t put_multibyte(tm_json_writer *w, const char *p, size_t n) {
    uint32_t c = 0xFFFD;
    size_t taken = base_utf8_decode(p, n, &c);
    if (taken == 0) c = 0xFFFD;
    if (w->ascii) {
        put_utf16_escape(w, c);
    } else if (taken == 0) {
        put(w, "\xEF\xBF\xBD", 3);
    } else {
        put(w, p, taken);
    }
    return taken ? taken : 1;
}

static void put_string(tm_json_writer *w, const char *s, size_t n) {
    put(w, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && stands_for_itself((unsigned char)s[run], w->ascii)) run++;
        put(w, s + i, run - i);
        i = run;
        if (i == n) break;
        if ((unsigned char)s[i] >= 0x80) {
            i += put_multibyte(w, s + i, n - i);
        } else {
            put_ascii_escape(w, s[i++]);
        }
    }
    put(w, "\"", 1);
}

static void key_n(tm_json_writer *w, const char *key, size_t n) {
    begin_item(w);
    put_string(w, key, n);
    put(w, ": ", 2);
    w->after_key = true;
}

void tm_jw_key(tm_json_writer *w, const char *key) {
    key_n(w, key, strlen(key));
}

void tm_jw_strn(tm_json_writer *w, const char *s, size_t n) {
    begin_item(w);
    put_string(w, s, n);
}

void tm_jw_str(tm_json_writer *w, const char *s) {
    if (s)
        tm_jw_strn(w, s, strlen(s));
    else
        tm_jw_null(w);
}

void tm_jw_raw(tm_json_writer *w, const char *json, size_t n) {
    begin_item(w);
    put(w, json, n);
}

static void value_text(tm_json_writer *w, const char *text) {
    tm_jw_raw(w, text, strlen(text));
}

void tm_jw_int(tm_json_writer *w, int64_t v) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, v);
    value_text(w, text);
}

void tm_jw_uint(tm_json_writer *w, uint64_t v) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, v);
    value_text(w, text);
}

void tm_jw_double(tm_json_writer *w, double v) {
    char text[40];
    value_text(w, tm_format_double(v, text, sizeof text));
}

void tm_jw_bool(tm_json_writer *w, bool v) {
    value_text(w, v ? "true" : "false");
}
void tm_jw_null(tm_json_writer *w) {
    value_text(w, "null");
}

#define FIELD(sort, type)                                                                                              \
    void tm_jw_field_##sort(tm_json_writer *w, const char *key, type v) {                                              \
        tm_jw_key(w, key);                                                                                             \
        tm_jw_##sort(w, v);                                                                                            \
    }
FIELD(str, const char *)
FIELD(uint, uint64_t)
FIELD(int, int64_t)
FIELD(double, double)
FIELD(bool, bool)

void tm_jw_field_strn(tm_json_writer *w, const char *key, const char *v, size_t n) {
    tm_jw_key(w, key);
    tm_jw_strn(w, v, n);
}

void tm_jw_field_object(tm_json_writer *w, const char *key) {
    tm_jw_key(w, key);
    tm_jw_object(w);
}

void tm_jw_field_array(tm_json_writer *w, const char *key) {
    tm_jw_key(w, key);
    tm_jw_array(w);
}

/* Writes a scalar, or opens a container. */
static void node_start(tm_json_writer *w, const tm_json *node) {
    switch (node->type) {
    case TM_JSON_OBJECT:
        tm_jw_object(w);
        break;
    case TM_JSON_ARRAY:
        tm_jw_array(w);
        break;
    case TM_JSON_STRING:
        tm_jw_strn(w, node->text, node->len);
        break;
    case TM_JSON_NUMBER:
        tm_jw_raw(w, node->text, node->len);
        break;
    case TM_JSON_BOOL:
        tm_jw_bool(w, node->boolean);
        break;
    default:
        tm_jw_null(w);
    }
}

static bool is_container(const tm_json *node) {
    return node->type == TM_JSON_OBJECT || node->type == TM_JSON_ARRAY;
}

void tm_jw_node(tm_json_writer *w, const tm_json *node) {
    const tm_json *open[JSON_MAX_DEPTH], *next[JSON_MAX_DEPTH]; /* the containers begun, and what comes next in each */
    unsigned depth = 0;
    node_start(w, node);
    if (!is_container(node)) return;
    open[depth] = node;
    next[depth++] = node->child;
    while (depth > 0 && w->status == TM_OK) {
        const tm_json *n = next[depth - 1];
        if (!n) {
            close_container(w, open[--depth]->type == TM_JSON_OBJECT ? "}" : "]");
            continue;
        }
        next[depth - 1] = n->next;
        if (n->key) key_n(w, n->key, n->key_len);
        node_start(w, n);
        if (is_container(n)) {
            TM_ASSERT(depth < JSON_MAX_DEPTH);
            open[depth] = n;
            next[depth++] = n->child;
        }
    }
}

tm_status tm_jw_end(tm_json_writer *w) {
    if (w->status != TM_OK) return w->status;
    TM_ASSERT(w->depth == 0 && !w->after_key);
    return TM_OK;
}
