/* JSON files that are one value: a list of objects, a list that is a member of an object, or one object. Elements are
 * cut out by their brackets, and parsed by whoever takes them. */
#include "data/reader_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *place(const tm_reader *r, char *buf, size_t cap) {
    snprintf(buf, cap, "%s: element %" PRIu64, r->name, r->number);
    return buf;
}

static tm_status peek_mark(tm_reader *r, int *c) {
    for (;;) {
        TM_TRY(data_bytes_peek(&r->bytes, c));
        if (*c != ' ' && *c != '\t' && *c != '\n' && *c != '\r') return TM_OK;
        r->bytes.at++;
    }
}

/* ---- one value ---------------------------------------------------------------------------------------------------- */

typedef struct value_scan {
    unsigned depth;
    bool in_string, escaped, scalar, ended;
} value_scan;

/* After one byte; true: it belongs to the value. */
static bool scan_byte(value_scan *v, char c) {
    if (v->in_string) {
        v->in_string = v->escaped || c != '"';
        v->escaped = !v->escaped && c == '\\';
        v->ended = !v->in_string && !v->depth;
        return true;
    }
    switch (c) {
    case '"':
        v->in_string = true;
        return true;
    case '{':
    case '[':
        v->depth++;
        return true;
    case '}':
    case ']':
        if (!v->depth) return v->ended = true, false;
        v->ended = !--v->depth;
        return true;
    case ',':
    case ' ':
    case '\n':
    case '\r':
    case '\t':
        v->ended = !v->depth;
        return v->depth > 0;
    default:
        return true;
    }
}

static size_t scan_some(value_scan *v, const char *text, size_t n) {
    size_t i = 0;
    while (i < n && !v->ended) i += scan_byte(v, text[i]);
    return i;
}

/* The value that begins at the next byte, or did `depth` brackets before it, into r->raw, `keep` bytes of it at most. */
static tm_status cut_value(tm_reader *r, unsigned depth, uint64_t keep, bool *too_long) {
    value_scan v = {.depth = depth};
    char at[400];
    int c;
    tm_buf_clear(&r->raw);
    *too_long = false;
    while (!v.ended) {
        TM_TRY(data_bytes_peek(&r->bytes, &c));
        if (c < 0) return tm_fail(TM_EINPUT, "%s: the file ends here; it is cut off", place(r, at, sizeof at));
        const char *text = r->bytes.block + r->bytes.at;
        size_t n = scan_some(&v, text, r->bytes.end - r->bytes.at), kept = (size_t)tm_min_u64(n, keep - r->raw.len);
        TM_TRY(tm_buf_append(&r->raw, text, kept));
        *too_long |= kept < n;
        r->bytes.at += n;
    }
    return TM_OK;
}

/* ---- a list ------------------------------------------------------------------------------------------------------- */

static tm_status list_open(tm_reader *r) {
    int c;
    TM_TRY(peek_mark(r, &c));
    TM_ASSERT(c == '[');
    r->bytes.at++;
    return TM_OK;
}

/* Behind the list's end stands nothing, but for the rest of the object that it is a member of. */
static tm_status list_end(tm_reader *r) {
    int c;
    r->bytes.at++;
    r->is_over = true;
    if (r->cutter == &data_cut_member) return TM_OK;
    TM_TRY(peek_mark(r, &c));
    if (c < 0) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "%s: more follows behind the end of its list, which has %" PRIu64 " elements; a file is one "
                   "list, or an object a line",
                   r->name, r->number);
}

static tm_status list_next(tm_reader *r, tm_record *out) {
    char at[400];
    bool too_long;
    int c;
    if (r->is_over) return TM_OK;
    TM_TRY(peek_mark(r, &c));
    if (c == ']') return list_end(r);
    if (r->number) {
        if (c != ',')
            return tm_fail(TM_EINPUT, "%s: %s", place(r, at, sizeof at),
                           c < 0 ? "the list does not end; the file is cut off" : "neither , nor ] follows it");
        r->bytes.at++;
        TM_TRY(peek_mark(r, &c));
        if (c == ']') return list_end(r);
    }
    r->number++;
    TM_TRY(cut_value(r, 0, r->max_record, &too_long));
    *out = (tm_record){r->raw.data ? r->raw.data : "", r->raw.len, r->number, too_long ? data_too_long(r) : NULL};
    return TM_OK;
}

const data_cutter data_cut_list = {": element ", list_open, list_next};

/* ---- a list that is a member of an object -------------------------------------------------------------------------- */

