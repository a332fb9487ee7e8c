/* How operands of the product by AMX are laid out for its register tiles of 16 rows x 64 bytes: panels of 32 lines, in which
 * every 32 depths are two tiles, one of the even lines, one of the odd ones. Of a left operand a row of a tile is a line;
 * of a right one it is a pair of depths, line by line. What is missing of a last tile is zero. */
#ifndef TIDEMILL_GEMM_AMX_INTERNAL_H
#define TIDEMILL_GEMM_AMX_INTERNAL_H

#include "kernels/gemm_pack_internal.h"

enum {
    AMX_LINES = 32,  /* of a panel */
    AMX_DEPTHS = 32, /* of a tile */
    AMX_TILE = 512,  /* its elements of 16 bits; its sums in fp32 are half as many */
    AMX_TILE_ROWS = 16,
    AMX_ROW_BYTES = 64,
    AMX_K_CHUNK = 256 /* depths that are packed at once, at most */
};

/* Elements of a panel. */
static inline size_t amx_panel(size_t depth) {
    return tm_round_up(depth, AMX_DEPTHS) * AMX_LINES;
}

void amx_pack_left(const operand *o, uint16_t *out);
void amx_pack_right(const operand *o, uint16_t *out);

/* A right operand of 4-bit codes, decoded on the way (gemm_amx_nf4.c): whether this one can be, and whether it was, which
 * its scales decide: where not, what was written is to be written anew. */
bool amx_nf4_fits(const operand *o);
bool amx_pack_nf4(const operand *o, uint16_t *out);

/* Register tiles of the calling thread, all of 16 rows x 64 bytes, from one to the other. */
void amx_begin_tiles(void);
void amx_end_tiles(void);

/* Row i, column j of 16 x 16 pairs of elements becomes row j, column i. x: rows of ld elements. */
void amx_transpose_pairs(const uint16_t *x, size_t ld, uint16_t *out);

/* Where a block of sums of two panels goes: rows [0, rows) x columns [0, columns) of C, at most 32 x 32. */
typedef struct amx_block {
    const tm_gemm_args *g;
    uint64_t row, column;
    size_t rows, columns;
} amx_block;
/* Depths [k, k + n) of a packed row, as bf16. */
void amx_unpack(const tm_packed *p, uint64_t row, uint64_t k, size_t n, uint16_t *out);

/* Products of few rows with a matrix stored by rows (gemm_amx_few.c); operands are bf16. */
bool amx_is_few(const tm_gemm_args *g);
void amx_few(const tm_gemm_args *g, unsigned threads);

/* sums: [even or odd rows][even or odd columns][16][16] */
void amx_store(const amx_block *b, const float *sums);
/* sums: [columns][rows], of at most 16 rows and any number of columns */
void amx_store_few(const amx_block *b, const float *sums);

#endif
