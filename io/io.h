/* io: bytes and offsets, never tensors.
 *
 * Three things live here:
 *   1. the engine: asynchronous reads and writes of registered memory at offsets of offload files (uring, threads,
 *      sync);
 *   2. run directories: where offload files lie, who owns them, how they are reserved and removed;
 *   3. plain files: a reader and an atomic writer for models, data, logs and results.
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
 *     TM_TRY(tm_io_file_create(run, "weight_hi", bytes, &file));            // space is reserved, or TM_ENOSPC now
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

/* ---- run directories ------------------------------------------------------------------------------------------ */

/* One run's directory under an offload path: PATH/run-<id>/, 0700, with a `lock` file held by flock on a descriptor
 * that no ring ever sees, and an `owner` file (key, what it is of, pid, host, start time, command): whose it is, and
 * for the one who finds it. Created with O_EXCL|O_NOFOLLOW; symlinks are not followed. */
typedef struct tm_io_run tm_io_run;

/* A random key of 128 bits proves whose a directory is: who made it wrote it into `owner`, and keeps it elsewhere. */
enum { TM_IO_KEY_CHARS = 32 };
void tm_io_make_key(char key[TM_IO_KEY_CHARS + 1]);
bool tm_io_is_key(const char *key);
/* Who asks for a directory that is there. */
typedef struct tm_io_claim {
    const char *key;          /* has to be that in `owner` */
    const char *of;           /* what the run is of (a full path), written beside it; NULL: as it was */
    const char *const *paths; /* the directory has to lie in one of these, by identity; n_paths 0: anywhere */
    unsigned n_paths;
} tm_io_claim;

typedef struct tm_io_run_opts {
    const char *id;       /* NULL: a fresh random id */
    const char *key, *of; /* of tm_io_claim; NULL: a fresh key, nothing */
    bool allow_tmpfs;     /* tmpfs and ramfs are memory: refused (TM_EINPUT) unless this is set */
    bool create_parents;  /* make PATH itself (0700) where it does not exist */
} tm_io_run_opts;
TM_MUST_USE tm_status tm_io_run_create(tm_io_run **out, const char *path, const tm_io_run_opts *opts);
const char *tm_io_run_path(const tm_io_run *run);    /* PATH/run-<id> */
bool tm_io_run_direct(const tm_io_run *run);         /* O_DIRECT works here (probed) */
uint32_t tm_io_run_alignment(const tm_io_run *run);  /* of offset, length and address: 512 or 4096; 1 if buffered */
uint64_t tm_io_run_free_bytes(const tm_io_run *run); /* statfs f_bavail now */
/* Unlinks the files that runs make and the directory, closes; frees `run` in any case. What somebody else put there
 * stays, directory included, with a warning. */
TM_MUST_USE tm_status tm_io_run_remove(tm_io_run *run);
bool tm_io_run_makes(const char *name); /* so it unlinks it */
void tm_io_run_close(tm_io_run *run);   /* leaves the files; NULL is fine */
/* Removes what this process has created and neither finished nor closed: run directories and the temporary files of
 * tm_out. For the way out after a signal was noticed (not from a handler): it only unlinks, so that threads still at
 * work see no closed descriptor or freed memory. Run directories that are to stay must be closed first. */
void tm_io_cleanup_at_exit(void);

typedef struct tm_io_file {
    int fd;
    int index;          /* of the registered file; -1: not registered */
    const char *name;   /* full path, for messages; owned by the run */
    uint32_t alignment; /* O_DIRECT: of offset, length and address. 0 or 1: buffered; the engine then drops the pages
                         * that it moved from the page cache, so that it stays small */
    unsigned lane;      /* of tm_io_opts.lanes: the files of one disk */
} tm_io_file;
/* Creates PATH/run-<id>/NAME (0600) of `bytes` bytes, rounded up to 4 KiB, space reserved (fallocate; TM_ENOSPC names
 * what is missing). `buffered` leaves O_DIRECT off. The run closes it. */
TM_MUST_USE tm_status tm_io_file_create(tm_io_run *run, const char *name, uint64_t bytes, bool buffered,
                                        tm_io_file *out);

/* Going on in the directory of a run that ended: takes its lock (waiting up to `wait_ms` for a process that is still
 * dying, or looks at it), makes sure that it is the claim's, writes itself down as the owner. TM_EINPUT: not there, not
 * the claim's, or its owner is alive: pid and host are named. `dir` is PATH/run-<id>. `claim` NULL: any whose `owner` a
 * run wrote, in this version or one before keys. */
