/* Our own product, after Goto and van de Geijn (2008): panels of A and B are packed by the whole team into shared
 * scratch (bf16 is widened on the way), then register tiles of 6 x 16 are computed in blocks that fit the caches.
 *
 *     for n0 by N_CHUNK, m0 by M_CHUNK                         C chunk
 *         for k0 by at most K_CHUNK                            pack A[m0.., k0..], B[k0.., n0..]; barrier
 *             blocks of ROW_PANELS x COLUMN_PANELS tiles, any thread, any order; barrier
 */
#include "kernels/kernels_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    M_CHUNK = 516,
    N_CHUNK = 1024,
    K_CHUNK = 384,
    ROW_PANELS = 16,
    COLUMN_PANELS = 16,
    PACK_PANELS = 16,                   /* packed by one thread at a time */
    AHEAD = 6,                          /* rows that are asked for before they are packed */
    A_PANEL = K_CHUNK * GEMM_A_LD + 16, /* a line more, so that panels do not meet in one set of the cache */
    B_PANEL = K_CHUNK * GEMM_NR + 16
};

static struct {
    float *base, *a, *b, *c;
    unsigned threads;
    char name[32];
} own;

static size_t scratch_floats(void) {
    return (size_t)(M_CHUNK / GEMM_MR) * A_PANEL + (size_t)(N_CHUNK / GEMM_NR) * B_PANEL + (size_t)M_CHUNK * N_CHUNK;
}

static gemm_opened open_builtin(unsigned threads) {
    own.base = tm_malloc(scratch_floats() * sizeof(float) + 64);
    if (!own.base) return GEMM_NO_MEMORY;
    own.a = (float *)(((uintptr_t)own.base + 63) / 64 * 64);
    own.b = own.a + (size_t)(M_CHUNK / GEMM_MR) * A_PANEL;
    own.c = own.b + (size_t)(N_CHUNK / GEMM_NR) * B_PANEL;
    own.threads = threads;
    snprintf(own.name, sizeof own.name, "builtin-%s", kernels.isa);
    return GEMM_READY;
}

static void close_builtin(void) {
    tm_free(own.base);
    own.base = NULL;
}

/* Rows of `depth` elements laid side by side: out[p * ld + i] = x[i][p], missing rows zero. `width` rows fill a panel.
 */
static void pack_rows(const void *x, tm_elem t, uint64_t at, uint64_t ldx, size_t rows, size_t depth, size_t width,
                      float *out) {
    float buf[GEMM_NR * K_CHUNK];
    if (tm_round_up(rows, 8) < width) memset(out, 0, depth * width * sizeof *out);
    if (t == TM_ELEM_F32) {
        kernels.transpose((const float *)x + at, ldx, rows, depth, out, width);
        return;
    }
    for (size_t i = 0; i < rows; i++) {
        kernels_prefetch((const uint16_t *)x + at + (i + AHEAD) * ldx, depth * 2);
        kernels.widen((const uint16_t *)x + at + i * ldx, buf + i * depth, depth);
    }
    kernels.transpose(buf, depth, rows, depth, out, width);
}

/* Stored [depth][..]: each stored row is cut into panels of `step` columns, `width` floats apart inside a panel, panels
 * `stride` apart. Whole widths are moved; what is between step and width is never used. */
static void pack_columns(const void *x, tm_elem t, uint64_t at, uint64_t ldx, size_t columns, size_t depth, size_t step,
                         size_t width, size_t stride, float *out) {
    float buf[PACK_PANELS * GEMM_NR + GEMM_NR] = {0};
    for (size_t p = 0; p < depth; p++) {
        kernels_prefetch(kernels_at_const(t, x, at + (p + AHEAD) * ldx), columns * tm_elem_bytes(t));
        if (t == TM_ELEM_F32)
            memcpy(buf, (const float *)x + at + p * ldx, columns * sizeof *buf);
        else
            kernels.widen((const uint16_t *)x + at + p * ldx, buf, columns);
        float *to = out + p * width;
        for (size_t j = 0; j < columns; j += step, to += stride) {
            memcpy(to, buf + j, GEMM_A_LD * sizeof *to);
            if (width > GEMM_A_LD) memcpy(to + GEMM_A_LD, buf + j + GEMM_A_LD, GEMM_A_LD * sizeof *to);
        }
    }
}

