/* Every leaf of each ISA's column beside `ref`: spans at any address, split, without elements, with infinities, NaN and
 * denormals; sums within what roundings may do to them. */
#include "tests/kernels/values.h"

static void exponential(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -87.0F; x < 0.0F; x += 0.000731F) {
        float v[8] = {x, x, x, x, x, x, x, x};
        kernels.softmax_grad(v, 0.0F, 1.0F, 8);
        worst = fmax(worst, fabs((double)v[0] / exp((double)x) - 1));
    }
    printf("%s: exp is right to %.3g\n", kernels.isa, worst);
    assert_true(worst < 1.5e-7);
    float extremes[8] = {-INFINITY, -1e30F, -104.0F, NAN, 0.0F, 88.0F, -87.4F, 1e-30F};
    kernels.softmax_grad(extremes, 0.0F, 1.0F, 8);
    assert_true(extremes[0] == 0 && extremes[1] == 0 && extremes[2] < 1e-38F && isnan(extremes[3]));
    assert_true(extremes[4] == 1.0F && fabs((double)extremes[5] / exp(88.0) - 1) < 2e-7 && extremes[7] == 1.0F);
}

/* The chosen column against double, at every short length, tails included. Bounds are those of rounding: of any order
 * of the sum. */
static void sums(void **state) {
    (void)state;
    for (size_t n = 0; n < 70; n++) {
        double *a = randoms(n, 3), *b = randoms(n, 3), *c = randoms(n, 3);
        float *x = stored(TM_ELEM_F32, a, n), *y = stored(TM_ELEM_F32, b, n), *z = stored(TM_ELEM_F32, c, n);
        double dot = 0, dot3 = 0, exps = 0, dot_size = 0, dot3_size = 0, exp_size = 0, top = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            dot += a[i] * b[i], dot_size += fabs(a[i] * b[i]);
            dot3 += a[i] * b[i] * c[i], dot3_size += fabs(a[i] * b[i] * c[i]);
            exps += exp(a[i] - 3), exp_size += exp(a[i] - 3) * (fabs(a[i] - 3) + 3); /* argument, exponential, sum */
            top = fmax(top, a[i]);
        }
        within((double)kernels.dot(x, y, n), dot, gamma_of(n + 1) * dot_size, "dot", n);
        within((double)kernels.dot3(x, y, z, n), dot3, gamma_of(n + 2) * dot3_size, "dot3", n);
        within((double)kernels.exp_sum(x, 3, n), exps, gamma_of(n + 1) * exp_size, "exp_sum", n);
        assert_true((double)kernels.max(x, n) == top);
        free(a), free(b), free(c), free(x), free(y), free(z);
    }
}

static void elements(void **state) {
    (void)state;
    for (size_t n = 0; n < 70; n++) {
        double *a = randoms(n, 3), *b = randoms(n, 3), *c = randoms(n, 3), *d = randoms(n, 3);
        float *x = stored(TM_ELEM_F32, a, n), *y = stored(TM_ELEM_F32, b, n), *z = stored(TM_ELEM_F32, c, n);
        float *w = stored(TM_ELEM_F32, d, n), *dx = malloc((n + 1) * sizeof *dx), *norm = malloc((n + 1) * sizeof *dx);
        const double f = (double)0.9F, g = (double)0.1F, h = (double)0.3F;
        kernels.norm_apply(x, y, 0.9F, norm, n);
        kernels.norm_grad(x, y, w, 0.9F, 0.1F, dx, z, n);
        for (size_t i = 0; i < n; i++) {
            within((double)norm[i], a[i] * b[i] * f, gamma_of(2) * fabs(a[i] * b[i] * f), "norm_apply", i);
            within((double)dx[i], f * b[i] * d[i] - g * a[i], gamma_of(3) * (fabs(f * b[i] * d[i]) + fabs(g * a[i])),
                   "norm_grad dx", i);
            within((double)z[i], c[i] + d[i] * a[i] * f, gamma_of(3) * (fabs(c[i]) + fabs(d[i] * a[i] * f)),
                   "norm_grad dw", i);
        }
        kernels.axpy(0.3F, x, y, n), kernels.scale(0.3F, w, n);
        for (size_t i = 0; i < n; i++) {
            within((double)y[i], b[i] + h * a[i], gamma_of(2) * (fabs(b[i]) + fabs(h * a[i])), "axpy", i);
            assert_true(w[i] == 0.3F * (float)d[i]);
        }
        free(a), free(b), free(c), free(d), free(x), free(y), free(z), free(w), free(dx), free(norm);
    }
}

