/* Products against double, for every mix of types and transposes, odd sizes, every back-end and every column. */
#include "kernels/gemm.h"
#include "kernels/attention_internal.h"
#include "kernels/kernels_internal.h"
#include "tests/support/skip.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t stream;
static float uniform(void) {
    uint32_t r[4];
    tm_philox(11, 0, stream++, r);
    return (float)((double)r[0] / 2147483648.0 - 1.0);
}

/* n values of type t, exactly sized; wide gets what was stored. */
static void *values(tm_elem t, size_t n, float *wide) {
    for (size_t i = 0; i < n; i++) wide[i] = uniform();
    void *out = malloc(n * tm_elem_bytes(t));
    if (t == TM_ELEM_F32) {
        memcpy(out, wide, n * sizeof *wide);
        return out;
    }
    kernels_narrow(t, wide, out, n);
    kernels_widen(t, out, wide, n);
    return out;
}

typedef struct product {
    tm_gemm_args g;
    float *a, *b, *c; /* as stored, widened */
    void *sa, *sb, *sc;
    size_t c_elements;
} product;

static product make(size_t m, size_t n, size_t k, tm_elem ta, tm_elem tb, tm_elem tc, bool a_trans, bool b_trans,
                    float alpha, float beta) {
    product p = {.c_elements = m * (n + 3)};
    size_t lda = (a_trans ? m : k) + 1, ldb = (b_trans ? k : n) + 2, ldc = n + 3;
    size_t na = (a_trans ? k : m) * lda, nb = (b_trans ? n : k) * ldb;
    p.a = malloc(na * 4), p.b = malloc(nb * 4), p.c = malloc(p.c_elements * 4);
    p.sa = values(ta, na, p.a), p.sb = values(tb, nb, p.b), p.sc = values(tc, p.c_elements, p.c);
    p.g = (tm_gemm_args){.m = m,
                         .n = n,
                         .k = k,
                         .alpha = alpha,
                         .beta = beta,
                         .a = p.sa,
                         .b = p.sb,
                         .c = p.sc,
                         .lda = lda,
                         .ldb = ldb,
                         .ldc = ldc,
                         .a_type = ta,
                         .b_type = tb,
                         .c_type = tc,
                         .a_trans = a_trans,
                         .b_trans = b_trans};
    if (beta == 0) /* C must not be read then */
        memset(p.sc, 0xff, p.c_elements * tm_elem_bytes(tc));
    return p;
}

static void drop(product *p) {
    free(p->a), free(p->b), free(p->c), free(p->sa), free(p->sb), free(p->sc);
}

/* *size: what the terms add up to when all are positive. Reads what is the test's alone: nothing for a sanitizer, which
 * would take most of the test's time with it. */
__attribute__((no_sanitize("address", "undefined"))) static double expected(const product *p, size_t i, size_t j,
                                                                            double *size) {
    const tm_gemm_args *g = &p->g;
    const float *a = g->a_trans ? p->a + i : p->a + i * g->lda, *b = g->b_trans ? p->b + j * g->ldb : p->b + j;
    const size_t next_a = g->a_trans ? g->lda : 1, next_b = g->b_trans ? 1 : g->ldb;
    double old = g->beta == 0 ? 0 : (double)g->beta * (double)p->c[i * g->ldc + j], sum = 0, most = 0;
    for (size_t x = 0; x < g->k; x++) {
        double term = (double)a[x * next_a] * (double)b[x * next_b];
        sum += term, most += fabs(term);
    }
    *size = fabs(old) + fabs((double)g->alpha) * most;
    return old + (double)g->alpha * sum;
}

static void check(const product *p) {
    const tm_gemm_args *g = &p->g;
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            float got;
            if (g->c_type == TM_ELEM_F32)
                got = ((float *)p->sc)[i * g->ldc + j];
            else
                kernels_widen(g->c_type, (uint16_t *)p->sc + i * g->ldc + j, &got, 1);
            double size, want = expected(p, i, j, &size), nu = (double)(g->k + 3) * 0x1p-24;
            double tol = nu / (1 - nu) * size; /* any order of k products, alpha, beta, the last sum */
            if (g->c_type == TM_ELEM_BF16) tol += 0x1p-8 * (fabs(want) + tol);
            if (g->c_type == TM_ELEM_F16) tol += 0x1p-11 * (fabs(want) + tol) + 0x1p-25;
            if (!(fabs((double)got - want) <= tol))
                fail_msg("C[%zu,%zu] = %.9g, expected %.9g", i, j, (double)got, want);
        }
    /* between the rows of C nothing changes */
    if (g->beta != 0 && g->c_type == TM_ELEM_F32)
        for (size_t i = 0; i < g->m; i++)
            assert_memory_equal((float *)p->sc + i * g->ldc + g->n, p->c + i * g->ldc + g->n, 3 * sizeof(float));
}

