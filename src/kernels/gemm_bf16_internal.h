/* How operands of our own products of bf16 are laid out, for register tiles of 16 rows x 64 bytes: panels of 32 lines, in which
 * every 32 depths are two tiles, one of the even lines, one of the odd ones. Of a left operand a row of a tile is a line;
 * of a right one it is a pair of depths, line by line. What is missing of a last tile is zero. Panels are multiplied by
 * AMX (gemm_amx.c) or by AVX-512 BF16 (gemm_avx512bf16.c). */
#ifndef TIDEMILL_GEMM_BF16_INTERNAL_H
#define TIDEMILL_GEMM_BF16_INTERNAL_H

#include "kernels/gemm_pack_internal.h"
#include "kernels/kernels_internal.h"

enum {
    BF16_LINES = 32,  /* of a panel */
    BF16_DEPTHS = 32, /* of a tile */
    BF16_TILE = 512,  /* its elements of 16 bits; its sums in fp32 are half as many */
    BF16_TILE_ROWS = 16,
    BF16_ROW_BYTES = 64,
    BF16_K_CHUNK = 256 /* depths that are packed at once, at most */
};

/* Elements of a panel. */
static inline size_t bf16_panel(size_t depth) {
    return tm_round_up(depth, BF16_DEPTHS) * BF16_LINES;
}

/* ---- what multiplies ---- */

/* Runs of bytes, `each` lines of the cache at a time. */
typedef struct bf16_ahead {
    const char *at;
    size_t run, stride, runs, done, each;
} bf16_ahead;

#define BF16_ASK(locality)                                                                                             \
    for (size_t i = 0; i < a->each && a->runs; i++) {                                                                  \
        __builtin_prefetch(a->at + a->done, 0, locality);                                                              \
        a->done += 64;                                                                                                 \
        if (a->done < a->run) continue;                                                                                \
        a->at += a->stride, a->runs--, a->done = 0;                                                                    \
    }
__attribute__((always_inline)) static inline void bf16_ask(bf16_ahead *a) {
    BF16_ASK(2)
}
__attribute__((always_inline)) static inline void bf16_ask_near(bf16_ahead *a) { /* into the first cache */
    BF16_ASK(3)
}

enum { BF16_NEXT_A, BF16_NEXT_B, BF16_ROWS_OF_C, BF16_NEXT_SUMS, BF16_ASKED };

/* Products of few rows: sums[64][side] = or += four times 16 rows of B, as they lie `ld` elements apart, times `side` (at
 * most 16) rows of A, packed [pairs of depths][side][2], over `steps` times 32 depths. */
typedef struct bf16_few_rows {
    const uint16_t *b, *a;
    size_t ld, side, steps;
    bool add;
    float *sums;
} bf16_few_rows;

/* Sums are fp32, added pair of depths by pair of depths in the order of k, in both products: the same bits. */
typedef struct bf16_way {
    const char *name;
    size_t passes;       /* over the depths of a block: at each step of each more of what is read next is asked for */
    bool (*there)(void); /* what the CPU and the system have */
    void (*begin)(size_t side); /* of the calling thread's products, with sums of so many columns, up to 16 */
    void (*end)(void);
    /* sums (a block: [even, odd rows][even, odd columns][16][16]) = or += the product of two panels */
    void (*multiply)(const uint16_t *a, const uint16_t *b, size_t depth, bool add, float *sums,
                     bf16_ahead asked[BF16_ASKED]);
    void (*multiply_few)(const bf16_few_rows *f);
} bf16_way;

/* The members of a gemm_backend; one way is open at a time. What is not bf16 is the builtin product's. */
gemm_opened bf16_open(const bf16_way *way, unsigned threads, tm_elem products);
void bf16_run(const tm_gemm_args *g);
const char *bf16_describe(void);
uint64_t bf16_resident_bytes(unsigned threads, const tm_products *p);
void bf16_close(void);

/* Register tiles of AMX, of the calling thread, from one to the other (attention_amx.c as well): 16 rows; sums and right
 * operands have so many columns. */
void amx_begin_tiles(size_t side);
void amx_end_tiles(void);

/* ---- packing ---- */

void bf16_pack_left(const operand *o, uint16_t *out);
void bf16_pack_right(const operand *o, uint16_t *out);

/* A right operand of 4-bit codes, decoded on the way (gemm_bf16_nf4.c): whether this one can be, and whether it was, which
 * its scales decide: where not, what was written is to be written anew. */
bool bf16_nf4_fits(const operand *o);
bool bf16_pack_nf4(const operand *o, uint16_t *out);

/* Row i, column j of 16 x 16 pairs of elements becomes row j, column i. x: rows of ld elements. */
void bf16_transpose_pairs(const uint16_t *x, size_t ld, uint16_t *out);

/* Where a block of sums of two panels goes: rows [0, rows) x columns [0, columns) of C, at most 32 x 32. */
typedef struct bf16_block {
    const tm_gemm_args *g;
    uint64_t row, column;
    size_t rows, columns;
} bf16_block;
/* Depths [k, k + n) of a packed row, as bf16. */
void bf16_unpack(const tm_packed *p, uint64_t row, uint64_t k, size_t n, uint16_t *out);

/* Products of few rows with a matrix stored by rows (gemm_bf16_few.c); operands are bf16. */
bool bf16_is_few(const tm_gemm_args *g);
void bf16_few(const tm_gemm_args *g, const bf16_way *way, unsigned threads);
size_t bf16_few_bytes(void); /* of each thread's scratch */

/* sums: [even or odd rows][even or odd columns][16][16] */
void bf16_store(const bf16_block *b, const float *sums);
/* sums: [columns][rows], of at most 16 rows and any number of columns */
void bf16_store_few(const bf16_block *b, const float *sums);

#endif
