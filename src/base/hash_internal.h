/* What hash.c and hash_long.c share. */
#ifndef TIDEMILL_BASE_HASH_INTERNAL_H
#define TIDEMILL_BASE_HASH_INTERNAL_H

#include "base/base.h"

uint64_t hash_long(const void *bytes, size_t n, uint64_t seed);

#endif
