/* Inside the dataset: sample store, encoder of one record. */
#ifndef TIDEMILL_DATASET_INTERNAL_H
#define TIDEMILL_DATASET_INTERNAL_H

#include "text/chat/chat.h"
#include "data/dataset.h"
#include "text/tokenizer/tokenizer.h"

/* ---- dataset_store.c: index and token ids ----------------------------------------------------------------------- */

/* One row. Records: at `place` lie n_tokens ids (of 2 bytes where the vocabulary allows), then, from a multiple of 4 on, a
 * bit per token and a hash of all of it. A bit is set where it is the completion's (of plain rows: learned). Row sources:
 * `place` is the number of positions with mask 1. */
typedef struct data_row {
    uint64_t place;
    uint32_t n_tokens;
    uint32_t n_labels;  /* learned tokens other than the first, which nothing predicts */
    uint32_t prompt;    /* tokens before the completion; plain rows: 0 */
    uint16_t desirable; /* of labelled rows: 1 or 0 */
    uint16_t
        second; /* 1: of the record that the row before is of, too; both are samples, which a split does not part */
} data_row;

enum { DATA_BLOCK_ROWS = 1 << 16 }; /* the index grows by blocks, so that growing never copies */

/* Rows that follow each other in the stream, none of them a preference row: four bytes each instead of 24. */
enum { DATA_RUN = 64, DATA_BLOCK_RUNS = DATA_BLOCK_ROWS / DATA_RUN };
typedef struct data_run {
    uint64_t place; /* of the first */
    uint16_t n_tokens[DATA_RUN], n_labels[DATA_RUN];
} data_run;
/* A block that is full becomes runs if it can. */
typedef struct data_block {
    data_row *row; /* NULL: in runs */
    data_run *run;
} data_block;
enum { DATA_SHOWN = 16 };
typedef struct data_shown { /* rows of runs, as they are asked for */
    data_row row[DATA_SHOWN];
    unsigned next;
} data_shown;

typedef struct data_store {
    data_block *block;
    data_shown *shown;
    size_t n_blocks, cap_blocks;
    uint64_t n_rows, most_rows, index_bytes;
    char *pool; /* bytes [base, base + used) of the stream; the whole stream while it fits */
    uint64_t base, used, room;
    uint64_t memory_bytes;
    uint32_t id_bytes; /* 2 or 4 */
    tm_buf packed;     /* a row as it is stored */
    const tm_data_spill *spill;
    tm_data_spill spill_copy;
} data_store;
/* most_rows: there are never more; a small file then has a small index. */
void data_store_init(data_store *s, uint64_t most_rows, uint64_t memory_bytes, uint32_t vocab_size,
                     const tm_data_spill *spill);
const data_row *data_store_unrun(const data_store *s, uint64_t i);
/* Until DATA_SHOWN more were asked for. */
static inline const data_row *data_store_get(const data_store *s, uint64_t i) {
    const data_block *b = &s->block[i / DATA_BLOCK_ROWS];
    return b->row ? &b->row[i % DATA_BLOCK_ROWS] : data_store_unrun(s, i);
}
/* Tokens and labels of a row, and of the row source its place: what the shape of a micro-batch is made of. */
static inline data_row data_store_size(const data_store *s, uint64_t i) {
    const data_block *b = &s->block[i / DATA_BLOCK_ROWS];
    size_t at = i % DATA_BLOCK_ROWS;
    if (b->row) return b->row[at];
    const data_run *r = &b->run[at / DATA_RUN];
    return (data_row){.n_tokens = r->n_tokens[at % DATA_RUN], .n_labels = r->n_labels[at % DATA_RUN]};
}
tm_status data_store_expand(data_store *s); /* no runs, so that any row can be set */
static inline data_row *data_store_at(data_store *s, uint64_t i) {
    return &s->block[i / DATA_BLOCK_ROWS].row[i % DATA_BLOCK_ROWS];
}
tm_status data_store_add(data_store *s, data_row row);
/* So many rows, at most DATA_BLOCK_ROWS, to be set before the next call; the blocks before are whole. runs: as runs, of a
 * whole block. */
