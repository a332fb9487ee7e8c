/* Ids as a person sees them: what the model reads and what it is asked to learn. */
#include "text/chat/chat.h"

#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* Control characters of the data must not reach a terminal: C0 and DEL as \xNN, C1 (U+0080..9F) as \u00NN. */
static tm_status put_readable(tm_buf *out, const tm_buf *text) {
    for (size_t i = 0; i < text->len; i++) {
        uint8_t c = (uint8_t)text->data[i], next = i + 1 < text->len ? (uint8_t)text->data[i + 1] : 0;
        if (c == '\n')
            TM_TRY(tm_buf_printf(out, "\n  | "));
        else if (c == '\t')
            TM_TRY(tm_buf_append(out, "\t", 1));
        else if (c < 0x20 || c == 0x7F)
            TM_TRY(tm_buf_printf(out, "\\x%02x", c));
        else if (c == 0xC2 && next < 0xA0)
            TM_TRY(tm_buf_printf(out, "\\u00%02x", (uint8_t)text->data[++i]));
        else
            TM_TRY(tm_buf_append(out, &text->data[i], 1));
    }
    return TM_OK;
}

static tm_status run_text(const tm_tokenizer *tokenizer, const int32_t *ids, size_t n, tm_buf *text) {
    tm_buf_clear(text);
    if (tokenizer) return tm_tokenizer_decode(tokenizer, ids, n, false, text);
    for (size_t i = 0; i < n; i++) TM_TRY(tm_buf_printf(text, "%s%d", i ? " " : "", (int)ids[i]));
    return TM_OK;
}

tm_status tm_chat_show(const tm_tokenizer *tokenizer, const int32_t *ids, const char *learned, size_t n, bool color,
                       tm_buf *out) {
    tm_buf text = {0};
    tm_status rc;
    TM_GO(tm_buf_printf(out, "  | "));
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && !learned[to] == !learned[from];) to++;
        TM_GO(run_text(tokenizer, ids + from, to - from, &text));
        if (!learned[from]) TM_GO(tm_buf_printf(out, "%s", color ? DIM : "⟦"));
        TM_GO(put_readable(out, &text));
        if (!learned[from]) TM_GO(tm_buf_printf(out, "%s", color ? PLAIN : "⟧"));
    }
    TM_GO(tm_buf_printf(out, "\n"));
done:
    tm_buf_free(&text);
    return rc;
}
