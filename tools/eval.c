/* tidemill eval */
#include "tools/tools.h"
#include "infer/infer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- as JSON ---------------------------------------------------------------------------------------------------- */

static void json_files(tm_json_writer *w, const tm_eval_result *r) {
    if (r->n_files < 2) return;
    tm_jw_field_object(w, "files");
    for (uint32_t i = 0; i < r->n_files; i++) {
        tm_jw_field_object(w, r->file[i].name);
        tm_jw_field_double(w, "loss", r->file[i].loss);
        tm_jw_field_double(w, "perplexity", exp(r->file[i].loss));
        tm_jw_field_uint(w, "tokens", r->file[i].label_tokens);
        tm_jw_object_end(w);
    }
    tm_jw_object_end(w);
}

static void json_data(tm_json_writer *w, const tm_eval_args *a, const tm_eval_result *r) {
    tm_jw_field_str(w, "objective", r->objective);
    tm_jw_field_double(w, "loss", r->loss);
    if (!r->by_sample) tm_jw_field_double(w, "perplexity", r->perplexity);
    if (isfinite(r->bits_per_byte)) tm_jw_field_double(w, "bits_per_byte", r->bits_per_byte);
    for (uint32_t i = 0; i < r->n_metrics; i++)
        if (isfinite(r->value[i])) tm_jw_field_double(w, r->metric[i], r->value[i]);
    tm_jw_field_uint(w, "tokens", r->label_tokens);
    tm_jw_field_uint(w, "positions", r->tokens);
    if (r->label_bytes) tm_jw_field_uint(w, "bytes", r->label_bytes);
    tm_jw_field_uint(w, "rows", r->rows);
    tm_jw_field_uint(w, "samples", r->samples);
    json_files(w, r);
    if (!a->exact_match) return;
    tm_jw_field_double(w, "exact_match", r->compared ? (double)r->exact / (double)r->compared : 0);
    tm_jw_field_uint(w, "exact", r->exact);
    tm_jw_field_uint(w, "compared", r->compared);
}

/* Keys are lm-evaluation-harness's: "acc,none", "acc_stderr,none". */
static void json_metrics(tm_json_writer *w, const tm_eval_task *t) {
    char key[256];
    tm_jw_field_object(w, t->name);
    for (uint32_t i = 0; i < t->n_metrics; i++) {
        const tm_eval_metric *m = &t->metric[i];
        snprintf(key, sizeof key, "%s,%s", m->name, m->filter);
        tm_jw_field_double(w, key, m->value);
        snprintf(key, sizeof key, "%s_stderr,%s", m->name, m->filter);
        tm_jw_field_double(w, key, m->error);
    }
    tm_jw_object_end(w);
}

static void json_tasks(tm_json_writer *w, const tm_eval_tasks *tasks) {
    if (!tasks->n) return;
    tm_jw_field_object(w, "results");
    for (size_t i = 0; i < tasks->n; i++) json_metrics(w, &tasks->task[i]);
    tm_jw_object_end(w);
    tm_jw_field_object(w, "n-shot");
    for (size_t i = 0; i < tasks->n; i++) tm_jw_field_uint(w, tasks->task[i].name, tasks->task[i].fewshot);
    tm_jw_object_end(w);
    tm_jw_field_object(w, "n-samples");
    for (size_t i = 0; i < tasks->n; i++) {
        tm_jw_field_object(w, tasks->task[i].name);
        tm_jw_field_uint(w, "original", tasks->task[i].in_file);
        tm_jw_field_uint(w, "effective", tasks->task[i].samples);
        tm_jw_object_end(w);
    }
    tm_jw_object_end(w);
}

static int print_json(const tm_eval_args *a, const tm_eval_result *r) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    if (r->objective) json_data(&w, a, r);
    json_tasks(&w, &r->tasks);
    tm_jw_field_double(&w, "seconds", r->seconds);
    return tm_cli_print_json(&w) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

/* ---- as text ---------------------------------------------------------------------------------------------------- */

