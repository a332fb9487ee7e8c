/* Every call of one name fails in turn (base.h, tm_fault_set): "alloc", "pread", "template" (each piece that a chat
 * template takes from its arena), ... An operation that meets one ends with a failure that says so, and holds nothing
 * afterwards. */
#ifndef TIDEMILL_TESTS_WALK_H
#define TIDEMILL_TESTS_WALK_H

#include "base/base.h"

#include <stdio.h>

/* Opens, uses and closes what is tested, whatever happens; returns the first failure. */
typedef tm_status (*walk_fn)(void *ctx);

typedef struct walk {
    const char *call, *kind;
    tm_status want;  /* of a run that met the failure */
    tm_status also;  /* another that will do; TM_OK: none */
    bool may_pass;   /* some failures do not matter; then the run is as good as any other */
    uint64_t points; /* 0: all; else so many, spread evenly: for operations that make very many calls */
} walk;

static inline uint64_t walk_calls(const walk *w, walk_fn once, void *ctx) {
    char spec[96];
    uint64_t live = tm_mem_live_bytes();
    (void)snprintf(spec, sizeof spec, "%s:%llu:none:once", w->call, ~0ull >> 1);
    tm_error_clear();
    if (tm_fault_set(spec) != TM_OK || once(ctx) != TM_OK) fail_msg("without a fault: %s", tm_error_get()->text);
    uint64_t n = tm_fault_calls();
    (void)!tm_fault_set(NULL);
    if (tm_mem_live_bytes() != live) fail_msg("without a fault, %llu bytes are held", (unsigned long long)live);
    return n;
}

/* How many runs failed: what a test expects some of. */
static inline uint64_t walk_all(walk w, walk_fn once, void *ctx) {
    uint64_t n = walk_calls(&w, once, ctx), step = w.points && n > w.points ? n / w.points : 1, failed = 0;
    for (uint64_t i = 1; i <= n; i += step) {
        char spec[96];
        uint64_t live = tm_mem_live_bytes();
        (void)snprintf(spec, sizeof spec, "%s:%llu:%s:once", w.call, (unsigned long long)i, w.kind);
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

#endif
