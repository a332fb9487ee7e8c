/* Pictures of a plan: a Chrome trace (chrome://tracing, ui.perfetto.dev) of steps as simulated and as they ran, and a
 * drawing of one simulated step (SVG, or an HTML page around it).
 *
 *     tm_trace *t;
 *     TM_TRY(tm_trace_open(&t, "trace.json"));
 *     TM_TRY(tm_trace_add(t, &(tm_trace_step){.plan = plan, .step = 7, .at = seconds_since_start,
 *                                             .simulated = r.span, .measured = stats->span,
 *                                             .name = name_of, .ctx = job}));
 *     TM_TRY(tm_trace_commit(t));          // the file appears now, whole
 *
 * Threads: one thread at a time drives a trace. Memory does not grow with the steps, but each tm_trace_add and
 * tm_timeline_write takes some bytes an operation while it works.
 */
#ifndef TIDEMILL_TRACE_H
#define TIDEMILL_TRACE_H

#include "offload/simulate.h"

/* "forward layers.11.attn mb 0" into buf. The first word is the kind of work: it has one colour in drawings. */
typedef void (*tm_op_name_fn)(void *ctx, const tm_op *op, char *buf, size_t cap);

typedef struct tm_trace tm_trace;
typedef struct tm_trace_step {
    const tm_plan *plan;
    uint64_t step;
    double at;                           /* seconds on the trace's axis at which the step begins */
    const tm_span *simulated, *measured; /* [ops of the plan], seconds since the step began; either may be NULL */
    tm_op_name_fn name;                  /* of operations that are not the disk's; NULL: their code */
    void *ctx;
} tm_trace_step;
TM_MUST_USE tm_status tm_trace_open(tm_trace **out, const char *path);
TM_MUST_USE tm_status tm_trace_add(tm_trace *t, const tm_trace_step *step);
TM_MUST_USE tm_status tm_trace_commit(tm_trace *t); /* frees t in any case */
void tm_trace_abandon(tm_trace *t);                 /* leaves no file; NULL is fine */

typedef struct tm_timeline {
    const tm_plan *plan;
    const tm_sim_result *result; /* simulated with `timeline` */
    const tm_machine *machine;   /* its rates are drawn beside those of the step; NULL: not */
    const char *title;           /* model and budget; NULL: the plan's name */
    const char *subtitle;        /* one more line; NULL: none */
    tm_op_name_fn name;
    void *ctx;
} tm_timeline;
/* One step of the steady state: what begins before it or ends after it is drawn at the other end. A page where `path`
 * ends in ".html", else SVG; at most about 1 MB, needs nothing from elsewhere. */
TM_MUST_USE tm_status tm_timeline_write(const char *path, const tm_timeline *timeline);

#endif
