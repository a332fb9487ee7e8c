/* The io_uring engine.
 *
 *   start -> started -- flush: entry filled --> handed -- kernel takes it --> (in_kernel) -- completion --> settled
 *
 * The ring is made disabled and enabled by the first thread that drives it, since SINGLE_ISSUER binds it to that one.
 * If another takes over, an idle ring is made anew. Sleeping is one io_uring_enter: a poll on the wake-up descriptor is
 * always in the ring then, so that a wake is a completion like any other. */
#include "io/io_internal.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_REGIONS = 64,
    BUFFER_SLOTS = 1024, /* of at most 1 GiB each */
    FILE_SLOTS = 256
};

typedef struct region {
    char *base;
    size_t bytes;
    unsigned slot; /* of its first GiB */
} region;

typedef struct uring_ctx {
    struct io_uring ring;
    bool ring_open, enabled, single_issuer;
    pid_t driver;
    bool has_buffers, has_files; /* the kernel made the tables */
    region regions[MAX_REGIONS];
    unsigned n_regions, n_slots;
    int files[FILE_SLOTS];
    unsigned n_files;
    io_queue started; /* no entry yet */
    io_queue handed;  /* entry filled, not yet taken by the kernel */
    unsigned in_kernel;
    bool poll_armed;
    io_piece poll; /* stands for the poll in `handed` and as user data */
    int broken;    /* errno of an enter that cannot be repeated; 0 */
    const char *why;
} uring_ctx;

static pid_t this_thread(void) {
    static _Thread_local pid_t tid;
    if (!tid) tid = (pid_t)syscall(SYS_gettid);
    return tid;
}

/* ---- the ring ---- */

static int make_ring(const tm_io *io, uring_ctx *c) {
    TM_ASSERT(!c->ring_open && c->in_kernel == 0);
    static const unsigned wanted[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                      0}; /* 6.1 and later; any */
    int rc = -EINVAL;
    for (size_t i = 0; i < TM_COUNT(wanted) && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = wanted[i] | IORING_SETUP_R_DISABLED | IORING_SETUP_CLAMP};
        int err = io_fault_errno("uring_setup");
        rc = err ? -err : io_uring_queue_init_params(io->n_pieces + 2, &c->ring, &params);
        c->single_issuer = wanted[i] != 0;
    }
    if (rc < 0) return -rc;
    c->ring_open = true;
    c->enabled = c->poll_armed = false;
    c->has_buffers = io_uring_register_buffers_sparse(&c->ring, BUFFER_SLOTS) == 0;
    c->has_files = io_uring_register_files_sparse(&c->ring, FILE_SLOTS) == 0;
    return 0;
}

/* The pages of registered memory are let go at once rather than when the kernel gets round to the dead ring. */
static void drop_ring(uring_ctx *c) {
    if (!c->ring_open) return;
    if (c->has_buffers && c->n_slots) (void)io_uring_unregister_buffers(&c->ring);
    io_uring_queue_exit(&c->ring);
    c->ring_open = c->enabled = c->has_buffers = c->has_files = false;
}

static tm_status uring_open(io_layer *l) {
    const tm_io *io = l->io;
    uring_ctx *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    int err = make_ring(io, c);
    if (err) {
        tm_free(c);
        bool forbidden = err == EPERM || err == ENOSYS || err == EACCES;
        return tm_fail_sys(forbidden ? TM_EUNSUPPORTED : TM_EIO, err, "io_uring_setup", "", -1,
                           "io_uring is not available here%s",
                           forbidden ? " (too old a kernel, or a container's rules)" : "");
    }
    l->ctx = c;
    return TM_OK;
}

/* ---- registering ---- */

/* 0 or an errno. */
static int put_slot(uring_ctx *c, unsigned slot, void *base, size_t bytes) {
    TM_ASSERT(slot < BUFFER_SLOTS && bytes <= TM_GIB);
    struct iovec v = {.iov_base = base, .iov_len = bytes};
    int rc = io_uring_register_buffers_update_tag(&c->ring, slot, &v, NULL, 1);
    return rc == 1 ? 0 : rc < 0 ? -rc : EIO;
}