/* Bits 0 to 2 of the mix: A, B, C have 16 bits; 3 and 4: A, B are transposed; 5: of 16 bits is fp16, else bf16. */
enum { MIXES = 64 };
static void one(size_t m, size_t n, size_t k, unsigned mix, float alpha, float beta) {
    const tm_elem type[] = {TM_ELEM_F32, mix >> 5 & 1U ? TM_ELEM_F16 : TM_ELEM_BF16};
    product p = make(m, n, k, type[mix & 1U], type[mix >> 1 & 1U], type[mix >> 2 & 1U], mix >> 3 & 1U, mix >> 4 & 1U,
                     alpha, beta);
    tm_gemm(&p.g);
    check(&p);
    drop(&p);
}

static void mixes(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        one(1, 1, 1, mix, 1, 0);
        one(5, 7, 3, mix, 1, 1);
        one(6, 16, 8, mix, 1, 0);
        one(13, 50, 33, mix, -0.5F, 1);
        one(70, 130, 90, mix, 1, 0.25F);
    }
}

static void large(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix += 3) one(523, 40, 70, mix, 1, 1);  /* more rows than a chunk or tile */
    for (unsigned mix = 0; mix < MIXES; mix += 3) one(20, 1100, 30, mix, 1, 0); /* more columns */
    for (unsigned mix = 0; mix < MIXES; mix += 3) one(33, 35, 1300, mix, 1, 1); /* several panels of k */
    for (unsigned mix = 7; mix < MIXES / 2; mix += 8) one(545, 600, 515, mix, 2, 0.5F); /* all of these at once */
}

/* An adapter's: rows are dealt out too. */
static void narrow(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < MIXES; mix++) {
        const tm_elem type[] = {TM_ELEM_F32, mix >> 5 & 1U ? TM_ELEM_F16 : TM_ELEM_BF16};
        product p = make(530, 3 + mix % 20, 40, type[mix & 1U], type[mix >> 1 & 1U], type[mix >> 2 & 1U], mix >> 3 & 1U,
                         mix >> 4 & 1U, 0.5F, 1);
        p.g.narrow = true;
        tm_gemm(&p.g);
        check(&p);
        drop(&p);
    }
}

/* Twice the same, bit for bit, whichever thread took which tile. */
static void repeatable(void **state) {
    (void)state;
    product p = make(300, 700, 600, TM_ELEM_BF16, TM_ELEM_F32, TM_ELEM_F32, false, true, 1, 0);
    void *first = malloc(p.c_elements * 4);
    for (int i = 0; i < 10; i++) {
        tm_gemm(&p.g);
        if (i) assert_memory_equal(first, p.sc, p.c_elements * 4);
        memcpy(first, p.sc, p.c_elements * 4);
    }
    free(first);
    drop(&p);
}

/* Rounding of a C of 16 bits happens once: it is the fp32 result, narrowed. */
static void rounded_once(tm_elem t) {
    product p = make(40, 70, 900, t, t, t, false, true, 1, 1);
    float *wide = malloc(p.c_elements * sizeof *wide);
    uint16_t *narrowed = malloc(p.c_elements * sizeof *narrowed);
    tm_gemm_args g = p.g;
    g.c = wide, g.c_type = TM_ELEM_F32, g.beta = 0;
    memset(wide, 0, p.c_elements * sizeof *wide);
    tm_gemm(&g);
    for (size_t i = 0; i < p.c_elements; i++) wide[i] += p.c[i];
    kernels_narrow(t, wide, narrowed, p.c_elements);
    tm_gemm(&p.g);
    for (size_t i = 0; i < 40; i++) assert_memory_equal(narrowed + i * p.g.ldc, (uint16_t *)p.sc + i * p.g.ldc, 70 * 2);
    free(wide), free(narrowed);
    drop(&p);
}

static void rounds_once(void **state) {
    (void)state;
    rounded_once(TM_ELEM_BF16);
    rounded_once(TM_ELEM_F16);
}

