/* Our own product, after Goto and van de Geijn (2008). C is cut into tiles, each made by one thread on its own:
 *
 *     tile of C, up to M_TILE x N_TILE
 *         for k0 by at most K_CHUNK                        packs A[tile, k0..]
 *             blocks of up to COLUMNS columns              packs B[k0.., block]: it stays in the core's second cache
 *                 register tiles of 6 x 16: a panel of A meets all panels of B
 *
 * Operands of 16 bits are widened while they are packed. Threads share nothing and wait for each other at the end of a
 * product only: what two tiles both pack costs less than panels that another core has packed, and than waiting.
 *
 * Sums lie in blocks of the thread's own, whose rows follow one another, and go to C once, when the last of k has been
 * added: rows of C a large power of two apart fall into a few sets of the caches, and push out what is needed next.
 *
 * A sum's order depends on k alone: any cut of C, any number of threads gives the same bits. */
#include "kernels/gemm_pack_internal.h"
#include "kernels/kernels_internal.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum {
    M_TILE = 516,
    N_TILE = 768,
    K_CHUNK = GEMM_K_CHUNK,
    A_PANELS = M_TILE / GEMM_MR,
    COLUMN_PANELS = 8,
    COLUMNS = COLUMN_PANELS * GEMM_NR,
    BLOCKS = N_TILE / COLUMNS,
    FEWEST_COLUMNS = 64,
    HUGE_PAGE = 2 << 20
};

/* Of each thread: panels of B, as many of A as the tile has, and the tile's sums behind them: what small tiles leave untouched
 * is the end. */
enum {
    B_FLOATS = COLUMN_PANELS * GEMM_B_PANEL,
    BLOCK_FLOATS = M_TILE * COLUMNS,
    THREAD_FLOATS = B_FLOATS + A_PANELS * GEMM_A_PANEL + BLOCKS * BLOCK_FLOATS
};

static struct {
    float *base, *scratch;
    unsigned threads;
    char name[32];
} own;

/* Whole huge pages, for what is left over would lie in small ones. */
static size_t scratch_bytes(unsigned threads) {
    return tm_round_up((size_t)threads * THREAD_FLOATS * sizeof(float), HUGE_PAGE);
}

