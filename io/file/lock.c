/* A folder locked by one process at a time: nothing is written for it, and the lock ends with the process. */
#include "io/io_internal.h"
#include "io/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

struct tm_dir_lock {
    int fd; /* never given to a ring, which may outlive the process */
};

/* Who has the lock, as the kernel lists it ("1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF"); 0: not of this machine.
 */
static long lock_owner(const struct stat *st) {
    char text[32768], key[64];
    int fd = io_sys_table->openat(AT_FDCWD, "/proc/locks", O_RDONLY | O_CLOEXEC, 0);
    ssize_t n = fd < 0 ? -1 : io_sys_table->pread(fd, text, sizeof text - 1, 0);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    snprintf(key, sizeof key, " %02x:%02x:%llu ", major(st->st_dev), minor(st->st_dev), (unsigned long long)st->st_ino);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *at = strstr(line, key);
        if (!at || !strstr(line, "FLOCK") || strstr(line, "->")) continue; /* ->: one that waits */
        *at = 0;
        char *pid = strrchr(line, ' ');
        return pid ? strtol(pid, NULL, 10) : 0;
    }
    return 0;
}

static tm_status in_use(const char *path, const struct stat *st) {
    long pid = lock_owner(st);
    if (pid > 0)
        return tm_fail(TM_EINPUT, "%s: in use by process %ld, which writes there; wait for it or stop it", path, pid);
    return tm_fail(TM_EINPUT, "%s: another process writes there; wait for it or stop it", path);
}

/* A file system that cannot lock folders (some NFS): one warning, and nobody is kept out. */
static tm_status wait_for_lock(int fd, const char *path, const struct stat *st, unsigned wait_ms) {
    for (unsigned waited = 0;; waited += 20) {
        if (io_sys_table->flock(fd, LOCK_EX | LOCK_NB) == 0) return TM_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) {
            tm_warn_once("hold", "%s: cannot be locked (%s); see to it that no two runs write there", path,
                         strerror(errno));
            return TM_OK;
        }
        if (waited >= wait_ms) return in_use(path, st);
        TM_TRY(tm_stop_check());
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
}

/* *gone: whoever had the lock removed the folder meanwhile. */
static tm_status lock_dir(tm_dir_lock *h, const char *path, unsigned wait_ms, bool *gone) {
    struct stat mine, now;
    h->fd = io_sys_table->openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    *gone = h->fd < 0 && errno == ENOENT;
    if (*gone) return TM_OK;
    if (h->fd < 0 || io_sys_table->fstat(h->fd, &mine) != 0)
        return tm_fail_sys(TM_EINPUT, errno, "open", path, -1, "%s: cannot be opened", path);
    TM_TRY(wait_for_lock(h->fd, path, &mine, wait_ms));
    *gone = stat(path, &now) != 0 || now.st_ino != mine.st_ino || now.st_dev != mine.st_dev;
    return TM_OK;
}

tm_status tm_lock_dir(tm_dir_lock **out, const char *path, unsigned wait_ms) {
    *out = NULL;
    tm_dir_lock *h = tm_malloc(sizeof *h);
    if (!h) return tm_nomem(sizeof *h);
    bool gone = true;
    tm_status rc = TM_OK;
    for (int turn = 0; gone && rc == TM_OK && turn < 10; turn++) {
        rc = tm_make_dirs(path);
        h->fd = -1;
        if (rc == TM_OK) rc = lock_dir(h, path, wait_ms, &gone);
        if ((gone || rc != TM_OK) && h->fd >= 0) close(h->fd);
    }
    if (rc == TM_OK && gone) rc = tm_fail(TM_EIO, "%s: is removed again and again", path);
    if (rc == TM_OK)
        *out = h;
    else
        tm_free(h);
    return rc;
}

void tm_unlock_dir(tm_dir_lock *h) {
    if (!h) return;
    TM_ASSERT(h->fd >= 0);
    close(h->fd);
    tm_free(h);
}
