/* tidemill plan */
#include "tools/advice.h"
#include "tools/plan.h"
#include "tools/plan_table.h"
#include "tools/plan_words.h"
#include "tools/tools.h"
#include "infer/infer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static void count_known(tm_json_writer *w, const char *key, uint64_t v, bool known) {
    tm_jw_key(w, key);
    if (known)
        tm_jw_uint(w, v);
    else
        tm_jw_null(w);
}

/* 0: not known. */
static void field_known(tm_json_writer *w, const char *key, double v) {
    tm_jw_key(w, key);
    if (v > 0)
        tm_jw_double(w, v);
    else
        tm_jw_null(w);
}

static void json_engines(tm_json_writer *w, const char *key, const tm_plan_report *r, const double *seconds) {
    tm_jw_field_object(w, key);
    for (int e = 0; e < TM_ENGINES; e++)
        if (r->has_device || e <= TM_ENGINE_DISK_WRITE || (e == TM_ENGINE_COMM && r->ranks > 1))
            tm_jw_field_double(w, tm_plan_engine_name((tm_op_engine)e, r->has_device), seconds[e]);
    tm_jw_object_end(w);
}

static void json_kinds(tm_json_writer *w, const tm_plan_report *r) {
    tm_jw_field_object(w, "bytes_by_kind");
    for (int k = 0; k < TM_KIND_SCRATCH; k++) {
        tm_jw_field_object(w, tm_kind_name((tm_kind)k));
        tm_jw_field_uint(w, "read", r->read_bytes[k]);
        tm_jw_field_uint(w, "write", r->write_bytes[k]);
        tm_jw_object_end(w);
    }
    tm_jw_object_end(w);
}

static void json_change(tm_json_writer *w, const tm_plan_report *r) {
    tm_jw_key(w, "smallest_change");
    if (r->fits || !r->change.key) {
        tm_jw_null(w);
        return;
    }
    tm_jw_object(w);
    tm_jw_field_uint(w, r->change.key, r->change.value);
    tm_jw_object_end(w);
}

static void json_budget(tm_json_writer *w, const char *name, uint64_t bytes) {
    tm_jw_key(w, name);
    if (bytes == UINT64_MAX)
        tm_jw_str(w, "unlimited");
    else
        tm_jw_uint(w, bytes);
}

static void json_memory(tm_json_writer *w, const tm_plan_report *r) {
    tm_jw_field_uint(w, "parameters", r->parameters);
    tm_jw_field_uint(w, "learning_parameters", r->learning);
    json_budget(w, "host_budget_bytes", r->host_budget_bytes);
    tm_jw_field_uint(w, "minimum_host_bytes", r->minimum_host_bytes);
    tm_jw_field_uint(w, "host_peak_bytes", r->host_peak_bytes);
    json_budget(w, "device_budget_bytes", r->device_budget_bytes);
    tm_jw_field_uint(w, "device_peak_bytes", r->device_peak_bytes);
    tm_jw_field_uint(w, "minimum_device_bytes", r->minimum_device_bytes);
    tm_jw_field_uint(w, "disk_bytes", r->disk_bytes);
    count_known(w, "disk_free_bytes", r->disk_free_bytes, r->disk_free_bytes > 0);
    tm_jw_field_uint(w, "resident_bytes", r->resident_bytes);
    tm_jw_field_uint(w, "decoded_bytes", r->decoded_bytes);
    tm_jw_field_uint(w, "window_bytes", r->window_bytes);
    tm_jw_field_uint(w, "shared_window_bytes", r->shared_window_bytes);
}

static void json_paths(tm_json_writer *w, const tm_plan_report *r) {
    tm_jw_field_array(w, "paths");
    for (uint32_t i = 0; i < r->n_paths; i++) {
        const tm_plan_path *p = &r->path[i];
        tm_jw_object(w);
        tm_jw_field_str(w, "path", p->name);
        tm_jw_field_array(w, "holds");
        for (int k = 0; k < TM_KIND_SCRATCH; k++)
            if (p->kinds >> k & 1) tm_jw_str(w, tm_kind_name((tm_kind)k));
        tm_jw_array_end(w);
        tm_jw_field_uint(w, "bytes", p->bytes);
        tm_jw_field_uint(w, "free_bytes", p->free_bytes);
        tm_jw_object_end(w);
    }
    tm_jw_array_end(w);
}