static void print_data(const tm_eval_args *a, const tm_eval_result *r) {
    printf("loss %.6f", r->loss);
    if (!r->by_sample) printf("  perplexity %.4f", r->perplexity);
    if (isfinite(r->bits_per_byte)) printf("  bits a byte %.4f", r->bits_per_byte);
    printf("  tokens %" PRIu64 "  rows %" PRIu64 "\n", r->label_tokens, r->rows);
    for (uint32_t i = 0; i < r->n_metrics; i++)
        if (isfinite(r->value[i])) printf("%-20s %.6g\n", r->metric[i], r->value[i]);
    for (uint32_t i = 0; i < r->n_files && r->n_files > 1; i++)
        printf("%s: loss %.6f  perplexity %.4f  tokens %" PRIu64 "\n", r->file[i].name, r->file[i].loss,
               exp(r->file[i].loss), r->file[i].label_tokens);
    if (a->exact_match) printf("exact match %" PRIu64 " of %" PRIu64 "\n", r->exact, r->compared);
}

static void print_tasks(const tm_eval_tasks *tasks) {
    if (!tasks->n) return;
    printf("%-24s %8s %5s  %-32s %9s %9s\n", "task", "samples", "shots", "metric", "value", "stderr");
    for (size_t i = 0; i < tasks->n; i++) {
        const tm_eval_task *t = &tasks->task[i];
        for (uint32_t k = 0; k < t->n_metrics; k++) {
            char metric[128], error[32] = "-";
            snprintf(metric, sizeof metric, "%s,%s", t->metric[k].name, t->metric[k].filter);
            if (isfinite(t->metric[k].error)) snprintf(error, sizeof error, "%.4f", t->metric[k].error);
            printf("%-24s %8" PRIu64 " %5u  %-32s %9.4f %9s\n", t->name, t->samples, t->fewshot, metric,
                   t->metric[k].value, error);
        }
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

enum { MOST_FILES = 64 };

typedef struct numbers {
    int64_t seq_len, rows, max_new, show, limit, shots, seed, side_by_side;
} numbers;

static bool in_range(const numbers *n) {
    return n->seq_len >= 0 && n->seq_len <= 1 << 24 && n->rows >= 0 && n->rows <= 4096 && n->max_new >= -1 &&
           n->max_new <= 1 << 20 && n->show >= 0 && n->show <= 1 << 20 && n->limit >= 0 && n->shots >= -1 &&
           n->shots <= 1024 && n->seed >= -1 && n->side_by_side >= 0 && n->side_by_side <= 256;
}

static void take_numbers(const numbers *n, tm_eval_args *a) {
    tm_eval_task_args *t = &a->tasks;
    a->seq_len = (uint32_t)n->seq_len;
    a->rows = (uint32_t)n->rows;
    a->max_new_tokens = n->max_new < 0 ? 64 : (uint32_t)n->max_new;
    a->show = (uint32_t)n->show;
    t->limit = (uint64_t)n->limit;
    t->fewshot_given = n->shots >= 0;
    t->fewshot = n->shots >= 0 ? (uint32_t)n->shots : 0;
    t->seed_given = n->seed >= 0;
    t->seed = n->seed >= 0 ? (uint64_t)n->seed : 0;
    t->max_new_tokens = n->max_new > 0 ? (uint32_t)n->max_new : 0;
    t->side_by_side = (uint32_t)n->side_by_side;
}

static int run(const tm_eval_args *a, bool json) {
    tm_eval_result r;
    int rc = TM_EXIT_DONE;
    if (tm_eval_run(a, &r) != TM_OK) {
        rc = tm_cmd_fail();
    } else if (json) {
        rc = print_json(a, &r);
    } else {
        if (r.objective) print_data(a, &r);
        print_tasks(&r.tasks);
    }
    tm_eval_free(&r);
    return rc;
}

int tm_cmd_eval(int argc, char **argv) {
    const char *precision = NULL, *set[256], *data[MOST_FILES], *task[MOST_FILES];
    tm_opt_list sets = {.value = set, .cap = TM_COUNT(set)}, files = {.value = data, .cap = MOST_FILES},
                tasks = {.value = task, .cap = MOST_FILES};
    numbers n = {.max_new = -1, .shots = -1, .seed = -1};
    bool json = false;
    tm_eval_args a = {0};
    const tm_opt opts[] = {
        TM_OPTION("model", TM_OPT_STRING, &a.model, "DIR", "model folder, .gguf file or an adapter's folder"),
        TM_OPTION(
            "data", TM_OPT_LIST, &files, "FILE",
            "JSONL, JSON, CSV, text (each also .gz, .zst; FILE#100: so many of its samples), or .safetensors rows of "
            "ids; may be repeated"),
        TM_OPTION("task", TM_OPT_LIST, &tasks, "FILE",
                  "questions to answer: rows, or a TASK.json that says how they are put; may be repeated"),
        {"config", TM_OPT_STRING, &a.config, "FILE|DIR",
         "configuration, or OUTPUT_DIR of a run: its objective, and what is not said here", false, 'c'},
        TM_OPTION("set", TM_OPT_LIST, &sets, "KEY=VALUE",
                  "a key of the configuration (objective.type=dpo); may be repeated"),
        TM_OPTION("precision", TM_OPT_STRING, &precision, "fp32|bf16",
                  "arithmetic (default: the configuration's, else fp32)"),
        TM_OPTION("seq-len", TM_OPT_INT, &n.seq_len, "N",
                  "longer rows are cut (default: the configuration's, else 2048)"),
        TM_OPTION("rows", TM_OPT_INT, &n.rows, "N",
                  "rows, or pairs, computed together (default: the configuration's, else 1)"),
        TM_FLAG("exact-match", &a.exact_match,
                "also answer each conversation greedily and compare with its last message"),
        TM_OPTION("max-new-tokens", TM_OPT_INT, &n.max_new, "N",
                  "longest answer (exact match: 64, 0: none; a task: what it says, else 256)"),
        TM_OPTION("show", TM_OPT_INT, &n.show, "N", "exact match: print the first N answers to stderr"),
        TM_OPTION("samples", TM_OPT_STRING, &a.tasks.samples, "FILE",
                  "tasks: what was answered, a line a sample, as lm-evaluation-harness logs them"),
        TM_OPTION("limit", TM_OPT_INT, &n.limit, "N", "tasks: the first N samples of each (default: all)"),
        TM_OPTION("num-fewshot", TM_OPT_INT, &n.shots, "N", "tasks: examples before each question"),
        TM_FLAG("apply-chat-template", &a.tasks.chat, "tasks: prompts are put as conversations"),
        TM_OPTION("seed", TM_OPT_INT, &n.seed, "N", "tasks: of examples and of answers that are drawn"),
        TM_OPTION("batch-size", TM_OPT_INT, &n.side_by_side, "N", "tasks: prompts side by side (default: 16)"),
        TM_OPTION("adapter", TM_OPT_STRING, &a.tiers.adapter, "DIR", "adapter to run it with, as PEFT's folder has it"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &a.tiers.host_budget, "SIZE", "hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &a.tiers.offload_path, "PATH",
                  "where goes what does not fit: weights, the cache"),
        TM_OPTION("device", TM_OPT_STRING, &a.tiers.device, "NAME", "cpu (default), cpu-arena, cuda:N"),
        TM_OPTION("device-budget", TM_OPT_SIZE, &a.tiers.device_budget, "SIZE", "hard limit of the device's memory"),
        TM_FLAG("json", &json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "eval --model DIR (--data FILE | --task FILE)... [--config FILE|DIR] [--exact-match] [--json]",
        .about = "Prints loss and perplexity of a model on data files; tokens are those that have a label. With a "
                 "configuration, loss and metrics of its objective. --task asks questions and scores the answers: "
                 "exact match, numbers, the most likely choice.",
        .example =
            "tidemill eval --model smollm2 --data heldout.jsonl --exact-match\n"
            "tidemill eval --model smollm2 --task gsm8k.json --task arc.jsonl --limit 200 --samples answers.jsonl\n"
            "tidemill eval --config out --data heldout-pairs.jsonl --beta 0.2",
        .keys = &sets,
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (!a.config && (!a.model || !(files.count + tasks.count)))
        return tm_cli_wrong("eval", "--%s is missing; it may be left out with --config",
                            a.model ? "data or --task" : "model");
    if (a.tasks.samples && !tasks.count) return tm_cli_wrong("eval", "--samples is of tasks; --task FILE names one");
    a.precision_given = precision != NULL;
    if (tm_cmd_models(&a.model, &a.tiers.adapter) != TM_OK) return tm_cmd_fail();
    rc = precision ? tm_precision_option("eval", precision, &a.precision) : -1;
    if (rc >= 0) return rc;
    if (!in_range(&n)) return tm_cli_wrong("eval", "a number is out of range");
    a.set = set, a.n_set = sets.count;
    a.data = data, a.n_data = files.count;
    a.tasks.file = task, a.tasks.n = tasks.count;
    take_numbers(&n, &a);
    return run(&a, json);
}
