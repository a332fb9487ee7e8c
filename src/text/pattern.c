/* Python's regular expressions under PCRE2 (Python 3.11, Lib/re/_parser.py): translation, then running. What is copied as
 * it stands means the same to both. */
#include "text/pattern.h"
#include "text/pattern_internal.h"

#include <string.h>

enum { MATCH_LIMIT = 100000, FIND_LIMIT = 10 * 1000 * 1000, DEPTH_LIMIT = 1000, HEAP_LIMIT_KIB = 4096, SHOWN = 80 };

struct tm_pattern {
    pcre2_code *code;
    pcre2_general_context *general;
    pcre2_match_context *match;
    pcre2_match_data *data;
    char *text;
};

static void *take(size_t n, void *ctx) {
    (void)ctx;
    return tm_malloc(n);
}

static void give(void *p, void *ctx) {
    (void)ctx;
    tm_free(p);
}

pcre2_general_context *pattern_memory(void) {
    return pcre2_general_context_create(take, give, NULL);
}

/* ---- translation ------------------------------------------------------------------------------------------------ */

typedef struct reading {
    const char *text;
    size_t n, at;
    tm_buf *out;
} reading;

static tm_status refuse(const reading *r, tm_status status, const char *what) {
    return tm_fail(status, "the regular expression \"%.*s%s\", character %zu: %s", SHOWN, r->text,
                   r->n > SHOWN ? "..." : "", r->at + 1, what);
}

static tm_status wrong(const reading *r, const char *what) {
    return refuse(r, TM_EINPUT, what);
}

static char peek(const reading *r, size_t ahead) {
    return r->at + ahead < r->n ? r->text[r->at + ahead] : 0;
}

static bool is_among(char c, const char *set) {
    return c && strchr(set, c);
}

static tm_status copy(reading *r, size_t n) {
    const char *from = r->text + r->at;
    r->at += n;
    return tm_buf_append(r->out, from, n);
}

static tm_status put(reading *r, size_t taken, const char *text) {
    r->at += taken;
    return tm_buf_append(r->out, text, strlen(text));
}

/* Digits of a number in base 8, 10 or 16, `least` to `most` of them, `ahead` of here; how many there are. */
static size_t digits(const reading *r, size_t ahead, unsigned base, size_t most, uint32_t *value) {
    static const char all[] = "0123456789abcdef";
    size_t n = 0;
    *value = 0;
    for (char c; n < most && (c = peek(r, ahead + n)); n++) {
        const char *found = strchr(all, c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c);
        if (!found || (unsigned)(found - all) >= base) break;
        *value = *value * base + (uint32_t)(found - all);
    }
    return n;
}

static tm_status put_code_point(reading *r, size_t taken, uint32_t c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return wrong(r, "there is no such character");
    r->at += taken;
    return tm_buf_printf(r->out, "\\x{%X}", c);
}

/* \xHH, \uHHHH, \UHHHHHHHH */
static tm_status put_hex(reading *r) {
    char c = peek(r, 1);
    size_t need = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    uint32_t value;
    if (digits(r, 2, 16, need, &value) < need) return wrong(r, "an escape with too few digits");
    return put_code_point(r, 2 + need, value);
}

/* \0, \012: a character; \1 to \99: what a group matched. */
static tm_status put_number(reading *r, bool in_class) {
    uint32_t value;
    size_t n = digits(r, 1, 8, 3, &value);
    if (peek(r, 1) == '0' || n == 3) return put_code_point(r, 1 + n, value);
    if (in_class) return wrong(r, "a back reference in a class");
    n = digits(r, 1, 10, 2, &value);
    r->at += 1 + n;
    return tm_buf_printf(r->out, "\\g{%u}", value);
}

