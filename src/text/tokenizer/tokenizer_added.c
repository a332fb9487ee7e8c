/* Added tokens: they are cut out of a text before anything else sees it. Two tries, one for tokens looked for in the
 * raw text, one for those looked for in the normalized text; leftmost match first, the longest of those. */
#include "text/tokenizer/tokenizer_internal.h"

enum { MAX_CONTENT = 4096 };

tm_status tk_added_put(tk_added_vocab *a, const char *content, size_t len, tk_added token) {
    if (len == 0) return TM_OK;
    if (len > MAX_CONTENT) return tm_fail(TM_EUNSUPPORTED, "an added token of %zu bytes; at most %d", len, MAX_CONTENT);
    if (token.id < 0 || token.id >= TK_MAX_ID) return tm_fail(TM_EINPUT, "added token id %d is out of range", token.id);
    int32_t have = tk_vocab_find(&a->index, content, len);
    size_t i = have >= 0 ? (size_t)have : a->n;
    TM_TRY(tm_grow(&a->token, &a->cap, i + 1, sizeof *a->token));
    if (have < 0) TM_TRY(tk_vocab_put(&a->index, content, len, (int32_t)i));
    if (have < 0) a->n++;
    a->token[i] = token;
    return TM_OK;
}

static uint32_t find_child(const tk_trie *t, uint32_t node, unsigned char byte) {
    if (node == 0) return t->first[byte];
    uint32_t c = t->node[node].child;
    while (c != 0 && t->node[c].byte != byte) c = t->node[c].sibling;
    return c;
}

static tm_status trie_put(tk_trie *t, const char *text, size_t len, int32_t added) {
    uint32_t at = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t child = find_child(t, at, byte);
        if (child == 0) {
            if (t->n == 0) t->n = 1; /* node 0 is the root and needs no entry of its own */
            if (t->n >= UINT32_MAX) return tm_fail(TM_EUNSUPPORTED, "too many added tokens");
            TM_TRY(tm_grow(&t->node, &t->cap, t->n + 1, sizeof *t->node));
            child = (uint32_t)t->n++;
            t->node[child] = (tk_trie_node){.added = -1, .byte = byte};
            if (at == 0)
                t->first[byte] = child;
            else
                t->node[child].sibling = t->node[at].child, t->node[at].child = child;
        }
        at = child;
    }
    if (at != 0) t->node[at].added = added;
    return TM_OK;
}

int32_t tk_trie_match(const tk_trie *t, const char *text, size_t pos, size_t len, size_t *match_len) {
    int32_t best = -1;
    uint32_t at = t->first[(unsigned char)text[pos]];
    for (size_t i = pos; at != 0;) {
        i++;
        if (t->node[at].added >= 0) best = t->node[at].added, *match_len = i - pos;
        at = i < len ? find_child(t, at, (unsigned char)text[i]) : 0;
    }
    return best;
}

/* The content as the normalizer leaves it. */
static tm_status normalize(const tk_steps *normalizer, const char *content, size_t len, tk_added *token) {
    tk_work w = {0};
    tm_status rc;
    TM_GO(tk_work_begin(&w, content, len));
    TM_GO(tk_steps_run(normalizer, &w));
    size_t begin = w.pieces.n == 0 ? 0 : w.pieces.p[0].begin, end = w.pieces.n == 0 ? 0 : w.pieces.p[0].end;
    if (end - begin == len && memcmp(w.text.bytes + begin, content, len) == 0) goto done;
    if (!tk_string_copy(&token->shown, &token->shown_len, end > begin ? w.text.bytes + begin : "", end - begin))
        rc = tm_nomem(end - begin);
done:
    tk_work_free(&w);
    return rc;
}

