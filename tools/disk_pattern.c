#include "tools/disk_pattern.h"

#include <string.h>

/* words: place, key ^ age, a stream that depends on both, ..., XXH3-64 of all before it */
static uint64_t mix(uint64_t x) { /* the finalizer of MurmurHash3 */
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

void disk_pattern_fill(void *buf, size_t n, uint64_t offset, uint32_t sector, const uint8_t *age, uint64_t key) {
    for (size_t at = 0; at < n; at += sector, age++) {
        uint64_t *w = (uint64_t *)((char *)buf + at), words = sector / 8, x = mix(offset + at + 1) ^ mix(key + *age);
        w[0] = offset + at;
        w[1] = key ^ *age;
        for (uint64_t i = 2; i + 1 < words; i++) w[i] = x += 0x9e3779b97f4a7c15u;
        w[words - 1] = tm_hash64(w, sector - 8, 0);
    }
}

int64_t disk_pattern_check(const void *buf, size_t n, uint64_t offset, uint32_t sector, const uint8_t *age,
                           uint64_t key) {
    for (size_t at = 0; at < n; at += sector, age++) {
        const uint64_t *w = (const uint64_t *)((const char *)buf + at);
        bool good = w[0] == offset + at && w[1] == (key ^ *age) && w[sector / 8 - 1] == tm_hash64(w, sector - 8, 0);
        if (!good) return (int64_t)at;
    }
    return -1;
}
