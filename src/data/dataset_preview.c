/* A sample as a person sees it: what the model reads and what it is asked to learn. */
#include "data/dataset_internal.h"

#include <inttypes.h>

#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* The first token is never learned: nothing predicts it. */
static bool is_learned(const data_view *v, uint32_t t) {
    return t && data_view_label(v, t) != TM_LABEL_IGNORE;
}

static const char *name_of(const tm_dataset *ds, uint64_t row) {
    if (ds->kind == TM_ROWS_PAIRS) return row % 2 ? ", rejected" : ", chosen";
    if (ds->kind == TM_ROWS_PLAIN) return "";
    if (row % ds->rows_each) return ", mismatched";
    return data_store_get(&ds->store, row)->desirable ? ", desirable" : ", undesirable";
}

static tm_status preview_row(tm_dataset *ds, uint64_t row, const tm_tokenizer *tokenizer, bool color, tm_buf *out) {
    data_view v;
    tm_buf learned = {0};
    tm_status rc;
    TM_TRY(data_view_read(ds, row, &v));
    uint32_t n = v.row->n_tokens;
    TM_GO(tm_buf_reserve(&learned, n));
    for (uint32_t t = 0; t < n; t++) learned.data[t] = is_learned(&v, t);
    TM_GO(tm_buf_printf(out, "sample %" PRIu64 " of %" PRIu64 "%s: %u tokens, %u of them learned (%s is read only)\n",
                        row / ds->rows_each + 1, ds->n_samples, name_of(ds, row), n, v.row->n_labels,
                        color ? DIM "dimmed text" PLAIN : "text between ⟦ and ⟧"));
    TM_GO(tm_chat_show(tokenizer, v.ids, learned.data, n, color, out));
done:
    tm_buf_free(&learned);
    return rc;
}

tm_status tm_dataset_preview(tm_dataset *ds, uint64_t sample, const tm_tokenizer *tokenizer, bool color, tm_buf *out) {
    if (sample >= ds->n_samples)
        return tm_fail(TM_EINPUT, "sample %" PRIu64 " of %" PRIu64 " does not exist", sample, ds->n_samples);
    for (uint32_t i = 0; i < ds->rows_each; i++)
        TM_TRY(preview_row(ds, sample * ds->rows_each + i, tokenizer, color, out));
    return TM_OK;
}
