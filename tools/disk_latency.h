/* A histogram of durations whose buckets are at most 1/64 wide. */
#ifndef TIDEMILL_DISK_LATENCY_H
#define TIDEMILL_DISK_LATENCY_H

#include "tools/disk_load.h"

typedef struct disk_histogram {
    uint64_t count[64 * 64], total, most;
} disk_histogram;
void disk_histogram_add(disk_histogram *h, uint64_t ns);
void disk_histogram_merge(disk_histogram *into, const disk_histogram *from);
disk_latency disk_histogram_read(const disk_histogram *h); /* of no durations: zeros */

#endif
