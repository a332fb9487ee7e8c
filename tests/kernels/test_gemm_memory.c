/* What products hold beside their operands, by back-end and type: VmHWM of a process of its own, against what
 * tm_kernels_resident_bytes says: never more, and at most 4 MiB less. */
#include "kernels/gemm.h"
#include "kernels/kernels_internal.h"
#include "tests/support/skip.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCABULARY = 2048, LEAST_ROWS = 64, MOST_ROWS = 512, THREADS = 2, TIMES = 2 };

/* What src/model asks for. Gate and up are one product, or, where they are large, each has half of the columns. */
typedef struct widths {
    uint64_t hidden, inner;
    bool apart;
} widths;
typedef struct way {
    const char *gemm;
    tm_elem type;
    unsigned rows;
    widths of;
} way;
typedef struct found {
    char library[80];
    uint64_t grown, said;
} found;

/* Form 0: A B^T, 1: A B, 2: A^T B; `lda`, `ldc` 0: dense. */
typedef struct product {
    tm_elem t, ct;
    uint64_t m, n, k, lda, ldc;
    int form;
    float beta;
} product;

static void multiply(product p, void *const x[3]) {
    tm_gemm(&(tm_gemm_args){.m = p.m,
                            .n = p.n,
                            .k = p.k,
                            .alpha = 1,
                            .beta = p.beta,
                            .a = x[0],
                            .b = x[1],
                            .c = x[2],
                            .a_type = p.t,
                            .b_type = p.t,
                            .c_type = p.ct,
                            .a_trans = p.form == 2,
                            .b_trans = p.form == 0,
                            .lda = p.lda         ? p.lda
                                   : p.form == 2 ? p.m
                                                 : p.k,
                            .ldb = p.form == 0 ? p.k : p.n,
                            .ldc = p.ldc ? p.ldc : p.n});
}

/* Back from Y, of which a row has `ld` columns, to X, and to the weight's gradient, fresh and added. */
static void project_back(tm_elem t, uint64_t rows, uint64_t n, uint64_t k, uint64_t ld, void *const x[3]) {
    for (int beta = 0; beta < 2; beta++) {
        multiply((product){t, TM_ELEM_F32, rows, k, n, ld, 0, 1, (float)beta}, x);
        multiply((product){t, TM_ELEM_F32, n, k, rows, ld, 0, 2, (float)beta}, x);
    }
}

static void projection(tm_elem t, uint64_t rows, uint64_t n, uint64_t k, float beta, void *const x[3]) {
    multiply((product){t, t, rows, n, k, 0, 0, 0, beta}, x);
    multiply((product){t, t, rows, k, n, 0, 0, 1, 0}, x);
    project_back(t, rows, n, k, 0, x);
}

/* A block of the vocabulary: logits are fp32, their gradient lies in their place. */
static void head(tm_elem t, uint64_t rows, uint64_t hidden, void *const x[3]) {
    uint64_t ld = VOCABULARY * (t == TM_ELEM_F32 ? 1 : 2);
    multiply((product){t, TM_ELEM_F32, rows, VOCABULARY, hidden, 0, 0, 0, 0}, x);
    project_back(t, rows, VOCABULARY, hidden, ld, x);
}

static void model(tm_elem t, uint64_t rows, widths w, void *const x[3]) {
    projection(t, rows, w.hidden, w.hidden, 1, x);
    if (w.apart) {
        multiply((product){t, t, rows, w.inner, w.hidden, 0, 2 * w.inner, 0, 0}, x);
        project_back(t, rows, w.inner, w.hidden, 2 * w.inner, x);
    } else {
        projection(t, rows, 3 * w.hidden, w.hidden, 0, x);
        projection(t, rows, 2 * w.inner, w.hidden, 0, x);
    }
    projection(t, rows, w.hidden, w.inner, 1, x);
    head(t, rows, w.hidden, x);
}

static uint64_t operand_bytes(widths w) {
    uint64_t activations = tm_max_u64(2 * w.inner, 2 * VOCABULARY) * MOST_ROWS;
    return 4 * tm_max_u64(activations, tm_max_u64((w.apart ? 1 : 2) * w.inner, VOCABULARY) * w.hidden);
}

/* VmHWM is set back to what is resident now. */
static uint64_t count_from_here(void) {
    (void)malloc_trim(0);
    FILE *f = fopen("/proc/self/clear_refs", "w");
    assert_non_null(f);
    assert_true(fputs("5", f) >= 0);
    assert_int_equal(fclose(f), 0);
    return tm_mem_resident_peak_bytes();
}

