/* chat: the four golden templates, others run by transformers beforehand, spans, what of a conversation is learned. */
#include "chat_folder.h"
#include "tests/support/skip.h"

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
    f.chat = open_chat(dir, f.tokenizer);
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

/* ---- templates of our own, run by transformers beforehand (tests/fixtures/chat_cases/make.py) -------------------- */

typedef struct cases {
    tm_tokenizer *tokenizer;
    size_t spans; /* compared */
} cases;

static tm_chat *open_template(const tm_tokenizer *t, const tm_json *text) {
    const tm_chat_opts opts = {.bos_token = "<|endoftext|>", .eos_token = "<|im_end|>"};
    tm_chat *chat = NULL;
    OK(tm_chat_open(&chat, t, text->text, text->len, "case", &opts));
    return chat;
}

static void join_touching(tm_chat_spans *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (n > 0 && s->span[n - 1].end == s->span[i].begin)
            s->span[n - 1].end = s->span[i].end;
        else
            s->span[n++] = s->span[i];
    }
    s->n = n;
}

/* Spans that touch are one here: the reference has one a block, and keeps empty ones; ours are one a message. */
static size_t expect_spans(const tm_json *want, tm_chat_spans *got, const char *what) {
    size_t i = 0;
    join_touching(got);
    for (const tm_json *s = want->child, *next; s != NULL; s = next) {
        size_t begin = (size_t)s->child->integer, end = (size_t)s->child->next->integer;
        for (next = s->next; next != NULL && (size_t)next->child->integer == end; next = next->next)
            end = (size_t)next->child->next->integer;
        if (begin == end) continue;
        if (i >= got->n) fail_msg("%s: only %zu spans", what, got->n);
        if (got->span[i].begin != begin || got->span[i].end != end)
            fail_msg("%s: span %zu is %zu..%zu, not %zu..%zu", what, i, got->span[i].begin, got->span[i].end, begin,
                     end);
        i++;
    }
    if (i != got->n) fail_msg("%s: %zu spans, not %zu", what, got->n, i);
    return i;
}

/* Renders a row's messages with one of its two templates. */
static void run_case(const tm_json *row, cases *c, const char *template, bool prompt) {
    const tm_json *want = tm_json_get(row, prompt ? "with_prompt" : "plain"), *error = tm_json_get(want, "error");
    const char *name = tm_json_get(row, "name")->text;
    tm_chat *chat = open_template(c->tokenizer, tm_json_get(row, template));
    tm_buf text = {0};
    tm_chat_spans spans = {0};
    tm_status rc = tm_chat_render(chat, tm_json_get(row, "messages"), prompt, &text, &spans);
    if (error != NULL) {
        assert_int_equal(rc, TM_EINPUT);
        assert_int_equal(text.len, 0);
        tm_error_clear();
    } else {
        OK(rc);
        expect_text(tm_json_get(want, "text"), &text, name);
        /* "odds and ends" prints whole conversations outside of its generation blocks */
        if (strcmp(template, "marked") == 0 || strcmp(name, "odds and ends") != 0)
            c->spans += expect_spans(tm_json_get(want, "spans"), &spans, name);
    }
    tm_chat_spans_free(&spans);
    tm_buf_free(&text);
    tm_chat_close(chat);
}

static void case_row(const tm_json *row, void *ctx) {
    for (int i = 0; i < 4; i++) run_case(row, ctx, i & 1 ? "marked" : "template", i & 2);
}

static void test_cases(void **state) {
    (void)state;
    cases c = {.tokenizer = open_tokenizer(TM_TEST_FIXTURES "/tok_qwen2")};
    assert_int_equal(for_each_line(TM_TEST_FIXTURES "/chat_cases", "cases.jsonl", case_row, &c), 60);
    assert_true(c.spans > 200);
    tm_tokenizer_close(c.tokenizer);
}

/* ---- templates of families (tests/fixtures/chat_families/make.py) ------------------------------------------------- */

enum { MOST_CONVERSATIONS = 40 };
typedef struct families {
    tm_tokenizer *tokenizer;
    tm_chat *chat; /* of the last row with a template */
    char name[64];
    tm_json_doc *conversation[MOST_CONVERSATIONS];
    size_t conversations, rendered, refused, spans;
} families;

