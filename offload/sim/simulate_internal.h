/* The simulator's own structures: simulate.c (clock, public), simulate_run.c (runs), simulate_disk.c (the disk). */
#ifndef TIDEMILL_SIMULATE_INTERNAL_H
#define TIDEMILL_SIMULATE_INTERNAL_H

#include "base/ordered.h"
#include "offload/sim/sim.h"

/* One request. First `delay` seconds pass, then `left` bytes move at its share of the disk's rate. */
typedef struct sim_request {
    uint32_t key; /* the caller's */
    bool write, moving, noted;
    uint32_t pieces; /* of the I/O engine: slots taken, and its weight in the sharing */
    double delay, left;
} sim_request;

/* The requests of one path. They wait in the order of issue until one of `queue` slots is free, as in the I/O engine.
 */
typedef struct sim_lane {
    uint32_t device;
    sim_request *request; /* [depth], a list in order of issue */
    uint32_t n;
} sim_lane;

/* A disk: paths may share it. */
typedef struct sim_device {
    double read_bps, write_bps, duplex, latency;
    uint32_t weight[2]; /* of the requests whose bytes are moving: reads, writes */
    double rate[2];     /* bytes a second of a request of weight 1 */
} sim_device;

typedef struct sim_disk {
    sim_lane lane[TM_MACHINE_PATHS];
    sim_device device[TM_MACHINE_PATHS]; /* of these, those that a lane names */
    uint32_t lanes, depth, queue;
    uint64_t block_bytes;
    double bytes_per_second; /* of all together */
} sim_disk;

TM_MUST_USE tm_status sim_disk_open(sim_disk *d, const tm_sim_opts *opts);
void sim_disk_close(sim_disk *d);
static inline bool sim_disk_full(const sim_disk *d, uint32_t lane) {
    return d->lane[lane].n == d->depth;
}
/* `instant`: no delay and no bytes. */
void sim_disk_issue(sim_disk *d, uint32_t lane, uint32_t key, bool write, uint64_t bytes, bool instant);
double sim_disk_next(sim_disk *d); /* seconds until something changes, INFINITY: nothing is in flight */
void sim_disk_advance(sim_disk *d, double seconds);
bool sim_disk_take(sim_disk *d, uint32_t *key); /* a finished request; false: none */

/* ---- runs ---------------------------------------------------------------------------------------------------- */

typedef struct sim_run {
    uint32_t left, compute_left; /* operations; of those, the ones that are not the disk's */
    uint32_t next_comm;          /* the communication operation whose turn it is */
    uint32_t oldest;             /* no operation before it waits for anything but compute */
    double compute_end;
    double busy[TM_ENGINES], wait[TM_ENGINES];
} sim_run;

/* The operation that an engine other than the disk is at. */
typedef struct sim_stream {
    bool busy;
    uint32_t key;
    double left; /* seconds, at full speed */
} sim_stream;

typedef struct sim {
    const tm_plan *plan;
    const tm_plan_op *op;
    const uint32_t *succ;
    const tm_sim_opts *opts;
    const tm_link *link; /* NULL: runs do not overlap */
    uint32_t n, n_compute;
    uint32_t runs;          /* the last one is measured; with a link another follows it */
    uint32_t first, opened; /* runs [first, opened) are under way, at most two; counters lie in slot r % 2 */
    uint32_t *pred;         /* [2 n] by slot */
    uint8_t *done;
    /* An operation of run r has the key r * n + index: ready operations are taken by key, the lowest first. */
    tm_heap32 ready[TM_ENGINES];            /* but the disk's: */
    tm_heap32 disk_ready[TM_MACHINE_PATHS]; /* reads and writes of each lane */
    uint8_t *lane;                          /* of each operation; NULL: there is one */
    sim_stream stream[TM_ENGINES];
    sim_run run[2];
    sim_disk disk;
    double now;
    tm_span *span; /* of the last run */
} sim;

static inline bool sim_is_disk(uint8_t engine) {
    return engine == TM_ENGINE_DISK_READ || engine == TM_ENGINE_DISK_WRITE;
}
/* Where the operation waits once it is ready. */
static inline tm_heap32 *sim_queue_of(sim *s, uint32_t op) {
    uint8_t engine = s->op[op].engine;
    return sim_is_disk(engine) ? &s->disk_ready[s->lane ? s->lane[op] : 0] : &s->ready[engine];
}
void sim_open_run(sim *s);
/* The ready operation of the lowest key that may start now, of an engine or of a lane; false: none. */
bool sim_take(sim *s, uint8_t engine, uint32_t *key);
bool sim_take_disk(sim *s, uint32_t lane, uint32_t *key);
void sim_complete(sim *s, uint32_t key);

#endif
