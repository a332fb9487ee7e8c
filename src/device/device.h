/* device: where a model is computed. A device has an arena of its own, which nothing but its copies and its operations
 * may touch, or computes in place on host memory and has none.
 *
 *     tm_device *d;
 *     TM_TRY(tm_device_open(&d, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = 64 << 20}));
 *     TM_TRY(tm_device_copy(d, &(tm_device_transfer){.way = TM_DEVICE_IN, .host = weights, .bytes = n}, &e));
 *     TM_TRY(tm_event_wait(d, &e));
 *     tm_device_frame f[] = {{.offset = 0, .bytes = n}};
 *     TM_TRY(tm_device_submit(d, &(tm_device_op){f, 1, my_kernel, ctx}, &e)); // may touch tm_device_at(d, 0), n bytes
 *     TM_TRY(tm_event_wait(d, &e));
 *     tm_device_close(d);
 *
 * The arena is reserved whole at open: what does not fit is refused then, and there is no out of memory later. Offsets
 * and sizes are multiples of caps.alignment. Who orders copies and operations is the caller: frames of what is under
 * way at one time may overlap only where all of them read, or where all are operations.
 *
 * Streams: a device has three, the operations' and one for each direction of copies. What is submitted to one stream is
 * carried out, and its events complete, in the order of the calls; streams know nothing of each other. At most
 * TM_DEVICE_DEPTH are under way on a stream, from the call that submits to the event; one more is refused, and never
 * waited for, so that a callback may submit.
 *
 * Threads: any, for all of these functions. Events complete on threads of the device's; a callback may submit, but not
 * wait. */
#ifndef TIDEMILL_DEVICE_H
#define TIDEMILL_DEVICE_H

#include "base/base.h"
#include "kernels/kernel_table.h"

typedef struct tm_device tm_device;

/* ---- what there is, without opening it ----------------------------------------------------------------------- */

/* What plans and reports have to know of a device, whether or not it is there. */
typedef struct tm_device_traits {
    bool in_place;         /* computes on host memory: no arena, no copies */
    bool own_processors;   /* computes beside the host's cores, with kernels of its own: tm_device_kernels */
    bool counts_as_host;   /* the arena is memory of this process: part of what the system says that it uses */
    bool untested;         /* it has never run on what it is for: whoever uses it is told */
    uint32_t alignment;    /* of offsets and sizes */
    uint64_t fixed_bytes;  /* what it takes of its memory beside the arena, at most */
    uint64_t peers_bytes;  /* and with others to exchange with */
    uint64_t host_bytes;   /* what its driver and libraries take of the host's memory, at most */
    tm_kernel_sizes sizes; /* of its kernels */
    uint32_t lacks;        /* bits of tm_kernel_feature */
    /* Names of optimizers that it can run, separated by blanks; "": none, "*": all that the host can. */
    const char *optimizers;
} tm_device_traits;
/* TM_EINPUT: there is no device of that name. "cuda:1" is known as "cuda" is. */
TM_MUST_USE tm_status tm_device_known(const char *name, tm_device_traits *out);
/* The i-th device of the table by name, NULL past the last; for messages and lists. */
const char *tm_device_name(unsigned i);

/* What of a kind is in this machine; for lists. */
typedef struct tm_device_info {
    char name[32];  /* "cuda:0": what tm_device_open takes; "": there is no such number */
    char about[96]; /* "NVIDIA H200, compute capability 9.0" */
    uint64_t memory_bytes, free_bytes;
} tm_device_info;
/* How many of a kind ("cuda") there are, those that fail as well. TM_EUNSUPPORTED as from tm_device_look. Makes no
 * context on any. */
TM_MUST_USE tm_status tm_device_count(const char *kind, unsigned *n);
/* The i-th device of the kind ("cuda"). TM_EINPUT: there is no such number; TM_EUNSUPPORTED: this kind is not in this
 * build or on this machine, with what is missing. A device that is there and fails (too old, broken) has its name in
 * *out all the same: those after it may be well. */
