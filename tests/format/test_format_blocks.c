/* The block types: every element's value from its definition, in double, element by element; and our quantisers against
 * bytes from an independent implementation (the `gguf` Python package 0.19). */
#include "format/format_internal.h"
#include "gguf_bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 1;
static uint8_t random_byte(void) {
    seed = seed * 1664525u + 1013904223u;
    return (uint8_t)(seed >> 24);
}

/* IEEE binary16 from its fields; the random halves below are finite. */
static double half(const uint8_t *p) {
    unsigned h = p[0] | (unsigned)p[1] << 8, e = h >> 10 & 31, m = h & 1023;
    double v = e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

/* Element e of a block. d * q and d * scale * q are exact in double, so one rounding to float is the definition. */
static float q8_0(const uint8_t *b, int e) {
    return (float)(half(b) * (int8_t)b[2 + e]);
}
static float q4_0(const uint8_t *b, int e) {
    return (float)(half(b) * ((b[2 + e % 16] >> (e / 16 * 4) & 15) - 8));
}
static float q4_1(const uint8_t *b, int e) {
    return (float)(half(b) * (b[4 + e % 16] >> (e / 16 * 4) & 15) + half(b + 2));
}
static float q4_k(const uint8_t *b, int e) {
    const uint8_t *s = b + 4;
    int j = e / 32;
    int scale = j < 4 ? s[j] % 64 : s[j + 4] % 16 + 16 * (s[j - 4] / 64);
    int min = j < 4 ? s[j + 4] % 64 : s[j + 4] / 16 + 16 * (s[j] / 64);
    int byte = b[16 + e / 64 * 32 + e % 32], q = e / 32 % 2 ? byte / 16 : byte % 16;
    return (float)(half(b) * scale * q - half(b + 2) * min);
}
static float q6_k(const uint8_t *b, int e) {
    int h = e / 128, in = e % 128, quarter = in / 32, i = in % 32;
    int low = b[h * 64 + (quarter % 2) * 32 + i], high = b[128 + h * 32 + i];
    int q = (quarter < 2 ? low % 16 : low / 16) + 16 * (high >> (2 * quarter) & 3) - 32;
    return (float)(half(b + 208) * (int8_t)b[192 + h * 8 + in / 16] * q);
}

static const struct kind {
    tm_fmt fmt;
    uint32_t type;
    int block, bytes;
    float (*value)(const uint8_t *b, int e);
    int halves[2]; /* where the block keeps halves, -1 */
} kinds[] = {{TM_FMT_Q8_0, G_TYPE_Q8_0, 32, 34, q8_0, {0, -1}},
             {TM_FMT_Q4_0, G_TYPE_Q4_0, 32, 18, q4_0, {0, -1}},
             {TM_FMT_Q4_1, G_TYPE_Q4_1, 32, 20, q4_1, {0, 2}},
             {TM_FMT_Q4_K, G_TYPE_Q4_K, 256, 144, q4_k, {0, 2}},
             {TM_FMT_Q6_K, G_TYPE_Q6_K, 256, 210, q6_k, {208, -1}}};

enum { ROWS = 7, BLOCKS = 6 }; /* a row */

static uint8_t *random_blocks(const struct kind *k) {
    uint8_t *b = malloc((size_t)(ROWS * BLOCKS * k->bytes));
    assert_non_null(b);
    for (int i = 0; i < ROWS * BLOCKS * k->bytes; i++) b[i] = random_byte();
    for (int i = 0; i < ROWS * BLOCKS; i++)
        for (int h = 0; h < 2; h++)
            if (k->halves[h] >= 0) b[i * k->bytes + k->halves[h] + 1] &= 0xbf; /* exponent below 16: finite */
    return b;
}

static void same(float got, float wanted, const char *what, uint64_t e) {
    if (memcmp(&got, &wanted, 4) != 0)
        fail_msg("%s element %llu: %a, by definition %a", what, (unsigned long long)e, (double)got, (double)wanted);
}

static void values_are_those_of_the_definition(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(kinds); i++) {
        const struct kind *k = &kinds[i];
        uint64_t n = (uint64_t)(ROWS * BLOCKS * k->block), width = (uint64_t)(BLOCKS * k->block);
        uint8_t *stored = random_blocks(k);
        float *all = malloc(n * sizeof *all), *part = malloc(n * sizeof *part);
        gguf_bytes g = {0};
        g_tensor(&g, "t", 2, (uint64_t[]){width, ROWS}, k->type, stored, (size_t)(ROWS * BLOCKS * k->bytes));
        g_write(&g, scratch("blocks.gguf"));
        tm_gguf *file;
        OK(tm_gguf_open(&file, scratch("blocks.gguf")));
        const tm_gguf_tensor *t = tm_gguf_tensor_get(file, 0);
        assert_true(t->fmt == k->fmt && t->ndim == 2 && t->shape[0] == ROWS && t->shape[1] == width);
        OK(tm_gguf_read_f32(file, 0, 0, n, all));
        for (uint64_t e = 0; e < n; e++)
            same(all[e], k->value(stored + e / (uint64_t)k->block * (uint64_t)k->bytes, (int)(e % (uint64_t)k->block)),
                 tm_fmt_get(k->fmt)->name, e);
        for (uint64_t first = 0, len = 1; first < n; first += len, len = len * 3 % 701 + 1) { /* any range */
            uint64_t take = tm_min_u64(len, n - first);
            OK(tm_gguf_read_f32(file, 0, first, take, part));
            assert_memory_equal(part, all + first, take * sizeof *part);
        }
        expect_error(tm_gguf_read_f32(file, 0, n - 1, 2, part), TM_EINPUT, "not there");
        tm_gguf_close(file);
        free(stored);
        free(all);
        free(part);
    }
}

