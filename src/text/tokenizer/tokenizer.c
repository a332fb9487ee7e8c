/* The tokenizer's public calls: encode is steps over a tk_work, decode a chain over strings. */
#include "text/tokenizer/tokenizer_internal.h"

tm_status tm_tokenizer_open(tm_tokenizer **out, tm_read_fn read, void *ctx, const char *name) {
    *out = NULL;
    tm_tokenizer *t = tm_calloc(1, sizeof *t);
    if (t == NULL) return tm_nomem(sizeof *t);
    t->name = tm_strdup(name);
    tm_status rc = t->name == NULL ? tm_nomem(strlen(name)) : tk_load(t, read, ctx);
    if (rc == TM_OK)
        *out = t;
    else
        tm_tokenizer_close(t);
    return rc;
}

void tm_tokenizer_close(tm_tokenizer *t) {
    if (t == NULL) return;
    tk_bpe_free(&t->bpe);
    tk_added_free(&t->added);
    tk_steps_free(&t->normalizer);
    tk_steps_free(&t->pretokenizer);
    tk_decoder_free(&t->decoder);
    tm_ids_free(&t->before);
    tm_ids_free(&t->after);
    tm_free(t->name);
    tm_free(t);
}

/* ---- encode ----------------------------------------------------------------------------------------------------- */

static tm_status put_special(const tm_ids *ids, uint32_t at, tm_ids *out, tm_buf *spans) {
    for (size_t i = 0; i < ids->n; i++) {
        tm_token_span span = {at, at};
        TM_TRY(tm_ids_push(out, ids->id[i]));
        if (spans != NULL) TM_TRY(tm_buf_append(spans, &span, sizeof span));
    }
    return TM_OK;
}

static tm_status run_model(const tm_tokenizer *t, tk_work *w, tm_ids *out, tm_buf *spans) {
    for (size_t i = 0; i < w->pieces.n; i++) {
        const tk_piece *p = &w->pieces.p[i];
        if (p->id < 0) {
            TM_TRY(tk_bpe_encode(&t->bpe, w, p->begin, p->end, out, spans));
            continue;
        }
        TM_TRY(tm_ids_push(out, p->id));
        if (spans != NULL) TM_TRY(tm_buf_append(spans, &p->from, sizeof p->from));
    }
    return TM_OK;
}

tm_status tm_tokenizer_encode_offsets(const tm_tokenizer *t, const char *text, size_t len, bool add_special,
                                      tm_ids *out, tm_buf *spans) {
    tk_work w = {0};
    tm_status rc;
    TM_GO(tk_work_begin(&w, text, len));
    TM_GO(tk_added_extract(&t->added, &t->added.raw, &w));
    TM_GO(tk_steps_run(&t->normalizer, &w));
    TM_GO(tk_added_extract(&t->added, &t->added.normal, &w));
    TM_GO(tk_steps_run(&t->pretokenizer, &w));
    if (add_special) TM_GO(put_special(&t->before, 0, out, spans));
    TM_GO(run_model(t, &w, out, spans));
    if (add_special) TM_GO(put_special(&t->after, (uint32_t)len, out, spans));
done:
    tk_work_free(&w);
    return rc;
}

tm_status tm_tokenizer_encode(const tm_tokenizer *t, const char *text, size_t len, bool add_special, tm_ids *out) {
    return tm_tokenizer_encode_offsets(t, text, len, add_special, out, NULL);
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static const tk_added *added_by_id(const tm_tokenizer *t, int32_t id) {
    if (id < 0 || (size_t)id >= t->added.ids || t->added.by_id[id] < 0) return NULL;
    return &t->added.token[t->added.by_id[id]];
}

int32_t tm_tokenizer_token_id(const tm_tokenizer *t, const char *token) {
    int32_t i = tk_vocab_find(&t->added.index, token, strlen(token));
    return i >= 0 ? t->added.token[i].id : tk_vocab_find(&t->bpe.vocab, token, strlen(token));
}

uint32_t tm_tokenizer_vocab_size(const tm_tokenizer *t) {
    return (uint32_t)(t->bpe.vocab.ids > t->added.ids ? t->bpe.vocab.ids : t->added.ids);
}

bool tm_tokenizer_is_special(const tm_tokenizer *t, int32_t id) {
    const tk_added *a = added_by_id(t, id);
    return a != NULL && a->special;
}

size_t tm_tokenizer_match_added(const tm_tokenizer *t, const char *text, size_t len, int32_t *id) {
    size_t raw = 0, normal = 0;
    int32_t a = len == 0 ? -1 : tk_trie_match(&t->added.raw, text, 0, len, &raw);
    int32_t b = len == 0 ? -1 : tk_trie_match(&t->added.normal, text, 0, len, &normal);
    if (a < 0 && b < 0) return 0;
    if (a < 0) raw = 0;
    if (b < 0) normal = 0;
    *id = t->added.token[raw >= normal ? a : b].id;
    return raw >= normal ? raw : normal;
}

/* ---- decode ----------------------------------------------------------------------------------------------------- */

/* The string that decoding starts from; NULL: the id does not exist or is left out. */
static const char *shown(const tm_tokenizer *t, int32_t id, bool skip_special, size_t *len) {
    const tk_added *a = added_by_id(t, id);
    if (a == NULL) return tk_vocab_name(&t->bpe.vocab, id, len);
    if (a->shown != NULL) return *len = a->shown_len, a->shown;
    if (a->special && skip_special) return NULL;
    return tk_vocab_name(&t->added.index, t->added.by_id[id], len);
}

static tm_status join(const tk_tokens *tokens, const char *between, tm_buf *out) {
    for (size_t i = 0, at = 0; i < tokens->n; at = tokens->end[i++]) {
        if (i > 0) TM_TRY(tm_buf_append(out, between, strlen(between)));
        TM_TRY(tm_buf_append(out, tokens->text.data + at, tokens->end[i] - at));
    }
    return TM_OK;
}

tm_status tm_tokenizer_decode(const tm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, tm_buf *out) {
    tk_tokens now = {0}, next = {0};
    tm_status rc = TM_OK;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *text = shown(t, ids[i], skip_special, &len);
        if (text != NULL) TM_GO(tk_tokens_put(&now, text, len));
    }
    for (size_t i = 0; i < t->decoder.n; i++) {
        next.n = 0;
        tm_buf_clear(&next.text);
        TM_GO(t->decoder.step[i].run(&t->decoder.step[i], &now, &next));
        tk_tokens swap = now;
        now = next;
        next = swap;
    }
    TM_GO(join(&now, t->decoder.given ? "" : " ", out));
done:
    tk_tokens_free(&now);
    tk_tokens_free(&next);
    return rc;
}

tm_status tm_tokenizer_token_bytes(const tm_tokenizer *t, int32_t id, tm_buf *out) {
    size_t len;
    const char *text = shown(t, id, false, &len);
    if (text == NULL) return TM_OK;
    if (added_by_id(t, id) != NULL) return tm_buf_append(out, text, len);
    return tk_decode_inside(&t->decoder, text, len, out);
}