/* Operands are there, a team with its stacks, and our own code, before anything is counted. */
static void measure(const way *w, found *f) {
    uint64_t bytes = operand_bytes(w->of);
    void *x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = malloc(bytes);
        assert_non_null(x[i]);
        memset(x[i], 0x3c, bytes);
    }
    setenv("TIDEMILL_GEMM", "builtin", 1);
    if (tm_kernels_init(THREADS, w->type) != TM_OK) return;
    model(w->type, w->rows, w->of, x);
    tm_kernels_close();
    uint64_t before = count_from_here();
    setenv("TIDEMILL_GEMM", w->gemm, 1);
    if (tm_kernels_init(THREADS, w->type) != TM_OK) return;
    for (int i = 0; i < TIMES; i++) model(w->type, w->rows, w->of, x);
    f->grown = tm_mem_resident_peak_bytes() - before;
    tm_products p = {
        .type = w->type, .rows = w->rows, .hidden = w->of.hidden, .inner = 2 * w->of.inner, .apart = w->of.apart};
    const uint64_t width[] = {w->of.hidden, 3 * w->of.hidden, w->of.inner, (w->of.apart ? 1 : 2) * w->of.inner};
    for (size_t i = 0; i < TM_COUNT(width); i++) p.width[p.n_widths++] = width[i];
    f->said = tm_kernels_resident_bytes(&p);
    snprintf(f->library, sizeof f->library, "%s", tm_gemm_library());
    tm_kernels_close();
    free(x[0]), free(x[1]), free(x[2]);
}

static found measure_apart(const way *w) {
    found f = {0};
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        measure(w, &f);
        _exit(write(ends[1], &f, sizeof f) != (ssize_t)sizeof f);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    assert_int_equal(read(ends[0], &f, sizeof f), sizeof f);
    close(ends[0]), close(ends[1]);
    return f;
}

static bool right(const found *f) {
    return f->grown <= f->said && f->said - f->grown <= 4 * TM_MIB;
}

static unsigned check_way(const way *w) {
    static const char *const types[] = {"fp32", "bf16", "fp16"};
    found f = measure_apart(w);
    if (!f.said) TEST_SKIP("%s is not there", w->gemm);
    bool ok = right(&f);
    printf("%s %s, %u rows, %u and %u wide%s: %.2f MiB found, %.2f said%s\n", f.library, types[w->type], w->rows,
           (unsigned)w->of.hidden, (unsigned)w->of.inner, w->of.apart ? " (apart)" : "",
           (double)f.grown / (double)TM_MIB, (double)f.said / (double)TM_MIB, ok ? "" : ": WRONG");
    return !ok;
}

/* Portable C takes ten minutes for many rows: the same products run before each count as well. */
static unsigned most_rows(void) {
    const char *isa = getenv("TIDEMILL_ISA");
    if (!isa || strcmp(isa, "ref") != 0) return MOST_ROWS;
    TEST_SKIP_PART("%d rows: not with TIDEMILL_ISA=ref", MOST_ROWS);
    return LEAST_ROWS;
}

static void check(const char *gemm) {
    static const widths models[] = {{576, 1536, false}, {1152, 6912, true}}; /* SmolLM2-135M, Gemma-3-1B */
    static const widths narrow = {256, 768, false};
    /* up to which two threads leave a huge page of our scratch untouched: of fp32 and fp16, of bf16 */
    static const unsigned edge[] = {222, 256};
    unsigned wrong = 0, most = most_rows();
    for (size_t i = 0; i < TM_COUNT(models); i++)
        for (int t = 0; t < 3; t++)
            for (unsigned rows = LEAST_ROWS; rows <= most; rows *= 8)
                if (i == 0 || t == TM_ELEM_BF16) wrong += check_way(&(way){gemm, (tm_elem)t, rows, models[i]});
    for (int t = 0; t < 3 && most == MOST_ROWS; t++) {
        for (size_t i = 0; i < TM_COUNT(edge); i++) wrong += check_way(&(way){gemm, (tm_elem)t, edge[i], models[0]});
        wrong += check_way(&(way){gemm, (tm_elem)t, most, narrow});
    }
    assert_int_equal(wrong, 0);
}

static void builtin(void **state) {
    (void)state;
    check("builtin");
}
static void openblas(void **state) {
    (void)state;
    check("openblas");
}
static void avx512bf16(void **state) {
    (void)state;
    check("avx512bf16");
}
static void amx(void **state) {
    (void)state;
    check("amx");
}

int main(void) {
#ifdef TIDEMILL_SANITIZED
    TEST_SKIP_PROGRAM("under sanitizers memory is not what it is");
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(builtin), cmocka_unit_test(openblas),
                                       cmocka_unit_test(avx512bf16), cmocka_unit_test(amx)};
    return cmocka_run_group_tests_name("test_gemm_memory", tests, NULL, NULL);
}
