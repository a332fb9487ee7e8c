/* Text under work: pieces, and the bytes they came from. */
#include "text/tokenizer/tokenizer_internal.h"

static tm_status reserve(tk_text *t, size_t more) {
    size_t need = t->len + more;
    if (need > UINT32_MAX - 64) return tm_fail(TM_EINPUT, "the normalized text is longer than 4 GiB");
    if (need <= t->cap) return TM_OK;
    size_t bytes_cap = t->cap, from_cap = t->cap;
    TM_TRY(tm_grow(&t->bytes, &bytes_cap, need, 1));
    TM_TRY(tm_grow(&t->from, &from_cap, bytes_cap, sizeof *t->from));
    t->cap = bytes_cap;
    return TM_OK;
}

tm_status tk_text_put(tk_text *t, const char *bytes, size_t n, tm_token_span from) {
    TM_TRY(reserve(t, n));
    if (n > 0) memcpy(t->bytes + t->len, bytes, n);
    for (size_t i = 0; i < n; i++) t->from[t->len + i] = from;
    t->len += n;
    return TM_OK;
}

tm_status tk_text_copy(tk_text *t, const tk_text *source, size_t begin, size_t end) {
    TM_TRY(reserve(t, end - begin));
    if (begin == end) return TM_OK;
    memcpy(t->bytes + t->len, source->bytes + begin, end - begin);
    memcpy(t->from + t->len, source->from + begin, (end - begin) * sizeof *t->from);
    t->len += end - begin;
    return TM_OK;
}

void tk_text_free(tk_text *t) {
    tm_free(t->bytes);
    tm_free(t->from);
    *t = (tk_text){0};
}

tm_status tk_pieces_put(tk_pieces *list, tk_piece p) {
    TM_TRY(tm_grow(&list->p, &list->cap, list->n + 1, sizeof *list->p));
    list->p[list->n++] = p;
    return TM_OK;
}

tm_status tk_cut_put(tk_work *w, size_t begin, size_t end, bool match) {
    TM_TRY(tm_grow(&w->cut, &w->cuts_cap, w->cuts + 1, sizeof *w->cut));
    w->cut[w->cuts++] = (tk_cut){(uint32_t)begin, (uint32_t)end, match};
    return TM_OK;
}

tm_status tk_work_begin(tk_work *w, const char *text, size_t len) {
    if (len > TM_GIB)
        return tm_fail(TM_EINPUT, "a text of %zu bytes; at most 1 GiB can be tokenized in one piece", len);
    size_t valid = tk_utf8_valid(text, len);
    if (valid != len) return tm_fail(TM_EINPUT, "the text is not UTF-8 at byte %zu; convert it first", valid);
    TM_TRY(reserve(&w->text, len));
    for (size_t at = 0; at < len;) {
        size_t begin = at;
        (void)tk_next(text, &at);
        TM_TRY(tk_text_put(&w->text, text + begin, at - begin, (tm_token_span){(uint32_t)begin, (uint32_t)at}));
    }
    if (len == 0) return TM_OK;
    return tk_pieces_put(&w->pieces, (tk_piece){.begin = 0, .end = (uint32_t)len, .id = -1});
}