TM_MUST_USE tm_status tm_io_run_reopen(tm_io_run **out, const char *dir, const tm_io_claim *claim, bool allow_tmpfs,
                                       unsigned wait_ms);
/* An existing file of at least `bytes` bytes; otherwise as tm_io_file_create. TM_ECORRUPT: missing or cut off. */
TM_MUST_USE tm_status tm_io_file_open(tm_io_run *run, const char *name, uint64_t bytes, bool buffered, tm_io_file *out);
TM_MUST_USE tm_status tm_io_run_unlink(tm_io_run *run, const char *name); /* absent is fine */
TM_MUST_USE tm_status tm_io_run_sync(tm_io_run *run); /* its entries, and its own in PATH, are on disk */
void tm_io_run_keep(tm_io_run *run);                  /* tm_io_cleanup_at_exit leaves it */

/* A small file of a run directory that appears under its name whole or not at all, in place of the one before. sync
 * brings it to the disk beside that one (NAME.next), publish renames it and syncs the directory. The first failure is
 * kept; a failed sync is final. */
typedef struct tm_io_draft tm_io_draft;
TM_MUST_USE tm_status tm_io_draft_create(tm_io_draft **out, tm_io_run *run, const char *name);
TM_MUST_USE tm_status tm_io_draft_append(tm_io_draft *d, const void *bytes, size_t n); /* buffered, 64 KiB */
TM_MUST_USE tm_status tm_io_draft_sync(tm_io_draft *d);
TM_MUST_USE tm_status tm_io_draft_publish(tm_io_draft *d); /* frees d in any case */
void tm_io_draft_abandon(tm_io_draft *d);                  /* NULL is fine */

/* Whose a run directory is, as its file `owner` says. */
typedef struct tm_io_owner {
    bool is_run;                   /* a directory with a lock file */
    bool alive;                    /* its lock is held */
    bool keyless;                  /* made by a version before keys */
    char key[TM_IO_KEY_CHARS + 1]; /* "": it proves nothing */
    char of[4096];
    long pid;         /* 0: unknown */
    char host[256];   /* "": unknown */
    char started[64]; /* UTC, ISO 8601 */
    char command[512];
} tm_io_owner;
/* A directory that a run was making when it was killed, without `owner` so far: removed if nothing else lies in it. */
TM_MUST_USE tm_status tm_io_run_discard_begun(const char *dir);
TM_MUST_USE tm_status tm_io_run_owner(const char *dir, tm_io_owner *out);
const char *tm_io_owner_say(const tm_io_owner *o, char *buf, size_t cap); /* "process 4711 on ...": buf */
/* TM_EINPUT, with the reason: `dir`, of which `owner` was read, is not the claim's. */
TM_MUST_USE tm_status tm_io_claim_check(const tm_io_claim *c, const char *dir, const tm_io_owner *o);

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

/* ---- plain files ---------------------------------------------------------------------------------------------- */

/* Reading. Positional, buffered by the kernel, never mmapped. Directories and FIFOs are TM_EINPUT. */
typedef struct tm_file tm_file;
TM_MUST_USE tm_status tm_file_open(tm_file **out, const char *path);
/* NAME below DIR: TM_EINPUT for absolute names, "..", NUL and names that leave DIR through a symlink. A symlink that is
 * the last component is followed (the Hub's cache is made of those). */
