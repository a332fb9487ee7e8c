/* Choice of the gemm back-end. */
#include "kernels/kernels_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

const gemm_backend *gemm_backends[GEMM_BACKENDS] = {&gemm_amx, &gemm_avx512bf16, &gemm_openblas, &gemm_builtin};
static const gemm_backend *chosen;

static uint64_t least_bytes(const gemm_backend *b, unsigned threads) {
    return b->resident_bytes(threads, &(tm_products){.type = TM_ELEM_BF16, .rows = 1});
}

/* Opened and checked it is used; what gives wrong results is closed again, and said in *wrong. */
static tm_status use(const gemm_backend *b, unsigned threads, tm_elem products, const char **wrong) {
    *wrong = NULL;
    gemm_opened how = b->open(threads, products);
    if (how == GEMM_NO_MEMORY) return tm_nomem(least_bytes(b, threads));
    if (how == GEMM_ABSENT) return TM_OK;
    *wrong = kernels_check_gemm(b->run);
    tm_status rc = TM_OK;
    if (!*wrong && b->attention) rc = kernels_check_attention(b->attention, wrong);
    b->close(); /* what the check alone has touched, and made, is given back */
    if (rc != TM_OK || *wrong) return rc;
    how = b->open(threads, products);
    if (how != GEMM_READY) return tm_nomem(least_bytes(b, threads));
    chosen = b;
    return TM_OK;
}

static tm_status use_forced(const char *name, unsigned threads, tm_elem products) {
    const gemm_backend *b = NULL;
    const char *wrong;
    for (size_t i = 0; i < GEMM_BACKENDS; i++)
        if (!strcmp(gemm_backends[i]->name, name)) b = gemm_backends[i];
    if (!b)
        return tm_fail(TM_EINPUT, "TIDEMILL_GEMM=%s: unknown; choose amx, avx512bf16, openblas or builtin, or unset it",
                       name);
    TM_TRY(use(b, threads, products, &wrong));
    if (wrong)
        return tm_fail(TM_EINPUT, "TIDEMILL_GEMM=%s: its %s products are wrong on this CPU; unset the variable", name,
                       wrong);
    return chosen ? TM_OK
                  : tm_fail(TM_EINPUT, "TIDEMILL_GEMM=%s: is not to be had here%s; unset the variable", name,
                            b == &gemm_amx ? ": it takes a CPU and a system with AMX, and no TIDEMILL_ISA below avx512"
                            : b == &gemm_avx512bf16
                                ? ": it takes a CPU with AVX-512 BF16, and no TIDEMILL_ISA below avx512"
                                : "; install it");
}

/* The one this CPU prefers most for products of that type, of those below `limit`; NULL: none. */
static const gemm_backend *preferred(tm_elem products, int limit) {
    const gemm_backend *best = NULL;
    for (size_t i = 0; i < GEMM_BACKENDS; i++) {
        const gemm_backend *b = gemm_backends[i];
        int wanted = b->preference(products);
        if (wanted > 0 && wanted < limit && (!best || wanted > best->preference(products))) best = b;
    }
    return best;
}

tm_status gemm_choose(unsigned threads, tm_elem products) {
    const char *forced = getenv("TIDEMILL_GEMM"), *wrong;
    gemm_close();
    if (forced && *forced) return use_forced(forced, threads, products);
    for (const gemm_backend *b = preferred(products, INT32_MAX); b && !chosen;
         b = preferred(products, b->preference(products))) {
        TM_TRY(use(b, threads, products, &wrong));
        if (wrong) tm_warn_once(b->name, "%s: its %s products are wrong on this CPU; it is not used", b->name, wrong);
    }
    return chosen ? TM_OK : tm_fail(TM_EUNSUPPORTED, "no matrix product gives right results on this CPU");
}

void gemm_close(void) {
    if (chosen) chosen->close();
    chosen = NULL;
}

const attention_way *gemm_attention(void) {
    return chosen ? chosen->attention : NULL;
}
uint64_t gemm_resident_bytes(const tm_products *p) {
    return chosen ? chosen->resident_bytes(kernels_team(), p) : 0;
}
bool tm_gemm_rows_alone(void) {
    return chosen == &gemm_builtin || tm_gemm_multiplies_bf16();
}
bool tm_gemm_multiplies_bf16(void) {
    return chosen == &gemm_amx || chosen == &gemm_avx512bf16;
}
const char *tm_gemm_library(void) {
    return chosen ? chosen->describe() : "none";
}

unsigned gemm_rows_apart;
void tm_gemm_rows_apart(bool on) {
    TM_ASSERT(on || gemm_rows_apart > 0);
    gemm_rows_apart += on ? 1U : UINT_MAX;
}

void tm_gemm(const tm_gemm_args *g) {
    TM_ASSERT(chosen != NULL);
    if (g->m && g->n) chosen->run(g);
}
