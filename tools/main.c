/* The table of commands, and nothing else. */
#include "tools/tools.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: not in this version */
    const char *help;
} command;

static const command commands[] = {
    {"train", tm_cmd_train, "fine-tune a model whose parameters and Adam states lie on NVMe"},
    {"plan", tm_cmd_plan, "say what a training run would need and how long a step takes, without starting it"},
    {"probe", tm_cmd_probe, "logits, loss and gradients of a model for given token ids"},
    {"eval", tm_cmd_eval, "loss and perplexity of a model on a data file"},
    {"generate", tm_cmd_generate, "continue a prompt or answer a conversation"},
    {"tokenize", tm_cmd_tokenize, "text to token ids and back, one JSON object per line"},
    {"chat", tm_cmd_chat, "apply a model's chat template to conversations"},
    {"convert", tm_cmd_convert, "GGUF file to Hugging Face folder and back"},
    {"export", tm_cmd_export, "checkpoint to model folder, merging an adapter"},
    {"bench", tm_cmd_bench, "measure disks, devices, Adam, matrix products and steps"},
    {"tune", tm_cmd_tune, "find the fastest I/O settings of a disk"},
    {"inspect", tm_cmd_inspect, "show what a model folder, GGUF or safetensors file holds"},
    {"doctor", tm_cmd_doctor, "check this machine and say what to mend"},
    {"clean", tm_cmd_clean, "remove what dead runs left below an offload path"},
};

static void print_help(FILE *f) {
    fputs("usage: tidemill COMMAND [ARGUMENT]...\n\n"
          "Fine-tunes language models that are larger than memory: parameters and Adam states lie in files.\n\n",
          f);
    for (size_t i = 0; i < TM_COUNT(commands); i++)
        fprintf(f, "  %-10s%s%s\n", commands[i].name, commands[i].help,
                commands[i].run ? "" : " (not in this version yet)");
    fputs("\n'tidemill COMMAND --help' explains one command; 'tidemill --version' prints the version.\n", f);
}

static int unknown_command(const char *name) {
    const char *names[TM_COUNT(commands)];
    for (size_t i = 0; i < TM_COUNT(commands); i++) names[i] = commands[i].name;
    const char *near = tm_cli_suggest(name, names, TM_COUNT(names));
    if (near)
        fprintf(stderr, "tidemill: unknown command '%s'; did you mean '%s'?\n", name, near);
    else
        fprintf(stderr, "tidemill: unknown command '%s'; 'tidemill --help' lists the commands\n", name);
    return TM_EXIT_INPUT;
}

static int run_command(const command *c, int argc, char **argv) {
    if (c->run) return c->run(argc, argv);
    fprintf(stderr, "tidemill: the command '%s' is not in this version yet; 'tidemill --help' lists those that are\n",
            c->name);
    return TM_EXIT_INPUT;
}

/* `tidemill help train` */
static int help_of(const char *name) {
    char *arguments[] = {(char *)(uintptr_t)name, (char *)(uintptr_t) "--help", NULL};
    for (size_t i = 0; i < TM_COUNT(commands); i++)
        if (!strcmp(name, commands[i].name)) return run_command(&commands[i], 2, arguments);
    return unknown_command(name);
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
 * took 2.5 to 4 times as long on a loaded two-core machine. The library reads its setting before main, so the process
 * starts itself once more with it. An explicit setting of the user's stays. */
static void wait_passively(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) (void)execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : NULL;
    /* A file that may not grow (ulimit -f) is an error like a full disk, not the process's sudden end. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)prctl(PR_SET_NAME, "tidemill"); /* restarted by way of /proc/self/exe it would be called "exe" */
    wait_passively(argv); /* returns where it is set already, or where the restart is impossible: slower, not wrong */
    if (tm_stack_need() != TM_OK) return tm_cmd_fail();
    const char *wrong = tm_fault_environment_wrong();
    if (wrong) {
        fprintf(stderr, "tidemill: %s\n", wrong);
        return TM_EXIT_INPUT;
    }
    if (!first) {
        print_help(stderr);
        return TM_EXIT_INPUT;
    }
    if (!strcmp(first, "help") && argc > 2) return flushed(help_of(argv[2]));
    if (!strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help")) {
        print_help(stdout);
        return flushed(TM_EXIT_DONE);
    }
    if (!strcmp(first, "--version") || !strcmp(first, "-V")) {
        puts("tidemill " TIDEMILL_VERSION);
        return flushed(TM_EXIT_DONE);
    }
    for (size_t i = 0; i < TM_COUNT(commands); i++)
        if (!strcmp(first, commands[i].name)) return flushed(run_command(&commands[i], argc - 1, argv + 1));
    return unknown_command(first);
}
