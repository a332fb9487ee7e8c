/* See conversion.h. */
#include "tools/conversion.h"
#include "infer/infer.h"

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
    const tm_conversion *asked;
    tm_phase phase;
    row *row;
    size_t n, cap;
    bool incomplete; /* there was no memory for a row */
    tm_eval_result before, after;
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

static void print_errors(const conversion *c) {
    tm_wrote_tensor all = sum_of(c);
    if (!(all.error > 0)) return;
    for (size_t i = 0; i < c->n; i++) {
        const tm_wrote_tensor *t = &c->row[i].t;
        if (!(t->error > 0)) continue;
        printf("%-44s %-5s error %.6f", t->name, t->type, t->error);
        if (t->output_error > 0) printf("  of products %.6f", t->output_error);
        printf("\n");
    }
    printf("%" PRIu64 " bytes of weights, %.2f bits a weight, error %.6f\n", all.bytes,
           8 * (double)all.bytes / (double)all.elements, all.error);
}

static void print_text(const conversion *c) {
    print_errors(c);
    if (c->asked->eval)
        printf("perplexity %.4f, was %.4f, of %" PRIu64 " tokens of %s\n", c->after.perplexity, c->before.perplexity,
               c->after.label_tokens, c->asked->eval);
}

static void put_perplexity(tm_json_writer *w, const conversion *c) {
    tm_jw_field_object(w, "perplexity");
    tm_jw_field_double(w, "before", c->before.perplexity);
    tm_jw_field_double(w, "after", c->after.perplexity);
    tm_jw_field_uint(w, "tokens", c->after.label_tokens);
    tm_jw_object_end(w);
}

static void put_row(tm_json_writer *w, const tm_wrote_tensor *t) {
    if (t->type) tm_jw_field_str(w, "type", t->type);
    tm_jw_field_uint(w, "elements", t->elements);
    tm_jw_field_uint(w, "bytes", t->bytes);
    tm_jw_field_double(w, "error", t->error);
    if (t->output_error > 0) tm_jw_field_double(w, "output_error", t->output_error);
}

static int print_json(const conversion *c) {
    tm_json_writer w;
    tm_wrote_tensor all = sum_of(c);
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "out", c->asked->request.out);
    put_row(&w, &all);
    if (c->asked->eval) put_perplexity(&w, c);
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

static int report_of(const conversion *c) {
    tm_conversion_report report = c->asked->report;
    if (c->incomplete) {
        (void)tm_nomem(c->n * sizeof *c->row);
        return tm_cmd_fail();
    }
    if (report == TM_REPORT_JSON) return print_json(c);
    if (report == TM_REPORT_TEXT) print_text(c);
    return TM_EXIT_DONE;
}

/* ---- perplexity ---- */

static tm_status judge(const conversion *c, const char *model, const char *adapter, tm_eval_result *out) {
    const tm_conversion *asked = c->asked;
    const tm_eval_args args = {.model = model,
                               .data = &asked->eval,
                               .n_data = 1,
                               .tiers = {.host_budget = asked->host_budget == UINT64_MAX ? 0 : asked->host_budget,
                                         .offload_path = asked->offload,
                                         .adapter = adapter}};
    TM_TRY(tm_eval_run(&args, out));
    return out->by_sample || !out->label_tokens
               ? tm_fail(TM_EINPUT, "%s: has no tokens that perplexity could be of", asked->eval)
               : TM_OK;
}

/* Of an adapter: its base with it. */
static tm_status judge_source(conversion *c) {
    const tm_export_request *r = &c->asked->request;
    tm_buf base = {0};
    tm_adapter_folder *f;
    if (!tm_is_adapter_folder(r->in)) return judge(c, r->in, NULL, &c->before);
    if (!r->merge)
        return tm_fail(TM_EINPUT, "%s: perplexity is a model's; with --merge-adapter there is one to take it of",
                       r->in);
    TM_TRY(tm_adapter_folder_open(&f, r->in));
    tm_status rc = tm_adapter_folder_base(f, r->base, &base);
    tm_adapter_folder_close(f);
    if (rc == TM_OK) rc = judge(c, base.data, r->in, &c->before);
    tm_buf_free(&base);
    return rc;
}

/* ---- the whole ---- */

static tm_status check_budget(const tm_conversion *asked) {
    if (asked->host_budget >= CONVERT_MINIMUM) return TM_OK;
    return tm_fail(TM_EBUDGET, "%s needs a host budget of %llu bytes (64MiB)", asked->what,
                   (unsigned long long)CONVERT_MINIMUM);
}

static tm_status run_export(conversion *c) {
    tm_export_request r = c->asked->request;
    r.convert.progress = show, r.convert.ctx = c, r.convert.stop = &stop;
    r.convert.wrote = c->asked->report == TM_REPORT_NOTHING ? NULL : keep;
    tm_phase_begin(&c->phase, c->asked->what, NULL, 0);
    catch_signals();
    tm_status rc = tm_export(&r);
    tm_phase_end(&c->phase);
    return rc;
}

static tm_status run_all(conversion *c) {
    TM_TRY(check_budget(c->asked));
    if (c->asked->eval) TM_TRY(judge_source(c));
    TM_TRY(tm_threads_try((unsigned)omp_get_max_threads() - 1, "threads that encode (fewer: OMP_NUM_THREADS)"));
    TM_TRY(run_export(c));
    return c->asked->eval ? judge(c, c->asked->request.out, NULL, &c->after) : TM_OK;
}

int tm_run_conversion(const tm_conversion *asked) {
    conversion c = {.asked = asked};
    int rc = run_all(&c) == TM_OK ? report_of(&c) : tm_cmd_fail();
    free_rows(&c);
    tm_eval_free(&c.before);
    tm_eval_free(&c.after);
    return rc;
}
