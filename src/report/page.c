/* report.html: one file, no network. Names and texts of a run are hostile here: everything is escaped. */
#include "io/file/file.h"
#include "report/report_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- text --------------------------------------------------------------------------------------------------------- */

static tm_status put_escaped(tm_buf *b, const char *text) {
    static const struct {
        char c;
        const char *as;
    } marks[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (const char *c = text; *c; c++) {
        const char *as = NULL;
        for (size_t i = 0; i < TM_COUNT(marks) && !as; i++)
            if (marks[i].c == *c) as = marks[i].as;
        TM_TRY(as ? tm_buf_append(b, as, strlen(as)) : tm_buf_append(b, c, 1));
    }
    return TM_OK;
}

tm_status report_put_between(tm_buf *b, const char *open, const char *text, const char *close) {
    TM_TRY(tm_buf_append(b, open, strlen(open)));
    TM_TRY(put_escaped(b, text));
    return tm_buf_append(b, close, strlen(close));
}

static const char *in_seconds(double s, char *buf, size_t cap) {
    if (s < 60)
        snprintf(buf, cap, "%.3g s", s);
    else
        tm_format_left(s, buf, cap);
    return buf;
}

static const char *in_bytes(double n, char *buf, size_t cap) {
    return tm_format_size(n > 0 ? (uint64_t)n : 0, buf, cap);
}

/* ---- what it was -------------------------------------------------------------------------------------------------- */

static const char *method_of(const tm_history *r, char *buf, size_t cap) {
    const char *type = tm_history_text(r, "config.adapter.type", NULL);
    double rank = tm_history_number(r, "config.adapter.r", 0);
    const char *base = tm_history_text(r, "config.quantization.type", NULL);
    if (!tm_history_fact(r, "config.adapter"))
        snprintf(buf, cap, "full");
    else
        snprintf(buf, cap, "%s, rank %.0f%s%s", type ? type : "lora", rank, base ? ", base in " : "", base ? base : "");
    return buf;
}

static tm_status put_fact(tm_buf *b, const char *value, const char *name) {
    TM_TRY(report_put_between(b, "<div class=\"fact\"><b>", value, "</b><span>"));
    return report_put_between(b, "", name, "</span></div>\n");
}

static tm_status put_loss(tm_buf *b, const tm_history *r) {
    char value[64];
    const tm_series *loss = tm_history_series(r, "loss"), *eval = tm_history_series(r, "eval/loss");
    if (loss) {
        snprintf(value, sizeof value, "%.4f", loss->last.value);
        TM_TRY(put_fact(b, value, "loss of the last step"));
    }
    if (!eval) return TM_OK;
    snprintf(value, sizeof value, "%.4f", eval->last.value);
    return put_fact(b, value, "loss of the last evaluation");
}

static tm_status put_facts(tm_buf *b, const tm_history *r) {
    char value[64], peak[32], budget[32];
    const tm_history_sums *s = &r->sums;
    double total = tm_history_number(r, "total_steps", 0), limit = tm_history_number(r, "host_budget_bytes", 0);
    TM_TRY(tm_buf_printf(b, "<div class=\"facts\">\n"));
    if (total > 0)
        snprintf(value, sizeof value, "%lld of %.0f", (long long)r->step, total);
    else
        snprintf(value, sizeof value, "%lld", (long long)r->step);
    TM_TRY(put_fact(b, value, "steps"));
    TM_TRY(put_loss(b, r));
    TM_TRY(put_fact(b, in_seconds(s->step_seconds, value, sizeof value), "in steps"));
    snprintf(value, sizeof value, "%.0f", s->step_seconds > 0 ? (double)s->tokens / s->step_seconds : 0);
    TM_TRY(put_fact(b, value, "tokens a second"));
    snprintf(value, sizeof value, "%s%s%s", in_bytes((double)s->host_peak_bytes, peak, sizeof peak),
             limit > 0 ? " of " : "", limit > 0 ? in_bytes(limit, budget, sizeof budget) : "");
    TM_TRY(put_fact(b, value, "memory, at most"));
    TM_TRY(put_fact(b, in_bytes((double)(s->write_bytes + s->commit_bytes), value, sizeof value),
                    "written by steps and commits"));
    return tm_buf_printf(b, "</div>\n");
}

static tm_status put_head(tm_buf *b, const tm_history *const *runs, uint32_t n) {
    char method[96];
    const tm_history *r = runs[0];
    const char *model = tm_history_text(r, "config.model", NULL), *data = tm_history_text(r, "config.data.train", NULL);
    if (n > 1) return tm_buf_printf(b, "<h1>%u runs beside each other</h1>\n", n);
    TM_TRY(report_put_between(b, "<h1>", model ? report_last_name(model) : report_last_name(r->dir),
                              "</h1>\n<p class=\"soft\">"));
    TM_TRY(report_put_between(b, "", method_of(r, method, sizeof method), ""));
    TM_TRY(report_put_between(b, ", ", tm_history_text(r, "config.objective.type", "sft"), ""));
    TM_TRY(report_put_between(b, ", ", tm_history_text(r, "config.precision", ""), ""));
    if (data) TM_TRY(report_put_between(b, ", on ", report_last_name(data), ""));
    const char *status = r->ended ? "finished" : tm_history_text(r, "status", "of a run whose run.json is gone");
    TM_TRY(report_put_between(b, ". ", status, ".</p>\n"));
    if (r->ended && *r->state_hash)
        TM_TRY(report_put_between(b, "<p class=\"soft\">state hash <code>", r->state_hash, "</code></p>\n"));
    return put_facts(b, r);
}

/* ---- planned beside found ----------------------------------------------------------------------------------------- */

typedef const char *show_fn(double v, char *buf, size_t cap);

static tm_status put_pair(tm_buf *b, const char *what, double planned, double found, show_fn *show) {
    char p[48], f[48];
    if (planned <= 0) return TM_OK;
    TM_TRY(report_put_between(b, "<tr><td>", what, "</td>"));
    return tm_buf_printf(b, "<td>%s</td><td>%s</td><td>%.3g</td></tr>\n", show(planned, p, sizeof p),
                         show(found, f, sizeof f), found / planned);
}

static tm_status put_planned(tm_buf *b, const tm_history *r) {
    const tm_history_sums *s = &r->sums;
    double steps = s->steps > 0 ? (double)s->steps : 1;
    if (!tm_history_fact(r, "planned") || s->steps == 0) return TM_OK;
    TM_TRY(tm_buf_printf(b, "<h2>Planned and found</h2>\n<div class=\"scroll\"><table><tr><th></th><th>planned</th>"
                            "<th>found</th><th>ratio</th></tr>\n"));
    TM_TRY(put_pair(b, "seconds a step", tm_history_number(r, "planned.seconds_per_step", 0), s->step_seconds / steps,
                    in_seconds));
    TM_TRY(put_pair(b, "peak memory", tm_history_number(r, "planned.host_peak_bytes", 0), (double)s->host_peak_bytes,
                    in_bytes));
    TM_TRY(put_pair(b, "device memory", tm_history_number(r, "planned.device_peak_bytes", 0),
                    (double)s->device_peak_bytes, in_bytes));
    TM_TRY(put_pair(b, "read by a step (found: the last)", tm_history_number(r, "planned.read_bytes_per_step", 0),
                    (double)r->latest.read_bytes, in_bytes));
    TM_TRY(put_pair(b, "written by a step (found: the last)", tm_history_number(r, "planned.write_bytes_per_step", 0),
                    (double)r->latest.write_bytes, in_bytes));
    return tm_buf_printf(b, "</table></div>\n");
}

/* Where the seconds of the steps went: what compute waited for, and the rest. */
static tm_status put_seconds(tm_buf *b, const tm_history *r) {
    static const char *const say[TM_WAITS] = {"computing", "waiting for reads", "waiting for writes",
                                              "waiting for copies", "waiting for ranks"};
    const tm_history_sums *s = &r->sums;
    double known = 0, all = s->step_seconds;
    char text[48];
    for (int i = 0; i < TM_WAITS; i++) known += s->wait_seconds[i];
    if (all <= 0) return TM_OK;
    if (known > all) all = known;
    TM_TRY(tm_buf_printf(b, "<h2>Where the seconds went</h2>\n<div class=\"bar\">"));
    for (int i = 0; i < TM_WAITS; i++)
        TM_TRY(tm_buf_printf(b, "<div style=\"width:%.2f%%;background:var(--c%d)\"></div>",
                             100 * s->wait_seconds[i] / all, i));
    TM_TRY(tm_buf_printf(b, "</div>\n<div class=\"legend\">"));
    for (int i = 0; i < TM_WAITS; i++)
        if (s->wait_seconds[i] > 0)
            TM_TRY(tm_buf_printf(b, "<span><i style=\"background:var(--c%d)\"></i>%s: %s, %.1f%%</span>", i, say[i],
                                 in_seconds(s->wait_seconds[i], text, sizeof text), 100 * s->wait_seconds[i] / all));
    TM_TRY(tm_buf_printf(b, "<span>the rest: %s</span></div>\n", in_seconds(all - known, text, sizeof text)));
    if (s->commits)
        TM_TRY(tm_buf_printf(b, "<p class=\"soft\">Beside that %llu commits took %s.</p>\n",
                             (unsigned long long)s->commits, in_seconds(s->commit_seconds, text, sizeof text)));
    return TM_OK;
}

/* ---- several runs ------------------------------------------------------------------------------------------------- */

static tm_status put_beside(tm_buf *b, const tm_history *const *runs, uint32_t n) {
    TM_TRY(tm_buf_printf(b, "<div class=\"scroll\"><table><tr><th>run</th><th>method</th><th>steps</th><th>loss</th>"
                            "<th>evaluation</th><th>s a step</th><th>tokens/s</th><th>memory</th></tr>\n"));
    for (uint32_t i = 0; i < n; i++) {
        const tm_history *r = runs[i];
        const tm_history_sums *s = &r->sums;
        const tm_series *loss = tm_history_series(r, "loss"), *eval = tm_history_series(r, "eval/loss");
        char method[96], size[32];
        double steps = s->steps ? (double)s->steps : 1;
        TM_TRY(report_put_between(b, "<tr><td>", r->dir, "</td>"));
        TM_TRY(report_put_between(b, "<td>", method_of(r, method, sizeof method), "</td>"));
        TM_TRY(tm_buf_printf(b, "<td>%lld</td><td>%.4f</td>", (long long)r->step, loss ? loss->last.value : NAN));
        TM_TRY(eval ? tm_buf_printf(b, "<td>%.4f</td>", eval->last.value) : tm_buf_printf(b, "<td></td>"));
        TM_TRY(tm_buf_printf(b, "<td>%.3g</td><td>%.0f</td><td>%s</td></tr>\n", s->step_seconds / steps,
                             s->step_seconds > 0 ? (double)s->tokens / s->step_seconds : 0,
                             in_bytes((double)s->host_peak_bytes, size, sizeof size)));
    }
    return tm_buf_printf(b, "</table></div>\n");
}

/* ---- how to use it ------------------------------------------------------------------------------------------------ */

static tm_status put_commands(tm_buf *b, const tm_history *r) {
    const char *base = tm_history_text(r, "config.model", "MODEL"),
               *out = tm_history_text(r, "config.output_dir", r->dir);
    tm_buf text = {0};
    tm_status rc;
    if (tm_history_fact(r, "config.adapter"))
        rc = tm_buf_printf(&text,
                           "tidemill generate --model %s --adapter %s --prompt '...'\n"
                           "tidemill export %s merged --merge-adapter        # or merged.gguf --dtype q4_k_m\n"
                           "vllm serve %s --enable-lora --lora-modules mine=%s\n"
                           "# Python: PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(\"%s\"), \"%s\")",
                           base, out, out, base, out, base, out);
    else
        rc = tm_buf_printf(&text,
                           "tidemill generate --model %s --prompt '...'\n"
                           "tidemill export %s model.gguf --dtype q4_k_m       # for llama.cpp\n"
                           "vllm serve %s\n"
                           "# Python: AutoModelForCausalLM.from_pretrained(\"%s\")",
                           out, out, out, out);
    if (rc == TM_OK) rc = report_put_between(b, "<h2>To use the result</h2>\n<pre>", text.data, "</pre>\n");
    tm_buf_free(&text);
    return rc;
}

static tm_status put_warnings(tm_buf *b, const tm_history *r) {
    const tm_json *all = tm_history_fact(r, "warnings");
    uint64_t skipped = r->sums.skipped;
    if ((!all || all->count == 0) && skipped == 0 && r->sums.resumes == 0) return TM_OK;
    TM_TRY(tm_buf_printf(b, "<h2>What was out of the ordinary</h2>\n"));
    if (skipped)
        TM_TRY(tm_buf_printf(b, "<p class=\"warn\">%llu steps were skipped: a gradient was not finite.</p>\n",
                             (unsigned long long)skipped));
    if (r->sums.resumes)
        TM_TRY(tm_buf_printf(b, "<p>The run was interrupted and went on %llu times.</p>\n",
                             (unsigned long long)r->sums.resumes));
    for (const tm_json *w = all ? all->child : NULL; w; w = w->next)
        if (w->type == TM_JSON_STRING) TM_TRY(report_put_between(b, "<p class=\"warn\">", w->text, "</p>\n"));
    return TM_OK;
}

static tm_status put_versions(tm_buf *b, const tm_history *r) {
    TM_TRY(report_put_between(b, "<h2>What computed it</h2>\n<p>tidemill ", tm_history_text(r, "version", "?"), ""));
    TM_TRY(report_put_between(b, ", <code>", tm_history_text(r, "numerics", "?"), "</code></p>\n"));
    const tm_json *config = tm_history_fact(r, "config");
    if (!config) return TM_OK;
    tm_buf text = {0};
    tm_json_writer w;
    tm_jw_init(&w, &text, 1);
    tm_jw_node(&w, config);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK)
        rc = report_put_between(b, "<details><summary class=\"soft\">the configuration</summary><pre>", text.data,
                                "</pre></details>\n");
    tm_buf_free(&text);
    return rc;
}

