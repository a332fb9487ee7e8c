/* chat: conversations to text, ids and loss mask, by a model's chat template.
 *
 * A chat template is a Jinja program. This is a small interpreter for the part of Jinja that templates use (README.md
 * lists it), with the environment that transformers gives them: trim_blocks, lstrip_blocks, loop controls,
 * `{% generation %}`, tojson, raise_exception, strftime_now. What it does not know is TM_EUNSUPPORTED with template
 * line, when the template is opened where that can be seen, else when it is run. Steps, depth and memory of a run are
 * bounded.
 *
 * Which text is the assistant's: a template with `{% generation %}` says so itself. For all others the interpreter
 * follows every byte of an assistant message from the messages to the output (through trim, replace, slices ...), and
 * the end-of-turn token that follows it belongs to it.
 *
 * A conversation is an array of messages, or an object as data sets hold it: "messages", and where they are there
 * "tools" (a list of functions, or JSON of one in a string), "documents" and "chat_template_kwargs" (an object: what
 * else the template shall know, for example {"enable_thinking": false}). Members with other names are not looked at.
 *
 * Opens no files. Threads: a tm_chat does not change after it was opened; any number of threads may render with it.
 *
 *     tm_chat *chat;
 *     tm_chat_opts opts = {.tokenizer_config = config.data, .tokenizer_config_len = config.len};
 *     TM_TRY(tm_chat_open(&chat, tokenizer, jinja, jinja_len, "model/chat_template.jinja", &opts));
 *     rc = tm_chat_encode(chat, tm_json_get(root, "messages"), false, &text, &ids, &loss_mask);
 */
#ifndef TIDEMILL_CHAT_H
#define TIDEMILL_CHAT_H

#include "text/tokenizer/tokenizer.h"

typedef struct tm_chat tm_chat;

typedef struct tm_chat_opts {
    const char
        *tokenizer_config; /* text of tokenizer_config.json: bos_token, eos_token, unk_token, pad_token; or NULL */
    size_t tokenizer_config_len;
    const char *bos_token, *eos_token; /* override those of tokenizer_config; NULL: not given */
    int64_t now;                       /* seconds since 1970 for strftime_now; 0: the clock, local time */
    uint64_t memory_bytes;             /* that a run of the template may take, 36 MiB at least; 0: as its README says */
} tm_chat_opts;

/* `t` and nothing else must outlive the chat; it may be NULL where only tm_chat_render is used (spans then end with the
 * content or eos_token). `opts` may be NULL. */
tm_status tm_chat_open(tm_chat **out, const tm_tokenizer *t, const char *template_text, size_t len, const char *name,
                       const tm_chat_opts *opts) TM_MUST_USE;
void tm_chat_close(tm_chat *chat); /* NULL is fine */

/* Byte ranges of the rendered text, ascending, not overlapping, and whose they are. Zero it to start. */
typedef struct tm_chat_spans {
    struct tm_chat_span {
        size_t begin, end;
        uint32_t message; /* index in "messages" */
        bool assistant, learned;
    } * span;
    size_t n, cap;
} tm_chat_spans;
void tm_chat_spans_free(tm_chat_spans *spans);

/* Renders a conversation into `text` (appended; spans count from where it began). `assistant` (may be NULL) gets the
 * ranges of assistant text with its end-of-turn token; `learned` is not set. TM_EINPUT: it is no conversation, or the
 * template raised an exception about it (its words are the message). */
tm_status tm_chat_render(const tm_chat *chat, const tm_json *conversation, bool generation_prompt, tm_buf *text,
                         tm_chat_spans *assistant) TM_MUST_USE;

/* `enable_thinking` of the template; a conversation's own chat_template_kwargs override it. */
typedef enum tm_chat_thinking {
    TM_CHAT_THINKING_UNSAID, /* the template's own default */
    TM_CHAT_THINKING_OFF,
    TM_CHAT_THINKING_ON
} tm_chat_thinking;

/* What is learned of a conversation; zeroed: all answers, but for those whose thoughts the template leaves out though it
 * shows the last one's, or whose tool calls (a template with {% generation %} says itself what is learned). "loss" or "train" of a message
 * (true or false) overrides this: `true` on another author's message has its text and end-of-turn token learned. */
typedef struct tm_chat_labels {
    bool generation_prompt;
    bool train_on_inputs; /* everything is learned, the template's own text included */
    bool mask_history;    /* only what follows the last user message */
    tm_chat_thinking thinking;
} tm_chat_labels;

/* Renders and encodes (no special tokens added beyond those in the text). All three are appended to; `text` and
 * `loss_mask` may be NULL. loss_mask: one byte per id, 1 where it is learned: assistant text and its end-of-turn token.
 * TM_EUNSUPPORTED: a message's "loss" is a weight. */
tm_status tm_chat_encode_labels(const tm_chat *chat, const tm_json *conversation, const tm_chat_labels *how,
                                tm_buf *text, tm_ids *ids, tm_buf *loss_mask) TM_MUST_USE;
tm_status tm_chat_encode(const tm_chat *chat, const tm_json *conversation, bool generation_prompt, tm_buf *text,
                         tm_ids *ids, tm_buf *loss_mask) TM_MUST_USE; /* by the defaults */

/* Appends lines of a picture of `ids` [n]: their text, with what `learned` [n] is 0 for dimmed (`color`) or between ⟦ and
 * ⟧. Control characters are escaped. Without a tokenizer ids are shown. */
tm_status tm_chat_show(const tm_tokenizer *t, const int32_t *ids, const char *learned, size_t n, bool color,
                       tm_buf *out) TM_MUST_USE;

#endif
