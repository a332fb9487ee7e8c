/* The executor's own structures: exec.c (life), exec_run.c (runs), exec_order.c (what is ready), exec_cpu.c (calling
 * thread), exec_disk.c (disk thread), exec_copy.c and exec_device.c (the device's streams), exec_comm.c
 * (communication), exec_random.c (tests). */
#ifndef TIDEMILL_EXEC_INTERNAL_H
#define TIDEMILL_EXEC_INTERNAL_H

#include "base/ordered.h"
#include "offload/exec/exec.h"
#include "offload/offload_internal.h"

#include <pthread.h>

/* Under way on a device: copies of a direction; operations, so many that its stream does not run dry while the calling
 * thread is busy elsewhere. */
enum { EXEC_COPIES = 4, EXEC_ISSUED = 16 };
/* EXEC_DEPTH: disk operations in flight, of each lane. */
enum { EXEC_LANES = STORE_PATHS, EXEC_DEPTH = 32, EXEC_SEALS = 64, EXEC_COMM = 8, EXEC_COMM_OPERANDS = 8 };

/* An operation of a run. exec_order.c moves it from state to state, and nobody else does. A run that fails leaves its
 * operations where they are. */
typedef enum exec_op_state {
    EXEC_OP_WAITS,   /* predecessors are left             -> READY, SEALING */
    EXEC_OP_READY,   /* in the heap of whoever takes it   -> RUNS, ISSUED */
    EXEC_OP_SEALING, /* a write, ready: the calling thread computes its checksums first, while the bytes are in the
                        cache                             -> SEALED */
    EXEC_OP_SEALED,  /* that write, in its lane's heap    -> RUNS */
    EXEC_OP_RUNS,    /* somebody carries it out           -> DONE */
    EXEC_OP_ISSUED,  /* on the device's stream: for later ones of this stream it counts as done  -> DONE */
    EXEC_OP_DONE     /* its successors were told          -> none */
} exec_op_state;

/* One run of a plan. At most two exist: the one whose CPU operations run, and one beside it: the run before, while its
 * last transfers are under way, or the run after, whose first reads have started. */
typedef struct exec_run {
    const tm_plan *plan;
    uint32_t *pred; /* predecessors left */
    uint8_t *state; /* exec_op_state */
    uint32_t cap_ops, oldest_disk;
    tm_heap32 cpu, comm, device, copy[TM_DEVICE_WAYS], disk[EXEC_LANES]; /* ready */
    uint32_t *disk_op;                                                   /* of all lanes' heaps */
    uint32_t next_comm; /* the communication operation whose turn it is */
    uint32_t left, cpu_left, disk_left, in_flight;
    bool open;
    uint64_t began_ns;
    tm_span *span; /* [cap_ops] seconds of tm_now_ns, while they are recorded */
    tm_run_stats stats;
} exec_run;

/* When an operation began and ended, by tm_now_ns. */
typedef struct exec_span {
    uint64_t from_ns, to_ns;
} exec_span;

static inline void exec_note_span(exec_run *r, uint32_t op, exec_span at) {
    if (r->span) r->span[op] = (tm_span){(double)at.from_ns * 1e-9, (double)at.to_ns * 1e-9};
}

/* A disk operation of a run. */
typedef struct transfer {
    exec_run *run;
    uint32_t op;
    bool sealed; /* a write that has its checksums */
} transfer;

typedef struct flight {
    tm_io_req req;
    exec_run *run;
    uint32_t op;
    bool busy;
} flight;

/* A communication operation under way: what its caller knows it by. */
typedef struct comm_flight {
    exec_run *run;
    uint32_t op;
    bool busy;
    uint64_t from_ns;
} comm_flight;

/* A copy between the tiers under way. */
typedef struct copy_flight {
    tm_event event;
    struct tm_exec *exec;
    exec_run *run;
    uint32_t op;
    int way;
    uint64_t bytes;
    bool busy;
} copy_flight;

/* An operation on the device's stream, and what it is given. */
typedef struct issue {
    tm_event event;
    struct tm_exec *exec;
    exec_run *run;
    uint32_t op;
    bool busy;
    void **operand;
    tm_device_frame *frame;
} issue;

/* Tests: a disk operation in flight moves its bytes either when it starts or when it completes, as the draw has it. */
typedef struct pending {
    exec_run *run;
    uint32_t op;
    bool moved;
} pending;

/* tm_exec, by who writes what. */

/* tm_exec_open, and nobody later; every thread reads it. */
typedef struct exec_fixed {
    char *slab, *shared;
    uint64_t slab_bytes, shared_bytes;
    tm_store *store;
    uint32_t lanes; /* of the store: a path each */
    uint64_t seed;
    bool stub_disk, stub_compute;
    tm_exec_comm comm;
    tm_exec_moves moves;
    tm_device *device; /* NULL: operations compute on the slab */
    bool registered;   /* the slab, with the device */
} exec_fixed;

