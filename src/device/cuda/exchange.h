/* Exchanges between the devices of several ranks (device.h: tm_device_exchange). */
#ifndef TIDEMILL_CUDA_EXCHANGE_H
#define TIDEMILL_CUDA_EXCHANGE_H

#include "device/cuda/nccl_table.h"
#include "device/device_internal.h"

typedef struct cuda_peers cuda_peers;
struct cuda_device;

/* Waits for all of them. What NCCL takes of the device's memory it has afterwards. After a failure cuda_peers_close is
 * called all the same. */
tm_status cuda_peers_open(struct cuda_device *c, const cuda_nccl *nccl, const tm_device_peers *to);
void cuda_peers_close(struct cuda_device *c); /* after what is under way; none: nothing happens */
tm_status cuda_peers_id(const cuda_nccl *nccl, uint8_t id[TM_DEVICE_ID_BYTES]);
tm_status cuda_exchange(tm_device *d, const tm_device_exchange *x, tm_event *e);

#endif
