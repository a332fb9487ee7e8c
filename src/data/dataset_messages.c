/* The older instruction forms, rewritten as {"messages", "tools"?}: one road leads to ids. */
#include "data/dataset_internal.h"

#include <string.h>

static void put_message(tm_json_writer *w, const char *role, const char *content, size_t n) {
    tm_jw_object(w);
    tm_jw_field_str(w, "role", role);
    tm_jw_field_strn(w, "content", content, n);
    tm_jw_object_end(w);
}

static tm_status put_string(tm_json_writer *w, const char *role, const tm_json *content, const char *what) {
    if (!content || content->type != TM_JSON_STRING) return tm_fail(TM_EINPUT, "%s is not a string", what);
    put_message(w, role, content->text, content->len);
    return TM_OK;
}

static bool is_absent(const tm_json *node) {
    return !node || node->type == TM_JSON_NULL || (node->type == TM_JSON_STRING && !node->len);
}

static tm_status put_system(tm_json_writer *w, const tm_json *line) {
    const tm_json *system = tm_json_get(line, "system");
    return is_absent(system) ? TM_OK : put_string(w, "system", system, "\"system\"");
}

static void begin(tm_json_writer *w, tm_buf *out) {
    tm_jw_init(w, out, 0);
    tm_jw_object(w);
    tm_jw_key(w, "messages");
    tm_jw_array(w);
}

static tm_status end(tm_json_writer *w, const tm_json *line) {
    const tm_json *tools = tm_json_get(line, "tools");
    tm_jw_array_end(w);
    if (!is_absent(tools)) {
        tm_jw_key(w, "tools");
        tm_jw_node(w, tools);
    }
    tm_jw_object_end(w);
    return tm_jw_end(w);
}

/* ---- alpaca ----------------------------------------------------------------------------------------------------- */

static tm_status put_history(tm_json_writer *w, const tm_json *line) {
    const tm_json *history = tm_json_get(line, "history");
    if (!history || history->type == TM_JSON_NULL) return TM_OK;
    if (history->type != TM_JSON_ARRAY) return tm_fail(TM_EINPUT, "\"history\" is not a list of [user, assistant]");
    for (const tm_json *turn = history->child; turn; turn = turn->next) {
        if (turn->type != TM_JSON_ARRAY || turn->count != 2)
            return tm_fail(TM_EINPUT, "\"history\" holds something other than [user, assistant]");
        TM_TRY(put_string(w, "user", turn->child, "a user turn of \"history\""));
        TM_TRY(put_string(w, "assistant", turn->child->next, "an assistant turn of \"history\""));
    }
    return TM_OK;
}

/* instruction, newline, input; or the one of them that is there. */
static tm_status put_instruction(tm_json_writer *w, const tm_json *line) {
    const tm_json *instruction = tm_json_get(line, "instruction"), *input = tm_json_get(line, "input");
    tm_buf both = {0};
    tm_status rc = TM_OK;
    if (is_absent(input)) return put_string(w, "user", instruction, "\"instruction\"");
    if (is_absent(instruction)) return put_string(w, "user", input, "\"input\"");
    if (instruction->type != TM_JSON_STRING || input->type != TM_JSON_STRING)
        return tm_fail(TM_EINPUT, "\"instruction\" and \"input\" are not both strings");
    TM_GO(tm_buf_append(&both, instruction->text, instruction->len));
    TM_GO(tm_buf_append(&both, "\n", 1));
    TM_GO(tm_buf_append(&both, input->text, input->len));
    put_message(w, "user", both.data, both.len);
done:
    tm_buf_free(&both);
    return rc;
}

/* The writer is in a list, which is cut out of `out` again. */
tm_status data_alpaca_prompt(const tm_json *line, tm_buf *out) {
    tm_json_writer w;
    size_t at = out->len;
    tm_jw_init(&w, out, 0);
    tm_jw_array(&w);
    TM_TRY(put_history(&w, line));
    TM_TRY(put_instruction(&w, line));
    tm_jw_array_end(&w);
    TM_TRY(tm_jw_end(&w));
    if (at) {
        out->data[at] = ',';
        out->len--;
        return TM_OK;
    }
    memmove(out->data, out->data + 1, out->len - 2);
    out->len -= 2;
    return TM_OK;
}

tm_status data_alpaca_messages(const tm_json *line, tm_buf *out) {
    tm_json_writer w;
    begin(&w, out);
    TM_TRY(put_system(&w, line));
    TM_TRY(put_history(&w, line));
    TM_TRY(put_instruction(&w, line));
    TM_TRY(put_string(&w, "assistant", tm_json_get(line, "output"), "\"output\""));
    return end(&w, line);
}

/* ---- ShareGPT --------------------------------------------------------------------------------------------------- */

/* The names that data have for authors, beside those that templates know. */
static const char *known_role(const tm_json *role) {
    static const char *const roles[][2] = {{"human", "user"},
                                           {"gpt", "assistant"},
                                           {"bot", "assistant"},
                                           {"chatgpt", "assistant"},
                                           {"observation", "tool"}};
    for (size_t i = 0; i < TM_COUNT(roles); i++)
        if (tm_json_is(role, roles[i][0])) return roles[i][1];
    return NULL;
}

static const char *sharegpt_role(const tm_json *from) {
    static const char *const own[][2] = {
        {"user", "user"}, {"assistant", "assistant"}, {"model", "assistant"}, {"system", "system"}, {"tool", "tool"}};
    for (size_t i = 0; i < TM_COUNT(own); i++)
        if (tm_json_is(from, own[i][0])) return own[i][1];
    return known_role(from);
}

