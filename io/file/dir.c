/* Directories: making, listing and removing them. */
#include "io/io_internal.h"
#include "io/file/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

bool tm_path_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool tm_path_absent(const char *path) {
    struct stat st;
    return stat(path, &st) != 0 && errno != EACCES;
}

bool tm_path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

uint64_t tm_free_bytes(const char *path) {
    char at[PATH_MAX];
    struct statvfs fs;
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at) return 0;
    while (*at && !tm_path_exists(at)) {
        char *slash = strrchr(at, '/');
        if (slash == at) break;
        *(slash ? slash : at) = 0;
    }
    if (statvfs(*at == 0 ? "." : tm_path_exists(at) ? at : "/", &fs) != 0) return 0;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

tm_status tm_make_dirs(const char *path) {
    char *p = tm_strdup(path);
    if (!p) return tm_nomem(strlen(path) + 1);
    int err = *p ? 0 : ENOENT;
    for (char *s = p; *s && !err;) {
        s += strspn(s, "/");
        s += strcspn(s, "/");
        char saved = *s;
        *s = 0;
        if (io_sys_table->mkdirat(AT_FDCWD, p, 0777) != 0) err = errno;
        if (err && tm_path_is_dir(p)) err = 0; /* EEXIST, but also EROFS and EACCES on the way */
        *s = saved;
    }
    tm_free(p);
    if (!err) return TM_OK;
    if (err == EEXIST) err = ENOTDIR;
    tm_status s = err == ENOSPC || err == EDQUOT ? TM_ENOSPC : err == EIO ? TM_EIO : TM_EINPUT;
    return tm_fail_sys(s, err, "mkdir", path, -1, "%s: cannot make this directory", path);
}

typedef struct entry_list {
    char **names;
    size_t n, cap;
} entry_list;

enum { MAX_ENTRIES = 1000000 }; /* bounds memory in a directory that somebody filled */

static tm_status list_push(entry_list *l, const char *name, const char *path) {
    if (l->n == MAX_ENTRIES)
        return tm_fail(TM_EINPUT, "%s: more than %d entries; is it the right folder?", path, MAX_ENTRIES);
    TM_TRY(tm_grow(&l->names, &l->cap, l->n + 1, sizeof *l->names));
    char *copy = tm_strdup(name);
    if (!copy) return tm_nomem(strlen(name) + 1);
    l->names[l->n++] = copy;
    return TM_OK;
}

static void list_free(entry_list *l) {
    for (size_t i = 0; i < l->n; i++) tm_free(l->names[i]);
    tm_free(l->names);
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Takes over `fd`. */
static tm_status list_fd(int fd, const char *path, entry_list *l) {
    DIR *d = fdopendir(fd);
    if (!d) {
        int err = errno;
        close(fd);
        return tm_fail_sys(TM_EIO, err, "fdopendir", path, -1, "%s: cannot be listed", path);
    }
    tm_status rc = TM_OK;
    while (rc == TM_OK) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            if (errno) rc = tm_fail_sys(TM_EIO, errno, "readdir", path, -1, "%s: cannot be listed", path);
            break;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) rc = list_push(l, e->d_name, path);
    }
    closedir(d);
    return rc;
}

tm_status tm_list_dir(const char *path, tm_dir_fn fn, void *ctx) {
    int fd = io_sys_table->openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return tm_fail(TM_EINPUT, "%s: no such folder; check the path", path);
    if (fd < 0) return tm_fail_sys(TM_EINPUT, errno, "open", path, -1, "%s: cannot be listed", path);
    int stat_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* list_fd takes the other */
    if (stat_fd < 0) {
        int err = errno;
        close(fd);
        return tm_fail_sys(TM_EIO, err, "dup", path, -1, "%s: cannot be listed", path);
    }
    entry_list l = {0};
    tm_status rc = list_fd(fd, path, &l);
    if (rc == TM_OK && l.n) qsort(l.names, l.n, sizeof *l.names, by_bytes);
    for (size_t i = 0; i < l.n && rc == TM_OK; i++) {
        struct stat st;
        bool is_dir = fstatat(stat_fd, l.names[i], &st, 0) == 0 && S_ISDIR(st.st_mode);
        rc = fn(ctx, l.names[i], is_dir);
    }
    close(stat_fd);
    list_free(&l);
    return rc;
}