static void expect_family(families *f, const tm_json *row, const tm_json *conversation) {
    const tm_json *want = tm_json_get(row, "text"), *prompt = tm_json_get(row, "prompt");
    tm_buf text = {0};
    tm_chat_spans spans = {0};
    tm_status rc = tm_chat_render(f->chat, conversation, false, &text, &spans);
    if (want == NULL) {
        assert_int_equal(rc, TM_EINPUT);
        tm_error_clear();
        f->refused++;
        return;
    }
    OK(rc);
    expect_text(want, &text, f->name);
    f->spans += expect_spans(tm_json_get(row, "spans"), &spans, f->name);
    f->rendered++;
    tm_buf_clear(&text);
    OK(tm_chat_render(f->chat, conversation, true, &text, NULL));
    if (prompt != NULL) {
        assert_int_equal(text.len, want->len + prompt->len);
        assert_memory_equal(text.data + want->len, prompt->text, prompt->len);
    }
    tm_chat_spans_free(&spans);
    tm_buf_free(&text);
}

static void family_row(families *f, tm_json_doc *doc) {
    const tm_json *row = tm_json_root(doc), *template = tm_json_get(row, "template");
    if (tm_json_get(row, "conversation") != NULL) {
        assert_true(f->conversations < MOST_CONVERSATIONS);
        f->conversation[f->conversations++] = doc;
        return;
    }
    if (template != NULL) {
        const tm_chat_opts opts = {.bos_token = "<s>", .eos_token = "</s>"};
        (void)snprintf(f->name, sizeof f->name, "%s", tm_json_get(row, "family")->text);
        tm_chat_close(f->chat);
        OK(tm_chat_open(&f->chat, f->tokenizer, template->text, template->len, f->name, &opts));
    } else {
        size_t i = (size_t)tm_json_get(row, "number")->integer;
        assert_true(i < f->conversations);
        expect_family(f, row, tm_json_get(tm_json_root(f->conversation[i]), "conversation"));
    }
    tm_json_free(doc);
}

static void test_families(void **state) {
    (void)state;
    families f = {.tokenizer = open_tokenizer(TM_TEST_FIXTURES "/chat_families")};
    tm_buf all = {0};
    assert_true(read_file(TM_TEST_FIXTURES "/chat_families", "cases.jsonl", &all));
    for (char *line = all.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        tm_json_doc *doc;
        OK(tm_json_parse(&doc, line, (size_t)(end - line), "cases.jsonl", 0, 0));
        family_row(&f, doc);
    }
    assert_int_equal(f.conversations, 26);
    assert_int_equal(f.rendered + f.refused, 9 * 26 - 1);
    assert_true(f.rendered > 200 && f.spans > 200);
    for (size_t i = 0; i < f.conversations; i++) tm_json_free(f.conversation[i]);
    tm_chat_close(f.chat);
    tm_tokenizer_close(f.tokenizer);
    tm_buf_free(&all);
}

/* ---- the real model, where it is --------------------------------------------------------------------------------- */

/* The template of the model's file, as the fixture's text shows it. */
static const char smollm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static void test_smollm2_text(void **state) {
    (void)state;
    tm_buf json = {0}, text = {0};
    tm_json_doc *doc;
    tm_chat *chat;
    tm_chat_spans spans = {0};
    if (!read_file(TM_TEST_SHARED "/fixtures/public/smollm2", "golden.json", &json)) {
        TEST_SKIP("no smollm2 fixture below " TM_TEST_SHARED "");
    }
    OK(tm_json_parse(&doc, json.data, json.len, "golden.json", 0, 0));
    const tm_json *golden_chat = tm_json_get(tm_json_root(doc), "chat"), *m = tm_json_get(golden_chat, "messages");
    const tm_chat_opts opts = {.eos_token = "<|im_end|>"};
    OK(tm_chat_open(&chat, NULL, smollm2, sizeof smollm2 - 1, "smollm2", &opts));
    OK(tm_chat_render(chat, m, false, &text, &spans));
    expect_text(tm_json_get(golden_chat, "text"), &text, "smollm2");
    const tm_json *answer = tm_json_get(m->child->next, "content");
    assert_int_equal(spans.n, 1);
    assert_memory_equal(text.data + spans.span[0].begin, answer->text, answer->len);
    assert_int_equal(spans.span[0].end - spans.span[0].begin, answer->len + strlen("<|im_end|>"));
    tm_chat_close(chat);
    tm_chat_spans_free(&spans);
    tm_json_free(doc);
    tm_buf_free(&json);
    tm_buf_free(&text);
}

/* ---- what is learned ---------------------------------------------------------------------------------------------- */

#define ASK "{\"role\":\"user\",\"content\":\"a\"}"
#define ANSWER(more) "{\"role\":\"assistant\",\"content\":\"b\"" more "}"
static const char turns_of[] =
    "{% for m in messages %}<|im_start|>{{ m.role[0] }}{% if m.reasoning_content and loop.last %}({{ "
    "m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}";

