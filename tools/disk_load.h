/* disk_load: files in folders, and requests on them that are timed. For `bench io` and `tune io`.
 *
 *     disk_load *d;
 *     TM_TRY(disk_load_open(&d, &(disk_load_opts){.paths = paths, .n_paths = 1, .bytes = 4 * TM_GIB}));  // laid out
 *     TM_TRY(disk_load_run(d, &(disk_load_job){.rw = DISK_READ, .request = 1 << 20, .outstanding = 8}, &result));
 *     TM_TRY(disk_load_close(d));   // the files are gone
 *
 * The files lie in run directories of their own (io/run/run.h), which go with disk_load_close, or with tm_io_cleanup_at_exit.
 * One thread. SIGINT and SIGTERM end what is under way with TM_ESIGNAL once disk_load_catch_signals was called. */
#ifndef TIDEMILL_DISK_LOAD_H
#define TIDEMILL_DISK_LOAD_H

#include "io/io.h"
#include "io/run/run.h"
#include "tools/busy_cores.h"

enum { DISK_MAX_PATHS = 16 };

typedef enum disk_rw { DISK_READ, DISK_WRITE, DISK_MIXED } disk_rw;

typedef struct disk_load_opts {
    const char *const *paths;
    unsigned n_paths;
    uint64_t bytes; /* of the file in each folder; 0: 4 GiB, less where a quarter of the free space is less */
    double seconds; /* laying out stops after so long with what there is by then (at least 64 MiB); 0: never */
    bool buffered;  /* no O_DIRECT */
    bool verify;    /* every 4 KiB (512 bytes for odd blocks) carry place, age and checksum, and all are checked */
    uint32_t least_request; /* of the jobs to come; 0: 4096 */
    const char *engine;     /* for laying out; NULL: auto */
} disk_load_opts;

typedef struct disk_load_job {
    disk_rw rw; /* mixed: half and half by bytes, in two halves of the file */
    bool random;
    uint32_t request;     /* bytes */
    unsigned outstanding; /* requests that are submitted and not complete, in each folder */
    tm_io_opts io;        /* queue_depth 0: `outstanding`; block_bytes 0: `request` */
    bool unregistered;
    bool page_checksums; /* XXH3 of every 64 KiB as the trainer computes it; for the cost, nothing is compared */
    double seconds; /* at most; goes over the file again and again if `repeat`, else stops at its end. 0: no limit */
    bool repeat;
    unsigned only_path;     /* from 1: in this folder alone; 0: in all at once */
    const busy_cores *busy; /* compute meanwhile, and are not counted in cpu_seconds; NULL: none do */
} disk_load_job;

typedef struct disk_latency { /* seconds, from submission to completion */
    double p50, p90, p99, p999, most;
} disk_latency;

typedef struct disk_load_result {
    double read_bps, write_bps; /* over all folders: the sum of their rates */
    double path_read_bps[DISK_MAX_PATHS], path_write_bps[DISK_MAX_PATHS];
    uint64_t path_bytes[DISK_MAX_PATHS], read_bytes, write_bytes, requests;
    double seconds;
    double cpu_seconds;      /* of all threads of this process but busy_cores */
    double checksum_seconds; /* of these, on page_checksums */
    double busy_rounds_per_second;
    disk_latency read, write, all;
    char engine[160];
} disk_load_result;

typedef struct disk_load disk_load;
TM_MUST_USE tm_status disk_load_open(disk_load **out, const disk_load_opts *opts);
TM_MUST_USE tm_status disk_load_run(disk_load *d, const disk_load_job *job, disk_load_result *out);
/* With `verify`: reads every byte of every file and checks it. */
TM_MUST_USE tm_status disk_load_check(disk_load *d, const char *engine);
uint64_t disk_load_bytes(const disk_load *d); /* of each file */
bool disk_load_direct(const disk_load *d, unsigned path);
uint64_t disk_load_free_bytes(const disk_load *d, unsigned path); /* that offload files could take, its own included */
TM_MUST_USE tm_status disk_load_close(disk_load *d);              /* NULL is fine */
void disk_load_catch_signals(void);

#endif
