/* A device's ops table, what a module of devices is, and the streams that devices on the CPU share. */
#ifndef TIDEMILL_DEVICE_INTERNAL_H
#define TIDEMILL_DEVICE_INTERNAL_H

#include "device/device.h"

/* Arguments are checked (device.c). What is NULL is not there: in_place needs open, close only. */
typedef struct device_ops {
    tm_status (*open)(tm_device *d, const tm_device_opts *opts); /* after a failure close is called */
    void (*close)(tm_device *d);
    tm_status (*copy)(tm_device *d, const tm_device_transfer *t, tm_event *e);
    tm_status (*submit)(tm_device *d, const tm_device_op *op, tm_event *e);
    bool (*query)(tm_device *d, const tm_event *e);
    void (*wait)(tm_device *d, const tm_event *e); /* leaves the error of one that failed on this thread */
    tm_status (*pin)(tm_device *d, void *host, uint64_t bytes);
    void (*unpin)(tm_device *d, void *host);
    void (*stats)(tm_device *d, tm_device_stats *out);
    tm_status (*count)(unsigned *n);                    /* NULL: one */
    tm_status (*look)(unsigned i, tm_device_info *out); /* the i-th of this kind in the machine; *out is empty */
    tm_status (*describe)(const char *name, char *out, size_t cap);
    tm_status (*choices)(tm_device *d, char *out, size_t cap);
    tm_status (*take_choices)(tm_device *d, const char *choices);
    tm_status (*peers_id)(uint8_t id[TM_DEVICE_ID_BYTES]);
    tm_status (*exchange)(tm_device *d, const tm_device_exchange *x, tm_event *e);
} device_ops;

struct tm_device {
    const device_ops *ops;
    tm_device_caps caps;            /* name and traits are set before open */
    const tm_kernel_table *kernels; /* set by open; NULL: the host's */
    uint32_t peers, me;             /* with whom it exchanges; 0: alone */
    char *arena;                    /* addresses that operations see */
    void *own;                      /* the device's */
};

/* A row of the table of devices. */
typedef struct device_kind {
    const char *name;
    tm_device_traits traits;
    const device_ops *ops; /* NULL: in a module, libtidemill_<name>.so */
} device_kind;

extern const device_ops device_cpu, device_cpu_arena;

/* ---- modules (module.c): devices that need a driver ------------------------------------------------------------- */

/* A module is a shared library with one symbol, `const device_module tm_device_module`. It is loaded when a device of
 * its kind is first opened or looked for, and stays. It links nothing of tidemill: what it needs is in device_host. The
 * version rises with what sizes do not tell: an order of fields, a meaning. */
enum { DEVICE_MODULE_VERSION = 4 };
#define DEVICE_MODULE_SYMBOL "tm_device_module"

typedef struct device_host {
    __typeof__(tm_fail) *fail; /* and so on: functions of base.h */
    __typeof__(tm_log) *log;
    __typeof__(tm_now_ns) *now_ns;
    __typeof__(tm_malloc) *malloc;
    __typeof__(tm_calloc) *calloc;
    __typeof__(tm_free) *free;
    __typeof__(tm_error_get) *error_get;
    __typeof__(tm_error_set) *error_set;
    __typeof__(tm_error_clear) *error_clear;
    __typeof__(tm_thread_start) *thread_start;
} device_host;

typedef struct device_module {
    uint32_t version; /* DEVICE_MODULE_VERSION */
    uint32_t bytes;   /* DEVICE_MODULE_BYTES: of every structure that both sides have to agree on */
    const device_ops *ops;
    tm_status (*start)(const device_host *host); /* once, before anything else; TM_EUNSUPPORTED: no driver, with why */
} device_module;
#define DEVICE_MODULE_BYTES                                                                                            \
    ((uint32_t)(sizeof(device_ops) + sizeof(struct tm_device) + sizeof(device_host) + sizeof(tm_kernel_table) +        \
                sizeof(tm_error) + sizeof(tm_event) + sizeof(tm_device_opts) + sizeof(tm_device_op) +                  \
                sizeof(tm_device_transfer) + sizeof(tm_device_info) + sizeof(tm_device_stats) + sizeof(tm_gemm_args) + \
                sizeof(tm_attention) + sizeof(tm_norm) + sizeof(tm_glu) + sizeof(tm_embed) + sizeof(tm_head) +         \
                sizeof(tm_rope) + sizeof(tm_positions) + sizeof(tm_head_state) + sizeof(tm_adamw_args) +               \
                sizeof(tm_device_peers) + sizeof(tm_device_exchange)))

/* Loads it. TM_EUNSUPPORTED: not built, not the version of this program, or no driver. */
tm_status device_module_load(const char *kind, const device_ops **out);

/* ---- stream.c: threads that carry out what was submitted, each its own in order --------------------------------- */

enum { STREAM_IN = TM_DEVICE_IN, STREAM_OUT = TM_DEVICE_OUT, STREAM_OPS, STREAMS };
typedef struct stream_item {
    tm_event *event;
    tm_device_transfer copy; /* STREAM_IN, STREAM_OUT */
    tm_device_op op;         /* STREAM_OPS */
} stream_item;
/* Carries out an item, on its stream's thread. */
typedef tm_status (*stream_work_fn)(void *ctx, const stream_item *item, int stream);
typedef struct stream_set stream_set;
tm_status streams_open(stream_set **out, stream_work_fn work, void *ctx);
void streams_close(stream_set *s); /* after what is under way; NULL is fine */
tm_status streams_submit(stream_set *s, int stream, const stream_item *item); /* TM_EBUG: the ring is full */
bool streams_query(stream_set *s, const tm_event *e);
void streams_wait(stream_set *s, const tm_event *e); /* leaves the thread's error as device.h says */
void streams_stats(stream_set *s, tm_device_stats *out);

#endif
