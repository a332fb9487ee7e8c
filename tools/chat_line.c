/* A line from the terminal. */
#include "tools/chat_line.h"
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TIDEMILL_LIBEDIT
#include <histedit.h>
#endif

enum { REMEMBERED = 500 };

struct chat_line {
    const char *prompt;
#ifdef TIDEMILL_LIBEDIT
    EditLine *edit;
    History *history;
#endif
    char *text; /* malloc's */
    size_t cap;
};

static char *cut(chat_line *l) {
    l->text[strcspn(l->text, "\r\n")] = 0;
    return l->text;
}

#ifdef TIDEMILL_LIBEDIT
static char *prompt_of(EditLine *edit) {
    chat_line *l = NULL;
    (void)el_get(edit, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

static bool open_editor(chat_line *l) {
    HistEvent e;
    l->edit = el_init("tidemill", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return false;
    (void)el_set(l->edit, EL_CLIENTDATA, l);
    (void)el_set(l->edit, EL_PROMPT, prompt_of);
    (void)el_set(l->edit, EL_EDITOR, "emacs");
    (void)el_set(l->edit, EL_HIST, history, l->history);
    return history(l->history, &e, H_SETSIZE, REMEMBERED) >= 0;
}

static void close_editor(chat_line *l) {
    if (l->edit) el_end(l->edit);
    if (l->history) history_end(l->history);
}

bool chat_line_edits(void) {
    return true;
}

const char *chat_line_read(chat_line *l, bool *interrupted) {
    HistEvent e;
    int n;
    errno = 0;
    const char *line = el_gets(l->edit, &n);
    *interrupted = !line && errno == EINTR;
    if (!line) return NULL;
    free(l->text);
    l->text = strdup(line);
    if (!l->text) return NULL;
    if (strspn(line, " \t\r\n") < strlen(line)) (void)history(l->history, &e, H_ENTER, line);
    return cut(l);
}
#else
static bool open_editor(chat_line *l) {
    (void)l;
    return true;
}

static void close_editor(chat_line *l) {
    (void)l;
}

bool chat_line_edits(void) {
    return false;
}

const char *chat_line_read(chat_line *l, bool *interrupted) {
    printf("%s", l->prompt);
    (void)fflush(stdout);
    errno = 0;
    ssize_t n = getline(&l->text, &l->cap, stdin);
    *interrupted = n < 0 && errno == EINTR;
    if (n < 0) clearerr(stdin);
    return n < 0 ? NULL : cut(l);
}
#endif

chat_line *chat_line_open(const char *prompt) {
    chat_line *l = tm_calloc(1, sizeof *l);
    if (!l) return NULL;
    l->prompt = prompt;
    if (open_editor(l)) return l;
    chat_line_close(l);
    return NULL;
}

void chat_line_close(chat_line *l) {
    if (!l) return;
    close_editor(l);
    free(l->text);
    tm_free(l);
}