/* Bit for bit, ends of every kind, and where the counter carries. */
static void masks(void **state) {
    (void)state;
    enum { BLOCKS = 40 };
    static const uint64_t first[] = {0, 5, UINT32_MAX - 20, UINT32_MAX, (uint64_t)1 << 40};
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t i = 0; i < TM_COUNT(first); i++)
        for (size_t n = 0; n <= BLOCKS; n++) {
            float got[(BLOCKS + 1) * KERNELS_DRAWS], want[BLOCKS * KERNELS_DRAWS];
            const kernels_draw d = {.key = 77 + i, .dropped = (uint32_t)(n * 1638), .kept = 1.5F};
            for (size_t k = 0; k < TM_COUNT(got); k++) got[k] = 7;
            kernels.drop_mask(&d, first[i], n, got);
            ref.drop_mask(&d, first[i], n, want);
            assert_memory_equal(got, want, n * KERNELS_DRAWS * sizeof *got);
            for (size_t k = n * KERNELS_DRAWS; k < TM_COUNT(got); k++) assert_true(got[k] == 7);
        }
}

/* The sum of a row and a column in the order of k: what the columns with vectors give, whatever their width. */
static float in_order(const float *a, size_t step, const float *b, size_t n, size_t k, float sum) {
    for (size_t p = 0; p < k; p++) sum = fmaf(a[p * step], b[p * n], sum);
    return sum;
}

static void small_products(void **state) {
    (void)state;
    for (size_t m = 1; m <= 21; m++)
        for (size_t trans = 0; trans < 2; trans++) {
            size_t n = 48, k = 9;
            double *a = randoms(m * k, 1), *b = randoms(k * n, 1), *c = randoms(m * n, 1);
            float *sa = stored(TM_ELEM_F32, a, m * k), *sb = stored(TM_ELEM_F32, b, k * n),
                  *sc = stored(TM_ELEM_F32, c, m * n);
            float *old = stored(TM_ELEM_F32, c, m * n);
            kernels.small_gemm(m, n, k, sa, trans ? 1 : k, trans ? m : 1, sb, n, sc, n, m % 2);
            for (size_t i = 0; i < m; i++)
                for (size_t j = 0; j < n; j++) {
                    double want = m % 2 ? c[i * n + j] : 0, size = fabs(want);
                    for (size_t p = 0; p < k; p++) {
                        double term = a[trans ? p * m + i : i * k + p] * b[p * n + j];
                        want += term, size += fabs(term);
                    }
                    within((double)sc[i * n + j], want, gamma_of(k + 1) * size, "small_gemm", i);
                    float sum =
                        in_order(sa + i * (trans ? 1 : k), trans ? m : 1, sb + j, n, k, m % 2 ? old[i * n + j] : 0);
                    if (kernels.level >= KERNELS_AVX2) assert_true(sc[i * n + j] == sum);
                }
            float y[9 * 24], *from = sa;
            kernels.transpose(from, k, m, k, y, 24);
            for (size_t p = 0; p < k; p++)
                for (size_t i = 0; i < tm_round_up(m, 8); i++)
                    assert_true(y[p * 24 + i] == (i < m ? sa[i * k + p] : 0));
            free(a), free(b), free(c), free(sa), free(sb), free(sc), free(old);
        }
}

/* What packing moves: every element at its place, widened exactly, NaN and denormals too; and no other place written.
 */
static void moved(void (*widen)(const uint16_t *, float *, size_t), const uint16_t *x, float got, size_t at) {
    float want;
    widen(x, &want, 1);
    if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want))
        fail_msg("element %zu: %.9g, expected %.9g", at, (double)got, (double)want);
}

static void transposes_of_16_bits(void **state) {
    (void)state;
    enum { LD = 41, ROWS = 19, MOST = LD * 24 };
    uint16_t x[LD * ROWS + 1];
    float y[MOST];
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t i = 0; i < TM_COUNT(x); i++) x[i] = (uint16_t)(i * 40503U);
    for (int f16 = 0; f16 < 2; f16++)
        for (size_t rows = 1; rows <= ROWS; rows++)
            for (size_t columns = 0; columns <= LD - 1; columns++) {
                size_t high = tm_round_up(rows, 8);
                for (size_t i = 0; i < MOST; i++) y[i] = 123456;
                (f16 ? kernels.transpose_f16 : kernels.transpose_bf16)(x + 1, LD, rows, columns, y, 24);
                for (size_t j = 0; j < LD; j++)
                    for (size_t i = 0; i < 24; i++)
                        if (j < columns && i < rows)
                            moved(f16 ? ref.widen_f16 : ref.widen, x + 1 + i * LD + j, y[j * 24 + i], j * 24 + i);
                        else
                            assert_true(y[j * 24 + i] == (j < columns && i < high ? 0.0F : 123456.0F));
            }
}

