/* The forms that preference data come in, as a prompt and one or two answers: all text, or all messages. */
#include "data/dataset_internal.h"

#include <string.h>

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static const tm_json *given(const tm_json *line, const char *key) {
    const tm_json *v = tm_json_get(line, key);
    return v && v->type != TM_JSON_NULL ? v : NULL;
}

static const tm_json *given_of(const tm_json *line, const char *const *keys, size_t n) {
    const tm_json *v = NULL;
    for (size_t i = 0; i < n && !v; i++) v = given(line, keys[i]);
    return v;
}
#define GIVEN(line, ...)                                                                                               \
    given_of(line, (const char *const[]){__VA_ARGS__}, TM_COUNT(((const char *const[]){__VA_ARGS__})))

static bool is_text(const tm_json *v) {
    return v && v->type == TM_JSON_STRING;
}
static bool is_list(const tm_json *v) {
    return v && v->type == TM_JSON_ARRAY;
}

static bool same(const tm_json *a, const tm_json *b);

/* Names may come in another order, in objects of a size that messages have. */
static bool same_members(const tm_json *a, const tm_json *b) {
    enum { MOST = 64 };
    const tm_json *y = b->child;
    for (const tm_json *x = a->child; x; x = x->next, y = y->next) {
        const tm_json *with = strcmp(x->key, y->key) == 0 || a->count > MOST ? y : tm_json_get(b, x->key);
        if (!with || strcmp(x->key, with->key) != 0 || !same(x, with)) return false;
    }
    return true;
}

