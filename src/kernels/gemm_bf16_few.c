/* The product of bf16 of few rows with a matrix that is stored row by row: what decoding a token asks for. The matrix is read
 * once, and as fast as memory gives it. It takes the place of the left operand, whose tiles are 16 of its rows as they lie,
 * so that nothing of it is packed; the few rows are packed once, as the right one:
 *
 *     C^T [n, m] = B [n, k] A^T [k, m]
 *         each thread has a run of B's rows              packs A: it stays in the core's caches
 *             groups of 64 rows of B, as four tiles
 *                 up to 16 rows of A at a time           four tiles of sums, over the whole of k
 *
 * Pairs of depths are added in the same order whichever operand is which, so that the bits are those of gemm_bf16.c.
 * What no tile holds whole (the last rows, the last depths) comes by way of a copy that has zeros there. */
#include "kernels/gemm_bf16_internal.h"
#include "kernels/kernels_internal.h"

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <omp.h>
#include <string.h>

enum {
    FEW = 64,   /* rows of A */
    SIDE = 16,  /* of a tile of sums */
    GROUP = 64, /* rows of B */
    MOST_PACKED = 1 << 20,
    COPIED = BF16_K_CHUNK, /* depths of a copy of B's rows */
    COPY_AT = MOST_PACKED, /* of each thread's scratch */
    SUMS_AT = COPY_AT + GROUP * COPIED * 2,
    SCRATCH_BYTES = SUMS_AT + GROUP * FEW * 4
};

size_t bf16_few_bytes(void) {
    return SCRATCH_BYTES;
}

typedef struct few {
    const tm_gemm_args *g;
    const bf16_way *way;
    uint64_t row; /* of B: the group's first */
    size_t rows;
    uint16_t *a;    /* packed: [blocks of 16 rows][pairs of depths][rows of the block][2] */
    uint16_t *copy; /* [GROUP][COPIED] */
    float *sums;    /* [blocks of 16 rows of A][GROUP][SIDE] */
    size_t side;    /* that the way was begun for */
} few;

static size_t packed_bytes(const tm_gemm_args *g) {
    return g->m * tm_round_up(g->k, BF16_DEPTHS) * 2;
}

bool bf16_is_few(const tm_gemm_args *g) {
    return g->m <= FEW && g->b_trans && !g->a_trans && packed_bytes(g) <= MOST_PACKED;
}

/* Rows of A that a tile of sums holds from row i on. */
static size_t side_at(const tm_gemm_args *g, size_t i) {
    return tm_min_u64(SIDE, g->m - i);
}

static void pack_rows(const tm_gemm_args *g, uint16_t *out) {
    size_t depth = tm_round_up(g->k, 2), whole = tm_round_up(g->k, BF16_DEPTHS);
    for (size_t i = 0; i < g->m; i += SIDE) {
        size_t n = side_at(g, i);
        memset(out + (depth - 2) * n, 0, (whole - depth + 2) * n * sizeof *out);
        if (n == 1) memcpy(out, (const uint16_t *)g->a + i * g->lda, g->k * sizeof *out);
        for (size_t r = 0; r < n && n > 1; r++) {
            const uint16_t *x = (const uint16_t *)g->a + (i + r) * g->lda;
            for (size_t k = 0; k + 2 <= g->k; k += 2) memcpy(out + k * n + 2 * r, x + k, 2 * sizeof *out);
            if (g->k % 2) out[(depth - 2) * n + 2 * r] = x[g->k - 1];
        }
        out += whole * n;
    }
}

/* ---- a group of B's rows ---- */

/* Depths [k, k + n) of the group's rows, decoded where they are packed, and zeros for what they have not. */
static void copy_rows(const few *f, size_t k, size_t n) {
    const tm_gemm_args *g = f->g;
    size_t whole = tm_round_up(n, BF16_DEPTHS);
    for (size_t r = 0; r < GROUP; r++) {
        uint16_t *to = f->copy + r * COPIED;
        if (r >= f->rows) {
            memset(to, 0, whole * sizeof *to);
            continue;
        }
        if (g->b_packed)
            bf16_unpack(g->b_packed, f->row + r, k, n, to);
        else
            memcpy(to, (const uint16_t *)g->b + (f->row + r) * g->ldb + k, n * sizeof *to);
        memset(to + n, 0, (whole - n) * sizeof *to);
    }
}

/* Where all of it lies as tiles want it. */
static size_t direct_steps(const few *f) {
    return f->rows == GROUP && !f->g->b_packed ? f->g->k / BF16_DEPTHS : 0;
}

/* Sums of all rows of A += those over depths [k, k + 32 steps), where B's begin at b. */
static void multiply_sides(few *f, const uint16_t *b, size_t ld, size_t k, size_t steps) {
    size_t whole = tm_round_up(f->g->k, BF16_DEPTHS);
    for (size_t i = 0; i < f->g->m; i += SIDE) {
        size_t side = side_at(f->g, i);
        if (f->side != side) f->way->begin(side);
        f->side = side;
        f->way->multiply_few(&(bf16_few_rows){.b = b,
                                              .ld = ld,
                                              .a = f->a + i * whole + k * side,
                                              .side = side,
                                              .steps = steps,
                                              .add = k > 0,
                                              .sums = f->sums + i * GROUP});
    }
}

static void one_group(few *f) {
    const tm_gemm_args *g = f->g;
    size_t steps = direct_steps(f);
    if (steps) multiply_sides(f, (const uint16_t *)g->b + f->row * g->ldb, g->ldb, 0, steps);
    for (size_t k = steps * BF16_DEPTHS; k < g->k; k += COPIED) {
        size_t n = tm_min_u64(COPIED, g->k - k);
        copy_rows(f, k, n);
        multiply_sides(f, f->copy, COPIED, k, tm_round_up(n, BF16_DEPTHS) / BF16_DEPTHS);
    }
    for (size_t i = 0; i < g->m; i += SIDE) {
        const bf16_block c = {.g = g, .row = i, .rows = side_at(g, i), .column = f->row, .columns = f->rows};
        bf16_store_few(&c, f->sums + i * GROUP);
    }
}

void bf16_few(const tm_gemm_args *g, const bf16_way *way, unsigned threads) {
    uint64_t blocks = (g->n + SIDE - 1) / SIDE;
#pragma omp parallel num_threads(threads) if (blocks > 1)
    {
        unsigned team = (unsigned)omp_get_num_threads(), me = (unsigned)omp_get_thread_num();
        uint64_t end = tm_min_u64(blocks * (me + 1) / team * SIDE, g->n);
        char *mine = gemm_builtin_scratch(me, SCRATCH_BYTES);
        few f = {.g = g, .way = way, .a = (uint16_t *)(void *)mine};
        f.copy = (uint16_t *)(void *)(mine + COPY_AT);
        f.sums = (float *)(void *)(mine + SUMS_AT);
        f.row = blocks * me / team * SIDE;
        if (f.row < end) pack_rows(g, f.a);
        for (; f.row < end; f.row += GROUP) {
            f.rows = tm_min_u64(GROUP, end - f.row);
            one_group(&f);
        }
        way->end();
    }
}
#endif
