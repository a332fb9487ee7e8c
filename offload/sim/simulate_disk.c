/* A disk as a fluid: what is in flight shares the bandwidth.
 *
 *     reads alone    read_bps      both: reads get  read_bps * (d + (1-d) f)
 *     writes alone   write_bps           writes    write_bps * (d + (1-d) (1-f))
 *                                  f: the reads' share of the requests in flight, d: duplex
 *
 * So d = 1 lets both run at full rate, and at d = 0 the seconds that they would take alone add up. Each path has a
 * lane: its own depth and queue, as in the executor and the I/O engine. Lanes on different disks do not know of each
 * other. */
#include "offload/sim/simulate_internal.h"

#include <math.h>

enum { DEPTH = 32, QUEUE = 8, BLOCK_BYTES = 4 << 20 };
static const double DONE_SECONDS = 1e-12, DONE_BYTES = 1e-3; /* less is rounding */

static sim_device device_of(const tm_disk *disk) {
    return (sim_device){.read_bps = disk->read_bps,
                        .write_bps = disk->write_bps,
                        .duplex = fmin(fmax(disk->duplex, 0), 1),
                        .latency = fmax(disk->latency, 0)};
}

tm_status sim_disk_open(sim_disk *d, const tm_sim_opts *opts) {
    const tm_machine *m = opts->machine;
    *d = (sim_disk){.lanes = m->n_paths > 1 ? m->n_paths : 1,
                    .depth = opts->depth ? opts->depth : DEPTH,
                    .queue = opts->queue ? opts->queue : QUEUE,
                    .block_bytes = opts->block_bytes ? opts->block_bytes : BLOCK_BYTES};
    for (uint32_t i = 0; i < d->lanes; i++) {
        d->device[i] = device_of(d->lanes > 1 ? &m->path[i].rates : &m->disk);
        d->lane[i] = (sim_lane){.device = d->lanes > 1 ? m->path[i].disk : 0,
                                .request = tm_calloc(d->depth, sizeof *d->lane[i].request)};
        if (!d->lane[i].request) return tm_nomem(sizeof *d->lane[i].request * d->depth);
    }
    return TM_OK;
}

void sim_disk_close(sim_disk *d) {
    for (uint32_t i = 0; i < d->lanes; i++) tm_free(d->lane[i].request);
    *d = (sim_disk){0};
}

void sim_disk_issue(sim_disk *d, uint32_t lane, uint32_t key, bool write, uint64_t bytes, bool instant) {
    sim_lane *l = &d->lane[lane];
    uint64_t pieces = (bytes + d->block_bytes - 1) / d->block_bytes;
    TM_ASSERT(!sim_disk_full(d, lane));
    if (pieces == 0 || instant) pieces = 1;
    l->request[l->n++] = (sim_request){.key = key,
                                       .write = write,
                                       .pieces = (uint32_t)tm_min_u64(pieces, d->queue),
                                       .delay = instant ? 0 : d->device[l->device].latency,
                                       .left = instant ? 0 : (double)bytes};
}

/* Lets the lane's oldest requests into its slots. */
static void fill_slots(sim_disk *d, sim_lane *l) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < l->n && used < d->queue; i++) {
        sim_request *r = &l->request[i];
        r->moving = true;
        used += r->pieces;
        if (r->delay <= DONE_SECONDS) d->device[l->device].weight[r->write] += r->pieces;
    }
}

static double set_rates(sim_device *v) {
    double reads = v->weight[0], writes = v->weight[1], all = reads + writes, share = 1 - v->duplex;
    v->rate[0] = reads > 0 ? v->read_bps * (v->duplex + share * reads / all) / reads : 0;
    v->rate[1] = writes > 0 ? v->write_bps * (v->duplex + share * writes / all) / writes : 0;
    return v->rate[0] * reads + v->rate[1] * writes;
}

static void share_out(sim_disk *d) {
    for (uint32_t i = 0; i < d->lanes; i++) d->device[i].weight[0] = d->device[i].weight[1] = 0;
    for (uint32_t i = 0; i < d->lanes; i++) fill_slots(d, &d->lane[i]);
    d->bytes_per_second = 0;
    for (uint32_t i = 0; i < d->lanes; i++) d->bytes_per_second += set_rates(&d->device[i]);
}

static double next_of_lane(const sim_disk *d, const sim_lane *l) {
    double next = INFINITY;
    for (uint32_t i = 0; i < l->n && l->request[i].moving; i++) {
        const sim_request *r = &l->request[i];
        double t = r->delay > DONE_SECONDS ? r->delay
                   : r->left > DONE_BYTES  ? r->left / (d->device[l->device].rate[r->write] * r->pieces)
                                           : 0;
        if (t < next) next = t;
    }
    return next;
}

double sim_disk_next(sim_disk *d) {
    double next = INFINITY;
    share_out(d);
    for (uint32_t i = 0; i < d->lanes; i++) next = fmin(next, next_of_lane(d, &d->lane[i]));
    return next;
}

void sim_disk_advance(sim_disk *d, double seconds) {
    for (sim_lane *l = d->lane; l < d->lane + d->lanes; l++) {
        for (uint32_t i = 0; i < l->n && l->request[i].moving; i++) {
            sim_request *r = &l->request[i];
            if (r->delay > DONE_SECONDS)
                r->delay -= seconds;
            else
                r->left -= d->device[l->device].rate[r->write] * r->pieces * seconds;
        }
    }
}

static bool take_from(sim_lane *l, uint32_t *key) {
    for (uint32_t i = 0; i < l->n && l->request[i].moving; i++) {
        if (l->request[i].delay > DONE_SECONDS || l->request[i].left > DONE_BYTES) continue;
        *key = l->request[i].key;
        l->n--;
        for (; i < l->n; i++) l->request[i] = l->request[i + 1];
        return true;
    }
    return false;
}

bool sim_disk_take(sim_disk *d, uint32_t *key) {
    for (uint32_t i = 0; i < d->lanes; i++)
        if (take_from(&d->lane[i], key)) return true;
    return false;
}
