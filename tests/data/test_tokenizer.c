/* tokenizer: every id of every golden string, spans, what is refused, and what a hostile file or text may cost. */
#include "golden_lines.h"

#include <time.h>

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

/* The tokens' bytes, one after another, are the text; a decoder may have taken spaces off its beginning. */
static void bytes_row(const tm_json *row, void *ctx) {
    const tm_tokenizer *t = ctx;
    const tm_json *want = tm_json_get(row, "decoded");
    tm_buf bytes = {0};
    for (const tm_json *id = tm_json_get(row, "ids")->child; id != NULL; id = id->next)
        OK(tm_tokenizer_token_bytes(t, (int32_t)id->integer, &bytes));
    assert_true(bytes.len >= want->len);
    size_t taken = bytes.len - want->len;
    if (bytes.len > 0) assert_memory_equal(bytes.data + taken, want->text, want->len);
    for (size_t i = 0; i < taken; i++) assert_int_equal(bytes.data[i], ' ');
    tm_buf_free(&bytes);
}

static void golden(const char *folder, uint32_t vocab) {
    char dir[512];
    (void)snprintf(dir, sizeof dir, "%s/%s", TM_TEST_FIXTURES, folder);
    tm_tokenizer *t = open_tokenizer(dir);
    assert_int_equal(tm_tokenizer_vocab_size(t), vocab);
    assert_int_equal(for_each_line(dir, "encode.jsonl", encode_row, t), 300);
    assert_int_equal(for_each_line(dir, "decode.jsonl", decode_row, t), 60);
    assert_int_equal(for_each_line(dir, "encode.jsonl", bytes_row, t), 300);
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

/* ---- parts that the fixtures lack: what the reference makes of them (tests/fixtures/tok_cases/make.py)
 * ----------------- */

static tm_status open_text(tm_tokenizer **t, const char *json, size_t len) {
    tm_mem_source source = {json, len, 0};
    return tm_tokenizer_open(t, tm_mem_source_read, &source, "T");
}

static void case_row(const tm_json *row, void *ctx) {
    tm_buf json = {0};
    tm_json_writer w;
    tm_tokenizer *t;
    size_t *rows = ctx;
    tm_jw_init(&w, &json, 0);
    tm_jw_node(&w, tm_json_get(row, "tokenizer"));
    OK(tm_jw_end(&w));
    tm_status rc = open_text(&t, json.data, json.len);
    if (rc != TM_OK) fail_msg("%s: %s", tm_json_get(row, "name")->text, tm_error_get()->text);
    for (const tm_json *r = tm_json_get(row, "rows")->child; r != NULL; r = r->next, ++*rows) encode_row(r, t);
    tm_tokenizer_close(t);
    tm_buf_free(&json);
}

static void test_cases(void **state) {
    (void)state;
    size_t rows = 0;
    assert_int_equal(for_each_line(TM_TEST_FIXTURES "/tok_cases", "cases.jsonl", case_row, &rows), 26);
    assert_int_equal(rows, 26 * 32);
}

/* The shapes of published tokenizers, by family (tests/fixtures/tok_families/make.py). */
static void test_families(void **state) {
    (void)state;
    size_t rows = 0;
    assert_int_equal(for_each_line(TM_TEST_FIXTURES "/tok_families", "cases.jsonl", case_row, &rows), 16);
    assert_int_equal(rows, 16 * 49);
}

/* ---- spans ------------------------------------------------------------------------------------------------------ */

static void span_row(const tm_json *row, void *ctx) {
    const tm_json *text = tm_json_get(row, "text");
    tm_ids ids = {0};
    tm_buf spans = {0};
    OK(tm_tokenizer_encode_offsets(ctx, text->text, text->len, false, &ids, &spans));
    assert_int_equal(spans.len, ids.n * sizeof(tm_token_span));
    size_t i = 0;
    for (const tm_json *want = tm_json_get(row, "spans")->child; want != NULL; want = want->next, i++) {
        tm_token_span got;
        assert_true(i < ids.n);
        memcpy(&got, spans.data + i * sizeof got, sizeof got);
        if (got.begin != want->child->integer || got.end != want->child->next->integer)
            fail_msg("%s: token %zu is %u..%u", text->text, i, got.begin, got.end);
    }
    assert_int_equal(i, ids.n);
    tm_ids_free(&ids);
    tm_buf_free(&spans);
}

static void test_spans(void **state) {
    static const char *const names[] = {"gpt2", "llama3", "spm"};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        char dir[512], file[64];
        (void)snprintf(dir, sizeof dir, "%s/tok_%s", TM_TEST_FIXTURES, names[i]);
        (void)snprintf(file, sizeof file, "%s.jsonl", names[i]);
        tm_tokenizer *t = open_tokenizer(dir);
        assert_int_equal(for_each_line(TM_TEST_FIXTURES "/tok_spans", file, span_row, t), 120);
        tm_tokenizer_close(t);
    }
}

