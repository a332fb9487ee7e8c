/* Long texts and pages: the library picks AVX2 or AVX-512 by the CPU where its build can; else, compiled here with our
 * flags, it is still faster on cached bytes than in distributions' builds. */
#include "base/hash_internal.h"

#ifdef TIDEMILL_XXH_DISPATCH
#include <xxh_x86dispatch.h>

/* The library (0.8.1) leaves what it had in the upper halves of the vectors. Until they are zero an SSE instruction depends
 * on what its register held before: random numbers took seven times as long after a page. */
__attribute__((target("avx"))) static void zero_upper_halves(void) {
    __builtin_ia32_vzeroupper();
}

uint64_t hash_long(const void *bytes, size_t n, uint64_t seed) {
    uint64_t hash = XXH3_64bits_withSeed(bytes, n, seed);
    if (__builtin_cpu_supports("avx")) zero_upper_halves();
    return hash;
}
#else
#if defined __OPTIMIZE__ && !defined TIDEMILL_SANITIZED
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

uint64_t hash_long(const void *bytes, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, n, seed);
}
#endif