/* Lists that a record has of its own. */
static bool is_of_record(const tm_reader *r, const char *key, size_t n) {
    const tm_data_columns *columns = r->opts.columns;
    if (data_holds_of(key, n) != DATA_HOLDS_ANY) return true;
    for (size_t i = 0; columns && i < columns->n; i++)
        if (n == strlen(columns->theirs[i]) && !memcmp(key, columns->theirs[i], n)) return true;
    return false;
}

static tm_status want(tm_reader *r, int mark) {
    int c;
    TM_TRY(peek_mark(r, &c));
    if (c != mark)
        return tm_fail(TM_EINPUT, "%s: no list of samples in it: \"%c\" is missing before one", r->name, mark);
    r->bytes.at++;
    return TM_OK;
}

/* Reads past the value of a member, or into it where it is the list: its first element is an object. */
static tm_status into_list(tm_reader *r, bool *found) {
    bool of_record = r->raw.len < 2 || is_of_record(r, r->raw.data + 1, r->raw.len - 2), too_long;
    unsigned depth = 0;
    int c;
    TM_TRY(peek_mark(r, &c));
    if (c == '[' && !of_record) {
        r->bytes.at++;
        depth = 1;
        TM_TRY(peek_mark(r, &c));
        *found = c == '{';
    }
    return *found ? TM_OK : cut_value(r, depth, 0, &too_long);
}

static tm_status member_open(tm_reader *r) {
    bool found = false, too_long;
    int c;
    TM_TRY(want(r, '{'));
    for (;;) {
        TM_TRY(peek_mark(r, &c));
        if (c != '"') return want(r, '"');
        TM_TRY(cut_value(r, 0, 256, &too_long));
        TM_TRY(want(r, ':'));
        TM_TRY(into_list(r, &found));
        if (found) return TM_OK;
        TM_TRY(want(r, ','));
    }
}

const data_cutter data_cut_member = {": element ", member_open, list_next};

/* ---- one object ---------------------------------------------------------------------------------------------------- */

static tm_status whole_next(tm_reader *r, tm_record *out) {
    bool too_long;
    int c;
    TM_TRY(peek_mark(r, &c));
    if (c < 0) return TM_OK;
    if (c != '{')
        return tm_fail(TM_EINPUT,
                       "%s: what follows object %" PRIu64 " is none; a file is a list of objects, or an object "
                       "a line",
                       r->name, r->number);
    r->number++;
    TM_TRY(cut_value(r, 0, r->max_record, &too_long));
    *out = (tm_record){r->raw.data, r->raw.len, r->number, too_long ? data_too_long(r) : NULL};
    return TM_OK;
}

const data_cutter data_cut_whole = {": object ", NULL, whole_next};

/* ---- which --------------------------------------------------------------------------------------------------------- */

/* In what was read of the file: the first key whose value is a list of objects, of an object that begins at text. */
static bool has_list(const tm_reader *r, const char *text, size_t n) {
    value_scan v = {0};
    size_t string = 0, key = 0, key_len = 0;
    for (size_t i = 0; i < n && !v.ended; i++) {
        bool was = v.in_string;
        if (v.depth == 1 && text[i] == '[' && !was && key_len && !is_of_record(r, text + key, key_len)) {
            size_t next = i + 1;
            while (next < n && data_is_blank(text + next, 1)) next++;
            if (next < n && text[next] == '{') return true;
        }
        (void)scan_byte(&v, text[i]);
        if (v.depth != 1) continue;
        if (!was && v.in_string) string = i + 1;
        if (was && !v.in_string) key = string, key_len = i - string;
    }
    return false;
}

/* A file that begins with an object: lines where its first object is a line and more follow, or where it does not end
 * within the block and has no line end in it; else one object, or a list in one. */
tm_status data_json_cutter(tm_reader *r, const data_cutter **out) {
    value_scan v = {0};
    int c;
    TM_TRY(peek_mark(r, &c));
    const char *text = r->bytes.block + r->bytes.at;
    size_t n = r->bytes.end - r->bytes.at, len = c < 0 ? 0 : scan_some(&v, text, n);
    bool one_line = !memchr(text, '\n', len), last = v.ended && data_is_blank(text + len, n - len) && r->bytes.ended;
    *out = &data_cut_lines;
    if (c == '[')
        *out = &data_cut_list;
    else if (c == '{' && (last || !v.ended || !one_line) && has_list(r, text, len))
        *out = &data_cut_member;
    else if (c == '{' && !one_line)
        *out = &data_cut_whole;
    return TM_OK;
}
