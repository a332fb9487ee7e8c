/* 4-bit blocks: codes, scales and values are bitsandbytes' (fixtures/nf4), in every column of kernels; any range gives
 * the bits of the whole; our own form says the same. FP4, of which there is no fixture, by its definition. */
#include "kernels/kernels.h"
#include "kernels/nf4.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 3;
static uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* ---- the fixture ---- */

static tm_st *golden;

/* All of CASE.WHAT as float32, or as its bytes; the caller frees it. */
static void *all_of(const char *name, const char *what, bool raw, uint64_t *n) {
    char full[64];
    snprintf(full, sizeof full, "%s%s%s", name, *name ? "." : "", what);
    int64_t t = tm_st_find(golden, full);
    if (t < 0) fail_msg("%s is missing", full);
    const tm_st_info *info = tm_st_get(golden, (uint32_t)t);
    *n = info->elements;
    void *out = malloc(info->elements * 4 + 4);
    assert_non_null(out);
    if (raw)
        OK(tm_st_read_raw(golden, (uint32_t)t, 0, info->bytes, out));
    else
        OK(tm_st_read_f32(golden, (uint32_t)t, 0, info->elements, out));
    return out;
}

static tm_elem type_of(const char *name) {
    return strcmp(name, "bf16") == 0 ? TM_ELEM_BF16 : strcmp(name, "f16") == 0 ? TM_ELEM_F16 : TM_ELEM_F32;
}

/* float32: a rounding apart at most; 16 bits: as stored, since both round one product once. */
static void same_values(const tm_nf4_blocks *b, const char *name, const char *what) {
    uint64_t n;
    tm_elem t = type_of(name);
    void *want = all_of(name, what, true, &n), *got = malloc(n * 4);
    tm_nf4_values(b, 0, n, t, got);
    for (uint64_t i = 0; i < n && t == TM_ELEM_F32; i++) {
        float x = ((float *)want)[i], y = ((float *)got)[i];
        if (!(fabsf(x - y) <= 1e-6f * fabsf(x)))
            fail_msg("%s.%s[%d]: %a, not %a", name, what, (int)i, (double)y, (double)x);
    }
    if (t != TM_ELEM_F32) assert_memory_equal(got, want, n * 2);
    free(want);
    free(got);
}

static void near_all(const float *got, const float *want, uint64_t n, const char *what) {
    for (uint64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i])))
            fail_msg("%s: %a, not %a", what, (double)got[i], (double)want[i]);
}

static void a_case(const char *name, uint32_t block) {
    uint64_t n, m, blocks;
    float *x = all_of(name, "input", false, &n), *absmax = all_of(name, "absmax", false, &blocks);
    float *got_absmax = malloc(blocks * 4), nested[8], map[256];
    uint8_t *packed = all_of(name, "packed", true, &m), *codes = malloc(n / 2 + 1), *nest = malloc(blocks);
    assert_true(m == (n + 1) / 2 && blocks == (n + block - 1) / block);
    tm_nf4_quantise(TM_NF4, block, x, n, codes, got_absmax);
    assert_memory_equal(codes, packed, m);
    assert_memory_equal(got_absmax, absmax, blocks * 4);
    tm_nf4_blocks b = {.map = tm_nf4_map(TM_NF4), .codes = codes, .block = block, .absmax = absmax};
    same_values(&b, name, "dequant");

    float offset = tm_nf4_mean(absmax, blocks), *want = all_of(name, "dq.offset", false, &m);
    near_all(&offset, want, 1, "offset");
    tm_nf4_nest(absmax, blocks, *want, nest, nested);
    uint8_t *want_nest = all_of(name, "dq.absmax_q", true, &m);
    assert_memory_equal(nest, want_nest, blocks);
    b.offset = *want;
    free(want);
    want = all_of(name, "dq.absmax2", false, &m);
    assert_int_equal(m, (blocks + 255) / 256);
    assert_memory_equal(nested, want, m * 4);
    memcpy(map, tm_nf4_dynamic_map(), sizeof map);
    b.absmax = nest, b.nested_map = map, b.nested_absmax = nested, b.nested_block = 256;
    same_values(&b, name, "dq.dequant");
    free(x), free(absmax), free(got_absmax), free(packed), free(codes), free(nest), free(want_nest), free(want);
}

static void as_bitsandbytes(void **state) {
    (void)state;
    uint64_t n;
    float *table = all_of("", "nf4_table", false, &n), *code = all_of("dq", "code", false, &n);
    assert_memory_equal(table, tm_nf4_map(TM_NF4), 16 * 4);
    assert_memory_equal(code, tm_nf4_dynamic_map(), 256 * 4);
    free(table), free(code);
    tm_json_doc *doc = parse_file(fixture("nf4/golden.json"));
    int cases = 0;
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "cases")->child; c; c = c->next, cases++)
        a_case(c->key, (uint32_t)tm_json_get(c, "blocksize")->number);
    assert_int_equal(cases, 9);
    tm_json_free(doc);
}

