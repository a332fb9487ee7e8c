/* dataset: from records (or rows of ids) to micro-batches.
 *
 * A dataset is scanned completely when it is opened: every record is read, tokenised, checked and counted, so that bad
 * data are found before step 1 and the number of samples, tokens and labels of every step is known then. Afterwards a
 * batch is a function of (step, micro_batch, rank): nothing is drawn from a running state, so a run continues anywhere.
 *
 * Memory: 4 bytes a row of many, 24 of up to 65,536, of preferences, and where only some are taken; plus the token ids:
 * up to `memory_bytes` of them stay in memory, beyond that all go through the caller's spill (a file of the run
 * directory). While records are scanned, 256 KiB of them (or a longer one alone), their JSON trees and their ids are held,
 * and what reader.h says. Nothing is allocated after tm_dataset_open*; tm_dataset_memory_bytes says what is held. This
 * folder opens no files: it reads through tm_data_files, tm_data_spill and tm_row_source. Ownership: files, tokenizer and
 * chat are used during open only (the tokenizer for the preview as well); the spill and the row source until close.
 * Threads: one thread at a time.
 *
 *     tm_dataset *ds;
 *     tm_dataset_opts o = {.seq_len = 512, .vocab_size = 49152, .tokenizer = tok, .chat = chat, .eos_id = 2,
 *                          .shuffle = true, .seed = 42};
 *     TM_TRY(tm_dataset_open_jsonl(&ds, &source, &o));                    // "train.jsonl:17: ..." or counts
 *     TM_TRY(tm_dataset_set_batches(ds, 4, 2, 1));                        // B rows, A micro-batches, R ranks
 *     steps = epochs * tm_dataset_steps_per_epoch(ds);
 *     tm_dataset_limits(ds, 0, steps, &limits);                           // reserve limits.tokens for the arrays
 *     for (s = 0; s < steps; s++)
 *         for (k = 0; k < 2; k++)
 *             TM_TRY(tm_dataset_batch(ds, s, k, 0, &(tm_batch_arrays){.capacity = limits.tokens, .ids = ids,
 *                                     .labels = labels, .key_mask = mask}, &shape));
 *
 * Batches. With B samples, A micro-batches and R ranks a step takes the next A*R*B samples of the epoch: sample b of
 * micro-batch k on rank r is sample ((s*A + k)*R + r)*B + b of the epoch's order, s counting from 0 within the epoch.
 * At the end of the epoch the step is smaller (micro-batches with fewer samples, or none), and the next epoch begins
 * with the next step. A sample is a row, or two: those of sample b of a micro-batch are rows 2b (chosen) and 2b + 1
 * (rejected). The order of an epoch is a permutation keyed by (seed, epoch); it does not depend on B, A and R. Rows
 * of ids are not shuffled.
 *
 * Labels are already shifted: row t's label is the token at t + 1 if that one is learned, else -100; the last position
 * of a row and padding have -100. Rows are padded right, with id 0 and mask 0, to the longest row of the micro-batch.
 *
 * Packing. A row is a pack: samples whole and side by side, together no longer than seq_len, none of which sees the
 * others (`begin`). B counts packs then, and the packs of an epoch take the place of its samples above. Which samples go
 * together is a function of (seed, epoch), each sample is in one pack of an epoch, and so epochs may differ by a few
 * packs, and by a step. group_by_length: samples of like length come in the same micro-batch (on all ranks), in an order
 * that depends on B and R too. Either takes about 0.3 MiB, and packing 64 bytes for 4,096 samples.
 */
#ifndef TIDEMILL_DATASET_H
#define TIDEMILL_DATASET_H

#include "data/reader.h"
#include "text/chat/chat.h"

enum { TM_LABEL_IGNORE = -100 };

/* ---- where bytes and rows come from ----------------------------------------------------------------------------- */

/* So many files, taken together. Which of their samples come, where these are fewer, or come once more, where there are
 * more, is a function of the seed. */
typedef struct tm_data_group {
    uint32_t n_files;
    uint64_t samples; /* of an epoch; 0: weight times as many as there are */
    double weight;
} tm_data_group;

