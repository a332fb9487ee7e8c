/* The check at start: a column or a product that this CPU takes for the first time must agree with `ref`, or with the
 * plain sum in double, on small odd sizes. About a millisecond. A wrong one is never used silently. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

enum { N = 37 };

/* Made-up values in [-2, 2), the same everywhere. */
static void fill(float *x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        x[i] = (float)(seed >> 8) / 4194304.0F - 2.0F;
    }
}

/* How far n roundings in a row can take a result (Higham 2002, lemma 3.1). */
static double gamma_of(size_t n) {
    double nu = (double)n * 0x1p-24;
    return nu / (1 - nu);
}

/* Two results of `roundings` roundings each, the terms of which add up to `size` when all are taken positive. */
static bool near(const float *got, const float *want, const float *size, size_t n, size_t roundings) {
    double bound = 2 * gamma_of(roundings);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= bound * fabs((double)size[i]))) return false;
    return true;
}

/* ---- columns ---- */

/* What each table makes of the same arrays; [0] the column's, [1] ref's, [2] sizes. Arrays start at an odd element. */
enum { TABLES = 3, FEW = 16 }; /* FEW: roundings of an element, those of an exponential among them */
typedef struct trial {
    float a[TABLES][N + 1], b[TABLES][N + 1], c[TABLES][N + 1], d[TABLES][N + 1];
} trial;

static void begin(trial *t) {
    for (int i = 0; i < TABLES; i++)
        fill(t->a[i], N + 1, 1), fill(t->b[i], N + 1, 2), fill(t->c[i], N + 1, 3), fill(t->d[i], N + 1, 4);
}

/* Of n elements from the second on; what lies beside them is untouched. */
static bool array_agrees(const float x[TABLES][N + 1], size_t n) {
    return x[0][0] == x[1][0] && !memcmp(x[0] + 1 + n, x[1] + 1 + n, (N - n) * sizeof **x) &&
           near(x[0] + 1, x[1] + 1, x[2] + 1, n, FEW);
}

static bool conversions_agree(const kernels_table *x, const kernels_table *ref) {
    static const uint32_t special[N] = {0,          0x80000000U, 1,           0x7f800000U, 0xff800000U, 0x7f7fffffU,
                                        0x3f808000, 0x3f818000,  0x3f807fff,  0x3f808001,  0x00007fff,  0x00018000,
                                        0x80008001, 0x7fc00000,  0x7f800001U, 0xffffffffU, 0x3f7fffffU};
    float from[N], wide[2][N];
    uint16_t to[2][N];
    memcpy(from, special, sizeof from);
    fill(from + 17, N - 17, 5);
    x->narrow(from, to[0], N), ref->narrow(from, to[1], N);
    x->widen(to[1], wide[0], N), ref->widen(to[1], wide[1], N);
    return !memcmp(to[0], to[1], sizeof to[0]) && !memcmp(wide[0], wide[1], sizeof wide[0]);
}

/* Ties, the smallest normal and subnormal halves, what is just too large, NaN of both kinds. */
static bool halves_agree(const kernels_table *x, const kernels_table *ref) {
    static const uint32_t special[N] = {0,           0x80000000U, 0x33000000, 0x33000001, 0x33c00000,  0x38800000U,
                                        0x387fffff,  0x387fe000,  0x3f801000, 0x3f803000, 0x477fefffU, 0x477ff000,
                                        0xc77ff000U, 0x7f800000,  0xff800000, 0x7fc00000, 0x7f802001U, 0xffffffffU};
    float from[N], wide[2][N];
    uint16_t to[2][N];
    memcpy(from, special, sizeof from);
    fill(from + 18, N - 18, 5);
    x->narrow_f16(from, to[0], N), ref->narrow_f16(from, to[1], N);
    if (memcmp(to[0], to[1], sizeof to[0])) return false;
    to[0][3] = 0x7d01, to[0][4] = 0xfc01; /* signalling */
    x->widen_f16(to[0], wide[0], N), ref->widen_f16(to[0], wide[1], N);
    return !memcmp(wide[0], wide[1], sizeof wide[0]);
}

