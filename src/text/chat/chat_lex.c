/* Template source to tokens, with the white space rules of trim_blocks and lstrip_blocks:
 *   - the newline right after a block or comment tag goes;
 *   - white space before a block or comment tag goes if nothing else is before it on its line;
 *   - `-` at either side of a tag takes all white space there, `+` switches the two rules off. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

#include <stdlib.h>

static tm_status fail_at(const cj_lexer *l, const char *what) {
    return tm_fail(TM_EINPUT, "%s:%u: %stemplate: %s", l->name, l->line, l->verbatim ? "" : "chat ", what);
}

static tm_status put(cj_lexer *l, cj_token t, const char *text, size_t len) {
    char *copy = cj_arena_alloc(l->arena, len + 1);
    if (copy == NULL) return TM_ENOMEM;
    memcpy(copy, text, len);
    t.text = copy;
    t.len = len;
    t.line = l->line;
    TM_TRY(tm_grow(&l->token, &l->cap, l->n + 1, sizeof t));
    l->token[l->n++] = t;
    return TM_OK;
}

static void advance(cj_lexer *l, size_t to) {
    for (; l->pos < to; l->pos++) l->line += l->source[l->pos] == '\n';
}

static bool at(const cj_lexer *l, const char *text) {
    size_t n = strlen(text);
    return l->pos + n <= l->len && memcmp(l->source + l->pos, text, n) == 0;
}

/* End of the white space (Python's) at `pos`. */
static size_t skip_space(const cj_lexer *l, size_t pos) {
    for (size_t next = pos; pos < l->len; pos = next)
        if (!cj_py_space(tk_next(l->source, &next))) break;
    return pos;
}

static size_t rstrip(const char *text, size_t begin, size_t end) {
    for (size_t before; end > begin; end = before)
        if (!cj_py_space(tk_previous(text, end, &before))) break;
    return end;
}

/* ---- inside a tag ----------------------------------------------------------------------------------------------- */

static tm_status put_escape(cj_lexer *l, tm_buf *out, size_t *i, size_t end) {
    static const char from[] = "ntrbfav0'\"\\", to[] = "\n\t\r\b\f\a\v\0'\"\\";
    char c = l->source[*i + 1];
    const char *known = c == 0 ? NULL : strchr(from, c);
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0 && *i + 2 + digits <= end) {
        char hex[9] = "", bytes[4], *stop;
        memcpy(hex, l->source + *i + 2, digits);
        unsigned long code = strtoul(hex, &stop, 16);
        if (*stop != 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return fail_at(l, "a bad \\ escape");
        *i += 2 + digits;
        return tm_buf_append(out, bytes, tm_utf8_encode(bytes, (uint32_t)code));
    }
    if (known != NULL) {
        *i += 2;
        return tm_buf_append(out, &to[known - from], 1);
    }
    *i += 1; /* the backslash stays, as in Python */
    return tm_buf_append(out, "\\", 1);
}