/* The files of a dataset, read one after another: file i is open between the two calls. */
typedef struct tm_data_files {
    void *ctx;
    tm_status (*open)(void *ctx, uint32_t i, tm_data_source *out);
    void (*close)(void *ctx, uint32_t i);
    const tm_reader_opts *how; /* [n]; the limit of a record is the dataset's */
    uint32_t n;
    uint64_t bytes; /* of all of them */
    bool packed;    /* one of them is, by tm_data_packed */
    /* The files one after another in groups, of which an epoch has more or fewer samples than there are. */
    const tm_data_group *group; /* NULL: all are one, whose samples come once */
    uint32_t n_groups;
    const char *name; /* of the whole, for messages */
} tm_data_files;

/* Room for tokenised samples: written once, front to back without holes, then read anywhere. Both are exact or fail. */
typedef struct tm_data_spill {
    void *ctx;
    tm_status (*write_at)(void *ctx, uint64_t offset, const void *buf, size_t len);
    tm_status (*read_at)(void *ctx, uint64_t offset, void *buf, size_t len);
} tm_data_spill;

/* Rows that are tokenised already (input_ids, labels, attention_mask of a .safetensors file), all `seq` long. Labels
 * are NOT shifted here (-100: not learned). mask is 1 everywhere where the file has none. An id or label that does not
 * fit int32 must fail. A row's length is that up to its last position with mask 1 or a label; what follows is padding.
 * TM_ROWS_PAIRS: row 2i is the chosen one of sample i, 2i + 1 the rejected one. TM_ROWS_LABELLED: row 2i is sample i,
 * 2i + 1 its mismatched row. There a row's completion begins at its first label, and each row has one. */
typedef struct tm_row_source {
    void *ctx;
    tm_status (*get_row)(void *ctx, uint64_t row, int32_t *ids, int32_t *labels, uint8_t *mask);
    tm_status (*get_desirable)(void *ctx, uint64_t sample, bool *desirable); /* TM_ROWS_LABELLED */
    /* Of rows of several documents: where the document of each position begins in its row; NULL: rows are one. What is
     * no document is one too, with mask 0. A document's first token is no label. TM_ROWS_PLAIN only. */
    tm_status (*get_begin)(void *ctx, uint64_t row, uint32_t *begin);
    uint64_t n_rows;
    uint32_t seq;
    const char *name; /* for messages; kept: must outlive the dataset */
} tm_row_source;

/* ---- options ---------------------------------------------------------------------------------------------------- */

/* What a line of JSONL may be. AUTO decides line by line, by the keys, in this order:
 *   messages           {"messages": [{"role", "content", "loss"?}], "tools"?, "documents"?, "chat_template_kwargs"?}: chat
 *                      template; assistant turns are learned, and what chat.h says of them
 *   sharegpt           {"conversations": [{"from", "value"}], "system"?, "tools"?} or {"conversation": [{"human",
 *                      "assistant"}]}; "from": "function_call" has its "value" (JSON of a call, or of several) as tool_calls
 *   prompt_completion  {"prompt": "…", "completion": "…"}: concatenated without template, EOS appended, prompt masked
 *   alpaca             {"instruction", "input"?, "output", "system"?, "history"?: [[user, assistant]]}
 *   text               {"text": "…"}: the post-processor's specials, EOS if it does not end so, all learned */
typedef enum tm_data_format {
    TM_DATA_AUTO,
    TM_DATA_TEXT,
    TM_DATA_MESSAGES,
    TM_DATA_ALPACA,
    TM_DATA_PROMPT_COMPLETION,
    TM_DATA_SHAREGPT
} tm_data_format;
/* "auto", "text", "messages", "alpaca", "prompt_completion" (or "prompt-completion"), "sharegpt"; else TM_EINPUT. */
TM_MUST_USE tm_status tm_data_format_parse(const char *name, tm_data_format *out);
const char *tm_data_format_name(tm_data_format f);