TM_MUST_USE tm_status tm_file_open_in(tm_file **out, const char *dir, const char *name);
void tm_file_close(tm_file *f); /* NULL is fine */
const char *tm_file_path(const tm_file *f);
uint64_t tm_file_size(const tm_file *f);
/* Exactly `len` bytes, or TM_EINPUT ("ends at byte ..., expected ...") / TM_EIO. */
TM_MUST_USE tm_status tm_file_read_at(tm_file *f, uint64_t offset, void *buf, size_t len);
/* A tm_read_fn (base.h) over an open file, from `pos` on; ctx is a tm_file_cursor. */
typedef struct tm_file_cursor {
    tm_file *file;
    uint64_t pos;
} tm_file_cursor;
tm_status tm_file_cursor_read(void *ctx, void *buf, size_t cap, size_t *got);
/* Tells the kernel that pages [offset, offset+len) will not be used again, so that a cgroup is not charged for them. */
void tm_file_forget(tm_file *f, uint64_t offset, uint64_t len);
/* A whole small file into `out` (appended); TM_EINPUT if larger than max. */
TM_MUST_USE tm_status tm_file_slurp(const char *path, size_t max, tm_buf *out);
bool tm_path_exists(const char *path);
bool tm_path_is_dir(const char *path);
/* Bytes that may still be written under the folder that is there, or would be made, at `path`; 0: not known. */
uint64_t tm_free_bytes(const char *path);
/* mkdir -p (0777 & ~umask); TM_EINPUT if it cannot be. */
TM_MUST_USE tm_status tm_make_dirs(const char *path);
TM_MUST_USE tm_status tm_remove_tree(const char *path); /* does not follow symlinks; absent is fine */
/* rename(2): a finished folder takes its name. */
TM_MUST_USE tm_status tm_rename_path(const char *from, const char *to);
/* Folder `from` takes the name `to` in one step, and the folder's folder is brought to the disk: whoever looks finds
 * the old one or the new one, whole. What was there before is removed afterwards. */
TM_MUST_USE tm_status tm_publish_dir(const char *from, const char *to);
/* A folder goes: its name at once (it becomes PATH.tmp), then what is in it. Absent is fine. */
TM_MUST_USE tm_status tm_retire_dir(const char *path);
/* A file copied, as tm_out writes; where the file system can, both share their blocks. */
TM_MUST_USE tm_status tm_copy_file(const char *from, const char *to);
bool tm_remove_empty(const char *path); /* rmdir(2); true: it is not there (any more) */
/* One process at a time: made (as tm_make_dirs) and locked until released or the process ends; waits for `wait_ms`.
 * TM_EINPUT names the process that has it. Nothing is written there. */
typedef struct tm_hold tm_hold;
TM_MUST_USE tm_status tm_hold_dir(tm_hold **out, const char *path, unsigned wait_ms);
void tm_hold_release(tm_hold *h); /* NULL is fine */
typedef tm_status (*tm_dir_fn)(void *ctx, const char *name, bool is_dir);
TM_MUST_USE tm_status tm_list_dir(const char *path, tm_dir_fn fn, void *ctx); /* in byte order of the names */

/* Bytes [begin, begin + n) of `from` at `at` of an offload file, sharing their blocks; *shared false: this file system
 * cannot, and whoever asked has to copy. All three in units of its blocks. */
TM_MUST_USE tm_status tm_io_file_clone(const tm_io_file *to, uint64_t at, tm_file *from, uint64_t begin, uint64_t n,
                                       bool *shared);
typedef struct tm_io_clones {
    uint64_t shared_bytes, copied_bytes; /* of both calls above, by this process */
} tm_io_clones;
void tm_io_get_clones(tm_io_clones *out);

/* Writing. The bytes go to a temporary file beside PATH; commit syncs, renames over PATH and syncs the directory.
 * Abandoned (closed without commit): nothing is left behind. Also usable positionally: write_at does not move the place
 * where append goes on, which starts at 0. The first failure is kept: commit then abandons and returns it. */
typedef struct tm_out tm_out;
TM_MUST_USE tm_status tm_out_create(tm_out **out, const char *path);
TM_MUST_USE tm_status tm_out_append(tm_out *o, const void *bytes, size_t n); /* buffered, 1 MiB */
TM_MUST_USE tm_status tm_out_write_at(tm_out *o, uint64_t offset, const void *bytes, size_t n);
/* Starts write-back of what was written and drops it from the page cache (for large results in a small cgroup). */
TM_MUST_USE tm_status tm_out_flush(tm_out *o);
uint64_t tm_out_size(const tm_out *o);
TM_MUST_USE tm_status tm_out_commit(tm_out *o); /* frees o in any case */
void tm_out_abandon(tm_out *o);                 /* NULL is fine */
/* Log files: opened for append (0644), each line in one write, flushed to the kernel; '\n' is added where it lacks. */
typedef struct tm_append tm_append;
TM_MUST_USE tm_status tm_append_open(tm_append **out, const char *path, bool truncate);
TM_MUST_USE tm_status tm_append_line(tm_append *a, const char *line, size_t n);
TM_MUST_USE tm_status tm_append_sync(tm_append *a); /* what was appended is on the disk */
void tm_append_close(tm_append *a);

#endif
