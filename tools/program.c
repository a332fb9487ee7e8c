/* What a program of commands does before and after it calls one: help, version, unknown commands, the exit status. */
#include "tools/tools.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void print_help(const tm_program *p, FILE *f) {
    fprintf(f, "usage: %s COMMAND [ARGUMENT]...\n\n%s\n\n", p->name, p->about);
    for (size_t i = 0; i < p->n_commands; i++)
        fprintf(f, "  %-12s%s%s\n", p->commands[i].name, p->commands[i].help,
                p->commands[i].run ? "" : " (not in this version yet)");
    fprintf(f, "\n'%s help COMMAND' explains one command%s; '%s --version' prints the version.\n", p->name,
            p->help ? ", 'help terms' every word" : "", p->name);
}

static int unknown_command(const tm_program *p, const char *name) {
    for (const char *const(*o)[2] = p->others; o && (*o)[0]; o++)
        if (!strcmp((*o)[0], name)) {
            fprintf(stderr, "%s: unknown command '%s'; here it is: %s\n", p->name, name, (*o)[1]);
            return TM_EXIT_INPUT;
        }
    const char *near = tm_cli_suggest(name, p->commands, p->n_commands, sizeof *p->commands);
    if (near)
        fprintf(stderr, "%s: unknown command '%s'; did you mean '%s'?\n", p->name, name, near);
    else
        fprintf(stderr, "%s: unknown command '%s'; '%s --help' lists the commands\n", p->name, name, p->name);
    return TM_EXIT_INPUT;
}

static int run_command(const tm_program *p, const char *name, int argc, char **argv) {
    const tm_command *c = NULL;
    for (size_t i = 0; i < p->n_commands; i++)
        if (!strcmp(name, p->commands[i].name)) c = &p->commands[i];
    if (!c) return unknown_command(p, name);
    if (c->run) return c->run(argc, argv);
    fprintf(stderr, "%s: the command '%s' is not in this version yet; '%s --help' lists those that are\n", p->name,
            name, p->name);
    return TM_EXIT_INPUT;
}

/* `tidemill help train`, `tidemill help terms` */
static int help_of(const tm_program *p, int argc, char **argv) {
    char *arguments[] = {argv[0], (char *)(uintptr_t) "--help", NULL};
    if (p->help && p->help(argc, argv)) return TM_EXIT_DONE;
    return run_command(p, argv[0], 2, arguments);
}

static int print_version(const tm_program *p, bool json) {
    tm_json_writer w;
    if (!json) {
        printf("%s %s\n", p->name, TIDEMILL_VERSION);
        return TM_EXIT_DONE;
    }
    tm_cli_json(&w, 2);
    tm_jw_field_str(&w, "version", TIDEMILL_VERSION);
    tm_jw_field_str(&w, "compiler", __VERSION__);
    tm_status rc = p->version ? p->version(&w) : TM_OK;
    if (rc == TM_OK) rc = tm_cli_print_json(&w);
    return rc == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

/* Results that did not reach stdout (a full disk, a closed pipe) must not look like success. Where nobody reads any more
 * there is nobody to tell. */
static int flushed(int status) {
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (!failed || status != TM_EXIT_DONE) return status;
    if (tm_stop_signal() == SIGPIPE) return TM_EXIT_FAILED;
    fputs("tidemill: the output could not be written; is the disk full or the pipe closed?\n", stderr);
    return TM_EXIT_FAILED;
}

/* OpenMP teams spin at barriers by default, against each other and the disk thread where cores are few or shared: steps
 * took 2.5 to 4 times as long on a loaded two-core machine. But a token is some 300 kernels of 10 to 100 microseconds,
 * between which sleeping costs as much again: there they spin for a fraction of a millisecond. The library reads its
 * setting before main, so the process starts itself once more with it. An explicit setting of the user's stays. */
static void set_waiting(const tm_program *p, int argc, char **argv) {
    char words[64];
    bool awake = false;
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    snprintf(words, sizeof words, "%s %s", argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    for (size_t i = 0; i < p->n_awake; i++) {
        size_t n = strlen(p->awake[i]);
        awake |= strncmp(words, p->awake[i], n) == 0 && (words[n] == ' ' || words[n] == 0);
    }
    int failed = awake ? setenv("GOMP_SPINCOUNT", "4000", 1) : setenv("OMP_WAIT_POLICY", "passive", 1);
    if (!failed) (void)execv("/proc/self/exe", argv);
}

static const tm_program *running;

const tm_program *tm_program_running(void) {
    return running;
}

int tm_program_run(const tm_program *p, int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : NULL;
    running = p;
    tm_cli_program = p->name;
    /* A file that may not grow (ulimit -f) is an error like a full disk, not the process's sudden end. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)prctl(PR_SET_NAME, p->name); /* restarted by way of /proc/self/exe it would be called "exe" */
    set_waiting(p, argc,
                argv); /* returns where it is set already, or where the restart is impossible: slower, not wrong */
    if (tm_stack_need() != TM_OK) return tm_cmd_fail();
    const char *wrong = tm_fault_environment_wrong();
    if (wrong) {
        fprintf(stderr, "tidemill: %s\n", wrong);
        return TM_EXIT_INPUT;
    }
    if (!first) {
        print_help(p, stderr);
        return TM_EXIT_INPUT;
    }
    if (!strcmp(first, "help") && argc > 2) return flushed(help_of(p, argc - 2, argv + 2));
    if (!strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help")) {
        print_help(p, stdout);
        return flushed(TM_EXIT_DONE);
    }
    if (!strcmp(first, "--version") || !strcmp(first, "-V")) {
        if (argc > 2 && (argc > 3 || strcmp(argv[2], "--json") != 0))
            return tm_cli_wrong("--version", "unexpected argument '%s'; there is --json", argv[argc > 3 ? 3 : 2]);
        return flushed(print_version(p, argc > 2));
    }
    return flushed(run_command(p, first, argc - 1, argv + 1));
}
