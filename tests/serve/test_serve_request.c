/* Bodies as OpenAI's clients send them, and as nobody should: what becomes of each field, and how each is refused. */
#include "serve/request_internal.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static serve_request parsed(serve_kind kind, const char *body) {
    serve_request r;
    serve_refusal why;
    OK(serve_request_parse(&r, kind, body, strlen(body), &why));
    return r;
}
static serve_request chat(const char *more) {
    char body[1024];
    (void)snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]%s}", more);
    return parsed(SERVE_CHAT, body);
}
static serve_request completion(const char *more) {
    char body[1024];
    (void)snprintf(body, sizeof body, "{\"prompt\": \"a\"%s}", more);
    return parsed(SERVE_COMPLETION, body);
}

/* ---- what is taken --------------------------------------------------------------------------------------------------- */

static void defaults_are_those_of_openai(void **state) {
    (void)state;
    serve_request r = chat("");
    assert_null(r.model);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.answers, 1);
    assert_true(r.max_tokens < 0 && r.sampling.temperature == 1 && r.sampling.top_p == 0);
    assert_false(r.stream || r.logprobs || r.echo || r.seed_given || r.ignore_eos || r.include_usage);
    assert_int_equal(serve_request_max_tokens(&r, 10, 64), 54); /* a chat goes on to the end */
    serve_request_free(&r);
    r = completion("");
    assert_int_equal(serve_request_max_tokens(&r, 10, 64), 16);
    assert_int_equal(serve_request_max_tokens(&r, 60, 64), 4);
    serve_request_free(&r);
}

static void every_field_of_a_chat(void **state) {
    (void)state;
    serve_request r = chat(
        ",\"model\":\"m\",\"max_completion_tokens\":7,\"n\":3,\"seed\":-5,\"stop\":[\"a\",\"bc\"],\"temperature\":0.5,"
        "\"top_p\":0.9,\"presence_penalty\":-1,\"frequency_penalty\":2,\"stream\":true,\"stream_options\":"
        "{\"include_usage\":true},\"logprobs\":true,\"top_logprobs\":4,\"top_k\":40,\"min_p\":0.1,"
        "\"repetition_penalty\":1.2,\"ignore_eos\":true,\"chat_template_kwargs\":{\"enable_thinking\":false}");
    assert_string_equal(r.model, "m");
    assert_true(r.max_tokens == 7 && r.answers == 3 && r.seed_given && r.sampling.seed == (uint64_t)-5);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "bc");
    assert_true(r.sampling.temperature == 0.5 && r.sampling.top_p == 0.9 && r.sampling.top_k == 40);
    assert_true(r.sampling.presence_penalty == -1 && r.sampling.frequency_penalty == 2);
    assert_true(r.sampling.min_p == 0.1 && r.sampling.repetition_penalty == 1.2);
    assert_true(r.stream && r.include_usage && r.logprobs && r.top == 4 && r.ignore_eos);
    const tm_json *conversation = tm_json_root(r.conversation);
    assert_non_null(tm_json_get(tm_json_get(conversation, "chat_template_kwargs"), "enable_thinking"));
    serve_request_free(&r);
}

static void all_tokens_are_kept_in_both_words(void **state) {
    (void)state;
    serve_request r =
        completion(",\"top_p\":1,\"top_k\":-1,\"stop\":\"x\",\"logprobs\":0,\"echo\":true,\"max_tokens\":0");
    assert_true(r.sampling.top_p == 0 && r.sampling.top_k == 0 && r.n_stop == 1);
    assert_true(r.logprobs && r.top == 0 && r.echo && r.max_tokens == 0);
    serve_request_free(&r);
}

static void null_is_as_if_it_were_not_there(void **state) {
    (void)state;
    serve_request r =
        chat(",\"stop\":null,\"seed\":null,\"max_tokens\":null,\"logit_bias\":null,\"tools\":null,\"n\":null,"
             "\"stream_options\":null,\"response_format\":null,\"logprobs\":null,\"top_logprobs\":null");
    assert_true(r.answers == 1 && r.n_stop == 0 && !r.seed_given && r.max_tokens < 0);
    serve_request_free(&r);
}

