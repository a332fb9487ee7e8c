/* The reference column: complete, portable, readable. Loops are plain so that the compiler may vectorise what it can
 * without changing a rounding. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

static void widen(const uint16_t *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(&y[i], &bits, 4);
    }
}

static void narrow(const float *x, uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
        uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
        y[i] = (uint16_t)(nan ? (bits >> 16) | 0x40U : rounded);
    }
}

/* fp16: 5 bits of exponent, 10 of mantissa; below 2^-14 multiples of 2^-24. */
static void widen_f16(const uint16_t *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(x[i] & 0x8000U) << 16, magnitude = x[i] & 0x7fffU, bits;
        if (magnitude < 0x400U) {
            float v = (float)magnitude * 0x1p-24F;
            memcpy(&bits, &v, 4);
        } else if (magnitude < 0x7c00U) {
            bits = (magnitude << 13) + (112U << 23);
        } else {
            bits = 0x7f800000U | magnitude << 13 | (magnitude > 0x7c00U ? 0x400000U : 0);
        }
        bits |= sign;
        memcpy(&y[i], &bits, 4);
    }
}

static uint32_t half_magnitude(uint32_t bits) {
    float v;
    if (bits > 0x7f800000U) return 0x7e00U | (bits >> 13 & 0x1ffU); /* NaN: quiet, with the upper payload */
    if (bits >= 0x47800000U) return 0x7c00U;                        /* 2^16 */
    if (bits >= 0x38800000U) return (bits - (112U << 23) + 0xfffU + (bits >> 13 & 1U)) >> 13; /* from 2^-14 on */
    memcpy(&v, &bits, 4);
    return (uint32_t)lrintf(v * 0x1p24F); /* to nearest even */
}

static void narrow_f16(const float *x, uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        y[i] = (uint16_t)((bits >> 16 & 0x8000U) | half_magnitude(bits & 0x7fffffffU));
    }
}

static float dot(const float *x, const float *y, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return (float)sum;
}

static float dot3(const float *x, const float *y, const float *z, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i] * (double)z[i];
    return (float)sum;
}

static void axpy(float a, const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += a * x[i];
}

static void scale(float a, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] *= a;
}

static void norm_apply(const float *x, const float *w, float inv, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}

static void norm_grad(const float *x, const float *w, const float *dy, float inv, float c, float *dx, float *dw,
                      size_t n) {
    for (size_t i = 0; i < n; i++) {
        dw[i] += dy[i] * x[i] * inv;
        dx[i] = inv * w[i] * dy[i] - c * x[i];
    }
}

static float sigmoid(float x) {
    return 1.0F / (1.0F + expf(-x));
}

static void swiglu(const float *g, const float *u, float *a, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = g[i] * sigmoid(g[i]) * u[i];
}

/* silu'(g) = s (1 + g (1 - s)), s = sigmoid(g) */
static void swiglu_grad(const float *g, const float *u, const float *da, float *a, float *dg, float *du, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float s = sigmoid(g[i]), silu = g[i] * s;
        a[i] = silu * u[i];
        du[i] = da[i] * silu;
        dg[i] = da[i] * u[i] * (s * (1.0F + g[i] * (1.0F - s)));
    }
}

/* Value and slope of an activation at x. Phi(x) = (1 + erf(x / sqrt 2)) / 2, its density phi. */
static float silu_at(float x, float *slope) {
    float s = sigmoid(x);
    *slope = s * (1.0F + x * (1.0F - s));
    return x * s;
}
static float gelu_at(float x, float *slope) {
    float half = 0.5F * (1.0F + erff(x * 0.70710678F)), density = 0.39894228F * expf(-0.5F * x * x);
    *slope = half + x * density;
    return x * half;
}
/* x (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3) */
static float gelu_tanh_at(float x, float *slope) {
    float t = tanhf(0.79788456F * (x + 0.044715F * x * x * x));
    *slope = 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * 0.79788456F * (1.0F + 3 * 0.044715F * x * x);
    return 0.5F * x * (1.0F + t);
}

static void activate(tm_activation act, const float *x, float *y, float *slope, size_t n) {
    float (*const at[])(float, float *) = {silu_at, gelu_at, gelu_tanh_at};
    for (size_t i = 0; i < n; i++) {
        float s;
        y[i] = at[act](x[i], &s);
        if (slope) slope[i] = s;
    }
}