/* Every code, in whole blocks and in one that ends early; scales that are 0, not finite, or make subnormals. */
static bool blocks_agree(const kernels_table *x, const kernels_table *ref, size_t n) {
    enum { BLOCK = 32, ALL = 6 * BLOCK };
    static const uint32_t special[6] = {0x3f800000, 0, 0x7f800000, 0x00012345, 0x7fc00000, 0x3eaaaaab};
    float map[16], absmax[6], wide[2][ALL];
    uint16_t to[2][2][ALL];
    uint8_t codes[ALL / 2];
    memcpy(absmax, special, sizeof absmax);
    fill(map, 16, 11);
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 37 + i / 16);
    kernels_nf4 run = {map, absmax, BLOCK, codes, n};
    const kernels_table *of[2] = {x, ref};
    memset(wide, 0, sizeof wide), memset(to, 0, sizeof to);
    for (int i = 0; i < 2; i++)
        of[i]->nf4_f32(&run, wide[i]), of[i]->nf4_bf16(&run, to[i][0]), of[i]->nf4_f16(&run, to[i][1]);
    return !memcmp(wide[0], wide[1], sizeof wide[0]) && !memcmp(to[0], to[1], sizeof to[0]);
}

/* Blocks of any codes, whose scales are finite. */
static bool packings_agree(const kernels_table *x, const kernels_table *ref) {
    enum { BLOCKS = 3, BYTES = BLOCKS * 210, ELEMENTS = BLOCKS * 256 };
    uint8_t b[BYTES];
    float wide[2][ELEMENTS];
    for (tm_packed_type p = TM_PACKED_NOT + 1; p < TM_PACKINGS; p++) {
        size_t bytes = tm_packing_of(p)->block_bytes;
        if (!ref->unpack[p]) continue;
        for (size_t i = 0; i < BYTES; i++) b[i] = (uint8_t)((i * 2654435761U + (uint32_t)p) >> 13);
        for (size_t i = 0; i < BLOCKS; i++)
            b[i * bytes + 1] &= 0xfb, b[i * bytes + 3] &= 0xfb, b[(i + 1) * bytes - 1] &= 0xfb;
        memset(wide, 0, sizeof wide);
        x->unpack[p](b, BLOCKS, wide[0]), ref->unpack[p](b, BLOCKS, wide[1]);
        if (memcmp(wide[0], wide[1], sizeof wide[0]) != 0) return false;
    }
    return true;
}

/* Codes of both parities, also on middles and beyond their ends; a scale of 0. */
static bool codes_agree(const kernels_table *x, const kernels_table *ref, size_t n) {
    static const uint8_t order[16] = {11, 10, 13, 12, 15, 14, 9, 0, 1, 6, 7, 4, 5, 2, 3, 8};
    float middle[15], values[N];
    uint8_t codes[2][N] = {{0}, {0}};
    for (int i = 0; i < 15; i++) middle[i] = (float)(i - 7) / 8 + (float)(i % 3) / 64;
    fill(values, N, 12);
    for (size_t i = 0; i < 15; i++) values[2 * i] = middle[i];
    for (int k = 0; k < 2; k++) {
        kernels_nf4_encode a = {middle, order, values, k ? 0 : 1.0F, n, codes[0]};
        x->nf4_encode(&a);
        a.codes = codes[1];
        ref->nf4_encode(&a);
        if (memcmp(codes[0], codes[1], sizeof codes[0]) != 0) return false;
    }
    return true;
}

static bool sums_agree(const kernels_table *x, const kernels_table *ref, size_t n) {
    trial t;
    begin(&t);
    const float *a = t.a[0] + 1, *b = t.b[0] + 1, *c = t.c[0] + 1;
    const kernels_table *of[TABLES] = {x, ref, &kernels_sizes};
    float sum[TABLES][3];
    for (int i = 0; i < TABLES; i++)
        sum[i][0] = of[i]->dot(a, b, n), sum[i][1] = of[i]->dot3(a, b, c, n), sum[i][2] = of[i]->exp_sum(a, 0.5F, n);
    return near(sum[0], sum[1], sum[2], 3, n + 3) && (n == 0 || x->max(a, n) == ref->max(a, n));
}

