/* Merges for a SentencePiece BPE vocabulary that has scores instead.
 *
 * SentencePiece joins, again and again, the two neighbours whose union has the highest score. As a list of merges:
 * every way to cut a piece into two pieces of the vocabulary, ordered by the piece's score, highest first; with equal
 * scores the longer left half, then the longer right half (the order of transformers' converters of slow tokenizers).
 */
#include "format/vocab_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_PIECE = 1024, MAX_TEXT = 32 * 1024 * 1024 }; /* bytes: SentencePiece's own limit is 16 characters */

typedef struct piece {
    uint32_t at, len; /* in text */
    float score;
    bool mergeable; /* normal or user-defined: control and byte pieces are never made by merging */
} piece;
typedef struct merge {
    uint32_t whole, left, right, left_chars, right_chars;
} merge;
typedef struct pieces {
    tm_buf text; /* each NUL-terminated */
    piece *piece;
    uint32_t n;
    uint32_t *by_text;
    merge *merge;
    uint32_t n_merges;
    size_t cap;
} pieces;

static const char *piece_text(const void *ctx, uint32_t i) {
    const pieces *p = ctx;
    return p->text.data + p->piece[i].at;
}

static tm_status read_piece(const tm_vocabulary *v, pieces *p, tm_gguf_array *a[3]) {
    const char *text;
    size_t len;
    double score = 0, type = TM_TOKEN_NORMAL;
    TM_TRY(tm_gguf_array_string(a[0], &text, &len));
    if (v->types) TM_TRY(tm_gguf_array_number(a[1], &type));
    TM_TRY(tm_gguf_array_number(a[2], &score));
    if (!isfinite(score) || len > MAX_PIECE || p->text.len > MAX_TEXT)
        return tm_fail(TM_EINPUT, "%s: token %u is too long or has no score", tm_gguf_path(v->gguf), p->n);
    p->piece[p->n++] = (piece){(uint32_t)p->text.len, (uint32_t)len, (float)score,
                               (int)type == TM_TOKEN_NORMAL || (int)type == TM_TOKEN_USER_DEFINED};
    TM_TRY(tm_buf_append(&p->text, text, len));
    return tm_buf_append(&p->text, "", 1);
}

static tm_status read_pieces(const tm_vocabulary *v, pieces *p) {
    const tm_gguf_kv *const kv[3] = {v->tokens, v->types, v->scores};
    tm_gguf_array *a[3] = {0};
    tm_status rc = TM_OK;
    if (!v->scores)
        return tm_fail(TM_EINPUT, "%s: has neither tokenizer.ggml.scores nor merges", tm_gguf_path(v->gguf));
    p->piece = tm_calloc(v->tokens->count, sizeof *p->piece);
    p->by_text = tm_calloc(v->tokens->count, sizeof *p->by_text);
    bool enough = p->piece && p->by_text;
    for (int i = 0; i < 3; i++) {
        a[i] = tm_calloc(1, sizeof **a);
        enough = enough && a[i];
        if (enough && kv[i]) tm_gguf_array_open(a[i], v->gguf, kv[i]);
    }
    if (!enough) rc = tm_nomem(v->tokens->count * sizeof *p->piece);
    while (rc == TM_OK && p->n < v->tokens->count) rc = read_piece(v, p, a);
    for (int i = 0; i < 3; i++) {
        if (a[i]) tm_gguf_array_close(a[i]);
        tm_free(a[i]);
    }
    uint32_t dup;
    if (rc == TM_OK) tm_sort_names(p->by_text, p->n, piece_text, p, &dup); /* duplicates: put_vocab has refused them */
    return rc;
}

static tm_status add_merge(pieces *p, merge m) {
    TM_TRY(tm_grow(&p->merge, &p->cap, (size_t)p->n_merges + 1, sizeof *p->merge));
    p->merge[p->n_merges++] = m;
    return TM_OK;
}

static bool is_start(char c) {
    return ((unsigned char)c & 0xc0) != 0x80;
} /* of a UTF-8 sequence */

static tm_status cut_piece(pieces *p, uint32_t whole) {
    const piece *w = &p->piece[whole];
    const char *text = piece_text(p, whole);
    char left[MAX_PIECE + 1];
    uint32_t chars = 0, total = 0;
    for (uint32_t i = 0; i < w->len; i++) total += is_start(text[i]);
    for (uint32_t i = 1; i < w->len; i++) {
        if (!is_start(text[i])) continue;
        chars++;
        int64_t r = tm_find_name(p->by_text, p->n, piece_text, p, text + i);
        if (r < 0 || !p->piece[r].mergeable) continue;
        memcpy(left, text, i);
        left[i] = 0;
        int64_t l = tm_find_name(p->by_text, p->n, piece_text, p, left);
        if (l < 0 || !p->piece[l].mergeable) continue;
        TM_TRY(add_merge(p, (merge){whole, (uint32_t)l, (uint32_t)r, chars, total - chars}));
    }
    return TM_OK;
}

static bool merge_first(const void *ctx, uint32_t a, uint32_t b) {
    const pieces *p = ctx;
    const merge *x = &p->merge[a], *y = &p->merge[b];
    float sx = p->piece[x->whole].score, sy = p->piece[y->whole].score;
    if (sx != sy) return sx > sy;
    if (x->left_chars != y->left_chars) return x->left_chars > y->left_chars;
    return x->right_chars != y->right_chars ? x->right_chars > y->right_chars : a < b;
}

static tm_status write_merges(pieces *p, tm_json_writer *j) {
    uint32_t *order = tm_malloc((p->n_merges + 1) * sizeof *order);
    if (!order) return tm_nomem((p->n_merges + 1) * sizeof *order);
    for (uint32_t i = 0; i < p->n_merges; i++) order[i] = i;
    tm_sort_indices(order, p->n_merges, merge_first, p);
    for (uint32_t i = 0; i < p->n_merges; i++) {
        const merge *m = &p->merge[order[i]];
        tm_put_merge(j, piece_text(p, m->left), p->piece[m->left].len, piece_text(p, m->right), p->piece[m->right].len);
    }
    tm_free(order);
    return TM_OK;
}

tm_status tm_put_spm_merges(const tm_vocabulary *v, tm_json_writer *j) {
    pieces p = {0};
    tm_status rc = read_pieces(v, &p);
    for (uint32_t i = 0; i < p.n && rc == TM_OK; i++)
        if (p.piece[i].mergeable) rc = cut_piece(&p, i);
    if (rc == TM_OK) rc = write_merges(&p, j);
    tm_buf_free(&p.text);
    tm_free(p.piece);
    tm_free(p.by_text);
    tm_free(p.merge);
    return rc;
}