static void softcap(float *x, float factor, float cap, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = cap * tanhf(x[i] * factor / cap);
}

static void rotate(const float *cosine, const float *sine, bool inverse, float *x1, float *x2, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float c = cosine[i], s = inverse ? -sine[i] : sine[i], a = x1[i], b = x2[i];
        x1[i] = a * c - b * s;
        x2[i] = b * c + a * s;
    }
}

static float max(const float *x, size_t n) {
    float m = -INFINITY;
    for (size_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

static float exp_sum(const float *x, float shift, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)expf(x[i] - shift);
    return (float)sum;
}

static void softmax_grad(float *x, float lse, float coefficient, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = coefficient * expf(x[i] - lse);
}

static float softmax_row(float *s, float factor, float *running_max, float *running_sum, size_t n) {
    float m = *running_max, old = *running_max, sum = 0;
    for (size_t i = 0; i < n; i++) m = s[i] * factor > m ? s[i] * factor : m;
    if (m == -INFINITY) { /* nothing visible yet */
        memset(s, 0, n * sizeof *s);
        return 1.0F;
    }
    for (size_t i = 0; i < n; i++) {
        s[i] = expf(s[i] * factor - m);
        sum += s[i];
    }
    float back = expf(old - m);
    *running_max = m;
    *running_sum = *running_sum * back + sum;
    return back;
}

static void softmax_row_grad(float *s, float *dp, float factor, float lse, float delta, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s[i] = expf(s[i] * factor - lse);
        dp[i] = s[i] * (dp[i] - delta) * factor;
    }
}

static void small_gemm(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b, size_t ldb,
                       float *c, size_t ldc, bool add) {
    for (size_t i = 0; i < m; i++) {
        float *row = c + i * ldc;
        if (!add) memset(row, 0, n * sizeof *row);
        for (size_t p = 0; p < k; p++) axpy(a[i * ras + p * cas], b + p * ldb, row, n);
    }
}

static void transpose(const float *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy) {
    for (size_t i = 0; i < tm_round_up(rows, 8); i++)
        for (size_t j = 0; j < cols; j++) y[j * ldy + i] = i < rows ? x[i * ldx + j] : 0.0F;
}

typedef void widening(const uint16_t *x, float *y, size_t n);

static void transpose_16(widening *wide, const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y,
                         size_t ldy) {
    for (size_t j = 0; j < cols; j++) {
        for (size_t i = 0; i < rows; i++) wide(x + i * ldx + j, y + j * ldy + i, 1);
        for (size_t i = rows; i < tm_round_up(rows, 8); i++) y[j * ldy + i] = 0.0F;
    }
}
static void transpose_bf16(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy) {
    transpose_16(widen, x, ldx, rows, cols, y, ldy);
}
static void transpose_f16(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy) {
    transpose_16(widen_f16, x, ldx, rows, cols, y, ldy);
}

static void deal_bf16(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y) {
    for (size_t j = 0; j < to.panels; j++)
        for (size_t p = 0; p < rows; p++) widen(x + p * ldx + j * to.step, y + j * to.stride + p * to.width, to.width);
}
static void deal_f16(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y) {
    for (size_t j = 0; j < to.panels; j++)
        for (size_t p = 0; p < rows; p++)
            widen_f16(x + p * ldx + j * to.step, y + j * to.stride + p * to.width, to.width);
}

static void gemm_tile(size_t k, const float *a_panel, const float *b_panel, float alpha, float beta, float *c,
                      size_t ldc) {
    float acc[GEMM_MR][GEMM_NR] = {{0}};
    for (size_t p = 0; p < k; p++)
        for (size_t i = 0; i < GEMM_MR; i++)
            for (size_t j = 0; j < GEMM_NR; j++) acc[i][j] += a_panel[p * GEMM_A_LD + i] * b_panel[p * GEMM_NR + j];
    for (size_t i = 0; i < GEMM_MR; i++)
        for (size_t j = 0; j < GEMM_NR; j++)
            c[i * ldc + j] = alpha * acc[i][j] + (beta == 0 ? 0 : beta * c[i * ldc + j]);
}

/* ---- 4-bit codes: the 16 values of a block first ---- */

