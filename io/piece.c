/* Cutting requests into pieces, and what the result of an attempt means. Every result passes io_settle. */
#include "io/io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

/* ---- attempts ---- */

static const char *const fault_names[] = {"io_read", "io_write", "io_sync"};

static uint32_t alignment_of(const io_piece *p) {
    return p->req->file.alignment > 1 ? p->req->file.alignment : 1;
}

/* Applies the fault to the attempt. True: it is settled, the engine must not see it. */
static bool fault_before(io_piece *p) {
    TM_ASSERT(p->req->op < TM_COUNT(fault_names));
    p->fault = io_fault_next(fault_names[p->req->op]);
    bool sync = p->req->op == TM_IO_SYNC;
    uint32_t half = p->n / 2 / alignment_of(p) * alignment_of(p);
    switch (p->fault.kind) {
    case IO_FAULT_NONE:
    case IO_FAULT_DELAY:
        return false;
    case IO_FAULT_ERRNO:
        return p->res = -p->fault.err, true;
    case IO_FAULT_LOST:
        return p->res = (int)p->n, true;
    case IO_FAULT_ZERO:
        return p->res = 0, true;
    case IO_FAULT_SHORT:
        if (half) p->n = half; /* else the result is cut in fault_after */
        return sync;
    case IO_FAULT_MISDIRECT:
        p->offset = io_fault_beside(p->offset);
        return sync;
    case IO_FAULT_FLIP:
        if (p->req->op == TM_IO_WRITE) p->buf[p->n / 2] ^= 4; /* put back in fault_after */
        return sync;
    }
    return false;
}

static void fault_after(io_piece *p) {
    if (p->req->op == TM_IO_SYNC) return;
    if (p->fault.kind == IO_FAULT_FLIP) {
        if (p->req->op == TM_IO_WRITE || p->res > (int)p->n / 2) p->buf[p->n / 2] ^= 4;
    } else if (p->fault.kind == IO_FAULT_SHORT && p->res > 1 && p->n == p->len - p->moved) {
        p->res /= 2;
    }
}

static void start_attempt(tm_io *io, io_piece *p) {
    TM_ASSERT(p->moved < p->len || p->req->op == TM_IO_SYNC);
    p->buf = (char *)p->req->buf + p->at + p->moved;
    p->offset = p->req->offset + p->at + p->moved;
    p->n = p->len - p->moved;
    p->res = 0;
    if (fault_before(p)) {
        io_queue_push(&io->preset, p);
    } else {
        io->top->engine->start(io->top, p);
    }
}

void io_execute(io_piece *p) {
    TM_ASSERT(p->n <= p->len && p->req->file.fd >= 0);
    const tm_io_req *r = p->req;
    ssize_t res;
    if (r->op == TM_IO_READ) {
        res = io_sys_table->pread(r->file.fd, p->buf, p->n, (off_t)p->offset);
    } else if (r->op == TM_IO_WRITE) {
        res = io_sys_table->pwrite(r->file.fd, p->buf, p->n, (off_t)p->offset);
    } else {
        res = io_sys_table->fdatasync(r->file.fd);
    }
    p->res = res < 0 ? -errno : (int)res;
}

/* ---- the page cache, where O_DIRECT is not in use ---- */

static void write_back(tm_io *io, int fd, uint64_t offset, uint32_t n, unsigned flags) {
    TM_ASSERT(fd >= 0 && n > 0);
    int err = io_write_back(fd, offset, n, flags);
    if (err && !io->lag.lost_errno) io->lag.lost_errno = err;
}

