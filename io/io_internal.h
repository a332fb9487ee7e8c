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
typedef struct io_sys {
    int (*openat)(int dir, const char *path, int flags, mode_t mode);
    ssize_t (*pread)(int fd, void *buf, size_t n, off_t offset);
    ssize_t (*pwrite)(int fd, const void *buf, size_t n, off_t offset);
    ssize_t (*write)(int fd, const void *buf, size_t n);
    int (*fsync)(int fd);
    int (*fdatasync)(int fd);
    int (*fallocate)(int fd, int mode, off_t offset, off_t n);
    int (*ftruncate)(int fd, off_t n);
    int (*fstat)(int fd, struct stat *st);
    int (*fstatfs)(int fd, struct statfs *st);
    int (*renameat)(int from_dir, const char *from, int to_dir, const char *to);
    int (*unlinkat)(int dir, const char *path, int flags);
    int (*mkdirat)(int dir, const char *path, mode_t mode);
    int (*flock)(int fd, int operation);
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
/* All of buf[0, n) at `offset`; `path` is for the message. */
TM_MUST_USE tm_status io_write_all(int fd, const void *buf, size_t n, uint64_t offset, const char *path);
/* Directory part of `path` ("." if it has none) into buf[cap]; false if it does not fit. */
bool io_dirname(const char *path, char *buf, size_t cap);
const char *io_basename(const char *path); /* into path */
/* Removes what is below directory `fd` (not the directory), symlinks unfollowed, at most 64 levels deep. */
TM_MUST_USE tm_status io_remove_below(int fd, const char *path);
uint64_t io_random64(void); /* for names only */

/* ---- what a way out has to remove -------------------------------------------------------------------------------- */

typedef struct io_live {
    struct io_live *prev, *next;
    const char *path;   /* of the temporary file or the run directory; owned by the holder */
    const char *parent; /* NULL, or a directory to be removed too if it is then empty */
    bool is_dir;
} io_live;
void io_live_add(io_live *l);
void io_live_remove(io_live *l); /* fine if it was never added */

#endif
