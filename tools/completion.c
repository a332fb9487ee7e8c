/* tidemill completion SHELL: from the tables that the program reads its arguments by. */
#include "config/config.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

/* ---- what shells are told ------------------------------------------------------------------------------------------ */

/* Words of a choice, the first of each that says the same. */
static void print_choices(const char *choices) {
    for (const char *c = choices; *c; c += strcspn(c, "|"), c += *c == '|')
        printf("%s%.*s", c == choices ? "" : " ", (int)strcspn(c, "=|"), c);
}

/* Keys that mean something here, other names among them. */
static bool next_key(size_t *i, tm_config_key *k) {
    while (tm_config_key_at((*i)++, k))
        if (k->counts) return true;
    return false;
}

static const char *choices_of(const tm_config_key *k) {
    tm_config_key other;
    if (!k->alias_of) return k->choices;
    for (size_t i = 0; tm_config_key_at(i, &other); i++)
        if (!other.alias_of && strcmp(other.path, k->alias_of) == 0) return other.choices;
    return NULL;
}

static void each_command(tm_cli_told *told, void *ctx) {
    const tm_program *p = tm_program_running();
    for (size_t i = 0; i < p->n_commands; i++) tm_cli_describe(&p->commands[i], p->commands[i].name, told, ctx);
}

/* Within single quotes of a shell, and brackets and colons of zsh. */
static void print_quoted(const char *text, const char *escaped) {
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", stdout);
        else if (strchr(escaped, *c))
            printf("\\%c", *c);
        else
            putchar(*c);
    }
}

/* ---- bash ---------------------------------------------------------------------------------------------------------- */

static void bash_case(void *ctx, const char *name, const tm_cli *cli) {
    (void)ctx;
    printf("    '%s') words='--help", name);
    for (size_t i = 0; i < cli->n_opts; i++) printf(" --%s", cli->opts[i].name);
    printf("'%s ;;\n", cli->keys ? "; keys=1" : "");
}

/* "io" of "bench io" */
static void second_word(void *ctx, const char *name, const tm_cli *cli) {
    (void)ctx, (void)cli;
    const char *second = strchr(name, ' ');
    if (second) fputs(second, stdout);
}

