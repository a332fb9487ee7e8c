/* Events of an engine in, bytes out: held against OpenAI's published forms, written out by hand. */
#include "serve/answer_internal.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static tm_tokenizer *t;

static int open_all(void **state) {
    static char json[1 << 20];
    FILE *f = fopen(TM_TEST_FIXTURES "/chat_chatml/tokenizer.json", "rb");
    (void)state;
    if (!f) return -1;
    tm_mem_source source = {json, fread(json, 1, sizeof json, f), 0};
    (void)fclose(f);
    return tm_tokenizer_open(&t, tm_mem_source_read, &source, "tokenizer.json") == TM_OK ? 0 : -1;
}
static int close_all(void **state) {
    (void)state;
    tm_tokenizer_close(t);
    return 0;
}

typedef struct world {
    serve_request r;
    serve_answer *a;
    tm_buf out;
    tm_ids ids; /* of a text */
} world;

static void begin(world *w, serve_kind kind, const char *body) {
    serve_refusal why;
    *w = (world){0};
    OK(serve_request_parse(&w->r, kind, body, strlen(body), &why));
    for (uint32_t i = 0; i < w->r.n_prompts && kind == SERVE_COMPLETION; i++)
        if (!w->r.prompt[i].is_ids)
            OK(tm_tokenizer_encode(t, w->r.prompt[i].text.data, w->r.prompt[i].text.len, false, &w->r.prompt[i].ids));
    if (kind == SERVE_CHAT) OK(tm_ids_push(&w->r.prompt[0].ids, 64));
    OK(serve_answer_open(&w->a, &w->r, t, &(serve_names){"id-1", "m", 1700000000}));
}
static void end(world *w) {
    serve_answer_close(w->a);
    serve_request_free(&w->r);
    tm_buf_free(&w->out);
    tm_ids_free(&w->ids);
}
static void take(world *w, uint32_t prompt, tm_token_event e) {
    OK(serve_answer_take(w->a, prompt, &e, &w->out));
}
/* Without the writer's spaces, which stand after ':' and ',' and not in strings. */
static void squeeze(tm_buf *b) {
    bool in_string = false;
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++) {
        char c = b->data[i];
        if (c == '"' && !(i > 0 && b->data[i - 1] == '\\')) in_string = !in_string;
        bool space = c == ' ' && !in_string && n > 0 && (b->data[n - 1] == ',' || b->data[n - 1] == ':');
        bool of_event = space && n >= 5 && memcmp(b->data + n - 5, "data:", 5) == 0;
        if (!space || of_event) b->data[n++] = c;
    }
    b->len = n;
    if (b->data) b->data[n] = 0;
}
/* Until now, and forgets it. */
static void expect(world *w, const char *text) {
    squeeze(&w->out);
    assert_string_equal(w->out.data ? w->out.data : "", text);
    tm_buf_clear(&w->out);
}
static tm_token_event word(const char *text, int32_t id, tm_finish finish) {
    return (tm_token_event){.id = id, .text = text, .n_text = strlen(text), .finish = finish};
}
/* "a" is token 64 of this vocabulary, "b" 65, ... */
enum { A = 64, B, C, END = 502 };

#define HEAD(object) "{\"id\":\"id-1\",\"object\":\"" object "\",\"created\":1700000000,\"model\":\"m\",\"choices\":["
#define CHUNK(more) "data: " HEAD("chat.completion.chunk") more "}\n\n"

