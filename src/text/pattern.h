/* pattern: regular expressions as Python's re takes them.
 *
 * Configurations of PEFT and of ms-swift choose modules and tensors by such expressions. PCRE2 runs them; what the two
 * read differently is translated, and what only one of them has is refused by name. Names are short, so matching is
 * limited: an expression that is too costly is an error, not a guess.
 *
 *     TM_TRY(tm_pattern_open(&p, ".*\\.(q|v)_proj", 14, TM_PATTERN_FULL));
 *     TM_TRY(tm_pattern_finds(p, "model.layers.3.self_attn.q_proj", &found)); // true
 *     tm_pattern_close(p);
 */
#ifndef TIDEMILL_TEXT_PATTERN_H
#define TIDEMILL_TEXT_PATTERN_H

#include "base/base.h"

typedef enum tm_pattern_how {
    TM_PATTERN_FULL,   /* re.fullmatch: the whole text */
    TM_PATTERN_MATCH,  /* re.match: from the text's beginning */
    TM_PATTERN_SEARCH, /* re.search: anywhere in it */
    TM_PATTERN_FIND    /* re.finditer: all matches in a text that may be long, as an answer is */
} tm_pattern_how;

enum { TM_PATTERN_MOST = 4096 }; /* bytes of an expression */

typedef struct tm_pattern tm_pattern;
/* `regex`: n bytes of UTF-8. TM_EINPUT: not an expression of Python's; TM_EUNSUPPORTED: one that this program does not
 * take. The message has the expression and the place in it. */
TM_MUST_USE tm_status tm_pattern_open(tm_pattern **out, const char *regex, size_t n, tm_pattern_how how);
void tm_pattern_close(tm_pattern *p);             /* NULL is fine */
size_t tm_pattern_bytes(const tm_pattern *p);     /* memory that it holds, about */
const char *tm_pattern_text(const tm_pattern *p); /* the expression, as it was given */
/* `text`: UTF-8. TM_EUNSUPPORTED: too costly on this text. One thread at a time. */
TM_MUST_USE tm_status tm_pattern_finds(const tm_pattern *p, const char *text, bool *found);
/* Of the text that it was just found in: where the group (?P<name>...) begins, and its bytes. False: it took no part. */
bool tm_pattern_group(const tm_pattern *p, const char *name, size_t *begin, size_t *n);

/* Matches of a text, one after another as re.finditer has them. Zero it to start. */
typedef struct tm_pattern_walk {
    size_t begin, end; /* of the latest match */
    bool any;
} tm_pattern_walk;
/* *found: there was one more, and its groups are tm_pattern_number's until the next call. As tm_pattern_finds; a text may hold
 * NUL bytes, its places are bytes. */
TM_MUST_USE tm_status tm_pattern_next(const tm_pattern *p, const char *text, size_t len, tm_pattern_walk *w,
                                      bool *found);
uint32_t tm_pattern_groups(const tm_pattern *p); /* how many it has, the whole match not among them */
/* The i-th group of the latest match, 0: all of it. False: it took no part. */
bool tm_pattern_number(const tm_pattern *p, uint32_t i, size_t *begin, size_t *n);

#endif
