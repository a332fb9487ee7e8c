/* A small file of a run directory, written beside the one it replaces. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 64 * 1024, NAME_MAX_BYTES = 80 };

struct tm_io_atomic {
    tm_io_run *run;
    char name[NAME_MAX_BYTES], next[NAME_MAX_BYTES + 8];
    char *path; /* of NAME.next, for messages */
    io_write_buffer out;
    char buffer[BUFFER_BYTES];
};

static void atomic_free(tm_io_atomic *d) {
    if (d->out.fd >= 0) close(d->out.fd);
    tm_free(d->path);
    tm_free(d);
}

tm_status tm_io_atomic_create(tm_io_atomic **out, tm_io_run *run, const char *name) {
    TM_ASSERT(run->fd >= 0 && strlen(name) < NAME_MAX_BYTES);
    *out = NULL;
    tm_io_atomic *d = tm_malloc(sizeof *d);
    if (!d) return tm_nomem(sizeof *d);
    d->run = run;
    d->out = (io_write_buffer){.fd = -1, .buffer = d->buffer, .cap = BUFFER_BYTES};
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->next, sizeof d->next, "%s.next", d->name);
    tm_buf path = {0};
    tm_status rc = tm_buf_printf(&path, "%s/%s", run->path, d->next);
    d->out.path = d->path = path.data;
    if (rc == TM_OK) rc = tm_io_run_unlink(run, d->next); /* of a run that died here */
    if (rc == TM_OK && (d->out.fd = io_run_create_in(run, d->next, 0)) < 0) rc = io_run_refused(d->path, errno);
    if (rc != TM_OK) {
        atomic_free(d);
        return rc;
    }
    *out = d;
    return TM_OK;
}

tm_status tm_io_atomic_append(tm_io_atomic *d, const void *bytes, size_t n) {
    return io_write_buffer_append(&d->out, bytes, n);
}

tm_status tm_io_atomic_sync(tm_io_atomic *d) {
    return io_write_buffer_sync(&d->out);
}

tm_status tm_io_atomic_publish(tm_io_atomic *d) {
    TM_ASSERT(d->out.buffered == 0 || d->out.status != TM_OK);
    int dir = d->run->fd;
    tm_status rc = d->out.status;
    if (rc == TM_OK && io_sys_table->renameat(dir, d->next, dir, d->name) != 0)
        rc = tm_fail_sys(io_status_of(errno), errno, "rename", d->path, -1, "%s: cannot be put in place", d->path);
    if (rc != TM_OK) {
        tm_io_atomic_abandon(d);
        return rc;
    }
    rc = tm_io_run_sync(d->run);
    atomic_free(d);
    return rc;
}

void tm_io_atomic_abandon(tm_io_atomic *d) {
    if (!d) return;
    (void)io_sys_table->unlinkat(d->run->fd, d->next, 0); /* nothing more can be done */
    atomic_free(d);
}