static void what_changes_no_answer_is_read_over(void **state) {
    (void)state;
    serve_request r =
        chat(",\"user\":\"u\",\"store\":true,\"metadata\":{\"a\":\"b\"},\"service_tier\":\"auto\",\"tools\":[],"
             "\"tool_choice\":\"none\",\"parallel_tool_calls\":true,\"response_format\":{\"type\":\"text\"},"
             "\"modalities\":[\"text\"],\"logit_bias\":{},\"prompt_cache_key\":\"k\"");
    serve_request_free(&r);
    r = completion(",\"best_of\":1,\"suffix\":\"\",\"user\":\"u\"");
    serve_request_free(&r);
}

static void prompts_of_four_forms(void **state) {
    (void)state;
    serve_request r = parsed(SERVE_COMPLETION, "{\"prompt\":[\"a\",\"bc\"]}");
    assert_true(r.n_prompts == 2 && !r.prompt[0].is_ids);
    assert_string_equal(r.prompt[1].text.data, "bc");
    serve_request_free(&r);
    r = parsed(SERVE_COMPLETION, "{\"prompt\":[5,6,7]}");
    assert_true(r.n_prompts == 1 && r.prompt[0].is_ids && r.prompt[0].ids.n == 3 && r.prompt[0].ids.id[2] == 7);
    serve_request_free(&r);
    r = parsed(SERVE_COMPLETION, "{\"prompt\":[[5],[6,7]]}");
    assert_true(r.n_prompts == 2 && r.prompt[1].is_ids && r.prompt[1].ids.n == 2 && r.prompt[1].ids.id[0] == 6);
    serve_request_free(&r);
}

static void parts_of_a_content_become_one_text(void **state) {
    (void)state;
    serve_request r =
        parsed(SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"name\":\"N\",\"content\":[{\"type\":\"text\","
                           "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
                           "{\"role\":\"assistant\",\"content\":null}]}");
    const tm_json *message = tm_json_get(tm_json_root(r.conversation), "messages")->child;
    assert_string_equal(tm_json_get(message, "content")->text, "a\nb");
    assert_string_equal(tm_json_get(message, "name")->text, "N");
    assert_int_equal(tm_json_get(message->next, "content")->type, TM_JSON_NULL);
    serve_request_free(&r);
}

/* ---- what is refused ----------------------------------------------------------------------------------------------------- */

typedef struct refused {
    serve_kind kind;
    const char *body, *param, *code;
} refused;

#define CHAT(more) SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]," more "}"
#define COMPLETION(more) SERVE_COMPLETION, "{\"prompt\":\"a\"," more "}"

