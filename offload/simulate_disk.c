/* A disk as a fluid: what is in flight shares the bandwidth.
 *
 *     reads alone    read_bps            both: reads get read_bps * (d + (1-d) f), writes write_bps * (d + (1-d)
 * (1-f)), writes alone   write_bps           f: the reads' share of the requests in flight, d: duplex
 *
 * So d = 1 lets both run at full rate, and at d = 0 the seconds that they would take alone add up. */
#include "offload/simulate_internal.h"

#include <math.h>

enum { DEPTH = 32, QUEUE = 8, BLOCK_BYTES = 4 << 20 };
static const double DONE_SECONDS = 1e-12, DONE_BYTES = 1e-3; /* less is rounding */

tm_status sim_disk_open(sim_disk *d, const tm_sim_opts *opts) {
    const tm_disk *disk = &opts->machine->disk;
    *d = (sim_disk){.read_bps = disk->read_bps,
                    .write_bps = disk->write_bps,
                    .duplex = disk->duplex < 0   ? 0
                              : disk->duplex > 1 ? 1
                                                 : disk->duplex,
                    .latency = disk->latency > 0 ? disk->latency : 0,
                    .depth = opts->depth ? opts->depth : DEPTH,
                    .queue = opts->queue ? opts->queue : QUEUE,
                    .block_bytes = opts->block_bytes ? opts->block_bytes : BLOCK_BYTES};
    d->request = tm_calloc(d->depth, sizeof *d->request);
    return d->request ? TM_OK : tm_nomem(sizeof *d->request * d->depth);
}

void sim_disk_close(sim_disk *d) {
    tm_free(d->request);
    *d = (sim_disk){0};
}

void sim_disk_issue(sim_disk *d, uint32_t key, bool write, uint64_t bytes, bool instant) {
    uint64_t pieces = (bytes + d->block_bytes - 1) / d->block_bytes;
    TM_ASSERT(!sim_disk_full(d));
    if (pieces == 0 || instant) pieces = 1;
    d->request[d->n++] = (sim_request){.key = key,
                                       .write = write,
                                       .pieces = (uint32_t)tm_min_u64(pieces, d->queue),
                                       .delay = instant ? 0 : d->latency,
                                       .left = instant ? 0 : (double)bytes};
}

/* Lets the oldest requests into the slots, and finds the rates. */
static void set_rates(sim_disk *d) {
    uint32_t used = 0;
    d->weight[0] = d->weight[1] = 0;
    for (uint32_t i = 0; i < d->n && used < d->queue; i++) {
        sim_request *r = &d->request[i];
        r->moving = true;
        used += r->pieces;
        if (r->delay <= DONE_SECONDS) d->weight[r->write] += r->pieces;
    }
    double reads = d->weight[0], writes = d->weight[1], all = reads + writes, share = 1 - d->duplex;
    d->rate[0] = reads > 0 ? d->read_bps * (d->duplex + share * reads / all) / reads : 0;
    d->rate[1] = writes > 0 ? d->write_bps * (d->duplex + share * writes / all) / writes : 0;
    d->bytes_per_second = d->rate[0] * reads + d->rate[1] * writes;
}

double sim_disk_next(sim_disk *d) {
    double next = INFINITY;
    set_rates(d);
    for (uint32_t i = 0; i < d->n && d->request[i].moving; i++) {
        const sim_request *r = &d->request[i];
        double t = r->delay > DONE_SECONDS ? r->delay
                   : r->left > DONE_BYTES  ? r->left / (d->rate[r->write] * r->pieces)
                                           : 0;
        if (t < next) next = t;
    }
    return next;
}

void sim_disk_advance(sim_disk *d, double seconds) {
    for (uint32_t i = 0; i < d->n && d->request[i].moving; i++) {
        sim_request *r = &d->request[i];
        if (r->delay > DONE_SECONDS)
            r->delay -= seconds;
        else
            r->left -= d->rate[r->write] * r->pieces * seconds;
    }
}

bool sim_disk_take(sim_disk *d, uint32_t *key) {
    for (uint32_t i = 0; i < d->n && d->request[i].moving; i++) {
        if (d->request[i].delay > DONE_SECONDS || d->request[i].left > DONE_BYTES) continue;
        *key = d->request[i].key;
        d->n--;
        for (; i < d->n; i++) d->request[i] = d->request[i + 1];
        return true;
    }
    return false;
}
