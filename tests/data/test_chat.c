/* chat: the four golden templates, others run by transformers beforehand, spans, limits and errors. */
#include "golden_lines.h"
#include "data/chat.h"

typedef struct fixture {
    tm_tokenizer *tokenizer;
    tm_chat *chat;
    bool generation; /* the template marks the assistant's text itself: only then has the fixture a mask worth the name
                      */
    size_t masks;
} fixture;

static void expect_mask(const tm_json *want, const tm_buf *got) {
    size_t i = 0;
    for (const tm_json *bit = want->child; bit != NULL; bit = bit->next, i++)
        if (i >= got->len || got->data[i] != (char)bit->integer) fail_msg("loss mask differs at token %zu", i);
    assert_int_equal(i, got->len);
}

static void encode_row(const tm_json *row, void *ctx, bool prompt, const char *text_key, const char *ids_key) {
    fixture *f = ctx;
    tm_buf text = {0}, mask = {0};
    tm_ids ids = {0};
    OK(tm_chat_encode(f->chat, tm_json_get(row, "messages"), prompt, &text, &ids, &mask));
    expect_text(tm_json_get(row, text_key), &text, text_key);
    expect_ids(tm_json_get(row, ids_key), &ids, text.data);
    assert_int_equal(mask.len, ids.n);
    const tm_json *want = prompt || !f->generation ? NULL : tm_json_get(row, "assistant_mask");
    if (want != NULL) expect_mask(want, &mask), f->masks++;
    tm_buf_free(&text);
    tm_buf_free(&mask);
    tm_ids_free(&ids);
}

static void conversation(const tm_json *row, void *ctx) {
    encode_row(row, ctx, false, "rendered", "ids");
    encode_row(row, ctx, true, "rendered_with_generation_prompt", "ids_with_generation_prompt");
}

static fixture open_fixture(const char *dir) {
    fixture f = {.tokenizer = open_tokenizer(dir)};
    tm_buf jinja = {0}, config = {0};
    assert_true(read_file(dir, "chat_template.jinja", &jinja));
    assert_true(read_file(dir, "tokenizer_config.json", &config));
    tm_chat_opts opts = {.tokenizer_config = config.data, .tokenizer_config_len = config.len};
    OK(tm_chat_open(&f.chat, f.tokenizer, jinja.data, jinja.len, "chat_template.jinja", &opts));
    tm_buf_free(&jinja);
    tm_buf_free(&config);
    return f;
}

static void golden(const char *folder, size_t masks) {
    char dir[512];
    (void)snprintf(dir, sizeof dir, "%s/%s", TM_TEST_FIXTURES, folder);
    fixture f = open_fixture(dir);
    f.generation = masks > 0;
    assert_int_equal(for_each_line(dir, "conversations.jsonl", conversation, &f), 20);
    assert_int_equal(f.masks, masks);
    tm_chat_close(f.chat);
    tm_tokenizer_close(f.tokenizer);
}

static void test_chatml(void **state) {
    (void)state, golden("chat_chatml", 20);
}
static void test_llama3(void **state) {
    (void)state, golden("chat_llama3", 0);
}
static void test_qwen(void **state) {
    (void)state, golden("chat_qwen", 0);
}
static void test_zephyr(void **state) {
    (void)state, golden("chat_zephyr", 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_zephyr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
