/* TEMPLATE '\0' CONVERSATION. What must hold: opening, rendering and encoding end, whatever the template does, and give
 * back their memory; a failure leaves no text; spans ascend, do not overlap and lie in the text; there is a flag a token. */
#include "fuzz.h"

#include "text/chat/chat.h"

#include <stdlib.h>
#include <string.h>

static const char sample[] =
    "[{\"role\":\"user\",\"content\":\" a\\u00e9 \"},{\"role\":\"assistant\",\"content\":\"b</s>\","
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,null,true]}}}]}]";

/* A token for all that is unknown, and some that are special, as templates print them. */
static const char tokens[] =
    "{\"added_tokens\":[{\"id\":1,\"content\":\"</"
    "s>\",\"special\":true},{\"id\":2,\"content\":\"<|im_end|>\",\"special\":"
    "true},{\"id\":3,\"content\":\"<|im_start|>\",\"special\":true},{\"id\":4,\"content\":\"[/"
    "INST]\",\"special\":true},"
    "{\"id\":5,\"content\":\"<|user|>\",\"special\":true},{\"id\":6,\"content\":\"<|assistant|>\",\"special\":true}],"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0},\"merges\":[]}}";

static void encode(const tm_chat *chat, const tm_json *conversation, tm_chat_labels how) {
    tm_buf mask = {0};
    tm_ids ids = {0};
    tm_status rc = tm_chat_encode_labels(chat, conversation, &how, NULL, &ids, &mask);
    CHECK(rc == TM_OK ? mask.len == ids.n : mask.len == 0);
    tm_error_clear();
    tm_buf_free(&mask);
    tm_ids_free(&ids);
}

static void render(const tm_chat *chat, const tm_json *messages, bool prompt) {
    tm_buf text = {0};
    tm_chat_spans spans = {0};
    tm_status rc = tm_chat_render(chat, messages, prompt, &text, &spans);
    size_t done = 0;
    CHECK(rc == TM_OK || (text.len == 0 && spans.n == 0));
    for (size_t i = 0; i < spans.n; i++) {
        CHECK(spans.span[i].begin >= done && spans.span[i].end > spans.span[i].begin && spans.span[i].end <= text.len);
        done = spans.span[i].end;
    }
    tm_error_clear();
    tm_buf_free(&text);
    tm_chat_spans_free(&spans);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_begin(size);
    const tm_chat_opts opts = {.bos_token = "<s>", .eos_token = "</s>", .now = 1};
    const char *text = (const char *)data, *end = size == 0 ? NULL : memchr(data, 0, size);
    size_t len = end == NULL ? size : (size_t)(end - text);
    tm_chat *chat = NULL;
    tm_tokenizer *t = NULL;
    tm_mem_source source = {tokens, sizeof tokens - 1, 0};
    CHECK(tm_tokenizer_open(&t, tm_mem_source_read, &source, "t") == TM_OK);
    tm_json_doc *doc = NULL;
    const char *messages = end == NULL ? sample : end + 1;
    size_t n = end == NULL ? sizeof sample - 1 : size - len - 1;
    if (tm_chat_open(&chat, t, text, len, "f", &opts) == TM_OK &&
        tm_json_parse(&doc, messages, n, "m", 0, 0) == TM_OK) {
        render(chat, tm_json_root(doc), false);
        render(chat, tm_json_root(doc), true);
        encode(chat, tm_json_root(doc), (tm_chat_labels){.thinking = TM_CHAT_THINKING_OFF});
        encode(chat, tm_json_root(doc), (tm_chat_labels){.train_on_inputs = true});
        encode(chat, tm_json_root(doc), (tm_chat_labels){.mask_history = true, .thinking = TM_CHAT_THINKING_ON});
    }
    tm_error_clear();
    tm_json_free(doc);
    tm_chat_close(chat);
    tm_tokenizer_close(t);
    fuzz_end();
    return 0;
}