static void a_chat_in_one_body(void **state) {
    world w;
    (void)state;
    begin(&w, SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"n\":2}");
    take(&w, 0, word("a", A, TM_GOES_ON));
    tm_token_event second = word("\"b\n", B, TM_FINISH_LENGTH);
    second.answer = 1;
    take(&w, 0, second);
    take(&w, 0, word("", END, TM_FINISH_STOP));
    expect(&w, "");
    OK(serve_answer_end(w.a, &w.out));
    expect(
        &w,
        HEAD("chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"logprobs\":null,"
                                "\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":\"assistant\","
                                "\"content\":"
                                "\"\\\"b\\n\"},\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{"
                                "\"prompt_tokens\":1,\"completion_tokens\":3,\"total_tokens\":4}}");
    end(&w);
}

static void a_chat_as_a_stream(void **state) {
    world w;
    (void)state;
    begin(&w, SERVE_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":true,"
          "\"stream_options\":{\"include_usage\":true}}");
    take(&w, 0, word("a", A, TM_GOES_ON));
    expect(&w, CHUNK("{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
                     "reason\":null}],"
                     "\"usage\":null") CHUNK("{\"index\":0,\"delta\":{\"content\":\"a\"},\"logprobs\":null,\"finish_"
                                             "reason\":null}],\"usage\":null"));
    take(&w, 0, word("", B, TM_GOES_ON)); /* half a character: nothing to say yet */
    expect(&w, "");
    take(&w, 0, word("", END, TM_FINISH_STOP));
    expect(&w, CHUNK("{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null"));
    OK(serve_answer_end(w.a, &w.out));
    expect(&w,
           CHUNK("],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3,\"total_tokens\":4}") "data: [DONE]\n\n");
    end(&w);
}

static void tokens_of_a_chat(void **state) {
    const tm_alternative top[2] = {{A, -0.25f}, {B, -1.5f}};
    world w;
    (void)state;
    begin(&w, SERVE_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"logprobs\":true,\"top_logprobs\":2}");
    take(&w, 0,
         (tm_token_event){
             .id = A, .logprob = -0.25f, .top = top, .n_top = 2, .text = "a", .n_text = 1, .finish = TM_FINISH_LENGTH});
    OK(serve_answer_end(w.a, &w.out));
    expect(
        &w,
        HEAD("chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"logprobs\":{"
                                "\"content\":"
                                "[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97],\"top_logprobs\":[{\"token\":\"a\","
                                "\"logprob\":-0.25,\"bytes\":[97]},{\"token\":\"b\",\"logprob\":-1.5,\"bytes\":[98]}]}]"
                                "},"
                                "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,"
                                "\"total_tokens\":2}}");
    end(&w);
}

/* As lm-evaluation-harness asks: the prompt's tokens, and one of the answer. */
static void an_echoed_prompt_with_its_tokens(void **state) {
    const tm_alternative top[1] = {{C, -0.5f}};
    world w;
    (void)state;
    begin(&w, SERVE_COMPLETION, "{\"prompt\":[[64,65]],\"echo\":true,\"logprobs\":1,\"max_tokens\":1}");
    OK(tm_buf_append(&w.r.prompt[0].text, "ab", 2));
    take(&w, 0, (tm_token_event){.of_prompt = true, .index = 1, .id = B, .logprob = -2, .top = top, .n_top = 1});
    take(&w, 0,
         (tm_token_event){
             .id = C, .logprob = -0.5f, .top = top, .n_top = 1, .text = "c", .n_text = 1, .finish = TM_FINISH_LENGTH});
    OK(serve_answer_end(w.a, &w.out));
    expect(&w, HEAD("text_completion") "{\"index\":0,\"text\":\"abc\",\"logprobs\":{\"tokens\":[\"a\",\"b\",\"c\"],"
                                       "\"token_logprobs\":"
                                       "[null,-2,-0.5],\"top_logprobs\":[null,{\"c\":-0.5,\"b\":-2},{\"c\":-0.5}],"
                                       "\"text_offset\":"
                                       "[0,1,2]},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":2,"
                                       "\"completion_tokens\":1,\"total_tokens\":3}}");
    end(&w);
}

/* Choice i of a request is answer i % n of prompt i / n; a piece names one. */
static void prompts_and_answers_have_their_index(void **state) {
    world w;
    (void)state;
    begin(&w, SERVE_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stream\":true,\"echo\":true}");
    tm_token_event e = word("c", C, TM_FINISH_LENGTH);
    e.answer = 1;
    take(&w, 1, e);
    expect(&w, "data: " HEAD(
                   "text_completion") "{\"index\":3,\"text\":\"b\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
                                      "data: " HEAD("text_completion") "{\"index\":3,\"text\":\"c\",\"logprobs\":null,"
                                                                       "\"finish_reason\":\"length\"}]}\n\n");
    OK(serve_answer_end(w.a, &w.out));
    expect(&w, "data: [DONE]\n\n");
    end(&w);
}

/* The parts of a character: names that differ, bytes as they are, one offset that moves with the first. */
static void parts_of_a_character(void **state) {
    world w;
    tm_ids parts = {0};
    (void)state;
    OK(tm_tokenizer_encode(t, "\xF0\x9F\xAB\xA0", 4, false, &parts));
    assert_true(parts.n > 1);
    begin(&w, SERVE_COMPLETION, "{\"prompt\":\"a\",\"logprobs\":0}");
    for (size_t i = 0; i < parts.n; i++) {
        bool last = i + 1 == parts.n;
        take(&w, 0,
             (tm_token_event){.id = parts.id[i],
                              .logprob = -1,
                              .text = last ? "\xF0\x9F\xAB\xA0" : "",
                              .n_text = last ? 4 : 0,
                              .finish = last ? TM_FINISH_LENGTH : TM_GOES_ON});
    }
    OK(serve_answer_end(w.a, &w.out));
    squeeze(&w.out);
    assert_non_null(strstr(w.out.data, "\"text\":\"\xF0\x9F\xAB\xA0\""));
    assert_non_null(strstr(w.out.data, "\"bytes:\\\\xf0"));
    assert_non_null(strstr(w.out.data, "\\\\xa0\"]"));
    const char *offsets = strstr(w.out.data, "\"text_offset\":[0,1");
    assert_non_null(offsets);
    end(&w);
    tm_ids_free(&parts);
}

static void errors_have_openais_form(void **state) {
    const serve_refusal why = {.status = 400, .code = "invalid_value", .param = "n"};
    tm_buf out = {0};
    (void)state;
    OK(serve_put_error(400, &why, "n is \"7\"", &out));
    squeeze(&out);
    assert_string_equal(out.data,
                        "{\"error\":{\"message\":\"n is \\\"7\\\"\",\"type\":\"invalid_request_error\",\"param\":\"n\","
                        "\"code\":\"invalid_value\"}}");
    tm_buf_clear(&out);
    OK(serve_put_error_event(503, NULL, "x", &out));
    squeeze(&out);
    assert_string_equal(
        out.data, "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n");
    tm_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_in_one_body),
        cmocka_unit_test(a_chat_as_a_stream),
        cmocka_unit_test(tokens_of_a_chat),
        cmocka_unit_test(an_echoed_prompt_with_its_tokens),
        cmocka_unit_test(prompts_and_answers_have_their_index),
        cmocka_unit_test(parts_of_a_character),
        cmocka_unit_test(errors_have_openais_form),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
