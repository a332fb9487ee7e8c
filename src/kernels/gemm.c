/* Choice of the gemm back-end. */
#include "kernels/kernels_internal.h"

#include <stdlib.h>
#include <string.h>

/* In order of preference; the first that opens is used. */
static const gemm_backend *const backends[] = {&gemm_openblas, &gemm_builtin};
static const gemm_backend *chosen;

static const gemm_backend *backend_named(const char *name) {
    for (size_t i = 0; i < TM_COUNT(backends); i++)
        if (!strcmp(backends[i]->name, name)) return backends[i];
    return NULL;
}

static tm_status use(const gemm_backend *b, unsigned threads) {
    gemm_opened how = b->open(threads);
    if (how == GEMM_NO_MEMORY) return tm_nomem(b->resident_bytes(threads));
    if (how == GEMM_READY) chosen = b;
    return TM_OK;
}

static tm_status use_forced(const char *name, unsigned threads) {
    const gemm_backend *b = backend_named(name);
    if (!b) return tm_fail(TM_EINPUT, "TIDEMILL_GEMM=%s: unknown; choose openblas or builtin, or unset it", name);
    TM_TRY(use(b, threads));
    return chosen ? TM_OK
                  : tm_fail(TM_EINPUT, "TIDEMILL_GEMM=%s: cannot be loaded; install it, or unset the variable", name);
}

tm_status gemm_choose(unsigned threads) {
    const char *forced = getenv("TIDEMILL_GEMM");
    gemm_close();
    if (forced && *forced) return use_forced(forced, threads);
    for (size_t i = 0; i < TM_COUNT(backends) && !chosen; i++) TM_TRY(use(backends[i], threads));
    TM_ASSERT(chosen != NULL); /* the builtin one is never absent */
    return TM_OK;
}

void gemm_close(void) {
    if (chosen) chosen->close();
    chosen = NULL;
}

uint64_t gemm_resident_bytes(void) {
    return chosen ? chosen->resident_bytes(kernels_team()) : 0;
}
const char *tm_gemm_library(void) {
    return chosen ? chosen->describe() : "none";
}

void tm_gemm(const tm_gemm_args *g) {
    TM_ASSERT(chosen != NULL);
    if (g->m && g->n) chosen->run(g);
}
