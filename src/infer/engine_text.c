/* From tokens to text that is certain. A token may be a part of a character only, and what a token's text is may depend
 * on the one before it: so some tokens are decoded with the next, and what is new is what both have beyond the first.
 * What may become a stop string waits. */
#include "infer/engine_internal.h"

#include <string.h>

void answer_text_open(answer_text *t, const tm_tokenizer *tokenizer, const char *const *stop, uint32_t n_stop) {
    *t = (answer_text){.tokenizer = tokenizer, .stop = stop, .n_stop = n_stop};
}

void answer_text_close(answer_text *t) {
    tm_buf_free(&t->pending);
}

/* The decoder's mark for bytes that are no character, or none yet. */
static bool ends_open(const tm_buf *b) {
    return b->len >= 3 && memcmp(b->data + b->len - 3, "\xef\xbf\xbd", 3) == 0;
}

/* What ids[until, n) add, to `pending`. */
static tm_status decode(answer_text *t, const int32_t *ids, size_t n, bool last) {
    tm_buf both = {0}, old = {0};
    tm_status rc;
    TM_GO(tm_tokenizer_decode(t->tokenizer, ids + t->from, n - t->from, true, &both));
    if (ends_open(&both) && !last) goto done;
    if (both.len > t->known) TM_GO(tm_buf_append(&t->pending, both.data + t->known, both.len - t->known));
    t->from = t->until;
    t->until = n;
    TM_GO(tm_tokenizer_decode(t->tokenizer, ids + t->from, n - t->from, true, &old));
    t->known = old.len;
done:
    tm_buf_free(&both);
    tm_buf_free(&old);
    return rc;
}

/* Where the first stop string begins; SIZE_MAX: none is there. */
static size_t find_stop(const answer_text *t) {
    size_t first = SIZE_MAX;
    for (uint32_t i = 0; i < t->n_stop; i++) {
        const char *at =
            t->pending.len ? memmem(t->pending.data, t->pending.len, t->stop[i], strlen(t->stop[i])) : NULL;
        if (at && (size_t)(at - t->pending.data) < first) first = (size_t)(at - t->pending.data);
    }
    return first;
}

/* Bytes at the end of what is pending that a stop string begins with. */
static size_t may_become_stop(const answer_text *t) {
    size_t most = 0;
    for (uint32_t i = 0; i < t->n_stop; i++) {
        size_t n = tm_min_u64(strlen(t->stop[i]) - 1, t->pending.len);
        while (n > most && memcmp(t->pending.data + t->pending.len - n, t->stop[i], n) != 0) n--;
        if (n > most) most = n;
    }
    return most;
}

static void forget_handed(answer_text *t) {
    memmove(t->pending.data, t->pending.data + t->handed, t->pending.len - t->handed);
    t->pending.len -= t->handed;
    t->handed = 0;
}

tm_status answer_text_add(answer_text *t, const int32_t *ids, size_t n, bool last, text_piece *out) {
    *out = (text_piece){.at = ""};
    if (!t->tokenizer) return TM_OK;
    if (t->handed) forget_handed(t);
    TM_TRY(decode(t, ids, n, last));
    size_t stop = find_stop(t);
    out->stopped = stop != SIZE_MAX;
    out->n = out->stopped ? stop : t->pending.len - (last ? 0 : may_become_stop(t));
    out->at = t->pending.data ? t->pending.data : "";
    t->handed = out->n;
    return TM_OK;
}
