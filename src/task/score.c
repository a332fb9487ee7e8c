/* Answers in, scores out. */
#include "task/score.h"
#include "text/chars.h"

#include <math.h>
#include <string.h>

/* ---- what of an answer is compared ------------------------------------------------------------------------------ */

typedef struct span {
    size_t begin, n;
} span;

/* As re.findall gives a match: what its group has, of several groups the first that has anything. */
static bool of_match(const tm_extract *e, span *s) {
    uint32_t groups = tm_pattern_groups(e->regex);
    *s = (span){0, 0};
    if (e->group >= 0) return tm_pattern_number(e->regex, (uint32_t)e->group, &s->begin, &s->n);
    if (groups == 0) return tm_pattern_number(e->regex, 0, &s->begin, &s->n);
    for (uint32_t i = 1; i <= groups; i++) {
        span g;
        if (tm_pattern_number(e->regex, i, &g.begin, &g.n) && g.n > 0) {
            *s = g;
            return true;
        }
    }
    return groups == 1; /* one group without anything in it is "" */
}

/* Counted from the end: the last so many are kept in a ring. */
enum { MOST_BACK = 64 };

/* *any: there is such a match; *s: what it has, if `has`. */
static tm_status find(const tm_extract *e, const char *text, size_t len, span *s, bool *any) {
    span ring[MOST_BACK];
    bool has[MOST_BACK], found = true;
    int64_t n = 0;
    size_t back = e->take < 0 ? (size_t)-e->take : MOST_BACK + 1;
    tm_pattern_walk walk = {0};
    *any = false;
    TM_ASSERT(e->take >= -MOST_BACK);
    for (;; n++) {
        TM_TRY(tm_pattern_next(e->regex, text, len, &walk, &found));
        if (!found) break;
        span *at = &ring[n % MOST_BACK];
        has[n % MOST_BACK] = of_match(e, at);
        if (e->take < 0 || n < e->take) continue;
        *any = has[n % MOST_BACK];
        *s = *at;
        return TM_OK;
    }
    if (back > MOST_BACK || (int64_t)back > n) return TM_OK;
    size_t at = (size_t)(n - (int64_t)back) % MOST_BACK;
    *any = has[at];
    *s = ring[at];
    return TM_OK;
}

/* Python's strip of white space. */
static span stripped(const char *text, span s) {
    size_t end = s.begin + s.n, next = s.begin, before;
    while (s.begin < end && tk_is_space(tk_next(text, &next))) s.begin = next;
    while (end > s.begin && tk_is_space(tk_previous(text, end, &before))) end = before;
    s.n = end - s.begin;
    return s;
}

tm_status tm_score_extract(const tm_extract *e, const char *text, size_t len, tm_buf *out) {
    span s = {0, 0};
    bool any = false;
    if (!e->regex) return tm_buf_append(out, text, len);
    TM_TRY(find(e, text, len, &s, &any));
    const char *fallback = e->fallback ? e->fallback : "[invalid]";
    if (!any) return tm_buf_append(out, fallback, strlen(fallback));
    s = stripped(text, s);
    return tm_buf_append(out, text + s.begin, s.n);
}

/* ---- exact match ------------------------------------------------------------------------------------------------ */

static tm_status without(const tm_pattern *p, tm_buf *text) {
    tm_buf rest = {0};
    tm_pattern_walk walk = {0};
    size_t at = 0;
    bool found = true;
    tm_status rc = TM_OK;
    const char *data = text->data ? text->data : "";
    while (rc == TM_OK && found) {
        rc = tm_pattern_next(p, data, text->len, &walk, &found);
        size_t end = found ? walk.begin : text->len;
        if (rc == TM_OK) rc = tm_buf_append(&rest, data + at, end - at);
        at = found ? walk.end : at;
    }
    tm_buf_free(text);
    *text = rest;
    return rc;
}

static bool goes(const tm_compare *c, uint32_t code) {
    static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    if (c->ignore_punctuation && code && code < 128 && strchr(punctuation, (int)code)) return true;
    return c->ignore_numbers && code >= '0' && code <= '9';
}

static tm_status prepared(const tm_compare *c, const char *text, size_t len, tm_buf *out) {
    tm_buf left = {0};
    tm_status rc = tm_buf_append(&left, text, len);
    for (uint32_t i = 0; i < c->n_ignore && rc == TM_OK; i++) rc = without(c->ignore[i], &left);
    for (size_t at = 0; at < left.len && rc == TM_OK;) {
        char bytes[4];
        uint32_t code = tk_next(left.data, &at);
        if (!goes(c, code))
            rc = tm_buf_append(out, bytes, tm_utf8_encode(bytes, c->ignore_case ? tk_lower(code) : code));
    }
    tm_buf_free(&left);
    return rc;
}

