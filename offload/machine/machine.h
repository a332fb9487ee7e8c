/* A machine, measured or imagined: what the simulator needs to put seconds on a plan.
 *
 * Measured: `tidemill tune` and `bench` write a profile (one JSON file for the user, TIDEMILL_PROFILE or
 * $XDG_CACHE_HOME/tidemill/profile.json, else ~/.cache/tidemill/profile.json): per disk (device of a folder) its rates,
 * per compute back-end (CPU, ISA, library, threads) the seconds of operations that were timed. Imagined: a hardware
 * file (`plan --hardware HW.json`, hardware/README.md); `plan --save-hardware` makes one of the other. Rates are
 * bytes/s and FLOP/s (a multiply-add is two), decimal.
 *
 * Threads: no shared state but the profile file, which is replaced by rename; two writers may lose one's entry.
 */
#ifndef TIDEMILL_MACHINE_H
#define TIDEMILL_MACHINE_H

#include "base/base.h"

/* One disk, or several paths taken together (rates add up; see tm_machine_of). */
typedef struct tm_disk {
    double read_bps, write_bps; /* alone, with large requests in flight */
    double duplex;              /* 0: reads and writes share one rate; 1: neither slows the other. Measured: (seconds of
                                   the reads alone + of the writes alone) / seconds of both together - 1, for half reads
                                   and half writes by bytes */
    double latency;             /* seconds of a request alone */
    double cpu_per_byte;        /* CPU seconds of all threads a byte moved: engine, kernel, page checksum */
    uint64_t bytes;             /* room for offload files; 0: unknown */
    double tbw;                 /* terabytes that may be written over its life; 0: unknown */
    uint32_t queue_depth, block_bytes; /* with which these rates were reached, as in tm_io_opts; 0: unknown */
    double in_training;                /* of these rates, while runs had more to move than the disk takes; 0: unknown */
} tm_disk;

/* Rates as runs found them, where they did: what plans and stripes go by. */
void tm_disk_as_trained(tm_disk *disk);
/* Seconds for so much, with all of it in flight side by side (duplex as above). */
double tm_disk_seconds(const tm_disk *disk, uint64_t read_bytes, uint64_t write_bytes);

/* One of several paths that a job stripes its files over. */
enum { TM_MACHINE_PATHS = 16 };
typedef struct tm_machine_path {
    tm_disk rates;
    bool measured;
    uint8_t disk;   /* the first path on the same disk */
    uint32_t kinds; /* as tm_store_opts.path_kinds; the caller sets it; 0: all */
} tm_machine_path;

/* One node; all nodes are alike. */
typedef struct tm_machine {
    char name[96];
    bool measured; /* disk and compute come from the profile of this machine */
    uint32_t nodes, ranks_per_node;
    uint32_t cores;
    uint64_t host_bytes;                            /* of a node */
    double cpu_flops_fp32, cpu_flops_bf16, cpu_bps; /* of all cores together */
    tm_disk disk;                                   /* of a node */
    uint32_t n_paths;                               /* of this machine's job; 0 and 1: `disk` is all there is to know */
    tm_machine_path path[TM_MACHINE_PATHS];
    uint32_t gpus; /* of a node; the figures below are of one */
    char gpu_name[64];
    uint64_t gpu_bytes;
    double gpu_flops_fp32, gpu_flops_bf16, gpu_bps;
    double h2d_bps, d2h_bps;             /* of one GPU */
    double link_bps, link_latency;       /* between ranks of a node, each way, of one rank */
    double network_bps, network_latency; /* between nodes, each way, of one node */
} tm_machine;

/* Rates that nobody measured: two cores, one NVMe disk. `measured` is false. */
void tm_machine_nominal(tm_machine *out);
/* This machine for a job whose offload files lie in `paths` (may be none): measured where the profile knows, else
 * nominal. Never measures. Damaged profiles are ignored with a warning. */
TM_MUST_USE tm_status tm_machine_of(const char *const *paths, unsigned n_paths, tm_machine *out);
/* A hardware file: JSON object; unknown keys, wrong types and absurd numbers are TM_EINPUT with file and line. */
TM_MUST_USE tm_status tm_machine_load(const char *path, tm_machine *out);
/* The same with `n` settings "KEY=VALUE" ("gpu.count=2", "host_memory=128GiB") in place of what the file says, or beside
 * it; the machine's name then tells them. */
TM_MUST_USE tm_status tm_machine_load_with(const char *path, const char *const *setting, size_t n, tm_machine *out);
/* Writes one. Rates to four digits; disks as one. TM_EINPUT: a figure that must be there is none that would be read. */
TM_MUST_USE tm_status tm_machine_save(const char *path, const tm_machine *m);

/* ---- the profile of this machine ------------------------------------------------------------------------------- */

/* The disk under folder `path` was measured. Kept under its device and file system, so that folders of one disk share.
 */
TM_MUST_USE tm_status tm_profile_put_disk(const char *path, const tm_disk *disk);
/* False where it is not known. */
bool tm_profile_get_disk(const char *path, tm_disk *out);
/* A run moved so much through the disk under `path` in `seconds` in which it always had more: in_training goes half of
 * the way there. Nothing where the disk was never measured. */
TM_MUST_USE tm_status tm_profile_teach_disk(const char *path, uint64_t read_bytes, uint64_t write_bytes,
                                            double seconds);

/* Seconds by name: what an operation of a given shape took on a given back-end, e.g.
 * key "forward block 2 h576 i1536 t512 bf16", back-end "avx2 openblas-0.3.21 2 threads EPYC ...". Some hundreds are kept,
 * those that were put last. */
typedef struct tm_profile tm_profile;
TM_MUST_USE tm_status tm_profile_open(tm_profile **out, const char *backend);
/* Of a device that tm_device_open takes, by what tm_device_describe says of it. TM_EUNSUPPORTED: it is not here. */
TM_MUST_USE tm_status tm_profile_open_device(tm_profile **out, const char *device);
bool tm_profile_get(const tm_profile *p, const char *key, double *seconds);
TM_MUST_USE tm_status tm_profile_put(tm_profile *p, const char *key, double seconds);
TM_MUST_USE tm_status tm_profile_save(tm_profile *p); /* merges into the file; nothing changed: nothing is written */
void tm_profile_close(tm_profile *p);                 /* NULL is fine */
/* The link to a device, of its profile: bytes a second, to the device and from it. */
bool tm_profile_get_link(const tm_profile *p, double *in_bps, double *out_bps);
TM_MUST_USE tm_status tm_profile_put_link(tm_profile *p, double in_bps, double out_bps);
const char *tm_profile_path(void);

#endif
