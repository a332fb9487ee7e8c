/* Reading plain files whose paths and contents are not trusted. */
#include "io/file/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tm_file {
    int fd;
    uint64_t size;
    char *path;
};

/* O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on regular files. */
enum { OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

static tm_status open_failed(const char *name, const char *dir, int err) {
    const char *in = dir ? " (in " : "", *end = dir ? ")" : "";
    if (!dir) dir = "";
    if (err == ENOENT || err == ENOTDIR) {
        return tm_fail_sys(TM_EINPUT, 0, "open", name, -1, "%s: no such file%s%s%s; check the path", name, in, dir,
                           end);
    }
    tm_status s = err == EMFILE || err == ENFILE || err == EIO || err == ENOMEM ? TM_EIO : TM_EINPUT;
    return tm_fail_sys(s, err, "open", name, -1, "%s: cannot be opened%s%s%s", name, in, dir, end);
}

/* Takes over `fd`. */
static tm_status file_from_fd(tm_file **out, int fd, const char *path) {
    TM_ASSERT(fd >= 0);
    struct stat st;
    tm_status rc = TM_OK;
    tm_file *f = NULL;
    if (io_sys_table->fstat(fd, &st) != 0) {
        rc = tm_fail_sys(TM_EIO, errno, "fstat", path, -1, "%s: cannot be examined", path);
    } else if (S_ISDIR(st.st_mode)) {
        rc = tm_fail(TM_EINPUT, "%s: is a directory, expected a file; check the path", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = tm_fail(TM_EINPUT, "%s: is not a regular file; check the path", path);
    } else if (!(f = tm_calloc(1, sizeof *f)) || !(f->path = tm_strdup(path))) {
        rc = tm_nomem(sizeof *f);
    }
    if (rc != TM_OK) {
        tm_free(f);
        close(fd);
        return rc;
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    *out = f;
    return TM_OK;
}

int io_file_fd(const tm_file *f) {
    TM_ASSERT(f->fd >= 0);
    return f->fd;
}

tm_status tm_file_open(tm_file **out, const char *path) {
    *out = NULL;
    int fd = io_sys_table->openat(AT_FDCWD, path, OPEN_FLAGS, 0);
    if (fd < 0) return open_failed(path, NULL, errno);
    return file_from_fd(out, fd, path);
}

/* Checks NAME and opens its last directory, one component after another so that none is a symlink out of DIR.
 * *last: the rest of the name. */
static tm_status open_parent_in(const char *dir, const char *name, int *fd, const char **last) {
    if (*name == 0 || *name == '/') {
        return tm_fail(TM_EINPUT, "file name \"%s\" (in %s): expected a name below that folder", name, dir);
    }
    *fd = io_sys_table->openat(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (*fd < 0) {
        return tm_fail_sys(TM_EINPUT, errno == ENOENT ? 0 : errno, "open", dir, -1,
                           "%s: no such folder; check the path", dir);
    }
    for (const char *p = name;;) {
        size_t n = strcspn(p, "/");
        char part[256];
        if (n == 0 || n >= sizeof part || (n == 2 && p[0] == '.' && p[1] == '.')) {
            close(*fd);
            return tm_fail(TM_EINPUT, "file name \"%s\" (in %s): leaves that folder or is not a file name", name, dir);
        }
        if (p[n] == 0) return *last = p, TM_OK;
        memcpy(part, p, n);
        part[n] = 0;
        int next = io_sys_table->openat(*fd, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
        int err = errno;
        close(*fd);
        if (next < 0) {
            if (err == ENOTDIR) { /* what Linux says of a symlink here */
                return tm_fail(TM_EINPUT, "file name \"%s\" (in %s): %s is not a directory of that folder", name, dir,
                               part);
            }
            return open_failed(name, dir, err);
        }
        *fd = next;
        p += n + 1;
    }
}

tm_status tm_file_open_in(tm_file **out, const char *dir, const char *name) {
    *out = NULL;
    int parent = -1;
    const char *last = name;
    TM_TRY(open_parent_in(dir, name, &parent, &last));
    int fd = io_sys_table->openat(parent, last, OPEN_FLAGS, 0);
    int err = errno;
    close(parent);
    if (fd < 0) return open_failed(name, dir, err);
    tm_buf path = {0};
    tm_status rc = tm_buf_printf(&path, "%s/%s", dir, name);
    if (rc == TM_OK) {
        rc = file_from_fd(out, fd, path.data);
    } else {
        close(fd);
    }
    tm_buf_free(&path);
    return rc;
}

void tm_file_close(tm_file *f) {
    if (!f) return;
    close(f->fd);
    tm_free(f->path);
    tm_free(f);
}

const char *tm_file_path(const tm_file *f) {
    return f->path;
}

uint64_t tm_file_size(const tm_file *f) {
    return f->size;
}

/* One read, interruptions repeated; *got 0: end of file. */
static tm_status read_some(tm_file *f, uint64_t offset, void *buf, size_t n, size_t *got) {
    n = tm_min_u64(n, TM_GIB);
    TM_ASSERT(n > 0);
    for (unsigned tries = 0;;) {
        ssize_t r = offset > INT64_MAX - n ? 0 : io_sys_table->pread(f->fd, buf, n, (off_t)offset);
        if (r >= 0) return *got = (size_t)r, TM_OK;
        if ((errno != EINTR && errno != EAGAIN) || ++tries == IO_RETRIES) break;
    }
    return tm_fail_sys(TM_EIO, errno, "pread", f->path, (int64_t)offset, "%s: cannot read %zu bytes at byte %llu",
                       f->path, n, (unsigned long long)offset);
}

tm_status tm_file_read_at(tm_file *f, uint64_t offset, void *buf, size_t len) {
    for (size_t at = 0, got; at < len; at += got) {
        TM_TRY(read_some(f, offset + at, (char *)buf + at, len - at, &got));
        if (got == 0) {
            return tm_fail_sys(TM_EINPUT, 0, "pread", f->path, (int64_t)(offset + at),
                               "%s: ends at byte %llu, expected %llu; the file is cut off, fetch it again", f->path,
                               (unsigned long long)tm_min_u64(f->size, offset + at),
                               (unsigned long long)(offset + len));
        }
    }
    return TM_OK;
}

tm_status tm_file_cursor_read(void *ctx, void *buf, size_t cap, size_t *got) {
    tm_file_cursor *c = ctx;
    TM_TRY(read_some(c->file, c->pos, buf, cap, got));
    c->pos += *got;
    return TM_OK;
}

void tm_file_forget(tm_file *f, uint64_t offset, uint64_t len) {
    (void)posix_fadvise(f->fd, (off_t)offset, (off_t)len, POSIX_FADV_DONTNEED); /* only advice */
}

tm_status tm_file_slurp(const char *path, size_t max, tm_buf *out) {
    tm_file *f;
    TM_TRY(tm_file_open(&f, path));
    tm_status rc = TM_OK;
    size_t before = out->len;
    if (f->size > max) {
        rc = tm_fail(TM_EINPUT, "%s: %llu bytes are more than the %zu this program reads; is it the right file?", path,
                     (unsigned long long)f->size, max);
    }
    if (rc == TM_OK) rc = tm_buf_reserve(out, (size_t)f->size + 1);
    if (rc == TM_OK) rc = tm_file_read_at(f, 0, out->data + before, (size_t)f->size);
    if (rc == TM_OK) {
        out->len = before + (size_t)f->size;
    }
    if (out->data && out->cap > out->len) out->data[out->len] = 0;
    tm_file_close(f);
    return rc;
}

tm_status tm_json_load(tm_json_doc **out, const char *path, size_t max, unsigned flags) {
    tm_buf text = {0};
    tm_status rc = tm_file_slurp(path, max, &text);
    if (rc == TM_OK) rc = tm_json_parse(out, text.data, text.len, path, flags, 0);
    tm_buf_free(&text);
    return rc;
}

/* ---- for an engine ---------------------------------------------------------------------------------------------- */

tm_status tm_io_file_in_place(const char *path, bool direct, tm_io_file *out) {
    enum { UNIT = 4096 };
    tm_file *plain;
    *out = (tm_io_file){.fd = -1, .index = -1, .name = path, .alignment = 1};
    TM_TRY(tm_file_open(&plain, path)); /* with its checks and messages */
    int fd = direct ? io_sys_table->openat(AT_FDCWD, path, OPEN_FLAGS | O_DIRECT, 0) : -1;
    if (fd >= 0) {
        out->alignment = UNIT;
        tm_file_close(plain);
    } else {
        fd = plain->fd;
        tm_free(plain->path);
        tm_free(plain);
    }
    out->fd = fd;
    return TM_OK;
}

uint64_t tm_io_file_stamp(const tm_io_file *f) {
    struct stat st;
    if (io_sys_table->fstat(f->fd, &st) != 0) return 0;
    uint64_t of[] = {(uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
    return tm_hash64(of, sizeof of, 0) | 1;
}

void tm_io_file_leave(tm_io_file *f) {
    if (f->name && f->fd >= 0) close(f->fd);
    *f = (tm_io_file){.fd = -1, .index = -1};
}
