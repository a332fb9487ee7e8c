/* Which column of the table is used, and what the process has set up once. */
#include "kernels/kernels_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
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

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
/* The compiler's test knows no "f16c" before gcc 11 and clang 19. What AVX2 needs of the operating system is enough. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
bool kernels_has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
bool kernels_has_avx512(void) {
    return kernels_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
/* AVX-512 BF16 comes with every AMX. */
bool kernels_has_bf16(void) {
    return kernels_has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#else
bool kernels_has_avx2(void) {
    return false;
}
bool kernels_has_avx512(void) {
    return false;
}
bool kernels_has_bf16(void) {
    return false;
}
#endif

static void avx2(kernels_table *t) {
    kernels_avx2_override(t);
    kernels_packed_avx2(t);
}
static void avx512(kernels_table *t) {
    kernels_avx2_override(t);
    kernels_avx512_override(t);
    kernels_packed_avx512(t);
}

kernels_column kernels_columns[KERNELS_COLUMNS] = {{"avx512", kernels_has_avx512, avx512},
                                                   {"avx2", kernels_has_avx2, avx2}};

/* NULL: the column is in use; else the leaves that give wrong results on this CPU. */
static const char *use(const kernels_column *c) {
    kernels_ref_fill(&kernels);
    c->override(&kernels);
    const char *wrong = kernels_check_column(&kernels);
    if (wrong) kernels_ref_fill(&kernels);
    return wrong;
}

static tm_status use_forced(const char *name) {
    kernels_ref_fill(&kernels);
    if (!strcmp(name, "ref")) return TM_OK;
    for (size_t i = 0; i < KERNELS_COLUMNS; i++) {
        if (strcmp(name, kernels_columns[i].name) != 0) continue;
        if (!kernels_columns[i].supported())
            return tm_fail(TM_EINPUT, "TIDEMILL_ISA=%s: this CPU has not all of it; unset it or choose ref", name);
        const char *wrong = use(&kernels_columns[i]);
        return wrong ? tm_fail(TM_EINPUT, "TIDEMILL_ISA=%s: wrong results of %s on this CPU; unset it", name, wrong)
                     : TM_OK;
    }
    static const char *const of_products[] = {"avx512bf16", "avx512_bf16", "amx"};
    for (size_t i = 0; i < TM_COUNT(of_products); i++)
        if (!strcmp(name, of_products[i]))
            return tm_fail(TM_EINPUT,
                           "TIDEMILL_ISA=%s: there is no column of kernels for it, only products (TIDEMILL_GEMM=amx or "
                           "avx512bf16), in column avx512; choose ref, avx2 or avx512, or unset it",
                           name);
    return tm_fail(TM_EINPUT, "TIDEMILL_ISA=%s: unknown; choose ref, avx2 or avx512, or unset it", name);
}

static tm_status choose_isa(void) {
    const char *forced = getenv("TIDEMILL_ISA");
    if (forced && *forced) return use_forced(forced);
    kernels_ref_fill(&kernels);
    for (size_t i = 0; i < KERNELS_COLUMNS; i++) {
        const kernels_column *c = &kernels_columns[i];
        if (!c->supported()) continue;
        const char *wrong = use(c);
        if (!wrong) break;
        tm_warn_once(c->name, "%s: wrong results of %s on this CPU; the next column of kernels is used", c->name,
                     wrong);
    }
    return TM_OK;
}

/* The OpenMP library ends the process with a word of its own where it cannot start its threads, so they are tried
 * before, and there from then on: what is started later finds the limit as it is. */
tm_status tm_kernels_start_team(void) {
    char what[128];
    snprintf(what, sizeof what, "%u threads are to compute (fewer: OMP_NUM_THREADS)", team);
    TM_TRY(tm_threads_try(team - 1, what));
#pragma omp parallel num_threads(team)
    __asm__ volatile("" ::: "memory");
    return TM_OK;
}

tm_status tm_kernels_init(unsigned threads, tm_elem products) {
    team = threads ? threads : (unsigned)omp_get_max_threads();
    TM_TRY(tm_kernels_start_team());
    TM_TRY(choose_isa());
    TM_TRY(kernels_need_address_space(team, products));
    TM_TRY(gemm_choose(team, products));
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

uint64_t tm_kernels_resident_bytes(const tm_products *p) {
    return gemm_resident_bytes(p);
}
