/* Any bytes as the body of a request. What must hold: within the limits; a failure says why, with a status, and holds
 * nothing; what is taken keeps to its bounds; an answer made of some events is JSON, or events that are. */
#include "fuzz.h"

#include "serve/answer_internal.h"

#include <math.h>
#include <string.h>

static const char tokens[] = "{\"added_tokens\":[{\"id\":3,\"content\":\"</s>\",\"special\":true}],\"model\":{\"type\":"
                             "\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2},\"merges\":[]}}";
static const char template[] = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}";
enum { POSITIONS = 64 };
static tm_tokenizer *tokenizer;
static tm_chat *chat;

static void open_once(void) {
    tm_mem_source source = {tokens, sizeof tokens - 1, 0};
    if (tokenizer) return;
    CHECK(tm_tokenizer_open(&tokenizer, tm_mem_source_read, &source, "t") == TM_OK);
    CHECK(tm_chat_open(&chat, tokenizer, template, sizeof template - 1, "c", NULL) == TM_OK);
}

static void check(const serve_request *r) {
    const tm_sampling *s = &r->sampling;
    CHECK(r->n_prompts > 0 && r->answers > 0 && r->n_prompts * r->answers <= SERVE_ANSWERS);
    CHECK(r->n_stop <= TM_ENGINE_STOPS && r->top <= TM_ENGINE_TOP && r->max_tokens >= -1);
    CHECK(s->temperature >= 0 && s->temperature <= 2 && s->top_p >= 0 && s->top_p < 1 && s->min_p >= 0 &&
          s->min_p <= 1);
    CHECK(isfinite(s->repetition_penalty) && fabs(s->presence_penalty) <= 2 && fabs(s->frequency_penalty) <= 2);
    for (uint32_t i = 0; i < r->n_stop; i++) CHECK(r->stop[i][0]);
}

static void check_json(const char *text, size_t n) {
    tm_json_doc *doc;
    CHECK(tm_json_parse(&doc, text, n, "answer", 0, 0) == TM_OK);
    tm_json_free(doc);
}

/* "data: {...}" each, and "data: [DONE]". */
static void check_events(const tm_buf *b) {
    const char *at = b->data, *end;
    for (; (end = strstr(at, "\n\n")); at = end + 2) {
        CHECK(memcmp(at, "data: ", 6) == 0);
        if (end[2]) check_json(at + 6, (size_t)(end - at) - 6);
    }
    CHECK(at == b->data + b->len && b->len >= 14 && memcmp(at - 14, "data: [DONE]\n\n", 14) == 0);
}

static void answer(const serve_request *r) {
    const tm_alternative top[1] = {{1, -1}};
    tm_buf out = {0};
    serve_answer *a;
    CHECK(serve_answer_open(&a, r, tokenizer, &(serve_names){"id", r->model ? r->model : "m", 1}) == TM_OK);
    for (uint32_t i = 0; i < r->n_prompts * r->answers; i++) {
        tm_token_event e = {.answer = i % r->answers, .id = 1, .logprob = -INFINITY, .top = top, .n_top = r->top > 0};
        e.text = "a";
        e.n_text = 1;
        CHECK(serve_answer_take(a, i / r->answers, &e, &out) == TM_OK);
        e.finish = TM_FINISH_LENGTH;
        CHECK(serve_answer_take(a, i / r->answers, &e, &out) == TM_OK);
    }
    CHECK(serve_answer_end(a, &out) == TM_OK);
    if (r->stream)
        check_events(&out);
    else
        check_json(out.data, out.len);
    serve_answer_close(a);
    tm_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    serve_request r;
    serve_refusal why;
    open_once();
    fuzz_begin(size);
    if (size == 0) return 0;
    serve_kind kind =
        data[size - 1] & 1 ? SERVE_CHAT : SERVE_COMPLETION; /* the last byte, so that a seed stays a text */
    tm_status rc = serve_request_parse(&r, kind, (const char *)data, size - 1, &why);
    if (rc == TM_OK) {
        check(&r);
        rc = serve_request_encode(&r, tokenizer, chat, POSITIONS, &why);
        if (rc == TM_OK) answer(&r);
        serve_request_free(&r);
    }
    CHECK(rc == TM_OK || (why.status >= 400 && why.status <= 500 && tm_error_get()->text[0]));
    tm_error_clear();
    fuzz_end();
    return 0;
}
