/* Which text is the assistant's: what the model has to write when its turn comes, from the end of the generation prompt,
 * or from the first byte of the message where the template prints no such prompt before it, to the end-of-turn token
 * after its last byte. What a template prints around a turn is learned when it is opened, from short conversations. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

/* A stretch of marks of one message; `before` and `after` are where its neighbours end and begin. */
typedef struct stretch {
    size_t before, begin, end, after;
    uint32_t owner;
} stretch;

static bool is_assistant(uint32_t owner) {
    return (owner & 1) != 0;
}

static bool is_blank(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memchr(" \t\r\n", text[i], 4) == NULL) return false;
    return true;
}

/* ---- the end of a turn -------------------------------------------------------------------------------------------- */

static size_t special_at(const tm_chat *c, const char *text, size_t at, size_t len) {
    int32_t id;
    size_t n = c->tokenizer == NULL ? 0 : tm_tokenizer_match_added(c->tokenizer, text + at, len - at, &id);
    return n > 0 && tm_tokenizer_is_special(c->tokenizer, id) ? n : 0;
}

static bool same(const char *token, const char *text, size_t n) {
    return token != NULL && strlen(token) == n && memcmp(token, text, n) == 0;
}

static bool ends_turns(const tm_chat *c, const char *token, size_t n) {
    for (size_t i = 0; i < c->n_ends; i++)
        if (same(c->end[i], token, n)) return true;
    return same(cj_eos(c), token, n);
}

static bool opens_turns(const tm_chat *c, const char *token, size_t n) {
    return c->prompt.len > 0 && memmem(c->prompt.data, c->prompt.len, token, n) != NULL;
}

/* eos_token where the tokenizer does not tell what is special: before the next turn begins. Then text that stands for a
 * token. The last turn of a template that prints no end has all that is left, as the closing tag of a tool call is. */
static size_t end_without_token(const tm_chat *c, const char *text, const stretch *s, size_t len) {
    size_t eos = cj_eos(c) == NULL ? 0 : strlen(cj_eos(c)), end = len;
    size_t until = eos == 0 ? 0 : tm_min_u64(s->after + eos - 1, len);
    const char *hit = eos == 0 ? NULL : memmem(text + s->end, until - s->end, cj_eos(c), eos);
    if (hit != NULL) return (size_t)(hit - text) + eos;
    if (!c->no_end || c->tokenizer == NULL) return s->end;
    bool ends = c->end_text.len > 0 && c->end_text.len <= len - s->end &&
                memcmp(text + s->end, c->end_text.data, c->end_text.len) == 0;
    if (ends) return s->end + c->end_text.len;
    if (s->after < len || !is_assistant(s->owner)) return s->end;
    while (end > s->end && is_blank(text + end - 1, 1)) end--;
    return end;
}

/* The first token that is known to end turns; others, as of tool calls, may lie before it, but none that opens one.
 * Without one, a special token that follows at once. A template that prints no end of the last turn has the next one's
 * opening as the end. */
static size_t end_of_turn(const tm_chat *c, const char *text, const stretch *s, size_t len) {
    size_t first = 0, first_len = 0, n;
    for (size_t at = s->end; at < s->after && c->tokenizer != NULL; at += n > 0 ? n : 1) {
        n = special_at(c, text, at, len);
        if (n == 0) continue;
        if (ends_turns(c, text + at, n)) return at + n;
        if (first_len == 0) first = at, first_len = n;
        if (opens_turns(c, text + at, n)) break;
    }
    bool may_end = first_len > 0 && (first == s->end || c->no_end);
    if (may_end && !opens_turns(c, text + first, first_len)) return first + first_len;
    return first_len > 0 ? s->end : end_without_token(c, text, s, len);
}

/* ---- the beginning of a turn --------------------------------------------------------------------------------------- */

/* Where the last `prompt` between the neighbour and the message ends; s->begin: there is none. */
static size_t after_prompt(const tm_buf *prompt, const char *text, const stretch *s) {
    size_t n = prompt->len, begin = s->begin;
    for (size_t at = s->before; n > 0 && at + n <= s->begin; at++)
        if (memcmp(text + at, prompt->data, n) == 0) begin = at + n;
    return begin;
}

/* What closes the turn before is no generation prompt, but what the template prints after it is the model's to write,
 * as the name of a tool call is. White space is left out. */
static size_t begin_of_turn(const tm_chat *c, const char *text, const stretch *s) {
    if (c->prompt.len > 0) return after_prompt(&c->prompt, text, s);
    for (size_t i = 0; i < TM_COUNT(c->closing); i++) {
        size_t begin = after_prompt(&c->closing[i], text, s);
        if (begin < s->begin && !is_blank(text + begin, s->begin - begin)) return begin;
    }
    return s->begin;
}

/* ---- turns --------------------------------------------------------------------------------------------------------- */

