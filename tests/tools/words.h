/* Command lines as people type them, and what is answered: rows of tables. Each runs in a folder of its own. */
#ifndef TESTS_TOOLS_WORDS_H
#define TESTS_TOOLS_WORDS_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

typedef struct words_row {
    const char *line; /* of a shell in the folder: $T the program, $M a tiny model, $D rows, $P pairs, $S the sources */
    int status;       /* of its last command */
    const char *says[5]; /* all of these, in stdout or stderr */
    const char *but;     /* and this not; NULL: nothing */
    int problems;        /* lines that begin with "tidemill" or, of several problems, with two blanks; 0: not counted */
} words_row;

static inline void words_begin(void) {
    static char here[4096], sources[] = TM_TEST_SOURCE;
    assert_int_equal(setenv("T", TM_TEST_BINARY, 1), 0);
    assert_int_equal(setenv("S", sources, 1), 0);
    assert_int_equal(setenv("M", TM_TEST_SOURCE "/examples/tiny", 1), 0);
    assert_int_equal(setenv("D", TM_TEST_SOURCE "/examples/skill/train.jsonl", 1), 0);
    assert_int_equal(setenv("P", TM_TEST_SOURCE "/examples/skill/pairs.jsonl", 1), 0);
    snprintf(here, sizeof here, "words.%d", (int)getpid());
    assert_int_equal(setenv("WORDS", here, 1), 0);
}

/* Both outputs of the row's line into `out`; the folder is gone afterwards. */
static inline int words_run(const char *line, char *out, size_t cap) {
    char command[16384];
    snprintf(command, sizeof command,
             "rm -rf $WORDS && mkdir $WORDS && cd $WORDS && (%s) 2>&1; s=$?; cd ..; rm -rf $WORDS; exit $s", line);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, cap - 1, f);
    out[n] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline int words_problems(const char *out) {
    int n = 0;
    for (const char *at = out; *at; at += strcspn(at, "\n"), at += *at == '\n')
        n += strncmp(at, "tidemill", 8) == 0 || strncmp(at, "  ", 2) == 0;
    return n;
}

static inline void words_check(const words_row *row) {
    static char out[1 << 18];
    int status = words_run(row->line, out, sizeof out);
    if (status != row->status) fail_msg("%s\n  exit %d, not %d: %s", row->line, status, row->status, out);
    for (size_t i = 0; i < TM_COUNT(row->says) && row->says[i]; i++)
        if (!strstr(out, row->says[i])) fail_msg("%s\n  does not say '%s': %s", row->line, row->says[i], out);
    if (row->but && strstr(out, row->but)) fail_msg("%s\n  says '%s': %s", row->line, row->but, out);
    if (row->problems && words_problems(out) != row->problems)
        fail_msg("%s\n  %d lines, not %d: %s", row->line, words_problems(out), row->problems, out);
}

#endif
