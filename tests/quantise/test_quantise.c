/* GPTQ on small matrices, beside the paper's algorithm in double precision (Frantar et al. 2022, algorithm 1 with groups:
 * Cholesky of the inverse, errors moved to the columns that follow). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "quantise/quantise_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

static double uniform(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(state >> 11) * 0x1p-53 - 0.5;
}

/* Sum of x x^T of correlated inputs: columns are mixed with their neighbours and have scales of their own. */
static float *products_of(uint64_t n, uint64_t tokens) {
    float *h = calloc(n * n, sizeof *h);
    double *x = malloc(n * sizeof *x);
    for (uint64_t t = 0; t < tokens; t++) {
        double common = uniform();
        for (uint64_t i = 0; i < n; i++)
            x[i] = (0.1 + (double)(i % 7)) * (common + uniform() + (i ? 0.1 * x[i - 1] : 0));
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t k = 0; k < n; k++) h[i * n + k] += (float)(x[i] * x[k]);
    }
    free(x);
    return h;
}

static float *weights_of(uint64_t rows, uint64_t n) {
    float *w = malloc(rows * n * sizeof *w);
    for (uint64_t i = 0; i < rows * n; i++) w[i] = (float)(uniform() * uniform());
    return w;
}

static void factors_make_the_matrix(void **unused) {
    (void)unused;
    static const uint64_t sizes[] = {1, 31, 128, 300};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t n = sizes[s];
        float *h = products_of(n, 2 * n + 3), *r = malloc(n * n * sizeof *r);
        factor_damp(h, n, 0.01);
        memcpy(r, h, n * n * sizeof *r);
        assert_true(factor_upper(r, n));
        double most = 0;
        for (uint64_t i = 0; i < n; i++) most = fmax(most, (double)h[i * n + i]);
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t k = i; k < n; k++) {
                double sum = 0;
                for (uint64_t j = k; j < n; j++) sum += (double)r[i * n + j] * (double)r[k * n + j];
                assert_true(fabs(sum - (double)h[i * n + k]) <= 2e-6 * most);
                if (k > i) assert_true(r[k * n + i] == h[k * n + i]);
            }
        free(h);
        free(r);
    }
}

static void what_is_not_definite_has_no_factors(void **unused) {
    (void)unused;
    float h[4] = {1, 2, 2, 1}, bad[1] = {NAN};
    assert_false(factor_upper(h, 2));
    assert_false(factor_upper(bad, 1));
}

/* ---- the paper ---- */

/* Gauss-Jordan; then the upper U with inverse = U^T U. */
static double *upper_of_inverse(const float *h, uint64_t n) {
    double *a = malloc(n * n * sizeof *a), *inverse = calloc(n * n, sizeof *inverse), *u = calloc(n * n, sizeof *u);
    for (uint64_t i = 0; i < n * n; i++) a[i] = (double)h[i];
    for (uint64_t i = 0; i < n; i++) inverse[i * n + i] = 1;
    for (uint64_t i = 0; i < n; i++) {
        double pivot = a[i * n + i];
        for (uint64_t k = 0; k < n; k++) a[i * n + k] /= pivot, inverse[i * n + k] /= pivot;
        for (uint64_t j = 0; j < n; j++) {
            double by = a[j * n + i];
            for (uint64_t k = 0; k < n && j != i; k++)
                a[j * n + k] -= by * a[i * n + k], inverse[j * n + k] -= by * inverse[i * n + k];
        }
    }
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = i; k < n; k++) {
            double sum = inverse[i * n + k];
            for (uint64_t j = 0; j < i; j++) sum -= u[j * n + i] * u[j * n + k];
            u[i * n + k] = i == k ? sqrt(sum) : sum / u[i * n + i];
        }
    free(a);
    free(inverse);
    return u;
}

/* One row; codes and scales as gptq_rows has them. The weights of a scale's errors are 1 / U_ii^2. */
static void paper(const double *u, uint64_t n, uint64_t group, const float *w, int8_t *codes, float *scale) {
    double *now = malloc(n * sizeof *now);
    float x[NEAREST_GROUP], weight[NEAREST_GROUP], s = 0;
    for (uint64_t i = 0; i < n; i++) now[i] = (double)w[i];
    for (uint64_t i = 0; i < n; i++) {
        if (i % group == 0) {
            for (uint64_t k = 0; k < group; k++) {
                double d = u[(i + k) * n + i + k];
                x[k] = (float)now[i + k], weight[k] = (float)(1 / (d * d));
            }
            s = scale[i / group] = nearest_search(TM_FMT_F32, x, group, weight);
        }
        codes[i] = (int8_t)nearest_code((float)now[i], s);
        double e = (now[i] - (double)codes[i] * (double)s) / u[i * n + i];
        for (uint64_t k = i; k < n; k++) now[k] -= e * u[i * n + k];
    }
    free(now);
}

