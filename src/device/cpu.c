/* The CPU in place: frames are the host's, operations are calls (device.c). */
#include "device/device_internal.h"

static tm_status cpu_open(tm_device *d, const tm_device_opts *opts) {
    (void)d, (void)opts;
    return TM_OK;
}

static void cpu_close(tm_device *d) {
    (void)d;
}

const device_ops device_cpu = {.open = cpu_open, .close = cpu_close};