typedef void step(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n);
static void simple(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    k->axpy(0.3F, a, b, n);
    k->scale(0.7F, c, n);
    k->norm_apply(a, c, 0.9F, d, n);
}
static void norm(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    float from[N];
    memcpy(from, c, n * sizeof *c);
    k->norm_grad(a, b, from, 0.9F, 0.1F, c, d, n);
}
static void unit(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    float out[N], du[N], dg[N];
    k->swiglu(a, b, out, n);
    k->swiglu_grad(a, b, c, d, dg, du, n);
    memcpy(a, out, n * sizeof *out), memcpy(b, du, n * sizeof *du), memcpy(c, dg, n * sizeof *dg);
}
static void activations(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    float slope[N];
    k->activate(TM_ACT_SILU, a, a, slope, n);
    k->activate(TM_ACT_GELU, b, b, slope, n);
    k->activate(TM_ACT_GELU_TANH, c, c, slope, n);
    k->softcap(d, 1.5F, 0.7F, n);
}
static void slopes(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    float x[N], y[N];
    memcpy(x, d, n * sizeof *x);
    k->activate(TM_ACT_SILU, x, y, a, n);
    k->activate(TM_ACT_GELU, x, y, b, n);
    k->activate(TM_ACT_GELU_TANH, x, y, c, n);
}
static void turn(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    k->rotate(a, b, false, c, d, n);
    k->rotate(b, a, true, c, d, n);
}
static void soften(const kernels_table *k, float *a, float *b, float *c, float *d, size_t n) {
    size_t whole = n / 8 * 8; /* rows of attention come in eights */
    k->softmax_grad(a, 0.4F, 0.6F, n);
    if (!whole) return;
    float max = 0.2F, sum = 0.5F;
    k->softmax_row_grad(c, d, 0.8F, 1.2F, 0.1F, whole);
    d[0] = k->softmax_row(b, 0.8F, &max, &sum, whole);
    d[1] = max, d[2] = sum;
}

static bool step_agrees(const kernels_table *x, const kernels_table *ref, step *s, size_t n) {
    trial t;
    begin(&t);
    const kernels_table *of[TABLES] = {x, ref, &kernels_sizes};
    for (int i = 0; i < TABLES; i++) s(of[i], t.a[i] + 1, t.b[i] + 1, t.c[i] + 1, t.d[i] + 1, n);
    return array_agrees(t.a, n) && array_agrees(t.b, n) && array_agrees(t.c, n) && array_agrees(t.d, n);
}

static bool products_agree(const kernels_table *x, const kernels_table *ref) {
    enum { M = 13, COLUMNS = 32, K = 9 };
    float a[K * 16], b[K * COLUMNS], c[TABLES][M * COLUMNS], y[2][K * 16];
    const kernels_table *of[TABLES] = {x, ref, &kernels_sizes};
    _Alignas(64) float panel_a[K * GEMM_A_LD + 8], panel_b[K * GEMM_NR];
    fill(a, TM_COUNT(a), 6), fill(b, TM_COUNT(b), 7), fill(panel_a, TM_COUNT(panel_a), 8);
    fill(panel_b, TM_COUNT(panel_b), 9);
    for (size_t m = 1; m <= M; m++) {
        for (int i = 0; i < TABLES; i++) {
            fill(c[i], M * COLUMNS, 10);
            of[i]->small_gemm(m, COLUMNS, K, a, K, 1, b, COLUMNS, c[i], COLUMNS, m % 2);
        }
        x->transpose(a, K, m, K, y[0], 16), ref->transpose(a, K, m, K, y[1], 16);
        if (!near(c[0], c[1], c[2], m * COLUMNS, K + 1)) return false;
        if (memcmp(c[0] + m * COLUMNS, c[1] + m * COLUMNS, (M - m) * COLUMNS * sizeof **c) != 0) return false;
        for (size_t p = 0; p < K; p++)
            if (memcmp(y[0] + p * 16, y[1] + p * 16, tm_round_up(m, 8) * sizeof **y) != 0) return false;
    }
    for (int i = 0; i < TABLES; i++) {
        fill(c[i], M * COLUMNS, 10);
        of[i]->gemm_tile(K, panel_a, panel_b, 0.5F, 1.0F, c[i], COLUMNS);
    }
    for (size_t i = 0; i < GEMM_MR; i++)
        if (!near(c[0] + i * COLUMNS, c[1] + i * COLUMNS, c[2] + i * COLUMNS, GEMM_NR, K + 2)) return false;
    return true;
}

