/* JSON tokens: blanks and comments, strings, numbers, words. What may follow what is json_reader.c's business. */
#include "base/base_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REPLACEMENT = 0xFFFD };

/* ---- input ------------------------------------------------------------------------------------------------------ */

tm_status json_have(json_input *s, size_t n, bool *have) {
    while (s->len - s->pos < n && !s->end) {
        if (s->pos > 0) {
            memmove(s->buffer, s->buffer + s->pos, s->len - s->pos);
            s->base += s->pos;
            s->len -= s->pos;
            s->pos = 0;
        }
        size_t got = 0;
        TM_TRY(s->read(s->ctx, s->buffer + s->len, JSON_INPUT_BYTES - s->len, &got));
        TM_ASSERT(got <= JSON_INPUT_BYTES - s->len);
        s->len += got;
        s->end = got == 0;
    }
    *have = s->len - s->pos >= n;
    return TM_OK;
}

static void to_next_line(json_input *s) {
    s->line++;
    s->line_start = s->base + s->pos;
}

uint32_t json_column(const json_input *s) {
    return (uint32_t)(s->base + s->pos - s->line_start + 1);
}

tm_status json_fail(json_input *s, const char *format, ...) {
    char what[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return tm_fail(TM_EINPUT, "%s:%u:%u: %s", s->name, s->line, json_column(s), what);
}

tm_status json_fail_found(json_input *s, const char *expected) {
    bool more;
    TM_TRY(json_have(s, 1, &more));
    if (!more) return json_fail(s, "the text ends here; expected %s", expected);
    unsigned char c = (unsigned char)s->in[s->pos];
    if (c > 0x20 && c < 0x7f) return json_fail(s, "expected %s, found '%c'", expected, c);
    return json_fail(s, "expected %s, found byte 0x%02x", expected, c);
}

/* ---- blanks ----------------------------------------------------------------------------------------------------- */

static tm_status skip_line_comment(json_input *s) {
    for (;;) {
        bool more;
        TM_TRY(json_have(s, 1, &more));
        if (!more || s->in[s->pos] == '\n') return TM_OK;
        s->pos++;
    }
}

static tm_status skip_block_comment(json_input *s) {
    s->pos += 2;
    for (;;) {
        bool more;
        TM_TRY(json_have(s, 2, &more));
        if (!more) return json_fail(s, "the text ends inside a comment");
        if (s->in[s->pos] == '*' && s->in[s->pos + 1] == '/') break;
        if (s->in[s->pos++] == '\n') to_next_line(s);
    }
    s->pos += 2;
    return TM_OK;
}

/* *found is false if what is there is no comment. */
static tm_status skip_comment(json_input *s, bool *found) {
    *found = true;
    if (s->in[s->pos] == '#') return skip_line_comment(s);
    bool two;
    TM_TRY(json_have(s, 2, &two));
    if (two && s->in[s->pos] == '/' && s->in[s->pos + 1] == '/') return skip_line_comment(s);
    if (two && s->in[s->pos] == '/' && s->in[s->pos + 1] == '*') return skip_block_comment(s);
    *found = false;
    return TM_OK;
}

tm_status json_skip_blanks(json_input *s, bool *more) {
    for (;;) {
        if (s->pos == s->len) {
            TM_TRY(json_have(s, 1, more));
            if (!*more) return TM_OK;
        }
        char c = s->in[s->pos];
        if (c == ' ' || c == '\t' || c == '\r') {
            s->pos++;
        } else if (c == '\n') {
            s->pos++;
            to_next_line(s);
        } else {
            bool comment = false;
            if ((s->flags & TM_JSON_RELAXED) && (c == '#' || c == '/')) TM_TRY(skip_comment(s, &comment));
            if (!comment) break;
        }
    }
    *more = true;
    return TM_OK;
}

/* ---- strings ---------------------------------------------------------------------------------------------------- */

typedef struct string_scan {
    json_input *s;
    tm_buf *token;
    size_t max;
    uint32_t high; /* surrogate that waits for its other half, 0: none */
} string_scan;

static tm_status put(string_scan *t, const char *bytes, size_t n) {
    if (n > t->max - t->token->len) return json_fail(t->s, "string of more than %zu bytes", t->max);
    return tm_buf_append(t->token, bytes, n);
}

static tm_status put_code_point(string_scan *t, uint32_t c) {
    char utf8[4];
    size_t n = tm_utf8_encode(utf8, c);
    return put(t, utf8, n);
}

static tm_status drop_high(string_scan *t) {
    if (!t->high) return TM_OK;
    t->high = 0;
    return put_code_point(t, REPLACEMENT);
}

static tm_status put_utf16(string_scan *t, uint32_t unit) {
    bool low = unit >= 0xDC00 && unit < 0xE000;
    if (low && t->high) {
        uint32_t c = 0x10000 + ((t->high - 0xD800) << 10) + (unit - 0xDC00);
        t->high = 0;
        return put_code_point(t, c);
    }
    TM_TRY(drop_high(t));
    if (unit >= 0xD800 && unit < 0xDC00) {
        t->high = unit;
        return TM_OK;
    }
    return put_code_point(t, low ? REPLACEMENT : unit);
}

/* The four digits after "\u". */
static bool hex4(const char *p, uint32_t *value) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        unsigned c = (unsigned char)p[i], digit;
        if (c >= '0' && c <= '9') {
            digit = c - '0';
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (c | 0x20) - 'a' + 10;
        } else {
            return false;
        }
        v = v << 4 | digit;
    }
    *value = v;
    return true;
}

