/* The seam: system calls with faults in front of them, and small helpers that every file of this folder needs. */
#include "io/io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

/* A call that either succeeds or fails: the fault, or the call. */
#define SYS_CALL(name, call)                                                                                           \
    do {                                                                                                               \
        int err_ = io_fault_errno(name);                                                                               \
        if (err_) return errno = err_, -1;                                                                             \
        return call;                                                                                                   \
    } while (0)

static int sys_openat(int dir, const char *path, int flags, mode_t mode) {
    int err = io_fault_errno("openat");
    if (!err && (flags & O_DIRECT)) err = io_fault_errno("open_direct"); /* a file system without O_DIRECT */
    if (err) return errno = err, -1;
    return openat(dir, path, flags, mode);
}

/* About half, still good for O_DIRECT where that is possible. */
static size_t shortened(size_t n) {
    return n >= 8192 ? n / 2 / 4096 * 4096 : n % 512 && n > 1 ? n / 2 : n;
}

/* What comes of a fault before the call is made: true, and its result, if it is not made at all. */
static bool instead(io_fault f, size_t *n, off_t *offset, ssize_t *result) {
    switch (f.kind) {
    case IO_FAULT_ERRNO:
        errno = f.err;
        *result = -1;
        return true;
    case IO_FAULT_ZERO:
        *result = 0;
        return true;
    case IO_FAULT_LOST:
        *result = (ssize_t)*n;
        return true;
    case IO_FAULT_SHORT:
        *n = offset ? shortened(*n) : *n > 1 ? *n / 2 : *n; /* without an offset nothing is aligned */
        return false;
    case IO_FAULT_MISDIRECT:
        if (offset) *offset = (off_t)io_fault_beside((uint64_t)*offset);
        return false;
    default:
        return false;
    }
}

static ssize_t sys_pread(int fd, void *buf, size_t n, off_t offset) {
    io_fault f = io_fault_next("pread");
    ssize_t got;
    if (instead(f, &n, &offset, &got)) return got;
    got = pread(fd, buf, n, offset);
    if (f.kind == IO_FAULT_FLIP && got > 0) ((unsigned char *)buf)[got / 2] ^= 4;
    return got;
}

/* Tests only: writes a copy with one bit changed; the caller's bytes are const. */
static ssize_t flipped_pwrite(int fd, const void *buf, size_t n, off_t offset) {
    unsigned char *copy = aligned_alloc(4096, tm_round_up(n + 1, 4096));
    if (!copy) return -1;
    memcpy(copy, buf, n);
    copy[n / 2] ^= 4;
    ssize_t put = pwrite(fd, copy, n, offset);
    free(copy);
    return put;
}

static ssize_t sys_pwrite(int fd, const void *buf, size_t n, off_t offset) {
    io_fault f = io_fault_next("pwrite");
    ssize_t put;
    if (instead(f, &n, &offset, &put)) return put;
    return f.kind == IO_FAULT_FLIP ? flipped_pwrite(fd, buf, n, offset) : pwrite(fd, buf, n, offset);
}

static ssize_t sys_write(int fd, const void *buf, size_t n) {
    ssize_t put;
    return instead(io_fault_next("write"), &n, NULL, &put) ? put : write(fd, buf, n);
}

static int sys_fsync(int fd) {
    SYS_CALL("fsync", fsync(fd));
}
static int sys_fdatasync(int fd) {
    SYS_CALL("fdatasync", fdatasync(fd));
}
static int sys_sync_file_range(int fd, off_t offset, off_t n, unsigned flags) {
    SYS_CALL("sync_file_range", sync_file_range(fd, offset, n, flags));
}
static int sys_fallocate(int fd, int mode, off_t offset, off_t n) {
    SYS_CALL("fallocate", fallocate(fd, mode, offset, n));
}
static int sys_ftruncate(int fd, off_t n) {
    SYS_CALL("ftruncate", ftruncate(fd, n));
}
static int sys_fstat(int fd, struct stat *st) {
    SYS_CALL("fstat", fstat(fd, st));
}
static int sys_fstatfs(int fd, struct statfs *st) {
    SYS_CALL("fstatfs", fstatfs(fd, st));
}
static int sys_renameat(int from_dir, const char *from, int to_dir, const char *to) {
    SYS_CALL("rename", renameat(from_dir, from, to_dir, to));
}
static int sys_unlinkat(int dir, const char *path, int flags) {
    SYS_CALL("unlink", unlinkat(dir, path, flags));
}
static int sys_mkdirat(int dir, const char *path, mode_t mode) {
    SYS_CALL("mkdir", mkdirat(dir, path, mode));
}
static int sys_flock(int fd, int operation) {
    SYS_CALL("flock", flock(fd, operation));
}
static int sys_clone(int to, const struct file_clone_range *range) {
    SYS_CALL("clone", ioctl(to, FICLONERANGE, range));
}
static int sys_exchange(const char *a, const char *b) {
    SYS_CALL("exchange", renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE));
}

static const io_sys real_table = {
    .openat = sys_openat,
    .pread = sys_pread,
    .pwrite = sys_pwrite,
    .write = sys_write,
    .fsync = sys_fsync,
    .fdatasync = sys_fdatasync,
    .sync_file_range = sys_sync_file_range,
    .fallocate = sys_fallocate,
    .ftruncate = sys_ftruncate,
    .fstat = sys_fstat,
    .fstatfs = sys_fstatfs,
    .renameat = sys_renameat,
    .unlinkat = sys_unlinkat,
    .mkdirat = sys_mkdirat,
    .flock = sys_flock,
    .clone = sys_clone,
    .exchange = sys_exchange,
};
const io_sys *io_sys_table = &real_table;

tm_status io_status_of(int err) {
    return err == ENOSPC || err == EDQUOT || err == EFBIG ? TM_ENOSPC : TM_EIO;
}

int io_write_back(int fd, uint64_t offset, uint64_t n, unsigned flags) {
    if (io_sys_table->sync_file_range(fd, (off_t)offset, (off_t)n, flags) == 0) return 0;
    bool lost = errno == EIO || io_status_of(errno) == TM_ENOSPC; /* anything else: the call does not work here */
    return lost ? errno : 0;
}

tm_status io_write_all(int fd, const void *buf, size_t n, uint64_t offset, const char *path) {
    TM_ASSERT(fd >= 0);
    unsigned idle = 0;
    for (size_t at = 0; at < n;) {
        size_t want = tm_min_u64(n - at, TM_GIB);
        ssize_t put = io_sys_table->pwrite(fd, (const char *)buf + at, want, (off_t)(offset + at));
        int err = put < 0 ? errno : 0;
        if (put > 0) {
            at += (size_t)put;
            idle = 0;
        } else if ((err && err != EINTR && err != EAGAIN) || ++idle == IO_RETRIES) {
            return tm_fail_sys(io_status_of(err), err ? err : EIO, "pwrite", path, (int64_t)(offset + at),
                               "%s: cannot write %zu bytes at byte %llu", path, n - at,
                               (unsigned long long)(offset + at));
        }
    }
    return TM_OK;
}

bool io_dirname(const char *path, char *buf, size_t cap) {
    TM_ASSERT(cap > 0);
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (slash == path) n = 1; /* "/name" */
    if (n + 1 > cap) return false;
    memcpy(buf, slash ? path : ".", n);
    buf[n] = 0;
    return true;
}

const char *io_basename(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

uint64_t io_random64(void) {
    uint64_t r = 0;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r) {
        r = tm_hash64(&(uint64_t[]){tm_now_ns(), (uint64_t)getpid()}, 16, 0);
    }
    return r;
}
