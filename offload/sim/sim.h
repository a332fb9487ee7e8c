/* The simulator: a plan under a simulated clock, by the executor's own rules.
 *
 * One stream an engine. CPU, device, copy and comm operations run one at a time each, the ready one of lowest index
 * first; disk operations are taken in index order while fewer than `depth` are in flight, and the disk's bandwidth is
 * shared among those under way (reads and writes slow each other as machine->disk.duplex says). While bytes move, their
 * cpu_per_byte is taken from the compute operations that run at the same time.
 *
 *     tm_sim_result r;
 *     TM_TRY(tm_simulate(&r, plan, &(tm_sim_opts){.machine = &m, .cost = my_cost, .ctx = job, .runs = 3}));
 *     // r.seconds: of a run in the steady state
 */
#ifndef TIDEMILL_OFFLOAD_SIM_H
#define TIDEMILL_OFFLOAD_SIM_H

#include "offload/exec/exec.h"
#include "offload/machine/machine.h"
#include "offload/plan/plan.h"

typedef struct tm_sim_opts {
    const tm_machine *machine;
    tm_cost_fn cost;
    void *ctx;
    uint32_t runs; /* of the same plan, one after another; 0: 1. With `link`, a run's reads may start during the one
                      before */
    const tm_link *link;
    uint32_t depth;       /* disk operations in flight, 0: 32 */
    uint32_t queue;       /* of those the oldest that the I/O engine has at the device at once, in pieces; 0: 8 */
    uint64_t block_bytes; /* of a piece, 0: 4 MiB (both as in tm_io_opts: queue_depth, block_bytes) */
    bool timeline;        /* keep start and end of every operation of the last run */
    bool no_disk;         /* disk operations take no time */
} tm_sim_opts;

typedef struct tm_sim_result {
    double seconds;          /* of the last run: from the end of the compute of the run before to that of its own.
                                Without a link: from start to end of all */
    double busy[TM_ENGINES]; /* of the last run */
    double wait[TM_ENGINES]; /* compute stood still and the oldest unfinished operation was of this engine */
    tm_op_engine bottleneck; /* the engine that is busy longest */
    tm_span *span;           /* [ops of the plan] with `timeline`, seconds since the last run began; those of disk
                                operations begin when they get a slot of the queue. tm_sim_free */
    uint32_t ops;
    uint32_t n_paths;                       /* of the machine; 0 and 1: all bytes go to one disk */
    uint64_t write_bytes[TM_MACHINE_PATHS]; /* of a run, to each of several paths */
} tm_sim_result;

TM_MUST_USE tm_status tm_simulate(tm_sim_result *out, const tm_plan *plan, const tm_sim_opts *opts);
void tm_sim_free(tm_sim_result *r);

/* Pictures of a plan: a Chrome trace (chrome://tracing, ui.perfetto.dev) of steps as simulated and as they ran, and a
 * drawing of one simulated step (SVG, or the numbers for a page that draws).
 *
 *     tm_trace *t;
 *     TM_TRY(tm_trace_open(&t, "trace.json"));
 *     TM_TRY(tm_trace_add(t, &(tm_trace_step){.plan = plan, .step = 7, .at = seconds_since_start,
 *                                             .simulated = r.span, .measured = measured,
 *                                             .name = name_of, .ctx = job}));
 *     TM_TRY(tm_trace_commit(t));          // the file appears now, whole
 *
 * Threads: one thread at a time drives a trace. Memory does not grow with the steps, but each tm_trace_add and
 * tm_timeline_write takes some bytes an operation while it works.
 */
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
/* One step of the steady state: what begins before it or ends after it is drawn at the other end. SVG; at most about 1 MB,
 * needs nothing from elsewhere. */
TM_MUST_USE tm_status tm_timeline_write(const char *path, const tm_timeline *timeline);
/* The same as an object of at most 64 KiB: {"title", "seconds", "lanes": [{"name", "note", "unit": "busy" | "rate" | "bytes",
 * "top", "limit"?, "classes": [{"name", "colour", "total", "levels"}]}]}. A letter of "levels" is a column: how high the lane's
 * stack is up to that class, in 63rds of "top", A-Z a-z 0-9 - _ standing for 0 to 63. */
enum { TM_TIMELINE_COLUMNS = 248 };
TM_MUST_USE tm_status tm_timeline_json(tm_json_writer *w, const tm_timeline *timeline);

#endif