/* What a sample is made of. */
typedef enum tm_rows {
    TM_ROWS_PLAIN,   /* a row */
    TM_ROWS_PAIRS,   /* a row with the chosen completion, one with the rejected */
    TM_ROWS_LABELLED /* a row with a flag, desirable or not; a pair is two such samples */
} tm_rows;

/* What happens to a sample longer than seq_len. All are counted. SPLIT: it goes on in further rows, which are samples like
 * others; of TM_ROWS_PLAIN, not of row sources. */
typedef enum tm_overlong { TM_OVERLONG_TRUNCATE, TM_OVERLONG_DROP, TM_OVERLONG_ERROR, TM_OVERLONG_SPLIT } tm_overlong;
TM_MUST_USE tm_status tm_overlong_parse(const char *name, tm_overlong *out);

/* Which end of a longer row goes, under `truncate`. A row of a prompt and a completion loses the first tokens of its prompt
 * in any case, and then the last of its completion. */
typedef enum tm_truncation { TM_TRUNCATE_RIGHT, TM_TRUNCATE_LEFT } tm_truncation;

/* What the scan has to say of a record, as it meets it. */
typedef enum tm_data_notice { TM_DATA_BAD, TM_DATA_DROPPED, TM_DATA_TRUNCATED, TM_DATA_NOTHING_LEARNED } tm_data_notice;
/* place: "train.csv: row 17"; why: "" where the notice says all. */
typedef void (*tm_data_notice_fn)(void *ctx, tm_data_notice what, const char *place, const char *why);

typedef struct tm_dataset_opts {
    tm_data_format format;
    tm_rows rows;
    bool labels_of_prompt; /* TM_ROWS_PAIRS: chosen rows have labels on prompt and completion, as ORPO's NLL wants */
    tm_truncation truncation;
    tm_overlong overlong;          /* row sources: `drop` is refused, since it would move the rows that follow */
    uint32_t seq_len;              /* 0: no limit (a sample of 2^28 tokens is an error in any case) */
    uint32_t vocab_size;           /* ids at or above are fatal: the tokenizer is not the model's; 0: not checked */
    const tm_tokenizer *tokenizer; /* records */
    const tm_chat *chat;           /* NULL: messages, alpaca and sharegpt lines are bad lines that say so */
    tm_chat_labels labels;         /* of conversations; train_on_inputs is for prompts of completions as well */
    int32_t eos_id;                /* appended to text and completions; -1: none */
    bool strict;                   /* a bad line is fatal; else it is named (the first five), counted and skipped */
    bool shuffle;
    /* Records come side by side, in the order of the files, and are cut into rows of seq_len: a row is a sample, and
     * attention goes over all of it. TM_ROWS_PLAIN, not of row sources. */
    bool concatenate;
    bool packing;         /* seq_len is needed; TM_ROWS_PLAIN, not of row sources, which have get_begin */
    bool group_by_length; /* without packing, not of row sources */
    uint64_t seed;
    double held_out;            /* below 1: a share of the samples, else so many: by the seed. 0: none */
    bool is_held_out;           /* this dataset has these; else the others */
    uint64_t memory_bytes;      /* of token ids kept in memory; 0: 8 MiB */
    const tm_data_spill *spill; /* NULL: more than memory_bytes is TM_EBUDGET */
    uint64_t max_line_bytes;    /* longer records are bad; 0: 16 MiB */
    tm_data_notice_fn notice;   /* NULL: bad records are warned of, the first five */
    void *notice_ctx;
    uint64_t most_bytes; /* of the files: the first so many, to the end of a record; 0: all */
} tm_dataset_opts;

/* ---- opening ---------------------------------------------------------------------------------------------------- */

typedef struct tm_dataset tm_dataset;
/* TM_EINPUT if no line is usable, and on bad lines under `strict`; the message names file, line and reason. */
TM_MUST_USE tm_status tm_dataset_open(tm_dataset **out, const tm_data_files *files, const tm_dataset_opts *opts);
/* Of one file whose records are lines. */
TM_MUST_USE tm_status tm_dataset_open_jsonl(tm_dataset **out, const tm_data_source *source,
                                            const tm_dataset_opts *opts);
