/* A small file of a run directory, written beside the one it replaces. */
#include "io/run/run_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 64 * 1024, NAME_MAX_BYTES = 80 };

struct tm_io_draft {
    tm_io_run *run;
    char name[NAME_MAX_BYTES], next[NAME_MAX_BYTES + 8];
    char *path; /* of NAME.next, for messages */
    io_spool spool;
    char buffer[BUFFER_BYTES];
};

static void draft_free(tm_io_draft *d) {
    if (d->spool.fd >= 0) close(d->spool.fd);
    tm_free(d->path);
    tm_free(d);
}

tm_status tm_io_draft_create(tm_io_draft **out, tm_io_run *run, const char *name) {
    TM_ASSERT(run->fd >= 0 && strlen(name) < NAME_MAX_BYTES);
    *out = NULL;
    tm_io_draft *d = tm_malloc(sizeof *d);
    if (!d) return tm_nomem(sizeof *d);
    d->run = run;
    d->spool = (io_spool){.fd = -1, .buffer = d->buffer, .cap = BUFFER_BYTES};
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->next, sizeof d->next, "%s.next", d->name);
    tm_buf path = {0};
    tm_status rc = tm_buf_printf(&path, "%s/%s", run->path, d->next);
    d->spool.path = d->path = path.data;
    if (rc == TM_OK) rc = tm_io_run_unlink(run, d->next); /* of a run that died here */
    if (rc == TM_OK && (d->spool.fd = io_run_create_in(run, d->next, 0)) < 0) rc = io_run_refused(d->path, errno);
    if (rc != TM_OK) {
        draft_free(d);
        return rc;
    }
    *out = d;
    return TM_OK;
}

tm_status tm_io_draft_append(tm_io_draft *d, const void *bytes, size_t n) {
    return io_spool_append(&d->spool, bytes, n);
}

tm_status tm_io_draft_sync(tm_io_draft *d) {
    return io_spool_sync(&d->spool);
}

tm_status tm_io_draft_publish(tm_io_draft *d) {
    TM_ASSERT(d->spool.buffered == 0 || d->spool.status != TM_OK);
    int dir = d->run->fd;
    tm_status rc = d->spool.status;
    if (rc == TM_OK && io_sys_table->renameat(dir, d->next, dir, d->name) != 0)
        rc = tm_fail_sys(io_status_of(errno), errno, "rename", d->path, -1, "%s: cannot be put in place", d->path);
    if (rc != TM_OK) {
        tm_io_draft_abandon(d);
        return rc;
    }
    rc = tm_io_run_sync(d->run);
    draft_free(d);
    return rc;
}

void tm_io_draft_abandon(tm_io_draft *d) {
    if (!d) return;
    (void)io_sys_table->unlinkat(d->run->fd, d->next, 0); /* nothing more can be done */
    draft_free(d);
}
