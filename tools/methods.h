/* Ways of training that people name by one word. Each is a template of examples/templates, which `new` writes from and `plan`
 * compares; the files say all of it, and cmake/embed.cmake makes this table of them. */
#ifndef TIDEMILL_TOOLS_METHODS_H
#define TIDEMILL_TOOLS_METHODS_H

#include "base/base.h"

typedef struct tm_method {
    const char *name;
    const char *const *line; /* of its template, up to a NULL; the first is a comment that says what it is */
} tm_method;
extern const tm_method tm_methods[];
extern const size_t tm_method_count;
const tm_method *tm_method_find(const char *name, size_t n); /* NULL: there is none */

/* What of a template is the method: what learns, how, and where; not its data, places, batch or rates. */
enum { TM_METHOD_SETTINGS = 6 };
typedef struct tm_method_settings {
    tm_buf set[TM_METHOD_SETTINGS]; /* "key=value", over all defaults */
    size_t n;
    bool compared; /* in the table of `plan` without one: answers are learned, */
    bool on_gpu;   /* and that on a GPU: where the machine has some */
} tm_method_settings;
/* *out is freed by tm_method_free, after a failure too. */
TM_MUST_USE tm_status tm_method_read(const tm_method *m, tm_method_settings *out);
void tm_method_free(tm_method_settings *s);

/* Do these options ("key=value", with or without dashes) say what learns, or how? */
bool tm_method_is_said(const char *const *set, size_t n);

#endif