static tm_status put_escape(reading *r, bool in_class) {
    char c = peek(r, 1);
    if (!c) return wrong(r, "a \\ at the end");
    if (c == 'v') return put(r, 2, "\\x0b");
    if (c == 'Z' && !in_class) return put(r, 2, "\\z");
    if (is_among(c, "xuU")) return put_hex(r);
    if (is_among(c, "0123456789")) return put_number(r, in_class);
    bool same = is_among(c, in_class ? "bdDsSwWafnrt" : "AbBdDsSwWafnrt");
    if (!same && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
        return wrong(r, "an escape that Python does not have");
    return copy(r, 2);
}

static tm_status put_class(reading *r) {
    size_t began = r->at;
    TM_TRY(copy(r, 1));
    if (peek(r, 0) == '^') TM_TRY(copy(r, 1));
    if (peek(r, 0) == ']') TM_TRY(put(r, 1, "\\]")); /* first, it stands for itself */
    while (peek(r, 0) != ']') {
        if (r->at >= r->n) {
            r->at = began;
            return wrong(r, "a class that is not closed");
        }
        if (peek(r, 0) == '\\')
            TM_TRY(put_escape(r, true));
        else if (peek(r, 0) == '[')
            TM_TRY(put(r, 1, "\\[")); /* Python has no [:alpha:] */
        else
            TM_TRY(copy(r, 1));
    }
    return copy(r, 1);
}

/* (?ims) in front of all, (?ims-ims: anywhere */
static tm_status put_flags(reading *r) {
    size_t n = 2;
    while (is_among(peek(r, n), "ims-")) n++;
    bool front = r->at == 0 && !memchr(r->text, '-', n);
    if (n > 2 && (peek(r, n) == ':' || (peek(r, n) == ')' && front))) return copy(r, n + 1);
    return refuse(r, TM_EUNSUPPORTED,
                  "this sort of group is not taken: write (...), (?:...), (?P<name>...), (?P=name), "
                  "(?=...), (?!...), (?<=...), (?<!...), (?>...), (?i:...), or (?i) in front of all");
}

static size_t name_bytes(const reading *r, size_t ahead) {
    size_t n = 0;
    for (char c; (c = peek(r, ahead + n)); n++)
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && c != '_' && (n == 0 || c < '0' || c > '9')) break;
    return n;
}

static tm_status put_group(reading *r) {
    char kind = peek(r, 2);
    if (peek(r, 1) == '*') return wrong(r, "nothing to repeat");
    if (peek(r, 1) != '?') return copy(r, 1);
    if (is_among(kind, ":=!>")) return copy(r, 3);
    if (kind == '<' && is_among(peek(r, 3), "=!")) return copy(r, 4);
    if (kind == 'P' && is_among(peek(r, 3), "<=")) {
        size_t n = name_bytes(r, 4);
        if (n && n <= 32 && peek(r, 4 + n) == (peek(r, 3) == '<' ? '>' : ')')) return copy(r, 5 + n);
        return wrong(r, "a group's name is letters, digits and _, 32 at most");
    }
    if (kind == '#') {
        const char *end = memchr(r->text + r->at, ')', r->n - r->at);
        if (!end) return wrong(r, "a comment that is not closed");
        r->at = (size_t)(end - r->text) + 1;
        return TM_OK;
    }
    return put_flags(r);
}

/* {n}, {n,m}, {n,} and {,m}, which older versions of PCRE2 do not have; anything else stands for itself. */
static tm_status put_brace(reading *r) {
    uint32_t least, most;
    size_t n = 1 + digits(r, 1, 10, 6, &least), m = 0;
    if (peek(r, 1) == '}') return put(r, 1, "\\{");
    bool comma = peek(r, n) == ',';
    if (comma) m = digits(r, n + 1, 10, 6, &most);
    if (peek(r, n + comma + m) != '}') return put(r, 1, "\\{");
    if (n > 1) return copy(r, n + comma + m + 1);
    TM_TRY(put(r, 1, "{0"));
    return copy(r, comma + m + 1);
}

