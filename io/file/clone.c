/* Files and folders that take the place of others, and bytes that two files share where the file system can. */
#include "io/file/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

static atomic_uint_least64_t cloned, copied;

void tm_io_get_clones(tm_io_clones *out) {
    *out = (tm_io_clones){atomic_load(&cloned), atomic_load(&copied)};
}

/* ---- the same bytes twice ---------------------------------------------------------------------------------------- */

/* What a file system says that cannot: other blocks, another device, no such operation. Anything else is an error. */
static bool cannot_share(int err) {
    return err == EOPNOTSUPP || err == ENOTTY || err == EXDEV || err == EINVAL || err == ENOSYS || err == EPERM ||
           err == ETXTBSY;
}

static tm_status clone_range(int to, const char *name, uint64_t at, tm_file *from, uint64_t begin, uint64_t n,
                             bool *shared) {
    struct file_clone_range range = {
        .src_fd = io_file_fd(from), .src_offset = begin, .src_length = n, .dest_offset = at};
    *shared = io_sys_table->clone(to, &range) == 0;
    if (*shared)
        atomic_fetch_add(&cloned, n);
    else if (!cannot_share(errno))
        return tm_fail_sys(io_status_of(errno), errno, "clone", name, (int64_t)at,
                           "%s: cannot share %llu bytes with %s", name, (unsigned long long)n, tm_file_path(from));
    return TM_OK;
}

tm_status tm_io_file_clone(const tm_io_file *to, uint64_t at, tm_file *from, uint64_t begin, uint64_t n, bool *shared) {
    TM_ASSERT(to->fd >= 0 && n > 0);
    TM_TRY(clone_range(to->fd, to->name, at, from, begin, n, shared));
    if (!*shared) atomic_fetch_add(&copied, n);
    return TM_OK;
}

static tm_status copy_all(tm_out *out, tm_file *from) {
    TM_ASSERT(tm_out_size(out) == 0);
    enum { CHUNK = 1 << 20 };
    char *chunk = tm_malloc(CHUNK);
    tm_status rc = chunk ? TM_OK : tm_nomem(CHUNK);
    for (uint64_t at = 0, size = tm_file_size(from); at < size && rc == TM_OK;) {
        size_t n = tm_min_u64(CHUNK, size - at);
        rc = tm_file_read_at(from, at, chunk, n);
        if (rc == TM_OK) rc = tm_out_append(out, chunk, n);
        tm_file_forget(from, at, n);
        at += n;
    }
    tm_free(chunk);
    if (rc == TM_OK) atomic_fetch_add(&copied, tm_file_size(from));
    return rc;
}

tm_status tm_copy_file(const char *from, const char *to) {
    tm_file *in;
    tm_out *out;
    bool shared = false;
    TM_TRY(tm_file_open(&in, from));
    tm_status rc = tm_out_create(&out, to);
    if (rc == TM_OK) {
        if (tm_file_size(in) > 0) rc = clone_range(io_out_fd(out), to, 0, in, 0, tm_file_size(in), &shared);
        if (rc == TM_OK && !shared) rc = copy_all(out, in);
        rc = tm_out_end(out, rc);
    }
    tm_file_close(in);
    return rc;
}

/* ---- a folder in the place of another ---------------------------------------------------------------------------- */

static tm_status sync_parent(const char *path) {
    char dir[4096];
    if (!io_dirname(path, dir, sizeof dir)) return tm_fail(TM_EINPUT, "%.80s...: path is too long", path);
    int fd = io_sys_table->openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int err = fd < 0 ? errno : 0;
    if (!err && io_sys_table->fsync(fd) != 0 && errno != EINVAL) err = errno; /* EINVAL: it cannot sync folders */
    if (fd >= 0) close(fd);
    if (!err) return TM_OK;
    return tm_fail_sys(io_status_of(err), err, "fsync", path, -1, "%s: its folder cannot be brought to the disk", path);
}

/* A file system that cannot exchange: the old one steps aside first. */
static tm_status replace_in_two(const char *from, const char *to) {
    char aside[4200];
    int n = snprintf(aside, sizeof aside, "%s.tmp-old", to);
    if (n < 0 || n >= (int)sizeof aside) return tm_fail(TM_EINPUT, "%.80s...: path is too long", to);
    TM_TRY(tm_remove_tree(aside));
    TM_TRY(tm_rename_path(to, aside));
    TM_TRY(tm_rename_path(from, to));
    TM_TRY(sync_parent(to));
    return tm_remove_tree(aside);
}

tm_status tm_publish_dir(const char *from, const char *to) {
    if (!tm_path_exists(to)) {
        TM_TRY(tm_rename_path(from, to));
        return sync_parent(to);
    }
    if (io_sys_table->exchange(from, to) != 0) {
        if (cannot_share(errno)) return replace_in_two(from, to);
        return tm_fail_sys(io_status_of(errno), errno, "exchange", to, -1, "%s: cannot take the place of %s", from, to);
    }
    TM_TRY(sync_parent(to));
    return tm_remove_tree(from);
}

tm_status tm_retire_dir(const char *path) {
    char aside[4200];
    int n = snprintf(aside, sizeof aside, "%s.tmp", path);
    if (n < 0 || n >= (int)sizeof aside) return tm_fail(TM_EINPUT, "%.80s...: path is too long", path);
    if (!tm_path_exists(path)) return TM_OK;
    TM_TRY(tm_remove_tree(aside));
    TM_TRY(tm_rename_path(path, aside));
    return tm_remove_tree(aside);
}
