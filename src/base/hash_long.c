/* Long texts and pages: the library picks AVX2 or AVX-512 by the CPU where its build can; else, compiled here with our
 * flags, it is still faster on cached bytes than in distributions' builds. */
#include "base/hash_internal.h"

#ifdef TIDEMILL_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#if defined __OPTIMIZE__ && !defined TIDEMILL_SANITIZED
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>
#endif

uint64_t hash_long(const void *bytes, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, n, seed);
}
