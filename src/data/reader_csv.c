/* CSV (RFC 4180): rows of cells, of which the first names the keys. A row becomes the JSON text of an object. */
#include "data/reader_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- a row --------------------------------------------------------------------------------------------------------- */

typedef struct row_scan {
    bool quoted, closed; /* inside quotes; behind the closing one (or between a doubled pair) */
    bool any, begun, ended, too_long, too_wide;
} row_scan;

static tm_status end_cell(tm_reader *r, row_scan *s) {
    s->begun = s->closed = false;
    s->too_wide |= r->n_cells == DATA_MOST_COLUMNS;
    if (s->too_wide) return TM_OK;
    TM_TRY(tm_buf_append(&r->raw, "", 1));
    r->cell[++r->n_cells] = (uint32_t)r->raw.len;
    return TM_OK;
}

static tm_status put_byte(tm_reader *r, row_scan *s, const char *c, size_t n) {
    size_t keep = (size_t)tm_min_u64(n, r->max_record - tm_min_u64(r->raw.len, r->max_record));
    s->too_long |= keep < n;
    s->begun = true;
    return tm_buf_append(&r->raw, c, keep);
}

static tm_status take_mark(tm_reader *r, row_scan *s, const char *c) {
    if (*c == '"' && !s->begun) {
        s->quoted = s->begun = true;
        return TM_OK;
    }
    if (*c == '"' && s->closed) { /* a doubled one: itself */
        s->quoted = true;
        s->closed = false;
        return put_byte(r, s, c, 1);
    }
    if (*c == r->delimiter) return end_cell(r, s);
    if (*c != '\n') return put_byte(r, s, c, 1);
    if (!s->closed && r->raw.len > r->cell[r->n_cells] && r->raw.data[r->raw.len - 1] == '\r')
        r->raw.data[--r->raw.len] = 0;
    s->ended = true;
    return end_cell(r, s);
}

/* Text up to the next byte that may mean something. */
static size_t plain_run(const tm_reader *r, const row_scan *s, const char *text, size_t n) {
    size_t i = 0;
    if (s->quoted) {
        const char *quote = memchr(text, '"', n);
        return quote ? (size_t)(quote - text) : n;
    }
    while (i < n && text[i] != '"' && text[i] != '\n' && text[i] != r->delimiter) i++;
    return i;
}

static tm_status scan_some(tm_reader *r, row_scan *s) {
    data_bytes *b = &r->bytes;
    const char *text = b->block + b->at;
    size_t n = plain_run(r, s, text, b->end - b->at);
    if (n) {
        if (!s->quoted) s->closed = false;
        TM_TRY(put_byte(r, s, text, n));
        b->at += n;
        return TM_OK;
    }
    b->at++;
    if (!s->quoted) return take_mark(r, s, text);
    s->quoted = false;
    s->closed = true;
    return TM_OK;
}

/* The cells of the next row into raw, each ended by a NUL; none: the end. */
static tm_status cells_next(tm_reader *r, row_scan *s) {
    int c;
    *s = (row_scan){0};
    tm_buf_clear(&r->raw);
    r->n_cells = 0;
    r->cell[0] = 0;
    while (!s->ended) {
        TM_TRY(data_bytes_peek(&r->bytes, &c));
        if (c < 0) break;
        s->any = true;
        TM_TRY(scan_some(r, s));
    }
    return s->any && !s->ended ? end_cell(r, s) : TM_OK;
}

static size_t cell_len(const tm_reader *r, uint32_t i) {
    return r->cell[i + 1] - r->cell[i] - 1;
}

/* ---- the header ---------------------------------------------------------------------------------------------------- */

static const char *our_name(const tm_reader *r, const char *key) {
    const tm_data_columns *c = r->opts.columns;
    for (size_t i = 0; c && i < c->n; i++)
        if (!strcmp(c->theirs[i], key)) return c->ours[i];
    return key;
}

/* A header without a comma that has semicolons or tabs is divided by these, as some spreadsheets write it. */
static char delimiter_of(const tm_reader *r) {
    const char *text = r->bytes.block + r->bytes.at;
    size_t left = r->bytes.end - r->bytes.at;
    const char *newline = memchr(text, '\n', left);
    size_t n = newline ? (size_t)(newline - text) : left;
    if (tm_reader_name_ends(r->name, ".tsv")) return '\t';
    if (memchr(text, ',', n)) return ',';
    return memchr(text, ';', n) ? ';' : memchr(text, '\t', n) ? '\t' : ',';
}

static tm_status check_header(tm_reader *r, const row_scan *s) {
    if (s->too_wide || s->too_long)
        return tm_fail(TM_EINPUT, "%s: a header row of more than %d columns; is it CSV?", r->name, DATA_MOST_COLUMNS);
    if (s->quoted) return tm_fail(TM_EINPUT, "%s: a quote of the header row is not closed; is it CSV?", r->name);
    if (data_not_utf8(r, r->header.data, r->header.len))
        return tm_fail(TM_EINPUT, "%s: the header row: %s", r->name, r->wrong);
    for (uint32_t i = 0; i < r->n_columns; i++)
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(r->header.data + r->key[i], r->header.data + r->key[k]))
                return tm_fail(TM_EINPUT, "%s: two columns are named \"%.80s\"; the first row names the columns",
                               r->name, r->header.data + r->key[i]);
    return TM_OK;
}

