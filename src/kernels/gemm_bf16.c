/* Our own product of bf16, by AMX or AVX-512 BF16. C is cut into tiles, each made by one thread on its own:
 *
 *     tile of C, up to M_TILE x N_TILE
 *         for k0 by at most BF16_K_CHUNK                   packs A[tile, k0..]: it stays in the core's second cache
 *             groups of up to GROUP columns                packs B[k0.., group]
 *                 panels of 32 columns of B                one stays in half of the first cache, for two threads may share it
 *                     panels of 32 rows of A               a block of sums, 32 x 32
 *
 * While registers multiply, what is read next is asked for: the next group of B (weights come out of memory), A of the next
 * part of k, the next sums, rows of C.
 *
 * Sums lie in blocks of the thread's own and go to C once, when the last of k has been added. The order of a sum depends on k
 * alone: any cut of C, any number of threads gives the same bits. Both instructions take denormals for zero, and make none.
 *
 * What it does not multiply (operands of fp32 or fp16) is the builtin product's, in whose scratch this one works. */
#include "kernels/gemm_bf16_internal.h"
#include "kernels/kernels_internal.h"

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <omp.h>
#include <stdio.h>

enum { M_TILE = 512, N_TILE = 768, GROUP = 128 };
enum {
    QUARTER = BF16_TILE / 2,
    BLOCK = 4 * QUARTER,
    STEP = 2 * BF16_TILE
}; /* sums 16 x 16, 32 x 32; 32 depths of a panel */
/* Of each thread: panels of B and of A, and sums behind them: what small tiles leave untouched is the end. */
enum {
    B_BYTES = GROUP * BF16_K_CHUNK * 2,
    A_BYTES = M_TILE * BF16_K_CHUNK * 2,
    C_BYTES = M_TILE * N_TILE * 4,
    THREAD_BYTES = B_BYTES + A_BYTES + C_BYTES
};
static const gemm_limits limits = {M_TILE, N_TILE, BF16_LINES, BF16_LINES, GROUP};

static struct {
    const bf16_way *way;
    unsigned threads;
    char name[64];
} own;

gemm_opened bf16_open(const bf16_way *way, unsigned threads, tm_elem products) {
    if (!way->there()) return GEMM_ABSENT;
    own.way = way, own.threads = threads;
    gemm_opened how = gemm_builtin.open(threads, products);
    snprintf(own.name, sizeof own.name, "%s+%s", way->name, gemm_builtin.describe());
    return how;
}

void bf16_close(void) {
    gemm_builtin.close();
}

/* ---- asking for what is read next ---- */

static bf16_ahead ahead_of(const void *at, size_t run, size_t stride, size_t runs) {
    return (bf16_ahead){.at = at, .run = run, .stride = stride, .runs = runs};
}

/* Of 4-bit codes two make a byte. */
static bf16_ahead ahead_of_codes(const operand *o) {
    const tm_packed *p = o->packed;
    uint64_t row = p->first + (o->by_depth ? o->k0 : o->at), column = o->by_depth ? o->at : o->k0;
    return ahead_of(p->nf4.codes + (row * p->k + column) / 2, (o->by_depth ? o->n : o->depth) / 2, p->k / 2,
                    o->by_depth ? o->depth : o->n);
}

static bf16_ahead ahead_of_operand(const operand *o) {
    const uint16_t *x = o->x;
    if (o->packed) return ahead_of_codes(o);
    if (o->by_depth) return ahead_of(x + o->k0 * o->ld + o->at, o->n * 2, o->ld * 2, o->depth);
    return ahead_of(x + o->at * o->ld + o->k0, o->depth * 2, o->ld * 2, o->n);
}

/* So that all of it has been asked for after that many steps, of as many passes as the way makes. */
static void spread(bf16_ahead *a, size_t steps) {
    size_t times = steps * own.way->passes;
    a->each = (a->runs * ((a->run + 63) / 64) + times - 1) / times;
}

/* ---- a tile of C ---- */

typedef struct tile { /* of C, and the part of k under way */
    const tm_gemm_args *g;
    uint64_t i0, j0, k0;
    size_t m, n, depth, k_step;
    bool first, last; /* of the parts of k */
    uint16_t *a, *b;
    float *c;
    bf16_ahead asked[BF16_ASKED];
} tile;

