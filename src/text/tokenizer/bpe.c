/* Byte pair encoding: the merge table, and merging by a heap in O(n log n).
 *
 * A piece starts as one symbol per character (or per byte, with byte fallback). The heap holds the pairs that can
 * merge, least rank first, leftmost first among equals. An entry is out of date when its symbols have changed since; it
 * is recognised when it is taken out, as in the reference: the pair now standing there must merge into the same token.
 */
#include "text/tokenizer/tokenizer_internal.h"
#include "base/ordered.h"

#include <stdio.h>

/* ---- the table -------------------------------------------------------------------------------------------------- */

tm_status tk_bpe_merge_put(tk_bpe *m, const char *left, size_t left_len, const char *right, size_t right_len) {
    uint32_t lens[2] = {(uint32_t)left_len, (uint32_t)right_len};
    if (m->pending_n >= TK_MAX_ID) return tm_fail(TM_EINPUT, "more than %d merges", TK_MAX_ID);
    TM_TRY(tm_buf_append(&m->pending, lens, sizeof lens));
    TM_TRY(tm_buf_append(&m->pending, left, left_len));
    m->pending_n++;
    return tm_buf_append(&m->pending, right, right_len);
}

static inline uint32_t *merge_slot(const tk_bpe *m, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = m->slots - 1, i = (size_t)((key * m->multiplier) >> 32) & mask;
    for (;; i = (i + 1) & mask) {
        if (m->slot[i] == 0) return &m->slot[i];
        const tk_merge *e = &m->merge[m->slot[i] - 1];
        if (e->left == left && e->right == right) return &m->slot[i];
    }
}

/* The rank of a pair, -1. */
static inline int64_t find_merge(const tk_bpe *m, int32_t left, int32_t right) {
    return m->slots == 0 ? -1 : (int64_t)*merge_slot(m, left, right) - 1;
}

static tm_status resolve(tk_bpe *m, const char *name) {
    size_t prefix = m->prefix == NULL ? 0 : strlen(m->prefix);
    tm_buf joined = {0};
    tm_status rc = TM_OK;
    for (size_t i = 0, at = 0; i < m->pending_n && rc == TM_OK; i++) {
        uint32_t lens[2];
        memcpy(lens, m->pending.data + at, sizeof lens);
        const char *left = m->pending.data + at + sizeof lens, *right = left + lens[0];
        size_t skip = prefix < lens[1] ? prefix : lens[1];
        tm_buf_clear(&joined);
        rc = tm_buf_append(&joined, left, lens[0]);
        if (rc == TM_OK) rc = tm_buf_append(&joined, right + skip, lens[1] - skip);
        if (rc != TM_OK) break;
        tk_merge e = {tk_vocab_find(&m->vocab, left, lens[0]), tk_vocab_find(&m->vocab, right, lens[1]),
                      tk_vocab_find(&m->vocab, joined.data, joined.len)};
        if (e.left < 0 || e.right < 0 || e.id < 0)
            rc = tm_fail(TM_EINPUT, "%s: merge %zu (\"%.*s\" with \"%.*s\") needs a token that the vocabulary lacks",
                         name, i, (int)tm_min_u64(lens[0], 64), left, (int)tm_min_u64(lens[1], 64), right);
        m->merge[i] = e;
        *merge_slot(m, e.left, e.right) = (uint32_t)i + 1; /* of a pair given twice the later counts */
        at += sizeof lens + lens[0] + lens[1];
    }
    tm_buf_free(&joined);
    return rc;
}

