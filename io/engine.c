/* The engine's public face: opening, the queue of requests, waiting, waking. */
#include "io/io_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* ---- opening ---- */

static void close_layers(tm_io *io) {
    for (io_layer *l = io->top; l; l = l->lower) l->engine->close(l);
}

/* From the bottom up; what was opened is closed where one fails. */
static tm_status open_layers(tm_io *io) {
    TM_ASSERT(io->bottom && io->top == io->layer);
    for (io_layer *l = io->bottom;; l--) {
        tm_status rc = l->engine->open(l);
        if (rc != TM_OK) {
            for (io_layer *below = l->lower; below; below = below->lower) below->engine->close(below);
            return rc;
        }
        if (l == io->top) return TM_OK;
    }
}

static tm_status open_engine(tm_io *io, const char *spec) {
    bool automatic = !spec || strcmp(spec, "auto") == 0;
    TM_TRY(io_stack_parse(io, automatic ? "uring" : spec));
    bool pending = tm_error_get()->code != TM_OK;
    tm_status rc = open_layers(io);
    if (rc == TM_OK || !automatic) return rc;
    tm_warn_once("io.auto", "io: %s; using threads that call pread and pwrite",
                 pending ? "io_uring cannot be used" : tm_error_get()->text);
    if (!pending) tm_error_clear();
    TM_TRY(io_stack_parse(io, "threads"));
    return open_layers(io);
}

static void free_io(tm_io *io) {
    if (io->wake_fd >= 0) close(io->wake_fd);
    tm_free(io->pieces);
    tm_free(io->options);
    tm_free(io);
}

static tm_status check_opts(const tm_io_opts *o) {
    unsigned lanes = o->lanes ? o->lanes : 1, depth = o->queue_depth ? o->queue_depth : 8;
    if (lanes > IO_LANES || depth > 4096 / lanes || o->threads > 256 || o->block_bytes > TM_GIB) {
        return tm_fail(TM_EINPUT,
                       "I/O engine: queue depth %u (at most 4096, all lanes together), %u lanes (at most %d), "
                       "%u threads (at most 256), blocks of %u bytes (at most 1 GiB)",
                       depth, lanes, IO_LANES, o->threads, o->block_bytes);
    }
    if (o->order_seed && (!o->engine || strcmp(o->engine, "sync") != 0 || lanes > 1))
        return tm_fail(TM_EINPUT, "I/O engine: order_seed needs the engine \"sync\" and one lane");
    return TM_OK;
}

static void take_opts(tm_io *io, const tm_io_opts *o) {
    io->queue_depth = o->queue_depth ? o->queue_depth : 8;
    io->threads = o->threads ? o->threads : 2;
    io->n_lanes = o->lanes ? o->lanes : 1;
    io->block_bytes = (uint32_t)tm_round_up(o->block_bytes ? o->block_bytes : 4 * TM_MIB, 4096);
    io->single_submit = o->single_submit;
    io->no_overlap = o->no_overlap_events;
    io->submit_at_wait = o->submit_at_wait;
    io->count_cpu = o->count_cpu;
    io->order_seed = o->order_seed;
    TM_ASSERT(io->queue_depth * io->n_lanes <= 4096 && io->block_bytes % 4096 == 0);
}

static tm_status make_pieces(tm_io *io) {
    TM_ASSERT(!io->pieces && !io->free_pieces);
    io->n_pieces = io->queue_depth * io->n_lanes;
    io->pieces = tm_calloc(io->n_pieces, sizeof *io->pieces);
    if (!io->pieces) return tm_nomem(io->n_pieces * sizeof *io->pieces);
    for (unsigned i = 0; i < io->n_pieces; i++) {
        io->pieces[i].next = io->free_pieces;
        io->free_pieces = &io->pieces[i];
    }
    return TM_OK;
}

static tm_status make_wake_fd(tm_io *io) {
    io->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (io->wake_fd >= 0) return TM_OK;
    return tm_fail_sys(TM_EIO, errno, "eventfd", "", -1, "I/O engine: no eventfd");
}