typedef struct chunk { /* of C and k */
    uint64_t m0, n0, k0;
    size_t m, n, k;
    bool first, last;
} chunk;

/* PACK_PANELS panels of A, from panel number `first` on. */
static void pack_a(const tm_gemm_args *g, const chunk *c, size_t first) {
    size_t i0 = first * GEMM_MR, n = tm_min_u64(PACK_PANELS * GEMM_MR, c->m - i0);
    float *out = own.a + first * A_PANEL;
    if (g->a_trans) {
        pack_columns(g->a, g->a_type, c->k0 * g->lda + c->m0 + i0, g->lda, n, c->k, GEMM_MR, GEMM_A_LD, A_PANEL, out);
        return;
    }
    for (size_t i = 0; i < n; i += GEMM_MR, out += A_PANEL)
        pack_rows(g->a, g->a_type, (c->m0 + i0 + i) * g->lda + c->k0, g->lda, tm_min_u64(GEMM_MR, n - i), c->k,
                  GEMM_A_LD, out);
}

static void pack_b(const tm_gemm_args *g, const chunk *c, size_t first) {
    size_t j0 = first * GEMM_NR, n = tm_min_u64(PACK_PANELS * GEMM_NR, c->n - j0);
    float *out = own.b + first * B_PANEL;
    if (!g->b_trans) {
        pack_columns(g->b, g->b_type, c->k0 * g->ldb + c->n0 + j0, g->ldb, n, c->k, GEMM_NR, GEMM_NR, B_PANEL, out);
        return;
    }
    for (size_t j = 0; j < n; j += GEMM_NR, out += B_PANEL)
        pack_rows(g->b, g->b_type, (c->n0 + j0 + j) * g->ldb + c->k0, g->ldb, tm_min_u64(GEMM_NR, n - j), c->k, GEMM_NR,
                  out);
}

/* Where the fp32 sums of the chunk are: C itself, or our copy of the chunk if C is bf16. */
static float *sums(const tm_gemm_args *g, const chunk *c, size_t *ld) {
    *ld = g->c_type == TM_ELEM_F32 ? g->ldc : N_CHUNK;
    return g->c_type == TM_ELEM_F32 ? (float *)g->c + c->m0 * g->ldc + c->n0 : own.c;
}

static void one_tile(const tm_gemm_args *g, const chunk *c, size_t ip, size_t jp, float beta) {
    size_t ld, i = ip * GEMM_MR, j = jp * GEMM_NR;
    float *out = sums(g, c, &ld) + i * ld + j;
    const float *a = own.a + ip * A_PANEL, *b = own.b + jp * B_PANEL;
    if (i + GEMM_MR <= c->m && j + GEMM_NR <= c->n) {
        kernels.gemm_tile(c->k, a, b, g->alpha, beta, out, ld);
        return;
    }
    float edge[GEMM_MR * GEMM_NR];
    size_t rows = c->m - i < GEMM_MR ? c->m - i : GEMM_MR, columns = c->n - j < GEMM_NR ? c->n - j : GEMM_NR;
    memset(edge, 0, sizeof edge);
    for (size_t r = 0; beta != 0.0F && r < rows; r++) memcpy(edge + r * GEMM_NR, out + r * ld, columns * sizeof *edge);
    kernels.gemm_tile(c->k, a, b, g->alpha, beta, edge, GEMM_NR);
    for (size_t r = 0; r < rows; r++) memcpy(out + r * ld, edge + r * GEMM_NR, columns * sizeof *edge);
}

