/* Folders that runs share: made by one, used by any that want the same, removed by the last. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { LOOKED_AT_MS = 10000, STEP_MS = 5 }; /* whoever looks at it, or removes it, has the lock for a moment */

struct tm_io_shared {
    int lock_fd;
};

static void pause_step(void) {
    nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000 * 1000}, NULL);
}

static tm_status cannot(const char *dir, const char *call, const char *what) {
    return tm_fail_sys(io_status_of(errno), errno, call, dir, -1, "%s: cannot be %s", dir, what);
}

/* False: another has it. */
static tm_status take(int fd, int how, unsigned wait_ms, const char *dir, bool *taken) {
    for (unsigned waited = 0;; waited += STEP_MS) {
        *taken = io_sys_table->flock(fd, how | LOCK_NB) == 0;
        if (*taken) return TM_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) return cannot(dir, "flock", "locked");
        if (waited >= wait_ms) return TM_OK;
        pause_step();
    }
}

static tm_status hold(tm_io_shared **out, int lock_fd) {
    *out = tm_calloc(1, sizeof **out);
    if (!*out) return tm_nomem(sizeof **out);
    (*out)->lock_fd = lock_fd;
    return TM_OK;
}

/* ---- made ---- */

/* Held before `owner` is there, as a run's. */
static tm_status fill(tm_io_run *as, const char *key, const char *of) {
    char fresh[TM_IO_KEY_CHARS + 1];
    bool taken;
    tm_io_make_key(fresh);
    as->lock_fd = io_run_create_in(as, "lock", 0);
    if (as->lock_fd < 0) return cannot(as->path, "open", "written");
    TM_TRY(take(as->lock_fd, LOCK_SH, LOOKED_AT_MS, as->path, &taken));
    return taken ? io_run_write_owner(as, key ? key : fresh, of) : cannot(as->path, "flock", "locked");
}

tm_status tm_io_shared_create(tm_io_shared **out, const char *dir, const char *key, const char *of) {
    char path[4096], parent[4096];
    *out = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path || !io_dirname(dir, parent, sizeof parent))
        return tm_fail(TM_EINPUT, "%.80s...: path is too long", dir);
    tm_io_run as = {.path = path, .fd = -1, .lock_fd = -1};
    TM_TRY(tm_make_dirs(parent));
    if (io_sys_table->mkdirat(AT_FDCWD, dir, 0700) != 0) return io_run_refused(dir, errno);
    as.fd = io_run_open_dir(dir);
    tm_status rc = as.fd < 0 ? io_run_refused(dir, errno) : fill(&as, key, of);
    if (rc == TM_OK) rc = hold(out, as.lock_fd);
    if (rc != TM_OK && as.lock_fd >= 0) close(as.lock_fd);
    if (as.fd >= 0) close(as.fd);
    return rc;
}

/* ---- used ---- */

static bool is_still_there(const char *dir, int fd) {
    struct stat a, b;
    return io_sys_table->fstat(fd, &a) == 0 && lstat(dir, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static tm_status not_ours(const char *dir) {
    return tm_fail(TM_EINPUT, "%s: is in the way, and no run has made it; move it away", dir);
}

static tm_status open_lock(const char *dir, int fd, int *lock_fd) {
    tm_io_owner o = {0};
    io_run_read_owner(fd, &o);
    *lock_fd = *o.key ? io_sys_table->openat(fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0) : -1;
    return *lock_fd >= 0 || !is_still_there(dir, fd) ? TM_OK : not_ours(dir);
}

tm_status tm_io_shared_open(tm_io_shared **out, const char *dir) {
    int fd = io_run_open_dir(dir), lock_fd = -1;
    bool taken = false;
    *out = NULL;
    if (fd < 0) return errno == ENOENT ? TM_OK : not_ours(dir);
    tm_status rc = open_lock(dir, fd, &lock_fd);
    if (rc == TM_OK && lock_fd >= 0) rc = take(lock_fd, LOCK_SH, LOOKED_AT_MS, dir, &taken);
    if (rc == TM_OK && lock_fd >= 0 && !taken) rc = tm_fail(TM_EINPUT, "%s: is being removed; try again", dir);
    if (rc == TM_OK && taken && is_still_there(dir, fd)) {
        rc = hold(out, lock_fd);
        if (rc == TM_OK) lock_fd = -1;
    }
    if (lock_fd >= 0) close(lock_fd);
    close(fd);
    return rc;
}

void tm_io_shared_close(tm_io_shared *s) {
    if (!s) return;
    close(s->lock_fd);
    tm_free(s);
}

/* ---- removed ---- */

/* A model's files (src/format) and what is written on the way to them. */
static bool is_made(const char *name) {
    static const char weights[] = ".safetensors";
    size_t n = strlen(name), end = sizeof weights - 1;
    return strcmp(name, "config.json") == 0 || strcmp(name, "model.safetensors.index.json") == 0 ||
           strncmp(name, ".tmp-", 5) == 0 || strcmp(name, "owner.next") == 0 ||
           (strncmp(name, "model", 5) == 0 && n > end && strcmp(name + n - end, weights) == 0);
}

static tm_status remove_made(void *ctx, const char *name, bool is_dir) {
    const int *fd = ctx;
    if (!is_dir && is_made(name)) (void)io_sys_table->unlinkat(*fd, name, 0);
    return TM_OK;
}

/* config.json first: without it nobody takes the rest for a model. */
static tm_status remove_files(const char *dir, int fd) {
    (void)io_sys_table->unlinkat(fd, "config.json", 0);
    TM_TRY(tm_list_dir(dir, remove_made, &fd));
    (void)io_sys_table->unlinkat(fd, "owner", 0);
    (void)io_sys_table->unlinkat(fd, "lock", 0);
    if (io_sys_table->unlinkat(AT_FDCWD, dir, AT_REMOVEDIR) == 0 || errno == ENOENT) return TM_OK;
    if (errno != ENOTEMPTY && errno != EEXIST) return cannot(dir, "rmdir", "removed");
    tm_log(TM_LOG_WARN, "%s: stays, it holds files that no run makes", dir);
    return TM_OK;
}

tm_status tm_io_shared_remove(const char *dir, const char *key, unsigned wait_ms, bool *gone) {
    tm_io_owner o = {0};
    int fd = io_run_open_dir(dir), lock_fd = -1;
    bool taken = false;
    *gone = fd < 0 && errno == ENOENT;
    if (fd < 0) return *gone ? TM_OK : not_ours(dir);
    tm_status rc = open_lock(dir, fd, &lock_fd);
    if (rc == TM_OK && lock_fd >= 0) rc = take(lock_fd, LOCK_EX, wait_ms, dir, &taken);
    if (taken) io_run_read_owner(fd, &o);
    if (taken && is_still_there(dir, fd) && *o.key && (!key || strcmp(o.key, key) == 0)) rc = remove_files(dir, fd);
    *gone = rc == TM_OK && !tm_path_is_dir(dir);
    if (lock_fd >= 0) close(lock_fd);
    close(fd);
    return rc;
}
