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
enum { BEGUN_AGAIN = 50 };

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

/* Whoever sweeps takes a folder without lock and owner for one that was killed while it was begun: until it is locked, it
 * may be removed (tm_io_run_discard_begun). */
static bool is_there(const tm_io_run *as) {
    struct stat path, own, lock = {.st_nlink = 1};
    if (lstat(as->path, &path) != 0) return false;
    if (as->fd < 0) return true;
    if (fstat(as->fd, &own) != 0 || (as->lock_fd >= 0 && fstat(as->lock_fd, &lock) != 0)) return false;
    return own.st_dev == path.st_dev && own.st_ino == path.st_ino && own.st_nlink > 0 && lock.st_nlink > 0;
}

static void leave_begun(tm_io_run *as) {
    if (as->lock_fd >= 0) close(as->lock_fd);
    if (as->fd >= 0) close(as->fd);
    as->fd = as->lock_fd = -1;
}

/* Held before `owner` is there, as a run's. */
static tm_status fill(tm_io_run *as, const char *key, const char *of) {
    char fresh[TM_IO_KEY_CHARS + 1];
    bool taken;
    tm_io_make_key(fresh);
    as->fd = io_run_open_dir(as->path);
    if (as->fd < 0) return io_run_refused(as->path, errno);
    as->lock_fd = io_run_create_in(as, "lock", 0);
    if (as->lock_fd < 0) return cannot(as->path, "open", "written");
    TM_TRY(take(as->lock_fd, LOCK_SH, LOOKED_AT_MS, as->path, &taken));
    return taken ? io_run_write_owner(as, key ? key : fresh, of) : cannot(as->path, "flock", "locked");
}

/* Again where it was removed before it was locked; afterwards nobody does. */
static tm_status make(tm_io_run *as, const char *key, const char *of) {
    for (int left = BEGUN_AGAIN;; left--) {
        if (io_sys_table->mkdirat(AT_FDCWD, as->path, 0700) != 0) return io_run_refused(as->path, errno);
        tm_status rc = fill(as, key, of);
        if (is_there(as)) return rc;
        if (left == 0) return rc != TM_OK ? rc : tm_fail(TM_EIO, "%s: was removed while it was made", as->path);
        tm_error_clear();
        leave_begun(as);
        (void)io_sys_table->unlinkat(AT_FDCWD, as->path, AT_REMOVEDIR); /* what a killed sweeper left */
    }
}

tm_status tm_io_shared_create(tm_io_shared **out, const char *dir, const char *key, const char *of) {
    char path[4096], parent[4096];
    *out = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path || !io_dirname(dir, parent, sizeof parent))
        return tm_fail(TM_EINPUT, "%.80s...: path is too long", dir);
    tm_io_run as = {.path = path, .fd = -1, .lock_fd = -1};
    TM_TRY(tm_make_dirs(parent));
    tm_status rc = make(&as, key, of);
    if (rc == TM_OK) rc = hold(out, as.lock_fd);
    if (rc == TM_OK) as.lock_fd = -1;
    leave_begun(&as);
    return rc;
}

/* ---- used ---- */

static tm_status not_ours(const char *dir) {
    return tm_fail(TM_EINPUT, "%s: is in the way, and no run has made it; move it away", dir);
}

/* What is called so, as it was found. */
typedef struct found {
    const char *dir;
    int fd, lock_fd;
    bool there; /* after it was locked still */
    bool taken; /* its lock */
    tm_io_owner owner;
} found;

static tm_status look_again(found *f) {
    struct stat a, b;
    if (io_sys_table->fstat(f->fd, &a) != 0) return cannot(f->dir, "fstat", "read");
    f->there = lstat(f->dir, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    return TM_OK;
}

static tm_status find(found *f, const char *dir, int how, unsigned wait_ms) {
    *f = (found){.dir = dir, .fd = io_run_open_dir(dir), .lock_fd = -1};
    if (f->fd < 0 && errno == ENOENT) return TM_OK;
    if (f->fd < 0) return errno == ENOTDIR || errno == ELOOP ? not_ours(dir) : io_run_refused(dir, errno);
    f->lock_fd = io_sys_table->openat(f->fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (f->lock_fd < 0 && errno != ENOENT) return cannot(dir, "open", "read");
    if (f->lock_fd >= 0) TM_TRY(take(f->lock_fd, how, wait_ms, dir, &f->taken));
    TM_TRY(look_again(f));
    io_run_read_owner(f->fd, &f->owner);
    return f->there && (f->lock_fd < 0 || !*f->owner.key) ? not_ours(dir) : TM_OK;
}

static void leave(const found *f) {
    if (f->lock_fd >= 0) close(f->lock_fd);
    if (f->fd >= 0) close(f->fd);
}

tm_status tm_io_shared_open(tm_io_shared **out, const char *dir) {
    found f;
    *out = NULL;
    tm_status rc = find(&f, dir, LOCK_SH, LOOKED_AT_MS);
    if (rc == TM_OK && f.there && !f.taken) rc = tm_fail(TM_EINPUT, "%s: is being removed; try again", dir);
    if (rc == TM_OK && f.there) rc = hold(out, f.lock_fd);
    if (*out) f.lock_fd = -1;
    leave(&f);
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

typedef struct folder {
    const char *dir;
    int fd;
} folder;

static tm_status unlink_in(const folder *f, const char *name) {
    if (io_sys_table->unlinkat(f->fd, name, 0) == 0 || errno == ENOENT) return TM_OK;
    return tm_fail_sys(io_status_of(errno), errno, "unlink", f->dir, -1, "%s/%s: cannot be removed", f->dir, name);
}

static tm_status remove_made(void *ctx, const char *name, bool is_dir) {
    return !is_dir && is_made(name) ? unlink_in(ctx, name) : TM_OK;
}

/* config.json first: without it nobody takes the rest for a model. `owner` and `lock` last: what is half removed still says
 * whose it is. */
static tm_status remove_files(const char *dir, int fd) {
    folder f = {dir, fd};
    TM_TRY(unlink_in(&f, "config.json"));
    TM_TRY(tm_list_dir(dir, remove_made, &f));
    TM_TRY(unlink_in(&f, "owner"));
    TM_TRY(unlink_in(&f, "lock"));
    if (io_sys_table->unlinkat(AT_FDCWD, dir, AT_REMOVEDIR) == 0 || errno == ENOENT) return TM_OK;
    if (errno != ENOTEMPTY && errno != EEXIST) return cannot(dir, "rmdir", "removed");
    tm_log(TM_LOG_WARN, "%s: stays, it holds files that no run makes", dir);
    return TM_OK;
}

tm_status tm_io_shared_remove(const char *dir, const char *key, unsigned wait_ms, bool *gone) {
    found f;
    tm_status rc = find(&f, dir, LOCK_EX, wait_ms);
    bool may = f.there && f.taken && (!key || strcmp(f.owner.key, key) == 0);
    if (rc == TM_OK && may) rc = remove_files(dir, f.fd);
    *gone = rc == TM_OK && !tm_path_is_dir(dir);
    leave(&f);
    return rc;
}