tm_status data_store_add_block(data_store *s, uint64_t n, bool runs);
void data_store_truncate(data_store *s, uint64_t n_rows);
/* Appends a row's ids and bits to the stream; *place is where they lie. */
tm_status data_store_append(data_store *s, const int32_t *ids, uint32_t n, const tm_buf *bits, uint64_t *place);
tm_status data_store_seal(data_store *s); /* no more appends; gives back what is not needed */
/* Of n tokens, into `buf` of data_scratch_bytes(n): ids, and where the bits are. TM_ECORRUPT: not what was stored. */
tm_status data_store_read(const data_store *s, uint64_t place, uint32_t n, char *buf, const uint8_t **bits);
uint64_t data_store_bytes(const data_store *s);
void data_store_free(data_store *s);
static inline size_t data_mask_bytes(uint32_t n_tokens) {
    return ((size_t)n_tokens + 31) / 32 * 4;
}
static inline uint64_t data_row_bytes(uint32_t id_bytes, uint32_t n_tokens) {
    return ((uint64_t)n_tokens * id_bytes + 3) / 4 * 4 + data_mask_bytes(n_tokens) + sizeof(uint32_t);
}
static inline uint64_t data_scratch_bytes(uint32_t n_tokens) { /* ids as they are used, and a row as it is stored */
    return (uint64_t)n_tokens * sizeof(int32_t) + data_row_bytes(sizeof(int32_t), n_tokens);
}
static inline bool data_mask_get(const uint8_t *mask, uint32_t i) {
    return mask[i / 8] >> (i % 8) & 1;
}

/* ---- dataset_prefer_read.c: preference lines as a prompt and one or two answers ---------------------------------- */

enum { DATA_PROMPT, DATA_CHOSEN, DATA_REJECTED };
typedef struct data_prefer {
    bool chat;      /* parts are messages, JSON with commas between; else text */
    tm_buf part[3]; /* by the names above; a labelled row's answer is DATA_CHOSEN */
    tm_buf beside;  /* of a conversation: members after its messages, each with a comma before it */
    unsigned n_answers;
    bool desirable[2];
} data_prefer;
tm_status data_prefer_read(data_prefer *p, const tm_json *line, tm_rows rows);
void data_prefer_free(data_prefer *p);

/* ---- dataset_encode.c: one line to ids and learned flags -------------------------------------------------------- */

/* A row: its tokens, those before the completion. */
typedef struct data_answer {
    size_t n, prompt;
    bool desirable;
} data_answer;

typedef struct data_encoder {
    const tm_dataset_opts *opts;
    const tm_data_columns *columns; /* of the file; NULL: none */
    tm_ids ids;                     /* results: ids, and one byte per id, 1 where it is learned */
    tm_buf learn;
    tm_buf text, json, spans;
    data_prefer prefer; /* preference lines: their rows' ids follow each other, `learn` is not set */
    data_answer answer[2];
    tm_ids prompt;
} data_encoder;
/* TM_EINPUT and TM_EUNSUPPORTED: the line is bad; the error record says why, without file and line number. */
tm_status data_encode(data_encoder *e, const char *line, size_t len);
void data_encoder_free(data_encoder *e);
/* dataset_ahead.c: some records, encoded by all threads. */
enum { DATA_AHEAD = 128 };
typedef struct data_slot {
    data_encoder encoder;
    size_t at, len; /* of its text in that of all */
    uint64_t number;
    tm_status rc;
    char *why; /* where it is not TM_OK */
} data_slot;
typedef struct data_ahead {
    data_slot *slot; /* [DATA_AHEAD] */
    uint32_t n;
    tm_buf text;
} data_ahead;
tm_status data_ahead_open(data_ahead *a, const tm_dataset_opts *opts);
/* The next records in place of those before; a->n 0: there are none. After a failure those that were read are there. */
tm_status data_ahead_read(data_ahead *a, tm_reader *reader, const tm_data_columns *columns);
void data_ahead_encode(data_ahead *a);
tm_status data_slot_result(const data_slot *s); /* of data_encode, on this thread */
void data_ahead_close(data_ahead *a);

/* dataset_messages.c: the alpaca and sharegpt forms as a conversation in `out`. */
tm_status data_alpaca_messages(const tm_json *line, tm_buf *out);
tm_status data_sharegpt_messages(const tm_json *line, tm_buf *out);
/* A message, or a turn {"from", "value"} as one. */
tm_status data_plain_messages(const tm_json *line, tm_buf *out); /* a conversation with foreign messages, as usual */
/* Messages of from and value, of human or gpt, or with null for content. */
bool data_said_by(const tm_json *message, const char *author); /* "assistant", ..: by any of its names */
bool data_messages_foreign(const tm_json *messages);
tm_status data_put_message(tm_json_writer *w, const tm_json *message);
/* The alpaca columns without the answer: messages with commas between, after what is in `out`. */
tm_status data_alpaca_prompt(const tm_json *line, tm_buf *out);

