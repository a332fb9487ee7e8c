/* A line from the terminal. */
#include "tools/chat_line.h"
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TIDEMILL_LIBEDIT
#include <dlfcn.h>
#include <histedit.h>
#endif

enum { REMEMBERED = 500 };

struct chat_line {
    const char *prompt;
#ifdef TIDEMILL_LIBEDIT
    EditLine *edit; /* NULL: lines are read as they come */
    History *history;
#endif
    char *text; /* malloc's */
    size_t cap;
};

static char *cut(chat_line *l) {
    l->text[strcspn(l->text, "\r\n")] = 0;
    return l->text;
}

static char *read_plain(chat_line *l, bool *interrupted) {
    printf("%s", l->prompt);
    (void)fflush(stdout);
    errno = 0;
    ssize_t n = getline(&l->text, &l->cap, stdin);
    *interrupted = n < 0 && errno == EINTR;
    if (n < 0) clearerr(stdin);
    return n < 0 ? NULL : cut(l);
}

#ifdef TIDEMILL_LIBEDIT
/* libedit, loaded for a conversation: with what it needs in its turn it would take a part of a MiB of every process. */
static struct {
    __typeof__(&el_init) init;
    __typeof__(&el_end) end;
    __typeof__(&el_get) get;
    __typeof__(&el_set) set;
    __typeof__(&el_gets) gets;
    __typeof__(&history_init) history_init;
    __typeof__(&history_end) history_end;
    __typeof__(&history) history;
} lib;

/* A function's address as dlsym has it. */
static bool find(void *library, const char *name, void *into) {
    void *found = dlsym(library, name);
    memcpy(into, &found, sizeof found);
    return found != NULL;
}

static bool load(void) {
    static int known; /* 0: not tried; 1: it is there; -1: not */
    if (known) return known > 0;
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    bool whole = library && find(library, "el_init", &lib.init) && find(library, "el_end", &lib.end) &&
                 find(library, "el_get", &lib.get) && find(library, "el_set", &lib.set) &&
                 find(library, "el_gets", &lib.gets) && find(library, "history_init", &lib.history_init) &&
                 find(library, "history_end", &lib.history_end) && find(library, "history", &lib.history);
    known = whole ? 1 : -1;
    return whole;
}

static char *prompt_of(EditLine *edit) {
    chat_line *l = NULL;
    (void)lib.get(edit, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

static bool open_editor(chat_line *l) {
    HistEvent e;
    if (!load()) return true;
    l->edit = lib.init("tidemill", stdin, stdout, stderr);
    l->history = lib.history_init();
    if (!l->edit || !l->history) return false;
    (void)lib.set(l->edit, EL_CLIENTDATA, l);
    (void)lib.set(l->edit, EL_PROMPT, prompt_of);
    (void)lib.set(l->edit, EL_EDITOR, "emacs");
    /* Ctrl-D that came while an answer did is read as a zero, which a terminal without lnext would have quote what is next. */
    (void)lib.set(l->edit, EL_BIND, "^@", "em-delete-or-list", NULL);
    (void)lib.set(l->edit, EL_HIST, lib.history, l->history);
    return lib.history(l->history, &e, H_SETSIZE, REMEMBERED) >= 0;
}

static void close_editor(chat_line *l) {
    if (l->edit) lib.end(l->edit);
    if (l->history) lib.history_end(l->history);
}

bool chat_line_edits(void) {
    return load();
}

static const char *read_edited(chat_line *l, bool *interrupted) {
    HistEvent e;
    int n;
    errno = 0;
    const char *line = lib.gets(l->edit, &n);
    *interrupted = !line && errno == EINTR;
    if (!line) return NULL;
    free(l->text);
    l->text = strdup(line);
    if (!l->text) return NULL;
    if (strspn(line, " \t\r\n") < strlen(line)) (void)lib.history(l->history, &e, H_ENTER, line);
    return cut(l);
}

const char *chat_line_read(chat_line *l, bool *interrupted) {
    return l->edit ? read_edited(l, interrupted) : read_plain(l, interrupted);
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
    return read_plain(l, interrupted);
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