static void deals_of_16_bits(void **state) {
    (void)state;
    enum { LD = 70, ROWS = 5, STRIDE = 100, PANELS = 4 };
    uint16_t x[LD * ROWS + 1];
    float y[PANELS * STRIDE];
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t i = 0; i < TM_COUNT(x); i++) x[i] = (uint16_t)(i * 40503U);
    for (unsigned mix = 0; mix < 4; mix++)
        for (size_t rows = 0; rows <= ROWS; rows++) {
            bool f16 = mix & 1U;
            kernels_deal to = {PANELS, mix & 2U ? 16 : 6, mix & 2U ? 16 : 8, STRIDE};
            for (size_t i = 0; i < TM_COUNT(y); i++) y[i] = 123456;
            (f16 ? kernels.deal_f16 : kernels.deal_bf16)(x + 1, LD, rows, to, y);
            for (size_t j = 0; j < PANELS; j++)
                for (size_t at = 0; at < STRIDE; at++) {
                    size_t p = at / to.width, i = at % to.width;
                    if (p < rows)
                        moved(f16 ? ref.widen_f16 : ref.widen, x + 1 + p * LD + j * to.step + i, y[j * STRIDE + at],
                              at);
                    else
                        assert_true(y[j * STRIDE + at] == 123456.0F);
                }
        }
}

/* Values that arithmetic treats apart, at every place of a vector and its tail: infinities and NaN go where ref puts
 * them, denormals are kept, and neighbours are untouched. */
static bool alike(float got, float want) {
    if (isnan(want)) return isnan(got);
    if (isinf(want) || fpclassify(want) == FP_ZERO) return got == want;
    return fabs((double)got - (double)want) <= 1e-5 * fabs((double)want) + 1e-44;
}

static void special_values(void **state) {
    (void)state;
    static const float special[] = {INFINITY, -INFINITY, NAN, 1e-40F, -1e-45F, 3e38F, -0.0F};
    enum { LONG = 35 };
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t v = 0; v < TM_COUNT(special); v++)
        for (size_t at = 0; at < LONG; at++) {
            float x[LONG + 1], y[2][LONG + 1], z[2][LONG + 1], out[2][LONG + 1], g[2][LONG + 1], u[2][LONG + 1];
            float up[LONG + 1];
            for (size_t i = 0; i <= LONG; i++)
                x[i] = (float)i / 8 - 2, y[0][i] = y[1][i] = z[0][i] = z[1][i] = up[i] = 0.5F;
            x[at + 1] = special[v];
            const kernels_table *k[2] = {&kernels, &ref};
            for (int i = 0; i < 2; i++) { /* from an odd element on: no span is aligned */
                k[i]->axpy(0.5F, x + 1, y[i] + 1, LONG);
                k[i]->norm_apply(x + 1, x + 1, 0.25F, z[i] + 1, LONG);
                memcpy(u[i], x, sizeof x), memcpy(g[i], x, sizeof x), memcpy(out[i], x, sizeof x);
                k[i]->scale(2.0F, u[i] + 1, LONG);
                k[i]->swiglu(x + 1, up + 1, g[i] + 1, LONG);
                if (special[v] < 88.0F || isnan(special[v])) k[i]->softmax_grad(out[i] + 1, 0.0F, 1.0F, LONG);
            }
            for (size_t i = 0; i <= LONG; i++) {
                assert_true(alike(y[0][i], y[1][i]) && alike(z[0][i], z[1][i]) && alike(u[0][i], u[1][i]));
                if (fabs((double)special[v]) < 80) assert_true(alike(g[0][i], g[1][i]));
                assert_true(alike(out[0][i], out[1][i]) || (i > 0 && !isfinite(special[v])));
            }
            float sums[2] = {kernels.dot(x + 1, z[1] + 1, LONG), ref.dot(x + 1, z[1] + 1, LONG)};
            assert_true(alike(sums[0], sums[1]) || isinf(sums[0]));
            if (!isnan(special[v])) assert_true(kernels.max(x + 1, LONG) == ref.max(x + 1, LONG));
        }
}

