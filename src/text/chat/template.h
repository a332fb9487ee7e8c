/* template: text with {{ expressions }}, in the dialect of chat templates (README.md), over the members of an object.
 *
 * As lm-evaluation-harness prints its prompts: what is not there is an error and not nothing, no white space goes but where
 * a tag says so, and a newline at the end stays. Bounded as a chat template's run is.
 *
 *     TM_TRY(tm_template_open(&t, "Question: {{question}}\nAnswer:", 31, "TASK.json: doc_to_text"));
 *     rc = tm_template_print(t, row, &text); // row: {"question": "How many?"}
 *     tm_template_close(t);
 */
#ifndef TIDEMILL_TEMPLATE_H
#define TIDEMILL_TEMPLATE_H

#include "base/base.h"

typedef struct tm_template tm_template;
/* TM_EINPUT: it is no template; TM_EUNSUPPORTED: it has what the dialect has not. `name`: for messages, copied. */
TM_MUST_USE tm_status tm_template_open(tm_template **out, const char *text, size_t len, const char *name);
void tm_template_close(tm_template *t); /* NULL is fine */
/* Appends what it prints over `variables`, an object. TM_EINPUT: a name that is not there, or the template's own words. */
TM_MUST_USE tm_status tm_template_print(const tm_template *t, const tm_json *variables, tm_buf *out);
/* Where it is one {{ expression }} and nothing beside it: appends its value as JSON; else what it prints, as a string. */
TM_MUST_USE tm_status tm_template_value(const tm_template *t, const tm_json *variables, tm_buf *json);

#endif
