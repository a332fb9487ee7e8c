/* tidemill report DIR [DIR...]: what runs left, as one page. */
#include "tools/report.h"
#include "infer/infer.h"
#include "io/file/file.h"
#include "report/report.h"
#include "tools/tools.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RUNS = 12 };

static tm_status write_page(const char *const *dirs, uint32_t n, const char *path, bool say) {
    tm_history *runs[MOST_RUNS] = {0};
    tm_status rc = TM_OK;
    for (uint32_t i = 0; i < n && rc == TM_OK; i++) rc = tm_history_open(&runs[i], dirs[i], 0);
    if (rc == TM_OK) rc = tm_report_write(path, (const tm_history *const *)runs, n);
    if (rc == TM_OK && say) tm_say("%s\n", path);
    for (uint32_t i = 0; i < n; i++) tm_history_close(runs[i]);
    return rc;
}

static tm_status seconds_of(const char *dir, double *seconds) {
    enum { FEW_POINTS = 8 };
    tm_history *r;
    TM_TRY(tm_history_open(&r, dir, FEW_POINTS));
    *seconds = r->sums.step_seconds + r->sums.commit_seconds;
    tm_history_close(r);
    return TM_OK;
}

static tm_status write_own_page(const char *dir, bool say) {
    char path[4200];
    snprintf(path, sizeof path, "%s/report.html", dir);
    return write_page(&dir, 1, path, say);
}

/* Of a hundredth of a shorter run nothing could be answered. */
static const double SHORTEST_SECONDS = 5, SHARE = 0.01;

static tm_status answer_ended(const char *dir) {
    double seconds;
    tm_answers a;
    TM_TRY(seconds_of(dir, &seconds));
    if (seconds < SHORTEST_SECONDS) return TM_OK;
    TM_TRY(tm_answers_run(&(tm_answers_args){.run = dir, .most_seconds = SHARE * seconds}, &a));
    return a.questions ? write_own_page(dir, false) : TM_OK;
}

void tm_report_ended(const char *dir) {
    if (answer_ended(dir) == TM_OK) return;
    tm_log(TM_LOG_WARN, "held-out answers: %s; report.html is without them", tm_error_get()->text);
    tm_error_clear();
}

static tm_status answer_now(const char *const *dirs, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        tm_answers a;
        TM_TRY(tm_answers_run(&(tm_answers_args){.run = dirs[i], .most_seconds = INFINITY}, &a));
        if (a.questions == 0)
            return tm_fail(TM_EINPUT,
                           "%s: has no held-out prompts; a run leaves some at its end where it has data.eval or "
                           "split_dataset_ratio",
                           dirs[i]);
    }
    return TM_OK;
}

int tm_cmd_report(int argc, char **argv) {
    const char *dirs[MOST_RUNS] = {NULL}, *out = NULL;
    char path[4200];
    bool answers = false;
    const tm_opt opts[] = {TM_OPTION("out", TM_OPT_STRING, &out, "FILE",
                                     "the page; of one run DIR/report.html unless it is said, of several report.html"),
                           TM_FLAG("answers", &answers,
                                   "answer the run's held-out prompts again, by the model before and after training, "
                                   "however long that takes")};
    const tm_cli cli = {.usage = "report DIR [DIR...] [--answers] [--out FILE]",
                        .about = "Writes one HTML page, which needs no network, of what runs left in their output_dir: "
                                 "curves with zoom, held-out answers before and after, planned beside found, where "
                                 "the seconds went, a step as it was planned, how to use the result. Several runs are "
                                 "laid over each other. Training writes DIR/report.html by itself, at every checkpoint "
                                 "and at the end.",
                        .example = "tidemill report out\ntidemill report lora-r8 lora-r16 full --out compared.html",
                        TM_CLI_OPTIONS(opts),
                        TM_CLI_WORDS(dirs, 1, MOST_RUNS)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    uint32_t n = (uint32_t)tm_cli_count(&cli);
    if (n == 1)
        snprintf(path, sizeof path, "%s/report.html", dirs[0]);
    else
        snprintf(path, sizeof path, "report.html");
    if (answers && answer_now(dirs, n) != TM_OK) return tm_cmd_fail();
    return write_page(dirs, n, out ? out : path, true) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
