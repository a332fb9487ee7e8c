/* What is known of this machine as rates: a hardware file with which the model is planned elsewhere, or with more of
 * something. The rates are those with which the file's formulas give the seconds that are known, summed over a step (on
 * a GPU, over the model's stages): of memory by what an update takes, of matrix products by what is left then. */
#include "planner/cost_table_internal.h"

#include <math.h>
#include <stdio.h>

/* Of the time. Memory is as fast as that takes, should an update say less (on a GPU it may be mostly its launch). */
static const double LEAST_IN_PRODUCTS = 0.1;

/* Of a stage's kernels. */
static const double LAUNCH_SECONDS = 10e-6;

double cost_gpu_seconds(job_work w, double flops_per_second, double bytes_per_second) {
    return fmax(w.flops / flops_per_second, w.bytes / bytes_per_second) + LAUNCH_SECONDS;
}

typedef double (*stage_fn)(void *ctx, job_work w, double known);

/* Sum over all stages, forward and backward. */
static double of_all(const job_costs *c, stage_fn fn, void *ctx) {
    const tm_model *m = c->job->model;
    double sum = 0;
    for (int b = 0; b < 2; b++)
        for (uint32_t u = 0; u < tm_model_units(m); u++)
            for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++)
                sum += fn(ctx, job_load_work(m, u, s, b, c->load), c->stage[b][c->first[u] + s]);
    return sum;
}

static double memory_rate(const job_costs *c, cost_tile update) {
    cost_tile which = c->tile[update] > 0 ? update : COST_FINISH;
    return cost_tile_bytes(c, which) / c->tile[which];
}

/* ---- a processor: seconds of products and seconds of memory add up ---- */

typedef struct host_sum {
    double flops, bytes, known;
} host_sum;

static double add_host(void *ctx, job_work w, double known) {
    host_sum *h = ctx;
    h->flops += w.flops;
    h->bytes += w.bytes;
    h->known += known;
    return 0;
}

/* A micro-batch's part of what a step does once: gradients are finished, and what learns is updated. */
static void add_tile(const job_costs *c, cost_tile which, host_sum *h) {
    double n = 0;
    for (uint32_t p = 0; p < tm_model_parts(c->job->model); p++)
        if (c->job->part[p].learns) n += (double)c->job->part[p].elements;
    n /= fmax(1, (double)c->shape.micro_batches);
    h->known += n * c->tile[which];
    if (c->tile[which] > 0) h->bytes += n * cost_tile_bytes(c, which);
}

/* Whatever the update says of memory, all of it together takes by the rates what it takes here. */
static void add_host_rates(const job_costs *c, tm_machine *m) {
    host_sum h = {.flops = 0};
    (void)of_all(c, add_host, &h);
    add_tile(c, COST_FINISH, &h);
    add_tile(c, COST_UPDATE, &h);
    m->cpu_bps = fmax(m->cpu_bps, h.bytes / ((1 - LEAST_IN_PRODUCTS) * h.known));
    m->cpu_flops_fp32 = m->cpu_flops_bf16 = h.flops / (h.known - h.bytes / m->cpu_bps);
}

/* ---- a GPU: a stage takes the longer of the two ---- */

typedef struct gpu_rates {
    double flops, bps;
} gpu_rates;

static double gpu_stage(void *ctx, job_work w, double known) {
    const gpu_rates *g = ctx;
    (void)known;
    return cost_gpu_seconds(w, g->flops, g->bps);
}
static double known_stage(void *ctx, job_work w, double known) {
    (void)ctx, (void)w;
    return known;
}

enum { BISECTIONS = 60 };
static const double LEAST_RATE = 1e6, MOST_BPS = 1e14, MOST_FLOPS = 1e16;

/* Seconds fall as a rate grows: the least one with which all stages take no more than `seconds`, or the most there is.
 */
static double least_rate(const job_costs *c, gpu_rates *g, double *rate, double most, double seconds) {
    double low = log(LEAST_RATE), high = log(most);
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;
        *rate = exp(middle);
        if (of_all(c, gpu_stage, g) > seconds)
            low = middle;
        else
            high = middle;
    }
    return *rate = exp(high);
}

static gpu_rates rates_of_gpu(const job_costs *c) {
    gpu_rates g = {.flops = MOST_FLOPS};
    double known = of_all(c, known_stage, NULL), by_update = memory_rate(c, COST_UPDATE_THERE);
    double least = least_rate(c, &g, &g.bps, MOST_BPS, (1 - LEAST_IN_PRODUCTS) * known);
    g.bps = fmax(by_update, least);
    (void)least_rate(c, &g, &g.flops, MOST_FLOPS, known);
    return g;
}

static tm_status add_gpu(const job_costs *c, tm_machine *m) {
    tm_device_info info;
    TM_TRY(tm_device_look_for(c->job->opts.device, &info));
    m->gpus = 1;
    m->gpu_bytes = info.memory_bytes;
    snprintf(m->gpu_name, sizeof m->gpu_name, "%.*s", (int)sizeof m->gpu_name - 1, info.about);
    gpu_rates rates = rates_of_gpu(c);
    m->gpu_bps = rates.bps;
    m->gpu_flops_fp32 = m->gpu_flops_bf16 = rates.flops;
    return TM_OK;
}

tm_status job_costs_rates(const job_costs *c, tm_machine *machine) {
    char cpu[49];
    bool apart = c->stage_side == COST_DEVICE;
    if (c->side[c->stage_side].known == 0)
        return tm_fail(TM_EINPUT, "nothing of this model was measured %s: leave out --no-measure, or train first",
                       apart ? "on the device" : "here");
    cost_cpu_name(cpu);
    snprintf(machine->name, sizeof machine->name, "%s, %u cores", cpu, machine->cores);
    if (c->side[COST_HOST].known > 0) machine->cpu_bps = memory_rate(c, COST_UPDATE);
    if (apart) return add_gpu(c, machine);
    add_host_rates(c, machine);
    return TM_OK;
}