TM_MUST_USE tm_status tm_device_look(const char *kind, unsigned i, tm_device_info *out);
/* The device of that name. */
TM_MUST_USE tm_status tm_device_look_for(const char *name, tm_device_info *out);
/* What the bits of its results depend on beside what they are computed from, as text (numerics_id): model, library of
 * products, compiler of its kernels; "": as on the host. Its choices (below) follow from that, but for a library that
 * chooses otherwise some day, which is why they can be kept. */
TM_MUST_USE tm_status tm_device_describe(const char *name, char *out, size_t cap);

/* ---- life ---------------------------------------------------------------------------------------------------- */

/* Ranks whose devices exchange what is in their arenas, without the host's memory between: each opens its own with the
 * same id, and all ask for the same exchanges in the same order. */
enum { TM_DEVICE_ID_BYTES = 128 };
typedef struct tm_device_peers {
    uint32_t n, me; /* 2 or more; my place among them */
    uint8_t id[TM_DEVICE_ID_BYTES];
} tm_device_peers;
/* An id that no others have; one of the ranks makes it. TM_EUNSUPPORTED: devices of this kind cannot, or lack a library
 * here, with its name. */
TM_MUST_USE tm_status tm_device_peers_id(const char *name, uint8_t id[TM_DEVICE_ID_BYTES]);

typedef struct tm_device_opts {
    const char *name;          /* "cpu", "cpu-arena", "cuda:0" */
    uint64_t arena_bytes;      /* the hard cap, rounded down to the alignment; a device without an arena takes none */
    uint64_t bytes_per_second; /* cpu-arena: of its copy engine, each way; 0: as fast as memory is */
    const tm_device_peers *peers; /* open waits for all of them; NULL: alone */
} tm_device_opts;
/* TM_EINPUT: no such device; TM_EUNSUPPORTED: not in this build or on this machine, with what is missing; TM_ENOMEM: it
 * cannot give so much. */
TM_MUST_USE tm_status tm_device_open(tm_device **out, const tm_device_opts *opts);
void tm_device_close(tm_device *d); /* waits for what is under way; NULL is fine */

typedef struct tm_device_caps {
    const char *name;
    tm_device_traits traits;
    uint64_t arena_bytes; /* 0 in place */
} tm_device_caps;
const tm_device_caps *tm_device_get_caps(const tm_device *d);
/* What its operations call instead of kernels.h, inside an operation; NULL: the host's. */
const tm_kernel_table *tm_device_kernels(const tm_device *d);

/* Choices among algorithms that it made so far, as lines of text, for another run of the same job to take up before its
 * first operation. TM_EINPUT from take: the device or its library does not take one of them. */
enum { TM_DEVICE_CHOICES_BYTES = 1 << 17 }; /* that hold all there can be */
TM_MUST_USE tm_status tm_device_choices(tm_device *d, char *out, size_t cap);
TM_MUST_USE tm_status tm_device_take_choices(tm_device *d, const char *choices);

/* Host memory that copies will come from and go to: once, before the first of them, as large as it is. A device copies
 * to and from other memory too, more slowly perhaps. Unregister before it is unmapped. What somebody else registered
 * stays his. */
TM_MUST_USE tm_status tm_device_register(tm_device *d, void *host, uint64_t bytes);
void tm_device_unregister(tm_device *d, void *host);

/* ---- events -------------------------------------------------------------------------------------------------- */

/* The completion of a copy or an operation. The caller owns it, and leaves it alone until it has completed. */
typedef struct tm_event {
    /* Once, on a thread of the device's, never inside a call; NULL: tm_event_wait. If status is not TM_OK, that
     * thread's error says why. */
    void (*done)(struct tm_event *e);
    void *ctx;
    /* results: */
    tm_status status;
    uint64_t start_ns, end_ns; /* tm_now_ns: of the copying, of the operation itself */
    bool complete;             /* tm_event_query */
} tm_event;
bool tm_event_query(tm_device *d, const tm_event *e);
/* Not for events with a callback. Returns the event's status, and leaves the reason on this thread. */
TM_MUST_USE tm_status tm_event_wait(tm_device *d, const tm_event *e);

