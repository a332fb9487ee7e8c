/* The examples of device.h. */
#include "device/device.h"

tm_status device_example(void *weights, size_t n, tm_device_fn my_kernel, void *ctx) {
    tm_event e = {0};
    //@ src/device/device.h tm_device *d;
    return TM_OK;
}
