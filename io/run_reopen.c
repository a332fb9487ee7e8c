/* Run directories of runs that ended: whose they are, and going on in them. */
#include "io/run_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* ---- the owner ---- */

static void owner_line(const char *text, const char *key, char *out, size_t cap) {
    size_t n = strlen(key);
    for (const char *at = text; at; at = strchr(at, '\n'), at += at != NULL) {
        if (strncmp(at, key, n) != 0 || at[n] != ' ') continue;
        snprintf(out, cap, "%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
        return;
    }
}

static void read_owner(int dir, tm_io_owner *out) {
    char text[2048], pid[32] = "";
    int fd = io_sys_table->openat(dir, "owner", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return;
    ssize_t n = io_sys_table->pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    for (char *c = text; *c; c++) /* what is shown on a terminal */
        if ((unsigned char)*c < ' ' && *c != '\n') *c = '?';
    owner_line(text, "pid", pid, sizeof pid);
    out->pid = strtol(pid, NULL, 10);
    owner_line(text, "host", out->host, sizeof out->host);
    owner_line(text, "started", out->started, sizeof out->started);
    owner_line(text, "command", out->command, sizeof out->command);
}

static int open_dir(const char *dir) {
    return io_sys_table->openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
}

tm_status tm_io_run_owner(const char *dir, tm_io_owner *out) {
    *out = (tm_io_owner){0};
    int fd = open_dir(dir);
    if (fd < 0) return io_run_refused(dir, errno);
    int lock = io_sys_table->openat(fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    out->is_run = lock >= 0;
    /* Closing lets go of it again; a run that reopens at this instant waits that long. */
    if (lock >= 0) out->alive = io_sys_table->flock(lock, LOCK_EX | LOCK_NB) != 0;
    if (lock >= 0) close(lock);
    read_owner(fd, out);
    close(fd);
    return TM_OK;
}

/* ---- reopening ---- */

static tm_status held(const tm_io_run *run) {
    tm_io_owner o = {0};
    read_owner(run->fd, &o);
    return tm_fail(TM_EINPUT, "%s: in use by process %ld on %s, started %s; wait for it or stop it", run->path, o.pid,
                   *o.host ? o.host : "an unknown host", *o.started ? o.started : "at an unknown time");
}

static tm_status take_lock(tm_io_run *run, unsigned wait_ms) {
    run->lock_fd = io_sys_table->openat(run->fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (run->lock_fd < 0 && errno == ENOENT)
        return tm_fail(TM_EINPUT, "%s: has no lock file; it is not a run directory", run->path);
    if (run->lock_fd < 0) return io_run_refused(run->path, errno);
    for (unsigned waited = 0;; waited += 20) {
        if (io_sys_table->flock(run->lock_fd, LOCK_EX | LOCK_NB) == 0) return TM_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return tm_fail_sys(TM_EIO, errno, "flock", run->path, -1, "%s: cannot be locked", run->path);
        if (waited >= wait_ms) return held(run);
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
}

static tm_status check_ours(const tm_io_run *run) {
    struct stat st;
    if (io_sys_table->fstat(run->fd, &st) != 0) return io_run_refused(run->path, errno);
    if (st.st_uid == geteuid() && (st.st_mode & 022) == 0) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: belongs to user %ld or others may write to it; it is not used", run->path,
                   (long)st.st_uid);
}

static tm_status new_owner(tm_io_run *run) {
    (void)io_sys_table->unlinkat(run->fd, "owner.next", 0);
    TM_TRY(io_run_write_owner(run, "owner.next"));
    if (io_sys_table->renameat(run->fd, "owner.next", run->fd, "owner") == 0) return TM_OK;
    return tm_fail_sys(io_status_of(errno), errno, "rename", run->path, -1, "%s/owner: cannot be replaced", run->path);
}

static tm_status go_on(tm_io_run *run, bool allow_tmpfs, unsigned wait_ms) {
    run->fd = open_dir(run->path);
    if (run->fd < 0) return io_run_refused(run->path, errno);
    TM_TRY(check_ours(run));
    TM_TRY(io_run_check_filesystem(run->fd, run->path, allow_tmpfs));
    TM_TRY(take_lock(run, wait_ms));
    TM_TRY(new_owner(run));
    (void)io_sys_table->unlinkat(run->fd, "probe", 0);
    return io_run_probe(run);
}

tm_status tm_io_run_reopen(tm_io_run **out, const char *dir, bool allow_tmpfs, unsigned wait_ms) {
    char parent[4096];
    *out = NULL;
    if (!io_dirname(dir, parent, sizeof parent)) return tm_fail(TM_EINPUT, "%.80s...: path is too long", dir);
    tm_io_run *run = tm_calloc(1, sizeof *run);
    if (!run) return tm_nomem(sizeof *run);
    run->fd = run->lock_fd = -1;
    run->parent = tm_strdup(parent);
    run->path = tm_strdup(dir);
    tm_status rc = run->parent && run->path ? go_on(run, allow_tmpfs, wait_ms) : tm_nomem(strlen(dir));
    if (rc != TM_OK) {
        io_run_free(run);
        return rc;
    }
    run->live.is_dir = true; /* tm_io_run_remove removes it; the way out of a signal does not */
    *out = run;
    return TM_OK;
}

void tm_io_run_keep(tm_io_run *run) {
    io_live_remove(&run->live);
}

/* ---- what lies in it ---- */

tm_status tm_io_run_unlink(tm_io_run *run, const char *name) {
    if (io_sys_table->unlinkat(run->fd, name, 0) == 0 || errno == ENOENT) return TM_OK;
    return tm_fail_sys(TM_EIO, errno, "unlink", run->path, -1, "%s/%s: cannot be removed", run->path, name);
}

static tm_status sync_dir(int fd, const char *path) {
    if (io_sys_table->fsync(fd) == 0 || errno == EINVAL) return TM_OK; /* EINVAL: it cannot sync directories */
    return tm_fail_sys(io_status_of(errno), errno, "fsync", path, -1, "%s: cannot be brought to the disk", path);
}

tm_status tm_io_run_sync(tm_io_run *run) {
    TM_TRY(sync_dir(run->fd, run->path));
    int fd = io_sys_table->openat(AT_FDCWD, run->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return io_run_refused(run->parent, errno);
    tm_status rc = sync_dir(fd, run->parent);
    close(fd);
    return rc;
}
