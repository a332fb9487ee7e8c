/* A module of devices, good or bad in one way: VERSION_OFF, NO_SYMBOL, NO_DRIVER. */
#include "device/device_internal.h"

#include <stdio.h>

#ifndef NO_SYMBOL
static const device_host *host;
static unsigned starts;

static tm_status start(const device_host *h) {
    host = h;
    starts++;
#ifdef NO_DRIVER
    return host->fail(TM_EUNSUPPORTED, "there is no driver for this module");
#else
    return TM_OK;
#endif
}

static tm_status look(unsigned i, tm_device_info *out) {
    if (i > 1) return host->fail(TM_EINPUT, "there is no test_good:%u", i);
    *out = (tm_device_info){.memory_bytes = starts};
    (void)snprintf(out->name, sizeof out->name, "test_good:%u", i);
    return TM_OK;
}

static const device_ops ops = {.look = look};
#ifdef VERSION_OFF
enum { BYTES_OFF = 8 };
#else
enum { BYTES_OFF = 0 };
#endif
extern const device_module tm_device_module;
__attribute__((visibility("default"))) const device_module tm_device_module = {
    .version = DEVICE_MODULE_VERSION, .bytes = DEVICE_MODULE_BYTES + BYTES_OFF, .ops = &ops, .start = start};
#endif
