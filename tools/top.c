/* tidemill top OUTPUT_DIR: a run, watched from elsewhere. It reads what the run has written, and nothing else. */
#include "io/file/file.h"
#include "report/report.h"
#include "tools/tools.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WIDEST = 160, USUAL = 80, CURVE_ROWS = 7 };

typedef struct view {
    tm_history *r;
    const char *dir;
    unsigned columns;
    bool utf8;
    int64_t total;
    double each, left, age; /* seconds: a step, the run, since the log grew; NAN: not known */
} view;

static unsigned stdout_columns(void) {
    struct winsize size = {0};
    unsigned columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : USUAL;
    return columns > WIDEST ? WIDEST : columns;
}

static double log_age(const char *dir) {
    char path[4200];
    struct stat st;
    struct timespec now;
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    if (stat(path, &st) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return NAN;
    return fmax(0, (double)(now.tv_sec - st.st_mtim.tv_sec) + 1e-9 * (double)(now.tv_nsec - st.st_mtim.tv_nsec));
}

static void look(view *v) {
    const tm_history_sums *s = &v->r->sums;
    v->total = (int64_t)tm_history_number(v->r, "total_steps", 0);
    v->each = s->steps ? s->step_seconds / (double)s->steps : NAN;
    v->left = v->r->ended ? 0 : v->total > v->r->step ? v->each * (double)(v->total - v->r->step) : NAN;
    v->age = log_age(v->dir);
    v->columns = stdout_columns();
}

static const char *status_of(const view *v) {
    return v->r->ended ? "finished" : tm_history_text(v->r, "status", "no run.json");
}

static double last_of(const tm_history *r, const char *name) {
    const tm_series *s = tm_history_series(r, name);
    return s ? s->last.value : NAN;
}

/* ---- for programs ------------------------------------------------------------------------------------------------- */

static tm_status print_json(const view *v) {
    tm_json_writer w;
    const tm_history_sums *s = &v->r->sums;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "output_dir", v->dir);
    tm_jw_field_str(&w, "status", status_of(v));
    tm_jw_field_int(&w, "step", v->r->step);
    tm_jw_field_int(&w, "total_steps", v->total);
    tm_jw_field_double(&w, "loss", last_of(v->r, "loss"));
    tm_jw_field_double(&w, "eval_loss", last_of(v->r, "eval/loss"));
    tm_jw_field_double(&w, "learning_rate", last_of(v->r, "learning_rate"));
    tm_jw_field_double(&w, "tokens_per_second", last_of(v->r, "tokens_per_second"));
    tm_jw_field_double(&w, "seconds_per_step", v->each);
    tm_jw_field_double(&w, "planned_seconds_per_step", tm_history_number(v->r, "planned.seconds_per_step", NAN));
    tm_jw_field_double(&w, "seconds_left", v->left);
    tm_jw_field_double(&w, "seconds_since_log", v->age);
    tm_jw_field_uint(&w, "tokens", s->tokens);
    tm_jw_field_uint(&w, "host_peak_bytes", s->host_peak_bytes);
    tm_jw_field_double(&w, "host_budget_bytes", tm_history_number(v->r, "host_budget_bytes", NAN));
    tm_jw_field_uint(&w, "device_peak_bytes", s->device_peak_bytes);
    tm_jw_field_uint(&w, "read_bytes", s->read_bytes);
    tm_jw_field_uint(&w, "write_bytes", s->write_bytes);
    tm_jw_field_uint(&w, "commits", s->commits);
    tm_jw_field_int(&w, "committed_step", v->r->committed);
    tm_jw_field_uint(&w, "checkpoints", s->checkpoints);
    tm_jw_field_uint(&w, "resumes", s->resumes);
    tm_jw_field_uint(&w, "skipped", s->skipped);
    tm_jw_field_uint(&w, "ranks", v->r->ranks);
    tm_jw_field_object(&w, "wait_seconds");
    for (int i = 0; i < TM_WAITS; i++) tm_jw_field_double(&w, tm_wait_names[i], s->wait_seconds[i]);
    tm_jw_object_end(&w);
    return tm_cli_print_json(&w);
}