/* 0 or an errno, and nothing of it is pinned. Memory goes in by slots of 1 GiB, the most that the kernel takes as one
 * buffer. */
static int put_region(uring_ctx *c, const region *r) {
    unsigned n = 0;
    TM_ASSERT(c->has_buffers && r->bytes > 0);
    for (size_t at = 0; at < r->bytes; at += TM_GIB, n++) {
        int err = io_fault_errno("register_buffers");
        if (!err) err = put_slot(c, r->slot + n, r->base + at, tm_min_u64(r->bytes - at, TM_GIB));
        if (!err) continue;
        while (n > 0) (void)put_slot(c, r->slot + --n, NULL, 0);
        return err;
    }
    return 0;
}

static void warn_unregistered(size_t bytes, int err) {
    char size[32];
    tm_warn_once(
        "io.memlock",
        "io: the kernel does not pin %s of buffers (%s): transfers cost more CPU time; raise `ulimit -l` to avoid it",
        tm_format_size(bytes, size, sizeof size), strerror(err));
}

static void uring_register_memory(io_layer *l, void *base, size_t bytes) {
    uring_ctx *c = l->ctx;
    unsigned slots = (unsigned)(tm_round_up(bytes, TM_GIB) / TM_GIB);
    region r = {.base = base, .bytes = bytes, .slot = c->n_slots};
    int err = ENOTSUP;
    if (c->n_regions == MAX_REGIONS || slots > BUFFER_SLOTS - c->n_slots)
        err = ENOBUFS;
    else if (c->has_buffers)
        err = put_region(c, &r);
    if (err) {
        warn_unregistered(bytes, err);
        return;
    }
    c->regions[c->n_regions++] = r;
    c->n_slots += slots;
    TM_ASSERT(c->n_regions <= MAX_REGIONS && c->n_slots <= BUFFER_SLOTS);
}

static void uring_register_files(io_layer *l, tm_io_file *files, unsigned n) {
    uring_ctx *c = l->ctx;
    TM_ASSERT(c->n_files <= FILE_SLOTS);
    for (unsigned i = 0; i < n && c->has_files && c->n_files < FILE_SLOTS; i++) {
        int err = io_fault_errno("register_files");
        if (err || io_uring_register_files_update(&c->ring, c->n_files, &files[i].fd, 1) != 1)
            return; /* an optimization */
        c->files[c->n_files] = files[i].fd;
        files[i].index = (int)c->n_files++;
    }
}

static int buffer_slot(const uring_ctx *c, const char *buf, uint32_t n) {
    for (unsigned i = 0; i < c->n_regions; i++) {
        const region *r = &c->regions[i];
        if (buf < r->base || (size_t)(buf - r->base) >= r->bytes) continue;
        size_t at = (size_t)(buf - r->base);
        bool inside = n <= r->bytes - at && at / TM_GIB == (at + n - 1) / TM_GIB;
        return inside ? (int)(r->slot + at / TM_GIB) : -1;
    }
    return -1;
}

/* ---- one thread's ring ---- */

static void put_all_again(uring_ctx *c) {
    for (unsigned i = 0; i < c->n_regions; i++) {
        int err = c->has_buffers ? put_region(c, &c->regions[i]) : ENOTSUP;
        if (!err) continue;
        warn_unregistered(c->regions[i].bytes, err);
        c->n_regions = i; /* the rest goes on unregistered */
    }
    if (!c->has_files || (c->n_files && io_uring_register_files_update(&c->ring, 0, c->files, c->n_files) < 0)) {
        c->n_files = 0;
    }
}

