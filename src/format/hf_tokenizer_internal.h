/* A tokenizer.json as far as GGUF can say it. */
#ifndef TIDEMILL_HF_TOKENIZER_INTERNAL_H
#define TIDEMILL_HF_TOKENIZER_INTERNAL_H

#include "format/gguf_internal.h"

typedef struct hf_token {
    uint64_t at; /* of its text in `text`, NUL-terminated */
    uint32_t len;
    uint8_t type; /* TM_TOKEN_*; 0: no such id */
    float score;
} hf_token;

typedef struct hf_tokenizer {
    const char *name;  /* of the file, for messages */
    tm_buf text;       /* all tokens */
    hf_token *token;   /* by id */
    uint32_t n;        /* ids 0..n-1 */
    uint32_t *by_text; /* present ids in byte order of their texts */
    uint32_t n_present;
    tm_buf merges; /* "left right", NUL-terminated each */
    uint64_t n_merges;
    bool byte_fallback, ignore_merges, nfc, replaces_spaces, add_prefix, add_bos, add_eos;
    const tm_split *split; /* NULL: SentencePiece-style */
    tm_buf unk;
} hf_tokenizer;

/* Ids at or above `n` are TM_EINPUT. */
tm_status hf_tokenizer_read(hf_tokenizer *t, const tm_buf *json, const char *name, uint32_t n);
void hf_tokenizer_free(hf_tokenizer *t);
int64_t hf_tokenizer_find(const hf_tokenizer *t, const char *text); /* id, -1 */

#endif