static tm_status put_call(tm_json_writer *w, const tm_json *call) {
    const tm_json *name = tm_json_get(call, "name");
    if (!name || name->type != TM_JSON_STRING)
        return tm_fail(TM_EINPUT, "a function_call is not JSON of {\"name\", \"arguments\"}, or of a list of them");
    tm_jw_object(w);
    tm_jw_field_str(w, "type", "function");
    tm_jw_key(w, "function");
    tm_jw_node(w, call);
    tm_jw_object_end(w);
    return TM_OK;
}

/* The value is JSON of a call, or of several, as a string. */
static tm_status put_calls(tm_json_writer *w, const tm_json *value) {
    tm_json_doc *doc = NULL;
    tm_status rc;
    if (!value || value->type != TM_JSON_STRING)
        return tm_fail(TM_EINPUT, "\"value\" of a function_call is not a string");
    size_t room = (size_t)tm_min_u64(16 * (uint64_t)value->len + 64 * TM_KIB, 4 * TM_MIB);
    TM_TRY(tm_json_parse(&doc, value->text, value->len, "function_call", TM_JSON_DUPLICATES_OK, room));
    const tm_json *calls = tm_json_root(doc);
    bool several = calls->type == TM_JSON_ARRAY;
    tm_jw_object(w);
    tm_jw_field_str(w, "role", "assistant");
    tm_jw_field_str(w, "content", "");
    tm_jw_key(w, "tool_calls");
    tm_jw_array(w);
    rc = several ? TM_OK : put_call(w, calls);
    for (const tm_json *c = several ? calls->child : NULL; c && rc == TM_OK; c = c->next) rc = put_call(w, c);
    tm_jw_array_end(w);
    tm_jw_object_end(w);
    tm_json_free(doc);
    return rc;
}

/* {"from", "value"} */
static tm_status put_turn(tm_json_writer *w, const tm_json *turn) {
    const tm_json *from = tm_json_get(turn, "from");
    const char *role = sharegpt_role(from);
    if (!from || from->type != TM_JSON_STRING) return tm_fail(TM_EINPUT, "a conversation turn has no \"from\"");
    if (tm_json_is(from, "function_call")) return put_calls(w, tm_json_get(turn, "value"));
    if (!role) return tm_fail(TM_EINPUT, "\"from\": \"%.40s\" is none of human, gpt, system, observation", from->text);
    return put_string(w, role, tm_json_get(turn, "value"), "\"value\" of a conversation turn");
}

bool data_said_by(const tm_json *message, const char *author) {
    const tm_json *from = tm_json_get(message, "from"), *role = tm_json_get(message, "role");
    const char *own = from ? sharegpt_role(from) : known_role(role);
    if (tm_json_is(from, "function_call")) own = "assistant";
    return own ? strcmp(own, author) == 0 : tm_json_is(role, author);
}

/* A message that says nothing: templates would print "None". One of calls has its say in them. */
static bool is_silent(const tm_json *message) {
    const tm_json *content = tm_json_get(message, "content");
    return content && content->type == TM_JSON_NULL && is_absent(tm_json_get(message, "tool_calls"));
}

static bool is_foreign(const tm_json *message) {
    return tm_json_get(message, "from") || known_role(tm_json_get(message, "role")) || is_silent(message);
}

tm_status data_put_message(tm_json_writer *w, const tm_json *message) {
    const char *role = known_role(tm_json_get(message, "role"));
    bool silent = is_silent(message);
    if (tm_json_get(message, "from")) return put_turn(w, message);
    if (!role && !silent) {
        tm_jw_node(w, message);
        return TM_OK;
    }
    tm_jw_object(w);
    for (const tm_json *m = message->child; m; m = m->next) {
        tm_jw_key(w, m->key);
        if (role && !strcmp(m->key, "role"))
            tm_jw_str(w, role);
        else if (silent && !strcmp(m->key, "content"))
            tm_jw_str(w, "");
        else
            tm_jw_node(w, m);
    }
    tm_jw_object_end(w);
    return TM_OK;
}

bool data_messages_foreign(const tm_json *messages) {
    bool foreign = false;
    for (const tm_json *m = messages->child; m && !foreign; m = m->next) foreign = is_foreign(m);
    return foreign;
}

tm_status data_plain_messages(const tm_json *line, tm_buf *out) {
    tm_json_writer w;
    begin(&w, out);
    for (const tm_json *m = tm_json_get(line, "messages")->child; m; m = m->next) TM_TRY(data_put_message(&w, m));
    tm_jw_array_end(&w);
    for (const tm_json *m = line->child; m; m = m->next) {
        if (!strcmp(m->key, "messages") || !*m->key) continue;
        tm_jw_key(&w, m->key);
        tm_jw_node(&w, m);
    }
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

/* {"human", "assistant"} */
static tm_status put_pair(tm_json_writer *w, const tm_json *pair) {
    TM_TRY(put_string(w, "user", tm_json_get(pair, "human"), "\"human\" of a conversation turn"));
    return put_string(w, "assistant", tm_json_get(pair, "assistant"), "\"assistant\" of a conversation turn");
}

tm_status data_sharegpt_messages(const tm_json *line, tm_buf *out) {
    const tm_json *turns = tm_json_get(line, "conversations"), *pairs = tm_json_get(line, "conversation");
    const tm_json *list = turns ? turns : pairs;
    tm_json_writer w;
    if (!list || list->type != TM_JSON_ARRAY) return tm_fail(TM_EINPUT, "\"conversations\" is not a list");
    begin(&w, out);
    TM_TRY(put_system(&w, line));
    for (const tm_json *turn = list->child; turn; turn = turn->next)
        TM_TRY(tm_json_get(turn, "human")  ? put_pair(&w, turn)
               : tm_json_get(turn, "role") ? data_put_message(&w, turn)
                                           : put_turn(&w, turn));
    return end(&w, line);
}
