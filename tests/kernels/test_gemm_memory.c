/* What products hold beside their operands, by back-end and type: VmHWM of a process of its own, against what
 * tm_kernels_resident_bytes says: never more, and at most 4 MiB less (but for fp32 by oneDNN, which is not its own). */
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

enum { HIDDEN = 576, INNER = 1536, VOCABULARY = 2048, MOST_ROWS = 512, THREADS = 2 };
enum { A_BYTES = 2 * INNER * MOST_ROWS * 4, B_BYTES = 2 * INNER * HIDDEN * 4, C_BYTES = 2 * INNER * HIDDEN * 4 };

typedef struct way {
    const char *gemm;
    tm_elem type;
    unsigned rows;
} way;
typedef struct found {
    char library[80];
    uint64_t grown, said;
} found;

static void multiply(tm_elem t, tm_elem ct, uint64_t m, uint64_t n, uint64_t k, int form, float beta,
                     void *const x[3]) {
    tm_gemm(&(tm_gemm_args){.m = m,
                            .n = n,
                            .k = k,
                            .alpha = 1,
                            .beta = beta,
                            .a = x[0],
                            .b = x[1],
                            .c = x[2],
                            .a_type = t,
                            .b_type = t,
                            .c_type = ct,
                            .a_trans = form == 2,
                            .b_trans = form == 0,
                            .lda = form == 2 ? m : k,
                            .ldb = form == 0 ? k : n,
                            .ldc = n});
}

/* A projection as a model has it: forward, back to its input, and its weight's gradient, fresh and added. */
static void projection(tm_elem t, uint64_t rows, uint64_t n, uint64_t k, float beta, void *const x[3]) {
    multiply(t, t, rows, n, k, 0, beta, x);
    multiply(t, t, rows, k, n, 1, 0, x);
    multiply(t, TM_ELEM_F32, rows, k, n, 1, 1, x);
    multiply(t, TM_ELEM_F32, n, k, rows, 2, 0, x);
    multiply(t, TM_ELEM_F32, n, k, rows, 2, 1, x);
}

static void model(tm_elem t, uint64_t rows, void *const x[3]) {
    projection(t, rows, 3 * HIDDEN, HIDDEN, 0, x);
    projection(t, rows, HIDDEN, HIDDEN, 1, x);
    projection(t, rows, 2 * INNER, HIDDEN, 0, x);
    projection(t, rows, HIDDEN, INNER, 1, x);
    multiply(t, TM_ELEM_F32, rows, VOCABULARY, HIDDEN, 0, 0, x);
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
    void *x[3] = {malloc(A_BYTES), malloc(B_BYTES), malloc(C_BYTES)};
    memset(x[0], 0x3c, A_BYTES), memset(x[1], 0x3c, B_BYTES), memset(x[2], 0x3c, C_BYTES);
    setenv("TIDEMILL_GEMM", "builtin", 1);
    if (tm_kernels_init(THREADS, w->type) != TM_OK) return;
    model(w->type, w->rows, x);
    tm_kernels_close();
    uint64_t before = count_from_here();
    setenv("TIDEMILL_GEMM", w->gemm, 1);
    if (tm_kernels_init(THREADS, w->type) != TM_OK) return;
    model(w->type, w->rows, x);
    f->grown = tm_mem_resident_peak_bytes() - before;
    f->said = tm_kernels_resident_bytes(w->type, w->rows);
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

static void check(const char *gemm) {
    static const char *const types[] = {"fp32", "bf16", "fp16"};
    unsigned wrong = 0;
    for (int t = 0; t < 3; t++)
        for (unsigned rows = 64; rows <= MOST_ROWS; rows *= 8) {
            found f = measure_apart(&(way){gemm, (tm_elem)t, rows});
            if (!f.said) TEST_SKIP("%s is not there", gemm);
            bool loose = t == TM_ELEM_F32 && strstr(f.library, "onednn"); /* only where it is forced: a bound */
            bool right = f.grown <= f.said && (loose || f.said - f.grown <= 4 * TM_MIB);
            printf("%s %s, %u rows: %.2f MiB found, %.2f said%s\n", f.library, types[t], rows,
                   (double)f.grown / (double)TM_MIB, (double)f.said / (double)TM_MIB, right ? "" : ": WRONG");
            wrong += !right;
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
static void onednn(void **state) {
    (void)state;
    check("onednn");
}

int main(void) {
#ifdef TIDEMILL_SANITIZED
    TEST_SKIP_PROGRAM("under sanitizers memory is not what it is");
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(builtin), cmocka_unit_test(openblas), cmocka_unit_test(onednn)};
    return cmocka_run_group_tests_name("test_gemm_memory", tests, NULL, NULL);
}
