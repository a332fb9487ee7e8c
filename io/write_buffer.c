/* What is appended to a file piece by piece, gathered in a buffer. */
#include "io/io_internal.h"

#include <errno.h>
#include <string.h>

tm_status io_write_buffer_flush(io_write_buffer *s) {
    TM_ASSERT(s->buffered <= s->cap);
    if (s->status == TM_OK && s->buffered) s->status = io_write_all(s->fd, s->buffer, s->buffered, s->at, s->path);
    if (s->status == TM_OK) s->at += s->buffered;
    s->buffered = 0;
    return s->status;
}

tm_status io_write_buffer_append(io_write_buffer *s, const void *bytes, size_t n) {
    const char *p = bytes;
    TM_ASSERT(s->cap > 0 && s->buffered < s->cap);
    while (n > 0 && s->status == TM_OK) {
        size_t take = tm_min_u64(n, s->cap - s->buffered);
        memcpy(s->buffer + s->buffered, p, take);
        s->buffered += take;
        p += take;
        n -= take;
        if (s->buffered == s->cap) (void)io_write_buffer_flush(s);
    }
    return s->status;
}

/* fsync is not tried again: after an error the kernel may have dropped the pages. */
tm_status io_write_buffer_sync(io_write_buffer *s) {
    TM_TRY(io_write_buffer_flush(s));
    if (io_sys_table->fsync(s->fd) != 0)
        s->status =
            tm_fail_sys(io_status_of(errno), errno, "fsync", s->path, -1, "%s: cannot be brought to the disk", s->path);
    return s->status;
}
