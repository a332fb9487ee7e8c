/* How operands of the builtin product are laid out for its register tile: panels of `width` floats a depth, of which
 * the first `step` are used. */
#ifndef TIDEMILL_GEMM_PACK_INTERNAL_H
#define TIDEMILL_GEMM_PACK_INTERNAL_H

#include "kernels/kernels_internal.h"

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
} operand;

/* out[(i / step) * stride + p * width + i % step] = line i, depth p, as fp32; what is missing of a last panel may be
 * anything finite or not: lines do not touch each other. */
void gemm_pack(const operand *o, size_t step, size_t width, size_t stride, float *out);

#endif