static gemm_opened open_builtin(unsigned threads, tm_elem products) {
    (void)products;
    size_t bytes = scratch_bytes(threads);
    own.base = tm_malloc(bytes + HUGE_PAGE); /* what is before or behind is never touched */
    if (!own.base) return GEMM_NO_MEMORY;
    own.scratch = (float *)(((uintptr_t)own.base + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    (void)madvise(own.scratch, bytes, MADV_HUGEPAGE); /* no matter where the system has none */
    own.threads = threads;
    snprintf(own.name, sizeof own.name, "builtin-%s", kernels.isa);
    return GEMM_READY;
}

static void close_builtin(void) {
    tm_free(own.base);
    own.base = NULL;
}

/* With memory in huge pages, what is written of one is all there. */
uint64_t gemm_builtin_touched(unsigned threads, size_t bytes) {
    const size_t each = THREAD_FLOATS * sizeof(float);
    uint64_t pages = 0, counted = 0;
    for (unsigned t = 0; t < threads; t++) {
        uint64_t from = tm_max_u64(t * each / HUGE_PAGE, counted), to = (t * each + bytes - 1) / HUGE_PAGE + 1;
        if (to > from) pages += to - from, counted = to;
    }
    return pages * HUGE_PAGE;
}

char *gemm_builtin_scratch(unsigned thread, size_t bytes) {
    TM_ASSERT(thread < own.threads && bytes <= THREAD_FLOATS * sizeof(float));
    return (char *)(own.scratch + (size_t)thread * THREAD_FLOATS);
}

typedef struct tile { /* of C, and the part of k under way */
    const tm_gemm_args *g;
    uint64_t i0, j0, k0;
    size_t m, n, depth;
    bool first, last; /* of the parts of k */
    float *a, *b, *c;
} tile;

static size_t panels_of(size_t rows) {
    return (rows + GEMM_MR - 1) / GEMM_MR;
}

static operand rows_of_a(const tile *t) {
    const tm_gemm_args *g = t->g;
    return (operand){g->a, g->a_type, g->lda, g->a_trans, t->i0, t->m, t->k0, t->depth, NULL};
}
/* Columns from j on. */
static operand columns_of_b(const tile *t, size_t j) {
    const tm_gemm_args *g = t->g;
    return (operand){g->b,  g->b_type, g->ldb,     !g->b_trans, t->j0 + j, tm_min_u64(COLUMNS, t->n - j),
                     t->k0, t->depth,  g->b_packed};
}

/* `rows` rows of sums to row i of C, from column j on. */
static void store_rows(const tile *t, size_t i, size_t rows, size_t j, size_t columns, float *sums) {
    const tm_gemm_args *g = t->g;
    float old[COLUMNS];
    for (size_t r = 0; r < rows; r++, sums += COLUMNS) {
        uint64_t at = (t->i0 + i + r) * g->ldc + t->j0 + j;
        if (g->c_type == TM_ELEM_F32 && g->beta == 1.0F) {
            kernels.axpy(1.0F, sums, (float *)g->c + at, columns);
            continue;
        }
        if (g->beta != 0.0F) kernels.axpy(g->beta, kernels_load(g->c_type, g->c, at, old, columns), sums, columns);
        if (g->c_type == TM_ELEM_F32)
            memcpy((float *)g->c + at, sums, columns * sizeof *sums);
        else
            kernels_narrow(g->c_type, sums, (uint16_t *)g->c + at, columns);
    }
}

/* Asks for what store_rows will need. */
static void prefetch_rows(const tile *t, size_t i, size_t rows, size_t j, size_t columns) {
    const tm_gemm_args *g = t->g;
    for (size_t r = 0; r < rows; r++)
        kernels_prefetch(kernels_at_const(g->c_type, g->c, (t->i0 + i + r) * g->ldc + t->j0 + j),
                         columns * tm_elem_bytes(g->c_type));
}

static void one_panel(const tile *t, size_t ip, size_t panels, float *c) {
    for (size_t jp = 0; jp < panels; jp++)
        kernels.gemm_tile(t->depth, t->a + ip * GEMM_A_PANEL, t->b + jp * GEMM_B_PANEL, t->g->alpha,
                          t->first ? 0.0F : 1.0F, c + jp * GEMM_NR, COLUMNS);
}

/* Columns [j, j + COLUMNS) of the tile. */
static void one_block(const tile *t, size_t j) {
    size_t columns = tm_min_u64(COLUMNS, t->n - j), panels = (columns + GEMM_NR - 1) / GEMM_NR;
    bool once = t->first && t->last; /* then the sums of one panel's rows serve all */
    float *c = once ? t->c : t->c + j / COLUMNS * panels_of(t->m) * GEMM_MR * COLUMNS;
    operand b = columns_of_b(t, j);
    gemm_pack(&b, GEMM_NR, GEMM_NR, GEMM_B_PANEL, t->b);
    for (size_t i = 0; i < t->m; i += GEMM_MR, c += once ? 0 : GEMM_MR * COLUMNS) {
        size_t rows = tm_min_u64(GEMM_MR, t->m - i);
        if (t->last) prefetch_rows(t, i, rows, j, columns);
        one_panel(t, i / GEMM_MR, panels, c);
        if (t->last) store_rows(t, i, rows, j, columns, c);
    }
}

static void one_tile(tile t, size_t k_step) {
    for (; t.k0 < t.g->k; t.k0 += k_step) {
        t.depth = tm_min_u64(k_step, t.g->k - t.k0);
        t.first = t.k0 == 0, t.last = t.k0 + k_step >= t.g->k;
        operand a = rows_of_a(&t);
        gemm_pack(&a, GEMM_MR, GEMM_A_LD, GEMM_A_PANEL, t.a);
        for (size_t j = 0; j < t.n; j += COLUMNS) one_block(&t, j);
    }
}

static const gemm_limits limits = {M_TILE, N_TILE, GEMM_MR, GEMM_NR, FEWEST_COLUMNS};

static void run(const tm_gemm_args *g) {
    TM_ASSERT(g->k > 0);
    uint64_t k_pieces = (g->k + K_CHUNK - 1) / K_CHUNK, k_step = tm_round_up((g->k + k_pieces - 1) / k_pieces, 8);
    gemm_cut c = gemm_cut_of(g, own.threads, &limits);
#pragma omp parallel for schedule(dynamic, 1) num_threads(own.threads) if (c.tiles_m * c.tiles_n > 1)
    for (uint64_t x = 0; x < c.tiles_m * c.tiles_n; x++) {
        gemm_piece m = gemm_piece_of(g->m, c.tiles_m, x % c.tiles_m, GEMM_MR),
                   n = gemm_piece_of(g->n, c.tiles_n, x / c.tiles_m, GEMM_NR);
        float *mine = own.scratch + (size_t)omp_get_thread_num() * THREAD_FLOATS;
        tile t = {.g = g, .i0 = m.at, .m = m.n, .j0 = n.at, .n = n.n};
        t.b = mine, t.a = mine + B_FLOATS, t.c = t.a + panels_of(t.m) * GEMM_A_PANEL;
        if (t.m && t.n) one_tile(t, k_step);
    }
}

static const char *describe(void) {
    return own.name;
}

/* Of a thread with a tile of a product that is m high, n wide and k deep. */
static size_t touched_floats(uint64_t m, uint64_t n, uint64_t k) {
    size_t panels = panels_of(tm_min_u64(m, M_TILE)), blocks = (tm_min_u64(n, N_TILE) + COLUMNS - 1) / COLUMNS;
    return B_FLOATS + panels * GEMM_A_PANEL + (k <= K_CHUNK ? 1 : panels * blocks) * GEMM_MR * COLUMNS;
}

static uint64_t resident(unsigned threads, const tm_products *p) {
    size_t floats = gemm_most_touched(p, touched_floats);
    return gemm_builtin_touched(threads, floats * sizeof(float)) + TM_MIB / 4; /* our code */
}

/* Where AVX2 is the best there is, OpenBLAS is level in fp32, and slower in 16 bits, which it cannot read: they are
 * widened into panels that it then packs. It has kernels for AVX-512, ours has not. */
static int preference(tm_elem products) {
    return products != TM_ELEM_F32 && kernels.level == KERNELS_AVX2 ? 15 : 5;
}

const gemm_backend gemm_builtin = {.name = "builtin",
                                   .preference = preference,
                                   .open = open_builtin,
                                   .run = run,
                                   .describe = describe,
                                   .resident_bytes = resident,
                                   .close = close_builtin};
