/* What products take of a limited address space. OpenBLAS tries for ever where a buffer cannot be had, so that the room is
 * looked for before it is loaded. */
#include "kernels/kernels_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Found as VmPeak less that of our own products: the library's files with what they need, and for each thread a buffer
 * (OpenBLAS 0.3.21: 128 MiB). */
static const struct {
    const char *name;
    unsigned files_mib, thread_mib;
} taken[] = {{"builtin", 8, 2}, {"amx", 8, 2}, {"avx512bf16", 8, 2}, {"openblas", 40, 128}};

/* The back-end that gemm_choose will try first. */
static const char *first_choice(tm_elem products) {
    const char *forced = getenv("TIDEMILL_GEMM");
    const gemm_backend *best = gemm_backends[0];
    if (forced && *forced) return forced;
    for (size_t i = 1; i < GEMM_BACKENDS; i++)
        if (gemm_backends[i]->preference(products) > best->preference(products)) best = gemm_backends[i];
    return best->name;
}

tm_status kernels_need_address_space(unsigned threads, tm_elem products) {
    const char *name = first_choice(products);
    char what[128];
    for (size_t i = 0; i < TM_COUNT(taken); i++) {
        if (strcmp(taken[i].name, name) != 0) continue;
        snprintf(what, sizeof what, "matrix products by %s in %u threads%s", name, threads,
                 taken[i].files_mib > taken[0].files_mib ? " (TIDEMILL_GEMM=builtin takes less)" : "");
        return tm_address_need((taken[i].files_mib + (uint64_t)threads * taken[i].thread_mib) * TM_MIB, what);
    }
    return TM_OK; /* unknown: gemm_choose says so */
}
