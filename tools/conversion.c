/* See conversion.h. */
#include "tools/conversion.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>

/* What one conversion needs whatever the model's size: buffers, the table of tensors, the tokenizer's text. */
#define CONVERT_MINIMUM (64 * TM_MIB)

static volatile sig_atomic_t stop;

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

/* Stopping goes through the ordinary way out, which removes what was begun. */
static void catch_signals(void) {
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < TM_COUNT(numbers); i++) (void)sigaction(numbers[i], &action, NULL);
}

/* ---- what became of each tensor ---- */

typedef struct row {
    char *name;
    tm_wrote_tensor t;
} row;
typedef struct conversion {
    tm_phase phase;
    row *row;
    size_t n, cap;
    bool incomplete; /* there was no memory for a row */
} conversion;

static void show(void *ctx, uint64_t done, uint64_t total) {
    conversion *c = ctx;
    c->phase.total = total;
    tm_phase_at(&c->phase, done);
}

static void keep(void *ctx, const tm_wrote_tensor *t) {
    conversion *c = ctx;
    row r = {tm_strdup(t->name), *t};
    if (!r.name || tm_grow(&c->row, &c->cap, c->n + 1, sizeof *c->row) != TM_OK) {
        c->incomplete = true;
        tm_error_clear();
        tm_free(r.name);
        return;
    }
    r.t.name = r.name;
    c->row[c->n++] = r;
}

static void free_rows(conversion *c) {
    for (size_t i = 0; i < c->n; i++) tm_free(c->row[i].name);
    tm_free(c->row);
}

/* Of all tensors together. */
static tm_wrote_tensor sum_of(const conversion *c) {
    tm_wrote_tensor all = {.name = "all"};
    double squares = 0;
    for (size_t i = 0; i < c->n; i++) {
        const tm_wrote_tensor *t = &c->row[i].t;
        all.elements += t->elements;
        all.bytes += t->bytes;
        all.power += t->power;
        squares += t->error * t->error * t->power;
    }
    all.error = all.power > 0 ? sqrt(squares / all.power) : 0;
    return all;
}

static void print_text(const conversion *c) {
    tm_wrote_tensor all = sum_of(c);
    if (!(all.error > 0)) return;
    for (size_t i = 0; i < c->n; i++) {
        const tm_wrote_tensor *t = &c->row[i].t;
        if (t->error > 0) printf("%-44s %-5s error %.6f\n", t->name, t->type, t->error);
    }
    printf("%" PRIu64 " bytes of weights, %.2f bits a weight, error %.6f\n", all.bytes,
           8 * (double)all.bytes / (double)all.elements, all.error);
}

static void put_row(tm_json_writer *w, const tm_wrote_tensor *t) {
    if (t->type) tm_jw_field_str(w, "type", t->type);
    tm_jw_field_uint(w, "elements", t->elements);
    tm_jw_field_uint(w, "bytes", t->bytes);
    tm_jw_field_double(w, "error", t->error);
}

static int print_json(const conversion *c, const char *out) {
    tm_json_writer w;
    tm_wrote_tensor all = sum_of(c);
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "out", out);
    put_row(&w, &all);
    tm_jw_field_array(&w, "tensors");
    for (size_t i = 0; i < c->n; i++) {
        tm_jw_object(&w);
        tm_jw_field_str(&w, "name", c->row[i].name);
        put_row(&w, &c->row[i].t);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

static int report_of(const conversion *c, const char *out, tm_conversion_report report) {
    if (c->incomplete) {
        (void)tm_nomem(c->n * sizeof *c->row);
        return tm_cmd_fail();
    }
    if (report == TM_REPORT_JSON) return print_json(c, out);
    if (report == TM_REPORT_TEXT) print_text(c);
    return TM_EXIT_DONE;
}

int tm_run_conversion(const char *what, tm_export_request r, uint64_t host_budget, tm_conversion_report report) {
    conversion c = {.n = 0};
    if (host_budget < CONVERT_MINIMUM) {
        (void)tm_fail(TM_EBUDGET, "%s needs a host budget of %llu bytes (64MiB)", what,
                      (unsigned long long)CONVERT_MINIMUM);
        return tm_cmd_fail();
    }
    if (tm_threads_try((unsigned)omp_get_max_threads() - 1, "threads that encode (fewer: OMP_NUM_THREADS)") != TM_OK)
        return tm_cmd_fail();
    r.convert.progress = show, r.convert.ctx = &c, r.convert.stop = &stop;
    r.convert.wrote = report == TM_REPORT_NOTHING ? NULL : keep;
    tm_phase_begin(&c.phase, what, NULL, 0);
    catch_signals();
    tm_status status = tm_export(&r);
    tm_phase_end(&c.phase);
    int rc = status == TM_OK ? report_of(&c, r.out, report) : tm_cmd_fail();
    free_rows(&c);
    return rc;
}