/* Larger than one read: the pieces must meet without a seam. */
static void long_tensors_have_no_seams(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    uint8_t *stored = malloc(N / 32 * 20);
    float *all = malloc(N * sizeof *all);
    for (int i = 0; i < N / 32 * 20; i++) stored[i] = i % 20 == 1 || i % 20 == 3 ? 0x30 : random_byte();
    gguf_bytes g = {0};
    g_tensor(&g, "t", 1, (uint64_t[]){N}, G_TYPE_Q4_1, stored, N / 32 * 20);
    g_write(&g, scratch("long.gguf"));
    tm_gguf *file;
    OK(tm_gguf_open(&file, scratch("long.gguf")));
    OK(tm_gguf_read_f32(file, 0, 5, N - 12, all));
    for (uint64_t e = 5; e < N - 7; e++) same(all[e - 5], q4_1(stored + e / 32 * 20, (int)(e % 32)), "Q4_1", e);
    tm_gguf_close(file);
    free(stored);
    free(all);
}

/* The values that the gguf package gives: fixtures/gguf_blocks/make.py. */
static void values_are_those_of_the_gguf_package(void **state) {
    (void)state;
    static const tm_fmt types[] = {TM_FMT_Q5_0, TM_FMT_Q5_1,   TM_FMT_Q2_K, TM_FMT_Q3_K,
                                   TM_FMT_Q5_K, TM_FMT_IQ4_NL, TM_FMT_Q4_K, TM_FMT_Q6_K};
    enum { MOST = 5 * 256 };
    static uint8_t stored[5 * 210];
    static float want[MOST], got[MOST];
    tm_st *st;
    OK(tm_st_open(&st, TM_TEST_FIXTURES "/gguf_blocks/blocks.safetensors"));
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        const tm_fmt_info *t = tm_fmt_get(types[k]);
        char name[32];
        snprintf(name, sizeof name, "%s.stored", t->name);
        OK(tm_st_read_raw(st, (uint32_t)tm_st_find(st, name), 0, (uint64_t)5 * t->block_bytes, stored));
        snprintf(name, sizeof name, "%s.values", t->name);
        OK(tm_st_read_f32(st, (uint32_t)tm_st_find(st, name), 0, (uint64_t)5 * t->block, want));
        tm_fmt_decode(types[k], stored, (size_t)5 * t->block, got);
        for (uint64_t e = 0; e < (uint64_t)5 * t->block; e++) same(got[e], want[e], t->name, e);
    }
    tm_st_close(st);
}

