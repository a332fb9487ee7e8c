/* Memory that runs out, and files that cannot be read: at every place of every parser of this folder the failure is
 * said, and nothing stays held. What is opened are the golden tests' tokenizers and templates, so that every kind is
 * there. */
#include "golden_lines.h"
#include "text/chat/chat.h"
#include "data/dataset.h"
#include "tests/support/mem_file.h"
#include "tests/support/walk.h"
#include "tests/support/skip.h"

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

typedef struct tokenizer_case {
    tm_buf json;
    const tm_json *rows;
    uint64_t ids; /* hash of all that were given in the first run, which nothing disturbed */
} tokenizer_case;

static tm_status read_seven(void *ctx, void *buf, size_t cap, size_t *got) {
    return tm_mem_source_read(ctx, buf, cap < 7 ? cap : 7, got);
}

static tm_status encode_and_back(const tm_tokenizer *t, const tm_json *text, uint64_t *hash) {
    tm_ids ids = {0};
    tm_buf spans = {0}, back = {0};
    tm_status rc = tm_tokenizer_encode_offsets(t, text->text, text->len, true, &ids, &spans);
    if (rc == TM_OK) rc = tm_tokenizer_decode(t, ids.id, ids.n, false, &back);
    if (rc == TM_OK) *hash = tm_hash64(ids.id, ids.n * sizeof *ids.id, *hash);
    tm_ids_free(&ids);
    tm_buf_free(&spans);
    tm_buf_free(&back);
    return rc;
}

static tm_status tokenizer_once(void *ctx) {
    tokenizer_case *c = ctx;
    uint64_t hash = 1;
    tm_mem_source source = {c->json.data, c->json.len, 0};
    tm_tokenizer *t;
    tm_status rc = tm_tokenizer_open(&t, read_seven, &source, "T");
    unsigned n = 0;
    for (const tm_json *r = c->rows->child; r != NULL && rc == TM_OK && n < 6; r = r->next, n++)
        rc = encode_and_back(t, tm_json_get(r, "text"), &hash);
    tm_tokenizer_close(t);
    if (rc == TM_OK && c->ids == 0) c->ids = hash;
    return rc == TM_OK && c->ids != hash ? TM_EBUG : rc;
}

static void walk_tokenizer(const tm_json *row, void *ctx) {
    tokenizer_case c = {.rows = tm_json_get(row, "rows")};
    tm_json_writer w;
    tm_jw_init(&w, &c.json, 0);
    tm_jw_node(&w, tm_json_get(row, "tokenizer"));
    OK(tm_jw_end(&w));
    /* PCRE2 says of a pattern only that it could not be compiled; without memory for fast code it runs its slow one */
    walk all = {.call = "alloc",
                .kind = "fail",
                .want = TM_ENOMEM,
                .also = TM_EUNSUPPORTED,
                .may_pass = true,
                .points = walk_points(12)};
    *(uint64_t *)ctx += walk_all(all, tokenizer_once, &c);
    tm_buf_free(&c.json);
}

static void test_tokenizers(void **state) {
    (void)state;
    uint64_t failed = 0;
    assert_int_equal(for_each_line(TM_TEST_FIXTURES "/tok_cases", "cases.jsonl", walk_tokenizer, &failed), 26);
    assert_true(failed > 26 * 5);
}

/* ---- templates --------------------------------------------------------------------------------------------------- */

typedef struct chat_case {
    const tm_tokenizer *tokenizer;
    const tm_json *template, *messages;
    uint64_t failed;
} chat_case;

static tm_status chat_once(void *ctx) {
    const chat_case *c = ctx;
    const tm_chat_opts opts = {.bos_token = "<|endoftext|>", .eos_token = "<|im_end|>", .now = 1};
    tm_chat *chat;
    tm_buf text = {0}, mask = {0};
    tm_ids ids = {0};
    tm_status rc = tm_chat_open(&chat, c->tokenizer, c->template->text, c->template->len, "T", &opts);
    if (rc == TM_OK) rc = tm_chat_encode(chat, c->messages, true, &text, &ids, &mask);
    if (rc != TM_OK && (text.len > 0 || mask.len > 0)) rc = TM_EBUG; /* half of a conversation was handed out */
    tm_buf_free(&text);
    tm_buf_free(&mask);
    tm_ids_free(&ids);
    tm_chat_close(chat);
    return rc;
}

