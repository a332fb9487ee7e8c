/* io: bytes and offsets, never tensors.
 *
 * Three things live in this folder:
 *   1. here: the engine, asynchronous reads and writes of registered memory at offsets of offload files (uring,
 *      threads, sync);
 *   2. io/run/run.h: run directories, where offload files lie, who owns them, how they are reserved and removed;
 *   3. io/file/file.h: plain files, a reader and an atomic writer for models, data, logs and results.
 * Every system call of all three goes through one seam (io_sys in io_internal.h), where a test can fail, shorten, delay
 * or corrupt the i-th call.
 *
 * Threads: one thread at a time drives an engine (register, submit, wait, advance, close); another may take over only
 * while nothing is in flight, so an engine may be opened and registered by one thread and driven by another. tm_io_wake
 * may be called from any thread and from a signal handler. Readers allow concurrent tm_file_read_at. Runs, writers and
 * logs are used by one thread at a time.
 *
 *     tm_io_run *run;  tm_io_file file;  tm_io *io;
 *     TM_TRY(tm_io_run_create(&run, "/nvme/offload", &run_opts));
 *     TM_TRY(tm_io_file_create(run, "weight_hi", bytes, false, &file));     // space is reserved, or TM_ENOSPC now
 *     TM_TRY(tm_io_open(&io, &(tm_io_opts){.queue_depth = 8}));
 *     TM_TRY(tm_io_register(io, slab, slab_bytes));
 *     tm_io_req r = {.op = TM_IO_READ, .file = file, .offset = 0, .buf = slab, .len = 4 << 20, .user = op};
 *     tm_io_req *batch[] = {&r};
 *     TM_TRY(tm_io_submit(io, batch, 1));                                   // TM_OK: r completes exactly once
 *     TM_TRY(tm_io_wait(io, done, 16, &n, true));
 *     if (done[0]->status != TM_OK) return tm_io_req_fail(done[0]);         // says file, offset, length, errno
 */
#ifndef TIDEMILL_IO_H
#define TIDEMILL_IO_H

#include "base/base.h"

typedef struct tm_io_file {
    int fd;
    int index;          /* of the registered file; -1: not registered */
    const char *name;   /* full path, for messages; owned by the run */
    uint32_t alignment; /* O_DIRECT: of offset, length and address. 0 or 1: buffered; the engine then drops the pages
                         * that it moved from the page cache, so that it stays small */
    unsigned lane;      /* of tm_io_opts.lanes: the files of one disk */
} tm_io_file;

/* Removes what this process has created and neither finished nor closed: run directories and the temporary files of
 * tm_out. For the way out after a signal was noticed (not from a handler): it only unlinks, so that threads still at
 * work see no closed descriptor or freed memory. Run directories that are to stay must be closed first. */
void tm_io_cleanup_at_exit(void);

/* ---- the engine ----------------------------------------------------------------------------------------------- */

/* TM_IO_SYNC is fdatasync: it covers the writes that were returned by tm_io_wait before it was submitted. It is never
 * tried again after an error: the kernel may have dropped the pages, and a second sync would succeed without them.
 * A read that meets the end of the file is TM_EIO with sys_errno 0. */
typedef enum tm_io_op { TM_IO_READ, TM_IO_WRITE, TM_IO_SYNC } tm_io_op;
typedef struct tm_io_req {
    tm_io_op op;
    tm_io_file file;
    uint64_t offset;
    void *buf;
    uint64_t len; /* at least 1 byte; not used by TM_IO_SYNC */
    void *user;
    /* results, valid once it was returned by tm_io_wait: */
    tm_status status;
    int sys_errno;
    uint64_t done; /* bytes moved; == len if status is TM_OK */
    uint64_t submit_ns, complete_ns;
    /* the engine's: */
    struct tm_io_req *next;
    uint32_t internal;
} tm_io_req;

typedef struct tm_io tm_io;
/* engine: NULL or "auto": uring, else threads (one warning says why); or a name; or layers over an engine, joined by
 * '+', each with options after a ':', e.g. "sim:seed=7,shorten=0.1+delay:latency=0.001+sync".
 *
 *   uring    one io_uring                          threads  a pool that calls pread and pwrite
 *   sync     in the calling thread: the oracle
 *   null     completes at once and moves nothing: measures ourselves
 *   mem      files are in memory, as long as the engine is open (reads of what was not written give zeros)
 *
 *   delay    latency=SECONDS, bps=BYTES_PER_SECOND (one rate for all that goes through), lane=N: only that lane's
 *   error    fails with errno=eio the attempt number at=I (from 1; sticky=1: and all later ones), or each with
 *            probability rate=P; reads=0, writes=0 or syncs=0 leaves those alone
 *   sim      what a hostile machine may do, each with a probability: reorder (an attempt is held back another round,
 *            before it is carried out and after), shorten, zero, eintr, eagain, fail (errno=eio), and, not to be
 *            noticed here, lost (a write that did not happen), flip (a bit of a read or a write), misdirect (4 KiB
 *            beside); trash=1 overwrites what a read will fill when it starts. seed=N: over sync, mem and null the same calls
 *            give the same run. "sim:..." alone is over mem.
 *
 * Probabilities count attempts: a request is one for each block_bytes, and one more for each that fell short. */
