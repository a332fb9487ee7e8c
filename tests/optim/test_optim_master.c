/* The split master over every one of the 2^32 patterns, on every row of this CPU. */
#include "world.h"
#include "tests/support/skip.h"

#ifdef TIDEMILL_SANITIZED /* slow: a piece of every exponent and sign */
enum { CHUNK = 1 << 16, STRIDE = 1 << 23 };
#else
enum { CHUNK = 1 << 18, STRIDE = CHUNK };
#endif

/* Distance of the bf16 `hi` from x, and of its neighbours: exact in double. */
static int is_nearest_ties_away(float x, uint16_t hi) {
    double value = (double)x, h = (double)float_of((uint32_t)hi << 16), err = fabs(h - value);
    if (isinf(h)) return fabs(value) >= ldexp(511.0 / 256.0, 127); /* midpoint of the largest bf16 and 2^128 */
    double toward = (double)float_of((uint32_t)(uint16_t)(hi - 1) << 16);
    double away = (double)float_of((uint32_t)(uint16_t)(hi + 1) << 16);
    if ((hi & 0x7fff) != 0 && err > fabs(toward - value)) return 0;
    if ((hi & 0x7fff) != 0 && err == fabs(toward - value)) return fabs(h) > fabs(toward);
    if (isfinite(away) && err >= fabs(away - value)) return 0;
    return 1;
}

typedef struct tally {
    uint64_t lost, wrong, nonfinite;
} tally;

static tally walk(uint32_t base, float *x, float *y, uint16_t *hi, uint16_t *lo) {
    tally t = {0};
    for (uint32_t i = 0; i < CHUNK; i++) x[i] = float_of(base + i);
    tm_split_f32(x, hi, lo, CHUNK);
    tm_join_f32(hi, lo, y, CHUNK);
    t.nonfinite = tm_count_nonfinite(x, CHUNK);
    for (uint32_t i = 0; i < CHUNK; i++) {
        uint32_t b = base + i;
        t.lost += bits_of(y[i]) != b;
        t.wrong += lo[i] != (b & 0xffff) || hi[i] != (uint16_t)((b >> 16) + (lo[i] >> 15));
    }
    return t;
}

/* One team around everything (the functions' own are then of one thread): barriers are dear on a busy machine. */
static void every_pattern(void **state) {
    (void)state;
    uint64_t lost = 0, wrong = 0, nonfinite = 0;
#pragma omp parallel reduction(+ : lost, wrong, nonfinite)
    {
        float *x = malloc(CHUNK * sizeof *x), *y = malloc(CHUNK * sizeof *y);
        uint16_t *hi = malloc(CHUNK * 2), *lo = malloc(CHUNK * 2);
        if (!x || !y || !hi || !lo) abort();
#pragma omp for schedule(dynamic, 16)
        for (uint64_t base = 0; base < 1ULL << 32; base += STRIDE) {
            tally t = walk((uint32_t)base, x, y, hi, lo);
            lost += t.lost, wrong += t.wrong, nonfinite += t.nonfinite;
        }
        free(x), free(y), free(hi), free(lo);
    }
    assert_int_equal(lost, 0);
    assert_int_equal(wrong, 0);
    assert_int_equal(nonfinite, 2 * (1ULL << 23) * CHUNK / STRIDE); /* exponent all ones, either sign */
}

static void nearest_with_ties_away(void **state) {
    (void)state;
    uint64_t wrong = 0;
    /* All upper halves with the lower halves around the tie and at the ends: the whole of the rule. */
    static const uint16_t low[] = {0, 1, 0x4000, 0x7fff, 0x8000, 0x8001, 0xc000, 0xffff};
    for (uint32_t top = 0; top < 1 << 16; top++)
        for (size_t k = 0; k < TM_COUNT(low); k++) {
            float x = float_of(top << 16 | low[k]);
            uint16_t hi, lo;
            if (!isfinite(x)) continue;
            tm_split_f32(&x, &hi, &lo, 1);
            wrong += !is_nearest_ties_away(x, hi);
        }
    assert_int_equal(wrong, 0);
}

static void rows_agree(void **state) {
    (void)state;
    enum { N = 100003 };
    test_rng r = {0};
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint16_t *hi = malloc(N * 2), *lo = malloc(N * 2), *hi0 = malloc(N * 2), *lo0 = malloc(N * 2);
    assert_true(x && y && hi && lo && hi0 && lo0);
    for (size_t i = 0; i < N; i++) x[i] = float_of(rng_u32(&r));
    for (int isa = 0; isa < OPTIM_ISAS; isa++) {
        if (!optim_isa_available((optim_isa)isa)) {
            TEST_SKIP_PART("row %s: not on this CPU", optim_isa_name[isa]);
            continue;
        }
        optim_isa_force((optim_isa)isa);
        tm_split_f32(x, isa ? hi : hi0, isa ? lo : lo0, N);
        tm_join_f32(isa ? hi : hi0, isa ? lo : lo0, y, N);
        assert_memory_equal(x, y, N * sizeof *x);
        if (isa) assert_memory_equal(hi, hi0, N * 2);
        if (isa) assert_memory_equal(lo, lo0, N * 2);
    }
    optim_isa_force(OPTIM_ISAS);
    free(x), free(y), free(hi), free(lo), free(hi0), free(lo0);
}

static void a_nan_can_look_healthy(void **state) {
    (void)state;
    float x[4] = {float_of(0x7fff8000u), INFINITY, -INFINITY, 1};
    uint16_t hi[4], lo[4];
    tm_split_f32(x, hi, lo, 4);
    assert_int_equal(hi[0], 0x8000); /* minus zero: why non-finite values are counted before the split */
    assert_int_equal(tm_count_nonfinite(x, 4), 3);
    assert_int_equal(tm_count_nonfinite(x, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nearest_with_ties_away), cmocka_unit_test(rows_agree),
                                       cmocka_unit_test(a_nan_can_look_healthy), cmocka_unit_test(every_pattern)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