/* ---- for people --------------------------------------------------------------------------------------------------- */

static tm_status put_bar(tm_buf *b, const view *v, double share, unsigned columns) {
    unsigned full = (unsigned)(fmin(fmax(share, 0), 1) * columns + 0.5);
    for (unsigned i = 0; i < columns; i++)
        TM_TRY(i < full ? tm_buf_printf(b, "%s", v->utf8 ? "\xe2\x96\x88" : "#")
                        : tm_buf_printf(b, "%s", v->utf8 ? "\xe2\x96\x91" : "."));
    return TM_OK;
}

static tm_status put_head(tm_buf *b, const view *v) {
    char left[24];
    double share = v->total > 0 ? (double)v->r->step / (double)v->total : 0;
    TM_TRY(tm_buf_printf(b, "%.*s: %s\n", (int)v->columns - 12, v->dir, status_of(v)));
    TM_TRY(tm_buf_printf(b, "step %lld", (long long)v->r->step));
    if (v->total > 0) TM_TRY(tm_buf_printf(b, "/%lld ", (long long)v->total));
    if (v->total > 0) TM_TRY(put_bar(b, v, share, v->columns > 70 ? 30 : 10));
    if (isfinite(v->left) && v->left > 0)
        TM_TRY(tm_buf_printf(b, " left %s", tm_format_left(v->left, left, sizeof left)));
    return tm_buf_printf(b, "\n");
}

static tm_status put_loss(tm_buf *b, const view *v) {
    const tm_series *loss = tm_history_series(v->r, "loss"), *eval = tm_history_series(v->r, "eval/loss");
    if (!loss) return tm_buf_printf(b, "no step yet\n");
    TM_TRY(tm_buf_printf(b, "loss %.4f", loss->last.value));
    if (eval) TM_TRY(tm_buf_printf(b, ", evaluation %.4f at step %lld", eval->last.value, (long long)eval->last.step));
    TM_TRY(tm_buf_printf(b, "\n"));
    if (!v->utf8) return TM_OK;
    tm_point *p = tm_malloc((TM_SERIES_POINTS + 2) * sizeof *p);
    if (!p) return tm_nomem((TM_SERIES_POINTS + 2) * sizeof *p);
    tm_status rc = tm_curve_picture(b, p, tm_series_points(loss, p), v->columns - 1, CURVE_ROWS);
    tm_free(p);
    return rc;
}

/* Of the latest step: it tells what goes on now. */
static tm_status put_seconds(tm_buf *b, const view *v) {
    static const char *const say[TM_WAITS] = {"computing", "reads", "writes", "copies", "ranks"};
    const tm_history_sums *s = &v->r->latest;
    double planned = tm_history_number(v->r, "planned.seconds_per_step", NAN);
    if (!s->steps || s->step_seconds <= 0) return TM_OK;
    TM_TRY(tm_buf_printf(b, "a step %.3g s", v->each));
    if (isfinite(planned)) TM_TRY(tm_buf_printf(b, " (planned %.3g)", planned));
    TM_TRY(tm_buf_printf(b, ", the last %.3g: ", s->step_seconds));
    for (int i = 0, told = 0; i < TM_WAITS; i++) {
        double share = s->wait_seconds[i] / s->step_seconds;
        if (share < 0.005) continue;
        TM_TRY(tm_buf_printf(b, "%s%s %.0f%%", told++ ? ", " : "", say[i], 100 * share));
    }
    return tm_buf_printf(b, "\n");
}