static void any_thread_count(void **state) {
    (void)state;
    product p = make(300, 300, 500, TM_ELEM_F32, TM_ELEM_BF16, TM_ELEM_F32, true, false, 1, 0);
    void *first = malloc(p.c_elements * 4);
    for (unsigned threads = 1; threads < 5; threads++) {
        assert_int_equal(tm_kernels_init(threads, TM_ELEM_F32), TM_OK);
        tm_gemm(&p.g);
        check(&p);
        if (threads > 1 && strstr(tm_gemm_library(), "builtin")) assert_memory_equal(first, p.sc, p.c_elements * 4);
        memcpy(first, p.sc, p.c_elements * 4);
    }
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    free(first);
    drop(&p);
}

/* More tiles than one each way, and several parts of k: with our own product every cut gives the same bits. */
static void same_bits_for(tm_elem c) {
    product p = make(600, 900, 800, TM_ELEM_BF16, TM_ELEM_BF16, c, true, false, 1, 0.5F);
    size_t bytes = p.c_elements * tm_elem_bytes(c);
    void *before = malloc(bytes), *first = malloc(bytes);
    memcpy(before, p.sc, bytes);
    for (unsigned threads = 1; threads < 25; threads = threads * 2 + 1) {
        assert_int_equal(tm_kernels_init(threads, TM_ELEM_F32), TM_OK);
        memcpy(p.sc, before, bytes);
        tm_gemm(&p.g);
        if (threads > 1) assert_memory_equal(first, p.sc, bytes);
        memcpy(first, p.sc, bytes);
    }
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    free(before), free(first);
    drop(&p);
}

static bool is_named(const char *backend) {
    return strncmp(tm_gemm_library(), backend, strlen(backend)) == 0;
}
static bool is_own(void) {
    return is_named("builtin") || is_named("avx512bf16") || is_named("amx");
}

static void any_cut(void **state) {
    (void)state;
    if (!is_own()) return;                                     /* a library promises nothing of the kind */
    if (strcmp(tm_gemm_library(), "builtin-ref") == 0) return; /* portable C takes a while */
    same_bits_for(TM_ELEM_F32);
    same_bits_for(TM_ELEM_BF16);
}

/* Our own product: a row's bits are its own, however many are beside it. */
static void rows_alone(tm_elem t, tm_elem tc, size_t n, size_t k) {
    static const size_t few[] = {1, 2, 15, 16, 17, 33, 64, 65};
    enum { ALL = 70 };
    product p = make(ALL, n, k, t, t, tc, false, true, 0.5F, 1);
    size_t bytes = p.c_elements * tm_elem_bytes(tc), row = p.g.ldc * tm_elem_bytes(tc);
    char *before = malloc(bytes), *all = malloc(bytes);
    memcpy(before, p.sc, bytes);
    tm_gemm(&p.g);
    memcpy(all, p.sc, bytes);
    for (size_t i = 0; i < TM_COUNT(few); i++) {
        memcpy(p.sc, before, bytes);
        p.g.m = few[i];
        tm_gemm(&p.g);
        assert_memory_equal(p.sc, all, few[i] * row);
        assert_memory_equal((char *)p.sc + few[i] * row, before + few[i] * row, bytes - few[i] * row);
    }
    free(before), free(all);
    drop(&p);
}

static void any_rows(void **state) {
    (void)state;
    if (!is_own()) return; /* a library promises nothing of the kind */
    static const size_t n[] = {1, 16, 63, 64, 130}, k[] = {1, 31, 64, 515, 600};
    for (tm_elem t = TM_ELEM_F32; t <= TM_ELEM_F16; t++)
        for (size_t i = 0; i < TM_COUNT(n); i++)
            for (size_t j = 0; j < TM_COUNT(k); j++) {
                rows_alone(t, t, n[i], k[j]);
                if (t != TM_ELEM_F32) rows_alone(t, TM_ELEM_F32, n[i], k[j]);
            }
}

/* Blocks of any codes with scales near 1, as a file has them. */
static uint8_t *blocks_of(tm_packed_type t, size_t elements) {
    const tm_packing_traits *x = tm_packing_of(t);
    size_t bytes = elements / x->block * x->block_bytes;
    uint8_t *b = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        uint32_t r[4];
        tm_philox(7, (uint64_t)t, i, r);
        b[i] = (uint8_t)r[0];
    }
    for (size_t i = 0; i < bytes; i += x->block_bytes) {
        if (x->block == 1) b[i + x->block_bytes - 1] = 0x3f;
        if (x->block > 1) b[i + 1] = b[i + 3] = b[i + x->block_bytes - 1] = 0x34;
    }
    return b;
}

