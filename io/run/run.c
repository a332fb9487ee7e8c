/* Run directories: where offload files lie. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const long ramfs_magic = 0x858458f6;

/* ---- the path ---- */

tm_status io_run_refused(const char *path, int err) {
    if (err == ENOENT)
        return tm_fail(TM_EINPUT, "offload path %s: no such directory; mount its disk, or make it: mkdir -p %s", path,
                       path);
    if (err == ENOTDIR)
        return tm_fail(TM_EINPUT, "offload path %s: is not a directory; give a directory on a disk", path);
    if (err == ELOOP) return tm_fail(TM_EINPUT, "offload path %s: is a symbolic link; give the directory itself", path);
    if (err == ENAMETOOLONG) return tm_fail(TM_EINPUT, "offload path %.80s...: is too long; give a shorter one", path);
    tm_status s = err == EACCES || err == EPERM || err == EROFS ? TM_EINPUT : io_status_of(err);
    return tm_fail_sys(s, err, "open", path, -1, "offload path %s: cannot be written", path);
}

static tm_status open_parent(const char *path, bool create, bool *made, int *fd) {
    struct stat st;
    char up[PATH_MAX];
    *made = false;
    if (create && lstat(path, &st) != 0 && errno == ENOENT) {
        if (!io_dirname(path, up, sizeof up)) return io_run_refused(path, ENAMETOOLONG);
        TM_TRY(tm_make_dirs(up));
        if (io_sys_table->mkdirat(AT_FDCWD, path, 0700) == 0) {
            *made = true;
        } else if (errno != EEXIST) {
            return io_run_refused(path, errno);
        }
    }
    *fd = io_sys_table->openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (*fd >= 0) return TM_OK;
    int err = errno;
    if (err == ENOTDIR && lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) err = ELOOP;
    return io_run_refused(path, err);
}

tm_status io_run_check_filesystem(int fd, const char *path, bool allow_tmpfs) {
    TM_ASSERT(fd >= 0);
    struct statfs st;
    if (io_sys_table->fstatfs(fd, &st) != 0) return io_run_refused(path, errno);
    const char *kind = st.f_type == TMPFS_MAGIC               ? "tmpfs"
                       : st.f_type == (__fsword_t)ramfs_magic ? "ramfs"
                       : st.f_type == HUGETLBFS_MAGIC         ? "hugetlbfs"
                                                              : NULL;
    if (!kind || allow_tmpfs) return TM_OK;
    return tm_fail(TM_EINPUT, "offload path %s is %s, which is memory; give a path on a disk or set memory.allow_tmpfs",
                   path, kind);
}

bool io_run_name_is_plain(const char *id) {
    size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= 64 && id[n] == 0;
}

/* On the way out, with the lock held to the end. */
static void remove_live(io_live *l) {
    tm_io_run *run = (tm_io_run *)l;
    if (io_run_remove_dir(run) == TM_OK && run->made_parent)
        io_sys_table->unlinkat(AT_FDCWD, run->parent, AT_REMOVEDIR);
}

static tm_status make_run_dir(tm_io_run *run, int parent_fd, const char *id) {
    TM_ASSERT(!run->made && parent_fd >= 0);
    tm_buf path = {0};
    char fresh[24];
    if (id && !io_run_name_is_plain(id))
        return tm_fail(TM_EINPUT, "run id \"%.80s\": expected 1 to 64 of A-Z a-z 0-9 . _ -", id);
    snprintf(fresh, sizeof fresh, "%016llx", (unsigned long long)io_random64());
    tm_status rc = tm_buf_printf(&path, "%s/run-%s", run->parent, id ? id : fresh);
    run->path = path.data;
    if (rc != TM_OK) return rc;
    const char *name = io_basename(run->path);
    if (io_sys_table->mkdirat(parent_fd, name, 0700) != 0) {
        if (errno == EEXIST) {
            return tm_fail(TM_EINPUT, "offload path %s: exists already, see its file `owner`; is another run using it?",
                           run->path);
        }
        return io_run_refused(run->parent, errno);
    }
    run->live.path = run->path;
    run->live.remove = remove_live;
    run->made = true;
    io_live_add(&run->live);
    run->fd = io_sys_table->openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    return run->fd < 0 ? io_run_refused(run->path, errno) : TM_OK;
}

/* ---- lock ---- */