enum { MAX_DEPTH = 64 };

typedef struct level {
    int fd;
    entry_list entries;
    size_t at; /* entries before this one are gone */
} level;

static tm_status level_open(level *v, int parent, const char *name, const char *path) {
    *v = (level){.fd = io_sys_table->openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0)};
    if (v->fd < 0)
        return tm_fail_sys(TM_EIO, errno, "open", path, -1, "%s: cannot look into \"%s\" to remove it", path, name);
    int fd = fcntl(v->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        int err = errno;
        close(v->fd);
        return tm_fail_sys(TM_EIO, err, "dup", path, -1, "%s: cannot look into \"%s\"", path, name);
    }
    tm_status rc = list_fd(fd, path, &v->entries);
    if (rc != TM_OK) {
        list_free(&v->entries);
        close(v->fd);
    }
    return rc;
}

static void level_close(level *v) {
    list_free(&v->entries);
    close(v->fd);
}

static tm_status remove_failed(const char *path, const char *name) {
    return tm_fail_sys(TM_EIO, errno, "unlink", path, -1, "%s: cannot remove \"%s\"", path, name);
}

/* An explicit stack: a hostile tree must not overflow ours. A level stays at an entry until what is below it is gone.
 */
tm_status io_remove_below(int fd, const char *path) {
    level *stack = tm_calloc(MAX_DEPTH, sizeof *stack);
    if (!stack) return tm_nomem(MAX_DEPTH * sizeof *stack);
    size_t depth = 0;
    tm_status rc = level_open(&stack[depth], fd, ".", path);
    if (rc == TM_OK) depth = 1;
    while (rc == TM_OK && depth > 0) {
        level *top = &stack[depth - 1];
        TM_ASSERT(depth <= MAX_DEPTH && top->at <= top->entries.n);
        if (top->at == top->entries.n) {
            level_close(top);
            if (--depth == 0) break;
            level *up = &stack[depth - 1];
            const char *done = up->entries.names[up->at++];
            if (io_sys_table->unlinkat(up->fd, done, AT_REMOVEDIR) != 0 && errno != ENOENT)
                rc = remove_failed(path, done);
            continue;
        }
        const char *name = top->entries.names[top->at];
        if (io_sys_table->unlinkat(top->fd, name, 0) == 0 || errno == ENOENT) {
            top->at++;
        } else if (errno != EISDIR) {
            rc = remove_failed(path, name);
        } else if (depth == MAX_DEPTH) {
            rc = tm_fail(TM_EINPUT, "%s: more than %d levels deep; remove it by hand", path, MAX_DEPTH);
        } else if ((rc = level_open(&stack[depth], top->fd, name, path)) == TM_OK) {
            depth++;
        }
    }
    while (depth > 0) level_close(&stack[--depth]);
    tm_free(stack);
    return rc;
}

tm_status tm_remove_tree(const char *path) {
    if (io_sys_table->unlinkat(AT_FDCWD, path, 0) == 0 || errno == ENOENT) return TM_OK;
    if (errno != EISDIR) return remove_failed(path, io_basename(path));
    int fd = io_sys_table->openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) return errno == ENOENT ? TM_OK : remove_failed(path, io_basename(path));
    tm_status rc = io_remove_below(fd, path);
    close(fd);
    if (rc == TM_OK && io_sys_table->unlinkat(AT_FDCWD, path, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        rc = remove_failed(path, io_basename(path));
    }
    return rc;
}

bool tm_remove_empty(const char *path) {
    return io_sys_table->unlinkat(AT_FDCWD, path, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

tm_status tm_rename_path(const char *from, const char *to) {
    if (io_sys_table->renameat(AT_FDCWD, from, AT_FDCWD, to) == 0) return TM_OK;
    return tm_fail_sys(io_status_of(errno), errno, "rename", from, -1, "%s: cannot be renamed to %s", from, to);
}