/* Whatever is written, bit for bit. */
static bool packing_agrees(const kernels_table *x, const kernels_table *ref) {
    enum { LD = 37, ROWS = 16, OUT = 3 * LD * ROWS };
    static const size_t columns[] = {7, 16, LD};
    uint16_t from[ROWS * LD];
    float y[2][OUT];
    const kernels_table *of[2] = {x, ref};
    for (size_t i = 0; i < TM_COUNT(from); i++) from[i] = (uint16_t)((i * 40503U & 0x77ff) | (i & 1U) << 15);
    for (size_t rows = 1; rows <= ROWS; rows++)
        for (size_t c = 0; c < TM_COUNT(columns); c++) {
            kernels_deal to = {
                .panels = rows % 3, .step = rows % 2 ? 6 : 16, .width = rows % 2 ? 8 : 16, .stride = LD * ROWS};
            memset(y, 0, sizeof y);
            for (int i = 0; i < 2; i++) {
                of[i]->transpose_bf16(from, LD, rows, columns[c], y[i], ROWS);
                of[i]->transpose_f16(from, LD, rows, columns[c], y[i] + LD * ROWS, ROWS);
                (c ? of[i]->deal_bf16 : of[i]->deal_f16)(from, LD, rows, to, y[i] + LD * ROWS);
            }
            if (memcmp(y[0], y[1], sizeof *y) != 0) return false;
        }
    return true;
}

static bool masks_agree(const kernels_table *x, const kernels_table *ref) {
    enum { BLOCKS = 21 };
    float mask[2][BLOCKS * KERNELS_DRAWS];
    const kernels_draw d = {.key = 0x123456789abcdefU, .dropped = 20000, .kept = 1.25F};
    static const uint64_t first[] = {3, UINT32_MAX - 9, (uint64_t)5 << 32};
    for (size_t i = 0; i < TM_COUNT(first); i++) {
        x->drop_mask(&d, first[i], BLOCKS - i, mask[0]);
        ref->drop_mask(&d, first[i], BLOCKS - i, mask[1]);
        if (memcmp(mask[0], mask[1], (BLOCKS - i) * KERNELS_DRAWS * sizeof **mask) != 0) return false;
    }
    return true;
}

const char *kernels_check_column(const kernels_table *x) {
    static const struct {
        const char *name;
        step *run;
    } steps[] = {{"axpy, scale or norm_apply", simple},
                 {"norm_grad", norm},
                 {"swiglu", unit},
                 {"activate or softcap", activations},
                 {"slope of activate", slopes},
                 {"rotate", turn},
                 {"softmax", soften}};
    static const size_t sizes[] = {0, 1, 15, 16, 24, N};
    kernels_table ref;
    kernels_ref_fill(&ref);
    if (!conversions_agree(x, &ref)) return "widen or narrow";
    if (!halves_agree(x, &ref)) return "widen_f16 or narrow_f16";
    for (size_t n = 192; n > 130; n -= 17) /* whole, and ends of every kind */
        if (!blocks_agree(x, &ref, n)) return "nf4_f32, nf4_bf16 or nf4_f16";
    if (!packings_agree(x, &ref)) return "unpack";
    for (size_t n = 0; n <= N; n++)
        if (!codes_agree(x, &ref, n)) return "nf4_encode";
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
        if (!sums_agree(x, &ref, sizes[i])) return "dot, dot3, max or exp_sum";
        for (size_t s = 0; s < TM_COUNT(steps); s++)
            if (!step_agrees(x, &ref, steps[s].run, sizes[i])) return steps[s].name;
    }
    if (!masks_agree(x, &ref)) return "drop_mask";
    if (!packing_agrees(x, &ref)) return "transpose_bf16, transpose_f16, deal_bf16 or deal_f16";
    return products_agree(x, &ref) ? NULL : "small_gemm, transpose or gemm_tile";
}

/* ---- products ---- */

