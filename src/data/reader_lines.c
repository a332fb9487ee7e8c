/* Records that are lines, and plain text: a line, a paragraph or the whole file. */
#include "data/reader_internal.h"

#include <inttypes.h>
#include <string.h>

/* Takes up to the end of the line or of the block. */
static tm_status take(tm_reader *r, bool *ended, bool *cut) {
    data_bytes *b = &r->bytes;
    const char *from = b->block + b->at, *newline = memchr(from, '\n', b->end - b->at);
    size_t n = newline ? (size_t)(newline - from) : b->end - b->at;
    size_t keep = (size_t)tm_min_u64(n, r->max_record - r->raw.len);
    if (keep < n) *cut = true;
    TM_TRY(tm_buf_append(&r->raw, from, keep));
    b->at += n + (newline != NULL);
    *ended = newline != NULL;
    return TM_OK;
}

tm_status data_line_next(tm_reader *r, bool *got, bool *cut) {
    bool ended = false;
    int c;
    tm_buf_clear(&r->raw);
    *got = *cut = false;
    while (!ended) {
        TM_TRY(data_bytes_peek(&r->bytes, &c));
        if (c < 0) break;
        *got = true;
        TM_TRY(take(r, &ended, cut));
    }
    if (r->raw.len && r->raw.data[r->raw.len - 1] == '\r') r->raw.data[--r->raw.len] = 0;
    return TM_OK;
}

/* The next line that is not blank. */
static tm_status line_next(tm_reader *r, bool *got, bool *cut) {
    do {
        *got = false;
        if (data_is_enough(r)) break;
        TM_TRY(data_line_next(r, got, cut));
        r->number += *got;
    } while (*got && !*cut && data_is_blank(r->raw.data ? r->raw.data : "", r->raw.len));
    return TM_OK;
}

static tm_status lines_next(tm_reader *r, tm_record *out) {
    bool got, cut;
    TM_TRY(line_next(r, &got, &cut));
    if (got) *out = (tm_record){r->raw.data ? r->raw.data : "", r->raw.len, r->number, cut ? data_too_long(r) : NULL};
    return TM_OK;
}

const data_cutter data_cut_lines = {":", NULL, lines_next};

/* ---- text -------------------------------------------------------------------------------------------------------- */

static tm_status text_record(tm_reader *r, tm_record *out, const tm_buf *text, const char *wrong) {
    tm_json_writer w;
    tm_buf_clear(&r->json);
    tm_jw_init(&w, &r->json, 0);
    tm_jw_object(&w);
    tm_jw_field_strn(&w, "text", text->data ? text->data : "", text->len);
    tm_jw_object_end(&w);
    TM_TRY(tm_jw_end(&w));
    if (!wrong && text->len) wrong = data_not_utf8(r, text->data, text->len);
    *out = (tm_record){r->json.data, r->json.len, r->number, wrong};
    return TM_OK;
}

/* Lines up to a blank one, which are put together in r->header: their ends are "\n", whatever they were. */
static tm_status paragraph_next(tm_reader *r, tm_record *out) {
    bool got, cut, too_long = false;
    uint64_t first = 0;
    tm_buf_clear(&r->header);
    for (;;) {
        TM_TRY(data_line_next(r, &got, &cut));
        if (!got) break;
        r->number++;
        bool blank = !cut && data_is_blank(r->raw.data ? r->raw.data : "", r->raw.len);
        if (blank && first) break;
        if (blank) continue;
        if (!first) first = r->number;
        too_long |= cut || r->header.len + r->raw.len + 1 > r->max_record;
        if (too_long) continue;
        if (r->header.len) TM_TRY(tm_buf_append(&r->header, "\n", 1));
        TM_TRY(tm_buf_append(&r->header, r->raw.data, r->raw.len));
    }
    if (!first) return TM_OK;
    TM_TRY(text_record(r, out, &r->header, too_long ? data_too_long(r) : NULL));
    out->number = first;
    return TM_OK;
}

/* A part of a document ends behind a line if it can; never inside a character. */
static size_t part_of(const tm_buf *text) {
    const char *newline = memrchr(text->data, '\n', text->len);
    size_t n = newline ? (size_t)(newline - text->data) + 1 : text->len;
    while (!newline && n > text->len - 4 && n > 1 && ((unsigned char)text->data[n - 1] & 0xc0) == 0x80) n--;
    if (!newline && n > 1 && (unsigned char)text->data[n - 1] >= 0xc0) n--;
    return n;
}

/* All that is left, up to max_record; what of it belongs to the next part is kept in r->raw. */
static tm_status document_next(tm_reader *r, tm_record *out) {
    int c;
    for (;;) {
        TM_TRY(data_bytes_peek(&r->bytes, &c));
        if (c < 0 || r->raw.len == r->max_record) break;
        size_t n = (size_t)tm_min_u64(r->bytes.end - r->bytes.at, r->max_record - r->raw.len);
        TM_TRY(tm_buf_append(&r->raw, r->bytes.block + r->bytes.at, n));
        r->bytes.at += n;
    }
    if (c < 0 && data_is_blank(r->raw.data ? r->raw.data : "", r->raw.len)) return TM_OK;
    size_t all = r->raw.len, n = c < 0 ? all : part_of(&r->raw);
    if (n < all || c >= 0)
        tm_warn_once(r->name, "%s: a document of more than %" PRIu64 " bytes is taken in parts", r->name,
                     r->max_record);
    r->number++;
    r->raw.len = n;
    TM_TRY(text_record(r, out, &r->raw, NULL));
    memmove(r->raw.data, r->raw.data + n, all - n);
    r->raw.len = all - n;
    return TM_OK;
}

static tm_status text_line_next(tm_reader *r, tm_record *out) {
    bool got, cut;
    TM_TRY(line_next(r, &got, &cut));
    return got ? text_record(r, out, &r->raw, cut ? data_too_long(r) : NULL) : TM_OK;
}

static tm_status text_next(tm_reader *r, tm_record *out) {
    switch (r->opts.sample_by) {
    case TM_SAMPLE_BY_PARAGRAPH:
        return paragraph_next(r, out);
    case TM_SAMPLE_BY_DOCUMENT:
        return document_next(r, out);
    case TM_SAMPLE_BY_LINE:
        break;
    }
    return text_line_next(r, out);
}

const data_cutter data_cut_text = {":", NULL, text_next};