/* Of a dataset whose rows were spilled: writes its index behind them, so that a later process can open it without its
 * files. `key`: what the data and all options are known by. */
TM_MUST_USE tm_status tm_dataset_save(const tm_dataset *ds, uint64_t key);
/* From opts->spill, which has `size` bytes; options as they were. TM_ECORRUPT: it is damaged, or another one. */
TM_MUST_USE tm_status tm_dataset_open_saved(tm_dataset **out, uint64_t size, uint64_t key, const tm_dataset_opts *opts);
TM_MUST_USE tm_status tm_dataset_open_rows(tm_dataset **out, const tm_row_source *rows, const tm_dataset_opts *opts);
void tm_dataset_close(tm_dataset *ds); /* NULL is fine */

/* Of the files: lines, bad, dropped, no_labels. Of the samples that an epoch has, each once: truncated, split, identical. */
typedef struct tm_dataset_counts {
    uint64_t lines;          /* records (lines that are not blank), or rows */
    uint64_t samples;        /* usable */
    uint64_t bad;            /* not JSON, not a known format, too long a line, ... */
    uint64_t truncated;      /* longer than seq_len, cut */
    uint64_t split;          /* longer than seq_len, cut into several samples */
    uint64_t dropped;        /* longer than seq_len under `drop` */
    uint64_t no_labels;      /* without any learned token (after truncation); dropped, but for row sources */
    uint64_t identical;      /* pairs of which chosen and rejected are the same */
    uint64_t desirable;      /* samples, of TM_ROWS_LABELLED */
    uint64_t tokens;         /* positions with mask 1 over all samples */
    uint64_t label_tokens;   /* learned, after the shift */
    uint32_t longest;        /* tokens of the longest sample */
    uint64_t first_bad_line; /* the record's number in its file; 0: none */
} tm_dataset_counts;
const tm_dataset_counts *tm_dataset_get_counts(const tm_dataset *ds);
/* Of tm_data_files with groups: which one a sample (in file order) is of. 0 groups: it is not known (samples that come more than
 * once, a dataset that was kept, row sources). */
uint32_t tm_dataset_groups(const tm_dataset *ds);
uint32_t tm_dataset_group(const tm_dataset *ds, uint64_t sample);
/* Rows in file order, all of a sample side by side, and how long one is. */
uint64_t tm_dataset_rows(const tm_dataset *ds);
uint32_t tm_dataset_row_tokens(const tm_dataset *ds, uint64_t row);
/* Of all samples in file order (ids and what is learned): equal on all ranks, and at resume. */
uint64_t tm_dataset_fingerprint(const tm_dataset *ds);
double tm_dataset_part(const tm_dataset *ds); /* of the files' bytes that was read; 1: all */
uint64_t tm_dataset_memory_bytes(const tm_dataset *ds);
double tm_dataset_index_bytes(const tm_dataset *ds); /* of a row more, where there are many */
uint64_t tm_dataset_spilled_bytes(const tm_dataset *ds);
uint64_t tm_dataset_saved_bytes(const tm_dataset *ds); /* with the index and what else tm_dataset_save writes */

/* ---- batches ---------------------------------------------------------------------------------------------------- */

/* Samples in a micro-batch (B), micro-batches in a step (A), ranks (R); all at least 1, TM_EINPUT on overflow. Before any
 * of the functions below. */
TM_MUST_USE tm_status tm_dataset_set_batches(tm_dataset *ds, uint32_t samples, uint32_t micro_batches, uint32_t ranks);
uint64_t tm_dataset_steps_per_epoch(const tm_dataset *ds); /* ceil(samples / (A*R*B)); of packs: of the first epoch */
/* Of the first `epochs` epochs, which may be fractional: rounded up. Of packs it visits every sample of each. */
uint64_t tm_dataset_steps(const tm_dataset *ds, double epochs);
bool tm_dataset_ends_epoch(const tm_dataset *ds, uint64_t steps); /* with so many steps an epoch is done */
bool tm_dataset_has_documents(const tm_dataset *ds);              /* rows are several */
/* Of rows of ids with documents: how long the one is that a token is in, as a mean over tokens; 0 of all others. */
double tm_dataset_document_tokens(const tm_dataset *ds);

