/* Answers: events are gathered by choice, or written at once where they are streamed. */
#include "serve/answer_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct choice {
    tm_buf text;         /* of one body */
    serve_tokens tokens; /* with log-probabilities: all of one body, or those of the piece that is written */
    size_t offset;       /* characters of its text so far */
    const char *finish;  /* NULL: it goes on */
    bool begun;          /* its first piece was streamed */
} choice;

struct serve_answer {
    const serve_request *r;
    const tm_tokenizer *t;
    char id[SERVE_ID];
    const char *model;
    int64_t created;
    choice *choice;     /* [n] */
    serve_tokens *head; /* [n_prompts] a prompt's tokens, where they are echoed with log-probabilities */
    uint32_t n;
    uint64_t completion_tokens;
};

/* The first token of a prompt is predicted by nothing. */
static tm_status begin_head(serve_answer *a, uint32_t prompt) {
    return serve_tokens_put(&a->head[prompt], a->r->prompt[prompt].ids.id[0], NULL, NULL, 0);
}

tm_status serve_answer_open(serve_answer **out, const serve_request *r, const tm_tokenizer *t,
                            const serve_names *names) {
    tm_status rc = TM_OK;
    serve_answer *a = *out = tm_calloc(1, sizeof *a);
    if (!a) return tm_nomem(sizeof *a);
    *a = (serve_answer){.r = r, .t = t, .model = names->model, .created = names->created};
    (void)snprintf(a->id, sizeof a->id, "%s", names->id);
    a->n = r->n_prompts * r->answers;
    a->choice = tm_calloc(a->n, sizeof *a->choice);
    a->head = tm_calloc(r->n_prompts, sizeof *a->head);
    if (!a->choice || !a->head) TM_GO(tm_nomem(a->n * sizeof *a->choice));
    for (uint32_t i = 0; r->echo && r->logprobs && i < r->n_prompts; i++) TM_GO(begin_head(a, i));
done:
    if (rc != TM_OK) serve_answer_close(a), *out = NULL;
    return rc;
}

void serve_answer_close(serve_answer *a) {
    if (!a) return;
    for (uint32_t i = 0; a->choice && i < a->n; i++) {
        tm_buf_free(&a->choice[i].text);
        serve_tokens_free(&a->choice[i].tokens);
    }
    for (uint32_t i = 0; a->head && i < a->r->n_prompts; i++) serve_tokens_free(&a->head[i]);
    TM_FREE_ALL(a->choice, a->head, a);
}

size_t serve_answer_bytes(const serve_answer *a) {
    size_t bytes = sizeof *a + a->n * sizeof *a->choice;
    for (uint32_t i = 0; i < a->n; i++) bytes += a->choice[i].text.cap + a->choice[i].tokens.bytes.cap;
    for (uint32_t i = 0; i < a->r->n_prompts; i++) bytes += a->head[i].bytes.cap;
    return bytes;
}

serve_usage serve_answer_usage(const serve_answer *a) {
    serve_usage u = {.completion_tokens = a->completion_tokens};
    for (uint32_t i = 0; i < a->r->n_prompts; i++) u.prompt_tokens += a->r->prompt[i].ids.n;
    return u;
}

/* ---- what bodies and pieces have in common -------------------------------------------------------------------------- */

static void begin_object(const serve_answer *a, tm_json_writer *w) {
    bool chat = a->r->kind == SERVE_CHAT;
    tm_jw_object(w);
    tm_jw_field_str(w, "id", a->id);
    tm_jw_field_str(w, "object",
                    !chat          ? "text_completion"
                    : a->r->stream ? "chat.completion.chunk"
                                   : "chat.completion");
    tm_jw_field_int(w, "created", a->created);
    tm_jw_field_str(w, "model", a->model);
    tm_jw_field_array(w, "choices");
}

static void put_usage(const serve_answer *a, tm_json_writer *w) {
    serve_usage u = serve_answer_usage(a);
    tm_jw_field_object(w, "usage");
    tm_jw_field_uint(w, "prompt_tokens", u.prompt_tokens);
    tm_jw_field_uint(w, "completion_tokens", u.completion_tokens);
    tm_jw_field_uint(w, "total_tokens", u.prompt_tokens + u.completion_tokens);
    tm_jw_object_end(w);
}