typedef struct tm_io_opts {
    const char *engine;
    unsigned
        queue_depth;  /* in flight at the device, of each lane, 0: 8; more may be submitted, they wait here in order */
    unsigned threads; /* of the "threads" engine, for each lane, 0: 2 */
    uint32_t block_bytes;   /* larger requests are cut into pieces of this size, 0: 4 MiB; rounded up to 4 KiB */
    unsigned lanes;         /* 0: 1, at most 16. Requests wait only for those of their lane (tm_io_file.lane): one for
                             * each disk keeps a slow one from filling the queue of the others */
    bool single_submit;     /* DeepSpeed's: each piece is handed to the kernel alone, not with others that are ready */
    bool no_overlap_events; /* DeepSpeed's overlap_events: false: new pieces start when all that are out have ended */
    bool submit_at_wait;    /* tm_io_submit hands nothing to the kernel, the next tm_io_wait does: fewer system calls
                             * for those who submit several requests and then wait */
    bool count_cpu;         /* fills tm_io_stats.cpu_ns: two clock calls for each submit and wait */
    uint64_t order_seed; /* "sync" only, for tests: not 0: requests run as late as possible (one in each tm_io_wait), in
                          * a random order, and what they will read is overwritten with garbage at submission */
} tm_io_opts;
TM_MUST_USE tm_status tm_io_open(tm_io **out, const tm_io_opts *opts);
void tm_io_close(tm_io *io); /* waits for what is in flight, whose requests are not returned; NULL is fine */
const char *tm_io_engine_name(const tm_io *io); /* "uring"; layers as they were given */
/* Memory that requests will point into. Where the kernel refuses (memlock), one warning and unregistered I/O. */
TM_MUST_USE tm_status tm_io_register(tm_io *io, void *base, size_t bytes);
/* All registered memory is the caller's alone again; nothing may be in flight. From the thread that last waited: then
 * the kernel lets go of its pages before this returns, else soon after. */
void tm_io_unregister(tm_io *io);
/* Files whose requests are to come; fills file->index. Optional. */
TM_MUST_USE tm_status tm_io_register_files(tm_io *io, tm_io_file *files, unsigned n);
/* TM_OK: every request will be returned by tm_io_wait exactly once; until then it and its memory belong to the engine.
 * Otherwise: none will (TM_EBUG: bad length, closed file, or not aligned to file.alignment). No order among requests in
 * flight is promised. Nothing is allocated. */
TM_MUST_USE tm_status tm_io_submit(tm_io *io, tm_io_req *const *reqs, unsigned n);
/* Returns completed requests, in any order. With `block` it sleeps until at least one is complete or tm_io_wake was
 * called (then *n may be 0), even if nothing is in flight; a wake between two waits is not lost. A request's failure is
 * in the request; the call itself fails only where the engine cannot go on. */
TM_MUST_USE tm_status tm_io_wait(tm_io *io, tm_io_req **done, unsigned max, unsigned *n, bool block);
/* Keeps the device busy for those who do something else between two waits: what waits in the queue is handed over where
 * others have completed. Those come out of the next tm_io_wait, as does any failure. */
void tm_io_advance(tm_io *io);
void tm_io_wake(tm_io *io);
unsigned tm_io_in_flight(const tm_io *io); /* submitted and not yet returned by tm_io_wait */
/* Records the failed request (operation, path, offset, length, errno) and returns its status. */
tm_status tm_io_req_fail(const tm_io_req *req);
typedef struct tm_io_stats {
    uint64_t read_bytes, write_bytes, reads, writes, syncs, resubmitted;
    uint64_t cpu_ns; /* processor time in tm_io_submit and tm_io_wait of whoever called them, with tm_io_opts.count_cpu;
                      * of all lanes together */
    /* While requests waited for others to make room, that is while the disk, or whoever was to return from tm_io_wait,
     * held things up: how long, and what was moved. Bursts of less than three times queue_depth are left out, and times
     * in which nothing happened for two seconds: the process was stopped. */
    uint64_t full_ns, full_read_bytes, full_write_bytes;
} tm_io_stats;
void tm_io_get_stats(const tm_io *io, tm_io_stats *out); /* of completed requests */
void tm_io_lane_stats(const tm_io *io, unsigned lane, tm_io_stats *out);

#endif
