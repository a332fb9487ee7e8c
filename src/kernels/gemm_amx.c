/* Our own product of bf16 by AMX. C is cut into tiles, each made by one thread on its own:
 *
 *     tile of C, up to M_TILE x N_TILE
 *         for k0 by at most AMX_K_CHUNK                    packs A[tile, k0..]: it stays in the core's second cache
 *             groups of up to GROUP columns                packs B[k0.., group]
 *                 panels of 32 columns of B                one stays in half of the first cache, for two threads may share it
 *                     panels of 32 rows of A               2 x 2 register tiles
 *
 * While registers multiply, what is read next is asked for: the next group of B (weights come out of memory), A of the next
 * part of k, the next sums, rows of C.
 *
 * Sums lie in blocks of the thread's own and go to C once, when the last of k has been added. The order of a sum depends on k
 * alone: any cut of C, any number of threads gives the same bits. The instruction takes denormals for zero, and makes none.
 *
 * What it does not multiply (operands of fp32 or fp16) is the builtin product's, in whose scratch this one works. */
#include "kernels/attention_internal.h"
#include "kernels/gemm_amx_internal.h"
#include "kernels/kernels_internal.h"

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <cpuid.h>
#include <immintrin.h>
#include <omp.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))

enum { M_TILE = 512, N_TILE = 768, GROUP = 128 };
enum {
    QUARTER = AMX_TILE / 2,
    BLOCK = 4 * QUARTER,
    STEP = 2 * AMX_TILE
}; /* sums 16 x 16, 32 x 32; 32 depths of a panel */
/* Of each thread: sums, panels of A and of B. */
enum {
    C_BYTES = M_TILE * N_TILE * 4,
    A_BYTES = M_TILE * AMX_K_CHUNK * 2,
    B_BYTES = GROUP * AMX_K_CHUNK * 2,
    THREAD_BYTES = C_BYTES + A_BYTES + B_BYTES
};
static const gemm_limits limits = {M_TILE, N_TILE, AMX_LINES, AMX_LINES, GROUP};

static struct {
    unsigned threads;
    char name[64];
} own;

/* ---- what the CPU and the system have ---- */

enum { TILE_DATA = 18, TILE_STATES = 3 << 17, ASK_PERMISSION = 0x1023 }; /* XCR0's bits 17, 18; arch_prctl(2) */
enum { HAS_BF16_TILES = 1 << 22, HAS_TILES = 1 << 24 };                  /* CPUID 7, EDX */

static bool system_saves_tiles(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILE_STATES) == TILE_STATES;
}

/* Linux gives room for tiles to a process that asks, all of its threads, those there are too, and its children. A system
 * that refuses has none, so that another product is preferred, and room is looked for that one. */
static bool has_amx(void) {
    unsigned a, b, c, d;
    return kernels.level == KERNELS_AVX512 && kernels_has_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & HAS_BF16_TILES) && (d & HAS_TILES) && system_saves_tiles() &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

static gemm_opened open_amx(unsigned threads, tm_elem products) {
    if (!has_amx()) return GEMM_ABSENT;
    own.threads = threads;
    gemm_opened how = gemm_builtin.open(threads, products);
    /* amx2: with attention of its own */
    snprintf(own.name, sizeof own.name, "amx2+%s", gemm_builtin.describe());
    return how;
}

static void close_amx(void) {
    gemm_builtin.close();
}

/* ---- asking for what is read next ---- */

/* Runs of bytes, `each` lines of the cache at a time. */
typedef struct ahead {
    const char *at;
    size_t run, stride, runs, done, each;
} ahead;

static ahead ahead_of(const void *at, size_t run, size_t stride, size_t runs) {
    return (ahead){.at = at, .run = run, .stride = stride, .runs = runs};
}

/* Of 4-bit codes two make a byte. */
static ahead ahead_of_codes(const operand *o) {
    const tm_packed *p = o->packed;
    uint64_t row = p->first + (o->by_depth ? o->k0 : o->at), column = o->by_depth ? o->at : o->k0;
    return ahead_of(p->nf4.codes + (row * p->k + column) / 2, (o->by_depth ? o->n : o->depth) / 2, p->k / 2,
                    o->by_depth ? o->depth : o->n);
}

static ahead ahead_of_operand(const operand *o) {
    const uint16_t *x = o->x;
    if (o->packed) return ahead_of_codes(o);
    if (o->by_depth) return ahead_of(x + o->k0 * o->ld + o->at, o->n * 2, o->ld * 2, o->depth);
    return ahead_of(x + o->at * o->ld + o->k0, o->depth * 2, o->ld * 2, o->n);
}

/* So that all of it has been asked for after that many times. */
static void spread(ahead *a, size_t times) {
    a->each = (a->runs * ((a->run + 63) / 64) + times - 1) / times;
}

