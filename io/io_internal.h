/* io, for this folder and its tests only: the seam below every system call, and what engines share. */
#ifndef TIDEMILL_IO_INTERNAL_H
#define TIDEMILL_IO_INTERNAL_H

#include "io/io.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>

/* ---- the seam ------------------------------------------------------------------------------------------------- *
 * Every system call of io that can fail goes through this table, with the C library's own conventions. The functions of
 * the table ask tm_fault_hit with the member's name before they act. Tests may put their own table in place. */
struct file_clone_range;
typedef struct io_sys {
    int (*openat)(int dir, const char *path, int flags, mode_t mode);
    ssize_t (*pread)(int fd, void *buf, size_t n, off_t offset);
    ssize_t (*pwrite)(int fd, const void *buf, size_t n, off_t offset);
    ssize_t (*write)(int fd, const void *buf, size_t n);
    int (*fsync)(int fd);
    int (*fdatasync)(int fd);
    int (*sync_file_range)(int fd, off_t offset, off_t n, unsigned flags);
    int (*fallocate)(int fd, int mode, off_t offset, off_t n);
    int (*ftruncate)(int fd, off_t n);
    int (*fstat)(int fd, struct stat *st);
    int (*fstatfs)(int fd, struct statfs *st);
    int (*renameat)(int from_dir, const char *from, int to_dir, const char *to);
    int (*unlinkat)(int dir, const char *path, int flags);
    int (*mkdirat)(int dir, const char *path, mode_t mode);
    int (*flock)(int fd, int operation);
    int (*clone)(int to, const struct file_clone_range *range);
    int (*exchange)(const char *a, const char *b); /* two names change places */
} io_sys;
extern const io_sys *io_sys_table;

/* What TIDEMILL_FAULT asks for, decoded. Kinds: an errno in lower case (eio, enospc, eintr, eagain, einval, enomem,
 * eperm, enosys, eacces, erofs, edquot, efbig, enotsup), short, zero, lost, flip, misdirect, delay. */
typedef enum io_fault_kind {
    IO_FAULT_NONE,
    IO_FAULT_ERRNO,     /* fails with .err, not carried out */
    IO_FAULT_SHORT,     /* half of the bytes */
    IO_FAULT_ZERO,      /* 0 bytes */
    IO_FAULT_LOST,      /* says that all went well, and was not carried out */
    IO_FAULT_FLIP,      /* one bit is changed on the way */
    IO_FAULT_MISDIRECT, /* carried out 4 KiB beside */
    IO_FAULT_DELAY      /* 20 ms later */
} io_fault_kind;
typedef struct io_fault {
    io_fault_kind kind;
    int err;
} io_fault;
/* Counts one `call`; a delay is slept here. The kind TIDEMILL_FAULT gives may be unknown: then it is EIO. */
io_fault io_fault_next(const char *call);
/* For calls that fail or not: 0, or the errno to fail with. */
int io_fault_errno(const char *call);
/* off_t of a misdirected transfer. */
uint64_t io_fault_beside(uint64_t offset);

/* ---- helpers over the seam ------------------------------------------------------------------------------------- */

enum {
    IO_RETRIES = 100
}; /* attempts of one transfer without progress (EINTR, EAGAIN, 0 bytes) before it is an error */
/* TM_ENOSPC for "the disk is full" in its forms, else TM_EIO. */
tm_status io_status_of(int err);
/* sync_file_range. 0, or the errno of bytes that were written before and did not reach the disk. It has to be kept: the
 * kernel tells such an error once, and the fsync that comes after would succeed. */
