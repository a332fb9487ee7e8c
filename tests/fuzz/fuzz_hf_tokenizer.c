/* Any bytes as a tokenizer.json on its way into a GGUF file. What must hold: within the limits, or refused with a
 * message; every id that is there has a text within the table, and is found by it. */
#include "fuzz.h"

#include "format/hf_tokenizer_internal.h"

#include <string.h>

enum { IDS = 300 };

static void use(const hf_tokenizer *t) {
    CHECK(t->n_present <= t->n && t->n == IDS);
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->token[i].type) continue;
        CHECK(t->token[i].at <= t->text.len && t->token[i].len < t->text.len - t->token[i].at);
        const char *text = t->text.data + t->token[i].at;
        CHECK(strlen(text) == t->token[i].len);
        int64_t found = hf_tokenizer_find(t, text);
        CHECK(found >= 0 && strcmp(t->text.data + t->token[found].at, text) == 0);
    }
    CHECK(hf_tokenizer_find(t, "\x01 no such token") < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hf_tokenizer t;
    tm_buf json = {0};
    fuzz_begin(size);
    CHECK(tm_buf_append(&json, data, size) == TM_OK);
    if (hf_tokenizer_read(&t, &json, "f", IDS) == TM_OK)
        use(&t);
    else
        CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    hf_tokenizer_free(&t);
    tm_buf_free(&json);
    fuzz_end();
    return 0;
}