static const struct known {
    tm_fmt fmt;
    size_t bytes; /* of 4096 elements */
    const char *first, *sha256;
} known[] = {
    {TM_FMT_Q8_0, 4352, "ec20815429fed3a97c5126fbd0a5784e23f8cda2754a1ff5ca9f72471cf1c69c6f448720",
     "2b61a2ebc00f7e06a09f7eb61bd7d07bbea9eeffae30cdf117defd40102507bf"},
    {TM_FMT_Q4_0, 2304, "e330502dfbd8a5725f2dfac8a5724f2dfac77e30fac794613f0cf9c794613f0ce9c69360",
     "60daa45d4a6f83e44669dd138fbbd55aca06f5a1cb64a076046e037045e9c490"},
    {TM_FMT_Q4_1, 2560, "2531e3bc502dfac895724f2ceac795724f2ceac799307ebcf9c794613f0ce9b694613f0c",
     "766772c3e8d57caaf97b21b33aba7a0294c9d54b13d462575ad6132d63e71725"},
    {TM_FMT_Q5_0, 2816, "e32cce711cc7a04bf5904af59f4ae59f4ae59f3ae49f7e2c711cc771e38e28c26f09d38d",
     "1f3cd4181bdc766042d678fbce94877ff9a62417363f46ca91e2d951ff72ecb5"},
    {TM_FMT_Q5_1, 3072, "fa2ce3bcce711cc7904ae5904ae59f4ae48f3ae49f39d48f732c7ebc711cc771e48e28c2",
     "8447526d112632a9ce34c37bb85255fae87680831d499800ac6aaff4221bc3f2"},
};

static void quantised_bytes_are_those_of_ggml(void **state) {
    (void)state;
    float values[4096];
    uint8_t out[4352];
    for (uint64_t i = 0; i < 4096; i++) values[i] = pattern(i);
    for (size_t k = 0; k < TM_COUNT(known); k++) {
        char hex[80] = "";
        OK(tm_fmt_encode(known[k].fmt, values, 4096, out));
        for (int i = 0; i < 36; i++) snprintf(hex + 2 * i, 3, "%02x", out[i]);
        assert_string_equal(hex, known[k].first);
        sha256_hex(out, known[k].bytes, hex);
        assert_string_equal(hex, known[k].sha256);
    }
}

/* What ggml itself makes of values of many kinds: fixtures/gguf_quants/make.py. */
static void quantised_bytes_are_those_of_libggml(void **state) {
    (void)state;
    static const tm_fmt types[] = {TM_FMT_Q8_0, TM_FMT_Q4_0, TM_FMT_Q4_1, TM_FMT_Q5_0,
                                   TM_FMT_Q5_1, TM_FMT_Q4_K, TM_FMT_Q5_K, TM_FMT_Q6_K};
    enum { N = 21 * 256 };
    static float values[N];
    static uint8_t want[N / 32 * 34], got[N / 32 * 34];
    tm_st *st;
    OK(tm_st_open(&st, TM_TEST_FIXTURES "/gguf_quants/quants.safetensors"));
    OK(tm_st_read_f32(st, (uint32_t)tm_st_find(st, "values"), 0, N, values));
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        const tm_fmt_info *t = tm_fmt_get(types[k]);
        uint64_t bytes;
        assert_true(tm_fmt_bytes(types[k], N, &bytes));
        OK(tm_st_read_raw(st, (uint32_t)tm_st_find(st, t->name), 0, bytes, want));
        OK(tm_fmt_encode(types[k], values, N, got));
        for (uint64_t i = 0; i < bytes; i++)
            if (got[i] != want[i])
                fail_msg("%s: block %llu, byte %llu: %02x, ggml has %02x", t->name,
                         (unsigned long long)(i / t->block_bytes), (unsigned long long)(i % t->block_bytes), got[i],
                         want[i]);
    }
    tm_st_close(st);
}