int io_write_back(int fd, uint64_t offset, uint64_t n, unsigned flags);
/* All of buf[0, n) at `offset`; `path` is for the message. */
TM_MUST_USE tm_status io_write_all(int fd, const void *buf, size_t n, uint64_t offset, const char *path);
/* Appends through a buffer of `cap` bytes. The first failure is kept; then nothing more is written. */
typedef struct io_write_buffer {
    int fd;
    const char *path; /* for messages */
    char *buffer;
    size_t cap, buffered;
    uint64_t at; /* where the buffer will go */
    tm_status status;
} io_write_buffer;
TM_MUST_USE tm_status io_write_buffer_append(io_write_buffer *s, const void *bytes, size_t n);
tm_status io_write_buffer_flush(io_write_buffer *s);
TM_MUST_USE tm_status io_write_buffer_sync(io_write_buffer *s); /* flush and fsync */
/* Directory part of `path` ("." if it has none) into buf[cap]; false if it does not fit. */
bool io_dirname(const char *path, char *buf, size_t cap);
const char *io_basename(const char *path); /* into path */
/* Removes what is below directory `fd` (not the directory), symlinks unfollowed, at most 64 levels deep. */
TM_MUST_USE tm_status io_remove_below(int fd, const char *path);
uint64_t io_random64(void); /* for names only */

/* ---- what a way out has to remove -------------------------------------------------------------------------------- */

typedef struct io_live {
    struct io_live *prev, *next;
    const char *path;                  /* of the temporary file or the run directory; owned by the holder */
    void (*remove)(struct io_live *l); /* on the way out: system calls alone; NULL: it unlinks `path` */
} io_live;
void io_live_add(io_live *l);
void io_live_remove(io_live *l); /* fine if it was never added */

/* ---- engines --------------------------------------------------------------------------------------------------- *
 * A request is cut into pieces of at most block_bytes. A piece is carried out in attempts: one system call or ring
 * entry each. Engines know attempts only; what their results mean is decided in one place, piece.c.
 *
 *   FREE -- io_pump cuts --> STARTED -- engine --> SETTLED (res) -- piece.c --> STARTED again (short, EINTR, EAGAIN)
 *     ^                                                                    '--> FREE
 *     '-------------------------------------------------------------------------'      (the last piece: the request
 *                                                                                       is complete) */
typedef struct io_piece {
    struct io_piece *next; /* in the free list or in a queue of the engine */
    tm_io_req *req;
    uint64_t at;    /* bytes [at, at + len) of the request */
    uint32_t len;   /* at most block_bytes, so at most 1 GiB: results are ints */
    uint32_t moved; /* of len; a multiple of file.alignment */
    unsigned idle;  /* attempts in a row that moved nothing */
    /* the attempt: */
    char *buf;
    uint64_t offset;
    uint32_t n;
    int res; /* bytes, or a negative errno */
    io_fault fault;
} io_piece;

typedef struct io_queue { /* of pieces, first in first out */
    io_piece *head, *tail;
} io_queue;
static inline void io_queue_push(io_queue *q, io_piece *p) {
    TM_ASSERT(p);
    p->next = NULL;
    if (q->tail) {
        q->tail->next = p;
    } else {
        q->head = p;
    }
    q->tail = p;
}
static inline io_piece *io_queue_pop(io_queue *q) {
    io_piece *p = q->head;
    if (p && !(q->head = p->next)) q->tail = NULL;
    return p;
}
static inline void io_queue_move(io_queue *to, io_queue *from) { /* all of `from` to the end of `to` */
    if (!from->head) return;
    if (to->tail) {
        to->tail->next = from->head;
    } else {
        to->head = from->head;
    }
    to->tail = from->tail;
    *from = (io_queue){NULL, NULL};
}

/* Engines stack: a layer that delays or fails attempts hands the others to the layer below it. */
typedef struct io_layer {
    const struct io_engine *engine;
    void *ctx;
    char *each;      /* io_layer_take: what the layer keeps of each piece, */
    size_t each_one; /* so many bytes of one */
    struct tm_io *io;
    struct io_layer *lower; /* NULL: this one is at the bottom */
    const char *options;    /* "seed=7,shorten=0.1", "" */
} io_layer;

typedef struct io_engine {
    const char *name;
    bool stacks;                                                        /* needs a layer below */
    tm_status (*open)(io_layer *l);                                     /* sets l->ctx; the layer below is open */
    void (*close)(io_layer *l);                                         /* no piece is started */
    void (*register_memory)(io_layer *l, void *base, size_t bytes);     /* NULL: of no use to this engine */
    void (*unregister_memory)(io_layer *l);                             /* NULL: as above */
    void (*register_files)(io_layer *l, tm_io_file *files, unsigned n); /* NULL: likewise */
    void (*start)(io_layer *l, io_piece *p); /* takes the attempt; at most queue_depth of a lane are out */
    void (*flush)(io_layer *l);              /* sets going what was started; a failure is for reap to report */
    /* Sets going what was started, then appends settled attempts. With `block` returns only when there is one or
     * io->wake_fd was readable (then drained). */
    tm_status (*reap)(io_layer *l, bool block, io_queue *settled);
} io_engine;
extern const io_engine io_engine_uring, io_engine_threads, io_engine_sync, io_engine_null, io_engine_mem;
extern const io_engine io_engine_delay, io_engine_error, io_engine_sim;

