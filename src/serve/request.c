/* A body: JSON, fields, what they say together. */
#include "serve/request_internal.h"

#include <stdio.h>
#include <string.h>

tm_status serve_refuse(serve_refusal *why, const char *code, const char *param, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    *why = (serve_refusal){.status = 400, .code = code};
    (void)snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    return tm_fail(TM_EINPUT, "%s", text);
}

/* ---- prompts ------------------------------------------------------------------------------------------------------ */

static tm_status take_ids(serve_reading *g, serve_prompt *p, const tm_json *list) {
    p->is_ids = true;
    for (const tm_json *v = list->child; v; v = v->next) {
        if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < 0 || v->integer > INT32_MAX)
            return serve_refuse(g->why, "invalid_value", "prompt", "prompt has an id that is none: %.32s",
                                v->type == TM_JSON_NUMBER ? v->text : "no number");
        TM_TRY(tm_ids_push(&p->ids, (int32_t)v->integer));
    }
    return TM_OK;
}

static tm_status take_prompt(serve_reading *g, serve_prompt *p, const tm_json *v) {
    if (v->type == TM_JSON_STRING) return tm_buf_append(&p->text, v->text, v->len);
    if (v->type == TM_JSON_ARRAY) return take_ids(g, p, v);
    return serve_refuse(g->why, "invalid_type", "prompt",
                        "prompt has to be a string, a list of strings, a list of ids or a list of lists of ids");
}

tm_status serve_read_prompts(serve_reading *g, const tm_json *prompt) {
    bool several = prompt->type == TM_JSON_ARRAY && prompt->child && prompt->child->type != TM_JSON_NUMBER;
    size_t n = several ? prompt->count : 1;
    if (n > SERVE_ANSWERS)
        return serve_refuse(g->why, "invalid_value", "prompt", "%zu prompts are more than %d", n, SERVE_ANSWERS);
    g->r->prompt = tm_calloc(n, sizeof *g->r->prompt);
    if (!g->r->prompt) return tm_nomem(n * sizeof *g->r->prompt);
    for (const tm_json *v = several ? prompt->child : prompt; v; v = several ? v->next : NULL)
        TM_TRY(take_prompt(g, &g->r->prompt[g->r->n_prompts++], v));
    return TM_OK;
}

/* ---- conversations -------------------------------------------------------------------------------------------------- */

static tm_status text_of_parts(serve_reading *g, const tm_json *content, tm_buf *out) {
    for (const tm_json *part = content->child; part; part = part->next) {
        const tm_json *text = tm_json_get(part, "text");
        if (!tm_json_is(tm_json_get(part, "type"), "text") || !text || text->type != TM_JSON_STRING)
            return serve_refuse(g->why, "invalid_value", "messages",
                                "a part of a message's content is no {\"type\": \"text\", \"text\": ...}: the model "
                                "reads text only");
        if (part != content->child) TM_TRY(tm_buf_append(out, "\n", 1));
        TM_TRY(tm_buf_append(out, text->text, text->len));
    }
    return TM_OK;
}

/* Templates take a content that is a string; parts are joined by line breaks, as vLLM does. */
static tm_status put_content(serve_reading *g, const tm_json *content, tm_json_writer *w) {
    tm_buf text = {0};
    if (content->type == TM_JSON_STRING || content->type == TM_JSON_NULL) return tm_jw_node(w, content), TM_OK;
    if (content->type != TM_JSON_ARRAY)
        return serve_refuse(g->why, "invalid_type", "messages",
                            "content of a message has to be a string or a list of parts");
    tm_status rc = text_of_parts(g, content, &text);
    if (rc == TM_OK) tm_jw_strn(w, text.data ? text.data : "", text.len);
    tm_buf_free(&text);
    return rc;
}

static tm_status put_message(serve_reading *g, const tm_json *message, tm_json_writer *w) {
    const tm_json *role = tm_json_get(message, "role");
    if (!role || role->type != TM_JSON_STRING)
        return serve_refuse(g->why, "invalid_type", "messages",
                            "messages has to be a list of objects, each with a role that is a string");
    tm_jw_object(w);
    for (const tm_json *m = message->child; m; m = m->next) {
        tm_jw_key(w, m->key);
        if (strcmp(m->key, "content") == 0)
            TM_TRY(put_content(g, m, w));
        else
            tm_jw_node(w, m);
    }
    tm_jw_object_end(w);
    return TM_OK;
}