tm_status tm_io_open(tm_io **out, const tm_io_opts *opts) {
    *out = NULL;
    tm_io_opts o = opts ? *opts : (tm_io_opts){0};
    TM_TRY(check_opts(&o));
    tm_io *io = tm_calloc(1, sizeof *io);
    if (!io) return tm_nomem(sizeof *io);
    take_opts(io, &o);
    io->wake_fd = -1;
    tm_status rc = make_pieces(io);
    if (rc == TM_OK) rc = make_wake_fd(io);
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
    for (unsigned i = 0; i < io->n_lanes; i++) io->lane[i].head = io->lane[i].tail = NULL;
    while (io->started && io_progress(io, true) == TM_OK) {
    }
    if (!pending) tm_error_clear();
    close_layers(io);
    free_io(io);
}

const char *tm_io_engine_name(const tm_io *io) {
    return io->name;
}

tm_status tm_io_register(tm_io *io, void *base, size_t bytes) {
    if (!base || !bytes) return tm_fail(TM_EBUG, "io: register of no memory");
    if (io->bottom->engine->register_memory) io->bottom->engine->register_memory(io->bottom, base, bytes);
    return TM_OK;
}

void tm_io_unregister(tm_io *io) {
    if (io->bottom->engine->unregister_memory) io->bottom->engine->unregister_memory(io->bottom);
}

tm_status tm_io_register_files(tm_io *io, tm_io_file *files, unsigned n) {
    TM_ASSERT(files || n == 0);
    for (unsigned i = 0; i < n; i++) files[i].index = -1;
    if (io->bottom->engine->register_files) io->bottom->engine->register_files(io->bottom, files, n);
    return TM_OK;
}

/* ---- requests ---- */

static tm_status check_req(const tm_io *io, const tm_io_req *r) {
    const char *what = NULL;
    uint64_t end, mask = r->file.alignment > 1 ? r->file.alignment - 1 : 0;
    if (r->file.fd < 0) {
        what = "file is not open";
    } else if (r->file.lane >= io->n_lanes) {
        what = "the engine has no such lane";
    } else if (r->op == TM_IO_SYNC) {
        return TM_OK;
    } else if (r->op != TM_IO_READ && r->op != TM_IO_WRITE) {
        what = "unknown operation";
    } else if (!r->buf || r->len == 0) {
        what = "length is 0";
    } else if (!tm_add_u64(r->offset, r->len, &end) || end > INT64_MAX) {
        what = "offset beyond 2^63";
    } else if ((r->offset | r->len | (uintptr_t)r->buf) & mask) {
        what = "offset, length or address is not aligned";
    }
    if (!what) return TM_OK;
    return tm_fail(TM_EBUG, "io request on %s (offset %llu, length %llu): %s", r->file.name ? r->file.name : "?",
                   (unsigned long long)r->offset, (unsigned long long)r->len, what);
}

static void enqueue_request(tm_io *io, tm_io_req *r) {
    TM_ASSERT(r->file.lane < io->n_lanes);
    r->status = TM_OK;
    r->sys_errno = 0;
    r->done = r->internal = 0;
    r->submit_ns = tm_now_ns();
    r->complete_ns = 0;
    r->next = NULL;
    io_lane *lane = io_lane_of(io, r);
    if (lane->tail) {
        lane->tail->next = r;
    } else {
        lane->head = r;
    }
    lane->tail = r;
    io->in_flight++;
    if (io->order_seed && r->op == TM_IO_READ) memset(r->buf, 0xA5, r->len);
}