tm_status tk_bpe_finish(tk_bpe *m, const char *name) {
    m->merges = m->pending_n;
    m->multiplier = (tm_now_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)m << 20) | 1; /* no file can foresee it */
    for (m->slots = 64; m->slots < m->merges * 3 / 2; m->slots *= 2) {
    }
    m->merge = tm_malloc((m->merges + 1) * sizeof *m->merge);
    m->slot = tm_calloc(m->slots, sizeof *m->slot);
    if (m->merge == NULL || m->slot == NULL) return tm_nomem(m->slots * sizeof *m->slot);
    TM_TRY(resolve(m, name));
    tm_buf_free(&m->pending);
    for (uint32_t c = 0; c < TK_DIRECT; c++) {
        char bytes[4];
        m->direct[c] = tk_vocab_find(&m->vocab, bytes, tm_utf8_encode(bytes, c));
    }
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        (void)snprintf(text, sizeof text, "<0x%02X>", b);
        m->byte[b] = tk_vocab_find(&m->vocab, text, 6);
    }
    m->unk = m->unk_token == NULL ? -1 : tk_vocab_find(&m->vocab, m->unk_token, strlen(m->unk_token));
    return TM_OK;
}

void tk_bpe_free(tk_bpe *m) {
    tk_vocab_free(&m->vocab);
    tm_buf_free(&m->pending);
    tm_free(m->merge);
    tm_free(m->slot);
    tm_free(m->unk_token);
    tm_free(m->prefix);
    tm_free(m->suffix);
    *m = (tk_bpe){0};
}

/* ---- symbols ---------------------------------------------------------------------------------------------------- */

typedef struct word {
    const tk_bpe *m;
    tk_work *w;
    const char *text;           /* of the piece */
    size_t len, n;              /* n symbols */
    int64_t unk_begin, unk_end; /* an unknown token that is still growing; begin -1: none */
} word;

static void put_symbol(word *x, int32_t id, size_t begin, size_t end) {
    x->w->symbol[x->n] = (tk_symbol){.id = id, .begin = (uint32_t)begin, .end = (uint32_t)end};
    x->n++;
}

static void flush_unknown(word *x) {
    if (x->unk_begin >= 0) put_symbol(x, x->m->unk, (size_t)x->unk_begin, (size_t)x->unk_end);
    x->unk_begin = -1;
}

static tm_status put_unknown(word *x, size_t begin, size_t end) {
    const tk_bpe *m = x->m;
    if (m->byte_fallback) {
        bool all = true;
        for (size_t i = begin; i < end; i++) all = all && m->byte[(unsigned char)x->text[i]] >= 0;
        /* The reference does not flush a pending unknown token here, so it comes after these bytes. */
        for (size_t i = begin; i < end && all; i++) put_symbol(x, m->byte[(unsigned char)x->text[i]], i, i + 1);
        if (all) return TM_OK;
    }
    if (m->unk_token == NULL) return TM_OK;
    if (m->unk < 0)
        return tm_fail(TM_EINPUT, "the tokenizer's unk_token \"%s\" is not in its vocabulary", m->unk_token);
    if (!m->fuse_unk) flush_unknown(x);
    if (x->unk_begin < 0) x->unk_begin = (int64_t)begin;
    x->unk_end = (int64_t)end;
    return TM_OK;
}

/* The id of the character text[begin, end) with the prefix and suffix that some models have; -1. */
static int32_t lookup(const word *x, size_t begin, size_t end, uint32_t code) {
    const tk_bpe *m = x->m;
    const char *prefix = begin > 0 && m->prefix != NULL ? m->prefix : "";
    const char *suffix = end == x->len && m->suffix != NULL ? m->suffix : "";
    if (*prefix == 0 && *suffix == 0)
        return code < TK_DIRECT ? m->direct[code] : tk_vocab_find(&m->vocab, x->text + begin, end - begin);
    char name[160];
    int n = snprintf(name, sizeof name, "%s%.*s%s", prefix, (int)(end - begin), x->text + begin, suffix);
    return n < 0 || (size_t)n >= sizeof name ? -1 : tk_vocab_find(&m->vocab, name, (size_t)n);
}