/* ---- the dataset ------------------------------------------------------------------------------------------------ */

typedef struct data_packer data_packer;
struct tm_dataset {
    data_store store;
    tm_dataset_counts counts;
    uint64_t fingerprint;
    double part;         /* of the files that was read */
    uint64_t *group_end; /* [n_groups] samples up to the end of each */
    uint32_t n_groups;   /* 0: not known */
    tm_rows kind;
    tm_truncation truncation;
    bool is_rows, shuffle, labels_of_prompt;
    uint32_t seq_len;
    uint64_t n_samples;
    uint32_t
        rows_each; /* of a sample, in the index: 2 are chosen and rejected, or a row of a file and its mismatched one */
    uint64_t seed, order_key;
    tm_row_source rows;
    double document_tokens, document_pairs; /* of its documents: sums of their lengths, and of the squares */
    uint32_t batch, n_micro_batches, n_ranks;
    uint64_t per_step; /* product of the three */
    char *scratch;     /* one row as stored, or one of the row source: ids, labels, mask */
    uint64_t scratch_bytes;
    unsigned half_bits;  /* of the Feistel network: its domain is 2^(2*half_bits) >= samples */
    data_packer *packer; /* NULL: a row is of a sample, whatever its length */
    bool packs;          /* several of them */
};
/* In a micro-batch. */
static inline uint32_t data_roles(const tm_dataset *ds) {
    return ds->kind == TM_ROWS_PAIRS ? 2 : 1;
}
/* Of all its rows. */
static inline uint32_t data_sample_tokens(const tm_dataset *ds, uint64_t sample) {
    uint32_t n = 0;
    for (uint32_t role = 0; role < data_roles(ds); role++)
        n += data_store_size(&ds->store, sample * ds->rows_each + role).n_tokens;
    return n;
}
/* Row i, in scratch until the next call. ids [n_tokens]; learn: bits (JSONL only); labels, mask: row sources only. */
typedef struct data_view {
    const data_row *row;
    const int32_t *ids;
    const uint8_t *learn;
    const int32_t *labels;
    const uint8_t *mask;
    const uint32_t *begin; /* row sources of several documents */
    bool whole;            /* prompts have labels, too */
} data_view;
tm_status data_view_read(tm_dataset *ds, uint64_t i, data_view *out);
/* A row of the row source, as it is: `row` is not set. */
tm_status data_rows_get(tm_dataset *ds, uint64_t row, data_view *out);
void data_view_skip(data_view *v, uint32_t n); /* leaves out n positions of a row of the row source */
/* Is token t one of the completion (of plain rows: learned)? */
bool data_view_is_completion(const data_view *v, uint32_t t);
/* Token t if it is learned, else -100; not shifted. */
int32_t data_view_label(const data_view *v, uint32_t t);

/* ---- dataset_order.c -------------------------------------------------------------------------------------------- */

void data_order_init(tm_dataset *ds);                                            /* once the number of rows is known */
uint64_t data_order_drawn(const tm_dataset *ds, uint64_t epoch, uint64_t index); /* before it goes by length */
/* Places [result, *end) of the epoch's order, not of packs, one of which is the sample's: samples that go by length are
 * in the window of their place, somewhere. */
uint64_t data_places_of(const tm_dataset *ds, uint64_t epoch, uint64_t sample, uint64_t *end);
/* Where x of [0, n) stands in the permutation (key, epoch); half_bits: data_half_bits(n). */
uint64_t data_permuted(uint64_t key, unsigned half_bits, uint64_t n, uint64_t epoch, uint64_t x);
unsigned data_half_bits(uint64_t n);
/* Places [first, first + n) of the epoch's order (packs: its rows) make this micro-batch. */
typedef struct data_rows_of {
    uint64_t epoch, first;
    uint32_t n;
} data_rows_of;
data_rows_of data_batch_rows(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank);
/* The samples of a row of packs, until the next call; of other rows *one, which becomes their sample. */
const uint64_t *data_row_samples(const tm_dataset *ds, uint64_t epoch, uint64_t row, uint64_t *one, uint32_t *n);
/* Index row of `role` of the sample at a place of the epoch's order. */
uint64_t data_row_at(const tm_dataset *ds, uint64_t epoch, uint64_t place, uint32_t role);

/* ---- dataset_scan.c ---------------------------------------------------------------------------------------------- */

/* What was counted of a sample's record, up to 3: where an epoch has some of the samples, that of those counts. The first of a record
 * has it. A byte a sample, for there may be many millions. */