/* A character that NFC composes names all it was made of. */
static void test_spans_composed(void **state) {
    static const char text[] = "ae\xCC\x81z<|im_end|>";
    const tm_token_span want[] = {{0, 1}, {1, 4}, {4, 5}, {5, 15}}; /* the vocabulary has é as one token */
    (void)state;
    tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/tok_qwen2");
    tm_ids ids = {0};
    tm_buf spans = {0};
    OK(tm_tokenizer_encode_offsets(t, text, sizeof text - 1, false, &ids, &spans));
    assert_int_equal(spans.len, sizeof want);
    assert_memory_equal(spans.data, want, sizeof want);
    assert_int_equal(ids.id[3], tm_tokenizer_token_id(t, "<|im_end|>"));
    tm_ids_free(&ids);
    tm_buf_free(&spans);
    tm_tokenizer_close(t);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void test_names(void **state) {
    (void)state;
    tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/tok_qwen2");
    int32_t id = -1;
    assert_int_equal(tm_tokenizer_token_id(t, "<|im_start|>"), 501);
    assert_int_equal(tm_tokenizer_token_id(t, "nosuchtoken"), -1);
    assert_true(tm_tokenizer_token_id(t, "a") >= 0);
    assert_true(tm_tokenizer_is_special(t, 501));
    assert_false(tm_tokenizer_is_special(t, 503)); /* <tool_call> is added, but plain */
    assert_false(tm_tokenizer_is_special(t, 0));
    assert_false(tm_tokenizer_is_special(t, -1));
    assert_false(tm_tokenizer_is_special(t, 1 << 30));
    assert_int_equal(tm_tokenizer_match_added(t, "<think>x", 8, &id), 7);
    assert_int_equal(id, 505);
    assert_int_equal(tm_tokenizer_match_added(t, "<think", 6, &id), 0);
    assert_int_equal(tm_tokenizer_match_added(t, "", 0, &id), 0);
    tm_tokenizer_close(t);
}

/* Ids that do not exist are left out. */
static void test_decode_unknown(void **state) {
    const int32_t ids[] = {-1, 64, 100000, INT32_MAX, 65};
    tm_buf text = {0};
    (void)state;
    tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/tok_qwen2");
    OK(tm_tokenizer_decode(t, ids, TM_COUNT(ids), false, &text));
    assert_string_equal(text.data, "ab");
    tm_buf_free(&text);
    tm_tokenizer_close(t);
}

/* A character of several tokens: each has its bytes. Special tokens are their names. */
static void test_token_bytes(void **state) {
    (void)state;
    static const char *const folder[] = {TM_TEST_FIXTURES "/tok_qwen2", TM_TEST_FIXTURES "/tok_spm"};
    for (size_t k = 0; k < TM_COUNT(folder); k++) {
        tm_tokenizer *t = open_tokenizer(folder[k]);
        tm_ids ids = {0};
        tm_buf bytes = {0};
        OK(tm_tokenizer_encode(t, "\xF0\x9F\xAB\xA0", 4, false, &ids));
        assert_true(ids.n >= 4);
        OK(tm_tokenizer_token_bytes(t, ids.id[ids.n - 1], &bytes));
        assert_int_equal(bytes.len, 1);
        assert_int_equal((unsigned char)bytes.data[0], 0xA0);
        OK(tm_tokenizer_token_bytes(t, 1 << 30, &bytes));
        assert_int_equal(bytes.len, 1);
        if (k == 0) OK(tm_tokenizer_token_bytes(t, 501, &bytes));
        if (k == 0) assert_string_equal(bytes.data + 1, "<|im_start|>");
        tm_ids_free(&ids);
        tm_buf_free(&bytes);
        tm_tokenizer_close(t);
    }
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

#define BPE(more) "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]" more "}"

#define POST(part, special)                                                                                            \
    "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}," part             \
    "],\"special_tokens\":{" special "}}," BPE("") "}"

static void test_refused(void **state) {
    static const struct {
        const char *json;
        tm_status rc;
        const char *says;
    } bad[] = {
        {"", TM_EINPUT, "T:1"},
        {"[]", TM_EINPUT, "object"},
        {"{}", TM_EINPUT, "model"},
        {"{" BPE("") "} x", TM_EINPUT, "T:1"},
        {"{\"model\":{\"type\":\"Unigram\"}}", TM_EUNSUPPORTED, "Unigram"},
        {"{\"model\":{\"vocab\":[[\"a\",0.1]]}}", TM_EUNSUPPORTED, "vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", TM_EINPUT, "id of token"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e12},\"merges\":[]}}", TM_EINPUT, "id of token"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", TM_EINPUT, "id of token"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", TM_EINPUT, "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", TM_EINPUT, "left right"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", TM_EINPUT, "pair"},
        {"{\"normalizer\":{\"type\":\"Precompiled\"}," BPE("") "}", TM_EUNSUPPORTED, "Precompiled"},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," BPE("") "}", TM_EUNSUPPORTED, "UnicodeScripts"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}," BPE("") "}", TM_EUNSUPPORTED,
         "regex"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"}}," BPE("") "}", TM_EUNSUPPORTED,
         "intersection"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"}}," BPE("") "}", TM_EUNSUPPORTED,
         "escape"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"x\"}," BPE("") "}",
         TM_EINPUT, "behavior"},
        {"{\"model\":{\"unk_token\":{\"a\":[1]},\"suffix\":[{}],\"type\":\"Unigram\"}}", TM_EUNSUPPORTED, "Unigram"},
        {"{\"decoder\":{\"type\":\"CTC\"}," BPE("") "}", TM_EUNSUPPORTED, "CTC"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}," BPE("") "}", TM_EUNSUPPORTED,
         "0 times"},
        {"{\"added_tokens\":[{\"content\":\"x\"}]," BPE("") "}", TM_EINPUT, "id"},
        {"{\"added_tokens\":[{\"id\":-1,\"content\":\"x\"}]," BPE("") "}", TM_EINPUT, "usable \"id\""},
        {"{\"added_tokens\":1," BPE("") "}", TM_EINPUT, "is no array"},
        {"{\"added_tokens\":[1]," BPE("") "}", TM_EINPUT, "is no object"},
        {"{\"model\":[]}", TM_EINPUT, "\"model\" is no object"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":{}}}", TM_EINPUT, "is no array"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[1]}}", TM_EINPUT, "neither"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", TM_EINPUT, "left right"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}", TM_EINPUT, "pair"},
        {"{\"model\":{\"type\":1}}", TM_EUNSUPPORTED, "only BPE"},
        {"{\"normalizer\":{\"type\":1}," BPE("") "}", TM_EUNSUPPORTED, "normalizer \"?\""},
        {"{\"normalizer\":{\"type\":\"Prepend\"}," BPE("") "}", TM_EINPUT, "is no string"},
        {"{\"normalizer\":{\"type\":\"Replace\",\"content\":1}," BPE("") "}", TM_EINPUT, "is no string"},
        {"{\"pre_tokenizer\":{\"type\":[]}," BPE("") "}", TM_EUNSUPPORTED, "\"?\""},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\"}," BPE("") "}", TM_EINPUT,
         "empty replacement"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[^b]]\"}}," BPE("") "}", TM_EUNSUPPORTED,
         "nested class"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[[[[[[[[[[a]]]]]]]]]]\"}}," BPE("") "}",
         TM_EUNSUPPORTED, "nested class"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?mi)a\"}}," BPE("") "}", TM_EUNSUPPORTED,
         "(?m"},
        {"{\"decoder\":{\"type\":null}," BPE("") "}", TM_EUNSUPPORTED, "decoder \"?\""},
        {"{\"decoder\":{\"type\":\"Replace\"}," BPE("") "}", TM_EINPUT, "without \"content\""},
        {"{\"decoder\":{\"type\":\"Replace\",\"content\":[]}," BPE("") "}", TM_EINPUT, "without \"content\""},
        {"{\"post_processor\":{\"type\":2}," BPE("") "}", TM_EUNSUPPORTED, "post-processor \"?\""},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\"}," BPE("") "}", TM_EINPUT, "without \"single\""},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":{}}," BPE("") "}", TM_EINPUT,
         "without \"single\""},
        {POST("{\"SpecialToken\":{\"id\":{}}}", "\"x\":{}"), TM_EINPUT, "without ids"}, /* no name at all */
        {POST("{\"SpecialToken\":{\"id\":\"y\"}}", "\"x\":{}"), TM_EINPUT, "without ids"},
        {POST("{\"SpecialToken\":{\"id\":\"x\"}}", "\"x\":{\"ids\":1}"), TM_EINPUT, "without ids"},
        {POST("{\"SpecialToken\":{\"id\":\"x\"}}", "\"x\":{\"ids\":[-1]}"), TM_EINPUT, "out of range"},
        {POST("{\"SpecialToken\":{\"id\":\"x\"}}", "\"x\":{\"ids\":[\"0\"]}"), TM_EINPUT, "out of range"},
        {POST("{\"SpecialToken\":{\"id\":\"x\"}}", "\"x\":{\"ids\":[1e12]}"), TM_EINPUT, "out of range"},
        {POST("{\"Sequence\":{\"id\":\"A\"}}", ""), TM_EUNSUPPORTED, "2 times"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"}," BPE("") "}", TM_EINPUT, "\"cls\" and \"sep\""},
        {"{\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[]}," BPE("") "}", TM_EINPUT,
         "\"cls\" and \"sep\""},
        {"{\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",-1],\"sep\":[\"b\",1]}," BPE("") "}",
         TM_EINPUT, "\"cls\" and \"sep\""},
    };
    uint64_t live = tm_mem_live_bytes();
    (void)state;
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_tokenizer *t;
        tm_status rc = open_text(&t, bad[i].json, strlen(bad[i].json));
        if (rc != bad[i].rc || strstr(tm_error_get()->text, bad[i].says) == NULL)
            fail_msg("%s: %s, \"%s\"", bad[i].json, tm_status_name(rc), tm_error_get()->text);
        assert_null(t);
        tm_error_clear();
    }
    assert_int_equal(tm_mem_live_bytes(), live);
}

