/* device: where a model is computed. A device has an arena of its own, which nothing but its copies and its operations
 * may touch, or computes in place on host memory and has none.
 *
 *     tm_device *d;
 *     tm_device_open(&d, &(tm_device_opts){.name = "cpu-arena", .arena_bytes = 64 << 20});
 *     tm_device_copy(d, &(tm_device_transfer){.way = TM_DEVICE_IN, .host = weights, .offset = 0, .bytes = n}, &e);
 *     tm_event_wait(d, &e);
 *     tm_device_frame f[] = {{.offset = 0, .bytes = n}};
 *     tm_device_run(d, f, 1, my_kernel, ctx);         // may touch these frames, at tm_device_at(d, 0)
 *     tm_device_close(d);
 *
 * The arena is reserved whole at open: what does not fit is refused then, and there is no out of memory later. Offsets
 * and sizes are multiples of caps.alignment. Who orders copies and operations is the caller: frames of what is under
 * way at one time may overlap only where all of them read.
 *
 * Threads: any. Copies of one direction are carried out, and their events complete, in the order of the calls. */
#ifndef TIDEMILL_DEVICE_H
#define TIDEMILL_DEVICE_H

#include "base/base.h"

typedef struct tm_device tm_device;

typedef struct tm_device_opts {
    const char *name;          /* "cpu", "cpu-arena" */
    uint64_t arena_bytes;      /* the hard cap, rounded down to the alignment; a device without an arena takes none */
    uint64_t bytes_per_second; /* cpu-arena: of its copy engine, each way; 0: as fast as memory is */
} tm_device_opts;
/* TM_EINPUT: no such device; TM_EUNSUPPORTED: not in this build or on this machine, with what is missing; TM_ENOMEM: it
 * cannot give so much. */
TM_MUST_USE tm_status tm_device_open(tm_device **out, const tm_device_opts *opts);
void tm_device_close(tm_device *d); /* waits for copies under way; NULL is fine */

typedef struct tm_device_caps {
    const char *name;
    bool in_place;        /* computes on host memory: no arena, no copies */
    uint32_t alignment;   /* of offsets and sizes */
    uint64_t arena_bytes; /* 0 in place */
    bool counts_as_host;  /* the arena is memory of this process: part of what the system says that it uses */
} tm_device_caps;
const tm_device_caps *tm_device_get_caps(const tm_device *d);

/* ---- copies -------------------------------------------------------------------------------------------------- */

typedef enum tm_device_way { TM_DEVICE_IN, TM_DEVICE_OUT, TM_DEVICE_WAYS } tm_device_way;

/* A copy's completion. The caller owns it, and leaves it alone until it has completed. */
typedef struct tm_event {
    void (*done)(struct tm_event *e); /* once, on a thread of the device's, never inside a call; NULL: tm_event_wait */
    void *ctx;
    /* results: */
    tm_status status;
    uint64_t start_ns, end_ns; /* tm_now_ns: of the copying itself */
    bool complete;             /* tm_event_query */
} tm_event;

typedef struct tm_device_transfer {
    tm_device_way way;
    void *host;
    uint64_t offset, bytes; /* in the arena */
} tm_device_transfer;
/* TM_OK: `e` completes exactly once. Otherwise never, and nothing is copied. */
TM_MUST_USE tm_status tm_device_copy(tm_device *d, const tm_device_transfer *t, tm_event *e);
bool tm_event_query(tm_device *d, const tm_event *e);
/* Not for events with a callback. Returns the copy's status. */
TM_MUST_USE tm_status tm_event_wait(tm_device *d, const tm_event *e);

/* ---- operations ---------------------------------------------------------------------------------------------- */

typedef struct tm_device_frame {
    uint64_t offset, bytes;
} tm_device_frame;
/* What an operation finds at `offset` of the arena. Host code that touches it outside of one is killed (cpu-arena), or
 * worse. */
void *tm_device_at(const tm_device *d, uint64_t offset);
/* Runs fn(ctx), which may touch these frames and no other, on any of its threads; ends when fn does. Returns what fn
 * returned. */
typedef tm_status (*tm_device_fn)(void *ctx);
TM_MUST_USE tm_status tm_device_run(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx);

typedef struct tm_device_stats {
    uint64_t copies[TM_DEVICE_WAYS], copied_bytes[TM_DEVICE_WAYS], copy_ns[TM_DEVICE_WAYS];
    uint64_t operations, open_ns; /* open_ns: spent on opening and closing windows */
} tm_device_stats;
void tm_device_get_stats(tm_device *d, tm_device_stats *out);

/* The i-th device of the table by name, NULL past the last; for messages and lists. */
const char *tm_device_name(unsigned i);

#endif
