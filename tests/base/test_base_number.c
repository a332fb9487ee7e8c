/* Sizes, shortest decimals, Philox, normals, hashes. */
#include "world.h"
#include "tests/support/skip.h"

#include <xxhash.h>

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void sizes_parse(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"1048576", 1048576},
                {"3GiB", 3ull << 30},
                {"512 MiB", 512ull << 20},
                {"2GB", 2000000000},
                {"64kB", 64000},
                {"64KB", 64000},
                {"4KiB", 4096},
                {"1TiB", 1ull << 40},
                {"1.5GiB", 1610612736},
                {"0.25MB", 250000},
                {"7 B", 7},
                {"1G", 1ull << 30},
                {"512 M", 512ull << 20},
                {"4g", 4ull << 30},
                {"1.5k", 1536},
                {"18446744073709551615", UINT64_MAX},
                {"17179869183GiB", 17179869183ull << 30}};
    for (size_t i = 0; i < TM_COUNT(good); i++) {
        uint64_t bytes = 1;
        assert_ok(tm_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    static const char *const bad[] = {"",      " 1",    "-1",  "+1",     "GiB",   "1gib", "1Gb",      "1e9", "0x10",
                                      "1.MiB", ".5GiB", "1.5", "1,5GiB", "1GiB ", "1Gib", "1.2.3GiB", "1.5B"};
    uint64_t bytes;
    for (size_t i = 0; i < TM_COUNT(bad); i++) assert_fails(tm_parse_size(bad[i], &bytes), TM_EINPUT, "is not a size");
    assert_fails(tm_parse_size("18446744073709551616", &bytes), TM_EINPUT, "too large");
    assert_fails(tm_parse_size("17179869184GiB", &bytes), TM_EINPUT, "too large");
    assert_fails(tm_parse_size("99999999999999999999999GiB", &bytes), TM_EINPUT, "too large");
}

static void sizes_print(void **state) {
    (void)state;
    char b[32];
    assert_string_equal(tm_format_size(0, b, sizeof b), "0 B");
    assert_string_equal(tm_format_size(1023, b, sizeof b), "1023 B");
    assert_string_equal(tm_format_size(1024, b, sizeof b), "1.00 KiB");
    assert_string_equal(tm_format_size(1610612736, b, sizeof b), "1.50 GiB");
    assert_string_equal(tm_format_size((1ull << 30) - 1, b, sizeof b), "1.00 GiB");
    assert_string_equal(tm_format_size(UINT64_MAX, b, sizeof b), "16.00 EiB");
}

static uint64_t bits_of(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double from_bits(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void check_double(double x) {
    char b[32];
    tm_format_double(x, b, sizeof b);
    if (bits_of(strtod(b, NULL)) != bits_of(x)) fail_msg("%.17g prints as %s", x, b);
}

static void doubles_round_trip(void **state) {
    (void)state;
    const double special[] = {0.0,
                              -0.0,
                              1.0,
                              0.1,
                              1.0 / 3,
                              DBL_MAX,
                              DBL_MIN,
                              5e-324,
                              -5e-324,
                              2.2250738585072009e-308,
                              1e22,
                              1e23,
                              9007199254740993.0,
                              123456789012345678.0,
                              DBL_EPSILON,
                              M_PI,
                              0x1.fffffffffffffp-1};
    for (size_t i = 0; i < TM_COUNT(special); i++) check_double(special[i]);
    for (uint64_t i = 0; i < 60000; i++) {
        uint32_t r[4];
        tm_philox(1, 0, i, r);
        double x = from_bits((uint64_t)r[0] << 32 | r[1]);
        if (isfinite(x)) check_double(x);
        check_double(from_bits(((uint64_t)r[2] << 32 | r[3]) & 0x000fffffffffffffull)); /* subnormal */
    }
}

static void doubles_are_short(void **state) {
    (void)state;
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0.1, "0.1"},           {1e-05, "1e-05"},   {5, "5"},           {-0.0, "-0"},
                 {1e22, "1e+22"},        {0.3, "0.3"},       {5e-324, "5e-324"}, {0.1 + 0.2, "0.30000000000000004"},
                 {2.5e-308, "2.5e-308"}, {1e-310, "1e-310"}, {NAN, "null"},      {INFINITY, "null"},
                 {-INFINITY, "null"}};
    char b[32];
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        assert_string_equal(tm_format_double(cases[i].x, b, sizeof b), cases[i].text);
    }
}

