/* Row-wise work without reductions across rows: conversions, the gated unit, biases, gather, scatter. */
#include "kernels/kernels_internal.h"

#include <string.h>

enum { SERIAL_ELEMENTS = 16384 }; /* below this a team costs more than it saves; the result is the same */

void tm_widen(const uint16_t *x, float *y, size_t n) {
    kernels.widen(x, y, n);
}
void tm_narrow(const float *x, uint16_t *y, size_t n) {
    kernels.narrow(x, y, n);
}
void tm_widen_f16(const uint16_t *x, float *y, size_t n) {
    kernels.widen_f16(x, y, n);
}
void tm_narrow_f16(const float *x, uint16_t *y, size_t n) {
    kernels.narrow_f16(x, y, n);
}

static size_t span_at(uint64_t i, uint64_t n) {
    return n - i < KERNELS_SPAN ? (size_t)(n - i) : KERNELS_SPAN;
}

void tm_swiglu_forward(tm_elem t, uint64_t rows, uint64_t f, const void *gate_up, void *a) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * f > SERIAL_ELEMENTS)
    for (uint64_t r = 0; r < rows; r++) {
        float g[KERNELS_SPAN], u[KERNELS_SPAN], out[KERNELS_SPAN];
        for (uint64_t i = 0; i < f; i += KERNELS_SPAN) {
            size_t n = span_at(i, f);
            const float *gate = kernels_load(t, gate_up, r * 2 * f + i, g, n);
            const float *up = kernels_load(t, gate_up, (r * 2 + 1) * f + i, u, n);
            float *dest = kernels_dest(t, a, r * f + i, out);
            kernels.swiglu(gate, up, dest, n);
            kernels_store(t, dest, a, r * f + i, n);
        }
    }
}

void tm_swiglu_backward(tm_elem t, uint64_t rows, uint64_t f, const void *gate_up, const float *da, void *d_gate_up,
                        void *a) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * f > SERIAL_ELEMENTS)
    for (uint64_t r = 0; r < rows; r++) {
        float g[KERNELS_SPAN], u[KERNELS_SPAN], out[KERNELS_SPAN], dg[KERNELS_SPAN], du[KERNELS_SPAN];
        for (uint64_t i = 0; i < f; i += KERNELS_SPAN) {
            size_t n = span_at(i, f);
            uint64_t at_g = r * 2 * f + i, at_u = at_g + f, at_a = r * f + i;
            const float *gate = kernels_load(t, gate_up, at_g, g, n), *up = kernels_load(t, gate_up, at_u, u, n);
            float *to_a = kernels_dest(t, a, at_a, out);
            float *to_g = kernels_dest(t, d_gate_up, at_g, dg), *to_u = kernels_dest(t, d_gate_up, at_u, du);
            kernels.swiglu_grad(gate, up, da + at_a, to_a, to_g, to_u, n);
            kernels_store(t, to_a, a, at_a, n);
            kernels_store(t, to_g, d_gate_up, at_g, n);
            kernels_store(t, to_u, d_gate_up, at_u, n);
        }
    }
}

/* y += x for one row of type t, both at element offsets. */
static void add_row(tm_elem t, uint64_t n, const void *x, uint64_t x_at, void *y, uint64_t y_at) {
    float bx[KERNELS_SPAN], by[KERNELS_SPAN];
    for (uint64_t i = 0; i < n; i += KERNELS_SPAN) {
        size_t m = span_at(i, n);
        const float *from = kernels_load(t, x, x_at + i, bx, m);
        float *to = kernels_dest(t, y, y_at + i, by);
        if (t != TM_ELEM_F32) kernels_widen(t, (const uint16_t *)y + y_at + i, by, m);
        kernels.axpy(1.0F, from, to, m);
        kernels_store(t, to, y, y_at + i, m);
    }
}

void tm_add_bias(tm_elem t, uint64_t rows, uint64_t n, const void *bias, void *x, uint64_t ld) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * n > SERIAL_ELEMENTS)
    for (uint64_t r = 0; r < rows; r++) add_row(t, n, bias, 0, x, r * ld);
}

/* Each thread owns columns, so that the order of the rows is kept whatever the team. */
void tm_column_sum(tm_elem t, uint64_t rows, uint64_t n, const void *x, uint64_t ld, float *out, bool add) {
    enum { COLUMNS = 256 };
    uint64_t blocks = (n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * n > SERIAL_ELEMENTS)
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t first = b * COLUMNS;
        size_t m = n - first < COLUMNS ? (size_t)(n - first) : COLUMNS;
        float sum[COLUMNS] = {0}, buf[COLUMNS];
        for (uint64_t r = 0; r < rows; r++) kernels.axpy(1.0F, kernels_load(t, x, r * ld + first, buf, m), sum, m);
        if (!add) memset(out + first, 0, m * sizeof *out);
        kernels.axpy(1.0F, sum, out + first, m);
    }
}

void tm_gather_rows(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const uint32_t *row, const void *src,
                    void *dst) {
    size_t bytes = n * tm_elem_bytes(t);
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * n > SERIAL_ELEMENTS)
    for (uint64_t i = 0; i < padded; i++) {
        if (i < rows)
            memcpy((char *)dst + i * bytes, (const char *)src + row[i] * bytes, bytes);
        else
            memset((char *)dst + i * bytes, 0, bytes);
    }
}

void tm_scatter_add_rows(uint64_t rows, uint64_t n, const uint32_t *row, const float *src, float *dst) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * n > SERIAL_ELEMENTS)
    for (uint64_t i = 0; i < rows; i++) kernels.axpy(1.0F, src + i * n, dst + row[i] * n, n);
}

void tm_zero(void *p, uint64_t bytes) {
    enum { BLOCK = 1 << 18 };
    uint64_t blocks = (bytes + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (blocks > 1)
    for (uint64_t b = 0; b < blocks; b++)
        memset((char *)p + b * BLOCK, 0, (size_t)tm_min_u64(BLOCK, bytes - b * BLOCK));
}