static tm_status split(word *x) {
    for (size_t at = 0; at < x->len;) {
        size_t begin = at;
        uint32_t code = tk_next(x->text, &at);
        int32_t id = lookup(x, begin, at, code);
        if (id < 0) {
            TM_TRY(put_unknown(x, begin, at));
            continue;
        }
        flush_unknown(x);
        put_symbol(x, id, begin, at);
    }
    flush_unknown(x);
    for (size_t i = 0; i < x->n; i++) {
        x->w->symbol[i].prev = (int32_t)i - 1;
        x->w->symbol[i].next = i + 1 < x->n ? (int32_t)i + 1 : -1;
    }
    return TM_OK;
}

/* ---- merging ---------------------------------------------------------------------------------------------------- */

static inline bool merges_before(const void *order, uint64_t a, uint64_t b) {
    (void)order;
    return a < b;
}
TM_HEAP(merge_heap, uint64_t, merges_before)

static void push_merge(const word *x, size_t *n, int32_t pos) {
    const tk_symbol *s = &x->w->symbol[pos];
    int64_t rank = find_merge(x->m, s->id, x->w->symbol[s->next].id);
    if (rank >= 0) merge_heap_push(x->w->heap, n, (uint64_t)rank << 32 | (uint32_t)pos, NULL);
}

static void merge_all(word *x) {
    tk_symbol *s = x->w->symbol;
    uint64_t *heap = x->w->heap;
    size_t n = 0;
    for (size_t i = 0; i + 1 < x->n; i++) {
        int64_t rank = find_merge(x->m, s[i].id, s[i + 1].id);
        if (rank >= 0) heap[n++] = (uint64_t)rank << 32 | i;
    }
    merge_heap_make(heap, n, NULL);
    while (n > 0) {
        uint64_t first = merge_heap_pop(heap, &n, NULL);
        int32_t pos = (int32_t)(first & UINT32_MAX), id = x->m->merge[first >> 32].id;
        tk_symbol *left = &s[pos];
        if (left->gone || left->next < 0) continue;
        tk_symbol *right = &s[left->next];
        int64_t now = find_merge(x->m, left->id, right->id);
        if (now < 0 || x->m->merge[now].id != id) continue;
        left->id = id;
        left->begin = left->begin < right->begin ? left->begin : right->begin;
        left->end = left->end > right->end ? left->end : right->end;
        left->next = right->next;
        right->gone = true;
        if (left->next >= 0) s[left->next].prev = pos;
        if (left->prev >= 0) push_merge(x, &n, left->prev);
        if (left->next >= 0) push_merge(x, &n, pos);
    }
}

static tm_status put_token(tm_ids *out, tm_buf *spans, int32_t id, const tm_token_span *from, size_t begin,
                           size_t end) {
    TM_TRY(tm_ids_push(out, id));
    if (spans == NULL) return TM_OK;
    tm_token_span span = {from[begin].begin, from[end - 1].end};
    return tm_buf_append(spans, &span, sizeof span);
}

tm_status tk_bpe_encode(const tk_bpe *m, tk_work *w, size_t begin, size_t end, tm_ids *out, tm_buf *spans) {
    word x = {.m = m, .w = w, .text = w->text.bytes + begin, .len = end - begin, .unk_begin = -1};
    const tm_token_span *from = w->text.from + begin;
    if (m->ignore_merges) {
        int32_t id = tk_vocab_find(&m->vocab, x.text, x.len);
        if (id >= 0) return put_token(out, spans, id, from, 0, x.len);
    }
    if (x.len > INT32_MAX / 4) return tm_fail(TM_EINPUT, "a word of %zu bytes; at most 512 MiB", x.len);
    TM_TRY(tm_grow(&w->symbol, &w->symbol_cap, x.len, sizeof *w->symbol));
    TM_TRY(tm_grow(&w->heap, &w->heap_cap, 3 * x.len + 1, sizeof *w->heap)); /* n pairs, two more for each merge */
    TM_TRY(split(&x));
    merge_all(&x);
    for (size_t i = 0; i < x.n; i++)
        if (!w->symbol[i].gone)
            TM_TRY(put_token(out, spans, w->symbol[i].id, from, w->symbol[i].begin, w->symbol[i].end));
    return TM_OK;
}
