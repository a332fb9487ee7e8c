/* bench_gemm [THREADS]: GFLOP/s of the products of a step, in wall time and in the process's CPU time (which is what
 * matters on a machine that does other things). Not a test. */
#include "kernels/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(clockid_t c) {
    struct timespec t;
    clock_gettime(c, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct shape {
    const char *what;
    uint64_t m, n, k;
    bool ta, tb;
} shape;
static const shape shapes[] = {
    {"forward qkv", 512, 960, 576, false, true},        {"forward gate_up", 512, 3072, 576, false, true},
    {"forward down", 512, 576, 1536, false, true},      {"dx gate_up", 512, 576, 3072, false, false},
    {"dw gate_up", 3072, 576, 512, true, false},        {"dw o", 576, 576, 512, true, false},
    {"head logits", 512, 2048, 576, false, true},       {"forward 2048x2048", 512, 2048, 2048, false, true},
    {"forward 4096x4096", 512, 4096, 4096, false, true}};

static void one(const shape *s, tm_elem t) {
    uint64_t na = s->m * s->k, nb = s->n * s->k, nc = s->m * s->n;
    float *a = aligned_alloc(64, na * 4), *b = aligned_alloc(64, nb * 4), *c = aligned_alloc(64, nc * 4);
    for (uint64_t i = 0; i < na; i++) a[i] = (float)(i % 17) / 16;
    for (uint64_t i = 0; i < nb; i++) b[i] = (float)(i % 19) / 16;
    if (t == TM_ELEM_BF16) tm_narrow(a, (uint16_t *)(void *)a, na), tm_narrow(b, (uint16_t *)(void *)b, nb);
    tm_gemm_args g = {.m = s->m,
                      .n = s->n,
                      .k = s->k,
                      .alpha = 1,
                      .a = a,
                      .b = b,
                      .c = c,
                      .lda = s->ta ? s->m : s->k,
                      .ldb = s->tb ? s->k : s->n,
                      .ldc = s->n,
                      .a_type = t,
                      .b_type = t,
                      .c_type = s->ta ? TM_ELEM_F32 : t,
                      .a_trans = s->ta,
                      .b_trans = s->tb};
    double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k, wall = 1e9, cpu = 1e9;
    int inner = (int)(2e9 / flops) + 1;
    for (int i = 0; i < 8; i++) {
        double w = now(CLOCK_MONOTONIC), p = now(CLOCK_PROCESS_CPUTIME_ID);
        for (int j = 0; j < inner; j++) tm_gemm(&g);
        w = (now(CLOCK_MONOTONIC) - w) / inner, p = (now(CLOCK_PROCESS_CPUTIME_ID) - p) / inner;
        wall = w < wall ? w : wall, cpu = p < cpu ? p : cpu;
    }
    printf("%-20s %s %5llux%5llux%5llu  wall %7.1f  cpu %7.1f GFLOP/s\n", s->what, t == TM_ELEM_F32 ? "f32 " : "bf16",
           (unsigned long long)s->m, (unsigned long long)s->n, (unsigned long long)s->k, flops / wall * 1e-9,
           flops / cpu * 1e-9);
    free(a), free(b), free(c);
}

int main(int argc, char **argv) {
    if (tm_kernels_init(argc > 1 ? (unsigned)atoi(argv[1]) : 1, TM_ELEM_F32) != TM_OK) return 1;
    printf("%s\n", tm_kernels_describe());
    for (size_t i = 0; i < TM_COUNT(shapes); i++) one(&shapes[i], TM_ELEM_F32);
    for (size_t i = 0; i < TM_COUNT(shapes); i++) one(&shapes[i], TM_ELEM_BF16);
    tm_kernels_close();
    return 0;
}