/* ---- ranges ---- */

enum { LONG = 5 * 4096 + 77 };

static void any_range(const tm_nf4_blocks *b, tm_elem t) {
    size_t size = tm_elem_bytes(t);
    uint8_t *all = malloc(LONG * size), *part = malloc(LONG * size + 1);
    tm_nf4_values(b, 0, LONG, t, all);
    for (int i = 0; i < 200; i++) {
        uint64_t first = draw() % LONG, n = draw() % (i % 3 ? tm_min_u64(150, LONG - first + 1) : LONG - first + 1);
        part[n * size] = 0x5a;
        tm_nf4_values(b, first, n, t, part);
        assert_memory_equal(part, all + first * size, n * size);
        assert_int_equal(part[n * size], 0x5a);
    }
    free(all);
    free(part);
}

/* Also where the first block is not the first of its nested block, and scales lie at odd addresses. */
static void every_range_is_a_part_of_the_whole(void **state) {
    (void)state;
    static const uint32_t sizes[] = {32, 64, 256, 4096};
    uint8_t codes[LONG / 2 + 1], scales[LONG / 32 * 4 + 8], nested[64];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)draw();
    for (size_t i = 0; i < sizeof scales / 4; i++)
        memcpy(scales + 1 + 4 * i % (sizeof scales - 5), &(float){pattern(i)}, 4);
    for (size_t i = 0; i < sizeof nested / 4 - 1; i++) memcpy(nested + 1 + 4 * i, &(float){pattern(i + 9)}, 4);
    for (size_t k = 0; k < TM_COUNT(sizes); k++)
        for (int t = 0; t < 3; t++) {
            tm_nf4_blocks b = {.map = tm_nf4_map(TM_NF4), .codes = codes, .block = sizes[k], .absmax = scales + 1};
            any_range(&b, (tm_elem)t);
            b.nested_map = tm_nf4_dynamic_map();
            b.nested_absmax = nested + 1, b.nested_block = 64, b.nested_skip = 63, b.offset = 0.25f;
            any_range(&b, (tm_elem)t);
        }
}

/* One element at a time, by the formula. */
static void values_are_the_formula(void **state) {
    (void)state;
    uint8_t codes[512], nest[16];
    float nested[2] = {0.75f, 3};
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)draw();
    for (size_t i = 0; i < sizeof nest; i++) nest[i] = (uint8_t)draw();
    tm_nf4_blocks b = {.map = tm_nf4_map(TM_FP4),
                       .codes = codes,
                       .block = 64,
                       .absmax = nest,
                       .nested_map = tm_nf4_dynamic_map(),
                       .nested_absmax = nested,
                       .nested_block = 256,
                       .nested_skip = 250,
                       .offset = 0.5f};
    for (uint64_t i = 0; i < 1024; i++) {
        float got, absmax = b.nested_map[nest[i / 64]] * nested[(250 + i / 64) / 256] + 0.5f;
        tm_nf4_values(&b, i, 1, TM_ELEM_F32, &got);
        assert_true(got == b.map[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * absmax);
    }
}

/* ---- FP4 ---- */

/* Sixteenths of 3: sign, two bits of exponent, one of mantissa, as bitsandbytes numbers them. */
static void fp4_is_its_definition(void **state) {
    (void)state;
    static const double twelfths[16] = {0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3};
    float x[64], absmax;
    uint8_t codes[32];
    for (int c = 0; c < 16; c++) assert_true(tm_nf4_map(TM_FP4)[c] == (float)(twelfths[c] / 12));
    for (int i = 0; i < 64; i++) x[i] = i < 16 ? (float)(twelfths[i] / 12) : pattern((uint64_t)i);
    for (int i = 0; i < 64; i++) x[i] = fminf(1, fmaxf(-1, x[i]));
    tm_nf4_quantise(TM_FP4, 64, x, 64, codes, &absmax);
    assert_true(absmax == 1);
    for (int i = 0; i < 64; i++) {
        int code = i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
        double off = fabs((double)x[i] - twelfths[code] / 12), least = 9;
        for (int c = 0; c < 16; c++) least = fmin(least, fabs((double)x[i] - twelfths[c] / 12));
        assert_true(off <= least + 1e-7);
        assert_true(i >= 16 || code == i % 16 || i == 8);
    }
}

/* ---- the form of our own ---- */