static bool same(const tm_json *a, const tm_json *b) {
    if (a->type != b->type || a->count != b->count) return false;
    if (a->type == TM_JSON_BOOL) return a->boolean == b->boolean;
    if (a->type == TM_JSON_STRING || a->type == TM_JSON_NUMBER)
        return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
    if (a->type == TM_JSON_OBJECT) return same_members(a, b);
    const tm_json *y = b->child;
    for (const tm_json *x = a->child; x; x = x->next, y = y->next)
        if (!same(x, y)) return false;
    return true;
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

static tm_status put_message(tm_buf *part, const tm_json *message) {
    tm_json_writer w;
    if (part->len) TM_TRY(tm_buf_append(part, ",", 1));
    tm_jw_init(&w, part, 0);
    TM_TRY(data_put_message(&w, message));
    return tm_jw_end(&w);
}

static tm_status put_said(tm_buf *part, const char *role, const tm_json *content) {
    tm_json_writer w;
    if (part->len) TM_TRY(tm_buf_append(part, ",", 1));
    tm_jw_init(&w, part, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "role", role);
    tm_jw_field_strn(&w, "content", content->text, content->len);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

/* Messages [from, to). */
static tm_status put_messages(tm_buf *part, const tm_json *list, size_t from, size_t to) {
    size_t i = 0;
    for (const tm_json *m = list->child; m && i < to; m = m->next, i++)
        if (i >= from) TM_TRY(put_message(part, m));
    return TM_OK;
}

static tm_status put_text(tm_buf *part, const char *text, size_t n) {
    return tm_buf_append(part, n ? text : "", n);
}

static tm_status no_answer(const char *name) {
    return tm_fail(TM_EINPUT, "\"%s\" is empty; a row needs an answer", name);
}

/* Text, a message, or several. */
static tm_status put_answer(tm_buf *part, const tm_json *answer, const char *name) {
    if (is_text(answer)) return answer->len ? put_said(part, "assistant", answer) : no_answer(name);
    if (answer->type == TM_JSON_OBJECT) return put_message(part, answer);
    if (!is_list(answer)) return tm_fail(TM_EINPUT, "\"%s\" is neither text nor messages", name);
    return answer->count ? put_messages(part, answer, 0, answer->count) : no_answer(name);
}

/* What the template may ask for beside the messages. */
static tm_status put_beside(data_prefer *p, const tm_json *line) {
    static const char *const names[] = {"tools", "documents", "chat_template_kwargs"};
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        const tm_json *v = given(line, names[i]);
        tm_json_writer w;
        if (!v || (is_text(v) && !v->len)) continue;
        TM_TRY(tm_buf_printf(&p->beside, ",\"%s\":", names[i]));
        tm_jw_init(&w, &p->beside, 0);
        tm_jw_node(&w, v);
        TM_TRY(tm_jw_end(&w));
    }
    return TM_OK;
}

/* "system" of a line comes first, where no message of that kind does. */
static tm_status begin_chat(data_prefer *p, const tm_json *line, const tm_json *first) {
    const tm_json *system = given(line, "system");
    const tm_json *role = first ? GIVEN(first, "role", "from") : NULL;
    p->chat = true;
    TM_TRY(put_beside(p, line));
    if (!system || (is_text(system) && !system->len) || (role && tm_json_is(role, "system"))) return TM_OK;
    if (!is_text(system)) return tm_fail(TM_EINPUT, "\"system\" is not a string");
    return put_said(&p->part[DATA_PROMPT], "system", system);
}

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

/* How many messages two conversations begin with together, as TRL counts them: at least the last of the shorter one is
 * an answer. */
static size_t common_messages(const tm_json *a, const tm_json *b) {
    size_t n = 0, most = (size_t)tm_min_u64(a->count, b->count);
    const tm_json *x = a->child, *y = b->child;
    for (; n + 1 < most && same(x, y); n++) x = x->next, y = y->next;
    return n;
}

/* The same for text: whole characters, and a space before the answers is theirs. */
static size_t common_text(const tm_json *a, const tm_json *b) {
    size_t n = 0, most = (size_t)tm_min_u64(a->len, b->len);
    while (n < most && a->text[n] == b->text[n]) n++;
    bool differ = n < most;
    if (!differ) n = most - 1;
    while (n && ((unsigned char)a->text[n] & 0xC0) == 0x80) n--;
    return differ && n && a->text[n - 1] == ' ' ? n - 1 : n;
}

static tm_status split_messages(data_prefer *p, const tm_json *line, const tm_json *chosen, const tm_json *rejected) {
    size_t n = common_messages(chosen, rejected);
    if (!n)
        return tm_fail(TM_EINPUT, "the two conversations do not begin with the same message; give what they have in "
                                  "common as \"prompt\"");
    TM_TRY(begin_chat(p, line, chosen->child));
    TM_TRY(put_messages(&p->part[DATA_PROMPT], chosen, 0, n));
    TM_TRY(put_messages(&p->part[DATA_CHOSEN], chosen, n, chosen->count));
    return put_messages(&p->part[DATA_REJECTED], rejected, n, rejected->count);
}

static tm_status split_text(data_prefer *p, const tm_json *chosen, const tm_json *rejected) {
    if (!chosen->len) return no_answer("chosen");
    if (!rejected->len) return no_answer("rejected");
    size_t n = common_text(chosen, rejected);
    TM_TRY(put_text(&p->part[DATA_PROMPT], chosen->text, n));
    TM_TRY(put_text(&p->part[DATA_CHOSEN], chosen->text + n, chosen->len - n));
    return put_text(&p->part[DATA_REJECTED], rejected->text + n, rejected->len - n);
}

/* Text is a user's message. */
static tm_status put_prompt(data_prefer *p, const tm_json *line, const tm_json *prompt, size_t n) {
    TM_TRY(begin_chat(p, line, is_list(prompt) ? prompt->child : NULL));
    if (is_text(prompt)) return put_said(&p->part[DATA_PROMPT], "user", prompt);
    if (!is_list(prompt)) return tm_fail(TM_EINPUT, "\"prompt\" is neither text nor messages");
    if (!n || !prompt->count) return tm_fail(TM_EINPUT, "there is no message before the answer");
    return put_messages(&p->part[DATA_PROMPT], prompt, 0, n);
}

/* A prompt in the older forms' columns, as messages. */
static tm_status put_columns(data_prefer *p, const tm_json *line) {
    const tm_json *question = GIVEN(line, "query", "question");
    if (question) return put_prompt(p, line, question, SIZE_MAX);
    TM_TRY(begin_chat(p, line, NULL));
    return data_alpaca_prompt(line, &p->part[DATA_PROMPT]);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

static const tm_json *conversation_of(const tm_json *line) {
    return GIVEN(line, "messages", "conversations", "conversation");
}
static bool has_columns(const tm_json *line) {
    return GIVEN(line, "query", "question", "instruction") != NULL;
}

/* After the last user's message. */
static size_t answer_at(const tm_json *messages) {
    size_t i = 0, at = 0;
    for (const tm_json *m = messages->child; m; m = m->next) {
        const tm_json *role = GIVEN(m, "role", "from");
        i++;
        if (role && (tm_json_is(role, "user") || tm_json_is(role, "human"))) at = i;
    }
    return at;
}

static tm_status put_both(data_prefer *p, const tm_json *chosen, const tm_json *rejected) {
    TM_TRY(put_answer(&p->part[DATA_CHOSEN], chosen, "chosen"));
    return put_answer(&p->part[DATA_REJECTED], rejected, "rejected");
}

/* A conversation, of which the chosen answer is the end. */
static tm_status read_conversation(data_prefer *p, const tm_json *line, const tm_json *messages) {
    if (!is_list(messages)) return tm_fail(TM_EINPUT, "the messages are not a list");
    size_t at = answer_at(messages);
    if (at == messages->count) return tm_fail(TM_EINPUT, "there is no answer after the last user's message");
    TM_TRY(put_prompt(p, line, messages, at));
    return put_messages(&p->part[DATA_CHOSEN], messages, at, messages->count);
}

static tm_status read_response(data_prefer *p, const tm_json *line) {
    const tm_json *messages = conversation_of(line),
                  *answer = GIVEN(line, "response", "chosen_response", "answer", "output");
    if (messages) return read_conversation(p, line, messages);
    if (!answer || !has_columns(line))
        return tm_fail(TM_EINPUT, "an answer without what it answers: \"messages\", or \"query\" and \"response\"");
    TM_TRY(put_columns(p, line));
    return put_answer(&p->part[DATA_CHOSEN], answer, "response");
}

/* A prompt that is text beside conversations is their first message again. */
static tm_status read_prompt(data_prefer *p, const tm_json *line, const tm_json *chosen, const tm_json *rejected) {
    const tm_json *prompt = given(line, "prompt");
    if (is_text(prompt) && is_text(chosen) && is_text(rejected)) {
        if (!chosen->len || !rejected->len) return no_answer(chosen->len ? "rejected" : "chosen");
        TM_TRY(put_text(&p->part[DATA_PROMPT], prompt->text, prompt->len));
        TM_TRY(put_text(&p->part[DATA_CHOSEN], chosen->text, chosen->len));
        return put_text(&p->part[DATA_REJECTED], rejected->text, rejected->len);
    }
    if (is_text(prompt) && is_list(chosen) && is_list(rejected) && common_messages(chosen, rejected))
        return split_messages(p, line, chosen, rejected);
    TM_TRY(put_prompt(p, line, prompt, SIZE_MAX));
    return put_both(p, chosen, rejected);
}

/* Answers that are single messages are the assistant's, to someone else's turn (LLaMA-Factory's `ranking`, which drops others). */
static tm_status check_turns(const tm_json *messages, const tm_json *chosen, const tm_json *rejected) {
    const tm_json *last = is_list(messages) ? messages->child : NULL, *const answer[] = {chosen, rejected};
    while (last && last->next) last = last->next;
    for (size_t i = 0; i < TM_COUNT(answer); i++) {
        if (answer[i]->type != TM_JSON_OBJECT || !last) continue;
        if (data_said_by(last, "assistant") || data_said_by(last, "system"))
            return tm_fail(TM_EINPUT, "the conversation before \"%s\" ends with no turn that it answers",
                           answer[i]->key);
        if (!data_said_by(answer[i], "assistant"))
            return tm_fail(TM_EINPUT, "\"%s\" is no turn of the assistant's", answer[i]->key);
    }
    return TM_OK;
}

static tm_status read_pair(data_prefer *p, const tm_json *line) {
    const tm_json *chosen = given(line, "chosen"), *rejected = given(line, "rejected");
    const tm_json *response = given(line, "rejected_response"), *other = given(line, "rejected_messages");
    const tm_json *messages = conversation_of(line);
    if (response) {
        TM_TRY(read_response(p, line));
        return put_answer(&p->part[DATA_REJECTED], response, "rejected_response");
    }
    if (other) {
        if (!is_list(messages) || !is_list(other))
            return tm_fail(TM_EINPUT, "\"rejected_messages\" go with \"messages\", both lists");
        return split_messages(p, line, messages, other);
    }
    if (!chosen || !rejected)
        return tm_fail(TM_EINPUT, "no \"%s\"; a pair has \"chosen\" and \"rejected\"", chosen ? "rejected" : "chosen");
    if (given(line, "prompt")) return read_prompt(p, line, chosen, rejected);
    if (messages || has_columns(line)) {
        if (messages) TM_TRY(check_turns(messages, chosen, rejected));
        TM_TRY(messages ? put_prompt(p, line, messages, SIZE_MAX) : put_columns(p, line));
        return put_both(p, chosen, rejected);
    }
    if (is_text(chosen) && is_text(rejected)) return split_text(p, chosen, rejected);
    if (is_list(chosen) && is_list(rejected)) return split_messages(p, line, chosen, rejected);
    return tm_fail(TM_EINPUT, "\"chosen\" and \"rejected\" are not both text, nor both messages, and there is no "
                              "\"prompt\"");
}

/* ---- labelled rows ---------------------------------------------------------------------------------------------- */

static const tm_json *label_of(const tm_json *line) {
    return GIVEN(line, "label", "kto_tag");
}

static tm_status read_label(data_prefer *p, const tm_json *line) {
    const tm_json *v = label_of(line);
    bool number = v->type == TM_JSON_NUMBER && v->is_integer && (v->integer == 0 || v->integer == 1);
    if (v->type != TM_JSON_BOOL && !number) return tm_fail(TM_EINPUT, "\"%s\" is neither true nor false", v->key);
    p->desirable[0] = number ? v->integer == 1 : v->boolean;
    return TM_OK;
}

static tm_status read_labelled(data_prefer *p, const tm_json *line) {
    const tm_json *completion = given(line, "completion"), *prompt = given(line, "prompt");
    p->n_answers = 1;
    TM_TRY(read_label(p, line));
    if (!completion) return read_response(p, line);
    if (!prompt) return tm_fail(TM_EINPUT, "no \"prompt\" for the \"completion\"");
    if (!is_text(prompt) || !is_text(completion)) {
        TM_TRY(put_prompt(p, line, prompt, SIZE_MAX));
        return put_answer(&p->part[DATA_CHOSEN], completion, "completion");
    }
    if (!completion->len) return no_answer("completion");
    TM_TRY(put_text(&p->part[DATA_PROMPT], prompt->text, prompt->len));
    return put_text(&p->part[DATA_CHOSEN], completion->text, completion->len);
}

/* ---- a line ----------------------------------------------------------------------------------------------------- */

tm_status data_prefer_read(data_prefer *p, const tm_json *line, tm_rows rows) {
    for (size_t i = 0; i < TM_COUNT(p->part); i++) tm_buf_clear(&p->part[i]);
    tm_buf_clear(&p->beside);
    p->chat = false;
    p->n_answers = 2;
    p->desirable[0] = true;
    p->desirable[1] = false;
    if (line->type != TM_JSON_OBJECT) return tm_fail(TM_EINPUT, "not a JSON object");
    if (rows == TM_ROWS_LABELLED && label_of(line)) return read_labelled(p, line);
    if (GIVEN(line, "chosen", "rejected", "rejected_response", "rejected_messages")) return read_pair(p, line);
    return rows == TM_ROWS_PAIRS
               ? tm_fail(TM_EINPUT, "no pair (\"chosen\" and \"rejected\", or \"messages\" and \"rejected_response\"); "
                                    "keys of other names are told by \"columns\"")
               : tm_fail(TM_EINPUT, "no \"label\" (true or false), and no \"chosen\" and \"rejected\"; keys of other "
                                    "names are told by \"columns\"");
}

void data_prefer_free(data_prefer *p) {
    for (size_t i = 0; i < TM_COUNT(p->part); i++) tm_buf_free(&p->part[i]);
    tm_buf_free(&p->beside);
}
