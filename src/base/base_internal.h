/* What the files of base share among themselves. */
#ifndef TIDEMILL_BASE_INTERNAL_H
#define TIDEMILL_BASE_INTERNAL_H

#include "base/base.h"

/* "KEY:   123 kB" lines, as in /proc/meminfo and /proc/self/status; 0 if there is none. */
uint64_t base_proc_kib(const char *path, const char *key);

/* strtod with '.' as the decimal point, whatever locale a program around the library has set. */
double base_strtod(const char *text);

enum { JSON_MAX_DEPTH = 64, JSON_INPUT_BYTES = 1 << 16 };

/* The bytes in front of the reader: `in[pos..len)`, refilled by json_have. Over memory (tm_mem_source_read) `in` is
 * that memory itself and is never refilled. Newlines occur only between tokens, so only json_skip_blank counts lines.
 */
typedef struct json_input {
    const char *in;
    char *buffer; /* NULL over memory */
    size_t pos, len;
    bool end;            /* nothing follows `len` */
    uint64_t base;       /* offset of in[0] */
    uint64_t line_start; /* offset of the line's first byte */
    uint32_t line;
    tm_read_fn read;
    void *ctx;
    const char *name;
    unsigned flags;
} json_input;

/* Makes `n` bytes (at most 16) readable at in[pos] if there are so many; *have is false if the input ends before. */
tm_status json_have(json_input *s, size_t n, bool *have);
/* Blanks and, if relaxed, comments. *more: something follows. */
tm_status json_skip_blanks(json_input *s, bool *more);
static inline tm_status json_skip_blank(json_input *s, bool *more) { /* most often there is one or none */
    if (s->pos < s->len && s->in[s->pos] == ' ') s->pos++;
    *more = s->pos < s->len && s->in[s->pos] > ' ' && s->in[s->pos] != '#' && s->in[s->pos] != '/';
    return *more ? TM_OK : json_skip_blanks(s, more);
}
/* Decodes the string at in[pos] (the opening quote): *text is in `token` then, with a NUL behind it, or, where the string
 * stands for itself and `where_it_is`, in the input. */
tm_status json_scan_string(json_input *s, tm_buf *token, size_t max_token, bool where_it_is, const char **text,
                           size_t *len);
/* Checks the number at in[pos] against the grammar; fills text, len, number, integer. */
tm_status json_scan_number(json_input *s, tm_buf *token, size_t max_token, tm_json_event *event);
/* `word` at in[pos], followed by something that may follow a value. */
tm_status json_scan_word(json_input *s, const char *word);
/* "NAME:LINE:COLUMN: what" at the current byte, and what is there instead ("found ..."). */
tm_status json_fail(json_input *s, const char *format, ...) TM_PRINTF(2, 3);
tm_status json_fail_found(json_input *s, const char *expected);
uint32_t json_column(const json_input *s);

/* ---- json_reader.c ---------------------------------------------------------------------------------------------- */

/* What is expected next. Every state but FAILED and DONE is left by one token. */
typedef enum json_state {
    JSON_AT_START,        /* a value, or the end of the input */
    JSON_AT_VALUE,        /* a value */
    JSON_AT_VALUE_OR_END, /* a value or ']' */
    JSON_AT_KEY,          /* a key */
    JSON_AT_KEY_OR_END,   /* a key or '}' */
    JSON_AT_COLON,        /* ':' and a value */
    JSON_AT_COMMA_OR_END, /* ',' or the bracket that closes the container */
    JSON_AT_DONE,         /* only blanks */
    JSON_AT_FAILURE
} json_state;

/* Hashes of the keys of one open object: some in a list, more in `slots` by open addressing; 0 is a free slot. At most 3/4
 * full. */
enum { JSON_FEW_KEYS = 8 };
typedef struct json_keys {
    uint64_t *slots; /* NULL: in `few` */
    size_t cap, count;
    uint64_t few[JSON_FEW_KEYS];
} json_keys;

struct tm_json_reader {
    json_input input;
    char *name; /* its own, or NULL */
    tm_buf token;
    size_t max_token;
    json_state state;
    tm_status failure;
    bool where_it_is; /* texts that stand for themselves are given where they are, without a NUL */
    uint64_t hash_seed;
    unsigned depth, n_keys; /* of `keys`, those that were used */
    bool is_object[JSON_MAX_DEPTH];
    json_keys keys[JSON_MAX_DEPTH];
};
/* Over memory; `name` stays the caller's. Allocates nothing; json_reader_end gives back what reading took. */
void json_reader_begin(tm_json_reader *r, const char *text, size_t len, const char *name, unsigned flags,
                       size_t max_token);
void json_reader_end(tm_json_reader *r);

/* Decodes one UTF-8 sequence of at most n bytes: its length, 0 if it is not valid (RFC 3629). */
size_t base_utf8_decode(const char *p, size_t n, uint32_t *code_point);

#endif
