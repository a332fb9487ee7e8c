/* A device's ops table, and the copy engine that devices on the CPU share. */
#ifndef TIDEMILL_DEVICE_INTERNAL_H
#define TIDEMILL_DEVICE_INTERNAL_H

#include "device/device.h"

typedef struct device_ops {
    const char *name;
    tm_status (*open)(tm_device *d, const tm_device_opts *opts);
    void (*close)(tm_device *d);
    /* Arguments are checked. NULL: in place. */
    tm_status (*copy)(tm_device *d, const tm_device_transfer *t, tm_event *e);
    bool (*query)(tm_device *d, const tm_event *e);
    void (*wait)(tm_device *d, const tm_event *e);
    tm_status (*run)(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx);
    void (*stats)(tm_device *d, tm_device_stats *out);
} device_ops;

struct tm_device {
    const device_ops *ops;
    tm_device_caps caps;
    char *arena; /* addresses that operations see */
    void *own;   /* the device's */
};

extern const device_ops device_cpu, device_cpu_arena;

/* ---- copy_engine.c: one thread a direction, in order, at a rate ------------------------------------------------- */

typedef struct copy_engine copy_engine;
/* `move` does a piece of a copy, at most COPY_PIECE bytes, on the engine's thread. */
typedef tm_status (*copy_move_fn)(void *ctx, const tm_device_transfer *t);
enum { COPY_PIECE = 4 << 20 };
tm_status copy_engine_open(copy_engine **out, uint64_t bytes_per_second, copy_move_fn move, void *ctx);
void copy_engine_close(copy_engine *c); /* after what is under way; NULL is fine */
tm_status copy_engine_submit(copy_engine *c, const tm_device_transfer *t, tm_event *e);
bool copy_engine_query(copy_engine *c, const tm_event *e);
void copy_engine_wait(copy_engine *c, const tm_event *e);
void copy_engine_stats(copy_engine *c, tm_device_stats *out);

#endif