enum {
    IO_LAG = 8,    /* attempts */
    IO_LAYERS = 4, /* of one stack */
    IO_LANES = 16
};

/* Requests of one disk, first in first out, with a queue depth of their own. */
typedef struct io_lane {
    tm_io_req *head, *tail;
    uint64_t head_cut;      /* bytes of `head` that were cut off */
    unsigned started;       /* pieces */
    uint64_t full_since;    /* ns; 0: nothing waits for a free piece */
    uint64_t full_seen;     /* and still was so then */
    uint64_t full_bytes[2]; /* moved since then: read, written */
    unsigned full_pieces;
    tm_io_stats stats;
} io_lane;

/* Buffered writes whose pages are not yet dropped from the cache. */
typedef struct io_lag {
    struct {
        int fd;
        uint64_t offset;
        uint32_t n; /* 0: none */
    } slot[IO_LAG];
    unsigned at;
    int lost_errno; /* of a write-back that failed: no sync succeeds any more */
} io_lag;

struct tm_io {
    io_layer layer[IO_LAYERS], *top, *bottom;
    char name[160]; /* "sync", "sim:seed=7+sync" */
    char *options;  /* what the layers' options point into */
    unsigned queue_depth, threads, n_lanes;
    bool single_submit, no_overlap, submit_at_wait, count_cpu;
    _Atomic uint64_t cpu_ns;
    uint32_t block_bytes;
    uint64_t order_seed, order_count;
    io_piece *pieces, *free_pieces; /* queue_depth of them for each lane */
    unsigned n_pieces, started;     /* started: not free */
    io_queue preset;                /* attempts that a fault settled without the engine */
    io_lane lane[IO_LANES];
    unsigned next_lane; /* the one that is cut from first */
    tm_io_req *done_head, *done_tail;
    unsigned in_flight;
    int wake_fd;
    atomic_bool woken;
    io_lag lag;
};

/* piece.c */
void io_pump(tm_io *io);                /* cuts and starts while pieces are free */
void io_settle(tm_io *io, io_piece *p); /* one attempt's result */
/* One round: reap, settle, cut, flush. `block` as in reap. */
TM_MUST_USE tm_status io_progress(tm_io *io, bool block);
/* For engines: carries the attempt out here and now, fills p->res. */
void io_execute(io_piece *p);
void io_sleep(tm_io *io); /* until wake_fd is readable; drains it */
/* The same, but no longer than until `deadline` (tm_now_ns). True: it was woken. */
bool io_sleep_until(tm_io *io, uint64_t deadline);
io_lane *io_lane_of(tm_io *io, const tm_io_req *r);

/* stack.c: "sim:seed=7+sync" -> layers, top first. */
TM_MUST_USE tm_status io_stack_parse(tm_io *io, const char *spec);
/* Options of a layer. `word`: an errno's name (number gets the errno) or one of the words read, write, sync, any. */
typedef struct io_option {
    const char *key;
    double *number;
    double most; /* largest that is accepted; the least is 0 */
    bool is_errno;
} io_option;
/* What layers over an engine share. Options are read into l->ctx, which is set, and `each_one` zeros kept a piece; after
 * a failure neither is there. */
TM_MUST_USE tm_status io_layer_take(io_layer *l, const io_option *table, size_t n, size_t each_one);
void *io_layer_of(const io_layer *l, const io_piece *p); /* what is kept of it */
void io_layer_flush(io_layer *l);
void io_layer_close(io_layer *l);
/* 0 where there is no such name. */
int io_errno_named(const char *name, size_t n);
void io_rouse(tm_io *io); /* makes wake_fd readable */

#endif