static tm_tokenizer *opened(const char *json) {
    tm_tokenizer *t = NULL;
    if (open_text(&t, json, strlen(json)) != TM_OK) fail_msg("%s: %s", json, tm_error_get()->text);
    return t;
}

/* Parts that no golden tokenizer has, done by hand as the reference's source has them. */
static void test_by_hand(void **state) {
    static const char *const around[] = {"BertProcessing", "RobertaProcessing"};
    static const struct {
        const char *json, *text;
        int32_t ids[4];
        size_t n;
    } decoded[] = {
        {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
         "\"model\":{\"type\":"
         "\"BPE\",\"vocab\":{\"<0xc3>\":0,\"<0xA9>\":1,\"<0xZZ>\":2,\"<0x+9>\":3},\"merges\":[]}}",
         "\xC3\xA9<0xZZ>\t",
         {0, 1, 2, 3},
         4},
        {"{\"decoder\":{\"type\":\"BPEDecoder\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a</w>\":0,\"b\":1,\"c</"
         "w>\":2},"
         "\"merges\":[]}}",
         "a bc",
         {0, 1, 2},
         3},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(around); i++) {
        char json[512];
        tm_ids ids = {0};
        (void)snprintf(json, sizeof json,
                       "{\"post_processor\":{\"type\":\"%s\",\"cls\":[\"b\",1],\"sep\":[\"a\",0]}," BPE("") "}",
                       around[i]);
        tm_tokenizer *t = opened(json);
        OK(tm_tokenizer_encode(t, "ab", 2, true, &ids));
        assert_int_equal(ids.n, 3);
        assert_memory_equal(ids.id, ((const int32_t[]){1, 2, 0}), 3 * sizeof(int32_t));
        tm_ids_free(&ids);
        tm_tokenizer_close(t);
    }
    for (size_t i = 0; i < TM_COUNT(decoded); i++) {
        tm_buf text = {0};
        tm_tokenizer *t = opened(decoded[i].json);
        OK(tm_tokenizer_decode(t, decoded[i].ids, decoded[i].n, false, &text));
        assert_string_equal(text.data, decoded[i].text);
        tm_buf_free(&text);
        tm_tokenizer_close(t);
    }
}

