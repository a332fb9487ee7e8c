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

/* Elements of a row of x. */
static uint64_t in_width(const tm_glu *a) {
    return a->plain || a->up ? a->width : 2 * a->width;
}

/* Where u of a row begins: in `up`, or behind the gate. */
static uint64_t up_at(const tm_glu *a, uint64_t row) {
    return a->up ? row * a->ld_up : row * in_width(a) + a->width;
}

/* y = act(g) * u, or act(g), of a span. */
static void activate(const tm_glu *a, const float *g, const float *u, float *y, size_t n) {
    if (a->act == TM_ACT_SILU && !a->plain) {
        kernels.swiglu(g, u, y, n);
        return;
    }
    kernels.activate(a->act, g, y, NULL, n);
    for (size_t i = 0; !a->plain && i < n; i++) y[i] *= u[i];
}

void tm_glu_forward(const tm_glu *a) {
    uint64_t f = a->width;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (a->rows * f > SERIAL_ELEMENTS)
    for (uint64_t r = 0; r < a->rows; r++) {
        float g[KERNELS_SPAN], u[KERNELS_SPAN], out[KERNELS_SPAN];
        for (uint64_t i = 0; i < f; i += KERNELS_SPAN) {
            size_t n = span_at(i, f);
            uint64_t at = r * in_width(a) + i;
            const float *gate = kernels_load(a->type, a->x, at, g, n);
            const float *up = a->plain ? NULL : kernels_load(a->type, a->up ? a->up : a->x, up_at(a, r) + i, u, n);
            float *dest = kernels_dest(a->type, a->y, r * f + i, out);
            activate(a, gate, up, dest, n);
            kernels_store(a->type, dest, a->y, r * f + i, n);
        }
    }
}

/* y again, and dg, du; g and dg, u and du may be the same place. */
static void activate_back(const tm_glu *a, const float *g, const float *u, const float *dy, float *y, float *dg,
                          float *du, size_t n) {
    float slope[KERNELS_SPAN];
    if (a->act == TM_ACT_SILU && !a->plain) {
        kernels.swiglu_grad(g, u, dy, y, dg, du, n);
        return;
    }
    kernels.activate(a->act, g, y, slope, n);
    for (size_t i = 0; i < n; i++) {
        float up = a->plain ? 1 : u[i];
        dg[i] = dy[i] * up * slope[i];
        if (!a->plain) du[i] = dy[i] * y[i];
        y[i] *= up;
    }
}

void tm_glu_backward(const tm_glu *a) {
    uint64_t f = a->width;
    void *d_up = a->up ? a->d_up : a->dx;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (a->rows * f > SERIAL_ELEMENTS)
    for (uint64_t r = 0; r < a->rows; r++) {
        float g[KERNELS_SPAN], u[KERNELS_SPAN], out[KERNELS_SPAN], dg[KERNELS_SPAN], du[KERNELS_SPAN];
        for (uint64_t i = 0; i < f; i += KERNELS_SPAN) {
            size_t n = span_at(i, f);
            uint64_t at_g = r * in_width(a) + i, at_u = up_at(a, r) + i, at_y = r * f + i;
            const float *gate = kernels_load(a->type, a->x, at_g, g, n);
            const float *up = a->plain ? NULL : kernels_load(a->type, a->up ? a->up : a->x, at_u, u, n);
            float *to_y = kernels_dest(a->type, a->y, at_y, out), *to_g = kernels_dest(a->type, a->dx, at_g, dg);
            float *to_u = a->plain ? NULL : kernels_dest(a->type, d_up, at_u, du);
            activate_back(a, gate, up, a->dy + at_y, to_y, to_g, to_u, n);
            kernels_store(a->type, to_y, a->y, at_y, n);
            kernels_store(a->type, to_g, a->dx, at_g, n);
            if (!a->plain) kernels_store(a->type, to_u, d_up, at_u, n);
        }
    }
}

void tm_scale(tm_elem t, uint64_t n, const void *factor, const void *x, void *y) {
    float buf[1], by = *kernels_load(t, factor, 0, buf, 1);
    uint64_t spans = (n + KERNELS_SPAN - 1) / KERNELS_SPAN;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (n > SERIAL_ELEMENTS)
    for (uint64_t s = 0; s < spans; s++) {
        float from[KERNELS_SPAN], out[KERNELS_SPAN];
        uint64_t at = s * KERNELS_SPAN;
        size_t m = span_at(at, n);
        float *dest = kernels_dest(t, y, at, out);
        memmove(dest, kernels_load(t, x, at, from, m), m * sizeof *dest);
        kernels.scale(by, dest, m);
        kernels_store(t, dest, y, at, m);
    }
}

void tm_softcap(uint64_t rows, uint64_t n, uint64_t ld, float cap, float *x) {
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows * n > SERIAL_ELEMENTS)
    for (uint64_t r = 0; r < rows; r++) kernels.softcap(x + r * ld, 1, cap, n);
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
