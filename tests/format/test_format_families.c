/* Tokenizers in the shapes in which the families publish them, through GGUF and back: what the reference makes of texts
 * with the tokenizer that went in, ours makes of them with the one that comes out. */
#include "world.h"
#include "io/file/file.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *pre; /* pre: of the file, NULL: GGUF cannot hold it */
    size_t others;          /* texts whose ids differ: GGUF has no lstrip and rstrip, and one way of prefixing */
} families[] = {
    {"gpt2", "gpt-2", 0},
    {"phi-2: runs of spaces are tokens", "gpt-2", 0},
    {"qwen2, qwen3", "qwen2", 0},
    {"llama3, smollm3", "llama-bpe", 0},
    {"glm4", "dbrx", 0},
    {"olmo2, phi-4", "dbrx", 2},
    {"phi-4-mini, gpt-4o", "gpt-4o", 4},
    {"mistral tekken, ministral", "tekken", 0},
    {"granite, smollm2", "smollm", 0},
    {"splits one after another", NULL, 0},
    {"punctuation, numbers inverted", NULL, 0},
    {"gemma2, gemma3", "default", 0},
    {"phi-3", "default", 3},
    {"llama2, metaspace first", "default", 16},
    {"llama2, metaspace always", "default", 11},
    {"llama2, metaspace never", "default", 0},
};

static int64_t largest_id(const tm_json *tokenizer) {
    int64_t most = 0;
    for (const tm_json *t = tm_json_get(tm_json_get(tokenizer, "model"), "vocab")->child; t; t = t->next)
        if (t->integer > most) most = t->integer;
    for (const tm_json *t = tm_json_get(tokenizer, "added_tokens")->child; t; t = t->next)
        if (tm_json_get(t, "id")->integer > most) most = tm_json_get(t, "id")->integer;
    return most;
}

static void write_tokenizer(const tm_json *tokenizer) {
    tm_json_writer j;
    tm_buf text = {0};
    make_folder(scratch("family"), NULL, (uint64_t)largest_id(tokenizer) + 1);
    tm_jw_init(&j, &text, 0);
    tm_jw_node(&j, tokenizer);
    OK(tm_jw_end(&j));
    write_file(scratch("family/tokenizer.json"), text.data, text.len);
    tm_buf_free(&text);
    (void)remove(scratch("family.gguf"));
}

static bool same_ids(const tm_tokenizer *t, const tm_json *row) {
    const tm_json *text = tm_json_get(row, "text"), *want = tm_json_get(row, "ids")->child;
    tm_ids ids = {0};
    OK(tm_tokenizer_encode(t, text->text, text->len, false, &ids));
    size_t i = 0;
    for (; want && i < ids.n && want->integer == ids.id[i]; i++) want = want->next;
    bool same = !want && i == ids.n;
    tm_ids_free(&ids);
    return same;
}

static size_t different_rows(const tm_json *rows) {
    tm_source *src;
    tm_buf text = {0};
    tm_tokenizer *t;
    bool found;
    size_t different = 0;
    OK(tm_source_open_bare(&src, scratch("family.gguf")));
    OK(tm_source_file(src, "tokenizer.json", &text, &found));
    tm_mem_source bytes = {text.data, text.len, 0};
    OK(tm_tokenizer_open(&t, tm_mem_source_read, &bytes, "tokenizer.json"));
    for (const tm_json *row = rows->child; row; row = row->next) different += !same_ids(t, row);
    tm_tokenizer_close(t);
    tm_buf_free(&text);
    tm_source_close(src);
    return different;
}

static void check_family(const tm_json *line, size_t i) {
    tm_buf pre = {0};
    tm_gguf *g;
    bool found;
    assert_true(tm_json_is(tm_json_get(line, "name"), families[i].name));
    write_tokenizer(tm_json_get(line, "tokenizer"));
    tm_status rc = tm_convert(scratch("family"), scratch("family.gguf"), &(tm_convert_opts){0});
    if (!families[i].pre) {
        expect_error(rc, TM_EUNSUPPORTED, "GGUF has no name for this pre_tokenizer");
        return;
    }
    OK(rc);
    OK(tm_gguf_open(&g, scratch("family.gguf")));
    OK(tm_gguf_string(g, "tokenizer.ggml.pre", 64, &pre, &found));
    tm_gguf_close(g);
    size_t different = different_rows(tm_json_get(line, "rows"));
    if (strcmp(pre.data, families[i].pre) != 0 || different != families[i].others)
        fail_msg("%s: %s, %zu of %zu texts differ", families[i].name, pre.data, different,
                 tm_json_get(line, "rows")->count);
    tm_buf_free(&pre);
}

static void families_there_and_back(void **state) {
    (void)state;
    tm_buf text = {0};
    size_t i = 0;
    slurp(fixture("tok_families/cases.jsonl"), &text);
    for (const char *at = text.data, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, i++) {
        tm_json_doc *doc;
        assert_true(i < TM_COUNT(families));
        OK(tm_json_parse(&doc, at, (size_t)(end - at), "cases.jsonl", 0, 0));
        check_family(tm_json_root(doc), i);
        tm_json_free(doc);
    }
    assert_int_equal(i, TM_COUNT(families));
    tm_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(families_there_and_back)};
    if (tm_path_is_dir("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests_name("families", tests, make_scratch, remove_scratch);
}
