/* The chat's public calls: open a template, run it over a conversation, tell which text is the assistant's. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

static const char *const special_names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
enum { BOS, EOS };

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static tm_status set_special(tm_chat *c, size_t i, const char *text) {
    if (text == NULL) return TM_OK;
    tm_free(c->special[i]);
    c->special[i] = tm_strdup(text);
    return c->special[i] == NULL ? tm_nomem(strlen(text)) : TM_OK;
}

/* Each is a string, or an object with "content". */
static tm_status read_config(tm_chat *c, const tm_chat_opts *o) {
    tm_json_doc *doc;
    tm_status rc = TM_OK;
    if (o->tokenizer_config == NULL) return TM_OK;
    TM_TRY(tm_json_parse(&doc, o->tokenizer_config, o->tokenizer_config_len, "tokenizer_config.json",
                         TM_JSON_DUPLICATES_OK, 0));
    for (size_t i = 0; i < TM_COUNT(special_names) && rc == TM_OK; i++) {
        const tm_json *v = tm_json_get(tm_json_root(doc), special_names[i]);
        if (v != NULL && v->type == TM_JSON_OBJECT) v = tm_json_get(v, "content");
        if (v != NULL && v->type == TM_JSON_STRING) rc = set_special(c, i, v->text);
    }
    tm_json_free(doc);
    return rc;
}

static tm_status parse_template(tm_chat *c, const char *text, size_t len) {
    cj_lexer l = {.name = c->name, .arena = &c->arena};
    tm_status rc = cj_lex(&l, text, len);
    if (rc == TM_OK) rc = cj_parse(&l, &c->body, &c->has_generation);
    tm_free(l.source);
    tm_free(l.token);
    return rc;
}

void tm_chat_close(tm_chat *c) {
    if (c == NULL) return;
    cj_arena_free(&c->arena);
    tm_buf_free(&c->prompt);
    for (size_t i = 0; i < TM_COUNT(c->special); i++) tm_free(c->special[i]);
    tm_free(c->name);
    tm_free(c);
}

void tm_chat_spans_free(tm_chat_spans *spans) {
    tm_free(spans->span);
    *spans = (tm_chat_spans){0};
}

/* ---- which text is the assistant's ------------------------------------------------------------------------------ *
 * What the model has to write when its turn comes: from the end of the generation prompt, or from the first byte of the
 * message where the template prints no such prompt before it, to the end-of-turn token after its last byte.         */

/* A stretch of marks of one message; `before` and `after` are where its neighbours end and begin. */
typedef struct stretch {
    size_t before, begin, end, after;
    bool assistant;
} stretch;

static size_t special_at(const tm_chat *c, const char *text, size_t at, size_t len) {
    int32_t id;
    size_t n = c->tokenizer == NULL ? 0 : tm_tokenizer_match_added(c->tokenizer, text + at, len - at, &id);
    return n > 0 && tm_tokenizer_is_special(c->tokenizer, id) ? n : 0;
}

/* A special token that follows at once ends the turn. After anything else only eos_token does, and no other special
 * token may lie between: it could open the next turn. */
static size_t end_of_turn(const tm_chat *c, const char *text, const stretch *s, size_t len) {
    size_t eos = c->special[EOS] == NULL ? 0 : strlen(c->special[EOS]), n = special_at(c, text, s->end, len);
    if (n > 0) return s->end + n;
    if (eos == 0) return s->end;
    size_t until = tm_min_u64(s->after + eos - 1, len); /* it begins before the next turn does */
    const char *hit = memmem(text + s->end, until - s->end, c->special[EOS], eos);
    if (hit == NULL) return s->end;
    for (size_t at = s->end; at < (size_t)(hit - text); at++)
        if (special_at(c, text, at, len) > 0) return s->end;
    return (size_t)(hit - text) + eos;
}

static size_t begin_of_turn(const tm_chat *c, const char *text, const stretch *s) {
    size_t n = c->prompt.len, begin = s->begin;
    for (size_t at = s->before; n > 0 && at + n <= s->begin; at++)
        if (memcmp(text + at, c->prompt.data, n) == 0) begin = at + n; /* the last one counts */
    return begin;
}

static tm_status put_span(tm_chat_spans *spans, size_t begin, size_t end) {
    if (begin >= end) return TM_OK;
    if (spans->n > 0 && begin <= spans->span[spans->n - 1].end) { /* touches the one before */
        if (end > spans->span[spans->n - 1].end) spans->span[spans->n - 1].end = end;
        return TM_OK;
    }
    TM_TRY(tm_grow(&spans->span, &spans->cap, spans->n + 1, sizeof *spans->span));
    spans->span[spans->n++] = (struct tm_chat_span){begin, end};
    return TM_OK;
}

