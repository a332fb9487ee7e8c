/* tidemill report DIR [DIR...]: what runs left, as one page. */
#include "io/file/file.h"
#include "report/report.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

enum { MOST_RUNS = 12 };

static tm_status write_page(const char *const *dirs, uint32_t n, const char *path) {
    tm_history *runs[MOST_RUNS] = {0};
    tm_status rc = TM_OK;
    for (uint32_t i = 0; i < n && rc == TM_OK; i++) rc = tm_history_open(&runs[i], dirs[i]);
    if (rc == TM_OK) rc = tm_report_write(path, (const tm_history *const *)runs, n);
    if (rc == TM_OK) tm_say("%s\n", path);
    for (uint32_t i = 0; i < n; i++) tm_history_close(runs[i]);
    return rc;
}

int tm_cmd_report(int argc, char **argv) {
    const char *dirs[MOST_RUNS] = {NULL}, *out = NULL;
    char path[4200];
    const tm_opt opts[] = {TM_OPTION("out", TM_OPT_STRING, &out, "FILE",
                                     "the page; of one run DIR/report.html unless it is said, of several report.html")};
    const tm_cli cli = {.usage = "report DIR [DIR...] [--out FILE]",
                        .about = "Writes one HTML page, which needs no network, of what runs left in their output_dir: "
                                 "curves with zoom, planned "
                                 "beside found, where the seconds went, how to use the result. Several runs are laid "
                                 "over each other. Training "
                                 "writes DIR/report.html by itself, at the end.",
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
    return write_page(dirs, n, out ? out : path) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
