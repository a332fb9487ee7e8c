/* Writing plain files: results appear under their name whole or not at all; logs grow a line at a time. */
#include "io/file/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1024 * 1024, LEAST_BUFFER_BYTES = 4096 };

struct tm_out {
    io_live live; /* its path is the temporary file's */
    int dir_fd;
    char *path, *temp;
    io_write_buffer writes;
    uint64_t size;
};

static void out_free(tm_out *o) {
    TM_ASSERT(!o->live.prev && !o->live.next);
    if (o->writes.fd >= 0) close(o->writes.fd);
    if (o->dir_fd >= 0) close(o->dir_fd);
    TM_FREE_ALL(o->path, o->temp, o->writes.buffer, o);
}

static tm_status create_failed(const char *path, int err) {
    if (err == ENOENT || err == ENOTDIR) {
        return tm_fail_sys(TM_EINPUT, 0, "open", path, -1, "%s: its folder does not exist; make it first", path);
    }
    tm_status s = io_status_of(err);
    if (err == EACCES || err == EPERM || err == EROFS || err == EISDIR || err == ELOOP || err == ENAMETOOLONG)
        s = TM_EINPUT;
    return tm_fail_sys(s, err, "open", path, -1, "%s: cannot be written", path);
}

/* .tmp-<16 hex digits>-NAME */
#define TEMP ".tmp-"
enum { TEMP_DIGITS = 16 };

const char *tm_out_target(const char *name) {
    size_t n = sizeof TEMP - 1;
    if (strncmp(name, TEMP, n) != 0 || strspn(name + n, "0123456789abcdef") != TEMP_DIGITS) return NULL;
    return name[n + TEMP_DIGITS] == '-' ? name + n + TEMP_DIGITS + 1 : NULL;
}

static tm_status out_alloc(tm_out **out, const char *path, size_t buffer_bytes) {
    char dir[PATH_MAX];
    if (!io_dirname(path, dir, sizeof dir)) return tm_fail(TM_EINPUT, "%.80s...: path is too long", path);
    if (*io_basename(path) == 0 || tm_path_is_dir(path)) {
        return tm_fail(TM_EINPUT, "%s: is a directory, expected the name of a file to write", path);
    }
    tm_out *o = tm_calloc(1, sizeof *o);
    if (!o) return tm_nomem(sizeof *o);
    o->dir_fd = -1;
    tm_buf temp = {0};
    tm_status rc = tm_buf_printf(&temp, "%s/" TEMP "%0*llx-%.180s", dir, (int)TEMP_DIGITS,
                                 (unsigned long long)io_random64(), io_basename(path));
    o->temp = temp.data;
    o->path = tm_strdup(path);
    o->writes = (io_write_buffer){.fd = -1, .path = o->path, .buffer = tm_malloc(buffer_bytes), .cap = buffer_bytes};
    if (rc == TM_OK && (!o->path || !o->writes.buffer)) rc = tm_nomem(buffer_bytes);
    if (rc == TM_OK && (o->dir_fd = io_sys_table->openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)) < 0) {
        rc = create_failed(path, errno);
    }
    if (rc != TM_OK) {
        out_free(o);
        return rc;
    }
    *out = o;
    return TM_OK;
}

static tm_status create(tm_out **out, const char *path, mode_t mode, size_t buffer_bytes) {
    *out = NULL;
    tm_out *o;
    TM_TRY(out_alloc(&o, path, buffer_bytes));
    int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    o->writes.fd = io_sys_table->openat(o->dir_fd, io_basename(o->temp), flags, mode);
    if (o->writes.fd < 0) {
        tm_status rc = create_failed(path, errno);
        out_free(o);
        return rc;
    }
    o->live.path = o->temp;
    io_live_add(&o->live);
    *out = o;
    return TM_OK;
}

tm_status tm_out_create(tm_out **out, const char *path) {
    return create(out, path, 0644, BUFFER_BYTES);
}

tm_status tm_out_create_small(tm_out **out, const char *path, size_t buffer_bytes) {
    buffer_bytes = buffer_bytes < BUFFER_BYTES ? buffer_bytes : BUFFER_BYTES;
    return create(out, path, 0644, buffer_bytes > LEAST_BUFFER_BYTES ? buffer_bytes : LEAST_BUFFER_BYTES);
}

tm_status tm_out_create_scratch(tm_out **out, const char *path) {
    return create(out, path, 0600, BUFFER_BYTES);
}

int io_out_fd(const tm_out *o) {
    TM_ASSERT(o->writes.fd >= 0);
    return o->writes.fd;
}

tm_status tm_out_append(tm_out *o, const void *bytes, size_t n) {
    TM_TRY(io_write_buffer_append(&o->writes, bytes, n));
    o->size = tm_max_u64(o->size, o->writes.at + o->writes.buffered);
    return TM_OK;
}

tm_status tm_out_write_at(tm_out *o, uint64_t offset, const void *bytes, size_t n) {
    uint64_t end;
    if (!tm_add_u64(offset, n, &end) || end > INT64_MAX)
        return tm_fail(TM_EBUG, "%s: write beyond 2^63 bytes", o->path);
    TM_TRY(io_write_buffer_flush(&o->writes)); /* in the order of the calls where they overlap */
    o->writes.status = io_write_all(o->writes.fd, bytes, n, offset, o->path);
    if (n) o->size = tm_max_u64(o->size, end);
    return o->writes.status;
}