tm_status tm_score_exact(const tm_compare *c, const char *a, size_t n_a, const char *b, size_t n_b, bool *same) {
    tm_buf one = {0}, two = {0};
    tm_status rc = prepared(c, a, n_a, &one);
    if (rc == TM_OK) rc = prepared(c, b, n_b, &two);
    *same = rc == TM_OK && one.len == two.len && (one.len == 0 || memcmp(one.data, two.data, one.len) == 0);
    tm_buf_free(&one);
    tm_buf_free(&two);
    return rc;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static bool digit(const char *text, size_t len, size_t at) {
    return at < len && text[at] >= '0' && text[at] <= '9';
}

static bool word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) || c == ')';
}

/* A comma, three digits and no fourth. */
static bool thousands(const char *text, size_t len, size_t at) {
    return at < len && text[at] == ',' && digit(text, len, at + 1) && digit(text, len, at + 2) &&
           digit(text, len, at + 3) && !digit(text, len, at + 4);
}

/* Where the number that begins with the digit at `at` ends. */
static size_t number_end(const char *text, size_t len, size_t at, size_t *point) {
    while (digit(text, len, at)) at++;
    while (thousands(text, len, at)) at += 4;
    *point = SIZE_MAX;
    if (at >= len || text[at] != '.' || !digit(text, len, at + 1)) return at;
    *point = at++;
    while (digit(text, len, at)) at++;
    return at;
}

static bool negative(const char *text, size_t begin) {
    if (begin > 0 && text[begin - 1] == '$') begin--;
    if (begin > 0 && text[begin - 1] == '-') return begin == 1 || !word(text[begin - 2]);
    static const char minus[] = "\xe2\x88\x92"; /* U+2212 */
    if (begin < 3 || memcmp(text + begin - 3, minus, 3) != 0) return false;
    return begin == 3 || !word(text[begin - 4]);
}

static tm_status plain(const char *text, span s, size_t point, tm_buf *out) {
    size_t end = s.begin + s.n, at = s.begin;
    bool zero = true;
    if (point != SIZE_MAX) {
        while (text[end - 1] == '0') end--;
        if (end - 1 == point) end--;
    }
    while (at + 1 < end && (text[at] == '0' || text[at] == ',') && text[at + 1] != '.') at++;
    for (size_t i = at; i < end; i++) zero &= text[i] == '0' || text[i] == '.';
    if (!zero && negative(text, s.begin)) TM_TRY(tm_buf_append(out, "-", 1));
    for (; at < end; at++)
        if (text[at] != ',') TM_TRY(tm_buf_append(out, text + at, 1));
    return TM_OK;
}

bool tm_score_number(const char *text, size_t len, tm_buf *out, tm_status *rc) {
    span last = {0, 0};
    size_t last_point = SIZE_MAX;
    *rc = TM_OK;
    for (size_t at = 0, point; at < len;) {
        if (!digit(text, len, at)) {
            at++;
            continue;
        }
        size_t end = number_end(text, len, at, &point);
        last = (span){at, end - at};
        last_point = point;
        at = end;
    }
    if (last.n) *rc = plain(text, last, last_point, out);
    return last.n > 0;
}

tm_status tm_score_numeric(const char *a, size_t n_a, const char *b, size_t n_b, bool *same) {
    tm_buf one = {0}, two = {0};
    tm_status rc, second = TM_OK;
    bool both = tm_score_number(a, n_a, &one, &rc);
    both = tm_score_number(b, n_b, &two, &second) && both;
    rc = tm_first(rc, second);
    *same = rc == TM_OK && both && one.len == two.len && memcmp(one.data, two.data, one.len) == 0;
    tm_buf_free(&one);
    tm_buf_free(&two);
    return rc;
}

/* ---- choices, means --------------------------------------------------------------------------------------------- */

uint32_t tm_score_best(const double *logprob, const double *length, uint32_t n) {
    uint32_t best = 0;
    double most = 0;
    for (uint32_t i = 0; i < n; i++) {
        double v = length ? logprob[i] / length[i] : logprob[i];
        if (i > 0 && !(v > most)) continue;
        best = i;
        most = v;
    }
    return best;
}

double tm_score_characters(const char *text) {
    double n = 0;
    for (; *text; text++) n += (*text & 0xC0) != 0x80;
    return n;
}

double tm_score_mean(const double *value, size_t n, size_t stride) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += value[i * stride];
    return n ? sum / (double)n : NAN;
}

double tm_score_mean_stderr(const double *value, size_t n, size_t stride) {
    double mean = tm_score_mean(value, n, stride), sum = 0;
    if (n < 2) return NAN;
    for (size_t i = 0; i < n; i++) {
        double d = value[i * stride] - mean;
        sum += d * d;
    }
    return sqrt(sum / (double)(n - 1)) / sqrt((double)n);
}
