/* Embedding rows out and gradient rows in. */
#include "kernels/kernels_internal.h"

#include <string.h>

static bool inside(int32_t id, uint32_t first, uint32_t count) {
    return id >= 0 && (uint32_t)id >= first && (uint32_t)id - first < count;
}

void tm_embed_forward(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const int32_t *ids, uint32_t first,
                      uint32_t count, const void *weight, void *out, bool clear) {
    size_t bytes = n * tm_elem_bytes(t);
    for (uint64_t r = 0; r < padded; r++) {
        char *to = (char *)out + r * bytes;
        if (r < rows && inside(ids[r], first, count))
            memcpy(to, (const char *)weight + ((uint32_t)ids[r] - first) * bytes, bytes);
        else if (clear)
            memset(to, 0, bytes);
    }
}

/* Each thread owns columns, so that tokens are added in their order whatever the team. */
void tm_embed_backward(tm_elem t, uint64_t rows, uint64_t n, const int32_t *ids, uint32_t first, uint32_t count,
                       const void *dout, float *grad, bool add) {
    enum { COLUMNS = 64 };
    if (!add) tm_zero(grad, (uint64_t)count * n * sizeof *grad);
    uint64_t blocks = (n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(kernels_team())
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t at = b * COLUMNS;
        size_t m = n - at < COLUMNS ? (size_t)(n - at) : COLUMNS;
        float buf[COLUMNS];
        for (uint64_t r = 0; r < rows; r++)
            if (inside(ids[r], first, count))
                kernels.axpy(1.0F, kernels_load(t, dout, r * n + at, buf, m),
                             grad + (uint64_t)((uint32_t)ids[r] - first) * n + at, m);
    }
}
