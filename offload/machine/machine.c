/* This machine: what the profile knows of it, and nominal figures for the rest. */
#include "offload/machine/machine_internal.h"

#include "io/file/file.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A desktop of a few years: 75 GFLOP/s a core are 2 FMAs of 8 floats a cycle at 3 GHz, times 0.78. The disk is a
 * consumer NVMe with writes in its cache; a byte is checked (XXH3) and copied by no one. */
static const double FLOPS_A_CORE = 75e9;
static const tm_disk NOMINAL_DISK = {.read_bps = 1.4 * 1073741824.0,
                                     .write_bps = 2.4 * 1073741824.0,
                                     .duplex = 0.3,
                                     .latency = 100e-6,
                                     .cpu_per_byte = 0.2e-9};

static uint32_t usable_cores(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return (uint32_t)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

static uint64_t physical_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

void tm_machine_nominal(tm_machine *out) {
    *out = (tm_machine){.nodes = 1, .ranks_per_node = 1, .disk = NOMINAL_DISK, .cpu_bps = 12e9};
    snprintf(out->name, sizeof out->name, "this machine");
    out->cores = usable_cores();
    out->host_bytes = physical_bytes();
    out->cpu_flops_fp32 = out->cpu_flops_bf16 = FLOPS_A_CORE * out->cores;
}

/* Rates add up; what is a property of moving bytes is averaged over the bytes that each disk moves. */
static void add_disk(tm_disk *all, const tm_disk *one) {
    double before = all->read_bps + all->write_bps, added = one->read_bps + one->write_bps, total = before + added;
    if (total <= 0) return;
    all->duplex = (all->duplex * before + one->duplex * added) / total;
    all->cpu_per_byte = (all->cpu_per_byte * before + one->cpu_per_byte * added) / total;
    all->latency = fmax(all->latency, one->latency);
    all->read_bps += one->read_bps;
    all->write_bps += one->write_bps;
    all->bytes += one->bytes;
    all->tbw += one->tbw;
}

double tm_disk_seconds(const tm_disk *disk, uint64_t read_bytes, uint64_t write_bytes) {
    double r = read_bytes ? (double)read_bytes / disk->read_bps : 0; /* no bytes take no time, where there is no disk */
    double w = write_bytes ? (double)write_bytes / disk->write_bps : 0;
    return fmax(fmax(r, w), (r + w) / (1 + disk->duplex));
}

void tm_disk_as_trained(tm_disk *disk) {
    if (!(disk->in_training > 0)) return;
    disk->read_bps *= disk->in_training;
    disk->write_bps *= disk->in_training;
    disk->in_training = 1;
}

tm_status tm_machine_of(const char *const *paths, unsigned n_paths, tm_machine *out) {
    char seen[TM_MACHINE_PATHS][PROFILE_DISK_CAP];
    unsigned n = 0, known = 0;
    tm_machine_nominal(out);
    if (n_paths == 0) return TM_OK;
    out->disk = (tm_disk){0};
    for (unsigned i = 0; i < n_paths && i < TM_MACHINE_PATHS; i++, out->n_paths++) {
        tm_machine_path *p = &out->path[i];
        unsigned first = 0;
        *p = (tm_machine_path){.rates = NOMINAL_DISK};
        if (!profile_disk_key(paths[i], seen[i], sizeof seen[i])) snprintf(seen[i], sizeof seen[i], "path %u", i);
        while (strcmp(seen[first], seen[i]) != 0) first++;
        p->disk = (uint8_t)first;
        p->measured = tm_profile_get_disk(paths[i], &p->rates);
        tm_disk_as_trained(&p->rates);
        p->rates.bytes = tm_free_bytes(paths[i]);
        if (first != i) continue;
        known += p->measured;
        add_disk(&out->disk, &p->rates);
        n++;
    }
    out->measured = known == n;
    return TM_OK;
}
