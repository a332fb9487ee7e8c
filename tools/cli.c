/* Options of a command: one table gives parsing, messages and help. Not getopt_long: it takes abbreviations, which
 * change meaning whenever an option is added, and does not say which argument it refused. */
#include "tools/tools.h"
#include "base/change.h"
#include "config/config.h"
#include "tools/change.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_OPTS = 48, MAX_WORD = 64 };

const char *tm_cli_program = "tidemill";

int tm_exit_status(tm_status code) {
    switch (code) {
    case TM_OK:
        return TM_EXIT_DONE;
    case TM_EINPUT:
    case TM_EUNSUPPORTED:
    case TM_EBUDGET:
        return TM_EXIT_INPUT;
    default:
        return TM_EXIT_FAILED;
    }
}

static tm_cli_line typed; /* of the command that runs */

int tm_cmd_fail(void) {
    const tm_error *e = tm_error_get();
    if (e->code == TM_OK) {
        tm_say("tidemill: failed without saying why; this is a bug, please report it with the command line\n");
        return TM_EXIT_FAILED;
    }
    tm_buf line = {0};
    if (tm_cli_change(&line, &typed, tm_change_advised()))
        tm_say("tidemill: %s; to paste: %s\n", e->text, line.data);
    else
        tm_say("tidemill: %s\n", e->text);
    tm_buf_free(&line);
    return tm_exit_status(e->code);
}

int tm_cli_wrong(const char *command, const char *format, ...) {
    va_list args;
    fprintf(stderr, "%s %s: ", tm_cli_program, command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; try '%s %s --help'\n", tm_cli_program, command);
    return TM_EXIT_INPUT;
}

const char *tm_cli_suggest(const char *word, const void *rows, size_t n, size_t row_bytes) {
    size_t limit = strlen(word) / 3 + 1, best = SIZE_MAX;
    const char *near = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *name = *(const char *const *)(const void *)((const char *)rows + i * row_bytes);
        size_t d = tm_edit_distance(word, name);
        if (d < best) best = d, near = name;
    }
    return best <= limit ? near : NULL;
}

static void print_example(const char *line) {
    puts("\nexample:");
    for (size_t n; *line; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        printf("  %.*s\n", (int)n, line);
    }
}

