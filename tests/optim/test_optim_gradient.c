/* Rounding and norms of gradients: values by independent formulas, order of the sums pinned, rows and threads equal. */
#include "world.h"
#include "tests/support/skip.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* Nearest even by arithmetic: scale so that the unit in the last of 8 bits is 1, and let rint decide. */
static uint16_t nearest_even(float x) {
    if (x == 0) return (uint16_t)(bits_of(x) >> 16);
    int e;
    (void)frexp((double)x, &e);
    int unit = e - 8 < -133 ? -133 : e - 8; /* bf16's smallest subnormal is 2^-133 */
    double r = ldexp(rint(ldexp((double)x, -unit)), unit);
    if (fabs(r) >= ldexp(1, 128)) return signbit(x) ? 0xff80 : 0x7f80;
    float f = (float)r;
    return (uint16_t)((bits_of(f) >> 16) | (signbit(x) ? 0x8000u : 0));
}

static void rounds_to_nearest_even(void **state) {
    (void)state;
    static const uint16_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    uint64_t wrong = 0;
    for (uint32_t top = 0; top < 1 << 16; top++)
        for (size_t k = 0; k < TM_COUNT(low); k++) {
            float x = float_of(top << 16 | low[k]);
            uint16_t g;
            tm_grad_round_bf16(&x, &g, 1);
            bool right = isnan(x)   ? isnan(float_of((uint32_t)g << 16)) != 0
                         : isinf(x) ? g == top
                                    : g == nearest_even(x);
            wrong += !right;
        }
    assert_int_equal(wrong, 0);
}

/* The same for fp16, and every half's value: its square is its norm. */
static void rounds_to_the_nearest_half(void **state) {
    (void)state;
    static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    uint64_t wrong = 0;
    for (int isa = 0; isa < OPTIM_ISAS; isa++) {
        if (!optim_isa_available((optim_isa)isa)) continue;
        optim_isa_force((optim_isa)isa);
        enum { MANY = 1 << 13 };
        float x[MANY];
        uint16_t g[MANY];
        for (uint32_t top = 0; top < 1 << 19; top += MANY)
            for (size_t k = 0; k < TM_COUNT(low); k++) {
                for (uint32_t i = 0; i < MANY; i++) x[i] = float_of((top + i) << 13 | low[k]);
                tm_grad_round_f16(x, g, MANY);
                for (uint32_t i = 0; i < MANY; i++) wrong += g[i] != half_nearest(x[i]);
            }
        for (uint32_t h = 0; h < 1 << 16; h++) {
            uint16_t one = (uint16_t)h;
            double square, v = half_value(one);
            tm_norm_blocks_f16(&one, 1, &square);
            wrong += !(isnan(v) ? isnan(square) != 0 : square == v * v);
        }
    }
    optim_isa_force(OPTIM_ISAS);
    assert_int_equal(wrong, 0);
}

/* The documented order, spelled out. */
static double norm_by_the_book(const float *g, size_t n) {
    double lane[16] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 16] += (double)g[i] * (double)g[i];
    for (int i = 0; i < 8; i++) lane[i] += lane[i + 8];
    for (int i = 0; i < 4; i++) lane[i] += lane[i + 4];
    for (int i = 0; i < 2; i++) lane[i] += lane[i + 2];
    return lane[0] + lane[1];
}

typedef struct kind { /* of 16-bit gradients */
    void (*round)(const float *acc, uint16_t *g, size_t n);
    void (*norm)(const uint16_t *g, size_t n, double *partial);
    void (*finish)(const float *acc, uint16_t *g, size_t n, double *partial);
    bool f16;
} kind;

