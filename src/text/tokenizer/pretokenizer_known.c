/* The split regexes of GPT-2, Llama-3 and Qwen2, recognised by their text and written out as scanners: one pass, no
 * backtracking, Unicode 16 classes. All three match everything, so a scanner only has to say where a piece ends.
 *
 *   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?L+| ?N+| ?[^\s L N]+|\s+(?!\S)|\s+
 *   Llama-3  (?i: the same)|[^\r\n L N]?L+|N{1,3}| ?[^\s L N]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+       (Qwen2: N{1}) */
#include "text/tokenizer/tokenizer_internal.h"

/* Kind of the character at `pos`, which moves past it; TK_OTHER | -1 is not needed: callers check pos < len. */
static int kind_at(const char *text, size_t *pos) {
    unsigned char c = (unsigned char)text[*pos];
    if (c < 0x80) return (*pos)++, tk_kind(c);
    return tk_kind(tk_next(text, pos));
}

static size_t run_of(const char *text, size_t pos, size_t len, int kind) {
    while (pos < len) {
        size_t next = pos;
        if (kind_at(text, &next) != kind) break;
        pos = next;
    }
    return pos;
}

/* Length of the contraction at an apostrophe, 0. In caseless mode U+017F (long s) folds to s. */
static size_t contraction(const char *p, size_t n, bool caseless) {
    if (n < 2) return 0;
    unsigned char a = (unsigned char)p[1], b = n > 2 ? (unsigned char)p[2] : 0;
    if (caseless && a == 0xC5 && b == 0xBF) return 3;
    if (caseless && a >= 'A' && a <= 'Z') a |= 0x20;
    if (caseless && b >= 'A' && b <= 'Z') b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? 3 : 0;
}

/* \s+(?!\S)|\s+ at white space that ends at `end`: one character is left over when something follows. */
static size_t spaces(const char *text, size_t pos, size_t end, size_t len) {
    if (end == len) return end;
    size_t last;
    (void)tk_previous(text, end, &last);
    return last > pos ? last : end;
}

static size_t scan_gpt2(const char *text, size_t pos, size_t len) {
    if (text[pos] == '\'') {
        size_t n = contraction(text + pos, len - pos, false);
        if (n > 0) return pos + n;
    }
    size_t at = pos;
    if (text[pos] == ' ' && pos + 1 < len) at++; /* " ?" takes the space if what follows is no space */
    size_t next = at;
    int kind = kind_at(text, &next);
    if (kind != TK_SPACE) return run_of(text, next, len, kind);
    return spaces(text, pos, run_of(text, pos, len, TK_SPACE), len);
}

/* \s*[\r\n]+: where the last line break of the white space at `pos` ends; 0: it has none. */
static size_t after_last_newline(const char *text, size_t pos, size_t end) {
    while (end > pos && text[end - 1] != '\n' && text[end - 1] != '\r') end--;
    return end > pos ? end : 0;
}

static size_t scan_caseless(const char *text, size_t pos, size_t len, int digits) {
    if (text[pos] == '\'') {
        size_t n = contraction(text + pos, len - pos, true);
        if (n > 0) return pos + n;
    }
    size_t next = pos;
    int kind = kind_at(text, &next), after = -1;
    if (kind == TK_LETTER) return run_of(text, next, len, TK_LETTER);
    if (kind == TK_NUMBER) {
        for (int i = 1; i < digits && next < len; i++) {
            size_t one = next;
            if (kind_at(text, &one) != TK_NUMBER) break;
            next = one;
        }
        return next;
    }
    size_t second = next;
    if (next < len) after = kind_at(text, &second);
    bool newline = text[pos] == '\n' || text[pos] == '\r';
    if (after == TK_LETTER && !newline) return run_of(text, second, len, TK_LETTER);
    if (kind == TK_OTHER || (text[pos] == ' ' && after == TK_OTHER)) {
        size_t end = run_of(text, next, len, TK_OTHER);
        while (end < len && (text[end] == '\n' || text[end] == '\r')) end++;
        return end;
    }
    size_t end = run_of(text, pos, len, TK_SPACE), broken = after_last_newline(text, pos, end);
    return broken > 0 ? broken : spaces(text, pos, end, len);
}

static size_t scan_llama3(const char *text, size_t pos, size_t len) {
    return scan_caseless(text, pos, len, 3);
}

static size_t scan_qwen2(const char *text, size_t pos, size_t len) {
    return scan_caseless(text, pos, len, 1);
}

tk_scan_fn tk_gpt2_split(void) {
    return scan_gpt2;
}

tk_scan_fn tk_known_split(const char *regex, size_t len) {
#define HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    static const struct {
        const char *regex;
        tk_scan_fn scan;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", scan_gpt2},
        {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", scan_gpt2},
        {HEAD "\\p{N}{1,3}" TAIL, scan_llama3},
        {HEAD "\\p{N}" TAIL, scan_qwen2},
    };
    for (size_t i = 0; i < TM_COUNT(known); i++)
        if (strlen(known[i].regex) == len && memcmp(known[i].regex, regex, len) == 0) return known[i].scan;
    return NULL;
}