/* A packed matrix is multiplied as it would be decoded: the same bits by our own product, close by another. */
static void one_packed(tm_packed_type packing, tm_elem t, size_t m, size_t n, size_t k, uint32_t head_rows) {
    bool own = is_own();
    product p = make(m, n, k, t, t, t, false, true, 1, 0);
    uint8_t *b = blocks_of(packing, (n + 1) * k);
    tm_packed packed = {.packing = packing, .k = k, .data = b, .first = head_rows ? 0 : 1, .head_rows = head_rows};
    size_t bytes = p.c_elements * tm_elem_bytes(t);
    void *plain = malloc(bytes);
    for (size_t i = 0; i < n; i++) {
        tm_packed_values(&packed, i, 0, k, TM_ELEM_F32, p.b + i * p.g.ldb);
        tm_packed_values(&packed, i, 0, k, t, (char *)p.sb + i * p.g.ldb * tm_elem_bytes(t));
        if (t != TM_ELEM_F32) kernels_widen(t, (uint16_t *)p.sb + i * p.g.ldb, p.b + i * p.g.ldb, k);
    }
    tm_gemm(&p.g);
    memcpy(plain, p.sc, bytes);
    p.g.b_packed = &packed, p.g.b = NULL;
    tm_gemm(&p.g);
    check(&p);
    if (own) assert_memory_equal(p.sc, plain, bytes);
    free(plain), free(b);
    drop(&p);
}

/* Codes of 4 bits from element `skip` rows on, whose scales are near 1, or all `scale`, nested or not. */
typedef struct four_bits {
    uint32_t block;
    bool nested;
    float scale; /* 0: near 1 */
    size_t skip;
} four_bits;

typedef struct four_bits_made {
    tm_packed packed;
    uint8_t *codes, *absmax;
    float *nested;
} four_bits_made;

static float scale_of(const four_bits *x, size_t i) {
    return x->scale != 0 ? x->scale : 0.75F + (float)(i * 7 % 64) / 128;
}

/* All of it lies at odd addresses, and ends where the memory does. */
static four_bits_made make_four_bits(const four_bits *x, size_t rows, size_t k) {
    size_t elements = (rows + x->skip) * k, blocks = (elements + x->block - 1) / x->block, nests = blocks / 256 + 2;
    four_bits_made m = {.packed = {.packing = TM_PACKED_BITS4, .k = k, .first = x->skip}};
    m.codes = malloc(elements / 2 + 1), m.absmax = malloc(4 * blocks + 1), m.nested = malloc(nests * sizeof(float));
    for (size_t i = 0; i < elements / 2; i++) {
        uint32_t r[4];
        tm_philox(9, x->block, i, r);
        m.codes[1 + i] = (uint8_t)r[0];
    }
    for (size_t i = 0; i < blocks; i++) {
        float s = scale_of(x, i);
        if (x->nested) m.absmax[1 + i] = (uint8_t)(i * 37);
        if (!x->nested) memcpy(m.absmax + 1 + 4 * i, &s, sizeof s);
    }
    for (size_t i = 0; i < nests; i++) m.nested[i] = scale_of(x, i);
    m.packed.nf4 = (tm_nf4_blocks){.map = tm_nf4_map(x->block == 128 ? TM_FP4 : TM_NF4),
                                   .codes = m.codes + 1,
                                   .block = x->block,
                                   .absmax = m.absmax + 1,
                                   .nested_map = x->nested ? tm_nf4_dynamic_map() : NULL,
                                   .nested_absmax = m.nested,
                                   .nested_block = 256,
                                   .nested_skip = x->nested ? 200 : 0,
                                   .offset = 0.02F};
    return m;
}

static void drop_four_bits(four_bits_made *m) {
    free(m->codes), free(m->absmax), free(m->nested);
}

