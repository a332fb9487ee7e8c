/* Prompts of a request as ids, and how long an answer may be. */
#include "serve/request_internal.h"

static tm_status encode_chat(serve_request *r, const tm_chat *chat, serve_refusal *why) {
    if (!chat)
        return serve_refuse(why, NULL, NULL,
                            "the model has no chat template; ask /v1/completions, or add chat_template.jinja");
    tm_status rc = tm_chat_encode(chat, tm_json_root(r->conversation), true, NULL, &r->prompt[0].ids, NULL);
    tm_json_free(r->conversation);
    r->conversation = NULL;
    return rc;
}

static tm_status encode_text(serve_prompt *p, const tm_tokenizer *t) {
    if (p->is_ids) return tm_tokenizer_decode(t, p->ids.id, p->ids.n, true, &p->text);
    return tm_tokenizer_encode(t, p->text.data ? p->text.data : "", p->text.len, true, &p->ids);
}

uint32_t serve_request_max_tokens(const serve_request *r, uint32_t prompt, uint32_t positions) {
    uint32_t room = positions - prompt;
    if (r->max_tokens >= 0) return (uint32_t)r->max_tokens;
    return r->kind == SERVE_CHAT || room < SERVE_COMPLETION_TOKENS ? room : SERVE_COMPLETION_TOKENS;
}

static tm_status check_length(const serve_request *r, const serve_prompt *p, uint32_t positions, serve_refusal *why) {
    const char *param = r->kind == SERVE_CHAT ? "messages" : "prompt";
    uint64_t wanted = r->max_tokens > 0 ? (uint64_t)r->max_tokens : 0;
    if (p->ids.n == 0) return serve_refuse(why, "invalid_value", param, "the prompt is empty");
    if (p->ids.n + wanted > positions || (r->max_tokens != 0 && p->ids.n >= positions))
        return serve_refuse(why, "context_length_exceeded", param,
                            "this server has %u positions; the prompt has %zu tokens and the answer %llu", positions,
                            p->ids.n, (unsigned long long)wanted);
    return TM_OK;
}

static tm_status encode(serve_request *r, const tm_tokenizer *t, const tm_chat *chat, uint32_t positions,
                        serve_refusal *why) {
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        TM_TRY(r->kind == SERVE_CHAT ? encode_chat(r, chat, why) : encode_text(&r->prompt[i], t));
        TM_TRY(check_length(r, &r->prompt[i], positions, why));
    }
    return TM_OK;
}

tm_status serve_request_encode(serve_request *r, const tm_tokenizer *t, const tm_chat *chat, uint32_t positions,
                               serve_refusal *why) {
    *why = (serve_refusal){0};
    tm_status rc = encode(r, t, chat, positions, why);
    if (rc != TM_OK && why->status == 0) why->status = rc == TM_ENOMEM ? 500 : 400; /* the template's words */
    return rc;
}
