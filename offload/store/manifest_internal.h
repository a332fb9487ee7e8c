/* The manifest's first bytes, for those who write and read it. Layout in README.md. */
#ifndef TIDEMILL_MANIFEST_INTERNAL_H
#define TIDEMILL_MANIFEST_INTERNAL_H

#include "offload/store/store_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "manifests are little-endian; this machine is not");

enum { VERSION = 1, MAX_INFO = 1 << 20, MAX_OBJECTS = 1 << 26, HASH_BYTES = 16, LOCK_WAIT_MS = 10000 };
#define MANIFEST_MAGIC "tidemill commit" /* 16 bytes with its NUL */

typedef struct manifest_head {
    char magic[16];
    uint32_t version, page_bytes;
    uint64_t key, step;
    uint32_t incarnation, n_paths, slots, info_bytes;
    uint32_t n_objects, paths_bytes;
    uint64_t n_pages;
} manifest_head;
_Static_assert(sizeof(manifest_head) == 72 && sizeof(manifest_object) == 32, "no padding in the file");

#endif
