/* gemm: matrix products behind one small interface.
 *
 *     C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C[m,n]        row-major, op is the identity or the transpose
 *
 * A, B and C are fp32, bf16 or fp16, in any mix. Products are accumulated in fp32; a C of 16 bits is rounded once, to
 * nearest even, after alpha, beta and the whole of k. With beta = 0, C is not read (it may hold anything).
 *
 * Back-ends, one of which tm_kernels_init chooses from what is installed, from feature bits and maker of the CPU and from
 * the type that most operands have. It is checked on small odd products before it is used. TIDEMILL_GEMM forces one.
 *
 *   amx, avx512bf16: ours; preferred for bf16 where the CPU and the system have AMX or, but for Intel's cores, AVX-512 BF16.
 *   Products with an operand of another type go to builtin.
 *
 *   openblas: loaded at run time, after OPENBLAS_CORETYPE was set from the feature bits (0.3.21 knows no CPU younger
 *   than itself); called single-threaded from our own team, so that its thread pool never exists. Preferred where there
 *   is AVX-512, and for fp32.
 *
 *   builtin: ours; packed panels, 6 x 16 register tiles, portable C where the CPU has no AVX2. Preferred for 16 bits on
 *   AVX2: it widens while it packs, openblas has to be given widened panels.
 *
 * The cut of C into tiles is a function of (m, n, k, threads) and each tile is computed by one call of one thread,
 * so which thread takes a tile changes nothing.
 */
#ifndef TIDEMILL_GEMM_H
#define TIDEMILL_GEMM_H

#include "kernels/kernels.h"

typedef struct tm_gemm_args {
    uint64_t m, n, k; /* m or n may be 0, k may not */
    float alpha, beta;
    const void *a, *b;
    void *c;
    uint64_t lda, ldb, ldc; /* elements from one stored row to the next */
    tm_elem a_type, b_type, c_type;
    bool a_trans, b_trans;            /* a_trans: A is stored [k][m]; b_trans: B is stored [n][k] */
    const struct tm_packed *b_packed; /* instead of b and ldb: the matrix as a file has it (packed.h), B^T [n, k] with
                                         b_trans, else B [k, n]; its values are rounded to b_type. NULL: b */
    bool narrow; /* C has many rows of few columns, and openblas may deal out rows too, which changes bits */
} tm_gemm_args;

void tm_gemm(const tm_gemm_args *g);
/* Products of bf16 are instructions of this CPU, and those that were chosen use them; others widen, as those of fp16 always do. */
bool tm_gemm_multiplies_bf16(void);
/* A row of C has the same bits however many others there are: so it is of our own products, not of every library's. */
bool tm_gemm_rows_alone(void);
/* Asks that of OpenBLAS, as often on as it was called with true, and off with false: in products without a_trans whose m is a multiple of 16.
 * It takes time where C has few columns. On AVX2 OpenBLAS cannot: asked before tm_kernels_init, ours are chosen there. Our own
 * need not be asked. Not while products run. */
void tm_gemm_rows_apart(bool on);
const char *tm_gemm_library(void); /* "openblas-0.3.21-Haswell", "builtin-avx2" */

#endif