static void corners_of_quantisation(void **state) {
    (void)state;
    static const tm_fmt types[] = {TM_FMT_Q8_0, TM_FMT_Q4_0, TM_FMT_Q4_1, TM_FMT_Q5_0,
                                   TM_FMT_Q5_1, TM_FMT_Q4_K, TM_FMT_Q5_K, TM_FMT_Q6_K};
    enum { N = 256 };
    float zero[N] = {0}, tiny[N], back[N];
    uint8_t out[N / 32 * 34];
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        OK(tm_fmt_encode(types[k], zero, N, out));
        tm_fmt_decode(types[k], out, N, back);
        for (int i = 0; i < N; i++) assert_true(back[i] == 0);
        for (int i = 0; i < N; i++) tiny[i] = (float)(i - 16) * 0x1p-149f; /* scales underflow */
        OK(tm_fmt_encode(types[k], tiny, N, out));
        tm_fmt_decode(types[k], out, N, back);
        for (int i = 0; i < N; i++) assert_true(fabsf(back[i]) < 1e-6f);
        zero[7] = NAN;
        expect_error(tm_fmt_encode(types[k], zero, N, out), TM_EINPUT, "not finite");
        zero[7] = 3e38f; /* its scale is no half */
        expect_error(tm_fmt_encode(types[k], zero, N, out), TM_EINPUT, "too large");
        zero[7] = 0;
    }
    expect_error(tm_fmt_encode(TM_FMT_Q2_K, zero, N, out), TM_EUNSUPPORTED, "Q2_K");
}

/* By how much columns matter: what is lost, weighed, is less than ggml's reference loses. */
static void errors_weigh_by_importance(void **state) {
    (void)state;
    enum { WIDTH = 512, MANY = 24 };
    static const tm_fmt types[] = {TM_FMT_Q4_0, TM_FMT_Q4_1, TM_FMT_Q5_0, TM_FMT_Q5_1,
                                   TM_FMT_Q4_K, TM_FMT_Q5_K, TM_FMT_Q6_K};
    static float x[MANY * WIDTH], weighed[MANY * WIDTH], plain[MANY * WIDTH];
    static uint8_t bytes[MANY * WIDTH * 4];
    float importance[WIDTH];
    for (uint64_t i = 0; i < MANY * WIDTH; i++) x[i] = pattern(i) * pattern(3 * i + 1) * (i % 97 ? 1 : 4);
    for (uint64_t i = 0; i < WIDTH; i++)
        importance[i] = expf(5 * (fabsf(pattern(i + 7)) - floorf(fabsf(pattern(i + 7)))));
    assert_false(tm_block_is_weighed(TM_FMT_Q8_0));
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        double lost[2] = {0};
        OK(tm_block_encode(types[k], x, MANY * WIDTH, &(tm_encode_by){importance, WIDTH, 0}, bytes));
        tm_fmt_decode(types[k], bytes, MANY * WIDTH, weighed);
        OK(tm_block_encode(types[k], x, MANY * WIDTH, NULL, bytes));
        tm_fmt_decode(types[k], bytes, MANY * WIDTH, plain);
        for (uint64_t i = 0; i < MANY * WIDTH; i++) {
            double a = (double)(x[i] - weighed[i]), b = (double)(x[i] - plain[i]);
            lost[0] += (double)importance[i % WIDTH] * a * a;
            lost[1] += (double)importance[i % WIDTH] * b * b;
        }
        if (!(lost[0] < 0.97 * lost[1]))
            fail_msg("%s: %g is not below %g", tm_fmt_get(types[k])->name, lost[0], lost[1]);
    }
}