static tm_status put_logprobs(serve_answer *a, tm_json_writer *w, choice *c, const serve_tokens *head) {
    tm_jw_key(w, "logprobs");
    if (!a->r->logprobs) return tm_jw_null(w), TM_OK;
    if (a->r->kind == SERVE_COMPLETION)
        return serve_put_completion_tokens(w, a->t, (const serve_tokens *const[2]){head, &c->tokens}, &c->offset);
    tm_jw_object(w);
    tm_jw_field_array(w, "content");
    TM_TRY(serve_put_chat_tokens(w, a->t, &c->tokens));
    tm_jw_array_end(w);
    tm_jw_object_end(w);
    return TM_OK;
}

/* ---- pieces of a stream --------------------------------------------------------------------------------------------- */

typedef struct piece {
    const char *text; /* NULL: none */
    size_t n;
    const serve_tokens *head;
    bool role;
    const char *finish;
} piece;

static void put_delta(tm_json_writer *w, const piece *p) {
    tm_jw_field_object(w, "delta");
    if (p->role) tm_jw_field_str(w, "role", "assistant");
    if (p->text) tm_jw_field_strn(w, "content", p->text, p->n);
    tm_jw_object_end(w);
}

static tm_status put_piece(serve_answer *a, uint32_t index, const piece *p, tm_buf *out) {
    tm_json_writer w;
    TM_TRY(tm_buf_append(out, "data: ", 6));
    tm_jw_init(&w, out, 0);
    begin_object(a, &w);
    tm_jw_object(&w);
    tm_jw_field_uint(&w, "index", index);
    if (a->r->kind == SERVE_CHAT)
        put_delta(&w, p);
    else
        tm_jw_field_strn(&w, "text", p->text ? p->text : "", p->n);
    TM_TRY(put_logprobs(a, &w, &a->choice[index], p->head));
    tm_jw_field_str(&w, "finish_reason", p->finish);
    tm_jw_object_end(&w);
    tm_jw_array_end(&w);
    if (a->r->include_usage) tm_jw_key(&w, "usage"), tm_jw_null(&w);
    tm_jw_object_end(&w);
    serve_tokens_clear(&a->choice[index].tokens);
    TM_TRY(tm_jw_end(&w));
    return tm_buf_append(out, "\n\n", 2);
}

/* A chat begins with its role, an echoed prompt with itself. */
static tm_status begin_choice(serve_answer *a, uint32_t index, tm_buf *out) {
    uint32_t prompt = index / a->r->answers;
    const tm_buf *text = &a->r->prompt[prompt].text;
    serve_tokens own = a->choice[index].tokens;
    bool chat = a->r->kind == SERVE_CHAT;
    a->choice[index].begun = true;
    if (!chat && !a->r->echo) return TM_OK;
    a->choice[index].tokens = (serve_tokens){0}; /* those of the answer's first token come with its piece */
    tm_status rc = put_piece(a, index,
                             &(piece){.text = chat ? "" : text->data,
                                      .n = chat ? 0 : text->len,
                                      .head = a->r->logprobs ? &a->head[prompt] : NULL,
                                      .role = chat},
                             out);
    a->choice[index].tokens = own;
    return rc;
}

static tm_status stream_event(serve_answer *a, uint32_t index, const tm_token_event *e, tm_buf *out) {
    choice *c = &a->choice[index];
    bool chat = a->r->kind == SERVE_CHAT, has_tokens = a->r->logprobs && c->tokens.n > 0;
    if (!c->begun) TM_TRY(begin_choice(a, index, out));
    if (e->n_text > 0 || has_tokens || (c->finish && !chat)) {
        const piece p = {.text = e->n_text ? e->text : "", .n = e->n_text, .finish = chat ? NULL : c->finish};
        TM_TRY(put_piece(a, index, &p, out));
    }
    return c->finish && chat ? put_piece(a, index, &(piece){.finish = c->finish}, out) : TM_OK;
}

/* ---- one event ------------------------------------------------------------------------------------------------------ */

static const char *finish_word(tm_finish f) {
    return f == TM_GOES_ON ? NULL : f == TM_FINISH_LENGTH ? "length" : "stop";
}