void tk_work_free(tk_work *w) {
    tk_text_free(&w->text);
    tk_text_free(&w->next_text);
    tm_free(w->pieces.p);
    tm_free(w->next_pieces.p);
    tm_free(w->cut);
    tm_free(w->symbol);
    tm_free(w->heap);
    *w = (tk_work){0};
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static tm_status rewrite_pieces(const tk_step *s, tk_work *w) {
    w->next_text.len = 0;
    size_t kept = 0;
    for (size_t i = 0; i < w->pieces.n; i++) {
        tk_piece p = w->pieces.p[i];
        if (p.id < 0) {
            size_t begin = w->next_text.len;
            TM_TRY(s->rewrite(s, &w->text, p.begin, p.end, &w->next_text));
            p.begin = (uint32_t)begin;
            p.end = (uint32_t)w->next_text.len;
            if (p.begin == p.end) continue;
        }
        w->pieces.p[kept++] = p;
    }
    w->pieces.n = kept;
    tk_text swap = w->text;
    w->text = w->next_text;
    w->next_text = swap;
    return TM_OK;
}

/* Joins cuts as the behavior says; cut[i] then are the pieces (removed ones get an empty range). */
static void join_cuts(tk_work *w, tk_behavior behavior) {
    tk_cut *c = w->cut;
    size_t n = 0;
    if (behavior == TK_MERGED_NEXT) { /* backwards: a match joins what follows it */
        bool was_match = false;
        size_t top = w->cuts;
        for (size_t i = w->cuts; i-- > 0;) {
            tk_cut x = c[i];
            if (x.match && !was_match && top < w->cuts)
                c[top].begin = x.begin;
            else
                c[--top] = x;
            was_match = x.match;
        }
        memmove(c, c + top, (w->cuts - top) * sizeof *c);
        w->cuts -= top;
        return;
    }
    bool was_match = false;
    for (size_t i = 0; i < w->cuts; i++) {
        tk_cut x = c[i];
        bool join = (behavior == TK_CONTIGUOUS && x.match == was_match && n > 0) ||
                    (behavior == TK_MERGED_PREVIOUS && x.match && !was_match && n > 0);
        was_match = x.match;
        if (behavior == TK_REMOVED && x.match) continue;
        if (join)
            c[n - 1].end = x.end;
        else
            c[n++] = x;
    }
    w->cuts = n;
}

static tm_status cut_piece(const tk_step *s, tk_work *w, const tk_piece *p) {
    if (s->scan != NULL) { /* a known split leaves nothing between its matches */
        for (size_t at = p->begin; at < p->end;) {
            size_t end = s->scan(w->text.bytes, at, p->end);
            TM_TRY(tk_pieces_put(&w->next_pieces, (tk_piece){.begin = (uint32_t)at, .end = (uint32_t)end, .id = -1}));
            at = end;
        }
        return TM_OK;
    }
    w->cuts = 0;
    TM_TRY(s->cut(s, w, p->begin, p->end));
    if (s->invert)
        for (size_t i = 0; i < w->cuts; i++) w->cut[i].match = !w->cut[i].match;
    join_cuts(w, s->behavior);
    for (size_t i = 0; i < w->cuts; i++)
        if (w->cut[i].begin < w->cut[i].end)
            TM_TRY(
                tk_pieces_put(&w->next_pieces, (tk_piece){.begin = w->cut[i].begin, .end = w->cut[i].end, .id = -1}));
    return TM_OK;
}

static tm_status cut_pieces(const tk_step *s, tk_work *w) {
    w->next_pieces.n = 0;
    for (size_t i = 0; i < w->pieces.n; i++) {
        if (w->pieces.p[i].id >= 0)
            TM_TRY(tk_pieces_put(&w->next_pieces, w->pieces.p[i]));
        else
            TM_TRY(cut_piece(s, w, &w->pieces.p[i]));
    }
    tk_pieces swap = w->pieces;
    w->pieces = w->next_pieces;
    w->next_pieces = swap;
    return TM_OK;
}

tm_status tk_steps_run(const tk_steps *steps, tk_work *w) {
    for (size_t i = 0; i < steps->n; i++) {
        const tk_step *s = &steps->step[i];
        TM_TRY(s->rewrite != NULL ? rewrite_pieces(s, w) : cut_pieces(s, w));
    }
    return TM_OK;
}

void tk_step_free(tk_step *s) {
    tm_free(s->find);
    tm_free(s->put);
    tk_regex_close(s->regex);
    *s = (tk_step){0};
}

tm_status tk_steps_add(tk_steps *steps, tk_step s) {
    tm_status rc = steps->n < 64 ? tm_grow(&steps->step, &steps->cap, steps->n + 1, sizeof s)
                                 : tm_fail(TM_EUNSUPPORTED, "more than 64 normalizers or pre-tokenizers in a sequence");
    if (rc == TM_OK)
        steps->step[steps->n++] = s;
    else
        tk_step_free(&s);
    return rc;
}

void tk_steps_free(tk_steps *steps) {
    for (size_t i = 0; i < steps->n; i++) tk_step_free(&steps->step[i]);
    tm_free(steps->step);
    *steps = (tk_steps){0};
}

bool tk_string_copy(char **out, size_t *len, const char *text, size_t n) {
    *out = tm_malloc(n + 1);
    if (*out == NULL) return false;
    memcpy(*out, text, n);
    (*out)[n] = 0;
    *len = n;
    return true;
}
