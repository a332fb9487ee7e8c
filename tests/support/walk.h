/* Every call of one name fails in turn (base.h, tm_fault_set): "alloc", "pread", "template" (each piece that a chat
 * template takes from its arena), ... An operation that meets one ends with a failure that says so, and holds nothing
 * afterwards. */
#ifndef TIDEMILL_TESTS_WALK_H
#define TIDEMILL_TESTS_WALK_H

#include "base/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens, uses and closes what is tested, whatever happens; returns the first failure. */
typedef tm_status (*walk_fn)(void *ctx);

typedef struct walk {
    const char *call, *kind;
    tm_status want;  /* of a run that met the failure */
    tm_status also;  /* another that will do; TM_OK: none */
    bool may_pass;   /* some failures do not matter; then the run is as good as any other */
    uint64_t points; /* 0: all; else so many, spread evenly: for operations that make very many calls */
} walk;

/* How many places of each name; TIDEMILL_WALK=N: so many, 0: every one. */
static inline uint64_t walk_points(uint64_t few) {
    const char *how = getenv("TIDEMILL_WALK");
    return how ? strtoull(how, NULL, 10) : few;
}

static inline uint64_t walk_calls(const walk *w, walk_fn once, void *ctx) {
    char spec[96];
    uint64_t live = tm_mem_live_bytes();
    (void)snprintf(spec, sizeof spec, "%s:%llu:none:once", w->call, ~0ull >> 1);
    tm_error_clear();
    if (tm_fault_set(spec) != TM_OK || once(ctx) != TM_OK) fail_msg("without a fault: %s", tm_error_get()->text);
    uint64_t n = tm_fault_calls();
    (void)!tm_fault_set(NULL);
    if (tm_mem_live_bytes() != live)
        fail_msg("without a fault, %lld bytes are held", (long long)(tm_mem_live_bytes() - live));
    return n;
}

/* How many runs failed: what a test expects some of. */
static inline uint64_t walk_all(walk w, walk_fn once, void *ctx) {
    uint64_t n = walk_calls(&w, once, ctx), stride = w.points && n > w.points ? n / w.points : 1, failed = 0;
    for (uint64_t i = 1; i <= n; i += stride) {
        char spec[96];
        uint64_t live = tm_mem_live_bytes();
        (void)snprintf(spec, sizeof spec, "%s:%llu:%s:once", w.call, (unsigned long long)i, w.kind);
        if (getenv("TIDEMILL_WALK_VERBOSE")) fprintf(stderr, "%s\n", spec);
        tm_error_clear();
        (void)!tm_fault_set(spec);
        tm_status rc = once(ctx);
        (void)!tm_fault_set(NULL);
        bool right = rc == w.want || (rc == TM_OK ? w.may_pass : rc == w.also);
        if (!right || (rc != TM_OK && (tm_error_get()->code != rc || tm_error_get()->text[0] == 0)))
            fail_msg("%s: %s, \"%s\"", spec, tm_status_name(rc), tm_error_get()->text);
        if (tm_mem_live_bytes() != live) fail_msg("%s: memory is held", spec);
        failed += rc != TM_OK;
    }
    tm_error_clear();
    return failed;
}

/* ---- every call of every name ---------------------------------------------------------------------------------------
 * The names are those that an undisturbed run calls, so that a seam with a new one is walked without being listed.
 * TIDEMILL_WALK_VERBOSE=1 names each case before it runs. */

enum { WALK_NAMES = 48 };
typedef struct walk_seam {
    char call[32];
    uint64_t calls;
} walk_seam;

static inline unsigned walk_seams(walk_fn once, void *ctx, walk_seam *out) {
    unsigned n = 0;
    const char *name;
    tm_error_clear();
    if (tm_fault_set("*:0:none:once") != TM_OK || once(ctx) != TM_OK)
        fail_msg("without a fault: %s", tm_error_get()->text);
    for (uint64_t calls; n < WALK_NAMES && tm_fault_tally(n, &name, &calls); n++) {
        (void)snprintf(out[n].call, sizeof out[n].call, "%s", name);
        out[n].calls = calls;
    }
    if (n == WALK_NAMES) fail_msg("%d names and more are called: WALK_NAMES", WALK_NAMES);
    (void)!tm_fault_set(NULL);
    return n;
}

/* A folder of this process's own, in memory where that can be: walks sync very often. Made and removed by the caller
 * (walk_clear, walk_gone). */
static inline const char *walk_dir(void) {
    static char path[96];
    if (!*path)
        (void)snprintf(path, sizeof path, "%stidemill-walk-%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : "",
                       (long)getpid());
    return path;
}

/* An empty folder, whatever the run before left in it; past the seam, so that nothing of it fails. */
static inline int walk_remove(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

static inline void walk_gone(const char *dir) {
    (void)nftw(dir, walk_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void walk_clear(const char *dir) {
    walk_gone(dir);
    if (mkdir(dir, 0700) != 0) fail_msg("%s: cannot be made", dir);
}

static inline unsigned walk_descriptors(void) {
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

/* Readings of the clock, lies of the CPU, frames elsewhere than other ranks' and points to die at are no failures. */
static inline bool walk_fails(const char *call) {
    static const char *const lies[] = {"clock", "flip_result", "shared_place"};
    for (size_t i = 0; i < TM_COUNT(lies); i++)
        if (strcmp(call, lies[i]) == 0) return false;
    return strncmp(call, "kill_", 5) != 0;
}

/* Every index of every name (or `points` of them), once and from then on; allocations just fail. A run passes or
 * ends with one failure that is put into words; either way it holds nothing. Returns how many runs failed. */
static inline uint64_t walk_every(walk_fn once, void *ctx, const char *const *kinds, size_t n_kinds, uint64_t points) {
    walk_seam seam[WALK_NAMES];
    unsigned n = walk_seams(once, ctx, seam);
    uint64_t failed = 0, live = tm_mem_live_bytes();
    for (unsigned s = 0; s < n; s++) {
        bool alloc = strcmp(seam[s].call, "alloc") == 0;
        uint64_t stride = points && seam[s].calls > points ? seam[s].calls / points : 1;
        if (!walk_fails(seam[s].call)) continue;
        for (uint64_t k = 0, total = (alloc ? 1 : n_kinds) * 2; k < total; k++)
            for (uint64_t i = (stride + 1) / 2; i <= seam[s].calls; i += stride) { /* of few points, the middle */
                char spec[96];
                unsigned open = walk_descriptors();
                (void)snprintf(spec, sizeof spec, "%.31s:%llu:%s:%s", seam[s].call, (unsigned long long)i,
                               alloc ? "fail" : kinds[k / 2], k % 2 ? "sticky" : "once");
                if (getenv("TIDEMILL_WALK_VERBOSE")) fprintf(stderr, "%s\n", spec);
                tm_error_clear();
                (void)!tm_fault_set(spec);
                tm_status rc = once(ctx);
                (void)!tm_fault_set(NULL);
                if (rc != TM_OK && (tm_error_get()->code != rc || tm_error_get()->text[0] == 0))
                    fail_msg("%s: %s, \"%s\"", spec, tm_status_name(rc), tm_error_get()->text);
                if (tm_mem_live_bytes() != live) fail_msg("%s: memory is held", spec);
                if (walk_descriptors() != open) fail_msg("%s: a descriptor is held", spec);
                failed += rc != TM_OK;
            }
    }
    tm_error_clear();
    if (once(ctx) != TM_OK) fail_msg("after the walk: %s", tm_error_get()->text);
    return failed;
}

#endif