static void walk_chat(const tm_json *row, void *ctx) {
    static const char *const templates[] = {"template", "marked"};
    chat_case *c = ctx;
    c->messages = tm_json_get(row, "messages");
    if (tm_json_get(tm_json_get(row, "with_prompt"), "error")) return;
    for (size_t i = 0; i < TM_COUNT(templates); i++) {
        c->template = tm_json_get(row, templates[i]);
        walk piece = {.call = "template", .kind = "fail", .want = TM_ENOMEM, .points = walk_points(12)};
        walk alloc = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM, .points = walk_points(5)};
        c->failed += walk_all(piece, chat_once, c) + walk_all(alloc, chat_once, c);
    }
}

static void test_templates(void **state) {
    (void)state;
    chat_case c = {.tokenizer = open_tokenizer(TM_TEST_FIXTURES "/tok_qwen2")};
    assert_int_equal(for_each_line(TM_TEST_FIXTURES "/chat_cases", "cases.jsonl", walk_chat, &c), 60);
    assert_true(c.failed > 50 * 2 * 12);
    tm_tokenizer_close((tm_tokenizer *)(uintptr_t)c.tokenizer);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static const char lines[] =
    "{\"text\": \"one \\u00e9\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"y\"}]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"y\","
    " \"loss\": false}, {\"role\": \"assistant\", \"content\": \"z\"}]}\n"
    "{\"instruction\": \"i\", \"input\": \"in\", \"output\": \"o\"}\n"
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"r\"}]}\n";

static const char pairs[] =
    "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n{\"chosen\": \"one b\", \"rejected\": \"one c\"}\n"
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}], \"chosen\": [{\"role\": \"assistant\", \"content\": "
    "\"y\"}], "
    "\"rejected\": \"z\", \"tools\": \"[]\"}\n"
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"r\"}], "
    "\"rejected_response\": \"s\", \"system\": \"t\"}\n"
    "{\"instruction\": \"i\", \"input\": \"in\", \"chosen\": \"o\", \"rejected\": \"p\"}\n";

typedef struct data_case {
    const char *text;
    tm_rows rows;
    uint64_t samples;
    const tm_tokenizer *tokenizer;
    const tm_chat *chat;
    bool spills;
    char spilled[4096];
} data_case;

static tm_status read_lines(void *ctx, uint64_t offset, void *buf, size_t n) {
    const data_case *c = ctx;
    if (tm_fault_hit("data", NULL)) return tm_fail(TM_EIO, "train.jsonl: cannot be read");
    memcpy(buf, c->text + offset, n);
    return TM_OK;
}

static tm_status spill_write(void *ctx, uint64_t offset, const void *bytes, size_t n) {
    data_case *c = ctx;
    if (tm_fault_hit("data", NULL)) return tm_fail(TM_EIO, "tokens: cannot be written");
    assert_true(offset + n <= sizeof c->spilled);
    memcpy(c->spilled + offset, bytes, n);
    return TM_OK;
}

static tm_status spill_read(void *ctx, uint64_t offset, void *buf, size_t n) {
    const data_case *c = ctx;
    if (tm_fault_hit("data", NULL)) return tm_fail(TM_EIO, "tokens: cannot be read");
    memcpy(buf, c->spilled + offset, n);
    return TM_OK;
}

static tm_status draw_all(tm_dataset *ds, tm_rows rows) {
    int32_t ids[512], labels[512];
    uint8_t mask[512];
    const tm_batch_arrays to = {.capacity = 512, .ids = ids, .labels = labels, .key_mask = mask};
    tm_batch_shape shape;
    TM_TRY(tm_dataset_set_batches(ds, 2, 1, 1));
    for (uint64_t s = 0; s < tm_dataset_steps_per_epoch(ds); s++) {
        TM_TRY(tm_dataset_batch(ds, s, 0, 0, &to, &shape));
        if (rows == TM_ROWS_LABELLED) TM_TRY(tm_dataset_batch_mismatched(ds, s, 0, 0, &to, &shape));
    }
    return TM_OK;
}

