/* Reads tokenizer.json as a stream: a vocabulary of 150,000 tokens with 300,000 merges would be 100 MB as a tree. The
 * small parts (normaliser, pre-tokeniser, post-processor) are cut out and parsed as trees. */
#include "format/hf_tokenizer_internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct reader {
    hf_tokenizer *t;
    tm_json_reader *json;
    const tm_buf *text;
} reader;

static tm_status wrong(const reader *r, const tm_json_event *e, const char *what) {
    return tm_fail(TM_EINPUT, "%s:%u:%u: %s", r->t->name, e->line, e->column, what);
}

static tm_status expect(reader *r, tm_json_event *e, tm_json_type type, const char *what) {
    TM_TRY(tm_json_next(r->json, e));
    return e->type == type ? TM_OK : wrong(r, e, what);
}

void hf_tokenizer_free(hf_tokenizer *t) {
    tm_buf_free(&t->text);
    tm_buf_free(&t->merges);
    tm_buf_free(&t->unk);
    tm_free(t->token);
    tm_free(t->by_text);
}

/* ---- tokens ---- */

static tm_status set_token(reader *r, const tm_json_event *at, int64_t id, const char *text, size_t len, uint8_t type) {
    hf_tokenizer *t = r->t;
    if (id < 0 || id >= t->n)
        return tm_fail(TM_EINPUT, "%s:%u:%u: token id %" PRId64 " is outside of the model's vocabulary (%u)", t->name,
                       at->line, at->column, id, t->n);
    if (len == 0 || len > TM_GGUF_MAX_ITEM || memchr(text, 0, len))
        return wrong(r, at, "a token that GGUF cannot hold");
    hf_token *k = &t->token[id];
    if (k->type && (k->len != len || memcmp(t->text.data + k->at, text, len) != 0))
        return wrong(r, at, "two tokens have the same id");
    if (!k->type) {
        k->at = t->text.len;
        k->len = (uint32_t)len;
        TM_TRY(tm_buf_append(&t->text, text, len));
        TM_TRY(tm_buf_append(&t->text, "", 1));
    }
    if (!k->type || type != TM_TOKEN_NORMAL) k->type = type; /* an added token may be in the vocabulary too */
    return TM_OK;
}