static void test_not_utf8(void **state) {
    tm_tokenizer *t;
    tm_ids ids = {0};
    (void)state;
    OK(open_text(&t, "{" BPE("") "}", strlen("{" BPE("") "}")));
    assert_int_equal(tm_tokenizer_encode(t, "ab\xC3", 3, false, &ids), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "byte 2"));
    tm_error_clear();
    OK(tm_tokenizer_encode(t, "abb", 3, false, &ids));
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[0], 2);
    assert_int_equal(ids.id[1], 1);
    tm_ids_free(&ids);
    tm_tokenizer_close(t);
}

/* ---- hostile ----------------------------------------------------------------------------------------------------- */

/* Every prefix of a file is refused, and nothing stays behind. */
static void test_cut_off(void **state) {
    tm_buf json = {0};
    (void)state;
    assert_true(read_file(TM_TEST_FIXTURES "/tok_spm", "tokenizer.json", &json));
    uint64_t live = tm_mem_live_bytes();
    for (size_t n = 0; n < json.len - 1; n += n < 3000 || n > json.len - 300 ? 1 : 101) {
        tm_tokenizer *t;
        if (open_text(&t, json.data, n) != TM_EINPUT) fail_msg("a file cut off after %zu bytes is accepted", n);
        tm_error_clear();
    }
    assert_int_equal(tm_mem_live_bytes(), live);
    tm_buf_free(&json);
}