/* The same in the leaves of gradients, rotation, attention's rows and the small products. What is not finite goes where
 * ref puts it and nowhere else; exponentials may be flushed where they would be denormal. */
enum { SPAN = 40, SPAN_PRODUCTS = 32 };
typedef struct leaf_results {
    float grad[2][SPAN + 1], unit[3][SPAN + 1], turn[2][SPAN + 1], row[3][SPAN + 1], sums[6];
    float product[SPAN_PRODUCTS * 5], tile[GEMM_MR * GEMM_NR], flipped[SPAN * 8];
} leaf_results;

static void run_leaves(const kernels_table *k, const float *x, leaf_results *r) {
    float half[SPAN + 1], panel_a[4 * GEMM_A_LD];
    _Alignas(64) float panel_b[4 * GEMM_NR];
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i <= SPAN; i++) half[i] = 0.5F, r->row[2][i] = 0.25F;
    k->norm_grad(x + 1, half + 1, half + 1, 0.7F, 0.2F, r->grad[0] + 1, r->grad[1] + 1, SPAN);
    k->swiglu_grad(half + 1, half + 1, x + 1, r->unit[0] + 1, r->unit[1] + 1, r->unit[2] + 1, SPAN);
    memcpy(r->turn[0], x, sizeof half), memcpy(r->turn[1], half, sizeof half);
    k->rotate(half + 1, half + 1, false, r->turn[0] + 1, r->turn[1] + 1, SPAN);
    float max = -1, sum = 0.5F;
    memcpy(r->row[0], x, sizeof half), memcpy(r->row[1], x, sizeof half);
    r->sums[0] = k->softmax_row(r->row[0] + 1, 0.5F, &max, &sum, SPAN);
    r->sums[1] = max, r->sums[2] = sum;
    k->softmax_row_grad(r->row[2] + 1, r->row[1] + 1, 0.5F, 1.0F, 0.1F, SPAN);
    r->sums[3] = k->dot3(x + 1, half + 1, half + 1, SPAN), r->sums[4] = k->exp_sum(x + 1, 88.0F, SPAN);
    r->sums[5] = k->dot(x + 1, half + 1, SPAN);
    k->small_gemm(5, SPAN_PRODUCTS, 4, half, 1, 1, x, 1, r->product, SPAN_PRODUCTS, false); /* rows of B overlap */
    k->transpose(x + 1, 1, 7, SPAN - 8, r->flipped, 8);
    for (size_t i = 0; i < TM_COUNT(panel_a); i++) panel_a[i] = 0.5F;
    for (size_t i = 0; i < TM_COUNT(panel_b); i++) panel_b[i] = x[1 + i % SPAN];
    k->gemm_tile(4, panel_a, panel_b, 1.0F, 0.0F, r->tile, GEMM_NR);
}

static bool placed_alike(float got, float want) {
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want || fabs((double)got) > 1e38;
    return isfinite(got) && fabs((double)got - (double)want) <=
                                1e-5 * (fabs((double)want) + 1e-30) + 1.2e-38 + (fabs((double)want) < 100 ? 1e-6 : 0);
}

static void special_gradients(void **state) {
    (void)state;
    static const float special[] = {INFINITY, -INFINITY, NAN, 1e-40F, -1e-45F, 1e38F, -1e38F, -0.0F};
    kernels_table ref;
    kernels_ref_fill(&ref);
    leaf_results got, want;
    for (size_t v = 0; v < TM_COUNT(special); v++)
        for (size_t at = 0; at < SPAN; at++) {
            float x[SPAN + 40];
            for (size_t i = 0; i < TM_COUNT(x); i++) x[i] = (float)(i % 7) / 4 - 0.75F;
            x[at + 1] = special[v];
            run_leaves(&kernels, x, &got), run_leaves(&ref, x, &want);
            const float *a = (const float *)&got, *b = (const float *)&want;
            if (isnan(special[v]) || special[v] == INFINITY) assert_true(isnan(got.sums[2]) && isnan(want.sums[2]));
            for (size_t i = 0; i < sizeof got / sizeof *a; i++) {
                bool row = a + i >= got.row[0] && a + i <= got.row[0] + SPAN,
                     lost = isnan(special[v]) || special[v] == INFINITY;
                bool sum = a + i == got.sums + 1 || a + i == got.sums; /* the row's greatest, and the factor */
                if (lost && (row || sum)) continue;                    /* its sum says that the row is lost */
                if (!placed_alike(a[i], b[i]))
                    fail_msg("%g at %zu: result %zu is %g, of ref %g", (double)special[v], at, i, (double)a[i],
                             (double)b[i]);
            }
        }
}

