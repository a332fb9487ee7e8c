/* One JSONL line to token ids and a flag per id that says whether it is learned. */
#include "data/dataset_internal.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    tm_data_format format;
} format_names[] = {{"auto", TM_DATA_AUTO},
                    {"text", TM_DATA_TEXT},
                    {"messages", TM_DATA_MESSAGES},
                    {"alpaca", TM_DATA_ALPACA},
                    {"prompt_completion", TM_DATA_PROMPT_COMPLETION},
                    {"prompt-completion", TM_DATA_PROMPT_COMPLETION},
                    {"sharegpt", TM_DATA_SHAREGPT}};

tm_status tm_data_format_parse(const char *name, tm_data_format *out) {
    for (size_t i = 0; i < TM_COUNT(format_names); i++)
        if (!strcmp(name, format_names[i].name)) {
            *out = format_names[i].format;
            return TM_OK;
        }
    return tm_fail(TM_EINPUT, "data format \"%s\" is none of auto, text, messages, alpaca, prompt_completion, sharegpt",
                   name);
}

const char *tm_data_format_name(tm_data_format f) {
    for (size_t i = 0; i < TM_COUNT(format_names); i++)
        if (format_names[i].format == f) return format_names[i].name;
    return "?";
}

tm_status tm_overlong_parse(const char *name, tm_overlong *out) {
    static const char *const names[] = {"truncate", "drop", "error", "split"}; /* in the order of the enum */
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (tm_overlong)i;
            return TM_OK;
        }
    return tm_fail(TM_EINPUT, "overlong \"%s\" is none of truncate, drop, error, split", name);
}

/* ---- text, prompt and completion --------------------------------------------------------------------------------- */

static tm_status learn_fill(data_encoder *e, uint8_t flag) {
    size_t from = e->learn.len, n = e->ids.n - from;
    TM_TRY(tm_buf_reserve(&e->learn, n));
    memset(e->learn.data + from, flag, n);
    e->learn.len += n;
    return TM_OK;
}

static tm_status end_with_eos(data_encoder *e) {
    int32_t eos = e->opts->eos_id;
    if (eos < 0 || (e->ids.n && e->ids.id[e->ids.n - 1] == eos)) return TM_OK;
    TM_TRY(tm_ids_push(&e->ids, eos));
    return learn_fill(e, 1);
}

static tm_status encode_text(data_encoder *e, const tm_json *line) {
    const tm_json *text = tm_json_get(line, "text");
    if (!text || text->type != TM_JSON_STRING) return tm_fail(TM_EINPUT, "\"text\" is not a string");
    TM_TRY(tm_tokenizer_encode(e->opts->tokenizer, text->text, text->len, true, &e->ids));
    TM_TRY(learn_fill(e, 1));
    return end_with_eos(e);
}

/* Learned is all from the first token on that holds a byte of the completion; one that straddles the border counts. */
static tm_status learn_from(data_encoder *e, size_t border) {
    const tm_token_span *spans = (const tm_token_span *)(const void *)e->spans.data;
    TM_TRY(learn_fill(e, 0));
    bool learned = false;
    for (size_t i = 0; i < e->ids.n; i++) {
        if (spans[i].end > border && spans[i].end > spans[i].begin) learned = true;
        e->learn.data[i] = (char)learned;
    }
    return TM_OK;
}

