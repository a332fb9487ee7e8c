/* A tokenizer, a template and files in memory that the tests of data share. */
#ifndef TIDEMILL_TESTS_BY_HAND_H
#define TIDEMILL_TESTS_BY_HAND_H

#include "text/chat/chat.h"
#include "data/dataset.h"
#include "tests/support/mem_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* ---- a tokenizer that can be done by hand ------------------------------------------------------------------------- *
 * Byte-level, id = byte, with one merge: "ab" is 260. Specials: 256 <bos> (the post-processor puts it first), 257
 * <eos>, 258 <|im_start|>, 259 <|im_end|>. */

enum { BOS = 256, EOS = 257, TURN = 258, END = 259, AB = 260, VOCAB = 261, X = TM_LABEL_IGNORE };

static tm_tokenizer *tokenizer;
static tm_chat *chat;

static const char chatml[] = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                             "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static bool is_visible(unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

/* GPT-2's table: bytes that are no visible character stand at U+0100 and up. */
static void put_vocabulary(tm_json_writer *w) {
    unsigned shifted = 0;
    for (unsigned b = 0; b < 256; b++) {
        unsigned point = is_visible(b) ? b : 256 + shifted++;
        char utf8[3] = {(char)point};
        if (point >= 128) utf8[0] = (char)(0xC0 | point >> 6), utf8[1] = (char)(0x80 | (point & 63));
        tm_jw_field_uint(w, utf8, b);
    }
    tm_jw_field_uint(w, "ab", AB);
}

static void put_added(tm_buf *b) {
    static const char *const names[] = {"<bos>", "<eos>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(tm_buf_printf(b,
                                       "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                                       "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                                       i ? "," : "", BOS + i, names[i]),
                         TM_OK);
}

static void tokenizer_json(tm_buf *b) {
    tm_json_writer w;
    assert_int_equal(tm_buf_printf(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["),
                     TM_OK);
    put_added(b);
    assert_int_equal(
        tm_buf_printf(b,
                      "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                      "\"trim_offsets\":false,\"use_regex\":false},\"post_processor\":{\"type\":\"TemplateProcessing\","
                      "\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
                      "\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":"
                      "\"B\",\"type_id\":1}}],\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\",\"ids\":[256],"
                      "\"tokens\":[\"<bos>\"]}}},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                      "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                      "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                      "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":"),
        TM_OK);
    tm_jw_init(&w, b, 0);
    tm_jw_object(&w);
    put_vocabulary(&w);
    tm_jw_object_end(&w);
    assert_int_equal(tm_jw_end(&w), TM_OK);
    assert_int_equal(tm_buf_printf(b, ",\"merges\":[[\"a\",\"b\"]]}}"), TM_OK);
}

static int set_up(void **state) {
    (void)state;
    tm_buf json = {0};
    tokenizer_json(&json);
    tm_mem_source source = {json.data, json.len, 0};
    assert_int_equal(tm_tokenizer_open(&tokenizer, tm_mem_source_read, &source, "bytes"), TM_OK);
    assert_int_equal(tm_chat_open(&chat, tokenizer, chatml, sizeof chatml - 1, "chatml", NULL), TM_OK);
    tm_buf_free(&json);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tm_chat_close(chat);
    tm_tokenizer_close(tokenizer);
    return 0;
}

static int clean_record(void **state) {
    (void)state;
    tm_error_clear();
    tm_log_set_level(TM_LOG_ERROR);
    return 0;
}

/* ---- a file in memory -------------------------------------------------------------------------------------------- */

static tm_dataset_opts defaults(void) {
    return (tm_dataset_opts){.seq_len = 512, .vocab_size = VOCAB, .tokenizer = tokenizer, .chat = chat, .eos_id = EOS};
}

static tm_status open_bytes(tm_dataset **ds, const char *bytes, size_t n, const tm_dataset_opts *opts) {
    mem_file f = {bytes, n};
    const tm_data_source source = mem_file_source(&f, "train.jsonl");
    return tm_dataset_open_jsonl(ds, &source, opts);
}

static tm_dataset *open_text(const char *text, const tm_dataset_opts *opts) {
    tm_dataset *ds = NULL;
    if (open_bytes(&ds, text, strlen(text), opts) != TM_OK) fail_msg("%s", tm_error_get()->text);
    return ds;
}

/* Expectations are written as text. <bos> <eos> etc. are one token each, "ab" is one. */
static inline size_t ids_of(const char *text, int32_t *ids) {
    static const char *const specials[] = {"<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "ab"};
    size_t n = 0;
    while (*text) {
        size_t len = 1;
        ids[n] = (uint8_t)*text;
        for (int k = 0; k < 5; k++)
            if (!strncmp(text, specials[k], strlen(specials[k]))) ids[n] = BOS + k, len = strlen(specials[k]);
        n++;
        text += len;
    }
    return n;
}

#endif