static void norms_keep_the_order_of(const kind *k) {
    enum { N = 5 * TM_NORM_BLOCK + 1234 + 7 };
    const size_t blocks = 6;
    test_rng r = {.counter = 77};
    float *acc = malloc(N * 4), *wide = malloc(N * 4), *copy = malloc(N * 4);
    uint16_t *g = malloc(N * 2), *g2 = malloc(N * 2);
    double want[6], want32[6], got[6];
    assert_true(acc && wide && copy && g && g2);
    assert_int_equal(tm_norm_block_count(N), blocks);
    for (size_t i = 0; i < N; i++) acc[i] = rng_u32(&r) % 50 ? rng_scaled(&r, -30, 4) : rng_scaled(&r, -149, 100);
    k->round(acc, g, N);
    for (size_t i = 0; i < N; i++) wide[i] = k->f16 ? (float)half_value(g[i]) : float_of((uint32_t)g[i] << 16);
    for (size_t b = 0; b < blocks; b++) {
        size_t at = b * TM_NORM_BLOCK, n = b + 1 < blocks ? TM_NORM_BLOCK : N - at;
        want[b] = norm_by_the_book(wide + at, n), want32[b] = norm_by_the_book(acc + at, n);
    }
    for (int isa = 0; isa < OPTIM_ISAS; isa++) {
        if (!optim_isa_available((optim_isa)isa)) {
            TEST_SKIP_PART("row %s: not on this CPU", optim_isa_name[isa]);
            continue;
        }
        optim_isa_force((optim_isa)isa);
        for (int threads = 1; threads <= 3; threads++) {
#ifdef _OPENMP
            omp_set_num_threads(threads);
#endif
            k->norm(g, N, got);
            assert_memory_equal(got, want, sizeof want);
            memset(g2, 0xaa, N * 2), memset(got, 0xaa, sizeof got);
            k->finish(acc, g2, N, got);
            assert_memory_equal(g2, g, N * 2);
            assert_memory_equal(got, want, sizeof want);
            tm_norm_blocks_f32(acc, N, got);
            assert_memory_equal(got, want32, sizeof want32);
            memset(got, 0xaa, sizeof got);
            tm_grad_finish_f32(acc, copy, N, got);
            assert_memory_equal(copy, acc, N * 4);
            assert_memory_equal(got, want32, sizeof want32);
            tm_grad_finish_f32(copy, copy, N, got);
            assert_memory_equal(got, want32, sizeof want32);
        }
    }
    optim_isa_force(OPTIM_ISAS);
    /* blocks do not depend on the cut at block boundaries */
    k->norm(g, 2 * TM_NORM_BLOCK, got);
    k->norm(g + 2 * TM_NORM_BLOCK, N - 2 * TM_NORM_BLOCK, got + 2);
    assert_memory_equal(got, want, sizeof want);
    free(acc), free(wide), free(copy), free(g), free(g2);
}

static void norms_keep_their_order(void **state) {
    (void)state;
    norms_keep_the_order_of(&(kind){tm_grad_round_bf16, tm_norm_blocks_bf16, tm_grad_finish_bf16, false});
    norms_keep_the_order_of(&(kind){tm_grad_round_f16, tm_norm_blocks_f16, tm_grad_finish_f16, true});
}

static void the_norm_is_a_norm(void **state) {
    (void)state;
    float g[5] = {3, 4, 0, -12, 84};
    double partial[1];
    tm_norm_blocks_f32(g, 5, partial);
    assert_true(sqrt(tm_sum_blocks(partial, 1)) == 85);
    assert_true(tm_sum_blocks(partial, 0) == 0);
    const double order[3] = {1e16, 1, -1e16};
    assert_true(tm_sum_blocks(order, 3) == 0); /* block order: 1 is lost */
}

static void clips_as_torch_does(void **state) {
    (void)state;
    assert_true(tm_clip_factor(0.5, 1) == 1);
    assert_true(tm_clip_factor(1, 1) == 1 / (1 + 1e-6));
    assert_true(tm_clip_factor(4, 1) == 1 / (4 + 1e-6));
    assert_true(tm_clip_factor(1e9, 0) == 1);
    assert_true(isnan(tm_clip_factor(NAN, 1)));
    assert_true(tm_clip_factor(INFINITY, 1) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounds_to_nearest_even),
                                       cmocka_unit_test(rounds_to_the_nearest_half),
                                       cmocka_unit_test(norms_keep_their_order), cmocka_unit_test(the_norm_is_a_norm),
                                       cmocka_unit_test(clips_as_torch_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