#define ASK(locality)                                                                                                  \
    for (size_t i = 0; i < a->each && a->runs; i++) {                                                                  \
        __builtin_prefetch(a->at + a->done, 0, locality);                                                              \
        a->done += 64;                                                                                                 \
        if (a->done < a->run) continue;                                                                                \
        a->at += a->stride, a->runs--, a->done = 0;                                                                    \
    }
__attribute__((always_inline)) static inline void ask(ahead *a) {
    ASK(2)
}
__attribute__((always_inline)) static inline void ask_near(ahead *a) { /* into the first cache */
    ASK(3)
}

enum { NEXT_A, NEXT_B, ROWS_OF_C, NEXT_SUMS, ASKED };

/* ---- register tiles ---- */

#define EIGHT(x)                                                                                                       \
    { x, x, x, x, x, x, x, x }
/* All eight are whole. A constant: gcc does not know that the instruction reads more than a word of it. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} whole_tiles = {.palette = 1, .row_bytes = EIGHT(AMX_ROW_BYTES), .rows = EIGHT(AMX_TILE_ROWS)};

AMX void amx_begin_tiles(void) {
    _tile_loadconfig(&whole_tiles);
}
AMX void amx_end_tiles(void) {
    _tile_release();
}

AMX static void begin_sums(const float *sums, bool add) {
    if (add) {
        _tile_loadd(0, sums, AMX_ROW_BYTES);
        _tile_loadd(1, sums + QUARTER, AMX_ROW_BYTES);
        _tile_loadd(2, sums + 2 * QUARTER, AMX_ROW_BYTES);
        _tile_loadd(3, sums + 3 * QUARTER, AMX_ROW_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* sums = or += the product of two panels. */
AMX static void multiply_panels(const uint16_t *a, const uint16_t *b, size_t depth, bool add, float *sums,
                                ahead asked[ASKED]) {
    __asm__ volatile("" ::: "memory"); /* what was packed is stored: nothing says that loading a tile reads it */
    begin_sums(sums, add);
    for (size_t k = 0; k < depth; k += AMX_DEPTHS, a += STEP, b += STEP) {
        _tile_loadd(4, a, AMX_ROW_BYTES);
        _tile_loadd(6, b, AMX_ROW_BYTES);
        ask(&asked[NEXT_A]);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + AMX_TILE, AMX_ROW_BYTES);
        ask(&asked[NEXT_B]);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + AMX_TILE, AMX_ROW_BYTES);
        ask(&asked[ROWS_OF_C]);
        _tile_dpbf16ps(2, 5, 6);
        ask_near(&asked[NEXT_SUMS]);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, AMX_ROW_BYTES);
    _tile_stored(1, sums + QUARTER, AMX_ROW_BYTES);
    _tile_stored(2, sums + 2 * QUARTER, AMX_ROW_BYTES);
    _tile_stored(3, sums + 3 * QUARTER, AMX_ROW_BYTES);
}

/* ---- a tile of C ---- */

typedef struct tile { /* of C, and the part of k under way */
    const tm_gemm_args *g;
    uint64_t i0, j0, k0;
    size_t m, n, depth, k_step;
    bool first, last; /* of the parts of k */
    uint16_t *a, *b;
    float *c;
    ahead asked[ASKED];
} tile;

static size_t panels_of(size_t lines) {
    return (lines + AMX_LINES - 1) / AMX_LINES;
}
static size_t steps_of(size_t depth) {
    return (depth + AMX_DEPTHS - 1) / AMX_DEPTHS;
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
    t->asked[NEXT_A] = (ahead){0};
    if (t->last) return;
    tile next = with_part(t, t->k0 + t->k_step);
    operand a = rows_of_a(&next);
    t->asked[NEXT_A] = ahead_of_operand(&a);
    spread(&t->asked[NEXT_A], panels_of(t->m) * panels_of(t->n) * steps_of(t->depth));
}

/* What is packed after the columns from j on. */
static void ask_for_b(tile *t, size_t j) {
    size_t blocks = panels_of(t->m) * panels_of(tm_min_u64(GROUP, t->n - j));
    bool more = j + GROUP < t->n;
    t->asked[NEXT_B] = (ahead){0};
    if (!more && t->last) return;
    if (t->g->b_packed && t->g->b_packed->packing != TM_PACKED_BITS4)
        return; /* its rows are asked for where it is decoded */
    tile next = with_part(t, more ? t->k0 : t->k0 + t->k_step);
    operand b = columns_of_b(&next, more ? j + GROUP : 0);
    t->asked[NEXT_B] = ahead_of_operand(&b);
    spread(&t->asked[NEXT_B], blocks * steps_of(t->depth));
}

