/* Tokens with their log-probabilities in OpenAI's two forms. */
#include "serve/answer_internal.h"
#include "text/chars.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WORST_LOGPROB = -9999 }; /* OpenAI's, of what has no probability: JSON has no infinity */

typedef struct record {
    int32_t id;
    float logprob;
    bool scored;
    uint32_t n_top; /* tm_alternative each, behind it */
} record;

tm_status serve_tokens_put(serve_tokens *list, int32_t id, const float *logprob, const tm_alternative *top,
                           uint32_t n_top) {
    record r = {.id = id, .scored = logprob != NULL, .logprob = logprob ? *logprob : 0, .n_top = n_top};
    TM_TRY(tm_buf_append(&list->bytes, &r, sizeof r));
    if (n_top) TM_TRY(tm_buf_append(&list->bytes, top, n_top * sizeof *top));
    list->n++;
    return TM_OK;
}

void serve_tokens_clear(serve_tokens *list) {
    tm_buf_clear(&list->bytes);
    list->n = 0;
}

void serve_tokens_free(serve_tokens *list) {
    tm_buf_free(&list->bytes);
    list->n = 0;
}

/* One after another; `bytes` is room for their texts. */
typedef struct walk {
    const tm_tokenizer *t;
    const char *at;
    record r;
    tm_buf text;
} walk;

static void next(walk *k) {
    memcpy(&k->r, k->at, sizeof k->r);
    k->at += sizeof k->r;
}
static tm_alternative alternative(const walk *k, uint32_t i) {
    tm_alternative a;
    memcpy(&a, k->at + i * sizeof a, sizeof a);
    return a;
}
static void skip(walk *k) {
    k->at += k->r.n_top * sizeof(tm_alternative);
}

static tm_status read_text(walk *k, int32_t id) {
    tm_buf_clear(&k->text);
    TM_TRY(tm_buf_reserve(&k->text, 1));
    return tm_tokenizer_token_bytes(k->t, id, &k->text);
}

static void put_number(tm_json_writer *w, float logprob) {
    char text[32];
    (void)tm_format_float(isfinite(logprob) ? logprob : (float)WORST_LOGPROB, text, sizeof text);
    tm_jw_raw(w, text, strlen(text));
}

/* ---- a chat's form ---------------------------------------------------------------------------------------------- */

/* Bytes that are no character are in "bytes" alone. */
static void put_members(tm_json_writer *w, const tm_buf *text, float logprob) {
    tm_jw_field_strn(w, "token", text->data, text->len);
    tm_jw_key(w, "logprob");
    put_number(w, logprob);
    tm_jw_field_array(w, "bytes");
    for (size_t i = 0; i < text->len; i++) tm_jw_int(w, (unsigned char)text->data[i]);
    tm_jw_array_end(w);
}

static tm_status put_chat_token(tm_json_writer *w, walk *k) {
    TM_TRY(read_text(k, k->r.id));
    tm_jw_object(w);
    put_members(w, &k->text, k->r.logprob);
    tm_jw_field_array(w, "top_logprobs");
    for (uint32_t i = 0; i < k->r.n_top; i++) {
        tm_alternative a = alternative(k, i);
        TM_TRY(read_text(k, a.id));
        tm_jw_object(w);
        put_members(w, &k->text, a.logprob);
        tm_jw_object_end(w);
    }
    tm_jw_array_end(w);
    tm_jw_object_end(w);
    return TM_OK;
}

tm_status serve_put_chat_tokens(tm_json_writer *w, const tm_tokenizer *t, const serve_tokens *list) {
    walk k = {.t = t, .at = list->bytes.data};
    tm_status rc = TM_OK;
    for (size_t i = 0; i < list->n && rc == TM_OK; i++) {
        next(&k);
        rc = put_chat_token(w, &k);
        skip(&k);
    }
    tm_buf_free(&k.text);
    return rc;
}

/* ---- a completion's form ------------------------------------------------------------------------------------------ */