static void bash(void) {
    tm_config_key k;
    size_t i;
    const tm_program *p = tm_program_running();
    puts("# bash completion of tidemill, made by `tidemill completion bash`\n"
         "_tidemill() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words= "
         "keys=\n"
         "    COMPREPLY=()\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    fputs("        COMPREPLY=($(compgen -W '--help --version", stdout);
    for (i = 0; i < p->n_commands; i++) printf(" %s", p->commands[i].name);
    puts("' -- \"$cur\")); return\n    fi\n"
         "    case $command in bench) command=\"$command ${COMP_WORDS[2]}\" ;; esac\n"
         "    case $command in");
    each_command(bash_case, NULL);
    fputs("    'bench '*) words='", stdout);
    each_command(second_word, NULL);
    puts("' ;;\n    esac\n"
         "    if [ -n \"$keys\" ]; then\n        case $prev in");
    for (i = 0; next_key(&i, &k);) {
        if (!choices_of(&k)) continue;
        printf("        --%s) COMPREPLY=($(compgen -W '", k.path);
        print_choices(choices_of(&k));
        puts("' -- \"$cur\")); return ;;");
    }
    fputs("        esac\n        words=\"$words", stdout);
    for (i = 0; next_key(&i, &k);) printf(" --%s", k.path);
    puts("\"\n    fi\n"
         "    case $cur in\n"
         "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
         "    *) case $command in 'bench '*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;; esac\n"
         "       COMPREPLY+=($(compgen -f -- \"$cur\")) ;;\n"
         "    esac\n}\ncomplete -o filenames -F _tidemill tidemill");
}

/* ---- zsh ----------------------------------------------------------------------------------------------------------- */

static void zsh_case(void *ctx, const char *name, const tm_cli *cli) {
    (void)ctx;
    printf("    '%s') options=('--help[explain the command]'", name);
    for (size_t i = 0; i < cli->n_opts; i++) {
        const tm_opt *o = &cli->opts[i];
        printf(" '%s--%s%s[", o->kind == TM_OPT_LIST ? "*" : "", o->name, o->kind == TM_OPT_FLAG ? "" : "=");
        print_quoted(o->help, "[]:\\");
        printf("]%s%s%s'", o->value ? ":" : "", o->value ? o->value : "", o->value ? ":_files" : "");
    }
    printf(")%s ;;\n", cli->keys ? "; keys=1" : "");
}

static void zsh(void) {
    tm_config_key k;
    const tm_program *p = tm_program_running();
    puts("#compdef tidemill\n# zsh completion of tidemill, made by `tidemill completion zsh`\n_tidemill() {\n"
         "    local -a commands options\n    local keys command\n    commands=(");
    for (size_t i = 0; i < p->n_commands; i++) {
        printf("        '%s:", p->commands[i].name);
        print_quoted(p->commands[i].help, ":\\");
        puts("'");
    }
    puts("    )\n    if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
         "    command=$words[2]\n    case $command in bench) command=\"$command $words[3]\" ;; esac\n"
         "    case $command in");
    each_command(zsh_case, NULL);
    puts("    esac\n    if [[ -n $keys ]]; then options+=(");
    for (size_t i = 0; next_key(&i, &k);) {
        printf("        '--%s=[", k.path);
        print_quoted(k.alias_of ? k.alias_of : k.help, "[]:\\");
        printf("]:value:");
        if (choices_of(&k)) {
            putchar('(');
            print_choices(choices_of(&k));
            puts(")'");
        } else {
            puts("_files'");
        }
    }
    puts("    ); fi\n    _arguments -s $options '*:file:_files'\n}\n_tidemill \"$@\"");
}

/* ---- fish ---------------------------------------------------------------------------------------------------------- */

static void fish_case(void *ctx, const char *name, const tm_cli *cli) {
    char first[32];
    tm_config_key k;
    (void)ctx;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(name, " "), name);
    const char *second = strchr(name, ' ');
    char when[128];
    snprintf(when, sizeof when, "__fish_seen_subcommand_from %s%s%s", first,
             second ? "; and __fish_seen_subcommand_from" : "", second ? second : "");
    for (size_t i = 0; i < cli->n_opts; i++) {
        printf("complete -c tidemill -n '%s' -l %s %s-d '", when, cli->opts[i].name,
               cli->opts[i].kind == TM_OPT_FLAG ? "" : "-r ");
        print_quoted(cli->opts[i].help, "");
        puts("'");
    }
    for (size_t i = 0; cli->keys && next_key(&i, &k);) {
        const char *choices = choices_of(&k);
        printf("complete -c tidemill -n '%s' -l %s -r ", when, k.path);
        if (choices) fputs("-f -a '", stdout), print_choices(choices), fputs("' ", stdout);
        fputs("-d '", stdout);
        print_quoted(k.alias_of ? k.alias_of : k.help, "");
        puts("'");
    }
}

static void fish(void) {
    const tm_program *p = tm_program_running();
    puts("# fish completion of tidemill, made by `tidemill completion fish`");
    for (size_t i = 0; i < p->n_commands; i++) {
        printf("complete -c tidemill -n __fish_use_subcommand -f -a %s -d '", p->commands[i].name);
        print_quoted(p->commands[i].help, "");
        puts("'");
    }
    each_command(fish_case, NULL);
}

int tm_cmd_completion(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    const char *shell[1];
    const tm_cli cli = {
        .usage = "completion bash|zsh|fish",
        .about = "Prints what the shell needs to complete commands, options, keys of the configuration and their "
                 "values. Installed packages have it already.",
        .example = "source <(tidemill completion bash)\ntidemill completion fish > "
                   "~/.config/fish/completions/tidemill.fish",
        TM_CLI_WORDS(shell, 1, 1)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    for (size_t i = 0; i < TM_COUNT(shells); i++) {
        if (strcmp(shell[0], shells[i].name) != 0) continue;
        shells[i].print();
        return TM_EXIT_DONE;
    }
    return tm_cli_wrong("completion", "'%s' is none of bash, zsh and fish", shell[0]);
}