/* B^T as it lies (forward), and B (the input's gradient): both have the bits of what tm_nf4_values makes of it. */
static void one_of_four_bits(const four_bits *x, tm_elem t, size_t m, size_t n, size_t k, bool b_trans) {
    bool own = is_own();
    product p = make(m, n, k, t, t, t, false, b_trans, 1, 0);
    size_t rows = b_trans ? n : k, width = b_trans ? k : n, bytes = p.c_elements * tm_elem_bytes(t);
    four_bits_made f = make_four_bits(x, rows, width);
    void *plain = malloc(bytes);
    for (size_t i = 0; i < rows; i++) {
        void *to = (char *)p.sb + i * p.g.ldb * tm_elem_bytes(t);
        tm_packed_values(&f.packed, i, 0, width, t, to);
        if (t == TM_ELEM_F32)
            memcpy(p.b + i * p.g.ldb, to, width * sizeof(float));
        else
            kernels_widen(t, to, p.b + i * p.g.ldb, width);
    }
    tm_gemm(&p.g);
    memcpy(plain, p.sc, bytes);
    p.g.b_packed = &f.packed, p.g.b = NULL;
    tm_gemm(&p.g);
    if (x->scale == 0) check(&p); /* else denormals, which products may take for zero */
    if (own) assert_memory_equal(p.sc, plain, bytes);
    free(plain);
    drop_four_bits(&f);
    drop(&p);
}

/* Sizes that whole panels have and that they have not, blocks that rows break, scales that make denormals. */
static void of_four_bits(void **state) {
    static const four_bits kinds[] = {{64, true, 0, 0},        {64, false, 0, 3},  {32, true, 0, 1},
                                      {128, false, 0, 0},      {4096, true, 0, 2}, {64, false, 0x1p-124F, 0},
                                      {64, false, 0x1p-99F, 0}};
    static const struct {
        size_t m, n, k;
    } sizes[] = {{70, 128, 256}, {65, 192, 512}, {90, 96, 288}, {66, 130, 62},
                 {7, 64, 320},   {80, 900, 64},  {64, 34, 100}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(kinds); i++)
        for (size_t j = 0; j < TM_COUNT(sizes); j++)
            for (tm_elem t = TM_ELEM_F32; t <= TM_ELEM_BF16; t++) {
                one_of_four_bits(&kinds[i], t, sizes[j].m, sizes[j].n, sizes[j].k, true);
                one_of_four_bits(&kinds[i], t, sizes[j].m, sizes[j].n, sizes[j].k, false);
            }
}

static void packed(void **state) {
    (void)state;
    for (tm_packed_type packing = TM_PACKED_NOT + 1; packing < TM_PACKED_BITS4; packing++)
        for (tm_elem t = TM_ELEM_F32; t <= TM_ELEM_BF16; t++) {
            one_packed(packing, t, 1, 20, 512, 0);
            one_packed(packing, t, 16, 130, 256, 0);
            one_packed(packing, t, 33, 64, 768, 16);
            one_packed(packing, t, 70, 136, 512, 8);
            if (tm_packing_of(packing)->block <= 32) one_packed(packing, t, 5, 70, 576, 0);
        }
}

/* 2^-130 is a denormal of bf16: instructions of bf16 take it for zero, and so it is they that multiply; `builtin` keeps it. */
static void denormals(void **state) {
    (void)state;
    if (!is_own()) return; /* a library promises nothing of the kind */
    product p = make(3, 5, 4, TM_ELEM_BF16, TM_ELEM_BF16, TM_ELEM_F32, false, true, 1, 0);
    for (size_t i = 0; i < 3 * p.g.lda; i++) ((uint16_t *)p.sa)[i] = 0x0008;
    for (size_t i = 0; i < 5 * p.g.ldb; i++) ((uint16_t *)p.sb)[i] = 0x7180; /* 2^100 */
    float want = is_named("builtin") ? 0x1p-28F : 0;
    tm_gemm(&p.g);
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 5; j++) assert_true(((float *)p.sc)[i * p.g.ldc + j] == want);
    drop(&p);
}

/* A back-end whose bf16 products are wrong by one row is found out, forced or not, and the next one is used. */
static void almost_right(const tm_gemm_args *g) {
    gemm_builtin.run(g);
    if (g->a_type == TM_ELEM_BF16 && g->c_type == TM_ELEM_F32) ((float *)g->c)[(g->m - 1) * g->ldc] *= 1.01F;
}
static int most_wanted(tm_elem products) {
    (void)products;
    return 1000;
}

