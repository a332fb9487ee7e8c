/* token_rows: a .safetensors file of token ids as the rows of a dataset. */
#ifndef TIDEMILL_TOKEN_ROWS_INTERNAL_H
#define TIDEMILL_TOKEN_ROWS_INTERNAL_H

#include "data/dataset.h"
#include "format/format.h"

/* A tensor in a file of token rows that nothing reads (say, position_ids) is refused by name: left out in silence it
 * could change what is computed. */
TM_MUST_USE tm_status rows_known_only(const tm_st *st, const char *path);
/* Where the document of each position begins, by a row of segment_ids: a run of one number is a document, numbers rise
 * along the row, and 0 is padding. `path` and `row` for the message, TM_EINPUT. */
TM_MUST_USE tm_status rows_begin(const char *path, uint64_t row, const int64_t *segment, uint64_t seq, uint32_t *begin);

/* input_ids, labels and, where they are there, attention_mask and segment_ids [rows, positions], any integers. Of
 * TM_ROWS_PAIRS chosen_ and
 * rejected_ before each name; of TM_ROWS_LABELLED kl_ before those of the mismatched rows, and desirable [rows]. Rows of
 * one kind may be longer than those of the other. */
typedef struct token_rows token_rows;
/* Of a file's first `most_bytes` (0: all). *source reads through it, and *part says how much of the file that is. */
TM_MUST_USE tm_status token_rows_open(token_rows **out, const char *path, tm_rows kind, uint64_t most_bytes,
                                      tm_row_source *source, double *part);
void token_rows_close(token_rows *t); /* NULL is fine */

#endif
