/* A sample as a person sees it: what the model reads and what it is asked to learn. */
#include "data/dataset_internal.h"

#include <inttypes.h>

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

/* Tokens [from, to) are all learned, or all not. */
static tm_status put_run(const data_view *v, uint32_t from, uint32_t to, bool learned, const tm_tokenizer *tokenizer,
                         bool color, tm_buf *out) {
    tm_buf text = {0};
    tm_status rc;
    TM_GO(run_text(tokenizer, v->ids + from, to - from, &text));
    if (!learned) TM_GO(tm_buf_printf(out, "%s", color ? DIM : "⟦"));
    TM_GO(put_readable(out, &text));
    if (!learned) TM_GO(tm_buf_printf(out, "%s", color ? PLAIN : "⟧"));
done:
    tm_buf_free(&text);
    return rc;
}

/* The first token is never learned: nothing predicts it. */
static bool is_learned(const data_view *v, uint32_t t) {
    return t && data_view_label(v, t) != TM_LABEL_IGNORE;
}

tm_status tm_dataset_preview(tm_dataset *ds, uint64_t sample, const tm_tokenizer *tokenizer, bool color, tm_buf *out) {
    data_view v;
    uint32_t n, from, to;
    if (sample >= ds->store.n_samples)
        return tm_fail(TM_EINPUT, "sample %" PRIu64 " of %" PRIu64 " does not exist", sample, ds->store.n_samples);
    TM_TRY(data_view_read(ds, sample, &v));
    n = v.sample->n_tokens;
    TM_TRY(tm_buf_printf(
        out, "sample %" PRIu64 " of %" PRIu64 ": %u tokens, %u of them learned (%s is read only)\n  | ", sample + 1,
        ds->store.n_samples, n, v.sample->n_labels, color ? DIM "dimmed text" PLAIN : "text between ⟦ and ⟧"));
    for (from = 0; from < n; from = to) {
        bool learned = is_learned(&v, from);
        for (to = from + 1; to < n && is_learned(&v, to) == learned;) to++;
        TM_TRY(put_run(&v, from, to, learned, tokenizer, color, out));
    }
    return tm_buf_printf(out, "\n");
}