static tm_status put_amounts(tm_buf *b, const view *v) {
    char peak[32], budget[32];
    const tm_history_sums *s = &v->r->sums, *now = &v->r->latest;
    double limit = tm_history_number(v->r, "host_budget_bytes", 0);
    double rate = now->step_seconds > 0 ? (double)(now->read_bytes + now->write_bytes) / now->step_seconds : 0;
    TM_TRY(tm_buf_printf(b, "%.0f tokens/s, memory %s", last_of(v->r, "tokens_per_second"),
                         tm_format_size(s->host_peak_bytes, peak, sizeof peak)));
    if (limit > 0) TM_TRY(tm_buf_printf(b, " of %s", tm_format_size((uint64_t)limit, budget, sizeof budget)));
    TM_TRY(tm_buf_printf(b, ", disk %.2f GB/s, read %.2f GB, written %.2f GB\n", rate * 1e-9,
                         (double)s->read_bytes * 1e-9, (double)s->write_bytes * 1e-9));
    TM_TRY(tm_buf_printf(b, "%llu commits", (unsigned long long)s->commits));
    if (v->r->committed) TM_TRY(tm_buf_printf(b, " (step %lld)", (long long)v->r->committed));
    TM_TRY(tm_buf_printf(b, ", %llu checkpoints, %llu resumes", (unsigned long long)s->checkpoints,
                         (unsigned long long)s->resumes));
    if (v->r->ranks > 1) TM_TRY(tm_buf_printf(b, ", %u ranks", v->r->ranks));
    if (s->skipped) TM_TRY(tm_buf_printf(b, ", %llu steps skipped", (unsigned long long)s->skipped));
    if (!v->r->ended && isfinite(v->age)) TM_TRY(tm_buf_printf(b, "; the log grew %.0f s ago", v->age));
    return tm_buf_printf(b, "\n");
}

/* Lines are cut where the terminal ends. Returns how many there are. */
static unsigned show(const view *v, const tm_buf *text) {
    unsigned lines = 0;
    for (char *at = text->data, *end; at && (end = strchr(at, '\n')); at = end + 1, lines++) {
        *end = 0;
        bool picture = (unsigned char)at[0] == 0xe2 || strchr(at, '\xe2');
        int n = picture ? (int)(end - at) : (int)tm_live_cut(at, v->columns - 1);
        printf("%.*s\n", n, at);
    }
    fflush(stdout);
    return lines;
}

static tm_status draw(const view *v, unsigned *lines) {
    tm_buf text = {0};
    tm_status rc;
    TM_GO(put_head(&text, v));
    TM_GO(put_loss(&text, v));
    TM_GO(put_seconds(&text, v));
    TM_GO(put_amounts(&text, v));
    if (*lines) printf("\033[%uA\033[J", *lines);
    *lines = show(v, &text);
done:
    tm_buf_free(&text);
    return rc;
}

static tm_status watch(view *v, bool once, bool json, double every) {
    unsigned lines = 0;
    bool terminal = isatty(STDOUT_FILENO) == 1;
    for (;;) {
        look(v);
        TM_TRY(json ? print_json(v) : draw(v, &lines));
        if (once || json || v->r->ended) return TM_OK;
        if (!terminal) lines = 0;
        struct timespec nap = {(time_t)every, (long)(fmod(every, 1) * 1e9)};
        nanosleep(&nap, NULL);
        TM_TRY(tm_history_follow(v->r));
    }
}

int tm_cmd_top(int argc, char **argv) {
    const char *dir[1] = {NULL};
    bool once = false, json = false;
    double every = 1;
    const tm_opt opts[] = {TM_FLAG("once", &once, "show it and end"),
                           TM_FLAG("json", &json, "one JSON object in a line, and end"),
                           TM_OPTION("every", TM_OPT_DOUBLE, &every, "SECONDS", "between looks; 1 unless it is said")};
    const tm_cli cli = {.usage = "top OUTPUT_DIR [--once] [--json] [--every SECONDS]",
                        .about = "Watches a run that trains into OUTPUT_DIR: step and time left, loss and its curve, "
                                 "where the seconds of a step go, "
                                 "memory, bytes, commits. It reads what the run writes and disturbs nothing; it ends "
                                 "with the run, or with Ctrl-C.",
                        .example = "tidemill top out\ntidemill top out --json",
                        TM_CLI_OPTIONS(opts),
                        TM_CLI_WORDS(dir, 1, 1)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (!(every >= 0.1 && every <= 3600)) return tm_cli_wrong("top", "--every: from 0.1 to 3600 seconds");
    view v = {.dir = dir[0], .utf8 = tm_terminal_is_utf8()};
    tm_status status = tm_history_open(&v.r, dir[0], 0);
    if (status == TM_OK) status = watch(&v, once, json, every);
    tm_history_close(v.r);
    return status == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