tm_status serve_answer_take(serve_answer *a, uint32_t prompt, const tm_token_event *e, tm_buf *out) {
    const serve_request *r = a->r;
    if (e->of_prompt) return serve_tokens_put(&a->head[prompt], e->id, &e->logprob, e->top, e->n_top);
    uint32_t index = prompt * r->answers + e->answer;
    choice *c = &a->choice[index];
    if (e->id >= 0) a->completion_tokens++;
    if (e->id >= 0 && r->logprobs) TM_TRY(serve_tokens_put(&c->tokens, e->id, &e->logprob, e->top, e->n_top));
    c->finish = finish_word(e->finish);
    if (r->stream) return stream_event(a, index, e, out);
    return e->n_text ? tm_buf_append(&c->text, e->text, e->n_text) : TM_OK;
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

static void put_message(tm_json_writer *w, const choice *c) {
    tm_jw_field_object(w, "message");
    tm_jw_field_str(w, "role", "assistant");
    tm_jw_field_strn(w, "content", c->text.data ? c->text.data : "", c->text.len);
    tm_jw_object_end(w);
}

static tm_status put_text(const serve_answer *a, tm_json_writer *w, const choice *c, uint32_t prompt) {
    tm_buf whole = {0};
    tm_status rc = TM_OK;
    const tm_buf *parts[2] = {a->r->echo ? &a->r->prompt[prompt].text : NULL, &c->text};
    for (int i = 0; i < 2 && rc == TM_OK; i++)
        if (parts[i] && parts[i]->len) rc = tm_buf_append(&whole, parts[i]->data, parts[i]->len);
    if (rc == TM_OK) tm_jw_field_strn(w, "text", whole.data ? whole.data : "", whole.len);
    tm_buf_free(&whole);
    return rc;
}

static tm_status put_choice(serve_answer *a, tm_json_writer *w, uint32_t index) {
    choice *c = &a->choice[index];
    uint32_t prompt = index / a->r->answers;
    tm_jw_object(w);
    tm_jw_field_uint(w, "index", index);
    if (a->r->kind == SERVE_CHAT)
        put_message(w, c);
    else
        TM_TRY(put_text(a, w, c, prompt));
    TM_TRY(put_logprobs(a, w, c, &a->head[prompt]));
    tm_jw_field_str(w, "finish_reason", c->finish);
    tm_jw_object_end(w);
    return TM_OK;
}

static tm_status put_body(serve_answer *a, tm_buf *out) {
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    begin_object(a, &w);
    for (uint32_t i = 0; i < a->n; i++) TM_TRY(put_choice(a, &w, i));
    tm_jw_array_end(&w);
    put_usage(a, &w);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

static tm_status put_stream_usage(const serve_answer *a, tm_buf *out) {
    tm_json_writer w;
    TM_TRY(tm_buf_append(out, "data: ", 6));
    tm_jw_init(&w, out, 0);
    begin_object(a, &w);
    tm_jw_array_end(&w);
    put_usage(a, &w);
    tm_jw_object_end(&w);
    TM_TRY(tm_jw_end(&w));
    return tm_buf_append(out, "\n\n", 2);
}

tm_status serve_answer_end(serve_answer *a, tm_buf *out) {
    static const char done[] = "data: [DONE]\n\n";
    if (!a->r->stream) return put_body(a, out);
    if (a->r->include_usage) TM_TRY(put_stream_usage(a, out));
    return tm_buf_append(out, done, sizeof done - 1);
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

static const char *error_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

tm_status serve_put_error(int status, const serve_refusal *why, const char *text, tm_buf *out) {
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    tm_jw_field_object(&w, "error");
    tm_jw_field_str(&w, "message", text);
    tm_jw_field_str(&w, "type", error_type(status));
    tm_jw_field_str(&w, "param", why && why->param[0] ? why->param : NULL);
    tm_jw_field_str(&w, "code", why ? why->code : NULL);
    tm_jw_object_end(&w);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

tm_status serve_put_error_event(int status, const serve_refusal *why, const char *text, tm_buf *out) {
    TM_TRY(tm_buf_append(out, "data: ", 6));
    TM_TRY(serve_put_error(status, why, text, out));
    return tm_buf_append(out, "\n\n", 2);
}
