/* tools: the commands of `tidemill`, one file each, and what they share.
 *
 * A command is `int tm_cmd_<name>(int argc, char **argv)` with argv[0] = its name; it returns the exit status (DESIGN section 12:
 * 0 done, 1 failed while running, 2 bad arguments, configuration or input, 3 stopped by a signal). main.c holds the
 * table of commands; a row of the table without a function answers "not in this version yet" with exit 2.
 *
 *     int tm_cmd_eval(int argc, char **argv) {
 *         const char *model = NULL, *data = NULL;
 *         uint64_t host_budget = 0;
 *         bool json = false;
 *         const tm_opt opts[] = {{"model", TM_OPT_STRING, &model, "DIR", "model folder or .gguf file",
 *                                 .required = true},
 *                                {"data", TM_OPT_STRING, &data, "FILE", "JSONL or safetensors rows", .required = true},
 *                                {"host-budget", TM_OPT_SIZE, &host_budget, "SIZE", "hard limit of host memory"},
 *                                {"json", TM_OPT_FLAG, &json, NULL, "print one JSON object"}};
 *         const tm_cli cli = {.usage = "eval --model DIR --data FILE [--json]",
 *                             .about = "Prints loss and perplexity of a model on a data file.",
 *                             .example = "tidemill eval --model smollm2 --data heldout.jsonl",
 *                             TM_CLI_OPTIONS(opts)};
 *         int rc = tm_cli_parse(&cli, argc, argv);
 *         if (rc >= 0) return rc; // --help was printed (0) or the line is wrong (2)
 *         if (run(model, data, host_budget, json) != TM_OK) return tm_cmd_fail();
 *         return 0;
 *     }
 *
 * Errors go to stderr, one line; results go to stdout.
 */
#ifndef TIDEMILL_TOOLS_H
#define TIDEMILL_TOOLS_H

#include "base/base.h"
#include "model/model.h"

enum { TM_EXIT_DONE = 0, TM_EXIT_FAILED = 1, TM_EXIT_INPUT = 2, TM_EXIT_SIGNAL = 3 };

/* ---- commands --------------------------------------------------------------------------------------------------- */

typedef struct tm_command {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: not in this version */
    const char *help;
} tm_command;
typedef struct tm_program {
    const char *name, *about;
    const tm_command *commands;
    size_t n_commands;
    const char *const *awake; /* [n_awake] "bench generate": its threads wait awake between many short kernels */
    size_t n_awake;
    /* `help WORD` of what is no command: NULL, or false: there is no such topic. */
    bool (*help)(int argc, char **argv);
    tm_status (*version)(tm_json_writer *w); /* more of `--version --json`, or NULL */
    /* What people type who know other programs, and what to say: pairs, NULL behind the last; or NULL. */
    const char *const (*others)[2];
} tm_program;
/* main: runs the command that argv names; help, version, unknown commands. Returns the exit status. */
int tm_program_run(const tm_program *p, int argc, char **argv);
const tm_program *tm_program_running(void); /* that of tm_program_run */
extern const char *tm_cli_program;          /* what help and messages call the program: "tidemill" */

tm_status tm_cmd_version(tm_json_writer *w); /* doctor.c: what a report of a defect should say */
int tm_cmd_new(int argc, char **argv);
int tm_cmd_train(int argc, char **argv);
int tm_cmd_plan(int argc, char **argv);
int tm_cmd_data(int argc, char **argv);
int tm_cmd_probe(int argc, char **argv);
int tm_cmd_eval(int argc, char **argv);
int tm_cmd_generate(int argc, char **argv);
int tm_cmd_serve(int argc, char **argv);
int tm_cmd_tokenize(int argc, char **argv);
int tm_cmd_chat(int argc, char **argv);
int tm_cmd_convert(int argc, char **argv);
int tm_cmd_export(int argc, char **argv);
int tm_cmd_bench(int argc, char **argv);
int tm_cmd_tune(int argc, char **argv);
int tm_cmd_top(int argc, char **argv);
int tm_cmd_report(int argc, char **argv);
int tm_cmd_inspect(int argc, char **argv);
int tm_cmd_doctor(int argc, char **argv);
int tm_cmd_clean(int argc, char **argv);
int tm_cmd_completion(int argc, char **argv);
int tm_cmd_man(int argc, char **argv);

/* What `tidemill bench` measures (argv[0] is "bench io"). */
int tm_bench_io(int argc, char **argv);
int tm_bench_adam(int argc, char **argv);
int tm_bench_gemm(int argc, char **argv);
int tm_bench_generate(int argc, char **argv);
int tm_bench_step(int argc, char **argv);
int tm_bench_collective(int argc, char **argv);
int tm_bench_device(int argc, char **argv);

/* ---- failures --------------------------------------------------------------------------------------------------- */