/* Every thread, under the lock. */
typedef struct exec_runs {
    exec_run run[2];
    /* Of those: the one whose CPU operations run; the two neighbours, NULL where there is none. */
    exec_run *now, *older, *ahead;
    const tm_link *link; /* from older to now, or from now to ahead, once both are open */
    bool dropping;       /* ahead is not wanted any more: no new reads of it */
    bool sealing;        /* writes that become ready are held back for the calling thread to seal */
    transfer seal[EXEC_SEALS];
    uint32_t n_seal;
} exec_runs;

/* Every thread, under the lock: the first failure. */
typedef struct exec_result {
    tm_status status;
    tm_error error;
    bool lost; /* the I/O engine cannot go on */
} exec_result;

/* Every thread, under the lock: communication operations under way. */
typedef struct exec_line {
    comm_flight comm_flight[EXEC_COMM];
    uint32_t n_comm;
    bool pumping; /* a thread submits communication operations */
} exec_line;

/* Every thread, under the lock: what the device has of us. */
typedef struct exec_streams {
    copy_flight copy_flight[TM_DEVICE_WAYS][EXEC_COPIES];
    uint32_t n_copy[TM_DEVICE_WAYS];
    issue issued[EXEC_ISSUED];
    uint32_t n_issued, cap_issued;
    tm_device_op_fn device_op_fn;
    void *device_op_ctx;
} exec_streams;

/* The calling thread, without the lock. */
typedef struct exec_caller {
    const tm_plan *next_plan; /* announced, and not open yet */
    const tm_link *next_link; /* from now to next_plan */
    tm_op_fn fn;              /* of the run whose operations run; the device's threads read it while there are some */
    void *fn_ctx;
    void **operand; /* [cap_operands], of the operation that runs */
    uint32_t cap_operands;
    tm_device_frame *frame; /* [cap_frames], as each of `issued` has */
    uint32_t cap_frames;
    bool trace;
    tm_run_done_fn done_fn;
    void *done_ctx;
    uint64_t draws; /* exec_random.c */
    struct {        /* exec_twice.c */
        bool on;
        char *before; /* what the operation that runs updates, as it was; behind it a piece of a device's arena */
        uint64_t room;
        void (*name)(void *ctx, const tm_op *op, char *buf, size_t cap);
        void *ctx;
    } twice;
} exec_caller;

typedef struct exec_disk {
    pthread_t thread;
    bool has_thread;                /* the calling thread */
    bool quit, parked;              /* under the lock */
    uint32_t in_flight[EXEC_LANES]; /* of both runs, under the lock */
    flight *flight;                 /* [lanes * EXEC_DEPTH], the disk thread */
    uint64_t *temp_checksum;        /* of a plan's temporaries: whoever seals, writes or reads the page */
    uint32_t cap_temp_pages;
    pending pending[EXEC_DEPTH]; /* exec_random.c */
    uint32_t n_pending;
} exec_disk;

struct tm_exec {
    exec_fixed fixed;
    pthread_mutex_t lock;
    pthread_cond_t cpu_wake, disk_wake;
    exec_runs runs;
    exec_result result;
    exec_line line;
    exec_streams streams;
    exec_caller caller;
    exec_disk disk;
    tm_exec_stats stats; /* a field by the one thread that counts it, or under the lock */
};

/* Keeps the first failure. Under the lock. */
void exec_fail(tm_exec *e, tm_status status);
/* exec_order.c, under the lock: every change of an operation's state. An operation becomes ready when the last of its
 * predecessors is done (of the device's own: issued), or at the start of its run where it has none.
 *
 *   exec_start_run   the operations without predecessors become ready
 *   exec_take        the one of the lowest index out of a heap: it runs from here on; exec_took: one that the caller
 *                    has drawn from there (random orders)
 *   exec_issued      it is on the device's stream; successors on this stream need not wait for its end
 *   exec_sealed      a write has its checksums, the disk thread may take it
 *   exec_complete    it is done: its successors are told, here and in the run ahead. True: one of them is the disk's
 *   exec_finish      what every engine but the calling thread ends an operation with: its span, the failure or
 *                    exec_complete, and whoever waits is woken. The caller has given back what the operation held. */
void exec_start_run(tm_exec *e, exec_run *r);
uint32_t exec_take(exec_run *r, tm_heap32 *from);
void exec_took(exec_run *r, uint32_t op);
void exec_issued(tm_exec *e, exec_run *r, uint32_t op);
void exec_sealed(tm_exec *e, exec_run *r, uint32_t op);
bool exec_complete(tm_exec *e, exec_run *r, uint32_t op);
void exec_finish(tm_exec *e, exec_run *r, uint32_t op, tm_status status, exec_span at);
/* exec_run.c. exec_run_begin: with `link`, beside `before`, whose operations that are not done yet it waits for.
 * exec_run_end: on the calling thread, without the lock. exec_turn_over: the older run may have come to its end, the
 * announced one may open; under the lock, which is dropped in between. exec_step_over: the announced run becomes the
 * one whose CPU operations run. */
