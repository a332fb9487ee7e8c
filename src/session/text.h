/* text: the tokenizer and chat template of a model folder, opened together. */
#ifndef TIDEMILL_SESSION_TEXT_H
#define TIDEMILL_SESSION_TEXT_H

#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"
#include "format/format.h"

typedef struct text_tools {
    tm_tokenizer *tokenizer; /* NULL where the model has no tokenizer.json */
    tm_chat *chat;           /* NULL where there is no chat template */
    int32_t eos[16];         /* generation_config.json and config.json together */
    uint32_t n_eos;
    int32_t end;    /* what text ends with in training: eos_token of tokenizer_config.json, else eos[0]; -1: nothing */
    uint64_t bytes; /* of memory that all this holds, about */
    uint64_t hash;  /* of tokenizer and template, as far as they are there */
} text_tools;
/* A model without a tokenizer is fine here; whoever needs one says so. `host_bytes`: of the budget; a template may take
 * a quarter of it. 0: not known. */
TM_MUST_USE tm_status text_open(text_tools *out, const tm_source *source, uint64_t host_bytes);
void text_close(text_tools *t);

#endif