/* ---- curves ------------------------------------------------------------------------------------------------------- */

/* Seven digits are more than a screen has. */
static void put_number(tm_json_writer *w, double v) {
    char text[32];
    int n = snprintf(text, sizeof text, "%.7g", v);
    tm_jw_raw(w, text, (size_t)n);
}

static void put_series(tm_json_writer *w, const tm_series *s, tm_point *room) {
    uint32_t n = tm_series_points(s, room);
    tm_jw_array(w);
    tm_jw_array(w);
    for (uint32_t i = 0; i < n; i++) tm_jw_int(w, room[i].step);
    tm_jw_array_end(w);
    tm_jw_array(w);
    for (uint32_t i = 0; i < n; i++) put_number(w, room[i].value);
    tm_jw_array_end(w);
    tm_jw_array_end(w);
}

/* Within a script element, which ends at the first "</script": so no '<' of a name is one here. */
static tm_status put_script_json(tm_buf *b, const tm_buf *json) {
    for (size_t at = 0; at < json->len;) {
        size_t run = strcspn(json->data + at, "<");
        TM_TRY(tm_buf_append(b, json->data + at, run));
        at += run;
        if (at == json->len) break;
        TM_TRY(tm_buf_append(b, "\\u003c", 6));
        at++;
    }
    return TM_OK;
}

