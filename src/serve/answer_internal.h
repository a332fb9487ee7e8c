/* answer: what the engine found, as the bytes that OpenAI's clients read. Pure: no network, no engine.
 *
 *     TM_TRY(serve_answer_open(&a, &request, tokenizer, &(serve_names){id, model, created}));
 *     TM_TRY(serve_answer_take(a, prompt, &event, &out));     // each event; `out` grows where the answer is streamed
 *     TM_TRY(serve_answer_end(a, &out));                      // when all have finished: the body, or the stream's end
 *     serve_answer_close(a);
 *
 * One body is {"choices": [...]}; a stream is "data: {...}\n\n" with a piece of one choice each, and "data: [DONE]\n\n".
 * Choice i of a completion is answer i % n of prompt i / n. */
#ifndef TIDEMILL_SERVE_ANSWER_INTERNAL_H
#define TIDEMILL_SERVE_ANSWER_INTERNAL_H

#include "serve/request_internal.h"

enum { SERVE_ID = 48 };
typedef struct serve_names {
    const char *id, *model; /* copied; kept by reference */
    int64_t created;        /* seconds since 1970 */
} serve_names;

typedef struct serve_usage {
    uint64_t prompt_tokens, completion_tokens;
} serve_usage;

typedef struct serve_answer serve_answer;
/* The request and the tokenizer outlive it. */
tm_status serve_answer_open(serve_answer **out, const serve_request *r, const tm_tokenizer *t,
                            const serve_names *names) TM_MUST_USE;
tm_status serve_answer_take(serve_answer *a, uint32_t prompt, const tm_token_event *e, tm_buf *out) TM_MUST_USE;
tm_status serve_answer_end(serve_answer *a, tm_buf *out) TM_MUST_USE;
serve_usage serve_answer_usage(const serve_answer *a);
size_t serve_answer_bytes(const serve_answer *a); /* that it holds, about */
void serve_answer_close(serve_answer *a);         /* NULL is fine */

/* {"error": {"message", "type", "param", "code"}} of a status of HTTP. */
tm_status serve_put_error(int status, const serve_refusal *why, const char *text, tm_buf *out) TM_MUST_USE;
/* The same inside a stream that has begun. */
tm_status serve_put_error_event(int status, const serve_refusal *why, const char *text, tm_buf *out) TM_MUST_USE;

/* ---- tokens with their log-probabilities (token_json.c) ------------------------------------------------------------ */

/* A list of records, each with its alternatives behind it. Zero it to start. */
typedef struct serve_tokens {
    tm_buf bytes;
    size_t n;
} serve_tokens;
tm_status serve_tokens_put(serve_tokens *list, int32_t id, const float *logprob, const tm_alternative *top,
                           uint32_t n_top) TM_MUST_USE; /* logprob NULL: it has none, as a prompt's first */
void serve_tokens_clear(serve_tokens *list);
void serve_tokens_free(serve_tokens *list);

/* A chat's form: the elements of "content". */
tm_status serve_put_chat_tokens(tm_json_writer *w, const tm_tokenizer *t, const serve_tokens *list) TM_MUST_USE;
/* A completion's form: {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of two lists, one after another.
 * *offset: characters of the text before them; moves on. */
tm_status serve_put_completion_tokens(tm_json_writer *w, const tm_tokenizer *t, const serve_tokens *const list[2],
                                      size_t *offset) TM_MUST_USE;

#endif