int io_run_create_in(const tm_io_run *run, const char *name, int flags) {
    TM_ASSERT(run->fd >= 0 && !strchr(name, '/'));
    return io_sys_table->openat(run->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
}

/* Whoever looks whether it is held (tm_io_run_owner) holds it for that moment. */
static tm_status take_lock(tm_io_run *run) {
    TM_ASSERT(run->lock_fd < 0 && run->made);
    enum { LOOKED_AT_MS = 2000 };
    run->lock_fd = io_run_create_in(run, "lock", 0);
    if (run->lock_fd < 0) return io_run_refused(run->path, errno);
    for (unsigned waited = 0;; waited += 5) {
        if (io_sys_table->flock(run->lock_fd, LOCK_EX | LOCK_NB) == 0) return TM_OK;
        if (errno != EWOULDBLOCK || waited >= LOOKED_AT_MS) break;
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    }
    return tm_fail_sys(TM_EINPUT, errno, "flock", run->path, -1, "offload path %s: cannot be locked", run->path);
}

/* ---- O_DIRECT ---- */

/* Interrupted or put off: the same once more. */
static bool asks_again(ssize_t moved, unsigned *tries) {
    return moved < 0 && (errno == EINTR || errno == EAGAIN) && ++*tries < IO_RETRIES;
}

/* Writes and reads `unit` bytes at offset `unit` from an address that is aligned to no more than that. 0 or an errno.
 */
static int try_direct(int fd, char *memory, uint32_t unit) {
    TM_ASSERT(fd >= 0 && unit <= RUN_UNIT && (uintptr_t)memory % RUN_UNIT == 0);
    char *out = memory + unit, *in = memory + 2 * RUN_UNIT + unit;
    memset(out, (int)(unit >> 8) + 1, unit);
    memset(in, 0, unit);
    ssize_t put, got;
    unsigned tries = 0;
    do put = io_sys_table->pwrite(fd, out, unit, unit);
    while (asks_again(put, &tries));
    if (put < 0) return errno;
    do got = io_sys_table->pread(fd, in, unit, unit);
    while (asks_again(got, &tries));
    if (got < 0) return errno;
    return put == (ssize_t)unit && got == put && memcmp(in, out, unit) == 0 ? 0 : EINVAL;
}

static bool means_no_direct(int err) {
    return err == EINVAL || err == EOPNOTSUPP || err == ENOSYS;
}

tm_status io_run_probe(tm_io_run *run) {
    TM_ASSERT(run->lock_fd >= 0);
    static const uint32_t units[] = {512, 4096};
    run->alignment = 1;
    char *block = tm_malloc(5 * RUN_UNIT);
    if (!block) return tm_nomem(5 * RUN_UNIT);
    char *memory = (char *)tm_round_up((uintptr_t)block, RUN_UNIT);
    int fd = io_run_create_in(run, "probe", O_DIRECT);
    int err = fd < 0 ? errno : EINVAL;
    for (size_t i = 0; i < TM_COUNT(units) && fd >= 0 && means_no_direct(err); i++) {
        err = try_direct(fd, memory, units[i]);
        if (err == 0) run->alignment = units[i];
    }
    if (fd >= 0) close(fd);
    /* A file system may make the file and then refuse to open it so: it is there although fd < 0. */
    (void)io_sys_table->unlinkat(run->fd, "probe", 0);
    tm_free(block);
    if (err == 0) return TM_OK;
    if (!means_no_direct(err)) return io_run_refused(run->path, err);
    tm_warn_once(run->parent, "offload path %s: O_DIRECT does not work here (%s); I/O goes through the page cache",
                 run->parent, strerror(err));
    return TM_OK;
}

/* btrfs: copy-on-write would turn every write in place into a new extent. Files inherit it; best effort. */
static void switch_off_cow(const tm_io_run *run) {
    struct statfs st;
    int flags = 0;
    if (io_sys_table->fstatfs(run->fd, &st) != 0 || st.f_type != BTRFS_SUPER_MAGIC) return;
    if (ioctl(run->fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_NOCOW_FL;
        if (ioctl(run->fd, FS_IOC_SETFLAGS, &flags) == 0) return;
    }
    tm_warn_once("io.nocow", "offload path %s: copy-on-write cannot be switched off; writes will be slower", run->path);
}

/* ---- life ---- */

static tm_status set_up(tm_io_run *run, const tm_io_run_opts *opts) {
    int parent_fd = -1;
    TM_TRY(open_parent(run->parent, opts->create_parents, &run->made_parent, &parent_fd));
    tm_status rc = io_run_check_filesystem(parent_fd, run->parent, opts->allow_tmpfs);
    if (rc == TM_OK) rc = make_run_dir(run, parent_fd, opts->id);
    close(parent_fd);
    TM_TRY(rc);
    switch_off_cow(run);
    TM_TRY(take_lock(run)); /* before `owner` is there: who finds a key finds it held */
    char fresh[TM_IO_KEY_CHARS + 1];
    tm_io_make_key(fresh);
    TM_TRY(io_run_write_owner(run, opts->key ? opts->key : fresh, opts->of));
    return io_run_probe(run);
}

void io_run_free(tm_io_run *run) {
    for (run_file *f = run->files, *next; f; f = next) {
        next = f->next;
        if (f->fd >= 0) close(f->fd);
        tm_free(f->path);
        tm_free(f);
    }
    if (run->fd >= 0) close(run->fd);
    if (run->lock_fd >= 0) close(run->lock_fd);
    tm_free(run->parent);
    tm_free(run->path);
    tm_free(run);
}

tm_status tm_io_run_create(tm_io_run **out, const char *path, const tm_io_run_opts *opts) {
    *out = NULL;
    if (!path || !*path) return tm_fail(TM_EINPUT, "offload path: is empty; give a directory on a disk");
    tm_io_run *run = tm_calloc(1, sizeof *run);
    if (!run) return tm_nomem(sizeof *run);
    run->fd = run->lock_fd = -1;
    run->parent = tm_strdup(path);
    if (!run->parent) {
        tm_free(run);
        return tm_nomem(strlen(path) + 1);
    }
    for (size_t n = strlen(path); n > 1 && run->parent[n - 1] == '/'; n--) run->parent[n - 1] = 0;
    tm_status rc = set_up(run, opts ? opts : &(tm_io_run_opts){0});
    if (rc != TM_OK) {
        return tm_first(rc, tm_io_run_remove(run));
    }
    *out = run;
    return TM_OK;
}

/* Names that runs give, whoever the process was: state by kind, spilled temporaries, commits. */
static const char *const names[] = {"probe", "manifest",   "manifest.next", "part-of",  "part-of.next",
                                    "spill", "weight_hi",  "weight_lo",     "exp_avg",  "exp_avg_sq",
                                    "grad",  "activation", "scratch",       "kv_cache", "owner.next",
                                    "owner", "lock"};

bool tm_io_run_makes(const char *name) {
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* Files that a run makes, and no others: needs no memory and no descriptor. `owner` and `lock` go last: what is half
 * removed still says whose it is. */
static tm_status remove_files(const tm_io_run *run) {
    TM_ASSERT(run->fd >= 0);
    for (const run_file *f = run->files; f; f = f->next) (void)io_sys_table->unlinkat(run->fd, io_basename(f->path), 0);
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (io_sys_table->unlinkat(run->fd, names[i], 0) != 0 && errno != ENOENT && errno != EISDIR)
            return tm_fail_sys(TM_EIO, errno, "unlink", run->path, -1, "%s/%s: cannot be removed", run->path, names[i]);
    return TM_OK;
}

tm_status io_run_remove_dir(tm_io_run *run) {
    TM_ASSERT(run->path);
    if (run->fd >= 0) TM_TRY(remove_files(run));
    if (io_sys_table->unlinkat(AT_FDCWD, run->path, AT_REMOVEDIR) == 0 || errno == ENOENT) return TM_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return tm_fail_sys(TM_EIO, errno, "rmdir", run->path, -1, "%s: cannot be removed", run->path);
    tm_log(TM_LOG_WARN, "%s: stays, it holds files that no run makes", run->path);
    return TM_OK;
}

/* The lock is held to the end, so that nobody takes the directory for an abandoned one. */
tm_status tm_io_run_remove(tm_io_run *run) {
    tm_status rc = TM_OK;
    if (run->made) { /* the directory was made */
        rc = io_run_remove_dir(run);
        io_live_remove(&run->live);
    }
    if (run->made_parent && rc == TM_OK && io_sys_table->unlinkat(AT_FDCWD, run->parent, AT_REMOVEDIR) != 0 &&
        errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST) {
        rc = tm_fail_sys(TM_EIO, errno, "rmdir", run->parent, -1, "%s: cannot be removed", run->parent);
    }
    io_run_free(run);
    return rc;
}

void tm_io_run_close(tm_io_run *run) {
    if (!run) return;
    io_live_remove(&run->live);
    io_run_free(run);
}

const char *tm_io_run_path(const tm_io_run *run) {
    return run->path;
}

bool tm_io_run_direct(const tm_io_run *run) {
    return run->alignment > 1;
}

uint32_t tm_io_run_alignment(const tm_io_run *run) {
    return run->alignment;
}

uint64_t tm_io_run_free_bytes(const tm_io_run *run) {
    TM_ASSERT(run->fd >= 0);
    struct statfs st;
    uint64_t bytes;
    if (io_sys_table->fstatfs(run->fd, &st) != 0) return 0;
    return tm_mul_u64((uint64_t)st.f_bavail, (uint64_t)st.f_bsize, &bytes) ? bytes : UINT64_MAX;
}
