/* Inside the dataset: line reader, sample store, encoder of one line. */
#ifndef TIDEMILL_DATASET_INTERNAL_H
#define TIDEMILL_DATASET_INTERNAL_H

#include "text/chat/chat.h"
#include "data/dataset.h"
#include "text/tokenizer/tokenizer.h"

/* ---- jsonl.c: lines of a source, one at a time, in bounded memory ----------------------------------------------- */

typedef struct data_lines {
    const tm_data_source *source;
    uint64_t offset; /* of the next byte to read */
    char *block;     /* what was read and not handed out: block[at, end) */
    size_t at, end;
    tm_buf line;
    uint64_t max_line;
    uint64_t number; /* of the current line, from 1 */
} data_lines;
tm_status data_lines_open(data_lines *l, const tm_data_source *source, uint64_t max_line);
/* The next line without its end ("\n" or "\r\n"); *too_long: cut at max_line, the rest was skipped. *got false: the
 * end. */
tm_status data_lines_next(data_lines *l, bool *got, bool *too_long);
void data_lines_close(data_lines *l);

/* ---- dataset_store.c: index and token ids ----------------------------------------------------------------------- */

/* One sample. JSONL: at `place` lie n_tokens ids and then a bit per token, set where it is learned; rows: `place` is
 * the number of positions with mask 1. */
typedef struct data_sample {
    uint64_t place;
    uint32_t n_tokens;
    uint32_t n_labels; /* learned tokens other than the first, which nothing predicts */
} data_sample;

enum { DATA_BLOCK_SAMPLES = 1 << 16 }; /* the index grows by blocks, so that growing never copies: 1 MiB each */

typedef struct data_store {
    data_sample **block;
    size_t n_blocks, cap_blocks;
    uint64_t n_samples, most_samples, index_bytes;
    char *pool; /* bytes [base, base + used) of the stream; the whole stream while it fits */
    uint64_t base, used, room;
    uint64_t memory_bytes;
    const tm_data_spill *spill;
    tm_data_spill spill_copy;
} data_store;
/* most_samples: there are never more; a small file then has a small index. */
void data_store_init(data_store *s, uint64_t most_samples, uint64_t memory_bytes, const tm_data_spill *spill);
static inline const data_sample *data_store_get(const data_store *s, uint64_t i) {
    return &s->block[i / DATA_BLOCK_SAMPLES][i % DATA_BLOCK_SAMPLES];
}
tm_status data_store_add(data_store *s, data_sample sample);
/* Appends bytes to the stream; *place is where they lie. */
tm_status data_store_append(data_store *s, const void *bytes, size_t n, uint64_t *place);
tm_status data_store_seal(data_store *s); /* no more appends; gives back what is not needed */
tm_status data_store_read(const data_store *s, uint64_t place, void *buf, size_t n);
uint64_t data_store_bytes(const data_store *s);
void data_store_free(data_store *s);
static inline size_t data_mask_bytes(uint32_t n_tokens) {
    return ((size_t)n_tokens + 31) / 32 * 4;
}
static inline bool data_mask_get(const uint8_t *mask, uint32_t i) {
    return mask[i / 8] >> (i % 8) & 1;
}

/* ---- dataset_encode.c: one line to ids and learned flags -------------------------------------------------------- */

typedef struct data_encoder {
    const tm_dataset_opts *opts;
    tm_ids ids; /* results: ids, and one byte per id, 1 where it is learned */
    tm_buf learn;
    tm_buf text, json, spans;
} data_encoder;
/* TM_EINPUT and TM_EUNSUPPORTED: the line is bad; the error record says why, without file and line number. */
tm_status data_encode(data_encoder *e, const char *line, size_t len);
void data_encoder_free(data_encoder *e);
/* dataset_messages.c: the alpaca and sharegpt forms as a conversation in `out`. */
tm_status data_alpaca_messages(const tm_json *line, tm_buf *out);
tm_status data_sharegpt_messages(const tm_json *line, tm_buf *out);

/* ---- the dataset ------------------------------------------------------------------------------------------------ */

struct tm_dataset {
    data_store store;
    tm_dataset_counts counts;
    uint64_t fingerprint;
    bool is_rows, shuffle;
    uint64_t seed, order_key;
    tm_row_source rows;
    uint32_t n_rows, n_micro_batches, n_ranks;
    uint64_t per_step; /* product of the three */
    char *scratch;     /* one sample as stored, or one row: ids, labels, mask */
    uint64_t scratch_bytes;
    unsigned half_bits; /* of the Feistel network: its domain is 2^(2*half_bits) >= samples */
};
/* Sample i, in scratch until the next call. ids [n_tokens]; learn: bits (JSONL only); labels, mask: rows only. */
typedef struct data_view {
    const data_sample *sample;
    const int32_t *ids;
    const uint8_t *learn;
    const int32_t *labels;
    const uint8_t *mask;
} data_view;
tm_status data_view_read(tm_dataset *ds, uint64_t i, data_view *out);
/* A row of the row source, as it is: `sample` is not set. */
tm_status data_rows_get(tm_dataset *ds, uint64_t row, data_view *out);
/* Token t if it is learned, else -100; not shifted. */
int32_t data_view_label(const data_view *v, uint32_t t);

/* ---- dataset_order.c -------------------------------------------------------------------------------------------- */

void data_order_init(tm_dataset *ds); /* once the number of samples is known */
/* Places [first, first + n) of the epoch's order make this micro-batch. */
typedef struct data_rows_of {
    uint64_t epoch, first;
    uint32_t n;
} data_rows_of;
data_rows_of data_batch_rows(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank);

#endif