static tm_status read_vocab(reader *r) {
    tm_json_event e;
    tm_buf key = {0};
    tm_status rc;
    TM_GO(expect(r, &e, TM_JSON_OBJECT, "vocab must be an object"));
    for (;;) {
        TM_GO(tm_json_next(r->json, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        tm_buf_clear(&key);
        TM_GO(tm_buf_append(&key, e.text, e.len));
        TM_GO(expect(r, &e, TM_JSON_NUMBER, "a token's id must be a number"));
        TM_GO(set_token(r, &e, e.is_integer ? e.integer : -1, key.data, key.len, TM_TOKEN_NORMAL));
    }
done:
    tm_buf_free(&key);
    return rc;
}

static tm_status read_added_token(reader *r, tm_buf *content) {
    tm_json_event e, value = {0};
    int64_t id = -1;
    bool special = false;
    tm_buf_clear(content);
    for (;;) {
        char key[16];
        TM_TRY(tm_json_next(r->json, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        size_t n = tm_min_u64(e.len, sizeof key - 1);
        memcpy(key, e.text, n);
        key[n] = 0;
        TM_TRY(tm_json_next(r->json, &value));
        if (strcmp(key, "id") == 0 && value.type == TM_JSON_NUMBER && value.is_integer) id = value.integer;
        if (strcmp(key, "special") == 0) special = value.type == TM_JSON_BOOL && value.boolean;
        bool flag = strcmp(key, "lstrip") == 0 || strcmp(key, "rstrip") == 0 || strcmp(key, "single_word") == 0;
        if (flag && value.type == TM_JSON_BOOL && value.boolean)
            tm_warn_once(r->t->name, "%s: GGUF cannot say lstrip, rstrip and single_word; they are lost", r->t->name);
        if (strcmp(key, "content") == 0 && value.type == TM_JSON_STRING)
            TM_TRY(tm_buf_append(content, value.text, value.len));
        TM_TRY(tm_json_skip(r->json, &value));
    }
    if (id >= r->t->n) { /* Gemma 3 1B has one for pictures, of which the model knows nothing */
        tm_log(TM_LOG_WARN, "%s: the added token %" PRId64 " is outside of the model's vocabulary (%u); it is left out",
               r->t->name, id, r->t->n);
        return TM_OK;
    }
    return set_token(r, &e, id, content->data, content->len, special ? TM_TOKEN_CONTROL : TM_TOKEN_USER_DEFINED);
}

static tm_status read_added(reader *r) {
    tm_json_event e;
    tm_buf content = {0};
    tm_status rc;
    TM_GO(expect(r, &e, TM_JSON_ARRAY, "added_tokens must be an array"));
    for (;;) {
        TM_GO(tm_json_next(r->json, &e));
        if (e.type == TM_JSON_ARRAY_END) break;
        rc =
            e.type == TM_JSON_OBJECT ? read_added_token(r, &content) : wrong(r, &e, "an added token must be an object");
        if (rc != TM_OK) break;
    }
done:
    tm_buf_free(&content);
    return rc;
}

/* ---- merges: "a b" or ["a", "b"] ---- */

static tm_status add_merge(reader *r, const tm_json_event *at, const tm_buf *pair) {
    const char *space = pair->len > 2 ? memchr(pair->data + 1, ' ', pair->len - 2) : NULL;
    if (!space || memchr(space + 1, ' ', (size_t)(pair->data + pair->len - space - 1)) ||
        memchr(pair->data, 0, pair->len))
        return wrong(r, at, "a merge that GGUF cannot hold (two tokens without spaces are expected)");
    r->t->n_merges++;
    return tm_buf_append(&r->t->merges, pair->data, pair->len + 1);
}

static tm_status read_pair(reader *r, tm_json_event *e, tm_buf *pair) {
    TM_TRY(expect(r, e, TM_JSON_STRING, "a merge must be two strings"));
    TM_TRY(tm_buf_append(pair, e->text, e->len));
    TM_TRY(tm_buf_append(pair, " ", 1));
    TM_TRY(expect(r, e, TM_JSON_STRING, "a merge must be two strings"));
    TM_TRY(tm_buf_append(pair, e->text, e->len));
    return expect(r, e, TM_JSON_ARRAY_END, "a merge must be two strings");
}

static tm_status read_merges(reader *r) {
    tm_json_event e;
    tm_buf pair = {0};
    tm_status rc;
    TM_GO(expect(r, &e, TM_JSON_ARRAY, "merges must be an array"));
    for (;;) {
        TM_GO(tm_json_next(r->json, &e));
        if (e.type == TM_JSON_ARRAY_END) break;
        tm_buf_clear(&pair);
        if (e.type == TM_JSON_STRING)
            TM_GO(tm_buf_append(&pair, e.text, e.len));
        else if (e.type == TM_JSON_ARRAY)
            TM_GO(read_pair(r, &e, &pair));
        TM_GO(add_merge(r, &e, &pair));
    }
done:
    tm_buf_free(&pair);
    return rc;
}

static tm_status read_model(reader *r) {
    tm_json_event e;
    TM_TRY(expect(r, &e, TM_JSON_OBJECT, "model must be an object"));
    for (;;) {
        TM_TRY(tm_json_next(r->json, &e));
        if (e.type == TM_JSON_OBJECT_END) return TM_OK;
        char key[32];
        size_t n = tm_min_u64(e.len, sizeof key - 1);
        memcpy(key, e.text, n);
        key[n] = 0;
        if (strcmp(key, "vocab") == 0 || strcmp(key, "merges") == 0) {
            TM_TRY(*key == 'v' ? read_vocab(r) : read_merges(r));
            continue;
        }
        TM_TRY(tm_json_next(r->json, &e));
        if (strcmp(key, "type") == 0 && (e.type != TM_JSON_STRING || strcmp(e.text, "BPE") != 0))
            return tm_fail(TM_EUNSUPPORTED, "%s: only BPE tokenizers can be written to GGUF", r->t->name);
        if (strcmp(key, "byte_fallback") == 0) r->t->byte_fallback = e.type == TM_JSON_BOOL && e.boolean;
        if (strcmp(key, "ignore_merges") == 0) r->t->ignore_merges = e.type == TM_JSON_BOOL && e.boolean;
        if (strcmp(key, "unk_token") == 0 && e.type == TM_JSON_STRING) TM_TRY(tm_buf_append(&r->t->unk, e.text, e.len));
        TM_TRY(tm_json_skip(r->json, &e));
    }
}

/* ---- the small parts, as trees ---- */

static const tm_json *part_of(const tm_json *node, const char *list, const char *type) {
    if (tm_json_is(tm_json_get(node, "type"), type)) return node;
    const tm_json *parts = tm_json_get(node, list);
    for (const tm_json *p = parts ? parts->child : NULL; p; p = p->next)
        if (tm_json_is(tm_json_get(p, "type"), type)) return p;
    return NULL;
}

static bool is_true(const tm_json *node, const char *key, bool absent) {
    const tm_json *v = tm_json_get(node, key);
    return v && v->type == TM_JSON_BOOL ? v->boolean : absent;
}

static tm_status read_normalizer(reader *r, const tm_json *node) {
    r->t->nfc = part_of(node, "normalizers", "NFC") != NULL;
    if (part_of(node, "normalizers", "Prepend")) r->t->add_prefix = true;
    const tm_json *replace = part_of(node, "normalizers", "Replace");
    if (tm_json_is(tm_json_get(tm_json_get(replace, "pattern"), "String"), " "))
        r->t->replaces_spaces = tm_json_is(tm_json_get(replace, "content"), "\xe2\x96\x81");
    return TM_OK;
}

/* Cuts at each match, or (tiktoken's tokenizers, converted) leaves out what is between matches, which is nothing. */
static bool cuts_at_matches(const tm_json *split) {
    bool inverted = is_true(split, "invert", false);
    return tm_json_is(tm_json_get(split, "behavior"), inverted ? "Removed" : "Isolated");
}

/* Gemma's: cuts at spaces, of which its normaliser has left none. */
static bool never_cuts(const hf_tokenizer *t, const tm_json *node) {
    const tm_json *text = tm_json_get(tm_json_get(node, "pattern"), "String");
    return t->replaces_spaces && tm_json_is(tm_json_get(node, "type"), "Split") && tm_json_is(text, " ");
}

static tm_status read_pre_tokenizer(reader *r, const tm_json *node) {
    const tm_json *bytes = part_of(node, "pretokenizers", "ByteLevel");
    const tm_json *split = part_of(node, "pretokenizers", "Split"), *digits = part_of(node, "pretokenizers", "Digits");
    const tm_json *meta = part_of(node, "pretokenizers", "Metaspace");
    size_t parts = tm_json_get(node, "pretokenizers") ? tm_json_get(node, "pretokenizers")->count : 1;
    if (meta) {
        r->t->add_prefix = is_true(meta, "add_prefix_space", !tm_json_is(tm_json_get(meta, "prepend_scheme"), "never"));
        if (r->t->add_prefix)
            tm_log(TM_LOG_WARN, "%s: GGUF puts the prefix before a space and after a special token, too", r->t->name);
    }
    if (bytes && !is_true(bytes, "add_prefix_space", true)) {
        const tm_json *regex = tm_json_get(tm_json_get(split, "pattern"), "Regex");
        bool own = is_true(bytes, "use_regex", true);
        bool told = regex && regex->type == TM_JSON_STRING;
        if (split && !own && told && parts == 2 && cuts_at_matches(split)) r->t->split = tm_split_by_regex(regex->text);
        if (!split && own && !digits && parts == 1) r->t->split = tm_split_plain(false);
        if (!split && own && parts == 2 && is_true(digits, "individual_digits", false))
            r->t->split = tm_split_plain(true);
        if (r->t->split) return TM_OK;
    } else if ((!bytes && !split && !digits) || never_cuts(r->t, node))
        return TM_OK; /* SentencePiece-style, as the model's byte_fallback will say */
    return tm_fail(TM_EUNSUPPORTED, "%s: GGUF has no name for this pre_tokenizer", r->t->name);
}

static tm_status read_post_processor(reader *r, const tm_json *node) {
    const tm_json *single = tm_json_get(part_of(node, "processors", "TemplateProcessing"), "single");
    bool before = true;
    for (const tm_json *p = single ? single->child : NULL; p; p = p->next) {
        if (tm_json_get(p, "Sequence")) before = false;
        if (!tm_json_get(p, "SpecialToken")) continue;
        if (before && r->t->add_bos) tm_log(TM_LOG_WARN, "%s: GGUF can say one token in front of a text", r->t->name);
        if (before) r->t->add_bos = true;
        if (!before) r->t->add_eos = true;
    }
    return TM_OK;
}

typedef tm_status (*part_fn)(reader *r, const tm_json *node);
static part_fn part_reader(const char *key) {
    return strcmp(key, "normalizer") == 0       ? read_normalizer
           : strcmp(key, "pre_tokenizer") == 0  ? read_pre_tokenizer
           : strcmp(key, "post_processor") == 0 ? read_post_processor
                                                : NULL;
}

/* Bytes [from, to) hold one value and what follows it up to the next key. */
static tm_status read_part(reader *r, part_fn fn, uint64_t from, uint64_t to) {
    const char *text = r->text->data;
    tm_json_doc *doc;
    while (to > from && strchr(" \t\r\n,", text[to - 1])) to--;
    TM_TRY(tm_json_parse(&doc, text + from, to - from, r->t->name, 0, 4 << 20));
    tm_status rc = fn(r, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

static tm_status read_top(reader *r) {
    tm_json_event e;
    TM_TRY(expect(r, &e, TM_JSON_OBJECT, "a tokenizer must be a JSON object"));
    TM_TRY(tm_json_next(r->json, &e));
    while (e.type == TM_JSON_KEY) {
        bool model = strcmp(e.text, "model") == 0;
        part_fn part = part_reader(e.text);
        if (model || strcmp(e.text, "added_tokens") == 0) {
            TM_TRY(model ? read_model(r) : read_added(r));
            TM_TRY(tm_json_next(r->json, &e));
            continue;
        }
        TM_TRY(tm_json_next(r->json, &e));
        uint64_t from = e.offset;
        TM_TRY(tm_json_skip(r->json, &e));
        TM_TRY(tm_json_next(r->json, &e));
        if (part) TM_TRY(read_part(r, part, from, e.offset));
    }
    return tm_json_next(r->json, &e);
}

/* ---- after reading ---- */

static const char *token_text(const void *ctx, uint32_t i) {
    const hf_tokenizer *t = ctx;
    return t->text.data + t->token[i].at;
}

static bool token_less(const void *ctx, uint32_t a, uint32_t b) {
    return strcmp(token_text(ctx, a), token_text(ctx, b)) < 0;
}

static void sort_tokens(hf_tokenizer *t) {
    for (uint32_t i = 0; i < t->n; i++)
        if (t->token[i].type) t->by_text[t->n_present++] = i;
    tm_sort_indices(t->by_text, t->n_present, token_less, t);
}

int64_t hf_tokenizer_find(const hf_tokenizer *t, const char *text) {
    return tm_find_name(t->by_text, t->n_present, token_text, t, text);
}

static bool is_byte_token(const char *s) {
    return strlen(s) == 6 && strncmp(s, "<0x", 3) == 0 && strspn(s + 3, "0123456789ABCDEF") == 2 && s[5] == '>';
}

/* SentencePiece's scores: a piece made by merge k has -k, what no merge makes comes after all of them. */
static tm_status set_scores(hf_tokenizer *t) {
    tm_buf whole = {0};
    tm_status rc = TM_OK;
    for (uint32_t i = 0; i < t->n; i++) t->token[i].score = -(float)(t->n_merges + i);
    const char *m = t->merges.data;
    for (uint64_t k = 0; k < t->n_merges && rc == TM_OK; k++, m += strlen(m) + 1) {
        const char *space = strchr(m + 1, ' ');
        tm_buf_clear(&whole);
        rc = tm_buf_append(&whole, m, (size_t)(space - m));
        if (rc == TM_OK) rc = tm_buf_append(&whole, space + 1, strlen(space + 1));
        int64_t id = rc == TM_OK ? hf_tokenizer_find(t, whole.data) : -1;
        if (id >= 0 && t->token[id].score < -(float)k) t->token[id].score = -(float)k;
    }
    tm_buf_free(&whole);
    for (uint32_t i = 0; i < t->n; i++) {
        hf_token *k = &t->token[i];
        if (k->type == TM_TOKEN_NORMAL && is_byte_token(token_text(t, i))) k->type = TM_TOKEN_BYTE;
        if (k->type && t->unk.data && strcmp(token_text(t, i), t->unk.data) == 0) k->type = TM_TOKEN_UNKNOWN;
        if (k->type != TM_TOKEN_NORMAL && k->type != TM_TOKEN_USER_DEFINED) k->score = 0; /* no merge makes these */
    }
    return rc;
}

static tm_status check_kind(hf_tokenizer *t) {
    if (t->split) t->split = tm_split_nearest(t->split, t->nfc, t->ignore_merges);
    if (!t->split && !t->byte_fallback)
        return tm_fail(TM_EUNSUPPORTED, "%s: neither a byte-level nor a SentencePiece-style BPE; GGUF cannot hold it",
                       t->name);
    if (t->split && (t->split->nfc != t->nfc || t->split->ignore_merges != t->ignore_merges))
        tm_log(TM_LOG_WARN, "%s: '%s' is the nearest that GGUF has; rare texts may be split differently", t->name,
               t->split->pre);
    return TM_OK;
}

tm_status hf_tokenizer_read(hf_tokenizer *t, const tm_buf *json, const char *name, uint32_t n) {
    tm_mem_source bytes = {json->data, json->len, 0};
    *t = (hf_tokenizer){.name = name, .n = n};
    reader r = {.t = t, .text = json};
    t->token = tm_calloc(n, sizeof *t->token);
    t->by_text = tm_calloc(n, sizeof *t->by_text);
    if (!t->token || !t->by_text) return tm_nomem(n * sizeof *t->token);
    TM_TRY(tm_json_reader_open(&r.json, tm_mem_source_read, &bytes, name, 0, 0));
    tm_status rc = read_top(&r);
    tm_json_reader_close(r.json);
    TM_TRY(rc);
    TM_TRY(check_kind(t));
    sort_tokens(t);
    return t->split ? TM_OK : set_scores(t);
}
