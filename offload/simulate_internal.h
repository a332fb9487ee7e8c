/* The simulated disk: requests in flight share its bandwidth. simulate.c keeps the clock. */
#ifndef TIDEMILL_SIMULATE_INTERNAL_H
#define TIDEMILL_SIMULATE_INTERNAL_H

#include "offload/simulate.h"

/* One request. First `delay` seconds pass, then `left` bytes move at its share of the disk's rate. */
typedef struct sim_request {
    uint32_t key; /* the caller's */
    bool write, moving;
    uint32_t pieces; /* of the I/O engine: slots taken, and its weight in the sharing */
    double delay, left;
} sim_request;

/* Requests wait in the order of issue until one of `queue` slots is free, as in the I/O engine. */
typedef struct sim_disk {
    double read_bps, write_bps, duplex, latency;
    sim_request *request; /* [depth], a list in order of issue */
    uint32_t n, depth, queue;
    uint32_t weight[2];      /* of the requests whose bytes are moving: reads, writes */
    double rate[2];          /* bytes a second of a request of weight 1 */
    double bytes_per_second; /* of both together */
} sim_disk;

TM_MUST_USE tm_status sim_disk_open(sim_disk *d, const tm_disk *disk, uint32_t depth, uint32_t queue);
void sim_disk_close(sim_disk *d);
static inline bool sim_disk_full(const sim_disk *d) {
    return d->n == d->depth;
}
/* `instant`: no delay and no bytes. */
void sim_disk_issue(sim_disk *d, uint32_t key, bool write, uint64_t bytes, bool instant);
double sim_disk_next(sim_disk *d); /* seconds until something changes, INFINITY: nothing is in flight */
void sim_disk_advance(sim_disk *d, double seconds);
bool sim_disk_take(sim_disk *d, uint32_t *key); /* a finished request; false: none */

#endif