static uint8_t code_at(const uint8_t *codes, size_t i) {
    return (uint8_t)(i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4);
}

static void block_values(const kernels_nf4 *a, size_t from, float values[16]) {
    float absmax = a->absmax[from / a->block];
    for (int c = 0; c < 16; c++) values[c] = a->map[c] * absmax;
}

static void nf4_f32(const kernels_nf4 *a, float *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        float values[16];
        size_t end = from + (a->n - from < a->block ? a->n - from : a->block);
        block_values(a, from, values);
        for (size_t i = from; i < end; i++) y[i] = values[code_at(a->codes, i)];
    }
}

static void nf4_16(const kernels_nf4 *a, void (*to_16)(const float *x, uint16_t *y, size_t n), uint16_t *y) {
    for (size_t from = 0; from < a->n; from += a->block) {
        float values[16];
        uint16_t rounded[16];
        size_t end = from + (a->n - from < a->block ? a->n - from : a->block);
        block_values(a, from, values);
        to_16(values, rounded, 16);
        for (size_t i = from; i < end; i++) y[i] = rounded[code_at(a->codes, i)];
    }
}
static void nf4_bf16(const kernels_nf4 *a, uint16_t *y) {
    nf4_16(a, narrow, y);
}
static void nf4_f16(const kernels_nf4 *a, uint16_t *y) {
    nf4_16(a, narrow_f16, y);
}

static void drop_mask(const kernels_draw *d, uint64_t first, size_t blocks, float *mask) {
    for (size_t b = 0; b < blocks; b++) {
        uint32_t words[KERNELS_DRAWS / 2];
        tm_philox(d->key, 0, first + b, words);
        for (size_t i = 0; i < KERNELS_DRAWS; i++)
            mask[b * KERNELS_DRAWS + i] = (words[i / 2] >> 16 * (i % 2) & 0xffff) < d->dropped ? 0 : d->kept;
    }
}

/* By value: what is written through `codes` might else be the numbers themselves, for all that the compiler knows. */
static void encode_some(kernels_nf4_encode a, size_t n) {
    float scaled[64] = {0};
    int32_t below[64] = {0};
    for (size_t i = 0; i < n && a.absmax > 0; i++) scaled[i] = a.x[i] / a.absmax;
    for (int c = 0; c < 15; c++)
        for (size_t i = 0; i < 64; i++) below[i] += scaled[i] > a.middle[c];
    for (size_t i = 0; i < n; i += 2) a.codes[i / 2] = (uint8_t)(a.order[below[i]] << 4 | a.order[below[i + 1]]);
}
static void nf4_encode(const kernels_nf4_encode *a) {
    for (size_t at = 0; at < a->n; at += 64) {
        kernels_nf4_encode some = *a;
        some.x += at, some.codes += at / 2;
        encode_some(some, a->n - at < 64 ? a->n - at : 64);
    }
}

void kernels_ref_fill(kernels_table *t) {
    *t = (kernels_table){.isa = "ref",
                         .level = KERNELS_REF,
                         .widen = widen,
                         .narrow = narrow,
                         .widen_f16 = widen_f16,
                         .narrow_f16 = narrow_f16,
                         .dot = dot,
                         .axpy = axpy,
                         .scale = scale,
                         .norm_apply = norm_apply,
                         .dot3 = dot3,
                         .norm_grad = norm_grad,
                         .swiglu = swiglu,
                         .swiglu_grad = swiglu_grad,
                         .activate = activate,
                         .softcap = softcap,
                         .rotate = rotate,
                         .drop_mask = drop_mask,
                         .max = max,
                         .exp_sum = exp_sum,
                         .softmax_grad = softmax_grad,
                         .softmax_row = softmax_row,
                         .softmax_row_grad = softmax_row_grad,
                         .small_gemm = small_gemm,
                         .transpose = transpose,
                         .transpose_bf16 = transpose_bf16,
                         .transpose_f16 = transpose_f16,
                         .deal_bf16 = deal_bf16,
                         .deal_f16 = deal_f16,
                         .nf4_f32 = nf4_f32,
                         .nf4_bf16 = nf4_bf16,
                         .nf4_f16 = nf4_f16,
                         .nf4_encode = nf4_encode,
                         .gemm_tile = gemm_tile};
    kernels_packed_ref(t);
}
