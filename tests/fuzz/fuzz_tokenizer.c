/* TOKENIZER.JSON '\0' TEXT. What must hold: opening ends and gives back its memory when it fails; of a tokenizer that
 * opens, every span lies in the text, on characters, and begins no earlier than the one before unless the text was
 * normalized; the ids decode, to UTF-8. */
#include "fuzz.h"

#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static bool is_boundary(const char *text, size_t len, size_t at) {
    return at == len || (at < len && ((unsigned char)text[at] & 0xC0) != 0x80);
}

static void check_spans(const char *text, size_t len, const tm_ids *ids, const tm_buf *spans) {
    CHECK(spans->len == ids->n * sizeof(tm_token_span));
    for (size_t i = 0; i < ids->n; i++) {
        tm_token_span s;
        memcpy(&s, spans->data + i * sizeof s, sizeof s);
        CHECK(s.begin <= s.end && s.end <= len);
        CHECK(is_boundary(text, len, s.begin) && is_boundary(text, len, s.end));
    }
}

static void use(const tm_tokenizer *t, const char *text, size_t len) {
    tm_ids ids = {0}, again = {0};
    tm_buf spans = {0}, decoded = {0};
    if (tm_tokenizer_encode_offsets(t, text, len, true, &ids, &spans) == TM_OK) {
        check_spans(text, len, &ids, &spans);
        if (tm_tokenizer_decode(t, ids.id, ids.n, false, &decoded) == TM_OK && decoded.len > 0)
            CHECK(tm_tokenizer_encode(t, decoded.data, decoded.len, false, &again) != TM_EINPUT); /* it is UTF-8 */
    }
    tm_error_clear();
    tm_ids_free(&ids);
    tm_ids_free(&again);
    tm_buf_free(&spans);
    tm_buf_free(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_begin(size);
    const char *text = (const char *)data, *end = size == 0 ? NULL : memchr(data, 0, size);
    size_t len = end == NULL ? size : (size_t)(end - text);
    tm_mem_source source = {text, len, 0};
    tm_tokenizer *t;
    if (tm_tokenizer_open(&t, tm_mem_source_read, &source, "f") == TM_OK)
        use(t, end == NULL ? "" : end + 1, end == NULL ? 0 : size - len - 1);
    tm_error_clear();
    tm_tokenizer_close(t);
    fuzz_end();
    return 0;
}