static tm_status data_once(void *ctx) {
    data_case *c = ctx;
    tm_data_spill spill = {.ctx = c, .write_at = spill_write, .read_at = spill_read};
    tm_dataset_opts opts = {.rows = c->rows,
                            .seq_len = 64,
                            .tokenizer = c->tokenizer,
                            .chat = c->chat,
                            .strict = true,
                            .memory_bytes = c->spills ? 64 : 0,
                            .spill = c->spills ? &spill : NULL};
    tm_dataset *ds;
    tm_buf shown = {0};
    tm_status rc = tm_dataset_open_jsonl(
        &ds, &(tm_data_source){.ctx = c, .read_at = read_lines, .size = strlen(c->text), .name = "train.jsonl"}, &opts);
    if (rc == TM_OK && tm_dataset_get_counts(ds)->samples != c->samples) rc = TM_EBUG; /* a line was lost in silence */
    if (rc == TM_OK) rc = draw_all(ds, c->rows);
    for (uint64_t i = 0; i < c->samples && rc == TM_OK; i++) rc = tm_dataset_preview(ds, i, c->tokenizer, true, &shown);
    tm_buf_free(&shown);
    tm_dataset_close(ds);
    return rc;
}

/* ---- files of every form ------------------------------------------------------------------------------------------ */

typedef struct file_case {
    const char *name;
    mem_file file;
    uint64_t records; /* hash of all in the first run, which nothing disturbed */
} file_case;

static tm_status file_once(void *ctx) {
    file_case *c = ctx;
    uint64_t hash = 1;
    const tm_data_source source = mem_file_source(&c->file, c->name);
    tm_record record = {.text = ""};
    tm_reader *r;
    tm_status rc = tm_reader_open(&r, &source, &(tm_reader_opts){.sample_by = TM_SAMPLE_BY_PARAGRAPH});
    while (rc == TM_OK && record.text) {
        rc = tm_reader_next(r, &record);
        if (rc == TM_OK && record.text) hash = tm_hash64(record.text, record.len, hash + (record.wrong != NULL));
    }
    tm_reader_close(r);
    if (rc == TM_OK && c->records == 0) c->records = hash;
    return rc == TM_OK && c->records != hash ? TM_EBUG : rc;
}

/* gzip -n of "{\"a\":1}\n" */
static const char packed[] =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabVJT\xb2\x32\xac\xe5\x02\x00\x46\xa3\xe8t\x08\x00\x00\x00";

static void test_files(void **state) {
    (void)state;
    static const char csv[] = "prompt,messages,label\n\"[{\"\"a\"\": 1}]\",[1],1\nb,no JSON,0\n",
                      json[] = "{\"v\": 1, \"data\": [{\"a\": 1}, {\"b\": 2}]}", text[] = "one\ntwo\n\nthree\n";
    file_case all[] = {{"a.csv", {csv, sizeof csv - 1}, 0},
                       {"a.json", {json, sizeof json - 1}, 0},
                       {"a.txt", {text, sizeof text - 1}, 0},
                       {"a.jsonl.gz", {packed, sizeof packed - 1}, 0}};
    for (size_t i = 0; i < TM_COUNT(all); i++) {
        walk alloc = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM};
        assert_true(walk_all(alloc, file_once, &all[i]) >= 3);
    }
}

static void test_data(void **state) {
    (void)state;
    static const char chatml[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    tm_tokenizer *t = open_tokenizer(TM_TEST_FIXTURES "/tok_qwen2");
    tm_chat *chat;
    OK(tm_chat_open(&chat, t, chatml, sizeof chatml - 1, "chatml", NULL));
    data_case c = {.tokenizer = t, .chat = chat};
    for (unsigned i = 0; i < 6; i++) {
        bool plain = i < 2, spills = i % 2;
        c.spills = spills;
        c.rows = (tm_rows)(i / 2);
        c.text = plain ? lines : pairs;
        c.samples = plain ? 6 : c.rows == TM_ROWS_PAIRS ? 5 : 10;
        walk alloc = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM};
        walk piece = {.call = "template", .kind = "fail", .want = TM_ENOMEM};
        walk files = {.call = "data", .kind = "eio", .want = TM_EIO};
        assert_true(walk_all(alloc, data_once, &c) > 100);
        assert_true(walk_all(piece, data_once, &c) > 30);
        assert_true(walk_all(files, data_once, &c) >= (spills ? 14 : 1));
    }
    tm_chat_close(chat);
    tm_tokenizer_close(t);
}

int main(void) {
#ifndef TIDEMILL_FAULTS
    TEST_SKIP_PROGRAM("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
