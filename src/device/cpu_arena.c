/* The CPU behind an arena: a mapping of its own that is PROT_NONE but for windows, which copies and operations open for
 * as long as they last. A count a page says how many windows are open on it: the first opens, the last closes.
 *
 * Copies move piece after piece at a rate, which is kept by the clock: no piece may end before its bytes could have
 * passed. A stream that was idle has no credit. */
#include "device/device_internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, COPY_PIECE = 4 << 20 };

typedef struct cpu_arena {
    tm_device *d;
    pthread_mutex_t lock;
    uint16_t *open; /* windows by page */
    stream_set *streams;
    uint64_t bytes_per_second;
    uint64_t open_ns;
} cpu_arena;

static int protect(char *at, uint64_t bytes, bool open) {
    const char *kind;
    if (tm_fault_hit("protect", &kind)) {
        errno = ENOMEM;
        return -1;
    }
    return mprotect(at, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Runs of pages whose count goes from or to zero change protection together. Returns the first page that could not be
 * counted, or the end. Under the lock. */
static uint64_t count_pages(cpu_arena *a, uint64_t page, uint64_t end, int by) {
    while (page < end) {
        uint64_t first = page;
        while (page < end && a->open[page] == (by > 0 ? 0 : 1)) page++;
        if (page > first && protect(a->d->arena + first * PAGE, (page - first) * PAGE, by > 0) != 0) return first;
        for (uint64_t p = first; p < page; p++) a->open[p] = by > 0;
        for (; page < end && a->open[page] > (by > 0 ? 0 : 1); page++) a->open[page] = (uint16_t)(a->open[page] + by);
    }
    return end;
}

/* Opens all of them or none. One that cannot be closed stays open, and what was asked for fails. */
static tm_status windows(cpu_arena *a, const tm_device_frame *frame, uint32_t n, int by) {
    int err = 0;
    uint32_t i = 0;
    pthread_mutex_lock(&a->lock);
    uint64_t t0 = tm_now_ns(), got = 0;
    for (; !err && i < n; i++) {
        uint64_t end = (frame[i].offset + frame[i].bytes) / PAGE;
        got = count_pages(a, frame[i].offset / PAGE, end, by);
        if (got < end) err = errno;
    }
    if (err && by > 0) (void)count_pages(a, frame[i - 1].offset / PAGE, got, -1);
    for (uint32_t k = 0; err && by > 0 && k + 1 < i; k++)
        (void)count_pages(a, frame[k].offset / PAGE, (frame[k].offset + frame[k].bytes) / PAGE, -1);
    a->open_ns += tm_now_ns() - t0;
    pthread_mutex_unlock(&a->lock);
    if (!err) return TM_OK;
    return tm_fail_sys(TM_ENOMEM, err, "mprotect", "", -1,
                       "cannot %s a window of the device's arena; raise vm.max_map_count", by > 0 ? "open" : "close");
}

static void sleep_until(uint64_t ns) {
    uint64_t now = tm_now_ns();
    if (now >= ns) return;
    struct timespec t = {.tv_sec = (time_t)((ns - now) / 1000000000u), .tv_nsec = (long)((ns - now) % 1000000000u)};
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

static tm_status move(cpu_arena *a, const tm_device_transfer *t, uint64_t at, uint64_t bytes) {
    char *in = a->d->arena + t->offset + at, *host = (char *)t->host + at;
    tm_device_frame f = {t->offset + at, bytes};
    TM_TRY(windows(a, &f, 1, 1));
    if (t->way == TM_DEVICE_IN)
        memcpy(in, host, bytes);
    else
        memcpy(host, in, bytes);
    return windows(a, &f, 1, -1);
}

/* The last piece of a copy ends when all its bytes have had their time. */
static tm_status do_copy(cpu_arena *a, const tm_device_transfer *t) {
    uint64_t start = tm_now_ns(), piece;
    for (uint64_t at = 0; at < t->bytes; at += piece) {
        piece = tm_min_u64(COPY_PIECE, t->bytes - at);
        TM_TRY(move(a, t, at, piece));
        if (a->bytes_per_second)
            sleep_until(start + (uint64_t)((double)(at + piece) / (double)a->bytes_per_second * 1e9));
    }
    return TM_OK;
}

static tm_status do_operation(cpu_arena *a, const tm_device_op *op) {
    TM_TRY(windows(a, op->frame, op->n, 1));
    tm_status rc = op->fn(op->ctx);
    return tm_first(rc, windows(a, op->frame, op->n, -1));
}

static tm_status work(void *ctx, const stream_item *item, int stream) {
    return stream == STREAM_OPS ? do_operation(ctx, &item->op) : do_copy(ctx, &item->copy);
}

static tm_status arena_copy(tm_device *d, const tm_device_transfer *t, tm_event *e) {
    return streams_submit(((cpu_arena *)d->own)->streams, (int)t->way, &(stream_item){.event = e, .copy = *t});
}

static tm_status arena_submit(tm_device *d, const tm_device_op *op, tm_event *e) {
    return streams_submit(((cpu_arena *)d->own)->streams, STREAM_OPS, &(stream_item){.event = e, .op = *op});
}

static bool arena_query(tm_device *d, const tm_event *e) {
    return streams_query(((cpu_arena *)d->own)->streams, e);
}

static void arena_wait(tm_device *d, const tm_event *e) {
    streams_wait(((cpu_arena *)d->own)->streams, e);
}

/* Touched before it is closed: what the system cannot give is refused now. */
static tm_status map_arena(tm_device *d, uint64_t bytes) {
    const char *kind;
    errno = ENOMEM; /* of a failure that is made */
    void *p = tm_fault_hit("map", &kind)
                  ? MAP_FAILED
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tm_fail_sys(TM_ENOMEM, errno, "mmap", "", -1,
                           "cannot map %llu bytes for the device's arena; lower memory.device_budget",
                           (unsigned long long)bytes);
    (void)madvise(p, bytes, MADV_NOHUGEPAGE); /* windows would split huge pages */
    for (uint64_t at = 0; at < bytes; at += PAGE) ((volatile char *)p)[at] = 0;
    d->arena = p;
    d->caps.arena_bytes = bytes;
    if (protect(p, bytes, false) != 0)
        return tm_fail_sys(TM_ENOMEM, errno, "mprotect", "", -1, "cannot close the device's arena");
    return TM_OK;
}

static tm_status arena_open(tm_device *d, const tm_device_opts *opts) {
    cpu_arena *a = tm_calloc(1, sizeof *a);
    uint64_t bytes = opts->arena_bytes / PAGE * PAGE;
    if (!a) return tm_nomem(sizeof *a);
    d->own = a;
    a->d = d;
    pthread_mutex_init(&a->lock, NULL);
    a->bytes_per_second = opts->bytes_per_second;
    if (bytes == 0) return tm_fail(TM_EINPUT, "device cpu-arena: an arena of no bytes; raise memory.device_budget");
    a->open = tm_calloc(bytes / PAGE, sizeof *a->open);
    if (!a->open) return tm_nomem(bytes / PAGE * sizeof *a->open);
    TM_TRY(map_arena(d, bytes));
    return streams_open(&a->streams, work, a);
}

static void arena_close(tm_device *d) {
    cpu_arena *a = d->own;
    if (!a) return;
    streams_close(a->streams);
    if (d->arena) munmap(d->arena, d->caps.arena_bytes);
    pthread_mutex_destroy(&a->lock);
    tm_free(a->open);
    tm_free(a);
}

static void arena_stats(tm_device *d, tm_device_stats *out) {
    cpu_arena *a = d->own;
    streams_stats(a->streams, out);
    pthread_mutex_lock(&a->lock);
    out->open_ns = a->open_ns;
    pthread_mutex_unlock(&a->lock);
}

const device_ops device_cpu_arena = {.open = arena_open,
                                     .close = arena_close,
                                     .copy = arena_copy,
                                     .submit = arena_submit,
                                     .query = arena_query,
                                     .wait = arena_wait,
                                     .stats = arena_stats};
