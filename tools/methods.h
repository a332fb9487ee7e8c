/* Ways of training that people name by one word, as `plan --method` compares them. examples/templates has a file for each. */
#ifndef TIDEMILL_TOOLS_METHODS_H
#define TIDEMILL_TOOLS_METHODS_H

#include "base/base.h"

enum { TM_METHOD_SETTINGS = 6 };
typedef struct tm_method {
    const char *name;
    const char *set[TM_METHOD_SETTINGS]; /* key=value, up to a NULL: what is the method, over all defaults */
    bool compared;                       /* in the table of `plan` without one */
} tm_method;
extern const tm_method tm_methods[];
extern const size_t tm_method_count;
const tm_method *tm_method_find(const char *name, size_t n); /* NULL: there is none */

#endif
