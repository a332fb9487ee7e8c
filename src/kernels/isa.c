/* Which column of the table is used, and what the process has set up once. */
#include "kernels/kernels_internal.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kernels_table kernels;
static unsigned team = 1;
static char description[160] = "";

__attribute__((constructor)) static void start_with_ref(void) {
    kernels_ref_fill(&kernels);
}

static bool has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static tm_status choose_isa(void) {
    const char *forced = getenv("TIDEMILL_ISA");
    bool avx2 = has_avx2();
    if (forced && *forced) {
        bool known = !strcmp(forced, "ref") || !strcmp(forced, "avx2");
        if (!known) return tm_fail(TM_EINPUT, "TIDEMILL_ISA=%s: unknown; choose ref or avx2, or unset it", forced);
        if (!strcmp(forced, "avx2") && !avx2)
            return tm_fail(TM_EINPUT, "TIDEMILL_ISA=avx2: this CPU has no AVX2 with FMA; unset it or choose ref");
        avx2 = !strcmp(forced, "avx2");
    }
    kernels_ref_fill(&kernels);
    if (avx2) kernels_avx2_override(&kernels);
    return TM_OK;
}

tm_status tm_kernels_init(unsigned threads) {
    TM_TRY(choose_isa());
    team = threads ? threads : (unsigned)omp_get_max_threads();
    TM_TRY(gemm_choose(team));
    snprintf(description, sizeof description, "isa=%s gemm=%s threads=%u", kernels.isa, tm_gemm_library(), team);
    return TM_OK;
}

void tm_kernels_close(void) {
    gemm_close();
}

const char *tm_kernels_describe(void) {
    return description;
}
const char *tm_kernels_isa(void) {
    return kernels.isa;
}
unsigned tm_kernels_threads(void) {
    return team;
}
unsigned kernels_team(void) {
    return team;
}

uint64_t tm_kernels_resident_bytes(void) {
    return gemm_resident_bytes();
}