/* |(W - Q) x|^2 over the inputs, of one row. */
static double cost(const float *h, uint64_t n, const float *lost) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < n; k++) sum += (double)lost[i] * (double)h[i * n + k] * (double)lost[k];
    return sum;
}

/* Rounded to nearest, one row. */
static double plain_cost(const float *h, uint64_t n, uint64_t group, const float *w) {
    float *lost = malloc(n * sizeof *lost);
    for (uint64_t i = 0; i < n; i++) {
        float s = nearest_scale(TM_FMT_F32, nearest_largest(w + i / group * group, group), 1);
        lost[i] = w[i] - (float)nearest_code(w[i], s) * s;
    }
    double sum = cost(h, n, lost);
    free(lost);
    return sum;
}

typedef struct made {
    uint64_t n, rows, group;
    float *h, *r, *w;
    char *memory;
    gptq_rows g;
} made;

static made make(uint64_t n, uint64_t rows, uint64_t group) {
    made m = {.n = n, .rows = rows, .group = group, .h = products_of(n, n / 2), .w = weights_of(rows, n)};
    factor_damp(m.h, n, 0.01);
    m.r = malloc(n * n * sizeof *m.r);
    memcpy(m.r, m.h, n * n * sizeof *m.r);
    assert_true(factor_upper(m.r, n));
    m.memory = malloc(gptq_bytes(n, rows, group));
    m.g = (gptq_rows){.factor = m.r, .o = {group, TM_FMT_F32}, .n = n, .rows = rows, .w = m.w};
    gptq_place(&m.g, m.memory);
    gptq_round(&m.g);
    return m;
}

static void unmake(made *m) {
    free(m->h);
    free(m->r);
    free(m->w);
    free(m->memory);
}

static void codes_are_the_papers(void **unused) {
    (void)unused;
    static const uint64_t groups[] = {32, 64, 128};
    for (size_t k = 0; k < sizeof groups / sizeof *groups; k++) {
        made m = make(384, 6, groups[k]);
        double *u = upper_of_inverse(m.h, m.n);
        uint64_t other = 0, compared = 0;
        int8_t codes[384];
        float scale[384];
        for (uint64_t r = 0; r < m.rows; r++) {
            paper(u, m.n, m.group, m.w + r * m.n, codes, scale);
            if (memcmp(codes, m.g.codes + r * m.n, m.n) != 0) other++; /* a tie: all that follows may be another */
            for (uint64_t g = 0; g < m.n / m.group && memcmp(codes, m.g.codes + r * m.n, m.n) == 0; g++, compared++)
                assert_true(fabsf(scale[g] - m.g.scale[r * (m.n / m.group) + g]) <= 1e-4F * scale[g]);
        }
        assert_true(other <= 1 && compared > 0);
        free(u);
        unmake(&m);
    }
}

static void products_lose_no_more_than_by_rounding(void **unused) {
    (void)unused;
    for (uint64_t n = 32; n <= 512; n *= 2) {
        made m = make(n, 40, 32);
        double all = 0, plain = 0;
        for (uint64_t r = 0; r < m.rows; r++) {
            double ours = cost(m.h, n, m.g.lost + r * n), nearest = plain_cost(m.h, n, 32, m.w + r * n);
            for (uint64_t i = 0; i < n; i++) {
                float v = (float)m.g.codes[r * n + i] * m.g.scale[r * (n / 32) + i / 32];
                assert_true(m.g.lost[r * n + i] == m.w[r * n + i] - v);
            }
            assert_true(ours <= nearest * (1 + 1e-3));
            assert_true(fabs(ours - m.g.loss[r]) <= 1e-3 * nearest);
            assert_true(fabs(cost(m.h, n, m.w + r * n) - m.g.full[r]) <= 1e-3 * m.g.full[r]);
            all += ours, plain += nearest;
        }
        assert_true(all < 0.6 * plain); /* inputs go together: there is much to be made up for */
        unmake(&m);
    }
}

/* What is always 0 costs nothing, and a matrix of zeros has no scale. */
static void zeros_are_fine(void **unused) {
    (void)unused;
    enum { N = 64 };
    float h[N * N] = {0}, w[N] = {0};
    char memory[16384];
    factor_damp(h, N, 0.01);
    assert_true(factor_upper(h, N) && gptq_bytes(N, 1, 32) <= sizeof memory);
    gptq_rows g = {.factor = h, .o = {32, TM_FMT_BF16}, .n = N, .rows = 1, .w = w};
    gptq_place(&g, memory);
    gptq_round(&g);
    assert_true(g.scale[0] == 0 && g.codes[5] == 0 && g.loss[0] == 0);
}

static int start(void **unused) {
    (void)unused;
    return tm_kernels_init(0, TM_ELEM_F32) == TM_OK ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_make_the_matrix), cmocka_unit_test(what_is_not_definite_has_no_factors),
        cmocka_unit_test(codes_are_the_papers), cmocka_unit_test(products_lose_no_more_than_by_rounding),
        cmocka_unit_test(zeros_are_fine)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, start, NULL);
}
