/* The files of a run directory: made with their space reserved, or opened where a run goes on. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Opens NAME by `how`; the run closes it. */
static tm_status add_file(tm_io_run *run, tm_status (*how)(tm_io_run *, run_file *, const char *, uint64_t, bool),
                          const char *name, uint64_t bytes, bool buffered, tm_io_file *out) {
    bool direct = !buffered && run->alignment > 1;
    TM_ASSERT(run->fd >= 0 && run->alignment > 0);
    run_file *f = tm_calloc(1, sizeof *f);
    *out = (tm_io_file){.fd = -1, .index = -1};
    if (!f) return tm_nomem(sizeof *f);
    tm_status rc = how(run, f, name, bytes, direct);
    if (rc != TM_OK) {
        tm_free(f->path);
        tm_free(f);
        return rc;
    }
    f->next = run->files;
    run->files = f;
    *out = (tm_io_file){.fd = f->fd, .index = -1, .name = f->path, .alignment = direct ? run->alignment : 1};
    return TM_OK;
}

static tm_status no_space(const tm_io_run *run, const char *name, uint64_t bytes, int err) {
    char need[32], have[32], missing[32];
    uint64_t free_bytes = tm_io_run_free_bytes(run);
    uint64_t lacking = bytes > free_bytes ? bytes - free_bytes : 0;
    tm_format_size(bytes, need, sizeof need);
    tm_format_size(free_bytes, have, sizeof have);
    tm_format_size(lacking, missing, sizeof missing);
    if (!lacking) snprintf(missing, sizeof missing, "%s", "a quota's or a limit's share");
    return tm_fail_sys(TM_ENOSPC, err, "fallocate", run->path, -1,
                       "offload path %s: `%s` needs %s, %s are free, %s is missing; make room or give another path",
                       run->parent, name, need, have, missing);
}

/* Whole before anything is trained, so that the disk cannot fill up half-way. */
static tm_status reserve_space(const tm_io_run *run, int fd, const char *name, uint64_t bytes) {
    TM_ASSERT(fd >= 0 && bytes % RUN_UNIT == 0);
    if (bytes > tm_io_run_free_bytes(run)) return no_space(run, name, bytes, ENOSPC);
    int rc = 0;
    for (unsigned tries = 0; tries < IO_RETRIES; tries++) {
        rc = io_sys_table->fallocate(fd, 0, 0, (off_t)bytes);
        if (rc == 0 || errno != EINTR) break;
    }
    if (rc == 0) return TM_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
        tm_warn_once("io.reserve",
                     "offload path %s: this file system cannot reserve space; the disk may fill up in mid-run",
                     run->parent);
        if (io_sys_table->ftruncate(fd, (off_t)bytes) == 0) return TM_OK;
    }
    int err = errno;
    if (io_status_of(err) == TM_ENOSPC) return no_space(run, name, bytes, err);
    return tm_fail_sys(TM_EIO, err, "fallocate", run->path, -1, "%s/%s: cannot reserve %llu bytes", run->path, name,
                       (unsigned long long)bytes);
}

static tm_status open_file(tm_io_run *run, run_file *f, const char *name, uint64_t bytes, bool direct) {
    tm_buf path = {0};
    tm_status rc = tm_buf_printf(&path, "%s/%s", run->path, name);
    f->path = path.data;
    if (rc != TM_OK) return rc;
    f->fd = io_run_create_in(run, name, direct ? O_DIRECT : 0);
    if (f->fd < 0 && errno == EEXIST) return tm_fail(TM_EINPUT, "%s: exists already", f->path);
    if (f->fd < 0) return io_run_refused(f->path, errno);
    rc = reserve_space(run, f->fd, name, bytes);
    if (rc != TM_OK) {
        close(f->fd);
        (void)io_sys_table->unlinkat(run->fd, name, 0); /* what was reserved is given back */
    }
    return rc;
}

tm_status tm_io_file_create(tm_io_run *run, const char *name, uint64_t bytes, bool buffered, tm_io_file *out) {
    *out = (tm_io_file){.fd = -1, .index = -1};
    if (!io_run_name_is_plain(name) || *name == '.') return tm_fail(TM_EBUG, "offload file name \"%.80s\"", name);
    if (bytes == 0 || bytes > INT64_MAX - RUN_UNIT)
        return tm_fail(TM_EBUG, "offload file %s of %llu bytes", name, (unsigned long long)bytes);
    return add_file(run, open_file, name, tm_round_up(bytes, RUN_UNIT), buffered, out);
}

static tm_status cut_off(const char *path, uint64_t bytes, uint64_t want) {
    return tm_fail(TM_ECORRUPT, "%s: holds %llu bytes, the commit needs %llu; the file was cut off", path,
                   (unsigned long long)bytes, (unsigned long long)want);
}

static tm_status open_existing(tm_io_run *run, run_file *f, const char *name, uint64_t bytes, bool direct) {
    tm_buf path = {0};
    struct stat st;
    tm_status rc = tm_buf_printf(&path, "%s/%s", run->path, name);
    f->path = path.data;
    if (rc != TM_OK) return rc;
    int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0);
    f->fd = io_sys_table->openat(run->fd, name, flags, 0);
    if (f->fd < 0 && errno == ENOENT) return tm_fail(TM_ECORRUPT, "%s: is missing, the commit needs it", f->path);
    if (f->fd < 0) return io_run_refused(f->path, errno);
    if (io_sys_table->fstat(f->fd, &st) != 0)
        rc = tm_fail_sys(TM_EIO, errno, "fstat", f->path, -1, "%s: cannot be examined", f->path);
    else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < bytes)
        rc = cut_off(f->path, (uint64_t)st.st_size, bytes);
    if (rc != TM_OK) close(f->fd);
    return rc;
}

tm_status tm_io_file_open(tm_io_run *run, const char *name, uint64_t bytes, bool buffered, tm_io_file *out) {
    return add_file(run, open_existing, name, bytes, buffered, out);
}