static void wrong_product_is_not_used(void **state) {
    (void)state;
    const gemm_backend *kept = gemm_backends[0];
    gemm_backend wrong = gemm_builtin;
    wrong.name = "almost", wrong.run = almost_right, wrong.preference = most_wanted;
    gemm_backends[0] = &wrong;
    unsetenv("TIDEMILL_GEMM"), unsetenv("TIDEMILL_ISA");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    product p = make(70, 130, 90, TM_ELEM_BF16, TM_ELEM_BF16, TM_ELEM_F32, false, true, 1, 1);
    tm_gemm(&p.g);
    check(&p); /* by the next one */
    drop(&p);
    setenv("TIDEMILL_GEMM", "almost", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "bf16 to fp32"));
    tm_error_clear();
    unsetenv("TIDEMILL_GEMM");
    wrong.run = gemm_builtin.run; /* and it is taken when it is right */
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    assert_int_equal(strncmp(tm_gemm_library(), "builtin", 7), 0);
    gemm_backends[0] = kept;
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
}

/* AVX2's own product for 16 bits, OpenBLAS for fp32: each is there only where it is wanted. */
static bool is_loaded(const char *library) {
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (!found && fgets(line, sizeof line, maps)) found = strstr(line, library) != NULL;
    fclose(maps);
    return found;
}
static void chosen_by_type(void **state) {
    (void)state;
    if (!kernels_has_avx2()) TEST_SKIP("no AVX2");
    unsetenv("TIDEMILL_GEMM"), setenv("TIDEMILL_ISA", "avx2", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    assert_string_equal(tm_gemm_library(), "builtin-avx2");
    assert_non_null(strstr(tm_kernels_describe(), "gemm=builtin-avx2"));
    assert_false(is_loaded("openblas"));
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F16), TM_OK);
    assert_string_equal(tm_gemm_library(), "builtin-avx2");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    assert_int_equal(is_loaded("openblas"), strncmp(tm_gemm_library(), "openblas", 8) == 0);
}

/* As the system tells it. */
static bool cpu_has(const char *flag) {
    char line[8192] = "", want[32];
    FILE *f = fopen("/proc/cpuinfo", "r");
    assert_non_null(f);
    while (strncmp(line, "flags", 5) != 0 && fgets(line, sizeof line, f)) continue;
    fclose(f);
    snprintf(want, sizeof want, " %s ", flag);
    return strncmp(line, "flags", 5) == 0 && strstr(line, want) != NULL;
}

/* For bf16, and in the last column alone; then no library is loaded. */
static void amx_chosen(void **state) {
    (void)state;
    if (!cpu_has("amx_tile") || !cpu_has("amx_bf16") || !kernels_has_bf16()) TEST_SKIP("no AMX");
    unsetenv("TIDEMILL_GEMM"), unsetenv("TIDEMILL_ISA");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    assert_string_equal(tm_gemm_library(), "amx2+builtin-avx512");
    assert_false(is_loaded("openblas"));
    setenv("TIDEMILL_ISA", "avx2", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    assert_string_equal(tm_gemm_library(), "builtin-avx2");
    setenv("TIDEMILL_GEMM", "amx", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "TIDEMILL_GEMM=amx"));
    assert_non_null(strstr(tm_error_get()->text, "no TIDEMILL_ISA below avx512"));
    tm_error_clear();
}