/* A finished block of a bf16 C: beta C is added, and the sum rounded once. */
static void round_block(const tm_gemm_args *g, const chunk *c, size_t i0, size_t i1, size_t j0, size_t j1) {
    float old[COLUMN_PANELS * GEMM_NR];
    for (size_t i = i0; i < i1; i++) {
        uint16_t *out = (uint16_t *)g->c + (c->m0 + i) * g->ldc + c->n0 + j0;
        float *row = own.c + i * N_CHUNK + j0;
        if (g->beta != 0.0F) {
            kernels.widen(out, old, j1 - j0);
            kernels.axpy(g->beta, old, row, j1 - j0);
        }
        kernels.narrow(row, out, j1 - j0);
    }
}

static void one_block(const tm_gemm_args *g, const chunk *c, size_t bi, size_t bj) {
    size_t rows = (c->m + GEMM_MR - 1) / GEMM_MR, columns = (c->n + GEMM_NR - 1) / GEMM_NR;
    size_t ip0 = bi * ROW_PANELS, jp0 = bj * COLUMN_PANELS;
    size_t ip1 = tm_min_u64(rows, ip0 + ROW_PANELS), jp1 = tm_min_u64(columns, jp0 + COLUMN_PANELS);
    bool wide = g->c_type == TM_ELEM_F32;
    float beta = !c->first ? 1.0F : wide ? g->beta : 0.0F;
    for (size_t jp = jp0; jp < jp1; jp++)
        for (size_t ip = ip0; ip < ip1; ip++) one_tile(g, c, ip, jp, beta);
    if (!wide && c->last)
        round_block(g, c, ip0 * GEMM_MR, tm_min_u64(c->m, ip1 * GEMM_MR), jp0 * GEMM_NR,
                    tm_min_u64(c->n, jp1 * GEMM_NR));
}

static void run_chunk(const tm_gemm_args *g, const chunk *c) {
    size_t rows = (c->m + GEMM_MR - 1) / GEMM_MR, columns = (c->n + GEMM_NR - 1) / GEMM_NR;
    size_t block_rows = (rows + ROW_PANELS - 1) / ROW_PANELS;
    size_t block_columns = (columns + COLUMN_PANELS - 1) / COLUMN_PANELS;
    size_t pack_rows_n = (rows + PACK_PANELS - 1) / PACK_PANELS,
           pack_columns_n = (columns + PACK_PANELS - 1) / PACK_PANELS;
#pragma omp for schedule(dynamic, 1)
    for (size_t p = 0; p < pack_rows_n + pack_columns_n; p++) {
        if (p < pack_rows_n)
            pack_a(g, c, p * PACK_PANELS);
        else
            pack_b(g, c, (p - pack_rows_n) * PACK_PANELS);
    }
#pragma omp for schedule(dynamic, 1)
    for (size_t x = 0; x < block_rows * block_columns; x++) one_block(g, c, x % block_rows, x / block_rows);
}

static void run(const tm_gemm_args *g) {
    TM_ASSERT(g->k > 0);
    uint64_t k_pieces = (g->k + K_CHUNK - 1) / K_CHUNK, k_step = tm_round_up((g->k + k_pieces - 1) / k_pieces, 8);
#pragma omp parallel num_threads(own.threads)
    for (uint64_t n0 = 0; n0 < g->n; n0 += N_CHUNK)
        for (uint64_t m0 = 0; m0 < g->m; m0 += M_CHUNK)
            for (uint64_t k0 = 0; k0 < g->k; k0 += k_step) {
                chunk c = {.m0 = m0, .n0 = n0, .k0 = k0, .first = k0 == 0, .last = k0 + k_step >= g->k};
                c.m = tm_min_u64(M_CHUNK, g->m - m0);
                c.n = tm_min_u64(N_CHUNK, g->n - n0);
                c.k = tm_min_u64(k_step, g->k - k0);
                run_chunk(g, &c);
            }
}

static const char *describe(void) {
    return own.name;
}
static uint64_t resident(unsigned threads) {
    (void)threads;
    return scratch_floats() * sizeof(float);
}

static int preference(void) {
    return 5;
}

const gemm_backend gemm_builtin = {.name = "builtin",
                                   .preference = preference,
                                   .open = open_builtin,
                                   .run = run,
                                   .describe = describe,
                                   .resident_bytes = resident,
                                   .close = close_builtin};
