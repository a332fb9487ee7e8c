/* A refusal's one change as a command to paste: the line that was typed, with another value. */
#include "tools/change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 96 };

/* "--memory.host-budget=1" and "memory.host_budget=1" are "host_budget". */
static void last_name(const char *argument, char out[WORD]) {
    size_t dashes = strspn(argument, "-"), n = strcspn(argument + dashes, "=");
    const char *name = argument + dashes, *end = name + n;
    for (const char *c = name; c < end; c++)
        if (*c == '.') name = c + 1;
    snprintf(out, WORD, "%.*s", (int)(end - name), name);
    for (char *c = out; *c; c++)
        if (*c == '-') *c = '_';
}

/* How many arguments from `at` on say the key that is changed; 0: they say something else. */
static int says(const char *name, int argc, char *const *argv, int at) {
    char word[WORD];
    const char *argument = argv[at];
    bool apart = !strchr(argument, '=');
    if (argument[0] != '-') return 0;
    last_name(argument, word);
    if (!strcmp(word, "set")) {
        if (apart && at + 1 >= argc) return 0;
        last_name(apart ? argv[at + 1] : strchr(argument, '=') + 1, word);
    }
    return strcmp(word, name) != 0 ? 0 : apart && at + 1 < argc ? 2 : 1;
}

static const char *with_dashes(const char *name, char out[WORD]) {
    snprintf(out, WORD, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = '-';
    return out;
}

static tm_status put_word(tm_buf *b, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%#";
    if (*word && strspn(word, plain) == strlen(word)) return tm_buf_printf(b, " %s", word);
    TM_TRY(tm_buf_printf(b, " '"));
    for (const char *c = word; *c; c++) TM_TRY(*c == '\'' ? tm_buf_printf(b, "'\\''") : tm_buf_append(b, c, 1));
    return tm_buf_printf(b, "'");
}

static bool has_option(const tm_cli *cli, const char *name) {
    for (size_t i = 0; i < cli->n_opts; i++)
        if (!strcmp(cli->opts[i].name, name)) return true;
    return false;
}

/* Budgets in whole MiB, none less than what is needed. */
static tm_status put_change(tm_buf *b, const tm_cli *cli, const char *change, const char *name) {
    char option[WORD];
    const char *value = strchr(change, '=') + 1;
    bool budget = tm_ends_with(name, "_budget");
    if (has_option(cli, with_dashes(name, option)))
        TM_TRY(tm_buf_printf(b, " --%s ", option));
    else
        TM_TRY(tm_buf_printf(b, " --%.*s ", (int)(value - 1 - change), change));
    if (budget) return tm_buf_printf(b, "%lluMiB", (strtoull(value, NULL, 10) + TM_MIB - 1) / TM_MIB);
    return tm_buf_printf(b, "%s", value);
}

static tm_status put_command(tm_buf *b, const tm_cli_line *typed, const char *change) {
    char name[WORD];
    const char *ranks = getenv("OMPI_COMM_WORLD_SIZE");
    last_name(change, name);
    if (ranks && strspn(ranks, "0123456789") == strlen(ranks) && strcmp(ranks, "1") != 0)
        TM_TRY(tm_buf_printf(b, "mpirun -n %s ", ranks));
    TM_TRY(tm_buf_printf(b, "%s %s", tm_cli_program, typed->argv[0]));
    for (int i = 1; i < typed->argc; i++) {
        int skip = says(name, typed->argc, typed->argv, i);
        if (skip)
            i += skip - 1;
        else
            TM_TRY(put_word(b, typed->argv[i]));
    }
    return put_change(b, typed->cli, change, name);
}

bool tm_cli_change(tm_buf *b, const tm_cli_line *typed, const char *change) {
    char name[WORD], option[WORD];
    if (!typed->cli || !strchr(change, '=')) return false;
    last_name(change, name);
    if (!typed->cli->keys && !has_option(typed->cli, with_dashes(name, option))) return false;
    return put_command(b, typed, change) == TM_OK;
}
