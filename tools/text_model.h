/* text_model: what `tokenize` and `chat` share: a model's tokenizer and chat template, and JSON lines from stdin to
 * stdout.
 *
 *     text_model m;
 *     rc = text_model_open(&m, path, true);
 *     if (rc == TM_OK) rc = text_lines(answer_one, &m);
 *     text_model_close(&m);
 */
#ifndef TIDEMILL_TOOLS_TEXT_MODEL_H
#define TIDEMILL_TOOLS_TEXT_MODEL_H

#include "text/chat/chat.h"

typedef struct text_model {
    tm_tokenizer *tokenizer;
    tm_chat *chat;
} text_model;
/* Reads tokenizer.json, and with `chat` the template, of a folder (which needs nothing else in it) or a .gguf file. */
TM_MUST_USE tm_status text_model_open(text_model *m, const char *path, bool chat);
void text_model_close(text_model *m);

/* Calls `answer` for each line of stdin that is not blank, with the line as a tree; what it writes is printed as one
 * line and flushed. Failures name the line of stdin. */
typedef tm_status (*text_answer_fn)(void *ctx, const tm_json *request, tm_json_writer *w);
TM_MUST_USE tm_status text_lines(text_answer_fn answer, void *ctx);
/* The same, for answers that are no JSON: they are printed as they are. */
typedef tm_status (*text_show_fn)(void *ctx, const tm_json *request, tm_buf *out);
TM_MUST_USE tm_status text_lines_shown(text_show_fn show, void *ctx);
void text_put_ids(tm_json_writer *w, const tm_ids *ids); /* "ids": [...] */

#endif