/* The whole run; null where it is not known. */
static void json_run(tm_json_writer *w, const tm_plan_report *r) {
    count_known(w, "run_steps", (uint64_t)r->run_steps, r->run_steps > 0);
    count_known(w, "run_read_bytes", r->run_read_bytes, r->run_models > 0);
    count_known(w, "run_write_bytes", r->run_write_bytes, r->run_models > 0);
    field_known(w, "run_seconds", r->run_seconds);
    field_known(w, "reference_seconds", r->reference_seconds);
    field_known(w, "run_evaluations", r->run_evaluations);
    field_known(w, "run_commits", r->run_commits);
    field_known(w, "run_models", r->run_models);
}

static void json_time(tm_json_writer *w, const tm_plan_report *r) {
    tm_jw_field_uint(w, "read_bytes_per_step", r->read_bytes_per_step);
    tm_jw_field_uint(w, "write_bytes_per_step", r->write_bytes_per_step);
    json_kinds(w, r);
    tm_jw_field_uint(w, "link_bytes_per_step", r->link_bytes_per_step);
    tm_jw_field_uint(w, "network_bytes_per_step", r->network_bytes_per_step);
    tm_jw_field_double(w, "seconds_per_step", r->seconds_per_step);
    tm_jw_field_str(w, "seconds_basis", r->seconds_basis);
    tm_jw_field_str(w, "bottleneck", r->bottleneck);
    json_engines(w, "busy_seconds", r, r->busy_seconds);
    json_engines(w, "wait_seconds", r, r->wait_seconds);
    tm_jw_field_double(w, "tokens_per_second", r->tokens_per_second);
    tm_jw_field_double(w, "tokens_per_step", r->tokens_per_step);
    tm_jw_field_double(w, "padded_tokens_per_step", r->padded_tokens_per_step);
    tm_jw_field_str(w, "rows_basis", r->rows_basis);
    tm_jw_field_double(w, "timing_disturbed", r->timing_disturbed);
    json_run(w, r);
    tm_jw_field_double(w, "tb_written_per_1000_steps", r->tb_written_per_1000_steps);
    if (r->n_paths > 1) {
        tm_jw_field_array(w, "path_tb_written_per_1000_steps");
        for (uint32_t i = 0; i < r->n_paths; i++) tm_jw_double(w, r->path_tb_written_per_1000_steps[i]);
        tm_jw_array_end(w);
    }
    field_known(w, "tbw", r->tbw);
    field_known(w, "drive_days", r->drive_days);
}

static void json_choice(tm_json_writer *w, const tm_plan_report *r) {
    tm_jw_field_str(w, "update", r->update);
    tm_jw_field_str(w, "activations", r->activations);
    tm_jw_field_str(w, "order", r->order);
    tm_jw_field_str(w, "strategy", r->strategy);
    tm_jw_field_str(w, "placement", r->placement);
    tm_jw_field_uint(w, "nodes", r->nodes);
    tm_jw_field_uint(w, "ranks", r->ranks);
    tm_jw_field_uint(w, "operations", r->operations);
    tm_jw_field_double(w, "planning_seconds", r->planning_seconds);
    tm_jw_field_double(w, "proof_seconds", r->proof_seconds);
    tm_jw_field_uint(w, "micro_batches", r->micro_batches);
    tm_jw_field_uint(w, "rows", r->rows);
    tm_jw_field_uint(w, "seq", r->seq);
}

static tm_status print_plan_json(const tm_plan_report *r) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_bool(&w, "fits", r->fits);
    tm_jw_field_str(&w, "limit", r->limit);
    json_change(&w, r);
    json_memory(&w, r);
    json_paths(&w, r);
    json_time(&w, r);
    json_choice(&w, r);
    tm_jw_key(&w, "auto");
    tm_jw_raw(&w, *r->autos ? r->autos : "{}", *r->autos ? strlen(r->autos) : 2);
    return tm_cli_print_json(&w);
}

/* ---- table --------------------------------------------------------------------------------------------------- */

static void table_model(const tm_plan_report *r) {
    printf("model        %.1f M parameters", (double)r->parameters * 1e-6);
    if (r->learning < r->parameters) printf(" (%.3g M learn)", (double)r->learning * 1e-6);
    printf(", %u x %u x %u tokens a step at most", r->micro_batches, r->rows, r->seq);
    if (r->ranks > 1)
        printf(" on each of %u ranks (%u node%s), %s", r->ranks, r->nodes, r->nodes == 1 ? "" : "s", r->strategy);
    if (*r->rows_basis) printf("\nrows         %s", r->rows_basis);
    printf("\nchosen       update %s, activations %s, %s by %s", r->update, r->activations, r->order, r->order);
    if (*r->placement) printf(", %s", r->placement);
    printf(", %u operations\n\n", r->operations);
}