static void form(tm_nf4_kind kind, bool double_quant, uint64_t n) {
    uint64_t bytes = tm_nf4_bytes(n, double_quant), runs = n / TM_NF4_RUN * TM_NF4_RUN;
    float *x = malloc(n * 4 + 1), *all = malloc(n * 4 + 1), *part = malloc(n * 4 + 1);
    uint8_t *stored = malloc(bytes + 2), *tail = malloc(bytes + 1);
    for (uint64_t i = 0; i < n; i++) x[i] = pattern(i * 7);
    stored[bytes + 1] = 0x5a;
    OK(tm_nf4_encode(kind, double_quant, x, n, stored + 1));
    assert_int_equal(stored[bytes + 1], 0x5a);
    const tm_nf4_form f = {kind, double_quant, n, stored + 1};
    tm_nf4_decode(&f, 0, n, TM_ELEM_F32, all);
    for (uint64_t i = 0; i < n; i++) /* half the widest gap, and of the scales that of theirs */
        if (!(fabsf(all[i] - x[i]) <= 1.4f * (kind == TM_NF4 ? 0.16f : 0.18f)))
            fail_msg("%llu: %g became %g", (unsigned long long)i, (double)x[i], (double)all[i]);
    for (int i = 0; i < 40 && n; i++) {
        uint64_t first = draw() % n, take = draw() % (n - first + 1);
        tm_nf4_decode(&f, first, take, TM_ELEM_F32, part);
        assert_memory_equal(part, all + first, take * 4);
    }
    /* What begins with a run is a form. */
    OK(tm_nf4_encode(kind, double_quant, x + runs, n - runs, tail));
    uint64_t at = tm_nf4_bytes(runs, double_quant), rest = tm_nf4_bytes(n - runs, double_quant);
    assert_int_equal(at + rest, bytes);
    assert_memory_equal(tail, stored + 1 + at, rest);
    free(x), free(all), free(part), free(stored), free(tail);
}

static void our_form(void **state) {
    (void)state;
    static const uint64_t sizes[] = {
        0, 1, 63, 64, 65, TM_NF4_RUN - 1, TM_NF4_RUN, TM_NF4_RUN + 1, 3 * TM_NF4_RUN + 129};
    for (size_t i = 0; i < TM_COUNT(sizes); i++)
        for (int k = 0; k < 4; k++) form(k % 2 ? TM_FP4 : TM_NF4, k / 2, sizes[i]);
    assert_int_equal(tm_nf4_bytes(TM_NF4_RUN, true), 8192 + 256 + 8); /* 0.516 bytes an element */
    assert_int_equal(tm_nf4_bytes(TM_NF4_RUN, false), 8192 + 1024);
    assert_int_equal(tm_nf4_bytes(UINT64_C(70000000000), true) / 1000000000, 36);
    uint8_t out[200];
    float bad[65] = {[64] = INFINITY};
    expect_error(tm_nf4_encode(TM_NF4, true, bad, 65, out), TM_EINPUT, "not finite");
    bad[64] = NAN;
    expect_error(tm_nf4_encode(TM_NF4, false, bad, 65, out), TM_EINPUT, "not finite");
}

/* The codes and scales in it are bitsandbytes', double quantisation too where the tensor is one run. */
static void our_form_holds_bitsandbytes_codes(void **state) {
    (void)state;
    uint64_t n, m;
    float *x = all_of("plain", "input", false, &n), *offset = all_of("plain", "dq.offset", false, &m);
    uint8_t *packed = all_of("plain", "packed", true, &m), *stored = malloc(tm_nf4_bytes(n, false));
    uint8_t *absmax = all_of("plain", "absmax", true, &m), *nest = all_of("plain", "dq.absmax_q", true, &m);
    uint64_t blocks = n / 64;
    OK(tm_nf4_encode(TM_NF4, false, x, n, stored));
    assert_memory_equal(stored, absmax, blocks * 4);
    assert_memory_equal(stored + blocks * 4, packed, n / 2);
    OK(tm_nf4_encode(TM_NF4, true, x, n, stored));
    near_all((float *)(void *)stored, offset, 1, "offset");
    assert_memory_equal(stored + 8, nest, blocks);
    assert_memory_equal(stored + 8 + blocks, packed, n / 2);
    free(x), free(offset), free(packed), free(stored), free(absmax), free(nest);
}

/* ---- columns ---- */

static int open_golden(void **state) {
    return tm_st_open(&golden, fixture("nf4/golden.safetensors")) == TM_OK ? make_scratch(state) : -1;
}
static int close_golden(void **state) {
    tm_st_close(golden);
    return remove_scratch(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_bitsandbytes),
        cmocka_unit_test(every_range_is_a_part_of_the_whole),
        cmocka_unit_test(values_are_the_formula),
        cmocka_unit_test(fp4_is_its_definition),
        cmocka_unit_test(our_form),
        cmocka_unit_test(our_form_holds_bitsandbytes_codes),
    };
    static const char *const columns[] = {"ref", "avx2", "avx512"};
    int failed = 0, ran = 0;
    setenv("TIDEMILL_GEMM", "builtin", 1); /* no library is needed here */
    for (size_t i = 0; i < TM_COUNT(columns); i++) {
        setenv("TIDEMILL_ISA", columns[i], 1);
        if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) { /* this CPU has not all of it */
            tm_error_clear();
            continue;
        }
        failed += cmocka_run_group_tests_name(columns[i], tests, open_golden, close_golden);
        ran++;
    }
    tm_kernels_close();
    return ran ? failed : 1;
}
