/* Our own product, after Goto and van de Geijn (2008), with panels of A shared and those of B each thread's own:
 *
 *     for n0, m0 by M_CHUNK, s0 by SLICES depths of k          the team packs A[m0.., s0..]; barrier
 *         blocks of C, up to M_CHUNK x COLUMNS, any thread:
 *             for k0 by at most K_CHUNK                        packs B[k0.., block]: it stays in the core's cache
 *                 register tiles of 6 x 16: a panel of A meets all panels of B
 *
 * bf16 and fp16 are widened while they are packed. So threads wait for each other twice a product (more where m or k
 * are large), and what another core packed is read once for every COLUMNS columns. A sum's order depends on k alone:
 * any cut of C, any number of threads gives the same bits. */
#include "kernels/kernels_internal.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum {
    M_CHUNK = 516,
    N_CHUNK = 2048, /* of a C of 16 bits that is summed in several slices */
    K_CHUNK = 384,
    SLICES = 4, /* depths of K_CHUNK that A is packed for at once */
    COLUMN_PANELS = 8,
    COLUMNS = COLUMN_PANELS * GEMM_NR,
    PACK_PANELS = 8,                    /* of A, packed by one thread at a time */
    AHEAD = 6,                          /* rows that are asked for before they are packed */
    A_PANEL = K_CHUNK * GEMM_A_LD + 16, /* a line more, so that panels do not meet in one set of the cache */
    B_PANEL = K_CHUNK * GEMM_NR + 16,
    A_PANELS = M_CHUNK / GEMM_MR,
    HUGE_PAGE = 2 << 20
};

static struct {
    float *base, *a, *c, *thread; /* thread: each one's panels of B and block of C */
    unsigned threads;
    char name[32];
} own;

static size_t thread_floats(void) {
    return (size_t)COLUMN_PANELS * B_PANEL + (size_t)M_CHUNK * COLUMNS;
}
static size_t scratch_floats(unsigned threads) {
    return (size_t)SLICES * A_PANELS * A_PANEL + (size_t)M_CHUNK * N_CHUNK + threads * thread_floats();
}

