/* Made-up values stored as any type, and results compared with doubles: for the tests of this folder. */
#ifndef TIDEMILL_TESTS_KERNELS_VALUES_H
#define TIDEMILL_TESTS_KERNELS_VALUES_H

#include "kernels/kernels.h"
#include "kernels/kernels_internal.h"
#include "tests/support/forced.h"
#include "tests/support/skip.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t stream;
static inline double uniform(void) { /* in [-1, 1) */
    uint32_t r[4];
    tm_philox(7, 0, stream++, r);
    return (double)r[0] / 2147483648.0 - 1.0;
}
static inline double *randoms(size_t n, double size) {
    double *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (double)(float)(size * uniform());
    return x;
}
static inline size_t bytes_of(tm_elem t, size_t n) {
    return (n + 1) * tm_elem_bytes(t);
}
/* As an array of type t, exactly sized so that sanitizers see overruns; x is replaced by what was stored. */
static inline void *stored(tm_elem t, double *x, size_t n) {
    float *wide = malloc((n + 1) * sizeof *wide);
    for (size_t i = 0; i < n; i++) wide[i] = (float)x[i];
    void *out = malloc(bytes_of(t, n));
    if (t == TM_ELEM_F32)
        memcpy(out, wide, n * sizeof *wide);
    else {
        kernels_narrow(t, wide, out, n);
        kernels_widen(t, out, wide, n);
    }
    for (size_t i = 0; i < n; i++) x[i] = (double)wide[i];
    free(wide);
    return out;
}
static inline double value(tm_elem t, const void *x, size_t i) {
    float v;
    if (t == TM_ELEM_F32)
        v = ((const float *)x)[i];
    else
        kernels_widen(t, (const uint16_t *)x + i, &v, 1);
    return (double)v;
}
static inline double tolerance(tm_elem t) {
    return t == TM_ELEM_F32 ? 3e-6 : t == TM_ELEM_F16 ? 8e-4 : 5e-3;
}
static inline void near(double got, double want, double tol, const char *what, size_t at) {
    if (!(fabs(got - want) <= tol * (1.0 + fabs(want)))) fail_msg("%s[%zu]: %.9g, expected %.9g", what, at, got, want);
}
/* n roundings in a row take a sum at most this far, in parts of what its terms add up to when all are positive. */
static inline double gamma_of(size_t n) {
    return (double)n * 0x1p-24 / (1 - (double)n * 0x1p-24);
}
static inline void within(double got, double want, double bound, const char *what, size_t at) {
    if (!(fabs(got - want) <= bound)) fail_msg("%s[%zu]: %.9g, expected %.9g within %.2g", what, at, got, want, bound);
}
static inline void all_near(tm_elem t, const void *got, const double *want, size_t n, double tol, const char *what) {
    for (size_t i = 0; i < n; i++) near(value(t, got, i), want[i], tol, what, i);
}
static const tm_elem types[] = {TM_ELEM_F32, TM_ELEM_BF16, TM_ELEM_F16};

/* For a column's `supported`. */
static inline bool always(void) {
    return true;
}

/* `run` once more where kernels of bf16 have a way of their own beside the last column. */
static inline int run_with_amx(int (*run)(const char *isa)) {
    setenv("TIDEMILL_ISA", "avx512", 1);
    bool amx = tm_kernels_init(2, TM_ELEM_BF16) == TM_OK && strncmp(tm_gemm_library(), "amx", 3) == 0;
    tm_error_clear();
    if (amx) return run("amx");
    TEST_SKIP_PART("no AMX");
    return 0;
}

/* `run` in every column that this machine has; in the emulated one, where that is what is compiled. */
static inline int run_columns(int (*run)(const char *isa)) {
    drop_products_of_one_column();
#ifdef TM_TEST_AVX512_EMULATED
    static const char *const columns[] = {"avx512"};
    kernels_columns[0].supported = always;
#else
    static const char *const columns[] = {"ref", "avx2", "avx512"};
#endif
    int failed = 0;
    for (size_t i = 0; i < TM_COUNT(columns); i++) {
        setenv("TIDEMILL_ISA", columns[i], 1);
        if (tm_kernels_init(2, TM_ELEM_F32) != TM_OK) {
            TEST_SKIP_PART("column %s: %s", columns[i], tm_error_get()->text);
            tm_error_clear();
            continue;
        }
        printf("%s\n", tm_kernels_describe());
        failed += run(columns[i]);
    }
    failed += run_with_amx(run);
    tm_kernels_close();
    return failed;
}

#endif
