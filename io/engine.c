/* The engine's public face: opening, the queue of requests, waiting, waking. */
#include "io/io_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A new engine is a row here, and its name in io.h. */
static const io_engine *const engines[] = {&io_engine_uring, &io_engine_threads, &io_engine_sync};

/* ---- opening ---- */

static const io_engine *engine_named(const char *name) {
    for (size_t i = 0; i < TM_COUNT(engines); i++) {
        if (strcmp(engines[i]->name, name) == 0) return engines[i];
    }
    return NULL;
}

static tm_status open_engine(tm_io *io, const char *name) {
    bool automatic = !name || strcmp(name, "auto") == 0;
    io->engine = automatic ? &io_engine_uring : engine_named(name);
    if (!io->engine) return tm_fail(TM_EINPUT, "I/O engine \"%s\": expected auto, uring, threads or sync", name);
    bool pending = tm_error_get()->code != TM_OK;
    tm_status rc = io->engine->open(io);
    if (rc == TM_OK || !automatic) return rc;
    tm_warn_once("io.auto", "io: %s; using threads that call pread and pwrite",
                 pending ? "io_uring cannot be used" : tm_error_get()->text);
    if (!pending) tm_error_clear();
    io->engine = &io_engine_threads;
    return io->engine->open(io);
}

static void free_io(tm_io *io) {
    if (io->wake_fd >= 0) close(io->wake_fd);
    tm_free(io->pieces);
    tm_free(io);
}

tm_status tm_io_open(tm_io **out, const tm_io_opts *opts) {
    *out = NULL;
    tm_io_opts o = opts ? *opts : (tm_io_opts){0};
    if (o.queue_depth > 4096 || o.threads > 256 || o.block_bytes > TM_GIB) {
        return tm_fail(TM_EINPUT,
                       "I/O engine: queue depth %u (at most 4096), %u threads (at most 256), blocks of %u bytes "
                       "(at most 1 GiB)",
                       o.queue_depth, o.threads, o.block_bytes);
    }
    if (o.order_seed && (!o.engine || strcmp(o.engine, "sync") != 0)) {
        return tm_fail(TM_EINPUT, "I/O engine: order_seed needs the engine \"sync\"");
    }
    tm_io *io = tm_calloc(1, sizeof *io);
    if (!io) return tm_nomem(sizeof *io);
    io->queue_depth = o.queue_depth ? o.queue_depth : 8;
    io->threads = o.threads ? o.threads : 2;
    io->block_bytes = (uint32_t)tm_round_up(o.block_bytes ? o.block_bytes : 4 * TM_MIB, 4096);
    io->order_seed = o.order_seed;
    io->pieces = tm_calloc(io->queue_depth, sizeof *io->pieces);
    for (unsigned i = 0; io->pieces && i < io->queue_depth; i++) {
        io->pieces[i].next = io->free_pieces;
        io->free_pieces = &io->pieces[i];
    }
    io->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tm_status rc = TM_OK;
    if (!io->pieces) rc = tm_nomem(io->queue_depth * sizeof *io->pieces);
    if (rc == TM_OK && io->wake_fd < 0) {
        rc = tm_fail_sys(TM_EIO, errno, "eventfd", "", -1, "I/O engine: no eventfd");
    }
    if (rc == TM_OK) rc = open_engine(io, o.engine);
    if (rc != TM_OK) {
        free_io(io);
        return rc;
    }
    *out = io;
    return TM_OK;
}

/* Requests that wait in the queue are dropped, what the device has is waited for: it writes into the caller's memory.
 * An engine that stopped working waits for that itself in its close. */
void tm_io_close(tm_io *io) {
    if (!io) return;
    bool pending = tm_error_get()->code != TM_OK;
    io->fifo_head = io->fifo_tail = NULL;
    while (io->started && io_progress(io, true) == TM_OK) {
    }
    if (!pending) tm_error_clear();
    io->engine->close(io);
    free_io(io);
}

const char *tm_io_engine_name(const tm_io *io) {
    return io->engine->name;
}

tm_status tm_io_register(tm_io *io, void *base, size_t bytes) {
    if (!base || !bytes) return tm_fail(TM_EBUG, "io: register of no memory");
    if (io->engine->register_memory) io->engine->register_memory(io, base, bytes);
    return TM_OK;
}

tm_status tm_io_register_files(tm_io *io, tm_io_file *files, unsigned n) {
    for (unsigned i = 0; i < n; i++) files[i].index = -1;
    if (io->engine->register_files) io->engine->register_files(io, files, n);
    return TM_OK;
}

/* ---- requests ---- */

