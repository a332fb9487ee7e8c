/* The machine's own measure of arithmetic: multiply-adds on registers only, as wide as the chosen column, by the whole
 * team at once. Rates of products are set beside it. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define CHAINS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
enum { N_CHAINS = 12 };
#define DECLARE(i) V s##i = FIRST(i);
#define STEP(i) s##i = FMA(s##i);
#define SUM(i) total = ADD(total, s##i);
/* A loop of n rounds; the result keeps the compiler from leaving it out. */
#define LOOP(name, attribute)                                                                                          \
    attribute static float name(size_t n) {                                                                            \
        CHAINS(DECLARE)                                                                                                \
        for (size_t r = 0; r < n; r++) {                                                                               \
            CHAINS(STEP)                                                                                               \
        }                                                                                                              \
        V total = FIRST(0);                                                                                            \
        CHAINS(SUM)                                                                                                    \
        float x;                                                                                                       \
        memcpy(&x, &total, sizeof x);                                                                                  \
        return x;                                                                                                      \
    }

/* Whatever the compiler's baseline has: four floats at a time, product and sum apart. */
typedef float float4 __attribute__((vector_size(16)));
#define V float4
#define FIRST(i) ((float4){1.0F + (i), 2, 3, 4})
#define FMA(x) ((x) * (float4){0.99F, 0.99F, 0.99F, 0.99F} + (float4){0.01F, 0.01F, 0.01F, 0.01F})
#define ADD(x, y) ((x) + (y))
LOOP(loop_portable, )
#undef V
#undef FIRST
#undef FMA
#undef ADD

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <immintrin.h>
#define V __m256
#define FIRST(i) _mm256_set1_ps(1.0F + (i))
#define FMA(x) _mm256_fmadd_ps(x, _mm256_set1_ps(0.99F), _mm256_set1_ps(0.01F))
#define ADD(x, y) _mm256_add_ps(x, y)
LOOP(loop_avx2, __attribute__((target("avx2,fma"))))
#undef V
#undef FIRST
#undef FMA
#undef ADD
#define V __m512
#define FIRST(i) _mm512_set1_ps(1.0F + (i))
#define FMA(x) _mm512_fmadd_ps(x, _mm512_set1_ps(0.99F), _mm512_set1_ps(0.01F))
#define ADD(x, y) _mm512_add_ps(x, y)
LOOP(loop_avx512, __attribute__((target("avx512f"))))
#endif

typedef struct loop {
    float (*run)(size_t n);
    double lanes;
} loop;

static loop loop_of_column(void) {
#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
    if (!strcmp(kernels.isa, "avx512")) return (loop){loop_avx512, 16};
    if (!strcmp(kernels.isa, "avx2")) return (loop){loop_avx2, 8};
#endif
    return (loop){loop_portable, 4};
}

double tm_kernels_peak_flops(void) {
    enum { ROUNDS = 1000000, TRIES = 50 }; /* threads that were just made share a core for a while */
    loop l = loop_of_column();
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        uint64_t start = tm_now_ns();
        float sum = 0;
#pragma omp parallel num_threads(kernels_team()) reduction(+ : sum)
        sum += l.run(ROUNDS);
        double seconds = (double)(tm_now_ns() - start) * 1e-9;
        TM_ASSERT(isfinite(sum)); /* and so the loops are not left out */
        double rate = 2.0 * l.lanes * N_CHAINS * ROUNDS * kernels_team() / seconds;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Long sums, so that the compiler reads as widely as it may. */
static uint64_t read_share(const uint64_t *x, uint64_t n) {
    enum { CHAINS = 32 };
    uint64_t sum[CHAINS] = {0}, all = 0;
    for (uint64_t i = 0; i + CHAINS <= n; i += CHAINS)
        for (uint64_t c = 0; c < CHAINS; c++) sum[c] += x[i + c];
    for (uint64_t c = 0; c < CHAINS; c++) all += sum[c];
    return all;
}

tm_status tm_kernels_read_rate(uint64_t bytes, uint64_t *rate) {
    enum { TRIES = 5 };
    uint64_t team = kernels_team(), share = bytes / sizeof(uint64_t) / team, *x = tm_malloc(bytes), sum = 0;
    if (!x) return tm_nomem(bytes);
    memset(x, 1, bytes);
    *rate = 0;
    for (int i = 0; i < TRIES; i++) {
        uint64_t start = tm_now_ns();
#pragma omp parallel for schedule(static, 1) num_threads(kernels_team()) reduction(+ : sum)
        for (uint64_t t = 0; t < team; t++) sum += read_share(x + t * share, share);
        uint64_t now = (uint64_t)((double)(team * share * sizeof *x) / ((double)(tm_now_ns() - start) * 1e-9));
        *rate = now > *rate ? now : *rate;
    }
    tm_free(x);
    TM_ASSERT(sum != 1); /* and so the sums are not left out */
    return TM_OK;
}