/* Fills s with the stretch that starts at mark i; returns the index of the next one. */
static size_t next_stretch(const cj_out *out, size_t i, stretch *s) {
    const cj_mark *m = out->mark;
    uint32_t owner = m[i].owner;
    *s = (stretch){
        .before = s->end, .begin = m[i].begin, .end = m[i].end, .after = out->text.len, .assistant = owner & 1};
    for (; i < out->marks && m[i].owner == owner; i++) {
        if (m[i].begin < s->begin) s->begin = m[i].begin;
        if (m[i].end > s->end) s->end = m[i].end;
    }
    if (i < out->marks && m[i].begin >= s->end) s->after = m[i].begin;
    return i;
}

static tm_status spans_of_marks(const tm_chat *c, const cj_out *out, tm_chat_spans *spans) {
    const char *text = out->text.data == NULL ? "" : out->text.data;
    stretch s = {0};
    for (size_t i = 0; i < out->marks;) {
        i = next_stretch(out, i, &s);
        if (s.assistant) TM_TRY(put_span(spans, begin_of_turn(c, text, &s), end_of_turn(c, text, &s, out->text.len)));
    }
    return TM_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static bool bind_string(cj_run *x, const char *name, const char *text) {
    if (text == NULL) return x->rc == TM_OK;
    cj_value v = cj_string(x, text, strlen(text));
    return x->rc == TM_OK && cj_bind(x, name, v);
}

static void bind_context(const tm_chat *c, cj_run *x, const tm_json *messages, bool generation_prompt) {
    cj_value list = cj_from_json(x, messages, 0);
    if (x->rc != TM_OK) return;
    list.list->messages = true;
    (void)cj_bind(x, "messages", list);
    (void)cj_bind(x, "add_generation_prompt", cj_bool(generation_prompt));
    (void)cj_bind(x, "tools", (cj_value){.type = CJ_NONE});
    (void)cj_bind(x, "documents", (cj_value){.type = CJ_NONE});
    for (size_t i = 0; i < TM_COUNT(special_names); i++) (void)bind_string(x, special_names[i], c->special[i]);
}

static tm_status check_messages(const tm_chat *c, const tm_json *messages) {
    if (messages == NULL || messages->type != TM_JSON_ARRAY)
        return tm_fail(TM_EINPUT, "%s: the conversation has no array \"messages\"", c->name);
    if (messages->child == NULL) return tm_fail(TM_EINPUT, "%s: \"messages\" is empty", c->name);
    size_t i = 0;
    for (const tm_json *m = messages->child; m != NULL; m = m->next, i++) {
        const tm_json *role = tm_json_get(m, "role");
        if (m->type != TM_JSON_OBJECT || role == NULL || role->type != TM_JSON_STRING)
            return tm_fail(TM_EINPUT, "%s: messages[%zu] is no object with a \"role\"", c->name, i);
    }
    return TM_OK;
}

static tm_status append_result(const tm_chat *c, const cj_out *out, const tm_chat_spans *generated, tm_buf *text,
                               tm_chat_spans *assistant) {
    if (out->text.len > 0) TM_TRY(tm_buf_append(text, out->text.data, out->text.len));
    if (assistant == NULL) return TM_OK;
    if (!c->has_generation) return spans_of_marks(c, out, assistant);
    for (size_t i = 0; i < generated->n; i++)
        TM_TRY(put_span(assistant, generated->span[i].begin, generated->span[i].end));
    return TM_OK;
}

tm_status tm_chat_render(const tm_chat *c, const tm_json *messages, bool generation_prompt, tm_buf *text,
                         tm_chat_spans *assistant) {
    TM_TRY(check_messages(c, messages));
    cj_out out = {0};
    tm_chat_spans generated = {0};
    cj_run x = {
        .name = c->name, .now = c->now, .most_bytes = c->most_bytes, .out = &out, .generated = &generated, .line = 1};
    bind_context(c, &x, messages, generation_prompt);
    for (const cj_node *n = c->body; n != NULL && x.rc == TM_OK; n = n->next) {
        cj_exec(&x, n);
        x.flow = CJ_NORMAL;
    }
    tm_status rc = x.rc;
    if (rc == TM_OK) rc = append_result(c, &out, &generated, text, assistant);
    cj_out_free(&out);
    tm_chat_spans_free(&generated);
    cj_arena_free(&x.arena);
    tm_free(x.bind);
    return rc;
}

/* ---- the generation prompt: what add_generation_prompt adds to a short conversation ------------------------------ */

/* Nobody opens a turn with more; it is looked for byte by byte (begin_of_turn), so that its length is a factor. */
enum { MAX_PROMPT = 4096 };

static tm_status render_probe(tm_chat *c, const tm_json *messages, bool prompt, tm_buf *text) {
    tm_status rc = tm_chat_render(c, messages, prompt, text, NULL);
    if (rc == TM_ENOMEM || rc == TM_OK) return rc;
    tm_error_clear(); /* a template may refuse this conversation and be right for others */
    tm_buf_clear(text);
    return TM_OK;
}

static tm_status find_prompt(tm_chat *c) {
    static const char probe[] = "[{\"role\":\"user\",\"content\":\"x\"}]";
    tm_json_doc *doc;
    tm_buf without = {0}, with = {0};
    TM_TRY(tm_json_parse(&doc, probe, sizeof probe - 1, "probe", 0, 0));
    tm_status rc = render_probe(c, tm_json_root(doc), false, &without);
    if (rc == TM_OK) rc = render_probe(c, tm_json_root(doc), true, &with);
    bool adds = without.len > 0 && with.len > without.len && memcmp(with.data, without.data, without.len) == 0;
    if (rc == TM_OK && adds) rc = tm_buf_append(&c->prompt, with.data + without.len, with.len - without.len);
    bool blank = c->prompt.len > 0 && strspn(c->prompt.data, " \t\r\n") == c->prompt.len;
    if (blank || c->prompt.len > MAX_PROMPT) tm_buf_clear(&c->prompt);
    tm_json_free(doc);
    tm_buf_free(&without);
    tm_buf_free(&with);
    return rc;
}

tm_status tm_chat_open(tm_chat **out, const tm_tokenizer *t, const char *template_text, size_t len, const char *name,
                       const tm_chat_opts *opts) {
    *out = NULL;
    tm_chat *c = tm_calloc(1, sizeof *c);
    if (c == NULL) return tm_nomem(sizeof *c);
    tm_status rc = TM_OK;
    c->tokenizer = t;
    c->now = opts == NULL ? 0 : opts->now;
    c->most_bytes = opts == NULL ? 0 : opts->memory_bytes;
    c->name = tm_strdup(name);
    if (c->name == NULL) TM_GO(tm_nomem(strlen(name)));
    if (opts != NULL) {
        TM_GO(read_config(c, opts));
        TM_GO(set_special(c, BOS, opts->bos_token));
        TM_GO(set_special(c, EOS, opts->eos_token));
    }
    TM_GO(parse_template(c, template_text, len));
    TM_GO(find_prompt(c));
done:
    if (rc == TM_OK)
        *out = c;
    else
        tm_chat_close(c);
    return rc;
}

/* ---- encoding --------------------------------------------------------------------------------------------------- */

/* 1 for a token of which a byte, or the place where it was put in, lies in a span. Both lists ascend. */
static tm_status mask_tokens(const tm_buf *tokens, const tm_chat_spans *spans, tm_buf *mask) {
    size_t n = tokens->len / sizeof(tm_token_span), s = 0;
    for (size_t i = 0; i < n; i++) {
        tm_token_span t;
        memcpy(&t, tokens->data + i * sizeof t, sizeof t);
        while (s < spans->n && spans->span[s].end <= t.begin) s++;
        size_t end = t.end > t.begin ? t.end : (size_t)t.begin + 1;
        char hit = s < spans->n && spans->span[s].begin < end;
        TM_TRY(tm_buf_append(mask, &hit, 1));
    }
    return TM_OK;
}

tm_status tm_chat_encode(const tm_chat *c, const tm_json *messages, bool generation_prompt, tm_buf *text, tm_ids *ids,
                         tm_buf *loss_mask) {
    tm_buf rendered = {0}, tokens = {0}, mask = {0};
    tm_chat_spans spans = {0};
    tm_status rc;
    TM_GO(tm_chat_render(c, messages, generation_prompt, &rendered, &spans));
    const char *data = rendered.data == NULL ? "" : rendered.data;
    TM_GO(tm_tokenizer_encode_offsets(c->tokenizer, data, rendered.len, false, ids, &tokens));
    if (loss_mask != NULL) TM_GO(mask_tokens(&tokens, &spans, &mask));
    if (loss_mask != NULL) TM_GO(tm_buf_reserve(loss_mask, mask.len));
    if (text != NULL) TM_GO(tm_buf_append(text, data, rendered.len)); /* from here on nothing fails */
    if (mask.len > 0) rc = tm_buf_append(loss_mask, mask.data, mask.len);
done:
    tm_buf_free(&mask);
    tm_buf_free(&rendered);
    tm_buf_free(&tokens);
    tm_chat_spans_free(&spans);
    return rc;
}