tm_status tk_added_finish(tk_added_vocab *a, const tk_steps *normalizer) {
    for (size_t i = 0; i < a->n; i++)
        if ((size_t)a->token[i].id >= a->ids) a->ids = (size_t)a->token[i].id + 1;
    if (a->ids > 0) a->by_id = tm_malloc(a->ids * sizeof *a->by_id);
    if (a->ids > 0 && a->by_id == NULL) return tm_nomem(a->ids * sizeof *a->by_id);
    for (size_t i = 0; i < a->ids; i++) a->by_id[i] = -1;
    for (size_t i = 0; i < a->n; i++) {
        tk_added *token = &a->token[i];
        size_t len;
        const char *content = tk_vocab_name(&a->index, (int32_t)i, &len);
        a->by_id[token->id] = (int32_t)i;
        if (token->normalized && normalizer->n > 0) TM_TRY(normalize(normalizer, content, len, token));
        if (token->shown != NULL) content = token->shown, len = token->shown_len;
        TM_TRY(trie_put(token->normalized ? &a->normal : &a->raw, content, len, (int32_t)i));
    }
    return TM_OK;
}

void tk_added_free(tk_added_vocab *a) {
    for (size_t i = 0; i < a->n; i++) tm_free(a->token[i].shown);
    tm_free(a->token);
    tm_free(a->by_id);
    tm_free(a->raw.node);
    tm_free(a->normal.node);
    tk_vocab_free(&a->index);
    *a = (tk_added_vocab){0};
}

/* ---- cutting ---------------------------------------------------------------------------------------------------- */

static bool is_word(uint32_t code) {
    return tk_in(&tk_letter, code) || tk_in(&tk_mark, code) || tk_in(&tk_word_more, code);
}

static bool inside_word(const char *text, size_t begin, size_t end, size_t first, size_t last) {
    size_t at;
    if (first > begin && is_word(tk_previous(text, first, &at))) return true;
    return last < end && (at = last, is_word(tk_next(text, &at)));
}

/* Where the white space that ends at `pos` begins, not before `floor`; and where that which begins at `pos` ends. */
static size_t space_before(const char *text, size_t floor, size_t pos) {
    size_t before;
    while (pos > floor && tk_is_space(tk_previous(text, pos, &before))) pos = before;
    return pos;
}

static size_t space_after(const char *text, size_t pos, size_t end) {
    for (size_t next = pos; pos < end; pos = next)
        if (!tk_is_space(tk_next(text, &next))) break;
    return pos;
}

static tm_status put_plain(tk_work *w, size_t begin, size_t end) {
    if (begin >= end) return TM_OK;
    return tk_pieces_put(&w->next_pieces, (tk_piece){.begin = (uint32_t)begin, .end = (uint32_t)end, .id = -1});
}

static tm_status put_token(tk_work *w, size_t begin, size_t end, int32_t id) {
    tm_token_span from = {w->text.from[begin].begin, w->text.from[end - 1].end};
    return tk_pieces_put(&w->next_pieces, (tk_piece){.id = id, .from = from});
}

static tm_status extract_piece(const tk_added_vocab *a, const tk_trie *trie, tk_work *w, size_t begin, size_t end) {
    const char *text = w->text.bytes;
    size_t done = begin; /* all before is settled */
    for (size_t at = begin; at < end;) {
        size_t len = 0;
        int32_t hit = tk_trie_match(trie, text, at, end, &len);
        if (hit < 0) {
            at++;
            continue;
        }
        const tk_added *token = &a->token[hit];
        size_t first = at, last = at + len;
        at = last; /* stripped white space may still begin another token: the reference looks on from here */
        if (token->single_word && inside_word(text, begin, end, first, last)) continue;
        if (token->lstrip) {
            size_t with_space = space_before(text, begin, first);
            first = with_space > done ? with_space : done;
        }
        if (token->rstrip) last = space_after(text, last, end);
        TM_TRY(put_plain(w, done, first));
        if (first < last) TM_TRY(put_token(w, first, last, token->id));
        done = last;
    }
    return put_plain(w, done, end);
}

tm_status tk_added_extract(const tk_added_vocab *a, const tk_trie *trie, tk_work *w) {
    if (trie->n == 0) return TM_OK;
    w->next_pieces.n = 0;
    for (size_t i = 0; i < w->pieces.n; i++) {
        tk_piece p = w->pieces.p[i];
        if (p.id >= 0)
            TM_TRY(tk_pieces_put(&w->next_pieces, p));
        else
            TM_TRY(extract_piece(a, trie, w, p.begin, p.end));
    }
    tk_pieces swap = w->pieces;
    w->pieces = w->next_pieces;
    w->next_pieces = swap;
    return TM_OK;
}