tm_status exec_run_room(const tm_exec *e, exec_run *r, const tm_plan *plan);
void exec_run_free(exec_run *r);
void exec_run_begin(tm_exec *e, exec_run *r, const tm_plan *plan, const tm_link *link, const exec_run *before);
void exec_run_end(tm_exec *e, exec_run *r);
tm_status exec_turn_over(tm_exec *e);
void exec_step_over(tm_exec *e);
uint32_t exec_disk_ready(const tm_exec *e, const exec_run *r); /* of all lanes */
/* exec_cpu.c: until the CPU operations are done or, where nothing was announced, everything is. */
void exec_threaded(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx);
void exec_in_random_order(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx);
tm_status exec_twice(tm_exec *e, const tm_plan *plan, uint32_t op, void **operand, tm_op_fn fn, void *ctx);
bool exec_is_apart(const tm_exec *e, const tm_plan *plan, uint32_t op); /* a device's own processors carry it out */
tm_status exec_twice_apart(tm_exec *e, const tm_plan *plan, uint32_t op, tm_op_fn fn, void *ctx);
void exec_flip(tm_exec *e, const tm_plan *plan, uint32_t op); /* tests: a result that is wrong by a bit */
tm_status exec_compute(tm_exec *e, const tm_plan *plan, uint32_t op, void **operand, tm_op_fn fn, void *ctx); /* once */
tm_status exec_cpu(tm_exec *e, exec_run *r, uint32_t op, tm_op_fn fn, void *ctx);
bool exec_moves(const tm_exec *e, const exec_run *r, uint32_t op); /* false: a transfer that is not made */
tm_status exec_disk_start(tm_exec *e, const transfer *t, bool *finished);
tm_status exec_disk_finish(tm_exec *e, flight *f);
void exec_count(tm_exec *e, exec_run *r, uint32_t op, uint64_t bytes); /* under the lock */
tm_status exec_disk_thread(tm_exec *e);
bool exec_on_disk_thread(const tm_exec *e); /* of the thread that calls */
/* Waits until the disk thread drives the engine no more: nothing is in flight, nothing that is wanted is ready. Under
 * the lock. */
void exec_park_disk(tm_exec *e);
/* One operation, drawn from all that may start or complete. */
tm_status exec_random_step(tm_exec *e, tm_op_fn fn, void *ctx);
/* exec_comm.c. exec_pump_comm: under the lock, which is dropped in between. */
uint32_t exec_next_comm(const tm_plan *plan, uint32_t op);
void exec_pump_comm(tm_exec *e);
bool exec_comm_is_ready(const tm_exec *e);
tm_status exec_random_comm(tm_exec *e);
/* exec_copy.c. exec_pump_copies: under the lock. */
void exec_pump_copies(tm_exec *e);
tm_status exec_copy_now(tm_exec *e, exec_run *r, uint32_t op);
/* exec_device.c. exec_pump_device and exec_park_device: under the lock. */
typedef tm_status (*exec_compute_fn)(tm_exec *e, const tm_plan *plan, uint32_t op, void **operand, tm_op_fn handler,
                                     void *ctx);
tm_status exec_device_room(tm_exec *e, const tm_plan *plan); /* nothing is under way, or there is enough */
void exec_device_free(tm_exec *e);
bool exec_is_device(const tm_exec *e, const tm_plan *plan, uint32_t op); /* computes in the arena */
bool exec_is_issued(const tm_exec *e, const tm_plan *plan, uint32_t op); /* and returns before it ends */
void exec_pump_device(tm_exec *e);
void exec_park_device(tm_exec *e); /* waits for copies and operations under way */
/* Calls fn; an operation of the device's tier where its frames are open, from start to end. */
tm_status exec_on_device(tm_exec *e, const tm_plan *plan, uint32_t op, exec_compute_fn fn, tm_op_fn handler, void *ctx);
static inline void *exec_at(const tm_exec *e, uint64_t address) {
    if (address >= TM_DEVICE_BASE) return tm_device_at(e->fixed.device, address - TM_DEVICE_BASE);
    return address >= TM_SHARED_BASE ? e->fixed.shared + (address - TM_SHARED_BASE) : e->fixed.slab + address;
}
/* The path that a disk operation goes to. */
static inline uint32_t exec_lane(const tm_exec *e, const exec_run *r, uint32_t op) {
    return e->fixed.store ? store_lane(e->fixed.store, r->plan, r->plan->op[op].object) : 0;
}
static inline bool exec_trails(const exec_run *r) {
    return r && r->open && r->left > 0;
}

#endif
