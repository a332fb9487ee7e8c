/* What the targets of data files share: a small tokenizer, and a template. */
#ifndef TIDEMILL_FUZZ_DATA_H
#define TIDEMILL_FUZZ_DATA_H

#include "fuzz.h"

#include "text/chat/chat.h"
#include "data/dataset.h"
#include "text/tokenizer/tokenizer.h"
#include "tests/support/mem_file.h"

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":6,\"content\":\"</"
    "s>\",\"special\":true},{\"id\":7,\"content\":\"<s>\",\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\","
    "\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\" \":3,\"ab\":4,\"1\":5},\"merges\":[\"a b\"]}}";
static const char template_text[] =
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}"
    "{% endif %}{% endfor %}";

static tm_tokenizer *tokenizer;
static tm_chat *chat;

static void open_once(void) {
    tm_mem_source source = {tokenizer_json, sizeof tokenizer_json - 1, 0};
    if (tokenizer) return;
    CHECK(tm_tokenizer_open(&tokenizer, tm_mem_source_read, &source, "t") == TM_OK);
    const tm_chat_opts opts = {.bos_token = "<s>", .eos_token = "</s>", .now = 1};
    CHECK(tm_chat_open(&chat, tokenizer, template_text, sizeof template_text - 1, "c", &opts) == TM_OK);
}

/* What is packed is fuzz_packed's: a frame may ask for a window that is larger than the limit here. */
static bool is_packed(mem_file *f) {
    bool packed;
    const tm_data_source source = mem_file_source(f, "f");
    CHECK(tm_data_packed(&source, &packed) == TM_OK);
    return packed;
}

#endif
