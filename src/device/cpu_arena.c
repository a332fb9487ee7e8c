/* The CPU behind an arena: a mapping of its own that is PROT_NONE but for windows, which copies and operations open for
 * as long as they last. A count a page says how many windows are open on it: the first opens, the last closes. */
#include "device/device_internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

typedef struct cpu_arena {
    tm_device *d;
    pthread_mutex_t lock;
    uint16_t *open; /* windows by page */
    copy_engine *copies;
    _Atomic uint64_t operations;
    uint64_t open_ns;
} cpu_arena;

/* ---- windows ------------------------------------------------------------------------------------------------- */

/* Runs of pages whose count goes from or to zero change protection together. Under the lock. */
static tm_status count_pages(cpu_arena *a, uint64_t offset, uint64_t bytes, int by) {
    uint64_t page = offset / PAGE, end = page + bytes / PAGE;
    while (page < end) {
        uint64_t first = page;
        for (; page < end && a->open[page] == (by > 0 ? 0 : 1); page++) a->open[page] = by > 0;
        if (page > first &&
            mprotect(a->d->arena + first * PAGE, (page - first) * PAGE, by > 0 ? PROT_READ | PROT_WRITE : PROT_NONE))
            return tm_fail_sys(TM_ENOMEM, errno, "mprotect", "", -1,
                               "cannot open or close a window of the device's arena; raise vm.max_map_count");
        for (; page < end && a->open[page] > (by > 0 ? 0 : 1); page++) a->open[page] = (uint16_t)(a->open[page] + by);
    }
    return TM_OK;
}

static tm_status windows(cpu_arena *a, const tm_device_frame *frame, uint32_t n, int by) {
    tm_status rc = TM_OK;
    pthread_mutex_lock(&a->lock);
    uint64_t t0 = tm_now_ns();
    for (uint32_t i = 0; rc == TM_OK && i < n; i++) rc = count_pages(a, frame[i].offset, frame[i].bytes, by);
    a->open_ns += tm_now_ns() - t0;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* ---- copies and operations ----------------------------------------------------------------------------------- */

static tm_status move(void *ctx, const tm_device_transfer *t) {
    cpu_arena *a = ctx;
    char *in = a->d->arena + t->offset;
    tm_device_frame f = {t->offset, t->bytes};
    TM_TRY(windows(a, &f, 1, 1));
    if (t->way == TM_DEVICE_IN)
        memcpy(in, t->host, t->bytes);
    else
        memcpy(t->host, in, t->bytes);
    return windows(a, &f, 1, -1);
}

static tm_status arena_copy(tm_device *d, const tm_device_transfer *t, tm_event *e) {
    return copy_engine_submit(((cpu_arena *)d->own)->copies, t, e);
}

static bool arena_query(tm_device *d, const tm_event *e) {
    return copy_engine_query(((cpu_arena *)d->own)->copies, e);
}

static void arena_wait(tm_device *d, const tm_event *e) {
    copy_engine_wait(((cpu_arena *)d->own)->copies, e);
}

static tm_status arena_run(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx) {
    ((cpu_arena *)d->own)->operations++;
    TM_TRY(windows(d->own, frame, n, 1));
    tm_status rc = fn(ctx);
    tm_status closed = windows(d->own, frame, n, -1);
    return rc != TM_OK ? rc : closed;
}

/* ---- open and close ------------------------------------------------------------------------------------------ */

/* Touched before it is closed: what the system cannot give is refused now. */
static tm_status map_arena(tm_device *d, uint64_t bytes) {
    const char *kind;
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
    if (mprotect(p, bytes, PROT_NONE))
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
    d->caps.alignment = PAGE;
    d->caps.counts_as_host = true;
    if (bytes == 0) return tm_fail(TM_EINPUT, "device cpu-arena: an arena of no bytes; raise memory.device_budget");
    a->open = tm_calloc(bytes / PAGE, sizeof *a->open);
    if (!a->open) return tm_nomem(bytes / PAGE * sizeof *a->open);
    TM_TRY(map_arena(d, bytes));
    return copy_engine_open(&a->copies, opts->bytes_per_second, move, a);
}

static void arena_close(tm_device *d) {
    cpu_arena *a = d->own;
    if (!a) return;
    copy_engine_close(a->copies);
    if (d->arena) munmap(d->arena, d->caps.arena_bytes);
    pthread_mutex_destroy(&a->lock);
    tm_free(a->open);
    tm_free(a);
}

static void arena_stats(tm_device *d, tm_device_stats *out) {
    cpu_arena *a = d->own;
    copy_engine_stats(a->copies, out);
    pthread_mutex_lock(&a->lock);
    out->operations = a->operations;
    out->open_ns = a->open_ns;
    pthread_mutex_unlock(&a->lock);
}

const device_ops device_cpu_arena = {.name = "cpu-arena",
                                     .open = arena_open,
                                     .close = arena_close,
                                     .copy = arena_copy,
                                     .query = arena_query,
                                     .wait = arena_wait,
                                     .run = arena_run,
                                     .stats = arena_stats};