typedef struct data_mark {
    uint8_t truncated : 2, split : 2, identical : 2;
} data_mark;
typedef struct data_marks {
    data_mark *of; /* [n] by sample; later ones have none */
    size_t n, cap;
    bool wanted;
} data_marks;

typedef struct data_scan {
    tm_dataset *ds;
    const tm_dataset_opts *opts;
    const char *name, *at; /* "FILE:17" or "FILE: row 17"; name: of the dataset between its files */
    tm_phase phase;
    uint64_t bytes_before; /* of the files, read before this one */
    uint64_t *end;         /* [groups] samples up to the end of each */
    data_ahead ahead;
    data_encoder *encoder; /* of the record that is taken */
    tm_buf bits;
    tm_ids text; /* concatenated, which is no row yet, and what of it is learned */
    tm_buf text_learn;
    char first_reason[400], first_place[300];
    data_marks marks;
} data_scan;
/* A sample of n tokens: counted where it is over seq_len; false: drop it. */
tm_status data_fit(data_scan *s, uint64_t number, size_t n, bool *keep);
tm_status data_rows_cannot_drop(const data_scan *s, uint64_t row);
tm_status data_check_ids(const data_scan *s, uint64_t number, const int32_t *ids, size_t n);
tm_status data_check_labels(const data_scan *s, uint64_t row, const int32_t *labels, size_t n);
/* Up to the last position that is attended to or learned; at least 1. */
size_t data_row_length(const data_view *v, size_t seq);
tm_status data_pack_bits(tm_buf *bits, const char *learn, uint32_t n);
void data_count_row(tm_dataset *ds, uint64_t mask_tokens, const data_row *row);

/* ---- pack.c ------------------------------------------------------------------------------------------------------ */

/* Sets ds->packer. room: tokens of a row of several samples; 0: samples by length. */
tm_status data_packer_open(tm_dataset *ds, uint32_t room);
void data_packer_close(data_packer *p); /* NULL is fine */
uint64_t data_packer_bytes(const data_packer *p);
void data_packer_restart(data_packer *p);            /* batch sizes are others */
uint64_t data_packs(data_packer *p, uint64_t epoch); /* rows of an epoch */
const uint64_t *data_pack_samples(data_packer *p, uint64_t epoch, uint64_t row, uint32_t *n);
uint64_t data_by_length(data_packer *p, uint64_t epoch, uint64_t place);
uint64_t data_window_of(const data_packer *p, uint64_t place, uint64_t *end); /* by length: its first place */
typedef struct data_epoch {
    uint64_t number, first_step, rows;
} data_epoch;
data_epoch data_packed_epoch(data_packer *p, uint64_t step); /* that the step is in */
uint64_t data_packed_steps(data_packer *p, double epochs);

/* ---- dataset_cache.c: a dataset that an earlier process scanned ----------------------------------------------------- */

/* Fills index, counts and fingerprint from the spill, which has `size` bytes. TM_ECORRUPT: it is not that dataset. */
tm_status data_cache_read(tm_dataset *ds, uint64_t size, uint64_t key);

/* ---- dataset_select.c: which samples an epoch has ------------------------------------------------------------------ */

/* end: [n_groups] samples that were scanned up to the end of each group. Counts are those of what is left. */
bool data_selects(const tm_data_files *files,
                  const tm_dataset_opts *opts); /* not all samples, or some more than once */
tm_status data_select(data_scan *s, const tm_data_files *files);

/* ---- dataset_prefer.c: rows of a prompt and a completion --------------------------------------------------------- */

tm_status data_prefer_check(const tm_dataset_opts *opts); /* do they go together? */
tm_status data_prefer_encode(data_encoder *e, const tm_json *line);
tm_status data_prefer_store(data_scan *s, uint64_t number); /* what was encoded last */
tm_status data_prefer_rows(data_scan *s, uint64_t row);     /* a sample's rows: this one and the next */

/* What is left of a prompt and a completion: the prompt loses its first tokens but one, then the completion its last. */
typedef struct data_cut {
    uint32_t prompt, completion;
} data_cut;
data_cut data_cut_row(uint32_t prompt, uint32_t completion, uint32_t seq_len);
/* The rows whose prompt and whose completion make the mismatched row of a place. */
typedef struct data_mismatch {
    const data_row *prompt, *completion;
    uint64_t prompt_row, completion_row;
    data_cut cut;
} data_mismatch;
data_mismatch data_mismatched(const tm_dataset *ds, data_rows_of at, uint32_t b);

#endif
