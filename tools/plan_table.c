/* Each cell is what `plan` says of that method under that budget; nothing here is estimated. */
#include "tools/plan_table.h"

#include "offload/machine/machine.h"
#include "tools/tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *tm_table_name(const tm_table_row *row) {
    return row->method ? row->method->name : "as said";
}

const char *tm_table_size(uint64_t bytes, char buf[TM_TABLE_SIZE_BYTES]) {
    if (bytes % TM_MIB)
        snprintf(buf, TM_TABLE_SIZE_BYTES, "%" PRIu64 "KiB", (bytes + 1023) / 1024);
    else
        snprintf(buf, TM_TABLE_SIZE_BYTES, "%" PRIu64 "MiB", bytes / TM_MIB);
    return buf;
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

typedef struct asking {
    const tm_plan_args *args;
    tm_method_settings method;
    const char *set[300];
    size_t n;
} asking;

/* The method's settings, then the user's, then the budget: what comes later counts. */
static tm_status ask(asking *a, uint64_t budget, tm_plan_report *out) {
    char text[64];
    tm_plan_args args = *a->args;
    a->n = 0;
    for (size_t i = 0; i < a->method.n; i++) a->set[a->n++] = a->method.set[i].data;
    for (size_t i = 0; i < args.train.n_set && a->n + 1 < TM_COUNT(a->set); i++) a->set[a->n++] = args.train.set[i];
    snprintf(text, sizeof text, "memory.host_budget=%" PRIu64, budget);
    a->set[a->n++] = text;
    args.train.set = a->set;
    args.train.n_set = a->n;
    return tm_plan_run(&args, out);
}

static void fill(tm_table_cell *c, uint64_t budget, const tm_plan_report *r) {
    *c = (tm_table_cell){.budget = budget,
                         .peak = r->host_peak_bytes,
                         .seconds = r->seconds_per_step,
                         .tokens_per_second = r->tokens_per_second,
                         .disk = r->disk_bytes,
                         .read = r->read_bytes_per_step,
                         .written = r->write_bytes_per_step};
}

/* Sizes that people have, each twice the one before. */
static uint64_t next_budget(uint64_t bytes) {
    uint64_t size = 64 * TM_MIB;
    while (size <= bytes + bytes / 8) size *= 2;
    return size;
}

/* From the least upwards, until a budget is more than the step has use for, or than there is. */
static tm_status fill_row(asking *a, uint64_t memory, tm_table_row *row) {
    tm_plan_report r;
    tm_status rc = ask(a, 1, &r);
    if (rc == TM_OK) rc = TM_EBUDGET; /* cannot be: a byte is no budget */
    if (rc != TM_EBUDGET || !r.minimum_host_bytes) {
        if (rc != TM_EINPUT && rc != TM_EUNSUPPORTED && rc != TM_EBUDGET) return rc;
        snprintf(row->why, sizeof row->why, "%s", tm_error_get()->text);
        tm_error_clear();
        return TM_OK;
    }
    tm_error_clear();
    row->least = r.minimum_host_bytes;
    row->parameters = r.parameters;
    row->learning = r.learning;
    for (uint64_t budget = row->least; row->n < TM_TABLE_BUDGETS; budget = next_budget(budget)) {
        if (row->n > 0 && budget > memory) return TM_OK;
        rc = ask(a, budget, &r);
        if (rc == TM_EBUDGET) {
            snprintf(row->why, sizeof row->why, "%s", tm_error_get()->text);
            tm_error_clear();
            return TM_OK;
        }
        TM_TRY(rc);
        fill(&row->cell[row->n++], budget, &r);
        if (r.read_bytes_per_step + r.write_bytes_per_step == 0) return TM_OK; /* all of it is in memory */
        if (row->n > 1 && r.host_peak_bytes <= row->cell[row->n - 2].peak) return TM_OK;
    }
    return TM_OK;
}

tm_status tm_table_fill(const tm_plan_args *args, uint64_t memory, tm_table_row *row) {
    static asking a;
    a = (asking){.args = args};
    tm_status rc = row->method ? tm_method_read(row->method, &a.method) : TM_OK;
    if (rc == TM_OK) rc = fill_row(&a, memory, row);
    tm_method_free(&a.method);
    return rc;
}

uint64_t tm_table_memory(const tm_plan_args *args, bool now) {
    if (args->hardware) return UINT64_MAX;
    uint64_t all = tm_mem_total_bytes(), free_bytes = tm_mem_available_bytes();
    return (now || all == UINT64_MAX ? free_bytes : all) / 5 * 4;
}

static tm_status look_for_gpus(const tm_plan_args *args, bool *gpus) {
    tm_machine m;
    *gpus = false;
    if (!args->hardware) return TM_OK;
    TM_TRY(tm_machine_load_with(args->hardware, args->set_hardware, args->n_set_hardware, &m));
    *gpus = m.gpus > 0;
    return TM_OK;
}

static tm_status take_compared(tm_table *t, const tm_plan_args *args) {
    bool gpus;
    TM_TRY(look_for_gpus(args, &gpus));
    for (size_t i = 0; i < tm_method_count; i++) {
        tm_method_settings s;
        tm_status rc = tm_method_read(&tm_methods[i], &s);
        if (rc == TM_OK && s.compared && (gpus || !s.on_gpu)) t->row[t->n++].method = &tm_methods[i];
        tm_method_free(&s);
        TM_TRY(rc);
    }
    return TM_OK;
}

static int take_methods(tm_table *t, const tm_plan_args *args, const char *names, bool as_said) {
    if (as_said) t->n = 1;
    if (!names && !as_said && take_compared(t, args) != TM_OK) return tm_cmd_fail();
    for (const char *at = names; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t n = strcspn(at, ",");
        const tm_method *m = tm_method_find(at, n);
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        const char *near = m ? NULL : tm_cli_suggest(word, tm_methods, tm_method_count, sizeof *tm_methods);
        if (!m)
            return tm_cli_wrong("plan", "unknown method '%s'%s%s%s", word, near ? "; did you mean '" : "",
                                near ? near : "", near ? "'?" : "; tidemill new --list has them");
        if (t->n == TM_TABLE_METHODS) return tm_cli_wrong("plan", "more methods than there are");
        t->row[t->n++].method = m;
    }
    return -1;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_cell(const tm_table_row *row, unsigned i, bool best) {
    char a[32], b[32], c[32], d[32];
    const tm_table_cell *x = &row->cell[i];
    printf("%c %-9s %11s%s %11.3f %11.0f %12s %12s %12s\n", best ? '*' : ' ', i ? "" : tm_table_name(row),
           tm_format_size(x->budget, a, sizeof a), i ? "         " : " (least) ", x->seconds, x->tokens_per_second,
           tm_format_size(x->disk, b, sizeof b), tm_format_size(x->read, c, sizeof c),
           tm_format_size(x->written, d, sizeof d));
}

unsigned tm_table_best(const tm_table_row *row) {
    double fastest = row->cell[0].seconds;
    for (unsigned i = 1; i < row->n; i++)
        if (row->cell[i].seconds < fastest) fastest = row->cell[i].seconds;
    unsigned i = 0;
    while (i + 1 < row->n && row->cell[i].seconds > 1.1 * fastest) i++;
    return i;
}

static void print_table(const tm_table *t, const char *model) {
    char size[32], now[32];
    uint64_t parameters = 0;
    for (unsigned i = 0; i < t->n; i++) parameters = tm_max_u64(parameters, t->row[i].parameters);
    printf("%s: %.1f M parameters", model, (double)parameters * 1e-6);
    if (t->memory != UINT64_MAX)
        printf("; this machine has %s for budgets, %s of it free now", tm_format_size(t->memory, size, sizeof size),
               tm_format_size(tm_min_u64(t->memory, tm_mem_available_bytes()), now, sizeof now));
    printf("\n\n");
    printf("  %-9s %11s          %11s %11s %12s %12s %12s\n", "method", "memory", "s/step", "tokens/s", "disk",
           "read/step", "written/step");
    for (unsigned i = 0; i < t->n; i++) {
        const tm_table_row *row = &t->row[i];
        for (unsigned k = 0; k < row->n; k++) print_cell(row, k, k == tm_table_best(row));
        if (!row->n) printf("  %-9s %s\n", tm_table_name(row), row->why);
    }
    printf("\nmemory: what --memory.host_budget would be; *: more memory saves less than a tenth of a step's time\n");
}

/* What an option gives `key`; NULL: none does. */
static const char *said(const tm_plan_args *args, const char *key) {
    const char *value = NULL;
    size_t len = strlen(key);
    for (size_t i = 0; i < args->train.n_set; i++) {
        const char *at = args->train.set[i] + (strncmp(args->train.set[i], "--", 2) ? 0 : 2);
        if (!strncmp(at, key, len) && at[len] == '=') value = at + len + 1;
    }
    return value;
}

static const char *model_of(const tm_plan_args *args) {
    const char *model = said(args, "model");
    return model ? model : "the model";
}

static const char *data_of(const tm_plan_args *args) {
    const char *data = said(args, "data.train");
    if (!data) data = said(args, "dataset");
    return data && *data != '[' && *data != '{' ? data : "FILE";
}

/* The first method that runs, to paste. Its budget `new` finds, for the template's batch. */
static void print_next(const tm_table *t, const tm_plan_args *args) {
    unsigned i = 0;
    while (i < t->n && !t->row[i].n) i++;
    for (unsigned k = i; k < t->n; k++) /* the adapter, where it is among them: it fits most machines */
        if (t->row[k].n && t->row[k].method && !strcmp(t->row[k].method->name, "lora")) i = k;
    if (i == t->n || !t->row[i].method) return;
    printf("next: tidemill new --model %s --data %s --method %s\n", model_of(args), data_of(args),
           t->row[i].method->name);
}

static tm_status print_table_json(const tm_table *t) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_uint(&w, "memory_bytes", t->memory);
    tm_jw_field_array(&w, "rows");
    for (unsigned i = 0; i < t->n; i++) {
        const tm_table_row *row = &t->row[i];
        tm_jw_object(&w);
        tm_jw_field_str(&w, "method", tm_table_name(row));
        tm_jw_field_uint(&w, "parameters", row->parameters);
        tm_jw_field_uint(&w, "learning_parameters", row->learning);
        tm_jw_field_uint(&w, "minimum_host_bytes", row->least);
        tm_jw_field_str(&w, "refused", *row->why ? row->why : NULL);
        tm_jw_field_array(&w, "budgets");
        for (unsigned k = 0; k < row->n; k++) {
            const tm_table_cell *c = &row->cell[k];
            tm_jw_object(&w);
            tm_jw_field_uint(&w, "host_budget_bytes", c->budget);
            tm_jw_field_uint(&w, "host_peak_bytes", c->peak);
            tm_jw_field_double(&w, "seconds_per_step", c->seconds);
            tm_jw_field_double(&w, "tokens_per_second", c->tokens_per_second);
            tm_jw_field_uint(&w, "disk_bytes", c->disk);
            tm_jw_field_uint(&w, "read_bytes_per_step", c->read);
            tm_jw_field_uint(&w, "write_bytes_per_step", c->written);
            tm_jw_object_end(&w);
        }
        tm_jw_array_end(&w);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

int tm_plan_show_table(const tm_plan_args *args, const char *methods, const char *chart, bool json) {
    static tm_table t;
    bool any = false;
    t = (tm_table){.memory = tm_table_memory(args, false)};
    int rc = take_methods(&t, args, methods, !methods && tm_method_is_said(args->train.set, args->train.n_set));
    if (rc >= 0) return rc;
    for (unsigned i = 0; i < t.n; i++) {
        if (tm_table_fill(args, t.memory, &t.row[i]) != TM_OK) return tm_cmd_fail();
        any |= t.row[i].n > 0;
    }
    if (!any) { /* all for one reason, as a model that is not there */
        tm_say("tidemill: %s\n", t.row[0].why);
        return TM_EXIT_INPUT;
    }
    if (chart && tm_chart_draw(&t, chart) != TM_OK) return tm_cmd_fail();
    if (json) return print_table_json(&t) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
    print_table(&t, model_of(args));
    tm_chart_print(&t);
    print_next(&t, args);
    return TM_EXIT_DONE;
}
