/* What --verify writes: sectors that say where they belong and when they were written, and prove it. */
#ifndef TIDEMILL_DISK_PATTERN_H
#define TIDEMILL_DISK_PATTERN_H

#include "base/base.h"

/* Fills buf[0, n) for file offset `offset`: sectors of `sector` bytes (a multiple of 64), each of age `age[i]`. */
void disk_pattern_fill(void *buf, size_t n, uint64_t offset, uint32_t sector, const uint8_t *age, uint64_t key);
/* The first sector that is not what disk_pattern_fill made; -1: all are. */
int64_t disk_pattern_check(const void *buf, size_t n, uint64_t offset, uint32_t sector, const uint8_t *age,
                           uint64_t key);

#endif