static tm_status lex_string(cj_lexer *l) {
    char quote = l->source[l->pos];
    size_t end = l->pos + 1;
    tm_buf text = {0};
    tm_status rc = TM_OK;
    while (end < l->len && l->source[end] != quote) end += l->source[end] == '\\' ? 2 : 1;
    if (end >= l->len) return fail_at(l, "a string without its closing quote");
    for (size_t i = l->pos + 1; i < end;) {
        if (l->source[i] == '\\' && i + 1 < end)
            TM_GO(put_escape(l, &text, &i, end));
        else
            TM_GO(tm_buf_append(&text, l->source + i++, 1));
    }
    TM_GO(put(l, (cj_token){.type = CJ_T_STRING}, text.data == NULL ? "" : text.data, text.len));
    advance(l, end + 1);
done:
    tm_buf_free(&text);
    return rc;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_name(char c) {
    return c == '_' || is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static tm_status lex_number(cj_lexer *l) {
    char text[64];
    size_t n = 0, end = l->pos;
    bool real = false;
    for (; end < l->len && n + 2 < sizeof text; end++) {
        char c = l->source[end], next = end + 1 < l->len ? l->source[end + 1] : 0;
        if (c == '_' && is_digit(next)) continue;
        bool point = c == '.' && !real && is_digit(next), exponent = (c == 'e' || c == 'E') && is_digit(next);
        if (!is_digit(c) && !point && !exponent) break;
        real = real || point || exponent;
        text[n++] = c;
    }
    text[n] = 0;
    cj_token t = {.type = real ? CJ_T_FLOAT : CJ_T_INT, .number = strtod(text, NULL)};
    if (!real && (n > 18 || (end < l->len && is_name(l->source[end])))) return fail_at(l, "a bad number");
    if (!real) t.integer = strtoll(text, NULL, 10);
    TM_TRY(put(l, t, text, n));
    advance(l, end);
    return TM_OK;
}

static tm_status lex_operator(cj_lexer *l) {
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
    for (size_t i = 0; i < TM_COUNT(two); i++) {
        if (!at(l, two[i])) continue;
        TM_TRY(put(l, (cj_token){.type = CJ_T_OP}, two[i], 2));
        advance(l, l->pos + 2);
        return TM_OK;
    }
    if (strchr("+-/*%~[](){}<>=.:|,", l->source[l->pos]) == NULL || l->source[l->pos] == 0)
        return fail_at(l, "a character that has no meaning in a tag");
    TM_TRY(put(l, (cj_token){.type = CJ_T_OP}, l->source + l->pos, 1));
    advance(l, l->pos + 1);
    return TM_OK;
}

/* A run compares names at no cost in steps, so that they are short. */
enum { MAX_NAME = 256 };

static tm_status lex_name(cj_lexer *l) {
    size_t end = l->pos;
    while (end < l->len && is_name(l->source[end])) end++;
    if (end - l->pos > MAX_NAME) return fail_at(l, "a name of more than 256 characters");
    TM_TRY(put(l, (cj_token){.type = CJ_T_NAME}, l->source + l->pos, end - l->pos));
    advance(l, end);
    return TM_OK;
}

/* If a tag ends here: its length with sign and the white space that goes with it; else 0. */
static size_t tag_end(const cj_lexer *l, const char *close, bool trim_newline) {
    size_t pos = l->pos, sign = l->source[pos] == '-' || l->source[pos] == '+' ? 1 : 0;
    if (pos + sign + 2 > l->len || memcmp(l->source + pos + sign, close, 2) != 0) return 0;
    size_t end = pos + sign + 2;
    if (sign && l->source[pos] == '-')
        end = skip_space(l, end);
    else if (!sign && trim_newline && !l->verbatim && end < l->len && l->source[end] == '\n')
        end++;
    return end - pos;
}

/* The tokens of one tag, its opening read. */
static tm_status lex_tag(cj_lexer *l, bool block) {
    cj_token close = {.type = block ? CJ_T_BLOCK_END : CJ_T_VARIABLE_END};
    unsigned open = 0; /* brackets: "}}" inside them is two braces */
    for (;;) {
        advance(l, skip_space(l, l->pos));
        if (l->pos >= l->len) return fail_at(l, "a tag without its end");
        char c = l->source[l->pos];
        size_t end = open == 0 ? tag_end(l, block ? "%}" : "}}", block) : 0;
        if (end > 0) {
            TM_TRY(put(l, close, "", 0));
            advance(l, l->pos + end);
            return TM_OK;
        }
        if (c == '\'' || c == '"') {
            TM_TRY(lex_string(l));
        } else if (is_digit(c)) {
            TM_TRY(lex_number(l));
        } else if (is_name(c)) {
            TM_TRY(lex_name(l));
        } else {
            if (c == '(' || c == '[' || c == '{')
                open++;
            else if ((c == ')' || c == ']' || c == '}') && open > 0)
                open--;
            TM_TRY(lex_operator(l));
        }
    }
}

/* ---- between tags ----------------------------------------------------------------------------------------------- */

/* Where the text before a tag ends once white space control has been applied. */
static size_t data_end(const cj_lexer *l, size_t begin, size_t tag, char sign, bool variable, bool line_starting) {
    if (sign == '-') return rstrip(l->source, begin, tag);
    if (sign == '+' || variable || l->verbatim) return tag;
    size_t line = tag;
    while (line > begin && l->source[line - 1] != '\n') line--;
    if (line == begin && !line_starting) return tag;
    return rstrip(l->source, line, tag) == line ? line : tag;
}

static tm_status lex_comment(cj_lexer *l) {
    for (; l->pos < l->len; advance(l, l->pos + 1)) {
        size_t end = tag_end(l, "#}", true);
        if (end == 0) continue;
        advance(l, l->pos + end);
        return TM_OK;
    }
    return fail_at(l, "a comment without its end");
}

static tm_status lex_all(cj_lexer *l) {
    bool line_starting = true;
    while (l->pos < l->len) {
        size_t begin = l->pos, tag = begin;
        while (tag + 1 < l->len && !(l->source[tag] == '{' && memchr("{%#", l->source[tag + 1], 3) != NULL)) tag++;
        if (tag + 1 >= l->len) tag = l->len;
        char kind = tag < l->len ? l->source[tag + 1] : 0, sign = tag + 2 < l->len ? l->source[tag + 2] : 0;
        if (sign != '-' && sign != '+') sign = 0;
        size_t end = kind == 0 ? tag : data_end(l, begin, tag, sign, kind == '{', line_starting);
        if (end > begin) TM_TRY(put(l, (cj_token){.type = CJ_T_DATA}, l->source + begin, end - begin));
        if (kind == 0) {
            advance(l, tag);
            break;
        }
        advance(l, tag + 2 + (sign != 0));
        if (kind == '#') {
            TM_TRY(lex_comment(l));
        } else {
            TM_TRY(put(l, (cj_token){.type = kind == '{' ? CJ_T_VARIABLE : CJ_T_BLOCK}, "", 0));
            TM_TRY(lex_tag(l, kind == '%'));
        }
        line_starting = l->source[l->pos - 1] == '\n';
    }
    return put(l, (cj_token){.type = CJ_T_END}, "", 0);
}

/* \r\n and \r are \n; one newline at the very end goes. */
static void normalize_newlines(cj_lexer *l, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n') continue;
        l->source[l->len++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (!l->verbatim && l->len > 0 && l->source[l->len - 1] == '\n') l->len--;
    l->source[l->len] = 0;
}

tm_status cj_lex(cj_lexer *l, const char *text, size_t len) {
    l->line = 1;
    if (len > CJ_MAX_TEMPLATE)
        return tm_fail(TM_EUNSUPPORTED, "%s: a chat template of %zu bytes; at most 1 MiB", l->name, len);
    if (tk_utf8_valid(text, len) != len) return tm_fail(TM_EINPUT, "%s: the chat template is not UTF-8", l->name);
    l->source = tm_malloc(len + 1);
    if (l->source == NULL) return tm_nomem(len + 1);
    normalize_newlines(l, text, len);
    return lex_all(l);
}