static void zeros_weigh_nothing(void **state) {
    (void)state;
    static const tm_fmt types[] = {TM_FMT_Q4_0, TM_FMT_Q4_1, TM_FMT_Q5_0, TM_FMT_Q5_1,
                                   TM_FMT_Q4_K, TM_FMT_Q5_K, TM_FMT_Q6_K};
    float x[256] = {0}, importance[256] = {0}, back[256];
    uint8_t bytes[1024];
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (int some = 0; some < 2; some++) {
            x[3] = (float)some; /* columns that were never used may hold anything, but it stays finite */
            OK(tm_block_encode(types[k], x, 256, &(tm_encode_by){importance, 256, 0}, bytes));
            tm_fmt_decode(types[k], bytes, 256, back);
            for (int i = 0; i < 256; i++)
                if (!isfinite(back[i]) || (!some && back[i] != 0))
                    fail_msg("%s: %g", tm_fmt_get(types[k])->name, (double)back[i]);
        }
}

/* Columns that no text used: all of some blocks, all of some lanes within others, and single ones. They keep most of their
 * weights' squares: a scale that is lost would lose them all. */
static void columns_that_were_never_used_stay(void **state) {
    (void)state;
    enum { WIDTH = 512, MANY = 8 };
    static const tm_fmt types[] = {TM_FMT_Q4_0, TM_FMT_Q4_1, TM_FMT_Q5_0, TM_FMT_Q5_1,
                                   TM_FMT_Q4_K, TM_FMT_Q5_K, TM_FMT_Q6_K};
    static float x[MANY * WIDTH], back[MANY * WIDTH];
    static uint8_t bytes[MANY * WIDTH * 4];
    float importance[WIDTH];
    for (uint64_t i = 0; i < MANY * WIDTH; i++) x[i] = pattern(i) * pattern(3 * i + 1);
    for (uint64_t i = 0; i < WIDTH; i++) importance[i] = i < 256 || i / 16 % 4 == 1 || i % 7 == 0 ? 0 : 1;
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        double lost = 0, all = 0;
        OK(tm_block_encode(types[k], x, MANY * WIDTH, &(tm_encode_by){importance, WIDTH, 0}, bytes));
        tm_fmt_decode(types[k], bytes, MANY * WIDTH, back);
        for (uint64_t i = 0; i < MANY * WIDTH; i++) {
            if (importance[i % WIDTH] > 0) continue;
            lost += (double)(x[i] - back[i]) * (double)(x[i] - back[i]);
            all += (double)x[i] * (double)x[i];
        }
        if (!(lost < 0.05 * all)) fail_msg("%s: %g of %g", tm_fmt_get(types[k])->name, lost, all);
    }
}

static void names_and_sizes(void **state) {
    (void)state;
    tm_fmt f;
    uint64_t bytes;
    assert_true(tm_fmt_parse("q4_1", &f) && f == TM_FMT_Q4_1);
    assert_true(tm_fmt_parse("BF16", &f) && f == TM_FMT_BF16);
    assert_false(tm_fmt_parse("q4", &f));
    assert_true(tm_fmt_bytes(TM_FMT_Q6_K, 512, &bytes) && bytes == 420);
    assert_false(tm_fmt_bytes(TM_FMT_Q6_K, 500, &bytes));
    assert_false(tm_fmt_bytes(TM_FMT_F32, UINT64_MAX / 2, &bytes));
    for (int i = 0; i < TM_FMT_COUNT; i++) {
        assert_non_null(tm_fmt_get((tm_fmt)i)->name);
        assert_true(tm_fmt_get((tm_fmt)i)->block > 0 && tm_fmt_get((tm_fmt)i)->block_bytes > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_definition),   cmocka_unit_test(long_tensors_have_no_seams),
        cmocka_unit_test(values_are_those_of_the_gguf_package), cmocka_unit_test(quantised_bytes_are_those_of_ggml),
        cmocka_unit_test(quantised_bytes_are_those_of_libggml), cmocka_unit_test(corners_of_quantisation),
        cmocka_unit_test(errors_weigh_by_importance),           cmocka_unit_test(zeros_weigh_nothing),
        cmocka_unit_test(columns_that_were_never_used_stay),    cmocka_unit_test(names_and_sizes)};
    return cmocka_run_group_tests_name("blocks", tests, make_scratch, remove_scratch);
}