/* Prints "tidemill: <text of the pending error>" to stderr and returns the exit status that its code stands for. */
int tm_cmd_fail(void);
int tm_exit_status(tm_status code);
/* "tidemill <command>: <text>; try 'tidemill <command> --help'" to stderr; returns 2. For arguments that are wrong. */
int tm_cli_wrong(const char *command, const char *format, ...) TM_PRINTF(2, 3);
/* Of the rows of a table, each of which begins with its name, the name nearest to `word` (edit distance at most 1 + a
 * third of its length), or NULL. */
const char *tm_cli_suggest(const char *word, const void *rows, size_t n, size_t row_bytes);

/* ---- options ---------------------------------------------------------------------------------------------------- */

typedef enum tm_opt_kind {
    TM_OPT_FLAG,   /* bool *, set to true */
    TM_OPT_STRING, /* const char **, points into argv */
    TM_OPT_INT,    /* int64_t * */
    TM_OPT_DOUBLE, /* double *, finite */
    TM_OPT_SIZE,   /* uint64_t *, bytes: "512MiB" (tm_parse_size); "unlimited" is UINT64_MAX */
    TM_OPT_LIST    /* tm_opt_list *: may be repeated; the values in order */
} tm_opt_kind;
typedef struct tm_opt_list {
    const char **value; /* room for `cap`, given by the command */
    size_t count, cap;
} tm_opt_list;
typedef struct tm_opt {
    const char *name; /* long name without "--" */
    tm_opt_kind kind;
    void *into;        /* keeps its value where the option is not given */
    const char *value; /* what the help calls the value: "SIZE"; NULL for flags */
    const char *help;
    bool required;
    char letter; /* "-c" as well; 0: none */
} tm_opt;
#define TM_OPTION(name, kind, into, value, help)                                                                       \
    { name, kind, into, value, help, false, 0 }
#define TM_REQUIRED(name, kind, into, value, help)                                                                     \
    { name, kind, into, value, help, true, 0 }
#define TM_FLAG(name, into, help)                                                                                      \
    { name, TM_OPT_FLAG, into, NULL, help, false, 0 }
typedef struct tm_cli {
    const char *usage;   /* "probe --model DIR ...", without "tidemill" */
    const char *about;   /* a sentence or more; ends with its full stop */
    const char *example; /* one or more command lines, each on a line of its own */
    const tm_opt *opts;
    size_t n_opts;
    tm_opt_list *keys;       /* the list of --set: every key of the configuration is an option too; NULL: none is */
    const char **positional; /* room for max_positional pointers; NULL where the command takes none */
    int min_positional, max_positional;
} tm_cli;
#define TM_CLI_OPTIONS(table) .opts = (table), .n_opts = TM_COUNT(table)
#define TM_CLI_WORDS(at, least, most) .positional = (at), .min_positional = (least), .max_positional = (most)
/* A configuration, by name and letter or as the one positional: `into` for TM_CLI_WORDS(words, 0, 1). */
#define TM_CONFIG_OPTION(into)                                                                                         \
    { "config", TM_OPT_STRING, into, "FILE", "the configuration: the same as CONFIG by itself", false, 'c' }
/* Reads the arguments of one command. -1: go on; else the exit status to return. Options may follow positionals, "--"
 * ends them, "--name=value" and "--name value" both do; abbreviations are refused. */
TM_MUST_USE int tm_cli_parse(const tm_cli *cli, int argc, char **argv);
/* "fp32" or "bf16" into *out: -1; else the exit status, after the error line. */
TM_MUST_USE int tm_precision_option(const char *command, const char *text, tm_dtype *out);
/* The configuration of a command that takes keys as options, by its option or its place, into *option (NULL: there is
 * none, keys say it all): -1; else the exit status, after the error line. */
TM_MUST_USE int tm_cli_config(const char *command, const char **option, const char *word, const tm_opt_list *keys);
/* A model by its name on a hub becomes where it lies in the user's caches (tm_hub_find); once a process for each. NULL
 * stays. */
const char *tm_cmd_model(const char *name);
/* The same of --model and --adapter; where the model is the folder of an adapter, it becomes the adapter, and its base the
 * model. TM_EINPUT where the base is not here, or two adapters are named. */
TM_MUST_USE tm_status tm_cmd_models(const char **model, const char **adapter);
/* Shows `c` being called as `name` without its being done: `told` gets its options. A command that has no options
 * of its own but others below it (bench) tells of each of these. */
typedef void tm_cli_told(void *ctx, const char *name, const tm_cli *cli);
void tm_cli_describe(const tm_command *c, const char *name, tm_cli_told *told, void *ctx);
bool tm_cli_describing(void); /* for such a command: it is asked, and not to be done */
/* Positionals that were given, after tm_cli_parse. Entries past the count are NULL. */
int tm_cli_count(const tm_cli *cli);
/* What --json prints is one object, one in a process: begun here; ended and printed on a line of its own there. */
void tm_cli_json(tm_json_writer *w, int indent);
TM_MUST_USE tm_status tm_cli_print_json(tm_json_writer *w);

#endif