static tm_status encode_prompt_completion(data_encoder *e, const tm_json *line) {
    const tm_json *prompt = tm_json_get(line, "prompt"), *completion = tm_json_get(line, "completion");
    if (!prompt || prompt->type != TM_JSON_STRING || !completion || completion->type != TM_JSON_STRING)
        return tm_fail(TM_EINPUT, "\"prompt\" and \"completion\" are not both strings; for lists of messages use "
                                  "\"messages\"");
    TM_TRY(tm_buf_append(&e->text, prompt->text, prompt->len));
    TM_TRY(tm_buf_append(&e->text, completion->text, completion->len));
    TM_TRY(tm_tokenizer_encode_offsets(e->opts->tokenizer, e->text.data ? e->text.data : "", e->text.len, true, &e->ids,
                                       &e->spans));
    TM_TRY(learn_from(e, e->opts->labels.train_on_inputs ? 0 : prompt->len));
    return end_with_eos(e);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static tm_status encode_messages(data_encoder *e, const tm_json *conversation) {
    const tm_json *messages = tm_json_get(conversation, "messages");
    if (!messages || messages->type != TM_JSON_ARRAY) return tm_fail(TM_EINPUT, "\"messages\" is not a list");
    if (!e->opts->chat)
        return tm_fail(TM_EINPUT, "a conversation, but the model has no chat template; use text or prompt and "
                                  "completion");
    return tm_chat_encode_labels(e->opts->chat, conversation, &e->opts->labels, &e->text, &e->ids, &e->learn);
}

static tm_status encode_rewritten(data_encoder *e, const tm_json *line,
                                  tm_status (*rewrite)(const tm_json *line, tm_buf *out)) {
    tm_json_doc *doc = NULL;
    tm_status rc;
    TM_TRY(rewrite(line, &e->json));
    TM_TRY(tm_json_parse(&doc, e->json.data, e->json.len, "messages", 0, 0));
    rc = encode_messages(e, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

static tm_status encode_any_messages(data_encoder *e, const tm_json *line) {
    const tm_json *messages = tm_json_get(line, "messages");
    bool foreign = messages && messages->type == TM_JSON_ARRAY && data_messages_foreign(messages);
    return foreign ? encode_rewritten(e, line, data_plain_messages) : encode_messages(e, line);
}

/* ---- a line ------------------------------------------------------------------------------------------------------ */

static tm_data_format detect(const tm_json *line) {
    if (tm_json_get(line, "messages")) return TM_DATA_MESSAGES;
    if (tm_json_get(line, "conversations") || tm_json_get(line, "conversation")) return TM_DATA_SHAREGPT;
    if (tm_json_get(line, "prompt") && tm_json_get(line, "completion")) return TM_DATA_PROMPT_COMPLETION;
    if (tm_json_get(line, "instruction") && tm_json_get(line, "output")) return TM_DATA_ALPACA;
    if (tm_json_get(line, "text")) return TM_DATA_TEXT;
    return TM_DATA_AUTO;
}

/* What a key is likely to be here. */
static const char *likely(const char *key) {
    static const char *const known[][2] = {{"question", "prompt"},
                                           {"query", "prompt"},
                                           {"input", "prompt"},
                                           {"instruction", "prompt"},
                                           {"problem", "prompt"},
                                           {"context", "prompt"},
                                           {"answer", "completion"},
                                           {"response", "completion"},
                                           {"output", "completion"},
                                           {"target", "completion"},
                                           {"solution", "completion"},
                                           {"reply", "completion"},
                                           {"content", "text"},
                                           {"body", "text"},
                                           {"document", "text"},
                                           {"article", "text"},
                                           {"conversation_list", "messages"},
                                           {"dialog", "messages"},
                                           {"dialogue", "messages"},
                                           {"turns", "messages"},
                                           {"chat", "messages"}};
    for (size_t i = 0; i < TM_COUNT(known); i++)
        if (!strcasecmp(key, known[i][0])) return known[i][1];
    return NULL;
}

/* {"question": "prompt", "answer": "completion"}, of the keys that there are. */
static void suggest(const tm_json *line, char *out, size_t cap) {
    static const char *const two[] = {"prompt", "completion"};
    bool any = false;
    size_t n = 0, used = 0;
    for (const tm_json *m = line->child; m; m = m->next) any |= likely(m->key) != NULL;
    for (const tm_json *m = line->child; m && n < 2; m = m->next) {
        const char *ours = any ? likely(m->key) : line->count == 1 ? "text" : two[n];
        if (!ours || strpbrk(m->key, "\"\\'")) continue;
        used += (size_t)snprintf(out + used, cap - used, "%s\"%.40s\": \"%s\"", n++ ? ", " : "", m->key, ours);
    }
}

static tm_status unknown_format(const tm_json *line) {
    char keys[200] = "", example[160] = "";
    size_t used = 0;
    for (const tm_json *m = line->child; m && used < 140; m = m->next)
        used += (size_t)snprintf(keys + used, sizeof keys - used, "%s%.40s", used ? ", " : "", m->key);
    if (tm_json_get(line, "chosen") || tm_json_get(line, "rejected"))
        return tm_fail(
            TM_EINPUT,
            "keys {%s} are a pair of preferences; \"objective.type\" dpo, simpo, orpo, cpo or kto learns from those",
            keys);
    suggest(line, example, sizeof example);
    return tm_fail(TM_EINPUT,
                   "keys {%s} are no known format (messages; conversations; prompt and completion; instruction and "
                   "output; text); say what they are, such as \"columns\": {%s}",
                   keys, example);
}

static tm_status encode_object(data_encoder *e, const tm_json *line) {
    tm_data_format format = e->opts->format;
    if (line->type != TM_JSON_OBJECT) return tm_fail(TM_EINPUT, "not a JSON object");
    if (format == TM_DATA_AUTO) format = detect(line);
    switch (format) {
    case TM_DATA_TEXT:
        return encode_text(e, line);
    case TM_DATA_PROMPT_COMPLETION:
        return encode_prompt_completion(e, line);
    case TM_DATA_MESSAGES:
        return encode_any_messages(e, line);
    case TM_DATA_ALPACA:
        return encode_rewritten(e, line, data_alpaca_messages);
    case TM_DATA_SHAREGPT:
        return encode_rewritten(e, line, data_sharegpt_messages);
    case TM_DATA_AUTO:
        break;
    }
    return unknown_format(line);
}

/* "json:1:COLUMN: what" names a line of its own; the caller knows the file's. */
static tm_status not_json(void) {
    const char prefix[] = "json:1:";
    tm_error failure = *tm_error_get();
    if (strncmp(failure.text, prefix, sizeof prefix - 1) != 0) return failure.code;
    tm_error_clear();
    return tm_fail(failure.code, "column %.700s", failure.text + sizeof prefix - 1);
}

tm_status data_encode(data_encoder *e, const char *line, size_t len) {
    size_t room = (size_t)tm_min_u64(16 * (uint64_t)len + 64 * TM_KIB, 64 * TM_MIB); /* of the tree */
    tm_json_doc *doc = NULL;
    tm_status rc;
    e->ids.n = 0;
    tm_buf_clear(&e->learn);
    tm_buf_clear(&e->text);
    tm_buf_clear(&e->json);
    tm_buf_clear(&e->spans);
    if (tm_json_parse(&doc, line, len, "json", 0, room) != TM_OK) return not_json();
    if (e->columns) tm_json_rename(doc, e->columns->theirs, e->columns->ours, e->columns->n);
    bool plain = e->opts->rows == TM_ROWS_PLAIN;
    rc = plain ? encode_object(e, tm_json_root(doc)) : data_prefer_encode(e, tm_json_root(doc));
    tm_json_free(doc);
    TM_ASSERT(rc != TM_OK || !plain || e->learn.len == e->ids.n);
    return rc;
}

void data_encoder_free(data_encoder *e) {
    tm_ids_free(&e->ids);
    tm_buf_free(&e->learn);
    tm_buf_free(&e->text);
    tm_buf_free(&e->json);
    tm_buf_free(&e->spans);
    tm_ids_free(&e->prompt);
    data_prefer_free(&e->prefer);
}