static tm_status put_span(tm_chat_spans *spans, struct tm_chat_span s) {
    struct tm_chat_span *last = spans->n > 0 ? &spans->span[spans->n - 1] : NULL;
    if (last != NULL && last->message == s.message && s.begin <= last->end) { /* touches the one before */
        if (s.end > last->end) last->end = s.end;
        return TM_OK;
    }
    if (last != NULL && s.begin < last->end) s.begin = last->end;
    if (s.begin >= s.end) return TM_OK;
    TM_TRY(tm_grow(&spans->span, &spans->cap, spans->n + 1, sizeof *spans->span));
    spans->span[spans->n++] = s;
    return TM_OK;
}

/* Fills s with the stretch that starts at mark i; returns the index of the next one. */
static size_t next_stretch(const cj_out *out, size_t i, stretch *s) {
    const cj_mark *m = out->mark;
    uint32_t owner = m[i].owner;
    *s = (stretch){.before = s->end, .begin = m[i].begin, .end = m[i].end, .after = out->text.len, .owner = owner};
    for (; i < out->marks && m[i].owner == owner; i++) {
        if (m[i].begin < s->begin) s->begin = m[i].begin;
        if (m[i].end > s->end) s->end = m[i].end;
    }
    if (i < out->marks && m[i].begin >= s->end) s->after = m[i].begin;
    return i;
}

static tm_status turn_of_stretch(const tm_chat *c, const cj_out *out, const stretch *s, tm_chat_spans *turns) {
    const char *text = out->text.data == NULL ? "" : out->text.data;
    struct tm_chat_span t = {.begin = s->begin, .message = s->owner / 2 - 1, .assistant = is_assistant(s->owner)};
    if (t.assistant) t.begin = begin_of_turn(c, text, s);
    t.end = end_of_turn(c, text, s, out->text.len);
    return put_span(turns, t);
}

/* The message that a generation block prints: that of the first marked byte in it; an empty one is the assistant's next
 * after the block before. */
static uint32_t message_of_block(const tm_json *messages, const cj_out *out, size_t *mark, struct tm_chat_span block,
                                 int64_t last) {
    int64_t i = 0;
    while (*mark < out->marks && out->mark[*mark].end < block.begin) (*mark)++;
    for (size_t k = *mark; k < out->marks && out->mark[k].begin < block.end; k++) {
        const cj_mark *m = &out->mark[k];
        if (is_assistant(m->owner) && m->end > block.begin && m->end > m->begin) return m->owner / 2 - 1;
    }
    for (const tm_json *m = messages->child; m != NULL; m = m->next, i++)
        if (i > last && tm_json_is(tm_json_get(m, "role"), "assistant")) return (uint32_t)i;
    return last < 0 ? 0 : (uint32_t)last;
}

/* The turns of others that begin before `until`; they end there at the latest. */
static tm_status turns_of_others(const tm_chat *c, const cj_out *out, size_t until, size_t *mark, stretch *s,
                                 tm_chat_spans *turns) {
    while (*mark < out->marks && out->mark[*mark].begin < until) {
        *mark = next_stretch(out, *mark, s);
        if (s->after > until) s->after = until;
        if (s->end < until && !is_assistant(s->owner)) TM_TRY(turn_of_stretch(c, out, s, turns));
    }
    return TM_OK;
}

/* Blocks, and between them the turns of the others. */
static tm_status turns_of_blocks(const tm_chat *c, const tm_json *messages, const cj_out *out,
                                 const tm_chat_spans *blocks, tm_chat_spans *turns) {
    stretch s = {0};
    size_t i = 0, mark = 0;
    int64_t last = -1;
    for (size_t b = 0; b < blocks->n; b++) {
        struct tm_chat_span block = blocks->span[b];
        TM_TRY(turns_of_others(c, out, block.begin, &i, &s, turns));
        block.assistant = true;
        block.message = message_of_block(messages, out, &mark, block, last);
        last = block.message;
        TM_TRY(put_span(turns, block));
    }
    return turns_of_others(c, out, SIZE_MAX, &i, &s, turns);
}

tm_status cj_turns(const tm_chat *c, const tm_json *messages, const cj_out *out, const tm_chat_spans *blocks,
                   tm_chat_spans *turns) {
    stretch s = {0};
    if (c->has_generation) return turns_of_blocks(c, messages, out, blocks, turns);
    for (size_t i = 0; i < out->marks;) {
        i = next_stretch(out, i, &s);
        TM_TRY(turn_of_stretch(c, out, &s, turns));
    }
    return TM_OK;
}

/* ---- what a template prints around turns --------------------------------------------------------------------------- */

/* Nobody opens a turn with more; it is looked for byte by byte, so that its length is a factor. */
enum { MAX_PROMPT = 4096 };
#define USER "{\"role\":\"user\",\"content\":\"x\"}"
#define CALL                                                                                                           \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\","            \
    "\"function\":{\"name\":\"f\",\"arguments\":{\"k\":\"v\"}}}]}"