/* Clean pages are dropped at once, written ones IO_LAG attempts later, when the disk has had time to take them. */
static void drop_pages(tm_io *io, const io_piece *p) {
    TM_ASSERT(p->n > 0 && p->req->op != TM_IO_SYNC);
    int fd = p->req->file.fd;
    if (p->req->op == TM_IO_READ) {
        (void)posix_fadvise(fd, (off_t)p->offset, p->n, POSIX_FADV_DONTNEED); /* advice */
        return;
    }
    unsigned slot = io->lag.at++ % IO_LAG;
    if (io->lag.slot[slot].n) {
        write_back(io, io->lag.slot[slot].fd, io->lag.slot[slot].offset, io->lag.slot[slot].n,
                   SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        (void)posix_fadvise(io->lag.slot[slot].fd, (off_t)io->lag.slot[slot].offset, io->lag.slot[slot].n,
                            POSIX_FADV_DONTNEED);
    }
    write_back(io, fd, p->offset, p->n, SYNC_FILE_RANGE_WRITE);
    io->lag.slot[slot].fd = fd;
    io->lag.slot[slot].offset = p->offset;
    io->lag.slot[slot].n = p->n;
}

/* ---- settling ---- */

io_lane *io_lane_of(tm_io *io, const tm_io_req *r) {
    TM_ASSERT(r->file.lane < io->n_lanes);
    return &io->lane[r->file.lane];
}

static void lane_pop(io_lane *l) {
    TM_ASSERT(l->head && l->tail);
    tm_io_req *r = l->head;
    l->head = r->next;
    if (!l->head) l->tail = NULL;
    r->next = NULL;
    l->head_cut = 0;
}

static void finish_request(tm_io *io, tm_io_req *r) {
    TM_ASSERT(r->internal == 0 && r->done <= r->len);
    r->complete_ns = tm_now_ns();
    r->next = NULL;
    if (io->done_tail) {
        io->done_tail->next = r;
    } else {
        io->done_head = r;
    }
    io->done_tail = r;
    tm_io_stats *s = &io_lane_of(io, r)->stats;
    s->reads += r->op == TM_IO_READ;
    s->writes += r->op == TM_IO_WRITE;
    s->syncs += r->op == TM_IO_SYNC;
    s->read_bytes += r->op == TM_IO_READ ? r->done : 0;
    s->write_bytes += r->op == TM_IO_WRITE ? r->done : 0;
}

/* The piece is over. Its request is over once no other piece of it is out and none is still to be cut; after a failure
 * none will be. */
static void end_piece(tm_io *io, io_piece *p, tm_status status, int err) {
    TM_ASSERT(p->moved <= p->len && p->req->internal > 0 && io->started > 0);
    tm_io_req *r = p->req;
    io_lane *lane = io_lane_of(io, r);
    r->done += p->moved;
    if (lane->full_since) {
        lane->full_bytes[r->op != TM_IO_READ] += p->moved;
        lane->full_pieces++;
    }
    r->internal--;
    if (status != TM_OK && r->status == TM_OK) {
        r->status = status;
        r->sys_errno = err;
    }
    p->next = io->free_pieces;
    io->free_pieces = p;
    io->started--;
    lane->started--;
    if (r->status != TM_OK && lane->head == r) lane_pop(lane);
    if (r->internal == 0 && lane->head != r) finish_request(io, r);
}

/* Nothing was moved. Not for ever: a device that never gets on must not hang the run. */
static void try_again(tm_io *io, io_piece *p, int err) {
    TM_ASSERT(p->idle < IO_RETRIES);
    if (++p->idle == IO_RETRIES) {
        end_piece(io, p, TM_EIO, err);
        return;
    }
    if (err == EAGAIN && p->idle > 10) nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    io_lane_of(io, p->req)->stats.resubmitted++;
    start_attempt(io, p);
}

static void settle_short(tm_io *io, io_piece *p, uint32_t got) {
    TM_ASSERT(got < p->len - p->moved);
    uint32_t rest = got % alignment_of(p); /* O_DIRECT goes on at the boundary below */
    if (got == rest) {
        try_again(io, p, EIO);
        return;
    }
    p->moved += got - rest;
    p->idle = 0;
    io_lane_of(io, p->req)->stats.resubmitted++;
    start_attempt(io, p);
}

void io_settle(tm_io *io, io_piece *p) {
    TM_ASSERT(p >= io->pieces && p < io->pieces + io->n_pieces);
    fault_after(p);
    int res = p->res;
    uint32_t want = p->len - p->moved;
    if (res == -EINTR || res == -EAGAIN) {
        try_again(io, p, -res);
    } else if (res < 0) {
        end_piece(io, p, io_status_of(-res), -res);
    } else if (p->req->op == TM_IO_SYNC) {
        int err = io->lag.lost_errno;
        end_piece(io, p, err ? io_status_of(err) : TM_OK, err);
    } else if ((uint32_t)res > want) {
        end_piece(io, p, TM_EBUG, 0);
    } else if (res == 0 && p->req->op == TM_IO_READ) {
        end_piece(io, p, TM_EIO, 0); /* end of file */
    } else if (res == 0) {
        try_again(io, p, EIO);
    } else {
        if (alignment_of(p) == 1) drop_pages(io, p);
        if ((uint32_t)res < want) {
            settle_short(io, p, (uint32_t)res);
        } else {
            p->moved = p->len;
            end_piece(io, p, TM_OK, 0);
        }
    }
}

/* ---- moving on ---- */

enum { SMALL = 64 << 10 };

/* Small pieces are handed over at once: a disk that is given them in batches stands idle meanwhile (4 KiB at depth 32:
 * 190 instead of 160 MB/s, for 15% more processor time). With large ones it makes no difference. */
static void cut_piece(tm_io *io, io_lane *lane) {
    tm_io_req *r = lane->head;
    uint64_t len = r->op == TM_IO_SYNC ? 0 : r->len, at = lane->head_cut;
    TM_ASSERT(at <= len && lane->started < io->queue_depth && io->free_pieces);
    io_piece *p = io->free_pieces;
    io->free_pieces = p->next;
    *p = (io_piece){.req = r, .at = at, .len = (uint32_t)tm_min_u64(len - at, io->block_bytes)};
    io->started++;
    lane->started++;
    r->internal++;
    lane->head_cut += p->len;
    if (lane->head_cut == len) lane_pop(lane);
    bool small = p->len < SMALL;
    start_attempt(io, p);
    if (io->single_submit || (small && !io->submit_at_wait)) io->top->engine->flush(io->top);
}

/* No disk holds its tongue for so long (ns): the process was stopped, or the machine slept. */
#define IO_PAUSE 2000000000u

static void begin_full(io_lane *l, uint64_t since) {
    l->full_since = since;
    l->full_bytes[0] = l->full_bytes[1] = l->full_pieces = 0;
}

/* After all that could start has. The pieces that are out when the last one has started do not count: of a short burst
 * that is most, and it would say that the disk is slow. Nor does a time with a pause in it. */
static void note_full(const tm_io *io, io_lane *l) {
    TM_ASSERT(!l->head == !l->tail);
    if (!l->head && !l->full_since) return;
    uint64_t now = tm_now_ns();
    bool paused = l->full_since && now - l->full_seen > IO_PAUSE;
    l->full_seen = now;
    if (paused || !l->full_since) begin_full(l, l->head ? now : 0);
    if (l->head) return;
    if (!paused && l->full_pieces >= 2 * io->queue_depth) {
        l->stats.full_ns += now - l->full_since;
        l->stats.full_read_bytes += l->full_bytes[0];
        l->stats.full_write_bytes += l->full_bytes[1];
    }
    begin_full(l, 0);
}

/* One piece of each lane in turn, so that none is always the last. */
void io_pump(tm_io *io) {
    if (io->no_overlap && io->started) return;
    for (unsigned idle = 0; idle < io->n_lanes;) {
        io_lane *lane = &io->lane[io->next_lane];
        io->next_lane = (io->next_lane + 1) % io->n_lanes;
        idle++;
        if (!lane->head || lane->started == io->queue_depth) continue;
        cut_piece(io, lane);
        idle = 0;
    }
    for (unsigned i = 0; i < io->n_lanes; i++) note_full(io, &io->lane[i]);
}

tm_status io_progress(tm_io *io, bool block) {
    io_queue settled = io->preset;
    io->preset = (io_queue){NULL, NULL};
    tm_status rc = io->top->engine->reap(io->top, block && !settled.head, &settled);
    for (io_piece *p; (p = io_queue_pop(&settled));) io_settle(io, p);
    io_pump(io);
    io->top->engine->flush(io->top);
    return rc;
}

static bool wait_for_wake(tm_io *io, int milliseconds) {
    struct pollfd fd = {.fd = io->wake_fd, .events = POLLIN};
    uint64_t count;
    if (poll(&fd, 1, milliseconds) <= 0) return false;
    (void)!read(io->wake_fd, &count, sizeof count); /* EFD_NONBLOCK; EAGAIN if another drained it */
    return true;
}

void io_sleep(tm_io *io) {
    while (!wait_for_wake(io, -1)) { /* a signal */
    }
}

/* Whole milliseconds by poll, the rest by sleeping through it: a wake is at most that much late. */
bool io_sleep_until(tm_io *io, uint64_t deadline) {
    for (uint64_t now; (now = tm_now_ns()) < deadline;) {
        uint64_t left = tm_min_u64(deadline - now, 1000 * 1000 * 1000);
        if (wait_for_wake(io, (int)(left / (1000 * 1000)))) return true;
        if (left < 1000 * 1000) nanosleep(&(struct timespec){.tv_nsec = (long)left}, NULL);
    }
    return false;
}

void io_rouse(tm_io *io) {
    (void)!write(io->wake_fd, &(uint64_t){1}, 8); /* fails only if it is readable anyway */
}