/* A value by itself, through `scratch`. */
static void json_begin(tm_json_writer *w, tm_buf *scratch) {
    tm_buf_clear(scratch);
    tm_jw_init(w, scratch, 0);
    w->ascii = true;
}

static tm_status put_name(tm_buf *b, const char *name, tm_buf *scratch) {
    tm_json_writer w;
    json_begin(&w, scratch);
    tm_jw_str(&w, name);
    TM_TRY(tm_jw_end(&w));
    return put_script_json(b, scratch);
}

/* What is put together of a page: at most a part of it in memory. */
typedef struct page {
    tm_buf *text;
    tm_out *out;    /* where the text goes, part by part; NULL: it stays */
    tm_buf scratch; /* a value of the script's */
    tm_point *room; /* [TM_SERIES_POINTS + 2] */
} page;

static tm_status pour(page *p) {
    if (!p->out) return TM_OK;
    TM_TRY(tm_out_append(p->out, p->text->data, p->text->len));
    tm_buf_clear(p->text);
    return TM_OK;
}

static tm_status put_run(page *p, const tm_history *r) {
    tm_json_writer w;
    tm_buf *b = p->text;
    TM_TRY(tm_buf_printf(b, "{\"name\": "));
    TM_TRY(put_name(b, report_last_name(r->dir), &p->scratch));
    TM_TRY(tm_buf_printf(b, ", \"series\": {"));
    for (uint32_t k = 0; k < r->n_series; k++) {
        TM_TRY(put_name(b, r->series[k].name, &p->scratch));
        TM_TRY(tm_buf_printf(b, ": "));
        json_begin(&w, &p->scratch);
        put_series(&w, &r->series[k], p->room);
        TM_TRY(tm_jw_end(&w));
        TM_TRY(tm_buf_append(b, p->scratch.data, p->scratch.len));
        TM_TRY(tm_buf_printf(b, "%s\n", k + 1 < r->n_series ? "," : ""));
        TM_TRY(pour(p));
    }
    return tm_buf_printf(b, "}}");
}