typedef struct tm_batch_shape {
    uint32_t samples;      /* B'; of packs: in them */
    uint32_t rows, seq;    /* of this micro-batch; rows 0: there is nothing left for it, seq and tokens are 0 */
    uint32_t tokens;       /* T = round_up(rows * seq, 64) */
    uint64_t mask_tokens;  /* positions with mask 1 */
    uint64_t label_tokens; /* labels that are not -100 */
} tm_batch_shape;
/* From the index alone: nothing is read. `step` counts from 0 over all epochs. */
void tm_dataset_shape(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank, tm_batch_shape *out);
/* Columns of a micro-batch, the first as tm_micro_batch (model.h) wants them. All but ids and labels may be NULL: not
 * wanted. */
typedef struct tm_batch_arrays {
    uint32_t capacity; /* room in each, in tokens; those with a value a row have room for as many rows as they need */
    int32_t *ids, *labels;
    uint8_t *key_mask;
    uint8_t *completion; /* a token: 1 where the label is a token of the completion (labels_of_prompt: not all are) */
    uint8_t *desirable;  /* a row: TM_ROWS_LABELLED, else 0 */
    uint64_t *sample;    /* a row: number of its (first) sample in file order */
    uint32_t *begin;     /* a token: where its document begins in its row; padding behind the last is one too */
} tm_batch_arrays;
/* Fills the first T of each array; TM_EBUG if there is no room. */
TM_MUST_USE tm_status tm_dataset_batch(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                                       const tm_batch_arrays *to, tm_batch_shape *out);

/* Mismatched rows (TM_ROWS_LABELLED): row b is the prompt of sample b of the micro-batch with the completion of the
 * sample before it in the step, over all micro-batches and ranks; the step's first sample takes the step's last. What is
 * over seq_len is cut as in other rows. A row source brings its own. Labels are on completions; `desirable` and `sample`
 * are the prompt's. */
void tm_dataset_shape_mismatched(const tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                                 tm_batch_shape *out);
TM_MUST_USE tm_status tm_dataset_batch_mismatched(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                                                  const tm_batch_arrays *to, tm_batch_shape *out);

typedef struct tm_step_info {
    uint64_t epoch;        /* of this step, from 0 */
    uint64_t tokens;       /* positions with mask 1, over all micro-batches and ranks */
    uint64_t label_tokens; /* the divisor of the step's loss */
    uint64_t samples;
} tm_step_info;
void tm_dataset_step_info(const tm_dataset *ds, uint64_t step, tm_step_info *out);
/* The i-th sample of a step (in file order), i below tm_step_info.samples. */
uint64_t tm_dataset_step_sample(const tm_dataset *ds, uint64_t step, uint64_t i);

typedef struct tm_batch_limits {
    uint32_t rows, seq; /* largest over the micro-batches of these steps */
    uint32_t tokens;    /* largest T */
} tm_batch_limits;
/* Exact over steps [first, first + n) and all ranks. Looks through the index once, some nanoseconds a row. */
void tm_dataset_limits(const tm_dataset *ds, uint64_t first, uint64_t n, tm_batch_limits *out);
void tm_dataset_limits_mismatched(const tm_dataset *ds, uint64_t first, uint64_t n, tm_batch_limits *out);
/* The sample (in file order) at place `index` of the order of `epoch`. A permutation of [0, samples). */
uint64_t tm_dataset_order(const tm_dataset *ds, uint64_t epoch, uint64_t index);

/* ---- preview ---------------------------------------------------------------------------------------------------- */

/* Appends a readable picture of sample `sample` (file order) to `out`: its text, with what is not learned dimmed
 * (`color`) or between ⟦ and ⟧. Control characters are escaped. `tokenizer` may be NULL for row sources: ids are shown
 * then. */
TM_MUST_USE tm_status tm_dataset_preview(tm_dataset *ds, uint64_t sample, const tm_tokenizer *tokenizer, bool color,
                                         tm_buf *out);

#endif
