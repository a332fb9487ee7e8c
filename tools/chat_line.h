/* A line from the terminal: by libedit, with history and editing, where the build has it; else as it comes. */
#ifndef TIDEMILL_CHAT_LINE_H
#define TIDEMILL_CHAT_LINE_H

#include <stdbool.h>

typedef struct chat_line chat_line;
chat_line *chat_line_open(const char *prompt); /* NULL: no memory */
bool chat_line_edits(void);                    /* this build has libedit */
/* Without its end, until the next call. NULL: the end of input, or *interrupted: a signal came instead. */
const char *chat_line_read(chat_line *l, bool *interrupted);
void chat_line_close(chat_line *l);

#endif
