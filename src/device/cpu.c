/* The CPU in place: frames are the host's, operations are calls. */
#include "device/device_internal.h"

static tm_status cpu_open(tm_device *d, const tm_device_opts *opts) {
    (void)opts;
    d->caps.in_place = true;
    d->caps.alignment = 64;
    return TM_OK;
}

static void cpu_close(tm_device *d) {
    (void)d;
}

static tm_status cpu_run(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx) {
    (void)d, (void)frame, (void)n;
    return fn(ctx);
}

const device_ops device_cpu = {.name = "cpu", .open = cpu_open, .close = cpu_close, .run = cpu_run};