static tm_status csv_open(tm_reader *r) {
    row_scan s;
    size_t bytes = (DATA_MOST_COLUMNS + 1) * sizeof *r->cell;
    r->delimiter = delimiter_of(r);
    r->cell = tm_calloc(1, bytes);
    r->key = tm_calloc(1, bytes);
    r->meaning = tm_calloc(DATA_MOST_COLUMNS, sizeof *r->meaning);
    if (!r->cell || !r->key || !r->meaning) return tm_nomem(2 * bytes);
    TM_TRY(cells_next(r, &s));
    TM_TRY(tm_buf_append(&r->header, r->raw.data ? r->raw.data : "", r->raw.len));
    r->n_columns = r->n_cells;
    memcpy(r->key, r->cell, bytes);
    for (uint32_t i = 0; i < r->n_columns; i++) r->meaning[i] = our_name(r, r->header.data + r->key[i]);
    return check_header(r, &s);
}

/* ---- a record ------------------------------------------------------------------------------------------------------ */

static bool is_one_of(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Lists of messages, where a string may stand too. */
static tm_status holds_objects(const char *text, size_t n, bool *so) {
    tm_json_doc *doc = NULL;
    *so = false;
    tm_status rc = tm_json_parse(&doc, text, n, "cell", 0, 0);
    if (rc == TM_ENOMEM) return rc;
    if (rc == TM_OK) {
        const tm_json *root = tm_json_root(doc);
        *so = root->type == TM_JSON_ARRAY && root->child && root->child->type == TM_JSON_OBJECT;
        tm_json_free(doc);
    }
    tm_error_clear();
    return TM_OK;
}

/* A cell that must be JSON: Python's own form of a list is what is met instead. */
static tm_status put_json(tm_reader *r, tm_json_writer *w, uint32_t i, const char *cell, size_t n) {
    tm_json_doc *doc = NULL;
    tm_status rc = tm_json_parse(&doc, cell, n, "cell", TM_JSON_DUPLICATES_OK, 0);
    tm_json_free(doc);
    if (rc == TM_ENOMEM) return rc;
    if (rc == TM_OK) {
        tm_jw_raw(w, cell, n);
        return TM_OK;
    }
    tm_error_clear();
    tm_jw_null(w);
    snprintf(r->wrong, sizeof r->wrong,
             "the cell of column %.80s is no JSON (%.40s%s); write lists with json.dumps, not with str", r->meaning[i],
             cell, n > 40 ? "..." : "");
    return TM_OK;
}

static tm_status put_cell(tm_reader *r, tm_json_writer *w, uint32_t i) {
    static const char *const flags[] = {"label", "kto_tag"};
    static const char *const yes[] = {"true", "True", "TRUE", "1", "1.0"}, *const no[] = {"false", "False", "FALSE",
                                                                                          "0", "0.0"};
    const char *cell = r->raw.data + r->cell[i], *name = r->meaning[i];
    size_t n = cell_len(r, i);
    data_holds what = data_holds_of(name, strlen(name));
    tm_jw_key(w, r->header.data + r->key[i]);
    TM_TRY(w->status); /* its record would go with that of a cell that is no JSON */
    if (n && what == DATA_HOLDS_JSON) return put_json(r, w, i, cell, n);
    bool objects = false;
    if (*cell == '[' && what == DATA_HOLDS_EITHER) TM_TRY(holds_objects(cell, n, &objects));
    bool flag = is_one_of(name, flags, TM_COUNT(flags));
    if (flag && is_one_of(cell, yes, TM_COUNT(yes)))
        tm_jw_bool(w, true);
    else if (flag && is_one_of(cell, no, TM_COUNT(no)))
        tm_jw_bool(w, false);
    else if (objects)
        tm_jw_raw(w, cell, n);
    else
        tm_jw_strn(w, cell, n);
    return TM_OK;
}

static tm_status put_row(tm_reader *r) {
    tm_json_writer w;
    tm_buf_clear(&r->json);
    tm_jw_init(&w, &r->json, 0);
    tm_jw_object(&w);
    for (uint32_t i = 0; i < r->n_columns; i++) TM_TRY(put_cell(r, &w, i));
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

static void check_row(tm_reader *r, const row_scan *s) {
    if (s->too_long)
        (void)data_too_long(r);
    else if (s->quoted)
        snprintf(r->wrong, sizeof r->wrong, "a quoted cell is not closed");
    else if (s->too_wide || r->n_cells != r->n_columns)
        snprintf(r->wrong, sizeof r->wrong, "%u cells where the header row has %u columns", r->n_cells, r->n_columns);
    else
        (void)data_not_utf8(r, r->raw.data, r->raw.len);
}

static tm_status csv_next(tm_reader *r, tm_record *out) {
    row_scan s;
    do TM_TRY(cells_next(r, &s));
    while (s.ended && r->n_cells == 1 && !cell_len(r, 0)); /* a blank line */
    if (!r->n_cells || (r->n_cells == 1 && !cell_len(r, 0))) return TM_OK;
    r->number++;
    r->wrong[0] = 0;
    check_row(r, &s);
    tm_buf_clear(&r->json);
    if (!r->wrong[0]) TM_TRY(put_row(r));
    *out = (tm_record){r->json.data ? r->json.data : "", r->json.len, r->number, r->wrong[0] ? r->wrong : NULL};
    return TM_OK;
}

const data_cutter data_cut_csv = {": row ", csv_open, csv_next};
