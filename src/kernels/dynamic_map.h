/* bitsandbytes' dynamic map of 8 bits (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"): seven
 * decades, each with twice as many values as the one below it, 0 and 1. In a header alone, for src/kernels and for the
 * library of optimizers, which is built without it. */
#ifndef TIDEMILL_DYNAMIC_MAP_H
#define TIDEMILL_DYNAMIC_MAP_H

#include <stdbool.h>
#include <stdlib.h>

static inline int tm_dynamic_order(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* n + 1 points from 0.1 to 1, counted from the nearer end, in fp32: torch.linspace. */
static inline float tm_dynamic_boundary(int i, int n) {
    const float start = 0.1F, step = (1.0F - start) / (float)n;
    return (float)(i < (n + 1) / 2 ? (double)start + (double)step * i : 1.0 - (double)step * (n - i));
}

/* 256 values, ascending in [-1, 1], or in [0, 1] without a sign. */
static inline void tm_dynamic_map(float map[256], bool with_sign) {
    static const float decade[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1};
    int count = 0;
    for (int d = 0; d < 7; d++) {
        int n = (with_sign ? 1 : 2) << d;
        for (int i = 0; i < n; i++) {
            float value = (tm_dynamic_boundary(i, n) + tm_dynamic_boundary(i + 1, n)) / 2 * decade[d];
            map[count++] = value;
            if (with_sign) map[count++] = -value;
        }
    }
    map[count++] = 0;
    map[count++] = 1;
    qsort(map, 256, sizeof *map, tm_dynamic_order);
}

#endif