/* Entries that were filled but not taken are filled again. */
static int remake_ring(tm_io *io, uring_ctx *c) {
    if (c->in_kernel) return c->why = "another thread took over while transfers were in flight", EBUSY;
    drop_ring(c);
    io_queue again = {NULL, NULL};
    for (io_piece *p; (p = io_queue_pop(&c->handed));) {
        if (p != &c->poll) io_queue_push(&again, p);
    }
    io_queue_move(&again, &c->started);
    c->started = again;
    int err = make_ring(io, c);
    if (err) return c->why = "it cannot be made again for another thread", err;
    put_all_again(c);
    return 0;
}

/* Only the ring's own thread may take buffers out of it; for another it is made anew. */
static void uring_unregister_memory(io_layer *l) {
    uring_ctx *c = l->ctx;
    if (c->n_slots == 0) return;
    c->n_regions = 0;
    if (io_uring_unregister_buffers(&c->ring) == 0)
        c->has_buffers = io_uring_register_buffers_sparse(&c->ring, BUFFER_SLOTS) == 0;
    else
        (void)remake_ring(l->io, c); /* a ring that is not there is made by the next own_ring, which says what fails */
    c->n_slots = 0;
}

static int own_ring(tm_io *io, uring_ctx *c) {
    if (c->enabled && (c->driver == this_thread() || !c->single_issuer)) return 0;
    int err = c->enabled || !c->ring_open ? remake_ring(io, c) : 0;
    if (err) return err;
    c->driver = this_thread();
    /* Not io_uring_enable_rings: liburing 2.3 declares it and does not export it. */
    if (syscall(__NR_io_uring_register, c->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0) {
        return c->why = "it cannot be enabled", errno;
    }
    c->enabled = true;
    return 0;
}

static void fill_entry(uring_ctx *c, struct io_uring_sqe *sqe, io_piece *p) {
    TM_ASSERT(p->n <= p->len && p->req->op <= TM_IO_SYNC);
    const tm_io_req *r = p->req;
    bool fixed_file =
        r->file.index >= 0 && (unsigned)r->file.index < c->n_files && c->files[r->file.index] == r->file.fd;
    int fd = fixed_file ? r->file.index : r->file.fd;
    int slot = r->op == TM_IO_SYNC ? -1 : buffer_slot(c, p->buf, p->n);
    if (r->op == TM_IO_SYNC) {
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    } else if (r->op == TM_IO_READ && slot >= 0) {
        io_uring_prep_read_fixed(sqe, fd, p->buf, p->n, p->offset, slot);
    } else if (r->op == TM_IO_READ) {
        io_uring_prep_read(sqe, fd, p->buf, p->n, p->offset);
    } else if (slot >= 0) {
        io_uring_prep_write_fixed(sqe, fd, p->buf, p->n, p->offset, slot);
    } else {
        io_uring_prep_write(sqe, fd, p->buf, p->n, p->offset);
    }
    if (fixed_file) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, p);
}

static void fill_entries(tm_io *io, uring_ctx *c, bool with_poll) {
    struct io_uring_sqe *sqe;
    while (c->started.head && (sqe = io_uring_get_sqe(&c->ring))) {
        io_piece *p = io_queue_pop(&c->started);
        fill_entry(c, sqe, p);
        io_queue_push(&c->handed, p);
    }
    if (with_poll && !c->poll_armed && (sqe = io_uring_get_sqe(&c->ring))) {
        io_uring_prep_poll_add(sqe, io->wake_fd, POLLIN);
        io_uring_sqe_set_data(sqe, &c->poll);
        io_queue_push(&c->handed, &c->poll);
        c->poll_armed = true;
    }
}

/* One io_uring_enter. 0, or the errno. The kernel says how many entries it took, in order. */
static int enter_kernel(uring_ctx *c, bool block) {
    TM_ASSERT(c->ring_open && c->enabled);
    int err = io_fault_errno("uring_enter");
    int rc = err ? -err : block ? io_uring_submit_and_wait(&c->ring, 1) : io_uring_submit_and_get_events(&c->ring);
    for (int taken = 0; taken < rc && c->handed.head; taken++) {
        if (io_queue_pop(&c->handed) != &c->poll) c->in_kernel++;
    }
    return rc < 0 ? -rc : 0;
}