static const char *budget_text(uint64_t bytes, char *buf, size_t cap) {
    return bytes == UINT64_MAX ? "unlimited" : tm_format_size(bytes, buf, cap);
}

static void table_memory(const tm_plan_report *r) {
    char a[32], b[32], c[32];
    printf("%-12s %14s %14s %14s\n", r->ranks > 1 ? "a rank" : "memory", "peak", "budget", "least");
    printf("%-12s %14s %14s %14s\n", "host", tm_format_size(r->host_peak_bytes, a, sizeof a),
           budget_text(r->host_budget_bytes, b, sizeof b), tm_format_size(r->minimum_host_bytes, c, sizeof c));
    if (r->shared_window_bytes)
        printf(
            "%-12s %14s                of gathered weights, once for the %u ranks of a node; a share is in the peak\n",
            "shared", tm_format_size(r->shared_window_bytes, a, sizeof a), r->ranks / r->nodes);
    if (r->has_device)
        printf("%-12s %14s %14s %14s\n", "device", tm_format_size(r->device_peak_bytes, a, sizeof a),
               budget_text(r->device_budget_bytes, b, sizeof b),
               r->minimum_device_bytes ? tm_format_size(r->minimum_device_bytes, c, sizeof c) : "");
    printf("%-12s %14s %14s\n", r->ranks > 1 ? "disk, a node" : "disk", tm_format_size(r->disk_bytes, a, sizeof a),
           r->disk_free_bytes ? tm_format_size(r->disk_free_bytes, b, sizeof b) : "unknown");
}

/* "weight_hi, activation" */
static const char *holds(const tm_plan_path *p, char *buf, size_t cap) {
    size_t n = 0;
    bool all = true;
    *buf = 0;
    for (int k = 0; k < TM_KIND_SCRATCH; k++) {
        if (p->kinds >> k & 1)
            n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? ", " : "", tm_kind_name((tm_kind)k));
        else
            all = false;
    }
    if (all) snprintf(buf, cap, "everything");
    return buf;
}

/* What each path is for, where there are several. */
static void table_paths(const tm_plan_report *r) {
    char a[32], b[32], text[160];
    for (uint32_t i = 0; i < r->n_paths && r->n_paths > 1; i++) {
        const tm_plan_path *p = &r->path[i];
        printf("%-12s %14s %14s   %s: %s\n", i ? "" : "of it in", tm_format_size(p->bytes, a, sizeof a),
               p->free_bytes ? tm_format_size(p->free_bytes, b, sizeof b) : "unknown", p->name,
               holds(p, text, sizeof text));
    }
    printf("\n");
}

static void table_bytes(const tm_plan_report *r) {
    char a[32], b[32];
    double moved = (double)(r->read_bytes_per_step + r->write_bytes_per_step);
    printf("%-12s %14s %14s\n", "a step", "read", "written");
    for (int k = 0; k < TM_KIND_SCRATCH; k++)
        if (r->read_bytes[k] + r->write_bytes[k] > 0)
            printf("%-12s %14s %14s\n", tm_kind_name((tm_kind)k), tm_format_size(r->read_bytes[k], a, sizeof a),
                   tm_format_size(r->write_bytes[k], b, sizeof b));
    printf("%-12s %14s %14s", "all", tm_format_size(r->read_bytes_per_step, a, sizeof a),
           tm_format_size(r->write_bytes_per_step, b, sizeof b));
    if (r->ranks == 1) printf("   %.2f bytes a parameter", moved / (double)r->parameters);
    if (r->ranks > 1)
        printf("\nsent to ranks: %s in the node, %s to other nodes",
               tm_format_size(r->link_bytes_per_step, a, sizeof a),
               tm_format_size(r->network_bytes_per_step, b, sizeof b));
    printf("\n\n");
}

static void table_run(const tm_plan_report *r) {
    char time[24];
    if (r->run_steps <= 0) {
        printf("\nthe run      its steps are not known without the data: give max_steps\n");
        return;
    }
    printf("\nthe run      %lld steps, %s", (long long)r->run_steps, tm_format_left(r->run_seconds, time, sizeof time));
    if (r->run_models > 0)
        printf(", %.3f GB written, %.3f GB read; with the import, %.0f evaluations, %.0f commits, %.0f models",
               (double)r->run_write_bytes * 1e-9, (double)r->run_read_bytes * 1e-9, r->run_evaluations, r->run_commits,
               r->run_models);
    if (r->reference_seconds > 0)
        printf("; of it the reference, before step 1: %s", tm_format_left(r->reference_seconds, time, sizeof time));
    printf("\n");
}

