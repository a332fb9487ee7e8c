/* Regexes of a tokenizer.json under PCRE2. The reference runs them under Oniguruma, so the pattern is translated first:
 * classes get the code points that PCRE2's older Unicode lacks, \s loses U+180E, nested classes are flattened.
 * Constructs that mean something else in the two are refused. Matching is limited; what exceeds the limits is an error,
 * not a guess. */
#include "text/pattern_internal.h"
#include "text/tokenizer/tokenizer_internal.h"

enum { MATCH_LIMIT = 1000000, DEPTH_LIMIT = 100000, HEAP_LIMIT_KIB = 65536, MAX_PATTERN = 16384 };

struct tk_regex {
    pcre2_code *code;
    pcre2_general_context *general;
    pcre2_match_context *match;
};

/* ---- translation ------------------------------------------------------------------------------------------------ */

static const tk_class *newer(const char *name, size_t len) {
    static const struct {
        const char *name;
        const tk_class *c;
    } known[] = {{"L", &tk_new_L},   {"N", &tk_new_N},   {"M", &tk_new_M},   {"P", &tk_new_P},  {"S", &tk_new_S},
                 {"Lu", &tk_new_Lu}, {"Ll", &tk_new_Ll}, {"Lm", &tk_new_Lm}, {"Lo", &tk_new_Lo}};
    for (size_t i = 0; i < TM_COUNT(known); i++)
        if (strlen(known[i].name) == len && memcmp(known[i].name, name, len) == 0) return known[i].c;
    return NULL;
}

static tm_status put_ranges(tm_buf *out, const tk_class *c) {
    for (size_t i = 0; i < c->n; i++)
        TM_TRY(tm_buf_printf(out, "\\x{%X}-\\x{%X}", c->range[i].first, c->range[i].last));
    return TM_OK;
}

#define SPACES                                                                                                         \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* \p{X} at p: appends it with what is newer; returns the bytes consumed, 0: not one we know. */
static tm_status put_property(tm_buf *out, const char *p, size_t n, bool in_class, size_t *used) {
    const char *close = n > 3 && p[2] == '{' ? memchr(p + 3, '}', n - 3) : NULL;
    const tk_class *c = close == NULL ? NULL : newer(p + 3, (size_t)(close - p) - 3);
    *used = 0;
    if (c == NULL || (in_class && p[1] == 'P')) return TM_OK; /* a negated one inside a class stays as it is */
    int len = (int)(close - p) - 3;
    if (!in_class) TM_TRY(tm_buf_append(out, p[1] == 'P' ? "[^" : "[", p[1] == 'P' ? 2 : 1));
    TM_TRY(tm_buf_printf(out, "\\p{%.*s}", len, p + 3));
    TM_TRY(put_ranges(out, c));
    if (!in_class) TM_TRY(tm_buf_append(out, "]", 1));
    *used = (size_t)(close - p) + 1;
    return TM_OK;
}

/* An escape at p (n >= 2 bytes): appends its translation and returns the bytes consumed. */
static tm_status put_escape(tm_buf *out, const char *p, size_t n, bool in_class, size_t *used, const char *name) {
    char c = p[1];
    *used = 0;
    if (c == 'p' || c == 'P') TM_TRY(put_property(out, p, n, in_class, used));
    if (*used > 0) return TM_OK;
    *used = 2;
    if (c == 's' && in_class) return tm_buf_append(out, SPACES, sizeof SPACES - 1);
    if ((c == 's' || c == 'S') && !in_class) return tm_buf_printf(out, "[%s%s]", c == 'S' ? "^" : "", SPACES);
    if (strchr("hHyYmMRXKQEGZ", c) != NULL)
        return tm_fail(TM_EUNSUPPORTED, "%s: the regex escape \\%c is not supported", name, c);
    return tm_buf_append(out, p, 2);
}

