/* tidemill plan --advise: what each strategy and place of the state comes to, and which to take. */
#include "tools/advice.h"

#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

static void json_set(tm_json_writer *w, const tm_advice *a) {
    const tm_advice_row *r = &a->row[a->best];
    tm_jw_field_object(w, "set");
    if (a->stage != UINT32_MAX) tm_jw_field_uint(w, "zero_optimization.stage", a->stage);
    if (*r->strategy) tm_jw_field_str(w, "strategy", r->strategy);
    tm_jw_field_str(w, "offload_param_device", r->param);
    tm_jw_field_str(w, "offload_optimizer_device", r->optimizer);
    tm_jw_object_end(w);
}

static void json_row(tm_json_writer *w, const tm_advice_row *r) {
    const tm_plan_report *p = &r->plan;
    tm_jw_object(w);
    tm_jw_field_str(w, "strategy", r->strategy);
    tm_jw_field_str(w, "offload_param", r->param);
    tm_jw_field_str(w, "offload_optimizer", r->optimizer);
    tm_jw_field_bool(w, "fits", p->fits);
    tm_jw_field_str(w, "limit", p->limit);
    tm_jw_field_uint(w, "minimum_host_bytes", p->minimum_host_bytes);
    tm_jw_field_uint(w, "host_peak_bytes", p->host_peak_bytes);
    tm_jw_field_uint(w, "device_peak_bytes", p->device_peak_bytes);
    tm_jw_field_double(w, "seconds_per_step", p->seconds_per_step);
    tm_jw_field_double(w, "tokens_per_second", p->tokens_per_second);
    tm_jw_field_str(w, "bottleneck", p->bottleneck);
    tm_jw_field_uint(w, "link_bytes_per_step", p->link_bytes_per_step);
    tm_jw_field_uint(w, "nic_bytes_per_step", r->nic_bytes);
    tm_jw_field_uint(w, "disk_bytes_per_step", r->disk_bytes);
    tm_jw_object_end(w);
}

static tm_status print_advice_json(const tm_advice *a) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "machine", a->machine);
    tm_jw_field_uint(&w, "nodes", a->nodes);
    tm_jw_field_uint(&w, "ranks", a->ranks);
    tm_jw_field_uint(&w, "parameters", a->parameters);
    tm_jw_field_array(&w, "rows");
    for (uint32_t i = 0; i < a->n; i++) json_row(&w, &a->row[i]);
    tm_jw_array_end(&w);
    tm_jw_key(&w, "recommended");
    if (a->best < a->n) {
        tm_jw_object(&w);
        tm_jw_field_uint(&w, "row", a->best);
        json_set(&w, a);
        tm_jw_field_str(&w, "conflict", a->conflict);
        tm_jw_field_str(&w, "reason", a->reason);
        tm_jw_object_end(&w);
    } else {
        tm_jw_null(&w);
    }
    return tm_cli_print_json(&w);
}

static const char *size(uint64_t bytes, char out[32]) {
    return bytes ? tm_format_size(bytes, out, 32) : "-";
}

static void print_row(const tm_advice_row *r, bool best, bool device) {
    const tm_plan_report *p = &r->plan;
    char a[32], b[32], c[32], d[32], e[32];
    printf("%c %-8s %-6s %-9s ", best ? '*' : ' ', *r->strategy ? r->strategy : "-", r->param, r->optimizer);
    if (!p->fits) {
        const char *least = strcmp(p->limit, "host") == 0 ? size(p->minimum_host_bytes, a) : "-";
        printf("%-5s too little %s; least host %s\n", "no", *p->limit ? p->limit : "memory", least);
        return;
    }
    printf("%-5s %10s", "yes", size(p->host_peak_bytes, a));
    if (device) printf(" %10s", size(p->device_peak_bytes, b));
    printf(" %10.3f %10s %10s %10s  %s\n", p->seconds_per_step, size(p->link_bytes_per_step, c), size(r->nic_bytes, d),
           size(r->disk_bytes, e), p->bottleneck);
}

static void print_table(const tm_advice *a) {
    bool device = false;
    for (uint32_t i = 0; i < a->n; i++) device |= a->row[i].plan.has_device;
    printf("%s: %u rank%s on %u node%s, %.1f M parameters\n\n", a->machine, a->ranks, a->ranks > 1 ? "s" : "", a->nodes,
           a->nodes > 1 ? "s" : "", (double)a->parameters * 1e-6);
    printf("  %-8s %-6s %-9s %-5s %10s", "strategy", "params", "optimizer", "fits", "host");
    if (device) printf(" %10s", "device");
    printf(" %10s %10s %10s %10s  %s\n", "s/step", "node link", "NIC", "disk", "busiest");
    for (uint32_t i = 0; i < a->n; i++) print_row(&a->row[i], i == a->best, device);
    printf("\nhost%s: peak of a rank; node link: sent by a rank within its node a step; NIC: sent by a node; disk: "
           "read and "
           "written by a node\n",
           device ? ", device" : "");
    if (a->best == a->n) return;
    const tm_advice_row *r = &a->row[a->best];
    printf("take %s%sparameters %s, optimizer %s: %s\n    ", r->strategy, *r->strategy ? ", " : "", r->param,
           r->optimizer, a->reason);
    if (a->stage != UINT32_MAX) printf("--set zero_optimization.stage=%u ", a->stage);
    if (*r->strategy) printf("--set strategy=%s ", r->strategy);
    printf("--set offload_param_device=%s --set offload_optimizer_device=%s\n", r->param, r->optimizer);
    if (*a->conflict) printf("the configuration says otherwise and has to be changed there: %s\n", a->conflict);
}

int tm_plan_show_advice(const tm_plan_args *args, bool json) {
    static tm_advice a;
    tm_status status = tm_plan_advise(args, &a);
    if (a.rank > 0) return tm_exit_status(status); /* the first rank says it */
    if (status != TM_OK && status != TM_EBUDGET) return tm_cmd_fail();
    tm_error keep = *tm_error_get();
    tm_error_clear();
    if (json && print_advice_json(&a) != TM_OK) return tm_cmd_fail();
    if (!json) print_table(&a);
    if (status == TM_OK) return TM_EXIT_DONE;
    tm_error_set(&keep);
    return tm_cmd_fail();
}