/* Of the timing; below that it is what a machine does. */
static const double DISTURBED = 0.2;

static void table_time(const tm_plan_report *r) {
    printf("%-12s %14s %14s\n", "seconds", "busy", "waited for");
    for (int e = 0; e < TM_ENGINES; e++)
        if (r->busy_seconds[e] > 0)
            printf("%-12s %14.3f %14.3f%s\n", tm_plan_engine_name((tm_op_engine)e, r->has_device), r->busy_seconds[e],
                   r->wait_seconds[e],
                   r->bottleneck == tm_plan_engine_name((tm_op_engine)e, r->has_device) ? "   bottleneck" : "");
    printf("%-12s %14.3f                  %.0f tokens/s; %s\n", "a step", r->seconds_per_step, r->tokens_per_second,
           r->seconds_basis);
    if (r->padded_tokens_per_step > r->tokens_per_step)
        printf("%-12s %14.0f   on the mean, and %.0f of padding\n", "its tokens", r->tokens_per_step,
               r->padded_tokens_per_step - r->tokens_per_step);
    if (r->timing_disturbed > DISTURBED)
        printf(
            "warning      other programs disturbed %.0f%% of the timing just now: seconds may be too long; train, or "
            "plan on\n             a quiet machine, to know better\n",
            100 * r->timing_disturbed);
    table_run(r);
    printf("wear         %.3f TB written per 1,000 steps", r->tb_written_per_1000_steps);
    for (uint32_t i = 0; i < r->n_paths && r->n_paths > 1; i++)
        printf("%s%.3f", i ? " + " : " (by path: ", r->path_tb_written_per_1000_steps[i]);
    if (r->n_paths > 1) printf(")");
    if (r->drive_days > 0) printf("; %.0f days of this until %g TB are written", r->drive_days, r->tbw);
    printf("\nplanning     %.3f s, %.3f s of them the proof\n", r->planning_seconds, r->proof_seconds);
}

static void print_table(const tm_plan_report *r) {
    table_model(r);
    if (*r->autos) printf("\"auto\" is    %s; null: the planner decides\n\n", r->autos);
    table_memory(r);
    table_paths(r);
    table_bytes(r);
    table_time(r);
    tm_plan_words(r);
}

/* ---- command ------------------------------------------------------------------------------------------------- */

/* hardware/NAME.json of the source tree or of the installation, where the current directory has no such file: beside
 * the program (build/bin, bin). */
static const char *find_hardware(const char *given, char *buf, size_t cap) {
    static const char *const beside[] = {"../share/tidemill/hardware", "../../hardware"};
    char own[3072];
    const char *slash = strrchr(given, '/'), *name = slash ? slash + 1 : given;
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (access(given, F_OK) == 0 || *given == '/' || n <= 0) return given;
    own[n] = 0;
    *strrchr(own, '/') = 0;
    for (size_t i = 0; i < 2 * TM_COUNT(beside); i++) {
        snprintf(buf, cap, "%s/%s/%s%s", own, beside[i / 2], name, i % 2 ? ".json" : "");
        if (access(buf, F_OK) == 0) return buf;
    }
    return given;
}

int tm_plan_show(const tm_plan_args *args, bool json) {
    tm_plan_report r;
    tm_stop_catch(); /* a scan may have spilled tokens into OUTPUT_DIR */
    tm_status status = tm_plan_run(args, &r);
    if (r.rank > 0) return tm_exit_status(status); /* the first rank says it */
    if (json && (status == TM_OK || status == TM_EBUDGET)) {
        tm_error keep = *tm_error_get();
        tm_error_clear();
        if (print_plan_json(&r) != TM_OK) return tm_cmd_fail();
        tm_error_set(&keep);
    }
    if (status != TM_OK) return tm_cmd_fail();
    if (!json) print_table(&r);
    return TM_EXIT_DONE;
}

