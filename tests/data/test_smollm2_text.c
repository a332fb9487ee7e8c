/* The real model's tokenizer and template, as they come out of its GGUF file: every id of the smollm2 fixture. */
#include "golden_lines.h"
#include "text/chat/chat.h"
#include "format/format.h"
#include "tests/support/skip.h"

#define MODEL TM_TEST_SHARED "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define FIXTURE TM_TEST_SHARED "/fixtures/public/smollm2"

typedef struct real {
    tm_tokenizer *tokenizer;
    tm_chat *chat;
    tm_json_doc *golden;
} real;

static void side_file(const tm_source *source, const char *name, tm_buf *out) {
    bool found = false;
    OK(tm_source_file(source, name, out, &found));
    if (!found) fail_msg("%s has no %s", MODEL, name);
}

static int open_real(void **state) {
    static real r;
    tm_buf tokenizer = {0}, jinja = {0}, config = {0}, golden = {0};
    tm_source *source;
    OK(tm_source_open_bare(&source, MODEL));
    side_file(source, "tokenizer.json", &tokenizer);
    side_file(source, "chat_template.jinja", &jinja);
    side_file(source, "tokenizer_config.json", &config);
    tm_mem_source mem = {tokenizer.data, tokenizer.len, 0};
    OK(tm_tokenizer_open(&r.tokenizer, tm_mem_source_read, &mem, "tokenizer.json"));
    const tm_chat_opts opts = {.tokenizer_config = config.data, .tokenizer_config_len = config.len};
    OK(tm_chat_open(&r.chat, r.tokenizer, jinja.data, jinja.len, "chat_template.jinja", &opts));
    assert_true(read_file(FIXTURE, "golden.json", &golden));
    OK(tm_json_parse(&r.golden, golden.data, golden.len, "golden.json", 0, 0));
    tm_source_close(source);
    tm_buf_free(&tokenizer);
    tm_buf_free(&jinja);
    tm_buf_free(&config);
    tm_buf_free(&golden);
    *state = &r;
    return 0;
}

static int close_real(void **state) {
    real *r = *state;
    tm_chat_close(r->chat);
    tm_tokenizer_close(r->tokenizer);
    tm_json_free(r->golden);
    return 0;
}

static void test_texts(void **state) {
    const real *r = *state;
    size_t n = 0;
    for (const tm_json *t = tm_json_get(tm_json_root(r->golden), "texts")->child; t != NULL; t = t->next, n++) {
        const tm_json *text = tm_json_get(t, "text");
        tm_ids ids = {0};
        tm_buf back = {0};
        OK(tm_tokenizer_encode(r->tokenizer, text->text, text->len, false, &ids));
        expect_ids(tm_json_get(t, "ids"), &ids, text->text);
        OK(tm_tokenizer_decode(r->tokenizer, ids.id, ids.n, false, &back));
        expect_text(text, &back, "decoded");
        tm_ids_free(&ids);
        tm_buf_free(&back);
    }
    assert_true(n > 0);
}

/* The mask covers what comes after the prompt, but for the line break after the end-of-turn token. */
static void test_conversation(void **state) {
    const real *r = *state;
    const tm_json *golden = tm_json_get(tm_json_root(r->golden), "chat");
    tm_ids ids = {0};
    tm_buf text = {0}, mask = {0};
    OK(tm_chat_encode(r->chat, tm_json_get(golden, "messages"), false, &text, &ids, &mask));
    expect_text(tm_json_get(golden, "text"), &text, "chat");
    expect_ids(tm_json_get(golden, "ids"), &ids, "chat");
    size_t prompt = tm_json_get(golden, "prompt_ids")->count;
    assert_int_equal(mask.len, ids.n);
    for (size_t i = 0; i < ids.n; i++) assert_int_equal(mask.data[i], i >= prompt && i + 1 < ids.n);
    tm_ids_free(&ids);
    tm_buf_free(&text);
    tm_buf_free(&mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_conversation)};
    FILE *model = fopen(MODEL, "rb"), *golden = fopen(FIXTURE "/golden.json", "rb");
    if (model == NULL || golden == NULL) {
        TEST_SKIP_PROGRAM("%s is not there", model == NULL ? MODEL : FIXTURE "/golden.json");
    }
    (void)fclose(model);
    (void)fclose(golden);
    return cmocka_run_group_tests(tests, open_real, close_real);
}
