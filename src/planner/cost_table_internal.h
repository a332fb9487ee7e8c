/* The table of seconds: cost.c fills it and looks things up, cost_learn.c compares it with a run. */
#ifndef TIDEMILL_COST_TABLE_INTERNAL_H
#define TIDEMILL_COST_TABLE_INTERNAL_H

#include "planner/cost.h"

/* The head has three products in backward, two where its logits were kept. */
#define COST_WITHOUT_KEPT_LOGITS 1.5

/* What bounds an operation by the rates: its arithmetic, or the bytes that pass by. */
typedef enum cost_bound { COST_BY_FLOPS, COST_BY_BYTES, COST_BOUNDS } cost_bound;

enum { COST_KEY = 256 }; /* the longest name in the profile, and its NUL */

/* Who carries operations out, and where their seconds come from. */
typedef enum cost_side { COST_HOST, COST_DEVICE /* with processors of its own */, COST_SIDES } cost_side;
typedef struct cost_source {
    tm_profile *profile; /* NULL: nominal rates, or a device that is not here */
    double flops_per_second, bytes_per_second;
    bool is_gpu; /* of a hardware file: a stage takes the longer of products and memory, and a launch */
    uint32_t asked, known;
    double known_seconds[COST_BOUNDS], known_nominal[COST_BOUNDS]; /* of what was measured, for what was not */
    double observed_seconds;
} cost_source;

/* What operations took in a run: calls, or elements. */
typedef struct cost_heard {
    double seconds, n;
} cost_heard;
/* n more calls or elements. Pauses beyond a second that are far from what is usual count for nothing. */
void cost_observed_add(cost_heard *h, double seconds, double n);

/* Operations that take so much an element, whatever part it is of. */
typedef enum cost_tile {
    COST_FINISH,
    COST_UPDATE,
    COST_UPDATE_THERE, /* on a device with processors of its own */
    COST_SUMS_0,
    COST_SUMS_1,
    COST_DECODE, /* of parts that do not learn */
    COST_TILES
} cost_tile;

typedef struct cost_stage {
    uint32_t unit, stage;
} cost_stage;

/* What was timed just now, to be timed once more: a machine that is slow for some seconds is slow for one of the two. */
typedef struct cost_timed {
    tm_op op;
    char key[COST_KEY];
    double seconds;
} cost_timed;

/* Seconds between ranks: who sends what is counted over all ranks, and asked for many times. */
enum { COST_EXCHANGES = 1 << 13 };
struct cost_known {
    uint32_t arg[4];
    uint16_t code;
    double seconds;
};

struct job_costs {
    const tm_job *job;
    job_shape shape, timed;                  /* the step's largest; what is timed in its place */
    job_load load;                           /* that the seconds are of */
    double timed_seconds, disturbed_seconds; /* just now */
    job_costs_mode mode;
    cost_source side[COST_SIDES];
    cost_side stage_side;                             /* of forward, backward and rounding */
    struct cost_bench *bench;                         /* the device while operations are timed there; NULL: not open */
    double comm_bytes_per_second[2], comm_latency[2]; /* of one rank, in its node and to other nodes */
    struct cost_known
        *exchanges; /* [COST_EXCHANGES] by a hash of the operation: what it took to count; NULL: one rank */
    cost_timed *just_timed;
    size_t n_just_timed, cap_just_timed;
    uint64_t budget, began_ns, limit_ns; /* of timing: bytes, and how long it may take */
    tm_phase timing;
    uint32_t *first;         /* per unit: its stage 0 in `stage` and `alike` */
    cost_stage *alike;       /* the first stage that is alike (tm_stage_alike) speaks for it */
    double *stage[2];        /* seconds, forward and backward */
    double tile[COST_TILES]; /* seconds an element */
    uint32_t stages;         /* of all units */
    cost_heard *observed[2], observed_tile[COST_TILES]; /* cost_learn.c: as `stage`; of elements */
};

/* Of a stage on a GPU of a hardware file (cost_rates.c makes such rates of what was measured). */
double cost_gpu_seconds(job_work w, double flops_per_second, double bytes_per_second);
/* Seconds of work `to`, if those of `from` are these. */
double cost_scaled(double seconds, job_work from, job_work to);
/* Names in the profile: of a stage as it is timed (OP_FORWARD, OP_BACKWARD); of a full tile, whose elements it returns.
 */
void cost_cpu_name(char out[49]);
void cost_stage_key(const job_costs *c, const tm_op *op, char *buf, size_t cap);
double cost_tile_key(const job_costs *c, cost_tile which, char *buf, size_t cap);
cost_tile cost_tile_of(const tm_op *op); /* COST_TILES: no such operation */
cost_side cost_side_of(const job_costs *c, const tm_op *op);
double cost_tile_bytes(const job_costs *c, cost_tile which); /* of an element, that pass by */

/* cost_device.c: the device of a job, where it has processors of its own. */
/* What the profile knows of it, and of the link to it (into `machine`). A device that is not here has no profile. */
tm_status cost_device_open(job_costs *c, tm_machine *machine);
/* As cost_measure, on the device, which is opened for the first. */
bool cost_device_measure(job_costs *c, const tm_op *op, double *seconds);
void cost_device_leave(job_costs *c); /* gives its memory back */

#endif
