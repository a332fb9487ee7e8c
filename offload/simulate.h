/* The simulator: a plan under a simulated clock, by the executor's own rules.
 *
 * One stream an engine. CPU, device, copy and comm operations run one at a time each, the ready one of lowest index
 * first; disk operations are taken in index order while fewer than `depth` are in flight, and the disk's bandwidth is
 * shared among those under way (reads and writes slow each other as machine->disk.duplex says). While bytes move, their
 * cpu_per_byte is taken from the compute operations that run at the same time.
 *
 *     tm_sim_result r;
 *     tm_simulate(&r, plan, &(tm_sim_opts){.machine = &m, .cost = my_cost, .ctx = job, .runs = 3});
 *     r.seconds        a run in the steady state
 */
#ifndef TIDEMILL_SIMULATE_H
#define TIDEMILL_SIMULATE_H

#include "offload/machine.h"
#include "offload/offload.h"

/* Seconds of an operation that is not a disk operation, alone on its engine. */
typedef double (*tm_cost_fn)(void *ctx, const tm_op *op);

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
    tm_engine bottleneck;    /* the engine that is busy longest */
    tm_span *span;           /* [ops of the plan] with `timeline`, seconds since the last run began; those of disk
                                operations begin when they get a slot of the queue. tm_sim_free */
    uint32_t ops;
    uint32_t n_paths;                       /* of the machine; 0 and 1: all bytes go to one disk */
    uint64_t write_bytes[TM_MACHINE_PATHS]; /* of a run, to each of several paths */
} tm_sim_result;

TM_MUST_USE tm_status tm_simulate(tm_sim_result *out, const tm_plan *plan, const tm_sim_opts *opts);
void tm_sim_free(tm_sim_result *r);

#endif