static tm_status translate(tm_buf *out, const char *p, size_t n, const char *name) {
    size_t depth = 0; /* of character classes: Oniguruma's nest */
    for (size_t i = 0; i < n;) {
        size_t used = 1;
        bool negated = i + 1 < n && p[i + 1] == '^', posix = i + 1 < n && p[i + 1] == ':';
        if (p[i] == '\\' && i + 1 < n) {
            TM_TRY(put_escape(out, p + i, n - i, depth > 0, &used, name));
        } else if (p[i] == '[' && depth > 0) {
            if (negated || posix || depth > 8)
                return tm_fail(TM_EUNSUPPORTED, "%s: this kind of nested class in a regex is not supported", name);
            depth++; /* a plain union: its members simply join the outer class */
        } else if (p[i] == '[') {
            depth = 1;
            TM_TRY(tm_buf_append(out, "[^", negated ? 2 : 1));
            used = negated ? 2 : 1;
            if (i + used < n && p[i + used] == ']') { /* first in a class it stands for itself */
                TM_TRY(tm_buf_append(out, "\\]", 2));
                used++;
            }
        } else if (p[i] == ']' && depth > 0) {
            if (--depth == 0) TM_TRY(tm_buf_append(out, "]", 1));
        } else if (p[i] == '&' && depth > 0 && i + 1 < n && p[i + 1] == '&') {
            return tm_fail(TM_EUNSUPPORTED, "%s: an intersection of classes in a regex is not supported", name);
        } else if (p[i] == '(' && depth == 0 && i + 2 < n && p[i + 1] == '?' && strchr("mxW(~", p[i + 2]) != NULL) {
            return tm_fail(TM_EUNSUPPORTED, "%s: the regex construct (?%c is not supported", name, p[i + 2]);
        } else {
            TM_TRY(tm_buf_append(out, p + i, 1));
        }
        i += used;
    }
    return TM_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static tm_status compile(tk_regex *r, const char *pattern, size_t len, const char *name) {
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(r->general);
    if (context == NULL) return tm_nomem(256);
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    r->code = pcre2_compile((PCRE2_SPTR)pattern, len, flags, &code, &at, context);
    pcre2_compile_context_free(context);
    if (r->code != NULL) {
        (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* where there is none, the interpreter runs it */
        return TM_OK;
    }
    PCRE2_UCHAR text[128] = {0};
    (void)pcre2_get_error_message(code, text, sizeof text);
    return tm_fail(TM_EUNSUPPORTED, "%s: a split regex cannot be compiled: %s", name, (const char *)text);
}

tm_status tk_regex_open(tk_regex **out, const char *pattern, size_t len, const char *name) {
    *out = NULL;
    if (len > MAX_PATTERN) return tm_fail(TM_EUNSUPPORTED, "%s: a regex of %zu bytes", name, len);
    tm_buf translated = {0};
    tk_regex *r = tm_calloc(1, sizeof *r);
    if (r == NULL) return tm_nomem(sizeof *r);
    tm_status rc;
    TM_GO(translate(&translated, pattern, len, name));
    r->general = pattern_memory();
    r->match = r->general == NULL ? NULL : pcre2_match_context_create(r->general);
    if (r->match == NULL) TM_GO(tm_nomem(256));
    (void)pcre2_set_match_limit(r->match, MATCH_LIMIT);
    (void)pcre2_set_depth_limit(r->match, DEPTH_LIMIT);
    (void)pcre2_set_heap_limit(r->match, HEAP_LIMIT_KIB);
    TM_GO(compile(r, translated.data == NULL ? "" : translated.data, translated.len, name));
done:
    tm_buf_free(&translated);
    if (rc == TM_OK)
        *out = r;
    else
        tk_regex_close(r);
    return rc;
}

void tk_regex_close(tk_regex *r) {
    if (r == NULL) return;
    pcre2_code_free(r->code);
    pcre2_match_context_free(r->match);
    pcre2_general_context_free(r->general);
    tm_free(r);
}

tm_status tk_regex_find(const tk_regex *r, tk_regex_walk *w, bool *found) {
    if (w->scratch == NULL) w->scratch = pcre2_match_data_create_from_pattern(r->code, r->general);
    if (w->scratch == NULL) return tm_nomem(256);
    pcre2_match_data *data = w->scratch;
    PCRE2_SPTR subject = (PCRE2_SPTR)w->text + w->begin;
    size_t n = w->end - w->begin, from = w->at - w->begin;
    uint32_t flags = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY; /* the whole text was checked when it came in */
    int rc = pcre2_match(r->code, subject, n, from, flags, data, r->match);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, subject, n, from, flags | PCRE2_NO_JIT, data, r->match);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return TM_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return tm_nomem((size_t)HEAP_LIMIT_KIB * 1024);
    if (rc < 0)
        return tm_fail(TM_EUNSUPPORTED, "the tokenizer's split regex is too costly on this text (PCRE2 %d)", rc);
    PCRE2_SIZE *v = pcre2_get_ovector_pointer(data);
    w->match_begin = w->begin + v[0];
    w->match_end = w->begin + v[1];
    *found = v[1] > v[0] && w->match_begin >= w->at;
    return TM_OK;
}

void tk_regex_scratch_free(void *scratch) {
    pcre2_match_data_free(scratch);
}
