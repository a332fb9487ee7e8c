/* Which cutter a file needs, and records from it. */
#include "data/reader_internal.h"
#include "text/chars.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool tm_reader_name_ends(const char *name, const char *ending) {
    static const char *const packed[] = {"", ".gz", ".zst"};
    size_t n = strlen(name), len = strlen(ending);
    for (size_t i = 0; i < TM_COUNT(packed); i++) {
        size_t tail = strlen(packed[i]);
        if (n < tail + len || strcasecmp(name + n - tail, packed[i]) != 0) continue;
        if (!strncasecmp(name + n - tail - len, ending, len)) return true;
    }
    return false;
}

static bool one_of(const char *name, const char *const *endings, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (tm_reader_name_ends(name, endings[i])) return true;
    return false;
}

/* The first byte that is no blank; 0: there is none in the block. */
static char first_mark(const data_bytes *b) {
    for (size_t i = b->at; i < b->end; i++)
        if (!data_is_blank(b->block + i, 1)) return b->block[i];
    return 0;
}

/* By the name where it says something, else by how the text begins. */
static tm_status by_name(tm_reader *r, const data_cutter **out) {
    static const char *const csv[] = {".csv", ".tsv"}, *const text[] = {".txt", ".text"};
    static const char *const lines[] = {".jsonl", ".ndjson"};
    char mark = first_mark(&r->bytes);
    *out = &data_cut_lines;
    if (one_of(r->name, csv, TM_COUNT(csv)))
        *out = &data_cut_csv;
    else if (one_of(r->name, text, TM_COUNT(text)))
        *out = &data_cut_text;
    else if (mark == '[')
        *out = &data_cut_list;
    else if (mark == '{' && !one_of(r->name, lines, TM_COUNT(lines)))
        return data_json_cutter(r, out);
    return TM_OK;
}

static tm_status choose(tm_reader *r, const data_cutter **out) {
    switch (r->opts.form) {
    case TM_READ_LINES:
        *out = &data_cut_lines;
        return TM_OK;
    case TM_READ_CSV:
        *out = &data_cut_csv;
        return TM_OK;
    case TM_READ_TEXT:
        *out = &data_cut_text;
        return TM_OK;
    case TM_READ_JSON:
        return data_json_cutter(r, out);
    case TM_READ_AUTO:
        break;
    }
    TM_TRY(data_refuse(r->name, r->bytes.block + r->bytes.at, r->bytes.end - r->bytes.at));
    return by_name(r, out);
}

/* A name that promises a packed file, on one that is none. */
static tm_status check_packed(const tm_reader *r) {
    size_t n = strlen(r->name);
    bool gz = n > 3 && !strcasecmp(r->name + n - 3, ".gz"), zst = n > 4 && !strcasecmp(r->name + n - 4, ".zst");
    if (r->bytes.unpack || !(gz || zst) || !r->bytes.source->size) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "%s: named as if %s had packed it, but it does not begin so; fetch it again, or rename it", r->name,
                   gz ? "gzip" : "Zstandard");
}

tm_status tm_reader_open(tm_reader **out, const tm_data_source *source, const tm_reader_opts *opts) {
    tm_status rc;
    tm_reader *r = tm_calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return tm_nomem(sizeof *r);
    r->opts = *opts;
    r->name = source->name;
    r->max_record = tm_min_u64(opts->max_record_bytes ? opts->max_record_bytes : 16 * TM_MIB, TM_GIB);
    TM_GO(data_bytes_open(&r->bytes, source, opts->window_bytes));
    TM_GO(check_packed(r));
    TM_GO(choose(r, &r->cutter));
    if (r->cutter->open) TM_GO(r->cutter->open(r));
    *out = r;
done:
    if (rc != TM_OK) tm_reader_close(r);
    return rc;
}

bool data_is_enough(const tm_reader *r) {
    return r->opts.most_bytes && data_bytes_read(&r->bytes) >= r->opts.most_bytes;
}

const char *data_too_long(tm_reader *r) {
    snprintf(r->wrong, sizeof r->wrong, "longer than %" PRIu64 " bytes", r->max_record);
    return r->wrong;
}

const char *data_not_utf8(tm_reader *r, const char *text, size_t n) {
    size_t good = tk_utf8_valid(text, n);
    if (good == n) return NULL;
    snprintf(r->wrong, sizeof r->wrong,
             "byte 0x%02x is not valid UTF-8 (%zu bytes before it are); what has another encoding is rewritten by "
             "iconv -f ENCODING -t UTF-8",
             (unsigned char)text[good], good);
    return r->wrong;
}

data_holds data_holds_of(const char *key, size_t n) {
    static const struct {
        const char *key;
        data_holds what;
    } keys[] = {{"messages", DATA_HOLDS_JSON},
                {"conversations", DATA_HOLDS_JSON},
                {"conversation", DATA_HOLDS_JSON},
                {"rejected_messages", DATA_HOLDS_JSON},
                {"history", DATA_HOLDS_JSON},
                {"tools", DATA_HOLDS_JSON},
                {"documents", DATA_HOLDS_JSON},
                {"chat_template_kwargs", DATA_HOLDS_JSON},
                {"prompt", DATA_HOLDS_EITHER},
                {"completion", DATA_HOLDS_EITHER},
                {"chosen", DATA_HOLDS_EITHER},
                {"rejected", DATA_HOLDS_EITHER},
                {"rejected_response", DATA_HOLDS_EITHER},
                {"images", DATA_HOLDS_EITHER}};
    for (size_t i = 0; i < TM_COUNT(keys); i++)
        if (n == strlen(keys[i].key) && !memcmp(key, keys[i].key, n)) return keys[i].what;
    return DATA_HOLDS_ANY;
}

tm_status tm_reader_next(tm_reader *r, tm_record *out) {
    *out = (tm_record){0};
    return data_is_enough(r) ? TM_OK : r->cutter->next(r, out);
}

const char *tm_reader_at(const tm_reader *r) {
    return r->cutter->at;
}

uint64_t tm_reader_bytes(const tm_reader *r) {
    return data_bytes_read(&r->bytes);
}

bool tm_reader_packed(const tm_reader *r) {
    return r->bytes.unpack != NULL;
}

void tm_reader_close(tm_reader *r) {
    if (!r) return;
    data_bytes_close(&r->bytes);
    tm_buf_free(&r->raw);
    tm_buf_free(&r->json);
    tm_buf_free(&r->header);
    TM_FREE_ALL(r->cell, r->key, (void *)r->meaning);
    tm_free(r);
}
