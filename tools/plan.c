/* tidemill plan */
#include "tools/tools.h"
#include "train/train.h"

#include <stdio.h>

static void field_uint(tm_json_writer *w, const char *key, uint64_t v) {
    tm_jw_key(w, key);
    tm_jw_uint(w, v);
}

static void field_str(tm_json_writer *w, const char *key, const char *v) {
    tm_jw_key(w, key);
    tm_jw_str(w, v);
}

static tm_status print_json(const tm_plan_report *r) {
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_key(&w, "fits");
    tm_jw_bool(&w, r->fits);
    field_uint(&w, "parameters", r->parameters);
    tm_jw_key(&w, "host_budget_bytes");
    if (r->host_budget_bytes == UINT64_MAX)
        tm_jw_str(&w, "unlimited");
    else
        tm_jw_uint(&w, r->host_budget_bytes);
    field_uint(&w, "minimum_host_bytes", r->minimum_host_bytes);
    field_uint(&w, "host_peak_bytes", r->host_peak_bytes);
    field_uint(&w, "device_peak_bytes", r->device_peak_bytes);
    field_uint(&w, "disk_bytes", r->disk_bytes);
    field_uint(&w, "resident_bytes", r->resident_bytes);
    field_uint(&w, "read_bytes_per_step", r->read_bytes_per_step);
    field_uint(&w, "write_bytes_per_step", r->write_bytes_per_step);
    tm_jw_key(&w, "seconds_per_step");
    tm_jw_double(&w, r->seconds_per_step);
    field_str(&w, "seconds_basis", "nominal rates, not measured");
    field_str(&w, "bottleneck", r->bottleneck);
    field_str(&w, "update", r->update);
    field_str(&w, "activations", r->activations);
    field_str(&w, "order", r->order);
    field_uint(&w, "operations", r->operations);
    field_uint(&w, "micro_batches", r->micro_batches);
    field_uint(&w, "rows", r->rows);
    field_uint(&w, "seq", r->seq);
    tm_jw_object_end(&w);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK) puts(out.data);
    tm_buf_free(&out);
    return rc;
}

static void print_table(const tm_plan_report *r) {
    char a[32], b[32];
    double params = (double)r->parameters, moved = (double)(r->read_bytes_per_step + r->write_bytes_per_step);
    printf("model            %.1f M parameters, %u micro-batches of %u x %u\n", params * 1e-6, r->micro_batches,
           r->rows, r->seq);
    printf("host memory      %s at the peak, %s at the least\n", tm_format_size(r->host_peak_bytes, a, sizeof a),
           tm_format_size(r->minimum_host_bytes, b, sizeof b));
    printf("resident state   %s\n", tm_format_size(r->resident_bytes, a, sizeof a));
    printf("disk space       %s\n", tm_format_size(r->disk_bytes, a, sizeof a));
    printf("a step           reads %s, writes %s (%.1f bytes a parameter)\n",
           tm_format_size(r->read_bytes_per_step, a, sizeof a), tm_format_size(r->write_bytes_per_step, b, sizeof b),
           moved / params);
    printf("wear             %.3f TB written per 1,000 steps\n", (double)r->write_bytes_per_step * 1e-9);
    printf("chosen           update %s, activations %s, %s by %s, %u operations\n", r->update, r->activations, r->order,
           r->order, r->operations);
    printf("time             about %.1f s a step at nominal rates, bound by %s\n", r->seconds_per_step, r->bottleneck);
}

int tm_cmd_plan(int argc, char **argv) {
    const char *set[256], *config[1] = {NULL}, *hardware = NULL;
    tm_opt_list sets = {.value = set, .cap = TM_COUNT(set)};
    bool json = false;
    const tm_opt opts[] = {
        TM_OPTION("set", TM_OPT_LIST, &sets, "KEY=VALUE", "override one key of the configuration; may be repeated"),
        TM_OPTION("hardware", TM_OPT_STRING, &hardware, "HW.json", "not in this version"),
        TM_FLAG("json", &json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "plan CONFIG.json [--set key.path=value]... [--json]",
        .about = "Compiles the training step under the budget and says what it would take, without starting it. Needs "
                 "only the "
                 "model's config.json; where the data are there, their longest rows count, else data.seq_len. Exit 2: "
                 "it cannot fit.",
        .example = "tidemill plan config.json --set memory.host_budget=1GiB",
        .opts = opts,
        .n_opts = TM_COUNT(opts),
        .positional = config,
        .min_positional = 1,
        .max_positional = 1,
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (hardware) return tm_cli_wrong("plan", "--hardware is not supported by this version");
    tm_plan_report r;
    tm_status status =
        tm_plan_run(&(tm_train_args){.config = config[0], .set = set, .n_set = sets.count, .quiet = true}, &r);
    if (json && (status == TM_OK || status == TM_EBUDGET)) {
        tm_error keep = *tm_error_get();
        tm_error_clear();
        if (print_json(&r) != TM_OK) return tm_cmd_fail();
        tm_error_set(&keep);
    }
    if (status != TM_OK) return tm_cmd_fail();
    if (!json) print_table(&r);
    return TM_EXIT_DONE;
}