static void repeat(tm_buf *text, const char *unit, size_t bytes) {
    tm_buf_clear(text);
    while (text->len < bytes) OK(tm_buf_append(text, unit, strlen(unit)));
}

/* Of a processor: what neighbours take of it does not count. */
static double cpu_seconds(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Texts that make a quadratic step slow: each takes well under a second when time is n log n. */
static void test_long_texts(void **state) {
    static const char *const units[] = {"a",
                                        "ab",
                                        " ",
                                        " \n",
                                        "'",
                                        "\xCC\x81\xCC\xB4",
                                        "\xE4\xB8\xAD",
                                        "<|im_start|",
                                        "1",
                                        "<think>",
                                        "\xE1\x84\x80\xE1\x85\xA1"};
    static const char *const names[] = {"tok_qwen2", "tok_spm"};
    (void)state;
    for (size_t n = 0; n < TM_COUNT(names); n++) {
        char dir[512];
        tm_buf text = {0};
        (void)snprintf(dir, sizeof dir, "%s/%s", TM_TEST_FIXTURES, names[n]);
        tm_tokenizer *t = open_tokenizer(dir);
        for (size_t u = 0; u < TM_COUNT(units); u++) {
            tm_ids ids = {0};
            repeat(&text, units[u], 400000);
            double start = cpu_seconds();
            OK(tm_tokenizer_encode(t, text.data, text.len, false, &ids));
            if (cpu_seconds() - start > 10) /* some 0.05 s; a list that moves up at each merge takes half a minute */
                fail_msg("\"%s\" repeated takes %s over 10 s", units[u], names[n]);
            assert_true(ids.n > 0);
            tm_ids_free(&ids);
        }
        tm_buf_free(&text);
        tm_tokenizer_close(t);
    }
}

/* A vocabulary of today's size: memory and time. */
static void test_large_vocabulary(void **state) {
    enum { TOKENS = 150000 };
    tm_buf json = {0};
    tm_tokenizer *t;
    (void)state;
    OK(tm_buf_printf(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{"));
    for (int i = 0; i < 10; i++) OK(tm_buf_printf(&json, "\"%d\":%d,", i, i));
    for (int i = 10; i < TOKENS; i++) OK(tm_buf_printf(&json, "%s\"%d\":%d", i > 10 ? "," : "", i, i));
    OK(tm_buf_printf(&json, "},\"merges\":["));
    for (int i = 10; i < TOKENS; i++) OK(tm_buf_printf(&json, "%s[\"%d\",\"%d\"]", i > 10 ? "," : "", i / 10, i % 10));
    OK(tm_buf_printf(&json, "]}}"));
    uint64_t live = tm_mem_live_bytes();
    OK(open_text(&t, json.data, json.len));
    assert_true(tm_mem_live_bytes() - live < 20 * TM_MIB);
    tm_ids ids = {0};
    OK(tm_tokenizer_encode(t, "100000", 6, false, &ids)); /* 10, 100, 1000, ...: a merge each */
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.id[0], 100000);
    tm_ids_free(&ids);
    tm_tokenizer_close(t);
    tm_buf_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_spans_composed),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_decode_unknown),
        cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