int tm_cmd_plan(int argc, char **argv) {
    const char *set[256], *set_hardware[64], *word[1], *config = NULL;
    tm_opt_list sets = {.value = set, .cap = TM_COUNT(set)};
    tm_opt_list hardware_sets = {.value = set_hardware, .cap = TM_COUNT(set_hardware)};
    tm_plan_args a = {.hardware = NULL};
    const char *method = NULL, *chart = NULL;
    bool json = false, advise = false;
    const tm_opt opts[] = {
        TM_CONFIG_OPTION(&config),
        TM_OPTION("set", TM_OPT_LIST, &sets, "KEY=VALUE", "override one key of the configuration; may be repeated"),
        TM_OPTION("hardware", TM_OPT_STRING, &a.hardware, "HW.json", "plan for the machine of this file instead"),
        TM_OPTION("set-hardware", TM_OPT_LIST, &hardware_sets, "KEY=VALUE",
                  "override one key of that file (nodes, host_memory, gpu.count, disk.count, ..); may be repeated"),
        TM_OPTION("save-hardware", TM_OPT_STRING, &a.save_hardware, "HW.json",
                  "write what was measured here as such a file, to plan elsewhere or with more of something"),
        TM_OPTION(
            "method", TM_OPT_STRING, &method, "NAME,..",
            "full, lora, dora, qlora, dpo, ..: methods and budgets side by side; all without it, where there is no "
            "configuration"),
        TM_OPTION("chart", TM_OPT_STRING, &chart, "FILE.svg", "of that table: memory against seconds a step"),
        TM_FLAG("no-measure", &a.no_measure, "do not time operations that the profile lacks"),
        TM_OPTION("tbw", TM_OPT_DOUBLE, &a.tbw, "TB", "terabytes that may be written to the disk over its life"),
        TM_OPTION("timeline", TM_OPT_STRING, &a.timeline, "FILE", "draw the simulated step (.svg or .html)"),
        TM_OPTION("trace", TM_OPT_STRING, &a.trace, "FILE", "write the simulated step as Chrome trace JSON"),
        TM_FLAG("advise", &advise, "compare every strategy and every place of the state, and recommend one"),
        TM_FLAG("json", &json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "plan [CONFIG] [--KEY VALUE]... [--set key.path=value]... [--hardware HW.json] "
                 "[--set-hardware key=value]... [--advise] [--json]",
        .about = "Compiles the training step under the budget and says what it would take, without starting it. Needs "
                 "only the model's config.json; where data and tokenizer are there, the rows' lengths count, else "
                 "data.seq_len. "
                 "The first time it times the model's operations on this machine for a few seconds and remembers them. "
                 "Exit 2: it cannot fit, with the smallest change that fits. Without a configuration: what each method "
                 "would take of memory, seconds and disk.",
        .example = "tidemill plan --model DIR\n"
                   "tidemill plan --model DIR --method lora,qlora --chart memory.svg\n"
                   "tidemill plan config.json --set memory.host_budget=1GiB\n"
                   "tidemill plan config.json --hardware hardware/2x24gb.json --set-hardware disk.count=2\n"
                   "tidemill plan config.json --save-hardware here.json\n"
                   "tidemill plan config.json --hardware hardware/8x80gb.json --set-hardware nodes=8 --advise",
        TM_CLI_OPTIONS(opts),
        .keys = &sets,
        TM_CLI_WORDS(word, 0, 1),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    rc = tm_cli_config("plan", &config, word[0], &sets);
    if (rc >= 0) return rc;
    if (a.tbw < 0) return tm_cli_wrong("plan", "--tbw %g is not a number of terabytes", a.tbw);
    a.train =
        (tm_train_args){.config = config, .set = set, .n_set = sets.count, .quiet = true, .scorer = &tm_task_scorer};
    a.set_hardware = set_hardware;
    a.n_set_hardware = hardware_sets.count;
    if (a.n_set_hardware && !a.hardware)
        return tm_cli_wrong("plan", "--set-hardware %s changes a hardware file: give --hardware, too", set_hardware[0]);
    if (advise && (a.timeline || a.trace))
        return tm_cli_wrong("plan", "--advise compares plans; --timeline and --trace draw one");
    char found[4096];
    if (a.hardware) a.hardware = find_hardware(a.hardware, found, sizeof found);
    if (a.save_hardware && (a.hardware || advise))
        return tm_cli_wrong("plan", "--save-hardware writes what was measured here: not with --%s",
                            a.hardware ? "hardware" : "advise");
    tm_stop_catch();
    bool table = method || chart ||
                 (!config && !json && !advise && !a.timeline && !a.trace && !a.save_hardware &&
                  !tm_method_is_said(set, sets.count));
    if (table && (advise || a.timeline || a.trace || a.save_hardware))
        return tm_cli_wrong("plan", "--method and --chart are of a table of plans; --advise, --timeline, --trace and "
                                    "--save-hardware are not");
    if (table) return tm_plan_show_table(&a, method, chart, json);
    return advise ? tm_plan_show_advice(&a, json) : tm_plan_show(&a, json);
}
