/* Sizes: what a leaf's result would be if no term cancelled another. A column of the table like the others, though it
 * is never used to compute: n roundings move a result by at most gamma_n of its size (Higham 2002, chapter 3), which is
 * what columns are compared within. */
#include "kernels/kernels_internal.h"

#include <math.h>

/* An argument's rounding moves an exponential by that much of itself. */
static float size_exp(float x, float shift) {
    return expf(x - shift) * (1 + fabsf(x) + fabsf(shift));
}
static float size_dot(const float *x, const float *y, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += fabsf(x[i] * y[i]);
    return sum;
}
static float size_dot3(const float *x, const float *y, const float *z, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += fabsf(x[i] * y[i] * z[i]);
    return sum;
}
static float size_exp_sum(const float *x, float shift, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += size_exp(x[i], shift);
    return sum;
}
static void size_axpy(float a, const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = fabsf(a * x[i]) + fabsf(y[i]);
}
static void size_scale(float a, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = fabsf(a * x[i]);
}
static void size_norm_apply(const float *x, const float *w, float inv, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = fabsf(x[i] * inv * w[i]);
}
static void size_norm_grad(const float *x, const float *w, const float *dy, float inv, float c, float *dx, float *dw,
                           size_t n) {
    for (size_t i = 0; i < n; i++) {
        dw[i] = fabsf(dw[i]) + fabsf(dy[i] * x[i] * inv);
        dx[i] = fabsf(inv * w[i] * dy[i]) + fabsf(c * x[i]);
    }
}
static float size_silu(float g) {
    return fabsf(g) / (1 + expf(-g));
}
static void size_swiglu(const float *g, const float *u, float *a, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = size_silu(g[i]) * fabsf(u[i]);
}
static void size_swiglu_grad(const float *g, const float *u, const float *da, float *a, float *dg, float *du,
                             size_t n) {
    for (size_t i = 0; i < n; i++) {
        a[i] = size_silu(g[i]) * fabsf(u[i]);
        du[i] = size_silu(g[i]) * fabsf(da[i]);
        dg[i] = fabsf(da[i] * u[i]) / (1 + expf(-g[i])) * (1 + fabsf(g[i]));
    }
}
static void size_activate(tm_activation act, const float *x, float *y, float *slope, size_t n) {
    (void)act;
    for (size_t i = 0; i < n; i++) y[i] = fabsf(x[i]) * (1 + fabsf(x[i])), slope[i] = 2 * (1 + fabsf(x[i]));
}
static void size_softcap(float *x, float factor, float cap, size_t n) {
    (void)cap;
    for (size_t i = 0; i < n; i++) x[i] = fabsf(x[i] * factor);
}
static void size_rotate(const float *cosine, const float *sine, bool inverse, float *x1, float *x2, size_t n) {
    (void)inverse;
    for (size_t i = 0; i < n; i++) {
        float c = fabsf(cosine[i]), s = fabsf(sine[i]), a = fabsf(x1[i]), b = fabsf(x2[i]);
        x1[i] = a * c + b * s;
        x2[i] = b * c + a * s;
    }
}
static void size_softmax_grad(float *x, float lse, float coefficient, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = fabsf(coefficient) * size_exp(x[i], lse);
}
static float size_softmax_row(float *s, float factor, float *running_max, float *running_sum, size_t n) {
    float m = *running_max, old = m, sum = 0;
    for (size_t i = 0; i < n; i++) m = fmaxf(m, s[i] * factor);
    for (size_t i = 0; i < n; i++) sum += s[i] = size_exp(s[i] * factor, m);
    *running_max = fabsf(m);
    *running_sum = *running_sum * size_exp(old, m) + sum;
    return size_exp(old, m);
}
static void size_softmax_row_grad(float *s, float *dp, float factor, float lse, float delta, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s[i] = size_exp(s[i] * factor, lse);
        dp[i] = s[i] * (fabsf(dp[i]) + fabsf(delta)) * fabsf(factor);
    }
}
static void size_small_gemm(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                            size_t ldb, float *c, size_t ldc, bool add) {
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = add ? fabsf(c[i * ldc + j]) : 0;
            for (size_t p = 0; p < k; p++) sum += fabsf(a[i * ras + p * cas] * b[p * ldb + j]);
            c[i * ldc + j] = sum;
        }
}
static void size_gemm_tile(size_t k, const float *a, const float *b, float alpha, float beta, float *c, size_t ldc) {
    for (size_t i = 0; i < GEMM_MR; i++)
        for (size_t j = 0; j < GEMM_NR; j++) {
            float sum = 0;
            for (size_t p = 0; p < k; p++) sum += fabsf(a[p * GEMM_A_LD + i] * b[p * GEMM_NR + j]);
            c[i * ldc + j] = fabsf(alpha) * sum + fabsf(beta * c[i * ldc + j]);
        }
}
const kernels_table kernels_sizes = {.dot = size_dot,
                                     .dot3 = size_dot3,
                                     .exp_sum = size_exp_sum,
                                     .axpy = size_axpy,
                                     .scale = size_scale,
                                     .norm_apply = size_norm_apply,
                                     .norm_grad = size_norm_grad,
                                     .swiglu = size_swiglu,
                                     .swiglu_grad = size_swiglu_grad,
                                     .activate = size_activate,
                                     .softcap = size_softcap,
                                     .rotate = size_rotate,
                                     .softmax_grad = size_softmax_grad,
                                     .softmax_row = size_softmax_row,
                                     .softmax_row_grad = size_softmax_row_grad,
                                     .small_gemm = size_small_gemm,
                                     .gemm_tile = size_gemm_tile};