tm_status tm_out_flush(tm_out *o) {
    TM_TRY(io_write_buffer_flush(&o->writes));
    /* Only clean pages can be dropped. */
    int err = io_write_back(o->writes.fd, 0, 0,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    if (err)
        return o->writes.status = tm_fail_sys(io_status_of(err), err, "sync_file_range", o->path, -1,
                                              "%s: cannot be brought to the disk", o->path);
    (void)posix_fadvise(o->writes.fd, 0, 0, POSIX_FADV_DONTNEED);
    return TM_OK;
}

uint64_t tm_out_size(const tm_out *o) {
    return o->size;
}

tm_status tm_out_commit(tm_out *o) {
    TM_ASSERT(o->writes.fd >= 0 && o->dir_fd >= 0);
    tm_status rc = io_write_buffer_sync(&o->writes);
    const char *temp = io_basename(o->temp), *name = io_basename(o->path);
    if (rc == TM_OK && io_sys_table->renameat(o->dir_fd, temp, o->dir_fd, name) != 0) {
        rc = tm_fail_sys(io_status_of(errno), errno, "rename", o->path, -1, "%s: cannot be put in place", o->path);
    }
    if (rc != TM_OK) {
        tm_out_abandon(o);
        return rc;
    }
    io_live_remove(&o->live);
    if (io_sys_table->fsync(o->dir_fd) != 0 &&
        errno != EINVAL) { /* EINVAL: a file system that cannot sync directories */
        rc = tm_fail_sys(io_status_of(errno), errno, "fsync", o->path, -1,
                         "%s: its folder cannot be brought to the disk", o->path);
    }
    out_free(o);
    return rc;
}

void tm_out_abandon(tm_out *o) {
    if (!o) return;
    (void)io_sys_table->unlinkat(o->dir_fd, io_basename(o->temp), 0); /* nothing more can be done */
    io_live_remove(&o->live);
    out_free(o);
}

tm_status tm_out_read_back(tm_out *o, tm_file **in) {
    *in = NULL;
    tm_status rc = tm_out_flush(o);
    if (rc == TM_OK) rc = tm_file_open(in, o->temp);
    tm_out_abandon(o);
    return rc;
}

tm_status tm_out_end(tm_out *o, tm_status rc) {
    if (rc == TM_OK) return tm_out_commit(o);
    tm_out_abandon(o);
    return rc;
}

tm_status tm_file_write(const char *path, const void *bytes, size_t n) {
    tm_out *o;
    TM_TRY(tm_out_create_small(&o, path, n));
    return tm_out_end(o, tm_out_append(o, bytes, n));
}

struct tm_append {
    int fd;
    char *path;
    tm_buf line;
};

tm_status tm_append_open(tm_append **out, const char *path, bool truncate) {
    *out = NULL;
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    if (truncate) flags |= O_TRUNC;
    int fd = io_sys_table->openat(AT_FDCWD, path, flags, 0644);
    if (fd < 0) return create_failed(path, errno);
    struct stat st;
    if (io_sys_table->fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return tm_fail(TM_EINPUT, "%s: is not a regular file; give another path for the log", path);
    }
    tm_append *a = tm_calloc(1, sizeof *a);
    if (a) a->path = tm_strdup(path);
    if (!a || !a->path) {
        tm_free(a);
        close(fd);
        return tm_nomem(sizeof *a);
    }
    a->fd = fd;
    *out = a;
    return TM_OK;
}

tm_status tm_append_bytes(tm_append *a, const void *bytes, size_t n) {
    TM_ASSERT(a->fd >= 0);
    unsigned idle = 0;
    for (size_t at = 0; at < n;) {
        ssize_t put = io_sys_table->write(a->fd, (const char *)bytes + at, n - at);
        int err = put < 0 ? errno : 0;
        if (put > 0) {
            at += (size_t)put;
            idle = 0;
        } else if ((err && err != EINTR && err != EAGAIN) || ++idle == IO_RETRIES) {
            return tm_fail_sys(io_status_of(err), err ? err : EIO, "write", a->path, -1, "%s: cannot append a line",
                               a->path);
        }
    }
    return TM_OK;
}

tm_status tm_append_line(tm_append *a, const char *line, size_t n) {
    tm_buf_clear(&a->line);
    TM_TRY(tm_buf_append(&a->line, line, n));
    if (n == 0 || line[n - 1] != '\n') TM_TRY(tm_buf_append(&a->line, "\n", 1));
    return tm_append_bytes(a, a->line.data, a->line.len);
}

tm_status tm_append_sync(tm_append *a) {
    if (io_sys_table->fdatasync(a->fd) == 0) return TM_OK;
    return tm_fail_sys(io_status_of(errno), errno, "fdatasync", a->path, -1, "%s: cannot be synced", a->path);
}

void tm_append_close(tm_append *a) {
    if (!a) return;
    close(a->fd);
    tm_buf_free(&a->line);
    tm_free(a->path);
    tm_free(a);
}