static gemm_opened open_builtin(unsigned threads) {
    size_t bytes = scratch_floats(threads) * sizeof(float) + HUGE_PAGE;
    own.base = tm_malloc(bytes);
    if (!own.base) return GEMM_NO_MEMORY;
    own.a = (float *)(((uintptr_t)own.base + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    (void)madvise(own.a, bytes - HUGE_PAGE, MADV_HUGEPAGE); /* no matter where the system has none */
    own.thread = own.a + (size_t)SLICES * A_PANELS * A_PANEL;
    own.c = own.thread + threads * thread_floats();
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
        kernels_widen(t, (const uint16_t *)x + at + i * ldx, buf + i * depth, depth);
    }
    kernels.transpose(buf, depth, rows, depth, out, width);
}

/* Stored [depth][..]: each stored row is cut into panels of `step` columns, `width` floats apart inside a panel, panels
 * `stride` apart. Whole widths are moved; what is between step and width is never used. */
static void pack_columns(const void *x, tm_elem t, uint64_t at, uint64_t ldx, size_t columns, size_t depth, size_t step,
                         size_t width, size_t stride, float *out) {
    float buf[COLUMNS + GEMM_NR] = {0};
    for (size_t p = 0; p < depth; p++) {
        kernels_prefetch(kernels_at_const(t, x, at + (p + AHEAD) * ldx), columns * tm_elem_bytes(t));
        if (t == TM_ELEM_F32)
            memcpy(buf, (const float *)x + at + p * ldx, columns * sizeof *buf);
        else
            kernels_widen(t, (const uint16_t *)x + at + p * ldx, buf, columns);
        float *to = out + p * width;
        for (size_t j = 0; j < columns; j += step, to += stride) {
            memcpy(to, buf + j, GEMM_A_LD * sizeof *to);
            if (width > GEMM_A_LD) memcpy(to + GEMM_A_LD, buf + j + GEMM_A_LD, GEMM_A_LD * sizeof *to);
        }
    }
}

/* A part of C, and the slice of k under way. */
typedef struct region {
    uint64_t m0, n0, s0; /* s0: first depth of the slices that A is packed for */
    size_t m, n, depth, k_step;
    bool first, last; /* of all slices */
} region;

static size_t panels(size_t n, size_t width) {
    return (n + width - 1) / width;
}
static float *panel_of_a(size_t slice, size_t ip) {
    return own.a + (slice * A_PANELS + ip) * A_PANEL;
}

/* PACK_PANELS panels of A, from panel `first` on. */
static void pack_a(const tm_gemm_args *g, const region *r, size_t slice, size_t first) {
    uint64_t k0 = r->s0 + slice * r->k_step, i0 = r->m0 + first * GEMM_MR;
    size_t depth = tm_min_u64(r->k_step, r->depth - slice * r->k_step);
    size_t n = tm_min_u64(PACK_PANELS * GEMM_MR, r->m - first * GEMM_MR);
    float *out = panel_of_a(slice, first);
    if (g->a_trans) {
        pack_columns(g->a, g->a_type, k0 * g->lda + i0, g->lda, n, depth, GEMM_MR, GEMM_A_LD, A_PANEL, out);
        return;
    }
    for (size_t i = 0; i < n; i += GEMM_MR, out += A_PANEL)
        pack_rows(g->a, g->a_type, (i0 + i) * g->lda + k0, g->lda, tm_min_u64(GEMM_MR, n - i), depth, GEMM_A_LD, out);
}

typedef struct block { /* of C: columns [j0, j0 + n), panels [ip0, ip1) of rows */
    uint64_t j0;
    size_t n, ip0, ip1;
    float *b, *c; /* the thread's panels of B; where sums are, for row 0 of the region */
    size_t ldc;
} block;

static void pack_b(const tm_gemm_args *g, const block *x, uint64_t k0, size_t depth) {
    if (!g->b_trans) {
        pack_columns(g->b, g->b_type, k0 * g->ldb + x->j0, g->ldb, x->n, depth, GEMM_NR, GEMM_NR, B_PANEL, x->b);
        return;
    }
    for (size_t j = 0; j < x->n; j += GEMM_NR)
        pack_rows(g->b, g->b_type, (x->j0 + j) * g->ldb + k0, g->ldb, tm_min_u64(GEMM_NR, x->n - j), depth, GEMM_NR,
                  x->b + j / GEMM_NR * B_PANEL);
}

static void one_tile(const region *r, const block *x, size_t k, const float *a, size_t ip, size_t jp, float alpha,
                     float beta) {
    size_t i = ip * GEMM_MR, j = jp * GEMM_NR;
    float *out = x->c + i * x->ldc + j;
    const float *b = x->b + jp * B_PANEL;
    if (i + GEMM_MR <= r->m && j + GEMM_NR <= x->n) {
        kernels.gemm_tile(k, a, b, alpha, beta, out, x->ldc);
        return;
    }
    float edge[GEMM_MR * GEMM_NR];
    size_t rows = tm_min_u64(GEMM_MR, r->m - i), columns = tm_min_u64(GEMM_NR, x->n - j);
    memset(edge, 0, sizeof edge);
    for (size_t q = 0; beta != 0.0F && q < rows; q++)
        memcpy(edge + q * GEMM_NR, out + q * x->ldc, columns * sizeof *edge);
    kernels.gemm_tile(k, a, b, alpha, beta, edge, GEMM_NR);
    for (size_t q = 0; q < rows; q++) memcpy(out + q * x->ldc, edge + q * GEMM_NR, columns * sizeof *edge);
}

/* A finished block of a C of 16 bits: beta C is added, and the sum rounded once. */
static void round_block(const tm_gemm_args *g, const region *r, const block *x) {
    float old[COLUMNS];
    for (size_t i = x->ip0 * GEMM_MR; i < tm_min_u64(r->m, x->ip1 * GEMM_MR); i++) {
        uint16_t *out = (uint16_t *)g->c + (r->m0 + i) * g->ldc + x->j0;
        float *row = x->c + i * x->ldc;
        if (g->beta != 0.0F) {
            kernels_widen(g->c_type, out, old, x->n);
            kernels.axpy(g->beta, old, row, x->n);
        }
        kernels_narrow(g->c_type, row, out, x->n);
    }
}

/* Where the block's sums are: C itself; or the thread's own block where a C of 16 bits is summed at once; or shared
 * scratch.
 */
static void place_sums(const tm_gemm_args *g, const region *r, block *x) {
    float *mine = own.thread + (size_t)omp_get_thread_num() * thread_floats();
    x->b = mine;
    if (g->c_type == TM_ELEM_F32)
        x->c = (float *)g->c + r->m0 * g->ldc + x->j0, x->ldc = g->ldc;
    else if (r->first && r->last)
        x->c = mine + (size_t)COLUMN_PANELS * B_PANEL, x->ldc = COLUMNS;
    else
        x->c = own.c + (x->j0 - r->n0), x->ldc = N_CHUNK;
}

static void one_block(const tm_gemm_args *g, const region *r, block x) {
    bool wide = g->c_type == TM_ELEM_F32;
    place_sums(g, r, &x);
    for (size_t slice = 0; slice * r->k_step < r->depth; slice++) {
        size_t k = tm_min_u64(r->k_step, r->depth - slice * r->k_step);
        float beta = !r->first || slice ? 1.0F : wide ? g->beta : 0.0F;
        pack_b(g, &x, r->s0 + slice * r->k_step, k);
        for (size_t ip = x.ip0; ip < x.ip1; ip++)
            for (size_t jp = 0; jp < panels(x.n, GEMM_NR); jp++)
                one_tile(r, &x, k, panel_of_a(slice, ip), ip, jp, g->alpha, beta);
    }
    if (!wide && r->last) round_block(g, r, &x);
}

/* Blocks take all rows, so that B is packed once, unless there were too few of them for the team. */
static void run_region(const tm_gemm_args *g, const region *r) {
    size_t rows = panels(r->m, GEMM_MR), groups = panels(rows, PACK_PANELS), slices = panels(r->depth, r->k_step);
    size_t columns = panels(r->n, COLUMNS), cuts = tm_min_u64(rows, panels((size_t)own.threads * 2, columns));
    size_t height = panels(rows, cuts);
#pragma omp for schedule(dynamic, 1)
    for (size_t x = 0; x < groups * slices; x++) pack_a(g, r, x / groups, x % groups * PACK_PANELS);
#pragma omp for schedule(dynamic, 1)
    for (size_t x = 0; x < columns * cuts; x++) {
        size_t j = x / cuts * COLUMNS, ip = tm_min_u64(rows, x % cuts * height);
        one_block(
            g, r,
            (block){
                .j0 = r->n0 + j, .n = tm_min_u64(COLUMNS, r->n - j), .ip0 = ip, .ip1 = tm_min_u64(rows, ip + height)});
    }
}

static void run(const tm_gemm_args *g) {
    TM_ASSERT(g->k > 0);
    uint64_t k_pieces = (g->k + K_CHUNK - 1) / K_CHUNK, k_step = tm_round_up((g->k + k_pieces - 1) / k_pieces, 8);
    uint64_t all = SLICES * k_step; /* what A is packed for at once */
    uint64_t n_step = g->c_type != TM_ELEM_F32 && g->k > all ? N_CHUNK : g->n;
#pragma omp parallel num_threads(own.threads)
    for (uint64_t m0 = 0; m0 < g->m; m0 += M_CHUNK)
        for (uint64_t n0 = 0; n0 < g->n; n0 += n_step)
            for (uint64_t s0 = 0; s0 < g->k; s0 += all) {
                region r = {.m0 = m0, .n0 = n0, .s0 = s0, .k_step = k_step, .first = s0 == 0, .last = s0 + all >= g->k};
                r.m = tm_min_u64(M_CHUNK, g->m - m0);
                r.n = tm_min_u64(n_step, g->n - n0);
                r.depth = tm_min_u64(all, g->k - s0);
                run_region(g, &r);
            }
}

static const char *describe(void) {
    return own.name;
}
static uint64_t resident(unsigned threads, tm_elem t, uint64_t rows) {
    (void)t, (void)rows;
    return scratch_floats(threads) * sizeof(float) + HUGE_PAGE;
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