static uint64_t cpu_now(const tm_io *io) {
    struct timespec t = {0};
    if (io->count_cpu) (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

tm_status tm_io_submit(tm_io *io, tm_io_req *const *reqs, unsigned n) {
    TM_ASSERT(reqs || n == 0);
    for (unsigned i = 0; i < n; i++) TM_TRY(check_req(io, reqs[i]));
    uint64_t cpu = cpu_now(io);
    for (unsigned i = 0; i < n; i++) enqueue_request(io, reqs[i]);
    if (io->order_seed) return TM_OK;
    io_pump(io);
    if (!io->submit_at_wait) io->top->engine->flush(io->top);
    io->cpu_ns += cpu_now(io) - cpu;
    return TM_OK;
}

static unsigned take_done(tm_io *io, tm_io_req **done, unsigned max) {
    unsigned n = 0;
    for (; n < max && io->done_head; n++) {
        TM_ASSERT(io->done_head->internal == 0);
        done[n] = io->done_head;
        io->done_head = done[n]->next;
        done[n]->next = NULL;
    }
    if (!io->done_head) io->done_tail = NULL;
    TM_ASSERT(io->in_flight >= n);
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
    io_lane *q = &io->lane[0];
    TM_ASSERT(io->order_seed && io->started == 0);
    unsigned waiting = 0;
    for (tm_io_req *r = q->head; r; r = r->next) waiting++;
    if (!waiting) return TM_OK;
    tm_io_req *before = NULL, *r = q->head;
    for (unsigned k = order_random(io) % waiting; k; k--) before = r, r = r->next;
    tm_io_req *rest = r == q->head ? r->next : q->head, *tail = q->tail == r ? before : q->tail;
    if (before) before->next = r->next;
    r->next = NULL;
    q->head = q->tail = r;
    io_pump(io);
    tm_status rc = TM_OK;
    while (io->started && rc == TM_OK) rc = io_progress(io, true);
    q->head = rest;
    q->tail = rest ? tail : NULL;
    return rc;
}

tm_status tm_io_wait(tm_io *io, tm_io_req **done, unsigned max, unsigned *n, bool block) {
    TM_ASSERT(max > 0 || !block);
    uint64_t cpu = cpu_now(io);
    *n = 0;
    /* A poll or tm_io_advance may have drained the descriptor of a wake: then only the flag knows of it. */
    for (bool woken = block && atomic_exchange(&io->woken, false);;) {
        bool idle = !io->done_head;
        if (io->order_seed && io->lane[0].head) { /* never io_progress: it would take them in order */
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
    io->cpu_ns += cpu_now(io) - cpu;
    return TM_OK;
}

void tm_io_advance(tm_io *io) {
    if (io->order_seed) return; /* as late as possible */
    uint64_t cpu = cpu_now(io);
    bool pending = tm_error_get()->code != TM_OK;
    tm_status rc = io_progress(io, false);
    if (rc != TM_OK && !pending) tm_error_clear(); /* an engine that is lost says so again */
    io->cpu_ns += cpu_now(io) - cpu;
}

void tm_io_wake(tm_io *io) {
    atomic_store(&io->woken, true);
    io_rouse(io);
}

unsigned tm_io_in_flight(const tm_io *io) {
    return io->in_flight;
}

void tm_io_lane_stats(const tm_io *io, unsigned lane, tm_io_stats *out) {
    *out = lane < io->n_lanes ? io->lane[lane].stats : (tm_io_stats){0};
    out->cpu_ns = io->cpu_ns;
}

void tm_io_get_stats(const tm_io *io, tm_io_stats *out) {
    *out = (tm_io_stats){0};
    for (unsigned i = 0; i < io->n_lanes; i++) {
        const tm_io_stats *s = &io->lane[i].stats;
        out->read_bytes += s->read_bytes;
        out->write_bytes += s->write_bytes;
        out->reads += s->reads;
        out->writes += s->writes;
        out->syncs += s->syncs;
        out->resubmitted += s->resubmitted;
        out->full_ns += s->full_ns;
        out->full_read_bytes += s->full_read_bytes;
        out->full_write_bytes += s->full_write_bytes;
    }
    out->cpu_ns = io->cpu_ns;
}

tm_status tm_io_req_fail(const tm_io_req *r) {
    TM_ASSERT(r->op <= TM_IO_SYNC);
    static const char *const names[] = {"read", "write", "sync"};
    const char *path = r->file.name ? r->file.name : "offload file";
    if (r->status == TM_OK) return TM_OK;
    if (r->op == TM_IO_SYNC) {
        return tm_fail_sys(r->status, r->sys_errno, "fdatasync", path, -1, "%s: cannot be brought to the disk", path);
    }
    if (r->op == TM_IO_READ && r->status == TM_EIO && r->sys_errno == 0) {
        return tm_fail_sys(r->status, 0, "read", path, (int64_t)r->offset,
                           "%s: ends within the %llu bytes at byte %llu; the file was cut off by someone else", path,
                           (unsigned long long)r->len, (unsigned long long)r->offset);
    }
    return tm_fail_sys(r->status, r->sys_errno, names[r->op], path, (int64_t)r->offset,
                       "%s: cannot %s %llu bytes at byte %llu (%llu done)", path, names[r->op],
                       (unsigned long long)r->len, (unsigned long long)r->offset, (unsigned long long)r->done);
}