static tm_status put_conversation(serve_reading *g, const tm_json *messages, const tm_json *kwargs, tm_buf *out) {
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    tm_jw_field_array(&w, "messages");
    for (const tm_json *m = messages->child; m; m = m->next) TM_TRY(put_message(g, m, &w));
    tm_jw_array_end(&w);
    if (kwargs) tm_jw_key(&w, "chat_template_kwargs"), tm_jw_node(&w, kwargs);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

tm_status serve_read_messages(serve_reading *g, const tm_json *messages, const tm_json *kwargs) {
    tm_buf text = {0};
    if (messages->type != TM_JSON_ARRAY || messages->count == 0)
        return serve_refuse(g->why, "invalid_type", "messages", "messages has to be a list of at least one message");
    tm_status rc = put_conversation(g, messages, kwargs, &text);
    if (rc == TM_OK) rc = tm_json_parse(&g->r->conversation, text.data, text.len, "messages", 0, SERVE_TREE_BYTES);
    tm_buf_free(&text);
    g->r->n_prompts = 1;
    if (rc == TM_OK) g->r->prompt = tm_calloc(1, sizeof *g->r->prompt);
    return rc != TM_OK || g->r->prompt ? rc : tm_nomem(sizeof *g->r->prompt);
}

/* ---- the whole ----------------------------------------------------------------------------------------------------- */

static tm_status settle_chat(serve_reading *g) {
    serve_request *r = g->r;
    if (!g->messages) return serve_refuse(g->why, "missing_required_parameter", "messages", "messages is missing");
    if (g->max_completion_tokens >= 0 && r->max_tokens >= 0 && g->max_completion_tokens != r->max_tokens)
        return serve_refuse(g->why, "invalid_value", "max_tokens", "max_tokens and max_completion_tokens differ");
    if (g->max_completion_tokens >= 0) r->max_tokens = g->max_completion_tokens;
    if (g->top_logprobs > 0 && !r->logprobs)
        return serve_refuse(g->why, "invalid_value", "top_logprobs", "top_logprobs needs logprobs: true");
    if (g->top_logprobs > 0) r->top = (uint32_t)g->top_logprobs;
    return serve_read_messages(g, g->messages, g->template_kwargs);
}

static tm_status settle_completion(serve_reading *g) {
    if (!g->prompt) return serve_refuse(g->why, "missing_required_parameter", "prompt", "prompt is missing");
    if (g->best_of >= 0 && g->best_of != g->r->answers)
        return serve_refuse(g->why, "unsupported_value", "best_of", "best_of other than n is not supported here");
    if (g->r->answers > 1 && g->r->max_tokens == 0)
        return serve_refuse(g->why, "invalid_value", "n", "n above 1 needs max_tokens above 0");
    if (g->r->answers > 1 && g->r->echo && g->r->logprobs && g->r->stream)
        return serve_refuse(g->why, "unsupported_value", "n",
                            "n above 1 with echo, logprobs and stream is not supported here");
    return serve_read_prompts(g, g->prompt);
}

static tm_status settle(serve_reading *g) {
    const serve_request *r = g->r;
    TM_TRY(r->kind == SERVE_CHAT ? settle_chat(g) : settle_completion(g));
    if ((uint64_t)r->n_prompts * r->answers > SERVE_ANSWERS)
        return serve_refuse(g->why, "invalid_value", "n", "%u prompts with %u answers each are more than %d answers",
                            r->n_prompts, r->answers, SERVE_ANSWERS);
    if (r->include_usage && !r->stream)
        return serve_refuse(g->why, "invalid_value", "stream_options", "stream_options needs stream: true");
    return TM_OK;
}

static tm_status read_body(serve_reading *g, const char *body, size_t len) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, body, len, "body", 0, SERVE_TREE_BYTES));
    const tm_json *root = tm_json_root(doc);
    tm_status rc = root->type == TM_JSON_OBJECT
                       ? serve_read_fields(g, root)
                       : serve_refuse(g->why, "invalid_type", NULL, "the body has to be one JSON object");
    if (rc == TM_OK) rc = settle(g);
    tm_json_free(doc);
    return rc;
}

tm_status serve_request_parse(serve_request *r, serve_kind kind, const char *body, size_t len, serve_refusal *why) {
    *r = (serve_request){.kind = kind, .answers = 1, .max_tokens = -1, .sampling = {.temperature = 1}};
    *why = (serve_refusal){0};
    serve_reading g = {.r = r, .why = why, .max_completion_tokens = -1, .top_logprobs = -1, .best_of = -1};
    tm_status rc = read_body(&g, body, len);
    if (rc != TM_OK) serve_request_free(r);
    if (rc != TM_OK && why->status == 0) why->status = rc == TM_EINPUT ? 400 : 500; /* not JSON; no memory */
    return rc;
}

size_t serve_request_bytes(const serve_request *r) {
    size_t bytes = sizeof *r + r->n_prompts * sizeof *r->prompt;
    for (uint32_t i = 0; i < r->n_prompts; i++)
        bytes += r->prompt[i].ids.cap * sizeof *r->prompt[i].ids.id + r->prompt[i].text.cap;
    return bytes;
}

void serve_request_free(serve_request *r) {
    for (uint32_t i = 0; r->prompt && i < r->n_prompts; i++) {
        tm_ids_free(&r->prompt[i].ids);
        tm_buf_free(&r->prompt[i].text);
    }
    for (uint32_t i = 0; i < r->n_stop; i++) tm_free(r->stop[i]);
    tm_json_free(r->conversation);
    TM_FREE_ALL(r->prompt, r->stop, r->model);
    *r = (serve_request){0};
}