/* The mask as text: a digit a byte of <...> tokens as one. */
static tm_status labels_of(const char *template, const char *conversation, const tm_chat_labels *how, tm_buf *mask) {
    tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/chat_families");
    const tm_chat_opts opts = {.eos_token = "<|im_end|>"};
    tm_chat *chat;
    tm_json_doc *doc;
    tm_ids ids = {0};
    OK(tm_json_parse(&doc, conversation, strlen(conversation), "conversation", 0, 0));
    OK(tm_chat_open(&chat, t, template, strlen(template), "T", &opts));
    tm_status rc = tm_chat_encode_labels(chat, tm_json_root(doc), how, NULL, &ids, mask);
    for (size_t i = 0; i < mask->len; i++) mask->data[i] = (char)(mask->data[i] + '0');
    tm_ids_free(&ids);
    tm_chat_close(chat);
    tm_json_free(doc);
    tm_tokenizer_close(t);
    return rc;
}

static void test_labels(void **state) {
    static const struct {
        const char *conversation;
        tm_chat_labels how;
        const char *mask;
    } rows[] = {
        /* <u a> <a b> <u a> <a b>: a turn is four tokens */
        {"[" ASK "," ANSWER("") "," ASK "," ANSWER("") "]", {0}, "0000001100000011"},
        {"[" ASK "," ANSWER("") "," ASK "," ANSWER("") "]", {.mask_history = true}, "0000000000000011"},
        {"[" ASK "," ANSWER("") "," ASK "," ANSWER("") "]", {.train_on_inputs = true}, "1111111111111111"},
        {"[" ASK "," ANSWER("") "," ANSWER("") "]", {.mask_history = true}, "000000110011"},
        {"[" ASK "," ANSWER(",\"loss\":false") "," ASK "," ANSWER(",\"loss\":true") "]", {0}, "0000000000000011"},
        {"[" ASK "," ANSWER(",\"train\":0") "," ASK "," ANSWER(",\"train\":null") "]", {0}, "0000000000000011"},
        {"[" ASK "," ANSWER(",\"train\":1") "," ASK "," ANSWER("") "]", {.mask_history = true}, "0000001100000011"},
        {"[" ASK "," ANSWER(",\"loss\":false") "]", {.train_on_inputs = true}, "11111100"},
        {"[{\"role\":\"user\",\"content\":\"a\",\"train\":true}," ANSWER("") "]", {0}, "00110011"},
        /* (t) is shown of the last turn alone: the first is not what the model would have written */
        {"[" ASK "," ANSWER(",\"reasoning_content\":\"t\"") "," ASK "," ANSWER(",\"reasoning_content\":\"s\"") "]",
         {0},
         "0000000000000011111"},
        {"[" ASK "," ANSWER(",\"reasoning_content\":\"t\",\"loss\":true") "," ASK "," ANSWER("") "]",
         {0},
         "0000001100000011"},
        {"{\"messages\":[" ASK "," ANSWER("") "],\"tools\":\"\"}", {.generation_prompt = true}, "0000001100"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_buf mask = {0};
        OK(labels_of(turns_of, rows[i].conversation, &rows[i].how, &mask));
        if (strcmp(mask.data, rows[i].mask) != 0) fail_msg("row %zu: %s, not %s", i, mask.data, rows[i].mask);
        tm_buf_free(&mask);
    }
}

/* A template that shows no thoughts at all loses none: its answers are learned. */
static void test_labels_without_thoughts(void **state) {
    static const char plain[] = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
    static const char cut[] =
        "{% for m in messages %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor "
        "%}";
    tm_buf mask = {0};
    (void)state;
    OK(labels_of(plain, "[" ANSWER(",\"reasoning_content\":\"t\"") "]", &(tm_chat_labels){0}, &mask));
    assert_string_equal(mask.data, "011");
    tm_buf_clear(&mask);
    OK(labels_of(plain, "[" ANSWER("") "," ANSWER(",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]") "]",
                 &(tm_chat_labels){0}, &mask));
    assert_string_equal(mask.data, "011000");
    tm_buf_clear(&mask);
    /* an end of turns that is no token of this tokenizer */
    OK(labels_of("{% for m in messages %}{{ m.content }}#E\n{% endfor %}", "[" ANSWER("") "," ASK "," ANSWER("") "]",
                 &(tm_chat_labels){0}, &mask));
    assert_string_equal(mask.data, "111000001110");
    tm_buf_clear(&mask);
    OK(labels_of(cut, "[{\"role\":\"assistant\",\"content\":\"<think>t</think>b\"}]", &(tm_chat_labels){0}, &mask));
    assert_string_equal(mask.data, "011");
    tm_buf_free(&mask);
}

static void test_conversations_refused(void **state) {
    static const struct {
        const char *text, *says;
        tm_status rc;
    } bad[] = {
        {"[" ANSWER(",\"loss\":0.5") "]", "neither true nor false", TM_EUNSUPPORTED},
        {"[" ANSWER(",\"train\":\"no\"") "]", "neither true nor false", TM_EUNSUPPORTED},
        {"[" ANSWER(",\"loss\":true,\"train\":false") "]", "which differ", TM_EINPUT},
        {"{\"messages\":[" ASK "],\"tools\":{}}", "no list of functions", TM_EINPUT},
        {"{\"messages\":[" ASK "],\"tools\":\"[1\"}", "no JSON of a list: tools:1:", TM_EINPUT},
        {"{\"messages\":[" ASK "],\"chat_template_kwargs\":[]}", "is no object", TM_EINPUT},
        {"{\"messages\":[" ASK "],\"chat_template_kwargs\":{\"tools\":1}}", "may not set \"tools\"", TM_EINPUT},
        {"{\"tools\":[]}", "no array \"messages\"", TM_EINPUT},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_buf mask = {0};
        assert_int_equal(labels_of(turns_of, bad[i].text, &(tm_chat_labels){0}, &mask), bad[i].rc);
        assert_non_null(strstr(tm_error_get()->text, bad[i].says));
        assert_int_equal(mask.len, 0);
        tm_error_clear();
        tm_buf_free(&mask);
    }
}

/* What stands beside the messages reaches the template; a conversation's own variables override the caller's. */
static void test_context(void **state) {
    static const char template[] =
        "{{ tools | length if tools else 'none' }} {{ documents }} {{ enable_thinking }} {{ x }}";
    static const struct {
        const char *text, *want;
        tm_chat_thinking thinking;
    } rows[] = {
        {"{\"messages\":[" ASK "]}", "none None  ", TM_CHAT_THINKING_UNSAID},
        {"{\"messages\":[" ASK "],\"tools\":\"[1,2]\",\"documents\":[\"d\"]}", "2 ['d'] True ", TM_CHAT_THINKING_ON},
        {"{\"messages\":[" ASK "],\"tools\":null,\"chat_template_kwargs\":{\"enable_thinking\":true,\"x\":[null]}}",
         "none None True [None]", TM_CHAT_THINKING_OFF},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/chat_families");
        tm_chat *chat;
        tm_json_doc *doc;
        tm_buf text = {0};
        tm_ids ids = {0};
        OK(tm_json_parse(&doc, rows[i].text, strlen(rows[i].text), "conversation", 0, 0));
        OK(tm_chat_open(&chat, t, template, strlen(template), "T", NULL));
        const tm_chat_labels how = {.thinking = rows[i].thinking};
        OK(tm_chat_encode_labels(chat, tm_json_root(doc), &how, &text, &ids, NULL));
        assert_string_equal(text.data, rows[i].want);
        tm_ids_free(&ids);
        tm_buf_free(&text);
        tm_chat_close(chat);
        tm_json_free(doc);
        tm_tokenizer_close(t);
    }
}

static void test_show(void **state) {
    static const char text[] = "a\x1b[2J\nb<|im_end|>\xc2\x9b";
    static const char *const want[] = {"  | ⟦a\\x1b[2J⟧\n  | b<|im_end|>⟦\\u009b⟧\n",
                                       "  | \033[2ma\\x1b[2J\033[0m\n  | b<|im_end|>\033[2m\\u009b\033[0m\n"};
    tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/chat_families");
    tm_ids ids = {0};
    (void)state;
    OK(tm_tokenizer_encode(t, text, sizeof text - 1, false, &ids));
    assert_int_equal(ids.n, 10);
    for (int color = 0; color < 2; color++) {
        tm_buf out = {0};
        OK(tm_chat_show(t, ids.id, "\0\0\0\0\0\1\1\1\0\0", ids.n, color, &out));
        assert_string_equal(out.data, want[color]);
        tm_buf_free(&out);
    }
    tm_ids_free(&ids);
    tm_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_zephyr),
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_smollm2_text),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_labels_without_thoughts),
        cmocka_unit_test(test_conversations_refused),
        cmocka_unit_test(test_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
