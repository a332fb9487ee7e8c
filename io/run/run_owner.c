/* Whose a run directory is: its file `owner`, and who may have it. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define OWNER_MAGIC "tidemill run directory 1\n"

void tm_io_make_key(char key[TM_IO_KEY_CHARS + 1]) {
    uint64_t a = io_random64(), b = io_random64();
    snprintf(key, TM_IO_KEY_CHARS + 1, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
}

bool tm_io_is_key(const char *key) {
    return strlen(key) == TM_IO_KEY_CHARS && strspn(key, "0123456789abcdef") == TM_IO_KEY_CHARS;
}

/* One line of the file, shown on terminals. */
static void make_plain(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ') *text = '?';
}

static void command_line(char *buf, size_t cap) {
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, buf, cap - 1);
    if (fd >= 0) close(fd);
    if (n < 0) n = 0;
    for (ssize_t i = 0; i < n; i++) {
        if ((unsigned char)buf[i] < ' ') buf[i] = ' ';
    }
    buf[n] = 0;
}

static tm_status describe_owner(tm_buf *text, const char *key, const char *of) {
    char host[256] = "", command[1024], when[64] = "", whose[4096];
    time_t now = time(NULL);
    struct tm utc;
    (void)gethostname(host, sizeof host - 1);
    if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    command_line(command, sizeof command);
    snprintf(whose, sizeof whose, "%s", of ? of : "");
    make_plain(whose);
    return tm_buf_printf(text, OWNER_MAGIC "key %s\nof %s\npid %ld\nhost %s\nstarted %s\ncommand %s\n", key, whose,
                         (long)getpid(), host, when, command);
}

tm_status io_run_write_owner(tm_io_run *run, const char *key, const char *of) {
    TM_ASSERT(run->lock_fd >= 0 && tm_io_is_key(key));
    tm_buf text = {0};
    (void)io_sys_table->unlinkat(run->fd, "owner.next", 0);
    int fd = io_run_create_in(run, "owner.next", 0);
    if (fd < 0) return io_run_refused(run->path, errno);
    tm_status rc = describe_owner(&text, key, of);
    if (rc == TM_OK) rc = io_write_all(fd, text.data, text.len, 0, run->path);
    close(fd);
    tm_buf_free(&text);
    if (rc != TM_OK || io_sys_table->renameat(run->fd, "owner.next", run->fd, "owner") == 0) return rc;
    return tm_fail_sys(io_status_of(errno), errno, "rename", run->path, -1, "%s/owner: cannot be replaced", run->path);
}

static void owner_line(const char *text, const char *key, char *out, size_t cap) {
    size_t n = strlen(key);
    for (const char *at = text; at; at = strchr(at, '\n'), at += at != NULL) {
        if (strncmp(at, key, n) != 0 || at[n] != ' ') continue;
        snprintf(out, cap, "%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
        make_plain(out);
        return;
    }
}

/* A file that is not there or cannot be read says nothing. */
void io_run_read_owner(int dir, tm_io_owner *out) {
    char text[8192], pid[32] = "", key[64] = "";
    int fd = io_sys_table->openat(dir, "owner", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return;
    ssize_t n = io_sys_table->pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    owner_line(text, "pid", pid, sizeof pid);
    out->pid = strtol(pid, NULL, 10);
    owner_line(text, "host", out->host, sizeof out->host);
    owner_line(text, "started", out->started, sizeof out->started);
    owner_line(text, "command", out->command, sizeof out->command);
    if (strncmp(text, OWNER_MAGIC, sizeof OWNER_MAGIC - 1) == 0) {
        owner_line(text, "key", key, sizeof key);
        owner_line(text, "of", out->of, sizeof out->of);
        if (tm_io_is_key(key)) memcpy(out->key, key, sizeof out->key);
    }
    out->keyless = !*out->key && out->pid > 0 && *out->started && strncmp(text, "pid ", 4) == 0;
}

tm_status tm_io_run_owner(const char *dir, tm_io_owner *out) {
    *out = (tm_io_owner){0};
    int fd = io_run_open_dir(dir);
    if (fd < 0) return io_run_refused(dir, errno);
    int lock = io_sys_table->openat(fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    out->is_run = lock >= 0;
    /* Closing lets go of it again; a run that reopens at this instant waits that long. */
    if (lock >= 0) out->alive = io_sys_table->flock(lock, LOCK_EX | LOCK_NB) != 0;
    if (lock >= 0) close(lock);
    io_run_read_owner(fd, out);
    close(fd);
    return TM_OK;
}

const char *tm_io_owner_say(const tm_io_owner *o, char *buf, size_t cap) {
    if (o->pid <= 0)
        snprintf(buf, cap, "another process");
    else
        snprintf(buf, cap, "process %ld on %s, started %s", o->pid, *o->host ? o->host : "an unknown host",
                 *o->started ? o->started : "at an unknown time");
    return buf;
}

/* ---- who may have it ---- */

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool is_below_claim(const char *dir, const tm_io_claim *c) {
    char parent[4096];
    if (c->n_paths == 0) return true;
    if (!io_dirname(dir, parent, sizeof parent)) return false;
    for (unsigned i = 0; i < c->n_paths; i++)
        if (same_folder(parent, c->paths[i])) return true;
    return false;
}

tm_status tm_io_claim_check(const tm_io_claim *c, const char *dir, const tm_io_owner *o) {
    if (strncmp(io_basename(dir), "run-", 4) != 0)
        return tm_fail(TM_EINPUT, "%s: is not called run-...; it is not a run directory", dir);
    if (!c) {
        if (*o->key || o->keyless) return TM_OK;
        return tm_fail(TM_EINPUT, "%s: its file `owner` is not one that tidemill writes; it is left alone", dir);
    }
    if (!is_below_claim(dir, c))
        return tm_fail(TM_EINPUT,
                       "%s: lies in none of the configured offload paths; add its folder to nvme_path, or move it back",
                       dir);
    if (c->key && strcmp(o->key, c->key) == 0) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: belongs to another run: the key in its file `owner` is not that of %s", dir,
                   c->of ? c->of : "this run");
}