/* The name of a token as a key: its text, or "bytes:\xe2\x80" where it is no text, so that no two are the same. */
static tm_status name_token(walk *k, int32_t id) {
    TM_TRY(read_text(k, id));
    if (tk_utf8_valid(k->text.data, k->text.len) == k->text.len) return TM_OK;
    tm_buf name = {0};
    tm_status rc = tm_buf_append(&name, "bytes:", 6);
    for (size_t i = 0; i < k->text.len && rc == TM_OK; i++)
        rc = tm_buf_printf(&name, "\\x%02x", (unsigned char)k->text.data[i]);
    tm_buf_free(&k->text);
    k->text = name;
    return rc;
}

typedef tm_status (*column_fn)(tm_json_writer *w, walk *k, size_t *offset);

static tm_status put_token(tm_json_writer *w, walk *k, size_t *offset) {
    (void)offset;
    TM_TRY(name_token(k, k->r.id));
    tm_jw_strn(w, k->text.data, k->text.len);
    return TM_OK;
}

static tm_status put_logprob(tm_json_writer *w, walk *k, size_t *offset) {
    (void)offset;
    if (k->r.scored)
        put_number(w, k->r.logprob);
    else
        tm_jw_null(w);
    return TM_OK;
}

static tm_status put_pair(tm_json_writer *w, walk *k, int32_t id, float logprob) {
    TM_TRY(name_token(k, id));
    tm_jw_key(w, k->text.data);
    put_number(w, logprob);
    return TM_OK;
}

/* The token itself is among them, as OpenAI has it. */
static tm_status put_top(tm_json_writer *w, walk *k, size_t *offset) {
    bool among = false;
    (void)offset;
    if (!k->r.scored) return tm_jw_null(w), TM_OK;
    tm_jw_object(w);
    for (uint32_t i = 0; i < k->r.n_top; i++) {
        tm_alternative a = alternative(k, i);
        among = among || a.id == k->r.id;
        TM_TRY(put_pair(w, k, a.id, a.logprob));
    }
    if (!among) TM_TRY(put_pair(w, k, k->r.id, k->r.logprob));
    tm_jw_object_end(w);
    return TM_OK;
}

/* In characters of the text, which has no special tokens. A character of several tokens begins with the first. */
static tm_status put_offset(tm_json_writer *w, walk *k, size_t *offset) {
    tm_jw_uint(w, *offset);
    if (tm_tokenizer_is_special(k->t, k->r.id)) return TM_OK;
    TM_TRY(read_text(k, k->r.id));
    for (size_t i = 0; i < k->text.len; i++) *offset += ((unsigned char)k->text.data[i] & 0xC0) != 0x80;
    return TM_OK;
}

static tm_status put_column(tm_json_writer *w, const tm_tokenizer *t, const serve_tokens *const list[2],
                            column_fn column, size_t *offset) {
    walk k = {.t = t};
    tm_status rc = TM_OK;
    tm_jw_array(w);
    for (int part = 0; part < 2; part++) {
        k.at = list[part] ? list[part]->bytes.data : NULL;
        for (size_t i = 0; list[part] && i < list[part]->n && rc == TM_OK; i++) {
            next(&k);
            rc = column(w, &k, offset);
            skip(&k);
        }
    }
    tm_jw_array_end(w);
    tm_buf_free(&k.text);
    return rc;
}

tm_status serve_put_completion_tokens(tm_json_writer *w, const tm_tokenizer *t, const serve_tokens *const list[2],
                                      size_t *offset) {
    static const struct {
        const char *key;
        column_fn put;
    } columns[] = {
        {"tokens", put_token}, {"token_logprobs", put_logprob}, {"top_logprobs", put_top}, {"text_offset", put_offset}};
    tm_jw_object(w);
    for (size_t i = 0; i < TM_COUNT(columns); i++) {
        tm_jw_key(w, columns[i].key);
        TM_TRY(put_column(w, t, list, columns[i].put, offset));
    }
    tm_jw_object_end(w);
    return TM_OK;
}
