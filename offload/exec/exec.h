/* exec: interprets a plan. It has no order of its own: the edges of the plan are all there is. */
#ifndef TIDEMILL_OFFLOAD_EXEC_H
#define TIDEMILL_OFFLOAD_EXEC_H

#include "offload/store/store.h"

/* ---- executor ------------------------------------------------------------------------------------------------ */

typedef tm_status (*tm_op_fn)(void *ctx, const tm_op *op, void *const *operand);

typedef struct tm_exec_stats {
    uint64_t read_bytes[TM_KINDS], write_bytes[TM_KINDS]; /* completed, padding included */
    uint64_t wait_read_ns, wait_write_ns, wait_comm_ns, compute_ns, total_ns;
    uint64_t comm_ns; /* from the start to the end of each communication operation */
    uint64_t checksum_ns;
} tm_exec_stats;

/* Who carries out operations of TM_ENGINE_COMM. They are started in plan order and no other, so that all ranks start
 * theirs alike, and several may be under way. */
typedef struct tm_exec_comm {
    void *ctx;
    /* Starts one and returns; on any thread, one at a time. TM_OK: tm_exec_comm_done(exec, token, ..) is called exactly
     * once, from any thread, perhaps inside this call; otherwise never. `operand` is gone afterwards. */
    tm_status (*submit)(void *ctx, const tm_op *op, void *const *operand, void *token);
} tm_exec_comm;

/* Of state of TM_KIND_KV_CACHE, whether a run makes a transfer that its plan has: a read leaves the frame as it is where it
 * is not made, a write the extent. The same answer all through a run; any thread asks. A page that a run writes has to be
 * read first, if it ever was written. */
typedef struct tm_exec_moves {
    void *ctx;
    bool (*fn)(void *ctx, uint32_t object, bool write);
} tm_exec_moves;

typedef struct tm_exec tm_exec;
typedef struct tm_exec_opts {
    uint64_t slab_bytes; /* mapped and touched at open */
    tm_store *store;     /* NULL: nothing is paged */
    uint64_t seed;       /* != 0: run operations one by one in a random legal order, with disk operations that
                            complete in a random order (tests) */
    bool stub_disk;      /* measuring: disk operations complete at once and move nothing */
    bool stub_compute;   /* measuring: the handler is not called */
    bool unregistered;   /* the slab is not registered with the store's engine (pin_memory: false) */
    tm_exec_comm comm;   /* all zero: no plan has communication operations */
    tm_exec_moves moves; /* all zero: every transfer that a plan has is made */
    void *shared;        /* frames of TM_TIER_SHARED; NULL: no plan has any */
    uint64_t shared_bytes;
    tm_device *device; /* NULL, or one that computes in place: operations of the device's tier are on the slab */
} tm_exec_opts;
TM_MUST_USE tm_status tm_exec_open(tm_exec **out, const tm_exec_opts *opts);
void tm_exec_close(tm_exec *e);
TM_MUST_USE tm_status tm_exec_run(tm_exec *e, const tm_plan *plan, tm_op_fn fn, void *ctx);
/* Before tm_exec_run(e, plan): the run after it will be of `next`, and `link` is from plan to next. That run then ends
 * for its caller when its CPU operations are done; its last write-backs and the first reads of the next run go on while
 * nobody is in tm_exec_run, until tm_exec_run(e, next) or tm_exec_settle. Neither is needed again before then. */
void tm_exec_announce(tm_exec *e, const tm_plan *next, const tm_link *link);
/* Waits for everything under way; reads of an announced run are dropped. Returns what failed since. The disk thread
 * then leaves the store's engine alone until the next run. Runs of plans that were not announced begin with it. */
TM_MUST_USE tm_status tm_exec_settle(tm_exec *e);
/* When an operation of a run began and ended, in seconds since the run began (negative: started ahead of it). */
typedef struct tm_span {
    double start, end;
} tm_span;
/* Told on the calling thread, inside one of these calls, when the last operation of a run is done. */
typedef struct tm_run_stats {
    const tm_plan *plan;
    uint64_t read_bytes[TM_KINDS], write_bytes[TM_KINDS];                     /* completed, padding included */
    uint64_t wait_read_ns, wait_write_ns, wait_comm_ns, compute_ns, total_ns; /* of the time in tm_exec_run */
    uint64_t comm_ns;                                                         /* as in tm_exec_stats */
    uint64_t wait_copy_ns, copy_ns, copied_bytes[TM_DEVICE_WAYS];             /* between the tiers */
    const tm_span *span; /* per operation of the plan, until the callback returns; NULL without tm_exec_trace */
} tm_run_stats;
typedef void (*tm_run_done_fn)(void *ctx, const tm_run_stats *stats);
void tm_exec_on_done(tm_exec *e, tm_run_done_fn fn, void *ctx);
/* Called for each operation of TM_ENGINE_DEVICE that has ended well, with what it took there; on a thread of the
 * device's, one call at a time, and never after a call of this with another function, or NULL. It may not call back. */
typedef void (*tm_device_op_fn)(void *ctx, const tm_op *op, double seconds);
void tm_exec_on_device_op(tm_exec *e, tm_device_op_fn fn, void *ctx);
void tm_exec_get_stats(tm_exec *e, tm_exec_stats *out); /* since open */
/* From the next run on, runs record when their operations began and ended (tm_run_stats.span). */
void tm_exec_trace(tm_exec *e, bool on);
char *tm_exec_slab(tm_exec *e);
/* While it is on, each operation of CPU or device is done twice from the same bytes and has to write the same ones,
 * what the handler keeps elsewhere apart: TM_ECORRUPT names it otherwise. Handlers have to bear that. Takes memory for
 * the largest operation's updated operands, in tm_exec_twice_room, which every plan needs before; and a piece more
 * where a device with processors of its own carries operations out: what they update and wrote is copied out, and back.
 * `name`, for the message, may be NULL. */
enum { TM_EXEC_TWICE_PIECE = 1 << 20 };
TM_MUST_USE tm_status tm_exec_twice_room(tm_exec *e, const tm_plan *plan);
void tm_exec_twice(tm_exec *e, bool on, void (*name)(void *ctx, const tm_op *op, char *buf, size_t cap), void *ctx);
/* `token` of tm_exec_comm.submit is complete; a status that is not TM_OK is recorded on this thread. */
void tm_exec_comm_done(tm_exec *e, void *token, tm_status status);

#endif