static void each_refusal_names_its_field(void **state) {
    static const refused rows[] = {
        {SERVE_CHAT, "", "", NULL},
        {SERVE_CHAT, "{", "", NULL},
        {SERVE_CHAT, "[]", "", "invalid_type"},
        {SERVE_CHAT, "{}", "messages", "missing_required_parameter"},
        {SERVE_CHAT, "{\"messages\":[]}", "messages", "invalid_type"},
        {SERVE_CHAT, "{\"messages\":\"Hi\"}", "messages", "invalid_type"},
        {SERVE_CHAT, "{\"messages\":[\"Hi\"]}", "messages", "invalid_type"},
        {SERVE_CHAT, "{\"messages\":[{\"content\":\"Hi\"}]}", "messages", "invalid_type"},
        {SERVE_CHAT, "{\"messages\":[{\"role\":1,\"content\":\"Hi\"}]}", "messages", "invalid_type"},
        {SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages", "invalid_type"},
        {SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages",
         "invalid_value"},
        {CHAT("\"prompt\":\"a\""), "prompt", "unknown_parameter"},
        {CHAT("\"temprature\":1"), "temprature", "unknown_parameter"},
        {CHAT("\"model\":7"), "model", "invalid_type"},
        {CHAT("\"model\":\"\""), "model", "invalid_value"},
        {CHAT("\"max_tokens\":0"), "max_tokens", "invalid_value"},
        {CHAT("\"max_tokens\":1.5"), "max_tokens", "invalid_type"},
        {CHAT("\"max_tokens\":5,\"max_completion_tokens\":6"), "max_tokens", "invalid_value"},
        {CHAT("\"n\":0"), "n", "invalid_value"},
        {CHAT("\"n\":1000000000000"), "n", "invalid_value"},
        {CHAT("\"n\":\"2\""), "n", "invalid_type"},
        {CHAT("\"seed\":1e99"), "seed", "invalid_type"},
        {CHAT("\"temperature\":2.1"), "temperature", "invalid_value"},
        {CHAT("\"temperature\":1e999"), "", NULL},
        {CHAT("\"temperature\":\"hot\""), "temperature", "invalid_type"},
        {CHAT("\"top_p\":0"), "top_p", "invalid_value"},
        {CHAT("\"top_k\":-2"), "top_k", "invalid_value"},
        {CHAT("\"repetition_penalty\":0"), "repetition_penalty", "invalid_value"},
        {CHAT("\"presence_penalty\":3"), "presence_penalty", "invalid_value"},
        {CHAT("\"stop\":[\"a\",7]"), "stop", "invalid_type"},
        {CHAT("\"stop\":\"\""), "stop", "invalid_value"},
        {CHAT("\"stop\":\"a\\u0000b\""), "stop", "invalid_value"},
        {CHAT("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\",\"14\","
              "\"15\","
              "\"16\",\"17\"]"),
         "stop", "invalid_value"},
        {CHAT("\"stream\":1"), "stream", "invalid_type"},
        {CHAT("\"stream_options\":{\"include_usage\":true}"), "stream_options", "invalid_value"},
        {CHAT("\"stream\":true,\"stream_options\":{\"more\":true}"), "stream_options", "unknown_parameter"},
        {CHAT("\"logprobs\":5"), "logprobs", "invalid_type"},
        {CHAT("\"top_logprobs\":5"), "top_logprobs", "invalid_value"},
        {CHAT("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "invalid_value"},
        {CHAT("\"tools\":[{}]"), "tools", "unsupported_value"},
        {CHAT("\"tool_choice\":\"required\""), "tool_choice", "unsupported_value"},
        {CHAT("\"response_format\":{\"type\":\"json_object\"}"), "response_format", "unsupported_value"},
        {CHAT("\"logit_bias\":{\"5\":1}"), "logit_bias", "unsupported_value"},
        {CHAT("\"n\":1,\"n\":1"), "", NULL}, /* twice */
        {SERVE_COMPLETION, "{}", "prompt", "missing_required_parameter"},
        {SERVE_COMPLETION, "{\"prompt\":7}", "prompt", "invalid_type"},
        {SERVE_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt", "invalid_value"},
        {SERVE_COMPLETION, "{\"prompt\":[-1]}", "prompt", "invalid_value"},
        {SERVE_COMPLETION, "{\"prompt\":[[1],2]}", "prompt", "invalid_type"},
        {SERVE_COMPLETION, "{\"prompt\":[1.5]}", "prompt", "invalid_value"},
        {SERVE_COMPLETION, "{\"prompt\":[4294967296]}", "prompt", "invalid_value"},
        {COMPLETION("\"logprobs\":true"), "logprobs", "invalid_type"},
        {COMPLETION("\"best_of\":2"), "best_of", "unsupported_value"},
        {COMPLETION("\"suffix\":\"b\""), "suffix", "unsupported_value"},
        {COMPLETION("\"max_tokens\":-1"), "max_tokens", "invalid_value"},
        {COMPLETION("\"max_tokens\":0,\"n\":2"), "n", "invalid_value"},
        {COMPLETION("\"n\":2,\"echo\":true,\"logprobs\":1,\"stream\":true"), "n", "unsupported_value"},
        {SERVE_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":200}", "n", "invalid_value"},
    };
    (void)state;
    uint64_t live = tm_mem_live_bytes();
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        serve_request r;
        serve_refusal why;
        assert_int_equal(serve_request_parse(&r, rows[i].kind, rows[i].body, strlen(rows[i].body), &why), TM_EINPUT);
        if (why.status != 400 || strcmp(why.param, rows[i].param) != 0 ||
            (rows[i].code ? !why.code || strcmp(why.code, rows[i].code) != 0 : why.code != NULL))
            fail_msg("%s: %d '%s' %s: %s", rows[i].body, why.status, why.param, why.code, tm_error_get()->text);
        assert_true(tm_error_get()->text[0] != 0);
        tm_error_clear();
        assert_int_equal(tm_mem_live_bytes(), live);
    }
}

/* A key that holds a zero is another key: it neither is the field nor hides a second one. */
static void keys_with_zeros_are_unknown(void **state) {
    static const char body[] = "{\"prompt\":\"a\",\"stop\":\"x\",\"stop\\u0000\":\"y\"}";
    serve_request r;
    serve_refusal why;
    (void)state;
    assert_int_equal(serve_request_parse(&r, SERVE_COMPLETION, body, sizeof body - 1, &why), TM_EINPUT);
    assert_string_equal(why.code, "unknown_parameter");
    tm_error_clear();
}

static void deep_and_large_bodies_end_soon(void **state) {
    tm_buf body = {0};
    serve_request r;
    serve_refusal why;
    (void)state;
    OK(tm_buf_append(&body, "{\"prompt\":", 10));
    for (int i = 0; i < 100000; i++) OK(tm_buf_append(&body, "[", 1));
    assert_int_equal(serve_request_parse(&r, SERVE_COMPLETION, body.data, body.len, &why), TM_EINPUT);
    assert_int_equal(why.status, 400);
    tm_error_clear();
    body.len = 10;
    OK(tm_buf_append(&body, "[1", 2));
    while (body.len < SERVE_BODY_BYTES) OK(tm_buf_append(&body, ",1", 2)); /* a tree of a hundred megabytes */
    assert_int_equal(serve_request_parse(&r, SERVE_COMPLETION, body.data, body.len, &why), TM_EINPUT);
    assert_int_equal(why.status, 400);
    tm_error_clear();
    tm_buf_free(&body);
}

static void no_memory_is_not_the_clients_fault(void **state) {
    (void)state;
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stop\":[\"a\",\"b\"],\"model\":\"m\"}";
    for (unsigned i = 1; i < 100; i++) {
        char spec[64];
        serve_request r;
        serve_refusal why;
        uint64_t live = tm_mem_live_bytes();
        (void)snprintf(spec, sizeof spec, "alloc:%u:fail:once", i);
        OK(tm_fault_set(spec));
        tm_status rc = serve_request_parse(&r, SERVE_CHAT, body, sizeof body - 1, &why);
        OK(tm_fault_set(NULL));
        if (rc == TM_OK) {
            assert_true(i > 5);
            serve_request_free(&r);
            return;
        }
        assert_int_equal(rc, TM_ENOMEM);
        assert_int_equal(why.status, 500);
        tm_error_clear();
        assert_int_equal(tm_mem_live_bytes(), live);
    }
    fail_msg("it never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_openai),        cmocka_unit_test(every_field_of_a_chat),
        cmocka_unit_test(all_tokens_are_kept_in_both_words),   cmocka_unit_test(null_is_as_if_it_were_not_there),
        cmocka_unit_test(what_changes_no_answer_is_read_over), cmocka_unit_test(prompts_of_four_forms),
        cmocka_unit_test(parts_of_a_content_become_one_text),  cmocka_unit_test(each_refusal_names_its_field),
        cmocka_unit_test(keys_with_zeros_are_unknown),         cmocka_unit_test(deep_and_large_bodies_end_soon),
        cmocka_unit_test(no_memory_is_not_the_clients_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