/* The step that run.json has (offload/sim/sim.h: tm_timeline_json). */
static tm_status put_step(page *p, const tm_history *r) {
    tm_json_writer w;
    const tm_json *step = tm_history_fact(r, "step_timeline");
    json_begin(&w, &p->scratch);
    if (step)
        tm_jw_node(&w, step);
    else
        tm_jw_null(&w);
    TM_TRY(tm_jw_end(&w));
    return put_script_json(p->text, &p->scratch);
}

static tm_status put_code(tm_buf *b) {
    TM_TRY(tm_buf_printf(b, ";\n"));
    TM_TRY(tm_buf_append(b, report_js, strlen(report_js)));
    return tm_buf_printf(b, "</script>\n");
}

static tm_status put_script(page *p, const tm_history *const *runs, uint32_t n) {
    tm_buf *b = p->text;
    TM_TRY(tm_buf_printf(b, "<script>const RUNS = ["));
    for (uint32_t i = 0; i < n; i++) {
        TM_TRY(put_run(p, runs[i]));
        TM_TRY(tm_buf_printf(b, "%s", i + 1 < n ? ",\n" : ""));
    }
    TM_TRY(tm_buf_printf(b, "];\nconst STEP = "));
    TM_TRY(n == 1 ? put_step(p, runs[0]) : tm_buf_printf(b, "null"));
    return put_code(b);
}

