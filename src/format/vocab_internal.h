/* A GGUF file's vocabulary, between gguf_tokenizer.c and spm_merges.c. */
#ifndef TIDEMILL_VOCAB_INTERNAL_H
#define TIDEMILL_VOCAB_INTERNAL_H

#include "format/gguf_internal.h"

typedef struct tm_vocabulary {
    const tm_gguf *gguf;
    const tm_gguf_kv *tokens, *types, *scores, *merges; /* all but tokens may be NULL */
    bool spm;                                           /* SentencePiece-style, else byte-level */
    const tm_split *split;                              /* byte-level only */
    bool add_prefix, add_bos, add_eos;
} tm_vocabulary;

/* *found: false if the file has no vocabulary. */
tm_status tm_vocabulary_open(tm_vocabulary *v, const tm_gguf *g, bool *found);
void tm_put_merge(tm_json_writer *j, const char *left, size_t left_len, const char *right, size_t right_len);
/* The merges of a SentencePiece vocabulary, from its scores. */
tm_status tm_put_spm_merges(const tm_vocabulary *v, tm_json_writer *j);

#endif