static size_t panels_of(size_t lines) {
    return (lines + BF16_LINES - 1) / BF16_LINES;
}
static size_t steps_of(size_t depth) {
    return (depth + BF16_DEPTHS - 1) / BF16_DEPTHS;
}

static operand rows_of_a(const tile *t) {
    const tm_gemm_args *g = t->g;
    return (operand){g->a, g->a_type, g->lda, g->a_trans, t->i0, t->m, t->k0, t->depth, NULL};
}
/* Columns from j on. */
static operand columns_of_b(const tile *t, size_t j) {
    const tm_gemm_args *g = t->g;
    return (operand){g->b,  g->b_type, g->ldb,     !g->b_trans, t->j0 + j, tm_min_u64(GROUP, t->n - j),
                     t->k0, t->depth,  g->b_packed};
}

/* The tile with the part of k from k0 on. */
static tile with_part(const tile *t, uint64_t k0) {
    tile p = *t;
    p.k0 = k0, p.depth = tm_min_u64(t->k_step, t->g->k - k0);
    p.first = k0 == 0, p.last = k0 + t->k_step >= t->g->k;
    return p;
}

static void ask_for_a(tile *t) {
    t->asked[BF16_NEXT_A] = (bf16_ahead){0};
    if (t->last) return;
    tile next = with_part(t, t->k0 + t->k_step);
    operand a = rows_of_a(&next);
    t->asked[BF16_NEXT_A] = ahead_of_operand(&a);
    spread(&t->asked[BF16_NEXT_A], panels_of(t->m) * panels_of(t->n) * steps_of(t->depth));
}

/* What is packed after the columns from j on. */
static void ask_for_b(tile *t, size_t j) {
    size_t blocks = panels_of(t->m) * panels_of(tm_min_u64(GROUP, t->n - j));
    bool more = j + GROUP < t->n;
    t->asked[BF16_NEXT_B] = (bf16_ahead){0};
    if (!more && t->last) return;
    if (t->g->b_packed && t->g->b_packed->packing != TM_PACKED_BITS4)
        return; /* its rows are asked for where it is decoded */
    tile next = with_part(t, more ? t->k0 : t->k0 + t->k_step);
    operand b = columns_of_b(&next, more ? j + GROUP : 0);
    t->asked[BF16_NEXT_B] = ahead_of_operand(&b);
    spread(&t->asked[BF16_NEXT_B], blocks * steps_of(t->depth));
}

static void ask_for_block(tile *t, const bf16_block *b, const float *sums) {
    size_t bytes = tm_elem_bytes(t->g->c_type);
    t->asked[BF16_ROWS_OF_C] = t->asked[BF16_NEXT_SUMS] = (bf16_ahead){0};
    if (t->last)
        t->asked[BF16_ROWS_OF_C] = ahead_of((const char *)t->g->c + (b->row * t->g->ldc + b->column) * bytes,
                                            b->columns * bytes, t->g->ldc * bytes, b->rows);
    if (!t->first) t->asked[BF16_NEXT_SUMS] = ahead_of(sums + BLOCK, BLOCK * sizeof *sums, 0, 1);
    spread(&t->asked[BF16_ROWS_OF_C], steps_of(t->depth));
    spread(&t->asked[BF16_NEXT_SUMS], steps_of(t->depth));
}

/* Rows [i, ..) and columns [j, ..) of the tile; b: their panel. */
static void one_block(tile *t, size_t i, size_t j, const uint16_t *b) {
    bool once = t->first && t->last; /* then one block of sums serves all */
    float *sums = once ? t->c : t->c + (j / BF16_LINES * panels_of(t->m) + i / BF16_LINES) * BLOCK;
    bf16_block block = {.g = t->g, .row = t->i0 + i, .column = t->j0 + j};
    block.rows = tm_min_u64(BF16_LINES, t->m - i), block.columns = tm_min_u64(BF16_LINES, t->n - j);
    ask_for_block(t, &block, sums);
    own.way->multiply(t->a + i / BF16_LINES * bf16_panel(t->depth), b, t->depth, !t->first, sums, t->asked);
    if (t->last) bf16_store(&block, sums);
}