/* Nothing to do is done without touching anything. */
static void zero_length(void **state) {
    (void)state;
    float x[4] = {1, 2, 3, 4}, before[4];
    memcpy(before, x, sizeof x);
    kernels.axpy(2, x, x, 0), kernels.scale(2, x, 0), kernels.norm_apply(x, x, 2, x, 0);
    kernels.norm_grad(x, x, x, 2, 2, x, x, 0), kernels.swiglu(x, x, x, 0), kernels.swiglu_grad(x, x, x, x, x, x, 0);
    kernels.rotate(x, x, true, x, x, 0), kernels.softmax_grad(x, 0, 1, 0), kernels.widen((uint16_t *)(void *)x, x, 0);
    kernels.widen_f16((uint16_t *)(void *)x, x, 0), kernels.narrow_f16(x, (uint16_t *)(void *)x, 0);
    kernels.narrow(x, (uint16_t *)(void *)x, 0), kernels.small_gemm(0, 16, 1, x, 1, 1, x, 16, x, 16, true);
    kernels.softmax_row_grad(x, x, 1, 0, 0, 0);
    assert_true(kernels.dot(x, x, 0) == 0 && kernels.dot3(x, x, x, 0) == 0 && kernels.exp_sum(x, 0, 0) == 0);
    assert_true(kernels.max(x, 0) == -INFINITY);
    tm_norm_forward(&(tm_norm){.type = TM_ELEM_F32, .rows = 0, .n = 4, .x = x, .weight = x, .eps = 1, .y = x}),
        tm_glu_forward(&(tm_glu){.type = TM_ELEM_BF16, .rows = 0, .width = 4, .x = x, .y = x});
    tm_glu_backward(&(tm_glu){.type = TM_ELEM_F32, .rows = 0, .width = 2, .x = x, .dy = x, .dx = x, .y = x}),
        tm_add_bias(TM_ELEM_F32, 0, 4, x, x, 4);
    tm_gather_rows(TM_ELEM_F32, 0, 0, 4, NULL, x, x), tm_scatter_add_rows(0, 4, NULL, x, x), tm_zero(x, 0);
    tm_head_update(&(tm_head){.rows = 0, .first = 0, .count = 4, .logits = x, .ld = 4}),
        tm_embed_backward(&(tm_embed){
            .type = TM_ELEM_F32, .rows = 0, .n = 4, .first = 0, .count = 0, .dout = x, .grad = x, .grad_add = true});
    assert_memory_equal(x, before, sizeof x);
}

/* A span cut anywhere gives the bits of the whole span, where a leaf works element by element. */
static void any_split(void **state) {
    (void)state;
    enum { LONG = 61 };
    double *a = randoms(LONG, 4), *b = randoms(LONG, 4);
    float *x = stored(TM_ELEM_F32, a, LONG), *w = stored(TM_ELEM_F32, b, LONG);
    for (size_t cut = 0; cut <= LONG; cut++) {
        float whole[4][LONG], parts[4][LONG];
        uint16_t half[2][2][LONG];
        for (int split = 0; split < 2; split++)
            for (size_t from = 0, to = split ? cut : LONG; from < LONG; from = to, to = LONG) {
                float(*y)[LONG] = split ? parts : whole;
                size_t n = to - from;
                for (size_t i = from; i < to; i++) y[2][i] = y[3][i] = 0.25F;
                kernels.swiglu(x + from, w + from, y[0] + from, n);
                kernels.norm_apply(x + from, w + from, 0.7F, y[1] + from, n);
                kernels.axpy(0.3F, x + from, y[2] + from, n);
                kernels.softmax_grad(y[3] + from, 0.5F, 0.3F, n);
                kernels.narrow(x + from, half[split][0] + from, n);
                kernels.narrow_f16(x + from, half[split][1] + from, n);
            }
        assert_memory_equal(whole, parts, sizeof whole);
        assert_memory_equal(half[0], half[1], sizeof half[0]);
    }
    free(a), free(b), free(x), free(w);
}

static int run_column(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential),       cmocka_unit_test(sums),
        cmocka_unit_test(elements),          cmocka_unit_test(masks),
        cmocka_unit_test(small_products),    cmocka_unit_test(transposes_of_16_bits),
        cmocka_unit_test(deals_of_16_bits),  cmocka_unit_test(special_values),
        cmocka_unit_test(special_gradients), cmocka_unit_test(zero_length),
        cmocka_unit_test(any_split),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return run_columns(run_column);
}
