/* tokenizer: text to ids and back, as the `tokenizer.json` of Hugging Face's tokenizers library (0.23) says.
 *
 * What is understood: BPE models (byte-level, and SentencePiece-like with byte fallback), added tokens with all their
 * flags, the normalizers, pre-tokenizers, post-processors and decoders listed in README.md. Anything else is refused
 * with TM_EUNSUPPORTED when the file is opened, never half-done later.
 *
 * Opens no files: the caller hands in a tm_read_fn. Memory is about 25 bytes and the token's text per vocabulary entry
 * plus 20 bytes per merge; encoding needs about 30 bytes per byte of text while it runs.
 *
 * Threads: a tokenizer does not change after it was opened, so any number of threads may use one.
 *
 *     tm_tokenizer *t;
 *     TM_TRY(tm_tokenizer_open(&t, tm_mem_source_read, &source, "model/tokenizer.json"));
 *     tm_ids ids = {0};
 *     rc = tm_tokenizer_encode(t, text, strlen(text), true, &ids);       // with BOS where the file's template says so
 *     // ids.id[0] to ids.id[ids.n - 1]
 *     tm_ids_free(&ids);
 *     tm_tokenizer_close(t);
 */
#ifndef TIDEMILL_TOKENIZER_H
#define TIDEMILL_TOKENIZER_H

#include "base/base.h"

typedef struct tm_tokenizer tm_tokenizer;

/* Ids with a growing end. Zero it to start. */
typedef struct tm_ids {
    int32_t *id;
    size_t n, cap;
} tm_ids;
tm_status tm_ids_push(tm_ids *ids, int32_t id) TM_MUST_USE;
void tm_ids_free(tm_ids *ids);

/* Where a token came from: bytes [begin, end) of the text that was encoded. Whole characters: the tokens of a character
 * that was split into bytes all name it, and a prefixed space names the character it was put before. Tokens that were
 * added (BOS) are empty ranges. */
typedef struct tm_token_span {
    uint32_t begin, end;
} tm_token_span;

/* Reads a tokenizer.json (streamed, bounded memory). `name` is for messages. TM_EINPUT: broken; TM_EUNSUPPORTED: well
 * formed, but of another kind. */
tm_status tm_tokenizer_open(tm_tokenizer **out, tm_read_fn read, void *ctx, const char *name) TM_MUST_USE;
void tm_tokenizer_close(tm_tokenizer *t); /* NULL is fine */

/* Appends the ids of `text` (valid UTF-8, at most 1 GiB; TM_EINPUT otherwise). `add_special` adds what the
 * post-processor's template adds. */
tm_status tm_tokenizer_encode(const tm_tokenizer *t, const char *text, size_t len, bool add_special,
                              tm_ids *out) TM_MUST_USE;
/* The same, and appends to `spans` one tm_token_span per id. */
tm_status tm_tokenizer_encode_offsets(const tm_tokenizer *t, const char *text, size_t len, bool add_special,
                                      tm_ids *out, tm_buf *spans) TM_MUST_USE;

/* Appends the text of `ids`. Ids that do not exist are left out, and with `skip_special` special tokens as well. Bytes
 * that are no UTF-8 come out as U+FFFD. */
tm_status tm_tokenizer_decode(const tm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              tm_buf *out) TM_MUST_USE;

/* Appends the bytes that a token stands for inside a text: those of all tokens of a text are that text's, but for what a
 * decoder takes off its ends. They need not be whole characters. An id that does not exist has none. */
tm_status tm_tokenizer_token_bytes(const tm_tokenizer *t, int32_t id, tm_buf *out) TM_MUST_USE;

/* The id of a token's content as it is in the vocabulary ("<|im_end|>", "\u0120the"); -1: there is none. */
int32_t tm_tokenizer_token_id(const tm_tokenizer *t, const char *token);
/* One more than the largest id. */
uint32_t tm_tokenizer_vocab_size(const tm_tokenizer *t);
bool tm_tokenizer_is_special(const tm_tokenizer *t, int32_t id);
/* If an added token of the vocabulary begins at text[0], its length in bytes and its id (the longest wins); else 0. */
size_t tm_tokenizer_match_added(const tm_tokenizer *t, const char *text, size_t len, int32_t *id);

#endif
