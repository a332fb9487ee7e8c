/* A device of this kind: what its files share.
 *
 *   copies   caller --> driver's stream (in, out) --> event --> the lane's thread: completion
 *   ops      caller --> ring --> the launching thread: fn(ctx), rows launch --> stream --> event --> lane's thread
 *   peers    caller --> NCCL and sums on a stream --> event --> lane's thread
 */
#ifndef TIDEMILL_CUDA_DEVICE_H
#define TIDEMILL_CUDA_DEVICE_H

#include "device/cuda/exchange.h"
#include "device/cuda/lt.h"
#include "device/cuda/queue.h"
#include "device/device_internal.h"

#include <pthread.h>

enum { LANE_PEERS = STREAMS, LANES, ROPE_TABLES = 8, PINNED = 16 };

/* Something that a stream was given: complete when `after` is. */
typedef struct flight {
    tm_event *event;
    CUevent after;
    uint64_t submitted_ns, bytes;
    uint64_t *nonfinite; /* operations: gets what `counted` holds */
    const unsigned long long *counted;
} flight;

typedef struct lane {
    struct cuda_device *c;
    CUstream stream;
    CUevent events[TM_DEVICE_DEPTH];
    flight ring[TM_DEVICE_DEPTH];
    uint32_t head, n;
    uint64_t items, bytes, ns, last_end_ns;
    pthread_t thread;
    bool started;
} lane;

typedef struct pending_op {
    tm_device_op op;
    tm_event *event;
} pending_op;

typedef struct rope_copy { /* of a table of angles in the device's memory */
    tm_rope of;
    CUdeviceptr table, inv_freq;
} rope_copy;

typedef struct cuda_device {
    cuda_queue q; /* of the launching thread */
    tm_device *d;
    const cuda_driver *v;
    CUdevice device;
    CUcontext context;
    char bus[32];
    bool tensor_cores;
    CUmodule module;
    CUfunction function[CUDA_KERNEL_COUNT];
    CUdeviceptr arena, side; /* 0: none */
    uint64_t side_used;
    unsigned long long *counted; /* TM_DEVICE_DEPTH numbers of host memory, registered */
    void *pinned[PINNED];        /* what was registered here, and is not another's; NULL: free */
    cuda_products *products;
    cuda_peers *peers; /* NULL: alone */
    rope_copy rope[ROPE_TABLES];
    uint32_t n_rope;
    /* of the operation that is being launched: */
    uint64_t *nonfinite;
    CUdeviceptr counter;

    pthread_mutex_t lock;
    pthread_cond_t work, done; /* something to do; something is complete */
    bool quit;
    lane lane[LANES];
    pending_op ops[TM_DEVICE_DEPTH];
    uint32_t op_head, n_ops;
    bool launching;
    pthread_t launcher;
    bool launcher_started;
    uint64_t operations;
    tm_error error; /* of the first that failed, for tm_event_wait */
} cuda_device;

/* open.c */
tm_status cuda_open(tm_device *d, const tm_device_opts *opts, const cuda_driver *v, const cuda_lt *lt,
                    const cuda_nccl *nccl);
void cuda_close(tm_device *d);
tm_status cuda_count(const cuda_driver *v, unsigned *n);
tm_status cuda_look(const cuda_driver *v, unsigned i, tm_device_info *out);
tm_status cuda_describe(const cuda_driver *v, const cuda_lt *lt, const char *name, char *out, size_t cap);
tm_status cuda_choices(tm_device *d, char *out, size_t cap);
tm_status cuda_take_choices(tm_device *d, const char *choices);
tm_status cuda_pin(tm_device *d, void *host, uint64_t bytes);
void cuda_unpin(tm_device *d, void *host);
/* Memory beside the arena, for as long as the device is open; CUDA_SIDE_MIB in all. */
tm_status cuda_side(cuda_device *c, uint64_t bytes, CUdeviceptr *out);

/* lanes.c */
void cuda_lanes_idle(cuda_device *c);       /* under the lock: until no operation is being launched, or is to be */
tm_status cuda_lanes_open(cuda_device *c);  /* streams and events */
tm_status cuda_lanes_start(cuda_device *c); /* their threads */
void cuda_lanes_close(cuda_device *c);      /* after what is under way */
/* Under the lock. What was given to the lane's stream until now completes `f`. */
tm_status cuda_take_off(lane *l, const flight *f);
tm_status cuda_submit_copy(tm_device *d, const tm_device_transfer *t, tm_event *e);
tm_status cuda_submit_op(tm_device *d, const tm_device_op *op, tm_event *e);
bool cuda_query(tm_device *d, const tm_event *e);
void cuda_wait(tm_device *d, const tm_event *e);
void cuda_stats(tm_device *d, tm_device_stats *out);

/* launch.c */
void cuda_queue_init(cuda_device *c);
extern const tm_kernel_table cuda_table; /* table.c */

/* All kernels, a fat binary, the toolkit that made it, and for what ("80-virtual, 90"; image.c). */
extern const unsigned char cuda_image[];
extern const char cuda_toolkit[], cuda_architectures[];

#endif