static void check_float(float x) {
    char b[32];
    tm_format_float(x, b, sizeof b);
    float y = strtof(b, NULL);
    if (memcmp(&x, &y, sizeof x) != 0) fail_msg("%.9g prints as %s", (double)x, b);
}

static void floats_round_trip(void **state) {
    (void)state;
    char b[32];
    assert_string_equal(tm_format_float(1e-5f, b, sizeof b), "1e-05");
    assert_string_equal(tm_format_float(0.1f, b, sizeof b), "0.1");
    assert_string_equal(tm_format_float(1e-45f, b, sizeof b), "1e-45");
    assert_string_equal(tm_format_float(16777216.0f, b, sizeof b), "16777216");
    assert_string_equal(tm_format_float(NAN, b, sizeof b), "null");
    for (uint32_t i = 0; i < 60000; i++) {
        uint32_t r[4];
        tm_philox(2, 0, i, r);
        float x, s;
        uint32_t subnormal = r[1] & 0x807fffff;
        memcpy(&x, &r[0], sizeof x);
        memcpy(&s, &subnormal, sizeof s);
        if (isfinite(x)) check_float(x);
        check_float(s);
    }
}

static void locale_does_not_matter(void **state) {
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "ru_RU.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < TM_COUNT(names) && !found; i++) found = setlocale(LC_ALL, names[i]) != NULL;
    if (!found) {
        TEST_SKIP("no locale with a decimal comma is installed");
    }
    char b[32];
    assert_string_equal(tm_format_double(0.5, b, sizeof b), "0.5");
    assert_string_equal(tm_format_float(0.5f, b, sizeof b), "0.5");
    setlocale(LC_ALL, "C");
}

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds). */
static void philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t key, hi, lo;
        uint32_t out[4];
    } kat[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        /* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: the digits of pi */
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < TM_COUNT(kat); i++) {
        uint32_t out[4];
        tm_philox(kat[i].key, kat[i].hi, kat[i].lo, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

/* Mean, variance, kurtosis and the share within one sigma of 2 million draws, each within five standard errors. */
static void normals_are_normal(void **state) {
    (void)state;
    enum { BLOCKS = 1000000 };
    double n = 2.0 * BLOCKS, s1 = 0, s2 = 0, s4 = 0, cross = 0, inside = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        double z[2];
        tm_philox_normal2(42, i, z);
        assert_true(isfinite(z[0]) && isfinite(z[1]));
        for (int k = 0; k < 2; k++) {
            s1 += z[k];
            s2 += z[k] * z[k];
            s4 += z[k] * z[k] * z[k] * z[k];
            inside += fabs(z[k]) < 1;
        }
        cross += z[0] * z[1];
    }
    assert_true(fabs(s1 / n) < 5 / sqrt(n));
    assert_true(fabs(s2 / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(s4 / n - 3) < 5 * sqrt(96 / n));
    assert_true(fabs(cross / BLOCKS) < 5 / sqrt(BLOCKS));
    assert_true(fabs(inside / n - 0.682689492137086) < 5 * sqrt(0.2166 / n));
}

/* The upper halves of the vectors are zero behind a long text, as each call leaves them: they would slow down what
 * follows (hash_long.c). */
static void hash_leaves_vectors(void **state) {
    (void)state;
#ifdef __x86_64__
    enum { VECTORS = 16, HALVES = 4 };
    static unsigned char text[4 * 4096];
    uint64_t vector[VECTORS][HALVES];
    if (!__builtin_cpu_supports("avx")) TEST_SKIP("this CPU has no AVX");
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(i * 7 + 1);
    assert_true(tm_hash64(text, sizeof text, 1) != 0);
    __asm__ volatile("vmovdqu %%ymm0, (%0); vmovdqu %%ymm1, 32(%0); vmovdqu %%ymm2, 64(%0); vmovdqu %%ymm3, 96(%0);"
                     "vmovdqu %%ymm4, 128(%0); vmovdqu %%ymm5, 160(%0); vmovdqu %%ymm6, 192(%0);"
                     "vmovdqu %%ymm7, 224(%0); vmovdqu %%ymm8, 256(%0); vmovdqu %%ymm9, 288(%0);"
                     "vmovdqu %%ymm10, 320(%0); vmovdqu %%ymm11, 352(%0); vmovdqu %%ymm12, 384(%0);"
                     "vmovdqu %%ymm13, 416(%0); vmovdqu %%ymm14, 448(%0); vmovdqu %%ymm15, 480(%0)"
                     :
                     : "r"(vector)
                     : "memory");
    for (size_t i = 0; i < VECTORS; i++) assert_true(vector[i][2] == 0 && vector[i][3] == 0);
#else
    TEST_SKIP("not an x86-64");
#endif
}

/* XXH3-64 of the empty input and seed 0, as the xxHash specification's test vectors give it. */
static void hash_known_answer(void **state) {
    (void)state;
    assert_true(tm_hash64("", 0, 0) == 0x2D06800538D394C2ull);
    assert_true(tm_hash64("abc", 3, 0) != tm_hash64("abc", 3, 1));
    assert_true(tm_hash64("abc", 3, 0) != tm_hash64("abd", 3, 0));
    /* Whichever vectors are used: the numbers are the library's own. */
    static unsigned char text[70000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(i * 131 >> 3);
    for (size_t n = 0; n < sizeof text; n += n < 600 ? 1 : n / 2)
        for (uint64_t seed = 0; seed < 3; seed++)
            assert_true(tm_hash64(text + seed, n, seed) == XXH3_64bits_withSeed(text + seed, n, seed));
}

static void overflow_is_reported(void **state) {
    (void)state;
    uint64_t r;
    assert_true(tm_mul_u64(1ull << 31, 1ull << 32, &r) && r == 1ull << 63);
    assert_false(tm_mul_u64(1ull << 32, 1ull << 32, &r));
    assert_true(tm_add_u64(UINT64_MAX, 0, &r));
    assert_false(tm_add_u64(UINT64_MAX, 1, &r));
    assert_int_equal(tm_round_up(0, 64), 0);
    assert_int_equal(tm_round_up(65, 64), 128);
}

static void edits_are_counted(void **state) {
    (void)state;
    char longest[65], longer[66];
    memset(longest, 'a', 64), longest[64] = 0;
    memset(longer, 'a', 65), longer[65] = 0;
    assert_int_equal(tm_edit_distance("", ""), 0);
    assert_int_equal(tm_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(tm_edit_distance("sitting", "kitten"), 3);
    assert_int_equal(tm_edit_distance("", "four"), 4);
    assert_int_equal(tm_edit_distance("ab", "ba"), 2); /* a swap is two edits */
    assert_int_equal(tm_edit_distance(longest, ""), 64);
    assert_true(tm_edit_distance(longer, "a") == SIZE_MAX / 2 && tm_edit_distance("a", longer) == SIZE_MAX / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_parse),          cmocka_unit_test(sizes_print),
        cmocka_unit_test(doubles_round_trip),   cmocka_unit_test(doubles_are_short),
        cmocka_unit_test(floats_round_trip),    cmocka_unit_test(locale_does_not_matter),
        cmocka_unit_test(philox_known_answers), cmocka_unit_test(normals_are_normal),
        cmocka_unit_test(hash_known_answer),    cmocka_unit_test(hash_leaves_vectors),
        cmocka_unit_test(overflow_is_reported), cmocka_unit_test(edits_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
