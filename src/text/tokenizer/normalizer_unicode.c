/* Unicode normal forms on utf8proc, a stretch at a time. A stretch ends before every character that can neither be
 * reordered nor composed with what is before it, so most are one character long and bytes keep their exact origin.
 * What is newer than the reference's Unicode is a stretch of its own and left alone, as the reference leaves it.
 * Combining marks are ordered by a counting sort: utf8proc's own ordering is quadratic in the length of a run of marks.
 */
#include "text/tokenizer/tokenizer_internal.h"

#include <utf8proc.h>

typedef struct stretch {
    utf8proc_int32_t *code;
    size_t n, cap;
} stretch;

static int options_of(int form) {
    int o = UTF8PROC_STABLE;
    o |= form == TK_NFC || form == TK_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    return form == TK_NFKC || form == TK_NFKD ? o | UTF8PROC_COMPAT : o;
}

/* utf8proc knows only assigned code points; anything else stands for itself. */
static const utf8proc_property_t *property(uint32_t code) {
    return utf8proc_get_property((utf8proc_int32_t)code);
}

static int combining_class(uint32_t code) {
    return (int)property(code)->combining_class;
}

/* Does every normalization of a text begin anew at this character? */
static bool is_boundary(uint32_t code) {
    if (code < 0x300 || tk_in(&tk_inert, code)) return true;
    const utf8proc_property_t *p = property(code);
    if (p->combining_class != 0) return false;
    if (code >= 0x1160 && code <= 0x11FF) return false; /* Hangul vowels and finals compose with what precedes them */
    bool follows = p->comb_index != UINT16_MAX && p->comb_index >= 0x8000; /* second of a composition */
    return !follows && p->decomp_seqindex == UINT16_MAX;
}

static tm_status decompose(stretch *s, uint32_t code, int options) {
    int last = 0;
    TM_TRY(tm_grow(&s->code, &s->cap, s->n + 32, sizeof *s->code));
    utf8proc_option_t o = (utf8proc_option_t)((options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)code, s->code + s->n, (utf8proc_ssize_t)(s->cap - s->n), o, &last);
    if (n < 0 || (size_t)n > s->cap - s->n) return tm_fail(TM_EBUG, "utf8proc cannot decompose U+%04X", code);
    s->n += (size_t)n;
    return TM_OK;
}

/* Canonical ordering of one run of marks: stable by combining class. */
static tm_status order_run(utf8proc_int32_t *run, size_t n) {
    if (n < 2) return TM_OK;
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[combining_class((uint32_t)run[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    utf8proc_int32_t *sorted = tm_malloc(n * sizeof *sorted);
    if (sorted == NULL) return tm_nomem(n * sizeof *sorted);
    for (size_t i = 0; i < n; i++) sorted[start[combining_class((uint32_t)run[i])]++] = run[i];
    memcpy(run, sorted, n * sizeof *sorted);
    tm_free(sorted);
    return TM_OK;
}

static tm_status order_marks(stretch *s) {
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        while (end < s->n && combining_class((uint32_t)s->code[end]) != 0) end++;
        TM_TRY(order_run(s->code + i, end - i));
        i = end + 1;
    }
    return TM_OK;
}

static tm_status put_stretch(stretch *s, const tk_text *in, size_t begin, size_t end, int options, tk_text *out) {
    s->n = 0;
    for (size_t at = begin; at < end;) TM_TRY(decompose(s, tk_next(in->bytes, &at), options));
    TM_TRY(order_marks(s));
    utf8proc_ssize_t n =
        utf8proc_normalize_utf32(s->code, (utf8proc_ssize_t)s->n, (utf8proc_option_t)(options & ~UTF8PROC_COMPAT));
    if (n < 0) return tm_fail(TM_EBUG, "utf8proc cannot compose %zu code points", s->n);
    tm_token_span from = {in->from[begin].begin, in->from[end - 1].end};
    size_t at = begin;
    bool same = true; /* as long as nothing changed, every character keeps its own origin */
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        size_t next = at;
        same = same && at < end && tk_next(in->bytes, &next) == (uint32_t)s->code[i];
        char bytes[4];
        TM_TRY(tk_text_put(out, bytes, tm_utf8_encode(bytes, (uint32_t)s->code[i]), same ? in->from[at] : from));
        at = next;
    }
    return TM_OK;
}

tm_status tk_rewrite_form(const tk_step *step, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    int options = options_of(step->option);
    stretch s = {0};
    tm_status rc = TM_OK;
    for (size_t at = begin; at < end;) {
        size_t next = at;
        uint32_t code = tk_next(in->bytes, &next);
        bool inert = code >= 0x300 && tk_in(&tk_inert, code);
        for (size_t peek = next; next < end && !inert; next = peek)
            if (is_boundary(tk_next(in->bytes, &peek))) break;
        bool alone = inert || (code < 0x80 && next == at + 1);
        rc = alone ? tk_text_copy(out, in, at, next) : put_stretch(&s, in, at, next, options, out);
        if (rc != TM_OK) break;
        at = next;
    }
    tm_free(s.code);
    return rc;
}
