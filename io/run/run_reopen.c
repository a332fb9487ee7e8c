/* Run directories of runs that ended: going on in them. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

int io_run_open_dir(const char *dir) {
    return io_sys_table->openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
}

static tm_status in_use(const tm_io_run *run) {
    char who[512];
    tm_io_owner o = {0};
    io_run_read_owner(run->fd, &o);
    return tm_fail(TM_EINPUT, "%s: in use by %s; wait for it or stop it", run->path,
                   tm_io_owner_say(&o, who, sizeof who));
}

static tm_status take_lock(tm_io_run *run, unsigned wait_ms) {
    TM_ASSERT(run->fd >= 0 && run->lock_fd < 0);
    run->lock_fd = io_sys_table->openat(run->fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (run->lock_fd < 0 && errno == ENOENT)
        return tm_fail(TM_EINPUT, "%s: has no lock file; it is not a run directory", run->path);
    if (run->lock_fd < 0) return io_run_refused(run->path, errno);
    for (unsigned waited = 0;; waited += 20) {
        if (io_sys_table->flock(run->lock_fd, LOCK_EX | LOCK_NB) == 0) return TM_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return tm_fail_sys(TM_EIO, errno, "flock", run->path, -1, "%s: cannot be locked", run->path);
        if (waited >= wait_ms) return in_use(run);
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

/* Under the lock: nobody else takes or removes it from here on. One without a key stays as it is. */
static tm_status take_over(tm_io_run *run, const tm_io_claim *claim) {
    TM_ASSERT(run->lock_fd >= 0);
    tm_io_owner o = {0};
    io_run_read_owner(run->fd, &o);
    TM_TRY(tm_io_claim_check(claim, run->path, &o));
    if (!*o.key) return TM_OK;
    return io_run_write_owner(run, o.key, claim && claim->of ? claim->of : o.of);
}

static tm_status go_on(tm_io_run *run, const tm_io_claim *claim, bool allow_tmpfs, unsigned wait_ms) {
    run->fd = io_run_open_dir(run->path);
    if (run->fd < 0) return io_run_refused(run->path, errno);
    TM_TRY(check_ours(run));
    TM_TRY(io_run_check_filesystem(run->fd, run->path, allow_tmpfs));
    TM_TRY(take_lock(run, wait_ms));
    TM_TRY(take_over(run, claim));
    (void)io_sys_table->unlinkat(run->fd, "probe", 0);
    return io_run_probe(run);
}

tm_status tm_io_run_reopen(tm_io_run **out, const char *dir, const tm_io_claim *claim, bool allow_tmpfs,
                           unsigned wait_ms) {
    char parent[4096];
    *out = NULL;
    if (!io_dirname(dir, parent, sizeof parent)) return tm_fail(TM_EINPUT, "%.80s...: path is too long", dir);
    tm_io_run *run = tm_calloc(1, sizeof *run);
    if (!run) return tm_nomem(sizeof *run);
    run->fd = run->lock_fd = -1;
    run->parent = tm_strdup(parent);
    run->path = tm_strdup(dir);
    tm_status rc = run->parent && run->path ? go_on(run, claim, allow_tmpfs, wait_ms) : tm_nomem(strlen(dir));
    if (rc != TM_OK) {
        io_run_free(run);
        return rc;
    }
    run->made = true; /* tm_io_run_remove removes it; the way out of a signal does not */
    *out = run;
    return TM_OK;
}

static bool has_owner(int dir) {
    return faccessat(dir, "owner", F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* False: there is an owner, or somebody has the lock. `lock`: held; -1: there is none. */
static bool is_begun(int dir, int *lock) {
    *lock = io_sys_table->openat(dir, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    return (*lock < 0 || io_sys_table->flock(*lock, LOCK_EX | LOCK_NB) == 0) && !has_owner(dir);
}

static void close_lock(int lock) {
    if (lock >= 0) close(lock);
}

/* Whoever makes it now has a moment to lock it. Under its lock it goes with what lies in it by then; without one, only
 * where it is empty. */
tm_status tm_io_run_discard_begun(const char *dir) {
    static const struct timespec moment = {.tv_nsec = 20 * 1000 * 1000};
    int fd = io_run_open_dir(dir), lock;
    if (fd < 0) return errno == ENOENT ? TM_OK : io_run_refused(dir, errno);
    bool begun = is_begun(fd, &lock);
    if (begun) {
        close_lock(lock);
        nanosleep(&moment, NULL);
        begun = is_begun(fd, &lock);
    }
    if (begun && lock >= 0) {
        (void)io_sys_table->unlinkat(fd, "owner.next", 0);
        (void)io_sys_table->unlinkat(fd, "lock", 0);
    }
    if (begun)
        (void)io_sys_table->unlinkat(AT_FDCWD, dir, AT_REMOVEDIR); /* what else lies there stays, and so does it */
    close_lock(lock);
    close(fd);
    return TM_OK;
}

void tm_io_run_keep(tm_io_run *run) {
    io_live_remove(&run->live);
}

/* ---- what lies in it ---- */

tm_status tm_io_run_unlink(tm_io_run *run, const char *name) {
    TM_ASSERT(run->fd >= 0);
    if (io_sys_table->unlinkat(run->fd, name, 0) == 0 || errno == ENOENT) return TM_OK;
    return tm_fail_sys(TM_EIO, errno, "unlink", run->path, -1, "%s/%s: cannot be removed", run->path, name);
}

static tm_status sync_dir(int fd, const char *path) {
    if (io_sys_table->fsync(fd) == 0 || errno == EINVAL) return TM_OK; /* EINVAL: it cannot sync directories */
    return tm_fail_sys(io_status_of(errno), errno, "fsync", path, -1, "%s: cannot be brought to the disk", path);
}

tm_status tm_io_run_sync(tm_io_run *run) {
    TM_ASSERT(run->fd >= 0);
    TM_TRY(sync_dir(run->fd, run->path));
    int fd = io_sys_table->openat(AT_FDCWD, run->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return io_run_refused(run->parent, errno);
    tm_status rc = sync_dir(fd, run->parent);
    close(fd);
    return rc;
}
