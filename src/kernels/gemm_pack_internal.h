/* What products of our own share: how C is cut, and operands. Those of the builtin product are laid out for its register
 * tile: panels of `width` floats a depth, of which the first `step` are used. */
#ifndef TIDEMILL_GEMM_PACK_INTERNAL_H
#define TIDEMILL_GEMM_PACK_INTERNAL_H

#include "kernels/kernels_internal.h"
#include "kernels/packed.h"

enum {
    GEMM_K_CHUNK = 384,                           /* depths that are packed at once, at most */
    GEMM_A_PANEL = GEMM_K_CHUNK * GEMM_A_LD + 16, /* a line more, so that panels do not meet in one set of the cache */
    GEMM_B_PANEL = GEMM_K_CHUNK * GEMM_NR + 16
};

/* Lines [at, at + n) of A (its rows) or of B (its columns), depths [k0, k0 + depth). */
typedef struct operand {
    const void *x;
    tm_elem type;
    uint64_t ld;
    bool by_depth; /* stored [depth][line], else [line][depth] */
    uint64_t at;
    size_t n;
    uint64_t k0;
    size_t depth;
    const tm_packed *packed; /* instead of x and ld: its values, as `type`; NULL: x */
} operand;
/* Lines [first, first + n) of a packed operand, decoded into buf, what is stored side by side `ld` elements apart. */
operand gemm_unpacked(const operand *o, size_t first, size_t n, size_t ld, void *buf);

/* out[(i / step) * stride + p * width + i % step] = line i, depth p, as fp32; what is missing of a last panel may be
 * anything finite or not: lines do not touch each other. */
void gemm_pack(const operand *o, size_t step, size_t width, size_t stride, float *out);

/* ---- the cut of C ---- */

typedef struct gemm_limits {
    uint64_t m_tile, n_tile, m_grain, n_grain; /* the largest tile; what pieces are multiples of */
    uint64_t fewest_columns;                   /* of a tile, so that tiles become a multiple of the threads */
} gemm_limits;
typedef struct gemm_cut {
    uint64_t tiles_m, tiles_n;
} gemm_cut;
typedef struct gemm_piece {
    uint64_t at, n;
} gemm_piece;

/* Tiles within the limits, a multiple of the threads if that leaves them wide enough. */
gemm_cut gemm_cut_of(const tm_gemm_args *g, unsigned threads, const gemm_limits *l);
/* The i-th of `count` pieces of n; the last may have none. */
gemm_piece gemm_piece_of(uint64_t n, uint64_t count, uint64_t i, uint64_t grain);

/* A thread's part of the builtin product's scratch, for who calls it between products of his own. */
char *gemm_builtin_scratch(unsigned thread, size_t bytes);
/* The most that any of the products takes by `touched`, which is told height, width and depth. */
size_t gemm_most_touched(const tm_products *p, size_t (*touched)(uint64_t m, uint64_t n, uint64_t k));
/* Resident bytes of the scratch when each thread uses that many bytes of its part. */
uint64_t gemm_builtin_touched(unsigned threads, size_t bytes);

#endif
