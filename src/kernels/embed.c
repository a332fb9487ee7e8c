/* Embedding rows out and gradient rows in. */
#include "kernels/kernels_internal.h"
#include "kernels/packed.h"

#include <string.h>

static bool inside(const tm_embed *a, int32_t id) {
    return id >= 0 && (uint32_t)id >= a->first && (uint32_t)id - a->first < a->count;
}

static float scale_of(const tm_embed *a) {
    return a->scale != 0 ? a->scale : 1.0F;
}

/* Elements [i, i + m) of the row that begins at element `from`, as `type` has them. */
static const float *row_values(const tm_embed *a, uint64_t from, uint64_t i, float *buf, size_t m) {
    uint16_t half[KERNELS_SPAN];
    if (!a->packed) return kernels_load(a->type, a->weight, from + i, buf, m);
    bool wide = a->type == TM_ELEM_F32;
    tm_packed_values(a->packed, from / a->n, i, m, a->type, wide ? (void *)buf : half);
    if (!wide) kernels_widen(a->type, half, buf, m);
    return buf;
}

/* to = or += scale * row of weight */
static void scaled_row(const tm_embed *a, uint64_t from, uint64_t to) {
    float x[KERNELS_SPAN], y[KERNELS_SPAN];
    for (uint64_t i = 0; i < a->n; i += KERNELS_SPAN) {
        size_t m = a->n - i < KERNELS_SPAN ? (size_t)(a->n - i) : KERNELS_SPAN;
        const float *w = row_values(a, from, i, x, m);
        float *dest = kernels_dest(a->type, a->out, to + i, y);
        if (a->add && a->type != TM_ELEM_F32) kernels_widen(a->type, (const uint16_t *)a->out + to + i, y, m);
        if (!a->add) memset(dest, 0, m * sizeof *dest);
        kernels.axpy(scale_of(a), w, dest, m);
        kernels_store(a->type, dest, a->out, to + i, m);
    }
}

void tm_embed_forward(const tm_embed *a) {
    size_t bytes = a->n * tm_elem_bytes(a->type);
    for (uint64_t r = 0; r < a->padded; r++) {
        char *to = (char *)a->out + r * bytes;
        bool here = r < a->rows && inside(a, a->ids[r]);
        if (here && (a->add || scale_of(a) != 1.0F))
            scaled_row(a, ((uint32_t)a->ids[r] - a->first) * a->n, r * a->n);
        else if (here && a->packed)
            tm_packed_values(a->packed, (uint32_t)a->ids[r] - a->first, 0, a->n, a->type, to);
        else if (here)
            memcpy(to, (const char *)a->weight + ((uint32_t)a->ids[r] - a->first) * bytes, bytes);
        else if (a->clear)
            memset(to, 0, bytes);
    }
}

/* Each thread owns columns, so that tokens are added in their order whatever the team. */
void tm_embed_backward(const tm_embed *a) {
    enum { COLUMNS = 64 };
    uint64_t n = a->n, blocks = (n + COLUMNS - 1) / COLUMNS;
    if (!a->grad_add) tm_zero(a->grad, (uint64_t)a->count * n * sizeof *a->grad);
#pragma omp parallel for schedule(static) num_threads(kernels_team())
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t at = b * COLUMNS;
        size_t m = n - at < COLUMNS ? (size_t)(n - at) : COLUMNS;
        float buf[COLUMNS];
        for (uint64_t r = 0; r < a->rows; r++)
            if (inside(a, a->ids[r]))
                kernels.axpy(scale_of(a), kernels_load(a->type, a->dout, r * n + at, buf, m),
                             a->grad + (uint64_t)((uint32_t)a->ids[r] - a->first) * n + at, m);
    }
}
