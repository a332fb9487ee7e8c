/* tidemill new: a configuration from a template, with a budget that `plan` has accepted. */
#include "format/format.h"
#include "infer/infer.h"
#include "io/file/file.h"
#include "tools/plan_table.h"
#include "tools/tools.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct answers {
    const char *model, *data, *method, *where, *output;
    uint64_t budget; /* 0: the planner's choice */
} answers;

/* ---- templates ----------------------------------------------------------------------------------------------------- */

static const tm_method *find_template(const char *name) {
    return tm_method_find(name, strlen(name));
}

static int list_templates(void) {
    for (size_t i = 0; i < tm_method_count; i++)
        printf("  %-9s %s\n", tm_methods[i].name, tm_methods[i].line[0] + strlen("// "));
    printf("\ntidemill new --model DIR --data FILE --method NAME writes one, with a budget for this machine\n");
    return TM_EXIT_DONE;
}

static int unknown_template(const char *name) {
    const char *near = tm_cli_suggest(name, tm_methods, tm_method_count, sizeof *tm_methods);
    if (near) return tm_cli_wrong("new", "unknown method '%s'; did you mean '%s'?", name, near);
    return tm_cli_wrong("new", "unknown method '%s'; --list has them", name);
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

enum { LINE_BYTES = 4096 };

/* A line from the terminal into `line`, or what is taken without one; NULL: the input ended. */
static const char *ask(char line[LINE_BYTES], const char *question, const char *otherwise) {
    fprintf(stderr, "%s%s%s%s ", question, otherwise ? " [" : "", otherwise ? otherwise : "", otherwise ? "]" : "");
    if (!fgets(line, LINE_BYTES, stdin)) return NULL;
    line[strcspn(line, "\r\n")] = 0;
    return *line || !otherwise ? line : otherwise;
}

static bool model_is_there(const char *model) {
    tm_source *source;
    char found[4096];
    if (tm_source_open_bare(&source, tm_hub_find(model, found)) == TM_OK) {
        tm_source_close(source);
        return true;
    }
    tm_say("%s\n", tm_error_get()->text);
    tm_error_clear();
    return false;
}

static bool is_template(const char *name) {
    bool is = find_template(name) != NULL;
    if (!is) (void)list_templates();
    return is;
}

static bool data_are_there(const char *data) {
    bool there = access(data, R_OK) == 0;
    if (!there) tm_say("%s: %s\n", data, strerror(errno));
    return there;
}

/* "method: full, lora, ..?" */
static const char *ask_method(char line[LINE_BYTES]) {
    char question[512] = "method:";
    size_t n = strlen(question);
    for (size_t i = 0; i < tm_method_count && n < sizeof question; i++)
        n += (size_t)snprintf(question + n, sizeof question - n, " %s%s", tm_methods[i].name,
                              i + 1 < tm_method_count ? "," : "?");
    return ask(line, question, "lora");
}

/* What no option said, as often as it takes. False: the input ended. */
static bool ask_all(answers *a) {
    static char model[LINE_BYTES], data[LINE_BYTES], method[LINE_BYTES], where[LINE_BYTES];
    while (!a->model || !*a->model)
        if (!(a->model = ask(model, "model: a folder, a .gguf file, or OWNER/NAME in your cache?", NULL)))
            return false;
        else if (!model_is_there(a->model))
            a->model = NULL;
    while (!a->data || !*a->data)
        if (!(a->data = ask(data, "data: a file or folder (JSONL, JSON, CSV, text)?", NULL)))
            return false;
        else if (!data_are_there(a->data))
            a->data = NULL;
    while (!a->method)
        if (!(a->method = ask_method(method)))
            return false;
        else if (!is_template(a->method))
            a->method = NULL;
    if (!a->where)
        a->where = ask(where, "where: the folder for the result, and for what memory has no room for?", "out");
    return a->where != NULL;
}

static int take_answers(answers *a) {
    if (isatty(0) && !(a->model && a->data)) {
        if (!ask_all(a)) return tm_cli_wrong("new", "the answers ended; nothing was written");
    }
    if (!a->model)
        return tm_cli_wrong("new", "--model is missing: a folder, a .gguf file, or OWNER/NAME in your cache");
    if (!a->data) return tm_cli_wrong("new", "--data is missing: a file or folder (JSONL, JSON, CSV, text)");
    if (!a->method) a->method = "lora";
    if (!a->where) a->where = "out";
    return find_template(a->method) ? -1 : unknown_template(a->method);
}

/* ---- the text ------------------------------------------------------------------------------------------------------- */

/* The line with another value where it has `"key": "..."`; else it is not *done. */
static tm_status put_line(tm_buf *out, const char *line, const char *key, const char *value, bool *done) {
    char name[64];
    tm_json_writer w;
    snprintf(name, sizeof name, "\"%s\": \"", key);
    const char *at = strstr(line, name), *end = at ? strchr(at + strlen(name), '"') : NULL;
    *done = end != NULL;
    if (!end) return TM_OK;
    TM_TRY(tm_buf_printf(out, "%.*s", (int)(at - line) + (int)strlen(name) - 1, line));
    tm_jw_init(&w, out, 0);
    tm_jw_str(&w, value);
    TM_TRY(tm_jw_end(&w));
    return tm_buf_printf(out, "%s\n", end + 1);
}

/* `notes`: comment lines above the first brace. */
static tm_status make_text(const answers *a, uint64_t budget, const char *notes, tm_buf *out) {
    char size[TM_TABLE_SIZE_BYTES];
    const char *const put[][2] = {{"model", a->model},
                                  {"output_dir", a->where},
                                  {"train", a->data},
                                  {"host_budget", tm_table_size(budget, size)}};
    for (const char *const *line = find_template(a->method)->line; *line; line++) {
        bool done = false;
        if (!strcmp(*line, "{")) TM_TRY(tm_buf_printf(out, "%s", notes));
        for (size_t i = 0; i < TM_COUNT(put) && !done; i++) TM_TRY(put_line(out, *line, put[i][0], put[i][1], &done));
        if (!done) TM_TRY(tm_buf_printf(out, "%s\n", *line));
    }
    return TM_OK;
}

static tm_status write_text(const answers *a, const char *path, uint64_t budget, const char *notes) {
    tm_buf text = {0};
    tm_status rc = make_text(a, budget, notes, &text);
    if (rc == TM_OK) rc = tm_file_write(path, text.data, text.len);
    tm_buf_free(&text);
    return rc;
}

/* ---- the plan --------------------------------------------------------------------------------------------------------- */

/* The budget: the user's, or the least with which more would save less than a tenth of the time. */
static tm_status choose(const answers *a, const char *draft, tm_table_row *row, tm_table_cell *cell) {
    tm_plan_report r;
    tm_plan_args args = {.train = {.config = draft, .quiet = true, .dry_run = true, .scorer = &tm_task_scorer}};
    *row = (tm_table_row){.method = NULL};
    if (!a->budget) {
        TM_TRY(tm_table_fill(&args, tm_table_memory(&args, true), row));
        if (!row->n) return tm_fail(TM_EINPUT, "%s", row->why);
        *cell = row->cell[tm_table_best(row)];
        return TM_OK;
    }
    TM_TRY(tm_plan_run(&args, &r));
    row->least = r.minimum_host_bytes;
    row->parameters = r.parameters;
    row->learning = r.learning;
    *cell = (tm_table_cell){.budget = a->budget, .seconds = r.seconds_per_step, .disk = r.disk_bytes};
    return TM_OK;
}

static void describe(const tm_table_row *row, const tm_table_cell *cell, char *out, size_t cap) {
    char least[32], budget[32], disk[32];
    snprintf(out, cap,
             "// planned on this machine: %.1f M parameters, of which %.3g M learn; at least %s of memory; with %s a "
             "step takes "
             "%.3g s\n// and %s of disk\n",
             (double)row->parameters * 1e-6, (double)row->learning * 1e-6,
             tm_format_size(row->least, least, sizeof least), tm_format_size(cell->budget, budget, sizeof budget),
             cell->seconds, tm_format_size(cell->disk, disk, sizeof disk));
}

static tm_status make(const answers *a, const char *draft) {
    tm_table_row row;
    tm_table_cell cell = {.budget = 0};
    char notes[512];
    TM_TRY(write_text(a, draft, a->budget ? a->budget : 2 * TM_GIB, ""));
    TM_TRY(choose(a, draft, &row, &cell));
    describe(&row, &cell, notes, sizeof notes);
    TM_TRY(write_text(a, a->output, cell.budget, notes));
    printf("%s\n%s\nnext: tidemill train %s\n", a->output, notes, a->output);
    return TM_OK;
}

static int run(const answers *a) {
    char draft[4096];
    if (tm_ends_with(a->output, ".yaml") || tm_ends_with(a->output, ".yml")) /* train would read it as YAML */
        return tm_cli_wrong("new", "%s: what is written is JSON; name it .json", a->output);
    if (!tm_path_absent(a->output))
        return tm_cli_wrong("new", "%s is there already; name another file with --output", a->output);
    if (snprintf(draft, sizeof draft, "%s.draft", a->output) >= (int)sizeof draft)
        return tm_cli_wrong("new", "--output is a path of %zu bytes", strlen(a->output));
    if (!tm_path_absent(draft)) /* it would be written over, and removed */
        return tm_cli_wrong("new", "%s is in the way of a draft; move it, or name another file with --output", draft);
    tm_status rc = make(a, draft);
    (void)unlink(draft);
    return rc == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

int tm_cmd_new(int argc, char **argv) {
    answers a = {.model = NULL};
    bool list = false;
    char output[64];
    const tm_opt opts[] = {
        TM_OPTION("model", TM_OPT_STRING, &a.model, "DIR", "model folder, .gguf file, or OWNER/NAME in your cache"),
        TM_OPTION("data", TM_OPT_STRING, &a.data, "FILE", "what to learn: JSONL, JSON, CSV, text, or a folder of them"),
        TM_OPTION("method", TM_OPT_STRING, &a.method, "NAME", "one of --list (lora)"),
        TM_OPTION("where", TM_OPT_STRING, &a.where, "DIR", "folder for the result and for files of state (out)"),
        TM_OPTION("budget", TM_OPT_SIZE, &a.budget, "SIZE", "memory that may be used; default: as plan finds best"),
        TM_OPTION("output", TM_OPT_STRING, &a.output, "FILE", "the configuration's name (METHOD.json)"),
        TM_FLAG("list", &list, "the templates"),
    };
    const tm_cli cli = {
        .usage = "new [--model DIR] [--data FILE] [--method NAME] [--where DIR] [--budget SIZE] [--output FILE] | new "
                 "--list",
        .about = "Writes a configuration with comments, of a template, with a budget that plan has accepted on this "
                 "machine. Asks for what is not said, on a terminal.",
        .example = "tidemill new\ntidemill new --model Qwen/Qwen2.5-0.5B --data train.jsonl --method qlora",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (list) return list_templates();
    rc = take_answers(&a);
    if (rc >= 0) return rc;
    snprintf(output, sizeof output, "%.50s.json", a.method);
    if (!a.output) a.output = output;
    return run(&a);
}
