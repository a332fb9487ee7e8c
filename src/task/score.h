/* score: answers in, scores out. Nothing here knows of files, models or engines: a result is a function of its arguments.
 *
 * The rules are lm-evaluation-harness's (0.4.13), where it has one: `regex` of its filters, `exact_match`, `acc`, `acc_norm`,
 * `acc_bytes`, the standard error of a mean.
 *
 *     tm_extract last = {.regex = pattern, .take = -1, .group = TM_GROUP_ANY, .fallback = "[invalid]"};
 *     TM_TRY(tm_score_extract(&last, answer, n, &taken));
 *     TM_TRY(tm_score_exact(&compare, taken.data, taken.len, target, strlen(target), &same));
 */
#ifndef TIDEMILL_SCORE_H
#define TIDEMILL_SCORE_H

#include "text/pattern.h"

enum { TM_GROUP_ANY = -1 };

/* What of an answer is compared. */
typedef struct tm_extract {
    tm_pattern *regex; /* TM_PATTERN_FIND; NULL: all of it, and nothing below counts */
    int32_t take;      /* which match: 0 the first, 1 the second; -1 the last, -2 the one before */
    int32_t
        group; /* of it; 0: the whole match; TM_GROUP_ANY: the first that is not empty, the whole where it has none */
    const char *fallback; /* where there is no such match; NULL: "[invalid]" */
} tm_extract;
/* Appends it, without white space at either end where `regex` took it. TM_EUNSUPPORTED: too costly on this text. */
TM_MUST_USE tm_status tm_score_extract(const tm_extract *e, const char *text, size_t len, tm_buf *out);

/* How two texts are compared: what is ignored goes from both, in this order. */
typedef struct tm_compare {
    tm_pattern *const *ignore; /* [n_ignore] TM_PATTERN_FIND: every match */
    uint32_t n_ignore;
    bool ignore_case;
    bool ignore_punctuation; /* Python's string.punctuation, ASCII */
    bool ignore_numbers;     /* the digits 0 to 9 */
} tm_compare;
TM_MUST_USE tm_status tm_score_exact(const tm_compare *c, const char *a, size_t n_a, const char *b, size_t n_b,
                                     bool *same);

/* The last number of a text as plain decimals: "-$1,234.50" is "-1234.5". A sign counts where no digit or letter is before it,
 * commas where they part three digits. False: it has none. */
bool tm_score_number(const char *text, size_t len, tm_buf *out, tm_status *rc);
/* Both have a last number, and it is the same. */
TM_MUST_USE tm_status tm_score_numeric(const char *a, size_t n_a, const char *b, size_t n_b, bool *same);

/* The choice whose logprob[i] / length[i] is the largest, the first of several. `length` NULL: 1 each. n > 0. */
uint32_t tm_score_best(const double *logprob, const double *length, uint32_t n);
/* Characters of valid UTF-8, as Python counts them. */
double tm_score_characters(const char *text);

/* Of value[0], value[stride] ... so many. The standard error is that of a mean: the sample's deviation (n - 1) / sqrt(n); NAN
 * below two. */
double tm_score_mean(const double *value, size_t n, size_t stride);
double tm_score_mean_stderr(const double *value, size_t n, size_t stride);

#endif