static void ask_for_block(tile *t, const amx_block *b, const float *sums) {
    size_t bytes = tm_elem_bytes(t->g->c_type);
    t->asked[ROWS_OF_C] = t->asked[NEXT_SUMS] = (ahead){0};
    if (t->last)
        t->asked[ROWS_OF_C] = ahead_of((const char *)t->g->c + (b->row * t->g->ldc + b->column) * bytes,
                                       b->columns * bytes, t->g->ldc * bytes, b->rows);
    if (!t->first) t->asked[NEXT_SUMS] = ahead_of(sums + BLOCK, BLOCK * sizeof *sums, 0, 1);
    spread(&t->asked[ROWS_OF_C], steps_of(t->depth));
    spread(&t->asked[NEXT_SUMS], steps_of(t->depth));
}

/* Rows [i, ..) and columns [j, ..) of the tile; b: their panel. */
static void one_block(tile *t, size_t i, size_t j, const uint16_t *b) {
    bool once = t->first && t->last; /* then one block of sums serves all */
    float *sums = once ? t->c : t->c + (j / AMX_LINES * panels_of(t->m) + i / AMX_LINES) * BLOCK;
    amx_block block = {.g = t->g, .row = t->i0 + i, .column = t->j0 + j};
    block.rows = tm_min_u64(AMX_LINES, t->m - i), block.columns = tm_min_u64(AMX_LINES, t->n - j);
    ask_for_block(t, &block, sums);
    multiply_panels(t->a + i / AMX_LINES * amx_panel(t->depth), b, t->depth, !t->first, sums, t->asked);
    if (t->last) amx_store(&block, sums);
}

static void one_part(tile *t) {
    operand a = rows_of_a(t);
    amx_pack_left(&a, t->a);
    ask_for_a(t);
    for (size_t j0 = 0; j0 < t->n; j0 += GROUP) {
        operand b = columns_of_b(t, j0);
        amx_pack_right(&b, t->b);
        ask_for_b(t, j0);
        for (size_t j = 0; j < b.n; j += AMX_LINES)
            for (size_t i = 0; i < t->m; i += AMX_LINES)
                one_block(t, i, j0 + j, t->b + j / AMX_LINES * amx_panel(t->depth));
    }
}

static void one_tile(const tm_gemm_args *g, const gemm_cut *c, uint64_t x, char *mine) {
    uint64_t pieces = (g->k + AMX_K_CHUNK - 1) / AMX_K_CHUNK;
    tile t = {.g = g, .k_step = tm_round_up((g->k + pieces - 1) / pieces, AMX_DEPTHS)};
    gemm_piece m = gemm_piece_of(g->m, c->tiles_m, x % c->tiles_m, AMX_LINES),
               n = gemm_piece_of(g->n, c->tiles_n, x / c->tiles_m, AMX_LINES);
    t.i0 = m.at, t.m = m.n, t.j0 = n.at, t.n = n.n;
    t.c = (float *)(void *)mine, t.a = (uint16_t *)(void *)(mine + C_BYTES);
    t.b = (uint16_t *)(void *)(mine + C_BYTES + A_BYTES);
    for (uint64_t k0 = 0; k0 < g->k && t.m && t.n; k0 += t.k_step) {
        tile part = with_part(&t, k0);
        one_part(&part);
    }
}

static void run(const tm_gemm_args *g) {
    if (g->a_type != TM_ELEM_BF16 || g->b_type != TM_ELEM_BF16 || g->c_type == TM_ELEM_F16) {
        gemm_builtin.run(g);
        return;
    }
    TM_ASSERT(g->k > 0);
    if (amx_is_few(g)) {
        amx_few(g, own.threads);
        return;
    }
    gemm_cut c = gemm_cut_of(g, own.threads, &limits);
#pragma omp parallel num_threads(own.threads) if (c.tiles_m * c.tiles_n > 1)
    {
        char *mine = gemm_builtin_scratch((unsigned)omp_get_thread_num(), THREAD_BYTES);
        amx_begin_tiles();
#pragma omp for schedule(dynamic, 1)
        for (uint64_t x = 0; x < c.tiles_m * c.tiles_n; x++) one_tile(g, &c, x, mine);
        amx_end_tiles();
    }
}

static const char *describe(void) {
    return own.name;
}
static uint64_t resident(unsigned threads, const tm_products *p) {
    return gemm_builtin.resident_bytes(threads, p) + TM_MIB / 2; /* its own code, and attention's check of a start */
}
static int preference(tm_elem products) {
    return products == TM_ELEM_BF16 && has_amx() ? 40 : 0;
}

const gemm_backend gemm_amx = {.name = "amx",
                               .preference = preference,
                               .open = open_amx,
                               .run = run,
                               .describe = describe,
                               .resident_bytes = resident,
                               .attention = &attention_by_amx,
                               .close = close_amx};
#else
static gemm_opened open_amx(unsigned threads, tm_elem products) {
    (void)threads, (void)products;
    return GEMM_ABSENT;
}
static int preference(tm_elem products) {
    (void)products;
    return 0;
}
const gemm_backend gemm_amx = {.name = "amx", .preference = preference, .open = open_amx};
#endif