/* Portable C is not what was compared: of ref OpenBLAS is preferred, with a core that has no more than ref. */
static void chosen_for_ref(void **state) {
    (void)state;
    unsetenv("TIDEMILL_GEMM"), setenv("TIDEMILL_ISA", "ref", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    if (!is_loaded("openblas")) TEST_SKIP("no OpenBLAS");
    assert_int_equal(strncmp(tm_gemm_library(), "openblas", 8), 0);
    if (kernels_has_avx2()) assert_non_null(strstr(tm_gemm_library(), "Prescott"));
}

/* As its instructions are worth: first where they are fast, behind a library of fp32 where they are Intel's. Nothing is loaded. */
static void avx512bf16_chosen(void **state) {
    (void)state;
    if (!cpu_has("avx512_bf16") || !kernels_has_bf16()) TEST_SKIP("no AVX-512 BF16");
    unsetenv("TIDEMILL_ISA"), setenv("TIDEMILL_GEMM", "avx512bf16", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    assert_string_equal(tm_gemm_library(), "avx512bf16+builtin-avx512");
    assert_true(tm_gemm_multiplies_bf16());
    assert_false(is_loaded("openblas"));
    setenv("TIDEMILL_ISA", "avx2", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "no TIDEMILL_ISA below avx512"));
    tm_error_clear();
    unsetenv("TIDEMILL_GEMM"), unsetenv("TIDEMILL_ISA");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    bool intel = __builtin_cpu_is("intel"), amx = is_named("amx");
    if (!amx && !intel) assert_true(is_named("avx512bf16"));
    if (!amx && intel && is_loaded("openblas")) assert_true(is_named("openblas"));
}

/* The same of a way of attention whose last head's output is off. */
static void almost_attends(const tm_attention *a, uint64_t b, uint64_t head) {
    attention_in_fp32.forward(a, b, head);
    if (head + 1 == a->heads) ((uint16_t *)a->o)[(size_t)a->heads * a->head_dim - 1] += 0x20;
}

static void wrong_attention_is_not_used(void **state) {
    (void)state;
    const gemm_backend *kept = gemm_backends[0];
    gemm_backend wrong = gemm_builtin;
    attention_way way = attention_in_fp32;
    way.forward = almost_attends;
    wrong.name = "almost", wrong.attention = &way, wrong.preference = most_wanted;
    gemm_backends[0] = &wrong;
    unsetenv("TIDEMILL_ISA"), setenv("TIDEMILL_GEMM", "almost", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "attention"));
    tm_error_clear();
    way.forward = attention_in_fp32.forward;
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
    gemm_backends[0] = kept;
    unsetenv("TIDEMILL_GEMM");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_BF16), TM_OK);
}

static int run_backend(const char *isa, const char *gemm) {
    setenv("TIDEMILL_ISA", isa, 1);
    setenv("TIDEMILL_GEMM", gemm, 1);
    if (tm_kernels_init(2, TM_ELEM_F32) != TM_OK) {
        TEST_SKIP_PART("%s on %s: %s", gemm, isa, tm_error_get()->text);
        tm_error_clear();
        return 0;
    }
    printf("%s\n", tm_kernels_describe());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes),        cmocka_unit_test(narrow),      cmocka_unit_test(large),
        cmocka_unit_test(repeatable),   cmocka_unit_test(rounds_once), cmocka_unit_test(any_thread_count),
        cmocka_unit_test(any_cut),      cmocka_unit_test(any_rows),    cmocka_unit_test(packed),
        cmocka_unit_test(of_four_bits), cmocka_unit_test(denormals)};
    return cmocka_run_group_tests_name(gemm, tests, NULL, NULL);
}

/* In a process of its own: a library is loaded once in one, for one column. */
static int apart(int (*run)(const void *a, const void *b), const void *a, const void *b) {
    fflush(NULL);
    pid_t child = fork();
    int status = 1;
    if (child == 0) {
        int failed = run(a, b);
        tm_kernels_close();
        exit(failed != 0);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}
static int one_test(const void *name, const void *test) {
    return _cmocka_run_group_tests(name, test, 1, NULL, NULL);
}
static int one_backend(const void *isa, const void *gemm) {
    return run_backend(isa, gemm);
}

/* What a sanitizer sees of a product it sees in one column; every column's results are judged without it. */
static bool left_out(size_t column, size_t backend) {
#ifdef TIDEMILL_SANITIZED
    return column == 1 || (column == 0 && backend > 0);
#else
    (void)column, (void)backend;
    return false;
#endif
}

int main(void) {
    static const char *const columns[] = {"ref", "avx2", "avx512"}, *const backends[] = {"builtin", "openblas",
                                                                                         "avx512bf16", "amx"};
    const struct CMUnitTest choice[] = {cmocka_unit_test(chosen_by_type),
                                        cmocka_unit_test(amx_chosen),
                                        cmocka_unit_test(chosen_for_ref),
                                        cmocka_unit_test(avx512bf16_chosen),
                                        cmocka_unit_test(wrong_product_is_not_used),
                                        cmocka_unit_test(wrong_attention_is_not_used)};
    int failed = 0;
    for (size_t i = 0; i < TM_COUNT(choice); i++) failed += apart(one_test, "choice", &choice[i]);
    for (size_t c = 0; c < TM_COUNT(columns); c++)
        for (size_t b = 0; b < TM_COUNT(backends); b++)
            if (!left_out(c, b)) failed += apart(one_backend, columns[c], backends[b]);
    return failed;
}