enum { MOST_M = 70, MOST_N = 50, MOST_K = 70 };
typedef struct product {
    tm_gemm_args g;
    float a[MOST_M * MOST_K], b[MOST_N * MOST_K], c[MOST_M * MOST_N]; /* as fp32 */
    uint16_t a16[MOST_M * MOST_K], b16[MOST_N * MOST_K], c16[MOST_M * MOST_N];
    float result[MOST_M * MOST_N];
} product;

/* Rounds x to t's 16 bits where it has 16; returns where it is stored. */
static const void *operand(tm_elem t, float *x, uint16_t *x16, size_t n) {
    if (t == TM_ELEM_F32) return x;
    kernels_narrow(t, x, x16, n);
    kernels_widen(t, x16, x, n);
    return x16;
}

static bool product_right(const product *p) {
    const tm_gemm_args *g = &p->g;
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            double sum = g->beta == 0.0F ? 0 : (double)p->c[i * g->n + j], size = fabs(sum), got;
            for (size_t k = 0; k < g->k; k++) {
                double term = (double)p->a[g->a_trans ? k * g->m + i : i * g->k + k] *
                              (double)p->b[g->b_trans ? j * g->k + k : k * g->n + j];
                sum += term, size += fabs(term);
            }
            if (g->c_type == TM_ELEM_F32)
                got = (double)p->result[i * g->n + j];
            else {
                float wide;
                kernels_widen(g->c_type, (const uint16_t *)g->c + i * g->n + j, &wide, 1);
                got = (double)wide;
            }
            double bound = gamma_of(g->k + 1) * size; /* whatever the order of the sum */
            if (g->c_type == TM_ELEM_BF16) bound += 0x1p-8 * (fabs(sum) + bound);
            if (g->c_type == TM_ELEM_F16) bound += 0x1p-11 * (fabs(sum) + bound) + 0x1p-25;
            if (!(fabs(got - sum) <= bound)) return false;
        }
    return true;
}

/* trans: 0 x W^T, 1 dY W, 2 dY^T X, as a model multiplies; 3: as 0, of more than a few rows. */
static bool try_product(product *p, void (*run)(const tm_gemm_args *), tm_elem ab, tm_elem c, int trans, float beta) {
    size_t m = trans == 3 ? 70 : trans == 2 ? 35 : 7, n = trans == 1 ? 50 : 37, k = trans == 2 ? 19 : 70;
    fill(p->a, m * k, 11), fill(p->b, n * k, 12), fill(p->c, m * n, 13);
    p->g = (tm_gemm_args){.m = m, .n = n, .k = k, .alpha = 1, .beta = beta, .ldc = n, .a_type = ab, .b_type = ab};
    p->g.a_trans = trans == 2, p->g.b_trans = trans == 0 || trans == 3, p->g.c_type = c;
    p->g.lda = p->g.a_trans ? m : k, p->g.ldb = p->g.b_trans ? k : n;
    p->g.a = operand(ab, p->a, p->a16, m * k), p->g.b = operand(ab, p->b, p->b16, n * k);
    operand(c, p->c, p->c16, m * n);
    memcpy(p->result, p->c, sizeof p->result);
    p->g.c = c == TM_ELEM_F32 ? (void *)p->result : (void *)p->c16;
    run(&p->g);
    return product_right(p);
}

const char *kernels_check_gemm(void (*run)(const tm_gemm_args *)) {
    static const struct {
        const char *name;
        tm_elem ab, c;
    } mixes[] = {{"fp32", TM_ELEM_F32, TM_ELEM_F32},
                 {"bf16", TM_ELEM_BF16, TM_ELEM_BF16},
                 {"bf16 to fp32", TM_ELEM_BF16, TM_ELEM_F32},
                 {"fp16", TM_ELEM_F16, TM_ELEM_F16},
                 {"fp16 to fp32", TM_ELEM_F16, TM_ELEM_F32}};
    product p;
    for (size_t mix = 0; mix < TM_COUNT(mixes); mix++)
        for (int trans = 0; trans < 4; trans++)
            if (!try_product(&p, run, mixes[mix].ab, mixes[mix].c, trans, trans == 1 ? 0.0F : 1.0F))
                return mixes[mix].name;
    return NULL;
}