static void one_part(tile *t) {
    operand a = rows_of_a(t);
    bf16_pack_left(&a, t->a);
    ask_for_a(t);
    for (size_t j0 = 0; j0 < t->n; j0 += GROUP) {
        operand b = columns_of_b(t, j0);
        bf16_pack_right(&b, t->b);
        ask_for_b(t, j0);
        for (size_t j = 0; j < b.n; j += BF16_LINES)
            for (size_t i = 0; i < t->m; i += BF16_LINES)
                one_block(t, i, j0 + j, t->b + j / BF16_LINES * bf16_panel(t->depth));
    }
}

static void one_tile(const tm_gemm_args *g, const gemm_cut *c, uint64_t x, char *mine) {
    uint64_t pieces = (g->k + BF16_K_CHUNK - 1) / BF16_K_CHUNK;
    tile t = {.g = g, .k_step = tm_round_up((g->k + pieces - 1) / pieces, BF16_DEPTHS)};
    gemm_piece m = gemm_piece_of(g->m, c->tiles_m, x % c->tiles_m, BF16_LINES),
               n = gemm_piece_of(g->n, c->tiles_n, x / c->tiles_m, BF16_LINES);
    t.i0 = m.at, t.m = m.n, t.j0 = n.at, t.n = n.n;
    t.b = (uint16_t *)(void *)mine, t.a = (uint16_t *)(void *)(mine + B_BYTES);
    t.c = (float *)(void *)(mine + B_BYTES + A_BYTES);
    for (uint64_t k0 = 0; k0 < g->k && t.m && t.n; k0 += t.k_step) {
        tile part = with_part(&t, k0);
        one_part(&part);
    }
}

void bf16_run(const tm_gemm_args *g) {
    if (g->a_type != TM_ELEM_BF16 || g->b_type != TM_ELEM_BF16 || g->c_type == TM_ELEM_F16) {
        gemm_builtin.run(g);
        return;
    }
    TM_ASSERT(g->k > 0);
    if (bf16_is_few(g)) {
        bf16_few(g, own.way, own.threads);
        return;
    }
    gemm_cut c = gemm_cut_of(g, own.threads, &limits);
#pragma omp parallel num_threads(own.threads) if (c.tiles_m * c.tiles_n > 1)
    {
        char *mine = gemm_builtin_scratch((unsigned)omp_get_thread_num(), THREAD_BYTES);
        own.way->begin(BF16_TILE_ROWS);
#pragma omp for schedule(dynamic, 1)
        for (uint64_t x = 0; x < c.tiles_m * c.tiles_n; x++) one_tile(g, &c, x, mine);
        own.way->end();
    }
}

const char *bf16_describe(void) {
    return own.name;
}

/* Of a thread with a tile of a product that is m high, n wide and k deep. */
static size_t touched_bytes(uint64_t m, uint64_t n, uint64_t k) {
    size_t blocks = panels_of(tm_min_u64(m, M_TILE)) * panels_of(tm_min_u64(n, N_TILE));
    return B_BYTES + A_BYTES + (k <= BF16_K_CHUNK ? 1 : blocks) * BLOCK * sizeof(float);
}

uint64_t bf16_resident_bytes(unsigned threads, const tm_products *p) {
    if (p->type != TM_ELEM_BF16) return gemm_builtin.resident_bytes(threads, p) + TM_MIB / 8; /* our code */
    size_t bytes = tm_max_u64(bf16_few_bytes(), gemm_most_touched(p, touched_bytes));
    return gemm_builtin_touched(threads, bytes) + 3 * TM_MIB / 8; /* builtin's code as well */
}
#else
static gemm_opened absent(unsigned threads, tm_elem products) {
    (void)threads, (void)products;
    return GEMM_ABSENT;
}
static int never(tm_elem products) {
    (void)products;
    return 0;
}
const gemm_backend gemm_amx = {.name = "amx", .preference = never, .open = absent};
const gemm_backend gemm_avx512bf16 = {.name = "avx512bf16", .preference = never, .open = absent};
#endif
