/* tidemill man [COMMAND|config]: the manual pages, from the tables that the program reads its arguments by (roff, man(7)). */
#include "config/config.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

/* Text of a page: what roff would take for itself is escaped. Lines of the text stay lines. */
static void print_text(const char *text) {
    bool begins = true;
    for (const char *c = text; *c; c++) {
        if (begins && (*c == '.' || *c == '\'')) fputs("\\&", stdout);
        begins = *c == '\n';
        if (*c == '\\')
            fputs("\\e", stdout);
        else if (*c == '-')
            fputs("\\-", stdout);
        else
            putchar(*c);
    }
}

static void print_line(const char *text) {
    print_text(text);
    putchar('\n');
}

static void title(const char *name, const char *section) {
    fputs(".TH ", stdout);
    for (const char *c = name; *c; c++) putchar(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    printf(" %s \"\" \"tidemill %s\" \"tidemill\"\n", section, TIDEMILL_VERSION);
}

/* "tidemill-bench-io" */
static void page_name(const char *command, char *out, size_t cap) {
    snprintf(out, cap, "tidemill-%s", command);
    for (char *c = out; *c; c++)
        if (*c == ' ') *c = '-';
}

static void print_options(const tm_cli *cli) {
    if (cli->n_opts || cli->keys) puts(".SH OPTIONS");
    for (size_t i = 0; i < cli->n_opts; i++) {
        const tm_opt *o = &cli->opts[i];
        fputs(".TP\n", stdout);
        if (o->letter)
            printf(".B \\-%c\\fR, ", o->letter), fputs("\\fB", stdout);
        else
            fputs(".B ", stdout);
        print_text("--");
        print_text(o->name);
        if (o->value) fputs(" \\fI", stdout), print_text(o->value), fputs("\\fR", stdout);
        putchar('\n');
        print_text(o->help);
        puts(o->required ? " (required)" : "");
    }
    if (!cli->keys) return;
    puts(".TP\n.B \\-\\-\\fIKEY VALUE\\fR\nany key of the configuration, over what its file says; see\n.BR "
         "tidemill\\-config (5)");
}

typedef struct page {
    const char *wanted; /* NULL: every one */
    const char *summary;
    bool found;
} page;

static void print_page(void *ctx, const char *name, const tm_cli *cli) {
    page *p = ctx;
    char full[64];
    if (p->wanted && strcmp(p->wanted, name) != 0) return;
    p->found = true;
    page_name(name, full, sizeof full);
    title(full, "1");
    puts(".SH NAME");
    print_text(full);
    fputs(" \\- ", stdout);
    print_line(p->summary);
    fputs(".SH SYNOPSIS\n.B tidemill\n", stdout);
    print_line(cli->usage);
    puts(".SH DESCRIPTION");
    print_line(cli->about);
    print_options(cli);
    if (cli->example) {
        puts(".SH EXAMPLES\n.nf");
        print_line(cli->example);
        puts(".fi");
    }
    puts(".SH EXIT STATUS\n0: done; 1: failed while running; 2: bad arguments, configuration or input, nothing was "
         "started; 3: stopped by a "
         "signal, the same command goes on.\n.SH SEE ALSO\n.BR tidemill (1),\n.BR tidemill\\-config (5)");
}

static void print_program(void) {
    const tm_program *p = tm_program_running();
    title(p->name, "1");
    printf(".SH NAME\n%s \\- ", p->name);
    print_line("fine-tunes language models that are larger than memory");
    printf(".SH SYNOPSIS\n.B %s\n.I COMMAND\n[\\fIARGUMENT\\fR]...\n.SH DESCRIPTION\n", p->name);
    print_line(p->about);
    puts(".SH COMMANDS");
    for (size_t i = 0; i < p->n_commands; i++) {
        printf(".TP\n.B %s\n", p->commands[i].name);
        print_line(p->commands[i].help);
    }
    puts("Each has a page of its own, as\n.BR tidemill\\-train (1),\nand\n.B \\-\\-help\\fR.");
}

static void print_config(void) {
    tm_config_key k;
    title("tidemill-config", "5");
    puts(".SH NAME\ntidemill\\-config \\- keys of a configuration of tidemill\n.SH DESCRIPTION");
    print_line("A configuration is a JSON or a YAML file, or its keys given as options. A DeepSpeed configuration is "
               "one as well.");
    puts(".SH KEYS");
    for (size_t i = 0; tm_config_key_at(i, &k); i++) {
        puts(".TP");
        fputs(".B ", stdout);
        print_line(k.path);
        if (k.alias_of) {
            fputs("another name of ", stdout);
            print_line(k.alias_of);
            continue;
        }
        print_text(k.help);
        if (k.choices) {
            fputs("; one of ", stdout);
            for (const char *c = k.choices; *c; c += strcspn(c, "|"), c += *c == '|') {
                char word[64];
                snprintf(word, sizeof word, "%s%.*s", c == k.choices ? "" : ", ", (int)strcspn(c, "=|"), c);
                print_text(word);
            }
        }
        if (k.def) fputs("; default ", stdout), print_text(k.def);
        putchar('\n');
    }
}

static bool print_command(const char *wanted) {
    const tm_program *p = tm_program_running();
    page found = {.wanted = wanted};
    for (size_t i = 0; i < p->n_commands && !found.found; i++) {
        found.summary = p->commands[i].help;
        tm_cli_describe(&p->commands[i], p->commands[i].name, print_page, &found);
    }
    return found.found;
}

static void print_name(void *ctx, const char *name, const tm_cli *cli) {
    (void)ctx, (void)cli;
    puts(name);
}

int tm_cmd_man(int argc, char **argv) {
    const char *word[1];
    bool list = false;
    const tm_opt opts[] = {TM_FLAG("list", &list, "the names of the pages, a line each")};
    const tm_cli cli = {
        .usage = "man [COMMAND|config] [--list]",
        .about = "Prints a manual page: of the program, of a command (\"bench io\" is one), or of all keys of a "
                 "configuration. Installed packages have them already.",
        .example = "tidemill man train | man -l -",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(word, 0, 1)};
    int rc = tm_cli_parse(&cli, argc, argv);
    const tm_program *p = tm_program_running();
    if (rc >= 0) return rc;
    if (list) {
        for (size_t i = 0; i < p->n_commands; i++)
            tm_cli_describe(&p->commands[i], p->commands[i].name, print_name, NULL);
        return TM_EXIT_DONE;
    }
    if (!word[0])
        print_program();
    else if (!strcmp(word[0], "config"))
        print_config();
    else if (!print_command(word[0]))
        return tm_cli_wrong("man", "there is no command '%s'", word[0]);
    return TM_EXIT_DONE;
}