static void print_help(const tm_cli *cli) {
    printf("usage: %s %s\n\n%s\n", tm_cli_program, cli->usage, cli->about);
    if (cli->n_opts) puts("\noptions:");
    for (size_t i = 0; i < cli->n_opts; i++) {
        const tm_opt *o = &cli->opts[i];
        char letter[8] = "";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        int width = printf("  %s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("%*s%s%s\n", width < 28 ? 28 - width : 1, "", o->help, o->required ? " (required)" : "");
    }
    if (cli->keys)
        printf("  --KEY VALUE               any key of the configuration, over what its file says: --lora_rank 8, "
               "--dataset a b,\n%28s--memory.host_budget 2GiB; '%s train --keys' lists them\n",
               "", tm_cli_program);
    if (cli->example) print_example(cli->example);
}

/* "--" + up to '=' of an argument, for messages and suggestions. */
static const char *option_word(const char *argument, char *out, size_t cap) {
    size_t n = strcspn(argument, "=");
    if (n >= cap) n = cap - 1;
    memcpy(out, argument, n);
    out[n] = 0;
    return out;
}

static const tm_opt *find_option(const tm_cli *cli, const char *word, size_t n) {
    for (size_t i = 0; i < cli->n_opts; i++)
        if (strlen(cli->opts[i].name) == n && !memcmp(cli->opts[i].name, word, n)) return &cli->opts[i];
    return NULL;
}

/* "-c" */
static const tm_opt *find_letter(const tm_cli *cli, const char *argument) {
    for (size_t i = 0; i < cli->n_opts; i++)
        if (cli->opts[i].letter && cli->opts[i].letter == argument[1] && !argument[2]) return &cli->opts[i];
    return NULL;
}

static int unknown_option(const tm_cli *cli, const char *command, const char *argument) {
    char word[MAX_WORD];
    if (strncmp(argument, "--", 2) != 0)
        return tm_cli_wrong(command, "unknown option '%s': options are written out, as --name", argument);
    option_word(argument + 2, word, sizeof word);
    const char *near = tm_cli_suggest(word, cli->opts, cli->n_opts, sizeof *cli->opts);
    if (!near && cli->keys && tm_config_hint(word))
        return tm_cli_wrong(command, "unknown option '--%s': %s", word, tm_config_hint(word));
    if (!near && cli->keys) near = tm_config_suggest(word);
    if (near) return tm_cli_wrong(command, "unknown option '--%s'; did you mean '--%s'?", word, near);
    return tm_cli_wrong(command, "unknown option '--%s'", word);
}

/* ---- keys of the configuration as options -------------------------------------------------------------------------- */

/* What was put together of several arguments; as long as the process lives. */
typedef struct made {
    struct made *next;
    tm_buf text;
} made;
static made *all_made;

static const char *keep(tm_buf *text) {
    made *m = tm_malloc(sizeof *m);
    if (!m) return NULL;
    *m = (made){.next = all_made, .text = *text};
    all_made = m;
    return m->text.data;
}

/* argv[*at] as a key: -1, or the exit status after the error line. */
static int take_key(const tm_cli *cli, int argc, char **argv, int *at) {
    tm_buf text = {0};
    bool is_key;
    tm_status rc = tm_config_option(argc, (const char *const *)argv, at, &text, &is_key);
    if (rc == TM_OK && !is_key) return unknown_option(cli, argv[0], argv[*at]);
    const char *assignment = rc == TM_OK ? keep(&text) : NULL;
    if (rc == TM_OK && !assignment) rc = tm_nomem(sizeof(made));
    if (rc != TM_OK) {
        tm_buf_free(&text);
        if (rc != TM_EINPUT) return tm_cmd_fail();
        int status = tm_cli_wrong(argv[0], "%s", tm_error_get()->text);
        tm_error_clear();
        return status;
    }
    if (cli->keys->count == cli->keys->cap)
        return tm_cli_wrong(argv[0], "more than %zu keys; write a configuration file", cli->keys->cap);
    cli->keys->value[cli->keys->count++] = assignment;
    return -1;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int tm_cli_config(const char *command, const char **option, const char *word, const tm_opt_list *keys) {
    if (*option && word)
        return tm_cli_wrong(command, "two configurations, '%s' and '%s'; give one, and the rest as --key value",
                            *option, word);
    if (word && (tm_ends_with(word, ".gguf") || is_folder(word)))
        return tm_cli_wrong(command, "%s is no configuration; a model is --model %s", word, word);
    if (word) *option = word;
    if (*option || keys->count) return -1;
    return tm_cli_wrong(command,
                        "a configuration is missing: a file, or its keys as options, as in '%s %s --model "
                        "DIR --dataset FILE'",
                        tm_cli_program, command);
}

/* ---- one option ---------------------------------------------------------------------------------------------------- */

static int set_size(const tm_opt *o, const char *command, const char *value) {
    if (!strcmp(value, "unlimited")) {
        *(uint64_t *)o->into = UINT64_MAX;
        return -1;
    }
    if (tm_parse_size(value, (uint64_t *)o->into) == TM_OK) return -1;
    tm_error_clear();
    return tm_cli_wrong(command, "--%s is a size such as 512MiB or 3GiB, not '%s'", o->name, value);
}

static int set_number(const tm_opt *o, const char *command, const char *value) {
    char *end = NULL;
    bool good;
    errno = 0;
    if (o->kind == TM_OPT_INT) {
        int64_t v = strtoll(value, &end, 10);
        good = end != value && !*end && !errno;
        if (good) *(int64_t *)o->into = v;
    } else {
        double v = strtod(value, &end);
        good = end != value && !*end && isfinite(v);
        if (good) *(double *)o->into = v;
    }
    if (good) return -1;
    return tm_cli_wrong(command, "--%s is %s, not '%s'", o->name, o->kind == TM_OPT_INT ? "a whole number" : "a number",
                        value);
}

static int set_option(const tm_opt *o, const char *command, const char *value) {
    tm_opt_list *list;
    switch (o->kind) {
    case TM_OPT_FLAG:
        *(bool *)o->into = true;
        return -1;
    case TM_OPT_STRING:
        *(const char **)o->into = value;
        return -1;
    case TM_OPT_SIZE:
        return set_size(o, command, value);
    case TM_OPT_INT:
    case TM_OPT_DOUBLE:
        return set_number(o, command, value);
    case TM_OPT_LIST:
        break;
    }
    list = o->into;
    if (list->count == list->cap)
        return tm_cli_wrong(command, "--%s was given more than %zu times", o->name, list->cap);
    list->value[list->count++] = value;
    return -1;
}

static int missing_required(const tm_cli *cli, const bool *seen, const char *command) {
    for (size_t i = 0; i < cli->n_opts; i++)
        if (cli->opts[i].required && !seen[i])
            return tm_cli_wrong(command, "--%s %s is missing", cli->opts[i].name, cli->opts[i].value);
    return -1;
}

static int check_positionals(const tm_cli *cli, const char *command, int n) {
    if (n >= cli->min_positional) return -1;
    return tm_cli_wrong(command, "%s: '%s %s'", n ? "an argument is missing" : "arguments are missing", tm_cli_program,
                        cli->usage);
}

int tm_cli_count(const tm_cli *cli) {
    int n = 0;
    while (n < cli->max_positional && cli->positional[n]) n++;
    return n;
}

/* argv[*at] is "--name", "--name=value" or "-n"; *at moves on past a value that stands apart. */
static int take_option(const tm_cli *cli, int argc, char **argv, int *at, bool *seen) {
    const char *argument = argv[*at], *name = argument + 2;
    size_t n = strcspn(name, "=");
    const char *value = name[n] == '=' ? name + n + 1 : NULL;
    const tm_opt *o = argument[1] == '-' ? find_option(cli, name, n) : find_letter(cli, argument);
    if (!o && cli->keys && argument[1] == '-') return take_key(cli, argc, argv, at);
    if (!o) return unknown_option(cli, argv[0], argument);
    if (argument[1] != '-') value = NULL;
    if (o->kind == TM_OPT_FLAG && value) return tm_cli_wrong(argv[0], "--%s takes no value", o->name);
    if (o->kind != TM_OPT_FLAG && !value) {
        if (*at + 1 >= argc) return tm_cli_wrong(argv[0], "--%s needs a value, %s", o->name, o->value);
        value = argv[++*at];
    }
    seen[o - cli->opts] = true;
    return set_option(o, argv[0], value);
}

static tm_cli_told *listener;
static void *listener_ctx;

bool tm_cli_describing(void) {
    return listener != NULL;
}

void tm_cli_describe(const tm_command *c, const char *name, tm_cli_told *told, void *ctx) {
    char *argv[] = {(char *)(uintptr_t)name, NULL};
    if (!c->run) return;
    listener = told;
    listener_ctx = ctx;
    (void)c->run(1, argv);
    listener = NULL;
}

/* Where no model has been named yet, it may be meant. */
static int unexpected(const tm_cli *cli, const char *command, const char *word, const bool *seen) {
    bool model = false;
    for (size_t i = 0; i < cli->n_opts; i++) model |= !strcmp(cli->opts[i].name, "model") && !seen[i];
    struct stat st;
    model = model && stat(word, &st) == 0;
    return tm_cli_wrong(command, "unexpected argument '%s'%s%s", word, model ? "; a model is named so: --model " : "",
                        model ? word : "");
}

int tm_cli_parse(const tm_cli *cli, int argc, char **argv) {
    bool seen[MAX_OPTS] = {false}, only_positionals = false;
    int n = 0, rc = -1;
    if (listener) {
        listener(listener_ctx, argv[0], cli);
        return TM_EXIT_DONE;
    }
    TM_ASSERT(cli->n_opts <= MAX_OPTS);
    typed = (tm_cli_line){cli, argc, argv};
    for (int i = 0; i < cli->max_positional; i++) cli->positional[i] = NULL;
    for (int i = 1; i < argc && rc < 0; i++) {
        if (only_positionals || argv[i][0] != '-' || !argv[i][1]) { /* "-" alone is a name: stdin, stdout */
            if (n == cli->max_positional) return unexpected(cli, argv[0], argv[i], seen);
            cli->positional[n++] = argv[i];
        } else if (!strcmp(argv[i], "--")) {
            only_positionals = true;
        } else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            print_help(cli);
            return TM_EXIT_DONE;
        } else {
            rc = take_option(cli, argc, argv, &i, seen);
        }
    }
    if (rc < 0) rc = missing_required(cli, seen, argv[0]);
    return rc >= 0 ? rc : check_positionals(cli, argv[0], n);
}

void tm_cli_json(tm_json_writer *w, int indent) {
    static tm_buf out;
    tm_jw_init(w, &out, indent);
    tm_jw_object(w);
}

tm_status tm_cli_print_json(tm_json_writer *w) {
    tm_jw_object_end(w);
    tm_status rc = tm_jw_end(w);
    if (rc == TM_OK) puts(w->out->data);
    tm_buf_free(w->out);
    return rc;
}