static tm_status translate(reading *r) {
    while (r->at < r->n) {
        char c = r->text[r->at];
        if (!c) return wrong(r, "a NUL byte");
        TM_TRY(c == '\\'  ? put_escape(r, false)
               : c == '[' ? put_class(r)
               : c == '(' ? put_group(r)
               : c == '{' ? put_brace(r)
                          : copy(r, 1));
    }
    return TM_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static tm_status compile(tm_pattern *p, const reading *r, tm_pattern_how how) {
    static const uint32_t anchors[] = {[TM_PATTERN_FULL] = PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                                       [TM_PATTERN_MATCH] = PCRE2_ANCHORED,
                                       [TM_PATTERN_SEARCH] = 0,
                                       [TM_PATTERN_FIND] = 0};
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(p->general);
    if (!context) return tm_nomem(256);
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    const char *text = r->out->data ? r->out->data : "";
    uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | anchors[how];
    p->code = pcre2_compile((PCRE2_SPTR)text, r->out->len, flags, &code, &at, context);
    pcre2_compile_context_free(context);
    if (p->code) p->data = pcre2_match_data_create_from_pattern(p->code, p->general);
    if (p->data) return TM_OK;
    if (p->code || code == PCRE2_ERROR_HEAP_FAILED) return tm_nomem(r->n);
    PCRE2_UCHAR why[160] = {0};
    (void)pcre2_get_error_message(code, why, sizeof why);
    reading here = *r;
    here.at = (size_t)tm_min_u64(at, r->n); /* of the translation, which is as long or a little longer */
    return wrong(&here, (const char *)why);
}

static tm_status prepare(tm_pattern *p, const char *regex, size_t n, tm_pattern_how how) {
    p->text = tm_strndup(regex, n);
    p->general = pattern_memory();
    p->match = p->general ? pcre2_match_context_create(p->general) : NULL;
    if (!p->text || !p->match) return tm_nomem(n + 512);
    (void)pcre2_set_match_limit(p->match, how == TM_PATTERN_FIND ? FIND_LIMIT : MATCH_LIMIT);
    (void)pcre2_set_depth_limit(p->match, DEPTH_LIMIT);
    (void)pcre2_set_heap_limit(p->match, HEAP_LIMIT_KIB);
    return TM_OK;
}

tm_status tm_pattern_open(tm_pattern **out, const char *regex, size_t n, tm_pattern_how how) {
    *out = NULL;
    tm_buf translated = {0};
    reading r = {.text = regex, .n = n, .out = &translated};
    if (n > TM_PATTERN_MOST)
        return tm_fail(TM_EUNSUPPORTED, "a regular expression of %zu bytes; %d is the most", n, TM_PATTERN_MOST);
    tm_pattern *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    tm_status rc;
    TM_GO(prepare(p, regex, n, how));
    TM_GO(translate(&r));
    TM_GO(compile(p, &r, how));
done:
    tm_buf_free(&translated);
    if (rc == TM_OK)
        *out = p;
    else
        tm_pattern_close(p);
    return rc;
}

void tm_pattern_close(tm_pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->match);
    pcre2_general_context_free(p->general);
    tm_free(p->text);
    tm_free(p);
}

size_t tm_pattern_bytes(const tm_pattern *p) {
    size_t code = 0;
    (void)pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &code);
    return code + strlen(p->text) + sizeof *p;
}

const char *tm_pattern_text(const tm_pattern *p) {
    return p->text;
}

/* What a match came to: TM_OK where there is none, too. */
static tm_status came_to(const tm_pattern *p, int rc, const char *text, bool *found) {
    *found = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return TM_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return tm_nomem((size_t)HEAP_LIMIT_KIB * 1024);
    PCRE2_UCHAR why[160] = {0};
    (void)pcre2_get_error_message(rc, why, sizeof why);
    return tm_fail(TM_EUNSUPPORTED, "the regular expression \"%.*s\" on \"%.*s\": %s; write a simpler one", SHOWN,
                   p->text, SHOWN, text, (const char *)why);
}

tm_status tm_pattern_finds(const tm_pattern *p, const char *text, bool *found) {
    return came_to(p, pcre2_match(p->code, (PCRE2_SPTR)text, strlen(text), 0, 0, p->data, p->match), text, found);
}

/* Python, since 3.7: after a match the next may be empty where it ended, after an empty one it may not. */
tm_status tm_pattern_next(const tm_pattern *p, const char *text, size_t len, tm_pattern_walk *w, bool *found) {
    uint32_t flags = w->any && w->begin == w->end ? PCRE2_NOTEMPTY_ATSTART : 0;
    int rc = pcre2_match(p->code, (PCRE2_SPTR)text, len, w->end, flags, p->data, p->match);
    TM_TRY(came_to(p, rc, text, found));
    if (!*found) return TM_OK;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(p->data);
    *w = (tm_pattern_walk){.begin = v[0], .end = v[1] < v[0] ? v[0] : v[1], .any = true};
    return TM_OK;
}

uint32_t tm_pattern_groups(const tm_pattern *p) {
    uint32_t n = 0;
    (void)pcre2_pattern_info(p->code, PCRE2_INFO_CAPTURECOUNT, &n);
    return n;
}

bool tm_pattern_number(const tm_pattern *p, uint32_t i, size_t *begin, size_t *n) {
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(p->data);
    if (i > tm_pattern_groups(p) || v[2 * (size_t)i] == PCRE2_UNSET) return false;
    *begin = v[2 * (size_t)i];
    *n = v[2 * (size_t)i + 1] - *begin;
    return true;
}

bool tm_pattern_group(const tm_pattern *p, const char *name, size_t *begin, size_t *n) {
    int number = pcre2_substring_number_from_name(p->code, (PCRE2_SPTR)name);
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(p->data);
    if (number < 0 || v[2 * number] == PCRE2_UNSET) return false;
    *begin = v[2 * number];
    *n = v[2 * number + 1] - *begin;
    return true;
}