/* ---- the engine ---- */

static void uring_start(io_layer *l, io_piece *p) {
    uring_ctx *c = l->ctx;
    TM_ASSERT(p != &c->poll && p->req);
    io_queue_push(&c->started, p);
}

/* Of one wait. A profiler interrupts a thousand times a second, and a disk may be silent for minutes. */
enum { MOST_INTERRUPTIONS = 1 << 20 };

/* A full kernel (EAGAIN, EBUSY) and interruptions leave entries where they are, for the next enter. */
static bool passes(int err) {
    return err == 0 || err == EINTR || err == EAGAIN || err == EBUSY;
}

static void uring_flush(io_layer *l) {
    uring_ctx *c = l->ctx;
    if ((!c->started.head && !c->handed.head) || c->broken) return;
    c->broken = own_ring(l->io, c);
    if (c->broken) return;
    fill_entries(l->io, c, false);
    int err = enter_kernel(c, false);
    if (!passes(err)) c->broken = err;
}

static unsigned take_completions(tm_io *io, uring_ctx *c, io_queue *settled) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    io_uring_for_each_cqe(&c->ring, head, cqe) {
        io_piece *p = io_uring_cqe_get_data(cqe);
        seen++;
        if (p == &c->poll) {
            uint64_t count;
            c->poll_armed = false;
            (void)!read(io->wake_fd, &count, sizeof count);
        } else {
            TM_ASSERT(c->in_kernel > 0);
            p->res = cqe->res;
            c->in_kernel--;
            io_queue_push(settled, p);
        }
    }
    io_uring_cq_advance(&c->ring, seen);
    return seen;
}

static tm_status uring_reap(io_layer *l, bool block, io_queue *settled) {
    uring_ctx *c = l->ctx;
    tm_io *io = l->io;
    if (!block && !c->in_kernel && !c->started.head && !c->handed.head && !c->broken) return TM_OK;
    for (unsigned tries = 0, interrupted = 0; !c->broken;) {
        c->broken = own_ring(io, c);
        if (c->broken || take_completions(io, c, settled)) break;
        fill_entries(io, c, block);
        int err = enter_kernel(c, block);
        if (!passes(err)) c->broken = err;
        if (take_completions(io, c, settled) || !block) break;
        if (err == EAGAIN || err == EBUSY) {
            if (++tries == IO_RETRIES) c->broken = err;
            nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        }
        if (err == EINTR && ++interrupted == MOST_INTERRUPTIONS) c->broken = err;
    }
    if (!c->broken) return TM_OK;
    return tm_fail_sys(TM_EIO, c->broken, "io_uring_enter", "", -1,
                       "io: the ring stopped working with %u transfers in flight (%s); try the engine \"threads\"",
                       c->in_kernel, c->why ? c->why : "io_uring_enter failed");
}

/* Also where the ring counts as broken: what the kernel still has writes into the caller's memory. What it has not
 * taken stays where it is: handed over now it would be counted on its way back only. */
static void uring_close(io_layer *l) {
    uring_ctx *c = l->ctx;
    struct io_uring_cqe *any;
    io_queue unwanted = {NULL, NULL};
    for (unsigned idle = 0; c->in_kernel && idle < IO_RETRIES; idle++) {
        if (take_completions(l->io, c, &unwanted))
            idle = 0;
        else if (io_uring_wait_cqe(&c->ring, &any) < 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    if (c->in_kernel) tm_log(TM_LOG_ERROR, "io: closed while %u transfers cannot be waited for", c->in_kernel);
    drop_ring(c);
    tm_free(c);
}

const io_engine io_engine_uring = {.name = "uring",
                                   .open = uring_open,
                                   .close = uring_close,
                                   .register_memory = uring_register_memory,
                                   .unregister_memory = uring_unregister_memory,
                                   .register_files = uring_register_files,
                                   .start = uring_start,
                                   .flush = uring_flush,
                                   .reap = uring_reap};