#define RESULT "{\"role\":\"tool\",\"name\":\"f\",\"tool_call_id\":\"abcdefghi\",\"content\":\"r\"}"
#define THOUGHT "tidal thoughts"
#define REASONING "{\"role\":\"assistant\",\"content\":\"y\",\"reasoning_content\":\"" THOUGHT "\"}"
#define THINK "{\"role\":\"assistant\",\"content\":\"<think>\\n" THOUGHT "\\n</think>\\n\\ny\"}"

typedef struct probe {
    tm_buf text;
    size_t mark_end; /* of the last marked byte */
} probe;

/* A template may refuse a conversation and be right for others: then nothing is learned from it. */
static tm_status render_probe(const tm_chat *c, const char *conversation, bool generation_prompt, probe *p) {
    tm_json_doc *doc;
    tm_buf_clear(&p->text);
    p->mark_end = 0;
    TM_TRY(tm_json_parse(&doc, conversation, strlen(conversation), "probe", 0, 0));
    tm_status rc = cj_render(c, tm_json_root(doc), &(cj_wish){.generation_prompt = generation_prompt}, &p->text, NULL,
                             &p->mark_end);
    tm_json_free(doc);
    if (rc == TM_ENOMEM || rc == TM_OK) return rc;
    tm_error_clear();
    tm_buf_clear(&p->text);
    return TM_OK;
}

static tm_status set_prompt(tm_buf *prompt, const char *text, size_t n) {
    return n > MAX_PROMPT || is_blank(text, n) ? TM_OK : tm_buf_append(prompt, text, n);
}

/* What add_generation_prompt adds to a short conversation. */
static tm_status find_prompt(tm_chat *c, probe *without, probe *with) {
    TM_TRY(render_probe(c, "[" USER "]", false, without));
    TM_TRY(render_probe(c, "[" USER "]", true, with));
    size_t n = without->text.len;
    bool adds = n > 0 && with->text.len > n && memcmp(with->text.data, without->text.data, n) == 0;
    return adds ? set_prompt(&c->prompt, with->text.data + n, with->text.len - n) : TM_OK;
}

/* What closes the turn of a user, or of a tool, from its last special token on. */
static tm_status find_closing(tm_chat *c, const char *conversation, bool whole, tm_buf *closing, probe *p) {
    TM_TRY(render_probe(c, conversation, true, p));
    size_t last = p->text.len;
    for (size_t at = p->mark_end; at < p->text.len; at++)
        if (special_at(c, p->text.data, at, p->text.len) > 0) last = at;
    if (last == p->text.len && whole) last = p->mark_end;
    return last < p->text.len ? set_prompt(closing, p->text.data + last, p->text.len - last) : TM_OK;
}

/* The first special token after the last message of a conversation, where there is one. */
static tm_status find_end(tm_chat *c, const char *conversation, bool *found, probe *p) {
    *found = false;
    TM_TRY(render_probe(c, conversation, false, p));
    for (size_t at = p->mark_end; at < p->text.len && !*found; at++) {
        size_t n = special_at(c, p->text.data, at, p->text.len);
        *found = n > 0;
        if (n == 0 || ends_turns(c, p->text.data + at, n)) continue;
        char *token = tm_malloc(n + 1);
        if (token == NULL) return tm_nomem(n);
        memcpy(token, p->text.data + at, n);
        token[n] = 0;
        c->end[c->n_ends++] = token;
    }
    *found |= p->text.len == 0;
    return TM_OK;
}

/* Without the white space at its end. */
static size_t end_of_text(const probe *p) {
    size_t end = p->text.len;
    while (end > p->mark_end && is_blank(p->text.data + end - 1, 1)) end--;
    return end;
}

static tm_status find_thoughts(const tm_chat *c, const char *conversation, bool *shown, probe *p) {
    TM_TRY(render_probe(c, conversation, false, p));
    *shown = p->text.len > 0 && memmem(p->text.data, p->text.len, THOUGHT, strlen(THOUGHT)) != NULL;
    return TM_OK;
}

tm_status cj_learn_turns(tm_chat *c) {
    probe a = {0}, b = {0};
    bool ends;
    tm_status rc;
    TM_GO(find_prompt(c, &a, &b));
    if (c->prompt.len == 0) {
        TM_GO(find_closing(c, "[" USER "]", true, &c->closing[0], &a));
        TM_GO(find_closing(c, "[" USER "," CALL "," RESULT "]", false, &c->closing[1], &a));
    }
    TM_GO(find_end(c, "[" USER ",{\"role\":\"assistant\",\"content\":\"y\"}]", &ends, &a));
    c->no_end = !ends;
    if (c->no_end) TM_GO(set_prompt(&c->end_text, a.text.data + a.mark_end, end_of_text(&a) - a.mark_end));
    TM_GO(find_end(c, "[" USER "," CALL "]", &ends, &a));
    TM_GO(find_thoughts(c, "[" USER "," REASONING "]", &c->shows_reasoning, &a));
    TM_GO(find_thoughts(c, "[" USER "," THINK "]", &c->shows_think, &a));
done:
    tm_buf_free(&a.text);
    tm_buf_free(&b.text);
    return rc;
}
