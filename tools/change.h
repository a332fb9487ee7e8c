/* A refusal's one change (base/change.h) as a command to paste. */
#ifndef TIDEMILL_TOOLS_CHANGE_H
#define TIDEMILL_TOOLS_CHANGE_H

#include "tools/tools.h"

/* What a command was called with; argv[0] is its name. */
typedef struct tm_cli_line {
    const tm_cli *cli; /* NULL: nothing was read yet */
    int argc;
    char **argv;
} tm_cli_line;

/* Appends the line that was typed, in which `change` ("memory.host_budget=123") takes the place of what was said of that key.
 * False: the command has no such option. */
bool tm_cli_change(tm_buf *b, const tm_cli_line *typed, const char *change);

#endif
