/* Packed matrices: values against src/format's reader of the same blocks, rows that are permuted, runs that begin anywhere,
 * in every column. Products of them are in test_gemm. */
#include "format/format.h"
#include "kernels/kernels_internal.h"
#include "kernels/packed.h"
#include "tests/support/skip.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { K = 512, ROWS = 24, HEAD = 8 };

static const struct {
    tm_packed_type packed;
    tm_fmt fmt;
} types[] = {{TM_PACKED_F32, TM_FMT_F32},   {TM_PACKED_BF16, TM_FMT_BF16}, {TM_PACKED_F16, TM_FMT_F16},
             {TM_PACKED_Q8_0, TM_FMT_Q8_0}, {TM_PACKED_Q4_0, TM_FMT_Q4_0}, {TM_PACKED_Q4_1, TM_FMT_Q4_1},
             {TM_PACKED_Q5_0, TM_FMT_Q5_0}, {TM_PACKED_Q5_1, TM_FMT_Q5_1}, {TM_PACKED_Q4_K, TM_FMT_Q4_K},
             {TM_PACKED_Q5_K, TM_FMT_Q5_K}, {TM_PACKED_Q6_K, TM_FMT_Q6_K}};

/* Any codes, finite scales: an f16, bf16 or f32 whose exponent has a bit that is 0. */
static uint8_t *blocks_of(tm_packed_type t, size_t elements, size_t *bytes) {
    const tm_packing_traits *x = tm_packing_of(t);
    *bytes = elements / x->block * x->block_bytes;
    uint8_t *b = malloc(*bytes + 1) + 1; /* at an odd address */
    for (size_t i = 0; i < *bytes; i++) {
        uint32_t r[4];
        tm_philox(5, (uint64_t)t, i, r);
        b[i] = (uint8_t)r[0];
    }
    for (size_t i = 0; i < *bytes; i += x->block_bytes) {
        if (x->block == 1) b[i + x->block_bytes - 1] &= 0xbb;
        if (x->block > 1) b[i + 1] &= 0xfb, b[i + 3] &= 0xfb, b[i + x->block_bytes - 1] &= 0xfb;
    }
    return b;
}

static void same_as_format(tm_packed_type t, tm_fmt fmt) {
    static const size_t at[] = {0, 1, 31, 32, 100, 256, 300}, n[] = {1, 31, 32, 64, 200, 212};
    size_t bytes;
    uint8_t *b = blocks_of(t, K * ROWS, &bytes);
    float want[K], got[K];
    uint16_t half[K], narrowed[K];
    tm_packed p = {.packing = t, .k = K, .data = b, .first = 2};
    for (size_t row = 0; row < ROWS - 2; row += 5)
        for (size_t i = 0; i < TM_COUNT(at); i++)
            for (size_t j = 0; j < TM_COUNT(n); j++) {
                tm_fmt_decode(fmt, b + (row + 2) * (bytes / ROWS), K, want);
                tm_packed_values(&p, row, at[i], n[j], TM_ELEM_F32, got);
                assert_memory_equal(got, want + at[i], n[j] * sizeof *got);
                for (tm_elem to = TM_ELEM_BF16; to <= TM_ELEM_F16; to++) {
                    kernels_narrow(to, want + at[i], narrowed, n[j]);
                    tm_packed_values(&p, row, at[i], n[j], to, half);
                    assert_memory_equal(half, narrowed, n[j] * sizeof *half);
                }
            }
    free(b - 1);
}

static void values(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(types); i++) same_as_format(types[i].packed, types[i].fmt);
}

/* GGUF's order of a head's rows: row 2 i + j of the file is row j * HEAD / 2 + i. */
static void permuted(void **state) {
    (void)state;
    float stored[ROWS], got;
    for (size_t i = 0; i < ROWS; i++) stored[i] = (float)i;
    tm_packed p = {.packing = TM_PACKED_F32, .k = 1, .data = stored, .head_rows = HEAD};
    for (size_t head = 0; head < ROWS / HEAD; head++)
        for (size_t i = 0; i < HEAD / 2; i++)
            for (size_t j = 0; j < 2; j++) {
                tm_packed_values(&p, head * HEAD + j * HEAD / 2 + i, 0, 1, TM_ELEM_F32, &got);
                assert_true(got == (float)(head * HEAD + 2 * i + j));
            }
}

static void four_bits(void **state) {
    (void)state;
    uint8_t codes[K * ROWS / 2];
    float absmax[K * ROWS / TM_NF4_BLOCK], want[K], got[K];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 37 + i / 16);
    for (size_t i = 0; i < TM_COUNT(absmax); i++) absmax[i] = (float)(i % 7) / 3;
    tm_packed p = {.packing = TM_PACKED_BITS4, .k = K};
    p.nf4 = (tm_nf4_blocks){.map = tm_nf4_map(TM_NF4), .codes = codes, .block = TM_NF4_BLOCK, .absmax = absmax};
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t i = 0; i < K; i++) {
            size_t e = row * K + i;
            want[i] = tm_nf4_map(TM_NF4)[e % 2 ? codes[e / 2] & 15 : codes[e / 2] >> 4] * absmax[e / TM_NF4_BLOCK];
        }
        tm_packed_values(&p, row, 0, K, TM_ELEM_F32, got);
        assert_memory_equal(got, want, sizeof want);
        tm_packed_values(&p, row, 66, 130, TM_ELEM_F32, got);
        assert_memory_equal(got, want + 66, 130 * sizeof *want);
    }
}

int main(void) {
    static const char *const columns[] = {"ref", "avx2", "avx512"};
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(permuted),
                                       cmocka_unit_test(four_bits)};
    int failed = 0;
    setenv("TIDEMILL_GEMM", "builtin", 1);
    for (size_t i = 0; i < TM_COUNT(columns); i++) {
        setenv("TIDEMILL_ISA", columns[i], 1);
        if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) {
            TEST_SKIP_PART("%s: %s", columns[i], tm_error_get()->text);
            tm_error_clear();
            continue;
        }
        failed += cmocka_run_group_tests_name(columns[i], tests, NULL, NULL);
        tm_kernels_close();
    }
    return failed;
}
