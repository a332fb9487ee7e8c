/* Which row of the span kernels runs: by feature bits, never by CPU family; TIDEMILL_ISA can only lower it. */
#include "optim/optim_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const char *const optim_isa_name[OPTIM_ISAS] = {"ref", "avx2", "avx512"};

static atomic_int chosen = -1;

#ifndef __x86_64__
bool optim_isa_available(optim_isa isa) {
    return isa == OPTIM_REF;
}
#else
bool optim_isa_available(optim_isa isa) {
    switch (isa) {
    case OPTIM_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case OPTIM_AVX2:
        return __builtin_cpu_supports("avx2");
    default:
        return isa == OPTIM_REF;
    }
}
#endif

/* The row that TIDEMILL_ISA allows. Names of other folders' rows (avx512bf16, amx) have AVX-512 in common. */
static optim_isa ceiling(void) {
    const char *name = getenv("TIDEMILL_ISA");
    if (!name || !*name) return OPTIM_AVX512;
    for (int i = 0; i < OPTIM_ISAS; i++)
        if (!strcmp(name, optim_isa_name[i])) return (optim_isa)i;
    return OPTIM_AVX512;
}

optim_isa optim_isa_get(void) {
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa >= 0) return (optim_isa)isa;
    isa = (int)ceiling();
    while (!optim_isa_available((optim_isa)isa)) isa--;
    atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    return (optim_isa)isa;
}

void optim_isa_force(optim_isa isa) {
    TM_ASSERT(isa == OPTIM_ISAS || optim_isa_available(isa));
    atomic_store_explicit(&chosen, isa == OPTIM_ISAS ? -1 : (int)isa, memory_order_relaxed);
}

const char *tm_optim_isa(void) {
    return optim_isa_name[optim_isa_get()];
}
