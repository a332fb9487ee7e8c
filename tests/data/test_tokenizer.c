/* tokenizer: every id of every golden string, spans, what is refused, and what a hostile file or text may cost. */
#include "golden_lines.h"

/* ---- golden ----------------------------------------------------------------------------------------------------- */

static void decode_as(const tm_tokenizer *t, const tm_json *ids, bool skip, const tm_json *want, const char *what) {
    tm_ids list = {0};
    tm_buf text = {0};
    for (const tm_json *id = ids->child; id != NULL; id = id->next) OK(tm_ids_push(&list, (int32_t)id->integer));
    OK(tm_tokenizer_decode(t, list.id, list.n, skip, &text));
    expect_text(want, &text, what);
    tm_ids_free(&list);
    tm_buf_free(&text);
}

static void encode_row(const tm_json *row, void *ctx) {
    const tm_tokenizer *t = ctx;
    const tm_json *text = tm_json_get(row, "text");
    tm_ids plain = {0}, special = {0};
    OK(tm_tokenizer_encode(t, text->text, text->len, false, &plain));
    expect_ids(tm_json_get(row, "ids"), &plain, text->text);
    OK(tm_tokenizer_encode(t, text->text, text->len, true, &special));
    expect_ids(tm_json_get(row, "ids_with_special"), &special, text->text);
    decode_as(t, tm_json_get(row, "ids"), false, tm_json_get(row, "decoded"), text->text);
    decode_as(t, tm_json_get(row, "ids_with_special"), true, tm_json_get(row, "decoded_skip_special"), text->text);
    tm_ids_free(&plain);
    tm_ids_free(&special);
}

static void decode_row(const tm_json *row, void *ctx) {
    decode_as(ctx, tm_json_get(row, "ids"), false, tm_json_get(row, "decoded"), "decode.jsonl");
    decode_as(ctx, tm_json_get(row, "ids"), true, tm_json_get(row, "decoded_skip_special"), "decode.jsonl");
}

static void golden(const char *folder, uint32_t vocab) {
    char dir[512];
    (void)snprintf(dir, sizeof dir, "%s/%s", TM_TEST_FIXTURES, folder);
    tm_tokenizer *t = open_tokenizer(dir);
    assert_int_equal(tm_tokenizer_vocab_size(t), vocab);
    assert_int_equal(for_each_line(dir, "encode.jsonl", encode_row, t), 300);
    assert_int_equal(for_each_line(dir, "decode.jsonl", decode_row, t), 60);
    tm_tokenizer_close(t);
}

static void test_gpt2(void **state) {
    (void)state, golden("tok_gpt2", 506);
}
static void test_llama3(void **state) {
    (void)state, golden("tok_llama3", 507);
}
static void test_qwen2(void **state) {
    (void)state, golden("tok_qwen2", 507);
}
static void test_spm(void **state) {
    (void)state, golden("tok_spm", 521);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_spm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
