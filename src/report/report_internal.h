/* What the files of report share. */
#ifndef TIDEMILL_REPORT_INTERNAL_H
#define TIDEMILL_REPORT_INTERNAL_H

#include "report/report.h"

enum { REPORT_OUT_BYTES = 64 << 10 }; /* a file's buffer: what is written at checkpoints is beside a plan */
#define REPORT_EVALUATION "eval/"
/* Numbers of a line that make a curve, one after the other, each once; false: no more. *at: NULL before the first. `name`
 * is the curve's; an evaluation's begins with REPORT_EVALUATION. */
bool report_next_number(const tm_json *line, const tm_json **at, char name[TM_SERIES_NAME]);
bool report_is_evaluation(const tm_json *line);
/* A line's "step"; 0: it has none. */
int64_t report_step(const tm_json *line);

/* Lines of a file from byte `*at` on; `fn` gets each whole one, without its end. A last one that is not ended stays. */
typedef tm_status (*report_line_fn)(void *ctx, const char *line, size_t n);
tm_status report_lines(const char *path, uint64_t *at, report_line_fn fn, void *ctx);

const char *report_last_name(const char *path); /* into path; all of it where it ends in a slash */

/* run.json of r->dir into r->run, in place of what was there. */
tm_status report_read_run(tm_history *r);

/* `open`, the text with what HTML gives a meaning escaped, `close`. */
tm_status report_put_between(tm_buf *b, const char *open, const char *text, const char *close);
/* page_answers.c: what held-out prompts were answered, where that is known. */
tm_status report_put_answers(tm_buf *b, const tm_history *r);

/* The page's own text: page.css, page.js. */
extern const char report_css[], report_js[];

#endif
