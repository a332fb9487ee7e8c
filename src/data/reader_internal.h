/* Inside the reader: bytes of a file, unpacked; a cutter of records for each form. */
#ifndef TIDEMILL_READER_INTERNAL_H
#define TIDEMILL_READER_INTERNAL_H

#include "data/reader.h"

/* ---- reader_unpack.c: gzip and Zstandard ------------------------------------------------------------------------ */

typedef enum data_packing { DATA_PLAIN, DATA_GZIP, DATA_ZSTD } data_packing;
typedef struct data_unpack data_unpack;
/* By the first bytes of a file. */
data_packing data_packing_of(const uint8_t *head, size_t n);
/* TM_EUNSUPPORTED in a build without that library. */
tm_status data_unpack_open(data_unpack **out, data_packing packing, const char *name, uint64_t window_bytes);
/* Takes from `in` and makes up to `cap` bytes; with neither in *used nor in *made the file is damaged. */
tm_status data_unpack_run(data_unpack *u, const uint8_t *in, size_t n, size_t *used, void *out, size_t cap,
                          size_t *made);
bool data_unpack_inside(const data_unpack *u); /* a member or frame has begun and not ended */
void data_unpack_close(data_unpack *u);

/* ---- reader_bytes.c: what is in the file, unpacked --------------------------------------------------------------- */

typedef struct data_bytes {
    const tm_data_source *source;
    uint64_t offset;      /* of the file's next byte to read */
    char *block;          /* unpacked and not handed out: block[at, end) */
    size_t at, end, room; /* room: of the block */
    bool ended;           /* what is in the block is the last */
    data_unpack *unpack;  /* NULL: the file is plain */
    uint8_t *packed;      /* of a packed file: read and not unpacked: packed[packed_at, packed_end) */
    size_t packed_at, packed_end;
} data_bytes;
/* Reads as much as the block holds, or the file has. */
tm_status data_bytes_open(data_bytes *b, const tm_data_source *source, uint64_t window_bytes);
/* Once the block is used up; b->at == b->end after it: there is nothing more. */
tm_status data_bytes_more(data_bytes *b);
uint64_t data_bytes_read(const data_bytes *b); /* of the file */
void data_bytes_close(data_bytes *b);
/* The next byte, not taken; -1: the end. */
static inline tm_status data_bytes_peek(data_bytes *b, int *c) {
    if (b->at == b->end) TM_TRY(data_bytes_more(b));
    *c = b->at < b->end ? (unsigned char)b->block[b->at] : -1;
    return TM_OK;
}

/* ---- reader_what.c: what cannot be read, by its first bytes ------------------------------------------------------ */

/* TM_EINPUT with its name, and what makes JSONL of it; TM_OK: it may be text. */
tm_status data_refuse(const char *name, const char *head, size_t n);

/* ---- cutters ------------------------------------------------------------------------------------------------------ */

typedef struct data_cutter {
    const char *at;
    tm_status (*open)(tm_reader *r); /* NULL: nothing to do */
    tm_status (*next)(tm_reader *r, tm_record *out);
} data_cutter;
extern const data_cutter data_cut_lines, data_cut_text, data_cut_list, data_cut_member, data_cut_whole, data_cut_csv;
/* Which of the JSON cutters the file needs. */
tm_status data_json_cutter(tm_reader *r, const data_cutter **out);

enum { DATA_MOST_COLUMNS = 1024 };
struct tm_reader {
    data_bytes bytes;
    const char *name;
    tm_reader_opts opts;
    uint64_t max_record;
    const data_cutter *cutter;
    tm_buf raw;      /* a line, cells or a document as it stands in the file */
    tm_buf json;     /* the record where it is not the raw text */
    uint64_t number; /* of the current record */
    char wrong[300];
    /* csv */
    char delimiter;
    tm_buf header;               /* keys, each ended by a NUL; of text: the paragraph */
    uint32_t n_columns, n_cells; /* of the header; of the row */
    uint32_t *key, *cell;        /* [DATA_MOST_COLUMNS + 1] where each begins, in header and raw */
    const char **meaning;        /* [n_columns] our names of the keys */
    bool is_over;                /* no more records, whatever follows */
    bool cut;                    /* a document goes on where the last record ended */
};
/* One line without its end ("\n" or "\r\n") into raw; *got false: the end. *cut: longer than max_record, the rest was
 * skipped. */
tm_status data_line_next(tm_reader *r, bool *got, bool *cut);
bool data_is_enough(const tm_reader *r); /* opts.most_bytes were read */
/* What the value of a record's key is, by our name of it: a list or an object; text, or a list of objects. */
typedef enum data_holds { DATA_HOLDS_ANY, DATA_HOLDS_JSON, DATA_HOLDS_EITHER } data_holds;
data_holds data_holds_of(const char *key, size_t n);
/* The reason, in r->wrong; not_utf8: NULL where it is. */
const char *data_too_long(tm_reader *r);
const char *data_not_utf8(tm_reader *r, const char *text, size_t n);
static inline bool data_is_blank(const char *text, size_t n) {
    while (n && (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n')) text++, n--;
    return n == 0;
}

#endif