static tm_status scan_escape(string_scan *t) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    json_input *s = t->s;
    bool have;
    TM_TRY(json_have(s, 2, &have));
    if (!have) return json_fail(s, "the text ends inside a string");
    if (s->in[s->pos + 1] == 'u') {
        uint32_t unit;
        TM_TRY(json_have(s, 6, &have));
        if (!have || !hex4(s->in + s->pos + 2, &unit)) return json_fail(s, "\\u needs four hexadecimal digits");
        s->pos += 6;
        return put_utf16(t, unit);
    }
    char c = s->in[s->pos + 1];
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) return json_fail(s, "unknown escape in a string; a backslash itself is written \\\\");
    TM_TRY(drop_high(t));
    s->pos += 2;
    return put(t, &values[name - names], 1);
}

static tm_status scan_multibyte(string_scan *t) {
    json_input *s = t->s;
    bool four;
    TM_TRY(json_have(s, 4, &four));
    uint32_t c;
    size_t n = base_utf8_decode(s->in + s->pos, s->len - s->pos, &c);
    if (n == 0) return json_fail(s, "byte 0x%02x is not valid UTF-8 here", (unsigned char)s->in[s->pos]);
    TM_TRY(put(t, s->in + s->pos, n));
    s->pos += n;
    return TM_OK;
}

/* Eight bytes of them at once: none above 0x7f, none below 0x20, no quote, no backslash. A byte that borrows from the
 * next one is none of them itself. */
static bool are_plain(const char *p) {
    const uint64_t ones = UINT64_C(0x0101010101010101), high = UINT64_C(0x8080808080808080);
    uint64_t w;
    memcpy(&w, p, sizeof w);
    uint64_t quote = w ^ ones * '"', backslash = w ^ ones * '\\';
    return !((w | (w - ones * 0x20) | (quote - ones) | (backslash - ones)) & high);
}

/* Length of the run of bytes that stand for themselves: plain ones, and whole characters of several bytes. */
static size_t own_run(const char *p, size_t n) {
    size_t i = 0, wide = 0;
    uint32_t c;
    do {
        i += wide;
        while (n - i >= 8 && are_plain(p + i)) i += 8;
        while (i < n && p[i] != '"' && p[i] != '\\' && (signed char)p[i] >= 0x20) i++;
        wide = i < n && (signed char)p[i] < 0 ? base_utf8_decode(p + i, n - i, &c) : 0;
    } while (wide);
    return i;
}

/* The rest of a string, of which `token` may have the beginning. */
static tm_status scan_parts(string_scan *t) {
    json_input *s = t->s;
    for (;;) {
        bool more;
        TM_TRY(json_have(s, 1, &more));
        if (!more) return json_fail(s, "the text ends inside a string");
        unsigned char c = (unsigned char)s->in[s->pos];
        if (c == '\\') {
            TM_TRY(scan_escape(t));
            continue;
        }
        if (t->high) TM_TRY(drop_high(t));
        if (c == '"') break;
        if (c < 0x20) return json_fail(s, "control character 0x%02x in a string; write it as \\u%04x", c, c);
        if (c >= 0x80) TM_TRY(scan_multibyte(t));
        size_t run = own_run(s->in + s->pos, s->len - s->pos);
        TM_TRY(put(t, s->in + s->pos, run));
        s->pos += run;
    }
    s->pos++;
    return TM_OK;
}