/* ---- copies -------------------------------------------------------------------------------------------------- */

typedef enum tm_device_way { TM_DEVICE_IN, TM_DEVICE_OUT, TM_DEVICE_WAYS } tm_device_way;

typedef struct tm_device_transfer {
    tm_device_way way;
    void *host;
    uint64_t offset, bytes; /* in the arena */
} tm_device_transfer;
enum { TM_DEVICE_DEPTH = 256 }; /* under way on a stream */

/* TM_OK: `e` completes exactly once. Otherwise never, and nothing is under way. TM_EBUG: too much is under way. */
TM_MUST_USE tm_status tm_device_copy(tm_device *d, const tm_device_transfer *t, tm_event *e);

/* ---- operations ---------------------------------------------------------------------------------------------- */

typedef struct tm_device_frame {
    uint64_t offset, bytes;
} tm_device_frame;
/* What an operation finds at `offset` of the arena. Host code that touches it outside of one is killed (cpu-arena), or
 * worse. */
void *tm_device_at(const tm_device *d, uint64_t offset);

typedef tm_status (*tm_device_fn)(void *ctx);
/* fn(ctx) is called once, on a thread of the device's, when its turn has come. It may touch these frames and no other:
 * on the host's processors as it likes, on a device's own by rows of tm_device_kernels. The operation is complete when
 * fn has returned and what it called is done. `frame` and ctx are the caller's, and stay until then. */
typedef struct tm_device_op {
    const tm_device_frame *frame;
    uint32_t n;
    tm_device_fn fn;
    void *ctx;
} tm_device_op;
/* TM_OK: `e` completes exactly once, and nothing of the operation runs on, whatever its status, which is what fn
 * returned, or what the device met with. Otherwise never, and fn is not called. TM_EBUG: too much is under way. Not on
 * a device that computes in place. */
TM_MUST_USE tm_status tm_device_submit(tm_device *d, const tm_device_op *op, tm_event *e);
/* The same, and waits; in place fn is called here. */
TM_MUST_USE tm_status tm_device_run(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx);

/* ---- exchanges ----------------------------------------------------------------------------------------------- */

/* Slices of several ranks, end to end, in the order of the ranks; some may be empty. All addresses as tm_device_at has
 * them; `counts`, of elements, is read before tm_device_exchange returns.
 *   ALL_GATHER      send: my slice (NULL: it is in its place); recv: all of them
 *   REDUCE_SCATTER  send: all slices, fp32; recv: the sum of mine over all ranks, first to last, each added to those
 *                   before it. It may be my slice of `send`, and overlaps no other. */
typedef enum tm_device_exchange_code { TM_DEVICE_ALL_GATHER, TM_DEVICE_REDUCE_SCATTER } tm_device_exchange_code;
typedef struct tm_device_exchange {
    tm_device_exchange_code code;
    uint32_t element_bytes;
    const void *send;
    void *recv;
    const uint64_t *counts;
} tm_device_exchange;
/* A stream of its own, in the order of the calls. TM_OK: `e` completes exactly once. Otherwise never, and nothing is
 * under way; no other exchange will succeed then. A peer that never asks for the same is waited for without end: the
 * ranks watch each other (src/comm). */
TM_MUST_USE tm_status tm_device_exchange_submit(tm_device *d, const tm_device_exchange *x, tm_event *e);

typedef struct tm_device_stats {
    uint64_t copies[TM_DEVICE_WAYS], copied_bytes[TM_DEVICE_WAYS], copy_ns[TM_DEVICE_WAYS];
    uint64_t operations, open_ns; /* open_ns: spent on opening and closing windows */
} tm_device_stats;
void tm_device_get_stats(tm_device *d, tm_device_stats *out);

#endif
