#ifndef TIDEMILL_CUDA_HOST_H
#define TIDEMILL_CUDA_HOST_H

#include "device/device_internal.h"

/* Before anything else of the module. */
void cuda_host_set(const device_host *h);

#endif
