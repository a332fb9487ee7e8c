/* reader: from the bytes of a data file to records, one at a time, in bounded memory.
 *
 * A record is the JSON text of one object and the place it came from. What the file is, is told by its content and its
 * name; gzip (".gz") and Zstandard (".zst") are unpacked on the way, all members and frames one after another.
 *
 *   lines   .jsonl, .ndjson and what else begins with "{": a record a line; blank lines are none
 *   json    [{...}, ...], or {"data": [{...}, ...], ...}: an element is a record; or one object, which is the record
 *   csv     RFC 4180, a header row names the keys; ";" or a tab where the header has these and no ","; .tsv: a tab.
 *           Cells are strings. A cell of a column that takes lists (messages, conversations, tools, ...) is JSON text;
 *           one of prompt, completion, chosen or rejected is where it is a list of objects; label may be true or 1.
 *   text    .txt: {"text"} of a line (blank ones are none), of a paragraph (between blank lines), or of the whole file
 *
 * Text is UTF-8: a record that is not is wrong. A byte order mark in front is left out. What is none of these is named for what it is, with what turns it into JSONL.
 *
 * Memory: a block of 256 KiB (two, and the codec's window, where the file is packed) and the record. A packed file may
 * unpack to any length. Ownership: the source and all of `opts` are used until close. Threads: one at a time.
 *
 *     tm_reader *r;
 *     tm_record record;
 *     TM_TRY(tm_reader_open(&r, &source, &(tm_reader_opts){.form = TM_READ_AUTO}));
 *     while ((rc = tm_reader_next(r, &record)) == TM_OK && record.text)
 *         if (!record.wrong) rc = use(record.text, record.len);
 *     tm_reader_close(r);
 */
#ifndef TIDEMILL_READER_H
#define TIDEMILL_READER_H

#include "base/base.h"

/* A file of `size` bytes. read_at delivers exactly `len` bytes or fails. */
typedef struct tm_data_source {
    void *ctx;
    tm_status (*read_at)(void *ctx, uint64_t offset, void *buf, size_t len);
    uint64_t size;
    const char *name; /* for messages; not kept after open of a dataset; its ending is heard */
} tm_data_source;

/* By its first bytes: gzip or Zstandard, so that `size` says nothing about how much is in it. */
TM_MUST_USE tm_status tm_data_packed(const tm_data_source *source, bool *packed);

typedef enum tm_reader_form { TM_READ_AUTO, TM_READ_LINES, TM_READ_JSON, TM_READ_CSV, TM_READ_TEXT } tm_reader_form;
typedef enum tm_sample_by { TM_SAMPLE_BY_LINE, TM_SAMPLE_BY_PARAGRAPH, TM_SAMPLE_BY_DOCUMENT } tm_sample_by;

/* Their names of keys and ours, [n] each; keys of the record itself, not of what is in it. A key that has the name of a
 * mapped one, and is not mapped itself, is not seen. */
typedef struct tm_data_columns {
    const char *const *theirs, *const *ours;
    size_t n;
} tm_data_columns;

typedef struct tm_reader_opts {
    tm_reader_form form;            /* AUTO: told by content and name */
    tm_sample_by sample_by;         /* text */
    const tm_data_columns *columns; /* of CSV: which cells are lists; records keep their own keys; NULL: none */
    uint64_t max_record_bytes;      /* a longer one is bad, a longer document is given in parts; 0: 16 MiB */
    uint64_t most_bytes;            /* of the file: once so many were read no record begins; 0: all */
    uint64_t window_bytes;          /* most that Zstandard may take; 0: 128 MiB, which is all but zstd --long */
} tm_reader_opts;

typedef struct tm_record {
    const char *text; /* JSON, NUL-terminated, until the next call; NULL: there are no more */
    size_t len;
    uint64_t number;   /* from 1: line, element, row, paragraph */
    const char *wrong; /* why the record cannot be used; NULL: it can, as far as the file's form goes */
} tm_record;

typedef struct tm_reader tm_reader;
/* TM_EINPUT: empty of everything that can be read; the message names the file. */
TM_MUST_USE tm_status tm_reader_open(tm_reader **out, const tm_data_source *source, const tm_reader_opts *opts);
/* TM_EINPUT where nothing can be found any more (a list that is cut off, damaged gzip data), with file and place. */
TM_MUST_USE tm_status tm_reader_next(tm_reader *r, tm_record *out);
const char *tm_reader_at(const tm_reader *r); /* between file and number: ":" or ": row " */
uint64_t tm_reader_bytes(const tm_reader *r); /* of the file, read so far */
bool tm_reader_packed(const tm_reader *r);    /* what tm_data_packed said */
void tm_reader_close(tm_reader *r);           /* NULL is fine */
/* The name without ".gz" or ".zst" ends so (".csv"). */
bool tm_reader_name_ends(const char *name, const char *ending);

#endif
