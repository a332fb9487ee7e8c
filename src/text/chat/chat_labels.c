/* Which turns are learned: what the messages say of themselves, what the caller wants, and what the template shows. */
#include "text/chat/chat_internal.h"

typedef struct turn_want {
    const tm_json *message;
    bool said, learn; /* "loss" or "train" of the message itself */
    bool last;        /* part of the answer to the last user message */
} turn_want;

/* "loss" and "train": true or false, 1 or 0. */
static tm_status read_flag(const tm_json *message, size_t index, const char *name, turn_want *want) {
    const tm_json *flag = tm_json_get(message, name);
    if (flag == NULL || flag->type == TM_JSON_NULL) return TM_OK;
    bool number = flag->type == TM_JSON_NUMBER && (flag->number == 0 || flag->number == 1);
    if (flag->type != TM_JSON_BOOL && !number)
        return tm_fail(TM_EUNSUPPORTED, "\"%s\" of messages[%zu] is neither true nor false; turns have no weights",
                       name, index);
    bool learn = number ? flag->number == 1 : flag->boolean;
    if (want->said && want->learn != learn)
        return tm_fail(TM_EINPUT, "messages[%zu] has \"loss\" and \"train\", which differ; give one of them", index);
    want->said = true;
    want->learn = learn;
    return TM_OK;
}

/* A string that is not empty, NULL. */
static const tm_json *text_of(const tm_json *message, const char *name) {
    const tm_json *v = tm_json_get(message, name);
    return v != NULL && v->type == TM_JSON_STRING && v->len > 0 ? v : NULL;
}

static void trim(const char **text, size_t *n) {
    for (; *n > 0 && memchr(" \t\r\n", **text, 4) != NULL; --*n) ++*text;
    while (*n > 0 && memchr(" \t\r\n", (*text)[*n - 1], 4) != NULL) --*n;
}

/* What the message says that it thought: between <think>, which may lie in the prompt, and </think>. */
static const char *think_of(const tm_json *content, size_t *n) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *text = content->text, *end = memmem(text, content->len, close, sizeof close - 1);
    if (end == NULL) return *n = 0, text;
    const char *begin = memmem(text, (size_t)(end - text), open, sizeof open - 1);
    if (begin != NULL) text = begin + sizeof open - 1;
    *n = (size_t)(end - text);
    return text;
}

/* Does the template leave out what the message thought, though it shows such thoughts of the last one? Then the turn is
 * not what the model would write. */
static bool drops_thoughts(const tm_chat *c, const tm_json *message, const char *shown, size_t len) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const tm_json *reasoning = NULL, *content = text_of(message, "content");
    for (size_t i = 0; i < TM_COUNT(names) && reasoning == NULL; i++) reasoning = text_of(message, names[i]);
    if (!(reasoning != NULL ? c->shows_reasoning : content != NULL && c->shows_think)) return false;
    size_t n = reasoning == NULL ? 0 : reasoning->len;
    const char *text = reasoning == NULL ? think_of(content, &n) : reasoning->text;
    trim(&text, &n);
    return n > 0 && memmem(shown, len, text, n) == NULL;
}

/* Does the template print nothing of the message's first call? Then the turn would teach to say nothing at all. */
static bool drops_calls(const tm_chat *c, const tm_json *message, const char *shown, size_t len) {
    const tm_json *calls = tm_json_get(message, "tool_calls"), *call = calls == NULL ? NULL : calls->child;
    const tm_json *function = tm_json_get(call, "function"), *name = text_of(function ? function : call, "name");
    if (name == NULL || memmem(shown, len, name->text, name->len) != NULL) return false;
    tm_warn_once("tool_calls", "%s: the template does not print tool_calls; turns that hold them are not learned",
                 c->name);
    return true;
}

static tm_status read_wants(const tm_json *messages, tm_buf *wants) {
    size_t i = 0, answer = 0;
    for (const tm_json *m = messages->child; m != NULL; m = m->next, i++) {
        turn_want w = {.message = m};
        TM_TRY(read_flag(m, i, "loss", &w));
        TM_TRY(read_flag(m, i, "train", &w));
        if (tm_json_is(tm_json_get(m, "role"), "user")) answer = i + 1;
        TM_TRY(tm_buf_append(wants, &w, sizeof w));
    }
    turn_want *want = (turn_want *)(void *)wants->data;
    for (; answer < i; answer++) want[answer].last = true;
    return TM_OK;
}

static bool is_learned(const tm_chat *c, const tm_chat_labels *how, const turn_want *w, bool assistant,
                       const char *text, size_t len) {
    if (w->said) return w->learn;
    if (how->train_on_inputs) return true;
    if (!assistant) return false;
    if (how->mask_history && !w->last) return false;
    if (c->has_generation) return true;
    return !drops_thoughts(c, w->message, text, len) && !drops_calls(c, w->message, text, len);
}

tm_status cj_learned(const tm_chat *c, const tm_json *messages, const tm_chat_labels *how, const char *text,
                     tm_chat_spans *turns) {
    tm_buf wants = {0};
    tm_status rc;
    TM_GO(read_wants(messages, &wants));
    const turn_want *want = (const turn_want *)(const void *)wants.data;
    for (size_t i = 0, to; i < turns->n; i = to) { /* a message may have several spans, which are one */
        const struct tm_chat_span *s = &turns->span[i];
        for (to = i + 1; to < turns->n && turns->span[to].message == s->message;) to++;
        size_t len = turns->span[to - 1].end - s->begin;
        bool learned = is_learned(c, how, &want[s->message], s->assistant, text + s->begin, len);
        for (size_t k = i; k < to; k++) turns->span[k].learned = learned;
    }
done:
    tm_buf_free(&wants);
    return rc;
}
