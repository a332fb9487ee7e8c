/* XXH3. Names and keys are hashed where they stand; what is longer than the library's short form goes to the vectors
 * that the CPU has (hash_long.c). Both give the same numbers. */
#include "base/hash_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { SHORT_BYTES = 240 };

uint64_t tm_hash64(const void *bytes, size_t n, uint64_t seed) {
    return n <= SHORT_BYTES ? XXH3_64bits_withSeed(bytes, n, seed) : hash_long(bytes, n, seed);
}