static tm_status put_curves(tm_buf *b) {
    return tm_buf_printf(b, "<h2>Curves</h2>\n<p class=\"soft\">Drag to look at some of the steps, double-click to see "
                            "all.</p>\n<div class=\"charts\" id=\"charts\"></div>\n"
                            "<noscript><p>The curves are drawn by a script.</p></noscript>\n");
}

static tm_status put_timeline(tm_buf *b, const tm_history *r) {
    if (!tm_history_fact(r, "step_timeline")) return TM_OK;
    return tm_buf_printf(b, "<h2>One step, as it was planned</h2>\n<div class=\"chart\" id=\"step\"></div>\n");
}

/* ---- the page ----------------------------------------------------------------------------------------------------- */

static tm_status put_one(tm_buf *b, const tm_history *r) {
    TM_TRY(report_put_answers(b, r));
    TM_TRY(put_planned(b, r));
    TM_TRY(put_seconds(b, r));
    TM_TRY(put_timeline(b, r));
    TM_TRY(put_warnings(b, r));
    TM_TRY(put_commands(b, r));
    return put_versions(b, r);
}

static tm_status put_opening(tm_buf *b, const char *title) {
    TM_TRY(tm_buf_printf(b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"));
    TM_TRY(report_put_between(b, "<title>", title, " - tidemill</title>\n<style>"));
    TM_TRY(tm_buf_append(b, report_css, strlen(report_css)));
    return tm_buf_printf(b, "</style></head>\n<body><main>\n");
}

static tm_status put_page(page *p, const tm_history *const *runs, uint32_t n) {
    tm_buf *b = p->text;
    TM_TRY(put_opening(b, n == 1 ? report_last_name(runs[0]->dir) : "runs"));
    TM_TRY(put_head(b, runs, n));
    if (n > 1) TM_TRY(put_beside(b, runs, n));
    TM_TRY(put_curves(b));
    if (n == 1) TM_TRY(put_one(b, runs[0]));
    TM_TRY(pour(p));
    TM_TRY(put_script(p, runs, n));
    TM_TRY(tm_buf_printf(b, "</main></body></html>\n"));
    return pour(p);
}

static tm_status put_all(tm_buf *b, tm_out *out, const tm_history *const *runs, uint32_t n) {
    size_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = runs[i]->points > most ? runs[i]->points : most;
    page p = {.text = b, .out = out, .room = tm_malloc((most + 2) * sizeof *p.room)};
    tm_status rc = p.room ? put_page(&p, runs, n) : tm_nomem((most + 2) * sizeof *p.room);
    tm_buf_free(&p.scratch);
    tm_free(p.room);
    return rc;
}

tm_status tm_report_page(tm_buf *b, const tm_history *const *runs, uint32_t n) {
    return put_all(b, NULL, runs, n);
}

tm_status tm_report_write(const char *path, const tm_history *const *runs, uint32_t n) {
    tm_buf part = {0};
    tm_out *out;
    TM_TRY(tm_out_create_small(&out, path, REPORT_OUT_BYTES));
    tm_status rc = put_all(&part, out, runs, n);
    tm_buf_free(&part);
    return tm_out_end(out, rc);
}

/* ---- a step alone ------------------------------------------------------------------------------------------------- */

static tm_status put_step_page(tm_buf *b, const char *title, const char *subtitle, const tm_buf *step) {
    TM_TRY(put_opening(b, title));
    TM_TRY(report_put_between(b, "<h1>", title, "</h1>\n"));
    TM_TRY(report_put_between(b, "<p class=\"soft\">", subtitle, "</p>\n"));
    TM_TRY(tm_buf_printf(b, "<div class=\"chart\" id=\"step\"></div>\n<script>const RUNS = [], STEP = "));
    TM_TRY(put_script_json(b, step));
    TM_TRY(put_code(b));
    return tm_buf_printf(b, "</main></body></html>\n");
}

tm_status tm_report_step_write(const char *path, const char *title, const char *subtitle, const tm_buf *step) {
    tm_buf text = {0};
    tm_status rc = put_step_page(&text, title, subtitle, step);
    if (rc == TM_OK) rc = tm_file_write(path, text.data, text.len);
    tm_buf_free(&text);
    return rc;
}