tm_status json_scan_string(json_input *s, tm_buf *token, size_t max_token, bool where_it_is, const char **text,
                           size_t *len) {
    string_scan t = {.s = s, .token = token, .max = max_token};
    s->pos++;
    if (where_it_is) {
        size_t run = own_run(s->in + s->pos, s->len - s->pos);
        *text = s->in + s->pos;
        *len = run;
        if (run < s->len - s->pos && (*text)[run] == '"' && run <= max_token) {
            s->pos += run + 1;
            return TM_OK;
        }
    }
    if (!token->data) TM_TRY(tm_buf_reserve(token, (size_t)tm_min_u64(s->len - s->pos, 4096)));
    tm_buf_clear(token);
    TM_TRY(scan_parts(&t));
    *text = token->data;
    *len = token->len;
    return TM_OK;
}

/* ---- numbers and words ------------------------------------------------------------------------------------------ */

static bool ends_value(char c, unsigned flags) {
    if (c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t') return true;
    return (flags & TM_JSON_RELAXED) && (c == '#' || c == '/');
}

/* "01" and "truely" are one mistake, not two values. */
static tm_status expect_value_end(json_input *s) {
    bool more;
    TM_TRY(json_have(s, 1, &more));
    if (more && !ends_value(s->in[s->pos], s->flags)) return json_fail_found(s, "',' or the end of the value");
    return TM_OK;
}

static tm_status take(json_input *s, tm_buf *token, size_t max_token) {
    if (token->len >= max_token) return json_fail(s, "number of more than %zu bytes", max_token);
    return tm_buf_append(token, s->in + s->pos++, 1);
}

static tm_status peek(json_input *s, char *c) {
    bool more = true;
    if (s->pos == s->len) TM_TRY(json_have(s, 1, &more));
    *c = more ? s->in[s->pos] : 0;
    return TM_OK;
}

static tm_status take_digits(json_input *s, tm_buf *token, size_t max_token) {
    size_t before = token->len;
    for (;;) {
        char c;
        TM_TRY(peek(s, &c));
        if (c < '0' || c > '9') break;
        TM_TRY(take(s, token, max_token));
    }
    return token->len > before ? TM_OK : json_fail_found(s, "a digit");
}

/* -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static tm_status take_number(json_input *s, tm_buf *token, size_t max_token, bool *point, bool *exponent) {
    char c;
    TM_TRY(peek(s, &c));
    if (c == '-') TM_TRY(take(s, token, max_token));
    TM_TRY(peek(s, &c));
    TM_TRY(c == '0' ? take(s, token, max_token) : take_digits(s, token, max_token));
    TM_TRY(peek(s, &c));
    *point = c == '.';
    if (*point) {
        TM_TRY(take(s, token, max_token));
        TM_TRY(take_digits(s, token, max_token));
        TM_TRY(peek(s, &c));
    }
    *exponent = c == 'e' || c == 'E';
    if (*exponent) {
        TM_TRY(take(s, token, max_token));
        TM_TRY(peek(s, &c));
        if (c == '+' || c == '-') TM_TRY(take(s, token, max_token));
        TM_TRY(take_digits(s, token, max_token));
    }
    return expect_value_end(s);
}

/* Plain digits into an int64; false on overflow. */
static bool parse_int64(const char *p, int64_t *out) {
    bool negative = *p == '-';
    int64_t v = 0; /* counts downwards, since -2^63 has no positive twin */
    for (p += negative; *p; p++) {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, *p - '0', &v)) return false;
    }
    return negative ? (*out = v, true) : !__builtin_sub_overflow(0, v, out);
}

tm_status json_scan_number(json_input *s, tm_buf *token, size_t max_token, tm_json_event *event) {
    bool point = false, exponent = false;
    TM_TRY(tm_buf_reserve(token, 0));
    tm_buf_clear(token);
    TM_TRY(take_number(s, token, max_token, &point, &exponent));
    event->is_integer = !point && !exponent && parse_int64(token->data, &event->integer);
    if (event->is_integer && event->integer > -1000000000000000 && event->integer < 1000000000000000 &&
        event->integer) {
        event->number = (double)event->integer; /* exact, and spares strtod for nearly all */
        return TM_OK;
    }
    event->number = base_strtod(token->data);
    if (!isfinite(event->number)) return json_fail(s, "number %.40s is out of range", token->data);
    if (exponent && !point && fabs(event->number) < 0x1p53 && trunc(event->number) == event->number) {
        event->is_integer = true;
        event->integer = (int64_t)event->number;
    }
    return TM_OK;
}

tm_status json_scan_word(json_input *s, const char *word) {
    bool have;
    size_t n = strlen(word);
    TM_TRY(json_have(s, n, &have));
    if (!have || memcmp(s->in + s->pos, word, n) != 0) return json_fail_found(s, "a value");
    s->pos += n;
    return expect_value_end(s);
}