static tm_status check_req(const tm_io_req *r) {
    const char *what = NULL;
    uint64_t end, mask = r->file.alignment > 1 ? r->file.alignment - 1 : 0;
    if (r->file.fd < 0) {
        what = "file is not open";
    } else if (r->op == TM_IO_SYNC) {
        return TM_OK;
    } else if (r->op != TM_IO_READ && r->op != TM_IO_WRITE) {
        what = "unknown operation";
    } else if (!r->buf || r->len == 0 || r->len > TM_GIB) {
        what = "length must be 1 byte to 1 GiB";
    } else if (!tm_add_u64(r->offset, r->len, &end) || end > INT64_MAX) {
        what = "offset beyond 2^63";
    } else if ((r->offset | r->len | (uintptr_t)r->buf) & mask) {
        what = "offset, length or address is not aligned";
    }
    if (!what) return TM_OK;
    return tm_fail(TM_EBUG, "io request on %s (offset %llu, length %u): %s", r->file.name ? r->file.name : "?",
                   (unsigned long long)r->offset, r->len, what);
}

static void enqueue(tm_io *io, tm_io_req *r) {
    r->status = TM_OK;
    r->sys_errno = 0;
    r->done = r->internal = 0;
    r->submit_ns = tm_now_ns();
    r->complete_ns = 0;
    r->next = NULL;
    if (io->fifo_tail) {
        io->fifo_tail->next = r;
    } else {
        io->fifo_head = r;
    }
    io->fifo_tail = r;
    io->in_flight++;
    if (io->order_seed && r->op == TM_IO_READ) memset(r->buf, 0xA5, r->len);
}

tm_status tm_io_submit(tm_io *io, tm_io_req *const *reqs, unsigned n) {
    for (unsigned i = 0; i < n; i++) TM_TRY(check_req(reqs[i]));
    for (unsigned i = 0; i < n; i++) enqueue(io, reqs[i]);
    if (io->order_seed) return TM_OK;
    io_pump(io);
    io->engine->flush(io);
    return TM_OK;
}

static unsigned take_done(tm_io *io, tm_io_req **done, unsigned max) {
    unsigned n = 0;
    for (; n < max && io->done_head; n++) {
        done[n] = io->done_head;
        io->done_head = done[n]->next;
        done[n]->next = NULL;
    }
    if (!io->done_head) io->done_tail = NULL;
    io->in_flight -= n;
    return n;
}

static uint32_t order_random(tm_io *io) {
    uint32_t r[4];
    tm_philox(io->order_seed, 0, io->order_count++, r);
    return r[0];
}

/* order_seed: takes one request out of the middle of the queue and carries it out alone. */
static tm_status run_one_at_random(tm_io *io) {
    unsigned waiting = 0;
    for (tm_io_req *r = io->fifo_head; r; r = r->next) waiting++;
    if (!waiting) return TM_OK;
    tm_io_req *before = NULL, *r = io->fifo_head;
    for (unsigned k = order_random(io) % waiting; k; k--) before = r, r = r->next;
    tm_io_req *rest = r == io->fifo_head ? r->next : io->fifo_head, *tail = io->fifo_tail == r ? before : io->fifo_tail;
    if (before) before->next = r->next;
    r->next = NULL;
    io->fifo_head = io->fifo_tail = r;
    io_pump(io);
    tm_status rc = TM_OK;
    while (io->started && rc == TM_OK) rc = io_progress(io, true);
    io->fifo_head = rest;
    io->fifo_tail = rest ? tail : NULL;
    return rc;
}

tm_status tm_io_wait(tm_io *io, tm_io_req **done, unsigned max, unsigned *n, bool block) {
    *n = 0;
    for (bool woken = false;;) {
        bool idle = !io->done_head;
        if (io->order_seed && io->fifo_head) { /* never io_progress: it would take them in order */
            if (idle && (block || order_random(io) % 2)) TM_TRY(run_one_at_random(io));
        } else {
            TM_TRY(io_progress(io, block && idle && !woken));
        }
        *n = take_done(io, done, max);
        if (*n || !block || woken) break;
        woken = atomic_exchange(&io->woken, false);
    }
    /* Whoever woke us before now sees us return. In a poll the flag stays, for the next sleep. */
    if (block) atomic_store(&io->woken, false);
    return TM_OK;
}

void tm_io_wake(tm_io *io) {
    atomic_store(&io->woken, true);
    io_rouse(io);
}

unsigned tm_io_in_flight(const tm_io *io) {
    return io->in_flight;
}

void tm_io_get_stats(const tm_io *io, tm_io_stats *out) {
    *out = io->stats;
}

tm_status tm_io_req_fail(const tm_io_req *r) {
    static const char *const names[] = {"read", "write", "sync"};
    const char *path = r->file.name ? r->file.name : "offload file";
    if (r->status == TM_OK) return TM_OK;
    if (r->op == TM_IO_SYNC) {
        return tm_fail_sys(r->status, r->sys_errno, "fdatasync", path, -1, "%s: cannot be brought to the disk", path);
    }
    if (r->op == TM_IO_READ && r->status == TM_EIO && r->sys_errno == 0) {
        return tm_fail_sys(r->status, 0, "read", path, (int64_t)r->offset,
                           "%s: ends within the %u bytes at byte %llu; the file was cut off by someone else", path,
                           r->len, (unsigned long long)r->offset);
    }
    return tm_fail_sys(r->status, r->sys_errno, names[r->op], path, (int64_t)r->offset,
                       "%s: cannot %s %u bytes at byte %llu (%u done)", path, names[r->op], r->len,
                       (unsigned long long)r->offset, r->done);
}
