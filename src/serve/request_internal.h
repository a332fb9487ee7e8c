/* request: the body of a request, as OpenAI's clients send it, checked. Bytes in, a structure out: no network, no engine.
 *
 *     serve_request r;
 *     serve_refusal why;
 *     if (serve_request_parse(&r, SERVE_CHAT, body, n, &why) != TM_OK) answer(&why, tm_error_get()->text);
 *     else if (serve_request_encode(&r, tokenizer, chat, positions, &why) != TM_OK) ...
 *     serve_request_free(&r);
 *
 * A field that is not known is refused, and so is a known one whose value asks for what is not done here. The list of
 * those that are read over is in request_fields.c: what OpenAI's clients send and cannot change an answer. null is as if
 * the field were not there. */
#ifndef TIDEMILL_SERVE_REQUEST_INTERNAL_H
#define TIDEMILL_SERVE_REQUEST_INTERNAL_H

#include "infer/engine.h"
#include "text/chat/chat.h"

enum {
    SERVE_BODY_BYTES = 2 << 20,
    SERVE_TREE_BYTES = 12 << 20, /* of the body as a tree, and of its messages, while they are read */
    SERVE_ANSWERS = 256,         /* prompts times n */
    SERVE_COMPLETION_TOKENS = 16 /* OpenAI's default of completions; chats go on to the end of the positions */
};

typedef enum serve_kind { SERVE_CHAT, SERVE_COMPLETION } serve_kind;

/* Beside a failure's text: what OpenAI's form of an error names. */
typedef struct serve_refusal {
    int status;       /* of HTTP */
    const char *code; /* NULL: none */
    char param[64];   /* "": none */
} serve_refusal;
/* Fills `why` and records the text. Returns TM_EINPUT. */
tm_status serve_refuse(serve_refusal *why, const char *code, const char *param, const char *format, ...)
    TM_PRINTF(4, 5) TM_MUST_USE;

typedef struct serve_prompt {
    tm_ids ids;  /* after serve_request_encode */
    tm_buf text; /* of a completion: what `echo` repeats */
    bool is_ids;
} serve_prompt;

typedef struct serve_request {
    serve_kind kind;
    char *model;               /* NULL: not said */
    tm_json_doc *conversation; /* of a chat, as src/text/chat takes it; until it is encoded */
    serve_prompt *prompt;      /* [n_prompts] */
    uint32_t n_prompts, answers;
    int64_t max_tokens; /* -1: not said */
    char **stop;        /* [n_stop] */
    uint32_t n_stop;
    tm_sampling sampling;
    bool seed_given, ignore_eos, echo, stream, include_usage;
    bool logprobs;
    uint32_t top; /* alternatives with each token */
} serve_request;

/* On failure `r` holds nothing and `why` is filled; TM_ENOMEM has status 500. */
tm_status serve_request_parse(serve_request *r, serve_kind kind, const char *body, size_t len,
                              serve_refusal *why) TM_MUST_USE;
/* Prompts become ids, and max_tokens is settled: prompt and answer are `positions` tokens at most. `chat` may be NULL: a
 * chat is refused then. */
tm_status serve_request_encode(serve_request *r, const tm_tokenizer *t, const tm_chat *chat, uint32_t positions,
                               serve_refusal *why) TM_MUST_USE;
uint32_t serve_request_max_tokens(const serve_request *r, uint32_t prompt, uint32_t positions);
size_t serve_request_bytes(const serve_request *r); /* that it holds, about */
void serve_request_free(serve_request *r);

/* Of the files of the parser: one body while it is read. */
typedef struct serve_reading {
    serve_request *r;
    serve_refusal *why;
    const tm_json *messages, *template_kwargs, *prompt;   /* looked at when all fields are known */
    int64_t max_completion_tokens, top_logprobs, best_of; /* -1: not said */
} serve_reading;
tm_status serve_read_fields(serve_reading *g, const tm_json *root) TM_MUST_USE;
tm_status serve_read_prompts(serve_reading *g, const tm_json *prompt) TM_MUST_USE;
tm_status serve_read_messages(serve_reading *g, const tm_json *messages, const tm_json *kwargs) TM_MUST_USE;

#endif
